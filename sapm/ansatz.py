"""Conditions that hold of themselves: u = g + φ N, with the network N and a factor φ that is 0 on the faces they are about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sapm.domain import Ball, Box, Coordinates
from sapm.jet import Jet, float64
from sapm.pointwise import numbers_of


def jet_of(f: Callable[[Array], Array], x: Jet) -> Jet:
    """The jet of a function of one point, (d,) → (m,), at the points and along the directions of an input jet."""
    k = len(x.forms[0]) if x.forms else x.tangents.shape[1]

    def one(value, tangents):
        first = lambda v: lambda z: jax.jvp(f, (z,), (v,))[1]  # noqa: E731
        found = [first(v)(value) for v in tangents]
        for q, form in enumerate(x.forms):
            for sign, v in zip(form, tangents[:k], strict=True):
                if sign:
                    found[k + q] += sign * jax.jvp(first(v), (value,), (v,))[1]
        out = f(value)
        return out, jnp.stack(found) if found else jnp.zeros((0, *out.shape))

    return Jet(*jax.vmap(one)(x.value, x.tangents), x.forms)


def distance(domain: Any, face: str, row: Array) -> Array:
    """Smooth, 0 on the face and positive inside: 1 in the middle of a box, or of a ball."""
    if isinstance(domain, Box):
        lower, upper = domain.bounds[face[:-1]]
        x = row[domain.names.index(face[:-1])]
        return 2 * (x - lower if face[-1] == "-" else upper - x) / (upper - lower)
    if isinstance(domain, Ball):
        return 1 - jnp.sum((row - jnp.asarray(domain.center)) ** 2) / domain.radius**2
    raise ValueError(f"hard=True needs a Box or a Ball, not {type(domain).__name__}; leave it out.")


@dataclass(frozen=True, eq=False)
class Ansatz:
    """u = g + φ N. Outputs beyond the functions to find (parameters) stay what they are."""

    domain: Any
    faces: tuple[str, ...]
    g: Callable
    fields: int
    constants: int = 0

    def factor(self, row: Float[Array, " d"]) -> Array:
        found = jnp.ones(())
        for face in self.faces:
            found = found * distance(self.domain, face, row)
        return jnp.append(jnp.full(self.fields, found), jnp.ones(self.constants))

    def datum(self, row: Float[Array, " d"]) -> Array:
        found = numbers_of(self.g(Coordinates(self.domain.names, row)), "the datum of a hard condition", several=True)
        return jnp.append(jnp.broadcast_to(found, (self.fields,)), jnp.zeros(self.constants))

    @float64
    def jets(self, x: Jet) -> tuple[Jet, Jet]:
        """φ and g at the points and along the directions of an input jet."""
        return jet_of(self.factor, x), jet_of(self.datum, x)

    def __call__(self, x: Float[Array, "n d"], outputs: Float[Array, "n m"]) -> Array:
        return outputs * jax.vmap(self.factor)(x)[:, : outputs.shape[1]] + jax.vmap(self.datum)(x)[:, : outputs.shape[1]]


@dataclass(frozen=True)
class Component:
    """The same for one of the functions alone."""

    whole: Ansatz
    i: int

    def __call__(self, x: Float[Array, "n d"], output: Float[Array, "n 1"]) -> Array:
        return self.whole(x, jnp.repeat(output, self.whole.fields, 1))[:, self.i : self.i + 1]
