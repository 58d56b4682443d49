"""Shapes made of shapes: union, intersection, difference and product. They ask of their parts what a problem asks of a domain."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from scipy.stats import qmc

PROBED = 2**14  # Halton points that measure a shape or a face; what holds none of them counts as empty
BLOCK = 2**18  # the most points tried at once
ON, AT = 1e-8, 1e-10  # within these fractions of a shape a point is on its boundary; is too close to it to tell from parts alone
ASIDE, ALONG = 1e-7, 2e-6  # steps across and along a face, as fractions of the smallest part, that tell what lies beside a point


def halton(n: int, dimension: int, start: int = 0) -> np.ndarray:
    """Points start, start+1, …, start+n-1 of the Halton sequence in the unit cube: (n, dimension)."""
    if dimension == 0:
        return np.zeros((n, 0))
    sequence = qmc.Halton(dimension, scramble=False)
    sequence.num_generated = start  # `fast_forward` would make all of them
    return sequence.random(n)


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
    @property
    def volume(self) -> float: ...
    @property
    def convex(self) -> bool: ...
    def points(self, n: int, start: int | None = None) -> np.ndarray: ...
    def face_points(self, face: str, n: int, start: int = 1) -> np.ndarray: ...
    def area(self, face: str) -> float: ...
    def normal(self, face: str, x: np.ndarray) -> np.ndarray: ...
    def gap(self, x: np.ndarray) -> np.ndarray: ...
    def on_face(self, face: str, x: np.ndarray) -> np.ndarray: ...
    def snap(self, x: np.ndarray) -> np.ndarray: ...
    def describe(self) -> dict: ...


class Part(Domain, Protocol):
    """What a shape asks of its parts besides. Without a face, the inside is meant.

    `lay` takes `dims` numbers in (0, 1) per point to points spread evenly over a region of measure `room`, and says which of
    them belong; `fine` is the width of the smallest part along every coordinate.
    """

    @property
    def fine(self) -> np.ndarray: ...
    def dims(self, face: str | None = None) -> int: ...
    def lay(self, u: np.ndarray, face: str | None = None) -> tuple[np.ndarray, np.ndarray]: ...
    def room(self, face: str | None = None) -> float: ...


class Shape:
    """The operators of all domains: a | b, a & b, a - b with the same coordinates, a * b with different ones."""

    def __or__(self, other: Shape) -> Combination:
        return Combination("union", self, _shape("|", other))  # type: ignore[arg-type]

    def __and__(self, other: Shape) -> Combination:
        return Combination("intersection", self, _shape("&", other))  # type: ignore[arg-type]

    def __sub__(self, other: Shape) -> Combination:
        return Combination("difference", self, _shape("-", other))  # type: ignore[arg-type]

    def __mul__(self, other: Shape) -> Any:
        return Product(self, _shape("*", other))  # type: ignore[arg-type]


def _shape(sign: str, given) -> Any:
    if not isinstance(given, Shape):
        raise TypeError(f"domain {sign} {given!r}: that is not a domain; use a sapm.Box, a sapm.Ball or a shape made of them.")
    return given


def stem(face: str) -> str:
    """A face's name without its number."""
    return face.partition(" ")[0]


def numbered(parts: Sequence[Part]) -> dict[str, tuple[int, str]]:
    """Names for the faces of all parts, from left to right: one that is taken gets the next free number, "surface 2"."""
    found: dict[str, tuple[int, str]] = {}
    for i, part in enumerate(parts):
        for face in part.faces:
            others = (f"{stem(face)} {k}" for k in itertools.count(2))
            found[next(name for name in itertools.chain([face], others) if name not in found)] = (i, face)
    return found


class Sieve:
    """One sequence: the Halton points that belong to a shape or its face, found as far as they are asked for."""

    def __init__(self, shape: Part, face: str | None):
        self.shape, self.face, self.tried = shape, face, 0
        self.kept = np.zeros((0, len(shape.names)))
        self._try(PROBED)
        self.fraction = len(self.kept) / PROBED

    def _try(self, n: int) -> None:
        x, keep = self.shape.lay(halton(n, self.shape.dims(self.face), 1 + self.tried), self.face)
        self.kept, self.tried = np.concatenate([self.kept, x[keep]]), self.tried + n

    def take(self, n: int, start: int) -> np.ndarray:
        if not self.fraction:
            raise ValueError(f"{self.face!r} is not a face; this domain has {', '.join(self.shape.faces)}.")
        while (missing := start + n - len(self.kept)) > 0:
            self._try(min(BLOCK, int(1.1 * missing / self.fraction) + 64))
        return self.kept[start : start + n].copy()


class Sifted(Shape):
    """A shape whose points are found by trying."""

    first: ClassVar[int] = 0

    @cached_property
    def _sieves(self) -> dict[str | None, Sieve]:
        return {}

    def _sieve(self: Any, face: str | None = None) -> Sieve:
        if face not in self._sieves:
            self._sieves[face] = Sieve(self, face)
        return self._sieves[face]

    def points(self, n: int, start: int | None = None) -> np.ndarray:
        return self._sieve().take(n, start or 0)

    def face_points(self, face: str, n: int, start: int = 1) -> np.ndarray:
        return self._sieve(face).take(n, max(start, 1) - 1)

    def area(self: Any, face: str) -> float:
        """Estimated, to some tenths of a per cent."""
        return self.room(face) * self._sieve(face).fraction

    @property
    def volume(self: Any) -> float:
        """Estimated, to some tenths of a per cent."""
        return self.room() * self._sieve().fraction

    @property
    def sides(self: Any) -> np.ndarray:
        return 2 * self.frame[1]

    @cached_property
    def faces(self: Any) -> tuple[str, ...]:
        """Those of the parts, as far as they are on the boundary."""
        return tuple(face for face in self._origin if self._sieve(face).fraction)


@dataclass(frozen=True)
class Combination(Sifted):
    """The union, intersection or difference of two shapes with the same coordinates."""

    kind: str
    a: Part
    b: Part

    def __post_init__(self):
        a, b = self.a.names, self.b.names
        if a != b:
            raise ValueError(
                f"the {self.kind} of shapes with coordinates {', '.join(a)} and {', '.join(b)} is not defined; give both "
                'the same names in the same order, such as Ball(2, names=("x", "y")).'
            )
        if not self._sieve().fraction:
            raise ValueError(f"the {self.kind} is empty or too thin: it holds none of {PROBED} points spread over its parts.")

    @property
    def names(self) -> tuple[str, ...]:
        return self.a.names

    @property
    def fine(self) -> np.ndarray:
        return np.minimum(self.a.fine, self.b.fine)

    @property
    def convex(self) -> bool:
        return self.kind == "intersection" and self.a.convex and self.b.convex

    @property
    def frame(self) -> tuple[np.ndarray, np.ndarray]:
        """The middle and half the widths of a box around it: around a for a - b, else of the boxes around a and b."""
        (ca, ha), (cb, hb) = self.a.frame, self.b.frame
        if self.kind == "difference":
            return ca, ha
        low, high = (np.minimum, np.maximum) if self.kind == "union" else (np.maximum, np.minimum)
        lower, upper = low(ca - ha, cb - hb), high(ca + ha, cb + hb)
        return (lower + upper) / 2, (upper - lower) / 2

    def _gaps(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.a.gap(x), -self.b.gap(x) if self.kind == "difference" else self.b.gap(x)

    def _rough(self, x: np.ndarray) -> np.ndarray:
        """That of the part which decides, negative outside; 0 also where faces of the parts meet and none is left."""
        return (np.maximum if self.kind == "union" else np.minimum)(*self._gaps(x))

    def gap(self, x: np.ndarray) -> np.ndarray:
        """That of the part which decides, negative outside. A point on a part's face is settled by what lies around it."""
        found = self._rough(x)
        near = np.abs(found) <= AT
        if near.any():
            around = np.sign([self._rough(x[near] + ALONG * self.fine * v) for v in _ways(x.shape[1])])
            low, high = around.min(0), around.max(0)
            found[near] = np.where(high <= 0, np.minimum(low * ALONG, found[near]), found[near])
            found[near] = np.where(low >= 0, np.maximum(high * ALONG, found[near]), found[near])
        return found

    def snap(self, x: np.ndarray) -> np.ndarray:
        a, b = self._gaps(x)
        by_a = a >= b if self.kind == "union" else a <= b
        return np.where(by_a[:, None], self.a.snap(x), self.b.snap(x))

    @cached_property
    def _origin(self) -> dict[str, tuple[int, str]]:
        return numbered((self.a, self.b))

    def _of(self, face: str) -> tuple[Part, str, float]:
        """The part that a face is from, its name there, and -1 if it is turned round."""
        i, own = self._origin[face]
        return (self.b if i else self.a), own, -1.0 if i and self.kind == "difference" else 1.0

    def normal(self, face: str, x: np.ndarray) -> np.ndarray:
        part, own, sign = self._of(face)
        return sign * part.normal(own, x)

    def _between(self, face: str, x: np.ndarray, n: np.ndarray) -> np.ndarray:
        """Whether the inside is behind each point of a part's face and the outside before it; no point is on two faces alike."""
        step = ASIDE * self.fine * n
        found = (self._rough(x - step) > 0) & (self._rough(x + step) < 0)
        near = found & (np.abs(self.a.gap(x)) <= ON) if self._origin[face][0] else np.zeros(len(x), bool)
        if near.any():
            at, alike = x[near], np.zeros(near.sum(), bool)
            for other in self.a.faces:
                alike |= self.a.on_face(other, at) & (np.sum(n[near] * self.a.normal(other, at), axis=1) > 1 - 1e-6)
            found[near] = ~alike
        return found

    def on_face(self, face: str, x: np.ndarray) -> np.ndarray:
        """Also where a face ends: there some point close by, along it, is between inside and outside."""
        part, own, _ = self._of(face)
        rows = np.flatnonzero(part.on_face(own, x) & (np.abs(self.gap(x)) <= ON))
        on = np.zeros(len(x), bool)
        for v in itertools.chain([np.zeros(x.shape[1])], _ways(x.shape[1])):
            if not len(rows):
                break
            n = self.normal(face, x[rows])
            along = ALONG * self.fine * v
            there = x[rows] + along - np.sum(along * n, axis=1, keepdims=True) * n
            found = self._between(face, there, n)
            on[rows[found]] = True
            rows = rows[~found]
        return on

    @property
    def _source(self) -> Part:
        """The part whose points are tried."""
        return self.b if self.kind == "intersection" and self.b.room() < self.a.room() else self.a

    def dims(self, face: str | None = None) -> int:
        if face is not None:
            part, own, _ = self._of(face)
            return part.dims(own)
        return max(self.a.dims(), self.b.dims()) + 1 if self.kind == "union" else self._source.dims()

    def room(self, face: str | None = None) -> float:
        if face is not None:
            part, own, _ = self._of(face)
            return part.room(own)
        return self.a.room() + self.b.room() if self.kind == "union" else self._source.room()

    def lay(self, u: np.ndarray, face: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """In a union the last number chooses the part; what both hold is taken from the first."""
        if face is not None:
            part, own, _ = self._of(face)
            x, keep = part.lay(u, own)
            return x, keep & self._between(face, x, self.normal(face, x))
        if self.kind == "union":
            by_a = u[:, -1] < self.a.room() / self.room()
            (xa, keep_a), (xb, keep_b) = (part.lay(u[:, : part.dims()]) for part in (self.a, self.b))
            x, keep = np.where(by_a[:, None], xa, xb), np.where(by_a, keep_a, keep_b & (self.a.gap(xb) <= 0))
        else:
            x, keep = self._source.lay(u)
        return x, keep & (self.gap(x) > 0)

    def describe(self) -> dict:
        return {"kind": self.kind, "parts": [self.a.describe(), self.b.describe()]}


def _ways(d: int) -> np.ndarray:
    """Directions to look in, near the axes and the diagonals; of the latter only some where they are many. None is in a face."""
    if d <= 4:
        ways = np.array([v for v in itertools.product((-1.0, 0.0, 1.0), repeat=d) if any(v)])
    else:
        some = np.sign(halton(64, d, 1) - 0.5)
        ways = np.concatenate([np.eye(d), -np.eye(d), some, -some])
    return ways + 0.1 / np.arange(2, d + 2)


@dataclass(frozen=True)
class Product(Sifted):
    """All pairs of a point of a and a point of b: Box(t=(0, 1)) * Ball(2) is a disc in time."""

    a: Part
    b: Part

    def __post_init__(self):
        if both := [name for name in self.a.names if name in self.b.names]:
            raise ValueError(
                f"the product of shapes that both have {', '.join(both)} is not defined; give their coordinates different names."
            )

    @property
    def names(self) -> tuple[str, ...]:
        return self.a.names + self.b.names

    @property
    def fine(self) -> np.ndarray:
        return np.concatenate([self.a.fine, self.b.fine])

    @property
    def convex(self) -> bool:
        return self.a.convex and self.b.convex

    @property
    def frame(self) -> tuple[np.ndarray, np.ndarray]:
        (ca, ha), (cb, hb) = self.a.frame, self.b.frame
        return np.concatenate([ca, cb]), np.concatenate([ha, hb])

    def _split(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        k = len(self.a.names)
        return x[..., :k], x[..., k:]

    def gap(self, x: np.ndarray) -> np.ndarray:
        xa, xb = self._split(x)
        return np.minimum(self.a.gap(xa), self.b.gap(xb))

    def snap(self, x: np.ndarray) -> np.ndarray:
        xa, xb = self._split(x)
        by_a = (self.a.gap(xa) <= self.b.gap(xb))[:, None]
        return np.concatenate([np.where(by_a, self.a.snap(xa), xa), np.where(by_a, xb, self.b.snap(xb))], axis=1)

    @cached_property
    def _origin(self) -> dict[str, tuple[int, str]]:
        return numbered((self.a, self.b))

    def _of(self, face: str | None) -> tuple[str | None, str | None]:
        """The face of a and the face of b, one of them or both None: the inside."""
        if face is None:
            return None, None
        i, own = self._origin[face]
        return (None, own) if i else (own, None)

    def normal(self, face: str, x: np.ndarray) -> np.ndarray:
        found, (of_a, of_b), (xa, xb) = np.zeros(x.shape), self._of(face), self._split(x)
        inner = self._split(found)
        if of_a is not None:
            inner[0][:] = self.a.normal(of_a, xa)
        if of_b is not None:
            inner[1][:] = self.b.normal(of_b, xb)
        return found

    def on_face(self, face: str, x: np.ndarray) -> np.ndarray:
        pairs = zip((self.a, self.b), self._of(face), self._split(x), strict=True)
        on = [part.gap(y) >= -ON if own is None else part.on_face(own, y) for part, own, y in pairs]
        return on[0] & on[1]

    def dims(self, face: str | None = None) -> int:
        of_a, of_b = self._of(face)
        return self.a.dims(of_a) + self.b.dims(of_b)

    def room(self, face: str | None = None) -> float:
        of_a, of_b = self._of(face)
        return self.a.room(of_a) * self.b.room(of_b)

    def lay(self, u: np.ndarray, face: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        of_a, of_b = self._of(face)
        k = self.a.dims(of_a)
        (xa, keep_a), (xb, keep_b) = self.a.lay(u[:, :k], of_a), self.b.lay(u[:, k:], of_b)
        return np.concatenate([xa, xb], axis=1), keep_a & keep_b

    def describe(self) -> dict:
        return {"kind": "product", "parts": [self.a.describe(), self.b.describe()]}
