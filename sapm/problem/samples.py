"""A problem at its points: plain arrays, ready for training and for a file.

`Samples` is the record. `to_arrays` and `describe` give its contents for a file, and `from_arrays`
reads them. `Scaling` holds the units in which a network is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sapm.errors import LONGEST_QUOTE, brief, shown
from sapm.numerics.activations import Activation
from sapm.numerics.jets import Jet, blocks, directions_of
from sapm.numerics.network import Network
from sapm.objective.losses import Loss, Square
from sapm.objective.operators import Composed, Linear, Nonlinear, Operator, Value
from sapm.objective.terms import Term
from sapm.problem.domain import domain_from
from sapm.problem.inputs import Ansatz, Embedding
from sapm.problem.stored import Arrays, ProblemRecord, SamplesRecord, TermRecord, UnitsRecord
from sapm.scopes import float64

if TYPE_CHECKING:
    from sapm.problem.pde import Problem

Weights = Sequence[tuple[Any, Any]]


@dataclass(frozen=True)
class Samples:
    """A problem at its points.

    Parameters
    ----------
    kind : "regression" or "pde".
    names : the coordinates.
    domain : the domain as JSON (`Domain.describe`); None for data.
    terms : what is minimised: for a PDE the equation, then its conditions.
    test : "x": held-out points; "y": the solution there, if it is known.
    validation : held-out data whose loss decides when training ends.
    test_equation : the equation at the held-out points.
    fields : the unknown functions of a PDE.
    parameters : its unknown numbers, each with a first guess.
    ansatz : u = g + φ N, for hard conditions.
    embedding : the network's inputs, if they are not the coordinates.
    fixed_scaling : the units of training, if they were chosen for earlier points of the same run.
        None: they are chosen for these points.
    """

    kind: str
    names: tuple[str, ...]
    domain: dict | None
    terms: tuple[Term, ...]
    test: dict[str, np.ndarray]
    validation: Term | None = None
    test_equation: Term | None = None
    fields: tuple[str, ...] = ("u",)
    parameters: dict[str, float] = field(default_factory=dict)
    ansatz: Ansatz | None = None
    embedding: Embedding | None = None
    fixed_scaling: Scaling | None = None

    @property
    def inputs(self) -> int:
        """The number of network inputs."""
        return len(self.names) if self.embedding is None else self.embedding.width

    @property
    def outputs(self) -> int:
        """The number of network outputs: functions, then unknown parameters."""
        if self.kind == "pde":
            return len(self.fields) + len(self.parameters)
        return self.terms[0].y.shape[1]

    @property
    def units(self) -> np.ndarray:
        """The units of the parameters, which the equation counts them in (`PDE.units`)."""
        if not self.parameters:
            return np.zeros(0)
        operator = self.terms[0].operator
        operator = operator.operator if isinstance(operator, Composed) else operator
        assert isinstance(operator, Nonlinear)  # as every equation with parameters
        return np.asarray(operator.unit)[-len(self.parameters) :]

    @cached_property
    def frame(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The centre of a box around the domain and half its widths; None for data."""
        return None if self.domain is None else domain_from(self.domain).frame

    @cached_property
    def scaling(self) -> Scaling:
        """The units in which a network is trained."""
        return _suitable_scaling(self) if self.fixed_scaling is None else self.fixed_scaling

    def named_terms(self) -> Iterator[tuple[str, Term]]:
        """All terms, each with its name in a file."""
        yield from ((f"term{i}", term) for i, term in enumerate(self.terms))
        for name, term in (("validation", self.validation), ("held", self.test_equation)):
            if term is not None:
                yield name, term

    def map_equation(self, change: Callable[[Term], Term], **fields: Any) -> Samples:
        """The same problem, in which `change` is applied to every term of the PDE.

        Parameters
        ----------
        fields : values of other fields to replace.
        """
        test_equation = None if self.test_equation is None else change(self.test_equation)
        return replace(
            self, terms=tuple(map(change, self.terms)), test_equation=test_equation, **fields
        )


@float64
def hardened(samples: Samples, ansatz: Ansatz) -> Samples:
    """The same problem for a network N, where u = g + φ N. Apply this before `embedded`."""
    return samples.map_equation(
        lambda term: replace(term, operator=Composed(term.operator, *ansatz.jets(term.x))),
        ansatz=ansatz,
    )


@float64
def embedded(samples: Samples, embedding: Embedding) -> Samples:
    """The same problem for a network whose inputs are the embedded coordinates."""
    return samples.map_equation(
        lambda term: replace(term, x=embedding.jet(term.x), points=term.x.value),
        embedding=embedding,
    )


@float64
def pad(samples: Samples, rows: Callable[[int], int], columns: Callable[[int], int]) -> Samples:
    """The same data, with further samples of weight 0 and further inputs that are 0.

    Problems of similar size then have equal shapes, and share compiled programs.

    Parameters
    ----------
    rows, columns : functions that map the number of samples, and of inputs, to the padded number.
    """

    def grow(term: Term) -> Term:
        n, d = term.x.value.shape
        return term.pad(rows(n)).widen_input(columns(d))

    validation = None if samples.validation is None else grow(samples.validation)
    return replace(samples, terms=tuple(map(grow, samples.terms)), validation=validation)


def network_of(samples: Samples, weights: Weights, sigma: Activation) -> Network:
    """The network whose output the terms take.

    Terms measure the unknown parameters in units of their own, so the last biases are divided by
    these.

    Parameters
    ----------
    samples : the problem at its points.
    weights : [(W, b), …] of the network, in the problem's own units.
    sigma : the activation.
    """
    *inner, (W, b) = weights
    m = len(b) - len(samples.parameters)
    last = (W, np.append(b[:m], b[m:] / samples.units))
    return Network.of([*inner, last], sigma, len(samples.parameters))


# ---------------------------------------------------------------- files


def describe(samples: Samples) -> dict[str, Any]:
    """The part of the record that a file holds as JSON. The arrays are those of `to_arrays`."""
    description: dict[str, Any] = {
        "kind": samples.kind,
        "names": samples.names,
        "domain": samples.domain,
        "fields": samples.fields,
        "parameters": samples.parameters,
        "embedding": None if samples.embedding is None else samples.embedding.describe(),
    }
    if samples.fixed_scaling is not None:
        description["units"] = samples.fixed_scaling.describe()
    return description


@float64
def to_arrays(samples: Samples) -> dict[str, np.ndarray]:
    """All arrays of the record, by name.

    A nonlinear operator, and a loss that is not the square, are code, which a file does not hold.
    Some of their values are stored instead ("probe" and "loss"), so that `check_same_problem` can
    compare them.
    """
    arrays = {f"test/{name}": np.asarray(value) for name, value in samples.test.items()}
    for name, term in samples.named_terms():
        arrays |= {f"{name}/{part}": np.asarray(a) for part, a in _term_arrays(term).items()}
    return arrays


def _term_arrays(term: Term) -> dict[str, Any]:
    """The arrays of a term. Directions are left out if they are the coordinate directions."""
    operator = term.operator
    arrays: dict[str, Any] = {"x": term.x.value, "y": term.y, "weight": term.weight}
    if isinstance(operator, Composed):
        for part, jet in (("factor", operator.factor), ("datum", operator.datum)):
            arrays |= {part: jet.value, part + "_tangents": jet.tangents}
        operator = operator.operator
    arrays["c"] = operator.c if isinstance(operator, Linear) else np.zeros((len(term.y), 0))
    coordinates = np.array_equal(term.x.tangents, _coordinates(term.x.value, term.channels))
    if term.x.forms or term.nonlinear or not coordinates:
        arrays["directions"] = term.x.tangents
    if term.x.forms:
        arrays["forms"] = np.asarray(term.x.forms)
    if term.x.orders:
        arrays["orders"] = np.asarray(term.x.orders)
    if isinstance(operator, Linear) and operator.c0 is not None:
        arrays["c0"] = operator.c0
    if isinstance(operator, Nonlinear) and operator.function is not None:
        arrays |= {"probe": _probe(operator, term), "unit": operator.unit}
    elif isinstance(operator, (Value, Linear)) and operator.of is not None:
        arrays["of"] = np.asarray(operator.of)
    if not term.squared:
        arrays["loss"] = _loss_probe(term)
    if term.points is not None:
        arrays["points"] = term.points
    return arrays


def _term_from(stored: TermRecord, function: Callable | None, loss: Loss | None = None) -> Term:
    """The inverse of `_term_arrays`.

    Parameters
    ----------
    function : the operator of a nonlinear term.
    loss : the loss of the term, if it is not the square.
    """
    arrays = stored.arrays
    constants = len(stored.problem.parameters)
    numbers = {part: jnp.asarray(a) for part, a in arrays.items() if part not in ("forms", "of")}
    points = numbers["x"]
    forms = tuple(tuple(int(sign) for sign in form) for form in arrays.get("forms", ()))
    orders = tuple(int(order) for order in arrays.get("orders", ()))
    directions = numbers.get("directions", _coordinates(points, numbers["c"].shape[1]))
    x = Jet(points, directions, forms, orders)
    of = tuple(int(i) for i in arrays["of"]) if "of" in arrays else None
    operator: Operator
    if "unit" in arrays:
        operator = Nonlinear(numbers["unit"], function, constants)
    elif directions.shape[1]:
        operator = Linear(numbers["c"], numbers.get("c0"), of)
    else:
        operator = Value(of)
    if "factor" in arrays:
        factor, datum = (
            x.like(numbers[part], numbers[part + "_tangents"]) for part in ("factor", "datum")
        )
        operator = Composed(operator, factor, datum)
    loss = loss if "loss" in arrays and loss is not None else Square()
    return Term(x, numbers["y"], operator, numbers["weight"], numbers.get("points"), loss)


def _loss_probe(term: Term) -> Array:
    """Values of a loss for random predictions at the first samples."""
    y = term.y[:64]
    return term.loss.value(jnp.asarray(np.random.default_rng(0).normal(size=y.shape)), y)


def _probe(operator: Nonlinear, term: Term) -> Array:
    """Values of a nonlinear operator for random jets at the first points."""
    x = (term.x.value if term.points is None else term.points)[:64]
    size = (len(x), 1 + term.channels, len(operator.unit))
    numbers = np.random.default_rng(0).normal(size=size)
    assert operator.function is not None
    return jax.vmap(operator.function)(x, numbers[:, 0], numbers[:, 1:])


def _coordinates(x, k: int) -> Array:
    """The directions of a term for which a file holds none: the coordinate directions, or no
    directions if k = 0.
    """
    n, d = x.shape
    return jnp.broadcast_to(jnp.eye(d), (n, d, d)) if k else jnp.zeros((n, 0, d))


def nonlinear_terms(arrays: Arrays) -> list[str]:
    """The names of the stored terms whose operator is code."""
    return [name.removesuffix("/probe") for name in arrays if name.endswith("/probe")]


def has_own_loss(arrays: Arrays) -> bool:
    """Whether a stored term has a loss that is not the square."""
    return any(name.endswith("/loss") for name in arrays)


def without_terms(stored: ProblemRecord, ansatz: Ansatz | None = None) -> Samples:
    """The record of a problem without its terms, from its description in a file.

    Parameters
    ----------
    ansatz : the ansatz of hard conditions (`PDE.ansatz`).
    """
    return Samples(
        stored.kind,
        stored.names,
        None if stored.domain is None else dict(stored.domain),
        (),
        {},
        fields=stored.fields,
        parameters=dict(stored.parameters),
        ansatz=ansatz,
        embedding=stored.embedding,
    )


@float64
def from_arrays(
    stored: SamplesRecord,
    functions: Mapping[str, Callable] | None = None,
    ansatz: Ansatz | None = None,
    loss: Loss | None = None,
) -> Samples:
    """The inverse of `describe` and `to_arrays`.

    Parameters
    ----------
    stored : their results, checked.
    functions : the operators of nonlinear terms, by the names of the terms (`PDE.functions`).
    ansatz : the ansatz of hard conditions (`PDE.ansatz`).
    loss : the loss of data (`Regression.loss`), if it is not the square.
    """
    functions = functions or {}
    terms = {
        term.name: _term_from(term, functions.get(term.name), loss) for term in stored.all_terms
    }
    samples = replace(
        without_terms(stored.problem, ansatz),
        terms=tuple(terms[term.name] for term in stored.terms),
        test=stored.test,
        validation=terms.get("validation"),
        test_equation=terms.get("held"),
    )
    units = stored.problem.units
    scaling = None if units is None else Scaling.of(units, samples.units)
    return replace(samples, fixed_scaling=scaling)


# (relative, absolute) tolerances when arrays from two machines are compared: for data, and for
# values of functions. A function may be 0 up to rounding, so its values need an absolute tolerance.
GIVEN_TOLERANCE = (1e-12, 0.0)
COMPUTED_TOLERANCE = (1e-9, 1e-13)
TERM_SUBJECTS = {"Regression": "the data", "Function": "the function", "PDE": "the equation"}
SUBJECTS = {
    "test": "the domain, its points or the solution there",
    "held": "the equation",
    "validation": "the validation data",
}


def check_same_problem(
    problem: Problem, samples: Samples, config: Mapping[str, Any], stored: Arrays
) -> None:
    """Raise an error unless the problem gives the arrays that are stored in a file.

    Parameters
    ----------
    problem : the problem that the user gave.
    samples : the samples of the file.
    config : the settings of the file, with the numbers of points.
    stored : the arrays of the file.
    """
    from sapm.problem.data import Regression

    kind = type(problem).__name__
    wrong = "the problem given is not the stored one"
    fix = "give the problem that the file was made from"
    if config.get("problem", kind) != kind:
        expected = shown(config["problem"], LONGEST_QUOTE)
        raise ValueError(f"{wrong}: got a {kind}, expected a {expected}; {fix}.")
    given = isinstance(problem, Regression)
    counts = getattr(problem, "counts", None)
    if counts is not None:  # of a PDE; before points are drawn
        stated = config["boundary_points"]
        count = sum(counts(stated))
        conditions = sum(len(term.y) for term in samples.terms[1:])
        if count != conditions:
            raise ValueError(
                f"{wrong}: boundary_points={brief(stated)} gives {count} points, expected "
                f"{conditions}, those of its conditions; {fix}."
            )
    chunk = config["options"].get("chunk")
    if given and chunk:
        if chunk > len(problem.X):
            raise ValueError(f"{wrong}: got {len(problem.X)} samples and chunk={chunk}; {fix}.")
        now = problem.sketch()
    else:
        now = problem.samples(**_point_settings(samples, config, drawn=not given))
    fresh = _comparable(to_arrays(now))
    old = _comparable(stored)
    terms = [name for name in old if name.startswith("term") and name not in fresh]
    for name in [*fresh, *terms]:
        a = fresh.get(name)
        b = old.get(name)
        if name == "test/y" and b is None:
            continue  # `exact` was not known when the file was written
        data = given and name.endswith(("/x", "/y"))
        tolerance = GIVEN_TOLERANCE if data else COMPUTED_TOLERANCE
        if a is None or b is None or a.shape != b.shape or not _alike(a, b, *tolerance):
            raise ValueError(f"{wrong}: {name} differs, {_subject(name, kind)}; {fix}.")


def _point_settings(samples: Samples, config: Mapping[str, Any], drawn: bool) -> dict[str, Any]:
    """The settings with which `samples` gives the stored points again. Redrawn points are given as
    arrays.

    Parameters
    ----------
    drawn : whether the points of the problem are drawn; otherwise they are data.
    """
    settings = {
        name: config.get(name) for name in ("points", "boundary_points", "test_points", "mu")
    }
    redrawn = settings["points"] is None
    if redrawn and drawn:
        term = samples.terms[0]
        settings["points"] = np.asarray(term.x.value if term.points is None else term.points)
    if (settings["test_points"] is None or redrawn) and "x" in samples.test:
        settings["test_points"] = samples.test["x"]
    return settings


def _subject(name: str, kind: str) -> str:
    """The part of the problem that a stored array belongs to, for an error."""
    part = name.partition("/")[0]
    if part == "term0":
        return TERM_SUBJECTS[kind]
    return "a condition" if part.startswith("term") else SUBJECTS.get(part, part)


def _alike(a: np.ndarray, b: np.ndarray, relative: float, absolute: float) -> bool:
    """Whether two arrays are equal up to these tolerances. The relative tolerance is a fraction of
    the largest number in each column of b.
    """
    size = np.abs(np.where(np.isfinite(b), b, 0.0)).max(0 if b.ndim == 2 else None, initial=0.0)
    tolerance = np.maximum(absolute, relative * size)
    return bool(np.isclose(a, b, 0.0, tolerance, equal_nan=True).all())


def _comparable(arrays: Arrays) -> dict[str, np.ndarray]:
    """The arrays in a form that can be compared between machines.

    The directions of second-order operators are eigenvectors, which may differ between machines.
    They are replaced by the operators that are computed from them.
    """
    comparable = dict(arrays)
    for name in [name for name in arrays if name.endswith("/forms")]:
        v = comparable.pop(name.replace("forms", "directions"))
        forms = arrays[name]
        k = forms.shape[1]
        comparable[name + "/operator"] = np.einsum("qk,nki,nkj->nqij", forms, v[:, :k], v[:, :k])
        comparable[name + "/along"] = v[:, k:]
    return comparable


# ---------------------------------------------------------------- units

# The strengths of operators (`operator_strength`) for which the damping of Gauss-Newton was chosen
TYPICAL_STRENGTH = (1.0, 100.0)


@dataclass(frozen=True)
class Scaling:
    """The units in which a network is trained: it maps (x - center) / spread to u / size.

    The losses are those of the problem in its own units.

    Parameters
    ----------
    center, spread : (inputs,) the center and the unit of each input.
    size : the unit of u, a power of two.
    stiffness : the strength of the operator divided by the nearest strength in TYPICAL_STRENGTH; 1
        for most problems.
    units : the units of the unknown parameters, which are the last outputs.
    """

    center: np.ndarray
    spread: np.ndarray
    size: float
    stiffness: float = 1.0
    units: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def _sizes(self, outputs: int) -> np.ndarray:
        """The unit of every output."""
        return np.append(np.full(outputs - len(self.units), self.size), self.units)

    @float64
    def term(self, term: Term) -> Term:
        """The same term for a network in these units."""
        return term.in_units(self.center, self.spread, self.size)

    def original(self, weights: Weights) -> list[tuple[np.ndarray, np.ndarray]]:
        """Weights of the same function in the problem's own units."""
        (W, b), *others = [(np.asarray(W), np.asarray(b)) for W, b in weights]
        first = (W / self.spread, b - W @ (self.center / self.spread))
        *inner, (W, b) = [first, *others]
        size = self._sizes(len(b))
        return [*inner, (W * size[:, None], b * size)]

    def scaled(self, weights: Weights) -> list[tuple[np.ndarray, np.ndarray]]:
        """The inverse of `original`. The weights may have fewer inputs than these units, whose
        further inputs are padding.
        """
        (W, b), *others = [(np.asarray(W), np.asarray(b)) for W, b in weights]
        d = W.shape[1]
        first = (W * self.spread[:d], b + W @ self.center[:d])
        *inner, (W, b) = [first, *others]
        size = self._sizes(len(b))
        return [*inner, (W / size[:, None], b / size)]

    def describe(self) -> dict[str, Any]:
        """These units as JSON, without those of the parameters."""
        return {
            "center": self.center.tolist(),
            "spread": self.spread.tolist(),
            "size": self.size,
            "stiffness": self.stiffness,
        }

    @staticmethod
    def of(stored: UnitsRecord, units: np.ndarray) -> Scaling:
        """The inverse of `describe`, with the units of the parameters."""
        center = np.asarray(stored.center)
        return Scaling(center, np.asarray(stored.spread), stored.size, stored.stiffness, units)


def scaling_of(samples: Samples, scale: bool = True) -> Scaling:
    """The units in which a network is trained; with `scale=False` those of the problem itself."""
    if scale:
        return samples.scaling
    d = samples.terms[0].x.value.shape[1]
    return Scaling(np.zeros(d), np.ones(d), 1.0, units=samples.units)


def _suitable_scaling(samples: Samples) -> Scaling:
    """Units in which the inputs fill [-1, 1] and the outputs are of size 1.

    For data, the half widths are those of a uniform distribution with the same deviation.
    """
    counted = [np.broadcast_to(np.asarray(term.weight) > 0, len(term.y)) for term in samples.terms]
    if samples.frame is not None:
        center, spread = samples.frame
        if samples.embedding is not None:
            center, spread = samples.embedding.frame(center, spread)
    else:
        x = np.asarray(samples.terms[0].x.value)[counted[0]]
        center = x.mean(0)
        spread = _spread(x.std(0), np.abs(x).max(0))
    strengths = [operator_strength(term, spread) for term in samples.terms]
    size = 0.0
    for term, rows, by in zip(samples.terms, counted, strengths, strict=True):
        data = _inhomogeneity(term)[rows] if term.squared else np.zeros(1)
        size = max(size, np.sqrt(np.mean(data**2) / by) if np.all(np.isfinite(data)) else 0.0)
        if isinstance(term.operator, Composed):
            size = max(size, np.sqrt(np.mean(np.asarray(term.operator.datum.value) ** 2)))
    stiffness = strengths[0] / np.clip(strengths[0], *TYPICAL_STRENGTH)
    return Scaling(center, spread, _power_of_two(size), float(stiffness), samples.units)


def _spread(deviation: np.ndarray, largest: np.ndarray) -> np.ndarray:
    """The half widths of uniform distributions with these standard deviations, one for each column.
    Columns that are constant have 1.

    Parameters
    ----------
    largest : the largest absolute value of each column.
    """
    spread = np.sqrt(3) * deviation
    return np.where(spread > 1e-12 * largest, spread, 1.0)


def _power_of_two(size: float) -> float:
    """The nearest power of two; 1 for sizes that are 0 or near the limits of double precision."""
    return float(2.0 ** np.round(np.log2(size))) if 1e-100 < size < 1e100 else 1.0


def data_scaling(
    parts: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> tuple[Scaling, float]:
    """The units of training for data that are given part by part, and Σ κ |y|².

    The means and deviations of the parts are merged without cancellation (Chan, Golub and LeVeque).

    Parameters
    ----------
    parts : (x, y, κ) of every part: inputs, targets and weights of its samples.
    """
    count = 0
    mean = np.zeros(1)
    squares = np.zeros(1)
    largest = np.zeros(1)
    data = 0.0
    size = 0.0
    outputs = 1
    for x, y, weight in parts:
        size += float(weight @ np.sum(y**2, axis=1))
        outputs = y.shape[1]
        x = x[weight > 0]
        y = y[weight > 0]
        if not len(x):
            continue
        n = count + len(x)
        shift = x.mean(0) - mean
        squares = squares + np.sum((x - x.mean(0)) ** 2, axis=0) + shift**2 * (count * len(x) / n)
        count = n
        mean = mean + shift * (len(x) / n)
        largest = np.maximum(largest, np.abs(x).max(0))
        data += float(np.sum(y**2))
    spread = _spread(np.sqrt(squares / count), largest)
    return Scaling(mean, spread, _power_of_two(np.sqrt(data / (count * outputs)))), size


def data_size(samples: Samples) -> float:
    """The loss of u = 0. Relative losses are fractions of it.

    For a residual that is not finite at u = 0, the residual is replaced by the targets.
    """
    total = 0.0
    for term in samples.terms:
        if not term.squared:
            total += float(loss_of_zero(term))
            continue
        data = _inhomogeneity(term)
        if not np.all(np.isfinite(data)):
            data = np.asarray(term.y)  # the residual is not finite at u = 0
        total += float(np.sum(np.asarray(term.weight) * np.sum(data**2, -1)))
    return total


@float64
def loss_of_zero(term: Term) -> Array:
    """The loss of a term at u = 0."""
    return term.cost(_constant_jet(term, 0.0))


@float64
def _inhomogeneity(term: Term) -> np.ndarray:
    """The residual at u = 0; for a linear term its negative, which are the targets."""
    if not term.nonlinear:
        return np.asarray(term.y)
    return np.asarray(term.residual(_constant_jet(term, 0.0)))


def _constant_jet(term: Term, size: float) -> Jet:
    """The jet of outputs whose value and derivatives are all `size`; parameters are 1."""
    n = len(term.y)
    outputs = term.outputs or max(getattr(term.operator, "of", None) or (0,)) + 1
    value = jnp.where(
        jnp.arange(outputs) < outputs - term.operator.constants, size, 1.0
    ) * jnp.ones((n, 1))
    return term.x.like(value, jnp.full((n, term.channels, outputs), size))


@float64
def operator_strength(term: Term, spread: np.ndarray) -> float:
    """The strength of an operator: the mean square of its coefficients, in scaled inputs. Errors of
    u are magnified by about its square root.

    A nonlinear operator is linearised at u = 0. If its linearisation vanishes there, it is
    linearised at u = 1 with all derivatives 1. The strength of the value u itself is 1.

    Parameters
    ----------
    term : the term with the operator.
    spread : (inputs,) the units of the inputs, in which they fill [-1, 1].
    """
    if not term.is_pde:
        return 1.0
    n, rows = term.y.shape
    for size in (0.0, 1.0):
        output = _constant_jet(term, size)
        fields = output.value.shape[1] - term.operator.constants
        back = jax.vjp(term.residual, output)[1]
        total = 0.0
        for row in np.eye(rows):
            c = back(jnp.broadcast_to(row, (n, rows)))[0]
            v = np.asarray(term.x.tangents / spread)
            total += _mean_square(c, v, term.x, fields)
        if 0 < total < np.inf:
            return total / rows
    return 1.0


def _mean_square(c: Jet, v: np.ndarray, x: Jet, fields: int) -> float:
    """The mean square of the coefficients c of an operator.

    The coefficients of order j form the tensor Σ_i c_i v_i⊗…⊗v_i (j factors), with the directions
    v (n, channels, d). The square of the operator is the sum of the squared norms of its tensors.

    Parameters
    ----------
    c : the coefficients.
    v : (n, channels, d) the directions.
    x : the jet of the points, which says what the channels are.
    fields : the number of unknown functions.
    """
    k = x.first
    value = np.asarray(c.value[:, :fields])
    channels = np.asarray(c.tangents[..., :fields])
    squares = np.sum(value**2, 1)
    if x.orders:
        dots = np.einsum("nkd,njd->nkj", v[:, :k], v[:, :k])
        for order, block in enumerate(blocks(x.orders, jnp.asarray(channels)), 1):
            reached = directions_of(x.orders, order)
            powers = dots[:, reached][:, :, reached] ** order
            squares = squares + np.einsum("nkm,njm,nkj->n", block, block, powers)
        return float(np.mean(squares))
    along = np.einsum("nkm,nkd->nmd", channels, v)
    total = float(np.mean(squares + np.sum(along**2, axis=(1, 2))))
    if x.forms:
        curved = np.einsum("nqm,qk,nki,nkj->nmij", channels[:, k:], x.forms, v[:, :k], v[:, :k])
        total += float(np.mean(np.sum(curved**2, axis=(1, 2, 3))))
    return total
