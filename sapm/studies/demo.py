"""The demonstration: LS, PM and SAPM on one transport equation, and a page that explains them."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from rich.table import Table

from sapm.catalogue import CATALOGUE
from sapm.driver.solve import solve
from sapm.results.page import (
    ACCENT,
    BOUND_COLOUR,
    CONTENT_POLICY_HTML,
    INK,
    STYLE,
    figure_with_axes,
    for_log_axis,
    image,
)
from sapm.results.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEMO_DEPTH = 6
DEMO_WIDTH = 10
DEMO_SEEDS = 4
DEMO_ITERATIONS = 250
DEMO_POINTS = 400
DEMO_BOUNDARY_POINTS = 200
INTRODUCTION = (
    "Transport equation u_t - (t + x + 3/2) u_x = f, solution e^t sin x. "
    f"Network: depth {DEMO_DEPTH}, width {DEMO_WIDTH}, sin; {DEMO_SEEDS} seeds, {DEMO_ITERATIONS} "
    "iterations each.\n"
)
# model: (its name, how it trains, settings of `solve`)
METHODS = {
    "ls": (
        "LS",
        "gradient descent on the network itself",
        {"method": "gd", "options": {"learning_rate": 0.01, "halving": 1e3}},
    ),
    "pm": ("PM", "separated layers, fixed penalties", {"method": "alternating"}),
    "sapm": ("SAPM", "separated layers, self-adaptive penalties", {"method": "alternating"}),
}


class DemoRow(TypedDict):
    """The best seed of a model. `largest_bound_ratio`: true loss / bound, None without a bound."""

    model: str
    loss: float
    mean_squared_loss: float
    solution_error: float
    largest_bound_ratio: float | None
    holds: bool | None


def run_demo(progress: bool) -> dict[str, Result]:
    """Train every model on `transport_1d` with the same samples, network and seeds.

    Returns the results by model. An interrupt ends the series: the last result is then the one that
    was interrupted, and `run.cut` says so.

    Parameters
    ----------
    progress : whether to show the progress of the training
    """
    problem = CATALOGUE["transport_1d"].problem()
    results = {}
    for model, (_, _, settings) in METHODS.items():
        results[model] = solve(
            problem,
            depth=DEMO_DEPTH,
            width=DEMO_WIDTH,
            points=DEMO_POINTS,
            boundary_points=DEMO_BOUNDARY_POINTS,
            test_points=1000,
            mu=1.0,
            model=model,
            seeds=DEMO_SEEDS,
            max_iter=DEMO_ITERATIONS,
            progress=progress,
            **settings,
        )
        if results[model].run.cut:
            break
    return results


def rows_of(results: dict[str, Result]) -> list[DemoRow]:
    """The best seed of every model; `sapm demo --json` prints these rows.

    The best seed is the one with the smallest final loss that was minimised. The bound ratio is the
    largest of all seeds and records, where the model has a bound.
    """
    rows: list[DemoRow] = []
    for model, result in results.items():
        best = result.table[result.run.best]
        ratios = result.history["bound_ratio"]
        rows.append(
            DemoRow(
                model=model,
                loss=best["loss"],
                mean_squared_loss=best["mean_squared_loss"],
                solution_error=best["solution_error"],
                largest_bound_ratio=None if np.isnan(ratios).all() else float(np.nanmax(ratios)),
                holds=result.certificate.holds,
            )
        )
    return rows


def _cells(row: DemoRow) -> list[str]:
    """The cells of a row, in the order of `TABLE_HEADINGS`."""
    ratio = row["mean_squared_loss"] / row["loss"]
    share = row["largest_bound_ratio"]
    bound = (
        "same loss"
        if row["model"] == "ls"
        else "no theorem"
        if share is None
        else f"holds: the true loss is at most {share:.0%} of the bound"
    )
    name, training, _ = METHODS[row["model"]]
    return [
        name,
        training,
        f"{row['loss']:.1e}",
        f"{row['mean_squared_loss']:.1e}",
        f"{ratio:.2g}",
        bound,
        f"{row['solution_error']:.1%}",
    ]


TABLE_HEADINGS = [
    "model",
    "how it trains",
    "minimised loss",
    "true loss",
    "true/minimised",
    "bound on the true loss",
    "error of u",
]


def table_of(results: dict[str, Result]) -> Table:
    """The rows as a table for the terminal."""
    table = Table(
        *TABLE_HEADINGS,
        caption="the seed with the smallest minimised loss",
        caption_justify="left",
    )
    for row in rows_of(results):
        table.add_row(*_cells(row), style="bold" if row["model"] == "sapm" else None)
    return table


def _curves(results: dict[str, Result]) -> Figure:
    """Both losses against iterations, a panel per model; for SAPM with the band of its bound."""
    figure, axes = figure_with_axes(3, 3.6, 3.2)
    low = min(float(np.nanmin(for_log_axis(r.history["loss"]))) for r in results.values())
    for ax, (model, result) in zip(axes, results.items(), strict=True):
        best = result.run.best
        history = result.history
        iterations = history["iteration"][best]
        loss = for_log_axis(history["loss"][best])
        if model == "sapm":
            bound = result.certificate.bound
            ax.fill_between(
                iterations,
                loss,
                bound * loss,
                color=BOUND_COLOUR,
                alpha=0.1,
                lw=0,
                label="allowed by the theorem",
            )
        ax.plot(
            iterations,
            for_log_axis(history["mean_squared_loss"][best]),
            color=ACCENT,
            lw=1.8,
            label="true loss",
        )
        ax.plot(
            iterations,
            loss,
            color=INK,
            lw=1.8,
            ls="--" if model == "ls" else "-",
            label="minimised loss",
        )
        ax.set_yscale("log")
        ax.set_ylim(low / 3, 1e3)
        ax.set_title(METHODS[model][0], fontsize=11, color=INK)
        ax.set_xlabel("iteration")
        ax.legend(frameon=False, fontsize=8, loc="upper right")
    return figure


def _slices(results: dict[str, Result]) -> Figure:
    """u at t = 1 and the exact solution, a panel per model."""
    figure, axes = figure_with_axes(3, 3.6, 3.0)
    x = np.linspace(-1, 1, 200)
    for ax, (model, result) in zip(axes, results.items(), strict=True):
        ax.plot(x, np.e * np.sin(x), color=INK, lw=1.2, ls="--", label="exact")
        ax.plot(x, result.best(t=1.0, x=x), color=ACCENT, lw=1.8, label="network")
        ax.set_title(f"{METHODS[model][0]}: u at t = 1", fontsize=11, color=INK)
        ax.set_xlabel("x")
        ax.set_ylim(-4, 4)
        ax.legend(frameon=False, fontsize=8)
    return figure


def _cell(text: str) -> str:
    """A cell of the page's table; only sentences may wrap."""
    wrap = "normal" if " " in text else "nowrap"
    return f'<td style="text-align:left;white-space:{wrap}">{html.escape(text)}</td>'


def page_of(results: dict[str, Result]) -> str:
    """The page as one HTML file: an explanation of auxiliary variables, the table, the figures.

    Parameters
    ----------
    results : the results of all models, from `run_demo`
    """
    body = ""
    for row in rows_of(results):
        cells = "".join(map(_cell, _cells(row)))
        body += f"<tr{' class=best' if row['model'] == 'sapm' else ''}>{cells}</tr>"
    head = "".join(
        f'<th style="text-align:left;white-space:normal">{html.escape(heading)}</th>'
        for heading in TABLE_HEADINGS
    )
    rows = {row["model"]: row for row in rows_of(results)}
    pm = rows["pm"]
    sapm = rows["sapm"]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">{CONTENT_POLICY_HTML}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>sapm demo</title>
<style>{STYLE} .figures {{ grid-template-columns: 1fr; margin-top: 1.2rem; }}</style></head><body>
<h1>Can you trust a small loss?</h1>
<p>A deep network is trained to solve a transport equation whose solution is known. Plain training
(LS) sends the gradient back through all layers at once, which is slow when there are many.
<b>Auxiliary variables</b> cut the network into single layers: every layer gets a target of its own,
and each small problem is solved almost exactly. A penalty on the gaps between the layers ties them
together again.</p>
<p>With <b>fixed penalties (PM)</b> the training exploits the penalty: it makes its loss small
({pm["loss"]:.1e}) with gaps that the layers above amplify, so that the network's true loss is
{pm["mean_squared_loss"]:.1e} and the solution is wrong by {pm["solution_error"]:.0%}.
With <b>self-adaptive penalties (SAPM)</b> each gap is weighted by how much the layers above can
amplify it. A theorem then bounds the true loss by a known constant times the loss that is
minimised. Both fall together, the true loss to {sapm["mean_squared_loss"]:.1e}, and the error of
the solution is {sapm["solution_error"]:.1%}.</p>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
<div class="figures"><figure>{image(_curves(results))}
<figcaption>The loss that is minimised and the true loss, best seed of each model. The shaded band
is where the theorem allows SAPM's true loss to be.</figcaption></figure>
<figure>{image(_slices(results))}
<figcaption>The solution at the final time.</figcaption></figure></div>
<p class="certificate">{html.escape(str(results["sapm"].certificate))}
It certifies the training loss, not the error between the points.</p>
<h2>Next steps</h2>
<p>State your own problem in Python (docs/interface.md), or run
<code>sapm reproduce transport_1d --quick</code> for the paper's table.
Settings of this page: depth {DEMO_DEPTH}, width {DEMO_WIDTH}, {DEMO_SEEDS} seeds,
{DEMO_ITERATIONS} iterations, {DEMO_POINTS} + {DEMO_BOUNDARY_POINTS} points.</p>
</body></html>
"""
