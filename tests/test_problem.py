"""Domains, points and equations: what is read off a residual is exact, and what is ill posed is said."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import rotation, transport, turned, wave
from scipy import stats

import sapm
from sapm import characteristics
from sapm.characteristics import reference
from sapm.doubts import another_exact, doubts, kinks
from sapm.jet import tanh
from sapm.plan import plan


@pytest.fixture(autouse=True)
def double_precision():
    """As a user has it: single precision outside."""


def test_paper_points():
    """Halton base 2 from index 0 mapped to [-1, 1]: the paper's variance and mean square; test points are the next ones."""
    f = sapm.Function(sapm.Box(x=(-1, 1)), lambda p: jnp.sin(p.x**2))
    samples = f.samples(100, None, 1000)
    y = np.asarray(samples.terms[0].y)
    assert abs(np.var(y) - 7.0535e-2) < 1e-6 and abs(np.mean(y**2) - 0.16713) < 1e-5
    x = np.asarray(samples.terms[0].x.value)
    assert x[0, 0] == -1 and len(x) == 100 and len(samples.test["x"]) == 1000
    assert not set(x[:, 0]) & set(samples.test["x"][:, 0])


def test_ball_points_are_uniform():
    ball = sapm.Ball(10, radius=2.0)
    x = ball.points(4000)
    radius = np.linalg.norm(x, axis=1) / 2
    assert stats.kstest(radius**10, "uniform").pvalue > 0.01  # the radius of a uniform point in the 10-ball
    assert np.abs(x.mean(0)).max() < 0.05 and ball.names[0] == "x1" and ball.names[-1] == "x10"
    surface = ball.face_points("surface", 50)
    assert np.allclose(np.linalg.norm(surface, axis=1), 2) and ball.on_face("surface", surface).all()


@pytest.mark.slow
def test_equation_is_read_off_exactly():
    """c and f to the last bit, whatever way the residual is written."""
    pde = transport()
    x = pde.domain.points(50, 1)
    c, f = pde.equation.form(x)
    t, x1 = x.T
    assert np.array_equal(c, np.c_[np.ones(50), -(t + x1 + 1.5)])
    assert np.allclose(f, np.exp(t) * (np.sin(x1) - (t + x1 + 1.5) * np.cos(x1)), rtol=1e-14, atol=1e-14)

    def branching(p, u):  # plain Python and NumPy, no tracing possible
        speed = 2.0 if p.x > 0 else 1.0
        return u.t + speed * u.d("x") - np.sin(p.x)

    other = transport(residual=branching, exact=None)
    c, f = other.equation.form(x)
    assert np.array_equal(c[:, 1], np.where(x1 > 0, 2.0, 1.0)) and np.allclose(f, np.sin(x1), rtol=1e-15)
    with jax.enable_x64(True):
        assert np.allclose([other.equation.pointwise()(row) for row in x[:5]], np.c_[c, 0 * f, f][:5], atol=1e-15)


@pytest.mark.slow
@given(st.lists(st.floats(-3, 3), min_size=4, max_size=4))
def test_any_linear_residual(numbers):
    a, b, q, r = numbers
    pde = sapm.equation.Equation.read(
        lambda p, u: (a * p.x + b) * u.x - jnp.where(p.t > 0.5, q, r) * 2 * u.t + u.x - b, ("t", "x"), np.array([[0.3, 0.2]])
    )
    c, f = pde.form(np.array([[0.7, 0.5]]))
    assert np.allclose(c, [[-2 * q, a * 0.5 + b + 1]], rtol=1e-13, atol=1e-13) and np.allclose(f, [b], atol=1e-15)


def test_inflow_is_found():
    """1-D transport: all of x = 1. Rotation: half of every side. A residual with the other sign is the same equation."""
    pde = transport()
    x = pde.boundary(pde.conditions[1], 40)
    assert np.all(x[:, 1] == 1) and len(np.unique(x[:, 0])) == 40
    for sign in (1.0, -1.0):
        turning = rotation(sign=sign)
        x = turning.boundary(turning.conditions[1], 400)
        faces = [next(f for f in turning.domain.faces[2:] if turning.domain.on_face(f, row[None])[0]) for row in x]
        assert {face: abs(faces.count(face) - 100) <= 2 for face in set(faces)} == dict.fromkeys(["x-", "x+", "y-", "y+"], True)
        for face, (_, px, py) in zip(faces, x, strict=True):
            normal = {"x-": (-1, 0), "x+": (1, 0), "y-": (0, -1), "y+": (0, 1)}[face]
            assert normal[0] * -py + normal[1] * px < 0


def test_conditions_share_one_term():
    """Points split evenly; each condition's own weight inside the one boundary term of weight mu."""
    pde = transport(conditions=[sapm.Initial(wave, weight=3.0), sapm.Inflow(wave, points=5), sapm.Dirichlet(wave, faces="x-")])
    term = pde.samples(10, 30, 0, mu=2.0).terms[1]
    assert term.y.shape == (25, 1)  # 10, 5 as told, 10
    assert np.allclose(np.asarray(term.weight) * 25, 2.0 * np.r_[np.full(10, 3.0), np.ones(15)])
    given = np.array([[0.25, 1.0], [0.5, 1.0]])
    pde = transport(conditions=[sapm.Initial(wave), sapm.Inflow(wave, points=given)])
    assert np.array_equal(np.asarray(pde.samples(10, 8, 0).terms[1].x.value)[-2:], given)


@pytest.mark.slow_cases("rotation")
@pytest.mark.parametrize("make", [transport, rotation])
def test_reference_equals_exact(make):
    """One ODE along each characteristic gives the solution without `exact`."""
    pde = make()
    samples = pde.samples(20, 10, 40)
    assert np.max(np.abs(reference(pde, samples.test["x"]) - samples.test["y"][:, 0])) < 1e-8


def test_ill_posed_is_said():
    """Where no characteristic brings data, and why."""
    with pytest.warns(UserWarning, match=r"comes from the face 'x-' at \(t=.*, x=-1\), where no condition is given"):
        pde = sapm.PDE(sapm.Box(t=(0, 1), x=(-1, 1)), lambda p, u: u.t + u.x, [sapm.Initial(lambda p: p.x)])
    assert np.isnan(reference(pde, np.array([[0.9, -0.8]]))).all()
    steady = sapm.PDE(sapm.Ball(2), lambda p, u: u.x1 + 0.5 * u.x2, [sapm.Inflow(lambda p: p.x1)])
    assert steady.ill_posed == "" and len(steady.samples(20, 10, 5).terms[1].y) == 10


@pytest.mark.slow
def test_ill_posed_rotation_is_said():
    with pytest.warns(UserWarning, match="never reaches the boundary"):
        sapm.PDE(sapm.Ball(2), lambda p, u: -p.x2 * u.x1 + p.x1 * u.x2, [sapm.Dirichlet(lambda p: p.x1)])


def test_functions_may_branch_and_have_several_outputs():
    f = sapm.Function(sapm.Box(x=(-1, 1)), lambda p: [1.0, p.x] if p.x > 0 else [0.0, np.sin(p.x)])
    y = np.asarray(f.samples(8, None, 0).terms[0].y)
    assert y.shape == (8, 2) and set(y[:, 0]) == {0.0, 1.0}
    assert rotation().equation.traced and turned.__name__ == "turned"


@pytest.mark.slow
def test_terms_of_a_small_region_are_seen():
    """A term that is absent at the probed points is seen where it appears, or refused; so are products of three."""

    def disc(p):  # between the probed points
        return jnp.where((p.t - 0.531) ** 2 + (p.x - 0.118) ** 2 < 0.05**2, 5.0, 0.0)

    term = transport(residual=lambda p, u: u.t - u.x + disc(p) * u.value, exact=None).samples(1000, 40, 0).terms[0]
    assert set(np.asarray(term.c0)) == {0.0, 5.0}
    with pytest.raises(ValueError, match=r"linear at the points probed but not at \(t=0.5.*, x=0.1.*\)"):
        transport(residual=lambda p, u: u.t - u.x + disc(p) * u.value**2, exact=None).samples(1000, 40, 0)
    still = [sapm.Initial(wave), sapm.Dirichlet(wave)]
    for residual in (
        lambda p, u: u.t + u.x + u.t * u.x * u.value,
        lambda p, u: u.t + jnp.sqrt(u.x**2),
        lambda p, u: u.t + u.x + 1e-14 * u.value**2,
    ):
        assert transport(residual=residual, conditions=still).equation.nonlinear
    with pytest.raises(ValueError, match="uses NumPy or `if` on u"):
        transport(residual=lambda p, u: np.dot(np.array([1.0, 2.0]), np.array([u.t, u.x])))


def test_boundaries_of_one_dimension_and_corners():
    ball = sapm.PDE(sapm.Ball(1), lambda p, u: u.x1 - 1, [sapm.Dirichlet(lambda p: p.x1)])
    assert sorted(np.asarray(ball.samples(5, 40, 0).terms[1].x.value)[:, 0]) == [-1, 1]
    inflow = sapm.PDE(sapm.Ball(1), lambda p, u: u.x1, [sapm.Inflow(lambda p: p.x1)])
    assert np.asarray(inflow.samples(5, 40, 0).terms[1].x.value).tolist() == [[-1.0]]
    ode = sapm.PDE(sapm.Box(x=(0, 1)), lambda p, u: u.x - jnp.cos(p.x), [sapm.Inflow(lambda p: 0.0)], lambda p: jnp.sin(p.x))
    assert np.allclose(reference(ode, np.array([[0.5]])), np.sin(0.5), atol=1e-10)
    corner = sapm.Dirichlet(wave, faces=["x+"], points=[[0, 1], [0.5, 1], [1, 1]])
    assert len(transport(conditions=[sapm.Initial(wave), corner]).samples(5, 4, 0).terms[1].y) == 5
    with pytest.raises(ValueError, match="a point where characteristics leave"):
        transport(conditions=[sapm.Initial(wave), sapm.Inflow(wave, points=[[0.5, -1]])])


@pytest.mark.slow
def test_characteristics_in_physical_units():
    """A day by a micrometre: the tolerance is by coordinate. A fast rotation is well posed however often it turns."""
    T, L = 86400.0, 1e-6
    pde = sapm.PDE(
        sapm.Box(t=(0, T), x=(L, 2 * L)),
        lambda p, u: u.t + (p.x / T) * u.x,
        [sapm.Initial(lambda p: jnp.sin(p.x / L)), sapm.Inflow(lambda p: jnp.sin(jnp.exp(-p.t / T)))],
    )
    x = pde.domain.points(20, 1)
    assert np.allclose(reference(pde, x), np.sin(x[:, 1] / L * np.exp(-x[:, 0] / T)), atol=1e-8)
    fast = sapm.PDE(
        sapm.Box(t=(0, 10), x=(-1, 1), y=(-1, 1)),
        lambda p, u: u.t - 60 * p.y * u.x + 60 * p.x * u.y,
        [sapm.Initial(lambda p: p.x), sapm.Inflow(lambda p: p.x)],
    )
    assert fast.ill_posed == ""


def test_numbers_are_data():
    """A number, or one for each function, stands for the function that gives it everywhere; hard conditions may share it."""
    box, residual = sapm.Box(x=(0, 1), y=(0, 1)), lambda p, u: u.xx + u.yy + 1
    one, other = (sapm.PDE(box, residual, [sapm.Dirichlet(g)]) for g in (0.5, lambda p: 0.5))
    assert np.array_equal(one.samples(20, 12, 0, 1.0).terms[1].y, other.samples(20, 12, 0, 1.0).terms[1].y)
    assert sapm.Robin(1, 2, 3).g(None) == 3.0 and sapm.Initial((4, 2)).g(None) == (4.0, 2.0)
    sides = [
        sapm.Dirichlet(0, faces=["x-"], hard=True),
        sapm.Dirichlet(0.0, faces=["y-"], hard=True),
        sapm.Neumann(1, faces=["x+"]),
    ]
    with pytest.warns(UserWarning, match=r"no condition is on y\+"):
        assert sapm.PDE(box, residual, sides).ansatz is not None


def test_conditions_that_agree_may_overlap():
    """On a corner, on a face twice alike, for different functions, and where points were given, nothing is refused."""
    box = sapm.Box(t=(0, 1), x=(0, 1))
    start = sapm.Initial(lambda p: p.x)
    sapm.PDE(box, lambda p, u: u.t - u.xx, [start, sapm.Dirichlet(7), sapm.Dirichlet(lambda p: 7 + 1e-9 * p.t, faces=["x+"])])
    both = [sapm.Initial(0, of="u"), sapm.Initial(1, of="v")]
    sapm.PDE(sapm.Box(t=(0, 1)), lambda p, u, v: (u.t - v.value, v.t + u.value), both)
    left, right = (np.array([[0.0, a], [0.0, b]]) for a, b in ((0.1, 0.2), (0.8, 0.9)))
    parts = [sapm.Initial(0, points=left), sapm.Initial(1, points=right)]
    sapm.PDE(box, lambda p, u: u.t - u.xx, [*parts, sapm.Dirichlet(0)])


def test_corners_and_a_time_by_another_name_are_doubted():
    box, heat = sapm.Box(t=(0, 1), x=(0, 1)), lambda p, u: u.t - u.xx
    said = lambda problem: doubts(problem, tanh, plan(problem)[0], "sapm")  # noqa: E731
    jumps = sapm.PDE(box, heat, [sapm.Initial(1), sapm.Dirichlet(0)])
    assert [text.partition(":")[0] for text in said(jumps)] == ["u jumps where t- and x- meet"]
    assert said(sapm.PDE(box, heat, [sapm.Initial(lambda p: jnp.sin(jnp.pi * p.x)), sapm.Dirichlet(0)])) == []
    assert said(sapm.PDE(box, heat, [sapm.Initial(1), sapm.Neumann(0)])) == []
    rough = sapm.Initial(lambda p: jnp.sin(16 * jnp.pi * p.x))  # 0 at every point of a grid
    assert said(sapm.PDE(box, heat, [rough, sapm.Dirichlet(0)])) == []
    square = sapm.Box(x=(0, 1), y=(0, 1))
    steep = [sapm.Dirichlet(lambda p: p.x * jnp.log(p.x), faces=["y-"]), sapm.Dirichlet(0, faces=["x-", "x+", "y+"])]
    assert said(sapm.PDE(square, lambda p, u: u.xx + u.yy, steep)) == []  # NaN at a corner, where nobody asks
    seen = [sapm.Observed([[0.5, 0.5]], [0.2]), sapm.Observed([[0.6, 0.5]], [0.2])]  # on no face
    assert len(said(sapm.PDE(box, heat, [*seen, sapm.Initial(1), sapm.Dirichlet(0)]))) == 1
    endless = sapm.Dirichlet(lambda p: jnp.log(p.x), faces=["y-"])
    others = [endless, sapm.Dirichlet(0, faces=["x-", "x+"]), sapm.Dirichlet(5, faces=["y+"])]
    assert "y+ meet" in said(sapm.PDE(square, lambda p, u: u.xx + u.yy, others))[0]
    tiny = sapm.Dirichlet(lambda p: jnp.sin(jnp.pi * p.x) * jnp.exp(-p.t))  # 1e-16 at x = 1
    assert said(sapm.PDE(box, heat, [sapm.Initial(0), tiny])) == []
    pair = sapm.PDE(box, lambda p, u, v: (u.t - u.xx, v.t - v.xx), [sapm.Initial((1e6, 1)), sapm.Dirichlet((1e6, 0))])
    assert [text.partition(":")[0] for text in said(pair)] == ["v jumps where t- and x- meet"]
    warm = sapm.PDE(sapm.Box(x=(0, 1), T=(0, 1)), lambda p, u: u.xx + u.d("T", "T"), [sapm.Dirichlet(0)])
    assert said(warm) == []  # T is no time
    flow = lambda *conditions: sapm.PDE(box, lambda p, u: u.t + u.x, [sapm.Initial(0), *conditions])  # noqa: E731
    assert [text.partition(" and u")[0] for text in said(flow(sapm.Dirichlet(0)))] == [
        "Dirichlet is on x+, where characteristics leave the domain"
    ]
    assert said(flow(sapm.Inflow(0))) == said(flow(sapm.Dirichlet(0, faces=["x-"]))) == []
    late = sapm.PDE(sapm.Box(T=(0, 1), x=(0, 1)), lambda p, u: u.T - u.xx, [sapm.Dirichlet(0)])
    assert [text.partition(",")[0] for text in said(late)] == ["time is the coordinate that is called t"]


@pytest.mark.slow
def test_many_turns_are_not_followed_to_their_end(monkeypatch):
    """Stating a problem whose characteristics go round 5000 times takes as many steps as one of 500 turns."""
    steps, follow = [0], characteristics.solve_ivp

    def counted(*given, **named):
        run = follow(*given, **named)
        steps[-1] += run.nfev
        return run

    monkeypatch.setattr(characteristics, "solve_ivp", counted)
    for end in (3000, 30_000):
        domain = sapm.Box(t=(0, end)) * sapm.Ball(2, names=("x", "y"))
        problem = sapm.PDE(domain, lambda p, u: u.t + p.y * u.x - p.x * u.y, [sapm.Initial(lambda p: p.x)])
        assert problem.ill_posed == ""
        steps.append(0)
    assert 0 < steps[1] < 1.5 * steps[0]
    round_and_round = lambda p, u: p.x * u.t - p.t * u.x  # noqa: E731 (time goes on, and comes back)
    with pytest.warns(UserWarning, match="never reaches the boundary"):
        sapm.PDE(sapm.Box(t=(-1, 1), x=(-1, 1)), round_and_round, [sapm.Dirichlet(0.0, faces=["t-", "t+", "x-", "x+"])])
    monkeypatch.setattr(characteristics, "PATIENT", 100)  # one that comes to rest takes forever
    sapm.PDE(sapm.Box(t=(0, 1)), lambda p, u: p.t * u.t + u.value, [sapm.Initial(0.0)])


def test_backwards_in_time_and_more_equations_than_functions_are_doubted():
    box, start = sapm.Box(t=(0, 1), x=(2, 3)), [sapm.Initial(0), sapm.Dirichlet(0)]
    said = lambda problem: [text[:37] for text in doubts(problem, tanh, plan(problem)[0], "sapm")]  # noqa: E731
    stated = lambda residual: said(sapm.PDE(box, residual, start))  # noqa: E731
    nonlinear = lambda p, u: u.t + u.value * u.x + 0.01 * u.xx  # noqa: E731
    for residual in (lambda p, u: u.t + 0.1 * u.xx, lambda p, u: -u.t - jnp.sqrt(p.x - 2) * u.xx, nonlinear):
        assert stated(residual) == ["the equation runs backwards in time: "]
    for residual in (lambda p, u: u.t - 0.1 * u.xx, lambda p, u: u.t - u.value * u.xx, lambda p, u: u.t + u.x - u.xx):
        assert stated(residual) == []
    ends = [sapm.Dirichlet(0, faces=["t+", "x-", "x+"])]
    assert said(sapm.PDE(box, lambda p, u: u.t + u.xx, ends)) == []  # from its end it is as it should be
    both = lambda p, u: (u.t + u.value, u.t - 1)  # noqa: E731
    assert said(sapm.PDE(sapm.Box(t=(0, 1)), both, [sapm.Initial(0)])) == ["there are 2 equations for u: unless o"]


def test_doubts_are_repeated_wherever_a_run_is_shown(tmp_path, monkeypatch):
    """In the summary, on the page, in summary.json, and by a file that is read without its problem."""
    monkeypatch.setattr("sapm.result.Result.error_estimate", lambda self: "No estimate.")
    monkeypatch.setattr("sapm.report.figures", lambda result: {})
    start = [sapm.Initial(lambda p: p.x * (1 - p.x)), sapm.Neumann(0, faces=["x-"])]
    with pytest.warns(UserWarning, match="no condition is on x"):
        problem = sapm.PDE(sapm.Box(t=(0, 0.2), x=(0, 1)), lambda p, u: u.t + u.xx, start)
    small = {"depth": 2, "width": 3, "points": 20, "boundary_points": 10, "test_points": 10, "seeds": 1, "max_iter": 1}
    with pytest.warns(UserWarning, match="backwards in time"):
        result = sapm.solve(problem, **small, progress=False, out=tmp_path / "run")
    loaded = sapm.load(tmp_path / "run" / "model.sapm")
    kept = json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"]
    page = loaded.report(tmp_path / "page.html").read_text()
    assert len(kept) == 2 and kept[0] == problem.ill_posed
    for text in (*(" ".join(str(shown.summary(estimate=False)).split()) for shown in (result, loaded)), page):
        assert text.count("Warning: ") == 2 and "backwards in time" in text and "no condition is on x" in text


def test_what_was_observed_counts_as_samples():
    """In what is said of a step, and in whether one is affordable; so do points of one's own, and ends of an interval."""
    t = np.linspace(0, 1, 3000)[:, None]
    decay = lambda *more: sapm.PDE(sapm.Box(t=(0, 1)), lambda p, u: u.t + u.value, [sapm.Initial(1.0), *more])  # noqa: E731
    seen = decay(sapm.Observed(t, np.exp(-t)))
    for problem, counts, boundary in ((decay(), [1], 20), (seen, [1, 3000], 20)):
        assert problem.counts(boundary) == counts == [len(problem.boundary(c, 10)) for c in problem.soft]
        size = {"points": 200, "boundary_points": boundary}
        assert f"; {200 + sum(counts)} samples," in plan(problem, **size)[0]["choice"]
    assert "matrix of the weights" in plan(seen)[0]["choice"]
    assert "from the Jacobian" in plan(seen, options={"algebra": "dense"})[0]["choice"]
    assert "L-BFGS on the true loss, since no matrix" in plan(seen, width=100, points=10**5)[0]["choice"]
    many = sapm.Observed(t := np.linspace(0, 1, 40000)[:, None], np.exp(-t))
    assert plan(decay(many))[0]["method"] != plan(decay())[0]["method"] == "gauss-newton"
    with pytest.raises(ValueError, match="algebra='fast' is not known"):
        plan(seen, options={"algebra": "fast"})
    sides = [sapm.Initial(0, points=7), sapm.Dirichlet(0, faces=["x-"], points=[[0.5, 0.0]]), sapm.Neumann(0, faces=["x+"])]
    plate = sapm.PDE(sapm.Box(t=(0, 1), x=(0, 1)), lambda p, u: u.t - u.xx, sides)
    assert plate.counts(30) == [7, 1, 10]
    assert sum(term.y.size for term in plate.samples(50, 30, 0).terms[1:]) == 18


def test_exact_that_is_not_exact_is_doubted():
    """By the conditions or by the equation, where the error is large; not where nothing can be said, and once."""

    def stated(exact, residual=lambda p, u: u.xx + jnp.pi**2 * jnp.sin(jnp.pi * p.x)):
        return sapm.PDE(sapm.Box(x=(0, 1)), residual, [sapm.Dirichlet(0)], exact)

    nodes = np.linspace(0, 1, 101)
    right = (lambda p: jnp.sin(jnp.pi * p.x), lambda p: np.sin(np.pi * float(p.x)))
    between = lambda p: jnp.interp(p.x, nodes, np.sin(np.pi * nodes))  # noqa: E731 (without second derivatives)
    for exact in (*right, between):
        assert another_exact(stated(exact)) == ""
    assert "Dirichlet says 0 and exact 1" in another_exact(stated(lambda p: jnp.cos(p.x)))
    wrong = stated(lambda p: jnp.sin(2 * jnp.pi * p.x))
    assert another_exact(wrong).startswith("exact does not solve the equation: at (x=")
    small = {"depth": 2, "width": 3, "points": 20, "test_points": 10, "seeds": 1, "max_iter": 2, "progress": False}
    with pytest.warns(UserWarning, match="exact does not solve the equation") as said:
        result = sapm.solve(wrong, **small)
    assert len(said) == 1 and said[0].filename == __file__ and "exact does not solve" in str(result.summary())
    assert "doubts" not in sapm.solve(stated(right[0]), **small).config


def test_single_precision_and_what_does_not_go_round_are_doubted():
    said = lambda problem: doubts(problem, tanh, plan(problem)[0], "sapm")  # noqa: E731
    root, ends = jnp.sqrt(3.0), [sapm.Dirichlet(1)]
    assert root.dtype == np.float32
    box, strip = sapm.Box(x=(0, 1)), sapm.Box(t=(0, 1), x=(0, 1))
    (rough,) = said(sapm.PDE(box, lambda p, u: u.xx + root * u.value, ends))
    assert rough.startswith("the residual has numbers in single precision")
    assert said(sapm.PDE(box, lambda p, u: u.xx + np.sqrt(3.0) * jnp.sqrt(3.0) * u.value, ends)) == []
    (rough,) = said(sapm.PDE(box, lambda p, u: u.xx + u.value, [sapm.Dirichlet(lambda p: root * p.x)]))
    assert rough.startswith("Dirichlet has numbers in single")
    wave = lambda g: sapm.PDE(strip, lambda p, u: u.t + u.x, [sapm.Initial(g), sapm.Periodic("x")])  # noqa: E731
    assert said(wave(lambda p: jnp.sin(2 * jnp.pi * p.x))) == []
    half_open = dict.fromkeys(range(4), 0.0)
    assert said(wave(lambda p: half_open[int(4 * float(p.x))])) == []  # a function need not be defined at both ends
    assert said(wave(lambda p: p.x * jnp.sin(jnp.pi))) == []  # 0, but for rounding
    inside = [sapm.Initial(1), sapm.Dirichlet(lambda p: jnp.exp(-p.t - p.x), faces=["x-"]), sapm.Periodic("x")]
    assert said(sapm.PDE(strip, lambda p, u: u.t - u.xx, inside)) == []  # it does not hold at x+
    two = sapm.PDE(strip, lambda p, u, v: (u.t + v.x, v.t), [sapm.Initial(lambda p: (0.0, p.x)), sapm.Periodic("x")])
    assert "it says 0 at (t=0, x=0) and 1 at (t=0, x=1)" in said(two)[0]
    (jump,) = said(wave(lambda p: p.x))
    assert jump.startswith("u is periodic in x, and Initial is not: it says 0 at (t=0, x=0) and 1 at (t=0, x=1)")


def test_corners_that_point_inwards_are_doubted():
    """Where boxes make them; not at round holes, and not for equations of first order, which know nothing of them."""
    box, xy = sapm.Box(x=(-1, 1), y=(-1, 1)), {"names": ("x", "y")}
    ell, laplace = box - sapm.Box(x=(0, 1), y=(-1, 0)), lambda p, u: u.xx + u.yy
    stated = lambda domain, residual=laplace: sapm.PDE(domain, residual, [sapm.Dirichlet(0.0)])  # noqa: E731
    said = lambda problem: [s for s in doubts(problem, tanh, plan(problem)[0], "sapm") if "points inwards" in s]  # noqa: E731
    assert said(stated(ell))[0].startswith("the domain has a corner that points inwards, at (x=0, y=0): ")
    for shape in (box - sapm.Box(x=(-0.2, 0.2), y=(-0.2, 0.2)), box | sapm.Box(x=(-0.3, 0.3), y=(0, 2))):
        assert said(stated(shape))
    heat = sapm.PDE(sapm.Box(t=(0, 1)) * ell, lambda p, u: u.t - u.xx - u.yy, [sapm.Initial(0), sapm.Dirichlet(0)])
    assert said(heat) and said(stated(ell * sapm.Box(z=(0, 1)), lambda p, u: u.xx + u.yy + u.zz))
    for shape in (box, box - sapm.Ball(2, 0.3, **xy), box & sapm.Ball(2, 1.2, **xy), box | sapm.Box(x=(1, 2), y=(-1, 1))):
        assert not said(stated(shape))
    assert not said(sapm.PDE(ell, lambda p, u: u.x + 0.5 * u.y, [sapm.Inflow(0.0)]))


def test_a_coefficient_that_jumps_is_doubted():
    """Along the coordinates of its second derivative, also by `if`; steep ones, sources and steps in time are not."""
    box, square, ends = sapm.Box(x=(0, 1)), sapm.Box(t=(0, 1), x=(0, 1)), [sapm.Dirichlet(0)]
    K, start = lambda x: jnp.where(x < 0.5, 1.0, 10.0), [sapm.Initial(0), *ends]
    said = lambda problem: [s for s in doubts(problem, tanh, plan(problem)[0], "sapm") if "jumps" in s]  # noqa: E731
    for residual in (
        lambda p, h: K(p.x) * h.xx,
        lambda p, h: (1.0 if p.x < 0.3 else 1.1) * h.xx,
        lambda p, h: K(p.x) * (1 + h.value**2) * h.xx,
    ):
        (sentence,) = said(sapm.PDE(box, residual, ends))
        assert sentence.startswith("the coefficient of u.xx jumps at (x=0.") and "(q.value - K * h.x, q.x)" in sentence
    steep = lambda p, u: (1 + 9 * jax.nn.sigmoid((p.x - 0.5) / 1e-4)) * u.xx  # noqa: E731
    for residual in (steep, lambda p, u: u.xx - K(p.x), lambda p, u: u.xx + jnp.where(u.value > 0.3, 1.0, 2.0) * u.value**2):
        assert said(sapm.PDE(box, residual, ends)) == []
    assert said(sapm.PDE(square, lambda p, u: u.t - K(p.t) * u.xx, start)) == []


def test_kinks_are_said_where_the_residual_stays_large(tmp_path):
    disc, small = (
        sapm.Ball(2, names=("x", "y")),
        {"points": 60, "test_points": 10, "boundary_points": 30, "seeds": 1, "max_iter": 3},
    )
    distance = sapm.PDE(disc, lambda p, u: u.x**2 + u.y**2 - 1, [sapm.Dirichlet(0)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sapm.solver.LONG", 3)
        with pytest.warns(UserWarning, match=r"a nonlinear equation of first order has kinks .* - eps \* \(u.xx \+ u.yy\)"):
            result = sapm.solve(distance, depth=2, width=4, **small, progress=False)
    result.save(tmp_path / "a.sapm")
    longer = sapm.resume(
        tmp_path / "a.sapm", 4, problem=distance, progress=False
    )  # too short to say anything, and it is taken back
    assert "doubts" in result.config and "doubts" not in longer.config
    assert kinks(distance, 0.01) == kinks(distance, np.nan) == ""
    rows = sapm.PDE(disc, lambda p, u: (u.x - p.y, u.y - 2 * p.x), [sapm.Dirichlet(0)])
    found = [sapm.Dirichlet(0), sapm.Observed([[0.1, 0.1]], [0.2])]
    assert kinks(rows, 0.5) == kinks(sapm.PDE(disc, lambda p, u: u.x + p.c * u.y, found, parameters={"c": 1.0}), 0.5) == ""
    assert kinks(sapm.PDE(disc, lambda p, u: u.x**2 + u.y**2 - 0.1 * (u.xx + u.yy), [sapm.Dirichlet(0)]), 0.5) == ""
    assert kinks(sapm.PDE(sapm.Box(t=(0, 1)), lambda p, u: u.t + u.value**2, [sapm.Initial(1)]), 0.5) == ""


def test_a_root_of_u_is_said_where_networks_begin():
    start = [sapm.Initial(1), sapm.Observed([[0.5]], [0.9])]
    tank = sapm.PDE(sapm.Box(t=(0, 1)), lambda p, u: u.t + p.k * jnp.sqrt(u.value - 9), start, parameters={"k": 1.0})
    small = {"depth": 2, "width": 4, "points": 20, "test_points": 10, "boundary_points": 2, "seeds": 2, "max_iter": 2}
    with pytest.warns(UserWarning, match=r"nothing was trained: .* not finite\. Is it a root") as said:
        result = sapm.solve(tank, **small, progress=False)
    assert said[-1].filename == __file__ and "nothing was trained" in str(result.summary())


def test_the_error_itself_where_characteristics_tell_it(tmp_path, monkeypatch):
    small = {"depth": 3, "width": 6, "points": 60, "boundary_points": 30, "test_points": 60, "seeds": 1, "max_iter": 5}
    result = sapm.solve(transport(exact=None), **small, progress=False)
    x, found = result.samples.test["x"], result.error_estimate()
    error = np.linalg.norm(result.best(x) - np.exp(x[:, 0]) * np.sin(x[:, 1])) / np.linalg.norm(np.exp(x[:, 0]) * np.sin(x[:, 1]))
    assert found.followed and found.points == 60 and np.isclose(found.error, error, rtol=1e-6)
    assert f"Error {error:.1e} (relative): u by the characteristics through 60 other points." in str(result.summary())
    result.save(tmp_path / "a.sapm")
    assert not sapm.load(tmp_path / "a.sapm").error_estimate().followed
    monkeypatch.setattr("sapm.characteristics.PATIENT", 10)  # where they take long, there is an estimate
    assert not sapm.load(tmp_path / "a.sapm", transport(exact=None)).error_estimate().followed


def test_a_function_that_fails_on_the_boundary_ends_no_run():
    """What `exact` is there was never asked before the run was over."""
    quotient = lambda p: np.sin(float(p.x)) / float(p.x)  # noqa: E731
    problem = sapm.PDE(sapm.Box(x=(0, 1)), lambda p, u: u.xx, [sapm.Dirichlet(1.0)], quotient)
    assert another_exact(problem) == ""


def test_less_than_it_takes_is_said_of_systems():
    """A function that others are coupled to is no derivative by another name, and one that is may need more."""
    line, strip = sapm.Box(x=(0, 1)), sapm.Box(t=(0, 1), x=(0, 1))
    both = [sapm.Dirichlet(0, of="u"), sapm.Initial(0, of="u"), sapm.InitialVelocity(0, of="u")]
    start = [sapm.Dirichlet(1, faces=["x-"], of="u"), sapm.Neumann(0, faces=["x-"], of="u")]
    coupled = lambda p, u, v: (u.xx + u.value - v.value, v.xx + v.value - 1)  # noqa: E731
    for domain, residual, conditions, sentence in (
        (strip, lambda p, u, v: (u.tt - u.xx + v.value, v.t - v.xx - u.value), both, "no condition is about v"),
        (line, coupled, start, "no condition is about v"),
        (line, coupled, [*start, sapm.Dirichlet(0, faces=["x-"], of="v")], "no condition is on x+"),
    ):
        with pytest.warns(UserWarning, match=sentence.replace("+", r"\+")):
            sapm.PDE(domain, residual, conditions)
    speed = lambda p, u, v: (v.value - u.t, v.t - u.xx)  # noqa: E731
    assert sapm.PDE(strip, speed, both).ill_posed == ""  # u.t at the start is v
    assert sapm.PDE(line, coupled, [*start, sapm.Dirichlet(0, faces=["x-"], of="v"), sapm.Neumann(0, faces=["x-"], of="v")])


def test_branches_on_the_point_in_an_equation_told_twice_on_a_face():
    mass = lambda p: 1.0 if p.x < 0.5 else 4.0  # noqa: E731
    start = [sapm.Initial(0), sapm.InitialVelocity(1), sapm.Dirichlet(0)]
    wave = sapm.PDE(sapm.Box(t=(0, 1), x=(0, 1)), lambda p, u: u.tt - u.xx + mass(p) * u.value, start)
    assert wave.ill_posed == ""


def test_all_at_one_end_and_functions_that_are_derivatives_are_well_posed():
    """An ordinary equation that starts somewhere, and a clamped beam as a system; with less, it is said."""
    line = sapm.Box(x=(0, 1))
    bend, beam = (lambda p, u: u.xx + u.value), (lambda p, u, m: (m.value - u.xx, m.xx - 24))
    here = [sapm.Dirichlet(1, faces=["x-"]), sapm.Neumann(0, faces=["x-"])]
    clamped = [sapm.Dirichlet(0, of="u"), sapm.Neumann(0, of="u")]
    for residual, conditions in ((bend, here), (beam, clamped)):
        assert sapm.PDE(line, residual, conditions).ill_posed == ""
        with pytest.warns(UserWarning, match=r"no condition is (on x\+|about m)"):
            assert sapm.PDE(line, residual, conditions[:1]).ill_posed
