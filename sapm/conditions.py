"""Conditions on the boundary: what u, or a derivative of it, is there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any, ClassVar

import numpy as np

from sapm.domain import Box
from sapm.names import brief, nearest, number, stated
from sapm.pointwise import evaluate, function_of_point, place, table
from sapm.shapes import Domain, stem


@dataclass(frozen=True)
class Constant:
    """A datum that is the same everywhere: a number, or one for each function."""

    value: float | tuple[float, ...]

    def __call__(self, p):
        return self.value


def _constant(given) -> Any:
    """A number, or several in a tuple or list, as a function of the point; anything else as it is."""
    if hasattr(given, "dtype") and np.ndim(given) == 0 and given.dtype.kind in "iuf":
        given = float(given)
    numbers = [number(value) for value in given] if isinstance(given, (tuple, list)) else [number(given)]
    if not numbers or not np.isfinite(numbers).all():
        return given
    return Constant(tuple(numbers) if isinstance(given, (tuple, list)) else numbers[0])


@dataclass(frozen=True)
class Condition:
    """u = g on a part of the boundary, g a function of the point or a number.

    `weight`: how much it counts beside other conditions; `points`: how many, or which.
    `of`: the function it is about, or several, by their names in the residual; without it all of them. g gives a number for each.
    `hard`: it holds exactly, since the network is multiplied by a factor that is 0 there; g must make sense in the whole domain.
    """

    g: Any
    weight: float = 1.0
    points: Any = None
    of: str | Sequence[str] | None = field(default=None, kw_only=True)
    hard: bool = field(default=False, kw_only=True)
    inflow_only: ClassVar[bool] = False
    about: ClassVar[str] = "value"  # or "derivative", or "both"

    def __post_init__(self):
        object.__setattr__(self, "g", _constant(self.g))
        what = f"the datum of {type(self).__name__}"
        if not callable(self.g):
            raise TypeError(
                f"{what} is {brief(self.g)}; give a number or a function of one point, such as lambda p: jnp.sin(p.x)."
            )
        function_of_point(what, self.g)
        if not 0 < number(self.weight) < np.inf:
            hint = " Faces are named by faces=…." if isinstance(self.weight, (str, list, tuple)) else ""
            raise ValueError(f"weight={brief(self.weight)} of {type(self).__name__} must be a positive, finite number.{hint}")
        if self.hard and not isinstance(self, (Initial, Dirichlet)):
            raise ValueError(f"hard=True is for Initial and Dirichlet conditions, not for {type(self).__name__}; leave it out.")

    def faces_in(self, domain: Domain) -> tuple[str, ...]:
        return _beside_time(domain)

    def meant(self, fields: Sequence[str]) -> tuple[int, ...]:
        """Which of the unknown functions it is about."""
        if self.of is None:
            return tuple(range(len(fields)))
        names = list(self.of) if isinstance(self.of, (list, tuple)) else [self.of]
        for name in names or ["nothing"]:
            if not isinstance(name, str) or name not in fields or names.count(name) > 1:
                raise ValueError(
                    f"{type(self).__name__} has of={brief(self.of)}; give one or several of {', '.join(fields)}, each once."
                    + nearest(name, fields)
                )
        return tuple(fields.index(name) for name in names)

    def datum(self, domain: Domain, x: np.ndarray, count: int = 1) -> np.ndarray:
        """g at the points x: (n, count), a number for each function that is meant."""
        what = f"the datum of {type(self).__name__}"
        found = evaluate(self.g, what, domain.names, x, several=count > 1)
        if found.shape[1] != count:
            raise ValueError(
                f"{what} gave {found.shape[1]} number{'s' * (found.shape[1] > 1)} for {count} unknown functions; return one for "
                "each of them, or say which is meant: of=…."
            )
        return found

    def operator(self, domain: Domain, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """a (n,) and w (n, d) of the condition a u + w·∇u = g."""
        return np.ones(len(x)), np.zeros_like(x)

    def normal(self, domain: Domain, x: np.ndarray) -> np.ndarray:
        """Outward, at points of this condition: on a corner that of its first face."""
        found = np.zeros_like(x)
        for face in reversed(self.faces_in(domain)):
            on = domain.on_face(face, x)
            found[on] = domain.normal(face, x)[on]
        return found


def _of_time(face: str) -> bool:
    return stem(face) in ("t-", "t+")


def _beside_time(domain: Domain) -> tuple[str, ...]:
    """The faces of all coordinates but t."""
    return tuple(face for face in domain.faces if not _of_time(face))


def _start(name: str, domain: Domain) -> tuple[str, ...]:
    """The faces where t begins: their outward normal points back in time."""
    if "t" not in domain.names:
        raise ValueError(
            f"{name} needs a coordinate named t, and the domain has {', '.join(domain.names)}; rename the one that is "
            "the time to t, or use Inflow or Dirichlet."
        )
    t = domain.names.index("t")
    found = [face for face in domain.faces if _of_time(face) and domain.normal(face, domain.face_points(face, 1))[0, t] < 0]
    if not found:
        raise ValueError(
            f"{name} needs a face where t begins, and the domain has {', '.join(domain.faces)}; "
            "use Dirichlet with the faces named."
        )
    return tuple(found)


@stated
@dataclass(frozen=True)
class Initial(Condition):
    """u = g at the lower end of the coordinate t."""

    def faces_in(self, domain: Domain) -> tuple[str, ...]:
        return _start("Initial", domain)


@stated
@dataclass(frozen=True)
class InitialVelocity(Condition):
    """∂u/∂t = g at the lower end of the coordinate t."""

    about: ClassVar[str] = "derivative"

    def faces_in(self, domain: Domain) -> tuple[str, ...]:
        return _start("InitialVelocity", domain)

    def operator(self, domain: Domain, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(x)), -self.normal(domain, x)


@stated
@dataclass(frozen=True)
class Inflow(Condition):
    """u = g where the characteristics enter: c·n < 0 on the faces of all coordinates but t."""

    inflow_only: ClassVar[bool] = True


@dataclass(frozen=True)
class OnFaces(Condition):
    """A condition on the named faces (default: those of all coordinates but t)."""

    faces: Sequence[str] | None = None

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.faces, str):
            object.__setattr__(self, "faces", (self.faces,))
        name = type(self).__name__
        if self.faces is not None and not (isinstance(self.faces, (list, tuple)) and all(isinstance(f, str) for f in self.faces)):
            raise TypeError(f'{name} got faces={brief(self.faces)}; wanted a list of names, such as faces=["x-"].')
        if self.faces is not None and not list(self.faces):
            raise ValueError(f'{name} got faces=[]; name at least one, such as faces=["x-"], or leave it out for all.')

    def faces_in(self, domain: Domain) -> tuple[str, ...]:
        for face in self.faces or ():
            if face not in domain.faces:
                raise ValueError(
                    f"{brief(face)} is not a face; this domain has {', '.join(domain.faces)}." + nearest(face, domain.faces)
                )
        return tuple(self.faces or _beside_time(domain))


@stated
@dataclass(frozen=True)
class Dirichlet(OnFaces):
    """u = g on the named faces (default: those of all coordinates but t), whichever way characteristics cross them."""


@stated
@dataclass(frozen=True)
class Neumann(OnFaces):
    """∂u/∂n = g, the derivative along the outward normal, on the named faces (default: those of all coordinates but t)."""

    about: ClassVar[str] = "derivative"

    def operator(self, domain: Domain, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(x)), self.normal(domain, x)


@stated
@dataclass(frozen=True, init=False)
class Robin(OnFaces):
    """a u + b ∂u/∂n = g on the named faces (default: those of all coordinates but t); a and b are numbers or functions of p."""

    a: Any = 1.0
    b: Any = 1.0
    about: ClassVar[str] = "both"

    def __init__(self, a, b, g, faces: Sequence[str] | None = None, weight: float = 1.0, points: Any = None, of=None):
        for name, value in {
            "a": a,
            "b": b,
            "g": g,
            "faces": faces,
            "weight": weight,
            "points": points,
            "of": of,
            "hard": False,
        }.items():
            object.__setattr__(self, name, value)
        self.__post_init__()
        if not any(callable(value) or number(value) != 0 for value in (a, b)):
            raise ValueError("Robin got a=0 and b=0, so it says nothing about u; one of them must be another number.")
        for name, value in {"a": a, "b": b}.items():
            if callable(value):
                function_of_point(f"{name} of Robin", value)
            if not callable(value) and not np.isfinite(number(value)):
                raise ValueError(f"{name}={brief(value)} of Robin must be a finite number, or a function of one point.")

    def _at(self, domain: Domain, name: str, x: np.ndarray) -> np.ndarray:
        given = getattr(self, name)
        return evaluate(given, f"{name} of Robin", domain.names, x)[:, 0] if callable(given) else np.full(len(x), float(given))

    def operator(self, domain: Domain, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._at(domain, "a", x), self._at(domain, "b", x)[:, None] * self.normal(domain, x)


@stated
@dataclass(frozen=True, init=False, eq=False)
class Observed(Condition):
    """u is known at points anywhere in the domain: Observed(x, u), x (n, coordinates), u (n,) or a column for each function."""

    x: Any = None
    u: Any = None

    def __init__(self, x, u, weight: float = 1.0, of: str | Sequence[str] | None = None):
        for name, value in {
            "g": lambda p: 0.0,
            "x": x,
            "u": u,
            "weight": weight,
            "points": None,
            "of": of,
            "hard": False,
        }.items():
            object.__setattr__(self, name, value)
        self.__post_init__()

    def faces_in(self, domain: Domain) -> tuple[str, ...]:
        return ()

    def place_in(self, domain: Domain) -> np.ndarray:
        """Its points; a sentence where they are not in the domain."""
        x = table("x of Observed", self.x, len(domain.names))
        if len(found := table("u of Observed", self.u)) != len(x):
            raise ValueError(f"Observed has {len(x)} points and {len(found)} values; they must be equal.")
        outside = domain.gap(x) < -1e-9
        if outside.any():
            raise ValueError(f"Observed has a point outside the domain: {place(domain.names, x[outside.argmax()])}.")
        return x

    def datum(self, domain: Domain, x: np.ndarray, count: int = 1) -> np.ndarray:
        return table("u of Observed", self.u, count)


@dataclass(frozen=True, init=False)
class Periodic:
    """u and all its derivatives are equal at both ends of these coordinates: Periodic("x"). It holds exactly.

    The network gets the sine and cosine of the coordinate, once around, in place of the coordinate itself.
    """

    coordinates: tuple[str, ...]

    def __init__(self, *coordinates: str):
        if not coordinates or not all(isinstance(name, str) for name in coordinates):
            raise TypeError(f'Periodic got {brief(coordinates)}; wanted names of coordinates, such as Periodic("x").')
        object.__setattr__(self, "coordinates", coordinates)

    def indices(self, domain: Domain) -> tuple[int, ...]:
        for name in self.coordinates:
            if name not in domain.names:
                raise ValueError(
                    f"Periodic({brief(name)}) is not about a coordinate; there are {', '.join(domain.names)}."
                    + nearest(name, domain.names)
                )
            if not {name + "-", name + "+"} <= set(domain.faces):
                raise ValueError(
                    f"Periodic({brief(name)}) needs a coordinate with two ends, {name}- and {name}+; use a Box for it."
                )
        return tuple(domain.names.index(name) for name in self.coordinates)


def corners(problem: Any) -> str:
    """A sentence where the conditions of two faces of a box give u different values where the faces meet; "" if none do.

    No smooth function has both, and near such a corner no network does.
    """
    domain = problem.domain
    if not isinstance(domain, Box) or len(domain.names) < 2:
        return ""
    values = [c for c in problem.stated if c.about == "value" and np.ndim(c.points) == 0 and not c.inflow_only]
    draw = np.random.default_rng(0).uniform(size=(32, len(domain.names) - 1))
    for one, two in combinations(values, 2):
        for face, side in product(problem.faces(one), problem.faces(two)):
            with suppress(ValueError):  # data that are not finite at a corner are never asked for there
                if said := _jump(problem, (one, face), (two, side), draw):
                    return said
    return ""


def _largest(problem: Any, condition: Condition, draw: np.ndarray) -> dict[int, float]:
    """The size of what a condition says of each function, as far as it is finite."""
    meant, found = condition.meant(problem.fields), []
    for face in problem.faces(condition):
        with suppress(ValueError):
            found.append(np.abs(condition.datum(problem.domain, problem.domain.lay(draw, face)[0], len(meant))).max(0))
    return dict(zip(meant, np.max(found, axis=0), strict=True)) if found else dict.fromkeys(meant, 0.0)


def _jump(problem: Any, a: tuple[Condition, str], b: tuple[Condition, str], draw: np.ndarray) -> str:
    (one, face), (two, side), domain = a, b, problem.domain
    across = side[:-1]
    if face[:-1] == across:
        return ""
    sizes, x = [_largest(problem, c, draw) for c in (one, two)], domain.lay(draw[:8], face)[0]
    x[:, domain.names.index(across)] = domain.bounds[across][side[-1] == "+"]
    first, second = one.meant(problem.fields), two.meant(problem.fields)
    said, other = one.datum(domain, x, len(first)), two.datum(domain, x, len(second))
    for k in set(first) & set(second):
        mine, theirs = said[:, first.index(k)], other[:, second.index(k)]
        n = int(np.abs(mine - theirs).argmax())
        if abs(mine[n] - theirs[n]) > max(1e-3 * max(size[k] for size in sizes), 1e-12):
            return (
                f"{problem.fields[k]} jumps where {face} and {side} meet: at {place(domain.names, x[n])} {type(one).__name__} "
                f"says {mine[n]:.3g} and {type(two).__name__} {theirs[n]:.3g}; no network does, so the error is large near there."
            )
    return ""
