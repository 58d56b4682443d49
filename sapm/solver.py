"""One call from a problem to a result: check, sample, build, train, keep."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from sapm import checks, store
from sapm.attempt import Attempt, Progress, done
from sapm.devices import agreed, first_process, mesh_of
from sapm.doubts import CLEAR, OUTCOMES, another_exact, kinks, warn_of_doubts
from sapm.environment import environment
from sapm.jet import Activation
from sapm.names import brief, by_name
from sapm.plan import plan
from sapm.problem import PDE, PROBLEMS
from sapm.progress import lines
from sapm.resample import LOST, in_stages
from sapm.result import Result, from_file, to_file
from sapm.samples import Samples
from sapm.summary import outcome
from sapm.threads import one_thread
from sapm.train import diagnostics_of

IN_SECOND = "interrupted in a second attempt; this is the first."
ROOT = " Is it a root, a logarithm or a quotient of u? Keep u away from there, as jnp.maximum(u.value, 1e-6) or hard=True does."
LONG = 50  # iterations: a residual that is large by then stays so
UNFINISHED = OUTCOMES[2] + ", and a second attempt has come to {} of the time only; resume goes on with it (out=…)."


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
def execute(problem, samples: Samples, config: dict, sigma: Activation, **more) -> Result:
    """Train as the configuration says; where that ends in no solution, and there is time for another way, a second time.

    `more`: what an `Attempt` takes, such as a previous run or weights to start from, and the folder to keep it in.
    """
    folder, attempt = more.get("folder"), Attempt(problem, samples, config, sigma, **more)
    result, failed = attempt.result(), False
    try:
        failed = isinstance(problem, PDE) and not result.run.cut and _failed(result, attempt.seconds)
    except KeyboardInterrupt:  # what there is is the end of this attempt; a folder goes on from there
        result = _cut(result, f"interrupted after {done(result.run)} iterations.")
    again = bool(config.get("second"))
    if agreed(failed)[0]:
        result, again = _second(result, sigma, more), True
    elif again and folder is not None and folder.first.is_file():  # a second attempt that was continued
        result = _second_or_first(result, from_file(folder.first, problem, sigma))
    result = _doubted(result)
    if set(result.run.status) == {"non-finite"} and not done(result.run):
        result = _saying(result, said := f"{OUTCOMES[1]}: {result.run.reason[0]}{ROOT * (result.samples.kind == 'pde')}")
        if first_process():
            warnings.warn(said, stacklevel=5)
    if (share := result.config.get("stage", [1.0])[0]) < 1 and first_process():
        warnings.warn(f"it ended with {share:g} of the time trained on, and nothing is known of u beyond.", stacklevel=5)
    if folder is not None:
        folder.write_history(lines(result.run))
        folder.save(folder.model, *to_file(result.run, result.samples, result.config))
        folder.write_json("summary.json", outcome(result))
        if result.config.get("second") or not again:
            folder.forget_first()
    return result


def _cut(result: Result, why: str) -> Result:
    return replace(result, run=replace(result.run, cut=why))


def _failed(result: Result, seconds: float | None) -> bool:
    """Whether a run that came to its end is no solution, and there is time to try another way."""
    run = result.run
    ended = not {"out of time", "stopped", "interrupted"} & set(run.status) and not set(run.status) <= set(LOST)
    early = seconds is None or seconds > 2 * float(run.history["seconds"].max())
    try:
        return bool(result.config.get("again")) and ended and early and result.error_estimate().no_solution
    except Exception:  # without an estimate the run is what it is
        return False


def _second(first: Result, sigma: Activation, more: dict) -> Result:
    """A second attempt, in stages of time, in place of one that was no solution."""
    problem, folder, settings, held = first.problem, more.get("folder"), in_stages(first.config), first.samples.test.get("x", 0)
    others = more | {"previous": None, "networks": None, "used": float(first.run.history["seconds"].max())}
    try:
        if folder is not None:
            folder.save(folder.first, *to_file(first.run, first.samples, first.config))
        begun = problem.samples(settings["points"], settings["boundary_points"], held, settings["mu"])
        return _second_or_first(Attempt(problem, begun, settings, sigma, **others).result(), first, 7)
    except KeyboardInterrupt:
        return _cut(first, IN_SECOND)


def _second_or_first(second: Result, first: Result, stacklevel: int = 6) -> Result:
    """The second attempt if it has trained on all of the time, else the first, and a word on it."""
    share = second.config["stage"][0]
    if share == 1 and not set(second.run.status) <= set(LOST):
        return second
    said = UNFINISHED.format(f"{share:g}")
    if not second.run.cut and first_process():
        warnings.warn(said, stacklevel=stacklevel)
    return _cut(_saying(first, said), IN_SECOND if second.run.cut else "")


def _saying(result: Result, said: str) -> Result:
    """With a sentence that is repeated wherever it is shown."""
    kept = result.config.get("doubts", ())
    return result if said in kept else replace(result, config=result.config | {"doubts": [*kept, said]})


def _doubted(result: Result) -> Result:
    """With what is said of the problem where the run is over and its errors are large: by its `exact`, or by kinks."""
    problem, run, said = result.problem, result.run, ""
    if isinstance(problem, PDE) and not run.cut:
        try:
            best = result.table[run.best]
            said = another_exact(problem) if problem.exact is not None and (best["solution_error"] or 0.0) > CLEAR else ""
            settled = {"converged", "stalled"} & set(run.status) or done(run) >= LONG
            if settled and not {"out of time", "stopped"} & set(run.status):
                said = said or kinks(problem, best["train_error"] or 0.0)
        except KeyboardInterrupt:
            return _cut(result, f"interrupted after {done(run)} iterations.")
    if said and said not in result.config.get("doubts", ()) and first_process():
        warnings.warn(said, stacklevel=6)
    return _saying(result, said) if said else result


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
            config["max_iter"] = checks.budget(max_iter)
            config.pop("again", None)
            if max_iter < (there := done(before.run)):
                raise ValueError(f"max_iter={max_iter} is behind: {path} has {there} iterations already; give more, or nothing.")
        mesh = mesh_of(devices, len(before.run.seeds))
        checks.one_device(mesh is not None, before.config["options"])
        agreed(0)  # all have read what the first is going to write
        if path.is_dir():
            folder.reopen(config, environment(), done(before.run), max_iter is not None)
            folder.write_history(lines(before.run))
        more: dict[str, Any] = {
            "folder": folder if path.is_dir() else None,
            "progress": progress,
            "on_record": on_record,
            "mesh": mesh,
        }
        return execute(problem, before.samples, config, before.run.method.sigma, previous=before.run, **more)
