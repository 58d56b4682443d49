"""The state of a sweep, and the window of one layer that a block update acts on.

A `Work` is a point together with everything that the block updates would otherwise compute again:
activations, defects, and the norms that the loss is a function of. A block update is a function
(objective, `Window`, l) → `Window`. The window of layer l holds all that touches u_l, W_l and b_l.
`update` opens the window of a layer, runs the blocks on it, and writes it back; `update_run` does
so for a run of equal layers in one compiled loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from sapm.numerics import lstsq
from sapm.numerics.activations import Activation
from sapm.numerics.jets import Jet, lift
from sapm.numerics.layers import Dense
from sapm.numerics.network import Network, Stack
from sapm.objective.penalty import (
    Norms,
    Objective,
    Point,
    defects,
    norms,
    sizes,
    target,
)
from sapm.objective.terms import Term


class Part(eqx.Module):
    """One term's share of a `Work`, stacked by layer.

    Parameters
    ----------
    aux : the jets u_0 … u_L, where u_0 is the input jet.
    lifted : (σ, σ') at the values of u_0 … u_{L-1}. The input passes unchanged, so its pair is (x,
        1).
    defect : the jets r_1 … r_L.
    length : the step length of a_l for every sample.
    """

    aux: Stack
    lifted: Stack
    defect: Stack
    length: Float[Array, "L n"]


class Work(eqx.Module):
    """A network, the `Part` of each term, and the norms of both."""

    network: Network
    parts: tuple[Part, ...]
    norms: Norms


class Pane(eqx.Module):
    """One term's share of the window of layer l.

    Parameters
    ----------
    z : the lift of u_{l-1}, which layer l is applied to.
    u, lifted, r : u_l, (σ, σ') at its value, and the defect r_l.
    goal, upper : the target of layer l+1 and its defect r_{l+1}.
    length : the step lengths of a_l.

    `lifted`, `goal` and `upper` are None at the top.
    """

    z: Jet
    u: Jet
    lifted: tuple[Array, Array] | None
    r: Jet
    goal: Jet | None
    upper: Jet | None
    length: Float[Array, " n"]


class Window(eqx.Module):
    """Layer l with all that touches it.

    Parameters
    ----------
    layer, above : layers l and l+1; `above` is in the precision of the samples, and None at the
        top.
    panes : one for each term.
    norms : those of the whole point. Their v and τ of layers l and l+1 are only brought up to date
        by `window_norms`.
    work : all layers as they were when the window was opened, for terms of second order: their
        weights contain the forward pass through the whole network. Otherwise None.
    """

    layer: Dense
    above: Dense | None
    panes: tuple[Pane, ...]
    norms: Norms
    sigma: Activation = eqx.field(static=True)
    work: Work | None = None


Update = Callable[[Objective, Window, Any], Window]


# ---------------------------------------------------------------- points


def prepare(obj: Objective, point: Point) -> Work:
    """The `Work` of a point, computed from scratch.

    Parameters
    ----------
    obj : the objective.
    point : the network with the free jets.
    """
    network = point.network
    parts = []
    for term, aux in zip(obj.terms, point.aux, strict=True):
        x = term.x.value
        lifted = aux.below().map(lambda u: network.sigma.pair(u.value))
        parts.append(
            Part(
                aux.prepend(term.x).grow(),
                lifted.prepend((x, jnp.ones_like(x))).grow(),
                defects(term, network, aux),
                jnp.ones((obj.depth, len(term.y))),
            )
        )
    return Work(network, tuple(parts), norms(obj, point, [part.defect for part in parts]))


def rounded(obj: Objective, work: Work, dtype) -> Work:
    """The same with all that belongs to single samples in another precision. Weights, and sums over
    samples, keep theirs.

    Parameters
    ----------
    obj : the objective.
    work : in float64.
    dtype : the precision of what belongs to single samples.
    """

    def low(tree):
        return jax.tree.map(lambda x: x.astype(dtype), tree)

    n = work.norms
    v = tuple(low(v) if term.is_pde else v for term, v in zip(obj.terms, n.v, strict=True))
    return Work(work.network, low(work.parts), replace(n, v=v, t=low(n.t)))


def point_of(work: Work) -> Point:
    """The network and the auxiliary jets u_1 … u_L."""
    run = work.network.stack.run
    return Point(work.network, tuple(Stack.of(part.aux.layers()[1:], run) for part in work.parts))


# ---------------------------------------------------------------- windows


def put_row(x: Array, l, row: Array) -> Array:
    """x with its row of layer l replaced.

    Parameters
    ----------
    x : (L, …), a row for each layer.
    l : the layer, from 1; it may be traced.
    row : the new row.
    """
    if x.ndim == 1:  # unlike an update in place, this becomes part of what is computed around it
        return jnp.where(jnp.arange(len(x)) == l - 1, row, x)
    return lax.dynamic_update_index_in_dim(x, row, l - 1, 0)


def is_layer(l, number: int) -> bool:
    """Whether l is that layer. A traced l is inside the run of equal layers, so it is never the
    last.
    """
    return isinstance(l, int) and l == number


def _input_jet(sigma: Activation, term: Term, part: Part, l) -> Jet:
    """z_{l-1}: the lift of u_{l-1}, or the input jet itself for l = 1."""
    if term.x.forms:
        return term.x if is_layer(l, 1) else lift(sigma, part.aux[l - 1])
    value, slope = part.lifted[l - 1]
    return Jet(value, slope[:, None, :] * part.aux[l - 1].tangents)


def open_window(obj: Objective, work: Work, l) -> Window:
    """The window of layer l.

    Parameters
    ----------
    obj, work : the objective, and the point with what belongs to it.
    l : an integer, or traced inside the run of equal layers and below its last.
    """
    top = is_layer(l, obj.depth)
    sigma = work.network.sigma
    panes = []
    for term, part in zip(obj.terms, work.parts, strict=True):
        panes.append(
            Pane(
                _input_jet(sigma, term, part, l),
                part.aux[l],
                None if top else part.lifted[l],
                part.defect[l],
                None if top else target(term, part.aux[l + 1], is_layer(l + 1, obj.depth)),
                None if top else part.defect[l + 1],
                lax.dynamic_index_in_dim(part.length, l - 1, keepdims=False),
            )
        )
    stack = work.network.stack
    above = None if top else stack[l + 1].rounded(panes[0].z.value.dtype)
    second_order = any(term.x.forms for term in obj.terms)
    return Window(
        stack[l], above, tuple(panes), work.norms, sigma, work=work if second_order else None
    )


def window_norms(obj: Objective, window: Window, l) -> Norms:
    """The norms with v and τ of layers l and l+1 as the window's defects have them.

    Parameters
    ----------
    obj : the objective.
    window : that of layer l.
    l : the layer, which may be traced.
    """
    n = window.norms
    vs = list(n.v)
    taus = list(n.tau)
    for i, pane in enumerate(window.panes):
        for layer, r in ((l, pane.r), (l + 1, pane.upper)):
            if r is not None:
                v, tau = sizes(obj.terms[i], r)
                vs[i] = put_row(vs[i], layer, v)
                taus[i] = put_row(taus[i], layer, tau)
    return replace(n, v=tuple(vs), tau=tuple(taus))


def close_window(obj: Objective, work: Work, l: int, window: Window) -> Work:
    """The work with the window of layer l written back.

    Parameters
    ----------
    obj : the objective.
    work : from which the window was opened.
    l : the layer.
    window : after the updates.
    """
    parts = []
    for part, pane in zip(work.parts, window.panes, strict=True):
        aux = part.aux.set(l, pane.u)
        lifted = part.lifted
        defect = part.defect.set(l, pane.r)
        if pane.upper is not None:
            lifted = lifted.set(l, pane.lifted)
            defect = defect.set(l + 1, pane.upper)
        parts.append(Part(aux, lifted, defect, put_row(part.length, l, pane.length)))
    network = replace(work.network, stack=work.network.stack.set(l, window.layer))
    return Work(network, tuple(parts), window_norms(obj, window, l))


# ---------------------------------------------------------------- updates


def _apply(obj: Objective, window: Window, l, updates: Sequence[Update]) -> Window:
    for update_block in updates:
        window = update_block(obj, window, l)
    return window


def update(obj: Objective, work: Work, l: int, updates: Sequence[Update]) -> Work:
    """Run updates, one after the other, at one layer.

    Parameters
    ----------
    obj, work : the objective, and the point with what belongs to it.
    l : the layer.
    updates : functions (objective, window, l) → window.
    """
    return close_window(obj, work, l, _apply(obj, open_window(obj, work, l), l, updates))


def update_run(
    obj: Objective, work: Work, lowest: int, highest: int, down: bool, updates: Sequence[Update]
) -> Work:
    """Run the updates at the equal layers lowest..highest, downwards or upwards, compiled once.

    Each step reads the work as it was, except for what its predecessor changed, which is carried
    along. (Reading and writing one array in a loop would make XLA copy all of it at every step.)

    Parameters
    ----------
    obj, work : the objective, and the point with what belongs to it.
    lowest, highest : the layers.
    down : whether the highest layer comes first.
    updates : functions (objective, window, l) → window.
    """

    def with_neighbour(window: Window, neighbour: tuple) -> Window:
        """The window with what the layer updated before it has changed."""
        layer, jets = neighbour
        if down:
            panes = (
                replace(pane, goal=u, upper=r)
                for pane, (u, r) in zip(window.panes, jets, strict=True)
            )
            return replace(window, above=layer, panes=tuple(panes))
        panes = (replace(pane, z=z, r=r) for pane, (z, r) in zip(window.panes, jets, strict=True))
        return replace(window, panes=tuple(panes))

    def as_neighbour(window: Window) -> tuple:
        """What the window of the next layer shares with this one."""
        if down:
            rounded_layer = window.layer.rounded(window.panes[0].z.value.dtype)
            return rounded_layer, tuple((pane.u, pane.r) for pane in window.panes)
        lifted = (Jet(p.lifted[0], p.lifted[1][:, None, :] * p.u.tangents) for p in window.panes)  # type: ignore[index]
        return None, tuple((z, pane.upper) for z, pane in zip(lifted, window.panes, strict=True))

    def body(carry, l):
        neighbour, n = carry
        window = replace(with_neighbour(open_window(obj, work, l), neighbour), norms=n)
        window = _apply(obj, window, l, updates)
        written = [(p.u, p.lifted, p.upper if down else p.r, p.length) for p in window.panes]
        return (as_neighbour(window), window_norms(obj, window, l)), (window.layer, written)

    if down:
        start = open_window(obj, work, highest)
        first = start.above, tuple((pane.goal, pane.upper) for pane in start.panes)
    else:
        first = None, tuple((pane.z, pane.r) for pane in open_window(obj, work, lowest).panes)
    layers = jnp.arange(lowest, highest + 1)
    (last, n), (layer, written) = lax.scan(body, (first, work.norms), layers, reverse=down)
    parts = []
    for part, (u, lifted, r, length), (_, edge) in zip(work.parts, written, last[1], strict=True):
        defect = part.defect.set_range(lowest + down, r).set(lowest if down else highest + 1, edge)
        length = lax.dynamic_update_slice_in_dim(part.length, length, lowest - 1, 0)
        parts.append(
            Part(
                part.aux.set_range(lowest, u),
                part.lifted.set_range(lowest, lifted),
                defect,
                length,
            )
        )
    stack = work.network.stack.set_range(lowest, layer)
    return Work(replace(work.network, stack=stack), tuple(parts), n)


def normal_rows(
    window: Window, weights: Sequence[tuple[Array | None, Array | None]], block: str
) -> lstsq.Normal:
    """The normal equations Σ w ‖δ z + r‖² of a change δ of the weights, over all defects of the
    layer.

    Parameters
    ----------
    window : that of the layer.
    weights : for each term those of its value defects, () or (n,), and of its channels, (), (n,) or
        (n, k). None: there are no such defects.
    block : what changes: "W", "b" or "Wb". Features are [z, 1] for "Wb"; channels do not see b.
    """
    slopes = block != "b"
    bias = block != "W"
    normals = []
    for pane, (value_weight, channel_weight) in zip(window.panes, weights, strict=True):
        if value_weight is not None:
            z = pane.z.value if slopes else pane.z.value[:, :0]
            normals.append(lstsq.rows(z, pane.r.value, value_weight, bias=bias))
        if channel_weight is not None and slopes:
            z, r = (x.reshape(-1, x.shape[-1]) for x in (pane.z.tangents, pane.r.tangents))
            if channel_weight.ndim == 1:
                channel_weight = jnp.repeat(channel_weight, pane.z.tangents.shape[1])
            if channel_weight.ndim == 2:
                channel_weight = channel_weight.ravel()
            normals.append(lstsq.rows(z, r, channel_weight, room=bias))
    if not normals:
        return lstsq.Normal(jnp.zeros((1, 1)), jnp.zeros((1, len(window.layer.b))))
    return sum(normals[1:], normals[0])


def with_layer(obj: Objective, window: Window, l, layer: Dense, norms: Norms) -> Window:
    """The window with another layer l; the defects of that layer follow.

    Parameters
    ----------
    obj : the objective.
    window : that of layer l.
    l : the layer, which may be traced.
    layer : its new weights.
    norms : those that belong to the new weights.
    """
    panes = []
    for term, pane in zip(obj.terms, window.panes, strict=True):
        output = layer.rounded(pane.z.value.dtype)(pane.z)
        goal = target(term, pane.u, is_layer(l, obj.depth))
        panes.append(replace(pane, r=jax.tree.map(jnp.subtract, output, goal)))
    return replace(window, layer=layer, panes=tuple(panes), norms=norms)
