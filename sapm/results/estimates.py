"""The error of a solution, estimated without knowing the exact solution.

An error estimator is a callable `(result, seed) -> ErrorEstimate`. Two are built in and tried in
this order:

* `FollowCharacteristics` measures the error of first-order linear equations. It integrates the
  equation along its characteristics.
* `LeastSquaresCorrection` estimates the error of every other PDE. The error e of a network u
  satisfies, to first order, the equation linearised at u. The estimator looks for e among the sums
  of random features, e = Σ_k c_k sin(w_k·x + φ_k), by least squares (`correction`).

Another estimator can be passed to `result.error_estimate(estimator=…)` and
`result.summary(estimator=…)`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sapm.errors import brief, printable
from sapm.numerics.activations import Activation, sin
from sapm.numerics.jets import Jet, lift
from sapm.numerics.layers import Dense
from sapm.numerics.network import Network
from sapm.objective.operators import Composed
from sapm.objective.terms import Term
from sapm.problem.characteristics import solve_by_characteristics
from sapm.problem.conditions import Observed
from sapm.problem.data import Function, Regression
from sapm.problem.pde import PDE
from sapm.problem.samples import Samples, Weights, network_of
from sapm.results.solution import relative_error
from sapm.scopes import float64, one_thread

if TYPE_CHECKING:
    from sapm.results.result import Result

# ---------------------------------------------------------------- the linearised equation

FEATURES = 2000  # the number of features for all functions of a system together
# The scale of a feature sets the length of w_k. Every usable scale has the same number of features.
FEATURE_SCALES = tuple(2.0**k for k in range(9))
# The features are divided among the scales as if there were at least so many of them.
MIN_SCALE_DIVISOR = 6
# A scale is usable up to SCALE_ALWAYS_USED, or up to SCALE_PER_POINT times the number of points
# along one coordinate if that is more.
SCALE_ALWAYS_USED = 8.0
SCALE_PER_POINT = 0.55
# Chunks have about this many samples, fewer for terms with many derivatives.
SAMPLES_PER_CHUNK = 1000
RANK_TOLERANCE = 1e-13  # eigenvalues below this fraction of the largest are treated as zero
ZERO_SIZE = 1e-6  # root mean square of u, in units of the data, below which u counts as zero
# The data do not determine a parameter whose share in the null space is larger than this.
UNDETERMINED_SHARE = 1e-2


@dataclass(frozen=True)
class Correction:
    """The size of the correction e of a network u, at the points of the first term.

    Parameters
    ----------
    size : ‖e‖ / ‖u + e‖. If u + e is zero, the root mean square of e in units of the data instead.
    relative : whether size is relative, the first of these two.
    explained : the share of the squared residual that vanishes with the correction, from 0 to 1.
    field_sizes : for a system, the relative size of the correction of every function.
    """

    size: float
    relative: bool
    explained: float
    field_sizes: dict[str, float] = field(default_factory=dict)


def random_features(samples: Samples, points: int) -> Dense:
    """Random directions w_k and phases φ_k of the features, for inputs scaled to [-1, 1].

    Only scales that the points can resolve are used: features of a finer scale would fit any values
    at the points.

    Parameters
    ----------
    samples : the problem, for the number of its inputs and functions.
    points : the number of points.
    """
    rng = np.random.default_rng(0)
    inputs = samples.inputs
    finest = max(SCALE_ALWAYS_USED, SCALE_PER_POINT * points ** (1 / len(samples.names)))
    scales = [scale for scale in FEATURE_SCALES if scale <= finest]
    per_scale = -(-FEATURES // (len(samples.fields) * max(MIN_SCALE_DIVISOR, len(scales))))
    scale = np.repeat(scales, per_scale)[:, None]
    return Dense(
        jnp.asarray(rng.normal(size=(len(scale), inputs)) * scale / np.sqrt(max(1, inputs / 2))),
        jnp.asarray(rng.uniform(0, 2 * np.pi, len(scale))),
    )


@one_thread()
@float64
def solve_correction(
    terms: Sequence[Term], network: Network, layer: Dense, fields: int
) -> tuple[Array, float]:
    """The coefficients c of the correction, by least squares, and the share of the squared residual
    that vanishes with it.

    Parameters
    ----------
    terms : the problem at the points of the estimate, in units of training.
    network : the network, in the same units.
    layer : the directions and phases of the features.
    fields : the number of unknown functions.

    Returns c (fields, features + 1), whose last column belongs to the constant feature 1, and the
    share, a number in [0, 1].
    """
    columns = len(layer.b) + 1
    gram = 0.0
    right = 0.0
    total = 0.0
    for term in terms:
        for chunk in _chunks(term):
            residual, derivative, weight = _linearised(chunk, network, layer, fields)
            root = jnp.sqrt(weight)
            A = (derivative * root[:, None, None]).reshape(-1, derivative.shape[-1])
            r = (residual * root[:, None]).reshape(-1)
            gram = gram + A.T @ A
            right = right + A.T @ r
            total = total + float(r @ r)
    if not np.isfinite(total):
        return jnp.full((fields, columns), jnp.nan), 0.0
    scale = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    gram = np.asarray(gram) / np.outer(scale, scale)
    right = np.asarray(right) / scale
    values, vectors = np.linalg.eigh(gram)
    full_rank = values > RANK_TOLERANCE * values[-1]  # smaller eigenvalues are rounding errors
    along = vectors[:, full_rank].T @ right
    coefficients = -(vectors[:, full_rank] @ (along / values[full_rank])) / scale
    explained = float(np.sum(along**2 / values[full_rank]) / total) if total > 0 else 1.0
    return jnp.asarray(coefficients[: fields * columns].reshape(fields, columns)), min(
        explained, 1.0
    )


def _chunks(term: Term) -> list[Term]:
    """A term in chunks of its samples. The more channels the term has, the smaller the chunks: the
    derivatives along all features then need about the same memory.
    """
    n = len(term.y)
    size = max(50, 4 * SAMPLES_PER_CHUNK // (3 + term.channels))

    def cut(begin):
        return jax.tree.map(
            lambda a: a[begin : begin + size] if a.ndim and len(a) == n else a, term
        )

    return [cut(begin) for begin in range(0, n, size)]


@jax.jit
def _output(network: Network, x: Jet) -> Jet:
    return network(x)


def _linearised(
    term: Term, network: Network, layer: Dense, fields: int
) -> tuple[Array, Array, Array]:
    """The residual of a term, its derivative along every feature, and the samples' weights.

    Shapes (n, rows), (n, rows, fields · (features + 1) + parameters) and (n,).
    """
    residual, pull_back = jax.vjp(term.residual, _output(network, term.x))
    n, rows = residual.shape
    z = lift(sin, layer(term.x))
    value = jnp.concatenate([z.value, jnp.ones((n, 1))], axis=1)
    channels = jnp.concatenate([z.tangents, jnp.zeros((*z.tangents.shape[:2], 1))], axis=2)
    derivatives = []
    for row in jnp.eye(rows):
        c = pull_back(jnp.broadcast_to(row, (n, rows)))[0]
        blocks = [
            c.value[:, i, None] * value + jnp.einsum("nk,nkf->nf", c.tangents[:, :, i], channels)
            for i in range(fields)
        ]
        derivatives.append(jnp.concatenate([*blocks, c.value[:, fields:]], axis=1))
    return residual, jnp.stack(derivatives, axis=1), jnp.broadcast_to(term.weight, (n,))


def _scaled_network(samples: Samples, weights: Weights, sigma: Activation) -> Network:
    """The network in the units of training, from its weights in the problem's own units."""
    pairs = [(jnp.asarray(W), jnp.asarray(b)) for W, b in samples.scaling.scaled(weights)]
    return Network.of(pairs, sigma, len(samples.parameters))


@float64
def correction(
    samples: Samples, terms: Sequence[Term], weights: Weights, sigma: Activation
) -> Correction:
    """The size of the correction of a network.

    Parameters
    ----------
    samples : the samples of training, for the units, functions and parameters.
    terms : the problem at the points of the estimate. The first term is the equation.
    weights : (W, b) of every layer in the problem's own units, with W (out, in).
    sigma : the activation.
    """
    fields = len(samples.fields)
    network = _scaled_network(samples, weights, sigma)
    layer = random_features(samples, len(terms[0].y))
    terms = [samples.scaling.term(term) for term in terms]
    coefficients, explained = solve_correction(terms, network, layer, fields)
    x = Jet(terms[0].x.value, terms[0].x.tangents[:, :0])
    z = sin(layer(x).value)
    e = jnp.concatenate([z, jnp.ones((len(z), 1))], axis=1) @ coefficients.T
    u = terms[0].composed_value(_output(network, x).value)[:, :fields]
    if isinstance(terms[0].operator, Composed):
        e = e * terms[0].operator.factor.value[:, :fields]
    u = u + e
    norm = float(jnp.linalg.norm(u))
    root = float(np.sqrt(u.size))
    relative = not norm <= ZERO_SIZE * root
    ratios = np.asarray(
        jnp.linalg.norm(e, axis=0) / jnp.maximum(jnp.linalg.norm(u, axis=0), 1e-300)
    )
    field_sizes = dict(zip(samples.fields, ratios.tolist(), strict=True)) if fields > 1 else {}
    size = float(jnp.linalg.norm(e)) / (norm if relative else root)
    return Correction(size, relative, explained, field_sizes)


# ---------------------------------------------------------------- measured values


def observations(problem: PDE | Function | Regression | None) -> list[Observed]:
    """The conditions of a PDE that are measurements."""
    if not isinstance(problem, PDE):
        return []
    return [
        condition for condition in problem.boundary_conditions if isinstance(condition, Observed)
    ]


def _measured_rows(terms: Sequence[Term], problem: PDE) -> list[np.ndarray]:
    """For each term a boolean array (n,) that says which of its samples are measurements."""
    measured_points = {
        row.tobytes()
        for condition in observations(problem)
        for row in np.ascontiguousarray(condition.place_in(problem.domain))
    }
    places = [
        np.ascontiguousarray(term.x.value if term.points is None else term.points, float)
        for term in terms
    ]
    return [  # the first term, k = 0, is the equation, which has no measurements
        np.array([k > 0 and row.tobytes() in measured_points for row in rows])
        for k, rows in enumerate(places)
    ]


@float64
def measurements_dominate(
    samples: Samples, problem: PDE | Function | Regression | None, network: Network
) -> bool:
    """Whether more than half of the loss of a network is the misfit of measurements.

    Parameters
    ----------
    samples, problem : the samples of training, and the problem.
    network : the network in the units of the terms (`sapm.problem.samples.network_of`).
    """
    if not isinstance(problem, PDE) or not observations(problem):
        return False
    misfit = 0.0
    total = 0.0
    for term, on in zip(samples.terms, _measured_rows(samples.terms, problem), strict=True):
        loss = np.asarray(
            term.weight * jnp.sum(term.residual(_output(network, term.x)) ** 2, axis=1)
        )
        misfit = misfit + float(loss[on].sum())
        total = total + float(loss.sum())
    return misfit > 0.5 * total


@one_thread()
@float64
def standard_errors(
    samples: Samples, terms: Sequence[Term], problem: PDE, weights: Weights, sigma: Activation
) -> np.ndarray:
    """The standard error of every parameter, (parameters,), caused by noise of the measurements.

    To first order the parameters are a linear function of the measurements. Their covariance
    follows from the squared misfit of each measurement, without a model of the noise (the
    heteroscedasticity-consistent estimate). The misfit of a measurement is smaller than its noise
    by the factor 1 - leverage, so it is divided by this factor.

    The error is infinite for a parameter that can change without an effect on the residual. All
    errors are NaN if there are not more measured values than parameters.

    Parameters
    ----------
    samples : the samples of training.
    terms : the problem at the points of the estimate.
    problem : the problem, for its measurements.
    weights, sigma : the network, as in `correction`.
    """
    measured = _measured_rows(terms, problem)
    count = len(samples.parameters)
    fields = len(samples.fields)
    network = _scaled_network(samples, weights, sigma)
    layer = random_features(samples, len(terms[0].y))
    gram = 0.0
    misfits = []
    for term, on_term in zip(terms, measured, strict=True):
        begin = 0
        for chunk in _chunks(samples.scaling.term(term)):
            residual, derivative, weight = (
                np.asarray(a) for a in _linearised(chunk, network, layer, fields)
            )
            on = on_term[begin : begin + len(residual)]
            gram = gram + np.einsum("nrf,n,nrg->fg", derivative, weight, derivative, optimize=True)
            misfits.append(
                (
                    derivative[on].reshape(-1, derivative.shape[2]),
                    np.repeat(weight[on], residual.shape[1]),
                    residual[on].ravel(),
                )
            )
            begin += len(residual)
    A, weight, misfit = (np.concatenate(parts) for parts in zip(*misfits, strict=True))
    if len(misfit) <= count:
        return np.full(count, np.nan)
    scale = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    values, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
    full_rank = values > RANK_TOLERANCE * values[-1]
    scores = (A / scale) @ vectors[:, full_rank] / np.sqrt(values[full_rank])
    leverage = weight * np.sum(scores**2, axis=1)
    noise = misfit / np.maximum(1 - leverage, 1e-3)
    rows = vectors[-count:, full_rank] / np.sqrt(values[full_rank]) / scale[-count:, None]
    errors = np.linalg.norm((rows @ scores.T) * weight * noise, axis=1)
    free = np.linalg.norm(vectors[-count:, ~full_rank], axis=1) > UNDETERMINED_SHARE
    return np.where(free, np.inf, errors) * np.abs(samples.scaling.units)


# From this relative error on, the sentence says that u is not a solution.
NO_SOLUTION_ERROR = 0.3
# Three limits for `explained`, the share of the squared residual that vanishes with the correction
RELIABLE_SHARE = 0.7
NEGLIGIBLE_SHARE = 0.2
COMPLETE_SHARE = 0.995
# A residual that no correction explains is suspicious above this multiple of the estimate, if it is
# above NEGLIGIBLE_DISTANCE too.
SUSPICIOUS_RESIDUAL = 3.0
# The distance to another seed is judged only if the loss of that seed is at most so many times as
# large.
COMPARABLE_LOSS_RATIO = 1e4
FAR_DISTANCE = 30.0  # as a multiple of the estimate
# A relative distance or residual below this is never a reason for doubt.
NEGLIGIBLE_DISTANCE = 1e-3
FEWEST_CHARACTERISTICS = 25  # the least number that is followed, and the number in a batch
REMEDIES = (
    "Take more steps (or time), points or seeds, a larger network, or hard=True conditions; for "
    "long time intervals see docs/choosing.md."
)


@dataclass(frozen=True)
class ErrorEstimate:
    """The error of a solution: a number, and a sentence that says how reliable the number is. `str`
    gives the sentence.

    Parameters
    ----------
    error : the relative ℓ² error of u at the points; NaN if there is no estimate.
    kind : "measured" (against an accurate solution) or "estimated".
    points : the number of points.
    relative : False if u is zero. The error is then absolute, in units of the data.
    field_errors : for a system, the relative error of every function.
    explained : the share of the squared residual that the estimate accounts for, if it is known.
    doubtful : whether u may not be a solution for a reason other than the size of the error.
    sentence : what the summary prints; "": a sentence is made of the other fields.
    """

    error: float
    kind: Literal["measured", "estimated"] = "estimated"
    points: int | None = None
    relative: bool = True
    field_errors: dict[str, float] = field(default_factory=dict)
    explained: float | None = None
    doubtful: bool = False
    sentence: str = ""

    @classmethod
    def missing(cls, reason: str) -> ErrorEstimate:
        """No estimate, and why."""
        return cls(float("nan"), sentence=f"No error estimate: {reason}")

    @property
    def known(self) -> bool:
        """Whether there is an estimate."""
        return bool(np.isfinite(self.error))

    @property
    def no_solution(self) -> bool:
        """Whether u is not a solution, or may not be one; the sentence then says so in capitals."""
        return self.known and (self.doubtful or (self.relative and self.error >= NO_SOLUTION_ERROR))

    def __str__(self) -> str:
        if self.sentence:
            return printable(self.sentence)
        name = "Error" if self.kind == "measured" else "Error estimate"
        text = f"{name} {self.error:.1e} ({_kind_of_size(self.relative, self.field_errors)})"
        text += f" at {self.points} points." if self.points is not None else "."
        text = f"{text} THIS IS NOT A SOLUTION. {REMEDIES}" if self.no_solution else text
        return printable(text)


class ErrorEstimator(Protocol):
    """An error estimator: a function or any other callable."""

    def __call__(self, result: Result, seed: int, /) -> ErrorEstimate:
        """The error of `result.seeds[seed]`, or `ErrorEstimate.missing(reason)`."""
        ...


def estimate_error(
    result: Result, seed: int, estimator: ErrorEstimator | None = None
) -> ErrorEstimate:
    """The error estimate of a seed.

    Parameters
    ----------
    result, seed : the result, and the index of the seed in it.
    estimator : the estimator; None: the first built-in one that has an estimate.
    """
    estimators = BUILT_IN if estimator is None else (estimator,)
    estimate = ErrorEstimate.missing("there is no estimator.")
    for each in estimators:
        estimate = each(result, seed)
        if not isinstance(estimate, ErrorEstimate):
            raise TypeError(
                f"estimator={brief(each)} returned {brief(estimate)}; expected a "
                "sapm.ErrorEstimate."
            )
        if estimate.known:
            break
    return estimate


def _kind_of_size(relative: bool, field_errors: dict[str, float]) -> str:
    if not relative:
        return "absolute, since u is 0"
    return "relative" + "".join(f"; {name} {error:.1e}" for name, error in field_errors.items())


# ---------------------------------------------------------------- along characteristics


@dataclass(frozen=True)
class FollowCharacteristics:
    """The measured error, for first-order linear equations whose characteristics determine u.

    The equation is integrated along the characteristic through every held-out point, and the
    network is compared with this value of u.

    Parameters
    ----------
    points : the largest number of held-out points.
    seconds : after this time no further batch of characteristics is begun.
    tolerance : the relative tolerance of the integration.
    """

    points: int = 200
    seconds: float = 3.0
    tolerance: float = 1e-9

    def __call__(self, result: Result, seed: int, /) -> ErrorEstimate:
        """The measured error of a seed."""
        problem = result.problem
        x = result.samples.test.get("x")
        if not isinstance(problem, PDE) or not problem.has_characteristics or problem.ill_posed:
            return ErrorEstimate.missing("characteristics do not determine u.")
        if x is None or len(x) < FEWEST_CHARACTERISTICS:
            return ErrorEstimate.missing(
                f"there are fewer than {FEWEST_CHARACTERISTICS} held-out points."
            )
        x = x[: self.points]
        exact = np.zeros(0)
        deadline = time.monotonic() + self.seconds
        while len(exact) < len(x) and (not len(exact) or time.monotonic() < deadline):
            batch = x[len(exact) : len(exact) + FEWEST_CHARACTERISTICS]
            exact = np.append(
                exact, solve_by_characteristics(problem, batch, self.tolerance, quick=True)
            )
        known = np.flatnonzero(np.isfinite(exact))
        if len(known) < len(exact) / 2 or not np.any(exact[known]):
            return ErrorEstimate.missing("most characteristics take too long to integrate.")
        exact = exact[known]
        difference = result.seeds[seed](x[known]) - exact
        error = float(np.linalg.norm(difference) / np.linalg.norm(exact))
        sentence = (
            f"Error {error:.1e} (relative): u was compared with its values along the "
            f"characteristics through {len(known)} held-out points."
        )
        if error >= NO_SOLUTION_ERROR:
            sentence += f" THIS IS NOT A SOLUTION. {REMEDIES}"
        return ErrorEstimate(error, "measured", len(known), explained=1.0, sentence=sentence)


# ---------------------------------------------------------------- by a least-squares correction


@dataclass(frozen=True)
class OtherSeed:
    """The best of the other seeds.

    Parameters
    ----------
    distance : its relative ℓ² distance from the seed whose error is estimated.
    loss_ratio : its loss divided by the loss of that seed.
    """

    distance: float
    loss_ratio: float = 1.0


@dataclass(frozen=True)
class Evidence:
    """All that the sentence of an estimate by least-squares correction is made of.

    Parameters
    ----------
    correction : the correction.
    points : the number of points at which it was computed.
    new_points : whether these are other points than those of training.
    more_points : whether they are more than those of training.
    residual : the residual at the points of training, relative to the data.
    noise_dominates : whether most of the loss is the misfit of measurements. Not even the exact
        solution fits noise.
    other_seed : the best other seed; None if there is no other seed.
    """

    correction: Correction
    points: int
    new_points: bool = True
    more_points: bool = True
    residual: float = 0.0
    noise_dominates: bool = False
    other_seed: OtherSeed | None = None

    def estimate(self) -> ErrorEstimate:
        """The estimate, with its sentence."""
        correction = self.correction
        return ErrorEstimate(
            correction.size,
            points=self.points,
            relative=correction.relative,
            field_errors=correction.field_sizes,
            explained=correction.explained,
            doubtful=self._residual_unexplained,
            sentence=self._sentence(),
        )

    @property
    def _residual_unexplained(self) -> bool:
        """Whether the residual is large, and no correction lowers it much: at a local minimum."""
        return (
            self.correction.explained < NEGLIGIBLE_SHARE
            and self.residual > max(SUSPICIOUS_RESIDUAL * self.correction.size, NEGLIGIBLE_DISTANCE)
            and not self.noise_dominates
        )

    def _sentence(self) -> str:
        error = self.correction.size
        relative = self.correction.relative
        explained = self.correction.explained
        percent = int(100 * explained)
        if not np.isfinite(error):
            return "No error estimate: the network or its residual is not finite."
        size = f"{error:.1e} ({_kind_of_size(relative, self.correction.field_sizes)})"
        if relative and error >= NO_SOLUTION_ERROR:
            return f"Error estimate {size}: THIS IS NOT A SOLUTION. {REMEDIES}"
        if self._residual_unexplained:
            return (
                f"No error estimate: the residual is {self.residual:.1e}, relative to the data, "
                f"and a correction removes only {percent} % of its square. THIS MAY NOT BE A "
                f"SOLUTION, even if the seeds agree. {REMEDIES}"
            )
        points = "some of them those of training; give the problem for others"
        if self.new_points:
            points = "other than those of training" + (", and more" if self.more_points else "")
        share = "all" if explained >= COMPLETE_SHARE else f"{percent} %"
        text = (
            f"Error estimate {size}: at {self.points} points ({points}), a correction of this size "
            f"removes {share} of the squared residual"
        )
        if explained < RELIABLE_SHARE and self.noise_dominates:
            text += (
                f"; what remains is the difference between the equation and the measurements "
                f"({self.residual:.1e}, relative to the data). If that is noise, give Observed a "
                "tenth of its weight, so that u follows it less. The effect of noise on u is not "
                "estimated."
            )
        elif explained < RELIABLE_SHARE:
            text += "; the true error may be ten times as large."
        elif not self.new_points or self._contradicted:
            text += "; the true error may be several times as large."
        else:
            text += "."
        return text + self._of_other_seed()

    @property
    def _contradicted(self) -> bool:
        """Whether the distance to the other seed contradicts the estimate, since it is larger than
        the sum of both errors. The error of the other seed is taken as the estimate times the
        square root of the ratio of losses (at least 1).
        """
        other = self.other_seed
        return (
            other is not None
            and self._comparable(other)
            and other.distance > self.correction.size * (1 + np.sqrt(max(1.0, other.loss_ratio)))
        )

    def _comparable(self, other: OtherSeed) -> bool:
        return self.correction.relative and other.loss_ratio <= COMPARABLE_LOSS_RATIO

    def _of_other_seed(self) -> str:
        other = self.other_seed
        if other is None or not self.correction.relative:
            return ""
        if not self._comparable(other):
            return (
                f" The next best seed has a loss {other.loss_ratio:.0e} times as large, so it "
                "cannot confirm this."
            )
        name = "next best" if other.loss_ratio >= 1 else "best"
        text = f" The {name} seed differs from it by {other.distance:.1e} (relative)"
        growth = np.sqrt(max(1.0, other.loss_ratio))
        if other.distance <= max(NEGLIGIBLE_DISTANCE, FAR_DISTANCE * self.correction.size * growth):
            return f"{text}."
        return (
            f"{text}, far more than the estimate: the equation and its conditions may leave u "
            "open, it may have several solutions, or there may be too few points; trust none of "
            "the seeds."
        )


@dataclass(frozen=True)
class LeastSquaresCorrection:
    """The estimated error, for any PDE: the size of the correction that solves the linearised
    equation (`correction`).

    Parameters
    ----------
    points : the largest number of points inside the domain. There are four times as many as points
        of training, if that is less.
    """

    points: int = 8000

    def __call__(self, result: Result, seed: int, /) -> ErrorEstimate:
        """The estimated error of a seed."""
        samples = result.samples
        if samples.kind != "pde":
            return ErrorEstimate.missing(
                "this estimator solves the linearised equation of the error, so it needs a PDE."
            )
        u = result.seeds[seed]
        terms = self.terms(result)
        points = len(terms[0].y)
        network = network_of(samples, u.network_weights, u.sigma)
        return Evidence(
            correction=correction(samples, terms, u.network_weights, u.sigma),
            points=points,
            new_points=isinstance(result.problem, PDE),
            more_points=points > len(samples.terms[0].y),
            residual=result.table[seed]["train_error"] or 0.0,
            noise_dominates=measurements_dominate(samples, result.problem, network),
            other_seed=_best_other_seed(result, seed),
        ).estimate()

    def terms(self, result: Result) -> tuple[Term, ...]:
        """The problem at the points of the estimate: at other points than those of training, and
        more of them. For a result without its problem, the points of training and the held-out
        points.
        """
        samples = result.samples
        problem = result.problem
        if not isinstance(problem, PDE):
            return (
                samples.terms
                if samples.test_equation is None
                else (samples.test_equation, *samples.terms)
            )
        boundary = 2 * sum(len(term.y) for term in samples.terms[1:])
        boundary = max(boundary, len(problem.boundary_conditions))
        x = self._interior_points(result, problem)
        return problem.samples(x, boundary, 0, result.plan.mu).terms

    def standard_errors(self, result: Result) -> dict[str, float]:
        """The standard error of every parameter of the best seed, by its name, from the misfit of
        the measurements (`Observed`). It is empty for a problem without measurements.
        """
        samples = result.samples
        problem = result.problem
        if not isinstance(problem, PDE) or not observations(problem):
            return {}
        x = self._interior_points(result, problem)
        boundary = result.plan.boundary_points
        terms = problem.samples(x, boundary, 0, result.plan.mu).terms
        u = result.best
        errors = standard_errors(samples, terms, problem, u.network_weights, u.sigma)
        named = zip(samples.parameters, errors.tolist(), strict=True)
        return {name: error for name, error in named if not np.isnan(error)}

    def _interior_points(self, result: Result, problem: PDE) -> np.ndarray:
        """Halton points after those of training and those held out."""
        trained = len(result.samples.terms[0].y)
        held_out = len(result.samples.test.get("x", ()))
        domain = problem.domain
        return domain.points(min(4 * trained, self.points), domain.first + trained + held_out)


def _best_other_seed(result: Result, seed: int) -> OtherSeed | None:
    """The best seed other than this one; None if there is none, or no held-out points."""
    run = result.run
    x = result.samples.test.get("x")
    others = [i for i in run.ranking if i != seed and not run.status[i].lost]
    if not others or x is None:
        return None
    best = others[0]
    score = run.final("loss") if run.scores is None else run.scores  # what seeds are ranked by
    distance = relative_error(result.seeds[best](x), result.seeds[seed](x))
    return OtherSeed(distance, float(score[best] / max(score[seed], 1e-300)))


BUILT_IN: tuple[ErrorEstimator, ...] = (FollowCharacteristics(), LeastSquaresCorrection())
