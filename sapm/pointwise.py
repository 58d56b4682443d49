"""Functions that a user writes for one point, at many; and points that a user gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from inspect import signature
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun

from sapm.domain import Coordinates, NotANumber
from sapm.jet import float64
from sapm.names import LEAST, MOST, brief

NEEDS_NUMBERS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
)  # what a function that uses `if` or plain NumPy raises when it is traced


def function_of_point(what: str, given) -> Callable:
    """A function that can be called with a point."""
    if not callable(given):
        raise TypeError(f"{what} is {brief(given)}; give a function of one point, such as lambda p: jnp.sin(p.x).")
    try:
        found = signature(given)
    except (TypeError, ValueError):  # some built-in functions have none
        found = None
    try:
        if found is not None:
            found.bind(None)
    except TypeError:
        own = " For a condition that depends on u see docs/interface.md." if "datum" in what else ""
        raise TypeError(f"{what} takes {found}; it must take one argument, the point: lambda p: ….{own}") from None
    return given


def numbers_of(value, what: str, several: bool = False):
    """What a user's function gave for one point, as an array (m,) of real numbers, m = 1 unless `several`; or a sentence."""
    wanted = "a number, or several," if several else "one number"
    if value is None:
        raise TypeError(f"{what} returned None; it must return {wanted} for one point (is a `return` missing?).")
    try:
        value = jnp.asarray(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{what} returned {brief(value)}; it must return {wanted} for one point.") from None
    if jnp.iscomplexobj(value):
        raise TypeError(f"{what} returned complex numbers; they must be real: take real and imaginary parts apart.")
    if value.size == 0 or (value.ndim > 1 if several else value.size != 1):
        raise ValueError(f"{what} returned shape {value.shape}; it must return {wanted} for one point (it is applied to each).")
    return value.reshape(-1).astype(jnp.float64)


@float64
def evaluate(
    function: Callable, what: str, names: Sequence[str], x: np.ndarray, several: bool = False, finite: bool = True
) -> np.ndarray:
    """The user's function of one point at every row of x: (n, outputs). Vectorised where it can be traced, else row by row."""
    one = lambda row: numbers_of(function(Coordinates(names, row)), what, several)  # noqa: E731
    x = np.asarray(x, float)
    with np.errstate(all="ignore"):
        try:
            one(x[0])  # outside JAX first, where a mistake is reported as it is
        except NotANumber as error:
            raise ValueError(str(error)) from None  # without what JAX adds
        try:
            values = np.asarray(jax.vmap(one)(jnp.asarray(x)))
        except NEEDS_NUMBERS:
            values = np.stack([np.asarray(one(row)) for row in x])
    bad = ~(np.abs(values) <= MOST).all(1)
    if finite and bad.any():
        is_what = "too large" if np.isfinite(values[bad.argmax()]).all() else "not finite"
        got = f"{brief(values[bad.argmax()].tolist())}; it must be at most {MOST:g} in size"
        raise ValueError(f"{what} is {is_what} at {place(names, x[bad.argmax()])}: got {got}.")
    return values


def table(name: str, given, columns: int | None = None) -> np.ndarray:
    """A finite array (n, columns) of float64; a vector is one column."""
    unmasked(name, given)
    try:
        x = np.asarray(given)
        if x.dtype.kind == "O" and not all(np.isrealobj(v) and not isinstance(v, (str, bytes)) for v in x.flat):
            raise TypeError
        x = x.astype(float) if x.dtype.kind in "biufO" else x
    except (TypeError, ValueError, OverflowError):
        x = np.asarray("not numbers")
    if x.dtype.kind != "f":
        raise TypeError(f"{name} must hold real numbers, as many in every row; got {type(given).__name__}: {brief(given)}.")
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(f"{name} has shape {np.shape(given)}; give one row per sample, (n, columns), with n ≥ 1.")
    if columns is not None and x.shape[1] != columns:
        raise ValueError(f"{name} has {x.shape[1]} column{'s' * (x.shape[1] > 1)}; {columns} are wanted.")
    if not np.isfinite(x).all():
        i, j = np.argwhere(~np.isfinite(x))[0]
        raise ValueError(f"{name} has {x[i, j]} in row {i}, column {j}; all entries must be finite: remove or fill such rows.")
    sized(name, np.abs(x).max(0))
    return x


def unmasked(name: str, given) -> None:
    """Refuse masked entries: as an array, they would be the numbers below their mask."""
    if np.ma.is_masked(given):
        row = np.argwhere(np.ma.getmaskarray(given))[0][0]
        raise ValueError(f"{name} has a masked entry in row {row}; all entries must be numbers: remove or fill such rows.")


def sized(name: str, largest: np.ndarray) -> None:
    """Refuse columns, by their largest entries, whose squares are no numbers any more, or 0 without being it."""
    bad = (largest > MOST) | ((largest > 0) & (largest < LEAST))
    if bad.any():
        j = int(bad.argmax())
        raise ValueError(
            f"{name} has {largest[j]:g} as the largest number of column {j}; it must be 0 or between {LEAST:g} and {MOST:g}: "
            "state the data in other units."
        )


def place(names: Sequence[str], row: np.ndarray) -> str:
    """(t=0.5, x=1): a point in words."""
    return "(" + ", ".join(f"{n}={v:.4g}" for n, v in zip(names, row, strict=True)) + ")"


_PROGRAMS: WeakValueDictionary[bytes, Callable] = WeakValueDictionary()


@float64
def known(function: Callable, *shapes: tuple[int, ...]) -> Callable:
    """The function as the program that it is now, whatever becomes of the names in it; the same one for the very same program.

    What is compared is the program and its first two derivatives, with all constants in them, so that a number that has changed
    since makes another one.
    """
    slope = lambda *given: jax.jvp(function, given, given)  # noqa: E731
    bend = lambda *given: jax.jvp(slope, given, given)  # noqa: E731
    given = [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in shapes]
    try:
        # with arguments that are not used, or x alone and u alone would be the same
        text = jax.jit(bend, keep_unused=True).lower(*given).as_text()
        traced = jaxpr_as_fun(jax.make_jaxpr(function)(*given))
    except Exception:  # without derivatives, or what cannot be lowered: it is said where it is used
        return function
    if "callback" in text:
        return function
    program = lambda *numbers: traced(*(jnp.asarray(a, jnp.float64) for a in numbers))[0]  # noqa: E731
    return _PROGRAMS.setdefault(sha256(text.encode()).digest(), program)
