"""Conditions: what u satisfies on the boundary, or at measured points.

* `Condition`: any equation residual(p, u) = 0 on faces. Subclass it for conditions of your own.
* `LinearCondition` and its kinds: a u + w·∇u = g on faces, with a datum g.
* `Observed`: u at points anywhere in the domain.
* `Periodic`: u is equal at both ends of a coordinate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sapm.errors import brief, by_name, nearest, number
from sapm.problem.domain import Domain, face_stem
from sapm.problem.equation import unknown_names
from sapm.problem.functions import check_inside, evaluate, function_of_point, point_text, table

if TYPE_CHECKING:
    from sapm.problem.pde import PDE

# ---------------------------------------------------------------- what all conditions share


class BoundaryCondition(ABC):
    """What all conditions on a part of the boundary have in common.

    A condition of your own inherits from `Condition` or `LinearCondition`: a PDE accepts no other
    subclass.

    Parameters
    ----------
    weight : how much its points count, relative to those of other conditions.
    points : int or (n, d): how many points it gets, or which. Default: an equal share of
        `boundary_points`.
    faces : the faces it holds on. Default: those of all coordinates but t.
    """

    weight: float = 1.0
    points: Any = None
    faces: Sequence[str] | None = None
    hard: bool = False
    inflow_only: ClassVar[bool] = False
    prescribes_value: ClassVar[bool] = False  # whether it says u = g, with a function g

    @property
    def name(self) -> str:
        """Its kind, for errors and advice."""
        return type(self).__name__

    def faces_in(self, domain: Domain) -> tuple[str, ...]:
        """The faces of the domain that it holds on."""
        for face in self.faces or ():
            if face not in domain.faces:
                raise ValueError(
                    f"{brief(face)} is not a face; this domain has {', '.join(domain.faces)}."
                    + nearest(face, domain.faces)
                )
        without_time = (face for face in domain.faces if not _about_time(face))
        return tuple(self.faces or without_time)

    @abstractmethod
    def field_indices(self, fields: Sequence[str]) -> tuple[int, ...]:
        """The indices of the unknown functions it is about."""

    def _check_weight(self) -> None:
        if not 0 < number(self.weight) < np.inf:
            words = isinstance(self.weight, (str, list, tuple))
            hint = " Faces are named by faces=…." if words else ""
            raise ValueError(
                f"weight={brief(self.weight)} of {self.name} must be a positive, finite number."
                f"{hint}"
            )

    def _check_faces(self) -> None:
        listed = isinstance(self.faces, (list, tuple))
        if self.faces is not None and not (
            listed and all(isinstance(face, str) for face in self.faces)
        ):
            raise TypeError(
                f"{self.name}: got faces={brief(self.faces)}, expected a list of names, such as "
                'faces=["x-"].'
            )
        if listed and not self.faces:
            raise ValueError(
                f"{self.name}: got faces=[]; name at least one, such as "
                'faces=["x-"], or leave it out for all.'
            )


def _about_time(face: str) -> bool:
    return face_stem(face) in ("t-", "t+")


# ---------------------------------------------------------------- any equation on a face


class Condition(BoundaryCondition):
    """residual(p, u) = 0 on faces: any equation for u and its derivatives, linear or not.

    Parameters
    ----------
    residual : a function of the point and of the unknown functions, written like the residual of a
        PDE: `lambda p, u: u.x + u.value**4 - p.t`, or `lambda p, u, v: …` for a system. The names
        of its arguments after the point are those of the PDE; functions that it does not use may be
        left out. It may return several numbers, one for each equation.
    faces : the faces it holds on, such as `["x+"]`. Default: those of all coordinates but t.
    weight : how much its points count, relative to those of other conditions.
    points : int or (n, d): how many points it gets, or which.

    A condition of your own is a subclass with a method `residual(self, p, u)`:

        class Radiation(sapm.Condition):
            def residual(self, p, u):
                return u.x + u.value**4

        sapm.PDE(domain, residual, [Radiation(faces=["x+"]), …])
    """

    residual: Callable

    @by_name
    def __init__(
        self,
        residual: Callable | None = None,
        faces: Sequence[str] | None = None,
        weight: float = 1.0,
        points: Any = None,
    ):
        if residual is not None:
            self.residual = residual
        self.faces = (faces,) if isinstance(faces, str) else faces
        self.weight = weight
        self.points = points
        self.check()

    def __repr__(self) -> str:
        return f"{self.name}(faces={self.faces!r})"

    def check(self) -> None:
        """Raise an error for settings that make no sense."""
        if not callable(getattr(self, "residual", None)):
            raise TypeError(
                f"{self.name} needs a residual, a function of the point and of u: "
                'sapm.Condition(lambda p, u: u.x + u.value**4, faces=["x+"]).'
            )
        self._check_weight()
        self._check_faces()

    def field_indices(self, fields: Sequence[str]) -> tuple[int, ...]:
        """The indices of the unknown functions that its residual takes, by their names."""
        names = unknown_names(self.residual)
        if len(fields) == len(names) == 1:
            return (0,)
        for name in names:
            if name not in fields:
                raise ValueError(
                    f"the residual of {self.name} takes {brief(name)}; the unknown functions of "
                    f"this problem are {', '.join(fields)}.{nearest(name, fields)}"
                )
        return tuple(fields.index(name) for name in names)

    def residual_of(self, fields: Sequence[str]) -> Callable:
        """The residual as a function of the point and of all unknown functions of a problem."""
        meant = self.field_indices(fields)

        def residual(p, *functions):
            return self.residual(p, *(functions[i] for i in meant))

        return residual


# ---------------------------------------------------------------- linear conditions with a datum


@dataclass(frozen=True)
class Constant:
    """A datum that is the same everywhere: a number, or one for each function."""

    value: float | tuple[float, ...]

    def __call__(self, p):
        return self.value


def _datum(g) -> Any:
    """g as a function of the point where it is a number, or several; anything else unchanged."""
    if hasattr(g, "dtype") and np.ndim(g) == 0 and g.dtype.kind in "iuf":
        g = float(g)
    several = isinstance(g, (tuple, list))
    numbers = [number(value) for value in (g if several else [g])]
    if not numbers or not np.isfinite(numbers).all():
        return g
    return Constant(tuple(numbers) if several else numbers[0])


@dataclass(frozen=True)
class LinearCondition(BoundaryCondition):
    """a u + w·∇u = g on a part of the boundary.

    Parameters
    ----------
    g : the datum, a function of one point, `lambda p: jnp.sin(p.x)`, or a
        number. For several functions it gives one number for each.
    weight : how much its points count, relative to those of other conditions.
    points : int or (n, d): how many points it gets, or which.
    of : the unknown functions it is about, by their names in the residual. Default: all.
    hard : satisfy it exactly: u = g + φ N, where φ vanishes on its faces. g must be defined in the
        whole domain. For Initial and Dirichlet conditions on a Box or a Ball.

    A condition of your own is a frozen dataclass that inherits from this class, or from `OnFaces`,
    which has the parameter `faces`. It implements `operator`, which gives a and w at points. The
    class attribute `about` says what it prescribes: "value" (u = g), "derivative" (a = 0), or
    "both", which a class with an `operator` of its own has by default.
    """

    g: Any
    weight: float = 1.0
    points: Any = None
    of: str | Sequence[str] | None = field(default=None, kw_only=True)
    hard: bool = field(default=False, kw_only=True)
    about: ClassVar[str] = "value"

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "operator" not in vars(cls):
            return
        if "about" not in vars(cls):
            cls.about = "both"
        elif cls.about == "value":
            raise TypeError(
                f"condition {cls.__name__}: got an operator and about='value', expected "
                "'derivative' or 'both'; about='value' means u = g, without an operator."
            )

    def __post_init__(self):
        object.__setattr__(self, "g", _datum(self.g))
        what = f"the datum of {self.name}"
        if not callable(self.g):
            raise TypeError(
                f"{what} is {brief(self.g)}; give a number or a function of one point, such as "
                "lambda p: jnp.sin(p.x)."
            )
        function_of_point(what, self.g)
        self._check_weight()
        if self.hard and not isinstance(self, (Initial, Dirichlet)):
            raise ValueError(
                f"hard=True is for Initial and Dirichlet conditions, not for {self.name}; "
                "leave it out."
            )

    @property
    def prescribes_value(self) -> bool:  # type: ignore[override]
        """Whether it says u = g."""
        return self.about == "value"

    def field_indices(self, fields: Sequence[str]) -> tuple[int, ...]:
        """The indices of the unknown functions it is about: those of `of`, or all."""
        if self.of is None:
            return tuple(range(len(fields)))
        names = list(self.of) if isinstance(self.of, (list, tuple)) else [self.of]
        for name in names or ["nothing"]:
            if not isinstance(name, str) or name not in fields or names.count(name) > 1:
                raise ValueError(
                    f"{self.name} has of={brief(self.of)}; give one or several of "
                    f"{', '.join(fields)}, each once.{nearest(name, fields)}"
                )
        return tuple(fields.index(name) for name in names)

    def datum(self, domain: Domain, x: np.ndarray, count: int = 1) -> np.ndarray:
        """g at the points x: (n, count), one column for each of `count` functions.

        Parameters
        ----------
        domain : the domain.
        x : (n, d) the points.
        count : the number of functions that the condition is about.
        """
        what = f"the datum of {self.name}"
        values = evaluate(self.g, what, domain.names, x, several=count > 1)
        if values.shape[1] != count:
            plural = "s" * (values.shape[1] > 1)
            raise ValueError(
                f"{what} gave {values.shape[1]} number{plural} for {count} unknown functions; "
                "return one for each of them, or name the function meant: of=…."
            )
        return values

    def operator(self, domain: Domain, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """a (n,) and w (n, d) at the points x."""
        return np.ones(len(x)), np.zeros_like(x)

    def normal(self, domain: Domain, x: np.ndarray) -> np.ndarray:
        """The outward normal (n, d) at points of this condition; at a corner that of one face."""
        normals = np.zeros_like(x)
        for face in reversed(self.faces_in(domain)):
            on = domain.on_face(face, x)
            normals[on] = domain.normal(face, x)[on]
        return normals


def _initial_faces(name: str, domain: Domain) -> tuple[str, ...]:
    """The faces where t begins: their outward normal points back in time."""
    if "t" not in domain.names:
        raise ValueError(
            f"{name}: got a domain with {', '.join(domain.names)}, expected a coordinate named t; "
            "name the time t, or use Inflow or Dirichlet."
        )
    t = domain.names.index("t")
    faces = tuple(
        face
        for face in domain.faces
        if _about_time(face) and domain.normal(face, domain.face_points(face, 1))[0, t] < 0
    )
    if not faces:
        raise ValueError(
            f"{name}: got a domain with the faces {', '.join(domain.faces)}, expected one on which "
            "t begins; use Dirichlet and name its faces."
        )
    return faces


@by_name
@dataclass(frozen=True)
class Initial(LinearCondition):
    """u = g at the lower end of the coordinate t.

    Parameters
    ----------
    g : the datum: a function of one point, such as `lambda p: jnp.sin(p.x)`, or
        a number.
    weight, points, of
        See `LinearCondition`.
    hard : satisfy it exactly; g must then be defined in the whole domain.
    """

    def faces_in(self, domain: Domain) -> tuple[str, ...]:
        return _initial_faces("Initial", domain)


@by_name
@dataclass(frozen=True)
class InitialVelocity(LinearCondition):
    """∂u/∂t = g at the lower end of the coordinate t.

    Parameters
    ----------
    g : the datum: a function of one point, or a number.
    weight, points, of
        See `LinearCondition`.
    """

    about: ClassVar[str] = "derivative"

    def faces_in(self, domain: Domain) -> tuple[str, ...]:
        return _initial_faces("InitialVelocity", domain)

    def operator(self, domain: Domain, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(x)), -self.normal(domain, x)


@by_name
@dataclass(frozen=True)
class Inflow(LinearCondition):
    """u = g where characteristics enter the domain: c·n < 0 on the faces of coordinates but t.

    For first-order linear equations, whose coefficients c are read off the residual.

    Parameters
    ----------
    g : the datum: a function of one point, or a number.
    weight, points
        See `LinearCondition`.
    """

    inflow_only: ClassVar[bool] = True


@dataclass(frozen=True)
class OnFaces(LinearCondition):
    """A linear condition on named faces; by default those of all coordinates but t."""

    faces: Sequence[str] | None = None

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.faces, str):
            object.__setattr__(self, "faces", (self.faces,))
        self._check_faces()


@by_name
@dataclass(frozen=True)
class Dirichlet(OnFaces):
    """u = g on faces.

    Parameters
    ----------
    g : the datum: a function of one point, such as `lambda p: jnp.sin(p.x)`, or
        a number.
    faces : such as `["x-", "x+"]`. Default: those of all coordinates but t.
    weight, points, of
        See `LinearCondition`.
    hard : satisfy it exactly; g must then be defined in the whole domain.
    """


@by_name
@dataclass(frozen=True)
class Neumann(OnFaces):
    """∂u/∂n = g on faces, the derivative along the outward normal.

    Parameters
    ----------
    g : the datum: a function of one point, or a number.
    faces : such as `["x-", "x+"]`. Default: those of all coordinates but t.
    weight, points, of
        See `LinearCondition`.
    """

    about: ClassVar[str] = "derivative"

    def operator(self, domain: Domain, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(x)), self.normal(domain, x)


@by_name
@dataclass(frozen=True, init=False)
class Robin(OnFaces):
    """a u + b ∂u/∂n = g on faces, with the derivative along the outward normal.

    Parameters
    ----------
    a, b : coefficients: functions of one point, or numbers, not both 0.
    g : the datum: a function of one point, or a number.
    faces : such as `["x-", "x+"]`. Default: those of all coordinates but t.
    weight, points, of : see `LinearCondition`.
    """

    a: Any = 1.0
    b: Any = 1.0
    about: ClassVar[str] = "both"

    def __init__(
        self,
        a,
        b,
        g,
        faces: Sequence[str] | None = None,
        weight: float = 1.0,
        points: Any = None,
        of: str | Sequence[str] | None = None,
    ):
        _set(self, a=a, b=b, g=g, faces=faces, weight=weight, points=points, of=of, hard=False)
        self.__post_init__()
        if not any(callable(value) or number(value) != 0 for value in (a, b)):
            raise ValueError(
                "Robin got a=0 and b=0, so it says nothing about u; at least one must not be 0."
            )
        for name, value in {"a": a, "b": b}.items():
            if callable(value):
                function_of_point(f"{name} of Robin", value)
            elif not np.isfinite(number(value)):
                raise ValueError(
                    f"{name}={brief(value)} of Robin must be a finite number, or a function of "
                    "one point."
                )

    @staticmethod
    def _coefficient(value, name: str, domain: Domain, x: np.ndarray) -> np.ndarray:
        if callable(value):
            return evaluate(value, f"{name} of Robin", domain.names, x)[:, 0]
        return np.full(len(x), float(value))

    def operator(self, domain: Domain, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        a = self._coefficient(self.a, "a", domain, x)
        b = self._coefficient(self.b, "b", domain, x)
        return a, b[:, None] * self.normal(domain, x)


@by_name
@dataclass(frozen=True, init=False, eq=False)
class Observed(LinearCondition):
    """Measured values of u at points anywhere in the domain.

    Parameters
    ----------
    x : (n, d) the points, one column per coordinate; (n,) for one coordinate.
    u : (n,) or (n, m) the values there, one column for each function meant.
    weight : how much they count, relative to the points of other conditions.
    of : the unknown functions that were measured. Default: all.
    """

    x: Any = None
    u: Any = None

    def __init__(self, x, u, weight: float = 1.0, of: str | Sequence[str] | None = None):
        _set(self, g=0.0, x=x, u=u, weight=weight, points=None, of=of, hard=False)
        self.__post_init__()

    def faces_in(self, domain: Domain) -> tuple[str, ...]:
        return ()

    def place_in(self, domain: Domain) -> np.ndarray:
        """The points, checked to lie in the domain."""
        x = table("x of Observed", self.x, len(domain.names))
        count = len(table("u of Observed", self.u))
        if count != len(x):
            raise ValueError(
                f"Observed: got {count} values at {len(x)} points, expected a value at each point; "
                "give as many values as points."
            )
        check_inside(domain, x, "Observed")
        return x

    def datum(self, domain: Domain, x: np.ndarray, count: int = 1) -> np.ndarray:
        return table("u of Observed", self.u, count)


def _set(condition: LinearCondition, **values: Any) -> None:
    """Set the fields of a frozen record."""
    for name, value in values.items():
        object.__setattr__(condition, name, value)


# ---------------------------------------------------------------- periodicity


@dataclass(frozen=True, init=False)
class Periodic:
    """u and all its derivatives are equal at both ends of these coordinates: Periodic("x").

    It holds exactly: the network gets sin and cos of the coordinate, one turn over its range, in
    place of the coordinate.

    Parameters
    ----------
    coordinates : one or several names of coordinates of a Box.
    """

    coordinates: tuple[str, ...]

    def __init__(self, *coordinates: str):
        if not coordinates or not all(isinstance(name, str) for name in coordinates):
            raise TypeError(
                f"Periodic: got {brief(coordinates)}, expected names of coordinates, such as "
                'Periodic("x").'
            )
        object.__setattr__(self, "coordinates", coordinates)

    def indices(self, domain: Domain) -> tuple[int, ...]:
        """The indices of these coordinates in the domain."""
        for name in self.coordinates:
            if name not in domain.names:
                raise ValueError(
                    f"Periodic: got {brief(name)}, expected a coordinate of the domain; name one "
                    f"of {', '.join(domain.names)}.{nearest(name, domain.names)}"
                )
            if not {name + "-", name + "+"} <= set(domain.faces):
                raise ValueError(
                    f"Periodic: got {brief(name)}, expected a coordinate with the faces {name}- "
                    f"and {name}+; use a Box for it."
                )
        return tuple(domain.names.index(name) for name in self.coordinates)


# ---------------------------------------------------------------- conditions of a problem together


def check_agreement(problem: PDE) -> None:
    """Raise an error where two conditions give u, or ∂u/∂n, different values on the same face."""
    for kinds in ((Initial, Dirichlet), (Neumann,)):
        alike = [
            c
            for c in problem.boundary_conditions
            if isinstance(c, kinds) and np.ndim(c.points) == 0
        ]
        for one, other in combinations(alike, 2):
            for face in problem.faces(one):
                if face in problem.faces(other):
                    _check_face(problem, face, one, other)


def _check_face(problem: PDE, face: str, one: LinearCondition, other: LinearCondition) -> None:
    """Compare the data of two conditions at points of a face."""
    domain = problem.domain
    x = domain.face_points(face, 8)
    of_one = one.field_indices(problem.fields)
    of_other = other.field_indices(problem.fields)
    data_one = one.datum(domain, x, len(of_one))
    data_other = other.datum(domain, x, len(of_other))
    for i in set(of_one) & set(of_other):
        a = data_one[:, of_one.index(i)]
        b = data_other[:, of_other.index(i)]
        if not np.allclose(a, b, 1e-3, 1e-3 * np.abs([a, b]).max()):
            k = int(np.argmax(np.abs(a - b)))
            raise ValueError(
                f"conflicting conditions on face {face}: at {point_text(domain.names, x[k])} "
                f"{one.name} gives {a[k]:.6g} and {other.name} gives {b[k]:.6g}; "
                "leave one out, or name the faces of each: faces=…."
            )
