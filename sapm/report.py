"""Figures of a result, and one page with all of them. Trains nothing."""

from __future__ import annotations

import base64
import html
import io
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from sapm.domain import domain_from
from sapm.names import brief, nearest, shown
from sapm.pointwise import evaluate
from sapm.success import MANY
from sapm.summary import COMPARED, HEADS, PASSING, heading, parameters, straight
from sapm.summary import shown as best_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("loss", "bound", "solution", "error")
INK, ACCENT, SECOND, FAINT = "#1f2a37", "#c2410c", "#1d4ed8", "#9aa5b1"
FINE = 400  # points along a curve
CURVES = 50  # of seeds are drawn one by one; more are drawn as bands


def plot(result: Any, kind: str, seed: int | None) -> Figure:
    if kind not in KINDS:
        raise ValueError(f"plot({brief(kind)}) is not known; use one of {', '.join(KINDS)}." + nearest(kind, KINDS))
    i = result.run.index(seed)
    if kind == "loss":
        return _loss(result)
    if kind == "bound":
        return _bound(result, i)
    return _solution(result, i) if kind == "solution" else _error(result, i)


def label_of(name: str) -> str:
    """A name for a figure, where dollars would begin a formula; a long one is cut short."""
    return shown(name, 60).replace("$", r"\$")


def _figure(columns: int = 1, width: float = 6.4, height: float = 4.0):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height), layout="constrained", dpi=110)
    axes = figure.subplots(1, columns, squeeze=False)[0]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(colors=INK, labelsize=9)
    return figure, axes


def _positive(x: np.ndarray) -> np.ndarray:
    """A logarithmic axis has no place for 0 or infinity, and its ticks overflow near the largest number."""
    return np.where(np.isfinite(x) & (x > 0), np.clip(x, 1e-200, 1e200), np.nan)


def _scale(ax, history) -> np.ndarray:
    iteration = history["iteration"]
    ax.set_xlabel("iteration")
    ax.set_yscale("log")
    if iteration.max() > 200:
        ax.set_xscale("symlog", linthresh=10)
        ax.set_xlim(0, iteration.max())
    return iteration


def _loss(result) -> Figure:
    """The actual loss of every seed, of many as bands; the best one stands out."""
    figure, (ax,) = _figure()
    iteration, loss, best = _scale(ax, result.history), _positive(result.history["loss"]), result.run.best
    many = len(loss) > CURVES
    if many:
        _bands(ax, iteration, loss)
    for i in range(len(loss)):
        if i != best and not many:
            ax.plot(iteration[i], loss[i], color=FAINT, lw=0.9)
    ax.plot(iteration[best], loss[best], color=ACCENT, lw=1.8, label=f"best: seed {result.run.seeds[best]}")
    if 1 < len(loss) <= CURVES:
        ax.plot([], [], color=FAINT, lw=0.9, label=f"{len(loss) - 1} other seed{'s' * (len(loss) > 2)}")
    ax.set_ylabel("actual loss")
    ax.set_title(heading(result.config), fontsize=11, color=INK)
    ax.legend(frameon=False, fontsize=9)
    return figure


def _bands(ax, iteration: np.ndarray, loss: np.ndarray) -> None:
    """At every record the range of all seeds that are still running, of the middle 80 % and the middle half, and the median."""
    at = iteration.max(0)
    running = np.where(iteration == at, loss, np.nan)
    seen = ~np.all(np.isnan(running), axis=0)
    ends = np.nanquantile(running[:, seen], [0, 0.1, 0.25, 0.5, 0.75, 0.9, 1], axis=0)
    shares = ("all running seeds", "80 % of them", "50 % of them")
    for k, (share, alpha) in enumerate(zip(shares, (0.2, 0.35, 0.6), strict=True)):
        ax.fill_between(at[seen], ends[k], ends[-1 - k], color=FAINT, alpha=alpha, lw=0, label=share)
    ax.plot(at[seen], ends[3], color=INK, lw=1.0, label="their median")


def _bound(result, i: int) -> Figure:
    """Actual and true loss of a seed, and the bound that the theorem puts on the true one."""
    figure, (ax,) = _figure()
    h, bound = result.history, result.run.certificate(i).bound
    iteration = _scale(ax, h)[i]
    loss, true = _positive(h["loss"][i]), _positive(h["mean_squared_loss"][i])
    along = not np.all(np.isnan(h["bound_ratio"][i]))  # else the constant is that of the last point
    one = straight(result.config) and not result.config["options"].get("l2")
    if bound is not None and along and not one:
        ax.fill_between(iteration, loss, bound * loss, color=SECOND, alpha=0.08, lw=0)
        ax.plot(iteration, bound * loss, color=SECOND, lw=0.9, ls="--", label=f"bound: {bound:.3g} × actual loss")
    ax.plot(iteration, true, color=ACCENT, lw=1.6, label="true loss")
    ax.plot(iteration, loss, color=INK, lw=1.6, ls=":" if one else "-", label="actual loss" + ", which is the same" * one)
    ax.set_ylabel("loss")
    ax.set_title(f"seed {result.run.seeds[i]}: the optimised loss and the true one", fontsize=11, color=INK)
    ax.legend(frameon=False, fontsize=9)
    return figure


# ---------------------------------------------------------------- pictures of u


def _box(result) -> list[tuple[float, float]]:
    """The range of every coordinate."""
    samples = result.samples
    if samples.domain is not None and samples.domain["kind"] == "box":
        return [tuple(ends) for ends in samples.domain["bounds"].values()]
    if samples.domain is not None:
        center, spread = domain_from(samples.domain).frame
        return list(zip(center - spread, center + spread, strict=True))
    x = np.asarray(samples.terms[0].x.value)[:, : len(samples.names)]
    return list(zip(x.min(0), x.max(0), strict=True))


def _wanted(result):
    """The answer as a function of points, where the problem's code gives one."""
    function = getattr(result.problem, "exact", None) or getattr(result.problem, "f", None)
    if function is None:
        return None

    def wanted(x):
        with np.errstate(invalid="ignore"):
            values = evaluate(function, "exact", result.samples.names, x, several=True, finite=False)
        return np.where(np.isfinite(values), values, np.nan)  # a picture may reach where the answer does not

    return wanted


def _check_pictured(result) -> None:
    d = len(result.samples.names)
    if d > 3:
        raise ValueError(
            f"pictures of u need one, two or three coordinates; this problem has {d}: {', '.join(result.samples.names)}."
        )


def _mask(result, x: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Nothing is shown outside the domain."""
    if result.samples.domain is None:
        return values
    outside = domain_from(result.samples.domain).gap(x) < -1e-9
    return np.where(outside[:, None], np.nan, values)


def _solution(result, i: int) -> Figure:
    _check_pictured(result)
    u, wanted = result.seeds[i], _wanted(result)
    if len(u.names) > 1:
        return _maps(result, u, lambda x: u(x).reshape(len(x), -1), "u", "viridis")
    figure, (ax,) = _figure()
    x = np.linspace(*_box(result)[0], FINE)[:, None]
    if wanted is not None:
        ax.plot(x[:, 0], _mask(result, x, wanted(x)), color=INK, lw=1.2, ls="--", label="exact")
    term = result.samples.terms[0]
    if not term.is_pde:
        n = int(np.sum(np.broadcast_to(np.asarray(term.weight), len(term.y)) > 0))
        ax.plot(np.asarray(term.x.value)[:n, :1], np.asarray(term.y)[:n], ".", color=FAINT, ms=5, label="training points")
    values = _mask(result, x, u(x).reshape(len(x), -1))
    for k in range(values.shape[1]):
        more = {"color": ACCENT, "label": "network"} if not u.fields else {"label": u.fields[k]}
        ax.plot(x[:, 0], values[:, k], lw=1.6, **more)
    handles = dict(zip(*ax.get_legend_handles_labels()[::-1], strict=True))
    ax.legend(handles.values(), handles.keys(), frameon=False, fontsize=9)
    ax.set_xlabel(label_of(u.names[0]))
    ax.set_ylabel("u")
    ax.set_title(f"seed {u.seed}", fontsize=11, color=INK)
    return figure


def _error(result, i: int) -> Figure:
    """The network minus the answer: everywhere if the problem's code is at hand, else at the test points."""
    _check_pictured(result)
    u, wanted, test = result.seeds[i], _wanted(result), result.samples.test
    if wanted is not None and len(u.names) > 1:
        return _maps(result, u, lambda x: u(x).reshape(len(x), -1) - wanted(x), "u - exact", "RdBu_r")
    if wanted is None and "y" not in test:
        raise ValueError("plot('error') needs the answer: give exact= with the problem, or test data.")
    figure, (ax,) = _figure()
    x = np.linspace(*_box(result)[0], FINE)[:, None] if wanted is not None else test["x"]
    error = u(x).reshape(len(x), -1) - (wanted(x) if wanted is not None else test["y"].reshape(len(x), -1))
    if len(u.names) == 1:
        order = np.argsort(x[:, 0])
        for k in range(error.shape[1]):
            more = {"label": u.fields[k]} if u.fields else {"color": ACCENT}
            ax.plot(x[order, 0], _mask(result, x, error)[order, k], lw=1.2, **more)
        if u.fields:
            ax.legend(frameon=False, fontsize=9)
        ax.axhline(0, color=FAINT, lw=0.8)
        ax.set_ylabel("u - exact")
    else:
        limit = float(np.nanmax(np.abs(error))) or 1.0
        drawn = ax.scatter(x[:, 0], x[:, 1], c=error[:, 0], s=9, cmap="RdBu_r", vmin=-limit, vmax=limit)
        figure.colorbar(drawn, ax=ax, label="u - exact at test points")
        ax.set_ylabel(label_of(u.names[1]))
    ax.set_xlabel(label_of(u.names[0]))
    ax.set_title(f"seed {u.seed}: error", fontsize=11, color=INK)
    return figure


def _maps(result, u, value, label: str, colours: str) -> Figure:
    """A map over the last two coordinates; with three, at the lower end, the middle and the upper end of the first."""
    box, names = _box(result), u.names
    cuts = np.linspace(*box[0], 3) if len(names) == 3 else [None]
    down, across = (names[-1], names[-2])
    axis = [np.linspace(*ends, 121) for ends in box[-2:]]
    grid = np.stack(np.meshgrid(*axis, indexing="ij"), -1).reshape(-1, 2)
    panels, fields = [], u.fields if len(names) == 2 and u.fields else (u.fields or ("u",))[:1]
    shown = [(k, cut) for k in range(len(fields)) for cut in cuts]
    for k, cut in shown:
        x = grid if cut is None else np.insert(grid, 0, cut, axis=1)
        panels.append(_mask(result, x, value(x))[:, k].reshape(121, 121))
    several = len(fields) > 1  # then each has colours of its own: pressures and speeds have little to do with each other
    ranges = [_range([p], colours) if several else _range(panels, colours) for p in panels]
    figure, axes = _figure(len(shown), 5.2 if len(shown) == 1 else 4.0)
    width, height = (ends[1] - ends[0] for ends in box[-2:])
    equal = (result.samples.domain or {"kind": "box"})["kind"] != "box" and "t" not in names[-2:] and 0.2 < height / width < 5
    for ax, (k, cut), panel, (low, high) in zip(axes, shown, panels, ranges, strict=True):
        drawn = ax.pcolormesh(*axis, panel.T, cmap=colours, vmin=low, vmax=high, shading="nearest", rasterized=True)
        ax.set_xlabel(label_of(across))
        ax.set_ylabel(label_of(down))
        if equal:
            ax.set_aspect("equal")
        name = f"{fields[k]}, " if several else ""
        ax.set_title(f"{name}seed {u.seed}" if cut is None else f"{label_of(names[0])} = {cut:.3g}", fontsize=11, color=INK)
        if several or ax is axes[-1]:
            whose, shrink = ax if several else list(axes), 0.7 if equal and len(shown) > 1 else 1.0
            figure.colorbar(drawn, ax=whose, label=label.replace("u", fields[k], 1), shrink=shrink)
    return figure


def _range(panels: list[np.ndarray], colours: str) -> tuple[float, float]:
    """The smallest and the largest number that colours stand for."""
    finite = np.concatenate([p[np.isfinite(p)] for p in panels])
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (-1.0, 1.0)
    most = max(abs(low), abs(high)) or 1.0
    return (-most, most) if colours == "RdBu_r" else (low, high)


# ---------------------------------------------------------------- the page

STYLE = """
:root { color-scheme: light dark;
  --ink: #1f2a37; --soft: #5b6776; --line: #d8dee6; --paper: #ffffff; --tint: #f4f6f9; --accent: #c2410c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --soft: #9aa5b1; --line: #364152; --paper: #161b22; --tint: #1f2630; --accent: #fb923c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.2rem 4rem; font: 16px/1.55 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p.soft, figcaption, dt { color: var(--soft); }
p.certificate { border-left: 4px solid var(--accent); padding: .4rem .9rem; background: var(--tint); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
.words { text-align: left; white-space: normal; min-width: 12rem; } tr.best { background: var(--tint); font-weight: 600; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1.2rem; } figure { margin: 0; }
img { max-width: 100%; background: #fff; border: 1px solid var(--line); border-radius: 6px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .9rem; }
dd { margin: 0; overflow-wrap: anywhere; }
"""
# Nothing but what is in the page: no script, no frame, no request, whatever a name may contain.
POLICY = (
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'\">"
)
CAPTIONS = {
    "loss": "The loss that is optimised, for every seed.",
    "bound": "The optimised (actual) loss, the network's true loss, and how far apart the theorem lets them be.",
    "solution": "The network of the best seed.",
    "error": "Its error.",
}


def image(figure: Figure) -> str:
    """A figure as an <img> with its data inside."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # names may have letters that the font does not
        figure.savefig(buffer, format="png", dpi=130)
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


def _cell(value) -> str:
    if value is None:
        return "<td>–</td>"
    if isinstance(value, str):
        return f"<td{' class=words' if ' ' in value else ''}>{html.escape(value)}</td>"
    return f"<td>{value:.2e}</td>" if isinstance(value, float) else f"<td>{value}</td>"


def _table(result: Any, seeds: list[int]) -> str:
    """Without columns that say nothing, or the same as another."""
    rows = result.table
    same = all(row["loss"] == row["mean_squared_loss"] for row in rows)
    names = [name for name in rows[0] if any(row[name] is not None for row in rows) and not (same and name == "loss")]
    shown = lambda name: html.escape(str(HEADS.get(name, name.replace("_", " "))))  # noqa: E731
    head = "".join(f"<th{' class=words' if name == 'reason' else ''}>{shown(name)}</th>" for name in names)
    cells = lambda row: "".join(_cell(row[name]) for name in names)  # noqa: E731
    body = "".join(f"<tr{' class=best' if i == result.run.best else ''}>{cells(rows[i])}</tr>" for i in seeds)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def figures(result: Any) -> dict[str, Figure]:
    """Every figure that this result has."""
    found = {"loss": result.plot("loss")}
    if not straight(result.config) or result.config["options"].get("l2"):  # else both losses are one
        found["bound"] = result.plot("bound")
    if len(result.samples.names) <= 3:
        found["solution"] = result.plot("solution")
        if _wanted(result) is not None or ("y" in result.samples.test and len(result.samples.names) <= 2):
            found["error"] = result.plot("error")
    return found


def page(result: Any, title: str = "") -> str:
    """One HTML page that needs nothing else."""
    c, rows = result.config, result.table
    title = title or f"{heading(c)} on a {'PDE' if result.samples.kind == 'pde' else 'regression'} problem"
    best = rows[result.run.best]
    error = best.get("solution_error", best.get("test_error"))
    lead = f"Best of {len(rows)} seed{'s' * (len(rows) > 1)}: true loss {best['mean_squared_loss']:.2e}"
    lead += f", relative error {error:.2e}." if error is not None else "."
    if result.best.parameters:
        lead += f" Found: {parameters(result)}."
    if result.samples.kind == "pde" and error is None:
        lead += f" {result.error_estimate()}"
    if result.run.cut and "interrupted" not in result.run.status:
        lead += f" It was {result.run.cut}"
    if result.run.scores is not None:
        lead += f" {COMPARED.format(result.best.seed)}"
    if len(rows) >= MANY:
        lead += f" {result.success()}"
    first, others = best_rows(result)
    table = _table(result, first)
    if others:
        rest = [i for i in result.run.ranking if i not in set(first)]
        table += f"<details><summary>{html.escape(others)}</summary>{_table(result, rest)}</details>"
    shown = "".join(
        f"<figure>{image(figure)}<figcaption>{CAPTIONS[name]}</figcaption></figure>" for name, figure in figures(result).items()
    )
    seeds = f"{len(rows)}, from {min(c['seeds'])} to {max(c['seeds'])}" if others else c["seeds"]
    points = c["points"] or (len(result.samples.terms[0].y) if result.samples.kind == "pde" else None)  # drawn anew, or given
    items = [item for item in (c | {"seeds": seeds, "points": points}).items() if item[0] not in (*PASSING, "doubts")]
    settings = "".join(f"<dt>{html.escape(str(k))}</dt><dd>{html.escape(str(v))}</dd>" for k, v in items)
    warned = "".join(f'<p class="certificate">Warning: {html.escape(said)}</p>' for said in c.get("doubts", ()))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">{POLICY}<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>
<h1>{html.escape(title)}</h1><p class="soft">{html.escape(lead)}</p>{warned}
<p class="certificate">{html.escape(str(result.certificate))}
It certifies the training loss, not the error between the points.</p>
<div class="figures">{shown}</div>
<h2>All seeds</h2><div class="scroll">{table}</div>
<h2>Settings</h2><dl>{settings}</dl>
</body></html>
"""
