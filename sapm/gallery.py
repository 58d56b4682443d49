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


def losses(results: dict, sizes, variants: dict[str, str]):
    """All seeds thin, the best bold; one row per model, one column per size, same limits throughout."""
    figure, axes = _grid(len(variants), len(sizes))
    for line, (model, variant) in zip(axes, variants.items(), strict=True):
        for ax, size in zip(line, sizes, strict=True):
            result = results.get((size, model, variant))
            if result is None:
                ax.set_axis_off()
                continue
            iteration, loss = result.history["iteration"], _positive(result.history["loss"])
            for i in range(len(loss)):
                best = i == result.run.best
                ax.plot(iteration[i], loss[i], color=ACCENT if best else FAINT, lw=2.0 if best else 0.7, zorder=3 if best else 1)
            ax.set_title(f"{model.upper()} ({size[0]},{size[1]})", fontsize=9, color=INK)
        line[0].set_ylabel("actual loss", fontsize=8)
    for ax in axes[-1]:
        ax.set_xlabel("iteration", fontsize=8)
    return figure


def consistency(results: dict, sizes, variants: dict[str, str]):
    """Actual (solid) and true (dashed) loss of the best seed."""
    figure, axes = _grid(len(variants), len(sizes))
    for line, (model, variant) in zip(axes, variants.items(), strict=True):
        for ax, size in zip(line, sizes, strict=True):
            result = results.get((size, model, variant))
            if result is None:
                ax.set_axis_off()
                continue
            i, h = result.run.best, result.history
            ax.plot(h["iteration"][i], _positive(h["loss"][i]), color=INK, lw=1.5, label="actual")
            ax.plot(h["iteration"][i], _positive(h["mean_squared_loss"][i]), color=ACCENT, lw=1.5, ls="--", label="true")
            if (bound := result.run.certificate(i).bound) is not None:
                ax.plot(h["iteration"][i], bound * _positive(h["loss"][i]), color=SECOND, lw=0.8, ls=":", label="bound")
            ax.set_title(f"{model.upper()} ({size[0]},{size[1]})", fontsize=9, color=INK)
        line[0].set_ylabel("loss", fontsize=8)
        line[0].legend(frameon=False, fontsize=8)
    for ax in axes[-1]:
        ax.set_xlabel("iteration", fontsize=8)
    return figure


def off_sample(result):
    """Where, over all seeds, the network strays most from sin(x²) between the training points: (figure, words)."""
    from matplotlib.figure import Figure

    fine = np.linspace(-1, 1, 20001)
    exact = np.sin(fine**2)
    errors = np.array([np.abs(u(x=fine) - exact) for u in result.seeds])
    i, k = np.unravel_index(errors.argmax(), errors.shape)
    x = np.asarray(result.samples.terms[0].x.value)[:, 0]
    near = np.abs(fine - fine[k]) < 0.15
    figure = Figure(figsize=(5.2, 3.4), layout="constrained", dpi=110)
    ax = figure.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    ax.plot(fine[near], exact[near], color=INK, lw=1.2, ls="--", label="sin(x²)")
    ax.plot(fine[near], result.seeds[i](x=fine[near]), color=ACCENT, lw=1.5, label=f"network, seed {result.run.seeds[i]}")
    inside = np.abs(x - fine[k]) < 0.15
    ax.plot(x[inside], np.sin(x[inside] ** 2), "o", color=SECOND, ms=4, label="training points")
    ax.legend(frameon=False, fontsize=8)
    ax.set_xlabel("x")
    words = f"largest error off the samples: {errors[i, k]:.2e} at x = {fine[k]:.4f}, seed {result.run.seeds[i]}"
    ax.set_title(words, fontsize=9, color=INK)
    return figure, words


def figures(name: str, results: dict) -> dict:
    """Every figure of an experiment; results are keyed by (size, model, variant)."""
    sizes = [size for size in EXPERIMENTS[name].sizes if any(key[0] == size for key in results)]
    pde = EXPERIMENTS[name].kind == "pde"
    variants = {}
    for model in ("ls", "pm", "sapm"):
        found = [key for key in results if key[1] == model]
        if model == "ls" and found:
            final = {key: float(np.min(results[key].history["loss"][:, -1])) for key in found}
            variants["ls"] = min(found, key=lambda key: final[key])[2]
        elif found:
            variants[model] = "forward" if pde else "uniform"
    made = {f"{name}_losses": losses(results, sizes, variants)}
    pair = {model: variant for model, variant in variants.items() if model != "ls"}
    if pair:
        made[f"{name}_consistency"] = consistency(results, sizes, pair)
    if name == "function_1d" and ((6, 10), "sapm", "uniform") in results:
        made[f"{name}_off_sample"] = off_sample(results[(6, 10), "sapm", "uniform"])[0]
    return made


CAPTIONS = {
    "losses": "The actual loss of every seed (thin) and of the best one (bold).",
    "consistency": "Best seed: the actual loss (solid), the network's true loss (dashed), and the bound on it (dotted).",
    "off_sample": "The seed and the place of the largest error between the training points.",
}


def write(out: Path, rows: Sequence[dict], results: dict, quick: bool, env: dict) -> list[Path]:
    """tables.md, tables.tex, tables.json, figures/ and report.html; results are keyed by (experiment, size, model, variant)."""
    found = tables(rows, quick)
    written = {"tables.md": markdown(found), "tables.tex": latex(found)}
    written["tables.json"] = store.to_json({"quick": quick, "env": env, "rows": list(rows), "tables": found}, indent=1)
    shown = ""
    for name in dict.fromkeys(row["experiment"] for row in rows):
        mine = {key[1:]: result for key, result in results.items() if key[0] == name}
        for label, figure in figures(name, mine).items():
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
