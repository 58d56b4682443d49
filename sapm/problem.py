"""A PDE with its conditions, read off its residual. It becomes `Samples`: plain arrays."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sapm.ansatz import Ansatz
from sapm.characteristics import never_met
from sapm.conditions import Condition, Observed, Periodic
from sapm.embedding import Embedding, Fourier, embedding_for
from sapm.equation import Equation
from sapm.jet import float64
from sapm.names import brief, number, stated
from sapm.pointwise import NEEDS_NUMBERS, evaluate, function_of_point, place, table
from sapm.posed import left_open, no_two_contradict
from sapm.regression import Function, Regression, domain_checked, interior_points, whole
from sapm.samples import Samples, embedded, hardened, strength
from sapm.term import Term, flux_term, nonlinear_term, pde_term, second_order_term, value_term
from sapm.unknown import called


@stated
@dataclass(frozen=True)
class PDE:
    """residual(p, u) = 0 in the domain, with conditions on its boundary: first or second order, linear or not.

    Several functions to find: residual(p, u, v) = (0, 0), with as many rows as there are equations; `exact` then gives all of
    them. `parameters`: numbers to find beside them, each with a first guess, {"nu": 0.1}: the residual has them as p.nu.
    `features`: `Fourier(…)` for solutions with much detail.
    """

    domain: Any
    residual: Callable
    conditions: Sequence[Condition | Periodic]
    exact: Callable | None = None
    parameters: Mapping[str, float] | None = None
    features: Fourier | None = None
    equation: Equation = field(init=False, repr=False, compare=False)
    sign: float = field(init=False, repr=False, compare=False)  # ±1: sign · c points where information travels (first order)
    ill_posed: str = field(init=False, repr=False, compare=False)  # what leaves the solution open, as far as known; "" if nothing
    embedding: Embedding | None = field(init=False, repr=False, compare=False)
    ansatz: Ansatz | None = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        domain, put = domain_checked(self.domain), lambda name, value: object.__setattr__(self, name, value)
        given = (self.conditions,) if isinstance(self.conditions, (Condition, Periodic)) else self.conditions
        if not isinstance(given, (list, tuple)) or not all(isinstance(c, (Condition, Periodic)) for c in given):
            some = given if isinstance(given, (list, tuple)) else [given]
            wrong = next(c for c in some if not isinstance(c, (Condition, Periodic)))
            raise TypeError(
                f"conditions has {brief(wrong)}; it must be a list of sapm.Initial, sapm.InitialVelocity, sapm.Inflow, "
                "sapm.Dirichlet, sapm.Neumann, sapm.Robin, sapm.Periodic or sapm.Observed."
            )
        conditions = tuple(c for c in given if isinstance(c, Condition))
        if not given:
            raise ValueError(
                "conditions is empty, so the solution is not determined; add an Initial, Inflow or Dirichlet condition."
            )
        put("conditions", tuple(given))
        if self.features is not None and not isinstance(self.features, Fourier):
            raise TypeError(f"features={brief(self.features)} must be sapm.Fourier(…), such as sapm.Fourier(16).")
        around = tuple(dict.fromkeys(i for c in given if isinstance(c, Periodic) for i in c.indices(domain)))
        put("embedding", embedding_for(domain.frame, around, self.features))
        probe = domain.points(64, 1)
        put("equation", Equation.read(self.residual, domain.names, probe, _parameters(self.parameters, domain.names)))
        if self.exact is not None:
            function_of_point("exact", self.exact)
            found, fields = evaluate(self.exact, "exact", domain.names, domain.points(2, 1), several=True), self.fields
            if found.shape[1] != len(fields):
                raise ValueError(f"exact gave {found.shape[1]} numbers for {len(fields)} unknown functions: {', '.join(fields)}.")
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
            x = self.boundary(condition, 4)
            condition.datum(domain, x, len(condition.meant(self.fields)))
            condition.operator(domain, x)
        no_two_contradict(self)
        put("ansatz", self._hard())
        put("ill_posed", never_met(self) if self.followed else left_open(self))
        if self.ill_posed:
            warnings.warn(self.ill_posed, stacklevel=4)

    @float64
    def _hard(self) -> Ansatz | None:
        hard = [c for c in self.stated if c.hard]
        if not hard:
            return None
        if len({c.g for c in hard}) > 1 or any(c.of is not None for c in hard):
            raise ValueError(
                "hard conditions must share one function, right on all their faces and for all unknowns: "
                "give the same g to each, or leave hard=True out for some."
            )
        faces = tuple(dict.fromkeys(face for c in hard for face in self.faces(c)))
        found = Ansatz(self.domain, faces, hard[0].g, len(self.fields), len(self.equation.parameters))
        row = jnp.asarray(self.domain.points(1, 1)[0])
        found.factor(row)
        try:
            jax.eval_shape(found.datum, row)
        except NEEDS_NUMBERS:
            raise ValueError(
                "the datum of a hard condition is differentiated; write it with jax.numpy, without `if` on p."
            ) from None
        for periodic in (c for c in self.conditions if isinstance(c, Periodic)):
            for i in periodic.indices(self.domain):
                self._goes_round(found, i)
        return found

    def _goes_round(self, ansatz: Ansatz, i: int) -> None:
        """Refuse u = g + φN where g or φ, or their slopes, are not the same at both ends of coordinate i."""
        (center, spread), name = self.domain.frame, self.domain.names[i]
        both = lambda row: jnp.append(ansatz.datum(row), ansatz.factor(row))  # noqa: E731
        along = lambda row: jax.jvp(both, (row,), (jnp.zeros_like(row).at[i].set(1.0),))[1]  # noqa: E731
        rows = jnp.asarray(self.domain.points(16, 1))
        for what, f in (("value", both), ("slope", along)):
            lower, upper = (jax.vmap(f)(rows.at[:, i].set(center[i] + sign * spread[i])) for sign in (-1, 1))
            if not np.allclose(lower, upper, 1e-6, 1e-6 * float(jnp.max(jnp.abs(jnp.stack([lower, upper]))))):
                raise ValueError(
                    f"Periodic({name!r}) cannot hold beside this hard condition: its function, or the factor that makes it hold, "
                    f"has another {what} at {name}- than at {name}+; leave hard=True out."
                )

    @property
    def beyond(self) -> str:
        """What the paper's own sweeps do not know of it, in words; "" if nothing."""
        if not self.equation.first_order_linear:
            return self.equation.higher
        if () in self.equation.keys:
            return called(())
        if self.ansatz is not None:
            return "hard conditions"
        return "a Robin condition" if any(condition.about == "both" for condition in self.stated) else ""

    @property
    def joint(self) -> str:
        """What PM and SAPM do not know of it at all, in words; "" if nothing."""
        equation = self.equation
        if self.ansatz is not None:
            return "hard conditions"
        return equation.nonlinear if len(self.fields) > 1 or equation.parameters or equation.rows > 1 else ""

    @property
    def followed(self) -> bool:
        """Whether u follows from its conditions along characteristics that end where they leave the domain."""
        return self.equation.first_order_linear and not any(isinstance(c, (Periodic, Observed)) for c in self.conditions)

    @property
    def stated(self) -> tuple[Condition, ...]:
        """All but periodicity."""
        return tuple(c for c in self.conditions if isinstance(c, Condition))

    @property
    def soft(self) -> tuple[Condition, ...]:
        """The conditions that a loss has to bring about."""
        return tuple(c for c in self.stated if not c.hard)

    def faces(self, condition: Condition) -> tuple[str, ...]:
        """Where a condition holds; of itself on no face that periodicity speaks of."""
        found = condition.faces_in(self.domain)
        if getattr(condition, "faces", None):
            return found
        around = {name + side for c in self.conditions if isinstance(c, Periodic) for name in c.coordinates for side in "-+"}
        return tuple(face for face in found if face not in around)

    @property
    def fields(self) -> tuple[str, ...]:
        """What is to be found, by its names in the residual."""
        return self.equation.fields

    @property
    def outputs(self) -> int:
        return len(self.fields) + len(self.equation.parameters)

    def entering(self, face: str, x: np.ndarray) -> np.ndarray:
        """Where characteristics enter through that face: sign · c·n < 0."""
        c, _ = self.equation.form(x)
        return self.sign * np.sum(c * self.domain.normal(face, x), axis=1) < -1e-12 * (1 + np.linalg.norm(c, axis=1))

    @property
    def mu(self) -> float:
        """The weight of the boundary term by default: as much as the operator magnifies, where inputs fill [-1, 1]."""
        return strength(self.interior(self.domain.points(256, 1)), self.domain.frame[1])

    def boundary(self, condition: Condition, n: int) -> np.ndarray:
        """n points of the condition's part of the boundary: Halton on each face, as many as its area asks for."""
        domain, name = self.domain, type(condition).__name__
        if isinstance(condition, Observed):
            return condition.place_in(domain)
        given = condition.points
        if given is not None and not isinstance(given, (int, np.integer)):
            x = table(f"points of {name}", given, len(domain.names))
            allowed = self.faces(condition)
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
        faces = self.faces(condition)
        if not faces:
            raise ValueError(f"{name} holds nowhere: all faces it could be about are periodic; leave it out, or name its faces.")
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

    def _shares(self, boundary_points: Any) -> list[int]:
        """How many of so many points each condition would have."""
        total, k = whole("boundary_points", boundary_points, len(self.soft), ", one for each condition"), len(self.soft)
        return [total // k + (i < total % k) for i in range(k)]

    def counts(self, boundary_points: Any) -> list[int]:
        """How many points each condition has: its share of so many, or as many as it is given, or as there are."""
        found = []
        for cond, n in zip(self.soft, self._shares(boundary_points), strict=True):
            if isinstance(cond, Observed) or np.ndim(cond.points) or len(self.domain.names) == 1:
                found.append(len(self.boundary(cond, n)))
            else:
                found.append(n if cond.points is None else whole(f"points of {type(cond).__name__}", cond.points))
        return found

    def samples(self, points: Any = 1000, boundary_points: Any = 400, test_points: Any = 1000, mu=None) -> Samples:
        """Interior and boundary points with coefficients and data. The boundary term weighs mu in all."""
        domain, names = self.domain, self.domain.names
        x = interior_points(domain, points, "points", domain.first)
        parts = [self.boundary(cond, n) for cond, n in zip(self.soft, self._shares(boundary_points), strict=True)]
        mu = self.mu if mu is None else mu
        terms, kinds = [self.interior(x)], {}
        for cond, part in zip(self.soft, parts, strict=True):
            kinds.setdefault((cond.about != "value", cond.meant(self.fields)), []).append((cond, part))
        for _, mine in sorted(kinds.items()):
            terms.append(self._boundary_term(mine, mu, sum(map(len, parts))))
        test, held = {}, None
        if not (isinstance(test_points, (int, np.integer)) and test_points == 0):
            test["x"] = interior_points(domain, test_points, "test_points", domain.first + len(x))
            held = self.interior(test["x"])
            if self.exact is not None:
                test["y"] = evaluate(self.exact, "exact", names, test["x"], several=True)
        more = {"fields": self.fields, "parameters": self.equation.parameters}
        found = Samples("pde", names, domain.describe(), tuple(terms), test, held=held, **more)
        found = found if self.ansatz is None else hardened(found, self.ansatz)
        return found if self.embedding is None else embedded(found, self.embedding)

    def interior(self, x: np.ndarray) -> Term:
        """The residual at the points x."""
        equation = self.equation
        if equation.nonlinear:
            guesses = [guess or 1.0 for guess in equation.parameters.values()]
            unit = np.append(np.ones(len(self.fields)), guesses)
            more = {"rows": equation.rows, "unit": unit, "constants": len(guesses)}
            return nonlinear_term(x, equation.vectors, equation.forms, equation.function, **more)
        A, c, c0, f = equation.coefficients(x)
        return second_order_term(x, A, c, c0, f) if equation.order == 2 else pde_term(x, c, f, c0=c0)

    def _boundary_term(self, parts: Sequence[tuple[Condition, np.ndarray]], mu: float, total: int) -> Term:
        """Conditions on u itself, or those on its derivatives, as a term: mu/total for each of their points."""
        meant = parts[0][0].meant(self.fields)
        x = np.concatenate([part for _, part in parts])
        g = np.concatenate([cond.datum(self.domain, part, len(meant)) for cond, part in parts])
        weight: Any = mu if len(x) == total else mu * len(x) / total
        if any(cond.weight != 1 for cond, _ in parts):
            weight = weight * np.concatenate([np.full(len(part), float(cond.weight)) for cond, part in parts])
        of = None if self.outputs == 1 else meant
        if parts[0][0].about == "value":
            return replace(value_term(x, g, weight), of=of)
        a, along = (np.concatenate(rows) for rows in zip(*(c.operator(self.domain, part) for c, part in parts), strict=True))
        return replace(flux_term(x, along, g, weight, a), of=of)


def _parameters(given, names: Sequence[str]) -> dict[str, float]:
    """Numbers to find, with their guesses."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"parameters={brief(given)} must be names with a first guess, such as {{'nu': 0.1}}.")
    for name, guess in given.items():
        if not isinstance(name, str) or not name.isidentifier() or name in (*names, "vector", "_names", "_more"):
            raise ValueError(f"parameters has the name {brief(name)}; use a plain word that is no coordinate.")
        if not np.isfinite(number(guess)):
            raise ValueError(f"parameters has {name}={brief(guess)}; its first guess must be a finite number.")
    return {name: float(guess) for name, guess in given.items()}  # type: ignore[arg-type]


PROBLEMS = (Function, Regression, PDE)
