"""A second attempt in stages of time, where the first one was no solution."""

import json

import numpy as np
import pytest

import sapm
from sapm import resample
from sapm.plan import plan as planned
from sapm.resample import early, evolves
from sapm.solver import _failed

SMALL = {"depth": 3, "width": 10, "points": 100, "seeds": 2, "progress": False, "test_points": 100, "boundary_points": 4}


def growth(end=10.0):
    """u begins near a state that it leaves slowly."""
    return sapm.PDE(sapm.Box(t=(0, end)), lambda p, u: u.t - u.value * (1 - u.value), [sapm.Initial(0.01)])


def true(t):
    return 1 / (1 + 99 * np.exp(-t))


@pytest.mark.slow
def test_what_begins_near_a_state_that_it_leaves_slowly_is_solved():
    """The first attempt stays there, and the second does not."""
    t = np.linspace(0, 10, 101)
    lone = sapm.solve(growth(), **SMALL, max_iter=100)  # as many steps as were asked for
    assert lone.error_estimate().no_solution and np.abs(lone.best(t=t) - true(t)).max() > 0.5
    attempts = []
    whole = sapm.solve(growth(), **SMALL, on_record=lambda state: attempts.append(state.iteration))
    assert attempts.count(0) == 2 and "a second one" in whole.config["choice"]
    assert np.abs(whole.best(t=t) - true(t)).max() < 1e-6 and not whole.error_estimate().no_solution
    assert whole.config["stage"][0] == 1 and whole.config["options"]["stages"] == 3 and whole.config["max_iter"] == 300


def test_a_second_attempt_can_be_cut_and_continued(tmp_path, monkeypatch):
    """With the same numbers as if it had not been; its folder holds the second attempt alone."""
    monkeypatch.setattr("sapm.estimate.FEATURES", 200)
    monkeypatch.setattr("sapm.checks.GAUSS_NEWTON", 20)  # so few that nothing is solved by then
    t, seen = np.linspace(0, 10, 101), []
    whole = sapm.solve(growth(), **SMALL)
    assert whole.config["options"]["stages"] == 3 and whole.config["max_iter"] == 60 and whole.config["stage"][0] == 1

    def stop_in_the_second(state):
        seen.append(state.iteration)
        return seen.count(0) == 2 and state.iteration == 18

    sapm.solve(growth(), **SMALL, out=tmp_path / "run", on_record=stop_in_the_second)
    rows = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == list(range(19))
    resumed = sapm.resume(tmp_path / "run", problem=growth(), progress=False)
    assert np.array_equal(resumed.history["loss"], whole.history["loss"])
    assert np.array_equal(resumed.best(t=t), whole.best(t=t))


def test_points_of_a_stage():
    problem = growth()
    samples = problem.samples(50, 4, 40)
    x = early(problem, samples, 0.25)
    assert x.shape == (50, 1) and x.max() <= 2.5 and len(np.unique(x)) == 50
    assert not set(x.ravel()) & set(samples.test["x"].ravel())
    whole = early(problem, samples, 1.0)
    assert whole.max() > 9 and not set(whole.ravel()) & set(samples.test["x"].ravel())


def test_a_shape_with_nothing_at_its_beginning(monkeypatch):
    """Then the points are taken from all of it."""
    monkeypatch.setattr(resample, "MOST", 100)
    disc = sapm.Ball(2, 1.0, (1.0, 0.0), names=("t", "x"))
    with pytest.warns(UserWarning, match="no condition says what u is at the lower end of t"):
        problem = sapm.PDE(disc, lambda p, u: u.t + u.value * u.x, [sapm.Dirichlet(0.0)])
    assert len(early(problem, problem.samples(200, 10, 0), 1e-6)) == 200


def test_where_there_is_a_second_attempt(monkeypatch):
    """For nonlinear equations that begin somewhere, unless the steps are counted by the user or the time is spent."""
    monkeypatch.setattr("sapm.estimate.FEATURES", 200)
    plan = lambda problem, **more: planned(problem, **more)[0]  # noqa: E731
    assert evolves(growth()) and plan(growth())["again"] == 1000
    for more in ({"max_iter": 100}, {"options": {"resample": 0}}, {"options": {"stages": 0}}, {"points": np.ones((3, 1))}):
        assert "again" not in plan(growth(), **more)
    linear = sapm.PDE(sapm.Box(t=(0, 1)), lambda p, u: u.t - u.value, [sapm.Initial(1.0)])
    seen = [sapm.Initial(1.0), sapm.Observed([[1.0]], [0.5])]
    known = sapm.PDE(sapm.Box(t=(0, 1)), lambda p, u: u.t + p.k * u.value**2, seen, parameters={"k": 1.0})
    assert not evolves(linear) and not evolves(known) and not evolves(sapm.Regression([[1.0], [2.0]], [1.0, 2.0]))
    for problem in (linear, known):
        with pytest.raises(ValueError, match="options has stages, which is for nonlinear PDEs with an Initial condition"):
            sapm.solve(problem, options={"stages": 2, "resample": 5, "lifted": 0}, method="gauss-newton")
    result = sapm.solve(growth(), **SMALL, max_iter=5)
    object.__setattr__(result, "config", result.config | {"again": 100})
    seconds = float(result.history["seconds"].max())
    assert _failed(result, None) == result.error_estimate().no_solution
    assert not _failed(result, 0.5 * seconds)


def test_stages_end_in_time(monkeypatch):
    """At half of the steps all of the time is trained on, solved or not."""
    monkeypatch.setattr(resample, "SOLVED", 0.0)
    result = sapm.solve(growth(), **SMALL, max_iter=20, options={"stages": 3, "resample": 5})
    assert result.config["stage"] == [1.0, 10] and np.asarray(result.samples.terms[0].x.value).max() > 9
    result = sapm.solve(growth(), **SMALL, max_iter=9, options={"stages": 3, "resample": 4})
    assert result.config["stage"] == [1.0, 8]
    monkeypatch.setattr(resample, "SOLVED", 1e9)
    shares = []
    seen = lambda state: shares.append(state.result().config["stage"][0])  # noqa: E731
    sapm.solve(growth(), **SMALL, max_iter=20, options={"stages": 3, "resample": 2}, on_record=seen)
    assert shares[0] == 0.125 and sorted(set(shares)) == [0.125, 0.25, 0.5, 1.0] and shares == sorted(shares)
