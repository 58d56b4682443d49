"""Functions that a user writes for one point, evaluated at many; and tables that a user gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from inspect import signature
from typing import Any, ParamSpec, TypeVar
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array, Float
from scipy.sparse import issparse

from sapm.errors import LARGEST_SIZE, SMALLEST_SIZE, brief, integer, warn
from sapm.problem.domain import Coordinates, Domain, NotANumber, Shape
from sapm.scopes import float64

P = ParamSpec("P")
R = TypeVar("R")

# What JAX raises where a traced function uses `if` or plain NumPy on a traced number
NEEDS_NUMBERS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
)
# What a user's function may raise: at a point where it is not defined, when it is traced, or
# because of a mistake in it
USER_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)
USER_MARK = "raised_by_user_code"


class UserCode:
    """A context in which the user's functions run. An error that leaves it is marked as theirs."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind, error: BaseException | None, traceback) -> None:
        if error is not None:
            with suppress(AttributeError):  # a frozen class has no free attributes
                setattr(error, USER_MARK, True)


def none_if_fails(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """function(*args, **kwargs), or None if that raises an error.

    This is for what is optional, such as advice, which may evaluate a function at points that
    training never uses. An error that comes neither from the user's functions, nor from linear
    algebra, nor from a lack of memory may be a mistake of this package: it causes a warning.
    """
    try:
        return function(*args, **kwargs)
    except USER_ERRORS as error:
        expected = isinstance(error, (np.linalg.LinAlgError, MemoryError))
        if not expected and not getattr(error, USER_MARK, False):
            warn(
                f"an optional check failed with {type(error).__name__}: {brief(str(error))}; "
                "training is not affected, but this may be a mistake in sapm: please report it."
            )
        return None


def function_of_point(what: str, function) -> Callable:
    """`function`, checked to be callable with one argument, the point.

    Parameters
    ----------
    what : what the function is, for errors: "f", "the datum of Dirichlet".
    function : what the user gave.
    """
    if not callable(function):
        raise TypeError(
            f"{what} is {brief(function)}; give a function of one point, such as "
            "lambda p: jnp.sin(p.x)."
        )
    try:
        parameters = signature(function)
    except (TypeError, ValueError):  # some built-in functions have no signature
        return function
    try:
        parameters.bind(None)
    except TypeError:
        hint = " For a condition on u use sapm.Condition." if "datum" in what else ""
        raise TypeError(
            f"{what} takes {parameters}; it must take one argument, the point: lambda p: ….{hint}"
        ) from None
    return function


def numbers_of(value, what: str, several: bool = False) -> Float[Array, " m"]:
    """What a user's function returned for one point, as real numbers (m,).

    Parameters
    ----------
    value : what it returned.
    what : what the function is, for errors.
    several : whether it may return more than one number.
    """
    expected = "a number, or several," if several else "one number"
    if value is None:
        raise TypeError(
            f"{what} returned None; it must return {expected} for one point "
            "(is a `return` missing?)."
        )
    try:
        value = jnp.asarray(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            f"{what} returned {brief(value)}; it must return {expected} for one point."
        ) from None
    if jnp.iscomplexobj(value):
        raise TypeError(
            f"{what} returned complex numbers; they must be real: return real and imaginary parts."
        )
    if value.size == 0 or (value.ndim > 1 if several else value.size != 1):
        raise ValueError(
            f"{what} returned shape {value.shape}; it must return {expected} for one point "
            "(it is applied to each)."
        )
    return value.reshape(-1).astype(jnp.float64)


@float64
def evaluate(
    function: Callable,
    what: str,
    names: Sequence[str],
    x: np.ndarray,
    several: bool = False,
    finite: bool = True,
) -> np.ndarray:
    """The values of a user's function of one point at every row of x, (n, outputs).

    The function is vectorised if JAX can trace it, and called row by row otherwise.

    Parameters
    ----------
    function, what : the function, and what it is, for errors.
    names : the names of the coordinates.
    x : (n, d) points.
    several : whether it may return more than one number.
    finite : whether to raise an error for values that are not finite or too large.
    """

    def at_row(row):
        with UserCode():
            return numbers_of(function(Coordinates(names, row)), what, several)

    x = np.asarray(x, float)
    with np.errstate(all="ignore"):
        try:
            at_row(x[0])  # first without JAX, since errors in the user's function are clearer then
        except NotANumber as error:
            with UserCode():
                raise ValueError(str(error)) from None  # without JAX's part of the traceback
        try:
            values = np.asarray(jax.vmap(at_row)(jnp.asarray(x)))
        except NEEDS_NUMBERS:
            values = np.stack([np.asarray(at_row(row)) for row in x])
    bad = ~(np.abs(values) <= LARGEST_SIZE).all(1)
    if finite and bad.any():
        k = bad.argmax()
        fault = "too large" if np.isfinite(values[k]).all() else "not finite"
        with UserCode():
            raise ValueError(
                f"{what} is {fault} at {point_text(names, x[k])}: got {brief(values[k].tolist())}; "
                f"it must be at most {LARGEST_SIZE:g} in size."
            )
    return values


def table(name: str, rows, columns: int | None = None) -> np.ndarray:
    """A user's data as an array (n, columns) of finite float64; a vector becomes one column.

    Parameters
    ----------
    name : what the table is, for errors.
    rows : anything that NumPy makes an array of.
    columns : the expected number of columns.
    """
    check_readable(name, rows)
    x = real_numbers(rows)
    if x is None:
        cure = f" Give {name}.detach().cpu().double()." if hasattr(rows, "detach") else ""
        raise TypeError(
            f"{name} must hold real numbers in rows of equal length (no ragged list); "
            f"got {type(rows).__name__}: {brief(rows)}.{cure}"
        )
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(
            f"{name} has shape {np.shape(rows)}; give one row per sample, (n, columns), with n ≥ 1."
        )
    if columns is not None and x.shape[1] != columns:
        plural = "s" * (x.shape[1] > 1)
        raise ValueError(f"{name} has {x.shape[1]} column{plural}; {columns} are wanted.")
    if not np.isfinite(x).all():
        i, j = np.argwhere(~np.isfinite(x))[0]
        raise ValueError(
            f"{name} has {x[i, j]} in row {i}, column {j}; all entries must be finite: "
            "remove or fill such rows."
        )
    check_sizes(name, np.abs(x).max(0))
    return x


def real_numbers(rows) -> np.ndarray | None:
    """The rows as an array of floats; None for anything but real numbers, and for a ragged list."""
    try:
        x = np.asarray(rows)
        if x.dtype.kind == "O" and not all(
            np.isrealobj(v) and not isinstance(v, (str, bytes)) for v in x.flat
        ):
            return None
        # types of JAX's own, such as bfloat16, have another kind
        real = x.dtype.kind in "biufO" or jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(float) if real else None
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last by torch
        return None


def check_readable(name: str, rows) -> None:
    """Raise an error for sparse arrays, which NumPy cannot read, and for masked entries, which it
    would read as the numbers under the mask.
    """
    if issparse(rows):
        raise TypeError(f"{name}: got a sparse array, expected a dense one; use its .toarray().")
    if np.ma.is_masked(rows):
        row = np.argwhere(np.ma.getmaskarray(rows))[0][0]
        raise ValueError(
            f"{name} has a masked entry in row {row}; all entries must be numbers: "
            "remove or fill such rows."
        )


def check_numeric(name: str, rows) -> None:
    """Raise an error for words and times, which scikit-learn would read as numbers."""
    try:
        x = np.asarray(rows)
    except (TypeError, ValueError, RuntimeError):  # scikit-learn says what is wrong
        return
    words = x.dtype.kind == "O" and any(isinstance(v, (str, bytes)) for v in x.flat)
    if words or x.dtype.kind in "SUMm":
        raise TypeError(
            f"{name}: got {brief(rows)}, expected real numbers; convert words and times first."
        )


def check_sizes(name: str, largest: np.ndarray) -> None:
    """Raise an error if squares of the numbers in a column would overflow or underflow.

    Parameters
    ----------
    largest : (columns,) the largest number of every column.
    """
    bad = (largest > LARGEST_SIZE) | ((largest > 0) & (largest < SMALLEST_SIZE))
    if bad.any():
        j = int(bad.argmax())
        raise ValueError(
            f"{name} has {largest[j]:g} as the largest number of column {j}; it must be 0 or "
            f"between {SMALLEST_SIZE:g} and {LARGEST_SIZE:g}: state the data in other units."
        )


def checked_domain(domain) -> Domain:
    """The domain. Raise an error if it is not a domain."""
    if not isinstance(domain, Shape):
        raise TypeError(
            f"domain={brief(domain)} is not a domain; use sapm.Box(t=(0, 1), x=(-1, 1)), "
            "sapm.Ball(10) or a combination of them."
        )
    return domain  # type: ignore[return-value]


def interior_points(domain: Domain, points, what: str, start: int) -> np.ndarray:
    """Points of the domain, (n, d).

    Parameters
    ----------
    points : how many Halton points, or an array of points, which must lie in the domain.
    what : the name of the setting, for errors.
    start : the index of the first Halton point.
    """
    if isinstance(points, (int, np.integer, bool, float, str)) or points is None:
        return domain.points(integer(what, points), start)
    x = table(what, points, len(domain.names))
    check_inside(domain, x, what)
    return x


def check_inside(domain: Domain, x: np.ndarray, what: str) -> None:
    """Raise an error if one of the points x, (n, d), lies outside the domain.

    Parameters
    ----------
    what : what the points are, for errors.
    """
    outside = domain.gap(x) < -1e-9
    if outside.any():
        at = point_text(domain.names, x[outside.argmax()])
        raise ValueError(f"{what} has a point outside the domain: {at}; leave this point out.")


def no_points(test_points) -> bool:
    """Whether the user asked for no test points: the number 0, not an array."""
    return isinstance(test_points, (int, np.integer)) and test_points == 0


def point_text(names: Sequence[str], row: np.ndarray) -> str:
    """A point in words: (t=0.5, x=1)."""
    return "(" + ", ".join(f"{n}={v:.4g}" for n, v in zip(names, row, strict=True)) + ")"


_PROGRAMS: WeakValueDictionary[bytes, Callable] = WeakValueDictionary()


@float64
def shared_program(function: Callable, *shapes: tuple[int, ...]) -> Callable:
    """A traced function of arrays, as one shared object for all functions with the same program.

    If a problem is stated twice, JAX then finds the programs that were compiled for the first
    statement. Two functions have the same program if the text of the program and of its first two
    derivatives is the same. The text contains the constants, so a function with another constant
    is another program.

    Parameters
    ----------
    function : a function of arrays. It is returned unchanged if it cannot be traced or
        differentiated.
    shapes : the shapes of its arguments.
    """

    def slope(*numbers):
        return jax.jvp(function, numbers, numbers)

    def bend(*numbers):
        return jax.jvp(slope, numbers, numbers)

    def trace() -> tuple[str, Any]:
        arguments = [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in shapes]
        # Without keep_unused, a function of its first argument alone would have the same text as
        # one of its second argument alone.
        with UserCode():
            text = jax.jit(bend, keep_unused=True).lower(*arguments).as_text()
            return text, jaxpr_as_fun(jax.make_jaxpr(function)(*arguments))

    traced = none_if_fails(trace)
    if traced is None or "callback" in traced[0]:
        return function
    text, run = traced

    def program(*numbers):
        return run(*(jnp.asarray(a, jnp.float64) for a in numbers))[0]

    return _PROGRAMS.setdefault(sha256(text.encode()).digest(), program)
