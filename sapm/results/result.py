"""The result of `solve`: solutions, history, table, certificate, figures and files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sapm.errors import brief, integer, printable, shown_path, warn
from sapm.methods.engine import Engine
from sapm.methods.method import METHODS, Method, StoredMethod
from sapm.numerics.activations import ACTIVATIONS, Activation, activation
from sapm.objective.losses import Loss
from sapm.objective.penalty import mean_square
from sapm.objective.weights import Certificate
from sapm.problem.characteristics import solve_by_characteristics
from sapm.problem.pde import PDE, Problem
from sapm.problem.samples import (
    Samples,
    Weights,
    check_same_problem,
    data_size,
    describe,
    from_arrays,
    has_own_loss,
    network_of,
    nonlinear_terms,
    to_arrays,
    without_terms,
)
from sapm.results import files, page, records
from sapm.results.estimates import (
    ErrorEstimate,
    ErrorEstimator,
    LeastSquaresCorrection,
    estimate_error,
)
from sapm.results.export import NOT_A_NETWORK
from sapm.results.files import environment
from sapm.results.solution import Solution, relative_error
from sapm.results.table import History, Row, Summary, summary
from sapm.scopes import float64
from sapm.training.loop import initial_states
from sapm.training.run import Plan, Run, final_ranking, states_at
from sapm.training.seeds import Success, success


@dataclass(frozen=True, eq=False)
class Result:
    """The result of `solve`: the networks of all seeds, and everything that was measured.

    Parameters
    ----------
    run : the states of the seeds, their history, and why they stopped.
    samples : the points and data that were trained on, and the test points.
    plan : all settings as they were resolved.
    problem : the problem; None if the result is from a file and the problem was not given again.
    """

    run: Run
    samples: Samples
    plan: Plan
    problem: Problem | None = None

    def __call__(self, *_, **__):
        raise TypeError(
            "a Result holds a network for every seed; call the best one, result.best(…), or "
            "result.seeds[0](…)."
        )

    @cached_property
    def seeds(self) -> tuple[Solution, ...]:
        """The solutions of all seeds, in the order of the seeds of the run."""
        run = self.run
        weights = weights_of(self.run, self.samples, self.plan)
        return tuple(
            solution(self.samples, w, run.engine.sigma, s)
            for w, s in zip(weights, run.seeds, strict=True)
        )

    @property
    def best(self) -> Solution:
        """The solution of the seed with the smallest final loss. With validation data this is the
        loss on them; if the losses of the seeds are of different points, it is the true loss with
        the residual at the test points.
        """
        return self.seeds[self.run.best]

    @property
    def config(self) -> dict[str, Any]:
        """All settings as a dictionary, as config.json has them; `plan` is the typed record."""
        return self.plan.to_dict()

    @property
    def history(self) -> History:
        """Arrays (seeds, records) by name. Entries of "phase" are the names of the phases; numbers
        where a method of the user's own, which a file does not hold, would know the names.
        """
        history = History(self.run.history)
        phases = np.array(self.run.engine.phases)
        if "phase" in history and len(phases):
            history["phase"] = phases[history["phase"].astype(int)]
        return history

    @cached_property
    def certificate(self) -> Certificate:
        """Whether the theorem's bound between the true loss and the loss of the best seed holds."""
        return self.run.certificate(self.run.best)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The outcome of every seed, in the order of the seeds of the run."""
        run = self.run
        size = data_size(self.samples)
        loss = run.final("loss")
        true_loss = run.final("mean_squared_loss")
        iterations = run.final("iteration")
        return tuple(
            Row(
                seed=u.seed,
                initial_loss=float(run.history["loss"][i, 0]),
                loss=float(loss[i]),
                mean_squared_loss=float(true_loss[i]),
                train_error=float(np.sqrt(true_loss[i] / size if size > 0 else true_loss[i])),
                iterations=int(iterations[i]),
                status=run.status[i],
                reason=run.explanation(i),
                parameters=u.parameters,
                **self.errors(u),
            )
            for i, u in enumerate(self.seeds)
        )

    @cached_property
    def table(self) -> list[dict]:
        """`rows` as dictionaries, without the errors that do not apply to the problem."""
        return [row.as_dict(self.samples.kind) for row in self.rows]

    def errors(self, u: Solution) -> dict[str, float | None]:
        """The error of a network at the test points, if the solution is known there, and for a PDE
        its residual there. None stands for what is not known.
        """
        x = self.samples.test.get("x")
        y = self.samples.test.get("y")
        error = None if y is None else self._error(u(x), y)
        if self.samples.kind != "pde":
            return {"test_error": error}
        return {
            "solution_error": error,
            "test_residual": self._residual(u) if self.samples.test_equation is not None else None,
        }

    def _error(self, prediction: np.ndarray, y: np.ndarray) -> float:
        """The relative ℓ² error; for a loss that is not the square, √(loss / loss of u = 0)."""
        term = self.samples.terms[0]
        if term.squared:
            return relative_error(prediction, y)
        losses = (
            float(jnp.sum(term.loss.value(jnp.asarray(p), jnp.asarray(y))))
            for p in (prediction, np.zeros_like(y))
        )
        loss, size = losses
        return float(np.sqrt(loss / size if size > 0 else loss))

    @float64
    def _residual(self, u: Solution) -> float:
        """The root mean square of the PDE's residual at the test points."""
        network = network_of(self.samples, u.network_weights, u.sigma)
        return float(np.sqrt(_mean_square(network, (self.samples.test_equation,))))

    def success(self, below: float | None = None) -> Success:
        """How many seeds succeeded, with a 95 % interval: those whose final loss is below a tenth
        of their initial loss (the paper's rule).

        Parameters
        ----------
        below : a limit of the final true loss, which then decides instead of the paper's rule.
        """
        return success(self.run, below)

    def summary(self, estimate: bool = True, estimator: ErrorEstimator | None = None) -> Summary:
        """A table of the seeds (of many seeds, the best ones), the settings, and the certificate.

        Parameters
        ----------
        estimate : whether the error is estimated.
        estimator : what estimates it, see `error_estimate`.
        """
        return summary(self, estimate, estimator)

    def __repr__(self) -> str:
        row = self.table[self.run.best]
        error = row.get("solution_error", row.get("test_error"))
        tail = "" if error is None else f", error {error:.2e}"
        return printable(
            f"<Result: {len(self.seeds)} seeds, best is {row['seed']}: loss {row['loss']:.2e}, "
            f"true loss {row['mean_squared_loss']:.2e}{tail}; {row['reason']}>"
        )

    def __reduce__(self):
        """Pickle the content of a file, without the problem, whose functions are code."""
        if self.samples.ansatz is not None or any(
            term.nonlinear or not term.squared for term in self.samples.terms
        ):
            raise TypeError(
                "a result of a nonlinear PDE, or of one with hard conditions or a loss of your "
                "own, cannot be pickled, since these are code; "
                "use result.save(path)."
            )
        arrays, about = to_file(self.run, self.samples, self.plan)
        about = json.loads(files.to_json(about))  # as a file has it
        return _unpickled, (arrays, about, self.plan.activation, self.plan.method)

    def reference_error(self, n: int = 500, seed: int | None = None) -> float:
        """The relative ℓ² error of the best seed (or of seeds[seed]) at n held-out points, without
        `exact`.

        First-order linear PDEs: u follows from the data by integrating along characteristics
        (`sapm.problem.characteristics`).

        Parameters
        ----------
        n : the number of points.
        seed : the index of the seed; None is the best one.
        """
        if self.samples.kind != "pde":
            raise ValueError(
                "reference_error integrates along characteristics, so it needs a PDE; table has "
                "the test error here."
            )
        if not isinstance(self.problem, PDE):
            raise ValueError(
                "reference_error needs the residual, which a file does not hold; load with "
                "sapm.load(path, problem=…)."
            )
        if not self.problem.has_characteristics:
            equation = self.problem.equation
            reason = f"the residual contains {equation.higher_term}"
            if equation.first_order_linear:
                reason = "there are periodic coordinates or observed points"
            raise ValueError(
                "reference_error follows the characteristics of a first-order linear equation to "
                f"its boundary, and {reason}; see error_estimate() and test_residual in the table."
            )
        u = self.seeds[self.run.index(seed)]
        domain = self.problem.domain
        x = domain.points(integer("n", n), domain.first + len(self.samples.terms[0].y))
        exact = solve_by_characteristics(self.problem, x)
        unknown = np.isnan(exact)
        if unknown.all():
            raise ValueError(
                self.problem.ill_posed
                or "no characteristic meets a condition, so u is not determined anywhere."
            )
        if unknown.any():
            warn(
                f"u is not determined at {unknown.sum()} of {n} points; the error is over the "
                "others."
            )
        return relative_error(u(x[~unknown]), exact[~unknown])

    def error_estimate(
        self, seed: int | None = None, estimator: ErrorEstimator | None = None
    ) -> ErrorEstimate:
        """An estimate of the error of the best seed (or of seeds[seed]) of a PDE; `str` of it is a
        sentence.

        Parameters
        ----------
        seed : the index of the seed; None is the best one.
        estimator : a callable (result, seed) -> sapm.ErrorEstimate. By default the error itself if
            characteristics give it, otherwise a least-squares estimate (`sapm.results.estimates`).
        """
        i = self.run.index(seed)
        if estimator is not None:
            return estimate_error(self, i, estimator)
        if self.samples.kind != "pde":
            raise ValueError(
                "error_estimate solves the equation of the error, so it needs a PDE; "
                "result.table has the test error."
            )
        if i not in self._estimates:
            self._estimates[i] = estimate_error(self, i)
        return self._estimates[i]

    @cached_property
    def _estimates(self) -> dict[int, ErrorEstimate]:
        return {}

    @cached_property
    def standard_errors(self) -> dict[str, float]:
        """The standard error of every parameter of the best seed, from the misfit of the measured
        values (`Observed`); empty without parameters or measurements.
        """
        if not self.samples.parameters:
            return {}
        return LeastSquaresCorrection().standard_errors(self)

    def plot(self, kind: str = "loss", seed: int | None = None):
        """A matplotlib figure.

        Parameters
        ----------
        kind : "loss" (of every seed), "bound" (the loss and the true loss with the bound),
            "solution" or "error" (of one or two coordinates).
        seed : the index of the seed; None is the best one.
        """
        return page.plot(self, kind, seed)

    def report(self, path: str | Path, title: str = "") -> Path:
        """Write one self-contained HTML page with the table, the certificate and the figures.

        Parameters
        ----------
        path : the file, whose name ends in .html.
        title : the title of the page; "" is the method and the kind of problem.
        """
        path = Path(path)
        if path.suffix not in (".html", ".htm"):
            raise ValueError(
                f"report: got {brief(str(path))}, expected a name that ends in .html; for another "
                "format print the page from a browser."
            )
        files.write_whole(path, page.page(self, title).encode())
        return path

    def save(self, path: str | Path) -> Path:
        """Write everything but Python functions to one file (safetensors + JSON); `sapm.load` reads
        it.

        Parameters
        ----------
        path : the file; its usual ending is .sapm.
        """
        path = Path(path)
        files.write(path, *to_file(self.run, self.samples, self.plan))
        return path


_mean_square = jax.jit(mean_square)


@jax.jit
def _weights(engine: Engine, states: Any) -> list[tuple[Array, Array]]:
    """(W, b) of every layer, with a leading axis of seeds."""

    def of_seed(state):
        network = engine.network(state)
        if not network.dense:
            raise ValueError(
                "network: got layers that are not Dense, expected Dense layers alone, since a "
                "result stores weights and biases; evaluate the network of the engine itself."
            )
        return [(layer.W, layer.b) for layer in network.stack.layers()]

    return jax.vmap(of_seed)(states)


@float64
def weights_of(run: Run, samples: Samples, plan: Plan) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """For every seed its weights [(W_1, b_1), …] in the problem's own units; W_l (out, in), b_l
    (out,).

    Parameters
    ----------
    run, samples, plan : as in `Result`.
    """
    scaling = plan.scaling(samples)
    states = run.states if run.kept is None else run.kept
    layers = jax.tree.map(np.asarray, _weights(run.engine, states))
    return [scaling.original([(W[i], b[i]) for W, b in layers]) for i in range(len(run.seeds))]


@float64
def with_scores(run: Run, samples: Samples, plan: Plan) -> Run:
    """The run with scores to rank its seeds by. If networks of different iterations stand for the
    seeds, their losses are of different points and cannot be compared. The score is then the true
    loss with the residual at the test points. Otherwise the run is returned as it is.

    Parameters
    ----------
    run, samples, plan : as in `Result`.
    """
    records = set(run.chosen[~run.lost].tolist())
    first_points = plan.points is not None and not run.sampler_state.redrawn
    if samples.test_equation is None or len(records) < 2 or first_points:
        return run
    terms = (samples.test_equation, *samples.terms[1:])
    weights = weights_of(run, samples, plan)
    scores = [float(_mean_square(network_of(samples, w, run.engine.sigma), terms)) for w in weights]
    return replace(run, scores=np.nan_to_num(scores, nan=np.inf))


def solution(samples: Samples, weights: Weights, sigma: Activation, seed: int = 0) -> Solution:
    """The function of the coordinates that a network computes.

    Parameters
    ----------
    samples : those of the problem, which say what inputs and outputs mean.
    weights : [(W_1, b_1), …] in the problem's own units. Inputs beyond those of the problem are
        padding; the last outputs are the unknown parameters, constant in x.
    sigma, seed : the activation, and the number of the seed.
    """
    (W, b), *others = weights
    *inner, (W_top, b_top) = [(W[:, : samples.inputs], b), *others]
    m = samples.outputs - len(samples.parameters)
    numbers = dict(zip(samples.parameters, b_top[m:].tolist(), strict=False))
    fields = samples.fields if samples.kind == "pde" and m > 1 else ()
    top = (W_top[:m], b_top[:m])
    return Solution(
        [*inner, top],
        samples.names,
        sigma,
        seed,
        (),
        samples.embedding,
        numbers,
        fields,
        samples.ansatz,
        samples.frame,
    )


# ---------------------------------------------------------------- files


def to_file(run: Run, samples: Samples, plan: Plan) -> tuple[dict[str, np.ndarray], dict]:
    """The content of a file with this run, for `files.write`: arrays by name, and a description.

    Parameters
    ----------
    run, samples, plan : as in `Result`.
    """
    arrays = {f"samples/{name}": a for name, a in to_arrays(samples).items()}
    arrays |= {f"history/{name}": a for name, a in run.history.items()}
    arrays["chosen"] = run.chosen
    for part, tree in (("state", run.states), ("kept", run.kept)):
        leaves = enumerate(jax.tree.leaves(tree))
        arrays |= {f"{part}/{k:04d}": np.asarray(leaf) for k, leaf in leaves}
    for l, layers in enumerate(zip(*weights_of(run, samples, plan), strict=True), 1):
        W, b = zip(*layers, strict=True)
        arrays[f"network/W{l}"] = np.stack(W)
        arrays[f"network/b{l}"] = np.stack(b)
    if run.scores is not None:
        arrays["scores"] = run.scores
    in_units = replace(samples, fixed_scaling=samples.scaling) if plan.method.scale else samples
    about = describe(in_units) | {"config": plan.to_dict()} | records.RunRecord.of(run).to_json()
    if plan.activation.name not in ACTIVATIONS:
        about["activation_values"] = _values(plan.activation)
    if type(plan.method) not in METHODS.values():
        about["own_method"] = True
    return arrays, about | {"env": environment()}


def from_file(
    path: str | Path,
    problem: Problem | None = None,
    activation_given=None,
    method: Method | None = None,
) -> Result:
    """The result that a file holds.

    Parameters
    ----------
    path : the file.
    problem : the problem; needed for nonlinear PDEs and hard conditions, which are code.
    activation_given, method : the user's own activation and method, if the run was made with them.
    """
    arrays, about = files.read(path)
    stored = records.check(path, arrays, about, method)
    result = _restore(arrays, stored, _activation(path, about, activation_given), problem, path)
    weights = weights_of(result.run, result.samples, result.plan)
    for l, layers in enumerate(zip(*weights, strict=True), 1):
        for name, restored in zip("Wb", zip(*layers, strict=True), strict=True):
            stored = arrays[f"network/{name}{l}"]
            if not np.allclose(np.stack(restored), stored, rtol=1e-6, atol=1e-9):
                raise ValueError(
                    f"{shown_path(path)} is damaged: network/{name}{l}: its networks are not those "
                    "of its state; use an earlier copy."
                )
    return result


def _unpickled(
    arrays: dict[str, np.ndarray], about: dict, sigma: Activation, method: Method
) -> Result:
    stored = records.check("the pickled result", arrays, about, method)
    return _restore(arrays, stored, sigma)


def _restore(
    arrays: dict[str, np.ndarray],
    stored: records.Stored,
    sigma: Activation,
    problem: Problem | None = None,
    path: Any = "this",
) -> Result:
    """The result of checked arrays and a checked description (`records.check`)."""
    records.check_values(path, arrays, stored, sigma)
    part = partial(records.part, arrays)
    run = stored.run
    plan = replace(stored.plan, activation=sigma)
    count = len(run.seeds)
    with jax.enable_x64(True):
        functions = _functions(path, part("samples"), problem)
        hard = _stored_ansatz(path, part("samples"), problem)
        loss = _loss(path, part("samples"), problem)
        samples = from_arrays(stored.samples, functions, hard, loss)
        if problem is not None:
            drawn = {"points": None} if run.sampler_state.redrawn else {}
            with records.naming(path):
                check_same_problem(problem, samples, plan.to_dict() | drawn, part("samples"))
        with records.damage(path):
            engine = plan.engine(samples)
        if isinstance(plan.method, StoredMethod):
            scaling = plan.scaling(samples)
            networks = [scaling.scaled(_layers(arrays, plan.depth, i)) for i in range(count)]
            states = states_at(engine, networks, plan.activation)
            kept = None
        else:
            records.check_phases(path, arrays, engine.phases)
            keys = jax.vmap(jax.random.key)(jnp.zeros(count, int))
            shapes = initial_states.eval_shape(engine, keys)
            states = records.unflatten_state(path, "state", shapes, arrays)
            kept = None
            if part("kept"):
                kept = records.unflatten_state(path, "kept", shapes, arrays)
    restored = run.to_run(
        engine, states, kept, part("history"), arrays["chosen"], arrays.get("scores")
    )
    return Result(restored, samples, plan, problem)


def _layers(
    arrays: dict[str, np.ndarray], depth: int, i: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The weights of seed i as a file has them."""
    return [(arrays[f"network/W{l}"][i], arrays[f"network/b{l}"][i]) for l in range(1, depth + 1)]


def _functions(path, arrays: dict[str, np.ndarray], problem: Problem | None) -> dict[str, Callable]:
    """The operators of nonlinear terms by name. They are code, so they come from the problem."""
    names = nonlinear_terms(arrays)
    if not names:
        return {}
    if not isinstance(problem, PDE):
        raise ValueError(
            f"{shown_path(path)} holds a nonlinear PDE or a Condition, whose residual a file "
            "cannot hold; give "
            "the problem again: problem=… (--problem …). Systems, unknown parameters and "
            "derivatives above order 2 count as nonlinear."
        )
    functions = problem.functions
    if not set(names) <= set(functions):
        raise ValueError(
            f"{shown_path(path)} holds a nonlinear PDE, and the problem given is a linear one; "
            "give the one it was made with."
        )
    return functions


def _loss(path, arrays: dict[str, np.ndarray], problem: Problem | None) -> Loss | None:
    """The loss of data, which is code where it is not the square."""
    if not has_own_loss(arrays):
        return None
    loss = getattr(problem, "loss", None)
    if loss is None:
        raise ValueError(
            f"{shown_path(path)} was trained with a loss of your own, which a file cannot hold; "
            "give the problem again: problem=sapm.Regression(…, loss=…)."
        )
    return loss


def _stored_ansatz(path, arrays: dict[str, np.ndarray], problem: Problem | None):
    """The ansatz of hard conditions, which is code, so that it comes from the problem; None without
    hard conditions.
    """
    if "term0/factor" not in arrays:
        return None
    ansatz = problem.ansatz if isinstance(problem, PDE) else None
    if ansatz is None:
        raise ValueError(
            f"{shown_path(path)} holds hard conditions, which are code; give the problem again: "
            "problem=… (--problem …)."
        )
    return ansatz


def _activation(path, about: dict, given) -> Activation:
    """The activation that a file names; `given`: the one of the user's own, or None."""
    name = about["config"]["activation"]
    stored_values = about.get("activation_values")
    if name in ACTIVATIONS:
        if given is not None and activation(given).name != name:
            raise ValueError(
                f"{shown_path(path)} was made with the activation {brief(name)}, not with the one "
                "given; leave activation= out."
            )
        return ACTIVATIONS[name]
    if given is None:
        raise ValueError(
            f"{shown_path(path)} was made with an activation of yours, {brief(name)}, which a file "
            "cannot hold; give activation=…."
        )
    sigma = activation(given)
    if stored_values is not None and not np.allclose(_values(sigma), stored_values, 1e-9, 1e-9):
        raise ValueError(
            f"{shown_path(path)} was made with an activation of yours, {brief(name)}, which has "
            "other values than the one given."
        )
    return sigma


@float64
def _values(sigma: Activation) -> list[float]:
    """σ at six points of [-1, 1]. A file holds them with the name, to notice another activation."""
    return np.asarray(sigma(jnp.linspace(-1.0, 1.0, 6))).tolist()


@float64
def best_of(path: str | Path, activation_given=None, export: bool = False) -> Solution:
    """The best network of a file, read without the user's problem.

    Parameters
    ----------
    path : the file.
    activation_given : the user's own activation, if the run was made with one.
    export : whether the network is to be exported, which hard conditions exclude.
    """
    arrays, about = files.read(path)
    stored = records.check(path, arrays, about)
    if export and "samples/term0/factor" in arrays:
        raise ValueError(NOT_A_NETWORK)
    sigma = _activation(path, about, activation_given)
    records.check_values(path, arrays, stored, sigma)
    run = stored.run
    history = records.part(arrays, "history")
    _stored_ansatz(path, records.part(arrays, "samples"), None)
    described = stored.samples.problem
    samples = without_terms(described) if described.kind == "pde" else from_arrays(stored.samples)
    best = int(final_ranking(run.status, history, arrays["chosen"], arrays.get("scores"))[0])
    return solution(samples, _layers(arrays, stored.plan.depth, best), sigma, run.seeds[best])


def load(
    path: str | Path, problem: Problem | None = None, activation=None, method: Method | None = None
) -> Result:
    """Read a result from a file.

    Parameters
    ----------
    path : a file that `result.save` wrote, or the folder of a run that has ended.
    problem : the problem, for what uses its code: nonlinear PDEs, hard conditions and
        `reference_error`.
    activation : the activation, if it is one of your own.
    method : the method, if it is one of your own; without it the networks can be used, and not
        trained further.
    """
    within = Path(path) / "model.sapm"
    return from_file(within if within.is_file() else path, problem, activation, method)
