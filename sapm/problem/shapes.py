"""Shapes made of shapes: union a | b, intersection a & b, difference a - b and product a * b.

A shape knows its parts through the protocol `Domain` only. Three questions carry everything else:
`gap(x)` is the distance to the boundary (positive inside), `on_face(face, x)` says which points lie
on a face, and `from_cube(u)` maps points of a unit cube to points of the shape or of a face.
Collocation points of a shape are the points of a Halton sequence, mapped from the cube, that lie
inside. Volumes and areas are estimated from the share of accepted points.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from functools import cached_property

import numpy as np

from sapm.problem.domain import FACE_TOLERANCE, MAX_SHAPES, Domain, Shape, face_stem, halton

# Halton points that measure a shape or a face, which is empty if it holds none of them
SHAPE_PROBE_POINTS = 2**14
MAX_POINTS_PER_TRIAL = 2**18
TIE_TOLERANCE = 1e-10  # of the gap: a point this close to a part's face is decided by neighbours
NORMAL_STEP = 1e-7  # across a face, as a fraction of the smallest width
TANGENT_STEP = 2e-6  # along a face, as a fraction of the smallest width
SAME_DIRECTION_COSINE = 1 - 1e-6  # of the angle between two normals that count as equal
PROBE_DIRECTIONS = 64  # pairs of diagonals that are probed in more than four dimensions


def unique_face_names(parts: Sequence[Domain]) -> dict[str, tuple[int, str]]:
    """Unique names for the faces of all parts: {name: (index of the part, its name there)}.

    A name that is taken gets the next free number: "surface 2".
    """
    origin: dict[str, tuple[int, str]] = {}
    for i, part in enumerate(parts):
        for face in part.faces:
            numbers = (f"{face_stem(face)} {k}" for k in itertools.count(2))
            free = (name for name in itertools.chain([face], numbers) if name not in origin)
            origin[next(free)] = (i, face)
    return origin


class Sieve:
    """The Halton points that belong to a shape (face=None) or to a face, computed on demand."""

    def __init__(self, shape: Domain, face: str | None):
        self.shape = shape
        self.face = face
        self.trials = 0
        self.accepted = np.zeros((0, len(shape.names)))
        self._draw(SHAPE_PROBE_POINTS)
        self.fraction = len(self.accepted) / SHAPE_PROBE_POINTS

    def _draw(self, n: int) -> None:
        cube = halton(n, self.shape.cube_dimension(self.face), 1 + self.trials)
        x, belongs = self.shape.from_cube(cube, self.face)
        self.accepted = np.concatenate([self.accepted, x[belongs]])
        self.trials = self.trials + n

    def take(self, n: int, start: int) -> np.ndarray:
        """Accepted points start, …, start + n - 1: (n, d)."""
        if not self.fraction:
            raise ValueError(
                f"{self.face!r} is not a face; this domain has {', '.join(self.shape.faces)}."
            )
        while (missing := start + n - len(self.accepted)) > 0:
            self._draw(min(MAX_POINTS_PER_TRIAL, int(1.1 * missing / self.fraction) + 64))
        return self.accepted[start : start + n].copy()


class Sifted(Shape, Domain):
    """A shape of the parts a and b whose points are found by rejection: see `Sieve`."""

    a: Domain
    b: Domain

    @cached_property
    def shapes(self) -> int:
        """The number of boxes and balls that the shape is made of."""
        return sum(part.shapes if isinstance(part, Sifted) else 1 for part in (self.a, self.b))

    def _check_shapes(self) -> None:
        if self.shapes > MAX_SHAPES:
            raise ValueError(
                f"domain: got {self.shapes} shapes, expected at most {MAX_SHAPES}; leave some out."
            )

    @cached_property
    def _sieves(self) -> dict[str | None, Sieve]:
        return {}

    @cached_property
    def _origin(self) -> dict[str, tuple[int, str]]:
        """The faces of the parts, by their names in this shape."""
        return unique_face_names((self.a, self.b))

    def _sieve(self, face: str | None = None) -> Sieve:
        if face not in self._sieves:
            self._sieves[face] = Sieve(self, face)
        return self._sieves[face]

    @property
    def first(self) -> int:
        return 0

    def points(self, n: int, start: int | None = None) -> np.ndarray:
        """n points inside, number `start` of the accepted ones and those after it: (n, d)."""
        return self._sieve().take(n, start or 0)

    def face_points(self, face: str, n: int, start: int = 1) -> np.ndarray:
        """n points on a face, number `start` (from 1) of the accepted ones and those after it.

        Parameters
        ----------
        face : its name.
        n : the number of points.
        start : the number of the first one among the accepted ones, from 1.
        """
        return self._sieve(face).take(n, max(start, 1) - 1)

    def area(self, face: str) -> float:
        """The measure of a face, estimated with an error of some tenths of a per cent."""
        return self.region_measure(face) * self._sieve(face).fraction

    @property
    def volume(self) -> float:
        """The measure of the inside, estimated with an error of some tenths of a per cent."""
        return self.region_measure() * self._sieve().fraction

    @property
    def sides(self) -> np.ndarray:
        return 2 * self.frame[1]

    @cached_property
    def _faces(self) -> tuple[str, ...]:
        return tuple(face for face in self._origin if self._sieve(face).fraction)

    @property
    def faces(self) -> tuple[str, ...]:
        """The faces of the parts that are on the boundary of the shape, at least in part."""
        return self._faces


def raw_gap(domain: Domain, x: np.ndarray) -> np.ndarray:
    """The gap of points x of a domain, which may be 0 inside it: see `Combination._raw_gap`."""
    if isinstance(domain, Combination):
        return domain._raw_gap(x, ties=False)
    if isinstance(domain, Product):
        xa, xb = domain._split(x)
        return np.minimum(raw_gap(domain.a, xa), raw_gap(domain.b, xb))
    return domain.gap(x)


@dataclass(frozen=True)
class Combination(Sifted):
    """The union, intersection or difference of two shapes with the same coordinates.

    Parameters
    ----------
    kind : "union", "intersection" or "difference"
    a, b : a difference is a without b.
    probe : whether the shape is checked to have an inside, which needs some points of it.
    """

    kind: str
    a: Domain
    b: Domain
    probe: InitVar[bool] = True

    def __post_init__(self, probe: bool):
        self._check_shapes()
        a = self.a.names
        b = self.b.names
        if a != b:
            raise ValueError(
                f"the {self.kind} of shapes with coordinates {', '.join(a)} and {', '.join(b)} is "
                "not defined; give both the same names in the same order, such as "
                'Ball(2, names=("x", "y")).'
            )
        if probe and not self._sieve().fraction:
            raise ValueError(
                f"the {self.kind} is empty or too thin: it contains none of {SHAPE_PROBE_POINTS} "
                "points spread over its parts; check its parts, or make it thicker."
            )

    @property
    def names(self) -> tuple[str, ...]:
        return self.a.names

    @property
    def smallest_width(self) -> np.ndarray:
        return np.minimum(self.a.smallest_width, self.b.smallest_width)

    @property
    def convex(self) -> bool:
        """Only the intersection of convex shapes is known to be convex."""
        return self.kind == "intersection" and self.a.convex and self.b.convex

    @property
    def frame(self) -> tuple[np.ndarray, np.ndarray]:
        """The centre and half the widths of a box around the shape.

        For a - b it is the box around a, otherwise the union or intersection of both boxes.
        """
        (center_a, half_a), (center_b, half_b) = self.a.frame, self.b.frame
        if self.kind == "difference":
            return center_a, half_a
        low, high = (np.minimum, np.maximum) if self.kind == "union" else (np.maximum, np.minimum)
        lower = low(center_a - half_a, center_b - half_b)
        upper = high(center_a + half_a, center_b + half_b)
        return (lower + upper) / 2, (upper - lower) / 2

    def _gaps(self, x: np.ndarray, ties: bool = True) -> tuple[np.ndarray, np.ndarray]:
        gaps = [part.gap(x) if ties else raw_gap(part, x) for part in (self.a, self.b)]
        return gaps[0], -gaps[1] if self.kind == "difference" else gaps[1]

    def _raw_gap(self, x: np.ndarray, ties: bool = True) -> np.ndarray:
        """The larger gap of a union, the smaller gap otherwise; negative outside.

        It is also 0 where faces of both parts meet inside the shape, as in two boxes side by side.

        Parameters
        ----------
        x : the points.
        ties : whether neighbours decide where the gap of a part is 0; see `gap`.
        """
        return (np.maximum if self.kind == "union" else np.minimum)(*self._gaps(x, ties))

    def gap(self, x: np.ndarray) -> np.ndarray:
        """The gap of the part that decides: (n,), negative outside.

        Where it is 0 the neighbours decide: a point with no neighbour inside is outside, a point
        with no neighbour outside is inside.
        """
        gap = self._raw_gap(x)
        tied = np.abs(gap) <= TIE_TOLERANCE
        if tied.any():
            steps = TANGENT_STEP * self.smallest_width * _directions_around(x.shape[1])
            # neighbours are not asked for their own neighbours: of n shapes in each other, that
            # would be up to 8ⁿ points
            around = np.sign([self._raw_gap(x[tied] + step, ties=False) for step in steps])
            low = around.min(0)
            high = around.max(0)
            gap[tied] = np.where(high <= 0, np.minimum(low * TANGENT_STEP, gap[tied]), gap[tied])
            gap[tied] = np.where(low >= 0, np.maximum(high * TANGENT_STEP, gap[tied]), gap[tied])
        return gap

    def snap(self, x: np.ndarray) -> np.ndarray:
        """Points close to the boundary, moved onto the boundary of the part that decides."""
        a, b = self._gaps(x)
        by_a = a >= b if self.kind == "union" else a <= b
        return np.where(by_a[:, None], self.a.snap(x), self.b.snap(x))

    def _part_of(self, face: str) -> tuple[Domain, str, float]:
        """The part that a face comes from, the face's name there, and the sign of its normal."""
        i, own = self._origin[face]
        return (self.b if i else self.a), own, -1.0 if i and self.kind == "difference" else 1.0

    def normal(self, face: str, x: np.ndarray) -> np.ndarray:
        part, own, sign = self._part_of(face)
        return sign * part.normal(own, x)

    def _separates(self, face: str, x: np.ndarray, normal: np.ndarray) -> np.ndarray:
        """Whether the inside is behind each point of a part's face and the outside in front: (n,).

        Where faces of a and b coincide, the points belong to the face of a.
        """
        step = NORMAL_STEP * self.smallest_width * normal
        separates = (self._raw_gap(x - step) > 0) & (self._raw_gap(x + step) < 0)
        from_b = self._origin[face][0] == 1
        shared = (
            separates & (np.abs(self.a.gap(x)) <= FACE_TOLERANCE)
            if from_b
            else np.zeros(len(x), bool)
        )
        if shared.any():
            at = x[shared]
            coincides = np.zeros(shared.sum(), bool)
            for other in self.a.faces:
                cosine = np.sum(normal[shared] * self.a.normal(other, at), axis=1)
                coincides |= self.a.on_face(other, at) & (cosine > SAME_DIRECTION_COSINE)
            separates[shared] = ~coincides
        return separates

    def on_face(self, face: str, x: np.ndarray) -> np.ndarray:
        """Which points lie on a face, its edge included: (n,) of bool.

        A point is on the face if the face separates inside and outside there, or at some point
        close by along the face.
        """
        part, own, _ = self._part_of(face)
        rows = np.flatnonzero(part.on_face(own, x) & (np.abs(self.gap(x)) <= FACE_TOLERANCE))
        on = np.zeros(len(x), bool)
        at_the_point = np.zeros(x.shape[1])
        for direction in itertools.chain([at_the_point], _directions_around(x.shape[1])):
            if not len(rows):
                break
            normal = self.normal(face, x[rows])
            step = TANGENT_STEP * self.smallest_width * direction
            tangent = step - np.sum(step * normal, axis=1, keepdims=True) * normal
            separates = self._separates(face, x[rows] + tangent, normal)
            on[rows[separates]] = True
            rows = rows[~separates]
        return on

    @property
    def _source(self) -> Domain:
        """The part whose points are tried: the smaller one of an intersection, otherwise a."""
        b_is_smaller = (
            self.kind == "intersection" and self.b.region_measure() < self.a.region_measure()
        )
        return self.b if b_is_smaller else self.a

    def cube_dimension(self, face: str | None = None) -> int:
        if face is not None:
            part, own, _ = self._part_of(face)
            return part.cube_dimension(own)
        if self.kind == "union":
            return max(self.a.cube_dimension(), self.b.cube_dimension()) + 1
        return self._source.cube_dimension()

    def region_measure(self, face: str | None = None) -> float:
        if face is not None:
            part, own, _ = self._part_of(face)
            return part.region_measure(own)
        if self.kind == "union":
            return self.a.region_measure() + self.b.region_measure()
        return self._source.region_measure()

    def from_cube(self, u: np.ndarray, face: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """As in `Domain`. In a union the last number chooses the part; points of both count in a
        alone.

        Parameters
        ----------
        u : (n, cube_dimension) points of the unit cube.
        face : the name of a face, or None for the inside.
        """
        if face is not None:
            part, own, _ = self._part_of(face)
            x, belongs = part.from_cube(u, own)
            return x, belongs & self._separates(face, x, self.normal(face, x))
        if self.kind == "union":
            by_a = u[:, -1] < self.a.region_measure() / self.region_measure()
            xa, in_a = self.a.from_cube(u[:, : self.a.cube_dimension()])
            xb, in_b = self.b.from_cube(u[:, : self.b.cube_dimension()])
            x = np.where(by_a[:, None], xa, xb)
            belongs = np.where(by_a, in_a, in_b & (self.a.gap(xb) <= 0))
        else:
            x, belongs = self._source.from_cube(u)
        return x, belongs & (self.gap(x) > 0)

    def describe(self) -> dict:
        return {"kind": self.kind, "parts": [self.a.describe(), self.b.describe()]}


def _directions_around(d: int) -> np.ndarray:
    """Directions in which the neighbours of a point are probed: (k, d), near axes and diagonals.

    Up to d = 4 all of them, above that the axes and some diagonals. They are tilted a little, so
    that none lies in a face of a box.
    """
    if d <= 4:
        grid = itertools.product((-1.0, 0.0, 1.0), repeat=d)
        directions = np.array([vector for vector in grid if any(vector)])
    else:
        diagonals = np.sign(halton(PROBE_DIRECTIONS, d, 1) - 0.5)
        directions = np.concatenate([np.eye(d), -np.eye(d), diagonals, -diagonals])
    return directions + 0.1 / np.arange(2, d + 2)


@dataclass(frozen=True)
class Product(Sifted):
    """All pairs of a point of a and a point of b: Box(t=(0, 1)) * Ball(2) is a disc in time.

    A face is a face of one part times the inside of the other.

    Parameters
    ----------
    a, b : shapes without a common coordinate
    """

    a: Domain
    b: Domain

    def __post_init__(self):
        self._check_shapes()
        if both := [name for name in self.a.names if name in self.b.names]:
            raise ValueError(
                f"the product of shapes that both have {', '.join(both)} is not defined; give "
                "their coordinates different names."
            )

    @property
    def names(self) -> tuple[str, ...]:
        return self.a.names + self.b.names

    @property
    def smallest_width(self) -> np.ndarray:
        return np.concatenate([self.a.smallest_width, self.b.smallest_width])

    @property
    def convex(self) -> bool:
        return self.a.convex and self.b.convex

    @property
    def frame(self) -> tuple[np.ndarray, np.ndarray]:
        (center_a, half_a), (center_b, half_b) = self.a.frame, self.b.frame
        return np.concatenate([center_a, center_b]), np.concatenate([half_a, half_b])

    def _split(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The coordinates of a and those of b."""
        k = len(self.a.names)
        return x[..., :k], x[..., k:]

    def gap(self, x: np.ndarray) -> np.ndarray:
        xa, xb = self._split(x)
        return np.minimum(self.a.gap(xa), self.b.gap(xb))

    def snap(self, x: np.ndarray) -> np.ndarray:
        """Points close to the boundary, moved onto it along the part whose boundary is nearer."""
        xa, xb = self._split(x)
        by_a = (self.a.gap(xa) <= self.b.gap(xb))[:, None]
        return np.concatenate(
            [np.where(by_a, self.a.snap(xa), xa), np.where(by_a, xb, self.b.snap(xb))], axis=1
        )

    def _faces_of(self, face: str | None) -> tuple[str | None, str | None]:
        """The face of a and the face of b; None is the inside."""
        if face is None:
            return None, None
        i, own = self._origin[face]
        return (None, own) if i else (own, None)

    def normal(self, face: str, x: np.ndarray) -> np.ndarray:
        """The normal of the part that the face is from, with zeros in the other's coordinates."""
        face_a, face_b = self._faces_of(face)
        xa, xb = self._split(x)
        normal_a = np.zeros(xa.shape) if face_a is None else self.a.normal(face_a, xa)
        normal_b = np.zeros(xb.shape) if face_b is None else self.b.normal(face_b, xb)
        return np.concatenate([normal_a, normal_b], axis=-1)

    def on_face(self, face: str, x: np.ndarray) -> np.ndarray:
        pairs = zip((self.a, self.b), self._faces_of(face), self._split(x), strict=True)
        on = [
            part.gap(y) >= -FACE_TOLERANCE if own is None else part.on_face(own, y)
            for part, own, y in pairs
        ]
        return on[0] & on[1]

    def cube_dimension(self, face: str | None = None) -> int:
        face_a, face_b = self._faces_of(face)
        return self.a.cube_dimension(face_a) + self.b.cube_dimension(face_b)

    def region_measure(self, face: str | None = None) -> float:
        face_a, face_b = self._faces_of(face)
        return self.a.region_measure(face_a) * self.b.region_measure(face_b)

    def from_cube(self, u: np.ndarray, face: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The first numbers make the point of a, the others the point of b."""
        face_a, face_b = self._faces_of(face)
        k = self.a.cube_dimension(face_a)
        xa, in_a = self.a.from_cube(u[:, :k], face_a)
        xb, in_b = self.b.from_cube(u[:, k:], face_b)
        return np.concatenate([xa, xb], axis=1), in_a & in_b

    def describe(self) -> dict:
        return {"kind": "product", "parts": [self.a.describe(), self.b.describe()]}
