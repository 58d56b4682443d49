"""What users give, in a sentence: the nearest right name for a misspelt one, a number as one, a text cut short."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from numbers import Real
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)
SEVERAL = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)

LONGEST = 100  # characters of a user's text that a sentence repeats
RATES = ("lr", "learning_rate", "step_size", "eta")
ELSEWHERE = {  # names of other packages
    **dict.fromkeys(("epochs", "iterations", "n_iter", "steps", "num_steps", "maxiter"), "max_iter"),
    **dict.fromkeys(("layers", "n_layers", "num_layers"), "depth"),
    **dict.fromkeys(("hidden", "units", "neurons", "hidden_layer_sizes"), "width"),
    **dict.fromkeys(("verbose", "display_every"), "progress"),
    **dict.fromkeys(("loss_weights", "boundary_weight"), "mu"),
}
SEED = ("seed", "random_state")
NO_RATE = " No learning rate has to be chosen; method='adam' and 'gd' have one: options={'learning_rate': …}."
LEAST, MOST = 1e-50, 1e50  # the size of data and domains: their squares, and the squares of these, are still numbers


def nearest(word, choices: Iterable[str]) -> str:
    """ " Did you mean …?", or nothing."""
    close = get_close_matches(str(word)[:LONGEST], [str(c) for c in choices if len(str(c)) <= LONGEST][:1000], 1, 0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def split(word: str, names: Iterable[str]) -> tuple[str, ...] | None:
    """A run of coordinate names as a tuple: "tx" → ("t", "x")."""
    if not word:
        return ()
    for name in sorted(names, key=len, reverse=True):
        if word.startswith(name) and (rest := split(word[len(name) :], names)) is not None:
            return (name, *rest)
    return None


def one_by_one(word, names: Sequence[str]) -> str:
    """What to write in place of a word that is no coordinate: "xx" is two."""
    parts = split(word, names) if isinstance(word, str) and len(word) <= LONGEST else None
    if parts:
        return f"name them one by one: d({', '.join(map(repr, parts))})."
    return f"there are {', '.join(names)}." + nearest(word, names)


def by_name(function: Callable[P, R]) -> Callable[P, R]:
    """A sentence in place of Python's for a setting that is not there, and for one that is missing."""
    parameters, called = signature(function).parameters, function.__qualname__.removesuffix(".__init__")
    known, kinds = [name for name in parameters if name != "self"], [a.kind for a in parameters.values()]
    needed = [name for name in known if parameters[name].default is Parameter.empty and parameters[name].kind not in SEVERAL]

    @wraps(function)
    def wrapped(*args: P.args, **given: P.kwargs) -> R:
        for name, value in given.items():
            if name not in known:
                hint = nearest(name, known)
                if ELSEWHERE.get(name) in known:
                    hint = f" It is called {ELSEWHERE[name]!r} here."
                    hint += " Several widths are width=[20, 20]." * (name == "layers" and isinstance(value, (list, tuple)))
                elif name in SEED and "seeds" in known:
                    hint = f" Give seeds=[{brief(value)}] for that one; a number alone says how many."
                elif name == "seeds" and called == "refine":
                    hint = " It trains one network, the one that is given."
                elif name in RATES:
                    hint = NO_RATE if "options" in known else NO_RATE.partition(";")[0] + "."
                raise TypeError(f"sapm.{called} has no setting {name!r}.{hint}")
        places = [*parameters][: len(args)]
        if SEVERAL[0] not in kinds and len(args) > kinds.count(Parameter.POSITIONAL_OR_KEYWORD):
            unnamed = [name for name in known if parameters[name].kind is Parameter.POSITIONAL_OR_KEYWORD]
            hint = " Data are a problem: sapm.Regression(X, y)." if "problem" in unnamed else ""
            raise TypeError(f"sapm.{called} takes {', '.join(unnamed)} without their names, and all others by name.{hint}")
        if missing := [name for name in needed if name not in places and name not in given]:
            raise TypeError(f"sapm.{called} needs {' and '.join(missing)} too: {', '.join(f'{name}=…' for name in needed)}.")
        return function(*args, **given)

    return wrapped


def stated(kind: C) -> C:
    """A class whose settings are answered like those of a function."""
    kind.__init__ = by_name(kind.__init__)  # type: ignore[misc]
    return kind


def number(value) -> float:
    """A real number as a float (±inf where it is too large for one); NaN for everything else, also for True and False."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


def plain(x: Any) -> Any:
    """As JSON has it: numbers that it has no name for become null."""
    x = x.tolist() if hasattr(x, "tolist") else x
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(value) for value in x]
    return None if isinstance(x, float) and x - x != 0 else x


def brief(value) -> str:
    """Its repr in one line, cut short; where in memory it is says nothing."""
    return shown(" ".join(re.sub(r" at 0x[0-9a-f]+", "", repr(value)).split()))


def shown(text: str, longest: int = LONGEST) -> str:
    """A text for a sentence: characters that a terminal would obey or not show are spelt out, and a long one is cut short."""
    text = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
