"""Descent on any of the losses by optax: plain gradient descent with a decaying rate, Adam, L-BFGS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from sapm.jet import Activation, activation, float64
from sapm.methods.method import OnePhase
from sapm.network import Network, initialise
from sapm.objective import Objective, Point, check_widths, mean_square, penalty, start_point, true_loss

OPTIMISERS = ("gd", "adam", "lbfgs")


class DescentState(eqx.Module):
    variables: Network | Point
    optimiser: Any


class Descent(OnePhase):
    """LS: over the network. PM, SAPM: over the network and the auxiliary variables at once.

    gd and adam have a rate that halves every `halving` iterations; lbfgs has a line search of its own.
    """

    objective: Objective
    rate: Float[Array, ""]
    halving: Float[Array, ""]
    name: str = eqx.field(static=True)
    widths: tuple[int, ...] = eqx.field(static=True)
    sigma: Activation = eqx.field(static=True)
    weights: str = eqx.field(static=True, default="paper")
    start: str = eqx.field(static=True, default="uniform")

    def _optimiser(self) -> optax.GradientTransformationExtraArgs:
        if self.name == "lbfgs":
            return optax.lbfgs(memory_size=20)

        def rate(count):  # optax's own schedules want a concrete rate; this one may change without a recompilation
            return self.rate * 0.5 ** (count / self.halving)

        return optax.with_extra_args_support(optax.sgd(rate) if self.name == "gd" else optax.adam(rate))

    def _loss(self, variables) -> Float[Array, ""]:
        if isinstance(variables, Point):
            return penalty(self.objective, variables)
        return true_loss(self.objective, variables)

    def init(self, key) -> DescentState:
        k_weights, k_start = jax.random.split(key)
        network = initialise(k_weights, self.widths, self.sigma, self.weights, self.objective.constants)
        variables = network
        if self.objective.model != "ls":
            variables = start_point(k_start, self.objective, network, self.start)
        return self._at(variables)

    def begin(self, network: Network) -> DescentState:
        """The state at a given network, with the auxiliary variables (if any) of its forward pass."""
        if self.objective.model == "ls":
            return self._at(network)
        return self._at(start_point(jax.random.key(0), self.objective, network, "forward"))

    def _at(self, variables: Network | Point) -> DescentState:
        return DescentState(variables, self._optimiser().init(variables))  # type: ignore[arg-type]

    def step(self, state: DescentState) -> DescentState:
        optimiser, variables = self._optimiser(), state.variables
        if self.name == "lbfgs":
            value, gradient = optax.value_and_grad_from_state(self._loss)(variables, state=state.optimiser)
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
    rate: float = 1e-3,
    halving: float = 1e4,
    init: str = "paper",
    start: str = "uniform",
) -> Descent:
    """Plain gradient descent ("gd", the paper's LS baseline), "adam" or "lbfgs" on the objective's own loss."""
    if name not in OPTIMISERS:
        raise ValueError(f"name={name!r} is not known; use one of {', '.join(OPTIMISERS)}.")
    if not (rate > 0 and halving > 0):
        raise ValueError(f"rate={rate} and halving={halving} must be positive.")
    sigma = activation(sigma)
    check_widths(obj, widths)
    return Descent(obj, jnp.asarray(float(rate)), jnp.asarray(float(halving)), name, tuple(widths), sigma, init, start)
