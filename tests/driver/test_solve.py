"""One call, one result: budgets, callbacks, interrupts, solutions, tables, figures; and the user's
JAX is left alone.
"""

import html.parser
import json
import os
import re
import signal
import threading
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import SMALL, curve, rotation, transport
from rich.console import Console
from threadpoolctl import threadpool_info, threadpool_limits

import sapm
from sapm.driver import progress
from sapm.driver import solve as driver
from sapm.driver.settings import doubts, plan
from sapm.driver.solve import ENDING
from sapm.numerics.jets import Jet
from sapm.results import files, page
from sapm.scopes import THREAD_VARIABLES, one_thread
from sapm.training import seeds as seeding
from sapm.training.loop import Fixed, Training


@pytest.fixture(scope="module")
def solved():
    return sapm.solve(transport(), **SMALL, max_iter=30, method="alternating")


def test_result_at_a_glance(solved):
    """Every part of a result, and that they agree with each other."""
    h = solved.history
    rows = solved.table
    assert h["loss"].shape == h["bound_ratio"].shape == (2, 31) and list(h["iteration"][0]) == list(
        range(31)
    )
    assert np.all(np.diff(h["loss"]) <= 1e-12 * h["loss"][:, :-1]) and np.all(h["bound_ratio"] <= 1)
    best = int(np.argmin(h["loss"][:, -1]))
    assert solved.best is solved.seeds[best] and solved.best.seed == best
    for i, row in enumerate(rows):
        assert row["initial_loss"] == h["loss"][i, 0] and row["loss"] == h["loss"][i, -1]
        assert row["status"] == "finished" and row["reason"] == "ran all 30 iterations."
        x = solved.samples.test["x"]
        y = solved.samples.test["y"][:, 0]
        error = np.linalg.norm(solved.seeds[i](x) - y) / np.linalg.norm(y)
        assert row["solution_error"] == pytest.approx(error, rel=1e-12) and row["test_residual"] > 0
    assert solved.certificate.holds and solved.certificate.ratio == pytest.approx(
        h["bound_ratio"][best, -1] * solved.certificate.bound
    )
    text = str(solved.summary())
    assert (
        "Theorem 3 holds" in text and "solution error" in text and f"{rows[0]['loss']:.2e}" in text
    )
    assert "2 seeds" in repr(solved)
    with pytest.raises(AttributeError):
        solved.run = None


def test_reference_error_needs_no_exact(solved):
    n = len(solved.samples.test["x"])
    assert solved.reference_error(n) == pytest.approx(
        solved.table[solved.run.best]["solution_error"], abs=1e-8
    )
    assert solved.reference_error(n, seed=0) == pytest.approx(
        solved.table[0]["solution_error"], abs=1e-8
    )


def test_solutions_are_functions(solved):
    """Scalars, lists and arrays broadcast; derivatives are the network's own; JAX in, JAX out, in
    the caller's precision.
    """
    u = solved.best
    xs = np.linspace(-1, 1, 7)
    grid = u(t=np.array([[0.0], [0.5]]), x=xs)
    assert grid.shape == (2, 7) and grid.dtype == np.float64 and isinstance(grid, np.ndarray)
    assert np.ndim(u(t=0.5, x=1)) == 0 and u(t=0.5, x=xs[3]) == pytest.approx(grid[1, 3], rel=1e-14)
    assert np.array_equal(u(np.c_[np.full(7, 0.5), xs]), u(t=0.5, x=list(xs)))
    step = 1e-6
    slope = (u(t=0.5, x=xs + step) - u(t=0.5, x=xs - step)) / (2 * step)
    assert np.allclose(u.d("x")(t=0.5, x=xs), slope, rtol=1e-6, atol=1e-8)
    bend = (u.d("x")(t=0.5, x=xs + step) - u.d("x")(t=0.5, x=xs - step)) / (2 * step)
    assert np.allclose(u.d("x", "x")(t=0.5, x=xs), bend, rtol=1e-5, atol=1e-7)
    assert np.allclose(u.d("t", "x")(t=0.5, x=xs), u.d("x").d("t")(t=0.5, x=xs), rtol=1e-12)
    with jax.enable_x64(True):
        jet = Jet(jnp.array([[0.5, 0.2]]), jnp.eye(2)[None])
        assert np.allclose(
            solved.run.network(solved.run.best)(jet).tangents[0, :, 0],
            [u.d(n)(t=0.5, x=0.2) for n in "tx"],
        )
    single = jax.jit(lambda x: u(t=0.5, x=x))(jnp.asarray(xs, jnp.float32))
    assert (
        isinstance(single, jax.Array)
        and single.dtype == jnp.float32
        and np.allclose(single, grid[1], atol=1e-5)
    )
    gradient = jax.grad(lambda x: u(t=0.5, x=x))(jnp.float32(0.3))
    assert gradient == pytest.approx(u.d("x")(t=0.5, x=0.3), rel=1e-4)
    assert [W.shape for W, _ in u.weights] == [(4, 2), (1, 4)] and isinstance(
        u.weights[0][0], np.ndarray
    )
    assert u(np.zeros((0, 2))).shape == (0,) and u(np.zeros((70000, 2))).shape == (70000,)


def test_users_precision_is_left_alone(solved):
    """Float32 before, float32 after; a compiled function of the user's is not compiled again."""
    count = 0

    @jax.jit
    def mine(x):
        nonlocal count
        count += 1
        return x * 2

    x = jnp.ones(3)
    assert mine(x).dtype == jnp.float32
    sapm.solve(curve(), depth=2, width=4, seeds=1, max_iter=1, progress=False)
    solved.best(t=0.5, x=0.1)
    assert mine(x).dtype == jnp.float32 and count == 1 and not jax.config.jax_enable_x64
    assert jnp.ones(1).dtype == jnp.float32


def test_seeds_are_their_own(solved):
    """Seed s draws from fold_in(key, s), whoever runs beside it; another key is another start."""
    other = sapm.solve(transport(), **(SMALL | {"seeds": [7, 1]}), max_iter=0, method="alternating")
    assert np.array_equal(other.history["loss"][1], solved.history["loss"][1, :1])
    assert other.seeds[0].seed == 7 and other.best.seed in (7, 1)
    moved = sapm.solve(
        transport(), **(SMALL | {"seeds": [1]}), max_iter=0, key=5, method="alternating"
    )
    assert moved.history["loss"][0, 0] != other.history["loss"][1, 0]


def test_budgets_and_callbacks(tmp_path, monkeypatch):
    """By iterations, by seconds, by the callback, by stagnation: each end has its reason."""
    seen = []

    def stop(state):
        seen.append((state.iteration, state.loss.copy()))
        assert state.result().history["loss"].shape == (2, len(seen))
        return state.iteration >= 5

    result = sapm.solve(
        curve(), depth=2, width=4, seeds=2, max_iter=50, on_record=stop, progress=False
    )
    assert [s[0] for s in seen] == [0, 1, 2, 3, 4, 5] and np.array_equal(
        seen[-1][1], result.history["loss"][:, -1]
    )
    assert (
        result.table[0]["status"] == "stopped"
        and result.table[0]["reason"] == "stopped by the callback after 5 iterations."
    )
    long = {"max_iter": 10**9, "method": "alternating", "progress": False}
    with monkeypatch.context() as patch:  # an iteration takes a tenth of a second
        patch.setattr(Training, "seconds", property(lambda self: 0.1 * self.iteration))
        result = sapm.solve(curve(), depth=2, width=4, seeds=2, max_seconds=2, **long)
        again = sapm.resume(result.save(tmp_path / "a.sapm"), max_seconds=3, progress=False)
    assert result.table[0]["status"] == "out of time" and result.run.iterations == 20
    assert again.table[0]["reason"] == "the time was up (5 s in all) after 50 iterations."
    hasty = sapm.solve(curve(), depth=2, width=4, seeds=2, max_seconds=1e-4, **long)
    assert (
        f"(0.0001 s in all; {hasty.history['seconds'][0, 0]:.3g} s had gone by before the first step)"
        in hasty.table[0]["reason"]
    )
    options = {"stall": 0.5, "patience": 20}
    result = sapm.solve(
        curve(), depth=2, width=4, seeds=2, max_iter=2000, options=options, progress=False
    )
    assert {row["status"] for row in result.table} == {"stalled"} and result.history[
        "iteration"
    ].max() < 2000


def test_interrupt_returns_what_there_is():
    """Ctrl-C in the middle of a compiled call: the result so far, consistent, with its reason."""
    timer = []

    def start_timer(state):
        if state.iteration == 3:
            timer.append(threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)))
            timer[0].start()

    long = {"max_iter": 10**9, "method": "alternating", "progress": False}
    try:
        result = sapm.solve(curve(), depth=2, width=4, seeds=2, on_record=start_timer, **long)
    finally:
        timer[0].cancel()
    done = int(result.history["iteration"][0, -1])
    assert (
        result.table[0]["status"] == "interrupted"
        and result.table[0]["reason"] == f"interrupted after {done} iterations."
    )
    with jax.enable_x64(True):
        losses = seeding.chunk(result.run.engine, result.run.states, None, 0)[1]
    assert np.array_equal(losses[0], result.history["loss"][:, -1]) and done > 3


def test_an_interrupt_while_the_last_files_are_written(tmp_path, monkeypatch):
    """They are written to the end, and hold the whole run; the result says that Ctrl-C came, so
    that nothing follows it. A second Ctrl-C leaves the last checkpoint.
    """
    write = files.Folder.write_json
    presses = [1]

    def pressed(self, name, content):
        for _ in range(presses[0] if name == "summary.json" else 0):
            os.kill(os.getpid(), signal.SIGINT)
        write(self, name, content)

    monkeypatch.setattr(files.Folder, "write_json", pressed)
    tiny = {"depth": 2, "width": 4, "seeds": 1, "max_iter": 2, "progress": False}
    result = sapm.solve(curve(), **tiny, out=tmp_path / "one")
    assert result.run.cut == ENDING and (tmp_path / "one" / "summary.json").exists()
    assert sapm.load(tmp_path / "one" / "model.sapm").run.cut == ""
    presses[0] = 2
    result = sapm.solve(curve(), **tiny, out=tmp_path / "two")
    assert result.run.cut == ENDING and not (tmp_path / "two" / "summary.json").exists()
    assert sapm.resume(tmp_path / "two", progress=False).table == result.table


def test_a_run_that_has_finished_stays_finished(tmp_path, monkeypatch):
    """Also where a second Ctrl-C comes while its last networks are compared."""
    tiny = {"depth": 2, "width": 4, "seeds": 1, "max_iter": 2, "progress": False}

    def pressed(*_):
        raise KeyboardInterrupt

    for owner, name in ((Fixed, "finish"), (driver, "with_scores")):
        out = tmp_path / name
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, pressed)
            result = sapm.solve(curve(), **tiny, out=out)
        assert result.run.status == ("finished",) and result.run.cut == ENDING
        ended = json.loads((out / "summary.json").read_text())
        assert ended["seeds"][0]["status"] == "finished" and ended["interrupted"] == ENDING
        assert sapm.resume(out, progress=False).run.status == ("finished",)


def test_progress_is_silent_off_a_terminal(capfd, monkeypatch):
    """Nothing is printed here; on a terminal there is a line with the losses and the share of the
    bound.
    """
    sapm.solve(curve(), depth=2, width=4, seeds=1, max_iter=3)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(
        progress, "Console", lambda **kwargs: Console(force_terminal=True, width=120, stderr=True)
    )
    sapm.solve(curve(), depth=2, width=4, seeds=1, max_iter=3)
    shown = capfd.readouterr().err
    assert "SAPM" in shown and "3/3" in shown and "of the bound" in shown
    sapm.solve(curve(), depth=2, width=4, seeds=1, max_iter=3, progress=False)
    assert capfd.readouterr() == ("", "")


def test_a_line_now_and_then_off_a_terminal(capfd, monkeypatch):
    """The log of a long batch job shows that it goes on; where the true loss is minimised, it is
    said once.
    """
    monkeypatch.setattr(progress, "FIRST_LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "LINE_INTERVAL_SECONDS", 0.0)
    sapm.solve(curve(), depth=2, width=4, seeds=1, max_iter=2, model="ls")
    waiting, first, *others = capfd.readouterr().err.splitlines()
    assert waiting == "True loss by gauss-newton  compiling …"
    assert (
        re.fullmatch(r"True loss by gauss-newton  0/2  loss \S+  \d+ s", first) and len(others) == 2
    )
    sapm.solve(curve(), depth=2, width=4, seeds=1, max_iter=2, model="ls", progress=False)
    assert capfd.readouterr() == ("", "")


def test_the_table_says_each_thing_once():
    """One column for two losses that are one, none for an error that nobody knows, and which
    network of a run was kept.
    """
    x = np.linspace(-1, 1, 20)
    result = sapm.solve(
        sapm.Regression(x, x**3), 2, 4, model="ls", seeds=1, max_iter=4, progress=False
    )
    head = [column.header for column in result.summary().columns]
    assert head == ["seed", "initial loss", "true loss", "train error", "steps", "status"]
    assert str(result.summary().title) == "True loss by gauss-newton: depth 2, width 4, tanh"
    kept = replace(result, run=replace(result.run, chosen=np.array([2])))
    assert list(kept.summary().columns[-2].cells) == ["2 of 4"] and list(
        result.summary().columns[-2].cells
    ) == ["4"]
    assert "bound" not in page.figures(result)


def test_a_narrow_table_breaks_no_number(solved):
    """All nine columns fit into 80 characters; and the next print is as wide as ever."""
    table = solved.summary()
    wide = str(solved.summary())
    console = Console(width=80)
    with console.capture() as capture:
        console.print(table)
    row = next(line for line in capture.get().splitlines() if "finished" in line)
    assert len(row) == 80 and all(
        f"{solved.table[0][name]:.2e}" in row for name in ("loss", "train_error", "test_residual")
    )
    assert str(table) == wide


def test_pm_by_auto_is_warned_of():
    """It is not PM's loss that is minimised there."""
    for method, said in (
        ("auto", ["for PM's own loss give method='gauss-newton'"]),
        ("gauss-newton", []),
    ):
        planned = plan(transport(), model="pm", method=method)
        found = doubts(transport(), planned.activation, planned, "pm")
        assert len(found) == len(said) and all(
            a in b.sentence for a, b in zip(said, found, strict=True)
        )


def test_ctrl_c_before_the_first_step_is_one_line(monkeypatch):
    def press(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sapm.Regression, "samples", press)
    with pytest.raises(KeyboardInterrupt, match="interrupted before it had a result") as caught:
        sapm.solve(curve(), 2, 4, seeds=1)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("model", "method", "wanted"),
    [
        ("ls", "auto", "gauss-newton"),
        ("ls", "adam", "adam"),
        ("pm", "lbfgs", "lbfgs"),
        ("pm", "auto", "gauss-newton"),
        ("sapm", "gauss-newton", "gauss-newton"),
        ("pm", "alternating", "alternating"),
    ],
)
def test_models_and_methods(model, method, wanted):
    result = sapm.solve(
        curve(), depth=2, width=4, seeds=2, max_iter=30, model=model, method=method, progress=False
    )
    assert result.config["method"] == wanted and np.all(
        result.history["loss"][:, -1] < result.history["loss"][:, 0]
    )
    assert result.certificate.holds is {"ls": True, "pm": None, "sapm": True}[model]


def test_polish_lowers_the_true_loss():
    """Sweeps, then L-BFGS from the network they found: the minimised loss is the true one from there
    on.
    """
    options = {"polish_after": 5}
    result = sapm.solve(
        curve(),
        depth=3,
        width=6,
        seeds=2,
        max_iter=60,
        method="alternating",
        start="noise",
        init="xavier",
        options=options,
        progress=False,
    )
    loss = result.history["loss"]
    true = result.history["mean_squared_loss"]
    assert np.all(loss[:, 6:] == true[:, 6:]) and np.all(loss[:, :5] != true[:, :5])
    assert np.all(true[:, -1] < 2e-2 * true[:, 5])
    sweeps = sapm.solve(
        curve(),
        depth=3,
        width=6,
        seeds=2,
        max_iter=5,
        start="noise",
        init="xavier",
        method="alternating",
        progress=False,
    )
    assert np.allclose(sweeps.history["loss"], loss[:, :6], rtol=1e-8)


def test_penalty_is_no_error():
    """With an ℓ² penalty the loss contains it; the true loss and the errors do not."""
    x = np.linspace(-1, 1, 20)
    problem = sapm.Regression(x, np.sin(3 * x), test=(x, np.sin(3 * x)))
    row = sapm.solve(
        problem,
        depth=2,
        width=4,
        seeds=1,
        model="ls",
        options={"l2": 0.1},
        max_iter=20,
        progress=False,
    ).table[0]
    assert (
        row["train_error"] == pytest.approx(row["test_error"], rel=1e-9)
        and row["loss"] > row["mean_squared_loss"]
    )


@pytest.mark.slow
def test_pictures_where_the_answer_ends(tmp_path):
    """A target that is infinite at the end of its domain can be learned from inside, and drawn: no
    error and no warning is the test.
    """
    problem = sapm.Function(sapm.Box(x=(-1, 1)), lambda p: jnp.log(1 - p.x))
    sapm.solve(problem, depth=2, width=4, points=20, seeds=1, max_iter=1, progress=False).report(
        tmp_path / "r.html"
    )


@pytest.mark.slow
def test_problems_nobody_tuned_for():
    """A rotation in 2+1 dimensions, a jump in the inflow, five inputs and two outputs: reported,
    finite, falling.
    """
    turning = sapm.solve(rotation(), **(SMALL | {"depth": 3, "width": 6}), max_iter=50)
    assert (
        all(np.isfinite(row["solution_error"]) for row in turning.table)
        and turning.certificate.holds
    )
    jump = transport(
        conditions=[sapm.Initial(lambda p: 0.0), sapm.Inflow(lambda p: 1.0 if p.t < 0.5 else 0.0)],
        exact=None,
    )
    result = sapm.solve(jump, **SMALL, max_iter=20)
    assert result.table[0]["solution_error"] is None and 0 < result.reference_error(20) < 10
    X = np.random.default_rng(0).uniform(-1, 1, (80, 5))
    Y = np.c_[np.sin(X @ [1, 2, 0, 1, -1]), X[:, 0] * X[:, 1]]
    result = sapm.solve(
        sapm.Regression(X[:60], Y[:60], test=(X[60:], Y[60:])),
        depth=3,
        width=8,
        seeds=2,
        max_iter=50,
        progress=False,
    )
    assert result.best(X).shape == (80, 2) and result.best(x1=0, x2=0, x3=0, x4=0, x5=0).shape == (
        2,
    )
    assert np.isfinite(result.table[0]["test_error"]) and result.best.d("x2")(X).shape == (80, 2)


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_figures_and_report(solved, tmp_path):
    """Every figure draws what it says; the page holds all of them and nothing from outside."""
    loss = solved.plot("loss").axes[0]
    best = next(line for line in loss.lines if "best" in str(line.get_label()))
    assert np.array_equal(best.get_ydata(), solved.history["loss"][solved.run.best])
    assert loss.get_xlim()[1] >= 30
    bound = solved.plot("bound").axes[0]
    labels = [line.get_label() for line in bound.lines]
    assert labels[1:] == ["true loss", "minimised loss"] and labels[0].startswith("bound: ")
    mesh = solved.plot("error").axes[0].collections[0].get_array()
    assert np.isfinite(mesh).all() and solved.plot("solution").axes
    one = sapm.solve(curve(), depth=2, width=4, seeds=1, max_iter=2, progress=False)
    assert {line.get_label() for line in one.plot("solution").axes[0].lines} == {
        "training points",
        "network",
    }
    assert len(one.plot("error").axes[0].lines) == 2
    page = Page(solved.report(tmp_path / "r.html").read_text())
    images = [attrs["src"] for tag, attrs in page.tags if tag == "img"]
    assert len(images) == 4 and all(src.startswith("data:image/png;base64,") for src in images)
    assert not [a for _, a in page.tags if a.get("src", "data:")[:5] != "data:" or "href" in a]
    assert "Theorem 3 holds" in page.text and "ran all 30 iterations." in page.text


def test_one_thread_of_linear_algebra_while_it_works(monkeypatch):
    """Threads that wait for each other cost many times their gain on cores that others use; the
    user's own are left alone.
    """

    def threads():
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    seen = []
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with threadpool_limits(2, user_api="blas"):
        sapm.solve(
            curve(),
            2,
            3,
            max_iter=2,
            seeds=1,
            progress=False,
            on_record=lambda state: seen.append(threads()),
        )
        assert set.union(*seen) == {1} and threads() == {2}
        with one_thread(), one_thread():
            pass
        with one_thread():
            assert threads() == {1}
            monkeypatch.setenv("OMP_NUM_THREADS", "2")
        assert threads() == {2}
        with one_thread():
            assert threads() == {2}


def test_what_is_said_of_a_run_without_a_step():
    result = sapm.solve(curve(), 2, 4, seeds=2, max_seconds=1e-9, progress=False)
    assert "NO STEP WAS TAKEN: the time was up" in " ".join(str(result.summary()).split())
    assert "NO STEP" not in str(
        sapm.solve(curve(), 2, 4, seeds=2, max_iter=1, progress=False).summary()
    )


def test_values_without_a_name():
    with pytest.raises(
        TypeError,
        match="got 5 without a name, expected problem, depth, width, activation at most",
    ):
        sapm.solve(curve(), 2, 4, "tanh", 100)
    with pytest.raises(
        TypeError,
        match=r"expected network, problem at most; .* Data are a problem: sapm.Regression\(X, y\)",
    ):
        sapm.refine([], [1.0], [2.0])
    with pytest.raises(
        TypeError, match=r"has no setting 'seeds'\. It trains one network, the one that is given"
    ):
        sapm.refine([], curve(), seeds=3)
    with pytest.raises(ValueError, match="It is called 'sigmoid' here"):
        sapm.solve(curve(), activation="logistic")
