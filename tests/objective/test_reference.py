"""The engine equals the slow transcription of the paper to 1e-12: losses, weights, ridges, blocks,
whole sweeps.
"""

import os
from functools import partial

import jax
import numpy as np
import pytest
import reference as ref
from cases import (
    CONFIGS,
    PM,
    SAPM,
    engine_arrays,
    name,
    random_objective,
    random_point,
    reference_arrays,
    relative,
    to_reference,
)

from sapm.methods.alternating import algorithm_1, algorithm_2, alternating, sweep
from sapm.methods.window import point_of, prepare
from sapm.numerics.network import NO_RUN, Stack
from sapm.objective.penalty import (
    Point,
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


# Other programs of this suite are compiled in haste (conftest.py); here the order of rounding is to
# be the usual one.
AS_USERS_HAVE_IT = (
    {"xla_cpu_use_fusion_emitters": True} if "fusion_emitters" in os.environ["XLA_FLAGS"] else None
)
SWEEPS = [(config, {}) for config in SAPM + PM]
SWEEPS += [(config, {"joint": True}) for config in (SAPM[1], SAPM[5])] + [
    (SAPM[4], {"shared": True})
]


@pytest.mark.parametrize(
    ("config", "options"), SWEEPS, ids=["-".join((name(c), *options)) for c, options in SWEEPS]
)
def test_sweeps(config, options):
    """A full sweep of Algorithm 1 or 2 by the program that `train` runs (loops over equal layers
    included).
    """
    (kind, widths, _), _ = config
    obj = random_objective(config, 1, n=40)
    point = random_point(config, obj, 1, noise=0.02)
    rpoint, data = to_reference(config, obj, point)
    method = alternating(obj, widths, point.network.sigma, **options)
    network = (
        point.network.widen_input(method.objective.terms[0].x.value.shape[1])
        if method.loop
        else point.network.unstacked()
    )
    point = Point(network, tuple(Stack.of(a.layers(), network.stack.run) for a in point.aux))

    @partial(jax.jit, compiler_options=AS_USERS_HAVE_IT)
    def engine(method, point):
        work = method.step(prepare(method.objective, point))
        found = point_of(work)
        return Point(method.network(work), found.aux), penalty(method.objective, found)

    found, loss = engine(method, point)
    on_cpu = jax.default_backend() == "cpu"
    rpoint = (ref.algorithm_2 if kind == "pde" else ref.algorithm_1)(rpoint, data, **options)
    for got, wanted in zip(engine_arrays(found), reference_arrays(rpoint), strict=True):
        assert got.shape == wanted.shape
        # The unknowns: rounding times the condition of the solves, which it passes through one
        # after the other.
        assert relative(got, wanted) < TOLERANCE * (10 if obj.depth < 10 else 1e3) * (
            1 if on_cpu else 10
        )
    assert relative(loss, ref.loss(rpoint, data)) < TOLERANCE


def test_orders_are_the_papers():
    """Algorithm 1 updates a_l before W_l, Algorithm 2 after; both go down."""
    assert algorithm_1(3) == (
        ("W", 3),
        ("b", 3),
        ("a", 2),
        ("W", 2),
        ("b", 2),
        ("a", 1),
        ("W", 1),
        ("b", 1),
    )
    assert [*algorithm_2(2)] == [
        ("W", 2),
        ("b", 2),
        ("d", 2),
        ("W", 1),
        ("b", 1),
        ("d", 1),
        ("a", 1),
    ]


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


@pytest.mark.parametrize("upwards", [False, True])
def test_looped_and_separate_layers_agree(upwards):
    """One program for all equal layers gives what layer by layer gives, in either direction."""
    config = SAPM[6]
    obj = random_objective(config, 3)
    point = random_point(config, obj, 3)
    assert point.network.stack.run == (2, 4)
    apart = Point(point.network.unstacked(), tuple(Stack.of(a.layers(), NO_RUN) for a in point.aux))
    order = algorithm_2(obj.depth)
    if upwards:
        order = tuple(
            (block, l)
            for l in range(1, 6)
            for block in ("W", "b", "d", "a")
            if (block, l) != ("a", 5)
        )

    @jax.jit
    def engine(point):
        return point_of(sweep(obj, prepare(obj, point), order))

    for x, y in zip(engine_arrays(engine(point)), engine_arrays(engine(apart)), strict=True):
        assert relative(x, y) < TOLERANCE
