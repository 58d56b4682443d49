"""Many seeds: the groups in which they run side by side, which of them successive halving drops,
and how many of them succeed.

Seeds that have stopped are taken out of the groups as soon as one group fewer is enough.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sapm.errors import brief, number
from sapm.methods.engine import Engine, SteppingEngine
from sapm.numerics.lstsq import VMAP_SEEDS_AXIS
from sapm.objective.penalty import mean_square
from sapm.objective.terms import Term
from sapm.training.devices import Layout
from sapm.training.run import Run, Status

# On a CPU, as many seeds run side by side as have room in the cache of a core, with one layer each.
CORE_CACHE_BYTES = 2**20
# Larger groups are not faster. Smaller groups compute less for seeds that have stopped.
LARGEST_GROUP_ON_CPU = 16
# The paper's rule: a seed succeeds if its loss falls below this fraction of its initial loss.
SUCCESS_FRACTION = 0.1
CONFIDENCE = 0.95  # of the interval of a rate of success
SEEDS_FOR_A_RATE = 10  # with so many seeds or more the summary shows the rate of success


@dataclass(frozen=True)
class Room:
    """The groups that n seeds need: `Room(…)(n)` is (number of groups, size of each).

    Parameters
    ----------
    seeds : the number of seeds at first.
    batch : the size of a group; ⌈n/batch⌉ groups hold n seeds.
    one_group : whether one group holds all seeds instead. Its size is then ⌈seeds/2^j⌉ for the
        largest j with ⌈seeds/2^j⌉ ≥ n.

    In both cases there are few different sizes, so that few programs are compiled.
    """

    seeds: int
    batch: int
    one_group: bool

    def __call__(self, n: int) -> tuple[int, int]:
        if not self.one_group:
            return math.ceil(n / self.batch), self.batch
        return 1, min(size for j in range(64) if (size := math.ceil(self.seeds / 2**j)) >= n)


def room(seeds: int, seed_bytes: int, divided: bool = False) -> Room:
    """The groups for a number of seeds: on a CPU groups of equal size that fit into the cache, on
    other devices one group that is halved.

    Parameters
    ----------
    seeds : the number of seeds.
    seed_bytes : bytes of one layer of one seed.
    divided : whether the seeds are divided among devices; they then stay in one group.
    """
    if divided:
        return Room(seeds, seeds, False)
    if jax.default_backend() != "cpu":
        return Room(seeds, seeds, True)
    groups = math.ceil(seeds / max(1, min(CORE_CACHE_BYTES // seed_bytes, LARGEST_GROUP_ON_CPU)))
    return Room(seeds, math.ceil(seeds / groups), False)


def seated(stopped: np.ndarray, room: Room) -> np.ndarray:
    """The seeds that are in a group. At first these are all seeds. As soon as the seeds that still
    run need fewer or smaller groups, the others leave. The result follows from `stopped` alone, so
    that a continued run has the same groups.

    Parameters
    ----------
    stopped : (seeds,) the iteration in which a seed stopped; inf while it runs.
    room : the groups that a number of seeds needs.
    """
    seats = np.arange(len(stopped))
    for at in np.unique(stopped[np.isfinite(stopped)]):
        remaining = seats[stopped[seats] > at]
        if len(remaining) and room(len(remaining)) < room(len(seats)):
            seats = remaining
    return seats


@dataclass(frozen=True)
class Group:
    """Seeds that run side by side in one compiled program.

    Parameters
    ----------
    seeds : (s,) the indices of the seeds.
    states : their states, a tree of arrays with s rows or more; further rows are padding.
    kept : with validation data, the states with the smallest loss on them so far; else None.
    """

    seeds: np.ndarray
    states: Any
    kept: Any = None

    @property
    def size(self) -> int:
        """The number of rows, padding included."""
        return len(jax.tree.leaves(self.states)[0])

    def mask(self, on: np.ndarray):
        """(rows,) Which rows are of seeds that are on; on: (all seeds,)."""
        return np.pad(on[self.seeds], (0, self.size - len(self.seeds)))


@dataclass(frozen=True)
class Groups:
    """The states of all seeds.

    Parameters
    ----------
    running : the groups that are computed.
    parked : seeds that have stopped, and that no group has a place for.
    layout : how the states are divided among devices; None for one device.
    """

    running: tuple[Group, ...]
    parked: tuple[Group, ...] = ()
    layout: Layout | None = None

    @property
    def seats(self) -> int:
        """The number of seeds in running groups."""
        return sum(len(group.seeds) for group in self.running)

    def rows(self, seeds: np.ndarray) -> tuple[Any, Any]:
        """(states, kept) of these seeds, by NumPy: shapes here differ from call to call, and
        nothing is compiled for them.
        """
        parts = [
            (group, np.flatnonzero(np.isin(group.seeds, seeds)))
            for group in (*self.running, *self.parked)
        ]
        parts = [(group, rows) for group, rows in parts if len(rows)]
        order = np.argsort(np.concatenate([group.seeds[rows] for group, rows in parts]))
        order = order[np.argsort(np.argsort(seeds))]

        def collect(*leaves):
            return np.concatenate(
                [np.asarray(x)[rows] for x, (_, rows) in zip(leaves, parts, strict=True)]
            )[order]

        return jax.tree.map(collect, *((group.states, group.kept) for group, _ in parts))

    def whole(self) -> tuple[Any, Any]:
        """(states, kept) of all seeds."""
        if self.layout is not None:
            (all_seeds,) = self.running
            kept = None if all_seeds.kept is None else self.layout.collected(all_seeds.kept)
            return self.layout.collected(all_seeds.states), kept
        if not self.parked and len(self.running) == 1 and self.running[0].size == self.seats:
            return self.running[0].states, self.running[0].kept
        count = self.seats + sum(len(group.seeds) for group in self.parked)
        return jax.device_put(self.rows(np.arange(count)))

    def split(self, seats: np.ndarray, room: Room) -> Groups:
        """The same with the seeds `seats` in as few groups as possible, and the others parked.

        Parameters
        ----------
        seats : (s,) the indices of the seeds that need a place.
        room : the groups that a number of seeds needs.
        """
        count, size = room(len(seats))
        if (len(self.running), self.seats, self.running[0].size) == (count, len(seats), size):
            return self
        running = []
        for members in np.split(seats, range(size, len(seats), size)):
            # padding repeats the first seed
            padded = np.r_[np.arange(len(members)), np.zeros(size - len(members), int)]
            rows = jax.tree.map(lambda x, padded=padded: x[padded], self.rows(members))
            running.append(Group(members, *jax.device_put(rows)))
        others = np.setdiff1d(np.concatenate([group.seeds for group in self.running]), seats)
        parked = (Group(others, *self.rows(others)),) if len(others) else ()
        return Groups(tuple(running), (*self.parked, *parked))

    def state(self, i: int):
        """The state of the running seed i."""
        group = next(group for group in self.running if i in group.seeds)
        return jax.tree.map(lambda x: x[int(np.flatnonzero(group.seeds == i)[0])], group.states)

    def put(self, i: int, state) -> Groups:
        """The same with another state of the running seed i."""

        def placed(group: Group) -> Group:
            if i not in group.seeds:
                return group
            row = int(np.flatnonzero(group.seeds == i)[0])
            return replace(
                group, states=jax.tree.map(lambda x, y: x.at[row].set(y), group.states, state)
            )

        return replace(self, running=tuple(placed(group) for group in self.running))

    def keep(self, better: np.ndarray) -> Groups:
        """The same, in which some seeds keep their current state in place of the one kept before.

        Parameters
        ----------
        better : (all seeds,) which seeds.
        """
        running = (
            replace(g, kept=_pick(g.mask(better), g.states, g.kept, self.layout))
            for g in self.running
        )
        return replace(self, running=tuple(running))


@jax.jit
def measured(engine: Engine, states, validation: Term | None) -> tuple:
    """(quantities, seeds): the loss that is minimised, the true loss, the loss on validation data
    (if any), and the diagnostics of the engine by their names.

    Parameters
    ----------
    engine : the engine.
    states : a tree of arrays with a row for each seed.
    validation : a term of data held out, or None.
    """

    def of_seed(state):
        held_out = [] if validation is None else [mean_square(engine.network(state), [validation])]
        diagnostics = (value for _, value in sorted(engine.diagnostics(state).items()))
        return (*engine.losses(state), *held_out, *diagnostics)

    return jax.vmap(of_seed)(states)


@partial(jax.jit, static_argnames="layout")
def chunk(
    engine: SteppingEngine, states, validation: Term | None, steps, layout: Layout | None = None
):
    """The states of a group after `steps` steps, and what is `measured` of them. The seeds are
    computed side by side. `steps` is traced: another number needs no compilation.
    """
    states = jax.vmap(
        lambda state: lax.fori_loop(0, steps, lambda _, s: engine.step(s), state),
        axis_name=VMAP_SEEDS_AXIS,
    )(states)
    values = measured(engine, states, validation)
    if layout is None:
        return states, values
    return layout.pinned(states), layout.everywhere(values)


@partial(jax.jit, static_argnames="layout")
def _pick(on, new, old, layout: Layout | None = None):
    picked = jax.tree.map(
        lambda x, y: jnp.where(on.reshape(-1, *(1,) * (x.ndim - 1)), x, y), new, old
    )
    return picked if layout is None else layout.pinned(picked)


def stepped(
    engine: SteppingEngine,
    groups: Groups,
    validation: Term | None,
    steps: int,
    on: np.ndarray,
    current: np.ndarray,
) -> tuple[Groups, np.ndarray]:
    """The groups after `steps` steps of the seeds that are on, and what is `measured` of them. The
    other seeds stay as they are. A group in which no seed is on is not computed.

    Parameters
    ----------
    engine : the engine.
    validation : a term of data held out, or None.
    on : (all seeds,) whether a seed takes the steps.
    current : (quantities, all seeds) what was measured before.
    """
    layout = groups.layout
    calls = [
        chunk(engine, group.states, validation, steps, layout) if on[group.seeds].any() else None
        for group in groups.running
    ]
    current = current.copy()
    running = []
    for group, call in zip(groups.running, calls, strict=True):
        if call is None:
            running.append(group)
            continue
        new, values = call
        moving = on[group.seeds]
        states = new if moving.all() else _pick(group.mask(on), new, group.states, layout)
        running.append(replace(group, states=states))
        table = np.array([np.asarray(x) for x in values])[:, : len(moving)]
        current[:, group.seeds[moving]] = table[:, moving]
    return replace(groups, running=tuple(running)), current


# ---------------------------------------------------------------- successive halving


def rungs(seeds: int, survivors: int | None, iterations: int) -> dict[int, int]:
    """The rungs of successive halving: {iteration: number of seeds that go on from there}.

    For S seeds, k survivors and n iterations there are R = ⌈log₂(S/k)⌉ rungs. Rung j = 0 … R-1 is
    at iteration ⌈n·2^(j-R)⌉, from which max(k, ⌈S·2^(-j-1)⌉) seeds go on. Every rung costs about
    the same number of steps: half as many seeds for twice as long. Rungs at the same iteration are
    merged.
    """
    if survivors is None or survivors >= seeds:
        return {}
    count = math.ceil(math.log2(seeds / survivors))
    places = {
        math.ceil(iterations * 2.0 ** (j - count)): max(
            survivors, math.ceil(seeds * 2.0 ** (-j - 1))
        )
        for j in range(count)
    }
    return {at: left for at, left in places.items() if 0 < at < iterations}


# ---------------------------------------------------------------- rates of success


@dataclass(frozen=True)
class Success:
    """How many seeds succeeded: `count` of `of`. `str` gives a sentence.

    Parameters
    ----------
    rate, low, high : count / of, and its 95 % Wilson interval.
    rule : what success means, in words.
    dropped : how many seeds successive halving dropped; they count as failed.
    """

    rate: float
    low: float
    high: float
    count: int
    of: int
    rule: str
    dropped: int

    def __str__(self) -> str:
        least = (
            f"; {self.dropped} were dropped and count as failed, so this is a lower bound"
            if self.dropped
            else ""
        )
        return (
            f"{self.count} of {self.of} seeds succeed ({self.rule}): {self.rate:.1%}, "
            f"with {CONFIDENCE:.0%} confidence {self.low:.1%} to {self.high:.1%}{least}."
        )


def success(run: Run, below: float | None = None) -> Success:
    """How many seeds succeeded: those whose final loss is below a tenth of their initial loss (the
    paper's rule), or whose final true loss is below a given number. Seeds that were dropped or
    became non-finite have not.

    Parameters
    ----------
    run : the run with all its seeds.
    below : the limit of the true loss; None is the paper's rule.
    """
    from scipy.stats import binomtest

    if below is None:
        reached = run.final("loss") < SUCCESS_FRACTION * run.history["loss"][:, 0]
        rule = f"minimised loss below {SUCCESS_FRACTION:.0%} of its initial value, the paper's rule"
    else:
        if not number(below) > 0:
            raise ValueError(
                f"below: got {brief(below)}, expected a positive number; give the limit that the "
                "true loss of a seed must be below."
            )
        reached = run.final("mean_squared_loss") < below
        rule = f"true loss below {below:.3g}"
    count = int(np.sum(reached & ~run.lost))
    of = len(run.seeds)
    ends = binomtest(count, of).proportion_ci(CONFIDENCE, method="wilson")
    return Success(
        count / of,
        float(ends.low),
        float(ends.high),
        count,
        of,
        rule,
        run.status.count(Status.DROPPED),
    )
