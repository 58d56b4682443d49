"""Jets are forward-mode derivatives; activations have the derivatives and constants they claim."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import SHAPES, relative
from hypothesis import given
from hypothesis import strategies as st

from sapm.jet import ACTIVATIONS, Jet, activation, lift, sincos
from sapm.network import initialise


@pytest.mark.parametrize("sigma", ACTIVATIONS.values(), ids=lambda s: s.name)
def test_activation_derivatives(sigma):
    x = jnp.concatenate([jnp.linspace(-8, 8, 1001), jnp.array([-700.0, -40.0, 40.0, 700.0])])
    value, slope = sigma.pair(x)
    _, slope_ad = jax.jvp(sigma, (x,), (jnp.ones_like(x),))
    _, curve_ad = jax.jvp(lambda x: sigma.pair(x)[1], (x,), (jnp.ones_like(x),))
    np.testing.assert_allclose(slope, slope_ad, atol=1e-14)
    np.testing.assert_allclose(sigma.curve(x, value, slope), curve_ad, atol=1e-14)
    assert np.all(np.isfinite(value))


@pytest.mark.parametrize("sigma", ACTIVATIONS.values(), ids=lambda s: s.name)
def test_activation_constants_hold_and_are_nearly_attained(sigma):
    x = jnp.linspace(-10, 10, 200_001)
    value, slope = (np.asarray(v) for v in sigma.pair(x))
    rate = lambda v: np.max(np.abs(np.diff(v))) / (x[1] - x[0])  # noqa: E731
    assert 0.999 * sigma.lipschitz <= rate(value) <= sigma.lipschitz * (1 + 1e-9)
    assert 0.999 * sigma.slope <= np.max(np.abs(slope)) <= sigma.slope
    if sigma.slope_lipschitz is None:
        assert rate(slope) > 1e3
    else:
        assert 0.999 * sigma.slope_lipschitz <= rate(slope) <= sigma.slope_lipschitz * (1 + 1e-9)


@pytest.mark.parametrize("sigma", ACTIVATIONS.values(), ids=lambda s: s.name)
def test_activations_keep_the_precision_they_are_given(sigma):
    x = jnp.linspace(-1, 1, 5, dtype=jnp.float32)
    assert {y.dtype for y in (*sigma.pair(x), sigma.curve(x, *sigma.pair(x)))} == {np.dtype("float32")}


def test_sincos():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=20_000) * 10.0**e for e in range(-8, 6)] + [np.array([0.0, 1e6, -1e6])])
    sin, cos = jax.jit(sincos)(x)
    assert np.max(np.abs(sin - np.sin(x))) <= 4.5e-16
    assert np.max(np.abs(cos - np.cos(x))) <= 4.5e-16
    large = rng.normal(size=1000) * 1e12
    assert np.max(np.abs(np.asarray(sincos(large)[0]) - np.sin(large))) < 1e-3  # the spacing of numbers there is 1e-4
    huge = np.array([1e18, 1e300])
    assert np.all(np.abs(np.asarray(sincos(huge))) <= 1)
    assert np.all(np.isnan(np.asarray(sincos(np.array([np.inf, np.nan])))))


@cache
def both_ways(shape):
    """(jet, value and tangents by jax.jvp) of a random network of that shape, compiled."""
    _, widths, name = shape

    def run(seed, x, directions):
        network = initialise(jax.random.key(seed), widths, ACTIVATIONS[name], "xavier")
        plain = lambda x: network(Jet(x, jnp.zeros((3, 0, widths[0])))).value  # noqa: E731
        return network(Jet(x, directions)), [jax.jvp(plain, (x,), (directions[:, i],)) for i in range(2)]

    return jax.jit(run)


@given(seed=st.integers(0, 2**31), shape=st.sampled_from(SHAPES))
def test_network_jets_equal_jvp(seed, shape):
    """The jet of the whole network along any directions equals jax.jvp of its value."""
    rng = np.random.default_rng(seed)
    jet, pairs = both_ways(shape)(seed, rng.normal(size=(3, shape[1][0])), rng.normal(size=(3, 2, shape[1][0])))
    for i, (value, tangent) in enumerate(pairs):
        assert relative(jet.value, value) < 1e-12
        assert np.max(np.abs(jet.tangents[:, i] - tangent)) < 1e-12 * (1 + np.max(np.abs(tangent)))


@pytest.mark.slow
def test_own_activation():
    """Any elementwise JAX function trains; it has derivatives but no constants."""
    sigma = activation(jax.nn.gelu)
    x = jnp.linspace(-3, 3, 7)
    value, slope = sigma.pair(x)
    np.testing.assert_allclose(value, jax.nn.gelu(x))
    np.testing.assert_allclose(slope, jax.vmap(jax.grad(jax.nn.gelu))(x), rtol=1e-12)
    np.testing.assert_allclose(sigma.curve(x, value, slope), jax.vmap(jax.grad(jax.grad(jax.nn.gelu)))(x), rtol=1e-10)
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
