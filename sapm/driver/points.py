"""Collocation points that change during a run.

`Redrawn` is a sampler of `sapm.training.loop`. Every `resample` steps it measures the residual of
the networks at fresh points, which are not points of training. If the residual is much larger at
fresh points than at the points of training, the points of training are replaced: half of the new
ones are drawn where the residual is large. The run ends when the residual at fresh points no longer
falls.

An initial-value problem may be trained in stages of time. The points are then from a first part of
the time interval, which grows from stage to stage. In the last stage it is the whole interval, and
only then are points redrawn.

Each seed is represented by its network with the smallest residual at fresh points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sapm.errors import warn
from sapm.methods.engine import Engine
from sapm.methods.method import affordable
from sapm.numerics.activations import Activation
from sapm.numerics.network import Network
from sapm.objective.terms import Term
from sapm.problem.pde import PDE
from sapm.problem.samples import Samples, Weights, data_size, network_of
from sapm.results.result import weights_of
from sapm.scopes import first_process, float64
from sapm.training.devices import agreed
from sapm.training.loop import without_weak_types
from sapm.training.run import Plan, Run, SamplerState, Status, per_seed, where_known

REDRAW_EVERY_STEPS = 15  # the default of `resample`
# The share of the points that is drawn by the residual. The others are the first of the Halton
# sequence.
REDRAWN_SHARE = 0.5
# A pool has POOL_FACTOR fresh points for every point of training, and at most LARGEST_POOL.
POOL_FACTOR = 20
LARGEST_POOL = 40_000
POOLS = 16  # the number of different pools; after the last one the first one is used again
# Points are redrawn if the residual at fresh points is at least REDRAW_ABOVE times that at the
# points of training. If it is more than DOUBLE_ABOVE times, twice as many points are taken, up to
# POINTS_PER_WEIGHT for every weight of the network.
REDRAW_ABOVE = 2.0
DOUBLE_ABOVE = 10.0
POINTS_PER_WEIGHT = 3
# The number of points grows only in this first part of the budget of time. Later it does not pay.
DOUBLE_BEFORE_SHARE = 1 / 3
# The run ends after RESTING_VISITS visits in which the residual was never below RESTING_FRACTION
# times its minimum before them.
RESTING_VISITS = 8
RESTING_FRACTION = 0.9
# In a second attempt, the part of the time interval that is trained on doubles STAGES times.
STAGES = 3
# The next stage begins at the relative residual STAGE_RESIDUAL, or after STAGE_VISITS visits. When
# the run has used STAGES_END_SHARE of its seconds, the whole time interval is taken.
STAGE_RESIDUAL = 1e-3
STAGE_VISITS = 3
STAGES_END_SHARE = 1 / 2
SECOND_ATTEMPT_STEPS = 3  # the steps of a second attempt, as a multiple of those of the first


@jax.jit
def _sizes(network: Network, term: Term) -> Array:
    """(n,) The Euclidean norms of the residuals at the points of a term."""
    return jnp.linalg.norm(term.residual(network(term.x)), axis=1)


@float64
def redrawn_points(
    problem: PDE,
    samples: Samples,
    networks: Sequence[Weights],
    sigma: Activation,
    draw: int,
    may_grow: bool = True,
) -> tuple[np.ndarray | None, list[float]]:
    """The points (m, d) of the next steps, and the mean residual of every network at fresh points.

    The fresh points are a pool of Halton points after those of training and test. For each network,
    divide the root mean square of the residual at fresh points by that at the points of training.
    Let q be the median of this ratio over the networks. There are three cases:

    - q < REDRAW_ABOVE: the points of training stay. None is returned in place of new points.
    - q ≤ DOUBLE_ABOVE: the m = n points are new.
    - q > DOUBLE_ABOVE: the points are new. With `may_grow` there are m = 2n of them, up to
      POINTS_PER_WEIGHT for every weight of the network: between few points a network may oscillate.

    Half of the new points are drawn from the pool, with probabilities proportional to the residual,
    averaged over the networks. The other half are the first points of the Halton sequence.

    Parameters
    ----------
    problem, samples : the problem, and the samples of training with n interior points.
    networks : the weights [(W, b), …] of every network in the problem's own units.
    sigma : the activation.
    draw : the number of the draw. POOLS successive draws have different fresh points.
    may_grow : whether m may be larger than n.
    """
    domain = problem.domain
    n = len(samples.terms[0].y)
    test = samples.test.get("x", np.zeros((0, 1)))
    size = min(POOL_FACTOR * n, LARGEST_POOL)
    pool = domain.points(size, domain.first + n + len(test) + draw % POOLS * size)
    term = problem.samples(pool, max(1, len(problem.soft_conditions)), 0, 1.0).terms[0]
    density = np.zeros(size)
    ratios = []
    residuals = []
    for weights in networks:
        network = network_of(samples, weights, sigma)
        trained = np.asarray(_sizes(network, samples.terms[0]))
        fresh = np.asarray(_sizes(network, term))
        # the mean, since a few points with a large residual would dominate the mean square
        residuals.append(float(fresh.mean()) if np.isfinite(fresh).all() else np.inf)
        if np.isfinite(fresh).all() and fresh.any():
            density += fresh / fresh.mean()
            ratios.append(np.sqrt(np.mean(fresh**2)) / max(np.sqrt(np.mean(trained**2)), 1e-300))
    if not ratios or np.median(ratios) < REDRAW_ABOVE:
        return None, residuals
    weight_count = sum(W.size + b.size for W, b in networks[0])
    if may_grow and np.median(ratios) > DOUBLE_ABOVE:
        n = max(n, min(2 * n, POINTS_PER_WEIGHT * weight_count))
    count = min(int(REDRAWN_SHARE * n), int(np.count_nonzero(density)))
    drawn = np.random.default_rng(draw).choice(
        size, count, replace=False, p=density / density.sum()
    )
    first = np.ascontiguousarray(domain.points(n - count + len(test)))
    tested = {row.tobytes() for row in np.ascontiguousarray(test)}
    first = first[[row.tobytes() not in tested for row in first]][: n - count]
    return np.concatenate([first, pool[drawn]]), residuals


def redrawn_points_of_run(
    problem: PDE, run: Run, samples: Samples, plan: Plan, draw: int, may_grow: bool = True
) -> tuple[np.ndarray | None, np.ndarray]:
    """`redrawn_points` for the seeds of a run. Returns the points or None, and the mean residual of
    every seed at fresh points, (seeds,), which is inf for seeds that are lost.

    Parameters
    ----------
    problem, samples, draw, may_grow : those of `redrawn_points`.
    run : the run with the networks.
    plan : its settings.
    """
    weights = weights_of(run, samples, plan)
    order = [i for i in run.ranking.tolist() if not run.status[i].lost]
    networks = [weights[i] for i in order]
    x, residuals = redrawn_points(problem, samples, networks, run.engine.sigma, draw, may_grow)
    sizes = np.full(len(run.seeds), np.inf)
    sizes[order] = residuals
    return x, sizes


def staged_plan(plan: Plan) -> Plan:
    """The plan of a second attempt, in stages of time, from that of the first attempt."""
    visits = STAGES * STAGE_VISITS + 1
    steps = max(SECOND_ATTEMPT_STEPS * plan.max_iter, visits * plan.resample + plan.max_iter)
    return replace(plan.with_stages(STAGES), max_iter=steps, retry=False)


def early_points(problem: PDE, samples: Samples, share: float) -> np.ndarray:
    """(n, d) The first n points of the Halton sequence that lie in the first part of the time
    interval and are not test points. n is the number of interior points of `samples`.

    Parameters
    ----------
    problem, samples : the problem, and its present samples.
    share : the length of that part as a fraction of the time interval, in (0, 1].
    """
    domain = problem.domain
    n = len(samples.terms[0].y)
    test = np.ascontiguousarray(samples.test.get("x", np.zeros((0, 1))))
    i = domain.names.index("t")
    tested = {row.tobytes() for row in test}
    count = n + len(test)
    center, spread = (part[i] for part in domain.frame)
    while True:
        x = np.ascontiguousarray(domain.points(count))
        x = x[x[:, i] <= center + (2 * share - 1) * spread] if share < 1 else x
        x = x[[row.tobytes() not in tested for row in x]]
        if len(x) >= n:
            return x[:n]
        if count >= LARGEST_POOL * 25:  # a domain may have hardly any points at early times
            share = 1.0
        count *= 2


def at_points(problem: PDE, samples: Samples, x: np.ndarray, plan: Plan) -> Samples:
    """The problem at the interior points x, (n, d), with the test points and units of `samples`.

    Parameters
    ----------
    problem, samples : the problem, and its present samples.
    x : the new interior points.
    plan : the settings, for the points and the weight of the boundary.
    """
    test = samples.test.get("x", 0)
    return replace(
        problem.samples(x, plan.boundary_points, test, plan.mu), fixed_scaling=samples.scaling
    )


def no_longer_falls(residuals: Sequence[float]) -> bool:
    """Whether the residual at fresh points no longer falls.

    Parameters
    ----------
    residuals : that residual at every visit so far.
    """
    recent = residuals[-RESTING_VISITS:]
    before = residuals[:-RESTING_VISITS]
    return bool(before) and min(recent) > RESTING_FRACTION * min(before)


def _twice_is_affordable(problem: PDE, samples: Samples, widths: Sequence[int]) -> bool:
    """Whether method="auto" would take Gauss-Newton steps on twice as many points."""
    equation = problem.equation
    n = 2 * len(samples.terms[0].y)
    rows = n * equation.rows + sum(term.y.size for term in samples.terms[1:])
    return affordable(rows, n * equation.channels, widths)


# ---------------------------------------------------------------- the best network of every seed


@dataclass(frozen=True, eq=False)
class Lowest:
    """For every seed the state with the smallest residual at fresh points, if one was measured.

    Parameters
    ----------
    size : (seeds,) that residual; inf for a seed without a measured state.
    record : (seeds,) the index of the record of that state in the history; -1 without a state.
    states : those states, a tree of arrays with a leading axis of seeds; None if no seed has one.
    """

    size: np.ndarray
    record: np.ndarray
    states: Any = None

    @staticmethod
    def none(count: int) -> Lowest:
        """No states for `count` seeds."""
        return Lowest(np.full(count, np.inf), np.full(count, -1))

    @staticmethod
    def before(run: Run | None, count: int) -> Lowest:
        """The states that a run of `count` seeds has kept, to continue it; none for a new run."""
        if run is None or not run.sampler_state.lowest:
            return Lowest.none(count)
        size = per_seed(run.sampler_state.lowest, count)
        record = np.where(size < np.inf, run.chosen, -1)
        return Lowest(size, record, run.states if run.kept is None else run.kept)

    @float64
    def updated(self, run: Run, size: np.ndarray) -> Lowest:
        """The same, in which the last state of a run replaces that of every seed whose residual it
        lowers.

        Parameters
        ----------
        run : the run with its last states.
        size : (seeds,) the residuals of the last states at fresh points.
        """
        better = size < self.size
        if not better.any():
            return self
        last = run.history["loss"].shape[1] - 1
        states = run.states if self.states is None else _merged(better, run.states, self.states)
        return Lowest(
            np.where(better, size, self.size), np.where(better, last, self.record), states
        )

    def without_lost(self, run: Run) -> Lowest:
        """The same, without states for the seeds that are lost."""
        return self.restricted_to(~run.lost)

    def restricted_to(self, known: Sequence[bool] | np.ndarray) -> Lowest:
        """The same, with states for the seeds that are `known`, (seeds,), only."""
        size = np.where(known, self.size, np.inf)
        record = np.where(known, self.record, -1)
        return Lowest(size, record, self.states if (record >= 0).any() else None)

    @float64
    def applied_to(self, run: Run, state: SamplerState) -> Run:
        """The run, in which these states represent their seeds. A seed without such a state is
        represented by its last state.

        Parameters
        ----------
        run : the run with its last states.
        state : the state of the sampler, which the run stores.
        """
        run = replace(run, sampler_state=replace(state, lowest=where_known(self.size)))
        last = run.history["loss"].shape[1] - 1
        known = self.record >= 0
        if not known.any():
            return run
        # Store the state as it was measured, even if it is the last one: `renewed` may have changed
        # the last state of the run since.
        kept = _merged(known, self.states, run.states)
        return replace(run, kept=kept, chosen=np.where(known, self.record, last))


def _merged(first: np.ndarray, a, b):
    """The states `a` for the seeds i with first[i], and the states `b` for the other seeds."""
    return jax.tree.map(lambda x, y: jnp.where(first.reshape(-1, *[1] * (x.ndim - 1)), x, y), a, b)


def with_last_states(run: Run) -> Run:
    """The run, in which its last states represent the seeds."""
    last = run.history["loss"].shape[1] - 1
    return replace(run, kept=None, chosen=np.full(len(run.seeds), last), scores=None)


@float64
def residuals_at_test_points(run: Run, samples: Samples, plan: Plan) -> np.ndarray:
    """(seeds,) The mean residual at the test points; inf without test points."""
    if samples.test_equation is None:
        return np.full(len(run.seeds), np.inf)
    networks = [
        network_of(samples, weights, run.engine.sigma) for weights in weights_of(run, samples, plan)
    ]
    means = [np.mean(_sizes(network, samples.test_equation)) for network in networks]
    return np.nan_to_num(means, nan=np.inf)


@partial(jax.jit, static_argnums=2)
def _renew(engine: Any, states, damped: bool):
    damping = engine.damping if damped else None
    return without_weak_types(jax.vmap(lambda state: engine.renewed(state, damping))(states))


@float64
def renewed(run: Run, engine: Any, damped: bool = False) -> Run:
    """The run, ready to be continued at other samples. Seeds that had converged or stalled run
    again, from the same iteration as the others. Seeds that are lost do not.

    Parameters
    ----------
    run : the run at the old samples.
    engine : the engine of `GaussNewton` for the new samples.
    damped : whether the damping returns to its initial value. This is needed if the samples differ
        so much that a long step would lose the solution found so far.
    """
    history = dict(run.history)
    history["iteration"] = history["iteration"].copy()
    alive = ~run.lost
    history["iteration"][alive, -1] = history["iteration"][:, -1].max()
    status = tuple(old if old.lost else Status.RUNNING for old in run.status)
    reason = tuple(
        text if old.lost else "" for old, text in zip(run.status, run.reason, strict=True)
    )
    states = _renew(engine, run.states, damped)
    return replace(run, engine=engine, states=states, history=history, status=status, reason=reason)


# ---------------------------------------------------------------- samplers


@dataclass(frozen=True)
class Drawn:
    """All that changes in a sampler during a run. It is replaced in one assignment.

    Parameters
    ----------
    samples, engine : the samples of training, and the engine for them.
    lowest : the states with the smallest residual at fresh points so far.
    state : the part that the run stores: visits, residuals and the stage.
    """

    samples: Samples
    engine: Engine
    lowest: Lowest
    state: SamplerState


class Redrawn:
    """A sampler (`sapm.training.loop.Sampler`) that redraws points where the residual is large.

    Parameters
    ----------
    problem : the problem; None if a run is continued without it. The points then stay.
    plan : the settings of the run.
    samples : the points to begin with.
    state : the state of the sampler in the run that is continued.
    previous : the run that is continued, or None.
    seconds : the budget of time, or None.
    """

    def __init__(
        self,
        problem: PDE | None,
        plan: Plan,
        samples: Samples,
        state: SamplerState,
        previous: Run | None,
        seconds: float | None,
    ):
        lowest = Lowest.before(previous, len(plan.seeds))
        self.now = Drawn(samples, plan.engine(samples), lowest, replace(state, at_end=()))
        self.before_visit = self.now
        self.problem = problem
        self.plan = plan
        self.every = 0 if state.over else plan.resample
        self.seconds = seconds
        self.first = 0 if previous is None else previous.iterations
        # The iteration at which the run that is continued ended, if a network measured there
        # represents a seed: its record then stays in the history. An uninterrupted run has no
        # record there.
        self.measured_at: int | None = None
        if previous is not None:
            last = previous.history["loss"].shape[1] - 1
            self.measured_at = self.first if (lowest.record == last).any() else None
        self._at_end = state.at_end

    @property
    def samples(self) -> Samples:
        return self.now.samples

    @property
    def engine(self) -> Engine:
        return self.now.engine

    def next_visit(self, iteration: int) -> int | None:
        if not self.every:
            return None
        after = max(iteration, self.now.state.visited + 1)
        return -(-after // self.every) * self.every

    def keeps_record(self, iteration: int) -> bool:
        return bool(self.every) and (iteration % self.every == 0 or iteration == self.measured_at)

    def present(self, run: Run) -> Run:
        self._take_back_unknown_visit(run)
        return self.now.lowest.without_lost(run).applied_to(run, self.now.state)

    def _take_back_unknown_visit(self, run: Run) -> None:
        """Take back the last visit if the run does not know of it. An interrupt has then come
        between the visit and the loop.
        """

        def moment(state: SamplerState) -> tuple[int, bool]:
            return state.visited, state.over

        before = self.before_visit
        if moment(run.sampler_state) == moment(before.state) != moment(self.now.state):
            self.now = before

    def used(self, run: Run) -> float:
        """The share of the budget of seconds that the run has used; 0 without a budget."""
        return agreed(0.0 if self.seconds is None else run.seconds / self.seconds)[0]

    def moved(self, run: Run, x: np.ndarray, drawn: Drawn, damped: bool) -> Run:
        """The run, ready to be continued at the interior points x, (m, d).

        The sampler changes by the single assignment at the end, so an interrupt before it changes
        nothing.

        Parameters
        ----------
        run : the run at the old samples.
        x : the new interior points.
        drawn : the state of the sampler, still with the old samples.
        damped : see `renewed`.
        """
        problem = self.problem
        assert problem is not None
        samples = at_points(problem, self.samples, x, self.plan)
        engine = self.plan.engine(samples)
        state = replace(drawn.state, redrawn=True)
        run = replace(renewed(run, engine, damped), sampler_state=state)
        self.now = replace(drawn, samples=samples, engine=engine, state=state)
        return run

    def visit(self, run: Run, iteration: int) -> Run:
        """Measure the residual at fresh points. End the run if it no longer falls. Redraw points if
        it is much larger than at the points of training.
        """
        self.before_visit = self.now
        problem = self.problem
        if problem is None:
            self.every = 0
            if first_process():
                warn(
                    "redrawing points: got no problem, expected the PDE of this run, so the points "
                    "stay as they are; give problem=… (--problem …)."
                )
            return run
        before = self.now.state
        if before.share < 1:
            return self._stage(run, iteration, problem)
        early = self.used(run) < DOUBLE_BEFORE_SHARE
        # more points help against shocks, which only nonlinear equations have
        may_grow = early and bool(problem.equation.nonlinear)
        may_grow = may_grow and _twice_is_affordable(problem, self.samples, self.engine.widths)
        draw = iteration // self.every
        x, sizes = redrawn_points_of_run(problem, run, self.samples, self.plan, draw, may_grow)
        lowest = self.now.lowest.without_lost(run).updated(run, sizes)
        residuals = (*before.residuals, float(sizes[run.best]))
        if no_longer_falls(residuals):
            state = replace(before, over=True)
            why = (
                f"after {iteration} iterations the residual at points that were not trained on no "
                "longer falls."
            )
            run = replace(run.closed(Status.STALLED, why), sampler_state=state)
            self.now = replace(self.now, lowest=lowest, state=state)
            return run
        state = replace(before, visited=iteration, residuals=residuals)
        drawn = replace(self.now, lowest=lowest, state=state)
        if x is not None:
            return self.moved(run, x, drawn, damped=False)
        self.now = drawn
        return replace(run, sampler_state=state)

    def _stage(self, run: Run, iteration: int, problem: PDE) -> Run:
        """Begin the next stage if the residual of this one is small, or it has lasted STAGE_VISITS
        visits; late in the budget of time the whole interval.
        """
        state = self.now.state
        lasted = iteration - state.share_since >= STAGE_VISITS * self.every
        if self.used(run) > STAGES_END_SHARE:
            share = 1.0
        elif _solved(run, self.samples) or lasted:
            share = 2 * state.share
        else:
            state = replace(state, visited=iteration)
            self.now = replace(self.now, state=state)
            return replace(run, sampler_state=state)
        state = replace(state, visited=iteration, share=share, share_since=iteration)
        x = early_points(problem, self.samples, share)
        return self.moved(run, x, replace(self.now, state=state), damped=True)

    def finish(self, run: Run, save: Callable[[Run], None]) -> Run:
        """The run at its end. Each seed is represented by its last network or by the best earlier
        one, whichever has the smaller residual at fresh points (without the problem: at the test
        points).

        Parameters
        ----------
        run : the run that has ended.
        save : writes a checkpoint. It is called before the last networks are measured. If they are
            measured, it is called again, so that the checkpoint has their residuals (`at_end`). The
            checkpoint still represents each seed by its best *earlier* network: a run that is
            continued from it then equals an uninterrupted run, which does not measure here.
        """
        self._take_back_unknown_visit(run)
        lowest = self.now.lowest.without_lost(run)
        at_end = per_seed(self._at_end, len(run.seeds))
        if run.iterations > self.first:
            at_end = np.full(len(run.seeds), np.inf)
            # without the problem there are no fresh points: compare the residuals at test points
            if lowest.states is not None and self.problem is None:
                best = residuals_at_test_points(
                    lowest.applied_to(run, self.now.state), self.samples, self.plan
                )
                lowest = lowest.restricted_to(
                    best < residuals_at_test_points(run, self.samples, self.plan)
                )
        state = replace(self.now.state, at_end=where_known(at_end))
        save(lowest.applied_to(run, state))
        if lowest.states is not None and self.problem is not None and not state.over:
            draw = len(state.residuals) + 1
            at_end = redrawn_points_of_run(self.problem, run, self.samples, self.plan, draw)[1]
            state = replace(state, at_end=where_known(at_end))
            save(lowest.applied_to(run, state))
        if lowest.states is not None:
            lowest = lowest.updated(run, at_end)
        return lowest.applied_to(run, state)


def first_stage(problem: PDE, plan: Plan, samples: Samples, seconds: float | None) -> Redrawn:
    """The sampler of a new run, with the points of the first stage.

    Parameters
    ----------
    problem, plan, samples : the problem, the settings and the samples in the whole interval.
    seconds : the budget of time, or None.
    """
    share = 0.5**plan.stages
    first = at_points(problem, samples, early_points(problem, samples, share), plan)
    return Redrawn(problem, plan, first, SamplerState(redrawn=True, share=share), None, seconds)


def _solved(run: Run, samples: Samples) -> bool:
    """Whether at least half of the seeds that are not lost have a small residual: the square root
    of true loss / loss of u = 0 is at most STAGE_RESIDUAL.
    """
    loss = run.history["mean_squared_loss"][~run.lost, -1]
    return bool(np.median(loss) <= STAGE_RESIDUAL**2 * data_size(samples))
