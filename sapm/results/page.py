"""Figures of a result, and one HTML page with all of them."""

from __future__ import annotations

import base64
import html
import io
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sapm.errors import brief, nearest, printable, shown
from sapm.problem.domain import domain_from
from sapm.problem.functions import evaluate
from sapm.results.table import (
    HEADINGS,
    RANKED_BY_TEST_POINTS,
    heading,
    method_choice,
    parameters_text,
    shown_seeds,
)
from sapm.training.run import Status
from sapm.training.seeds import SEEDS_FOR_A_RATE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sapm.results.result import Result
    from sapm.results.solution import Solution

KINDS = ("loss", "bound", "solution", "error")
INK = "#1f2a37"
ACCENT = "#c2410c"
BOUND_COLOUR = "#1d4ed8"
FAINT = "#9aa5b1"
POINTS_PER_CURVE = 400
POINTS_PER_MAP_SIDE = 121
MOST_CURVES = 50  # more seeds are drawn as bands
LONGEST_LABEL_CHARACTERS = 60
LOG_LIMITS = (1e-200, 1e200)  # ticks of a logarithmic axis overflow near the largest number

Function = Callable[[np.ndarray], np.ndarray]  # (n, d) points to (n, m) values


def plot(result: Result, kind: str, seed: int | None) -> Figure:
    """A figure of a result: "loss", "bound", "solution" or "error" (`Result.plot`).

    Parameters
    ----------
    result : the result.
    kind : the kind of figure.
    seed : the index of the seed; None is the best one.
    """
    if kind not in KINDS:
        raise ValueError(
            f"plot: got {brief(kind)}, expected one of {', '.join(KINDS)}." + nearest(kind, KINDS)
        )
    i = result.run.index(seed)
    if kind == "loss":
        return _loss(result)
    if kind == "bound":
        return _bound(result, i)
    names = result.samples.names
    if len(names) > 3:
        raise ValueError(
            "figures of u need one, two or three coordinates; this problem has "
            f"{len(names)}: {', '.join(names)}."
        )
    return _solution(result, i) if kind == "solution" else _error(result, i)


def label_of(name: str) -> str:
    """A name for a figure, cut short, without dollars (which would begin a formula)."""
    return shown(name, LONGEST_LABEL_CHARACTERS).replace("$", r"\$")


def figure_with_axes(
    columns: int = 1, width: float = 6.4, height: float = 4.0
) -> tuple[Figure, Sequence[Axes]]:
    """A figure of so many panels in a row, each of this width and height in inches.

    Parameters
    ----------
    columns : the number of panels.
    width, height : of each panel, in inches.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height), layout="constrained", dpi=110)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(colors=INK, labelsize=9)
    return figure, axes


def for_log_axis(x: np.ndarray) -> np.ndarray:
    """x for a logarithmic axis: NaN where it is not positive and finite."""
    return np.where(np.isfinite(x) & (x > 0), np.clip(x, *LOG_LIMITS), np.nan)


def _log_axes(ax: Axes, history: dict[str, np.ndarray]) -> np.ndarray:
    """Set logarithmic axes, and return the iterations (seeds, records)."""
    iteration = history["iteration"]
    ax.set_xlabel("iteration")
    ax.set_yscale("log")
    if iteration.max() > 200:
        ax.set_xscale("symlog", linthresh=10)
        ax.set_xlim(0, iteration.max())
    return iteration


def _loss(result: Result) -> Figure:
    """The minimised loss of every seed, of many as bands; the best one stands out."""
    figure, (ax,) = figure_with_axes()
    iteration = _log_axes(ax, result.history)
    loss = for_log_axis(result.history["loss"])
    best = result.run.best
    many = len(loss) > MOST_CURVES
    if many:
        _bands(ax, iteration, loss)
    for i in range(len(loss)):
        if i != best and not many:
            ax.plot(iteration[i], loss[i], color=FAINT, lw=0.9)
    ax.plot(
        iteration[best],
        loss[best],
        color=ACCENT,
        lw=1.8,
        label=f"best: seed {result.run.seeds[best]}",
    )
    if 1 < len(loss) <= MOST_CURVES:
        ax.plot(
            [], [], color=FAINT, lw=0.9, label=f"{len(loss) - 1} other seed{'s' * (len(loss) > 2)}"
        )
    ax.set_ylabel("minimised loss")
    ax.set_title(label_of(heading(result.plan)), fontsize=11, color=INK)
    ax.legend(frameon=False, fontsize=9)
    return figure


def _bands(ax: Axes, iteration: np.ndarray, loss: np.ndarray) -> None:
    """Draw, at every record, the range of the running seeds, the middle 80 % and 50 %, and the
    median.
    """
    at = iteration.max(0)
    running = np.where(iteration == at, loss, np.nan)
    seen = ~np.all(np.isnan(running), axis=0)
    ends = np.nanquantile(running[:, seen], [0, 0.1, 0.25, 0.5, 0.75, 0.9, 1], axis=0)
    shares = ("all running seeds", "80 % of them", "50 % of them")
    for k, (share, alpha) in enumerate(zip(shares, (0.2, 0.35, 0.6), strict=True)):
        ax.fill_between(
            at[seen], ends[k], ends[-1 - k], color=FAINT, alpha=alpha, lw=0, label=share
        )
    ax.plot(at[seen], ends[3], color=INK, lw=1.0, label="their median")


def _bound(result: Result, i: int) -> Figure:
    """Minimised and true loss of a seed, and the bound that the theorem puts on the true one."""
    figure, (ax,) = figure_with_axes()
    h = result.history
    bound = result.run.certificate(i).bound
    iteration = _log_axes(ax, h)[i]
    loss = for_log_axis(h["loss"][i])
    true = for_log_axis(h["mean_squared_loss"][i])
    along = not np.all(np.isnan(h["bound_ratio"][i]))  # else it is of the last point only
    one = result.plan.true_loss_from_start and not result.plan.method.l2
    if bound is not None and along and not one:
        ax.fill_between(iteration, loss, bound * loss, color=BOUND_COLOUR, alpha=0.08, lw=0)
        ax.plot(
            iteration,
            bound * loss,
            color=BOUND_COLOUR,
            lw=0.9,
            ls="--",
            label=f"bound: {bound:.3g} × minimised loss",
        )
    ax.plot(iteration, true, color=ACCENT, lw=1.6, label="true loss")
    ax.plot(
        iteration,
        loss,
        color=INK,
        lw=1.6,
        ls=":" if one else "-",
        label="minimised loss" + ", which is the same" * one,
    )
    ax.set_ylabel("loss")
    ax.set_title(
        f"seed {result.run.seeds[i]}: the minimised loss and the true loss", fontsize=11, color=INK
    )
    ax.legend(frameon=False, fontsize=9)
    return figure


# ---------------------------------------------------------------- pictures of u


def _box(result: Result) -> list[tuple[float, float]]:
    """The range of every coordinate."""
    samples = result.samples
    if samples.domain is not None and samples.domain["kind"] == "box":
        return [tuple(ends) for ends in samples.domain["bounds"].values()]
    if samples.frame is not None:
        center, spread = samples.frame
        return list(zip(center - spread, center + spread, strict=True))
    x = np.asarray(samples.terms[0].x.value)[:, : len(samples.names)]
    return list(zip(x.min(0), x.max(0), strict=True))


def _exact(result: Result) -> Function | None:
    """The exact solution as a function of points, if the problem has one."""
    function = getattr(result.problem, "exact", None) or getattr(result.problem, "f", None)
    if function is None:
        return None

    def exact(x: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            values = evaluate(
                function, "exact", result.samples.names, x, several=True, finite=False
            )
        # the figure may reach where the exact solution does not
        return np.where(np.isfinite(values), values, np.nan)

    return exact


def _mask(result: Result, x: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The values, NaN outside of the domain."""
    if result.samples.domain is None:
        return values
    outside = domain_from(result.samples.domain).gap(x) < -1e-9
    return np.where(outside[:, None], np.nan, values)


def _solution(result: Result, i: int) -> Figure:
    """The network of a seed, with the exact solution and the training data of a curve."""
    u = result.seeds[i]
    exact = _exact(result)
    if len(result.samples.names) > 1:
        return _maps(result, u, lambda x: u(x).reshape(len(x), -1), "u", "viridis")
    figure, (ax,) = figure_with_axes()
    x = np.linspace(*_box(result)[0], POINTS_PER_CURVE)[:, None]
    if exact is not None:
        ax.plot(x[:, 0], _mask(result, x, exact(x)), color=INK, lw=1.2, ls="--", label="exact")
    term = result.samples.terms[0]
    if not term.is_pde:
        n = int(np.sum(np.broadcast_to(np.asarray(term.weight), len(term.y)) > 0))
        ax.plot(
            np.asarray(term.x.value)[:n, :1],
            np.asarray(term.y)[:n],
            ".",
            color=FAINT,
            ms=5,
            label="training points",
        )
    values = _mask(result, x, u(x).reshape(len(x), -1))
    for k in range(values.shape[1]):
        style: dict[str, Any] = (
            {"label": label_of(u.fields[k])} if u.fields else {"color": ACCENT, "label": "network"}
        )
        ax.plot(x[:, 0], values[:, k], lw=1.6, **style)
    handles = dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
    ax.legend(handles.values(), handles.keys(), frameon=False, fontsize=9)
    ax.set_xlabel(label_of(u.names[0]))
    ax.set_ylabel("u")
    ax.set_title(f"seed {u.seed}", fontsize=11, color=INK)
    return figure


def _error(result: Result, i: int) -> Figure:
    """The network minus the exact solution: everywhere if there is a function for it, else at the
    test points.
    """
    u = result.seeds[i]
    exact = _exact(result)
    test = result.samples.test
    if exact is not None and len(result.samples.names) > 1:
        return _maps(
            result, u, lambda x: u(x).reshape(len(x), -1) - exact(x), "u - exact", "RdBu_r"
        )
    if exact is None and "y" not in test:
        raise ValueError(
            "plot('error') needs the exact solution: give exact= with the problem, or test data."
        )
    figure, (ax,) = figure_with_axes()
    x = np.linspace(*_box(result)[0], POINTS_PER_CURVE)[:, None] if exact is not None else test["x"]
    error = u(x).reshape(len(x), -1) - (
        exact(x) if exact is not None else test["y"].reshape(len(x), -1)
    )
    if len(result.samples.names) == 1:
        order = np.argsort(x[:, 0])
        for k in range(error.shape[1]):
            style: dict[str, Any] = (
                {"label": label_of(u.fields[k])} if u.fields else {"color": ACCENT}
            )
            ax.plot(x[order, 0], _mask(result, x, error)[order, k], lw=1.2, **style)
        if u.fields:
            ax.legend(frameon=False, fontsize=9)
        ax.axhline(0, color=FAINT, lw=0.8)
        ax.set_ylabel("u - exact")
    else:
        limit = float(np.nanmax(np.abs(error))) or 1.0
        drawn = ax.scatter(
            x[:, 0], x[:, 1], c=error[:, 0], s=9, cmap="RdBu_r", vmin=-limit, vmax=limit
        )
        figure.colorbar(drawn, ax=ax, label="u - exact at test points")
        ax.set_ylabel(label_of(u.names[1]))
    ax.set_xlabel(label_of(u.names[0]))
    ax.set_title(f"seed {u.seed}: error", fontsize=11, color=INK)
    return figure


def _maps(result: Result, u: Solution, value: Function, label: str, colour_map: str) -> Figure:
    """Maps over the last two coordinates; with three coordinates, one at the lower end, the middle
    and the upper end of the first. The functions of a system in two coordinates have a map each.
    """
    box = _box(result)
    names = u.names
    side = POINTS_PER_MAP_SIDE
    cuts = np.linspace(*box[0], 3) if len(names) == 3 else [None]
    axis = [np.linspace(*ends, side) for ends in box[-2:]]
    grid = np.stack(np.meshgrid(*axis, indexing="ij"), -1).reshape(-1, 2)
    fields = u.fields if len(names) == 2 and u.fields else (u.fields or ("u",))[:1]
    panels = [(k, cut) for k in range(len(fields)) for cut in cuts]
    maps = []
    for k, cut in panels:
        x = grid if cut is None else np.insert(grid, 0, cut, axis=1)
        maps.append(_mask(result, x, value(x))[:, k].reshape(side, side))
    # pressures and speeds have little to do with each other, so each has colours of its own
    several = len(fields) > 1
    ranges = [_range([m] if several else maps, colour_map) for m in maps]
    figure, axes = figure_with_axes(len(panels), 5.2 if len(panels) == 1 else 4.0)
    width, height = (ends[1] - ends[0] for ends in box[-2:])
    equal = (
        (result.samples.domain or {"kind": "box"})["kind"] != "box"
        and "t" not in names[-2:]
        and 0.2 < height / width < 5
    )
    for ax, (k, cut), m, (low, high) in zip(axes, panels, maps, ranges, strict=True):
        drawn = ax.pcolormesh(
            *axis, m.T, cmap=colour_map, vmin=low, vmax=high, shading="nearest", rasterized=True
        )
        ax.set_xlabel(label_of(names[-2]))
        ax.set_ylabel(label_of(names[-1]))
        if equal:
            ax.set_aspect("equal")
        name = f"{label_of(fields[k])}, " if several else ""
        title = f"{name}seed {u.seed}" if cut is None else f"{label_of(names[0])} = {cut:.3g}"
        ax.set_title(title, fontsize=11, color=INK)
        if several or ax is axes[-1]:
            beside = ax if several else list(axes)
            shrink = 0.7 if equal and len(panels) > 1 else 1.0
            figure.colorbar(
                drawn, ax=beside, label=label.replace("u", label_of(fields[k]), 1), shrink=shrink
            )
    return figure


def _range(maps: list[np.ndarray], colour_map: str) -> tuple[float, float]:
    """The smallest and the largest value of a colour map; symmetric around 0 for an error."""
    finite = np.concatenate([m[np.isfinite(m)] for m in maps])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (-1.0, 1.0)
    most = max(abs(low), abs(high)) or 1.0
    return (-most, most) if colour_map == "RdBu_r" else (low, high)


# ---------------------------------------------------------------- the page

STYLE = """
:root { color-scheme: light dark;
  --ink: #1f2a37; --soft: #5b6776; --line: #d8dee6;
  --paper: #ffffff; --tint: #f4f6f9; --accent: #c2410c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --soft: #9aa5b1; --line: #364152;
    --paper: #161b22; --tint: #1f2630; --accent: #fb923c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.2rem 4rem;
  font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p.soft, figcaption, dt { color: var(--soft); }
p.certificate { border-left: 4px solid var(--accent); padding: .4rem .9rem;
  background: var(--tint); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums;
  width: 100%; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
.words { text-align: left; white-space: normal; min-width: 12rem; }
tr.best { background: var(--tint); font-weight: 600; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr));
  gap: 1.2rem; }
figure { margin: 0; }
img { max-width: 100%; background: #fff; border: 1px solid var(--line); border-radius: 6px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .9rem; }
dd { margin: 0; overflow-wrap: anywhere; }
"""
# Nothing but what is in the page: no script, no frame, no request, whatever a name may contain.
CONTENT_POLICY_HTML = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
    "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">"
)
CAPTIONS = {
    "loss": "The minimised loss of every seed.",
    "bound": "The minimised loss, the true loss of the network, and the theorem's bound.",
    "solution": "The network of the best seed.",
    "error": "Its error.",
}


def image(figure: Figure) -> str:
    """A figure as an <img> with its data inside."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # names may have letters that the font does not
        figure.savefig(buffer, format="png", dpi=130)
    return (
        f'<img alt="" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'
    )


def _cell(value: float | str | None) -> str:
    if value is None:
        return "<td>–</td>"
    if isinstance(value, str):
        return f"<td{' class=words' if ' ' in value else ''}>{html.escape(value)}</td>"
    return f"<td>{value:.2e}</td>" if isinstance(value, float) else f"<td>{value}</td>"


def _table(result: Result, seeds: list[int]) -> str:
    """The rows of these seeds, without columns that are empty or equal to another."""
    rows = result.table
    same_loss = all(row["loss"] == row["mean_squared_loss"] for row in rows)
    names = [
        name
        for name in rows[0]
        if any(row[name] is not None for row in rows) and not (same_loss and name == "loss")
    ]
    head = "".join(
        f"<th{' class=words' if name == 'reason' else ''}>"
        f"{html.escape(str(HEADINGS.get(name, name.replace('_', ' '))))}</th>"
        for name in names
    )
    body = []
    for i in seeds:
        cells = "".join(_cell(rows[i][name]) for name in names)
        body.append(f"<tr{' class=best' if i == result.run.best else ''}>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def figures(result: Result) -> dict[str, Figure]:
    """Every figure that this result has, by its kind."""
    drawn = {"loss": result.plot("loss")}
    if not result.plan.true_loss_from_start or result.plan.method.l2:  # else both losses are one
        drawn["bound"] = result.plot("bound")
    coordinates = len(result.samples.names)
    if coordinates <= 3:
        drawn["solution"] = result.plot("solution")
        tested = "y" in result.samples.test and coordinates <= 2
        if _exact(result) is not None or tested:
            drawn["error"] = result.plot("error")
    return drawn


def _lead(result: Result) -> str:
    """The first sentences of the page: what came out, and how far to trust it."""
    rows = result.table
    best = rows[result.run.best]
    error = best.get("solution_error", best.get("test_error"))
    seeds = f"{len(rows)} seed{'s' * (len(rows) > 1)}"
    lead = f"Best of {seeds}: true loss {best['mean_squared_loss']:.2e}"
    lead += f", relative error {error:.2e}." if error is not None else "."
    if result.best.parameters:
        lead += f" Found: {parameters_text(result)}."
    if result.samples.kind == "pde" and error is None:
        lead += f" {result.error_estimate()}"
    if result.run.cut and not result.run.ended(Status.INTERRUPTED):
        lead += f" The run was {result.run.cut}"
    if result.run.scores is not None:
        lead += f" {RANKED_BY_TEST_POINTS.format(result.best.seed)}"
    if len(rows) >= SEEDS_FOR_A_RATE:
        lead += f" {result.success()}"
    return lead


def _settings(result: Result, all_shown: bool) -> dict[str, Any]:
    """The settings of a run, as the page lists them."""
    settings = result.config
    settings.pop("retry", None)
    seeds = settings["seeds"]
    if not all_shown:
        settings["seeds"] = f"{len(seeds)}, from {min(seeds)} to {max(seeds)}"
    if result.run.sampler_state.redrawn or not settings["points"]:  # drawn anew, or given
        pde = result.samples.kind == "pde"
        settings["points"] = len(result.samples.terms[0].y) if pde else None
    return settings | {"choice": method_choice(result)}


def page(result: Result, title: str = "") -> str:
    """One HTML page that needs nothing else.

    Parameters
    ----------
    result : the result.
    title : the title of the page; "" is the method and the kind of problem.
    """
    problem = "PDE" if result.samples.kind == "pde" else "regression"
    title = html.escape(title or f"{heading(result.plan)} on a {problem} problem")
    first, others = shown_seeds(result)
    table = _table(result, first)
    if others:
        rest = [i for i in result.run.ranking if i not in set(first)]
        table += (
            f"<details><summary>{html.escape(others)}</summary>{_table(result, rest)}</details>"
        )
    images = "".join(
        f"<figure>{image(figure)}<figcaption>{CAPTIONS[name]}</figcaption></figure>"
        for name, figure in figures(result).items()
    )
    settings = "".join(
        f"<dt>{html.escape(str(name))}</dt><dd>{html.escape(str(value))}</dd>"
        for name, value in _settings(result, not others).items()
    )
    warned = "".join(
        f'<p class="certificate">Warning: {html.escape(advice.sentence)}</p>'
        for advice in result.run.advice
    )
    whole = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">{CONTENT_POLICY_HTML}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{STYLE}</style></head><body>
<h1>{title}</h1><p class="soft">{html.escape(_lead(result))}</p>{warned}
<p class="certificate">{html.escape(str(result.certificate))}
It certifies the training loss, not the error between the points.</p>
<div class="figures">{images}</div>
<h2>All seeds</h2><div class="scroll">{table}</div>
<h2>Settings</h2><dl>{settings}</dl>
</body></html>
"""
    return "\n".join(map(printable, whole.split("\n")))
