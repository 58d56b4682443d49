"""Linear least squares for matrices of any rank, by normal equations.

Every system is solved for the change of the unknown. A small regulariser keeps the factorisation
safe. It pulls towards no change (a proximal step), so it never raises the objective, and it leaves
unknowns alone that the data do not determine.
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
# Replaces the norm or the diagonal of a matrix in a divisor if that is 0; small multiples of it are
# still normal numbers.
MATRIX_FLOOR = 1e-280
# On a GPU, more arithmetic is cheaper than one more kernel for systems up to this size.
GPU_SMALL_SYSTEM_SIZE = 64
VMAP_SEEDS_AXIS = "seeds"  # the name of the vmapped axis of seeds


def over_seeds(x: Array) -> Array:
    """The largest x over all seeds of a batch.

    Loops and branches that depend on this scalar alone are not vectorised.
    """
    try:
        return lax.pmax(x, VMAP_SEEDS_AXIS)
    except NameError:  # there is no axis of seeds
        return x


class Normal(eqx.Module):
    """The normal equations of Σ_rows w ‖X z + r‖², in float64:

        gram = Σ w z zᵀ
        moment = Σ w z rᵀ

    Those of two sets of rows are added.
    """

    gram: Float[Array, "m m"]
    moment: Float[Array, "m out"]

    def __add__(self, other: Normal) -> Normal:
        return Normal(self.gram + other.gram, self.moment + other.moment)

    def moved(self, change: Float[Array, "m out"]) -> Normal:
        """The normal equations of the same rows at X + changeᵀ, with residuals r + changeᵀz."""
        return Normal(self.gram, self.moment + self.gram @ change)


def rows(
    z: Float[Array, "n m"],
    r: Float[Array, "n out"],
    w: Array,
    bias: bool = False,
    room: bool = False,
) -> Normal:
    """The normal equations of rows.

    Parameters
    ----------
    z : (n, m), the features.
    r : (n, out), the residuals.
    w : () or (n,), the weight of all rows, or of each.
    bias : use the features [z, 1].
    room : use the features [z, 0].
    """
    z = z.astype(float)
    r = r.astype(float)
    if bias and _few_kernels(z.shape[1]):
        return _at_once(jnp.pad(z, ((0, 0), (0, 1)), constant_values=1.0), r, w)
    wz = z if w.ndim == 0 else w[:, None] * z
    factor = w if w.ndim == 0 else 1.0
    normal = Normal(factor * (z.T @ wz), factor * (wz.T @ r))
    if bias:
        edge = factor * jnp.sum(wz, axis=0)
        ends = jnp.sum(jnp.broadcast_to(w, len(z)))
        last = w @ r if w.ndim else w * jnp.sum(r, axis=0)
    elif room:
        edge = jnp.zeros(z.shape[1])
        ends = jnp.zeros(())
        last = jnp.zeros(r.shape[1])
    else:
        return normal
    gram = jnp.block([[normal.gram, edge[:, None]], [edge[None, :], ends[None, None]]])
    return Normal(gram, jnp.concatenate([normal.moment, last[None, :]]))


def _few_kernels(m: int) -> bool:
    """Whether starting kernels dominates the time: on a GPU, for small systems."""
    return jax.default_backend() != "cpu" and m <= GPU_SMALL_SYSTEM_SIZE


def _at_once(z: Float[Array, "n m"], r: Float[Array, "n out"], w: Array) -> Normal:
    """The normal equations of rows by one matrix product."""
    if w.ndim == 0:
        weighted = z
        factor = w
    else:
        weighted = w[:, None] * z
        factor = 1.0
    both = factor * (weighted.T @ jnp.concatenate([z, r], axis=1))
    return Normal(both[:, : z.shape[1]], both[:, z.shape[1] :])


def guarded_length(
    current: Float[Array, "m out"], change: Float[Array, "m out"], share: float
) -> Array | float:
    """The largest θ ≤ 1 for which current + θ · change keeps a share of its squared norm,

        ‖current + θ change‖² ≥ share ‖current‖²

    It is 1 if the whole change does, otherwise the first θ with equality. A convex function with
    its minimum at `current + change` falls all the way there. So a change that is shortened never
    raises it, and θ · change is 0 only if the change is.

    Parameters
    ----------
    current : the unknowns before the change.
    change : the whole change.
    share : in [0, 1); 0 does not limit the change.
    """
    if not share:
        return 1.0
    size = jnp.sum(current**2)
    along = jnp.sum(current * change)
    length = jnp.sum(change**2)
    spare = (1 - share) * size
    # the smaller root of length θ² + 2 along θ + spare, where along < 0
    root = jnp.sqrt(jnp.maximum(along**2 - length * spare, 0.0))
    first = spare / jnp.where(along < 0, root - along, 1.0)
    return jnp.where(size + 2 * along + length >= share * size, 1.0, first)


def step(
    normal: Normal, ridge: Float[Array, " m"], current: Float[Array, "m out"]
) -> Float[Array, "m out"]:
    """The change δ that minimises

        Σ w ‖δᵀz + r‖² + Σ_j ridge_j ‖(current + δ)_j‖²

    where r is the residual at `current`.

    The matrix is scaled to unit diagonal, and 8(m+1)·eps is added to its diagonal. If rounding
    makes the Cholesky factorisation fail nevertheless, 1e-8 is added instead. One step of
    refinement with the original matrix removes the effect of either where the rows determine the
    solution; elsewhere (dead features, too few rows) the unknowns do not change. Features smaller
    than 1e-12 times the largest one count as dead.

    Parameters
    ----------
    normal : the normal equations of the rows.
    ridge : (m,), the ridge of every feature.
    current : (m, out), the unknowns before the step.
    """
    m = ridge.shape[0]
    H = normal.gram + jnp.diag(ridge)
    gradient = normal.moment + ridge[:, None] * current
    diagonal = jnp.diagonal(H)
    scale = lax.rsqrt(jnp.maximum(diagonal, jnp.max(diagonal) * 1e-24 + MATRIX_FLOOR))
    unit = H * scale[:, None] * scale
    right = -scale[:, None] * gradient

    def factor(shift):
        return jnp.linalg.cholesky(unit + shift * jnp.eye(m))

    small_shift = 8 * (m + 1) * EPS
    large_shift = 1e-8
    if _few_kernels(m):
        small_root, large_root = factor(jnp.array([small_shift, large_shift])[:, None, None])
        root = jnp.where(jnp.isnan(small_root[-1, -1]), large_root, small_root)
    else:
        small_root = factor(small_shift)
        failed = jnp.isnan(small_root[-1, -1])
        any_failed = over_seeds(failed.astype(jnp.float64)) > 0
        root = lax.cond(
            any_failed,
            lambda: jnp.where(failed, factor(large_shift), small_root),
            lambda: small_root,
        )
    inverse = solve_triangular(root, jnp.eye(m), lower=True)
    change = inverse.T @ (inverse @ right)
    change += inverse.T @ (inverse @ (right - unit @ change))
    return scale[:, None] * change


def spectral_bound(G: Float[Array, "m m"]) -> Float[Array, ""]:
    """An upper bound of the largest eigenvalue of G ⪰ 0, by five squarings:

        ‖G³²‖_F^(1/32)

    It is too large by a factor of at most m^(1/64).

    Parameters
    ----------
    G : (m, m), symmetric and positive semidefinite.
    """
    size = jnp.sqrt(jnp.sum(G * G))
    power = G / jnp.maximum(size, MATRIX_FLOOR)
    exponent = 1
    for _ in range(5):
        power = power @ power
        exponent = 2 * exponent
    return size * jnp.sum(power * power) ** (0.5 / exponent) * (1 + 1e-12)


def shifted_solve(
    W: Float[Array, "out m"],
    S: Float[Array, "n m"],
    shift: Float[Array, " n"],
    rhs: Float[Array, "n k m"],
    tol: float | None = None,
    max_terms: int = 100,
) -> Float[Array, "n k m"]:
    """The solutions x of (S_n WᵀW S_n + shift_n I) x_{n,i} = rhs_{n,i} for every sample n, where
    S_n = diag(S[n]).

    If W has one row, by the rank-one formula. Otherwise by the Chebyshev series of 1/λ on an
    interval that contains the spectrum; all samples share the Gram matrix WᵀW, and the number of
    terms follows from a bound of the condition number. If it exceeds `max_terms`, by a Cholesky
    factorisation for every sample.

    Parameters
    ----------
    W : (out, m), the matrix that all samples share.
    S : (n, m), the diagonals.
    shift : (n,), positive numbers.
    rhs : (n, k, m), k right-hand sides for each sample.
    tol : the relative error of the series. Default: 500 eps.
    max_terms : the largest number of terms.
    """
    kind = jnp.finfo(rhs.dtype)
    eps = float(kind.eps)
    tiny = max(MATRIX_FLOOR, 1e10 * float(kind.tiny))
    tol = 500 * eps if tol is None else tol
    shift = jnp.maximum(shift, tiny)[:, None, None]
    if W.shape[0] == 1:
        v = (W * S)[:, None, :]
        along = jnp.sum(v * rhs, -1, keepdims=True) / (shift + jnp.sum(v * v, -1, keepdims=True))
        return (rhs - v * along) / shift
    G = W.T @ W
    S = S[:, None, :]
    half = 0.5 * spectral_bound(G) * jnp.max(S * S, axis=-1, keepdims=True)
    # The interval is [shift, shift + 2 half]; ratio is that of its middle to `half`.
    half = jnp.maximum(half, 1e-2 * shift)
    ratio = 1 + shift / half
    root = jnp.sqrt((shift / half) * (ratio + 1))  # √(ratio² - 1)
    decay = 1 / (ratio + root)
    terms = jnp.ceil(jnp.log(2 / tol) / jnp.maximum(-jnp.log(jnp.max(decay)), tiny))
    terms = over_seeds(jnp.where(jnp.isnan(terms), 1.0, jnp.minimum(terms, max_terms + 1))).astype(
        jnp.int32
    )

    def chebyshev():
        """Clenshaw's sum of

        1/λ = Σ_j c_j T_j((λ - middle)/half)
        c_j = (-decay)^j 2/(half·root)            (half of it for j = 0)
        """

        def next_sum(c, b1, b2, factor=2.0):
            return c * rhs + factor * ((S / half) * ((S * b1) @ G) - b1) - b2

        def two_terms(_, carry):  # two at a time, so that b1 and b2 are not swapped
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
        floor = 8 * (len(G) + 1) * eps * 2 * half  # as in `step`, so that H is not singular
        H = S.swapaxes(-1, -2) * G * S + jnp.maximum(shift, floor) * jnp.eye(
            len(G), dtype=rhs.dtype
        )
        return cho_solve((jnp.linalg.cholesky(H), True), rhs.swapaxes(-1, -2)).swapaxes(-1, -2)

    return lax.cond(terms > max_terms, direct, chebyshev)
