"""A scikit-learn regressor on the same engine."""

from __future__ import annotations

import time
import warnings

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from sapm.checks import positive, width
from sapm.methods.build import resolve
from sapm.names import brief, by_name, number
from sapm.plan import plan
from sapm.pointwise import table, unmasked
from sapm.regression import Regression, whole
from sapm.samples import pad
from sapm.solver import execute

ITERATIONS, PATIENCE = 1000, 200
SMALL = 20  # fewer samples than this: none is set aside
ALPHAS = (1e-1, 1e-2, 3e-3, 1e-3, 1e-4)  # penalties that are tried where a part is set aside
ALPHAS_OF_ALL = ALPHAS[1:]  # where none is: in turn, until a network has learnt anything
GUESS = 0.95  # of the error that the mean of y has: a network above it has learnt nothing
# The largest penalty is taken whose error on m samples set aside is above the smallest by no more than these parts of it:
MARGIN, MARGIN_OF_ONE = 0.25, 6.0  # the second divided by m


class SAPMRegressor(RegressorMixin, BaseEstimator):
    """A deep network that needs no tuning: inputs and targets are scaled inside, and there is no learning rate.

    Minimises mean square error (of scaled targets) + alpha · Σ_l ‖W_l‖². method="auto" does so by L-BFGS; other methods and
    models are those of `sapm.solve`.

    Parameters
    ----------
    depth, width, activation : layers, units in each hidden one, "tanh" | "sin" | "relu" | "sigmoid" | "softplus" or a function.
    model, method : as in `sapm.solve`; "auto" is L-BFGS, with alpha=0 and no part set aside what it is there.
    max_iter : iterations at most, for each penalty that is tried (default 1000).
    n_init : networks trained side by side from different starts; the best on the validation part (else by loss) is kept.
    random_state : seed of the starts and of the validation split.
    alpha : ℓ² penalty; 0 interpolates. By default the largest of five whose error on the part set aside is near the smallest
        (`alpha_` says which); without such a part 0.01, or a smaller one where that learns nothing.
    early_stopping : set a part of the data aside, stop when the error there has not fallen for 200 iterations, and keep the best
        network. Not done with fewer than 20 samples.
    validation_fraction : that part.
    scale : standardise inputs and targets.
    warm_start : start the next fit from the networks of the last one.
    max_seconds : for the whole fit, all penalties and compilation together; each penalty has an equal share of what is left.
    options : more settings for the method, as in `sapm.solve`.

    Attributes
    ----------
    alpha_ : the penalty that was chosen.
    result_ : the `sapm.Result` of that penalty, in standardised units.
    certificate_ : what its losses prove, as `sapm.Result.certificate`.
    n_iter_ : the iterations it was trained for.
    loss_curve_ : the loss, penalty included, at every record.
    validation_curve_ : the error on the part set aside at the same records; not there without such a part.
    x_mean_, x_scale_, y_mean_, y_scale_ : what inputs and targets are standardised by.
    n_features_in_, feature_names_in_ : of X, as everywhere in scikit-learn.
    """

    @by_name
    def __init__(
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

    def fit(self, X, y, **other):
        """Train on X (n, inputs) and y (n,) or (n, outputs): arrays or data frames of numbers, without gaps."""
        if other:
            given = ", ".join(other)
            raise TypeError(f"fit takes X and y, not {given}; weights are for sapm.solve(sapm.Regression(X, y, weights=…)).")
        self._check()
        end = None if self.max_seconds is None else time.perf_counter() + self.max_seconds
        unmasked("X", X)
        unmasked("y", y)
        try:
            X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, dtype=np.float64)
        except OverflowError:
            raise ValueError(
                "X or y has a whole number that is too large for a float64; state the data in other units."
            ) from None
        X, Y = table("X", X), table("y", np.asarray(y, np.float64).reshape(len(X), -1))
        networks = None
        if self.warm_start and hasattr(self, "result_"):
            networks = self._previous(X.shape[1], Y.shape[1])
        self._y_ndim = np.ndim(y)
        draw = check_random_state(self.random_state).randint(2**31 - 1, size=2)
        self.x_mean_, self.x_scale_ = _scaling(X) if self.scale else (np.zeros(X.shape[1]), np.ones(X.shape[1]))
        self.y_mean_, self.y_scale_ = _scaling(Y) if self.scale else (np.zeros(Y.shape[1]), np.ones(Y.shape[1]))
        X, Y = (X - self.x_mean_) / self.x_scale_, (Y - self.y_mean_) / self.y_scale_
        held = None
        if self.early_stopping and len(X) >= SMALL:
            parts = train_test_split(X, Y, test_size=self.validation_fraction, random_state=int(draw[0]))
            X, X_held, Y, Y_held = (np.asarray(part) for part in parts)
            held = (X_held, Y_held)
        problem = Regression(X, Y, validation=held, names=[f"x{i}" for i in range(1, X.shape[1] + 1)])
        judged = Y if held is None else held[1]
        guess = np.mean(np.sum((judged - Y.mean(0)) ** 2, axis=1))
        learnable = GUESS * guess if guess > 1e-12 * np.mean(Y**2) else np.inf
        found = self._search(problem, learnable, int(draw[1]), networks, end)
        errors = {alpha: _error(result) for alpha, result in found.items()}
        near = (1 + min(MARGIN, MARGIN_OF_ONE / len(judged))) * min(errors.values())
        self.alpha_ = max((alpha for alpha in found if errors[alpha] <= near), default=next(iter(found)))
        self.result_ = found[self.alpha_]
        if errors[self.alpha_] > learnable:
            where = "in the data" if held is None else "on the part that was set aside"
            warnings.warn(
                f"the network is no better than the mean of y {where}: X may say nothing about y, or it takes more samples, "
                "a smaller alpha, or another depth, width or activation.",
                stacklevel=2,
            )
        run = self.result_.run
        self.certificate_ = self.result_.certificate
        self.n_iter_ = int(run.history["iteration"][run.best, -1])
        if not self.n_iter_:
            warnings.warn("no step was taken: max_seconds was over while it was compiled; give more.", stacklevel=2)
        self.loss_curve_ = run.history["loss"][run.best].tolist()
        if held is not None:
            self.validation_curve_ = run.history["validation_loss"][run.best].tolist()
        return self

    def _check(self) -> None:
        resolve(self.model, self.method)
        if self.max_iter is not None:
            whole("max_iter", self.max_iter)
        if self.max_seconds is not None:
            positive("max_seconds", self.max_seconds)
        if self.alpha is not None and not 0 <= number(self.alpha) < np.inf:
            raise ValueError(f"alpha={brief(self.alpha)} must be a non-negative, finite number, or None.")
        if isinstance(self.options, dict) and "l2" in self.options:
            raise ValueError("options has l2, which is called alpha here; give alpha=….")
        if isinstance(self.n_init, bool) or not isinstance(self.n_init, (int, np.integer)) or self.n_init < 1:
            raise ValueError(f"n_init={brief(self.n_init)} is how many networks are tried; give a whole number, 1 or more.")
        if self.early_stopping and not 0 < number(self.validation_fraction) < 1:
            given = f"validation_fraction={brief(self.validation_fraction)}"
            raise ValueError(f"{given} is the part of the samples that is set aside; give a number between 0 and 1, such as 0.1.")

    def _search(self, problem: Regression, learnable: float, key: int, networks: list | None, end: float | None) -> dict:
        """{penalty: result}. Without a part set aside only the first penalty that learns anything, and those before it."""
        held = problem.validation is not None
        tried = (self.alpha,) if self.alpha is not None else ALPHAS if held else ALPHAS_OF_ALL
        found = {}
        for done, alpha in enumerate(tried):
            left = None if end is None else max(end - time.perf_counter(), 1e-3) / (len(tried) - done if held else 1)
            result = self._trained(problem, alpha, key, networks, left)
            cut = bool(result.run.cut)
            if not cut or not found:
                found[alpha] = result
            if cut:
                before = f"{len(tried) - done} of {len(tried)} penalties before its end"
                warnings.warn(f"the fit was interrupted, {before}.", stacklevel=3)
            if cut or (not held and _error(result) <= learnable):
                break
        return found

    def _trained(self, problem: Regression, alpha: float, key: int, networks: list | None, seconds: float | None):
        model, method = self.model, self.method
        if method == "auto" and alpha > 0:  # from most starts Gauss-Newton goes to the zero network, where the penalty is least
            model, method = "ls", "lbfgs"
        config, sigma = plan(
            problem,
            self.depth,
            self.width,
            self.activation,
            model=model,
            method=method,
            max_iter=ITERATIONS if self.max_iter is None else self.max_iter,
            max_seconds=seconds,
            seeds=self.n_init,
            key=key,
            options={"l2": alpha, "patience": PATIENCE, "scale": False} | (self.options or {}),
            in_memory=True,
        )
        return execute(problem, pad(problem.samples(), _rows, _columns), config, sigma, progress=False, networks=networks)

    def _previous(self, inputs: int, outputs: int) -> list:
        """The weights to start from again."""
        weights = [u.weights for u in self.result_.seeds]
        hidden = width(self.width, self.depth)
        hidden = [hidden] * (self.depth - 1) if isinstance(hidden, int) else hidden
        if len(weights) != self.n_init or [inputs, *hidden, outputs] != [
            weights[0][0][0].shape[1],
            *(len(b) for _, b in weights[0]),
        ]:
            raise ValueError(
                "warm_start needs the inputs, outputs, layers and number of networks of the last fit; set warm_start=False."
            )
        return weights

    def predict(self, X):
        """The network at X (n, inputs), in the units of y: (n,), or (n, outputs) as y was."""
        check_is_fitted(self, "result_")
        X = np.asarray(validate_data(self, X, reset=False, dtype=np.float64))
        with np.errstate(over="ignore"):
            Y = self.result_.best((X - self.x_mean_) / self.x_scale_).reshape(len(X), -1) * self.y_scale_ + self.y_mean_
        bad = ~np.isfinite(Y).all(1)
        if bad.any():
            raise ValueError(
                f"the network is not finite at row {bad.argmax()} of X, which is far out of the range it was fitted on."
            )
        return Y[:, 0] if self._y_ndim == 1 else Y

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags


def _error(result) -> float:
    """The error of the best network on what was set aside, or without that on the data."""
    run = result.run
    return float(run.final("validation_loss" if "validation_loss" in run.history else "mean_squared_loss")[run.best])


def _scaling(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, spread = a.mean(0), a.std(0)
    return mean, np.where(spread > 1e-12 * np.abs(a).max(0), spread, 1.0)


def _rows(n: int) -> int:
    """Samples are padded to 64, 128, …, 1024, beyond that by an eighth at most, so that fits of like size share programs."""
    power = 1 << (n - 1).bit_length()
    step = power if n <= 1024 else power // 16
    return max(64, -(-n // step) * step)


def _columns(d: int) -> int:
    """Inputs are padded to 4, 16, 64, …"""
    return max(4, 4 ** int(np.ceil(np.log(d) / np.log(4) - 1e-9)))
