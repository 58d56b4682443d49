"""Domains with named coordinates, their faces and outward normals, and Halton points inside and on them."""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import gammaln, ndtri

from sapm.names import LEAST, MOST, brief, nearest, number
from sapm.shapes import Combination, Product, Shape, halton

ARRAY = ("dtype", "shape", "ndim", "aval", "astype")  # what jnp.sin(p) asks for


class NotANumber(ValueError):
    """A point was taken for one."""


class Coordinates:
    """One point with its coordinates by name (`p.x`, `p.t`) and all of them in order (`p.vector`); `more` numbers by name."""

    def __init__(self, names: Sequence[str], vector: Any, more: Mapping[str, Any] | None = None):
        self._names, self.vector, self._more = tuple(names), vector, more or {}

    def _not_a_number(self, *_):
        at = ", ".join(f"p.{name}" for name in self._names)
        raise NotANumber(f"the function is called with a point p, not with a number; write {at} for its coordinates.")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _not_a_number
    __neg__ = __abs__ = __float__ = __iter__ = __getitem__ = __array__ = __lt__ = __gt__ = __le__ = __ge__ = _not_a_number

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ARRAY and name not in (*self._names, *self._more):
            self._not_a_number()
        if name in self._more:
            return self._more[name]
        if name not in self._names:
            known = [*self._names, *self._more]
            raise ValueError(
                f"p.{name} is not a coordinate; this domain has {', '.join(known)} (and p.vector for all coordinates); "
                f"a number that is to be found is declared: parameters={{{name!r}: …}}." + nearest(name, known)
            )
        return self.vector[self._names.index(name)]


DIMENSIONS = 10**4  # of a ball, at most: its points are made from as many random numbers each
RESERVED = ("value", "vector", "d")
RESOLVED = 1e-10  # the ends of a box are this fraction of their size apart, at least: points between them have digits left


def _check_name(name: Any) -> None:
    if (
        not isinstance(name, str)
        or not (name.isidentifier() and not keyword.iskeyword(name))
        or name.startswith("_")
        or name in RESERVED
    ):
        raise ValueError(
            f"{brief(name)} cannot name a coordinate; use a plain word such as t, x, y, and not {', '.join(map(repr, RESERVED))}."
        )


@dataclass(frozen=True, init=False)
class Box(Shape):
    """Π (lower, upper) with named coordinates: Box(t=(0, 1), x=(-1, 1)). Its faces are "t-", "t+", "x-", "x+"."""

    bounds: Mapping[str, tuple[float, float]]

    def __init__(self, *unnamed, **bounds: tuple[float, float]):
        if unnamed:
            raise TypeError(
                f"Box got {brief(unnamed[0])} without a name; name every coordinate, such as Box(t=(0, 1), x=(-1, 1))."
            )
        if not bounds:
            raise ValueError(
                "Box() has no coordinates; name each with its lower and upper end, such as Box(t=(0, 1), x=(-1, 1))."
            )
        checked = {}
        for name, ends in bounds.items():
            _check_name(name)
            wanted = f"wanted {name}=(lower, upper) with two finite numbers, lower < upper."
            try:
                if isinstance(ends, (str, bytes, Set, Mapping)):
                    raise TypeError
                lower, upper = (float(e) for e in ends)
            except (TypeError, ValueError, OverflowError):
                raise TypeError(f"Box got {name}={brief(ends)}; {wanted}") from None
            if not (np.isfinite(lower) and np.isfinite(upper) and lower < upper):
                raise ValueError(f"Box got {name}=({lower:g}, {upper:g}); {wanted}")
            largest = max(abs(lower), abs(upper))
            if largest > MOST or upper - lower < max(LEAST, RESOLVED * largest):
                raise ValueError(
                    f"Box got {name}=({lower!r}, {upper!r}); its ends must be at most {MOST:g} in size, and at least {LEAST:g} "
                    f"and {RESOLVED:g} of that apart; state the problem in other units, or shift the coordinate."
                )
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

    first: ClassVar[int] = 0  # the index of the first Halton point taken: 0, the lower corner
    convex: ClassVar[bool] = True

    def __mul__(self, other: Shape) -> Any:
        """With another box: a box."""
        if isinstance(other, Box) and not set(self.names) & set(other.names):
            return Box(**self.bounds, **other.bounds)
        return super().__mul__(other)

    def points(self, n: int, start: int | None = None) -> np.ndarray:
        return self.lay(halton(n, self.dims(), self.first if start is None else start))[0]

    def face_points(self, face: str, n: int, start: int = 1) -> np.ndarray:
        return self.lay(halton(n, self.dims(face), start), face)[0]

    def _split(self, face: str) -> tuple[int, float, float]:
        """The coordinate's index, its value on the face, and the sign of the outward normal."""
        i = self.names.index(face[:-1])
        return i, self.bounds[face[:-1]][face[-1] == "+"], 1.0 if face[-1] == "+" else -1.0

    def dims(self, face: str | None = None) -> int:
        return len(self.bounds) - (face is not None)

    def lay(self, u: np.ndarray, face: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The unit cube, or that of a face, stretched over the box."""
        lower, upper = self._ends
        if face is None:
            return lower + (upper - lower) * u, np.ones(len(u), bool)
        i, end, _ = self._split(face)
        return np.insert(np.delete(lower, i) + np.delete(upper - lower, i) * u, i, end, axis=1), np.ones(len(u), bool)

    def room(self, face: str | None = None) -> float:
        return float(np.prod(self.sides if face is None else np.delete(self.sides, self._split(face)[0])))

    def area(self, face: str) -> float:
        return self.room(face)

    @property
    def volume(self) -> float:
        return self.room()

    def normal(self, face: str, x: np.ndarray) -> np.ndarray:
        i, _, sign = self._split(face)
        return sign * np.broadcast_to(np.eye(x.shape[1])[i], x.shape)

    @property
    def sides(self) -> np.ndarray:
        lower, upper = self._ends
        return upper - lower

    fine = sides

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

    def snap(self, x: np.ndarray) -> np.ndarray:
        """Points close to the boundary, put on it."""
        lower, upper = self._ends
        x = np.clip(x, lower, upper)
        distance = np.concatenate([x - lower, upper - x], axis=1) / np.tile(self.sides, 2)
        near, rows = distance.argmin(1), np.arange(len(x))
        x[rows, near % x.shape[1]] = np.concatenate([lower, upper])[near]
        return x

    def describe(self) -> dict:
        return {"kind": "box", "bounds": {name: list(ends) for name, ends in self.bounds.items()}}


@dataclass(frozen=True)
class Ball(Shape):
    """The ball of that dimension and radius about `center` (default 0); one face, "surface".

    Its coordinates are x1, x2, … unless `names` says otherwise: Ball(2, names=("x", "y")).
    """

    dimension: int
    radius: float = 1.0
    center: tuple[float, ...] | None = None
    names: tuple[str, ...] = ()

    def __post_init__(self):
        if isinstance(self.dimension, bool) or not isinstance(self.dimension, (int, np.integer)) or self.dimension < 1:
            raise ValueError(f"Ball got dimension {brief(self.dimension)}; wanted a whole number, at least 1, such as Ball(10).")
        if not LEAST <= number(self.radius) <= MOST:
            raise ValueError(f"Ball got radius {brief(self.radius)}; wanted a positive, finite number ({LEAST:g} to {MOST:g}).")
        if self.dimension > DIMENSIONS:
            raise ValueError(f"Ball got dimension {brief(self.dimension)}; wanted at most {DIMENSIONS}.")
        try:
            center = np.zeros(self.dimension) if self.center is None else np.asarray(self.center, float)
        except (TypeError, ValueError, OverflowError):
            center = np.full(1, np.nan)
        if center.shape != (self.dimension,) or not np.all(np.abs(center) <= min(MOST, float(self.radius) / RESOLVED)):
            raise ValueError(
                f"Ball got center {brief(self.center)}; wanted {self.dimension} numbers, at most {1 / RESOLVED:g} radii."
            )
        object.__setattr__(self, "center", tuple(center.tolist()))
        names = self.names if isinstance(self.names, (tuple, list)) else ()
        if self.names and (len(names) != self.dimension or len(set(map(str, names))) != self.dimension):
            raise ValueError(f"Ball got names {brief(self.names)}; wanted a tuple of {self.dimension} different words.")
        for name in names:
            _check_name(name)
        object.__setattr__(self, "names", tuple(names) or self._usual)

    @property
    def _usual(self) -> tuple[str, ...]:
        return tuple(f"x{i}" for i in range(1, self.dimension + 1))

    faces: ClassVar[tuple[str, ...]] = ("surface",)
    first: ClassVar[int] = 1  # Halton point 0 has no direction
    convex: ClassVar[bool] = True

    def _place(self, unit: np.ndarray) -> np.ndarray:
        return np.asarray(self.center) + self.radius * unit

    def points(self, n: int, start: int | None = None) -> np.ndarray:
        return self.lay(halton(n, self.dims(), max(1, self.first if start is None else start)))[0]

    def face_points(self, face: str, n: int, start: int = 1) -> np.ndarray:
        return self.lay(halton(n, self.dims(face), max(1, start)), face)[0]

    def dims(self, face: str | None = None) -> int:
        return self.dimension + (face is None)

    def lay(self, u: np.ndarray, face: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Uniform in the ball: a normal direction from d numbers, the radius from one more."""
        x = _directions(u) if face is not None else _directions(u[:, :-1]) * u[:, -1:] ** (1 / self.dimension)
        return self._place(x), np.ones(len(u), bool)

    def room(self, face: str | None = None) -> float:
        """2 πᵈᐟ² / Γ(d/2) rᵈ⁻¹ is the surface, r/d times that the ball; never 0, in however many dimensions."""
        d, r = self.dimension, float(self.radius)
        surface = np.log(2) + d / 2 * np.log(np.pi) - gammaln(d / 2) + (d - 1) * np.log(r)
        return float(np.exp(max(surface + (np.log(r / d) if face is None else 0.0), -700.0)))

    def area(self, face: str) -> float:
        return self.room(face)

    @property
    def volume(self) -> float:
        return self.room()

    def normal(self, face: str, x: np.ndarray) -> np.ndarray:
        return (x - np.asarray(self.center)) / self.radius

    @property
    def sides(self) -> np.ndarray:
        return np.full(self.dimension, 2 * float(self.radius))

    fine = sides

    @property
    def frame(self) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(self.center, float), self.sides / 2

    def gap(self, x: np.ndarray) -> np.ndarray:
        return 1 - np.linalg.norm(x - np.asarray(self.center), axis=-1) / self.radius

    def on_face(self, face: str, x: np.ndarray) -> np.ndarray:
        return np.abs(self.gap(x)) <= 1e-8

    def snap(self, x: np.ndarray) -> np.ndarray:
        """Points close to the boundary, put on it."""
        center = np.asarray(self.center)
        return center + (x - center) / (1 - self.gap(x))[:, None]

    def describe(self) -> dict:
        found = {
            "kind": "ball",
            "dimension": int(self.dimension),
            "radius": float(self.radius),
            "center": list(self.center or ()),
        }
        return found if self.names == self._usual else {**found, "names": list(self.names)}


def _directions(u: np.ndarray) -> np.ndarray:
    normal = ndtri(u)
    length = np.linalg.norm(normal, axis=1, keepdims=True)
    normal = np.where(length > 0, normal, np.eye(u.shape[1])[0])  # the middle of the cube (u = 1/2) has no direction
    return normal / np.where(length > 0, length, 1.0)


def domain_from(described: dict) -> Any:
    """The domain that `describe` described."""
    kind = described["kind"]
    if kind == "box":
        return Box(**{name: tuple(ends) for name, ends in described["bounds"].items()})
    if kind == "ball":
        center, names = tuple(described["center"]), tuple(described.get("names", ()))
        return Ball(described["dimension"], described["radius"], center, names)
    a, b = map(domain_from, described["parts"])
    return Product(a, b) if kind == "product" else Combination(kind, a, b)
