"""Layers that the library does not have: a convolution and a residual layer, in one network."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jacobians import weighted_residuals
from jaxtyping import Array, Float

from sapm.methods.alternating import alternating
from sapm.methods.descent import descent
from sapm.methods.gauss_newton import gauss_newton
from sapm.methods.linearise import Products, dense, flatten, gram, squares, times, transposed
from sapm.methods.streamed import streamed
from sapm.numerics.activations import ACTIVATIONS
from sapm.numerics.jets import Jet
from sapm.numerics.layers import Dense, Layer
from sapm.numerics.network import Network
from sapm.objective.losses import Loss
from sapm.objective.penalty import mean_square, objective, penalty, start_point
from sapm.objective.terms import pde_term, value_term
from sapm.objective.weights import certificate
from sapm.training.loop import train

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
@pytest.mark.parametrize("name", CHAINS)
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


class Skewed(Loss):
    """|M (u - y)|² with a matrix M."""

    M = np.array([[2.0, 0.0], [1.0, -0.5]])

    def value(self, prediction, target):
        return jnp.sum(((prediction - target) @ self.M.T) ** 2, axis=1)

    def quadratic(self, prediction, target):
        root = jnp.broadcast_to(self.M.T, (len(target), 2, 2))
        return (prediction - target) @ self.M.T, root


TWO = np.c_[np.sin(3 * X), X]


@pytest.mark.parametrize(
    "terms",
    (EQUATION, [value_term(X, TWO, weight=1 + X[:, 0], loss=Skewed())]),
    ids=("equation", "own loss"),
)
def test_gauss_newton_without_a_matrix(terms, monkeypatch):
    """The products with J, and the step, are those of the matrix J."""
    monkeypatch.setattr("sapm.methods.gauss_newton.CG_TOLERANCE", 1e-14)
    network = chain(CHAINS["mixed"], outputs=terms[0].y.shape[1])
    obj = objective(terms, network.depth, "ls")

    def measured(algebra):
        method = gauss_newton(obj, network.widths, "tanh", algebra=algebra)

        @jax.jit
        def of(network):
            at = method.linearise(method.begin(network).point, False)
            changes = [
                transposed(at.rows, at.rho),
                squares(at.rows),
                method.solver(at, 0.1)(at.rho),
            ]
            return at, [flatten(x) for x in changes], times(at.rows, network.stack)

        return of(network)

    at, stacks, residuals = measured("free")
    assert isinstance(at.rows, Products)
    _, wanted_stacks, wanted_residuals = measured("dense")
    for got, wanted in zip(stacks, wanted_stacks, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-10)
    for got, wanted in zip(residuals, wanted_residuals, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "terms", "algebra"),
    [
        ("mixed", VALUES, "primal"),
        ("mixed", VALUES, "dual"),
        ("mixed", VALUES, "free"),
        ("convolution", VALUES, "primal"),
        ("mixed", EQUATION, "dual"),
        ("residual", EQUATION, "primal"),
    ],
)
def test_training_by_gauss_newton(name, terms, algebra):
    network = chain(CHAINS[name])
    obj = objective(terms, network.depth, "ls")
    method = gauss_newton(obj, network.widths, "tanh", algebra=algebra)
    state = method.begin(network)
    step = jax.jit(lambda state, method=method: method.step(state))
    for _ in range(25):
        state = step(state)
    first, last = (mean_square(n, terms) for n in (network, method.network(state)))
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
def test_the_sapm_loss_and_its_bound(name):
    """The loss is Σ_l β_l ω_l ‖r_l‖² / N with ω_l = Π_{j>l} gain_j; the bound is 1 + Σ_l 1/β_l."""
    network = chain(CHAINS[name])
    L = network.depth
    beta = np.linspace(0.5, 2, L - 1)
    obj = objective(VALUES, L, "sapm", beta=beta)
    point = start_point(jax.random.key(0), obj, network)

    @jax.jit
    def measured(network, point):
        first, *above = network.stack.layers()
        free = [u.value for u in point.aux[0].layers()[:-1]] + [VALUES[0].y]
        outputs = [first(VALUES[0].x)]
        outputs += [layer.apply(network.sigma, point.aux[0][l]) for l, layer in enumerate(above, 1)]
        shares = [
            jnp.mean(jnp.sum((a.value - b) ** 2, 1)) for a, b in zip(outputs, free, strict=True)
        ]
        gains = [layer.gain() for layer in above]
        return penalty(obj, point), mean_square(network, VALUES), jnp.stack(shares), gains

    loss, true, shares, gains = measured(network, point)
    by_hand = shares[-1] + sum(beta[l] * np.prod(gains[l:]) * shares[l] for l in range(L - 1))
    np.testing.assert_allclose(loss, by_hand, rtol=1e-12)

    certified = certificate(obj, network.sigma, loss, true, network=network)
    assert certified.holds and "by the gains of the layers" in certified.reason
    assert certified.bound == pytest.approx(1 + np.sum(1 / beta))


@jax.jit
def stretch(layer, u, e):
    """‖apply(u + e) - apply(u)‖² / ‖e‖² of every sample."""

    def apply(value):
        return layer.apply(ACTIVATIONS["tanh"], Jet(value, jnp.zeros((len(value), 0, len(u[0])))))

    change = apply(u + e).value - apply(u).value
    return jnp.sum(change**2, axis=1) / jnp.sum(e**2, axis=1)


def test_gains_are_bounds():
    """‖apply(u + e) - apply(u)‖² ≤ gain · ‖e‖², for small and large u and e."""
    rng = np.random.default_rng(0)
    size = np.logspace(-3, 1, 60)[:, None]
    u, e = (jnp.asarray(rng.permutation(size) * rng.normal(size=(60, 5))) for _ in range(2))
    for layer in chain(CHAINS["mixed"]).stack.layers()[1:]:
        assert np.all(stretch(layer, u, e) <= layer.gain() * (1 + 1e-12)), type(layer)


def test_gains_are_nearly_reached():
    """By changes of u ≈ 0 along w where W = w wᵀ, and by a constant change of a long line."""
    w = jnp.array([0.3, -1.1, 0.7])
    small = 1e-6
    for layer in (Dense(jnp.outer(w, w), jnp.ones(3)), Residual(jnp.outer(w, w), jnp.ones(3))):
        np.testing.assert_allclose(
            stretch(layer, jnp.zeros((1, 3)), small * w[None]), layer.gain(), rtol=1e-8
        )
    line = Convolution(jnp.full(3, 0.4), jnp.ones(()), 1000)
    u = jnp.zeros((1, 1000))
    np.testing.assert_allclose(stretch(line, u, u + small), line.gain(), rtol=2e-3)


@pytest.mark.parametrize("terms", (VALUES, EQUATION), ids=("values", "equation"))
def test_the_certificate_of_a_run(terms):
    """It is that of the chain, not the one that dense layers would have with |σ'| ≤ 1/4."""
    network = chain(CHAINS["residual"], "sigmoid")
    obj = objective(terms, network.depth, "sapm", beta=0.7)
    method = descent(obj, network.widths, "sigmoid", "adam")
    initial = jax.tree.map(lambda x: x[None], method.begin(network))
    run = train(method, 2, seeds=1, initial=initial)
    given = run.certificate(0)
    ratio = run.history["bound_ratio"]
    if terms is EQUATION:
        assert given.bound is None and "the theorems are about dense layers" in given.reason
        assert np.all(np.isnan(ratio))
    else:
        assert given.bound == pytest.approx(1 + (network.depth - 1) / 0.7) and given.holds
        losses = [run.history[name] for name in ("mean_squared_loss", "loss")]
        np.testing.assert_allclose(ratio, losses[0] / losses[1] / given.bound, rtol=1e-12)


def test_without_a_gain():
    """A layer without a proven gain trains on the true loss alone; the sentences say so."""
    network = chain(("wild", "residual"))
    obj = objective(VALUES, network.depth, "sapm")
    with pytest.raises(
        ValueError, match="got layer 2, Wild, without a gain, expected layers with a proven gain"
    ):
        penalty(obj, start_point(jax.random.key(0), obj, network))
    steep = ACTIVATIONS["tanh"].__class__("steep", network.sigma.pair, network.sigma.curve, 2.0)
    assert certificate(obj, steep, 1.0, 1.0, network=network).holds is None
    given = certificate(obj, network.sigma, 1.0, 1.0, network=network)
    assert given.holds is None and "layer 2, Wild, has no proven gain" in given.reason
    equation = objective(EQUATION, network.depth, "sapm")
    assert "dense layers" in str(certificate(equation, network.sigma, 1.0, 1.0, network=network))


REFUSALS = {
    "gauss-newton": lambda obj, widths: gauss_newton(obj, widths, "tanh"),
    "sweeps": lambda obj, widths: alternating(obj, widths, "tanh"),
    "sweeps over chunks": lambda obj, widths: streamed(obj, widths, ACTIVATIONS["tanh"]),
    "l2": lambda obj, widths: descent(replace(obj, l2=jnp.asarray(0.1)), widths, "tanh", "adam"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_methods_for_dense_layers_refuse_others_at_the_start(name):
    network = chain(("dense", "residual"))
    engine = REFUSALS[name](objective(VALUES, network.depth, "sapm"), network.widths)
    engine.begin(chain(("dense", "dense")))
    with pytest.raises(ValueError, match="got layer 3, Residual, expected dense layers; use model"):
        engine.begin(network)


def test_descent_refuses_layers_without_a_gain_at_the_start():
    network = chain(("wild", "residual"))
    engine = descent(objective(VALUES, network.depth, "sapm"), network.widths, "tanh", "adam")
    with pytest.raises(ValueError, match="got layer 2, Wild, without a gain"):
        engine.begin(network)


def test_inputs_of_a_chain_are_not_narrowed():
    with pytest.raises(ValueError, match="got layer 2, Residual, expected dense layers"):
        chain(("residual",)).narrow_input(1)


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
