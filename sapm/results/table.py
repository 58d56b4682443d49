"""The table of a result as it is printed."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from sapm.errors import printable
from sapm.training.run import Plan, Run, Status
from sapm.training.seeds import SEEDS_FOR_A_RATE

if TYPE_CHECKING:
    from sapm.results.estimates import ErrorEstimator
    from sapm.results.result import Result

# ---------------------------------------------------------------- rows and history


@dataclass(frozen=True)
class Row:
    """How one seed ended. A row of `Result.table` is the same as a dictionary.

    Parameters
    ----------
    seed : its number.
    initial_loss, loss : the loss that is minimised, at the start and at the end.
    mean_squared_loss : the true loss at the end.
    train_error : the root of the true loss relative to that of the data.
    test_error : relative ℓ² error at the test points, for data and functions; for a loss other than
        the square, √(loss / loss of u = 0).
    solution_error : relative ℓ² error at the test points, for a PDE whose `exact` is given.
    test_residual : root mean square of a PDE's residual at the test points.
    parameters : the numbers to find, by name.
    iterations : the iteration of the network that stands for the seed.
    status, reason : why the seed stopped, as a word and as a sentence.
    """

    seed: int
    initial_loss: float
    loss: float
    mean_squared_loss: float
    train_error: float
    iterations: int
    status: Status
    reason: str
    test_error: float | None = None
    solution_error: float | None = None
    test_residual: float | None = None
    parameters: dict[str, float] = field(default_factory=dict)

    def as_dict(self, kind: str) -> dict[str, Any]:
        """The row of a table for a problem of that kind, "pde" or "regression"."""
        row = asdict(self)
        end = {name: row.pop(name) for name in ("iterations", "status", "reason")}
        parameters = row.pop("parameters")
        for name in ("test_error",) if kind == "pde" else ("solution_error", "test_residual"):
            del row[name]
        taken = row | end
        named = {f"p.{name}" if name in taken else name: v for name, v in parameters.items()}
        return row | named | end


class History(dict[str, np.ndarray]):
    """Arrays (seeds, records) by name, as `history["loss"]` or as `history.loss`.

    Beside the quantities below there are `validation_loss` where there are validation data, and the
    diagnostics of the method, by their names.
    """

    @property
    def iteration(self) -> np.ndarray:
        """The iteration of each record."""
        return self["iteration"]

    @property
    def seconds(self) -> np.ndarray:
        """The time of each record since the start."""
        return self["seconds"]

    @property
    def loss(self) -> np.ndarray:
        """The loss that is minimised."""
        return self["loss"]

    @property
    def mean_squared_loss(self) -> np.ndarray:
        """The true loss."""
        return self["mean_squared_loss"]

    @property
    def bound_ratio(self) -> np.ndarray:
        """The true loss over (bound × loss): at most 1 where a theorem holds, NaN without one."""
        return self["bound_ratio"]

    @property
    def validation_loss(self) -> np.ndarray | None:
        """The loss on the validation data; None without any."""
        return self.get("validation_loss")


MOST_ROWS = 20  # of many seeds only the best are shown
NARROW_CHARACTERS = 100  # a narrower line does not hold all columns with a space between them
HEADINGS = {
    "loss": "minimised loss",
    "mean_squared_loss": "true loss",
    "iterations": "steps",
}
RANKED_BY_TEST_POINTS = (
    "The networks of the seeds are of different iterations, so their losses refer to different "
    "points; the best, seed {}, has the smallest true loss at the test points."
)
SECOND_ATTEMPT = (
    "The first attempt found no solution. This is the second, which was trained on an eighth, a "
    "quarter, half and all of the time interval in turn. "
)
STARTS_IN_WORDS = {  # auxiliary variables in words
    "uniform": "drawn from U(-1, 1)",
    "forward": "those of a forward pass",
    "noise": "those of a forward pass, with noise",
}


def heading(plan: Plan) -> str:
    """What was minimised by which method."""
    return (
        f"{'True loss' if plan.true_loss_from_start else plan.model.upper()} by {plan.method.name}"
    )


def method_choice(result: Result) -> str:
    """What method="auto" chose and why, and whether this is a second attempt."""
    second = SECOND_ATTEMPT if result.run.attempt > 1 else ""
    return result.plan.why + second


class Summary(Table):
    """A rich table that is also readable when printed plainly."""

    def __str__(self) -> str:
        console = Console(width=150, color_system=None, markup=False, emoji=False)
        with console.capture() as capture:
            console.print(self)
        return capture.get().rstrip()

    __repr__ = __str__

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # on a narrow terminal no space between columns, rather than numbers in two lines
        before = self.padding
        self.padding = (0, int(options.max_width >= NARROW_CHARACTERS))
        yield from super().__rich_console__(console, options)
        self.padding = before


def shown_seeds(result: Result) -> tuple[list[int], str]:
    """The indices of the seeds that a table shows, in the order in which they were asked for (of
    many seeds the best), and a sentence about the others.
    """
    order = result.run.ranking.tolist()
    if len(order) <= MOST_ROWS:
        return sorted(order), ""
    counts = Counter(result.run.status[i] for i in order[MOST_ROWS:])
    statuses = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    return order[:MOST_ROWS], f"… and {len(order) - MOST_ROWS} more: {statuses}."


def error_unknown(result: Result) -> bool:
    """Whether the error of u can only be estimated: a PDE whose solution is not known."""
    return result.samples.kind == "pde" and "y" not in result.samples.test


def outcome(result: Result, estimate: bool = False) -> dict[str, Any]:
    """The summary as a dictionary, as summary.json has it.

    Parameters
    ----------
    result : the result.
    estimate : whether errors are estimated.
    """
    content: dict[str, Any] = {
        "best": result.run.best,
        "certificate": str(result.certificate),
        "holds": result.certificate.holds,
    }
    if result.run.cut:
        content["interrupted"] = result.run.cut
    if result.run.advice:
        content["warnings"] = [advice.sentence for advice in result.run.advice]
    if estimate and error_unknown(result):
        e = result.error_estimate()
        content["error_estimate"] = {
            "error": e.error,
            "explained": e.explained,
            "no_solution": e.no_solution,
            "text": str(e),
        }
    if estimate and result.standard_errors:
        content["standard_errors"] = result.standard_errors
    return content | {"seeds": result.table}


def summary(
    result: Result, estimate: bool = True, estimator: ErrorEstimator | None = None
) -> Summary:
    """The table of seeds with what was run and what is known of the errors.

    Parameters
    ----------
    result : the result.
    estimate : whether errors are estimated.
    estimator : what estimates them, see `Result.error_estimate`.
    """
    plan = result.plan
    width = plan.width if isinstance(plan.width, int) else "-".join(map(str, plan.width))
    title = f"{heading(plan)}: depth {plan.depth}, width {width}, {plan.activation.name}"
    rows, others = shown_seeds(result)
    notes = [*([others] if others else []), *_notes(result, estimate, estimator)]
    # `Text`, since a console would take brackets in a string for markup
    table = Summary(
        title=Text(printable(title), style="table.title"),
        caption=Text("\n".join(map(printable, notes)), style="table.caption"),
        caption_justify="left",
    )
    columns = _columns(result)
    for name in columns:
        head = HEADINGS.get(name, name.replace("_", " "))
        table.add_column(head, justify="right", overflow="fold")
    for i in rows:
        values = result.table[i]
        taken = int(result.run.history["iteration"][i].max())
        if taken > values["iterations"]:
            values = values | {"iterations": f"{values['iterations']} of {taken}"}
        cells = [_cell(values[name]) for name in columns]
        table.add_row(*cells, style="bold" if i == result.run.best else None)
    return table


def _columns(result: Result) -> list[str]:
    """The columns of the table: one for two losses that are equal, none for an unknown error."""
    rows = result.rows
    pde = result.samples.kind == "pde"
    error = "solution_error" if pde else "test_error"
    columns = ["seed", "initial_loss"]
    if any(row.loss != row.mean_squared_loss for row in rows):
        columns.append("loss")
    columns += ["mean_squared_loss", "train_error"]
    if any(getattr(row, error) is not None for row in rows):
        columns.append(error)
    if pde:
        columns.append("test_residual")
    return [*columns, "iterations", "status"]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.2e}"
    return "–" if value is None else str(value)


def _notes(result: Result, estimate: bool, estimator: ErrorEstimator | None) -> list[str]:
    """The lines below the table."""
    plan = result.plan
    run = result.run
    start = ""
    if not plan.true_loss_from_start:
        start = f"; auxiliary variables: {STARTS_IN_WORDS[plan.start]}"
    weights = "those given" if plan.from_network else f"{plan.init}{start}"
    boundary = "" if plan.mu is None else f" Boundary term × {plan.mu:.3g}."
    notes = [f"Initial weights: {weights}.{boundary} {method_choice(result)}{result.certificate}"]
    if run.cut and not run.ended(Status.INTERRUPTED):
        notes.append(f"The run was {run.cut}")
    if not run.iterations and plan.max_iter:
        why = run.reason[run.best] or "the networks are as they were drawn."
        notes.append(f"NO STEP WAS TAKEN: {why}")
    if run.scores is not None:
        notes.append(RANKED_BY_TEST_POINTS.format(result.best.seed))
    elif len(run.seeds) > 1:
        notes.append(f"The best is seed {run.seeds[run.best]}.")
    if len(run.seeds) >= SEEDS_FOR_A_RATE:
        notes.append(str(result.success()))
    if run.ended(Status.DROPPED):
        notes.append(_dropped_seeds(run))
    if result.best.parameters:
        notes.append(f"Parameters: {parameters_text(result, estimate)}.")
    if estimate and estimator is not None:
        notes.append(str(result.error_estimate(estimator=estimator)))
    elif estimate and error_unknown(result):
        notes.append(str(result.error_estimate()))
    return notes + [f"Warning: {advice.sentence}" for advice in run.advice]


def digits_that_differ(value: float, range_of_seeds: float) -> int:
    """How many digits show by how much seeds differ: six, or up to twelve where they agree."""
    if not value or not np.isfinite(value) or range_of_seeds <= 0:
        return 6
    return int(np.clip(np.ceil(np.log10(abs(value) / range_of_seeds)) + 1, 6, 12))


def parameters_text(result: Result, estimate: bool = True) -> str:
    """The numbers that the best seed found, with their standard errors where these are estimated,
    and their ranges over the seeds that are not lost.

    Parameters
    ----------
    result : the result.
    estimate : whether standard errors are estimated.
    """
    others = [
        u.parameters for u, lost in zip(result.seeds, result.run.lost, strict=True) if not lost
    ]
    errors = result.standard_errors if estimate else {}
    texts = []
    for name, value in result.best.parameters.items():
        values = [parameters[name] for parameters in others]
        digits = digits_that_differ(value, max(values) - min(values) if values else 0.0)
        text = f"{name} = {value:.{digits}g}"
        if name in errors:
            text += f" ± {errors[name]:.2g}"
        if len(values) > 1:
            text += f" ({min(values):.{digits}g} to {max(values):.{digits}g})"
        texts.append(text)
    notes = ""
    if errors:
        notes += "; ± is one standard error, caused by noise of the measurements"
    if free := [name for name, error in errors.items() if np.isinf(error)]:
        notes += f"; the measurements do not determine {' and '.join(free)}"
        notes += " separately" * (len(free) > 1)
    if len(others) > 1:
        notes += f"; in brackets is the range over {len(others)} seeds"
        notes += "" if errors else ", which does not show the effect of noise in the data"
    return ", ".join(texts) + notes


def _dropped_seeds(run: Run) -> str:
    """A sentence on how many seeds were dropped in which iteration."""
    dropped = np.array([status == Status.DROPPED for status in run.status])
    at, counts = np.unique(run.history["iteration"][dropped, -1], return_counts=True)
    drops = ", ".join(f"{count} after {int(k)}" for k, count in zip(at, counts, strict=True))
    return f"Dropped by successive halving, since others had a lower loss: {drops} iterations."
