"""How wrong a solution is, without knowing the right one.

An error estimator is a callable `(result, seed) -> ErrorEstimate`. Two are built in and tried in
this order:

* `FollowCharacteristics` measures the error of first-order linear equations. It integrates the
  equation along its characteristics.
* `LeastSquaresCorrection` estimates the error of every other PDE. It solves the linearised equation
  of the error (`sapm.results.correction`).

Another one is passed to `result.error_estimate(estimator=…)` or `result.summary(estimator=…)`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from sapm.errors import brief
from sapm.objective.terms import Term
from sapm.problem.characteristics import reference
from sapm.problem.pde import PDE
from sapm.problem.samples import network_of
from sapm.results.correction import (
    Correction,
    correction,
    measurements_dominate,
    observations,
    standard_errors,
)
from sapm.results.solution import relative_error

if TYPE_CHECKING:
    from sapm.results.result import Result

NO_SOLUTION_ERROR = 0.3  # relative; from here on the sentence says that this is no solution
# share of the squared residual that a correction explains
RELIABLE_SHARE = 0.7
NEGLIGIBLE_SHARE = 0.2
COMPLETE_SHARE = 0.995
# an unexplained residual is suspicious above this multiple of the estimate, and above NEAR
SUSPICIOUS_RESIDUAL = 3.0
# the distance to another seed is judged only if its loss is at most this many times as large
COMPARABLE_LOSS_RATIO = 1e4
FAR_DISTANCE = 30.0  # in estimates
NEAR = 1e-3  # relative; a distance or a residual below it is never a reason for doubt
FEWEST_CHARACTERISTICS = 25  # also how many are followed at a time
CURES = (
    "Take more steps (or time), points or seeds, a larger network, or hard=True conditions; for "
    "long time intervals see docs/choosing.md."
)


@dataclass(frozen=True)
class ErrorEstimate:
    """How wrong a solution is: a number, and a sentence (`str` of it) that says how far to trust
    the number.

    error: relative ℓ² error of u at the points; NaN if there is no estimate.
    kind: "measured" (against an accurate solution) or "estimated".
    points: at how many points.
    relative: False where u is zero; the error is then absolute, in units of the data.
    field_errors: for a system, the relative error of every function.
    explained: share of the squared residual that the estimate accounts for, if it has one.
    doubtful: whether anything else than the size of the error says that u may be no solution.
    sentence: what the summary prints. Without one, a sentence is made of the other fields.
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
        """Whether u is, or may be, no solution at all; the sentence then says so in capitals."""
        return self.known and (self.doubtful or (self.relative and self.error >= NO_SOLUTION_ERROR))

    def __str__(self) -> str:
        if self.sentence:
            return self.sentence
        name = "Error" if self.kind == "measured" else "Error estimate"
        text = f"{name} {self.error:.1e} ({_kind_of_size(self.relative, self.field_errors)})"
        text += f" at {self.points} points." if self.points is not None else "."
        return f"{text} THIS IS NO SOLUTION. {CURES}" if self.no_solution else text


class ErrorEstimator(Protocol):
    """What estimates errors: a function or any other callable."""

    def __call__(self, result: Result, seed: int, /) -> ErrorEstimate:
        """The error of `result.seeds[seed]`, or `ErrorEstimate.missing(reason)`."""
        ...


def estimate_error(
    result: Result, seed: int, estimator: ErrorEstimator | None = None
) -> ErrorEstimate:
    """The estimate of the given estimator, or of the first built-in one that has an answer."""
    estimators = BUILT_IN if estimator is None else (estimator,)
    estimate = ErrorEstimate.missing("no estimator was asked.")
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
    """The error itself, for first-order linear equations whose characteristics meet the data.

    u is integrated along the characteristic through every held-out point and compared with the
    network.

    points: how many held-out points at most; seconds: when to stop following more of them.
    """

    points: int = 200
    seconds: float = 3.0
    tolerance: float = 1e-9

    def __call__(self, result: Result, seed: int, /) -> ErrorEstimate:
        """The measured error of a seed."""
        problem = result.problem
        x = result.samples.test.get("x")
        if not isinstance(problem, PDE) or not problem.followed or problem.ill_posed:
            return ErrorEstimate.missing("characteristics do not determine u.")
        if x is None or len(x) < FEWEST_CHARACTERISTICS:
            return ErrorEstimate.missing(f"it needs {FEWEST_CHARACTERISTICS} held-out points.")
        x = x[: self.points]
        exact = np.zeros(0)
        deadline = time.monotonic() + self.seconds
        while len(exact) < len(x) and (not len(exact) or time.monotonic() < deadline):
            batch = x[len(exact) : len(exact) + FEWEST_CHARACTERISTICS]
            exact = np.append(exact, reference(problem, batch, self.tolerance, quick=True))
        known = np.flatnonzero(np.isfinite(exact))
        if len(known) < len(exact) / 2 or not np.any(exact[known]):
            return ErrorEstimate.missing("most characteristics take too long to follow.")
        exact = exact[known]
        difference = result.seeds[seed](x[known]) - exact
        error = float(np.linalg.norm(difference) / np.linalg.norm(exact))
        sentence = (
            f"Error {error:.1e} (relative): u by the characteristics through {len(known)} other "
            "points."
        )
        if error >= NO_SOLUTION_ERROR:
            sentence += f" THIS IS NO SOLUTION. {CURES}"
        return ErrorEstimate(error, "measured", len(known), explained=1.0, sentence=sentence)


# ---------------------------------------------------------------- by a least-squares correction


@dataclass(frozen=True)
class OtherSeed:
    """The best other seed: its relative ℓ² distance, and its loss as a multiple of this one's."""

    distance: float
    loss_ratio: float = 1.0


@dataclass(frozen=True)
class Evidence:
    """What is known of a least-squares correction when its estimate is worded.

    correction: the correction.
    points: at how many points it was computed.
    new_points: whether these are not the points trained on; more_points: and more of them.
    residual: the training residual, relative to the data.
    noise_dominates: whether most of the loss is the misfit of measurements, which no u need fit.
    other_seed: the best other seed, if there are several.
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
        """Whether a large residual remains that hardly any correction explains: a local minimum."""
        return (
            self.correction.explained < NEGLIGIBLE_SHARE
            and self.residual > max(SUSPICIOUS_RESIDUAL * self.correction.size, NEAR)
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
            return f"Error estimate {size}: THIS IS NO SOLUTION. {CURES}"
        if self._residual_unexplained:
            return (
                f"No error estimate: the residual is still {self.residual:.1e} of the data, and a "
                f"correction accounts for {percent} % of it. THIS MAY BE NO SOLUTION, even where "
                f"seeds agree. {CURES}"
            )
        points = "with the problem given there are more"
        if self.new_points:
            points = "not those trained on" + (", and more of them" if self.more_points else "")
        share = "all" if explained >= COMPLETE_SHARE else f"{percent} %"
        text = (
            f"Error estimate {size}: at {self.points} points ({points}) a correction of that size "
            f"accounts for {share} of the residual there"
        )
        if explained < RELIABLE_SHARE and self.noise_dominates:
            text += (
                f"; the equation and the measurements disagree by the rest, {self.residual:.1e} of "
                "the data. If that is noise, give Observed a tenth of its weight to follow it less;"
                " the effect of noise on u is not estimated."
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
        """Whether the other seed is farther away than two errors of the estimated size would put
        it. (Errors grow like square roots of losses.)
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
                f" The next best seed's loss is {other.loss_ratio:.0e} times as large, so it does "
                "not corroborate this."
            )
        name = "next best" if other.loss_ratio >= 1 else "best"
        text = f" The {name} seed is {other.distance:.1e} away"
        growth = np.sqrt(max(1.0, other.loss_ratio))
        if other.distance <= max(NEAR, FAR_DISTANCE * self.correction.size * growth):
            return f"{text}."
        return (
            f"{text}, far more than that: either the equation and its conditions leave u open, or "
            "it has several solutions, or there are too few points; do not trust any."
        )


@dataclass(frozen=True)
class LeastSquaresCorrection:
    """The size of the correction that the linearised equation asks for (`results.correction`).

    points: how many points inside the domain at most; up to four times as many as trained on.
    """

    points: int = 8000

    def __call__(self, result: Result, seed: int, /) -> ErrorEstimate:
        """The estimated error of a seed."""
        samples = result.samples
        if samples.kind != "pde":
            return ErrorEstimate.missing("it solves the equation of the error, so it needs a PDE.")
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
        """The problem at more and other points than it was trained on; of a result without its
        problem, at the held-out points beside those trained on.
        """
        samples = result.samples
        problem = result.problem
        if not isinstance(problem, PDE):
            return samples.terms if samples.held is None else (samples.held, *samples.terms)
        boundary = 2 * sum(len(term.y) for term in samples.terms[1:])
        boundary = max(boundary, len(problem.stated))
        x = self._interior_points(result, problem)
        return problem.samples(x, boundary, 0, result.plan.mu).terms

    def standard_errors(self, result: Result) -> dict[str, float]:
        """The standard error of every parameter of the best seed, from the misfit of the measured
        values (`Observed`); without parameters or measurements an empty dictionary.
        """
        samples = result.samples
        problem = result.problem
        if not samples.parameters or not isinstance(problem, PDE) or not observations(problem):
            return {}
        x = self._interior_points(result, problem)
        boundary = result.plan.boundary_points
        terms = problem.samples(x, boundary, 0, result.plan.mu).terms
        u = result.best
        errors = standard_errors(samples, terms, problem, u.network_weights, u.sigma)
        named = zip(samples.parameters, errors.tolist(), strict=True)
        return {name: error for name, error in named if not np.isnan(error)}

    def _interior_points(self, result: Result, problem: PDE) -> np.ndarray:
        """Halton points after those trained on and held out."""
        trained = len(result.samples.terms[0].y)
        held_out = len(result.samples.test.get("x", ()))
        domain = problem.domain
        return domain.points(min(4 * trained, self.points), domain.first + trained + held_out)


def _best_other_seed(result: Result, seed: int) -> OtherSeed | None:
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
