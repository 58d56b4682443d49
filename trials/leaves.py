"""Change the content of a model file, one leaf at a time: what `sapm.results.files.write` then
writes has a right checksum and a right format, and is no file that a run has written.

`places` lists all places of a file: every node of the description and every array. `changes` lists
all changes of one place. Both walk what is there and know no names, so that a field that is added
to the file is covered.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Draw = np.random.Generator
Key = str | int

MANY = 400_000  # entries of a long list, and rows of a long array
DEEP = 300  # levels of nesting; Python's own limit is 1000
SEVERAL = 8  # entries of a list that are places of their own; of a longer one the ends and two more


@dataclass
class Content:
    """What a file holds, to be changed."""

    arrays: dict[str, np.ndarray]
    about: dict[str, Any]

    def copied(self) -> Content:
        return Content(dict(self.arrays), copy.deepcopy(self.about))


@dataclass(frozen=True)
class Place:
    """A node of the description (`keys` lead to it), or an array (`array` is its name)."""

    keys: tuple[Key, ...] = ()
    array: str = ""

    def __str__(self) -> str:
        return self.array or "about" + "".join(f"[{key!r}]" for key in self.keys)

    @property
    def section(self) -> str:
        """The part of the file that it belongs to."""
        return self.array.partition("/")[0] if self.array else str(self.keys[0])


@dataclass(frozen=True)
class Change:
    """A change of one place.

    Parameters
    ----------
    name : what it does, in a word or two.
    make : does it: a function of the content, the place and a source of random numbers.
    restated : whether the numbers of the file are the same after it (another type, another shape,
        one entry more that nothing reads), so that a file that loads must give the same results.
    """

    name: str
    make: Callable[[Content, Place, Draw], None] = field(repr=False)
    restated: bool = False

    @property
    def large(self) -> bool:
        """Whether the file becomes one of a megabyte or more."""
        return self.name.removeprefix("is ").startswith(("many", "a million"))


# ---------------------------------------------------------------- places


def places(content: Content) -> list[Place]:
    """All places of a file."""
    found: list[Place] = []

    def walk(value: Any, keys: tuple[Key, ...]) -> None:
        if keys:
            found.append(Place(keys))
        if isinstance(value, dict):
            for key, entry in value.items():
                walk(entry, (*keys, key))
        elif isinstance(value, list):
            n = len(value)
            for i in range(n) if n <= SEVERAL else (0, 1, n // 2, n - 1):
                walk(value[i], (*keys, i))

    walk(content.about, ())
    return found + [Place(array=name) for name in content.arrays]


def value_at(content: Content, place: Place) -> Any:
    """The node or the array at a place."""
    if place.array:
        return content.arrays[place.array]
    value: Any = content.about
    for key in place.keys:
        value = value[key]
    return value


def put(content: Content, place: Place, value: Any) -> None:
    """Replace the node or the array at a place."""
    if place.array:
        content.arrays[place.array] = np.ascontiguousarray(value) if np.ndim(value) else value
        return
    parent = value_at(content, Place(place.keys[:-1]))
    parent[place.keys[-1]] = value


def remove(content: Content, place: Place) -> None:
    if place.array:
        del content.arrays[place.array]
    else:
        del value_at(content, Place(place.keys[:-1]))[place.keys[-1]]


# ---------------------------------------------------------------- changes of the description


def _nested(inner: Any, wrap: Callable[[Any], Any]) -> Any:
    for _ in range(DEEP):
        inner = wrap(inner)
    return inner


# Values of every type, sign and size, by what they are called
WRONG: dict[str, Callable[[], Any]] = {
    "null": lambda: None,
    "true": lambda: True,
    "false": lambda: False,
    "0": lambda: 0,
    "1": lambda: 1,
    "-1": lambda: -1,
    "2": lambda: 2,
    "0.5": lambda: 0.5,
    "twenty million": lambda: 20_000_000,
    "2**31": lambda: 2**31,
    "2**63 - 1": lambda: 2**63 - 1,
    "2**63": lambda: 2**63,
    "10**30": lambda: 10**30,
    "10**400": lambda: 10**400,
    "1e308": lambda: 1e308,
    "-1e308": lambda: -1e308,
    "1e-308": lambda: 1e-308,
    "NaN": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "no text": lambda: "",
    "text": lambda: "x",
    "a text of NaN": lambda: "nan",
    "a path": lambda: "../../x",
    "control characters": lambda: "\x00\x1b[31m\n",
    "a million characters": lambda: "x" * 10**6,
    "no list": list,
    "no dictionary": dict,
    "many zeros": lambda: [0] * MANY,
    "many texts": lambda: ["x"] * MANY,
    "many keys": lambda: {str(k): 0 for k in range(MANY // 4)},
    "deep lists": lambda: _nested([], lambda inner: [inner]),
    "deep dictionaries": lambda: _nested({}, lambda inner: {"x": inner}),
}


def _by_value(change: Callable[[Any], Any]) -> Callable[[Content, Place, Draw], None]:
    """The change that replaces a value by a function of it."""

    def make(content: Content, place: Place, draw: Draw) -> None:
        put(content, place, change(value_at(content, place)))

    return make


def _swap(content: Content, place: Place, draw: Draw) -> None:
    """Put the value of another node of the description here."""
    others = [other for other in places(content) if not other.array and other.section != "env"]
    other = others[int(draw.integers(len(others)))]
    put(content, place, copy.deepcopy(value_at(content, other)))


def _swap_alike(content: Content, place: Place, draw: Draw) -> None:
    """Put another value of the same type here."""
    kind = type(value_at(content, place))
    others = [
        other
        for other in places(content)
        if not other.array and other != place and type(value_at(content, other)) is kind
    ]
    if others:
        other = others[int(draw.integers(len(others)))]
        put(content, place, copy.deepcopy(value_at(content, other)))


def _telescope(value: dict, inner: tuple[Key, ...]) -> dict:
    """The value within itself, again and again, in place of the node that `inner` leads to."""
    found = copy.deepcopy(value)
    for _ in range(DEEP):
        outer = copy.deepcopy(value)
        put(Content({}, outer), Place(inner), found)
        found = outer
    return found


def _inner_dictionaries(value: Any) -> list[tuple[Key, ...]]:
    """Where dictionaries of the same kind (with a key in common) lie inside of this one."""
    if not isinstance(value, dict):
        return []
    inside = places(Content({}, value))
    nodes = [(place.keys, value_at(Content({}, value), place)) for place in inside]
    return [keys for keys, node in nodes if isinstance(node, dict) and set(node) & set(value)]


def _cycled(value: list, count: int = MANY) -> list:
    return (value * (count // len(value) + 1))[:count]


def _lists_cycled(value: dict) -> dict:
    lists = {key for key, entry in value.items() if isinstance(entry, list) and entry}
    return {key: _cycled(entry) if key in lists else entry for key, entry in value.items()}


def changes_of_node(value: Any) -> list[Change]:
    """All changes of a node of the description."""
    found = [Change("removed", lambda content, place, draw: remove(content, place))]
    for name, make in WRONG.items():
        found.append(Change(f"is {name}", _by_value(lambda _, make=make: make())))
    found += [Change("swapped", _swap), Change("swapped, same type", _swap_alike)]
    ways: dict[str, Callable[[Any], Any]] = {"in a list": lambda v: [v]}
    restated: dict[str, Callable[[Any], Any]] = {}
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        restated |= {"as text": str}
        if value == int(value) if math.isfinite(value) else False:
            restated |= {"as the other type": int if isinstance(value, float) else float}
        ways |= {
            "negated": lambda v: -v,
            "one more": lambda v: v + 1,
            "one less": lambda v: v - 1,
            "halved": lambda v: v / 2,
            "times 10**6": lambda v: v * 10**6,
            "in a deep list": lambda v: _nested(v, lambda inner: [inner]),
        }
    elif isinstance(value, str):
        ways |= {"doubled": lambda v: v + v, "upper case": str.upper, "cut": lambda v: v[:-1]}
    elif isinstance(value, list) and value:
        ways |= {
            "without its first": lambda v: v[1:],
            "without its last": lambda v: v[:-1],
            "doubled": lambda v: v + v,
            "reversed": lambda v: v[::-1],
            "many entries": _cycled,
            "with null": lambda v: [None, *v[1:]],
            "one entry more": lambda v: [*v, v[-1]],
        }
    elif isinstance(value, dict):
        restated |= {"another key": lambda v: v | {"x": 1}}
        ways |= {"many keys more": lambda v: v | {f"x{k}": 0 for k in range(MANY // 4)}}
        for inner in _inner_dictionaries(value):
            ways[f"in itself at {list(inner)}"] = lambda v, inner=inner: _telescope(v, inner)
        if any(isinstance(entry, list) and entry for entry in value.values()):
            ways["many entries in all lists"] = _lists_cycled
    found += [Change(name, _by_value(way)) for name, way in ways.items()]
    return found + [Change(name, _by_value(way), True) for name, way in restated.items()]


# ---------------------------------------------------------------- changes of arrays


def _one_entry(make: Callable[[Any], Any]) -> Callable[[Content, Place, Draw], None]:
    """The change of one entry, anywhere in the array."""

    def change(content: Content, place: Place, draw: Draw) -> None:
        a = np.array(content.arrays[place.array])
        if a.size:
            at = int(draw.integers(a.size))
            with np.errstate(all="ignore"):
                a.reshape(-1)[at] = make(a.reshape(-1)[at])
        content.arrays[place.array] = a

    return change


def _exchange(same_shape: bool) -> Callable[[Content, Place, Draw], None]:
    """Exchange an array with another one, which has the same shape if there is such a one."""

    def change(content: Content, place: Place, draw: Draw) -> None:
        a = content.arrays[place.array]
        names = [name for name in content.arrays if name != place.array]
        alike = [name for name in names if content.arrays[name].shape == a.shape]
        names = alike if same_shape and alike else names
        other = names[int(draw.integers(len(names)))]
        content.arrays[place.array] = content.arrays[other]
        content.arrays[other] = a

    return change


def _renamed(name: str, draw: Draw) -> str:
    """Another name of the same kind: with another number in it, or with a letter more."""
    digits = [k for k, c in enumerate(name) if c.isdigit()]
    if not digits or draw.random() < 0.3:
        return f"{name}x"
    at = digits[int(draw.integers(len(digits)))]
    return f"{name[:at]}{(int(name[at]) + int(draw.integers(1, 10))) % 10}{name[at + 1 :]}"


def _rename(content: Content, place: Place, draw: Draw) -> None:
    name = _renamed(place.array, draw)
    content.arrays[name] = content.arrays.pop(place.array)


def _add(content: Content, place: Place, draw: Draw) -> None:
    name = _renamed(place.array, draw)
    content.arrays[name] = content.arrays[place.array]


def _along(axis: int, change: Callable[[np.ndarray], np.ndarray]) -> Callable:
    """The change along an axis, if the array has one."""

    def along(a: np.ndarray) -> np.ndarray:
        if not a.ndim:
            return np.full(2, a)
        return np.swapaxes(change(np.swapaxes(a, 0, axis)), 0, axis)

    return along


def _many_rows(a: np.ndarray) -> np.ndarray:
    if not a.ndim or not a.size:
        return np.full(MANY, a.flat[0] if a.size else 0, a.dtype)
    rows = max(len(a) + 1, min(MANY, 10**7 // max(a[0].size, 1)))
    return np.resize(a, (rows, *a.shape[1:]))


def _entries(dtype: np.dtype) -> tuple:
    """Numbers that one entry of an array is replaced by."""
    if dtype.kind == "f":
        return (math.nan, math.inf, -math.inf, 1e308, -1e308, 1e-308, 0.0, -1.0)
    if dtype.kind == "b":
        return (True, False)
    ends = np.iinfo(dtype)
    return tuple(
        x for x in (0, 1, -1, 10**6, int(ends.min), int(ends.max)) if ends.min <= x <= ends.max
    )


DTYPES = (np.float64, np.float32, np.float16, np.int64, np.int32, np.uint8, np.bool_)


def changes_of_array(a: np.ndarray) -> list[Change]:
    """All changes of an array."""
    found = [
        Change("removed", lambda content, place, draw: remove(content, place)),
        Change("renamed", _rename),
        Change("added under another name", _add),
        Change("exchanged", _exchange(False)),
        Change("exchanged, same shape", _exchange(True)),
    ]
    ways: dict[str, Callable[[np.ndarray], Any]] = {
        "without its first row": _along(0, lambda a: a[1:]),
        "without its last row": _along(0, lambda a: a[:-1]),
        "without its last column": _along(-1, lambda a: a[:-1]),
        "doubled rows": _along(0, lambda a: np.concatenate([a, a])),
        "doubled columns": _along(-1, lambda a: np.concatenate([a, a])),
        "no rows": _along(0, lambda a: a[:0]),
        "no columns": _along(-1, lambda a: a[:0]),
        "many rows": _many_rows,
        "reversed rows": _along(0, lambda a: a[::-1]),
        "one number": lambda a: a.reshape(-1)[0] if a.size else a,
        "all zero": np.zeros_like,
        "all negated": lambda a: ~a if a.dtype.kind == "b" else -a,
    }
    restated: dict[str, Callable[[np.ndarray], Any]] = {
        "one axis more": lambda a: a[None],
        "flat": lambda a: a.reshape(-1),
        "transposed": lambda a: a.T,
    }
    for kind in DTYPES:
        if kind == a.dtype:
            continue
        with np.errstate(all="ignore"):
            same = np.array_equal(a.astype(kind).astype(a.dtype), a, equal_nan=a.dtype.kind == "f")
        named = restated if same else ways
        named[f"as {np.dtype(kind).name}"] = lambda a, kind=kind: a.astype(kind)
    if a.dtype.kind == "f":
        ways |= {
            "all NaN": lambda a: np.full_like(a, np.nan),
            "all infinite": lambda a: np.full_like(a, np.inf),
            "times 1e300": lambda a: a * 1e300,
            "times 1e-300": lambda a: a * 1e-300,
        }
    elif a.dtype.kind == "i":
        ways |= {
            "all a million more": lambda a: a + 10**6,
            "times 2**40": lambda a: a * np.array(2**40, np.int64),
        }
    for entry in _entries(a.dtype):
        found.append(Change(f"one entry {entry}", _one_entry(lambda _, entry=entry: entry)))
    found.append(
        Change("one entry negated", _one_entry(lambda x: ~x if a.dtype.kind == "b" else -x))
    )
    found += [Change(name, _quietly(way)) for name, way in ways.items()]
    return found + [Change(name, _quietly(way), True) for name, way in restated.items()]


def _quietly(way: Callable[[np.ndarray], Any]) -> Callable[[Content, Place, Draw], None]:
    def make(content: Content, place: Place, draw: Draw) -> None:
        with np.errstate(all="ignore"):
            put(content, place, way(content.arrays[place.array]))

    return make


def changes(content: Content, place: Place) -> list[Change]:
    """All changes of a place."""
    value = value_at(content, place)
    return changes_of_array(value) if place.array else changes_of_node(value)


def said(chosen: list[tuple[Place, Change]]) -> str:
    """Changes in words."""
    return " and ".join(f"{place} {change.name}" for place, change in chosen)


# ---------------------------------------------------------------- which case is which


def case(content: Content, number: int, seed: list[int]) -> list[tuple[Place, Change]]:
    """The changes of case `number` of a file; one case in ten has a second change elsewhere.

    The places take turns, so that every place has been changed after as many cases as there are
    places, and a place gets every change once before it gets one again.

    Parameters
    ----------
    content : the file.
    number : the number of the case.
    seed : numbers that the order follows from.
    """
    found = places(content)
    turn, at = divmod(number, len(found))
    order = np.random.default_rng([*seed, 0]).permutation(len(found))
    place = found[int(order[at])]
    ways = changes(content, place)
    mixed = np.random.default_rng([*seed, 1, int(order[at])]).permutation(len(ways))
    chosen = [(place, ways[int(mixed[turn % len(ways)])])]
    draw = np.random.default_rng([*seed, 2, number])
    if draw.random() < 0.1:
        other = found[int(draw.integers(len(found)))]
        ways = changes(content, other)
        second = (other, ways[int(draw.integers(len(ways)))])
        within = place.keys and other.keys[: len(place.keys)] == place.keys
        chosen = [second, *chosen] if within else [*chosen, second]
    return chosen


def changed(content: Content, chosen: list[tuple[Place, Change]], draw: Draw) -> Content:
    """A copy of the content with these changes. A change whose place an earlier one has removed
    does nothing.
    """
    found = content.copied()
    for place, change in chosen:
        try:
            value_at(found, place)
        except (KeyError, IndexError, TypeError):
            continue
        change.make(found, place, draw)
    return found
