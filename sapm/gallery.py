"""Tables and figures of a reproduction, ours beside the paper's: Markdown, LaTeX, JSON, SVG, PNG and one HTML page."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from sapm import store
from sapm.experiments import EXPERIMENTS, paper
from sapm.objective import ROUNDING
from sapm.report import ACCENT, FAINT, INK, POLICY, SECOND, STYLE, _positive, image
from sapm.reproduce import VERDICTS, paper_row, verdict

ALL_SEEDS = {"function_1d": ((10, 10), (6, 50)), "function_10d": ((6, 10), (8, 10), (10, 10))}
VARIANTS = (
    "Variants: uniform, the paper's auxiliary variables, U(-1, 1); forward, those of a forward pass of the initial network; "
    "shared, one step length for all samples of a layer; rate, the learning rate of LS. actual: the loss that was minimised."
)
SENTENCE = 24  # a longer cell of a table is one
COUNTED = "The best seed ends with the smallest loss that was optimised. Seeds count from 0; the paper's, in its order, from 1."


def number(x) -> str:
    return "–" if x is None else f"{x:.2e}"


def best_table(name: str, rows: Sequence[dict]) -> tuple[list[str], list[list[str]]]:
    """Best seed, ours and the paper's, with medians and worst, successes, the bound and the verdict."""
    pde = EXPERIMENTS[name].kind == "pde"
    error = "solution_error" if pde else "test_error"
    head = ["(L,M)", "model", "variant", "actual", "paper", "true", "paper", *([] if pde else ["train err", "paper"])]
    head += ["solution err" if pde else "test err", "paper", "median err", "worst err", "success", "bound", "verdict"]
    body = []
    for row in rows:
        printed, best = paper_row(row), row["best"]
        cells = ["({},{})".format(*row["size"]), row["model"].upper(), row["variant"]]
        pairs = [("loss", "actual_loss"), ("mean_squared_loss",) * 2, *([] if pde else [("train_error",) * 2]), (error,) * 2]
        for ours, theirs in pairs:
            cells += [number(best[ours]), number(printed[theirs])]
        ratio = None if row["model"] == "ls" else row["largest_bound_ratio"]  # whose loss is the true one
        cells += [number(row["median"][error]), number(row["worst"][error]), f"{row['success']}/{row['seeds']}"]
        body.append([*cells, "–" if ratio is None else f"{ratio:.2f}", verdict(row)])
    return head, body


def seeds_table(name: str, size: tuple[int, int], rows: Sequence[dict]) -> tuple[list[str], list[list[str]]]:
    """Initial → final loss of every seed, failures starred, the paper's beside ours."""
    rows = [row for row in rows if tuple(row["size"]) == size]
    printed = paper()["all_seeds"][name]["{},{}".format(*size)]

    def cell(initial: float, final: float) -> str:
        return f"{initial:.2e} → {final:.2e}" + ("" if final < 0.1 * initial else " *")

    head = ["seed"]
    for row in rows:
        head += [f"{row['model'].upper()} {row['variant']}", "paper"]
    body = []
    for i in range(max((row["seeds"] for row in rows), default=0)):
        line = [str(i)]
        for row in rows:
            theirs = printed[row["model"].upper()]
            line += [cell(*row["initial_final"][i]) if i < row["seeds"] else "", cell(*theirs[i]) if i < len(theirs) else ""]
        body.append(line)
    return head, body


def tables(rows: Sequence[dict], quick: bool) -> list[dict]:
    """Every table of the reproduction: title, head, body, note."""
    found = []
    for name in dict.fromkeys(row["experiment"] for row in rows):
        mine = [row for row in rows if row["experiment"] == name]
        e = EXPERIMENTS[name]
        scale = f"{mine[0]['seeds']} seeds, {max(row['iterations'] for row in mine)} iterations"
        scale = f"QUICK RUN, not the paper's scale: {scale}" if quick else scale
        bound = "bound: largest true loss over the proven bound in any record of any seed (at most 1; PM has none)"
        note = f"{scale}. {e.assumed} Success: {mine[0]['success_means']}; {bound}."
        head, body = best_table(name, mine)
        found.append(
            {"name": f"{name}_best", "title": f"{name}: {e.about} (best seed)", "head": head, "body": body, "note": note}
        )
        for size in ALL_SEEDS.get(name, ()):
            if any(tuple(row["size"]) == size for row in mine):
                head, body = seeds_table(name, size, mine)
                title = (
                    f"{name} ({size[0]},{size[1]}): initial → final actual loss of every seed; * failed (final ≥ 10 % of initial)"
                )
                label = f"{name}_seeds_{size[0]}x{size[1]}"
                found.append({"name": label, "title": title, "head": head, "body": body, "note": f"{scale}. {COUNTED}"})
    return found


def pictures_of(table: dict, labels: Iterable[str]) -> list[str]:
    """The figures that belong before a table: those of its experiment, before the first of its tables."""
    name = table["name"].removesuffix("_best")
    return [label for label in labels if label.startswith(name)]


def markdown(found: Sequence[dict], pictures: dict[str, str], lead: Sequence[str]) -> str:
    """The whole report in Markdown; `pictures` are captions by name, shown before the first table of their experiment."""
    parts = ["# The paper's experiments, ours beside the paper's", "", *(f"{text}\n" for text in lead)]
    for t in found:
        for label in pictures_of(t, pictures):
            parts.append(f"![{pictures[label]}](figures/{label}.svg)\n\n{pictures[label]}\n")
        lines = ["| " + " | ".join(cells) + " |" for cells in (t["head"], ["---"] * len(t["head"]), *t["body"])]
        parts.append("\n".join([f"## {t['title']}", "", *lines, "", t["note"], ""]))
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
    {c: "\\" + c for c in "%_&#$"} | {c: f"${tex}$" for c, tex in SYMBOLS.items()} | {"–": "--", "^": r"\^{}", "<": "$<$"}
)


def latex(found: Sequence[dict]) -> str:
    parts = []
    for t in found:
        rows = [" & ".join(cells).translate(ESCAPES).replace(r" \& ", " & ") + r" \\" for cells in (t["head"], *t["body"])]
        tabular = [r"\hline", rows[0], r"\hline", *rows[1:], r"\hline", r"\end{tabular}"]
        start = [r"\begin{table}", r"\centering\small", rf"\begin{{tabular}}{{{'l' * len(t['head'])}}}"]
        caption = rf"\caption{{{(t['title'] + '. ' + t['note']).translate(ESCAPES)}}}"
        parts.append("\n".join([*start, *tabular, caption, r"\end{table}", ""]))
    return "\n".join(parts)


# ---------------------------------------------------------------- figures


def _grid(rows: int, columns: int):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.9 * columns + 0.6, 2.5 * rows + 0.4), layout="constrained", dpi=110)
    axes = figure.subplots(rows, columns, squeeze=False, sharex="row", sharey=True)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
        ax.set_yscale("log")
    return figure, axes


def _values(column) -> np.ndarray:
    return _positive(np.array([np.nan if v is None else v for v in column], float))


def losses(rows: Sequence[dict], sizes, models):
    """All seeds thin, the best bold; one row per model, one column per size, same limits throughout."""
    figure, axes = _grid(len(models), len(sizes))
    for ax, row in _panels(axes, rows, sizes, models):
        c = row["curves"]
        for i, loss in enumerate(c["loss"]):
            best = i == c["best"]
            ax.plot(
                c["iteration"], _values(loss), color=ACCENT if best else FAINT, lw=2.0 if best else 0.7, zorder=3 if best else 1
            )
    for line in axes:
        line[0].set_ylabel("actual loss", fontsize=8)
    return figure


def consistency(rows: Sequence[dict], sizes, models):
    """Actual (solid) and true (dashed) loss of the best seed, and the bound."""
    figure, axes = _grid(len(models), len(sizes))
    for ax, row in _panels(axes, rows, sizes, models):
        c = row["curves"]
        loss = _values(c["loss"][c["best"]])
        ax.plot(c["iteration"], loss, color=INK, lw=1.5, label="actual")
        ax.plot(c["iteration"], _values(c["true"]), color=ACCENT, lw=1.5, ls="--", label="true")
        if c["bound"] is not None:
            ax.plot(c["iteration"], c["bound"] * loss, color=SECOND, lw=0.8, ls=":", label="bound")
    for line in axes:
        line[0].set_ylabel("loss", fontsize=8)
        line[0].legend(frameon=False, fontsize=8)
    return figure


def _panels(axes, rows: Sequence[dict], sizes, models):
    """(axis, row) for every panel that has a run; the others are left blank."""
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


def off_sample(row: dict):
    """The largest error found off the training points, with the target and the points."""
    from matplotlib.figure import Figure

    found, (depth, width) = row["off_sample"], row["size"]
    figure = Figure(figsize=(5.2, 3.4), layout="constrained", dpi=110)
    ax = figure.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    at, points = np.array(found["at"]), np.array(found["points"])
    ax.plot(at, np.sin(at**2), color=INK, lw=1.2, ls="--", label="sin(x²)")
    ax.plot(at, found["network"], color=ACCENT, lw=1.5, label=f"SAPM ({depth},{width}), seed {found['seed']}")
    ax.plot(points, np.sin(points**2), "o", color=SECOND, ms=4, label="training points")
    ax.legend(frameon=False, fontsize=8)
    ax.set_xlabel("x")
    ax.set_title(f"largest error off the samples: {found['error']:.2e} at x = {found['x']:.4f}", fontsize=9, color=INK)
    return figure


def shown_rows(rows: Sequence[dict]) -> list[dict]:
    """The variant that stands for each model and size in the figures: the one with the smallest actual loss."""
    found = {}
    for row in rows:
        key = (*row["size"], row["model"])
        if key not in found or row["best"]["loss"] < found[key]["best"]["loss"]:
            found[key] = row
    return list(found.values())


def figures(name: str, rows: Sequence[dict]) -> dict:
    """Every figure of an experiment."""
    rows = shown_rows(rows)
    sizes = [size for size in EXPERIMENTS[name].sizes if any(tuple(row["size"]) == size for row in rows)]
    models = [model for model in ("ls", "pm", "sapm") if any(row["model"] == model for row in rows)]
    made = {f"{name}_losses": losses(rows, sizes, models)}
    if pair := [model for model in models if model != "ls"]:
        made[f"{name}_consistency"] = consistency(rows, sizes, pair)
    strays = [row for row in rows if row["model"] == "sapm" and row["off_sample"]]
    if strays:
        made[f"{name}_off_sample"] = off_sample(max(strays, key=lambda row: row["off_sample"]["error"]))
    return made


CAPTIONS = {
    "losses": "the actual loss of every seed (thin) and of the best one (bold), each model in its best variant.",
    "consistency": "best seed: the actual loss (solid), the network's true loss (dashed), and the bound on it (dotted).",
    "off_sample": "the largest error of SAPM found off the training points on [-1, 1]: all seeds, each size in its best variant.",
}


def lead(rows: Sequence[dict], quick: bool) -> list[str]:
    """What was run, where, and how long it took."""
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
        f"{len(times)} runs, {sum(times) / 60:.0f} minutes of training in all, on {name}" for name, times in machines.items()
    )
    return [scale, where + ".", *_bound(rows), VARIANTS, VERDICTS.replace("\n", " ")]


def _bound(rows: Sequence[dict]) -> list[str]:
    """In how many runs of SAPM the bound held in every record of every seed; nothing where it was not checked."""
    ratios = [row["largest_bound_ratio"] for row in rows if row["model"] == "sapm"]
    known = [ratio for ratio in ratios if ratio is not None]
    if not known:
        return []
    held = sum(ratio <= 1 + ROUNDING for ratio in known)
    words = f"SAPM's proven bound was checked at every record of every seed: it held in {held} of {len(known)} runs; the largest"
    words += f" ratio of the true loss to the bound is {max(known):.6g}"
    return [words + (f"; {len(ratios) - len(known)} more have no ratio." if len(known) < len(ratios) else ".")]


def write(out: Path, rows: Sequence[dict], quick: bool) -> list[Path]:
    """results.md, tables.tex, tables.json, figures/ and report.html."""
    from matplotlib import rc_context

    found, first = tables(rows, quick), lead(rows, quick)
    bare = [{k: v for k, v in row.items() if k not in ("curves", "off_sample")} for row in rows]
    shown, captions = {}, {}
    for name in dict.fromkeys(row["experiment"] for row in rows):
        for label, figure in figures(name, [row for row in rows if row["experiment"] == name]).items():
            (out / "figures").mkdir(parents=True, exist_ok=True)
            for kind in ("svg", "png"):
                with rc_context({"svg.hashsalt": label}):  # the same figure, the same file
                    figure.savefig(
                        out / "figures" / f"{label}.{kind}", dpi=130, metadata={"Date": None} if kind == "svg" else None
                    )
            captions[label] = f"{name}: {CAPTIONS[label.removeprefix(name + '_')]}"
            shown[label] = f"<figure>{image(figure)}<figcaption>{html.escape(captions[label])}</figcaption></figure>"
    written = {
        "results.md": markdown(found, captions, first),
        "tables.tex": latex(found),
        "tables.json": store.to_json({"quick": quick, "rows": bare, "tables": found}, indent=1),
        "report.html": _page(found, shown, first),
    }
    for name, text in written.items():
        store.write_whole(out / name, text.encode())
    return [out / name for name in written]


def _columns(head: Sequence[str], body: Sequence[Sequence[str]]) -> tuple[str, str]:
    """Head and body in HTML; a column of sentences stands in lines of its own, so that the others fit into the page."""
    long = {k for line in body for k, cell in enumerate(line) if len(cell) > SENTENCE}
    short, rows = [k for k in range(len(head)) if k not in long], ""
    for line in body:
        edge = ' style="border-bottom: 0"' * bool(long)
        rows += "<tr>" + "".join(f"<td{edge}>{html.escape(line[k])}</td>" for k in short) + "</tr>"
        for k in sorted(long):
            rows += f'<tr><td class="words" colspan="{len(short)}">{html.escape(head[k])}: {html.escape(line[k])}</td></tr>'
    return "".join(f'<th style="white-space:normal">{html.escape(head[k])}</th>' for k in short), rows


def _page(found: Sequence[dict], shown: dict[str, str], first: Sequence[str]) -> str:
    blocks = ""
    for t in found:
        blocks += "".join(shown[label] for label in pictures_of(t, shown))
        head, body = _columns(t["head"], t["body"])
        blocks += f"<h2>{html.escape(t['title'])}</h2>"
        blocks += f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        blocks += f'<p class="soft">{html.escape(t["note"])}</p>'
    words = "".join(f'<p class="soft">{html.escape(text)}</p>' for text in first)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">{POLICY}<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Reproduction</title><style>{STYLE} body {{ max-width: 76rem; }}</style></head><body>
<h1>The paper's experiments, ours beside the paper's</h1>{words}
{blocks}
</body></html>
"""


def read(out: Path) -> dict:
    return json.loads((out / "tables.json").read_text())
