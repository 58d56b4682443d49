"""sapm: train deep networks on least-squares problems by self-adaptive weighted auxiliary
variables.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from sapm import scopes as scopes  # it notes forks from now on

__version__ = "0.2.0"

_HOME = {
    "Box": "problem.domain",
    "Ball": "problem.domain",
    "Function": "problem.data",
    "Regression": "problem.data",
    "PDE": "problem.pde",
    "Condition": "problem.conditions",
    "Initial": "problem.conditions",
    "InitialVelocity": "problem.conditions",
    "Inflow": "problem.conditions",
    "Dirichlet": "problem.conditions",
    "Neumann": "problem.conditions",
    "Robin": "problem.conditions",
    "Periodic": "problem.conditions",
    "Observed": "problem.conditions",
    "Fourier": "problem.inputs",
    "solve": "driver.solve",
    "resume": "driver.solve",
    "refine": "driver.refine",
    "Refined": "driver.refine",
    "load": "results.result",
    "Result": "results.result",
    "Solution": "results.solution",
    "ErrorEstimate": "results.estimates",
    "Certificate": "objective.weights",
    "Progress": "training.run",
    "Status": "training.run",
    "SAPMRegressor": "estimators",
    "Method": "methods.method",
    "GaussNewton": "methods.method",
    "Alternating": "methods.method",
    "GradientDescent": "methods.method",
    "Adam": "methods.method",
    "LBFGS": "methods.method",
    "Activation": "numerics.activations",
    "Layer": "numerics.layers",
    "Loss": "objective.losses",
    "Operator": "objective.operators",
}

if TYPE_CHECKING:
    from sapm.driver.refine import Refined as Refined
    from sapm.driver.refine import refine as refine
    from sapm.driver.solve import resume as resume
    from sapm.driver.solve import solve as solve
    from sapm.estimators import SAPMRegressor as SAPMRegressor
    from sapm.methods.method import LBFGS as LBFGS
    from sapm.methods.method import Adam as Adam
    from sapm.methods.method import Alternating as Alternating
    from sapm.methods.method import GaussNewton as GaussNewton
    from sapm.methods.method import GradientDescent as GradientDescent
    from sapm.methods.method import Method as Method
    from sapm.numerics.activations import Activation as Activation
    from sapm.numerics.layers import Layer as Layer
    from sapm.objective.losses import Loss as Loss
    from sapm.objective.operators import Operator as Operator
    from sapm.objective.weights import Certificate as Certificate
    from sapm.problem.conditions import Condition as Condition
    from sapm.problem.conditions import Dirichlet as Dirichlet
    from sapm.problem.conditions import Inflow as Inflow
    from sapm.problem.conditions import Initial as Initial
    from sapm.problem.conditions import InitialVelocity as InitialVelocity
    from sapm.problem.conditions import Neumann as Neumann
    from sapm.problem.conditions import Observed as Observed
    from sapm.problem.conditions import Periodic as Periodic
    from sapm.problem.conditions import Robin as Robin
    from sapm.problem.data import Function as Function
    from sapm.problem.data import Regression as Regression
    from sapm.problem.domain import Ball as Ball
    from sapm.problem.domain import Box as Box
    from sapm.problem.inputs import Fourier as Fourier
    from sapm.problem.pde import PDE as PDE
    from sapm.results.estimates import ErrorEstimate as ErrorEstimate
    from sapm.results.result import Result as Result
    from sapm.results.result import load as load
    from sapm.results.solution import Solution as Solution
    from sapm.training.run import Progress as Progress
    from sapm.training.run import Status as Status


def __getattr__(name: str):
    """Public names are loaded when first used, so that `import sapm` is quick."""
    if name not in _HOME:
        raise AttributeError(
            f"module 'sapm' has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )
    return getattr(import_module(f"sapm.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
