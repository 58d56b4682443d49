"""A case at its points, as every trainer gets it; and the clock that keeps snapshots."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sapm.bench.cases import Case
from sapm.jet import Jet, activation
from sapm.network import Network, initialise
from sapm.objective import mean_square
from sapm.samples import scaling_of
from sapm.solution import relative_error
from sapm.term import directional

SNAPSHOTS = 40
LATE = 1.05  # what was reached later than this many budgets does not count
Measure = Callable[[], tuple[float, float]]  # the error and the true loss at a snapshot, computed when it is asked for


class Outcome(NamedTuple):
    """How a training ended. `loss`: the loss that was minimised, where a model has one of its own."""

    status: str
    reason: str
    loss: float | None = None


class Clock:
    """Seconds of training, and snapshots at times evenly spaced on a logarithmic axis. Nothing is evaluated meanwhile."""

    def __init__(self, budget: float):
        self.budget, self.kept, self.latest = budget, [], None
        self.due = list(budget * 10 ** np.linspace(-2.5, 0, SNAPSHOTS - 3))
        self.began = time.perf_counter()

    def start(self, measure: Measure) -> None:
        """Training begins now, from a network that is the first snapshot."""
        self.kept, self.began = [(0.0, measure)], time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def left(self, share: float = 1.0) -> float:
        """Until that share of the budget is spent."""
        return share * self.budget - self.seconds

    @property
    def until_next(self) -> float:
        """Until a snapshot is due."""
        return max(0.0, self.due[0] - self.seconds) if self.due else 0.0

    def keep(self, measure: Measure, seconds: float | None = None) -> None:
        """Offer a snapshot: it is kept if one is due, or if it turns out to be the last."""
        now = self.seconds if seconds is None else seconds
        if now > LATE * self.budget and self.latest is not None:
            self.kept.append(self.latest)
        self.latest = (now, measure)
        if self.due and now >= self.due[0]:
            self.due = [t for t in self.due if t > now]
            self.kept.append(self.latest)
            self.latest = None

    def trace(self) -> list[tuple[float, float, float]]:
        """(seconds, error, true loss) of every snapshot."""
        kept = self.kept + ([] if self.latest is None else [self.latest])
        return [(seconds, *measure()) for seconds, measure in kept]


def at_the_end(trace: list[tuple[float, float, float]], budget: float) -> tuple[float, float, float]:
    """The last snapshot that is not late."""
    return [point for k, point in enumerate(trace) if k == 0 or point[0] <= LATE * budget][-1]


class Task:
    """The samples of a case, its network's shape, starts and scores. Two tasks of one case are the same."""

    def __init__(self, case: Case):
        self.case, self.problem, self.sigma = case, case.problem(), activation(case.activation)
        self.samples = self.problem.samples(case.points, case.boundary_points, case.test_points)
        self.scaling = scaling_of(self.samples)  # peers get the units, and the boundary weight, that ours choose
        self.terms = [directional(self.scaling.term(term)) for term in self.samples.terms]  # one tangent: quicker
        self.widths = (case.inputs, *[case.width] * (case.depth - 1), self.samples.outputs)
        self._loss = jax.jit(lambda network: mean_square(network, self.samples.terms))
        self._value = jax.jit(lambda network, x: network(Jet(x, jnp.zeros((len(x), 0, x.shape[1])))).value)

    def start(self, seed: int, init: str) -> Network:
        """The weights that `sapm.solve` starts from with that seed, in its units."""
        key = jax.random.split(jax.random.fold_in(jax.random.key(0), seed))[0]
        return initialise(key, self.widths, self.sigma, init)

    def original(self, network: Network) -> Network:
        """A network trained on `terms`, in the problem's own units."""
        return Network.of([(jnp.asarray(W), jnp.asarray(b)) for W, b in self.scaling.original(network.weights)], self.sigma)

    def measure(self, network: Callable[[Jet], Jet]) -> tuple[float, float]:
        """The relative error at the test points, and the true loss; of a network, or another function, in the problem's units."""
        value = self._value(network, jnp.asarray(self.samples.test["x"]))
        return relative_error(value, self.samples.test["y"]), float(self._loss(network))
