"""Read a PDE off its residual: a Python function of one point and the derivatives of u there.

Tracing shows which derivatives it uses. The residual is linear when its derivatives with respect to them do not depend on them;
these derivatives (exact, by forward mode) are the coefficients, and minus the residual at u = 0 is the right side:

    residual(p, u) = Σ_ij A_ij(p) ∂_i ∂_j u + Σ_i c_i(p) ∂_i u + c0(p) u - f(p)

A nonlinear one is kept as it is, with the directions that its derivatives are taken along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sapm.domain import Coordinates
from sapm.jet import float64
from sapm.names import MOST, brief, split
from sapm.pointwise import NEEDS_NUMBERS, known, numbers_of, place
from sapm.unknown import Key, Unknown, called, unknowns


def _unused(equation: Equation, x: np.ndarray) -> list[str]:
    """Parameters that change nothing at the points x, for some numbers in the place of the derivatives."""
    if not equation.parameters:
        return []
    v = jnp.asarray(np.random.default_rng(0).normal(size=(len(equation.keys), len(equation.fields))))
    guesses = jnp.asarray(list(equation.parameters.values()))
    slopes = jax.vmap(lambda row: jax.jacfwd(lambda q: equation._at(row, v, list(q)))(guesses))(jnp.asarray(x))
    return [name for i, name in enumerate(equation.parameters) if not np.any(np.asarray(slopes)[..., i])]


@dataclass(eq=False)
class Equation:
    """A residual over named coordinates with what tracing has shown of it. `nonlinear` says in which term; "" if it is linear.

    `fields`: the functions to find. `parameters`: numbers to find beside them, with a first guess. A residual with several
    fields, parameters or rows goes the way of nonlinear ones, whatever it is.
    """

    names: tuple[str, ...]
    residual: Callable
    parameters: dict[str, float] = field(default_factory=dict)
    fields: tuple[str, ...] = ("u",)
    keys: list[Key] = field(default_factory=list)
    rows: int = 1
    traced: bool = True
    nonlinear: str = ""

    def __getstate__(self) -> dict:
        return {name: value for name, value in vars(self).items() if name != "function"}  # a program, which is made anew

    @property
    def order(self) -> int:
        return max(len(key) for key in self.keys)

    @property
    def first_order_linear(self) -> bool:
        """Whether it has characteristics to follow."""
        return self.order == 1 and not self.nonlinear

    @property
    def channels(self) -> int:
        """Tangents and second-order channels of a sample, at most."""
        if self.nonlinear:
            return len(self.directions) + len(self.forms)
        return 1 + len({name for key in self.keys if len(key) == 2 for name in key})

    @property
    def higher(self) -> str:
        """The term that makes it more than first order and linear, in words."""
        return self.nonlinear or called(next((key for key in self.keys if len(key) > 1), ()))

    def _give(self, row, numbers, found: Callable[[int, Key], Any]):
        """The residual at one point: (rows,). `found` supplies a derivative of a field, `numbers` are the parameters."""
        u = [Unknown(self.names, partial(found, i), name) for i, name in enumerate(self.fields)]
        point = Coordinates(self.names, row, dict(zip(self.parameters, numbers, strict=True)))
        try:
            return numbers_of(self.residual(point, *u), "the residual", several=True)
        except AttributeError as error:
            if isinstance(error.obj, (float, jax.Array)) and split(str(error.name), self.names):
                u, *_, name = (self.fields[0], *self.names)
                raise ValueError(
                    f"{error.name!r} was asked of a number, such as a coordinate or a derivative; a second derivative is written "
                    f'in one: {u}.{name}{name}, or {u}.d("{name}", "{name}").'
                ) from None
            raise
        except TypeError as error:
            if f"{Unknown.__module__}.{Unknown.__qualname__}" in str(error):  # what jnp.sin(u) says
                u[0]._not_a_number()
            raise

    def _at(self, row, v, numbers=None):
        """The residual at one point, with v (derivatives in `keys`, fields) for them: (rows,)."""

        def found(i: int, key: Key):
            if key not in self.keys:
                raise ValueError(
                    f"the residual uses {called(key)} at some points but not at those probed; use jnp.where instead of `if`."
                )
            return v[self.keys.index(key)][i]

        return self._give(row, self.parameters.values() if numbers is None else numbers, found)

    def _one(self, row, v):
        """The same for one field and one row: v (derivatives,) → a number."""
        return self._at(row, v[:, None])[0]

    def _record(self, row, number) -> Any:
        def found(i: int, key: Key):
            if key not in self.keys:
                self.keys.append(key)
            return number

        return self._give(row, [number * 0 + guess for guess in self.parameters.values()], found)

    @staticmethod
    @float64
    def read(residual: Callable, names: Sequence[str], x: np.ndarray, parameters: dict[str, float] | None = None) -> Equation:
        """Trace the residual, find out at the points x whether it is linear, and refuse orders above 2."""
        found = Equation(tuple(names), residual, parameters or {}, unknowns(residual, names))
        with np.errstate(all="ignore"):
            found.rows = len(found._record(x[0], 0.5))  # outside JAX first, where a mistake is reported as it is
        try:
            jax.eval_shape(found._record, jnp.zeros(len(names)), jnp.zeros(()))
        except NEEDS_NUMBERS:
            found.traced = False
            for row in x:
                found._record(row, 0.5)
        if not any(found.keys):
            raise ValueError("the residual uses no derivative of u; a PDE needs at least one, such as u.x.")
        for key in found.keys:
            if len(key) > 2:
                raise ValueError(
                    f"the residual contains {called(key)}, a derivative of order {len(key)}, and the highest here is 2; "
                    "write it as a system, with another unknown function for a derivative."
                )
        try:
            jax.jacfwd(found._at, argnums=1)(x[0], jnp.zeros((len(found.keys), len(found.fields))))
        except NEEDS_NUMBERS:
            raise ValueError("the residual uses NumPy or `if` on u or its derivatives; use jax.numpy there.") from None
        several = [
            f"{len(found.fields)} unknown functions" * (len(found.fields) > 1),
            "unknown parameters" * bool(found.parameters),
            f"{found.rows} equations" * (found.rows > 1),
        ]
        for name in _unused(found, x):
            raise ValueError(
                f"parameters has {brief(name)}, and the residual does not depend on it; use it as p.{name}, or leave it out."
            )
        if any(several):
            found.nonlinear = next(filter(None, several))
            if not found.traced:
                raise ValueError(f"the residual has {found.nonlinear}, and NumPy or `if` on p; it needs jax.numpy and jnp.where.")
            return found
        at = lambda v: found._jacobian(x, np.broadcast_to(v, (len(x), len(found.keys))))  # noqa: E731
        c = at(np.zeros(len(found.keys)))
        rng = np.random.default_rng(0)
        k = len(found.keys)
        alone = [(size * np.eye(k)[j], other) for j, other in enumerate(found.keys) for size in (0.7, -1.3, rng.uniform(40, 80))]
        for v, other in [*alone, *((rng.normal(size=k), None) for _ in range(3))]:
            now = at(v)
            with np.errstate(invalid="ignore"):
                same = (np.abs(now - c) <= 1e-10 * np.maximum(np.abs(c), np.abs(now))) | ~(np.isfinite(now) | np.isfinite(c))
            if not same.all():
                mine = found.keys[int((~same).any(0).argmax())]
                found.nonlinear = (
                    f"{called(mine)}·{called(other)}" if other not in (mine, None) else f"a nonlinear function of {called(mine)}"
                )
                break
        if found.nonlinear and not found.traced:
            raise ValueError(
                f"the residual contains {found.nonlinear}, and NumPy or `if`; a nonlinear one needs jax.numpy and jnp.where."
            )
        if not found.nonlinear and not any(key and np.any(column != 0) for key, column in zip(found.keys, c.T, strict=True)):
            raise ValueError(
                "the residual does not depend on u: all its derivatives have the coefficient 0. It is what is to be 0: "
                "u.t - u.xx, and not u.t == u.xx."
            )
        return found

    def _jacobian(self, x: np.ndarray, v: np.ndarray) -> np.ndarray:
        one = jax.jacfwd(self._one, argnums=1)
        if self.traced:
            return np.asarray(jax.vmap(one)(jnp.asarray(x), jnp.asarray(v)))
        return np.stack([np.asarray(one(row, jnp.asarray(w))) for row, w in zip(x, v, strict=True)])

    def _values(self, x: np.ndarray, v: np.ndarray) -> np.ndarray:
        if self.traced:
            return np.asarray(jax.vmap(self._one)(jnp.asarray(x), jnp.asarray(v)))
        return np.array([float(self._one(row, w)) for row, w in zip(x, v, strict=True)])

    @float64
    def coefficients(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """A (n, d, d), c (n, d), c0 (n,) and f (n,) of a linear residual at the points x."""
        x = np.asarray(x, float)
        (n, d), zero = x.shape, np.zeros((len(x), len(self.keys)))
        partial, f = self._jacobian(x, zero), -self._values(x, zero)
        A, c, c0 = np.zeros((n, d, d)), np.zeros((n, d)), np.zeros(n)
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
        bad = ~((np.abs(partial) <= MOST).all(1) & (np.abs(f) <= MOST))
        if bad.any():
            raise ValueError(
                f"the residual is not finite at {place(self.names, x[bad.argmax()])}, or larger than {MOST:g}; its coefficients "
                "must be numbers: is it a quotient by 0, or the root of something negative? If it is large, use other units."
            )
        v = np.random.default_rng(1).normal(size=zero.shape)
        parts = np.concatenate([partial * v, -f[:, None]], axis=1)
        wrong = ~(np.abs(self._values(x, v) - parts.sum(1)) <= 1e-10 * np.abs(parts).sum(1))
        if wrong.any():
            where = place(self.names, x[wrong.argmax()])
            raise ValueError(
                f"the residual is linear at the points probed but not at {where}: is it a step in u, by `if` or jnp.where? "
                "Smooth it, as jax.nn.sigmoid((u.value - 0.5) / 0.02) does. A term that is 0 at most points must be small there."
            )
        return A, c, c0, f

    def keys_of_fields(self, x: np.ndarray) -> list[list[tuple[str, ...]]]:
        """For every function, which of its derivatives the residual contains."""
        used = np.any(self.slopes(x) != 0, axis=(0, 1))
        return [[key for key, on in zip(self.keys, used[:, i], strict=True) if on] for i in range(len(self.fields))]

    @float64
    def slopes(self, x: np.ndarray) -> np.ndarray:
        """By how much every equation changes with every derivative of every function (n, rows, keys, fields), at the points x for
        some numbers in their place and in that of the parameters."""
        sizes = ((len(x), len(self.keys), len(self.fields)), (len(x), len(self.parameters)))
        v, numbers = (jnp.asarray(np.random.default_rng(0).normal(size=size)) for size in sizes)
        at = lambda row, w, q: jax.jacfwd(lambda w: self._at(row, w, list(q)))(w)  # noqa: E731
        return np.asarray(jax.vmap(at)(jnp.asarray(x), v, numbers))

    def form(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The coefficients c (n, d) of first derivatives, and f (n,)."""
        _, c, _, f = self.coefficients(x)
        return c, f

    def pointwise(self) -> Callable[[np.ndarray], np.ndarray]:
        """row → (c_1, …, c_d, c0, f) of a first-order linear residual, quick to call again and again."""
        d = len(self.names)
        where = [self.names.index(key[0]) if key else d for key in self.keys]
        if not self.traced:

            def slow(row):
                zero, out = np.zeros(len(self.keys)), np.zeros(d + 2)
                out[-1] = -float(self._one(row, zero))
                for k, i in enumerate(where):
                    out[i] = float(self._one(row, np.eye(len(self.keys))[k])) + out[-1]
                return out

            return slow

        @jax.jit
        def quick(row):
            zero = jnp.zeros(len(self.keys))
            value, c = self._one(row, zero), jax.jacfwd(self._one, argnums=1)(row, zero)
            return jnp.zeros(d + 2).at[-1].set(-value).at[jnp.array(where)].set(c)

        if jax.default_backend() != "cpu":  # one point at a time is no work for a GPU
            with suppress(RuntimeError):
                near = jax.local_devices(backend="cpu")[0]
                return lambda row: np.asarray(quick(jax.device_put(row, near)))
        return lambda row: np.asarray(quick(row))

    # ---------------------------------------------------------------- the residual as a function of a jet

    @cached_property
    def directions(self) -> list[tuple[int, ...]]:
        """What the tangents of a nonlinear residual are along: (i,) is coordinate i; (i, j) is both at once, for ∂_i ∂_j."""
        found = [tuple(self.names.index(name) for name in key) for key in self.keys]
        alone = {(i,) for key in found for i in key}
        return sorted(alone) + sorted({key for key in found if len(set(key)) == 2})

    @property
    def vectors(self) -> np.ndarray:
        """The directions as rows."""
        return np.array([np.eye(len(self.names))[list(indices)].sum(0) for indices in self.directions])

    @cached_property
    def forms(self) -> tuple[tuple[int, ...], ...]:
        """One second-order channel for each second derivative: u.xx from ∂_x, and 2 u.xy from ∂_{x+y}, ∂_x and ∂_y."""
        found = []
        for key in self.keys:
            if len(key) == 2:
                i, j = (self.names.index(name) for name in key)
                signs: dict[tuple[int, ...], int] = {(i,): 1} if i == j else {(i, j): 1, (i,): -1, (j,): -1}
                found.append(tuple(signs.get(direction, 0) for direction in self.directions))
        return tuple(found)

    @cached_property
    def function(self) -> Callable:
        """(x, outputs, channels of all outputs) → the residual at one point; the last outputs are the parameters.

        The same object for the same equation, also where it is stated anew, so that programs compiled for it are found.
        """
        second: list[Key] = [key for key in self.keys if len(key) == 2]
        fields = len(self.fields)

        def of_jet(row, value, channels):
            def pick(key: Key):
                if not key:
                    return value[:fields]
                if len(key) == 1:
                    return channels[self.directions.index((self.names.index(key[0]),)), :fields]
                mixed = key[0] != key[1]
                return channels[len(self.directions) + second.index(key), :fields] / (2 if mixed else 1)

            return self._at(row, [pick(key) for key in self.keys], value[fields:])

        outputs = fields + len(self.parameters)
        return known(of_jet, (len(self.names),), (outputs,), (len(self.directions) + len(self.forms), outputs))
