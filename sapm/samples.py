"""A problem at its points: plain arrays, ready for training and for a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

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


@float64
def to_arrays(samples: Samples) -> dict[str, np.ndarray]:
    """All of its numbers, by name, for a file. The function of a nonlinear PDE is not among them, only what it gives for some."""
    arrays = {f"test/{name}": np.asarray(value) for name, value in samples.test.items()}
    terms = {f"term{i}": term for i, term in enumerate(samples.terms)}
    terms |= {name: term for name in ("validation", "held") if (term := getattr(samples, name)) is not None}
    for name, term in terms.items():
        parts: dict[str, Any] = {"x": term.x.value, "y": term.y, "c": term.c, "weight": term.weight}
        if not np.array_equal(term.x.tangents, _coordinates(term.x.value, term.channels)):
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
        own = (x, function) if directions.shape[1] > c.shape[1] else (None, None)
        return Term(Jet(x, directions, forms), y, c, weight, c0, *own)

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
