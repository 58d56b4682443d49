"""One method after another: the first engine takes a given number of steps, and the second one
continues from the network that the first one has reached. For example sweeps, then L-BFGS on the
true loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from sapm.methods.engine import OnePhase, SteppingEngine
from sapm.numerics.activations import Activation
from sapm.numerics.lstsq import over_seeds
from sapm.numerics.network import Network
from sapm.objective.penalty import Objective, Point


class ThenState(eqx.Module):
    """The state of a seed.

    Parameters
    ----------
    count : the number of steps so far.
    first : the state of the first engine; it stays as it is once the second engine runs.
    second : the state of the second engine; until then that at the network of `first`.
    """

    count: Int[Array, ""]
    first: Any
    second: Any


class ThenEngine(OnePhase):
    """The engine of one method after another.

    Parameters
    ----------
    first : the engine of the steps 1, …, `steps`.
    second : the engine of all further steps. It starts at the network of the first engine.
    steps : the number of steps of the first engine.

    The loss that is minimised is that of the engine that took the last step. A bound between the
    true loss and the loss is that of `first.objective`.
    """

    first: SteppingEngine
    second: SteppingEngine
    steps: Int[Array, ""]

    phases: ClassVar[tuple[str, ...]] = ("sweeps", "polish")

    @property
    def objective(self) -> Objective:
        return self.first.objective

    @property
    def widths(self) -> tuple[int, ...]:
        return self.first.widths

    @property
    def sigma(self) -> Activation:
        return self.first.sigma

    def init(self, key) -> ThenState:
        return self._after_first(jnp.zeros((), jnp.int64), self.first.init(key))

    def begin(self, network: Network) -> ThenState:
        """The state at a given network, from which the second engine continues at once."""
        count = jnp.asarray(self.steps, jnp.int64)
        return ThenState(count, self.first.begin(network), self.second.begin(network))

    def _after_first(self, count: Array, first: Any) -> ThenState:
        return ThenState(count, first, self.second.begin(self.first.network(first)))

    def step(self, state: ThenState) -> ThenState:
        """The state after one step of the engine whose turn it is."""

        def by_first() -> ThenState:
            return self._after_first(state.count + 1, self.first.step(state.first))

        def by_second() -> ThenState:
            return replace(state, count=state.count + 1, second=self.second.step(state.second))

        # All seeds have taken the same number of steps: one scalar decides for all of them, and
        # only one of the branches runs.
        return lax.cond(over_seeds(state.count) < self.steps, by_first, by_second)

    def losses(self, state: ThenState) -> tuple[Array, Array]:
        loss, true_loss = self.second.losses(state.second)
        loss = jnp.where(self._in_first(state), self.first.losses(state.first)[0], loss)
        return loss, true_loss  # the network is the same in both states

    def _in_first(self, state: ThenState) -> Array:
        """Whether the last step was one of the first engine."""
        return state.count <= self.steps

    def network(self, state: ThenState) -> Network:
        return self.second.network(state.second)

    def point(self, state: ThenState) -> Point | None:
        return self.first.point(state.first)

    def blocks(self) -> list[tuple[str, Callable]]:
        return [("the sweep or the polish", self.step)]

    def diagnostics(self, state: ThenState) -> dict[str, Array]:
        return {"phase": jnp.where(self._in_first(state), 0.0, 1.0)}
