"""What a file holds of a problem, as records that check themselves: its description
(`ProblemRecord`) and the arrays of its terms (`TermRecord`).

A file may hold anything under a right checksum. So every field has a type, a range and a largest
size, and must fit the others, before anything is built from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from sapm.errors import (
    LARGEST_SIZE,
    SMALLEST_SIZE,
    brief,
    check_fields,
    checked,
    listed,
    number,
    one_of,
    optional,
    positive,
    printable,
    sized,
    text,
)
from sapm.problem.domain import LONGEST_NAME, check_described, domain_from
from sapm.problem.inputs import Embedding, embedding_from
from sapm.scopes import installed_memory

Arrays = Mapping[str, np.ndarray]
OUTSIDE_TOLERANCE = 1e-6  # of half the width of a domain: points may be so far outside of its box
# The weight of a condition is a square of coefficients, in units of the domain.
LARGEST_WEIGHT = LARGEST_SIZE**4


def require(valid: bool, what: str) -> None:
    """Raise a ValueError with the sentence `what` if `valid` is false.

    Parameters
    ----------
    valid : the condition.
    what : the sentence.
    """
    if not valid:
        raise ValueError(what)


# ---------------------------------------------------------------- names and numbers


def column_name(name: str, value: Any) -> str:
    """The name of a coordinate or of a column of data: printable, without spaces at its ends."""
    value = text(name, value)
    if not value.strip() or value != value.strip() or printable(value) != value:
        raise ValueError(
            f"{name} has {brief(value)}; a name must be printable, not empty, and without spaces "
            "at its ends."
        )
    if len(value) > LONGEST_NAME:
        raise ValueError(
            f"{name} has a name of {len(value)} characters; give at most {LONGEST_NAME}."
        )
    return value


def _identifier(name: str, value: Any) -> str:
    """The name of a function or of an unknown number: a word as Python's names are."""
    word = isinstance(value, str) and value.isidentifier() and printable(value) == value
    if not word or len(value) > LONGEST_NAME:
        raise ValueError(f"{name} has {brief(value)}; it must be a plain word.")
    return value


def _different(check) -> Any:
    """The check of a list that is not empty and names nothing twice."""
    each = listed(check)

    def check_names(name: str, value: Any) -> tuple:
        names = each(name, value)
        require(len(names) > 0, f"{name} is empty")
        require(len(names) == len(set(names)), f"{name}={brief(value)} must differ")
        return names

    return check_names


def _parameters(name: str, value: Any) -> dict[str, float]:
    """The unknown numbers, each with a first guess."""
    if not isinstance(value, dict):
        raise ValueError(f"{name}={brief(value)} must be a dictionary of numbers.")
    return {_identifier(name, word): sized(f"{name}: {word}", v) for word, v in value.items()}


def _domain(name: str, value: Any) -> dict:
    """A domain as JSON, as `Domain.describe` gives it."""
    check_described(value)
    domain_from(value)
    return value


def _coordinate(name: str, value: Any) -> float:
    """A finite number, as a float."""
    require(abs(number(value)) < np.inf, f"{name} has {brief(value)}; it must be a finite number")
    return float(value)


# ---------------------------------------------------------------- the description


@dataclass(frozen=True, kw_only=True)
class UnitsRecord:
    """The units of training in a file: see `sapm.problem.samples.Scaling`."""

    center: tuple[float, ...] = checked(listed(_coordinate))
    spread: tuple[float, ...] = checked(listed(positive))
    size: float = checked(positive)
    stiffness: float = checked(positive)

    def __post_init__(self) -> None:
        check_fields(self)

    @staticmethod
    def from_json(name: str, described: Any) -> UnitsRecord:
        """The units that `Scaling.describe` wrote; a ValueError for anything else."""
        names = [each.name for each in fields(UnitsRecord)]
        valid = isinstance(described, dict) and set(described) == set(names)
        require(valid, f"{name}={brief(described)} must have {', '.join(names)}")
        return UnitsRecord(**described)


def _units(name: str, value: Any) -> UnitsRecord:
    return value if isinstance(value, UnitsRecord) else UnitsRecord.from_json(name, value)


@dataclass(frozen=True, kw_only=True)
class ProblemRecord:
    """The description of a problem in a file; `Samples` explains the fields."""

    kind: str = checked(one_of(("regression", "pde")))
    names: tuple[str, ...] = checked(_different(column_name))
    domain: Mapping[str, Any] | None = checked(optional(_domain))
    fields: tuple[str, ...] = checked(_different(_identifier))
    parameters: Mapping[str, float] = checked(_parameters)
    embedding: Embedding | None = None
    units: UnitsRecord | None = checked(optional(_units), None)  # noqa: RUF009

    def __post_init__(self) -> None:
        check_fields(self)
        d = len(self.names)
        object.__setattr__(self, "embedding", embedding_from(self.embedding, d))
        if self.domain is not None and self.frame is not None:
            names = domain_from(self.domain).names
            require(
                names == self.names,
                f"domain has the coordinates {brief(names)}, and names={brief(self.names)}",
            )
            require(bool((self.frame[1] > 0).all()), "domain is empty")
        both = {*self.parameters} & {*self.names}
        require(not both, f"parameters and names both have {brief(sorted(both)[:3])}")
        if self.kind == "pde":
            require(self.domain is not None, "domain=None must describe the domain of a PDE")
            return
        for name, expected in (("fields", ("u",)), ("parameters", {}), ("embedding", None)):
            value = getattr(self, name)
            require(value == expected, f"{name}={brief(value)} is not that of data")

    @staticmethod
    def from_json(about: Mapping[str, Any]) -> ProblemRecord:
        """The problem that `sapm.problem.samples.describe` wrote; a ValueError for anything else.
        Other entries of the description are ignored.
        """
        missing = {"kind", "names", "domain"} - set(about)
        require(not missing, f"{' and '.join(sorted(missing))} missing in its description")
        given = {"fields": ("u",), "parameters": {}} | dict(about)
        names = [each.name for each in fields(ProblemRecord)]
        return ProblemRecord(**{name: given[name] for name in names if name in given})

    @cached_property
    def frame(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The centre of a box around the domain and half its widths; None for data."""
        return None if self.domain is None else domain_from(self.domain).frame

    @property
    def data(self) -> bool:
        """Whether the samples are data, and no points of a domain."""
        return self.domain is None

    def check_points(self, name: str, x: np.ndarray) -> None:
        """Raise a ValueError for points that no solution can be computed from.

        Parameters
        ----------
        name : what the points are called.
        x : (n, columns), the points, or inputs of a network; further columns are padding.
        """
        largest = np.abs(x).max(0, initial=0.0)
        bad = (largest > LARGEST_SIZE) | ((largest > 0) & (largest < SMALLEST_SIZE))
        require(
            not bad.any(),
            f"{name} has numbers that are not 0 or between {SMALLEST_SIZE:g} and {LARGEST_SIZE:g}",
        )
        if self.frame is not None:
            center, half = self.frame
            rounding = 8 * np.finfo(float).eps * (np.abs(center) + half)
            inside = np.abs(x - center) <= half * (1 + OUTSIDE_TOLERANCE) + rounding
            require(bool(inside.all()), f"{name} has points outside of the domain")


# ---------------------------------------------------------------- the arrays of a term

WHOLE = ("forms", "orders", "of")  # arrays of whole numbers
COMPARED = ("probe", "loss")  # values of functions, with which a problem is compared: not computed


@dataclass(frozen=True, kw_only=True, eq=False)
class TermRecord:
    """The arrays of a term in a file, for n samples with D inputs and k channels of derivatives.

    Parameters
    ----------
    name : the name of the term.
    problem : the description of the problem, with d coordinates.
    outputs : m, the number of outputs of the network.
    x, y : (n, D) and (n, rows), inputs and targets.
    c, c0 : (n, k) and (n,), the coefficients of a linear operator; c is (n, 0) for other terms.
    weight : () or (n,).
    directions : (n, k, D); None: the coordinates, or no derivatives.
    forms, orders : see `sapm.numerics.jets.Jet`.
    of : (rows,) the outputs that are compared; None: all.
    points : (n, d), where the inputs are features of the points.
    unit, probe : (m,) the units of the outputs of a nonlinear operator, and some values of it.
    loss : some values of a loss that is not the square.
    factor, datum : (n, m), and their tangents (n, k, m), for hard conditions.
    """

    name: str
    problem: ProblemRecord
    outputs: int
    x: np.ndarray
    y: np.ndarray
    c: np.ndarray
    weight: np.ndarray
    directions: np.ndarray | None = None
    forms: np.ndarray | None = None
    orders: np.ndarray | None = None
    c0: np.ndarray | None = None
    points: np.ndarray | None = None
    of: np.ndarray | None = None
    unit: np.ndarray | None = None
    probe: np.ndarray | None = None
    loss: np.ndarray | None = None
    factor: np.ndarray | None = None
    datum: np.ndarray | None = None
    factor_tangents: np.ndarray | None = None
    datum_tangents: np.ndarray | None = None

    @staticmethod
    def from_arrays(
        name: str, parts: Arrays, problem: ProblemRecord, outputs: int | None = None
    ) -> TermRecord:
        """The term with these arrays by part.

        Parameters
        ----------
        outputs : the number of outputs of the network; None: the columns of y.
        """
        known = [each.name for each in fields(TermRecord)][3:]
        for part in ("x", "y", "c", "weight"):
            require(part in parts, f"samples/{name}/{part} is missing")
        for part in parts:
            require(part in known, f"samples/{name}/{part} is not known")
        columns = parts["y"].shape[-1] if parts["y"].ndim else 0
        m = columns if outputs is None else outputs
        return TermRecord(name=name, problem=problem, outputs=m, **parts)

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_shapes()
        self._check_operator()

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by part."""
        named = {each.name: getattr(self, each.name) for each in fields(self)[3:]}
        return {part: a for part, a in named.items() if a is not None}

    @property
    def nonlinear(self) -> bool:
        """Whether the operator is code, which a file does not hold."""
        return self.unit is not None

    @property
    def channels(self) -> int:
        """k, the number of derivatives of a sample."""
        if self.directions is not None:
            return self.directions.shape[1]
        return self.x.shape[1] if self.c.shape[1] else 0

    def _require(self, valid: bool, part: str, what: str) -> None:
        require(valid, f"samples/{self.name}/{part} {what}")

    def _check_numbers(self) -> None:
        """Types and sizes of all numbers."""
        for part, a in self.arrays.items():
            kinds = "iu" if part in WHOLE else "fiu" if part in COMPARED else "f"
            valid = a.dtype.kind in kinds and (a.dtype.itemsize == 8 or part in COMPARED)
            self._require(valid, part, f"holds numbers of the type {a.dtype}")
            finite = part in COMPARED or bool(np.isfinite(a).all())
            self._require(finite, part, "holds numbers that are not finite")
            self._require(0 not in a.shape[:1], part, "is empty")
        largest = LARGEST_SIZE if self.problem.data else LARGEST_WEIGHT
        valid = (self.weight >= 0).all() and 0 < self.weight.max(initial=0.0) <= largest
        self._require(bool(valid), "weight", f"is not between 0 and {largest:g}, some above 0")
        for part in ("y", "c", "c0", "points", "unit", "factor", "datum"):
            a = getattr(self, part)
            small = a is None or bool((np.abs(a) <= LARGEST_SIZE).all())
            self._require(small, part, f"holds numbers above {LARGEST_SIZE:g}")

    def _check_shapes(self) -> None:
        """The shapes of all arrays, by those of x and y."""
        for part in ("x", "y", "c"):
            self._require(getattr(self, part).ndim == 2, part, "is not a table")
        directed = self.directions is None or self.directions.ndim == 3
        self._require(directed, "directions", "is not a table of vectors")
        n, inputs = self.x.shape
        m = self.outputs
        k = self.channels
        shapes = {
            "x": [(n, inputs)],
            "y": [(n, max(1, self.y.shape[1]))],
            "c": [(n, 0 if self.nonlinear else k)],
            "weight": [(), (n,)],
            "directions": [(n, k, inputs)],
            "c0": [(n,)],
            "points": [(n, len(self.problem.names))],
            "unit": [(m,)],
            "of": [(self.y.shape[1],)],
            "factor": [(n, m)],
            "datum": [(n, m)],
            "factor_tangents": [(n, k, m)],
            "datum_tangents": [(n, k, m)],
        }
        for part, a in self.arrays.items():
            expected = shapes.get(part, [a.shape])
            self._require(a.shape in expected, part, f"has the shape {a.shape}")
        implied = 8 * n * k * inputs if self.directions is None else 0
        self._require(implied <= installed_memory(), "c", "has derivatives larger than the memory")

    def _check_operator(self) -> None:
        """What makes an operator: derivatives, coefficients or units, and outputs."""
        k = self.channels
        m = self.outputs
        d = len(self.problem.names)
        compared = self.of is None or bool(((self.of >= 0) & (self.of < m)).all())
        self._require(compared, "of", "names outputs that do not exist")
        for parts in (("unit", "probe"), ("factor", "datum", "factor_tangents", "datum_tangents")):
            given = [part for part in parts if getattr(self, part) is not None]
            missing = [part for part in parts if part not in given] if given else []
            self._require(
                not missing, given[0] if given else "", f"is without {', '.join(missing)}"
            )
        if self.forms is not None:
            fits = self.forms.ndim == 2 and self.directions is not None
            fits = fits and sum(self.forms.shape) == k and bool((np.abs(self.forms) <= 1).all())
            self._require(fits, "forms", "does not fit its directions")
        if self.orders is not None:
            fits = self.orders.ndim == 1 and self.directions is not None and self.nonlinear
            fits = fits and bool(((self.orders >= 1) & (self.orders <= k)).all())
            fits = fits and int(self.orders.sum()) == k and self.forms is None
            self._require(fits, "orders", "does not fit its directions")
        if self.unit is not None:
            size = np.abs(self.unit[len(self.problem.fields) :])
            plain = bool((self.unit[: len(self.problem.fields)] == 1).all())
            inside = bool(((size >= SMALLEST_SIZE) & (size <= LARGEST_SIZE)).all())
            self._require(plain and inside, "unit", "holds units of no parameters")
            alone = self.of is None and self.c0 is None and self.directions is not None
            self._require(alone, "unit", "is that of another operator")
            return
        every = self.of is not None or self.y.shape[1] == m
        self._require(every, "y", f"has {self.y.shape[1]} columns, and its networks {m} outputs")
        self._require(self.c0 is None or k > 0, "c0", "belongs to no derivatives")
        # of second order, a coordinate has at most two directions, one for each sign
        self._require(k <= 2 * d + 1, "directions", f"has {k} derivatives of {d} coordinates")
        fits = self.forms is None or self.forms.shape == (1, k - 1)
        self._require(fits, "forms", "does not fit a linear equation")


@dataclass(frozen=True, kw_only=True, eq=False)
class SamplesRecord:
    """The samples of a problem in a file; `Samples` explains the fields.

    Parameters
    ----------
    problem : the description.
    terms : what is minimised.
    test : "x" and "y", held-out points and the solution there.
    validation, held : further terms, or None.
    """

    problem: ProblemRecord
    terms: tuple[TermRecord, ...]
    test: dict[str, np.ndarray]
    validation: TermRecord | None = None
    held: TermRecord | None = None

    @staticmethod
    def from_arrays(problem: ProblemRecord, arrays: Arrays) -> SamplesRecord:
        """The samples of a problem from arrays by name; a ValueError if they do not fit together.

        Parameters
        ----------
        problem : the description.
        arrays : what `sapm.problem.samples.to_arrays` gave.
        """
        parts: dict[str, dict[str, np.ndarray]] = {}
        for name, a in arrays.items():
            term, _, part = name.partition("/")
            parts.setdefault(term, {})[part] = a
        test = parts.pop("test", {})
        others = ("validation", "held")
        names = [f"term{i}" for i in range(len(parts.keys() - set(others)))]
        require(bool(names), "samples/term0/x is missing")
        for name in parts:
            require(name in names or name in others, f"samples/{name} is not known")
        pde = problem.kind == "pde"
        m = len(problem.fields) + len(problem.parameters) if pde else None
        first = TermRecord.from_arrays("term0", parts["term0"], problem, m)
        rest = {
            name: TermRecord.from_arrays(name, parts[name], problem, first.outputs)
            for name in [*names, *others]
            if name in parts and name != "term0"
        }
        terms = (first, *(rest[name] for name in names[1:]))
        named = {name: rest.get(name) for name in others}
        return SamplesRecord(problem=problem, terms=terms, test=test, **named)

    @property
    def all_terms(self) -> list[TermRecord]:
        """The terms of training and the others."""
        others = [term for term in (self.validation, self.held) if term is not None]
        return [*self.terms, *others]

    @property
    def inputs(self) -> int:
        """The number of inputs of the network, padding included."""
        return self.terms[0].x.shape[1]

    @property
    def outputs(self) -> int:
        """The number of outputs of the network."""
        return self.terms[0].outputs

    def __post_init__(self) -> None:
        self._check_inputs()
        self._check_operators()
        self._check_test()

    def _check_inputs(self) -> None:
        """Inputs of all terms, and what they are."""
        problem = self.problem
        d = len(problem.names)
        embedding = problem.embedding
        least = d if embedding is None else embedding.width
        # data may be padded
        fits = self.inputs == least or (problem.data and self.inputs > least)
        require(fits, f"samples/term0/x has {self.inputs} columns, expected {least} by its names")
        for term in self.all_terms:
            wide = term.x.shape[1]
            require(
                wide == self.inputs,
                f"samples/{term.name}/x has {wide} columns, expected {self.inputs} as in term0",
            )
            points = term.points if embedding is not None else term.x
            require(points is not None, f"samples/{term.name}/points is missing")
            assert points is not None
            part = "x" if embedding is None else "points"
            problem.check_points(f"samples/{term.name}/{part}", points)
            if problem.data:
                problem.check_points(f"samples/{term.name}/y", term.y)
        units = problem.units
        if units is not None:
            for name in ("center", "spread"):
                length = len(getattr(units, name))
                require(
                    length == self.inputs, f"units: {name} has {length} numbers, not {self.inputs}"
                )

    def _check_operators(self) -> None:
        """Which terms may be of which kind."""
        pde = self.problem.kind == "pde"
        for term in self.all_terms:
            equation = term.name in ("term0", "held")
            name = f"samples/{term.name}"
            require(pde or (term.channels == 0 and not term.nonlinear), f"{name} is not of data")
            require(pde or term.factor is None, f"{name}/factor is not of data")
            require(self.problem.data or term.loss is None, f"{name}/loss is not of a domain")
            require(
                not pde or not equation or term.nonlinear or self.outputs == 1,
                f"{name}/unit is missing, which a system of equations has",
            )
        for part in ("factor", "loss"):
            first = getattr(self.terms[0], part) is None
            for term in self.all_terms:
                same = (getattr(term, part) is None) == first
                require(same, f"samples/{term.name}/{part} is not as in term0")
        require(len(self.terms) == 1 or pde, "samples/term1 is not of data")
        require(self.validation is None or not pde, "samples/validation is not of a PDE")
        require(self.held is None or pde, "samples/held is not of data")

    def _check_test(self) -> None:
        """Held-out points, and the solution there."""
        problem = self.problem
        known = set(self.test) <= {"x", "y"} and ("x" in self.test or not self.test)
        require(known, f"samples/test has {brief(sorted(self.test))}, expected x and y")
        x = self.test.get("x")
        held = self.held
        pde = problem.kind == "pde"
        paired = (held is None) == (x is None) or not pde
        require(paired, "samples/held belongs to other points than samples/test/x")
        if x is None:
            return
        rows = x.shape[0] if x.ndim else 0
        for name, a in self.test.items():
            columns = len(problem.names)
            if name == "y":
                columns = len(problem.fields) if pde else self.outputs
            require(
                a.dtype == float and a.shape == (rows, columns) and rows > 0,
                f"samples/test/{name} has the shape {a.shape} and the type {a.dtype}",
            )
            finite = bool((np.abs(a) <= LARGEST_SIZE).all())
            require(finite, f"samples/test/{name} holds numbers above {LARGEST_SIZE:g}")
        problem.check_points("samples/test/x", x)
        if held is not None:
            points = held.x if problem.embedding is None else held.points
            same = points is not None and points.shape == x.shape and np.array_equal(points, x)
            require(bool(same), "samples/held belongs to other points than samples/test/x")
