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

    def alone(of):
        """A part of the method for one seed. (The method is an argument: its arrays may lie in several processes.)"""
        call = jax.jit(lambda m, s: jax.tree.map(lambda x: x[0], jax.vmap(of(m), axis_name=SEEDS)(s)))
        return lambda s: call(method, jax.tree.map(lambda x: x[None], s))

    step, losses = alone(lambda m: m.step), alone(lambda m: m.losses)
    for k in range(done + 1, done + steps + 1):
        new = step(state)
        if not (_finite(new) and _finite(losses(new))):
            part = state
            for j, (name, _) in enumerate(method.blocks()):
                part = alone(lambda m, j=j: m.blocks()[j][1])(part)
                if not _finite(part):
                    return state, k - 1, f"non-finite numbers came from {name} in iteration {k}."
            return state, k - 1, f"the loss overflowed in iteration {k}."
        state = new
    return state, done + steps, f"non-finite numbers appeared between iterations {done} and {done + steps}."
