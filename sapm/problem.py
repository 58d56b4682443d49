"""What to solve: a function to learn, data to fit, or a PDE with its conditions. Each becomes `Samples`: plain arrays."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sapm.characteristics import never_met
from sapm.conditions import Condition, InitialVelocity, function_of_point
from sapm.domain import Ball, Box, Domain
from sapm.equation import Equation, called, evaluate, place
from sapm.samples import Samples, strength
from sapm.term import Term, flux_term, nonlinear_term, pde_term, second_order_term, value_term


def whole(name: str, value, least: int = 1, why: str = "") -> int:
    """A count, or a sentence."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}={value!r} is not a whole number; give {least} or more{why}.")
    if value < least:
        raise ValueError(f"{name}={value} is too small; give {least} or more{why}.")
    return int(value)


def _domain(given) -> Any:
    if not isinstance(given, (Box, Ball)):
        raise TypeError(f"domain={given!r} is not a domain; use sapm.Box(t=(0, 1), x=(-1, 1)) or sapm.Ball(10).")
    return given


def table(name: str, given, columns: int | None = None) -> np.ndarray:
    """A finite array (n, columns) of float64; a vector is one column."""
    try:
        x = np.asarray(given)
        x = x.astype(float) if x.dtype.kind in "biufO" else x
    except (TypeError, ValueError):
        x = np.asarray("not numbers")
    if x.dtype.kind != "f":
        raise TypeError(f"{name} must hold real numbers, as many in every row; got {type(given).__name__}: {str(given)[:40]}.")
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"{name} has shape {np.shape(given)}; give one row per sample, (n, columns), with n ≥ 1.")
    if columns is not None and x.shape[1] != columns:
        raise ValueError(f"{name} has {x.shape[1]} columns; {columns} are wanted.")
    if not np.isfinite(x).all():
        i, j = np.argwhere(~np.isfinite(x))[0]
        raise ValueError(f"{name} has {x[i, j]} in row {i}, column {j}; all entries must be finite: remove or fill such rows.")
    return x


def _interior(domain: Domain, points, what: str, start: int) -> np.ndarray:
    """`points` Halton points from that index on, or the array of points given."""
    if isinstance(points, (int, np.integer, bool, float, str)) or points is None:
        return domain.points(whole(what, points), start)
    x = table(what, points, len(domain.names))
    outside = domain.gap(x) < -1e-9
    if outside.any():
        raise ValueError(f"{what} has a point outside the domain: {place(domain.names, x[outside.argmax()])}.")
    return x


# ---------------------------------------------------------------- regression


@dataclass(frozen=True)
class Function:
    """Learn f on a domain from its values: f is written for one point, `lambda p: jnp.sin(p.x**2)`; it may return a vector."""

    domain: Any
    f: Callable

    def __post_init__(self):
        _domain(self.domain)
        function_of_point("f", self.f)
        evaluate(self.f, "f", self.domain.names, self.domain.points(2, 1), several=True)

    @property
    def outputs(self) -> int:
        return evaluate(self.f, "f", self.domain.names, self.domain.points(1, 1), several=True).shape[1]

    def samples(self, points=1000, boundary_points=None, test_points=1000, mu=None) -> Samples:
        """Training points are the first Halton points, test points the next."""
        domain = self.domain
        x = _interior(domain, points, "points", domain.first)
        at = lambda x: evaluate(self.f, "f", domain.names, x, several=True)  # noqa: E731
        test = {}
        if not (isinstance(test_points, (int, np.integer)) and test_points == 0):
            test["x"] = _interior(domain, test_points, "test_points", domain.first + len(x))
            test["y"] = at(test["x"])
        return Samples("regression", domain.names, domain.describe(), (value_term(x, at(x)),), test)


@dataclass(frozen=True)
class Regression:
    """Fit given data: X (n, d) or (n,), Y (n, m) or (n,). `test=(X, Y)`: scored at the end.

    `validation=(X, Y)`: the network that fits these best is kept, and a seed stops when it no longer improves on them.
    `weights`: (n,), how much each sample counts. Coordinates are x (one input) or x1, x2, …, unless `names` says otherwise.
    """

    X: Any
    Y: Any
    test: tuple | None = None
    validation: tuple | None = None
    weights: Any = None
    names: Sequence[str] | None = None

    def __post_init__(self):
        X, Y = self._pair("X", "Y", (self.X, self.Y))
        n, d = X.shape
        names = tuple(self.names) if self.names is not None else (("x",) if d == 1 else tuple(f"x{i}" for i in range(1, d + 1)))
        if len(names) != d or len(set(names)) != d:
            raise ValueError(f"names={list(names)} must be {d} different names, one for each column of X.")
        weights = None
        if self.weights is not None:
            weights = table("weights", self.weights, 1)[:, 0]
            if weights.shape != (n,) or weights.min() < 0 or weights.max() == 0:
                raise ValueError(
                    f"weights must be {n} numbers, none negative and not all 0; got {len(weights)} from {weights.min():g}."
                )
        values = {"X": X, "Y": Y, "names": names, "weights": weights}
        for part in ("test", "validation"):
            given = getattr(self, part)
            values[part] = None if given is None else self._pair(f"{part} X", f"{part} Y", given, d, Y.shape[1])
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @staticmethod
    def _pair(x_name: str, y_name: str, pair, d=None, m=None) -> tuple[np.ndarray, np.ndarray]:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"{x_name[:-2]} must be a pair (X, Y); got {type(pair).__name__}.")
        X, Y = table(x_name, pair[0], d), table(y_name, pair[1], m)
        if len(X) != len(Y):
            raise ValueError(f"{x_name} has {len(X)} samples and {y_name} has {len(Y)}; they must be equal.")
        return X, Y

    @property
    def outputs(self) -> int:
        return self.Y.shape[1]

    def samples(self, points=None, boundary_points=None, test_points=None, mu=None) -> Samples:
        weight = 1.0 if self.weights is None else self.weights * (len(self.weights) / self.weights.sum())
        return Samples(
            "regression",
            tuple(self.names or ()),
            None,
            (value_term(self.X, self.Y, weight),),
            {} if self.test is None else dict(zip("xy", self.test, strict=True)),
            None if self.validation is None else value_term(*self.validation),
        )


# ---------------------------------------------------------------- PDE


@dataclass(frozen=True)
class PDE:
    """residual(p, u) = 0 in the domain, with conditions on its boundary: first or second order, linear or not."""

    domain: Any
    residual: Callable
    conditions: Sequence[Condition]
    exact: Callable | None = None
    equation: Equation = field(init=False, repr=False, compare=False)
    sign: float = field(init=False, repr=False, compare=False)  # ±1: sign · c points where information travels (first order)
    ill_posed: str = field(init=False, repr=False, compare=False)  # what leaves the solution open, as far as known; "" if nothing

    def __post_init__(self):
        domain, put = _domain(self.domain), lambda name, value: object.__setattr__(self, name, value)
        function_of_point("residual", self.residual)
        conditions = (self.conditions,) if isinstance(self.conditions, Condition) else self.conditions
        if not isinstance(conditions, (list, tuple)) or not all(isinstance(c, Condition) for c in conditions):
            raise TypeError(
                f"conditions={self.conditions!r} must be a list of sapm.Initial, sapm.InitialVelocity, sapm.Inflow, "
                "sapm.Dirichlet, sapm.Neumann or sapm.Robin."
            )
        if not conditions:
            raise ValueError(
                "conditions is empty, so the solution is not determined; add an Initial, Inflow or Dirichlet condition."
            )
        put("conditions", tuple(conditions))
        if self.exact is not None:
            function_of_point("exact", self.exact)
            evaluate(self.exact, "exact", domain.names, domain.points(2, 1))
        probe = domain.points(64, 1)
        put("equation", Equation.read(self.residual, domain.names, probe))
        forward = np.ones(1)
        if not self.equation.nonlinear:
            c, _ = self.equation.form(probe)
            forward = c[:, domain.names.index("t")] if "t" in domain.names else forward
        put("sign", -1.0 if (forward <= 0).all() and (forward < 0).any() else 1.0)
        for condition in conditions:
            if condition.inflow_only and not self.equation.first_order_linear:
                raise ValueError(
                    f"Inflow follows the characteristics of a first-order linear equation, and the residual contains "
                    f"{self.equation.higher}; use Dirichlet with the faces named."
                )
            condition.faces_in(domain)
            x = self.boundary(condition, 4)
            for part in (condition.datum, condition.operator):
                part(domain, x)
        put("ill_posed", never_met(self) if self.equation.first_order_linear else self._left_open())
        if self.ill_posed:
            warnings.warn(self.ill_posed, stacklevel=3)

    def _left_open(self) -> str:
        """A sentence on what a second-order or nonlinear equation lacks, as far as the names of faces tell; "" if nothing."""
        keys, names = self.equation.keys, self.domain.names
        covered = {face for c in self.conditions if c.about == "value" for face in c.faces_in(self.domain)}
        if all(c.about == "derivative" for c in self.conditions) and () not in keys:
            return "the problem is not well posed: no condition says what u itself is, so u + constant solves it as well."
        if "t" not in names or not any("t" in key for key in keys):
            return ""
        if not covered & {"t-", "t+"}:
            return "the problem is not well posed: no condition says what u is at the lower end of t; add sapm.Initial(g)."
        if ("t", "t") in keys and "t+" not in covered and not any(isinstance(c, InitialVelocity) for c in self.conditions):
            return f"the problem is not well posed: it contains {called(('t', 't'))}; add sapm.InitialVelocity(g)."
        return ""

    @property
    def beyond(self) -> str:
        """What the paper's own sweeps do not know of it, in words; "" if nothing."""
        if not self.equation.first_order_linear:
            return self.equation.higher
        if () in self.equation.keys:
            return called(())
        return "a Robin condition" if any(condition.about == "both" for condition in self.conditions) else ""

    def entering(self, face: str, x: np.ndarray) -> np.ndarray:
        """Where characteristics enter through that face: sign · c·n < 0."""
        c, _ = self.equation.form(x)
        return self.sign * np.sum(c * self.domain.normal(face, x), axis=1) < -1e-12 * (1 + np.linalg.norm(c, axis=1))

    outputs = 1

    @property
    def mu(self) -> float:
        """The weight of the boundary term by default: as much as the operator magnifies, where inputs fill [-1, 1]."""
        return strength(self.interior(self.domain.points(256, 1)), self.domain.frame[1])

    def boundary(self, condition: Condition, n: int) -> np.ndarray:
        """n points of the condition's part of the boundary: Halton on each face, as many as its area asks for."""
        domain, name = self.domain, type(condition).__name__
        given = condition.points
        if given is not None and not isinstance(given, (int, np.integer)):
            x = table(f"points of {name}", given, len(domain.names))
            allowed = condition.faces_in(domain)
            on = {face: domain.on_face(face, x) for face in domain.faces}
            for i, row in enumerate(x):
                mine = [face for face in domain.faces if on[face][i]]
                if not mine:
                    raise ValueError(
                        f"{name} has a point off the boundary: {place(domain.names, row)}; its points must lie on a face."
                    )
                covered = [face for face in mine if face in allowed]
                if not covered:
                    raise ValueError(
                        f"{name} has a point on face {mine[0]!r}, {place(domain.names, row)}; it covers {', '.join(allowed)}."
                    )
                if condition.inflow_only and not any(self.entering(face, row[None])[0] for face in covered):
                    raise ValueError(f"Inflow has a point where characteristics leave: {place(domain.names, row)}.")
            return x
        n = whole(f"points of {name}", given) if given is not None else n
        faces = condition.faces_in(domain)
        keep = self.entering if condition.inflow_only else lambda face, x: np.ones(len(x), bool)
        if len(domain.names) == 1:  # a face is a point, or two
            ends = [np.unique(domain.face_points(face, 8), axis=0) for face in faces]
            found = np.concatenate([x[keep(face, x)] for face, x in zip(faces, ends, strict=True)])
            if not len(found):
                raise ValueError(f"Inflow has no inflow: characteristics enter at none of {', '.join(faces)}.")
            return found
        area = np.array([domain.area(face) * keep(face, domain.face_points(face, 256)).mean() for face in faces])
        if area.sum() == 0:
            raise ValueError(
                f"Inflow has no inflow: sign·c·n ≥ 0 on all of {', '.join(faces) or 'no faces'}; characteristics enter elsewhere."
            )
        share = n * area / area.sum()
        counts = np.floor(share).astype(int)
        for i in np.argsort(counts - share, kind="stable")[: n - counts.sum()]:
            counts[i] += 1
        found = []
        for face, count in zip(faces, counts, strict=True):
            kept, start = np.zeros((0, len(domain.names))), 1
            while len(kept) < count:
                x = domain.face_points(face, max(count, 64), start)
                kept, start = np.concatenate([kept, x[keep(face, x)]]), start + len(x)
            found.append(kept[:count])
        return np.concatenate(found)

    def samples(self, points=1000, boundary_points=400, test_points=1000, mu=None) -> Samples:
        """Interior and boundary points with coefficients and data. The boundary term weighs mu in all."""
        domain, names = self.domain, self.domain.names
        x = _interior(domain, points, "points", domain.first)
        total, k = (
            whole("boundary_points", boundary_points, len(self.conditions), ", one for each condition"),
            len(self.conditions),
        )
        parts = [self.boundary(cond, total // k + (i < total % k)) for i, cond in enumerate(self.conditions)]
        mu = self.mu if mu is None else mu
        terms = [self.interior(x)]
        for plain in (True, False):
            if mine := [pair for pair in zip(self.conditions, parts, strict=True) if (pair[0].about == "value") == plain]:
                terms.append(self._boundary_term(mine, mu, sum(map(len, parts))))
        test, held = {}, None
        if not (isinstance(test_points, (int, np.integer)) and test_points == 0):
            test["x"] = _interior(domain, test_points, "test_points", domain.first + len(x))
            held = self.interior(test["x"])
            if self.exact is not None:
                test["y"] = evaluate(self.exact, "exact", names, test["x"])
        return Samples("pde", names, domain.describe(), tuple(terms), test, held=held)

    def interior(self, x: np.ndarray) -> Term:
        """The residual at the points x."""
        equation = self.equation
        if equation.nonlinear:
            return nonlinear_term(x, equation.vectors, equation.forms, equation.function)
        A, c, c0, f = equation.coefficients(x)
        return second_order_term(x, A, c, c0, f) if equation.order == 2 else pde_term(x, c, f, c0=c0)

    def _boundary_term(self, parts: Sequence[tuple[Condition, np.ndarray]], mu: float, total: int) -> Term:
        """Conditions on u itself, or those on its derivatives, as a term: mu/total for each of their points."""
        x = np.concatenate([part for _, part in parts])
        g = np.concatenate([cond.datum(self.domain, part) for cond, part in parts])
        weight: Any = mu if len(x) == total else mu * len(x) / total
        if any(cond.weight != 1 for cond, _ in parts):
            weight = weight * np.concatenate([np.full(len(part), float(cond.weight)) for cond, part in parts])
        if parts[0][0].about == "value":
            return value_term(x, g, weight)
        a, along = (np.concatenate(rows) for rows in zip(*(c.operator(self.domain, part) for c, part in parts), strict=True))
        return flux_term(x, along, g, weight, a)


PROBLEMS = (Function, Regression, PDE)
