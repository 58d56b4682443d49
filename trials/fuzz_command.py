"""Random command lines and configuration files."""

from __future__ import annotations

import functools
import json
import os
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from trials.harness import ill_said
from trials.mutations import WRONG

MINE = """
import jax.numpy as jnp, numpy as np, sapm
x = np.linspace(-1, 1, 20)
tiny = sapm.Regression(x, np.sin(x))
function = sapm.Function(sapm.Box(x=(-1, 1)), lambda p: jnp.sin(p.x))
number = 3
def fails(): return {}["key"]
def late(): return sapm.Function(sapm.Box(x=(-1, 1)), Late())
class Late:
    calls = 0
    def __call__(self, p):
        Late.calls += 1
        if Late.calls > 2: raise KeyError("too late")
        return p.x
"""
HOSTILE = [
    "", " ", ".", "..", "/", "-", "--", "\x00", "a\nb", "\x1b[31m", "\u202e", "é", "💥", "\udcff",
    "<script>alert(1)</script>", "[red]",
    "[/x]", "${HOME}", "$(touch pwned)", "`id`", "; rm -rf x", "'", '"', "%s%n", "../../x",
    "/proc/nope/x", "/dev/null/x",
    "a" * 300,
    "a" * 5000, "NaN", "inf", "1e999", "-1", "0", "0x10", "1_0", "²", "١", "9" * 5000, "null",
    "true", "[", "{", "[]", "{}",
    "nan.sapm",
]  # fmt: skip
FILES = [
    "a.sapm",
    "bad.sapm",
    "run",
    "series",
    "empty",
    "points.csv",
    "bad.csv",
    "mine.py",
    "nowhere",
    "a.sapm/x",
    "link",
]
PROBLEMS = [
    "function_1d",
    "transport_1d",
    "mine.py:tiny",
    "mine.py:function",
    "mine.py:number",
    "mine.py:fails",
    "mine.py:late",
    "mine.py:",
    "mine.py",
    ":x",
    "mine.py:nope",
    "bad.csv:x",
    "nowhere.py:x",
    "empty:x",
]
COUNTS = ["0", "-1", "1", "2", "1000000000", "1" + "0" * 30, "1.5", "x", "", "nan"]
FINITE = ["0", "-1", "0.5", "1e-9", "1e308", "1e999", "nan", "inf", "x"]
SETTINGS = [
    "points=8", "points=0", "points=-1", "points=1e3", "points=null", "points=[[0.1]]",
    'points="x"',
    "points=1000000000000000", "points",
    "=", "x=1", "boundary_points=1", "boundary_points=-1", "test_points=0", "test_points=-1",
    "test_points=[1]", "method=adam",
    "method=alternating", "method=x", "method=[]", "key=-1", "key=1e30", "key=99999999999999999999",
    "init=he", "init={}",
    "start=noise",
    "mu=0", "mu=1e308", "mu=NaN", "mu=Infinity", "alpha=[1]", "alpha=[[1],[2,3]]", "beta=-1",
    "beta=1e-320", "options.l2=1e308",
    "options.patience=0", "options.x=1", "options.order=[[\"W\",1]]", "options.order=3",
    "options.chunk=4", "options.chunk=0",
    "options.precision=mixed", "options.survivors=5", "options.record_every=1", "options.=1",
    "options={}", "activation=relu",
    "activation=[1]", "max_iter=-1", "max_seconds=-1", "points=" + "[" * 5000,
    "max_iter=" + "9" * 5000,
]  # fmt: skip

word = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=12))
path = st.one_of(st.sampled_from(FILES), st.sampled_from(FILES), word)


def option(*names: str, of) -> st.SearchStrategy[list[str]]:
    return st.tuples(st.sampled_from(names), of).map(list)


def some(*options, most: int = 3) -> st.SearchStrategy[list[str]]:
    return st.lists(st.one_of(*options), max_size=most).map(
        lambda found: [w for o in found for w in o]
    )


flag = st.sampled_from([["--json"], ["--quiet"], ["-q"], ["--help"], ["--nope"], ["-x"]])
tiny = ["--max-iter", "1", "--max-seconds", "0.5", "--seeds", "1", "--depth", "2", "--width", "4",
        "--set", "points=8", "--set", "boundary_points=4", "--set", "test_points=4"]  # fmt: skip
run_options = some(
    option(
        "--models",
        of=st.one_of(
            st.sampled_from(["ls", "pm", "sapm", "ls,pm", "ls,ls", "spam", "", ",", "../x"]), word
        ),
    ),
    option("--depth", "--width", of=st.sampled_from(COUNTS)),
    option(
        "--seeds",
        of=st.one_of(st.sampled_from([*COUNTS, "1,1", "0,4294967296", "3,", ",", "1,-1"]), word),
    ),
    option("--max-iter", of=st.sampled_from(COUNTS)),
    option("--max-seconds", of=st.sampled_from(FINITE)),
    option("--set", of=st.one_of(st.sampled_from(SETTINGS), word)),
    option("--set", of=st.one_of(st.sampled_from(SETTINGS), word)),
    option("--out", "-o", of=path),
    option("--devices", of=st.one_of(st.sampled_from(["auto", "1", "0", "99", "²", "-1"]), word)),
    option("--processes", of=st.sampled_from(["0", "-1", "x", "1"])),
    st.sampled_from(
        [["--distributed", "--process", "0"], ["--address", "x:1"], ["--process", "-1"]]
    ),
    flag,
)
problem = st.one_of(st.sampled_from(PROBLEMS), st.sampled_from(PROBLEMS), word)
commands = st.one_of(
    st.tuples(st.just(["run"]), problem.map(lambda p: [p]), st.just(tiny), run_options),
    st.tuples(st.just(["run"]), problem.map(lambda p: [p]), st.just(tiny), run_options),
    st.tuples(
        st.just(["resume"]),
        path.map(lambda p: [p]),
        st.just(["--max-iter", "1", "--max-seconds", "0.5"]),
        some(
            option("--max-iter", of=st.sampled_from(COUNTS)),
            option("--problem", of=problem),
            flag,
            option("--jobs", of=st.sampled_from(COUNTS[:3])),
        ),
    ),
    st.tuples(
        st.just(["report"]),
        path.map(lambda p: [p]),
        some(option("--out", of=path), option("--problem", of=problem), flag),
    ),
    st.tuples(
        st.just(["predict"]),
        st.lists(path, max_size=3),
        some(option("--out", of=path), option("--problem", of=problem), flag),
    ),
    st.tuples(
        st.just(["export"]),
        path.map(lambda p: [p]),
        st.sampled_from(["u.npz", "u.mat", "u.x", "empty", "", "u.npz/x"]).map(lambda p: [p]),
        some(flag),
    ),
    st.tuples(
        st.just(["reproduce"]),
        st.one_of(word, st.just("convection"), st.just("all")).map(lambda p: [p]),
        st.just(["--out", "run"]),
        some(option("--models", of=word), option("--sizes", of=word), flag),
    ),
    st.tuples(
        st.just(["bench"]),
        st.lists(word, max_size=2),
        st.just(["--out", "run", "-q"]),
        some(
            option("--seconds", of=st.sampled_from(FINITE)),
            option("--seeds", of=st.sampled_from(COUNTS[:2])),
            option("--track", "--methods", of=word),
            flag,
        ),
    ),
    st.tuples(st.just(["demo", "--nope"]), some(flag)),
    st.tuples(st.sampled_from([["list"], ["info"], ["--version"], [""], ["sapm"]]), some(flag)),
    st.lists(word, max_size=4).map(lambda words: (words,)),
)


class Folder:
    """A fresh copy of some files for every case, and the command line in this process."""

    def __init__(self, scratch: Path):
        from typer.testing import CliRunner

        import sapm
        from sapm.cli.main import app

        self.app = app
        self.runner = CliRunner()
        self.clean = scratch / "clean"
        self.here = scratch / "case"
        self.clean.mkdir(parents=True)
        x = np.linspace(-1, 1, 20)
        more = {"seeds": 1, "max_iter": 1, "progress": False, "test_points": 4, "points": 8}
        result = sapm.solve(sapm.Regression(x, np.sin(x)), 2, 4, **more, out=self.clean / "run")
        result.save(self.clean / "a.sapm")
        result.report(self.clean / "r.html")
        body = (self.clean / "a.sapm").read_bytes()
        (self.clean / "bad.sapm").write_bytes(body[:-9])
        (self.clean / "points.csv").write_text("x\n0.5\n")
        (self.clean / "bad.csv").write_text("x\nabc\n")
        (self.clean / "mine.py").write_text(MINE)
        (self.clean / "empty").mkdir()
        os.chdir(self.clean)
        done = self.runner.invoke(
            app, ["run", "function_1d", "--models", "ls,pm", *tiny, "--out", "series", "-q"]
        )
        assert done.exit_code == 0, done.output
        shutil.rmtree("series/pm")
        (self.clean / "link").symlink_to("elsewhere")  # to write there is what --out link asks for

    def prepare(self) -> None:
        os.chdir(self.clean)
        shutil.rmtree(self.here, ignore_errors=True)
        shutil.copytree(self.clean, self.here, symlinks=True)
        os.chdir(self.here)

    def call(self, words: list[str]) -> dict:
        done = self.runner.invoke(self.app, words)
        error = None if isinstance(done.exception, SystemExit) else done.exception
        out = done.stdout
        said = done.stderr
        code = done.exit_code
        theirs = (
            code == 1 and "KeyError: 'too late': a mistake in the problem's code" in said
        )  # of mine.py, after the checks
        if theirs and error is None and len(said.strip().splitlines()) == 1:
            return {"outcome": "the user's own error", "ok": True, "why": ""}
        if error is not None or code not in (0, 2, 3, 4):
            return {
                "ok": False,
                "why": f"exit code {code}: {type(error).__name__} {error!s:.200}: {said[-300:]}",
            }
        if "Traceback" in out + said:
            return {"ok": False, "why": f"printed a traceback: {said[-300:]}"}
        if code == 2 and "Usage:" not in said and words:
            last = said.strip().splitlines()[-1:] or [""]
            ours = functools.reduce(
                lambda text, word: text.replace(word, "…") if len(word) > 3 else text,
                words,
                last[0],
            )
            wrong = ill_said(ours) or (
                "" if last[0].startswith("sapm: ") else "is not a sentence of ours"
            )
            return {
                "outcome": "refused",
                "ok": not wrong,
                "why": wrong and f"{wrong}: {said[-400:]}",
                "said": last[0][:200],
            }
        if (
            code == 0
            and "--json" in words
            and "--help" not in words
            and "--version" not in words
            and out.strip()
        ):
            try:
                json.loads(out, parse_constant=lambda name: 1 / 0)
            except (ValueError, ZeroDivisionError):
                return {"ok": False, "why": f"printed no JSON: {out[:200]!r}"}
        return {
            "outcome": {0: "result", 2: "refused"}.get(code, f"result, exit code {code}"),
            "ok": True,
            "why": "",
        }


class Command(Folder):
    strategy = commands.map(lambda parts: [w for part in parts for w in part])

    def __call__(self, words: list[str]) -> dict:
        return self.call(words)


# ---------------------------------------------------------------- configurations

json_values: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(WRONG),
    st.recursive(
        st.one_of(
            st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8)
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)
        ),
        max_leaves=8,
    ),
)
edits = st.lists(
    st.tuples(
        st.integers(0, 10**6), json_values, st.sampled_from(["set", "set", "set", "delete", "add"])
    ),
    min_size=1,
    max_size=3,
)
texts = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["", "{", "[" * 10**5, "null", "[]", "\ufeff{}", '{"a":' * 10**4, "NaN", "{} {}"]
    ),
).map(lambda text: text.encode("utf-8", "surrogatepass"))


def places(tree: Any, found: list | None = None) -> list:
    """Every (container, key) of a tree of JSON."""
    found = [] if found is None else found
    for key in tree if isinstance(tree, dict) else range(len(tree)):
        found.append((tree, key))
        if isinstance(tree[key], (dict, list)):
            places(tree[key], found)
    return found


def edited(tree: Any, changes: list) -> Any:
    tree = json.loads(json.dumps(tree))
    for at, value, way in changes:
        there = places(tree)
        if not there:
            return tree
        container, key = there[at % len(there)]
        if way == "delete":
            del container[key]
        elif way == "add" and isinstance(container, dict):
            container["more"] = deepcopy(value)
        else:
            container[key] = deepcopy(value)
    return tree


class Configuration(Folder):
    """Files that say what is to be run, with other values and types in them, continued or reported
    on.
    """

    strategy = st.tuples(
        st.sampled_from(["plan", "checkpoint", "checkpoint", "checkpoint", "side", "bench"]),
        st.one_of(edits, edits, edits, texts),
        st.booleans(),
    )

    def __init__(self, scratch: Path):
        super().__init__(scratch)
        from sapm.results import files
        from sapm.studies.reproduce import plan

        self.files = files
        self.arrays, self.about = files.read(self.clean / "run" / "checkpoint" / "latest.sapm")
        (self.clean / "plan").mkdir()
        (self.clean / "plan" / "reproduce.json").write_text(
            json.dumps(plan(["transport_1d"], ["sapm"], [(6, 10)], True))
        )
        (self.clean / "bench" / "cells").mkdir(parents=True)
        (self.clean / "bench" / "env.json").write_text(
            json.dumps({"processor": "x", "devices": [], "cores_per_job": 2})
        )

    def __call__(self, drawn: tuple) -> dict:
        from filelock import FileLock

        kind, change, direct = drawn
        here = self.here
        configurations = {
            "plan": "plan/reproduce.json",
            "side": "run/config.json",
            "bench": "bench/env.json",
        }
        if kind in configurations:
            file = here / configurations[kind]
            body = (
                change
                if isinstance(change, bytes)
                else json.dumps(edited(json.loads(file.read_text()), change)).encode()
            )
            file.write_bytes(body)
        else:
            about = (
                {}
                if isinstance(change, bytes)
                else self.about | {"config": edited(self.about["config"], change)}
            )
            self.files.write(here / "run" / "checkpoint" / "latest.sapm", self.arrays, about)
        limits = ["--max-iter", "1", "--max-seconds", "0.5", "-q", "--json"]
        if kind == "plan":  # what is right is not run: the folder is in use
            with FileLock(here / "plan" / ".lock"):
                found = self.call(["resume", "plan", "-q", "--json"])
            return found | {"ok": found["ok"] and found["outcome"] == "refused"}
        if kind == "bench":
            return self.call(
                ["bench", "function_1d", "--out", "bench", "--seconds", "1", "--seeds", "1", "-q"]
            ) | {"kind": kind}
        if direct:
            return self.call(["report", "run", "--json"])
        return self.call(["resume", "run", *limits])
