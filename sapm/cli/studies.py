"""The commands that train many networks: `demo`, `reproduce` and `bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sapm.cli.arguments import parse_sizes
from sapm.cli.terminal import (
    ExitCode,
    Jobs,
    Json,
    Quiet,
    app,
    continued_by,
    guarded,
    progress_printer,
    show,
    show_interrupted,
)

if TYPE_CHECKING:
    from sapm.studies.reproduce import Plan, Row


@app.command()
@guarded
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.")] = Path(
        "report.html"
    ),
    quiet: Quiet = False,
    as_json: Json = False,
) -> ExitCode:
    """Compare LS, PM and SAPM on a transport equation, in a minute or two. Prints a table and
    writes a page that explains the idea.
    """
    from sapm.results.files import check_output, write_whole
    from sapm.studies.demo import INTRODUCTION, page_of, rows_of, run_demo, table_of

    check_output(out)
    if not as_json:
        for line in INTRODUCTION.split("\n"):
            show(line)
    results = run_demo(not quiet and not as_json)
    if any(result.run.cut for result in results.values()):
        show_interrupted("no page was written, since the demo writes it at the end.")
        return ExitCode.INTERRUPTED
    if not as_json:
        show(table_of(results))
    write_whole(out, page_of(results).encode())
    answer = {"rows": rows_of(results), "page": str(out)}
    show(answer if as_json else f"The page with the figures: {out}")
    holds = results["sapm"].certificate.holds is not False
    return ExitCode.OK if holds else ExitCode.NOT_CERTIFIED


@app.command()
@guarded
def reproduce(  # noqa: PLR0913
    experiments: Annotated[
        list[str],
        typer.Argument(help="function_1d, function_10d, transport_1d, transport_3d or all."),
    ],
    quick: Annotated[
        bool,
        typer.Option("--quick", help="For a laptop: one size, fewer seeds and iterations."),
    ] = False,
    models: Annotated[str, typer.Option(help="ls, pm or sapm; several with commas.")] = (
        "ls,pm,sapm"
    ),
    sizes: Annotated[
        list[str] | None, typer.Option(help="depth,width from the paper's tables; may be repeated.")
    ] = None,
    variants: Annotated[
        str | None,
        typer.Option(help="Only these variants, such as uniform-up,rate0.01; several with commas."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder; a reproduction in it is continued.")
    ] = Path("reproduction"),
    jobs: Jobs = 1,
    quiet: Quiet = False,
    as_json: Json = False,
) -> ExitCode:
    """Reproduce the tables and figures of the paper, with the paper's numbers beside ours."""
    from sapm.studies.reproduce import plan

    names = [name.strip() for name in models.split(",")]
    chosen = [name.strip() for name in variants.split(",")] if variants else None
    requested = plan(experiments, names, parse_sizes(sizes), quick, chosen)
    return run_reproduction(out, requested, jobs, quiet, as_json)


def run_reproduction(out: Path, requested: Plan, jobs: int, quiet: bool, as_json: bool) -> ExitCode:
    """Make or continue a reproduction; write and show its tables.

    Parameters
    ----------
    out : the folder.
    requested : experiments, models and sizes.
    jobs : how many runs are made at the same time.
    quiet, as_json : show no progress; print JSON.
    """
    from sapm.studies import gallery
    from sapm.studies.reproduce import PLAN_FILE_NAME, run

    with continued_by(
        lambda: f"continue with: sapm resume {out}" if (out / PLAN_FILE_NAME).exists() else ""
    ):
        rows = run(out, requested, progress_printer(quiet or as_json), not quiet, jobs)
    written = gallery.write(out, rows, requested["quick"])
    if as_json:
        show(gallery.read(out))
    else:
        _show_reproduction(rows, written, requested["quick"])
    failed = any(row["holds"] is False for row in rows)
    return ExitCode.NOT_CERTIFIED if failed else ExitCode.OK


def _show_reproduction(rows: list[Row], written: list[Path], quick: bool) -> None:
    from rich.table import Table

    from sapm.studies import gallery
    from sapm.studies.reproduce import verdict

    for content in gallery.tables(rows, quick):
        table = Table(
            title=content["title"],
            caption=content["note"],
            caption_justify="left",
            title_justify="left",
        )
        columns = [k for k, name in enumerate(content["head"]) if name != "verdict"]
        for k in columns:
            table.add_column(content["head"][k], justify="right" if k > 2 else "left")
        for line in content["body"]:
            table.add_row(*(line[k] for k in columns))
        show(table)
    for row in rows:
        depth, width = row["size"]
        name = f"{row['experiment']} ({depth},{width}) {row['model'].upper()} {row['variant']}"
        show(f"{name}: {verdict(row)}")
    if quick:
        show(
            "--quick runs a small part of the paper's experiments, with fewer seeds and "
            "iterations. Without it, all of them run. docs/reproduction.md explains the variants."
        )
    show(f"written: {', '.join(map(str, written))}")


@app.command()
@guarded
def bench(  # noqa: PLR0913
    cases: Annotated[
        list[str] | None,
        typer.Argument(help="Families (function_1d, depth, all, …), cases or patterns."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two cases with few seeds and seconds, in ten minutes.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option(help="Training time of each seed, in seconds.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds, counted from 0.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Only these methods; several with commas.")
    ] = None,
    track: Annotated[
        str | None,
        typer.Option(
            help="A: the same initial weights for all methods. B: each method's own. Default: both."
        ),
    ] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option("--out", "-o", help="Folder; a benchmark in it is continued."),
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Trainings at the same time, each on its own two cores.")
    ] = 1,
    write: Annotated[
        Path | None,
        typer.Option(
            help="Write a page with figures to this file, from all folders given by --out."
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> ExitCode:
    """Compare methods on the same data with the same training time. Finished trainings are kept,
    so a benchmark can be stopped and continued.
    """
    from sapm.studies.bench.page import write as write_page
    from sapm.studies.bench.runner import run

    folders = out or [Path("bench")]
    rows: list[dict] = []
    if cases or quick or write is None:
        if len(folders) > 1:
            raise ValueError(
                f"--out: got {len(folders)} folders, expected one; only --write takes several."
            )
        with continued_by(
            lambda: f"the same command continues where it stopped (cells are in {folders[0]})."
        ):
            rows = run(
                cases or [],
                folders[0],
                tell=progress_printer(quiet or as_json),
                quick=quick,
                seconds=seconds,
                seeds=seeds,
                methods=None if methods is None else [name.strip() for name in methods.split(",")],
                track=track,
                jobs=jobs,
            )
    written = [] if write is None else write_page(folders, write)
    if as_json:
        _print_bench_json(rows, written)
    else:
        _show_bench(rows, written)
    all_failed = all(row["failed"] == len(row["seeds"]) for row in rows if row["seeds"])
    return ExitCode.DIVERGED if rows and all_failed else ExitCode.OK


def _by_case(rows: list[dict]) -> dict[str, list[dict]]:
    titles = dict.fromkeys(row["title"] for row in rows)
    return {title: [row for row in rows if row["title"] == title] for title in titles}


def _print_bench_json(rows: list[dict], written: list[Path]) -> None:
    from sapm.studies.bench.score import ahead

    leads = [lead for case in _by_case(rows).values() if (lead := ahead(case)) is not None]
    show({"rows": rows, "ahead": leads, "written": [str(path) for path in written]})


def _show_bench(rows: list[dict], written: list[Path]) -> None:
    from rich.table import Table

    from sapm.studies.bench.score import behind, table

    styles = {"auto": "bold"}
    for title, case in _by_case(rows).items():
        budget = " ".join(f"{row['budget']:g} s a seed" for row in case[:1] if row["seeds"])
        printed = Table(title=f"{title}: {budget}", title_justify="left")
        head, body = table(case)
        for k, name in enumerate(head):
            printed.add_column(name, justify="right" if k > 1 else "left")
        for row, line in zip(case, body, strict=True):
            sanity = "dim" if row["group"] == "sanity" else None
            printed.add_row(*line, style=styles.get(row["method"], sanity))
        show(printed)
        for track in "AB":
            for text in behind(case, track):
                show(f"track {track}: {text}")
    if written:
        show(f"written: {', '.join(map(str, written))}")
