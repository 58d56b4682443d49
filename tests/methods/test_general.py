"""PM and SAPM for terms with ψ itself, of second order and nonlinear: losses, the bound, and the
blocks of a sweep.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference as ref
from cases import losses_with_a_first_layer_defect, relative
from general import TERMS, random_case, slow_loss
from hypothesis import given, settings
from hypothesis import strategies as st

from sapm.methods.alternating import alternating, general_order, update
from sapm.methods.window import point_of, prepare
from sapm.numerics.activations import ACTIVATIONS, relu
from sapm.objective.penalty import mean_square, penalty, weigh
from sapm.objective.weights import bound, certificate, steepness, term_constants

SMOOTH = [name for name in ACTIVATIONS if name != "relu"]
both = jax.jit(lambda obj, point: (penalty(obj, point), mean_square(point.network, obj.terms)))


@pytest.mark.parametrize("model", ("sapm", "pm"))
@pytest.mark.parametrize("name", TERMS)
def test_loss_against_loops(name, model):
    for seed, noise in ((0, 0.5), (1, 3.0)):
        obj, point = random_case(name, model, seed, noise=noise)
        assert relative(both(obj, point)[0], slow_loss(obj, point)) < 1e-12


@pytest.mark.parametrize("sigma", SMOOTH)
def test_the_constants_of_the_second_derivative(sigma):
    """The Lipschitz constant of σ'' is the largest |σ'''|, and is reached."""
    act = ACTIVATIONS[sigma]

    def curve(x):
        return act.curve(x, *act.pair(x))

    x = jnp.linspace(-8, 8, 40001)
    third = jax.jit(lambda x: jax.jvp(curve, (x,), (jnp.ones_like(x),))[1])(x)
    assert float(jnp.max(jnp.abs(third))) == pytest.approx(act.curve_lipschitz, rel=1e-6)
    assert float(jnp.max(jnp.abs(curve(x)))) == pytest.approx(act.slope_lipschitz, rel=1e-6)


@pytest.mark.parametrize("sigma", SMOOTH)
@pytest.mark.parametrize("name", TERMS)
@settings(max_examples=20)
@given(
    seed=st.integers(0, 2**31),
    noise=st.sampled_from([0.0, 1e-6, 1e-3, 0.1, 1.0, 10.0]),
    scale=st.sampled_from([0.3, 1.0, 3.0]),
)
def test_theorem_5_at_random_points(name, sigma, seed, noise, scale):
    """Near to and far from the forward pass, where both losses are equal."""
    obj, point = random_case(name, "sapm", seed, sigma=sigma, noise=noise, scale=scale)
    loss, true = both(obj, point)
    steep = steepness(obj.terms, point.network, point.aux)
    found = certificate(obj, point.network.sigma, loss, true, steep)
    assert found.holds, found
    assert found.bound > 1 and found.printed is None and found.reason.startswith("Theorem 5 holds")
    if noise == 0:
        assert relative(loss, true) < 1e-12


@pytest.mark.parametrize("name", TERMS)
def test_theorem_5_where_only_the_first_layer_has_a_defect(name):
    """The layers above magnify it. SAPM's weights bound the true loss; PM's weights do not."""
    widths = (2, 3, 4, 3, 1)
    obj, point = random_case(name, "sapm", 0, widths, "tanh")
    sigma = point.network.sigma
    true, sapm, pm, steep = losses_with_a_first_layer_defect(obj, widths, sigma)
    constant = np.array([bound(obj, sigma, each)[0] for each in steep])
    assert np.all(true <= constant * sapm)
    assert np.any(true > constant * pm)


@pytest.mark.parametrize("sigma", SMOOTH)
@pytest.mark.parametrize("name", TERMS)
def test_the_constant_of_theorem_5(name, sigma):
    """Random α and β, four layers: every power and every weight counts."""
    obj, point = random_case(name, "sapm", 3, (2, 3, 4, 3, 1), sigma)
    act = point.network.sigma
    term = obj.terms[0]
    steep = steepness(obj.terms, point.network, point.aux)
    forms = np.array(term.x.forms or [[0.0]])
    values, tangents, second = ref.theorem_5_sharp(
        *ref.CONSTANTS[sigma],
        act.curve_lipschitz,
        np.max(np.sum(forms**2, axis=0)),
        [None, *np.asarray(obj.alpha[0])],
        [None, *np.asarray(obj.beta[0])[:-1]],
    )
    if term.nonlinear:
        wanted = 1 + steep**2 * (values + tangents + second)
    else:
        c = np.asarray(term.linear.c)
        c0 = 0.0 if term.linear.c0 is None else np.asarray(term.linear.c0)
        first = np.sum(c[:, : term.x.first] ** 2, axis=1) * tangents
        wanted = 1 + np.max(c0**2 * values + first + np.sum(c[:, term.x.first :] ** 2, 1) * second)
    assert term_constants(obj, act, 0, steep)[0] == pytest.approx(wanted)


def test_what_has_no_certificate():
    second, nonlinear = (random_case(name, "sapm", 0)[0] for name in ("second", "nonlinear"))
    assert "of σ' and a Lipschitz constant of σ''; none is known for relu" in bound(second, relu)[2]
    assert "depends on the point" in bound(nonlinear, ACTIVATIONS["sin"])[2]


# ---------------------------------------------------------------- blocks


@cache
def block(kind: str, l: int):
    """(the new point, its loss from the norms that are kept), compiled; a function of objective and
    point.
    """

    def run(obj, point):
        work = update(obj, prepare(obj, point), l, kind)
        return point_of(work), weigh(obj, work.norms)

    return jax.jit(run)


loss_and_gradient = jax.jit(lambda obj, point: jax.value_and_grad(lambda p: penalty(obj, p))(point))


def updated_by(kind: str, l: int, tree, obj) -> list:
    layer = tree.network.stack[l]
    jets = [aux[l] for aux in tree.aux]
    if kind in ("W", "b", "Wb"):
        return [layer.W] * (kind != "b") + [layer.b] * (kind != "W")
    if kind == "d" and l == obj.depth:
        return [x for u in jets for x in (u.value, u.tangents)]
    return [
        u.value
        if kind == "a"
        else u.tangents[:, : u.first]
        if kind == "d"
        else u.tangents[:, u.first :]
        for u in jets
    ]


def closed(kind: str, l: int, name: str, model: str, depth: int) -> bool:
    """Whether the loss is a quadratic in that block."""
    if kind == "S":
        return True
    if kind == "d" and l == depth:
        return name != "nonlinear"
    second = name != "reaction"
    if kind == "d":
        return not second
    return kind in ("W", "b") and (not second or model == "pm")


BLOCKS = [
    *((name, "sapm", (2, 3, 3, 1)) for name in TERMS),
    ("reaction", "pm", (2, 3, 3, 1)),
    ("laplace", "pm", (2, 4, 3, 1)),
    *((name, model, (2, 3, 1)) for name in ("second", "nonlinear") for model in ("sapm", "pm")),
]


@pytest.mark.parametrize(("name", "model", "widths"), BLOCKS)
def test_blocks_never_raise_the_loss_and_closed_forms_are_stationary(name, model, widths):
    """What is not quadratic in its block falls, wherever the gradient is far above rounding."""
    fell = 0
    for seed, noise in ((0, 0.1), (1, 1.0), (2, 0.0)):
        obj, point = random_case(name, model, seed, widths, "tanh", noise)
        point = type(point)(
            point.network.unstacked(), tuple(type(a).of(a.layers(), (1, 0)) for a in point.aux)
        )
        loss, gradient = loss_and_gradient(obj, point)
        for kind, l in general_order(obj.depth, name != "reaction"):
            where = (kind, l, seed)
            before, steep = float(loss), gradient
            point, kept = block(kind, l)(obj, point)
            loss, gradient = loss_and_gradient(obj, point)
            assert relative(kept, loss) < 1e-11, where
            assert float(loss) <= before * (1 + 1e-12) + 1e-30, where
            old, now = (
                np.linalg.norm(np.concatenate([np.ravel(x) for x in updated_by(kind, l, g, obj)]))
                for g in (steep, gradient)
            )
            if closed(kind, l, name, model, obj.depth):
                assert now <= 1e-8 * old + 1e-9 * max(1.0, before), where
            elif old > 1e-4 * before**0.5:
                assert float(loss) < before, where
                fell += 1
    assert fell > (0 if name == "reaction" else obj.depth)


def test_orders_that_are_not_known():
    obj, _ = random_case("second", "sapm", 0)
    for order, shared in (((("c", 1),), False), ((("S", 3),), False), ("down", True)):
        with pytest.raises(
            ValueError,
            match=r"expected blocks W, b, Wb, d, S, a, at layers|shared=True is for value terms",
        ):
            alternating(obj, (2, 3, 3, 1), "sin", order, shared=shared)


def test_the_guard_keeps_a_share_of_the_norm():
    """Updates of W_l by automatic differentiation keep their share of ‖W_l‖²; the loss falls."""
    for name in ("second", "nonlinear"):
        obj, point = random_case(name, "sapm", 0, (2, 3, 1), "tanh", 10.0)
        for l in (2, 1):
            before = prepare(obj, point)
            free, guarded = (update(obj, before, l, "W", guard=share) for share in (0.0, 0.9))
            old, whole, kept = (float(work.norms.s[l - 1]) for work in (before, free, guarded))
            assert kept >= 0.9 * old * (1 - 1e-9) or kept == pytest.approx(whole)
            assert float(weigh(obj, guarded.norms)) <= float(weigh(obj, before.norms))
            if l == 2:
                assert whole < 0.9 * old
