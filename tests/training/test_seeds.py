"""Many seeds: who is dropped when, what is computed for it, that others do not notice, and how a
thousand of them look.
"""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sapm
from sapm.methods.descent import descent
from sapm.objective.penalty import objective
from sapm.objective.terms import value_term
from sapm.training import seeds as seeding
from sapm.training.loop import train
from sapm.training.seeds import Room, rungs, seated, success

SMALL = {"depth": 2, "width": 3, "points": 12, "test_points": 10, "progress": False}


def curve():
    return sapm.Function(sapm.Box(x=(-1, 1)), lambda p: jnp.sin(3 * p.x))


def solve(seeds=12, max_iter=16, method="alternating", **options):
    return sapm.solve(
        curve(), **SMALL, method=method, seeds=seeds, max_iter=max_iter, options=options
    )


@pytest.fixture
def small_groups(monkeypatch):
    """Groups of four at most, all of one size, on every kind of device."""
    monkeypatch.setattr(
        "sapm.training.loop.room",
        lambda n, *_: seeding.Room(n, math.ceil(n / math.ceil(n / 4)), False),
    )
    seeding.chunk.clear_cache()


def test_the_rule():
    """R = ⌈log₂(S/k)⌉ rungs at ⌈n 2^(j-R)⌉ leave max(k, ⌈S 2^(-j-1)⌉); never one at the end."""
    assert rungs(1000, 10, 2000) == {16: 500, 32: 250, 63: 125, 125: 63, 250: 32, 500: 16, 1000: 10}
    assert rungs(12, 3, 16) == {4: 6, 8: 3}
    assert rungs(5, 4, 10) == {5: 4}
    assert rungs(1000, 10, 4) == {1: 16, 2: 10}  # rungs that fall together are one
    assert rungs(10, 10, 50) == rungs(10, None, 50) == rungs(10, 2, 0) == rungs(10, 2, 1) == {}


def test_the_right_seeds_are_dropped_and_stay_as_they_were(small_groups):
    """At every rung exactly the best go on, by the losses there; the others keep network and
    history, with a reason. All of it by one program, in fewer groups; and those that go on have the
    numbers, bit for bit, of a run in which all do."""
    everyone = solve(max_iter=16, record_every=4)
    computed = []
    call = seeding.chunk

    def groups_run(*args):
        return computed.append(int(args[3])) or call(*args)

    seeding.chunk.clear_cache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeding, "chunk", groups_run)
        result = solve(max_iter=16, record_every=4, survivors=3)
    assert call._cache_size() == 1
    loss = everyone.history["loss"]
    status = np.array(result.run.status)
    went_on = np.arange(12)
    for record, places in ((1, 6), (2, 3)):
        order = went_on[np.argsort(loss[went_on, record])]
        for rank, i in enumerate(order[places:], places + 1):
            assert status[i] == "dropped" and result.history["iteration"][i, -1] == 4 * record
            assert np.array_equal(result.history["loss"][i, : record + 1], loss[i, : record + 1])
            assert np.all(result.history["loss"][i, record:] == loss[i, record])
            found = re.fullmatch(
                rf"its loss (\S+) ranked (\d+) after {4 * record} iterations, and only the best {places} continued\.",
                result.run.reason[i],
            )
            assert (
                found
                and int(found[2]) == rank
                and float(found[1]) == float(f"{loss[i, record]:.2e}")
            )
        went_on = np.sort(order[:places])
    assert sorted(np.flatnonzero(status == "finished")) == sorted(went_on)
    for i in went_on:
        assert np.array_equal(result.history["loss"][i], loss[i])
        for x, y in zip(
            jax.tree.leaves(result.run.state(i)),
            jax.tree.leaves(everyone.run.state(i)),
            strict=True,
        ):
            assert np.array_equal(x, y)
    assert result.run.best in went_on
    steps = 4 * 3 + 4 * 2 + 8 * 1  # 3 groups of four, then 6 seeds in 2, then 3 in 1
    assert sum(computed) == steps


def test_groups_shrink_only_when_less_is_enough():
    """Seats follow from when seeds stopped alone: in groups of one size, or on a GPU in halves of
    all.
    """
    inf = np.inf
    four = Room(12, 4, False)
    halves = Room(12, 12, True)
    assert (
        four(12) == (3, 4)
        and four(5) == (2, 4)
        and halves(12) == (1, 12)
        and halves(6) == (1, 6)
        and halves(4) == (1, 6)
    )
    stopped = np.array([inf, 1, inf, inf, 2, inf, inf, inf, 2, 3, inf, inf])
    assert list(seated(stopped, four)) == [0, 2, 3, 5, 6, 7, 10, 11]
    assert list(seated(np.where(stopped == 3, inf, stopped), four)) == list(range(12))
    assert len(seated(stopped, halves)) == 12
    assert list(seated(np.arange(12.0), halves)) == [11]


def test_one_group_of_all_is_halved(monkeypatch):
    """As on a GPU: all seeds at once, then half of them, then a quarter; a program for each size,
    and the same seeds dropped.
    """
    wanted = solve(survivors=3)
    monkeypatch.setattr("sapm.training.loop.room", lambda seeds, *_: Room(seeds, seeds, True))
    seeding.chunk.clear_cache()
    result = solve(survivors=3)
    assert seeding.chunk._cache_size() == 3  # 12, 6 and 3 seeds
    assert result.run.status == wanted.run.status
    assert np.allclose(result.history["loss"], wanted.history["loss"], rtol=1e-6)


@pytest.mark.usefixtures("double_precision")
def test_every_kind_of_stop_empties_groups(small_groups):
    """Stalled seeds too are taken out; what they ended with is in the result in the place of the
    seed.
    """
    x = np.linspace(-1, 1, 20)
    method = descent(objective([value_term(x, x)], 2, "ls"), (1, 3, 1), "tanh", "gd", rate=0.1)
    states = jax.vmap(method.init)(jax.vmap(jax.random.key)(jnp.arange(10)))
    with jax.enable_x64(True):
        network = jax.tree.map(
            lambda w: w.astype(float).at[2:9].set(0.0), states.variables
        )  # a saddle: the gradient is 0
        run = train(
            method,
            30,
            seeds=10,
            record_every=5,
            patience=10,
            initial=type(states)(network, states.optimiser),
        )
    assert run.status == ("finished",) * 2 + ("stalled",) * 7 + ("finished",)
    bias = np.asarray(run.network(0).stack[2].b), np.asarray(run.network(5).stack[2].b)
    assert abs(bias[0]) > 1e-3 and abs(bias[1]) < 1e-12


@pytest.mark.parametrize("method", ["alternating", "auto"])
def test_resume_with_dropped_seeds(tmp_path, small_groups, method):
    """Cut anywhere and continued: the numbers, statuses and reasons of a run that was not cut."""
    whole = solve(max_iter=24, method=method, survivors=2)
    assert whole.run.status.count("dropped") >= 9
    for cut in (2, 7, 13):
        part = sapm.solve(
            curve(), **SMALL, method=method, seeds=12, max_iter=24, options={"survivors": 2},
            on_record=lambda p, cut=cut: p.iteration >= cut,
        )  # fmt: skip
        part.save(tmp_path / "part.sapm")
        again = sapm.resume(tmp_path / "part.sapm", progress=False)
        assert again.run.status == whole.run.status and again.run.reason == whole.run.reason
        assert np.array_equal(again.history["loss"], whole.history["loss"])
        for x, y in zip(
            jax.tree.leaves(again.run.states), jax.tree.leaves(whole.run.states), strict=True
        ):
            assert np.array_equal(x, y)


def test_validation_ranks(small_groups):
    """With validation data those with the lowest loss on them so far go on."""
    x = np.linspace(-1, 1, 30)
    problem = sapm.Regression(x[:20], np.sin(3 * x[:20]), validation=(x[20:], np.sin(3 * x[20:])))
    result = sapm.solve(
        problem,
        2,
        3,
        method="lbfgs",
        model="ls",
        seeds=8,
        max_iter=8,
        options={"survivors": 2},
        progress=False,
    )
    h = result.history
    rung = h["iteration"].max(0).tolist().index(2)
    best = np.argsort(h["validation_loss"][:, : rung + 1].min(1))[:4]
    assert {i for i in range(8) if h["iteration"][i, -1] > 2} == set(best)
    assert "its loss on the validation data" in " ".join(result.run.reason)


def test_success_interval():
    """Wilson's interval, against values computed by hand: 8 of 10, and its limits for 0."""
    result = solve(seeds=10, max_iter=3)
    loss = np.tile([[1.0, 0.5]], (10, 1))
    loss[:8, 1] = 0.05
    run = result.run.__class__(**vars(result.run) | {
        "history": {"loss": loss, "mean_squared_loss": loss}, "chosen": np.ones(10, int), "status": (sapm.Status.FINISHED,) * 10,
    })  # fmt: skip
    found = success(run)
    z = 1.959963984540054
    p = 0.8
    n = 10
    centre = (p + z * z / 2 / n) / (1 + z * z / n)
    half = z * np.sqrt(p * (1 - p) / n + z * z / 4 / n / n) / (1 + z * z / n)
    assert (found.count, found.of, found.rate) == (8, 10, 0.8)
    assert np.allclose([found.low, found.high], [centre - half, centre + half], atol=1e-12)
    rule = "minimised loss below 10% of its initial value, the paper's rule"
    assert str(found).startswith(
        f"8 of 10 seeds succeed ({rule}): 80.0%, with 95% confidence 49.0%"
    )
    assert success(run, below=0.01).count == 0 and success(run, below=0.01).low == 0
    statuses = ["dropped"] * 3 + ["non-finite"] + ["finished"] * 6
    run = run.__class__(**vars(run) | {"status": tuple(map(sapm.Status, statuses))})
    assert success(
        run
    ).count == 4 and "3 were dropped and count as failed, so this is a lower bound" in str(
        success(run)
    )
    with pytest.raises(ValueError, match="below: got 'a', expected a positive number"):
        result.success("a")


@pytest.mark.slow
def test_many_seeds_look_right(tmp_path):
    """The summary shows the best twenty, the table has all, the figure is a picture of bands, and
    the page is small.
    """
    result = solve(seeds=150, max_iter=4, survivors=10)
    text = str(result.summary())
    rows = [line for line in text.splitlines() if re.search(r"(finished|dropped) +[│┃]", line)]
    assert len(rows) == 20 and len(result.table) == 150
    losses = [float(re.split("[│┃]", line)[3]) for line in rows]
    assert losses == sorted(losses[:10]) + sorted(losses[10:])
    assert "… and 130 more: 130 dropped." in text and "of 150 seeds succeed" in text
    assert "since others had a lower loss: 131 after 1, 9 after 2 iterations." in " ".join(
        text.split()
    )
    assert len(result.plot("loss").axes[0].lines) == 2
    assert result.report(tmp_path / "page.html").stat().st_size < 1e6
    assert len(str(solve(seeds=12, max_iter=2).summary()).splitlines()) < 30


def test_refused():
    for bad in (0, -1, 2.5, "ten", True):
        with pytest.raises(ValueError, match="survivors="):
            solve(survivors=bad)
