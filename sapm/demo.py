"""The demonstration: the three models on the same transport equation, and a page that explains what is seen."""

from __future__ import annotations

import html

import numpy as np
from rich.table import Table

from sapm.experiments import EXPERIMENTS
from sapm.report import ACCENT, INK, POLICY, SECOND, STYLE, _figure, _positive, image
from sapm.result import Result
from sapm.solver import solve

DEPTH, WIDTH, SEEDS, ITERATIONS, POINTS, BOUNDARY = 6, 10, 4, 250, 400, 200
DEMO = (
    f"Transport equation u_t - (t + x + 3/2) u_x = f, solution e^t sin x. Network: depth {DEPTH}, width {WIDTH}, sin; "
    f"{SEEDS} seeds, {ITERATIONS} iterations each.\n"
)
METHODS = {
    "ls": ("LS", "gradient descent on the network itself", {"method": "gd", "options": {"learning_rate": 0.01, "halving": 1e3}}),
    "pm": ("PM", "separated layers, fixed penalties", {"method": "alternating"}),
    "sapm": ("SAPM", "separated layers, self-adaptive penalties", {"method": "alternating"}),
}


def run_demo(progress: bool) -> dict[str, Result]:
    """The result of every model, up to the one that was interrupted."""
    problem, results = EXPERIMENTS["transport_1d"].problem(), {}
    for model, (_, _, settings) in METHODS.items():
        results[model] = solve(
            problem,
            depth=DEPTH,
            width=WIDTH,
            points=POINTS,
            boundary_points=BOUNDARY,
            test_points=1000,
            mu=1.0,
            model=model,
            seeds=SEEDS,
            max_iter=ITERATIONS,
            progress=progress,
            **settings,
        )
        if results[model].run.cut:
            break
    return results


def rows_of(results: dict[str, Result]) -> list[dict]:
    """The best seed of every model."""
    found = []
    for model, result in results.items():
        row, ratio = result.table[result.run.best], result.history["bound_ratio"]
        share = None if np.isnan(ratio).all() else float(np.nanmax(ratio))
        keys = ("loss", "mean_squared_loss", "solution_error")
        found.append(
            {"model": model} | {k: row[k] for k in keys} | {"largest_bound_ratio": share, "holds": result.certificate.holds}
        )
    return found


def _cells(row: dict) -> list[str]:
    ratio = row["mean_squared_loss"] / row["loss"]
    share = row["largest_bound_ratio"]
    bound = (
        "same loss"
        if row["model"] == "ls"
        else "no theorem"
        if share is None
        else f"holds: the true loss is at most {share:.0%} of the bound"
    )
    name, what, _ = METHODS[row["model"]]
    return [
        name,
        what,
        f"{row['loss']:.1e}",
        f"{row['mean_squared_loss']:.1e}",
        f"{ratio:.2g}",
        bound,
        f"{row['solution_error']:.1%}",
    ]


HEAD = ["model", "how it trains", "loss it minimised", "true loss", "true/minimised", "bound on the true loss", "error of u"]


def table_of(results: dict[str, Result]) -> Table:
    table = Table(*HEAD, caption="best of the seeds by the loss it minimised", caption_justify="left")
    for row in rows_of(results):
        table.add_row(*_cells(row), style="bold" if row["model"] == "sapm" else None)
    return table


def _curves(results: dict[str, Result]):
    figure, axes = _figure(3, 3.6, 3.2)
    low = min(float(np.nanmin(_positive(r.history["loss"]))) for r in results.values())
    for ax, (model, result) in zip(axes, results.items(), strict=True):
        i, h = result.run.best, result.history
        if model == "sapm":
            bound = result.certificate.bound
            ax.fill_between(
                h["iteration"][i],
                _positive(h["loss"][i]),
                bound * _positive(h["loss"][i]),
                color=SECOND,
                alpha=0.1,
                lw=0,
                label="allowed by the theorem",
            )
        ax.plot(h["iteration"][i], _positive(h["mean_squared_loss"][i]), color=ACCENT, lw=1.8, label="true loss")
        ax.plot(
            h["iteration"][i],
            _positive(h["loss"][i]),
            color=INK,
            lw=1.8,
            ls="--" if model == "ls" else "-",
            label="loss it minimised",
        )
        ax.set_yscale("log")
        ax.set_ylim(low / 3, 1e3)
        ax.set_title(METHODS[model][0], fontsize=11, color=INK)
        ax.set_xlabel("iteration")
        ax.legend(frameon=False, fontsize=8, loc="upper right")
    return figure


def _slices(results: dict[str, Result]):
    """u at t = 1 against the exact solution."""
    figure, axes = _figure(3, 3.6, 3.0)
    x = np.linspace(-1, 1, 200)
    for ax, (model, result) in zip(axes, results.items(), strict=True):
        ax.plot(x, np.e * np.sin(x), color=INK, lw=1.2, ls="--", label="exact")
        ax.plot(x, result.best(t=1.0, x=x), color=ACCENT, lw=1.8, label="network")
        ax.set_title(f"{METHODS[model][0]}: u at t = 1", fontsize=11, color=INK)
        ax.set_xlabel("x")
        ax.set_ylim(-4, 4)
        ax.legend(frameon=False, fontsize=8)
    return figure


def page_of(results: dict[str, Result]) -> str:
    body = ""
    for row in rows_of(results):
        wraps = lambda text: "normal" if " " in text else "nowrap"  # noqa: E731
        cells = "".join(f'<td style="text-align:left;white-space:{wraps(c)}">{html.escape(c)}</td>' for c in _cells(row))
        body += f"<tr{' class=best' if row['model'] == 'sapm' else ''}>{cells}</tr>"
    head = "".join(f'<th style="text-align:left;white-space:normal">{html.escape(c)}</th>' for c in HEAD)
    rows = {row["model"]: row for row in rows_of(results)}
    pm, sapm = rows["pm"], rows["sapm"]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">{POLICY}<meta name="viewport" content="width=device-width, initial-scale=1">
<title>sapm demo</title><style>{STYLE} .figures {{ grid-template-columns: 1fr; margin-top: 1.2rem; }}</style></head><body>
<h1>Can you trust a small loss?</h1>
<p>A deep network is trained to solve a transport equation whose solution is known. Plain training (LS) pushes an error back
through all layers at once, which is slow when they are many. <b>Auxiliary variables</b> cut the network into single layers: every
layer gets a target of its own, and each small problem is solved almost exactly. What ties the layers together again is a penalty
on the gaps between them.</p>
<p>With <b>fixed penalties (PM)</b> the optimiser cheats: it makes its loss small ({pm["loss"]:.1e}) with gaps that the
layers above blow up, so the network's true loss is {pm["mean_squared_loss"]:.1e} and the answer is wrong
by {pm["solution_error"]:.0%}. With <b>self-adaptive penalties (SAPM)</b> each gap is weighted by how much the layers above can
amplify it. Then a theorem says: the true loss is at most a known constant times the loss being minimised. Both fall together,
the true one to {sapm["mean_squared_loss"]:.1e}, and the error is {sapm["solution_error"]:.1%}.</p>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
<div class="figures"><figure>{image(_curves(results))}<figcaption>The loss that is minimised and the true loss, best seed of each
model. The shaded band is where the theorem allows SAPM's true loss to be.</figcaption></figure>
<figure>{image(_slices(results))}<figcaption>The solution at the final time.</figcaption></figure></div>
<p class="certificate">{html.escape(str(results["sapm"].certificate))}
It certifies the training loss, not the error between the points.</p>
<h2>Go on</h2>
<p>State your own problem in Python (docs/interface.md), or run <code>sapm reproduce transport_1d --quick</code> for the paper's
table. This page: depth {DEPTH}, width {WIDTH}, {SEEDS} seeds, {ITERATIONS} iterations, {POINTS} + {BOUNDARY} points.</p>
</body></html>
"""
