"""Rank-safe linear least squares: weighted rows → normal equations → a safe step. Knows no networks.

Everything is solved for the *change* of the unknown. The tiny regulariser that keeps the factorisation safe then pulls
towards no change (a proximal step), so it never raises the objective and never moves what the data do not determine.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

EPS = float(np.finfo(np.float64).eps)
TINY = 1e-280  # stands for zero where a quotient must exist; leaves room for small multiples of it
SMALL = 64  # systems for which a GPU rather computes or copies more than it needs than starts another kernel
SEEDS = "seeds"  # the name of the vmapped axis that seeds run on


def over_seeds(x: Array) -> Array:
    """The largest x over all seeds run side by side: one scalar for the batch, so that loops and branches stay shared."""
    try:
        return lax.pmax(x, SEEDS)
    except NameError:  # not inside a run over seeds
        return x


class Normal(eqx.Module):
    """Normal equations of Σ_rows w ‖X z + r‖²: gram = Σ w z zᵀ, moment = Σ w z rᵀ, in float64. They add over chunks of rows."""

    gram: Float[Array, "m m"]
    moment: Float[Array, "m out"]

    def __add__(self, other: Normal) -> Normal:
        return Normal(self.gram + other.gram, self.moment + other.moment)

    def moved(self, change: Float[Array, "m out"]) -> Normal:
        """Those of the same rows at X + changeᵀ, where the residuals are r + changeᵀz."""
        return Normal(self.gram, self.moment + self.gram @ change)


def rows(z: Float[Array, "n m"], r: Float[Array, "n out"], w: Array, bias: bool = False, room: bool = False) -> Normal:
    """The rows' normal equations; w is one weight for all rows or (n,). `bias`: for the features [z, 1]; `room`: for [z, 0]."""
    z, r = z.astype(float), r.astype(float)
    if bias and _few_kernels(z.shape[1]):
        return _at_once(jnp.pad(z, ((0, 0), (0, 1)), constant_values=1.0), r, w)
    wz = z if w.ndim == 0 else w[:, None] * z
    factor = w if w.ndim == 0 else 1.0
    normal = Normal(factor * (z.T @ wz), factor * (wz.T @ r))
    if bias:
        edge, ends = factor * jnp.sum(wz, axis=0), jnp.sum(jnp.broadcast_to(w, len(z)))
        last = w @ r if w.ndim else w * jnp.sum(r, axis=0)
    elif room:
        edge, ends, last = jnp.zeros(z.shape[1]), jnp.zeros(()), jnp.zeros(r.shape[1])
    else:
        return normal
    gram = jnp.block([[normal.gram, edge[:, None]], [edge[None, :], ends[None, None]]])
    return Normal(gram, jnp.concatenate([normal.moment, last[None, :]]))


def _few_kernels(m: int) -> bool:
    """Whether the time goes into starting kernels: on a GPU, for systems of this size."""
    return jax.default_backend() != "cpu" and m <= SMALL


def _at_once(z: Float[Array, "n m"], r: Float[Array, "n out"], w: Array) -> Normal:
    """The rows' normal equations by one product."""
    weighted, factor = (z, w) if w.ndim == 0 else (w[:, None] * z, 1.0)
    both = factor * (weighted.T @ jnp.concatenate([z, r], axis=1))
    return Normal(both[:, : z.shape[1]], both[:, z.shape[1] :])


def step(normal: Normal, ridge: Float[Array, " m"], current: Float[Array, "m out"]) -> Float[Array, "m out"]:
    """The change δ that minimises Σ w ‖δᵀz + r‖² + Σ_j ridge_j ‖(current + δ)_j‖²; r is the residual at `current`.

    The matrix, scaled to unit diagonal, gets 8(m+1)·eps on its diagonal. Where the rounding of many like rows has still taken
    more than that away, the factor does not exist and 1e-8 is added instead. One step of refinement with the matrix as it was
    leaves nothing of either where the rows determine the answer; where they do not (dead features, too few rows), nothing
    moves. Features 1e-12 times smaller than the largest count as dead.
    """
    m = ridge.shape[0]
    H = normal.gram + jnp.diag(ridge)
    gradient = normal.moment + ridge[:, None] * current
    diagonal = jnp.diagonal(H)
    scale = lax.rsqrt(jnp.maximum(diagonal, jnp.max(diagonal) * 1e-24 + TINY))
    unit, right = H * scale[:, None] * scale, -scale[:, None] * gradient
    factor = lambda shift: jnp.linalg.cholesky(unit + shift * jnp.eye(m))  # noqa: E731
    least, more = 8 * (m + 1) * EPS, 1e-8
    if _few_kernels(m):
        root, other = factor(jnp.array([least, more])[:, None, None])
        root = jnp.where(jnp.isnan(root[-1, -1]), other, root)
    else:
        root = factor(least)
        failed = jnp.isnan(root[-1, -1])
        other = lambda: jnp.where(failed, factor(more), root)  # noqa: E731
        root = lax.cond(over_seeds(failed.astype(jnp.float64)) > 0, other, lambda: root)
    inverse = solve_triangular(root, jnp.eye(m), lower=True)
    change = inverse.T @ (inverse @ right)
    change += inverse.T @ (inverse @ (right - unit @ change))
    return scale[:, None] * change


def spectral_bound(G: Float[Array, "m m"]) -> Float[Array, ""]:
    """An upper bound of the largest eigenvalue of G ⪰ 0, at most m^(1/64) above it: ‖G³²‖_F^(1/32) by five squarings."""
    size = jnp.sqrt(jnp.sum(G * G))
    power, exponent = G / jnp.maximum(size, TINY), 1
    for _ in range(5):
        power, exponent = power @ power, 2 * exponent
    return size * jnp.sum(power * power) ** (0.5 / exponent) * (1 + 1e-12)


def shifted_solve(
    W: Float[Array, "out m"],
    S: Float[Array, "n m"],
    shift: Float[Array, " n"],
    rhs: Float[Array, "n k m"],
    tol: float | None = None,
    most: int = 100,
) -> Float[Array, "n k m"]:
    """x with (S_n WᵀW S_n + shift_n I) x_ni = rhs_ni for every sample n, S_n = diag(S[n]).

    One row in W: the rank-one formula. Otherwise the Chebyshev series of 1/λ on the interval that holds the spectrum, with
    the one Gram matrix WᵀW that all samples share and as many terms as the condition number asks for (both from proven
    bounds); where that is more than `most`, a Cholesky factor per sample.
    """
    kind = jnp.finfo(rhs.dtype)
    eps, tiny = float(kind.eps), max(TINY, 1e10 * float(kind.tiny))
    tol = 500 * eps if tol is None else tol
    shift = jnp.maximum(shift, tiny)[:, None, None]
    if W.shape[0] == 1:
        v = (W * S)[:, None, :]
        along = jnp.sum(v * rhs, -1, keepdims=True) / (shift + jnp.sum(v * v, -1, keepdims=True))
        return (rhs - v * along) / shift
    G = W.T @ W
    S = S[:, None, :]
    half = 0.5 * spectral_bound(G) * jnp.max(S * S, axis=-1, keepdims=True)
    half = jnp.maximum(half, 1e-2 * shift)  # half the length of the interval [shift, shift + 2 half]
    ratio = 1 + shift / half  # of its middle to its half length
    root = jnp.sqrt((shift / half) * (ratio + 1))  # √(ratio² - 1)
    decay = 1 / (ratio + root)
    terms = jnp.ceil(jnp.log(2 / tol) / jnp.maximum(-jnp.log(jnp.max(decay)), tiny))
    terms = over_seeds(jnp.where(jnp.isnan(terms), 1.0, jnp.minimum(terms, most + 1))).astype(jnp.int32)

    def chebyshev():
        """1/λ = Σ_j c_j T_j((λ - middle)/half), c_j = (-decay)^j 2/(half·root) (half of it for j = 0), by Clenshaw."""

        def next_sum(c, b1, b2, factor=2.0):
            return c * rhs + factor * ((S / half) * ((S * b1) @ G) - b1) - b2

        def two_terms(_, carry):  # two at a time, so that no array has to change places
            c, b1, b2 = carry
            b2 = next_sum(c, b1, b2)
            b1 = next_sum(-c / decay, b2, b1)
            return c / decay**2, b1, b2

        pairs = terms // 2
        last = (2 / (half * root)) * decay ** (2 * pairs + 1)
        start = (last / decay, -last * rhs, jnp.zeros_like(rhs))
        c, b1, b2 = lax.fori_loop(0, pairs, two_terms, start)
        return next_sum(0.5 * c, b1, b2, factor=1.0)

    def direct():
        floor = 8 * (len(G) + 1) * eps * 2 * half  # as in `step`: never singular, at most a shorter change
        H = S.swapaxes(-1, -2) * G * S + jnp.maximum(shift, floor) * jnp.eye(len(G), dtype=rhs.dtype)
        return cho_solve((jnp.linalg.cholesky(H), True), rhs.swapaxes(-1, -2)).swapaxes(-1, -2)

    return lax.cond(terms > most, direct, chebyshev)
