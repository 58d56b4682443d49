"""Which method trains which model, with which settings; a method from its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sapm.jet import ACTIVATIONS, Activation, float64
from sapm.methods.alternating import PRECISIONS, alternating
from sapm.methods.descent import OPTIMISERS, descent
from sapm.methods.gauss_newton import ALGEBRA, choose_algebra, count_weights, flops, gauss_newton, start_damping
from sapm.methods.method import Method
from sapm.methods.polish import Polished
from sapm.methods.streamed import streamed
from sapm.names import RATES, brief, nearest, number
from sapm.network import INITIALISERS, Network
from sapm.objective import MODELS, STARTS, objective
from sapm.problem import PDE
from sapm.samples import Samples, scaling_of
from sapm.term import directional

METHODS = ("auto", "alternating", "gauss-newton", "gd", "adam", "lbfgs")
ALL_OPTIONS = {"record_every": None, "stall": 1e-9, "patience": 1000, "survivors": None, "l2": 0.0, "scale": True}
OPTIONS = {  # name → default, for every method
    "alternating": {
        "joint": False,
        "shared": False,
        "order": None,
        "polish_after": None,
        "directional": False,
        "scale": False,
        "chunk": None,
        "precision": "double",
    },
    "gauss-newton": {
        "stall": 1e-2,
        "patience": 50,
        "lifted": None,
        "damping": None,
        "algebra": None,
        "bend": True,
        "directional": True,
        "resample": 0,
        "stages": 0,
    },
    "gd": {"learning_rate": 0.1, "halving": 1e4, "scale": False},
    "adam": {"learning_rate": 1e-3, "halving": 1e4},
    "lbfgs": {},
}
LONGEST = 2**63 - 1  # counts are whole numbers of the machine
WHOLE = ("shared", "order", "polish_after")  # options that sweeps over chunks of samples do not have
POLISH_AFTER = 20  # sweeps, where "auto" goes on with L-BFGS on the true loss
LARGE, LARGE_GPU = 2e11, 4e12  # floating-point operations of a Gauss-Newton step: beyond, "auto" does something else
MATRICES = {  # of the linear algebra, in words
    "dense": "a step is solved from the Jacobian itself",
    "primal": "a step is solved from a matrix of the weights",
    "dual": "a step is solved from a matrix of the samples",
    "free": "a step is solved by conjugate gradients",
}
LIFTED, LIFTED_BETA, LIFTED_DEPTH = 15, 10.0, 20  # steps on the penalty loss, β there, and up to which depth "auto" takes them


def choose(name: str, given, known) -> str:
    """One of the known names, or a sentence."""
    if not isinstance(given, str) or given not in known:
        raise ValueError(f"{name}={brief(given)} is not known; use one of {', '.join(known)}." + nearest(given, known))
    return given


def resolve(model: str, method: str) -> str:
    """A sentence for pairs that do not go together."""
    choose("model", model, MODELS)
    choose("method", method, METHODS)
    if model == "ls" and method == "alternating":
        raise ValueError(
            "model='ls' has no auxiliary variables, so method='alternating' cannot train it; "
            "use 'gauss-newton', 'lbfgs', 'adam' or 'gd'."
        )
    if model != "ls" and method == "gd":
        raise ValueError(
            f"method='gd' is the paper's baseline for model='ls'; for model={model!r} use 'gauss-newton', "
            "'alternating', 'adam' or 'lbfgs'."
        )
    return method


def check_equation(problem: PDE, sigma: Activation, model: str, method: str, options: dict | None) -> None:
    """A sentence where PM and SAPM would have to separate what they do not know, or σ has no second derivative to use."""
    straight = model == "ls" or method == "auto" or (method == "gauss-newton" and (options or {}).get("lifted") == 0)
    if problem.joint and not straight:
        raise ValueError(
            f"not yet: model={model!r} by {method!r} separates the layers for one unknown function, and this problem has "
            f"{problem.joint}; use method='auto' or model='ls'."
        )
    x = jnp.linspace(-3.0, 3.0, 60)
    if problem.equation.order > 1 and not np.any(np.asarray(sigma.curve(x, *sigma.pair(x)))):
        raise ValueError(
            f"activation={sigma.name!r} has second derivative 0 almost everywhere, so it cannot solve an equation of second "
            "order; use 'sin' or 'tanh'."
        )


def affordable(rows: int, tangents: int, widths: Sequence[int]) -> bool:
    """Whether a Gauss-Newton step is short enough for "auto" to take it."""
    return _operations(rows, tangents, widths) <= (LARGE if jax.default_backend() == "cpu" else LARGE_GPU)


def _operations(rows: int, tangents: int, widths: Sequence[int]) -> float:
    return flops(rows, tangents, widths).get(choose_algebra(rows, tangents, widths), float("inf"))


def automatic(
    model: str,
    kind: str,
    sigma: Activation,
    rows: int,
    tangents: int,
    widths: Sequence[int],
    held_out: bool,
    from_network: bool = False,
    separable: bool = True,
    resample: int = 0,
    algebra: Any = None,
) -> tuple[str, dict, str]:
    """What "auto" stands for: (method, options, the reason in a sentence). `rows`: samples times outputs.

    `separable`: whether the paper's own sweeps know the problem.
    `from_network`: from a given network (`start_at`), where the lifted steps and the sweeps before a polish are skipped.
    """
    size = (rows, tangents, widths)
    if not held_out and affordable(*size):
        lifting = model != "ls" and kind == "regression" and sigma.name != "relu" and len(widths) - 1 <= LIFTED_DEPTH
        lifting = lifting and not from_network
        first = f"{LIFTED} steps on the {model.upper()} loss (β = {LIFTED_BETA:g}), then " if lifting else ""
        given = isinstance(algebra, str) and algebra in MATRICES  # what is not known is refused further on
        matrix = MATRICES[algebra if given else choose_algebra(*size)]
        more = {"lifted": LIFTED if lifting else 0} | ({"resample": resample} if resample else {})
        anew = f"; where the residual is large, points are drawn anew every {resample} steps" if resample else ""
        counts = f"{rows} samples, {count_weights(widths)} weights"
        return "gauss-newton", more, f"Gauss-Newton: {first}on the true loss{anew}; {counts}: {matrix}. "
    many = _operations(*size)
    why = f"a Gauss-Newton step would take {many:.0e} operations" if many < np.inf else "no matrix of a step fits into memory"
    why = "held-out data end the training" if held_out else why
    if model == "ls" or not separable or held_out:  # sweeps before it collapse on even functions, with a penalty on most
        return "lbfgs", {}, f"L-BFGS on the true loss, since {why}. "
    if kind == "pde":
        return "alternating", {"scale": True}, f"Sweeps, since {why}. "
    first = "" if from_network else f"{POLISH_AFTER} sweeps, then "
    options = {"polish_after": POLISH_AFTER, "scale": True}
    return "alternating", options, f"{first}L-BFGS on the true loss, since {why}. "


def check_options(given) -> None:
    if given is not None and not isinstance(given, dict):
        raise TypeError(f"options={brief(given)} must be a dictionary, such as {{'patience': 2000}}.")


def resolve_options(method: str, given: dict | None, automatic: bool = False) -> dict:
    """All options of the method, with those given; unknown names are refused."""
    known = ALL_OPTIONS | OPTIONS[method]
    for name in given or {}:
        if name not in known:
            called = f"{method} (what 'auto' stands for here)" if automatic else method
            raise ValueError(
                f"options has {brief(name)}, which {called} does not know; it has {', '.join(known)}."
                + nearest("learning_rate" if name in RATES else name, known)
            )
    options = known | (given or {})
    for name in ("record_every", "patience", "survivors", "polish_after", "lifted", "resample", "stages", "chunk"):
        value, least = options.get(name), 0 if name in ("lifted", "resample", "stages") else 1
        if value is None and known.get(name) is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= LONGEST:
            raise ValueError(f"options has {name}={brief(value)}; it must be a whole number, at least {least} and below 2**63.")
        options[name] = int(value)
    for name in ("stall", "l2", "learning_rate", "halving", "damping"):
        value, least = options.get(name), name in ("stall", "l2")
        if value is None and known.get(name) is None:
            continue
        if not (0 < number(value) < float("inf") or (least and number(value) == 0)):
            raise ValueError(
                f"options has {name}={brief(value)}; it must be a {'non-negative' if least else 'positive'}, finite number."
            )
        options[name] = float(value)  # type: ignore[arg-type]
    for name in (name for name in ("joint", "shared", "directional", "bend", "scale") if name in known):
        if not isinstance(options[name], (bool, np.bool_)):
            raise ValueError(f"options has {name}={brief(options[name])}; it must be True or False.")
        options[name] = bool(options[name])
    if options.get("algebra") is not None:
        choose("options: algebra", options["algebra"], ALGEBRA)
    if options.get("order") is not None:
        options["order"] = _order(options)
    if "precision" in options:
        choose("options: precision", options["precision"], PRECISIONS)
        other = next((name for name in ("chunk", "polish_after") if options[name] is not None), None)
        if options["precision"] == "mixed" and other:
            raise ValueError(f"options has precision='mixed' and {other}, which works in float64; leave one of them out.")
    together = [name for name in WHOLE if options.get(name)] if options.get("chunk") is not None else []
    if together:
        raise ValueError(f"options has chunk and {together[0]}, which needs all samples at once; leave one of them out.")
    return options


def _order(options: dict) -> list[list]:
    """The blocks of a sweep as pairs (block, layer)."""
    given = options["order"]
    if options["joint"] or options["shared"]:
        raise ValueError("options has order and joint or shared; name the blocks in order: 'Wb' is joint, 'a-shared' is shared.")
    pairs = isinstance(given, (tuple, list)) and all(isinstance(p, (tuple, list)) and len(p) == 2 for p in given)
    if not given or not pairs or not all(isinstance(block, str) and number(l) % 1 == 0 for block, l in given):
        raise ValueError(f"options has order={brief(given)}; it must be a list of pairs such as ('W', 3): a block and a layer.")
    return [[block, int(l)] for block, l in given]


def default_init(method: str, kind: str, sigma: Activation, widths: Sequence[int]) -> str:
    """The paper's for its own methods; otherwise what suits the activation and the method (docs/how-it-works.md)."""
    if method in ("alternating", "gd"):
        return "paper"
    if method != "gauss-newton":
        return "he" if sigma.name == "relu" else "xavier"
    if sigma.name == "relu":
        return "looks-linear" if min(widths[1:-1]) >= 2 * widths[0] else "he"  # it passes half as many directions as units
    return "orthogonal" if kind == "regression" else "he"


def default_start(method: str, kind: str) -> str:
    """The paper's U(-1, 1), except for its sweeps on PDEs, which collapse from there and not from the forward pass."""
    return "forward" if kind == "pde" and method != "gauss-newton" else "uniform"


def check_names(init, start, sigma) -> None:
    if init is not None:
        choose("init", init, tuple(INITIALISERS))
        if init == "looks-linear" and sigma.name != "relu":
            raise ValueError(f"init='looks-linear' needs activation='relu', not {sigma.name!r}; use 'orthogonal' instead.")
    if start is not None:
        choose("start", start, STARTS)
    if sigma.name in ACTIVATIONS and sigma is not ACTIVATIONS[sigma.name]:
        raise ValueError(f"your activation is called {sigma.name!r}, like a built-in one; give it another name.")


@float64
def build(samples: Samples, config: dict, sigma: Activation) -> Method:
    """The method that a configuration describes."""
    depth, width = config["depth"], config["width"]
    options = ALL_OPTIONS | OPTIONS[config["method"]] | config["options"]
    hidden = [width] * (depth - 1) if isinstance(width, int) else list(width)
    widths = (samples.terms[0].x.value.shape[1], *hidden, samples.outputs)
    scaling = scaling_of(samples, config["options"].get("scale", False))
    terms = [scaling.term(term) for term in samples.terms]
    terms = [directional(term) for term in terms] if options.get("directional") else terms
    model = config["model"] if all(term.known for term in terms) else "ls"
    obj = objective(terms, depth, model, config["alpha"], config["beta"], options["l2"] * scaling.size**2)
    if samples.parameters:
        guesses = np.array(list(samples.parameters.values()))
        obj = replace(obj, constants=jnp.asarray(guesses / samples.units))
    common = {"init": config["init"], "start": config["start"]}
    if config["method"] in OPTIMISERS:
        return descent(
            obj, widths, sigma, config["method"], options.get("learning_rate", 1.0), options.get("halving", 1.0), **common
        )
    if config["method"] == "gauss-newton":
        given = {name: options[name] for name in ("lifted", "algebra", "bend")}
        damping = (options["damping"] or start_damping(sigma)) * scaling.size**2 * scaling.stiffness
        return gauss_newton(obj, widths, sigma, damping=damping, **given, **common)
    if options["chunk"] is not None:
        return streamed(obj, widths, sigma, options["joint"], **common)
    order = options["order"] and tuple((str(block), int(l)) for block, l in options["order"])
    few = options["polish_after"] is not None  # then a short compilation counts for more than quick sweeps
    how = {"joint": options["joint"], "shared": options["shared"], "precision": options["precision"], "loop": few or None}
    sweeps = alternating(obj, widths, sigma, order, **how, **common)
    if not few:
        return sweeps
    plain = descent(replace(obj, model="ls"), widths, sigma, "lbfgs", 1.0, 1.0, init=config["init"])
    return Polished(sweeps, plain, jnp.asarray(options["polish_after"]))


@float64
def start_at(method, networks: Sequence[Sequence[tuple]], sigma: Activation):
    """States of the method for every network given by its weights: a start that is not random."""
    states, found = [], getattr(getattr(method, "objective", None), "constants", None)
    constants = 0 if found is None else len(found)
    for weights in networks:
        first, *others = ((jnp.asarray(W), jnp.asarray(b)) for W, b in weights)
        wide = jnp.pad(first[0], ((0, 0), (0, method.widths[0] - first[0].shape[1])))
        states.append(_begin(method, Network.of([(wide, first[1]), *others], sigma, constants)))
    return jax.tree.map(lambda *x: jnp.stack(x), *states)


@jax.jit
def _begin(method: Method, network: Network):
    return method.begin(network)
