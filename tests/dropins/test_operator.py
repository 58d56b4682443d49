"""An operator that the library does not have: u_xx + u_yy - u³."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jacobians import weighted_residuals

from sapm.methods.descent import descent
from sapm.methods.gauss_newton import gauss_newton
from sapm.methods.linearise import dense, flatten
from sapm.numerics.jets import Jet
from sapm.objective.operators import Operator
from sapm.objective.penalty import mean_square, objective
from sapm.objective.terms import operator_term

pytestmark = pytest.mark.usefixtures("double_precision")

X = np.random.default_rng(0).uniform(-1, 1, size=(20, 2))
WIDTHS = (2, 6, 6, 1)
SIZE = 0.5


class CubicLaplacian(Operator):
    """u_xx + u_yy - u³."""

    order = 2

    def __call__(self, points, output):
        return output.tangents[:, 2] + output.tangents[:, 3] - output.value**3


class Cube(Operator):
    """u³."""

    def __call__(self, points, output):
        return output.value**3


class Dispersion(Operator):
    """k u_xxx + u² for outputs (u, k), where k is an unknown number."""

    order = 3
    constants = 1

    def __call__(self, points, output):
        u, k = output.value.T
        return (k * output.tangents[:, 2, 0] + u**2)[:, None]


def test_units_keep_the_order_and_the_unknown_numbers():
    """operator(size · u, k) / size."""
    operator = Dispersion().in_units(SIZE)
    assert (operator.order, operator.constants) == (3, 1)
    assert operator_term(X[:, :1], operator, X[:, :1]).x.orders == (3,)
    rng = np.random.default_rng(1)
    value, tangents = rng.normal(size=(20, 2)), rng.normal(size=(20, 3, 2))
    expected = value[:, 1] * tangents[:, 2, 0] + SIZE * value[:, 0] ** 2
    output = Jet(jnp.asarray(value), jnp.asarray(tangents), orders=(3,))
    np.testing.assert_allclose(operator(X, output)[:, 0], expected, rtol=1e-13)


def test_training():
    """Its rows are those of jax.jacobian, its term trains, and its loss does not depend on units."""
    term = operator_term(X, CubicLaplacian(), X[:, :1] * X[:, 1:])
    obj = objective([term.in_units(np.zeros(2), np.ones(2), SIZE)], 3, "ls")
    method = gauss_newton(obj, WIDTHS, "tanh")
    state = method.init(jax.random.key(0))
    network = method.network(state)
    rows = jax.jit(lambda point: method.linearise(point, False))(state.point).rows

    residuals = weighted_residuals(obj.terms, network)
    expected = jax.jit(jax.jacobian(residuals))(flatten(network.stack))
    np.testing.assert_allclose(dense(rows), expected, rtol=1e-10, atol=1e-10)

    first = mean_square(network, obj.terms)

    @jax.jit
    def step(state):
        return method.step(state)

    for _ in range(8):
        state = step(state)
    network = method.network(state)
    loss = mean_square(network, obj.terms)
    assert loss < 0.01 * first
    output = network(term.x)
    output = output.like(SIZE * output.value, SIZE * output.tangents)
    np.testing.assert_allclose(term.cost(output), loss, rtol=1e-10)


def test_training_by_descent():
    obj = objective([operator_term(X, CubicLaplacian(), X[:, :1] * X[:, 1:])], 3, "ls")
    method = descent(obj, WIDTHS, "tanh", "adam", 1e-2)
    state = method.init(jax.random.key(0))
    first, _ = method.losses(state)

    @jax.jit
    def step(state):
        return method.step(state)

    for _ in range(80):
        state = step(state)
    assert method.losses(state)[0] < 0.3 * first


def test_pm_and_sapm_refuse_it():
    term = operator_term(X, Cube(), X[:, :1])
    assert not term.known
    with pytest.raises(ValueError, match="got the operator Cube, expected"):
        objective([term], 3, "sapm")
