"""From the arguments of `sapm.solve` to a plan: `Settings` checks every argument, and
`Settings.plan` resolves what they leave open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import islice, pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sapm.driver.points import (
    REDRAW_EVERY_STEPS,
    SECOND_ATTEMPT_STEPS,
    STAGE_VISITS,
)
from sapm.errors import (
    LARGEST_COUNT,
    Advice,
    AdviceKind,
    brief,
    choose,
    integer,
    positive,
    shown,
    warn,
)
from sapm.methods.method import (
    LIFTED_BETA,
    METHOD_NAMES,
    METHODS,
    Alternating,
    Choice,
    GaussNewton,
    Method,
    automatic,
    check_pair,
    whole_sample_option,
    with_options,
)
from sapm.numerics.activations import ACTIVATIONS, Activation
from sapm.numerics.activations import activation as find_activation
from sapm.numerics.network import INITIALISERS, LOOKS_LINEAR
from sapm.objective.penalty import MODELS, STARTS
from sapm.problem.advice import advice
from sapm.problem.data import Regression
from sapm.problem.equation import derivative_name
from sapm.problem.functions import NEEDS_NUMBERS, check_readable
from sapm.problem.pde import PDE, PROBLEMS, Problem
from sapm.scopes import first_process, installed_memory
from sapm.training.run import (
    MOST_LAYERS,
    MOST_SEEDS,
    MOST_STAGES,
    MOST_UNITS,
    PerLayer,
    Plan,
    hidden_units,
)
from sapm.training.streaming import default_chunk

# Arrays of the size of a jet, for every layer: the jet, the lifted jet, the derivative of lift, the
# factors of the Jacobian
JETS_IN_MEMORY = 4
# Numbers in memory for every unit, sample and seed: a_l, σ(a_l), σ'(a_l) and the defect
STATE_NUMBERS = 4
# The state of sweeps over data is kept on disk if it takes more than this share of the memory.
STATE_MEMORY_SHARE = 1 / 4

Points = Any  # a number of points, or an array (n, d) of them


@dataclass(frozen=True, eq=False)
class Settings:
    """The arguments of a run, each one checked. `sapm.solve` explains all but two of them.

    Parameters
    ----------
    from_network : whether training starts at a given network; steps that prepare a random network
        are then left out.
    in_memory : whether all samples have to stay in memory, since devices or penalties share them.

    After the checks, fields have their final types: `activation` is an `Activation`, `seeds` a
    tuple of numbers, `width`, `alpha` and `beta` numbers or tuples.
    """

    problem: Problem
    depth: int = 6
    width: int | Sequence[int] = 20
    activation: str | Activation | Callable | None = None
    _: KW_ONLY
    points: Points = 1000
    boundary_points: Any = 400
    test_points: Points = 1000
    model: str = "sapm"
    method: str | Method = "auto"
    max_iter: int | None = None
    max_seconds: float | None = None
    seeds: int | Iterable[int] = 10
    key: int = 0
    init: str | None = None
    start: str | None = None
    mu: float | None = None
    alpha: Any = 1.0
    beta: Any = 1.0
    order: str | Sequence[tuple[str, int]] | None = None
    options: Mapping[str, Any] | None = None
    from_network: bool = False
    in_memory: bool = False

    def __post_init__(self) -> None:
        check_problem(self.problem)
        self._put("activation", self._chosen_activation())
        least = ", so that there is a hidden layer before the output layer"
        self._put("depth", integer("depth", self.depth, 2, least, MOST_LAYERS))
        check_elementwise(self.sigma)
        self._check_words()
        self._put("width", width(self.width, self.depth))
        if not hasattr(self.problem, "X"):
            point_count("points", self.points)
        if not isinstance(self.problem, Regression):
            point_count("test_points", self.test_points, 0)
        self._put("seeds", seeds(self.seeds))
        self._put("key", key(self.key))
        for name in ("max_seconds", "mu"):
            if getattr(self, name) is not None:
                self._put(name, positive(name, getattr(self, name)))
        for name in ("alpha", "beta"):
            self._put(name, per_layer(name, getattr(self, name), self.depth))
        if self.max_iter is not None:
            self._put("max_iter", iterations(self.max_iter))

    def _put(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _chosen_activation(self) -> Activation:
        """The activation; by default sin for linear equations, and tanh for all other problems,
        since a sum of a few sines cannot follow a shock.
        """
        if self.activation is not None:
            return find_activation(self.activation)
        linear = isinstance(self.problem, PDE) and not self.problem.equation.nonlinear
        return find_activation("sin" if linear else "tanh")

    def _check_words(self) -> None:
        """Check the arguments that are names, and the options."""
        sigma = self.sigma
        if self.init is not None:
            choose("init", self.init, tuple(INITIALISERS))
            if self.init == "looks-linear" and sigma.name not in LOOKS_LINEAR:
                raise ValueError(
                    f"init='looks-linear' needs activation='relu', not {sigma.name!r}; use "
                    "'orthogonal' instead."
                )
        if self.start is not None:
            choose("start", self.start, STARTS)
        if sigma.name in ACTIVATIONS and sigma is not ACTIVATIONS[sigma.name]:
            raise ValueError(
                f"your activation is called {sigma.name!r}, like a built-in one; give it another "
                "name."
            )
        check_model(self.model, self.method)
        if self.method == "auto" and not getattr(self.problem, "squared", True):
            self._put("model", "ls")  # PM and SAPM need squares
        if self.options is not None and not isinstance(self.options, dict):
            raise TypeError(
                f"options={brief(self.options)} must be a dictionary, such as {{'patience': 2000}}."
            )
        if self.order is not None:
            self._check_order()
        if self.options and isinstance(self.method, Method):
            raise ValueError(
                f"options: got {brief(self.options)} and a method object, expected only one of the "
                f"two; set the fields of {type(self.method).__name__} instead."
            )

    def _check_order(self) -> None:
        """Refuse an order that the method does not have, or that is given twice."""
        given = f"order: got {brief(self.order)}"
        if isinstance(self.method, Alternating):
            raise ValueError(
                f"{given} and a method object, expected only one of the two; use "
                "sapm.Alternating(order=…)."
            )
        if self.method != Alternating.name:
            raise ValueError(
                f"{given} and method={brief(self.method)}, expected method='alternating'; other "
                "methods have no order of blocks."
            )
        if "order" in (self.options or {}):
            raise ValueError(f"{given} and another one in options, expected only one of the two.")
        if not isinstance(self.order, (str, tuple, list)):
            raise TypeError(
                f"{given}, expected down, up, up-then-down, or a list of pairs (block, layer)."
            )

    @property
    def sigma(self) -> Activation:
        """The activation, after the checks."""
        assert isinstance(self.activation, Activation)
        return self.activation

    @property
    def kind(self) -> str:
        """The kind of the problem: "pde" or "regression"."""
        return "pde" if isinstance(self.problem, PDE) else "regression"

    @property
    def asked_options(self) -> dict[str, Any]:
        """The options of the method that the user set, by name."""
        if isinstance(self.method, Method):
            return self.method.options
        order = {} if self.order is None else {"order": self.order}
        return dict(self.options or {}) | order

    def plan(self) -> Plan:
        """The plan: everything resolved that the arguments leave open. A ValueError says which
        arguments exclude each other.
        """
        problem = self.problem
        check_activation(self)
        size = sizes_of(self)
        check_memory(self, size)
        chosen_here = self.method == "auto"
        method, why = self._resolved_method(size)
        model = "ls" if chosen_here and method.name == "lbfgs" else self.model
        check_separable(problem, model, method)
        sweeps = method if isinstance(method, Alternating) else None
        newton = method if isinstance(method, GaussNewton) else None
        prepares = sweeps is not None and (
            sweeps.polish_after is not None or sweeps.chunk is not None
        )
        start = method.default_start(self.kind)
        init = method.default_init(self.kind, self.sigma, size.widths)
        if chosen_here and prepares:
            # measured (docs/how-it-works.md): from another start a polish ends up to a thousand
            # times higher
            start = "noise"
            init = METHODS["lbfgs"]().default_init(self.kind, self.sigma, size.widths)
        lifted = chosen_here and newton is not None and newton.lifted
        stages = 0 if newton is None else newton.stages
        steps = method.default_iterations(self.kind, self.sigma) * (
            SECOND_ATTEMPT_STEPS if stages else 1
        )
        retry = (
            chosen_here
            and isinstance(problem, PDE)
            and problem.supports_stages
            and newton is not None
            and newton.resample > 0
            and self.max_iter is None
            and "stages" not in self.asked_options
            and not self.from_network
            and np.ndim(self.points) == 0  # given points belong to the whole time
        )
        plan = Plan(
            problem=type(problem).__name__,
            depth=self.depth,
            width=self.width,  # type: ignore[arg-type]
            activation=self.sigma,
            points=number_of(self.points),
            boundary_points=number_of(self.boundary_points),
            test_points=number_of(self.test_points),
            model=model,
            method=method,
            max_iter=steps if self.max_iter is None else self.max_iter,
            max_seconds=self.max_seconds,
            seeds=self.seeds,  # type: ignore[arg-type]
            key=self.key,
            init=self.init or init,
            start=self.start or start,
            mu=problem.mu if self.mu is None and isinstance(problem, PDE) else self.mu,
            alpha=self.alpha,
            beta=LIFTED_BETA if lifted and self.beta == 1 else self.beta,
            why=why,
            retry=retry,
            from_network=self.from_network,
        )
        check_redrawing(plan, problem, self.max_iter)
        return plan

    def _resolved_method(self, size: Sizes) -> tuple[Method, str]:
        """The method with all its options, and the reason for it; "" if the user chose it."""
        chunk, why = samples_in_memory(self, size.widths)
        options = self.asked_options
        if isinstance(self.method, Method):
            return (self.method if chunk is None else replace(self.method, chunk=chunk)), why  # type: ignore[call-arg]
        if chunk is not None:
            scale = {"scale": True} if self.method == "auto" else {}
            return with_options(Alternating, scale | options | {"chunk": chunk}, True), why
        if self.method != "auto":
            return with_options(METHODS[self.method], options), ""
        choice = self._chosen_method(size)
        return with_options(METHODS[choice.method], choice.options | options, True), choice.why

    def _chosen_method(self, size: Sizes) -> Choice:
        """The method that "auto" stands for."""
        problem = self.problem
        options = self.asked_options
        linear = isinstance(problem, PDE) and problem.equation.first_order_linear
        drawn = isinstance(self.points, (int, np.integer)) and not options.get("lifted")
        redraw = isinstance(problem, PDE) and drawn and not linear
        return automatic(
            self.model,
            self.kind,
            self.sigma,
            size.rows,
            size.tangents,
            size.widths,
            held_out=getattr(problem, "validation", None) is not None,
            from_network=self.from_network,
            separable=not getattr(problem, "unsupported_by_sweeps", ""),
            resample=options.get("resample", REDRAW_EVERY_STEPS if redraw else 0),
            algebra=options.get("algebra"),
        )


def plan(problem: Problem, *unnamed: Any, **settings: Any) -> Plan:
    """The plan of `sapm.solve(problem, …)` with the same arguments."""
    return Settings(problem, *unnamed, **settings).plan()


# ---------------------------------------------------------------- sizes


@dataclass(frozen=True)
class Sizes:
    """The sizes of a problem that are known before its samples are drawn.

    rows : samples times outputs.
    tangents : derivative channels of all samples.
    widths : (m_0, …, m_L), the units of every layer.
    """

    rows: int
    tangents: int
    widths: tuple[int, ...]


def sizes_of(settings: Settings) -> Sizes:
    """The sizes of the problem with these settings."""
    problem = settings.problem
    hidden = hidden_units(settings.width, settings.depth)  # type: ignore[arg-type]
    asked = None if isinstance(problem, Regression) else point_count("points", settings.points)
    rows, tangents = problem.size(asked, settings.boundary_points)
    return Sizes(rows, tangents, (problem.inputs, *hidden, problem.outputs))


def check_memory(settings: Settings, size: Sizes) -> None:
    """Refuse points, weights and jets that are larger than the memory of this machine."""
    problem = settings.problem
    memory = installed_memory()
    if isinstance(problem, PDE):
        _check_jets(problem, point_count("points", settings.points), size.widths, memory)
    if isinstance(problem, Regression):
        return
    points = size.rows + point_count("test_points", settings.test_points, 0)
    networks = len(settings.seeds)  # type: ignore[arg-type]
    weights = sum(a * b for a, b in pairwise(size.widths))
    for what, numbers, less in (  # numbers of 8 bytes
        (f"{points} points", points * size.widths[0], "fewer points"),
        (
            f"the weights of {networks} networks",
            weights * networks,
            "fewer seeds or a smaller network",
        ),
    ):
        if 8 * numbers > memory:
            raise ValueError(
                f"{what} take {8 * numbers / 1e9:.3g} GB, and this machine has {memory / 1e9:.3g} "
                f"GB; give {less}."
            )


def _check_jets(problem: PDE, points: int, widths: Sequence[int], memory: float) -> None:
    """Refuse u and its derivatives at so many points that they exceed the memory, in bytes."""
    equation = problem.equation
    channels = 1 + equation.channels
    needed = 8 * JETS_IN_MEMORY * points * equation.rows * channels * sum(widths[1:])
    if needed <= memory:
        return
    derivatives = [derivative_name(key) for key in equation.keys if len(key) == 2] or [
        derivative_name(key) for key in equation.keys if key
    ]
    others = f" and {len(derivatives) - 2} more" if len(derivatives) > 2 else ""
    raise ValueError(
        f"memory: got {needed / 1e9:.0f} GB for u and its derivatives ({channels} numbers a unit "
        f"for {', '.join(derivatives[:2])}{others} at each of {points * equation.rows} points), "
        f"expected at most {memory / 1e9:.0f} GB, the memory of this machine; give fewer points, a "
        "narrower network, or fewer derivatives."
    )


def samples_in_memory(settings: Settings, widths: Sequence[int]) -> tuple[int | None, str]:
    """The number of samples that are in memory at a time.

    Parameters
    ----------
    settings : the arguments of the run.
    widths : (m_0, …, m_L), the units of every layer.

    Returns the number of samples in a chunk, None for all samples at once, and the reason in a
    sentence.
    """
    problem = settings.problem
    options = settings.asked_options
    method = settings.method.name if isinstance(settings.method, Method) else settings.method
    streamable = (
        isinstance(problem, Regression)
        and settings.model != "ls"
        and method in ("auto", "alternating")
        and not settings.in_memory
        and not settings.from_network
    )
    chunk = options.get("chunk")
    if chunk is not None:
        integer("options: chunk", chunk)
        if not isinstance(problem, Regression):
            raise ValueError(
                f"chunk: got {brief(chunk)} for a sapm.{type(problem).__name__}, expected a "
                "sapm.Regression; leave it out."
            )
        if not streamable:
            in_memory = settings.in_memory or settings.from_network
            user = "sapm.refine or SAPMRegressor"
            user = user if in_memory else f"model={settings.model!r} by {method!r}"
            raise ValueError(
                f"chunk: got {brief(chunk)} for {user}, which needs all samples at once, expected "
                "block sweeps; leave it out, or use sapm.solve with model='sapm', "
                "method='alternating'."
            )
        assert isinstance(problem, Regression)
        chunk = min(int(chunk), len(problem.X))
        return chunk, f"Sweeps over chunks of {chunk} samples, as asked for. "
    if not streamable:
        return None, ""
    assert isinstance(problem, Regression)
    networks = len(settings.seeds)  # type: ignore[arg-type]
    state = 8 * STATE_NUMBERS * len(problem.X) * networks * sum(widths)
    memory = installed_memory()
    whole_only = whole_sample_option(options) or options.get("precision") == "mixed"
    if state <= memory * STATE_MEMORY_SHARE or whole_only:
        return None, ""
    chunk = default_chunk(len(problem.X), networks, widths)
    why = (
        f"Sweeps over chunks of {chunk} samples, since the state of {networks} seeds "
        f"({state / 1e9:.3g} GB) is more than a quarter of the memory ({memory / 1e9:.3g} GB). "
    )
    return chunk, why


# ---------------------------------------------------------------- checks of several settings


def check_model(model: str, method: str | Method) -> None:
    """Refuse unknown names, and a method that cannot minimise the loss of the model.

    Parameters
    ----------
    model : "ls", "pm" or "sapm".
    method : "auto", the name of a method, or a method.
    """
    choose("model", model, MODELS)
    if isinstance(method, Method):
        check_pair(model, method)
        return
    if not isinstance(method, str):
        raise TypeError(
            f"method={brief(method)} must be one of {', '.join(METHOD_NAMES)}, or a method object "
            "such as sapm.GaussNewton(); a method of your own inherits from sapm.Method."
        )
    choose("method", method, METHOD_NAMES)
    if method != "auto":
        check_pair(model, METHODS[method])


def check_separable(problem: Problem, model: str, method: Method) -> None:
    """Refuse PM and SAPM for problems for which they have no loss."""
    if method.true_loss_from_start(model):
        return
    if what := unseparable(problem):
        expected = (
            "one unknown function with derivatives up to order 2"
            if isinstance(problem, PDE)
            else "squares"
        )
        raise ValueError(
            f"model={model!r} by method={method.name!r}: got {what}, expected {expected}; use "
            "model='ls' or method='auto'."
        )


def unseparable(problem: Problem) -> str:
    """What keeps PM and SAPM from separating the layers; "" if they can."""
    if isinstance(problem, PDE):
        return problem.unsupported_by_penalties
    return "" if getattr(problem, "squared", True) else "a loss that is not the square"


def check_activation(settings: Settings) -> None:
    """Refuse an activation whose second derivative vanishes for an equation of second order."""
    problem = settings.problem
    if not isinstance(problem, PDE):
        return
    sigma = settings.sigma
    x = jnp.linspace(-3.0, 3.0, 60)
    if problem.order > 1 and not np.any(np.asarray(sigma.curve(x, *sigma.pair(x)))):
        raise ValueError(
            f"activation={sigma.name!r} has second derivative 0 almost everywhere, so it cannot "
            "solve an equation of second order; use 'sin' or 'tanh'."
        )


def check_redrawing(plan: Plan, problem: Problem, max_iter: int | None) -> None:
    """Refuse points drawn anew, and stages of time, for problems and methods without them.

    Parameters
    ----------
    plan, problem : the settings and the problem of the run.
    max_iter : as the user gave it; None is the default.
    """
    evolves = isinstance(problem, PDE) and problem.supports_stages
    if plan.stages and not (plan.resample and evolves):
        raise ValueError(
            f"stages: got {plan.stages}, expected none, or a nonlinear PDE with an Initial "
            "condition and no unknown numbers, whose points are drawn anew (resample); leave "
            "stages out."
        )
    steps = plan.stages * STAGE_VISITS * plan.resample
    if plan.stages > MOST_STAGES or (steps and max_iter is not None and max_iter <= steps):
        raise ValueError(
            f"stages: got {plan.stages}, expected at most {MOST_STAGES}, and max_iter above "
            f"{steps}, since so many steps may be spent on a part of the time interval; give fewer "
            "stages or a larger max_iter."
        )
    if plan.resample and not (isinstance(problem, PDE) and plan.true_loss_from_start):
        raise ValueError(
            f"resample: got {plan.resample}, expected 0, or a PDE that is trained on the true "
            "loss; use model='ls' or lifted=0, or leave resample out."
        )


def check_one_device(divided: bool, streamed: bool) -> None:
    """Refuse several devices for data that are streamed from disk.

    Parameters
    ----------
    divided : whether there are several devices.
    streamed : whether data are on disk.
    """
    if divided and streamed:
        raise ValueError(
            "devices: got several devices or processes for data on disk, expected one; leave "
            "devices= (--devices, --processes) out."
        )


# ---------------------------------------------------------------- checks of one setting


def check_problem(problem: object) -> None:
    """Refuse an object that is not a problem."""
    if isinstance(problem, PROBLEMS):
        return
    by_name = (
        f" A problem is solved by its name on the command line: sapm run {shown(problem)}."
        if isinstance(problem, str)
        else ""
    )
    raise TypeError(
        f"problem: got {brief(problem)}, expected a sapm.PDE, sapm.Function or sapm.Regression; "
        f"give one of these.{by_name}"
    )


def check_callback(on_record: Any) -> None:
    """Refuse an `on_record` that cannot be called."""
    if on_record is not None and not callable(on_record):
        raise TypeError(
            f"on_record: got {brief(on_record)}, expected a function; give one that takes a "
            "Progress and may return True to stop the run."
        )


def check_elementwise(sigma: Activation) -> None:
    """Refuse an activation of the user's own that does not map arrays to finite arrays of the same
    shape and type.
    """
    if sigma.source is None:
        return
    x = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)
    try:
        value, slope = (jnp.asarray(a) for a in sigma.pair(x))
        valid = value.shape == slope.shape == x.shape and value.dtype == slope.dtype == x.dtype
        valid = valid and bool(jnp.all(jnp.isfinite(value)) & jnp.all(jnp.isfinite(slope)))
    except NEEDS_NUMBERS:
        raise ValueError(
            f"activation={brief(sigma.name)} uses NumPy or `if` on its argument; write it with "
            "jax.numpy."
        ) from None
    except (TypeError, ValueError, AttributeError):
        valid = False
    if not valid:
        raise ValueError(
            f"activation={brief(sigma.name)} must be an elementwise JAX function: an array of real "
            "numbers to one of the same shape, all finite, such as jnp.tanh."
        )


def iterations(value: Any) -> int:
    """The number of iterations, `max_iter`, as an int."""
    return integer("max_iter", value, 0, most=LARGEST_COUNT)


def width(value: Any, depth: int) -> int | tuple[int, ...]:
    """The units of the hidden layers: a number for all, or depth - 1 numbers."""
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != depth - 1:
            raise ValueError(
                f"width: got {len(value)} numbers, {brief(list(value))}, expected {depth - 1}, the "
                f"hidden layers of depth={depth}; give one for each, or one number for all."
            )
        return tuple(integer("width", units, most=MOST_UNITS) for units in value)
    return integer("width", value, most=MOST_UNITS)


def seeds(value: Any) -> tuple[int, ...]:
    """The numbers of the seeds: 0, …, n - 1 for a number n, or the numbers of a list."""
    if isinstance(value, (np.ndarray, jax.Array)) and isinstance(value.dtype, np.dtype):
        value = value.tolist()
    if not isinstance(value, Iterable) or isinstance(value, (str, jax.Array)):
        return tuple(range(integer("seeds", value, most=MOST_SEEDS)))
    numbers = [integer("seed", seed, 0) for seed in islice(value, MOST_SEEDS + 1)]
    if len(numbers) > MOST_SEEDS:
        raise ValueError(
            f"seeds: got more than {MOST_SEEDS} numbers, expected at most {MOST_SEEDS}; give fewer."
        )
    if max(numbers, default=0) >= 2**32:
        raise ValueError(
            f"seeds: got {max(numbers)}, expected numbers below 2**32; give smaller ones."
        )
    if not numbers:
        raise ValueError(
            "seeds: got none, expected at least one; give how many (seeds=10) or which ones "
            "(seeds=[3, 4])."
        )
    if len(set(numbers)) != len(numbers):
        raise ValueError(
            f"seeds: got {brief(numbers)}, expected different numbers, since each gives one "
            "network; leave the repeated ones out."
        )
    return tuple(numbers)


def key(value: Any) -> int:
    """The key that all random numbers follow from, as an int."""
    if isinstance(value, (jax.Array, np.random.Generator, np.random.RandomState)):
        raise TypeError(
            f"key: got {brief(value)}, expected a whole number, from which sapm makes its own "
            "keys; give one such as key=0."
        )
    if integer("key", value, 0) > LARGEST_COUNT:
        raise ValueError(f"key={brief(value)} is too large; give a number below 2**63.")
    return int(value)


def per_layer(name: str, value: Any, depth: int) -> PerLayer:
    """Positive weights: one number for all layers, or a tuple with a number for each.

    Parameters
    ----------
    name : "alpha", which has a weight for each of the `depth` layers, or "beta", which has none for
        the last layer.
    """
    try:
        a = np.asarray(value, dtype=object if isinstance(value, str) else None)
    except (ValueError, OverflowError):  # nested lists of different lengths
        a = np.asarray(None)
    length = depth if name == "alpha" else depth - 1
    numbers = a.dtype.kind in "iuf" and a.shape in ((), (length,))
    if not numbers or not (np.all(a > 0) and np.all(np.isfinite(a))):
        raise ValueError(
            f"{name}={brief(value)} must be a positive, finite number, or {length} of them (one "
            "per layer)."
        )
    weights = a.astype(float).tolist()
    return tuple(weights) if isinstance(weights, list) else weights


def point_count(name: str, value: Any, least: int = 1) -> int:
    """The number of points: the value itself, or the length of an array (n, d) of points.

    Parameters
    ----------
    name : what a message calls them.
    value : what the user gave.
    least : the smallest number that is allowed.
    """
    try:
        return integer(name, value, least) if isinstance(value, (str, bytes)) else len(value)
    except TypeError:
        if hasattr(value, "shape"):
            check_readable(name, value)
        return integer(name, value, least)


def number_of(points: Any) -> int | None:
    """A number of points as an int; None for an array of points, which the samples hold."""
    return int(points) if isinstance(points, (int, np.integer)) else None


# ---------------------------------------------------------------- advice on the settings


def warn_of_doubts(
    problem: Problem, sigma: Activation, plan: Plan, model: str
) -> tuple[Advice, ...]:
    """Warn of all advice, and return it with that of the problem itself (`PDE.ill_posed`).

    It is repeated wherever the run is shown.
    """
    items = doubts(problem, sigma, plan, model)
    for item in items if first_process() else ():
        warn(item.sentence)
    if isinstance(problem, PDE) and problem.ill_posed:
        items = [Advice(AdviceKind.STATEMENT, problem.ill_posed), *items]
    return tuple(items)


def doubts(problem: Problem, sigma: Activation, plan: Plan, model: str) -> list[Advice]:
    """All advice on the settings and on the problem."""
    items = []
    if model == "pm" and plan.true_loss_from_start and plan.why and not plan.from_network:
        joint = isinstance(problem, PDE) and bool(problem.unsupported_by_penalties)
        hint = "" if joint else "; for PM's own loss give method='gauss-newton' or 'alternating'"
        sentence = f"model='pm' with method='auto' is trained on the true loss{hint}."
        items.append(Advice(AdviceKind.STATEMENT, sentence))
    if isinstance(problem, PDE):
        items += advice(problem, sigma)
    return items
