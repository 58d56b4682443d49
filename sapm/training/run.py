"""The records of a run: what was planned (`Plan`), and what training gives (`Run`): the states of
all seeds, their history, and why each of them stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from sapm.errors import (
    Advice,
    AdviceKind,
    boolean,
    brief,
    check_fields,
    checked,
    count,
    json_safe,
    listed,
    number,
    one_of,
    optional,
    positive,
    text,
)
from sapm.methods.engine import Engine
from sapm.methods.method import Alternating, GaussNewton, Method, StoredEngine
from sapm.numerics.activations import Activation
from sapm.numerics.network import INITIALISERS, Network
from sapm.objective.penalty import MODELS, STARTS, objective
from sapm.objective.terms import directional
from sapm.objective.weights import Certificate, certificate, steepness
from sapm.problem.samples import Samples, Scaling, scaling_of
from sapm.scopes import float64

# ---------------------------------------------------------------- the plan

MOST_LAYERS = 10**4
MOST_UNITS = 10**6
MOST_SEEDS = 10**6
MOST_STAGES = 10  # doublings of the time interval that is trained on

PerLayer = float | tuple[float, ...]


def _width(name: str, value: Any) -> int | tuple[int, ...]:
    """Units of every hidden layer: a number, or one for each."""
    check = count(most=MOST_UNITS)
    if isinstance(value, (list, tuple)):
        return listed(check, MOST_LAYERS)(name, value)
    return check(name, value)


def _seeds(name: str, value: Any) -> tuple[int, ...]:
    """The numbers of the seeds, all different."""
    seeds = listed(count(0, 2**32 - 1), MOST_SEEDS)(name, value)
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(
            f"{name}: got {brief(value)}, expected different numbers; give a list such as [0, 1]."
        )
    return seeds


def _per_layer(name: str, value: Any) -> PerLayer:
    """A positive number, or one for every layer."""
    if isinstance(value, (list, tuple)):
        return listed(positive, MOST_LAYERS)(name, value)
    return positive(name, value)


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """All settings of a run, resolved and checked: what `Settings` leaves open is decided here.

    Parameters
    ----------
    problem : the name of the problem's class.
    depth, width : layers, and units in each hidden one.
    activation : the activation.
    points, boundary_points, test_points : numbers of points; None for points that were given.
    model : "ls", "pm" or "sapm".
    method : the record of the method with its options.
    max_iter, max_seconds : the budget of iterations and of time.
    seeds, key : seed s draws from fold_in(key, s).
    init, start : initial weights and initial auxiliary variables.
    mu : the weight of the boundary term; None without one.
    alpha, beta : fixed weights of tangents and of values.
    why : what was chosen for the user, and why, in a sentence: the method that "auto" stands for,
        or sweeps over chunks of samples; "" if nothing was chosen.
    retry : whether a run that ends in no solution is tried again, in stages of time.
    from_network : whether training starts at a given network.
    """

    problem: str = checked(text)
    depth: int = checked(count(2, MOST_LAYERS))
    width: int | tuple[int, ...] = checked(_width)
    activation: Activation
    points: int | None = checked(optional(count(0)))
    boundary_points: int | None = checked(optional(count(0)))
    test_points: int | None = checked(optional(count(0)))
    model: str = checked(one_of(MODELS))
    method: Method
    max_iter: int = checked(count(0))
    max_seconds: float | None = checked(optional(positive))
    seeds: tuple[int, ...] = checked(_seeds)
    key: int = checked(count(0))
    init: str = checked(one_of(tuple(INITIALISERS)))
    start: str = checked(one_of(STARTS))
    mu: float | None = checked(optional(positive))
    alpha: float | tuple[float, ...] = checked(_per_layer)
    beta: float | tuple[float, ...] = checked(_per_layer)
    why: str = checked(text, "")
    retry: bool = checked(boolean, False)
    from_network: bool = checked(boolean, False)

    def check(self) -> Plan:
        """The plan with every field checked, for one that was read from a file: `Settings` has
        checked all others.
        """
        check_fields(self)
        for name, value, length in (
            ("width", self.width, self.depth - 1),
            ("alpha", self.alpha, self.depth),
            ("beta", self.beta, self.depth - 1),
        ):
            if isinstance(value, tuple) and len(value) != length:
                raise ValueError(
                    f"{name}: got {len(value)} numbers, {brief(list(value))}, expected {length} "
                    f"for depth={self.depth}; give {length} numbers, or one for all layers."
                )
        return self

    # ---------------------------------------------------------------- decisions

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units of every hidden layer."""
        return hidden_units(self.width, self.depth)

    def scaling(self, samples: Samples) -> Scaling:
        """The units of training."""
        return scaling_of(samples, self.method.scale)

    @property
    def true_loss_from_start(self) -> bool:
        """Whether the true loss is minimised from the first step on (no auxiliary variables)."""
        return self.method.true_loss_from_start(self.model)

    @property
    def resample(self) -> int:
        """Steps after which points are drawn anew; 0: never."""
        return self.method.resample if isinstance(self.method, GaussNewton) else 0

    @property
    def stages(self) -> int:
        """Doublings of the time interval that is trained on; 0: all of it from the start."""
        return self.method.stages if isinstance(self.method, GaussNewton) else 0

    @property
    def chunk(self) -> int | None:
        """Samples in memory at a time; None: all of them."""
        return self.method.chunk if isinstance(self.method, Alternating) else None

    def with_stages(self, stages: int) -> Plan:
        """The plan with so many doublings of the time interval."""
        if not isinstance(self.method, GaussNewton):
            raise TypeError(f"stages are for Gauss-Newton; the method is {self.method.name}.")
        return replace(self, method=replace(self.method, stages=stages))

    @float64
    def engine(self, samples: Samples) -> Engine:
        """The engine of the method for the problem at these points, in the units of training."""
        scaling = self.scaling(samples)
        terms = [scaling.term(term) for term in samples.terms]
        if isinstance(self.method, GaussNewton | Alternating) and self.method.directional:
            terms = [directional(term) for term in terms]
        model = "ls" if self.true_loss_from_start else self.model
        # a tuple would mean a weight for each term
        weights: dict[str, Any] = {
            "alpha": np.asarray(self.alpha),
            "beta": np.asarray(self.beta),
        }
        l2 = self.method.l2 * scaling.size**2
        loss = objective(terms, self.depth, model, **weights, l2=l2)
        if samples.parameters:
            guesses = np.array(list(samples.parameters.values()))
            loss = replace(loss, constants=jnp.asarray(guesses / samples.units))
        widths = (samples.terms[0].x.value.shape[1], *self.hidden, samples.outputs)
        method = self.method.in_units(scaling.size**2 * scaling.stiffness, self.activation)
        return method.engine(loss, widths, self.activation, self.init, self.start)

    # ---------------------------------------------------------------- as JSON

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON has it: the content of config.json."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        named["activation"] = self.activation.name
        named["method"] = self.method.name
        named["options"] = self.method.options
        named["choice"] = named.pop("why")
        for name in ("retry", "from_network"):
            if not named[name]:
                del named[name]
        return json_safe(named)

    @staticmethod
    def from_dict(config: Mapping[str, Any], sigma: Activation, method: Method) -> Plan:
        """The plan that `to_dict` described. Entries that are not settings are ignored."""
        entries = {"problem": "", "choice": "", "retry": False, "from_network": False} | dict(
            config
        )
        entries |= {"activation": sigma, "method": method, "why": entries["choice"]}
        names = [each.name for each in fields(Plan)]
        if lacking := [name for name in names if name not in entries]:
            raise ValueError(
                f"settings: got none for {lacking[0]}, expected one for every field of the plan; "
                "take a file that is complete."
            )
        return Plan(**{name: entries[name] for name in names}).check()


def hidden_units(width: int | Sequence[int], depth: int) -> tuple[int, ...]:
    """Units of every hidden layer, from a number for all or one for each."""
    return (width,) * (depth - 1) if isinstance(width, int) else tuple(width)


@float64
def states_at(engine: Engine, networks: Sequence[Sequence[tuple]], sigma: Activation) -> Any:
    """States of the engine, a row for every network.

    networks : for each, its weights [(W, b), …] in the units of training; W (out, in), b (out,).
        Inputs of the engine beyond those of W are padding.
    """
    known = engine.objective.constants
    constants = 0 if known is None else len(known)
    layers = [
        tuple(np.stack([weights[l][part] for weights in networks]) for part in (0, 1))
        for l in range(len(networks[0]))
    ]
    W, b = layers[0]
    wide = np.pad(W, ((0, 0), (0, 0), (0, engine.widths[0] - W.shape[2])))
    chain = [(wide, b), *layers[1:]]
    stacked = jax.vmap(lambda chain: Network.of(chain, sigma, constants))(chain)
    if isinstance(engine, StoredEngine):  # its state is the network
        return stacked
    seeds = range(len(networks))
    states = [_begin(engine, jax.tree.map(lambda x, i=i: x[i], stacked)) for i in seeds]
    return jax.tree.map(lambda *x: jnp.stack(x), *states)


@jax.jit
def _begin(engine: Engine, network: Network):
    return engine.begin(network)


# ---------------------------------------------------------------- the run


class Status(StrEnum):
    """Why a seed stopped. It equals its text: `Status.STALLED == "stalled"`."""

    RUNNING = "running"
    FINISHED = "finished"
    CONVERGED = "converged"
    STALLED = "stalled"
    DROPPED = "dropped"
    NON_FINITE = "non-finite"
    OUT_OF_TIME = "out of time"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"

    @property
    def lost(self) -> bool:
        """Whether the seed is left out of all comparisons: it failed, or was dropped."""
        return self in (Status.DROPPED, Status.NON_FINITE)

    @property
    def over(self) -> bool:
        """Whether the seed takes no further step when the run is continued."""
        return self.lost or self in (Status.CONVERGED, Status.STALLED)

    @property
    def cut_short(self) -> bool:
        """Whether the time or the user ended the seed before its budget of iterations."""
        return self in (Status.OUT_OF_TIME, Status.STOPPED, Status.INTERRUPTED)

    @property
    def sentence(self) -> str:
        """What the status means."""
        return SENTENCES[self]

    def __repr__(self) -> str:
        return repr(self.value)


SENTENCES = {
    Status.RUNNING: "The seed is still being trained.",
    Status.FINISHED: "The seed ran all iterations of its budget.",
    Status.CONVERGED: "The method has nothing left to gain for this seed.",
    Status.STALLED: "The loss of the seed, or its residual at points that were not trained on, no "
    "longer fell.",
    Status.DROPPED: "The seed was dropped by successive halving, since others had a lower loss.",
    Status.NON_FINITE: "A number was not finite; the last finite state of the seed is kept.",
    Status.OUT_OF_TIME: "The time of the run was up.",
    Status.STOPPED: "The user's callback stopped the run.",
    Status.INTERRUPTED: "Ctrl-C, a signal or the loss of its folder stopped the run.",
}


def ranking(status: Sequence[Status], value: np.ndarray) -> np.ndarray:
    """The indices of the seeds, the best first: by value (a loss), dropped seeds behind all others,
    failed ones last.
    """
    behind = {Status.DROPPED: 1, Status.NON_FINITE: 2}
    last = np.array([behind.get(s, 0) for s in status])
    last = np.where(np.isfinite(value), last, 2)
    return np.lexsort((np.where(last < 2, value, np.inf), last))


def final_ranking(
    status: Sequence[Status],
    history: Mapping[str, np.ndarray],
    chosen: np.ndarray,
    scores: np.ndarray | None,
) -> np.ndarray:
    """The ranking of seeds that have ended; `Run` explains the parameters and `Run.ranking` the
    order.

    Parameters
    ----------
    status, history, chosen : of the seeds, their records, and the record that each stands for.
    scores : what decides in place of a loss of the history, if there are any.
    """
    if scores is not None:
        return ranking(status, scores)
    loss = history["validation_loss" if "validation_loss" in history else "loss"]
    return ranking(status, loss[np.arange(len(status)), chosen])


def _residual(name: str, value: Any) -> float:
    """A residual; inf for one that is not known, which is None in a file."""
    size = np.inf if value is None else number(value)
    if not size >= 0:
        raise ValueError(f"{name} has {brief(value)}; it must be a non-negative number.")
    return float(size)


_residuals = listed(_residual)


def _share(name: str, value: Any) -> float:
    """A share of the time interval: it doubles from stage to stage."""
    if number(value) not in [0.5**k for k in range(MOST_STAGES + 1)]:
        raise ValueError(f"{name}={brief(value)} must be 1, 1/2, …, or 1/{2**MOST_STAGES}.")
    return float(value)


@dataclass(frozen=True)
class SamplerState:
    """How far the drawing of collocation points has come.

    Parameters
    ----------
    visited : the iteration at which the residual was last measured at fresh points.
    redrawn : whether the collocation points differ from those the run began with.
    residuals : the mean residual of the best seed at fresh points, one for every visit.
    lowest : for every seed the smallest residual at fresh points; inf for a seed without one, ()
        if no seed has one.
    at_end : the residual at fresh points of the networks that the run ended with, in the same form.
    share : the share of the time interval that is trained on.
    share_since : the iteration at which that share was last changed.
    over : whether the run has ended because the residual at fresh points no longer falls.
    """

    visited: int = checked(count(0), 0)
    redrawn: bool = checked(boolean, False)
    residuals: tuple[float, ...] = checked(_residuals, ())
    lowest: tuple[float, ...] = checked(_residuals, ())
    at_end: tuple[float, ...] = checked(_residuals, ())
    share: float = checked(_share, 1.0)
    share_since: int = checked(count(0), 0)
    over: bool = checked(boolean, False)

    def to_json(self) -> dict:
        """As a file has it: null for what is unknown."""
        described = asdict(self)
        for name in RESIDUALS:
            described[name] = [None if value == np.inf else value for value in described[name]]
        return described

    @staticmethod
    def from_json(described: Any, seeds: int) -> SamplerState:
        """The inverse of `to_json` for so many seeds; a ValueError for anything else."""
        names = {field.name for field in fields(SamplerState)}
        if not isinstance(described, dict) or set(described) - names:
            raise ValueError(f"sampler={brief(described)} is not what the sampler stores.")
        state = SamplerState(**described)
        try:
            check_fields(state)
        except ValueError as error:
            raise ValueError(f"sampler: {error}") from None
        for name in ("lowest", "at_end"):
            sizes = getattr(state, name)
            if len(sizes) not in (0, seeds):
                raise ValueError(f"sampler: {name}={brief(list(sizes))} must be one for each seed.")
        visits = max(state.visited, state.share_since)
        if state.share_since > state.visited or len(state.residuals) > visits:
            raise ValueError(
                f"sampler: visited={state.visited} is before share_since={state.share_since}, or "
                f"too early for {len(state.residuals)} residuals."
            )
        return state


RESIDUALS = ("residuals", "lowest", "at_end")


def interrupted_after(iteration: int) -> str:
    """When a run was interrupted, in a sentence: the form of `Run.cut`."""
    return f"interrupted after {iteration} iterations."


def per_seed(values: Sequence[float], count: int) -> np.ndarray:
    """One value for each of `count` seeds; inf for all where there are none."""
    return np.array(values) if len(values) else np.full(count, np.inf)


def where_known(values: np.ndarray) -> tuple[float, ...]:
    """The inverse of `per_seed`: () where no value is finite."""
    return tuple(values.tolist()) if (values < np.inf).any() else ()


@dataclass(frozen=True)
class Run:
    """What the loop gives.

    Parameters
    ----------
    engine : the engine of the last step.
    seeds : the seed numbers.
    states : the state of every seed, a tree of arrays with a leading axis of seeds. A seed that
        failed keeps its last finite state.
    history : arrays (seeds, records): iteration, seconds, loss, mean_squared_loss, bound_ratio (the
        true loss over bound × loss: at most 1 where a theorem binds them, NaN where none does),
        validation_loss where there are validation data, and the diagnostics of the method.
    status, reason : why each seed stopped; the reason is a sentence.
    chosen : (seeds,) the index of the record whose network represents a seed: the last one; with
        validation data the one with the smallest loss on them; where points are redrawn, the one
        with the smallest residual at fresh points.
    kept : the states of those records; None if they are `states`.
    cut : when the run was interrupted, in a sentence; "" if it was not. It can be interrupted
        after all seeds have stopped, while points are compared or the result is made.
    scores : (seeds,) what the seeds are ranked by, if their losses cannot be compared since they
        belong to different points.
    sampler_state : how far the drawing of points has come.
    advice : the advice on the problem, on the settings and on how the run ended.
    attempt : 1; or 2 if a first attempt found no solution and this run replaces it.
    """

    engine: Engine
    seeds: tuple[int, ...]
    states: Any
    history: dict[str, np.ndarray]
    status: tuple[Status, ...]
    reason: tuple[str, ...]
    chosen: np.ndarray
    kept: Any = None
    cut: str = ""
    scores: np.ndarray | None = None
    sampler_state: SamplerState = SamplerState()
    advice: tuple[Advice, ...] = ()
    attempt: int = 1

    @property
    def iterations(self) -> int:
        """Steps taken by the seeds that ran the longest."""
        return int(self.history["iteration"].max())

    @property
    def seconds(self) -> float:
        return float(self.history["seconds"].max())

    @property
    def lost(self) -> np.ndarray:
        """(seeds,) Whether a seed is left out of comparisons."""
        return np.array([status.lost for status in self.status])

    def closed(self, status: Status, why: str) -> Run:
        """The run, where every seed that could be continued has this status and reason."""
        states = tuple(old if old.over else status for old in self.status)
        reasons = zip(self.status, self.reason, strict=True)
        reason = tuple(text if old.over else why for old, text in reasons)
        return replace(self, status=states, reason=reason)

    def interrupted(self, iteration: int) -> Run:
        """The run, interrupted after so many iterations."""
        cut = interrupted_after(iteration)
        return replace(self.closed(Status.INTERRUPTED, cut), cut=cut)

    @property
    def why_folder_lost(self) -> str:
        """What has become of the folder of the run, if it ended because of that; else ""."""
        lost = (advice for advice in self.advice if advice.kind == AdviceKind.FOLDER)
        return next((advice.sentence for advice in lost), "")

    def ended(self, *status: Status) -> bool:
        """Whether any seed has one of these statuses."""
        return any(ended in status for ended in self.status)

    def final(self, name: str) -> np.ndarray:
        """(seeds,) A quantity of the history at the record that each seed stands for."""
        return self.history[name][np.arange(len(self.seeds)), self.chosen]

    def explanation(self, i: int) -> str:
        """Why seed i stopped, and which of its networks stands for it, if not the last."""
        sampler = self.sampler_state
        last = self.history["iteration"].shape[1] - 1
        known = bool(sampler.lowest) and sampler.lowest[i] < np.inf
        if self.kept is None or not known or self.chosen[i] == last:
            return self.reason[i]
        at = int(self.history["iteration"][i, self.chosen[i]])
        return (
            f"{self.reason[i]} The network of iteration {at} is kept, since it has the smallest "
            "residual at points that were not trained on."
        )

    @property
    def best(self) -> int:
        """The index of the first seed in the ranking."""
        return int(self.ranking[0])

    def index(self, seed: int | None) -> int:
        """The index of a seed in `seeds`, where negative numbers count from the end; None stands
        for the best seed.
        """
        if seed is None:
            return self.best
        if not isinstance(seed, (int, np.integer)) or not -len(self.seeds) <= seed < len(
            self.seeds
        ):
            raise ValueError(
                f"seed: got {brief(seed)}, expected an index from {-len(self.seeds)} to "
                f"{len(self.seeds) - 1}; give one of these, where negative numbers count from the "
                "end."
            )
        return int(seed) % len(self.seeds)

    @property
    def ranking(self) -> np.ndarray:
        """Indices of the seeds by their final loss, the smallest first (the paper's rule; with
        validation data by the loss on them, and by `scores` where there are some); dropped seeds
        behind all others, failed ones last."""
        return final_ranking(self.status, self.history, self.chosen, self.scores)

    def state(self, i: int) -> Any:
        """The state that seed i stands for."""
        return jax.tree.map(lambda x: x[i], self.states if self.kept is None else self.kept)

    @float64
    def network(self, i: int) -> Network:
        return self.engine.network(self.state(i))

    @float64
    def certificate(self, i: int) -> Certificate:
        """Whether the theorem's bound between the true loss and the loss of seed i holds."""
        loss, true = (self.final(name)[i] for name in ("loss", "mean_squared_loss"))
        state = self.state(i)
        point = self.engine.point(state)
        steep = (
            None
            if point is None
            else steepness(self.engine.objective.terms, point.network, point.aux)
        )
        network = self.engine.network(state)
        return certificate(self.engine.objective, self.engine.sigma, loss, true, steep, network)


@dataclass(frozen=True)
class Progress:
    """Where a run stands between two compiled chunks: what observers and `on_record` get.

    Parameters
    ----------
    iteration, seconds : steps and time since the start.
    loss, mean_squared_loss : (seeds,) the loss that is minimised, and the true loss.
    bound_ratio : (seeds,) true loss / (bound × loss), at most 1 where a theorem holds; else NaN.
    recorded : whether these numbers became a record of the history.
    run : gives the `Run` so far.
    result : gives the `Result` so far (without a driver: the run).
    """

    iteration: int
    seconds: float
    loss: np.ndarray
    mean_squared_loss: np.ndarray
    bound_ratio: np.ndarray
    recorded: bool
    run: Callable[[], Run]
    result: Callable[[], Any]


class Observer(Protocol):
    """What sees every `Progress` of a run, such as a progress bar or a log. True ends the run."""

    def __call__(self, progress: Progress) -> bool | None: ...
