"""Least squares: exact where it is determined, finite and monotone where it is not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import relative

from sapm.numerics import lstsq
from sapm.numerics.lstsq import rows, shifted_solve, spectral_bound, step


@jax.jit
def solve(z, r, w, ridge, current):
    return step(rows(z, r, w), ridge, current)


def degenerate(rng, kind):
    """A random system (features, targets, weights, ridge, current) with one or several defects; one
    shape for each kind.
    """
    n, m, out = (3, 8, 2) if kind == "few rows" else (30, 8, 2)
    z = rng.normal(size=(n, m))
    current = rng.normal(size=(m, out))
    w = np.full(n, 1 / n)
    lam = 0.0
    if kind in ("dead", "all"):
        z[:, rng.random(m) < 0.4] = 0
    if kind in ("constant", "all"):
        z[:, :3] = rng.normal(size=3)
    if kind in ("copies", "all"):
        z[:, 4:6] = z[:, [6]] * rng.normal(size=2)
    if kind in ("weights", "all"):
        w = 10 ** rng.uniform(-12, 2, n)
    if kind in ("scales", "all"):
        z = z * 10 ** rng.uniform(-7, 7, m)
    if kind == "ridge":
        lam = 10 ** rng.uniform(-16, 12)
    if kind == "zero":
        z = 0 * z
    y = rng.normal(size=(n, out))
    if rng.random() < 0.3:  # an exact fit
        y = z @ rng.normal(size=(m, out))
    return z, y, w, lam, current


def rounding(value, size):
    """How well a sum of squares can be evaluated whose residuals are differences of terms with
    squares summing to `size`.
    """
    return 1e-15 * np.sqrt(value * size) + 1e-30 * size


KINDS = ["few rows", "dead", "constant", "copies", "weights", "scales", "ridge", "zero", "all"]


@pytest.mark.parametrize("kind", KINDS)
def test_degenerate_systems(kind):
    """Over 1,000 of them: always finite, the objective never rises, and it is as low as the SVD
    solution's.
    """
    for trial in range(120):
        rng = np.random.default_rng([trial, KINDS.index(kind)])
        z, y, w, lam, current = degenerate(rng, kind)
        ridge = np.full(z.shape[1], lam)

        def value(X, z=z, y=y, w=w, lam=lam):
            return np.sum(w[:, None] * (z @ X - y) ** 2) + lam * np.sum(X**2)

        X = current
        for _ in range(3):
            new = X + np.asarray(solve(z, z @ X - y, w, ridge, X))
            assert np.all(np.isfinite(new)), (kind, trial)
            size = np.sum(
                w[:, None] * ((np.abs(z) @ np.abs(new)) ** 2 + y**2)
            )  # of what cancels in z X - y
            floor = 1e-12 * value(X) + rounding(value(X), size)
            assert value(new) <= value(X) + floor, (kind, trial, value(X), value(new), size)
            X = new
        root = np.sqrt(w)[:, None]
        stacked = np.vstack([root * z, np.sqrt(lam) * np.eye(z.shape[1])])
        column = np.linalg.norm(stacked, axis=0)
        column[column == 0] = 1
        best = (
            np.linalg.lstsq(stacked / column, np.vstack([root * y, 0 * current]), rcond=1e-13)[0]
            / column[:, None]
        )
        scale = np.sum(w[:, None] * y**2) + 1e-300
        assert value(X) <= value(best) * (1 + 1e-6) + 1e-9 * scale, (
            kind,
            trial,
            value(X),
            value(best),
        )


def test_many_like_rows():
    """Constant columns: rounding of the Gram matrix grows with the number of rows and outdoes the
    small shift.
    """
    for n in (1000, 100_000):
        for seed in range(10):
            rng = np.random.default_rng(seed)
            z = np.c_[np.full((n, 3), rng.uniform(0.1, 1, 3)), rng.normal(size=n)]
            y = rng.normal(size=(n, 1))
            current = rng.normal(size=(4, 1))
            new = current + np.asarray(
                solve(z, z @ current - y, jnp.asarray(1 / n), np.zeros(4), current)
            )
            best = np.linalg.lstsq(z, y, rcond=1e-12)[0]
            assert np.mean((z @ new - y) ** 2) <= np.mean((z @ best - y) ** 2) * (1 + 1e-9)


def test_undetermined_directions_stay():
    """Dead features keep their coefficients: the step is the proximal one."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(20, 5))
    z[:, [1, 3]] = 0
    current = rng.normal(size=(5, 2))
    change = np.asarray(
        solve(z, z @ current - rng.normal(size=(20, 2)), jnp.asarray(0.05), np.zeros(5), current)
    )
    assert np.all(change[[1, 3]] == 0)
    assert np.all(change[[0, 2, 4]] != 0)


def test_monotone_near_convergence():
    """Repeated steps never raise the loss by more than 1e-12 of it, or what its evaluation loses to
    cancellation.
    """
    for seed in range(50):
        rng = np.random.default_rng(seed)
        z = rng.normal(size=(40, 6)) @ np.diag([1, 1, 1e-3, 1e-5, 1, 1e-6])
        current = rng.normal(size=(6, 1))
        y = z @ current + 10.0 ** rng.integers(-10, -2) * rng.normal(size=(40, 1))
        X = current
        before = None
        for _ in range(5):
            X = X + np.asarray(solve(z, z @ X - y, jnp.asarray(1 / 40), np.zeros(6), X))
            after = np.mean((z @ X - y) ** 2)
            assert before is None or after <= before * (1 + 1e-12) + rounding(
                before, np.mean((np.abs(z) @ np.abs(X)) ** 2)
            )
            before = after


def test_joint_bias_and_added_rows():
    """[z, 1] with the ridge on z only equals the stacked dense solve; rows add over chunks."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=(30, 4))
    y = rng.normal(size=(30, 2))
    w = rng.uniform(0.1, 2, 30)
    ridge = np.array([0.3] * 4 + [0.0])
    whole = rows(jnp.asarray(z), jnp.asarray(-y), jnp.asarray(w), bias=True)
    parts = [
        rows(jnp.asarray(z[i]), jnp.asarray(-y[i]), jnp.asarray(w[i]), bias=True)
        for i in (slice(0, 11), slice(11, 30))
    ]
    X = step(parts[0] + parts[1], ridge, jnp.zeros((5, 2)))
    assert relative(X, step(whole, ridge, jnp.zeros((5, 2)))) < 1e-12
    root = np.sqrt(w)[:, None]
    A = np.vstack([root * np.c_[z, np.ones(30)], np.diag(np.sqrt(ridge))])
    assert (
        relative(X, np.linalg.lstsq(A, np.vstack([root * y, np.zeros((5, 2))]), rcond=None)[0])
        < 1e-12
    )


@pytest.mark.parametrize("out", [1, 3, 8])
@pytest.mark.parametrize("shift", [0.0, 1e-6, 1e-2, 1.0, 100.0])
def test_shifted_solve(out, shift):
    """Rank-one, Chebyshev and direct paths all equal dense solves; a zero shift (relative to ‖W‖²)
    is finite.
    """
    rng = np.random.default_rng(2)
    W = rng.normal(size=(out, 6))
    S = np.cos(rng.normal(size=(9, 6)))
    rhs = rng.normal(size=(9, 2, 6))
    shifts = shift * np.sum(W**2) * rng.uniform(0.5, 2, 9)
    x = np.asarray(shifted_solve(*(jnp.asarray(v) for v in (W, S, shifts, rhs))))
    if shift == 0.0 and out < 6:  # singular
        assert np.all(np.isfinite(x))
        return
    H = S[:, :, None] * (W.T @ W) * S[:, None, :] + shifts[:, None, None] * np.eye(6)
    residual = np.einsum("nij,nkj->nki", H, x) - rhs
    size = np.max(np.abs(H)) * np.max(np.abs(x)) + np.max(np.abs(rhs))
    assert np.max(np.abs(residual)) < 1e-12 * size


def test_shifted_solve_of_very_different_samples():
    """The number of terms is the worst sample's; one whose series ends after two terms is solved as
    well.
    """
    W = jnp.eye(3)[:2]
    S = jnp.array([[1.0] * 3, [1e-3] * 3])
    for shift in (1 / 36, 1 / 40, 1 / 42, 1e-3):
        x = shifted_solve(W, S, jnp.full(2, shift), jnp.ones((2, 1, 3)))[:, 0]
        assert relative(x, 1 / (S**2 * jnp.array([1.0, 1.0, 0.0]) + shift)) < 1e-11


def test_spectral_bound():
    rng = np.random.default_rng(3)
    for m in (1, 2, 10, 60):
        W = rng.normal(size=(m, m)) * 10.0 ** rng.integers(-8, 8)
        true = np.linalg.norm(W, 2) ** 2
        assert (
            true * (1 - 1e-12)
            <= float(spectral_bound(jnp.asarray(W.T @ W)))
            <= true * m ** (1 / 64) * (1 + 1e-9)
        )
    assert float(spectral_bound(jnp.zeros((4, 4)))) == 0


def test_one_product_gives_the_same_rows(monkeypatch):
    """As on a GPU, where small systems are summed at once."""
    rng = np.random.default_rng(0)
    z, r, each = (jnp.asarray(rng.normal(size=shape)) for shape in ((30, 4), (30, 2), (30,)))
    for w in (jnp.asarray(0.3), each**2):
        apart = rows(z, r, w, bias=True)
        with monkeypatch.context() as patch:
            patch.setattr(lstsq, "_few_kernels", lambda m: True)
            at_once = rows(z, r, w, bias=True)
        assert (
            relative(at_once.gram, apart.gram) < 1e-14
            and relative(at_once.moment, apart.moment) < 1e-14
        )
