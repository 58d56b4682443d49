"""A problem at its points: plain arrays, ready for training and for a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sapm.ansatz import Ansatz
from sapm.domain import domain_from
from sapm.embedding import Embedding, embedding_from
from sapm.jet import Activation, Jet, float64
from sapm.network import Network
from sapm.term import Term

Weights = Sequence[tuple[Any, Any]]
DATA, COMPUTED = (1e-12, 0.0), (1e-9, 1e-13)  # what may differ between machines: a part, and where a function cancels to 0


@dataclass(frozen=True)
class Samples:
    """A problem at its points. `test` has the held-out points x and, where known, the answer y; `held` is the PDE there."""

    kind: str  # "regression" or "pde"
    names: tuple[str, ...]
    domain: dict | None
    terms: tuple[Term, ...]
    test: dict[str, np.ndarray]
    validation: Term | None = None
    held: Term | None = None
    fields: tuple[str, ...] = ("u",)  # of a PDE: the functions to find,
    parameters: dict[str, float] = field(default_factory=dict)  # numbers to find, with a first guess
    ansatz: Ansatz | None = None  # what makes conditions hold of themselves
    embedding: Embedding | None = None  # what the network sees of the coordinates, if not themselves
    kept: Scaling | None = None  # the units of earlier points, which those now there have taken the place of

    @property
    def inputs(self) -> int:
        return len(self.names) if self.embedding is None else self.embedding.width

    @property
    def outputs(self) -> int:
        if self.kind == "pde":
            return len(self.fields) + len(self.parameters)
        return self.terms[0].y.shape[1]

    @property
    def units(self) -> np.ndarray:
        """What the parameters count in: their guesses, so that a network starts with 1 (or with 0)."""
        return np.array([guess or 1.0 for guess in self.parameters.values()])

    @cached_property
    def scaling(self) -> Scaling:
        """The units that suit it."""
        return _suited(self) if self.kept is None else self.kept


@float64
def to_arrays(samples: Samples) -> dict[str, np.ndarray]:
    """All of its numbers, by name, for a file. The function of a nonlinear PDE is not among them, only what it gives for some."""
    arrays = {f"test/{name}": np.asarray(value) for name, value in samples.test.items()}
    terms = {f"term{i}": term for i, term in enumerate(samples.terms)}
    terms |= {name: term for name in ("validation", "held") if (term := getattr(samples, name)) is not None}
    for name, term in terms.items():
        parts: dict[str, Any] = {"x": term.x.value, "y": term.y, "c": term.c, "weight": term.weight}
        if (
            term.x.forms
            or term.function is not None
            or not np.array_equal(term.x.tangents, _coordinates(term.x.value, term.channels))
        ):
            parts["directions"] = term.x.tangents
        if term.x.forms:
            parts["forms"] = np.asarray(term.x.forms)
        if term.c0 is not None:
            parts["c0"] = term.c0
        if term.function is not None:
            parts |= {"probe": _probe(term), "unit": term.unit}
        if term.points is not None:
            parts["points"] = term.points
        if term.ansatz is not None:
            for part, jet in zip(("factor", "datum"), term.ansatz, strict=True):
                parts |= {part: jet.value, part + "_tangents": jet.tangents}
        if term.of is not None:
            parts["of"] = np.asarray(term.of)
        arrays |= {f"{name}/{part}": np.asarray(value) for part, value in parts.items()}
    return arrays


def _probe(term: Term) -> Array:
    """What the function of a nonlinear term gives for some numbers: another function gives others."""
    x = term.points[:64]  # type: ignore[index]
    numbers = np.random.default_rng(0).normal(size=(len(x), 1 + term.channels, len(term.unit)))  # type: ignore[arg-type]
    return jax.vmap(term.function)(x, numbers[:, 0], numbers[:, 1:])  # type: ignore[arg-type]


def _coordinates(x, k: int) -> Array:
    """The directions that a file need not hold: all coordinates, or none."""
    n, d = x.shape
    return jnp.broadcast_to(jnp.eye(d), (n, d, d)) if k else jnp.zeros((n, 0, d))


def nonlinear(arrays: dict[str, np.ndarray]) -> bool:
    """Whether the stored PDE is."""
    return "term0/probe" in arrays


def hardened(samples: Samples, ansatz: Ansatz) -> Samples:
    """The same problem for a network that is a factor of the solution; before features take the place of coordinates."""
    one = lambda term: replace(term, ansatz=ansatz.jets(term.x))  # noqa: E731
    held = None if samples.held is None else one(samples.held)
    return replace(samples, terms=tuple(map(one, samples.terms)), held=held, ansatz=ansatz)


@float64
def from_arrays(
    about: dict[str, Any], arrays: dict[str, np.ndarray], function: Callable | None = None, ansatz: Ansatz | None = None
) -> Samples:
    """What `describe` and `to_arrays` took apart; `function` is that of a nonlinear PDE."""

    def term(name: str) -> Term | None:
        if f"{name}/x" not in arrays:
            return None
        x, y, c, weight = (jnp.asarray(arrays[f"{name}/{part}"]) for part in ("x", "y", "c", "weight"))
        directions = jnp.asarray(arrays.get(f"{name}/directions", _coordinates(x, c.shape[1])))
        forms = tuple(tuple(int(sign) for sign in form) for form in arrays.get(f"{name}/forms", ()))
        c0 = jnp.asarray(arrays[f"{name}/c0"]) if f"{name}/c0" in arrays else None
        of = tuple(int(i) for i in arrays[f"{name}/of"]) if f"{name}/of" in arrays else None
        points, unit = (jnp.asarray(arrays[key]) if (key := f"{name}/{part}") in arrays else None for part in ("points", "unit"))
        found = Term(Jet(x, directions, forms), y, c, weight, c0, points, unit, of=of)
        if f"{name}/factor" in arrays:
            jets = [[jnp.asarray(arrays[f"{name}/{part}{end}"]) for end in ("", "_tangents")] for part in ("factor", "datum")]
            found = replace(found, ansatz=tuple(Jet(value, tangents, forms) for value, tangents in jets))
        if unit is None:
            return found
        return replace(found, function=function, constants=len(about.get("parameters", ())))

    count = sum(name.startswith("term") and name.endswith("/x") for name in arrays)
    test = {name.removeprefix("test/"): value for name, value in arrays.items() if name.startswith("test/")}
    terms = tuple(found for i in range(count) if (found := term(f"term{i}")) is not None)
    more = {"fields": tuple(about.get("fields", ("u",))), "parameters": dict(about.get("parameters", {}))}
    samples = Samples(
        about["kind"], tuple(about["names"]), about["domain"], terms, test, term("validation"), term("held"), **more
    )
    samples = replace(samples, embedding=embedding_from(about.get("embedding")), ansatz=ansatz)
    if "units" not in about:
        return samples
    u = about["units"]
    kept = Scaling(np.asarray(u["center"]), np.asarray(u["spread"]), u["size"], u["stiffness"], samples.units)
    return replace(samples, kept=kept)


def check_same(problem, samples: Samples, config: dict, stored: dict[str, np.ndarray]) -> None:
    """A problem given with a file must be the one the file was made from: it must give the arrays stored there."""
    kind, wrong = type(problem).__name__, "the problem given is not the stored one"
    if config.get("problem", kind) != kind:
        raise ValueError(f"{wrong}, but a {kind}; give the problem that the file was made from.")
    counts = {name: config.get(name) for name in ("points", "boundary_points", "test_points", "mu")}
    if counts["points"] is None and not hasattr(problem, "X"):
        first = samples.terms[0]
        counts["points"] = np.asarray(first.x.value if first.points is None else first.points)
    if (counts["test_points"] is None or config.get("points") is None) and "x" in samples.test:  # they stay when points change
        counts["test_points"] = samples.test["x"]
    fresh = _comparable(to_arrays(problem.sketch() if config["options"].get("chunk") else problem.samples(**counts)))
    mine = _comparable(stored)
    for name in [*fresh, *(name for name in mine if name.startswith("term") and name not in fresh)]:
        a, b = fresh.get(name), mine.get(name)
        if name == "test/y" and b is None:
            continue  # an answer that was not known then
        near = DATA if hasattr(problem, "X") and name.endswith(("/x", "/y")) else COMPUTED
        if a is None or b is None or a.shape != b.shape or not _alike(a, b, *near):
            raise ValueError(f"{wrong}: {name} differs, {_said(name, problem)}; give the problem that the file was made from.")


def _said(name: str, problem) -> str:
    """What an array of a file is about."""
    part = name.partition("/")[0]
    if part == "term0":
        return "the data" if hasattr(problem, "X") else "the equation" if hasattr(problem, "residual") else "the function"
    known = {"test": "the domain, its points or the answer there", "held": "the equation", "validation": "the validation data"}
    return "a condition" if part.startswith("term") else known.get(part, part)


def _alike(a: np.ndarray, b: np.ndarray, part: float, least: float) -> bool:
    """Up to this part of the largest number of a column, or this number."""
    size = np.abs(np.where(np.isfinite(b), b, 0.0)).max(0 if b.ndim == 2 else None, initial=0.0)
    return bool(np.isclose(a, b, 0.0, np.maximum(least, part * size), equal_nan=True).all())


def _comparable(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Directions are compared by the second-order operator they make: eigenvectors may differ from machine to machine."""
    found = dict(arrays)
    for name in [name for name in arrays if name.endswith("/forms")]:
        v = found.pop(name.replace("forms", "directions"))
        k = arrays[name].shape[1]
        found[name + "/operator"] = np.einsum("qk,nki,nkj->nqij", arrays[name], v[:, :k], v[:, :k])
        found[name + "/along"] = v[:, k:]
    return found


def describe(samples: Samples) -> dict[str, Any]:
    """What a file says of it beside its numbers, as JSON."""
    embedding = None if samples.embedding is None else samples.embedding.describe()
    more = {"fields": samples.fields, "parameters": samples.parameters, "embedding": embedding}
    if samples.kept is not None:
        s = samples.kept
        more["units"] = {"center": s.center.tolist(), "spread": s.spread.tolist(), "size": s.size, "stiffness": s.stiffness}
    return {"kind": samples.kind, "names": samples.names, "domain": samples.domain} | more


def network_of(samples: Samples, weights: Weights, sigma: Activation) -> Network:
    """The network with these weights, in the problem's own units, as its terms take it: parameters count in their guesses."""
    *inner, (W, b) = weights
    m = len(b) - len(samples.parameters)
    return Network.of([*inner, (W, np.append(b[:m], b[m:] / samples.units))], sigma, len(samples.parameters))


@float64
def embedded(samples: Samples, embedding: Embedding) -> Samples:
    """The same problem for a network that gets the features in place of the coordinates."""
    one = lambda term: replace(term, x=embedding.jet(term.x), points=term.x.value)  # noqa: E731
    held = None if samples.held is None else one(samples.held)
    return replace(samples, terms=tuple(map(one, samples.terms)), held=held, embedding=embedding)


@float64
def pad(samples: Samples, rows: Callable[[int], int], columns: Callable[[int], int]) -> Samples:
    """The same problem with samples of weight 0 and inputs that are 0, so that problems of like size have equal shapes."""

    def grow(term: Term) -> Term:
        n, d = term.x.value.shape
        return term.pad(rows(n)).widen_input(columns(d))

    validation = None if samples.validation is None else grow(samples.validation)
    return replace(samples, terms=tuple(grow(term) for term in samples.terms), validation=validation)


# ---------------------------------------------------------------- units

USUAL = (1.0, 100.0)  # `strength` of the operators that the damping was chosen on


@dataclass(frozen=True)
class Scaling:
    """The units a network is trained in: inputs (x - center) / spread, outputs u / size. The losses stay what they are."""

    center: np.ndarray
    spread: np.ndarray
    size: float
    stiffness: float = 1.0  # by how much the operator magnifies more, or less, than operators usually do
    units: np.ndarray = field(default_factory=lambda: np.zeros(0))  # of parameters, which are the last outputs

    def _sizes(self, outputs: int) -> np.ndarray:
        """What every output counts in."""
        return np.append(np.full(outputs - len(self.units), self.size), self.units)

    @float64
    def term(self, term: Term) -> Term:
        return term.in_units(self.center, self.spread, self.size)

    def original(self, weights: Weights) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of a network in these units, the weights of the same function in the problem's own."""
        (W, b), *others = [(np.asarray(W), np.asarray(b)) for W, b in weights]
        first = (W / self.spread, b - W @ (self.center / self.spread))
        *inner, (W, b) = [first, *others]
        size = self._sizes(len(b))
        return [*inner, (W * size[:, None], b * size)]

    def scaled(self, weights: Weights) -> list[tuple[np.ndarray, np.ndarray]]:
        """The inverse of `original`."""
        (W, b), *others = [(np.asarray(W), np.asarray(b)) for W, b in weights]
        d = W.shape[1]  # the rest is padding
        first = (W * self.spread[:d], b + W @ self.center[:d])
        *inner, (W, b) = [first, *others]
        size = self._sizes(len(b))
        return [*inner, (W / size[:, None], b / size)]


def scaling_of(samples: Samples, wanted: bool = True) -> Scaling:
    d = samples.terms[0].x.value.shape[1]
    return samples.scaling if wanted else Scaling(np.zeros(d), np.ones(d), 1.0, units=samples.units)


def _suited(samples: Samples) -> Scaling:
    """Inputs into [-1, 1] (data: as uniform ones would be), and outputs about as large as the data say u is."""
    counted = [np.broadcast_to(np.asarray(term.weight) > 0, len(term.y)) for term in samples.terms]
    if samples.domain is not None:
        center, spread = domain_from(samples.domain).frame
        if samples.embedding is not None:
            center, spread = samples.embedding.frame(center, spread)
    else:
        x = np.asarray(samples.terms[0].x.value)[counted[0]]
        center, spread = x.mean(0), _spread(x.std(0), np.abs(x).max(0))
    strengths = [strength(term, spread) for term in samples.terms]
    size = 0.0
    for term, rows, by in zip(samples.terms, counted, strengths, strict=True):
        data = _given(term)[rows]
        size = max(size, np.sqrt(np.mean(data**2) / by) if np.all(np.isfinite(data)) else 0.0)
        if term.ansatz is not None:
            size = max(size, np.sqrt(np.mean(np.asarray(term.ansatz[1].value) ** 2)))
    stiffness = strengths[0] / np.clip(strengths[0], *USUAL)
    return Scaling(center, spread, _rounded(size), float(stiffness), samples.units)


def _spread(deviation: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """What data count in: uniform ones then fill [-1, 1]."""
    spread = np.sqrt(3) * deviation
    return np.where(spread > 1e-12 * largest, spread, 1.0)


def _rounded(size: float) -> float:
    """A power of two."""
    return float(2.0 ** np.round(np.log2(size))) if 1e-100 < size < 1e100 else 1.0


def data_scaling(parts: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> tuple[Scaling, float]:
    """The units that suit data given part by part as (x, y, κ), and Σ κ |y|². Means and deviations add without cancellation."""
    count, mean, squares, largest, data, size = 0, np.zeros(1), np.zeros(1), np.zeros(1), 0.0, 0.0
    outputs = 1
    for x, y, weight in parts:
        size += float(weight @ np.sum(y**2, axis=1))
        x, y, outputs = x[weight > 0], y[weight > 0], y.shape[1]
        if not len(x):
            continue
        n, apart = count + len(x), x.mean(0) - mean
        squares = squares + np.sum((x - x.mean(0)) ** 2, axis=0) + apart**2 * (count * len(x) / n)
        count, mean, largest = n, mean + apart * (len(x) / n), np.maximum(largest, np.abs(x).max(0))
        data += float(np.sum(y**2))
    scaling = Scaling(mean, _spread(np.sqrt(squares / count), largest), _rounded(np.sqrt(data / (count * outputs))))
    return scaling, size


def data_size(samples: Samples) -> float:
    """The loss of u = 0: what losses are relative to."""
    found = 0.0
    for term in samples.terms:
        data = _given(term)
        data = data if np.all(np.isfinite(data)) else np.asarray(term.y)  # a residual may have no value at u = 0
        found += float(np.sum(np.asarray(term.weight) * np.sum(data**2, -1)))
    return found


@float64
def _given(term: Term) -> np.ndarray:
    """What the term is where u = 0: its data, up to their sign."""
    if term.function is None:
        return np.asarray(term.y)
    return np.asarray(term.residual(_flat(term, 0.0)))


def _flat(term: Term, at: float) -> Jet:
    """An output with that value and all derivatives of that size; parameters are 1, their guess."""
    n, outputs = len(term.y), term.outputs or max(term.of or (0,)) + 1
    value = jnp.where(jnp.arange(outputs) < outputs - term.constants, at, 1.0) * jnp.ones((n, 1))
    return Jet(value, jnp.full((n, term.channels, outputs), at), term.x.forms)


@float64
def strength(term: Term, spread: np.ndarray) -> float:
    """The mean square of the coefficients in units where the inputs fill [-1, 1]: how strongly the operator magnifies.

    Of a nonlinear one linearised at u = 0, or where that says nothing at u = 1 with all derivatives 1.
    """
    if not term.is_pde:
        return 1.0
    n, rows = term.y.shape
    for at in (0.0, 1.0):
        output = _flat(term, at)
        fields = output.value.shape[1] - term.constants
        back, total = jax.vjp(term.residual, output)[1], 0.0
        for row in np.eye(rows):
            c = back(jnp.broadcast_to(row, (n, rows)))[0]
            v, k = np.asarray(term.x.tangents / spread), term.channels - len(term.x.forms)
            along = np.einsum("nkm,nkd->nmd", c.tangents[..., :fields], v)
            total += float(np.mean(np.sum(np.asarray(c.value[:, :fields]) ** 2, 1) + np.sum(along**2, axis=(1, 2))))
            if term.x.forms:
                curved = np.einsum("nqm,qk,nki,nkj->nmij", c.tangents[:, k:, :fields], term.x.forms, v[:, :k], v[:, :k])
                total += float(np.mean(np.sum(curved**2, axis=(1, 2, 3))))
        if 0 < total < np.inf:
            return total / rows
    return 1.0
