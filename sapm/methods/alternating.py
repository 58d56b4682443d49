"""The paper's alternating sweeps. A sweep is data: a list of (block, layer) pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from sapm import sweeps
from sapm.blocks import BLOCKS, update, update_run
from sapm.jet import Activation, activation, float64
from sapm.methods.method import OnePhase
from sapm.network import Network, initialise
from sapm.objective import Objective, Point, check_widths, mean_square, penalty, start_point
from sapm.work import Work, actual_loss, point_of, prepare, rounded

Order = tuple[tuple[str, int], ...]
PRECISIONS = ("double", "mixed")


def algorithm_1(depth: int) -> Order:
    """Regression: W_L, b_L, then downwards a_l, W_l, b_l."""
    return ("W", depth), ("b", depth), *((block, l) for l in range(depth - 1, 0, -1) for block in ("a", "W", "b"))


def algorithm_2(depth: int) -> Order:
    """PINN: W_L, b_L, d_L, then downwards W_l, b_l, d_l, a_l (interior, then boundary)."""
    return tuple((block, l) for l in range(depth, 0, -1) for block in ("W", "b", "d", "a") if (block, l) != ("a", depth))


def general_order(depth: int, second: bool) -> Order:
    """Algorithm 2 for any term: the second-order channels, if there are any, before the tangents."""
    blocks = ("W", "b", "S", "d", "a") if second else ("W", "b", "d", "a")
    return tuple((block, l) for l in range(depth, 0, -1) for block in blocks if l < depth or block not in ("S", "a"))


def _segments(order: Order, run: tuple[int, int]) -> list[tuple[int, int, int, tuple[str, ...]]]:
    """The sweep as (first layer, number of layers, direction, blocks): one loop where neighbouring layers look alike."""
    groups: list[tuple[int, tuple[str, ...]]] = []
    for block, l in order:
        if groups and groups[-1][0] == l:
            groups[-1] = (l, (*groups[-1][1], block))
        else:
            groups.append((l, (block,)))
    inside = lambda l: run[0] <= l < run[1]  # noqa: E731
    segments: list[tuple[int, int, int, tuple[str, ...]]] = []
    for l, blocks in groups:
        if segments and inside(l):
            first, count, direction, same = segments[-1]
            step = l - (first + (count - 1) * direction)
            if inside(first) and blocks == same and abs(step) == 1 and (count == 1 or step == direction):
                segments[-1] = (first, count + 1, step, same)
                continue
        segments.append((l, 1, 1, blocks))
    return segments


def sweep(obj: Objective, work: Work, order: Order) -> Work:
    """Run the block updates in order."""
    for first, count, direction, blocks in _segments(order, work.network.stack.run):
        if count == 1:
            work = update(obj, work, first, *blocks)
        else:
            lowest, highest = sorted((first, first + (count - 1) * direction))
            work = update_run(obj, work, lowest, highest, direction < 0, blocks)
    return work


class Alternating(OnePhase):
    """Minimise PM's or SAPM's loss by sweeps of block updates, on a state that is a `Work` (`General`: a point).

    `loop` compiles one program for all equal layers; inputs narrower than the first layer are then padded with zeros, so
    that layer 1 is one of them. Otherwise every layer is compiled apart, which runs faster and compiles slower.
    """

    objective: Objective
    widths: tuple[int, ...] = eqx.field(static=True)
    sigma: Activation = eqx.field(static=True)
    order: Order = eqx.field(static=True)
    weights: str = eqx.field(static=True, default="paper")
    start: str = eqx.field(static=True, default="uniform")
    loop: bool = eqx.field(static=True, default=True)
    precision: str = eqx.field(static=True, default="double")

    def init(self, key) -> Any:
        k_weights, k_start = jax.random.split(key)
        return self._at(
            k_start, initialise(k_weights, self.widths, self.sigma, self.weights, self.objective.constants), self.start
        )

    def begin(self, network: Network) -> Any:
        """The state at a given network, with the auxiliary variables of its forward pass."""
        return self._at(jax.random.key(0), network, "forward")

    def _at(self, key, network: Network, start: str) -> Any:
        network = network.widen_input(self.objective.terms[0].x.value.shape[1]) if self.loop else network.unstacked()
        work = prepare(self.objective, start_point(key, self.objective, network, start))
        return work if self.precision == "double" else rounded(self.objective, work, jnp.float32)

    def step(self, state) -> Any:
        return sweep(self.objective, state, self.order)

    def losses(self, state):
        return actual_loss(self.objective, state), mean_square(state.network, self.objective.terms)

    def network(self, state) -> Network:
        return state.network.narrow_input(self.widths[0])

    def point(self, state) -> Point:
        return point_of(state)

    def blocks(self) -> list[tuple[str, Callable]]:
        def one(block, l):
            return f"block {block} of layer {l}", lambda work: update(self.objective, work, l, block)

        return [one(block, l) for block, l in self.order]


class General(Alternating):
    """The same for terms of any kind, by the plain blocks of `sapm.sweeps`; a state is a point."""

    @property
    def seed_bytes(self) -> int:
        widest = max(self.widths)
        channels = [1 + term.channels for term in self.objective.terms]
        return max(16 * len(t.y) * (k * widest) ** 2 for t, k in zip(self.objective.terms, channels, strict=True))

    def _at(self, key, network: Network, start: str) -> Point:
        return start_point(key, self.objective, network.unstacked(), start)

    def step(self, state) -> Point:
        for block, l in self.order:
            state = sweeps.update(self.objective, state, l, block)
        return state

    def losses(self, state):
        return penalty(self.objective, state), mean_square(state.network, self.objective.terms)

    def point(self, state) -> Point:
        return state

    def blocks(self) -> list[tuple[str, Callable]]:
        def one(block, l):
            return f"block {block} of layer {l}", lambda point: sweeps.update(self.objective, point, l, block)

        return [one(block, l) for block, l in self.order]


@float64
def alternating(
    obj: Objective,
    widths: Sequence[int],
    sigma: str | Activation,
    order: Order | None = None,
    init: str = "paper",
    start: str = "uniform",
    joint: bool = False,
    shared: bool = False,
    loop: bool | None = None,
    precision: str = "double",
) -> Alternating:
    """The paper's method for this objective: Algorithm 2 if it has a PDE term, Algorithm 1 otherwise.

    PDE terms with ψ itself, second derivatives or a nonlinear function have sweeps of their own (`General`).
    `joint` solves W_l and b_l together instead of one after the other; `shared` steps all a_l of
    a term by one length instead of a length for each sample. `loop`: see `Alternating`; by default as measured to be faster.
    `precision`: "double", or "mixed": samples, and what is computed for each of them, in float32; weights, the systems they are
    solved from and the losses in float64.
    """
    if obj.model not in ("pm", "sapm"):
        raise ValueError(f"the alternating method separates layers, so it needs model 'pm' or 'sapm', not {obj.model!r}.")
    sigma = activation(sigma)
    check_widths(obj, widths)
    plain = all(term.separable for term in obj.terms)
    known = tuple(BLOCKS) if plain else sweeps.BLOCKS
    if shared and not plain:
        raise ValueError("shared=True is for value terms and first-order linear equations without ψ itself; leave it out.")
    if order is None:
        order = (algorithm_2 if any(term.is_pde for term in obj.terms) else algorithm_1)(obj.depth)
        if not plain:
            order = general_order(obj.depth, any(term.x.forms for term in obj.terms))
        if shared:
            order = tuple(("a-shared" if block == "a" else block, l) for block, l in order)
        if joint:
            order = tuple(("Wb" if block == "W" else block, l) for block, l in order if block != "b")
    wrong = [
        (block, l)
        for block, l in order
        if block not in known or not 1 <= l <= obj.depth or (block.startswith(("a", "S")) and l == obj.depth)
    ]
    if wrong:
        raise ValueError(f"order has {wrong[0]}; blocks are {', '.join(known)}, at layers 1..{obj.depth} (a: below {obj.depth}).")
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is not known; use one of {', '.join(PRECISIONS)}.")
    if precision == "mixed" and not plain:
        raise ValueError("precision='mixed' is for value terms and first-order linear equations without ψ itself; leave it out.")
    if not plain:
        return General(obj, tuple(widths), sigma, tuple(order), init, start, False)
    pde = any(term.is_pde for term in obj.terms)
    if loop is None:
        loop = obj.depth > (3 if pde else 12)  # measured: below, apart is 15-30 % faster; PDE programs are too long for it
    if loop and widths[0] < widths[1]:
        obj = replace(obj, terms=tuple(term.widen_input(widths[1]) for term in obj.terms))
    if precision == "mixed":
        obj = replace(obj, terms=tuple(jax.tree.map(lambda x: x.astype(jnp.float32) if x.ndim else x, t) for t in obj.terms))
    return Alternating(obj, tuple(widths), sigma, tuple(order), init, start, loop, precision)
