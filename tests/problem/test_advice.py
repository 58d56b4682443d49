"""What is allowed and probably not meant, and what conditions leave open, is said; ordinary
problems hear nothing.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import transport

import sapm
from sapm.driver.settings import doubts, plan
from sapm.errors import warn
from sapm.numerics.activations import tanh
from sapm.problem.advice import another_exact, kinks


def sentences(problem):
    return [item.sentence for item in doubts(problem, tanh, plan(problem), "sapm")]


def test_backwards_in_time_and_more_equations_than_functions_are_doubted():
    box = sapm.Box(t=(0, 1), x=(2, 3))
    start = [sapm.Initial(0), sapm.Dirichlet(0)]

    def said(problem):
        return [text.partition(":")[0] for text in sentences(problem)]

    def stated(residual):
        return said(sapm.PDE(box, residual, start))

    def nonlinear(p, u):
        return u.t + u.value * u.x + 0.01 * u.xx

    for residual in (
        lambda p, u: u.t + 0.1 * u.xx,
        lambda p, u: -u.t - jnp.sqrt(p.x - 2) * u.xx,
        nonlinear,
    ):
        assert stated(residual) == ["the equation is diffusion backwards in time"]
    for residual in (
        lambda p, u: u.t - 0.1 * u.xx,
        lambda p, u: u.t - u.value * u.xx,
        lambda p, u: u.t + u.x - u.xx,
    ):
        assert stated(residual) == []
    ends = [sapm.Dirichlet(0, faces=["t+", "x-", "x+"])]
    assert (
        said(sapm.PDE(box, lambda p, u: u.t + u.xx, ends)) == []
    )  # from its end it is as it should be

    def both(p, u):
        return (u.t + u.value, u.t - 1)

    assert said(sapm.PDE(sapm.Box(t=(0, 1)), both, [sapm.Initial(0)])) == [
        "there are 2 equations for u"
    ]


def test_doubts_are_repeated_wherever_a_run_is_shown(tmp_path, monkeypatch):
    """In the summary, on the page, in summary.json, and by a file that is read without its problem."""
    monkeypatch.setattr("sapm.results.result.Result.error_estimate", lambda self: "No estimate.")
    monkeypatch.setattr("sapm.results.page.figures", lambda result: {})
    start = [sapm.Initial(lambda p: p.x * (1 - p.x)), sapm.Neumann(0, faces=["x-"])]
    with pytest.warns(UserWarning, match="no condition is on x"):
        problem = sapm.PDE(sapm.Box(t=(0, 0.2), x=(0, 1)), lambda p, u: u.t + u.xx, start)
    small = {
        "depth": 2,
        "width": 3,
        "points": 20,
        "boundary_points": 10,
        "test_points": 10,
        "seeds": 1,
        "max_iter": 1,
    }
    with pytest.warns(UserWarning, match="backwards in time"):
        result = sapm.solve(problem, **small, progress=False, out=tmp_path / "run")
    loaded = sapm.load(tmp_path / "run" / "model.sapm")
    kept = json.loads((tmp_path / "run" / "summary.json").read_text())["warnings"]
    page = loaded.report(tmp_path / "page.html").read_text()
    assert len(kept) == 2 and kept[0] == problem.ill_posed
    for text in (
        *(" ".join(str(shown.summary(estimate=False)).split()) for shown in (result, loaded)),
        page,
    ):
        assert (
            text.count("Warning: ") == 2
            and "backwards in time" in text
            and "no condition is on x" in text
        )


def test_what_was_observed_counts_as_samples():
    """In what is said of a step, and in whether one is affordable; so do points of one's own, and
    ends of an interval.
    """
    t = np.linspace(0, 1, 3000)[:, None]

    def decay(*more):
        return sapm.PDE(sapm.Box(t=(0, 1)), lambda p, u: u.t + u.value, [sapm.Initial(1.0), *more])

    seen = decay(sapm.Observed(t, np.exp(-t)))
    for problem, counts, boundary in ((decay(), [1], 20), (seen, [1, 3000], 20)):
        assert (
            problem.counts(boundary)
            == counts
            == [len(problem.boundary(c, 10)) for c in problem.soft_conditions]
        )
        size = {"points": 200, "boundary_points": boundary}
        assert f"; {200 + sum(counts)} samples," in plan(problem, **size).why
    assert "matrix of the weights" in plan(seen).why
    assert "from the Jacobian" in plan(seen, options={"algebra": "dense"}).why
    assert "L-BFGS on the true loss, since no matrix" in plan(seen, width=100, points=10**5).why
    many = sapm.Observed(t := np.linspace(0, 1, 40000)[:, None], np.exp(-t))
    assert plan(decay(many)).method.name != plan(decay()).method.name == "gauss-newton"
    with pytest.raises(ValueError, match="algebra='fast' is not known"):
        plan(seen, options={"algebra": "fast"})
    sides = [
        sapm.Initial(0, points=7),
        sapm.Dirichlet(0, faces=["x-"], points=[[0.5, 0.0]]),
        sapm.Neumann(0, faces=["x+"]),
    ]
    plate = sapm.PDE(sapm.Box(t=(0, 1), x=(0, 1)), lambda p, u: u.t - u.xx, sides)
    assert plate.counts(30) == [7, 1, 10]
    assert sum(term.y.size for term in plate.samples(50, 30, 0).terms[1:]) == 18


def test_exact_that_is_not_exact_is_doubted():
    """By the conditions or by the equation, where the error is large; not where nothing can be
    said, and once.
    """

    def stated(exact, residual=lambda p, u: u.xx + jnp.pi**2 * jnp.sin(jnp.pi * p.x)):
        return sapm.PDE(sapm.Box(x=(0, 1)), residual, [sapm.Dirichlet(0)], exact)

    nodes = np.linspace(0, 1, 101)
    right = (lambda p: jnp.sin(jnp.pi * p.x), lambda p: np.sin(np.pi * float(p.x)))

    # (without second derivatives)
    def between(p):
        return jnp.interp(p.x, nodes, np.sin(np.pi * nodes))

    for exact in (*right, between):
        assert another_exact(stated(exact)) is None
    other = another_exact(stated(lambda p: jnp.cos(p.x)))
    assert "Dirichlet gives 0 and exact gives 1" in other.sentence
    wrong = stated(lambda p: jnp.sin(2 * jnp.pi * p.x))
    assert another_exact(wrong).sentence.startswith("exact does not solve the equation: at (x=")
    small = {
        "depth": 2,
        "width": 3,
        "points": 20,
        "test_points": 10,
        "seeds": 1,
        "max_iter": 2,
        "progress": False,
    }
    with pytest.warns(UserWarning, match="exact does not solve the equation") as said:
        result = sapm.solve(wrong, **small)
    assert (
        len(said) == 1
        and said[0].filename == __file__
        and "exact does not solve" in str(result.summary())
    )
    assert not sapm.solve(stated(right[0]), **small).run.advice


def test_single_precision_and_what_does_not_go_round_are_doubted():
    def said(problem):
        return sentences(problem)

    root = jnp.sqrt(3.0)
    ends = [sapm.Dirichlet(1)]
    assert root.dtype == np.float32
    box = sapm.Box(x=(0, 1))
    strip = sapm.Box(t=(0, 1), x=(0, 1))
    (rough,) = said(sapm.PDE(box, lambda p, u: u.xx + root * u.value, ends))
    assert rough.startswith("the residual contains numbers in single precision")
    assert (
        said(sapm.PDE(box, lambda p, u: u.xx + np.sqrt(3.0) * jnp.sqrt(3.0) * u.value, ends)) == []
    )
    (rough,) = said(
        sapm.PDE(box, lambda p, u: u.xx + u.value, [sapm.Dirichlet(lambda p: root * p.x)])
    )
    assert rough.startswith("Dirichlet contains numbers in single")

    def wave(g):
        return sapm.PDE(strip, lambda p, u: u.t + u.x, [sapm.Initial(g), sapm.Periodic("x")])

    assert said(wave(lambda p: jnp.sin(2 * jnp.pi * p.x))) == []
    half_open = dict.fromkeys(range(4), 0.0)
    assert (
        said(wave(lambda p: half_open[int(4 * float(p.x))])) == []
    )  # a function need not be defined at both ends
    assert said(wave(lambda p: p.x * jnp.sin(jnp.pi))) == []  # 0, but for rounding
    inside = [
        sapm.Initial(1),
        sapm.Dirichlet(lambda p: jnp.exp(-p.t - p.x), faces=["x-"]),
        sapm.Periodic("x"),
    ]
    assert said(sapm.PDE(strip, lambda p, u: u.t - u.xx, inside)) == []  # it does not hold at x+
    two = sapm.PDE(
        strip,
        lambda p, u, v: (u.t + v.x, v.t),
        [sapm.Initial(lambda p: (0.0, p.x)), sapm.Periodic("x")],
    )
    assert "it gives 0 at (t=0, x=0) and 1 at (t=0, x=1)" in said(two)[0]
    (jump,) = said(wave(lambda p: p.x))
    assert jump.startswith(
        "u is periodic in x, and Initial is not: it gives 0 at (t=0, x=0) and 1 at (t=0, x=1)"
    )


def test_corners_that_point_inwards_are_doubted():
    """Where boxes make them; not at round holes, and not for equations of first order, which know
    nothing of them.
    """
    box = sapm.Box(x=(-1, 1), y=(-1, 1))
    xy = {"names": ("x", "y")}
    ell = box - sapm.Box(x=(0, 1), y=(-1, 0))
    laplace = lambda p, u: u.xx + u.yy

    def stated(domain, residual=laplace):
        return sapm.PDE(domain, residual, [sapm.Dirichlet(0.0)])

    def said(problem):
        return [s for s in sentences(problem) if "points inwards" in s]

    assert said(stated(ell))[0].startswith(
        "the domain has a corner that points inwards, at (x=0, y=0): "
    )
    for shape in (
        box - sapm.Box(x=(-0.2, 0.2), y=(-0.2, 0.2)),
        box | sapm.Box(x=(-0.3, 0.3), y=(0, 2)),
    ):
        assert said(stated(shape))
    heat = sapm.PDE(
        sapm.Box(t=(0, 1)) * ell,
        lambda p, u: u.t - u.xx - u.yy,
        [sapm.Initial(0), sapm.Dirichlet(0)],
    )
    assert said(heat) and said(stated(ell * sapm.Box(z=(0, 1)), lambda p, u: u.xx + u.yy + u.zz))
    for shape in (
        box,
        box - sapm.Ball(2, 0.3, **xy),
        box & sapm.Ball(2, 1.2, **xy),
        box | sapm.Box(x=(1, 2), y=(-1, 1)),
    ):
        assert not said(stated(shape))
    assert not said(sapm.PDE(ell, lambda p, u: u.x + 0.5 * u.y, [sapm.Inflow(0.0)]))


def test_a_coefficient_that_jumps_is_doubted():
    """Along the coordinates of its second derivative, also by `if`; steep ones, sources and steps
    in time are not.
    """
    box = sapm.Box(x=(0, 1))
    square = sapm.Box(t=(0, 1), x=(0, 1))
    ends = [sapm.Dirichlet(0)]
    K = lambda x: jnp.where(x < 0.5, 1.0, 10.0)
    start = [sapm.Initial(0), *ends]

    def said(problem):
        return [s for s in sentences(problem) if "jumps" in s]

    for residual in (
        lambda p, h: K(p.x) * h.xx,
        lambda p, h: (1.0 if p.x < 0.3 else 1.1) * h.xx,
        lambda p, h: K(p.x) * (1 + h.value**2) * h.xx,
    ):
        (sentence,) = said(sapm.PDE(box, residual, ends))
        assert (
            sentence.startswith("the coefficient of u.xx jumps at (x=0.")
            and "(q.value - K * h.x, q.x)" in sentence
        )

    def steep(p, u):
        return (1 + 9 * jax.nn.sigmoid((p.x - 0.5) / 1e-4)) * u.xx

    for residual in (
        steep,
        lambda p, u: u.xx - K(p.x),
        lambda p, u: u.xx + jnp.where(u.value > 0.3, 1.0, 2.0) * u.value**2,
    ):
        assert said(sapm.PDE(box, residual, ends)) == []
    assert said(sapm.PDE(square, lambda p, u: u.t - K(p.t) * u.xx, start)) == []


def test_kinks_are_said_where_the_residual_stays_large(tmp_path):
    disc = sapm.Ball(2, names=("x", "y"))
    small = {"points": 60, "test_points": 10, "boundary_points": 30, "seeds": 1, "max_iter": 3}
    distance = sapm.PDE(disc, lambda p, u: u.x**2 + u.y**2 - 1, [sapm.Dirichlet(0)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sapm.driver.solve.SETTLED_ITERATIONS", 3)
        with pytest.warns(
            UserWarning,
            match=r"a nonlinear equation of first order may have kinks .* - eps \* \(u.xx \+ u.yy\)",
        ):
            result = sapm.solve(distance, depth=2, width=4, **small, progress=False)
    result.save(tmp_path / "a.sapm")
    longer = sapm.resume(
        tmp_path / "a.sapm", 4, problem=distance, progress=False
    )  # too short to say anything, and it is taken back
    assert result.run.advice and not longer.run.advice
    assert kinks(distance, 0.01) is None and kinks(distance, np.nan) is None
    rows = sapm.PDE(disc, lambda p, u: (u.x - p.y, u.y - 2 * p.x), [sapm.Dirichlet(0)])
    measured = [sapm.Dirichlet(0), sapm.Observed([[0.1, 0.1]], [0.2])]
    speed = sapm.PDE(disc, lambda p, u: u.x + p.c * u.y, measured, parameters={"c": 1.0})
    smooth = sapm.PDE(disc, lambda p, u: u.x**2 + u.y**2 - 0.1 * (u.xx + u.yy), [sapm.Dirichlet(0)])
    decay = sapm.PDE(sapm.Box(t=(0, 1)), lambda p, u: u.t + u.value**2, [sapm.Initial(1)])
    for problem in (rows, speed, smooth, decay):
        assert kinks(problem, 0.5) is None


def test_a_root_of_u_is_said_where_networks_begin():
    start = [sapm.Initial(1), sapm.Observed([[0.5]], [0.9])]
    tank = sapm.PDE(
        sapm.Box(t=(0, 1)),
        lambda p, u: u.t + p.k * jnp.sqrt(u.value - 9),
        start,
        parameters={"k": 1.0},
    )
    small = {
        "depth": 2,
        "width": 4,
        "points": 20,
        "test_points": 10,
        "boundary_points": 2,
        "seeds": 2,
        "max_iter": 2,
    }
    with pytest.warns(
        UserWarning, match=r"nothing was trained: .* not finite\. If the residual has a root"
    ) as said:
        result = sapm.solve(tank, **small, progress=False)
    assert said[-1].filename == __file__ and "nothing was trained" in str(result.summary())


def test_the_error_itself_where_characteristics_tell_it(tmp_path, monkeypatch):
    small = {
        "depth": 3,
        "width": 6,
        "points": 60,
        "boundary_points": 30,
        "test_points": 25,
        "seeds": 1,
        "max_iter": 5,
    }
    stopped_clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr("sapm.results.estimates.time", stopped_clock)
    result = sapm.solve(transport(exact=None), **small, progress=False)
    x = result.samples.test["x"]
    found = result.error_estimate()
    error = np.linalg.norm(result.best(x) - np.exp(x[:, 0]) * np.sin(x[:, 1])) / np.linalg.norm(
        np.exp(x[:, 0]) * np.sin(x[:, 1])
    )
    assert (
        found.kind == "measured"
        and found.points == 25
        and np.isclose(found.error, error, rtol=1e-6)
    )
    assert (
        f"Error {error:.1e} (relative): u was compared with its values along the "
        "characteristics through 25 held-out points." in " ".join(str(result.summary()).split())
    )
    result.save(tmp_path / "a.sapm")
    assert sapm.load(tmp_path / "a.sapm").error_estimate().kind == "estimated"
    monkeypatch.setattr(
        "sapm.problem.characteristics.MAX_EVALUATIONS", 10
    )  # where they take long, there is an estimate
    assert (
        sapm.load(tmp_path / "a.sapm", transport(exact=None)).error_estimate().kind == "estimated"
    )


def test_a_function_that_fails_on_the_boundary_ends_no_run():
    """What `exact` is there was never asked before the run was over."""

    def quotient(p):
        return np.sin(float(p.x)) / float(p.x)

    ends = [sapm.Dirichlet(1.0, faces=["x-"]), sapm.Dirichlet(np.sin(1.0), faces=["x+"])]
    problem = sapm.PDE(sapm.Box(x=(0, 1)), lambda p, u: u.xx, ends, quotient)
    assert another_exact(problem) is None


def test_less_than_it_takes_is_said_of_systems():
    """A function that others are coupled to is no derivative by another name, and one that is may
    need more.
    """
    line = sapm.Box(x=(0, 1))
    strip = sapm.Box(t=(0, 1), x=(0, 1))
    both = [sapm.Dirichlet(0, of="u"), sapm.Initial(0, of="u"), sapm.InitialVelocity(0, of="u")]
    start = [sapm.Dirichlet(1, faces=["x-"], of="u"), sapm.Neumann(0, faces=["x-"], of="u")]

    def coupled(p, u, v):
        return (u.xx + u.value - v.value, v.xx + v.value - 1)

    for domain, residual, conditions, sentence in (
        (
            strip,
            lambda p, u, v: (u.tt - u.xx + v.value, v.t - v.xx - u.value),
            both,
            "there is no condition on v",
        ),
        (line, coupled, start, "there is no condition on v"),
        (line, coupled, [*start, sapm.Dirichlet(0, faces=["x-"], of="v")], "no condition is on x+"),
    ):
        with pytest.warns(UserWarning, match=sentence.replace("+", r"\+")):
            sapm.PDE(domain, residual, conditions)

    def speed(p, u, v):
        return (v.value - u.t, v.t - u.xx)

    assert sapm.PDE(strip, speed, both).ill_posed == ""  # u.t at the start is v
    assert sapm.PDE(
        line,
        coupled,
        [*start, sapm.Dirichlet(0, faces=["x-"], of="v"), sapm.Neumann(0, faces=["x-"], of="v")],
    )


def test_branches_on_the_point_in_an_equation_told_twice_on_a_face():
    def mass(p):
        return 1.0 if p.x < 0.5 else 4.0

    start = [sapm.Initial(0), sapm.InitialVelocity(1), sapm.Dirichlet(0)]
    wave = sapm.PDE(
        sapm.Box(t=(0, 1), x=(0, 1)), lambda p, u: u.tt - u.xx + mass(p) * u.value, start
    )
    assert wave.ill_posed == ""


def test_all_at_one_end_and_functions_that_are_derivatives_are_well_posed():
    """An ordinary equation that starts somewhere, and a clamped beam as a system; with less, it is
    said.
    """
    line = sapm.Box(x=(0, 1))
    bend = lambda p, u: u.xx + u.value
    beam = lambda p, u, m: (m.value - u.xx, m.xx - 24)
    here = [sapm.Dirichlet(1, faces=["x-"]), sapm.Neumann(0, faces=["x-"])]
    clamped = [sapm.Dirichlet(0, of="u"), sapm.Neumann(0, of="u")]
    for residual, conditions in ((bend, here), (beam, clamped)):
        assert sapm.PDE(line, residual, conditions).ill_posed == ""
        with pytest.warns(UserWarning, match=r"no condition (is on x\+|on m)"):
            assert sapm.PDE(line, residual, conditions[:1]).ill_posed


def test_a_warning_names_the_users_line_also_in_a_file_beside_the_package():
    beside = f"{Path(sapm.__file__).parent}_mine.py"
    code = compile("warn('look here')", beside, "exec")
    with pytest.warns(UserWarning, match="look here") as said:
        exec(code, {"warn": warn, "__name__": "mine"})
    assert said[0].filename == beside
