"""Theorems 1 to 4 at random points and along runs, and the certificate that rests on them."""

from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference as ref
from cases import (
    SAPM,
    forward_point,
    losses_with_a_first_layer_defect,
    name,
    random_objective,
    random_point,
    relative,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from sapm.methods.alternating import alternating
from sapm.numerics.activations import Activation, activation, relu, sin, tanh
from sapm.numerics.jets import Jet
from sapm.numerics.network import Network, Stack
from sapm.objective.penalty import Point, mean_square, objective, penalty
from sapm.objective.terms import value_term
from sapm.objective.weights import ROUNDING, bound, certificate
from sapm.training.loop import train

both_losses = jax.jit(
    lambda obj, point: (penalty(obj, point), mean_square(point.network, obj.terms))
)
PROVED = [c for c in SAPM if not (c[0][0] == "pde" and c[0][2] == "relu")]


@pytest.mark.parametrize("config", PROVED, ids=name)
@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**31),
    noise=st.sampled_from([0.0, 1e-3, 0.1, 1.0, 10.0]),
    scale=st.sampled_from([0.1, 1.0, 3.0]),
    weighted=st.booleans(),
)
def test_theorems_1_and_3_at_random_points(config, seed, noise, scale, weighted):
    """The proven bound and the printed one, with random α, β, μ, near to and far from the forward
    pass.
    """
    obj = random_objective(config, seed, weighted)
    point = random_point(config, obj, seed, noise, scale)
    loss, true = both_losses(obj, point)
    found = certificate(obj, point.network.sigma, loss, true)
    assert found.holds, found
    assert true <= found.printed * loss * (1 + ROUNDING) + 1e-20


@pytest.mark.parametrize("config", [SAPM[1], SAPM[2], SAPM[5], SAPM[6]], ids=name)
def test_theorems_where_only_the_first_layer_has_a_defect(config):
    """The layers above magnify it. SAPM's weights bound the true loss; PM's weights do not."""
    (_, widths, _), _ = config
    obj = random_objective(config, 0)
    sigma = activation(config[0][2])
    true, sapm, pm, _ = losses_with_a_first_layer_defect(obj, widths, sigma)
    constant = bound(obj, sigma)[0]
    assert constant is not None
    assert np.all(true <= constant * sapm)
    assert np.any(true > constant * pm)


@pytest.mark.parametrize("config", [SAPM[1], SAPM[3]], ids=name)
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_theorem_1_is_sharp(config, scale):
    """Its constant is reached if every W_l is a multiple of 1 1ᵀ and the defect of layer l is a
    multiple of 1 of length 1 / (β_l √ω_l), times a number so small that σ is linear.
    """
    (_, widths, kind), _ = config
    obj = random_objective(config, 0)
    sigma = activation(kind)
    beta = np.asarray(obj.beta[0])
    L = obj.depth
    network = Network.of(
        [(np.full((o, i), scale / (o * i) ** 0.5), np.zeros(o)) for i, o in pairwise(widths)],
        sigma,
    )
    term = value_term(np.zeros((1, widths[0])), np.zeros((1, widths[-1])))
    u = term.x
    free = []
    for l, layer in enumerate(network.stack.layers(), 1):
        length = 1e-10 / (beta[l - 1] * scale ** (L - l))
        u = layer(u) if l == 1 else layer.apply(sigma, u)
        u = u.like(u.value + length / widths[l] ** 0.5, u.tangents)
        free.append(u)
    free[-1] = Jet(jnp.zeros((1, 0)), free[-1].tangents)
    obj = replace(obj, terms=(replace(term, y=u.value),))
    loss, true = both_losses(obj, Point(network, (Stack.of(free, network.stack.run),)))
    constant = bound(obj, sigma)[0]
    assert constant == pytest.approx(float(true / loss), rel=1e-9)


@pytest.mark.parametrize("config", SAPM, ids=name)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**31))
def test_theorems_2_and_4(config, seed):
    """With the auxiliary variables of the forward pass (d_L too) both losses are equal, for any
    network.
    """
    obj = random_objective(config, seed)
    network = random_point(config, obj, seed).network
    loss, true = both_losses(obj, forward_point(obj, network))
    assert relative(loss, true) < 1e-11


@pytest.mark.parametrize("config", [SAPM[1], SAPM[2], SAPM[5], SAPM[6]], ids=name)
def test_padding_changes_no_loss_and_no_gradient(config):
    """Samples of weight zero, with any auxiliary variables, and inputs that are zero: the same
    loss.
    """
    obj = random_objective(config, 3)
    point = random_point(config, obj, 3)
    rng = np.random.default_rng(3)
    columns = config[0][1][0] + 2

    def longer(u, n):
        return jax.tree.map(
            lambda a: (
                jnp.concatenate([a, rng.normal(size=(7, *a.shape[1:]))]) if len(a) == n else a
            ),
            u,
        )

    terms = tuple(term.pad(len(term.y) + 7).widen_input(columns) for term in obj.terms)
    network = point.network.widen_input(columns)
    aux = tuple(
        type(a).of([longer(u, len(term.y)) for u in a.layers()], network.stack.run)
        for term, a in zip(obj.terms, point.aux, strict=True)
    )
    padded = Point(network, aux)

    @jax.jit
    def measured(obj, point):
        loss, gradient = jax.value_and_grad(lambda point: penalty(obj, point))(point)
        return loss, gradient, mean_square(point.network, obj.terms)

    loss, gradient, true = measured(obj, point)
    loss_padded, gradient_padded, true_padded = measured(replace(obj, terms=terms), padded)
    assert relative(loss_padded, loss) < 1e-13 and relative(true_padded, true) < 1e-13
    for (W, b), (V, c) in zip(
        gradient.network.weights, gradient_padded.network.weights, strict=True
    ):
        assert relative(V[:, : W.shape[1]], W) < 1e-12 and relative(c, b) < 1e-12
    for term, u, v in zip(obj.terms, gradient.aux, gradient_padded.aux, strict=True):
        n = len(term.y)
        for x, y in zip(jax.tree.leaves(u.layers()), jax.tree.leaves(v.layers()), strict=True):
            if len(x) == n and x.size:
                assert np.allclose(y[:n], x, rtol=1e-12, atol=1e-14) and np.all(y[n:] == 0)


def test_theorem_3_needs_its_zeroth_powers():
    """For a steep activation of small values the proven constant lies above the printed one, and it
    holds.
    """
    steep = Activation(
        "steep sine",
        lambda x: tuple(s * f for s, f in zip((0.01, 0.5), sin.pair(50 * x), strict=True)),
        lambda x, s, ds: -2500 * s,
        0.5,
        0.5,
        25.0,
    )
    config = (("pde", (1, *[1] * 5, 1), "sin"), "sapm")
    obj = random_objective(config, 0, weighted=False)
    found = None
    for seed in range(20):
        point = random_point(config, obj, seed, noise=0.02, scale=2.0)
        point = type(point)(type(point.network)(point.network.stack, steep), point.aux)
        found = certificate(obj, steep, *both_losses(obj, point))
        assert found.holds, found
    assert found is not None and found.bound > 1.5 * found.printed


@pytest.mark.parametrize("config", [SAPM[1], SAPM[6]], ids=name)
def test_bound_along_runs(config):
    obj = random_objective(config, 0, weighted=False)
    sigma = activation(config[0][2])
    result = train(
        alternating(obj, config[0][1], sigma, start="noise"), 60, seeds=4, record_every=3
    )
    for i in range(4):
        for loss, true in zip(
            result.history["loss"][i], result.history["mean_squared_loss"][i], strict=True
        ):
            assert certificate(obj, sigma, loss, true).holds
        assert result.certificate(i).holds


def test_certificates_and_refusals():
    value = random_objective(SAPM[0], 0, weighted=False)
    pde = random_objective(SAPM[6], 0, weighted=False)
    L = value.depth
    assert (
        certificate(value, relu, 1.0, 1.5).bound
        == pytest.approx(L)
        == certificate(value, relu, 1.0, 1.5).printed
    )
    assert not certificate(value, relu, 1.0, L + 1e-6).holds
    assert "BROKEN beyond rounding: true loss > 2 ×" in certificate(value, relu, 1.0, 100.0).reason
    assert (
        certificate(value, relu, 0.0, 0.0).holds and certificate(value, relu, 0.0, 0.0).ratio == 1
    )
    c2 = float(np.max(np.sum(np.asarray(pde.terms[0].linear.c) ** 2, -1)))
    assert certificate(pde, sin, 1.0, 1.0).bound == pytest.approx(1 + c2 * 5 * 6 / 2)
    assert certificate(pde, relu, 1.0, 1.0).holds is None
    assert "constant of σ'; none is known for relu" in certificate(pde, relu, 1.0, 1.0).reason
    own = activation(jax.numpy.arctan)
    assert (
        certificate(value, own, 1.0, 1.0).holds is None
        and "of σ; none is known for arctan" in certificate(value, own, 1.0, 1.0).reason
    )
    pm = objective(value.terms, L, "pm")
    assert (
        certificate(pm, tanh, 1.0, 1.0).holds is None
        and "PM" in certificate(pm, tanh, 1.0, 1.0).reason
    )
    ls = objective(value.terms, L, "ls")
    assert certificate(ls, tanh, 2.0, 2.0).holds
    for obj in (value, ls):
        assert certificate(obj, relu, float("nan"), float("nan")).holds is None


def test_constants_against_the_reference():
    term = value_term(np.zeros((3, 1)), np.zeros((3, 1)))
    for sigma in ("relu", "tanh", "sigmoid"):
        for beta in (None, [None, 0.5, 2.0, 0.1]):
            obj = objective([term], 4, beta=1.0 if beta is None else np.array(beta[1:]))
            found = certificate(obj, activation(sigma), 1.0, 1.0)
            assert found.bound == pytest.approx(
                ref.theorem_1_sharp(ref.CONSTANTS[sigma][0], 4, beta)
            )
            assert found.printed == pytest.approx(
                ref.theorem_1_printed(ref.CONSTANTS[sigma][0], 4, beta)
            )
