"""Fully connected networks: storage by layer, forward pass on jets, initialisers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.nn import initializers
from jaxtyping import Array, Float, PRNGKeyArray

from sapm.jet import Activation, Jet, lift

Run = tuple[int, int]
NO_RUN: Run = (1, 0)


def equal_run(widths: Sequence[int]) -> Run:
    """The longest run p..q of layers below the top (1 ≤ p, q < L) whose weights are square and of one shape.

    `widths` are m_0 … m_L; NO_RUN if there is none. A run is stored stacked, so that a loop over it is compiled once.
    """
    best, depth = NO_RUN, len(widths) - 1
    for p in range(1, depth):
        q = p - 1
        while q + 1 < depth and widths[q + 1] == widths[p - 1]:
            q += 1
        if q - p > best[1] - best[0]:
            best = (p, q)
    return best


class Stack(eqx.Module):
    """One pytree per layer l = first, first+1, …; the layers p..q, equal in shape, are stacked on a leading axis.

    `stack[l]` and `stack.set(l, new)` take l as an integer, or traced within p..q.
    """

    head: tuple
    body: Any
    tail: tuple
    run: Run = eqx.field(static=True)
    first: int = eqx.field(static=True, default=1)

    @staticmethod
    def build(make: Callable, first: int, last: int, run: Run) -> Stack:
        """make(l) for l = first..last; for the layers of the run it is traced once, mapped over l."""
        p, q = run
        body = jax.vmap(make)(jnp.arange(p, q + 1)) if q >= p else None
        tail = range(max(q + 1, p), last + 1)
        return Stack(tuple(make(l) for l in range(first, p)), body, tuple(make(l) for l in tail), run, first)

    @staticmethod
    def of(layers: Sequence, run: Run, first: int = 1) -> Stack:
        p, q = run[0] - first, run[1] - first
        body = jax.tree.map(lambda *x: jnp.stack(x), *layers[p : q + 1]) if q >= p else None
        return Stack(tuple(layers[:p]), body, tuple(layers[max(q + 1, p) :]), run, first)

    @property
    def last(self) -> int:
        p, q = self.run
        return max(q, p - 1) + len(self.tail)

    def _place(self, l) -> tuple[str, Any]:
        p, q = self.run
        if not isinstance(l, int):
            return "body", l - p
        if l < p:
            return "head", l - self.first
        return ("body", l - p) if l <= q else ("tail", l - max(q + 1, p))

    def __getitem__(self, l):
        part, i = self._place(l)
        if part != "body":
            return getattr(self, part)[i]
        return jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, i, keepdims=False), self.body)

    def set(self, l, new) -> Stack:
        part, i = self._place(l)
        if part == "body":
            body = jax.tree.map(lambda x, y: lax.dynamic_update_index_in_dim(x, y, i, 0), self.body, new)
            return replace(self, body=body)
        old = getattr(self, part)
        return replace(self, **{part: (*old[:i], new, *old[i + 1 :])})

    def set_range(self, l: int, new) -> Stack:
        """Replace layers l, l+1, … of the run by what `new` has stacked."""
        i = l - self.run[0]
        return replace(self, body=jax.tree.map(lambda x, y: lax.dynamic_update_slice_in_dim(x, y, i, 0), self.body, new))

    def map(self, f: Callable) -> Stack:
        body = None if self.body is None else jax.vmap(f)(self.body)
        return Stack(tuple(map(f, self.head)), body, tuple(map(f, self.tail)), self.run, self.first)

    def prepend(self, new) -> Stack:
        """With a layer first-1 in front."""
        return replace(self, head=(new, *self.head), first=self.first - 1)

    def grow(self) -> Stack:
        """With the layer below the run taken into it: the run p..q becomes p-1..q."""
        if self.run == NO_RUN:
            return self
        (p, q), *head, below = self.run, *self.head
        run = (p - 1, q)
        below = jax.tree.map(lambda x: x[None], below)
        body = below if self.body is None else jax.tree.map(lambda x, y: jnp.concatenate([x, y]), below, self.body)
        return replace(self, head=tuple(head), body=body, run=run)

    def layers(self) -> list:
        return [self[l] for l in range(self.first, self.last + 1)]

    def rows(self):
        """All layers on one leading axis (they must be of one shape)."""
        body = [] if self.body is None else [self.body]
        grow = lambda part: [jax.tree.map(lambda x: x[None], x) for x in part]  # noqa: E731
        return jax.tree.map(lambda *x: jnp.concatenate(x), *grow(self.head), *body, *grow(self.tail))


class Dense(eqx.Module):
    """A layer: W z + b on the value, W z_i on every other channel."""

    W: Float[Array, "out in"]
    b: Float[Array, " out"]

    def rounded(self, dtype) -> Dense:
        return Dense(self.W.astype(dtype), self.b.astype(dtype))

    def __call__(self, z: Jet) -> Jet:
        return Jet(z.value @ self.W.T + self.b, z.tangents @ self.W.T, z.forms)


class Network(eqx.Module):
    """σ between layers l = 1..L, the last layer linear. `stack[l]` is layer l.

    `constants`: so many of the last outputs do not depend on the input. Their rows of W_L are 0, and stay so.
    """

    stack: Stack
    sigma: Activation = eqx.field(static=True)
    constants: int = eqx.field(static=True, default=0)

    @staticmethod
    def of(weights: Sequence[tuple[Any, Any]], sigma: Activation, constants: int = 0) -> Network:
        """From [(W_1, b_1), …, (W_L, b_L)], W_l of shape (out, in)."""
        layers = [Dense(jnp.asarray(W), jnp.asarray(b)) for W, b in weights]
        widths = [layers[0].W.shape[1]] + [layer.W.shape[0] for layer in layers]
        if len(layers) < 2:
            raise ValueError(f"a network of depth {len(layers)} has no hidden layer; the depth must be at least 2.")
        for l, layer in enumerate(layers, 1):
            if layer.W.shape != (widths[l], widths[l - 1]) or layer.b.shape != (widths[l],):
                raise ValueError(
                    f"layer {l} has W {layer.W.shape} and b {layer.b.shape}; the layer below gives {widths[l - 1]} values, "
                    f"so W must be (out, {widths[l - 1]}) and b (out,)."
                )
        return Network(Stack.of(layers, equal_run(widths)), sigma, constants)

    def layer(self, l) -> Dense:
        """Layer l as it acts: at the top the constants see no input."""
        layer = self.stack[l]
        if not self.constants or not isinstance(l, int) or l != self.depth:
            return layer
        return Dense(layer.W.at[-self.constants :].set(0.0), layer.b)

    @property
    def depth(self) -> int:
        return self.stack.last

    @property
    def widths(self) -> list[int]:
        """m_0, m_1, …, m_L: inputs, hidden widths, outputs."""
        layers = self.stack.layers()
        return [layers[0].W.shape[-1]] + [layer.W.shape[-2] for layer in layers]

    def unstacked(self) -> Network:
        """The same network with every layer stored apart."""
        return replace(self, stack=Stack.of(self.stack.layers(), NO_RUN))

    def widen_input(self, width: int) -> Network:
        """The same function of inputs padded with zeros to that width; its run of equal layers then starts at layer 1."""
        stack, first = self.stack, self.stack[1]
        W = jnp.pad(first.W, ((0, 0), (0, width - first.W.shape[1])))
        stack = stack.set(1, Dense(W, first.b))
        return replace(self, stack=stack.grow() if stack.run[0] == 2 and W.shape[0] == W.shape[1] else stack)

    def narrow_input(self, width: int) -> Network:
        """The inverse of `widen_input`."""
        weights = [(layer.W, layer.b) for layer in self.stack.layers()]
        weights[0] = (weights[0][0][:, :width], weights[0][1])
        return Network.of(weights, self.sigma, self.constants)

    @property
    def weights(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(np.asarray(layer.W), np.asarray(layer.b)) for layer in self.stack.layers()]

    def preactivations(self, x: Jet) -> Stack:
        """u_1 … u_L along the forward pass; u_L is the output."""
        p, q = self.stack.run
        kind = self.stack.tail[-1].W.dtype
        head, body, tail, z = [], None, [], jax.tree.map(lambda a: a.astype(kind), x)

        def through(z, layer):
            u = layer(z)
            return lift(self.sigma, u), u

        for layer in self.stack.head:
            z, u = through(z, layer)
            head.append(u)
        if q >= p:
            z, body = lax.scan(through, z, self.stack.body)
        for layer in (*self.stack.tail[:-1], self.layer(self.depth)):
            z, u = through(z, layer)
            tail.append(u)
        return Stack(tuple(head), body, tuple(tail), (p, q))

    def __call__(self, x: Jet) -> Jet:
        """The output jet: ψ(x) and ∂_i ψ(x)."""
        return self.preactivations(x).tail[-1]


FREQUENCY, SMALL = 2.0, 0.1  # of the features that are passed on

# Initialisers: (key, W's shape (out, in), layer l, depth L, σ) → (W, b).


def _is(l, number: int) -> bool:
    """A traced l is inside the run of equal layers: neither the first nor the last."""
    return isinstance(l, int) and l == number


def _paper(key, shape, l, depth, sigma):
    """U(±M^-1/2) for W and b, M the width of the layer (the last layer: of the one below)."""
    bound = (shape[1] if _is(l, depth) else shape[0]) ** -0.5
    draw = jax.random.uniform(key, (shape[0], shape[1] + 1), jnp.float64, -bound, bound)
    return draw[:, :-1], draw[:, -1]


def _from(make: Callable[[Activation], Callable]) -> Callable:
    """A `jax.nn.initializers` initialiser for W, b = 0."""

    def init(key, shape, l, depth, sigma):
        return make(sigma)(key, shape[::-1], jnp.float64).T, jnp.zeros(shape[0])

    return init


def _looks_linear(key, shape, l, depth, sigma):
    """Mirrored orthogonal weights: relu(h) - relu(-h) = h, so that the deep network starts as a linear map.

    Hidden units come in pairs ±; a unit left over by an odd width gets a He row and feeds nothing at first.
    """
    if sigma.name != "relu":
        raise ValueError(f"init='looks-linear' needs relu(h) - relu(-h) = h, not {sigma.name}; use 'orthogonal' instead.")
    out, inner = shape
    first, last = _is(l, 1), _is(l, depth)
    half_out, half_in = (out if last else out // 2), (inner if first else inner // 2)
    k_core, k_rest = jax.random.split(key)
    core = initializers.orthogonal()(k_core, (max(half_out, 1), max(half_in, 1)), jnp.float64)[:half_out, :half_in]
    if not first:
        core = jnp.concatenate([core, -core], axis=1)
    if not last:
        core = jnp.concatenate([core, -core], axis=0)
    W = jnp.pad(core, ((0, out - core.shape[0]), (0, inner - core.shape[1])))
    if core.shape[0] < out:
        W = W.at[-1].set(jax.random.normal(k_rest, (inner,), jnp.float64) * (2 / inner) ** 0.5)
    return W, jnp.zeros(out)


def _features(key, shape, l, depth, sigma):
    """Random features from the first layer, passed on by layers that are nearly linear (small values, orthogonal weights)."""
    if _is(l, 1):
        draw = jax.random.uniform(key, (shape[0], shape[1] + 1), jnp.float64, -FREQUENCY, FREQUENCY)
        return draw[:, :-1], draw[:, -1]
    W = initializers.orthogonal()(key, shape, jnp.float64)
    scale = 1 / SMALL if _is(l, depth) else jnp.where(jnp.asarray(l) == 2, SMALL, 1.0)
    return W * scale, jnp.zeros(shape[0])


INITIALISERS: dict[str, Callable] = {
    "paper": _paper,
    "he": _from(lambda sigma: initializers.he_normal()),
    "xavier": _from(lambda sigma: initializers.glorot_uniform()),
    "orthogonal": _from(lambda sigma: initializers.orthogonal(2**0.5 if sigma.name == "relu" else 1.0)),
    "looks-linear": _looks_linear,
    "features": _features,
}


def initialise(
    key: PRNGKeyArray, widths: Sequence[int], sigma: Activation, init: str = "paper", constants: Array | None = None
) -> Network:
    """A random network with layer widths m_0 … m_L. `constants`: what the last outputs are, at every input."""
    if init not in INITIALISERS:
        raise ValueError(f"init={init!r} is not known; use one of {', '.join(INITIALISERS)}.")
    if len(widths) < 3 or min(widths) < 1:
        raise ValueError(f"widths={list(widths)} need an input, at least one hidden width and an output, each at least 1.")
    depth, (p, q) = len(widths) - 1, equal_run(widths)
    keys = jax.random.split(key, depth)

    def layer(l) -> Dense:
        shape = (widths[l], widths[l - 1]) if isinstance(l, int) else (widths[p],) * 2
        return Dense(*INITIALISERS[init](keys[l - 1], shape, l, depth, sigma))

    stack = Stack.build(layer, 1, depth, (max(p, 2), q) if p <= q else NO_RUN)
    stack = stack.grow() if p == 1 else stack
    if constants is None:
        return Network(stack, sigma)
    q, top = len(constants), stack[depth]
    top = Dense(top.W.at[-q:].set(0.0), top.b.at[-q:].set(constants))
    return Network(stack.set(depth, top), sigma, q)
