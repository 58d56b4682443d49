"""The block updates: each minimises the penalty loss over one block with the rest held fixed, and none raises it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from sapm import lstsq
from sapm.jet import Jet
from sapm.network import Dense
from sapm.objective import Norms, Objective, length_squared, output_misfit, ridge_d, ridge_W, sizes, target, value_weight
from sapm.work import Pane, Part, Window, Work, close_norms, close_window, is_layer, open_window, put_row

ARMIJO, GROW, SHRINK, LONGEST, SHORTEST = 1e-4, 1.5, 0.5, 4.0, 1e-6


def _run_blocks(obj: Objective, window: Window, l, blocks: tuple[str, ...]) -> Window:
    for update in _updates(blocks):
        window = update(obj, window, l)
    return window


def _updates(blocks: tuple[str, ...]) -> list:
    """One for every block, except that W_l and then b_l come from one pass over the samples."""
    pairs = list(itertools.pairwise(blocks))
    if ("W", "b") in pairs:
        at = pairs.index(("W", "b"))
        return [*_updates(blocks[:at]), update_W_then_b, *_updates(blocks[at + 2 :])]
    return [BLOCKS[block] for block in blocks]


def update(obj: Objective, work: Work, l: int, *blocks: str) -> Work:
    """Run the named blocks, one after the other, at layer l."""
    return close_window(obj, work, l, _run_blocks(obj, open_window(obj, work, l), l, blocks))


def update_run(obj: Objective, work: Work, lowest: int, highest: int, down: bool, blocks: tuple[str, ...]) -> Work:
    """The same at the equal layers lowest..highest, downwards or upwards, compiled once.

    Each step reads the work as it was, except for what its predecessor changed, which is carried along. (Reading and writing
    one array in a loop would make XLA copy the whole of it at every step.)
    """

    def neighbour(window: Window, changed: tuple) -> Window:
        """The window with what the layer updated before it has changed."""
        if down:
            layer, panes = changed
            new = (replace(mine, goal=u, upper=r) for mine, (u, r) in zip(window.panes, panes, strict=True))
            return replace(window, above=layer, panes=tuple(new))
        new = (replace(mine, z=z, r=r) for mine, (z, r) in zip(window.panes, changed[1], strict=True))
        return replace(window, panes=tuple(new))

    def changes(window: Window) -> tuple:
        if down:
            seen = window.layer.rounded(window.panes[0].z.value.dtype)
            return seen, tuple((pane.u, pane.r) for pane in window.panes)
        lifted = (Jet(p.lifted[0], p.lifted[1][:, None, :] * p.u.tangents) for p in window.panes)  # type: ignore[index]
        return None, tuple((z, pane.upper) for z, pane in zip(lifted, window.panes, strict=True))

    def body(carry, l):
        changed, n = carry
        window = replace(neighbour(open_window(obj, work, l), changed), norms=n)
        window = _run_blocks(obj, window, l, blocks)
        written = [(p.u, p.lifted, p.upper if down else p.r, p.length) for p in window.panes]
        return (changes(window), close_norms(obj, window, l)), (window.layer, written)

    if down:
        start = open_window(obj, work, highest)
        changed = start.above, tuple((pane.goal, pane.upper) for pane in start.panes)
    else:
        changed = None, tuple((pane.z, pane.r) for pane in open_window(obj, work, lowest).panes)
    layers = jnp.arange(lowest, highest + 1)
    (changed, n), (layer, written) = lax.scan(body, (changed, work.norms), layers, reverse=down)
    parts = []
    for part, (u, lifted, r, length), (_, edge) in zip(work.parts, written, changed[1], strict=True):
        found = part.defect.set_range(lowest + down, r).set(lowest if down else highest + 1, edge)
        length = lax.dynamic_update_slice_in_dim(part.length, length, lowest - 1, 0)
        parts.append(Part(part.aux.set_range(lowest, u), part.lifted.set_range(lowest, lifted), found, length))
    stack = work.network.stack.set_range(lowest, layer)
    return Work(replace(work.network, stack=stack), tuple(parts), n)


def _each(window: Window, change) -> Window:
    """Replace every pane by change(i, pane)."""
    return replace(window, panes=tuple(change(i, pane) for i, pane in enumerate(window.panes)))


def _residual(obj: Objective, l, layer: Dense, i: int, pane: Pane) -> Jet:
    goal = target(obj.terms[i], pane.u, is_layer(l, obj.depth))
    return jax.tree.map(jnp.subtract, layer.rounded(pane.z.value.dtype)(pane.z), goal)


def _has_value(obj: Objective, i: int, l) -> bool:
    """A PDE term has no value defect at the top."""
    return not (obj.terms[i].is_pde and is_layer(l, obj.depth))


def rows(obj: Objective, window: Window, l, slopes: bool = True, bias: bool = False) -> lstsq.Normal:
    """The normal equations that W_l (`slopes`), b_l (`bias`) or both are solved from: sums over the samples of the window."""
    normals = []
    for i, (term, pane) in enumerate(zip(obj.terms, window.panes, strict=True)):
        if _has_value(obj, i, l):
            weight = term.weight * value_weight(obj, i, window.norms.t[i], l)
            z = pane.z.value if slopes else pane.z.value[:, :0]
            normals.append(lstsq.rows(z, pane.r.value, weight, bias=bias))
        if term.is_pde and slopes:
            z, r = (x.reshape(-1, x.shape[-1]) for x in (pane.z.tangents, pane.r.tangents))
            weight = term.weight * obj.alpha[i][l - 1]
            weight = jnp.repeat(weight, term.c.shape[-1]) if weight.ndim else weight
            normals.append(lstsq.rows(z, r, weight, room=bias))
    if not normals:
        return lstsq.Normal(jnp.zeros((1, 1)), jnp.zeros((1, len(window.layer.b))))
    return sum(normals[1:], normals[0])


def solve_W(obj: Objective, layer: Dense, norms: Norms, l, total: lstsq.Normal, joint: bool = False) -> tuple[Dense, Norms]:
    """W_l (with `joint`: and b_l) that minimises what the rows add up to, plus λ_l ‖W_l‖²."""
    current = jnp.concatenate([layer.W.T, layer.b[None]]) if joint else layer.W.T
    ridge = jnp.where(jnp.arange(len(current)) < layer.W.shape[1], ridge_W(obj, norms, l), 0.0)
    new = current + lstsq.step(total, ridge, current)
    layer = Dense(new[:-1].T, new[-1]) if joint else Dense(new.T, layer.b)
    return layer, replace(norms, s=put_row(norms.s, l, jnp.sum(layer.W**2)))


def shift_b(total: lstsq.Normal) -> Float[Array, " out"]:
    """The weighted mean of the defects, from the last of the normal equations: what b_l comes down by."""
    weight = total.gram[-1, -1]
    return jnp.where(weight > 0, total.moment[-1] / jnp.where(weight > 0, weight, 1.0), 0.0)


def solve(obj: Objective, layer: Dense, norms: Norms, l, total: lstsq.Normal, joint: bool = False) -> tuple[Dense, Norms]:
    """W_l and then b_l (`joint`: together) from the sums of one pass, those of the features [z, 1]."""
    if joint:
        return solve_W(obj, layer, norms, l, total, joint=True)
    m = layer.W.shape[1]
    new, norms = solve_W(obj, layer, norms, l, lstsq.Normal(total.gram[:m, :m], total.moment[:m]))
    moved = total.moved(jnp.pad((new.W - layer.W).T, ((0, 1), (0, 0))))
    return Dense(new.W, layer.b - shift_b(moved)), norms


def _with_layer(obj: Objective, window: Window, l, layer: Dense, norms: Norms) -> Window:
    window = replace(window, layer=layer, norms=norms)
    return _each(window, lambda i, pane: replace(pane, r=_residual(obj, l, layer, i, pane)))


def update_W_then_b(obj: Objective, window: Window, l) -> Window:
    """`update_W` and then `update_b`, from the sums of one pass."""
    return _with_layer(obj, window, l, *solve(obj, window.layer, window.norms, l, rows(obj, window, l, bias=True)))


def update_W(obj: Objective, window: Window, l, joint: bool = False) -> Window:
    """W_l (with `joint`: W_l and b_l together) minimises Σ κ (β_l Ω² ‖W z + b - a‖² + α_l Σ_i ‖W z_i - d_i‖²) + λ_l ‖W‖²."""
    return _with_layer(obj, window, l, *solve_W(obj, window.layer, window.norms, l, rows(obj, window, l, bias=joint), joint))


def update_b(obj: Objective, window: Window, l) -> Window:
    """b_l minimises Σ κ β_l Ω² ‖W z + b - a‖²: it moves by minus the weighted mean of the defects."""
    shift = shift_b(rows(obj, window, l, slopes=False, bias=True))
    window = replace(window, layer=Dense(window.layer.W, window.layer.b - shift))
    return _each(window, lambda i, pane: replace(pane, r=Jet(pane.r.value - shift.astype(pane.r.value.dtype), pane.r.tangents)))


def _gap(obj: Objective, window: Window, l) -> Float[Array, ""]:
    """ω_l / ω_{l+1}: ‖W_{l+1}‖_F² under SAPM, 1 under PM."""
    return window.norms.s[l] if obj.adaptive else jnp.ones(())


def update_d(obj: Objective, window: Window, l) -> Window:
    """d_l of every PDE sample minimises α_{l+1} ‖W_{l+1}(σ'∘d) - d_{l+1}‖² + (ω_l/ω_{l+1}) α_l ‖D - d‖² + ξ ‖d‖².

    D = W_l z_{l-1} is what layer l gives. At the top: |c·d - y|² + α_L ‖D - d‖², in closed form.
    """
    n = window.norms
    out, ts, panes = list(n.out), list(n.t), list(window.panes)
    for i, term in enumerate(obj.terms):
        if not term.is_pde:
            continue
        pane = panes[i]
        u, r, upper = pane.u, pane.r, pane.upper
        kind = u.tangents.dtype
        alpha = obj.alpha[i].astype(kind)
        if upper is None or window.above is None or pane.lifted is None or pane.goal is None:  # the top
            misfit = -term.residual(Jet(u.value, u.tangents + r.tangents))
            gain = term.c / (alpha[-1] + jnp.sum(term.c**2, -1, keepdims=True))
            change = gain[:, :, None] * misfit[:, None, :] + r.tangents
            u = Jet(u.value, u.tangents + change)
            out[i] = output_misfit(term, u)
        else:
            W, slope = window.above.W, pane.lifted[1]
            xi = ridge_d(obj, i, n.s, put_row(n.v[i], l, sizes(term, r)[0]), l).astype(kind)
            shift, scale = _gap(obj, window, l).astype(kind) * alpha[l - 1], alpha[l]
            gradient = scale * slope[:, None, :] * (upper.tangents @ W) - shift * r.tangents
            gradient += xi[:, None, None] * u.tangents
            change = lstsq.shifted_solve(W, jnp.sqrt(scale) * slope, shift + xi, -gradient)
            u = Jet(u.value, u.tangents + change)
            upper = Jet(upper.value, (slope[:, None, :] * u.tangents) @ W.T - pane.goal.tangents)
        ts[i] = put_row(ts[i], l, length_squared(u))
        panes[i] = replace(pane, u=u, r=Jet(r.value, r.tangents - change), upper=upper)
    return replace(window, panes=tuple(panes), norms=replace(n, t=tuple(ts), out=tuple(out)))


def _weights_a(obj: Objective, window: Window, i: int, l) -> tuple[Array, Array, Array]:
    """ρ = (ω_l/ω_{l+1}) β_l Ω²_l, β_{l+1} Ω²_{l+1} and α_{l+1}: the weights of φ in `update_a`."""
    t, kind = window.norms.t[i], window.panes[i].u.value.dtype
    rho, value = _gap(obj, window, l) * value_weight(obj, i, t, l), value_weight(obj, i, t, l + 1)
    return rho.astype(kind), value.astype(kind), obj.alpha[i][l].astype(kind)


def update_a(obj: Objective, window: Window, l, shared: bool = False) -> Window:
    """One gradient step for a_l, each sample with a step length of its own; `shared`: one length for all samples of a term.

    Sample by sample the loss is, up to κ_n ω_{l+1},
        φ(a) = β_{l+1} Ω²_{l+1} ‖W σ(a) + b - a_{l+1}‖² + α_{l+1} Σ_i ‖W (σ'(a)∘d_i) - d_{l+1,i}‖² + ρ ‖q - a‖²,
    ρ = (ω_l/ω_{l+1}) β_l Ω²_l. The step is -length · ∇φ/(2ρ). It is taken if it passes Armijo's test; the next one is then
    1.5 times longer (at most 4), otherwise half as long (at least 1e-6): backtracking spread over the sweeps. The
    problem separates over samples, so lengths of their own need no sum over them; measured, fewer runs collapse.
    """
    sigma, above = window.sigma, window.above
    assert above is not None

    def move(i: int, pane: Pane) -> Pane:
        u, r, upper, lifted = pane.u, pane.r, pane.upper, pane.lifted
        assert upper is not None and lifted is not None and pane.goal is not None
        rho, w_value, w_tangent = _weights_a(obj, window, i, l)
        scale = jnp.where(rho > 0, 1 / jnp.where(rho > 0, rho, 1.0), 0.0)

        gradient = w_value[..., None] * lifted[1] * (upper.value @ above.W) - rho[..., None] * r.value
        if obj.terms[i].is_pde:
            pull = u.tangents * (upper.tangents @ above.W)
            total = sum(pull[:, i] for i in range(pull.shape[1]))  # not jnp.sum: XLA runs a short reduction 20× slower
            gradient += w_tangent * sigma.curve(u.value, *lifted) * total
        step = -(pane.length * scale)[:, None] * gradient
        value = u.value + step
        new_lifted = sigma.pair(value)
        z = Jet(new_lifted[0], new_lifted[1][:, None, :] * u.tangents)
        new_upper = jax.tree.map(jnp.subtract, above(z), pane.goal)
        new_r = r.value - step

        def phi(r, upper):  # plain sums of squares first: XLA runs them 4× faster than weighted ones
            tau = jnp.sum(upper.tangents**2, axis=(-2, -1))
            return w_value * jnp.sum(upper.value**2, -1) + w_tangent * tau + rho * jnp.sum(r**2, -1)

        descent = 2 * scale * pane.length * jnp.sum(gradient**2, -1)
        gain = phi(r.value, upper) - phi(new_r, new_upper) - ARMIJO * descent
        taken = jnp.broadcast_to(jnp.sum(obj.terms[i].weight * gain) >= 0, gain.shape) if shared else gain >= 0

        def pick(new, old):
            return jax.tree.map(lambda x, y: jnp.where(taken.reshape(-1, *(1,) * (x.ndim - 1)), x, y), new, old)

        taken_value, on_cpu = pick(value, u.value), jax.default_backend() == "cpu"
        return replace(
            pane,
            u=Jet(taken_value, u.tangents),
            lifted=pick(new_lifted, lifted) if on_cpu else sigma.pair(taken_value),  # elsewhere memory is slower
            r=Jet(pick(new_r, r.value), r.tangents),
            upper=pick(new_upper, upper),
            length=jnp.where(taken, jnp.minimum(pane.length * GROW, LONGEST), jnp.maximum(pane.length * SHRINK, SHORTEST)),
        )

    return _each(window, move)


def update_a_relu(obj: Objective, window: Window, l) -> Window:
    """ReLU only: one unit of a_l after the other takes its global minimiser, sample by sample, in closed form.

    As a function of one entry, φ of `update_a` is a parabola on either side of 0. Left: min(q, 0). Right: the vertex,
    if it is positive. The lowest of these and the present entry is taken. (With tangents φ jumps at 0, and a vertex below
    0 leaves the right side without a minimum: then its entry may be kept.)
    """
    sigma, above = window.sigma, window.above
    if sigma.name != "relu":
        raise ValueError(f"the closed form for a exists for relu only, not for {sigma.name}; use the gradient step, block 'a'.")
    assert above is not None
    columns = above.W.T
    sizes = jnp.sum(columns**2, axis=1)

    def move(i: int, pane: Pane) -> Pane:
        u, q = pane.u, pane.u.value + pane.r.value
        rho, w_value, w_tangent = _weights_a(obj, window, i, l)

        def unit(j, carry):
            a, upper = carry
            old, qj, d, column, size = a[:, j], q[:, j], u.tangents[:, :, j], columns[j], sizes[j]

            def shifted(jet, x, sign):
                """The defects of layer l+1 with unit j at x added (sign 1) or taken out (-1)."""
                on = sign * jnp.where(x > 0, 1.0, 0.0)
                return Jet(jet.value + (on * x)[:, None] * column, jet.tangents + (on[:, None] * d)[:, :, None] * column)

            rest = shifted(upper, old, -1.0)
            pull, tug = rest.value @ column, rest.tangents @ column
            curve = w_value * size + rho
            vertex = (rho * qj - w_value * pull) / jnp.where(curve > 0, curve, 1.0)
            switched = w_tangent * jnp.sum(2 * d * tug + d**2 * size, -1)

            def cost(x):
                return jnp.where(x > 0, w_value * (2 * x * pull + x**2 * size) + switched, 0.0) + rho * (x - qj) ** 2

            left, right = jnp.minimum(qj, 0.0), jnp.where(vertex > 0, vertex, old)
            best = jnp.where(cost(right) < cost(left), right, left)
            best = jnp.where(cost(best) < cost(old), best, old)
            return a.at[:, j].set(best), shifted(rest, best, 1.0)

        value, upper = lax.fori_loop(0, len(columns), unit, (u.value, pane.upper))
        r = Jet(q - value, pane.r.tangents)
        return replace(pane, u=Jet(value, u.tangents), lifted=sigma.pair(value), r=r, upper=upper)

    return _each(window, move)


def update_a_shared(obj: Objective, window: Window, l) -> Window:
    return update_a(obj, window, l, shared=True)


def update_Wb(obj: Objective, window: Window, l) -> Window:
    return update_W(obj, window, l, joint=True)


BLOCKS = {
    "W": update_W,
    "b": update_b,
    "Wb": update_Wb,
    "d": update_d,
    "a": update_a,
    "a-shared": update_a_shared,
    "a-relu": update_a_relu,
}
