"""The answers of the built-in problems: they solve what was stated, and other methods, with SciPy,
find the same.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import typed
from scipy.fft import dct, dst
from scipy.integrate import solve_ivp

import sapm
from sapm.catalogue import CATALOGUE, TEXTBOOK, answers
from sapm.catalogue.answers import allen_cahn_series, corner
from sapm.studies.bench.cases import CASES, CASES_WITHOUT_PEERS

T = np.array([0.0, 0.05, 0.3, 0.7, 1.0])


def at(problem):
    """The answer as a function of one row."""
    names = problem.domain.names
    return lambda row: jnp.asarray(
        problem.exact(sapm.problem.domain.Coordinates(names, row))
    ).reshape(())


@pytest.mark.parametrize("name", [name for name in TEXTBOOK if name not in CASES_WITHOUT_PEERS])
def test_answers_solve_their_problems(name):
    """The residual of the answer vanishes, and so does what the conditions leave over; the bench
    knows what it has.
    """
    problem = CATALOGUE[name].problem()
    assert problem.ill_posed == "" and problem.exact is not None
    names = problem.domain.names
    u = at(problem)
    case = next(case for case in CASES.values() if case.experiment == name)
    assert case.inputs == len(names) and (("B", "features-many") in case.rows()) == (
        not problem.equation.nonlinear
    )
    with jax.enable_x64(True):
        inside = jax.jit(lambda x: typed(problem.residual, names, u, x))(
            jnp.asarray(problem.domain.points(6, 1))
        )
        assert np.max(np.abs(inside)) < 1e-10
        for condition in problem.conditions:
            x = jnp.asarray(problem.boundary(condition, 8))
            a, w = condition.operator(problem.domain, np.asarray(x))
            given = a * jax.vmap(u)(x) + (
                jnp.sum(w * jax.vmap(jax.grad(u))(x), 1) if w.any() else 0
            )
            assert np.allclose(
                given, condition.datum(problem.domain, np.asarray(x))[:, 0], rtol=1e-12, atol=1e-12
            )


@pytest.mark.usefixtures("double_precision")
def test_two_functions_and_what_was_seen():
    problem = CATALOGUE["lotka_volterra"].problem()
    t = jnp.linspace(0.0, 6.0, 50)
    both = answers.lotka_volterra
    (u, v), (du, dv) = (
        np.asarray(a).T for a in jax.vmap(lambda t: jax.jvp(both, (t,), (jnp.ones(()),)))(t[1:-1])
    )
    assert np.allclose(du, u * (1.5 - v), rtol=1e-8, atol=1e-8) and np.allclose(
        dv, v * (u - 3), rtol=1e-8, atol=1e-8
    )
    assert np.allclose(
        both(0.0), problem.samples(4, 1, 0, 1.0).terms[1].y[0], rtol=1e-10, atol=1e-10
    )
    seen = CATALOGUE["burgers_inverse"].problem()
    assert seen.equation.parameters == {"nu": 0.01} and seen.samples(4, 8, 0, 1.0).outputs == 2


def on_a_grid(name, x):
    with jax.enable_x64(True):
        u = at(CATALOGUE[name].problem())
        return np.asarray(
            jax.jit(jax.vmap(lambda t: jax.vmap(lambda x: u(jnp.stack([t, x])))(x)))(jnp.asarray(T))
        )


def test_burgers_in_sines():
    """On [0, 1], where u is 0 at both ends and odd: -u²/2 in cosines, its derivative and u_xx in
    sines.
    """
    n = 512
    nu = 0.01 / np.pi
    k = np.arange(1, n)
    x = np.arange(1, n) / n

    def slope(_, c):
        u = np.concatenate([[0], dst(c, type=1) / 2, [0]])
        square = dct(u**2 / 2, type=1)[1:-1] / n
        return np.pi * k * square - nu * (np.pi * k) ** 2 * c

    start = np.where(k == 1, -1.0, 0.0)
    found = solve_ivp(
        slope,
        (0, 1),
        start,
        "DOP853",
        T,
        rtol=1e-8,
        atol=1e-10,
        max_step=5 / (nu * (np.pi * n) ** 2),
    ).y
    wanted = dst(found, type=1, axis=0).T / 2
    assert np.max(np.abs(on_a_grid("burgers", x) - wanted)) < 1e-6


@pytest.mark.slow
def test_allen_cahn_by_finite_differences():
    """On [0, 1], where u is even: central differences of second order, reflected at both ends."""
    n = 2000
    x = np.linspace(0, 1, n + 1)

    def slope(_, u):
        wide = np.concatenate([u[1:2], u, u[-2:-1]])
        return 1e-4 * n**2 * (wide[2:] - 2 * u + wide[:-2]) + 5 * (u - u**3)

    given = {"t_eval": T, "rtol": 1e-7, "atol": 1e-8, "lband": 1, "uband": 1}
    wanted = solve_ivp(slope, (0, 1), x**2 * np.cos(np.pi * x), "LSODA", **given).y.T
    assert np.max(np.abs(on_a_grid("allen_cahn", x) - wanted)) < 1e-4


def test_allen_cahn_at_two_resolutions():
    """Two thirds of the modes and a lower degree give the same to 2e-8, near the corner too; JAX
    evaluates it as NumPy does.
    """
    from numpy.polynomial.chebyshev import chebvander
    from scipy.special import erfc

    rng = np.random.default_rng(0)
    t = np.concatenate([rng.uniform(0, 1, 200), 10 ** rng.uniform(-6, 0, 200)])
    x = rng.uniform(-1, 1, 400)
    x[100:300] = 1 - 10 ** rng.uniform(-5, -1, 200)

    def value(c):
        along = np.cos(np.pi * np.outer(x, np.arange(len(c))))
        time = chebvander(2 * np.sqrt(t) - 1, c.shape[1] - 1)
        return np.sum((along @ c) * time, 1) + corner(t, x, erfc)

    fine = value(allen_cahn_series())
    assert np.max(np.abs(value(allen_cahn_series(512, 56)) - fine)) < 2e-8
    with jax.enable_x64(True):
        rows = jnp.asarray(np.stack([t, x], 1))
        assert (
            np.max(np.abs(jax.jit(jax.vmap(at(CATALOGUE["allen_cahn"].problem())))(rows) - fine))
            < 1e-12
        )
