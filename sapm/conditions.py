"""Conditions on the boundary: what u, or a derivative of it, is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sapm.equation import evaluate
from sapm.names import nearest
from sapm.shapes import Domain, stem


def function_of_point(what: str, given) -> Callable:
    if not callable(given):
        raise TypeError(f"{what} is {given!r}; give a function of one point, such as lambda p: jnp.sin(p.x).")
    return given


@dataclass(frozen=True)
class Condition:
    """u = g on a part of the boundary. `weight`: how much it counts beside other conditions; `points`: how many, or which."""

    g: Callable
    weight: float = 1.0
    points: Any = None
    inflow_only: ClassVar[bool] = False
    about: ClassVar[str] = "value"  # or "derivative", or "both"

    def __post_init__(self):
        function_of_point(f"the datum of {type(self).__name__}", self.g)
        if isinstance(self.weight, (str, bool)) or not np.isscalar(self.weight) or not 0 < self.weight < np.inf:  # type: ignore[operator]
            raise ValueError(f"weight={self.weight!r} of {type(self).__name__} must be a positive, finite number.")

    def faces_in(self, domain: Domain) -> tuple[str, ...]:
        return _beside_time(domain)

    def datum(self, domain: Domain, x: np.ndarray) -> np.ndarray:
        """g at the points x: (n, 1)."""
        return evaluate(self.g, f"the datum of {type(self).__name__}", domain.names, x)

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
            f"{name} needs a coordinate named t, and the domain has {', '.join(domain.names)}; use Inflow or Dirichlet."
        )
    t = domain.names.index("t")
    found = [face for face in domain.faces if _of_time(face) and domain.normal(face, domain.face_points(face, 1))[0, t] < 0]
    if not found:
        raise ValueError(
            f"{name} needs a face where t begins, and the domain has {', '.join(domain.faces)}; "
            "use Dirichlet with the faces named."
        )
    return tuple(found)


@dataclass(frozen=True)
class Initial(Condition):
    """u = g at the lower end of the coordinate t."""

    def faces_in(self, domain: Domain) -> tuple[str, ...]:
        return _start("Initial", domain)


@dataclass(frozen=True)
class InitialVelocity(Condition):
    """∂u/∂t = g at the lower end of the coordinate t."""

    about: ClassVar[str] = "derivative"

    def faces_in(self, domain: Domain) -> tuple[str, ...]:
        return _start("InitialVelocity", domain)

    def operator(self, domain: Domain, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(x)), -self.normal(domain, x)


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
        if self.faces is not None and not list(self.faces):
            name = type(self).__name__
            raise ValueError(f'{name} got faces=[]; name at least one, such as faces=["x-"], or leave it out for all.')

    def faces_in(self, domain: Domain) -> tuple[str, ...]:
        for face in self.faces or ():
            if face not in domain.faces:
                raise ValueError(
                    f"{face!r} is not a face; this domain has {', '.join(domain.faces)}." + nearest(face, domain.faces)
                )
        return tuple(self.faces or _beside_time(domain))


@dataclass(frozen=True)
class Dirichlet(OnFaces):
    """u = g on the named faces (default: those of all coordinates but t), whichever way characteristics cross them."""


@dataclass(frozen=True)
class Neumann(OnFaces):
    """∂u/∂n = g, the derivative along the outward normal, on the named faces (default: those of all coordinates but t)."""

    about: ClassVar[str] = "derivative"

    def operator(self, domain: Domain, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(x)), self.normal(domain, x)


@dataclass(frozen=True, init=False)
class Robin(OnFaces):
    """a u + b ∂u/∂n = g on the named faces (default: those of all coordinates but t); a and b are numbers or functions of p."""

    a: Any = 1.0
    b: Any = 1.0
    about: ClassVar[str] = "both"

    def __init__(self, a, b, g, faces: Sequence[str] | None = None, weight: float = 1.0, points: Any = None):
        for name, value in {"a": a, "b": b, "g": g, "faces": faces, "weight": weight, "points": points}.items():
            object.__setattr__(self, name, value)
        self.__post_init__()
        for name, value in {"a": a, "b": b}.items():
            if not callable(value) and (isinstance(value, (str, bool)) or not np.isscalar(value) or not np.isfinite(value)):  # type: ignore[arg-type]
                raise ValueError(f"{name}={value!r} of Robin must be a finite number, or a function of one point.")

    def _at(self, domain: Domain, name: str, x: np.ndarray) -> np.ndarray:
        given = getattr(self, name)
        return evaluate(given, f"{name} of Robin", domain.names, x)[:, 0] if callable(given) else np.full(len(x), float(given))

    def operator(self, domain: Domain, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._at(domain, "a", x), self._at(domain, "b", x)[:, None] * self.normal(domain, x)
