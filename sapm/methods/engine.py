"""What a method makes for one objective: the functions of a state (`Engine`) and of a step
(`SteppingEngine`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, runtime_checkable

import equinox as eqx
from jaxtyping import Array

from sapm.numerics.activations import Activation
from sapm.numerics.network import Network
from sapm.objective.penalty import Objective, Point


class Engine(Protocol):
    """The functions that a run calls on the state of one seed.

    An engine is a pytree, such as an `equinox.Module`, since it is an argument of compiled
    functions. A state is a tree of arrays whose shapes and types no step changes. The functions are
    pure, and JAX can trace them: the loop maps them over the seeds of a group. The classes
    `WithoutPhases` and `OnePhase` below have all but the essential ones.

    Attributes
    ----------
    phases : names of the phases of a run; `diagnostics` may count in them as "phase".
    objective, widths, sigma : what it was made for.
    seed_bytes : the memory that a step of one seed works on.

    Methods
    -------
    init(key) : the initial state of a seed.
    begin(network) : the state at a given network.
    losses(state) : the loss that is minimised, with the ℓ² penalty, and the true loss, without it.
    network(state) : the network of a state.
    point(state) : the network and its auxiliary variables; None without auxiliary variables.
    diagnostics(state) : further quantities of the history.
    settled(diagnostics) : why further steps cannot change anything; "" if they can.
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
    def losses(self, state) -> tuple[Array, Array]: ...
    def network(self, state) -> Network: ...
    def point(self, state) -> Point | None: ...
    def diagnostics(self, state) -> dict[str, Array]: ...
    def settled(self, diagnostics: dict[str, float]) -> str: ...


@runtime_checkable
class SteppingEngine(Engine, Protocol):
    """An engine whose step needs nothing but the state: the training loop compiles it.

    Methods
    -------
    step(state) : the state after one step.
    blocks() : the parts of a step by name, to find the one that gave a number that is not finite.
    """

    def step(self, state) -> Any: ...
    def blocks(self) -> list[tuple[str, Callable]]: ...


class WithoutPhases(eqx.Module):
    """What engines of one phase without diagnostics share. They work on the jets of one layer at a
    time.
    """

    phases: ClassVar[tuple[str, ...]] = ()

    @property
    def seed_bytes(self) -> int:
        return 8 * self.objective.channels * max(self.widths)  # type: ignore[attr-defined]

    def point(self, state) -> Point | None:
        return None

    def diagnostics(self, state) -> dict[str, Array]:
        return {}

    def settled(self, diagnostics: dict[str, float]) -> str:
        return ""


class OnePhase(WithoutPhases):
    """A `WithoutPhases` engine that steps: a step is one block."""

    def blocks(self) -> list[tuple[str, Callable]]:
        return [("the step", self.step)]  # type: ignore[attr-defined]
