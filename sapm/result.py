"""What `solve` gives: solutions, history, table, certificate, figures, files."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sapm import report, store, stored
from sapm.characteristics import reference
from sapm.domain import domain_from
from sapm.environment import environment
from sapm.estimate import Estimate, estimated, followed, mostly_measured, observed, standard_errors
from sapm.export import NOT_A_NETWORK
from sapm.halving import ranking
from sapm.jet import ACTIVATIONS, Activation, activation, float64
from sapm.methods.build import build
from sapm.network import Network
from sapm.objective import Certificate, mean_square
from sapm.problem import PDE
from sapm.regression import whole
from sapm.run import Run, sizes_of
from sapm.samples import Samples, check_same, data_size, describe, from_arrays, network_of, nonlinear, scaling_of, to_arrays
from sapm.solution import Solution, relative_error
from sapm.success import Success, success
from sapm.summary import LOST, Summary, summary
from sapm.term import Term

MOST = 8000  # points at which the error is estimated


@dataclass(frozen=True, eq=False)
class Result:
    """Everything a call of `solve` found out. `config` has all settings as they were resolved."""

    run: Run
    samples: Samples
    config: dict
    problem: Any = None

    def __call__(self, *_, **__):
        raise TypeError("a Result holds a network for every seed; call the best one, result.best(…), or result.seeds[0](…).")

    @cached_property
    def seeds(self) -> tuple[Solution, ...]:
        """The solution of every seed, in the order they were asked for."""
        run, weights = self.run, weights_of(self.run, self.samples, self.config)
        return tuple(solution(self.samples, w, run.method.sigma, s) for w, s in zip(weights, run.seeds, strict=True))

    @property
    def best(self) -> Solution:
        """The seed with the smallest final actual loss (with validation data: on them; where losses are of different points: the
        smallest true loss at the test points)."""
        return self.seeds[self.run.best]

    @property
    def history(self) -> dict[str, np.ndarray]:
        """Arrays (seeds, records): what `Run` has, the phase by its name."""
        found, phases = dict(self.run.history), self.run.method.phases
        if "phase" in found:
            found["phase"] = np.array(phases)[found["phase"].astype(int)]
        return found

    @cached_property
    def certificate(self) -> Certificate:
        """Of the best seed: whether the theorem's bound between true and actual loss holds."""
        return self.run.certificate(self.run.best)

    @cached_property
    def table(self) -> list[dict]:
        """One row per seed."""
        run, samples = self.run, self.samples
        size, loss, true = data_size(samples), run.final("loss"), run.final("mean_squared_loss")
        rows = []
        for i, u in enumerate(self.seeds):
            row: dict[str, Any] = {
                "seed": u.seed,
                "initial_loss": float(run.history["loss"][i, 0]),
                "loss": float(loss[i]),
                "mean_squared_loss": float(true[i]),
                "train_error": float(np.sqrt(true[i] / size)) if size > 0 else float(np.sqrt(true[i])),
            }
            row |= self.errors(u)
            end = {"iterations": int(run.final("iteration")[i]), "status": run.status[i], "reason": run.reason[i]}
            found = {f"p.{name}" if name in row | end else name: value for name, value in u.parameters.items()}
            rows.append(row | found | end)
        return rows

    def errors(self, u: Solution) -> dict[str, float | None]:
        """Of any network at the held-out points: its error, where the answer is known, and a PDE's residual."""
        x, y = self.samples.test.get("x"), self.samples.test.get("y")
        error = relative_error(u(x), y) if y is not None else None
        if self.samples.kind != "pde":
            return {"test_error": error}
        return {"solution_error": error, "test_residual": self._residual(u) if self.samples.held is not None else None}

    @float64
    def _residual(self, u: Solution) -> float:
        """Root mean square of the PDE's residual at the held-out points: a loss that falls only on the training points shows."""
        return float(np.sqrt(_held_out(network_of(self.samples, u.network_weights, u.sigma), self.samples.held)))

    def success(self, below: float | None = None) -> Success:
        """How many seeds succeed, with a 95 % interval: those whose actual loss ends below a tenth of the initial one (the
        paper's rule), or, with a number, those whose true loss is below it."""
        return success(self.run, below)

    def summary(self, estimate: bool = True) -> Summary:
        """The table, of many seeds the best, with what was run and what the certificate says; `estimate`: of the error."""
        return summary(self, estimate)

    def __repr__(self) -> str:
        row = self.table[self.run.best]
        error = row.get("solution_error", row.get("test_error"))
        tail = "" if error is None else f", error {error:.2e}"
        return (
            f"<Result: {len(self.seeds)} seeds, best is {row['seed']}: loss {row['loss']:.2e}, "
            f"true loss {row['mean_squared_loss']:.2e}{tail}; {row['reason']}>"
        )

    def __reduce__(self):
        """Pickled as it is saved: without the problem, whose functions seldom can be."""
        if self.samples.ansatz is not None or any(term.function is not None for term in self.samples.terms):
            raise TypeError(
                "a result of a nonlinear PDE, or of one with hard conditions, cannot be pickled, since these are code; "
                "use result.save(path)."
            )
        return _restore, (*to_file(self.run, self.samples, self.config), self.run.method.sigma)

    def reference_error(self, n: int = 500, seed: int | None = None) -> float:
        """The relative ℓ² error of the best seed (or of seeds[seed]) at n held-out points, without `exact`.

        First-order linear PDEs: u follows from the data by integrating along characteristics (`sapm.characteristics`).
        """
        if self.samples.kind != "pde":
            raise ValueError(
                "reference_error integrates along characteristics, so it needs a PDE; table has the test error here."
            )
        if not isinstance(self.problem, PDE):
            raise ValueError(
                "reference_error needs the residual, which a file does not hold; load with sapm.load(path, problem=…)."
            )
        if not self.problem.followed:
            equation = self.problem.equation
            found = "there are periodic coordinates or observed points" if equation.first_order_linear else None
            raise ValueError(
                "reference_error follows the characteristics of a first-order linear equation to its boundary, and "
                f"{found or 'the residual contains ' + equation.higher}; see error_estimate() and test_residual in the table."
            )
        u, domain = self.seeds[self.run.index(seed)], self.problem.domain
        x = domain.points(whole("n", n), domain.first + len(self.samples.terms[0].y))
        wanted = reference(self.problem, x)
        lost = np.isnan(wanted)
        if lost.all():
            raise ValueError(self.problem.ill_posed or "no characteristic meets a condition, so u is not determined anywhere.")
        if lost.any():
            warnings.warn(f"u is not determined at {lost.sum()} of {n} points; the error is over the others.", stacklevel=2)
        return relative_error(u(x[~lost]), wanted[~lost])

    def error_estimate(self, seed: int | None = None) -> Estimate:
        """How wrong the best seed (or seeds[seed]) of a PDE probably is: `str` of it is a sentence. See `sapm.estimate`."""
        samples, i = self.samples, self.run.index(seed)
        if samples.kind != "pde":
            raise ValueError("error_estimate solves the equation of the error, so it needs a PDE; table has the test error here.")
        if i not in self._estimates and (found := followed(self.problem, self.seeds[i], samples.test.get("x"))):
            self._estimates[i] = found
        if i not in self._estimates:
            terms, u = self._finer, self.seeds[i]
            error, share, relative, each = estimated(samples, terms, u.network_weights, u.sigma)
            order = [j for j in self.run.ranking if j != i and self.run.status[j] not in LOST]
            x = samples.test.get("x")
            apart = relative_error(self.seeds[order[0]](x), u(x)) if order and x is not None else None
            loss = self.run.final("loss") if self.run.scores is None else self.run.scores  # by which they are ranked
            residual = self.table[i]["train_error"] or 0.0
            worse = float(loss[order[0]] / max(loss[i], 1e-300)) if order else 1.0
            given, points = isinstance(self.problem, PDE), len(terms[0].y)
            noisy = mostly_measured(samples, self.problem, network_of(samples, u.network_weights, u.sigma))
            more = {"more": points > len(samples.terms[0].y), "measured": noisy, "each": each}
            self._estimates[i] = Estimate(error, share, apart, points, given, worse, relative, residual, **more)
        return self._estimates[i]

    @cached_property
    def _estimates(self) -> dict[int, Estimate]:
        return {}

    @cached_property
    def standard_errors(self) -> dict[str, float]:
        """Of the numbers found by the best seed, from what measured values (`Observed`) differ by from u; none without these."""
        if not self.samples.parameters or not observed(self.problem):
            return {}
        terms = self.problem.samples(self._more_points, self.config["boundary_points"], 0, self.config["mu"]).terms
        found = standard_errors(self.samples, terms, self.problem, self.best.network_weights, self.best.sigma)
        return {name: float(e) for name, e in zip(self.samples.parameters, found, strict=True) if not np.isnan(e)}

    @property
    def _more_points(self) -> np.ndarray:
        """Up to four times as many as were trained on, and others."""
        domain, trained = self.problem.domain, len(self.samples.terms[0].y)
        return domain.points(min(4 * trained, MOST), domain.first + trained + len(self.samples.test.get("x", ())))

    @cached_property
    def _finer(self) -> tuple[Term, ...]:
        """The problem at more and other points than it was trained on; from a file, at those held out beside those trained on."""
        samples, problem = self.samples, self.problem
        if not isinstance(problem, PDE):
            return samples.terms if samples.held is None else (samples.held, *samples.terms)
        boundary = 2 * sum(len(term.y) for term in samples.terms[1:])
        return problem.samples(self._more_points, max(boundary, len(problem.stated)), 0, self.config["mu"]).terms

    def plot(self, kind: str = "loss", seed: int | None = None):
        """A matplotlib figure: "loss" (every seed), "bound" (actual and true loss with the bound), "solution" or "error"
        (one or two coordinates). `seed`: the index of another seed than the best."""
        return report.plot(self, kind, seed)

    def report(self, path: str | Path, title: str = "") -> Path:
        """Write one self-contained HTML page with the table, the certificate and the figures."""
        path = Path(path)
        if path.suffix not in (".html", ".htm"):
            raise ValueError(
                f"{path} is to be a web page; let its name end in .html, and print it from there to have another format."
            )
        store.write_whole(path, report.page(self, title).encode())
        return path

    def save(self, path: str | Path) -> Path:
        """Write everything but Python functions to one file (safetensors + JSON); `sapm.load` reads it."""
        path = Path(path)
        store.write(path, *to_file(self.run, self.samples, self.config))
        return path


@jax.jit
def _held_out(network: Network, term: Term) -> Array:
    return mean_square(network, [term])


@jax.jit
def _weights(method, states):
    return jax.vmap(lambda state: [(layer.W, layer.b) for layer in method.network(state).stack.layers()])(states)


@float64
def weights_of(run: Run, samples: Samples, config: dict) -> list[list[tuple[np.ndarray, np.ndarray]]]:
    """The weights of every seed, in the problem's own units."""
    scaling = scaling_of(samples, config["options"].get("scale", False))
    layers = jax.tree.map(np.asarray, _weights(run.method, run.states if run.kept is None else run.kept))
    return [scaling.original([(W[i], b[i]) for W, b in layers]) for i in range(len(run.seeds))]


def solution(samples: Samples, weights: list[tuple[np.ndarray, np.ndarray]], sigma: Activation, seed: int = 0) -> Solution:
    """The function that these weights are: inputs beyond those of the problem are padding, the last outputs its parameters."""
    (W, b), *others = weights
    *inner, (W_top, b_top) = [(W[:, : samples.inputs], b), *others]
    m = samples.outputs - len(samples.parameters)
    numbers = dict(zip(samples.parameters, b_top[m:].tolist(), strict=False))
    fields = samples.fields if samples.kind == "pde" and m > 1 else ()
    frame = domain_from(samples.domain).frame if samples.domain else None
    top = (W_top[:m], b_top[:m])
    return Solution([*inner, top], samples.names, sigma, seed, (), samples.embedding, numbers, fields, samples.ansatz, frame)


# ---------------------------------------------------------------- files


def to_file(run: Run, samples: Samples, config: dict) -> tuple[dict[str, np.ndarray], dict]:
    """(arrays, description) for `store.write`."""
    arrays = {f"samples/{name}": a for name, a in to_arrays(samples).items()}
    arrays |= {f"history/{name}": a for name, a in run.history.items()}
    arrays["chosen"] = run.chosen
    for part, tree in (("state", run.states), ("kept", run.kept)):
        arrays |= {f"{part}/{k:04d}": np.asarray(leaf) for k, leaf in enumerate(jax.tree.leaves(tree))}
    for l, layers in enumerate(zip(*weights_of(run, samples, config), strict=True), 1):
        arrays[f"network/W{l}"], arrays[f"network/b{l}"] = (np.stack(x) for x in zip(*layers, strict=True))
    about = describe(replace(samples, kept=samples.scaling) if config["options"].get("scale") else samples) | {"config": config}
    if config["activation"] not in ACTIVATIONS:
        about["activation_values"] = _values(run.method.sigma)
    about |= {"cut": run.cut} if run.cut else {}
    return arrays, about | {"seeds": run.seeds, "status": run.status, "reason": run.reason, "env": environment()}


def from_file(path: str | Path, problem=None, activation_given=None) -> Result:
    arrays, about = store.read(path)
    stored.check(path, arrays, about)
    result = _restore(arrays, about, _activation(path, about, activation_given), problem, path)
    for l, layers in enumerate(zip(*weights_of(result.run, result.samples, result.config), strict=True), 1):
        for name, given in zip("Wb", zip(*layers, strict=True), strict=True):
            if not np.allclose(np.stack(given), arrays[f"network/{name}{l}"], rtol=1e-6, atol=1e-9):
                raise ValueError(f"{path} is damaged: its networks are not those of its state; use an earlier copy.")
    return result


def _restore(arrays: dict[str, np.ndarray], about: dict, sigma: Activation, problem=None, path: Any = "this") -> Result:
    config = about["config"]
    part = partial(stored.part, arrays)

    with jax.enable_x64(True):
        function = _function(path, part("samples"), problem)
        hard = _hard(path, part("samples"), problem)
        samples = stored.fitted(path, from_arrays, about, part("samples"), function, hard)
        if problem is not None:
            check_same(problem, samples, config, part("samples"))
        method = stored.fitted(path, build, samples, config, sigma)
        keys = jax.vmap(jax.random.key)(jnp.zeros(len(about["seeds"]), int))
        shapes = stored.fitted(path, jax.eval_shape, jax.vmap(method.init), keys)
        states = stored.unflattened(path, shapes, part("state"))
        kept = stored.unflattened(path, shapes, part("kept")) if part("kept") else None
    run = Run(
        method,
        tuple(about["seeds"]),
        states,
        part("history"),
        tuple(about["status"]),
        tuple(about["reason"]),
        arrays["chosen"],
        kept,
        about.get("cut", ""),
        sizes_of(config, "scores") if "scores" in config else None,
    )
    return Result(run, samples, config, problem)


def _function(path, arrays: dict[str, np.ndarray], problem):
    """What a nonlinear PDE's residual does, which is code: from the problem, which must then be given."""
    if not nonlinear(arrays):
        return None
    if isinstance(problem, PDE) and not problem.equation.nonlinear:
        raise ValueError(f"{path} holds a nonlinear PDE, and the problem given is a linear one; give the one it was made with.")
    if not isinstance(problem, PDE):
        raise ValueError(
            f"{path} holds a PDE that is nonlinear, or has several functions or numbers to find, whose residual a file cannot "
            "hold; give the problem again: problem=… (--problem …)."
        )
    return problem.equation.function


def _hard(path, arrays: dict[str, np.ndarray], problem):
    """What makes conditions hold of themselves, which is code too."""
    if "term0/factor" not in arrays:
        return None
    if getattr(problem, "ansatz", None) is None:
        raise ValueError(f"{path} holds hard conditions, which are code; give the problem again: problem=… (--problem …).")
    return problem.ansatz


def _activation(path, about: dict, given) -> Activation:
    name, held = about["config"]["activation"], about.get("activation_values")
    if name in ACTIVATIONS:
        if given is not None and activation(given).name != name:
            raise ValueError(f"{path} was made with the activation {name!r}, not with the one given; leave activation= out.")
        return ACTIVATIONS[name]
    if given is None:
        raise ValueError(f"{path} was made with an activation of yours, {name!r}, which a file cannot hold; give activation=….")
    found = activation(given)
    if held is not None and not np.allclose(_values(found), held, 1e-9, 1e-9):
        raise ValueError(f"{path} was made with an activation of yours, {name!r}, which has other values than the one given.")
    return found


@float64
def _values(sigma: Activation) -> list[float]:
    """Some of an activation's values, by which another one is noticed: a file has its name only."""
    return np.asarray(sigma(jnp.linspace(-1.0, 1.0, 6))).tolist()


@float64
def best_of(path: str | Path, activation_given=None, export: bool = False) -> Solution:
    """The best network of a file as it is stored there: the code of a nonlinear residual is not needed for it."""
    arrays, about = store.read(path)
    stored.check(path, arrays, about)
    if export and "samples/term0/factor" in arrays:
        raise ValueError(NOT_A_NETWORK)
    sigma, history = _activation(path, about, activation_given), stored.part(arrays, "history")
    _hard(path, stored.part(arrays, "samples"), None)
    data = stored.part(arrays, "samples") if about["kind"] == "regression" else {}
    samples = stored.fitted(path, from_arrays, about, data)
    loss = history["validation_loss" if "validation_loss" in history else "loss"]
    loss = loss[np.arange(len(loss)), arrays["chosen"]]
    config = about["config"] | {"seeds": about["seeds"]}
    best = int(ranking(about["status"], sizes_of(config, "scores") if "scores" in config else loss)[0])
    layers = [(arrays[f"network/W{l}"][best], arrays[f"network/b{l}"][best]) for l in range(1, about["config"]["depth"] + 1)]
    if layers[0][0].shape[1] < samples.inputs:
        raise ValueError(f"{path} is damaged: its networks do not take what its features give; use an earlier copy.")
    return solution(samples, layers, sigma, about["seeds"][best])


def load(path: str | Path, problem=None, activation=None) -> Result:
    """Read what `result.save` wrote, or the folder of a run that has ended. `problem`: needed again only for what uses its code,
    such as `reference_error`, and for nonlinear PDEs."""
    within = Path(path) / "model.sapm"
    return from_file(within if within.is_file() else path, problem, activation)
