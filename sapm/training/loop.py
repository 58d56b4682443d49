"""The one training loop, for every method.

`loop` advances the states of all seeds by a `Stepper` in short chunks. Between two chunks it
records the losses, ends seeds that have converged, stalled or failed, shows a `Progress` to the
observers, and checks whether to continue: budgets, observers, interrupts. At the iterations that
the `Sampler` names, the sampler changes the collocation points, and the run continues on these.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from sapm.errors import Advice
from sapm.methods.engine import Engine, SteppingEngine
from sapm.numerics.lstsq import SEEDS_AXIS
from sapm.objective.terms import Term
from sapm.objective.weights import bound
from sapm.scopes import float64, interrupt, never, unless_interrupted
from sapm.training.devices import Layout, agreed, anywhere
from sapm.training.run import Observer, Progress, Run, Status, ranking
from sapm.training.seeds import Group, Groups, room, seated, stepped

# The time of a compiled chunk; progress is shown and budgets are kept with this precision.
CHUNK_SECONDS = 0.5
# States of this size or more: every chunk copies them, which takes as long as a sweep, so that
# their chunks are longer.
LARGE_STATES_BYTES = 2**29
LARGE_STATES_CHUNK_SECONDS = 4.0
NEVER = 10**9  # iterations


@dataclass(frozen=True)
class Rules:
    """When losses are recorded, and when seeds and runs end.

    Parameters
    ----------
    iterations : steps in all.
    seconds : time in all; None: no limit.
    record_every : steps between two records; None: see `next_record`.
    stall, patience : a seed has stalled when its lowest loss fell by less than the fraction `stall`
        in the last `patience` iterations.
    rungs : {iteration: number of seeds that go on from there}, see `sapm.training.seeds.rungs`.
    """

    iterations: int
    seconds: float | None = None
    record_every: int | None = None
    stall: float = 1e-9
    patience: int = 1000
    rungs: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.iterations < 0 or (self.record_every is not None and self.record_every < 1):
            raise ValueError(
                f"iterations={self.iterations} must not be negative, and "
                f"record_every={self.record_every} must be at least 1."
            )


@dataclass(frozen=True)
class Start:
    """A run before its first step.

    Parameters
    ----------
    engine : the method for this problem.
    seeds : the seed numbers.
    states : the states they start from, a tree of arrays with a leading axis of seeds.
    advice, attempt : see `Run`.
    """

    engine: Engine
    seeds: tuple[int, ...]
    states: Any
    advice: tuple[Advice, ...] = ()
    attempt: int = 1


@dataclass(frozen=True)
class Step:
    """What an advance of the stepper gives.

    Parameters
    ----------
    groups : the states of all seeds.
    current : (quantities, seeds) the losses and diagnostics there.
    iterations : (seeds,) steps that each seed has taken since the start of the run.
    faults : {index of a seed: why it broke}; its state is the last finite one.
    """

    groups: Groups
    current: np.ndarray
    iterations: np.ndarray
    faults: Mapping[int, str]


class Stepper(Protocol):
    """Advances the states of all seeds, and measures them.

    engine: the engine that is stepped. validation: a term of data held out, or None. one_group:
    whether all seeds must stay in one group, also those that have stopped.
    """

    @property
    def engine(self) -> Engine: ...
    @property
    def validation(self) -> Term | None: ...
    @property
    def one_group(self) -> bool: ...
    def group(self, states: Any, kept: Any) -> Groups:
        """All seeds in one group; kept: states to keep beside those, or None."""
        ...

    def measure(self, groups: Groups, on: np.ndarray, current: np.ndarray) -> np.ndarray:
        """`current` with what is measured now of the seeds that are on."""
        ...

    def advance(self, before: Step, on: np.ndarray, most: int, seconds: float) -> Step:
        """Up to `most` steps of the seeds that are on, in about so many seconds."""
        ...


class Sampler(Protocol):
    """Chooses the points that a run is trained on, and the network that stands for a seed."""

    def next_visit(self, iteration: int) -> int | None:
        """The first iteration, this one included, at which `visit` is to be called; None: never."""
        ...

    def keeps_record(self, iteration: int) -> bool:
        """Whether the history needs a record at this iteration, at which a visit is or was."""
        ...

    def visit(self, run: Run, iteration: int) -> Run:
        """The run to go on with: as it is, with other points, or with `run.sampler.over`."""
        ...

    def present(self, run: Run) -> Run:
        """The run with the networks that stand for its seeds."""
        ...

    def finish(self, run: Run, save: Callable[[Run], None]) -> Run:
        """`present` at the end of the run, when its checkpoint has been saved by `save`."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The sampler that never changes the points: the last network stands for a seed.

    Parameters
    ----------
    samples, engine : the points, and the engine for them (for those who ask the sampler).
    """

    samples: Any = None
    engine: Any = None

    def next_visit(self, iteration: int) -> int | None:
        return None

    def keeps_record(self, iteration: int) -> bool:
        return False

    def visit(self, run: Run, iteration: int) -> Run:
        return run

    def present(self, run: Run) -> Run:
        return run

    def finish(self, run: Run, save: Callable[[Run], None]) -> Run:
        save(run)
        return run


# ---------------------------------------------------------------- pieces


@float64
def diagnostics_of(engine: Engine, states) -> list[str]:
    """The names of what an engine records beside the losses."""
    return sorted(
        jax.eval_shape(lambda s: engine.diagnostics(jax.tree.map(lambda x: x[0], s)), states)
    )


@jax.jit
def _start(engine: Engine, keys):
    return settled(jax.vmap(engine.init)(keys))


def settled(states):
    """The same arrays with definite types. Weak types, which only the first call would have, would
    compile the program twice.
    """
    return jax.tree.map(lambda x: lax.convert_element_type(x, x.dtype), states)


def keys_of(seeds: Sequence[int], key: int):
    """The random key of every seed: seed s draws from fold_in(key, s), whoever runs beside it."""
    return jax.vmap(lambda s: jax.random.fold_in(jax.random.key(key), s))(jnp.asarray(seeds))


@float64
def begun(engine: Engine, seeds: Sequence[int], key: int, states: Any = None) -> Start:
    """A run before its first step.

    Parameters
    ----------
    engine : the method for this problem.
    seeds : the seed numbers.
    key : seed s draws from fold_in(key, s).
    states : the states to start from, a tree of arrays with a row for each seed; None: random ones.
    """
    if not len(seeds):
        raise ValueError("seeds is empty; give a number of seeds (at least 1) or the seed numbers.")
    lengths = {len(x) for x in jax.tree.leaves(states)}
    if states is not None and lengths != {len(seeds)}:
        raise ValueError(
            f"initial has states for {sorted(lengths)} seeds, and seeds asks for {len(seeds)}; "
            "make them equal."
        )
    states = _start(engine, keys_of(seeds, key)) if states is None else settled(states)
    return Start(engine, tuple(seeds), states)


def _ratio(constant: float | None, loss: np.ndarray, true: np.ndarray) -> np.ndarray:
    """true / (bound × loss), with 0/0 = 1/bound; NaN without a bound."""
    if constant is None:
        return np.full(np.shape(loss), np.nan)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(loss == true, 1.0, true / loss) / constant


def next_record(done: int, every: int | None) -> int:
    """The next iteration with a record: a multiple of `every`; by default 1, 2, …, 100, 110, …,
    1000, 1100, …: two digits are enough.
    """
    unit = every or 10 ** max(0, math.floor(math.log10(max(done, 1))) - 1)
    return (done // unit + 1) * unit


class StallRule:
    """Tells which seeds have stalled: those whose lowest loss of the last `patience` iterations is
    not below (1 - stall) times their lowest loss of before. Either loss may fall, that which is
    minimised or the true one.
    """

    def __init__(self, stall: float, patience: int, seeds: int):
        self.stall = stall
        self.patience = patience
        self.old_records = 0  # records from before the last `patience` iterations
        self._lowest = np.full((2, seeds), np.inf)
        self._lowest_old = np.full((2, seeds), np.inf)
        self._recent: deque[tuple[int, np.ndarray]] = deque()

    def add(self, iteration: int, losses: np.ndarray) -> None:
        """A record: (2, seeds) losses at this iteration."""
        self._lowest = np.minimum(self._lowest, losses)
        self._recent.append((iteration, losses))

    def stalled(self, iteration: int) -> np.ndarray:
        """(seeds,) Whether a seed has stalled by this iteration."""
        while self._recent and self._recent[0][0] <= iteration - self.patience:
            self._lowest_old = np.minimum(self._lowest_old, self._recent.popleft()[1])
            self.old_records += 1
        if not self.old_records:
            return np.zeros(self._lowest.shape[1], bool)
        with np.errstate(invalid="ignore"):
            return ~np.any(self._lowest < self._lowest_old * (1 - self.stall), axis=0)


# ---------------------------------------------------------------- steps of data in memory


def _finite(tree) -> bool:
    return all(bool(jnp.all(jnp.isfinite(x))) for x in jax.tree.leaves(tree))


def find_fault(engine: SteppingEngine, state, done: int, steps: int) -> tuple[Any, int, str]:
    """Replay one seed from a good state, step by step: its last finite state, how many steps that
    has taken, and which block of the step broke.
    """

    def alone(of):
        """A part of the engine for one seed. (The engine is an argument: its arrays may lie in
        several processes.)
        """
        call = jax.jit(
            lambda m, s: jax.tree.map(lambda x: x[0], jax.vmap(of(m), axis_name=SEEDS_AXIS)(s))
        )
        return lambda s: call(engine, jax.tree.map(lambda x: x[None], s))

    step = alone(lambda m: m.step)
    losses = alone(lambda m: m.losses)
    for k in range(done + 1, done + steps + 1):
        new = step(state)
        if not (_finite(new) and _finite(losses(new))):
            part = state
            for j, (name, _) in enumerate(engine.blocks()):
                part = alone(lambda m, j=j: m.blocks()[j][1])(part)
                if not _finite(part):
                    return state, k - 1, f"non-finite numbers came from {name} in iteration {k}."
            return state, k - 1, f"the loss overflowed in iteration {k}."
        state = new
    why = f"non-finite numbers appeared between iterations {done} and {done + steps}."
    return state, done + steps, why


class Chunks:
    """The stepper for data in memory: compiled chunks of as many steps as fit into the time.

    Parameters
    ----------
    engine : the method for this problem.
    seeds : how many.
    validation : a term of data held out, or None.
    mesh : the devices that share the seeds and the samples, or None.
    """

    def __init__(
        self,
        engine: Engine,
        seeds: int,
        validation: Term | None = None,
        mesh: Mesh | None = None,
    ):
        if not isinstance(engine, SteppingEngine):
            raise TypeError(
                f"engine {type(engine).__name__}: got no step(state) or no blocks(), expected both;"
                " see sapm.methods.engine.SteppingEngine."
            )
        self._layout = None if mesh is None else Layout.of(engine, seeds, mesh)
        layout = self._layout
        self.engine = engine if layout is None else layout.method(engine)
        self.validation = validation if layout is None else layout.copied(validation)
        self.one_group = layout is not None
        self._chunk_seconds = CHUNK_SECONDS
        # seconds per step of all seeds; unknown until the first chunk has been compiled
        self._pace: float | None = None

    def group(self, states: Any, kept: Any) -> Groups:
        if self._layout is not None:
            states = self._layout.divided(states)
            kept = None if kept is None else self._layout.divided(kept)
        if sum(x.nbytes for x in jax.tree.leaves(states)) >= LARGE_STATES_BYTES:
            self._chunk_seconds = LARGE_STATES_CHUNK_SECONDS
        count = len(jax.tree.leaves(states)[0])
        return Groups((Group(np.arange(count), states, kept),), layout=self._layout)

    def measure(self, groups: Groups, on: np.ndarray, current: np.ndarray) -> np.ndarray:
        return stepped(self.engine, groups, self.validation, 0, on, current)[1]

    def advance(self, before: Step, on: np.ndarray, most: int, seconds: float) -> Step:
        seconds = min(self._chunk_seconds, seconds)
        steps = min(most, 1 if self._pace is None else max(1, int(seconds / self._pace)))
        steps = int(agreed(steps)[0])
        clock = time.perf_counter()
        groups, current = stepped(
            self.engine, before.groups, self.validation, steps, on, before.current
        )
        elapsed = time.perf_counter() - clock
        first = self._pace is None  # most of it was compilation
        self._pace = (min(elapsed, self._chunk_seconds / 4) if first else elapsed) / steps
        broken = on & ~np.isfinite(current[0])
        iterations = before.iterations + steps * (on & ~broken)
        faults = {}
        for i in np.flatnonzero(broken).tolist():
            state, iterations[i], faults[i] = find_fault(
                self.engine, before.groups.state(i), int(before.iterations[i]), steps
            )
            groups = groups.put(i, state)
        if faults:
            current = self.measure(groups, broken, current)
        return Step(groups, current, iterations, faults)


# ---------------------------------------------------------------- the run in the making


@dataclass(frozen=True)
class _Mark:
    """All that `Training.run` needs, of one moment between two chunks."""

    records: int
    seconds: float
    step: Step
    active: np.ndarray
    status: tuple[Status, ...]
    reason: tuple[str, ...]
    chosen: np.ndarray


class Training:
    """The moving parts of `loop` between two visits of the sampler."""

    def __init__(
        self,
        begin: Start | Run,
        stepper: Stepper,
        rules: Rules,
        marks: Iterable[int] = (),
    ):
        previous = begin if isinstance(begin, Run) else None
        self.stepper = stepper
        self.rules = rules
        # iterations with a record beside those of `next_record`
        self.marks = frozenset((*rules.rungs, *marks))
        self.began = time.perf_counter()
        self.engine = begin.method if isinstance(begin, Run) else begin.engine
        self.seeds = begin.seeds
        self.origin = begin
        count = len(self.seeds)
        kept = None
        if stepper.validation is not None:
            kept = begin.states if previous is None else previous.kept
        groups = stepper.group(begin.states, kept)
        self.names = ["iteration", "seconds", "loss", "mean_squared_loss"]
        self.names += ["validation_loss"] * (stepper.validation is not None)
        self.diagnostics = diagnostics_of(stepper.engine, groups.running[0].states)
        self.names += self.diagnostics
        self.bound = bound(self.engine.objective, self.engine.sigma)[0]
        self.room = room(count, self.engine.seed_bytes, stepper.one_group)
        self.stopped = np.full(count, np.inf)  # in which iteration a seed stopped
        self.stall = StallRule(rules.stall, rules.patience, count)
        self.active = np.ones(count, bool)
        self.chosen = np.zeros(count, int)
        self.records: list[tuple] = []
        if previous is None:
            self.status = [Status.FINISHED] * count
            self.reason = [""] * count
            unknown = np.full((len(self.names) - 2, count), np.nan)
            self.step = Step(groups, unknown, np.zeros(count, int), {})
            self.regroup(0)
            current = stepper.measure(self.step.groups, self.active, unknown)
            self.step = replace(self.step, current=current)
            for i in np.flatnonzero(~np.isfinite(current[0])).tolist():
                self.stop(i, Status.NON_FINITE, "the loss of the starting point is not finite.")
            self.record()
        else:
            self._continue(previous, groups)
        self.mark()

    def _continue(self, previous: Run, groups: Groups) -> None:
        self.status = list(previous.status)
        self.reason = list(previous.reason)
        history = [previous.history[name].T for name in self.names]
        self.records = list(zip(*history, strict=True))
        iterations, seconds, *current = self.records[-1]
        self.step = Step(groups, np.array(current), iterations.copy(), {})
        self.active = np.array([not status.over for status in self.status])
        for i in np.flatnonzero(~self.active).tolist():
            self.stop(i, self.status[i], self.reason[i])
        self.began -= float(seconds.max())
        if self.active.any() and not self.on_grid(self.iteration):
            self.records.pop()  # a run that had not stopped here would have no such record
        if self.active.any():
            for record in self.records:
                self.stall.add(int(record[0][self.active][0]), np.array(record[2:4]))
        self.regroup(int(self.records[-1][0].max()))
        self.chosen = np.minimum(previous.chosen, len(self.records) - 1)
        for i in np.flatnonzero(self.active).tolist():
            self.status[i], self.reason[i] = Status.FINISHED, ""

    @property
    def iteration(self) -> int:
        """Steps taken by the seeds that still run."""
        done = self.step.iterations
        return int(done[self.active][0] if self.active.any() else done.max())

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def next_stop(self, done: int) -> int:
        """The next iteration with a record."""
        marks = (at for at in self.marks if at > done)
        return min([next_record(done, self.rules.record_every), *marks])

    def on_grid(self, done: int) -> bool:
        """Whether a run that is never cut has a record at this iteration."""
        return done == 0 or self.next_stop(done - 1) == done

    # ---------------------------------------------------------------- changes

    def stop(self, i: int, status: Status, why: str) -> None:
        """End seed i. A seed that broke keeps its place until the next record, whenever that was
        noticed: groups do not depend on the clock.
        """
        self.active[i], self.status[i], self.reason[i] = False, status, why
        done = int(self.step.iterations[i])
        self.stopped[i] = self.next_stop(done) if status == Status.NON_FINITE else done

    def close(self, status: Status, why: str) -> None:
        """Give all seeds that still run this status."""
        for i in np.flatnonzero(self.active).tolist():
            self.status[i], self.reason[i] = status, why

    def regroup(self, now: int) -> None:
        """At a record: the seeds that run, in fewer groups if these have room for them."""
        if self.active.any():
            seats = seated(np.where(self.stopped <= now, self.stopped, np.inf), self.room)
            self.step = replace(self.step, groups=self.step.groups.split(seats, self.room))

    def record(self) -> None:
        """Add a record to the history; with validation data keep the states that fit them best."""
        current = self.step.current
        seconds = np.full(len(self.seeds), self.seconds)
        self.records.append((self.step.iterations.copy(), seconds, *current))
        self.stall.add(self.iteration, current[:2])
        if self.stepper.validation is None:
            self.chosen = np.full(len(self.seeds), len(self.records) - 1)
            return
        if not self.on_grid(self.iteration):
            return  # a run that is never cut has no such record, so it cannot be the one to keep
        better = current[2] < self.validation_losses()
        self.chosen = np.where(better, len(self.records) - 1, self.chosen)
        self.step = replace(self.step, groups=self.step.groups.keep(better))

    def validation_losses(self) -> np.ndarray:
        """(seeds,) The loss on the validation data of the states that are kept."""
        return np.array([self.records[j][4][i] for i, j in enumerate(self.chosen)])

    def advance(self, most: int, seconds: float) -> None:
        """One chunk of steps; a seed that breaks is stopped at its last finite state."""
        self.step = self.stepper.advance(self.step, self.active.copy(), most, seconds)
        for i, why in self.step.faults.items():
            self.stop(i, Status.NON_FINITE, why)

    def judge(self, goal: int) -> None:
        """At a record: end the seeds that have converged, stalled, or are dropped."""
        if self.active.any() and self.on_grid(goal):
            self.stop_settled()
        if self.active.any() and self.on_grid(goal):
            self.stop_stalled()
        if self.active.any() and goal in self.rules.rungs:
            self.drop(self.rules.rungs[goal])
        if self.on_grid(goal):
            self.regroup(goal)

    def stop_settled(self) -> None:
        """End the seeds whose engine has nothing left to gain."""
        first = len(self.names) - 2 - len(self.diagnostics)
        for i in np.flatnonzero(self.active).tolist():
            values = {
                name: float(self.step.current[first + k, i])
                for k, name in enumerate(self.diagnostics)
            }
            if why := self.engine.settled(values):
                why = f"{why} after {self.step.iterations[i]} iterations."
                self.stop(i, Status.CONVERGED, why)

    def stop_stalled(self) -> None:
        """End the seeds that have stalled. Only records of the grid count, so that a run that is
        cut into pieces stops where one that is not does.
        """
        now = self.iteration
        stalled = self.stall.stalled(now)
        if not self.stall.old_records:
            return
        patience = self.rules.patience
        for i in np.flatnonzero(self.active).tolist():
            if stalled[i]:
                why = (
                    f"the loss fell by less than a fraction {self.rules.stall:g} "
                    f"in the last {patience} of {now} iterations."
                )
            elif self.stepper.validation is not None and self.chosen[i] < self.stall.old_records:
                why = (
                    "the loss on the validation data did not fall "
                    f"in the last {patience} of {now} iterations."
                )
            else:
                continue
            self.stop(i, Status.STALLED, why)

    def drop(self, places: int) -> None:
        """End the seeds that are not among the best `places`, by the loss that `Run.ranking` goes
        by; but by the true loss where some seeds are in a lifted phase and others behind it, since
        their losses are of different kinds."""
        name = "loss"
        value = self.step.current[0]
        if self.stepper.validation is not None:
            name = "loss on the validation data"
            value = self.validation_losses()
        elif "phase" in self.diagnostics:
            phase = self.step.current[self.names.index("phase") - 2]
            ranked = np.array([not status.lost for status in self.status])
            if len(np.unique(np.minimum(phase[ranked], 1))) > 1:
                name = "true loss"
                value = self.step.current[1]
        now = self.iteration
        for rank, i in enumerate(ranking(self.status, value).tolist(), 1):
            if rank > places and self.active[i]:
                why = (
                    f"its {name} {value[i]:.2e} was number {rank} after {now} iterations, "
                    f"and the best {places} went on."
                )
                self.stop(i, Status.DROPPED, why)

    # ---------------------------------------------------------------- views

    def mark(self) -> None:
        """Remember this moment, in one assignment: an interrupt may come anywhere after it."""
        self.marked = _Mark(
            len(self.records),
            self.seconds,
            self.step,
            self.active.copy(),
            tuple(self.status),
            tuple(self.reason),
            self.chosen,
        )

    @float64
    def run(self, mark: _Mark) -> Run:
        """The run as it was at a mark. Between two records, one more is added for the states that
        it has there.
        """
        records = self.records[: mark.records]
        chosen = mark.chosen
        done = mark.step.iterations
        count = len(self.seeds)
        if np.any(done != records[-1][0]):
            records.append((done, np.full(count, mark.seconds), *mark.step.current))
            if self.stepper.validation is None:
                chosen = np.full(count, mark.records)
        history = {
            name: np.stack([record[j] for record in records], axis=1)
            for j, name in enumerate(self.names)
        }
        history["bound_ratio"] = _ratio(self.bound, history["loss"], history["mean_squared_loss"])
        status = list(mark.status)
        reason = list(mark.reason)
        for i in np.flatnonzero(mark.active).tolist():
            if not reason[i]:
                status[i] = Status.RUNNING
                reason[i] = f"not finished: {done[i]} iterations so far."
        states, kept = mark.step.groups.whole()
        origin = self.origin
        run = Run(
            self.engine,
            self.seeds,
            states,
            history,
            tuple(status),
            tuple(reason),
            chosen.copy(),
            kept,
            advice=origin.advice,
            attempt=origin.attempt,
        )
        return replace(run, sampler=origin.sampler) if isinstance(origin, Run) else run

    def progress(self, recorded: bool, sampler: Sampler) -> Progress:
        """This moment for the observers."""
        loss, true = self.step.current[:2].copy()
        mark = self.marked

        def run_so_far() -> Run:
            return sampler.present(self.run(mark))

        ratio = _ratio(self.bound, loss, true)
        return Progress(
            self.iteration, self.seconds, loss, true, ratio, recorded, run_so_far, run_so_far
        )


# ---------------------------------------------------------------- the loop


@float64
def loop(
    begin: Start | Run,
    rules: Rules,
    stepping: Callable[[Engine], Stepper],
    observers: Sequence[Observer] = (),
    sampler: Sampler | None = None,
    interrupted: Callable[[], bool] = never,
    spent: float = 0.0,
) -> Run:
    """Train all seeds until they end or a budget does.

    Parameters
    ----------
    begin : the start of a run, or a run to continue: then the numbers are those of a run that was
        never cut, bit for bit.
    rules : when losses are recorded and what ends the run.
    stepping : gives the stepper for an engine.
    observers : see every `Progress`; the run ends where one of them returns True.
    sampler : changes the points; None: they are fixed.
    interrupted : whether Ctrl-C was pressed, see `sapm.scopes`.
    spent : seconds that have gone by and count.
    """
    course = _Course(begin, rules, stepping, observers, sampler or Fixed(), interrupted, spent)
    return unless_interrupted(course.train, course.cut)


class _Course:
    """A run on its way through the visits of the sampler; the parameters are those of `loop`."""

    def __init__(
        self,
        begin: Start | Run,
        rules: Rules,
        stepping: Callable[[Engine], Stepper],
        observers: Sequence[Observer],
        sampler: Sampler,
        interrupted: Callable[[], bool],
        spent: float,
    ):
        self.begin = begin
        self.rules = rules
        self.stepping = stepping
        self.observers = observers
        self.sampler = sampler
        self.interrupted = interrupted
        self.clock = time.perf_counter()
        self.spent = spent
        self.run = begin if isinstance(begin, Run) else None  # as of the last visit
        self.at = 0 if self.run is None else max(self.run.iterations, self.run.sampler.visited)
        self.training: Training | None = None  # since the last visit

    def train(self) -> Run:
        """Train from visit to visit, until all seeds or a budget end."""
        rules = self.rules
        sampler = self.sampler
        while True:
            if self.run is not None and anywhere(self.interrupted()):
                return self.run.interrupted(self.at)
            due = self.at < rules.iterations and sampler.next_visit(self.at) == self.at
            if self.run is not None and due:
                self.training = None
                self.run = sampler.visit(self.run, self.at)
                if self.run.sampler.over:
                    return self.run
            visit = sampler.next_visit(self.at + 1)
            goal = rules.iterations if visit is None else min(rules.iterations, visit)
            marks = [k for k in (self.at, goal) if sampler.keeps_record(k)]
            source = self.begin if self.run is None else self.run
            engine = source.method if isinstance(source, Run) else source.engine
            # while points are redrawn, the residual at fresh points tells whether to go on
            stalls = rules if visit is None else replace(rules, patience=NEVER)
            waited = self.spent + time.perf_counter() - self.clock
            self.training = Training(source, self.stepping(engine), stalls, marks)
            self.training.began -= waited
            self.run = _follow(self.training, goal, self.observers, sampler, self.interrupted)
            self.at = goal
            over = self.run.ended(Status.OUT_OF_TIME, Status.STOPPED) or self.run.lost.all()
            if self.at >= rules.iterations or over or self.run.cut:
                return self.run
            self.clock = time.perf_counter()
            self.spent = 0.0

    def cut(self) -> Run:
        """The run so far, where a second Ctrl-C, or one that an observer raised, cut it off."""
        if self.training is not None:
            run = self.training.run(self.training.marked)
            return run.interrupted(run.iterations)
        if self.run is None:
            interrupt("interrupted before the first step")
        return self.run.interrupted(self.at)


def _follow(
    training: Training,
    goal: int,
    observers: Sequence[Observer],
    sampler: Sampler,
    interrupted: Callable[[], bool],
) -> Run:
    """Advance to the iteration `goal`, or to the end of all seeds or of the time."""
    seconds = training.rules.seconds
    first_seconds = float(training.records[0][1].max())  # most of it is compilation
    cut = ""

    def show(recorded: bool) -> bool:
        progress = training.progress(recorded, sampler)
        answers = [bool(observer(progress)) for observer in observers]  # all of them see it
        return any(answers)

    stop = show(isinstance(training.origin, Start))
    while training.active.any() and training.iteration < goal:
        at = training.iteration
        if anywhere(interrupted()):
            cut = f"interrupted after {at} iterations."
            training.close(Status.INTERRUPTED, cut)
            break
        seconds_left = math.inf if seconds is None else seconds - training.seconds
        stop, seconds_left = agreed(stop, seconds_left)
        if stop:
            break
        if seconds_left <= 0:
            before = (
                f"; {first_seconds:.3g} s had gone by before the first step"
                if first_seconds > 0.5 * (seconds or np.inf)
                else ""
            )
            why = f"the time was up ({seconds:.4g} s in all{before}) after {at} iterations."
            training.close(Status.OUT_OF_TIME, why)
            break
        record_at = min(training.next_stop(at), goal)
        training.advance(record_at - at, seconds_left)
        recorded = training.iteration == record_at or not training.active.any()
        if recorded:
            training.record()
            training.judge(record_at)
        training.mark()
        stop = show(recorded)
    if not cut and agreed(bool(stop))[0]:
        why = f"stopped by the callback after {training.iteration} iterations."
        training.close(Status.STOPPED, why)
    if np.any(training.step.iterations != training.records[-1][0]):
        training.record()
    for i, status in enumerate(training.status):
        if status == Status.FINISHED:
            training.reason[i] = f"ran all {goal} iterations."
    training.mark()
    return replace(training.run(training.marked), cut=cut)


def train(
    engine: Engine,
    iterations: int,
    seeds: int | Iterable[int] = 10,
    key: int = 0,
    *,
    initial: Any = None,
    validation: Term | None = None,
    mesh: Mesh | None = None,
    **rules,
) -> Run:
    """A run of an engine alone, with data in memory and fixed points.

    Parameters
    ----------
    iterations : steps of every seed.
    seeds, key : how many seeds or which; seed s draws from fold_in(key, s).
    initial : states to start from, in place of those drawn.
    validation : a term of data held out.
    mesh : the devices that share the seeds and the samples.
    rules : fields of `Rules`.
    """
    numbers = tuple(int(s) for s in (range(seeds) if isinstance(seeds, int) else seeds))
    budget = Rules(iterations, **rules)

    def stepping(engine: Engine) -> Chunks:
        return Chunks(engine, len(numbers), validation, mesh)

    return loop(begun(engine, numbers, key, initial), budget, stepping)
