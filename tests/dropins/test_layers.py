"""Layers that the library does not have: a convolution and a residual layer, in one network."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jacobians import weighted_residuals
from jaxtyping import Array, Float

from sapm.methods.descent import descent
from sapm.methods.gauss_newton import gauss_newton
from sapm.methods.linearise import dense, flatten, gram, squares, times, transposed
from sapm.numerics.activations import ACTIVATIONS
from sapm.numerics.jets import Jet
from sapm.numerics.layers import Dense, Layer
from sapm.numerics.network import Network
from sapm.objective.penalty import mean_square, objective, penalty, start_point
from sapm.objective.terms import pde_term, value_term
from sapm.objective.weights import certificate

pytestmark = pytest.mark.usefixtures("double_precision")


class Residual(Layer):
    """u_l = u_{l-1} + W σ(u_{l-1}) + b."""

    W: Float[Array, "m m"]
    b: Float[Array, " m"]

    def __call__(self, z):
        return z.like(z.value @ self.W.T + self.b, z.tangents @ self.W.T)

    def apply(self, sigma, u):
        return jax.tree.map(jnp.add, u, super().apply(sigma, u))

    def gain(self):
        """(1 + ‖W‖_F)²."""
        return (1 + jnp.sqrt(jnp.sum(self.W**2) + 1e-30)) ** 2

    @property
    def sizes(self):
        return self.W.shape[-1], self.W.shape[-2]


class Convolution(Layer):
    """One channel on a line, zero padding: (K ∗ z)_i = Σ_t K_t z_{i+t} + b."""

    K: Float[Array, " taps"]
    b: Float[Array, ""]
    length: int = eqx.field(static=True)

    def __call__(self, z):
        def along(a):
            a = jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(1, 1)])
            return sum(self.K[t] * a[..., t : t + self.length] for t in range(3))

        return z.like(along(z.value) + self.b, along(z.tangents))

    def gain(self):
        """taps · ‖K‖²."""
        return 3 * jnp.sum(self.K**2)

    @property
    def sizes(self):
        return self.length, self.length


class Wild(Dense):
    """A layer without a proven gain."""

    def gain(self):
        return None


def chain(kinds, sigma="tanh", width=5, inputs=1, outputs=1):
    """Dense, then the layers of these kinds, then Dense."""
    rng = np.random.default_rng(0)

    def dense_layer(kind, out, inner):
        W = jnp.asarray(rng.normal(size=(out, inner)) / np.sqrt(inner))
        return kind(W, jnp.asarray(rng.normal(size=out) * 0.3))

    made = {
        "residual": lambda: dense_layer(Residual, width, width),
        "convolution": lambda: Convolution(jnp.asarray(rng.normal(size=3)), jnp.zeros(()), width),
        "dense": lambda: dense_layer(Dense, width, width),
        "wild": lambda: dense_layer(Wild, width, width),
    }
    layers = [dense_layer(Dense, width, inputs), *(made[kind]() for kind in kinds)]
    return Network.chain([*layers, dense_layer(Dense, outputs, width)], ACTIVATIONS[sigma])


X = np.linspace(-1, 1, 24)[:, None]
VALUES = [value_term(X, np.sin(3 * X))]
EQUATION = [pde_term(X, np.ones_like(X), np.cos(X), c0=X[:, 0]), value_term(X[:1], [[0.5]])]
CHAINS = {
    "convolution": ("convolution",),
    "residual": ("residual", "residual", "residual"),
    "mixed": ("convolution", "residual", "dense", "dense"),
}


@pytest.mark.parametrize("name", CHAINS)
def test_jets(name):
    """The first derivative along the input, by jets and by `jax.jvp`."""
    network = chain(CHAINS[name])
    jet = network(Jet(jnp.asarray(X), jnp.ones((24, 1, 1))))

    def plain(x):
        return network(Jet(x, jnp.zeros((24, 0, 1)))).value

    value, slope = jax.jvp(plain, (jnp.asarray(X),), (jnp.ones((24, 1)),))
    np.testing.assert_allclose(jet.value, value, rtol=1e-13)
    np.testing.assert_allclose(jet.tangents[:, 0], slope, rtol=1e-12, atol=1e-14)
    assert not network.dense and network.widths[-1] == 1
    assert (network.stack.body is not None) == (name != "convolution")


@pytest.mark.parametrize("terms", (VALUES, EQUATION), ids=("values", "equation"))
@pytest.mark.parametrize("name", ("residual", "mixed"))
def test_the_jacobian(name, terms):
    """J by autodiff of one sample at a time equals `jax.jacobian` of all residuals."""
    network = chain(CHAINS[name])
    obj = objective(terms, network.depth, "ls")
    method = gauss_newton(obj, network.widths, "tanh", bend=False)
    at = jax.jit(lambda point: method.linearise(point, False))(method.begin(network).point)
    residuals = weighted_residuals(terms, network)
    flat = flatten(network.stack)
    J = jax.jit(jax.jacobian(residuals))(flat)
    np.testing.assert_allclose(dense(at.rows), J, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(jnp.concatenate(at.rho), residuals(flat), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(gram(at.rows), J @ J.T, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        jnp.concatenate(times(at.rows, network.stack)), J @ flat, rtol=1e-10, atol=1e-12
    )
    np.testing.assert_allclose(
        flatten(transposed(at.rows, at.rho)), J.T @ residuals(flat), rtol=1e-10, atol=1e-12
    )
    np.testing.assert_allclose(flatten(squares(at.rows)), np.sum(J**2, 0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("algebra", ("primal", "dual", "free"))
def test_training_by_gauss_newton(algebra):
    network = chain(CHAINS["mixed"])
    obj = objective(VALUES, network.depth, "ls")
    method = gauss_newton(obj, network.widths, "tanh", algebra=algebra)
    state = method.begin(network)
    step = jax.jit(lambda state, method=method: method.step(state))
    for _ in range(25):
        state = step(state)
    first, last = (mean_square(n, VALUES) for n in (network, method.network(state)))
    assert last < 0.02 * first


@pytest.mark.parametrize("model", ("ls", "pm", "sapm"))
@pytest.mark.parametrize("name", ("residual", "convolution"))
def test_training_by_descent(name, model):
    """On the true loss and, since every layer has a gain, on the loss of SAPM, with Theorem 1."""
    network = chain(CHAINS[name])
    obj = objective(VALUES, network.depth, model)
    method = descent(obj, network.widths, "tanh", "adam", 2e-2)
    state = method.begin(network)
    step = jax.jit(lambda state, method=method: method.step(state))
    first, _ = method.losses(state)
    for _ in range(60):
        state = step(state)
    last, true = method.losses(state)
    assert last < 0.5 * first
    given = certificate(obj, network.sigma, last, true, network=method.network(state))
    assert given.holds is (None if model == "pm" else True)


@pytest.mark.parametrize("name", CHAINS)
def test_theorem_1_at_random_points(name):
    """true loss ≤ (1 + Σ_l 1/β_l) × SAPM loss, also where every defect is large."""
    network = chain(CHAINS[name])
    obj = objective(VALUES, network.depth, "sapm", beta=0.7)
    true = mean_square(network, VALUES)
    for seed in range(5):
        for start in ("uniform", "noise", "forward"):
            point = start_point(jax.random.key(seed), obj, network, start, noise=0.3)
            given = certificate(obj, network.sigma, penalty(obj, point), true, network=network)
            assert given.holds and "by the gains of the layers" in given.reason
            assert given.bound == pytest.approx(1 + (network.depth - 1) / 0.7)


def test_without_a_gain():
    """A layer without a proven gain trains on the true loss alone; the sentences say so."""
    network = chain(("wild", "residual"))
    obj = objective(VALUES, network.depth, "sapm")
    with pytest.raises(
        ValueError, match="needs a gain of every layer, and layer 2, Wild, has none"
    ):
        penalty(obj, start_point(jax.random.key(0), obj, network))
    with pytest.raises(ValueError, match="got layers that are not dense, expected"):
        method = gauss_newton(obj, network.widths, "tanh")
        method.step(method.begin(chain(("residual", "residual"))))
    steep = ACTIVATIONS["tanh"].__class__("steep", network.sigma.pair, network.sigma.curve, 2.0)
    assert certificate(obj, steep, 1.0, 1.0, network=network).holds is None
    given = certificate(obj, network.sigma, 1.0, 1.0, network=network)
    assert given.holds is None and "layer 2, Wild, has no proven gain" in given.reason
    equation = objective(EQUATION, network.depth, "sapm")
    assert "dense layers" in str(certificate(equation, network.sigma, 1.0, 1.0, network=network))


def test_chains_that_do_not_fit():
    with pytest.raises(ValueError, match="layer 2 takes 4 numbers, and the layer below gives 3"):
        Network.chain(
            [
                Dense(jnp.ones((3, 1)), jnp.zeros(3)),
                Residual(jnp.ones((4, 4)), jnp.zeros(4)),
                Dense(jnp.ones((1, 4)), jnp.zeros(1)),
            ],
            ACTIVATIONS["tanh"],
        )
