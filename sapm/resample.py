"""Points where they are needed: at first in the beginning of the time, if it is long; then, now and then, half of them are drawn
anew where the residual is large."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sapm.conditions import Initial
from sapm.devices import agreed
from sapm.jet import Activation, float64
from sapm.methods.build import affordable, build
from sapm.network import Network
from sapm.objective import mean_square
from sapm.problem import PDE
from sapm.result import weights_of
from sapm.run import KEPT, Run, noted, sizes_of
from sapm.samples import Samples, Weights, data_size, network_of
from sapm.summary import LOST, PASSING
from sapm.term import Term
from sapm.train import STOPPED, settled

EVERY = 15  # steps, by default
SHARE, POOL, MOST = 0.5, 20, 40_000  # how many are drawn, from how many times as many, and at most
POOLS = 16  # as many of these before the first comes again
WORSE = 2.0  # times as large as at the points trained on the residual must be elsewhere
FAR, ENOUGH = 10.0, 3  # times as large, that more points are taken, up to so many for every weight
EARLY = 1 / 3  # of the time for a run: later, more points and longer steps are not worth it
TIMES, LESS = 8, 0.9  # so often in a row it must not have come down to that fraction of the lowest before, for a run to end
STAGES, MANY_STAGES = 3, 10  # doublings of the time in a second attempt, and at most
SOLVED, STUCK = 1e-3, 3  # how small errors must be for the next one, or after how many looks it comes anyway
HALF = 1 / 2  # of the seconds: then the time is all of it
AGAIN = 3  # times as many steps for a second attempt


@jax.jit
def _sizes(network: Network, term: Term) -> Array:
    return jnp.linalg.norm(term.residual(network(term.x)), axis=1)


@float64
def harder(
    problem: PDE, samples: Samples, networks: Sequence[Weights], sigma: Activation, draw: int, more: bool = True
) -> tuple[np.ndarray | None, list[float]]:
    """The points to train on from here; None if the residual elsewhere is not much larger than at those there are. And how
    large it is there, of each of the networks.

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
    if not worse or np.median(worse) < WORSE:
        return None, sizes
    weights = sum(W.size + b.size for W, b in networks[0])
    if more and np.median(worse) > FAR:
        n = max(n, min(2 * n, ENOUGH * weights))
    many = min(int(SHARE * n), np.count_nonzero(found))
    drawn = np.random.default_rng(draw).choice(size, many, replace=False, p=found / found.sum())
    first = np.ascontiguousarray(domain.points(n - many + len(held)))
    tested = {row.tobytes() for row in np.ascontiguousarray(held)}
    first = first[[row.tobytes() not in tested for row in first]][: n - many]
    return np.concatenate([first, pool[drawn]]), sizes


def elsewhere(
    problem: PDE, run: Run, samples: Samples, config: dict, draw: int, more: bool = True
) -> tuple[np.ndarray | None, np.ndarray]:
    """What `harder` says of the seeds of a run: the points, and the residual of every seed, infinite for those that are lost."""
    weights, order = weights_of(run, samples, config), [i for i in run.ranking.tolist() if run.status[i] not in LOST]
    x, found = harder(problem, samples, [weights[i] for i in order], run.method.sigma, draw, more)
    sizes = np.full(len(run.seeds), np.inf)
    sizes[order] = found
    return x, sizes


def evolves(problem) -> bool:
    """Whether u follows from its start in a way that is not linear: then it may be trained in stages of time."""
    if not isinstance(problem, PDE) or not problem.equation.nonlinear or problem.equation.parameters:
        return False
    return any(isinstance(c, Initial) for c in problem.conditions)


def in_stages(config: dict) -> dict:
    """The configuration of a second attempt, where the first one was no solution."""
    kept = {name: value for name, value in config.items() if name not in PASSING}
    said = "A first attempt ended in no solution; this is a second one, on an eighth, a quarter, half and all of the time. "
    steps = max(AGAIN * config["max_iter"], (STAGES * STUCK + 1) * (config["options"]["resample"] or 0) + config["max_iter"])
    more = {"points": config["again"], "max_iter": steps, "second": True}
    return kept | more | {"options": config["options"] | {"stages": STAGES}, "choice": config["choice"] + said}


def early(problem: PDE, samples: Samples, share: float) -> np.ndarray:
    """As many points as there are, in that share of the time; the first of the sequence, without test points."""
    domain, n, held = problem.domain, len(samples.terms[0].y), np.ascontiguousarray(samples.test.get("x", np.zeros((0, 1))))
    i, tested, many = domain.names.index("t"), {row.tobytes() for row in held}, n + len(held)
    center, spread = (part[i] for part in domain.frame)
    while True:
        x = np.ascontiguousarray(domain.points(many))
        x = x[x[:, i] <= center + (2 * share - 1) * spread] if share < 1 else x
        x = x[[row.tobytes() not in tested for row in x]]
        if len(x) >= n:
            return x[:n]
        many, share = 2 * many, share if many < MOST * 25 else 1.0  # a shape may have next to nothing there


def at_points(problem: PDE, samples: Samples, x: np.ndarray, config: dict) -> Samples:
    """Samples at these points in place of others, in the same units."""
    held = samples.test.get("x", 0)
    return replace(problem.samples(x, config["boundary_points"], held, config["mu"]), kept=samples.scaling)


def first_stage(problem: PDE, samples: Samples, config: dict) -> tuple[Samples, dict]:
    """The samples that a run begins with, if it takes its time in stages."""
    share = 0.5 ** config["options"]["stages"]
    return at_points(problem, samples, early(problem, samples, share), config), config | {"points": None, "stage": [share, 0]}


def _solved(run: Run, samples: Samples) -> bool:
    """Whether half of the seeds fit what they were given."""
    alive = [status not in LOST for status in run.status]
    return bool(np.median(run.history["mean_squared_loss"][alive, -1]) <= SOLVED**2 * data_size(samples))


Training = tuple[Run, Samples, Any, "Lowest", dict]


def look_elsewhere(problem: PDE, training: Training, sigma: Activation, at: int, every: int, seconds: float | None) -> Training:
    """A run after a look at other points: with the points to go on with, or closed where looking shows no more progress."""
    run, samples, method, lowest, config = training
    config: dict[str, Any] = config | {"drawn_at": at}
    used = 0.0 if seconds is None else float(run.history["seconds"].max()) / seconds
    used = float(agreed(used)[0])
    share, since = config.get("stage") or (1.0, 0)
    if share < 1:
        if used > HALF:
            share = 1.0
        elif _solved(run, samples) or at - since >= STUCK * every:
            share *= 2
        else:
            return run, samples, method, lowest, config
        x, config["stage"], grown = early(problem, samples, share), [share, at], True
    else:
        grown = False
        more = used < EARLY and bool(problem.equation.nonlinear)  # shocks are of these; elsewhere it only took time
        more = more and _twice_is_little(problem, samples, method.widths)
        x, sizes = elsewhere(problem, run, samples, config, at // every, more)
        lowest, config["fresh"] = lowest.seen(run, sizes), [*config.get("fresh", ()), float(sizes[run.best])]
        if no_longer_falls(config["fresh"]):
            why = f"the residual at fresh points no longer falls, after {at} iterations."
            return closed(run, "stalled", why), samples, method, lowest, training[-1] | {"over": True}
    if x is not None:
        samples, config["points"] = at_points(problem, samples, x, config), None
        method = build(samples, config, sigma)
        run = renewed(run, method, grown)
    return run, samples, method, lowest, config


def _twice_is_little(problem: PDE, samples: Samples, widths: Sequence[int]) -> bool:
    """Whether Gauss-Newton steps on twice as many points are still such as "auto" would take."""
    equation, n = problem.equation, 2 * len(samples.terms[0].y)
    rows = n * equation.rows + sum(term.y.size for term in samples.terms[1:])
    return affordable(rows, n * equation.channels, widths)


@dataclass(frozen=True, eq=False)
class Lowest:
    """Of every seed, the state with which its residual elsewhere was the smallest: that `size`, and the record. Infinite and -1
    for a seed of which nothing is known."""

    size: np.ndarray
    record: np.ndarray
    states: Any = None

    @staticmethod
    def none(count: int) -> Lowest:
        return Lowest(np.full(count, np.inf), np.full(count, -1))

    @staticmethod
    def before(run: Run | None, config: dict) -> Lowest:
        """Of a run that is continued."""
        found = sizes_of(config, "lowest")
        if run is None or not (found < np.inf).any():
            return Lowest.none(len(config["seeds"]))
        return Lowest(found, np.where(found < np.inf, run.chosen, -1), run.states if run.kept is None else run.kept)

    @float64
    def seen(self, run: Run, size: np.ndarray) -> Lowest:
        """With the states of a run that were looked at now, where they are better."""
        better, last = size < self.size, run.history["loss"].shape[1] - 1
        states = run.states if self.states is None else _merged(better, run.states, self.states)
        return Lowest(np.where(better, size, self.size), np.where(better, last, self.record), states) if better.any() else self

    def unless_lost(self, run: Run) -> Lowest:
        """Nothing of seeds that were lost since."""
        return self.where([status not in LOST for status in run.status])

    def where(self, known: Sequence[bool] | np.ndarray) -> Lowest:
        size, record = np.where(known, self.size, np.inf), np.where(known, self.record, -1)
        return Lowest(size, record, self.states if (record >= 0).any() else None)

    def noted(self, config: dict) -> dict:
        """The configuration of a file, from which `before` reads it."""
        return noted({name: value for name, value in config.items() if name != "lowest"}, "lowest", self.size)

    @float64
    def kept_by(self, run: Run) -> Run:
        """The run, with these states to stand for it; the reasons say so."""
        last, known = run.history["loss"].shape[1] - 1, self.record >= 0
        earlier = known & (self.record < last)
        if not known.any():
            return run
        at = [int(run.history["iteration"][i, record]) for i, record in enumerate(self.record)]
        why = "which has the smallest residual at fresh points."
        reason = [said.split(KEPT)[0] + (f"{KEPT} {at[i]}, {why}" if earlier[i] else "") for i, said in enumerate(run.reason)]
        # also where it is the last: as it was looked at, before it was made ready for other points
        kept, chosen = _merged(known, self.states, run.states), np.where(known, self.record, last)
        return replace(run, kept=kept, chosen=chosen, reason=tuple(reason))


def _merged(first: np.ndarray, a, b):
    """The states of some seeds from a, of the others from b."""
    return jax.tree.map(lambda x, y: jnp.where(first.reshape(-1, *[1] * (x.ndim - 1)), x, y), a, b)


@float64
def at_held(run: Run, samples: Samples, config: dict) -> np.ndarray:
    """The mean residual of every seed at the test points, as far as a file has it; inf if it has not."""
    if samples.held is None:
        return np.full(len(run.seeds), np.inf)
    networks = [network_of(samples, weights, run.method.sigma) for weights in weights_of(run, samples, config)]
    return np.nan_to_num([np.mean(_sizes(network, samples.held)) for network in networks], nan=np.inf)


@jax.jit
def _loss(network: Network, terms: Sequence[Term]) -> Array:
    return mean_square(network, terms)


@float64
def compared(run: Run, samples: Samples, config: dict) -> tuple[Run, dict]:
    """The run with what its seeds are ranked by where they stand for different points, so that their losses cannot be compared:
    the true loss with the residual at the test points. And the configuration of a file, which has it too."""
    alive = [chosen for chosen, status in zip(run.chosen.tolist(), run.status, strict=True) if status not in LOST]
    if samples.held is None or len(set(alive)) < 2 or config["points"] is not None:  # they are the first ones still
        return run, config
    terms, weights = (samples.held, *samples.terms[1:]), weights_of(run, samples, config)
    found = [float(_loss(network_of(samples, w, run.method.sigma), terms)) for w in weights]
    scores = np.nan_to_num(found, nan=np.inf)
    return replace(run, scores=scores), noted(config, "scores", scores)


def at_last(run: Run) -> Run:
    """The run with the states it ended with."""
    last, reason = run.history["loss"].shape[1] - 1, tuple(said.split(KEPT)[0] for said in run.reason)
    return replace(run, kept=None, chosen=np.full(len(run.seeds), last), reason=reason, scores=None)


def no_longer_falls(sizes: Sequence[float]) -> bool:
    """Whether the residual elsewhere has come to rest."""
    return len(sizes) > TIMES and min(sizes[-TIMES:]) > LESS * min(sizes[:-TIMES])


def closed(run: Run, status: str, why: str) -> Run:
    """A run that goes on with no seed."""
    going = [old not in STOPPED for old in run.status]
    states = tuple(status if end else old for end, old in zip(going, run.status, strict=True))
    reason = tuple(why if end else old for end, old in zip(going, run.reason, strict=True))
    return replace(run, status=states, reason=reason, cut=why if status == "interrupted" else run.cut)


@partial(jax.jit, static_argnums=2)
def _renew(method: Any, states, damped: bool):
    return settled(jax.vmap(lambda state: method.renewed(state, method.damping if damped else None))(states))


@float64
def renewed(run: Run, method: Any, damped: bool = False) -> Run:
    """A run that goes on with other samples: seeds that had nothing more to gain have again. Dropped and non-finite ones
    stay as they are. `damped`: as at the start, where the samples are so different that a bold step would lose what there is."""
    history = dict(run.history)
    history["iteration"] = history["iteration"].copy()
    alive = np.array([status not in LOST for status in run.status])
    history["iteration"][alive, -1] = history["iteration"][:, -1].max()
    status = tuple("finished" if on else old for on, old in zip(alive, run.status, strict=True))
    reason = tuple("" if on else old for on, old in zip(alive, run.reason, strict=True))
    return replace(run, method=method, states=_renew(method, run.states, damped), history=history, status=status, reason=reason)
