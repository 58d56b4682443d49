"""Methods of other packages, as trainers of the same network on the same samples.

A trainer is a function of a clock, a seed and a track. It trains until the budget of the clock is
spent, or until its method ends by its own rule, and offers snapshots to the clock.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from sapm.numerics.network import Network
from sapm.studies.bench.task import Clock, Measure, Outcome, Task

if TYPE_CHECKING:
    from optimistix import AbstractLeastSquaresSolver, AbstractMinimiser

Trainer = Callable[[Clock, int, str], Outcome]
State = TypeVar("State")
ADAM_RATE = 1e-3  # at the start; it falls to 0 along a cosine
ADAM_SHARE = 2 / 3  # of the budget
LBFGS_MEMORY = 20  # steps
TOLERANCE = 1e-15  # small enough that the budget ends a training, not its tolerance
UNLIMITED_STEPS = 10**9
SKLEARN_FIRST_STEPS = 10


class Flat:
    """The weighted residuals and the loss as functions of all weights y in one vector (p,)."""

    def __init__(self, task: Task):
        self.task = task
        flat, self.network = ravel_pytree(task.start(0, "paper"))
        self.size = flat.size

    def start(self, seed: int, track: str) -> Float[Array, " p"]:
        """The initial weights. Track A: the paper's. Track B: He for relu, Xavier otherwise."""
        own = "he" if self.task.sigma.name == "relu" else "xavier"
        return ravel_pytree(self.task.start(seed, "paper" if track == "A" else own))[0]

    def residual(self, flat) -> Float[Array, " r"]:
        """The weighted residuals of all terms; the sum of their squares is the true loss."""
        network = self.network(flat)
        parts = [
            jnp.sqrt(term.weight)[..., None] * term.residual(network(term.x))
            for term in self.task.terms
        ]
        return jnp.concatenate([part.ravel() for part in parts])

    def loss(self, flat) -> Float[Array, ""]:
        """The true loss."""
        return jnp.sum(self.residual(flat) ** 2)

    def measure(self, flat) -> Measure:
        """A snapshot of the network with these weights."""
        return lambda: self.task.measure(self.task.original(self.network(jnp.asarray(flat))))


def _in_chunks(
    clock: Clock,
    state: State,
    chunk: Callable[[State, int], tuple[State, Array]],
    show: Callable[[State], Measure],
    share: float = 1.0,
) -> tuple[State, bool]:
    """Run compiled chunks, each up to the next snapshot, until a share of the budget is spent.

    Returns the last state, and whether the method ended by its own rule.

    Parameters
    ----------
    clock : the clock
    state : the state at the start
    chunk : (state, steps) → (state, whether the method has ended)
    show : state → snapshot
    share : of the budget
    """
    pace = None
    ended = False
    while clock.left(share) > 0 and not ended:
        steps = 1 if pace is None else max(1, int(min(clock.until_next, clock.left(share)) / pace))
        before = clock.seconds
        state, done = chunk(state, steps)
        ended = bool(done)  # JAX waits for the result here
        pace = (clock.seconds - before) / steps
        clock.keep(show(state))
    return state, ended


def _outcome(ended: bool) -> Outcome:
    return (
        Outcome("converged", "it ended by its own rule.")
        if ended
        else Outcome("out of time", "the time was up.")
    )


# ---------------------------------------------------------------- optimistix


def optimistix_lm(task: Task) -> Trainer:
    """Levenberg-Marquardt by QR, optimistix' default."""
    import optimistix

    return _optimistix(task, optimistix.LevenbergMarquardt(rtol=TOLERANCE, atol=TOLERANCE), True)


def optimistix_lm_cholesky(task: Task) -> Trainer:
    """Levenberg-Marquardt by normal equations: faster than by QR, and less accurate."""
    import lineax
    import optimistix

    cholesky = lineax.Normal(lineax.Cholesky())
    solver = optimistix.LevenbergMarquardt(rtol=TOLERANCE, atol=TOLERANCE, linear_solver=cholesky)
    return _optimistix(task, solver, True)


def optimistix_bfgs(task: Task) -> Trainer:
    """optimistix' BFGS."""
    import optimistix

    return _optimistix(task, optimistix.BFGS(rtol=TOLERANCE, atol=TOLERANCE), False)


def optimistix_lbfgs(task: Task) -> Trainer:
    """optimistix' L-BFGS."""
    import optimistix

    return _optimistix(
        task, optimistix.LBFGS(rtol=TOLERANCE, atol=TOLERANCE, history_length=LBFGS_MEMORY), False
    )


def stepper(
    flat: Flat, solver: AbstractLeastSquaresSolver | AbstractMinimiser, least_squares: bool
) -> tuple[Callable, Callable]:
    """An optimistix solver as two compiled functions.

    init(y) → state and chunk((y, state), steps) → ((y, state), ended), where a state has arrays
    alone and `ended` says that the solver has terminated.

    Parameters
    ----------
    flat : the residuals and the loss
    solver : the solver
    least_squares : whether it takes the residuals (or the loss)
    """
    import equinox as eqx
    import optimistix

    objective = flat.residual if least_squares else flat.loss

    def fn(y, args):
        return (objective(y), None)

    template = jnp.zeros(flat.size)
    shape = jax.eval_shape(objective, template)
    # the Jacobian by columns or by rows, whichever are fewer
    options = {"jac": "fwd" if flat.size <= shape.size else "bwd"} if least_squares else {}

    def initial(y):
        return solver.init(fn, y, None, options, shape, None, frozenset())

    static = eqx.partition(initial(template), eqx.is_array)[1]

    def advance(carry):
        k, y, state, _ = carry
        y, new, _ = solver.step(fn, y, None, options, eqx.combine(static, state), frozenset())
        ended, result = solver.terminate(fn, y, None, options, new, frozenset())
        return (
            k + 1,
            y,
            eqx.filter(new, eqx.is_array),
            ended | (result != optimistix.RESULTS.successful),
        )

    @jax.jit
    def chunk(state, steps):
        def unfinished(carry):
            return (carry[0] < steps) & ~carry[3]

        _, y, inner, ended = lax.while_loop(unfinished, advance, (0, *state, jnp.zeros((), bool)))
        return (y, inner), ended

    return jax.jit(lambda y: eqx.filter(initial(y), eqx.is_array)), chunk


def _optimistix(
    task: Task, solver: AbstractLeastSquaresSolver | AbstractMinimiser, least_squares: bool
) -> Trainer:
    flat = Flat(task)
    init, chunk = stepper(flat, solver, least_squares)

    def train(clock: Clock, seed: int, track: str) -> Outcome:
        y = flat.start(seed, track)
        state = jax.block_until_ready((y, init(y)))
        clock.start(flat.measure(y))
        return _outcome(_in_chunks(clock, state, chunk, lambda state: flat.measure(state[0]))[1])

    return train


# ---------------------------------------------------------------- optax


def adam_then_lbfgs(task: Task) -> Trainer:
    """optax' Adam for two thirds of the budget, its rate falling along a cosine, then L-BFGS."""
    import optax

    flat = Flat(task)
    adam = optax.scale_by_adam()
    lbfgs = optax.lbfgs(memory_size=LBFGS_MEMORY)
    never = jnp.zeros((), bool)

    @jax.jit
    def adam_steps(state, steps, rate):
        def step(_, state):
            y, inner = state
            change, inner = adam.update(jax.grad(flat.loss)(y), inner)
            return y - rate * change, inner  # type: ignore[operator]

        return lax.fori_loop(0, steps, step, state), never

    @jax.jit
    def lbfgs_steps(state, steps):
        def step(_, state):
            y, inner = state
            value, gradient = optax.value_and_grad_from_state(flat.loss)(y, state=inner)
            change, inner = lbfgs.update(
                gradient, inner, y, value=value, grad=gradient, value_fn=flat.loss
            )
            return y + change, inner

        return lax.fori_loop(0, steps, step, state), never

    def train(clock: Clock, seed: int, track: str) -> Outcome:
        y = flat.start(seed, track)
        states = jax.block_until_ready((adam.init(y), lbfgs.init(y)))
        clock.start(flat.measure(y))

        def show(state):
            return flat.measure(state[0])

        def decaying_adam(state, steps):
            done = min(1.0, clock.seconds / (ADAM_SHARE * clock.budget))
            return adam_steps(state, steps, 0.5 * ADAM_RATE * (1 + np.cos(np.pi * done)))

        (y, _), _ = _in_chunks(clock, (y, states[0]), decaying_adam, show, ADAM_SHARE)
        _in_chunks(clock, (y, lbfgs.init(y)), lbfgs_steps, show)
        return Outcome("out of time", "the time was up.")

    return train


# ---------------------------------------------------------------- scipy


class _TimeIsUp(Exception):
    """Raised in a function that scipy evaluates, to end the training."""


def _restarted(
    clock: Clock, y: np.ndarray, once: Callable[[np.ndarray], tuple[np.ndarray, float]]
) -> Outcome:
    """Restart a method of scipy that ends early, as long as that lowers the loss.

    Parameters
    ----------
    clock : the clock
    y : the initial weights (p,)
    once : weights → (weights, loss) of one run of the method; raises `_TimeIsUp`
    """
    best = np.inf
    try:
        while True:
            y, value = once(y)
            if not value < best:
                return _outcome(True)
            best = value
    except _TimeIsUp:
        return _outcome(False)


def scipy_bfgs(task: Task) -> Trainer:
    """scipy's BFGS with gradients by JAX."""
    from scipy.optimize import minimize

    flat = Flat(task)
    value_and_grad = jax.jit(jax.value_and_grad(flat.loss))

    def train(clock: Clock, seed: int, track: str) -> Outcome:
        def f(y):
            if clock.left() <= 0:
                raise _TimeIsUp
            value, gradient = value_and_grad(y)
            return float(value), np.asarray(gradient)

        def once(y):
            options = {"gtol": 0.0, "maxiter": UNLIMITED_STEPS}
            end = minimize(f, y, jac=True, method="BFGS", callback=after_step, options=options)
            return end.x, end.fun

        def after_step(xk):
            clock.keep(flat.measure(np.array(xk)))

        y = np.asarray(flat.start(seed, track))
        clock.start(flat.measure(y))
        return _restarted(clock, y, once)

    return train


def scipy_least_squares(task: Task) -> Trainer:
    """scipy's least_squares with Jacobians by JAX.

    MINPACK's Levenberg-Marquardt where there are at least as many residuals as weights, otherwise
    scipy's trust region.
    """
    from scipy.optimize import least_squares

    flat = Flat(task)
    rows = jax.eval_shape(flat.residual, jnp.zeros(flat.size)).size
    method = "lm" if rows >= flat.size else "trf"
    residual = jax.jit(flat.residual)
    jacobian = jax.jit((jax.jacfwd if flat.size <= rows else jax.jacrev)(flat.residual))

    def train(clock: Clock, seed: int, track: str) -> Outcome:
        def f(y):
            if clock.left() <= 0:
                raise _TimeIsUp
            return np.asarray(residual(y))

        def jacobian_after_step(y):  # scipy evaluates the Jacobian after every accepted step
            clock.keep(flat.measure(y.copy()))
            if clock.left() <= 0:
                raise _TimeIsUp
            return np.asarray(jacobian(y))

        def once(y):
            stop = dict.fromkeys(("ftol", "xtol", "gtol"), TOLERANCE)
            end = least_squares(
                f,
                y,
                jacobian_after_step,  # type: ignore[arg-type]
                method=method,
                max_nfev=UNLIMITED_STEPS,
                **stop,  # type: ignore[arg-type]
            )
            clock.keep(flat.measure(end.x))
            return end.x, end.cost

        y = np.asarray(flat.start(seed, track))
        clock.start(flat.measure(y))
        return _restarted(clock, y, once)

    return train


# ---------------------------------------------------------------- scikit-learn


def sklearn_mlp(task: Task) -> Trainer:
    """scikit-learn's MLPRegressor(solver="lbfgs", alpha=0) from its own initial weights.

    It is fitted again and again, each time twice as long, from the weights of the fit before.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor

    case = task.case
    (term,) = task.samples.terms
    x = np.asarray(term.x.value)
    y = np.asarray(term.y)[:, 0]
    name = {"sigmoid": "logistic"}.get(case.activation, case.activation)
    hidden = (case.width,) * (case.depth - 1)

    def train(clock: Clock, seed: int, track: str) -> Outcome:
        model = MLPRegressor(
            hidden_layer_sizes=hidden,
            activation=name,
            solver="lbfgs",
            alpha=0.0,
            tol=0.0,
            max_fun=UNLIMITED_STEPS,
            warm_start=True,
            random_state=seed,
        )

        def show():
            pairs = zip(model.coefs_, model.intercepts_, strict=True)
            weights = [(W.T.copy(), b.copy()) for W, b in pairs]
            return lambda: task.measure(Network.of(weights, task.sigma))

        pace = None
        steps = SKLEARN_FIRST_STEPS
        best = np.inf
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            # before the first fit there is no network: the prediction is 0
            clock.start(lambda: (1.0, float(np.mean(y**2))))
            while clock.left() > 0:
                model.set_params(
                    max_iter=steps if pace is None else max(1, min(steps, int(clock.left() / pace)))
                )
                before = clock.seconds
                model.fit(x, y)
                pace = (clock.seconds - before) / max(1, model.n_iter_)
                clock.keep(show())
                if not model.loss_ < best:
                    return _outcome(True)
                best = model.loss_
                steps = 2 * steps
        return _outcome(False)

    return train
