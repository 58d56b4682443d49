"""The command line: parse, check, call, print. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from sapm import __version__
from sapm.arguments import (
    SERIES,
    begin_series,
    expected,
    load_problem,
    parse_models,
    parse_seeds,
    parse_settings,
    plain,
    read_series,
    run_folders,
    sentence,
    stoppable,
)
from sapm.experiments import EXPERIMENTS

app = typer.Typer(
    name="sapm",
    help="Train deep networks on least-squares problems by self-adaptive weighted auxiliary variables.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
BAD, DIVERGED, BROKEN, INTERRUPTED = 2, 3, 4, 130
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs of a reproduction made at a time, each in its own process.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder to keep the run in.")]


def _console(stderr: bool = False):
    """Nothing in a text is read as markup: paths may have brackets."""
    from rich.console import Console

    class Ours(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 160
    return Ours(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def guarded(command):
    """A user's mistake, a full disk, a missing file: one line and exit code 2; Ctrl-C: 130."""

    @wraps(command)
    def wrapped(*args, **kwargs):
        try:
            with stoppable():
                command(*args, **kwargs)
            sys.stdout.flush()
        except KeyboardInterrupt:
            print("sapm: interrupted; what was done is kept.", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except Exception as error:
            if os.environ.get("SAPM_TRACEBACK") or not expected(error):
                raise
            print(f"sapm: {sentence(error)}", file=sys.stderr)
            raise typer.Exit(BAD) from None

    return wrapped


def show(content: Any, as_json: bool) -> None:
    """A dictionary as JSON, a text as it is, or a table."""
    if as_json:
        print(json.dumps(plain(content), ensure_ascii=False, allow_nan=False))
    elif isinstance(content, str):
        print(content)
    else:
        _console().print(content)


def _code(result) -> int:
    if all(status == "non-finite" for status in result.run.status):
        return DIVERGED
    if result.certificate.holds is False:
        return BROKEN
    return INTERRUPTED if "interrupted" in result.run.status else 0


def _as_json(result) -> dict:
    c = result.certificate
    return {
        "config": result.config,
        "best": result.run.best,
        "seeds": result.table,
        "certificate": {"holds": c.holds, "bound": c.bound, "ratio": c.ratio, "text": str(c)},
    }


# ---------------------------------------------------------------- commands


@app.command("list")
@guarded
def list_(as_json: Json = False) -> None:
    """The built-in problems."""
    if as_json:
        show({e.name: {"about": e.about, "sizes": e.sizes, "settings": e.settings} for e in EXPERIMENTS.values()}, True)
        return
    from rich.table import Table

    table = Table("name", "what it is", "(depth, width) of the paper")
    for e in EXPERIMENTS.values():
        table.add_row(e.name, e.about, " ".join(f"({L},{M})" for L, M in e.sizes))
    show(table, False)


@app.command()
@guarded
def info(as_json: Json = False) -> None:
    """Versions and devices."""
    from sapm.store import environment

    env = environment()
    lines = [f"sapm {__version__}, Python {env['python']}, {env['platform']}", f"devices: {', '.join(env['devices'])}"]
    lines.append(", ".join(f"{k} {v}" for k, v in env["packages"].items()))
    show({"version": __version__} | env if as_json else "\n".join(lines), as_json)


@app.command()
@guarded
def run(
    problem: Annotated[str, typer.Argument(help="A built-in problem (see: sapm list) or file.py:name.")],
    models: Annotated[str, typer.Option(help="ls, pm, sapm; several with commas.")] = "sapm",
    depth: Annotated[int | None, typer.Option(help="Layers.")] = None,
    width: Annotated[int | None, typer.Option(help="Units in a hidden layer.")] = None,
    seeds: Annotated[str, typer.Option(help="How many, or which with commas.")] = "10",
    max_iter: Annotated[int | None, typer.Option(help="Iterations at most.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Seconds at most.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value: any other setting of sapm.solve.")] = None,
    out: Out = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    as_json: Json = False,
) -> None:
    """Solve a problem and print a table; with --out, keep everything (and `sapm resume` continues it)."""
    wanted, count = parse_models(models), parse_seeds(seeds)
    given = parse_settings(settings)
    stated, defaults, name = load_problem(problem)
    from sapm.solver import plan, solve

    chosen: dict[str, Any] = defaults | given | {"seeds": count}
    sizes = EXPERIMENTS[name].sizes[0] if name in EXPERIMENTS else (6, 20)
    chosen |= {"depth": sizes[0] if depth is None else depth, "width": sizes[1] if width is None else width}
    if max_iter is not None:
        chosen["max_iter"] = max_iter
    if max_seconds is not None:
        chosen["max_seconds"] = max_seconds
    places: dict[str, Path | None] = dict.fromkeys(wanted, out)
    if out is not None and len(wanted) > 1:
        for model in wanted:
            plan(stated, **chosen, model=model)  # refuses what cannot be run, before anything is written
        begin_series(out, problem, wanted, chosen)
        places = {model: out / model for model in wanted}
    _each(places, lambda model, place: solve(stated, **chosen, model=model, out=place, progress=not quiet), out, as_json)


def _each(places: Mapping[str, Path | None], make: Callable, out: Path | None, as_json: bool) -> None:
    """Make each run and say what came out, up to one that is interrupted."""
    results = {}
    for name, place in places.items():
        results[name] = make(name, place)
        if not as_json:
            show(results[name].summary(), False)
        if place is not None:
            results[name].report(place / "report.html")
        if "interrupted" in results[name].run.status:
            break
    if as_json:
        show({name: _as_json(result) for name, result in results.items()}, True)
    codes = [_code(result) for result in results.values()]
    if out is not None and not as_json:
        show(f"kept in {out}", False)
    if INTERRUPTED in codes and out is not None:
        print(f"sapm: interrupted; continue with: sapm resume {out}", file=sys.stderr)
    code = next((c for c in (INTERRUPTED, BROKEN, DIVERGED) if c in codes), 0)
    if code:
        raise typer.Exit(code)


@app.command()
@guarded
def resume(
    path: Annotated[Path, typer.Argument(help="The folder of a run or of a reproduction.")],
    max_iter: Annotated[int | None, typer.Option(help="Iterations in all; by default as many as were asked for.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Seconds from now.")] = None,
    jobs: Jobs = 1,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    as_json: Json = False,
) -> None:
    """Continue where a run stopped, bit for bit."""
    from sapm.reproduce import PLAN

    if (path / PLAN).exists():
        if max_iter is not None or max_seconds is not None:
            raise ValueError(f"{path} is a reproduction, and its plan says how long; leave --max-iter and --max-seconds out.")
        _reproduce(path, json.loads((path / PLAN).read_text()), jobs, quiet, as_json)
        return
    from sapm.solver import resume as continued
    from sapm.solver import solve

    problem, models, settings = read_series(path) if (path / SERIES).exists() else ("", [], {})
    places = {model: path / model for model in models} or {folder.resolve().name: folder for folder in run_folders(path)}
    settings |= {k: v for k, v in (("max_iter", max_iter), ("max_seconds", max_seconds)) if v is not None}

    def make(model: str, folder: Path):
        if not models or (folder / "checkpoint" / "latest.sapm").exists():
            return continued(folder, max_iter, max_seconds, progress=not quiet)
        return solve(load_problem(problem)[0], **settings, model=model, out=folder, progress=not quiet)

    _each(places, make, path, as_json)


def _result(path: Path):
    from sapm.result import load

    if path.is_file():
        return load(path)
    folders = run_folders(path)
    if len(folders) > 1:
        raise ValueError(f"{path} holds several runs; give one of {', '.join(str(f) for f in folders)}.")
    model = folders[0] / "model.sapm"
    return load(model if model.exists() else folders[0] / "checkpoint" / "latest.sapm")


@app.command()
@guarded
def report(
    path: Annotated[Path, typer.Argument(help="The folder of a run, or a .sapm file.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The page to write.")] = None,
    as_json: Json = False,
) -> None:
    """Print the table of a run and write its page."""
    result = _result(path)
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
    as_json: Json = False,
) -> None:
    """Evaluate the best network at points from a CSV file."""
    from sapm.export import evaluate_csv

    head, rows = evaluate_csv(_result(path), points)
    text = "\n".join([",".join(head), *(",".join(repr(float(v)) for v in row) for row in rows)]) + "\n"
    if out is not None:
        from sapm.store import write_whole

        write_whole(out, text.encode())
        show({"written": str(out), "points": len(rows)} if as_json else f"written: {out} ({len(rows)} points)", as_json)
    elif as_json:
        show({"columns": head, "rows": rows}, True)
    else:
        sys.stdout.write(text)


@app.command()
@guarded
def export(
    path: Annotated[Path, typer.Argument(help="The folder of a run, or a .sapm file.")],
    to: Annotated[Path, typer.Argument(help="u.onnx, u.pt (torch), u.npz (NumPy) or u.mat.")],
    as_json: Json = False,
) -> None:
    """Write the best network in another format."""
    from sapm.export import export as write

    write(_result(path).best, to)
    show({"written": str(to)} if as_json else f"written: {to}", as_json)


@app.command()
@guarded
def reproduce(
    experiments: Annotated[list[str], typer.Argument(help="function_1d, function_10d, transport_1d, transport_3d or all.")],
    quick: Annotated[bool, typer.Option("--quick", help="A laptop's share: one size, fewer seeds and iterations.")] = False,
    models: Annotated[str, typer.Option(help="ls, pm, sapm; several with commas.")] = "ls,pm,sapm",
    sizes: Annotated[list[str] | None, typer.Option(help="depth,width of the paper; may be repeated.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder; a reproduction that is there is continued.")] = Path(
        "reproduction"
    ),
    jobs: Jobs = 1,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    as_json: Json = False,
) -> None:
    """The paper's tables and figures, ours beside the paper's."""
    from sapm.reproduce import begin, plan

    pairs = []
    for size in sizes or []:
        try:
            L, M = (int(v) for v in size.split(","))
        except ValueError:
            raise ValueError(f"--sizes {size} is not a pair; write depth,width such as 6,10.") from None
        pairs.append((L, M))
    wanted = plan(experiments, [m.strip() for m in models.split(",")], pairs, quick)
    begin(out, wanted)
    _reproduce(out, wanted, jobs, quiet, as_json)


def _reproduce(out: Path, wanted: dict, jobs: int, quiet: bool, as_json: bool) -> None:
    from sapm import gallery
    from sapm.reproduce import run, verdict

    tell = (
        (lambda text: None) if quiet or as_json else (lambda text: _console(stderr=True).print(text, style="dim", soft_wrap=True))
    )
    try:
        rows = run(out, wanted, tell, not quiet, jobs)
    except KeyboardInterrupt:
        print(f"sapm: interrupted; continue with: sapm resume {out}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    written = gallery.write(out, rows, wanted["quick"])
    if as_json:
        show(gallery.read(out), True)
    else:
        from rich.table import Table

        for t in gallery.tables(rows, wanted["quick"]):
            table = Table(title=t["title"], caption=t["note"], caption_justify="left", title_justify="left")
            columns = [k for k, name in enumerate(t["head"]) if name != "verdict"]
            for k in columns:
                table.add_column(t["head"][k], justify="right" if k > 2 else "left")
            for line in t["body"]:
                table.add_row(*(line[k] for k in columns))
            show(table, False)
        for row in rows:
            L, M = row["size"]
            show(f"{row['experiment']} ({L},{M}) {row['model'].upper()} {row['variant']}: {verdict(row)}", False)
        show("written: " + ", ".join(str(p) for p in written), False)
    if any(row["holds"] is False for row in rows):
        raise typer.Exit(BROKEN)


@app.command()
@guarded
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the page goes.")] = Path("report.html"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    as_json: Json = False,
) -> None:
    """LS, PM and SAPM side by side on a transport equation: a table and a page that explain the idea, in under two minutes."""
    from sapm.demo import DEMO, rows_of, run_demo, table_of

    if not as_json:
        show(DEMO, False)
    results = run_demo(not quiet and not as_json)
    from sapm.demo import page_of
    from sapm.store import write_whole

    if any("interrupted" in result.run.status for result in results.values()):
        print("sapm: interrupted; the demonstration writes its page only at its end.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    if not as_json:
        show(table_of(results), False)
    write_whole(out, page_of(results).encode())
    show({"rows": rows_of(results), "page": str(out)} if as_json else f"The page with the pictures: {out}", as_json)
    if results["sapm"].certificate.holds is False:
        raise typer.Exit(BROKEN)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit
