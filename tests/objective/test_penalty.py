"""Starts of the free variables, and clear refusals."""

import jax
import numpy as np
import pytest

from sapm.numerics.activations import tanh
from sapm.numerics.network import initialise
from sapm.objective.penalty import objective, start_point
from sapm.objective.terms import pde_term, value_term


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
