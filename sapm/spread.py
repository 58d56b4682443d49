"""How far a defect spreads: the self-adaptive weights of PDE terms beside ω_l, and the constants of the bounds they give.

With the norms of a sample's auxiliary variables, t_l = Σ_i ‖d_{l,i}‖², q_l = Σ ‖S_l‖² over second-order channels, and
p_l = Σ_i ‖d̂_{l,i} + d_{l,i}‖² with the tangents d̂ of the forward pass, the squared defects of layer l count

    values        υ + Σ_{l≤m<L} ( t_m + [second order] ( q_m + t_m² + t_m Σ_{m<j<L} p_j ) )
    tangents      1 + [second order] Σ_{l≤m<L} p_m
    second-order channels    1

times the products of squared norms ω_l and the fixed weights; υ = 1 if the term contains ψ itself, else 0. Docs/method.md,
section 8, proves that the true loss is then at most a constant times the penalty loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sapm.jet import Activation, Jet
from sapm.network import Network, Stack
from sapm.term import Term


class Curve(eqx.Module):
    """What a term of second order has beside t: q and p by layer and sample."""

    q: Float[Array, "L n"]
    p: Float[Array, "L n"]


def length_squared(u: Jet) -> Float[Array, " n"]:
    """t[n] = Σ_i ‖d_i[n]‖²."""
    return jnp.sum(u.tangents[..., : u.first, :] ** 2, axis=(-2, -1))


def bend_squared(u: Jet) -> Float[Array, " n"]:
    """q[n] = Σ ‖S[n]‖² over the second-order channels."""
    return jnp.sum(u.tangents[..., u.first :, :] ** 2, axis=(-2, -1))


def lengths(term: Term, network: Network, aux: Stack) -> tuple[Float[Array, "L n"], Curve | None]:
    """What the adaptive weights of a term are made of: t_{l,n}, and for a term of second order q_{l,n} and p_{l,n}."""
    t = aux.map(length_squared).rows()
    if not term.x.forms:
        return t, None
    first = lambda u: u.tangents[..., : u.first, :]  # noqa: E731
    both = jax.tree.map(jnp.add, network.preactivations(term.x).map(first), aux.map(first))
    p = both.map(lambda d: jnp.sum(d**2, axis=(-2, -1))).rows()
    return t, Curve(aux.map(bend_squared).rows(), p)


def suffix(x: Float[Array, "L n"]) -> Float[Array, "L n"]:
    """Σ_{l≤m<L} x_m for l = 1..L."""
    return jnp.flip(jnp.cumsum(jnp.flip(x.at[-1].set(0.0), 0), 0), 0)


def value_spread(term: Term, t: Float[Array, "L n"], curve: Curve | None) -> Float[Array, "L n"]:
    """The weight of value defects beside β_l ω_l; Ω²_{l,n} for a first-order linear term without ψ."""
    if curve is not None:
        above = jnp.pad(suffix(curve.p)[1:], ((0, 1), (0, 0)))  # Σ_{m<j<L} p_j
        t = t + t**2 + curve.q + t * above
    return suffix(t) + 1 if term.uses_value else suffix(t)


def tangent_spread(curve: Curve) -> Float[Array, "L n"]:
    """The weight of tangent defects beside α_l ω_l, for a term of second order."""
    return 1 + suffix(curve.p)


def steepness(terms: Sequence[Term], network: Network, aux: Sequence[Stack]) -> float | None:
    """A Lipschitz constant of the nonlinear residuals on the output jets of a point; None if there are none."""
    pairs = [(term, u.tail[-1]) for term, u in zip(terms, aux, strict=True) if term.function is not None]
    return max((float(_steepness(term, network(term.x), u)) for term, u in pairs), default=None)


@jax.jit
def _steepness(term: Term, exact: Jet, free: Jet) -> Float[Array, ""]:
    """Of one residual, on the output jets of the forward pass and the free ones.

    The largest quotient of differences, sample by sample, and no less than the norm of the gradient at the free jet.
    """
    (f, back), g = jax.vjp(term.residual, free), term.residual(exact)
    slope = back(jnp.ones_like(f))[0]
    flat = lambda jet: jnp.concatenate([jet.value, jet.tangents[:, :, 0]], axis=1)  # noqa: E731
    far = jnp.linalg.norm(flat(exact) - flat(free), axis=1)
    known = far > 1e-12 * jnp.linalg.norm(flat(free), axis=1)  # below, rounding would be divided by rounding
    found = jnp.where(known, jnp.abs(f - g)[:, 0] / jnp.where(known, far, 1.0), 0.0)
    return jnp.max(jnp.maximum(found, jnp.linalg.norm(flat(slope), axis=1)))


def constant(term: Term, sigma: Activation, alpha: np.ndarray, beta: np.ndarray, steep: float | None) -> float:
    """The proven constant of a PDE term (Theorems 3 and 5); `alpha` (L,), `beta` (L-1,); `steep` for a nonlinear residual."""
    L, l = len(alpha), np.arange(1, len(alpha))
    C, B, K, M = (x or 0.0 for x in (sigma.lipschitz, sigma.slope, sigma.slope_lipschitz, sigma.curve_lipschitz))
    paths = np.array([sum(B ** (2 * (L - m - 1)) * C ** (2 * (m - j)) for m in range(j, L)) for j in l])
    fall = B ** (2.0 * (L - np.arange(1, L + 1)))
    values = np.sum(C ** (2.0 * (L - l)) / beta) + 1
    tangents = np.sum(fall / alpha) + K**2 * np.sum(paths / beta)
    bent = 0.0
    if term.x.forms:
        f2 = float(np.max(np.sum(np.square(term.x.forms), axis=0), initial=0.0))  # φ²
        mixed = [sum(C ** (2 * (j - i)) * B ** (2 * (L - j - 2)) * (L - 1 - j) for j in range(i, L - 1)) for i in l]
        bent = np.sum(fall / alpha) + f2 * K**2 * np.sum(B ** (2.0 * (L - l - 1)) * (L - l) / alpha[:-1])
        bent += np.sum(((K**2 + f2 * M**2) * paths + f2 * K**4 * np.array(mixed)) / beta)
    if term.function is not None:
        assert steep is not None
        return 1 + steep**2 * float(values + tangents + bent)
    c, c0 = np.asarray(term.c), 0.0 if term.c0 is None else np.asarray(term.c0)
    first, second = np.sum(c[:, : term.x.first] ** 2, -1), np.sum(c[:, term.x.first :] ** 2, -1)
    return 1 + float(np.max(first * tangents + second * bent + np.square(c0) * values))
