"""`SAPMRegressor`: least-squares training of deep networks as a scikit-learn estimator."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from sapm.driver.settings import check_model, plan, width
from sapm.driver.solve import Session, execute
from sapm.errors import brief, by_name, integer, number, positive, warn
from sapm.methods.method import NO_LEARNING_RATE, Method
from sapm.problem.data import Regression
from sapm.problem.functions import check_numeric, check_readable, table
from sapm.problem.samples import pad
from sapm.results.result import Result
from sapm.scopes import untraced
from sapm.training.run import hidden_units

DEFAULT_ITERATIONS = 1000
PATIENCE_ITERATIONS = 200
FEWEST_SAMPLES_TO_HOLD_OUT = 20
# Penalties that are tried, from large to small. With held-out samples all of them; without, one
# after another until a network has learnt something.
ALPHAS = (1e-1, 1e-2, 3e-3, 1e-3, 1e-4)
ALPHAS_WITHOUT_HELD_OUT = ALPHAS[1:]
# A network is no better than the mean of y if its squared error is above this part of the variance
# of y.
USELESS_ERROR_SHARE = 0.95
# Of the penalties whose held-out error is near the smallest, the largest one is taken. "Near" is
# within this part of the smallest error, or within the second number divided by the number of
# held-out samples, if that is less.
NEAR_BEST_MARGIN = 0.25
NEAR_BEST_MARGIN_TIMES_SAMPLES = 6.0


class SAPMRegressor(RegressorMixin, BaseEstimator):
    """A deep network as a scikit-learn regressor, without settings that have to be tuned.

    Minimises mean square error + alpha · Σ_l ‖W_l‖², by default with L-BFGS. Inputs and targets
    are standardised inside, and some samples are held out to choose alpha and to stop early.

    Parameters
    ----------
    depth : number of layers, the output layer included.
    width : units in each hidden layer, or a list of depth - 1 numbers.
    activation : "tanh", "sin", "relu", "sigmoid", "softplus" or a function.
    model : the loss: "ls", "pm" or "sapm", as in `sapm.solve`.
    method : as in `sapm.solve`. "auto" is L-BFGS on the mean square error; only with alpha=0 is it
        what `sapm.solve` would choose. By name, the data are not scaled again (scale=False), and a
        seed stops after 200 iterations without progress (patience=200). Fields of a method object
        that have the defaults of its class get the same values.
    max_iter : largest number of iterations for each penalty that is tried; None is 1000.
    n_init : number of networks, trained side by side from different starts. The one with the
        smallest held-out error is kept; without held-out samples, the smallest loss decides.
    random_state : seed of the starts and of the choice of held-out samples.
    alpha : the penalty; 0 interpolates. None chooses one of five: the largest whose held-out error
        is near the smallest. Without held-out samples None is 0.01, or a smaller one where that
        learns nothing.
    early_stopping : hold out some samples, stop when their error has not fallen for 200 iterations,
        and keep the network with the smallest. Not done with fewer than 20 samples.
    validation_fraction : the part of the samples that is held out.
    scale : standardise inputs and targets.
    warm_start : start the next fit from the networks of the last one.
    max_seconds : time for the whole fit, compilation included. Each penalty has an equal share of
        the time that is left.
    options : further settings of the method, as in `sapm.solve`.

    Attributes
    ----------
    alpha_ : the penalty of the network that was kept.
    result_ : the `sapm.Result` for that penalty, in standardised units.
    certificate_ : the certificate of that result.
    n_iter_ : the number of iterations it was trained for.
    loss_curve_ : the loss, penalty included, at every record.
    validation_curve_ : the held-out error at the same records; absent without held-out samples.
    x_mean_, x_scale_ : inputs are standardised as (x - x_mean_) / x_scale_.
    y_mean_, y_scale_ : the same for targets.
    n_features_in_, feature_names_in_ : number and names of the columns of X.
    """

    @by_name(hints=NO_LEARNING_RATE)
    def __init__(  # noqa: PLR0913
        self,
        depth=6,
        width=20,
        activation="tanh",
        model="sapm",
        method="auto",
        max_iter=None,
        n_init=1,
        random_state=0,
        *,
        alpha=None,
        early_stopping=True,
        validation_fraction=0.1,
        scale=True,
        warm_start=False,
        max_seconds=None,
        options=None,
    ):
        self.depth = depth
        self.width = width
        self.activation = activation
        self.model = model
        self.method = method
        self.max_iter = max_iter
        self.n_init = n_init
        self.random_state = random_state
        self.alpha = alpha
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.scale = scale
        self.warm_start = warm_start
        self.max_seconds = max_seconds
        self.options = options

    @untraced
    def fit(self, X, y, **other):
        """Train on samples.

        Parameters
        ----------
        X : (n, inputs): an array or data frame of finite numbers.
        y : (n,) or (n, outputs).
        other : refused. Weights of samples are for `sapm.Regression`.
        """
        if other:
            raise TypeError(
                f"fit: got {', '.join(other)}, expected X and y alone; for weights of samples use "
                "sapm.solve(sapm.Regression(X, y, weights=…))."
            )
        self._check_settings()
        end = None
        if self.max_seconds is not None:
            end = time.perf_counter() + self.max_seconds
        X, Y = self._standardised(X, y)
        split_seed, key = check_random_state(self.random_state).randint(2**31 - 1, size=2).tolist()
        held_out = None
        if self.early_stopping and len(X) >= FEWEST_SAMPLES_TO_HOLD_OUT:
            parts = train_test_split(
                X, Y, test_size=self.validation_fraction, random_state=split_seed
            )
            X, X_held_out, Y, Y_held_out = (np.asarray(part) for part in parts)
            held_out = (X_held_out, Y_held_out)
        names = [f"x{i}" for i in range(1, X.shape[1] + 1)]
        problem = Regression(X, Y, validation=held_out, names=names)

        judged = Y if held_out is None else held_out[1]
        variance = np.mean(np.sum((judged - Y.mean(0)) ** 2, axis=1))
        constant = variance <= 1e-12 * np.mean(Y**2)
        learnable = np.inf if constant else USELESS_ERROR_SHARE * variance
        results = self._search(problem, learnable, key, end)
        self.alpha_ = _largest_near_the_best(results, len(judged))
        self.result_ = results[self.alpha_]
        if _error(self.result_) > learnable:
            where = "the data" if held_out is None else "the held-out samples"
            warn(
                f"the network predicts y no better than the mean of y does, on {where}: y may not "
                "depend on X; otherwise use more samples, a smaller alpha, or another depth, width "
                "or activation.",
            )
        run = self.result_.run
        self.certificate_ = self.result_.certificate
        self.n_iter_ = int(run.history["iteration"][run.best, -1])
        if not self.n_iter_:
            warn(f"no step was taken: {run.reason[run.best]}")
        self.loss_curve_ = run.history["loss"][run.best].tolist()
        if held_out is not None:
            self.validation_curve_ = run.history["validation_loss"][run.best].tolist()
        return self

    def _check_settings(self) -> None:
        check_model(self.model, self.method)
        integer("n_init", self.n_init)
        if self.max_iter is not None:
            integer("max_iter", self.max_iter)
        if self.max_seconds is not None:
            positive("max_seconds", self.max_seconds)
        if self.alpha is not None and not 0 <= number(self.alpha) < np.inf:
            raise ValueError(
                f"alpha={brief(self.alpha)} must be a non-negative, finite number, or None."
            )
        if isinstance(self.options, dict) and "l2" in self.options:
            raise ValueError("options: got l2, which is called alpha here; give alpha=….")
        if isinstance(self.method, Method) and self.method.l2:
            raise ValueError(
                f"method: got l2={self.method.l2:g}, which is called alpha here; give "
                f"alpha={self.method.l2:g} and leave l2 out."
            )
        if self.early_stopping and not 0 < number(self.validation_fraction) < 1:
            raise ValueError(
                f"validation_fraction: got {brief(self.validation_fraction)}, expected a number "
                "between 0 and 1, the share of the samples that is held out; give one such as 0.1."
            )

    def _standardised(self, X, y) -> tuple[np.ndarray, np.ndarray]:
        """Checked data in standardised units, (n, inputs) and (n, outputs)."""
        X, y = self._checked(X, y, multi_output=True, y_numeric=True)
        X = table("X", X)
        Y = table("y", np.asarray(y, np.float64).reshape(len(X), -1))
        self._y_ndim = np.ndim(y)
        self.x_mean_, self.x_scale_ = _mean_and_scale(X, self.scale)
        self.y_mean_, self.y_scale_ = _mean_and_scale(Y, self.scale)
        return (X - self.x_mean_) / self.x_scale_, (Y - self.y_mean_) / self.y_scale_

    def _checked(self, X, *y, **settings) -> Any:
        """X, or X and y, as arrays of finite float64.

        Parameters
        ----------
        X, y : the data; y is left out where there is none.
        settings : those of scikit-learn's `validate_data`.
        """
        for name, rows in zip(("X", "y"), (X, *y), strict=False):
            check_readable(name, rows)
            check_numeric(name, rows)
        try:
            return validate_data(self, X, *y, dtype=np.float64, **settings)
        except OverflowError:
            raise ValueError(
                "X, y: got a whole number too large for a float64; give the data in other units."
            ) from None
        except TypeError as error:
            raise TypeError(
                f"X, y: got what is no table of real numbers ({error}), expected one; convert it, "
                "or leave such rows and columns out."
            ) from None

    def _search(
        self, problem: Regression, learnable: float, key: int, end: float | None
    ) -> dict[float, Result]:
        """Train with one penalty after another: {penalty: result}.

        Parameters
        ----------
        problem : the standardised data.
        learnable : without held-out samples, the search ends at the first error below this.
        key : the key of all starts.
        end : the time (of `time.perf_counter`) at which the fit has to end, or None.
        """
        networks = None
        if self.warm_start and hasattr(self, "result_"):
            networks = self._previous_weights(problem)
        held_out = problem.validation is not None
        alphas = ALPHAS if held_out else ALPHAS_WITHOUT_HELD_OUT
        if self.alpha is not None:
            alphas = (self.alpha,)
        results = {}
        for done, alpha in enumerate(alphas):
            remaining = len(alphas) - done
            seconds = None
            if end is not None:
                seconds = max(end - time.perf_counter(), 1e-3) / (remaining if held_out else 1)
            result = self._trained(problem, alpha, key, networks, seconds)
            interrupted = bool(result.run.cut)
            if not interrupted or not results:
                results[alpha] = result
            if interrupted:
                warn(
                    f"the fit was interrupted: {done} of {len(alphas)} penalties were tried to the "
                    "end.",
                )
            if interrupted or (not held_out and _error(result) <= learnable):
                break
        return results

    def _trained(
        self,
        problem: Regression,
        alpha: float,
        key: int,
        networks: list | None,
        seconds: float | None,
    ) -> Result:
        """The result of training with one penalty; the parameters are those of `_search`.

        Parameters
        ----------
        alpha : the penalty.
        networks : the weights of all networks at the start; None for random ones.
        seconds : the time for it, or None.
        """
        model = self.model
        method = self.method
        if method == "auto" and alpha > 0:
            # with a penalty Gauss-Newton converges to the zero network from most starts
            model = "ls"
            method = "lbfgs"
        options = {"l2": alpha, "patience": PATIENCE_ITERATIONS, "scale": False}
        if isinstance(method, Method):
            method = replace(_where_default(method, options), l2=alpha)
            options = self.options  # `plan` refuses options together with a method object
        else:
            options = options | (self.options or {})
        chosen = plan(
            problem,
            self.depth,
            self.width,
            self.activation,
            model=model,
            method=method,
            max_iter=DEFAULT_ITERATIONS if self.max_iter is None else self.max_iter,
            max_seconds=seconds,
            seeds=self.n_init,
            key=key,
            options=options,
            in_memory=True,
        )
        return execute(
            problem,
            pad(problem.samples(), padded_samples, padded_inputs),
            chosen,
            Session(progress=False),
            networks=networks,
        )

    def _previous_weights(self, problem: Regression) -> list:
        """The weights of the last fit, to start from; ValueError if the layers differ."""
        weights = [u.weights for u in self.result_.seeds]
        hidden = hidden_units(width(self.width, self.depth), self.depth)
        sizes = [problem.X.shape[1], *hidden, problem.Y.shape[1]]
        first = weights[0]
        previous = [first[0][0].shape[1], *(len(b) for _, b in first)]
        if len(weights) != self.n_init or sizes != previous:
            raise ValueError(
                f"warm_start: got {self.n_init} networks with layers of {sizes} units, expected "
                f"{len(weights)} with {previous} as in the last fit; set warm_start=False."
            )
        return weights

    @untraced
    def predict(self, X):
        """The network at X (n, inputs), in the units of y: (n,) or (n, outputs), as y was."""
        check_is_fitted(self, "result_")
        X = np.asarray(self._checked(X, reset=False))
        x = (X - self.x_mean_) / self.x_scale_
        with np.errstate(over="ignore"):
            Y = self.result_.best(x).reshape(len(X), -1) * self.y_scale_ + self.y_mean_
        bad = ~np.isfinite(Y).all(1)
        if bad.any():
            raise ValueError(
                f"predict: the network is not finite at row {bad.argmax()} of X, which is far "
                "outside the range of the data of the fit; give values within that range."
            )
        return Y[:, 0] if self._y_ndim == 1 else Y

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags


def _where_default(method: Method, values: dict[str, Any]) -> Method:
    """The method with these values in the fields that have the default of its class."""
    unchanged = {
        each.name: values[each.name]
        for each in fields(method)
        if each.name in values and getattr(method, each.name) == each.default
    }
    return replace(method, **unchanged)


def _largest_near_the_best(results: dict[float, Result], samples: int) -> float:
    """The largest penalty whose error is near the smallest; `samples` were used to judge it."""
    errors = {alpha: _error(result) for alpha, result in results.items()}
    margin = min(NEAR_BEST_MARGIN, NEAR_BEST_MARGIN_TIMES_SAMPLES / samples)
    near = (1 + margin) * min(errors.values())
    alphas = (alpha for alpha, error in errors.items() if error <= near)
    return max(alphas, default=next(iter(results)))  # no error is near if all are NaN


def _error(result: Result) -> float:
    """The mean square error of the best network on held-out samples, or without any on the data."""
    run = result.run
    name = "validation_loss" if "validation_loss" in run.history else "mean_squared_loss"
    return float(run.final(name)[run.best])


def _mean_and_scale(a: np.ndarray, scale: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of every column (1 for constant columns); 0 and 1 without
    `scale`.
    """
    if not scale:
        return np.zeros(a.shape[1]), np.ones(a.shape[1])
    mean = a.mean(0)
    spread = a.std(0)
    return mean, np.where(spread > 1e-12 * np.abs(a).max(0), spread, 1.0)


def padded_samples(n: int) -> int:
    """The number of samples that n are padded to: 64, 128, …, 1024, and beyond that an eighth more
    at most. Fits of similar sizes then share compiled programs.
    """
    power = 1 << (n - 1).bit_length()
    step = power if n <= 1024 else power // 16
    return max(64, -(-n // step) * step)


def padded_inputs(d: int) -> int:
    """The number of inputs that d are padded to: 4, 16, 64, …"""
    return max(4, 4 ** int(np.ceil(np.log(d) / np.log(4) - 1e-9)))
