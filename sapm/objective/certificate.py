"""The certificate: the proven bound of the true loss by the loss that is minimised.

Theorems 1, 3 and 5 (docs/method.md) say that

    true loss ≤ constant · SAPM loss

at every point, with a constant that depends on the activation, the depth, α, β and the operator.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from sapm.numerics.activations import Activation
from sapm.numerics.network import Network
from sapm.objective.penalty import Objective
from sapm.objective.weights import constant
from sapm.precision import float64

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
    loss
        The loss that is minimised.
    mean_squared_loss
        The true loss.
    bound
        The proven constant; None if no theorem applies.
    printed
        The constant as the paper prints it.
    holds
        Whether the bound holds up to rounding; None if no theorem applies.
    reason
        A sentence: the theorem, or why none applies.
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
    obj, sigma
        The objective and the activation.
    steep
        A Lipschitz constant of the nonlinear residuals, if any (`steepness`).
    network
        Needed if it has layers that are not dense.
    """
    if obj.model == "ls":
        why = "The optimised loss is the true loss (plus the ℓ² penalty, if any)."
        if any(term.x.orders for term in obj.terms):
            why += " The theorems of PM and SAPM reach derivatives of order 2."
        return 1.0, 1.0, why
    if obj.model == "pm":
        return (
            None,
            None,
            "PM's loss does not bound the true loss: no theorem ties them, and in practice they "
            "part.",
        )
    pde = any(term.is_pde for term in obj.terms)
    if network is not None and not network.dense:
        return _bound_of_chain(obj, sigma, pde)
    plain = all(term.separable for term in obj.terms)
    needed = {"lipschitz": "σ"} | (
        {"slope": "the size of σ'", "slope_lipschitz": "σ'"} if pde else {}
    )
    if any(term.x.forms for term in obj.terms):
        needed["curve_lipschitz"] = "σ''"
    missing = [what for field, what in needed.items() if getattr(sigma, field) is None]
    if missing:
        needed_of = ", ".join(missing)
        return (
            None,
            None,
            f"no certificate: the theorem needs a Lipschitz constant or bound of {needed_of}, and "
            f"{sigma.name} has none.",
        )
    if steep is None and any(term.nonlinear for term in obj.terms):
        return (
            None,
            None,
            "no certificate: the Lipschitz constant of a nonlinear residual is known at a point "
            "alone.",
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
    obj: Objective, sigma: Activation, pde: bool
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
    loss, mean_squared_loss
        The loss that is minimised and the true loss, at the same point.
    obj, sigma, steep, network
        See `bound`.
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
    broken = "IS BROKEN beyond rounding: this is a bug in the code, please report it"
    verdict = "holds" if holds else broken
    reason = f"{theorem} {verdict}: true loss ≤ {factor:.4g} × actual loss."
    return Certificate(loss, true, factor, printed, holds, reason)
