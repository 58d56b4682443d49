"""The command line: what it prints, what it writes, what it refuses, and with which exit code."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import onnx.reference
import pytest
from command import call
from scipy.io import loadmat
from typer.testing import CliRunner

import sapm
from sapm.catalogue import CATALOGUE
from sapm.cli import terminal
from sapm.cli.main import app
from sapm.errors import json_safe
from sapm.results import files
from sapm.results.page import for_log_axis

SMALL = (
    "--depth",
    2,
    "--width",
    4,
    "--seeds",
    2,
    "--set",
    "points=30",
    "--set",
    "boundary_points=10",
    "--set",
    "test_points=20",
)
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
def checks(): assert number == 4, "not four"
def leaves(): sys.exit("no problem today")
"""


PAIR = """
import sapm
problem = sapm.PDE(
    sapm.Box(x=(0, 1)),
    lambda p, u, v: (u.x - v.value, v.x + u.value),
    [sapm.Dirichlet((0, 1), faces=["x-"])],
)
"""


def test_help_is_light():
    """What the commands import before they know what to do, and what starts several processes."""
    heavy = {"jax", "numpy", "matplotlib", "sklearn", "scipy"}
    code = (
        "import sys, sapm.cli.main, sapm.cli.studies, sapm.training.processes; "
        f"assert not {heavy} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert all(
        name in call("--help").output
        for name in ("demo", "reproduce", "resume", "predict", "export")
    )
    assert call("--version").output.strip() == sapm.__version__
    assert "transport_3d" in call("list").output and set(
        json.loads(call("list", "--json").stdout)
    ) == set(CATALOGUE)
    assert json.loads(call("info", "--json").stdout)["version"] == sapm.__version__


@pytest.mark.slow
def test_run_resume_report_predict_export(tmp_path, monkeypatch):
    """A run in a folder, continued, reported, evaluated at points from a file and written in four
    formats.
    """
    out = tmp_path / "b[/a] :smile:"  # nothing in a path is markup
    asked = ("run", "transport_1d", *SMALL, "--set", "method=alternating")
    assert f"kept in {out}" in call(*asked, "--max-iter", 8, "--out", out, "--quiet").output
    assert {"config.json", "history.jsonl", "model.sapm", "report.html"} <= {
        p.name for p in out.iterdir()
    }
    monkeypatch.chdir(out)
    resumed = json.loads(call("resume", ".", "--max-iter", 16, "--json").stdout)[out.name]
    straight = json.loads(call(*asked, "--max-iter", 16, "--json").stdout)["sapm"]
    assert resumed["seeds"] == straight["seeds"] and resumed["certificate"]["holds"]
    ended = "has already ended, so nothing was done; to continue it, give --max-iter above 16"
    assert ended in call("resume", ".", "--quiet").output
    assert (
        ended not in call("resume", ".", "--max-iter", 99, "--max-seconds", 1e-9, "--quiet").output
    )
    assert (
        "It is given by --width" in call("run", "transport_1d", "--set", "widht=3", code=2).stderr
    )
    assert "Theorem 3 holds" in call("report", out).output
    u = sapm.load(out / "model.sapm").best
    points = tmp_path / "points.csv"
    points.write_text("note,x,t\na,0.5,0.25\nb,-0.5,1\n")
    lines = call("predict", out, points).output.splitlines()
    assert lines[0] == "note,x,t,u" and lines[1].startswith("a,0.5,0.25,")  # the file's own, with u
    assert float(lines[1].split(",")[3]) == u(t=0.25, x=0.5)
    call("predict", out, points, "-o", tmp_path / "u.csv")
    assert (
        json.loads(call("predict", out, points, "-o", tmp_path / "v.csv", "--json").stdout)[
            "points"
        ]
        == 2
    )
    assert (
        (tmp_path / "u.csv").read_text().splitlines()
        == (tmp_path / "v.csv").read_text().splitlines()
        == lines
    )
    for text, sentence in (
        ("t,x\n", "names its columns and has no points"),
        ("\nt,x\n\n1,a\n", "line 4, column 'x': 'a' is not a number"),
        ("t,x\n1," + "9" * 200000, "line 2 cannot be read as CSV"),
        ("t,x\n1,\udcff", "is not a text file in UTF-8"),
    ):
        points.write_text(text, errors="surrogateescape")
        assert sentence in call("predict", out, points, code=2).stderr
    x = np.array([[0.25, 0.5], [1, -0.5]])
    wanted = u(t=np.array([0.25, 1]), x=np.array([0.5, -0.5]))
    call("export", out, tmp_path / "u.onnx")
    assert onnx.load(tmp_path / "u.onnx").ir_version <= 10  # newer ones are not read everywhere
    model = onnx.reference.ReferenceEvaluator(str(tmp_path / "u.onnx"))
    assert np.allclose(model.run(None, {"points": x})[0][:, 0], wanted, rtol=1e-12)
    call("export", out, tmp_path / "new" / "u.npz")
    call("export", out, tmp_path / "u.mat")
    for ending in ("onnx", "npz", "mat"):
        (tmp_path / f"folder.{ending}").mkdir()
        assert (
            "is a folder; give the name of a file"
            in call("export", out, tmp_path / f"folder.{ending}", code=2).stderr
        )
    assert np.array_equal(np.load(tmp_path / "new" / "u.npz")["W2"], u.weights[1][0])
    assert np.array_equal(loadmat(tmp_path / "u.mat")["W1"], u.weights[0][0])


@pytest.fixture(scope="module")
def network():
    """An untrained network of one variable."""
    x = np.linspace(-1, 1, 10)
    tiny = {"depth": 3, "width": 4, "seeds": 1, "max_iter": 0, "progress": False}
    return sapm.solve(sapm.Regression(x, x**2), **tiny).best


def test_without_torch(network, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match="pip install torch"):
        network.to_torch()


def test_what_is_given_to_torch(network, monkeypatch):
    """Layers of the right sizes and numbers, in the right order; NumPy takes the part of PyTorch."""

    class Linear:
        def __init__(self, inputs, outputs, dtype):
            self.weight = np.zeros((outputs, inputs), dtype).view(Parameter)
            self.bias = np.zeros(outputs, dtype).view(Parameter)

        def __call__(self, x):
            return x @ self.weight.T + self.bias

    class Parameter(np.ndarray):
        def copy_(self, other):
            assert other.shape == self.shape
            self[...] = other

    def sequential(*modules):
        def apply(x):
            for module in modules:
                x = module(x)
            return x

        return apply

    others = dict.fromkeys(("ReLU", "Sigmoid", "Softplus"))
    nn = SimpleNamespace(
        Module=object, Linear=Linear, Sequential=sequential, Tanh=lambda: np.tanh, **others
    )
    torch = ModuleType("torch")
    vars(torch).update(nn=nn, float64=float, from_numpy=np.asarray, no_grad=nullcontext)
    monkeypatch.setitem(sys.modules, "torch", torch)
    x = np.linspace(-1, 1, 5)
    assert np.allclose(network.to_torch()(x[:, None])[:, 0], network(x=x), rtol=1e-12)


def test_with_torch(network):
    """The same numbers."""
    torch = pytest.importorskip("torch", exc_type=ImportError)
    u = network
    x = np.linspace(-1, 1, 5)
    assert np.allclose(
        u.to_torch()(torch.tensor(x[:, None])).detach().numpy()[:, 0], u(x=x), rtol=1e-12
    )


@pytest.mark.slow
def test_own_problem_and_several_models(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    spec = f"{tmp_path / 'mine.py'}:problem"
    asked = (
        "run",
        spec,
        "--models",
        "ls,pm",
        *SMALL[:6],
        "--max-iter",
        3,
        "--out",
        tmp_path / "r",
        "--json",
    )
    found = json.loads(call(*asked).stdout)
    assert set(found) == {"ls", "pm"} and found["pm"]["certificate"]["holds"] is None
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == ["ls", "pm"]
    assert (
        f"is not empty; continue its run with sapm resume {tmp_path / 'r' / 'ls'}"
        in call(*asked, code=2).stderr
    )
    several = f"holds several runs; give one of {tmp_path / 'r' / 'ls'}, {tmp_path / 'r' / 'pm'}."
    for command in (["predict", tmp_path / "r", tmp_path / "x.csv"], ["resume", tmp_path / "r"]):
        assert several in call(*command, code=2).stderr
    for bad, sentence in (
        (tmp_path / "none.py:problem", "does not exist"),
        (tmp_path / "mine.py", "got a file without the name of a problem; it has problem"),
        (f"{tmp_path / 'mine.py'}:problm", "has no 'problm'; it has "),
        (f"{tmp_path / 'mine.py'}:number", "got a int, expected a sapm.PDE"),
        (f"{tmp_path / 'mine.py'}:fails", "could not be run: KeyError: 'key'"),
        (f"{tmp_path / 'mine.py'}:checks", "could not be run: AssertionError: not four"),
        (f"{tmp_path / 'mine.py'}:leaves", "could not be run: SystemExit: no problem today"),
    ):
        assert sentence in call("run", bad, code=2).stderr


def never_trained(problem, out=None, **settings):
    """In place of `sapm.solve`: Ctrl-C after the first checkpoint."""
    if out is not None:
        (out / "checkpoint").mkdir(parents=True)
        (out / "checkpoint" / "latest.sapm").write_text("")
    raise KeyboardInterrupt


@pytest.mark.slow
def test_models_alike(tmp_path, monkeypatch):
    """Two models that "auto" trains alike are warned of before they are trained, and told how to
    compare them if there is a way.
    """
    monkeypatch.setattr("sapm.driver.solve.solve", never_trained)
    (tmp_path / "pair.py").write_text(PAIR)
    monkeypatch.chdir(tmp_path)

    def said(problem, *more):
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            return call("run", problem, *SMALL, "--models", "ls,sapm", *more, code=130).stderr

    warned = "sapm: warning: all these models are trained on the true loss, so they differ only"
    assert f"{warned} by rounding; use --method gauss-newton" in said("transport_1d")
    assert f"{warned} by rounding.\n" in said("pair.py:problem")
    assert warned not in said("transport_1d", "--method", "gauss-newton")


def test_the_command_that_continues_a_run(tmp_path, monkeypatch):
    """It names the problem, also a built-in one, whose equation a file may not hold. An interrupt
    is one line even where tracebacks are asked for.
    """
    monkeypatch.setattr("sapm.driver.solve.solve", never_trained)
    monkeypatch.setenv("SAPM_TRACEBACK", "1")
    folder = tmp_path / "a run"
    stderr = call("run", "heat_1d", *SMALL, "--out", folder, code=130).stderr
    assert f"continue with: sapm resume '{folder}' --problem heat_1d\n" in stderr
    assert "Traceback" not in stderr


def test_what_ends_a_command_that_can_be_continued():
    """A failed write and an interrupt have advice; output that nobody reads ends the command."""
    for error in (OSError("disk full"), KeyboardInterrupt()):
        with pytest.raises(terminal.Continuable) as caught, terminal.continued_by(lambda: "again"):
            raise error
        assert caught.value.advice == "again"
    with pytest.raises(BrokenPipeError), terminal.continued_by(lambda: "again"):
        raise BrokenPipeError


def test_the_papers_budgets(monkeypatch):
    """A thousand iterations are for the paper's own methods. A pair of model and method that does
    not exist is refused before anything is trained.
    """
    asked = ("run", "transport_1d", *SMALL, "--json")
    iterations = []

    def solve(problem, **settings):
        iterations.append(settings.get("max_iter"))
        raise KeyboardInterrupt

    monkeypatch.setattr("sapm.driver.solve.solve", solve)
    for more in ("method=auto", "method=gauss-newton", "method=alternating", "max_iter=7"):
        call(*asked, "--set", more, code=130)
    assert iterations == [None, None, 1000, 7]
    call(*asked, "--models", "ls,sapm", "--method", "gd", code=2)
    assert len(iterations) == 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "transprt_1d"], "Did you mean 'transport_1d'"),
        (["run", "transport_1d", "--models", "spam"], "Did you mean 'sapm'"),
        (["run", "transport_1d", "--seeds", "ten"], "got 'ten', expected a number of seeds"),
        (["run", "transport_1d", "--set", "actvation=sin"], "Did you mean 'activation'"),
        (
            ["run", "transport_1d", "--set", "method=alternating", "--set", "options.jont=true"],
            "Did you mean 'joint'",
        ),
        (["run", "transport_1d", "--set", "points"], "has no value; write --set key=value"),
        (["run", "transport_1d", "--depth", "1"], "depth=1 is too small"),
        (["run", "transport_1d", "--depth", "0"], "depth=0 is too small"),
        (
            ["run", "transport_1d", "--width", "0", "--models", "ls,pm", "--out", "new"],
            "width=0 is too small",
        ),
        (["resume", "nowhere"], "nowhere does not exist"),
        (["report", "."], "is not the folder of a run"),
        (
            ["reproduce", "transport_2d"],
            "is not in the paper; there are function_1d, function_10d, transport_1d, transport_3d and all. Did you",
        ),
        (["run", "transport_1d", "--method", "adm"], "Did you mean 'adam'"),
        (["run", "nothing"], "unknown problem: got 'nothing'"),
        (
            ["reproduce", "transport_1d", "--sizes", "7,7"],
            "is not in the paper; there are transport_1d: 6,10",
        ),
        (["reproduce", "transport_1d", "--sizes", "7"], "got '7', expected depth,width"),
    ],
)
def test_refusals(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sentence in call(*arguments, code=2).stderr
    assert not list(tmp_path.iterdir())


def test_a_read_only_folder_is_refused(tmp_path):
    """Nowhere to write: one sentence."""
    (tmp_path / "file").write_text("")
    assert (
        "is a file"
        in call("run", "transport_1d", *SMALL, "--out", tmp_path / "file", code=2).stderr
    )
    assert call(
        "run", "transport_1d", *SMALL, "--out", tmp_path / "file" / "run", code=2
    ).stderr.startswith("sapm: ")


@pytest.mark.slow
def test_interrupt_ends_a_series(tmp_path, monkeypatch):
    """Ctrl-C stops several runs and the demonstration at once; the run that was begun is continued
    by its own folder.
    """
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "r"
    asked = ("run", "mine.py:problem", "--models", "ls,pm", *SMALL[:6], "--max-iter", 3, "--json")

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as pressed:
        pressed.setattr("sapm.training.loop.Training.advance", interrupt)
        stopped = call(*asked, "--out", out, code=130)
        assert set(json.loads(stopped.stdout)) == {"ls"} and not (out / "pm").exists()
        again = (
            f"continue with: sapm resume {out / 'ls'} --problem mine.py:problem; not started: pm"
        )
        assert again in stopped.stderr
        stopped = call("demo", "-o", tmp_path / "r.html", "-q", code=130)
        assert "interrupted" in stopped.stderr and not (tmp_path / "r.html").exists()
    resumed = json.loads(call("resume", out / "ls", "--json").stdout)
    assert resumed["ls"]["seeds"] == json.loads(call(*asked).stdout)["ls"]["seeds"]


def test_output_that_nobody_reads_and_numbers_without_a_name():
    """`sapm list | true` is no error; JSON has null for what is not finite; figures take losses up
    to the largest number.
    """
    command = [sys.executable, "-m", "sapm", "list"]
    for more in ([], ["--json"]):
        with subprocess.Popen(
            [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            process.stdout.close()
            assert process.stderr.read() == b"" and process.wait(60) == 0
    assert json_safe({"a": [np.float64("nan"), (1.0,)], "b": np.array([np.inf])}) == {
        "a": [None, [1.0]],
        "b": [None],
    }
    assert np.array_equal(
        for_log_axis(np.array([1e300, 1e-300, 0, np.inf])),
        [1e200, 1e-200, np.nan, np.nan],
        equal_nan=True,
    )
    for error in (MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: 9 TiB")):
        assert terminal.expected(error) and "there is not enough memory" in terminal.sentence(error)


def test_line_breaks_in_errors():
    """A line break is part of a name in an error of the package; of others the first line counts."""

    def others_error():
        raise ValueError("no such shape\nand a long explanation.")

    said = []
    for function in (lambda: files.read(Path("a.\nb")), others_error):
        with pytest.raises((ValueError, FileNotFoundError)) as caught:
            function()
        said.append(terminal.sentence(caught.value))
    assert said[0].startswith(r"a.\nb does not exist") and said[1] == "no such shape"


@pytest.mark.slow
def test_interrupt_keeps_the_run(tmp_path):
    """Ctrl-C: exit code 130, the state saved, the command to continue with."""
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "sapm",
        "run",
        "function_1d",
        "--max-iter",
        "1000000",
        "--seeds",
        "1",
        "--out",
        str(out),
    ]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    deadline = time.monotonic() + 120
    while (
        not (out / "history.jsonl").exists()
        or len((out / "history.jsonl").read_text().splitlines()) < 20
    ):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert (
        process.returncode == 130
        and f"continue with: sapm resume {out}" in stderr
        and "Traceback" not in stderr
    )
    assert sapm.load(out / "model.sapm").table[0]["status"] == "interrupted"


HEAT = """
import sapm
start = sapm.Initial(lambda p: p.x * (1 - p.x))
problem = sapm.PDE(sapm.Box(t=(0, 1), x=(0, 1)), lambda p, u: u.t - u.xx, [start, sapm.Dirichlet(0)])
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("always:no page is written")
def test_an_interrupt_while_the_error_is_estimated(tmp_path, monkeypatch):
    """The run is over, and its table is shown; so it is when Ctrl-C ends the run, without an
    estimate.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heat.py").write_text(HEAT)

    def pressed(self, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr("sapm.results.result.Result.error_estimate", pressed)
    asked = ("run", "heat.py:problem", *SMALL, "--max-iter", 2, "--quiet")
    cut = call(*asked, code=130)
    assert "true loss" in cut.output and "has ended" not in cut.output
    assert "error_estimate" not in json.loads(call(*asked, "--json", code=130).stdout)["sapm"]
    kept = call(*asked, "--out", "kept", code=130)
    assert (
        "the run has ended; write its page with: sapm report kept --problem heat.py:problem"
        in kept.output
    )
    assert (tmp_path / "kept" / "model.sapm").exists()

    def fails(self):
        raise AssertionError("u is positive")

    monkeypatch.setattr("sapm.results.result.Result.error_estimate", fails)
    lost = call(*asked, "--json")
    assert (
        "no page is written, since the error could not be estimated: AssertionError: u is"
        in lost.stderr
    )
    assert len(json.loads(lost.stdout)["sapm"]["seeds"]) == 2
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    told = json.loads(call(*asked, "--json", "--out", "whole").stdout)["sapm"]
    found = json.loads((tmp_path / "whole" / "summary.json").read_text())
    assert found["error_estimate"] == told["error_estimate"] and found["seeds"] == told["seeds"]
    assert told["error_estimate"]["error"] > 0 and "rror estimate" in told["error_estimate"]["text"]


def test_a_setting_given_as_an_option():
    def said(name):
        return CliRunner().invoke(app, ["run", "heat_1d", name, "300"]).output

    assert "It is a setting: --set points=…" in said("--points")
    assert "It is a setting: --set boundary_points=…" in said("--boundary-points")
    assert "No such option: --pointz" in said("--pointz") and "setting" not in said("--pointz")
