"""What the training loop asks of a method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import equinox as eqx
from jaxtyping import Array

from sapm.jet import Activation
from sapm.network import Network
from sapm.objective import Objective, Point


class Method(Protocol):
    """Pure functions on a state of any type; `blocks` are the parts of a step, by name, for the search of a fault.

    `diagnostics` go into the history; one called "phase" counts in `phases`. `seed_bytes`: what a step of one seed works on.
    `point`: the network and its auxiliary variables, if there are any.
    `settled`: from the diagnostics of a seed, why further steps cannot change anything; "" if they can.
    """

    phases: ClassVar[tuple[str, ...]]

    @property
    def objective(self) -> Objective: ...
    @property
    def widths(self) -> tuple[int, ...]: ...
    @property
    def sigma(self) -> Activation: ...
    @property
    def seed_bytes(self) -> int: ...
    def init(self, key) -> Any: ...
    def begin(self, network: Network) -> Any: ...
    def step(self, state) -> Any: ...
    def losses(self, state) -> tuple[Array, Array]: ...
    def network(self, state) -> Network: ...
    def point(self, state) -> Point | None: ...
    def blocks(self) -> list[tuple[str, Callable]]: ...
    def diagnostics(self, state) -> dict[str, Array]: ...
    def settled(self, diagnostics: dict[str, float]) -> str: ...


class OnePhase(eqx.Module):
    """A method of one phase, without diagnostics, that works on the jets of a layer at a time."""

    phases: ClassVar[tuple[str, ...]] = ()

    @property
    def seed_bytes(self) -> int:
        return 8 * self.objective.channels * max(self.widths)  # type: ignore[attr-defined]

    def diagnostics(self, state) -> dict[str, Array]:
        return {}

    def settled(self, diagnostics: dict[str, float]) -> str:
        return ""
