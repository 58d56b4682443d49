"""Tables and figures of a reproduction, ours beside the paper's: Markdown, LaTeX, JSON, SVG, PNG and one HTML page."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sapm import store
from sapm.experiments import EXPERIMENTS, paper
from sapm.report import ACCENT, FAINT, INK, SECOND, STYLE, _positive, image
from sapm.reproduce import verdict

ALL_SEEDS = {"function_1d": ((10, 10), (6, 50)), "function_10d": ((6, 10), (8, 10), (10, 10))}


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
        printed = paper()["best_seed"][name]["{},{}".format(*row["size"])][row["model"].upper()]
        best = row["best"]
        cells = ["({},{})".format(*row["size"]), row["model"].upper(), row["variant"]]
        pairs = [("loss", "actual_loss"), ("mean_squared_loss",) * 2, *([] if pde else [("train_error",) * 2]), (error,) * 2]
        for ours, theirs in pairs:
            cells += [number(best[ours]), number(printed[theirs])]
        ratio = row["largest_bound_ratio"]
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
        line = [str(i + 1)]
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
        scale = f"{mine[0]['seeds']} seeds, {mine[0]['iterations']} iterations"
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
                found.append(
                    {"name": f"{name}_seeds_{size[0]}x{size[1]}", "title": title, "head": head, "body": body, "note": scale}
                )
    return found


def markdown(found: Sequence[dict]) -> str:
    parts = []
    for t in found:
        lines = ["| " + " | ".join(cells) + " |" for cells in (t["head"], ["---"] * len(t["head"]), *t["body"])]
        parts.append("\n".join([f"### {t['title']}", "", *lines, "", t["note"], ""]))
    return "\n".join(parts)


def latex(found: Sequence[dict]) -> str:
    escape = str.maketrans(
        {c: "\\" + c for c in "%_&#$"} | {"→": r"$\to$", "≥": r"$\ge$", "–": "--", "²": r"$^2$", "·": r"$\cdot$"}
    )
    parts = []
    for t in found:
        rows = [" & ".join(cell.translate(escape) for cell in cells) + r" \\" for cells in (t["head"], *t["body"])]
        columns, title = "l" * len(t["head"]), t["title"].translate(escape)
        lines = [
            "\\begin{table}",
            "\\centering\\small",
            f"\\begin{{tabular}}{{{columns}}}",
            "\\hline",
            rows[0],
            "\\hline",
            *rows[1:],
        ]
        parts.append("\n".join([*lines, "\\hline", "\\end{tabular}", f"\\caption{{{title}}}", "\\end{table}", ""]))
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


def off_sample(found: dict):
    """The largest error between the training points, with the target and the points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.4), layout="constrained", dpi=110)
    ax = figure.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    at, points = np.array(found["at"]), np.array(found["points"])
    ax.plot(at, np.sin(at**2), color=INK, lw=1.2, ls="--", label="sin(x²)")
    ax.plot(at, found["network"], color=ACCENT, lw=1.5, label=f"network, seed {found['seed']}")
    ax.plot(points, np.sin(points**2), "o", color=SECOND, ms=4, label="training points")
    ax.legend(frameon=False, fontsize=8)
    ax.set_xlabel("x")
    ax.set_title(f"largest error off the samples: {found['error']:.2e} at x = {found['x']:.4f}", fontsize=9, color=INK)
    return figure


def shown_rows(name: str, rows: Sequence[dict]) -> list[dict]:
    """The variant that stands for each model and size in the figures: LS at its best rate, PINNs from the forward start."""
    start, found = "forward" if EXPERIMENTS[name].kind == "pde" else "uniform", []
    for size in EXPERIMENTS[name].sizes:
        mine = [row for row in rows if tuple(row["size"]) == size]
        found += [row for row in mine if row["model"] != "ls" and row["variant"] == start]
        rates = [row for row in mine if row["model"] == "ls"]
        found += [min(rates, key=lambda row: row["best"]["loss"])] if rates else []
    return found


def figures(name: str, rows: Sequence[dict]) -> dict:
    """Every figure of an experiment."""
    rows = shown_rows(name, rows)
    sizes = [size for size in EXPERIMENTS[name].sizes if any(tuple(row["size"]) == size for row in rows)]
    models = [model for model in ("ls", "pm", "sapm") if any(row["model"] == model for row in rows)]
    made = {f"{name}_losses": losses(rows, sizes, models)}
    if pair := [model for model in models if model != "ls"]:
        made[f"{name}_consistency"] = consistency(rows, sizes, pair)
    strays = [row["off_sample"] for row in rows if row["model"] == "sapm" and row["off_sample"]]
    if strays:
        made[f"{name}_off_sample"] = off_sample(strays[0])
    return made


CAPTIONS = {
    "losses": "The actual loss of every seed (thin) and of the best one (bold).",
    "consistency": "Best seed: the actual loss (solid), the network's true loss (dashed), and the bound on it (dotted).",
    "off_sample": "The seed and the place of the largest error between the training points.",
}


def write(out: Path, rows: Sequence[dict], quick: bool) -> list[Path]:
    """tables.md, tables.tex, tables.json, figures/ and report.html."""
    found, env = tables(rows, quick), rows[0]["env"]
    written = {"tables.md": markdown(found), "tables.tex": latex(found)}
    bare = [{k: v for k, v in row.items() if k not in ("curves", "off_sample")} for row in rows]
    written["tables.json"] = store.to_json({"quick": quick, "rows": bare, "tables": found}, indent=1)
    shown = ""
    for name in dict.fromkeys(row["experiment"] for row in rows):
        for label, figure in figures(name, [row for row in rows if row["experiment"] == name]).items():
            (out / "figures").mkdir(parents=True, exist_ok=True)
            for kind in ("svg", "png"):
                figure.savefig(out / "figures" / f"{label}.{kind}", dpi=130)
            caption = CAPTIONS[label.removeprefix(name + "_")]
            shown += f"<figure>{image(figure)}<figcaption>{html.escape(name)}: {caption}</figcaption></figure>"
    written["report.html"] = _page(found, shown, quick, env)
    for name, text in written.items():
        store.write_whole(out / name, text.encode())
    return [out / name for name in written]


def _page(found: Sequence[dict], shown: str, quick: bool, env: dict) -> str:
    blocks = ""
    for t in found:
        head = "".join(f"<th>{html.escape(c)}</th>" for c in t["head"])
        cell = lambda c: f'<td class="words">{html.escape(c)}</td>' if len(c) > 24 else f"<td>{html.escape(c)}</td>"  # noqa: E731
        body = "".join("<tr>" + "".join(cell(c) for c in line) + "</tr>" for line in t["body"])
        blocks += f"<h2>{html.escape(t['title'])}</h2>"
        blocks += f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        blocks += f'<p class="soft">{html.escape(t["note"])}</p>'
    machine = ", ".join([*env["devices"], f"{env['cores']} cores", *(f"{k} {v}" for k, v in env["packages"].items())])
    lead = (
        "Quick run: fewer seeds, iterations and points than the paper."
        if quick
        else "Full scale: the paper's seeds and iterations."
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Reproduction</title><style>{STYLE}</style></head><body>
<h1>The paper's experiments, ours beside the paper's</h1><p class="soft">{lead} {html.escape(machine)}.</p>
<div class="figures">{shown}</div>
{blocks}
</body></html>
"""


def read(out: Path) -> dict:
    return json.loads((out / "tables.json").read_text())
