"""One call from a problem to a result: check, sample, build, train, keep."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from sapm import checks, store, stream
from sapm.devices import agreed, anywhere, first_process, held_back, mesh_of
from sapm.doubts import CLEAR, another_exact, warn_of_doubts
from sapm.environment import environment
from sapm.halving import rungs
from sapm.jet import Activation
from sapm.methods.build import build, start_at
from sapm.names import brief, by_name
from sapm.plan import plan
from sapm.problem import PDE, PROBLEMS
from sapm.progress import Bar, line, lines
from sapm.resample import (
    LOST,
    Lowest,
    at_held,
    at_last,
    closed,
    compared,
    elsewhere,
    first_stage,
    in_stages,
    look_elsewhere,
)
from sapm.result import Result, from_file, to_file
from sapm.run import Moment, Run, noted, sizes_of
from sapm.samples import Samples, scaling_of
from sapm.summary import heading, outcome
from sapm.threads import one_thread
from sapm.train import diagnostics_of, train

CHECKPOINT_SECONDS = 5.0  # between two checkpoints, or
CHECKPOINT_SHARE = 20  # times as long as writing one takes, if that is more
IN_SECOND = "interrupted in a second attempt; this is the first."


@dataclass(frozen=True)
class Progress:
    """What `on_record` gets. Arrays have one entry per seed; `result()` is the Result so far."""

    iteration: int
    seconds: float
    loss: np.ndarray
    mean_squared_loss: np.ndarray
    bound_ratio: np.ndarray
    result: Callable[[], Result]


@by_name
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
    returns what there is. devices: "auto" (all), how many, or a mesh; seeds and samples are divided among them.
    """
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
    divided = isinstance(devices, Mesh) or mesh_of(devices, 1) is not None
    checks.one_device(divided, options)
    config, sigma = plan(problem, depth, width, activation, **settings, in_memory=divided)
    mesh = mesh_of(devices, len(config["seeds"]))
    warn_of_doubts(problem, sigma, config, model)
    apart = config["options"].get("chunk") is not None
    folder = None if out is None else store.Folder(out)
    more: dict[str, Any] = {"folder": folder, "progress": progress, "on_record": on_record, "mesh": mesh}
    try:
        samples = problem.sketch() if apart else problem.samples(points, boundary_points, test_points, config["mu"])
        with nullcontext() if folder is None else folder.claim:
            return execute(problem, samples, config, sigma, **more)
    except KeyboardInterrupt:  # while it trains, Ctrl-C gives what there is; before and after, one line in place of JAX's many
        raise KeyboardInterrupt("sapm.solve was interrupted before it had a result") from None


@one_thread()
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
    mesh: Mesh | None = None,
    used: float | None = None,
) -> Result:
    """Train as the configuration says, from the start, from a previous run or from given weights; keep it in a folder.

    `used`: the seconds of a run that ended in no solution, and in whose place this one is.
    """
    options, seconds, config = config["options"], config["max_seconds"], dict(config)
    if folder is not None and used is not None:
        folder.write_history([])
    elif folder is not None and previous is None:
        folder.begin(config, environment())
    if previous is None and options.get("stages") and options.get("resample"):
        samples, config = first_stage(problem, samples, config)
    ended = sizes_of(config, "ended")  # the residual elsewhere of the networks that it had ended with
    for name in ("ended", "scores"):
        config.pop(name, None)
    method, scaling = build(samples, config, sigma), scaling_of(samples, options.get("scale", False))
    first = 0
    if previous is not None:
        first = _done(previous)
        seconds = None if seconds is None else seconds + float(previous.history["seconds"].max())
    next_save = -np.inf
    learn: Callable[..., Run] = partial(train, mesh=mesh)
    files = None
    if options.get("chunk") is not None:
        source = stream.Source(problem, scaling, options["chunk"])
        where = None if folder is None else folder.checkpoint.parent
        files = stream.Files(where, len(config["seeds"]), source, method.widths[1:-1], previous and previous.states)
        learn = partial(stream.train, source=source, files=files)

    def keep(so_far: Callable[[], Run]) -> None:
        nonlocal next_save
        began, run = time.monotonic(), so_far()
        if files is not None:
            files.sync()
        least = lowest.unless_lost(run)
        folder.save(folder.checkpoint, *to_file(least.kept_by(run), samples, least.noted(config)))  # type: ignore[union-attr]
        if files is not None:
            files.hold(run.states)
        now = time.monotonic()
        next_save = now + max(CHECKPOINT_SECONDS, CHECKPOINT_SHARE * (now - began))

    latest: Callable[[], Run] | None = None

    def watch(moment: Moment):
        nonlocal latest
        bar.show(moment)
        latest = moment.run
        if folder is not None:
            if moment.recorded:
                folder.append(line(moment))
            if agreed(time.monotonic() > next_save)[0]:
                keep(moment.run)
        if on_record is None or not moment.recorded:
            return False
        arrays = (moment.loss.copy(), moment.mean_squared_loss.copy(), moment.bound_ratio)
        now = partial(_so_far, moment, lowest, samples, config, problem)
        stop = on_record(Progress(moment.iteration, moment.seconds, *arrays, now))
        return np.asarray(stop).dtype == bool and bool(np.size(stop)) and bool(np.all(stop))

    label = heading(config) + (", a second attempt" if used is not None else "")
    shown = progress and first_process()
    with (
        Bar(label, config["max_iter"], seconds, shown, first) as bar,
        store.every_interrupt(),
        files or nullcontext(),
        held_back() as asked,
    ):
        run, every = previous, 0 if config.get("over") else options.get("resample") or 0
        lowest = Lowest.before(run, config)
        run = run if run is None or lowest.states is None else at_last(run)
        initial = None if networks is None else start_at(method, [scaling.scaled(w) for w in networks], sigma)
        at = max(first, config.get("drawn_at", 0))
        looked = first if run is not None and (lowest.record == run.history["loss"].shape[1] - 1).any() else None
        while True:
            began = time.perf_counter()
            if anywhere(asked()) and run is not None:
                run = closed(run, "interrupted", f"interrupted after {at} iterations.")
                break
            due = every and at % every == 0 and config.get("drawn_at", 0) < at < config["max_iter"]
            if due and not isinstance(problem, PDE):
                how = "give problem=… (--problem …)"
                warnings.warn(f"the points stay as they are: to draw others the problem is needed; {how}.", stacklevel=5)
                due = every = 0
            if due and run is not None:
                try:  # all or nothing, whenever Ctrl-C comes
                    run, samples, method, lowest, config = look_elsewhere(
                        problem, (run, samples, method, lowest, config), sigma, at, every, seconds
                    )
                    if config.get("over"):
                        break
                except KeyboardInterrupt:
                    run = closed(run, "interrupted", f"interrupted after {at} iterations.")
                    break
            drawn, at = at, min(config["max_iter"], (at // every + 1) * every) if every else config["max_iter"]
            count = len(config["seeds"])
            own = {k: count for k in (drawn, at) if every and (k % every == 0 or k == looked)}  # with a record of its own
            try:
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
                    spent=time.perf_counter() - began + (used or 0.0 if run is None else 0.0),
                    interrupted=asked,
                    rungs=own | rungs(count, options.get("survivors"), config["max_iter"]),
                )
            except KeyboardInterrupt:  # before it began, when it was over, or a second one
                run = run if latest is None else latest()
                if files is not None or run is None:
                    raise
                run = closed(run, "interrupted", f"interrupted after {_done(run)} iterations.")
                break
            latest, lowest = None, lowest.unless_lost(run)
            over = {"out of time", "stopped"} & set(run.status) or set(run.status) <= set(LOST)
            if at >= config["max_iter"] or over or run.cut:
                break
    lowest = lowest.unless_lost(run)  # before anything asks for the best of those left
    if _done(run) > first:
        ended = np.full(len(run.seeds), np.inf)  # type: ignore[union-attr]
        if lowest.states is not None and not isinstance(problem, PDE):  # then the test points have to tell what is worse
            try:
                lowest = lowest.where(at_held(lowest.kept_by(run), samples, config) < at_held(run, samples, config))
            except KeyboardInterrupt:
                run = closed(run, "interrupted", f"interrupted after {_done(run)} iterations.")  # type: ignore[arg-type]
    last: Run = run  # type: ignore[assignment]
    config = noted(config, "ended", ended)
    if folder is not None:
        keep(lambda: last)
    if lowest.states is not None and isinstance(problem, PDE) and not config.get("over"):
        try:
            ended = elsewhere(problem, last, samples, config, len(config.get("fresh", ())) + 1)[1]
        except KeyboardInterrupt:  # the last network was not looked at
            last = closed(last, "interrupted", f"interrupted after {_done(last)} iterations.")
        config = noted(config, "ended", ended)
        if folder is not None:
            keep(lambda: last)  # for a longer run, which would not have looked here, with the lowest of before
    lowest = lowest.seen(last, ended) if lowest.states is not None else lowest
    run, config = lowest.kept_by(last), lowest.noted(config)
    failed, cut = False, ""
    try:
        run, config = compared(run, samples, config)
        failed = isinstance(problem, PDE) and not run.cut and _failed(Result(run, samples, config, problem), seconds)
    except KeyboardInterrupt:
        cut = f"interrupted after {_done(run)} iterations."
    result = Result(run, samples, config, problem)
    if agreed(failed)[0]:
        settings, held, spent = in_stages(config), samples.test.get("x", 0), float(run.history["seconds"].max())
        try:
            if folder is not None:
                folder.save(folder.first, *to_file(run, samples, config))
            begun = problem.samples(settings["points"], settings["boundary_points"], held, settings["mu"])
            second = execute(problem, begun, settings, sigma, None, None, folder, progress, on_record, mesh, spent)
            if _came_to_all(second):
                if folder is not None:
                    folder.forget_first()
                return second
            cut = IN_SECOND if second.run.cut else ""
        except KeyboardInterrupt:
            cut = IN_SECOND
    if cut:  # what there is is the end of this attempt; a folder goes on from there
        run = replace(run, cut=cut)
        result = Result(run, samples, config, problem)
    if (said := _doubt_of_exact(result)) and said not in config.get("doubts", ()):
        warnings.warn(said, stacklevel=5)
        config = config | {"doubts": [*config.get("doubts", ()), said]}
        result = Result(run, samples, config, problem)
    if not config.get("second") and (share := config.get("stage", [1.0])[0]) < 1:
        warnings.warn(f"it ended with {share:g} of the time trained on, and nothing is known of u beyond.", stacklevel=5)
    if folder is not None:
        _keep_end(folder, result)
    return result


def _doubt_of_exact(result: Result) -> str:
    """What is said of the problem's `exact` where the error is so large that it may be to blame."""
    if getattr(result.problem, "exact", None) is None or not isinstance(result.problem, PDE) or result.run.cut:
        return ""
    with suppress(KeyboardInterrupt):
        if (result.table[result.run.best]["solution_error"] or 0.0) > CLEAR:
            return another_exact(result.problem)
    return ""


def _keep_end(folder: store.Folder, result: Result) -> None:
    folder.write_history(lines(result.run))
    folder.save(folder.model, *to_file(result.run, result.samples, result.config))
    folder.write_json("summary.json", outcome(result))


def _came_to_all(second: Result) -> bool:
    """Whether a second attempt has trained on all of the time, so that it takes the place of the first."""
    return second.config["stage"][0] == 1 and not set(second.run.status) <= set(LOST)


def _second_or_first(folder: store.Folder, second: Result, activation) -> Result:
    """Of a second attempt that was continued: it, or the first where it has not come to all of the time again."""
    if _came_to_all(second):
        folder.forget_first()
    elif folder.first.is_file():
        first = from_file(folder.first, second.problem, activation)
        result = replace(first, run=replace(first.run, cut=IN_SECOND if second.run.cut else ""))
        _keep_end(folder, result)
        return result
    return second


def _failed(result: Result, seconds: float | None) -> bool:
    """Whether a run that came to its end is no solution, and there is time to try another way."""
    run = result.run
    ended = not {"out of time", "stopped", "interrupted"} & set(run.status) and not set(run.status) <= set(LOST)
    early = seconds is None or seconds > 2 * float(run.history["seconds"].max())
    try:
        return bool(result.config.get("again")) and ended and early and result.error_estimate().no_solution
    except Exception:  # without an estimate the run is what it is
        return False


def _done(run: Run) -> int:
    return int(run.history["iteration"].max())


def _so_far(moment: Moment, lowest: Lowest, samples: Samples, config: dict, problem) -> Result:
    run = moment.run()
    least = lowest.unless_lost(run)
    run, config = compared(least.kept_by(run), samples, least.noted(config))
    return Result(run, samples, config, problem)


@by_name
def resume(
    path: str | Path,
    max_iter: int | None = None,
    max_seconds: float | None = None,
    problem=None,
    activation=None,
    *,
    progress: bool = True,
    on_record: Callable[[Progress], Any] | None = None,
    devices=None,
) -> Result:
    """Continue a run from its folder (`out=`) or from a saved file: the same numbers, bit for bit, as if it had never stopped.

    `max_iter` counts from the very start (default: as many as were asked for then); `max_seconds` counts from now. `devices` need
    not be those of before (sums over samples are then rounded in another order).
    """
    checks.callback(on_record)
    path = Path(path)
    folder = store.Folder(path)
    file = folder.checkpoint if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise ValueError(store.no_checkpoint(path))
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the folder of a run, or a file written by result.save(…).")
    if problem is not None and not isinstance(problem, PROBLEMS):
        raise TypeError(f"problem={brief(problem)} is not a problem; give a sapm.PDE, sapm.Function or sapm.Regression.")
    with folder.claim if path.is_dir() else nullcontext():
        before = from_file(file, problem, activation)
        if before.config["options"].get("chunk") is not None and (problem is None or not path.is_dir()):
            raise ValueError(
                f"{path} is of a run on data that are not in memory: give the folder it was kept in (out=…) and its problem=…."
            )
        wanted = diagnostics_of(before.run.method, before.run.states)
        wanted += ["validation_loss"] if before.samples.validation is not None else []
        if lacking := [name for name in wanted if name not in before.run.history]:
            raise ValueError(f"{file} has no history of {lacking[0]}, so it cannot be continued; sapm.load gives its networks.")
        config = before.config | {"max_seconds": None if max_seconds is None else checks.positive("max_seconds", max_seconds)}
        if max_iter is not None:
            done = _done(before.run)
            config["max_iter"] = checks.budget(max_iter)
            config.pop("again", None)
            if max_iter < done:
                raise ValueError(f"max_iter={max_iter} is behind: {path} has {done} iterations already; give more, or nothing.")
        mesh = mesh_of(devices, len(before.run.seeds))
        checks.one_device(mesh is not None, before.config["options"])
        agreed(0)  # all have read what the first is going to write
        if path.is_dir():
            folder.reopen(config, environment(), _done(before.run), max_iter is not None)
            folder.write_history(lines(before.run))
        more: dict[str, Any] = {
            "folder": folder if path.is_dir() else None,
            "progress": progress,
            "on_record": on_record,
            "mesh": mesh,
        }
        result = execute(problem, before.samples, config, before.run.method.sigma, before.run, **more)
        return _second_or_first(folder, result, activation) if path.is_dir() and config.get("second") else result
