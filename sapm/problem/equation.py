"""Read a PDE from its residual: a Python function of one point and the derivatives of u there.

Tracing the residual shows which derivatives of u it uses. A linear residual has the form

    residual(p, u) = Σ_ij A_ij(p) ∂_i ∂_j u + Σ_i c_i(p) ∂_i u + c0(p) u - f(p)

Its coefficients are its slopes with respect to the derivatives of u, computed exactly by forward
mode, and -f is its value at u = 0. The residual is linear if the slopes do not depend on u. A
nonlinear residual is evaluated itself, on jets along the directions that its derivatives need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from inspect import signature
from itertools import combinations_with_replacement
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sapm.errors import LARGEST_SIZE, brief, nearest, one_by_one, shown, split
from sapm.numerics.jets import Forms, Orders, channel, polarised
from sapm.problem.domain import ARRAY_ATTRIBUTES, Coordinates
from sapm.problem.functions import (
    NEEDS_NUMBERS,
    UserCode,
    numbers_of,
    point_text,
    shared_program,
)
from sapm.scopes import float64

# what a `Solution` has; a function of a system is an attribute of it too
SOLUTION_ATTRIBUTES = (
    *("weights", "names", "sigma", "seed", "directions", "embedding", "parameters", "fields"),
    *("ansatz", "frame", "network_weights", "d", "outside", "to_torch", "to_onnx"),
)

Key = tuple[str, ...]  # () is u itself, ("x",) is ∂u/∂x, ("t", "x") is ∂²u/∂t∂x


def derivative_name(key: Key) -> str:
    """A derivative as a user writes it: "u.value", "u.x", "u.tx"."""
    return "u." + ("".join(key) if key else "value")


class Unknown:
    """u inside a residual: `u.value`, `u.x`, `u.xx`, `u.d("t", "x")`.

    Parameters
    ----------
    names : the coordinates.
    give : maps the key of a derivative to its value at the point.
    called : the name of the function, for errors.
    """

    def __init__(self, names: Sequence[str], give: Callable[[Key], Any], called: str = "u"):
        self._names = tuple(names)
        self._give = give
        self._called = called

    @property
    def value(self):
        """u itself at the point."""
        return self._give(())

    def d(self, *coordinates: str):
        """The derivative of u along these coordinates, in any order: ∂²u/∂t∂x for ("t", "x")."""
        for name in coordinates:
            if name not in self._names:
                asked = f"{self._called}.d({brief(name)}) asks for a derivative along {brief(name)}"
                raise ValueError(f"{asked}; {one_by_one(name, self._names)}")
        return self._give(tuple(sorted(coordinates, key=self._names.index)))

    def __repr__(self) -> str:
        return f"{self._called} itself"

    def _not_a_number(self, *_):
        u = self._called
        raise TypeError(
            f"{u} stands for a function; write {u}.value for its value, and {u}.{self._names[0]} "
            "for a derivative."
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = (
        __pow__
    ) = __rpow__ = _not_a_number
    __neg__ = __abs__ = __float__ = __call__ = __iter__ = __getitem__ = __array__ = _not_a_number

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        parts = split(name, self._names)
        if parts is None and name in ARRAY_ATTRIBUTES:
            self._not_a_number()
        if parts is None:
            written = [
                "value",
                *self._names,
                *("".join(pair) for pair in combinations_with_replacement(self._names, 2)),
            ]
            u = self._called
            raise ValueError(
                f"{u}.{shown(name)}: got {brief(name)}, expected value or a derivative along "
                f"the coordinates {', '.join(self._names)}; use {u}.value, "
                f"{', '.join(f'{u}.{n}' for n in self._names)} or "
                f'{u}.d("{self._names[0]}").'
                + (
                    ' For other coordinates, give the domain names=("x", "y").'
                    if self._names[0] == "x1"
                    else nearest(name, written)
                )
            )
        other = split(name, self._names, longest=False) or ()
        if sorted(parts) != sorted(other):
            readings = [f"d({', '.join(map(repr, reading))})" for reading in (parts, other)]
            raise ValueError(
                f"{self._called}.{name}: got two readings, {' and '.join(readings)}, expected one; "
                f"write the one that is meant: {self._called}.{readings[0]}."
            )
        return self.d(*parts)


def unknown_names(residual: Callable, coordinates: Sequence[str] = ()) -> tuple[str, ...]:
    """The names of the unknown functions: the arguments of residual(p, u, …) after the point.

    Parameters
    ----------
    residual : the function that the user gave.
    coordinates : the coordinates. They show whether the point was forgotten.
    """
    if not callable(residual):
        raise TypeError(
            f"residual is {brief(residual)}; give a function of the point and of u: lambda p, u: "
            "u.t - u.xx."
        )
    try:
        arguments = list(signature(residual).parameters.values())
    except (TypeError, ValueError):
        return ("u",)
    names = [
        a.name
        for a in arguments
        if a.kind in (a.POSITIONAL_ONLY, a.POSITIONAL_OR_KEYWORD) and a.default is a.empty
    ]
    named = [a.name for a in arguments if a.kind is a.KEYWORD_ONLY and a.default is a.empty]
    if named:
        raise TypeError(
            f"residual: got the keyword-only argument {named[0]}, expected the point and the "
            "unknown functions by position; write lambda p, u: …"
        )
    if len(names) < 2:
        raise TypeError(
            f"residual takes {len(names)} arguments; it must take the point and the unknown "
            "functions: lambda p, u: …, or lambda p, u, v: … for two functions."
        )
    if "self" in names:
        raise TypeError(
            f"residual takes ({', '.join(names)}), expected the point and the unknown functions; "
            "give the method of an object, which takes no self, or choose another name."
        )
    if names[0] == "u" or (names[0] in coordinates and {*names[1:]} & {*coordinates}):
        how = ", ".join(f"p.{name}" for name in coordinates)
        raise TypeError(
            f"residual takes ({', '.join(names)}); it must take the point, which has the "
            f"coordinates ({how}), and then the unknown functions: lambda p, u: …"
        )
    for name in names[1:]:
        if len(names) > 2 and (name in SOLUTION_ATTRIBUTES or name.startswith("_")):
            raise ValueError(
                f"residual: got a function named {name!r}, which is an attribute of every "
                "solution or hidden, expected another name; rename it, such as u or v."
            )
    return tuple(names[1:])


def _unused_parameters(equation: Equation, x: np.ndarray) -> list[str]:
    """The parameters on which the residual does not depend. This is tested at the points x, for
    random derivatives of u.
    """
    if not equation.parameters:
        return []
    v = jnp.asarray(
        np.random.default_rng(0).normal(size=(len(equation.keys), len(equation.fields)))
    )
    guesses = jnp.asarray(list(equation.parameters.values()))
    slopes = jax.vmap(lambda row: jax.jacfwd(lambda q: equation.at(row, v, list(q)))(guesses))(
        jnp.asarray(x)
    )
    return [
        name for i, name in enumerate(equation.parameters) if not np.any(np.asarray(slopes)[..., i])
    ]


@dataclass(eq=False)
class Equation:
    """A residual, and its properties as found by tracing.

    Parameters
    ----------
    names : the coordinates.
    residual : a function of a point and the unknown functions.
    parameters : unknown numbers with a first guess.
    fields : the unknown functions.
    keys : the derivatives that the residual uses.
    rows : the number of equations.
    traced : whether JAX can trace the residual as a function of p too, since it uses no NumPy and
        no `if` on p.
    nonlinear : the nonlinear term in words; "" for a linear residual. A residual with several
        fields or rows, with parameters, or of order 3 or more, is treated as nonlinear.
    subject : what the residual is, for errors.
    """

    names: tuple[str, ...]
    residual: Callable
    parameters: dict[str, float] = field(default_factory=dict)
    fields: tuple[str, ...] = ("u",)
    keys: list[Key] = field(default_factory=list)
    rows: int = 1
    traced: bool = True
    nonlinear: str = ""
    subject: str = "the residual"

    def __getstate__(self) -> dict:
        # The compiled function is left out. It is made again when it is needed.
        return {name: value for name, value in vars(self).items() if name != "function"}

    @property
    def order(self) -> int:
        """The highest order of the derivatives."""
        return max(len(key) for key in self.keys)

    @property
    def first_order_linear(self) -> bool:
        """Whether the equation is linear and of first order, so that it has characteristics."""
        return self.order == 1 and not self.nonlinear

    @property
    def channels(self) -> int:
        """The largest number of derivative channels that a sample can have."""
        if self.nonlinear:
            return sum(self.orders) if self.orders else len(self.directions) + len(self.forms)
        return 1 + len({name for key in self.keys if len(key) == 2 for name in key})

    @property
    def higher_term(self) -> str:
        """The term that is nonlinear, or else the first of order 2 or more, in words."""
        return self.nonlinear or derivative_name(
            next((key for key in self.keys if len(key) > 1), ())
        )

    def _give(self, row, numbers, derivative: Callable[[int, Key], Any]):
        """The residual at one point: (rows,).

        Parameters
        ----------
        row : (d,) the point.
        numbers : the parameters.
        derivative : maps (index of a field, key of a derivative) to the value of that derivative.
        """
        u = [
            Unknown(self.names, partial(derivative, i), name) for i, name in enumerate(self.fields)
        ]
        point = Coordinates(self.names, row, dict(zip(self.parameters, numbers, strict=True)))
        with UserCode():
            try:
                return numbers_of(self.residual(point, *u), self.subject, several=True)
            except AttributeError as error:
                if isinstance(error.obj, (float, jax.Array)) and split(str(error.name), self.names):
                    function = self.fields[0]
                    name = self.names[-1]
                    raise ValueError(
                        f"residual: got .{error.name} of a number, such as a coordinate or a "
                        f"derivative, expected it of {function}; write a second derivative as "
                        f'{function}.{name}{name} or {function}.d("{name}", "{name}").'
                    ) from None
                raise
            except TypeError as error:
                # jnp.sin(u), for example, raises a TypeError that names the class of u
                if f"{Unknown.__module__}.{Unknown.__qualname__}" in str(error):
                    u[0]._not_a_number()
                raise

    def at(self, row, v, numbers=None):
        """The residual at one point, (rows,).

        Parameters
        ----------
        row : (d,) the point.
        v : (keys, fields) the derivatives of the unknown functions.
        numbers : the parameters; None: their first guesses.
        """

        def derivative(i: int, key: Key):
            if key not in self.keys:
                raise ValueError(
                    f"{self.subject} uses {derivative_name(key)} at some points but not at those "
                    "probed; use jnp.where instead of `if`."
                )
            return v[self.keys.index(key)][i]

        return self._give(row, self.parameters.values() if numbers is None else numbers, derivative)

    def _scalar_at(self, row, v):
        """The residual of one field and one equation, a number, for the derivatives v (keys,)."""
        return self.at(row, v[:, None])[0]

    def _record(self, row, number) -> Any:
        """The residual, where every derivative has the value `number`. The derivatives that the
        residual uses are added to `keys`.
        """

        def derivative(i: int, key: Key):
            if key not in self.keys:
                self.keys.append(key)
            return number

        return self._give(
            row, [number * 0 + guess for guess in self.parameters.values()], derivative
        )

    def _trace(self, x: np.ndarray) -> None:
        """Find the number of rows and the derivatives that the residual uses, at the points x."""
        with np.errstate(all="ignore"):
            # First without JAX, since errors in the user's function are clearer then.
            self.rows = len(self._record(x[0], 0.5))
        try:
            jax.eval_shape(self._record, jnp.zeros(len(self.names)), jnp.zeros(()))
        except NEEDS_NUMBERS:
            self.traced = False
            for row in x:
                self._record(row, 0.5)

    @staticmethod
    @float64
    def on_faces(
        residual: Callable,
        names: Sequence[str],
        x: np.ndarray,
        fields: tuple[str, ...],
        parameters: dict[str, float],
        condition: str,
    ) -> Equation:
        """The residual of a condition on faces, linear or not. It is evaluated on jets.

        Parameters
        ----------
        residual : a function of the point and of all unknown functions.
        names : the coordinates.
        x : (n, d) points on the faces.
        fields, parameters : those of the PDE.
        condition : the name of the condition, for errors.
        """
        equation = Equation(tuple(names), residual, parameters, fields)
        equation.subject = f"the residual of {condition}"
        equation.nonlinear = f"an equation on a face ({condition})"
        equation._trace(x)
        if not equation.keys:
            raise ValueError(
                f"{equation.subject} uses neither u nor a derivative of it; write for example "
                "u.x + u.value**4."
            )
        if not equation.traced:
            raise ValueError(
                f"{equation.subject} uses NumPy or `if`; use jax.numpy and jnp.where there."
            )
        if not any(equation.keys):
            equation.keys.append((equation.names[0],))  # a jet needs at least one direction
        return equation

    @staticmethod
    @float64
    def read(
        residual: Callable,
        names: Sequence[str],
        x: np.ndarray,
        parameters: dict[str, float] | None = None,
    ) -> Equation:
        """The equation of a residual; whether it is linear is tested at the points x.

        Parameters
        ----------
        residual : a function of a point and the unknown functions.
        names : the coordinates.
        x : (n, d) points of the domain.
        parameters : unknown numbers with a first guess.
        """
        equation = Equation(
            tuple(names), residual, parameters or {}, unknown_names(residual, names)
        )
        equation._trace(x)
        if not any(equation.keys):
            raise ValueError(
                "the residual uses no derivative of u; a PDE needs at least one, such as u.x."
            )
        try:
            jax.jacfwd(equation.at, argnums=1)(
                x[0], jnp.zeros((len(equation.keys), len(equation.fields)))
            )
        except NEEDS_NUMBERS:
            raise ValueError(
                "the residual uses NumPy or `if` on u or its derivatives; use jax.numpy there."
            ) from None
        several = [
            f"{len(equation.fields)} unknown functions" * (len(equation.fields) > 1),
            "unknown parameters" * bool(equation.parameters),
            f"{equation.rows} equations" * (equation.rows > 1),
            derivative_name(max(equation.keys, key=len)) * (equation.order > 2),
        ]
        for name in _unused_parameters(equation, x):
            raise ValueError(
                f"parameters has {brief(name)}, and the residual does not depend on it; use it "
                f"as p.{name}, or leave it out."
            )
        if any(several):
            equation.nonlinear = next(filter(None, several))
            if not equation.traced:
                raise ValueError(
                    f"the residual has {equation.nonlinear}, and NumPy or `if` on p; it needs "
                    "jax.numpy and jnp.where."
                )
            return equation

        def at(v):
            return equation.jacobian(x, np.broadcast_to(v, (len(x), len(equation.keys))))

        # The residual is linear if its slopes are the same for all v: for v = 0, for one derivative
        # of each kind alone, and for all derivatives at random.
        c = at(np.zeros(len(equation.keys)))
        rng = np.random.default_rng(0)
        k = len(equation.keys)
        alone = [
            (size * np.eye(k)[j], other)
            for j, other in enumerate(equation.keys)
            for size in (0.7, -1.3, rng.uniform(40, 80))
        ]
        for v, other in [*alone, *((rng.normal(size=k), None) for _ in range(3))]:
            slopes = at(v)
            with np.errstate(invalid="ignore"):
                size = np.maximum(np.abs(c), np.abs(slopes))
                same = np.abs(slopes - c) <= 1e-10 * size
                same |= ~(np.isfinite(slopes) | np.isfinite(c))
            if not same.all():
                changed = equation.keys[int((~same).any(0).argmax())]
                equation.nonlinear = (
                    f"{derivative_name(changed)}·{derivative_name(other)}"
                    if other not in (changed, None)
                    else f"a nonlinear function of {derivative_name(changed)}"
                )
                break
        if equation.nonlinear and not equation.traced:
            raise ValueError(
                f"the residual contains {equation.nonlinear}, and NumPy or `if`; a nonlinear one "
                "needs jax.numpy and jnp.where."
            )
        if not equation.nonlinear and not any(
            key and np.any(column != 0) for key, column in zip(equation.keys, c.T, strict=True)
        ):
            raise ValueError(
                "the residual does not depend on u: got the coefficient 0 for every derivative, "
                "expected one that is not 0; write the difference of both sides, u.t - u.xx, not "
                "the comparison u.t == u.xx."
            )
        return equation

    def jacobian(self, x: np.ndarray, v: np.ndarray) -> np.ndarray:
        """The slopes of the residual with respect to the derivatives of u, (n, keys).

        Parameters
        ----------
        x : (n, d) points.
        v : (n, keys) the derivatives of u at which the slopes are taken.
        """
        slopes = jax.jacfwd(self._scalar_at, argnums=1)
        if self.traced:
            return np.asarray(jax.vmap(slopes)(jnp.asarray(x), jnp.asarray(v)))
        rows = zip(x, v, strict=True)
        return np.stack([np.asarray(slopes(row, jnp.asarray(w))) for row, w in rows])

    def _values(self, x: np.ndarray, v: np.ndarray) -> np.ndarray:
        """The residual at the points x, (n,), for the derivatives v (n, keys)."""
        if self.traced:
            return np.asarray(jax.vmap(self._scalar_at)(jnp.asarray(x), jnp.asarray(v)))
        return np.array([float(self._scalar_at(row, w)) for row, w in zip(x, v, strict=True)])

    @float64
    def coefficients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The coefficients A (n, d, d), c (n, d), c0 (n,) and f (n,) of a linear residual.

        Parameters
        ----------
        x : (n, d) points.
        """
        x = np.asarray(x, float)
        n, d = x.shape
        zero = np.zeros((n, len(self.keys)))
        partial = self.jacobian(x, zero)
        f = -self._values(x, zero)
        A = np.zeros((n, d, d))
        c = np.zeros((n, d))
        c0 = np.zeros(n)
        for key, column in zip(self.keys, partial.T, strict=True):
            place_in = [self.names.index(name) for name in key]
            if len(key) == 2:
                i, j = place_in
                A[:, i, j] += column / 2
                A[:, j, i] += column / 2
            elif key:
                c[:, place_in[0]] += column
            else:
                c0 += column
        bad = ~((np.abs(partial) <= LARGEST_SIZE).all(1) & (np.abs(f) <= LARGEST_SIZE))
        if bad.any():
            with UserCode():
                raise ValueError(
                    f"the residual is not finite at {point_text(self.names, x[bad.argmax()])}, or "
                    f"larger than {LARGEST_SIZE:g}; avoid a quotient by 0 and the root of a "
                    "negative number there. If the residual is large, use other units."
                )
        v = np.random.default_rng(1).normal(size=zero.shape)
        parts = np.concatenate([partial * v, -f[:, None]], axis=1)
        wrong = ~(np.abs(self._values(x, v) - parts.sum(1)) <= 1e-10 * np.abs(parts).sum(1))
        if wrong.any():
            where = point_text(self.names, x[wrong.argmax()])
            with UserCode():
                raise ValueError(
                    f"the residual is linear at the points probed but not at {where}; if it has a "
                    "step in u (`if` or jnp.where), replace the step by a smooth function, such as "
                    "jax.nn.sigmoid((u.value - 0.5) / 0.02). If a nonlinear term is 0 at most "
                    "points, make it small there, but not 0."
                )
        return A, c, c0, f

    def keys_of_fields(self, x: np.ndarray) -> list[list[tuple[str, ...]]]:
        """For every field, its derivatives that the residual contains. This is tested at the points
        x, (n, d).
        """
        used = np.any(self.slopes(x) != 0, axis=(0, 1))
        return [
            [key for key, on in zip(self.keys, used[:, i], strict=True) if on]
            for i in range(len(self.fields))
        ]

    @float64
    def slopes(self, x: np.ndarray) -> np.ndarray:
        """The slopes of every equation with respect to every derivative of every field:
        (n, rows, keys, fields).

        They are taken at the points x, (n, d), for random derivatives and parameters.
        """
        sizes = ((len(x), len(self.keys), len(self.fields)), (len(x), len(self.parameters)))
        v, numbers = (jnp.asarray(np.random.default_rng(0).normal(size=size)) for size in sizes)

        def at(row, w, q):
            return jax.jacfwd(lambda w: self.at(row, w, list(q)))(w)

        return np.asarray(jax.vmap(at)(jnp.asarray(x), v, numbers))

    @float64
    def balancing_sizes(self, x: np.ndarray, spread: np.ndarray, size: float) -> np.ndarray:
        """The size of every parameter at which the terms that contain it are as large as the other
        terms, where the other parameters are as guessed: (q,). NaN where this is not known.

        Parameters
        ----------
        x : (n, d) points.
        spread : (d,) half the widths of the domain.
        size : of u. The sizes are those for a random u of this size, whose derivatives with respect
            to x / spread are of this size as well.
        """
        of_key = [np.prod([spread[self.names.index(name)] for name in key]) for key in self.keys]
        shape = (len(x), len(self.keys), len(self.fields))
        v = size * np.random.default_rng(0).normal(size=shape) / np.array(of_key)[:, None]
        guesses = jnp.array(list(self.parameters.values()), float)
        sizes = np.full(len(guesses), np.nan)
        for i in range(len(guesses)):

            def at(row, w, i=i):
                def of_parameter(q):
                    return self.at(row, w, list(guesses.at[i].set(q)))

                return jax.jvp(of_parameter, (0.0,), (1.0,))

            parts = jax.vmap(at)(jnp.asarray(x), jnp.asarray(v))
            with np.errstate(all="ignore"):
                rest, slope = (np.sqrt(np.mean(np.square(part), axis=0)) for part in parts)
                of_row = rest / slope
            known = of_row[np.isfinite(of_row) & (of_row > 0)]
            sizes[i] = known.min(initial=np.inf) if known.size else np.nan
        return sizes

    def first_order_form(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The coefficients c (n, d) of the first derivatives, and the right-hand side f (n,), of a
        linear residual at the points x, (n, d).
        """
        _, c, _, f = self.coefficients(x)
        return c, f

    def pointwise(self) -> Callable[[np.ndarray], np.ndarray]:
        """The coefficients of a linear residual of first order, as a function of one point.

        The function maps a point (d,) to (c_1, …, c_d, c0, f). It is compiled, for many calls.
        """
        d = len(self.names)
        where = [self.names.index(key[0]) if key else d for key in self.keys]
        if not self.traced:

            def slow(row):
                zero = np.zeros(len(self.keys))
                out = np.zeros(d + 2)
                out[-1] = -float(self._scalar_at(row, zero))
                for k, i in enumerate(where):
                    out[i] = float(self._scalar_at(row, np.eye(len(self.keys))[k])) + out[-1]
                return out

            return slow

        @jax.jit
        def quick(row):
            zero = jnp.zeros(len(self.keys))
            value = self._scalar_at(row, zero)
            c = jax.jacfwd(self._scalar_at, argnums=1)(row, zero)
            return jnp.zeros(d + 2).at[-1].set(-value).at[jnp.array(where)].set(c)

        if jax.default_backend() != "cpu":  # a GPU is slow for one point at a time
            with suppress(RuntimeError):
                near = jax.local_devices(backend="cpu")[0]
                return lambda row: np.asarray(quick(jax.device_put(row, near)))
        return lambda row: np.asarray(quick(row))

    # ---------------------------------------------------------------- the residual of a jet

    @cached_property
    def directions(self) -> list[tuple[int, ...]]:
        """The directions along which a nonlinear residual needs derivatives, as integer vectors.

        Up to order 2: the coordinate directions e_i, then e_i + e_j for each mixed derivative
        ∂_i ∂_j. For a higher order: those that `polarised` needs.
        """
        d = len(self.names)
        if self.order > 2:
            return sorted({v for key in self.keys if key for v in self._along(key)}, reverse=True)

        def vector(coordinates: Iterable[int]) -> tuple[int, ...]:
            return tuple(int(i in coordinates) for i in range(d))

        indices = [tuple(self.names.index(name) for name in key) for key in self.keys]
        alone = sorted({i for key in indices for i in key})
        mixed = sorted({key for key in indices if len(set(key)) == 2})
        return [vector((i,)) for i in alone] + [vector(key) for key in mixed]

    def _along(self, key: Key) -> dict[tuple[int, ...], float]:
        """A derivative as a weighted sum of derivatives of the same order along directions."""
        return polarised(tuple(key.count(name) for name in self.names))

    @property
    def vectors(self) -> np.ndarray:
        """The directions as rows."""
        return np.array(self.directions, float)

    @cached_property
    def forms(self) -> Forms:
        """The second-order channels of an equation of order 2: u.xx from ∂_x, and 2 u.xy from
        ∂_{x+y}, ∂_x and ∂_y.
        """
        if self.order > 2:
            return ()
        forms = []
        for key in self.keys:
            if len(key) == 2:
                i, j = (self.names.index(name) for name in key)
                unit = np.eye(len(self.names), dtype=int)
                signs = (
                    {tuple(unit[i]): 1}
                    if i == j
                    else {tuple(unit[i] + unit[j]): 1, tuple(unit[i]): -1, tuple(unit[j]): -1}
                )
                forms.append(tuple(signs.get(direction, 0) for direction in self.directions))
        return tuple(forms)

    @cached_property
    def orders(self) -> Orders:
        """The highest order along each direction, for an equation of order 3 or more; else ()."""
        if self.order <= 2:
            return ()
        return tuple(
            max(len(key) for key in self.keys if key and v in self._along(key))
            for v in self.directions
        )

    @cached_property
    def function(self) -> Callable:
        """The residual at one point as a function of (x, outputs, channels of all outputs).

        The last outputs are the parameters. Equal equations share one function object, so that a
        program that was compiled for one of them serves the others too.
        """
        fields = len(self.fields)
        pick = self._picked_by_order if self.orders else self._picked

        def of_jet(row, value, channels):
            derivatives = [
                pick(key, channels[:, :fields]) if key else value[:fields] for key in self.keys
            ]
            return self.at(row, derivatives, value[fields:])

        outputs = fields + len(self.parameters)
        return shared_program(of_jet, (len(self.names),), (outputs,), (self.channels, outputs))

    def _picked(self, key: Key, channels):
        """A derivative of order 1 or 2 from the channels of the fields."""
        indices = [self.names.index(name) for name in key]
        if len(key) == 1:
            unit = tuple(int(i == indices[0]) for i in range(len(self.names)))
            return channels[self.directions.index(unit)]
        pairs: list[Key] = [key for key in self.keys if len(key) == 2]
        twice = 2 if key[0] != key[1] else 1
        return channels[len(self.directions) + pairs.index(key)] / twice

    def _picked_by_order(self, key: Key, channels):
        """A derivative of any order from the channels of the fields."""
        return sum(
            weight * channels[channel(self.orders, self.directions.index(v), len(key))]
            for v, weight in self._along(key).items()
        )
