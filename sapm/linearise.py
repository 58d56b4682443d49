"""The network linearised at a point whose auxiliary variables need not be those of the forward pass.

For given changes δθ of the weights the best changes of the auxiliary variables are known in closed form, sample by sample;
what is left of a penalty loss (its adaptive weights held) is |ρ̃ + J̃ δθ|², with

    J̃_l[n] = Σ_channels G̃_l[n] ⊗ z_{l-1}[n] ,     G̃_l = √κ_n S_n^{-1/2} ∂output/∂u_l ,     S_n = 1 + Σ_l ‖G_l[n]‖²/w_{l,n}

and z_{l-1} the lifted input of layer l (docs/how-it-works.md). J̃ itself is hardly ever needed: J̃ J̃ᵀ, J̃ δθ and J̃ᵀ v are made
from its factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from sapm.jet import Activation, Jet, lift
from sapm.network import Dense, Network, Stack
from sapm.objective import Objective, defects, held, lengths, omega, target
from sapm.term import Term

TINY = 1e-300


class Row(eqx.Module):
    """One layer's factors of the rows of J̃ that belong to a term: (output, sample) pairs r, with k channels each.

    `constants`: so many of the last outputs of this layer have a b and no W.
    """

    g: Float[Array, "r out"]
    z: Float[Array, "r in"]
    gt: Float[Array, "r k out"]
    zt: Float[Array, "r k in"]
    constants: int = eqx.field(static=True, default=0)

    @property
    def gw(self) -> Float[Array, "r out"]:
        """g as W sees it."""
        return self.g.at[:, -self.constants :].set(0.0) if self.constants else self.g


Rows = tuple[Stack, ...]  # of Row by layer, a stack for every term: samples of a term stay together, wherever they lie
Residual = tuple[Float[Array, " r"], ...]  # ρ̃, likewise


def total(stack: Stack, f: Callable) -> Array:
    """Σ_l f(layer l): the layers of the run one after another in a loop."""
    found = reduce(jnp.add, [f(x) for x in (*stack.head, *stack.tail)])
    if stack.body is None:
        return found
    return lax.scan(lambda c, x: (c + f(x), None), found, stack.body)[0]


# ---------------------------------------------------------------- the linearised network


def pull(sigma: Activation, u: Jet, gz: Jet) -> Jet:
    """Gradients with respect to u from those with respect to lift(u); the first axis of gz counts outputs."""
    back = jax.vjp(lambda jet: lift(sigma, jet), u)[1]
    return jax.vmap(lambda g: back(g)[0])(gz)


def through(layer: Dense, g: Jet) -> Jet:
    """Gradients with respect to a layer's input from those with respect to what it gives."""
    return Jet(g.value @ layer.W, g.tangents @ layer.W, g.forms)


def gains(network: Network, u: Stack, top: Jet) -> Stack:
    """G_l = ∂output/∂u_l for l = 1..L, the layers linearised at u; `top` is G_L. Jets with the outputs on the first axis."""
    stack, sigma = network.stack, network.sigma
    tail, g = [top], top
    for layer, jet in zip(stack.tail[:0:-1], u.tail[-2::-1], strict=True):
        g = pull(sigma, jet, through(layer, g))
        tail.append(g)
    gz, body = through(stack.tail[0], g), None
    if stack.body is not None:

        def down(gz, pair):
            layer, jet = pair
            g = pull(sigma, jet, gz)
            return through(layer, g), g

        gz, body = lax.scan(down, gz, (stack.body, u.body), reverse=True)
    head = []
    for layer, jet in zip(stack.head[::-1], u.head[::-1], strict=True):
        g = pull(sigma, jet, gz)
        head.append(g)
        gz = through(layer, g)
    return Stack(tuple(head[::-1]), body, tuple(tail[::-1]), stack.run)


def inputs(network: Network, x: Jet, u: Stack) -> Stack:
    """z_{l-1} for l = 1..L: the input jet, then lift(u_{l-1})."""
    z = [x, *(lift(network.sigma, jet) for jet in u.head)]
    head, body = z[: len(u.head)], None
    last = z[-1]
    if u.body is not None:
        inner = jax.vmap(lambda jet: lift(network.sigma, jet))(u.body)
        body = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b[:-1]]), last, inner)
        last = jax.tree.map(lambda b: b[-1], inner)
    tail = [last, *(lift(network.sigma, jet) for jet in u.tail[:-1])]
    return Stack(tuple(head), body, tuple(tail), u.run)


class Linear(eqx.Module):
    """A term linearised at a point: residual ρ (n, o) with the defects carried to the output, gains, inputs, defects, weights.

    `inverse` (per layer, of values (n,) and of channels () or (n, k, 1)) are 1/w; zero where there is nothing to choose.
    """

    rho: Float[Array, "n o"]
    g: Stack
    z: Stack
    r: Stack
    inverse: Stack
    root: Float[Array, "n o o"]  # Cholesky factor of S_n


def linearise(obj: Objective, i: int, network: Network, u: Stack, lifted) -> Linear:
    term, depth = obj.terms[i], obj.depth
    n, o = term.y.shape
    *below, r_top = defects(term, network, u).layers()
    output = u.tail[-1]
    if not term.uses_value:  # no value is free at the top: the output has that of the last layer, and no defect in it
        output = replace(output, value=r_top.value + target(term, output, True).value)
        r_top = replace(r_top, value=jnp.zeros_like(r_top.value))
    r = Stack.of([*below, r_top], network.stack.run)
    residual, back = jax.vjp(term.residual, output)
    top = jax.vmap(lambda e: back(jnp.broadcast_to(e, (n, o)))[0])(jnp.eye(o))
    g = gains(network, u, top)
    rho = residual + total_pair(
        g, r, lambda g, r: jnp.einsum("onm,nm->no", g.value, r.value) + jnp.einsum("onkm,nkm->no", g.tangents, r.tangents)
    )
    w = omega(obj, network.stack.map(lambda layer: jnp.sum(layer.W**2)).rows())
    value, tangent = held(obj, i, w, *lengths(term, network, u))
    free = (jnp.arange(depth) < depth - 1) | term.uses_value
    value = jnp.where(free[:, None], 1 / jnp.maximum(value, TINY), 0.0)
    tangent = 1 / jnp.maximum(tangent, TINY) * (1.0 if term.is_pde else 0.0)
    inverse = Stack.of([(lifted * value[l], lifted * tangent[l]) for l in range(depth)], network.stack.run)

    def shift(g, inv):
        v, t = inv
        values = jnp.einsum("onm,pnm,n->nop", g.value, g.value, v)
        if t.ndim:
            return values + jnp.einsum("onkm,pnkm,nk->nop", g.tangents, g.tangents, t[..., 0])
        return values + t * jnp.einsum("onkm,pnkm->nop", g.tangents, g.tangents)

    shifts = total_pair(g, inverse, shift)
    root = jnp.linalg.cholesky(jnp.eye(o) + shifts) if o > 1 else jnp.sqrt(1 + shifts)
    return Linear(rho, g, inputs(network, term.x, u), r, inverse, root)


def paired(a: Stack, b: Stack) -> Stack:
    """By layer, (a_l, b_l)."""
    body = None if a.body is None else (a.body, b.body)
    return Stack(tuple(zip(a.head, b.head, strict=True)), body, tuple(zip(a.tail, b.tail, strict=True)), a.run)


def total_pair(a: Stack, b: Stack, f: Callable) -> Array:
    return total(paired(a, b), lambda pair: f(*pair))


def unroot(root: Float[Array, "n o o"], x: Float[Array, "o n ..."], transpose: bool = False) -> Array:
    """root^{-1} (or its transpose) applied along the outputs."""
    if root.shape[-1] == 1:
        return x / root[:, 0, 0].reshape(1, -1, *(1,) * (x.ndim - 2))
    flat = jnp.moveaxis(x, 0, 1).reshape(x.shape[1], x.shape[0], -1)
    out = jax.scipy.linalg.solve_triangular(root, flat, lower=True, trans=int(transpose))
    return jnp.moveaxis(out.reshape(x.shape[1], x.shape[0], *x.shape[2:]), 1, 0)


def rows_of(terms: Sequence[Term], parts: Sequence[Linear], constants: int = 0) -> tuple[Rows, Residual]:
    """The factors of J̃ and ρ̃."""
    flat = lambda a: a.reshape(a.shape[0] * a.shape[1], *a.shape[2:])  # noqa: E731
    rows, rho = [], []
    for term, part in zip(terms, parts, strict=True):
        weight = root_weight(term)

        def scaled(a, root=part.root, scale=weight) -> Array:
            return flat(unroot(root, a) * scale.reshape(-1, *(1,) * (a.ndim - 2)))

        def row(pair, scaled=scaled) -> Row:
            g, z = pair
            repeated = lambda a: flat(jnp.broadcast_to(a, (g.value.shape[0], *a.shape)))  # noqa: E731
            return Row(scaled(g.value), repeated(z.value), scaled(g.tangents), repeated(z.tangents))

        found = paired(part.g, part.z).map(row)
        rows.append(replace(found, tail=(*found.tail[:-1], replace(found.tail[-1], constants=constants))))
        rho.append(scaled(part.rho.T))
    return tuple(rows), tuple(rho)


# ---------------------------------------------------------------- J̃ J̃ᵀ, J̃ᵀ v, J̃ δθ, and J̃ itself


def gram(rows: Rows) -> Float[Array, "r r"]:
    """K = J̃ J̃ᵀ without J̃: Hadamard products of small Gram matrices, over layers and channels, for every pair of terms."""

    def along(a: Row, b: Row) -> Array:
        """The channels of a with the values of b."""
        r, k = a.gt.shape[:2]
        gt, zt = a.gt.reshape(r * k, -1), a.zt.reshape(r * k, -1)
        return ((gt @ b.g.T) * (zt @ b.z.T)).reshape(r, k, -1).sum(1)

    def block(a: Row, b: Row) -> Array:
        zz, gg = a.z @ b.z.T, a.g @ b.g.T
        K = gg * (zz + 1.0) if not a.constants else (a.gw @ b.gw.T) * zz + gg
        (r, k), (q, j) = a.gt.shape[:2], b.gt.shape[:2]
        if k:
            K += along(a, b)
        if j:
            K += along(b, a).T
        if k and j:
            flat = lambda x: x.reshape(-1, x.shape[-1])  # noqa: E731
            K += ((flat(a.gt) @ flat(b.gt).T) * (flat(a.zt) @ flat(b.zt).T)).reshape(r, k, q, j).sum((1, 3))
        return K

    upper = {(i, j): total_pair(a, b, block) for i, a in enumerate(rows) for j, b in enumerate(rows) if i <= j}
    count = range(len(rows))
    return jnp.block([[upper[i, j] if i <= j else upper[j, i].T for j in count] for i in count])


def added(stacks: Sequence[Stack]) -> Stack:
    return reduce(lambda a, b: jax.tree.map(jnp.add, a, b), stacks)


def transposed(rows: Rows, v: Residual) -> Stack:
    """J̃ᵀ v as a stack of layers."""

    def one(row: Row, v: Array) -> Dense:
        W = (v[:, None] * row.gw).T @ row.z + jnp.einsum("rko,rki->oi", v[:, None, None] * row.gt, row.zt)
        return Dense(W, v @ row.g)

    return added([stack.map(lambda row, part=part: one(row, part)) for stack, part in zip(rows, v, strict=True)])


def times(rows: Rows, change: Stack) -> Residual:
    """J̃ δθ."""

    def one(row: Row, layer: Dense) -> Array:
        out = jnp.sum(row.g * (row.z @ layer.W.T + layer.b), axis=1)
        return out + jnp.sum(row.gt * (row.zt @ layer.W.T), axis=(1, 2)) if row.gt.shape[1] else out

    return tuple(total_pair(stack, change, one) for stack in rows)


def dense(rows: Rows) -> Float[Array, "r p"]:
    """J̃, columns layer by layer."""
    return jnp.concatenate([_dense(stack) for stack in rows])


def _dense(stack: Stack) -> Float[Array, "r p"]:
    def one(row: Row) -> Array:
        J = jnp.concatenate([row.gw[:, :, None] * row.z[:, None, :], row.g[:, :, None]], axis=2)
        if row.gt.shape[1]:
            J = J.at[:, :, :-1].add(jnp.einsum("rko,rki->roi", row.gt, row.zt))
        return J.reshape(len(J), -1)

    parts = [one(row) for row in stack.head]
    if stack.body is not None:
        body = jax.vmap(one)(stack.body)
        parts.append(jnp.moveaxis(body, 0, 1).reshape(body.shape[1], -1))
    return jnp.concatenate([*parts, *(one(row) for row in stack.tail)], axis=1)


def flatten(stack: Stack) -> Float[Array, " p"]:
    """A stack of layers in the order of the columns of `dense`."""
    one = lambda layer: jnp.concatenate([layer.W, layer.b[..., None]], axis=-1).reshape(-1)  # noqa: E731
    body = [] if stack.body is None else [one(stack.body)]
    return jnp.concatenate([*map(one, stack.head), *body, *map(one, stack.tail)])


CHUNK_BYTES = 2**28  # as much of J̃ is made at once where only J̃ᵀ J̃ is wanted


def normal(rows: Rows) -> Float[Array, "p p"]:
    """J̃ᵀ J̃; from some rows of J̃ at a time if it is large: every so-and-so-manyth, so that all devices have their share."""

    def one(stack: Stack) -> Array:
        r, weights = jax.eval_shape(_dense, stack).shape
        count = -(-8 * r * weights // CHUNK_BYTES)
        if count <= 1:
            J = _dense(stack)
            return J.T @ J

        def piece(k) -> Stack:
            def cut(a):
                a = jnp.pad(a, [(0, -r % count)] + [(0, 0)] * (a.ndim - 1))
                return lax.dynamic_index_in_dim(a.reshape(len(a) // count, count, *a.shape[1:]), k, 1, keepdims=False)

            return stack.map(lambda row: jax.tree.map(cut, row))

        def add(k, state):
            found, now = state
            J = _dense(now)
            return found + J.T @ J, piece(k + 1)  # cut beforehand: XLA of JAX 0.11 fails to fuse a cut with what is done to it

        return lax.fori_loop(0, count, add, (jnp.zeros((weights, weights)), piece(0)))[0]

    return sum((one(stack) for stack in rows[1:]), one(rows[0]))


def squares(rows: Rows) -> Stack:
    """The diagonal of J̃ᵀ J̃, as a stack of layers."""

    def one(row: Row) -> Dense:
        W = (row.gw**2).T @ row.z**2
        if row.gt.shape[1]:
            W = W + 2 * jnp.einsum("ro,rko,ri,rki->oi", row.gw, row.gt, row.z, row.zt)
            W = W + jnp.einsum("rko,rjo,rki,rji->oi", row.gt, row.gt, row.zt, row.zt)
        return Dense(W, jnp.sum(row.g**2, axis=0))

    return added([stack.map(one) for stack in rows])


def unflatten(flat: Float[Array, " p"], like: Stack) -> Stack:
    """The inverse of the columns of `dense`."""
    at = 0

    def take(W_shape) -> Dense:
        nonlocal at
        out, inner = W_shape
        piece = flat[at : at + out * (inner + 1)].reshape(out, inner + 1)
        at += out * (inner + 1)
        return Dense(piece[:, :-1], piece[:, -1])

    head = [take(layer.W.shape) for layer in like.head]
    body = None
    if like.body is not None:
        count, out, inner = like.body.W.shape
        piece = flat[at : at + count * out * (inner + 1)].reshape(count, out, inner + 1)
        at += piece.size
        body = Dense(piece[:, :, :-1], piece[:, :, -1])
    return Stack(tuple(head), body, tuple(take(layer.W.shape) for layer in like.tail), like.run)


# ---------------------------------------------------------------- the change of the auxiliary variables


def carried(network: Network, part: Linear, u: Stack, change: Stack, left: Float[Array, "n o"]) -> Stack:
    """δu_l = r_l + δW_l z_{l-1} + δb_l + W_l lift'(u_{l-1}) δu_{l-1} - e_l, with the defects e_l = G_l s / w_l left over."""
    stack, sigma = network.stack, network.sigma

    def below(jet: Jet, moved: Jet) -> Jet:
        return jax.jvp(lambda x: lift(sigma, x), (jet,), (moved,))[1]

    def one(carry, data):
        layer, change, r, z, g, (v, t) = data
        kept = Jet(
            jnp.einsum("onm,no->nm", g.value, left) * v[:, None], jnp.einsum("onkm,no->nkm", g.tangents, left) * t, g.forms
        )
        moved = change(z)
        out = jax.tree.map(lambda a, b, e: a + b - e, r, moved, kept)
        if carry is None:
            return out
        return Jet(out.value + carry.value @ layer.W.T, out.tangents + carry.tangents @ layer.W.T, out.forms)

    parts = (stack, change, part.r, part.z, part.g, part.inverse)
    carry, head, tail, body = None, [], [], None
    for j in range(len(stack.head)):
        out = one(carry, tuple(p.head[j] for p in parts))
        head.append(out)
        carry = below(u.head[j], out)
    if stack.body is not None:

        def step(carry, data):
            jet, rest = data
            out = one(carry, rest)
            return below(jet, out), out

        if carry is None:
            carry = jax.tree.map(jnp.zeros_like, part.z.body)
            carry = jax.tree.map(lambda a: a[0], carry)
        carry, body = lax.scan(step, carry, (u.body, tuple(p.body for p in parts)))
    for j in range(len(stack.tail)):
        out = one(carry, tuple(p.tail[j] for p in parts))
        if j == len(stack.tail) - 1 and not u.tail[-1].value.size:  # no value is free at the top
            out = replace(out, value=u.tail[-1].value)
        tail.append(out)
        carry = below(u.tail[j], out) if j < len(stack.tail) - 1 else None
    return Stack(tuple(head), body, tuple(tail), stack.run)


def root_weight(term: Term) -> Float[Array, " n"]:
    return jnp.sqrt(jnp.broadcast_to(term.weight, (len(term.y),)))
