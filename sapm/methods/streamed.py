"""Algorithm 1 over samples that do not fit into memory: what a chunk of samples adds to a pass, and
what the sums over all chunks are solved for.

A sweep W_L, b_L, a_{L-1}, W_{L-1}, b_{L-1}, …, a_1, W_1, b_1 takes one pass for every layer:

- The pass of layer l > 0 needs, of a chunk, a_{l-1}, a_l, a_{l+1} (or x, y at the ends) and the
  step lengths of a_l (`layer_chunk`). It steps a_l, and adds up the normal equations of W_l and b_l
  and the squared defects of layer l+1, which are final for this sweep. `solve_layer` then has W_l
  and b_l.
- The pass of layer 0 closes a sweep (`closing_chunk`, `close_sweep`). It adds up the true loss, the
  squared defects of layer 1, and the normal equations of W_L and b_L, with which the next sweep
  begins.

The updates are those of `sapm.methods.closed_forms`, on windows that hold one chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from sapm.methods import closed_forms
from sapm.methods.engine import WithoutPhases
from sapm.methods.window import Pane, Window, prepare, put_row
from sapm.numerics.activations import Activation
from sapm.numerics.jets import Jet
from sapm.numerics.layers import Dense
from sapm.numerics.lstsq import VMAP_SEEDS_AXIS, Normal
from sapm.numerics.network import Network, Stack, initialise, require_dense
from sapm.objective.operators import Value
from sapm.objective.penalty import (
    Norms,
    Objective,
    Point,
    check_widths,
    mean_square,
    sizes,
    start_point,
    weigh,
)
from sapm.objective.terms import Term
from sapm.scopes import float64


class Swept(eqx.Module):
    """The state of a seed between two passes.

    Parameters
    ----------
    network, loss, mean_squared_loss : after its last whole sweep.
    ahead, norms : the network that the next sweep is changing, and its norms.
    due : the layer of the next pass.
    files : files[l-1] is the number of the file with a_l.

    `due` and `files` are the same for all seeds.
    """

    network: Network
    loss: Float[Array, ""]
    mean_squared_loss: Float[Array, ""]
    ahead: Network
    norms: Norms
    due: Int[Array, ""]
    files: Int[Array, " L-1"]


class StreamedEngine(WithoutPhases):
    """The paper's sweeps for one value term whose samples are on disk.

    It has no `step`: `sapm.training.streaming`, which has the samples, makes the passes of a sweep.

    Parameters
    ----------
    objective : its term has a few samples, in place of all.
    widths, sigma : the layer widths m_0 … m_L and the activation.
    joint : whether W_l and b_l are solved for together.
    guard : the least share of ‖W_l‖² that an update of W_l keeps.
    initialiser, start : how weights and auxiliary variables are drawn.
    """

    objective: Objective
    widths: tuple[int, ...] = eqx.field(static=True)
    sigma: Activation = eqx.field(static=True)
    joint: bool = eqx.field(static=True)
    guard: float = eqx.field(static=True)
    initialiser: str = eqx.field(static=True)
    start: str = eqx.field(static=True)

    def init(self, key) -> Swept:
        k_weights, _ = jax.random.split(key)
        return self.begin(initialise(k_weights, self.widths, self.sigma, self.initialiser))

    def begin(self, network: Network) -> Swept:
        """The state at a given network before auxiliary variables are drawn. Its losses are NaN."""
        require_dense(network, "sweeps")
        network = network.unstacked()
        L = self.objective.depth
        zeros = jnp.zeros(L)
        s = jnp.stack([jnp.sum(layer.W**2) for layer in network.stack.layers()])
        norms = Norms(s, (zeros,), (zeros,), (jnp.zeros((L, 0)),), (jnp.zeros(()),), (None,))
        unknown = jnp.full((), jnp.nan)
        due = jnp.zeros((), int)
        return Swept(network, unknown, unknown, network, norms, due, jnp.arange(L - 1))

    def losses(self, state: Swept) -> tuple[Array, Array]:
        return state.loss, state.mean_squared_loss

    def network(self, state: Swept) -> Network:
        return state.network

    def point(self, state: Swept) -> None:
        """The auxiliary variables are on disk, not in the state."""
        return None


@float64
def streamed(
    obj: Objective,
    widths: Sequence[int],
    sigma: Activation,
    joint: bool = False,
    guard: float = 0.0,
    init: str = "paper",
    start: str = "uniform",
) -> StreamedEngine:
    """The engine of sweeps in passes over chunks.

    Parameters
    ----------
    obj, widths, sigma, joint, guard, init, start : see `alternating`.
    """
    check_widths(obj, widths)
    guard = guard if obj.adaptive else 0.0
    return StreamedEngine(obj, tuple(widths), sigma, joint, guard, init, start)


# ---------------------------------------------------------------- one chunk, all seeds


class Sums(eqx.Module):
    """What a pass adds up over chunks.

    Parameters
    ----------
    rows : the normal equations of W_l and b_l (pass of layer 0: of W_L and b_L).
    v : the squared defects of layer l+1.
    true : the true loss (pass of layer 0, otherwise 0).
    """

    rows: Normal
    v: Float[Array, ""]
    true: Float[Array, ""]


def _jet(value: Array) -> Jet:
    """A jet without tangents."""
    return Jet(value, jnp.zeros((len(value), 0, value.shape[-1])))


def _minus(jet: Jet, value: Array) -> Jet:
    return Jet(jet.value - value, jet.tangents)


def _objective_of(engine: StreamedEngine, x: Array, y: Array, weight: Array) -> Objective:
    """The objective of a chunk: inputs, targets, and the weight of every sample."""
    term = Term(_jet(x), y, Value(), weight)
    return replace(engine.objective, terms=(term,))


@partial(jax.jit, static_argnames="first")
def layer_chunk(  # noqa: PLR0913
    engine: StreamedEngine,
    layer: Dense,
    above: Dense,
    norms: Norms,
    l,
    below,
    own,
    lengths,
    goal,
    weight,
    first: bool,
) -> tuple[Array, Array, Sums]:
    """A chunk of n samples in the pass of layer l > 0: a_l after its step, its step lengths, and
    what the chunk adds to the sums.

    Parameters
    ----------
    engine : the engine.
    layer, above, norms : layers l and l+1 and the norms, of all seeds.
    l : the number of the layer.
    below : a_{l-1} (seeds, n, m); x (n, m) if this is the `first` layer.
    own, lengths : a_l (seeds, n, m) and its step lengths (seeds, n).
    goal : a_{l+1} (seeds, n, m), or y (n, m).
    weight : the weights of the samples (n,).
    first : whether l = 1.
    """
    sigma = engine.sigma

    def of_seed(layer, above, norms, below, own, length, goal):
        empty = jnp.zeros((len(own), 0))
        obj = _objective_of(engine, empty, empty, weight)
        z = _jet(below if first else sigma(below))
        lifted = sigma.pair(own)
        pane = Pane(
            z=z,
            u=_jet(own),
            lifted=lifted,
            r=_minus(layer(z), own),
            goal=_jet(goal),
            upper=_minus(above(_jet(lifted[0])), goal),
            length=length,
        )
        window = closed_forms.update_a(obj, Window(layer, above, (pane,), norms, sigma), l)
        (pane,) = window.panes
        assert pane.upper is not None
        v, _ = sizes(obj.terms[0], pane.upper)
        rows = closed_forms.rows(obj, window, l, "Wb")
        return pane.u.value, pane.length, Sums(rows, v, jnp.zeros(()))

    axes = (0, 0, 0, None if first else 0, 0, 0, None if goal.ndim == 2 else 0)
    over_seeds = jax.vmap(of_seed, axes, axis_name=VMAP_SEEDS_AXIS)
    return over_seeds(layer, above, norms, below, own, lengths, goal)


@jax.jit
def closing_chunk(
    engine: StreamedEngine, network: Network, norms: Norms, x, y, weight, lowest, highest
) -> Sums:
    """What a chunk of n samples adds to the sums in the pass of layer 0.

    Parameters
    ----------
    engine : the engine.
    network, norms : the network that the sweep has changed and its norms, of all seeds.
    x, y, weight : (n, d), (n, outputs) and (n,), the samples and their weights.
    lowest, highest : (seeds, n, m), a_1 and a_{L-1}.
    """
    obj = _objective_of(engine, x, y, weight)
    L = engine.objective.depth

    def of_seed(network, norms, lowest, highest):
        layer = network.stack[L]
        z = _jet(engine.sigma(highest))
        r = _minus(layer(z), y)
        pane = Pane(z=z, u=_jet(y), lifted=None, r=r, goal=None, upper=None, length=weight)
        window = Window(layer, None, (pane,), norms, engine.sigma)
        v, _ = sizes(obj.terms[0], _minus(network.stack[1](_jet(x)), lowest))
        return Sums(closed_forms.rows(obj, window, L, "Wb"), v, mean_square(network, obj.terms))

    return jax.vmap(of_seed, axis_name=VMAP_SEEDS_AXIS)(network, norms, lowest, highest)


@jax.jit
def draw_chunk(engine: StreamedEngine, network: Network, keys, c, x, y, weight) -> list[Array]:
    """a_1 … a_{L-1} of a chunk to start from, by the rule of the engine.

    Parameters
    ----------
    engine : the engine, for its `start`.
    network : of all seeds.
    keys : (seeds,), the random keys.
    c : the number of the chunk.
    x, y, weight : (n, d), (n, outputs) and (n,), the samples and their weights.
    """
    obj = _objective_of(engine, x, y, weight)

    def of_seed(network, key):
        _, k_start = jax.random.split(key)
        point = start_point(jax.random.fold_in(k_start, c), obj, network, engine.start)
        return [u.value for u in point.aux[0].layers()[:-1]]

    return jax.vmap(of_seed)(network, keys)


@jax.jit
def measure_chunk(
    engine: StreamedEngine, network: Network, values: list[Array], x, y, weight
) -> Float[Array, "seeds L"]:
    """The squared defects of all layers, of one chunk.

    Parameters
    ----------
    engine : the engine.
    network : of all seeds.
    values : a_1 … a_{L-1}, each (seeds, n, m).
    x, y, weight : (n, d), (n, outputs) and (n,), the samples and their weights.
    """
    obj = _objective_of(engine, x, y, weight)

    def of_seed(network, values):
        top = Jet(jnp.zeros((len(x), 0)), jnp.zeros((len(x), 0, y.shape[1])))
        aux = Stack.of([*map(_jet, values), top], network.stack.run)
        return prepare(obj, Point(network, (aux,))).norms.v[0]

    return jax.vmap(of_seed)(network, values)


# ---------------------------------------------------------------- after a pass, all seeds


def _with_defects(norms: Norms, l, v: Array) -> Norms:
    """The norms with the squared defects of layer l."""
    return replace(norms, v=(put_row(norms.v[0], l, v),))


@jax.jit
def solve_layer(
    engine: StreamedEngine, layer: Dense, norms: Norms, l, sums: Sums
) -> tuple[Dense, Norms]:
    """After the pass of layer l > 0: W_l and b_l, and the norms with their ‖W_l‖².

    Parameters
    ----------
    engine : the engine.
    layer, norms : layer l and the norms before, of all seeds.
    l : the number of the layer.
    sums : those of all chunks.
    """

    def of_seed(layer, norms, sums):
        norms = _with_defects(norms, l + 1, sums.v)
        return closed_forms.solve(
            engine.objective, layer, norms, l, sums.rows, engine.joint, engine.guard
        )

    return jax.vmap(of_seed, axis_name=VMAP_SEEDS_AXIS)(layer, norms, sums)


@jax.jit
def close_sweep(engine: StreamedEngine, states: Swept, sums: Sums) -> Swept:
    """After the pass of layer 0: the network of the sweep with its losses; W_L and b_L of the next
    one.

    Parameters
    ----------
    engine : the engine.
    states : of all seeds, before the sweep ends.
    sums : those of all chunks.
    """
    obj = engine.objective
    L = obj.depth

    def of_seed(state, sums):
        norms = _with_defects(state.norms, 1, sums.v)
        layer, after = closed_forms.solve(
            obj, state.ahead.stack[L], norms, L, sums.rows, engine.joint, engine.guard
        )
        return replace(
            state,
            network=state.ahead,
            loss=weigh(obj, norms),
            mean_squared_loss=sums.true,
            ahead=replace(state.ahead, stack=state.ahead.stack.set(L, layer)),
            norms=after,
            due=jnp.full_like(state.due, L - 1),
        )

    return jax.vmap(of_seed, axis_name=VMAP_SEEDS_AXIS)(states, sums)
