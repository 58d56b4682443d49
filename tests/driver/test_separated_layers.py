"""Textbook problems by PM and SAPM: terms of second order and nonlinear ones."""

import numpy as np
import pytest

import sapm
from sapm.catalogue import CATALOGUE

RUNS = [
    *(
        (name, "sapm", method)
        for name in ("poisson_2d", "nonlinear_poisson")
        for method in ("alternating", "gauss-newton", "lbfgs", "adam")
    ),
    ("nonlinear_poisson", "pm", "alternating"),
    ("nonlinear_poisson", "pm", "gauss-newton"),
    ("poisson_2d", "pm", "lbfgs"),
    ("poisson_2d", "pm", "adam"),
]
SMALL = {  # one size, so that the tests share programs
    "depth": 2,
    "width": 5,
    "points": 20,
    "boundary_points": 12,
    "test_points": 10,
    "seeds": 1,
    "activation": "tanh",
    "progress": False,
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model", "method"), RUNS)
def test_textbook_problems_by_separated_layers(name, model, method):
    """The loss falls and never rises; the certificate holds at the end, and along the run where
    there is a constant.
    """
    result = sapm.solve(
        CATALOGUE[name].problem(),
        **SMALL,
        max_iter=40 if method == "adam" else 5,
        model=model,
        method=method,
        options={"learning_rate": 0.05} if method == "adam" else None,
    )
    loss = result.history["loss"][0]
    found = result.certificate
    assert loss[-1] < 0.9 * loss[0]
    if method != "adam":
        assert np.all(np.diff(loss) <= 1e-12 * loss[:-1])
    assert result.config["model"] == model and np.any(
        loss != result.history["mean_squared_loss"][0]
    )
    if model == "pm":
        assert found.holds is None and "PM" in found.reason
        return
    assert found.holds and found.bound > 1 and found.reason.startswith("Theorem 5 holds")
    ratio = result.history["bound_ratio"][0]
    assert np.all(np.isnan(ratio)) if name == "nonlinear_poisson" else np.all(ratio <= 1)


def test_units_of_a_nonlinear_problem():
    """Its right side is what the residual is at u = 0; the data at the boundary are the rounding of
    sin π.
    """
    assert 0.1 < CATALOGUE["nonlinear_poisson"].problem().samples(30, 12, 0).scaling.size < 10


@pytest.mark.slow
def test_gauss_newton_solves_poisson_on_the_sapm_loss():
    size = {
        "depth": 3,
        "width": 10,
        "points": 100,
        "boundary_points": 60,
        "seeds": 1,
        "max_iter": 40,
    }
    result = sapm.solve(
        CATALOGUE["poisson_2d"].problem(), **size, method="gauss-newton", progress=False
    )
    assert result.table[0]["solution_error"] < 1e-4 and np.all(result.history["bound_ratio"] <= 1)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["alternating", "gauss-newton"])
def test_runs_go_on_bit_for_bit(method, tmp_path):
    settings = SMALL | {"method": method}
    problem = CATALOGUE["nonlinear_poisson"].problem()
    whole = sapm.solve(problem, **settings, max_iter=4)
    sapm.solve(problem, **settings, max_iter=2).save(tmp_path / "a.sapm")
    resumed = sapm.resume(tmp_path / "a.sapm", max_iter=4, problem=problem, progress=False)
    assert (
        np.array_equal(resumed.history["loss"], whole.history["loss"])
        and resumed.certificate == whole.certificate
    )
