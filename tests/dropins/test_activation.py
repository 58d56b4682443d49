"""An activation of one's own: with its constants it has a certificate, without them it has none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jacobians import weighted_residuals

import sapm
from sapm.methods.gauss_newton import gauss_newton
from sapm.methods.linearise import dense, flatten
from sapm.numerics.activations import Activation, activation, relu
from sapm.numerics.network import initialise
from sapm.objective.penalty import objective
from sapm.objective.terms import value_term

pytestmark = pytest.mark.usefixtures("double_precision")

arctan = Activation(
    "arctan",
    pair=lambda x: (jnp.arctan(x), 1 / (1 + x**2)),
    curve=lambda x, s, ds: -2 * x * ds**2,
    lipschitz=1.0,
    slope=1.0,
    slope_lipschitz=3 * 3**0.5 / 8,
    curve_lipschitz=2.0,
)
leaky_relu = Activation(
    "leaky-relu",
    pair=lambda x: (jnp.where(x > 0, x, 0.1 * x), jnp.where(x > 0, 1.0, 0.1)),
    curve=lambda x, s, ds: jnp.zeros_like(x),
    lipschitz=1.0,
    slope=1.0,
    smooth=False,
)
X = np.linspace(-1, 1, 30)[:, None]
PROBLEM = sapm.Regression(X, np.sin(3 * X))
SMALL = {"seeds": 1, "progress": False, "max_iter": 12}


@pytest.mark.parametrize("model", ("ls", "sapm"))
def test_with_constants(model):
    result = sapm.solve(PROBLEM, 3, 6, arctan, model=model, method="gauss-newton", **SMALL)
    constant = 1.0 if model == "ls" else 1.0 + 2
    assert result.certificate.holds and result.certificate.bound == pytest.approx(constant)
    assert result.table[0]["loss"] < 0.1 * result.table[0]["initial_loss"]


def test_without_constants():
    """A plain function trains as well; the certificate says what it would need."""
    result = sapm.solve(PROBLEM, 3, 6, jnp.arctan, method="alternating", **SMALL)
    assert result.certificate.holds is None
    assert "needs a Lipschitz constant" in result.certificate.reason
    assert result.table[0]["loss"] < 0.1 * result.table[0]["initial_loss"]


def test_an_activation_that_is_not_smooth():
    """It has the damping, the straight steps, the budget and the initial weights of relu."""
    obj = objective([value_term(X, np.sin(3 * X))], 3, "ls")
    own, built_in = (gauss_newton(obj, (1, 6, 6, 1), sigma) for sigma in (leaky_relu, relu))
    assert (own.damping, own.bend) == (built_in.damping, False) == (100.0, built_in.bend)
    method = sapm.GaussNewton()
    assert method.default_iterations("regression", leaky_relu) == 200
    assert method.default_init("regression", leaky_relu, (1, 6, 6, 1)) == "he"
    W, V = (
        initialise(jax.random.key(0), (1, 6, 6, 1), sigma, "orthogonal").weights[1][0]
        for sigma in (leaky_relu, relu)
    )
    np.testing.assert_array_equal(W, V)
    result = sapm.solve(PROBLEM, 3, 6, leaky_relu, **SMALL)
    assert "on the SAPM loss" not in result.plan.why
    assert result.table[0]["loss"] < result.table[0]["initial_loss"]


def test_the_jacobian_and_higher_derivatives():
    terms = [value_term(X, np.sin(3 * X))]
    for sigma in (arctan, activation(jnp.arctan)):
        method = gauss_newton(objective(terms, 3, "ls"), (1, 6, 6, 1), sigma, bend=False)
        network = initialise(jax.random.key(0), (1, 6, 6, 1), sigma)
        at = jax.jit(lambda point, method=method: method.linearise(point, False))(
            method.begin(network).point
        )
        residuals = weighted_residuals(terms, network)
        J = jax.jit(jax.jacobian(residuals))(flatten(network.stack))
        np.testing.assert_allclose(dense(at.rows), J, rtol=1e-10, atol=1e-12)
        x = jnp.linspace(-2, 2, 9)
        third = (6 * x**2 - 2) / (1 + x**2) ** 3
        np.testing.assert_allclose(sigma.derivatives(x, 3)[3], third, rtol=1e-12, atol=1e-13)
