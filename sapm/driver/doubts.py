"""Advice on a problem and the settings it is trained with, as warnings when training starts."""

from __future__ import annotations

from sapm.errors import Advice, AdviceKind, warn
from sapm.numerics.activations import Activation
from sapm.problem.advice import advice
from sapm.problem.pde import PDE
from sapm.problem.samples import Problem
from sapm.training.devices import first_process
from sapm.training.plan import Plan


def warn_of_doubts(
    problem: Problem, sigma: Activation, plan: Plan, model: str
) -> tuple[Advice, ...]:
    """Warn of all advice, and return it with that of the problem itself (`PDE.ill_posed`).

    It is repeated wherever the run is shown.
    """
    items = doubts(problem, sigma, plan, model)
    for item in items if first_process() else ():
        warn(item.sentence)
    if isinstance(problem, PDE) and problem.ill_posed:
        items = [Advice(AdviceKind.STATEMENT, problem.ill_posed), *items]
    return tuple(items)


def doubts(problem: Problem, sigma: Activation, plan: Plan, model: str) -> list[Advice]:
    """All advice on the settings and on the problem."""
    items = []
    if model == "pm" and plan.true_loss_from_start and plan.why and not plan.from_network:
        joint = isinstance(problem, PDE) and bool(problem.joint)
        hint = "" if joint else "; for PM's own loss give method='gauss-newton' or 'alternating'"
        sentence = f"model='pm' with method='auto' is trained on the true loss{hint}."
        items.append(Advice(AdviceKind.STATEMENT, sentence))
    if isinstance(problem, PDE):
        items += advice(problem, sigma)
    return items
