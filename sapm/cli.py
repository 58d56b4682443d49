"""The command line: parse, check, call, print. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import json
import sys
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from sapm import __version__
from sapm.arguments import (
    SERIES,
    begin_series,
    load_problem,
    parse_models,
    parse_seeds,
    parse_settings,
    read_series,
    run_folders,
    sentence,
)
from sapm.cli_base import (
    BROKEN,
    CONTINUE,
    DIVERGED,
    INTERRUPTED,
    Address,
    Again,
    Devices,
    Distributed,
    Jobs,
    Json,
    Out,
    Process,
    Processes,
    Quiet,
    WithSettings,
    app,
    guarded,
    parse_devices,
    passing,
    show,
    take_place,
)
from sapm.cli_studies import reproduce_in
from sapm.experiments import EXPERIMENTS
from sapm.names import shown


def _code(result) -> int:
    if all(status == "non-finite" for status in result.run.status):
        return DIVERGED
    if result.certificate.holds is False:
        return BROKEN
    return INTERRUPTED if result.run.cut else 0


def _as_json(result, estimate: bool = True) -> dict:
    from sapm.summary import outcome

    c = result.certificate
    found = {"config": result.config} | outcome(result, estimate)
    return found | {"certificate": {"holds": c.holds, "bound": c.bound, "ratio": c.ratio, "text": str(c)}}


# ---------------------------------------------------------------- commands


@app.command("list")
@guarded
def list_(as_json: Json = False) -> None:
    """The built-in problems."""
    if as_json:
        show({e.name: {"about": e.about, "sizes": e.sizes, "settings": e.settings} for e in EXPERIMENTS.values()}, True)
        return
    from rich.table import Table

    table = Table("name", "what it is", "(depth, width) by default")
    for e in EXPERIMENTS.values():
        table.add_row(e.name, e.about, " ".join(f"({L},{M})" for L, M in e.sizes))
    show(table, False)


@app.command()
@guarded
def info(as_json: Json = False) -> None:
    """Versions and devices."""
    from sapm.environment import environment

    env = environment()
    lines = [f"sapm {__version__}, Python {env['python']}, {env['platform']}", f"devices: {', '.join(env['devices'])}"]
    lines.append(", ".join(f"{k} {v}" for k, v in env["packages"].items()))
    show({"version": __version__} | env if as_json else "\n".join(lines), as_json)


@app.command(cls=WithSettings)
@guarded
def run(
    problem: Annotated[str, typer.Argument(help="A built-in problem (see: sapm list) or file.py:name.")],
    models: Annotated[str, typer.Option(help="ls, pm, sapm; several with commas.")] = "sapm",
    depth: Annotated[int | None, typer.Option(help="Layers.")] = None,
    width: Annotated[int | None, typer.Option(help="Units in a hidden layer.")] = None,
    seeds: Annotated[str, typer.Option(help="How many, or which with commas.")] = "10",
    method: Annotated[
        str | None, typer.Option(help="How it is trained: auto, gauss-newton, alternating, lbfgs, adam, gd.")
    ] = None,
    max_iter: Annotated[int | None, typer.Option(help="Iterations at most.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Seconds at most.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="key=value: any other setting of sapm.solve, such as points=2000, activation=tanh, options.l2=1e-4.",
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
) -> None:
    """Solve a problem and print a table; with --out, keep everything (and `sapm resume` continues it)."""
    wanted, count = parse_models(models), parse_seeds(seeds)
    given, used = parse_settings(settings), parse_devices(devices)
    given |= {} if method is None else {"method": method}
    take_place(distributed, address, process, processes, out)
    if not quiet:
        passing("reading the problem …")
    stated, defaults, name = load_problem(problem)
    from sapm.devices import first_process
    from sapm.plan import plan
    from sapm.solver import solve
    from sapm.summary import straight

    if name in EXPERIMENTS and EXPERIMENTS[name].in_paper and given.get("method", "auto") in ("auto", "gauss-newton"):
        defaults.pop("max_iter")  # the paper counts sweeps and steps of gradient descent, of which it takes many
    chosen: dict[str, Any] = defaults | given | {"seeds": count}
    sizes = EXPERIMENTS[name].sizes[0] if name in EXPERIMENTS else (6, 20)
    chosen |= {"depth": sizes[0] if depth is None else depth, "width": sizes[1] if width is None else width}
    if max_iter is not None:
        chosen["max_iter"] = max_iter
    if max_seconds is not None:
        chosen["max_seconds"] = max_seconds
    places: dict[str, Path | None] = dict.fromkeys(wanted, out)
    if len(wanted) > 1:
        plans = [plan(stated, **chosen, model=model)[0] for model in wanted]  # refuses what cannot be run, before any is
        if first_process() and all(straight(config) and config["choice"] for config in plans):
            own = "" if getattr(stated, "joint", "") else "; to compare them give --method gauss-newton"
            alike = "all these models are trained on the true loss here, alike, since that is what method='auto' stands for"
            warnings.warn(f"{alike}{own}.", stacklevel=1)
    if out is not None and len(wanted) > 1:
        if first_process():
            begin_series(out, problem, wanted, chosen)
        places = {model: out / model for model in wanted}
    more = {"progress": not quiet, "devices": used}
    code = problem if ":" in problem or len(wanted) == 1 else None  # the models of a series know a problem that is built in
    _each(places, lambda model, place: solve(stated, **chosen, model=model, out=place, **more), out, as_json, code, name)


def _estimated(result) -> bool:
    """Whether its error was estimated: the run is over then, and whatever happens it loses nothing."""
    from sapm.devices import first_process
    from sapm.summary import outcome, unanswered

    if unanswered(result) and first_process():
        passing("estimating the error …")
    try:
        return bool(outcome(result, True))
    except Exception as error:
        said = f"{type(error).__name__}: {sentence(error)}"
        warnings.warn(f"the error could not be estimated, so that no page is written: {said}", stacklevel=2)
        return False


def _each(
    places: Mapping[str, Path | None], make: Callable, out: Path | None, as_json: bool, code: str | None, title: str = ""
) -> None:
    """Make each run and say what came out, up to one that is interrupted. Of several processes the first one does.

    `code`: what has to be given again to go on, if it is the user's.
    """
    from sapm.devices import first_process
    from sapm.store import Folder
    from sapm.summary import heading, outcome

    results, told, cut, again = {}, {}, False, f"sapm resume {out}" + (f" --problem {code}" if code else "")
    for name, place in places.items():
        try:
            results[name] = make(name, place)
            cut |= bool(results[name].run.cut)
            try:
                told[name] = not cut and _estimated(results[name])
            except KeyboardInterrupt:
                told[name], cut = False, True
            if not as_json:
                show(results[name].summary(told[name]), False)
            if place is not None and first_process() and told[name]:
                folder = Folder(place)
                with suppress(ValueError), folder.claim:  # unless another process goes on with it
                    folder.write_json("summary.json", outcome(results[name], True))
                results[name].report(place / "report.html", f"{heading(results[name].config)}: {title}" if title else "")
        except (KeyboardInterrupt, OSError) as error:
            if out is not None and any(out.glob("**/checkpoint/latest.sapm")):
                error.add_note(f"{CONTINUE}{again}")
            raise
        if cut:
            break
    if as_json:
        show({name: _as_json(result, told[name]) for name, result in results.items()}, True)
    codes = [_code(result) for result in results.values()] + [INTERRUPTED] * cut
    if out is not None and not as_json:
        late = any("out of time" in result.run.status for result in results.values()) or any(out.glob("**/first.sapm"))
        show(f"kept in {out}" + (f"; go on with: {again}" if late else ""), False)
    if INTERRUPTED in codes and out is not None and first_process():
        ended = not any(result.run.cut for result in results.values()) and len(results) == len(places)
        page = f"sapm report {places[next(reversed(results))]}" + (f" --problem {code}" if code else "")
        how = f"the run had ended, and its page is written by: {page}" if ended else f"{CONTINUE}{again}"
        print(f"sapm: interrupted; {how}", file=sys.stderr)
    if end := next((c for c in (INTERRUPTED, BROKEN, DIVERGED) if c in codes), 0):
        raise typer.Exit(end)


@app.command()
@guarded
def resume(
    path: Annotated[Path, typer.Argument(help="The folder of a run or of a reproduction.")],
    max_iter: Annotated[int | None, typer.Option(help="Iterations in all; by default as many as were asked for.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Seconds from now.")] = None,
    problem: Again = None,
    jobs: Jobs = 1,
    devices: Devices = None,
    distributed: Distributed = False,
    address: Address = None,
    process: Process = None,
    processes: Processes = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Continue where a run stopped, bit for bit (with as many devices as before; with others, up to rounding)."""
    from sapm.reproduce import PLAN, read_plan

    used, several = parse_devices(devices), distributed or processes is not None or devices is not None
    if (path / PLAN).exists() and several:
        raise ValueError(f"{path} is a reproduction, which has --jobs; leave --devices, --distributed and --processes out.")
    take_place(distributed, address, process, processes, path)
    if (path / PLAN).exists():
        if max_iter is not None or max_seconds is not None:
            raise ValueError(f"{path} is a reproduction, and its plan says how long; leave --max-iter and --max-seconds out.")
        reproduce_in(path, read_plan(path), jobs, quiet, as_json)
        return
    from sapm.solver import resume as continued
    from sapm.solver import solve

    spec, models, settings = read_series(path) if (path / SERIES).exists() else ("", [], {})
    places = {model: path / model for model in models} or {folder.resolve().name: folder for folder in run_folders(path)}
    settings |= {k: v for k, v in (("max_iter", max_iter), ("max_seconds", max_seconds)) if v is not None}

    known = problem or (spec if spec in EXPERIMENTS else None)
    again = None if known is None else load_problem(known)[0]

    begun = {model for model, folder in places.items() if not models or (folder / "checkpoint" / "latest.sapm").exists()}
    if again is None and len(begun) < len(places):
        first = next(model for model in places if model not in begun)
        raise ValueError(f"{path} has not begun {first}, and its problem is code; name it again: --problem {shown(spec, 300)}")

    def make(model: str, folder: Path):
        if model in begun:
            before = _ended_at(folder)
            result = continued(folder, max_iter, max_seconds, again, progress=not quiet, devices=used)
            over = not {"out of time", "stopped"} & set(result.run.status) and not result.run.cut
            over &= not (folder / "first.sapm").exists()  # then it is not this run that goes on
            if over and before == result.history["iteration"].max() and not as_json:
                show(f"{folder} had ended already, and nothing was left to do; --max-iter beyond {before} goes on", False)
            return result
        return solve(again, **settings, model=model, out=folder, progress=not quiet, devices=used)

    _each(places, make, path, as_json, problem)


def _ended_at(folder: Path) -> int | None:
    """The last iteration of a run that has ended, by its log."""
    with suppress(OSError, ValueError, LookupError, TypeError), (folder / "history.jsonl").open(encoding="utf-8") as log:
        if (folder / "model.sapm").exists():
            return int(json.loads(deque(log, 1)[0])["iteration"])
    return None


def _file(path: Path) -> Path:
    """That of a run, given its folder or itself."""
    alone = path.is_file() or (path / "model.sapm").is_file()  # a checkpoint may have been thrown away
    folders = [path] if alone else run_folders(path)
    if len(folders) > 1:
        raise ValueError(f"{path} holds several runs; give one of {', '.join(str(f) for f in folders)}.")
    files = [folders[0], folders[0] / "model.sapm", folders[0] / "checkpoint" / "latest.sapm"]
    return next(filter(Path.is_file, files), files[-1])


def _best(path: Path, problem: str | None, export: bool = False):
    """The best network: as a file has it, or with the problem's code."""
    from sapm.result import best_of, load

    return best_of(_file(path), export=export) if problem is None else load(_file(path), load_problem(problem)[0]).best


@app.command()
@guarded
def report(
    path: Annotated[Path, typer.Argument(help="The folder of a run, or a .sapm file.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The page to write.")] = None,
    problem: Again = None,
    as_json: Json = False,
) -> None:
    """Print the table of a run and write its page."""
    from sapm.result import load

    result = load(_file(path), None if problem is None else load_problem(problem)[0])
    if not as_json:
        show(result.summary(), False)
    page = result.report(out or (path / "report.html" if path.is_dir() else path.with_suffix(".html")))
    show(_as_json(result) | {"page": str(page)} if as_json else f"written: {page}", as_json)


@app.command()
@guarded
def predict(
    path: Annotated[Path, typer.Argument(help="The folder of a run, or a .sapm file.")],
    points: Annotated[Path, typer.Argument(help="CSV with a column for every coordinate, named in its first line.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="CSV to write; by default it is printed.")] = None,
    problem: Again = None,
    as_json: Json = False,
) -> None:
    """Evaluate the best network at points from a CSV file."""
    from sapm.export import evaluate_csv, written

    head, rows = evaluate_csv(_best(path, problem), points)
    if out is not None:
        from sapm.store import write_whole

        write_whole(out, written(head, rows).encode())
        show({"written": str(out), "points": len(rows)} if as_json else f"written: {out} ({len(rows)} points)", as_json)
    elif as_json:
        show({"columns": head, "rows": rows}, True)
    else:
        sys.stdout.write(written(head, rows))


@app.command()
@guarded
def export(
    path: Annotated[Path, typer.Argument(help="The folder of a run, or a .sapm file.")],
    to: Annotated[Path, typer.Argument(help="u.onnx, u.pt (torch), u.npz (NumPy) or u.mat.")],
    problem: Again = None,
    as_json: Json = False,
) -> None:
    """Write the best network in another format."""
    from sapm.export import check_ending
    from sapm.export import export as write

    check_ending(to)
    write(_best(path, problem, export=True), to)
    show({"written": str(to)} if as_json else f"written: {to}", as_json)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit
