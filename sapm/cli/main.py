"""The command line: `sapm list, info, run, resume, report, predict, export`.

Nothing heavy is imported until a command needs it. `sapm.cli.studies` has the commands that train
many networks: `demo, reproduce, bench`.
"""

from __future__ import annotations

import json
import sys
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
    ProblemAgain,
    Process,
    Processes,
    Quiet,
    app,
    continued_by,
    guarded,
    sentence,
    show,
    show_passing,
)
from sapm.errors import warn

if TYPE_CHECKING:
    from sapm.results.result import Result
    from sapm.results.solution import Solution


@app.command("list")
@guarded
def list_problems(as_json: Json = False) -> None:
    """List the built-in problems."""
    if as_json:
        show(
            {
                entry.name: {
                    "about": entry.about,
                    "sizes": entry.sizes,
                    "settings": entry.settings,
                }
                for entry in CATALOGUE.values()
            },
            True,
        )
        return
    from rich.table import Table

    table = Table("name", "problem", "(depth, width); the first is the default")
    for entry in CATALOGUE.values():
        sizes = " ".join(f"({depth},{width})" for depth, width in entry.sizes)
        table.add_row(entry.name, entry.about, sizes)
    show(table, False)


@app.command()
@guarded
def info(as_json: Json = False) -> None:
    """Show versions and devices."""
    from sapm.results.files import environment

    env = environment()
    if as_json:
        show({"version": __version__} | env, True)
        return
    show(f"sapm {__version__}, Python {env['python']}, {env['platform']}", False)
    show(f"devices: {', '.join(env['devices'])}", False)
    show(", ".join(f"{name} {version}" for name, version in env["packages"].items()), False)


# ---------------------------------------------------------------- training


@dataclass(frozen=True)
class Job:
    """A training run that a command makes.

    name: its name in JSON; train: makes the result; folder: where it is kept, if anywhere;
    again: " --problem …" if the run can be continued only with the user's code; title: of the page;
    not_begun: what an interrupt says of later runs.
    """

    name: str
    train: Callable[[], Result]
    folder: Path | None = None
    again: str = ""
    title: str = ""
    not_begun: str = ""

    @property
    def resume_command(self) -> str:
        """The command that continues the run."""
        return f"sapm resume {self.folder}{self.again}"

    def advice(self, ended: bool) -> str:
        """How to go on after an interrupt; "" if nothing was saved."""
        if self.folder is None:
            return ""
        if ended:
            report = f"sapm report {self.folder}{self.again}"
            return f"the run had ended, and its page is written by: {report}{self.not_begun}"
        if (self.folder / "checkpoint" / "latest.sapm").exists():
            return f"continue with: {self.resume_command}{self.not_begun}"
        return ""


@app.command(cls=CommandWithSettings)
@guarded
def run(
    problem: Annotated[
        str, typer.Argument(help="A built-in problem (see: sapm list) or file.py:name.")
    ],
    models: Annotated[str, typer.Option(help="ls, pm or sapm; several with commas.")] = "sapm",
    depth: Annotated[int | None, typer.Option(help="Number of layers.")] = None,
    width: Annotated[int | None, typer.Option(help="Units in every hidden layer.")] = None,
    seeds: Annotated[str, typer.Option(help="How many (10), or which ones (3,5,8).")] = "10",
    method: Annotated[
        str | None,
        typer.Option(help="Training: auto, gauss-newton, alternating, lbfgs, adam or gd."),
    ] = None,
    max_iter: Annotated[int | None, typer.Option(help="Largest number of iterations.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Largest time of a run.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="key=value: any other setting of sapm.solve, such as points=2000, "
            "activation=tanh or options.l2=1e-4.",
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
    """Solve a problem and print a table. With --out everything is kept, and `sapm resume`
    continues the run.
    """
    names = parse_models(models)
    chosen: dict[str, Any] = parse_settings(settings) | {"seeds": parse_seeds(seeds)}
    device_count = parse_devices(devices)
    options = {"method": method, "max_iter": max_iter, "max_seconds": max_seconds}
    chosen |= {name: value for name, value in options.items() if value is not None}
    join_or_launch(distributed, address, process, processes, out)
    if not quiet:
        show_passing("reading the problem …")
    stated = load_problem(problem, chosen.get("method", "auto"))
    chosen = stated.settings | chosen
    chosen["depth"] = stated.size[0] if depth is None else depth
    chosen["width"] = stated.size[1] if width is None else width
    from sapm.driver.settings import Settings, check_model
    from sapm.driver.solve import solve

    for model in names:  # refuse what cannot be trained before anything is
        check_model(model, chosen.get("method", "auto"))
        if len(names) > 1:
            Settings(stated.problem, **chosen, model=model).plan()
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
            f" --problem {problem}" if ":" in problem else "",
            stated.name,
            f"; not begun: {later}" if later else "",
        )

    results, code = _train([job(k, model) for k, model in enumerate(names)], as_json)
    if _trained_alike(results):
        warn(
            "all these models were trained on the true loss, so they differ only by rounding; "
            "--method gauss-newton compares them.",
        )
    return code


def _trained_alike(results: list[Result]) -> bool:
    """Whether method="auto" chose the same training on the true loss for several models."""
    from sapm.training.devices import first_process

    return (
        len(results) > 1
        and first_process()
        and all(result.plan.true_loss_from_start and result.plan.why for result in results)
    )


@app.command()
@guarded
def resume(
    path: Annotated[Path, typer.Argument(help="The folder of a run or of a reproduction.")],
    max_iter: Annotated[
        int | None,
        typer.Option(help="Iterations in all, from the start; by default as many as before."),
    ] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Seconds from now.")] = None,
    problem: ProblemAgain = None,
    jobs: Jobs = 1,
    devices: Devices = None,
    distributed: Distributed = False,
    address: Address = None,
    process: Process = None,
    processes: Processes = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> ExitCode:
    """Continue where a run stopped: bit for bit with as many devices as before, with others up to
    rounding.
    """
    from sapm.studies.reproduce import PLAN, read_plan

    device_count = parse_devices(devices)
    reproduction = (path / PLAN).exists()
    if reproduction and (distributed or processes is not None or devices is not None):
        raise ValueError(
            f"{path} is a reproduction, which takes --jobs; leave out --devices, --distributed and "
            "--processes."
        )
    join_or_launch(distributed, address, process, processes, path)
    if reproduction:
        if max_iter is not None or max_seconds is not None:
            raise ValueError(
                f"{path} is a reproduction, whose plan says how long; leave out --max-iter and "
                "--max-seconds."
            )
        return run_reproduction(path, read_plan(path), jobs, quiet, as_json)
    from sapm.driver.solve import resume as resume_run

    folder = run_folder(path)
    stated = None if problem is None else load_problem(problem).problem
    before = _last_iteration(folder)

    def train() -> Result:
        result = resume_run(
            folder, max_iter, max_seconds, stated, progress=not quiet, devices=device_count
        )
        if not as_json and _was_over(result, folder, before):
            show(
                f"{folder} had already ended, so there was nothing to do; --max-iter beyond "
                f"{before} continues it",
                False,
            )
        return result

    again = "" if problem is None else f" --problem {problem}"
    return _train([Job(folder.resolve().name, train, folder, again)], as_json)[1]


def _last_iteration(folder: Path) -> int | None:
    """The last iteration in the log of a run that has ended."""
    with (
        suppress(OSError, ValueError, LookupError, TypeError),
        (folder / "history.jsonl").open(encoding="utf-8") as log,
    ):
        if (folder / "model.sapm").exists():
            return int(json.loads(deque(log, 1)[0])["iteration"])
    return None


def _was_over(result: Result, folder: Path, before: int | None) -> bool:
    """Whether resuming took no step because the run had ended at iteration `before`."""
    from sapm.training.run import Status

    run = result.run
    cut = run.cut or run.ended(Status.OUT_OF_TIME, Status.STOPPED)
    second_attempt = (folder / "first.sapm").exists()
    return not cut and not second_attempt and before == run.iterations


def _train(jobs: list[Job], as_json: bool) -> tuple[list[Result], ExitCode]:
    """Make the runs one after another, up to one that is interrupted, and show each result.

    Of several processes the first one writes the pages.
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
            show(answers, True)
    for job, result in zip(jobs, results, strict=False):
        _show_folder(job, result, as_json)
    return results, max(map(_exit_code, results), key=SEVERITY.index)


SEVERITY = [ExitCode.OK, ExitCode.DIVERGED, ExitCode.NOT_CERTIFIED, ExitCode.INTERRUPTED]


def _exit_code(result: Result) -> ExitCode:
    from sapm.training.run import Status

    if result.run.cut:
        return ExitCode.INTERRUPTED
    if result.certificate.holds is False:
        return ExitCode.NOT_CERTIFIED
    if set(result.run.status) == {Status.NON_FINITE}:
        return ExitCode.DIVERGED
    return ExitCode.OK


def _show_result(result: Result, job: Job, answers: dict[str, dict] | None) -> None:
    """Estimate the error, print the table (or keep it for JSON), and write the page.

    The table is shown also when the estimate is interrupted or fails.
    """
    from sapm.results.files import Folder
    from sapm.results.table import heading, outcome
    from sapm.training.devices import first_process

    estimated = False
    try:
        estimated = not result.run.cut and _estimate(result)
    finally:
        if answers is not None:
            answers[job.name] = _as_json(result, estimated)
        else:
            show(result.summary(estimated), False)
    if job.folder is None or not estimated or not first_process():
        return
    folder = Folder(job.folder)
    with suppress(ValueError), folder.claim:  # another process may have continued the run
        folder.write_json("summary.json", outcome(result, True))
    title = f"{heading(result.plan)}: {job.title}" if job.title else ""
    result.report(job.folder / "report.html", title)


def _estimate(result: Result) -> bool:
    """Estimate the error, which the result then keeps. The run is over: a failure is a warning."""
    from sapm.results.table import outcome, unanswered
    from sapm.training.devices import first_process

    if unanswered(result) and first_process():
        show_passing("estimating the error …")
    try:
        outcome(result, True)
    except (ArithmeticError, MemoryError, RuntimeError, ValueError) as error:
        warn(
            "the error could not be estimated, so that no page is written: "
            f"{type(error).__name__}: {sentence(error)}",
        )
        return False
    return True


def _show_folder(job: Job, result: Result, as_json: bool) -> None:
    """Say where a run is kept, and how to continue one that is not over."""
    from sapm.training.devices import first_process
    from sapm.training.run import Status

    if job.folder is None or not first_process():
        return
    if not as_json:
        second_attempt = (job.folder / "first.sapm").exists()
        unfinished = result.run.ended(Status.OUT_OF_TIME) or second_attempt
        command = f"; continue with: {job.resume_command}" if unfinished else ""
        show(f"kept in {job.folder}{command}", False)
    if result.run.cut:
        advice = job.advice(ended=False) or "nothing was saved; the same command starts again."
        print(f"sapm: interrupted; {advice}", file=sys.stderr)


def _as_json(result: Result, estimate: bool = True) -> dict:
    from sapm.results.table import outcome

    certificate = result.certificate
    return (
        {"config": result.config}
        | outcome(result, estimate)
        | {
            "certificate": {
                "holds": certificate.holds,
                "bound": certificate.bound,
                "ratio": certificate.ratio,
                "text": str(certificate),
            }
        }
    )


# ---------------------------------------------------------------- what a run is used for


@app.command()
@guarded
def report(
    path: Annotated[Path, typer.Argument(help="The folder of a run, or a .sapm file.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The page to write.")] = None,
    problem: ProblemAgain = None,
    as_json: Json = False,
) -> None:
    """Print the table of a run and write its page."""
    from sapm.results.result import load

    result = load(run_file(path), None if problem is None else load_problem(problem).problem)
    if not as_json:
        show(result.summary(), False)
    default = path / "report.html" if path.is_dir() else path.with_suffix(".html")
    page = result.report(out or default)
    if as_json:
        show(_as_json(result) | {"page": str(page)}, True)
    else:
        show(f"written: {page}", False)


def _best_solution(path: Path, problem: str | None, export: bool = False) -> Solution:
    """The best network of a run: as the file has it, or with the problem's code."""
    from sapm.results.result import best_of, load

    file = run_file(path)
    if problem is None:
        return best_of(file, export=export)
    return load(file, load_problem(problem).problem).best


@app.command()
@guarded
def predict(
    path: Annotated[Path, typer.Argument(help="The folder of a run, or a .sapm file.")],
    points: Annotated[
        Path,
        typer.Argument(help="CSV file whose first line names a column for every coordinate."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="CSV file to write; default: print it.")
    ] = None,
    problem: ProblemAgain = None,
    as_json: Json = False,
) -> None:
    """Evaluate the best network at the points of a CSV file."""
    from sapm.results.export import csv_text, evaluate_csv
    from sapm.results.files import write_whole

    names, rows = evaluate_csv(_best_solution(path, problem), points)
    if out is not None:
        write_whole(out, csv_text(names, rows).encode())
        if as_json:
            show({"written": str(out), "points": len(rows)}, True)
        else:
            show(f"written: {out} ({len(rows)} points)", False)
    elif as_json:
        show({"columns": names, "rows": rows}, True)
    else:
        sys.stdout.write(csv_text(names, rows))


@app.command()
@guarded
def export(
    path: Annotated[Path, typer.Argument(help="The folder of a run, or a .sapm file.")],
    to: Annotated[Path, typer.Argument(help="u.onnx, u.pt (torch), u.npz (NumPy) or u.mat.")],
    problem: ProblemAgain = None,
    as_json: Json = False,
) -> None:
    """Write the best network in another format."""
    from sapm.results.export import check_ending
    from sapm.results.export import export as export_solution

    check_ending(to)
    export_solution(_best_solution(path, problem, export=True), to)
    show({"written": str(to)} if as_json else f"written: {to}", as_json)


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """The options of `sapm` itself."""
    if version:
        print(__version__)
        raise typer.Exit
