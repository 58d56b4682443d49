"""The table of a result as it is printed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from sapm.run import Run
from sapm.success import MANY

ROWS = 20  # shown of a table with more
NARROW = 100  # characters of a line that a table with all columns does not fit into
LOST = ("dropped", "non-finite")  # seeds that have no say
# what a configuration says of its moment alone
PASSING = ("drawn_at", "fresh", "lowest", "ended", "scores", "over", "stage", "again", "second")
HEADS = {"mean_squared_loss": "true loss", "iterations": "steps"}  # of columns that are called otherwise
COMPARED = "The seeds' losses are of different points; the best, seed {}, has the smallest true loss at the test points."
STARTS = {  # of the auxiliary variables, in words
    "uniform": "drawn from U(-1, 1)",
    "forward": "those of a forward pass",
    "noise": "those of a forward pass, with noise",
}


def straight(config: dict) -> bool:
    """Whether the true loss is minimised from the first step on, without auxiliary variables."""
    return config["model"] == "ls" or (config["method"] == "gauss-newton" and config["options"].get("lifted") == 0)


def heading(config: dict) -> str:
    """What was minimised by which method."""
    return f"{'True loss' if straight(config) else config['model'].upper()} by {config['method']}"


class Summary(Table):
    """A rich table that is also readable when printed plainly."""

    def __str__(self) -> str:
        console = Console(width=150, color_system=None, markup=False, emoji=False)
        with console.capture() as capture:
            console.print(self)
        return capture.get().rstrip()

    __repr__ = __str__

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        before, self.padding = self.padding, (0, int(options.max_width >= NARROW))  # rather no space than numbers in two lines
        yield from super().__rich_console__(console, options)
        self.padding = before


def shown(result: Any) -> tuple[list[int], str]:
    """Which seeds a table shows, and what it says of the others: all in the order asked for, or of many the best."""
    order = result.run.ranking.tolist()
    if len(order) <= ROWS:
        return sorted(order), ""
    counts = Counter(result.run.status[i] for i in order[ROWS:])
    each = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return order[:ROWS], f"… and {len(order) - ROWS} more: {each}."


def unanswered(result: Any) -> bool:
    """Whether only an estimate can say how wrong u is."""
    return result.samples.kind == "pde" and "y" not in result.samples.test


def outcome(result: Any, estimate: bool = False) -> dict:
    """The summary as a dictionary."""
    found: dict[str, Any] = {"best": result.run.best, "certificate": str(result.certificate), "holds": result.certificate.holds}
    if result.run.cut:
        found["interrupted"] = result.run.cut
    if result.config.get("doubts"):
        found["warnings"] = result.config["doubts"]
    if estimate and unanswered(result):
        e = result.error_estimate()
        found["error_estimate"] = {"error": e.error, "explained": e.explained, "no_solution": e.no_solution, "text": str(e)}
    if estimate and result.standard_errors:
        found["standard_errors"] = result.standard_errors
    return found | {"seeds": result.table}


def summary(result: Any, estimate: bool = True) -> Summary:
    c, error = result.config, "solution_error" if result.samples.kind == "pde" else "test_error"
    hidden = c["width"] if isinstance(c["width"], int) else "-".join(map(str, c["width"]))
    title = f"{heading(c)}: depth {c['depth']}, width {hidden}, {c['activation']}"
    start = "" if straight(c) else f"; auxiliary variables: {STARTS[c['start']]}"
    weights = "those given" if c.get("from_network") else f"{c['init']}{start}"
    boundary = "" if c["mu"] is None else f" Boundary term × {c['mu']:.3g}."
    rows, others = shown(result)
    caption = (
        f"{others}\n" if others else ""
    ) + f"Initial weights: {weights}.{boundary} {c.get('choice', '')}{result.certificate}"
    if result.run.cut and "interrupted" not in result.run.status:
        caption += f"\nIt was {result.run.cut}"
    if not result.run.history["iteration"].max() and c["max_iter"]:
        caption += f"\nNO STEP WAS TAKEN: {result.run.reason[result.run.best] or 'the networks are as they were drawn.'}"
    if result.run.scores is not None:
        caption += f"\n{COMPARED.format(result.best.seed)}"
    elif len(result.run.seeds) > 1:
        caption += f"\nThe best is seed {result.run.seeds[result.run.best]}."
    if len(result.run.seeds) >= MANY:
        caption += f"\n{result.success()}"
    if "dropped" in result.run.status:
        caption += f"\n{halved(result.run)}"
    if result.best.parameters:
        caption += f"\nfound: {parameters(result, estimate)}."
    if estimate and unanswered(result):
        caption += f"\n{result.error_estimate()}"
    caption += "".join(f"\nWarning: {said}" for said in c.get("doubts", ()))
    table = Summary(title=title, caption=caption, caption_justify="left")
    same = all(row["loss"] == row["mean_squared_loss"] for row in result.table)  # one column says it
    columns = ["seed", "initial_loss", *([] if same else ["loss"]), "mean_squared_loss", "train_error", error]
    columns = columns if any(row[error] is not None for row in result.table) else columns[:-1]
    columns += (["test_residual"] if result.samples.kind == "pde" else []) + ["iterations", "status"]
    for name in columns:
        table.add_column(HEADS.get(name, name.replace("_", " ")), justify="right", overflow="fold")
    for i in rows:
        row = result.table[i]
        taken = int(result.run.history["iteration"][i].max())
        row = row | ({"iterations": f"{row['iterations']} of {taken}"} if taken > row["iterations"] else {})
        cells = [
            f"{row[name]:.2e}" if isinstance(row[name], float) else str("–" if row[name] is None else row[name])
            for name in columns
        ]
        table.add_row(*cells, style="bold" if i == result.run.best else None)
    return table


def _digits(value: float, apart: float) -> int:
    """How many show by how much seeds differ: six, or up to twelve where they agree in these."""
    return int(np.clip(np.ceil(np.log10(abs(value) / apart)) + 1, 6, 12)) if value and np.isfinite(value) and apart > 0 else 6


def parameters(result: Any, estimate: bool = True) -> str:
    """Those of the best seed, by how much they may be off, and how far those of the other seeds lie apart."""
    others = [u.parameters for u, status in zip(result.seeds, result.run.status, strict=True) if status not in LOST]
    found, noise = [], result.standard_errors if estimate else {}
    for name, value in result.best.parameters.items():
        each = [p[name] for p in others]
        digits = _digits(value, max(each) - min(each) if each else 0.0)
        spread = f" ({min(each):.{digits}g} to {max(each):.{digits}g})" if len(each) > 1 else ""
        found.append(f"{name} = {value:.{digits}g}" + (f" ± {noise[name]:.2g}" if name in noise else "") + spread)
    errors = "; ± is one standard error, by the noise of what was observed" if noise else ""
    if free := [name for name, e in noise.items() if np.isinf(e)]:
        errors += f"; what was observed does not determine {' and '.join(free)}" + ", or only together" * (len(free) > 1)
    ranges = f"; in brackets the range of {len(others)} seeds" + ("" if noise else ", which says nothing of noise in the data")
    return ", ".join(found) + errors + ranges * (len(others) > 1)


def halved(run: Run) -> str:
    """When how many seeds were dropped."""
    dropped = np.array([status == "dropped" for status in run.status])
    at, counts = np.unique(run.history["iteration"][dropped, -1], return_counts=True)
    each = ", ".join(f"{count} after {int(k)}" for k, count in zip(at, counts, strict=True))
    return f"Dropped by successive halving, since others had a lower loss: {each} iterations."
