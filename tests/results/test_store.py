"""Save, load, resume: bit for bit, whole or not at all, and one sentence for what cannot be read."""

import errno
import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from command import call as sapm_command
from problems import SMALL, curve, transport
from safetensors.numpy import save_file

import sapm
from sapm.driver import solve as driver
from sapm.methods.method import METHODS
from sapm.results import export, files


def same(a, b) -> None:
    """Equal in every number but the seconds."""
    assert a.history.keys() == b.history.keys()
    for name in a.history.keys() - {"seconds"}:
        assert np.array_equal(a.run.history[name], b.run.history[name], equal_nan=True), name
    for x, y in zip(jax.tree.leaves(a.run.states), jax.tree.leaves(b.run.states), strict=True):
        assert x.dtype == y.dtype and np.array_equal(x, y)


RUNS = {
    "gauss-newton": (transport, SMALL),
    "lifted": (curve, {"depth": 3, "width": 4, "seeds": 2, "progress": False}),
    "sweeps": (transport, SMALL | {"method": "alternating"}),
    "polish": (
        curve,
        {
            "depth": 2,
            "width": 4,
            "seeds": 2,
            "method": "alternating",
            "start": "noise",
            "options": {"polish_after": 7},
            "progress": False,
        },
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_resumed_equals_uninterrupted(name, tmp_path):
    """Cut at 13 iterations and again at 24, in a folder and in a file: the same numbers, and no
    problem's code is needed.
    """
    make, settings = RUNS[name]
    whole = sapm.solve(make(), **settings, max_iter=130)
    sapm.solve(make(), **settings, max_iter=13, out=tmp_path / "run")
    middle = sapm.resume(tmp_path / "run", max_iter=104, progress=False)
    middle.save(tmp_path / "middle.sapm")
    same(sapm.resume(tmp_path / "run", max_iter=130, progress=False), whole)
    end = sapm.resume(tmp_path / "middle.sapm", max_iter=130, progress=False)
    same(end, whole)
    assert end.table == whole.table
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    ]
    assert [line["iteration"] for line in lines] == list(whole.history["iteration"][0])
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        ".lock", "config.json", "env.json", "history.jsonl", "checkpoint", "summary.json", "model.sapm",
    }  # fmt: skip
    assert (
        json.loads((tmp_path / "run" / "summary.json").read_text())["seeds"][0]["reason"]
        == "ran all 130 iterations."
    )


ALL_METHODS = {
    f"{name}, {model}": {"method": name, "model": model}
    for name, method in METHODS.items()
    for model in method.models
}
ALL_METHODS |= {
    f"alternating, {name}={value}": {"method": "alternating", "options": {name: value}}
    for name, value in {"joint": True, "shared": True, "precision": "mixed"}.items()
}
ALL_METHODS["gauss-newton, free"] = {
    "method": "gauss-newton",
    "model": "ls",
    "options": {"algebra": "free"},
}


@pytest.mark.parametrize("name", ALL_METHODS)
def test_every_method_resumes(name, tmp_path):
    """Cut in the middle: a file holds all that the next step of any method needs."""
    settings = {"depth": 2, "width": 3, "seeds": 2, "progress": False} | ALL_METHODS[name]
    whole = sapm.solve(curve(12), **settings, max_iter=6)
    sapm.solve(curve(12), **settings, max_iter=3).save(tmp_path / "cut.sapm")
    resumed = sapm.resume(tmp_path / "cut.sapm", max_iter=6, progress=False)
    same(resumed, whole)
    assert resumed.table == whole.table
    assert np.all(whole.history["loss"][:, 6] < whole.history["loss"][:, 3])


def test_stalled_and_validated_runs_resume(tmp_path):
    """What stalled stays stalled; the network kept for its validation loss is kept."""
    x = np.linspace(-1, 1, 20)
    noisy = np.random.default_rng(0).normal(size=20)
    problem = sapm.Regression(x, x + 0.3 * noisy, validation=(x + 0.05, x))
    settings = {
        "depth": 2,
        "width": 8,
        "seeds": 2,
        "model": "ls",
        "options": {"patience": 30},
        "progress": False,
    }
    whole = sapm.solve(problem, **settings, max_iter=200)
    sapm.solve(problem, **settings, max_iter=20, out=tmp_path / "run")
    resumed = sapm.resume(tmp_path / "run", max_iter=200, progress=False)
    same(resumed, whole)
    assert resumed.table == whole.table and {row["status"] for row in whole.table} == {"stalled"}
    chosen = whole.history["validation_loss"].argmin(1)
    assert np.array_equal(whole.run.chosen, chosen) and np.all(
        chosen < whole.history["loss"].shape[1] - 1
    )
    for i, u in enumerate(whole.seeds):
        assert np.mean((u(x + 0.05) - x) ** 2) == pytest.approx(
            whole.history["validation_loss"][i, chosen[i]], rel=1e-10
        )
    assert whole.table[0]["loss"] == whole.history["loss"][0, chosen[0]]


def test_saved_and_loaded(tmp_path):
    result = sapm.solve(transport(), **SMALL, max_iter=3)
    result.save(tmp_path / "a.sapm")
    back = sapm.load(tmp_path / "a.sapm")
    same(back, result)
    x = result.samples.test["x"]
    assert (
        np.array_equal(back.best(x), result.best(x))
        and back.table == result.table
        and back.config == result.config
    )
    assert str(back.certificate) == str(result.certificate) and back.plot("solution").axes
    with pytest.raises(
        ValueError,
        match=r"needs the residual, which a file does not hold; load with sapm.load\(path, problem=…\)",
    ):
        back.reference_error(10)
    assert sapm.load(tmp_path / "a.sapm", problem=transport()).reference_error(
        20
    ) == result.reference_error(20)
    other = transport(residual=lambda p, u: u.t - (p.t + p.x + 1.6) * u.x)
    with pytest.raises(ValueError, match=r"is not the stored one: term0/. differs"):
        sapm.load(tmp_path / "a.sapm", problem=other)


def test_own_activation(tmp_path):
    """A function cannot be stored: it is asked for by name."""

    def swish(x):
        return x * jax.nn.sigmoid(x)

    result = sapm.solve(
        curve(), depth=2, width=4, seeds=1, max_iter=2, activation=swish, progress=False
    )
    result.save(tmp_path / "a.sapm")
    with pytest.raises(
        ValueError,
        match="an activation of yours, 'swish', which a file cannot hold; give activation=",
    ):
        sapm.load(tmp_path / "a.sapm")
    same(sapm.load(tmp_path / "a.sapm", activation=swish), result)
    with pytest.raises(ValueError, match="'swish', which has other values than the one given"):
        sapm.load(tmp_path / "a.sapm", activation="tanh")


def test_damaged_foreign_and_newer_files(tmp_path):
    """Each gets one sentence."""
    path = tmp_path / "a.sapm"
    sapm.solve(curve(), depth=2, width=4, seeds=1, max_iter=1, progress=False).save(path)
    good = path.read_bytes()

    def refused(body: bytes) -> str:
        path.write_bytes(body)
        with pytest.raises(ValueError) as error:
            sapm.load(path)
        sentence = str(error.value)
        assert "\n" not in sentence and str(path) in sentence and sentence.endswith(".")
        return sentence

    rng = np.random.default_rng(0)
    for at in [*rng.integers(8, len(good), 30), *range(0, 8)]:
        flipped = bytearray(good)
        flipped[at] ^= 1 << int(rng.integers(8))
        refused(bytes(flipped))
    for cut in (0, 5, 100, len(good) - 1):
        assert "damaged" in refused(good[:cut])
    assert "not a file written by sapm" in refused(b"a,b\n1,2\n" * 20)
    save_file({"W": np.ones(3)}, path)
    assert "safetensors file, but not one written by sapm" in refused(path.read_bytes())
    save_file({"W": np.ones(3)}, path, {"format": "sapm", "version": "99"})
    assert "newer sapm (file format 99; this one reads up to 2): upgrade" in refused(
        path.read_bytes()
    )
    for call in (sapm.load, sapm.resume):
        with pytest.raises(FileNotFoundError, match="does not exist; give"):
            call(tmp_path / "nothing")
    with pytest.raises(ValueError, match="is not the folder of a run"):
        sapm.load(tmp_path)
    with pytest.raises(ValueError, match="is not the folder of a run: it has no checkpoint"):
        sapm.resume(tmp_path)
    sapm.solve(curve(), **SMALL, max_iter=1, out=tmp_path / "series" / "a")
    with pytest.raises(
        ValueError,
        match=r"series is not the folder of a run; give one that is in it: \S+series/a\.$",
    ):
        sapm.load(tmp_path / "series")


def test_writing_is_all_or_nothing(tmp_path, monkeypatch):
    """A failure while writing leaves the file that was there, and no litter."""
    path = tmp_path / "a.json"
    files.write_whole(path, b"old")

    def fail(fd):
        raise OSError("No space left on device")

    monkeypatch.setattr(files.os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        files.write_whole(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_folder_is_not_overwritten(tmp_path):
    settings = {
        "depth": 2,
        "width": 4,
        "seeds": 1,
        "max_iter": 1,
        "progress": False,
        "out": tmp_path / "run",
    }
    sapm.solve(curve(), **settings)
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(
        ValueError, match=r"holds a run; continue it with sapm.resume.* or choose another folder"
    ):
        sapm.solve(curve(), **settings)
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(ValueError, match=r"max_iter: got 0, expected at least 1, .* has already"):
        sapm.resume(tmp_path / "run", max_iter=0)
    with pytest.raises(TypeError, match="on_record: got 3, expected a function"):
        sapm.resume(tmp_path / "run", max_iter=2, on_record=3)
    assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}


ALL = ("config.json", "env.json", "history.jsonl")


@pytest.mark.parametrize(
    ("held", "free"),
    [
        ((), True),
        ((".lock",), True),
        (ALL, True),
        ((*ALL, ".lock", "checkpoint/.latest.sapm.x1y2"), True),
        ((".history.jsonl.x1y2",), True),
        (("history.jsonl",), False),
        (("config.json",), False),
        (("config.json", "env.json"), False),
        ((*ALL, "notes.txt"), False),
        ((*ALL, "checkpoint/mine"), False),
        (("sapm/checkpoint/latest.sapm",), False),
    ],
)
def test_only_an_unused_folder_is_taken(held, free, tmp_path):
    """Empty, or a run of ours cut off before its first checkpoint; anything else stays as it was,
    without a lock left in it.
    """
    for name in held:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("" if name == ".lock" else "mine")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    folder = files.Folder(tmp_path)
    with folder.claim:
        if free:
            folder.begin({"depth": 2}, {})
            assert json.loads((tmp_path / "config.json").read_text()) == {"depth": 2}
            return
        with pytest.raises(
            ValueError, match="is not empty; choose another folder; nothing was changed"
        ):
            folder.begin({}, {})
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}


def test_a_run_cut_off_while_it_begins_is_taken(tmp_path):
    (tmp_path / "history.jsonl").touch()
    (tmp_path / "config.json").write_text("{}")
    assert files.unused(tmp_path)
    with pytest.raises(
        ValueError, match="cut off before its first checkpoint; start it again in the same folder"
    ):
        sapm.resume(tmp_path)


def test_links_and_pipes_stay(tmp_path):
    """A link leads to the new file, which the same people may read; a pipe gets the bytes; a folder
    is refused.
    """
    (tmp_path / "there").touch(0o600)
    (tmp_path / "link").symlink_to(tmp_path / "there")
    for body in (b"first", b"second"):
        files.write_whole(tmp_path / "link", body)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "there").read_bytes() == body
    assert (tmp_path / "there").stat().st_mode & 0o777 == 0o600
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE)
    files.write_whole(tmp_path / "pipe", b"bytes")
    assert reader.communicate(timeout=20)[0] == b"bytes" and (tmp_path / "pipe").is_fifo()
    files.write_whole(Path("/dev/null"), b"nothing")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(ValueError, match="is a folder; give the name of a file"):
        files.write_whole(tmp_path, b"")


KILLED = """
import sys
sys.path.insert(0, {tests!r})
from problems import curve
import sapm, sapm.driver.solve
sapm.driver.solve.CHECKPOINT_INTERVAL_SECONDS = sapm.driver.solve.CHECKPOINT_INTERVAL_WRITES = 0
sapm.solve(curve(), depth=2, width=4, seeds=2, max_iter=100000, out={out!r}, progress=False)
"""


@pytest.mark.slow
def test_killed_and_resumed(tmp_path):
    """SIGKILL at any moment, even while a checkpoint is written: resume gives the uninterrupted
    run.
    """
    out = tmp_path / "run"
    code = KILLED.format(tests=str(Path(__file__).parents[1]), out=str(out))
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ)
    deadline = time.monotonic() + 120
    while (
        not (out / "history.jsonl").exists()
        or len((out / "history.jsonl").read_text().splitlines()) < 30
    ):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    stored = sapm.load(out / "checkpoint" / "latest.sapm")
    done = int(stored.history["iteration"].max())
    assert 0 < done < 100000
    resumed = sapm.resume(out, max_iter=done + 20, progress=False)
    same(
        resumed, sapm.solve(curve(), depth=2, width=4, seeds=2, max_iter=done + 20, progress=False)
    )
    assert jnp.ones(1).dtype == "float32"


@pytest.mark.parametrize("end", [15, 20])
def test_checkpoints_between_records(end, tmp_path):
    """Cut between records, resumed and cut again at once: still the uninterrupted run. No record is
    told or written twice.
    """
    settings = {
        "depth": 2,
        "width": 4,
        "seeds": 1,
        "method": "adam",
        "options": {"record_every": 10},
        "progress": False,
    }
    sapm.solve(curve(), **settings, max_iter=end, out=tmp_path / "run")
    told = []

    def fail(state):
        told.append(state.iteration)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        sapm.resume(tmp_path / "run", max_iter=40, on_record=fail, progress=False)
    assert told == [20 if end == 15 else 30]
    assert not {"model.sapm", "summary.json"} & {
        p.name for p in (tmp_path / "run").iterdir()
    }  # they would be out of date
    cut = sapm.load(tmp_path / "run" / "checkpoint" / "latest.sapm")
    assert cut.history["iteration"][0, -1] == end and cut.table[0]["status"] == "running"
    resumed = sapm.resume(tmp_path / "run", progress=False)
    same(resumed, sapm.solve(curve(), **settings, max_iter=40))
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [0, 10, 20, 30, 40]


def test_best_by_validation_survives_a_cut_between_records(tmp_path):
    x = np.linspace(-1, 1, 20)
    problem = sapm.Regression(
        x, x + 0.3 * np.random.default_rng(0).normal(size=20), validation=(x + 0.05, x)
    )
    settings = {
        "depth": 2,
        "width": 8,
        "seeds": 2,
        "model": "ls",
        "options": {"record_every": 5},
        "progress": False,
    }
    whole = sapm.solve(problem, **settings, max_iter=40)
    for cut in (6, 7):
        sapm.solve(problem, **settings, max_iter=cut, out=tmp_path / f"run{cut}")
        resumed = sapm.resume(tmp_path / f"run{cut}", max_iter=40, progress=False)
        same(resumed, whole)
        assert np.array_equal(resumed.best(x=x), whole.best(x=x)) and np.array_equal(
            resumed.run.chosen, whole.run.chosen
        )


def test_full_disk(tmp_path, monkeypatch):
    """No room for a second checkpoint: the error names the file, the first checkpoint stays and the
    run continues from it.
    """
    whole = sapm.solve(curve(), **SMALL, max_iter=130)
    kept = []

    def full(file):
        if (tmp_path / "run" / "checkpoint" / "latest.sapm").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        kept.append(file)

    monkeypatch.setattr(driver, "CHECKPOINT_INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr(driver, "CHECKPOINT_INTERVAL_WRITES", 0)
    with monkeypatch.context() as disk:
        disk.setattr(files.os, "fsync", full)
        with pytest.raises(OSError, match=r"what was written before is kept.*latest.sapm"):
            sapm.solve(curve(), **SMALL, max_iter=130, out=tmp_path / "run")
    assert kept and not list((tmp_path / "run" / "checkpoint").glob(".*"))
    same(sapm.resume(tmp_path / "run", progress=False), whole)


def test_one_process_at_a_time(tmp_path):
    """A folder in use is refused, and free again when its owner ends."""
    sapm.solve(curve(), **SMALL, max_iter=3, out=tmp_path / "run")
    with files.Claim(tmp_path / "run"):
        for call in (
            lambda: sapm.resume(tmp_path / "run", max_iter=5, progress=False),
            lambda: sapm.solve(curve(), **SMALL, max_iter=3, out=tmp_path / "run"),
        ):
            with pytest.raises(ValueError, match="is in use by another process"):
                call()
    assert sapm.resume(tmp_path / "run", max_iter=5, progress=False).history["iteration"].max() == 5


def a_run(folder):
    """The files of a run, as far as their names matter."""
    for name in files.ALL_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"the {name} of a run")
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


OWN = (
    "it belongs to the run in",
    "that ending is for saved results",
    "it is the file that is read",
)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("run/model.sapm", 0),
        ("run/MODEL.sapm", 0),
        ("run/config.json", 0),
        ("run/Config.JSON", 0),
        ("run/history.jsonl", 0),
        ("run/first.sapm", 0),
        ("run/.lock", 0),
        ("run/checkpoint/latest.sapm", 0),
        ("run/checkpoint/aux-000.npy", 0),
        ("other/../run/summary.json", 0),
        ("other/folder/env.json", 0),
        ("other/file.csv", 0),
        ("other/model.csv", 2),
        ("other/points.txt", 2),
        ("points.csv", 2),
        ("u.sapm", 1),
        ("other/U.SAPM", 1),
        ("run/u.csv", None),
        ("run/report.html", None),
        ("other/config.json", None),
    ],
)
def test_only_a_run_replaces_its_files(path, why, tmp_path):
    """Not by a link or a hard link either, and nothing is written; other names in its folder are
    free.
    """
    run = tmp_path / "run"
    other = tmp_path / "other"
    before = a_run(run)
    other.mkdir()
    (tmp_path / "points.csv").write_text("x")
    (other / "folder").symlink_to(run)
    (other / "file.csv").symlink_to(run / "config.json")
    (other / "points.txt").symlink_to(tmp_path / "points.csv")
    (other / "model.csv").hardlink_to(run / "model.sapm")
    arguments = ["predict", run, tmp_path / "points.csv", "-o", tmp_path / path]
    names = sorted(tmp_path.rglob("*"))
    if why is None:
        files.check_output(tmp_path / path, tmp_path / "points.csv", run / "model.sapm")
        files.write_whole(tmp_path / path, b"mine")
        assert (tmp_path / path).read_bytes() == b"mine"
        return
    said = sapm_command(*arguments, code=2).stderr
    assert "is not replaced, since " + OWN[why] in said and "give another name" in said
    if why == 0:
        with pytest.raises(ValueError, match="it belongs to the run in"):
            files.write(tmp_path / path, {}, {})
    assert names == sorted(tmp_path.rglob("*"))
    assert before == {file: file.read_bytes() for file in before}


def test_no_output_replaces_a_file_of_a_run(tmp_path):
    """Whatever writes it."""
    result = sapm.solve(curve(), **SMALL, max_iter=0, out=tmp_path / "run")
    u = result.best
    page = tmp_path / "page.html"
    page.symlink_to(tmp_path / "run" / "config.json")
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    target = tmp_path / "run" / "model.sapm"
    endings = export.FORMATS.keys() - {".pt"}  # which needs torch
    for ending in endings:
        (tmp_path / f"u{ending}").symlink_to(target)
    for write in (
        lambda: result.save(target),
        lambda: result.report(page),
        lambda: u.to_onnx(target),
        *(partial(export.export, u, tmp_path / f"u{ending}") for ending in endings),
    ):
        with pytest.raises(ValueError, match="it belongs to the run in"):
            write()
    assert "belongs" in sapm_command("demo", "-o", page, code=2).stderr
    assert "belongs" in sapm_command("bench", "--write", page, "-o", tmp_path, code=2).stderr
    assert before == {file: file.read_bytes() for file in before}
    result.save(tmp_path / "u.sapm")
    result.save(tmp_path / "u.sapm")
    assert result.report(tmp_path / "run" / "report.html").exists()


def test_what_is_locked_is_the_folder(tmp_path, monkeypatch):
    """Whoever removes `.lock` frees nothing. Where folders cannot be locked, as on NFS, the file is
    the lock, and who has lost it knows.
    """
    out = tmp_path / "run"
    claim = files.Claim(out)
    with claim:
        (out / ".lock").unlink()
        with pytest.raises(ValueError, match="is in use by another process"), files.Claim(out):
            pass
        assert claim.holds() and not list(out.iterdir())
    with files.Claim(out) as next_one:
        assert next_one.holds() and not claim.holds()
    flock = fcntl.flock

    def only_files(handle, how):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", only_files)
    with files.Claim(out) as claim:
        with pytest.raises(ValueError, match="is in use by another process"), files.Claim(out):
            pass
        assert claim.holds()
        (out / ".lock").unlink()
        (out / ".lock").touch()
        assert not claim.holds()


def test_a_lock_is_not_inherited(tmp_path):
    """A process that is forked may not write, and does not keep the folder from the next one."""
    ready, end = os.pipe(), os.pipe()
    with files.Claim(tmp_path) as claim:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # JAX warns of forks
            child = os.fork()
        if not child:  # pragma: no cover
            os.write(ready[1], b"1" if claim.holds() else b"0")
            claim.__exit__()  # frees nothing
            os.read(end[0], 1)
            os._exit(0)
        held_in_child = os.read(ready[0], 1)
        assert claim.holds()
        with pytest.raises(ValueError, match="in use"), files.Claim(tmp_path):
            pass
    with files.Claim(tmp_path):
        os.write(end[1], b"1")
        assert os.waitpid(child, 0)[1] == 0 and held_in_child == b"0"
    for handle in (*ready, *end):
        os.close(handle)


@pytest.mark.parametrize("by", ["moved", "removed", "replaced"])
def test_who_has_lost_the_folder_writes_nothing_more(by, tmp_path):
    """The result so far is returned, with one warning. The folder, where it still exists, gives the
    uninterrupted run.
    """
    out = tmp_path / "run"
    moved = tmp_path / "elsewhere"

    def lose(progress):
        if progress.iteration != 5:
            return
        if by == "removed":
            shutil.rmtree(out)
            return
        out.rename(moved)
        if by == "replaced":
            shutil.copytree(moved, out)

    with pytest.warns(UserWarning, match=r"run was moved, removed or replaced") as said:
        result = sapm.solve(curve(), **SMALL, max_iter=20, out=out, on_record=lose)
    assert len(said) == 1 and result.run.cut == "interrupted after 6 iterations."
    assert result.run.why_folder_lost == str(said[0].message)
    assert out.exists() == (by == "replaced")
    whole = sapm.solve(curve(), **SMALL, max_iter=20)
    for folder in (out, moved):
        if folder.exists():
            assert not (folder / "model.sapm").exists()
            assert len((folder / "history.jsonl").read_text().splitlines()) == 6
            same(sapm.resume(folder, progress=False), whole)
    result.save(tmp_path / "kept.sapm")
    same(sapm.resume(tmp_path / "kept.sapm", progress=False), whole)


LONG = """
from sapm.studies import reproduce
reproduce.QUICK["function_1d"] = {"sizes": ((6, 10),), "seeds": 2, "max_iter": 3000000, "points": 20, "test_points": 10}
if __name__ == "__main__":
    from sapm.cli.main import app
    app()
"""


@pytest.mark.slow
def test_processes_stop_with_their_parent(tmp_path):
    """SIGKILL or SIGTERM to a reproduction with two runs at a time: the runs save their state and
    end.
    """
    script = tmp_path / "long.py"
    script.write_text(LONG)
    out = tmp_path / "out"
    deadline = time.monotonic() + 120
    for number, code in ((signal.SIGKILL, -9), (signal.SIGTERM, 143)):
        began = time.time()
        command = [
            sys.executable,
            str(script),
            "reproduce",
            "function_1d",
            "--quick",
            "--models",
            "sapm",
            "-q",
            "--jobs",
            "2",
        ]
        process = subprocess.Popen([*command, "-o", str(out)], stderr=subprocess.PIPE, text=True)
        runs = [
            out / "function_1d" / "6x10" / name for name in ("sapm-uniform", "sapm-uniform-shared")
        ]
        files = [run / "checkpoint" / "latest.sapm" for run in runs]
        while not all(
            file.exists() and file.stat().st_mtime > began for file in files
        ):  # training has begun, or begun again
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(60) == code
        while not all((run / "model.sapm").exists() for run in runs):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        stderr = process.communicate(timeout=60)[1]  # its children hold the other end
        assert "Traceback" not in stderr and ("continue with: sapm resume" in stderr) == (
            code == 143
        )
        assert {row["status"] for run in runs for row in sapm.load(run / "model.sapm").table} == {
            "interrupted"
        }
