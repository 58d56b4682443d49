"""The command line: parse, check, call, print. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import json
import os
import sys
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from sapm import __version__
from sapm.arguments import load_problem, parse_models, parse_seeds, parse_settings, sentence
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
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 160, highlight=False)


def guarded(command):
    """A user's mistake, a full disk, a missing file: one line and exit code 2; Ctrl-C: 130."""

    @wraps(command)
    def wrapped(*args, **kwargs):
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            print("sapm: interrupted; what was done is kept.", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except (ValueError, TypeError, OSError, ImportError) as error:
            if os.environ.get("SAPM_TRACEBACK"):
                raise
            print(f"sapm: {sentence(error)}", file=sys.stderr)
            raise typer.Exit(BAD) from None

    return wrapped


def show(content: Any, as_json: bool) -> None:
    """A dictionary as JSON, or anything rich can print."""
    if as_json:
        from sapm.store import to_json

        print(to_json(content, allow_nan=False))
    else:
        _console().print(content)


def plain(row: dict) -> dict:
    """Numbers that JSON has no name for become null."""
    return {k: None if isinstance(v, float) and v - v != 0 else v for k, v in row.items()}


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
        "seeds": [plain(row) for row in result.table],
        "certificate": {"holds": c.holds, "bound": c.bound, "ratio": plain({"r": c.ratio})["r"], "text": str(c)},
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
    from sapm.solver import solve

    chosen: dict[str, Any] = defaults | given | {"seeds": count, "progress": not quiet}
    sizes = EXPERIMENTS[name].sizes[0] if name in EXPERIMENTS else (6, 20)
    chosen |= {"depth": depth or sizes[0], "width": width or sizes[1]}
    if max_iter is not None:
        chosen["max_iter"] = max_iter
    if max_seconds is not None:
        chosen["max_seconds"] = max_seconds
    results = {}
    for model in wanted:
        place = None if out is None else (out / model if len(wanted) > 1 else out)
        results[model] = solve(stated, **chosen, model=model, out=place)
        if place is not None:
            results[model].report(place / "report.html")
        if not as_json:
            show(results[model].summary(), False)
        if "interrupted" in results[model].run.status:
            break
    if as_json:
        show({model: _as_json(result) for model, result in results.items()}, True)
    _finish(list(results.values()), out, as_json)


def _finish(results: list, out: Path | None, as_json: bool) -> None:
    codes = [_code(result) for result in results]
    if out is not None and not as_json:
        show(f"kept in {out}", False)
    if INTERRUPTED in codes and out is not None:
        print(f"sapm: interrupted; continue with: sapm resume {out}", file=sys.stderr)
    code = next((c for c in (INTERRUPTED, BROKEN, DIVERGED) if c in codes), 0)
    if code:
        raise typer.Exit(code)


def run_folders(path: Path) -> list[Path]:
    """The folder itself if it is a run, else the runs in it, one per model."""
    if not path.is_dir():
        raise FileNotFoundError(f"{path} does not exist; give the folder of a run (sapm run … --out FOLDER).")
    if (path / "checkpoint").is_dir():
        return [path]
    found = sorted(p.parent for p in path.glob("*/checkpoint"))
    if not found:
        raise ValueError(f"{path} is not the folder of a run: it has no checkpoint.")
    return found


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
        _reproduce(path, json.loads((path / PLAN).read_text()), jobs, quiet, as_json)
        return
    from sapm.solver import resume as continued

    results = {}
    for folder in run_folders(path):
        results[folder.name] = continued(folder, max_iter, max_seconds, progress=not quiet)
        results[folder.name].report(folder / "report.html")
        if not as_json:
            show(results[folder.name].summary(), False)
    if as_json:
        show({name: _as_json(result) for name, result in results.items()}, True)
    _finish(list(results.values()), path, as_json)


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
    page = result.report(out or (path / "report.html" if path.is_dir() else path.with_suffix(".html")))
    if as_json:
        show(_as_json(result) | {"page": str(page)}, True)
    else:
        show(result.summary(), False)
        show(f"written: {page}", False)


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
    if as_json:
        show({"columns": head, "rows": rows.tolist()}, True)
        return
    text = "\n".join([",".join(head), *(",".join(repr(float(v)) for v in row) for row in rows)]) + "\n"
    if out is None:
        sys.stdout.write(text)
    else:
        from sapm.store import write_whole

        write_whole(out, text.encode())
        show(f"written: {out} ({len(rows)} points)", False)


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

    tell = (lambda text: None) if quiet or as_json else (lambda text: _console(stderr=True).print(text, style="dim"))
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

    write_whole(out, page_of(results).encode())
    if as_json:
        show({"rows": rows_of(results), "page": str(out)}, True)
    else:
        show(table_of(results), False)
        show(f"The page with the pictures: {out}", False)
    if any("interrupted" in result.run.status for result in results.values()):
        raise typer.Exit(INTERRUPTED)
    if results["sapm"].certificate.holds is False:
        raise typer.Exit(BROKEN)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit
