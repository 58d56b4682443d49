"""One call from a problem to a result: check, sample, build, train, keep."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sapm import checks, store, stream
from sapm.jet import Activation
from sapm.jet import activation as find_activation
from sapm.methods.build import (
    LIFTED_BETA,
    automatic,
    build,
    check_equation,
    check_names,
    check_options,
    default_init,
    default_start,
    resolve,
    resolve_options,
    start_at,
)
from sapm.problem import PDE, PROBLEMS
from sapm.progress import Bar, line, lines
from sapm.regression import whole
from sapm.resample import EVERY, closed, harder, no_longer_falls, renewed
from sapm.result import Result, from_file, to_file, weights_of
from sapm.samples import Samples, scaling_of
from sapm.train import Moment, Run, train

CHECKPOINT_SECONDS = 5.0  # between two checkpoints, or
CHECKPOINT_SHARE = 20  # times as long as writing one takes, if that is more


@dataclass(frozen=True)
class Progress:
    """What `on_record` gets. Arrays have one entry per seed; `result()` is the Result so far."""

    iteration: int
    seconds: float
    loss: np.ndarray
    mean_squared_loss: np.ndarray
    bound_ratio: np.ndarray
    result: Callable[[], Result]


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
        raise TypeError(f"problem={problem!r} is not a problem; give a sapm.PDE, sapm.Function or sapm.Regression.")
    kind = "pde" if isinstance(problem, PDE) else "regression"
    sharp = not isinstance(problem, PDE) or problem.equation.nonlinear  # what may have a shock is beyond a few sines
    sigma = find_activation(("tanh" if sharp else "sin") if activation is None else activation)
    depth = whole("depth", depth, 2, ": layer 1 to the output layer, so that at least one is hidden")
    check_names(init, start, sigma)
    resolve(model, method)
    check_options(options)
    if isinstance(problem, PDE):
        check_equation(problem, sigma, model, method, options)
    rows, tangents, widths = _size(problem, kind, depth, width, points, boundary_points)
    if isinstance(problem, PDE):
        checks.memory(problem, tangents // problem.equation.channels, widths)
    seeds = checks.seeds(seeds)
    many, choice = checks.chunk(problem, widths, len(seeds), model, method, options, in_memory or from_network)
    if many is not None:
        auto, method = method == "auto", "alternating"
        options = ({"scale": True} if auto else {}) | (options or {}) | {"chunk": many}
        if auto:
            init, start = init or default_init("lbfgs", kind, sigma, widths), start or "noise"
    if method == "auto":
        held_out = getattr(problem, "validation", None) is not None
        separable = not getattr(problem, "beyond", "")
        counted = isinstance(points, (int, np.integer)) and not (options or {}).get("lifted")
        anew = EVERY if counted and isinstance(problem, PDE) and not problem.equation.first_order_linear else 0
        anew = (options or {}).get("resample", anew)
        method, more, choice = automatic(model, kind, sigma, rows, tangents, widths, held_out, from_network, separable, anew)
        model = "ls" if method == "lbfgs" else model  # it is on the true loss
        options = more | (options or {})
        if options.get("lifted") and np.ndim(beta) == 0 and beta == 1:
            beta = LIFTED_BETA
        if options.get("polish_after") is not None:
            # Measured (docs/interface.md): sweeps alone, or polished from another start, end up to a thousand times higher.
            init, start = init or default_init("lbfgs", kind, sigma, widths), start or "noise"
    options = resolve_options(method, options, bool(choice))
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
        "max_iter": checks.iterations(method, kind, sigma) if max_iter is None else whole("max_iter", max_iter, 0),
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
    }, sigma


def _size(problem, kind: str, depth: int, width, points, boundary_points) -> tuple[int, int, list[int]]:
    """Samples times outputs, tangents and layer widths, as far as they are known before the samples are drawn."""
    count = lambda given: int(given) if isinstance(given, (int, np.integer)) else len(given)  # noqa: E731
    interior = len(problem.X) if hasattr(problem, "X") else count(points)
    hidden = checks.width(width, depth)
    inputs = np.shape(problem.X)[1] if hasattr(problem, "X") else len(problem.domain.names)
    rows, channels = interior * problem.outputs, 0
    if isinstance(problem, PDE):
        rows = interior * problem.equation.rows + count(boundary_points) * len(problem.fields)
        channels = problem.equation.channels * problem.equation.rows
        inputs = inputs if problem.embedding is None else problem.embedding.width
    inner = [hidden] * (depth - 1) if isinstance(hidden, int) else hidden
    return rows, interior * channels, [inputs, *inner, problem.outputs]


def solve(
    problem,
    depth: int = 6,
    width: int | Sequence[int] = 20,
    activation: str | Activation | Callable | None = None,
    *,
    points=1000,
    boundary_points: int = 400,
    test_points=1000,
    model: str = "sapm",
    method: str = "auto",
    max_iter: int | None = None,
    max_seconds: float | None = None,
    seeds: int | Iterable[int] = 10,
    key: int = 0,
    init: str | None = None,
    start: str | None = None,
    mu: float | None = None,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    options: dict | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    on_record: Callable[[Progress], Any] | None = None,
    devices=None,
) -> Result:
    """Train networks on the problem, one for every seed, and return them with all that was measured.

    depth, width: layers, and units in each hidden one (a number, or one for each). activation: "tanh" (default for functions
    and data), "sin" (default for linear PDEs; "tanh" for others), "relu", "sigmoid", "softplus", or any elementwise JAX function.
    points, boundary_points, test_points: how many Halton points, or for points and test_points an array (n, d).
    model: "ls" (mean square), "pm" (penalties) or "sapm" (self-adaptive penalties). method: how its loss is minimised.
    max_iter, max_seconds: the budget; whichever ends first. seeds: how many, or which; seed s draws from fold_in(key, s).
    init, start: initial weights ("paper", "he", "xavier", "orthogonal", "looks-linear") and auxiliary variables ("uniform",
    "forward", "noise"). mu: the weight of the boundary term (default: as much as the operator magnifies; `PDE.mu`).
    alpha, beta: fixed weights of tangents and values. options: for the method, by name. out: a folder to keep the run in,
    for `resume`. on_record(state) is called at every record; if it returns True, the run stops. Ctrl-C stops it too, and
    returns what there is.
    """
    checks.devices(devices)
    checks.callback(on_record)
    settings = {
        "points": points,
        "boundary_points": boundary_points,
        "test_points": test_points,
        "model": model,
        "method": method,
        "max_iter": max_iter,
        "max_seconds": max_seconds,
        "seeds": seeds,
        "key": key,
        "init": init,
        "start": start,
        "mu": mu,
        "alpha": alpha,
        "beta": beta,
        "options": options,
    }
    config, sigma = plan(problem, depth, width, activation, **settings)
    for sentence in doubts(problem, sigma):
        warnings.warn(sentence, stacklevel=2)
    apart = config["options"].get("chunk") is not None
    samples = problem.sketch() if apart else problem.samples(points, boundary_points, test_points, config["mu"])
    folder = None if out is None else store.Folder(out)
    with nullcontext() if folder is None else folder.claim:
        return execute(problem, samples, config, sigma, folder=folder, progress=progress, on_record=on_record)


def doubts(problem, sigma: Activation) -> list[str]:
    """What is allowed, and probably not meant."""
    found = [problem.ill_posed] if getattr(problem, "ill_posed", "") else []
    if isinstance(problem, PDE) and sigma.name == "relu":
        found.append("relu has no continuous derivative, so no bound holds for a PDE; use activation='sin' or 'tanh'.")
    return found


def execute(
    problem,
    samples: Samples,
    config: dict,
    sigma: Activation,
    previous: Run | None = None,
    networks: list | None = None,
    folder: store.Folder | None = None,
    progress: bool = True,
    on_record: Callable[[Progress], Any] | None = None,
) -> Result:
    """Train as the configuration says, from the start, from a previous run or from given weights; keep it in a folder."""
    options, seconds, config = config["options"], config["max_seconds"], dict(config)
    method, scaling = build(samples, config, sigma), scaling_of(samples, options.get("scale", False))
    first = 0
    if previous is not None:
        first = int(previous.history["iteration"].max())
        seconds = None if seconds is None else seconds + float(previous.history["seconds"].max())
    if folder is not None and previous is None:
        folder.begin(config, store.environment())
    next_save = -np.inf
    learn: Callable[..., Run] = train
    files = None
    if options.get("chunk") is not None:
        source = stream.Source(problem, scaling, options["chunk"])
        where = None if folder is None else folder.checkpoint.parent
        files = stream.Files(where, len(config["seeds"]), source, method.widths[1:-1], previous and previous.states)
        learn = partial(stream.train, source=source, files=files)

    def keep(run: Run) -> None:
        nonlocal next_save
        began = time.monotonic()
        if files is not None:
            files.sync()
        store.write(folder.checkpoint, *to_file(run, samples, config))  # type: ignore[union-attr]
        if files is not None:
            files.hold(run.states)
        now = time.monotonic()
        next_save = now + max(CHECKPOINT_SECONDS, CHECKPOINT_SHARE * (now - began))

    def watch(moment: Moment):
        bar.show(moment)
        if folder is not None:
            if moment.recorded:
                folder.append(line(moment))
            if time.monotonic() > next_save:
                keep(moment.run())
        if on_record is None or not moment.recorded:
            return False
        arrays = (moment.loss.copy(), moment.mean_squared_loss.copy(), moment.bound_ratio)
        stop = on_record(
            Progress(moment.iteration, moment.seconds, *arrays, lambda: Result(moment.run(), samples, config, problem))
        )
        return stop is not None and bool(np.all(stop))

    label = f"{config['model'].upper()} · {config['method']}"
    with Bar(label, config["max_iter"], seconds, progress, first) as bar, store.every_interrupt(), files or nullcontext():
        run, every = previous, 0 if config.get("over") else options.get("resample") or 0
        initial = None if networks is None else start_at(method, [scaling.scaled(w) for w in networks], sigma)
        at = first
        while True:
            began = time.perf_counter()
            due = every and at % every == 0 and config.get("drawn_at", 0) < at < config["max_iter"]
            if due and not isinstance(problem, PDE):
                warnings.warn("the points stay as they are: to draw others the problem is needed; give problem=….", stacklevel=3)
                due = every = 0
            if due and run is not None:
                try:
                    solved = [weights_of(run, samples, config, i) for i in range(len(run.seeds))]
                    x, size = harder(problem, samples, solved, sigma, at // every)
                    fresh = [*config.get("fresh", ()), size]
                    if no_longer_falls(fresh):
                        why = f"the residual at fresh points no longer falls, after {at} iterations."
                        config["over"], run = True, closed(run, "stalled", why)
                        break
                    if x is not None:
                        held = samples.test.get("x", 0)
                        new = problem.samples(x, config["boundary_points"], held, config["mu"])
                        new = replace(new, kept=samples.scaling)
                        method = build(new, config | {"points": None}, sigma)
                        run, samples, config["points"] = renewed(run, method), new, None
                    config["drawn_at"], config["fresh"] = at, fresh
                except KeyboardInterrupt:
                    run = closed(run, "interrupted", f"interrupted after {at} iterations.")
                    break
            at = min(config["max_iter"], (at // every + 1) * every) if every else config["max_iter"]
            run = learn(
                method,
                at,
                config["seeds"],
                config["key"],
                options["record_every"],
                options["stall"],
                10**9 if every else options["patience"],
                seconds=seconds,
                validation=None if samples.validation is None else scaling.term(samples.validation),
                watch=watch,
                previous=run,
                initial=initial,
                spent=time.perf_counter() - began,
            )
            if at >= config["max_iter"] or {"out of time", "stopped", "interrupted"} & set(run.status):
                break
    result = Result(run, samples, config, problem)
    if folder is not None:
        keep(run)
        folder.write_history(lines(run))
        store.write(folder.model, *to_file(run, samples, config))
        row = {"best": run.best, "certificate": str(result.certificate), "holds": result.certificate.holds}
        folder.write_json("summary.json", row | {"seeds": result.table})
    return result


def resume(
    path: str | Path,
    max_iter: int | None = None,
    max_seconds: float | None = None,
    problem=None,
    activation=None,
    *,
    progress: bool = True,
    on_record: Callable[[Progress], Any] | None = None,
) -> Result:
    """Continue a run from its folder (`out=`) or from a saved file: the same numbers, bit for bit, as if it had never stopped.

    `max_iter` counts from the very start (default: as many as were asked for then); `max_seconds` counts from now.
    """
    path = Path(path)
    folder = store.Folder(path)
    file = folder.checkpoint if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise ValueError(
            f"{path} is not the folder of a run: it has no checkpoint; start one with sapm.solve(…, out={str(path)!r})."
        )
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the folder of a run, or a file written by result.save(…).")
    if problem is not None and not isinstance(problem, PROBLEMS):
        raise TypeError(f"problem={problem!r} is not a problem; give a sapm.PDE, sapm.Function or sapm.Regression.")
    with folder.claim if path.is_dir() else nullcontext():
        before = from_file(file, problem, activation)
        if before.config["options"].get("chunk") is not None and (problem is None or not path.is_dir()):
            raise ValueError(
                f"{path} is of a run on data that are not in memory: give the folder it was kept in (out=…) and its problem=…."
            )
        config = before.config | {"max_seconds": None if max_seconds is None else checks.positive("max_seconds", max_seconds)}
        if max_iter is not None:
            done = int(before.run.history["iteration"].max())
            if whole("max_iter", max_iter, 0) < done:
                raise ValueError(f"max_iter={max_iter} is behind: {path} has {done} iterations already; give more, or nothing.")
            config["max_iter"] = max_iter
        if path.is_dir():
            for stale in (folder.model, folder.path / "summary.json"):  # of the earlier end; the checkpoint has as much
                stale.unlink(missing_ok=True)
            folder.write_json("config.json", config)
            folder.write_history(lines(before.run))
        more: dict[str, Any] = {"folder": folder if path.is_dir() else None, "progress": progress, "on_record": on_record}
        return execute(problem, before.samples, config, before.run.method.sigma, before.run, **more)
