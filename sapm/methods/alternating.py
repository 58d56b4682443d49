"""The paper's alternating method: sweeps of block updates. A sweep is given as a tuple of pairs
(block, layer), in the order of the updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp

from sapm.methods import blocks, closed_forms, window
from sapm.methods.engine import OnePhase
from sapm.methods.window import Update, Work, point_of, prepare, rounded
from sapm.numerics.activations import Activation, activation
from sapm.numerics.network import Network, initialise, require_dense
from sapm.objective.penalty import (
    Objective,
    Point,
    check_widths,
    mean_square,
    start_point,
    weigh,
)
from sapm.scopes import float64

Order = tuple[tuple[str, int], ...]
PRECISIONS = ("double", "mixed")

# Up to these depths, a program with separate code for every layer runs 15-30 % faster than a loop
# over equal layers. For deeper networks, above all for PDEs, it takes too long to compile.
LAYERS_APART = 12
LAYERS_APART_PDE = 3


# ---------------------------------------------------------------- orders


def algorithm_1(depth: int) -> Order:
    """The sweep of Algorithm 1, for regression: W_L, b_L, then downwards a_l, W_l, b_l."""
    return (
        ("W", depth),
        ("b", depth),
        *((block, l) for l in range(depth - 1, 0, -1) for block in ("a", "W", "b")),
    )


def algorithm_2(depth: int) -> Order:
    """The sweep of Algorithm 2, for PDEs: W_L, b_L, d_L, then downwards W_l, b_l, d_l, a_l. The
    update of a_l is that of the interior points, then that of the boundary points.
    """
    return tuple(
        (block, l)
        for l in range(depth, 0, -1)
        for block in ("W", "b", "d", "a")
        if (block, l) != ("a", depth)
    )


def general_order(depth: int, second: bool) -> Order:
    """The sweep of Algorithm 2 for terms of any kind.

    Parameters
    ----------
    depth : the number of layers L.
    second : whether terms have second-order channels S_l, which are updated before d_l.
    """
    names = ("W", "b", "S", "d", "a") if second else ("W", "b", "d", "a")
    return tuple(
        (block, l)
        for l in range(depth, 0, -1)
        for block in names
        if l < depth or block not in ("S", "a")
    )


ORDERS = ("down", "up", "up-then-down")
UPWARD_BLOCKS = ("S", "d", "a", "W", "b")  # of a layer: its jets, and then its weights


def named_order(obj: Objective, name: str, joint: bool = False, shared: bool = False) -> Order:
    """A sweep by its name, for the terms of an objective.

    "down" is the sweep of the paper's algorithm. "up" updates the layers from 1 to L, and the jets
    of a layer before its weights. "up-then-down" is one after the other, as one iteration.

    Parameters
    ----------
    obj : the objective.
    name : one of `ORDERS`.
    joint : whether the block "Wb" replaces "W" and "b".
    shared : whether the block "a-shared" replaces "a".
    """
    if not has_closed_forms(obj):
        down = general_order(obj.depth, any(term.x.forms for term in obj.terms))
    elif any(term.is_pde for term in obj.terms):
        down = algorithm_2(obj.depth)
    else:
        down = algorithm_1(obj.depth)
    up = tuple(
        (block, l) for l in range(1, obj.depth + 1) for block in UPWARD_BLOCKS if (block, l) in down
    )
    order = {"down": down, "up": up, "up-then-down": up + down}[name]
    if shared:
        order = tuple(("a-shared" if block == "a" else block, l) for block, l in order)
    if joint:
        order = tuple(("Wb" if block == "W" else block, l) for block, l in order if block != "b")
    return order


def _check_order(obj: Objective, order: Order) -> None:
    known = tuple((closed_forms if has_closed_forms(obj) else blocks).UPDATES)
    for block, l in order:
        below_top = block.startswith(("a", "S"))
        if block not in known or not 1 <= l <= obj.depth or (below_top and l == obj.depth):
            raise ValueError(
                f"order: got {(block, l)}, expected blocks {', '.join(known)}, at layers "
                f"1..{obj.depth} (a: below {obj.depth}); change that pair."
            )


# ---------------------------------------------------------------- sweeps


def has_closed_forms(obj: Objective) -> bool:
    """Whether closed forms of the block updates exist for all terms. They exist for the value ψ,
    and for linear equations in the first derivatives of ψ alone.
    """
    return all(term.separable for term in obj.terms)


def updates(obj: Objective, names: Sequence[str], guard: float = 0.0) -> list[Update]:
    """The updates of the blocks with these names: in closed form if `has_closed_forms`, otherwise
    by automatic differentiation.

    Parameters
    ----------
    obj : the objective.
    names : of the blocks.
    guard : the least share of ‖W_l‖² that an update of W_l keeps.
    """
    return (closed_forms if has_closed_forms(obj) else blocks).updates(names, guard)


def update(obj: Objective, work: Work, l: int, *names: str, guard: float = 0.0) -> Work:
    """Update blocks of one layer, one after the other.

    Parameters
    ----------
    obj, work : the objective, and the point with what belongs to it.
    l : the layer.
    names : of the blocks.
    guard : see `updates`.
    """
    return window.update(obj, work, l, updates(obj, names, guard))


def _segments(order: Order, run: tuple[int, int]) -> list[tuple[int, int, int, tuple[str, ...]]]:
    """The sweep as a list of (first layer, number of layers, direction, blocks).

    Successive layers of the run p..q below its last layer q form one entry, if they have the same
    blocks. Its direction is 1 upwards, -1 downwards. Every other layer has its own entry.
    """
    groups: list[tuple[int, tuple[str, ...]]] = []
    for block, l in order:
        if groups and groups[-1][0] == l:
            groups[-1] = (l, (*groups[-1][1], block))
        else:
            groups.append((l, (block,)))

    def inside(l):
        return run[0] <= l < run[1]

    segments: list[tuple[int, int, int, tuple[str, ...]]] = []
    for l, names in groups:
        if segments and inside(l):
            first, count, direction, same = segments[-1]
            step = l - (first + (count - 1) * direction)
            if (
                inside(first)
                and names == same
                and abs(step) == 1
                and (count == 1 or step == direction)
            ):
                segments[-1] = (first, count + 1, step, same)
                continue
        segments.append((l, 1, 1, names))
    return segments


def sweep(obj: Objective, work: Work, order: Order, guard: float = 0.0) -> Work:
    """Make block updates in order. Equal layers with the same updates share a compiled loop.

    Parameters
    ----------
    obj, work : the objective, and the point with what belongs to it.
    order : pairs (block, layer).
    guard : see `updates`.
    """
    for first, count, direction, names in _segments(order, work.network.stack.run):
        if count == 1:
            work = update(obj, work, first, *names, guard=guard)
        else:
            lowest, highest = sorted((first, first + (count - 1) * direction))
            run = updates(obj, names, guard)
            work = window.update_run(obj, work, lowest, highest, direction < 0, run)
    return work


class AlternatingEngine(OnePhase):
    """Minimise PM's or SAPM's loss by sweeps of block updates.

    Parameters
    ----------
    objective : the terms and the model, "pm" or "sapm".
    widths, sigma : the layer widths m_0 … m_L and the activation.
    order : the sweep.
    guard : the least share of ‖W_l‖² that an update of W_l keeps; 0: none.
    initialiser, start : the initialisers of weights and of auxiliary variables.
    loop : whether equal layers share one compiled loop. Narrow inputs are then padded with zeros to
        the width of the first layer, so that layer 1 is in the loop too. Otherwise every layer has
        its own code.
    precision : "double"; or "mixed": all quantities of single samples are in float32.

    A state is a `Work`, which holds all that a sweep needs, so that nothing is computed twice. For
    terms without closed forms it is a `Point`, and every sweep computes the `Work` from it: this
    takes little time compared with the block updates.
    """

    objective: Objective
    widths: tuple[int, ...] = eqx.field(static=True)
    sigma: Activation = eqx.field(static=True)
    order: Order = eqx.field(static=True)
    guard: float = eqx.field(static=True)
    initialiser: str = eqx.field(static=True)
    start: str = eqx.field(static=True)
    loop: bool = eqx.field(static=True)
    precision: str = eqx.field(static=True)

    @property
    def seed_bytes(self) -> int:
        if has_closed_forms(self.objective):
            return super().seed_bytes
        widest = max(self.widths)  # a matrix for every sample
        return max(
            16 * len(term.y) * ((1 + term.channels) * widest) ** 2 for term in self.objective.terms
        )

    def init(self, key) -> Work | Point:
        k_weights, k_start = jax.random.split(key)
        constants = self.objective.constants
        network = initialise(k_weights, self.widths, self.sigma, self.initialiser, constants)
        return self._state_at(k_start, network, self.start)

    def begin(self, network: Network) -> Work | Point:
        """The state at a given network, with the auxiliary variables of its forward pass."""
        require_dense(network, "sweeps")
        return self._state_at(jax.random.key(0), network, "forward")

    def _state_at(self, key, network: Network, start: str) -> Work | Point:
        if self.loop:
            network = network.widen_input(self.objective.terms[0].x.value.shape[1])
        else:
            network = network.unstacked()
        point = start_point(key, self.objective, network, start)
        if not has_closed_forms(self.objective):
            return point
        work = prepare(self.objective, point)
        return work if self.precision == "double" else rounded(self.objective, work, jnp.float32)

    def _run(self, state: Work | Point, run: Callable[[Work], Work]) -> Work | Point:
        """The state after `run`, a function of the `Work` of the state."""
        if isinstance(state, Work):
            return run(state)
        return point_of(run(prepare(self.objective, state)))

    def step(self, state: Work | Point) -> Work | Point:
        """The state after one sweep."""
        return self._run(state, lambda work: sweep(self.objective, work, self.order, self.guard))

    def losses(self, state: Work | Point):
        work = state if isinstance(state, Work) else prepare(self.objective, state)
        terms = self.objective.terms
        return weigh(self.objective, work.norms), mean_square(state.network, terms)

    def network(self, state: Work | Point) -> Network:
        return state.network.narrow_input(self.widths[0])

    def point(self, state: Work | Point) -> Point:
        return point_of(state) if isinstance(state, Work) else state

    def blocks(self) -> list[tuple[str, Callable]]:
        def updated(state, block: str, l: int):
            return self._run(
                state, lambda work: update(self.objective, work, l, block, guard=self.guard)
            )

        return [
            (f"block {block} of layer {l}", partial(updated, block=block, l=l))
            for block, l in self.order
        ]


@float64
def alternating(  # noqa: PLR0913
    obj: Objective,
    widths: Sequence[int],
    sigma: str | Activation,
    order: str | Order = "down",
    guard: float = 0.0,
    init: str = "paper",
    start: str = "uniform",
    joint: bool = False,
    shared: bool = False,
    loop: bool | None = None,
    precision: str = "double",
) -> AlternatingEngine:
    """The paper's method for an objective: Algorithm 2 if it has a PDE term, otherwise Algorithm 1.

    Equations with ψ itself, with second derivatives or with a nonlinear function have no closed
    forms. Their sweep is `general_order`. The defaults of `order` and `guard` are the printed
    algorithms; those of `Alternating` are not.

    Parameters
    ----------
    obj : the objective, with model "pm" or "sapm".
    widths : (m_0, …, m_L), the units of every layer.
    sigma : the activation.
    order : one of `ORDERS`, or the sweep as pairs (block, layer).
    guard : the least share of ‖W_l‖² that an update of W_l keeps, under SAPM; 0: none. PM has no
        ridge, and needs no guard.
    init, start : the initialisers of weights and of auxiliary variables.
    joint : whether W_l and b_l are solved for together instead of one after the other.
    shared : whether all a_l of a term have one step length instead of one for each sample.
    loop : whether equal layers share one compiled loop; by default above the depths at which
        separate code was measured to be faster.
    precision : "double"; or "mixed": quantities of single samples are in float32; weights, their
        linear systems and the losses are in float64.
    """
    if obj.model not in ("pm", "sapm"):
        raise ValueError(
            "the alternating method separates layers: got model "
            f"{obj.model!r}, expected 'pm' or 'sapm'."
        )
    sigma = activation(sigma)
    check_widths(obj, widths)
    closed = has_closed_forms(obj)
    for setting, differs in (("shared=True", shared), ("precision='mixed'", precision == "mixed")):
        if differs and not closed:
            raise ValueError(
                f"{setting} is for value terms and first-order linear equations without ψ itself; "
                "leave it out."
            )
    order = named_order(obj, order, joint, shared) if isinstance(order, str) else tuple(order)
    _check_order(obj, order)
    guard = guard if obj.adaptive else 0.0
    steps = (order, guard, init, start)
    if not closed:
        return AlternatingEngine(obj, tuple(widths), sigma, *steps, False, precision)
    if loop is None:
        pde = any(term.is_pde for term in obj.terms)
        loop = obj.depth > (LAYERS_APART_PDE if pde else LAYERS_APART)
    terms = obj.terms
    if loop and widths[0] < widths[1]:
        terms = tuple(term.widen_input(widths[1]) for term in terms)
    if precision == "mixed":
        terms = jax.tree.map(lambda x: x.astype(jnp.float32) if x.ndim else x, terms)
    obj = replace(obj, terms=terms)
    return AlternatingEngine(obj, tuple(widths), sigma, *steps, loop, precision)
