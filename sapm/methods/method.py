"""A method is a frozen record of options (`Method`), which makes an engine (`Engine`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import equinox as eqx
from jaxtyping import Array

from sapm.fields import boolean, check_fields, checked, count, non_negative, optional
from sapm.numerics.activations import Activation
from sapm.numerics.network import Network
from sapm.objective.penalty import MODELS, Objective, Point


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """How a loss is minimised: a frozen record whose fields are the options of the method.

    A method of your own is a frozen dataclass that inherits from this class, has a `name` and
    implements `engine`. It is passed as `sapm.solve(problem, method=MyMethod(…))`.

    Parameters, which all methods share
    -----------------------------------
    record_every : iterations between two records of the history; by default a grid that gets
        coarser.
    stall, patience : a seed stops when its best loss has fallen by less than the fraction `stall`
        over the last `patience` iterations.
    survivors : how many seeds are left at the end; the others are dropped on the way (successive
        halving). By default all.
    l2 : the weight of Σ_l ‖W_l‖² in the loss.
    scale : whether to train in units in which inputs and outputs are of size 1.

    Class attributes
    ----------------
    name : how the method is called in tables, files and `solve(method="…")`.
    models : the losses it can minimise, of "ls", "pm", "sapm".
    """

    record_every: int | None = checked(optional(count()), None)
    stall: float = checked(non_negative, 1e-9)
    patience: int = checked(count(), 1000)
    survivors: int | None = checked(optional(count()), None)
    l2: float = checked(non_negative, 0.0)
    scale: bool = checked(boolean, True)

    name: ClassVar[str]
    models: ClassVar[tuple[str, ...]] = MODELS

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def engine(
        self,
        objective: Objective,
        widths: Sequence[int],
        sigma: Activation,
        init: str,
        start: str,
    ) -> Engine:
        """The functions that run the steps on one objective.

        Parameters
        ----------
        objective : the terms of the problem (points, operator, data) with the loss: "ls", "pm" or
            "sapm".
        widths : (m_0, …, m_L), the units of every layer from the inputs to the outputs.
        sigma : the activation.
        init, start : how the initial weights and the auxiliary variables are drawn.
        """

    def in_units(self, unit: float, sigma: Activation) -> Method:
        """The method for an objective in the units of training. `unit`: the factor by which JᵀJ,
        J the Jacobian of the residual, is larger there.
        """
        return self

    def default_init(self, kind: str, sigma: Activation, widths: Sequence[int]) -> str:
        """The initial weights that suit the method. `kind`: "pde" or "regression"."""
        return "he" if sigma.name == "relu" else "xavier"

    def default_start(self, kind: str) -> str:
        """The initial auxiliary variables: the paper's U(-1, 1), and for a PDE those of the forward
        pass, since sweeps on PDEs collapse from random ones.
        """
        return "forward" if kind == "pde" else "uniform"

    def default_iterations(self, kind: str, sigma: Activation) -> int:
        """The number of iterations where none is asked for."""
        return 1000 if kind == "pde" else 2000

    def true_loss_from_start(self, model: str) -> bool:
        """Whether the true loss is minimised from the first step on (no auxiliary variables)."""
        return model == "ls"

    @property
    def options(self) -> dict[str, Any]:
        """The fields as a dictionary."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


class Engine(Protocol):
    """The functions that the training loop calls, pure in a state of any type.

    Attributes
    ----------
    phases : names of the phases of a run; `diagnostics` may count in them as "phase".
    objective, widths, sigma : what it was made for.
    seed_bytes : the memory that a step of one seed works on.

    Methods
    -------
    init(key) : the initial state of a seed.
    begin(network) : the state at a given network.
    step(state) : the state after one step.
    losses(state) : the loss that is minimised, and the true loss.
    network(state) : the network of a state.
    point(state) : the network and its auxiliary variables; None without auxiliary variables.
    blocks() : the parts of a step by name, to find the one that gave a number that is not finite.
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
    def step(self, state) -> Any: ...
    def losses(self, state) -> tuple[Array, Array]: ...
    def network(self, state) -> Network: ...
    def point(self, state) -> Point | None: ...
    def blocks(self) -> list[tuple[str, Callable]]: ...
    def diagnostics(self, state) -> dict[str, Array]: ...
    def settled(self, diagnostics: dict[str, float]) -> str: ...


class OnePhase(eqx.Module):
    """What engines of one phase without diagnostics share. A step works on the jets of one layer at
    a time.
    """

    phases: ClassVar[tuple[str, ...]] = ()

    @property
    def seed_bytes(self) -> int:
        return 8 * self.objective.channels * max(self.widths)  # type: ignore[attr-defined]

    def point(self, state) -> Point | None:
        return None

    def blocks(self) -> list[tuple[str, Callable]]:
        return [("the step", self.step)]  # type: ignore[attr-defined]

    def diagnostics(self, state) -> dict[str, Array]:
        return {}

    def settled(self, diagnostics: dict[str, float]) -> str:
        return ""
