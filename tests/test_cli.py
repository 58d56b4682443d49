"""The command line: what it prints, what it writes, what it refuses, and with which exit code."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import onnx.reference
import pytest
from scipy.io import loadmat
from typer.testing import CliRunner

import sapm
from sapm import demo, gallery, reproduce
from sapm.cli import app
from sapm.experiments import EXPERIMENTS, paper


@pytest.fixture(autouse=True)
def double_precision():
    """As a user has it: single precision outside."""


def call(*arguments, code=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    if code == 2:
        assert "Traceback" not in result.output and len(result.stderr.strip().splitlines()) == 1
    return result


SMALL = ("--depth", 2, "--width", 4, "--seeds", 2, "--set", "points=30", "--set", "boundary_points=10", "--set", "test_points=20")
MINE = """
import jax.numpy as jnp, sapm
problem = sapm.Function(sapm.Box(x=(-1, 1)), lambda p: jnp.sin(3 * p.x))
number = 3
"""


def test_help_is_light():
    code = "import sys, sapm.cli; assert not {'jax', 'numpy', 'matplotlib', 'sklearn', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert all(name in call("--help").output for name in ("demo", "reproduce", "resume", "predict", "export"))
    assert call("--version").output.strip() == sapm.__version__
    assert "transport_3d" in call("list").output and set(json.loads(call("list", "--json").output)) == set(EXPERIMENTS)
    assert json.loads(call("info", "--json").output)["version"] == sapm.__version__


def test_run_resume_report_predict_export(tmp_path):
    """A run in a folder, continued, reported, evaluated at points from a file and written in four formats."""
    out = tmp_path / "run"
    call("run", "transport_1d", *SMALL, "--max-iter", 8, "--out", out, "--quiet")
    assert {"config.json", "history.jsonl", "model.sapm", "report.html"} <= {p.name for p in out.iterdir()}
    resumed = json.loads(call("resume", out, "--max-iter", 16, "--json").output)["run"]
    straight = json.loads(call("run", "transport_1d", *SMALL, "--max-iter", 16, "--json").output)["sapm"]
    assert resumed["seeds"] == straight["seeds"] and resumed["certificate"]["holds"]
    assert "Theorem 3 holds" in call("report", out).output
    u = sapm.load(out / "model.sapm").best
    points = tmp_path / "points.csv"
    points.write_text("note,x,t\na,0.5,0.25\nb,-0.5,1\n")
    lines = call("predict", out, points).output.splitlines()
    assert lines[0] == "t,x,u" and float(lines[1].split(",")[2]) == u(t=0.25, x=0.5)
    call("predict", out, points, "-o", tmp_path / "u.csv")
    assert (tmp_path / "u.csv").read_text().splitlines() == lines
    x, wanted = np.array([[0.25, 0.5], [1, -0.5]]), u(t=np.array([0.25, 1]), x=np.array([0.5, -0.5]))
    call("export", out, tmp_path / "u.onnx")
    model = onnx.reference.ReferenceEvaluator(str(tmp_path / "u.onnx"))
    assert np.allclose(model.run(None, {"points": x})[0][:, 0], wanted, rtol=1e-12)
    call("export", out, tmp_path / "u.npz")
    call("export", out, tmp_path / "u.mat")
    assert np.array_equal(np.load(tmp_path / "u.npz")["W2"], u.weights[1][0])
    assert np.array_equal(loadmat(tmp_path / "u.mat")["W1"], u.weights[0][0])


def test_torch():
    """With PyTorch, the same numbers; without it, a sentence."""
    u = sapm.solve(EXPERIMENTS["function_1d"].problem(), depth=3, width=4, points=10, seeds=1, max_iter=1, progress=False).best
    try:
        import torch
    except ImportError:
        with pytest.raises(ImportError, match="pip install torch"):
            u.to_torch()
        return
    x = np.linspace(-1, 1, 5)
    assert np.allclose(u.to_torch()(torch.tensor(x[:, None])).detach().numpy()[:, 0], u(x=x), rtol=1e-12)


def test_own_problem_and_several_models(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    spec = f"{tmp_path / 'mine.py'}:problem"
    found = json.loads(
        call("run", spec, "--models", "ls,pm", *SMALL[:6], "--max-iter", 3, "--out", tmp_path / "r", "--json").output
    )
    assert set(found) == {"ls", "pm"} and found["pm"]["certificate"]["holds"] is None
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == ["ls", "pm"]
    assert "holds several runs; give one of" in call("predict", tmp_path / "r", tmp_path / "x.csv", code=2).stderr
    for bad, sentence in (
        (tmp_path / "none.py:problem", "does not exist"),
        (tmp_path / "mine.py", "names no problem"),
        (f"{tmp_path / 'mine.py'}:problm", "has no 'problm'. Did you mean 'problem'"),
        (f"{tmp_path / 'mine.py'}:number", "is a int; it must be"),
    ):
        assert sentence in call("run", bad, code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "transprt_1d"], "Did you mean 'transport_1d'"),
        (["run", "transport_1d", "--models", "spam"], "Did you mean 'sapm'"),
        (["run", "transport_1d", "--seeds", "ten"], "is not a number; give how many"),
        (["run", "transport_1d", "--set", "actvation=sin"], "Did you mean 'activation'"),
        (["run", "transport_1d", "--set", "options.jont=true"], "Did you mean 'joint'"),
        (["run", "transport_1d", "--set", "points"], "has no value; write --set key=value"),
        (["run", "transport_1d", "--depth", "1"], "depth=1 is too small"),
        (["resume", "nowhere"], "nowhere does not exist"),
        (["report", "."], "is not the folder of a run"),
        (["reproduce", "nothing"], "is not a built-in problem"),
        (["reproduce", "transport_1d", "--sizes", "7,7"], "is not in the paper; there are transport_1d: 6,10"),
        (["reproduce", "transport_1d", "--sizes", "7"], "is not a pair; write depth,width"),
    ],
)
def test_refusals(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sentence in call(*arguments, code=2).stderr
    assert not list(tmp_path.iterdir())


def test_a_read_only_folder_is_refused(tmp_path):
    """Nowhere to write: one sentence."""
    (tmp_path / "file").write_text("")
    assert "is a file" in call("run", "transport_1d", *SMALL, "--out", tmp_path / "file", code=2).stderr
    assert call("run", "transport_1d", *SMALL, "--out", tmp_path / "file" / "run", code=2).stderr.startswith("sapm: ")


TINY = {"sizes": ((6, 10),), "seeds": 2, "max_iter": 3, "points": 20, "boundary_points": 10, "test_points": 10}


def test_reproduction(tmp_path, monkeypatch):
    """All runs of a (tiny) reproduction, its tables and figures; a second call runs nothing again; another plan is refused."""
    monkeypatch.setitem(reproduce.QUICK, "transport_1d", TINY)
    monkeypatch.setitem(reproduce.RATES, "pde", (0.01,))
    out = tmp_path / "out"
    shown = call("reproduce", "transport_1d", "--quick", "--models", "ls,sapm", "-o", out, "-q").output
    assert "QUICK RUN" in shown and "6.85e-03" in shown and "SAPM forward" in shown
    cells = sorted(out.rglob("cell.json"))
    assert [c.parent.name for c in cells] == ["ls-rate0.01", "sapm-forward", "sapm-uniform"]
    before = [c.stat().st_mtime_ns for c in cells]
    found = json.loads(call("resume", out, "--json").output)
    assert [c.stat().st_mtime_ns for c in cells] == before and len(found["rows"]) == 3
    assert all(row["largest_bound_ratio"] <= 1 + 1e-9 for row in found["rows"])
    assert {p.name for p in (out / "figures").iterdir()} == {
        f"transport_1d_{name}.{kind}" for name in ("losses", "consistency") for kind in ("png", "svg")
    }
    page = (out / "report.html").read_text()
    assert (
        page.count("<table>") == 1
        and page.count("data:image/png") == 2
        and "\\begin{tabular}" in (out / "tables.tex").read_text()
    )
    assert "holds another reproduction" in call("reproduce", "transport_1d", "-o", out, code=2).stderr
    assert "holds no reproduction" in call("reproduce", "transport_1d", "-o", tmp_path, code=2).stderr


def test_tables_of_functions():
    """Failures are starred by the paper's rule, its figures stand beside ours, and verdicts are by order of magnitude."""
    row = {
        "experiment": "function_1d", "size": [10, 10], "model": "sapm", "variant": "uniform", "seeds": 2, "iterations": 9,
        "best": {"loss": 3e-6, "mean_squared_loss": 2e-6, "train_error": 3e-3, "test_error": 4e-3}, "success": 1,
        "median": {"test_error": 1.0}, "worst": {"test_error": 2.0}, "success_means": "small", "largest_bound_ratio": 0.5,
        "initial_final": [[100.0, 1e-6], [100.0, 20.0]], "failed": 1,
    }  # fmt: skip
    best, seeds = gallery.tables([row], quick=False)
    assert best["body"][0][3:5] == ["3.00e-06", "2.72e-07"] and seeds["body"][1][1] == "1.00e+02 → 2.00e+01 *"
    assert reproduce.verdict(row).startswith("not reproduced: loss 11 times") and "*" not in seeds["body"][0][1]
    row["best"]["loss"] = 2e-6
    assert reproduce.verdict(row) == "reproduced: within a factor 7.4 (loss)"
    assert len(paper()["all_seeds"]["function_1d"]["10,10"]["LS"]) == 10


def test_demo(tmp_path, monkeypatch):
    """A short demonstration: three rows, a page that explains itself."""
    for name, value in (("SEEDS", 1), ("ITERATIONS", 3), ("POINTS", 20), ("BOUNDARY", 10), ("WIDTH", 4), ("DEPTH", 3)):
        monkeypatch.setattr(demo, name, value)
    shown = call("demo", "-o", tmp_path / "r.html", "-q").output
    assert all(model in shown for model in ("LS", "PM", "SAPM"))
    page = (tmp_path / "r.html").read_text()
    assert page.count("data:image/png") == 2 and "Auxiliary variables" in page
    assert [row["model"] for row in json.loads(call("demo", "-o", tmp_path / "r.html", "--json").output)["rows"]] == [
        "ls",
        "pm",
        "sapm",
    ]


def test_interrupt_keeps_the_run(tmp_path):
    """Ctrl-C: exit code 130, the state saved, the command to continue with."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "sapm", "run", "function_1d", "--max-iter", "1000000", "--seeds", "1", "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ)
    deadline = time.monotonic() + 120
    while not (out / "history.jsonl").exists() or len((out / "history.jsonl").read_text().splitlines()) < 20:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and f"continue with: sapm resume {out}" in stderr and "Traceback" not in stderr
    assert sapm.load(out / "model.sapm").table[0]["status"] == "interrupted"
