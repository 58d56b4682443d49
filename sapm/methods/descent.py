"""Descent on any of the losses by optax: gradient descent with a decaying rate, Adam, L-BFGS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, Float

from sapm.methods.engine import OnePhase
from sapm.numerics.activations import Activation, activation
from sapm.numerics.network import Network, initialise
from sapm.objective.penalty import (
    Objective,
    Point,
    check_widths,
    mean_square,
    penalty,
    start_point,
    true_loss,
)
from sapm.scopes import float64

ADAM_RATE = 1e-3  # of the first step
RATE_HALVING_STEPS = 1e4
LBFGS_MEMORY = 20  # pairs (step, change of the gradient) that the Hessian is estimated from


class DescentState(eqx.Module):
    """The state of a seed.

    Parameters
    ----------
    variables : what is descended on: the network (LS), or the network with the auxiliary variables
        (PM, SAPM).
    optimiser : the state of the optax optimiser.
    """

    variables: Network | Point
    optimiser: Any


class DescentEngine(OnePhase):
    """Minimise a loss f by steps x ← x + p(∇f), where x is the network (LS), or the network and all
    auxiliary variables at once (PM, SAPM).

    Parameters
    ----------
    objective : the terms and the model.
    widths, sigma : the layer widths m_0 … m_L and the activation.
    name : the optimiser. "gd": p = -η ∇f. "adam": Adam with the rate η. "lbfgs": L-BFGS with a line
        search, which has no rate.
    rate, halving : η = rate · 2^(-k/halving) in step k.
    initialiser, start : how weights and auxiliary variables are drawn.
    """

    objective: Objective
    rate: Float[Array, ""]
    halving: Float[Array, ""]
    name: str = eqx.field(static=True)
    widths: tuple[int, ...] = eqx.field(static=True)
    sigma: Activation = eqx.field(static=True)
    initialiser: str = eqx.field(static=True)
    start: str = eqx.field(static=True)

    def _rate_at(self, count: ArrayLike) -> Array:
        """The rate of step `count`. Unlike optax's own schedules it takes traced numbers, so that
        another rate needs no compilation.
        """
        return self.rate * 0.5 ** (count / self.halving)

    def _optimiser(self) -> optax.GradientTransformationExtraArgs:
        if self.name == "lbfgs":
            return optax.lbfgs(memory_size=LBFGS_MEMORY)
        make = optax.sgd if self.name == "gd" else optax.adam
        return optax.with_extra_args_support(make(self._rate_at))

    def _loss(self, variables: Network | Point) -> Float[Array, ""]:
        if isinstance(variables, Point):
            return penalty(self.objective, variables)
        return true_loss(self.objective, variables)

    def init(self, key) -> DescentState:
        k_weights, k_start = jax.random.split(key)
        constants = self.objective.constants
        network = initialise(k_weights, self.widths, self.sigma, self.initialiser, constants)
        return self._state_at(k_start, network, self.start)

    def begin(self, network: Network) -> DescentState:
        """The state at a given network, with auxiliary variables (if any) of its forward pass."""
        state = self._state_at(jax.random.key(0), network, "forward")
        if not network.dense:
            jax.eval_shape(self._loss, state.variables)  # refuses layers that the loss cannot treat
        return state

    def _state_at(self, key, network: Network, start: str) -> DescentState:
        variables: Network | Point = network
        if self.objective.model != "ls":
            variables = start_point(key, self.objective, network, start)
        return DescentState(variables, self._optimiser().init(variables))  # type: ignore[arg-type]

    def step(self, state: DescentState) -> DescentState:
        """The state after one step of the optimiser on all variables."""
        optimiser = self._optimiser()
        variables = state.variables
        if self.name == "lbfgs":  # its line search has computed both already
            value, gradient = optax.value_and_grad_from_state(self._loss)(
                variables, state=state.optimiser
            )
        else:
            value, gradient = jax.value_and_grad(self._loss)(variables)
        extra = {"value": value, "grad": gradient, "value_fn": self._loss}
        change, new = optimiser.update(gradient, state.optimiser, variables, **extra)  # type: ignore[arg-type]
        return DescentState(optax.apply_updates(variables, change), new)  # type: ignore[arg-type]

    def losses(self, state: DescentState) -> tuple[Array, Array]:
        return self._loss(state.variables), mean_square(self.network(state), self.objective.terms)

    def network(self, state: DescentState) -> Network:
        return state.variables.network if isinstance(state.variables, Point) else state.variables

    def point(self, state: DescentState) -> Point | None:
        return state.variables if isinstance(state.variables, Point) else None

    def blocks(self) -> list[tuple[str, Callable]]:
        return [(f"the {self.name} step", self.step)]


@float64
def descent(
    obj: Objective,
    widths: Sequence[int],
    sigma: str | Activation,
    name: str = "adam",
    rate: float = ADAM_RATE,
    halving: float = RATE_HALVING_STEPS,
    init: str = "paper",
    start: str = "uniform",
) -> DescentEngine:
    """The engine of descent on the loss of an objective.

    Parameters
    ----------
    obj : the objective.
    widths, sigma : the layer widths m_0 … m_L and the activation.
    name : "gd" (the paper's baseline for LS), "adam" or "lbfgs".
    rate, halving : the rate of the first step, and the number of steps in which it halves.
    init, start : the initialiser of the weights, and that of the auxiliary variables.
    """
    check_widths(obj, widths)
    rates = jnp.asarray(float(rate)), jnp.asarray(float(halving))
    return DescentEngine(obj, *rates, name, tuple(widths), activation(sigma), init, start)
