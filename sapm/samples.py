"""A problem at its points: plain arrays, ready for training and for a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sapm.domain import domain_from
from sapm.jet import Jet, float64
from sapm.term import Term


@dataclass(frozen=True)
class Samples:
    """A problem at its points. `test` has the held-out points x and, where known, the answer y; a PDE's also c and f."""

    kind: str  # "regression" or "pde"
    names: tuple[str, ...]
    domain: dict | None
    terms: tuple[Term, ...]
    test: dict[str, np.ndarray]
    validation: Term | None = None

    @property
    def outputs(self) -> int:
        return self.terms[0].y.shape[1]


def to_arrays(samples: Samples) -> dict[str, np.ndarray]:
    """All of its numbers, by name, for a file."""
    arrays = {f"test/{name}": np.asarray(value) for name, value in samples.test.items()}
    terms = {f"term{i}": term for i, term in enumerate(samples.terms)}
    if samples.validation is not None:
        terms["validation"] = samples.validation
    for name, term in terms.items():
        parts = {"x": term.x.value, "y": term.y, "c": term.c, "weight": term.weight}
        arrays |= {f"{name}/{part}": np.asarray(value) for part, value in parts.items()}
    return arrays


@float64
def from_arrays(kind: str, names: Sequence[str], domain: dict | None, arrays: dict[str, np.ndarray]) -> Samples:
    def term(name: str) -> Term:
        x, y, c, weight = (jnp.asarray(arrays[f"{name}/{part}"]) for part in ("x", "y", "c", "weight"))
        n, d = x.shape
        tangents = jnp.broadcast_to(jnp.eye(d), (n, d, d)) if c.shape[1] else jnp.zeros((n, 0, d))
        return Term(Jet(x, tangents), y, c, weight)

    count = sum(name.startswith("term") and name.endswith("/x") for name in arrays)
    test = {name.removeprefix("test/"): value for name, value in arrays.items() if name.startswith("test/")}
    validation = term("validation") if "validation/x" in arrays else None
    return Samples(kind, tuple(names), domain, tuple(term(f"term{i}") for i in range(count)), test, validation)


@float64
def pad(samples: Samples, rows: Callable[[int], int], columns: Callable[[int], int]) -> Samples:
    """The same problem with samples of weight 0 and inputs that are 0, so that problems of like size have equal shapes."""

    def grow(term: Term) -> Term:
        n, d = term.x.value.shape
        more = rows(n) - n
        edge = lambda a: jnp.pad(a, [(0, more)] + [(0, 0)] * (a.ndim - 1), mode="edge")  # noqa: E731
        x, y, c = jax.tree.map(edge, (term.x, term.y, term.c))
        return Term(x, y, c, jnp.pad(jnp.broadcast_to(term.weight, (n,)), (0, more))).widen_input(columns(d))

    validation = None if samples.validation is None else grow(samples.validation)
    return replace(samples, terms=tuple(grow(term) for term in samples.terms), validation=validation)


# ---------------------------------------------------------------- units

Weights = Sequence[tuple[Any, Any]]
USUAL = (1.0, 100.0)  # `balance` of the operators that the damping was chosen on


@dataclass(frozen=True)
class Scaling:
    """The units a network is trained in: inputs (x - center) / spread, outputs u / size. The losses stay what they are."""

    center: np.ndarray
    spread: np.ndarray
    size: float
    stiffness: float = 1.0  # by how much the operator magnifies more, or less, than operators usually do

    @float64
    def term(self, term: Term) -> Term:
        x, tangents = (term.x.value - self.center) / self.spread, term.x.tangents / self.spread
        return replace(term, x=Jet(x, tangents), y=term.y / self.size, weight=term.weight * self.size**2)

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
    """Inputs into [-1, 1] (data: as uniform ones would be), and outputs about as large as the data say u is."""
    d = samples.terms[0].x.value.shape[1]
    if not wanted:
        return Scaling(np.zeros(d), np.ones(d), 1.0)
    counted = [np.broadcast_to(np.asarray(term.weight) > 0, len(term.y)) for term in samples.terms]
    if samples.domain is not None:
        center, spread = domain_from(samples.domain).frame
    else:
        x = np.asarray(samples.terms[0].x.value)[counted[0]]
        center, spread = x.mean(0), np.sqrt(3) * x.std(0)
        spread = np.where(spread > 1e-12 * np.abs(x).max(0), spread, 1.0)
    size, stiffness = 0.0, 1.0
    for term, rows in zip(samples.terms, counted, strict=True):
        y, strength = np.asarray(term.y)[rows], 1.0
        if term.is_pde:
            strength = balance(np.asarray(term.c), spread)
            stiffness = strength / np.clip(strength, *USUAL)
        size = max(size, np.sqrt(np.mean(y**2) / strength))
    fits = 1e-100 < size < 1e100
    return Scaling(center, spread, float(2.0 ** np.round(np.log2(size))) if fits else 1.0, float(stiffness))


def balance(c: np.ndarray, spread: np.ndarray) -> float:
    """The mean square of the coefficients in units where the inputs fill [-1, 1]: how strongly the operator magnifies."""
    return float(np.mean(np.sum((c / spread) ** 2, axis=1)))
