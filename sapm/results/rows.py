"""The outcome of one seed (`Row`), and the course of all of them (`History`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from sapm.training.run import Status


@dataclass(frozen=True)
class Row:
    """How one seed ended. A row of `Result.table` is the same as a dictionary.

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
