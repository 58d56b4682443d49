"""A PDE with its conditions, stated by residuals. At points it becomes `Samples`: plain arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from keyword import iskeyword
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from sapm.errors import (
    LARGEST_SIZE,
    SMALLEST_SIZE,
    brief,
    by_name,
    integer,
    number,
    printable,
    warn,
)
from sapm.objective.terms import (
    Term,
    flux_term,
    nonlinear_term,
    pde_term,
    second_order_term,
    value_term,
)
from sapm.problem.advice import ill_posed
from sapm.problem.conditions import (
    BoundaryCondition,
    Condition,
    Initial,
    LinearCondition,
    Observed,
    Periodic,
    check_agreement,
)
from sapm.problem.data import Function, Regression
from sapm.problem.domain import Domain
from sapm.problem.equation import Equation, derivative_name
from sapm.problem.functions import (
    NEEDS_NUMBERS,
    UserCode,
    checked_domain,
    evaluate,
    function_of_point,
    interior_points,
    no_points,
    point_text,
    table,
)
from sapm.problem.inputs import Ansatz, Embedding, Fourier, embedding_for
from sapm.problem.samples import Samples, embedded, hardened, operator_strength
from sapm.scopes import float64, untraced

PROBE_POINTS = 64  # points at which a residual is traced
STRENGTH_POINTS = 256  # points at which the strength of the operator is measured (`PDE.mu`)
# A unit of a parameter so many times smaller than what balances the equation is not used. Measured
# on u' = -2 u with guesses from 2 to 1e-6: at 1e-3 the number is found in 100 steps, below never.
FAR_UNIT = 1e3
FACE_POINTS = 256  # points of a face that show on which part of it characteristics enter


@by_name
@dataclass(frozen=True)
class PDE:
    """residual(p, u) = 0 in a domain, with conditions. It may be of any order, linear or not.

    Parameters
    ----------
    domain : a Box, a Ball or a combination of these. Its coordinates are attributes of the point p:
        p.t, p.x.
    residual : a function of the point and of u: `lambda p, u: u.t - 0.1 * u.xx`. u.value is u
        itself, u.x and u.xx (or u.d("x", "x")) are derivatives. For a system it takes several
        functions and returns one number for each equation:
        `lambda p, u, v: (u.t - v.x, v.t - u.x)`.
    conditions : sapm.Initial, Dirichlet, Neumann, Robin, Inflow, Periodic, Observed, … or
        sapm.Condition for any equation on a face.
    exact : the solution as a function of one point, to measure errors; several numbers for a
        system.
    parameters : unknown numbers with a first guess each, `{"nu": 0.1}`. In the residual they are
        attributes of the point: p.nu.
    features : random Fourier features as inputs of the network, for solutions with fine detail.

    Example::

        sapm.PDE(
            sapm.Box(t=(0, 1), x=(0, 1)),
            lambda p, u: u.t - 0.1 * u.xx,
            [sapm.Initial(lambda p: jnp.sin(jnp.pi * p.x)), sapm.Dirichlet(0)],
        )
    """

    domain: Domain
    residual: Callable
    conditions: Sequence[BoundaryCondition | Periodic]
    exact: Callable | None = None
    parameters: Mapping[str, float] | None = None
    features: Fourier | None = None
    # ±1: in a first-order linear equation with the coefficients c of the first derivatives,
    # information travels in the direction sign · c
    sign: float = field(init=False, repr=False, compare=False)
    # a sentence on why the problem does not determine u; "" if no such reason was found
    ill_posed: str = field(init=False, repr=False, compare=False)
    equation: Equation = field(init=False, repr=False, compare=False)
    embedding: Embedding | None = field(init=False, repr=False, compare=False)
    ansatz: Ansatz | None = field(init=False, repr=False, compare=False)
    kind: ClassVar[str] = "pde"

    @untraced
    def __post_init__(self):
        domain = checked_domain(self.domain)

        def put(name, value):
            object.__setattr__(self, name, value)

        put("conditions", _checked_conditions(self.conditions))
        if self.features is not None and not isinstance(self.features, Fourier):
            raise TypeError(
                f"features={brief(self.features)} must be sapm.Fourier(…), such as "
                "sapm.Fourier(16)."
            )
        periodic = tuple(
            dict.fromkeys(
                i for c in self.conditions if isinstance(c, Periodic) for i in c.indices(domain)
            )
        )
        plain = not periodic and self.features is None
        embedding = None if plain else embedding_for(domain.frame, periodic, self.features)
        put("embedding", embedding)
        probe = domain.points(PROBE_POINTS, 1)
        parameters = _checked_parameters(self.parameters, domain.names)
        put("equation", Equation.read(self.residual, domain.names, probe, parameters))
        self._check_exact()
        put("sign", self._direction(probe))
        for condition in self.boundary_conditions:
            self._check_condition(condition)
        check_agreement(self)
        put("ansatz", self._hard())
        put("ill_posed", ill_posed(self))
        if self.ill_posed:
            warn(self.ill_posed)

    def _check_exact(self) -> None:
        if self.exact is None:
            return
        function_of_point("exact", self.exact)
        x = self.domain.points(2, 1)
        count = evaluate(self.exact, "exact", self.domain.names, x, several=True).shape[1]
        if count != len(self.fields):
            raise ValueError(
                f"exact: got {count} numbers, expected {len(self.fields)}, one for each unknown "
                f"function ({', '.join(self.fields)}); return that many."
            )

    def _direction(self, x: np.ndarray) -> float:
        """-1 if the coefficient of u.t is negative, so that characteristics run back in time."""
        if self.equation.nonlinear or "t" not in self.domain.names:
            return 1.0
        c, _ = self.equation.first_order_form(x)
        c = c[:, self.domain.names.index("t")]
        return -1.0 if (c <= 0).all() and (c < 0).any() else 1.0

    def _check_condition(self, condition: BoundaryCondition) -> None:
        """Evaluate a condition at a few points, so that a mistake in it raises an error when the
        problem is stated, not when it is solved.
        """
        if condition.inflow_only and not self.equation.first_order_linear:
            raise ValueError(
                "Inflow follows the characteristics of a first-order linear equation, and the "
                f"residual contains {self.equation.higher_term}; use Dirichlet with the faces "
                "named."
            )
        if isinstance(condition, Condition):
            condition.check()
            self.equation_of(condition)
        x = self.boundary(condition, 4)
        if isinstance(condition, LinearCondition):
            condition.datum(self.domain, x, len(condition.field_indices(self.fields)))
            condition.operator(self.domain, x)

    # ---------------------------------------------------------------- hard conditions

    @float64
    def _hard(self) -> Ansatz | None:
        """The ansatz of the hard conditions; None if there are none."""
        hard = [c for c in self.boundary_conditions if isinstance(c, LinearCondition) and c.hard]
        if not hard:
            return None
        if len({c.g for c in hard}) > 1 or any(c.of is not None for c in hard):
            raise ValueError(
                "hard conditions must share one function, right on all their faces and for all "
                "unknowns: give the same g to each, or leave hard=True out for some."
            )
        faces = tuple(dict.fromkeys(face for c in hard for face in self.faces(c)))
        ansatz = Ansatz(
            self.domain, faces, hard[0].g, len(self.fields), len(self.equation.parameters)
        )
        row = jnp.asarray(self.domain.points(1, 1)[0])
        ansatz.factor(row)
        try:
            jax.eval_shape(ansatz.datum, row)
        except NEEDS_NUMBERS:
            raise ValueError(
                "the datum of a hard condition is differentiated; write it with jax.numpy, "
                "without `if` on p."
            ) from None
        for periodic in (c for c in self.conditions if isinstance(c, Periodic)):
            for i in periodic.indices(self.domain):
                self._check_periodic(ansatz, i)
        return ansatz

    def _check_periodic(self, ansatz: Ansatz, i: int) -> None:
        """Raise an error unless g and φ are periodic in coordinate i. So must be their derivatives
        along it, up to one order below that of the equation.
        """
        center, spread = self.domain.frame
        name = self.domain.names[i]

        def both(row):
            return jnp.append(ansatz.datum(row), ansatz.factor(row))

        def derivative(f):
            return lambda row: jax.jvp(f, (row,), (jnp.zeros_like(row).at[i].set(1.0),))[1]

        rows = jnp.asarray(self.domain.points(16, 1))
        compared = [("value", both), ("slope", derivative(both))]
        for order in range(2, self.equation.order):
            compared.append((f"derivative of order {order}", derivative(compared[-1][1])))
        for what, f in compared:
            lower, upper = (
                jax.vmap(f)(rows.at[:, i].set(center[i] + side * spread[i])) for side in (-1, 1)
            )
            size = float(jnp.max(jnp.abs(jnp.stack([lower, upper]))))
            if not np.allclose(lower, upper, 1e-6, 1e-6 * size):
                raise ValueError(
                    "hard condition: got a function, or a factor that makes it hold, with another "
                    f"{what} at {name}- than at {name}+, expected the same for Periodic({name!r}); "
                    "leave hard=True out."
                )

    # ---------------------------------------------------------------- properties

    @property
    def fields(self) -> tuple[str, ...]:
        """The unknown functions, by their names in the residual."""
        return self.equation.fields

    @property
    def outputs(self) -> int:
        """The number of network outputs: functions, then unknown parameters."""
        return len(self.fields) + len(self.equation.parameters)

    @property
    def inputs(self) -> int:
        """The number of network inputs."""
        return len(self.domain.names) if self.embedding is None else self.embedding.width

    @property
    def boundary_conditions(self) -> tuple[BoundaryCondition, ...]:
        """All conditions that are not `Periodic`."""
        return tuple(c for c in self.conditions if isinstance(c, BoundaryCondition))

    @property
    def soft_conditions(self) -> tuple[BoundaryCondition, ...]:
        """The conditions that the loss contains: all that are not satisfied exactly."""
        return tuple(c for c in self.boundary_conditions if not c.hard)

    @cached_property
    def _face_equations(self) -> dict[int, Equation]:
        """Traced residuals by the index of their condition."""
        return {}

    def equation_of(self, condition: Condition) -> Equation:
        """The residual of a condition, traced."""
        i = next(i for i, c in enumerate(self.conditions) if c is condition)
        if i not in self._face_equations:
            self._face_equations[i] = Equation.on_faces(
                condition.residual_of(self.fields),
                self.domain.names,
                self.boundary(condition, PROBE_POINTS),
                self.fields,
                self.equation.parameters,
                condition.name,
            )
        return self._face_equations[i]

    def determines(self, condition: BoundaryCondition) -> str:
        """What a condition determines: the "value" of u, a "derivative" of it, or "both"."""
        if isinstance(condition, Condition):
            keys = self.equation_of(condition).keys_of_fields(self.boundary(condition, 8))
            used = {key for of_field in keys for key in of_field}
            return (
                "both" if () in used and len(used) > 1 else "value" if () in used else "derivative"
            )
        return condition.about if isinstance(condition, LinearCondition) else "both"

    @property
    def order(self) -> int:
        """The highest order of a derivative, in the equation or in a condition."""
        conditions = [
            self.equation_of(c).order for c in self.boundary_conditions if isinstance(c, Condition)
        ]
        return max([self.equation.order, *conditions])

    @property
    def unsupported_by_sweeps(self) -> str:
        """A part of the problem that the paper's sweeps do not support, in words; "" if none."""
        if not self.equation.first_order_linear:
            return self.equation.higher_term
        if () in self.equation.keys:
            return derivative_name(())
        if self.ansatz is not None:
            return "hard conditions"
        if any(isinstance(c, Condition) for c in self.boundary_conditions):
            return "an equation on a face"
        robin = any(
            isinstance(c, LinearCondition) and c.about == "both" for c in self.boundary_conditions
        )
        return "a condition on u and its derivatives" if robin else ""

    @property
    def unsupported_by_penalties(self) -> str:
        """A part of the problem that PM and SAPM do not support, in words; "" if none."""
        equation = self.equation
        if self.ansatz is not None:
            return "hard conditions"
        if len(self.fields) > 1 or equation.parameters or equation.rows > 1 or equation.order > 2:
            return equation.nonlinear
        conditions = [
            self.equation_of(c) for c in self.boundary_conditions if isinstance(c, Condition)
        ]
        if any(condition.order > 2 for condition in conditions):
            return "derivatives above order 2 on a face"
        several = any(condition.rows > 1 for condition in conditions)
        return "several equations on a face" if several else ""

    @property
    def has_characteristics(self) -> bool:
        """Whether u follows from its conditions by integrating along characteristics."""
        return self.equation.first_order_linear and not any(
            isinstance(c, (Periodic, Observed, Condition)) for c in self.conditions
        )

    @property
    def supports_stages(self) -> bool:
        """Whether the problem may be trained in stages of time: it is nonlinear, has an initial
        condition, and no unknown numbers.
        """
        equation = self.equation
        starts = any(isinstance(c, Initial) for c in self.conditions)
        return bool(equation.nonlinear) and not equation.parameters and starts

    def faces(self, condition: BoundaryCondition) -> tuple[str, ...]:
        """The faces on which a condition holds: those that it names. If it names none, they are its
        default faces, without those that are periodic.
        """
        faces = condition.faces_in(self.domain)
        if condition.faces:
            return faces
        periodic = {
            name + side
            for c in self.conditions
            if isinstance(c, Periodic)
            for name in c.coordinates
            for side in "-+"
        }
        return tuple(face for face in faces if face not in periodic)

    def entering(self, face: str, x: np.ndarray) -> np.ndarray:
        """(n,) At which points x of a face characteristics enter: where sign · c·n < 0, with the
        outward normal n.
        """
        c, _ = self.equation.first_order_form(x)
        inward = self.sign * np.sum(c * self.domain.normal(face, x), axis=1)
        return inward < -1e-12 * (1 + np.linalg.norm(c, axis=1))

    @cached_property
    def units(self) -> np.ndarray:
        """The units in which training counts the parameters, (q,): the first guess, so that a
        parameter starts at 1; 1 for a guess of 0. Steps in a unit that is far too small for the
        equation are damped away, so that the guess would stay: the unit is then the size at which
        the terms of the equation balance.
        """
        guesses = np.array(list(self.equation.parameters.values()))
        sizes = self.balancing_sizes
        units = np.where(guesses == 0, 1.0, guesses)
        small = np.abs(units) * FAR_UNIT < sizes
        coarse = (guesses == 0) & (units > FAR_UNIT * sizes)
        with np.errstate(invalid="ignore"):  # a power of two is the same on every machine
            balanced = np.exp2(np.round(np.log2(np.clip(sizes, SMALLEST_SIZE, LARGEST_SIZE / 2))))
        return np.where(small | coarse, balanced, units)

    @cached_property
    def balancing_sizes(self) -> np.ndarray:
        """The sizes of the parameters at which the terms of the equation balance, see
        `Equation.balancing_sizes`.
        """
        probe = self.domain.points(PROBE_POINTS, 1)
        return self.equation.balancing_sizes(probe, self.domain.frame[1], self.given_size)

    @property
    def given_size(self) -> float:
        """The root mean square of the values of u that conditions and measurements give; 1 if they
        give none but 0.
        """
        given = [
            condition.datum(self.domain, x, len(condition.field_indices(self.fields)))
            for condition in self.conditions
            if isinstance(condition, LinearCondition) and condition.prescribes_value
            for x in [self.boundary(condition, PROBE_POINTS)]
        ]
        values = np.concatenate([np.ravel(values) for values in given]) if given else np.zeros(1)
        return float(np.sqrt(np.mean(np.square(values)))) or 1.0

    @property
    def mu(self) -> float:
        """The default weight of the boundary: the strength of the operator of the equation.

        See `sapm.problem.samples.operator_strength`, which measures it in scaled inputs.
        """
        return operator_strength(
            self.interior(self.domain.points(STRENGTH_POINTS, 1)), self.domain.frame[1]
        )

    # ---------------------------------------------------------------- points

    def boundary(self, condition: BoundaryCondition, n: int) -> np.ndarray:
        """Points of a condition: those given with it, or n Halton points shared among its faces.

        The share of a face is proportional to its area. For Inflow, only the part of the face where
        characteristics enter counts.
        """
        if isinstance(condition, Observed):
            return condition.place_in(self.domain)
        points = condition.points
        if points is not None and not isinstance(points, (int, np.integer)):
            return self._given_points(condition)
        n = n if points is None else integer(f"{condition.name}: points", points)
        faces = self.faces(condition)
        if not faces:
            raise ValueError(
                f"{condition.name} holds nowhere: got periodic faces only, expected at least one "
                "other face; leave the condition out, or name its faces."
            )
        if len(self.domain.names) == 1:
            return self._ends(condition, faces)
        return self._drawn_points(condition, faces, n)

    def _covered(self, condition: BoundaryCondition, face: str, x: np.ndarray) -> np.ndarray:
        """(n,) At which points x of a face the condition holds."""
        return self.entering(face, x) if condition.inflow_only else np.ones(len(x), bool)

    def _given_points(self, condition: BoundaryCondition) -> np.ndarray:
        """The points that the user gave with a condition, checked to lie on its faces."""
        domain = self.domain
        name = condition.name
        x = table(f"points of {name}", condition.points, len(domain.names))
        allowed = self.faces(condition)
        on = {face: domain.on_face(face, x) for face in domain.faces}
        for i, row in enumerate(x):
            at = point_text(domain.names, row)
            faces = [face for face in domain.faces if on[face][i]]
            if not faces:
                raise ValueError(
                    f"{name} has a point off the boundary: {at}; its points must lie on a face."
                )
            covered = [face for face in faces if face in allowed]
            if not covered:
                raise ValueError(
                    f"{name} has a point on face {faces[0]!r}, {at}; "
                    f"it covers {', '.join(allowed)}."
                )
            if not any(self._covered(condition, face, row[None])[0] for face in covered):
                raise ValueError(
                    f"Inflow has a point where characteristics leave: {at}; leave this point out."
                )
        return x

    def _ends(self, condition: BoundaryCondition, faces: Sequence[str]) -> np.ndarray:
        """The points of a condition in one dimension, where a face is one point or two."""
        ends = [np.unique(self.domain.face_points(face, 8), axis=0) for face in faces]
        covered = [
            x[self._covered(condition, face, x)] for face, x in zip(faces, ends, strict=True)
        ]
        x = np.concatenate(covered)
        if not len(x):
            raise ValueError(
                "Inflow: got only faces without entering characteristics, "
                f"{', '.join(faces)}, expected one where they enter; leave the condition out."
            )
        return x

    def _drawn_points(
        self, condition: BoundaryCondition, faces: Sequence[str], n: int
    ) -> np.ndarray:
        """n Halton points, shared among the faces in proportion to the area on which the condition
        holds.
        """
        domain = self.domain
        area = np.array(
            [
                domain.area(face)
                * self._covered(condition, face, domain.face_points(face, FACE_POINTS)).mean()
                for face in faces
            ]
        )
        if area.sum() == 0:
            raise ValueError(
                "Inflow: got only faces without entering characteristics, "
                f"{', '.join(faces)}, expected one where they enter; leave the condition out."
            )
        share = n * area / area.sum()
        counts = np.floor(share).astype(int)
        for i in np.argsort(counts - share, kind="stable")[: n - counts.sum()]:
            counts[i] += 1
        parts = []
        for face, count in zip(faces, counts, strict=True):
            covered = np.zeros((0, len(domain.names)))
            start = 1
            while len(covered) < count:
                x = domain.face_points(face, max(count, 64), start)
                covered = np.concatenate([covered, x[self._covered(condition, face, x)]])
                start = start + len(x)
            parts.append(covered[:count])
        return np.concatenate(parts)

    def _shares(self, boundary_points: Any) -> list[int]:
        """Equal shares of `boundary_points` for the conditions in the loss."""
        k = len(self.soft_conditions)
        total = integer("boundary_points", boundary_points, k, ", one for each condition")
        return [total // k + (i < total % k) for i in range(k)]

    def counts(self, boundary_points: Any) -> list[int]:
        """The number of points of each condition in the loss."""
        counts = []
        for condition, n in zip(self.soft_conditions, self._shares(boundary_points), strict=True):
            given = isinstance(condition, Observed) or np.ndim(condition.points) > 0
            if given or len(self.domain.names) == 1:
                n = len(self.boundary(condition, n))
            elif condition.points is not None:
                n = integer(f"{condition.name}: points", condition.points)
            counts.append(n)
        return counts

    def size(self, points: Any, boundary_points: Any) -> tuple[int, int]:
        """The number of residuals and of tangents of all samples, before the samples are drawn.

        Parameters
        ----------
        points, boundary_points : the numbers of points, as in `samples`.
        """
        rows = points * self.equation.rows
        tangents = points * self.equation.channels
        for condition, n in zip(self.soft_conditions, self.counts(boundary_points), strict=True):
            if isinstance(condition, Condition):
                rows += n * self.equation_of(condition).rows
                tangents += n * self.equation_of(condition).channels
            else:
                rows += n * len(condition.field_indices(self.fields))
                tangents += n * (not condition.prescribes_value)
        return rows, tangents

    # ---------------------------------------------------------------- samples

    def samples(
        self, points: Any = 1000, boundary_points: Any = 400, test_points: Any = 1000, mu=None
    ) -> Samples:
        """The equation and its conditions at points.

        Parameters
        ----------
        points, test_points : how many Halton points in the domain, or arrays (n, d). No test set
            for `test_points=0`.
        boundary_points : how many points all conditions share.
        mu : the weight of all conditions together; that of the equation is 1. Default: `self.mu`.
        """
        domain = self.domain
        names = self.domain.names
        x = interior_points(domain, points, "points", domain.first)
        parts = [
            self.boundary(condition, n)
            for condition, n in zip(
                self.soft_conditions, self._shares(boundary_points), strict=True
            )
        ]
        mu = self.mu if mu is None else mu
        total = sum(map(len, parts))
        terms = [self.interior(x)]
        for group in self._groups:
            terms.append(
                self._boundary_term([(self.soft_conditions[i], parts[i]) for i in group], mu, total)
            )
        test = {}
        test_equation = None
        if not no_points(test_points):
            test["x"] = interior_points(domain, test_points, "test_points", domain.first + len(x))
            test_equation = self.interior(test["x"])
            if self.exact is not None:
                test["y"] = evaluate(self.exact, "exact", names, test["x"], several=True)
        samples = Samples(
            self.kind,
            names,
            domain.describe(),
            tuple(terms),
            test,
            test_equation=test_equation,
            fields=self.fields,
            parameters=self.equation.parameters,
        )
        if self.ansatz is not None:
            samples = hardened(samples, self.ansatz)
        return samples if self.embedding is None else embedded(samples, self.embedding)

    @property
    def _groups(self) -> list[list[int]]:
        """The indices in `soft_conditions` of the conditions that form one term together.

        For each choice of unknown functions there are two terms: one of all linear conditions that
        prescribe values of these functions, one of the other linear conditions. Equations on faces
        come after these, with a term each.
        """
        linear: dict[tuple[bool, tuple[int, ...]], list[int]] = {}
        others = []
        for i, condition in enumerate(self.soft_conditions):
            if isinstance(condition, Condition):
                others.append([i])
            else:
                key = (not condition.prescribes_value, condition.field_indices(self.fields))
                linear.setdefault(key, []).append(i)
        return [group for _, group in sorted(linear.items())] + others

    @property
    def functions(self) -> dict[str, Callable]:
        """The operators of nonlinear terms by the names of the terms. They are code, which a file
        does not hold.
        """
        functions: dict[str, Callable] = {}
        if self.equation.nonlinear:
            functions |= {"term0": self.equation.function, "held": self.equation.function}
        for k, group in enumerate(self._groups, 1):
            condition = self.soft_conditions[group[0]]
            if isinstance(condition, Condition):
                functions[f"term{k}"] = self.equation_of(condition).function
        return functions

    def interior(self, x: np.ndarray) -> Term:
        """The term of the equation at the points x, (n, d)."""
        equation = self.equation
        if equation.nonlinear:
            return self._residual_term(equation, x)
        A, c, c0, f = equation.coefficients(x)
        if equation.order == 2:
            return second_order_term(x, A, c, c0, f)
        return pde_term(x, c, f, c0=c0)

    def _residual_term(self, equation: Equation, x: np.ndarray, weight: Any = 1.0) -> Term:
        """The term residual(p, u) = 0 at the points x, (n, d). It calls the residual itself."""
        return nonlinear_term(
            x,
            equation.vectors,
            equation.forms,
            equation.function,
            weight,
            rows=equation.rows,
            unit=np.append(np.ones(len(self.fields)), self.units),
            constants=len(self.units),
            orders=equation.orders,
        )

    def _boundary_term(
        self, parts: Sequence[tuple[BoundaryCondition, np.ndarray]], mu: float, total: int
    ) -> Term:
        """The term of the conditions of one group. Every point has the weight mu / total, times the
        weight of its condition.

        Parameters
        ----------
        parts : the conditions, each with its points.
        mu : the weight of all conditions together.
        total : the number of points of all conditions.
        """
        first = parts[0][0]
        x = np.concatenate([part for _, part in parts])
        weight: Any = mu if len(x) == total else mu * len(x) / total
        if any(condition.weight != 1 for condition, _ in parts):
            weight = weight * np.concatenate(
                [np.full(len(part), float(condition.weight)) for condition, part in parts]
            )
        if isinstance(first, Condition):
            return self._residual_term(self.equation_of(first), x, weight)
        linear = [(c, part) for c, part in parts if isinstance(c, LinearCondition)]
        concerned = first.field_indices(self.fields)
        with UserCode():
            g = np.concatenate([c.datum(self.domain, part, len(concerned)) for c, part in linear])
        of = None if self.outputs == 1 else concerned
        if first.prescribes_value:
            return value_term(x, g, weight, of=of)
        with UserCode():
            operators = [c.operator(self.domain, part) for c, part in linear]
        a, w = (np.concatenate(rows) for rows in zip(*operators, strict=True))
        return flux_term(x, w, g, weight, a, of)


def _checked_conditions(conditions) -> tuple[BoundaryCondition | Periodic, ...]:
    """The conditions as a tuple, checked to be conditions."""
    kinds = (Condition, LinearCondition, Periodic)
    if isinstance(conditions, kinds):
        return (conditions,)
    listed = conditions if isinstance(conditions, (list, tuple)) else [conditions]
    for condition in listed:
        if not isinstance(condition, kinds):
            raise TypeError(
                f"conditions has {brief(condition)}; it must be a list of sapm.Initial, "
                "sapm.InitialVelocity, sapm.Inflow, sapm.Dirichlet, sapm.Neumann, sapm.Robin, "
                "sapm.Periodic, sapm.Observed or sapm.Condition, or of conditions of your own, "
                "which inherit from sapm.Condition or sapm.problem.conditions.LinearCondition."
            )
    if not listed:
        raise ValueError(
            "conditions is empty, so the solution is not determined; add an Initial, Inflow or "
            "Dirichlet condition."
        )
    return tuple(listed)


def _checked_parameters(parameters, names: Sequence[str]) -> dict[str, float]:
    """Unknown numbers with their guesses, checked."""
    if parameters is None:
        return {}
    if not isinstance(parameters, Mapping):
        raise TypeError(
            f"parameters={brief(parameters)} must be names with a first guess, such as "
            "{'nu': 0.1}."
        )
    for name, guess in parameters.items():
        reserved = (*names, "vector", "self")
        plain = isinstance(name, str) and name.isidentifier() and not iskeyword(name)
        word = plain and not name.startswith("_") and printable(name) == name
        if not word or name in reserved:
            raise ValueError(
                f"parameters has the name {brief(name)}; use a plain word that is no coordinate, "
                "and not vector or self."
            )
        size = abs(number(guess))
        if not (size == 0 or SMALLEST_SIZE <= size <= LARGEST_SIZE):
            raise ValueError(
                f"parameters has {name}={brief(guess)}; its first guess must be a finite number, 0 "
                f"or between {SMALLEST_SIZE:g} and {LARGEST_SIZE:g} in size."
            )
    return {name: float(guess) for name, guess in parameters.items()}  # type: ignore[arg-type]


Problem = PDE | Function | Regression
PROBLEMS = (Function, Regression, PDE)
