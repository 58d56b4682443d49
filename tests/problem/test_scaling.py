"""Units: a problem in kilometres and milliseconds is the same problem, and its losses and networks
are in its own units.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import sapm
from sapm.catalogue.paper import convection
from sapm.objective.terms import directional, nonlinear_term, pde_term, second_order_term
from sapm.problem.samples import Scaling, operator_strength, scaling_of


def transport(length=1.0, time=1.0, size=1.0, far=0.0):
    """u_t - (t + x + 3/2) u_x = f with u = e^t sin x, in other units of x, t and u, about another
    origin.
    """

    def value(p):
        return size * jnp.exp(p.t / time) * jnp.sin((p.x - far) / length)

    def residual(p, u):
        t = p.t / time
        x = (p.x - far) / length
        f = jnp.exp(t) * (jnp.sin(x) - (t + x + 1.5) * jnp.cos(x))
        return time * u.t - length * (t + x + 1.5) * u.x - size * f

    box = sapm.Box(t=(0, time), x=(far - length, far + length))
    return sapm.PDE(box, residual, [sapm.Initial(value), sapm.Inflow(value)], value)


def test_units_do_not_matter():
    small = {
        "points": 60,
        "boundary_points": 24,
        "test_points": 50,
        "seeds": 1,
        "max_iter": 12,
        "progress": False,
    }
    one = sapm.solve(transport(), 4, 6, **small)
    other = sapm.solve(transport(2000.0, 1e-3, 1024.0, 7000.0), 4, 6, **small)
    assert other.table[0]["solution_error"] == pytest.approx(
        one.table[0]["solution_error"], rel=1e-3
    )
    assert other.table[0]["mean_squared_loss"] == pytest.approx(
        1024.0**2 * one.table[0]["mean_squared_loss"], rel=1e-3
    )
    raw = sapm.solve(
        transport(2000.0, 1e-3, 1024.0, 7000.0), 4, 6, **small, options={"scale": False}
    )
    assert raw.table[0]["solution_error"] > 10 * other.table[0]["solution_error"]


def test_a_network_in_other_units_is_the_same_function():
    rng = np.random.default_rng(0)
    weights = [
        (rng.normal(size=(5, 2)), rng.normal(size=5)),
        (rng.normal(size=(2, 5)), rng.normal(size=2)),
    ]
    scaling = Scaling(np.array([3.0, -1.0]), np.array([10.0, 0.1]), 8.0)

    def f(layers, x):
        return np.tanh(x @ layers[0][0].T + layers[0][1]) @ layers[1][0].T + layers[1][1]

    x = rng.normal(size=(4, 2))
    there = scaling.original(weights)
    assert np.allclose(
        f(there, x), 8.0 * f(weights, (x - scaling.center) / scaling.spread), rtol=1e-12
    )
    back = scaling.scaled(there)
    assert all(
        np.allclose(a, b, rtol=1e-12)
        for pair in zip(back, weights, strict=True)
        for a, b in zip(*pair, strict=True)
    )


@pytest.mark.usefixtures("double_precision")
def test_the_loss_of_a_scaled_term_is_the_loss():
    samples = transport(2000.0, 1e-3, 1000.0, 7000.0).samples(20, 8, 0)
    scaling = scaling_of(samples)
    term = scaling.term(samples.terms[0])
    assert np.abs(term.x.value).max() <= 1 + 1e-12
    assert np.allclose(
        term.weight * term.y[:, 0] ** 2,
        samples.terms[0].weight * samples.terms[0].y[:, 0] ** 2,
        rtol=1e-12,
    )
    assert np.allclose(
        directional(term).x.tangents[:, 0] * scaling.spread, samples.terms[0].linear.c, rtol=1e-12
    )


def test_nonlinear_equations_in_other_units():
    """u_t + u u_x = u_xx / 2 in kilometres: the residual, in its own units, is that of the network
    in its own.
    """

    def exact(p):
        return 500 * jnp.cos(p.x / 2000)

    def residual(p, u):
        return 1e-3 * u.t + u.value * u.x - 800 * u.xx - jnp.sin(p.x / 2000)

    domain = sapm.Box(t=(0, 1e-3), x=(5000, 9000))
    problem = sapm.PDE(domain, residual, [sapm.Initial(exact), sapm.Dirichlet(exact)])
    result = sapm.solve(
        problem, 3, 4, points=20, boundary_points=8, seeds=1, max_iter=2, progress=False
    )
    assert result.samples.scaling.size == 512
    u = result.best
    held = result.samples.terms[0]
    x = np.asarray(held.x.value)
    own = np.zeros(20)
    for i, (t, at) in enumerate(x):
        value, slope, bend = (f(t=t, x=at) for f in (u, u.d("x"), u.d("x", "x")))
        own[i] = 1e-3 * u.d("t")(t=t, x=at) + value * slope - 800 * bend - np.sin(at / 2000)
    boundary = result.samples.terms[1]
    rest = (np.ravel(u(np.asarray(boundary.x.value))) - np.asarray(boundary.y)[:, 0]) ** 2
    loss = np.mean(own**2) + np.sum(np.asarray(boundary.weight) * rest)
    assert result.table[0]["mean_squared_loss"] == pytest.approx(loss, rel=1e-9)


def test_the_weight_of_the_boundary_is_the_strength_of_the_operator():
    """In units where inputs fill [-1, 1]: u_t + 30 u_x on [0, 1] × [0, 2π] is 2 u_s + (30/π) u_y."""
    problem = convection(30.0)
    assert problem.mu == pytest.approx(4 + (30 / np.pi) ** 2, rel=1e-12)
    x = np.zeros((2, 2))
    c = np.array([[1.0, -2.0], [3.0, 0.0]])
    spread = np.array([0.5, 2.0])
    assert operator_strength(pde_term(x, c, x[:, 0]), spread) == pytest.approx((4 + 1 + 36) / 2)
    A = np.array([[[1.0, 2.0], [2.0, 0.0]]] * 2)
    assert operator_strength(
        second_order_term(x, A, c, np.ones(2), x[:, 0]), spread
    ) == pytest.approx((4 + 1 + 36) / 2 + 1 + 16 + 2 * 4)
    semilinear = nonlinear_term(x, np.eye(2), ((0, 1),), lambda x, u, d: d[0] - 3 * d[2] + u**2)
    assert operator_strength(semilinear, spread) == pytest.approx(4 + (3 / 4) ** 2)
    product = nonlinear_term(x, np.eye(2), (), lambda x, u, d: u * d[0])
    assert operator_strength(product, spread) == pytest.approx(1 + 4)
    result = sapm.solve(
        problem, 3, 4, points=20, boundary_points=8, seeds=1, max_iter=0, progress=False
    )
    assert result.config["mu"] == problem.mu
    assert "Boundary term × 95.2" in str(result.summary(estimate=False))


@pytest.mark.parametrize("size", [2e11, 1e-11])
def test_targets_of_any_size(size):
    x = np.linspace(-1, 1, 40)
    result = sapm.solve(
        sapm.Regression(x, size * (np.sin(3 * x) + 0.3)), 2, 8, seeds=1, max_iter=40, progress=False
    )
    assert result.table[0]["train_error"] < 1e-2


def test_samples_without_weight_do_not_set_the_units():
    x = np.linspace(-1, 1, 20)
    y = np.ones(20)
    x[3], y[3] = 1e9, -9999.0
    scaling = scaling_of(
        sapm.Regression(x, y, weights=np.where(np.arange(20) == 3, 0.0, 1.0)).samples()
    )
    assert scaling.size == 1.0 and scaling.spread[0] < 1.2


def test_data_of_any_size():
    x = np.linspace(1e6, 1e6 + 5e3, 80)
    y = 1e-7 * np.sin((x - 1e6) / 800)
    result = sapm.solve(
        sapm.Regression(x, y, test=(x, y)), 4, 10, seeds=1, max_iter=30, progress=False
    )
    assert result.table[0]["test_error"] < 1e-3
