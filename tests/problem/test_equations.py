"""PDEs of second order and nonlinear ones from statement to solution: conditions, methods, files,
the built-in problems.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import transport, typed, wave

import sapm
from sapm.catalogue import CATALOGUE
from sapm.driver.settings import plan
from sapm.methods.method import automatic
from sapm.numerics.activations import ACTIVATIONS
from sapm.numerics.jets import Jet
from sapm.numerics.network import initialise
from sapm.problem.characteristics import solve_by_characteristics
from sapm.problem.samples import describe, from_arrays, nonlinear_terms, to_arrays
from sapm.problem.stored import ProblemRecord, SamplesRecord
from sapm.results.estimates import LeastSquaresCorrection
from sapm.results.result import best_of

SQUARE = sapm.Box(t=(0, 1), x=(0, 1))
ROD = sapm.Box(x=(0, 1))
TINY = {
    "depth": 2,
    "width": 10,
    "points": 50,
    "boundary_points": 30,
    "test_points": 40,
    "seeds": 1,
    "progress": False,
}


def rod(**changes):
    """-u'' + u = 5 cos 2x with u' = 0 on the left and 2u + 3u' given on the right; u = cos 2x."""
    right = sapm.Robin(
        lambda p: 2 * p.x, 3, lambda p: 2 * jnp.cos(2.0) - 6 * jnp.sin(2.0), faces=["x+"]
    )
    parts = {
        "domain": ROD,
        "residual": lambda p, u: -u.xx + u.value - 5 * jnp.cos(2 * p.x),
        "conditions": [sapm.Neumann(lambda p: 0.0, faces=["x-"]), right],
        "exact": lambda p: jnp.cos(2 * p.x),
    }
    return sapm.PDE(**(parts | changes))


def string():
    """u_tt = u_xx from rest with a velocity: u = sin(t) sin(x)."""

    def exact(p):
        return jnp.sin(p.t) * jnp.sin(p.x)

    conditions = [
        sapm.Initial(lambda p: 0.0),
        sapm.InitialVelocity(lambda p: jnp.sin(p.x)),
        sapm.Dirichlet(exact),
    ]
    return sapm.PDE(SQUARE, lambda p, u: u.tt - u.xx, conditions, exact)


def bent(power=2):
    """u'' + u² = f, nonlinear."""

    def exact(p):
        return jnp.sin(2 * p.x)

    def residual(p, u):
        return u.xx + u.value**power + 4 * exact(p) - exact(p) ** power

    return sapm.PDE(ROD, residual, [sapm.Dirichlet(exact)], exact)


def test_a_nonlinear_equation_stated_anew_is_the_same_program():
    """By what it computes, its slopes and all its numbers included; what calls back into Python is
    never taken for the same.
    """

    def function(numbers, steep=1.0, slope=2.0, called=False):
        @jax.custom_jvp
        def square(v):
            return v**2

        square.defjvp(lambda v, dv: (square(v[0]), slope * v[0] * dv[0]))

        def residual(p, u):
            if called:
                jax.debug.callback(lambda x: None, p.x)
            f = jnp.interp(p.x, jnp.linspace(0, 1, 300), jnp.asarray(numbers))
            return u.xx + steep * square(u.value) * f

        return sapm.PDE(ROD, residual, [sapm.Dirichlet(0.0)]).equation.function

    numbers = np.arange(300.0)
    first = function(numbers)
    assert function(numbers) is first and function(numbers.copy()) is first
    other = numbers + 1e-13 * (numbers == 150)
    found = [
        first,
        function(other),
        function(numbers, steep=1 + 1e-15),
        function(numbers, slope=3.0),
    ]
    found += [function(numbers, called=True), function(numbers, called=True)]
    assert len(set(found)) == len(found)


def test_x_is_not_u_and_a_number_that_changes_is_another_program():
    """Also where both have as many numbers; and what was stated with a number keeps it, whatever
    becomes of its name.
    """
    start = [sapm.Initial(1.0)]

    def stated(last):
        return sapm.PDE(
            sapm.Box(t=(0, 1)), lambda p, u: u.t + u.t**3 - last(p, u), start
        ).equation.function

    assert stated(lambda p, u: p.t) is not stated(lambda p, u: u.value)
    k = 1.0

    def make():
        return sapm.PDE(
            sapm.Box(t=(0, 1)), lambda p, u: u.t + k * u.value**2, start
        ).equation.function

    first = make()
    k = 5.0
    with jax.enable_x64(True):
        at = [jnp.ones(1), jnp.full(1, 2.0), jnp.full((1, 1), 3.0)]
        assert float(first(*at)[0]) == 7.0 and float(make()(*at)[0]) == 23.0 and first is not make()


@pytest.mark.slow_cases("rod", "string")
@pytest.mark.parametrize("make", [rod, string, bent])
def test_solved_as_it_is_typed(make):
    """With all defaults but the size: Gauss-Newton straight on the true loss, and the summary says
    so.
    """
    result = sapm.solve(make(), **TINY, max_iter=40)
    row = result.table[0]
    text = " ".join(str(result.summary()).split())
    assert (
        row["solution_error"] < 1e-5
        and row["loss"] == row["mean_squared_loss"]
        and row["test_residual"] < 1e-3
    )
    assert result.config["model"] == "sapm" and "Gauss-Newton: on the true loss; " in text
    assert (
        result.certificate.holds
        and result.certificate.bound == 1
        and np.all(result.history["bound_ratio"] == 1)
    )
    u = result.best
    x = result.samples.test["x"]
    with jax.enable_x64(True):
        own = typed(result.problem.residual, result.samples.names, u, jnp.asarray(x))
    assert row["test_residual"] == pytest.approx(np.sqrt(np.mean(np.asarray(own) ** 2)), rel=1e-6)


@pytest.mark.parametrize("method", ["lbfgs", "adam", "gd"])
def test_descent_on_the_true_loss(method):
    options = {} if method == "lbfgs" else {"learning_rate": 1e-3}
    result = sapm.solve(bent(), **TINY, model="ls", method=method, max_iter=8, options=options)
    assert np.all(np.diff(result.history["loss"]) < 0) and result.config["init"] == (
        "paper" if method == "gd" else "xavier"
    )


def test_too_large_for_gauss_newton():
    """Then it is L-BFGS, on the true loss for an equation that the paper's sweeps do not know;
    sweeps for one that they do.
    """
    size = {"rows": 10**5, "tangents": 10**5, "widths": [2, 100, 100, 1], "held_out": False}
    assert automatic("sapm", "pde", ACTIVATIONS["sin"], **size, separable=False)[::2] == (
        "lbfgs",
        automatic("ls", "pde", ACTIVATIONS["sin"], **size)[2],
    )
    assert automatic("sapm", "pde", ACTIVATIONS["sin"], **size)[0] == "alternating"
    chosen = [plan(make(), 3, 100, points=10**5) for make in (rod, transport)]
    assert [(c.model, c.method.name) for c in chosen] == [("ls", "lbfgs"), ("sapm", "alternating")]


def test_conditions_are_weighed_alike():
    """Two boundary terms, mu/N for each point of either; normals point outwards, on corners that of
    the first face named.
    """
    conditions = [
        sapm.Initial(wave, points=4),
        sapm.Neumann(wave, weight=3.0, points=[[0.5, 0], [0.5, 1], [0, 1]]),
        sapm.Robin(2, lambda p: p.t, wave, faces=["x+"], points=[[0.25, 1]]),
        sapm.InitialVelocity(wave, points=[[0, 0.5]]),
    ]
    problem = sapm.PDE(SQUARE, lambda p, u: u.tt - u.xx, conditions)
    _, values, flux = problem.samples(10, 20, 0, mu=2.0).terms
    assert np.allclose(values.weight, 2 / 9) and np.allclose(
        flux.weight, np.array([3, 3, 3, 1, 1]) * 2 / 9
    )
    assert np.allclose(flux.x.tangents[:, 0], [[0, -1], [0, 1], [0, 1], [0, 0.25], [1, 0]])
    assert (
        np.allclose(flux.linear.c0, [0, 0, 0, 2, 0])
        and np.allclose(flux.linear.c, 1)
        and flux.channels == 1
    )
    ball = sapm.PDE(
        sapm.Ball(2, 3.0), lambda p, u: u.x1x1 + u.x2x2 + u.value, [sapm.Neumann(lambda p: 1.0)]
    ).samples(5, 6, 0)
    assert np.allclose(np.asarray(ball.terms[1].x.tangents)[:, 0] * 3, ball.terms[1].x.value)
    faces = sapm.Dirichlet(wave).faces_in(SQUARE)
    assert faces == ("x-", "x+")  # what happens at the end of time is not for a condition to say


@pytest.mark.parametrize(
    ("residual", "conditions", "sentence"),
    [
        (
            lambda p, u: u.t - u.xx,
            [sapm.Dirichlet(wave)],
            "no condition gives u at the lower end of t; add sapm.Initial",
        ),
        (
            lambda p, u: u.tt - u.xx,
            [sapm.Initial(wave), sapm.Dirichlet(wave)],
            "contains u.tt, and no condition gives u.t at the lower end of t; add sapm.InitialVelocity",
        ),
        (
            lambda p, u: u.t - u.xx,
            [sapm.Initial(wave), sapm.Dirichlet(wave, faces=["x-"])],
            r"u.xx, and no condition is on x\+",
        ),
        (
            lambda p, u: u.xx + u.tt - 1,
            [sapm.Neumann(wave, faces=SQUARE.faces)],
            r"u \+ constant is a solution too",
        ),
    ],
)
def test_what_is_left_open_is_said(residual, conditions, sentence):
    with pytest.warns(UserWarning, match=sentence):
        sapm.PDE(SQUARE, residual, conditions)


def test_characteristics_with_a_reaction():
    """u_t - (t+x+1.5) u_x + (1 + x) u = f: the datum counts by a factor along the characteristic."""

    plain = transport().residual

    def residual(p, u):
        return plain(p, u) + (1 + p.x) * (u.value - wave(p))

    problem = transport(residual=residual)
    x = problem.domain.points(5, 30)
    assert np.allclose(
        solve_by_characteristics(problem, x), np.exp(x[:, 0]) * np.sin(x[:, 1]), atol=1e-8
    )
    result = sapm.solve(problem, **TINY, max_iter=0)
    assert result.reference_error(5) > 0


def test_nonlinear_files_ask_for_the_problem(tmp_path):
    """Bit for bit as if it had never stopped; another residual, or none, is refused."""
    whole = sapm.solve(bent(), **TINY, max_iter=8)
    sapm.solve(bent(), **TINY, max_iter=3, out=tmp_path / "run")
    for call in (
        lambda: sapm.resume(tmp_path / "run"),
        lambda: sapm.load(tmp_path / "run" / "model.sapm"),
    ):
        with pytest.raises(
            ValueError,
            match="holds a nonlinear PDE or a Condition, whose residual a file cannot hold; give the problem again",
        ):
            call()
    x = np.linspace(0, 1, 5)  # its network can be had without
    assert np.array_equal(
        best_of(tmp_path / "run" / "model.sapm")(x=x),
        sapm.solve(bent(), **TINY, max_iter=3).best(x=x),
    )
    with pytest.raises(
        ValueError, match="is not the stored one: term0/probe differs, the equation; give"
    ):
        sapm.load(tmp_path / "run" / "model.sapm", problem=bent(3))
    resumed = sapm.resume(tmp_path / "run", max_iter=8, problem=bent(), progress=False)
    assert (
        np.array_equal(resumed.history["loss"], whole.history["loss"])
        and resumed.table == whole.table
    )
    with pytest.raises(TypeError, match="cannot be pickled"):
        resumed.__reduce__()


def test_nonlinear_terms_of_first_order_are_stored_whole():
    """Their directions are the coordinates, as those of linear ones; they must not be taken for
    these.
    """
    problem = sapm.PDE(
        ROD, lambda p, u: u.x + u.value**2, [sapm.Dirichlet(lambda p: 1.0, faces="x-")]
    )
    samples = problem.samples(5, 1, 4)
    arrays = to_arrays(samples)
    stored = SamplesRecord.from_arrays(ProblemRecord.from_json(describe(samples)), arrays)
    back = from_arrays(stored, problem.functions)
    assert (
        nonlinear_terms(arrays)
        and back.terms[0].operator.function is problem.equation.function
        and not back.terms[1].nonlinear
    )
    assert (
        all(np.array_equal(a, arrays[name]) for name, a in to_arrays(back).items())
        and back.test_equation.channels == 1
    )


def test_second_order_files_need_no_code(tmp_path):
    whole = sapm.solve(rod(), **TINY, max_iter=8)
    sapm.solve(rod(), **TINY, max_iter=3).save(tmp_path / "a.sapm")
    resumed = sapm.resume(tmp_path / "a.sapm", max_iter=8, progress=False)
    assert (
        np.array_equal(resumed.history["loss"], whole.history["loss"])
        and resumed.table == whole.table
    )
    loaded = sapm.load(tmp_path / "a.sapm", problem=rod())
    assert loaded.table[0]["solution_error"] > 0
    with pytest.raises(ValueError, match=r"and the residual contains u.xx; see error_estimate"):
        loaded.reference_error()
    other = rod(residual=lambda p, u: -1.5 * u.xx + u.value - 5 * jnp.cos(2 * p.x))
    with pytest.raises(ValueError, match=r"is not the stored one: .*/forms/operator differs"):
        sapm.load(tmp_path / "a.sapm", problem=other)


def test_a_function_called_like_a_coordinate():
    box = sapm.Box(t=(0, 1), v=(0, 1))
    problem = sapm.PDE(
        box, lambda p, u, v: (u.t - v.value, v.t + u.value), [sapm.Initial(lambda p: (1.0, p.v))]
    )
    assert problem.fields == ("u", "v")
    with pytest.raises(TypeError, match=r"residual takes \(t, v, u\); it must take the point"):
        sapm.PDE(box, lambda t, v, u: u.t, [sapm.Initial(1.0)])


def test_the_estimate_is_the_error_of_a_linear_equation(monkeypatch):
    monkeypatch.setattr("sapm.results.estimates.FEATURES", 200)
    for steps in (2, 4):
        small = TINY | {"width": 6, "boundary_points": 2}
        result = sapm.solve(rod(), **small, max_iter=steps)
        error = result.table[0]["solution_error"]
        assert abs(result.error_estimate().error / error - 1) < 0.05 and error > 1e-4


@pytest.mark.slow
def test_the_estimate_sees_fine_detail_along_a_line():
    """60 oscillations that the network has none of: points on a line are close enough to tell them
    apart.
    """

    def wave(p):
        return p.x + 0.1 * jnp.sin(400 * p.x)

    def equation(p, u):
        return u.x - 1 - 40 * jnp.cos(400 * p.x)

    problem = sapm.PDE(sapm.Box(x=(0, 1)), equation, [sapm.Inflow(lambda p: 0.0)], wave)
    result = sapm.solve(problem, 2, 8, points=500, max_iter=3, seeds=1, progress=False)
    error = result.table[0]["solution_error"]
    estimate = result.error_estimate(estimator=LeastSquaresCorrection())
    assert error > 0.1 and 0.98 < estimate.error / error < 1.02 and estimate.explained > 0.99


# ---------------------------------------------------------------- the built-in problems


def solved(name, **settings):
    book = CATALOGUE[name]
    depth, width = book.sizes[0]
    return sapm.solve(
        book.problem(), depth, width, **(book.settings | settings), seeds=1, progress=False
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "error"),
    [("poisson_2d", 1e-6), ("heat_1d", 1e-5), ("burgers", 1e-2), ("allen_cahn", 1e-2)],
)
def test_textbook_problems_are_solved(name, error):
    assert solved(name).table[0]["solution_error"] < error


RESIDUALS = {
    "heat": (lambda p, u: u.t - 0.3 * u.xx - p.x, ((-1,),)),
    "wave": (lambda p, u: u.tt - 4 * u.xx, ((1, -1),)),
    "all of it": (
        lambda p, u: (
            (1 + p.x**2) * u.xx + 3 * u.tx - u.tt * p.t + u.t - p.x * u.x + 5 * u.value - p.t
        ),
        ((-1, 1),),
    ),
    "of changing type": (lambda p, u: p.x * u.tt + u.xx, ((1, -1, 1),)),
    "reaction": (lambda p, u: u.t - p.x * u.x + p.t * u.value - 1, ()),
    "Burgers": (lambda p, u: u.t + u.value * u.x - 0.1 * u.xx, ((0, 1),)),
    "Monge-Ampère": (
        lambda p, u: u.tt * u.xx - u.tx**2 - jnp.exp(u.value) * p.x,
        ((1, 0, 0), (0, 1, 0), (-1, -1, 1)),
    ),
    "eikonal": (lambda p, u: jnp.sqrt(u.t**2 + u.x**2 + 0.1) - p.x * u.value, ()),
    "mixed alone": (lambda p, u: u.tx + jnp.sin(u.value), ((-1, -1, 1),)),
}


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("name", RESIDUALS)
def test_terms_are_the_residual(name):
    """On a network, and with as many channels as are needed."""
    residual, forms = RESIDUALS[name]
    faces = [
        sapm.Initial(lambda p: 0.0),
        sapm.InitialVelocity(lambda p: 0.0),
        sapm.Dirichlet(lambda p: 0.0),
    ]
    problem = sapm.PDE(sapm.Box(t=(0, 1), x=(-1, 1)), residual, faces)
    samples = problem.samples(6, 6, 6)
    network = initialise(jax.random.key(0), (2, 5, 4, 1), ACTIVATIONS["tanh"], "xavier")

    def plain(row):
        return network(Jet(row[None], jnp.zeros((1, 0, 2)))).value[0, 0]

    for term in (samples.terms[0], samples.test_equation):
        wanted = jax.jit(lambda x: typed(residual, ("t", "x"), plain, x))(term.x.value)
        assert np.allclose(
            jax.jit(lambda t: t.residual(network(t.x)))(term)[:, 0], wanted, rtol=1e-12, atol=1e-13
        )
    assert samples.terms[0].x.forms == forms
