"""Gauss-Newton against dense least squares over all variables, against jax.jacobian, and on its own
merit.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import losses_with_a_first_layer_defect, relative
from general import weights
from jacobians import weighted_residuals
from jax.flatten_util import ravel_pytree

import sapm
from sapm.methods import linearise
from sapm.methods.gauss_newton import choose_algebra, gauss_newton
from sapm.methods.linearise import dense, flatten, gram, squares, times, transposed, unflatten
from sapm.numerics.activations import activation
from sapm.numerics.jets import Jet, channel
from sapm.numerics.network import initialise
from sapm.objective.penalty import (
    Point,
    defects,
    mean_square,
    objective,
    penalty,
    start_point,
    true_loss,
)
from sapm.objective.terms import (
    directional,
    flux_term,
    nonlinear_term,
    pde_term,
    second_order_term,
    value_term,
)
from sapm.objective.weights import bound
from sapm.training.loop import train

KEY = jax.random.key(7)


def same(a, b, rel=1e-12):
    return float(a) == pytest.approx(float(b), rel=rel)


def regression(outputs=1, n=9, weight=1.0):
    x = jax.random.uniform(KEY, (n, 2), minval=-1)
    y = jnp.stack([jnp.sin(3 * x[:, 0]) + i * x[:, 1] for i in range(outputs)], 1)
    return [value_term(x, y, weight)]


def transport(n=8):
    x = jax.random.uniform(KEY, (n, 2), minval=-1)
    c = jnp.stack([jnp.ones(n), -(x[:, 0] + x[:, 1] + 1.5)], 1)
    edge = jax.random.uniform(jax.random.fold_in(KEY, 1), (5, 2))
    return [pde_term(x, c, jnp.cos(x[:, 0])), value_term(edge, jnp.sin(edge[:, 0]), 0.7)]


CASES = {
    "one output": (regression, "tanh"),
    "two outputs": (lambda: regression(2), "sin"),
    "sample weights": (lambda: regression(1, 9, jnp.arange(9.0)), "tanh"),
    "transport": (transport, "sin"),
    "along the flow": (lambda: [directional(term) for term in transport()], "tanh"),
    "boundary first": (lambda: transport()[::-1], "sin"),
}


def second_order(n=6):
    """A full second-order operator, beside conditions on the value and on a derivative of it."""
    x = transport(n)[0].x.value
    edge = transport()[1].x.value
    A = jnp.stack([jnp.array([[1.0, q], [q, -q]]) for q in x[:, 0]])
    interior = second_order_term(x, A, x, x[:, 1], jnp.cos(x[:, 0]))
    return [
        interior,
        value_term(edge, edge[:, 0], 0.7),
        flux_term(edge, edge, edge[:, 1], 0.5, c0=edge[:, 0]),
    ]


def nonlinear(n=6):
    """u_t + u u_x - u_xx² at some points, Neumann conditions at others."""
    x = transport(n)[0].x.value
    edge = transport()[1].x.value

    def f(x, u, d):
        return d[0] + u * d[1] - d[2] ** 2 - x[0]

    return [nonlinear_term(x, jnp.eye(2), ((0, 1),), f), flux_term(edge, edge, edge[:, 1])]


def third_order(n=6):
    """u_t + 6 u u_x + u_xxx (Korteweg–de Vries), beside values."""
    orders = (1, 3)
    xxx = channel(orders, 1, 3)

    def f(x, u, d):
        return d[0] + 6 * u * d[1] + d[xxx] - x[0]

    interior, edge = transport(n)
    return [nonlinear_term(interior.x.value, jnp.eye(2), (), f, orders=orders), edge]


def fourth_order(n=6):
    """u_tt + u_xxxx (a clamped beam), linear, as it is made of a stated problem."""
    conditions = [
        sapm.Initial(lambda p: p.x**2),
        sapm.InitialVelocity(0),
        sapm.Dirichlet(lambda p: p.x**2),
        sapm.Neumann(lambda p: 2 * p.x**2),
    ]
    box = sapm.Box(t=(0, 1), x=(0, 1))
    beam = sapm.PDE(box, lambda p, u: u.tt + u.xxxx - p.t, conditions)
    return beam.samples(n, 8, 0, 1.0).terms


def two_fields(n=6):
    """u_t + v u_x = v, v_t - v_xx = u², the network's inputs being features."""
    system = sapm.PDE(
        sapm.Box(t=(0, 1), x=(0, 1)),
        lambda p, u, v: (u.t + v.value * u.x - v.value, v.t - v.xx - u.value**2),
        [
            sapm.Initial(lambda p: (p.x, p.x**2)),
            sapm.Dirichlet(0.0, faces=["x-"], of="u"),
            sapm.Dirichlet(0.0, of="v"),
        ],
        features=sapm.Fourier(1),
    )
    return system.samples(n, 8, 0, 1.0).terms


def hard_and_periodic(n=6):
    """u_t + u u_x = u_xx / 10 for u = g + φ N, of the sine and the cosine of x."""

    def wave(p):
        return jnp.sin(2 * jnp.pi * p.x)

    burgers = sapm.PDE(
        sapm.Box(t=(0, 1), x=(0, 1)),
        lambda p, u: u.t + u.value * u.x - 0.1 * u.xx,
        [sapm.Initial(wave, hard=True), sapm.Periodic("x")],
    )
    return burgers.samples(n, 8, 0, 1.0).terms


GENERAL = {"second order": (second_order, "sin"), "nonlinear": (nonlinear, "tanh")}
# No theorem of PM and SAPM: these are trained on the true loss alone.
HIGHER = {"third order": (third_order, "tanh"), "fourth order": (fourth_order, "sin")}
STATED = {"two fields": (two_fields, "tanh"), "hard, periodic": (hard_and_periodic, "tanh")}
ALL = CASES | GENERAL | HIGHER | STATED
HIDDEN = (4, 4, 4)


def make(name, model="sapm", depth=4, **more):
    terms = ALL[name][0]()
    sigma = ALL[name][1]
    obj = objective(terms, depth, model, 1.3, 0.8)
    widths = (terms[0].x.value.shape[1], *HIDDEN[: depth - 1], terms[0].y.shape[1])
    return gauss_newton(obj, widths, sigma, **more)


def random_point(method, start="uniform"):
    @jax.jit
    def point():
        network = initialise(KEY, method.widths, method.sigma, "xavier")
        return start_point(jax.random.fold_in(KEY, 2), method.objective, network, start)

    return point()


@pytest.mark.parametrize("name", ALL)
def test_the_jacobian_and_what_stands_for_it(name, monkeypatch):
    """On the forward pass, J̃ is the derivative of the weighted residuals; K, J̃ δθ and J̃ᵀ v are
    made from its factors; and a step minimises |ρ + J δθ|² + ν |δθ|². Equations of orders 1 to 4,
    systems, features and hard conditions.
    """
    method = make(name, "ls")
    point = random_point(method, "forward")
    residuals = weighted_residuals(method.objective.terms, point.network)
    nu = 0.03

    @jax.jit  # all of it as one program: compiling many small ones takes longer
    def everything(point):
        at = method.linearise(point, False)
        flat = flatten(point.network.stack)
        J = dense(at.rows)
        step = flatten(method.solver(at, nu)(at.rho))
        v = tuple(jax.random.normal(KEY, rho.shape) for rho in at.rho)
        direction = jax.random.normal(KEY, flat.shape)
        change = unflatten(direction, point.network.stack)
        found = {
            "J": J,
            "residuals": jnp.concatenate(at.rho),
            "K": gram(at.rows),
            "J times": jnp.concatenate(times(at.rows, change)),
            "J transposed times": flatten(transposed(at.rows, v)),
            "squares": flatten(squares(at.rows)),
        }
        wanted = {
            "J": jax.jacobian(residuals)(flat),
            "residuals": residuals(flat),
            "K": J @ J.T,
            "J times": J @ direction,
            "J transposed times": jnp.concatenate(v) @ J,
            "squares": jnp.sum(J**2, 0),
        }
        for size in (3 * 8 * J.shape[1], 10**9):  # three rows of J̃ at a time, and all
            monkeypatch.setattr(linearise, "JACOBIAN_CHUNK_BYTES", size)
            found[f"normal, {size} bytes"] = linearise.normal(at.rows)
            wanted[f"normal, {size} bytes"] = J.T @ J
        return found, wanted, mean_square(point.network, method.objective.terms), step

    found, wanted, loss, step = everything(point)
    for what, value in found.items():
        size = 1e-14 * float(jnp.max(jnp.abs(wanted[what])))
        rtol, atol = (1e-12, 1e-14) if what == "residuals" else (1e-10, 1e-12)
        np.testing.assert_allclose(
            value, wanted[what], rtol=rtol, atol=max(atol, size), err_msg=what
        )
    assert same(jnp.sum(found["residuals"] ** 2), loss)
    damped = np.vstack([wanted["J"], np.sqrt(nu) * np.eye(len(step))])
    right = np.concatenate([wanted["residuals"], np.zeros(len(step))])
    assert relative(step, np.linalg.lstsq(damped, -right, rcond=None)[0]) < 1e-8


def weighted_defects(method, weights_at):
    """All residuals of the penalty loss as one vector, its adaptive weights held at those of a
    point.
    """
    obj = method.objective
    all_weights = [
        np.array([weights(obj, weights_at, i, n) for n in range(len(t.y))])
        for i, t in enumerate(obj.terms)
    ]

    def vector(point):
        parts = []
        for i, term in enumerate(obj.terms):
            scale = jnp.sqrt(jnp.broadcast_to(term.weight, (len(term.y),)))
            for l, r in enumerate(defects(term, point.network, point.aux[i]).layers()):
                value, first, second = np.sqrt(all_weights[i][:, l].T)
                channels = np.where(
                    np.arange(term.channels) < r.first, first[:, None], second[:, None]
                )
                parts.append((scale * value)[:, None] * r.value)
                parts.append((scale[:, None] * channels)[:, :, None] * r.tangents)
            if term.is_pde:
                parts.append(scale[:, None] * term.residual(point.aux[i][obj.depth]))
        return jnp.concatenate([p.ravel() for p in parts])

    return vector


LIFTED = [
    *((name, "sapm") for name in (*CASES, "second order")),
    ("two outputs", "pm"),
    ("transport", "pm"),
]
LIFTED += [("nonlinear", "sapm"), ("second order", "pm")]


@pytest.mark.parametrize(("name", "model"), LIFTED)
def test_lifted_step_is_the_minimiser_over_all_variables(name, model):
    """The linearised penalty loss, ω held, damping on the weights alone: a dense solve over weights
    and auxiliary variables.
    """
    method = make(name, model)
    nu = 0.03
    point = random_point(method)

    vector = weighted_defects(method, point)
    flat, rebuild = ravel_pytree(point)
    count = ravel_pytree(point.network)[0].size

    @jax.jit
    def everything(flat):
        def residuals(flat):
            return vector(rebuild(flat))

        at = method.linearise(rebuild(flat), True)
        moved = method.moved(at, method.solver(at, nu)(at.rho))
        loss = penalty(method.objective, rebuild(flat))
        return ravel_pytree(moved)[0] - flat, residuals(flat), jax.jacobian(residuals)(flat), loss

    taken, residuals, J, loss = (np.asarray(x) for x in everything(flat))
    assert same(np.sum(residuals**2), loss)
    damping = np.sqrt(nu) * np.eye(count, len(flat))
    wanted = np.linalg.lstsq(
        np.vstack([J, damping]), -np.concatenate([residuals, np.zeros(count)]), rcond=1e-14
    )[0]
    reached, best = (
        np.sum((residuals + J @ d) ** 2) + nu * np.sum(d[:count] ** 2) for d in (taken, wanted)
    )
    assert same(reached, best, 1e-9)
    np.testing.assert_allclose(taken[:count], wanted[:count], rtol=1e-6, atol=1e-8)


def test_every_algebra_takes_the_same_step(monkeypatch):
    monkeypatch.setattr("sapm.methods.gauss_newton.CG_TOLERANCE", 1e-14)
    methods = [
        make("along the flow", depth=3, algebra=algebra)
        for algebra in ("primal", "dual", "dense", "free")
    ]

    @jax.jit
    def changes(point):
        linearised = [method.linearise(point, True) for method in methods]
        return [
            flatten(method.solver(at, 0.01)(at.rho))
            for method, at in zip(methods, linearised, strict=True)
        ]

    primal, dual, solved, free = (np.asarray(x) for x in changes(random_point(methods[0])))
    for other in (dual, solved, free):
        np.testing.assert_allclose(other, primal, rtol=1e-8)


def test_no_matrix_is_made_where_none_fits():
    assert choose_algebra(100, 0, (1, 10, 10, 1)) == "dual"
    assert choose_algebra(10**5, 0, (10, 10, 10, 1)) == "primal"
    assert choose_algebra(10**5, 0, (10, 300, 300, 1)) == "free"


def test_a_lifted_phase_that_made_it_worse_is_undone():
    method = make("one output", lifted=2)
    method = replace(method, objective=replace(method.objective, l2=None))
    good = train(make("one output", "ls"), 10, [0]).network(0)
    point = start_point(KEY, method.objective, good, "uniform")
    random = replace(
        method.begin(good),
        count=jnp.zeros((), jnp.int64),
        point=point,
        loss=penalty(method.objective, point),
    )
    before = float(true_loss(method.objective, good))
    run = train(method, 6, [0], initial=jax.tree.map(lambda x: jnp.asarray(x)[None], random))
    lifted = train(method, 2, [0], initial=jax.tree.map(lambda x: jnp.asarray(x)[None], random))
    assert (
        float(true_loss(method.objective, lifted.state(0).point.network))
        > before
        >= lifted.final("mean_squared_loss")[0]
    )
    assert run.history["phase"][0].tolist() == [0, 0, 0, 2, 2, 2, 2]
    assert run.final("mean_squared_loss")[0] <= before


def test_it_says_when_it_has_converged():
    """Two samples, many weights: the loss reaches the rounding of zero and no step lowers it any
    more.
    """
    run = train(
        gauss_newton(objective(regression(n=2), 3, "ls"), (2, 6, 6, 1), "tanh"), 200, [0, 1]
    )
    assert run.status == ("converged", "converged") and run.final("iteration").max() < 100
    assert all("no step lowers the loss" in why or "flat" in why for why in run.reason)
    assert run.final("mean_squared_loss").max() < 1e-28


@pytest.mark.parametrize(
    ("name", "model"),
    [("one output", "pm"), ("one output", "sapm"), ("transport", "ls"), ("transport", "sapm")],
)
def test_descent(name, model):
    """The loss never rises (beyond the rounding of zero), falls far, and is the objective's own at
    the state that is kept.
    """
    method = make(name, model)
    run = train(method, 40, 2)
    loss = run.history["loss"]
    assert np.all(np.diff(loss) <= 1e-28) and np.all(loss[:, -1] < 1e-3 * loss[:, 0])
    state = run.state(0)
    own = (
        true_loss(method.objective, state.point.network)
        if model == "ls"
        else penalty(method.objective, state.point)
    )
    assert same(own, loss[0, -1], 1e-9)
    assert model != "sapm" or np.all(run.history["bound_ratio"] <= 1 + 1e-9)


def test_l2_ends_at_a_stationary_point():
    obj = objective(regression(), 3, "ls", l2=1e-3)
    run = train(gauss_newton(obj, (2, 4, 4, 1), "tanh"), 400, 2)
    network = run.network(0)
    gradient, _ = ravel_pytree(jax.grad(lambda n: true_loss(obj, n))(network))
    assert np.abs(gradient).max() < 1e-6 and np.all(np.diff(run.history["loss"]) <= 0)


def test_directional_terms_have_the_same_residual_and_a_bound_of_their_own():
    """One tangent along c gives the true loss of one per coordinate; its bound holds at random
    points, and where only the first layer has a defect. There it does not with PM's weights.
    """
    full = transport(40)
    along = [directional(term) for term in full]
    assert along[1] is full[1] and along[0].linear.c.shape[1] == 1
    sigma = activation("sin")
    obj = objective(along, 4)
    paper = objective(full, 4)
    constant = bound(obj, sigma)[0]
    assert constant is not None and constant < bound(paper, sigma)[0]

    @jax.jit
    @jax.vmap
    def losses(seed):
        key = jax.random.key(seed)
        network = initialise(key, (2, 4, 4, 4, 1), sigma, "he")
        points = [start_point(key, obj, network, start) for start in ("uniform", "noise")]
        return (
            mean_square(network, along),
            mean_square(network, full),
            *(penalty(obj, point) for point in points),
        )

    true, other, *actual = losses(jnp.arange(200))
    assert np.allclose(true, other, rtol=1e-12)
    assert all(np.all(true <= constant * loss) for loss in actual)
    true, sapm, pm, _ = losses_with_a_first_layer_defect(obj, (2, 4, 4, 4, 1), sigma)
    assert np.all(true <= constant * sapm)
    assert np.any(true > constant * pm)


@pytest.mark.slow
def test_deep_and_shallow_networks():
    """With and without a run of equal layers, and with inputs as wide as the layers."""
    x = jax.random.uniform(KEY, (12, 3))
    for widths in ((3, 3, 3, 3, 1), (3, 2, 5, 1)):
        obj = objective([value_term(x, jnp.sin(4 * x[:, 0]))], len(widths) - 1)
        run = train(gauss_newton(obj, widths, "tanh", lifted=4), 30, 1)
        assert (
            run.history["mean_squared_loss"][0, -1] < 1e-2 * run.history["mean_squared_loss"][0, 0]
        )


@pytest.mark.slow
def test_far_below_descent():
    """sin(x²), (10,10) tanh: a hundred steps end far below 1e-9, where L-BFGS needs thousands to
    get to 1e-6.
    """
    x = jnp.linspace(-1, 1, 100)
    obj = objective([value_term(x, jnp.sin(x**2))], 10, "sapm", beta=10.0)
    run = train(gauss_newton(obj, (1, *[10] * 9, 1), "tanh", lifted=15, init="orthogonal"), 60, 1)
    assert run.history["phase"].tolist() == [[0.0] * 16 + [1.0] * 45]
    assert np.all(run.final("mean_squared_loss") < 1e-10)


def test_a_point_without_tangents_stays_free():
    """Where the tangents are zero the self-adaptive weight is too: the step stays finite, and
    lowers the loss.
    """
    method = make("transport")
    point = random_point(method)
    still = [u.map(lambda u: Jet(u.value, jnp.zeros_like(u.tangents))) for u in point.aux]

    @jax.jit
    def everything(point):
        at = method.linearise(point, True)
        new = method.moved(at, method.solver(at, 0.01)(at.rho))
        return new, penalty(method.objective, new), penalty(method.objective, point)

    new, lower, loss = everything(Point(point.network, tuple(still)))
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(new))
    assert lower <= loss
