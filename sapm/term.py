"""A term of a least-squares problem: points, an operator on the output jet, targets, weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from sapm.jet import Jet, float64


class Term(eqx.Module):
    """Σ_n weight_n · |operator(ψ at sample n) - y_n|².

    Without tangents (k = 0) the operator is the value ψ; with tangents it is c_n · (the tangents of ψ), for one output.
    The weight is one number for all samples, or (n,). `x` is the input jet: the sample points and the directions that
    the tangents are taken along.
    """

    x: Jet
    y: Float[Array, "n m"]
    c: Float[Array, "n k"]
    weight: Float[Array, ...]

    @property
    def is_pde(self) -> bool:
        return self.c.shape[-1] > 0

    def widen_input(self, width: int) -> Term:
        """The same term with its inputs padded with zeros to that width."""
        grow = lambda a: jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, width - a.shape[-1])])  # noqa: E731
        return replace(self, x=Jet(grow(self.x.value), grow(self.x.tangents)))

    def residual(self, output: Jet) -> Float[Array, "n m"]:
        """operator(output) - y."""
        if self.is_pde:
            return jnp.einsum("nk,nkm->nm", self.c, output.tangents) - self.y
        return output.value - self.y


def as_columns(name: str, a) -> Array:
    a = jnp.asarray(a, jnp.float64)
    a = a[:, None] if a.ndim == 1 else a
    if a.ndim != 2 or 0 in a.shape:
        raise ValueError(f"{name} has shape {a.shape}; give one row per sample: (n, columns), n ≥ 1.")
    return a


def _per_sample(weight, n: int) -> Array:
    """weight/n: one number for all samples, or (n,)."""
    weight = jnp.asarray(weight, jnp.float64)
    if weight.shape not in ((), (n,)) or not bool(jnp.all((weight >= 0) & jnp.isfinite(weight)) & jnp.any(weight > 0)):
        raise ValueError(
            f"weight={weight.tolist()} must be a positive, finite number, or {n} of them (one per sample; some may be 0)."
        )
    return weight / n


@float64
def value_term(x, y, weight: Any = 1.0) -> Term:
    """ψ(x_n) = y_n, mean-square with that weight (1/N, or μ/N₂ for a boundary). Regression with any number of outputs."""
    x, y = as_columns("x", x), as_columns("y", y)
    n, d = x.shape
    if len(y) != n:
        raise ValueError(f"x has {n} samples and y has {len(y)}; they must be equal.")
    return Term(Jet(x, jnp.zeros((n, 0, d))), y, jnp.zeros((n, 0)), _per_sample(weight, n))


@float64
def pde_term(x, c, f, weight: Any = 1.0) -> Term:
    """Σ_i c_i(x_n) ∂_i ψ(x_n) = f(x_n), mean-square with that weight; one tangent per coordinate, as in the paper."""
    x, c, f = as_columns("x", x), as_columns("c", c), as_columns("f", f)
    n, d = x.shape
    if c.shape != (n, d) or f.shape != (n, 1):
        raise ValueError(f"x has shape {x.shape}, c {c.shape} and f {f.shape}; c must be {(n, d)} and f {(n, 1)}.")
    return Term(Jet(x, jnp.broadcast_to(jnp.eye(d), (n, d, d))), f, c, _per_sample(weight, n))


@float64
def directional(term: Term) -> Term:
    """The same term with one tangent, along c(x_n), instead of one for every coordinate: its residual is that tangent - y."""
    if not term.is_pde:
        return term
    along = jnp.einsum("nk,nkd->nd", term.c, term.x.tangents)[:, None]
    return replace(term, x=Jet(term.x.value, along), c=jnp.ones((len(term.y), 1)))
