"""The network linearised at any auxiliary variables, not only at those of the forward pass.

For a change δθ of the weights, the changes of the auxiliary variables that minimise the linearised
penalty loss (with fixed adaptive weights) are known in closed form, sample by sample. The minimum
is |ρ̃ + J̃ δθ|², where

    J̃_l[n] = Σ_channels G̃_l[n] ⊗ z_{l-1}[n]

    G_l = ∂output/∂u_l
    G̃_l = √κ_n S_n^{-1/2} G_l
    S_n = 1 + Σ_l ‖G_l[n]‖² / w_{l,n}

and z_{l-1} is the lifted input of layer l (docs/how-it-works.md). The products J̃ J̃ᵀ, J̃ δθ and
J̃ᵀ v are computed from these factors, mostly without J̃ itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from sapm.numerics.activations import Activation
from sapm.numerics.jets import Jet, lift
from sapm.numerics.layers import Dense
from sapm.numerics.network import Network, Stack
from sapm.objective.penalty import (
    Objective,
    defect_weights,
    defects,
    omega,
    squared_norms,
    target,
)
from sapm.objective.penalty import gains as layer_gains
from sapm.objective.terms import Term

SCALAR_FLOOR = 1e-300  # replaces a weight, a loss or a decrease of 0 in a divisor


class Row(eqx.Module):
    """The factors of a layer in the rows of J̃ of one term.

    Parameters
    ----------
    g : (r, out), G̃ of the values, for every pair r of an output and a sample.
    z : (r, in), the values of the lifted input.
    gt : (r, k, out), G̃ of the k channels.
    zt : (r, k, in), the channels of the lifted input.
    constants : how many of the last outputs of the layer have a bias and no weights.
    """

    g: Float[Array, "r out"]
    z: Float[Array, "r in"]
    gt: Float[Array, "r k out"]
    zt: Float[Array, "r k in"]
    constants: int = eqx.field(static=True, default=0)

    @property
    def gw(self) -> Float[Array, "r out"]:
        """g for the derivatives by W: 0 for constants."""
        return self.g.at[:, -self.constants :].set(0.0) if self.constants else self.g


# For each term a stack of `Row` by layer, and ρ̃ of the term. Terms are not joined, so that their
# samples may lie on different devices.
Rows = tuple[Stack, ...]
Residual = tuple[Float[Array, " r"], ...]


# ---------------------------------------------------------------- the linearised network


def pull(sigma: Activation, u: Jet, gz: Jet) -> Jet:
    """Gradients with respect to u from those with respect to lift(u).

    Parameters
    ----------
    sigma : the activation.
    u : the jet before the activation.
    gz : the gradients with respect to lift(u), with the outputs on the first axis.
    """
    back = jax.vjp(lambda jet: lift(sigma, jet), u)[1]
    return jax.vmap(lambda g: back(g)[0])(gz)


def through(layer: Dense, g: Jet) -> Jet:
    """Gradients with respect to the input of a layer from those with respect to its output."""
    return g.like(g.value @ layer.W, g.tangents @ layer.W)


def gains(network: Network, u: Stack, top: Jet) -> Stack:
    """G_l = ∂output/∂u_l for l = 1..L, with the layers linearised at u. They are jets with the
    outputs on the first axis.

    Parameters
    ----------
    network : the layers.
    u : the jets u_1 … u_L at which they are linearised.
    top : G_L.
    """
    sigma = network.sigma

    def down(gz, layer, jet):
        g = pull(sigma, jet, gz)
        return through(layer, g), g

    stack = network.stack
    hidden = stack.below().scan(down, through(stack.top, top), u.below(), reverse=True)[1]
    return hidden.append(top)


def inputs(network: Network, x: Jet, u: Stack) -> Stack:
    """z_{l-1} for l = 1..L: the input jet x for l = 1, then lift(u_{l-1}).

    Parameters
    ----------
    network : for its activation.
    x : the input jet.
    u : the jets u_1 … u_L.
    """
    return u.below().map(lambda jet: lift(network.sigma, jet)).append(None).shift(x)


class LinearisedTerm(eqx.Module):
    """A term linearised at a point.

    Parameters
    ----------
    rho : (n, o), the residual, with the defects of all layers carried to the output.
    g, z, r : by layer: the gains G_l, the inputs z_{l-1} and the defects.
    inverse : by layer: 1/w of values, (n,), and of channels, () or (n, k, 1); 0 for values that are
        not free.
    root : (n, o, o), the Cholesky factor of S_n.
    """

    rho: Float[Array, "n o"]
    g: Stack
    z: Stack
    r: Stack
    inverse: Stack
    root: Float[Array, "n o o"]


def linearise(obj: Objective, i: int, network: Network, u: Stack, lifted) -> LinearisedTerm:
    """A term linearised at auxiliary variables.

    Parameters
    ----------
    obj : the objective.
    i : the number of the term, from 0.
    network : the layers.
    u : the auxiliary variables, the jets u_1 … u_L.
    lifted : 1 if these are free, and 0 if they follow the weights (1/w = 0).
    """
    term = obj.terms[i]
    depth = obj.depth
    n, o = term.y.shape
    *below, r_top = defects(term, network, u).layers()
    output = u.top
    if not term.uses_value:
        # The value at the top is not free: it is that of the last layer, without a defect.
        output = replace(output, value=r_top.value + target(term, output, True).value)
        r_top = replace(r_top, value=jnp.zeros_like(r_top.value))
    r = Stack.of([*below, r_top], network.stack.run)
    residual, back = term.linearise(output)
    top = jax.vmap(lambda e: back(jnp.broadcast_to(e, (n, o))))(jnp.eye(o))
    g = gains(network, u, top)

    def reach(g, r):
        values = jnp.einsum("onm,nm->no", g.value, r.value)
        return values + jnp.einsum("onkm,nkm->no", g.tangents, r.tangents)

    rho = residual + g.total(reach, r)
    w = omega(obj, layer_gains(obj, network))
    value, tangent = defect_weights(obj, i, w, *squared_norms(term, network, u))
    free = (jnp.arange(depth) < depth - 1) | term.uses_value
    value = jnp.where(free[:, None], 1 / jnp.maximum(value, SCALAR_FLOOR), 0.0)
    tangent = 1 / jnp.maximum(tangent, SCALAR_FLOOR) * (1.0 if term.is_pde else 0.0)
    inverse = Stack.of(
        [(lifted * value[l], lifted * tangent[l]) for l in range(depth)], network.stack.run
    )

    def shift(g, inv):
        v, t = inv
        values = jnp.einsum("onm,pnm,n->nop", g.value, g.value, v)
        if t.ndim:
            return values + jnp.einsum("onkm,pnkm,nk->nop", g.tangents, g.tangents, t[..., 0])
        return values + t * jnp.einsum("onkm,pnkm->nop", g.tangents, g.tangents)

    shifts = g.total(shift, inverse)
    root = jnp.linalg.cholesky(jnp.eye(o) + shifts) if o > 1 else jnp.sqrt(1 + shifts)
    return LinearisedTerm(rho, g, inputs(network, term.x, u), r, inverse, root)


def unroot(
    root: Float[Array, "n o o"], x: Float[Array, "o n ..."], transpose: bool = False
) -> Array:
    """root^{-1} x, or root^{-T} x, along the axis of outputs.

    Parameters
    ----------
    root : (n, o, o), lower triangular matrices.
    x : (o, n, …).
    transpose : whether the matrices are transposed.
    """
    if root.shape[-1] == 1:
        return x / root[:, 0, 0].reshape(1, -1, *(1,) * (x.ndim - 2))
    flat = jnp.moveaxis(x, 0, 1).reshape(x.shape[1], x.shape[0], -1)
    out = jax.scipy.linalg.solve_triangular(root, flat, lower=True, trans=int(transpose))
    return jnp.moveaxis(out.reshape(x.shape[1], x.shape[0], *x.shape[2:]), 1, 0)


def rows_of(
    terms: Sequence[Term], parts: Sequence[LinearisedTerm], constants: int = 0
) -> tuple[Rows, Residual]:
    """The factors of J̃, and ρ̃, from the linearised terms.

    Parameters
    ----------
    terms : the terms of the objective.
    parts : the same terms, linearised.
    constants : the number of outputs that do not depend on the input.
    """

    def flat(a):
        return a.reshape(a.shape[0] * a.shape[1], *a.shape[2:])

    rows = []
    rho = []
    for term, part in zip(terms, parts, strict=True):
        weight = root_weight(term)

        def scaled(a, root=part.root, scale=weight) -> Array:
            return flat(unroot(root, a) * scale.reshape(-1, *(1,) * (a.ndim - 2)))

        def row(pair, scaled=scaled) -> Row:
            g, z = pair

            def repeated(a):
                return flat(jnp.broadcast_to(a, (g.value.shape[0], *a.shape)))

            return Row(scaled(g.value), repeated(z.value), scaled(g.tangents), repeated(z.tangents))

        factors = part.g.zip(part.z).map(row)
        rows.append(factors.below().append(replace(factors.top, constants=constants)))
        rho.append(scaled(part.rho.T))
    return tuple(rows), tuple(rho)


class Jacobian(eqx.Module):
    """J itself, for networks with layers that are not dense.

    Parameters
    ----------
    matrix : (r, p), the rows of all terms.
    like : the layers whose weights belong to the columns.
    ends : the number of the first row of every term but the first.
    """

    matrix: Float[Array, "r p"]
    like: Stack
    ends: tuple[int, ...] = eqx.field(static=True)


def jacobian(terms: Sequence[Term], network: Network) -> tuple[Jacobian, Residual]:
    """The Jacobian of the weighted residuals, by automatic differentiation, and the residuals.

    The auxiliary variables are those of the forward pass.

    Parameters
    ----------
    terms : the terms of the objective.
    network : of layers of any kind.
    """

    rho = []
    parts = []
    for term in terms:
        residual, top = _top(term, network)
        rows = jax.vmap(partial(_rows_of_sample, network), (0, 1), 1)(term.x, top)
        weight = root_weight(term)
        parts.append((rows * weight[:, None]).reshape(term.y.size, -1))
        rho.append((residual * weight[:, None]).T.reshape(-1))
    ends = tuple(itertools.accumulate(map(len, rho)))
    return Jacobian(jnp.concatenate(parts), network.stack, ends[:-1]), tuple(rho)


def _top(term: Term, network: Network) -> tuple[Float[Array, "n o"], Jet]:
    """The residuals of a term, and their gradients with respect to the output jet, with the
    residuals of a sample on the first axis.
    """
    n, o = term.y.shape
    residual, back = term.linearise(network(term.x))
    return residual, jax.vmap(lambda e: back(jnp.broadcast_to(e, (n, o))))(jnp.eye(o))


def _rows_of_sample(network: Network, x: Jet, g: Jet) -> Float[Array, "o p"]:
    """The gradients of the residuals of one sample with respect to the weights.

    x : the input jet, without an axis of samples.
    g : the gradients with respect to the output jet, (o, …).
    """

    def output(stack: Stack) -> Jet:
        jet = replace(network, stack=stack)(jax.tree.map(lambda a: a[None], x))
        return jax.tree.map(lambda a: a[0], jet)

    back = jax.vjp(output, network.stack)[1]
    return jax.vmap(lambda row: flatten(back(row)[0]))(g)


class Products(eqx.Module):
    """J without its matrix, for networks with layers that are not dense: products with it are
    computed by automatic differentiation.

    Parameters
    ----------
    terms, network : the terms of the objective, and the network at which they are linearised.
    diagonal : of Jᵀ J, as a stack of layers.
    """

    terms: tuple[Term, ...]
    network: Network
    diagonal: Stack

    def _output(self, term: Term) -> Callable[[Stack], Jet]:
        return lambda stack: replace(self.network, stack=stack)(term.x)

    def times(self, change: Stack) -> Residual:
        """J δθ."""

        def of_term(term: Term) -> Array:
            output, moved = jax.jvp(self._output(term), (self.network.stack,), (change,))
            residual, back = term.linearise(output)
            (change_of_residual,) = jax.linear_transpose(back, residual)(moved)
            return (change_of_residual * root_weight(term)[:, None]).T.reshape(-1)

        return tuple(of_term(term) for term in self.terms)

    def transposed(self, v: Residual) -> Stack:
        """Jᵀ v."""

        def of_term(term: Term, v: Array) -> Stack:
            output, pullback = jax.vjp(self._output(term), self.network.stack)
            back = term.linearise(output)[1]
            return pullback(back(v.reshape(-1, len(term.y)).T * root_weight(term)[:, None]))[0]

        return added([of_term(term, part) for term, part in zip(self.terms, v, strict=True)])


def products(terms: Sequence[Term], network: Network) -> tuple[Products, Residual]:
    """What `jacobian` gives, without the matrix. The diagonal of Jᵀ J is summed sample by sample.

    Parameters
    ----------
    terms : the terms of the objective.
    network : of layers of any kind.
    """
    rho = []
    diagonal = jnp.zeros_like(flatten(network.stack))
    for term in terms:
        residual, top = _top(term, network)
        weight = root_weight(term)

        def add(total: Array, sample: tuple[Jet, Jet, Array]) -> tuple[Array, None]:
            x, g, scale = sample
            rows = scale * _rows_of_sample(network, x, g)
            return total + jnp.sum(rows**2, axis=0), None

        g = jax.tree.map(lambda a: jnp.swapaxes(a, 0, 1), top)
        diagonal = lax.scan(add, diagonal, (term.x, g, weight))[0]
        rho.append((residual * weight[:, None]).T.reshape(-1))
    return Products(tuple(terms), network, unflatten(diagonal, network.stack)), tuple(rho)


# ---------------------------------------------------------------- products with J̃


def gram(rows: Rows | Jacobian) -> Float[Array, "r r"]:
    """K = J̃ J̃ᵀ without J̃, as Hadamard products of Gram matrices for every pair of terms:

    K = Σ_l Σ_channels (G̃_l G̃_lᵀ) ∘ (z_{l-1} z_{l-1}ᵀ)
    """
    if isinstance(rows, Jacobian):
        return rows.matrix @ rows.matrix.T

    def along(a: Row, b: Row) -> Array:
        """The products of the channels of a with the values of b."""
        r, k = a.gt.shape[:2]
        gt = a.gt.reshape(r * k, -1)
        zt = a.zt.reshape(r * k, -1)
        return ((gt @ b.g.T) * (zt @ b.z.T)).reshape(r, k, -1).sum(1)

    def block(a: Row, b: Row) -> Array:
        zz = a.z @ b.z.T
        gg = a.g @ b.g.T
        K = gg * (zz + 1.0) if not a.constants else (a.gw @ b.gw.T) * zz + gg
        (r, k), (q, j) = a.gt.shape[:2], b.gt.shape[:2]
        if k:
            K += along(a, b)
        if j:
            K += along(b, a).T
        if k and j:

            def flat(x):
                return x.reshape(-1, x.shape[-1])

            K += (
                ((flat(a.gt) @ flat(b.gt).T) * (flat(a.zt) @ flat(b.zt).T))
                .reshape(r, k, q, j)
                .sum((1, 3))
            )
        return K

    upper = {
        (i, j): a.total(block, b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i <= j
    }
    count = range(len(rows))
    return jnp.block([[upper[i, j] if i <= j else upper[j, i].T for j in count] for i in count])


def added(stacks: Sequence[Stack]) -> Stack:
    """The sum of stacks, layer by layer."""
    return reduce(lambda a, b: jax.tree.map(jnp.add, a, b), stacks)


def transposed(rows: Rows | Jacobian | Products, v: Residual) -> Stack:
    """J̃ᵀ v, as a stack of layers.

    Parameters
    ----------
    rows : the factors of J̃, or J as a matrix or by products.
    v : for each term (r,), a number for every row.
    """
    if isinstance(rows, Products):
        return rows.transposed(v)
    if isinstance(rows, Jacobian):
        return unflatten(jnp.concatenate(v) @ rows.matrix, rows.like)

    def of_layer(row: Row, v: Array) -> Dense:
        W = (v[:, None] * row.gw).T @ row.z + jnp.einsum(
            "rko,rki->oi", v[:, None, None] * row.gt, row.zt
        )
        return Dense(W, v @ row.g)

    return added(
        [
            stack.map(lambda row, part=part: of_layer(row, part))
            for stack, part in zip(rows, v, strict=True)
        ]
    )


def times(rows: Rows | Jacobian | Products, change: Stack) -> Residual:
    """J̃ δθ, for each term (r,).

    Parameters
    ----------
    rows : the factors of J̃, or J as a matrix or by products.
    change : δθ, a stack of layers.
    """
    if isinstance(rows, Products):
        return rows.times(change)
    if isinstance(rows, Jacobian):
        return tuple(jnp.split(rows.matrix @ flatten(change), rows.ends))

    def one(row: Row, layer: Dense) -> Array:
        out = jnp.sum(row.g * (row.z @ layer.W.T + layer.b), axis=1)
        return out + jnp.sum(row.gt * (row.zt @ layer.W.T), axis=(1, 2)) if row.gt.shape[1] else out

    return tuple(stack.total(one, change) for stack in rows)


def dense(rows: Rows | Jacobian) -> Float[Array, "r p"]:
    """J̃, with the columns layer by layer."""
    if isinstance(rows, Jacobian):
        return rows.matrix
    return jnp.concatenate([_dense(stack) for stack in rows])


def _dense(stack: Stack) -> Float[Array, "r p"]:
    def one(row: Row) -> Array:
        J = jnp.concatenate([row.gw[:, :, None] * row.z[:, None, :], row.g[:, :, None]], axis=2)
        if row.gt.shape[1]:
            J = J.at[:, :, :-1].add(jnp.einsum("rko,rki->roi", row.gt, row.zt))
        return J.reshape(len(J), -1)

    return stack.map(one).columns()


def flatten(stack: Stack) -> Float[Array, " p"]:
    """The weights of a stack of layers as a vector, in the order of the columns of `dense`."""
    return stack.map(lambda layer: layer.flat()).columns()


JACOBIAN_CHUNK_BYTES = 2**28  # of J̃, of which `normal` computes a chunk at a time


def normal(rows: Rows | Jacobian) -> Float[Array, "p p"]:
    """J̃ᵀ J̃, from chunks of the rows of J̃ if there are many.

    A chunk holds every c-th row, so that all devices have a share of it.
    """

    if isinstance(rows, Jacobian):
        return rows.matrix.T @ rows.matrix

    def one(stack: Stack) -> Array:
        r, weights = jax.eval_shape(_dense, stack).shape
        count = -(-8 * r * weights // JACOBIAN_CHUNK_BYTES)
        if count <= 1:
            J = _dense(stack)
            return J.T @ J

        def piece(k) -> Stack:
            def cut(a):
                a = jnp.pad(a, [(0, -r % count)] + [(0, 0)] * (a.ndim - 1))
                return lax.dynamic_index_in_dim(
                    a.reshape(len(a) // count, count, *a.shape[1:]), k, 1, keepdims=False
                )

            return stack.map(lambda row: jax.tree.map(cut, row))

        def add(k, state):
            total, chunk = state
            J = _dense(chunk)
            # The next chunk is cut here, since XLA of JAX 0.11 does not fuse a cut with its use.
            return total + J.T @ J, piece(k + 1)

        return lax.fori_loop(0, count, add, (jnp.zeros((weights, weights)), piece(0)))[0]

    return sum((one(stack) for stack in rows[1:]), one(rows[0]))


def squares(rows: Rows | Jacobian | Products) -> Stack:
    """The diagonal of J̃ᵀ J̃, as a stack of layers."""
    if isinstance(rows, Products):
        return rows.diagonal
    if isinstance(rows, Jacobian):
        return unflatten(jnp.sum(rows.matrix**2, axis=0), rows.like)

    def one(row: Row) -> Dense:
        W = (row.gw**2).T @ row.z**2
        if row.gt.shape[1]:
            W = W + 2 * jnp.einsum("ro,rko,ri,rki->oi", row.gw, row.gt, row.z, row.zt)
            W = W + jnp.einsum("rko,rjo,rki,rji->oi", row.gt, row.gt, row.zt, row.zt)
        return Dense(W, jnp.sum(row.g**2, axis=0))

    return added([stack.map(one) for stack in rows])


def unflatten(flat: Float[Array, " p"], like: Stack) -> Stack:
    """The inverse of `flatten`.

    Parameters
    ----------
    flat : (p,), the weights.
    like : layers of the same shapes.
    """
    pieces = like.split(flat, lambda layer: layer.size)
    return like.zip(pieces).map(lambda pair: pair[0].with_flat(pair[1]))


# ---------------------------------------------------------------- changes of auxiliary variables


def carried(
    network: Network, part: LinearisedTerm, u: Stack, change: Stack, left: Float[Array, "n o"]
) -> Stack:
    """The changes of the auxiliary variables for a change of the weights, layer by layer:

        δu_l = r_l + δW_l z_{l-1} + δb_l + W_l lift'(u_{l-1}) δu_{l-1} - e_l

    with the remaining defects e_l = G_l s / w_l.

    Parameters
    ----------
    network : the layers.
    part : the linearised term.
    u : its auxiliary variables, the jets u_1 … u_L.
    change : δW_l and δb_l.
    left : s, the residual that remains at the minimum of the linearised loss, without the weights.
    """
    sigma = network.sigma

    def move(
        carry: Jet | None, layer: Dense, change: Dense, r: Jet, z: Jet, g: Jet, inverse
    ) -> Jet:
        values, channels = inverse
        rest = g.like(
            jnp.einsum("onm,no->nm", g.value, left) * values[:, None],
            jnp.einsum("onkm,no->nkm", g.tangents, left) * channels,
        )
        out = jax.tree.map(lambda a, b, e: a + b - e, r, change(z), rest)
        if carry is None:
            return out
        return out.like(
            out.value + carry.value @ layer.W.T, out.tangents + carry.tangents @ layer.W.T
        )

    def up(carry: Jet | None, jet: Jet, *parts) -> tuple[Jet, Jet]:
        out = move(carry, *parts)
        return jax.jvp(lambda x: lift(sigma, x), (jet,), (out,))[1], out

    stacks = (network.stack, change, part.r, part.z, part.g, part.inverse)
    # A loop over layers from the first on needs the type of its state.
    start = None if u.head else jax.tree.map(jnp.zeros_like, part.z[1])
    carry, hidden = u.below().scan(up, start, *(stack.below() for stack in stacks))
    top = move(carry, *(stack.top for stack in stacks))
    if not u.top.value.size:  # the value at the top is not free
        top = replace(top, value=u.top.value)
    return hidden.append(top)


def root_weight(term: Term) -> Float[Array, " n"]:
    """√κ_n."""
    return jnp.sqrt(jnp.broadcast_to(term.weight, (len(term.y),)))
