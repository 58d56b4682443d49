"""`solve` and `resume`: from a problem to a result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from sapm.driver.points import Redrawn, first_stage, staged_plan, with_last_states
from sapm.driver.progress import Bar, line, lines
from sapm.driver.settings import (
    Settings,
    check_callback,
    check_one_device,
    check_problem,
    iterations,
    warn_of_doubts,
)
from sapm.errors import UNNAMED, Advice, AdviceKind, by_name, positive, shown_path, warn
from sapm.methods.engine import Engine
from sapm.methods.method import NO_LEARNING_RATE, Method, StoredMethod
from sapm.methods.streamed import StreamedEngine
from sapm.numerics.activations import Activation
from sapm.problem.advice import CLEAR_DIFFERENCE, another_exact, kinks
from sapm.problem.data import DATA_AS_PROBLEM, Regression
from sapm.problem.functions import none_if_fails
from sapm.problem.pde import PDE, Problem
from sapm.problem.samples import Samples, Weights
from sapm.results import files
from sapm.results.files import environment
from sapm.results.result import Result, from_file, to_file, with_scores
from sapm.results.table import heading, outcome
from sapm.scopes import (
    first_process,
    float64,
    interrupt,
    interrupts,
    never,
    one_thread,
    unless_interrupted,
    untraced,
)
from sapm.training import streaming
from sapm.training.devices import agreed, anywhere, mesh_of
from sapm.training.loop import (
    Chunks,
    Fixed,
    Rules,
    Sampler,
    Start,
    Stepper,
    begun,
    diagnostics_of,
    keys_of,
    loop,
)
from sapm.training.run import (
    Observer,
    Plan,
    Progress,
    Run,
    SamplerState,
    Status,
    states_at,
)
from sapm.training.seeds import rungs

# ---------------------------------------------------------------- one attempt

# The next checkpoint is due after the longer of two times: this one, and this multiple of the time
# that writing the last checkpoint took.
CHECKPOINT_INTERVAL_SECONDS = 5.0
CHECKPOINT_INTERVAL_WRITES = 20


@dataclass(frozen=True)
class Session:
    """The surroundings of a run: its folder, its display and its devices.

    Parameters
    ----------
    folder : the folder of the run, or None.
    progress : whether a progress bar is shown.
    on_record : the user's callback; the run ends when it returns True.
    mesh : the devices that share seeds and samples, or None.
    interrupted : whether Ctrl-C was pressed.
    """

    folder: files.Folder | None = None
    progress: bool = True
    on_record: Callable[[Progress], Any] | None = None
    mesh: Mesh | None = None
    interrupted: Callable[[], bool] = never


class Checkpoints:
    """An observer that writes checkpoints of a run at intervals.

    Parameters
    ----------
    save : writes a run to the folder. The time that it takes sets the interval.
    """

    def __init__(self, save: Callable[[Run], None]):
        self.save = save
        self.due = -np.inf

    def __call__(self, progress: Progress) -> None:
        if agreed(time.monotonic() > self.due)[0]:
            began = time.monotonic()
            self.save(progress.run())
            now = time.monotonic()
            wait = max(CHECKPOINT_INTERVAL_SECONDS, CHECKPOINT_INTERVAL_WRITES * (now - began))
            self.due = now + wait


@dataclass(frozen=True)
class Log:
    """An observer that appends every record to history.jsonl in the folder."""

    folder: files.Folder

    def __call__(self, progress: Progress) -> None:
        if progress.recorded:
            self.folder.append(line(progress))


@dataclass(frozen=True)
class Callback:
    """An observer that calls the user's function at every record. Its answer True ends the run.

    Parameters
    ----------
    on_record : the user's function of a `Progress`.
    result : gives the result of a run so far.
    """

    on_record: Callable[[Progress], Any]
    result: Callable[[Run], Result]

    def __call__(self, progress: Progress) -> bool:
        if not progress.recorded:
            return False
        answer = self.on_record(replace(progress, result=lambda: self.result(progress.run())))
        # Only True, or an array of True, ends the run. Another value, such as the number of bytes
        # that file.write returns, does not.
        stop = np.asarray(answer)
        return stop.dtype == bool and bool(stop.size) and bool(stop.all())


def attempt(
    problem: Problem | None,
    samples: Samples,
    plan: Plan,
    session: Session,
    previous: Run | None = None,
    networks: Sequence[Weights] | None = None,
    advice: tuple[Advice, ...] = (),
    first_seconds: float | None = None,
) -> Result:
    """One attempt: train by the plan, and return the result.

    Parameters
    ----------
    problem : the problem; None in a run that is continued without it.
    samples : the points and data to begin with.
    plan : all settings, resolved: defaults and "auto" are replaced by values.
    session : the folder, the display and the devices of the run.
    previous : the run to continue, or None.
    networks : the weights [(W, b), …] of every seed to start from, in the problem's own units;
        None: random ones.
    advice : what the user was told about the problem and the settings.
    first_seconds : in a second attempt, the seconds that the first one has taken; else None.
    """
    began = time.perf_counter()
    folder = session.folder
    if folder is not None and first_seconds is not None:
        folder.write_history([])
    elif folder is not None and previous is None:
        folder.begin(plan.to_dict(), environment())
    seconds = plan.max_seconds
    if previous is not None:
        statements = tuple(a for a in previous.advice if a.kind == AdviceKind.STATEMENT)
        previous = replace(previous, cut="", advice=statements)
        seconds = None if seconds is None else seconds + previous.seconds
    sampler = sampler_of(problem, samples, plan, previous, seconds)
    scaling = plan.scaling(samples)
    held_out = None if samples.validation is None else scaling.term(samples.validation)

    def result(run: Run) -> Result:
        compared_run = with_scores(run, sampler.samples, plan)
        return Result(compared_run, sampler.samples, plan, problem)

    with _disk(problem, samples, plan, folder, previous) as disk:

        def save(run: Run) -> None:
            if folder is None or not folder.holds():
                return
            if disk is not None:
                disk.files.sync()
            folder.save(folder.checkpoint, *to_file(run, sampler.samples, plan))
            if disk is not None:
                disk.files.hold(run.states)

        begin: Start | Run
        if previous is not None:
            whole = previous.kept is None or samples.validation is not None
            begin = previous if whole else with_last_states(previous)
        else:
            number = 1 if first_seconds is None else 2
            scaled = None if networks is None else [scaling.scaled(w) for w in networks]
            begin = _start(sampler.engine, plan, disk, scaled)
            begin = replace(begin, advice=advice, attempt=number)
        label = heading(plan) + (", a second attempt" if first_seconds is not None else "")
        at = 0 if previous is None else previous.iterations
        shown = session.progress and first_process()
        bar = Bar(label, plan.max_iter, seconds, at) if shown else None
        with bar or nullcontext():
            observers: list[Observer] = [bar] if bar else []
            if folder is not None:
                observers += [Log(folder), Checkpoints(save)]
            if session.on_record is not None:
                observers.append(Callback(session.on_record, result))
            run = loop(
                begin,
                rules_of(plan, seconds),
                partial(_stepper, plan, disk, held_out, session.mesh),
                observers,
                sampler,
                session.interrupted,
                time.perf_counter() - began + (first_seconds or 0.0),
            )
        run = unless_interrupted(
            lambda: sampler.finish(run, save),
            lambda: replace(sampler.present(run), cut=run.cut or ENDING),
        )

    def unranked() -> Result:
        return Result(replace(run, cut=run.cut or ENDING), sampler.samples, plan, problem)

    return unless_interrupted(lambda: result(run), unranked)


def sampler_of(
    problem: Problem | None,
    samples: Samples,
    plan: Plan,
    previous: Run | None,
    seconds: float | None,
) -> Sampler:
    """The sampler that chooses the points of a run.

    Parameters
    ----------
    problem, samples, plan, previous : see `attempt`.
    seconds : the budget of time, which counts the seconds of the previous run too; or None.
    """
    if not plan.resample:
        return Fixed(samples, plan.engine(samples))
    known = problem if isinstance(problem, PDE) else None
    if plan.stages and previous is None and known is not None:
        return first_stage(known, plan, samples, seconds)
    state = SamplerState() if previous is None else previous.sampler_state
    return Redrawn(known, plan, samples, state, previous, seconds)


def rules_of(plan: Plan, seconds: float | None) -> Rules:
    """The rules of the loop for a plan.

    Parameters
    ----------
    plan : the settings of the run.
    seconds : the budget of time, or None.
    """
    method = plan.method
    return Rules(
        plan.max_iter,
        seconds,
        method.record_every,
        method.stall,
        method.patience,
        rungs(len(plan.seeds), method.survivors, plan.max_iter),
    )


# ---------------------------------------------------------------- data in memory or on disk


def _disk(
    problem: Problem | None,
    samples: Samples,
    plan: Plan,
    folder: files.Folder | None,
    previous: Run | None,
):
    """A context manager that yields the passes over data on disk, or None for data in memory.

    Parameters
    ----------
    problem, samples, plan, previous : see `attempt`.
    folder : the folder of the run, or None.
    """
    if plan.chunk is None:
        return nullcontext()
    engine = plan.engine(samples)
    # every plan with chunks is one for data, and has such an engine
    assert isinstance(engine, StreamedEngine) and isinstance(problem, Regression)
    source = streaming.Source(problem, plan.scaling(samples), plan.chunk)
    place = None if folder is None else folder.checkpoint.parent
    states = None if previous is None else previous.states
    held = None if folder is None else folder.holds
    aux = streaming.Files(place, len(plan.seeds), source, engine.widths[1:-1], states, held)
    return streaming.Passes(engine, source, aux)


@float64
def _start(
    engine: Engine, plan: Plan, disk: streaming.Passes | None, networks: Sequence[Any] | None
) -> Start:
    """A run before its first step.

    Parameters
    ----------
    engine : the engine of the method, for this problem.
    plan : the settings of the run.
    disk : the passes over data on disk; None for data in memory.
    networks : the weights of every seed to start from, in the units of training; None: random ones.
    """
    if disk is not None:
        return Start(engine, plan.seeds, disk.begin(keys_of(plan.seeds, plan.key)))
    states = None if networks is None else states_at(engine, networks, plan.activation)
    return begun(engine, plan.seeds, plan.key, states)


def _stepper(
    plan: Plan, disk: streaming.Passes | None, held_out, mesh: Mesh | None, engine: Engine
) -> Stepper:
    """What advances the states: passes over data on disk, or compiled chunks of steps."""
    if disk is not None:
        return streaming.PassStepper(disk, held_out)
    return Chunks(engine, len(plan.seeds), held_out, mesh)


NO_RESULT_YET = "sapm.solve was interrupted before it had a result"
ENDING = "interrupted after the training had ended."
IN_SECOND = "interrupted during a second attempt; this is the result of the first attempt."
UNDEFINED_RESIDUAL = (
    " If the residual has a root, a logarithm or a quotient of u, keep u away from values where it "
    "is undefined: use jnp.maximum(u.value, 1e-6) in place of u.value, or hard=True."
)
SETTLED_ITERATIONS = 50  # a residual that is large after so many iterations stays large
UNFINISHED = (
    "Training found no solution, and a second attempt covered only {:.0%} of the time interval. "
    "This is the result of the first attempt. If the run has a folder (out=…), sapm.resume "
    "continues the second attempt."
)
SECOND_FAILED = (
    "Training found no solution, and all networks of a second attempt failed. This is the result "
    "of the first attempt."
)


@by_name(hints=NO_LEARNING_RATE | {UNNAMED: DATA_AS_PROBLEM})
@untraced
def solve(  # noqa: PLR0913
    problem: Problem,
    depth: int = 6,
    width: int | Sequence[int] = 20,
    activation: str | Activation | Callable | None = None,
    *,
    points=1000,
    boundary_points: int = 400,
    test_points=1000,
    model: str = "sapm",
    method: str | Method = "auto",
    max_iter: int | None = None,
    max_seconds: float | None = None,
    seeds: int | Iterable[int] = 10,
    key: int = 0,
    init: str | None = None,
    start: str | None = None,
    mu: float | None = None,
    alpha: Any = 1.0,
    beta: Any = 1.0,
    order: str | Sequence[tuple[str, int]] | None = None,
    options: dict | None = None,
    out: str | Path | None = None,
    progress: bool = True,
    on_record: Callable[[Progress], Any] | None = None,
    devices=None,
) -> Result:
    """Train one network for each seed on a problem. Returns the networks, their losses and errors.

    During training, Ctrl-C ends the run after the current chunk of steps, and the result so far is
    returned. A second Ctrl-C does not wait for the chunk: the result is the last consistent state
    of the run. KeyboardInterrupt is raised only before training has begun, or if the second Ctrl-C
    comes before the first losses are measured.

    Parameters
    ----------
    problem : a `PDE`, a `Function` or a `Regression`.
    depth : the number of layers with weights, at least 2.
    width : units of each hidden layer: a number, or one for each of the depth - 1 layers.
    activation : "tanh" (the default for functions, data and nonlinear PDEs), "sin" (the default for
        linear PDEs), "relu", "sigmoid", "softplus", or an elementwise JAX function.
    points : the number of interior points, or an array (n, d) of them.
    boundary_points : the number of points on the boundary.
    test_points : the number of test points, or an array (n, d) of them.
    model : "ls" (mean square), "pm" (penalties) or "sapm" (self-adaptive penalties). With
        method="auto" it matters only in the first 15 steps on functions and data, and where a step
        of Gauss-Newton is too expensive.
    method : "auto", the name of a method, or a method with its options, such as
        `sapm.GaussNewton(bend=False)`.
    max_iter, max_seconds : the largest numbers of iterations and of seconds; training ends when
        one of them is reached.
    seeds : how many seeds, or their numbers. Seed s draws its start from fold_in(key, s).
    key : the number that all random choices follow from.
    init : initial weights: "paper", "he", "xavier", "orthogonal" or "looks-linear".
    start : initial auxiliary variables: "uniform", "forward" or "noise".
    mu : the weight of the boundary term; by default it follows from the coefficients of the PDE
        (`PDE.mu`).
    alpha, beta : fixed weights of the defects of derivatives (alpha) and of the defects of values
        (beta): a number, or one for each layer (beta: for each layer but the last).
    order : of the blocks in a sweep of method="alternating": "down" (the printed algorithm), "up",
        "up-then-down", or pairs (block, layer); see `sapm.Alternating`.
    options : options of the method by name, such as `{"patience": 2000}`.
    out : a folder to keep the run in, so that `resume` can continue it.
    progress : whether a progress bar is shown.
    on_record : a function of a `Progress`, called at every record; training ends if it returns
        True.
    devices : "auto" (all), a number, or a `jax.sharding.Mesh`: seeds and samples are divided among
        these devices.
    """
    check_callback(on_record)
    divided = isinstance(devices, Mesh) or mesh_of(devices, 1) is not None
    settings = Settings(
        problem,
        depth,
        width,
        activation,
        points=points,
        boundary_points=boundary_points,
        test_points=test_points,
        model=model,
        method=method,
        max_iter=max_iter,
        max_seconds=max_seconds,
        seeds=seeds,
        key=key,
        init=init,
        start=start,
        mu=mu,
        alpha=alpha,
        beta=beta,
        order=order,
        options=options,
        in_memory=divided,
    )
    check_one_device(divided, settings.asked_options.get("chunk") is not None)
    plan = settings.plan()
    mesh = mesh_of(devices, len(plan.seeds))
    advice = warn_of_doubts(problem, plan.activation, plan, model)
    folder = None if out is None else files.Folder(out)
    session = Session(folder, progress, on_record, mesh)

    def trained() -> Result:
        samples = (
            problem.sketch()
            if plan.chunk is not None and isinstance(problem, Regression)
            else problem.samples(points, boundary_points, test_points, plan.mu)
        )
        with nullcontext() if folder is None else folder.claim:
            return execute(problem, samples, plan, session, advice=advice)

    # the error of Ctrl-C has one line, without JAX's traceback
    return unless_interrupted(trained, partial(interrupt, NO_RESULT_YET))


@one_thread()
def execute(
    problem: Problem | None,
    samples: Samples,
    plan: Plan,
    session: Session,
    previous: Run | None = None,
    networks: Sequence[Weights] | None = None,
    advice: tuple[Advice, ...] = (),
) -> Result:
    """Train by the plan. If that finds no solution and there is time, make a second attempt, in
    stages of time.

    The parameters are those of `attempt`.
    """
    folder = session.folder
    with interrupts() as signalled:
        session = replace(
            session,
            interrupted=lambda: signalled() or (folder is not None and bool(folder.lost)),
        )
        result = attempt(problem, samples, plan, session, previous, networks, advice)
        tried_again = result.run.attempt > 1
        if not tried_again:
            result, tried_again = _retried(result, session, previous)
        elif folder is not None and folder.first.is_file():  # a second attempt was continued
            first = from_file(folder.first, problem, plan.activation)
            result = _second_or_first(result, first)
        return _finished(result, session, tried_again)


def _retried(first: Result, session: Session, previous: Run | None) -> tuple[Result, bool]:
    """The result of a second attempt if one is due, else the first one; and whether there was a
    second attempt.

    Parameters
    ----------
    first : the result of the first attempt.
    session : the folder, the display and the devices of the run.
    previous : the run that the first attempt continued, or None.
    """
    seconds = first.plan.max_seconds
    if seconds is not None and previous is not None:
        seconds += previous.seconds
    due = None  # not known, because of an interrupt
    if not anywhere(session.interrupted()):
        due = unless_interrupted(lambda: second_attempt_is_due(first, seconds), lambda: None)
    if anywhere(due is None or session.interrupted()):
        return _cut(first, first.run.cut or ENDING), False
    if not agreed(bool(due))[0]:
        return first, False
    second = unless_interrupted(lambda: _second(first, session), lambda: _cut(first, IN_SECOND))
    return second, True


def _finished(result: Result, session: Session, tried_again: bool) -> Result:
    """The result with advice on how the run ended, and with its last files written.

    Parameters
    ----------
    result : the result of the last attempt.
    session : see `attempt`.
    tried_again : whether there was a second attempt.
    """
    steps: list[Callable[[Result], Result]] = [_with_outcome]
    if session.folder is not None:
        steps.append(partial(_written, folder=session.folder, tried_again=tried_again))
    for step in steps:
        result = unless_interrupted(partial(step, result), partial(_cut, result, ENDING))
        if anywhere(session.interrupted()) and not result.run.cut:
            result = _cut(result, ENDING)
    if session.folder is not None and session.folder.lost:
        result = _advised(result, Advice(AdviceKind.FOLDER, session.folder.lost))
    return result


def _written(result: Result, folder: files.Folder, tried_again: bool) -> Result:
    """Write the last files of a run to its folder, and return the result.

    Parameters
    ----------
    result : the result of the run.
    folder : the folder.
    tried_again : whether there was a second attempt.
    """
    folder.write_history(lines(result.run))
    folder.save(folder.model, *to_file(result.run, result.samples, result.plan))
    folder.write_json("summary.json", outcome(result))
    if result.run.attempt > 1 or not tried_again:
        folder.forget_first()
    return result


def _cut(result: Result, why: str) -> Result:
    """The result of a run that was interrupted; `why` is a sentence, or "" if it was not."""
    return replace(result, run=replace(result.run, cut=why))


def second_attempt_is_due(result: Result, seconds: float | None) -> bool:
    """Whether a second attempt is due: the plan allows one (`retry`), the run came to its end and
    is no solution, and less than half of the time is used.

    Parameters
    ----------
    result : the result of the first attempt.
    seconds : the budget of time, or None.
    """
    run = result.run
    ended = not any(status.cut_short for status in run.status) and not run.lost.all()
    early = seconds is None or seconds > 2 * run.seconds
    may_retry = result.plan.retry and run.attempt == 1 and not run.cut
    if not (isinstance(result.problem, PDE) and may_retry and ended and early):
        return False
    estimate = none_if_fails(result.error_estimate)
    return estimate is not None and estimate.no_solution


def _second(first: Result, session: Session) -> Result:
    """Make a second attempt, in stages of time, after a first one that found no solution. Returns
    one of the two, see `_second_or_first`.
    """
    problem = first.problem
    assert problem is not None  # see `second_attempt_is_due`
    plan = staged_plan(first.plan)
    folder = session.folder
    if folder is not None:
        folder.save(folder.first, *to_file(first.run, first.samples, first.plan))
    held_out = first.samples.test.get("x", 0)
    samples = problem.samples(plan.points, plan.boundary_points, held_out, plan.mu)
    second = attempt(
        problem,
        samples,
        plan,
        session,
        advice=first.run.advice,
        first_seconds=first.run.seconds,
    )
    return _second_or_first(second, first)


def _second_or_first(second: Result, first: Result) -> Result:
    """The second attempt if it covered the whole time interval; else the first one, with advice."""
    share = second.run.sampler_state.share
    if share == 1 and not second.run.lost.all():
        return second
    cut = bool(second.run.cut)
    why = SECOND_FAILED if second.run.lost.all() else UNFINISHED.format(share)
    first = _advised(first, Advice(AdviceKind.OUTCOME, why), silent=cut)
    return _cut(first, IN_SECOND if cut else "")


def _advised(result: Result, advice: Advice, silent: bool = False) -> Result:
    """The result with this advice, which is also a warning unless it is `silent`."""
    if advice in result.run.advice:
        return result
    if first_process() and not silent:
        warn(advice.sentence)
    return replace(result, run=replace(result.run, advice=(*result.run.advice, advice)))


def _with_outcome(result: Result) -> Result:
    """The result with advice on how it ended."""
    advice = _outcome(result)
    result = result if advice is None else _advised(result, advice)
    run = result.run
    if set(run.status) == {Status.NON_FINITE} and not run.iterations:
        hint = UNDEFINED_RESIDUAL if result.samples.kind == "pde" else ""
        why = f"nothing was trained: {run.reason[0]}{hint}"
        result = _advised(result, Advice(AdviceKind.OUTCOME, why))
    share = run.sampler_state.share
    if share < 1 and first_process():
        warn(f"only {share:.0%} of the time interval was trained; do not use u at later times.")
    return result


def _outcome(result: Result) -> Advice | None:
    """Advice for a run that has ended with large errors: `exact` may belong to another problem, or
    the solution may have kinks. None if there is no advice.
    """
    problem = result.problem
    run = result.run
    if not isinstance(problem, PDE) or run.cut:
        return None
    best = result.rows[run.best]
    advice = None
    if problem.exact is not None and (best.solution_error or 0.0) > CLEAR_DIFFERENCE:
        advice = another_exact(problem)
    settled = run.ended(Status.CONVERGED, Status.STALLED) or run.iterations >= SETTLED_ITERATIONS
    complete = settled and not run.ended(Status.OUT_OF_TIME, Status.STOPPED)
    if advice is None and complete:
        advice = kinks(problem, best.train_error or 0.0)
    return advice


@by_name(hints=NO_LEARNING_RATE)
@untraced
def resume(  # noqa: PLR0913
    path: str | Path,
    max_iter: int | None = None,
    max_seconds: float | None = None,
    problem: Problem | None = None,
    activation=None,
    *,
    method: Method | None = None,
    progress: bool = True,
    on_record: Callable[[Progress], Any] | None = None,
    devices=None,
) -> Result:
    """Continue a run from its folder or from a saved file. From a folder, the result has the same
    numbers as that of an uninterrupted run, bit for bit. From a file the steps are the same, too,
    but if points are redrawn, another network may represent a seed.

    Parameters
    ----------
    path : the folder of a run (`out=` of `solve`), or a file written by `result.save`.
    max_iter : the largest number of iterations, counted from the start of the run; by default that
        of the earlier call.
    max_seconds : the largest number of seconds for this call; by default there is no limit.
    problem : the problem. A file does not hold it. It is needed for nonlinear PDEs, for hard
        conditions, to redraw points, and for data on disk.
    activation, method : needed if they are the user's own.
    progress, on_record : as in `solve`.
    devices : as in `solve`. Other devices than those of the earlier call add up the samples in
        another order, so the numbers then differ by rounding.
    """
    check_callback(on_record)
    path = Path(path)
    folder = files.Folder(path)
    file = folder.checkpoint if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise ValueError(files.no_checkpoint(path))
    if not path.exists():
        raise FileNotFoundError(
            f"{shown_path(path)} does not exist; give the folder of a run, or a file written by "
            "result.save(…)."
        )
    if problem is not None:
        check_problem(problem)
    with folder.claim if path.is_dir() else nullcontext():
        before = from_file(file, problem, activation, method)
        if isinstance(before.plan.method, StoredMethod):
            raise ValueError(
                f"{shown_path(path)} was made with the method {before.plan.method.name!r}, which a "
                "file cannot hold; give method=…."
            )
        if before.plan.chunk is not None and (problem is None or not path.is_dir()):
            raise ValueError(
                f"{shown_path(path)} belongs to a run on data on disk; give the folder of the run "
                "(its out=…), and problem=…."
            )
        recorded = diagnostics_of(before.run.engine, before.run.states)
        recorded += ["validation_loss"] if before.samples.validation is not None else []
        if lacking := [name for name in recorded if name not in before.run.history]:
            raise ValueError(
                f"{shown_path(file)} has no history of {lacking[0]}, so it cannot be continued; "
                "sapm.load gives its networks."
            )
        seconds = None if max_seconds is None else positive("max_seconds", max_seconds)
        plan = replace(before.plan, max_seconds=seconds)
        if max_iter is not None:
            plan = replace(plan, max_iter=iterations(max_iter), retry=False)
            done = before.run.iterations
            if max_iter < done:
                raise ValueError(
                    f"max_iter: got {max_iter}, expected at least {done}, the iterations that "
                    f"{shown_path(path)} has already; give more, or leave it out."
                )
        mesh = mesh_of(devices, len(before.run.seeds))
        check_one_device(mesh is not None, plan.chunk is not None)
        agreed(0)  # wait until all processes have read the files: the first one now writes them
        if path.is_dir():
            folder.reopen(
                plan.to_dict(), environment(), before.run.iterations, max_iter is not None
            )
            folder.write_history(lines(before.run))
        session = Session(folder if path.is_dir() else None, progress, on_record, mesh)
        return execute(problem, before.samples, plan, session, before.run)
