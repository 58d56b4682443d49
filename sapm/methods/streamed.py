"""Algorithm 1 in passes over chunks of samples: what a chunk adds, and what the sums over all chunks are solved for.

The sweeps W_L, b_L, a_{L-1}, W_{L-1}, b_{L-1}, …, a_1, W_1, b_1 take one pass for every layer. Of a chunk, the pass of layer l
needs a_{l-1}, a_l, a_{l+1} (or x, y at the ends) and the step lengths of a_l. It steps a_l, and adds the rows of W_l and b_l and
the squared defects of layer l+1, which nothing changes before the next sweep. The pass of layer 0 closes a sweep: it measures
the network, and adds the rows of W_L and b_L, with which the next one begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from sapm import blocks
from sapm.jet import Activation, Jet, float64
from sapm.lstsq import SEEDS, Normal
from sapm.methods.method import OnePhase
from sapm.network import Dense, Network, Stack, initialise
from sapm.objective import Norms, Objective, Point, check_widths, mean_square, sizes, start_point, weigh
from sapm.term import Term
from sapm.work import Pane, Window, prepare, put_row


class Swept(eqx.Module):
    """A seed between two passes: the network after its last whole sweep with its losses, and how far the next one is.

    `due` is the layer of the next pass, and files[l-1] says which file holds a_l; both are the same for all seeds.
    """

    network: Network
    loss: Float[Array, ""]
    mean_squared_loss: Float[Array, ""]
    ahead: Network
    norms: Norms
    due: Int[Array, ""]
    files: Int[Array, " L-1"]


class Streamed(OnePhase):
    """The paper's sweeps for one value term whose samples are on disk; `objective.terms` has a few of them in their place."""

    objective: Objective
    widths: tuple[int, ...] = eqx.field(static=True)
    sigma: Activation = eqx.field(static=True)
    joint: bool = eqx.field(static=True, default=False)
    weights: str = eqx.field(static=True, default="paper")
    start: str = eqx.field(static=True, default="uniform")

    def init(self, key) -> Swept:
        k_weights, _ = jax.random.split(key)
        return self.begin(initialise(k_weights, self.widths, self.sigma, self.weights))

    def begin(self, network: Network) -> Swept:
        """Before the auxiliary variables are drawn: the losses are not known yet."""
        network, L = network.unstacked(), self.objective.depth
        zeros = jnp.zeros(L)
        s = jnp.stack([jnp.sum(layer.W**2) for layer in network.stack.layers()])
        norms = Norms(s, (zeros,), (zeros,), (jnp.zeros((L, 0)),), (jnp.zeros(()),), (None,))
        unknown = jnp.full((), jnp.nan)
        return Swept(network, unknown, unknown, network, norms, jnp.zeros((), int), jnp.arange(L - 1))

    def step(self, state) -> Any:
        raise TypeError("sweeps over data on disk go through sapm.stream, which has the samples.")

    def losses(self, state):
        return state.loss, state.mean_squared_loss

    def network(self, state) -> Network:
        return state.network

    def point(self, state) -> None:
        return None

    def blocks(self) -> list:
        return []


@float64
def streamed(
    obj: Objective, widths: Sequence[int], sigma: Activation, joint: bool = False, init: str = "paper", start: str = "uniform"
) -> Streamed:
    check_widths(obj, widths)
    return Streamed(obj, tuple(widths), sigma, joint, init, start)


# ---------------------------------------------------------------- one chunk, all seeds


class Sums(eqx.Module):
    """What a pass adds up: the rows of a layer, squared defects of the layer above (pass 0: of layer 1, and the true loss)."""

    rows: Normal
    v: Float[Array, ""]
    true: Float[Array, ""]


def _flat(value: Array) -> Jet:
    return Jet(value, jnp.zeros((len(value), 0, value.shape[-1])))


def _term(x: Array, y: Array, weight: Array) -> Term:
    return Term(_flat(x), y, jnp.zeros((len(y), 0)), weight)


def _minus(found: Jet, goal: Array) -> Jet:
    return Jet(found.value - goal, found.tangents)


@partial(jax.jit, static_argnames="first")
def a_chunk(method: Streamed, layer: Dense, above: Dense, norms: Norms, l, below, own, lengths, goal, weight, first: bool):
    """A chunk in the pass of layer l: (a_l, its step lengths, Sums). Without an axis for seeds: below = x (`first`), goal = y."""
    sigma = method.sigma

    def one(layer, above, norms, below, own, length, goal):
        empty = jnp.zeros((len(own), 0))
        obj = replace(method.objective, terms=(_term(empty, empty, weight),))
        z, lifted = _flat(below if first else sigma(below)), sigma.pair(own)
        r, upper = _minus(layer(z), own), _minus(above(_flat(lifted[0])), goal)
        pane = Pane(z, _flat(own), lifted, r, _flat(goal), upper, length)
        window = blocks.update_a(obj, Window(layer, above, (pane,), norms, sigma), l)
        (pane,) = window.panes
        v, _ = sizes(obj.terms[0], pane.upper)  # type: ignore[arg-type]
        return pane.u.value, pane.length, Sums(blocks.rows(obj, window, l, bias=True), v, jnp.zeros(()))

    axes = (0, 0, 0, None if first else 0, 0, 0, None if goal.ndim == 2 else 0)
    return jax.vmap(one, axes, axis_name=SEEDS)(layer, above, norms, below, own, lengths, goal)


@jax.jit
def top_chunk(method: Streamed, network: Network, norms: Norms, x, y, weight, lowest, highest) -> Sums:
    """A chunk in the pass of layer 0; `lowest` and `highest` are a_1 and a_{L-1}."""
    obj, L = replace(method.objective, terms=(_term(x, y, weight),)), method.objective.depth

    def one(network, norms, lowest, highest):
        layer, z = network.stack[L], _flat(method.sigma(highest))
        pane = Pane(z, _flat(y), None, _minus(layer(z), y), None, None, weight)
        rows = blocks.rows(obj, Window(layer, None, (pane,), norms, method.sigma), L, bias=True)
        v, _ = sizes(obj.terms[0], _minus(network.stack[1](_flat(x)), lowest))
        return Sums(rows, v, mean_square(network, obj.terms))

    return jax.vmap(one, axis_name=SEEDS)(network, norms, lowest, highest)


@jax.jit
def drawn_chunk(method: Streamed, network: Network, keys, c, x, y, weight) -> list[Array]:
    """a_1 … a_{L-1} of chunk c to start from, by the method's rule and the seeds' keys."""
    obj = replace(method.objective, terms=(_term(x, y, weight),))

    def one(network, key):
        _, k_start = jax.random.split(key)
        point = start_point(jax.random.fold_in(k_start, c), obj, network, method.start)
        return [u.value for u in point.aux[0].layers()[:-1]]

    return jax.vmap(one)(network, keys)


@jax.jit
def defects_chunk(method: Streamed, network: Network, values: list[Array], x, y, weight) -> Float[Array, "seeds L"]:
    """The squared defects v of all layers, of a chunk with these a_1 … a_{L-1}."""
    obj = replace(method.objective, terms=(_term(x, y, weight),))

    def one(network, values):
        top = Jet(jnp.zeros((len(x), 0)), jnp.zeros((len(x), 0, y.shape[1])))
        aux = Stack.of([*map(_flat, values), top], network.stack.run)
        return prepare(obj, Point(network, (aux,))).norms.v[0]

    return jax.vmap(one)(network, values)


# ---------------------------------------------------------------- after a pass, all seeds


def _put(v: tuple[Array, ...], l, row) -> tuple[Array, ...]:
    return (put_row(v[0], l, row),)


@jax.jit
def solve_layer(method: Streamed, layer: Dense, norms: Norms, l, sums: Sums) -> tuple[Dense, Norms]:
    """After the pass of layer l > 0: W_l and b_l."""

    def one(layer, norms, sums):
        norms = replace(norms, v=_put(norms.v, l + 1, sums.v))
        return blocks.solve(method.objective, layer, norms, l, sums.rows, method.joint)

    return jax.vmap(one, axis_name=SEEDS)(layer, norms, sums)


@jax.jit
def close_sweep(method: Streamed, state: Swept, sums: Sums) -> Swept:
    """After the pass of layer 0: the network with its losses, and W_L and b_L of the next sweep."""
    L = method.objective.depth

    def one(state, sums):
        norms = replace(state.norms, v=_put(state.norms.v, 1, sums.v))
        loss = weigh(method.objective, norms)
        layer, after = blocks.solve(method.objective, state.ahead.stack[L], norms, L, sums.rows, method.joint)
        ahead = replace(state.ahead, stack=state.ahead.stack.set(L, layer))
        due = jnp.full_like(state.due, L - 1)
        return replace(state, network=state.ahead, loss=loss, mean_squared_loss=sums.true, ahead=ahead, norms=after, due=due)

    return jax.vmap(one, axis_name=SEEDS)(state, sums)
