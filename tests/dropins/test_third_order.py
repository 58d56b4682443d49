"""An equation of third order, Korteweg–de Vries: u_t + 6 u u_x + u_xxx = 0, with a soliton."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jacobians import weighted_residuals

import sapm
from sapm.methods.descent import descent
from sapm.methods.gauss_newton import gauss_newton
from sapm.methods.linearise import dense, flatten
from sapm.numerics.jets import jet_of
from sapm.numerics.network import initialise
from sapm.objective.penalty import mean_square, objective
from sapm.objective.weights import certificate
from sapm.problem.domain import Coordinates

pytestmark = pytest.mark.usefixtures("double_precision")


def soliton(p):
    """A wave of height 1/2 that keeps its shape and travels with speed 1."""
    return 0.5 / jnp.cosh((p.x - p.t) / 2) ** 2


def slope(p):
    return -0.5 * jnp.tanh((p.x - p.t) / 2) / jnp.cosh((p.x - p.t) / 2) ** 2


def korteweg_de_vries():
    return sapm.PDE(
        sapm.Box(t=(0, 1), x=(-4, 4)),
        lambda p, u: u.t + 6 * u.value * u.x + u.xxx,
        [sapm.Initial(soliton), sapm.Dirichlet(soliton), sapm.Neumann(slope, faces="x+")],
        exact=soliton,
    )


@pytest.fixture(scope="module")
def terms():
    return korteweg_de_vries().samples(60, 30, 0).terms


WIDTHS = (2, 8, 8, 1)


def test_the_residual_of_the_soliton_is_zero():
    """The derivatives of the exact solution by jets of the solution itself."""
    term = korteweg_de_vries().samples(40, 10, 0).terms[0]
    jet = jax.jit(lambda x: jet_of(lambda row: soliton(Coordinates(("t", "x"), row))[None], x))(
        term.x
    )
    assert np.max(np.abs(term.residual(jet))) < 1e-13
    assert term.x.order == 3 and term.x.orders == (1, 3)


def test_the_jacobian(terms):
    method = gauss_newton(objective(terms, 3, "ls"), WIDTHS, "tanh", bend=False)
    network = initialise(jax.random.key(0), WIDTHS, method.sigma, "he")
    at = jax.jit(lambda point: method.linearise(point, False))(method.begin(network).point)
    residuals = weighted_residuals(terms, network)
    expected = jax.jit(jax.jacobian(residuals))(flatten(network.stack))
    np.testing.assert_allclose(jax.jit(dense)(at.rows), expected, rtol=1e-10, atol=1e-10)


def test_training(terms):
    obj = objective(terms, 3, "ls")
    for method, steps, factor in (
        (gauss_newton(obj, WIDTHS, "tanh", bend=False), 15, 1e-2),
        (descent(obj, WIDTHS, "tanh", "adam", 1e-2), 60, 0.5),
    ):
        state = method.init(jax.random.key(0))
        first = mean_square(method.network(state), terms)
        step = jax.jit(lambda state, method=method: method.step(state))
        for _ in range(steps):
            state = step(state)
        last = mean_square(method.network(state), terms)
        assert last < factor * first, type(method)
    assert "cover derivatives up to order 2" in certificate(obj, method.sigma, last, last).reason


SMALL = {
    "depth": 3,
    "width": 8,
    "points": 60,
    "boundary_points": 30,
    "test_points": 40,
    "seeds": 1,
    "progress": False,
}


@pytest.fixture(scope="module")
def short():
    """A run of five steps."""
    return sapm.solve(korteweg_de_vries(), **SMALL, max_iter=5)


def test_it_is_solved_and_goes_on(short, tmp_path):
    """The solution error falls. A saved run is loaded, and continued bit for bit."""
    problem = korteweg_de_vries()
    whole = sapm.solve(problem, **SMALL, max_iter=15)
    assert whole.table[0]["solution_error"] < 0.01 * short.table[0]["solution_error"]
    path = tmp_path / "short.sapm"
    short.save(path)
    x = np.array([[0.3, -1.0], [0.9, 2.5]])
    np.testing.assert_array_equal(sapm.load(path, problem=problem).best(x), short.best(x))
    resumed = sapm.resume(path, max_iter=15, problem=problem, progress=False)
    np.testing.assert_array_equal(resumed.history["loss"], whole.history["loss"])


@pytest.mark.slow
def test_other_units_of_length(short):
    """x counted in tens: the same losses."""

    def in_units(f):
        return lambda p: f(Coordinates(("t", "x"), jnp.stack([p.t, 10 * p.x])))

    other = sapm.PDE(
        sapm.Box(t=(0, 1), x=(-0.4, 0.4)),
        lambda p, u: u.t + 0.6 * u.value * u.x + 1e-3 * u.xxx,
        [
            sapm.Initial(in_units(soliton)),
            sapm.Dirichlet(in_units(soliton)),
            sapm.Condition(lambda p, u: 0.1 * u.x - in_units(slope)(p), faces=["x+"]),
        ],
        exact=in_units(soliton),
    )
    loss = short.history["mean_squared_loss"]
    assert loss[0, -1] < 0.1 * loss[0, 0]
    scaled = sapm.solve(other, **SMALL, max_iter=5)
    np.testing.assert_allclose(scaled.history["mean_squared_loss"], loss, rtol=1e-6)


def test_pm_and_sapm_stop_at_second_order(terms):
    with pytest.raises(ValueError, match="got a derivative of order 3, expected at most 2"):
        objective(terms, 3, "sapm")
    with pytest.raises(ValueError, match=r"got u\.xxx, .*; use model=.ls. or method=.auto."):
        sapm.solve(korteweg_de_vries(), 3, 8, "tanh", method="alternating", progress=False)


def test_mixed_derivatives_of_fourth_order():
    """Δ²u = 4 of u = x²y²/2, with the mixed derivative by polarisation."""
    problem = sapm.PDE(
        sapm.Box(x=(-1, 1), y=(-1, 1)),
        lambda p, u: u.xxxx + 2 * u.d("x", "x", "y", "y") + u.yyyy - 4,
        [sapm.Dirichlet(lambda p: p.x**2 * p.y**2 / 2)],
    )
    term = problem.samples(20, 8, 0).terms[0]
    jet = jet_of(lambda row: (row[0] ** 2 * row[1] ** 2 / 2)[None], term.x)
    assert np.max(np.abs(term.residual(jet))) < 1e-12
