"""What the arrays and the description of a file must be for a result to be made of them: checked before anything is built.

Whoever wrote the file, its arrays are as large as the file and no larger, and all that is made of them is of their size: a depth,
a width or a count that only a number in the description claims is refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sapm.methods.build import METHODS, resolve, resolve_options
from sapm.names import brief, number, shown
from sapm.network import INITIALISERS
from sapm.objective import MODELS, STARTS

HISTORY = ("iteration", "seconds", "loss", "mean_squared_loss", "bound_ratio")
Arrays = Mapping[str, np.ndarray]


def part(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays under that name, without it."""
    return {name.removeprefix(prefix + "/"): a for name, a in arrays.items() if name.startswith(prefix + "/")}


def fitted(path: Any, make: Callable, *arguments):
    """make(*arguments); whatever goes wrong there is wrong with the file."""
    try:
        return make(*arguments)
    except Exception as error:  # of any kind: no list of what numbers that do not fit can do is complete
        raise ValueError(f"{path} is damaged: its description does not fit its arrays; use an earlier copy.") from error


def check(path: str | Path, arrays: Arrays, about: dict) -> None:
    """Refuse, in one sentence, what `result.to_file` cannot have written."""

    def need(right: bool, what: str) -> None:
        if not right:
            raise ValueError(f"{path} is damaged: {what}; use an earlier copy.")

    config = about.get("config")
    need(isinstance(config, dict), "it has no settings")
    try:
        _description(about, need)
        _settings(config, len(about["seeds"]), need)  # type: ignore[arg-type]
        need(config.get("seeds") == about["seeds"], "its settings name other seeds")  # type: ignore[union-attr]
    except (ValueError, TypeError) as error:
        if str(error).startswith(f"{path} "):
            raise
        raise ValueError(f"{path} is damaged: {shown(str(error), 300)}") from None
    _networks(arrays, about, need)
    _history(arrays, about["status"], need)
    _samples(arrays, about, need)


def _words(given: Any, count: int | None = None) -> bool:
    return isinstance(given, list) and all(isinstance(w, str) for w in given) and count in (None, len(given))


def _count(given: Any, least: int = 0) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and least <= given < 2**63


def _numbers(given: Any, count: int) -> bool:
    return isinstance(given, list) and len(given) == count and all(np.isfinite(number(v)) for v in given)


def _description(about: dict, need: Callable) -> None:
    need(about.get("kind") in ("regression", "pde"), f"it is about {brief(about.get('kind'))}, and not about data or a PDE")
    names, fields, parameters = about.get("names", []), about.get("fields", ["u"]), about.get("parameters", {})
    need(_words(names) and len(set(names)) == len(names) > 0, "it does not name the coordinates")
    need(_words(fields) and len(fields) > 0, "it does not name the functions")
    numbers = parameters.values() if isinstance(parameters, dict) else [None]
    need(all(np.isfinite(number(v)) for v in numbers), "its parameters are not numbers")
    seeds = about.get("seeds")
    need(isinstance(seeds, list) and len(seeds) > 0 and all(map(_count, seeds)), "it does not name the seeds")
    for name in ("status", "reason"):
        need(_words(about.get(name), len(seeds)), f"it has not one {name} for every seed")  # type: ignore[arg-type]
    need(about.get("domain") is None or isinstance(about["domain"], dict), "its domain is not described")
    need("activation_values" not in about or _numbers(about["activation_values"], 6), "its activation is not described")
    need(isinstance(about.get("cut", ""), str), f"its end is {brief(about.get('cut'))}")
    units = about.get("units", {"size": 1.0, "stiffness": 1.0})
    right = isinstance(units, dict) and all(0 < number(units.get(name)) < np.inf for name in ("size", "stiffness"))
    need(right, "its units are not numbers")


def _settings(config: dict, seeds: int, need: Callable) -> None:
    """As `plan` leaves them. Options that an earlier version did not have get what they are by default."""
    for name, known in (("model", MODELS), ("method", METHODS[1:]), ("init", tuple(INITIALISERS)), ("start", STARTS)):
        need(config.get(name) in known, f"its {name} is {brief(config.get(name))}")
    resolve(config["model"], config["method"])
    need(isinstance(config.get("activation"), str), "it does not name the activation")
    need(_count(config.get("depth"), 2), f"its depth is {brief(config.get('depth'))}")
    width = config.get("width")
    need(
        _count(width, 1) or (isinstance(width, list) and all(_count(w, 1) for w in width)),
        f"its width is {brief(width)}",
    )
    need(_count(config.get("max_iter")), f"its max_iter is {brief(config.get('max_iter'))}")
    for name, usual in (("key", None), ("drawn_at", 0)):
        need(_count(config.get(name, usual)), f"its {name} is {brief(config.get(name))}")
    share, since = stage if isinstance(stage := config.get("stage", [1.0, 0]), list) and len(stage) == 2 else (0.0, 0)
    need(0 < number(share) <= 1 and _count(since), f"its stage is {brief(stage)}")
    for name in ("points", "boundary_points", "test_points", "max_seconds", "mu", "again"):
        given = config.get(name, None if name == "again" else "missing")
        right = 0 < number(given) < np.inf if name in ("max_seconds", "mu") else _count(given)
        need(given is None or right, f"its {name} is {brief(given)}")
    for name in ("fresh", "lowest", "ended", "scores"):
        found = config.get(name, [])
        found = [None] * seeds if isinstance(found, float) else found  # an earlier version had that of the best alone
        right = isinstance(found, list) and (name == "fresh" or not found or len(found) == seeds)
        right = right and all(isinstance(v, (int, float)) or (v is None and name != "fresh") for v in found)
        need(right, f"its residuals at fresh points are {brief(found)}")
        config |= {name: found} if name in config else {}
    for name, count in (("alpha", config["depth"]), ("beta", config["depth"] - 1)):
        given = config.get(name)
        numbers = given if isinstance(given, list) else [given]
        right = all(0 < number(v) < np.inf for v in numbers) and (not isinstance(given, list) or len(given) == count)
        need(right, f"its {name} is {brief(given)}")
    need(isinstance(config.get("options"), dict), "it has no options")
    config["options"] = resolve_options(config["method"], config["options"])
    need(isinstance(config.get("choice", ""), str), f"its choice is {brief(config.get('choice'))}")
    need(config.get("second", True) is True, f"its second is {brief(config.get('second'))}")
    need("second" not in config or "stage" in config, "it does not say which part of the time its second attempt has come to")
    need(_words(config.get("doubts", [])), f"its doubts are {brief(config.get('doubts'))}")


def _networks(arrays: Arrays, about: dict, need: Callable) -> None:
    """W_l (seeds, out, in) and b_l (seeds, out) for as many layers of as many units as the settings say."""
    config, seeds = about["config"], len(about["seeds"])
    found = sum(name.startswith("network/W") for name in arrays)
    need(found == config["depth"], f"its depth is {brief(config['depth'])}, and it has {found} layers")
    inputs = None
    for l in range(1, found + 1):
        W, b = arrays.get(f"network/W{l}"), arrays.get(f"network/b{l}")
        right = W is not None and b is not None and W.ndim == 3 and b.shape == W.shape[:2] == (seeds, W.shape[1])
        need(right and inputs in (None, W.shape[2]) and _real(W) and _real(b), f"layer {l} of its networks is not whole")  # type: ignore[union-attr]
        inputs = W.shape[1]  # type: ignore[union-attr]
    width = config["width"]
    hidden = [arrays[f"network/W{l}"].shape[1] for l in range(1, found)]
    need(hidden == ([width] * (found - 1) if isinstance(width, int) else width), "its networks have other widths than it says")


def _real(a: np.ndarray) -> bool:
    return a.dtype.kind == "f" and bool(np.isfinite(a).all())


def _history(arrays: Arrays, status: list[str], need: Callable) -> None:
    seeds = len(status)
    found = {name: a for name, a in arrays.items() if name.startswith("history/")}
    need(all(f"history/{name}" in found for name in HISTORY), "its history is not whole")
    records = {a.shape for a in found.values()}
    right = len(records) == 1 and all(len(s) == 2 and s[0] == seeds and s[1] > 0 for s in records)
    need(right and all(a.dtype.kind in "biuf" for a in found.values()), "its history is not one number for every seed and record")
    iteration, chosen = found["history/iteration"], arrays.get("chosen")
    need(bool(np.isfinite(iteration).all() and (iteration >= 0).all()), "its history has no iterations")
    need(bool(np.isfinite(found["history/seconds"]).all()), "its history has no times")
    whole = chosen is not None and chosen.shape == (seeds,) and chosen.dtype.kind in "iu"
    need(whole and bool(((chosen >= 0) & (chosen < iteration.shape[1])).all()), "it does not say which record is meant")  # type: ignore[operator]
    final = found["history/loss"][np.arange(seeds), chosen]
    broken = np.array([word == "non-finite" for word in status])
    need(not np.isnan(final[~broken]).any(), "its history has no loss for a seed that did not fail")


def _samples(arrays: Arrays, about: dict, need: Callable) -> None:
    """Every array of a term has its samples on axis 0, and all numbers are finite (but what a residual gives for any numbers)."""
    found = {name.removeprefix("samples/"): a for name, a in arrays.items() if name.startswith("samples/")}
    for name, a in found.items():
        finite = name.endswith("/probe") or np.isfinite(a).all()
        need(a.dtype.kind in "fiu" and bool(finite), f"samples/{name} holds numbers that are not finite")
        need(0 not in a.shape[:1], f"samples/{name} is empty")
    count = sum(name.startswith("term") and name.endswith("/x") for name in found)
    need(count > 0 and all(f"term{i}/x" in found for i in range(count)), "it has no samples")
    names, parameters, fields = about["names"], about.get("parameters", {}), about.get("fields", ["u"])
    m = len(fields) + len(parameters) if about["kind"] == "pde" else found.get("term0/y", np.zeros((1, 1))).shape[-1]
    depth = about["config"]["depth"]
    need(arrays[f"network/b{depth}"].shape[1] == m, "its networks have another number of outputs than it says")
    wide, inputs = arrays["network/W1"].shape[2], found["term0/x"].shape[-1]
    plain = about["kind"] == "pde" and about.get("embedding") is None
    need(wide == inputs and (inputs == len(names) or not plain), "its networks have another number of inputs than it says")
    for name in [*(f"term{i}" for i in range(count)), "validation", "held"]:
        if f"{name}/x" in found:
            _term(name, {part: found.get(f"{name}/{part}") for part in PARTS}, len(names), m, need)
    units, inputs = about.get("units"), found["term0/x"].shape[1]
    need(units is None or all(_numbers(units.get(name), inputs) for name in ("center", "spread")), "its units are not numbers")
    x, y = found.get("test/x"), found.get("test/y")
    right = x is None or (x.ndim == 2 and x.shape[1] == len(names))
    right = right and (y is None or (x is not None and y.shape == (len(x), m - len(parameters))))
    need(right, "its test points are not whole")


PARTS = (
    "x", "y", "c", "weight", "directions", "forms", "c0", "points", "unit", "of", "factor", "datum", "factor_tangents",
    "datum_tangents",
)  # fmt: skip


def _term(name: str, a: dict[str, np.ndarray | None], d: int, m: int, need: Callable) -> None:
    """n samples with D inputs, k tangents along directions, q of them second-order channels."""
    parts = {part: value for part, value in a.items() if value is not None}
    need({"x", "y", "c", "weight"} <= set(parts), f"samples/{name} is not whole")
    need(parts["x"].ndim == parts["y"].ndim == parts["c"].ndim == 2, f"samples/{name} is not a table")
    (n, D), rows, k = parts["x"].shape, parts["y"].shape[1], parts["c"].shape[1]
    k = parts["directions"].shape[1] if "directions" in parts and parts["directions"].ndim == 3 else (D if k else 0)
    right = {
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
    for part, shapes in right.items():
        need(
            part not in parts or parts[part].shape in shapes,
            f"samples/{name}/{part} has the shape {parts.get(part, parts['x']).shape}",
        )
    forms, of = parts.get("forms"), parts.get("of")
    fits = forms is None or ("directions" in parts and forms.ndim == 2 and sum(forms.shape) == k)
    need(fits, f"samples/{name}/forms does not fit its directions")
    whole = of is None or (of.ndim == 1 and of.dtype.kind in "iu" and bool(((of >= 0) & (of < m)).all()))
    need(whole and (of is None or len(of) == rows), f"samples/{name}/of names outputs that are not there")


def unflattened(path, shapes, arrays: Arrays):
    """The arrays of a state in the form that a method has it."""
    leaves, tree = jax.tree.flatten(shapes)
    found = [arrays[name] for name in sorted(arrays)]
    if [(x.shape, x.dtype) for x in leaves] != [(x.shape, x.dtype) for x in found]:
        raise ValueError(f"{path} holds a state that this version of sapm cannot continue; it was written by another version.")
    return jax.tree.unflatten(tree, [jnp.asarray(x) for x in found])
