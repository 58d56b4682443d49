"""Bad input is refused at the door, before anything is compiled, with what was given, what is
wanted and the fix.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import curve, transport, wave
from scipy.sparse import coo_array, csr_matrix
from tables import all_refused

import sapm
from sapm.driver import settings
from sapm.problem.equation import SOLUTION_ATTRIBUTES
from sapm.training import seeds as seeding

X = np.linspace(-1, 1, 10)
BOX = sapm.Box(t=(0, 1), x=(-1, 1))
START = [sapm.Initial(lambda p: p.x), sapm.Inflow(lambda p: p.x)]


STILL = [sapm.Initial(lambda p: p.x), sapm.Dirichlet(lambda p: p.x)]


def diffusion():
    return pde(lambda p, u: u.t - u.xx, STILL)


def spoilt(value):
    y = X.copy()
    y[3] = value
    return y


def pde(residual=lambda p, u: u.t - u.x, conditions=None, **more):
    return sapm.PDE(BOX, residual, START if conditions is None else conditions, **more)


XS = [0.0, 0.5, 1.0]


class Tensor:
    """What torch does with a tensor whose gradients are recorded."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    def detach(self):
        return self


def solve(**settings):
    return sapm.solve(curve(), **settings)


def twice(first, second, residual=lambda p, u: u.t - u.xx):
    return pde(residual, [sapm.Initial(lambda p: p.x), first, second])


def named(*names):
    """A system of two functions with these names: "u", "v"."""
    first, second = names
    residual = f"lambda p, {first}, {second}: ({first}.t - {second}.x, {second}.t - {first}.x)"
    return pde(eval(residual), [sapm.Initial((0, 0))])


def nested(residual):
    """A problem in which one coordinate is named like two others, one after the other."""
    sides = {"a": (0, 1), "ab": (0, 1), "b": (0, 1)}
    return sapm.PDE(sapm.Box(**sides), residual, [sapm.Dirichlet(0)])


SPARSE = csr_matrix(np.eye(2))
MASKED = np.ma.masked_array([[0.1], [0.2]], mask=[[0], [1]])
SPARSE_WORDS = "got a sparse array, expected a dense one; use its .toarray"

CASES = {
    # names
    "a coordinate self": (lambda: sapm.Box(self=(0, 1)), ValueError, "'self' cannot name a coord"),
    "of a ball": (
        lambda: sapm.Ball(2, names=("x", "self")),
        ValueError,
        "'self' cannot name a coordinate; use a plain word such as t, x, y",
    ),
    "a residual of a class": (
        lambda: pde(lambda self, p, u: u.t - u.x),
        TypeError,
        r"residual takes \(self, p, u\), .* give the method of an object",
    ),
    "a function of every solution": (
        lambda: named("sigma", "v"),
        ValueError,
        "a function named 'sigma', which is an attribute of every solution .* rename it",
    ),
    "a hidden function": (lambda: named("u", "_v"), ValueError, "a function named '_v'"),
    **{
        f"a parameter {name}": (
            lambda name=name: pde(lambda p, u: u.t - p.nu * u.xx, STILL, parameters={name: 1.0}),
            ValueError,
            f"parameters has the name '{name}'; use a plain word that is no coordinate, and not",
        )
        for name in ("self", "vector", "__init__", "_give", "class")
    },
    "two readings": (
        lambda: nested(lambda p, u: u.ab - u.value),
        ValueError,
        r"u.ab: got two readings, d\('ab'\) and d\('a', 'b'\), expected one; write .* u.d\('ab'\)",
    ),
    "two readings of three": (
        lambda: nested(lambda p, u: u.abb),
        ValueError,
        r"u.abb: got two readings, d\('ab', 'b'\) and d\('a', 'b', 'b'\)",
    ),
    # numbers
    "a huge guess": (
        lambda: pde(lambda p, u: u.t - p.nu * u.xx, STILL, parameters={"nu": 1e60}),
        ValueError,
        "parameters has nu=1e.60; its first guess must be a finite number, 0 or between 1e-50 and 1e.50",
    ),
    "sparse X": (lambda: sapm.Regression(SPARSE, XS[:2]), TypeError, f"X: {SPARSE_WORDS}"),
    "sparse Y": (lambda: sapm.Regression(XS[:2], coo_array(SPARSE)), TypeError, "Y: got a sparse"),
    "sparse weights": (
        lambda: sapm.Regression(XS[:2], XS[:2], weights=SPARSE),
        TypeError,
        "weights: got a sparse",
    ),
    "sparse points": (
        lambda: sapm.solve(transport(), points=SPARSE),
        TypeError,
        f"points: {SPARSE_WORDS}",
    ),
    "sparse measurements": (
        lambda: pde(conditions=[*START, sapm.Observed(SPARSE, [1, 2])]),
        TypeError,
        f"x of Observed: {SPARSE_WORDS}",
    ),
    "sparse data to fit": (
        lambda: sapm.SAPMRegressor().fit(SPARSE, XS[:2]),
        TypeError,
        f"X: {SPARSE_WORDS}",
    ),
    **{
        f"{kind} to fit": (
            lambda data=data: sapm.SAPMRegressor().fit(np.array(data)[:, None], XS[:2]),
            TypeError,
            "X: got array.*, expected real numbers; convert words and times first",
        )
        for kind, data in {
            "dates": np.array(["2020-01-01", "2021-01-01"], "M8[D]"),
            "words": ["1", "2"],
            "objects": np.array([1, "2"], object),
        }.items()
    },
    "a tensor with gradients": (
        lambda: sapm.Regression(Tensor(), XS),
        TypeError,
        "X must hold real numbers .* Give X.detach",
    ),
    "a key of JAX": (
        lambda: solve(key=jax.random.key(0)),
        TypeError,
        "key: got Array.*, expected a whole number, .* give one such as key=0",
    ),
    "a key of JAX for seeds": (lambda: solve(seeds=jax.random.key(0)), TypeError, "seeds=Array"),
    "a generator for a key": (
        lambda: solve(key=np.random.default_rng(0)),
        TypeError,
        r"key: got Generator\(PCG64\), expected a whole number",
    ),
    # conditions that contradict each other
    "two values on a face": (
        lambda: twice(sapm.Dirichlet(0), sapm.Dirichlet(1, faces=["x-"])),
        ValueError,
        r"conflicting conditions on face x-: at \(.*, x=-1\) Dirichlet gives 0 and Dirichlet gives 1; leave",
    ),
    "two starts": (
        lambda: twice(sapm.Dirichlet(0), sapm.Dirichlet(lambda p: p.x + 1, faces=["t-"])),
        ValueError,
        r"on face t-: .* Initial gives .* and Dirichlet",
    ),
    "two slopes": (
        lambda: twice(sapm.Neumann(0), sapm.Neumann(lambda p: p.t, faces=["x+"])),
        ValueError,
        r"Neumann gives 0 and Neumann gives 0\.",
    ),
    "a word for a datum": (
        lambda: sapm.Dirichlet("zero"),
        TypeError,
        "the datum of Dirichlet is 'zero'; give a number or a function of one point",
    ),
    "no number": (
        lambda: sapm.Dirichlet(np.nan),
        TypeError,
        "the datum of Dirichlet is nan; give a number or a function of one point",
    ),
    # settings that are not there
    "a seed": (
        lambda: solve(seed=42),
        TypeError,
        r"no setting 'seed'. One seed is seeds=\[42\]",
    ),
    "what is not there": (
        lambda: sapm.resume("a", hidden=3),
        TypeError,
        "sapm.resume has no setting 'hidden'.$",
    ),
    "of an estimator": (
        lambda: sapm.SAPMRegressor(n_layers=3),
        TypeError,
        "has no setting 'n_layers'. It is called 'depth'",
    ),
    "a learning rate": (
        lambda: solve(lr=0.1),
        TypeError,
        r"sapm.solve has no setting 'lr'. No learning rate has to be chosen",
    ),
    "a misspelt setting": (
        lambda: solve(widht=3),
        TypeError,
        r"sapm.solve has no setting 'widht'. Did you mean 'width'\?",
    ),
    # domains
    "box without coordinates": (
        sapm.Box,
        ValueError,
        r"no coordinates; name each with its lower and upper end",
    ),
    "box upside down": (
        lambda: sapm.Box(x=(1, -1)),
        ValueError,
        r"x=\(1, -1\), expected finite numbers lower < upper; give x=\(lower, upper\)",
    ),
    "box with one end": (
        lambda: sapm.Box(x=3),
        TypeError,
        r"x=3, expected finite numbers lower < upper; give x=\(lower, upper\)",
    ),
    "box without end": (lambda: sapm.Box(x=(0, np.inf)), ValueError, r"x=\(0, inf\)"),
    "box with a taken name": (
        lambda: sapm.Box(value=(0, 1)),
        ValueError,
        "'value' cannot name a coordinate; use a plain word",
    ),
    "ball of no dimension": (
        lambda: sapm.Ball(0),
        ValueError,
        "dimension 0; wanted a whole number, at least 1",
    ),
    "ball with a hole": (
        lambda: sapm.Ball(2, radius=-1),
        ValueError,
        "radius -1; wanted a positive, finite number",
    ),
    "not a domain": (
        lambda: sapm.Function([0, 1], lambda p: p.x),
        TypeError,
        r"is not a domain; use sapm.Box",
    ),
    # data
    "lengths differ": (
        lambda: sapm.Regression(X, X[:5]),
        ValueError,
        "X has 10 samples and Y has 5; they must be equal",
    ),
    "NaN": (
        lambda: sapm.Regression(X, spoilt(np.nan)),
        ValueError,
        "Y has nan in row 3, column 0; all entries must be finite",
    ),
    "infinite": (lambda: sapm.Regression(spoilt(np.inf), X), ValueError, "X has inf in row 3"),
    "empty": (
        lambda: sapm.Regression(np.zeros((0, 2)), []),
        ValueError,
        r"X has shape \(0, 2\); give one row per sample",
    ),
    "three axes": (
        lambda: sapm.Regression(np.zeros((2, 2, 2)), X[:2]),
        ValueError,
        r"X has shape \(2, 2, 2\)",
    ),
    "words": (lambda: sapm.Regression(["a", "b"], [1, 2]), TypeError, "X must hold real numbers"),
    "complex": (lambda: sapm.Regression(X, X * 1j), TypeError, "Y must hold real numbers"),
    "test with other columns": (
        lambda: sapm.Regression(X, X, test=(np.ones((3, 2)), [1, 2, 3])),
        ValueError,
        "test X has 2 columns",
    ),
    "validation not a pair": (
        lambda: sapm.Regression(X, X, validation=X),
        TypeError,
        r"validation must be a pair \(X, Y\)",
    ),
    "negative weights": (
        lambda: sapm.Regression(X, X, weights=-np.ones(10)),
        ValueError,
        "weights must be 10 numbers, none negative",
    ),
    "too many names": (
        lambda: sapm.Regression(X, X, names=["a", "b"]),
        ValueError,
        "must be 1 different names",
    ),
    # functions
    "not a function": (
        lambda: sapm.Function(BOX, 3.0),
        TypeError,
        "f is 3.0; give a function of one point",
    ),
    "function of an unknown": (
        lambda: sapm.Function(BOX, lambda p: p.y),
        ValueError,
        "p.y is not a coordinate; this domain has t, x",
    ),
    "returns nothing": (
        lambda: sapm.Function(BOX, lambda p: None),
        TypeError,
        "f returned None; .* a `return` missing",
    ),
    "returns a matrix": (
        lambda: sapm.Function(BOX, lambda p: jnp.ones((2, 2))),
        ValueError,
        r"f returned shape \(2, 2\)",
    ),
    "returns complex": (
        lambda: sapm.Function(BOX, lambda p: 1j * p.x),
        TypeError,
        "f returned complex numbers",
    ),
    "not finite": (
        lambda: sapm.Function(BOX, lambda p: p.x / 0),
        ValueError,
        r"f is not finite at \(t=.*, x=.*\)",
    ),
    # equations
    "unknown coordinate": (
        lambda: pde(lambda p, u: u.t - p.y * u.x),
        ValueError,
        "p.y is not a coordinate",
    ),
    "unknown derivative": (
        lambda: pde(lambda p, u: u.t - u.vlaue),
        ValueError,
        "u.vlaue: got 'vlaue', expected value or a derivative .* Did you mean 'value'",
    ),
    "unknown direction": (
        lambda: pde(lambda p, u: u.d("z")),
        ValueError,
        "a derivative along 'z'; the coordinates are t, x",
    ),
    "a function of x": (
        lambda: pde(conditions=[sapm.Initial(jnp.sin)]),
        ValueError,
        "called with a point p, .* write p.t, p.x",
    ),
    "NumPy of x": (
        lambda: pde(conditions=[sapm.Initial(np.sin)]),
        ValueError,
        "called with a point p, not with a number",
    ),
    "a sum with x": (
        lambda: pde(conditions=[sapm.Initial(lambda x: 1 + x)]),
        ValueError,
        "called with a point p, not with a",
    ),
    "a popular activation": (
        lambda: solve(activation="gelu"),
        ValueError,
        "or give a JAX function: jax.nn.gelu.",
    ),
    "a misspelt face": (
        lambda: sapm.Dirichlet(0, face=["x-"]),
        TypeError,
        "sapm.Dirichlet has no setting 'face'. Did you mean 'faces'",
    ),
    "conditions left out": (
        lambda: sapm.PDE(BOX, lambda p, u: u.t),
        TypeError,
        "sapm.PDE: conditions missing; write domain=…, residual=…",
    ),
    "another's option": (
        lambda: solve(method="adam", options={"lr": 1}),
        ValueError,
        "options has 'lr', .* Did you mean 'learning_rate'",
    ),
    "a derivative of a derivative": (
        lambda: pde(lambda p, u: u.t - u.x.x),
        ValueError,
        r"write a second derivative as u.xx or u.d\(",
    ),
    "another name": (
        lambda: sapm.PDE(sapm.Ball(2), lambda p, u: u.xx, [sapm.Dirichlet(0)]),
        ValueError,
        r'For other coordinates, give the domain names=\("x", "y"\).$',
    ),
    "two directions": (
        lambda: pde(lambda p, u: u.d("xx")),
        ValueError,
        r"name them one by one: d\('x', 'x'\)",
    ),
    "unnamed sides": (
        lambda: sapm.Box((0, 1), (0, 1)),
        TypeError,
        r"Box got \(0, 1\) without a name",
    ),
    "no derivative": (lambda: pde(lambda p, u: p.x), ValueError, "uses no derivative of u"),
    "coefficient zero": (lambda: pde(lambda p, u: 0 * u.x), ValueError, "does not depend on u"),
    "only the value": (
        lambda: pde(lambda p, u: u.value - p.x),
        ValueError,
        "uses no derivative of u",
    ),
    "nonlinear by branches": (
        lambda: pde(lambda p, u: u.t + (u.x**2 if p.x > 0 else u.x), STILL),
        ValueError,
        "contains a nonlinear function of u.x, and NumPy or `if`; a nonlinear one needs jax.numpy and jnp.where",
    ),
    "inflow of second order": (
        lambda: pde(lambda p, u: u.t - u.xx),
        ValueError,
        "Inflow follows .* contains u.xx; use Dirichlet",
    ),
    "inflow of a product": (
        lambda: pde(lambda p, u: u.t + u.value * u.x),
        ValueError,
        "the residual contains u.(x·u.value|value·u.x); use Dirichlet with the faces named",
    ),
    "residual in words": (
        lambda: pde("u.t - u.xx"),
        TypeError,
        "residual is 'u.t - u.xx'; give a function of the point and of u",
    ),
    "the point last": (
        lambda: pde(lambda u, p: u.t - u.x),
        TypeError,
        r"takes \(u, p\); it must take the point",
    ),
    "a problem by its name": (
        lambda: sapm.solve("heat_1d"),
        TypeError,
        "on the command line: sapm run heat_1d",
    ),
    "coordinates one by one": (
        lambda: pde(lambda t, x, u: u.t - u.x),
        TypeError,
        r"takes \(t, x, u\); it must take the point, which has the coordinates \(p.t, p.x\), and then",
    ),
    "two equations": (
        lambda: pde(lambda p, u: (u.t, u.x)),
        ValueError,
        "the residual contains 2 equations; use Dirichlet",
    ),
    "infinite coefficient": (
        lambda: pde(lambda p, u: u.t + u.x / (p.x - p.x)),
        ValueError,
        "the residual is not finite at",
    ),
    # conditions
    "no conditions": (
        lambda: pde(conditions=[]),
        ValueError,
        "conditions is empty, so the solution is not determined",
    ),
    "not conditions": (
        lambda: pde(conditions=[wave]),
        TypeError,
        "must be a list of sapm.Initial, sapm.InitialVelocity, sapm.Inflow, sapm.Dirichlet, sapm.Neumann, sapm.Robin, "
        "sapm.Periodic, sapm.Observed or sapm.Condition",
    ),
    "initial without time": (
        lambda: sapm.PDE(sapm.Box(x=(0, 1)), lambda p, u: u.x, [sapm.Initial(lambda p: 0.0)]),
        ValueError,
        "Initial: got a domain with x, expected a coordinate named t",
    ),
    "unknown face": (
        lambda: pde(conditions=[sapm.Dirichlet(wave, faces=["x"])]),
        ValueError,
        "'x' is not a face; .* t-, t\\+, x-, x\\+",
    ),
    "no face": (
        lambda: sapm.Neumann(wave, faces=[]),
        ValueError,
        "Neumann: got faces=.*name at least one",
    ),
    "coefficient of words": (
        lambda: sapm.Robin("one", 2, wave),
        ValueError,
        "a='one' of Robin must be a finite number",
    ),
    "velocity without time": (
        lambda: sapm.PDE(
            sapm.Box(x=(0, 1)), lambda p, u: u.xx, [sapm.InitialVelocity(lambda p: 0.0)]
        ),
        ValueError,
        "InitialVelocity: got a domain with x, expected a coordinate named t",
    ),
    "off the boundary": (
        lambda: pde(conditions=[sapm.Dirichlet(wave, points=[[0.5, 0.5]])]),
        ValueError,
        r"a point off the boundary: \(t=0.5, x=0.5\); its points must lie on a face",
    ),
    "on another face": (
        lambda: pde(conditions=[sapm.Initial(wave, points=[[1, 0.5]])]),
        ValueError,
        r"a point on face 't\+'",
    ),
    "weight zero": (
        lambda: sapm.Inflow(wave, weight=0),
        ValueError,
        "weight=0 of Inflow must be a positive, finite number",
    ),
    "datum of two": (
        lambda: pde(conditions=[sapm.Initial(lambda p: [1, 2])]),
        ValueError,
        r"datum of Initial returned shape \(2,\)",
    ),
    "no inflow": (
        lambda: sapm.PDE(
            sapm.Box(t=(0, 1), x=(0, 1)), lambda p, u: u.t, [sapm.Initial(wave), sapm.Inflow(wave)]
        ),
        ValueError,
        "Inflow: got only faces without entering characteristics",
    ),
    # settings
    "one step length for sweeps of second order": (
        lambda: sapm.solve(
            diffusion(), method="alternating", points=5, boundary_points=5, options={"shared": True}
        ),
        ValueError,
        "shared=True is for value terms and first-order linear equations without ψ itself; leave it out",
    ),
    "straight pieces": (
        lambda: sapm.solve(diffusion(), activation="relu"),
        ValueError,
        "'relu' has second derivative 0 almost everywhere, so it cannot solve an equation of second order; use 'sin' or 'tanh'",
    ),
    "not a problem": (
        lambda: sapm.solve(lambda p, u: u.x),
        TypeError,
        "problem: got .*, expected a sapm.PDE",
    ),
    "depth 1": (lambda: solve(depth=1), ValueError, "depth=1 is too small; give 2 or more"),
    "depth of words": (lambda: solve(depth="six"), TypeError, "depth='six' is not a whole number"),
    "half a unit": (lambda: solve(width=2.5), TypeError, "width=2.5 is not a whole number"),
    "wrong widths": (
        lambda: solve(depth=4, width=[3, 3]),
        ValueError,
        "got 2 numbers, .*, expected 3, the hidden layers of depth=4",
    ),
    "unknown activation": (
        lambda: solve(activation="tahn"),
        ValueError,
        "activation='tahn' is not known; .* Did you mean 'tanh'",
    ),
    "unknown model": (
        lambda: solve(model="spam"),
        ValueError,
        "model='spam' is not known; .* Did you mean 'sapm'",
    ),
    "unknown method": (lambda: solve(method="alternate"), ValueError, "Did you mean 'alternating'"),
    "unknown algebra": (
        lambda: solve(method="gauss-newton", options={"algebra": "dul"}),
        ValueError,
        "Did you mean 'dual'",
    ),
    "ls has no layers to alternate": (
        lambda: solve(model="ls", method="alternating"),
        ValueError,
        "use 'gauss-newton', 'lbfgs', 'adam' or 'gd'",
    ),
    "gd is for ls": (
        lambda: solve(model="pm", method="gd"),
        ValueError,
        "for model='pm' use 'gauss-newton', 'alternating'",
    ),
    "half a precision": (
        lambda: solve(method="alternating", options={"precision": "half"}),
        ValueError,
        "precision='half' is not known; use one of double, mixed",
    ),
    "mixed chunks": (
        lambda: sapm.solve(
            sapm.Regression(XS, XS),
            method="alternating",
            options={"precision": "mixed", "chunk": 2},
        ),
        ValueError,
        "precision='mixed' and chunk, which works in float64",
    ),
    "unknown option": (
        lambda: solve(options={"patiense": 3}),
        ValueError,
        "'patiense', which .* Did you mean 'patience'",
    ),
    "options not named": (lambda: solve(options=["joint"]), TypeError, "must be a dictionary"),
    "rate for sweeps": (
        lambda: solve(method="alternating", options={"learning_rate": 0.1}),
        ValueError,
        "'learning_rate', which alternating does not know",
    ),
    "negative rate": (
        lambda: solve(model="ls", method="gd", options={"learning_rate": -1}),
        ValueError,
        "learning_rate=-1 must be a positive, finite number",
    ),
    "sweeps' option for auto": (
        lambda: solve(options={"joint": True}),
        ValueError,
        "which gauss-newton .what 'auto' stands for here. does not know",
    ),
    "order without layers": (
        lambda: solve(method="alternating", options={"order": ["W", "b"]}),
        ValueError,
        "must be one of down, up, up-then-down, or a list of pairs such as",
    ),
    "order twice": (
        lambda: solve(method="alternating", order="up", options={"order": "down"}),
        ValueError,
        "order: got 'up' and another one in options",
    ),
    "order and a method object": (
        lambda: solve(method=sapm.Alternating(), order="up"),
        ValueError,
        "order: got 'up' and a method object",
    ),
    "order of another method": (
        lambda: solve(method="lbfgs", order="up"),
        ValueError,
        "order: got 'up' and method='lbfgs', expected method='alternating'",
    ),
    "order as an array": (
        lambda: solve(method="alternating", order=np.array([("W", 1)], object)),
        TypeError,
        "expected down, up, up-then-down, or a list of pairs",
    ),
    "a guard of 1": (
        lambda: solve(method="alternating", options={"guard": 1.0}),
        ValueError,
        "guard: got 1.0, expected a share below 1",
    ),
    "order and joint": (
        lambda: solve(method="alternating", options={"order": [("W", 1)], "joint": True}),
        ValueError,
        "'Wb' is joint",
    ),
    "penalty of nothing": (
        lambda: solve(options={"l2": None}),
        ValueError,
        "l2=None must be a non-negative",
    ),
    "ragged": (
        lambda: sapm.Regression([[1, 2], [3]], [1, 2]),
        TypeError,
        "X must hold real numbers in rows of equal length",
    ),
    "a huge seed": (
        lambda: solve(seeds=[2**40]),
        ValueError,
        r"expected numbers below 2\*\*32",
    ),
    "a huge key": (lambda: solve(key=2**64), ValueError, "is too large"),
    "no points": (
        lambda: sapm.solve(transport(), points=0),
        ValueError,
        "points=0 is too small; give 1 or more",
    ),
    "point outside": (
        lambda: sapm.solve(transport(), points=[[0.5, 3]]),
        ValueError,
        r"outside the domain: \(t=0.5, x=3\)",
    ),
    "too few on the boundary": (
        lambda: sapm.solve(transport(), boundary_points=1),
        ValueError,
        "give 2 or more, one for each condition",
    ),
    "no seeds": (lambda: solve(seeds=[]), ValueError, "seeds: got none"),
    "a seed twice": (lambda: solve(seeds=[1, 1]), ValueError, "expected different numbers"),
    "negative seeds": (lambda: solve(seeds=-3), ValueError, "seeds=-3 is too small"),
    "unknown init": (lambda: solve(init="xaviar"), ValueError, "Did you mean 'xavier'"),
    "unknown start": (
        lambda: solve(start="random"),
        ValueError,
        "start='random' is not known; use one of uniform, forward, noise",
    ),
    "looks linear": (
        lambda: solve(init="looks-linear"),
        ValueError,
        "needs activation='relu', not 'tanh'",
    ),
    "negative mu": (
        lambda: sapm.solve(transport(), mu=-1),
        ValueError,
        "mu=-1 must be a positive, finite number",
    ),
    "alpha of words": (
        lambda: solve(alpha="big"),
        ValueError,
        "alpha='big' must be a positive, finite number, or 6 of them",
    ),
    "beta too long": (lambda: solve(depth=3, beta=[1, 1, 1]), ValueError, "or 2 of them"),
    "no time": (
        lambda: solve(max_seconds=0),
        ValueError,
        "max_seconds=0 must be a positive, finite number",
    ),
    "negative budget": (lambda: solve(max_iter=-1), ValueError, "max_iter=-1 is too small"),
    "callback": (lambda: solve(on_record=3), TypeError, "on_record: got 3, expected a function"),
    "resume what": (
        lambda: sapm.resume("nowhere"),
        FileNotFoundError,
        "nowhere does not exist; give the folder of a run",
    ),
    "public name": (lambda: sapm.sovle, AttributeError, "module 'sapm' has no attribute 'sovle'"),
}


def test_bad_input_is_refused_before_anything_is_compiled():
    before = seeding.chunk._cache_size()
    all_refused(CASES)
    assert seeding.chunk._cache_size() == before


@pytest.fixture(scope="module")
def u():
    return sapm.solve(
        transport(),
        depth=2,
        width=3,
        points=10,
        boundary_points=4,
        seeds=1,
        max_iter=0,
        progress=False,
    )


RESULT_CASES = [
    (lambda r: r.best(t=0.5, x=MASKED), ValueError, "x has a masked entry in row 1; .* remove or"),
    (lambda r: r.best(np.ma.hstack([MASKED] * 2)), ValueError, "points has a masked entry"),
    (lambda r: r.best(t=0.5, x=SPARSE), TypeError, f"x: {SPARSE_WORDS}"),
    (lambda r: r.best(SPARSE), TypeError, f"points: {SPARSE_WORDS}"),
    *(
        (lambda r, x=x: r.best(t=0.5, x=x), TypeError, "x=.* must hold real numbers")
        for x in (1j, jnp.array(1j), np.datetime64("2020-01-01"), "1", [1, "2"], 10**400)
    ),
    (lambda r: r.best(t=0.5, x=jax.random.key(0)), TypeError, "x=Array.* must hold real numbers"),
    (
        lambda r: r.best(t=jnp.ones(2), x=np.array(["1", "2"])),
        TypeError,
        "x=array.* must hold real numbers",
    ),
    (lambda r: r.best(t=0.5), TypeError, "x is missing; give all coordinates: t=…, x=…"),
    (lambda r: r.best(t=0.5, x=0, z=1), TypeError, "'z' is not a coordinate; give t=…, x=…"),
    (
        lambda r: r.best([[1, 2, 3]]),
        ValueError,
        r"points have shape \(1, 3\); give one row per point with 2 columns",
    ),
    (
        lambda r: r.best(t=[1, 2], x=[1, 2, 3]),
        ValueError,
        r"do not broadcast against each other: t: \(2,\), x: \(3,\)",
    ),
    (lambda r: r.best(t="now", x=0), TypeError, "t='now' must hold real numbers"),
    (lambda r: r.best([[1, 2]], x=3), TypeError, "give either points"),
    (lambda r: r.best.d("y"), ValueError, "'y' is not a coordinate; the coordinates are t, x"),
    (lambda r: r.best.d("tx"), ValueError, r"name them one by one: d\('t', 'x'\)"),
    (
        lambda r: r.best(0.5, 0.5),
        TypeError,
        r"u got 2 arguments without names; write u\(t=…, x=…\)",
    ),
    (
        lambda r: r.report("a.pdf"),
        ValueError,
        "report: got 'a.pdf', expected a name that ends in .html",
    ),
    (lambda r: r.best.d(), ValueError, "needs a coordinate"),
    (lambda r: r.plot("los"), ValueError, "Did you mean 'loss'"),
    (
        lambda r: r.plot("loss", seed=9),
        ValueError,
        "seed: got 9, expected an index from -1 to 0",
    ),
    (lambda r: r.error_estimate(seed=9), ValueError, "seed: got 9, expected an index"),
    (
        lambda r: r.reference_error(5, seed="best"),
        ValueError,
        "seed: got 'best', expected an index",
    ),
    (lambda r: r.reference_error(0), ValueError, "n=0 is too small; give 1 or more"),
    (
        lambda r: r.best.x,
        AttributeError,
        r"a solution has no 'x'. Its derivative is u.d\('x'\), a function too.",
    ),
    (lambda r: r(t=0.5, x=0.0), TypeError, r"call the best one, result\.best"),
]


def test_a_result_refuses_bad_arguments(u):
    all_refused(dict(enumerate(RESULT_CASES)), u)


def test_unusual_arrays_are_read():
    """Types of JAX's own, arrays of JAX as seeds, and derivatives that are named one by one."""
    halves = jnp.array([0.5, 1.0], jnp.bfloat16)
    assert sapm.Regression(halves, [1, 2]).X.tolist() == [[0.5], [1.0]]
    chosen = [jnp.array([3, 4]), np.array([3, 4]), {3, 4}]
    assert all(settings.seeds(value) == (3, 4) for value in chosen)
    assert settings.seeds(np.array(2)) == (0, 1)
    equation = nested(lambda p, u: u.d("ab") + u.d("a", "b") + u.bb).equation
    assert equation.keys == [("ab",), ("a", "b"), ("b", "b")]


def test_every_attribute_of_a_solution_is_known():
    """Functions of a system have other names than these."""
    public = {name for name in dir(sapm.Solution) if not name.startswith("_")}
    public |= {field.name for field in dataclasses.fields(sapm.Solution)}
    assert public == set(SOLUTION_ATTRIBUTES)
