"""The engine equals the slow transcription of the paper to 1e-12: losses, weights, ridges."""

import jax
import numpy as np
import pytest
import reference as ref
from cases import (
    CONFIGS,
    name,
    random_objective,
    random_point,
    relative,
    to_reference,
)

from sapm.methods.window import prepare
from sapm.objective.penalty import (
    mean_square,
    omega,
    penalty,
    ridge_d,
    ridge_W,
    value_weight,
)
from sapm.objective.weights import term_constants

TOLERANCE = 1e-12


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_losses_weights_and_ridges(config):
    obj = random_objective(config, 0)
    point = random_point(config, obj, 0)
    rpoint, data = to_reference(config, obj, point)
    pde = obj.terms[0].is_pde
    layers = range(1, obj.depth + 1)

    @jax.jit
    def engine(obj, point):
        n = prepare(obj, point).norms
        ridges = [ridge_W(obj, n, l) for l in layers]
        inner = [
            (ridge_d(obj, 0, n.s, n.v[0], l), value_weight(obj, 0, n.t[0], l))
            for l in layers[:-1]
            if pde
        ]
        return (
            mean_square(point.network, obj.terms),
            penalty(obj, point),
            omega(obj, n.s),
            ridges,
            inner,
        )

    true, loss, omegas, ridges, inner = engine(obj, point)
    assert relative(true, (ref.J if pde else ref.L)(rpoint, data)) < TOLERANCE
    assert relative(loss, ref.loss(rpoint, data)) < TOLERANCE
    assert relative(omegas, [ref.omega(rpoint, data, l) for l in layers]) < TOLERANCE
    for l in layers:
        assert relative(ridges[l - 1], ref.ridge_W(rpoint, data, l)) < TOLERANCE
    for l, (xi, weight) in enumerate(inner, 1):
        n = len(obj.terms[0].y)
        assert relative(xi, [ref.xi(rpoint, data, l, k) for k in range(n)]) < TOLERANCE
        weights = [ref.value_weight(rpoint, data, l, k, "interior") for k in range(n)]
        assert relative(np.broadcast_to(obj.terms[0].weight * weight, n), weights) < TOLERANCE


@pytest.mark.parametrize(
    "config", [c for c in CONFIGS if c[1] == "sapm" and c[0][2] != "relu"], ids=name
)
def test_printed_constants(config):
    obj = random_objective(config, 2)
    sigma = random_point(config, obj, 2).network.sigma
    C, B, K = ref.CONSTANTS[sigma.name]
    L = obj.depth
    beta = [[None, *np.asarray(b)[:-1]] for b in obj.beta]
    proven, factor = term_constants(obj, sigma, len(obj.terms) - 1)
    assert proven == pytest.approx(ref.theorem_1_sharp(C, L, beta[-1]))
    if not obj.terms[0].is_pde:
        assert factor * L == pytest.approx(ref.theorem_1_printed(C, L, beta[0]))
    else:
        c = np.asarray(obj.terms[0].linear.c)
        alpha = [None, *np.asarray(obj.alpha[0])]
        printed = ref.theorem_3_printed(C, B, K, np.abs(c).max(), c.shape[1], L, alpha, *beta)
        worst = max(term_constants(obj, sigma, i)[1] for i in range(2))
        assert worst * c.shape[1] * L * (L + 1) == pytest.approx(printed)
