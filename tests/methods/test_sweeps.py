"""Sweeps equal the slow transcription of the paper to 1e-12, whatever the order of their loops."""

import os
from functools import partial

import jax
import pytest
import reference as ref
from cases import (
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

from sapm.methods.alternating import (
    algorithm_1,
    algorithm_2,
    alternating,
    named_order,
    sweep,
)
from sapm.methods.window import point_of, prepare
from sapm.numerics.network import NO_RUN, Stack
from sapm.objective.penalty import Point, penalty

TOLERANCE = 1e-12


# Other programs of this suite are compiled in haste (conftest.py); here the order of rounding is to
# be the usual one.
AS_USERS_HAVE_IT = (
    {"xla_cpu_use_fusion_emitters": True} if "fusion_emitters" in os.environ["XLA_FLAGS"] else None
)
SWEEPS = [(config, {}) for config in SAPM + PM]
SWEEPS += [(config, {"joint": True}) for config in (SAPM[1], SAPM[5])] + [
    (config, {"shared": True}) for config in (SAPM[1], SAPM[6])
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
    """Algorithm 1 updates a_l before W_l, Algorithm 2 after; both go down. Upwards, the jets of a
    layer come before its weights.
    """
    value = random_objective(SAPM[1], 1)
    equation = random_objective(SAPM[6], 1)
    assert named_order(value, "down") == algorithm_1(value.depth)
    assert named_order(equation, "down") == algorithm_2(equation.depth)
    for obj, jets in ((value, "a"), (equation, "da")):
        up = named_order(obj, "up")
        assert up[: len(jets) + 2] == tuple((block, 1) for block in (*jets, "W", "b"))
        assert sorted(up) == sorted(named_order(obj, "down"))
        assert [l for _, l in up] == sorted(l for _, l in up)
        assert named_order(obj, "up-then-down") == up + named_order(obj, "down")
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


@pytest.mark.parametrize(("direction", "guard"), [("down", 0.0), ("up-then-down", 0.9)])
def test_looped_and_separate_layers_agree(direction, guard):
    """One program for all equal layers gives what layer by layer gives, in either direction."""
    config = SAPM[6]
    obj = random_objective(config, 3)
    point = random_point(config, obj, 3)
    assert point.network.stack.run == (2, 4)
    apart = Point(point.network.unstacked(), tuple(Stack.of(a.layers(), NO_RUN) for a in point.aux))
    order = named_order(obj, direction)

    @jax.jit
    def engine(point):
        return point_of(sweep(obj, prepare(obj, point), order, guard))

    for x, y in zip(engine_arrays(engine(point)), engine_arrays(engine(apart)), strict=True):
        assert relative(x, y) < TOLERANCE
