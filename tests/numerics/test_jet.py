"""Jets are forward-mode derivatives; activations have the derivatives and constants they claim."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import SHAPES, nested, relative
from hypothesis import given
from hypothesis import strategies as st

from sapm.numerics.activations import ACTIVATIONS, activation, sincos
from sapm.numerics.jets import Jet, channel, jet_of, lift, multiplied, polarised
from sapm.numerics.layers import Dense
from sapm.numerics.network import initialise


@pytest.mark.parametrize("sigma", ACTIVATIONS.values(), ids=lambda s: s.name)
def test_activation_derivatives(sigma):
    x = jnp.concatenate([jnp.linspace(-8, 8, 1001), jnp.array([-700.0, -40.0, 40.0, 700.0])])
    value, slope = sigma.pair(x)
    _, slope_ad = jax.jvp(sigma, (x,), (jnp.ones_like(x),))
    _, curve_ad = jax.jvp(lambda x: sigma.pair(x)[1], (x,), (jnp.ones_like(x),))
    np.testing.assert_allclose(slope, slope_ad, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(sigma.curve(x, value, slope), curve_ad, rtol=1e-12, atol=1e-14)
    assert np.all(np.isfinite(value))


@pytest.mark.parametrize("sigma", ACTIVATIONS.values(), ids=lambda s: s.name)
def test_activation_constants_hold_and_are_nearly_attained(sigma):
    x = jnp.linspace(-10, 10, 200_001)
    value, slope = (np.asarray(v) for v in sigma.pair(x))

    def rate(v):
        return np.max(np.abs(np.diff(v))) / (x[1] - x[0])

    assert 0.999 * sigma.lipschitz <= rate(value) <= sigma.lipschitz * (1 + 1e-9)
    assert 0.999 * sigma.slope <= np.max(np.abs(slope)) <= sigma.slope
    if sigma.slope_lipschitz is None:
        assert rate(slope) > 1e3
    else:
        assert 0.999 * sigma.slope_lipschitz <= rate(slope) <= sigma.slope_lipschitz * (1 + 1e-9)


@pytest.mark.parametrize("sigma", ACTIVATIONS.values(), ids=lambda s: s.name)
def test_activations_keep_the_precision_they_are_given(sigma):
    x = jnp.linspace(-1, 1, 5, dtype=jnp.float32)
    assert {y.dtype for y in (*sigma.pair(x), sigma.curve(x, *sigma.pair(x)))} == {
        np.dtype("float32")
    }


def test_sincos():
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [rng.normal(size=20_000) * 10.0**e for e in range(-8, 6)] + [np.array([0.0, 1e6, -1e6])]
    )
    sin, cos = jax.jit(sincos)(x)
    assert np.max(np.abs(sin - np.sin(x))) <= 4.5e-16
    assert np.max(np.abs(cos - np.cos(x))) <= 4.5e-16
    large = rng.normal(size=1000) * 1e12
    assert (
        np.max(np.abs(np.asarray(sincos(large)[0]) - np.sin(large))) < 1e-3
    )  # the spacing of numbers there is 1e-4
    huge = np.array([1e18, 1e300])
    assert np.all(np.abs(np.asarray(sincos(huge))) <= 1)
    assert np.all(np.isnan(np.asarray(sincos(np.array([np.inf, np.nan])))))


@cache
def both_ways(shape):
    """(jet, value and tangents by jax.jvp) of a random network of that shape, compiled."""
    _, widths, name = shape

    def run(seed, x, directions):
        network = initialise(jax.random.key(seed), widths, ACTIVATIONS[name], "xavier")

        def plain(x):
            return network(Jet(x, jnp.zeros((3, 0, widths[0])))).value

        return network(Jet(x, directions)), [
            jax.jvp(plain, (x,), (directions[:, i],)) for i in range(2)
        ]

    return jax.jit(run)


@given(seed=st.integers(0, 2**31), shape=st.sampled_from(SHAPES))
def test_network_jets_equal_jvp(seed, shape):
    """The jet of the whole network along any directions equals jax.jvp of its value."""
    rng = np.random.default_rng(seed)
    jet, pairs = both_ways(shape)(
        seed, rng.normal(size=(3, shape[1][0])), rng.normal(size=(3, 2, shape[1][0]))
    )
    for i, (value, tangent) in enumerate(pairs):
        assert relative(jet.value, value) < 1e-12
        assert np.max(np.abs(jet.tangents[:, i] - tangent)) < 1e-12 * (1 + np.max(np.abs(tangent)))


def test_own_activation():
    """Any elementwise JAX function trains; it has derivatives but no constants."""
    sigma = activation(jax.nn.gelu)
    x = jnp.linspace(-3, 3, 7)
    value, slope = sigma.pair(x)
    np.testing.assert_allclose(value, jax.nn.gelu(x))
    np.testing.assert_allclose(slope, jax.vmap(jax.grad(jax.nn.gelu))(x), rtol=1e-12)
    np.testing.assert_allclose(
        sigma.curve(x, value, slope), jax.vmap(jax.grad(jax.grad(jax.nn.gelu)))(x), rtol=1e-10
    )
    assert sigma.lipschitz is None
    assert lift(sigma, Jet(x[:, None], jnp.ones((7, 1, 1)))).tangents.shape == (7, 1, 1)


def test_unknown_activation():
    with pytest.raises(ValueError, match="'swish' is not known; use one of relu"):
        activation("swish")
    with pytest.raises(ValueError, match="neither a name nor a function"):
        activation(3)


def test_functions_of_jax_are_the_built_in_ones():
    """jnp.tanh is "tanh": it has the constants, and the name that a file needs."""
    for function in (jnp.sin, jnp.tanh, jax.nn.relu, jax.nn.sigmoid, jax.nn.softplus):
        sigma = activation(function)
        assert sigma is ACTIVATIONS[sigma.name]
        assert np.allclose(sigma(jnp.linspace(-2, 2, 9)), function(jnp.linspace(-2, 2, 9)))


@pytest.mark.parametrize("sigma", ACTIVATIONS.values(), ids=lambda s: s.name)
def test_derivatives_of_any_order(sigma):
    """They equal nested `jax.jvp` of σ', and every σ without a series has them by nested `jax.jvp`."""
    x = jnp.concatenate([jnp.linspace(-6, 6, 101), jnp.array([-40.0, 40.0])])
    by_series = sigma.derivatives(x, 6)
    by_jvp = replace(sigma, series=None).derivatives(x, 6)
    for a, b in zip(by_series, by_jvp, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


def along_curve(f, x, v, order):
    """The derivative of that order of t ↦ f(x + t v) at 0, by nested `jax.jvp`."""

    def curve(t):
        return f(x + t * v)

    for _ in range(order):
        curve = partial(lambda g, t: jax.jvp(g, (t,), (jnp.ones_like(t),))[1], curve)
    return curve(jnp.zeros(()))


@pytest.mark.parametrize("sigma", ACTIVATIONS.values(), ids=lambda s: s.name)
def test_jets_of_order_four_equal_nested_jvp(sigma):
    """Every channel of the jet of a network: the derivative of its order along its direction."""
    orders = (4, 2, 3, 1)
    network = initialise(jax.random.key(1), (2, 5, 5, 2), sigma, "xavier")
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(3, 2)))
    directions = rng.normal(size=(3, 4, 2))
    seeds = np.concatenate([directions, np.zeros((3, sum(orders) - 4, 2))], axis=1)
    jet = jax.jit(lambda jet: network(jet))(  # noqa: PLW0108  a network is no key of a cache
        Jet(x, jnp.asarray(seeds), (), orders)
    )

    def plain(row):
        return network(Jet(row[None], jnp.zeros((1, 0, 2)))).value[0]

    def nested(order, i):
        return jax.vmap(lambda row, v: along_curve(plain, row, v, order))(x, directions[:, i])

    for i, highest in enumerate(orders):
        for order in range(1, highest + 1):
            expected = jax.jit(nested, static_argnums=(0, 1))(order, i)
            got = jet.tangents[:, channel(orders, i, order)]
            assert np.max(np.abs(got - expected)) < 1e-12 * (1 + np.max(np.abs(expected)))


def test_jets_of_order_two_are_those_of_forms():
    """A combined second derivative is the sum of the single ones with its signs."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2)))
    network = initialise(jax.random.key(0), (2, 5, 1), ACTIVATIONS["tanh"], "xavier")
    eye = jnp.broadcast_to(jnp.eye(2), (4, 2, 2))
    combined = network(Jet(x, jnp.pad(eye, ((0, 0), (0, 1), (0, 0))), ((1, -1),)))
    single = network(Jet(x, jnp.pad(eye, ((0, 0), (0, 2), (0, 0))), (), (2, 2)))
    np.testing.assert_allclose(combined.tangents[:, :2], single.tangents[:, :2], rtol=1e-13)
    difference = single.tangents[:, 2] - single.tangents[:, 3]
    np.testing.assert_allclose(combined.tangents[:, 2], difference, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("exponents", [(3, 0), (2, 1), (2, 2), (1, 1, 1), (4, 2), (2, 2, 2)])
def test_mixed_derivatives_by_polarisation(exponents):
    """∂^a f is the weighted sum of derivatives along directions, for f = exp(w·x): w^a, exactly."""
    w = np.array([0.7, -1.3, 0.4])[: len(exponents)]
    order = sum(exponents)
    weights = polarised(exponents)
    got = sum(weight * np.dot(v, w) ** order for v, weight in weights.items())
    assert abs(got - np.prod(w ** np.array(exponents))) < 1e-13
    assert all(np.gcd.reduce(v) == 1 for v in weights)


@pytest.mark.parametrize("orders", [(), (3, 1)])
def test_jets_of_functions_and_products(orders):
    """`jet_of` a function of one point, and Leibniz' rule for products of jets."""
    higher = sum(orders) - len(orders)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(3, 2)))
    seeds = jnp.asarray(rng.normal(size=(3, 2 + higher, 2))).at[:, 2:].set(0.0)
    x = Jet(x, seeds, (), orders)

    def f(p):
        return jnp.stack([jnp.sin(p[0] * p[1]), jnp.exp(p[0])])

    def g(p):
        return jnp.stack([p[0] ** 3 + p[1], jnp.cos(p[1])])

    whole = jet_of(lambda p: f(p) * g(p), x)
    parts = multiplied(jet_of(f, x), jet_of(g, x))
    np.testing.assert_allclose(parts.value, whole.value, rtol=1e-13)
    np.testing.assert_allclose(parts.tangents, whole.tangents, rtol=1e-12, atol=1e-12)
    inner = jet_of(lambda p: 2 * p, x)
    lifted = lift(ACTIVATIONS["tanh"], inner)
    np.testing.assert_allclose(
        lifted.tangents, jet_of(lambda p: jnp.tanh(2 * p), x).tangents, rtol=1e-12, atol=1e-12
    )


FORMS = {"a sum": ((1, 1),), "mixed signs": ((1, -1, 0), (0, 1, 1))}
SMOOTH = [sigma for sigma in ACTIVATIONS.values() if sigma.name != "relu"]


def input_jet(rng, forms, n=3, d=2) -> Jet:
    """Random points and, at each, random directions and seeds."""
    channels = len(forms[0]) + len(forms)
    return Jet(
        jnp.asarray(rng.normal(size=(n, d))), jnp.asarray(rng.normal(size=(n, channels, d))), forms
    )


@pytest.mark.parametrize("forms", FORMS.values(), ids=FORMS.keys())
def test_jets_are_nested_derivatives(forms):
    """Through σ, through a layer, and through whole networks with and without a run of equal
    layers.
    """

    @jax.jit
    def both(x, key):
        found = []
        for sigma in SMOOTH:
            found.append((lift(sigma, x), nested(sigma, x.value, x)))
        for sigma, widths in (("sin", (2, 3, 3, 3, 2)), ("tanh", (2, 3, 4, 1))):
            network = initialise(key, widths, ACTIVATIONS[sigma], "xavier")

            def plain(p, network=network):
                return network(Jet(p, jnp.zeros((len(p), 0, 2)))).value

            found.append((network(x), nested(plain, x.value, x)))
        layer = Dense(jax.random.normal(key, (4, 2)), jnp.ones(4))
        found.append((layer(x), nested(lambda p: p @ layer.W.T + layer.b, x.value, x)))
        return found

    for seed in range(5):
        for jet, wanted in both(
            input_jet(np.random.default_rng(seed), forms), jax.random.key(seed)
        ):
            assert jet.forms == wanted.forms == forms
            assert (
                relative(jet.value, wanted.value) < 1e-13
                and relative(jet.tangents, wanted.tangents) < 1e-12
            )


def test_sincos_differentiates_again_and_again():
    x = np.linspace(-7, 7, 101)

    def f(x):
        return sincos(x)[0]

    for wanted in (np.sin, np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x), np.sin):
        assert np.allclose(jax.vmap(f)(x), wanted(x), rtol=1e-12, atol=1e-15)
        f = jax.grad(f)
