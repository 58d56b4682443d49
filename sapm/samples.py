"""A problem at its points: plain arrays, ready for training and for a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sapm.domain import domain_from
from sapm.jet import Jet, float64
from sapm.term import Term


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

    @property
    def outputs(self) -> int:
        return self.terms[0].y.shape[1]

    @cached_property
    def scaling(self) -> Scaling:
        """The units that suit it."""
        return _suited(self)


@float64
def to_arrays(samples: Samples) -> dict[str, np.ndarray]:
    """All of its numbers, by name, for a file. The function of a nonlinear PDE is not among them, only what it gives for some."""
    arrays = {f"test/{name}": np.asarray(value) for name, value in samples.test.items()}
    terms = {f"term{i}": term for i, term in enumerate(samples.terms)}
    terms |= {name: term for name in ("validation", "held") if (term := getattr(samples, name)) is not None}
    for name, term in terms.items():
        parts: dict[str, Any] = {"x": term.x.value, "y": term.y, "c": term.c, "weight": term.weight}
        if term.function is not None or not np.array_equal(term.x.tangents, _coordinates(term.x.value, term.channels)):
            parts["directions"] = term.x.tangents
        if term.x.forms:
            parts["forms"] = np.asarray(term.x.forms)
        if term.c0 is not None:
            parts["c0"] = term.c0
        if term.function is not None:
            parts["probe"] = _probe(term)
        arrays |= {f"{name}/{part}": np.asarray(value) for part, value in parts.items()}
    return arrays


def _probe(term: Term) -> Array:
    """What the function of a nonlinear term gives for some numbers: another function gives others."""
    x = term.x.value[:64]
    numbers = np.random.default_rng(0).normal(size=(len(x), 1 + term.channels))
    return jax.vmap(term.function)(x, numbers[:, 0], numbers[:, 1:])  # type: ignore[arg-type]


def _coordinates(x, k: int) -> Array:
    """The directions that a file need not hold: all coordinates, or none."""
    n, d = x.shape
    return jnp.broadcast_to(jnp.eye(d), (n, d, d)) if k else jnp.zeros((n, 0, d))


def nonlinear(arrays: dict[str, np.ndarray]) -> bool:
    """Whether the stored PDE is: its term has directions and no coefficients."""
    return "term0/directions" in arrays and arrays["term0/directions"].shape[1] > arrays["term0/c"].shape[1]


@float64
def from_arrays(
    kind: str, names: Sequence[str], domain: dict | None, arrays: dict[str, np.ndarray], function: Callable | None = None
) -> Samples:
    """What `to_arrays` took apart; `function` is that of a nonlinear PDE."""

    def term(name: str) -> Term | None:
        if f"{name}/x" not in arrays:
            return None
        x, y, c, weight = (jnp.asarray(arrays[f"{name}/{part}"]) for part in ("x", "y", "c", "weight"))
        directions = jnp.asarray(arrays.get(f"{name}/directions", _coordinates(x, c.shape[1])))
        forms = tuple(tuple(int(sign) for sign in form) for form in arrays.get(f"{name}/forms", ()))
        c0 = jnp.asarray(arrays[f"{name}/c0"]) if f"{name}/c0" in arrays else None
        found = Term(Jet(x, directions, forms), y, c, weight, c0)
        return replace(found, points=x, function=function) if directions.shape[1] > c.shape[1] else found

    count = sum(name.startswith("term") and name.endswith("/x") for name in arrays)
    test = {name.removeprefix("test/"): value for name, value in arrays.items() if name.startswith("test/")}
    terms = tuple(found for i in range(count) if (found := term(f"term{i}")) is not None)
    return Samples(kind, tuple(names), domain, terms, test, term("validation"), term("held"))


@float64
def pad(samples: Samples, rows: Callable[[int], int], columns: Callable[[int], int]) -> Samples:
    """The same problem with samples of weight 0 and inputs that are 0, so that problems of like size have equal shapes."""

    def grow(term: Term) -> Term:
        n, d = term.x.value.shape
        more = rows(n) - n
        edge = lambda a: jnp.pad(a, [(0, more)] + [(0, 0)] * (a.ndim - 1), mode="edge")  # noqa: E731
        x, y, c = jax.tree.map(edge, (term.x, term.y, term.c))
        weight = jnp.pad(jnp.broadcast_to(term.weight, (n,)), (0, more))
        return replace(term, x=x, y=y, c=c, weight=weight).widen_input(columns(d))

    validation = None if samples.validation is None else grow(samples.validation)
    return replace(samples, terms=tuple(grow(term) for term in samples.terms), validation=validation)


# ---------------------------------------------------------------- units

Weights = Sequence[tuple[Any, Any]]
USUAL = (1.0, 100.0)  # `strength` of the operators that the damping was chosen on


@dataclass(frozen=True)
class Scaling:
    """The units a network is trained in: inputs (x - center) / spread, outputs u / size. The losses stay what they are."""

    center: np.ndarray
    spread: np.ndarray
    size: float
    stiffness: float = 1.0  # by how much the operator magnifies more, or less, than operators usually do

    @float64
    def term(self, term: Term) -> Term:
        return term.in_units(self.center, self.spread, self.size)

    def original(self, weights: Weights) -> list[tuple[np.ndarray, np.ndarray]]:
        """Of a network in these units, the weights of the same function in the problem's own."""
        (W, b), *others = [(np.asarray(W), np.asarray(b)) for W, b in weights]
        first = (W / self.spread, b - W @ (self.center / self.spread))
        *inner, (W, b) = [first, *others]
        return [*inner, (W * self.size, b * self.size)]

    def scaled(self, weights: Weights) -> list[tuple[np.ndarray, np.ndarray]]:
        """The inverse of `original`."""
        (W, b), *others = [(np.asarray(W), np.asarray(b)) for W, b in weights]
        d = W.shape[1]  # the rest is padding
        first = (W * self.spread[:d], b + W @ self.center[:d])
        *inner, (W, b) = [first, *others]
        return [*inner, (W / self.size, b / self.size)]


def scaling_of(samples: Samples, wanted: bool = True) -> Scaling:
    d = samples.terms[0].x.value.shape[1]
    return samples.scaling if wanted else Scaling(np.zeros(d), np.ones(d), 1.0)


def _suited(samples: Samples) -> Scaling:
    """Inputs into [-1, 1] (data: as uniform ones would be), and outputs about as large as the data say u is."""
    counted = [np.broadcast_to(np.asarray(term.weight) > 0, len(term.y)) for term in samples.terms]
    if samples.domain is not None:
        center, spread = domain_from(samples.domain).frame
    else:
        x = np.asarray(samples.terms[0].x.value)[counted[0]]
        center, spread = x.mean(0), np.sqrt(3) * x.std(0)
        spread = np.where(spread > 1e-12 * np.abs(x).max(0), spread, 1.0)
    strengths = [strength(term, spread) for term in samples.terms]
    size = 0.0
    for term, rows, by in zip(samples.terms, counted, strengths, strict=True):
        data = _given(term)[rows]
        size = max(size, np.sqrt(np.mean(data**2) / by) if np.all(np.isfinite(data)) else 0.0)
    stiffness = strengths[0] / np.clip(strengths[0], *USUAL)
    fits = 1e-100 < size < 1e100
    return Scaling(center, spread, float(2.0 ** np.round(np.log2(size))) if fits else 1.0, float(stiffness))


@float64
def _given(term: Term) -> np.ndarray:
    """What the term is where u = 0: its data, up to their sign."""
    if term.function is None:
        return np.asarray(term.y)
    zero = replace(term.x, value=jnp.zeros_like(term.y), tangents=jnp.zeros((*term.x.tangents.shape[:2], 1)))
    return np.asarray(term.residual(zero))


@float64
def strength(term: Term, spread: np.ndarray) -> float:
    """The mean square of the coefficients in units where the inputs fill [-1, 1]: how strongly the operator magnifies.

    Of a nonlinear one linearised at u = 0, or where that says nothing at u = 1 with all derivatives 1.
    """
    if not term.is_pde:
        return 1.0
    for at in (0.0, 1.0):
        output = replace(term.x, value=jnp.full((len(term.y), 1), at), tangents=jnp.full((*term.x.tangents.shape[:2], 1), at))
        c = jax.vjp(term.residual, output)[1](jnp.ones_like(term.y))[0]
        v, k = np.asarray(term.x.tangents / spread), term.channels - len(term.x.forms)
        along = np.einsum("nk,nkd->nd", c.tangents[..., 0], v)
        parts = [np.asarray(c.value[:, 0]) ** 2, np.sum(along**2, axis=1)]
        if term.x.forms:
            curved = np.einsum("nq,qk,nki,nkj->nij", c.tangents[:, k:, 0], term.x.forms, v[:, :k], v[:, :k])
            parts.append(np.sum(curved**2, axis=(1, 2)))
        found = float(np.mean(np.sum(parts, axis=0)))
        if 0 < found < np.inf:
            return found
    return 1.0
