"""Layers of a network, u_{l-1} → u_l on jets: the protocol, and the dense layer."""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from sapm.numerics.activations import Activation
from sapm.numerics.jets import Jet, lift


class Layer(eqx.Module):
    """A layer of any kind; its arrays are its weights.

    A subclass defines `__call__` and `sizes`. That is enough to train it on the true loss. With a
    `gain` it can be trained on the SAPM loss as well, and has a certificate.
    """

    @abstractmethod
    def __call__(self, z: Jet) -> Jet:
        """The output of the layer for the features z; those of the first layer are the input."""

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, int]:
        """The numbers of inputs and of outputs."""

    def apply(self, sigma: Activation, u: Jet) -> Jet:
        """u_l from the values u_{l-1} before the activation; a skip connection adds u here."""
        return self(lift(sigma, u))

    def gain(self) -> Float[Array, ""] | None:
        """A squared Lipschitz constant of `apply`, for activations with Lipschitz constant 1:

            ‖apply(u) - apply(v)‖² ≤ gain ‖u - v‖²

        None if there is no proven one.
        """
        return None

    def penalised(self) -> Layer:
        """The layer with 0 for the weights that are not in the ℓ² penalty."""
        return self

    @property
    def size(self) -> int:
        """The number of weights."""
        return sum(leaf.size for leaf in jax.tree.leaves(self))

    def flat(self) -> Float[Array, " size"]:
        """The weights as one vector."""
        return ravel_pytree(self)[0]

    def with_flat(self, flat: Float[Array, " size"]) -> Layer:
        """The inverse of `flat`."""
        leaves, structure = jax.tree.flatten(self)
        at = 0
        new = []
        for leaf in leaves:
            new.append(flat[at : at + leaf.size].reshape(leaf.shape))
            at += leaf.size
        return jax.tree.unflatten(structure, new)


class Dense(Layer):
    """The affine layer z → W z + b; derivatives of z are multiplied by W alone."""

    W: Float[Array, "out in"]
    b: Float[Array, " out"]

    def __call__(self, z: Jet) -> Jet:
        return z.like(z.value @ self.W.T + self.b, z.tangents @ self.W.T)

    @property
    def sizes(self) -> tuple[int, int]:
        return self.W.shape[-1], self.W.shape[-2]

    def gain(self) -> Float[Array, ""]:
        """‖W‖_F²."""
        return jnp.sum(self.W**2)

    def penalised(self) -> Dense:
        return Dense(self.W, jnp.zeros_like(self.b))

    @property
    def size(self) -> int:
        return self.W.size + self.b.size

    def flat(self) -> Float[Array, " size"]:
        """The rows of [W, b], one after another."""
        return jnp.column_stack([self.W, self.b]).reshape(-1)

    def with_flat(self, flat: Float[Array, " size"]) -> Dense:
        rows = flat.reshape(self.b.size, -1)
        return Dense(rows[:, :-1], rows[:, -1])

    def rounded(self, dtype) -> Dense:
        """The same weights in another precision."""
        return Dense(self.W.astype(dtype), self.b.astype(dtype))
