"""A loss that the library does not have: softmax cross-entropy, for three classes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sapm
from sapm.methods.descent import descent
from sapm.methods.gauss_newton import gauss_newton
from sapm.methods.linearise import dense, flatten, unflatten
from sapm.numerics.activations import ACTIVATIONS
from sapm.numerics.network import Network, initialise
from sapm.objective.losses import Loss, Square
from sapm.objective.penalty import mean_square, objective
from sapm.objective.terms import value_term
from sapm.results.result import best_of

pytestmark = pytest.mark.usefixtures("double_precision")


class CrossEntropy(Loss):
    """-Σ_i y_i log q_i with q = softmax(p), for one-hot (or any) probabilities y."""

    def value(self, prediction, target):
        return -jnp.sum(target * jax.nn.log_softmax(prediction), axis=-1)

    def quadratic(self, prediction, target):
        """R = (I - 1 qᵀ scaled by √(q/2)): 2 RᵀR = diag(q) - q qᵀ, the Fisher information."""
        q = jax.nn.softmax(prediction)
        scale = jnp.sqrt(q / 2)
        root = scale[:, :, None] * (jnp.eye(q.shape[1]) - q[:, None, :])
        return (q - target) / (2 * scale), root


X = np.random.default_rng(0).uniform(-1, 1, size=(40, 2))
LABELS = np.eye(3)[(X[:, 0] > X[:, 1] ** 2).astype(int) + (X[:, 0] < -0.3)]
WIDTHS = (2, 6, 6, 3)


@pytest.fixture
def terms():
    return [value_term(X, LABELS, loss=CrossEntropy())]


@pytest.mark.parametrize("loss", (CrossEntropy(), Square()), ids=("cross-entropy", "square"))
def test_the_quadratic_model(loss):
    """Its gradient and its Hessian in the prediction, by autodiff."""
    p = jnp.asarray(np.random.default_rng(1).normal(size=(5, 3)))
    y = jnp.asarray(LABELS[:5])

    def value(p, y):
        return loss.value(p[None], y[None])[0]

    residual, root = loss.quadratic(p, y)
    gradient = 2 * jnp.einsum("nri,nr->ni", root, residual)
    hessian = 2 * jnp.einsum("nri,nrj->nij", root, root)
    np.testing.assert_allclose(gradient, jax.vmap(jax.grad(value))(p, y), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(hessian, jax.vmap(jax.hessian(value))(p, y), rtol=1e-12, atol=1e-13)


def test_the_jacobian(terms):
    """J is R times the derivative of the outputs; 2 Jᵀρ is the gradient of the loss."""
    method = gauss_newton(objective(terms, 3, "ls"), WIDTHS, "tanh")
    network = initialise(jax.random.key(0), WIDTHS, method.sigma, "he")
    at = jax.jit(lambda point: method.linearise(point, False))(method.begin(network).point)
    flat = flatten(network.stack)

    def outputs(flat):
        return Network(unflatten(flat, network.stack), network.sigma)(terms[0].x).value

    _, root = terms[0].loss.quadratic(outputs(flat), terms[0].y)
    derivative = jax.jit(jax.jacobian(outputs))(flat)
    J = jnp.einsum("nri,nip->rnp", root, derivative).reshape(-1, len(flat)) / np.sqrt(len(X))
    np.testing.assert_allclose(dense(at.rows), J, rtol=1e-10, atol=1e-10)

    def loss(flat):
        return mean_square(Network(unflatten(flat, network.stack), network.sigma), terms)

    slope = 2 * dense(at.rows).T @ jnp.concatenate(at.rho)
    np.testing.assert_allclose(slope, jax.grad(loss)(flat), rtol=1e-10, atol=1e-12)


def test_training(terms):
    obj = objective(terms, 3, "ls")
    for method, steps in (
        (gauss_newton(obj, WIDTHS, "tanh"), 12),
        (descent(obj, WIDTHS, "tanh", "adam", 3e-2), 120),
    ):
        state = method.init(jax.random.key(0))
        first = mean_square(method.network(state), terms)
        step = jax.jit(lambda state, method=method: method.step(state))
        for _ in range(steps):
            state = step(state)
        assert mean_square(method.network(state), terms) < 0.5 * first, type(method)


def test_units(terms):
    """A network that counts its outputs in units of 4 has the same loss."""
    network = initialise(jax.random.key(0), WIDTHS, ACTIVATIONS["tanh"], "he")
    top = network.stack.top
    larger = network.stack.below().append(type(top)(4 * top.W, 4 * top.b))
    scaled = [terms[0].in_units(np.zeros(2), np.ones(2), 4.0)]
    plain = mean_square(Network(larger, network.sigma), terms)
    np.testing.assert_allclose(mean_square(network, scaled), plain, rtol=1e-13)


def test_pm_and_sapm_need_squares(terms):
    with pytest.raises(ValueError, match="got a loss that is not the square, expected squares"):
        objective(terms, 3, "sapm")


@pytest.mark.parametrize("method", ("auto", "adam"))
def test_solve(method, tmp_path):
    """A Regression with the loss trains, is saved, predicts without the loss and goes on with it."""
    problem = sapm.Regression(X, LABELS, test=(X, LABELS), loss=CrossEntropy())
    sizes = {"depth": 3, "width": 6, "seeds": 1, "max_iter": 8, "progress": False}
    model = {"model": "ls"} if method == "adam" else {}
    result = sapm.solve(problem, **sizes, method=method, **model)
    row = result.rows[0]
    assert result.plan.model == "ls" and row.loss == row.mean_squared_loss < row.initial_loss
    u = result.best(X)
    cost = np.mean(CrossEntropy().value(u, LABELS))
    np.testing.assert_allclose(cost, row.loss, rtol=1e-6)
    np.testing.assert_allclose(row.test_error, np.sqrt(cost / np.log(3)), rtol=1e-6)
    path = tmp_path / "classes.sapm"
    result.save(path)
    np.testing.assert_allclose(best_of(path)(X), u, rtol=1e-12)
    with pytest.raises(ValueError, match="trained with a loss of your own"):
        sapm.load(path)
    with pytest.raises(ValueError, match="the problem given is not the stored one"):
        sapm.load(path, problem=sapm.Regression(X, LABELS, test=(X, LABELS), loss=Twice()))
    again = sapm.load(path, problem=problem)
    assert again.samples.terms[0].loss == problem.loss


class Twice(CrossEntropy):
    """Twice the cross-entropy."""

    def value(self, prediction, target):
        return 2 * super().value(prediction, target)


def test_solve_needs_the_true_loss():
    problem = sapm.Regression(X, LABELS, loss=CrossEntropy())
    with pytest.raises(ValueError, match="got a loss that is not the square, expected squares"):
        sapm.solve(problem, model="sapm", method="alternating")
    with pytest.raises(TypeError, match="loss: got 'cross-entropy', expected an object"):
        sapm.Regression(X, LABELS, loss="cross-entropy")
