"""The command line: what it prints, what it writes, what it refuses, and with which exit code."""

import html
import json
import os
import re
import shutil
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
from sapm import arguments as checks
from sapm import demo, gallery, reproduce
from sapm.cli import app
from sapm.experiments import EXPERIMENTS, paper
from sapm.names import plain
from sapm.report import POLICY, _positive


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
from __future__ import annotations
import sys
from dataclasses import dataclass
import jax.numpy as jnp, sapm
@dataclass
class Wave:
    speed: float
problem = sapm.Function(sapm.Box(x=(-1, 1)), lambda p: jnp.sin(Wave(3).speed * p.x))
number = 3
def fails(): return {}["key"]
def leaves(): sys.exit("no problem today")
"""


def test_help_is_light():
    code = "import sys, sapm.cli; assert not {'jax', 'numpy', 'matplotlib', 'sklearn', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert all(name in call("--help").output for name in ("demo", "reproduce", "resume", "predict", "export"))
    assert call("--version").output.strip() == sapm.__version__
    assert "transport_3d" in call("list").output and set(json.loads(call("list", "--json").output)) == set(EXPERIMENTS)
    assert json.loads(call("info", "--json").output)["version"] == sapm.__version__


def test_run_resume_report_predict_export(tmp_path, monkeypatch):
    """A run in a folder, continued, reported, evaluated at points from a file and written in four formats."""
    out = tmp_path / "b[/a] :smile:"  # nothing in a path is markup
    asked = ("run", "transport_1d", *SMALL, "--set", "method=alternating")
    assert f"kept in {out}" in call(*asked, "--max-iter", 8, "--out", out, "--quiet").output
    assert {"config.json", "history.jsonl", "model.sapm", "report.html"} <= {p.name for p in out.iterdir()}
    monkeypatch.chdir(out)
    resumed = json.loads(call("resume", ".", "--max-iter", 16, "--json").output)[out.name]
    straight = json.loads(call(*asked, "--max-iter", 16, "--json").output)["sapm"]
    assert resumed["seeds"] == straight["seeds"] and resumed["certificate"]["holds"]
    assert "Theorem 3 holds" in call("report", out).output
    u = sapm.load(out / "model.sapm").best
    points = tmp_path / "points.csv"
    points.write_text("note,x,t\na,0.5,0.25\nb,-0.5,1\n")
    lines = call("predict", out, points).output.splitlines()
    assert lines[0] == "t,x,u" and float(lines[1].split(",")[2]) == u(t=0.25, x=0.5)
    call("predict", out, points, "-o", tmp_path / "u.csv")
    assert json.loads(call("predict", out, points, "-o", tmp_path / "v.csv", "--json").output)["points"] == 2
    assert (tmp_path / "u.csv").read_text().splitlines() == (tmp_path / "v.csv").read_text().splitlines() == lines
    for text, sentence in (
        ("t,x\n", "names its columns and has no points"),
        ("\nt,x\n\n1,a\n", "line 4, column 'x': 'a' is not a number"),
        ("t,x\n1," + "9" * 200000, "line 2 cannot be read as CSV"),
        ("t,x\n1,\udcff", "is not a text file in UTF-8"),
    ):
        points.write_text(text, errors="surrogateescape")
        assert sentence in call("predict", out, points, code=2).stderr
    x, wanted = np.array([[0.25, 0.5], [1, -0.5]]), u(t=np.array([0.25, 1]), x=np.array([0.5, -0.5]))
    call("export", out, tmp_path / "u.onnx")
    assert onnx.load(tmp_path / "u.onnx").ir_version <= 10  # newer ones are not read everywhere
    model = onnx.reference.ReferenceEvaluator(str(tmp_path / "u.onnx"))
    assert np.allclose(model.run(None, {"points": x})[0][:, 0], wanted, rtol=1e-12)
    call("export", out, tmp_path / "new" / "u.npz")
    call("export", out, tmp_path / "u.mat")
    for ending in ("onnx", "npz", "mat"):
        (tmp_path / f"folder.{ending}").mkdir()
        assert "is a folder; give the name of a file" in call("export", out, tmp_path / f"folder.{ending}", code=2).stderr
    assert np.array_equal(np.load(tmp_path / "new" / "u.npz")["W2"], u.weights[1][0])
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
    asked = ("run", spec, "--models", "ls,pm", *SMALL[:6], "--max-iter", 3, "--out", tmp_path / "r", "--json")
    found = json.loads(call(*asked).output)
    assert set(found) == {"ls", "pm"} and found["pm"]["certificate"]["holds"] is None
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == ["ls", "models.json", "pm"]
    assert f"is not empty; continue its runs with sapm resume {tmp_path / 'r'}" in call(*asked, code=2).stderr
    assert "holds several runs; give one of" in call("predict", tmp_path / "r", tmp_path / "x.csv", code=2).stderr
    for bad, sentence in (
        (tmp_path / "none.py:problem", "does not exist"),
        (tmp_path / "mine.py", "names no problem"),
        (f"{tmp_path / 'mine.py'}:problm", "has no 'problm'. Did you mean 'problem'"),
        (f"{tmp_path / 'mine.py'}:number", "is a int; it must be"),
        (f"{tmp_path / 'mine.py'}:fails", "could not be run: KeyError: 'key'"),
        (f"{tmp_path / 'mine.py'}:leaves", "could not be run: SystemExit: no problem today"),
    ):
        assert sentence in call("run", bad, code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "transprt_1d"], "Did you mean 'transport_1d'"),
        (["run", "transport_1d", "--models", "spam"], "Did you mean 'sapm'"),
        (["run", "transport_1d", "--seeds", "ten"], "is not a number; give how many"),
        (["run", "transport_1d", "--set", "actvation=sin"], "Did you mean 'activation'"),
        (["run", "transport_1d", "--set", "method=alternating", "--set", "options.jont=true"], "Did you mean 'joint'"),
        (["run", "transport_1d", "--set", "points"], "has no value; write --set key=value"),
        (["run", "transport_1d", "--depth", "1"], "depth=1 is too small"),
        (["run", "transport_1d", "--depth", "0"], "depth=0 is too small"),
        (["run", "transport_1d", "--width", "0", "--models", "ls,pm", "--out", "new"], "width=0 is too small"),
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


def check_latex(text):
    """Every row has as many cells as the table has columns, braces balance, and every character is one that LaTeX has."""
    assert text.isascii() and text.count("{") == text.count("}")
    for table in text.split("\\begin{table}")[1:]:
        columns = len(table.split("\\begin{tabular}{")[1].split("}")[0])
        rows = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert len(rows) > 1 and all(len(re.findall(r"(?<!\\)&", row)) == columns - 1 for row in rows)


PROBE = """<script>window.addEventListener("load", () => {
  const pictures = [...document.images].filter((i) => i.complete && i.naturalWidth > 50).length;
  const wide = document.documentElement.scrollWidth > window.innerWidth + 1;
  document.title = JSON.stringify({tables: document.querySelectorAll("table").length, pictures, wide});
});</script>"""


def check_page(page, tables, figures, folder):
    """The page stands alone: nothing to fetch; in a phone's window, where a browser is installed, it fits and says no error."""
    text = page.read_text()
    assert text.count("<table") == tables and text.count("data:image/png") == figures == text.count("<img")
    assert not re.search(r'(?:src|href)="(?!data:)', text) and "width=device-width" in text
    browser = next((b for b in ("chromium", "chromium-browser", "google-chrome") if shutil.which(b)), None)
    if browser is None:
        return
    folder.mkdir()
    probe = folder / "page.html"
    assert POLICY in text  # which would not let the probe run
    probe.write_text(text.replace(POLICY, "").replace("</body>", PROBE + "</body>"))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    command += ["--window-size=390,800", f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--dump-dom"]
    done = subprocess.run([*command, probe.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    seen = json.loads(html.unescape(re.search("<title>(.*?)</title>", done.stdout, re.DOTALL)[1]))
    assert seen == {"tables": tables, "pictures": figures, "wide": False}
    assert "CONSOLE" not in done.stderr


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
    assert all(row["largest_bound_ratio"] <= 1 + 1e-9 and row["holds"] is True for row in found["rows"])
    assert all(len(row["non_affine"]) == row["seeds"] and min(row["non_affine"]) >= 0 for row in found["rows"])
    assert {p.name for p in (out / "figures").iterdir()} == {
        f"transport_1d_{name}.{kind}" for name in ("losses", "consistency") for kind in ("png", "svg")
    }
    words = (out / "results.md").read_text()
    assert "figures/transport_1d_losses.svg" in words and "QUICK RUN" in words
    assert "it held in 2 of 2 runs; the largest ratio" in words
    check_latex((out / "tables.tex").read_text())
    check_page(out / "report.html", tables=1, figures=2, folder=tmp_path / "browser")
    assert "its plan says how long" in call("resume", out, "--max-iter", 5, code=2).stderr
    assert "holds another reproduction" in call("reproduce", "transport_1d", "-o", out, code=2).stderr
    assert "holds no reproduction" in call("reproduce", "transport_1d", "-o", tmp_path, code=2).stderr
    cell = next(cell for cell in reproduce.all_cells(json.loads((out / "reproduce.json").read_text())) if cell.model == "sapm")
    result = sapm.load(out / cell.folder / "model.sapm")
    for ratio, holds in ((1.01, False), (float("nan"), None)):  # in a record before the last; in none
        result.run.history["bound_ratio"][:, :-1] = ratio
        result.run.history["bound_ratio"][:, -1] *= ratio
        assert reproduce.summarise(cell, result)["holds"] is holds
    twice = reproduce.plan(["transport_1d"] * 2, ["ls", "sapm", "ls"], [(6, 10), (6, 10)], True)
    assert twice == reproduce.plan(["transport_1d"], ["ls", "sapm"], [(6, 10)], True) and len(reproduce.all_cells(twice)) == 3
    assert "transprt_1d" in call("reproduce", "all", "transprt_1d", "-o", tmp_path / "no", code=2).stderr


KILLED = """
import sys
from sapm import reproduce
reproduce.QUICK["function_1d"] = {"sizes": ((6, 10),), "seeds": 2, "max_iter": 6000, "points": 20, "test_points": 10}
if __name__ == "__main__":
    from sapm.cli import app
    app()
"""


@pytest.mark.slow
def test_killed_reproduction_continues(tmp_path):
    """SIGKILL half way, with two runs at a time and one: the same numbers at the end as from a reproduction left alone."""
    script = tmp_path / "short.py"
    script.write_text(KILLED)
    command = [sys.executable, str(script), "reproduce", "function_1d", "--quick", "--models", "sapm", "-q", "--json", "-o"]
    left_alone = subprocess.Popen([*command, str(tmp_path / "whole")], stdout=subprocess.PIPE, text=True)
    cut = subprocess.Popen([*command, str(tmp_path / "cut")], stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 200

    def records(run, count):
        file = tmp_path / "cut" / "function_1d" / "6x10" / run / "history.jsonl"
        while not file.exists() or len(file.read_text().splitlines()) < count:
            assert time.monotonic() < deadline and cut.poll() is None
            time.sleep(0.02)

    records("sapm-uniform", 1)
    refused = subprocess.run([*command, str(tmp_path / "cut")], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "is in use by another process" in refused.stderr and len(refused.stderr.splitlines()) == 1
    records("sapm-uniform-shared", 3)
    cut.kill()
    cut.communicate()
    assert [p.parent.name for p in (tmp_path / "cut").rglob("cell.json")] == ["sapm-uniform"]
    again = [sys.executable, str(script), "resume", str(tmp_path / "cut"), "--jobs", "2", "-q", "--json"]
    resumed = subprocess.run(again, capture_output=True, text=True, check=True)
    rows = [json.loads(text)["rows"] for text in (left_alone.communicate(timeout=200)[0], resumed.stdout)]
    assert len(rows[0]) == 2
    for a, b in zip(*rows, strict=True):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}


def test_tables_of_functions():
    """Failures are starred by the paper's rule, its figures stand beside ours, and verdicts say only what was measured."""
    row = {
        "experiment": "function_1d", "size": [10, 10], "model": "sapm", "variant": "uniform", "seeds": 2, "iterations": 9,
        "best": {"loss": 3e-6, "mean_squared_loss": 2e-6, "train_error": 3e-3, "test_error": 4e-3}, "success": 1,
        "median": {"test_error": 1.0}, "worst": {"test_error": 2.0}, "success_means": "small", "largest_bound_ratio": 0.5,
        "initial_final": [[100.0, 1e-6], [100.0, 20.0]], "failed": 1,
        "curves": {"best": 0, "iteration": [0, 5, 9], "loss": [[100.0, 2e-6, 1e-6]]},
    }  # fmt: skip
    best, seeds = gallery.tables([row], quick=False)
    assert best["body"][0][3:5] == ["3.00e-06", "2.72e-07"] and seeds["body"][1][1] == "1.00e+02 → 2.00e+01 *"
    assert "*" not in seeds["body"][0][1]
    assert seeds["body"][0][0] == "0" and "Seeds count from 0; the paper's" in seeds["note"]
    assert reproduce.verdict(row).startswith(
        "not reproduced: actual loss × 11; the best seed's loss falls by a factor 2 in the last"
    )
    row["best"] |= {"loss": 2e-6, "test_error": 1.0}
    assert "test error × 2.9e+02; see the median; reproduced: actual loss" in reproduce.verdict(row)
    off = {"seed": 1, "x": 0.25, "error": 8.0}
    assert "see the median" in reproduce.verdict(row | {"off_sample": off})
    spiked = row | {"off_sample": off | {"error": 9.0}, "best_seed": 1}
    assert "; the best seed has a spike of 9.0e+00 at x = 0.2500; reproduced" in reproduce.verdict(spiked)
    assert "; seed 1, not the best one, has a spike" in reproduce.verdict(spiked | {"best_seed": 0})
    row["best"]["test_error"] = 4e-3
    assert reproduce.verdict(row).startswith(
        "reproduced: actual loss × 7.4, true loss × 1.1, test error × 1.2; median test error"
    )
    row["success"] = 0
    for said in (reproduce.verdict(row), reproduce.verdict(row | {"best": row["best"] | {"loss": 1.0}})):
        assert said.startswith("not reproduced: actual") and "; no seed succeeds (small)" in said and "; reproduced" not in said
    assert "; every seed is constant or affine;" in reproduce.verdict(row | {"non_affine": [0.0, 1e-4]})
    assert all("no seed succeeds" in reproduce.verdict(row | {"non_affine": [0.0, share]}) for share in (0.1, float("nan")))
    assert reproduce.verdict(row | {"model": "pm"}).startswith("inconsistency not reproduced: true/actual loss")
    env = {"devices": ["cpu"], "cores": 2, "python": "3", "packages": {}}
    row |= {"env": env, "seconds": 1.0, "holds": True}
    over = [row, row | {"largest_bound_ratio": 1.01}, row | {"largest_bound_ratio": None}, row | {"model": "ls"}]
    said = "it held in 1 of 2 runs; the largest ratio of the true loss to the bound is 1.01; 1 more have no ratio."
    assert gallery.lead(over, quick=False)[2].endswith(said) and len(gallery.lead(over[2:], quick=False)) == 3
    stuck = {"model": "ls", "failed": 2, "initial_final": [[0.09, 0.0705], [1.0, 1e30]]}
    assert reproduce.verdict(row | stuck) == "1 of 2 seeds stuck, 1 diverged, 1 at the plateau 7.05e-02"
    assert len(paper()["all_seeds"]["function_1d"]["10,10"]["LS"]) == 10

    from types import SimpleNamespace

    points = np.array([[-0.5], [0.0], [0.25], [0.5]])
    networks = [lambda x, f=f: f(np.ravel(x)) for f in (lambda x: 0 * x + 1e-13 * x**2, lambda x: 2 - x, lambda x: 9 * x**2)]
    samples = SimpleNamespace(terms=[SimpleNamespace(x=SimpleNamespace(value=points))])
    result = SimpleNamespace(samples=samples, seeds=networks, run=SimpleNamespace(seeds=[0, 1, 2]))
    shares = reproduce.non_affine(result)
    assert shares[0] == 0 and shares[1] < 1e-20 and 0.1 < shares[2] < 1
    assert reproduce.off_sample(result)["seed"] == 1 and reproduce.off_sample(result)["x"] == -0.5


def test_demo(tmp_path, monkeypatch):
    """A short demonstration: three rows, a page that explains itself."""
    for name, value in (("SEEDS", 1), ("ITERATIONS", 3), ("POINTS", 20), ("BOUNDARY", 10), ("WIDTH", 4), ("DEPTH", 3)):
        monkeypatch.setattr(demo, name, value)
    shown = call("demo", "-o", tmp_path / "r.html", "-q").output
    assert all(model in shown for model in ("LS", "PM", "SAPM"))
    check_page(tmp_path / "r.html", tables=1, figures=2, folder=tmp_path / "browser")
    assert "Auxiliary variables" in (tmp_path / "r.html").read_text()
    rows = json.loads(call("demo", "-o", tmp_path / "r.html", "--json").output)["rows"]
    assert [row["model"] for row in rows] == ["ls", "pm", "sapm"]


def test_interrupt_ends_a_series(tmp_path, monkeypatch):
    """Ctrl-C stops several runs and the demonstration at once; resume continues what was begun and starts the rest."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    out, asked = tmp_path / "r", ("run", "mine.py:problem", "--models", "ls,pm", *SMALL[:6], "--max-iter", 3, "--json")

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as pressed:
        pressed.setattr("sapm.train.Loop.advance", interrupt)
        assert set(json.loads(call(*asked, "--out", out, code=130).stdout)) == {"ls"} and not (out / "pm").exists()
        monkeypatch.chdir(out)
        again = ("resume", out, "--json", "--problem", "../mine.py:problem")
        assert set(json.loads(call(*again, code=130).stdout)) == {"ls"}
        stopped = call("demo", "-o", tmp_path / "r.html", "-q", code=130)
        assert "interrupted" in stopped.stderr and not (tmp_path / "r.html").exists()
    sentence = f"has not begun pm, and its problem is code; name it again: --problem {tmp_path / 'mine.py'}:problem"
    assert sentence in call("resume", out, "--json", code=2).stderr  # no file says which code is run
    found = json.loads(call(*again).output)
    monkeypatch.chdir(tmp_path)
    whole = json.loads(call(*asked).output)
    assert {model: run["seeds"] for model, run in found.items()} == {model: run["seeds"] for model, run in whole.items()}
    (out / "models.json").write_text("{")
    assert "models.json is damaged" in call("resume", out, code=2).stderr


def test_output_that_nobody_reads_and_numbers_without_a_name():
    """`sapm list | true` is no error; JSON has null for what is not finite; figures take losses up to the largest number."""
    command = [sys.executable, "-m", "sapm", "list"]
    for more in ([], ["--json"]):
        with subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdout.close()
            assert process.stderr.read() == b"" and process.wait(60) == 0
    assert plain({"a": [np.float64("nan"), (1.0,)], "b": np.array([np.inf])}) == {"a": [None, [1.0]], "b": [None]}
    assert np.array_equal(_positive(np.array([1e300, 1e-300, 0, np.inf])), [1e200, 1e-200, np.nan, np.nan], equal_nan=True)
    for error in (MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: 9 TiB")):
        assert checks.expected(error) and "the memory is not enough" in checks.sentence(error)


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
