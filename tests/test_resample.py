"""Points drawn anew where the residual is large, and the network that is kept."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sapm
from sapm import resample
from sapm.jet import tanh
from sapm.resample import TIMES, Lowest, at_held, at_last, harder, no_longer_falls
from sapm.run import KEPT, Run

TINY = {"depth": 3, "width": 10, "seeds": 1, "progress": False, "test_points": 200, "points": 20, "boundary_points": 2}
EVERY_2 = TINY | {"options": {"resample": 2}}


def bent():
    return sapm.PDE(sapm.Box(x=(0, 1)), lambda p, u: u.xx + u.value**2 - 1, [sapm.Dirichlet(0)])


def test_points_are_drawn_where_the_residual_is_large(tmp_path):
    """A layer near x = 1: half of the points move there; cut and continued, the run has the same numbers."""
    exact = lambda p: jnp.tanh(100 * (p.x - 0.9))  # noqa: E731
    second = jax.grad(jax.grad(lambda x: jnp.tanh(100 * (x - 0.9))))
    problem = sapm.PDE(sapm.Box(x=(0, 1)), lambda p, u: u.xx - second(p.x), [sapm.Dirichlet(exact)], exact)
    settings = TINY | {"activation": "tanh", "options": {"resample": 5}}
    whole = sapm.solve(problem, **settings, max_iter=21)
    x = np.asarray(whole.samples.terms[0].x.value)
    assert np.mean(np.abs(x - 0.9) < 0.05) > 0.25 and whole.config["drawn_at"] == 20 and whole.config["points"] is None
    sapm.solve(problem, **settings, max_iter=15, out=tmp_path / "run")
    resumed = sapm.resume(tmp_path / "run", max_iter=21, problem=problem, progress=False)
    assert np.array_equal(resumed.history["loss"], whole.history["loss"])
    with pytest.warns(UserWarning, match="the points stay as they are"):
        blind = sapm.resume(tmp_path / "run", max_iter=26, progress=False)
    size = lambda result: at_held(blind.samples, result.best.network_weights, tanh)  # noqa: E731
    assert blind.history["iteration"].max() == 26 and size(blind) <= size(resumed)  # by what the file has, not a worse one


def test_more_points_and_a_file_of_them(tmp_path, monkeypatch):
    """Points that have become more: none is a test point, and the run can be read, continued and cut short with its problem."""
    monkeypatch.setattr(resample, "WORSE", 0.0)
    monkeypatch.setattr(resample, "FAR", 0.0)
    monkeypatch.setattr(resample, "MOST", 30)  # fewer than are to be drawn in the end
    problem, settings = bent(), EVERY_2
    whole = sapm.solve(problem, **settings, max_iter=5)
    x, held = (set(np.asarray(rows).ravel().tolist()) for rows in (whole.samples.terms[0].points, whole.samples.test["x"]))
    assert len(x) == 80 and not x & held
    sapm.solve(problem, **settings, max_iter=3, out=tmp_path / "run")
    assert sapm.load(tmp_path / "run" / "model.sapm", problem=problem).config["points"] is None
    resumed = sapm.resume(tmp_path / "run", max_iter=5, problem=problem, progress=False)
    assert np.array_equal(resumed.history["loss"], whole.history["loss"])


def test_ctrl_c_at_the_last_look(monkeypatch):
    """Then the last network is handed back as it is."""
    problem, settings = bent(), EVERY_2
    whole = sapm.solve(problem, **settings, max_iter=5)
    looks = []

    def look(*given):
        looks.append(given)
        if len(looks) == 3:
            raise KeyboardInterrupt
        return harder(*given)

    monkeypatch.setattr("sapm.solver.harder", look)
    monkeypatch.setattr(resample, "harder", look)
    cut = sapm.solve(problem, **settings, max_iter=5)
    assert len(looks) == 3 and cut.run.status == ("interrupted",) and np.array_equal(cut.history["loss"], whole.history["loss"])


def test_a_run_ends_when_nothing_falls():
    assert no_longer_falls([1.0, 0.5, *[0.48] * TIMES]) and not no_longer_falls([1.0, 0.5, *[0.48] * (TIMES - 1), 0.4])
    assert not no_longer_falls([1.0, *[2.0] * (TIMES - 1)])


def test_the_network_with_the_smallest_residual_elsewhere_is_kept():
    """Whatever comes after it; a run that is continued knows it, also where it was the last."""
    made = lambda n: {"loss": np.zeros((2, n)), "iteration": 15 * np.tile(np.arange(n), (2, 1))}  # noqa: E731
    run = lambda n: Run(None, (0, 1), f"states {n}", made(n), ("stalled",) * 2, ("over.",) * 2, np.full(2, n - 1))  # noqa: E731
    lowest = Lowest().seen(run(2), 0.5)
    assert lowest.kept_by(run(2)).kept is None and lowest.kept_by(run(2)).reason == ("over.",) * 2
    assert Lowest.before(lowest.kept_by(run(2)), {"lowest": 0.5}) == lowest
    lowest = lowest.seen(run(3), 0.1).seen(run(4), 0.3)
    kept = lowest.kept_by(run(5))
    assert (kept.kept, kept.chosen.tolist(), kept.states) == ("states 3", [2, 2], "states 5")
    assert (
        kept.reason[1]
        == "over. Kept is the network of iteration 30, where the best seed had the smallest residual at fresh points."
    )
    assert Lowest.before(kept, {"lowest": 0.1}) == lowest and lowest.kept_by(at_last(kept)).reason == kept.reason
    assert at_last(kept).kept is None and at_last(kept).chosen.tolist() == [4, 4]


def test_more_points_where_networks_pass_between_them():
    """A network that is exact at its points and wrong elsewhere gets twice as many; one that is not keeps their number."""
    problem = sapm.PDE(sapm.Box(x=(0, 1)), lambda p, u: u.xx + 40.0 * jnp.sin(40 * p.x), [sapm.Dirichlet(lambda p: 0.0 * p.x)])
    weights = [(np.zeros((3, 1)), np.zeros(3)), (np.zeros((1, 3)), np.zeros(1))]
    wave = np.arange(1, 7) * np.pi / 40  # where the source is 0, so is the residual of u = 0
    exact, off = (problem.samples(wave[:, None] + shift, 2, 0) for shift in (0, 0.008))
    far, size = harder(problem, exact, [weights], tanh, 1)
    assert len(far) == 12 and 20 < size < 40
    assert len(harder(problem, exact, [weights], tanh, 1, more=False)[0]) == 6
    assert len(harder(problem, off, [weights], tanh, 1)[0]) == 6


def string():
    return sapm.PDE(sapm.Box(x=(0, 1)), lambda p, u: u.xx + jnp.sin(3 * p.x), [sapm.Dirichlet(0)])


def test_a_finished_run_keeps_its_network_when_it_is_continued_without_its_problem(tmp_path):
    """The last look at fresh points is in the checkpoint too."""
    whole = sapm.solve(string(), **EVERY_2, max_iter=5, out=tmp_path / "run")
    again = sapm.resume(tmp_path / "run", progress=False)
    assert again.table == whole.table and np.array_equal(again.best(x=[0.3]), whole.best(x=[0.3]))
    assert sapm.resume(tmp_path / "run", progress=False).table == whole.table  # and again
    longer = sapm.resume(tmp_path / "run", max_iter=8, problem=string(), progress=False)
    assert longer.table == sapm.solve(string(), **EVERY_2, max_iter=8).table


def test_nothing_is_kept_where_nothing_could_be_compared(tmp_path, monkeypatch):
    """Residuals that are not finite at fresh points: cut and continued, the last network stands for the run."""
    monkeypatch.setattr("sapm.solver.harder", lambda *given: (None, np.inf))
    monkeypatch.setattr(resample, "harder", lambda *given: (None, np.inf))
    whole = sapm.solve(string(), **EVERY_2, max_iter=6)
    sapm.solve(string(), **EVERY_2, max_iter=4, out=tmp_path / "run")
    cut = sapm.resume(tmp_path / "run", max_iter=6, problem=string(), progress=False)
    assert cut.table == whole.table and "Kept" not in cut.run.reason[0]


def test_a_seed_that_was_lost_stands_for_nothing():
    run = lambda *status: Run(None, (0, 1), "now", {"loss": np.zeros((2, 2))}, status, ("",) * 2, np.ones(2, int))  # noqa: E731
    lowest = Lowest(0.5, "before", 0, 1)
    assert lowest.unless_lost(run("running", "dropped")) == Lowest() and lowest.unless_lost(run("dropped", "running")) == lowest
    assert lowest.noted({}) == {"lowest": 0.5} and Lowest().noted({"lowest": 0.5}) == {}


def test_a_callback_that_stops_where_points_are_drawn():
    result = sapm.solve(string(), **EVERY_2, max_iter=8, on_record=lambda state: state.iteration == 4)
    assert result.run.status == ("stopped",) and result.history["iteration"].max() == 4


def test_an_interrupt_when_training_is_over_loses_nothing(tmp_path, monkeypatch):
    """Such as a second Ctrl-C: what this call has reached is kept, not what it began with."""
    from sapm import solver

    sapm.solve(string(), **TINY, max_iter=5, out=tmp_path / "run", options={"resample": 0})
    trained = solver.train

    def cut(*given, **named):
        trained(*given, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(solver, "train", cut)
    result = sapm.resume(tmp_path / "run", max_iter=12, problem=string(), progress=False)
    assert result.run.status == ("interrupted",) and result.history["iteration"].max() == 12
    assert sapm.load(tmp_path / "run" / "checkpoint" / "latest.sapm").history["iteration"].max() == 12


def test_no_more_points_than_a_step_can_take(monkeypatch):
    monkeypatch.setattr(resample, "WORSE", 0.0)
    monkeypatch.setattr(resample, "FAR", 0.0)
    monkeypatch.setattr("sapm.resample.affordable", lambda rows, tangents, widths: rows <= 42)
    result = sapm.solve(bent(), **EVERY_2, max_iter=7)
    assert len(result.samples.terms[0].y) == 40


def test_a_result_so_far_keeps_what_the_run_keeps(tmp_path):
    """A file that a callback saves is continued to the same end."""
    problem = sapm.PDE(sapm.Box(t=(0, 4)), lambda p, u: u.t + u.value**2 - jnp.sin(8 * p.t), [sapm.Initial(1.0)])
    settings = TINY | {"width": 6, "seeds": 2, "options": {"resample": 4}, "max_iter": 22}

    def save(state):
        if state.iteration in (14, 18, 21):
            state.result().save(tmp_path / f"{state.iteration}.sapm")

    whole = sapm.solve(problem, **settings, on_record=save)
    for at in (14, 18, 21):
        resumed = sapm.resume(tmp_path / f"{at}.sapm", problem=problem, progress=False)
        assert resumed.table == whole.table


def test_what_a_callback_returns(capsys):
    """True stops; the number of letters that were written does not, nor does nothing at all."""
    for returned, end in ((3, 6), ([], 6), (None, 6), ("yes", 6), (True, 0), (np.array([True, True]), 0), (np.bool_(False), 6)):
        result = sapm.solve(string(), **TINY, max_iter=6, on_record=lambda state, r=returned: r)
        assert result.history["iteration"].max() == end


def test_an_interrupt_where_points_are_drawn_loses_nothing(monkeypatch):
    """Even one before the first step with the new points was marked."""
    from sapm.train import Loop

    marks, mark = [], Loop.mark

    def pressed(self):
        marks.append(self.iteration)
        if len(marks) > 2 and marks[-1] == marks[-2] == 4:  # the first of a segment is where the last one ended
            raise KeyboardInterrupt
        mark(self)

    monkeypatch.setattr(Loop, "mark", pressed)
    result = sapm.solve(string(), **EVERY_2, max_iter=8)
    assert result.run.status == ("interrupted",) and result.history["iteration"].max() == 4


def test_other_seeds_stand_as_they_ended():
    """Where an iteration is kept that was the best one's best, the others have what they have learnt since; the best has not."""
    x, t = np.linspace(-1, 1, 20), np.linspace(-0.9, 0.9, 7)
    early, late = (sapm.solve(sapm.Regression(x, np.sin(3 * x)), 2, 4, seeds=2, max_iter=k, progress=False) for k in (2, 8))
    run = replace(late.run, kept=early.run.states, chosen=np.full(2, 2), reason=(f"all.{KEPT} 2.",) * 2)
    kept, best = replace(late, run=run, config=late.config | {"lowest": 1.0}), run.best
    other = 1 - best
    assert np.array_equal(kept.best(t), early.seeds[best](t)) and kept.table[best]["loss"] == early.table[best]["loss"]
    assert np.array_equal(kept.seeds[other](t), late.seeds[other](t)) and kept.table[other]["loss"] == late.table[other]["loss"]
    assert [kept.table[i]["iterations"] for i in (best, other)] == [2, 8]
    assert [kept.table[i]["reason"] for i in (best, other)] == [f"all.{KEPT} 2.", "all."]
    plain = replace(late, run=run)  # chosen by each seed's own data: all stay
    assert [row["iterations"] for row in plain.table] == [2, 2]
