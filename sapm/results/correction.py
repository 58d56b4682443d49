"""The linearised equation of the error, solved by least squares among random features.

A network u leaves residuals F(u) in the equation and its conditions. To first order its error e
satisfies F'(u) e = -F(u). With random features z_k(x) = sin(w_k·x + φ_k) and e = Σ_k c_k z_k + c_0,

    min over c of  Σ_i weight_i |F(u)_i + (F'(u) e)_i|²

is one linear least-squares problem. It is posed at points that were not trained on. The unknown
numbers of a problem (its parameters) are corrected together with u.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sapm.numerics.activations import Activation, sin
from sapm.numerics.jets import Jet, lift
from sapm.numerics.layers import Dense
from sapm.numerics.network import Network
from sapm.objective.operators import Composed
from sapm.objective.terms import Term
from sapm.precision import float64, one_thread
from sapm.problem.conditions import Observed
from sapm.problem.data import Function, Regression
from sapm.problem.pde import PDE
from sapm.problem.samples import Samples, Weights

FEATURES = 2000  # for all functions of a system together
FEATURE_SCALES = tuple(2.0**k for k in range(9))  # lengths of w_k, in equal shares
FEWEST_SHARES = 6  # with fewer usable scales, fewer features are drawn
# a scale is used up to this value, or up to this many times the points along one coordinate
SCALE_ALWAYS_USED = 8.0
SCALE_PER_POINT = 0.55
SAMPLES_PER_CHUNK = 1000
RANK_TOLERANCE = 1e-13  # eigenvalues below this fraction of the largest are treated as zero
ZERO_SIZE = 1e-6  # root mean square of u, in units of the data, below which u counts as zero
UNDETERMINED_SHARE = 1e-2  # of a parameter in the null space: the data do not determine it


@dataclass(frozen=True)
class Correction:
    """The correction e of a network, measured at the points of the first term.

    size: ‖e‖ / ‖u + e‖, or the root mean square of e in units of the data where u is zero.
    relative: whether size is relative to u.
    explained: share of the squared residual that the correction accounts for, between 0 and 1.
    field_sizes: for a system, the relative size of the correction of every function.
    """

    size: float
    relative: bool
    explained: float
    field_sizes: dict[str, float] = field(default_factory=dict)


def random_features(samples: Samples, points: int) -> Dense:
    """Random directions w_k and phases φ_k for inputs scaled to [-1, 1].

    Only scales that this many points can resolve are used: a sine of a finer scale would fit any
    values at the points.
    """
    rng = np.random.default_rng(0)
    inputs = samples.inputs
    finest = max(SCALE_ALWAYS_USED, SCALE_PER_POINT * points ** (1 / len(samples.names)))
    scales = [scale for scale in FEATURE_SCALES if scale <= finest]
    per_scale = -(-FEATURES // (len(samples.fields) * max(FEWEST_SHARES, len(scales))))
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
    """The least-squares coefficients and the share of the squared residual that they explain.

    terms: the problem at the points of the estimate, in units of training.
    layer: the features; fields: the number of unknown functions.

    Returns c (fields, features + 1), whose last column is the constant, and a number in [0, 1].
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
    full_rank = values > RANK_TOLERANCE * values[-1]  # the others are lost in rounding
    along = vectors[:, full_rank].T @ right
    coefficients = -(vectors[:, full_rank] @ (along / values[full_rank])) / scale
    explained = float(np.sum(along**2 / values[full_rank]) / total) if total > 0 else 1.0
    return jnp.asarray(coefficients[: fields * columns].reshape(fields, columns)), min(
        explained, 1.0
    )


def _chunks(term: Term) -> list[Term]:
    """The term's samples in chunks whose derivatives along all features need about equal memory."""
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
    """The network with these weights (in the problem's units) in the units of training."""
    pairs = [(jnp.asarray(W), jnp.asarray(b)) for W, b in samples.scaling.scaled(weights)]
    return Network.of(pairs, sigma, len(samples.parameters))


@float64
def correction(
    samples: Samples, terms: Sequence[Term], weights: Weights, sigma: Activation
) -> Correction:
    """The correction of the network with these weights.

    samples: what the network was trained on (for its units, functions and parameters).
    terms: the problem at the points of the estimate; the first holds the equation.
    weights: (W, b) of every layer in the problem's units, W is (out, in).
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
    return [condition for condition in problem.stated if isinstance(condition, Observed)]


def _measured_rows(terms: Sequence[Term], problem: PDE) -> list[np.ndarray]:
    """For each term a boolean array: which of its samples are measurements."""
    measured_points = {
        row.tobytes()
        for condition in observations(problem)
        for row in np.ascontiguousarray(condition.place_in(problem.domain))
    }
    places = [
        np.ascontiguousarray(term.x.value if term.points is None else term.points, float)
        for term in terms
    ]
    return [  # the first term holds the equation
        np.array([k > 0 and row.tobytes() in measured_points for row in rows])
        for k, rows in enumerate(places)
    ]


@float64
def measurements_dominate(
    samples: Samples, problem: PDE | Function | Regression | None, network: Network
) -> bool:
    """Whether more than half of the loss is the misfit of measurements."""
    if not isinstance(problem, PDE) or not observations(problem):
        return False
    misfit = total = 0.0
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
    """Standard error of every parameter, caused by the noise of the measured values.

    To first order the parameters are a linear function of the measurements. Their covariance
    follows from the squared misfit of each measurement, without a model of the noise (the
    heteroscedasticity-consistent estimate). A misfit is smaller than the noise, by the leverage of
    the measurement; this factor is divided out.

    terms: the problem at the points of the estimate. Returns (parameters,): infinite where a
    parameter can change without any effect, NaN where there are no more values than parameters.
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
