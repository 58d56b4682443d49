"""Closed forms of the block updates for value terms and first-order linear equations without ψ.

They are faster updates of the blocks of `sapm.methods.blocks`. With the other blocks held fixed the
loss is a quadratic in W_l, in b_l and in d_l, so each update solves for its minimiser. In a_l it is
not, and `update_a` takes one gradient step. None of them raises the loss.

All are stated for the loss divided by ω_l (W_l and b_l) or κ_n ω_{l+1} (jets), so that nothing is
0/0 when a layer above has collapsed to 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sapm.methods.blocks import ARMIJO
from sapm.methods.window import (
    Pane,
    Update,
    Window,
    is_layer,
    normal_rows,
    put_row,
    with_layer,
)
from sapm.numerics import lstsq
from sapm.numerics.jets import Jet
from sapm.numerics.layers import Dense
from sapm.objective.penalty import (
    Norms,
    Objective,
    length_squared,
    output_misfit,
    ridge_d,
    ridge_W,
    sizes,
    value_weight,
)

# Step lengths of `update_a`: factors after a step that was taken or refused, and their range
STEP_GROWTH = 1.5
STEP_SHRINKAGE = 0.5
LONGEST_STEP = 4.0
SHORTEST_STEP = 1e-6


# ---------------------------------------------------------------- W_l and b_l


def rows(obj: Objective, window: Window, l, block: str) -> lstsq.Normal:
    """The normal equations of W_l, b_l or both: sums over the window's samples.

    A value defect of layer l has the weight κ_n β_l Ω²_{l,n}, a tangent defect κ_n α_l. At the top,
    PDE terms have no value defect.

    Parameters
    ----------
    obj : the objective.
    window : that of layer l.
    l : the layer, which may be traced.
    block : "W", "b" or "Wb".
    """
    weights = []
    for i, term in enumerate(obj.terms):
        has_value = not (term.is_pde and is_layer(l, obj.depth))
        value = term.weight * value_weight(obj, i, window.norms.t[i], l) if has_value else None
        channel = term.weight * obj.alpha[i][l - 1] if term.is_pde else None
        weights.append((value, channel))
    return normal_rows(window, weights, block)


def solve_W(
    obj: Objective,
    layer: Dense,
    norms: Norms,
    l,
    total: lstsq.Normal,
    joint: bool = False,
    guard: float = 0.0,
) -> tuple[Dense, Norms]:
    """W_l (with `joint`: W_l and b_l) that minimises what the rows add up to, plus λ_l ‖W_l‖².

    Parameters
    ----------
    obj : the objective.
    layer, norms : the layer and the norms before.
    l : the layer's number, which may be traced.
    total : the normal equations of "W", with `joint` of "Wb".
    joint : whether b_l is solved for, too.
    guard : the least share of ‖W_l‖² that is kept (`lstsq.guarded_length`).

    Returns the new layer, and the norms with its ‖W_l‖².
    """
    current = jnp.concatenate([layer.W.T, layer.b[None]]) if joint else layer.W.T
    inputs = layer.W.shape[1]
    ridge = jnp.where(jnp.arange(len(current)) < inputs, ridge_W(obj, norms, l), 0.0)
    change = lstsq.step(total, ridge, current)
    new = current + lstsq.guarded_length(layer.W.T, change[:inputs], guard) * change
    layer = Dense(new[:-1].T, new[-1]) if joint else Dense(new.T, layer.b)
    return layer, replace(norms, s=put_row(norms.s, l, jnp.sum(layer.W**2)))


def shift_b(total: lstsq.Normal) -> Float[Array, " out"]:
    """The weighted mean of the value defects, which b_l is lowered by; from the last of the normal
    equations.
    """
    weight = total.gram[-1, -1]
    return jnp.where(weight > 0, total.moment[-1] / jnp.where(weight > 0, weight, 1.0), 0.0)


def solve(
    obj: Objective,
    layer: Dense,
    norms: Norms,
    l,
    total: lstsq.Normal,
    joint: bool = False,
    guard: float = 0.0,
) -> tuple[Dense, Norms]:
    """W_l and then b_l (with `joint`: both together) from the normal equations of "Wb".

    Parameters
    ----------
    obj : the objective.
    layer, norms : the layer and the norms before.
    l : the layer's number, which may be traced.
    total : the normal equations of "Wb".
    joint : whether W_l and b_l are solved for together.
    guard : see `solve_W`.

    Returns the new layer, and the norms with its ‖W_l‖².
    """
    if joint:
        return solve_W(obj, layer, norms, l, total, True, guard)
    m = layer.W.shape[1]
    slopes = lstsq.Normal(total.gram[:m, :m], total.moment[:m])
    new, norms = solve_W(obj, layer, norms, l, slopes, guard=guard)
    moved = total.moved(jnp.pad((new.W - layer.W).T, ((0, 1), (0, 0))))
    return Dense(new.W, layer.b - shift_b(moved)), norms


def update_W(obj: Objective, window: Window, l, guard: float = 0.0) -> Window:
    """W_l minimises Σ_n κ_n (β_l Ω²_{l,n} ‖W z + b - a‖² + α_l Σ_i ‖W z_i - d_i‖²) + λ_l ‖W‖².

    Parameters
    ----------
    obj : the objective.
    window : that of layer l.
    l : the layer, which may be traced.
    guard : see `solve_W`.
    """
    total = rows(obj, window, l, "W")
    solved = solve_W(obj, window.layer, window.norms, l, total, guard=guard)
    return with_layer(obj, window, l, *solved)


def update_b(obj: Objective, window: Window, l) -> Window:
    """b_l minimises Σ_n κ_n β_l Ω²_{l,n} ‖W z + b - a‖²: it is lowered by the weighted mean of the
    defects.

    Parameters
    ----------
    obj : the objective.
    window : that of layer l.
    l : the layer, which may be traced.
    """
    shift = shift_b(rows(obj, window, l, "b"))

    def move(i: int, pane: Pane) -> Pane:
        r = Jet(pane.r.value - shift.astype(pane.r.value.dtype), pane.r.tangents)
        return replace(pane, r=r)

    window = replace(window, layer=Dense(window.layer.W, window.layer.b - shift))
    return _each(window, move)


def update_Wb(obj: Objective, window: Window, l, joint: bool = True, guard: float = 0.0) -> Window:
    """W_l and b_l together minimise what `update_W` states. Without `joint`: `update_W` and then
    `update_b`, from the sums of one pass over the samples.

    Parameters
    ----------
    obj : the objective.
    window : that of layer l.
    l : the layer, which may be traced.
    joint : whether W_l and b_l are solved for together.
    guard : see `solve_W`.
    """
    total = rows(obj, window, l, "Wb")
    solved = solve(obj, window.layer, window.norms, l, total, joint, guard)
    return with_layer(obj, window, l, *solved)


# ---------------------------------------------------------------- d_l and a_l


def _each(window: Window, change) -> Window:
    """The window with every pane replaced by change(i, pane)."""
    return replace(window, panes=tuple(change(i, pane) for i, pane in enumerate(window.panes)))


def _gap(obj: Objective, window: Window, l) -> Float[Array, ""]:
    """ω_l / ω_{l+1}: ‖W_{l+1}‖_F² under SAPM, 1 under PM."""
    return window.norms.s[l] if obj.adaptive else jnp.ones(())


def update_d(obj: Objective, window: Window, l) -> Window:
    """d_l of every PDE sample minimises, divided by κ_n ω_{l+1},

        α_{l+1} ‖W_{l+1}(σ'∘d) - d_{l+1}‖² + (ω_l/ω_{l+1}) α_l ‖D - d‖² + ξ ‖d‖²,

    where D = W_l z_{l-1} is what layer l gives. At the top: |c·d - y|² + α_L ‖D - d‖².

    Parameters
    ----------
    obj : the objective.
    window : that of layer l.
    l : the layer, which may be traced.
    """
    n = window.norms
    outs = list(n.out)
    ts = list(n.t)
    panes = list(window.panes)
    for i, term in enumerate(obj.terms):
        if not term.is_pde:
            continue
        pane = panes[i]
        u = pane.u
        r = pane.r
        upper = pane.upper
        dtype = u.tangents.dtype
        alpha = obj.alpha[i].astype(dtype)
        if upper is None:
            misfit = -term.residual(Jet(u.value, u.tangents + r.tangents))
            gain = term.linear.c / (alpha[-1] + jnp.sum(term.linear.c**2, -1, keepdims=True))
            change = gain[:, :, None] * misfit[:, None, :] + r.tangents
            u = Jet(u.value, u.tangents + change)
            outs[i] = output_misfit(term, u)
        else:
            assert window.above is not None and pane.lifted is not None and pane.goal is not None
            W = window.above.W
            slope = pane.lifted[1]
            xi = ridge_d(obj, i, n.s, put_row(n.v[i], l, sizes(term, r)[0]), l).astype(dtype)
            shift = _gap(obj, window, l).astype(dtype) * alpha[l - 1]
            scale = alpha[l]
            gradient = scale * slope[:, None, :] * (upper.tangents @ W) - shift * r.tangents
            gradient += xi[:, None, None] * u.tangents
            change = lstsq.shifted_solve(W, jnp.sqrt(scale) * slope, shift + xi, -gradient)
            u = Jet(u.value, u.tangents + change)
            upper = Jet(upper.value, (slope[:, None, :] * u.tangents) @ W.T - pane.goal.tangents)
        ts[i] = put_row(ts[i], l, length_squared(u))
        panes[i] = replace(pane, u=u, r=Jet(r.value, r.tangents - change), upper=upper)
    return replace(window, panes=tuple(panes), norms=replace(n, t=tuple(ts), out=tuple(outs)))


def _weights_a(obj: Objective, window: Window, i: int, l) -> tuple[Array, Array, Array]:
    """ρ = (ω_l/ω_{l+1}) β_l Ω²_l, β_{l+1} Ω²_{l+1} and α_{l+1}: the weights of φ in `update_a`."""
    t = window.norms.t[i]
    dtype = window.panes[i].u.value.dtype
    rho = _gap(obj, window, l) * value_weight(obj, i, t, l)
    value = value_weight(obj, i, t, l + 1)
    return rho.astype(dtype), value.astype(dtype), obj.alpha[i][l].astype(dtype)


def update_a(obj: Objective, window: Window, l, shared: bool = False) -> Window:
    """One gradient step for a_l, each sample with a step length of its own.

    Sample by sample the loss is, divided by κ_n ω_{l+1},

        φ(a) = β_{l+1} Ω²_{l+1} ‖W σ(a) + b - a_{l+1}‖² + α_{l+1} Σ_i ‖W (σ'(a)∘d_i) - d_{l+1,i}‖²
               + ρ ‖q - a‖²,   ρ = (ω_l/ω_{l+1}) β_l Ω²_l,   q = W_l z_{l-1} + b_l.

    The step is -length · ∇φ/(2ρ), taken if it meets Armijo's condition. The next one is then 1.5
    times longer (at most 4), otherwise half as long (at least 1e-6): a backtracking line search
    spread over the sweeps. φ is a function of one sample, so a length for each of them needs no sum
    over samples; measured, fewer runs collapse than with a shared length.

    Parameters
    ----------
    obj : the objective.
    window : that of layer l < L.
    l : the layer, which may be traced.
    shared : whether all samples of a term have one step length.
    """
    sigma = window.sigma
    above = window.above
    assert above is not None

    def move(i: int, pane: Pane) -> Pane:
        u = pane.u
        r = pane.r
        upper = pane.upper
        lifted = pane.lifted
        assert upper is not None and lifted is not None and pane.goal is not None
        rho, w_value, w_tangent = _weights_a(obj, window, i, l)
        scale = jnp.where(rho > 0, 1 / jnp.where(rho > 0, rho, 1.0), 0.0)

        pull = upper.value @ above.W
        gradient = w_value[..., None] * lifted[1] * pull - rho[..., None] * r.value
        if obj.terms[i].is_pde:
            products = u.tangents * (upper.tangents @ above.W)
            # not jnp.sum: XLA runs a short reduction 20× slower
            total = sum(products[:, i] for i in range(products.shape[1]))
            gradient += w_tangent * sigma.curve(u.value, *lifted) * total
        step = -(pane.length * scale)[:, None] * gradient
        new_value = u.value + step
        new_lifted = sigma.pair(new_value)
        z = Jet(new_lifted[0], new_lifted[1][:, None, :] * u.tangents)
        new_upper = jax.tree.map(jnp.subtract, above(z), pane.goal)
        new_r = r.value - step

        def phi(r, upper):
            # plain sums of squares first: XLA runs them 4× faster than weighted ones
            tau = jnp.sum(upper.tangents**2, axis=(-2, -1))
            return w_value * jnp.sum(upper.value**2, -1) + w_tangent * tau + rho * jnp.sum(r**2, -1)

        promised = 2 * scale * pane.length * jnp.sum(gradient**2, -1)
        gain = phi(r.value, upper) - phi(new_r, new_upper) - ARMIJO * promised
        if shared:
            taken = jnp.broadcast_to(jnp.sum(obj.terms[i].weight * gain) >= 0, gain.shape)
        else:
            taken = gain >= 0

        def pick(new, old):
            def of_leaf(x, y):
                return jnp.where(taken.reshape(-1, *(1,) * (x.ndim - 1)), x, y)

            return jax.tree.map(of_leaf, new, old)

        value = pick(new_value, u.value)
        longer = jnp.minimum(pane.length * STEP_GROWTH, LONGEST_STEP)
        shorter = jnp.maximum(pane.length * STEP_SHRINKAGE, SHORTEST_STEP)
        on_cpu = jax.default_backend() == "cpu"
        return replace(
            pane,
            u=Jet(value, u.tangents),
            # computed again on accelerators, where reading both from memory takes longer
            lifted=pick(new_lifted, lifted) if on_cpu else sigma.pair(value),
            r=Jet(pick(new_r, r.value), r.tangents),
            upper=pick(new_upper, upper),
            length=jnp.where(taken, longer, shorter),
        )

    return _each(window, move)


UPDATES: dict[str, Update] = {
    "W": update_W,
    "b": update_b,
    "Wb": update_Wb,
    "d": update_d,
    "a": update_a,
    "a-shared": partial(update_a, shared=True),
}


def updates(names: Sequence[str], guard: float = 0.0) -> list[Update]:
    """The updates of blocks with these names; "W" followed by "b" takes one pass over samples.

    Parameters
    ----------
    names : of the blocks.
    guard : see `solve_W`.
    """
    functions: list[Update] = []
    for k, name in enumerate(names):
        if name == "b" and k and names[k - 1] == "W":
            functions[-1] = partial(update_Wb, joint=False, guard=guard)
        elif name in ("W", "Wb"):
            functions.append(partial(update_W if name == "W" else update_Wb, guard=guard))
        else:
            functions.append(UPDATES[name])
    return functions
