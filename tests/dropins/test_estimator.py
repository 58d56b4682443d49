"""An error estimator of one's own: finite differences as an independent answer, and a plain
function that compares two seeds. Nothing in sapm is changed for them.
"""

from dataclasses import dataclass

import numpy as np
import pytest

import sapm

SMALL = {"depth": 2, "width": 8, "points": 40, "boundary_points": 2, "test_points": 30}


@dataclass(frozen=True)
class FiniteDifferences:
    """-u'' = 1 on (0, 1) with u = 0 at both ends, by central differences, which are exact here."""

    cells: int = 64

    def __call__(self, result, seed, /):
        if result.samples.names != ("x",):
            return sapm.ErrorEstimate.missing("finite differences are for one coordinate.")
        x = np.linspace(0, 1, self.cells + 1)
        inner = self.cells - 1
        laplacian = np.diag(np.full(inner, 2.0)) - np.eye(inner, k=1) - np.eye(inner, k=-1)
        exact = np.zeros(self.cells + 1)
        exact[1:-1] = np.linalg.solve(laplacian * self.cells**2, np.ones(inner))
        error = np.linalg.norm(result.seeds[seed](x=x) - exact) / np.linalg.norm(exact)
        return sapm.ErrorEstimate(float(error), kind="measured", points=len(x))


def difference_to_another_seed(result, seed, /):
    """A lower bound of the larger of two errors, up to a factor of two."""
    if len(result.seeds) < 2:
        return sapm.ErrorEstimate.missing("it needs two seeds.")
    x = result.samples.test["x"]
    u = result.seeds[seed](x)
    other = result.seeds[seed - 1](x)
    return sapm.ErrorEstimate(float(np.linalg.norm(u - other) / np.linalg.norm(u)), points=len(x))


@pytest.fixture(scope="module")
def result():
    problem = sapm.PDE(sapm.Box(x=(0, 1)), lambda p, u: u.xx + 1, [sapm.Dirichlet(0)])
    return sapm.solve(problem, **SMALL, seeds=2, max_iter=30, progress=False)


def test_an_estimator_of_ones_own(result):
    estimate = result.error_estimate(estimator=FiniteDifferences())
    x = np.linspace(0, 1, 65)
    exact = x * (1 - x) / 2
    error = np.linalg.norm(result.best(x=x) - exact) / np.linalg.norm(exact)
    assert estimate.kind == "measured" and np.isclose(estimate.error, error, rtol=1e-6)
    assert not estimate.no_solution and error < 0.01
    assert f"Error {error:.1e} (relative) at 65 points." in str(
        result.summary(estimator=FiniteDifferences())
    )
    built_in = result.error_estimate()
    assert built_in.kind == "estimated" and error / 10 < built_in.error < 10 * error


def test_a_function_is_an_estimator(result):
    estimate = result.error_estimate(1, difference_to_another_seed)
    assert estimate.known and 0 < estimate.error < 0.1
    assert "Error estimate" in str(result.summary(estimator=difference_to_another_seed))


def test_a_large_error_and_a_missing_one_are_shown(result):
    large = result.summary(estimator=lambda result, seed: sapm.ErrorEstimate(0.5))
    assert "Error estimate 5.0e-01 (relative). THIS IS NOT A SOLUTION." in str(large)
    none = result.summary(estimator=lambda result, seed: sapm.ErrorEstimate.missing("no data."))
    assert "No error estimate: no data." in str(none)
    with pytest.raises(TypeError, match=r"returned 0\.5; expected a sapm\.ErrorEstimate"):
        result.error_estimate(estimator=lambda result, seed: 0.5)
