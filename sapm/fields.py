"""Fields of frozen records that check what they are given.

A field made by `checked(check, …)` names a function `check(name, value)`. It returns the value as
the record keeps it, or raises a ValueError or TypeError that says what is wrong. `check_fields`,
called from `__post_init__`, applies all of them, so that a record that exists is a valid one: one
that a user made, and one that was read from a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, field, fields
from typing import Any

import numpy as np

from sapm.errors import brief, nearest, number

LARGEST_COUNT = 2**63 - 1  # counts are whole numbers of the machine

Check = Callable[[str, Any], Any]


def checked(check: Check, default: Any = MISSING) -> Any:
    """A field of a record with the check of its values."""
    return field(default=default, metadata={"check": check})


def check_fields(record: Any) -> None:
    """Replace every checked field of a record by its checked value."""
    for each in fields(record):
        if "check" in each.metadata:
            value = check_field(each, getattr(record, each.name))
            object.__setattr__(record, each.name, value)


def check_field(each: Field, value: Any) -> Any:
    """The value as the field keeps it."""
    return each.metadata["check"](each.name, value)


def optional(check: Check) -> Check:
    """None, or what the check lets pass."""
    return lambda name, value: None if value is None else check(name, value)


def count(least: int = 1, most: int = LARGEST_COUNT) -> Check:
    """A whole number between two bounds, as an int."""
    bound = "below 2**63" if most == LARGEST_COUNT else f"at most {most}"

    def check(name: str, value: Any) -> int:
        is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not is_whole or not least <= value <= most:
            raise ValueError(
                f"{name}={brief(value)} must be a whole number, at least {least} and {bound}."
            )
        return int(value)

    return check


def positive(name: str, value: Any) -> float:
    """A finite number above 0, as a float."""
    if not 0 < number(value) < np.inf:
        raise ValueError(f"{name}={brief(value)} must be a positive, finite number.")
    return float(value)


def non_negative(name: str, value: Any) -> float:
    """A finite number, 0 or above, as a float."""
    if not 0 <= number(value) < np.inf:
        raise ValueError(f"{name}={brief(value)} must be a non-negative, finite number.")
    return float(value)


def boolean(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name}={brief(value)} must be True or False.")
    return bool(value)


def text(name: str, value: Any) -> str:
    """A string."""
    if not isinstance(value, str):
        raise ValueError(f"{name}={brief(value)} must be a text.")
    return value


def choose(name: str, value: Any, known: Sequence[str]) -> str:
    """The value if it is one of the known words; otherwise an error that lists them."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(
            f"{name}={brief(value)} is not known; use one of {', '.join(known)}."
            + nearest(value, known)
        )
    return value


def one_of(known: Sequence[str]) -> Check:
    """One of the known words."""
    return lambda name, value: choose(name, value, known)
