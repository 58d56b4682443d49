"""Each closed form makes its block's gradient vanish; no block raises the loss; what is kept equals what is recomputed."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CONFIGS, name, random_objective, random_point, relative
from hypothesis import given, settings
from hypothesis import strategies as st

from sapm.blocks import update
from sapm.methods.alternating import algorithm_1, algorithm_2
from sapm.network import Dense
from sapm.objective import Point, penalty, ridge_d, ridge_W, weigh
from sapm.work import actual_loss, point_of, prepare

SMALL = [c for c in CONFIGS if len(c[0][1]) < 6]
JOINT = SMALL[3]


@cache
def block(kind: str, l: int):
    """(the new work, its loss as kept, and as computed from scratch), compiled; a function of objective and work."""

    def run(obj, work):
        work = update(obj, work, l, kind)
        return work, actual_loss(obj, work), penalty(obj, point_of(work))

    return jax.jit(run)


start = jax.jit(lambda obj, point: (prepare(obj, point), penalty(obj, point)))
gradient_of = jax.jit(lambda obj, work: jax.grad(lambda point: penalty(obj, point))(point_of(work)))


def updated_by(kind: str, l: int, tree: Point) -> np.ndarray:
    """The entries of a point, or of a gradient, that the block updates."""
    layer = tree.network.stack[l]
    parts = {"W": [layer.W], "b": [layer.b], "Wb": [layer.W, layer.b], "d": [aux[l].tangents for aux in tree.aux]}[kind]
    return np.concatenate([np.ravel(x) for x in parts])


@pytest.mark.slow_cases(
    "pm-pde-relu-2x3x3x3x1",
    "pm-pde-sin-2x4x1",
    "pm-pde-tanh-2x4x3x1",
    "pm-value-tanh-2x5x3x2",
    "sapm-pde-relu-2x3x3x3x1",
    "sapm-pde-tanh-2x4x3x1",
    "sapm-value-tanh-2x5x3x2",
)
@pytest.mark.parametrize("config", SMALL, ids=name)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**31), noise=st.sampled_from([0.0, 0.1, 1.0, 10.0]), joint=st.booleans())
def test_stationary_and_never_up(config, seed, noise, joint):
    """Over model × depth × width × activation × weights × distance from the forward pass."""
    obj = random_objective(config, seed)
    order = (algorithm_2 if obj.terms[0].is_pde else algorithm_1)(obj.depth)
    if joint and config == JOINT:
        order = tuple(("Wb" if kind == "W" else kind, l) for kind, l in order if kind != "b")
    work, loss = start(obj, random_point(config, obj, seed, noise=noise))
    for kind, l in order:
        where, before = (kind, l, seed), work
        work, kept, scratch = block(kind, l)(obj, work)
        assert relative(kept, scratch) < 1e-11, where
        assert scratch <= loss * (1 + 1e-12) + 1e-30, where
        loss = float(scratch)
        if kind != "a":
            old, new = (updated_by(kind, l, gradient_of(obj, w)) for w in (before, work))
            assert np.linalg.norm(new) <= 1e-9 * np.linalg.norm(old) + 1e-10 * max(1.0, loss), where


@given(seed=st.integers(0, 2**31), config=st.sampled_from([c for c in SMALL if c[1] == "sapm"]))
def test_ridges_are_derivatives(seed, config):
    """λ_l ω_l = ∂loss/∂s_l and κ ω_{l+1} ξ = ∂loss/∂t_l with the defects held fixed."""
    obj = random_objective(config, seed)
    n = prepare_norms(config)(obj, random_point(config, obj, seed))
    gradient = jax.grad(lambda n: weigh(obj, n))(n)
    omegas = np.append(np.cumprod(np.asarray(n.s)[:0:-1])[::-1], 1.0)
    for l in range(1, obj.depth + 1):
        assert relative(ridge_W(obj, n, l) * omegas[l - 1], gradient.s[l - 1]) < 1e-11
    if obj.terms[0].is_pde:
        for l in range(1, obj.depth):
            xi = ridge_d(obj, 0, n.s, n.v[0], l)
            assert relative(obj.terms[0].weight * omegas[l] * xi, gradient.t[0][l - 1]) < 1e-11


@cache
def prepare_norms(config):
    return jax.jit(lambda obj, point: prepare(obj, point).norms)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**31), config=st.sampled_from([c for c in SMALL if c[1] == "sapm"]), l=st.integers(1, 2))
def test_convex_in_each_layer(seed, config, l):
    """𝓛_S and 𝒥_S are convex in W_l and in b_l: midpoints lie below the mean of the ends."""
    obj = random_objective(config, seed)
    point, other = random_point(config, obj, seed), random_point(config, obj, seed + 1)
    a, b = point.network.stack[l], other.network.stack[l]
    loss = loss_with_layer(config, l)
    for x, y in ((a, Dense(b.W, a.b)), (a, Dense(a.W, b.b))):
        middle = jax.tree.map(lambda p, q: (p + q) / 2, x, y)
        ends = (float(loss(obj, point, x)), float(loss(obj, point, y)))
        assert float(loss(obj, point, middle)) <= sum(ends) / 2 * (1 + 1e-12)


@cache
def loss_with_layer(config, l):
    def run(obj, point, layer):
        network = point.network.unstacked()
        network = type(network)(network.stack.set(l, layer), network.sigma)
        aux = tuple(type(a).of(a.layers(), network.stack.run) for a in point.aux)
        return penalty(obj, Point(network, aux))

    return jax.jit(run)


@pytest.mark.parametrize("config", [c for c in SMALL if c[0][2] == "relu"], ids=name)
def test_relu_closed_form(config):
    """Entry by entry the global minimiser: no other value of any last-updated unit is lower, and the loss never rises."""
    obj = random_objective(config, 5)

    @jax.jit
    def run(obj, point):
        work = update(obj, prepare(obj, point), 1, "a-relu")
        return point_of(work), actual_loss(obj, work)

    value = jax.jit(penalty)
    for seed in range(5):
        point = random_point(config, obj, seed)
        after, loss = run(obj, point)
        assert float(loss) <= float(value(obj, point)) * (1 + 1e-12)
        assert relative(loss, value(obj, after)) < 1e-11
        for term, aux in enumerate(after.aux):
            u = aux[1]
            for new in np.linspace(-3, 3, 25):  # the unit updated last, at one sample
                trial = aux.set(1, type(u)(u.value.at[2, -1].set(new), u.tangents))
                trial = Point(after.network, (*after.aux[:term], trial, *after.aux[term + 1 :]))
                assert float(value(obj, trial)) >= float(loss) * (1 - 1e-12)


def test_relu_closed_form_refuses_others():
    config = CONFIGS[2]
    obj = random_objective(config, 0)
    with pytest.raises(ValueError, match="for relu only, not for tanh"):
        update(obj, prepare(obj, random_point(config, obj, 0)), 1, "a-relu")


@pytest.mark.slow_cases("sapm-pde-tanh-2x4x3x1")
@pytest.mark.parametrize("config", [CONFIGS[3], CONFIGS[11]], ids=name)
def test_collapsed_network_is_harmless(config):
    """W_L = 0 makes every ω_l, every ridge quotient and every shift 0/0: all stays finite and the loss does not rise."""
    obj = random_objective(config, 0)
    point = random_point(config, obj, 0)
    zero = jax.tree.map(jnp.zeros_like, point.network.stack[obj.depth])
    network = type(point.network)(point.network.stack.set(obj.depth, zero), point.network.sigma)
    work, loss = start(obj, Point(network, point.aux))
    for kind, l in reversed((algorithm_2 if obj.terms[0].is_pde else algorithm_1)(obj.depth)):
        work, _, scratch = block(kind, l)(obj, work)
        assert scratch <= loss * (1 + 1e-12)
        loss = scratch
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(work))
