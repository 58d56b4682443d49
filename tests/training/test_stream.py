"""Sweeps over chunks of samples are the sweeps over all of them; what is on disk outlives a kill,
or is gone at the end.
"""

import _thread
import gc
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import relative

import sapm
from sapm.driver.settings import plan
from sapm.methods.streamed import closing_chunk, layer_chunk
from sapm.training import streaming
from sapm.training.loop import Rules, Start, keys_of, loop, train

SETTINGS = {"method": "alternating", "seeds": 2, "max_iter": 3}


def data(n=61, d=3):
    X = np.random.default_rng(0).uniform(-1, 1, (n, d))
    return X, np.c_[np.sin(3 * X[:, 0]) * X[:, 1], X[:, -1] ** 2]


CASES = {
    "sapm-l2-scaled": ("sapm", [5, 5, 4], (61, 20, 7), {"l2": 1e-6, "scale": True}),
    "pm-joint": ("pm", [5, 4], (20,), {"joint": True}),
    "pm": ("pm", [5, 5, 4], (20, 7), {}),
    "sapm-joint": ("sapm", [5, 5, 4], (20, 7), {"joint": True}),
}


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize(("model", "width", "chunks", "options"), CASES.values(), ids=CASES)
def test_chunks_equal_the_whole(model, width, chunks, options):
    """The auxiliary variables, the weights and both losses after a sweep, for two seeds, with
    weights for the samples.
    """
    X, Y = data()
    problem = sapm.Regression(5 + 3 * X, Y, weights=np.random.default_rng(1).uniform(0, 2, len(X)))
    given = {"model": model, "options": options, "beta": [0.5, 2.0, 1.5][: len(width)]}
    planned = plan(problem, len(width) + 1, width, "tanh", **SETTINGS, **given)
    whole = planned.engine(problem.samples())
    states = jax.vmap(whole.init)(keys_of(planned.seeds, 0))

    def values(states):
        return [np.asarray(u.value) for u in jax.vmap(whole.point)(states).aux[0].layers()[:-1]]

    expected = train(whole, 1, planned.seeds, initial=states)
    sketch = problem.sketch()
    for chunk in chunks:
        method = replace(planned, method=replace(planned.method, chunk=chunk)).engine(sketch)
        source = streaming.Source(problem, planned.scaling(sketch), chunk)
        with streaming.Files(None, 2, source, method.widths[1:-1]) as files:
            passes = streaming.Passes(method, source, files)
            with jax.enable_x64(True):
                begun = passes.begin(keys_of(planned.seeds, 0), values(states))
            start = Start(method, planned.seeds, begun)
            run = loop(start, Rules(1), lambda _, p=passes: streaming.PassStepper(p))
            for l, (number, wanted) in enumerate(
                zip(streaming.file_numbers(run.states), values(expected.states), strict=True), 1
            ):
                found = np.concatenate([files.read(number, l, c) for c in range(source.chunks)], 1)
                assert relative(found[:, : len(X)], wanted) < 1e-10
        for name in ("loss", "mean_squared_loss"):
            assert relative(run.history[name], expected.history[name]) < 1e-10
        for i in range(2):
            for (W, b), (V, c) in zip(
                run.network(i).weights, expected.network(i).weights, strict=True
            ):
                assert max(relative(W, V), relative(b, c)) < 1e-10


def test_one_program_per_shape():
    """Chunks, also the last and shorter one, and layers of like shape share their programs; a
    second run compiles nothing.
    """
    problem = sapm.Regression(*data(100))

    def solve(**more):
        return sapm.solve(problem, 5, 4, options={"chunk": 30}, **SETTINGS, **more)

    layer_chunk.clear_cache()
    closing_chunk.clear_cache()
    for more in ({}, {"key": 1, "max_seconds": 100}):
        solve(**more)
        assert layer_chunk._cache_size() == 3  # layers 4; 3, 2; 1
        assert closing_chunk._cache_size() == 1


def test_a_result_like_any_other(tmp_path, monkeypatch):
    """From memory maps of other types: losses are those of all samples; saved, loaded, drawn; the
    state is gone at the end.
    """
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    X, Y = data(100)
    np.save(tmp_path / "X.npy", X.astype("f4"))
    np.save(tmp_path / "Y.npy", (9 * Y).astype("i2"))
    X, Y = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "XY")
    problem = sapm.Regression(X, Y, test=(X[:9], Y[:9]), validation=(X[9:20], Y[9:20]))
    assert isinstance(problem.X.source, np.memmap)
    seen = []
    result = sapm.solve(
        problem, 3, 4, options={"chunk": 30, "scale": True}, on_record=seen.append, **SETTINGS
    )
    assert [state.iteration for state in seen] == list(range(4)) and not list(
        (tmp_path / "scratch").iterdir()
    )
    assert result.certificate.holds and np.all(result.history["bound_ratio"] <= 1)
    assert "chunks of 30 samples" in " ".join(str(result.summary()).split())
    for i, u in enumerate(result.seeds):
        row = result.table[i]
        assert (
            relative(
                row["mean_squared_loss"], np.mean(np.sum((u(np.asarray(X, float)) - Y) ** 2, 1))
            )
            < 1e-12
        )
        assert (
            relative(row["train_error"], np.linalg.norm(u(X) - Y) / np.linalg.norm(Y.astype(float)))
            < 1e-12
        )
    loaded = sapm.load(result.save(tmp_path / "a.sapm"))
    assert loaded.table == result.table and (tmp_path / "a.sapm").stat().st_size < 2e5
    assert "chunks of 30" in loaded.report(tmp_path / "a.html").read_text()
    with pytest.raises(ValueError, match="give the folder of the run"):
        sapm.resume(tmp_path / "a.sapm", problem=problem)


class Rows:
    """Like a dataset of h5py: a shape, a type, slices."""

    def __init__(self, a):
        self.a = a
        self.shape = a.shape
        self.dtype = a.dtype
        self.most = 0

    def __getitem__(self, rows):
        part = self.a[rows]
        self.most = max(self.most, len(part))
        return part


def test_arrays_on_disk_are_not_loaded_whole(monkeypatch):
    monkeypatch.setattr("sapm.problem.data.READ_NUMBERS", 60)
    X, Y = data(100)
    x = Rows(X)
    y = Rows(Y.astype("f4"))
    w = Rows(np.ones(100, int))
    result = sapm.solve(sapm.Regression(x, y, weights=w), 3, 4, options={"chunk": 30}, **SETTINGS)
    assert 0 < max(a.most for a in (x, y)) <= 30 and w.most <= 60
    assert relative(result.seeds[0](x), result.seeds[0](X)) == 0
    samples = sapm.Regression(X, Y).sketch()
    whole = sapm.Regression(X, Y).samples()
    for name in ("center", "spread", "size"):
        assert relative(getattr(samples.scaling, name), getattr(whole.scaling, name)) < 1e-14
    bad = X.copy()
    bad[71, 1] = np.nan
    with pytest.raises(ValueError, match="X has nan in row 71, column 1"):
        sapm.Regression(Rows(bad), Y)


def test_batches_are_spooled(tmp_path):
    X, Y = data(50)

    def parts():
        return ((X[i : i + 20].astype("f4"), Y[i : i + 20, 0]) for i in range(0, 50, 20))

    problem = sapm.Regression.from_batches(parts(), names=["a", "b", "c"])
    assert np.array_equal(problem.X, X.astype("f4")) and np.array_equal(problem.Y, Y[:, :1])
    folder = problem.X.owner.path
    assert folder.exists()
    del problem
    gc.collect()
    assert not folder.exists()
    sapm.Regression.from_batches(parts(), tmp_path / "a")
    assert np.load(tmp_path / "a" / "X.npy").shape == (50, 3)
    for batches, said in (
        (parts(), "exists already"),
        ([], "batches is empty"),
        ([X], "batch 0 must be a pair"),
        ([(X, Y), (X, Y[:, :1])], "Y of batch 1 has 1 column; 2 are wanted"),
        ([(X, Y[:3])], "batch 0 has 50 rows of X and 3 of Y"),
    ):
        with pytest.raises((ValueError, TypeError), match=said):
            sapm.Regression.from_batches(
                batches, tmp_path / ("a" if said == "exists already" else "b")
            )
    assert not list((tmp_path / "b").iterdir())


def on_disk(folder):
    for name, a in zip("XY", data(100), strict=True):
        np.save(folder / f"{name}.npy", a)
    return sapm.Regression(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in "XY"))


def same(a, b):
    """Bit for bit."""
    for name in ("iteration", "loss", "mean_squared_loss"):
        assert np.array_equal(a.history[name], b.history[name])
    for u, v in zip(a.seeds, b.seeds, strict=True):
        assert all(
            np.array_equal(x, y)
            for p, q in zip(u.weights, v.weights, strict=True)
            for x, y in zip(p, q, strict=True)
        )


class Cut(BaseException):
    """What ends a process."""


@pytest.mark.parametrize(
    "seconds", [0.0, 1e9], ids=["a checkpoint after every pass", "the first checkpoint only"]
)
def test_cut_off_and_resumed(seconds, tmp_path, monkeypatch):
    """Wherever it is cut off, in a pass or by Ctrl-C, it goes on to the numbers of a run that was
    not.
    """
    monkeypatch.setattr("sapm.driver.solve.CHECKPOINT_INTERVAL_SECONDS", seconds)
    monkeypatch.setattr("sapm.driver.solve.CHECKPOINT_INTERVAL_WRITES", 0)
    problem = on_disk(tmp_path)
    more = {"options": {"chunk": 30}, "seeds": 2, "method": "alternating"}
    written = streaming.Files.write
    out = {"out": tmp_path / "run"}
    ended: list = []

    def end_at(count, how):
        def write(*args):
            ended.append(args)
            if len(ended) == count:
                how()
            return written(*args)

        ended.clear()
        monkeypatch.setattr(streaming.Files, "write", write)

    def cut():
        raise Cut

    for count, begin in ((3, lambda: sapm.solve(problem, 3, 4, max_iter=6, **more, **out)),) * 2 + (
        (
            19,
            lambda: sapm.solve(problem, 3, 4, max_iter=6, **more, **out),
        ),  # 8 writes at the start, 8 a sweep
        (1, lambda: sapm.resume(tmp_path / "run", problem=problem)),
        (11, lambda: sapm.resume(tmp_path / "run", problem=problem)),
    ):
        end_at(count, cut)
        with pytest.raises(Cut):
            begin()
    end_at(3, _thread.interrupt_main)
    assert set(sapm.resume(tmp_path / "run", problem=problem).run.status) == {"interrupted"}
    end_at(3, partial((tmp_path / "run").rename, tmp_path / "moved"))
    with pytest.warns(UserWarning, match="was moved, removed or replaced"):
        assert sapm.resume(tmp_path / "run", problem=problem).run.cut
    assert not (tmp_path / "run").exists()
    (tmp_path / "moved").rename(tmp_path / "run")
    end_at(0, cut)
    again = sapm.resume(tmp_path / "run", problem=problem)
    same(again, sapm.solve(problem, 3, 4, max_iter=6, **more))
    same(
        sapm.resume(tmp_path / "run", problem=problem, max_iter=8),
        sapm.solve(problem, 3, 4, max_iter=8, **more),
    )
    files = list((tmp_path / "run" / "checkpoint").glob("aux-*.npy"))
    assert len(files) <= 5 and (tmp_path / "run" / "model.sapm").exists()
    with pytest.raises(ValueError, match="problem=…"):
        sapm.resume(tmp_path / "run")
    with pytest.raises(ValueError, match="is not the stored one"):
        sapm.resume(tmp_path / "run", problem=sapm.Regression(problem.X, problem.Y[:] + 1e-3))


SCRIPT = """
import sys, time, numpy as np, sapm
from sapm.driver import solve as driver
from sapm.training import streaming
driver.CHECKPOINT_INTERVAL_SECONDS = 0.0
driver.CHECKPOINT_INTERVAL_WRITES = int(sys.argv[2])
X, Y = (np.load(f"{sys.argv[1]}/{name}.npy", mmap_mode="r") for name in "XY")
quick = streaming.Files.write
streaming.Files.write = lambda *args: (time.sleep(0.003), quick(*args))
problem, out = sapm.Regression(X, Y), sys.argv[1] + "/run"
sapm.solve(problem, 3, 4, method="alternating", seeds=2, max_iter=10000, options={"chunk": 30}, out=out)
"""


@pytest.mark.slow
@pytest.mark.parametrize("share", [0, 1, 5, 50])
def test_killed_and_resumed(share, tmp_path):
    """The same with kill -9 at a moment of its own."""
    problem = on_disk(tmp_path)
    history = tmp_path / "run" / "history.jsonl"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path), str(share)])
    end = time.monotonic() + 100
    while not history.exists() or history.read_text().count("\n") < 6:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.017 * share)
    process.kill()
    process.wait()
    done = int(
        sapm.load(tmp_path / "run" / "checkpoint" / "latest.sapm").history["iteration"].max()
    )
    again = sapm.resume(tmp_path / "run", problem=problem, max_iter=done + 6)
    same(
        again,
        sapm.solve(
            problem, 3, 4, method="alternating", seeds=2, max_iter=done + 6, options={"chunk": 30}
        ),
    )


def test_budgets_and_broken_seeds(monkeypatch):
    problem = sapm.Regression(*data(100))
    stopped = sapm.solve(
        problem, 3, 4, options={"chunk": 30}, on_record=lambda s: s.iteration == 2, **SETTINGS
    )
    assert stopped.run.status == ("stopped", "stopped") and stopped.history["iteration"].max() == 2
    short = sapm.solve(problem, 3, 4, options={"chunk": 30}, max_seconds=1e-9, **SETTINGS)
    assert short.run.status == ("out of time",) * 2 and np.all(
        np.isfinite(short.history["mean_squared_loss"])
    )
    solved = streaming.solve_layer

    def breaking(method, layer, norms, l, sums):
        layer, norms = solved(method, layer, norms, l, sums)
        breaking.calls += 1
        W = (
            layer.W.at[1].set(jnp.nan) if breaking.calls == 4 else layer.W
        )  # seed 1, layer 1, second sweep
        return replace(layer, W=W), norms

    breaking.calls = 0
    monkeypatch.setattr(streaming, "solve_layer", breaking)
    broken = sapm.solve(problem, 3, 4, options={"chunk": 30}, **SETTINGS)
    monkeypatch.undo()
    whole = sapm.solve(problem, 3, 4, options={"chunk": 30}, **SETTINGS)
    assert broken.run.status == ("finished", "non-finite")
    assert broken.run.reason[1] == "non-finite numbers came from layer 1 in iteration 2."
    assert np.array_equal(broken.history["loss"][0], whole.history["loss"][0])
    assert np.array_equal(broken.history["iteration"][1], [0, 1, 1, 1])
    assert np.all(np.isfinite(broken.seeds[1](problem.X)))


def test_the_rule_for_memory(monkeypatch):
    """Streamed where 32 bytes per unit, sample and seed are more than a quarter of the memory."""
    problem = sapm.Regression(*data(1000))
    state = 32 * 1000 * 10 * (3 + 4 + 4 + 2)
    for more, there, streamed in (
        ({"method": "alternating"}, 4 * state, False),
        ({"method": "alternating"}, 4 * state - 1, True),
        ({"method": "auto"}, 4 * state - 1, True),
        ({"method": "auto", "model": "ls"}, 1, False),
        ({"method": "gauss-newton"}, 1, False),
        ({"method": "alternating", "options": {"shared": True}}, 1, False),
    ):
        monkeypatch.setattr("sapm.driver.settings.installed_memory", lambda there=there: there)
        planned = plan(problem, 3, 4, **more)
        assert (planned.chunk is not None) == streamed
        assert ("more than a quarter of the memory" in planned.why) == streamed


def test_refusals(tmp_path, monkeypatch):
    problem = sapm.Regression(*data(100))
    box = sapm.Box(x=(0, 1))
    for stated, more, said in (
        (
            sapm.PDE(box, lambda p, u: u.x - 1, [sapm.Inflow(lambda p: 0.0)]),
            {},
            "chunk: got 5 for a sapm.PDE, expected a sapm.Regression",
        ),
        (
            sapm.Function(box, lambda p: p.x),
            {},
            "chunk: got 5 for a sapm.Function, expected a sapm.Regression",
        ),
        (
            problem,
            {"model": "ls"},
            "chunk: got 5 for model='ls' by 'auto', which needs all samples at once",
        ),
        (
            problem,
            {"method": "gauss-newton"},
            "got 5 for model='sapm' by 'gauss-newton', which needs all samples",
        ),
        (
            problem,
            {"method": "alternating", "shared": True},
            "shared.* needs all samples at once",
        ),
        (problem, {"method": "alternating", "polish_after": 3}, "polish_after"),
        (problem, {"method": "alternating", "order": [("W", 2)]}, "order"),
        (problem, {"chunk": 0}, "chunk=0 is too small"),
        (problem, {"chunk": 2.5}, "is not a whole number"),
    ):
        options = {"chunk": 5} | {
            name: value for name, value in more.items() if name not in ("model", "method")
        }
        rest = {name: value for name, value in more.items() if name in ("model", "method")}
        with pytest.raises((ValueError, TypeError), match=said):
            sapm.solve(stated, 3, 4, options=options, **rest)
    with pytest.raises(
        ValueError, match=r"sapm.refine or SAPMRegressor, which needs all samples at once"
    ):
        sapm.refine(
            [(np.ones((4, 3)), np.ones(4)), (np.ones((2, 4)), np.ones(2))],
            problem,
            activation="tanh",
            options={"chunk": 5},
        )
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("", (), {"free": 10}))
    with pytest.raises(ValueError, match=r"take .* on disk, and .* has"):
        sapm.solve(problem, 3, 4, options={"chunk": 5}, **SETTINGS)
    monkeypatch.undo()
    sapm.solve(problem, 3, 4, options={"chunk": 30}, out=tmp_path / "a", **SETTINGS)
    for stored in (tmp_path / "a" / "checkpoint").glob("aux-*.npy"):  # some are in use, others free
        stored.write_bytes(b"")
    with pytest.raises(ValueError, match="is missing or damaged"):
        sapm.resume(tmp_path / "a", problem=problem, max_iter=9)
