"""A condition that is nonlinear in u, written outside of the package: a rod that is cooled at its
end, u'(1) + u(1)³ = 1, with u(0) = 3.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jacobians import weighted_residuals
from scipy.optimize import brentq

import sapm
from sapm.methods.gauss_newton import gauss_newton
from sapm.methods.linearise import dense, flatten
from sapm.numerics.jets import Jet
from sapm.numerics.network import initialise
from sapm.objective.penalty import objective
from sapm.problem.advice import ill_posed
from sapm.problem.conditions import BoundaryCondition, OnFaces
from sapm.scopes import float64

TINY = {"depth": 3, "width": 8, "points": 30, "boundary_points": 4, "test_points": 20, "seeds": 1}
SLOPE = brentq(lambda slope: slope + (3 + slope) ** 3 - 1, -3, 0)  # u = 3 + slope x


class Cooling(sapm.Condition):
    """∂u/∂x + u³ = surroundings³."""

    def __init__(self, surroundings, **settings):
        super().__init__(**settings)
        self.surroundings = surroundings

    def residual(self, p, u):
        return u.x + u.value**3 - self.surroundings**3


def rod(end=None):
    end = Cooling(1.0, faces=["x+"]) if end is None else end
    return sapm.PDE(
        sapm.Box(x=(0, 1)),
        lambda p, u: u.xx,
        [sapm.Dirichlet(3.0, faces=["x-"]), end],
        exact=lambda p: 3 + SLOPE * p.x,
    )


@pytest.mark.slow_cases("sapm", "lbfgs")
@pytest.mark.parametrize(
    "settings",
    [
        {"model": "ls", "method": "gauss-newton", "max_iter": 40},
        {"model": "sapm", "method": "gauss-newton", "max_iter": 40},
        {"model": "ls", "method": "lbfgs", "max_iter": 2000},
    ],
    ids=["ls", "sapm", "lbfgs"],
)
def test_it_trains(settings):
    result = sapm.solve(rod(), **TINY, **settings, progress=False)
    assert result.table[0]["solution_error"] < 1e-3
    assert result.table[0]["loss"] < 1e-3 * result.table[0]["initial_loss"]
    if settings["model"] == "sapm":
        assert result.certificate.holds
        assert result.certificate.reason.startswith("Theorem 5 holds")
    else:
        assert result.certificate.bound == 1


def test_the_jacobian_is_that_of_jax():
    terms = rod().samples(30, 4, 0, 1.0).terms
    method = gauss_newton(objective(terms, 3, "ls"), (1, 8, 8, 1), "tanh")
    with jax.enable_x64(True):
        network = initialise(jax.random.key(0), (1, 8, 8, 1), method.sigma, "he")
        point = method.begin(network).point
        rows = jax.jit(lambda at: method.linearise(at, False))(point).rows
        residuals = weighted_residuals(terms, network)
        expected = jax.jit(jax.jacobian(residuals))(flatten(network.stack))
        assert np.allclose(jax.jit(dense)(rows), expected, rtol=1e-10, atol=1e-10)
        u = network(terms[-1].x)
        by_hand = u.tangents[:, 0] + u.value**3 - 1
        assert np.allclose(terms[-1].residual(u), by_hand, rtol=1e-14)


def test_a_run_is_continued_with_the_problem(tmp_path):
    """Its residual is code, which the file does not hold; another one is recognised."""
    whole = sapm.solve(rod(), **TINY, max_iter=6, progress=False)
    sapm.solve(rod(), **TINY, max_iter=2, progress=False, out=tmp_path / "run")
    with pytest.raises(ValueError, match="give the problem again"):
        sapm.resume(tmp_path / "run", max_iter=6, progress=False)
    with pytest.raises(ValueError, match="term2/probe differs, a condition"):
        sapm.resume(tmp_path / "run", max_iter=6, problem=rod(Cooling(2.0, faces=["x+"])))
    resumed = sapm.resume(tmp_path / "run", max_iter=6, problem=rod(), progress=False)
    assert np.array_equal(resumed.history["loss"], whole.history["loss"])
    assert resumed.error_estimate().known


def test_as_a_function():
    """Without a class; the same operator, and the same samples, as the class."""
    end = sapm.Condition(lambda p, u: u.x + u.value**3 - 1, faces=["x+"])
    one, other = rod().samples(10, 4, 0, 1.0), rod(end).samples(10, 4, 0, 1.0)
    for a, b in zip(one.terms, other.terms, strict=True):
        assert jax.tree.all(jax.tree.map(np.array_equal, a, b))


@float64
def test_systems_name_the_functions_that_they_use():
    box = sapm.Box(x=(0, 1))

    def system(*conditions):
        start = sapm.Dirichlet((1.0, 1.0), faces=["x-"])
        return sapm.PDE(box, lambda p, u, v: (u.xx - v.value, v.xx), [start, *conditions])

    for condition, rows in (
        (sapm.Condition(lambda p, v, u: (v.x * u.value, u.x + v.value**2), faces=["x+"]), 2),
        (sapm.Condition(lambda p, v: v.x - 1, faces=["x+"]), 1),
    ):
        problem = system(condition, sapm.Dirichlet(0, faces=["x+"], of="u"))
        term = problem.samples(5, 6, 0).terms[-1]
        assert term.y.shape[1] == rows
        assert np.allclose(term.residual(_jet(term)), _by_hand(rows))
    with pytest.raises(
        ValueError, match="takes 'w'; the unknown functions of this problem are u, v"
    ):
        system(sapm.Condition(lambda p, u, w: u.x - w.x, faces=["x+"]))


def _jet(term):
    """u = 2 and u' = 3, v = 5 and v' = 7."""
    n, k = term.x.tangents.shape[:2]
    return Jet(
        jnp.tile(jnp.array([2.0, 5.0]), (n, 1)),
        jnp.tile(jnp.array([3.0, 7.0]), (n, k, 1)),
        term.x.forms,
    )


def _by_hand(rows):
    return [7 * 2, 3 + 25] if rows == 2 else [6]


@dataclass(frozen=True)
class Oblique(OnFaces):
    """u + 2 ∂u/∂x = g: a linear condition with an operator of its own."""

    def operator(self, domain, x):
        return np.ones(len(x)), np.full_like(x, 2.0)


def test_a_linear_condition_with_its_own_operator():
    """It is about u and its derivative, without saying so, and its term is what it states."""
    problem = rod(Oblique(lambda p: 5.0, faces=["x+"]))
    assert Oblique.about == "both" and sapm.Dirichlet.about == "value"
    term = problem.samples(10, 4, 0, 1.0).terms[-1]
    with jax.enable_x64(True):
        u = Jet(jnp.full((1, 1), 2.0), 3 * term.x.tangents, term.x.forms)  # u = 2, u' = 3
        assert np.allclose(term.residual(u), 2 + 2 * 3 - 5)


@dataclass(frozen=True)
class Velocity(OnFaces):
    """∂u/∂t = g on the faces that are named."""

    about: ClassVar[str] = "derivative"

    def operator(self, domain, x):
        return np.zeros(len(x)), np.eye(x.shape[1])[np.zeros(len(x), int)]


def test_a_condition_of_ones_own_gives_the_initial_velocity():
    """No warning says that it is missing. Without it, one does."""

    def string(*conditions):
        start = sapm.Initial(lambda p: jnp.sin(jnp.pi * p.x))
        box = sapm.Box(t=(0, 1), x=(0, 1))
        return sapm.PDE(box, lambda p, u: u.tt - u.xx, [start, sapm.Dirichlet(0.0), *conditions])

    missing = "add sapm.InitialVelocity"
    for condition in (Velocity(0.0, faces=["t-"]), sapm.Neumann(0.0, faces=["t-"])):
        assert missing not in ill_posed(string(condition))
    with pytest.warns(UserWarning, match=missing):
        string()


def test_an_operator_that_would_be_ignored_is_refused():
    with pytest.raises(TypeError, match="got an operator and about='value'"):

        class Ignored(OnFaces):
            about: ClassVar[str] = "value"

            def operator(self, domain, x):
                return np.ones(len(x)), np.zeros_like(x)


class Own(BoundaryCondition):
    """A condition of no kind that a PDE can make a term of."""

    def field_indices(self, fields):
        return (0,)


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: rod(Own()), TypeError, "or of conditions of your own"),
        (sapm.Condition, TypeError, "needs a residual, a function of the point and of u"),
        (lambda: sapm.Condition(lambda p, u: u.x, faces=3), TypeError, "expected a list of names"),
        (lambda: sapm.Condition(lambda p, u: u.x, weight=-1), ValueError, "weight=-1"),
        (lambda: rod(sapm.Condition(lambda p, u: p.x)), ValueError, "uses neither u nor a deriv"),
        (
            lambda: rod(sapm.Condition(lambda p, u: np.exp(float(u.value)))),
            ValueError,
            "uses NumPy or `if`; use jax.numpy",
        ),
        (lambda: rod(sapm.Condition(lambda p, u: u.x, faces=["y+"])), ValueError, "not a face"),
    ],
)
def test_refused(make, error, sentence):
    with pytest.raises(error, match=sentence):
        make()
