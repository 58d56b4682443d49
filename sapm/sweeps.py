"""Block updates for any term: with ψ itself, second derivatives, a nonlinear function. Slower than `sapm.blocks`, and plain.

Every block takes the exact gradient of the loss, divides it by the Gauss-Newton matrix of the block with the adaptive weights
held (ridges from those that grow with the block's own norm included), and goes along that direction as far as the exact loss
falls enough. The direction is one of descent, so the loss never rises; where the loss is a quadratic in the block, the
step is its minimiser.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from sapm import lstsq
from sapm.jet import Jet, lift
from sapm.network import Dense, Network, Stack
from sapm.objective import Objective, Point, defects, held, omega, target
from sapm.spread import Curve, lengths
from sapm.term import Term

ARMIJO, TRIALS, OUTPUT_STEPS = 1e-4, 14, 3  # of the line searches; Gauss-Newton steps of a nonlinear output block
BLOCKS = ("W", "b", "Wb", "d", "S", "a")  # d: tangents (at the top the whole output jet), S: second-order channels, a: values


class Sizes(eqx.Module):
    """Of a term, by layer and sample: squared norms of the value defects and of each channel's; its `lengths`."""

    v: Float[Array, "L n"]
    e: Float[Array, "L n k"]
    t: Float[Array, "L n"]
    curve: Curve | None

    def at(self, l: int, r: Jet) -> Sizes:
        """With the defects of layer l."""
        v, e = jnp.sum(r.value**2, -1), jnp.sum(r.tangents**2, -1)
        return replace(self, v=self.v.at[l - 1].set(v), e=self.e.at[l - 1].set(e))


def measure(obj: Objective, i: int, network: Network, u: Stack) -> Sizes:
    rs = defects(obj.terms[i], network, u)
    v, e = rs.map(lambda r: (jnp.sum(r.value**2, -1), jnp.sum(r.tangents**2, -1))).rows()
    return Sizes(v, e, *lengths(obj.terms[i], network, u))


def shares(obj: Objective, i: int, s: Float[Array, " L"], sizes: Sizes) -> Float[Array, " n"]:
    """The loss of each sample of term i, before κ_n and without its output's misfit."""
    value, channel = held(obj, i, omega(obj, s), sizes.t, sizes.curve)
    channel = channel[..., 0] if channel.ndim > 1 else channel[:, None, None]
    return jnp.sum(value * sizes.v, 0) + jnp.sum(channel * sizes.e, (0, 2))


def _squares(network: Network) -> Float[Array, " L"]:
    return network.stack.map(lambda layer: jnp.sum(layer.W**2)).rows()


def _defect(obj: Objective, term: Term, network: Network, u: Stack, l: int, layer: Dense | None = None) -> Jet:
    """r_l, perhaps with another layer."""
    z = term.x if l == 1 else lift(network.sigma, u[l - 1])
    return jax.tree.map(jnp.subtract, (layer or network.stack[l])(z), target(term, u[l], l == obj.depth))


def search(cost: Callable[[Array], Array], x: Array, before: Array, step: Array, slope: Array) -> Array:
    """x + h step with the first h of 1, 1/2, 1/4, … that lowers the cost by at least ARMIJO h |slope|; x if none does.

    `before` is the cost at x: one number, or (n,) for the rows of x apart; `slope` is the derivative along the step.
    """
    wide = lambda h: h.reshape(h.shape + (1,) * (x.ndim - h.ndim))  # noqa: E731

    def attempt(kept):
        k, h, good = kept
        h = jnp.where(good, h, h / 2)
        return k + 1, h, good | (cost(x + wide(h) * step) <= before + ARMIJO * h * slope)

    going = lambda kept: (kept[0] < TRIALS) & ~jnp.all(kept[2])  # noqa: E731
    _, h, good = lax.while_loop(going, attempt, (0, 2 * jnp.ones_like(before), jnp.zeros_like(before, bool)))
    return jnp.where(wide(good), x + wide(h) * step, x)


# ---------------------------------------------------------------- the layers


def update_layer(obj: Objective, point: Point, l: int, block: str) -> Point:
    """W_l, b_l, or both ("Wb")."""
    network, layer, s = point.network, point.network.stack[l], _squares(point.network)
    sizes = [measure(obj, i, network, u) for i, u in enumerate(point.aux)]
    kappa = [jnp.broadcast_to(term.weight, len(term.y)) for term in obj.terms]

    def loss(s, sizes) -> Float[Array, ""]:
        """Up to the outputs' misfits, which no layer changes."""
        found = sum((k @ shares(obj, i, s, size) for i, (k, size) in enumerate(zip(kappa, sizes, strict=True))), jnp.zeros(()))
        return found if obj.l2 is None else found + obj.l2 * jnp.sum(s)

    def cost(x) -> Float[Array, ""]:
        new = Dense(x[:-1].T, x[-1])
        changed, there = [], replace(network, stack=network.stack.set(l, new))
        for term, u, size in zip(obj.terms, point.aux, sizes, strict=True):
            size = size.at(l, _defect(obj, term, network, u, l, new))
            changed.append(size if size.curve is None else replace(size, curve=lengths(term, there, u)[1]))
        return loss(s.at[l - 1].set(jnp.sum(new.W**2)), changed)

    normals = []
    for i, (term, u, size) in enumerate(zip(obj.terms, point.aux, sizes, strict=True)):
        value, channel = held(obj, i, omega(obj, s), size.t, size.curve)
        z = term.x if l == 1 else lift(network.sigma, u[l - 1])
        normals.append(lstsq.rows(z.value, jnp.zeros((len(z.value), 1)), kappa[i] * value[l - 1], bias=True))
        if term.is_pde:
            each = jnp.broadcast_to(kappa[i][:, None, None] * channel[l - 1], (*z.tangents.shape[:2], 1))
            flat = z.tangents.reshape(-1, z.tangents.shape[-1])
            normals.append(lstsq.rows(flat, jnp.zeros((len(flat), 1)), each.ravel(), room=True))
    gram, current = sum(normals[1:], normals[0]).gram, jnp.concatenate([layer.W.T, layer.b[None]])
    ridge, last = jax.grad(loss)(s, sizes)[l - 1], len(current) - 1
    ridges = jnp.where(jnp.arange(last + 1) < last, ridge, 0.0)
    moving = {"W": slice(0, last), "b": slice(last, last + 1), "Wb": slice(0, last + 1)}[block]
    part = lambda x: cost(current.at[moving].set(x))  # noqa: E731
    before, gradient = jax.value_and_grad(part)(current[moving])
    step = lstsq.step(lstsq.Normal(gram[moving, moving], 0.5 * gradient), ridges[moving], jnp.zeros_like(gradient))
    x = current.at[moving].set(search(part, current[moving], before, step, jnp.sum(gradient * step)))
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


def update_jets(obj: Objective, point: Point, l: int, part: str) -> Point:
    """One Gauss-Newton step for a part of u_l, each sample with a step length of its own."""
    network, aux = point.network, list(point.aux)
    for i, term in enumerate(obj.terms):
        if _take(aux[i][l], part).size:
            many = OUTPUT_STEPS if part == "u" and term.function is not None else 1
            aux[i] = lax.fori_loop(0, many, lambda _, u, i=i: _moved(obj, i, network, u, l, part), aux[i])
    return Point(network, tuple(aux))


def _moved(obj: Objective, i: int, network: Network, aux: Stack, l: int, part: str) -> Stack:
    term, u, s, top = obj.terms[i], aux[l], _squares(network), l == obj.depth
    sizes, k = measure(obj, i, network, aux), u.first
    ahead = network.preactivations(term.x)[l].tangents[:, :k] if sizes.curve is not None else 0.0
    value, channel = held(obj, i, omega(obj, s), sizes.t, sizes.curve)

    def touched(x) -> tuple[Jet, list[tuple[int, Jet]], Array]:
        """The new jet, the defects it touches, the residual of the output if that is it."""
        new = _put(u, part, x)
        layers = [m for m in (l, l + 1) if m <= obj.depth]
        found = [(m, _defect(obj, term, network, aux.set(l, new), m)) for m in layers]
        return new, found, term.residual(new) if top and term.is_pde else jnp.zeros((len(x), 0))

    def cost(x) -> Float[Array, " n"]:
        (new, found, misfit), size = touched(x), sizes
        for m, r in found:
            size = size.at(m, r)
        row = lambda old, d: old.at[l - 1].set(jnp.sum(d**2, (-2, -1)))  # noqa: E731
        curve = size.curve
        if curve is not None:
            curve = Curve(row(curve.q, new.tangents[:, k:]), row(curve.p, new.tangents[:, :k] + ahead))
        size = replace(size, t=row(size.t, new.tangents[:, :k]), curve=curve)
        return shares(obj, i, s, size) + jnp.sum(misfit**2, -1)

    def rows(x) -> Float[Array, "n r"]:
        """The square roots of what the jet adds to the loss, the weights held."""
        _, found, misfit = touched(x)
        flat = lambda a: a.reshape(len(x), -1)  # noqa: E731
        values = [jnp.sqrt(value[m - 1])[:, None] * r.value for m, r in found]
        channels = [flat(jnp.sqrt(channel[m - 1]) * r.tangents) for m, r in found]
        return jnp.concatenate([misfit, *values, *channels], axis=1)

    x = _take(u, part)
    (before, back), eye = jax.vjp(cost, x), jnp.eye(x.shape[1])
    gradient = back(jnp.ones_like(before))[0]
    along = lambda e: jax.jvp(rows, (x,), (jnp.broadcast_to(e, x.shape),))[1]  # noqa: E731
    J = jax.vmap(along)(eye)  # (entries, n, rows): the samples do not see each other
    H = jnp.einsum("inr,jnr->nij", J, J) + _ridge(obj, i, s, sizes, l, part)[:, None, None] * eye
    largest = jnp.max(jnp.einsum("nii->ni", H), axis=1)[:, None, None]
    H += (8 * (x.shape[1] + 1) * lstsq.EPS * largest + lstsq.TINY) * eye
    step = -0.5 * cho_solve((jnp.linalg.cholesky(H), True), gradient[..., None])[..., 0]
    return aux.set(l, _put(u, part, search(cost, x, before, step, jnp.sum(gradient * step, -1))))


def _ridge(obj: Objective, i: int, s: Float[Array, " L"], sizes: Sizes, l: int, part: str) -> Float[Array, " n"]:
    """How much the weights of a sample's defects grow with ‖d_l‖² or ‖S_l‖²: derivatives of its loss, the defects held."""
    if part not in ("d", "S"):
        return jnp.zeros(len(obj.terms[i].y))
    by = jax.grad(lambda sizes: jnp.sum(shares(obj, i, s, sizes)))(sizes)
    if by.curve is None:
        return by.t[l - 1]
    return by.curve.q[l - 1] if part == "S" else by.t[l - 1] + by.curve.p[l - 1]


def update(obj: Objective, point: Point, l: int, block: str) -> Point:
    """Run a block at layer l: "W", "b", "Wb", or a part of the jets; "d" at the top is the whole output jet of PDE terms."""
    if block in ("W", "b", "Wb"):
        return update_layer(obj, point, l, block)
    return update_jets(obj, point, l, "u" if (block, l) == ("d", obj.depth) else block)
