"""Block updates for any term: with ψ itself, second derivatives, a nonlinear function. Slower than `sapm.blocks`, and plain.

Every block takes the exact gradient of the loss, divides it by the Gauss-Newton matrix of the block with the adaptive weights
held (ridges from those that grow with the block's own norm included), and goes along that direction as far as the exact loss
falls enough. The direction is one of descent, so the loss never rises; where the loss is a quadratic in the block, the
step is its minimiser.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float

from sapm import lstsq
from sapm.jet import Jet, lift
from sapm.network import Dense, Network, Stack
from sapm.objective import Objective, Point, defects, held, norms, omega, penalty, target, weigh
from sapm.spread import Curve, lengths
from sapm.term import Term

ARMIJO, TRIALS, OUTPUT_STEPS = 1e-4, 14, 3  # of the line searches; Gauss-Newton steps of a nonlinear output block
BLOCKS = ("W", "b", "Wb", "d", "S", "a")  # d: tangents (at the top the whole output jet), S: second-order channels, a: values


def shares(obj: Objective, i: int, network: Network, u: Stack, t: Array, curve: Curve | None) -> Float[Array, " n"]:
    """The loss of each sample of term i, before κ_n; t and curve are its `lengths`."""
    term = obj.terms[i]
    value, channel = held(obj, i, omega(obj, _squares(network)), t, curve)
    found = jnp.sum(term.residual(u[obj.depth]) ** 2, -1) if term.is_pde else jnp.zeros(len(term.y))
    for l, r in enumerate(defects(term, network, u).layers()):
        found += value[l] * jnp.sum(r.value**2, -1) + jnp.sum(channel[l] * r.tangents**2, (-2, -1))
    return found


def _squares(network: Network) -> Float[Array, " L"]:
    return network.stack.map(lambda layer: jnp.sum(layer.W**2)).rows()


def search(cost: Callable[[Array], Array], x: Array, step: Array, slope: Array) -> Array:
    """x + h step with the first h of 1, 1/2, 1/4, … that lowers the cost by at least ARMIJO h |slope|; x if none does.

    The cost is one number, or (n,) for the rows of x apart; `slope` is the derivative along the step, -∞ < slope ≤ 0.
    """
    before = cost(x)
    wide = lambda h: h.reshape(h.shape + (1,) * (x.ndim - h.ndim))  # noqa: E731

    def lower(h):
        return cost(x + wide(h) * step) <= before + ARMIJO * h * slope

    def halve(kept):
        k, h, good = kept
        h = jnp.where(good, h, h / 2)
        return k + 1, h, good | lower(h)

    one = jnp.ones_like(before)
    _, h, good = lax.while_loop(lambda kept: (kept[0] < TRIALS) & ~jnp.all(kept[2]), halve, (0, one, lower(one)))
    return jnp.where(wide(good), x + wide(h) * step, x)


# ---------------------------------------------------------------- the layers


def update_layer(obj: Objective, point: Point, l: int, block: str) -> Point:
    """W_l, b_l, or both ("Wb")."""
    network, layer = point.network, point.network.stack[l]
    total, w = [], omega(obj, _squares(network))
    for i, (term, u) in enumerate(zip(obj.terms, point.aux, strict=True)):
        value, channel = held(obj, i, w, *lengths(term, network, u))
        z = term.x if l == 1 else lift(network.sigma, u[l - 1])
        kappa = jnp.broadcast_to(term.weight, len(term.y))
        none = jnp.zeros((len(term.y), len(layer.b)))
        total.append(lstsq.rows(z.value, none, kappa * value[l - 1], bias=True))
        if term.is_pde:
            each = jnp.broadcast_to(kappa[:, None, None] * channel[l - 1], (*z.tangents.shape[:2], 1))
            flat = z.tangents.reshape(-1, z.tangents.shape[-1])
            total.append(lstsq.rows(flat, jnp.zeros((len(flat), len(layer.b))), each.ravel(), room=True))
    gram = sum(total[1:], total[0]).gram
    found = norms(obj, point, [defects(term, network, u) for term, u in zip(obj.terms, point.aux, strict=True)])
    ridge = jax.grad(lambda s: weigh(obj, replace(found, s=s)))(found.s)[l - 1]

    def cost(x) -> Float[Array, ""]:
        new = Dense(x[:-1].T, x[-1])
        return penalty(obj, replace(point, network=replace(network, stack=network.stack.set(l, new))))

    current = jnp.concatenate([layer.W.T, layer.b[None]])
    gradient, size = jax.grad(cost)(current), len(current)
    step, ridges = jnp.zeros_like(current), jnp.where(jnp.arange(size) < size - 1, ridge, 0.0)
    moving = {"W": slice(0, size - 1), "b": slice(size - 1, size), "Wb": slice(0, size)}[block]
    right = 0.5 * gradient[moving]
    step = step.at[moving].set(lstsq.step(lstsq.Normal(gram[moving, moving], right), ridges[moving], jnp.zeros_like(right)))
    x = search(cost, current, step, jnp.sum(gradient * step))
    return replace(point, network=replace(network, stack=network.stack.set(l, Dense(x[:-1].T, x[-1]))))


# ---------------------------------------------------------------- the jets


def _take(u: Jet, part: str) -> Float[Array, "n m"]:
    """The entries of a jet that a block moves, in a row for each sample; "u" stands for all of it."""
    k = u.first
    pick = {"a": (u.value,), "d": (u.tangents[:, :k],), "S": (u.tangents[:, k:],), "u": (u.value, u.tangents)}[part]
    return jnp.concatenate([x.reshape(len(x), -1) for x in pick], axis=1)


def _put(u: Jet, part: str, x: Float[Array, "n m"]) -> Jet:
    k, size = u.first, u.value.shape[1]
    if part == "a":
        return replace(u, value=x)
    if part == "u":
        return replace(u, value=x[:, :size], tangents=x[:, size:].reshape(u.tangents.shape))
    where = slice(0, k) if part == "d" else slice(k, None)
    return replace(u, tangents=u.tangents.at[:, where].set(x.reshape(u.tangents[:, where].shape)))


def _rows(obj: Objective, term: Term, network: Network, aux: Stack, l: int, weights: tuple) -> Float[Array, "n r"]:
    """The square roots of what u_l adds to the loss, the weights held: defects of layers l and l+1, and the output's misfit."""
    value, channel = weights
    found = [term.residual(aux[l])] if l == obj.depth and term.is_pde else []
    for m in range(l, min(l + 1, obj.depth) + 1):
        z = term.x if m == 1 else lift(network.sigma, aux[m - 1])
        r = jax.tree.map(jnp.subtract, network.stack[m](z), target(term, aux[m], m == obj.depth))
        found += [jnp.sqrt(value[m - 1])[:, None] * r.value, (jnp.sqrt(channel[m - 1]) * r.tangents).reshape(len(r.value), -1)]
    return jnp.concatenate(found, axis=1)


def _ridge(obj: Objective, i: int, network: Network, u: Stack, l: int, part: str, made: tuple) -> Float[Array, " n"]:
    """How much the weights of a sample's defects grow with ‖d_l‖² or ‖S_l‖²: derivatives of its loss, the defects held."""
    if part not in ("d", "S"):
        return jnp.zeros(len(obj.terms[i].y))
    w, rs = omega(obj, _squares(network)), defects(obj.terms[i], network, u).layers()

    def cost(t, curve) -> Float[Array, ""]:
        value, channel = held(obj, i, w, t, curve)
        squared = lambda m, r: value[m] @ jnp.sum(r.value**2, -1) + jnp.sum(channel[m] * r.tangents**2)  # noqa: E731
        return sum((squared(m, r) for m, r in enumerate(rs)), jnp.zeros(()))

    t, curve = jax.grad(cost, argnums=(0, 1))(*made)
    if part == "S":
        return curve.q[l - 1]
    return t[l - 1] if curve is None else t[l - 1] + curve.p[l - 1]


def update_jets(obj: Objective, point: Point, l: int, part: str) -> Point:
    """One Gauss-Newton step for a part of u_l, each sample with a step length of its own."""
    network, aux = point.network, list(point.aux)
    for i, term in enumerate(obj.terms):
        if _take(aux[i][l], part).size:
            many = part == "u" and term.function is not None
            for _ in range(OUTPUT_STEPS if many else 1):
                aux[i] = _moved(obj, i, network, aux[i], l, part)
    return Point(network, tuple(aux))


def _moved(obj: Objective, i: int, network: Network, aux: Stack, l: int, part: str) -> Stack:
    term, u = obj.terms[i], aux[l]
    made = lengths(term, network, aux)
    weights = held(obj, i, omega(obj, _squares(network)), *made)
    ahead = network.preactivations(term.x)[l].tangents[:, : u.first]

    def changed(x) -> Stack:
        return aux.set(l, _put(u, part, x))

    def cost(x) -> Float[Array, " n"]:
        new, (t, curve) = _put(u, part, x), made
        if part == "d":
            t = t.at[l - 1].set(jnp.sum(new.tangents[:, : u.first] ** 2, (-2, -1)))
            if curve is not None:
                curve = Curve(curve.q, curve.p.at[l - 1].set(jnp.sum((new.tangents[:, : u.first] + ahead) ** 2, (-2, -1))))
        elif part == "S" and curve is not None:
            curve = Curve(curve.q.at[l - 1].set(jnp.sum(new.tangents[:, u.first :] ** 2, (-2, -1))), curve.p)
        return shares(obj, i, network, changed(x), t, curve)

    x = _take(u, part)
    gradient = jax.grad(lambda x: jnp.sum(cost(x)))(x)
    rows = lambda x: _rows(obj, term, network, changed(x), l, weights)  # noqa: E731
    along = lambda e: jax.jvp(rows, (x,), (jnp.broadcast_to(e, x.shape),))[1]  # noqa: E731
    J = jax.vmap(along)(jnp.eye(x.shape[1]))  # (entries, n, rows): the samples do not see each other
    H = jnp.einsum("inr,jnr->nij", J, J) + _ridge(obj, i, network, aux, l, part, made)[:, None, None] * jnp.eye(x.shape[1])
    largest = jnp.max(jnp.einsum("nii->ni", H), axis=1)[:, None, None]
    H += (8 * (x.shape[1] + 1) * lstsq.EPS * largest + lstsq.TINY) * jnp.eye(x.shape[1])
    step = -0.5 * cho_solve(cho_factor(H, lower=True), gradient[..., None])[..., 0]
    return changed(search(cost, x, step, jnp.sum(gradient * step, -1)))


def update(obj: Objective, point: Point, l: int, block: str) -> Point:
    """Run a block at layer l: "W", "b", "Wb", or a part of the jets; "d" at the top is the whole output jet of PDE terms."""
    if block in ("W", "b", "Wb"):
        return update_layer(obj, point, l, block)
    return update_jets(obj, point, l, "u" if (block, l) == ("d", obj.depth) else block)
