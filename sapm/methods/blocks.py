"""Block updates for any term: one recipe for all of them.

A block is a part x of the unknowns: weights of a layer ("W", "b", "Wb"), or a part of the jet u_l
of every sample ("a": its value, "d": its tangents, "S": its second-order channels; "d" at the top
layer stands for the whole output jet). `Block` has four members:

    take        x as it is
    put         the window with another x
    cost        the penalty loss f as far as it depends on x; for jets f_n(x_n), sample by sample
    curvature   N: the Gauss-Newton matrix of the defects that contain x, with the adaptive weights
                held, plus the ridges by which these weights grow with x

and `descend` takes the step

    x ← x - (h/2) N⁻¹ ∇f(x),   h = 1, 1/2, 1/4, … until f falls enough (Armijo),

with ∇f by automatic differentiation. It is a direction of descent, so the loss never rises. Where f
is a quadratic, h = 1 is its minimiser: always for "S" and for the output jet of a linear residual;
for "W", "b" and "d" of terms without second-order channels; for "W" and "b" of PM.

The updates in `sapm.methods.closed_forms` are faster ones of the same blocks, for value terms and
first-order linear equations without ψ itself. Where the cost is a quadratic both give the same
minimiser. Measured by `benchmarks/blocks.py`, this recipe takes 12 to 21 times as long for a sweep
and 3 to 5 times as long to compile on the paper's sizes, so the closed forms are worth having.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from sapm.methods.window import (
    Update,
    Window,
    close_window,
    is_layer,
    normal_rows,
    point_of,
    put_row,
    window_norms,
    with_layer,
)
from sapm.numerics import lstsq
from sapm.numerics.jets import Jet, lift
from sapm.numerics.layers import Dense
from sapm.objective.penalty import (
    Norms,
    Objective,
    defect_weights,
    omega,
    output_misfit,
    target,
    weigh,
)
from sapm.objective.weights import Curve, bend_squared, length_squared, squared_norms

# Armijo's condition: a step is taken if the cost falls by this fraction of what its slope promises
ARMIJO = 1e-4
# halvings of a step before it is given up
LINE_SEARCH_TRIALS = 14
# Gauss-Newton steps of the output jet of a nonlinear residual
OUTPUT_STEPS = 3


class Block(NamedTuple):
    """A part x of the unknowns in the window of a layer.

    Parameters
    ----------
    take : x; for a layer (m, out), for the jets of a term (n, entries).
    put : x → window.
    cost : x → the loss as far as it depends on x, () or (n,).
    curvature : (x, g) → N⁻¹ g/2 for a gradient g, of the shape of x.
    """

    take: Array
    put: Callable[[Array], Window]
    cost: Callable[[Array], Array]
    curvature: Callable[[Array, Array], Array]


def descend(block: Block, steps: int = 1) -> Window:
    """The window after Gauss-Newton steps with a line search; the cost never rises.

    Parameters
    ----------
    block : what moves, and its cost.
    steps : the number of steps.
    """

    def move(_, x: Array) -> Array:
        before, pullback = jax.vjp(block.cost, x)
        (gradient,) = pullback(jnp.ones_like(before))
        step = -block.curvature(x, gradient)
        slope = jnp.sum(gradient * step, axis=tuple(range(before.ndim, x.ndim)))
        return line_search(block.cost, x, before, step, slope)

    return block.put(lax.fori_loop(0, steps, move, block.take))


def line_search(
    cost: Callable[[Array], Array], x: Array, before: Array, step: Array, slope: Array
) -> Array:
    """x + h step with the first h of 1, 1/2, 1/4, … at which the cost has fallen by ARMIJO h
    |slope|; x if there is none.

    Parameters
    ----------
    cost : x → () or (n,).
    x, step : the start, and the direction with the length of h = 1.
    before : the cost at x, () or, with a step length for every row of x, (n,).
    slope : its derivative along the step, of the same shape.
    """

    def to_x(h: Array) -> Array:
        return h.reshape(h.shape + (1,) * (x.ndim - h.ndim))

    def attempt(state):
        trial, h, accepted = state
        h = jnp.where(accepted, h, h / 2)
        fell = cost(x + to_x(h) * step) <= before + ARMIJO * h * slope
        return trial + 1, h, accepted | fell

    def unfinished(state):
        trial, _, accepted = state
        return (trial < LINE_SEARCH_TRIALS) & ~jnp.all(accepted)

    start = (0, 2 * jnp.ones_like(before), jnp.zeros_like(before, bool))
    _, h, accepted = lax.while_loop(unfinished, attempt, start)
    return jnp.where(to_x(accepted), x + to_x(h) * step, x)


# ---------------------------------------------------------------- weights of a layer


def _loss_of_defects(obj: Objective, norms: Norms) -> Float[Array, ""]:
    """The loss without the output misfits, which no layer changes."""
    return weigh(obj, replace(norms, out=()))


def layer_block(obj: Objective, window: Window, l: int, name: str, guard: float = 0.0) -> Block:
    """A block of the weights of layer l, as rows of [W b]ᵀ.

    Parameters
    ----------
    obj : the objective.
    window : that of layer l.
    l : the layer.
    name : "W", "b" or "Wb".
    guard : the least share of ‖W_l‖² that a step keeps (`lstsq.guarded_length`).
    """
    layer = window.layer
    norms = window_norms(obj, window, l)
    entries = jnp.concatenate([layer.W.T, layer.b[None]])
    last = len(entries) - 1
    rows = {"W": slice(0, last), "b": slice(last, last + 1), "Wb": slice(0, last + 1)}[name]

    def put(x: Array) -> Window:
        new = entries.at[rows].set(x)
        layer = Dense(new[:-1].T, new[-1])
        changed = replace(window.norms, s=put_row(window.norms.s, l, jnp.sum(layer.W**2)))
        moved = with_layer(obj, window, l, layer, changed)
        return replace(moved, norms=replace(changed, curve=_curves(obj, moved, l)))

    def cost(x: Array) -> Float[Array, ""]:
        return _loss_of_defects(obj, window_norms(obj, put(x), l))

    weights = []
    for i, term in enumerate(obj.terms):
        value, channel = defect_weights(obj, i, omega(obj, norms.s), norms.t[i], norms.curve[i])
        kappa = jnp.broadcast_to(term.weight, len(term.y))
        shape = (len(term.y), term.channels)
        channels = jnp.broadcast_to(kappa[:, None, None] * channel[l - 1], (*shape, 1))
        weights.append((kappa * value[l - 1], channels[..., 0] if term.is_pde else None))
    gram = normal_rows(window, weights, name).gram
    ridge = jax.grad(lambda s: _loss_of_defects(obj, replace(norms, s=s)))(norms.s)[l - 1]
    ridges = jnp.where(jnp.arange(last + 1) < last, ridge, 0.0)[rows]

    def curvature(x: Array, gradient: Array) -> Array:
        normal = lstsq.Normal(gram, 0.5 * gradient)
        change = lstsq.step(normal, ridges, jnp.zeros_like(gradient))
        slopes = slice(0, 0 if name == "b" else last)
        return -lstsq.guarded_length(x[slopes], change[slopes], guard) * change

    return Block(entries[rows], put, cost, curvature)


def _curves(obj: Objective, window: Window, l: int) -> tuple[Curve | None, ...]:
    """What the weights of second-order terms are made of, at the network of the window: a forward
    pass.
    """
    if window.work is None:
        return window.norms.curve
    point = point_of(close_window(obj, window.work, l, window))
    pairs = zip(obj.terms, point.aux, strict=True)
    return tuple(squared_norms(term, point.network, aux)[1] for term, aux in pairs)


def update_layer(obj: Objective, window: Window, l: int, name: str, guard: float = 0.0) -> Window:
    """One Gauss-Newton step for "W", "b" or "Wb" of layer l; parameters: see `layer_block`."""
    return descend(layer_block(obj, window, l, name, guard))


# ---------------------------------------------------------------- jets of a term


def _take(u: Jet, name: str) -> Float[Array, "n m"]:
    """The entries of a jet that a block moves, a row for each sample; "u": all of them."""
    k = u.first
    arrays = {
        "a": (u.value,),
        "d": (u.tangents[:, :k],),
        "S": (u.tangents[:, k:],),
        "u": (u.value, u.tangents),
    }[name]
    return jnp.concatenate([x.reshape(len(x), -1) for x in arrays], axis=1)


def _put(u: Jet, name: str, x: Float[Array, "n m"]) -> Jet:
    """The inverse of `_take`."""
    k = u.first
    size = u.value.shape[1]
    if name == "a":
        return replace(u, value=x)
    if name == "u":
        return replace(u, value=x[:, :size], tangents=x[:, size:].reshape(u.tangents.shape))
    where = slice(0, k) if name == "d" else slice(k, None)
    return replace(u, tangents=u.tangents.at[:, where].set(x.reshape(u.tangents[:, where].shape)))


def _sample_loss(
    obj: Objective, i: int, norms: Norms, v: Float[Array, "L n"], tau: Float[Array, "L 2 n"]
) -> Float[Array, " n"]:
    """The loss of each sample of term i, without κ_n and the output misfit.

    Parameters
    ----------
    v, tau : squared norms of its value defects, and of its tangent and second-order defects.
    """
    value, channel = defect_weights(obj, i, omega(obj, norms.s), norms.t[i], norms.curve[i])
    if norms.curve[i] is None:
        tangent = second = channel[:, None]
    else:
        tangent = channel[..., 0, 0]
        second = channel[..., -1, 0]
    return jnp.sum(value * v + tangent * tau[:, 0] + second * tau[:, 1], 0)


def _sample_sizes(obj: Objective, window: Window, l: int, i: int) -> tuple[Array, Array]:
    """v (L, n) and τ (L, 2, n) of term i, as `_sample_loss` takes them.

    The norms have them by sample only where the weights of a sample depend on its jets. Elsewhere
    the defects of other layers than l and l+1 add a constant to the loss, and 0 stands for them.
    """
    term = obj.terms[i]
    pane = window.panes[i]
    shape = (obj.depth, len(term.y))
    v = window.norms.v[i] if term.is_pde else jnp.zeros(shape)
    tau = window.norms.tau[i] if term.x.forms else jnp.zeros((shape[0], 2, shape[1]))
    for layer, r in ((l, pane.r), (l + 1, pane.upper)):
        if r is not None:
            v = put_row(v, layer, jnp.sum(r.value**2, -1))
            tau = put_row(tau, layer, jnp.stack([length_squared(r), bend_squared(r)]))
    return v, tau


def _set(values: tuple, i: int, new) -> tuple:
    return (*values[:i], new, *values[i + 1 :])


def jets_block(obj: Objective, window: Window, l: int, i: int, name: str) -> Block:
    """A block of the jets u_l of a term. Samples are independent of each other: each has a matrix
    and a step length of its own.

    Parameters
    ----------
    obj : the objective.
    window : that of layer l.
    l : the layer.
    i : the number of the term, from 0.
    name : "a" (values), "d" (tangents), "S" (second-order channels) or "u" (all).
    """
    term = obj.terms[i]
    pane = window.panes[i]
    top = is_layer(l, obj.depth)
    output = window.layer(pane.z)
    curve = window.norms.curve[i]
    k = pane.u.first
    ahead = None  # the tangents that the forward pass has at layer l; p_l is ‖d_l + ahead‖²
    if curve is not None:
        assert window.work is not None
        point = point_of(close_window(obj, window.work, l, window))
        ahead = point.network.preactivations(term.x)[l].tangents[:, :k]

    def put(x: Array) -> Window:
        u = _put(pane.u, name, x)
        new = replace(pane, u=u, r=jax.tree.map(jnp.subtract, output, target(term, u, top)))
        if window.above is not None:
            upper = jax.tree.map(jnp.subtract, window.above(lift(window.sigma, u)), pane.goal)
            new = replace(new, lifted=window.sigma.pair(u.value), upper=upper)
        norms = window.norms
        changed = replace(norms, t=_set(norms.t, i, put_row(norms.t[i], l, length_squared(u))))
        if top:
            changed = replace(changed, out=_set(norms.out, i, output_misfit(term, u)))
        if curve is not None and ahead is not None:
            p = jnp.sum((u.tangents[:, :k] + ahead) ** 2, axis=(-2, -1))
            moved = Curve(put_row(curve.h, l, bend_squared(u)), put_row(curve.p, l, p))
            changed = replace(changed, curve=_set(norms.curve, i, moved))
        return replace(window, panes=_set(window.panes, i, new), norms=changed)

    def misfit(u: Jet) -> Float[Array, "n m"]:
        """The output residual; that of a value term is the defect of layer L."""
        return term.residual(u) if top and term.is_pde else jnp.zeros((len(u.value), 0))

    def cost(x: Array) -> Float[Array, " n"]:
        moved = put(x)
        v, tau = _sample_sizes(obj, moved, l, i)
        loss = _sample_loss(obj, i, moved.norms, v, tau)
        return loss + jnp.sum(misfit(moved.panes[i].u) ** 2, -1)

    value, channel = defect_weights(obj, i, omega(obj, window.norms.s), window.norms.t[i], curve)

    def residuals(x: Array) -> Float[Array, "n r"]:
        """What the loss is the sum of squares of, where it depends on x, with the weights held."""
        moved = put(x).panes[i]
        parts = [misfit(moved.u)]
        for layer, r in ((l, moved.r), (l + 1, moved.upper)):
            if r is not None:
                parts.append(jnp.sqrt(value[layer - 1])[:, None] * r.value)
                parts.append((jnp.sqrt(channel[layer - 1]) * r.tangents).reshape(len(x), -1))
        return jnp.concatenate(parts, axis=1)

    ridge = _ridge(obj, window, l, i, name)

    def curvature(x: Array, gradient: Array) -> Array:
        eye = jnp.eye(x.shape[1])

        def column(direction: Array) -> Float[Array, "n r"]:
            return jax.jvp(residuals, (x,), (jnp.broadcast_to(direction, x.shape),))[1]

        J = jax.vmap(column)(eye)
        N = jnp.einsum("inr,jnr->nij", J, J) + ridge[:, None, None] * eye
        largest = jnp.max(jnp.einsum("nii->ni", N), axis=1)[:, None, None]
        N += (8 * (x.shape[1] + 1) * lstsq.EPS * largest + lstsq.MATRIX_FLOOR) * eye
        return 0.5 * cho_solve((jnp.linalg.cholesky(N), True), gradient[..., None])[..., 0]

    return Block(_take(pane.u, name), put, cost, curvature)


def _ridge(obj: Objective, window: Window, l: int, i: int, name: str) -> Float[Array, " n"]:
    """How much the loss of a sample grows with ‖d_l‖² or ‖S_l‖² through its weights, the defects
    held.

    This is κ ω ξ of `penalty.ridge_d`, and the ridge of `layer_block` is ω λ of `penalty.ridge_W`:
    there they are written out, here they are derivatives. A test says that they are equal.
    """
    if name not in ("d", "S"):
        return jnp.zeros(len(obj.terms[i].y))
    sizes = _sample_sizes(obj, window, l, i)
    norms = window.norms

    def loss(t, curve):
        changed = replace(norms, t=_set(norms.t, i, t), curve=_set(norms.curve, i, curve))
        return jnp.sum(_sample_loss(obj, i, changed, *sizes))

    by_t, by_curve = jax.grad(loss, (0, 1))(norms.t[i], norms.curve[i])
    if by_curve is None:
        return by_t[l - 1]
    return by_curve.h[l - 1] if name == "S" else by_t[l - 1] + by_curve.p[l - 1]


def update_jets(obj: Objective, window: Window, l: int, name: str) -> Window:
    """A Gauss-Newton step for the jets u_l of all terms that have entries of that name.

    Parameters
    ----------
    obj : the objective.
    window : that of layer l.
    l : the layer.
    name : "a", "d" or "S", as in `jets_block`; "d" at the top layer is the whole jet.
    """
    name = "u" if name == "d" and is_layer(l, obj.depth) else name
    for i, term in enumerate(obj.terms):
        if _take(window.panes[i].u, name).size:
            nonlinear_output = name == "u" and term.nonlinear
            block = jets_block(obj, window, l, i, name)
            window = descend(block, OUTPUT_STEPS if nonlinear_output else 1)
    return window


UPDATES: dict[str, Update] = {
    "W": partial(update_layer, name="W"),
    "b": partial(update_layer, name="b"),
    "Wb": partial(update_layer, name="Wb"),
    "d": partial(update_jets, name="d"),
    "S": partial(update_jets, name="S"),
    "a": partial(update_jets, name="a"),
}


def updates(names: Sequence[str], guard: float = 0.0) -> list[Update]:
    """The updates of blocks with these names.

    Parameters
    ----------
    names : of the blocks.
    guard : see `layer_block`.
    """
    return [
        partial(update_layer, name=name, guard=guard) if name in ("W", "Wb") else UPDATES[name]
        for name in names
    ]
