"""Points where they are needed: now and then, half of them are drawn anew where the residual is large."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sapm.jet import Activation, float64
from sapm.network import Network
from sapm.problem import PDE
from sapm.run import Run
from sapm.samples import Samples, Weights, network_of
from sapm.summary import LOST
from sapm.term import Term
from sapm.train import STOPPED, settled

EVERY = 15  # steps, by default
SHARE, POOL, MOST = 0.5, 20, 40_000  # how many are drawn, from how many times as many, and at most
POOLS = 16  # as many of these before the first comes again
WORSE = 2.0  # times as large as at the points trained on the residual must be elsewhere
KEPT = " Kept is the network of iteration"
FAR, ENOUGH = 10.0, 3  # times as large, that more points are taken, up to so many for every weight
EARLY = 1 / 3  # of the time for a run: later, more points and longer steps are not worth it
TIMES, LESS = 8, 0.9  # so often in a row it must not have come down to that fraction of the lowest before, for a run to end


@jax.jit
def _sizes(network: Network, term: Term) -> Array:
    return jnp.linalg.norm(term.residual(network(term.x)), axis=1)


@float64
def harder(
    problem: PDE, samples: Samples, networks: Sequence[Weights], sigma: Activation, draw: int, more: bool = True
) -> tuple[np.ndarray | None, float]:
    """The points to train on from here; None if the residual elsewhere is not much larger than at those there are. And how
    large it is there, of the first of the networks.

    There are n as before, or, where the networks fit their points FAR better than others and there may be `more`, twice as many,
    up to ENOUGH for every weight: fewer leave a network free to pass between them.

    Of a pool of further Halton points, those with a large residual are the more likely to be taken; every seed has a say.
    The others are the first of the sequence. `draw` counts, so that every draw is another one. Test points are not among them.
    """
    domain, n, held = problem.domain, len(samples.terms[0].y), samples.test.get("x", np.zeros((0, 1)))
    size = min(POOL * n, MOST)
    pool = domain.points(size, domain.first + n + len(held) + draw % POOLS * size)
    term = problem.samples(pool, max(1, len(problem.soft)), 0, 1.0).terms[0]
    found, worse, sizes = np.zeros(size), [], []
    for weights in networks:
        network = network_of(samples, weights, sigma)
        here, there = np.asarray(_sizes(network, samples.terms[0])), np.asarray(_sizes(network, term))
        sizes.append(float(there.mean()) if np.isfinite(there).all() else np.inf)  # squares would be those of a few points
        if np.isfinite(there).all() and there.any():
            found += there / there.mean()
            worse.append(np.sqrt(np.mean(there**2)) / max(np.sqrt(np.mean(here**2)), 1e-300))
    least = sizes[0] if sizes else np.inf
    if not worse or np.median(worse) < WORSE:
        return None, least
    weights = sum(W.size + b.size for W, b in networks[0])
    if more and np.median(worse) > FAR:
        n = max(n, min(2 * n, ENOUGH * weights))
    many = min(int(SHARE * n), np.count_nonzero(found))
    drawn = np.random.default_rng(draw).choice(size, many, replace=False, p=found / found.sum())
    first = np.ascontiguousarray(domain.points(n - many + len(held)))
    tested = {row.tobytes() for row in np.ascontiguousarray(held)}
    first = first[[row.tobytes() not in tested for row in first]][: n - many]
    return np.concatenate([first, pool[drawn]]), least


@dataclass(frozen=True)
class Lowest:
    """The states with which the residual elsewhere, of the seed that was the best then, was the smallest; their record, and
    that seed."""

    size: float = np.inf
    states: Any = None
    record: int = -1
    seed: int = -1

    @staticmethod
    def before(run: Run | None, config: dict) -> Lowest:
        """Of a run that is continued."""
        if run is None or not config.get("lowest", np.inf) < np.inf:
            return Lowest()
        return Lowest(config["lowest"], run.states if run.kept is None else run.kept, int(run.chosen[0]), run.best)

    def seen(self, run: Run, size: float) -> Lowest:
        return Lowest(size, run.states, run.history["loss"].shape[1] - 1, run.best) if size < self.size else self

    def unless_lost(self, run: Run) -> Lowest:
        """Nothing, if that seed was lost since."""
        return Lowest() if self.states is not None and run.status[self.seed] in LOST else self

    def noted(self, config: dict) -> dict:
        """The configuration of a file, from which `before` reads it."""
        rest = {name: value for name, value in config.items() if name != "lowest"}
        return rest if self.states is None else rest | {"lowest": self.size}

    def kept_by(self, run: Run) -> Run:
        """The run, with these states to stand for it; the reasons say so."""
        last = run.history["loss"].shape[1] - 1
        if self.states is None or self.record == last:
            return run
        at = int(run.history["iteration"][:, self.record].max())
        why = "which has" if len(run.seeds) == 1 else "where the best seed had"
        reason = tuple(f"{said.split(KEPT)[0]}{KEPT} {at}, {why} the smallest residual at fresh points." for said in run.reason)
        return replace(run, kept=self.states, chosen=np.full(len(run.seeds), self.record), reason=reason)


@float64
def at_held(samples: Samples, weights: Weights, sigma: Activation) -> float:
    """The mean residual at the test points, as far as a file has it; inf if it has not."""
    sizes = None if samples.held is None else np.asarray(_sizes(network_of(samples, weights, sigma), samples.held))
    return np.inf if sizes is None or not np.isfinite(sizes).all() else float(sizes.mean())


def at_last(run: Run) -> Run:
    """The run with the states it ended with."""
    last = run.history["loss"].shape[1] - 1
    return replace(run, kept=None, chosen=np.full(len(run.seeds), last), reason=tuple(said.split(KEPT)[0] for said in run.reason))


def no_longer_falls(sizes: Sequence[float]) -> bool:
    """Whether the residual elsewhere has come to rest."""
    return len(sizes) > TIMES and min(sizes[-TIMES:]) > LESS * min(sizes[:-TIMES])


def closed(run: Run, status: str, why: str) -> Run:
    """A run that goes on with no seed."""
    going = [old not in STOPPED for old in run.status]
    states = tuple(status if end else old for end, old in zip(going, run.status, strict=True))
    reason = tuple(why if end else old for end, old in zip(going, run.reason, strict=True))
    return replace(run, status=states, reason=reason)


@jax.jit
def _renew(method: Any, states):
    return settled(jax.vmap(method.renewed)(states))


@float64
def renewed(run: Run, method: Any) -> Run:
    """A run that goes on with other samples: seeds that had nothing more to gain have again. Dropped and non-finite ones
    stay as they are."""
    history = dict(run.history)
    history["iteration"] = history["iteration"].copy()
    alive = np.array([status not in LOST for status in run.status])
    history["iteration"][alive, -1] = history["iteration"][:, -1].max()
    status = tuple("finished" if on else old for on, old in zip(alive, run.status, strict=True))
    reason = tuple("" if on else old for on, old in zip(alive, run.reason, strict=True))
    return replace(run, method=method, states=_renew(method, run.states), history=history, status=status, reason=reason)
