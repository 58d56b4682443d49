"""u inside a residual, which stands for a function and its derivatives at one point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from itertools import combinations_with_replacement
from typing import Any

from sapm.domain import ARRAY
from sapm.names import brief, nearest, one_by_one, split

Key = tuple[str, ...]  # () is u itself, ("x",) is ∂u/∂x, ("t", "x") is ∂²u/∂t∂x


def called(key: Key) -> str:
    """How a user writes that derivative."""
    return "u." + ("".join(key) if key else "value")


class Unknown:
    """u inside a residual: `u.value`, `u.x`, `u.xx`, `u.d("t", "x")`; `give(key)` supplies the numbers."""

    def __init__(self, names: Sequence[str], give: Callable[[Key], Any], called: str = "u"):
        self._names, self._give, self._called = tuple(names), give, called

    @property
    def value(self):
        return self._give(())

    def d(self, *coordinates: str):
        for name in coordinates:
            if name not in self._names:
                asked = f"{self._called}.d({name!r}) asks for a derivative along {brief(name)}"
                raise ValueError(f"{asked}; {one_by_one(name, self._names)}")
        return self._give(tuple(sorted(coordinates, key=self._names.index)))

    def __repr__(self) -> str:
        return f"{self._called} itself"

    def _not_a_number(self, *_):
        u = self._called
        raise TypeError(f"{u} stands for a function; write {u}.value for its value, and {u}.{self._names[0]} for a derivative.")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _not_a_number
    __neg__ = __abs__ = __float__ = __call__ = __iter__ = __getitem__ = __array__ = _not_a_number

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        parts = split(name, self._names)
        if parts is None and name in ARRAY:
            self._not_a_number()
        if parts is None:
            written = ["value", *self._names, *("".join(pair) for pair in combinations_with_replacement(self._names, 2))]
            raise ValueError(
                f"{(u := self._called)}.{name} is not known where the coordinates are {', '.join(self._names)}; use {u}.value, "
                f"{', '.join(f'{u}.{n}' for n in self._names)} "
                f'or {u}.d("{self._names[0]}") for derivatives.'
                + (' Give the domain names=("x", "y") for others.' if self._names[0] == "x1" else nearest(name, written))
            )
        return self.d(*parts)


def unknowns(residual: Callable, coordinates: Sequence[str] = ()) -> tuple[str, ...]:
    """What the arguments of residual(p, u, …) after the point are called: one function to find for each."""
    if not callable(residual):
        raise TypeError(f"residual is {brief(residual)}; give a function of the point and of u: lambda p, u: u.t - u.xx.")
    try:
        given = list(signature(residual).parameters.values())
    except (TypeError, ValueError):
        return ("u",)
    names = [a.name for a in given if a.kind in (a.POSITIONAL_ONLY, a.POSITIONAL_OR_KEYWORD) and a.default is a.empty]
    named = [a.name for a in given if a.kind is a.KEYWORD_ONLY and a.default is a.empty]
    if named:
        raise TypeError(
            f"residual wants {named[0]} by its name; it is called with the point and what is to be found: lambda p, u: …"
        )
    if len(names) < 2:
        raise TypeError(
            f"residual takes {len(names)} arguments; it must take the point and what is to be found: lambda p, u: …, "
            "or lambda p, u, v: … for two functions."
        )
    if names[0] == "u" or (names[0] in coordinates and {*names[1:]} & {*coordinates}):
        how = ", ".join(f"p.{name}" for name in coordinates)
        raise TypeError(
            f"residual takes ({', '.join(names)}); it must take the point, which has the coordinates ({how}), and then what "
            "is to be found: lambda p, u: …"
        )
    return tuple(names[1:])
