"""A second attempt in stages of time, where the first one was no solution."""

import json
from dataclasses import replace

import numpy as np
import pytest

import sapm
from sapm.driver import points
from sapm.driver import solve as driver
from sapm.driver.points import early_points
from sapm.driver.settings import plan as planned
from sapm.driver.solve import IN_SECOND, second_attempt_is_due

SMALL = {
    "depth": 3,
    "width": 10,
    "points": 100,
    "seeds": 2,
    "progress": False,
    "test_points": 100,
    "boundary_points": 4,
}


def growth(end=10.0):
    """u begins near a state that it leaves slowly."""
    return sapm.PDE(
        sapm.Box(t=(0, end)), lambda p, u: u.t - u.value * (1 - u.value), [sapm.Initial(0.01)]
    )


def press(now=True):
    if now:
        raise KeyboardInterrupt


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
    assert attempts.count(0) == 2 and whole.run.attempt == 2
    assert np.abs(whole.best(t=t) - true(t)).max() < 1e-6 and not whole.error_estimate().no_solution
    assert (
        whole.run.sampler_state.share == 1
        and whole.config["options"]["stages"] == 3
        and whole.config["max_iter"] == 300
    )


@pytest.mark.slow
def test_a_second_attempt_can_be_cut_and_continued(tmp_path, monkeypatch):
    """With the same numbers as if it had not been; its folder holds the second attempt alone."""
    monkeypatch.setattr("sapm.results.estimates.FEATURES", 200)
    monkeypatch.setattr(
        "sapm.methods.method.GAUSS_NEWTON_STEPS", 20
    )  # so few that nothing is solved by then
    t = np.linspace(0, 10, 101)
    seen = []
    often = SMALL | {"options": {"resample": 3}}
    whole = sapm.solve(growth(), **often)
    assert (
        whole.config["options"]["stages"] == 3
        and whole.config["max_iter"] == 60
        and whole.run.sampler_state.share == 1
    )

    def stop_in_the_second(state):
        seen.append(state.iteration)
        return seen.count(0) == 2 and state.iteration == 18

    with pytest.warns(
        UserWarning,
        match="a second attempt covered only 25% of the time interval",
    ):
        cut = sapm.solve(growth(), **often, out=tmp_path / "run", on_record=stop_in_the_second)
    assert "a second attempt covered only 25%" in " ".join(str(cut.summary()).split())
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    ]
    assert [row["iteration"] for row in rows] == list(range(21))  # those of the first
    assert (
        cut.plan.retry and cut.history["iteration"].max() == 20
    )  # the first is more than a part of the second
    first = sapm.load(tmp_path / "run" / "first.sapm", growth()).table
    cut = sapm.resume(
        tmp_path / "run",
        problem=growth(),
        progress=False,
        on_record=lambda state: press(state.iteration >= 21),
    )
    assert (
        cut.run.cut == IN_SECOND
        and cut.table == first == sapm.load(tmp_path / "run", growth()).table
    )
    resumed = sapm.resume(tmp_path / "run", problem=growth(), progress=False)
    assert not resumed.run.cut and not (tmp_path / "run" / "first.sapm").exists()
    assert np.array_equal(resumed.history["loss"], whole.history["loss"])
    assert np.array_equal(resumed.best(t=t), whole.best(t=t))
    assert (
        json.loads((tmp_path / "run" / "config.json").read_text())["max_iter"] == 20
    )  # as it was asked for


def test_points_of_a_stage():
    problem = growth()
    samples = problem.samples(50, 4, 40)
    x = early_points(problem, samples, 0.25)
    assert x.shape == (50, 1) and x.max() <= 2.5 and len(np.unique(x)) == 50
    assert not set(x.ravel()) & set(samples.test["x"].ravel())
    whole = early_points(problem, samples, 1.0)
    assert whole.max() > 9 and not set(whole.ravel()) & set(samples.test["x"].ravel())


def test_a_shape_with_nothing_at_its_beginning(monkeypatch):
    """Then the points are taken from all of it."""
    monkeypatch.setattr(points, "LARGEST_POOL", 100)
    disc = sapm.Ball(2, 1.0, (1.0, 0.0), names=("t", "x"))
    with pytest.warns(UserWarning, match="no condition gives u at the lower end of t"):
        problem = sapm.PDE(disc, lambda p, u: u.t + u.value * u.x, [sapm.Dirichlet(0.0)])
    assert len(early_points(problem, problem.samples(200, 10, 0), 1e-6)) == 200


@pytest.mark.slow
def test_where_there_is_a_second_attempt(monkeypatch):
    """For nonlinear equations that begin somewhere, unless the steps are counted by the user or the
    time is spent.
    """
    monkeypatch.setattr("sapm.results.estimates.FEATURES", 200)

    def plan(problem, **more):
        return planned(problem, **more)

    assert growth().supports_stages and plan(growth()).retry
    for more in (
        {"max_iter": 100},
        {"options": {"resample": 0}},
        {"options": {"stages": 0}},
        {"points": np.ones((3, 1))},
    ):
        assert not plan(growth(), **more).retry
    linear = sapm.PDE(sapm.Box(t=(0, 1)), lambda p, u: u.t - u.value, [sapm.Initial(1.0)])
    seen = [sapm.Initial(1.0), sapm.Observed([[1.0]], [0.5])]
    known = sapm.PDE(
        sapm.Box(t=(0, 1)), lambda p, u: u.t + p.k * u.value**2, seen, parameters={"k": 1.0}
    )
    assert not linear.supports_stages and not known.supports_stages
    for problem in (linear, known):
        with pytest.raises(
            ValueError,
            match="stages: got 2, expected none, or a nonlinear PDE with an Initial condition",
        ):
            sapm.solve(
                problem, options={"stages": 2, "resample": 5, "lifted": 0}, method="gauss-newton"
            )
    result = sapm.solve(growth(), **SMALL, max_iter=5)
    result = replace(result, plan=replace(result.plan, retry=True))
    seconds = float(result.history["seconds"].max())
    assert (
        result.error_estimate().no_solution
        and second_attempt_is_due(result, None)
        and second_attempt_is_due(result, 3 * seconds)
    )
    assert not second_attempt_is_due(result, 1.5 * seconds)

    def no_estimate(self):
        raise np.linalg.LinAlgError("SVD did not converge")

    monkeypatch.setattr("sapm.results.result.Result.error_estimate", no_estimate)
    assert not second_attempt_is_due(result, None)  # a run is not lost by what comes after it
    assert not planned(growth(), from_network=True).retry
    for stages, steps in ((3, 135), (11, 10**6)):
        with pytest.raises(
            ValueError, match=f"stages: got {stages}, expected at most 10, and max_iter above"
        ):
            planned(growth(), options={"stages": stages}, max_iter=steps)
    assert planned(growth(), options={"stages": 3}).max_iter == 300


def test_stages_end_in_time(monkeypatch):
    """After three looks the next one begins, solved or not."""
    monkeypatch.setattr(points, "STAGE_RESIDUAL", 0.0)
    result = sapm.solve(growth(), **SMALL, max_iter=19, options={"stages": 3, "resample": 2})
    assert (result.run.sampler_state.share, result.run.sampler_state.share_since) == (
        1.0,
        18,
    ) and np.asarray(result.samples.terms[0].x.value).max() > 9
    monkeypatch.setattr(points, "STAGE_RESIDUAL", 1e9)
    shares = []

    def seen(state):
        return shares.append(state.result().run.sampler_state.share)

    sapm.solve(growth(), **SMALL, max_iter=19, options={"stages": 3, "resample": 2}, on_record=seen)
    assert (
        shares[0] == 0.125
        and sorted(set(shares)) == [0.125, 0.25, 0.5, 1.0]
        and shares == sorted(shares)
    )


@pytest.mark.slow
def test_a_second_attempt_with_points_of_ones_own_to_test_at(monkeypatch):
    """They stay what they are. Ctrl-C before it has begun leaves the first, which is not lost."""
    monkeypatch.setattr("sapm.results.estimates.FEATURES", 200)
    monkeypatch.setattr("sapm.methods.method.GAUSS_NEWTON_STEPS", 4)
    own = SMALL | {"test_points": np.linspace(0.1, 9.9, 20)[:, None], "options": {"resample": 1}}
    told = []
    result = sapm.solve(
        growth(), **own, on_record=lambda state: told.append((state.iteration, state.seconds))
    )
    assert result.config["options"]["stages"] == 3 and np.array_equal(
        result.samples.test["x"], own["test_points"]
    )
    iterations, seconds = zip(*told, strict=True)
    assert iterations.count(0) == 2
    assert list(seconds) == sorted(seconds)  # the clock goes on from the first attempt

    def pressed(begin, *rest):
        if begin.attempt == 2:
            raise KeyboardInterrupt
        return trained(begin, *rest)

    trained = driver.loop
    monkeypatch.setattr(driver, "loop", pressed)
    first = sapm.solve(growth(), **own)
    assert (
        "interrupted" not in first.run.status
        and first.run.cut
        == "interrupted during a second attempt; this is the result of the first attempt."
    )
    assert f"The run was {first.run.cut}" in " ".join(str(first.summary()).split())
    assert first.history["iteration"].max() == 4


def test_an_interrupt_is_not_lost_where_all_seeds_had_stalled(tmp_path, monkeypatch):
    """In the estimate after the first attempt, in its points, or in the second: it is said, and the
    first is what there is.
    """
    monkeypatch.setattr("sapm.results.estimates.FEATURES", 200)
    monkeypatch.setattr("sapm.methods.method.GAUSS_NEWTON_STEPS", 20)
    monkeypatch.setattr(points, "no_longer_falls", lambda sizes: True)
    few = SMALL | {"options": {"resample": 5}}

    def solve(**more):
        return sapm.solve(growth(), **few, **more)

    assert set(sapm.solve(growth(), **few, max_iter=20).run.status) == {"stalled"}

    def pressed(*given, **named):
        raise KeyboardInterrupt

    def cut(result):
        return result.run.cut.startswith("interrupted") and result.history["iteration"].max() == 5

    with monkeypatch.context() as patch:
        patch.setattr("sapm.results.result.Result.error_estimate", pressed)
        assert cut(solve())
    with monkeypatch.context() as patch:  # once the first has failed, its points are the next thing
        state = sapm.PDE.samples
        over = []
        patch.setattr(sapm.PDE, "samples", lambda *a, **n: pressed() if over else state(*a, **n))
        patch.setattr(
            "sapm.driver.solve.second_attempt_is_due",
            lambda result, seconds: over.append(1) or True,
        )
        assert cut(solve())
    trained = driver.loop

    def pressed_in_the_second(begin, *rest):
        return pressed() if begin.attempt == 2 else trained(begin, *rest)

    monkeypatch.setattr(driver, "loop", pressed_in_the_second)
    assert cut(solve(out=tmp_path / "run"))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["interrupted"].startswith(
        "interrupted"
    )
    monkeypatch.setattr(driver, "loop", trained)
    kept = sapm.load(tmp_path / "run", growth())  # the file and its page say it too
    assert (
        kept.run.cut == IN_SECOND and IN_SECOND in kept.report(tmp_path / "page.html").read_text()
    )
    assert (tmp_path / "run" / "first.sapm").exists()
    fewer = sapm.resume(
        tmp_path / "run", 6, problem=growth(), progress=False
    )  # no second attempt, for which more were asked
    assert not fewer.run.cut and not (tmp_path / "run" / "first.sapm").exists()
    model = tmp_path / "kept.sapm"
    kept.save(model)  # its seeds had ended, as those of a first attempt do; then comes the second
    assert sapm.load(model, growth()).table == sapm.solve(growth(), **few, max_iter=20).table
    assert sapm.resume(model, problem=growth(), progress=False).table == solve().table


def test_an_interrupt_is_forgotten_by_what_goes_on(tmp_path, monkeypatch):
    """Also where going on is no more than a look at other points; then comes the second attempt, as
    it would have.
    """
    monkeypatch.setattr("sapm.results.estimates.FEATURES", 200)
    monkeypatch.setattr("sapm.methods.method.GAUSS_NEWTON_STEPS", 20)
    monkeypatch.setattr(points, "no_longer_falls", lambda sizes: True)
    few = SMALL | {"options": {"resample": 5}}
    whole = sapm.solve(growth(), **few)
    cut = sapm.solve(
        growth(), **few, out=tmp_path / "run", on_record=lambda state: press(state.iteration == 5)
    )
    resumed = sapm.resume(tmp_path / "run", problem=growth(), progress=False)
    assert (
        cut.run.cut
        and not resumed.run.cut
        and resumed.run.attempt == 2
        and resumed.table == whole.table
    )


def test_an_interrupt_is_not_lost_at_the_last_record_of_all_seeds():
    """By then no seed is running that could be said to be interrupted."""

    def pressed(state):
        if set(state.result().run.status) == {"stalled"}:
            raise KeyboardInterrupt

    x = np.linspace(-1, 1, 20)
    quick = {
        "seeds": 1,
        "progress": False,
        "max_iter": 3000,
        "options": {"patience": 5, "stall": 0.9},
    }
    result = sapm.solve(sapm.Regression(x, 0.3 * x), 2, 3, **quick, on_record=pressed)
    assert result.run.status == ("stalled",) and result.run.cut.startswith("interrupted after ")
    assert not sapm.solve(sapm.Regression(x, 0.3 * x), 2, 3, **quick).run.cut
