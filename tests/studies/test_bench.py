"""The bench: peers minimise what the engine minimises, cells are made once, and the page says what
the cells say.
"""

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from typer.testing import CliRunner

import sapm
from sapm.cli.main import app
from sapm.methods.gauss_newton import gauss_newton
from sapm.objective.penalty import Point, mean_square, objective
from sapm.studies import bench
from sapm.studies.bench import runner, score
from sapm.studies.bench.cases import CASES, ENTRIES, Case, chosen_rows, select
from sapm.studies.bench.linear import interpolation, polynomial, random_features, system
from sapm.studies.bench.peers import Flat, stepper
from sapm.studies.bench.task import Clock, Task, at_the_end
from sapm.studies.bench.worker import TRAINERS, train_once, warm_up

TINY = Case(
    "function_1d", "function_1d", 3, 4, "tanh", 0.2, 2, (0.5, 1e-9), points=20, test_points=30
)
FLOW = Case(
    "transport_1d",
    "transport_1d",
    3,
    4,
    "sin",
    0.2,
    2,
    (0.5,),
    points=30,
    boundary_points=10,
    test_points=30,
)
PLATE = replace(FLOW, experiment="poisson_2d")
SHOCK = replace(FLOW, experiment="burgers", activation="tanh")
NO_LIMIT_SECONDS = 1e6  # an answer that comes after the limit is left out


@cache
def task_of(case):
    return Task(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [TINY, FLOW, PLATE, SHOCK], ids=lambda case: case.name)
@pytest.mark.usefixtures("double_precision")
def test_peers_minimise_the_true_loss(case):
    """Σ residual² is the engine's true loss; the weights of track A are those that `sapm.solve`
    starts from.
    """
    task = task_of(case)
    flat = Flat(task)
    network = task.start(3, "paper")
    y = flat.start(3, "A")
    assert np.array_equal(ravel_pytree(network)[0], y) and not np.array_equal(y, flat.start(3, "B"))
    there = task.original(network)
    true = float(mean_square(there, task.samples.terms))
    assert float(flat.loss(y)) == pytest.approx(true, rel=1e-12) and task.measure(there)[
        1
    ] == pytest.approx(true, rel=1e-12)
    if case is TINY:
        given = {
            "points": 20,
            "model": "ls",
            "method": "gd",
            "max_iter": 0,
            "seeds": [3],
            "init": "paper",
            "progress": False,
        }
        for ours, theirs in zip(
            sapm.solve(task.problem, 3, 4, "tanh", **given).seeds[0].weights,
            network.weights,
            strict=True,
        ):
            assert np.array_equal(ours[0], theirs[0]) and np.array_equal(ours[1], theirs[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [e.name for e in ENTRIES.values() if e.group == "peer" and e.name != "deepxde"]
)
@pytest.mark.usefixtures("double_precision")  # as in a worker process
def test_every_peer_lowers_the_loss(name):
    if ENTRIES[name].needs:
        pytest.importorskip(ENTRIES[name].needs)
    trainer = TRAINERS[name](task_of(TINY if name == "sklearn-mlp" else FLOW))
    warm_up(trainer, "B", 0.05)
    cell = train_once(trainer, "B", 0, 0.3)
    first = cell["trace"][0][2]
    last = cell["true_loss"]
    assert last < 0.2 * first and not cell["compilations"]
    assert len(cell["trace"]) <= 40
    assert [t for t, _, _ in cell["trace"]] == sorted(t for t, _, _ in cell["trace"])


@pytest.mark.slow
@pytest.mark.usefixtures("double_precision")
def test_levenberg_marquardt_takes_our_step():
    """optimistix damps by λ = 1/step size, which starts at 1: our plain step with ν = 1, and the
    same for other λ.
    """
    optimistix = pytest.importorskip("optimistix")
    task = task_of(FLOW)
    flat = Flat(task)
    y = flat.start(0, "B")
    init, chunk = stepper(flat, optimistix.LevenbergMarquardt(rtol=1e-15, atol=1e-15), True)
    (_, state), _ = chunk(
        (y, init(y)), 1
    )  # the first step evaluates; what it would try next is in the state
    method = gauss_newton(
        objective(task.terms, task.case.depth, "ls"), task.widths, task.sigma, bend=False
    )
    point = Point(flat.network(y), ())

    @jax.jit
    def ours(nu):
        at = method.linearise(point, False)
        return ravel_pytree(method.moved(at, method.solver(at, nu)(at.rho)).network)[0]

    assert np.allclose(state.y_eval, ours(1.0), rtol=1e-9, atol=1e-11)
    assert not np.allclose(state.y_eval, ours(0.5), rtol=1e-3)
    J = jax.jit(jax.jacobian(flat.residual))(y)
    r = flat.residual(y)
    step = jnp.linalg.solve(J.T @ J + jnp.eye(len(y)), -J.T @ r)
    assert np.allclose(state.y_eval, y + step, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.usefixtures("double_precision")
def test_rows_without_training():
    """Features: the operator acts on them exactly. Constant, affine and interpolation: as NumPy has
    them.
    """
    flow = task_of(FLOW)
    curve = task_of(TINY)
    cell = train_once(random_features(flow, 60), "B", 0, NO_LIMIT_SECONDS)
    assert cell["error"] < 1e-2 and cell["true_loss"] < 1e-5
    x, y = (np.asarray(a)[:, 0] for a in (curve.samples.terms[0].x.value, curve.samples.terms[0].y))
    constant, affine = (
        train_once(polynomial(curve, degree), "B", 0, NO_LIMIT_SECONDS) for degree in (0, 1)
    )
    assert constant["true_loss"] == pytest.approx(np.var(y), rel=1e-12)
    assert affine["true_loss"] == pytest.approx(
        np.mean((np.polyval(np.polyfit(x, y, 1), x) - y) ** 2), rel=1e-10
    )
    A, _ = system(flow, lambda x: x)  # the coordinates t, x: their derivatives along c are c
    inner = np.asarray(flow.samples.terms[0].linear.c) / np.sqrt(30)
    assert np.allclose(A[:30], inner)
    between = train_once(
        interpolation(Task(CASES["function_1d-relu-10x10"])), "B", 0, NO_LIMIT_SECONDS
    )
    assert between["error"] == pytest.approx(3.05e-4, rel=5e-3)


def test_clock():
    """Few snapshots, the last of them, and nothing that came late."""
    clock = Clock(1.0)
    clock.start(lambda: (9.0, 9.0))
    for k in range(1, 1000):
        clock.keep(lambda k=k: (1 / k, 0.0), k / 1000)
    clock.keep(lambda: (0.0, 0.0), 1.2)
    trace = clock.trace()
    assert (
        len(trace) <= 40
        and trace[-1] == (1.2, 0.0, 0.0)
        and at_the_end(trace, 1.0) == (0.999, 1 / 999, 0.0)
    )
    assert at_the_end(trace[:1], 1.0) == (0.0, 9.0, 9.0)


def test_cases_are_chosen_by_name():
    assert [c.name for c in select(["transport_1d"])] == ["transport_1d-sin-6x10"]
    assert (
        len(select(["transport_1d*"])) == 3
        and len(select(["depth"])) == 5
        and len(select(["convection"])) == 4
    )
    assert len(select(["all"])) == len(CASES) and {c.seeds for c in select([], True)} == {2, 3}
    assert select(["depth"], seconds=1.0, seeds=2)[0] == replace(
        CASES["function_1d-relu-6x10"], seconds=1.0, seeds=2
    )
    both = chosen_rows(CASES["transport_1d-sin-6x10"], ["auto", "ls-gd", "sklearn-mlp"], None)
    assert both == [("A", "auto"), ("A", "ls-gd"), ("B", "auto")]
    for wrong in (
        lambda: select(["transprt_1d"]),
        lambda: select([]),
        lambda: chosen_rows(TINY, ["adam"], None),
    ):
        with pytest.raises(ValueError, match=r"there are|give some"):
            wrong()


# ---------------------------------------------------------------- cells


def run(out, **more):
    said = []
    rows = bench.run([TINY], out, methods=["features-width"], tell=said.append, **more)
    return rows, said


@pytest.mark.slow
def test_a_cell_is_made_once(tmp_path):
    """Processes make the cells; those that are there are left alone; other budgets and other
    folders are refused.
    """
    out = tmp_path / "b"
    rows, said = run(out)
    assert [(row["method"], row["seeds"]) for row in rows] == [("features-width", [0, 1])]
    files = {p: p.read_bytes() for p in (out / "cells").iterdir()}
    assert len(files) == 2 and "0 of 2" in said[0]
    (out / "cells" / f"{TINY.name}.B.features-width.1.json").unlink()
    again, said = run(out)
    assert "1 of 2" in said[0] and again[0]["median_error"] == pytest.approx(
        rows[0]["median_error"], rel=1e-6
    )
    assert sum(p.read_bytes() == body for p, body in files.items()) >= 1
    env = json.loads((out / "env.json").read_text())
    assert env["packages"]["numpy"] == np.__version__ and env["cores_per_job"] >= 1
    with pytest.raises(ValueError, match=r"with 0\.2 seconds, not 0\.5"):
        run(out, seconds=0.5)
    (out / "env.json").write_text(json.dumps(env | {"processor": "another"}))
    with pytest.raises(ValueError, match="made elsewhere"):
        run(out)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(ValueError, match="not empty"):
        run(tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_jobs_have_cores_of_their_own(monkeypatch):
    cores = sorted(os.sched_getaffinity(0))
    code = (
        "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS']); input()"
    )
    with runner.as_a_child_sees_it(cores[:1]):
        child = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    assert child.stdout is not None and child.stdout.readline().strip() == f"[{cores[0]}] 1"
    runner.pin(child.pid, cores)
    assert sorted(os.sched_getaffinity(child.pid)) == cores == sorted(os.sched_getaffinity(0))
    child.communicate("\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3, 8, 9})
    assert runner.core_groups(3) == [(0, 1), (2, 3), (8, 9)]
    with pytest.raises(ValueError, match=r"1 to 3"):
        runner.core_groups(4)


def fake(monkeypatch, behave):
    """Workers without processes: behave(cell) gives the answer, or raises."""

    def order(self, cell, slot):
        self.slot = slot
        self.cell = cell
        self.warming = False

    monkeypatch.setattr(runner.Worker, "order", order)
    monkeypatch.setattr(runner.Worker, "answer", lambda self: behave(self.cell))
    monkeypatch.setattr(runner, "wait", lambda *_: None)


GOOD = {
    "status": "finished",
    "reason": "",
    "seconds": 0.1,
    "error": 0.25,
    "true_loss": 1.0,
    "loss": None,
    "trace": [(0.1, 0.25, 1.0)],
}


def test_an_interrupted_bench_goes_on(tmp_path, monkeypatch):
    """Ctrl-C leaves the cells that are done; the next run makes the others, seed by seed; a failure
    is a cell too.
    """
    made = []

    def stop_third(cell):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(cell.file)
        return GOOD

    fake(monkeypatch, stop_third)
    asked = {"methods": ["auto", "ls-adam"], "track": "B", "tell": lambda text: None}
    with pytest.raises(KeyboardInterrupt):
        bench.run([TINY], tmp_path, **asked)
    assert sorted(p.name for p in (tmp_path / "cells").iterdir()) == sorted(made)
    assert made == [
        f"{TINY.name}.B.{m}.0.json" for m in ("auto", "ls-adam")
    ]  # seed 0 of all methods first

    def fail_one(cell):
        made.append(cell.file)
        return GOOD if cell.method == "auto" else {"status": "failed", "reason": "it broke."}

    fake(monkeypatch, fail_one)
    rows = {row["method"]: row for row in bench.run([TINY], tmp_path, **asked)}
    assert len(made) == len(set(made)) == 4
    assert rows["auto"]["failed"] == 0 and rows["auto"]["targets"]["0.5"] == {
        "reached": 2,
        "seconds": 0.1,
    }
    assert (
        rows["ls-adam"]["failed"] == 1
        and rows["ls-adam"]["reason"] == "it broke."
        and rows["ls-adam"]["worst_error"] == math.inf
    )


def test_a_worker_that_dies_or_hangs(tmp_path, monkeypatch):
    """The reason is in the cell; after two failures in a row a method is given up, and the others
    go on.
    """
    monkeypatch.setattr(runner, "patience", lambda seconds: 0.0)
    monkeypatch.setattr(runner, "COMPILING", 0.3)
    rows, _ = run(tmp_path / "hangs", track="B")
    assert (
        [row["failed"] for row in rows] == [2]
        and "no answer" in rows[0]["reason"]
        and math.isinf(rows[0]["median_error"])
    )
    monkeypatch.setattr(runner, "patience", lambda seconds: 60.0)
    order = runner.Worker.order
    cell = runner.Cell(TINY, "B", "auto", 0)

    def order_and_kill(self, cell, slot):
        order(self, cell, slot)
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)

    monkeypatch.setattr(runner.Worker, "order", order_and_kill)
    rows = bench.run([TINY], tmp_path / "dies", methods=["auto"], track="B", tell=lambda text: None)
    assert rows[0]["failed"] == 2 and "ended with code -9" in rows[0]["reason"]
    made = json.loads((tmp_path / "dies" / "cells" / cell.file).read_text())
    assert made["status"] == "failed" and made["error"] is None and made["budget"] == 0.2


def test_missing_packages_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "find_spec", lambda name: None)
    rows = bench.run(
        [TINY], tmp_path, methods=["scipy-bfgs", "optimistix-lm"], track="B", tell=lambda text: None
    )
    assert [row["reason"] for row in rows] == ["not installed"] * 2 and not (
        tmp_path / "cells"
    ).exists()
    assert score.table(rows)[1][0][2] == "not installed"


# ---------------------------------------------------------------- what the cells say


def write_cells(out, errors, case="function_1d-relu-10x10", env=None):
    """errors[(track, method)] = one error per seed, None where it failed."""
    env = env or runner.machine()
    (out / "cells").mkdir(parents=True, exist_ok=True)
    (out / "env.json").write_text(json.dumps(env))
    for (track, method), values in errors.items():
        for seed, error in enumerate(values):
            cell = runner.Cell(CASES[case], track, method, seed)
            answer = {"status": "failed", "reason": "broke"}
            if error is not None:
                trace = [(0.0, 1.0, 1.0), (0.5, 2 * error, 1.0), (1.0 + seed, error, error**2)]
                answer = {
                    "status": "finished",
                    "seconds": 1.0 + seed,
                    "error": error,
                    "true_loss": error**2,
                }
                answer |= {"loss": error**2 / 3, "trace": trace}
            runner.write_cell(out, cell, answer, 4.0, 1)


def test_the_page_says_what_the_cells_say(tmp_path):
    """Medians, worst, successes and times; rows that are ahead of auto are named with the factor;
    figures are drawn.
    """
    errors = {
        ("B", "auto"): [2e-3, 4e-3, 6e-3],
        ("B", "optimistix-lm"): [1e-3, 2e-3, 9e-3],
        ("B", "scipy-bfgs"): [5e-3, 8e-3, None],
        ("B", "features-many"): [1e-5, 1e-5, 1e-5],
        ("A", "auto"): [1e-3, 1e-3, 1e-3],
        ("A", "ls-gd"): [0.5, 0.5, 0.5],
        ("B", "constant"): [0.6],
    }
    write_cells(tmp_path / "b", errors)
    rows = {
        (r["track"], r["method"]): r
        for r in score.rows_of(runner.read(tmp_path / "b"), "function_1d-relu-10x10")
    }
    ours = rows["B", "auto"]
    assert (ours["median_error"], ours["worst_error"], ours["best_error"]) == (4e-3, 6e-3, 2e-3)
    assert ours["targets"] == {
        "0.01": {"reached": 3, "seconds": 0.5},
        "0.003": {"reached": 1, "seconds": math.inf},
    }
    assert ours["ratio"] == pytest.approx(3) and ours["seconds"] == 2.0
    assert (
        rows["B", "scipy-bfgs"]["worst_error"] == math.inf
        and rows["B", "scipy-bfgs"]["median_error"] == 8e-3
    )
    assert next(iter(rows)) == ("B", "features-many")
    found = score.ahead(list(rows.values()))
    assert found is not None and not found["ahead"] and found["peers"] == 2
    page, *figures = bench.write(tmp_path / "b", tmp_path / "docs" / "benchmarks.md")
    text = page.read_text()
    assert "Track B: auto is behind optimistix LevenbergMarquardt by 2× in median." in text
    assert (
        "Track B: auto is behind random features, 100 or 1000 by 4e+02× in median and 6e+02× in worst."
        in text
    )
    assert "behind scipy" not in text and "Track A: auto is behind" not in text
    assert "| sapm auto | B | 4.0e-03 | 6.0e-03 | 3/3 | 1/3 | 0.5 | – |" in text
    assert (
        "| function_1d, relu (10,10) | no | 2 of 8 | median: behind optimistix LevenbergMarquardt"
        in text
    )
    assert "| best constant | 6.0e-01 |" in text and "1 of 3 failed: broke" in text
    assert (
        len(figures) == 1
        and figures[0].read_text().startswith("<?xml")
        and f"figures/{figures[0].name}" in text
    )


def test_sweeps_and_machines(tmp_path):
    for depth, error in ((6, 1e-3), (20, 2e-3)):
        write_cells(
            tmp_path / "b",
            {("B", "auto"): [error], ("B", "scipy-bfgs"): [0.1]},
            f"function_1d-relu-{depth}x10",
        )
    for speed in (1, 30):
        write_cells(
            tmp_path / "b",
            {("B", "auto"): [speed * 1e-5], ("B", "scipy-bfgs"): [0.5]},
            f"convection_{speed}-sin-6x30",
        )
    env = json.loads((tmp_path / "b" / "env.json").read_text()) | {
        "devices": ["gpu: Fast"],
        "not_installed": ["optimistix-lm"],
    }
    write_cells(tmp_path / "c", {("B", "auto"): [1e-4], ("B", "scipy-bfgs"): [1e-3]}, env=env)
    text = bench.write([tmp_path / "b", tmp_path / "c"], tmp_path / "page.md")[0].read_text()
    assert (
        "| sapm auto | B | 1.0e-03 / 1.0e-03 | 2.0e-03 / 2.0e-03 |" in text
        and "| method | track | β 1 | β 30 |" in text
    )
    assert "on Fast" in text and "| optimistix LevenbergMarquardt | A | not installed |" in text
    assert "| Fast | of those run | 1 of 8 | median: ahead, 10× below scipy BFGS" in text
    with pytest.raises(ValueError, match="no bench"):
        bench.write(tmp_path / "nothing", tmp_path / "page.md")


def test_command_line(tmp_path, monkeypatch):
    """The command's table, JSON and page; exit codes for a mistake, for Ctrl-C, and when everything
    failed.
    """

    def call(*arguments, code=0):
        result = CliRunner().invoke(app, ["bench", *map(str, arguments)])
        assert result.exit_code == code, result.output
        return result

    out = tmp_path / "b"
    page = tmp_path / "page.md"
    asked = [
        "function_1d",
        "--methods",
        "auto,scipy-bfgs",
        "--track",
        "B",
        "--seeds",
        2,
        "--seconds",
        1,
        "--out",
        out,
    ]
    fake(monkeypatch, lambda cell: GOOD)
    content = json.loads(call(*asked, "--json").stdout)
    assert {row["method"] for row in content["rows"]} == {"auto", "scipy-bfgs"} and content[
        "ahead"
    ][0]["ahead"]
    shown = call(*asked, "--write", page).stdout
    assert (
        "sapm auto" in shown
        and "2.5e-01" in shown
        and f"written: {page}" in shown.replace("\n", "")
        and page.exists()
    )
    assert "is not a case" in call("nowhere", "--out", out, code=2).stderr
    assert "no case was named" in call("--out", out, code=2).stderr
    assert "jobs=999" in call("function_1d", "--jobs", 999, "--out", out, code=2).stderr

    def interrupted(cell):
        raise KeyboardInterrupt

    fake(monkeypatch, interrupted)
    assert "continues where it stopped" in call(*asked[:-1], tmp_path / "c", code=130).stderr
    fake(monkeypatch, lambda cell: {"status": "failed", "reason": "it broke."})
    call(*asked[:-1], tmp_path / "d", code=3)


@pytest.mark.slow
def test_ctrl_c_ends_the_processes(tmp_path):
    command = [
        sys.executable,
        "-m",
        "sapm",
        "bench",
        "function_1d",
        "--methods",
        "auto",
        "--track",
        "B",
        "--out",
        str(tmp_path),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "compiling" not in process.stderr.readline():
            assert process.poll() is None
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(30) == 130 and "continues where it stopped" in process.stderr.read()
    assert children and not any(Path(f"/proc/{child}").exists() for child in children[-1:])
