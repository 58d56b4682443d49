"""What method="auto" stands for, with the reason in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from sapm.methods.gauss_newton import choose_algebra, count_weights, flops
from sapm.numerics.activations import Activation

# floating-point operations of a Gauss-Newton step, up to which "auto" takes it
LARGEST_STEP_FLOPS_CPU = 2e11
LARGEST_STEP_FLOPS_GPU = 4e12
POLISH_AFTER_SWEEPS = 20  # then "auto" continues with L-BFGS on the true loss
# "auto" takes so many steps on the penalty loss first, with this β, up to this depth
LIFTED_STEPS = 15
LIFTED_BETA = 10.0
LIFTED_DEPTH = 20
ALGEBRA_IN_WORDS = {
    "dense": "a step is solved from the Jacobian itself",
    "primal": "a step is solved from a matrix of the weights",
    "dual": "a step is solved from a matrix of the samples",
    "free": "a step is solved by conjugate gradients",
}


class Choice(NamedTuple):
    """The name of a method, the options that "auto" sets, and the reason in a sentence."""

    method: str
    options: dict[str, Any]
    why: str


def affordable(rows: int, tangents: int, widths: Sequence[int]) -> bool:
    """Whether a Gauss-Newton step is short enough for "auto" to take it."""
    on_cpu = jax.default_backend() == "cpu"
    limit = LARGEST_STEP_FLOPS_CPU if on_cpu else LARGEST_STEP_FLOPS_GPU
    return _step_flops(rows, tangents, widths) <= limit


def _step_flops(rows: int, tangents: int, widths: Sequence[int]) -> float:
    """Infinite if no matrix of a step fits into memory."""
    return flops(rows, tangents, widths).get(choose_algebra(rows, tangents, widths), float("inf"))


def automatic(
    model: str,
    kind: str,
    sigma: Activation,
    rows: int,
    tangents: int,
    widths: Sequence[int],
    held_out: bool,
    from_network: bool = False,
    separable: bool = True,
    resample: int = 0,
    algebra: Any = None,
) -> Choice:
    """The method that "auto" stands for.

    Parameters
    ----------
    model, kind, sigma : "ls", "pm" or "sapm"; "pde" or "regression"; the activation.
    rows : samples times outputs.
    tangents : derivative channels of all samples.
    widths : (m_0, …, m_L), the units of every layer.
    held_out : whether validation data end the training.
    from_network : whether training starts at a given network; the steps that prepare a random one
        are then left out.
    separable : whether the paper's own sweeps apply to the problem.
    resample : steps after which Gauss-Newton draws points anew; 0: never.
    algebra : how a Gauss-Newton step is solved, if the user asked for it.
    """
    if not held_out and affordable(rows, tangents, widths):
        lifted = LIFTED_STEPS if _lifting_pays(model, kind, sigma, widths, from_network) else 0
        known = isinstance(algebra, str) and algebra in ALGEBRA_IN_WORDS  # else refused later
        matrix = ALGEBRA_IN_WORDS[algebra if known else choose_algebra(rows, tangents, widths)]
        first = f"{lifted} steps on the {model.upper()} loss (β = {LIFTED_BETA:g}), then "
        first = first if lifted else ""
        redrawn = f"; where the residual is large, points are drawn anew every {resample} steps"
        redrawn = redrawn if resample else ""
        counts = f"{rows} samples, {count_weights(widths)} weights"
        why = f"Gauss-Newton: {first}on the true loss{redrawn}; {counts}: {matrix}. "
        options = {"lifted": lifted} | ({"resample": resample} if resample else {})
        return Choice("gauss-newton", options, why)
    operations = _step_flops(rows, tangents, widths)
    if held_out:
        reason = "held-out data end the training"
    elif operations < float("inf"):
        reason = f"a Gauss-Newton step would take {operations:.0e} operations"
    else:
        reason = "no matrix of a step fits into memory"
    if model == "ls" or not separable or held_out:
        # sweeps before L-BFGS would collapse: on even functions, and with a penalty on most
        return Choice("lbfgs", {}, f"L-BFGS on the true loss, since {reason}. ")
    if kind == "pde":
        return Choice("alternating", {"scale": True}, f"Sweeps, since {reason}. ")
    first = "" if from_network else f"{POLISH_AFTER_SWEEPS} sweeps, then "
    options = {"polish_after": POLISH_AFTER_SWEEPS, "scale": True}
    return Choice("alternating", options, f"{first}L-BFGS on the true loss, since {reason}. ")


def _lifting_pays(
    model: str, kind: str, sigma: Activation, widths: Sequence[int], from_network: bool
) -> bool:
    """Whether steps on the penalty loss prepare a random network well, as measured."""
    return (
        model != "ls"
        and kind == "regression"
        and sigma.name != "relu"
        and len(widths) - 1 <= LIFTED_DEPTH
        and not from_network
    )
