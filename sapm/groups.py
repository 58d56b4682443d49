"""The states of many seeds, in groups that run side by side; seeds that stopped are taken out when a group less is enough."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sapm.devices import Layout, whole
from sapm.lstsq import SEEDS
from sapm.methods.method import Method
from sapm.objective import mean_square
from sapm.term import Term

CACHE_BYTES = 2**20  # on a CPU, seeds run side by side as long as one layer of them stays in a core's cache,
SIDE_BY_SIDE = 16  # and so many at most: more are not faster, and with fewer, less is computed for seeds that stopped


@dataclass(frozen=True)
class Room:
    """(number of groups, size of each) for n seeds: n/batch groups of `batch`; or, `halving`, one group of all there were at
    first, or of half, a quarter, … of them. Either way a compiled program serves many n."""

    seeds: int
    batch: int
    halving: bool

    def __call__(self, n: int) -> tuple[int, int]:
        if not self.halving:
            return math.ceil(n / self.batch), self.batch
        return 1, min(size for j in range(64) if (size := math.ceil(self.seeds / 2**j)) >= n)


def room(seeds: int, seed_bytes: int, divided: bool = False) -> Room:
    """On a CPU groups as large as the cache takes, all of one size; elsewhere all seeds at once. On several devices there is one
    group, of all seeds, to the end."""
    if divided:
        return Room(seeds, seeds, False)
    if jax.default_backend() != "cpu":
        return Room(seeds, seeds, True)
    groups = math.ceil(seeds / max(1, min(CACHE_BYTES // seed_bytes, SIDE_BY_SIDE)))
    return Room(seeds, math.ceil(seeds / groups), False)


def seated(stopped: np.ndarray, room: Room) -> np.ndarray:
    """The seeds in groups now, where seed i stopped in iteration stopped[i] (inf: it runs): all of them at first, and those
    left whenever they take less room. It follows from `stopped` alone, so a run that is continued has the same groups."""
    seats = np.arange(len(stopped))
    for at in np.unique(stopped[np.isfinite(stopped)]):
        left = seats[stopped[seats] > at]
        if len(left) and room(len(left)) < room(len(seats)):
            seats = left
    return seats


@dataclass(frozen=True)
class Group:
    """What these seeds are at and, with validation data, what each is to keep: trees with a row per seed; further rows are
    padding."""

    seeds: np.ndarray
    states: Any
    kept: Any = None

    @property
    def size(self) -> int:
        return len(jax.tree.leaves(self.states)[0])

    def mask(self, on: np.ndarray):
        """Rows of seeds that are on, of all seeds."""
        return np.pad(on[self.seeds], (0, self.size - len(self.seeds)))


@dataclass(frozen=True)
class Groups:
    running: tuple[Group, ...]
    parked: tuple[Group, ...] = ()
    layout: Layout | None = None

    @property
    def seats(self) -> int:
        return sum(len(group.seeds) for group in self.running)

    def rows(self, wanted: np.ndarray) -> tuple[Any, Any]:
        """(states, kept) of these seeds, by NumPy: shapes here differ from call to call, and nothing is compiled for them."""
        found = [(g, np.flatnonzero(np.isin(g.seeds, wanted))) for g in (*self.running, *self.parked)]
        found = [(g, mine) for g, mine in found if len(mine)]
        order = np.argsort(np.concatenate([g.seeds[mine] for g, mine in found]))[np.argsort(np.argsort(wanted))]

        def collect(*leaves):
            return np.concatenate([np.asarray(x)[mine] for x, (_, mine) in zip(leaves, found, strict=True)])[order]

        return jax.tree.map(collect, *((g.states, g.kept) for g, _ in found))

    def whole(self) -> tuple[Any, Any]:
        """(states, kept) of all seeds."""
        if self.layout is not None:
            (all_seeds,), collected = self.running, self.layout.collected
            return collected(all_seeds.states), None if all_seeds.kept is None else collected(all_seeds.kept)
        if not self.parked and len(self.running) == 1 and self.running[0].size == self.seats:
            return self.running[0].states, self.running[0].kept
        count = self.seats + sum(len(group.seeds) for group in self.parked)
        return jax.device_put(self.rows(np.arange(count)))

    def split(self, seats: np.ndarray, room: Room) -> Groups:
        """These of the running seeds in groups anew, as few as there is room in; the others parked."""
        count, size = room(len(seats))
        if (len(self.running), self.seats, self.running[0].size) == (count, len(seats), size):
            return self
        running = []
        for mine in np.split(seats, range(size, len(seats), size)):
            more = np.r_[np.arange(len(mine)), np.zeros(size - len(mine), int)]
            running.append(Group(mine, *jax.device_put(jax.tree.map(lambda x, more=more: x[more], self.rows(mine)))))
        others = np.setdiff1d(np.concatenate([group.seeds for group in self.running]), seats)
        return Groups(tuple(running), (*self.parked, Group(others, *self.rows(others))) if len(others) else self.parked)

    def state(self, i: int):
        """Of the running seed i."""
        group = next(group for group in self.running if i in group.seeds)
        return jax.tree.map(lambda x: x[int(np.flatnonzero(group.seeds == i)[0])], group.states)

    def put(self, i: int, state) -> Groups:
        """With that state for the running seed i."""

        def placed(group: Group) -> Group:
            if i not in group.seeds:
                return group
            row = int(np.flatnonzero(group.seeds == i)[0])
            return replace(group, states=jax.tree.map(lambda x, y: x.at[row].set(y), group.states, state))

        return replace(self, running=tuple(placed(group) for group in self.running))

    def keep(self, better: np.ndarray) -> Groups:
        """Where it is better, what a seed is at becomes what it keeps."""
        running = (replace(g, kept=_pick(g.mask(better), g.states, g.kept, self.layout)) for g in self.running)
        return replace(self, running=tuple(running))


@jax.jit
def measured(method: Method, states, validation: Term | None) -> tuple:
    """Of every seed: the actual loss, the true loss, the loss on validation data, if there are any, the method's diagnostics."""

    def one(state):
        more = [] if validation is None else [mean_square(method.network(state), [validation])]
        return *method.losses(state), *more, *(value for _, value in sorted(method.diagnostics(state).items()))

    return jax.vmap(one)(states)


@partial(jax.jit, static_argnames="layout")
def chunk(method: Method, states, validation: Term | None, steps, layout: Layout | None = None):
    """`steps` steps of the seeds of a group, side by side, and what is measured of them then."""
    states = jax.vmap(lambda state: lax.fori_loop(0, steps, lambda _, s: method.step(s), state), axis_name=SEEDS)(states)
    found = measured(method, states, validation)
    return (states, found) if layout is None else (layout.pinned(states), layout.everywhere(found))


@partial(jax.jit, static_argnames="layout")
def _pick(on, new, old, layout: Layout | None = None):
    picked = jax.tree.map(lambda x, y: jnp.where(on.reshape(-1, *(1,) * (x.ndim - 1)), x, y), new, old)
    return picked if layout is None else layout.pinned(picked)


def stepped(method: Method, groups: Groups, validation: Term | None, steps: int, on: np.ndarray, current: np.ndarray):
    """The groups after so many steps of the seeds that are on, and `current`, (quantities, seeds), with what is measured of
    them; the others stay as they are, and a group without any is not computed."""
    layout = groups.layout
    with whole():
        called = [chunk(method, g.states, validation, steps, layout) if on[g.seeds].any() else None for g in groups.running]
    current, running = current.copy(), []
    for group, call in zip(groups.running, called, strict=True):
        if call is None:
            running.append(group)
            continue
        new, found = call
        mine = on[group.seeds]
        running.append(replace(group, states=new if mine.all() else _pick(group.mask(on), new, group.states, layout)))
        current[:, group.seeds[mine]] = np.array([np.asarray(x) for x in found])[:, : len(mine)][:, mine]
    return replace(groups, running=tuple(running)), current
