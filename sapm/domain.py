"""Domains with named coordinates, their faces and outward normals, and Halton points inside and on them."""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from sapm.names import nearest


def halton(n: int, dimension: int, start: int = 0) -> np.ndarray:
    """Points start, start+1, …, start+n-1 of the Halton sequence in the unit cube: (n, dimension)."""
    if dimension == 0:
        return np.zeros((n, 0))
    sequence = qmc.Halton(dimension, scramble=False)
    sequence.fast_forward(start)
    return sequence.random(n)


class Coordinates:
    """One point with its coordinates by name (`p.x`, `p.t`) and all of them in order (`p.vector`); `more` numbers by name."""

    def __init__(self, names: Sequence[str], vector: Any, more: Mapping[str, Any] | None = None):
        self._names, self.vector, self._more = tuple(names), vector, more or {}

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._more:
            return self._more[name]
        if name not in self._names:
            known = [*self._names, *self._more]
            raise ValueError(
                f"p.{name} is not a coordinate; this domain has {', '.join(known)} (and p.vector for all coordinates)."
                + nearest(name, known)
            )
        return self.vector[self._names.index(name)]


class Domain(Protocol):
    """What a problem asks of a domain. Faces are pieces of the boundary that have a name."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def faces(self) -> tuple[str, ...]: ...
    @property
    def sides(self) -> np.ndarray: ...
    @property
    def first(self) -> int: ...
    @property
    def frame(self) -> tuple[np.ndarray, np.ndarray]: ...
    def points(self, n: int, start: int | None = None) -> np.ndarray: ...
    def face_points(self, face: str, n: int, start: int = 1) -> np.ndarray: ...
    def area(self, face: str) -> float: ...
    def normal(self, face: str, x: np.ndarray) -> np.ndarray: ...
    def gap(self, x: np.ndarray) -> np.ndarray: ...
    def on_face(self, face: str, x: np.ndarray) -> np.ndarray: ...
    def describe(self) -> dict: ...


RESERVED = ("value", "vector", "d")


def _check_name(name: str) -> None:
    if not (name.isidentifier() and not keyword.iskeyword(name)) or name.startswith("_") or name in RESERVED:
        raise ValueError(
            f"{name!r} cannot name a coordinate; use a plain word such as t, x, y, and not {', '.join(map(repr, RESERVED))}."
        )


@dataclass(frozen=True, init=False)
class Box:
    """Π (lower, upper) with named coordinates: Box(t=(0, 1), x=(-1, 1)). Its faces are "t-", "t+", "x-", "x+"."""

    bounds: Mapping[str, tuple[float, float]]

    def __init__(self, **bounds: tuple[float, float]):
        if not bounds:
            raise ValueError(
                "Box() has no coordinates; name each with its lower and upper end, such as Box(t=(0, 1), x=(-1, 1))."
            )
        checked = {}
        for name, ends in bounds.items():
            _check_name(name)
            wanted = f"wanted {name}=(lower, upper) with two finite numbers, lower < upper."
            try:
                lower, upper = (float(e) for e in ends)
            except (TypeError, ValueError):
                raise TypeError(f"Box got {name}={ends!r}; {wanted}") from None
            if not (np.isfinite(lower) and np.isfinite(upper) and lower < upper):
                raise ValueError(f"Box got {name}=({lower:g}, {upper:g}); {wanted}")
            checked[name] = (lower, upper)
        object.__setattr__(self, "bounds", checked)

    def __hash__(self) -> int:
        return hash(tuple(self.bounds.items()))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.bounds)

    @property
    def faces(self) -> tuple[str, ...]:
        return tuple(name + side for name in self.bounds for side in "-+")

    @property
    def _ends(self) -> tuple[np.ndarray, np.ndarray]:
        lower, upper = np.array(list(self.bounds.values())).T
        return lower, upper

    first = 0  # the index of the first Halton point taken: 0, the lower corner

    def points(self, n: int, start: int | None = None) -> np.ndarray:
        lower, upper = self._ends
        return lower + (upper - lower) * halton(n, len(lower), self.first if start is None else start)

    def _split(self, face: str) -> tuple[int, float, float]:
        """The coordinate's index, its value on the face, and the sign of the outward normal."""
        i = self.names.index(face[:-1])
        return i, self.bounds[face[:-1]][face[-1] == "+"], 1.0 if face[-1] == "+" else -1.0

    def face_points(self, face: str, n: int, start: int = 1) -> np.ndarray:
        lower, upper = self._ends
        i, end, _ = self._split(face)
        inner = halton(n, len(lower) - 1, start)
        return np.insert(np.delete(lower, i) + np.delete(upper - lower, i) * inner, i, end, axis=1)

    def area(self, face: str) -> float:
        lower, upper = self._ends
        return float(np.prod(np.delete(upper - lower, self._split(face)[0])))

    def normal(self, face: str, x: np.ndarray) -> np.ndarray:
        i, _, sign = self._split(face)
        return sign * np.broadcast_to(np.eye(x.shape[1])[i], x.shape)

    @property
    def sides(self) -> np.ndarray:
        lower, upper = self._ends
        return upper - lower

    @property
    def frame(self) -> tuple[np.ndarray, np.ndarray]:
        """The middle, and half the width along every coordinate."""
        lower, upper = self._ends
        return (lower + upper) / 2, (upper - lower) / 2

    def gap(self, x: np.ndarray) -> np.ndarray:
        """Distance to the nearest face as a fraction of the box across it, negative outside."""
        lower, upper = self._ends
        return (np.minimum(x - lower, upper - x) / self.sides).min(-1)

    def on_face(self, face: str, x: np.ndarray) -> np.ndarray:
        i, end, _ = self._split(face)
        return (np.abs(x[:, i] - end) <= 1e-8 * self.sides[i]) & (self.gap(x) >= -1e-8)

    def describe(self) -> dict:
        return {"kind": "box", "bounds": {name: list(ends) for name, ends in self.bounds.items()}}


@dataclass(frozen=True)
class Ball:
    """The ball of that dimension and radius about `center` (default 0); coordinates x1, x2, …; one face, "surface"."""

    dimension: int
    radius: float = 1.0
    center: tuple[float, ...] | None = None

    def __post_init__(self):
        if isinstance(self.dimension, bool) or not isinstance(self.dimension, (int, np.integer)) or self.dimension < 1:
            raise ValueError(f"Ball got dimension {self.dimension!r}; wanted a whole number, at least 1, such as Ball(10).")
        if isinstance(self.radius, (str, bool)) or not np.isscalar(self.radius) or not 0 < self.radius < np.inf:  # type: ignore[operator]
            raise ValueError(f"Ball got radius {self.radius!r}; wanted a positive, finite number.")
        center = np.zeros(self.dimension) if self.center is None else np.asarray(self.center, float)
        if center.shape != (self.dimension,) or not np.all(np.isfinite(center)):
            raise ValueError(f"Ball got center {self.center!r}; wanted {self.dimension} finite numbers.")
        object.__setattr__(self, "center", tuple(center.tolist()))

    names = property(lambda self: tuple(f"x{i}" for i in range(1, self.dimension + 1)))
    faces = ("surface",)
    first = 1  # Halton point 0 has no direction

    def _place(self, unit: np.ndarray) -> np.ndarray:
        return np.asarray(self.center) + self.radius * unit

    def points(self, n: int, start: int | None = None) -> np.ndarray:
        """Uniform in the ball: a normal direction from d Halton coordinates, the radius from one more."""
        u = halton(n, self.dimension + 1, max(1, self.first if start is None else start))
        return self._place(_directions(u[:, :-1]) * u[:, -1:] ** (1 / self.dimension))

    def face_points(self, face: str, n: int, start: int = 1) -> np.ndarray:
        return self._place(_directions(halton(n, self.dimension, max(1, start))))

    def area(self, face: str) -> float:
        return 1.0

    def normal(self, face: str, x: np.ndarray) -> np.ndarray:
        return (x - np.asarray(self.center)) / self.radius

    @property
    def sides(self) -> np.ndarray:
        return np.full(self.dimension, 2 * float(self.radius))

    @property
    def frame(self) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(self.center, float), self.sides / 2

    def gap(self, x: np.ndarray) -> np.ndarray:
        return 1 - np.linalg.norm(x - np.asarray(self.center), axis=-1) / self.radius

    def on_face(self, face: str, x: np.ndarray) -> np.ndarray:
        return np.abs(self.gap(x)) <= 1e-8

    def describe(self) -> dict:
        return {"kind": "ball", "dimension": int(self.dimension), "radius": float(self.radius), "center": list(self.center or ())}


def _directions(u: np.ndarray) -> np.ndarray:
    normal = ndtri(u)
    length = np.linalg.norm(normal, axis=1, keepdims=True)
    normal = np.where(length > 0, normal, np.eye(u.shape[1])[0])  # the middle of the cube (u = 1/2) has no direction
    return normal / np.where(length > 0, length, 1.0)


def domain_from(described: dict) -> Box | Ball:
    """The domain that `describe` described."""
    if described["kind"] == "box":
        return Box(**{name: tuple(ends) for name, ends in described["bounds"].items()})
    return Ball(described["dimension"], described["radius"], tuple(described["center"]))
