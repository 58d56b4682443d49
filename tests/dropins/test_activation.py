"""An activation of one's own: with its constants it has a certificate, without them it has none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jacobians import weighted_residuals

import sapm
from sapm.methods.gauss_newton import gauss_newton
from sapm.methods.linearise import dense, flatten
from sapm.numerics.activations import Activation, activation
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
X = np.linspace(-1, 1, 30)[:, None]
PROBLEM = sapm.Regression(X, np.sin(3 * X))
SMALL = {"seeds": 1, "progress": False, "max_iter": 12}


def test_with_constants():
    result = sapm.solve(PROBLEM, 3, 6, arctan, method="gauss-newton", **SMALL)
    assert result.certificate.holds and "holds" in result.certificate.reason
    assert result.table[0]["loss"] < 0.1 * result.table[0]["initial_loss"]


def test_without_constants():
    """A plain function trains as well; the certificate says what it would need."""
    result = sapm.solve(PROBLEM, 3, 6, jnp.arctan, method="alternating", **SMALL)
    assert result.certificate.holds is None
    assert "needs a Lipschitz constant" in result.certificate.reason
    assert result.table[0]["loss"] < 0.1 * result.table[0]["initial_loss"]


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
        np.testing.assert_allclose(sigma.derivatives(x, 3)[3], third, atol=1e-13)
