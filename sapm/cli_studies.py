"""The commands that run more than one training: demo, reproduce, bench."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from sapm.cli_base import BROKEN, DIVERGED, INTERRUPTED, Jobs, Json, Quiet, app, console, guarded, show


@app.command()
@guarded
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the page goes.")] = Path("report.html"),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """LS, PM and SAPM side by side on a transport equation: a table and a page that explain the idea, in a minute or two."""
    from sapm.demo import DEMO, rows_of, run_demo, table_of

    if not as_json:
        show(DEMO, False)
    results = run_demo(not quiet and not as_json)
    from sapm.demo import page_of
    from sapm.store import write_whole

    if any(result.run.cut for result in results.values()):
        print("sapm: interrupted; the demonstration writes its page only at its end.", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
    if not as_json:
        show(table_of(results), False)
    write_whole(out, page_of(results).encode())
    show({"rows": rows_of(results), "page": str(out)} if as_json else f"The page with the pictures: {out}", as_json)
    if results["sapm"].certificate.holds is False:
        raise typer.Exit(BROKEN)


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
    quiet: Quiet = False,
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
    reproduce_in(out, wanted, jobs, quiet, as_json)


def reproduce_in(out: Path, wanted: dict, jobs: int, quiet: bool, as_json: bool) -> None:
    from sapm import gallery
    from sapm.reproduce import run, verdict

    tell = (
        (lambda text: None) if quiet or as_json else (lambda text: console(stderr=True).print(text, style="dim", soft_wrap=True))
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
        if wanted["quick"]:
            few = "--quick takes a small part of the paper's sizes, seeds and steps, so that much is not reproduced by it"
            show(f"{few}; without it all is run. What the variants are: docs/reproduction.md.", False)
        show("written: " + ", ".join(str(p) for p in written), False)
    if any(row["holds"] is False for row in rows):
        raise typer.Exit(BROKEN)


@app.command()
@guarded
def bench(
    cases: Annotated[list[str] | None, typer.Argument(help="function_1d, depth, …, all, a case or a pattern.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two cases, few seeds and seconds: about ten minutes.")] = False,
    seconds: Annotated[float | None, typer.Option(help="Training time of a seed.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many, from 0 on.")] = None,
    methods: Annotated[str | None, typer.Option(help="Only these; several with commas.")] = None,
    track: Annotated[
        str | None, typer.Option(help="A: the same weights for all. B: each its own start. Both by default.")
    ] = None,
    out: Annotated[list[Path] | None, typer.Option("--out", "-o", help="Folder; a bench that is there is gone on with.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at a time, each on two cores of its own.")] = 1,
    write: Annotated[Path | None, typer.Option(help="Write this page, with figures; several --out: from them all.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Every method side by side: same data, same clock. What is done already is kept, so it can be stopped and continued."""
    from sapm.bench.page import write as write_page
    from sapm.bench.runner import run

    places = out or [Path("bench")]
    rows: list[dict] = []
    if cases or quick or write is None:
        if len(places) > 1:
            raise ValueError(f"{len(places)} folders were given with --out; a bench fills one, only --write takes several.")
        wanted = None if methods is None else [m.strip() for m in methods.split(",")]
        tell = (lambda text: None) if quiet or as_json else (lambda text: console(True).print(text, style="dim", soft_wrap=True))
        given = {"quick": quick, "seconds": seconds, "seeds": seeds, "methods": wanted, "track": track, "jobs": jobs}
        try:
            rows = run(cases or [], places[0], tell=tell, **given)
        except KeyboardInterrupt:
            print(f"sapm: interrupted; the same command goes on where it stood (cells are in {places[0]}).", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
    written = [] if write is None else write_page(places, write)
    _show_bench(rows, written, as_json)
    if rows and all(row["failed"] == len(row["seeds"]) for row in rows if row["seeds"]):
        raise typer.Exit(DIVERGED)


def _show_bench(rows: list[dict], written: list[Path], as_json: bool) -> None:
    from sapm.bench.score import ahead, behind, table

    groups = {title: [row for row in rows if row["title"] == title] for title in dict.fromkeys(row["title"] for row in rows)}
    if as_json:
        ours = [found for group in groups.values() if (found := ahead(group)) is not None]
        show({"rows": rows, "ahead": ours, "written": [str(p) for p in written]}, True)
        return
    from rich.table import Table

    for title, group in groups.items():
        budgets = " ".join(f"{row['budget']:g} s a seed" for row in group[:1] if row["seeds"])
        shown = Table(title=f"{title}: {budgets}", title_justify="left")
        head, body = table(group)
        for k, name in enumerate(head):
            shown.add_column(name, justify="right" if k > 1 else "left")
        for row, line in zip(group, body, strict=True):
            shown.add_row(*line, style="bold" if row["method"] == "auto" else "dim" if row["group"] == "sanity" else None)
        show(shown, False)
        for found in [f"track {track}: {text}" for track in "AB" for text in behind(group, track)]:
            show(found, False)
    if written:
        show(f"written: {', '.join(str(p) for p in written)}", False)
