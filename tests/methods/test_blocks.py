"""Each closed form makes its block's gradient vanish; no block raises the loss; what is kept equals
what is recomputed.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CONFIGS, name, random_objective, random_point, relative
from hypothesis import given, settings
from hypothesis import strategies as st

from sapm.methods.alternating import algorithm_1, algorithm_2, update
from sapm.methods.window import point_of, prepare
from sapm.numerics.layers import Dense
from sapm.objective.penalty import Point, penalty, ridge_d, ridge_W, weigh

SMALL = [c for c in CONFIGS if len(c[0][1]) < 6]
ORDERS = [(config, False) for config in SMALL]
ORDERS += [
    (config, True) for config in SMALL if name(config).startswith("sapm") and "tanh" in name(config)
]


@cache
def block(kind: str, l: int):
    return jax.jit(lambda obj, work: update(obj, work, l, kind))


@jax.jit
def measured(obj, work):
    """(the loss that the work keeps, the loss of its point, its gradient): one program for all
    blocks.
    """
    loss, gradient = jax.value_and_grad(lambda point: penalty(obj, point))(point_of(work))
    return weigh(obj, work.norms), loss, gradient


start = jax.jit(prepare)


def updated_by(kind: str, l: int, tree: Point) -> np.ndarray:
    """The entries of a point, or of a gradient, that the block updates."""
    layer = tree.network.stack[l]
    parts = {
        "W": [layer.W],
        "b": [layer.b],
        "Wb": [layer.W, layer.b],
        "d": [aux[l].tangents for aux in tree.aux],
    }[kind]
    return np.concatenate([np.ravel(x) for x in parts])


@pytest.mark.parametrize(
    ("config", "joint"), ORDERS, ids=[name(c) + "-joint" * joint for c, joint in ORDERS]
)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**31), noise=st.sampled_from([0.0, 0.1, 1.0, 10.0]))
def test_closed_forms_are_stationary_and_no_block_raises_the_loss(config, joint, seed, noise):
    """Over model × depth × width × activation × weights × distance from the forward pass."""
    obj = random_objective(config, seed)
    order = (algorithm_2 if obj.terms[0].is_pde else algorithm_1)(obj.depth)
    if joint:
        order = tuple(("Wb" if kind == "W" else kind, l) for kind, l in order if kind != "b")
    work = start(obj, random_point(config, obj, seed, noise=noise))
    _, loss, gradient = measured(obj, work)
    for kind, l in order:
        where = (kind, l, seed)
        before = loss, gradient
        work = block(kind, l)(obj, work)
        kept, loss, gradient = measured(obj, work)
        assert relative(kept, loss) < 1e-11, where
        assert loss <= before[0] * (1 + 1e-12) + 1e-30, where
        if kind != "a":
            old, new = (np.linalg.norm(updated_by(kind, l, g)) for g in (before[1], gradient))
            assert new <= 1e-9 * old + 1e-10 * max(1.0, before[0]), where


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
@given(
    seed=st.integers(0, 2**31),
    config=st.sampled_from([c for c in SMALL if c[1] == "sapm"]),
    l=st.integers(1, 2),
)
def test_convex_in_each_layer(seed, config, l):
    """𝓛_S and 𝒥_S are convex in W_l and in b_l: midpoints lie below the mean of the ends."""
    obj = random_objective(config, seed)
    point = random_point(config, obj, seed)
    other = random_point(config, obj, seed + 1)
    a = point.network.stack[l]
    b = other.network.stack[l]
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


@pytest.mark.parametrize("config", [CONFIGS[3], CONFIGS[11]], ids=name)
def test_collapsed_network_is_harmless(config):
    """W_L = 0 makes every ω_l, every ridge quotient and every shift 0/0: all stays finite and the
    loss does not rise.
    """
    obj = random_objective(config, 0)
    point = random_point(config, obj, 0)
    zero = jax.tree.map(jnp.zeros_like, point.network.stack[obj.depth])
    network = type(point.network)(point.network.stack.set(obj.depth, zero), point.network.sigma)
    work = start(obj, Point(network, point.aux))
    loss = measured(obj, work)[1]
    for kind, l in reversed((algorithm_2 if obj.terms[0].is_pde else algorithm_1)(obj.depth)):
        work = block(kind, l)(obj, work)
        before, loss = loss, measured(obj, work)[1]
        assert loss <= before * (1 + 1e-12)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(work))


@cache
def guarded_block(kind: str, l: int, share: float):
    return jax.jit(lambda obj, work: update(obj, work, l, kind, guard=share))


@pytest.mark.parametrize("config", [CONFIGS[3], CONFIGS[11]], ids=name)
def test_the_guard_keeps_a_share_of_the_norm(config):
    """A guarded update of W_l keeps its share of ‖W_l‖², never raises the loss, and is the whole
    update where that keeps the share.
    """
    shrunk = 0
    for seed in range(3):
        obj = random_objective(config, seed)
        before = start(obj, random_point(config, obj, seed, noise=10.0))
        for l in range(obj.depth, 0, -1):
            for kind in ("W", "Wb"):
                works = [before, *(guarded_block(kind, l, c)(obj, before) for c in (0.9, 0.0))]
                old, kept, whole = (float(work.norms.s[l - 1]) for work in works)
                high, middle, low = (float(measured(obj, work)[1]) for work in works)
                assert low <= middle * (1 + 1e-12) <= high * (1 + 2e-12)
                if whole >= 0.9 * old:
                    assert kept == whole
                else:
                    assert kept == pytest.approx(0.9 * old, rel=1e-9)
                    assert middle < high
                    shrunk += 1
    assert shrunk >= 6
