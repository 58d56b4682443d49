"""Where a seed broke: its steps again, one by one, from the last good state."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from sapm.lstsq import SEEDS
from sapm.methods.method import Method


def _finite(tree) -> bool:
    return all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(tree))


def find_fault(method: Method, state, done: int, steps: int) -> tuple[Any, int, str]:
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
