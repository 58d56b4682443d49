"""A network trained elsewhere, improved: `refine` starts training at it and hands it back in its own form."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sapm import checks, store
from sapm.attempt import Progress
from sapm.doubts import warn_of_doubts
from sapm.foreign import Weights, checked, form_of
from sapm.jet import Activation, float64
from sapm.names import by_name
from sapm.objective import mean_square
from sapm.plan import plan
from sapm.result import Result, solution
from sapm.samples import Samples, network_of
from sapm.solution import Solution
from sapm.solver import execute

LOSSES = ("mean_squared_loss", "validation_loss")
_loss = jax.jit(mean_square)


def rose(name: str, before: dict, after: dict) -> bool:
    return (before.get(name) or np.inf) < (after.get(name) or 0.0)


@dataclass(frozen=True, eq=False)
class Refined:
    """What `refine` gives. `network` has the form of the one given; it is that one itself where training did not improve it.

    `before` and `after` are of the networks as they were given and are handed back, rounded to their own precision:
    mean_squared_loss (the true loss), test_error, or for a PDE solution_error and test_residual, and validation_loss where there
    are such data. `result` has the training itself; its networks are in double precision.
    """

    network: Any
    result: Result
    before: dict[str, float | None]
    after: dict[str, float | None]
    improved: bool
    reason: str

    def __repr__(self) -> str:
        changes = [
            f"{name.replace('mean_squared_loss', 'true loss').replace('_', ' ')} {old:.2e} → {self.after[name]:.2e}"
            for name, old in self.before.items()
            if old is not None
        ]
        what = "as given" if not self.improved else "trained" if rose("test_error", self.before, self.after) else "improved"
        return f"<Refined: {type(self.network).__name__}, {what}: {', '.join(changes)}; {self.reason}>"


@by_name
def refine(
    network,
    problem,
    *,
    activation: str | Activation | Callable | None = None,
    points=1000,
    boundary_points: int = 400,
    test_points=1000,
    model: str = "sapm",
    method: str = "auto",
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
    """Train a network further that was trained elsewhere, and hand it back in its own form. The one given is not changed.

    network: a list of (W, b) with W (out, in); a torch.nn.Module of Linear layers with one activation between them; an
    equinox.nn.MLP; a fitted sklearn MLPRegressor; or a sapm.Solution, such as result.best.
    activation: needed for a list, and for a torch.nn.Module whose activation is not one of ours.
    Everything else is as in `solve`. Gauss-Newton starts on the true loss at once, other methods with auxiliary variables of the
    network's own forward pass. Where the true loss does not fall (or the validation loss rises), the network given is returned.
    """
    checks.callback(on_record)
    form = form_of(network)
    weights = checked(form.pairs(network))
    sigma = form.sigma(network, weights, activation)
    for name in ("lifted", "polish_after"):
        if isinstance(options, dict) and options.get(name):
            raise ValueError(
                f"options has {name}={options[name]!r}, a phase that prepares random networks; leave it out: refine skips it."
            )
    hidden = [len(b) for _, b in weights[:-1]]
    config, sigma = plan(
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
    config["from_network"] = True
    if config["method"] == "gauss-newton":
        config["options"]["lifted"] = 0
    warn_of_doubts(problem, sigma, config, model)
    samples = problem.samples(points, boundary_points, test_points, config["mu"])
    _check_fit(network, weights, samples)
    x = _some_points(samples)
    if not form.agrees(network, weights, sigma, x):
        raise ValueError(
            f"{type(network).__name__} does not compute what its layers with {sigma.name} do at the problem's points."
        )
    folder = None if out is None else store.Folder(out)
    more: dict[str, Any] = {"folder": folder, "progress": progress, "on_record": on_record}
    full = lambda pairs, numbers: replace(solution(samples, pairs, sigma), parameters=dict(numbers)).network_weights  # noqa: E731
    start = full(weights, (network.parameters if isinstance(network, Solution) else None) or samples.parameters)
    with nullcontext() if folder is None else folder.claim:
        result = execute(problem, samples, config, sigma, networks=[start], **more)
    new = form.put(network, result.best.weights)
    rounded = [(np.asarray(W, float), np.asarray(b, float)) for W, b in form.pairs(new)]
    sound = form.agrees(new, rounded, sigma, x)
    end = result.best.parameters
    if isinstance(new, Solution):
        new = replace(new, parameters=end, embedding=samples.embedding, ansatz=samples.ansatz)
    networks = (start, full(rounded, end), result.best.network_weights)
    return _judge(network, new, result, sound, *(_measure(result, w, sigma) for w in networks))


def _some_points(samples: Samples) -> np.ndarray:
    parts = [np.asarray(term.x.value) for term in samples.terms]
    if "x" in samples.test and samples.embedding is None:
        parts.append(samples.test["x"])
    return np.concatenate([part[:500] for part in parts])


def _check_fit(network, weights: Weights, samples: Samples) -> None:
    inputs, outputs, names = weights[0][0].shape[1], len(weights[-1][1]), ", ".join(samples.names)
    wanted = samples.outputs - len(samples.parameters)
    if (inputs, outputs) != (samples.inputs, wanted):
        raise ValueError(
            f"the network has {inputs} inputs and {outputs} outputs, and the problem {samples.inputs} ({names}) and "
            f"{wanted}; they must be equal."
        )
    if isinstance(network, Solution) and network.names != samples.names:
        raise ValueError(f"the network is a function of {', '.join(network.names)}, and the problem's coordinates are {names}.")


@float64
def _measure(result: Result, weights: Weights, sigma: Activation) -> dict[str, float | None]:
    """The losses and the errors of a network, in double precision."""
    samples, network = result.samples, network_of(result.samples, weights, sigma)
    found: dict[str, float | None] = {"mean_squared_loss": float(_loss(network, samples.terms))}
    if samples.validation is not None:
        found["validation_loss"] = float(_loss(network, (samples.validation,)))
    return found | result.errors(solution(samples, weights, sigma))


def _judge(given, new, result: Result, sound: bool, before: dict, after: dict, exact: dict) -> Refined:
    """The new network if its losses are below those of the one given; `sound`: it computes what its weights say.

    `exact` is of the new one in double precision, before it was rounded.
    """

    def better(found: dict) -> bool:
        return all(found[name] < before[name] for name in LOSSES if name in before)

    why, low = result.table[0]["reason"], f"{exact['mean_squared_loss']:.2e}"
    if sound and better(after):
        if after["mean_squared_loss"] > 10 * exact["mean_squared_loss"]:
            why += f" In double precision the true loss is {low}: result.best."
        if rose("test_error", before, after):
            why += " The test error rose: with Regression(…, validation=…) the network that fits data held out is kept."
        return Refined(new, result, before, after, True, why)
    if better(exact):
        why += f" The true loss fell to {low} in double precision (result.best), but not in the form and precision given."
    else:
        why += " The loss did not fall, so this is the network that was given."
    return Refined(given, result, before, before, False, why)
