"""The engine equals the slow transcription of the paper to 1e-12: losses, weights, ridges, blocks, whole sweeps."""

import jax
import numpy as np
import pytest
import reference as ref
from cases import CONFIGS, engine_arrays, name, random_objective, random_point, reference_arrays, relative, to_reference

from sapm.blocks import point_of, prepare
from sapm.methods.alternating import algorithm_1, algorithm_2, alternating, sweep
from sapm.objective import _constants, mean_square, omega, penalty, ridge_d, ridge_W, value_weight

TOLERANCE = 1e-12


@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_losses_weights_and_ridges(config):
    obj = random_objective(config, 0)
    point = random_point(config, obj, 0)
    rpoint, data = to_reference(config, obj, point)
    pde = obj.terms[0].is_pde
    work = prepare(obj, point)

    true = (ref.J if pde else ref.L)(rpoint, data)
    assert relative(mean_square(point.network, obj.terms), true) < TOLERANCE
    assert relative(penalty(obj, point), ref.loss(rpoint, data)) < TOLERANCE
    layers = range(1, obj.depth + 1)
    assert relative(omega(obj, work.norms.s), [ref.omega(rpoint, data, l) for l in layers]) < TOLERANCE
    for l in layers:
        assert relative(ridge_W(obj, work.norms, l), ref.ridge_W(rpoint, data, l)) < TOLERANCE
    for l in layers[:-1] if pde else ():
        n = work.norms
        xi = [ref.xi(rpoint, data, l, k) for k in range(len(obj.terms[0].y))]
        assert relative(ridge_d(obj, 0, n.s, n.v[0], l), xi) < TOLERANCE
        weights = [ref.value_weight(rpoint, data, l, k, "interior") for k in range(len(obj.terms[0].y))]
        got = obj.terms[0].weight * value_weight(obj, 0, n.t[0], l)
        assert relative(np.broadcast_to(got, len(weights)), weights) < TOLERANCE


@pytest.mark.parametrize("joint", [False, True], ids=["separate", "joint"])
@pytest.mark.parametrize("config", CONFIGS, ids=name)
def test_sweeps(config, joint):
    """A full sweep of Algorithm 1 or 2 by the program that `train` runs (loops over equal layers included)."""
    (kind, widths, _), _ = config
    obj = random_objective(config, 1, n=2 * max(widths) + 10)
    point = random_point(config, obj, 1)
    rpoint, data = to_reference(config, obj, point)
    method = alternating(obj, widths, point.network.sigma, joint=joint)
    network = point.network.widen_input(method.objective.terms[0].x.value.shape[1]) if method.loop else point.network
    point = type(point)(network, tuple(type(a).of(a.layers(), network.stack.run) for a in point.aux))
    work = jax.jit(lambda m, work: m.step(work))(method, prepare(method.objective, point))
    rpoint = (ref.algorithm_2 if kind == "pde" else ref.algorithm_1)(rpoint, data, joint=joint)
    found = point_of(work)
    found = type(found)(found.network.narrow_input(widths[0]), found.aux)
    for got, wanted in zip(engine_arrays(found), reference_arrays(rpoint), strict=True):
        assert got.shape == wanted.shape
        assert relative(got, wanted) < TOLERANCE
    assert relative(penalty(method.objective, point_of(work)), ref.loss(rpoint, data)) < TOLERANCE


def test_orders_are_the_papers():
    """Algorithm 1 updates a_l before W_l, Algorithm 2 after; both go down."""
    assert algorithm_1(3) == (("W", 3), ("b", 3), ("a", 2), ("W", 2), ("b", 2), ("a", 1), ("W", 1), ("b", 1))
    assert [*algorithm_2(2)] == [("W", 2), ("b", 2), ("d", 2), ("W", 1), ("b", 1), ("d", 1), ("a", 1)]


@pytest.mark.parametrize("config", [c for c in CONFIGS if c[1] == "sapm" and c[0][2] != "relu"], ids=name)
def test_printed_constants(config):
    obj = random_objective(config, 2)
    sigma = random_point(config, obj, 2).network.sigma
    C, B, K = ref.CONSTANTS[sigma.name]
    L, beta = obj.depth, [[None, *np.asarray(b)[:-1]] for b in obj.beta]
    proven, factor = _constants(obj, sigma, len(obj.terms) - 1)
    assert proven == pytest.approx(ref.theorem_1_sharp(C, L, beta[-1]))
    if not obj.terms[0].is_pde:
        assert factor * L == pytest.approx(ref.theorem_1_printed(C, L, beta[0]))
    else:
        c = np.asarray(obj.terms[0].c)
        alpha = [None, *np.asarray(obj.alpha[0])]
        printed = ref.theorem_3_printed(C, B, K, np.abs(c).max(), c.shape[1], L, alpha, *beta)
        worst = max(_constants(obj, sigma, i)[1] for i in range(2))
        assert worst * c.shape[1] * L * (L + 1) == pytest.approx(printed)


def test_looped_and_separate_layers_agree():
    """One program for all equal layers gives what layer by layer gives, downwards and upwards."""
    config = CONFIGS[13]
    obj = random_objective(config, 3)
    point = random_point(config, obj, 3)
    assert point.network.stack.run == (2, 4)
    apart = type(point)(point.network.unstacked(), tuple(type(a).of(a.layers(), (1, 0)) for a in point.aux))
    down = algorithm_2(obj.depth)
    up = tuple((block, l) for l in range(1, obj.depth + 1) for block in ("W", "b", "d", "a") if (block, l) != ("a", obj.depth))
    for order in (down, up):
        both = [jax.jit(lambda o, w, order=order: sweep(o, w, order))(obj, prepare(obj, p)) for p in (point, apart)]
        for x, y in zip(*(engine_arrays(point_of(work)) for work in both), strict=True):
            assert relative(x, y) < TOLERANCE
