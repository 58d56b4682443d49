"""The one loop: any method, seeds side by side, compiled chunks, a status and a reason for every seed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from sapm.devices import Layout, agreed, anywhere, whole
from sapm.fault import find_fault
from sapm.groups import Group, Groups, room, seated, stepped
from sapm.halving import ranking
from sapm.jet import float64
from sapm.methods.method import Method
from sapm.objective import bound
from sapm.run import Moment, Run
from sapm.term import Term

TURN = 0.5  # seconds that a compiled call may take: the progress shown and the budgets kept are that fine
LARGE, LONG_TURN = 2**29, 4.0  # bytes of states that every call copies, which takes as long as a sweep: fewer and longer calls
STOPPED = ("converged", "stalled", "dropped", "non-finite")  # seeds that do not go on when a run is continued


@float64
def diagnostics_of(method: Method, states) -> list[str]:
    """The names of what a method records beside the losses."""
    return sorted(jax.eval_shape(lambda s: method.diagnostics(jax.tree.map(lambda x: x[0], s)), states))


@jax.jit
def _start(method: Method, keys):
    return settled(jax.vmap(method.init)(keys))


def settled(states):
    """With definite types: a weak type on the first call alone would compile the program twice."""
    return jax.tree.map(lambda x: lax.convert_element_type(x, x.dtype), states)


def _ratio(constant: float | None, loss: np.ndarray, true: np.ndarray) -> np.ndarray:
    """true / (bound × loss), with 0/0 = 1/bound; NaN without a bound."""
    if constant is None:
        return np.full(np.shape(loss), np.nan)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(loss == true, 1.0, true / loss) / constant


def next_record(done: int, every: int | None) -> int:
    """Records stand at multiples of `every`; by default at 1, 2, …, 100, 110, …, 1000, 1100, …: two digits are enough."""
    unit = every or 10 ** max(0, math.floor(math.log10(max(done, 1))) - 1)
    return (done // unit + 1) * unit


class Loop:
    """The moving parts of `train`."""

    together = False  # whether all seeds stay in one group

    def __init__(self, method: Method, seeds: tuple[int, ...], states, validation, previous: Run | None, every, rungs, layout):
        self.whole, kept = method, None if validation is None else states if previous is None else previous.kept
        if layout is not None:
            method, states, validation = layout.method(method), layout.divided(states), layout.copied(validation)
            kept = None if kept is None else layout.divided(kept)
        self.method, self.seeds, self.validation, self.every, self.rungs = method, seeds, validation, every, rungs
        self.names = ["iteration", "seconds", "loss", "mean_squared_loss"] + ["validation_loss"] * (validation is not None)
        self.diagnostics = diagnostics_of(method, states)
        self.names += self.diagnostics
        self.bound = bound(self.whole.objective, method.sigma)[0]
        self.room, self.began = room(len(seeds), method.seed_bytes, self.together or layout is not None), time.perf_counter()
        self.now, self.marked = 0.0, (0, {})
        self.turn = TURN if sum(x.nbytes for x in jax.tree.leaves(states)) < LARGE else LONG_TURN
        self.pace: float | None = None  # seconds per step of all seeds; unknown until the first call has been compiled
        count = len(seeds)
        self.groups = Groups((Group(np.arange(count), states, kept),), layout=layout)
        self.stopped = np.full(count, np.inf)
        self.lowest = self.lowest_before = np.full((2, count), np.inf)  # of both losses: so far, and in the first `early` records
        self.early = 0
        if previous is None:
            self.records: list[tuple] = []
            self.done, self.status, self.reason = np.zeros(count, int), ["finished"] * count, [""] * count
            self.current, self.active = np.full((len(self.names) - 2, count), np.nan), np.ones(count, bool)
            self.regroup(0)
            self.groups, self.current = self.stepped(0, self.active)
            for i in np.flatnonzero(~np.isfinite(self.current[0])).tolist():
                self.stop(i, "non-finite", "the loss of the starting point is not finite.")
            self.chosen = np.zeros(count, int)
            self.record()
            return
        self.status, self.reason = list(previous.status), list(previous.reason)
        self.records = list(zip(*(previous.history[name].T for name in self.names), strict=True))
        self.done, self.current = self.records[-1][0].copy(), np.array(self.records[-1][2:])
        self.active = np.array([status not in STOPPED for status in self.status])
        for i in np.flatnonzero(~self.active).tolist():
            self.stop(i, self.status[i], self.reason[i])
        self.began -= float(self.records[-1][1].max())
        if self.active.any() and not self.on_grid(self.iteration):
            self.records.pop()  # a run that had not stopped here would have no such record
        self.lowest = np.min([r[2:4] for r in self.records], axis=0)
        self.regroup(int(self.records[-1][0].max()))
        self.chosen = np.minimum(previous.chosen, len(self.records) - 1)
        for i in np.flatnonzero(self.active).tolist():
            self.status[i], self.reason[i] = "finished", ""

    @property
    def iteration(self) -> int:
        """Steps taken by the seeds that still run."""
        return int(self.done[self.active][0] if self.active.any() else self.done.max())

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def next_stop(self, done: int) -> int:
        """The next record; rungs have one too."""
        return min([next_record(done, self.every), *(at for at in self.rungs if at > done)])

    def on_grid(self, done: int) -> bool:
        return done == 0 or self.next_stop(done - 1) == done

    def stop(self, i: int, status: str, why: str) -> None:
        """A seed that broke has its place until the next record, whenever that was noticed: groups do not depend on the clock."""
        self.active[i], self.status[i], self.reason[i] = False, status, why
        done = int(self.done[i])
        self.stopped[i] = self.next_stop(done) if status == "non-finite" else done

    def regroup(self, now: int) -> None:
        """At a record: the seeds that run, in fewer groups if they have room in them."""
        if self.active.any():
            seats = seated(np.where(self.stopped <= now, self.stopped, np.inf), self.room)
            self.groups = self.groups.split(seats, self.room)

    def stepped(self, steps: int, on: np.ndarray) -> tuple[Groups, np.ndarray]:
        return stepped(self.method, self.groups, self.validation, steps, on, self.current)

    def record(self) -> None:
        self.records.append((self.done.copy(), np.full(len(self.seeds), self.seconds), *self.current))
        self.lowest = np.minimum(self.lowest, self.current[:2])
        if self.validation is None:
            self.chosen[:] = len(self.records) - 1
            return
        if not self.on_grid(self.iteration):
            return  # an uncut run would have no such record, so it cannot be the one that is kept
        best = np.array([self.records[j][4][i] for i, j in enumerate(self.chosen)])
        better = self.current[2] < best
        self.chosen[better] = len(self.records) - 1
        self.groups = self.groups.keep(better)

    @float64
    def run(self, marked: tuple[int, dict] | None = None) -> Run:
        """All of it so far, or at a marked moment. Between records, one more is added for the state that is there."""
        length, at = marked or (len(self.records), vars(self))
        records, chosen = self.records[:length], at["chosen"].copy()
        if np.any(at["done"] != records[-1][0]):
            records.append((at["done"].copy(), np.full(len(self.seeds), at["now"]), *at["current"]))
            chosen = chosen if self.validation is not None else np.full(len(self.seeds), length)
        history = {name: np.stack([r[j] for r in records], axis=1) for j, name in enumerate(self.names)}
        history["bound_ratio"] = _ratio(self.bound, history["loss"], history["mean_squared_loss"])
        status, reason = list(at["status"]), list(at["reason"])
        for i in np.flatnonzero(at["active"]).tolist():
            if not reason[i]:
                status[i], reason[i] = "running", f"not finished: {at['done'][i]} iterations so far."
        states, kept = at["groups"].whole()
        return Run(self.whole, self.seeds, states, history, tuple(status), tuple(reason), chosen, kept)

    def moment(self, recorded: bool) -> Moment:
        loss, true = self.current[:2].copy()
        marked = self.marked
        ratio = _ratio(self.bound, loss, true)
        return Moment(self.iteration, self.seconds, loss, true, ratio, recorded, lambda: self.run(marked))

    def mark(self) -> None:
        """Remember this moment (in one assignment): an interrupt may come anywhere in the next advance."""
        self.now = self.seconds
        kept = {name: value for name, value in vars(self).items() if name not in ("records", "marked")}
        copied = {name: value.copy() if isinstance(value, (np.ndarray, list)) else value for name, value in kept.items()}
        self.marked = len(self.records), copied

    def go_back(self) -> None:
        length, copied = self.marked
        vars(self).update(copied, records=self.records[:length])

    def close(self, status: str, why: str) -> None:
        for i in np.flatnonzero(self.active).tolist():
            self.status[i], self.reason[i] = status, why

    def advance(self, most: int, turn: float) -> None:
        """Up to `most` steps, as many as fit into `turn` seconds; a seed that breaks is stopped at its last finite state."""
        steps = min(most, 1 if self.pace is None else max(1, int(turn / self.pace)))
        steps, clock = int(agreed(steps)[0]), time.perf_counter()
        before = self.groups
        self.groups, self.current = self.stepped(steps, self.active)
        elapsed = time.perf_counter() - clock
        self.pace = (elapsed if self.pace is not None else min(elapsed, self.turn / 4)) / steps
        broken = self.active & ~np.isfinite(self.current[0])
        for i in np.flatnonzero(broken).tolist():
            state, self.done[i], why = find_fault(self.method, before.state(i), int(self.done[i]), steps)
            self.groups = self.groups.put(i, state)
            self.stop(i, "non-finite", why)
        if broken.any():
            self.groups, self.current = self.stepped(0, broken)
        self.done = self.done + steps * self.active

    def stop_settled(self) -> None:
        """Seeds whose method says that nothing more can come."""
        first = len(self.names) - 2 - len(self.diagnostics)
        for i in np.flatnonzero(self.active).tolist():
            found = {name: float(self.current[first + k, i]) for k, name in enumerate(self.diagnostics)}
            if why := self.method.settled(found):
                self.stop(i, "converged", f"{why} after {self.done[i]} iterations.")

    def stop_stalled(self, stall: float, patience: int) -> None:
        """Judged by records on the grid alone, so that a run cut into pieces stops where an uncut one does."""
        now = self.iteration
        while self.early < len(self.records) and self.records[self.early][0][self.active][0] <= now - patience:
            self.lowest_before = np.minimum(self.lowest_before, self.records[self.early][2:4])
            self.early += 1
        early = self.early
        if not early:
            return
        with np.errstate(invalid="ignore"):  # either loss counts: a polish may lower the true one where the other was lower
            fell = np.any(self.lowest < self.lowest_before * (1 - stall), axis=0)
        for i in np.flatnonzero(self.active).tolist():
            if not fell[i]:
                why = f"the loss fell by less than a fraction {stall:g} in the last {patience} of {now} iterations."
            elif self.validation is not None and self.chosen[i] < early:
                why = f"the loss on the validation data did not fall in the last {patience} of {now} iterations."
            else:
                continue
            self.stop(i, "stalled", why)

    def drop(self, places: int) -> None:
        """The seeds that run and are not among the best `places`, by the loss that `Run.ranking` goes by; but where some are
        in a lifted phase and some are behind it, by the true loss, since their actual losses are of different kinds."""
        name, value = "loss", self.current[0]
        if self.validation is not None:
            name, value = "loss on the validation data", np.array([self.records[j][4][i] for i, j in enumerate(self.chosen)])
        elif "phase" in self.diagnostics:
            phase = self.current[self.names.index("phase") - 2]
            ranked = np.array([status not in ("dropped", "non-finite") for status in self.status])
            if len(np.unique(np.minimum(phase[ranked], 1))) > 1:
                name, value = "true loss", self.current[1]
        now = self.iteration
        for rank, i in enumerate(ranking(self.status, value).tolist(), 1):
            if rank > places and self.active[i]:
                why = f"its {name} {value[i]:.2e} was number {rank} after {now} iterations, and the best {places} went on."
                self.stop(i, "dropped", why)


@float64
def train(
    method: Method,
    iterations: int,
    seeds: int | Iterable[int] = 10,
    key: int = 0,
    record_every: int | None = None,
    stall: float = 1e-9,
    patience: int = 1000,
    initial: Any = None,
    seconds: float | None = None,
    validation: Term | None = None,
    watch: Callable[[Moment], Any] | None = None,
    previous: Run | None = None,
    spent: float = 0.0,
    rungs: Mapping[int, int] | None = None,
    mesh: Mesh | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Run:
    """Run up to `iterations` steps, or for that many `seconds`, for every seed, and record the losses (see `next_record`).

    Seed s draws from fold_in(key, s), whoever runs beside it. A seed stops as "stalled" when its best loss has fallen by less
    than the fraction `stall` over the last `patience` iterations, or its loss on the validation term has not fallen at all.
    `initial`: start from these states instead of `method.init`. `watch` is called between compiled calls; True stops the run.
    `previous` continues a run: the same numbers, bit for bit, as if it had never stopped. `spent`: seconds since, that count.
    `rungs`: {iteration: how many seeds go on from there}, see `sapm.halving`.
    `mesh`: the devices that share the seeds and the samples (`sapm.devices`); the run it returns is whole. `interrupted`: asked
    now and then, whether Ctrl-C was pressed (`sapm.devices.held_back`).
    """
    if iterations < 0 or (record_every is not None and record_every < 1):
        raise ValueError(f"iterations={iterations} must not be negative, and record_every={record_every} must be at least 1.")
    if previous is not None:
        numbers, states = previous.seeds, previous.states
    else:
        numbers = tuple(int(s) for s in seeds) if isinstance(seeds, Iterable) else tuple(range(int(seeds)))
        if not numbers:
            raise ValueError("seeds is empty; give a number of seeds (at least 1) or the seed numbers.")
        given = {len(x) for x in jax.tree.leaves(initial)}
        if initial is not None and given != {len(numbers)}:
            raise ValueError(f"initial has states for {sorted(given)} seeds, and seeds asks for {len(numbers)}; make them equal.")
        with whole():
            states = _start(method, keys_of(numbers, key)) if initial is None else settled(initial)
    layout = None if mesh is None else Layout.of(method, len(numbers), mesh)
    loop = Loop(method, numbers, states, validation, previous, record_every, rungs or {}, layout)
    loop.began -= spent
    return follow(loop, iterations, stall, patience, seconds, watch, previous is None, interrupted)


def keys_of(seeds: Sequence[int], key: int):
    return jax.vmap(lambda s: jax.random.fold_in(jax.random.key(key), s))(jnp.asarray(seeds))


def follow(loop: Loop, iterations: int, stall: float, patience: int, seconds, watch, fresh: bool, interrupted) -> Run:
    """Let a loop go on until its seeds or its budgets end; `fresh`: its first record is new."""
    show, cut = watch or (lambda moment: False), ""
    first = float(loop.records[0][1].max())  # seconds, of which most are compilation
    loop.mark()
    try:
        stop = show(loop.moment(recorded=fresh))
        while loop.active.any() and loop.iteration < iterations:
            if anywhere(interrupted()):
                raise KeyboardInterrupt
            at, left = loop.iteration, math.inf if seconds is None else seconds - loop.seconds
            stop, left = agreed(bool(stop), left)
            if stop:
                loop.close("stopped", f"stopped by the callback after {at} iterations.")
                break
            if left <= 0:
                before = f"; {first:.3g} s had gone by before the first step" if first > 0.5 * (seconds or np.inf) else ""
                loop.close("out of time", f"the time was up ({seconds:.4g} s in all{before}) after {at} iterations.")
                break
            goal = min(loop.next_stop(at), iterations)
            loop.advance(goal - at, min(loop.turn, left))
            if recorded := loop.iteration == goal or not loop.active.any():
                loop.record()
                if loop.active.any() and loop.on_grid(goal):
                    loop.stop_settled()
                if loop.active.any() and loop.on_grid(goal):
                    loop.stop_stalled(stall, patience)
                if loop.active.any() and goal in loop.rungs:
                    loop.drop(loop.rungs[goal])
                if loop.on_grid(goal):
                    loop.regroup(goal)
            loop.mark()
            stop = show(loop.moment(recorded))
        else:
            if agreed(bool(stop))[0] and loop.active.any():
                loop.close("stopped", f"stopped by the callback after {loop.iteration} iterations.")
    except KeyboardInterrupt:
        loop.go_back()
        cut = f"interrupted after {loop.iteration} iterations."
        loop.close("interrupted", cut)
    if np.any(loop.done != loop.records[-1][0]):
        loop.record()
    for i, status in enumerate(loop.status):
        if status == "finished":
            loop.reason[i] = f"ran all {iterations} iterations."
    return replace(loop.run(), cut=cut)
