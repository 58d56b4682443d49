"""Advisory checks: they look for problems that are legal but probably a mistake.

Each check takes a `PDE` and returns an `Advice` or None.
`ill_posed` runs when a problem is stated, `advice` before training, and `another_exact` and `kinks`
after training if errors are large.

A check may call a user's function at points that training never uses. If that function fails there,
the check returns None (`functions.none_if_fails`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import combinations, islice, product
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from sapm.errors import Advice, AdviceKind
from sapm.numerics.activations import Activation
from sapm.problem.characteristics import trace_back
from sapm.problem.conditions import (
    BoundaryCondition,
    Condition,
    Initial,
    InitialVelocity,
    LinearCondition,
    Observed,
    Periodic,
)
from sapm.problem.domain import Box, Coordinates, Domain, Shape, face_stem
from sapm.problem.equation import Key, derivative_name
from sapm.problem.functions import UserCode, evaluate, none_if_fails, numbers_of, point_text
from sapm.problem.shapes import Combination, Product
from sapm.scopes import float64

if TYPE_CHECKING:
    from sapm.problem.pde import PDE

FAR_GUESS = 1e8  # a parameter so many times what balances the equation hides its other terms
FACE_POINTS = 32  # points on a face, or in the domain, at which functions are compared
FEW_POINTS = 8  # points that show which derivatives an equation contains
CHARACTERISTICS = 64  # characteristics that are traced
CLEAR_DIFFERENCE = 0.01  # of the size of what is compared: a smaller difference is no mistake
JUMP_AT_CORNER = 1e-3  # the same where two faces meet
LARGE_RESIDUAL = 0.05  # of the data: larger ones belong to no solution
MAX_CORNERS = 4096  # corners of a domain that are looked at
REENTRANT_SHARE = 0.6  # of the surroundings of a corner inside the domain: it points inwards
LINE_NODES = 64  # points on a line along which a coefficient is searched for jumps
LINE_ROUNDS = 5  # how often the search zooms in between two of them


Check = Callable[["PDE"], Advice | None]


# ---------------------------------------------------------------- is the problem well posed?


def ill_posed(problem: PDE) -> str:
    """A sentence on why the problem does not determine the solution; "" if no reason was found.

    For first-order linear equations the reason is found by following characteristics. For other
    equations it is found from the derivatives in the equation and the faces with conditions.
    """
    if problem.has_characteristics:
        return _not_reached(problem)
    return _left_open(problem)


def _not_reached(problem: PDE) -> str:
    """A sentence on characteristics that do not begin where u is given; "" if all do."""
    domain = problem.domain
    x = domain.points(CHARACTERISTICS, 1)
    origins = trace_back(problem, x, 1e-4, "RK45", quick=True)
    # a characteristic whose integration was given up may yet have reached the lower end of t
    unfinished = origins.onward & np.array([face is None for face in origins.face])
    lost = (origins.condition < 0) & ~unfinished
    if not lost.any():
        return ""
    k = int(lost.argmax())
    if origins.face[k] is None:
        how = "never reaches the boundary"
    else:
        at = point_text(domain.names, origins.x[k])
        how = f"comes from the face {origins.face[k]!r} at {at}, where no condition is given"
    return (
        f"the problem is not well posed: u is not determined at {lost.sum()} of {len(x)} probed "
        f"points; for example the characteristic through {point_text(domain.names, x[k])} {how}."
    )


class _Data:
    """What the conditions of a problem say about each function on each face."""

    def __init__(self, problem: PDE):
        self.problem = problem
        self.equation = problem.equation
        self.domain = problem.domain
        self.names = problem.domain.names
        self.fields = problem.fields
        # (face, function, "value" or "slope")
        self.told = {
            (face_stem(face), i, "value" if problem.determines(c) == "value" else "slope")
            for c in problem.boundary_conditions
            for face in problem.faces(c)
            for i in c.field_indices(problem.fields)
        }

    @property
    def keys(self) -> list[Key]:
        """The derivatives in the equation."""
        return self.equation.keys

    @cached_property
    def keys_of_fields(self) -> list[list[Key]]:
        """For every function, its derivatives in the equation."""
        return self.equation.keys_of_fields(self.domain.points(FEW_POINTS, 1))

    @cached_property
    def periodic(self) -> set[str]:
        """The periodic coordinates."""
        return {self.names[i] for i in _periodic(self.problem)}

    def faces_with_value(self, i: int | None = None) -> set[str]:
        """The faces on which u (or function i) is given."""
        return {face for face, j, kind in self.told if kind == "value" and i in (None, j)}

    def count(self, i: int, along: str) -> int:
        """How many conditions on function i there are at both ends of a coordinate.

        A curved face has two ends of every coordinate.
        """
        ends = [face[:-1] for face, j, _ in self.told if j == i]
        return ends.count(along) + 2 * sum(end not in self.names for end in ends)

    def renames_derivative(self, i: int) -> bool:
        """Whether function i only names a derivative of another one, which has enough conditions.

        An equation then contains function i itself, none of its derivatives, and derivatives of one
        other function j. With these in place of i the other equations are of a higher order in j.
        """
        keys = self.keys
        others = [j for j in range(len(self.fields)) if j != i]
        if () not in keys or not others:
            return False
        slopes = self.equation.slopes(self.domain.points(FEW_POINTS, 1))
        used = np.any(slopes != 0, axis=0)  # (rows, keys, fields)

        def order(contained, name):
            counts = [key.count(name) for key, on in zip(keys, contained, strict=True) if on]
            return max(counts, default=0)

        for row in used:
            of_i = row[:, i]
            by = [j for j in others if row[:, j].any()]
            if not of_i[keys.index(())] or of_i.sum() > 1 or len(by) != 1:
                continue
            needed = {
                name: order(used[:, :, i].any(0), name) + order(row[:, by[0]], name)
                for name in self.names
                if name not in self.periodic
            }
            if all(self.count(by[0], name) >= count for name, count in needed.items()):
                return True
        return False

    def overdetermined(self) -> bool:
        """Whether faces have more data than the equation needs, so that parameters may follow."""
        equation = self.equation
        if equation.rows > len(self.fields):
            return True
        if any(face[:-1] in self.periodic for face, _, _ in self.told):
            return True
        both = {
            face
            for face, i, kind in self.told
            if kind == "slope" and (face, i, "value") in self.told
        }
        if ("t", "t") in self.keys:
            both -= {"t-"}
        first_order_with_both_ends = any(
            {f"{name}-", f"{name}+"} <= self.faces_with_value(i)
            and max(key.count(name) for key in keys) == 1
            for i, keys in enumerate(self.keys_of_fields)
            for name in self.names
            if keys
        )
        return bool(both) or "t+" in self.faces_with_value() or first_order_with_both_ends


def _left_open(problem: PDE) -> str:
    """A sentence on what a second-order or nonlinear equation lacks; "" if nothing was found, or if
    there are measurements of u.
    """
    if any(isinstance(c, Observed) for c in problem.boundary_conditions):
        return ""
    data = _Data(problem)
    checks = (
        _field_without_condition,
        _too_few_equations,
        _only_derivatives,
        _no_start,
        _no_initial_velocity,
        _open_faces,
        _undetermined_parameters,
    )
    return next((sentence for check in checks if (sentence := check(data))), "")


def _field_without_condition(data: _Data) -> str:
    stated = data.problem.boundary_conditions
    given = {i for c in stated for i in c.field_indices(data.fields)}
    missing = [
        i for i in range(len(data.fields)) if i not in given and not data.renames_derivative(i)
    ]
    if not stated or not missing:
        return ""
    name = data.fields[missing[0]]
    if () in data.keys_of_fields[missing[0]]:
        return (
            f"the problem may not be well posed: there is no condition on {name}; add one with "
            f"of={name!r}."
        )
    return (
        f"the problem is not well posed: only derivatives of {name} occur, and there is no "
        f"condition on {name}, so {name} + constant is a solution too; give its value at one "
        f"point: sapm.Observed([point], [value], of={name!r})."
    )


def _too_few_equations(data: _Data) -> str:
    rows = data.equation.rows
    if rows >= len(data.fields):
        return ""
    return (
        f"the problem is not well posed: {rows} equation{'s' * (rows > 1)} for {len(data.fields)} "
        f"unknown functions; the residual must return {len(data.fields)} numbers."
    )


def _only_derivatives(data: _Data) -> str:
    problem = data.problem
    determined = [problem.determines(c) for c in problem.boundary_conditions]
    if () in data.keys or any(what != "derivative" for what in determined):
        return ""
    return (
        "the problem is not well posed: the equation and the conditions contain only derivatives "
        "of u, so u + constant is a solution too; give the value of u at one point: "
        "sapm.Observed([point], [value])."
    )


def _no_start(data: _Data) -> str:
    if not any("t" in key for key in data.keys) or data.faces_with_value() & {"t-", "t+"}:
        return ""
    return (
        "the problem is not well posed: no condition gives u at the lower end of t; "
        "add sapm.Initial(g)."
    )


def _no_initial_velocity(data: _Data) -> str:
    stated = data.problem.boundary_conditions
    velocity = any(
        isinstance(c, InitialVelocity)
        or ("t-" in data.problem.faces(c) and data.problem.determines(c) != "value")
        for c in stated
    )
    if ("t", "t") not in data.keys or "t+" in data.faces_with_value() or velocity:
        return ""
    return (
        f"the problem is not well posed: it contains {derivative_name(('t', 't'))}, and no "
        "condition gives u.t at the lower end of t; add sapm.InitialVelocity(g)."
    )


def _open_faces(data: _Data) -> str:
    """Faces without a condition across which there are second derivatives."""
    names = data.names
    second = [
        name
        for name in names
        if (name, name) in data.keys and name != "t" and name not in data.periodic
    ]
    met = {face for c in data.problem.boundary_conditions for face in data.problem.faces(c)}

    def needs_condition(face: str) -> bool:
        name = face_stem(face)[:-1]
        return name in second or bool(second and name not in names)

    faces = [
        face
        for face in data.domain.faces
        if face not in met and face_stem(face)[:-1] != "t" and needs_condition(face)
    ]
    if not faces:
        return ""
    if len(names) == 1:  # an ordinary equation may have all conditions at one end
        fields = [i for i, keys in enumerate(data.keys_of_fields) if any(len(k) == 2 for k in keys)]
        if len(data.fields) == 1:
            fields = [0]
        if all(data.count(i, names[0]) > 1 for i in fields):
            return ""
    name = face_stem(faces[0])[:-1]
    derivative = derivative_name((name, name) if name in second else (second[0], second[0]))
    return (
        f"the problem may not be well posed: it contains {derivative}, and no condition is on "
        f"{', '.join(faces)}; add one there."
    )


def _undetermined_parameters(data: _Data) -> str:
    if not data.equation.parameters or data.overdetermined():
        return ""
    return (
        f"the problem may not determine {', '.join(data.equation.parameters)}: the conditions give "
        "no more than u itself needs; add measurements, sapm.Observed(x, u)."
    )


# ---------------------------------------------------------------- before training


def advice(problem: PDE, sigma: Activation) -> list[Advice]:
    """All advice on a problem, and on the activation for it, before it is trained."""
    checks = (*CHECKS, far_guess) if problem.equation.parameters else CHECKS
    items = [item for check in checks if (item := check(problem)) is not None]
    if not sigma.smooth:
        sentence = (
            f"{sigma.name} has no continuous derivative, so the theorems for PDEs do not apply; "
            "use activation='sin' or 'tanh'."
        )
        items.append(Advice(AdviceKind.STATEMENT, sentence))
    return items


def _periodic(problem: PDE) -> list[int]:
    """The indices of the periodic coordinates."""
    return [
        i for c in problem.conditions if isinstance(c, Periodic) for i in c.indices(problem.domain)
    ]


def _with_datum(problem: PDE) -> list[LinearCondition]:
    """Conditions u = g on faces, at points that are drawn."""
    return [
        c
        for c in problem.boundary_conditions
        if isinstance(c, LinearCondition)
        and c.prescribes_value
        and np.ndim(c.points) == 0
        and not isinstance(c, Observed)
    ]


def on_outflow(problem: PDE) -> Advice | None:
    """A condition on an outflow face, where u is determined by the interior."""
    if not problem.has_characteristics:
        return None
    for condition in _with_datum(problem):
        if condition.inflow_only:
            continue
        for face in problem.faces(condition):
            x = problem.domain.face_points(face, FACE_POINTS)
            entering = none_if_fails(problem.entering, face, x)
            if entering is not None and not entering.any():
                return Advice(
                    AdviceKind.STATEMENT,
                    f"{condition.name} holds on {face}, where characteristics leave the domain, so "
                    "the equation determines u there already; use sapm.Inflow, or name other faces "
                    "by faces=, unless the values agree.",
                )
    return None


def time_by_another_name(problem: PDE) -> Advice | None:
    """A coordinate that looks like the time and is not called t."""
    names = problem.domain.names
    keys = problem.equation.keys
    first_order = [
        name for name in names if (name,) in keys and not any(key.count(name) > 1 for key in keys)
    ]
    time = next((name for name in first_order if name.lower() in ("t", "time", "tau")), "t")
    unnamed = any(
        not isinstance(c, (Initial, InitialVelocity, Observed)) and not c.inflow_only
        for c in problem.boundary_conditions
        if c.faces is None
    )
    if "t" in names or time == "t" or not unnamed:
        return None
    return Advice(
        AdviceKind.STATEMENT,
        f"{time} looks like the time, but only a coordinate named t is treated as time: "
        f"conditions without faces= hold at the upper end of {time}, too. Rename it to t, or name "
        "the faces.",
    )


def backwards_in_time(problem: PDE) -> Advice | None:
    """Diffusion with the wrong sign, for which small details grow without bound."""
    equation = problem.equation
    keys = equation.keys
    one = equation.rows == len(problem.fields) == 1
    if not equation.traced or not one or ("t",) not in keys or equation.order < 2:
        return None
    if ("t", "t") in keys or not any(isinstance(c, Initial) for c in problem.conditions):
        return None
    slopes = equation.slopes(problem.domain.points(FEW_POINTS, 1))[:, 0, :, 0]
    in_time = slopes[:, keys.index(("t",))]
    for name in problem.domain.names:
        key = (name, name)
        if name != "t" and key in keys and np.all(slopes[:, keys.index(key)] * in_time > 0):
            return Advice(
                AdviceKind.STATEMENT,
                "the equation is diffusion backwards in time: the coefficients of u.t and "
                f"{derivative_name(key)} have the same sign, so small details of the initial "
                "values grow without bound; write diffusion as "
                f"u.t - k*{derivative_name(key)} with k > 0.",
            )
    return None


def too_many_equations(problem: PDE) -> Advice | None:
    """More equations than unknown functions."""
    rows = problem.equation.rows
    if rows <= len(problem.fields) or problem.equation.parameters:
        return None
    return Advice(
        AdviceKind.STATEMENT,
        f"there are {rows} equations for {', '.join(problem.fields)}: unless one follows from the "
        "others, no function satisfies them all.",
    )


def not_periodic(problem: PDE) -> Advice | None:
    """Data that are not periodic where u is."""
    names = problem.domain.names
    for condition in _with_datum(problem):
        for i in _periodic(problem):
            for face in problem.faces(condition):
                if face_stem(face)[:-1] == names[i]:
                    continue
                item = _compare_ends(problem, condition, face, i)
                if item is not None:
                    return item
    return None


def _datum(problem: PDE, condition: LinearCondition, x: np.ndarray) -> np.ndarray | None:
    """The datum of a condition at the points x; None where it is not defined."""
    return none_if_fails(
        condition.datum, problem.domain, x, len(condition.field_indices(problem.fields))
    )


def _compare_ends(problem: PDE, condition: LinearCondition, face: str, i: int) -> Advice | None:
    """Compare a datum at both ends of coordinate i; it may be undefined at one of them."""
    names = problem.domain.names
    center, spread = problem.domain.frame
    x = problem.domain.face_points(face, FACE_POINTS)
    ends = [x.copy(), x.copy()]
    for end, sign in zip(ends, (-1, 1), strict=True):
        end[:, i] = center[i] + sign * spread[i]
    inner, lower, upper = (_datum(problem, condition, points) for points in (x, *ends))
    if inner is None or lower is None or upper is None:
        return None
    size = np.abs(inner).max(0)
    n, k = np.unravel_index(np.abs(lower - upper).argmax(), lower.shape)
    if abs(lower[n, k] - upper[n, k]) <= max(CLEAR_DIFFERENCE * size[k], 1e-12):
        return None
    return Advice(
        AdviceKind.STATEMENT,
        f"u is periodic in {names[i]}, and {condition.name} is not: it gives {lower[n, k]:.3g} at "
        f"{point_text(names, ends[0][n])} and {upper[n, k]:.3g} at "
        f"{point_text(names, ends[1][n])}; u jumps there.",
    )


def different_at_corner(problem: PDE) -> Advice | None:
    """Conditions on two faces of a box that give different values where the faces meet.

    No smooth function has both values, and no network is close to both near the corner.
    """
    domain = problem.domain
    if not isinstance(domain, Box) or len(domain.names) < 2:
        return None
    conditions = [c for c in _with_datum(problem) if not c.inflow_only]
    draw = np.random.default_rng(0).uniform(size=(FACE_POINTS, len(domain.names) - 1))
    for one, other in combinations(conditions, 2):
        for face, side in product(problem.faces(one), problem.faces(other)):
            if face[:-1] != side[:-1]:
                item = _compare_at_corner(problem, domain, (one, face), (other, side), draw)
                if item is not None:
                    return item
    return None


def _sizes(problem: PDE, domain: Box, condition: LinearCondition, draw) -> np.ndarray:
    """The largest datum of a condition for each function, over the faces where it is defined."""
    size = np.zeros(len(condition.field_indices(problem.fields)))
    for face in problem.faces(condition):
        data = _datum(problem, condition, domain.from_cube(draw, face)[0])
        if data is not None:
            size = np.maximum(size, np.abs(data).max(0))
    return size


def _compare_at_corner(
    problem: PDE,
    domain: Box,
    at_face: tuple[LinearCondition, str],
    at_side: tuple[LinearCondition, str],
    draw: np.ndarray,
) -> Advice | None:
    (one, face), (other, side) = at_face, at_side
    x = domain.from_cube(draw[:8], face)[0]
    across = side[:-1]
    x[:, domain.names.index(across)] = domain.bounds[across][side[-1] == "+"]
    of_one = one.field_indices(problem.fields)
    of_other = other.field_indices(problem.fields)
    data_one = _datum(problem, one, x)
    data_other = _datum(problem, other, x)
    if data_one is None or data_other is None:
        return None
    sizes_one = _sizes(problem, domain, one, draw)
    sizes_other = _sizes(problem, domain, other, draw)
    for i in set(of_one) & set(of_other):
        a = data_one[:, of_one.index(i)]
        b = data_other[:, of_other.index(i)]
        size = max(sizes_one[of_one.index(i)], sizes_other[of_other.index(i)])
        n = int(np.abs(a - b).argmax())
        if abs(a[n] - b[n]) > max(JUMP_AT_CORNER * size, 1e-12):
            return Advice(
                AdviceKind.STATEMENT,
                f"{problem.fields[i]} jumps where {face} and {side} meet: at "
                f"{point_text(domain.names, x[n])} {one.name} gives {a[n]:.3g} and {other.name} "
                f"gives {b[n]:.3g}; a network is continuous, so the error is large near there.",
            )
    return None


def _boxes(domain: Domain | Shape) -> Iterator[Box]:
    """The boxes that a domain is made of."""
    if isinstance(domain, Box):
        yield domain
    elif isinstance(domain, (Combination, Product)):
        yield from _boxes(domain.a)
        yield from _boxes(domain.b)


def reentrant_corner(problem: PDE) -> Advice | None:
    """A corner that points into the domain, around which u is not smooth as a rule."""
    domain = problem.domain
    names = domain.names
    if domain.convex or problem.equation.order < 2:
        return None
    center, spread = domain.frame
    ends: dict[str, set[float]] = {name: set() for name in names}
    for box in _boxes(domain):
        for name, bounds in box.bounds.items():
            if name != "t":
                ends[name] |= set(bounds)
    values = [sorted(ends[name] | {middle}) for name, middle in zip(names, center, strict=True)]
    corners = np.array(list(islice(product(*values), MAX_CORNERS)))
    corners = corners[np.abs(domain.gap(corners)) <= 1e-9 * spread.min()]
    draw = np.random.default_rng(0).normal(size=(400, len(names)))
    around = draw * 1e-3 * domain.smallest_width
    for corner in corners:
        if np.mean(domain.gap(corner + around) > 0) > REENTRANT_SHARE:
            return Advice(
                AdviceKind.STATEMENT,
                f"the domain has a corner that points inwards, at {point_text(names, corner)}: "
                "derivatives of u are usually infinite there, so the error is large around it, "
                "and error estimates are too small.",
            )
    return None


@float64
def coefficient_jumps(problem: PDE) -> Advice | None:
    """A coefficient of a second derivative that jumps along a coordinate of that derivative."""
    equation = problem.equation
    domain = problem.domain
    names = domain.names
    v = np.random.default_rng(0).normal(size=(len(equation.keys), len(equation.fields)))
    numbers = list(equation.parameters.values())
    linearised = jax.vmap(
        lambda row: jax.jacfwd(lambda w: equation.at(row, w, numbers))(jnp.asarray(v))
    )

    def coefficients(x: np.ndarray) -> np.ndarray:
        """(n, rows, keys, fields)."""
        if equation.nonlinear:
            return np.asarray(linearised(jnp.asarray(x)))
        return equation.jacobian(x, np.zeros((len(x), len(equation.keys))))[:, None, :, None]

    for k, key in enumerate(equation.keys):
        if len(key) != 2:
            continue
        for name, start in product(dict.fromkeys(key), domain.points(3, 1)):

            def along_line(x, k=k):
                return coefficients(x)[:, :, k]

            x = _jump_on_line(domain, start, names.index(name), along_line)
            if x is not None:
                u = equation.fields[0]
                return Advice(
                    AdviceKind.STATEMENT,
                    f"the coefficient of {derivative_name(key)} jumps at {point_text(names, x)}: "
                    "the residual, point by point, does not contain the condition across the jump. "
                    "Where a flux "
                    f"K {u}.{name} is continuous, make it an unknown function: "
                    f"lambda p, {u}, q: (q.value - K * {u}.{name}, q.{name}).",
                )
    return None


def _jump_on_line(
    domain: Domain, start: np.ndarray, i: int, values: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray | None:
    """Where a function jumps on the line through a point along coordinate i; None if nowhere.

    The search zooms in between the two nodes that differ most. Jumps at the ends of the line are
    left out: a coefficient may become infinite there.
    """
    center, spread = domain.frame
    outer = (center[i] - spread[i], center[i] + spread[i])
    x = np.repeat(start[None], LINE_NODES, 0)
    ends = outer
    size = 0.0
    n = 0
    for _ in range(LINE_ROUNDS):
        x[:, i] = np.linspace(*ends, LINE_NODES)
        f = none_if_fails(values, x)
        if f is None:
            return None
        f = f.reshape(LINE_NODES, -1)
        steps = np.abs(np.diff(f, axis=0)).max(1)
        inside = domain.gap(x) >= 0
        steps = np.where(inside[1:] & inside[:-1] & np.isfinite(steps), steps, 0.0)
        n = int(steps.argmax())
        size = size or np.abs(f[inside & np.isfinite(f).all(1)]).max(initial=0.0)
        if steps[n] <= CLEAR_DIFFERENCE * size:
            return None
        ends = (x[n, i], x[n + 1, i])
    return None if ends[0] == outer[0] or ends[1] == outer[1] else x[n]


@float64
def single_precision(problem: PDE) -> Advice | None:
    """Constants in single precision in the equation or its conditions."""
    names = problem.domain.names
    equation = problem.equation
    row = jnp.zeros(len(names))
    v = jnp.zeros((len(equation.keys), len(equation.fields)))

    def program(condition: BoundaryCondition) -> str:
        if isinstance(condition, Condition):
            of_face = problem.equation_of(condition)
            numbers = jnp.zeros((len(of_face.keys), len(of_face.fields)))
            return str(jax.make_jaxpr(of_face.at)(row, numbers))
        if isinstance(condition, LinearCondition):
            return str(jax.make_jaxpr(lambda at: _values(condition.g, names, at))(row))
        return ""

    programs = [("the residual", none_if_fails(lambda: str(jax.make_jaxpr(equation.at)(row, v))))]
    programs += [(c.name, none_if_fails(program, c)) for c in problem.boundary_conditions]
    for what, text in programs:
        if text is not None and "f32[" in text:
            return Advice(
                AdviceKind.STATEMENT,
                f"{what} contains numbers in single precision (float32), which have only seven "
                "digits; make them float64: with NumPy, or with jax.numpy inside the function.",
            )
    return None


def _values(function: Callable, names: tuple[str, ...], row) -> jax.Array:
    """A user's function at one point, which may be traced."""
    with UserCode():
        return numbers_of(function(Coordinates(names, row)), "g", several=True)


def far_guess(problem: PDE) -> Advice | None:
    """A first guess of a parameter beside which the rest of the equation is rounding."""
    guesses = problem.equation.parameters.items()
    for (name, guess), size in zip(guesses, problem.balancing_sizes.tolist(), strict=True):
        if abs(guess) > FAR_GUESS * size:
            return Advice(
                AdviceKind.STATEMENT,
                f"parameters: got the first guess {name}={guess:g}, expected one nearer to "
                f"{size:.0e}, where the terms of the equation balance: from so far away training "
                "may not find it. Give a nearer guess, or 0.",
            )
    return None


CHECKS: tuple[Check, ...] = (
    time_by_another_name,
    different_at_corner,
    on_outflow,
    backwards_in_time,
    too_many_equations,
    not_periodic,
    reentrant_corner,
    coefficient_jumps,
    single_precision,
)


# ---------------------------------------------------------------- after training


def another_exact(problem: PDE) -> Advice | None:
    """Whether `exact` contradicts the conditions or the equation.

    This takes seconds, and is called only if the errors relative to `exact` are large.
    """
    if problem.exact is None:
        return None
    return _exact_and_conditions(problem) or _exact_and_equation(problem)


@float64
def _exact_and_conditions(problem: PDE) -> Advice | None:
    """Compare `exact` with the data of conditions."""
    domain = problem.domain
    names = domain.names
    assert problem.exact is not None
    exact = problem.exact

    def at(x: np.ndarray) -> np.ndarray | None:
        return none_if_fails(evaluate, exact, "exact", names, x, several=True)

    inner = at(domain.points(FACE_POINTS, 1))
    if inner is None:
        return None
    size = np.abs(inner).max(0)
    for condition in _with_datum(problem):
        meant = list(condition.field_indices(problem.fields))
        for face in problem.faces(condition):
            x = domain.face_points(face, FACE_POINTS)
            x = x[problem.entering(face, x)] if condition.inflow_only else x
            if not len(x):
                continue
            a = _datum(problem, condition, x)
            values = at(x)
            if a is None or values is None:
                continue
            b = values[:, meant]
            n, k = np.unravel_index(np.abs(a - b).argmax(), a.shape)
            if abs(a[n, k] - b[n, k]) > CLEAR_DIFFERENCE * max(size[meant[k]], np.abs(a).max()):
                return Advice(
                    AdviceKind.STATEMENT,
                    f"exact does not fit the conditions: at {point_text(names, x[n])} "
                    f"{condition.name} gives {a[n, k]:.3g} and exact gives {b[n, k]:.3g}; errors "
                    "are still "
                    "measured against exact.",
                )
    return None


@float64
def _exact_and_equation(problem: PDE) -> Advice | None:
    """Put `exact` into the equation. Nothing is known where it cannot be differentiated."""
    equation = problem.equation
    names = problem.domain.names
    if equation.parameters or not equation.traced:
        return None

    def exact(row):
        return _values(problem.exact, names, row)  # type: ignore[arg-type]

    def at_point(row):
        """The residual (rows,), the size of its terms, and the derivatives of exact."""
        derivative = exact
        derivatives = [exact(row)]
        for _ in range(equation.order):
            derivative = jax.jacfwd(derivative)
            derivatives.append(derivative(row))
        indices = [tuple(names.index(name) for name in key) for key in equation.keys]
        v = jnp.stack([derivatives[len(key)][(slice(None), *key)] for key in indices])
        slopes = jax.jacfwd(lambda w: equation.at(row, w))(v)
        rest = jnp.abs(equation.at(row, 0 * v))
        return equation.at(row, v), jnp.sum(jnp.abs(slopes * v), axis=(1, 2)) + rest, v

    x = problem.domain.points(FACE_POINTS, 1)
    values = none_if_fails(jax.jit(jax.vmap(at_point)), jnp.asarray(x))
    if values is None:
        return None
    residual, size, v = (np.asarray(a) for a in values)
    finite = np.isfinite(residual).all(1) & np.isfinite(size).all(1)
    # a derivative that is 0 everywhere is one that JAX does not know, such as between the nodes of
    # a table
    if not finite.any() or not np.abs(v[finite]).max((0, 2)).all():
        return None
    x = x[finite]
    residual = np.abs(residual[finite])
    size = size[finite]
    n, k = np.unravel_index(residual.argmax(), residual.shape)
    mean_size = np.sqrt(np.mean(size[:, k] ** 2))
    if np.sqrt(np.mean(residual[:, k] ** 2)) <= CLEAR_DIFFERENCE * mean_size:
        return None
    return Advice(
        AdviceKind.STATEMENT,
        f"exact does not solve the equation: at {point_text(names, x[n])} its residual is "
        f"{residual[n, k]:.2g}, and the terms are of size {size[n, k]:.2g}; errors are still "
        "measured against exact.",
    )


def kinks(problem: PDE, residual: float) -> Advice | None:
    """Whether kinks or shocks explain a large residual: the equation has no term that smooths them.

    Parameters
    ----------
    problem : the problem.
    residual : the residual after training, relative to the data.
    """
    equation = problem.equation
    names = problem.domain.names
    u, *others = problem.fields
    # whether it is nonlinear is not known for a system or an equation with unknown numbers
    several = others or equation.parameters or equation.rows > 1
    if not LARGE_RESIDUAL < residual < np.inf or several or len(names) < 2:
        return None
    if not equation.nonlinear or equation.order > 1:
        return None
    diffusion = " + ".join(f"{u}.{name}{name}" for name in names if name != "t")
    return Advice(
        AdviceKind.OUTCOME,
        f"the residual stays at {residual:.1g} of the data: a nonlinear equation of first order "
        "may have kinks or shocks, and several solutions, of which this may be a mixture. Add a "
        f"small - eps * ({diffusion}) to the residual: it selects one solution and smooths it.",
    )
