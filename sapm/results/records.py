"""The record of a run in a file (`RunRecord`), and the checks that the arrays and the description
of a file must pass before a result is built from them (`check`).

The checks allocate nothing larger than the file itself: a depth, a width or a count in the
description must agree with the shapes of the arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any

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
    choose,
    count,
    listed,
    number,
    raised_here,
    shown,
    shown_path,
    text,
)
from sapm.methods.engine import Engine
from sapm.methods.method import Method, check_pair, check_same_method, stored_method
from sapm.numerics.activations import ACTIVATIONS, Activation
from sapm.problem.stored import ProblemRecord, SamplesRecord, require
from sapm.scopes import float64
from sapm.training.run import MOST_SEEDS, MOST_STAGES, Plan, Run, SamplerState, Status

MOST_LEVELS = 500  # of lists and dictionaries in each other: a domain has two for every shape
MOST_OPTION_LEVELS = 50  # of the options of a method
MOST_ADVICE = 1000  # pieces of advice
VALUES_AT = 8  # samples at which the networks of a file are evaluated
REQUIRED_HISTORY = ("iteration", "seconds", "loss", "mean_squared_loss", "bound_ratio")
Arrays = Mapping[str, np.ndarray]


def part(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays whose names begin with `prefix` and a slash, by the rest of their names.

    Parameters
    ----------
    arrays : the arrays by name.
    prefix : the part of the names before the slash.
    """
    return {
        name.removeprefix(prefix + "/"): a
        for name, a in arrays.items()
        if name.startswith(prefix + "/")
    }


# The beginnings of sentences of version 0.1 about how a run ended
OUTCOMES_0_1 = ("the residual stays", "nothing was trained", "this ended in no solution")
KEPT_0_1 = " Kept is the network of iteration"


def upgrade(arrays: dict[str, np.ndarray], about: dict) -> None:
    """Convert the contents of a file of version 0.1, in place, to the present form. That version
    stored the state of the run with the settings, and advice without its kind. Damaged entries
    are not changed: `check` refuses them.

    Parameters
    ----------
    arrays : the arrays of the file.
    about : its description.
    """
    config = about.get("config")
    if "sampler" in about or not isinstance(config, dict):
        return
    state = {
        name: config.pop(old)
        for name, old in (
            ("visited", "drawn_at"),
            ("residuals", "fresh"),
            ("lowest", "lowest"),
            ("at_end", "ended"),
            ("over", "over"),
        )
        if old in config
    }
    # the earliest files have a single residual, that of the best seed
    seeds = len(about["seeds"]) if isinstance(about.get("seeds"), list) else 0
    for name in {"lowest", "at_end"} & set(state):
        state[name] = [None] * seeds if isinstance(state[name], float) else state[name]
    stage = config.pop("stage", None)
    if stage is not None:
        two = isinstance(stage, list) and len(stage) == 2
        state["share"] = stage[0] if two else stage
        state["share_since"] = stage[1] if two else 0
    scores = config.pop("scores", None)
    if isinstance(scores, list) and len(scores) == seeds:
        sizes = [np.inf if size is None else number(size) for size in scores]
        arrays["scores"] = np.array(sizes)
    state["redrawn"] = config.get("points", 0) is None and bool(state)
    again = config.pop("again", None)  # the points of a second attempt; None if it is not allowed
    if again is not None:
        config["retry"] = True
        config["points"] = again if state["redrawn"] else config.get("points")
    about["sampler"] = state
    about["attempt"] = 2 if config.pop("second", False) else 1
    if about["attempt"] == 2 and isinstance(config.get("choice"), str):
        config["choice"] = config["choice"].partition("A first attempt ended in no solution")[0]
    advice = config.pop("doubts", [])
    if _words(advice):
        kinds = [
            AdviceKind.OUTCOME if text.startswith(OUTCOMES_0_1) else AdviceKind.STATEMENT
            for text in advice
        ]
        advice = [
            {"kind": kind, "sentence": text} for kind, text in zip(kinds, advice, strict=True)
        ]
    about["advice"] = advice
    if _words(about.get("reason")):
        about["reason"] = [text.partition(KEPT_0_1)[0] for text in about["reason"]]


@dataclass(frozen=True)
class Stored:
    """What a file says, checked.

    Parameters
    ----------
    plan : the settings. Their activation is tanh, whatever the file says; the caller sets the right
        one.
    run : the run.
    samples : the problem at its points.
    """

    plan: Plan
    run: RunRecord
    samples: SamplesRecord


def check(
    path: Any, arrays: dict[str, np.ndarray], about: dict, method: Method | None = None
) -> Stored:
    """What the arrays and the description of a file say. It raises a ValueError for contents that
    `result.to_file` cannot have written.

    Parameters
    ----------
    path : the file, for errors.
    arrays, about : its arrays by name, and its description.
    method : the method of the run, stated again; needed if it is the user's own.
    """
    config = about.get("config")
    if method is not None and isinstance(config, dict):
        options = config.get("options")
        with naming(path):
            check_same_method(
                method, str(config.get("method")), options if isinstance(options, dict) else {}
            )
    with damage(path):
        require(_levels(about) <= MOST_LEVELS, f"it has more than {MOST_LEVELS} levels")
        upgrade(arrays, about)
        run = RunRecord.from_json(about)
        plan = _plan(about, method)
        require(plan.seeds == run.seeds, "seeds are not those of its settings")
        listed(number_of, 6)("activation_values", about.get("activation_values", []))
        require(isinstance(about.get("env", {}), dict), "env must be a dictionary")
        scores = arrays.get("scores", np.zeros(len(run.seeds)))
        valid = scores.shape == (len(run.seeds),) and scores.dtype.kind == "f"
        require(valid and not np.isnan(scores).any(), "scores must be one for every seed")
        samples = SamplesRecord.from_arrays(ProblemRecord.from_json(about), part(arrays, "samples"))
        _networks(arrays, plan, samples)
        _history(arrays, run, samples.terms[0].loss is None)
        _points(plan, run, samples)
    return Stored(plan, run, samples)


@contextmanager
def naming(path: Any) -> Iterator[None]:
    """Name a file in the refusals within."""
    try:
        yield
    except ValueError as error:
        if not raised_here(error):
            raise
        raise ValueError(f"{shown_path(path)}: {error}") from None


@contextmanager
def damage(path: Any) -> Iterator[None]:
    """Report the refusals within as damage of a file. Other errors, and ValueErrors that the
    package has not raised itself, are mistakes of its own; they stay as they are.
    """
    try:
        yield
    except ValueError as error:
        if not raised_here(error):
            raise
        text = shown(str(error).rstrip("."), 300)
        raise ValueError(f"{shown_path(path)} is damaged: {text}; use an earlier copy.") from None


def _levels(tree: Any) -> int:
    """How deeply the lists and dictionaries of a description are nested, up to MOST_LEVELS + 1."""
    levels = 0
    inner = [tree]
    while inner and levels <= MOST_LEVELS:
        levels += 1
        lists = [x.values() if isinstance(x, dict) else x for x in inner]
        inner = [x for values in lists for x in values if isinstance(x, (dict, list))]
    return levels


def number_of(name: str, value: Any) -> float:
    """A finite number."""
    require(abs(number(value)) < np.inf, f"{name} has {brief(value)}, which is no finite number")
    return float(value)


def _plan(about: dict, method: Method | None) -> Plan:
    """The plan that the settings in the description give."""
    config = about.get("config")
    if not isinstance(config, dict):
        raise ValueError(f"config={brief(config)} must be a dictionary")
    for name in ("activation", "method"):
        text(f"config: {name}", config.get(name))
    text("config: problem", config.get("problem", ""))
    options = config.get("options")
    if not isinstance(options, dict):
        raise ValueError(f"options={brief(options)} must be a dictionary")
    require(_levels(options) <= MOST_OPTION_LEVELS, "options are nested too deeply")
    own = boolean("own_method", about.get("own_method", False))
    stored = stored_method(config["method"], options, own, method)
    plan = Plan.from_dict(config, ACTIVATIONS["tanh"], stored)
    check_pair(plan.model, stored)
    return plan


def _points(plan: Plan, run: RunRecord, samples: SamplesRecord) -> None:
    """Raise a ValueError if the settings name other numbers of points than there are samples, or
    options that the samples exclude: a run that is continued draws as many points as they say.
    """
    problem = samples.problem
    sampler = run.sampler_state
    held_out = samples.test.get("x", ())
    if problem.data:
        require(not plan.resample and not plan.stages, "resample and stages are for a PDE")
        require(not sampler.redrawn, "sampler: redrawn is for a PDE")
    else:
        require(plan.chunk is None, f"chunk={brief(plan.chunk)} is for data")
        for name, count, grows in (
            ("points", len(samples.terms[0].y), sampler.redrawn),
            ("test_points", len(held_out), False),
        ):
            stated = getattr(plan, name)
            fits = stated is None or stated == count or (grows and stated < count)
            require(fits, f"{name}={brief(stated)}, and it has {count} of them")
    if problem.kind == "pde":
        least = len(samples.terms) > 1
        fits = plan.boundary_points is not None and plan.boundary_points >= least
        require(fits, f"boundary_points={brief(plan.boundary_points)} must be a number")
    require(sampler.share == 1 or plan.stages > 0, "sampler: share is below 1 without stages")
    require(plan.stages <= MOST_STAGES, f"stages={brief(plan.stages)} is above {MOST_STAGES}")
    again = plan.points is not None and plan.resample > 0 and problem.kind == "pde"
    require(again or not plan.retry, "retry is for a PDE whose points are drawn anew")


def _status(name: str, value: Any) -> Status:
    """The status that a word names."""
    return Status(choose(name, value, tuple(map(str, Status))))


def _advice(name: str, value: Any) -> Advice:
    """The advice that a file holds as a dictionary {kind, sentence}."""
    if isinstance(value, Advice):
        return value
    if not isinstance(value, dict) or set(value) != {"kind", "sentence"}:
        raise ValueError(f"{name}={brief(value)} must have a kind and a sentence.")
    kind = choose(name, value["kind"], tuple(map(str, AdviceKind)))
    return Advice(AdviceKind(kind), text(name, value["sentence"]))


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The part of a run that the description of a file holds; `Run` explains the fields. The other
    parts of a run are arrays.
    """

    seeds: tuple[int, ...] = checked(listed(count(0, 2**32 - 1), MOST_SEEDS))
    status: tuple[Status, ...] = checked(listed(_status, MOST_SEEDS))
    reason: tuple[str, ...] = checked(listed(text, MOST_SEEDS))
    sampler_state: SamplerState
    advice: tuple[Advice, ...] = checked(listed(_advice, MOST_ADVICE), ())
    attempt: int = checked(count(1, 2), 1)
    cut: str = checked(text, "")

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("seeds", "status", "reason"):
            entries = len(getattr(self, name))
            if not 0 < entries == len(self.seeds):
                raise ValueError(
                    f"{name} has {entries} entries; it must have one for every seed, of which "
                    f"there are {len(self.seeds)}."
                )

    @staticmethod
    def of(run: Run) -> RunRecord:
        """The record of a run."""
        return RunRecord(**{each.name: getattr(run, each.name) for each in fields(RunRecord)})

    def to_json(self) -> dict[str, Any]:
        """The record as JSON, for the description of a file."""
        described = asdict(self) | {"sampler": self.sampler_state.to_json()}
        del described["sampler_state"]
        if not self.cut:
            del described["cut"]
        return described

    @staticmethod
    def from_json(about: Mapping[str, Any]) -> RunRecord:
        """The inverse of `to_json`. Other entries of the description are ignored."""
        names = [each.name for each in fields(RunRecord)]
        entries: dict[str, Any] = {name: about[name] for name in names if name in about}
        for name in ("seeds", "status", "reason", "sampler"):
            require(name in about, f"{name} is missing")
        seeds = entries["seeds"]
        count = len(seeds) if isinstance(seeds, list) else 0
        entries["sampler_state"] = SamplerState.from_json(about["sampler"], count)
        return RunRecord(**entries)

    def to_run(
        self,
        engine: Engine,
        states: Any,
        kept: Any,
        history: dict[str, np.ndarray],
        chosen: np.ndarray,
        scores: np.ndarray | None,
    ) -> Run:
        """The run, from this record and the arrays of the file. `Run` explains the parameters."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return Run(
            engine=engine,
            states=states,
            kept=kept,
            history=history,
            chosen=chosen,
            scores=scores,
            **named,
        )


def _words(value: Any) -> bool:
    """Whether the value is a list of texts."""
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _networks(arrays: Arrays, plan: Plan, samples: SamplesRecord) -> None:
    """Raise a ValueError unless the networks are W_l (seeds, out, in) and b_l (seeds, out) for the
    layers and units of the plan, and for the inputs and outputs of the samples.
    """
    seeds = len(plan.seeds)
    depth = sum(name.startswith("network/W") for name in arrays)
    require(depth == plan.depth, f"it has {depth} layers, expected {plan.depth} by its settings")
    inputs = None
    for l in range(1, depth + 1):
        W = arrays.get(f"network/W{l}")
        b = arrays.get(f"network/b{l}")
        valid = (
            W is not None
            and b is not None
            and W.ndim == 3
            and b.shape == W.shape[:2] == (seeds, W.shape[1])
        )
        fits = valid and inputs in (None, W.shape[2]) and _real(W) and _real(b)  # type: ignore[union-attr]
        require(fits, f"network: layer {l} is incomplete, or not finite")
        inputs = W.shape[1]  # type: ignore[union-attr]
    hidden = tuple(arrays[f"network/W{l}"].shape[1] for l in range(1, depth))
    require(
        hidden == plan.hidden,
        f"network: the hidden layers have {hidden} units, expected {plan.hidden} by its settings",
    )
    for what, l, axis, expected in (
        ("inputs", 1, 2, samples.inputs),
        ("outputs", depth, 1, samples.outputs),
    ):
        found = arrays[f"network/W{l}"].shape[axis]
        require(
            found == expected,
            f"network: it has {found} {what}, expected {expected} by its samples",
        )


def _real(a: np.ndarray) -> bool:
    """Whether all entries are finite floating-point numbers."""
    return a.dtype.kind == "f" and bool(np.isfinite(a).all())


@float64
def check_values(path: Any, arrays: Arrays, stored: Stored, sigma: Activation) -> None:
    """Raise a ValueError if a network gives numbers at its first samples whose squares are not
    finite.

    Parameters
    ----------
    path : the file, for errors.
    arrays : its arrays.
    stored : what they say.
    sigma : the activation.
    """
    depth = stored.plan.depth
    x = stored.samples.terms[0].x[:VALUES_AT]
    z = np.broadcast_to(x, (len(stored.run.seeds), *x.shape))
    with damage(path), np.errstate(over="ignore", invalid="ignore"):
        for l in range(1, depth + 1):
            W = arrays[f"network/W{l}"]
            z = z if l == 1 else np.asarray(sigma(jnp.asarray(z)))
            z = z @ np.swapaxes(W, 1, 2) + arrays[f"network/b{l}"][:, None]
        finite = np.isfinite(z * z).all((1, 2))
        failed = np.array([status == Status.NON_FINITE for status in stored.run.status])
        require(bool((finite | failed).all()), "network: it gives numbers that are not finite")


def _history(arrays: Arrays, run: RunRecord, squared: bool) -> None:
    """Raise a ValueError unless the history has one array (seeds, records) for every quantity.

    Parameters
    ----------
    arrays, run : of the file.
    squared : whether the losses are sums of squares.
    """
    seeds = len(run.seeds)
    history = {name: a for name, a in arrays.items() if name.startswith("history/")}
    missing = [name for name in REQUIRED_HISTORY if f"history/{name}" not in history]
    require(not missing, f"history/{', '.join(missing)} missing")
    records = {a.shape for a in history.values()}
    valid = len(records) == 1 and all(len(s) == 2 and s[0] == seeds and s[1] > 0 for s in records)
    require(
        valid and all(a.dtype.kind in "biuf" for a in history.values()),
        "history does not have one number for every seed and record",
    )
    iteration = history["history/iteration"]
    whole = iteration.dtype.kind in "iuf" and bool(np.isfinite(iteration).all())
    whole = whole and bool(((iteration >= 0) & (iteration < 2**62)).all())
    whole = whole and bool((iteration % 1 == 0).all())
    require(
        whole and bool((iteration[:, 1:] >= iteration[:, :-1]).all()),
        "history/iteration must be whole numbers that do not fall",
    )
    seconds = history["history/seconds"]
    require(bool((np.isfinite(seconds) & (seconds >= 0)).all()), "history/seconds has no times")
    chosen = arrays.get("chosen")
    valid = chosen is not None and chosen.shape == (seeds,) and chosen.dtype.kind in "iu"
    inside = valid and bool(((chosen >= 0) & (chosen < iteration.shape[1])).all())  # type: ignore[operator]
    require(inside, "chosen does not say which record each seed stands for")
    loss = history["history/loss"]
    true_loss = history["history/mean_squared_loss"]
    each = np.arange(seeds)
    whole = np.array([word != Status.NON_FINITE for word in run.status])
    final = np.isfinite(loss[each, chosen]) & np.isfinite(loss[:, 0])
    require(bool(final[whole].all()), "history/loss has no loss for a seed that did not fail")
    known = ~np.isnan(true_loss[each, chosen])
    require(bool(known[whole].all()), "history/mean_squared_loss has no loss for such a seed")
    if squared:
        for name, values in (("loss", loss), ("mean_squared_loss", true_loss)):
            require(not bool((values < 0).any()), f"history/{name} has losses below 0")
    visited = run.sampler_state.visited
    require(visited <= iteration.max(), f"sampler: visited={visited} is after its last iteration")


def check_phases(path: Any, arrays: Arrays, phases: Sequence[str]) -> None:
    """Raise a ValueError if the history counts in phases that the method does not have."""
    phase = arrays.get("history/phase")
    with damage(path):
        known = phase is None or bool(np.isin(phase, range(len(phases))).all())
        require(known, f"history/phase is not one of the {len(phases)} phases of its method")


def unflatten_state(path: Any, name: str, shapes: Any, arrays: Arrays) -> Any:
    """The state of a method, built from the arrays of a file.

    Parameters
    ----------
    path : the file, for errors.
    name : "state" or "kept", the first part of the names of the arrays.
    shapes : the state as a tree of shapes and types.
    arrays : all arrays by name. The sorted names of the state are in the order of its leaves.
    """
    leaves, tree = jax.tree.flatten(shapes)
    own = part(dict(arrays), name)
    stored = [own[number] for number in sorted(own)]
    if [(x.shape, x.dtype) for x in leaves] != [(x.shape, x.dtype) for x in stored]:
        raise ValueError(
            f"{shown_path(path)}: {name}/… holds a state that this version of sapm cannot "
            "continue; it was written by another version."
        )
    return jax.tree.unflatten(tree, [jnp.asarray(x) for x in stored])
