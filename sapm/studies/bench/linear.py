"""Methods that train no network: random features with least squares, and simple references.

The references are the best constant, the best affine function and linear interpolation. A trained
network should do better than these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from sapm.numerics.jets import Jet, lift
from sapm.numerics.network import Network
from sapm.objective.terms import directional
from sapm.results.solution import relative_error
from sapm.studies.bench.peers import Trainer
from sapm.studies.bench.task import Clock, Outcome, Task

FREQUENCY_SCALES = (1.0, 3.0, 10.0, 30.0, 100.0)  # on inputs mapped to [-1, 1]
PIVOT_CUTOFF = 1e-13  # as a fraction of the largest pivot; smaller pivots are dropped
RELATIVE_RIDGE = 1e-13  # as a fraction of the trace
VALIDATION_FOLDS = 5  # one of them validates


def _solve(A: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Least squares by QR with pivoting.

    Several times faster than by singular values, and as accurate for these matrices.
    """
    from scipy.linalg import lstsq

    return lstsq(A, y, cond=PIVOT_CUTOFF, lapack_driver="gelsy")[0]  # type: ignore[index]


def _solve_roughly(A: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Least squares by normal equations with a small ridge: fast, and accurate enough to choose."""
    G = A.T @ A
    return np.linalg.solve(G + RELATIVE_RIDGE * np.trace(G) * np.eye(len(G)), A.T @ y)


def system(task: Task, features: Callable[[Jet], Jet]) -> tuple[np.ndarray, np.ndarray]:
    """A (r, k) and y (r, 1) of the least-squares problem |A c - y|² for the coefficients c.

    Σ over all terms of weight · (residual of Σ c_k · feature k)² is |A c - y|².

    Parameters
    ----------
    task : a case whose problem is linear
    features : jet of points → jet with the k features as outputs
    """
    rows = []
    right = []
    for term in map(directional, task.samples.terms):
        if term.nonlinear:
            raise ValueError(
                f"{task.case.experiment} is not linear, so there is no linear system for it; train "
                "a network on it."
            )
        applied = np.asarray(term.residual(features(term.x)) + term.y)
        weight = np.sqrt(np.broadcast_to(np.asarray(term.weight), len(applied)))[:, None]
        rows.append(weight * applied)
        right.append(weight * np.asarray(term.y))
    return np.concatenate(rows), np.concatenate(right)


def _with_constant(jet: Jet) -> Jet:
    """The jet with the constant 1 as its last output."""
    value = jnp.pad(jet.value, [(0, 0), (0, 1)], constant_values=1.0)
    return Jet(value, jnp.pad(jet.tangents, [(0, 0), (0, 0), (0, 1)]), jet.forms)


def _validation_error(A: np.ndarray, y: np.ndarray) -> float:
    """The error on a random fifth of the rows of a fit to the others."""
    order = np.random.default_rng(0).permutation(len(A))
    validation = order % VALIDATION_FOLDS == VALIDATION_FOLDS - 1
    c = _solve_roughly(A[~validation], y[~validation])
    return float(np.linalg.norm(A[validation] @ c - y[validation]))


def random_features(task: Task, count: int) -> Trainer:
    """Least squares with the features σ(w·x + b), w uniform, and a constant.

    Several scales of w are tried: each is fitted to four fifths of the rows, and the scale with the
    smallest error on the other rows is taken. The clock runs meanwhile.

    Parameters
    ----------
    task : a case whose problem is linear
    count : the number of features
    """
    x = np.concatenate([np.asarray(term.x.value) for term in task.samples.terms])
    low = x.min(0)
    high = x.max(0)
    centre = (low + high) / 2
    half = (high - low) / 2
    scales = (1.0,) if task.sigma.name == "relu" else FREQUENCY_SCALES

    def train(clock: Clock, seed: int, track: str) -> Outcome:
        # the first snapshot is the prediction 0
        squares = (term.weight * term.y[:, 0] ** 2 for term in task.samples.terms)
        zero_loss = float(sum(np.sum(square) for square in squares))
        clock.start(lambda: (1.0, zero_loss))
        random = np.random.default_rng(seed)
        w = random.uniform(-1, 1, (count, len(low)))
        kinks = random.uniform(-1, 1, (count, len(low)))
        phase = random.uniform(-np.pi, np.pi, count)
        candidates = []
        for scale in scales:
            W = scale * w / half
            b = (phase if task.sigma.name == "sin" else -scale * np.sum(w * kinks, 1)) - W @ centre

            def features(x, W=W, b=b):
                return _with_constant(
                    lift(task.sigma, Jet(x.value @ W.T + b, x.tangents @ W.T, x.forms))
                )

            A, y = system(task, features)
            error = _validation_error(A, y) if len(scales) > 1 else 0.0
            candidates.append((error, W, b, A, y))
        _, W, b, A, y = min(candidates, key=lambda candidate: candidate[0])
        c = _solve(A, y)
        network = Network.of(
            [(jnp.asarray(W), jnp.asarray(b)), (jnp.asarray(c[:-1].T), jnp.asarray(c[-1]))],
            task.sigma,
        )
        clock.keep(lambda: task.measure(network))
        return Outcome("finished", "solved.")

    return train


def polynomial(task: Task, degree: int) -> Trainer:
    """The constant (degree 0) or the affine function (degree 1) with the smallest true loss."""

    def features(x):
        return _with_constant(
            x if degree else replace(x, value=x.value[:, :0], tangents=x.tangents[:, :, :0])
        )

    def train(clock: Clock, seed: int, track: str) -> Outcome:
        A, y = system(task, features)
        clock.start(lambda: (1.0, float(np.sum(y**2))))
        c = _solve(A, y)
        x = jnp.asarray(task.samples.test["x"])
        error = relative_error(
            features(Jet(x, jnp.zeros((len(x), 0, x.shape[1])))).value @ c, task.samples.test["y"]
        )
        clock.keep(lambda: (error, float(np.sum((A @ c - y) ** 2))))
        return Outcome("finished", "solved.")

    return train


def interpolation(task: Task) -> Trainer:
    """Linear interpolation of the training data of a function of one variable.

    The first and the last line are extended beyond the data.
    """
    (term,) = task.samples.terms

    def train(clock: Clock, seed: int, track: str) -> Outcome:
        x = np.asarray(term.x.value)[:, 0]
        y = np.asarray(term.y)[:, 0]
        clock.start(lambda: (1.0, float(np.mean(y**2))))
        order = np.argsort(x)
        x = x[order]
        y = y[order]
        at = task.samples.test["x"][:, 0]
        k = np.clip(np.searchsorted(x, at) - 1, 0, len(x) - 2)
        value = y[k] + (y[k + 1] - y[k]) / (x[k + 1] - x[k]) * (at - x[k])
        error = relative_error(value, task.samples.test["y"])
        clock.keep(lambda: (error, 0.0))
        return Outcome("finished", "nothing to solve.")

    return train
