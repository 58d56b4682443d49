"""What is allowed in a problem and its settings, and probably not meant: said in a sentence, and kept with the run."""

from __future__ import annotations

import warnings
from contextlib import suppress
from itertools import islice, product

import jax
import jax.numpy as jnp
import numpy as np

from sapm.conditions import Initial, Observed, Periodic, corners
from sapm.devices import first_process
from sapm.domain import Box, Coordinates
from sapm.jet import Activation, float64
from sapm.pointwise import evaluate, numbers_of, place
from sapm.problem import PDE
from sapm.shapes import stem
from sapm.summary import straight
from sapm.unknown import called

FEW = 32  # points that are probed
OUTCOMES = (
    "the residual stays",
    "nothing was trained",
    "this ended in no solution",
)  # how sentences begin that a longer run may take back
LARGE = 0.05  # of the data: a residual that is none of a solution
MANY_CORNERS = 4096  # that are looked at
NODES, ROUNDS = 64, 5  # along a line, and how often one looks closer: as far as 1/63⁵ of it
CLEAR = 0.01  # of the size of what is compared: by so much it must differ


def _leaving(problem: PDE) -> str:
    """Where a first-order equation is told what it decides itself."""
    for condition in problem.stated if problem.followed else ():
        for face in problem.faces(condition) if condition.about == "value" and np.ndim(condition.points) == 0 else ():
            x = problem.domain.face_points(face, 32)
            if not condition.inflow_only and not problem.entering(face, x).any():
                return (
                    f"{type(condition).__name__} is on {face}, where characteristics leave the domain and u is what they bring; "
                    "use sapm.Inflow, or faces= without it, unless it says the same."
                )
    return ""


def _time_by_another_name(problem: PDE) -> str:
    names, keys = problem.domain.names, problem.equation.keys
    once = [name for name in names if (name,) in keys and not any(key.count(name) > 1 for key in keys)]
    time = next((name for name in once if name.lower() in ("t", "time", "tau")), "t")
    if "t" in names or time == "t" or not any(getattr(c, "faces", ()) is None for c in problem.stated):
        return ""
    return (
        f"time is the coordinate that is called t, and {time} is one like all others: conditions without faces= hold at its "
        "upper end as well. Call it t, or name the faces."
    )


def _backwards(problem: PDE) -> str:
    """Where diffusion has the sign with which the smallest details grow."""
    equation, keys = problem.equation, problem.equation.keys
    if not equation.traced or ("t",) not in keys or equation.order < 2 or equation.rows * len(problem.fields) > 1:
        return ""
    if ("t", "t") in keys or not any(isinstance(c, Initial) for c in problem.conditions):
        return ""
    found = equation.slopes(problem.domain.points(8, 1))[:, 0, :, 0]
    for name in problem.domain.names:
        if name != "t" and (name, name) in keys and np.all(found[:, keys.index((name, name))] * found[:, keys.index(("t",))] > 0):
            return (
                f"the equation runs backwards in time: u.t and u.{name}{name} have the same sign, so that the smallest details "
                f"of the start grow without bound; diffusion is u.t - k*u.{name}{name} with k > 0."
            )
    return ""


def _too_many(problem: PDE) -> str:
    rows, fields = problem.equation.rows, problem.fields
    if rows <= len(fields) or problem.equation.parameters:
        return ""
    return f"there are {rows} equations for {', '.join(fields)}: unless one follows from the others, nothing solves them all."


def _given(problem: PDE) -> list:
    """Conditions that say what u is on faces, at points that are drawn."""
    return [c for c in problem.stated if c.about == "value" and np.ndim(c.points) == 0 and not isinstance(c, Observed)]


def _not_periodic(problem: PDE) -> str:
    """Where what is given does not go round as u does."""
    names, (center, spread) = problem.domain.names, problem.domain.frame
    around = [i for c in problem.conditions if isinstance(c, Periodic) for i in c.indices(problem.domain)]
    for condition, i in ((c, i) for c in _given(problem) for i in around):
        for face in (face for face in problem.faces(condition) if stem(face)[:-1] != names[i]):
            x = problem.domain.face_points(face, FEW)
            ends, count = [x.copy(), x.copy()], len(condition.meant(problem.fields))
            for end, sign in zip(ends, (-1, 1), strict=True):
                end[:, i] = center[i] + sign * spread[i]
            with suppress(Exception):  # a function need not be defined at both ends
                size = np.abs(condition.datum(problem.domain, x, count)).max(0)
                lower, upper = (condition.datum(problem.domain, end, count) for end in ends)
                n, k = np.unravel_index(np.abs(lower - upper).argmax(), lower.shape)
                if abs(lower[n, k] - upper[n, k]) > max(CLEAR * size[k], 1e-12):
                    return (
                        f"u is periodic in {names[i]}, and {type(condition).__name__} is not: it says {lower[n, k]:.3g} at "
                        f"{place(names, ends[0][n])} and {upper[n, k]:.3g} at {place(names, ends[1][n])}; u jumps there."
                    )
    return ""


@float64
def another_exact(problem: PDE) -> str:
    """Where `exact` is not what the conditions or the equation say. It takes seconds, and is asked where errors are large."""
    domain, names = problem.domain, problem.domain.names
    right = lambda x: evaluate(problem.exact, "exact", names, x, several=True)  # noqa: E731 # type: ignore[arg-type]
    with suppress(Exception):  # it was never asked for what it is on the boundary, and the run is over
        size = np.abs(right(domain.points(FEW, 1))).max(0)
        for condition in _given(problem):
            meant = list(condition.meant(problem.fields))
            for face in problem.faces(condition):
                x = domain.face_points(face, FEW)
                x = x[problem.entering(face, x)] if condition.inflow_only else x
                if not len(x):
                    continue
                a, b = condition.datum(domain, x, len(meant)), right(x)[:, meant]
                n, k = np.unravel_index(np.abs(a - b).argmax(), a.shape)
                if abs(a[n, k] - b[n, k]) > CLEAR * max(size[meant[k]], np.abs(a).max()):
                    return (
                        f"exact does not fit the conditions: at {place(names, x[n])} {type(condition).__name__} says "
                        f"{a[n, k]:.3g} and exact {b[n, k]:.3g}; errors are measured against exact all the same."
                    )
        return _residual_of_exact(problem)
    return ""


def kinks(problem: PDE, residual: float) -> str:
    """What a large residual, relative to the data, is a sign of where nothing smooths u."""
    equation, names = problem.equation, problem.domain.names
    space = [name for name in names if name != "t"]
    u, *others = problem.fields
    several = others or equation.parameters or equation.rows > 1  # of which one cannot tell whether they are nonlinear
    if not LARGE < residual < np.inf or several or not equation.nonlinear or equation.order > 1 or len(names) < 2:
        return ""
    bend = " + ".join(f"{u}.{name}{name}" for name in space)
    return (
        f"{OUTCOMES[0]} at {residual:.1g} of the data: a nonlinear equation of first order has kinks or shocks, and several "
        f"solutions, of which this may be a mixture. A small - eps * ({bend}) in the residual chooses one, and rounds it."
    )


def _residual_of_exact(problem: PDE) -> str:
    equation, names = problem.equation, problem.domain.names
    if equation.parameters or not equation.traced:
        return ""
    exact = lambda row: numbers_of(problem.exact(Coordinates(names, row)), "exact", several=True)  # noqa: E731 # type: ignore[misc]

    def found(row):
        """The residual (rows,), the size of its terms, and the derivatives (keys, fields) of exact."""
        parts = [exact(row), jax.jacfwd(exact)(row)] + ([jax.jacfwd(jax.jacfwd(exact))(row)] if equation.order > 1 else [])
        at = [tuple(names.index(name) for name in key) for key in equation.keys]
        v = jnp.stack([parts[len(key)][(slice(None), *key)] for key in at])
        slopes = jax.jacfwd(lambda w: equation._at(row, w))(v)
        return equation._at(row, v), jnp.sum(jnp.abs(slopes * v), axis=(1, 2)) + jnp.abs(equation._at(row, 0 * v)), v

    try:
        x = problem.domain.points(FEW, 1)
        residual, size, v = (np.asarray(a) for a in jax.jit(jax.vmap(found))(jnp.asarray(x)))
    except Exception:  # NumPy in it, or without derivatives: nothing is known
        return ""
    known = np.isfinite(residual).all(1) & np.isfinite(size).all(1)
    if not known.any() or not np.abs(v[known]).max((0, 2)).all():  # such as between the nodes of a table
        return ""
    x, residual, size = x[known], np.abs(residual[known]), size[known]
    n, k = np.unravel_index(residual.argmax(), residual.shape)
    if np.sqrt(np.mean(residual[:, k] ** 2)) <= CLEAR * np.sqrt(np.mean(size[:, k] ** 2)):
        return ""
    return (
        f"exact does not solve the equation: at {place(names, x[n])} its residual is {residual[n, k]:.2g}, and the terms are of "
        f"size {size[n, k]:.2g}; errors are measured against exact all the same."
    )


@float64
def _single(problem: PDE) -> str:
    """Where numbers in single precision stand in the equation or its conditions."""
    names, equation = problem.domain.names, problem.equation
    row, v = jnp.zeros(len(names)), jnp.zeros((len(equation.keys), len(equation.fields)))
    asked = [("the residual", lambda: jax.make_jaxpr(equation._at)(row, v))]
    for c in problem.stated:
        g = lambda row, c=c: numbers_of(c.g(Coordinates(names, row)), "g", several=True)  # noqa: E731
        asked.append((type(c).__name__, lambda g=g: jax.make_jaxpr(g)(row)))
    for what, program in asked:
        with suppress(Exception):  # plain Python or NumPy has double precision
            if "f32[" in str(program()):
                return (
                    f"{what} has numbers in single precision (float32), and seven digits are all there are; make them float64: "
                    "by NumPy, or by jax.numpy inside of the function."
                )
    return ""


def _boxes(domain) -> list[Box]:
    parts = [getattr(domain, part) for part in "ab" if hasattr(domain, part)]
    return [domain] if isinstance(domain, Box) else [box for part in parts for box in _boxes(part)]


def _inward_corner(problem: PDE) -> str:
    """Where boxes make a corner of more than half a turn, around which u is not smooth as a rule."""
    domain, names = problem.domain, problem.domain.names
    if domain.convex or problem.equation.order < 2:
        return ""
    (center, spread), fine = domain.frame, domain.fine
    ends = [{end for box in _boxes(domain) for end in box.bounds.get(name, ())} if name != "t" else set() for name in names]
    place_of = [sorted(found | {middle}) for found, middle in zip(ends, center, strict=True)]
    at = np.array(list(islice(product(*place_of), MANY_CORNERS)))
    at = at[np.abs(domain.gap(at)) <= 1e-9 * spread.min()]
    around = np.random.default_rng(0).normal(size=(400, len(names))) * 1e-3 * fine
    for corner in at:
        if np.mean(domain.gap(corner + around) > 0) > 0.6:
            return (
                f"the domain has a corner that points inwards, at {place(names, corner)}: derivatives of u are infinite there, "
                "as a rule, so that the error is large around it, and estimates of it are too small."
            )
    return ""


@float64
def _jumping(problem: PDE) -> str:
    """Where the coefficient of a second derivative jumps along a coordinate of that derivative."""
    equation, names = problem.equation, problem.domain.names
    v = np.random.default_rng(0).normal(size=(len(equation.keys), len(equation.fields)))
    numbers = list(equation.parameters.values())
    one = jax.vmap(lambda row: jax.jacfwd(lambda w: equation._at(row, w, numbers))(jnp.asarray(v)))

    def coefficients(x: np.ndarray) -> np.ndarray:  # (n, rows, keys, fields)
        if equation.nonlinear:
            return np.asarray(one(jnp.asarray(x)))
        return equation._jacobian(x, np.zeros((len(x), len(equation.keys))))[:, None, :, None]

    lines = [(k, key, name) for k, key in enumerate(equation.keys) if len(key) == 2 for name in dict.fromkeys(key)]
    for (k, key, name), start in ((line, start) for line in lines for start in problem.domain.points(3, 1)):
        x = _jump_along(problem.domain, start, names.index(name), lambda x, k=k: coefficients(x)[:, :, k])
        if x is not None:
            u = equation.fields[0]
            return (
                f"the coefficient of {called(key)} jumps at {place(names, x)}: point by point the equation does not see what "
                f"holds across a jump. Where a flux K {u}.{name} is to be continuous, make it a function of its own: "
                f"lambda p, {u}, q: (q.value - K * {u}.{name}, q.{name})."
            )
    return ""


def _jump_along(domain, start: np.ndarray, i: int, values) -> np.ndarray | None:
    """Where a function of points jumps on the line through a point along coordinate i, by looking closer and closer."""
    (center, spread), x = domain.frame, np.repeat(start[None], NODES, 0)
    ends, size, n = (center[i] - spread[i], center[i] + spread[i]), 0.0, 0
    for _ in range(ROUNDS):
        x[:, i] = np.linspace(*ends, NODES)
        found = values(x).reshape(NODES, -1)
        apart = np.abs(np.diff(found, axis=0)).max(1)
        inside = domain.gap(x) >= 0
        apart = np.where(inside[1:] & inside[:-1] & np.isfinite(apart), apart, 0.0)
        n = int(apart.argmax())
        size = size or np.abs(found[inside & np.isfinite(found).all(1)]).max(initial=0.0)
        if apart[n] <= CLEAR * size:
            return None
        ends = (x[n, i], x[n + 1, i])
    outer = (center[i] - spread[i], center[i] + spread[i])  # where a coefficient may become infinite
    return None if ends[0] == outer[0] or ends[1] == outer[1] else x[n]


def _sound(rule, problem: PDE) -> str:
    """What a rule says, if it can be asked: no doubt is worth a problem that cannot be stated."""
    try:
        return rule(problem)
    except Exception:
        return ""


RULES = (_time_by_another_name, corners, _leaving, _backwards, _too_many, _not_periodic, _inward_corner, _jumping, _single)


def warn_of_doubts(problem, sigma: Activation, config: dict, model: str, stacklevel: int = 4) -> None:
    """Say them, and keep them in the configuration, for all that is shown of the run: with what the problem said of itself."""
    found = doubts(problem, sigma, config, model)
    for sentence in found if first_process() else ():
        warnings.warn(sentence, stacklevel=stacklevel)
    if kept := [sentence for sentence in (getattr(problem, "ill_posed", ""), *found) if sentence]:
        config["doubts"] = kept


def doubts(problem, sigma: Activation, config: dict, model: str) -> list[str]:
    """What is allowed, and probably not meant."""
    found = []  # what its conditions leave open, a problem says itself
    if model == "pm" and straight(config) and config["choice"] and not config.get("from_network"):
        own = "" if getattr(problem, "joint", "") else "; to minimise PM's own loss give method='gauss-newton' or 'alternating'"
        found.append(f"model='pm' is trained on the true loss here, since that is what method='auto' stands for{own}.")
    if isinstance(problem, PDE):
        found += [said for rule in RULES if (said := _sound(rule, problem))]
    if isinstance(problem, PDE) and sigma.name == "relu":
        found.append("relu has no continuous derivative, so no bound holds for a PDE; use activation='sin' or 'tanh'.")
    return found
