"""Checks of what users give, and the words of error messages.

An error message says what is wrong, what was expected and how to fix it. A value in a message is
quoted by `brief`, so that the message stays one short line.
"""

from __future__ import annotations

import contextlib
import dis
import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from enum import StrEnum
from functools import wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, overload

T = TypeVar("T", bound=Callable)

# files whose lines are no place for a warning: the package, and what its decorators run through
INTERNAL_FILES = (str(Path(__file__).parent) + os.sep, contextlib.__file__)
RAISE = dis.opmap["RAISE_VARARGS"]  # the instruction of a `raise`
LONGEST_QUOTE = 100  # characters of a user's text that a message repeats
LONGEST_PATH = 300  # characters of a path that a message repeats
# Letters and marks that Python counts as printable, and that a terminal does not show
INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
MOST_CHOICES = 1000  # names that a misspelt one is compared with

# Data and domains have sizes between these: the squares of their squares are still numbers.
SMALLEST_SIZE = 1e-50
LARGEST_SIZE = 1e50

UNNAMED = "arguments without names"  # a key of the hints of `by_name`
SEED_NAMES = ("seed", "random_state")
OTHER_NAMES = {  # what other packages call our settings
    **dict.fromkeys(
        ("epochs", "iterations", "n_iter", "steps", "num_steps", "maxiter"), "max_iter"
    ),
    **dict.fromkeys(("layers", "n_layers", "num_layers"), "depth"),
    **dict.fromkeys(("hidden", "units", "neurons", "hidden_layer_sizes"), "width"),
    **dict.fromkeys(("verbose", "display_every"), "progress"),
    **dict.fromkeys(("loss_weights", "boundary_weight"), "mu"),
}


# ---------------------------------------------------------------- advice


class AdviceKind(StrEnum):
    """What a piece of advice is about."""

    STATEMENT = "statement"  # the problem and its settings: it holds however long the run is
    OUTCOME = "outcome"  # how the run ended: a longer run may end otherwise
    FOLDER = "folder"  # why the run could not be kept in its folder to the end


@dataclass(frozen=True)
class Advice:
    """A sentence to the user about something that is allowed and probably a mistake, or about how a
    run ended. It is shown as a warning, and again wherever the run is shown.
    """

    kind: AdviceKind
    sentence: str


def warn(sentence: str) -> None:
    """Warn the user, at the line of the user's own code that called sapm."""
    frame = sys._getframe(1)
    level = 2
    while frame.f_back is not None and is_internal(frame):
        frame = frame.f_back
        level += 1
    warnings.warn(printable(sentence), stacklevel=level)


def is_internal(frame: FrameType) -> bool:
    """Whether a frame is of the package: by its file, or by its module where code was generated.

    The `__init__` of a dataclass has no file.
    """
    generated = frame.f_code.co_filename == "<string>"
    package = str(frame.f_globals.get("__name__", "")).split(".")[0] == __package__
    return frame.f_code.co_filename.startswith(INTERNAL_FILES) or (generated and package)


def raised_here(error: BaseException) -> bool:
    """Whether a `raise` of the package raised the error: then it is a sentence to the user. Other
    errors come from a library or from a mistake, such as an index out of range.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not is_internal(last.tb_frame):
        return False
    return last.tb_frame.f_code.co_code[last.tb_lasti] == RAISE


# ---------------------------------------------------------------- numbers


def number(value) -> float:
    """A real number as a float.

    NaN for anything that is not a real number, True and False included; ±inf for integers that are
    too large for a float.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


def integer(name: str, value, least: int = 1, why: str = "", most: int | None = None) -> int:
    """The value as an int, if it is a whole number from `least` to `most`.

    Parameters
    ----------
    name : what the message calls it.
    value : what the user gave: an int or a NumPy integer, not a bool.
    least, most : the allowed range, ends included; None is no upper end.
    why : a clause for the message, after "give {least} or more".
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(
            f"{name}={brief(value)} is not a whole number; give an int of {least} or more{why}."
        )
    count = int(value)
    if count < least:
        raise ValueError(f"{name}={brief(value)} is too small; give {least} or more{why}.")
    if most is not None and count > most:
        raise ValueError(f"{name}={brief(value)} is too large; give {most} or less.")
    return count


# ---------------------------------------------------------------- text


def brief(value) -> str:
    """The repr of a value in one line of at most `LONGEST_QUOTE` characters, without memory
    addresses.
    """
    return shown(" ".join(re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value)).split()))


def shown(text: str, longest: int = LONGEST_QUOTE) -> str:
    """A text that is safe to print, cut short.

    Parameters
    ----------
    text : the text.
    longest : the largest number of characters.
    """
    for _ in range(2):  # what is escaped is longer
        text = text if len(text) <= longest else f"{text[: longest - 1]}…"
        text = printable(text)
    return text


def shown_path(path: Any) -> str:
    """A path as a message names it."""
    return shown(str(path), LONGEST_PATH)


def printable(text: str, in_json: bool = False) -> str:
    """A text in one line that is safe to print: what is not printed as itself is escaped.

    These are control characters, line ends, characters that reverse text, and those of width zero.
    Every text that may hold words from a file or from a user passes through here on its way out.

    Parameters
    ----------
    text : the text.
    in_json : whether the text is JSON, which has escapes of its own, and line ends between values.
    """
    unseen = {c for c in set(text) if not c.isprintable() or INVISIBLE.match(c)}
    if in_json:
        return text.translate({ord(c): json.dumps(c)[1:-1] for c in unseen - {"\n"}})
    return text.translate({ord(c): c.encode("unicode_escape").decode() for c in unseen})


def json_safe(x: Any) -> Any:
    """A value as JSON can hold it: arrays become lists, and NaN and infinities become None."""
    x = x.tolist() if hasattr(x, "tolist") else x
    if isinstance(x, dict):
        return {key: json_safe(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [json_safe(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


# ---------------------------------------------------------------- names


def closest(word, choices: Iterable[str]) -> str | None:
    """The choice that is most like a word, or None if none is like it."""
    names = [str(choice) for choice in choices if len(str(choice)) <= LONGEST_QUOTE]
    close = get_close_matches(str(word)[:LONGEST_QUOTE], names[:MOST_CHOICES], 1, 0.5)
    return close[0] if close else None


def nearest(word, choices: Iterable[str]) -> str:
    """The suffix " Did you mean 'x'?" with the choice that is most like the word, or ""."""
    close = closest(word, choices)
    return f" Did you mean {close!r}?" if close else ""


def split(word: str, names: Iterable[str], longest: bool = True) -> tuple[str, ...] | None:
    """A word made of coordinate names, as a tuple: "tx" → ("t", "x"). None for other words.

    Of several readings it is the one whose first names are the longest, or the shortest.
    """
    if not word:
        return ()
    for name in sorted(names, key=len, reverse=longest):
        rest = split(word[len(name) :], names, longest) if word.startswith(name) else None
        if rest is not None:
            return (name, *rest)
    return None


def one_by_one(word, names: Sequence[str]) -> str:
    """How to fix a derivative along a coordinate that does not exist: "xx" has to be "x", "x"."""
    parts = split(word, names) if isinstance(word, str) and len(word) <= LONGEST_QUOTE else None
    if parts:
        return f"name them one by one: d({', '.join(map(repr, parts))})."
    return f"the coordinates are {', '.join(names)}." + nearest(word, names)


# ---------------------------------------------------------------- arguments


@overload
def by_name(target: T) -> T: ...
@overload
def by_name(*, hints: Mapping[str, str]) -> Callable[[T], T]: ...
def by_name(target: Any = None, *, hints: Mapping[str, str] | None = None) -> Any:
    """Decorate a public function or class: a clear TypeError for unknown and missing arguments.

    Parameters
    ----------
    target : the function or class.
    hints : {name: what to do instead} for names that users may try, and in `UNNAMED` for too many
        arguments without names. Misspelt names and names that other packages use have hints anyway.
    """
    if target is None:
        return lambda target: _checked(target, hints or {})
    return _checked(target, hints or {})


def _checked(target, hints: Mapping[str, str]):
    if isinstance(target, type):
        target.__init__ = _checked(target.__init__, hints)  # type: ignore[misc]
        return target
    title = f"sapm.{target.__qualname__.removesuffix('.__init__')}"
    parameters = signature(target).parameters
    names = [name for name in parameters if name != "self"]
    unnamed = [n for n in names if parameters[n].kind is Parameter.POSITIONAL_OR_KEYWORD]
    variable = any(a.kind is Parameter.VAR_POSITIONAL for a in parameters.values())
    has_self = "self" in parameters
    required = [
        name
        for name in names
        if parameters[name].default is Parameter.empty
        and parameters[name].kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]

    @wraps(target)
    def wrapped(*args, **settings):
        for name, value in settings.items():
            if name not in names:
                hint = hints[name] if name in hints else _hint(name, value, names)
                raise TypeError(f"{title} has no setting {brief(name)}.{hint}")
        if not variable and len(args) - has_self > len(unnamed):
            allowed = f"{', '.join(unnamed)} at most" if unnamed else "none"
            raise TypeError(
                f"{title}: got {len(args) - has_self} without a name, expected {allowed}; give "
                f"all other arguments by name.{hints.get(UNNAMED, '')}"
            )
        places = [*parameters][: len(args)]
        if missing := [n for n in required if n not in places and n not in settings]:
            call = ", ".join(f"{name}=…" for name in required)
            raise TypeError(f"{title}: {' and '.join(missing)} missing; write {call}.")
        return target(*args, **settings)

    return wrapped


def _hint(name: str, value, names: Sequence[str]) -> str:
    """What to do instead of giving the unknown argument `name`."""
    if OTHER_NAMES.get(name) in names:
        several = name == "layers" and isinstance(value, (list, tuple))
        widths = " Several widths are width=[20, 20]." if several else ""
        return f" It is called {OTHER_NAMES[name]!r} here.{widths}"
    if name in SEED_NAMES and "seeds" in names:
        return f" One seed is seeds=[{brief(value)}]; a number alone is the number of seeds."
    return nearest(name, names)


# ---------------------------------------------------------------- checked fields of records

LARGEST_COUNT = 2**63 - 1  # counts are whole numbers of the machine
LONGEST_TEXT = 10**6  # characters of a text in a record

FieldCheck = Callable[[str, Any], Any]


def checked(check: FieldCheck, default: Any = MISSING) -> Any:
    """A field of a record with the check of its values."""
    return field(default=default, metadata={"check": check})


def check_fields(record: Any) -> None:
    """Replace every checked field of a record by its checked value."""
    for each in fields(record):
        if "check" in each.metadata:
            value = each.metadata["check"](each.name, getattr(record, each.name))
            object.__setattr__(record, each.name, value)


def optional(check: FieldCheck) -> FieldCheck:
    """None, or what the check lets pass."""
    return lambda name, value: None if value is None else check(name, value)


def count(least: int = 1, most: int = LARGEST_COUNT) -> FieldCheck:
    """A whole number between two bounds, as an int."""
    bound = "below 2**63" if most == LARGEST_COUNT else f"at most {most}"

    def check(name: str, value: Any) -> int:
        is_whole = isinstance(value, Integral) and not isinstance(value, bool)
        if not is_whole or not least <= int(value) <= most:
            raise ValueError(
                f"{name}={brief(value)} must be a whole number, at least {least} and {bound}."
            )
        return int(value)

    return check


def positive(name: str, value: Any) -> float:
    """A finite number above 0, as a float."""
    if not 0 < number(value) < math.inf:
        raise ValueError(f"{name}={brief(value)} must be a positive, finite number.")
    return float(value)


def non_negative(name: str, value: Any) -> float:
    """A finite number, 0 or above, as a float."""
    if not 0 <= number(value) < math.inf:
        raise ValueError(f"{name}={brief(value)} must be a non-negative, finite number.")
    return float(value)


def boolean(name: str, value: Any) -> bool:
    """True or False."""
    of_numpy = str(getattr(value, "dtype", "")) == "bool" and getattr(value, "ndim", 1) == 0
    if not (isinstance(value, bool) or of_numpy):
        raise ValueError(f"{name}={brief(value)} must be True or False.")
    return bool(value)


def text(name: str, value: Any) -> str:
    """A string of at most `LONGEST_TEXT` characters."""
    if not isinstance(value, str):
        raise ValueError(f"{name}={brief(value)} must be a string.")
    if len(value) > LONGEST_TEXT:
        raise ValueError(
            f"{name} has {len(value)} characters; it must have at most {LONGEST_TEXT}."
        )
    return value


def listed(check: FieldCheck, most: int = LARGEST_COUNT) -> FieldCheck:
    """A list of at most so many values, each of which must pass `check`, as a tuple."""

    def check_list(name: str, value: Any) -> tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{name}={brief(value)} must be a list.")
        if len(value) > most:
            raise ValueError(f"{name} has {len(value)} entries; it must have at most {most}.")
        return tuple(check(name, entry) for entry in value)

    return check_list


def sized(name: str, value: Any) -> float:
    """A number that is 0 or of a size between `SMALLEST_SIZE` and `LARGEST_SIZE`, as a float."""
    if not (number(value) == 0 or SMALLEST_SIZE <= abs(number(value)) <= LARGEST_SIZE):
        raise ValueError(
            f"{name}={brief(value)} must be 0 or a number between {SMALLEST_SIZE:g} and "
            f"{LARGEST_SIZE:g} in size."
        )
    return float(value)


def choose(name: str, value: Any, known: Sequence[str]) -> str:
    """The value if it is one of the known words; otherwise an error that lists them.

    Parameters
    ----------
    name : what the message calls it.
    value : what the user gave.
    known : the known words.
    """
    if not isinstance(value, str) or value not in known:
        raise ValueError(
            f"{name}={brief(value)} is not known; use one of {', '.join(known)}."
            + nearest(value, known)
        )
    return value


def one_of(known: Sequence[str]) -> FieldCheck:
    """One of the known words."""
    return lambda name, value: choose(name, value, known)
