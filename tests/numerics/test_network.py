"""Storage by layer, initialisers, and clear refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sapm.numerics.activations import relu, tanh
from sapm.numerics.jets import Jet
from sapm.numerics.network import INITIALISERS, NO_RUN, Network, Stack, equal_run, initialise
from sapm.objective.penalty import objective, start_point
from sapm.objective.terms import pde_term, value_term


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
        elif init == "features" and l == 1:
            assert np.max(np.abs(W)) <= 2 and np.any(
                b != 0
            )  # random features; the layers above pass them on
        else:
            assert np.all(b == 0)
    again = initialise(jax.random.key(0), widths, relu, init)
    assert all(
        np.array_equal(x, y)
        for p, q in zip(network.weights, again.weights, strict=True)
        for x, y in zip(p, q, strict=True)
    )


def test_looks_linear_is_linear():
    network = initialise(jax.random.key(1), (3, 8, 8, 8, 2), relu, "looks-linear")
    x = np.random.default_rng(0).normal(size=(20, 3))
    out = np.asarray(network(Jet(jnp.asarray(x), jnp.zeros((20, 0, 3)))).value)
    fit = np.linalg.lstsq(x, out, rcond=None)[0]
    np.testing.assert_allclose(x @ fit, out, atol=1e-12)
    assert np.linalg.norm(fit) > 0.1


def test_orthogonal_is_orthogonal():
    W = initialise(jax.random.key(1), (2, 5, 5, 1), tanh, "orthogonal").weights[1][0]
    np.testing.assert_allclose(W @ W.T, np.eye(5), atol=1e-12)


def test_inputs_widened_and_back():
    network = initialise(jax.random.key(1), (2, 5, 5, 5, 1), tanh)
    wide = network.widen_input(5)
    assert wide.stack.run == (1, 3) and network.stack.run == (2, 3)
    for (W, b), (V, c) in zip(network.weights, wide.narrow_input(2).weights, strict=True):
        assert np.array_equal(W, V) and np.array_equal(b, c)


@pytest.mark.parametrize("start", ["uniform", "forward", "noise"])
def test_starts(start):
    """U(-1, 1); the forward pass; the forward pass and a little more. The same for a seed whatever
    runs beside it.
    """
    x = np.random.default_rng(0).uniform(-1, 1, (9, 2))
    obj = objective([pde_term(x, x, x[:, :1]), value_term(x, x[:, :1])], 4)
    network = initialise(jax.random.key(0), (2, 3, 3, 3, 1), tanh)
    point, forward = (start_point(jax.random.key(5), obj, network, s) for s in (start, "forward"))
    for i, term in enumerate(obj.terms):
        for l, jet in enumerate(network.preactivations(term.x).layers(), 1):
            for got, wanted in (
                (point.aux[i][l].value, jet.value),
                (point.aux[i][l].tangents, jet.tangents),
            ):
                if not got.size:
                    continue
                far = float(np.max(np.abs(got - wanted)))
                assert {"forward": far == 0, "noise": 0 < far <= 0.1, "uniform": far > 0.1}[start]
                assert start != "uniform" or np.max(np.abs(got)) <= 1
        assert forward.aux[i][4].value.shape == (9, 0)


def test_refusals():
    x = np.ones((4, 2))
    term = value_term(x, np.ones(4))
    cases = [
        (lambda: initialise(jax.random.key(0), (2, 1), relu), "at least one hidden width"),
        (
            lambda: Network.of(
                [(np.ones((3, 2)), np.ones(3)), (np.ones((1, 4)), np.ones(1))], relu
            ),
            "layer 2 has W",
        ),
        (lambda: Network.of([(np.ones((3, 2)), np.ones(3))], relu), "depth must be at least 2"),
        (lambda: objective([term], 1), "depth=1"),
        (lambda: objective([term], 3, beta=(1.0, 1.0)), "beta has 2 entries for 1 terms"),
        (lambda: value_term(x, np.ones(3)), "x has 4 samples and y has 3"),
        (lambda: value_term(np.ones((0, 2)), np.ones(0)), "one row per sample"),
        (
            lambda: value_term(x, np.ones(4), -1.0),
            "weight=-1.0 must be a positive, finite number, or 4 of them",
        ),
        (lambda: pde_term(x, np.ones((4, 3)), np.ones(4)), r"c must be \(4, 2\)"),
    ]
    for call, sentence in cases:
        with pytest.raises(ValueError, match=sentence):
            call()
