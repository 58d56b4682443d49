"""One training, from its start or its last checkpoint to its end, with its observers: the progress
bar, the log, the checkpoints and the user's callback.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from jax.sharding import Mesh

from sapm.driver.points import Redrawn, Staged, at_last, compared
from sapm.driver.progress import Bar, line
from sapm.errors import Advice, AdviceKind
from sapm.methods.method import Engine
from sapm.methods.streamed import StreamedEngine
from sapm.precision import float64
from sapm.problem.pde import PDE
from sapm.problem.samples import Samples, Weights
from sapm.results import files
from sapm.results.files import environment
from sapm.results.result import Result, to_file
from sapm.results.table import heading
from sapm.training import streaming
from sapm.training.devices import agreed, first_process
from sapm.training.interrupts import never, unless_interrupted
from sapm.training.loop import (
    Chunks,
    Fixed,
    Rules,
    Start,
    Stepper,
    begun,
    keys_of,
    loop,
)
from sapm.training.plan import Plan, states_at
from sapm.training.run import Observer, Progress, Run, SamplerState
from sapm.training.seeds import rungs

# A checkpoint is due after this time, and after this multiple of the time that writing one takes.
CHECKPOINT_INTERVAL_SECONDS = 5.0
CHECKPOINT_INTERVAL_WRITES = 20


@dataclass(frozen=True)
class Session:
    """The surroundings of a run: its folder, its display and its devices.

    folder: the folder of the run, or None.
    progress: whether a progress bar is shown.
    on_record: the user's callback; the run ends where it returns True.
    mesh: the devices that share seeds and samples, or None.
    interrupted: whether Ctrl-C was pressed.
    """

    folder: files.Folder | None = None
    progress: bool = True
    on_record: Callable[[Progress], Any] | None = None
    mesh: Mesh | None = None
    interrupted: Callable[[], bool] = never


class Checkpoints:
    """An observer that writes checkpoints of a run at intervals.

    save: writes a run to the folder; its duration decides when the next checkpoint is due.
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
    """An observer that appends every record to history.jsonl."""

    folder: files.Folder

    def __call__(self, progress: Progress) -> None:
        if progress.recorded:
            self.folder.append(line(progress))


@dataclass(frozen=True)
class Callback:
    """An observer that shows every record to the user, whose True ends the run.

    on_record: the user's function of a `Progress`.
    result: gives the result of a run so far.
    """

    on_record: Callable[[Progress], Any]
    result: Callable[[Run], Result]

    def __call__(self, progress: Progress) -> bool:
        if not progress.recorded:
            return False
        answer = self.on_record(replace(progress, result=lambda: self.result(progress.run())))
        # True or an array of True: no other value, such as a number of bytes written, ends the run
        stop = np.asarray(answer)
        return stop.dtype == bool and bool(stop.size) and bool(stop.all())


def attempt(
    problem,
    samples: Samples,
    plan: Plan,
    session: Session,
    previous: Run | None = None,
    networks: Sequence[Weights] | None = None,
    advice: tuple[Advice, ...] = (),
    first_seconds: float | None = None,
) -> Result:
    """Train as planned.

    Parameters
    ----------
    problem : the problem; None in a run that is continued without it.
    samples : the points and data to begin with.
    plan : all settings, resolved.
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
        statements = tuple(a for a in previous.advice if a.kind != AdviceKind.OUTCOME)
        previous = replace(previous, cut="", advice=statements)
        seconds = None if seconds is None else seconds + previous.seconds
    sampler = sampler_of(problem, samples, plan, previous, seconds)
    scaling = plan.scaling(samples)
    held_out = None if samples.validation is None else scaling.term(samples.validation)

    def result(run: Run) -> Result:
        compared_run = compared(run, sampler.samples, plan)
        return Result(compared_run, sampler.samples, plan, problem)

    with _disk(problem, samples, plan, folder, previous) as disk:

        def save(run: Run) -> None:
            if folder is None:
                return
            if disk is not None:
                disk.files.sync()
            folder.save(folder.checkpoint, *to_file(run, sampler.samples, plan))
            if disk is not None:
                disk.files.hold(run.states)

        begin: Start | Run
        if previous is not None:
            whole = previous.kept is None or samples.validation is not None
            begin = previous if whole else at_last(previous)
        else:
            number = 1 if first_seconds is None else 2
            scaled = None if networks is None else [scaling.scaled(w) for w in networks]
            begin = _start(sampler.engine, plan, disk, scaled)
            begin = replace(begin, advice=advice, attempt=number)
        label = heading(plan) + (", a second attempt" if first_seconds is not None else "")
        at = 0 if previous is None else previous.iterations
        shown = session.progress and first_process()
        with Bar(label, plan.max_iter, seconds, shown, at) as bar:
            observers: list[Observer] = [bar]
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
        last = sampler.present(run)
        run = unless_interrupted(
            lambda: sampler.finish(run, save), lambda: last.interrupted(last.iterations)
        )

    def unranked() -> Result:
        cut = replace(run, cut=f"interrupted after {run.iterations} iterations.")
        return Result(cut, sampler.samples, plan, problem)

    return unless_interrupted(lambda: result(run), unranked)


def sampler_of(
    problem, samples: Samples, plan: Plan, previous: Run | None, seconds: float | None
) -> Fixed | Redrawn | Staged:
    """The sampler that chooses the points of a run. Parameters: see `attempt`.

    seconds: the budget of time including that of the previous run, or None.
    """
    if not plan.resample:
        return Fixed(samples, plan.engine(samples))
    known = problem if isinstance(problem, PDE) else None
    if plan.stages and previous is None and known is not None:
        return Staged.begin(known, plan, samples, seconds)
    state = SamplerState() if previous is None else previous.sampler
    redrawn = Redrawn(known, plan, samples, state, previous, seconds)
    return Staged(redrawn) if plan.stages else redrawn


def rules_of(plan: Plan, seconds: float | None) -> Rules:
    """The rules of the loop for a plan; `seconds`: the budget of time, or None."""
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


def _disk(problem, samples: Samples, plan: Plan, folder: files.Folder | None, previous: Run | None):
    """A context manager that gives the passes over data on disk, and None for data in memory."""
    if plan.chunk is None:
        return nullcontext()
    engine = plan.engine(samples)
    assert isinstance(engine, StreamedEngine)  # that of a plan with chunks
    source = streaming.Source(problem, plan.scaling(samples), plan.chunk)
    place = None if folder is None else folder.checkpoint.parent
    states = None if previous is None else previous.states
    aux = streaming.Files(place, len(plan.seeds), source, engine.widths[1:-1], states)
    return streaming.Passes(engine, source, aux)


@float64
def _start(
    engine: Engine, plan: Plan, disk: streaming.Passes | None, networks: Sequence[Any] | None
) -> Start:
    """A run before its first step, at random networks or at given ones (in units of training)."""
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
