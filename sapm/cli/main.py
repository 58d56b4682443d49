"""The commands `list`, `info`, `run`, `resume`, `report`, `predict` and `export`.

`demo`, `reproduce` and `bench` are in `sapm.cli.studies`. Commands import JAX and the other large
packages only when they need them, so that `sapm --help` is fast.
"""

from __future__ import annotations

import json
import shlex
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sapm import __version__
from sapm.catalogue import CATALOGUE
from sapm.cli.arguments import (
    CommandWithSettings,
    join_or_launch,
    load_code,
    load_problem,
    new_folders,
    parse_devices,
    parse_models,
    parse_seeds,
    parse_settings,
    run_file,
    run_folder,
)
from sapm.cli.studies import run_reproduction
from sapm.cli.terminal import (
    Address,
    Devices,
    Distributed,
    ExitCode,
    Jobs,
    Json,
    Out,
    ProblemCode,
    Process,
    Processes,
    Quiet,
    app,
    continued_by,
    guarded,
    sentence,
    show,
    show_interrupted,
    show_transient,
)
from sapm.errors import warn

if TYPE_CHECKING:
    from sapm.problem.pde import Problem
    from sapm.results.result import Result
    from sapm.results.solution import Solution
    from sapm.training.run import Plan


@app.command("list")
@guarded
def list_problems(as_json: Json = False) -> None:
    """List the built-in problems."""
    if as_json:
        fields = ("about", "sizes", "settings")
        show({e.name: {name: getattr(e, name) for name in fields} for e in CATALOGUE.values()})
        return
    from rich.table import Table

    table = Table("name", "problem", "(depth, width); the first is the default")
    for entry in CATALOGUE.values():
        sizes = " ".join(f"({depth},{width})" for depth, width in entry.sizes)
        table.add_row(entry.name, entry.about, sizes)
    show(table)


@app.command()
@guarded
def info(as_json: Json = False) -> None:
    """Print the versions of the packages and the devices of JAX."""
    from sapm.results.files import environment

    env = environment()
    if as_json:
        show({"version": __version__} | env)
        return
    show(f"sapm {__version__}, Python {env['python']}, {env['platform']}")
    show(f"devices: {', '.join(env['devices'])}")
    show(", ".join(f"{name} {version}" for name, version in env["packages"].items()))


# ---------------------------------------------------------------- training


@dataclass(frozen=True)
class Job:
    """A training run that a command makes.

    Parameters
    ----------
    name : its key in the JSON output.
    train : trains and returns the result.
    folder : where the run is kept; None if it is not.
    problem_option : " --problem …", or "" if no problem was given.
    title : the title of its page.
    not_begun : "; not started: …" with the models that an interrupt leaves out.
    """

    name: str
    train: Callable[[], Result]
    folder: Path | None = None
    problem_option: str = ""
    title: str = ""
    not_begun: str = ""

    @property
    def resume_command(self) -> str:
        """The command that continues the run."""
        return f"sapm resume {shlex.quote(str(self.folder))}{self.problem_option}"

    def advice(self, ended: bool) -> str:
        """How to continue after an interrupt; "" if nothing was saved."""
        if self.folder is None:
            return ""
        if ended:
            report = f"sapm report {shlex.quote(str(self.folder))}{self.problem_option}"
            return f"the run has ended; write its page with: {report}{self.not_begun}"
        if (self.folder / "checkpoint" / "latest.sapm").exists():
            return f"continue with: {self.resume_command}{self.not_begun}"
        return ""


@app.command(cls=CommandWithSettings)
@guarded
def run(  # noqa: PLR0913
    problem: Annotated[
        str, typer.Argument(help="A built-in problem (see: sapm list) or file.py:name.")
    ],
    models: Annotated[str, typer.Option(help="ls, pm or sapm; several with commas.")] = "sapm",
    depth: Annotated[int | None, typer.Option(help="Number of layers.")] = None,
    width: Annotated[int | None, typer.Option(help="Units in every hidden layer.")] = None,
    seeds: Annotated[str, typer.Option(help="How many seeds (10), or which ones (3,5,8).")] = "10",
    method: Annotated[
        str | None,
        typer.Option(help="auto, gauss-newton, alternating, lbfgs, adam or gd."),
    ] = None,
    order: Annotated[
        str | None,
        typer.Option(help="Order of the layers in a sweep of alternating: down, up, up-then-down."),
    ] = None,
    max_iter: Annotated[int | None, typer.Option(help="Maximum number of iterations.")] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Maximum training time in seconds.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="key=value: another setting of sapm.solve, such as points=2000, activation=tanh "
            "or options.l2=1e-4. May be repeated.",
        ),
    ] = None,
    out: Out = None,
    devices: Devices = None,
    distributed: Distributed = False,
    address: Address = None,
    process: Process = None,
    processes: Processes = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> ExitCode:
    """Solve a problem and print a table of the results. With --out the run is kept, and
    `sapm resume` continues it.
    """
    names = parse_models(models)
    chosen: dict[str, Any] = parse_settings(settings) | {"seeds": parse_seeds(seeds)}
    device_count = parse_devices(devices)
    given = {"method": method, "order": order, "max_iter": max_iter, "max_seconds": max_seconds}
    chosen |= {name: value for name, value in given.items() if value is not None}
    join_or_launch(distributed, address, process, processes, out)
    if not quiet:
        show_transient("reading the problem …")
    stated = load_problem(problem, chosen.get("method", "auto"))
    chosen = stated.settings | chosen
    chosen["depth"] = stated.size[0] if depth is None else depth
    chosen["width"] = stated.size[1] if width is None else width
    from sapm.driver.settings import Settings, check_model
    from sapm.driver.solve import solve

    for model in names:  # refuse an impossible combination before the first run
        check_model(model, chosen.get("method", "auto"))
    if len(names) > 1:
        _warn_of_equal_plans(
            stated.problem,
            [Settings(stated.problem, **chosen, model=model).plan() for model in names],
        )
    folders = new_folders(out, names)

    def job(k: int, model: str) -> Job:
        folder = folders[model]
        later = ",".join(names[k + 1 :])
        return Job(
            model,
            lambda: solve(
                stated.problem,
                **chosen,
                model=model,
                out=folder,
                progress=not quiet,
                devices=device_count,
            ),
            folder,
            f" --problem {shlex.quote(problem)}",
            stated.name,
            f"; not started: {later}" if later else "",
        )

    return _train([job(k, model) for k, model in enumerate(names)], as_json)[1]


def _warn_of_equal_plans(problem: Problem, plans: list[Plan]) -> None:
    """Warn if method="auto" trains several models in the same way, on the true loss."""
    from sapm.driver.settings import unseparable
    from sapm.scopes import first_process

    if first_process() and all(plan.true_loss_from_start and plan.why for plan in plans):
        hint = "" if unseparable(problem) else "; use --method gauss-newton to compare them"
        warn(
            f"all these models are trained on the true loss, so they differ only by rounding{hint}."
        )


@app.command()
@guarded
def resume(  # noqa: PLR0913
    path: Annotated[Path, typer.Argument(help="The folder of a run or of a reproduction.")],
    max_iter: Annotated[
        int | None,
        typer.Option(help="Total number of iterations, from the start; by default as before."),
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option(help="Further training time, in seconds.")
    ] = None,
    problem: ProblemCode = None,
    jobs: Jobs = 1,
    devices: Devices = None,
    distributed: Distributed = False,
    address: Address = None,
    process: Process = None,
    processes: Processes = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> ExitCode:
    """Continue a run. With the same number of devices the result equals that of an uninterrupted
    run bit for bit, otherwise up to rounding.
    """
    from sapm.studies.reproduce import PLAN_FILE_NAME, read_plan

    device_count = parse_devices(devices)
    reproduction = (path / PLAN_FILE_NAME).exists()
    if reproduction and (distributed or processes is not None or devices is not None):
        raise ValueError(
            f"{path} is a reproduction, which runs on one device; leave out --devices, "
            "--distributed and --processes, and use --jobs."
        )
    join_or_launch(distributed, address, process, processes, path)
    if reproduction:
        if max_iter is not None or max_seconds is not None:
            raise ValueError(
                f"{path} is a reproduction, and its plan sets its length; leave out --max-iter and "
                "--max-seconds."
            )
        return run_reproduction(path, read_plan(path), jobs, quiet, as_json)
    from sapm.driver.solve import resume as resume_run

    folder = run_folder(path)
    stated = load_code(problem)
    last_iteration = _last_iteration(folder)

    def train() -> Result:
        result = resume_run(
            folder, max_iter, max_seconds, stated, progress=not quiet, devices=device_count
        )
        if not as_json and _took_no_step(result, folder, last_iteration):
            show(
                f"{folder} has already ended, so nothing was done; to continue it, give --max-iter "
                f"above {last_iteration}"
            )
        return result

    option = "" if problem is None else f" --problem {shlex.quote(problem)}"
    return _train([Job(folder.resolve().name, train, folder, option)], as_json)[1]


def _last_iteration(folder: Path) -> int | None:
    """The last iteration in the log of a run that has ended; None if it has not."""
    with (
        suppress(OSError, ValueError, LookupError, TypeError),
        (folder / "history.jsonl").open(encoding="utf-8") as log,
    ):
        if (folder / "model.sapm").exists():
            return int(json.loads(deque(log, 1)[0])["iteration"])
    return None


def _took_no_step(result: Result, folder: Path, last_iteration: int | None) -> bool:
    """Whether resuming took no step, because the run had ended at this iteration."""
    from sapm.training.run import Status

    run = result.run
    cut = run.cut or run.ended(Status.OUT_OF_TIME, Status.STOPPED)
    second_attempt = (folder / "first.sapm").exists()
    return not cut and not second_attempt and last_iteration == run.iterations


def _train(jobs: list[Job], as_json: bool) -> tuple[list[Result], ExitCode]:
    """Make the runs one after another and show each result. An interrupt ends the series.

    Of several processes, the first one prints and writes.
    """
    results: list[Result] = []
    answers: dict[str, dict] = {}
    try:
        for k, job in enumerate(jobs):
            with continued_by(lambda job=job, k=k: job.advice(ended=len(results) > k)):
                results.append(job.train())
                _show_result(results[k], job, answers if as_json else None)
            if results[k].run.cut:
                break
    finally:
        if answers:
            show(answers)
    for job, result in zip(jobs, results, strict=False):
        _show_folder(job, result, as_json)
    return results, max(map(_exit_code, results))  # the codes grow with their severity


def _exit_code(result: Result) -> ExitCode:
    from sapm.training.run import Status

    if result.run.cut:
        return ExitCode.USAGE if result.run.why_folder_lost else ExitCode.INTERRUPTED
    if result.certificate.holds is False:
        return ExitCode.NOT_CERTIFIED
    if set(result.run.status) == {Status.NON_FINITE}:
        return ExitCode.DIVERGED
    return ExitCode.OK


def _show_result(result: Result, job: Job, answers: dict[str, dict] | None) -> None:
    """Estimate the error, print the table (or add it to `answers`) and write the page.

    The table is shown even if the estimate is interrupted or fails.
    """
    from sapm.results.files import Folder
    from sapm.results.table import heading, outcome
    from sapm.scopes import first_process

    estimated = False
    try:
        estimated = not result.run.cut and _estimate(result)
    finally:
        if answers is not None:
            answers[job.name] = _as_json(result, estimated)
        else:
            show(result.summary(estimated))
    if job.folder is None or not estimated or not first_process():
        return
    folder = Folder(job.folder)
    with suppress(ValueError), folder.claim:  # unless another process has continued the run
        folder.write_json("summary.json", outcome(result, True))
    title = f"{heading(result.plan)}: {job.title}" if job.title else ""
    result.report(job.folder / "report.html", title)


def _estimate(result: Result) -> bool:
    """Estimate the error, which the result caches; a failure is only a warning."""
    from sapm.problem.functions import USER_ERRORS
    from sapm.results.table import error_unknown, outcome
    from sapm.scopes import first_process

    if error_unknown(result) and first_process():
        show_transient("estimating the error …")
    try:
        outcome(result, True)
    except USER_ERRORS as error:
        warn(
            "no page is written, since the error could not be estimated: "
            f"{type(error).__name__}: {sentence(error)}"
        )
        return False
    return True


def _show_folder(job: Job, result: Result, as_json: bool) -> None:
    """Print where a run is kept, and how to continue it if it has not ended."""
    from sapm.scopes import first_process
    from sapm.training.run import Status

    if job.folder is None or not first_process():
        return
    if result.run.cut and result.run.why_folder_lost:
        return
    if not as_json:
        second_attempt = (job.folder / "first.sapm").exists()
        unfinished = result.run.ended(Status.OUT_OF_TIME) or second_attempt
        command = f"; continue with: {job.resume_command}" if unfinished else ""
        show(f"kept in {job.folder}{command}")
    if result.run.cut:
        show_interrupted(job.advice(ended=False))


def _as_json(result: Result, estimate: bool = True) -> dict:
    from sapm.results.table import outcome

    fields = {name: getattr(result.certificate, name) for name in ("holds", "bound", "ratio")}
    certificate = fields | {"text": str(result.certificate)}
    return {"config": result.config} | outcome(result, estimate) | {"certificate": certificate}


# ---------------------------------------------------------------- using a run


@app.command()
@guarded
def report(
    path: Annotated[Path, typer.Argument(help="The folder of a run, or a .sapm file.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="HTML file to write.")] = None,
    problem: ProblemCode = None,
    as_json: Json = False,
) -> None:
    """Print the table of a run and write its HTML page."""
    from sapm.results.result import load

    result = load(run_file(path), load_code(problem))
    if not as_json:
        show(result.summary())
    default = path / "report.html" if path.is_dir() else path.with_suffix(".html")
    page = result.report(out or default)
    show(_as_json(result) | {"page": str(page)} if as_json else f"written: {page}")


def _best_solution(path: Path, problem: str | None, export: bool = False) -> Solution:
    """The best network of a run, read from its file or rebuilt with the problem's code."""
    from sapm.results.result import best_of, load

    file = run_file(path)
    code = load_code(problem)
    return best_of(file, export=export) if code is None else load(file, code).best


@app.command()
@guarded
def predict(
    path: Annotated[Path, typer.Argument(help="The folder of a run, or a .sapm file.")],
    points: Annotated[
        Path,
        typer.Argument(help="CSV file; its first line names a column for every coordinate."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="CSV file to write; by default it is printed."),
    ] = None,
    problem: ProblemCode = None,
    as_json: Json = False,
) -> None:
    """Evaluate the best network at the points of a CSV file."""
    from sapm.results.export import csv_text, evaluate_csv
    from sapm.results.files import check_output, write_whole

    if out is not None:
        check_output(out, points, run_file(path))
    names, rows = evaluate_csv(_best_solution(path, problem), points)
    if out is not None:
        write_whole(out, csv_text(names, rows).encode())
        written = {"written": str(out), "points": len(rows)}
        show(written if as_json else f"written: {out} ({len(rows)} points)")
    elif as_json:
        show({"columns": names, "rows": rows})
    else:
        for line in csv_text(names, rows).removesuffix("\n").split("\n"):
            show(line)


@app.command()
@guarded
def export(
    path: Annotated[Path, typer.Argument(help="The folder of a run, or a .sapm file.")],
    to: Annotated[Path, typer.Argument(help="u.onnx, u.pt (torch), u.npz or u.mat.")],
    problem: ProblemCode = None,
    as_json: Json = False,
) -> None:
    """Write the best network in another format."""
    from sapm.results.export import check_ending
    from sapm.results.export import export as export_solution

    check_ending(to)
    export_solution(_best_solution(path, problem, export=True), to)
    show({"written": str(to)} if as_json else f"written: {to}")


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """The options of `sapm` itself."""
    if version:
        show(__version__)
        raise typer.Exit
