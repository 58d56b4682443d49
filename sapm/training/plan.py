"""A run as it was planned: every setting resolved, checked and typed (`Plan`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sapm.errors import (
    boolean,
    brief,
    check_fields,
    checked,
    count,
    json_safe,
    one_of,
    optional,
    positive,
    text,
)
from sapm.methods.engine import Engine
from sapm.methods.method import Alternating, GaussNewton, Method
from sapm.numerics.activations import Activation
from sapm.numerics.network import INITIALISERS, Network
from sapm.objective.penalty import MODELS, STARTS, objective
from sapm.objective.terms import directional
from sapm.problem.samples import Samples, Scaling, scaling_of
from sapm.scopes import float64

MOST_LAYERS = 10**4
MOST_UNITS = 10**6
MOST_SEEDS = 10**6

PerLayer = float | tuple[float, ...]


def _width(name: str, value: Any) -> int | tuple[int, ...]:
    """Units of every hidden layer: a number, or one for each."""
    check = count(most=MOST_UNITS)
    if isinstance(value, (list, tuple)):
        return tuple(check(name, units) for units in value)
    return check(name, value)


def _seeds(name: str, value: Any) -> tuple[int, ...]:
    """The numbers of the seeds, all different."""
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(f"{name}={brief(value)} must be a list of seed numbers.")
    check = count(0, 2**32 - 1)
    return tuple(check("a seed number", seed) for seed in value)


def _per_layer(name: str, value: Any) -> PerLayer:
    """A positive number, or one for every layer."""
    if isinstance(value, (list, tuple)):
        return tuple(positive(name, weight) for weight in value)
    return positive(name, value)


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """All settings of a run, resolved and checked: what `Settings` leaves open is decided here.

    Parameters
    ----------
    problem : the name of the problem's class.
    depth, width : layers, and units in each hidden one.
    activation : the activation.
    points, boundary_points, test_points : numbers of points; None for points that were given, and
        for those of training after they were drawn anew.
    model : "ls", "pm" or "sapm".
    method : the record of the method with its options.
    max_iter, max_seconds : the budget of iterations and of time.
    seeds, key : seed s draws from fold_in(key, s).
    init, start : initial weights and initial auxiliary variables.
    mu : the weight of the boundary term; None without one.
    alpha, beta : fixed weights of tangents and of values.
    why : what method="auto" stands for, and why, in a sentence; "" if the user chose the method.
    retry : whether a run that ends in no solution is tried again, in stages of time.
    from_network : whether training starts at a given network.
    """

    problem: str = checked(text)
    depth: int = checked(count(2, MOST_LAYERS))
    width: int | tuple[int, ...] = checked(_width)
    activation: Activation
    points: int | None = checked(optional(count(0)))
    boundary_points: int | None = checked(optional(count(0)))
    test_points: int | None = checked(optional(count(0)))
    model: str = checked(one_of(MODELS))
    method: Method
    max_iter: int = checked(count(0))
    max_seconds: float | None = checked(optional(positive))
    seeds: tuple[int, ...] = checked(_seeds)
    key: int = checked(count(0))
    init: str = checked(one_of(tuple(INITIALISERS)))
    start: str = checked(one_of(STARTS))
    mu: float | None = checked(optional(positive))
    alpha: float | tuple[float, ...] = checked(_per_layer)
    beta: float | tuple[float, ...] = checked(_per_layer)
    why: str = checked(text, "")
    retry: bool = checked(boolean, False)
    from_network: bool = checked(boolean, False)

    def check(self) -> Plan:
        """The plan with every field checked, for one that was read from a file: `Settings` has
        checked all others.
        """
        check_fields(self)
        for name, value, length in (
            ("width", self.width, self.depth - 1),
            ("alpha", self.alpha, self.depth),
            ("beta", self.beta, self.depth - 1),
        ):
            if isinstance(value, tuple) and len(value) != length:
                raise ValueError(
                    f"{name}={brief(list(value))} has {len(value)} numbers; depth={self.depth} "
                    f"needs {length}."
                )
        return self

    # ---------------------------------------------------------------- decisions

    @property
    def hidden(self) -> tuple[int, ...]:
        """Units of every hidden layer."""
        return hidden_units(self.width, self.depth)

    def scaling(self, samples: Samples) -> Scaling:
        """The units of training."""
        return scaling_of(samples, self.method.scale)

    @property
    def true_loss_from_start(self) -> bool:
        """Whether the true loss is minimised from the first step on (no auxiliary variables)."""
        return self.method.true_loss_from_start(self.model)

    @property
    def resample(self) -> int:
        """Steps after which points are drawn anew; 0: never."""
        return self.method.resample if isinstance(self.method, GaussNewton) else 0

    @property
    def stages(self) -> int:
        """Doublings of the time interval that is trained on; 0: all of it from the start."""
        return self.method.stages if isinstance(self.method, GaussNewton) else 0

    @property
    def chunk(self) -> int | None:
        """Samples in memory at a time; None: all of them."""
        return self.method.chunk if isinstance(self.method, Alternating) else None

    def with_stages(self, stages: int) -> Plan:
        """The plan with so many doublings of the time interval."""
        if not isinstance(self.method, GaussNewton):
            raise TypeError(f"stages are for Gauss-Newton; the method is {self.method.name}.")
        return replace(self, method=replace(self.method, stages=stages))

    @float64
    def engine(self, samples: Samples) -> Engine:
        """The engine of the method for the problem at these points, in the units of training."""
        scaling = self.scaling(samples)
        terms = [scaling.term(term) for term in samples.terms]
        if getattr(self.method, "directional", False):
            terms = [directional(term) for term in terms]
        # PM and SAPM need terms whose defects are known by layer; of others there is the true loss
        model = self.model if all(term.known for term in terms) else "ls"
        # a tuple would mean a weight for each term
        weights: dict[str, Any] = {
            "alpha": np.asarray(self.alpha),
            "beta": np.asarray(self.beta),
        }
        l2 = self.method.l2 * scaling.size**2
        loss = objective(terms, self.depth, model, **weights, l2=l2)
        if samples.parameters:
            guesses = np.array(list(samples.parameters.values()))
            loss = replace(loss, constants=jnp.asarray(guesses / samples.units))
        widths = (samples.terms[0].x.value.shape[1], *self.hidden, samples.outputs)
        method = self.method.in_units(scaling.size**2 * scaling.stiffness, self.activation)
        return method.engine(loss, widths, self.activation, self.init, self.start)

    # ---------------------------------------------------------------- as JSON

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON has it: the content of config.json."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        named["activation"] = self.activation.name
        named["method"] = self.method.name
        named["options"] = self.method.options
        named["choice"] = named.pop("why")
        for name in ("retry", "from_network"):
            if not named[name]:
                del named[name]
        return json_safe(named)

    @staticmethod
    def from_dict(config: Mapping[str, Any], sigma: Activation, method: Method) -> Plan:
        """The plan that `to_dict` described; entries that are no settings are ignored."""
        entries = {"problem": "", "choice": "", "retry": False, "from_network": False} | dict(
            config
        )
        entries |= {"activation": sigma, "method": method, "why": entries["choice"]}
        names = [each.name for each in fields(Plan)]
        if lacking := [name for name in names if name not in entries]:
            raise ValueError(f"the settings lack {lacking[0]}.")
        return Plan(**{name: entries[name] for name in names}).check()


def hidden_units(width: int | Sequence[int], depth: int) -> tuple[int, ...]:
    """Units of every hidden layer, from a number for all or one for each."""
    return (width,) * (depth - 1) if isinstance(width, int) else tuple(width)


@float64
def states_at(engine: Engine, networks: Sequence[Sequence[tuple]], sigma: Activation) -> Any:
    """States of the engine, a row for every network.

    networks : for each, its weights [(W, b), …] in the units of training; W (out, in), b (out,).
        Inputs of the engine beyond those of W are padding.
    """
    known = engine.objective.constants
    constants = 0 if known is None else len(known)
    states = []
    for weights in networks:
        (W, b), *others = ((jnp.asarray(W), jnp.asarray(b)) for W, b in weights)
        wide = jnp.pad(W, ((0, 0), (0, engine.widths[0] - W.shape[1])))
        states.append(_begin(engine, Network.of([(wide, b), *others], sigma, constants)))
    return jax.tree.map(lambda *x: jnp.stack(x), *states)


@jax.jit
def _begin(engine: Engine, network: Network):
    return engine.begin(network)
