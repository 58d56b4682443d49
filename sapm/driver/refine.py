"""`refine`: continue the training of a network that another library has trained, and return it in
its own form.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sapm.driver.settings import Settings, check_callback, warn_of_doubts
from sapm.driver.solve import Session, execute
from sapm.errors import UNNAMED, by_name, printable
from sapm.methods.method import NO_LEARNING_RATE, GaussNewton, Method
from sapm.numerics.activations import Activation
from sapm.objective.penalty import mean_square
from sapm.problem.data import DATA_AS_PROBLEM
from sapm.problem.pde import Problem
from sapm.problem.samples import Samples, Weights, network_of
from sapm.results import files
from sapm.results.imports import checked_weights, form_of
from sapm.results.result import Result, solution
from sapm.results.solution import Solution
from sapm.scopes import float64, untraced
from sapm.training.run import Progress

LOSSES = ("mean_squared_loss", "validation_loss")
_loss = jax.jit(mean_square)


def increased(name: str, before: dict, after: dict) -> bool:
    """Whether the loss or error `name` is larger after the training than before."""
    return (before.get(name) or np.inf) < (after.get(name) or 0.0)


@dataclass(frozen=True, eq=False)
class Refined:
    """The outcome of `refine`.

    network : the trained network, in the form of the original one; the original network itself if
        training did not improve it.
    result : the result of the training, with networks in double precision.
    before, after : losses and errors by name, of the original and of the returned network in their
        own precision: mean_squared_loss (the true loss); test_error, or for a PDE solution_error
        and test_residual; validation_loss with validation data.
    improved : whether `network` is a trained network.
    reason : why training ended, and why the original network was returned if it was.
    """

    network: Any
    result: Result
    before: dict[str, float | None]
    after: dict[str, float | None]
    improved: bool
    reason: str

    def __repr__(self) -> str:
        changes = [
            f"{name.replace('mean_squared_loss', 'true loss').replace('_', ' ')} {old:.2e} → "
            f"{self.after[name]:.2e}"
            for name, old in self.before.items()
            if old is not None
        ]
        outcome = "as given"
        if self.improved:
            worse = increased("test_error", self.before, self.after)
            outcome = "trained" if worse else "improved"
        kind = type(self.network).__name__
        text = f"<Refined: {kind}, {outcome}: {', '.join(changes)}; {self.reason}>"
        return printable(text)


@by_name(
    hints=NO_LEARNING_RATE
    | {UNNAMED: DATA_AS_PROBLEM, "seeds": " It trains one network, the one that is given."}
)
@untraced
def refine(  # noqa: PLR0913
    network,
    problem: Problem,
    *,
    activation: str | Activation | Callable | None = None,
    points=1000,
    boundary_points: int = 400,
    test_points=1000,
    model: str = "sapm",
    method: str | Method = "auto",
    max_iter: int | None = None,
    max_seconds: float | None = None,
    mu: float | None = None,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    options: dict | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    on_record: Callable[[Progress], Any] | None = None,
) -> Refined:
    """Train a network further that was trained elsewhere, and return it in its own form. The given
    network is not changed. It is returned itself unless training lowers its true loss and, with
    validation data, its validation loss.

    Parameters
    ----------
    network : a list of (W, b) with W (out, in); a torch.nn.Module of Linear layers with one
        activation between them; an equinox.nn.MLP; a fitted sklearn MLPRegressor; or a
        sapm.Solution, such as result.best.
    problem : the problem that it solves.
    activation : the activation between the layers; needed for a list, and for a torch.nn.Module
        whose activation is not one of sapm's.
    method : as in `solve`. Gauss-Newton starts on the true loss; other methods start with the
        auxiliary variables of the network's forward pass.
    points, boundary_points, test_points, model, max_iter, max_seconds, mu, alpha, beta, options :
        as in `solve`.
    out, progress, on_record : as in `solve`.
    """
    check_callback(on_record)
    form = form_of(network)
    weights = checked_weights(form.pairs(network))
    sigma = form.sigma(network, weights, activation)
    hidden = [len(b) for _, b in weights[:-1]]
    settings = Settings(
        problem,
        len(weights),
        hidden[0] if len(set(hidden)) == 1 else hidden,
        sigma,
        points=points,
        boundary_points=boundary_points,
        test_points=test_points,
        model=model,
        method=method,
        max_iter=max_iter,
        max_seconds=max_seconds,
        seeds=1,
        mu=mu,
        alpha=alpha,
        beta=beta,
        options=options,
        from_network=True,
    )
    for name in ("lifted", "polish_after"):
        if steps := settings.asked_options.get(name):
            raise ValueError(
                f"{name}: got {steps!r}, expected none: this phase prepares random networks, and "
                "refine starts from a given one; leave it out."
            )
    plan = settings.plan()
    if isinstance(plan.method, GaussNewton):
        plan = replace(plan, method=replace(plan.method, lifted=0))
    advice = warn_of_doubts(problem, plan.activation, plan, model)
    samples = problem.samples(points, boundary_points, test_points, plan.mu)
    _check_fit(network, weights, samples)
    x = _some_points(samples)
    if not form.agrees(network, weights, sigma, x):
        raise ValueError(
            f"network: got a {type(network).__name__} whose output at the problem's points differs "
            f"from that of its layers with {sigma.name}, expected the same output; give its layers "
            "as a list of (W, b), with activation=…."
        )
    folder = None if out is None else files.Folder(out)
    session = Session(folder, progress, on_record)

    def full(pairs, numbers):
        return replace(solution(samples, pairs, sigma), parameters=dict(numbers)).network_weights

    start = full(
        weights,
        (network.parameters if isinstance(network, Solution) else None) or samples.parameters,
    )
    with nullcontext() if folder is None else folder.claim:
        result = execute(problem, samples, plan, session, networks=[start], advice=advice)
    new = form.put(network, result.best.weights)
    rounded = [(np.asarray(W, float), np.asarray(b, float)) for W, b in form.pairs(new)]
    sound = form.agrees(new, rounded, sigma, x)
    end = result.best.parameters
    if isinstance(new, Solution):
        new = replace(new, parameters=end, embedding=samples.embedding, ansatz=samples.ansatz)
    networks = (start, full(rounded, end), result.best.network_weights)
    return judged(network, new, result, sound, *(_measure(result, w, sigma) for w in networks))


def _some_points(samples: Samples) -> np.ndarray:
    """(points, inputs) Up to 500 points of every term, and of the test points."""
    parts = [np.asarray(term.x.value) for term in samples.terms]
    if "x" in samples.test and samples.embedding is None:
        parts.append(samples.test["x"])
    return np.concatenate([part[:500] for part in parts])


def _check_fit(network, weights: Weights, samples: Samples) -> None:
    """Refuse a network with other inputs or outputs than the problem."""
    inputs = weights[0][0].shape[1]
    outputs = len(weights[-1][1])
    names = ", ".join(samples.names)
    functions = samples.outputs - len(samples.parameters)
    if (inputs, outputs) != (samples.inputs, functions):
        raise ValueError(
            f"network: got (inputs, outputs) = ({inputs}, {outputs}), expected ({samples.inputs}, "
            f"{functions}) for the coordinates {names} of the problem; give a network of these "
            "sizes."
        )
    if isinstance(network, Solution) and network.names != samples.names:
        raise ValueError(
            f"network: got a function of {', '.join(network.names)}, expected one of {names}, the "
            "problem's coordinates; name the coordinates of the domain as those of the network."
        )


@float64
def _measure(result: Result, weights: Weights, sigma: Activation) -> dict[str, float | None]:
    """The losses and the errors of a network, in double precision."""
    samples = result.samples
    network = network_of(result.samples, weights, sigma)
    losses: dict[str, float | None] = {"mean_squared_loss": float(_loss(network, samples.terms))}
    if samples.validation is not None:
        losses["validation_loss"] = float(_loss(network, (samples.validation,)))
    return losses | result.errors(solution(samples, weights, sigma))


def judged(
    original, new, result: Result, sound: bool, before: dict, after: dict, exact: dict
) -> Refined:
    """The outcome: the new network if its losses are below those of the original one.

    Parameters
    ----------
    original, new : the two networks.
    result : the result of the training.
    sound : whether the new network has the values that its weights give.
    before, after : losses and errors of the original and of the new network.
    exact : those of the new network in double precision, before it was rounded.
    """

    def better(losses: dict) -> bool:
        return all(losses[name] < before[name] for name in LOSSES if name in before)

    why = result.table[0]["reason"]
    low = f"{exact['mean_squared_loss']:.2e}"
    if sound and better(after):
        if after["mean_squared_loss"] > 10 * exact["mean_squared_loss"]:
            why += f" In double precision (result.best) the true loss is {low}."
        if increased("test_error", before, after):
            why += (
                " The test error rose. With Regression(…, validation=…), the trained network is "
                "returned only if its loss on the validation data fell."
            )
        return Refined(new, result, before, after, True, why)
    if better(exact):
        why += (
            f" The true loss fell to {low} in double precision (result.best), but not in the form "
            "and precision given."
        )
    else:
        why += " The loss did not fall, so this is the network that was given."
    return Refined(original, result, before, before, False, why)
