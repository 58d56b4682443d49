"""Trainers from outside, on the same samples and from weights of the same initialisers as ours."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from sapm.bench.task import Clock, Outcome, Task
from sapm.network import Network

Trainer = Callable[[Clock, int, str], Outcome]  # of a clock, a seed and a track
ADAM_RATE, ADAM_SHARE = 1e-3, 2 / 3  # the rate falls to 0 along a cosine over that share of the budget
MEMORY = 20  # of L-BFGS
TOLERANCE = 1e-15  # of peers that would end by themselves


class Flat:
    """The weighted residuals and the loss as functions of one vector, all weights of the network."""

    def __init__(self, task: Task):
        self.task = task
        flat, self.network = ravel_pytree(task.start(0, "paper"))
        self.size = flat.size

    def start(self, seed: int, track: str) -> Float[Array, " p"]:
        """Track A: the paper's weights. Track B: He for relu, Xavier for other activations."""
        own = "he" if self.task.sigma.name == "relu" else "xavier"
        return ravel_pytree(self.task.start(seed, "paper" if track == "A" else own))[0]

    def residual(self, flat) -> Float[Array, " r"]:
        """Σ residual² is the true loss."""
        network = self.network(flat)
        parts = [jnp.sqrt(term.weight)[..., None] * term.residual(network(term.x)) for term in self.task.terms]
        return jnp.concatenate([part.ravel() for part in parts])

    def loss(self, flat) -> Float[Array, ""]:
        return jnp.sum(self.residual(flat) ** 2)

    def measure(self, flat) -> Callable[[], tuple[float, float]]:
        return lambda: self.task.measure(self.task.original(self.network(jnp.asarray(flat))))


def _in_chunks(clock: Clock, state: Any, chunk: Callable, show: Callable, share: float = 1.0) -> tuple[Any, bool]:
    """Compiled chunks, each up to the next snapshot, until the share of the budget is spent: the state, and if it ended itself.

    chunk(state, steps) gives (state, whether it has ended); show(state) the measure of a snapshot.
    """
    pace, ended = None, False
    while clock.left(share) > 0 and not ended:
        steps = 1 if pace is None else max(1, int(min(clock.until_next, clock.left(share)) / pace))
        before = clock.seconds
        state, done = chunk(state, steps)
        ended = bool(done)  # waits for the result
        pace = (clock.seconds - before) / steps
        clock.keep(show(state))
    return state, ended


def _outcome(ended: bool) -> Outcome:
    return Outcome("converged", "it ended by its own rule.") if ended else Outcome("out of time", "the time was up.")


# ---------------------------------------------------------------- optimistix


def optimistix_lm(task: Task) -> Trainer:
    import optimistix

    return _optimistix(task, optimistix.LevenbergMarquardt(rtol=TOLERANCE, atol=TOLERANCE), True)


def optimistix_lm_cholesky(task: Task) -> Trainer:
    """Quicker than by QR, the default, and less exact."""
    import lineax
    import optimistix

    quick = lineax.Normal(lineax.Cholesky())
    return _optimistix(task, optimistix.LevenbergMarquardt(rtol=TOLERANCE, atol=TOLERANCE, linear_solver=quick), True)


def optimistix_bfgs(task: Task) -> Trainer:
    import optimistix

    return _optimistix(task, optimistix.BFGS(rtol=TOLERANCE, atol=TOLERANCE), False)


def optimistix_lbfgs(task: Task) -> Trainer:
    import optimistix

    return _optimistix(task, optimistix.LBFGS(rtol=TOLERANCE, atol=TOLERANCE, history_length=MEMORY), False)


def stepper(flat: Flat, solver: Any, least_squares: bool) -> tuple[Callable, Callable]:
    """init(y) → state and chunk((y, state), steps) → ((y, state), ended), of an optimistix solver. States hold arrays alone."""
    import equinox as eqx
    import optimistix

    f = flat.residual if least_squares else flat.loss
    fn = lambda y, args: (f(y), None)  # noqa: E731
    template = jnp.zeros(flat.size)
    shape = jax.eval_shape(f, template)
    # A Jacobian by columns or by rows, whichever are fewer.
    options = {"jac": "fwd" if flat.size <= shape.size else "bwd"} if least_squares else {}
    whole = lambda y: solver.init(fn, y, None, options, shape, None, frozenset())  # noqa: E731
    fixed = eqx.partition(whole(template), eqx.is_array)[1]

    def advance(carry):
        k, y, state, _ = carry
        y, new, _ = solver.step(fn, y, None, options, eqx.combine(fixed, state), frozenset())
        ended, result = solver.terminate(fn, y, None, options, new, frozenset())
        return k + 1, y, eqx.filter(new, eqx.is_array), ended | (result != optimistix.RESULTS.successful)

    @jax.jit
    def chunk(state, steps):
        going = lambda carry: (carry[0] < steps) & ~carry[3]  # noqa: E731
        _, y, inner, ended = lax.while_loop(going, advance, (0, *state, jnp.zeros((), bool)))
        return (y, inner), ended

    return jax.jit(lambda y: eqx.filter(whole(y), eqx.is_array)), chunk


def _optimistix(task: Task, solver: Any, least_squares: bool) -> Trainer:
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
    """Adam for two thirds of the budget, its rate falling along a cosine, then L-BFGS."""
    import optax

    flat, adam, lbfgs = Flat(task), optax.scale_by_adam(), optax.lbfgs(memory_size=MEMORY)
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
            change, inner = lbfgs.update(gradient, inner, y, value=value, grad=gradient, value_fn=flat.loss)
            return y + change, inner

        return lax.fori_loop(0, steps, step, state), never

    def train(clock: Clock, seed: int, track: str) -> Outcome:
        y = flat.start(seed, track)
        states = jax.block_until_ready((adam.init(y), lbfgs.init(y)))
        clock.start(flat.measure(y))
        show = lambda state: flat.measure(state[0])  # noqa: E731

        def slower(state, steps):
            done = min(1.0, clock.seconds / (ADAM_SHARE * clock.budget))
            return adam_steps(state, steps, 0.5 * ADAM_RATE * (1 + np.cos(np.pi * done)))

        (y, _), _ = _in_chunks(clock, (y, states[0]), slower, show, ADAM_SHARE)
        _in_chunks(clock, (y, lbfgs.init(y)), lbfgs_steps, show)
        return Outcome("out of time", "the time was up.")

    return train


# ---------------------------------------------------------------- scipy


class _TimeIsUp(Exception):
    pass


def _restarted(clock: Clock, y: np.ndarray, once: Callable[[np.ndarray], tuple[np.ndarray, float]]) -> Outcome:
    """A method of scipy's that ends by itself is started again where it stands, as long as that lowers the loss."""
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
            end = minimize(f, y, jac=True, method="BFGS", callback=step, options={"gtol": 0.0, "maxiter": 10**9})
            return end.x, end.fun

        step = lambda xk: clock.keep(flat.measure(np.array(xk)))  # noqa: E731
        y = np.asarray(flat.start(seed, track))
        clock.start(flat.measure(y))
        return _restarted(clock, y, once)

    return train


def scipy_least_squares(task: Task) -> Trainer:
    """MINPACK's Levenberg-Marquardt where there are at least as many residuals as weights, else scipy's trust region."""
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

        def at_a_step(y):  # the Jacobian is asked for where a step has been taken
            clock.keep(flat.measure(y.copy()))
            if clock.left() <= 0:
                raise _TimeIsUp
            return np.asarray(jacobian(y))

        def once(y):
            stop = dict.fromkeys(("ftol", "xtol", "gtol"), TOLERANCE)
            end = least_squares(f, y, at_a_step, method=method, max_nfev=10**9, **stop)  # type: ignore[arg-type]
            clock.keep(flat.measure(end.x))
            return end.x, end.cost

        y = np.asarray(flat.start(seed, track))
        clock.start(flat.measure(y))
        return _restarted(clock, y, once)

    return train


# ---------------------------------------------------------------- scikit-learn


def sklearn_mlp(task: Task) -> Trainer:
    """MLPRegressor(solver="lbfgs", alpha=0) from its own weights, in fits of growing length, each going on from the last."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor

    case, (term,) = task.case, task.samples.terms
    x, y = np.asarray(term.x.value), np.asarray(term.y)[:, 0]
    name = {"sigmoid": "logistic"}.get(case.activation, case.activation)
    hidden = (case.width,) * (case.depth - 1)

    def train(clock: Clock, seed: int, track: str) -> Outcome:
        model = MLPRegressor(
            hidden_layer_sizes=hidden,
            activation=name,
            solver="lbfgs",
            alpha=0.0,
            tol=0.0,
            max_fun=10**9,
            warm_start=True,
            random_state=seed,
        )

        def show():
            pairs = zip(model.coefs_, model.intercepts_, strict=True)
            weights = [(W.T.copy(), b.copy()) for W, b in pairs]
            return lambda: task.measure(Network.of(weights, task.sigma))

        pace, steps, best = None, 10, np.inf
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            clock.start(lambda: (1.0, float(np.mean(y**2))))  # before the first fit: no network, the prediction 0
            while clock.left() > 0:
                model.set_params(max_iter=steps if pace is None else max(1, min(steps, int(clock.left() / pace))))
                before = clock.seconds
                model.fit(x, y)
                pace = (clock.seconds - before) / max(1, model.n_iter_)
                clock.keep(show())
                if not model.loss_ < best:
                    return _outcome(True)
                best, steps = model.loss_, 2 * steps
        return _outcome(False)

    return train
