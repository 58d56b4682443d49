"""A scikit-learn regressor on the same engine."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from sapm.checks import width
from sapm.names import brief, by_name, number
from sapm.plan import plan
from sapm.pointwise import table, unmasked
from sapm.regression import Regression
from sapm.samples import pad
from sapm.solver import execute

ITERATIONS, PATIENCE = 1000, 200
SMALL = 20  # fewer samples than this: none is set aside for validation
ALPHAS, ALPHA = (1e-1, 1e-2, 3e-3, 1e-3, 1e-4), 3e-3  # penalties that are tried, and the one where nothing is set aside
GUESS = 0.95  # of the error that the mean of y has there: a network above it has learnt nothing
NEAR = 1.25  # times the smallest error on what is set aside: the largest penalty up to there is taken


class SAPMRegressor(RegressorMixin, BaseEstimator):
    """A deep network that needs no tuning: inputs and targets are scaled inside, and there is no learning rate.

    Minimises mean square error (of scaled targets) + alpha · Σ_l ‖W_l‖². method="auto" does so by L-BFGS where data are set
    aside; other methods and models are those of `sapm.solve`.

    Parameters
    ----------
    depth, width, activation : layers, units in each hidden one, "tanh" | "sin" | "relu" | "sigmoid" | "softplus" or a function.
    model, method : as in `sapm.solve`.
    max_iter : iterations at most (default 1000).
    n_init : networks trained side by side from different starts; the best on the validation part (else by loss) is kept.
    random_state : seed of the starts and of the validation split.
    alpha : ℓ² penalty; 0 interpolates. By default the largest of five whose error on the part set aside is near the smallest
        (`alpha_` says which); without such a part 0.003.
    early_stopping : set a part of the data aside, stop when the error there has not fallen for 200 iterations, and keep the best
        network. Not done with fewer than 20 samples.
    validation_fraction : that part.
    scale : standardise inputs and targets.
    warm_start : start the next fit from the networks of the last one.
    options : more settings for the method, as in `sapm.solve`.
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
        self.options = options

    def fit(self, X, y):
        if self.alpha is not None and not 0 <= number(self.alpha) < np.inf:
            raise ValueError(f"alpha={brief(self.alpha)} must be a non-negative, finite number, or None.")
        if isinstance(self.options, dict) and "l2" in self.options:
            raise ValueError("options has l2, which is called alpha here; give alpha=….")
        if isinstance(self.n_init, bool) or not isinstance(self.n_init, (int, np.integer)) or self.n_init < 1:
            raise ValueError(f"n_init={brief(self.n_init)} is how many networks are tried; give a whole number, 1 or more.")
        if self.early_stopping and not 0 < number(self.validation_fraction) < 1:
            given = f"validation_fraction={brief(self.validation_fraction)}"
            raise ValueError(f"{given} is the part of the samples that is set aside; give a number between 0 and 1, such as 0.1.")
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
        validation = None
        if self.early_stopping and len(X) >= SMALL:
            parts = train_test_split(X, Y, test_size=self.validation_fraction, random_state=int(draw[0]))
            X, X_held, Y, Y_held = (np.asarray(part) for part in parts)
            validation = (X_held, Y_held)
        names = [f"x{i}" for i in range(1, X.shape[1] + 1)]
        problem = Regression(X, Y, validation=validation, names=names)
        tried = (self.alpha,) if self.alpha is not None else ALPHAS if validation is not None else (ALPHA,)
        found = {}
        for alpha in tried:
            result = self._trained(problem, alpha, int(draw[1]), networks)
            cut = bool(result.run.cut)
            if not cut or not found:
                found[alpha] = result
            if cut:
                left = len(tried) - len(found) + (alpha in found)
                warnings.warn(f"the fit was interrupted, {left} of {len(tried)} penalties before its end.", stacklevel=2)
                break
        errors = {a: _held(result) if validation is not None else 0.0 for a, result in found.items()}
        near = [a for a in found if errors[a] <= NEAR * min(errors.values())]
        self.alpha_ = max(near, default=next(iter(found)))
        self.result_ = found[self.alpha_]
        guess = 0.0 if validation is None else np.mean(np.sum((validation[1] - Y.mean(0)) ** 2, axis=1))
        if guess > 1e-12 * np.mean(Y**2) and errors[self.alpha_] > GUESS * guess:
            warnings.warn(
                "the network is no better than the mean of y on the part that was set aside: X may say nothing about y, or it "
                "takes more samples, or another depth, width or activation.",
                stacklevel=2,
            )
        run = self.result_.run
        self.certificate_ = self.result_.certificate
        self.n_iter_ = int(run.history["iteration"][run.best, -1])
        self.loss_curve_ = run.history["loss"][run.best].tolist()
        if validation is not None:
            self.validation_curve_ = run.history["validation_loss"][run.best].tolist()
        return self

    def _trained(self, problem: Regression, alpha: float, key: int, networks: list | None):
        config, sigma = plan(
            problem,
            self.depth,
            self.width,
            self.activation,
            model=self.model,
            method=self.method,
            max_iter=ITERATIONS if self.max_iter is None else self.max_iter,
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


def _held(result) -> float:
    """The error of the best network on what was set aside."""
    return float(result.run.final("validation_loss")[result.run.best])


def _scaling(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, spread = a.mean(0), a.std(0)
    return mean, np.where(spread > 1e-12 * np.abs(a).max(0), spread, 1.0)


def _rows(n: int) -> int:
    """Samples are padded to 64, 128, 256, …, so that fits of like size share compiled programs."""
    return max(64, 1 << (n - 1).bit_length())


def _columns(d: int) -> int:
    """Inputs are padded to 4, 16, 64, …"""
    return max(4, 4 ** int(np.ceil(np.log(d) / np.log(4) - 1e-9)))
