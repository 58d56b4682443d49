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
import time
import tracemalloc
import warnings
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
from sapm.problem import samples, shapes
from sapm.problem.domain import domain_from
from sapm.problem.samples import check_same_problem
from sapm.problem.stored import ProblemRecord, SamplesRecord
from sapm.results import export, files, page, records
from sapm.results.result import best_of
from sapm.training.run import Plan

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


# ---------------------------------------------------------------- files that lie


@pytest.fixture(scope="module")
def honest(file, tmp_path_factory):
    """The contents of files by name: data, and PDEs with periodic coordinates, in a shape, and with
    points that were drawn anew.
    """
    folder = tmp_path_factory.mktemp("honest")
    half = sapm.Box(t=(0, 1), x=(-1, 1)) - sapm.Ball(2, 0.2, names=("t", "x"))
    small = {"points": 20, "boundary_points": 8, "test_points": 10, "seeds": 2, "max_iter": 0}
    settings = {
        "periodic": small,
        "shape": small | {"model": "sapm", "method": "alternating"},
        "code": small | {"method": "gauss-newton", "options": {"resample": 3, "lifted": 0}},
    }
    contents = {"data": files.read(file)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a few points determine nothing
        for name, setting in settings.items():
            made = sapm.solve(lying(name, half), 2, 4, **setting, progress=False)
            contents[name] = files.read(made.save(folder / f"{name}.sapm"))
    return contents


def lying(name, domain=None):
    """The problems of `honest`."""
    box = sapm.Box(t=(0, 1), x=(-1, 1))
    start = sapm.Initial(lambda p: jnp.sin(jnp.pi * p.x))
    if name == "periodic":
        return sapm.PDE(box, lambda p, u: u.t - u.x, [start, sapm.Periodic("x")])
    if name == "shape":
        return sapm.PDE(domain, lambda p, u: u.t + u.x, [sapm.Initial(0), sapm.Inflow(0)])
    conditions = [sapm.Dirichlet(0, faces=["x-", "x+", "t-"])]
    return sapm.PDE(box, lambda p, u: u.t + p.k * u.value, conditions, parameters={"k": 0.5})


def nested(levels):
    """A union of so many boxes in each other."""
    box = {"kind": "box", "bounds": {"t": [0.0, 1.0], "x": [-1.0, 1.0]}}
    for _ in range(levels):
        box = {"kind": "union", "parts": [box, box]}
        box["parts"][1] = {"kind": "box", "bounds": {"t": [0.0, 1.0], "x": [-1.0, 1.0]}}
    return box


LISTS = [[]]
for _ in range(600):
    LISTS = [LISTS]

# (file, where in the description, what is put there, what the error names)
LIES = [
    ("periodic", "embedding/kept", [0] * 400_000, "embedding: kept has 400000 entries"),
    ("periodic", "embedding/kept", [7], "embedding: kept=7 must be a whole number, at least 0"),
    ("periodic", "embedding/kept", [0.0], "embedding: kept=0.0 must be a whole number"),
    ("periodic", "embedding/W/0/0", np.nan, "embedding: W has nan"),
    ("periodic", "embedding/W/0", [1.0], "embedding: W has rows of"),
    ("periodic", "embedding/b", [1.0] * 20_000, "embedding: b has 20000 entries"),
    ("periodic", "embedding", None, "samples/term0/x has 3 columns, expected 2"),
    ("periodic", "units/spread/0", 0.0, "spread=0.0 must be a positive"),
    ("periodic", "units/center/0", np.inf, "center has inf"),
    ("periodic", "units/size", 10**400, "size=1000"),
    ("shape", "domain", nested(220), "domain: got more than 200 shapes"),
    ("shape", "domain/kind", "xor", "domain: kind='xor' is not known"),
    ("shape", "domain/parts", [{"kind": "box", "bounds": {}}] * 2, "domain: got a box with bounds"),
    ("shape", "domain/parts", [], "domain: got a difference with parts"),
    ("shape", "domain/parts/0/bounds/t/0", np.nan, "domain: got a box with bounds"),
    ("shape", "domain/parts/0/bounds", {"s": [0, 1], "x": [0, 1]}, "s, x and t, x"),
    ("shape", "domain/parts/1/dimension", 10**9, "Ball got dimension 1000000000"),
    ("shape", "domain/parts/1/radius", 10**400, "Ball got radius"),
    ("shape", "names", ["x", "t"], "domain has the coordinates ('t', 'x')"),
    ("shape", "domain", None, "domain=None must describe"),
    ("shape", "fields", ["u", "u"], "fields=['u', 'u'] must differ"),
    ("shape", "fields", ["u v"], "fields has 'u v'; it must be a plain word"),
    ("shape", "fields", ["u" * 20_000], "it must be a plain word"),
    ("shape", "config/points", 20_000_000, "points=20000000, and it has 20 of them"),
    ("shape", "config/test_points", 20_000_000, "test_points=20000000, and it has 10 of them"),
    ("shape", "config/boundary_points", None, "boundary_points=None must be a number"),
    ("shape", "config/options/order", [["W", 1]] * 400_000, "order has 400000 entries"),
    ("shape", "config/options/chunk", 2, "chunk=2 is for data"),
    ("shape", "config/seeds", [0, 0], "seeds: got [0, 0], expected different numbers"),
    ("shape", "seeds", [0, 1] * 10**6, "seeds has 2000000 entries"),
    ("shape", "advice", [{"kind": "outcome", "sentence": ""}] * 10**4, "advice has 10000 entries"),
    ("shape", "reason/0", "x" * 2_000_000, "reason has 2000000 characters"),
    ("shape", "sampler/share", 0.3, "sampler: share=0.3 must be 1, 1/2"),
    ("shape", "sampler/share", 0.5, "sampler: share is below 1 without stages"),
    ("shape", "sampler/residuals", [1.0] * 10**5, "too early for 100000 residuals"),
    ("shape", "sampler/visited", 10**9, "sampler: visited=1000000000 is after its last iteration"),
    ("shape", "env", [], "env must be a dictionary"),
    ("shape", "own_method", 1, "own_method=1 must be True or False"),
    ("shape", "activation_values", [0.0] * 7, "activation_values has 7 entries"),
    ("shape", "fields", LISTS, "it has more than 500 levels"),
    ("shape", "other", [[] for _ in range(6 * 10**6)], "its description has"),
    ("code", "parameters/k", 1e60, "parameters: k=1e+60 must be 0 or a number between"),
    ("code", "parameters", {"x": 0.5}, "parameters and names both have ['x']"),
    ("code", "config/options/stages", 10**9, "stages=1000000000 is above 10"),
    ("code", "config/retry", 1, "retry=1 must be True or False"),
    ("data", "fields", ["v"], "is not that of data"),
    ("data", "config/options/resample", 3, "resample and stages are for a PDE"),
]


def changed(about, where, value):
    """The description with another value at a place."""
    about = json.loads(json.dumps(about))
    *path, last = (int(key) if key.isdigit() else key for key in where.split("/"))
    inner = about
    for key in path:
        inner = inner[key]
    inner[last] = value
    return about


@pytest.mark.parametrize(
    ("name", "where", "value", "said"), LIES, ids=lambda v: "" if callable(v) else str(v)[:30]
)
def test_no_entry_of_a_description_is_believed(name, where, value, said, honest, tmp_path):
    """Whatever a number or a list says, it is refused at once, in a sentence with the file and the
    field, before anything of that size is made.
    """
    arrays, about = honest[name]
    path = tmp_path / "a.sapm"
    files.write(path, arrays, changed(about, where, value))
    tracemalloc.start()
    began = time.process_time()
    try:
        assert said in refused(lambda: best_of(path), path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * path.stat().st_size + 500e6 and time.process_time() - began < 5


ARRAY_LIES = [
    ("data", "samples/term0/y", lambda a: a * 1e60, "samples/term0/y holds numbers above 1e+50"),
    ("data", "samples/term0/y", lambda a: a * 1e-60, "samples/term0/y has numbers that are not 0"),
    ("data", "samples/term0/x", lambda a: a * np.nan, "samples/term0/x holds numbers that are not"),
    ("data", "samples/term0/weight", lambda a: -a, "samples/term0/weight is not between 0 and"),
    ("data", "samples/term0/weight", lambda a: a * 0, "samples/term0/weight is not between 0 and"),
    ("data", "samples/term0/weight", lambda a: a * 1e60, "samples/term0/weight is not between 0"),
    ("data", "samples/term0/weight", lambda a: np.ones(3), "samples/term0/weight has the shape"),
    ("data", "samples/test/y", lambda a: a * np.nan, "samples/test/y holds numbers above"),
    ("data", "network/W2", lambda a: a[:, :, :-1], "network: layer 2 is incomplete"),
    ("data", "history/iteration", lambda a: a + 0.5, "history/iteration must be whole numbers"),
    ("data", "history/loss", lambda a: a + np.inf, "history/loss has no loss"),
    ("data", "history/seconds", lambda a: a - 1e9, "history/seconds has no times"),
    ("data", "chosen", lambda a: a + 9, "chosen does not say which record"),
    ("periodic", "samples/term0/points", lambda a: a + 9, "has points outside of the domain"),
    ("periodic", "samples/term0/directions", lambda a: a[:, :, :-1], "/directions has the shape"),
    ("periodic", "samples/term1/x", lambda a: a[:, :-1], "samples/term1/x has 2 columns"),
    ("shape", "samples/term0/c", lambda a: a * 1e60, "samples/term0/c holds numbers above"),
    ("shape", "samples/term0/c", lambda a: a[:, :1], "samples/term0/c has the shape (20, 1)"),
    ("shape", "samples/term1/y", lambda a: np.repeat(a, 3, 1), "samples/term1/y has 3 columns"),
    ("shape", "samples/test/x", lambda a: a[:-1], "samples/held belongs to other points"),
    (
        "code",
        "samples/term0/unit",
        lambda a: a * 2,
        "samples/term0/unit holds units of no parameters",
    ),
    ("code", "samples/term1/of", lambda a: a + 5, "samples/term1/of names outputs that"),
]


@pytest.mark.parametrize(
    ("name", "array", "change", "said"),
    ARRAY_LIES,
    ids=lambda v: "" if callable(v) else str(v)[:30],
)
def test_no_array_is_believed(name, array, change, said, honest, tmp_path):
    arrays, about = honest[name]
    path = tmp_path / "a.sapm"
    files.write(path, arrays | {array: change(arrays[array])}, about)
    assert said in refused(lambda: best_of(path), path)


@pytest.mark.filterwarnings("ignore:the problem may not determine")
def test_numbers_of_points_are_compared_with_the_problem(honest, tmp_path):
    """Before points are drawn."""
    arrays, about = honest["code"]
    path = tmp_path / "a.sapm"
    files.write(path, arrays, changed(about, "config/boundary_points", 20_000_000))
    tracemalloc.start()
    try:
        said = refused(lambda: sapm.load(path, lying("code")), path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "boundary_points=20000000 gives 20000000 points, expected 8" in said and peak < 1e8


def test_a_network_gives_finite_numbers(honest, tmp_path):
    """Its weights are finite, and the sum of what they give is not."""
    arrays, about = honest["data"]
    path = tmp_path / "a.sapm"
    large = {"network/b1": np.full((1, 4), 99.0), "network/W2": np.full((1, 1, 4), 1e308)}
    files.write(path, arrays | large, about)
    said = "network: it gives numbers that are not finite"
    assert said in refused(lambda: best_of(path), path)
    assert said in refused(lambda: sapm.load(path), path)


def test_phases_are_those_of_the_method(honest, tmp_path):
    arrays, about = honest["data"]
    path = tmp_path / "a.sapm"
    files.write(path, arrays | {"history/phase": arrays["history/phase"] + 9}, about)
    assert "history/phase is not one of the 3 phases" in refused(lambda: sapm.load(path), path)


@pytest.mark.parametrize("error", [KeyError("k"), TypeError("t"), RecursionError("deep")])
def test_a_mistake_of_ours_is_not_called_damage(error, file, monkeypatch):
    """It has the exit code of a mistake, also if a library raises the ValueError."""

    def broken(*_):
        raise error

    monkeypatch.setattr(records, "_history", broken)
    with pytest.raises(type(error)):
        sapm.load(file)
    monkeypatch.setattr(records, "_history", lambda *_: np.zeros(3).reshape(2))
    with pytest.raises(ValueError, match="cannot reshape"):
        sapm.load(file)
    monkeypatch.undo()
    monkeypatch.setattr(Plan, "engine", broken)
    with pytest.raises(type(error)):
        sapm.load(file)


def test_a_mistake_of_ours_and_damage_have_their_exit_codes(file, tmp_path, monkeypatch):
    points = tmp_path / "a.csv"
    points.write_text("x\n0\n")
    bad = tmp_path / "b.sapm"
    files.write(bad, *changed_file(file, "names", ["x", "x"]))
    assert "is damaged: names=" in call("predict", bad, points, code=2).stderr
    monkeypatch.setattr(records, "_history", lambda *_: {}["k"])
    assert "KeyError" in call("predict", file, points, code=1).stderr


def changed_file(file, where, value):
    arrays, about = files.read(file)
    return arrays, changed(about, where, value)


def test_a_domain_is_read_without_points_and_has_few_shapes(monkeypatch):
    """As many shapes as may be stated may be read, at once."""
    monkeypatch.setattr(shapes, "halton", pytest.fail)
    domain = domain_from(nested(199))
    assert domain.names == ("t", "x") and np.array_equal(domain.frame[1], [0.5, 1.0])
    x = np.array([[0.0, 0.0], [0.5, 0.5], [2.0, 0.0]])
    assert np.array_equal(np.sign(domain.gap(x)), [0, 1, -1])
    monkeypatch.undo()
    with pytest.raises(ValueError, match="domain: got 201 shapes, expected at most 200"):
        domain | sapm.Box(t=(0, 1), x=(0, 1))


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


# ---------------------------------------------------------------- honest files


@pytest.mark.slow_cases("0.5")
@pytest.mark.parametrize(
    ("guess", "unit"), [(0.5, 0.5), (1e-6, 1.0), (0.0, 1.0)], ids=["0.5", "1e-6", "0"]
)
def test_an_unknown_number_is_read_with_any_first_guess(guess, unit, tmp_path):
    """Its unit is the guess, or the size at which the equation balances."""
    problem = sapm.PDE(
        sapm.Box(t=(0, 1)),
        lambda p, u: u.t + p.k * u.value,
        [sapm.Initial(1.0), sapm.Observed([[0.5]], [0.6])],
        parameters={"k": guess},
    )
    assert 0.5 * unit < problem.units[0] < 5 * unit
    settings = {"points": 8, "test_points": 4, "seeds": 1, "max_iter": 1, "progress": False}
    result = sapm.solve(problem, 2, 3, **settings)
    result.save(tmp_path / "a.sapm")
    for again in (sapm.load(tmp_path / "a.sapm", problem).best, best_of(tmp_path / "a.sapm")):
        assert again(t=0.5) == result.best(t=0.5)


def test_a_domain_far_from_0_is_read(tmp_path):
    """The points at its ends are inside up to the rounding of its ends."""
    problem = sapm.Function(sapm.Box(x=(1e10, np.nextafter(1e10 + 1, 2e10))), lambda p: p.x * 1e-10)
    ends = np.array([[1e10], [np.nextafter(1e10 + 1, 2e10)]])
    settings = {"points": ends, "test_points": 2, "seeds": 1, "max_iter": 1, "progress": False}
    result = sapm.solve(problem, 2, 3, **settings)
    result.save(tmp_path / "a.sapm")
    assert sapm.load(tmp_path / "a.sapm").best(x=1e10) == result.best(x=1e10)
