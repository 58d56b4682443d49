"""Several processes on this machine, over the loopback: the history of one, an end that is said, a
run that goes on.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import sapm

PROBLEM = """
import numpy as np, sapm
x = np.linspace(-1, 1, 101)
problem = sapm.Regression(x, np.sin(3 * x))
"""
TRANSPORT = """
import jax.numpy as jnp, sapm
start, inflow = sapm.Initial(lambda p: jnp.sin(p.x)), sapm.Inflow(lambda p: jnp.sin(1 + p.t))
problem = sapm.PDE(sapm.Box(t=(0, 1), x=(-1, 1)), lambda p, u: u.t - u.x, [start, inflow])
"""
SETTINGS = [
    "--set",
    "method=alternating",
    "--depth",
    "4",
    "--width",
    "5",
    "--seeds",
    "1",
    "--quiet",
    "--set",
    "options.record_every=1",
]
ENV = os.environ | {"XLA_FLAGS": "--xla_backend_optimization_level=0", "JAX_PLATFORMS": "cpu"}


def started(folder: Path, *arguments: str, **more) -> subprocess.Popen:
    (folder / "reg.py").write_text(PROBLEM)
    command = [sys.executable, "-m", "sapm", *arguments]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=ENV,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def finished(folder: Path, *arguments: str) -> tuple[int, str, str]:
    process = started(folder, *arguments)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def losses(folder: Path) -> np.ndarray:
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return np.array([line["loss"] + line["mean_squared_loss"] for line in lines])


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_several_processes_have_the_history_of_one_and_one_goes_on(tmp_path, count):
    command = [
        "run",
        "reg.py:problem",
        *SETTINGS,
        "--max-iter",
        "20",
        "--out",
        "several",
        "--json",
        "--processes",
        str(count),
    ]
    code, out, err = finished(tmp_path, *command)
    assert code == 0, err
    assert (
        json.loads(out)["sapm"]["seeds"][0]["iterations"] == 20
    )  # one answer, by the first process, and nothing else
    x = np.linspace(-1, 1, 101)
    given = {"depth": 4, "width": 5, "seeds": 1, "options": {"record_every": 1}, "progress": False}
    one = sapm.solve(sapm.Regression(x, np.sin(3 * x)), **given, method="alternating", max_iter=25)
    np.testing.assert_allclose(
        losses(tmp_path / "several")[:, 0], one.history["loss"][0, :21], rtol=1e-9
    )
    sapm.resume(tmp_path / "several", max_iter=25, progress=False)
    found = np.array([one.history[name][0] for name in ("loss", "mean_squared_loss")]).T
    np.testing.assert_allclose(losses(tmp_path / "several"), found, rtol=1e-9)


@pytest.mark.slow
def test_a_pde_under_a_theorem_and_a_folder_in_use(tmp_path):
    """The bound needs all samples; a refusal of the first process ends them all at once."""
    (tmp_path / "pde.py").write_text(TRANSPORT)
    command = [
        "run",
        "pde.py:problem",
        *SETTINGS,
        "--max-iter",
        "3",
        "--out",
        "pde",
        "--json",
        "--processes",
        "2",
    ]
    code, out, err = finished(tmp_path, *command, "--set", "points=101")
    assert code == 0, err
    assert json.loads(out)["sapm"]["certificate"]["holds"] is True
    began = time.monotonic()
    code, _, err = finished(tmp_path, *command)
    assert code == 2 and "holds a run" in err and time.monotonic() - began < 60


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the processes in /proc")
@pytest.mark.parametrize("ended", ["killed", "interrupted"])
def test_an_end_before_the_end(tmp_path, ended):
    """A killed worker: a sentence within a minute, and the checkpoint is there. Ctrl-C: saved, and
    exit code 130.
    """
    arguments = [
        "run",
        "reg.py:problem",
        *SETTINGS,
        "--max-iter",
        "1000000",
        "--out",
        "run",
        "--processes",
        "2",
    ]
    parent = started(tmp_path, *arguments, "--set", "options.stall=0")
    checkpoint = tmp_path / "run" / "checkpoint" / "latest.sapm"
    until = time.monotonic() + 240
    while not checkpoint.exists() and time.monotonic() < until and parent.poll() is None:
        time.sleep(0.2)
    assert checkpoint.exists(), parent.communicate()
    workers = children(parent.pid)
    began = time.monotonic()
    if ended == "killed":
        os.kill(workers[1], signal.SIGKILL)
    else:
        parent.send_signal(signal.SIGINT)
    _, err = parent.communicate(timeout=60)
    assert time.monotonic() - began < 60
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    if ended == "interrupted":
        assert parent.returncode == 130 and "continue with: sapm resume run" in err
        return
    assert parent.returncode == 1
    assert "process 1 of 2 was killed (SIGKILL), and the others were stopped." in err
    assert "Continue from what was saved with: sapm resume run\n" in err
    code, _, err = finished(tmp_path, "resume", "run", "--max-seconds", "1", "--quiet")
    assert code == 0, err


WRONG = {
    "no place": (["--distributed"], "start it by srun or mpirun"),
    "half a place": (
        ["--distributed", "--process", "1"],
        "--distributed: got no --address and no --processes",
    ),
    "not among them": (
        ["--distributed", "--address", "127.0.0.1:1", "--process", "2", "--processes", "2"],
        "counted from 0 to 1",
    ),
    "no part": (["--process", "1"], "--address and --process describe one of several processes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_places_that_are_none(tmp_path, name):
    arguments, words = WRONG[name]
    code, _, err = finished(tmp_path, "run", "reg.py:problem", *arguments)
    assert code == 2 and words in err and len(err.strip().splitlines()) == 1
