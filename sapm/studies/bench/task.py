"""A case with its samples, as every trainer gets it, and the clock that keeps snapshots."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sapm.numerics.activations import activation
from sapm.numerics.jets import Jet
from sapm.numerics.network import Network, initialise
from sapm.objective.penalty import mean_square
from sapm.objective.terms import directional
from sapm.problem.samples import scaling_of
from sapm.results.solution import relative_error
from sapm.studies.bench.cases import Case

SNAPSHOTS = 40
LATEST_BUDGETS = 1.05  # a snapshot later than this many budgets does not count
# the error and the true loss of a snapshot; called after the training
Measure = Callable[[], tuple[float, float]]


class Outcome(NamedTuple):
    """How a training ended.

    `loss` is the loss that was minimised, None for methods that minimise the true loss.
    """

    status: str
    reason: str
    loss: float | None = None


class Clock:
    """The seconds of a training, and snapshots at times evenly spaced on a logarithmic axis.

    A snapshot is a function that measures a network. It is called after the training, so that
    measuring costs no training time.

    Parameters
    ----------
    budget : seconds of training
    """

    def __init__(self, budget: float):
        self.budget = budget
        self.snapshots: list[tuple[float, Measure]] = []
        self.latest: tuple[float, Measure] | None = None
        self.due = list(budget * 10 ** np.linspace(-2.5, 0, SNAPSHOTS - 3))
        self.began = time.perf_counter()

    def start(self, measure: Measure) -> None:
        """Start the clock; `measure` is the snapshot of the initial network."""
        self.snapshots = [(0.0, measure)]
        self.began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The time since the start."""
        return time.perf_counter() - self.began

    def left(self, share: float = 1.0) -> float:
        """Seconds until this share of the budget is spent."""
        return share * self.budget - self.seconds

    @property
    def until_next(self) -> float:
        """Seconds until the next snapshot is due."""
        return max(0.0, self.due[0] - self.seconds) if self.due else 0.0

    def keep(self, measure: Measure, seconds: float | None = None) -> None:
        """Offer a snapshot. It is kept if one is due, or if it is the last.

        Parameters
        ----------
        measure : the snapshot
        seconds : its time since the start; None for now
        """
        now = self.seconds if seconds is None else seconds
        if now > LATEST_BUDGETS * self.budget and self.latest is not None:
            self.snapshots.append(self.latest)
        self.latest = (now, measure)
        if self.due and now >= self.due[0]:
            self.due = [t for t in self.due if t > now]
            self.snapshots.append(self.latest)
            self.latest = None

    def trace(self) -> list[tuple[float, float, float]]:
        """(seconds, error, true loss) of every snapshot."""
        snapshots = self.snapshots + ([] if self.latest is None else [self.latest])
        return [(seconds, *measure()) for seconds, measure in snapshots]


def at_the_end(
    trace: list[tuple[float, float, float]], budget: float
) -> tuple[float, float, float]:
    """(seconds, error, true loss) of the last snapshot within the budget (5 % more are allowed)."""
    return [
        point for k, point in enumerate(trace) if k == 0 or point[0] <= LATEST_BUDGETS * budget
    ][-1]


class Task:
    """The samples of a case, the widths and initial weights of its network, and its scores.

    Peers train on `terms`: the samples in the units, and with the boundary weight, that
    `sapm.solve` chooses. Two tasks of the same case are equal.
    """

    def __init__(self, case: Case):
        self.case = case
        self.problem = case.problem()
        self.sigma = activation(case.activation)
        self.samples = self.problem.samples(case.points, case.boundary_points, case.test_points)
        self.scaling = scaling_of(self.samples)
        # along the direction of the equation only: one tangent, which is faster
        self.terms = [directional(self.scaling.term(term)) for term in self.samples.terms]
        self.widths = (case.inputs, *[case.width] * (case.depth - 1), self.samples.outputs)
        self._loss = jax.jit(lambda network: mean_square(network, self.samples.terms))
        self._value = jax.jit(
            lambda network, x: network(Jet(x, jnp.zeros((len(x), 0, x.shape[1])))).value
        )

    def start(self, seed: int, init: str) -> Network:
        """The initial weights of `sapm.solve` with this seed and initialiser, in its units."""
        key = jax.random.split(jax.random.fold_in(jax.random.key(0), seed))[0]
        return initialise(key, self.widths, self.sigma, init)

    def original(self, network: Network) -> Network:
        """A network that was trained on `terms`, in the units of the problem."""
        return Network.of(
            [(jnp.asarray(W), jnp.asarray(b)) for W, b in self.scaling.original(network.weights)],
            self.sigma,
        )

    def measure(self, network: Callable[[Jet], Jet]) -> tuple[float, float]:
        """The relative error at the test points, and the true loss.

        `network` is in the units of the problem; any function of a jet will do.
        """
        value = self._value(network, jnp.asarray(self.samples.test["x"]))
        return relative_error(value, self.samples.test["y"]), float(self._loss(network))
