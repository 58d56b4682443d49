"""The record of a run in a file (`RunRecord`), and the checks that the arrays and the description
of a file must pass before a result is built from them (`check`).

The checks allocate nothing larger than the file itself: a depth, a width or a count in the
description must agree with the shapes of the arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sapm.errors import (
    Advice,
    AdviceKind,
    FieldCheck,
    brief,
    check_fields,
    checked,
    choose,
    count,
    number,
    printable,
    shown,
    shown_path,
    text,
)
from sapm.methods.engine import Engine
from sapm.methods.method import Method, check_pair, check_same_method, stored_method
from sapm.numerics.activations import ACTIVATIONS
from sapm.training.run import Plan, Run, SamplerState, Status

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


def built(path: Any, make: Callable, *arguments):
    """make(*arguments). An error in it is reported as one of this version of sapm.

    When this is called, the checksum and the contents of the file have been checked. The file is
    therefore not damaged: it was forged, or this version of sapm has a bug.

    Parameters
    ----------
    path : the file, for errors.
    make : builds a part of the result from `arguments`.
    """
    try:
        return make(*arguments)
    except Exception as error:
        raise ValueError(
            f"{shown_path(path)} is undamaged, but this version of sapm cannot open it "
            f"({type(error).__name__}: {shown(str(error), 200)}); if this version wrote the file, "
            "please report the error."
        ) from error


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


def check(
    path: Any, arrays: dict[str, np.ndarray], about: dict, method: Method | None = None
) -> tuple[Plan, RunRecord]:
    """The plan and the run that a file describes. It raises a ValueError for contents that
    `result.to_file` cannot have written.

    The activation of the plan is tanh, whatever the file says. The caller sets the right one.

    Parameters
    ----------
    path : the file, for errors.
    arrays, about : its arrays by name, and its description.
    method : the method of the run, stated again; needed if it is the user's own.
    """
    config = about.get("config")
    if method is not None and isinstance(config, dict):
        options = config.get("options")
        check_same_method(
            method, str(config.get("method")), options if isinstance(options, dict) else {}
        )
    try:
        upgrade(arrays, about)
        run = RunRecord.from_json(about)
        plan = _plan(about, method)
        require(plan.seeds == run.seeds, "its settings name other seeds")
        require(_numbers(about.get("activation_values", [0.0] * 6), 6), "its activation is unknown")
        scores = arrays.get("scores", np.zeros(len(run.seeds)))
        valid = scores.shape == (len(run.seeds),) and scores.dtype.kind == "f"
        require(valid and not np.isnan(scores).any(), "it does not have one score for every seed")
        _problem(about)
        _networks(arrays, plan)
        _history(arrays, run.status)
        _samples(arrays, about, plan.depth)
    except (ValueError, TypeError) as error:
        text = shown(str(error).rstrip("."), 300)
        raise ValueError(f"{shown_path(path)} is damaged: {text}; use an earlier copy.") from None
    return plan, run


def require(valid: bool, what: str) -> None:
    """Raise a ValueError with the sentence `what` if `valid` is false.

    Parameters
    ----------
    valid : the condition.
    what : the sentence.
    """
    if not valid:
        raise ValueError(what)


def _plan(about: dict, method: Method | None) -> Plan:
    """The plan that the settings in the description give."""
    config = about.get("config")
    require(isinstance(config, dict), "it has no settings")
    assert isinstance(config, dict)
    require(isinstance(config.get("activation"), str), "it does not name the activation")
    require(isinstance(config.get("options"), dict), "it has no options")
    name = text("method", config.get("method"))
    own = about.get("own_method", False) is True
    stored = stored_method(name, config["options"], own, method)
    plan = Plan.from_dict(config, ACTIVATIONS["tanh"], stored)
    check_pair(plan.model, stored)
    return plan


def _each(check: FieldCheck) -> FieldCheck:
    """The check of a list of values, each of which must pass `check`. It gives a tuple."""

    def checked_all(name: str, value: Any) -> tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{name}={brief(value)} must be a list.")
        return tuple(check(name, entry) for entry in value)

    return checked_all


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

    seeds: tuple[int, ...] = checked(_each(count(0, 2**32 - 1)))
    status: tuple[Status, ...] = checked(_each(_status))
    reason: tuple[str, ...] = checked(_each(text))
    sampler_state: SamplerState
    advice: tuple[Advice, ...] = checked(_each(_advice), ())
    attempt: int = checked(count(1, 2), 1)
    cut: str = checked(text, "")

    def __post_init__(self) -> None:
        check_fields(self)
        require(len(self.seeds) > 0, "it does not name the seeds")
        for name in ("status", "reason"):
            valid = len(getattr(self, name)) == len(self.seeds)
            require(valid, f"it does not have one {name} for every seed")

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
            require(name in about, f"it does not name the {name}")
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


def _numbers(value: Any, count: int) -> bool:
    """Whether the value is a list of `count` finite numbers."""
    valid = isinstance(value, list) and len(value) == count
    return valid and all(np.isfinite(number(entry)) for entry in value)


def _problem(about: dict) -> None:
    """Raise a ValueError if the description of the problem is incomplete."""
    kind = about.get("kind")
    require(
        kind in ("regression", "pde"),
        f"its kind of problem is {brief(kind)}, expected 'regression' or 'pde'",
    )
    names = about.get("names", [])
    functions = about.get("fields", ["u"])
    parameters = about.get("parameters", {})
    require(_words(names) and len(set(names)) == len(names) > 0, "it does not name the coordinates")
    require(_words(functions) and len(functions) > 0, "it does not name the functions")
    words = [*names, *functions, *(parameters if isinstance(parameters, dict) else ())]
    require(all(printable(word) == word for word in words), "its names cannot be printed")
    numbers = parameters.values() if isinstance(parameters, dict) else [None]
    require(all(np.isfinite(number(v)) for v in numbers), "its parameters are not numbers")
    domain = about.get("domain")
    require(domain is None or isinstance(domain, dict), "its domain is not described")
    units = about.get("units", {"size": 1.0, "stiffness": 1.0})
    valid = isinstance(units, dict) and all(
        0 < number(units.get(name)) < np.inf for name in ("size", "stiffness")
    )
    require(valid, "its units are not numbers")


def _networks(arrays: Arrays, plan: Plan) -> None:
    """Raise a ValueError unless the networks are W_l (seeds, out, in) and b_l (seeds, out) for the
    layers and units of the plan.
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
        require(fits, f"layer {l} of its networks is incomplete")
        inputs = W.shape[1]  # type: ignore[union-attr]
    hidden = tuple(arrays[f"network/W{l}"].shape[1] for l in range(1, depth))
    require(
        hidden == plan.hidden,
        f"its hidden layers have {hidden} units, expected {plan.hidden} by its settings",
    )


def _real(a: np.ndarray) -> bool:
    """Whether all entries are finite floating-point numbers."""
    return a.dtype.kind == "f" and bool(np.isfinite(a).all())


def _history(arrays: Arrays, status: Sequence[Status]) -> None:
    """Raise a ValueError unless the history has one array (seeds, records) for every quantity."""
    seeds = len(status)
    history = {name: a for name, a in arrays.items() if name.startswith("history/")}
    require(
        all(f"history/{name}" in history for name in REQUIRED_HISTORY), "its history is incomplete"
    )
    records = {a.shape for a in history.values()}
    valid = len(records) == 1 and all(len(s) == 2 and s[0] == seeds and s[1] > 0 for s in records)
    require(
        valid and all(a.dtype.kind in "biuf" for a in history.values()),
        "its history does not have one number for every seed and record",
    )
    iteration = history["history/iteration"]
    chosen = arrays.get("chosen")
    require(
        bool(np.isfinite(iteration).all() and (iteration >= 0).all()),
        "its history has no iterations",
    )
    require(bool(np.isfinite(history["history/seconds"]).all()), "its history has no times")
    whole = chosen is not None and chosen.shape == (seeds,) and chosen.dtype.kind in "iu"
    inside = whole and bool(((chosen >= 0) & (chosen < iteration.shape[1])).all())  # type: ignore[operator]
    require(inside, "it does not say which record each seed stands for")
    final = history["history/loss"][np.arange(seeds), chosen]
    broken = np.array([word == Status.NON_FINITE for word in status])
    require(
        not np.isnan(final[~broken]).any(), "its history has no loss for a seed that did not fail"
    )


def _samples(arrays: Arrays, about: dict, depth: int) -> None:
    """Raise a ValueError for samples whose arrays do not fit together, or hold numbers that are not
    finite.

    Parameters
    ----------
    about : the description, whose names and kind have been checked.
    depth : the number of layers.
    """
    samples = {
        name.removeprefix("samples/"): a
        for name, a in arrays.items()
        if name.startswith("samples/")
    }
    for name, a in samples.items():
        # a probe holds values of the residual for random numbers, which need not be finite
        finite = name.endswith("/probe") or np.isfinite(a).all()
        require(
            a.dtype.kind in "fiu" and bool(finite),
            f"samples/{name} holds numbers that are not finite",
        )
        require(0 not in a.shape[:1], f"samples/{name} is empty")
    count = sum(name.startswith("term") and name.endswith("/x") for name in samples)
    require(count > 0 and all(f"term{i}/x" in samples for i in range(count)), "it has no samples")
    names = about["names"]
    parameters = about.get("parameters", {})
    fields = about.get("fields", ["u"])
    m = (
        len(fields) + len(parameters)
        if about["kind"] == "pde"
        else samples.get("term0/y", np.zeros((1, 1))).shape[-1]
    )
    require(
        arrays[f"network/b{depth}"].shape[1] == m,
        f"its networks do not have {m} outputs, as its problem has",
    )
    wide = arrays["network/W1"].shape[2]
    inputs = samples["term0/x"].shape[-1]
    plain = about["kind"] == "pde" and about.get("embedding") is None
    require(
        wide == inputs and (inputs == len(names) or not plain),
        f"its networks have {wide} inputs, its samples {inputs} and its problem {len(names)}",
    )
    for name in [*(f"term{i}" for i in range(count)), "validation", "held"]:
        if f"{name}/x" in samples:
            _term(name, {part: samples.get(f"{name}/{part}") for part in PARTS}, len(names), m)
    units = about.get("units")
    inputs = samples["term0/x"].shape[1]
    require(
        units is None or all(_numbers(units.get(name), inputs) for name in ("center", "spread")),
        "its units are not numbers",
    )
    x = samples.get("test/x")
    y = samples.get("test/y")
    valid = x is None or (x.ndim == 2 and x.shape[1] == len(names))
    valid = valid and (y is None or (x is not None and y.shape == (len(x), m - len(parameters))))
    require(valid, "its test points are incomplete")


PARTS = (
    "x", "y", "c", "weight", "directions", "forms", "orders", "c0", "points", "unit", "of",
    "factor", "datum", "factor_tangents", "datum_tangents",
)  # fmt: skip


def _term(name: str, a: dict[str, np.ndarray | None], d: int, m: int) -> None:
    """Raise a ValueError unless the arrays of a term have the shapes of n samples with D inputs and
    k channels.

    Parameters
    ----------
    name : the name of the term.
    a : its arrays by part.
    d : the number of coordinates.
    m : the number of outputs.
    """
    parts = {part: value for part, value in a.items() if value is not None}
    require({"x", "y", "c", "weight"} <= set(parts), f"samples/{name} is incomplete")
    require(
        parts["x"].ndim == parts["y"].ndim == parts["c"].ndim == 2, f"samples/{name} is not a table"
    )
    n, D = parts["x"].shape
    rows = parts["y"].shape[1]
    if "directions" in parts and parts["directions"].ndim == 3:
        k = parts["directions"].shape[1]
    else:
        k = D if parts["c"].shape[1] else 0
    known_shapes = {
        "y": [(n, rows)],
        "c": [(n, 0), (n, k)],
        "weight": [(), (n,)],
        "directions": [(n, k, D)],
        "c0": [(n,)],
        "points": [(n, d)],
        "unit": [(m,)],
        "factor": [(n, m)],
        "datum": [(n, m)],
        "factor_tangents": [(n, k, m)],
        "datum_tangents": [(n, k, m)],
    }
    for part, shapes in known_shapes.items():
        require(
            part not in parts or parts[part].shape in shapes,
            f"samples/{name}/{part} has the shape {parts.get(part, parts['x']).shape}",
        )
    forms = parts.get("forms")
    of = parts.get("of")
    fits = forms is None or ("directions" in parts and forms.ndim == 2 and sum(forms.shape) == k)
    require(fits, f"samples/{name}/forms does not fit its directions")
    orders = parts.get("orders")
    fits = orders is None or (
        "directions" in parts
        and orders.ndim == 1
        and orders.dtype.kind in "iu"
        and bool((orders >= 1).all())
        and int(orders.sum()) == k
    )
    require(fits, f"samples/{name}/orders does not fit its directions")
    whole = of is None or (
        of.ndim == 1 and of.dtype.kind in "iu" and bool(((of >= 0) & (of < m)).all())
    )
    require(
        whole and (of is None or len(of) == rows),
        f"samples/{name}/of names outputs that do not exist",
    )


def unflatten_state(path, shapes, arrays: Arrays):
    """The state of a method, built from the arrays of a file.

    Parameters
    ----------
    path : the file, for errors.
    shapes : the state as a tree of shapes and types.
    arrays : the leaves of the state by name. The sorted names are in the order of the leaves.
    """
    leaves, tree = jax.tree.flatten(shapes)
    stored = [arrays[name] for name in sorted(arrays)]
    if [(x.shape, x.dtype) for x in leaves] != [(x.shape, x.dtype) for x in stored]:
        raise ValueError(
            f"{shown_path(path)} holds a state that this version of sapm cannot continue; it was "
            "written by another version."
        )
    return jax.tree.unflatten(tree, [jnp.asarray(x) for x in stored])
