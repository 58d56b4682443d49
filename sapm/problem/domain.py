"""Boxes and balls with named coordinates.

Each has named faces with outward normals, and Halton points inside and on every face. `Domain` says
what their methods compute; the shapes of `sapm.problem.shapes` combine them.
"""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

import numpy as np
from scipy.special import gammaln, ndtri
from scipy.stats import qmc

from sapm.errors import (
    LARGEST_SIZE,
    SMALLEST_SIZE,
    brief,
    choose,
    nearest,
    number,
    printable,
    shown,
)

if TYPE_CHECKING:
    from sapm.problem.shapes import Combination, Product

FACE_TOLERANCE = 1e-8  # of the gap: a point this close to the boundary is on it
ARRAY_ATTRIBUTES = ("dtype", "shape", "ndim", "aval", "astype")  # what jnp.sin(p) looks up
RESERVED_NAMES = ("value", "vector", "d", "self")
MAX_BALL_DIMENSION = 10**4  # a point of a ball takes as many random numbers
MAX_SHAPES = 200  # boxes and balls that a domain is made of: each is asked about every point
LONGEST_NAME = 10**4  # characters
MIN_RELATIVE_WIDTH = 1e-10  # of an interval, by the size of its ends: points between need digits
MIN_LOG_MEASURE = -700.0  # exp of less is 0 in double precision


def halton(n: int, dimension: int, start: int = 0) -> np.ndarray:
    """Points start, …, start + n - 1 of the Halton sequence in the unit cube: (n, dimension).

    Parameters
    ----------
    n : the number of points.
    dimension : the dimension of the cube.
    start : the number of the first point.
    """
    if dimension == 0:
        return np.zeros((n, 0))
    sequence = qmc.Halton(dimension, scramble=False)
    sequence.num_generated = start  # `fast_forward` would compute all the points before it
    return sequence.random(n)


class Domain(Protocol):
    """What a problem asks of a domain of dimension d. Faces are named pieces of the boundary."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the coordinates, d of them."""
        ...

    @property
    def faces(self) -> tuple[str, ...]:
        """The names of the faces."""
        ...

    @property
    def sides(self) -> np.ndarray:
        """The width of a box around the domain along every coordinate: (d,)."""
        ...

    @property
    def first(self) -> int:
        """The index of the first Halton point that is used."""
        ...

    @property
    def frame(self) -> tuple[np.ndarray, np.ndarray]:
        """The centre of a box around the domain and half its widths: two arrays (d,)."""
        ...

    @property
    def volume(self) -> float:
        """The d-dimensional measure of the domain."""
        ...

    @property
    def convex(self) -> bool:
        """Whether the domain is known to be convex."""
        ...

    @property
    def smallest_width(self) -> np.ndarray:
        """The width of the smallest part along every coordinate: (d,)."""
        ...

    def points(self, n: int, start: int | None = None) -> np.ndarray:
        """n points inside, number `start` of the sequence and those after it: (n, d)."""
        ...

    def face_points(self, face: str, n: int, start: int = 1) -> np.ndarray:
        """n points on a face, number `start` of its sequence and those after it: (n, d).

        Parameters
        ----------
        face : its name.
        n : the number of points.
        start : the number of the first one in its sequence.
        """
        ...

    def area(self, face: str) -> float:
        """The (d-1)-dimensional measure of a face."""
        ...

    def normal(self, face: str, x: np.ndarray) -> np.ndarray:
        """The outward unit normals at points x of a face: (n, d)."""
        ...

    def gap(self, x: np.ndarray) -> np.ndarray:
        """The distance of points x (n, d) to the boundary as a fraction of the width: (n,).

        Positive inside, negative outside.
        """
        ...

    def on_face(self, face: str, x: np.ndarray) -> np.ndarray:
        """Which of the points x (n, d) lie on a face: (n,) of bool."""
        ...

    def snap(self, x: np.ndarray) -> np.ndarray:
        """Points x (n, d) close to the boundary, moved onto it."""
        ...

    def describe(self) -> dict:
        """The domain as JSON; `domain_from` makes it again."""
        ...

    def cube_dimension(self, face: str | None = None) -> int:
        """How many numbers in (0, 1) `from_cube` takes per point. `face=None` means the inside."""
        ...

    def from_cube(self, u: np.ndarray, face: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Points of the unit cube, u (n, cube_dimension), spread evenly over a simple region.

        The region contains the inside, or the face. Returns the points (n, d) and which of them
        belong to the inside, or to the face: (n,) of bool.
        """
        ...

    def region_measure(self, face: str | None = None) -> float:
        """The measure of the region that `from_cube` fills."""
        ...


class Shape:
    """The operators of all domains.

    a | b, a & b and a - b need the same coordinates in both shapes, a * b needs different ones.
    """

    def __or__(self: Domain, other: Shape) -> Combination:
        from sapm.problem.shapes import Combination

        return Combination("union", self, _operand("|", other))

    def __and__(self: Domain, other: Shape) -> Combination:
        from sapm.problem.shapes import Combination

        return Combination("intersection", self, _operand("&", other))

    def __sub__(self: Domain, other: Shape) -> Combination:
        from sapm.problem.shapes import Combination

        return Combination("difference", self, _operand("-", other))

    def __mul__(self: Domain, other: Shape) -> Box | Product:
        from sapm.problem.shapes import Product

        return Product(self, _operand("*", other))


def _operand(sign: str, other: object) -> Domain:
    if not isinstance(other, Shape):
        raise TypeError(
            f"domain {sign} {other!r}: that is not a domain; use a sapm.Box, a sapm.Ball or a "
            "shape made of them."
        )
    return cast(Domain, other)


def face_stem(face: str) -> str:
    """A face's name without its number."""
    return face.partition(" ")[0]


# ---------------------------------------------------------------- points


class NotANumber(ValueError):
    """A point p was used in arithmetic, where one of its coordinates was meant."""


class Coordinates:
    """A point p as a user's function gets it: `p.x`, `p.t`, and all coordinates as `p.vector`.

    Parameters
    ----------
    names : the names of the coordinates, d of them.
    vector : (d,) their values; traced by JAX as a rule.
    parameters : unknown numbers of the problem, which are read as `p.name` too.
    """

    def __init__(
        self, names: Sequence[str], vector: Any, parameters: Mapping[str, Any] | None = None
    ):
        self._names = tuple(names)
        self.vector = vector
        self._parameters = parameters or {}

    def _not_a_number(self, *_) -> NoReturn:
        at = ", ".join(f"p.{name}" for name in self._names)
        raise NotANumber(
            f"the function is called with a point p, not with a number; write {at} for its "
            "coordinates."
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = (
        __pow__
    ) = __rpow__ = _not_a_number
    __neg__ = __abs__ = __float__ = __iter__ = __getitem__ = __array__ = __lt__ = __gt__ = (
        __le__
    ) = __ge__ = _not_a_number

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ARRAY_ATTRIBUTES and name not in (*self._names, *self._parameters):
            self._not_a_number()
        if name in self._parameters:
            return self._parameters[name]
        if name not in self._names:
            known = [*self._names, *self._parameters]
            raise ValueError(
                f"p.{shown(name)} is not a coordinate; this domain has {', '.join(known)} "
                "(and p.vector for all coordinates); "
                f"declare an unknown number with parameters={{{brief(name)}: …}}."
                + nearest(name, known)
            )
        return self.vector[self._names.index(name)]


def _check_name(name: object) -> None:
    if (
        not isinstance(name, str)
        or not (name.isidentifier() and not keyword.iskeyword(name))
        or printable(name) != name
        or name.startswith("_")
        or name in RESERVED_NAMES
        or len(name) > LONGEST_NAME
    ):
        raise ValueError(
            f"{brief(name)} cannot name a coordinate; use a plain word such as t, x, y, and not "
            f"{', '.join(map(repr, RESERVED_NAMES))}."
        )


class Simple(Shape, Domain):
    """A convex domain whose points are those of the unit cube, moved by `from_cube`."""

    @property
    def convex(self) -> bool:
        return True

    @property
    def smallest_width(self) -> np.ndarray:
        return self.sides

    def points(self, n: int, start: int | None = None) -> np.ndarray:
        """n Halton points inside, number `start` (at least `first`) and those after it: (n, d)."""
        start = self.first if start is None else max(self.first, start)
        return self.from_cube(halton(n, self.cube_dimension(), start))[0]

    def face_points(self, face: str, n: int, start: int = 1) -> np.ndarray:
        """n Halton points on a face, number `start` and those after it: (n, d). See `Domain`."""
        start = max(self.first, start)
        return self.from_cube(halton(n, self.cube_dimension(face), start), face)[0]

    def area(self, face: str) -> float:
        return self.region_measure(face)

    @property
    def volume(self) -> float:
        return self.region_measure()


@dataclass(frozen=True, init=False)
class Box(Simple):
    """A product of intervals with named coordinates: Box(t=(0, 1), x=(-1, 1)).

    Its faces are "t-" and "t+", the lower and upper end of t, then "x-" and "x+".

    Parameters
    ----------
    **bounds : (lower, upper), the ends of every coordinate, by its name. A coordinate named t is
        the time.
    """

    bounds: Mapping[str, tuple[float, float]]

    def __init__(self, /, *unnamed, **bounds: tuple[float, float]):
        if unnamed:
            raise TypeError(
                f"Box got {brief(unnamed[0])} without a name; name every coordinate, such as "
                "Box(t=(0, 1), x=(-1, 1))."
            )
        if not bounds:
            raise ValueError(
                "Box() has no coordinates; name each with its lower and upper end, such as "
                "Box(t=(0, 1), x=(-1, 1))."
            )
        checked = {}
        for name, ends in bounds.items():
            _check_name(name)
            expected = f"expected finite numbers lower < upper; give {name}=(lower, upper)."
            try:
                if isinstance(ends, (str, bytes, Set, Mapping)):
                    raise TypeError
                lower, upper = (float(e) for e in ends)
            except (TypeError, ValueError, OverflowError):
                raise TypeError(f"Box: got {name}={brief(ends)}, {expected}") from None
            if not (np.isfinite(lower) and np.isfinite(upper) and lower < upper):
                raise ValueError(f"Box: got {name}=({lower:g}, {upper:g}), {expected}")
            largest = max(abs(lower), abs(upper))
            if largest > LARGEST_SIZE or upper - lower < max(
                SMALLEST_SIZE, MIN_RELATIVE_WIDTH * largest
            ):
                raise ValueError(
                    f"Box: got {name}=({lower!r}, {upper!r}), expected ends of at most "
                    f"{LARGEST_SIZE:g} in size, whose distance is at least {SMALLEST_SIZE:g} and "
                    f"at least {MIN_RELATIVE_WIDTH:g} times that size; state the problem in other "
                    "units, or shift the coordinate."
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

    @property
    def first(self) -> int:
        """Halton point 0 is the lower corner of the box."""
        return 0

    def __mul__(self, other: Shape) -> Box | Product:
        """The product with another box is a box."""
        if isinstance(other, Box) and not set(self.names) & set(other.names):
            return Box(**self.bounds, **other.bounds)
        return super().__mul__(other)

    def _split(self, face: str) -> tuple[int, float, float]:
        """The coordinate's index, its value on the face, and the sign of the outward normal."""
        i = self.names.index(face[:-1])
        return i, self.bounds[face[:-1]][face[-1] == "+"], 1.0 if face[-1] == "+" else -1.0

    def cube_dimension(self, face: str | None = None) -> int:
        return len(self.bounds) - (face is not None)

    def from_cube(self, u: np.ndarray, face: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Points u of the unit cube, stretched over the box or over a face; all of them belong."""
        lower, upper = self._ends
        if face is None:
            return lower + (upper - lower) * u, np.ones(len(u), bool)
        i, end, _ = self._split(face)
        along = np.delete(lower, i) + np.delete(upper - lower, i) * u
        return np.insert(along, i, end, axis=1), np.ones(len(u), bool)

    def region_measure(self, face: str | None = None) -> float:
        """The product of the widths, for a face without the width across it."""
        sides = self.sides if face is None else np.delete(self.sides, self._split(face)[0])
        return float(np.prod(sides))

    def normal(self, face: str, x: np.ndarray) -> np.ndarray:
        """± the unit vector of the face's coordinate: (n, d)."""
        i, _, sign = self._split(face)
        return sign * np.broadcast_to(np.eye(x.shape[1])[i], x.shape)

    @property
    def sides(self) -> np.ndarray:
        lower, upper = self._ends
        return upper - lower

    @property
    def frame(self) -> tuple[np.ndarray, np.ndarray]:
        """The centre, and half the width along every coordinate."""
        lower, upper = self._ends
        return (lower + upper) / 2, (upper - lower) / 2

    def gap(self, x: np.ndarray) -> np.ndarray:
        """Distance to the nearest face as a fraction of the box across it, negative outside."""
        lower, upper = self._ends
        return (np.minimum(x - lower, upper - x) / self.sides).min(-1)

    def on_face(self, face: str, x: np.ndarray) -> np.ndarray:
        i, end, _ = self._split(face)
        close = np.abs(x[:, i] - end) <= FACE_TOLERANCE * self.sides[i]
        return close & (self.gap(x) >= -FACE_TOLERANCE)

    def snap(self, x: np.ndarray) -> np.ndarray:
        """Points close to the boundary, moved onto the nearest face."""
        lower, upper = self._ends
        x = np.clip(x, lower, upper)
        distance = np.concatenate([x - lower, upper - x], axis=1) / np.tile(self.sides, 2)
        near = distance.argmin(1)
        rows = np.arange(len(x))
        x[rows, near % x.shape[1]] = np.concatenate([lower, upper])[near]
        return x

    def describe(self) -> dict:
        return {"kind": "box", "bounds": {name: list(ends) for name, ends in self.bounds.items()}}


@dataclass(frozen=True)
class Ball(Simple):
    """A ball; its only face is "surface". Ball(2, names=("x", "y")) is the unit disc.

    Parameters
    ----------
    dimension : the number of coordinates.
    radius : its radius.
    center : its centre. Default: the origin.
    names : the names of the coordinates. Default: x1, x2, ….
    """

    dimension: int
    radius: float = 1.0
    center: tuple[float, ...] | None = None
    names: tuple[str, ...] = ()  # type: ignore[override]

    def __post_init__(self):
        if (
            isinstance(self.dimension, bool)
            or not isinstance(self.dimension, (int, np.integer))
            or self.dimension < 1
        ):
            raise ValueError(
                f"Ball got dimension {brief(self.dimension)}; wanted a whole number, at least 1, "
                "such as Ball(10)."
            )
        if not SMALLEST_SIZE <= number(self.radius) <= LARGEST_SIZE:
            raise ValueError(
                f"Ball got radius {brief(self.radius)}; wanted a positive, finite number "
                f"({SMALLEST_SIZE:g} to {LARGEST_SIZE:g})."
            )
        if self.dimension > MAX_BALL_DIMENSION:
            raise ValueError(
                f"Ball got dimension {brief(self.dimension)}; wanted at most {MAX_BALL_DIMENSION}."
            )
        try:
            center = (
                np.zeros(self.dimension) if self.center is None else np.asarray(self.center, float)
            )
        except (TypeError, ValueError, OverflowError):
            center = np.full(1, np.nan)
        if center.shape != (self.dimension,) or not np.all(
            np.abs(center) <= min(LARGEST_SIZE, float(self.radius) / MIN_RELATIVE_WIDTH)
        ):
            raise ValueError(
                f"Ball got center {brief(self.center)}; wanted {self.dimension} numbers, at most "
                f"{1 / MIN_RELATIVE_WIDTH:g} radii."
            )
        object.__setattr__(self, "center", tuple(center.tolist()))
        names = self.names if isinstance(self.names, (tuple, list)) else ()
        if self.names and (
            len(names) != self.dimension or len(set(map(str, names))) != self.dimension
        ):
            raise ValueError(
                f"Ball got names {brief(self.names)}; wanted a tuple of {self.dimension} different "
                "words."
            )
        for name in names:
            _check_name(name)
        object.__setattr__(self, "names", tuple(names) or self._default_names)

    @property
    def _default_names(self) -> tuple[str, ...]:
        return tuple(f"x{i}" for i in range(1, self.dimension + 1))

    @property
    def faces(self) -> tuple[str, ...]:
        return ("surface",)

    @property
    def first(self) -> int:
        """Halton point 0 has no direction, so point 1 is the first."""
        return 1

    def _place(self, unit: np.ndarray) -> np.ndarray:
        """Points of the unit ball, scaled and shifted to this one."""
        return np.asarray(self.center) + self.radius * unit

    def cube_dimension(self, face: str | None = None) -> int:
        return self.dimension + (face is None)

    def from_cube(self, u: np.ndarray, face: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Points distributed uniformly: d numbers make the direction, one more the radius."""
        x = (
            _directions(u)
            if face is not None
            else _directions(u[:, :-1]) * u[:, -1:] ** (1 / self.dimension)
        )
        return self._place(x), np.ones(len(u), bool)

    def region_measure(self, face: str | None = None) -> float:
        """The surface 2 πᵈᐟ² / Γ(d/2) rᵈ⁻¹, or the volume, which is r/d times that.

        Never 0, also where the exact number is too small for double precision.
        """
        d = self.dimension
        r = float(self.radius)
        log_surface = np.log(2) + d / 2 * np.log(np.pi) - gammaln(d / 2) + (d - 1) * np.log(r)
        log_measure = log_surface + (np.log(r / d) if face is None else 0.0)
        return float(np.exp(max(log_measure, MIN_LOG_MEASURE)))

    def normal(self, face: str, x: np.ndarray) -> np.ndarray:
        return (x - np.asarray(self.center)) / self.radius

    @property
    def sides(self) -> np.ndarray:
        return np.full(self.dimension, 2 * float(self.radius))

    @property
    def frame(self) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(self.center, float), self.sides / 2

    def gap(self, x: np.ndarray) -> np.ndarray:
        """1 - |x - c| / r: (n,), negative outside."""
        return 1 - np.linalg.norm(x - np.asarray(self.center), axis=-1) / self.radius

    def on_face(self, face: str, x: np.ndarray) -> np.ndarray:
        return np.abs(self.gap(x)) <= FACE_TOLERANCE

    def snap(self, x: np.ndarray) -> np.ndarray:
        """Points close to the boundary, moved onto it along the radius."""
        center = np.asarray(self.center)
        return center + (x - center) / (1 - self.gap(x))[:, None]

    def describe(self) -> dict:
        described = {
            "kind": "ball",
            "dimension": int(self.dimension),
            "radius": float(self.radius),
            "center": list(self.center or ()),
        }
        if self.names == self._default_names:
            return described
        return {**described, "names": list(self.names)}


def _directions(u: np.ndarray) -> np.ndarray:
    """Unit vectors, distributed uniformly where u (n, d) is uniform in the cube.

    The centre of the cube has no direction; it gets the first unit vector.
    """
    normal = ndtri(u)
    length = np.linalg.norm(normal, axis=1, keepdims=True)
    normal = np.where(length > 0, normal, np.eye(u.shape[1])[0])
    return normal / np.where(length > 0, length, 1.0)


COMBINED = ("product", "union", "intersection", "difference")


def check_described(described: Any) -> None:
    """Raise a ValueError for what `domain_from` cannot make a domain of: this is asked first, since
    that is recursive. The shapes check their own numbers.
    """
    parts = [described]
    shapes = 0
    while parts:
        inner = _described_parts(parts.pop())
        shapes += not inner
        parts += inner
        if shapes + len(parts) > MAX_SHAPES:
            raise ValueError(f"domain: got more than {MAX_SHAPES} shapes, expected at most that.")


def _described_parts(described: Any) -> list:
    """The two parts of a described shape, none of a box or a ball; a ValueError for what does not
    describe a shape.
    """
    if not isinstance(described, dict):
        raise ValueError(f"domain: got {brief(described)}, expected a dictionary.")
    kind = choose("domain: kind", described.get("kind"), ("box", "ball", *COMBINED))
    what = "parts"
    numbers: Any = []
    if kind == "box":
        what = "bounds"
        bounds = described.get(what)
        ends = list(bounds.values()) if isinstance(bounds, dict) else []
        valid = 0 < len(ends) <= MAX_BALL_DIMENSION
        valid = valid and all(isinstance(pair, list) and len(pair) == 2 for pair in ends)
        numbers = [end for pair in ends for end in pair] if valid else []
    elif kind == "ball":
        what = "center"
        numbers = described.get(what)
        valid = isinstance(numbers, list) and isinstance(described.get("names", []), list)
        numbers = numbers if valid else []
    else:
        valid = isinstance(described.get(what), list) and len(described[what]) == 2
    if not valid or not all(np.isfinite(number(end)) for end in numbers):
        raise ValueError(f"domain: got a {kind} with {what}={brief(described.get(what))}.")
    return described[what] if kind in COMBINED else []


def domain_from(described: Mapping[str, Any]) -> Box | Ball | Product | Combination:
    """The domain that `describe` turned into JSON.

    No points are drawn: whether a union, intersection or difference is empty is not looked at.
    """
    kind = described["kind"]
    if kind == "box":
        return Box(**{name: tuple(ends) for name, ends in described["bounds"].items()})
    if kind == "ball":
        names = tuple(described.get("names", ()))
        center = tuple(described["center"])
        return Ball(described.get("dimension"), described.get("radius"), center, names)  # type: ignore[arg-type]
    from sapm.problem.shapes import Combination, Product

    a, b = map(domain_from, described["parts"])
    return Product(a, b) if kind == "product" else Combination(kind, a, b, probe=False)
