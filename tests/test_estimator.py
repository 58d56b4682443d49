"""SAPMRegressor is a scikit-learn estimator, and no worse by default than the usual choices."""

import pickle
from dataclasses import replace
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from sapm import estimators
from sapm.estimators import ALPHAS, PATIENCE_ITERATIONS, SAPMRegressor
from sapm.methods.method import LBFGS, Alternating
from sapm.problem.data import Regression
from sapm.training import seeds as seeding
from sapm.training.loop import Training


def data(n=60, outputs=1, noise=0.0):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n, 3))
    Y = np.c_[np.sin(2 * X[:, 0]) + X[:, 1], X[:, 1] * X[:, 2]][:, :outputs] + noise * rng.normal(
        size=(n, outputs)
    )
    return X, Y[:, 0] if outputs == 1 else Y


SMALL = {"depth": 3, "width": 8, "max_iter": 60}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore:the network predicts y no better")
def test_conformance():
    """scikit-learn's own suite, with no expected failures."""
    results = check_estimator(
        SAPMRegressor(depth=2, width=4, max_iter=10, alpha=1e-3), on_fail=None, on_skip=None
    )
    assert not [
        (r["check_name"], r["exception"])
        for r in results
        if r["status"] not in ("passed", "skipped")
    ]
    assert sum(r["status"] == "passed" for r in results) > 40


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the network predicts y no better")
def test_two_outputs_pipeline_search_and_files(tmp_path):
    X, Y = data(outputs=2)
    model = make_pipeline(StandardScaler(), SAPMRegressor(**SMALL))
    search = GridSearchCV(model, {"sapmregressor__alpha": [1e-3, 1.0]}, cv=3).fit(X, Y)
    assert search.best_params_ == {"sapmregressor__alpha": 1e-3} and search.best_score_ > 0.8
    best = search.best_estimator_[-1]
    assert best.predict(X).shape == (60, 2) and best.result_.best.weights[0][0].shape == (8, 3)
    for copy in (
        pickle.loads(pickle.dumps(best)),
        joblib.load(joblib.dump(best, tmp_path / "m.joblib")[0]),
    ):
        assert (
            np.array_equal(copy.predict(X), best.predict(X))
            and copy.certificate_ == best.certificate_
        )
    again = clone(best).fit(X, Y)
    assert (
        not hasattr(clone(best), "result_")
        and again.n_iter_ >= 1
        and len(again.loss_curve_) == len(again.validation_curve_)
    )


@pytest.mark.slow
def test_frames_scaling_and_names():
    """Column names are kept; physical units make no difference."""
    import pandas as pd

    X, y = data()
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = SAPMRegressor(**SMALL).fit(frame, y)
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    units = np.array([1e6, 1e-9, 300.0])
    scaled = SAPMRegressor(**SMALL).fit(X * units, 1e-12 * y)
    assert np.allclose(
        scaled.predict(X * units), 1e-12 * model.predict(frame), rtol=1e-6, atol=1e-18
    )


@pytest.mark.slow
def test_noise_is_not_interpolated():
    """With noise of 0.3, the fit leaves about that much in the training data; next to no penalty
    does not.
    """
    X, y = data(100, noise=0.3)
    clean = np.sin(2 * X[:, 0]) + X[:, 1]
    kind = SAPMRegressor(width=20, depth=3, max_iter=400, early_stopping=False).fit(X, y)
    free = SAPMRegressor(width=20, depth=3, max_iter=400, early_stopping=False, alpha=1e-12).fit(
        X, y
    )
    residual = [np.sqrt(np.mean((model.predict(X) - y) ** 2)) for model in (kind, free)]
    error = [np.sqrt(np.mean((model.predict(X) - clean) ** 2)) for model in (kind, free)]
    assert 0.2 < residual[0] < 0.4 and residual[1] < 0.15
    assert error[0] < 0.7 * error[1]


@pytest.mark.slow
def test_starts_and_warm_start():
    """n_init networks side by side, the best kept; a warm start goes on from the last network."""
    X, y = data()
    model = SAPMRegressor(**SMALL, n_init=2, warm_start=True, early_stopping=False).fit(X, y)
    assert len(model.result_.seeds) == 2
    was = model.result_.history
    first = model.result_.history["loss"]
    assert model.result_.run.best == np.argmin(first[:, -1])
    model.fit(X, y)
    again = model.result_.history["loss"]
    true = was["mean_squared_loss"][:, -1]
    now = model.result_.history["mean_squared_loss"][:, 0]
    assert (
        np.allclose(now, true, rtol=1e-9)
        and np.all(again[:, 0] <= first[:, -1])
        and np.all(again[:, -1] < first[:, -1])
    )
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))
    with pytest.raises(ValueError, match="warm_start: got 2 networks with layers of"):
        model.fit(X[:, :2], y)
    other = SAPMRegressor(**SMALL, n_init=2, random_state=1, early_stopping=False).fit(X, y)
    assert not np.isin(other.result_.history["loss"][:, 0], first[:, 0]).any()


@pytest.mark.slow
def test_fits_of_many_sizes_share_programs():
    """Samples and inputs are padded to buckets: these fits need one program."""
    seeding.chunk.clear_cache()
    for n, d in ((30, 2), (50, 3), (64, 4), (41, 1)):
        X = np.random.default_rng(n).normal(size=(n, d))
        SAPMRegressor(**(SMALL | {"max_iter": 3}), early_stopping=False).fit(X, X[:, 0])
    assert seeding.chunk._cache_size() == 1


@pytest.mark.filterwarnings("ignore:the network predicts y no better")
def test_padding_counts_in_no_error():
    """Twenty samples are trained as 64; what is reported is about the twenty."""
    X, y = data(20)
    model = SAPMRegressor(
        **(SMALL | {"max_iter": 5}),
        early_stopping=False,
        scale=False,
        alpha=1e-3,
        method="alternating",
    ).fit(X, y)
    assert model.result_.samples.terms[0].y.shape == (64, 1)
    assert model.loss_curve_[-1] < model.loss_curve_[0]
    (row,) = model.result_.table
    error = model.predict(X) - y
    assert row["mean_squared_loss"] == pytest.approx(np.mean(error**2), rel=1e-9)
    assert row["train_error"] == pytest.approx(np.linalg.norm(error) / np.linalg.norm(y), rel=1e-9)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"depth": 1}, "depth=1 is too small"),
        ({"activation": "tahn"}, "Did you mean 'tanh'"),
        ({"max_iter": 0}, "max_iter=0 is too small; give 1 or more"),
        ({"max_seconds": 0}, "max_seconds=0 must be a positive"),
        ({"model": "spam"}, "Did you mean 'sapm'"),
        ({"alpha": -1}, "alpha=-1 must be a non-negative"),
        ({"n_init": 0}, "n_init=0 is too small; give 1 or more"),
        (
            {"validation_fraction": 2, "early_stopping": True},
            "validation_fraction: got 2, expected a number between 0 and 1",
        ),
        ({"options": {"l2": 1e-4}}, "options: got l2, which is called alpha here"),
        ({"method": LBFGS(l2=1e-4)}, "method: got l2=0.0001, which is called alpha here"),
        ({"model": "ls", "method": "alternating"}, "cannot train it"),
    ],
)
def test_refusals(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        SAPMRegressor(**settings).fit(*data())


def test_a_method_object_is_as_its_name(monkeypatch):
    """An object with the defaults of its class gives the plan of its name; other values are kept."""
    monkeypatch.setattr(estimators, "execute", lambda problem, samples, plan, *_, **__: plan)
    X, y = data()

    def method(asked):
        return SAPMRegressor(method=asked)._trained(Regression(X, y), 1e-3, 0, None, None).method

    for name, kind in (("lbfgs", LBFGS), ("alternating", Alternating)):
        assert method(kind()) == method(name)
        assert method(kind()) == kind(l2=1e-3, patience=PATIENCE_ITERATIONS, scale=False)
    asked = Alternating(scale=True, patience=7, joint=True)
    assert method(asked) == replace(asked, l2=1e-3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:the network predicts y no better")
def test_default_is_not_behind(capsys):
    """Cross-validated R² on diabetes and Friedman 1, beside a scaled Ridge and scaled MLPs; all are
    printed.
    """
    tables = {
        "diabetes": load_diabetes(return_X_y=True),
        "friedman1, n=100": make_friedman1(random_state=0),
        "friedman1, n=500, noise 1": make_friedman1(500, noise=1.0, random_state=0),
    }
    mlp = MLPRegressor(random_state=0, max_iter=2000)
    models = {
        "Ridge": make_pipeline(StandardScaler(), Ridge()),
        "MLP, defaults": make_pipeline(StandardScaler(), MLPRegressor(random_state=0)),
        "MLP, 2000 its": make_pipeline(StandardScaler(), mlp),
        "MLP, scaled y": TransformedTargetRegressor(
            make_pipeline(StandardScaler(), mlp), transformer=StandardScaler()
        ),
        "SAPM": SAPMRegressor(),
    }
    with capsys.disabled():
        for name, (X, y) in tables.items():
            folds = KFold(5, shuffle=True, random_state=0)
            scores = {
                m: cross_val_score(model, X, y, cv=folds).mean() for m, model in models.items()
            }
            print(f"\n{name}: " + ", ".join(f"{m} {score:.3f}" for m, score in scores.items()))
            assert scores["SAPM"] > max(scores.values()) - 0.03


@pytest.mark.slow
def test_an_even_function_is_learnt():
    """Where a large penalty, or sweeps from a random start, end at the mean of the targets."""
    x = np.random.default_rng(0).uniform(-2, 2, (100, 1))
    model = SAPMRegressor(depth=4, width=10, max_iter=100).fit(x, x[:, 0] ** 2)
    assert model.score(x, x[:, 0] ** 2) > 0.9 and model.alpha_ in ALPHAS
    assert SAPMRegressor(alpha=0.02, depth=2, max_iter=3).fit(x, x[:, 0]).alpha_ == 0.02


def test_an_interrupt_ends_all_penalties(monkeypatch):
    """One of them is enough to have a network; those that were cut short are not chosen beside one
    that was not.
    """
    x = np.random.default_rng(0).uniform(-2, 2, (60, 1))
    train = estimators.execute
    calls = []

    def trained(problem, samples, plan, *rest, **named):
        result = train(problem, samples, plan, *rest, **named)
        calls.append(plan.method.l2)
        return (
            replace(result, run=replace(result.run, cut="interrupted."))
            if len(calls) == 2
            else result
        )

    monkeypatch.setattr(estimators, "execute", trained)
    with pytest.warns(
        UserWarning, match="the fit was interrupted: 1 of 5 penalties were tried to the end"
    ):
        model = SAPMRegressor(depth=2, width=np.int64(4), max_iter=20, warm_start=True).fit(
            x, x[:, 0]
        )
    assert calls == list(ALPHAS[:2]) and model.alpha_ == ALPHAS[0]
    assert model.fit(x, x[:, 0]).score(x, x[:, 0]) > 0.9  # from there, with a width that is NumPy's


@pytest.mark.slow
def test_no_better_than_the_mean_is_said():
    draw = np.random.default_rng(0)
    with pytest.warns(
        UserWarning, match="no better than the mean of y does, on the held-out samples"
    ):
        SAPMRegressor(depth=2, width=4, max_iter=20).fit(
            draw.normal(size=(200, 3)), draw.normal(size=200)
        )
    SAPMRegressor(depth=2, width=4, max_iter=20).fit(
        draw.normal(size=(40, 3)), np.full(40, 3.0)
    )  # the mean is right
    SAPMRegressor(depth=2, width=4, max_iter=20).fit(draw.normal(size=(12, 3)), np.full(12, 3.0))


@pytest.mark.slow
def test_few_samples_are_learnt():
    """Nothing is set aside, and the penalty does not make a constant of the network."""
    x = np.linspace(-1, 1, 12)[:, None]
    for y in (3 * x[:, 0] + 1, x[:, 0] ** 2, (x[:, 0] > 0.1) * 1.0):
        model = SAPMRegressor().fit(x, y)
        assert model.score(x, y) > 0.95 and not hasattr(model, "validation_curve_")
    with pytest.warns(UserWarning, match="no better than the mean of y does, on the data"):
        assert abs(SAPMRegressor(alpha=10.0).fit(x, x[:, 0]).score(x, x[:, 0])) < 0.01


def test_a_penalty_that_learns_nothing_is_left_behind(monkeypatch):
    """Without a part set aside, penalties are tried in turn until one of them learns anything."""
    monkeypatch.setattr(estimators, "ALPHAS_WITHOUT_HELD_OUT", (10.0, 1.0, 1e-3, 1e-4))
    x = np.linspace(-1, 1, 12)[:, None]
    model = SAPMRegressor(depth=3, width=8, max_iter=100).fit(x, x[:, 0])
    assert model.alpha_ == 1e-3 and model.score(x, x[:, 0]) > 0.99


@pytest.mark.slow
def test_few_samples_with_noise():
    """Lines through 8 to 19 rows with noise of a tenth are nearly as good elsewhere as those of
    Ridge.
    """
    for n, inputs in ((8, 1), (12, 3), (19, 3)):
        draw = np.random.default_rng(n)
        X = draw.uniform(-1, 1, (n, inputs))
        X_test = draw.uniform(-1, 1, (500, inputs))
        line = np.arange(1.0, inputs + 1)
        y = X @ line + 0.1 * np.std(X_test @ line) * draw.normal(size=n)
        assert (
            SAPMRegressor().fit(X, y).score(X_test, X_test @ line)
            > Ridge(0.1).fit(X, y).score(X_test, X_test @ line) - 0.05
        )


def test_the_margin_shrinks_with_what_is_set_aside(monkeypatch):
    """A fifth above the smallest error is near it on 4 samples, and far from it on 50."""
    errors = dict(zip(ALPHAS, (0.2, 0.12, 0.1, 0.11, 0.15), strict=True))
    monkeypatch.setattr(estimators, "_error", lambda result: errors[result.config["options"]["l2"]])
    for n, alpha in ((40, 1e-2), (500, 3e-3)):
        x = np.random.default_rng(0).uniform(-1, 1, (n, 1))
        assert SAPMRegressor(depth=2, width=3, max_iter=1).fit(x, x[:, 0]).alpha_ == alpha


@pytest.mark.filterwarnings("ignore:the network predicts y no better")
def test_seconds_are_for_all_penalties(monkeypatch):
    """One budget for all five, also where it is over before the first step."""
    x = np.random.default_rng(0).uniform(-1, 1, (60, 1))
    settings = {"depth": 2, "width": 4, "max_iter": 1000, "options": {"stall": 0}}
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    iterations = []
    train = estimators.execute

    def timed(*given, **named):  # an iteration takes a tenth of a second
        result = train(*given, **named)
        iterations.append(result.run.iterations)
        clock.now += 0.1 * iterations[-1]
        return result

    monkeypatch.setattr(estimators, "execute", timed)
    monkeypatch.setattr(estimators, "time", clock)
    monkeypatch.setattr(Training, "seconds", property(lambda self: 0.1 * self.iteration))
    model = SAPMRegressor(**settings, max_seconds=5).fit(x, x[:, 0])
    assert set(model.result_.run.status) == {"out of time"}
    assert iterations == pytest.approx([10] * 5, abs=1) and clock.now == pytest.approx(5, abs=0.11)
    monkeypatch.setattr(Training, "seconds", 1.0)
    with pytest.warns(UserWarning, match="no step was taken: the time was up"):
        assert SAPMRegressor(**settings, max_seconds=1e-3).fit(x, x[:, 0]).predict(x).shape == (60,)


def test_weights_are_answered_in_a_sentence():
    X, y = data()
    with pytest.raises(
        TypeError,
        match=r"fit: got sample_weight, expected X and y alone; for weights of samples use sapm.solve",
    ):
        SAPMRegressor().fit(X, y, sample_weight=np.ones(60))


def test_many_samples_are_padded_by_little():
    assert [estimators.padded_samples(n) for n in (3, 65, 1024, 1025, 9000, 27000)] == [
        64,
        128,
        1024,
        1152,
        9216,
        28672,
    ]
