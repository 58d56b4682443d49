"""Bad files, bad input and hostile strings: short versions of `trials/`, which has them by the
thousand.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from command import call
from problems import curve
from safetensors.numpy import load_file
from typer.testing import CliRunner

import sapm
from sapm.cli.main import app
from sapm.problem import samples
from sapm.problem.samples import check_same_problem
from sapm.problem.stored import ProblemRecord, SamplesRecord
from sapm.results import export, files, page, records

ROOT = Path(__file__).parents[2]
X = np.linspace(-1, 1, 10)


def trial(name: str):
    """A module of `trials/`, by its path."""
    spec = importlib.util.spec_from_file_location(f"trial_{name}", ROOT / "trials" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mutations = trial("mutations")


@pytest.fixture(scope="module")
def result():
    return sapm.solve(curve(), depth=2, width=4, seeds=1, max_iter=0, progress=False)


@pytest.fixture(scope="module")
def file(result, tmp_path_factory):
    return result.save(tmp_path_factory.mktemp("file") / "a.sapm")


def refused(call, *names) -> str:
    """The sentence of a ValueError or OSError that has these names in it."""
    with pytest.raises((ValueError, OSError)) as error:
        call()
    said = str(error.value)
    assert "\n" not in said and len(said) < 600 and all(str(name) in said for name in names)
    return said


# ---------------------------------------------------------------- files


def test_damage_is_noticed_or_does_no_harm(file, tmp_path):
    """300 seeded changes of the bytes or the header: a sentence that names the file, or the very
    same arrays and description.
    """
    body, (arrays, about) = file.read_bytes(), files.read(file)
    path = tmp_path / "b.sapm"
    makers = [*mutations.BYTES.values(), mutations.header]
    for k in range(300):
        draw = np.random.default_rng([7, k])
        path.write_bytes(makers[k % len(makers)](draw, body))
        try:
            found, said = files.read(path)
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error) and len(str(error)) < 600
        else:
            assert said == about and found.keys() == arrays.keys()
            assert all(np.array_equal(a, found[name], equal_nan=True) for name, a in arrays.items())
    path.write_bytes(mutations.rewritten(np.random.default_rng(0), body))
    assert files.read(path)[1] == about


def test_forged_files(file, tmp_path):
    """Wrong contents under a right checksum: what each refusal says. `test_forged_files.py` changes
    every leaf.
    """
    arrays, about = files.read(file)
    path = tmp_path / "b.sapm"
    less = {name: value for name, value in about["config"].items() if name != "mu"}

    def claimed(**changes):
        files.write(path, arrays, about | {"config": about["config"] | changes})
        return refused(lambda: sapm.load(path), path)

    assert "depth=1000000000 must be" in claimed(depth=10**9)
    assert "it has 2 layers, expected 3 by its settings" in claimed(depth=3)
    assert "width=1000000000 must be" in claimed(width=10**9)
    assert "expected (1000000,) by its settings" in claimed(width=10**6)
    assert "settings: got none for mu" in refused(
        lambda: records.check(path, arrays, about | {"config": less}), path
    )
    assert "method='evil' is not known" in claimed(method="evil")
    assert "key=None must be" in claimed(key=None)
    less = {
        name: value
        for name, value in about["config"]["options"].items()
        if name not in ("patience", "stall")
    }
    files.write(path, arrays, about | {"config": about["config"] | {"options": less}})
    assert (
        sapm.load(path).config["options"] == about["config"]["options"]
    )  # as from a version that did not have them
    assert "'evil', which gauss-newton does not know" in claimed(options={"evil": 1})
    shape = arrays["network/W1"].shape
    spoilt = {
        name: a * np.nan
        for name, a in arrays.items()
        if name.startswith("state/") and a.shape == shape
    }
    files.write(path, arrays | spoilt, about)
    assert "its networks are not those of its state" in refused(lambda: sapm.load(path), path)
    wider = arrays | {"network/W1": np.repeat(arrays["network/W1"], 2, axis=2)}
    assert "network: it has 2 inputs, expected 1 by its samples" in refused(
        lambda: records.check(path, wider, about), path
    )
    spoilt = arrays | {"samples/term0/y": np.full_like(arrays["samples/term0/y"], np.inf)}
    assert "not finite" in refused(lambda: records.check(path, spoilt, about), path)
    spoilt = {name: a for name, a in arrays.items() if name != "samples/test/x"}
    assert "samples/test has ['y'], expected x and y" in refused(
        lambda: records.check(path, spoilt, about), path
    )
    files.write(path, {name: a for name, a in arrays.items() if name != "history/phase"}, about)
    assert "has no history of phase, so it cannot be continued" in refused(
        lambda: sapm.resume(path, 5), path
    )
    files.write(path, arrays, about | {"units": about["units"] | {"center": [0.0, 0.0]}})
    assert "units: center has 2 numbers, not 1" in refused(lambda: sapm.load(path), path)


def test_a_good_file_is_read_whatever_the_rule_for_units_says_now(file, result, monkeypatch):
    """Units are rounded to powers of two, so that the last digit of a mean may decide: a file has
    those it was made with.
    """
    monkeypatch.setattr(
        samples,
        "_suitable_scaling",
        lambda given: samples.Scaling(np.full(1, 9.0), np.ones(1), 7.0),
    )
    assert np.array_equal(sapm.load(file).best([0.0, 0.5]), result.best([0.0, 0.5]))


def test_files_of_equal_shapes_are_traced_once(file, monkeypatch):
    engine = type(sapm.load(file).run.engine)
    monkeypatch.setattr(engine, "init", lambda self, key: pytest.fail("traced again"))
    assert np.isfinite(sapm.load(file).best([0.0])).all()


BOX = sapm.Box(x=(-1, 1))
START = sapm.Dirichlet(lambda p: 1.0, faces=["x-"])
STATED = {
    "another equation": (
        lambda c: sapm.PDE(BOX, lambda p, u: u.x + c * u.value, START),
        3.0,
        0.0,
        "term0/c0 differs",
    ),
    "small data": (lambda c: sapm.Regression(X, c * X), 1e-10, 2e-10, "term0/y differs"),
    "far from 0": (lambda c: sapm.Regression(1e9 + X + c, X), 0.0, 0.1, "term0/x differs"),
    "large data": (
        lambda c: sapm.Regression(X, np.stack([1e9 * X, c * X], 1)),
        1e-2,
        2e-2,
        "term0/y differs",
    ),
    "roots": (
        lambda c: sapm.PDE(BOX, lambda p, u: u.x - c * jnp.sqrt(u.value), START),
        1.0,
        2.0,
        "term0/probe differs",
    ),
    "another kind": (
        lambda c: sapm.Regression(X, X) if c else sapm.PDE(BOX, lambda p, u: u.x, START),
        1,
        0,
        "got a PDE, expected a Regression",
    ),
}


@pytest.mark.parametrize("name", STATED)
def test_another_problem_is_noticed(name):
    """By its numbers, whatever their size is; and the same one is not refused, also where its
    residual is not a number.
    """
    make, c, other, sentence = STATED[name]
    problem = make(c)
    about = {"points": 20, "boundary_points": 8, "test_points": 5, "mu": 1.0, "options": {}}
    about["problem"], held = type(problem).__name__, problem.samples(20, 8, 5, 1.0)
    arrays = samples.to_arrays(held)
    check_same_problem(problem, held, about, arrays)
    with pytest.raises(ValueError, match=f"is not the stored one.*{sentence}"):
        check_same_problem(make(other), held, about, arrays)
    if name == "roots":
        assert np.isnan(arrays["term0/probe"]).any()
        described = ProblemRecord.from_json(samples.describe(held))
        SamplesRecord.from_arrays(described, arrays)  # nothing is refused


def test_a_long_description(file, tmp_path, monkeypatch):
    """A million seeds have more to say than a header holds: it is an array then, and checked as
    well.
    """
    (arrays, about), path = files.read(file), tmp_path / "b.sapm"
    monkeypatch.setattr(files, "LARGEST_HEADER_BYTES", 100)
    files.write(path, arrays, about)
    found, said = files.read(path)
    assert said == about and found.keys() == arrays.keys() and "about" in load_file(path)
    monkeypatch.setattr(files, "to_json", lambda about: "é" * 100)
    files.write(path, arrays, about)
    assert "is not JSON at line 1" in refused(lambda: sapm.load(path), path)


def test_what_is_no_file_of_ours(tmp_path, monkeypatch):
    """Other formats, pipes, devices, files larger than the memory: one sentence each, at once; and
    nothing is unpickled.
    """
    marker = tmp_path / "marker"
    for name, body in mutations.others(str(marker)).items():
        (tmp_path / name).write_bytes(body)
        refused(lambda name=name: sapm.load(tmp_path / name), tmp_path / name)
    assert not marker.exists()
    os.mkfifo(tmp_path / "pipe")
    assert "is not a file on disk" in refused(lambda: sapm.load(tmp_path / "pipe"))
    assert "is not a file on disk" in refused(lambda: sapm.load("/dev/zero"))
    monkeypatch.setattr(files, "installed_memory", lambda: 1000)
    assert "larger than the memory" in refused(lambda: sapm.load(tmp_path / "zeros"))
    assert "is damaged" in refused(lambda: files.read_json(tmp_path / "pipe"))
    for text in ("[" * 10**5, "[]", "", "\ufeff", "{"):
        (tmp_path / "a.json").write_text(text)
        assert "is damaged" in refused(
            lambda: files.read_json(tmp_path / "a.json"), tmp_path / "a.json"
        )


def test_nothing_that_loads_can_run_code():
    """No module of the package imports pickle, marshal, shelve or joblib, or calls eval, exec or an
    np.load with pickles.
    """
    for path in Path(sapm.__file__).parent.rglob("*.py"):
        text = path.read_text()
        assert not re.search(
            r"^\s*(import|from) (pickle|marshal|shelve|joblib|dill|cloudpickle)\b", text, re.M
        ), path
        assert not re.search(r"(?<![.\w])(eval|exec|compile)\(|allow_pickle=True", text), path
        assert "exec_module" not in text or path.name == "arguments.py"


# ---------------------------------------------------------------- tables of points

POINTS = {
    "x,t\n1,2\n": [[2, 1]],
    "\ufefft,x\r\n1,2\r\n": [[1, 2]],
    "t,x,note\n1,2,a\n\n3,4\n": [[1, 2], [3, 4]],
    "t,x\n1,2,,\n": [[1, 2]],
    "t,x\n1,2\n,\n , \n": [[1, 2]],
    "c," * 10**5 + "t,x\n" + "a," * 10**5 + "1,2\n": [[1, 2]],
    "t,x\n1,2,3\n": "line 2 has 3 cells, and the first line names 2 columns",
    "t,x\n1\n": "line 2, column 'x': '' is not a number",
    "t,x\n1,\n": "line 2, column 'x': '' is not a number",
    "t,x\n1,a\n": "'a' is not a number",
    "t,x\n1,1_0\n": "'1_0' is not a number",
    "t,x\n1,١\n": "is not a number",
    "t,x\n1,inf\n": "'inf' is not finite",
    "t,x\n1,1e999\n": "is not finite",
    "t,x\n1,\x1b[31m\n": r"'\x1b[31m' is not a number",
    "t,x,x\n1,2,3\n": "2 columns called 'x'",
    "t;x\n1;2\n": "has no column 't'; it has t;x. Columns are separated by commas.",
    "t,x\n": "has no points",
    "": "is empty",
}


@pytest.mark.filterwarnings("ignore:.*only those of the coordinates are copied")
def test_tables_of_points_are_read_or_refused(tmp_path):
    for k, (text, wanted) in enumerate(POINTS.items()):
        path = tmp_path / f"{k}.csv"
        path.write_text(text)
        if isinstance(wanted, list):
            assert export.read_points(path, ("t", "x")).points.tolist() == wanted, text[:20]
        else:
            said = refused(lambda path=path: export.read_points(path, ("t", "x")), path)
            assert wanted in said, text[:20]


def test_values_at_points(result, tmp_path, monkeypatch):
    """What is written can be read again, whatever the columns are called; numbers keep all their
    digits.
    """
    odd = replace(result, samples=replace(result.samples, names=('a,"b"',)))
    (tmp_path / "a.csv").write_text(export.csv_text(odd.samples.names, np.array([[0.1], [1 / 3]])))
    head, rows = export.evaluate_csv(odd.best, tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text(export.csv_text(head, rows))
    assert np.array_equal(export.read_points(tmp_path / "b.csv", head).points, rows) and head == [
        'a,"b"',
        "u",
    ]
    assert np.array_equal([row[1] for row in rows], result.best([0.1, 1 / 3]))
    (tmp_path / "c.csv").write_text(
        'u,"a,""b""",,note\n7,0.1,,x\n,1,,\n'
    )  # u is measured there, and one column has no name
    head, (first, second) = export.evaluate_csv(odd.best, tmp_path / "c.csv")
    assert (
        head == ["u", 'a,"b"', "note", "u_network"]
        and first[:3] == ("7", 0.1, "x")
        and second[:3] == ("", 1.0, "")
    )
    monkeypatch.setattr(
        export, "MOST_COPIED_COLUMNS", 3
    )  # of more, only the coordinates are copied
    with pytest.warns(UserWarning, match="has 4 columns, more than 3: only those of the"):
        assert export.evaluate_csv(odd.best, tmp_path / "c.csv")[0] == ['a,"b"', "u"]
    monkeypatch.undo()
    (tmp_path / "d.csv").write_text(
        ',"a,""b""",u,u_network\n0,1,2,3\n'
    )  # as pandas writes its index
    assert export.evaluate_csv(odd.best, tmp_path / "d.csv")[0] == [
        "",
        'a,"b"',
        "u",
        "u_network",
        "u_network_network",
    ]
    (tmp_path / "e.csv").write_bytes(b'"a,""b""",note\n5,"one\rtwo"\n0.5,\n')
    head, rows = export.evaluate_csv(odd.best, tmp_path / "e.csv")
    assert [row[:2] for row in rows] == [(5, "one\rtwo"), (0.5, "")]
    (tmp_path / "e.csv").write_bytes(export.csv_text(head, rows).encode())
    assert [row[:2] for row in export.evaluate_csv(odd.best, tmp_path / "e.csv")[1]] == [
        (5, "one\rtwo"),
        (0.5, ""),
    ]
    (tmp_path / "far.csv").write_text(
        export.csv_text(odd.samples.names, np.array([[0.1], [7.0], [-9.0]]))
    )
    with pytest.warns(
        UserWarning,
        match=r"2 of 3 points are outside of the domain \(the first in line 3\); nothing is known",
    ):
        export.evaluate_csv(
            replace(odd.best, frame=(np.zeros(1), np.ones(1))), tmp_path / "far.csv"
        )
    os.mkfifo(tmp_path / "pipe")
    assert "is not a file on disk" in refused(
        lambda: export.evaluate_csv(odd.best, tmp_path / "pipe")
    )
    odd.save(tmp_path / "run" / "model.sapm")  # a folder without its checkpoint
    done = CliRunner().invoke(app, ["predict", str(tmp_path / "run"), str(tmp_path / "a.csv")])
    assert done.output == (tmp_path / "b.csv").read_text()


def test_a_line_without_end(tmp_path, monkeypatch):
    """It is not read whole."""
    monkeypatch.setattr(export, "LONGEST_LINE_CHARACTERS", 1000)
    path = tmp_path / "a.csv"
    path.write_text("t,x\n" + "1," * 5000)
    assert "line 2 is longer than 1000 characters" in refused(
        lambda: export.read_points(path, ("t", "x")), path
    )


# ---------------------------------------------------------------- strings and places


def test_a_parameter_may_be_called_like_a_column(result):
    odd, (u,) = replace(result), result.seeds
    vars(odd)["seeds"] = (replace(u, parameters={"loss": 7.0, "status": 8.0, "k": 9.0}),)
    (row,), (plain,) = odd.table, result.table
    assert row == plain | {"p.loss": 7.0, "p.status": 8.0, "k": 9.0}


def test_files_for_people_are_json(tmp_path):
    """Which has no name for numbers that are not finite."""
    folder = files.Folder(tmp_path)
    with folder.claim:
        folder.write_json(
            "a.json", {"loss": [np.float64(np.nan), 1.5, np.inf], "seed": np.int64(3)}
        )
    assert json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail) == {
        "loss": [None, 1.5, None],
        "seed": 3,
    }


def test_hostile_strings_in_the_page(result, monkeypatch):
    """Wherever a user's text can stand in it, it is text: no element, no attribute, no formula in a
    figure.
    """
    odd = replace(result, samples=replace(result.samples, names=("$\\frac{1}{$ ＜ x \\$",)))
    assert page.image(odd.plot("solution")).startswith("<img")
    monkeypatch.setattr(page, "figures", lambda result: {})
    for text in trial("page").strings("http://example.org"):
        words = f"{text} {text[::-1]}"
        run = replace(result.run, reason=(words,))
        samples = replace(result.samples, names=(text,))
        sigma = replace(result.plan.activation, name=words)
        plan = replace(result.plan, why=words, problem=words, activation=sigma)
        written = page.page(replace(result, run=run, samples=samples, plan=plan), words)
        assert page.CONTENT_POLICY_HTML in written
        body = written.replace(page.CONTENT_POLICY_HTML, "")
        found = set(re.findall(r"<\s*([a-zA-Z!/][\w-]*)", body))
        assert {name.lower().strip("/") for name in found} <= {
            "!doctype", "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "figure", "img", "figcaption",
            "table", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd",
        }  # fmt: skip
        assert not re.search(r"<[^>]*\son\w+\s*=", body)
        str(replace(result, plan=plan).summary())


def test_no_file_says_which_code_is_run(tmp_path, monkeypatch):
    """A folder that names code, or leads out of itself, is refused; the code is not run, and
    nothing outside is written.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w')\nproblem = None\n")
    outside = tmp_path / "outside"
    (outside / "checkpoint").mkdir(parents=True)
    (tmp_path / "several").mkdir()
    (tmp_path / "several" / "ls").symlink_to(outside)
    assert "leads out of" in call("resume", tmp_path / "several", code=2).stderr
    plan = tmp_path / "plan"
    plan.mkdir()
    for wrong in ("../x", 3, None):
        (plan / "reproduce.json").write_text(
            json.dumps(
                {"experiments": ["transport_1d"], "models": [wrong], "sizes": [], "quick": 1}
            )
        )
        assert "reproduce.json is damaged" in call("resume", plan, code=2).stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "evil.py",
        "outside",
        "plan",
        "several",
    ]


@pytest.mark.parametrize("name", [".lock", "history.jsonl", "checkpoint", "checkpoint/aux-000.npy"])
def test_a_run_stays_in_its_folder(name, tmp_path):
    """A link that leads out of a run folder would be written through."""
    outside = tmp_path / ("folder" if name == "checkpoint" else "outside")
    outside.mkdir() if name == "checkpoint" else outside.write_text("mine")
    (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "run" / name).symlink_to(outside)
    with pytest.raises(ValueError, match="leads out of"):
        sapm.solve(
            curve(), depth=2, width=4, seeds=1, max_iter=0, progress=False, out=tmp_path / "run"
        )
    assert outside.is_dir() or outside.read_text() == "mine"
    with pytest.raises(ValueError, match="is not the name of a folder"), files.Claim(Path("a\0b")):
        pass


def test_the_unforeseen_has_one_line_too(monkeypatch):
    """A mistake of ours, or of the problem's code: no traceback unless it is asked for, and an exit
    code of its own.
    """

    def broken():
        raise KeyError("k\n\x1b[31m")

    monkeypatch.setattr("sapm.results.files.environment", broken)
    said = call("info", code=1).stderr
    assert (
        said.startswith("sapm: KeyError: ")
        and "SAPM_TRACEBACK=1 shows where" in said
        and "\x1b" not in said
    )
    monkeypatch.setenv("SAPM_TRACEBACK", "1")
    assert isinstance(CliRunner().invoke(app, ["info"]).exception, KeyError)


# ---------------------------------------------------------------- the trials themselves


BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ("files", "--count", "60"),
        ("records", "--cases", "200", "--only", "0.1"),
        ("fuzz", "--cases", "300"),
        ("page",),
    ],
    ids=lambda c: c[0],
)
def test_trials(command, tmp_path):
    name, *more = command
    words = [
        sys.executable,
        str(ROOT / "trials" / f"{name}.py"),
        *more,
        "--jobs",
        "2",
        "--out",
        str(tmp_path / "o.json"),
    ]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    report = tmp_path / "o.json"
    assert report.exists(), done.stdout + done.stderr
    if name == "page" and not any(map(shutil.which, BROWSERS)):
        failures = json.loads(report.read_text())["failures"]
        assert [each["case"] for each in failures] == ["browser"], done.stdout
        pytest.skip("no Chromium or Chrome is installed; all other cases pass")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(report.read_text())["passed"]
