"""A process for one method on one case: it compiles once, then trains a seed whenever it is told to."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from sapm.attempt import Progress
from sapm.bench.cases import WARM_UP_SEED, Case
from sapm.bench.linear import interpolation, polynomial, random_features
from sapm.bench.peers import (
    Trainer,
    adam_then_lbfgs,
    optimistix_bfgs,
    optimistix_lbfgs,
    optimistix_lm,
    optimistix_lm_cholesky,
    scipy_bfgs,
    scipy_least_squares,
    sklearn_mlp,
)
from sapm.bench.task import Clock, Outcome, Task, at_the_end
from sapm.jet import float64
from sapm.network import Network
from sapm.result import Result
from sapm.solver import solve

GD_RATE = {False: 0.1, True: 0.01}  # for functions, for PDEs: the middle of those that the paper's baseline is tried with
WARM_UP_SECONDS, WARM_UPS = 0.5, 6
_compiled: list[float] = []  # the time of every compilation in this process


def _note(event: str, duration_secs: float, **_) -> None:
    if event.endswith("backend_compile_duration"):
        _compiled.append(duration_secs)


jax.monitoring.register_event_duration_secs_listener(_note)


def ours(task: Task, model: str, method: str, more: dict | None = None) -> Trainer:
    """`sapm.solve` with one seed, until the time is up; "auto" may end by its own rule, the others if their loss stands still.

    Track A gives it the paper's weights, track B leaves the choice to it.
    """
    case = task.case
    options = more or {}
    if method != "auto":
        options = {"stall": 0.0} | options

    def measure(result: Result) -> tuple[float, float]:
        return task.measure(Network.of([(jnp.asarray(W), jnp.asarray(b)) for W, b in result.seeds[0].weights], task.sigma))

    def train(clock: Clock, seed: int, track: str) -> Outcome:
        def keep(state: Progress) -> None:
            # A result is made only when the snapshot is measured; until then it costs nothing.
            shown = lambda: measure(state.result())  # noqa: E731
            clock.keep(shown, state.seconds) if clock.kept else clock.start(shown)

        result = solve(
            task.problem,
            case.depth,
            case.width,
            case.activation,
            points=case.points,
            boundary_points=case.boundary_points,
            test_points=case.test_points,
            model=model,
            method=method,
            max_iter=10**9,
            max_seconds=clock.budget,
            seeds=[seed],
            init="paper" if track == "A" else None,
            options=options,
            progress=False,
            on_record=keep,
        )
        run = result.run
        clock.keep(lambda: measure(result), float(run.final("seconds")[0]))
        return Outcome(run.status[0], run.reason[0], float(run.final("loss")[0]))

    return train


def _deepxde(task: Task) -> Trainer:
    from sapm.bench.deepxde import deepxde

    return deepxde(task)


TRAINERS: dict[str, Callable[[Task], Trainer]] = {
    "auto": lambda task: ours(task, "sapm", "auto"),
    "ls-gd": lambda task: ours(task, "ls", "gd", {"learning_rate": GD_RATE[task.case.is_pde]}),
    "ls-adam": lambda task: ours(task, "ls", "adam"),
    "ls-lbfgs": lambda task: ours(task, "ls", "lbfgs"),
    "ls-gauss-newton": lambda task: ours(task, "ls", "gauss-newton"),
    "ls-straight": lambda task: ours(task, "ls", "gauss-newton", {"bend": False}),
    "pm-alternating": lambda task: ours(task, "pm", "alternating"),
    "pm-gauss-newton": lambda task: ours(task, "pm", "gauss-newton"),
    "sapm-alternating": lambda task: ours(task, "sapm", "alternating"),
    "sapm-gauss-newton": lambda task: ours(task, "sapm", "gauss-newton"),
    "optimistix-lm": optimistix_lm,
    "optimistix-lm-cholesky": optimistix_lm_cholesky,
    "optimistix-bfgs": optimistix_bfgs,
    "optimistix-lbfgs": optimistix_lbfgs,
    "scipy-least-squares": scipy_least_squares,
    "scipy-bfgs": scipy_bfgs,
    "adam-lbfgs": adam_then_lbfgs,
    "deepxde": _deepxde,
    "sklearn-mlp": sklearn_mlp,
    "features-width": lambda task: random_features(task, task.case.width),
    "features-many": lambda task: random_features(task, task.case.features),
    "constant": partial(polynomial, degree=0),
    "affine": partial(polynomial, degree=1),
    "interpolation": interpolation,
}


def train_once(trainer: Trainer, track: str, seed: int, seconds: float) -> dict:
    """One training as a cell has it."""
    clock, before = Clock(seconds), len(_compiled)
    outcome = trainer(clock, seed, track)
    compilations = len(_compiled) - before
    trace = clock.trace()
    end, error, true = at_the_end(trace, seconds)
    status, reason = outcome.status, outcome.reason
    if not (np.isfinite(error) and np.isfinite(true)):
        status, reason = "non-finite", reason if status == "non-finite" else "the network's values are not finite."
    return {
        "status": status,
        "reason": reason,
        "seconds": end,
        "error": error,
        "true_loss": true,
        "loss": outcome.loss,
        "compilations": compilations,  # within the clock: none, after the warm-up
        "trace": trace,
    }


def warm_up(trainer: Trainer, track: str, seconds: float) -> float:
    """Short trainings until one compiles nothing: compiling a first part may use up the budget before the next one is met.

    The seconds that those took which did compile.
    """
    total = 0.0
    for _ in range(WARM_UPS):
        began = time.perf_counter()
        if not train_once(trainer, track, WARM_UP_SEED, seconds)["compilations"]:
            break
        total += time.perf_counter() - began
    return total


@float64
def serve(line: Connection, case: Case, method: str, log: str) -> None:
    """Answer orders (track, seed, seconds) until the line is closed. The seed of the warm-up means: compile, and say how long."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that gives the orders
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), sys.stderr.fileno())
    warnings.simplefilter("ignore")
    trainer = None
    while True:
        try:
            track, seed, seconds = line.recv()
        except EOFError:
            return
        try:
            if trainer is None:
                trainer = TRAINERS[method](Task(case))
            if seed == WARM_UP_SEED:
                line.send({"compile_seconds": warm_up(trainer, track, min(WARM_UP_SECONDS, seconds))})
            else:
                line.send(train_once(trainer, track, seed, seconds))
        except Exception as error:
            traceback.print_exc()
            said = str(error).splitlines() or [""]
            line.send({"status": "failed", "reason": f"{type(error).__name__}: {said[0]}"})
