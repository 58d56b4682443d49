"""Gauss-Newton on the losses of LS, PM and SAPM: one linearisation, whose auxiliary variables are eliminated sample by sample.

At a point (weights θ, free jets u_l) the layers are linearised. For given changes of θ the best changes of the auxiliary
variables are known in closed form, sample by sample; what is left is a damped least-squares problem in θ alone,

    min |ρ̃ + J̃ δθ|² + ν |δθ|² ,     J̃_l[n] = Σ_channels G̃_l[n] ⊗ z_{l-1}[n]

with z_{l-1} the lifted input of layer l and G̃_l = √κ_n S_n^{-1/2} ∂output/∂u_l. The self-adaptive weights appear only in
S_n = 1 + Σ_l ‖G_l[n]‖²/w_{l,n} (docs/how-it-works.md). With S = 1 and u on the forward pass it is Levenberg-Marquardt.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from sapm.jet import Activation, Jet, activation, float64, lift
from sapm.network import Dense, Network, Stack, initialise
from sapm.objective import Objective, Point, check_widths, defects, mean_square, omega, penalty, start_point, true_loss
from sapm.term import Term

TINY = 1e-300


class Row(eqx.Module):
    """One layer's factors of J̃. Rows r are (sample, output) pairs; the first rows have tangents, k of them each."""

    g: Float[Array, "r out"]
    z: Float[Array, "r in"]
    gt: Float[Array, "t k out"]
    zt: Float[Array, "t k in"]


def total(stack: Stack, f: Callable) -> Array:
    """Σ_l f(layer l): the layers of the run one after another in a loop."""
    found = sum(f(x) for x in (*stack.head, *stack.tail))
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
    return Jet(g.value @ layer.W, g.tangents @ layer.W)


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

    `inverse` (per layer, jets broadcastable to the gains) are 1/w; zero where there is nothing to choose.
    """

    rho: Float[Array, "n o"]
    g: Stack
    z: Stack
    r: Stack
    inverse: Stack
    root: Float[Array, "n o o"]  # Cholesky factor of S_n


def linearise(obj: Objective, i: int, network: Network, u: Stack, lifted) -> Linear:
    term = obj.terms[i]
    n, o = term.y.shape
    k, m = term.c.shape[1], network.stack.tail[-1].W.shape[0]
    eye = jnp.broadcast_to(jnp.eye(o)[:, None, :], (o, n, o))
    if term.is_pde:
        top = Jet(jnp.zeros((1, n, m)), jnp.broadcast_to(term.c[None, :, :, None], (1, n, k, m)))
    else:
        top = Jet(eye, jnp.zeros((o, n, k, m)))
    g = gains(network, u, top)
    r = defects(term, network, u)
    r = Stack.of(r.layers(), network.stack.run)
    depth = obj.depth
    # Σ_l ⟨G_l, r_l⟩; at the top of a PDE term the defect is that of the tangents, and c·d_L - y comes on top of it
    rho = total_pair(
        g, r, lambda g, r: jnp.einsum("onm,nm->no", g.value, r.value) + jnp.einsum("onkm,nkm->no", g.tangents, r.tangents)
    )
    if term.is_pde:
        rho = rho + term.residual(u.tail[-1])
    w = omega(obj, network.stack.map(lambda layer: jnp.sum(layer.W**2)).rows())
    alpha, beta = obj.alpha[i], obj.beta[i]
    if term.is_pde and obj.adaptive:
        t = u.map(lambda jet: jnp.sum(jet.tangents**2, axis=(-2, -1))).rows().at[-1].set(0.0)
        spread = jnp.flip(jnp.cumsum(jnp.flip(t, 0), 0), 0)
    else:
        spread = jnp.ones((depth, n))
    below = jnp.arange(depth) < depth - 1
    value = jnp.where(below[:, None], 1 / jnp.maximum((beta * w)[:, None] * spread, TINY), 0.0)
    tangent = 1 / jnp.maximum(alpha * w, TINY) * (1.0 if term.is_pde else 0.0)
    inverse = Stack.of([(lifted * value[l], lifted * tangent[l]) for l in range(depth)], network.stack.run)

    def shift(g, inv):
        v, t = inv
        return jnp.einsum("onm,pnm,n->nop", g.value, g.value, v) + t * jnp.einsum("onkm,pnkm->nop", g.tangents, g.tangents)

    shifts = total_pair(g, inverse, shift)
    root = jnp.linalg.cholesky(jnp.eye(o) + shifts) if o > 1 else jnp.sqrt(1 + shifts)
    return Linear(rho, g, inputs(network, term.x, u), r, inverse, root)


def total_pair(a: Stack, b: Stack, f: Callable) -> Array:
    pairs = Stack(
        tuple(zip(a.head, b.head, strict=True)),
        None if a.body is None else (a.body, b.body),
        tuple(zip(a.tail, b.tail, strict=True)),
        a.run,
    )
    return total(pairs, lambda pair: f(*pair))


def unroot(root: Float[Array, "n o o"], x: Float[Array, "o n ..."], transpose: bool = False) -> Array:
    """root^{-1} (or its transpose) applied along the outputs."""
    if root.shape[-1] == 1:
        return x / root[:, 0, 0].reshape(1, -1, *(1,) * (x.ndim - 2))
    flat = jnp.moveaxis(x, 0, 1).reshape(x.shape[1], x.shape[0], -1)
    out = jax.scipy.linalg.solve_triangular(root, flat, lower=True, trans=int(transpose))
    return jnp.moveaxis(out.reshape(x.shape[1], x.shape[0], *x.shape[2:]), 1, 0)


def rows_of(terms: Sequence[Term], parts: Sequence[Linear]) -> tuple[Stack, Array]:
    """The factors of J̃ by layer and ρ̃. Terms with tangents come first."""
    scales = [root_weight(term) for term in terms]

    def row(*pairs) -> Row:
        g, z, gt, zt = [], [], [], []
        for term, part, scale, (gl, zl) in zip(terms, parts, scales, pairs, strict=True):
            o = gl.value.shape[0]
            flat = lambda a: a.reshape(-1, *a.shape[2:])  # noqa: E731
            g.append(flat(unroot(part.root, gl.value) * scale[None, :, None]))
            z.append(flat(jnp.broadcast_to(zl.value, (o, *zl.value.shape))))
            if term.is_pde:
                gt.append(flat(unroot(part.root, gl.tangents) * scale[None, :, None, None]))
                zt.append(flat(jnp.broadcast_to(zl.tangents, (o, *zl.tangents.shape))))
        if not gt:
            gt, zt = [jnp.zeros((0, 0, g[0].shape[1]))], [jnp.zeros((0, 0, z[0].shape[1]))]
        return Row(jnp.concatenate(g), jnp.concatenate(z), jnp.concatenate(gt), jnp.concatenate(zt))

    stacks = [(part.g, part.z) for part in parts]
    head = [row(*((g.head[j], z.head[j]) for g, z in stacks)) for j in range(len(stacks[0][0].head))]
    tail = [row(*((g.tail[j], z.tail[j]) for g, z in stacks)) for j in range(len(stacks[0][0].tail))]
    body = None
    if stacks[0][0].body is not None:
        body = jax.vmap(row)(*((g.body, z.body) for g, z in stacks))
    rho = [(unroot(part.root, part.rho.T) * scale[None]).reshape(-1) for part, scale in zip(parts, scales, strict=True)]
    return Stack(tuple(head), body, tuple(tail), stacks[0][0].run), jnp.concatenate(rho)


# ---------------------------------------------------------------- J̃ J̃ᵀ, J̃ᵀ v, J̃ δθ, and J̃ itself


def gram(rows: Stack) -> Float[Array, "r r"]:
    """K = J̃ J̃ᵀ without J̃: Hadamard products of small Gram matrices, over layers and channels."""

    def one(row: Row) -> Array:
        K = (row.g @ row.g.T) * (row.z @ row.z.T + 1.0)
        t, k = row.gt.shape[:2]
        if t == 0:
            return K
        gt, zt = row.gt.reshape(t * k, -1), row.zt.reshape(t * k, -1)
        cross = ((gt @ row.g.T) * (zt @ row.z.T)).reshape(t, k, -1).sum(1)
        inner = ((gt @ gt.T) * (zt @ zt.T)).reshape(t, k, t, k).sum((1, 3))
        return K.at[:t].add(cross).at[:, :t].add(cross.T).at[:t, :t].add(inner)

    return total(rows, one)


def transposed(rows: Stack, v: Float[Array, " r"]) -> Stack:
    """J̃ᵀ v as a stack of layers."""

    def one(row: Row) -> Dense:
        t = row.gt.shape[0]
        weighted = v[:, None] * row.g
        return Dense(weighted.T @ row.z + jnp.einsum("tko,tki->oi", v[:t, None, None] * row.gt, row.zt), weighted.sum(0))

    return rows.map(one)


def times(rows: Stack, change: Stack) -> Float[Array, " r"]:
    """J̃ δθ."""

    def one(row: Row, layer: Dense) -> Array:
        out = jnp.sum(row.g * (row.z @ layer.W.T + layer.b), axis=1)
        t = row.gt.shape[0]
        return out.at[:t].add(jnp.sum(row.gt * (row.zt @ layer.W.T), axis=(1, 2))) if t else out

    return total_pair(rows, change, one)


def dense(rows: Stack) -> Float[Array, "r p"]:
    """J̃, columns layer by layer."""

    def one(row: Row) -> Array:
        z = jnp.concatenate([row.z, jnp.ones((len(row.z), 1))], axis=1)
        J = row.g[:, :, None] * z[:, None, :]
        t = row.gt.shape[0]
        if t:
            inner = jnp.einsum("tko,tki->toi", row.gt, row.zt)
            J = J.at[:t, :, :-1].add(inner)
        return J.reshape(len(J), -1)

    parts = [one(row) for row in rows.head]
    if rows.body is not None:
        body = jax.vmap(one)(rows.body)
        parts.append(jnp.moveaxis(body, 0, 1).reshape(body.shape[1], -1))
    return jnp.concatenate([*parts, *(one(row) for row in rows.tail)], axis=1)


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
        kept = Jet(jnp.einsum("onm,no->nm", g.value, left) * v[:, None], jnp.einsum("onkm,no->nkm", g.tangents, left) * t)
        moved = change(z)
        out = jax.tree.map(lambda a, b, e: a + b - e, r, moved, kept)
        if carry is None:
            return out
        return Jet(out.value + carry.value @ layer.W.T, out.tangents + carry.tangents @ layer.W.T)

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
        if j == len(stack.tail) - 1:
            out = Jet(jnp.zeros_like(u.tail[-1].value), out.tangents)
        tail.append(out)
        carry = below(u.tail[j], out) if j < len(stack.tail) - 1 else None
    return Stack(tuple(head), body, tuple(tail), stack.run)


# ---------------------------------------------------------------- the method

ALGEBRA = ("primal", "dual", "dense")
DOWN, UP, TRIES = 10.0, 3.0, 4  # the damping after a step that is taken, that fails; trials from one linearisation


class GNState(eqx.Module):
    """`loss` is that of the phase: the penalty loss while lifted, then the true one. gain: actual over predicted decrease."""

    count: Int[Array, ""]
    point: Point
    loss: Float[Array, ""]
    damping: Float[Array, ""]
    gain: Float[Array, ""]
    gradient: Float[Array, ""]


class Linearised(eqx.Module):
    """A point and its linearisation; `matrix` is J̃ J̃ᵀ or J̃ᵀ J̃, `dense` is J̃ where it is made."""

    point: Point
    lifting: Array
    parts: tuple[Linear, ...]
    rows: Stack
    rho: Float[Array, " r"]
    matrix: Float[Array, "a a"]
    dense: Float[Array, "r p"] | None


class GaussNewton(eqx.Module):
    """Steps on the penalty loss with free auxiliary variables, the first `lifted` of them; then on the true loss.

    A step is tried with the damping at hand, and with more of it as long as the loss does not fall. On the true loss it is
    bent by the second derivative of the residual along it (geodesic acceleration) where that is lower.
    """

    objective: Objective
    lifted: Int[Array, ""]
    damping: Float[Array, ""]
    widths: tuple[int, ...] = eqx.field(static=True)
    sigma: Activation = eqx.field(static=True)
    weights: str = eqx.field(static=True, default="he")
    start: str = eqx.field(static=True, default="uniform")
    algebra: str = eqx.field(static=True, default="dual")
    bend: bool = eqx.field(static=True, default=True)
    phases: ClassVar = ("lifted", "plain")

    @property
    def seed_bytes(self) -> int:
        rows = sum(term.y.size for term in self.objective.terms)
        weights = sum(o * (i + 1) for i, o in itertools.pairwise(self.widths))
        return 8 * {"primal": weights * (rows + weights), "dense": rows * (rows + weights), "dual": rows * rows}[self.algebra]

    def diagnostics(self, state: GNState) -> dict[str, Array]:
        phase = jnp.where(state.count <= self.lifted, 0.0, 1.0) if self.objective.model != "ls" else jnp.ones(())
        return {"phase": phase, "damping": state.damping, "gain": state.gain, "gradient": state.gradient}

    def init(self, key) -> GNState:
        k_weights, k_start = jax.random.split(key)
        network = initialise(k_weights, self.widths, self.sigma, self.weights)
        return self._at(jnp.zeros((), jnp.int64), start_point(k_start, self.objective, network, self.start))

    def begin(self, network: Network) -> GNState:
        """At a given network: the lifted phase is behind, or it starts from the forward pass."""
        return self._at(jnp.asarray(self.lifted, jnp.int64), self._forward(network))

    def _forward(self, network: Network) -> Point:
        return start_point(jax.random.key(0), self.objective, network, "forward")

    def _at(self, count, point: Point) -> GNState:
        zero = jnp.zeros(())
        return GNState(count, point, self._loss(point, count < self.lifted), jnp.asarray(self.damping), zero, zero)

    def _loss(self, point: Point, lifting) -> Float[Array, ""]:
        plain = true_loss(self.objective, point.network)
        if self.objective.model == "ls":
            return plain
        return jnp.where(lifting, penalty(self.objective, point), plain)

    def linearise(self, point: Point, lifting) -> Linearised:
        """At a point; unless lifting, its auxiliary variables are those of the forward pass."""
        obj, on = self.objective, jnp.where(lifting, 1.0, 0.0)
        aux = jax.tree.map(lambda a, b: jnp.where(lifting, a, b), point.aux, self._forward(point.network).aux)
        parts = tuple(linearise(obj, i, point.network, u, on) for i, u in enumerate(aux))
        rows, rho = rows_of(obj.terms, parts)
        J = None if self.algebra == "dual" else dense(rows)
        matrix = gram(rows) if J is None else (J @ J.T if self.algebra == "dense" else J.T @ J)
        return Linearised(Point(point.network, aux), jnp.asarray(lifting), parts, rows, rho, matrix, J)

    def solver(self, at: Linearised, nu) -> Callable[[Array], Stack]:
        """ρ → the δθ that minimises |ρ + J̃ δθ|² + ν |δθ|²."""
        factor = lax.linalg.cholesky(at.matrix + nu * jnp.eye(len(at.matrix)))

        def half(b, transpose):
            return lax.linalg.triangular_solve(factor, b[:, None], left_side=True, lower=True, transpose_a=transpose)[:, 0]

        def change(rho) -> Stack:
            if self.algebra == "primal":
                return unflatten(-half(half(rho @ at.dense, False), True), at.point.network.stack)
            return jax.tree.map(jnp.negative, transposed(at.rows, half(half(rho, False), True)))

        return change

    def moved(self, at: Linearised, change: Stack) -> Point:
        """The point after a change of the weights, with the best auxiliary variables that the linearisation knows."""
        network, left = at.point.network, at.rho + times(at.rows, change)
        begin, jets = 0, []
        for term, part, u in zip(self.objective.terms, at.parts, at.point.aux, strict=True):
            n, o = term.y.shape
            s = left[begin : begin + n * o].reshape(o, n)
            begin += n * o
            scale = root_weight(term)
            s = jnp.where(scale > 0, s / jnp.maximum(scale, TINY), 0.0)
            jets.append(jax.tree.map(jnp.add, u, carried(network, part, u, change, unroot(part.root, s, transpose=True).T)))
        return Point(replace(network, stack=jax.tree.map(jnp.add, network.stack, change)), tuple(jets))

    def _residual(self, network: Network) -> Float[Array, " r"]:
        """ρ̃ of the forward pass."""
        return jnp.concatenate(
            [(term.residual(network(term.x)) * root_weight(term)[:, None]).T.reshape(-1) for term in self.objective.terms]
        )

    def _bent(self, at: Linearised, solve: Callable, change: Stack) -> Stack:
        """δθ + ½ δθ₂, with δθ₂ the step for the second derivative of the residual along δθ; δθ itself if that is too far."""
        network = at.point.network
        first = lambda stack: jax.jvp(lambda w: self._residual(replace(network, stack=w)), (stack,), (change,))[1]  # noqa: E731
        more = solve(jax.jvp(first, (network.stack,), (change,))[1])
        fits = (square(more) < square(change)) & ~at.lifting
        return jax.tree.map(lambda x, y: x + jnp.where(fits, 0.5 * y, 0.0), change, more)

    def step(self, state: GNState) -> GNState:
        leaving = (state.count == self.lifted) & (state.count > 0)
        lifting = state.count < self.lifted if self.objective.model != "ls" else jnp.zeros((), bool)
        at = self.linearise(state.point, lifting)
        loss = jnp.where(leaving, true_loss(self.objective, state.point.network), state.loss)
        damping = jnp.where(leaving, self.damping, state.damping)
        old = jnp.sum(at.rho**2)

        def attempt(kept):
            tries, nu, _, _, _ = kept
            solve = self.solver(at, nu)
            change = solve(at.rho)
            predicted = old - jnp.sum((at.rho + times(at.rows, change)) ** 2)
            if self.bend:
                both = jax.tree.map(lambda *x: jnp.stack(x), change, self._bent(at, solve, change))
                points = lax.map(lambda c: self._valued(at, c), both)
                points = jax.tree.map(lambda x: x[jnp.nanargmin(points[1])], points)
            else:
                points = self._valued(at, change)
            point, value = points
            return tries + 1, jnp.where(value < loss, nu, nu * UP), point, value, (loss - value) / jnp.maximum(predicted, TINY)

        first = (jnp.zeros((), jnp.int64), damping, at.point, jnp.full_like(loss, jnp.inf), jnp.zeros(()))
        going = lambda kept: (kept[0] < TRIES) & ~(kept[3] < loss)  # noqa: E731
        _, nu, point, value, gain = lax.while_loop(going, attempt, first)
        good = value < loss
        point = jax.tree.map(lambda a, b: jnp.where(good, a, b), point, at.point)
        nu = jnp.clip(jnp.where(good, nu / DOWN, nu), 1e-20, 1e12)
        gradient = jnp.sqrt(square(transposed(at.rows, at.rho)))
        return GNState(state.count + 1, point, jnp.where(good, value, loss), nu, jnp.where(good, gain, 0.0), 2 * gradient)

    def _valued(self, at: Linearised, change: Stack) -> tuple[Point, Array]:
        point = self.moved(at, change)
        return point, self._loss(point, at.lifting)

    def losses(self, state: GNState) -> tuple[Array, Array]:
        return state.loss, mean_square(state.point.network, self.objective.terms)

    def network(self, state: GNState) -> Network:
        return state.point.network

    def blocks(self) -> list[tuple[str, Callable]]:
        return [("the Gauss-Newton step", self.step)]


def square(tree) -> Float[Array, ""]:
    return sum((jnp.sum(x**2) for x in jax.tree.leaves(tree)), jnp.zeros(()))


def root_weight(term: Term) -> Float[Array, " n"]:
    return jnp.sqrt(jnp.broadcast_to(term.weight, (len(term.y),)))


def flops(terms: Sequence[Term], widths: Sequence[int]) -> dict[str, float]:
    """Floating-point operations of one linearisation and solve, by the algebra."""
    t = sum(len(term.y) * term.c.shape[1] for term in terms if term.is_pde)
    r = sum(term.y.size for term in terms)
    p = sum(o * (i + 1) for i, o in itertools.pairwise(widths))
    small = 2 * (r * r + t * r + t * t) * sum(i + o for i, o in itertools.pairwise(widths))
    return {"primal": 2.0 * r * p * p + p**3 / 3, "dual": small + r**3 / 3, "dense": 2.0 * r * r * p + r**3 / 3}


@float64
def gauss_newton(
    obj: Objective,
    widths: Sequence[int],
    sigma: str | Activation,
    lifted: int | None = None,
    damping: float = 1e-2,
    algebra: str | None = None,
    init: str = "he",
    start: str = "uniform",
) -> GaussNewton:
    """Gauss-Newton on the objective's own loss; `lifted` steps of a penalty loss (default: all), then the true loss.

    `algebra`: "primal" (P × P), "dense" or "dual" (samples × samples, with or without the Jacobian); by default the one with
    the fewest operations.
    """
    sigma = activation(sigma)
    check_widths(obj, widths)
    order = sorted(range(len(obj.terms)), key=lambda i: not obj.terms[i].is_pde)  # those with tangents first
    pick = lambda x: tuple(x[i] for i in order)  # noqa: E731
    obj = replace(obj, terms=pick(obj.terms), beta=pick(obj.beta), alpha=pick(obj.alpha))
    counts = flops(obj.terms, widths)
    algebra = algebra or min(counts, key=lambda name: counts[name])
    if algebra not in ALGEBRA:
        raise ValueError(f"algebra={algebra!r} is not known; use one of {', '.join(ALGEBRA)}.")
    steps = 0 if obj.model == "ls" else (2**62 if lifted is None else lifted)
    bend = sigma.name != "relu"  # piecewise linear: no second derivative
    return GaussNewton(obj, jnp.asarray(steps), jnp.asarray(float(damping)), tuple(widths), sigma, init, start, algebra, bend)
