"""The one loop: any method, seeds side by side, compiled chunks, a status and a reason for every seed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from sapm.jet import Activation, Jet, float64
from sapm.lstsq import SEEDS
from sapm.network import Network
from sapm.objective import Certificate, Objective, bound, certificate, mean_square
from sapm.term import Term, as_columns

TURN = 0.5  # seconds that a compiled call may take: the progress shown and the budgets kept are that fine
CACHE_BYTES = 2**20  # on a CPU, seeds run side by side as long as one layer of them stays in a core's cache


class Method(Protocol):
    """Pure functions on a state of any type; `blocks` are the parts of a step, by name, for the search of a fault."""

    @property
    def objective(self) -> Objective: ...
    @property
    def widths(self) -> tuple[int, ...]: ...
    @property
    def sigma(self) -> Activation: ...
    def init(self, key) -> Any: ...
    def step(self, state) -> Any: ...
    def losses(self, state) -> tuple[Array, Array]: ...
    def network(self, state) -> Network: ...
    def blocks(self) -> list[tuple[str, Callable]]: ...


@dataclass(frozen=True)
class Run:
    """What the loop gives. `history` has (seeds, records) arrays: iteration, seconds, loss, mean_squared_loss, bound_ratio.

    bound_ratio is the true loss over (bound × actual loss): at most 1 where a theorem binds them, NaN where none does.
    `status` of a seed is "finished", "stalled", "non-finite" (its actual loss), "out of time", "stopped" or "interrupted";
    `reason` says it in a sentence. A seed that failed keeps its last finite state. `chosen[i]` is the record that the result
    of seed i stands for: the last, or with validation data the one that fits them best, whose state is then in `kept`.
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
        """The network of seed i at the points x, (n, d) or for one input (n,): an array (n, outputs)."""
        x = as_columns("x", x)
        if x.shape[1] != self.method.widths[0]:
            raise ValueError(f"x has {x.shape[1]} columns; the network takes {self.method.widths[0]} inputs.")
        return np.asarray(self.network(i)(Jet(x, jnp.zeros((len(x), 0, x.shape[1])))).value)

    @float64
    def certificate(self, i: int) -> Certificate:
        final = [self.final(name)[i] for name in ("loss", "mean_squared_loss")]
        return certificate(self.method.objective, self.method.sigma, *final)


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
    """The actual loss, the true loss and the loss on validation data, if there are any."""

    def one(state):
        more = [] if validation is None else [mean_square(method.network(state), [validation])]
        return *method.losses(state), *more

    return jax.vmap(one)(states)


@jax.jit
def _start(method: Method, keys):
    return jax.vmap(method.init)(keys)


@jax.jit
def _keep(active, new, old):
    """The new state of active seeds, the old one of the others."""
    return jax.tree.map(lambda x, y: jnp.where(active.reshape(-1, *(1,) * (x.ndim - 1)), x, y), new, old)


def _batch(method: Method, seeds: int) -> int:
    if jax.default_backend() != "cpu":
        return seeds
    rows = sum(term.y.shape[0] * (1 + term.c.shape[1]) for term in method.objective.terms)
    fit = max(1, CACHE_BYTES // (8 * rows * max(method.widths)))
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
) -> Run:
    """Run up to `iterations` steps, or for that many `seconds`, for every seed, and record the losses (see `next_record`).

    Seed s draws from fold_in(key, s), whoever runs beside it. A seed stops as "stalled" when its best loss has fallen by less
    than the fraction `stall` over the last `patience` iterations, or its loss on the validation term has not fallen at all.
    `initial`: start from these states instead of `method.init`. `watch` is called between compiled calls; True stops the run.
    `previous` continues a run: the same numbers, bit for bit, as if it had never stopped.
    """
    if iterations < 0 or (record_every is not None and record_every < 1):
        raise ValueError(f"iterations={iterations} must not be negative, and record_every={record_every} must be at least 1.")
    names = ["iteration", "seconds", "loss", "mean_squared_loss"] + ["validation_loss"] * (validation is not None)
    constant = bound(method.objective, method.sigma)[0]
    measure = lambda states: np.array([np.asarray(x) for x in _losses(method, states, validation)])  # noqa: E731
    kept, began = None, time.perf_counter()
    if previous is None:
        numbers = tuple(int(s) for s in seeds) if isinstance(seeds, Iterable) else tuple(range(int(seeds)))
        if not numbers:
            raise ValueError("seeds is empty; give a number of seeds (at least 1) or the seed numbers.")
        count = len(numbers)
        if initial is None:
            keys = jax.vmap(lambda s: jax.random.fold_in(jax.random.key(key), s))(jnp.asarray(numbers))
            states = _start(method, keys)
        else:
            given = {len(x) for x in jax.tree.leaves(initial)}
            if given != {count}:
                raise ValueError(f"initial has states for {sorted(given)} seeds, but seeds asks for {count}; they must be equal.")
            states = initial
        done, status, reason = np.zeros(count, int), ["finished"] * count, [""] * count
        current = measure(states)
        active = np.isfinite(current[0])
        for i in np.flatnonzero(~active):
            status[i], reason[i] = "non-finite", "the loss of the starting point is not finite."
        records: list[tuple] = []
        chosen, kept = np.zeros(count, int), states if validation is not None else None
    else:
        numbers, states, kept, chosen = previous.seeds, previous.states, previous.kept, previous.chosen.copy()
        count, status, reason = len(numbers), list(previous.status), list(previous.reason)
        records = list(zip(*(previous.history[name].T for name in names), strict=True))
        done, current = records[-1][0].copy(), np.array(records[-1][2:])
        active = np.array([s not in ("stalled", "non-finite") for s in status])
        began -= float(records[-1][1].max())
        if active.any() and not _on_grid(int(done[active][0]), record_every):
            records.pop()  # a run that had not stopped here would have no such record
        chosen = np.minimum(chosen, len(records) - 1)
        for i in np.flatnonzero(active):
            status[i] = "finished"
    batch = _batch(method, count)

    def record() -> None:
        nonlocal kept
        records.append((done.copy(), np.full(count, time.perf_counter() - began), *current))
        if validation is None:
            chosen[:] = len(records) - 1
            return
        best = np.array([records[j][4][i] for i, j in enumerate(chosen)])
        better = (current[2] < best) | (len(records) == 1)
        chosen[better] = len(records) - 1
        kept = _keep(jnp.asarray(better), states, kept)

    def snapshot() -> Run:
        history = {name: np.stack([r[j] for r in records], axis=1) for j, name in enumerate(names)}
        history["bound_ratio"] = _ratio(constant, history["loss"], history["mean_squared_loss"])
        return Run(method, numbers, states, history, tuple(status), tuple(reason), chosen.copy(), kept)

    def look(recorded: bool) -> bool:
        if watch is None:
            return False
        ratio = _ratio(constant, current[0], current[1])
        at = int(done[active][0]) if active.any() else int(done.max())
        return bool(watch(Moment(at, time.perf_counter() - began, current[0], current[1], ratio, recorded, snapshot)))

    def close(name: str, why: str) -> None:
        for i in np.flatnonzero(active):
            status[i], reason[i] = name, why

    def check_stall() -> None:
        """On records alone, so that a run cut into pieces stops where an uncut one does."""
        now = int(done[active][0])
        early = [j for j, r in enumerate(records) if r[0][active][0] <= now - patience] if now >= patience else []
        if not early:
            return
        loss = np.array([r[2] for r in records])
        before, since = loss[: early[-1] + 1].min(0), loss[early[-1] + 1 :].min(0)
        for i in np.flatnonzero(active):
            if not since[i] < before[i] * (1 - stall):
                reason[i] = f"the loss fell by less than a fraction {stall:g} in the last {patience} of {now} iterations."
            elif validation is not None and chosen[i] <= early[-1]:
                reason[i] = f"the loss on the validation data did not fall in the last {patience} of {now} iterations."
            else:
                continue
            active[i], status[i] = False, "stalled"

    if not records:
        record()
    pace = None  # seconds per step of all seeds
    try:
        stop = look(recorded=True)
        while active.any() and (at := int(done[active][0])) < iterations:
            spent = time.perf_counter() - began
            if stop:
                close("stopped", f"stopped by the callback after {at} iterations.")
                break
            if seconds is not None and spent >= seconds:
                close("out of time", f"the time was up ({seconds:g} s) after {at} of {iterations} iterations.")
                break
            goal = min(next_record(at, record_every), iterations)
            turn = TURN if seconds is None else min(TURN, seconds - spent)
            steps = min(goal - at, 1 if pace is None else max(1, int(turn / pace)))
            clock = time.perf_counter()
            new = _chunk(method, states, steps, batch)
            new_current = measure(new)
            elapsed = time.perf_counter() - clock
            # The first call includes the compilation; its pace would be far too slow.
            pace = (TURN / 4 if elapsed > TURN / 4 else elapsed) / steps if pace is None else elapsed / steps
            for i in np.flatnonzero(active & ~np.isfinite(new_current[0])):
                state, done[i], why = _find_fault(method, jax.tree.map(lambda x, i=i: x[i], states), int(done[i]), steps)
                states = jax.tree.map(lambda x, y, i=i: x.at[i].set(y), states, state)
                current[:, i] = measure(states)[:, i]
                status[i], reason[i], active[i] = "non-finite", why, False
            states = _keep(jnp.asarray(active), new, states)
            current = np.where(active, new_current, current)
            done = done + steps * active
            reached = at + steps
            if recorded := reached == goal or not active.any():
                record()
                if active.any() and _on_grid(reached, record_every):
                    check_stall()
            stop = look(recorded)
    except KeyboardInterrupt:
        close("interrupted", f"interrupted after {int(done[active][0]) if active.any() else int(done.max())} iterations.")
    if np.any(done != records[-1][0]):
        record()
    for i in np.flatnonzero(active & (np.array(status) == "finished")):
        reason[i] = f"ran all {iterations} iterations."
    return snapshot()
