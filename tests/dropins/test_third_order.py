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
    assert "reach derivatives of order 2" in certificate(obj, method.sigma, last, last).reason


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
