"""Numbers far too large, too small or of a wrong kind are refused in a sentence; those of NumPy are
numbers.
"""

import json
from fractions import Fraction

import numpy as np
from problems import curve
from tables import all_refused

import sapm
from sapm.driver.settings import plan
from sapm.results import files

X = np.linspace(-1, 1, 10)


EXTREMES = [
    (
        lambda: sapm.Regression(X * 1e300, X),
        r"X has 1e\+300 as the largest number of column 0; it must be 0 or between",
    ),
    (lambda: sapm.Regression(X, X * 1e-300), "Y has 1e-300 as the largest number"),
    (lambda: sapm.SAPMRegressor().fit(X[:, None], X * 1e200), r"y has 1e\+200"),
    (lambda: sapm.Regression(X, X, weights=np.full(10, 1e-200)), "weights has 1e-200"),
    (lambda: sapm.Regression(X, np.ma.masked_greater(X, 0.5)), "Y has a masked entry in row 7"),
    (
        lambda: sapm.SAPMRegressor().fit(X[:, None], np.ma.masked_greater(X, 0.5)),
        "y has a masked entry in row 7",
    ),
    (lambda: sapm.Robin(0, 0.0, lambda p: 1.0), "Robin got a=0 and b=0"),
    (lambda: sapm.Regression(np.array([1, "2", 3], object), X[:3]), "X must hold real numbers"),
    (lambda: sapm.Regression(X, X, names=["\x00"]), "a name must be printable"),
    (lambda: sapm.Regression(X, X, names="x"), "must be 1 different names"),
    (lambda: sapm.Box(x=(0, 1e300)), "at most 1e\\+50 in size"),
    (lambda: sapm.Box(x=(1e15, 1e15 + 1)), "shift the coordinate"),
    (lambda: sapm.Box(x="01"), "give x=.lower, upper."),
    (lambda: sapm.Ball(10**9), "wanted at most 10000"),
    (lambda: sapm.Ball(2, 10**400), "radius 1000"),
    (lambda: sapm.Function(sapm.Box(x=(0, 1)), lambda p: 1e300), "f is too large at"),
    (lambda: sapm.Function(sapm.Box(x=(0, 1)), lambda p: 10**400), "f returned 1000"),
    (
        lambda: sapm.Dirichlet(lambda p: 0.0, faces=3),
        "Dirichlet: got faces=3, expected a list of names",
    ),
    (
        lambda: sapm.Robin(lambda p, q: 1.0, 1.0, lambda p: 0.0),
        "a of Robin takes .p, q.; it must take one argument",
    ),
    (
        lambda: sapm.solve(curve(), depth=10**9),
        "depth=1000000000 is too large; give 10000 or less",
    ),
    (lambda: sapm.solve(curve(), max_iter=10**400), "max_iter=1000.* is too large"),
    (
        lambda: sapm.solve(curve(), options={"lifted": 10**30}),
        "lifted=1000.* must be a whole number, at least 0 and below",
    ),
    (
        lambda: sapm.solve(curve(), options={"patience": None}),
        "patience=None must be a whole number",
    ),
    (lambda: sapm.solve(curve(), width=10**9), "width=1000000000 is too large"),
    (lambda: sapm.solve(curve(), seeds=10**12), "seeds=1000000000000 is too large"),
    (
        lambda: sapm.solve(curve(), alpha=[[1], [2, 3]]),
        "alpha=.* must be a positive, finite number",
    ),
    (
        lambda: sapm.solve(curve(), max_seconds=1j),
        "max_seconds=1j must be a positive, finite number",
    ),
    (
        lambda: sapm.solve(curve(), activation=np.sum),
        "must be an elementwise JAX function|uses NumPy",
    ),
    (
        lambda: sapm.solve(sapm.Function(sapm.Box(x=(0, 1)), lambda p: p.x), points=10**15),
        "this machine has",
    ),
    (
        lambda: sapm.solve(sapm.Function(sapm.Box(x=(0, 1)), lambda p: p.x), points=1.5),
        "points=1.5 is not a whole number",
    ),
    (
        lambda: sapm.PDE(sapm.Box(x=(0, 1)), lambda p, u: u, sapm.Dirichlet(lambda p: 0.0)),
        "the residual returned u itself",
    ),
    (
        lambda: sapm.PDE(sapm.Box(x=(0, 1)), lambda p, u: u + 1, sapm.Dirichlet(lambda p: 0.0)),
        "write u.value for its value",
    ),
    (
        lambda: sapm.PDE(sapm.Box(x=(0, 1)), lambda p, u: 1e300 * u.x, sapm.Inflow(lambda p: 0.0)),
        "or larger than",
    ),
]


def test_extremes_are_refused():
    kinds = (ValueError, TypeError)
    all_refused({k: (make, kinds, said) for k, (make, said) in enumerate(EXTREMES)})


def test_settings_may_be_of_numpy():
    """And are plain numbers in the configuration, as a file wants them."""
    options = {"damping": Fraction(1, 8), "bend": np.bool_(True), "lifted": np.int64(3)}
    numbers = {
        "width": np.array([4, 5]),
        "seeds": np.arange(2),
        "alpha": np.full(3, 2.0),
        "max_iter": np.int64(7),
        "max_seconds": Fraction(1, 2),
    }
    config = plan(curve(), 3, method="gauss-newton", options=options, **numbers).to_dict()
    assert json.loads(files.to_json(config)) == config
    assert (
        config["width"] == [4, 5]
        and config["seeds"] == [0, 1]
        and config["options"]["damping"] == 0.125
        and config["max_seconds"] == 0.5
    )
