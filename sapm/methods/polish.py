"""Sweeps first, then descent on the true loss from the network they found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from sapm.jet import Activation
from sapm.lstsq import over_seeds
from sapm.methods.alternating import Alternating
from sapm.methods.descent import Descent, DescentState
from sapm.methods.method import OnePhase
from sapm.network import Network
from sapm.objective import Objective, Point
from sapm.work import Work


class PolishedState(eqx.Module):
    count: Int[Array, ""]
    work: Work
    polish: DescentState


class Polished(OnePhase):
    """`sweeps` steps of the first method; from then on the second one (LS), started at the network of the last sweep."""

    first: Alternating
    then: Descent
    sweeps: Int[Array, ""]

    phases: ClassVar[tuple[str, ...]] = ("sweeps", "polish")

    def diagnostics(self, state: PolishedState) -> dict[str, Array]:
        return {"phase": jnp.where(state.count <= self.sweeps, 0.0, 1.0)}

    @property
    def objective(self) -> Objective:
        return self.first.objective

    @property
    def widths(self) -> tuple[int, ...]:
        return self.first.widths

    @property
    def sigma(self) -> Activation:
        return self.first.sigma

    def init(self, key) -> PolishedState:
        work = self.first.init(key)
        return PolishedState(jnp.zeros((), jnp.int64), work, self.then.begin(self.first.network(work)))

    def begin(self, network: Network) -> PolishedState:
        """At a given network: the sweeps are behind."""
        return PolishedState(jnp.asarray(self.sweeps, jnp.int64), self.first.begin(network), self.then.begin(network))

    def _sweep(self, state: PolishedState) -> PolishedState:
        work = self.first.step(state.work)
        return PolishedState(state.count + 1, work, self.then.begin(self.first.network(work)))

    def _polish(self, state: PolishedState) -> PolishedState:
        return replace(state, count=state.count + 1, polish=self.then.step(state.polish))

    def step(self, state: PolishedState) -> PolishedState:
        # All seeds have taken as many steps, so one scalar decides for all of them and only one branch is run.
        sweeping = over_seeds(state.count) < self.sweeps
        return lax.cond(sweeping, lambda: self._sweep(state), lambda: self._polish(state))

    def losses(self, state: PolishedState) -> tuple[Array, Array]:
        polish = self.then.losses(state.polish)
        swept = state.count <= self.sweeps
        actual = jnp.where(swept, self.first.losses(state.work)[0], polish[0])
        return actual, polish[1]  # the network is the same in both

    def network(self, state: PolishedState) -> Network:
        return self.then.network(state.polish)

    def point(self, state: PolishedState) -> Point:
        return self.first.point(state.work)

    def blocks(self) -> list[tuple[str, Callable]]:
        return [("the sweep or the polish", self.step)]
