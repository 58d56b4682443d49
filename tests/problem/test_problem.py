"""Domains, points and equations: what is read off a residual is exact, and what is ill posed is
said.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import rotation, transport, turned, wave
from scipy import stats

import sapm
from sapm.driver.settings import doubts, plan
from sapm.numerics.activations import tanh
from sapm.problem import characteristics
from sapm.problem.characteristics import solve_by_characteristics


def test_paper_points():
    """Halton base 2 from index 0 mapped to [-1, 1]: the paper's variance and mean square; test
    points are the next ones.
    """
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
    assert (
        stats.kstest(radius**10, "uniform").pvalue > 0.01
    )  # the radius of a uniform point in the 10-ball
    assert np.abs(x.mean(0)).max() < 0.05 and ball.names[0] == "x1" and ball.names[-1] == "x10"
    surface = ball.face_points("surface", 50)
    assert (
        np.allclose(np.linalg.norm(surface, axis=1), 2) and ball.on_face("surface", surface).all()
    )


def test_equation_is_read_off_exactly():
    """c and f to the last bit, whatever way the residual is written."""
    pde = transport()
    x = pde.domain.points(50, 1)
    c, f = pde.equation.first_order_form(x)
    t, x1 = x.T
    assert np.array_equal(c, np.c_[np.ones(50), -(t + x1 + 1.5)])
    assert np.allclose(
        f, np.exp(t) * (np.sin(x1) - (t + x1 + 1.5) * np.cos(x1)), rtol=1e-14, atol=1e-14
    )

    def branching(p, u):  # plain Python and NumPy, no tracing possible
        speed = 2.0 if p.x > 0 else 1.0
        return u.t + speed * u.d("x") - np.sin(p.x)

    other = transport(residual=branching, exact=None)
    c, f = other.equation.first_order_form(x)
    assert np.array_equal(c[:, 1], np.where(x1 > 0, 2.0, 1.0)) and np.allclose(
        f, np.sin(x1), rtol=1e-15
    )
    with jax.enable_x64(True):
        assert np.allclose(
            [other.equation.pointwise()(row) for row in x[:5]],
            np.c_[c, 0 * f, f][:5],
            rtol=1e-14,
            atol=1e-15,
        )


@given(st.lists(st.floats(-3, 3), min_size=4, max_size=4))
def test_any_linear_residual(numbers):
    a, b, q, r = numbers
    pde = sapm.problem.equation.Equation.read(
        lambda p, u: (a * p.x + b) * u.x - jnp.where(p.t > 0.5, q, r) * 2 * u.t + u.x - b,
        ("t", "x"),
        np.array([[0.3, 0.2]]),
    )
    c, f = pde.first_order_form(np.array([[0.7, 0.5]]))
    assert np.allclose(c, [[-2 * q, a * 0.5 + b + 1]], rtol=1e-13, atol=1e-13) and np.allclose(
        f, [b], rtol=1e-14, atol=1e-15
    )


def test_inflow_is_found():
    """1-D transport: all of x = 1. Rotation: half of every side. A residual with the other sign is
    the same equation.
    """
    pde = transport()
    x = pde.boundary(pde.conditions[1], 40)
    assert np.all(x[:, 1] == 1) and len(np.unique(x[:, 0])) == 40
    for sign in (1.0, -1.0):
        turning = rotation(sign=sign)
        x = turning.boundary(turning.conditions[1], 400)
        faces = [
            next(f for f in turning.domain.faces[2:] if turning.domain.on_face(f, row[None])[0])
            for row in x
        ]
        assert {face: abs(faces.count(face) - 100) <= 2 for face in set(faces)} == dict.fromkeys(
            ["x-", "x+", "y-", "y+"], True
        )
        for face, (_, px, py) in zip(faces, x, strict=True):
            normal = {"x-": (-1, 0), "x+": (1, 0), "y-": (0, -1), "y+": (0, 1)}[face]
            assert normal[0] * -py + normal[1] * px < 0


def test_conditions_share_one_term():
    """Points split evenly; each condition's own weight inside the one boundary term of weight mu."""
    pde = transport(
        conditions=[
            sapm.Initial(wave, weight=3.0),
            sapm.Inflow(wave, points=5),
            sapm.Dirichlet(wave, faces="x-"),
        ]
    )
    term = pde.samples(10, 30, 0, mu=2.0).terms[1]
    assert term.y.shape == (25, 1)  # 10, 5 as told, 10
    assert np.allclose(np.asarray(term.weight) * 25, 2.0 * np.r_[np.full(10, 3.0), np.ones(15)])
    given = np.array([[0.25, 1.0], [0.5, 1.0]])
    pde = transport(conditions=[sapm.Initial(wave), sapm.Inflow(wave, points=given)])
    assert np.array_equal(np.asarray(pde.samples(10, 8, 0).terms[1].x.value)[-2:], given)


@pytest.mark.parametrize("make", [transport, rotation])
def test_reference_equals_exact(make):
    """One ODE along each characteristic gives the solution without `exact`."""
    pde = make()
    samples = pde.samples(20, 10, 40)
    assert (
        np.max(np.abs(solve_by_characteristics(pde, samples.test["x"]) - samples.test["y"][:, 0]))
        < 1e-8
    )


def test_ill_posed_is_said():
    """Where no characteristic brings data, and why."""
    with pytest.warns(
        UserWarning,
        match=r"comes from the face 'x-' at \(t=.*, x=-1\), where no condition is given",
    ):
        pde = sapm.PDE(
            sapm.Box(t=(0, 1), x=(-1, 1)), lambda p, u: u.t + u.x, [sapm.Initial(lambda p: p.x)]
        )
    assert np.isnan(solve_by_characteristics(pde, np.array([[0.9, -0.8]]))).all()
    steady = sapm.PDE(sapm.Ball(2), lambda p, u: u.x1 + 0.5 * u.x2, [sapm.Inflow(lambda p: p.x1)])
    assert steady.ill_posed == "" and len(steady.samples(20, 10, 5).terms[1].y) == 10


def test_ill_posed_rotation_is_said():
    with pytest.warns(UserWarning, match="never reaches the boundary"):
        sapm.PDE(
            sapm.Ball(2), lambda p, u: -p.x2 * u.x1 + p.x1 * u.x2, [sapm.Dirichlet(lambda p: p.x1)]
        )


def test_functions_may_branch_and_have_several_outputs():
    f = sapm.Function(sapm.Box(x=(-1, 1)), lambda p: [1.0, p.x] if p.x > 0 else [0.0, np.sin(p.x)])
    y = np.asarray(f.samples(8, None, 0).terms[0].y)
    assert y.shape == (8, 2) and set(y[:, 0]) == {0.0, 1.0}
    assert rotation().equation.traced and turned.__name__ == "turned"


def test_terms_of_a_small_region_are_seen():
    """A term that is absent at the probed points is seen where it appears, or refused; so are
    products of three.
    """

    def disc(p):  # between the probed points
        return jnp.where((p.t - 0.531) ** 2 + (p.x - 0.118) ** 2 < 0.05**2, 5.0, 0.0)

    term = (
        transport(residual=lambda p, u: u.t - u.x + disc(p) * u.value, exact=None)
        .samples(1000, 40, 0)
        .terms[0]
    )
    assert set(np.asarray(term.linear.c0)) == {0.0, 5.0}
    with pytest.raises(
        ValueError, match=r"linear at the points probed but not at \(t=0.5.*, x=0.1.*\)"
    ):
        transport(residual=lambda p, u: u.t - u.x + disc(p) * u.value**2, exact=None).samples(
            1000, 40, 0
        )
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
    ode = sapm.PDE(
        sapm.Box(x=(0, 1)),
        lambda p, u: u.x - jnp.cos(p.x),
        [sapm.Inflow(lambda p: 0.0)],
        lambda p: jnp.sin(p.x),
    )
    assert np.allclose(solve_by_characteristics(ode, np.array([[0.5]])), np.sin(0.5), atol=1e-10)
    corner = sapm.Dirichlet(wave, faces=["x+"], points=[[0, 1], [0.5, 1], [1, 1]])
    assert len(transport(conditions=[sapm.Initial(wave), corner]).samples(5, 4, 0).terms[1].y) == 5
    with pytest.raises(ValueError, match="a point where characteristics leave"):
        transport(conditions=[sapm.Initial(wave), sapm.Inflow(wave, points=[[0.5, -1]])])


def test_characteristics_in_physical_units():
    """A day by a micrometre: the tolerance is by coordinate. A fast rotation is well posed however
    often it turns.
    """
    T = 86400.0
    L = 1e-6
    pde = sapm.PDE(
        sapm.Box(t=(0, T), x=(L, 2 * L)),
        lambda p, u: u.t + (p.x / T) * u.x,
        [
            sapm.Initial(lambda p: jnp.sin(p.x / L)),
            sapm.Inflow(lambda p: jnp.sin(jnp.exp(-p.t / T))),
        ],
    )
    x = pde.domain.points(20, 1)
    assert np.allclose(
        solve_by_characteristics(pde, x), np.sin(x[:, 1] / L * np.exp(-x[:, 0] / T)), atol=1e-8
    )
    fast = sapm.PDE(
        sapm.Box(t=(0, 10), x=(-1, 1), y=(-1, 1)),
        lambda p, u: u.t - 60 * p.y * u.x + 60 * p.x * u.y,
        [sapm.Initial(lambda p: p.x), sapm.Inflow(lambda p: p.x)],
    )
    assert fast.ill_posed == ""


def test_numbers_are_data():
    """A number, or one for each function, stands for the function that gives it everywhere; hard
    conditions may share it.
    """
    box = sapm.Box(x=(0, 1), y=(0, 1))
    residual = lambda p, u: u.xx + u.yy + 1
    one, other = (sapm.PDE(box, residual, [sapm.Dirichlet(g)]) for g in (0.5, lambda p: 0.5))
    assert np.array_equal(
        one.samples(20, 12, 0, 1.0).terms[1].y, other.samples(20, 12, 0, 1.0).terms[1].y
    )
    assert sapm.Robin(1, 2, 3).g(None) == 3.0 and sapm.Initial((4, 2)).g(None) == (4.0, 2.0)
    sides = [
        sapm.Dirichlet(0, faces=["x-"], hard=True),
        sapm.Dirichlet(0.0, faces=["y-"], hard=True),
        sapm.Neumann(1, faces=["x+"]),
    ]
    with pytest.warns(UserWarning, match=r"no condition is on y\+"):
        assert sapm.PDE(box, residual, sides).ansatz is not None


def test_conditions_that_agree_may_overlap():
    """On a corner, on a face twice alike, for different functions, and where points were given.
    That nothing is refused is the test.
    """
    box = sapm.Box(t=(0, 1), x=(0, 1))
    start = sapm.Initial(lambda p: p.x)
    sapm.PDE(
        box,
        lambda p, u: u.t - u.xx,
        [start, sapm.Dirichlet(7), sapm.Dirichlet(lambda p: 7 + 1e-9 * p.t, faces=["x+"])],
    )
    both = [sapm.Initial(0, of="u"), sapm.Initial(1, of="v")]
    sapm.PDE(sapm.Box(t=(0, 1)), lambda p, u, v: (u.t - v.value, v.t + u.value), both)
    left, right = (np.array([[0.0, a], [0.0, b]]) for a, b in ((0.1, 0.2), (0.8, 0.9)))
    parts = [sapm.Initial(0, points=left), sapm.Initial(1, points=right)]
    sapm.PDE(box, lambda p, u: u.t - u.xx, [*parts, sapm.Dirichlet(0)])


def test_corners_and_a_time_by_another_name_are_doubted():
    box = sapm.Box(t=(0, 1), x=(0, 1))
    heat = lambda p, u: u.t - u.xx

    def said(problem):
        return [item.sentence for item in doubts(problem, tanh, plan(problem), "sapm")]

    jumps = sapm.PDE(box, heat, [sapm.Initial(1), sapm.Dirichlet(0)])
    assert [text.partition(":")[0] for text in said(jumps)] == ["u jumps where t- and x- meet"]
    assert (
        said(
            sapm.PDE(box, heat, [sapm.Initial(lambda p: jnp.sin(jnp.pi * p.x)), sapm.Dirichlet(0)])
        )
        == []
    )
    assert said(sapm.PDE(box, heat, [sapm.Initial(1), sapm.Neumann(0)])) == []
    rough = sapm.Initial(lambda p: jnp.sin(16 * jnp.pi * p.x))  # 0 at every point of a grid
    assert said(sapm.PDE(box, heat, [rough, sapm.Dirichlet(0)])) == []
    square = sapm.Box(x=(0, 1), y=(0, 1))
    steep = [
        sapm.Dirichlet(lambda p: p.x * jnp.log(p.x), faces=["y-"]),
        sapm.Dirichlet(0, faces=["x-", "x+", "y+"]),
    ]
    assert (
        said(sapm.PDE(square, lambda p, u: u.xx + u.yy, steep)) == []
    )  # NaN at a corner, where nobody asks
    seen = [sapm.Observed([[0.5, 0.5]], [0.2]), sapm.Observed([[0.6, 0.5]], [0.2])]  # on no face
    assert len(said(sapm.PDE(box, heat, [*seen, sapm.Initial(1), sapm.Dirichlet(0)]))) == 1
    endless = sapm.Dirichlet(lambda p: jnp.log(p.x), faces=["y-"])
    others = [endless, sapm.Dirichlet(0, faces=["x-", "x+"]), sapm.Dirichlet(5, faces=["y+"])]
    assert "y+ meet" in said(sapm.PDE(square, lambda p, u: u.xx + u.yy, others))[0]
    tiny = sapm.Dirichlet(lambda p: jnp.sin(jnp.pi * p.x) * jnp.exp(-p.t))  # 1e-16 at x = 1
    assert said(sapm.PDE(box, heat, [sapm.Initial(0), tiny])) == []
    pair = sapm.PDE(
        box,
        lambda p, u, v: (u.t - u.xx, v.t - v.xx),
        [sapm.Initial((1e6, 1)), sapm.Dirichlet((1e6, 0))],
    )
    assert [text.partition(":")[0] for text in said(pair)] == ["v jumps where t- and x- meet"]
    warm = sapm.PDE(
        sapm.Box(x=(0, 1), T=(0, 1)), lambda p, u: u.xx + u.d("T", "T"), [sapm.Dirichlet(0)]
    )
    assert said(warm) == []  # T is no time

    def flow(*conditions):
        return sapm.PDE(box, lambda p, u: u.t + u.x, [sapm.Initial(0), *conditions])

    assert [text.partition(", where")[0] for text in said(flow(sapm.Dirichlet(0)))] == [
        "Dirichlet holds on x+"
    ]
    assert said(flow(sapm.Inflow(0))) == said(flow(sapm.Dirichlet(0, faces=["x-"]))) == []
    late = sapm.PDE(sapm.Box(T=(0, 1), x=(0, 1)), lambda p, u: u.T - u.xx, [sapm.Dirichlet(0)])
    assert [text.partition(",")[0] for text in said(late)] == ["T looks like the time"]


@pytest.mark.slow
def test_many_turns_are_not_followed_to_their_end(monkeypatch):
    """Stating a problem whose characteristics go round 5000 times takes as many steps as one of 500
    turns.
    """
    steps = [0]
    follow = characteristics.solve_ivp

    def counted(*given, **named):
        run = follow(*given, **named)
        steps[-1] += run.nfev
        return run

    monkeypatch.setattr(characteristics, "solve_ivp", counted)
    for end in (3000, 30_000):
        domain = sapm.Box(t=(0, end)) * sapm.Ball(2, names=("x", "y"))
        problem = sapm.PDE(
            domain, lambda p, u: u.t + p.y * u.x - p.x * u.y, [sapm.Initial(lambda p: p.x)]
        )
        assert problem.ill_posed == ""
        steps.append(0)
    assert 0 < steps[1] < 1.5 * steps[0]

    # (time goes on, and comes back)
    def round_and_round(p, u):
        return p.x * u.t - p.t * u.x

    with pytest.warns(UserWarning, match="never reaches the boundary"):
        sapm.PDE(
            sapm.Box(t=(-1, 1), x=(-1, 1)),
            round_and_round,
            [sapm.Dirichlet(0.0, faces=["t-", "t+", "x-", "x+"])],
        )
    monkeypatch.setattr(
        characteristics, "MAX_EVALUATIONS", 100
    )  # one that comes to rest takes forever
    sapm.PDE(sapm.Box(t=(0, 1)), lambda p, u: p.t * u.t + u.value, [sapm.Initial(0.0)])
