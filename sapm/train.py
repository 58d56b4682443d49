"""The one loop: any method, seeds side by side, compiled chunks, a status and a reason for every seed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sapm.jet import Jet, float64
from sapm.lstsq import SEEDS
from sapm.methods.method import Method
from sapm.network import Network
from sapm.objective import Certificate, bound, certificate, mean_square
from sapm.spread import steepness
from sapm.term import Term, as_columns

TURN = 0.5  # seconds that a compiled call may take: the progress shown and the budgets kept are that fine
CACHE_BYTES = 2**20  # on a CPU, seeds run side by side as long as one layer of them stays in a core's cache


@dataclass(frozen=True)
class Run:
    """What the loop gives. `history` has (seeds, records) arrays: iteration, seconds, loss, mean_squared_loss, bound_ratio.

    bound_ratio is the true loss over (bound × actual loss): at most 1 where a theorem binds them, NaN where none does; and
    the method's diagnostics.
    `status` of a seed: "finished", "converged", "stalled", "non-finite" (its actual loss), "out of time", "stopped",
    "interrupted" or, for a run that goes on, "running"; `reason` says it in a sentence. A seed that failed keeps
    its last finite state.
    `chosen[i]` is the record that the result of seed i stands for: the last, or with validation data the one that fits them
    best, whose state is then in `kept`.
    """

    method: Method
    seeds: tuple[int, ...]
    states: Any
    history: dict[str, np.ndarray]
    status: tuple[str, ...]
    reason: tuple[str, ...]
    chosen: np.ndarray
    kept: Any = None

    def final(self, name: str) -> np.ndarray:
        """That quantity of the history for the network of each seed."""
        return self.history[name][np.arange(len(self.seeds)), self.chosen]

    @property
    def best(self) -> int:
        """The index of the seed with the smallest final actual loss (the paper's rule; with validation data, the smallest
        loss on them); failed seeds only if all failed."""
        final = self.final("validation_loss" if "validation_loss" in self.history else "loss")
        failed = np.array([status == "non-finite" for status in self.status]) | ~np.isfinite(final)
        return int(np.argmin(np.where(failed, np.inf, final)))

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


@partial(jax.jit, static_argnames="batch")
def _chunk(method: Method, states, steps, batch: int):
    """`steps` steps of every seed, `batch` seeds side by side."""
    run = jax.vmap(lambda state: lax.fori_loop(0, steps, lambda _, s: method.step(s), state), axis_name=SEEDS)
    groups = len(jax.tree.leaves(states)[0]) // batch
    if groups == 1:
        return run(states)
    split = jax.tree.map(lambda x: x.reshape(groups, batch, *x.shape[1:]), states)
    return jax.tree.map(lambda x: x.reshape(groups * batch, *x.shape[2:]), lax.map(run, split))


@jax.jit
def _losses(method: Method, states, validation: Term | None):
    """The actual loss, the true loss, the loss on validation data, if there are any, and the method's diagnostics."""

    def one(state):
        more = [] if validation is None else [mean_square(method.network(state), [validation])]
        return *method.losses(state), *more, *(value for _, value in sorted(method.diagnostics(state).items()))

    return jax.vmap(one)(states)


@jax.jit
def _start(method: Method, keys):
    return settled(jax.vmap(method.init)(keys))


def settled(states):
    """With definite types: a weak type on the first call alone would compile the program twice."""
    return jax.tree.map(lambda x: lax.convert_element_type(x, x.dtype), states)


@jax.jit
def _keep(active, new, old):
    """The new state of active seeds, the old one of the others."""
    return jax.tree.map(lambda x, y: jnp.where(active.reshape(-1, *(1,) * (x.ndim - 1)), x, y), new, old)


def _batch(method: Method, seeds: int) -> int:
    if jax.default_backend() != "cpu":
        return seeds
    fit = max(1, CACHE_BYTES // method.seed_bytes)
    return max(b for b in range(1, seeds + 1) if seeds % b == 0 and b <= fit)


def _finite(tree) -> bool:
    return all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(tree))


def _find_fault(method: Method, state, done: int, steps: int) -> tuple[Any, int, str]:
    """Replay one seed from a good state: its last finite state, how many steps that took, and what broke where."""
    alone = lambda f: jax.jit(lambda s: jax.tree.map(lambda x: x[0], jax.vmap(f, axis_name=SEEDS)(s)))  # noqa: E731
    lead = lambda s: jax.tree.map(lambda x: x[None], s)  # noqa: E731
    step, losses = alone(method.step), alone(method.losses)
    for k in range(done + 1, done + steps + 1):
        new = step(lead(state))
        if not (_finite(new) and _finite(losses(lead(new)))):
            part = state
            for name, block in method.blocks():
                part = alone(block)(lead(part))
                if not _finite(part):
                    return state, k - 1, f"non-finite numbers came from {name} in iteration {k}."
            return state, k - 1, f"the loss overflowed in iteration {k}."
        state = new
    return state, done + steps, f"non-finite numbers appeared between iterations {done} and {done + steps}."


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


def _on_grid(done: int, every: int | None) -> bool:
    return done == 0 or next_record(done - 1, every) == done


class Loop:
    """The moving parts of `train`."""

    def __init__(self, method: Method, seeds: tuple[int, ...], states, validation: Term | None, previous: Run | None, every):
        self.method, self.seeds, self.states, self.validation, self.every = method, seeds, states, validation, every
        self.names = ["iteration", "seconds", "loss", "mean_squared_loss"] + ["validation_loss"] * (validation is not None)
        self.diagnostics = sorted(jax.eval_shape(method.diagnostics, jax.tree.map(lambda x: x[0], states)))
        self.names += self.diagnostics
        self.bound = bound(method.objective, method.sigma)[0]
        self.batch, self.began = _batch(method, len(seeds)), time.perf_counter()
        self.now, self.marked = 0.0, (0, {})
        self.pace: float | None = None  # seconds per step of all seeds; unknown until the first call has been compiled
        count = len(seeds)
        if previous is None:
            self.records: list[tuple] = []
            self.done, self.status, self.reason = np.zeros(count, int), ["finished"] * count, [""] * count
            self.current = self.measure(states)
            self.active = np.isfinite(self.current[0])
            for i in np.flatnonzero(~self.active):
                self.status[i], self.reason[i] = "non-finite", "the loss of the starting point is not finite."
            self.chosen, self.kept = np.zeros(count, int), states if validation is not None else None
            self.record()
            return
        self.status, self.reason, self.kept = list(previous.status), list(previous.reason), previous.kept
        self.records = list(zip(*(previous.history[name].T for name in self.names), strict=True))
        self.done, self.current = self.records[-1][0].copy(), np.array(self.records[-1][2:])
        self.active = np.array([status not in ("converged", "stalled", "non-finite") for status in self.status])
        self.began -= float(self.records[-1][1].max())
        if self.active.any() and not _on_grid(self.iteration, every):
            self.records.pop()  # a run that had not stopped here would have no such record
        self.chosen = np.minimum(previous.chosen, len(self.records) - 1)
        for i in np.flatnonzero(self.active):
            self.status[i], self.reason[i] = "finished", ""

    @property
    def iteration(self) -> int:
        """Steps taken by the seeds that still run."""
        return int(self.done[self.active][0] if self.active.any() else self.done.max())

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def measure(self, states) -> np.ndarray:
        return np.array([np.asarray(x) for x in _losses(self.method, states, self.validation)])

    def record(self) -> None:
        self.records.append((self.done.copy(), np.full(len(self.seeds), self.seconds), *self.current))
        if self.validation is None:
            self.chosen[:] = len(self.records) - 1
            return
        if not _on_grid(self.iteration, self.every):
            return  # an uncut run would have no such record, so it cannot be the one that is kept
        best = np.array([self.records[j][4][i] for i, j in enumerate(self.chosen)])
        better = self.current[2] < best
        self.chosen[better] = len(self.records) - 1
        self.kept = _keep(jnp.asarray(better), self.states, self.kept)

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
        for i in np.flatnonzero(at["active"]):
            if not reason[i]:
                status[i], reason[i] = "running", f"not finished: {at['done'][i]} iterations so far."
        return Run(self.method, self.seeds, at["states"], history, tuple(status), tuple(reason), chosen, at["kept"])

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
        for i in np.flatnonzero(self.active):
            self.status[i], self.reason[i] = status, why

    def advance(self, most: int, turn: float) -> None:
        """Up to `most` steps, as many as fit into `turn` seconds; a seed that breaks is stopped at its last finite state."""
        steps = min(most, 1 if self.pace is None else max(1, int(turn / self.pace)))
        clock = time.perf_counter()
        new = _chunk(self.method, self.states, steps, self.batch)
        current = self.measure(new)
        elapsed = time.perf_counter() - clock
        self.pace = (elapsed if self.pace is not None else min(elapsed, TURN / 4)) / steps
        for i in np.flatnonzero(self.active & ~np.isfinite(current[0])):
            before = jax.tree.map(lambda x, i=i: x[i], self.states)
            state, self.done[i], why = _find_fault(self.method, before, int(self.done[i]), steps)
            self.states = jax.tree.map(lambda x, y, i=i: x.at[i].set(y), self.states, state)
            self.current[:, i] = self.measure(self.states)[:, i]
            self.status[i], self.reason[i], self.active[i] = "non-finite", why, False
        self.states = _keep(jnp.asarray(self.active), new, self.states)
        self.current = np.where(self.active, current, self.current)
        self.done = self.done + steps * self.active

    def stop_settled(self) -> None:
        """Seeds whose method says that nothing more can come."""
        first = len(self.names) - 2 - len(self.diagnostics)
        for i in np.flatnonzero(self.active):
            found = {name: float(self.current[first + k, i]) for k, name in enumerate(self.diagnostics)}
            if why := self.method.settled(found):
                self.active[i], self.status[i], self.reason[i] = False, "converged", f"{why} after {self.iteration} iterations."

    def stop_stalled(self, stall: float, patience: int) -> None:
        """Judged by records on the grid alone, so that a run cut into pieces stops where an uncut one does."""
        now = self.iteration
        early = sum(r[0][self.active][0] <= now - patience for r in self.records)
        if not early:
            return
        losses = np.array([r[2:4] for r in self.records])
        with np.errstate(invalid="ignore"):  # either loss counts: a polish may lower the true one where the other was lower
            fell = (losses[early:].min(0) < losses[:early].min(0) * (1 - stall)).any(0)
        for i in np.flatnonzero(self.active):
            if not fell[i]:
                self.reason[i] = f"the loss fell by less than a fraction {stall:g} in the last {patience} of {now} iterations."
            elif self.validation is not None and self.chosen[i] < early:
                self.reason[i] = f"the loss on the validation data did not fall in the last {patience} of {now} iterations."
            else:
                continue
            self.active[i], self.status[i] = False, "stalled"


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
) -> Run:
    """Run up to `iterations` steps, or for that many `seconds`, for every seed, and record the losses (see `next_record`).

    Seed s draws from fold_in(key, s), whoever runs beside it. A seed stops as "stalled" when its best loss has fallen by less
    than the fraction `stall` over the last `patience` iterations, or its loss on the validation term has not fallen at all.
    `initial`: start from these states instead of `method.init`. `watch` is called between compiled calls; True stops the run.
    `previous` continues a run: the same numbers, bit for bit, as if it had never stopped. `spent`: seconds since, that count.
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
        states = _start(method, keys_of(numbers, key)) if initial is None else settled(initial)
    loop = Loop(method, numbers, states, validation, previous, record_every)
    loop.began -= spent
    return follow(loop, iterations, record_every, stall, patience, seconds, watch, fresh=previous is None)


def keys_of(seeds: Sequence[int], key: int):
    return jax.vmap(lambda s: jax.random.fold_in(jax.random.key(key), s))(jnp.asarray(seeds))


def follow(loop: Loop, iterations: int, record_every, stall: float, patience: int, seconds, watch, fresh: bool) -> Run:
    """Let a loop go on until its seeds or its budgets end; `fresh`: its first record is new."""
    show = watch or (lambda moment: False)
    try:
        loop.mark()
        stop = show(loop.moment(recorded=fresh))
        while loop.active.any() and loop.iteration < iterations:
            at, left = loop.iteration, math.inf if seconds is None else seconds - loop.seconds
            if stop:
                loop.close("stopped", f"stopped by the callback after {at} iterations.")
                break
            if left <= 0:
                loop.close("out of time", f"the time was up ({seconds:g} s) after {at} of {iterations} iterations.")
                break
            goal = min(next_record(at, record_every), iterations)
            loop.advance(goal - at, min(TURN, left))
            if recorded := loop.iteration == goal or not loop.active.any():
                loop.record()
                if loop.active.any() and _on_grid(goal, record_every):
                    loop.stop_settled()
                if loop.active.any() and _on_grid(goal, record_every):
                    loop.stop_stalled(stall, patience)
            loop.mark()
            stop = show(loop.moment(recorded))
    except KeyboardInterrupt:
        loop.go_back()
        loop.close("interrupted", f"interrupted after {loop.iteration} iterations.")
    if np.any(loop.done != loop.records[-1][0]):
        loop.record()
    for i, status in enumerate(loop.status):
        if status == "finished":
            loop.reason[i] = f"ran all {iterations} iterations."
    return loop.run()
