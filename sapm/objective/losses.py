"""Losses: the cost of a prediction, and the quadratic model of it that Gauss-Newton minimises.

A loss ℓ is convex in the prediction p. Near p its model is

    ℓ(p + δ, y) ≈ |ρ + R δ|² + const
"""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class Loss(eqx.Module):
    """The cost of predictions p (n, m) for targets y (n, m), sample by sample.

    A subclass defines `value` and `quadratic`; `sapm.Regression(X, Y, loss=…)` trains with it.
    """

    @abstractmethod
    def value(
        self, prediction: Float[Array, "n m"], target: Float[Array, "n m"]
    ) -> Float[Array, " n"]:
        """The cost of every sample."""

    @abstractmethod
    def quadratic(
        self, prediction: Float[Array, "n m"], target: Float[Array, "n m"]
    ) -> tuple[Float[Array, "n m"], Float[Array, "n m m"]]:
        """The residual ρ and the root R of the quadratic model:

        2 Rᵀ ρ = gradient of the loss in p
        2 Rᵀ R = Hessian, or a positive semidefinite approximation of it
        """


class Square(Loss):
    """|p - y|²."""

    def value(
        self, prediction: Float[Array, "n m"], target: Float[Array, "n m"]
    ) -> Float[Array, " n"]:
        return jnp.sum((prediction - target) ** 2, axis=-1)

    def quadratic(
        self, prediction: Float[Array, "n m"], target: Float[Array, "n m"]
    ) -> tuple[Float[Array, "n m"], Float[Array, "n m m"]]:
        n, m = prediction.shape
        return prediction - target, jnp.broadcast_to(jnp.eye(m), (n, m, m))


class Scaled(Loss):
    """ℓ(size · p, y) for a loss ℓ: of a network whose outputs count in units of that size."""

    loss: Loss
    size: float = eqx.field(static=True)

    def value(
        self, prediction: Float[Array, "n m"], target: Float[Array, "n m"]
    ) -> Float[Array, " n"]:
        return self.loss.value(self.size * prediction, target)

    def quadratic(
        self, prediction: Float[Array, "n m"], target: Float[Array, "n m"]
    ) -> tuple[Float[Array, "n m"], Float[Array, "n m m"]]:
        residual, root = self.loss.quadratic(self.size * prediction, target)
        return residual, self.size * root
