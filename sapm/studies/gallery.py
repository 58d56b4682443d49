"""Tables and figures of a reproduction, with the paper's numbers beside ours.

`write` makes them in Markdown, LaTeX, JSON, SVG and PNG, and as one HTML page. All of it comes from
the rows of the runs (`sapm.studies.reproduce.Row`).
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from sapm.catalogue import CATALOGUE, paper_tables
from sapm.objective.weights import ROUNDING
from sapm.results import files
from sapm.results.page import (
    ACCENT,
    BOUND_COLOUR,
    CONTENT_POLICY_HTML,
    FAINT,
    INK,
    STYLE,
    for_log_axis,
    image,
)
from sapm.studies.reproduce import (
    MODELS,
    VERDICTS,
    OffSample,
    Row,
    all_cells,
    paper_row,
    plan,
    verdict,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALL_SEEDS = {"function_1d": ((10, 10), (6, 50)), "function_10d": ((6, 10), (8, 10), (10, 10))}
VARIANTS = (
    "Variants: uniform, auxiliary variables that start from U(-1, 1), as in the paper, and sweeps "
    "as printed, from the last layer to the first; uniform-up, sweeps from the first layer to the "
    "last; uniform-guarded, sweeps as printed, except that one update of W_l keeps at least 90 % "
    "of ‖W_l‖² (the default of this package); uniform-shared, sweeps as printed with one step "
    "length for all samples of a layer; forward and forward-up, auxiliary variables that start "
    "from a forward pass of the initial network; rate, the learning rate of LS. minimised: the "
    "minimised loss, the paper's actual loss. stated: the largest ratio of the true loss to what "
    "the paper states as its bound for these experiments, L · loss for functions and d L(L+1) · "
    "loss for equations, d the number of coordinates."
)
SEED_COUNTING_NOTE = (
    "The best seed is the one with the smallest final minimised loss. Seeds count from 0; "
    "the paper's, in the paper's order, from 1."
)
SENTENCE_CHARACTERS = 24  # a longer cell of a table is shown as a sentence
FAILED_SHARE = 0.1  # of the initial loss: a seed that ends above it failed
Size = tuple[int, int]  # depth and width


class TableContent(TypedDict):
    """A table: cells as text, and a note below it."""

    name: str
    title: str
    head: list[str]
    body: list[list[str]]
    note: str


def number(x: float | None) -> str:
    """x with three digits, a dash for None."""
    return "–" if x is None else f"{x:.2e}"


def best_table(name: str, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Head and body of the table of best seeds of an experiment.

    A line per run: the best seed beside the paper's, median and worst seed, successes, the largest
    ratio of the true loss to the bound, and the verdict.
    """
    pde = CATALOGUE[name].kind == "pde"
    error = "solution_error" if pde else "test_error"
    head = [
        "(L,M)",
        "model",
        "variant",
        "minimised",
        "paper",
        "true",
        "paper",
        *([] if pde else ["train err", "paper"]),
    ]
    head += [
        "solution err" if pde else "test err",
        "paper",
        "median err",
        "worst err",
        "success",
        "bound",
        "stated",
        "verdict",
    ]
    body = []
    for row in rows:
        printed = paper_row(row)
        best = row["best"]
        depth, width = row["size"]
        cells = [f"({depth},{width})", row["model"].upper(), row["variant"]]
        pairs = [
            ("loss", "actual_loss"),
            ("mean_squared_loss",) * 2,
            *([] if pde else [("train_error",) * 2]),
            (error,) * 2,
        ]
        for ours, theirs in pairs:
            cells += [number(best[ours]), number(printed[theirs])]
        # the loss of LS is the true loss: there is nothing to bound
        ratio = None if row["model"] == "ls" else row["largest_bound_ratio"]
        cells += [
            number(row["median"][error]),
            number(row["worst"][error]),
            f"{row['success']}/{row['seeds']}",
        ]
        stated = None if row["model"] == "ls" else row.get("largest_stated_ratio")
        cells += ["–" if value is None else f"{value:.2g}" for value in (ratio, stated)]
        body.append([*cells, verdict(row)])
    return head, body


def seeds_table(
    name: str, size: tuple[int, int], rows: Sequence[Row]
) -> tuple[list[str], list[list[str]]]:
    """Head and body of the table of all seeds of an experiment at a size.

    A line per seed, a pair of columns per run: initial → final loss of our seed and of the paper's,
    with a star where the seed failed.

    Parameters
    ----------
    name : the experiment.
    size : (depth, width).
    rows : its runs.
    """
    rows = [row for row in rows if tuple(row["size"]) == size]
    printed = paper_tables()["all_seeds"][name][f"{size[0]},{size[1]}"]

    def cell(initial: float, final: float) -> str:
        star = "" if final < FAILED_SHARE * initial else " *"
        return f"{initial:.2e} → {final:.2e}{star}"

    head = ["seed"]
    for row in rows:
        head += [f"{row['model'].upper()} {row['variant']}", "paper"]
    body = []
    for i in range(max((row["seeds"] for row in rows), default=0)):
        line = [str(i)]
        for row in rows:
            theirs = printed[row["model"].upper()]
            line += [
                cell(*row["initial_final"][i]) if i < row["seeds"] else "",
                cell(*theirs[i]) if i < len(theirs) else "",
            ]
        body.append(line)
    return head, body


def tables(rows: Sequence[Row], quick: bool) -> list[TableContent]:
    """Every table of the reproduction: best seeds of each experiment, all seeds of some sizes."""
    contents: list[TableContent] = []
    for name in dict.fromkeys(row["experiment"] for row in rows):
        runs = [row for row in rows if row["experiment"] == name]
        entry = CATALOGUE[name]
        scale = f"{runs[0]['seeds']} seeds, {_iterations(runs)}"
        scale = f"QUICK RUN, not the paper's scale: {scale}" if quick else scale
        bound = (
            "bound: the largest ratio of the true loss to the proven bound in any record of any "
            "seed (at most 1; PM has no bound)"
        )
        head, body = best_table(name, runs)
        contents.append(
            {
                "name": f"{name}_best",
                "title": f"{name}: {entry.about} (best seed)",
                "head": head,
                "body": body,
                "note": f"{scale}. {entry.assumed} Success: {runs[0]['success_means']}; {bound}.",
            }
        )
        for depth, width in ALL_SEEDS.get(name, ()):
            if any(tuple(row["size"]) == (depth, width) for row in runs):
                head, body = seeds_table(name, (depth, width), runs)
                contents.append(
                    {
                        "name": f"{name}_seeds_{depth}x{width}",
                        "title": f"{name} ({depth},{width}): initial → final minimised loss of "
                        "every seed; * failed (final ≥ 10 % of initial)",
                        "head": head,
                        "body": body,
                        "note": f"{scale}. {SEED_COUNTING_NOTE}",
                    }
                )
    return contents


def _iterations(runs: Sequence[Row]) -> str:
    """The numbers of iterations of the runs, by model where they differ."""
    most: dict[str, int] = {}
    for row in runs:
        most[row["model"]] = max(most.get(row["model"], 0), row["iterations"])
    if len(set(most.values())) == 1:
        return f"{next(iter(most.values()))} iterations"
    return ", ".join(f"{count} iterations of {model.upper()}" for model, count in most.items())


def pictures_of(table: TableContent, labels: Iterable[str]) -> list[str]:
    """The figures shown before a table: all of its experiment, before the table of best seeds."""
    name = table["name"].removesuffix("_best")
    return [label for label in labels if label.startswith(name)]


def markdown(
    contents: Sequence[TableContent], captions: dict[str, str], introduction: Sequence[str]
) -> str:
    """The whole report in Markdown.

    Parameters
    ----------
    contents : the tables
    captions : the caption of every figure, by the name of its file
    introduction : the paragraphs before the tables
    """
    parts = [
        "# The paper's experiments, ours beside the paper's",
        "",
        *(f"{text}\n" for text in introduction),
    ]
    for table in contents:
        for label in pictures_of(table, captions):
            parts.append(f"![{captions[label]}](figures/{label}.svg)\n\n{captions[label]}\n")
        lines = [
            "| " + " | ".join(cells) + " |"
            for cells in (table["head"], ["---"] * len(table["head"]), *table["body"])
        ]
        parts.append("\n".join([f"## {table['title']}", "", *lines, "", table["note"], ""]))
    return "\n".join(parts)


SYMBOLS = {
    "→": r"\to",
    "≥": r"\ge",
    "²": "^2",
    "⁴": "^4",
    "·": r"\cdot",
    "×": r"\times",
    "√": r"\surd",
    "Σ": r"\Sigma",
    "μ": r"\mu",
}
ESCAPES = str.maketrans(
    {c: "\\" + c for c in "%_&#$"}
    | {c: f"${tex}$" for c, tex in SYMBOLS.items()}
    | {"–": "--", "^": r"\^{}", "<": "$<$"}
)


def latex(contents: Sequence[TableContent]) -> str:
    """The tables as LaTeX, in ASCII."""
    parts = []
    for table in contents:
        rows = [
            " & ".join(cells).translate(ESCAPES).replace(r" \& ", " & ") + r" \\"
            for cells in (table["head"], *table["body"])
        ]
        tabular = [r"\hline", rows[0], r"\hline", *rows[1:], r"\hline", r"\end{tabular}"]
        start = [
            r"\begin{table}",
            r"\centering\small",
            rf"\begin{{tabular}}{{{'l' * len(table['head'])}}}",
        ]
        caption = rf"\caption{{{(table['title'] + '. ' + table['note']).translate(ESCAPES)}}}"
        parts.append("\n".join([*start, *tabular, caption, r"\end{table}", ""]))
    return "\n".join(parts)


# ---------------------------------------------------------------- figures


def _grid(rows: int, columns: int) -> tuple[Figure, np.ndarray]:
    """A figure with rows × columns panels, with logarithmic vertical axes in common."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.9 * columns + 0.6, 2.5 * rows + 0.4), layout="constrained", dpi=110)
    axes = figure.subplots(rows, columns, squeeze=False, sharex="row", sharey=True)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
        ax.set_yscale("log")
    return figure, axes


def _values(column: Sequence[float | None]) -> np.ndarray:
    """Losses for a logarithmic axis: NaN where there is none."""
    return for_log_axis(np.array([np.nan if v is None else v for v in column], float))


def losses(rows: Sequence[Row], sizes: Sequence[Size], models: Sequence[str]) -> Figure:
    """The minimised loss of all seeds (thin) and of the best one (bold) against iterations.

    A row of panels per model, a column per size, the same limits throughout.

    Parameters
    ----------
    rows : the runs.
    sizes : (depth, width) of every column.
    models : the model of every row.
    """
    figure, axes = _grid(len(models), len(sizes))
    for ax, row in _panels(axes, rows, sizes, models):
        drawn = row["curves"]
        for seed, loss in enumerate(drawn["loss"]):
            best = seed == drawn["best"]
            ax.plot(
                drawn["iteration"],
                _values(loss),
                color=ACCENT if best else FAINT,
                lw=2.0 if best else 0.7,
                zorder=3 if best else 1,
            )
    for line in axes:
        line[0].set_ylabel("minimised loss", fontsize=8)
    return figure


def consistency(rows: Sequence[Row], sizes: Sequence[Size], models: Sequence[str]) -> Figure:
    """Minimised (solid) and true (dashed) loss of the best seed, and the bound on it (dotted).

    Parameters
    ----------
    rows : the runs.
    sizes : (depth, width) of every column.
    models : the model of every row.
    """
    figure, axes = _grid(len(models), len(sizes))
    for ax, row in _panels(axes, rows, sizes, models):
        drawn = row["curves"]
        at = drawn["iteration"]
        loss = _values(drawn["loss"][drawn["best"]])
        ax.plot(at, loss, color=INK, lw=1.5, label="minimised")
        ax.plot(at, _values(drawn["true"]), color=ACCENT, lw=1.5, ls="--", label="true")
        if drawn["bound"] is not None:
            bound = drawn["bound"] * loss
            ax.plot(at, bound, color=BOUND_COLOUR, lw=0.8, ls=":", label="bound")
    for line in axes:
        line[0].set_ylabel("loss", fontsize=8)
        line[0].legend(frameon=False, fontsize=8)
    return figure


def _panels(
    axes: np.ndarray, rows: Sequence[Row], sizes: Sequence[Size], models: Sequence[str]
) -> Iterator[tuple[Axes, Row]]:
    """(axis, row) for every panel that has a run; the other panels stay blank."""
    for line, model in zip(axes, models, strict=True):
        for ax, size in zip(line, sizes, strict=True):
            row = next((r for r in rows if r["model"] == model and tuple(r["size"]) == size), None)
            if row is None:
                ax.set_axis_off()
                continue
            ax.set_title(f"{model.upper()} ({size[0]},{size[1]})", fontsize=9, color=INK)
            yield ax, row
    for ax in axes[-1]:
        ax.set_xlabel("iteration", fontsize=8)


def off_sample(stray: OffSample, size: Sequence[int]) -> Figure:
    """The network near its largest error between the training points, the target and the points."""
    from matplotlib.figure import Figure

    depth, width = size
    figure = Figure(figsize=(5.2, 3.4), layout="constrained", dpi=110)
    ax = figure.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    at = np.array(stray["at"])
    points = np.array(stray["points"])
    ax.plot(at, np.sin(at**2), color=INK, lw=1.2, ls="--", label="sin(x²)")
    ax.plot(
        at,
        stray["network"],
        color=ACCENT,
        lw=1.5,
        label=f"SAPM ({depth},{width}), seed {stray['seed']}",
    )
    ax.plot(points, np.sin(points**2), "o", color=BOUND_COLOUR, ms=4, label="training points")
    ax.legend(frameon=False, fontsize=8)
    ax.set_xlabel("x")
    ax.set_title(
        f"largest error between the points: {stray['error']:.2e} at x = {stray['x']:.4f}",
        fontsize=9,
        color=INK,
    )
    return figure


def shown_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows shown in figures: for each model and size the variant with the smallest loss."""
    smallest: dict[tuple, Row] = {}
    for row in rows:
        key = (*row["size"], row["model"])
        if key not in smallest or row["best"]["loss"] < smallest[key]["best"]["loss"]:
            smallest[key] = row
    return list(smallest.values())


def figures(name: str, rows: Sequence[Row]) -> dict[str, Figure]:
    """Every figure of an experiment, by the name of its file."""
    rows = shown_rows(rows)
    sizes = [
        size for size in CATALOGUE[name].sizes if any(tuple(row["size"]) == size for row in rows)
    ]
    models = [model for model in ("ls", "pm", "sapm") if any(row["model"] == model for row in rows)]
    drawn = {f"{name}_losses": losses(rows, sizes, models)}
    if separated := [model for model in models if model != "ls"]:
        drawn[f"{name}_consistency"] = consistency(rows, sizes, separated)
    strays = [
        (stray, row["size"])
        for row in rows
        if row["model"] == "sapm" and (stray := row.get("off_sample"))
    ]
    if strays:
        worst = max(strays, key=lambda pair: pair[0]["error"])
        drawn[f"{name}_off_sample"] = off_sample(*worst)
    return drawn


CAPTIONS = {
    "losses": "the minimised loss of every seed (thin) and of the best one (bold), each model in "
    "its best variant.",
    "consistency": "best seed: the minimised loss (solid), the network's true loss (dashed), and "
    "the bound on it (dotted).",
    "off_sample": "the largest error of SAPM between the training points on [-1, 1]: all seeds, "
    "each size in its best variant.",
}


def lead(rows: Sequence[Row], quick: bool) -> list[str]:
    """The paragraphs before the tables: the scale, machines and times, the bound, how to read."""
    scale = (
        "Quick run: fewer seeds, iterations and points than the paper."
        if quick
        else "Full scale: the paper's seeds and iterations."
    )
    machines: dict[str, list[float]] = {}
    for row in rows:
        env = row["env"]
        name = ", ".join([*env["devices"], f"{env['cores']} cores", f"Python {env['python']}"])
        name += "".join(f", {k} {v}" for k, v in env["packages"].items())
        machines.setdefault(name, []).append(row["seconds"])
    where = "; ".join(
        f"{len(times)} runs, {sum(times) / 60:.0f} minutes of training in all, on {name}"
        for name, times in machines.items()
    )
    return [scale, where + ".", *_bound(rows), VARIANTS, VERDICTS.replace("\n", " ")]


def missing(rows: Sequence[Row]) -> list[str]:
    """A sentence on the runs of the whole plan of these experiments that are not among the rows."""
    names = list(dict.fromkeys(row["experiment"] for row in rows))
    made = {(row["experiment"], *row["size"], row["model"], row["variant"]) for row in rows}
    absent = [
        cell
        for cell in all_cells(plan(names, MODELS, None, False))
        if (cell.experiment, *cell.size, cell.model, cell.variant) not in made
    ]
    if not absent:
        return []
    variants: dict[str, list[str]] = {}
    for cell in absent:
        place = f"{cell.experiment} ({cell.size[0]},{cell.size[1]}) {cell.model.upper()}"
        variants.setdefault(place, []).append(cell.variant)
    listed = "; ".join(f"{place}: {', '.join(names)}" for place, names in variants.items())
    return [f"Not run yet ({len(absent)} runs): {listed}."]


def _bound(rows: Sequence[Row]) -> list[str]:
    """A sentence on the runs of SAPM in which the bound held; none if no run has a ratio."""
    ratios = [row["largest_bound_ratio"] for row in rows if row["model"] == "sapm"]
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        return []
    holding = sum(ratio <= 1 + ROUNDING for ratio in known)
    sentence = (
        "SAPM's proven bound was checked at every record of every seed: it held in "
        f"{holding} of {len(known)} runs; the largest ratio of the true loss to the bound is "
        f"{max(known):.6g}"
    )
    unknown = len(ratios) - len(known)
    return [sentence + (f"; {unknown} more have no ratio." if unknown else ".")]


def pictures(rows: Sequence[Row]) -> dict[str, tuple[Figure, str]]:
    """Every figure of a reproduction with its caption, by the name of its file."""
    shown = {}
    for name in dict.fromkeys(row["experiment"] for row in rows):
        runs = [row for row in rows if row["experiment"] == name]
        for label, figure in figures(name, runs).items():
            shown[label] = (figure, f"{name}: {CAPTIONS[label.removeprefix(name + '_')]}")
    return shown


def save_picture(figure: Figure, file: Path) -> None:
    """Write a figure. The same figure always gives the same file."""
    from matplotlib import rc_context

    file.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": file.stem}):
        figure.savefig(file, dpi=130, metadata={"Date": None} if file.suffix == ".svg" else None)


def write(out: Path, rows: Sequence[Row], quick: bool) -> list[Path]:
    """Write results.md, tables.tex, tables.json, report.html and figures/ into the folder `out`.

    Returns the paths of the four files.

    Parameters
    ----------
    out : the folder.
    rows : the runs.
    quick : whether they are those of --quick.
    """
    contents = tables(rows, quick)
    introduction = lead(rows, quick)
    bare = [{k: v for k, v in row.items() if k not in ("curves", "off_sample")} for row in rows]
    shown = {}
    captions = {}
    for label, (figure, caption) in pictures(rows).items():
        for kind in ("svg", "png"):
            save_picture(figure, out / "figures" / f"{label}.{kind}")
        captions[label] = caption
        below = f"<figcaption>{html.escape(caption)}</figcaption>"
        shown[label] = f"<figure>{image(figure)}{below}</figure>"
    written = {
        "results.md": markdown(contents, captions, introduction),
        "tables.tex": latex(contents),
        "tables.json": files.to_json({"quick": quick, "rows": bare, "tables": contents}, indent=1),
        "report.html": _page(contents, shown, introduction),
    }
    for name, text in written.items():
        files.write_whole(out / name, text.encode())
    return [out / name for name in written]


def _columns(head: Sequence[str], body: Sequence[Sequence[str]]) -> tuple[str, str]:
    """Head and body in HTML.

    A column of sentences gets lines of its own below the others, so that these fit into the page.
    """
    long = {k for line in body for k, cell in enumerate(line) if len(cell) > SENTENCE_CHARACTERS}
    short = [k for k in range(len(head)) if k not in long]
    rows = ""
    for line in body:
        edge = ' style="border-bottom: 0"' * bool(long)
        rows += "<tr>" + "".join(f"<td{edge}>{html.escape(line[k])}</td>" for k in short) + "</tr>"
        for k in sorted(long):
            sentence = f"{html.escape(head[k])}: {html.escape(line[k])}"
            rows += f'<tr><td class="words" colspan="{len(short)}">{sentence}</td></tr>'
    names = (f'<th style="white-space:normal">{html.escape(head[k])}</th>' for k in short)
    return "".join(names), rows


def _page(
    contents: Sequence[TableContent], shown: dict[str, str], introduction: Sequence[str]
) -> str:
    """The report as one HTML file. `shown` has the HTML of every figure by its name."""
    blocks = ""
    for table in contents:
        blocks += "".join(shown[label] for label in pictures_of(table, shown))
        head, body = _columns(table["head"], table["body"])
        blocks += f"<h2>{html.escape(table['title'])}</h2>"
        blocks += f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        blocks += f"<tbody>{body}</tbody></table></div>"
        blocks += f'<p class="soft">{html.escape(table["note"])}</p>'
    words = "".join(f'<p class="soft">{html.escape(text)}</p>' for text in introduction)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">{CONTENT_POLICY_HTML}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Reproduction</title><style>{STYLE} body {{ max-width: 76rem; }}</style></head><body>
<h1>The paper's experiments, ours beside the paper's</h1>{words}
{blocks}
</body></html>
"""


def read(out: Path) -> dict:
    """tables.json of a folder: {"quick", "rows", "tables"}."""
    return json.loads((out / "tables.json").read_text())
