"""A point with all that the blocks would otherwise compute again, and the window of a layer that they act on.

A `Work` keeps, beside the unknowns, activations, defects and the norms that the loss is made of. Blocks act on the
`Window` of a layer l: all that touches u_l, W_l and b_l. A window is opened, updated by one or several blocks, and closed,
which writes it back.
"""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from sapm.jet import Activation, Jet
from sapm.network import Dense, Network, Stack
from sapm.objective import Norms, Objective, Point, defects, norms, sizes, target, weigh


class Part(eqx.Module):
    """One term's share of the work, by layer: jets u_l, (σ, σ') at their values, defects r_l, step lengths for a_l.

    u_0 is the input jet and passes unchanged: its pair is (x, 1).
    """

    aux: Stack
    lifted: Stack
    defect: Stack
    length: Float[Array, "L n"]


class Work(eqx.Module):
    network: Network
    parts: tuple[Part, ...]
    norms: Norms


class Pane(eqx.Module):
    """One term's share of a window: z_{l-1}, u_l and its (σ, σ'), r_l; the target and the defect of layer l+1."""

    z: Jet
    u: Jet
    lifted: tuple[Array, Array] | None
    r: Jet
    goal: Jet | None
    upper: Jet | None
    length: Float[Array, " n"]


class Window(eqx.Module):
    """Layer l (and l+1 as the samples see it, None at the top) with all that touches it. The norms' v and τ of l, l+1 are written
    on closing."""

    layer: Dense
    above: Dense | None
    panes: tuple[Pane, ...]
    norms: Norms
    sigma: Activation = eqx.field(static=True)


def prepare(obj: Objective, point: Point) -> Work:
    """Compute everything that depends on the point, from scratch."""
    network, parts = point.network, []
    for term, aux in zip(obj.terms, point.aux, strict=True):
        x = term.x.value
        lifted = replace(aux, tail=aux.tail[:-1]).map(lambda u: network.sigma.pair(u.value))
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
    """With all that belongs to a sample in that precision; weights, and sums over samples, stay as they are."""
    low = lambda tree: jax.tree.map(lambda x: x.astype(dtype), tree)  # noqa: E731
    n = work.norms
    v = tuple(low(v) if term.is_pde else v for term, v in zip(obj.terms, n.v, strict=True))
    return Work(work.network, low(work.parts), replace(n, v=v, t=low(n.t)))


def point_of(work: Work) -> Point:
    run = work.network.stack.run
    return Point(work.network, tuple(Stack.of(part.aux.layers()[1:], run) for part in work.parts))


def actual_loss(obj: Objective, work: Work) -> Float[Array, ""]:
    return weigh(obj, work.norms)


def put_row(x: Array, l, row: Array) -> Array:
    if x.ndim == 1:  # unlike an update in place, this becomes part of what is computed around it
        return jnp.where(jnp.arange(len(x)) == l - 1, row, x)
    return lax.dynamic_update_index_in_dim(x, row, l - 1, 0)


def is_layer(l, number: int) -> bool:
    """Whether l is that layer. A traced l is inside the run of equal layers, so it is never the last."""
    return isinstance(l, int) and l == number


def open_window(obj: Objective, work: Work, l) -> Window:
    """l is an integer, or traced inside the run of equal layers and below its last."""
    top, panes = is_layer(l, obj.depth), []
    for term, part in zip(obj.terms, work.parts, strict=True):
        value, slope = part.lifted[l - 1]
        panes.append(
            Pane(
                Jet(value, slope[:, None, :] * part.aux[l - 1].tangents),
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
    return Window(stack[l], above, tuple(panes), work.norms, work.network.sigma)


def close_norms(obj: Objective, window: Window, l) -> Norms:
    n = window.norms
    vs, taus = list(n.v), list(n.tau)
    for i, pane in enumerate(window.panes):
        for layer, r in ((l, pane.r), (l + 1, pane.upper)):
            if r is not None:
                v, tau = sizes(obj.terms[i], r)
                vs[i], taus[i] = put_row(vs[i], layer, v), put_row(taus[i], layer, tau)
    return replace(n, v=tuple(vs), tau=tuple(taus))


def close_window(obj: Objective, work: Work, l: int, window: Window) -> Work:
    parts = []
    for part, pane in zip(work.parts, window.panes, strict=True):
        aux, lifted, found = part.aux.set(l, pane.u), part.lifted, part.defect.set(l, pane.r)
        if pane.upper is not None:
            lifted, found = lifted.set(l, pane.lifted), found.set(l + 1, pane.upper)
        parts.append(Part(aux, lifted, found, put_row(part.length, l, pane.length)))
    network = replace(work.network, stack=work.network.stack.set(l, window.layer))
    return Work(network, tuple(parts), close_norms(obj, window, l))
