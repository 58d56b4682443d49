"""The self-adaptive weights of PDE terms, ω_l apart, and the constants of the bounds they give.

For a sample and a layer l let

    t_l = Σ_i ‖d_{l,i}‖²                    d: free tangents
    h_l = Σ ‖S_l‖²                          S: free second-order channels
    p_l = Σ_i ‖d̂_{l,i} + d_{l,i}‖²          d̂: tangents of the forward pass

The squared defects of layer l are multiplied by ω_l, by the fixed weight β_l or α_l, and by

    values                   υ + Σ_{l≤m<L} ( t_m + χ ( h_m + t_m² + t_m Σ_{m<j<L} p_j ) )
    tangents                 1 + χ Σ_{l≤m<L} p_m
    second-order channels    1

where υ = 1 if the term contains ψ itself or is nonlinear, χ = 1 if it is of second order, and both
are 0 otherwise.
Section 8 of docs/method.md proves that the true loss is then at most a constant times the penalty
loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sapm.numerics.activations import Activation
from sapm.numerics.jets import Jet
from sapm.numerics.layers import Layer
from sapm.numerics.network import Network, Stack
from sapm.objective.terms import Term
from sapm.scopes import float64

if TYPE_CHECKING:
    from sapm.objective.penalty import Objective


class Curve(eqx.Module):
    """The norms that the weights of a term of second order contain in addition to t.

    Parameters
    ----------
    h : (L, n), the squared norms of the free second-order channels.
    p : (L, n), those of the sums of the free tangents and the tangents of the forward pass.
    """

    h: Float[Array, "L n"]
    p: Float[Array, "L n"]


def length_squared(u: Jet) -> Float[Array, " n"]:
    """t[n] = Σ_i ‖d_i[n]‖²."""
    return jnp.sum(u.tangents[..., : u.first, :] ** 2, axis=(-2, -1))


def bend_squared(u: Jet) -> Float[Array, " n"]:
    """h[n] = Σ ‖S[n]‖² over the second-order channels."""
    return jnp.sum(u.tangents[..., u.first :, :] ** 2, axis=(-2, -1))


def squared_norms(
    term: Term, network: Network, aux: Stack
) -> tuple[Float[Array, "L n"], Curve | None]:
    """The norms in the adaptive weights of a term: t_{l,n}, and for second order h_{l,n} and
    p_{l,n}.

    Parameters
    ----------
    term : the term.
    network : of the forward pass in p.
    aux : the free jets u_1 … u_L of the term.
    """
    t = aux.map(length_squared).rows()
    if not term.x.forms:
        return t, None

    def first(u):
        return u.tangents[..., : u.first, :]

    both = jax.tree.map(jnp.add, network.preactivations(term.x).map(first), aux.map(first))
    p = both.map(lambda d: jnp.sum(d**2, axis=(-2, -1))).rows()
    return t, Curve(aux.map(bend_squared).rows(), p)


def suffix(x: Float[Array, "L n"]) -> Float[Array, "L n"]:
    """Σ_{l≤m<L} x_m for l = 1..L."""
    return jnp.flip(jnp.cumsum(jnp.flip(x.at[-1].set(0.0), 0), 0), 0)


def value_spread(term: Term, t: Float[Array, "L n"], curve: Curve | None) -> Float[Array, "L n"]:
    """The factor of β_l ω_l in the weight of value defects.

    For a linear term of first order without ψ it is Ω²_{l,n} = Σ_{l≤m<L} t_{m,n}.

    Parameters
    ----------
    term : the term.
    t, curve : its norms (`squared_norms`).
    """
    if curve is not None:
        above = jnp.pad(suffix(curve.p)[1:], ((0, 1), (0, 0)))  # Σ_{m<j<L} p_j
        t = t + t**2 + curve.h + t * above
    return suffix(t) + 1 if term.uses_value else suffix(t)


def tangent_spread(curve: Curve) -> Float[Array, "L n"]:
    """The factor of α_l ω_l in the weight of tangent defects, for a term of second order."""
    return 1 + suffix(curve.p)


def steepness(terms: Sequence[Term], network: Network, aux: Sequence[Stack]) -> float | None:
    """A Lipschitz constant of the nonlinear residuals between the output jets of a point.

    It is the largest one of all terms and samples; None if all terms are linear.

    Parameters
    ----------
    terms : the terms of the objective.
    network, aux : the point: the network, and the free jets of every term.
    """
    pairs = [(term, u.top) for term, u in zip(terms, aux, strict=True) if term.nonlinear]
    constants = (float(steepness_of_term(term, network(term.x), u)) for term, u in pairs)
    return max(constants, default=None)


@jax.jit
def steepness_of_term(term: Term, exact: Jet, free: Jet) -> Float[Array, ""]:
    """A Lipschitz constant of one residual between two output jets of every sample.

    It is the largest quotient of differences, and at least the norm of the gradient at `free`.

    Parameters
    ----------
    term : the term.
    exact, free : its output jets, of the forward pass and the free ones.
    """
    (f, back), g = jax.vjp(term.residual, free), term.residual(exact)
    slope = back(jnp.ones_like(f))[0]

    def flat(jet):
        return jnp.concatenate([jet.value, jet.tangents[:, :, 0]], axis=1)

    distance = jnp.linalg.norm(flat(exact) - flat(free), axis=1)
    # A smaller distance is rounding, and so is the difference of residuals.
    resolved = distance > 1e-12 * jnp.linalg.norm(flat(free), axis=1)
    difference = jnp.abs(f - g)[:, 0]
    quotient = jnp.where(resolved, difference / jnp.where(resolved, distance, 1.0), 0.0)
    return jnp.max(jnp.maximum(quotient, jnp.linalg.norm(flat(slope), axis=1)))


def constant(
    term: Term, sigma: Activation, alpha: np.ndarray, beta: np.ndarray, steep: float | None
) -> float:
    """The proven constant of a PDE term (Theorems 3 and 5).

    Parameters
    ----------
    term, sigma : the term and the activation.
    alpha, beta : (L,) and (L-1,), the fixed weights of tangent and of value defects.
    steep : the Lipschitz constant of a nonlinear residual (`steepness`).
    """
    L = len(alpha)
    l = np.arange(1, len(alpha))
    C, B, K, M = (
        x or 0.0
        for x in (sigma.lipschitz, sigma.slope, sigma.slope_lipschitz, sigma.curve_lipschitz)
    )
    paths = np.array(
        [sum(B ** (2 * (L - m - 1)) * C ** (2 * (m - j)) for m in range(j, L)) for j in l]
    )
    fall = B ** (2.0 * (L - np.arange(1, L + 1)))
    values = np.sum(C ** (2.0 * (L - l)) / beta) + 1
    tangents = np.sum(fall / alpha) + K**2 * np.sum(paths / beta)
    bent = 0.0
    if term.x.forms:
        f2 = float(np.max(np.sum(np.square(term.x.forms), axis=0), initial=0.0))  # φ²
        mixed = [
            sum(C ** (2 * (j - i)) * B ** (2 * (L - j - 2)) * (L - 1 - j) for j in range(i, L - 1))
            for i in l
        ]
        bent = np.sum(fall / alpha) + f2 * K**2 * np.sum(
            B ** (2.0 * (L - l - 1)) * (L - l) / alpha[:-1]
        )
        bent += np.sum(((K**2 + f2 * M**2) * paths + f2 * K**4 * np.array(mixed)) / beta)
    if term.nonlinear:
        assert steep is not None
        return 1 + steep**2 * float(values + tangents + bent)
    c = np.asarray(term.linear.c)
    c0 = 0.0 if term.linear.c0 is None else np.asarray(term.linear.c0)
    first = np.sum(c[:, : term.x.first] ** 2, -1)
    second = np.sum(c[:, term.x.first :] ** 2, -1)
    return 1 + float(np.max(first * tangents + second * bent + np.square(c0) * values))


# ---------------------------------------------------------------- the certificate

# What rounding may add to a bound: a fraction of it, and a fraction of the size of the labels
# (with defects in 32 bits, which are known to 1e-7 of the values; and in 64 bits).
ROUNDING = 1e-9
LABEL_ROUNDING_32_BITS = 1e-12
LABEL_ROUNDING_64_BITS = 1e-24


@dataclass(frozen=True)
class Certificate:
    """The bound true loss ≤ bound · loss at one point. It says nothing of the solution error.

    Parameters
    ----------
    loss : the loss that is minimised.
    mean_squared_loss : the true loss.
    bound : the proven constant; None if no theorem applies.
    printed : the constant as the paper prints it.
    holds : whether the bound holds up to rounding; None if no theorem applies.
    reason : a sentence: the theorem, or why none applies.
    """

    loss: float
    mean_squared_loss: float
    bound: float | None
    printed: float | None
    holds: bool | None
    reason: str

    def __str__(self) -> str:
        return self.reason

    @property
    def ratio(self) -> float:
        """True loss / loss; 0/0 counts as 1."""
        if self.loss == 0:
            return 1.0 if self.mean_squared_loss == 0 else float("inf")
        return self.mean_squared_loss / self.loss


def term_constants(
    obj: Objective, sigma: Activation, i: int, steep: float | None = None
) -> tuple[float, float]:
    """The proven constant of term i (docs/method.md), and the factor C of the constants that the
    paper prints, C · L and C · d L(L+1).

    Parameters
    ----------
    obj, sigma : the objective and the activation.
    i : the number of the term, from 0.
    steep : a Lipschitz constant of its residual if that is nonlinear (`steepness`).
    """
    L = obj.depth
    term = obj.terms[i]
    beta = np.asarray(obj.beta[i])[:-1]
    alpha = np.asarray(obj.alpha[i])
    C = sigma.lipschitz or 0.0
    B = sigma.slope or 0.0
    K = sigma.slope_lipschitz or 0.0
    if not term.is_pde:
        proven = 1 + float(np.sum(C ** (2 * (L - np.arange(1, L))) / beta))
        return proven, max(1, C ** (2 * L - 2)) * max(1, *(1 / beta))
    proven = constant(term, sigma, alpha, beta, steep)
    powers = [K**2 * max(float(B) ** e, float(C) ** e) for e in (2 * L - 4, 2 * L - 6)]
    # the paper's constant is for linear equations of first order; `bound` prints it for these alone
    largest_c = 0.0 if term.nonlinear else float(np.max(np.abs(term.linear.c), initial=0))
    factor = max(1, *(1 / alpha), *(1 / beta)) * max(
        1, largest_c**2 * max(1, B ** (2 * L - 2), *powers)
    )
    return proven, factor


@float64
def bound(
    obj: Objective,
    sigma: Activation,
    steep: float | None = None,
    network: Network | None = None,
) -> tuple[float | None, float | None, str]:
    """The proven constant, the constant that the paper prints, and the theorem.

    The constants are None if no theorem applies; the sentence then says why.

    Parameters
    ----------
    obj, sigma : the objective and the activation.
    steep : a Lipschitz constant of the nonlinear residuals, if any (`steepness`).
    network : needed if it has layers that are not dense; the shapes of its arrays are enough.
    """
    if obj.model == "ls":
        why = "The minimised loss is the true loss (plus the ℓ² penalty, if any)."
        if any(term.x.orders for term in obj.terms):
            why += " SAPM's theorems cover derivatives up to order 2."
        return 1.0, 1.0, why
    if obj.model == "pm":
        return (
            None,
            None,
            "PM's loss does not bound the true loss: there is no theorem, and in practice the true "
            "loss can grow while PM's loss falls.",
        )
    pde = any(term.is_pde for term in obj.terms)
    if network is not None and not network.dense:
        return _bound_of_chain(obj, sigma, pde, network)
    plain = all(term.separable for term in obj.terms)
    needed = {"lipschitz": "a Lipschitz constant of σ"}
    if pde:
        needed |= {"slope": "a bound of |σ'|", "slope_lipschitz": "a Lipschitz constant of σ'"}
    if any(term.x.forms for term in obj.terms):
        needed["curve_lipschitz"] = "a Lipschitz constant of σ''"
    missing = [what for field, what in needed.items() if getattr(sigma, field) is None]
    if missing:
        return (
            None,
            None,
            f"no certificate: the theorem needs {' and '.join(missing)}; none is known for "
            f"{sigma.name}.",
        )
    if steep is None and any(term.nonlinear for term in obj.terms):
        return (
            None,
            None,
            "no certificate: the Lipschitz constant of a nonlinear residual depends on the point, "
            "and no point is given.",
        )
    constants = [term_constants(obj, sigma, i, steep) for i in range(len(obj.terms))]
    L = obj.depth
    printed = max(factor for _, factor in constants) * (
        max(t.channels for t in obj.terms) * L * (L + 1) if pde else L
    )
    proven = max(proven for proven, _ in constants)
    return (
        (proven, printed, "Theorem 3" if pde else "Theorem 1")
        if plain
        else (proven, None, "Theorem 5")
    )


def _bound_of_chain(
    obj: Objective, sigma: Activation, pde: bool, network: Network
) -> tuple[float | None, float | None, str]:
    """The bound for a chain of layers with gains and terms on its values:

        true loss ≤ (1 + Σ_l 1/β_l) · SAPM loss

    by the proof of Theorem 1.
    """
    if pde:
        return (
            None,
            None,
            "no certificate: for derivatives the theorems are about dense layers.",
        )

    def with_gains(network: Network) -> list[tuple[Layer, Array | None]]:
        return [(layer, layer.gain()) for layer in network.stack.layers()]

    for l, (layer, gain) in enumerate(jax.eval_shape(with_gains, network), 1):
        if gain is None:
            return (
                None,
                None,
                f"no certificate: layer {l}, {type(layer).__name__}, has no proven gain.",
            )
    if sigma.lipschitz is None or sigma.lipschitz > 1:
        return (
            None,
            None,
            "no certificate: the gains of layers that are not dense are for an activation with "
            f"Lipschitz constant 1, and {sigma.name} has "
            f"{sigma.lipschitz or 'none that is known'}.",
        )
    largest = max(1 + float(np.sum(1 / np.asarray(beta)[:-1])) for beta in obj.beta)
    return largest, None, "Theorem 1 (by the gains of the layers)"


@float64
def certificate(
    obj: Objective,
    sigma: Activation,
    loss: float,
    mean_squared_loss: float,
    steep: float | None = None,
    network: Network | None = None,
) -> Certificate:
    """Check the proven bound between two losses.

    Parameters
    ----------
    loss, mean_squared_loss : the loss that is minimised and the true loss, at the same point.
    obj, sigma, steep, network : see `bound`.
    """
    loss = float(loss)
    true = float(mean_squared_loss)
    if not (np.isfinite(loss) and np.isfinite(true)):
        return Certificate(loss, true, None, None, None, "no certificate: a loss is not finite.")
    factor, printed, theorem = bound(obj, sigma, steep, network)
    if factor is None:
        return Certificate(loss, true, None, None, None, theorem)
    if obj.model == "ls":
        return Certificate(loss, true, 1.0, 1.0, true <= loss, theorem)
    size = sum(float(jnp.sum(t.weight * jnp.sum(t.y**2, -1))) for t in obj.terms)
    low = any(t.y.dtype == jnp.float32 for t in obj.terms)
    rounding = (LABEL_ROUNDING_32_BITS if low else LABEL_ROUNDING_64_BITS) * (1 + size)
    holds = true <= factor * loss * (1 + ROUNDING) + rounding
    if holds:
        reason = f"{theorem} holds: true loss ≤ {factor:.4g} × minimised loss."
    else:
        reason = (
            f"{theorem} IS BROKEN beyond rounding: true loss > {factor:.4g} × minimised loss; "
            "this is a bug in the code, please report it."
        )
    return Certificate(loss, true, factor, printed, holds, reason)
