"""Storage by layer, initialisers, and clear refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sapm.numerics.activations import relu, tanh
from sapm.numerics.jets import Jet
from sapm.numerics.network import INITIALISERS, NO_RUN, Network, Stack, equal_run, initialise


@pytest.mark.parametrize(
    ("widths", "run"),
    [
        ((1, 4, 1), NO_RUN),
        ((2, 4, 3, 1), NO_RUN),
        ((1, 4, 4, 1), (2, 2)),
        ((4, 4, 4, 1), (1, 2)),
        ((1, 5, 5, 3, 3, 3, 3, 1), (4, 6)),
    ],
)
def test_equal_run(widths, run):
    assert equal_run(widths) == run


def test_stack_get_set_traced():
    stack = Stack.of([jnp.full((2,), float(l)) for l in range(1, 7)], (2, 5))
    assert [float(x[0]) for x in stack.layers()] == [1, 2, 3, 4, 5, 6]
    new = jax.jit(lambda s, l: s.set(l, s[l] * 10))(stack, 4)
    assert [float(x[0]) for x in new.layers()] == [1, 2, 3, 40, 5, 6]
    assert [float(x[0]) for x in stack.set(1, jnp.zeros(2)).set(6, jnp.ones(2)).layers()] == [
        0,
        2,
        3,
        4,
        5,
        1,
    ]
    grown = stack.grow()
    assert grown.run == (1, 5) and [float(x[0]) for x in grown.layers()] == [1, 2, 3, 4, 5, 6]
    assert np.array_equal(grown.rows(), stack.rows())


@pytest.mark.parametrize("init", INITIALISERS)
@pytest.mark.parametrize("widths", [(3, 6, 1), (2, 7, 7, 7, 2), (6, 6, 6, 1)])
def test_initialisers(init, widths):
    network = initialise(jax.random.key(0), widths, relu, init)
    assert network.widths == list(widths)
    for l, (W, b) in enumerate(network.weights, 1):
        assert np.all(np.isfinite(W)) and np.all(np.isfinite(b)) and np.any(W != 0)
        if init == "paper":
            M = widths[l - 1] if l == len(network.weights) else widths[l]
            assert np.max(np.abs(W)) <= M**-0.5 and np.max(np.abs(b)) <= M**-0.5
        else:
            assert np.all(b == 0)
    again = initialise(jax.random.key(0), widths, relu, init)
    assert all(
        np.array_equal(x, y)
        for p, q in zip(network.weights, again.weights, strict=True)
        for x, y in zip(p, q, strict=True)
    )


def test_the_size_of_initial_weights():
    """he: variance 2 / inputs; xavier: 2 / (inputs + outputs); paper: U(-M^-½, M^-½)."""
    widths = (50, 200, 200, 1)
    he, xavier, paper = (
        np.asarray(initialise(jax.random.key(0), widths, tanh, init).weights[1][0])
        for init in ("he", "xavier", "paper")
    )
    assert np.std(he) == pytest.approx((2 / 200) ** 0.5, rel=0.05)
    assert np.std(xavier) == pytest.approx((2 / 400) ** 0.5, rel=0.05)
    assert 0.95 * 200**-0.5 < np.max(np.abs(paper)) <= 200**-0.5


def test_looks_linear_is_linear():
    network = initialise(jax.random.key(1), (3, 8, 8, 8, 2), relu, "looks-linear")
    x = np.random.default_rng(0).normal(size=(20, 3))
    out = np.asarray(network(Jet(jnp.asarray(x), jnp.zeros((20, 0, 3)))).value)
    fit = np.linalg.lstsq(x, out, rcond=None)[0]
    np.testing.assert_allclose(x @ fit, out, rtol=1e-12, atol=1e-12)
    assert np.linalg.norm(fit) > 0.1


def test_orthogonal_is_orthogonal():
    W = initialise(jax.random.key(1), (2, 5, 5, 1), tanh, "orthogonal").weights[1][0]
    np.testing.assert_allclose(W @ W.T, np.eye(5), rtol=1e-12, atol=1e-12)


def test_inputs_widened_and_back():
    network = initialise(jax.random.key(1), (2, 5, 5, 5, 1), tanh)
    wide = network.widen_input(5)
    assert wide.stack.run == (1, 3) and network.stack.run == (2, 3)
    for (W, b), (V, c) in zip(network.weights, wide.narrow_input(2).weights, strict=True):
        assert np.array_equal(W, V) and np.array_equal(b, c)


def test_refusals():
    cases = [
        (lambda: initialise(jax.random.key(0), (2, 1), relu), "at least one hidden width"),
        (
            lambda: Network.of(
                [(np.ones((3, 2)), np.ones(3)), (np.ones((1, 4)), np.ones(1))], relu
            ),
            "layer 2 has W",
        ),
        (lambda: Network.of([(np.ones((3, 2)), np.ones(3))], relu), "depth must be at least 2"),
    ]
    for call, sentence in cases:
        with pytest.raises(ValueError, match=sentence):
            call()
