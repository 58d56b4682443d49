"""What needs no training: random features with least squares, and rows that keep one honest (constant, affine, interpolation)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from sapm.bench.peers import Trainer
from sapm.bench.task import Clock, Outcome, Task
from sapm.jet import Jet, lift
from sapm.network import Network
from sapm.solution import relative_error
from sapm.term import directional

SCALES = (1.0, 3.0, 10.0, 30.0, 100.0)  # of the frequencies, on inputs mapped to [-1, 1]
CUTOFF = 1e-13  # what is smaller than this fraction of the largest pivot is dropped
ROUGH = 1e-13


def _solve(A: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Least squares by QR with pivoting: several times quicker than by singular values, and as exact here."""
    from scipy.linalg import lstsq

    return lstsq(A, y, cond=CUTOFF, lapack_driver="gelsy")[0]  # type: ignore[index]


def _roughly(A: np.ndarray, y: np.ndarray) -> np.ndarray:
    """By normal equations with a small ridge: good enough to choose a scale, and quick."""
    G = A.T @ A
    return np.linalg.solve(G + ROUGH * np.trace(G) * np.eye(len(G)), A.T @ y)


def system(task: Task, features: Callable[[Jet], Jet]) -> tuple[np.ndarray, np.ndarray]:
    """Weighted rows and right-hand side of the linear least-squares problem for the coefficients of features.

    features(x) has them as outputs, (n, k), with the derivatives that the jet of the points asks for.
    """
    rows, right = [], []
    for term in map(directional, task.samples.terms):
        if term.function is not None:
            raise ValueError(f"{task.case.experiment} is not linear, so there is no linear system for it; train a network on it.")
        made = np.asarray(term.residual(features(term.x)) + term.y)
        weight = np.sqrt(np.broadcast_to(np.asarray(term.weight), len(made)))[:, None]
        rows.append(weight * made)
        right.append(weight * np.asarray(term.y))
    return np.concatenate(rows), np.concatenate(right)


def _and_one(jet: Jet) -> Jet:
    """The jet with a last column for the constant 1."""
    value = jnp.pad(jet.value, [(0, 0), (0, 1)], constant_values=1.0)
    return Jet(value, jnp.pad(jet.tangents, [(0, 0), (0, 0), (0, 1)]), jet.forms)


def random_features(task: Task, count: int) -> Trainer:
    """σ(w·x + b) with w uniform, sin for PDEs and the activation for functions, and a constant; coefficients by least squares.

    Of several scales of w the one is taken whose fit to four fifths of the rows is best on the others; this is in the time.
    """
    x = np.concatenate([np.asarray(term.x.value) for term in task.samples.terms])
    low, high = x.min(0), x.max(0)
    centre, half = (low + high) / 2, (high - low) / 2
    scales = (1.0,) if task.sigma.name == "relu" else SCALES

    def train(clock: Clock, seed: int, track: str) -> Outcome:
        clock.start(lambda: (1.0, float(sum(np.sum(term.weight * term.y[:, 0] ** 2) for term in task.samples.terms))))
        random = np.random.default_rng(seed)
        w, at = random.uniform(-1, 1, (count, len(low))), random.uniform(-1, 1, (count, len(low)))
        phase = random.uniform(-np.pi, np.pi, count)
        found = []
        for scale in scales:
            W = scale * w / half
            b = (phase if task.sigma.name == "sin" else -scale * np.sum(w * at, 1)) - W @ centre

            def features(x, W=W, b=b):
                return _and_one(lift(task.sigma, Jet(x.value @ W.T + b, x.tangents @ W.T, x.forms)))

            A, y = system(task, features)
            held = np.random.default_rng(0).permutation(len(A)) % 5 == 4
            miss = np.linalg.norm(A[held] @ _roughly(A[~held], y[~held]) - y[held]) if len(scales) > 1 else 0.0
            found.append((miss, W, b, A, y))
        _, W, b, A, y = min(found, key=lambda f: f[0])
        c = _solve(A, y)
        network = Network.of([(jnp.asarray(W), jnp.asarray(b)), (jnp.asarray(c[:-1].T), jnp.asarray(c[-1]))], task.sigma)
        clock.keep(lambda: task.measure(network))
        return Outcome("finished", "solved.")

    return train


def polynomial(task: Task, degree: int) -> Trainer:
    """The constant, or the affine function, with the smallest true loss."""
    features = lambda x: _and_one(x if degree else replace(x, value=x.value[:, :0], tangents=x.tangents[:, :, :0]))  # noqa: E731

    def train(clock: Clock, seed: int, track: str) -> Outcome:
        A, y = system(task, features)
        clock.start(lambda: (1.0, float(np.sum(y**2))))
        c = _solve(A, y)
        x = jnp.asarray(task.samples.test["x"])
        error = relative_error(features(Jet(x, jnp.zeros((len(x), 0, x.shape[1])))).value @ c, task.samples.test["y"])
        clock.keep(lambda: (error, float(np.sum((A @ c - y) ** 2))))
        return Outcome("finished", "solved.")

    return train


def interpolation(task: Task) -> Trainer:
    """Straight lines between the training data of a function of one variable: what no error of a fit to them need beat."""
    (term,) = task.samples.terms

    def train(clock: Clock, seed: int, track: str) -> Outcome:
        x, y = np.asarray(term.x.value)[:, 0], np.asarray(term.y)[:, 0]
        clock.start(lambda: (1.0, float(np.mean(y**2))))
        order = np.argsort(x)
        x, y, at = x[order], y[order], task.samples.test["x"][:, 0]
        k = np.clip(np.searchsorted(x, at) - 1, 0, len(x) - 2)  # the first and the last line go on beyond the data
        value = y[k] + (y[k + 1] - y[k]) / (x[k + 1] - x[k]) * (at - x[k])
        error = relative_error(value, task.samples.test["y"])
        clock.keep(lambda: (error, 0.0))
        return Outcome("finished", "nothing to solve.")

    return train
