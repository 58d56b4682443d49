"""The bench on equations of second order and nonlinear ones, and DeepXDE in it."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest

from sapm.catalogue import CATALOGUE, TEXTBOOK
from sapm.studies import bench
from sapm.studies.bench import runner
from sapm.studies.bench.cases import CASES, CASES_WITHOUT_PEERS, ENTRIES, select
from sapm.studies.bench.linear import random_features, system
from sapm.studies.bench.task import Task
from sapm.studies.bench.worker import train_once

EQUATIONS = {case.experiment: case for case in CASES.values() if case.family == "equations"}


@cache
def small(name):
    return replace(
        EQUATIONS[name],
        depth=3,
        width=4,
        points=40,
        boundary_points=20,
        test_points=50,
        seconds=2.0,
        seeds=1,
    )


def test_cases():
    """One for every textbook problem that peers can solve, of the textbook's size."""
    assert list(EQUATIONS) == [
        name for name in TEXTBOOK if name not in CASES_WITHOUT_PEERS
    ] and select(["equations"]) == list(EQUATIONS.values())
    for name, case in EQUATIONS.items():
        book = CATALOGUE[name]
        rows = dict.fromkeys(method for _, method in case.rows())
        assert (
            (case.depth, case.width) == book.sizes[0]
            and case.width <= 32
            and case.seeds == 3
            and case.seconds in (60, 120, 300)
        )
        assert {
            "auto",
            "ls-lbfgs",
            "optimistix-lm",
            "optimistix-lm-cholesky",
            "scipy-bfgs",
            "adam-lbfgs",
            "deepxde",
        } <= set(rows)
        assert {track for track, _ in case.rows()} == {"B"}
    (quick,) = select(["poisson_2d"], quick=True)
    assert (quick.name, quick.seconds, quick.seeds) == ("poisson_2d-sin-4x32", 2.0, 2)
    assert ("B", "deepxde") not in CASES["transport_1d-sin-6x10"].rows()


@pytest.mark.slow
@pytest.mark.usefixtures("double_precision")
def test_random_features_of_second_order(tmp_path):
    """The operator acts on them exactly; nonlinear equations are refused. The page has a section
    and a figure for an equation.
    """
    case = replace(
        small("poisson_2d"), depth=4, width=32, points=200, boundary_points=100, seconds=60.0
    )
    task = Task(case)
    cell = train_once(random_features(task, 100), "B", 0, case.seconds)
    assert cell["error"] < 1e-4 and cell["true_loss"] < 1e-4 and cell["status"] == "finished"
    A, y = system(
        task, lambda x: x
    )  # -Δ of the coordinates is 0; on the boundary they are themselves
    assert not A[:200].any() and np.allclose(
        A[200:], np.sqrt(task.samples.terms[1].weight) * task.samples.terms[1].x.value
    )
    assert np.allclose(y[:200] * np.sqrt(200), task.samples.terms[0].y)
    with pytest.raises(ValueError, match="nonlinear_poisson is not linear"):
        system(Task(small("nonlinear_poisson")), lambda x: x)
    (tmp_path / "env.json").write_text(json.dumps(runner.machine()))
    for method in ("features-many", "auto"):
        runner.write_cell(
            tmp_path,
            runner.Cell(case, "B", method, 0),
            cell | {"trace": [*cell["trace"], (9.0, 0.1, 0.1)]},
            1.0,
            1,
        )
    page, figure = bench.write(tmp_path, tmp_path / "page.md")
    assert (
        "## poisson_2d, sin (4,32)" in page.read_text()
        and figure.name == "bench-poisson_2d-sin-4x32.svg"
    )


# DeepXDE changes what torch does everywhere in its process, so it gets one of its own.
DEEPXDE = """
import json, sys
from dataclasses import replace
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_enable_x64", True)
from sapm.studies.bench.cases import CASES
from sapm.studies.bench.deepxde import STATEMENTS, Stated, deepxde, load
from sapm.studies.bench.task import Task
from sapm.studies.bench.worker import train_once
from sapm.problem.domain import Coordinates

dde, said = load(), {}
for name in sys.argv[1:]:
    assert name in STATEMENTS
    case = next(c for c in CASES.values() if c.experiment == name)
    task = Task(replace(case, depth=3, width=5, points=40, boundary_points=30, test_points=20))
    stated = Stated(task, dde)
    model, _ = stated.model(0)
    answer, held, order = stated.answer(model), task.samples.test_equation, list(stated.order)
    theirs = np.asarray(held.x.value)[:, order]
    residual = np.abs(held.residual(answer(held.x)) - model.predict(theirs, operator=stated.residual)).max()
    exact = lambda x: np.array([task.problem.exact(Coordinates(stated.names, row)) for row in x])[:, None]
    value, kinds = 0.0, []
    for condition in stated.conditions(stated.geometry()):
        kinds.append(type(condition).__name__)
        x = condition.collocation_points(model.data.train_x_all)
        if kinds[-1] in ("DirichletBC", "IC"):
            value = max(value, np.abs(np.asarray(condition.func(x, 0, len(x), None)) - exact(x)).max())
        assert len(x), name
    if STATEMENTS[name].output is not None:  # what it meets by its form
        for kind in task.problem.conditions:
            if kind.about == "value":
                x = task.problem.boundary(kind, 8)
                value = max(value, np.abs(jax.vmap(answer.at)(x) - kind.datum(task.problem.domain, x)[:, 0]).max())
    said[name] = [float(residual), float(value), kinds, len(model.data.train_x_all)]
case = next(c for c in CASES.values() if c.experiment == "heat_1d")
trainer = deepxde(Task(replace(case, width=8, points=60, boundary_points=40, test_points=50)))
train_once(trainer, "B", 1000, 0.1)
cell = train_once(trainer, "B", 0, 2.0)
print(json.dumps([said, cell]))
"""


def deepxde(*names):
    for package in ENTRIES["deepxde"].needs.split():
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    done = subprocess.run(
        [sys.executable, "-c", DEEPXDE, *names], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said, cell = json.loads(done.stdout)  # nothing else is printed there
    for name, (residual, value, _, points) in said.items():
        assert residual < 1e-10 and value < 1e-12 and points == 70, name
    return said, cell


@pytest.mark.slow
def test_deepxde():
    """It has the same residual of the same network, and the same data. Training lowers the loss,
    and ends in time.
    """
    said, cell = deepxde("allen_cahn")
    assert said["allen_cahn"][2] == ["NeumannBC"]
    assert cell["true_loss"] < 0.9 * cell["trace"][0][2] and 0 < cell["seconds"] <= 1.05 * 2.0
    assert cell["status"] in ("out of time", "converged") and 3 < len(cell["trace"]) <= 40


@pytest.mark.slow
def test_deepxde_is_told_every_problem():
    said, _ = deepxde(*EQUATIONS)
    assert list(said) == list(EQUATIONS) and said["wave_1d"][2] == [
        "DirichletBC",
        "IC",
        "OperatorBC",
    ]
