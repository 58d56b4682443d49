"""Several functions, unknown parameters, periodic coordinates, features, observed points, and the
estimate of the error.
"""

import jax
import jax.numpy as jnp
import numpy as np
import onnx.reference
import pytest
import scipy.optimize
from cases import nested
from jacobians import residual_vector
from jax.flatten_util import ravel_pytree
from scipy.stats import qmc

import sapm
from sapm.methods.gauss_newton import gauss_newton
from sapm.methods.linearise import flatten, rows_of
from sapm.numerics.jets import Jet
from sapm.objective.penalty import Point, objective
from sapm.problem.advice import far_guess
from sapm.problem.domain import halton
from sapm.problem.functions import evaluate
from sapm.problem.inputs import embedding_for
from sapm.problem.samples import data_size
from sapm.results.estimates import Correction, Evidence, OtherSeed
from sapm.results.export import export
from sapm.results.result import best_of
from sapm.results.solution import relative_error
from sapm.results.table import digits_that_differ

TINY = {"depth": 3, "width": 10, "seeds": 1, "progress": False, "test_points": 200}


def decay(p):
    return jnp.exp(-0.3 * jnp.pi**2 * p.t) * jnp.sin(jnp.pi * p.x)


def rod(**more):
    """u_t = k u_xx with an unknown k, from measured values."""
    x = np.random.default_rng(0).uniform(size=(40, 2))
    u = np.exp(-0.3 * np.pi**2 * x[:, 0]) * np.sin(np.pi * x[:, 1])
    conditions = [sapm.Initial(decay), sapm.Dirichlet(lambda p: 0.0), sapm.Observed(x, u)]
    settings = {"parameters": {"k": 0.7}} | more
    return sapm.PDE(
        sapm.Box(t=(0, 1), x=(0, 1)), lambda p, u: u.t - p.k * u.xx, conditions, decay, **settings
    )


def circle(conditions=None, **more):
    """u' = v, v' = -u from (1, 0)."""
    conditions = [sapm.Initial(lambda p: (1.0, 0.0))] if conditions is None else conditions

    def exact(p):
        return (jnp.cos(p.t), -jnp.sin(p.t))

    return sapm.PDE(
        sapm.Box(t=(0, 3)),
        lambda p, u, v: (u.t - v.value, v.t + u.value),
        conditions,
        exact,
        **more,
    )


# ---------------------------------------------------------------- constants among the outputs


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("algebra", ["primal", "dual", "dense"])
def test_the_step_with_parameters_is_the_dense_one(algebra):
    """δθ of Gauss-Newton against the Jacobian of the residual by forward mode; the rows of W that
    stay 0 have no column.
    """
    problem = rod()
    samples = problem.samples(20, 12, 0, 1.0)
    obj = objective(samples.terms, 3, "ls")
    obj = obj.__class__(obj.terms, obj.beta, obj.alpha, "ls", None, jnp.asarray([1.0]))
    method = gauss_newton(obj, (2, 4, 4, 2), "tanh", algebra=algebra)
    network = method.init(jax.random.key(3)).point.network
    assert (
        network.constants == 1
        and not np.any(np.asarray(network.stack[3].W[-1]))
        and network.stack[3].b[-1] == 1
    )
    at = method.linearise(Point(network, ()), False)
    nu = 1e-3
    change = flatten(method.solver(at, nu)(at.rho))
    flat, rebuild = ravel_pytree(network)

    def residual(w):
        return residual_vector(obj.terms, rebuild(w))

    J = np.asarray(jax.jit(jax.jacfwd(residual))(flat))
    rho = np.asarray(residual(flat))
    wanted = -np.linalg.solve(J.T @ J + nu * np.eye(len(flat)), J.T @ rho)
    wanted = flatten(rebuild(jnp.asarray(wanted)).stack)
    assert (
        np.allclose(change, wanted, rtol=1e-7, atol=1e-9 * np.abs(wanted).max())
        and np.abs(wanted).max() > 1e-3
    )
    rows, _ = rows_of(method.objective.terms, at.parts, 1)
    assert all(stack.top.constants == 1 for stack in rows)


@pytest.mark.slow
def test_a_parameter_is_found_and_kept(tmp_path):
    problem = rod()
    result = sapm.solve(problem, **TINY, points=150, boundary_points=60, max_iter=25)
    u = result.best
    assert abs(u.parameters["k"] - 0.3) < 1e-4 and result.table[0]["solution_error"] < 1e-3
    assert u(t=0.5, x=[0.2, 0.4]).shape == (2,) and len(u.weights[-1][1]) == 1
    result.save(tmp_path / "a.sapm")
    back = sapm.load(tmp_path / "a.sapm", problem=problem)
    assert back.best.parameters == u.parameters and back.table == result.table
    assert (
        "Parameters: k = 0." in str(result.summary()) and result.table[0]["k"] == u.parameters["k"]
    )
    x = result.samples.test["x"]
    eye = lambda d: u.d(*d)(result.samples.test["x"])
    by_hand = np.sqrt(np.mean((eye("t") - u.parameters["k"] * eye("xx")) ** 2))
    assert np.isclose(result.table[0]["test_residual"], by_hand, rtol=1e-6) and len(x) == 200
    better = sapm.refine(u, problem, points=150, boundary_points=60, max_iter=5, progress=False)
    assert (
        better.network.parameters == better.result.best.parameters
        and better.result.history["loss"][0, 0] < 1e-3
    )
    assert abs(better.network.parameters["k"] - 0.3) < 1e-4


# ---------------------------------------------------------------- several functions


def test_conditions_of_one_function():
    conditions = [sapm.Initial(lambda p: 0.0, of="v"), sapm.Initial(lambda p: 1.0, of="u")]
    samples = circle(conditions).samples(10, 4, 0, 1.0)
    assert [getattr(term.operator, "of", None) for term in samples.terms] == [
        None,
        (0,),
        (1,),
    ] and samples.outputs == 2
    assert [float(term.y[0, 0]) for term in samples.terms[1:]] == [1.0, 0.0]


# ---------------------------------------------------------------- features in place of coordinates


@pytest.mark.usefixtures("double_precision")
def test_features_and_their_derivatives():
    """Their jets are those that nested forward mode finds, of second order too."""
    embedding = embedding_for((np.array([0.5, 1.0]), np.array([0.5, 2.0])), (1,), sapm.Fourier(3))
    rng = np.random.default_rng(1)
    x = Jet(
        jnp.asarray(rng.normal(size=(4, 2))), jnp.asarray(rng.normal(size=(4, 3, 2))), ((1, -1),)
    )
    jet = embedding.jet(x)
    wanted = nested(embedding, x.value, x)
    assert embedding.width == jet.value.shape[1] == 1 + 2 * 4
    assert np.allclose(jet.value, wanted.value, rtol=1e-12, atol=1e-13) and np.allclose(
        jet.tangents, wanted.tangents, rtol=1e-12, atol=1e-11
    )


@pytest.mark.slow
@pytest.mark.usefixtures("double_precision")
def test_a_periodic_system_and_its_fields(tmp_path):
    """u_t = v_x, v_t = u_x around a circle."""

    def exact(p):
        return (jnp.sin(jnp.pi * (p.x + p.t)), jnp.sin(jnp.pi * (p.x + p.t)))

    conditions = [sapm.Initial(exact), sapm.Periodic("x")]
    problem = sapm.PDE(
        sapm.Box(t=(0, 1), x=(-1, 1)), lambda p, u, v: (u.t - v.x, v.t - u.x), conditions, exact
    )
    result = sapm.solve(problem, **TINY, points=120, boundary_points=30, max_iter=25)
    u = result.best
    error = result.table[0]["solution_error"]
    assert error < 1e-3 and error / 2 < result.error_estimate().error < 2 * error
    assert u(t=[0.0, 0.2], x=0.1).shape == (2, 2) and np.allclose(
        u.v(t=0.2, x=0.1), np.sin(0.3 * np.pi), atol=5e-3
    )
    for derivative in (u, u.d("x"), u.v.d("x", "x")):
        assert np.allclose(
            derivative(t=[0.1, 0.7], x=-1.0), derivative(t=[0.1, 0.7], x=1.0), atol=1e-9
        )
    result.save(tmp_path / "a.sapm")
    back = sapm.load(tmp_path / "a.sapm", problem=problem)
    assert np.array_equal(back.best(t=0.5, x=[0.1, 0.2]), u(t=0.5, x=[0.1, 0.2]))
    x = np.array([[0.1, 0.2], [0.5, -3.0]])
    model = onnx.reference.ReferenceEvaluator(str(u.to_onnx(tmp_path / "u.onnx")))
    assert np.abs(model.run(None, {"points": x})[0] - u(x)).max() < 1e-12
    held = np.load(export(u, tmp_path / "u.npz"))
    z = np.concatenate(
        [x[:, held["kept"]], np.sin(x @ held["features_W"].T + held["features_b"])], axis=1
    )
    z = u.sigma(u.sigma(z @ held["W1"].T + held["b1"]) @ held["W2"].T + held["b2"])
    assert np.allclose(z @ held["W3"].T + held["b3"], u(x), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="residual contains 2 unknown functions"):
        result.reference_error()
    with pytest.raises(AttributeError, match="no 'w'"):
        _ = u.w
    with pytest.raises(
        ValueError,
        match=r"model='sapm' by method='alternating': got 2 unknown functions, expected one",
    ):
        sapm.solve(problem, **TINY, method="alternating")


def test_a_condition_about_two_functions_of_three():
    """A wall says what both speeds are, and nothing of the pressure, which is known up to a
    constant.
    """

    def flow(p, u, v, q):
        return (u.x + v.y, u.xx + u.yy - q.x, v.xx + v.yy - q.y)

    box = sapm.Box(x=(0, 1), y=(0, 1))
    wall = sapm.Dirichlet(lambda p: (p.x, 2.0), of=("u", "v"))
    with pytest.warns(
        UserWarning,
        match=r"only derivatives of q occur.* one point: sapm.Observed\(\[point\], \[value\], of='q'\)",
    ):
        sapm.PDE(box, flow, [wall])
    stated = sapm.PDE(box, flow, [wall, sapm.Observed([[0.5, 0.5]], [3.0], of="q")])
    terms = stated.samples(10, 20, 0).terms
    assert [term.operator.of for term in terms[1:]] == [(0, 1), (2,)] and np.asarray(terms[1].y)[
        :, 1
    ].tolist() == [2.0] * 10
    back = sapm.PDE(
        box,
        flow,
        [
            sapm.Dirichlet(lambda p: (2.0, p.x), of=["v", "u"]),
            sapm.Observed([[0.5, 0.5]], [3.0], of="q"),
        ],
    )
    assert np.array_equal(back.samples(10, 20, 0).terms[1].y[:, ::-1], terms[1].y)
    for wrong in (("u", "w"), (), ("u", "u"), 3):
        with pytest.raises(ValueError, match="give one or several of u, v, q, each once"):
            sapm.PDE(box, flow, [sapm.Dirichlet(0.0, of=wrong)])


# ---------------------------------------------------------------- refusals

BOX = sapm.Box(t=(0, 1), x=(0, 1))


def heat(p, u):
    return u.t - u.xx


start = sapm.Initial(lambda p: 0.0)
REFUSED = {
    "one argument": (
        lambda: sapm.PDE(BOX, lambda p: 0.0, [start]),
        TypeError,
        "the point and the unknown functions",
    ),
    "numbers missing": (
        lambda: circle([sapm.Initial(lambda p: 1.0)]),
        ValueError,
        "gave 1 number for 2 unknown functions",
    ),
    "no such function": (
        lambda: circle([sapm.Initial(lambda p: 1.0, of="w")]),
        ValueError,
        "of='w'; give one or several of u, v, each once",
    ),
    "exact too short": (
        lambda: sapm.PDE(BOX, lambda p, u, v: (u.t, v.t), [start], lambda p: 0.0),
        ValueError,
        "exact: got 1 numbers, expected 2",
    ),
    "parameter name": (lambda: rod(parameters={"x": 1.0}), ValueError, "that is no coordinate"),
    "parameter guess": (
        lambda: rod(parameters={"k": np.nan}),
        ValueError,
        "must be a finite number",
    ),
    "unused parameter": (
        lambda: rod(parameters={"k": 1.0, "c": 1.0}),
        ValueError,
        "does not depend on it; use it as p.c",
    ),
    "hard NumPy": (
        lambda: sapm.PDE(BOX, heat, [sapm.Initial(lambda p: np.sin(p.x), hard=True)]),
        ValueError,
        "hard condition is differentiated",
    ),
    "unknown parameter": (
        lambda: rod(parameters={"c": 1.0}),
        ValueError,
        "p.k is not a coordinate",
    ),
    "no coordinate": (
        lambda: sapm.PDE(BOX, heat, [start, sapm.Periodic("y")]),
        ValueError,
        "Periodic: got 'y', expected a coordinate",
    ),
    "all periodic": (
        lambda: sapm.PDE(BOX, heat, [start, sapm.Periodic("x"), sapm.Dirichlet(lambda p: 0.0)]),
        ValueError,
        "Dirichlet holds nowhere",
    ),
    "outside": (
        lambda: sapm.PDE(BOX, heat, [start, sapm.Observed([[2.0, 0.5]], [1.0])]),
        ValueError,
        "outside the domain",
    ),
    "unequal": (
        lambda: sapm.PDE(BOX, heat, [start, sapm.Observed([[0.5, 0.5]], [1.0, 2.0])]),
        ValueError,
        "got 2 values at 1 points",
    ),
    "hard flux": (
        lambda: sapm.Neumann(lambda p: 0.0, hard=True),
        ValueError,
        "for Initial and Dirichlet conditions, not for",
    ),
    "two functions": (
        lambda: sapm.PDE(
            BOX,
            heat,
            [sapm.Initial(lambda p: 0.0, hard=True), sapm.Dirichlet(lambda p: 0.0, hard=True)],
        ),
        ValueError,
        "must share one function",
    ),
    "kinked": (
        lambda: sapm.PDE(
            BOX, heat, [sapm.Initial(lambda p: (p.x - 0.5) ** 2, hard=True), sapm.Periodic("x")]
        ),
        ValueError,
        r"with another slope at x- than at x\+, expected the same .* leave hard=True out",
    ),
    "too large": (
        lambda: sapm.solve(rod(), 6, 2000, points=10**8, seeds=1, progress=False),
        ValueError,
        r"got \d+ GB for u and its derivatives \(\d numbers a unit for u.xx at each of 100000000 points\)",
    ),
    "features": (
        lambda: sapm.PDE(BOX, heat, [start], features=8),
        TypeError,
        "must be sapm.Fourier",
    ),
    "count": (lambda: sapm.Fourier(0), ValueError, "a whole number of at least 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    make, error, sentence = REFUSED[name]
    with pytest.raises(error, match=sentence):
        make()


# ---------------------------------------------------------------- conditions that hold of
# themselves


def test_problems_are_stated_without_warnings_where_jax_is_single():
    """As for most users: JAX is in single precision outside of sapm. (Warnings are errors here.)"""
    with jax.enable_x64(False):

        def wave(p):
            return jnp.sin(2 * jnp.pi * p.x)

        problem = sapm.PDE(BOX, heat, [sapm.Initial(wave, hard=True), sapm.Periodic("x")], wave)
    assert problem.ansatz is not None


@pytest.mark.usefixtures("double_precision")
def test_a_factor_and_its_derivatives():
    """u = g + φ N by the rule for products is what nested forward mode finds."""
    problem = sapm.PDE(
        sapm.Box(x=(0, 2), y=(0, 1)),
        lambda p, u: u.xx - 2 * u.d("x", "y") + u.value * u.y,
        [sapm.Dirichlet(lambda p: jnp.sin(p.x) * p.y, hard=True)],
    )
    term = problem.samples(7, 4, 0, 1.0).terms[0]
    rng = np.random.default_rng(0)
    W = jnp.asarray(rng.normal(size=(2, 2)))
    b = jnp.asarray(rng.normal(size=2))

    def N(x):
        return jnp.sum(jnp.sin(x @ W.T + b), axis=1, keepdims=True)

    found = term.operator.composed(nested(N, term.x.value, term.x))
    wanted = nested(lambda x: problem.ansatz(x, N(x)), term.x.value, term.x)
    assert np.allclose(found.value, wanted.value, rtol=1e-12, atol=1e-13) and np.allclose(
        found.tangents, wanted.tangents, rtol=1e-12, atol=1e-11
    )


@pytest.mark.slow
def test_hard_conditions_hold_and_the_error_is_estimated(tmp_path):
    """Without `exact`; a nonlinear equation."""

    def g(p):
        return p.x * p.y

    def exact(p):
        return jnp.sin(jnp.pi * p.x) * jnp.sin(jnp.pi * p.y) + g(p)

    def residual(p, u):
        return u.xx + u.yy + u.value**3 + 2 * jnp.pi**2 * (exact(p) - g(p)) - exact(p) ** 3

    problem = sapm.PDE(sapm.Box(x=(0, 1), y=(0, 1)), residual, [sapm.Dirichlet(g, hard=True)])
    result = sapm.solve(problem, **TINY, points=100, max_iter=12)
    x = result.samples.test["x"]
    error = relative_error(result.best(x), evaluate(exact, "exact", ("x", "y"), x)[:, 0])
    estimate = result.error_estimate()
    assert error < 1e-2 and error / 1.5 < estimate.error < 1.5 * error and estimate.explained > 0.9
    assert (
        f"Error estimate {estimate.error:.1e}" in str(result.summary())
        and len(result.samples.terms) == 1
    )
    assert np.allclose(result.best(x=1.0, y=[0.2, 0.5]), [0.2, 0.5], atol=1e-14)
    result.save(tmp_path / "a.sapm")
    with pytest.raises(ValueError, match="give the problem again"):
        sapm.load(tmp_path / "a.sapm")
    assert sapm.load(tmp_path / "a.sapm", problem=problem).table == result.table
    for out in (result.best.to_torch, lambda: best_of(tmp_path / "a.sapm", export=True)):
        with pytest.raises(ValueError, match="only a factor of it"):
            out()


def test_periodicity_alone_is_enough_and_gaps_are_named():
    steady = sapm.PDE(
        sapm.Box(x=(0, 1)),
        lambda p, u: u.value - u.xx - jnp.sin(2 * jnp.pi * p.x),
        [sapm.Periodic("x")],
    )
    assert len(steady.samples(10, 1, 0).terms) == 1 and steady.ill_posed == ""
    with pytest.warns(UserWarning, match="there is no condition on v; add one with of='v'"):
        circle([sapm.Initial(lambda p: 1.0, of="u")])
    with pytest.warns(UserWarning, match="1 equation for 2 unknown functions"):
        sapm.PDE(
            sapm.Box(t=(0, 1)), lambda p, u, v: u.t - v.t, [sapm.Initial(lambda p: (0.0, 0.0))]
        )


def test_far_points_of_the_sequence():
    x = qmc.Halton(3, scramble=False)
    x.fast_forward(5000)
    assert np.array_equal(halton(7, 3, 5000), x.random(7))


def test_numbers_that_nothing_determines_are_warned_of():
    """An equation with its own conditions says nothing of a number in it; measured values, or a
    slope beside a value, do.
    """
    start = sapm.Initial(lambda p: jnp.sin(jnp.pi * p.x))
    still = sapm.Dirichlet(0)

    def stated(*more):
        return sapm.PDE(
            BOX, lambda p, u: u.t - p.k * u.xx, [start, still, *more], parameters={"k": 1.0}
        )

    with pytest.warns(UserWarning, match=r"may not determine k: .* sapm.Observed"):
        stated()
    assert (
        stated(sapm.Neumann(lambda p: 1.0, faces=["x-"])).ill_posed
        == ""
        == stated(sapm.Observed([[0.5, 0.5]], [0.2])).ill_posed
    )

    def wave(*more):
        return sapm.PDE(
            BOX, lambda p, u: u.tt - p.c * u.xx, [start, still, *more], parameters={"c": 1.0}
        )

    with pytest.warns(UserWarning, match="may not determine c"):  # a wave needs its velocity
        wave(sapm.InitialVelocity(0))

    def bar(p, u, v):
        return (u.xx - p.c * v.value, v.xx - u.value)

    with pytest.warns(UserWarning, match="may not determine c"):  # each has one condition
        sapm.PDE(
            sapm.Box(x=(0, 1)),
            bar,
            [sapm.Dirichlet(0, of="u"), sapm.Neumann(1, of="v")],
            parameters={"c": 1.0},
        )
    grown = sapm.PDE(
        sapm.Box(x=(0, 1)),
        lambda p, u: u.x - p.k * u.value,
        [sapm.Dirichlet(lambda p: 1 + p.x)],
        parameters={"k": 1.0},
    )
    assert grown.ill_posed == ""  # an end more than it takes
    with pytest.raises(TypeError, match=r"u stands for a function; write u.value for its value"):
        sapm.PDE(BOX, lambda p, u: u.t - jnp.sin(u), [start, still])


def evidence(error, explained, distance=None, worse=1.0, relative=True, each=(), **more):
    other = None if distance is None else OtherSeed(distance, worse)
    correction = Correction(error, relative, explained, dict(each))
    return Evidence(correction, 1000, other_seed=other, **more).estimate()


def test_what_an_estimate_says():
    def said(*given, **more):
        return str(evidence(*given, **more))

    assert said(1e-6, 0.7, 2e-6).endswith(
        "removes 70 % of the squared residual. The next best seed differs from it by 2.0e-06 (relative)."
    )
    assert all(
        "the true error may be ten times as large." in said(1e-6, share) for share in (0.1, 0.6999)
    )
    low = "; the true error may be several times as large. The next best seed differs"
    assert low in said(1e-6, 0.9, 2.1e-6) and low not in said(
        1e-6, 0.9, 1.9e-6
    )  # no two such errors are so far apart
    assert low not in said(1e-6, 0.9, 2.1e-6, worse=4.0) and low in said(
        1e-6, 0.9, 1e-6, new_points=False
    )
    assert "THIS IS NOT A SOLUTION" in said(0.9, 1.0, 1e-9) and "No error estimate" in said(
        np.nan, 0.0
    )
    assert "THIS MAY NOT BE A SOLUTION" in said(
        1.8e-3, 0.0, 2.7e-3, residual=4.5e-2
    )  # a local minimum
    assert "ten times" in said(9.5e-10, 0.12, 1e-9, residual=3e-10)
    assert "leave u open" in said(3.6e-5, 1.0, 3.1e-2, worse=10.0) and "leave u open" not in said(
        3.6e-5, 1.0, 3.1e-2, worse=5e3
    )
    assert "loss 1e+10 times as large, so it cannot confirm this." in said(
        1e-9, 1.0, 1.0, worse=1e10
    )
    assert "leave u open" not in said(1e-8, 1.0, 1e-6) and "absolute, since u is 0" in said(
        1e-9, 1.0, 1e6, relative=False
    )


@pytest.mark.slow
def test_nothing_is_found_where_u_is_nothing(monkeypatch):
    """An error relative to 0 says nothing; it is absolute there. A parameter may be called like
    what an array has.
    """
    monkeypatch.setattr("sapm.results.estimates.FEATURES", 200)
    problem = sapm.PDE(sapm.Box(x=(0, 1)), lambda p, u: u.xx, [sapm.Dirichlet(0)])
    small = TINY | {"depth": 2, "width": 4, "points": 20, "boundary_points": 2, "test_points": 10}
    estimate = sapm.solve(problem, **small, max_iter=12, options={"resample": 0}).error_estimate()
    assert not estimate.relative and estimate.error < 1e-6

    def shaped(p, u):
        return u.xx - p.shape

    data = [sapm.Dirichlet(0), sapm.Observed([[0.5]], [-0.25])]
    assert sapm.PDE(sapm.Box(x=(0, 1)), shaped, data, parameters={"shape": 1.0}).equation.parameters


@pytest.fixture
def decaying(monkeypatch):
    """Noisy values of exp(-1.3 t), the rate that a fit of the formula finds, its standard error,
    and a network's.
    """
    monkeypatch.setattr("sapm.results.estimates.FEATURES", 200)
    t = np.linspace(0.05, 2, 40)[:, None]
    noise = 0.03 * np.random.default_rng(3).normal(size=40)

    def decay(k):
        return np.exp(-k * t[:, 0])

    fit = scipy.optimize.least_squares(lambda k: decay(k[0]) - decay(1.3) - noise, [1.0])

    def solve(
        values, residual=lambda p, u: u.t + p.k * u.value, guesses=(("k", 1.0),), weight=0.1, t=t
    ):
        conditions = [sapm.Initial(1.0), sapm.Observed(t, values, weight=weight)]
        problem = sapm.PDE(sapm.Box(t=(0, 2)), residual, conditions, parameters=dict(guesses))
        return sapm.solve(
            problem, 2, 8, points=80, boundary_points=20, seeds=1, max_iter=40, progress=False
        )

    return (
        decay(1.3) + noise,
        decay(1.3),
        fit.x[0],
        np.sqrt(np.mean(fit.fun**2) / (fit.jac.T @ fit.jac)[0, 0]),
        solve,
    )


def test_standard_errors_are_those_of_the_sensitivities(monkeypatch):
    """σ²(JᵀJ)⁻¹ for noise of the size σ, J the derivatives of the solution by the two numbers."""
    monkeypatch.setattr("sapm.results.estimates.FEATURES", 200)
    noise = 0.02
    t = np.linspace(0.02, 2, 100)[:, None]

    def solution(k, s):
        """Of u' + k u = s with u(0) = 1."""
        return s / k + (1 - s / k) * np.exp(-k * t[:, 0])

    values = solution(1.3, 0.5) + noise * np.random.default_rng(3).choice([-1.0, 1.0], 100)
    problem = sapm.PDE(
        sapm.Box(t=(0, 2)),
        lambda p, u: u.t + p.k * u.value - p.s,
        [sapm.Initial(1.0, hard=True), sapm.Observed(t, values, weight=0.01)],
        parameters={"k": 1.0, "s": 1.0},
    )
    small = {"points": 40, "boundary_points": 1, "test_points": 20, "seeds": 1}
    result = sapm.solve(problem, 2, 6, **small, max_iter=30, progress=False)
    k, s = result.best.parameters.values()
    h = 1e-6
    by_k = solution(k + h, s) - solution(k - h, s)
    by_s = solution(k, s + h) - solution(k, s - h)
    J = np.stack([by_k, by_s], 1) / (2 * h)
    wanted = noise * np.sqrt(np.diag(np.linalg.inv(J.T @ J)))
    assert list(result.standard_errors.values()) == pytest.approx(wanted.tolist(), rel=3e-2)


@pytest.mark.slow
def test_standard_errors_of_what_was_found(decaying):
    """By the noise of what was observed: those of a fit of the formula itself."""
    values, _, rate, wanted, solve = decaying
    result = solve(values)
    assert abs(result.best.parameters["k"] - rate) < 0.3 * wanted
    assert 0.6 * wanted < result.standard_errors["k"] < 1.6 * wanted
    said = str(result.summary()).replace("\n", " ")
    page = result.error_estimate()
    assert (
        "± is one standard error" in said
        and not page.no_solution
        and "a tenth of its weight" in str(page)
    )


@pytest.mark.slow
def test_standard_errors_where_noise_or_numbers_are_not_as_usual(decaying):
    """None to speak of, one value, a number below 0, two of which only the product is determined,
    nothing observed.
    """
    values, exact, _, wanted, solve = decaying
    assert solve(exact).standard_errors["k"] < 1e-5

    def below(p, u):
        return u.t - p.k * u.value

    lone = solve([0.3], below, {"k": -1.0}, t=[[1.0]])
    assert lone.standard_errors == {} and "±" not in str(
        lone.summary()
    )  # one value says nothing of its noise
    assert 0.6 * wanted < solve(values, below, {"k": -1.0}, 1.0).standard_errors["k"] < 3 * wanted
    product = solve(values, lambda p, u: u.t + p.a * p.b * u.value, {"a": 1.0, "b": 1.0})
    assert set(product.standard_errors.values()) == {np.inf}
    assert "do not determine a and b separately" in " ".join(str(product.summary()).split())
    assert (
        sapm.solve(growing(), 2, 4, points=20, seeds=1, max_iter=3, progress=False).standard_errors
        == {}
    )


@pytest.mark.slow
def test_standard_errors_with_few_points():
    """Sines that the points cannot tell apart would leave the number open."""
    x = np.random.default_rng(1).uniform(0, 1, (60, 2))
    u = np.exp(-0.3 * np.pi**2 * x[:, 0]) * np.sin(np.pi * x[:, 1])
    values = u + 0.02 * np.random.default_rng(2).normal(size=60)
    wanted = 0.02 / np.linalg.norm(np.pi**2 * x[:, 0] * u)
    conditions = [
        sapm.Initial(lambda p: jnp.sin(jnp.pi * p.x)),
        sapm.Dirichlet(0.0),
        sapm.Observed(x, values, weight=0.1),
    ]
    problem = sapm.PDE(
        sapm.Box(t=(0, 1), x=(0, 1)),
        lambda p, u: u.t - p.k * u.xx,
        conditions,
        parameters={"k": 1.0},
    )
    result = sapm.solve(
        problem, 3, 12, points=150, boundary_points=100, seeds=1, max_iter=40, progress=False
    )
    assert (
        abs(result.best.parameters["k"] - 0.3) < 4 * wanted
        and 0.6 * wanted < result.standard_errors["k"] < 1.6 * wanted
    )


def growing():
    return sapm.PDE(sapm.Box(t=(0, 1)), lambda p, u: u.t - u.value**2, [sapm.Initial(0.1)])


def test_estimates_that_say_too_much_or_too_little():
    """A solution exact to rounding, another seed than the best, data inside of a residual, many
    points.
    """
    rounding = evidence(1e-16, 0.07, residual=1e-16)
    assert not rounding.no_solution and "A SOLUTION" not in str(rounding)
    better = evidence(0.12, 0.9, 0.11, worse=1e-6)
    assert "The best seed differs from it by 1.1e-01 (relative)." in str(
        better
    ) and "leave u open" not in str(better)
    assert "trust none of the seeds" in str(evidence(1e-6, 0.9, 0.5, worse=1.0))
    assert "(other than those of training)" in str(evidence(1e-6, 0.9, more_points=False))
    assert "(relative; u 1.0e-06; v 2.0e-03)" in str(
        evidence(1e-6, 0.9, each={"u": 1e-6, "v": 2e-3})
    )
    forced = sapm.PDE(
        sapm.Box(x=(0, 1)), lambda p, u: u.xx + u.value**2 - 1e4, [sapm.Dirichlet(0.0)]
    )
    assert data_size(forced.samples(10, 4, 0)) == pytest.approx(1e8)


@pytest.mark.slow
def test_a_residual_of_zero_is_explained(monkeypatch):
    monkeypatch.setattr("sapm.results.estimates.FEATURES", 200)
    exact = sapm.PDE(
        sapm.Box(x=(0, 1)),
        lambda p, u: u.x + 0 * u.value**2,
        [sapm.Dirichlet(0.0, faces=["x-"], hard=True)],
    )
    flat = [(np.ones((2, 1)), np.zeros(2)), (np.zeros((1, 2)), np.zeros(1))]
    found = sapm.refine(
        flat, exact, activation="tanh", points=20, boundary_points=0, max_iter=1, progress=False
    )
    assert found.result.error_estimate().explained == 1.0


def test_parameters_that_are_determined_in_other_ways(recwarn):
    """An unknown period, more equations than functions, an eigenvalue with its norm: no warning;
    without these, one.
    """

    def circle(p, u, v):
        return (u.t - p.w * v.value, v.t + p.w * u.value)

    box = sapm.Box(t=(0, 1))
    start = sapm.Dirichlet((1.0, 0.0), faces=["t-"])
    sapm.PDE(box, circle, [start, sapm.Periodic("t")], parameters={"w": 6.0})
    sapm.PDE(
        box,
        lambda p, u: (u.t + u.value, u.t + p.k * u.value),
        [sapm.Initial(1.0)],
        parameters={"k": 2.0},
    )

    def norm(p, u, m):
        return (-u.xx - p.e * u.value, m.x - u.value**2)

    ends = [sapm.Dirichlet(0.0, of="u"), sapm.Dirichlet(lambda p: p.x, of="m")]
    sapm.PDE(sapm.Box(x=(0, 1)), norm, ends, parameters={"e": 9.0})
    assert not [w for w in recwarn if "may not determine" in str(w.message)]
    with pytest.warns(UserWarning, match="may not determine w") as said:
        sapm.PDE(box, circle, [start], parameters={"w": 6.0})
    assert said[0].filename == __file__


def test_digits_of_numbers_that_seeds_agree_on():
    assert [
        digits_that_differ(*given)
        for given in ((1.0, 0.5), (1.0, 1e-8), (1.0, 0.0), (0.0, 1.0), (1e6, 1e-9))
    ] == [6, 9, 6, 6, 12]


@pytest.mark.slow_cases("-1e-30", "1e-05")
@pytest.mark.parametrize("guess", [0, 1e-30, -1e-30, 1e-5, 1e30])
def test_a_guess_of_another_size_is_left_behind(guess, recwarn):
    """u' = -2 u from values of u. A unit that came from a tiny guess alone would keep it there."""
    t = np.linspace(0, 1, 9)
    problem = sapm.PDE(
        sapm.Box(t=(0, 1)),
        lambda p, u: u.t + p.k * u.value,
        [sapm.Initial(1), sapm.Observed(t, np.exp(-2 * t))],
        parameters={"k": guess},
    )
    result = sapm.solve(
        problem,
        2,
        6,
        seeds=1,
        points=20,
        boundary_points=10,
        test_points=0,
        max_iter=30,
        progress=False,
    )
    advised = [
        "the first guess k=1e+30, expected one nearer to 2e+00" in str(w.message) for w in recwarn
    ]
    assert any(advised) == (guess == 1e30)
    assert any(advised) or abs(result.best.parameters["k"] - 2) < 1e-4
    assert np.allclose(result.samples.units, problem.units)


def test_the_unit_of_a_usual_guess_is_the_guess():
    assert rod().units.tolist() == [0.7]
    assert rod(parameters={"k": -0.02}).units.tolist() == [-0.02]
    assert rod(parameters={"k": 0.0}).units.tolist() == [1.0]
    small = rod(parameters={"k": 1e-9})
    assert small.units == pytest.approx(small.balancing_sizes, rel=0.5)
    assert small.units > 0.001


@pytest.mark.parametrize("size", [1e-5, 1.0, 1e8])
def test_the_unit_of_a_good_guess_is_the_guess_whatever_the_size_of_u(size):
    """q is as large as u in u'' + q = 0, so a guess of half of it is near."""
    x = np.linspace(0, 1, 9)
    problem = sapm.PDE(
        sapm.Box(x=(0, 1)),
        lambda p, u: u.xx + p.q,
        [sapm.Dirichlet(0.0), sapm.Observed(x, size * 4 * x * (1 - x))],
        parameters={"q": 4 * size},
    )
    assert problem.units.tolist() == [4 * size]
    assert far_guess(problem) is None
