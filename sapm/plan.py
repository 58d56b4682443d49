"""The settings of a run: checked, and completed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sapm import checks
from sapm.jet import Activation
from sapm.jet import activation as find_activation
from sapm.methods.build import (
    LIFTED_BETA,
    automatic,
    check_equation,
    check_names,
    check_options,
    default_init,
    default_start,
    resolve,
    resolve_options,
)
from sapm.names import brief
from sapm.problem import PDE, PROBLEMS
from sapm.regression import Regression, whole
from sapm.resample import AGAIN, EVERY, MANY_STAGES, STUCK, evolves


def plan(
    problem,
    depth: int = 6,
    width: int | Sequence[int] = 20,
    activation: str | Activation | Callable | None = None,
    *,
    points=1000,
    boundary_points=400,
    test_points=1000,
    model="sapm",
    method="auto",
    max_iter=None,
    max_seconds=None,
    seeds=10,
    key=0,
    init=None,
    start=None,
    mu=None,
    alpha=1.0,
    beta=1.0,
    options=None,
    from_network=False,
    in_memory=False,
) -> tuple[dict, Activation]:
    """Check every setting of `solve` and complete it: (configuration, activation). The configuration is JSON.

    `from_network`: training starts at a given network, so that phases which prepare a random one are left out.
    `in_memory`: the caller has all samples in memory and wants them used from there.
    """
    if not isinstance(problem, PROBLEMS):
        named = (
            f" By their names, problems are solved on the command line: sapm run {problem}." if isinstance(problem, str) else ""
        )
        raise TypeError(f"problem={brief(problem)} is not a problem; give a sapm.PDE, sapm.Function or sapm.Regression.{named}")
    kind = "pde" if isinstance(problem, PDE) else "regression"
    sharp = not isinstance(problem, PDE) or problem.equation.nonlinear  # what may have a shock is beyond a few sines
    sigma = find_activation(("tanh" if sharp else "sin") if activation is None else activation)
    depth = whole("depth", depth, 2, ": layer 1 to the output layer, so that at least one is hidden", checks.DEEPEST)
    checks.elementwise(sigma)
    check_names(init, start, sigma)
    resolve(model, method)
    check_options(options)
    if isinstance(problem, PDE):
        check_equation(problem, sigma, model, method, options)
    rows, tangents, widths = _size(problem, kind, depth, width, points, boundary_points)
    if isinstance(problem, PDE):
        checks.memory(problem, checks.counted("points", points) * problem.equation.rows, widths)
    seeds = checks.seeds(seeds)
    if not isinstance(problem, Regression):
        checks.room(rows + checks.counted("test_points", test_points, 0), widths, len(seeds))
    many, choice = checks.chunk(problem, widths, len(seeds), model, method, options, in_memory or from_network)
    if many is not None:
        auto, method = method == "auto", "alternating"
        options = ({"scale": True} if auto else {}) | (options or {}) | {"chunk": many}
        if auto:
            init, start = init or default_init("lbfgs", kind, sigma, widths), start or "noise"
    again = False
    if method == "auto":
        held_out = getattr(problem, "validation", None) is not None
        separable = not getattr(problem, "beyond", "")
        counted = isinstance(points, (int, np.integer)) and not (options or {}).get("lifted")
        anew = EVERY if counted and isinstance(problem, PDE) and not problem.equation.first_order_linear else 0
        anew = (options or {}).get("resample", anew)
        size, algebra = (rows, tangents, widths), (options or {}).get("algebra")
        method, more, choice = automatic(model, kind, sigma, *size, held_out, from_network, separable, anew, algebra)
        again = evolves(problem) and more.get("resample") and max_iter is None and "stages" not in (options or {})
        again = again and not from_network
        model = "ls" if method == "lbfgs" else model  # it is on the true loss
        options = more | (options or {})
        if options.get("lifted") and np.ndim(beta) == 0 and beta == 1:
            beta = LIFTED_BETA
        if options.get("polish_after") is not None:
            # Measured (docs/how-it-works.md): sweeps alone, or polished from another start, end up to a thousand times higher.
            init, start = init or default_init("lbfgs", kind, sigma, widths), start or "noise"
    options = resolve_options(method, options, bool(choice))
    if options.get("stages") and not (options["resample"] and evolves(problem)):
        what = "nonlinear PDEs with an Initial condition and no numbers to find, where points are drawn anew (options: resample)"
        raise ValueError(f"options has stages, which is for {what}; leave it out.")
    times = AGAIN if options.get("stages") else 1
    steps = options.get("stages", 0) * STUCK * (options.get("resample") or 0)
    if options.get("stages", 0) > MANY_STAGES or (steps and max_iter is not None and max_iter <= steps):
        few = f"give at most {MANY_STAGES}, and max_iter beyond {steps}, since so many steps may go by on a part of the time"
        raise ValueError(f"options has stages={options['stages']}; {few}.")
    if options.get("resample") and not (kind == "pde" and (model == "ls" or options["lifted"] == 0)):
        raise ValueError("options has resample, which is for PDEs on the true loss; use model='ls', or lifted=0 beside it.")
    return {
        "problem": type(problem).__name__,
        "depth": depth,
        "width": checks.width(width, depth),
        "activation": sigma.name,
        "points": checks.count(points),
        "boundary_points": checks.count(boundary_points),
        "test_points": checks.count(test_points),
        "model": model,
        "method": method,
        "max_iter": checks.iterations(method, kind, sigma) * times if max_iter is None else checks.budget(max_iter),
        "max_seconds": None if max_seconds is None else checks.positive("max_seconds", max_seconds),
        "seeds": seeds,
        "key": checks.key(key),
        "init": init or default_init(method, kind, sigma, widths),
        "start": start or default_start(method, kind),
        "mu": checks.positive("mu", mu) if mu is not None else (problem.mu if isinstance(problem, PDE) else None),
        "alpha": checks.layers("alpha", alpha, depth),
        "beta": checks.layers("beta", beta, depth),
        "options": options,
        "choice": choice,
    } | ({"again": checks.count(points)} if again else {}), sigma


def _size(problem, kind: str, depth: int, width, points, boundary_points) -> tuple[int, int, list[int]]:
    """Samples times outputs, tangents and layer widths, as far as they are known before the samples are drawn."""
    interior = len(problem.X) if hasattr(problem, "X") else checks.counted("points", points)
    hidden = checks.width(width, depth)
    inputs = np.shape(problem.X)[1] if hasattr(problem, "X") else len(problem.domain.names)
    rows, tangents = interior * problem.outputs, 0
    if isinstance(problem, PDE):
        each = list(zip(problem.soft, problem.counts(boundary_points), strict=True))
        rows = interior * problem.equation.rows + sum(n * len(cond.meant(problem.fields)) for cond, n in each)
        tangents = interior * problem.equation.channels + sum(n for cond, n in each if cond.about != "value")
        inputs = inputs if problem.embedding is None else problem.embedding.width
    inner = [hidden] * (depth - 1) if isinstance(hidden, int) else hidden
    return rows, tangents, [inputs, *inner, problem.outputs]
