"""The one loop: any method, seeds side by side, compiled chunks, a status and a reason for every seed."""

from __future__ import annotations

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

from sapm.jet import Jet, float64
from sapm.lstsq import SEEDS
from sapm.network import Network
from sapm.objective import Certificate, Objective, certificate
from sapm.problem import as_columns

CACHE_BYTES = 2**20  # on a CPU, seeds run side by side as long as one layer of them stays in a core's cache


class Method(Protocol):
    """Pure functions on a state of any type; `blocks` are the parts of a step, by name, for the search of a fault."""

    @property
    def objective(self) -> Objective: ...
    @property
    def widths(self) -> tuple[int, ...]: ...
    def init(self, key) -> Any: ...
    def step(self, state) -> Any: ...
    def losses(self, state) -> tuple[Array, Array]: ...
    def network(self, state) -> Network: ...
    def blocks(self) -> list[tuple[str, Callable]]: ...


@dataclass(frozen=True)
class Result:
    """What a run gives. `history` has (seeds, records) arrays: iteration, seconds, loss, mean_squared_loss, ratio.

    `status` of a seed is "finished", "stalled" or "non-finite" (its actual loss); `reason` says it in a sentence. A seed that
    failed keeps its last finite state.
    """

    method: Method
    seeds: tuple[int, ...]
    states: Any
    history: dict[str, np.ndarray]
    status: tuple[str, ...]
    reason: tuple[str, ...]

    @property
    def best(self) -> int:
        """The index of the seed with the smallest final actual loss (the paper's rule); failed seeds only if all failed."""
        final = self.history["loss"][:, -1]
        failed = np.array([status == "non-finite" for status in self.status]) | ~np.isfinite(final)
        return int(np.argmin(np.where(failed, np.inf, final)))

    def state(self, i: int) -> Any:
        return jax.tree.map(lambda x: x[i], self.states)

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
        final = [self.history[name][i, -1] for name in ("loss", "mean_squared_loss")]
        return certificate(self.method.objective, self.network(i).sigma, *final)


@partial(jax.jit, static_argnames="batch")
def _chunk(method: Method, states, steps, batch: int):
    """`steps` steps of every seed, `batch` seeds side by side; then both losses."""

    def run(state):
        state = lax.fori_loop(0, steps, lambda _, s: method.step(s), state)
        return state, method.losses(state)

    run = jax.vmap(run, axis_name=SEEDS)
    groups = len(jax.tree.leaves(states)[0]) // batch
    if groups == 1:
        return run(states)
    split = jax.tree.map(lambda x: x.reshape(groups, batch, *x.shape[1:]), states)
    return jax.tree.map(lambda x: x.reshape(groups * batch, *x.shape[2:]), lax.map(run, split))


@jax.jit
def _measure(method: Method, states):
    return jax.vmap(method.losses)(states)


@jax.jit
def _start(method: Method, keys):
    states = jax.vmap(method.init)(keys)
    return states, _measure(method, states)


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
) -> Result:
    """Run `iterations` steps for every seed and record the losses every `record_every` (default: 100 records in all).

    Seed s draws from fold_in(key, s), whoever runs beside it. A seed stops as "stalled" when its best loss has fallen by less
    than the fraction `stall` over the last `patience` iterations. `initial`: start from these states instead of `method.init`.
    """
    numbers = tuple(int(s) for s in seeds) if isinstance(seeds, Iterable) else tuple(range(int(seeds)))
    if not numbers:
        raise ValueError("seeds is empty; give a number of seeds (at least 1) or the seed numbers.")
    if iterations < 0 or (record_every is not None and record_every < 1):
        raise ValueError(f"iterations={iterations} must not be negative, and record_every={record_every} must be at least 1.")
    every = record_every or max(1, iterations // 100)
    keys = jax.vmap(lambda s: jax.random.fold_in(jax.random.key(key), s))(jnp.asarray(numbers))
    count, began = len(numbers), time.perf_counter()
    if initial is None:
        states, losses = _start(method, keys)
    else:
        given = {len(x) for x in jax.tree.leaves(initial)}
        if given != {count}:
            raise ValueError(f"initial has states for {sorted(given)} seeds, but seeds asks for {count}; they must be equal.")
        states, losses = initial, _measure(method, initial)
    batch = _batch(method, count)

    done, status, reason = np.zeros(count, int), ["finished"] * count, [""] * count
    current = np.array([np.asarray(x) for x in losses])
    active = np.isfinite(current[0])
    for i in np.flatnonzero(~active):
        status[i], reason[i] = "non-finite", "the loss of the starting point is not finite."
    records: list[tuple] = []

    def record() -> None:
        records.append((done.copy(), np.full(count, time.perf_counter() - began), *current))

    record()
    while active.any() and done[active][0] < iterations:
        steps = min(every, iterations - int(done[active][0]))
        new, losses = _chunk(method, states, steps, batch)
        new_losses = np.array([np.asarray(x) for x in losses])
        for i in np.flatnonzero(active & ~np.isfinite(new_losses[0])):
            state, done[i], why = _find_fault(method, jax.tree.map(lambda x, i=i: x[i], states), int(done[i]), steps)
            states = jax.tree.map(lambda x, y, i=i: x.at[i].set(y), states, state)
            current[:, i] = [x[i] for x in _measure(method, states)]
            status[i], reason[i], active[i] = "non-finite", why, False
        states = _keep(jnp.asarray(active), new, states)
        current = np.where(active, new_losses, current)
        done = done + steps * active
        record()
        window = max(1, -(-patience // every))
        if len(records) > window:
            loss = np.array([r[2] for r in records])
            before, since = loss[:-window].min(0), loss[-window:].min(0)
            for i in np.flatnonzero(active & ~(since < before * (1 - stall))):
                active[i], status[i] = False, "stalled"
                reason[i] = (
                    f"the loss fell by less than a fraction {stall:g} in the last {window * every} of {done[i]} iterations."
                )
    for i in np.flatnonzero(np.array(status) == "finished"):
        reason[i] = f"ran all {iterations} iterations."

    names = ("iteration", "seconds", "loss", "mean_squared_loss")
    history = {name: np.stack([r[j] for r in records], axis=1) for j, name in enumerate(names)}
    with np.errstate(divide="ignore", invalid="ignore"):
        history["ratio"] = np.where(
            history["loss"] == history["mean_squared_loss"], 1.0, history["mean_squared_loss"] / history["loss"]
        )
    return Result(method, numbers, states, history, tuple(status), tuple(reason))
