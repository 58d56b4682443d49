"""sapm: train deep networks on least-squares problems by self-adaptive weighted auxiliary variables."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0.dev0"

_HOME = {
    "Box": "domain",
    "Ball": "domain",
    "Function": "regression",
    "Regression": "regression",
    "PDE": "problem",
    "Initial": "conditions",
    "InitialVelocity": "conditions",
    "Inflow": "conditions",
    "Dirichlet": "conditions",
    "Neumann": "conditions",
    "Robin": "conditions",
    "Periodic": "conditions",
    "Observed": "conditions",
    "Fourier": "embedding",
    "solve": "solver",
    "resume": "solver",
    "refine": "refiner",
    "Refined": "refiner",
    "load": "result",
    "Result": "result",
    "Solution": "solution",
    "Certificate": "objective",
    "Progress": "attempt",
    "SAPMRegressor": "estimator",
}

if TYPE_CHECKING:
    from sapm.attempt import Progress as Progress
    from sapm.conditions import Dirichlet as Dirichlet
    from sapm.conditions import Inflow as Inflow
    from sapm.conditions import Initial as Initial
    from sapm.conditions import InitialVelocity as InitialVelocity
    from sapm.conditions import Neumann as Neumann
    from sapm.conditions import Observed as Observed
    from sapm.conditions import Periodic as Periodic
    from sapm.conditions import Robin as Robin
    from sapm.domain import Ball as Ball
    from sapm.domain import Box as Box
    from sapm.embedding import Fourier as Fourier
    from sapm.estimator import SAPMRegressor as SAPMRegressor
    from sapm.objective import Certificate as Certificate
    from sapm.problem import PDE as PDE
    from sapm.refiner import Refined as Refined
    from sapm.refiner import refine as refine
    from sapm.regression import Function as Function
    from sapm.regression import Regression as Regression
    from sapm.result import Result as Result
    from sapm.result import load as load
    from sapm.solution import Solution as Solution
    from sapm.solver import resume as resume
    from sapm.solver import solve as solve


def __getattr__(name: str):
    """Public names are loaded when first used, so that `import sapm` is quick."""
    if name not in _HOME:
        raise AttributeError(f"module 'sapm' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
    return getattr(import_module(f"sapm.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
