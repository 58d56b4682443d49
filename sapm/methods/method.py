"""A method is a frozen record of options (`Method`), which makes an engine (`Engine`).

The records of the library, and what method="auto" stands for (`automatic`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from sapm.errors import (
    boolean,
    brief,
    by_name,
    check_fields,
    checked,
    choose,
    count,
    json_safe,
    nearest,
    non_negative,
    number,
    one_of,
    optional,
    positive,
)
from sapm.methods.alternating import ORDERS, PRECISIONS, alternating
from sapm.methods.descent import ADAM_RATE, RATE_HALVING_STEPS, descent
from sapm.methods.engine import Engine, WithoutPhases
from sapm.methods.gauss_newton import (
    ALGEBRA,
    choose_algebra,
    count_weights,
    flops,
    gauss_newton,
    start_damping,
)
from sapm.methods.streamed import streamed
from sapm.methods.then import ThenEngine
from sapm.numerics.activations import Activation
from sapm.numerics.network import LOOKS_LINEAR, Network, initialise
from sapm.objective.penalty import MODELS, Objective, mean_square


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """How a loss is minimised: a frozen record whose fields are the options of the method.

    A method of your own is a frozen dataclass that inherits from this class, has a `name` and
    implements `engine`. It is passed as `sapm.solve(problem, method=MyMethod(…))`.

    Parameters, which all methods share
    -----------------------------------
    record_every : iterations between two records of the history; by default a grid that gets
        coarser.
    stall, patience : a seed stops when its best loss has fallen by less than the fraction `stall`
        over the last `patience` iterations.
    survivors : how many seeds are left at the end; the others are dropped on the way (successive
        halving). By default all.
    l2 : the weight of Σ_l ‖W_l‖² in the loss.
    scale : whether to train in units in which inputs and outputs are of size 1.

    Class attributes
    ----------------
    name : how the method is called in tables, files and `solve(method="…")`.
    models : the losses it can minimise, of "ls", "pm", "sapm".
    """

    record_every: int | None = checked(optional(count()), None)
    stall: float = checked(non_negative, 1e-9)
    patience: int = checked(count(), 1000)
    survivors: int | None = checked(optional(count()), None)
    l2: float = checked(non_negative, 0.0)
    scale: bool = checked(boolean, True)

    name: ClassVar[str]
    models: ClassVar[tuple[str, ...]] = MODELS

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def engine(
        self,
        objective: Objective,
        widths: Sequence[int],
        sigma: Activation,
        init: str,
        start: str,
    ) -> Engine:
        """The functions that run the steps on one objective.

        Parameters
        ----------
        objective : the terms of the problem (points, operator, data) with the loss: "ls", "pm" or
            "sapm".
        widths : (m_0, …, m_L), the units of every layer from the inputs to the outputs.
        sigma : the activation.
        init, start : how the initial weights and the auxiliary variables are drawn.
        """

    def in_units(self, unit: float, sigma: Activation) -> Method:
        """The method for an objective in the units of training.

        Parameters
        ----------
        unit : the factor by which JᵀJ, J the Jacobian of the residual, is larger there.
        sigma : the activation.
        """
        return self

    def default_init(self, kind: str, sigma: Activation, widths: Sequence[int]) -> str:
        """The initial weights that suit the method.

        Parameters
        ----------
        kind : "pde" or "regression".
        sigma : the activation.
        widths : (m_0, …, m_L), the units of every layer.
        """
        return "xavier" if sigma.smooth else "he"

    def default_start(self, kind: str) -> str:
        """The initial auxiliary variables: the paper's U(-1, 1), and for a PDE those of the forward
        pass, since sweeps on PDEs collapse from random ones.

        Parameters
        ----------
        kind : "pde" or "regression".
        """
        return "forward" if kind == "pde" else "uniform"

    def default_iterations(self, kind: str, sigma: Activation) -> int:
        """The number of iterations where none is asked for.

        Parameters
        ----------
        kind : "pde" or "regression".
        sigma : the activation.
        """
        return 1000 if kind == "pde" else 2000

    def true_loss_from_start(self, model: str) -> bool:
        """Whether the true loss is minimised from the first step on (no auxiliary variables).

        Parameters
        ----------
        model : "ls", "pm" or "sapm".
        """
        return model == "ls"

    @property
    def options(self) -> dict[str, Any]:
        """The fields as a dictionary."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def _share(name: str, value: Any) -> float:
    """A number at least 0 and below 1."""
    share = non_negative(name, value)
    if share >= 1:
        raise ValueError(f"{name}: got {brief(value)}, expected a share below 1; 0 is none.")
    return share


# ---------------------------------------------------------------- the methods of the library

LEARNING_RATE_NAMES = ("lr", "learning_rate", "step_size", "eta")
# hints for `by_name`
NO_LEARNING_RATE: dict[str, str] = dict.fromkeys(
    LEARNING_RATE_NAMES, " No learning rate has to be chosen."
)
HAS_LEARNING_RATE: dict[str, str] = dict.fromkeys(
    LEARNING_RATE_NAMES, " Did you mean 'learning_rate'?"
)
GAUSS_NEWTON_STEPS = 100  # by default
GAUSS_NEWTON_STEPS_NOT_SMOOTH = 200  # with an activation whose derivative has jumps


@by_name(hints=NO_LEARNING_RATE)
@dataclass(frozen=True, kw_only=True)
class GaussNewton(Method):
    """Gauss-Newton with damping on the true loss, or first on a penalty loss whose auxiliary
    variables are eliminated.

    Parameters, in addition to those of `Method`
    --------------------------------------------
    lifted : steps on the penalty loss, before those on the true loss; by default all of them for
        the models "pm" and "sapm". 0: the true loss from the start.
    damping : ν of the first step, for data of size 1.
    algebra : how a step is solved: "primal" (a matrix of weights × weights), "dual" or "dense"
        (samples × samples, without or with the Jacobian), "free" (conjugate gradients, without a
        matrix). By default the one with the fewest operations.
    bend : whether a step follows the second derivative of the residual along it. It has no effect
        if σ' is not continuous, or for losses other than squares.
    directional : whether a PDE term is differentiated along its own direction only, where it has
        one at every point.
    resample : draw points anew after so many steps, where the residual is large; 0: never.
    stages : doublings of the time interval on which a nonlinear initial-value problem is trained.
    """

    stall: float = checked(non_negative, 1e-2)
    patience: int = checked(count(), 50)
    lifted: int | None = checked(optional(count(0)), None)
    damping: float | None = checked(optional(positive), None)
    algebra: str | None = checked(optional(one_of(ALGEBRA)), None)
    bend: bool = checked(boolean, True)
    directional: bool = checked(boolean, True)
    resample: int = checked(count(0), 0)
    stages: int = checked(count(0), 0)

    name: ClassVar[str] = "gauss-newton"

    def engine(
        self,
        objective: Objective,
        widths: Sequence[int],
        sigma: Activation,
        init: str,
        start: str,
    ) -> Engine:
        return gauss_newton(
            objective,
            widths,
            sigma,
            lifted=self.lifted,
            damping=self.damping,
            algebra=self.algebra,
            init=init,
            start=start,
            bend=self.bend,
        )

    def in_units(self, unit: float, sigma: Activation) -> GaussNewton:
        return replace(self, damping=(self.damping or start_damping(sigma)) * unit)

    def default_init(self, kind: str, sigma: Activation, widths: Sequence[int]) -> str:
        if sigma.smooth:
            return "orthogonal" if kind == "regression" else "he"
        # units in pairs (h, -h) pass half as many directions as units
        paired = sigma.name in LOOKS_LINEAR and min(widths[1:-1]) >= 2 * widths[0]
        return "looks-linear" if paired else "he"

    def default_start(self, kind: str) -> str:
        return "uniform"

    def default_iterations(self, kind: str, sigma: Activation) -> int:
        return GAUSS_NEWTON_STEPS if sigma.smooth else GAUSS_NEWTON_STEPS_NOT_SMOOTH

    def true_loss_from_start(self, model: str) -> bool:
        return model == "ls" or self.lifted == 0


MOST_BLOCKS = 10**5  # of a sweep: each is compiled


def _order(name: str, value: Any) -> str | tuple[tuple[str, int], ...]:
    """The blocks of a sweep as pairs (block, layer), or the name of a sweep."""
    if isinstance(value, str):
        return choose(name, value, ORDERS)
    if isinstance(value, (tuple, list)) and len(value) > MOST_BLOCKS:
        raise ValueError(f"{name} has {len(value)} entries; it must have at most {MOST_BLOCKS}.")
    pairs = isinstance(value, (tuple, list)) and all(
        isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in value
    )
    if (
        not value
        or not pairs
        or not all(isinstance(block, str) and number(layer) % 1 == 0 for block, layer in value)
    ):
        raise ValueError(
            f"{name}={brief(value)} must be one of {', '.join(ORDERS)}, or a list of pairs such as "
            "('W', 3): a block and a layer."
        )
    return tuple((block, int(layer)) for block, layer in value)


GUARD = 0.9  # the guard of the default sweep (docs/reproduction.md has the measurements)
WHOLE_SAMPLE_OPTIONS = ("shared", "order", "polish_after")


def whole_sample_option(options: Mapping[str, Any]) -> str:
    """The first of these options of `Alternating` that needs all samples at once; "" without any.

    Parameters
    ----------
    options : by name; others than `WHOLE_SAMPLE_OPTIONS` are ignored.
    """
    for name in WHOLE_SAMPLE_OPTIONS:
        if options.get(name) and (name, options[name]) != ("order", "down"):
            return name
    return ""


@by_name(hints=NO_LEARNING_RATE)
@dataclass(frozen=True, kw_only=True)
class Alternating(Method):
    """The paper's sweeps: the blocks W_l, b_l and a_l are updated one after the other.

    Parameters, in addition to those of `Method`
    --------------------------------------------
    joint : solve for W_l and b_l together.
    shared : one step length for all samples of a_l.
    order : "down", the paper's sweep from the last layer to the first; "up", from the first to the
        last; "up-then-down", both as one iteration; or the blocks of a sweep, such as
        [("W", 3), ("b", 3), ("a", 2), …]. By default "down" with a guard.
    guard : the least share of ‖W_l‖² that one update of W_l keeps, for SAPM; 0: none. By default
        0.9, and none if an order is given: "down" is then the printed algorithm. Without a guard
        the first sweep down from random auxiliary variables can shrink all layers to 0
        (docs/reproduction.md).
    polish_after : sweeps after which L-BFGS on the true loss takes over.
    directional : see `GaussNewton`.
    chunk : samples in memory at a time; the others stay on disk.
    precision : "double", or "mixed": what is computed for every sample in float32.
    """

    scale: bool = checked(boolean, False)
    joint: bool = checked(boolean, False)
    shared: bool = checked(boolean, False)
    order: str | tuple[tuple[str, int], ...] | None = checked(optional(_order), None)
    guard: float | None = checked(optional(_share), None)
    polish_after: int | None = checked(optional(count()), None)
    directional: bool = checked(boolean, False)
    chunk: int | None = checked(optional(count()), None)
    precision: str = checked(one_of(PRECISIONS), "double")

    name: ClassVar[str] = "alternating"
    models: ClassVar[tuple[str, ...]] = ("pm", "sapm")

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.order is not None and not isinstance(self.order, str)
        if given and (self.joint or self.shared):
            raise ValueError(
                "order: got joint or shared as well, expected order alone; in order, 'Wb' is "
                "joint, 'a-shared' is shared."
            )
        if self.precision == "mixed":
            for name in ("chunk", "polish_after"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"precision='mixed' and {name}, which works in float64, exclude each "
                        "other; leave one of them out."
                    )
        if self.chunk is not None and self.needs_all_samples:
            raise ValueError(
                f"chunk and {self.needs_all_samples}, which needs all samples at once, exclude "
                "each other; leave one of them out."
            )

    @property
    def needs_all_samples(self) -> str:
        """The first option that sweeps over chunks of samples do not have; "" without any."""
        return whole_sample_option({name: getattr(self, name) for name in WHOLE_SAMPLE_OPTIONS})

    @property
    def resolved_guard(self) -> float:
        """The guard where none is given: that of the default sweep, and none for a given order."""
        if self.guard is not None:
            return self.guard
        return GUARD if self.order is None else 0.0

    def engine(
        self,
        objective: Objective,
        widths: Sequence[int],
        sigma: Activation,
        init: str,
        start: str,
    ) -> Engine:
        if self.chunk is not None:
            guard = self.resolved_guard
            return streamed(objective, widths, sigma, self.joint, guard, init=init, start=start)
        polished = self.polish_after is not None
        sweeps = alternating(
            objective,
            widths,
            sigma,
            "down" if self.order is None else self.order,
            self.resolved_guard,
            init=init,
            start=start,
            joint=self.joint,
            shared=self.shared,
            precision=self.precision,
            # of few sweeps, a short compilation counts for more than their speed
            loop=True if polished else None,
        )
        if not polished:
            return sweeps
        true_loss = replace(objective, model="ls")
        polish = descent(true_loss, widths, sigma, "lbfgs", 1.0, 1.0, init=init)
        return ThenEngine(sweeps, polish, jnp.asarray(self.polish_after))

    def default_init(self, kind: str, sigma: Activation, widths: Sequence[int]) -> str:
        return "paper"


@dataclass(frozen=True, kw_only=True)
class _Descent(Method):
    """The engine of the methods of descent (`sapm.methods.descent`)."""

    def engine(
        self,
        objective: Objective,
        widths: Sequence[int],
        sigma: Activation,
        init: str,
        start: str,
    ) -> Engine:
        rate = getattr(self, "learning_rate", 1.0)
        halving = getattr(self, "halving", 1.0)
        return descent(objective, widths, sigma, self.name, rate, halving, init=init, start=start)


@by_name(hints=HAS_LEARNING_RATE)
@dataclass(frozen=True, kw_only=True)
class GradientDescent(_Descent):
    """Plain gradient descent on the true loss, the paper's baseline.

    Parameters, in addition to those of `Method`
    --------------------------------------------
    learning_rate : the first one.
    halving : iterations in which it halves.
    """

    scale: bool = checked(boolean, False)
    learning_rate: float = checked(positive, 0.1)
    halving: float = checked(positive, RATE_HALVING_STEPS)

    name: ClassVar[str] = "gd"
    models: ClassVar[tuple[str, ...]] = ("ls",)

    def default_init(self, kind: str, sigma: Activation, widths: Sequence[int]) -> str:
        return "paper"


@by_name(hints=HAS_LEARNING_RATE)
@dataclass(frozen=True, kw_only=True)
class Adam(_Descent):
    """Adam on the network, and for "pm" and "sapm" on the auxiliary variables at once.

    Parameters, in addition to those of `Method`
    --------------------------------------------
    learning_rate : the first one.
    halving : iterations in which it halves.
    """

    learning_rate: float = checked(positive, ADAM_RATE)
    halving: float = checked(positive, RATE_HALVING_STEPS)

    name: ClassVar[str] = "adam"


@by_name(hints=NO_LEARNING_RATE)
@dataclass(frozen=True, kw_only=True)
class LBFGS(_Descent):
    """L-BFGS with a line search, on the same variables as `Adam`."""

    name: ClassVar[str] = "lbfgs"


METHODS: dict[str, type[Method]] = {
    kind.name: kind for kind in (Alternating, GaussNewton, GradientDescent, Adam, LBFGS)
}
METHOD_NAMES = ("auto", *METHODS)


def with_options(
    kind: type[Method], options: Mapping[str, Any] | None = None, automatic: bool = False
) -> Method:
    """The method with these options as its fields.

    Parameters
    ----------
    kind : the class of the method.
    options : values of fields by name; the other fields have their defaults.
    automatic : whether "auto" chose the method, which a message about an unknown option then says.
    """
    known = [each.name for each in fields(kind)]
    for name in options or {}:
        if name not in known:
            called = f"{kind.name} (what 'auto' stands for here)" if automatic else kind.name
            raise ValueError(
                f"options has {brief(name)}, which {called} does not know; it has "
                f"{', '.join(known)}."
                + nearest("learning_rate" if name in LEARNING_RATE_NAMES else name, known)
            )
    return kind(**(options or {}))


def stored_method(
    name: str, options: Mapping[str, Any], own: bool, given: Method | None = None
) -> Method:
    """The method that a file names.

    Parameters
    ----------
    name, options : as they are in the file.
    own : whether the method was one of the user's own.
    given : the user's own method. Without it, a `StoredMethod` stands in, which gives the networks
        of the file and cannot train.
    """
    if not own:
        if name == Alternating.name:
            options = {"guard": 0.0} | dict(options)  # files without a guard are older than it
        return with_options(METHODS[choose("method", name, tuple(METHODS))], options)
    if given is not None:
        return given
    known = {each.name for each in fields(StoredMethod)} - {"name", "stored"}
    shared = {key: value for key, value in options.items() if key in known}
    return StoredMethod(name=name, stored=dict(options), **shared)


def check_same_method(given: Method, name: str, options: Mapping[str, Any]) -> None:
    """Refuse a method that is not the one of a file. An option that is None fits any value of the
    file, since it stands for the default.

    Parameters
    ----------
    given : the method.
    name, options : as they are in the file.
    """
    if given.name != name:
        raise ValueError(
            f"the method of the file is {brief(name)}, not {given.name!r}; give that one."
        )
    for option, value in given.options.items():
        stored = options.get(option)
        if value is not None and json_safe(value) != stored:
            raise ValueError(
                f"method={name!r}: got {option}={brief(value)}, expected {brief(stored)} as in the "
                "file; give the options of that run."
            )


@dataclass(frozen=True, kw_only=True)
class StoredMethod(Method):
    """A method of the user's own as a file knows it: by its name and its options."""

    name: str = ""  # type: ignore[misc]
    stored: dict[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        return self.stored

    def engine(
        self,
        objective: Objective,
        widths: Sequence[int],
        sigma: Activation,
        init: str,
        start: str,
    ) -> Engine:
        return StoredEngine(objective, tuple(widths), sigma, init)


class StoredEngine(WithoutPhases):
    """An engine whose state is a network, and which takes no steps."""

    objective: Objective
    widths: tuple[int, ...] = eqx.field(static=True)
    sigma: Activation = eqx.field(static=True)
    initialiser: str = eqx.field(static=True)

    def init(self, key) -> Network:
        constants = self.objective.constants
        return initialise(key, self.widths, self.sigma, self.initialiser, constants)

    def begin(self, network: Network) -> Network:
        return network

    def losses(self, state: Network) -> tuple[Array, Array]:
        true_loss = mean_square(state, self.objective.terms)
        return true_loss, true_loss

    def network(self, state: Network) -> Network:
        return state


def check_pair(model: str, method: Method | type[Method]) -> None:
    """Refuse a method that cannot minimise the loss of a model.

    Parameters
    ----------
    model : "ls", "pm" or "sapm".
    method : the method, or its class.
    """
    if model in method.models:
        return
    if method.name == "alternating":
        raise ValueError(
            f"model={model!r} has no auxiliary variables, so method='alternating' cannot train it; "
            "use 'gauss-newton', 'lbfgs', 'adam' or 'gd'."
        )
    if method.name == "gd":
        raise ValueError(
            f"method='gd' is the paper's baseline for model='ls'; for model={model!r} use "
            "'gauss-newton', 'alternating', 'adam' or 'lbfgs'."
        )
    known = [name for name in MODELS if name in method.models]
    raise ValueError(
        f"method={method.name!r} does not train model={model!r}; use one of {', '.join(known)}."
    )


# ---------------------------------------------------------------- what method="auto" stands for

# floating-point operations of a Gauss-Newton step, up to which "auto" takes it
LARGEST_STEP_FLOPS_CPU = 2e11
LARGEST_STEP_FLOPS_GPU = 4e12
POLISH_AFTER_SWEEPS = 20  # then "auto" continues with L-BFGS on the true loss
# "auto" takes so many steps on the penalty loss first, with this β, up to this depth
LIFTED_STEPS = 15
LIFTED_BETA = 10.0
LIFTED_DEPTH = 20
ALGEBRA_IN_WORDS = {
    "dense": "a step is solved from the Jacobian itself",
    "primal": "a step is solved from a matrix of the weights",
    "dual": "a step is solved from a matrix of the samples",
    "free": "a step is solved by conjugate gradients",
}


class Choice(NamedTuple):
    """The name of a method, the options that "auto" sets, and the reason in a sentence."""

    method: str
    options: dict[str, Any]
    why: str


def affordable(rows: int, tangents: int, widths: Sequence[int]) -> bool:
    """Whether a Gauss-Newton step is short enough for "auto" to take it.

    Parameters
    ----------
    rows, tangents, widths : see `automatic`.
    """
    on_cpu = jax.default_backend() == "cpu"
    limit = LARGEST_STEP_FLOPS_CPU if on_cpu else LARGEST_STEP_FLOPS_GPU
    return _step_flops(rows, tangents, widths) <= limit


def _step_flops(rows: int, tangents: int, widths: Sequence[int]) -> float:
    """Infinite if no matrix of a step fits into memory."""
    return flops(rows, tangents, widths).get(choose_algebra(rows, tangents, widths), float("inf"))


def automatic(  # noqa: PLR0913
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
) -> Choice:
    """The method that "auto" stands for.

    Parameters
    ----------
    model, kind, sigma : "ls", "pm" or "sapm"; "pde" or "regression"; the activation.
    rows : samples times outputs.
    tangents : derivative channels of all samples.
    widths : (m_0, …, m_L), the units of every layer.
    held_out : whether validation data end the training.
    from_network : whether training starts at a given network; the steps that prepare a random one
        are then left out.
    separable : whether the paper's own sweeps apply to the problem.
    resample : steps after which Gauss-Newton draws points anew; 0: never.
    algebra : how a Gauss-Newton step is solved, if the user asked for it.
    """
    if not held_out and affordable(rows, tangents, widths):
        lifted = LIFTED_STEPS if _lifting_pays(model, kind, sigma, widths, from_network) else 0
        known = isinstance(algebra, str) and algebra in ALGEBRA_IN_WORDS  # else refused later
        matrix = ALGEBRA_IN_WORDS[algebra if known else choose_algebra(rows, tangents, widths)]
        first = f"{lifted} steps on the {model.upper()} loss (β = {LIFTED_BETA:g}), then "
        first = first if lifted else ""
        redrawn = f"; where the residual is large, points are drawn anew every {resample} steps"
        redrawn = redrawn if resample else ""
        counts = f"{rows} samples, {count_weights(widths)} weights"
        why = f"Gauss-Newton: {first}on the true loss{redrawn}; {counts}: {matrix}. "
        options = {"lifted": lifted} | ({"resample": resample} if resample else {})
        return Choice("gauss-newton", options, why)
    operations = _step_flops(rows, tangents, widths)
    if held_out:
        reason = "held-out data end the training"
    elif operations < float("inf"):
        reason = f"a Gauss-Newton step would take {operations:.0e} operations"
    else:
        reason = "no matrix of a step fits into memory"
    if model == "ls" or not separable or held_out:
        # sweeps before L-BFGS would collapse: on even functions, and with a penalty on most
        return Choice("lbfgs", {}, f"L-BFGS on the true loss, since {reason}. ")
    if kind == "pde":
        return Choice("alternating", {"scale": True}, f"Sweeps, since {reason}. ")
    first = "" if from_network else f"{POLISH_AFTER_SWEEPS} sweeps, then "
    options = {"polish_after": POLISH_AFTER_SWEEPS, "scale": True}
    return Choice("alternating", options, f"{first}L-BFGS on the true loss, since {reason}. ")


def _lifting_pays(
    model: str, kind: str, sigma: Activation, widths: Sequence[int], from_network: bool
) -> bool:
    """Whether steps on the penalty loss prepare a random network well, as measured."""
    return (
        model != "ls"
        and kind == "regression"
        and sigma.smooth
        and len(widths) - 1 <= LIFTED_DEPTH
        and not from_network
    )
