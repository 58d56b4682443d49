"""The process of one method on one case: it compiles once, then trains the seeds it is sent.

An error ends the process. Its parent, `sapm.studies.bench.runner`, reads the reason in the log.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from sapm.driver.solve import solve
from sapm.numerics.network import Network
from sapm.results.result import Result
from sapm.scopes import float64
from sapm.studies.bench.cases import WARM_UP_SEED, Case
from sapm.studies.bench.linear import interpolation, polynomial, random_features
from sapm.studies.bench.peers import (
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
from sapm.studies.bench.task import Clock, Outcome, Task, at_the_end
from sapm.training.run import Progress

# learning rates of gradient descent: the middle of those with which the paper's LS is tried
FUNCTION_GD_RATE = 0.1
PDE_GD_RATE = 0.01
WARM_UP_SECONDS = 0.5
MAX_WARM_UPS = 6
_compilation_seconds: list[float] = []  # of every compilation in this process


def _count_compilation(event: str, duration_secs: float, **_) -> None:
    if event.endswith("backend_compile_duration"):
        _compilation_seconds.append(duration_secs)


jax.monitoring.register_event_duration_secs_listener(_count_compilation)


def ours(task: Task, model: str, method: str, options: dict | None = None) -> Trainer:
    """`sapm.solve` with one seed, until the budget is spent.

    "auto" may end by its own rule, the other methods when their loss stagnates. On track A the
    initial weights are the paper's, on track B those that `sapm.solve` chooses.

    Parameters
    ----------
    task : the case
    model, method, options : arguments of `sapm.solve`
    """
    case = task.case
    options = options or {}
    if method != "auto":
        options = {"stall": 0.0} | options

    def measure(result: Result) -> tuple[float, float]:
        return task.measure(
            Network.of(
                [(jnp.asarray(W), jnp.asarray(b)) for W, b in result.seeds[0].weights], task.sigma
            )
        )

    def train(clock: Clock, seed: int, track: str) -> Outcome:
        def keep(state: Progress) -> None:
            def snapshot() -> tuple[float, float]:
                return measure(state.result())

            if clock.snapshots:
                clock.keep(snapshot, state.seconds)
            else:
                clock.start(snapshot)

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


def _gd_rate(task: Task) -> float:
    return PDE_GD_RATE if task.case.is_pde else FUNCTION_GD_RATE


def _deepxde(task: Task) -> Trainer:
    from sapm.studies.bench.deepxde import deepxde

    return deepxde(task)


TRAINERS: dict[str, Callable[[Task], Trainer]] = {
    "auto": lambda task: ours(task, "sapm", "auto"),
    "ls-gd": lambda task: ours(task, "ls", "gd", {"learning_rate": _gd_rate(task)}),
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
    """Train one seed: the content of a cell.

    Parameters
    ----------
    trainer : the method on its case
    track : "A" or "B"
    seed : of the initial weights
    seconds : the budget
    """
    clock = Clock(seconds)
    before = len(_compilation_seconds)
    outcome = trainer(clock, seed, track)
    compilations = len(_compilation_seconds) - before
    trace = clock.trace()
    end, error, true_loss = at_the_end(trace, seconds)
    status = outcome.status
    reason = outcome.reason
    if not (np.isfinite(error) and np.isfinite(true_loss)):
        reason = reason if status == "non-finite" else "the network's values are not finite."
        status = "non-finite"
    return {
        "status": status,
        "reason": reason,
        "seconds": end,
        "error": error,
        "true_loss": true_loss,
        "loss": outcome.loss,
        "compilations": compilations,  # during the training; 0 after the warm-up
        "trace": trace,
    }


def warm_up(trainer: Trainer, track: str, seconds: float) -> float:
    """Train briefly until nothing is compiled any more; returns the seconds that it took.

    Several trainings may be needed: compiling the first part of a method may use up the budget
    before its next part runs. The last training, which compiles nothing, does not count.

    Parameters
    ----------
    trainer : trains the case by the method.
    track : "A" or "B": whose initial weights.
    seconds : the budget of a training.
    """
    total = 0.0
    for _ in range(MAX_WARM_UPS):
        began = time.perf_counter()
        if not train_once(trainer, track, WARM_UP_SEED, seconds)["compilations"]:
            break
        total += time.perf_counter() - began
    return total


@float64
def serve(line: Connection, case: Case, method: str, log: str) -> None:
    """Answer orders (track, seed, seconds) with the content of a cell until the line is closed.

    An order with `WARM_UP_SEED` is answered with the time of compilation.

    Parameters
    ----------
    line : the connection to the parent
    case, method : what to train
    log : the file that standard error is appended to
    """
    for name in ("SIGINT", "SIGHUP"):  # the parent handles them, and ends its workers
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    # the last line of the log is the parent's reason: JAX must not add a remark below the error
    jax.config.update("jax_traceback_filtering", "off")
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), sys.stderr.fileno())
    warnings.simplefilter("ignore")
    trainer = None
    while True:
        try:
            track, seed, seconds = line.recv()
        except EOFError:
            return
        if trainer is None:
            trainer = TRAINERS[method](Task(case))
        if seed == WARM_UP_SEED:
            compile_seconds = warm_up(trainer, track, min(WARM_UP_SECONDS, seconds))
            line.send({"compile_seconds": compile_seconds})
        else:
            line.send(train_once(trainer, track, seed, seconds))
