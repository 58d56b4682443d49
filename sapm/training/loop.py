"""The one training loop, for every method.

`loop` advances the states of all seeds by a `Stepper` in short chunks. Between two chunks it
records the losses, ends seeds that have converged, stalled or failed, and shows a `Progress` to the
observers. Then it checks whether a budget, an observer or an interrupt ends the run. A `Sampler`
names the iterations at which it visits the run. There it may change the collocation points, and
training continues at the new points.

The *grid* is the set of iterations at which an uninterrupted run has a record. A run that ends
between two of them has one more record, at its end. Seeds converge, stall and are dropped on the
grid only, so that a continued run makes the same decisions as an uninterrupted one.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from sapm.errors import Advice
from sapm.methods.engine import Engine, SteppingEngine
from sapm.numerics.lstsq import VMAP_SEEDS_AXIS
from sapm.objective.terms import Term
from sapm.objective.weights import bound
from sapm.problem.samples import Samples
from sapm.scopes import float64, interrupt, never, unless_interrupted
from sapm.training.devices import Layout, agreed, anywhere
from sapm.training.run import Observer, Progress, Run, Status, interrupted_after, ranking
from sapm.training.seeds import Group, Groups, room, seated, stepped

# The time that a compiled chunk should take. Progress is shown, and budgets are kept, with this
# precision.
CHUNK_SECONDS = 0.5
# Every chunk copies the states. For states of this size or more the copy takes as long as a sweep,
# so their chunks are longer.
LARGE_STATES_BYTES = 2**29
LARGE_STATES_CHUNK_SECONDS = 4.0
NEVER = 10**9  # iterations: more than any run has
ENGINE_MEMBERS = tuple(
    name
    for kind in (Engine, SteppingEngine)
    for name in (*kind.__annotations__, *vars(kind))
    if not name.startswith("_")
)


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
    rungs : {iteration: number of seeds that run on from there}, see `sapm.training.seeds.rungs`.
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
                f"Rules: got iterations={self.iterations} and record_every={self.record_every}, "
                "expected iterations of at least 0 and record_every of at least 1, or None; change "
                "the value that is too small."
            )


@dataclass(frozen=True)
class Start:
    """A run before its first step.

    Parameters
    ----------
    engine : the engine of the method, for this problem.
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
    """The states of all seeds after some steps: what `Stepper.advance` returns.

    Parameters
    ----------
    groups : the states of all seeds.
    current : (quantities, seeds) the losses and diagnostics of these states.
    iterations : (seeds,) steps that each seed has taken since the start of the run.
    faults : {index of a seed: why it failed}, for the seeds that failed in these steps. The state
        of such a seed is its last finite one.
    """

    groups: Groups
    current: np.ndarray
    iterations: np.ndarray
    faults: Mapping[int, str]


class Stepper(Protocol):
    """Advances the states of all seeds, and measures their losses and diagnostics.

    Parameters
    ----------
    engine : the engine whose steps are taken.
    validation : a term of held-out data, or None.
    one_group : whether all seeds stay in one group, stopped seeds included.
    """

    @property
    def engine(self) -> Engine: ...
    @property
    def validation(self) -> Term | None: ...
    @property
    def one_group(self) -> bool: ...
    def group(self, states: Any, kept: Any) -> Groups:
        """All seeds in one group.

        Parameters
        ----------
        states : the states, a tree of arrays with a leading axis of seeds.
        kept : the states with the smallest validation loss so far, in the same form; or None.
        """
        ...

    def measure(self, groups: Groups, on: np.ndarray, current: np.ndarray) -> np.ndarray:
        """(quantities, seeds) The losses and diagnostics. They are measured anew for the seeds that
        are `on`, and taken from `current` for the others.

        Parameters
        ----------
        groups : the states of all seeds.
        on : (seeds,) which seeds are measured.
        current : (quantities, seeds) what was measured before.
        """
        ...

    def advance(self, before: Step, on: np.ndarray, most: int, seconds: float) -> Step:
        """Take steps with the seeds that are `on`.

        Parameters
        ----------
        before : the states before these steps.
        on : (seeds,) which seeds take steps.
        most : the largest number of steps.
        seconds : the time that the steps should take.
        """
        ...


class Sampler(Protocol):
    """Chooses the points that a run is trained on, and the network that represents each seed."""

    @property
    def samples(self) -> Samples:
        """The points at present, with the data."""
        ...

    @property
    def engine(self) -> Engine:
        """The engine of the method at these points."""
        ...

    def next_visit(self, iteration: int) -> int | None:
        """The first iteration, not before the given one, at which `visit` must be called; None if
        there is none.
        """
        ...

    def keeps_record(self, iteration: int) -> bool:
        """Whether the history must have a record at this iteration, because of a visit there."""
        ...

    def visit(self, run: Run, iteration: int) -> Run:
        """The run to continue: unchanged, or with other points. If its `sampler_state.over` is set,
        the run has ended.
        """
        ...

    def present(self, run: Run) -> Run:
        """The run, in which each seed is represented by the network that the sampler chose."""
        ...

    def finish(self, run: Run, save: Callable[[Run], None]) -> Run:
        """The same as `present`, for a run that has ended; `save` writes a checkpoint of a run."""
        ...


@dataclass(frozen=True)
class Fixed:
    """The sampler that never changes the points. Each seed is represented by its last network.

    Parameters
    ----------
    samples, engine : the points, and the engine for them.
    """

    samples: Samples
    engine: Engine

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
    """The sorted names of the diagnostics that an engine records in addition to the losses.

    Parameters
    ----------
    engine : the engine of the method, for this problem.
    states : its states, a tree of arrays with a leading axis of seeds.
    """
    return sorted(
        jax.eval_shape(lambda s: engine.diagnostics(jax.tree.map(lambda x: x[0], s)), states)
    )


@jax.jit
def initial_states(engine: Engine, keys):
    """The states that an engine begins with. Engines of equal shapes are traced once.

    Parameters
    ----------
    engine : the engine.
    keys : (seeds,) the random key of every seed.
    """
    return without_weak_types(jax.vmap(engine.init)(keys))


def without_weak_types(states):
    """The same arrays without JAX's weak types. Only the states of the first call would have these,
    so the program would be compiled twice.

    Parameters
    ----------
    states : a tree of arrays.
    """
    return jax.tree.map(lambda x: lax.convert_element_type(x, x.dtype), states)


def keys_of(seeds: Sequence[int], key: int):
    """The random keys of the seeds: that of seed s is fold_in(key, s), whichever other seeds run.

    Parameters
    ----------
    seeds : the seed numbers.
    key : the number that all random choices follow from.
    """
    return jax.vmap(lambda s: jax.random.fold_in(jax.random.key(key), s))(jnp.asarray(seeds))


@float64
def begun(engine: Engine, seeds: Sequence[int], key: int, states: Any = None) -> Start:
    """A run before its first step.

    Parameters
    ----------
    engine : the engine of the method, for this problem.
    seeds : the seed numbers.
    key : seed s draws from fold_in(key, s).
    states : the states to start from, a tree of arrays with a row for each seed; None: random ones.
    """
    if not len(seeds):
        raise ValueError(
            "seeds: got none, expected at least one; give a number of seeds, or the seed numbers."
        )
    lengths = {len(x) for x in jax.tree.leaves(states)}
    if states is not None and lengths != {len(seeds)}:
        raise ValueError(
            f"initial: got states of {', '.join(map(str, sorted(lengths)))} seeds, expected "
            f"{len(seeds)}, the number of seeds; give a state for each seed."
        )
    if states is None:
        states = initial_states(engine, keys_of(seeds, key))
    else:
        states = without_weak_types(states)
    return Start(engine, tuple(seeds), states)


def _ratio(constant: float | None, loss: np.ndarray, true: np.ndarray) -> np.ndarray:
    """true / (bound × loss), with 0/0 = 1/bound; NaN without a bound."""
    if constant is None:
        return np.full(np.shape(loss), np.nan)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(loss == true, 1.0, true / loss) / constant


def next_record(done: int, every: int | None) -> int:
    """The next iteration with a record.

    Parameters
    ----------
    done : the present iteration.
    every : records are at the multiples of this number; None: at 1, 2, …, 100, 110, …, 1000, 1100,
        …, the numbers with at most two significant digits.
    """
    unit = every or 10 ** max(0, math.floor(math.log10(max(done, 1))) - 1)
    return (done // unit + 1) * unit


class StallRule:
    """Tells which seeds have stalled.

    A loss stalls when its lowest value in the last `patience` iterations is not below (1 - stall)
    times its lowest value before them. A seed has stalled when both of its losses have: the loss
    that is minimised, and the true loss.

    Parameters
    ----------
    stall, patience : see above.
    seeds : the number of seeds.
    """

    def __init__(self, stall: float, patience: int, seeds: int):
        self.stall = stall
        self.patience = patience
        self.old_records = 0  # records from before the last `patience` iterations
        self._lowest = np.full((2, seeds), np.inf)
        self._lowest_old = np.full((2, seeds), np.inf)
        self._recent: deque[tuple[int, np.ndarray]] = deque()

    def add(self, iteration: int, losses: np.ndarray) -> None:
        """Add a record: the (2, seeds) losses at this iteration."""
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
    """Find where one seed became non-finite, by replaying its steps one at a time.

    Returns its last finite state, the iteration of that state, and a sentence that names the block
    of the step that gave the first non-finite number.

    Parameters
    ----------
    engine : the engine of the method, for this problem.
    state : a finite state of the seed.
    done : the iteration of that state.
    steps : the number of steps to replay.
    """

    def alone(of):
        """of(engine), a function of one state, compiled. The engine is an argument of the compiled
        function, since its arrays may lie in several processes.
        """
        call = jax.jit(
            lambda m, s: jax.tree.map(lambda x: x[0], jax.vmap(of(m), axis_name=VMAP_SEEDS_AXIS)(s))
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
    """The stepper for data in memory. A compiled chunk has as many steps as fit into its time.

    Parameters
    ----------
    engine : the engine of the method, for this problem.
    seeds : the number of seeds.
    validation : a term of held-out data, or None.
    mesh : the devices that share the seeds and the samples, or None.
    """

    def __init__(
        self,
        engine: Engine,
        seeds: int,
        validation: Term | None = None,
        mesh: Mesh | None = None,
    ):
        missing = sorted(name for name in ENGINE_MEMBERS if not hasattr(engine, name))
        if missing:
            raise TypeError(
                f"engine {type(engine).__name__}: got no {', '.join(missing)}, expected all members"
                " of sapm.methods.engine.SteppingEngine; inherit from OnePhase there, which has "
                "most of them."
            )
        assert isinstance(engine, SteppingEngine)
        self._layout = None if mesh is None else Layout.of(engine, seeds, mesh)
        layout = self._layout
        self.engine = engine if layout is None else layout.engine(engine)
        self.validation = validation if layout is None else layout.copied(validation)
        self.one_group = layout is not None
        self._chunk_seconds = CHUNK_SECONDS
        # seconds that one step of all seeds takes; None before the first chunk
        self._seconds_per_step: float | None = None

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
        first = self._seconds_per_step is None
        fitting = 1 if self._seconds_per_step is None else int(seconds / self._seconds_per_step)
        steps = min(most, max(1, fitting))
        steps = int(agreed(steps)[0])
        clock = time.perf_counter()
        groups, current = stepped(
            self.engine, before.groups, self.validation, steps, on, before.current
        )
        elapsed = time.perf_counter() - clock
        # most of the time of the first chunk is compilation, so that it is no measure of a step
        measured = min(elapsed, self._chunk_seconds / 4) if first else elapsed
        self._seconds_per_step = measured / steps
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


# ---------------------------------------------------------------- a run in progress


@dataclass(frozen=True)
class _Snapshot:
    """A training at one moment between two chunks: all that `Training.run` needs.

    Parameters
    ----------
    records : the number of records so far. The other fields are those of `Training`.
    """

    records: int
    seconds: float
    step: Step
    active: np.ndarray
    status: tuple[Status, ...]
    reason: tuple[str, ...]
    chosen: np.ndarray


class Training:
    """The training of all seeds from one visit of the sampler to the next. It holds their states,
    records and status, and the rules that end them.

    Parameters
    ----------
    begin : the start of a new run, or a run to continue.
    stepper : takes the steps.
    rules : when losses are recorded, and when seeds end.
    extra_records : iterations with a record in addition to those of `next_record`.
    """

    def __init__(
        self,
        begin: Start | Run,
        stepper: Stepper,
        rules: Rules,
        extra_records: Iterable[int] = (),
    ):
        previous = begin if isinstance(begin, Run) else None
        self.stepper = stepper
        self.rules = rules
        self.extra_records = frozenset((*rules.rungs, *extra_records))
        self.began = time.perf_counter()
        self.engine = begin.engine
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
        network = jax.eval_shape(
            lambda states: self.engine.network(jax.tree.map(lambda x: x[0], states)), begin.states
        )
        self.bound = bound(self.engine.objective, self.engine.sigma, network=network)[0]
        self.room = room(count, self.engine.seed_bytes, stepper.one_group)
        self.ended_at = np.full(count, np.inf)  # the iteration at which each seed ended
        self.stall = StallRule(rules.stall, rules.patience, count)
        self.active = np.ones(count, bool)
        self.chosen = np.zeros(count, int)
        self.records: list[tuple] = []
        if previous is None:
            self.status = [Status.RUNNING] * count
            self.reason = [""] * count
            unknown = np.full((len(self.names) - 2, count), np.nan)
            self.step = Step(groups, unknown, np.zeros(count, int), {})
            self.regroup(0)
            current = stepper.measure(self.step.groups, self.active, unknown)
            self.step = replace(self.step, current=current)
            for i in np.flatnonzero(~np.isfinite(current[0])).tolist():
                self.end_seed(i, Status.NON_FINITE, "the loss of the starting point is not finite.")
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
            self.end_seed(i, self.status[i], self.reason[i])
        self.began -= float(seconds.max())
        if self.active.any() and not self.on_grid(self.iteration):
            self.records.pop()  # an uninterrupted run has no record at this iteration
        if self.active.any():
            for record in self.records:
                self.stall.add(int(record[0][self.active][0]), np.array(record[2:4]))
        self.regroup(int(self.records[-1][0].max()))
        self.chosen = np.minimum(previous.chosen, len(self.records) - 1)
        for i in np.flatnonzero(self.active).tolist():
            self.status[i] = Status.RUNNING
            self.reason[i] = ""

    @property
    def iteration(self) -> int:
        """Steps taken by the seeds that still run; if none does, by those that ran the longest."""
        done = self.step.iterations
        return int(done[self.active][0] if self.active.any() else done.max())

    @property
    def seconds(self) -> float:
        """The time since the start of the run, which counts the time of earlier calls too."""
        return time.perf_counter() - self.began

    def record_after(self, done: int) -> int:
        """The first iteration after `done` with a record."""
        extra = (at for at in self.extra_records if at > done)
        return min([next_record(done, self.rules.record_every), *extra])

    def on_grid(self, done: int) -> bool:
        """Whether an uninterrupted run has a record at this iteration."""
        return done == 0 or self.record_after(done - 1) == done

    # ---------------------------------------------------------------- changes

    def end_seed(self, i: int, status: Status, why: str) -> None:
        """End seed i, for good: a continued run does not train it.

        A seed that became non-finite keeps its place in a group until the next record. The time at
        which the fault is noticed depends on the length of a chunk, and so on the clock. The groups
        must not depend on the clock.

        Parameters
        ----------
        i : the index of the seed.
        status : the status of the seed from now on.
        why : the reason, a sentence.
        """
        self.active[i] = False
        self.status[i] = status
        self.reason[i] = why
        done = int(self.step.iterations[i])
        self.ended_at[i] = self.record_after(done) if status == Status.NON_FINITE else done

    def regroup(self, now: int) -> None:
        """At the record of iteration `now`: put the seeds that run into fewer or smaller groups, if
        these hold them.
        """
        if self.active.any():
            seats = seated(np.where(self.ended_at <= now, self.ended_at, np.inf), self.room)
            self.step = replace(self.step, groups=self.step.groups.split(seats, self.room))

    def record(self) -> None:
        """Add a record to the history. With validation data, keep for each seed the states with the
        smallest loss on these data.
        """
        current = self.step.current
        seconds = np.full(len(self.seeds), self.seconds)
        self.records.append((self.step.iterations.copy(), seconds, *current))
        self.stall.add(self.iteration, current[:2])
        if self.stepper.validation is None:
            self.chosen = np.full(len(self.seeds), len(self.records) - 1)
            return
        if not self.on_grid(self.iteration):
            return  # an uninterrupted run has no such record, so these states are not kept
        better = current[2] < self.validation_losses()
        self.chosen = np.where(better, len(self.records) - 1, self.chosen)
        self.step = replace(self.step, groups=self.step.groups.keep(better))

    def validation_losses(self) -> np.ndarray:
        """(seeds,) The loss of the kept states on the validation data."""
        return np.array([self.records[j][4][i] for i, j in enumerate(self.chosen)])

    def advance(self, most: int, seconds: float) -> None:
        """Take one chunk of steps. A seed that becomes non-finite ends at its last finite state."""
        self.step = self.stepper.advance(self.step, self.active.copy(), most, seconds)
        for i, why in self.step.faults.items():
            self.end_seed(i, Status.NON_FINITE, why)

    def judge(self, goal: int) -> None:
        """At the record of iteration `goal`: end the seeds that have converged or stalled, and drop
        those that successive halving drops.
        """
        if self.active.any() and self.on_grid(goal):
            self.end_settled()
        if self.active.any() and self.on_grid(goal):
            self.end_stalled()
        if self.active.any() and goal in self.rules.rungs:
            self.drop(self.rules.rungs[goal])
        if self.on_grid(goal):
            self.regroup(goal)

    def end_settled(self) -> None:
        """End the seeds that have converged by the diagnostics of the engine."""
        first = len(self.names) - 2 - len(self.diagnostics)
        for i in np.flatnonzero(self.active).tolist():
            values = {
                name: float(self.step.current[first + k, i])
                for k, name in enumerate(self.diagnostics)
            }
            if why := self.engine.settled(values):
                why = f"{why} after {self.step.iterations[i]} iterations."
                self.end_seed(i, Status.CONVERGED, why)

    def end_stalled(self) -> None:
        """End the seeds that have stalled."""
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
            self.end_seed(i, Status.STALLED, why)

    def drop(self, places: int) -> None:
        """End all seeds but the best ones, whose number is `places`.

        The seeds are ranked by the same loss as in `Run.ranking`, with one exception. If some seeds
        are in the lifted phase and others have left it, their losses are different functions, so
        the seeds are ranked by the true loss.
        """
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
                    f"its {name} {value[i]:.2e} ranked {rank} after {now} iterations, "
                    f"and only the best {places} continued."
                )
                self.end_seed(i, Status.DROPPED, why)

    # ---------------------------------------------------------------- views

    def mark(self) -> None:
        """Take a snapshot of this moment. It replaces the last one in a single assignment, so that
        `snapshot` is consistent whenever an interrupt comes.
        """
        self.snapshot = _Snapshot(
            len(self.records),
            self.seconds,
            self.step,
            self.active.copy(),
            tuple(self.status),
            tuple(self.reason),
            self.chosen,
        )

    @float64
    def run(self, snapshot: _Snapshot) -> Run:
        """The run as it was at a snapshot. If the states of the snapshot have no record yet, one is
        added to the history of the run.
        """
        records = self.records[: snapshot.records]
        chosen = snapshot.chosen
        done = snapshot.step.iterations
        count = len(self.seeds)
        if np.any(done != records[-1][0]):
            records.append((done, np.full(count, snapshot.seconds), *snapshot.step.current))
            if self.stepper.validation is None:
                chosen = np.full(count, snapshot.records)
        history = {
            name: np.stack([record[j] for record in records], axis=1)
            for j, name in enumerate(self.names)
        }
        history["bound_ratio"] = _ratio(self.bound, history["loss"], history["mean_squared_loss"])
        status = list(snapshot.status)
        reason = list(snapshot.reason)
        for i in np.flatnonzero(snapshot.active).tolist():
            if status[i] == Status.RUNNING:
                reason[i] = f"not finished: {done[i]} iterations so far."
        states, kept = snapshot.step.groups.whole()
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
        return replace(run, sampler_state=origin.sampler_state) if isinstance(origin, Run) else run

    def progress(self, recorded: bool, sampler: Sampler) -> Progress:
        """What the observers are shown of this moment.

        Parameters
        ----------
        recorded : whether the present losses became a record of the history.
        sampler : chooses the networks of the run that an observer asks for.
        """
        loss, true = self.step.current[:2].copy()
        snapshot = self.snapshot

        def run_so_far() -> Run:
            return sampler.present(self.run(snapshot))

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
    """Train until every seed has ended or a budget is used up.

    Parameters
    ----------
    begin : the start of a new run, or a run to continue. A run that is interrupted and continued
        gives the same numbers as an uninterrupted run, bit for bit.
    rules : when losses are recorded, and what ends the run.
    stepping : gives the stepper for an engine.
    observers : are shown every `Progress`; the run ends when one of them returns True.
    sampler : changes the points; None: they are fixed.
    interrupted : whether Ctrl-C was pressed, see `sapm.scopes.interrupts`.
    spent : seconds that went by before this call and count towards `rules.seconds`.
    """
    if sampler is None:
        sampler = Fixed(cast(Samples, None), begin.engine)  # the loop does not read the samples
    course = _Course(begin, rules, stepping, observers, sampler, interrupted, spent)
    return unless_interrupted(course.train, course.run_so_far)


@dataclass
class _Course:
    """One call of `loop`, with its parameters: the run is trained from each visit of the sampler to
    the next.
    """

    begin: Start | Run
    rules: Rules
    stepping: Callable[[Engine], Stepper]
    observers: Sequence[Observer]
    sampler: Sampler
    interrupted: Callable[[], bool]
    spent: float

    def __post_init__(self) -> None:
        self.clock = time.perf_counter()
        # the run at iteration `at`, the last one that was reached; None before the first steps
        self.run = self.begin if isinstance(self.begin, Run) else None
        self.at = (
            0 if self.run is None else max(self.run.iterations, self.run.sampler_state.visited)
        )
        # the latest training; None before the first one and during a visit
        self.training: Training | None = None

    def train(self) -> Run:
        """Train from visit to visit, until every seed has ended or a budget is used up."""
        rules = self.rules
        sampler = self.sampler
        while True:
            if self.run is not None and anywhere(self.interrupted()):
                return self.run.interrupted(self.at)
            due = self.at < rules.iterations and sampler.next_visit(self.at) == self.at
            if self.run is not None and due:
                self.training = None
                self.run = sampler.visit(self.run, self.at)
                if self.run.sampler_state.over:
                    return self.run
            visit = sampler.next_visit(self.at + 1)
            goal = rules.iterations if visit is None else min(rules.iterations, visit)
            extra_records = [k for k in (self.at, goal) if sampler.keeps_record(k)]
            source = self.begin if self.run is None else self.run
            engine = source.engine
            # As long as the sampler visits the run, seeds do not stall by the loss at the points of
            # training: the sampler ends the run by the residual at fresh points.
            segment_rules = rules if visit is None else replace(rules, patience=NEVER)
            waited = self.spent + time.perf_counter() - self.clock
            self.training = Training(source, self.stepping(engine), segment_rules, extra_records)
            self.training.began -= waited
            self.run, over = _follow(self.training, goal, self.observers, sampler, self.interrupted)
            self.at = goal
            if over or goal >= rules.iterations or self.run.lost.all():
                return self.run
            self.clock = time.perf_counter()
            self.spent = 0.0

    def run_so_far(self) -> Run:
        """The last consistent state of the run, after a KeyboardInterrupt in `train`. That comes
        from a second Ctrl-C, or from an observer. If there is no state yet, it is raised again.
        """
        if self.training is not None:
            run = self.training.run(self.training.snapshot)
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
) -> tuple[Run, bool]:
    """Train up to the iteration `goal`, a visit of the sampler or the end of the budget. Seeds may
    end before. An interrupt, an observer or the clock ends the whole run.

    The parameters are those of `loop`. Returns the run, and whether the whole run has ended.
    """
    seconds = training.rules.seconds
    # the time of the first record, most of which is compilation
    first_seconds = float(training.records[0][1].max())

    def show(recorded: bool) -> bool:
        progress = training.progress(recorded, sampler)
        # a list, so that all observers are called, also after one has answered True
        answers = [bool(observer(progress)) for observer in observers]
        return any(answers)

    def why_over() -> tuple[Status, str] | None:
        """The status and reason of the seeds that still run, if the whole run ends now."""
        at = training.iteration
        if anywhere(interrupted()):
            return Status.INTERRUPTED, interrupted_after(at)
        answer, seconds_left = agreed(stop, time_left())
        if answer:
            return Status.STOPPED, f"stopped by the callback after {at} iterations."
        if seconds_left > 0:
            return None
        before = (
            f"; {first_seconds:.3g} s had gone by before the first step"
            if first_seconds > 0.5 * (seconds or np.inf)
            else ""
        )
        why = f"the time was up ({seconds:.4g} s in all{before}) after {at} iterations."
        return Status.OUT_OF_TIME, why

    def time_left() -> float:
        return math.inf if seconds is None else seconds - training.seconds

    over = None
    stop = show(isinstance(training.origin, Start))
    while training.active.any() and training.iteration < goal:
        over = why_over()
        if over is not None:
            break
        at = training.iteration
        record_at = min(training.record_after(at), goal)
        training.advance(record_at - at, time_left())
        recorded = training.iteration == record_at or not training.active.any()
        if recorded:
            training.record()
            training.judge(record_at)
        training.mark()
        stop = show(recorded)
    if over is None and goal < training.rules.iterations:
        over = why_over()  # seeds that have ended wait for the visit, but not beyond the time
    elif over is None and agreed(stop)[0]:
        over = Status.STOPPED, f"stopped by the callback after {training.iteration} iterations."
    elif over is None:
        over = Status.FINISHED, f"ran all {goal} iterations."
    if over is not None:  # a continued run trains these seeds on
        for i in np.flatnonzero(training.active).tolist():
            training.status[i], training.reason[i] = over
    if np.any(training.step.iterations != training.records[-1][0]):
        training.record()
    training.mark()
    cut = over[1] if over is not None and over[0] == Status.INTERRUPTED else ""
    return replace(training.run(training.snapshot), cut=cut), over is not None


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
    """Train an engine without the driver: on data in memory and at fixed points.

    Parameters
    ----------
    engine : the engine of the method, for this problem.
    iterations : steps of every seed.
    seeds : the number of seeds, or the seed numbers.
    key : seed s draws its start from fold_in(key, s).
    initial : the states to start from, a tree of arrays with a row for each seed; None: random
        ones.
    validation : a term of held-out data, or None.
    mesh : the devices that share the seeds and the samples.
    rules : fields of `Rules`.
    """
    numbers = tuple(int(s) for s in (range(seeds) if isinstance(seeds, int) else seeds))
    budget = Rules(iterations, **rules)

    def stepping(engine: Engine) -> Chunks:
        return Chunks(engine, len(numbers), validation, mesh)

    return loop(begun(engine, numbers, key, initial), budget, stepping)
