"""What training gives: the states of all seeds, their history, and why each of them stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sapm.halving import ranking
from sapm.jet import Jet, float64
from sapm.methods.method import Method
from sapm.names import brief
from sapm.network import Network
from sapm.objective import Certificate, certificate
from sapm.spread import steepness
from sapm.term import as_columns

KEPT = " Kept is the network of iteration"  # in the reason of a seed that does not stand for its end


def sizes_of(config: dict, name: str) -> np.ndarray:
    """A number for every seed as a configuration has them: None, or nothing at all, where they are not known."""
    found = config.get(name) or [None] * len(config["seeds"])
    return np.array([np.inf if size is None else size for size in found])


def noted(config: dict, name: str, sizes: np.ndarray) -> dict:
    """A configuration with a number for every seed, if any of them is known."""
    known = sizes < np.inf
    if not known.any():
        return config
    return config | {name: [size if there else None for size, there in zip(sizes.tolist(), known, strict=True)]}


@dataclass(frozen=True)
class Run:
    """What the loop gives. `history` has (seeds, records) arrays: iteration, seconds, loss, mean_squared_loss, bound_ratio.

    bound_ratio is the true loss over (bound × actual loss): at most 1 where a theorem binds them, NaN where none does; and
    the method's diagnostics.
    `status` of a seed: "finished", "converged", "stalled", "dropped" (others were better), "non-finite" (its actual loss),
    "out of time", "stopped", "interrupted" or, for a run that goes on, "running"; `reason` says it in a sentence. A seed
    that failed keeps its last finite state.
    `chosen[i]` is the record that the result of seed i stands for: the last, or with validation data the one that fits them
    best, or where points are drawn anew the one with the smallest residual elsewhere; its state is then in `kept`.
    `scores`: what seeds are ranked by where their losses cannot be compared. `cut` says when Ctrl-C ended the run, also where
    no seed was going on any more.
    """

    method: Method
    seeds: tuple[int, ...]
    states: Any
    history: dict[str, np.ndarray]
    status: tuple[str, ...]
    reason: tuple[str, ...]
    chosen: np.ndarray
    kept: Any = None
    cut: str = ""
    scores: np.ndarray | None = None

    def final(self, name: str) -> np.ndarray:
        """That quantity of the history for the network of each seed."""
        return self.history[name][np.arange(len(self.seeds)), self.chosen]

    @property
    def best(self) -> int:
        """The index of the first seed in the ranking."""
        return int(self.ranking[0])

    def index(self, seed: int | None) -> int:
        """Of seeds[seed], counted from 0; without one, of the best."""
        if seed is None:
            return self.best
        if not isinstance(seed, (int, np.integer)) or not -len(self.seeds) <= seed < len(self.seeds):
            raise ValueError(f"seed={brief(seed)} is not there; seeds[0] to seeds[{len(self.seeds) - 1}] are.")
        return int(seed) % len(self.seeds)

    @property
    def ranking(self) -> np.ndarray:
        """Seeds by their final actual loss, the smallest first (the paper's rule; with validation data, by the loss on them, and
        by `scores` if there are some); dropped seeds behind all others, failed ones last."""
        loss = self.final("validation_loss" if "validation_loss" in self.history else "loss")
        return ranking(self.status, loss if self.scores is None else self.scores)

    def state(self, i: int) -> Any:
        return jax.tree.map(lambda x: x[i], self.states if self.kept is None else self.kept)

    @float64
    def network(self, i: int) -> Network:
        return self.method.network(self.state(i))

    @float64
    def predict(self, i: int, x) -> np.ndarray:
        """The network of seed i, in the units it was trained in, at the points x, (n, d) or (n,): an array (n, outputs)."""
        x = as_columns("x", x)
        if x.shape[1] != self.method.widths[0]:
            raise ValueError(f"x has {x.shape[1]} columns; the network takes {self.method.widths[0]} inputs.")
        return np.asarray(self.network(i)(Jet(x, jnp.zeros((len(x), 0, x.shape[1])))).value)

    @float64
    def certificate(self, i: int) -> Certificate:
        loss, true = (self.final(name)[i] for name in ("loss", "mean_squared_loss"))
        point = self.method.point(self.state(i))
        steep = None if point is None else steepness(self.method.objective.terms, point.network, point.aux)
        return certificate(self.method.objective, self.method.sigma, loss, true, steep)


@dataclass(frozen=True)
class Moment:
    """How a run stands between two compiled calls. Arrays have one entry per seed; `run()` is all of it so far."""

    iteration: int
    seconds: float
    loss: np.ndarray
    mean_squared_loss: np.ndarray
    bound_ratio: np.ndarray
    recorded: bool
    run: Callable[[], Run]
