"""Points drawn anew where the residual is large, and the network that is kept."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sapm
from sapm.driver import points
from sapm.driver.points import (
    RESTING_VISITS,
    Lowest,
    no_longer_falls,
    redrawn_points,
    residuals_at_test_points,
    with_last_states,
)
from sapm.driver.solve import ENDING
from sapm.methods.gauss_newton import GaussNewtonEngine
from sapm.numerics.activations import tanh
from sapm.results.result import best_of
from sapm.training.loop import Training
from sapm.training.run import Run, SamplerState, Status

TINY = {
    "depth": 3,
    "width": 10,
    "seeds": 1,
    "progress": False,
    "test_points": 200,
    "points": 20,
    "boundary_points": 2,
}
EVERY_2 = TINY | {"options": {"resample": 2}}


def bent():
    return sapm.PDE(sapm.Box(x=(0, 1)), lambda p, u: u.xx + u.value**2 - 1, [sapm.Dirichlet(0)])


@pytest.mark.slow
def test_points_are_drawn_where_the_residual_is_large(tmp_path):
    """A layer near x = 1: half of the points move there; cut and continued, the run has the same
    numbers.
    """

    def exact(p):
        return jnp.tanh(100 * (p.x - 0.9))

    second = jax.grad(jax.grad(lambda x: jnp.tanh(100 * (x - 0.9))))
    problem = sapm.PDE(
        sapm.Box(x=(0, 1)), lambda p, u: u.xx - second(p.x), [sapm.Dirichlet(exact)], exact
    )
    settings = TINY | {"activation": "tanh", "options": {"resample": 5}}
    whole = sapm.solve(problem, **settings, max_iter=21)
    x = np.asarray(whole.samples.terms[0].x.value)
    assert (
        np.mean(np.abs(x - 0.9) < 0.05) > 0.25
        and whole.run.sampler_state.visited == 20
        and whole.run.sampler_state.redrawn
    )
    sapm.solve(problem, **settings, max_iter=15, out=tmp_path / "run")
    resumed = sapm.resume(tmp_path / "run", max_iter=21, problem=problem, progress=False)
    assert np.array_equal(resumed.history["loss"], whole.history["loss"])
    with pytest.warns(UserWarning, match="so the points stay as they are") as told:
        blind = sapm.resume(tmp_path / "run", max_iter=26, progress=False)
    assert told[0].filename == __file__
    sizes = [
        residuals_at_test_points(result.run, blind.samples, result.plan)[0]
        for result in (blind, resumed)
    ]
    assert (
        blind.history["iteration"].max() == 26 and sizes[0] <= sizes[1]
    )  # by what the file has, not a worse one


@pytest.mark.slow
def test_more_points_and_a_file_of_them(tmp_path, monkeypatch):
    """Points that have become more: none is a test point, and the run can be read, continued and
    cut short with its problem.
    """
    monkeypatch.setattr(points, "REDRAW_ABOVE", 0.0)
    monkeypatch.setattr(points, "DOUBLE_ABOVE", 0.0)
    monkeypatch.setattr(points, "LARGEST_POOL", 30)  # fewer than are to be drawn in the end
    problem = bent()
    settings = EVERY_2
    whole = sapm.solve(problem, **settings, max_iter=5)
    x, held = (
        set(np.asarray(rows).ravel().tolist())
        for rows in (whole.samples.terms[0].points, whole.samples.test["x"])
    )
    assert len(x) == 80 and not x & held
    sapm.solve(problem, **settings, max_iter=3, out=tmp_path / "run")
    assert sapm.load(tmp_path / "run" / "model.sapm", problem=problem).run.sampler_state.redrawn
    resumed = sapm.resume(tmp_path / "run", max_iter=5, problem=problem, progress=False)
    assert np.array_equal(resumed.history["loss"], whole.history["loss"])


@pytest.mark.slow
def test_ctrl_c_at_the_last_look(monkeypatch):
    """Then the last network is handed back as it is."""
    problem = bent()
    settings = EVERY_2
    whole = sapm.solve(problem, **settings, max_iter=5)
    looks = []

    def look(*given):
        looks.append(given)
        if len(looks) == 3:
            raise KeyboardInterrupt
        return redrawn_points(*given)

    monkeypatch.setattr(points, "redrawn_points", look)
    cut = sapm.solve(problem, **settings, max_iter=5)
    assert (
        len(looks) == 3
        and cut.run.status == ("finished",)
        and cut.run.cut == ENDING
        and np.array_equal(cut.history["loss"], whole.history["loss"])
    )


def test_a_run_ends_when_nothing_falls():
    assert no_longer_falls([1.0, 0.5, *[0.48] * RESTING_VISITS]) and not no_longer_falls(
        [1.0, 0.5, *[0.48] * (RESTING_VISITS - 1), 0.4]
    )
    assert not no_longer_falls([1.0, *[2.0] * (RESTING_VISITS - 1)])


def recorded(n: int, *status: str) -> Run:
    """A run of two seeds with n records, whose states say how many."""
    history = {"loss": np.zeros((2, n)), "iteration": 15 * np.tile(np.arange(n), (2, 1))}
    return Run(
        None,
        (0, 1),
        np.array([[n], [10.0 * n]]),
        history,
        tuple(map(Status, status or ("stalled",) * 2)),
        ("over.",) * 2,
        np.full(2, n - 1),
    )


def equal(a: Lowest, b: Lowest) -> bool:
    return (
        np.array_equal(a.size, b.size)
        and np.array_equal(a.record, b.record)
        and np.array_equal(a.states, b.states)
    )


def test_the_network_with_the_smallest_residual_elsewhere_is_kept():
    """Of every seed, whatever comes after it; a run that is continued knows it, also where it was
    the last.
    """
    state = SamplerState()
    lowest = Lowest.none(2).updated(recorded(2), np.array([0.5, np.inf]))
    assert (
        Lowest.none(2).applied_to(recorded(2), state).kept is None
        and lowest.applied_to(recorded(2), state).explanation(0) == "over."
    )
    renewed = replace(
        recorded(2), states=-recorded(2).states
    )  # made ready for other points: it was looked at before that
    assert lowest.applied_to(renewed, state).kept.tolist() == [[2], [-20]] and lowest.applied_to(
        renewed, state
    ).chosen.tolist() == [1, 1]
    assert lowest.applied_to(recorded(2), state).sampler_state.lowest == (0.5, np.inf)
    assert equal(Lowest.before(lowest.applied_to(recorded(2), state), 2), lowest)
    lowest = lowest.updated(recorded(3), np.array([0.1, 0.4])).updated(
        recorded(4), np.array([0.3, 0.2])
    )
    kept = lowest.applied_to(recorded(5), state)
    assert (kept.kept.tolist(), kept.chosen.tolist(), kept.states.tolist()) == (
        [[3], [40]],
        [2, 3],
        [[5], [50]],
    )
    assert (
        kept.explanation(0)
        == "over. The network of iteration 30 is kept, since it has the smallest residual at points that were not trained on."
    )
    assert kept.explanation(1).startswith("over. The network of iteration 45 is kept, ")
    assert equal(Lowest.before(kept, 2), lowest) and lowest.applied_to(
        with_last_states(kept), state
    ).explanation(0) == kept.explanation(0)
    assert with_last_states(kept).kept is None and with_last_states(kept).chosen.tolist() == [4, 4]
    mixed = lowest.updated(recorded(5), np.array([1.0, 0.1])).applied_to(
        recorded(5), state
    )  # one stands for its end, the other does not
    assert (mixed.kept.tolist(), mixed.chosen.tolist()) == ([[3], [50]], [2, 4])
    assert mixed.explanation(1) == "over."


def test_more_points_where_networks_pass_between_them():
    """A network that is exact at its points and wrong elsewhere gets twice as many; one that is not
    keeps their number.
    """
    problem = sapm.PDE(
        sapm.Box(x=(0, 1)),
        lambda p, u: u.xx + 40.0 * jnp.sin(40 * p.x),
        [sapm.Dirichlet(lambda p: 0.0 * p.x)],
    )
    weights = [(np.zeros((3, 1)), np.zeros(3)), (np.zeros((1, 3)), np.zeros(1))]
    wave = np.arange(1, 7) * np.pi / 40  # where the source is 0, so is the residual of u = 0
    exact, off = (problem.samples(wave[:, None] + shift, 2, 0) for shift in (0, 0.008))
    far, (size,) = redrawn_points(problem, exact, [weights], tanh, 1)
    assert len(far) == 12 and 20 < size < 40
    assert len(redrawn_points(problem, exact, [weights], tanh, 1, may_grow=False)[0]) == 6
    assert len(redrawn_points(problem, off, [weights], tanh, 1)[0]) == 6


def string():
    return sapm.PDE(sapm.Box(x=(0, 1)), lambda p, u: u.xx + jnp.sin(3 * p.x), [sapm.Dirichlet(0)])


@pytest.mark.slow
def test_a_finished_run_keeps_its_network_when_it_is_continued_without_its_problem(tmp_path):
    """The last look at fresh points is in the checkpoint too."""
    whole = sapm.solve(string(), **EVERY_2, max_iter=5, out=tmp_path / "run")
    again = sapm.resume(tmp_path / "run", progress=False)
    assert again.table == whole.table and np.array_equal(again.best(x=[0.3]), whole.best(x=[0.3]))
    assert sapm.resume(tmp_path / "run", progress=False).table == whole.table  # and again
    longer = sapm.resume(tmp_path / "run", max_iter=8, problem=string(), progress=False)
    assert longer.table == sapm.solve(string(), **EVERY_2, max_iter=8).table


def test_nothing_is_kept_where_nothing_could_be_compared(tmp_path, monkeypatch):
    """Residuals that are not finite at fresh points: cut and continued, the last network stands for
    the run.
    """
    monkeypatch.setattr(points, "redrawn_points", lambda *given: (None, [np.inf]))
    whole = sapm.solve(string(), **EVERY_2, max_iter=6)
    sapm.solve(string(), **EVERY_2, max_iter=4, out=tmp_path / "run")
    cut = sapm.resume(tmp_path / "run", max_iter=6, problem=string(), progress=False)
    assert cut.table == whole.table and "Kept" not in cut.run.explanation(0)


def test_a_seed_that_was_lost_stands_for_nothing():
    lowest = Lowest.none(2).updated(recorded(2), np.array([0.5, 0.4]))
    state = SamplerState()
    left = lowest.without_lost(recorded(3, "running", "dropped"))
    assert left.size.tolist() == [0.5, np.inf] and left.record.tolist() == [1, -1]
    assert left.applied_to(recorded(3, "running", "dropped"), state).chosen.tolist() == [1, 2]
    assert equal(lowest.without_lost(recorded(3, "running", "running")), lowest)
    assert lowest.without_lost(recorded(3, "dropped", "non-finite")).states is None
    known = SamplerState(lowest=(0.5, 0.4))
    assert Lowest.none(2).applied_to(recorded(2), known).sampler_state.lowest == ()


def test_a_callback_that_stops_where_points_are_drawn():
    result = sapm.solve(
        string(), **EVERY_2, max_iter=8, on_record=lambda state: state.iteration == 4
    )
    assert result.run.status == ("stopped",) and result.history["iteration"].max() == 4


def test_an_interrupt_when_training_is_over_loses_nothing(tmp_path, monkeypatch):
    """Such as a second Ctrl-C: what this call has reached is kept, not what it began with."""
    from sapm.driver import solve as driver

    sapm.solve(string(), **TINY, max_iter=5, out=tmp_path / "run", options={"resample": 0})
    trained = driver.loop

    def cut(begin, rules, stepping, observers, *rest):
        def press(progress):
            if progress.iteration == 12:
                raise KeyboardInterrupt

        return trained(begin, rules, stepping, [*observers, press], *rest)

    monkeypatch.setattr(driver, "loop", cut)
    result = sapm.resume(tmp_path / "run", max_iter=12, problem=string(), progress=False)
    assert result.run.status == ("interrupted",) and result.history["iteration"].max() == 12
    assert (
        sapm.load(tmp_path / "run" / "checkpoint" / "latest.sapm").history["iteration"].max() == 12
    )


@pytest.mark.slow
def test_no_more_points_than_a_step_can_take(monkeypatch):
    monkeypatch.setattr(points, "REDRAW_ABOVE", 0.0)
    monkeypatch.setattr(points, "DOUBLE_ABOVE", 0.0)
    monkeypatch.setattr("sapm.driver.points.affordable", lambda rows, tangents, widths: rows <= 42)
    result = sapm.solve(bent(), **EVERY_2, max_iter=7)
    assert len(result.samples.terms[0].y) == 40


def test_a_result_so_far_keeps_what_the_run_keeps(tmp_path):
    """A file that a callback saves is continued to the same end."""
    problem = sapm.PDE(
        sapm.Box(t=(0, 4)), lambda p, u: u.t + u.value**2 - jnp.sin(8 * p.t), [sapm.Initial(1.0)]
    )
    settings = TINY | {"width": 6, "seeds": 2, "options": {"resample": 4}, "max_iter": 22}

    def save(state):
        if state.iteration in (14, 18, 21):
            state.result().save(tmp_path / f"{state.iteration}.sapm")

    whole = sapm.solve(problem, **settings, on_record=save)
    for at in (14, 18, 21):
        resumed = sapm.resume(tmp_path / f"{at}.sapm", problem=problem, progress=False)
        assert resumed.table == whole.table


def test_what_a_callback_returns():
    """True stops; the number of letters that were written does not, nor does nothing at all."""
    for returned, end in (
        (3, 6),
        ([], 6),
        (None, 6),
        ("yes", 6),
        (True, 0),
        (np.array([True, True]), 0),
        (np.bool_(False), 6),
    ):
        result = sapm.solve(string(), **TINY, max_iter=6, on_record=lambda state, r=returned: r)
        assert result.history["iteration"].max() == end


def test_an_interrupt_where_points_are_drawn_loses_nothing(monkeypatch):
    """Even one before the first step with the new points was marked."""
    from sapm.training.loop import Training

    marks = []
    mark = Training.mark

    def pressed(self):
        marks.append(self.iteration)
        if (
            len(marks) > 2 and marks[-1] == marks[-2] == 4
        ):  # the first of a segment is where the last one ended
            raise KeyboardInterrupt
        mark(self)

    monkeypatch.setattr(Training, "mark", pressed)
    result = sapm.solve(string(), **EVERY_2, max_iter=8)
    assert result.run.status == ("interrupted",) and result.history["iteration"].max() == 4


def test_an_interrupt_between_a_visit_and_the_loop(tmp_path, monkeypatch):
    """The visit is taken back, so that the folder holds the points and the states of one moment,
    and the continued run equals the whole one.
    """
    monkeypatch.setattr(points, "REDRAW_ABOVE", 0.0)
    monkeypatch.setattr(points, "DOUBLE_ABOVE", 0.0)
    problem = bent()
    whole = sapm.solve(problem, **EVERY_2, max_iter=5)
    visit = points.Redrawn.visit

    def pressed(self, run, iteration):
        visit(self, run, iteration)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(points.Redrawn, "visit", pressed)
        cut = sapm.solve(problem, **EVERY_2, max_iter=5, out=tmp_path / "run")
    assert cut.run.cut == "interrupted after 2 iterations."
    assert len(cut.samples.terms[0].y) == 20 and not cut.run.sampler_state.redrawn
    resumed = sapm.resume(tmp_path / "run", problem=problem, progress=False)
    assert np.array_equal(resumed.history["loss"], whole.history["loss"])


def test_the_callback_ends_a_run_whose_seeds_have_ended(monkeypatch):
    """Without the callback they would train on at the points of the next visit."""
    monkeypatch.setattr(points, "REDRAW_ABOVE", 0.0)
    monkeypatch.setattr(GaussNewtonEngine, "settled", lambda self, diagnostics: "it has settled")
    seen = []

    def stop(state):
        seen.append(state.iteration)
        return state.result().run.status == ("converged",)

    result = sapm.solve(bent(), **EVERY_2, max_iter=5, on_record=stop)
    assert seen == [0, 1] and result.run.status == ("converged",)
    with monkeypatch.context() as patch:  # nor beyond the time
        patch.setattr(Training, "seconds", property(lambda self: 100.0 * (self.iteration > 0)))
        assert sapm.solve(bent(), **EVERY_2, max_iter=5, max_seconds=50).run.iterations == 1
    # one iteration in each of the three segments that the visits at 2 and 4 make
    assert sapm.solve(bent(), **EVERY_2, max_iter=5).run.iterations == 3


def test_time_that_ends_just_before_a_visit_is_out_of_time(monkeypatch):
    """The seeds have not run all iterations, although they have reached the visit."""
    passed = property(lambda self: 100.0 * (self.iteration >= 2))
    monkeypatch.setattr(Training, "seconds", passed)
    result = sapm.solve(bent(), **EVERY_2, max_iter=5, max_seconds=50)
    assert result.run.iterations == 2 and result.run.status == (Status.OUT_OF_TIME,)
    assert result.table[0]["reason"].startswith("the time was up (50 s in all")


@pytest.mark.slow
def test_every_seed_stands_for_its_own_best(tmp_path):
    """Table, ranking, file and what is loaded from it agree, and a run that is continued."""
    problem = sapm.PDE(
        sapm.Box(x=(-1, 1)),
        lambda p, u: 0.01 * u.xx + u.value - u.value**3,
        [sapm.Dirichlet(lambda p: p.x)],
    )
    result = sapm.solve(problem, **EVERY_2 | {"seeds": 3}, max_iter=20)
    assert len(set(result.run.chosen.tolist())) > 1
    assert [row["loss"] for row in result.table] == result.run.final("loss").tolist()
    ends = [result.config["mu"] * np.mean((u(x=[-1, 1]) - [-1, 1]) ** 2) for u in result.seeds]
    scores = [row["test_residual"] ** 2 + end for row, end in zip(result.table, ends, strict=True)]
    assert np.allclose(scores, result.run.scores, rtol=1e-9) and result.run.best == np.argmin(
        scores
    )
    told = " ".join(str(result.summary(estimate=False)).split())
    assert f"to different points; the best, seed {result.best.seed}, has the smallest" in told
    result.save(tmp_path / "a.sapm")
    back = sapm.load(tmp_path / "a.sapm", problem)
    x = result.samples.test["x"]
    assert back.run.best == result.run.best and np.array_equal(
        best_of(tmp_path / "a.sapm")(x), result.best(x)
    )
    assert back.table == result.table and all(
        np.array_equal(u(x), v(x)) for u, v in zip(back.seeds, result.seeds, strict=True)
    )
    cut = sapm.solve(problem, **EVERY_2 | {"seeds": 3}, max_iter=7, out=tmp_path / "run")
    again = sapm.resume(tmp_path / "run", 20, problem=problem, progress=False)
    assert (
        again.table == result.table
        and again.run.sampler_state == result.run.sampler_state
        and cut.table != again.table
    )
