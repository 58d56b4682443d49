"""Networks: layers stored one by one or stacked, the forward pass on jets, and initialisers.

    u_1 = layer_1(x),    u_l = layer_l(σ(u_{l-1})) for l = 2 … L

The output is u_L. Successive layers of equal shape are stacked, so that a loop over them is
compiled once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.nn import initializers
from jaxtyping import Array, Float, PRNGKeyArray

from sapm.numerics.activations import Activation
from sapm.numerics.jets import Jet, lift
from sapm.numerics.layers import Dense, Layer

LayerRange = tuple[int, int]
NO_RUN: LayerRange = (1, 0)


def equal_run(widths: Sequence[int]) -> LayerRange:
    """The longest run p..q of successive layers with square weights of one shape; NO_RUN if there
    is none. The top layer is not part of a run: 1 ≤ p and q < L.

    Parameters
    ----------
    widths : m_0 … m_L.
    """
    best = NO_RUN
    depth = len(widths) - 1
    for p in range(1, depth):
        q = p - 1
        while q + 1 < depth and widths[q + 1] == widths[p - 1]:
            q += 1
        if q - p > best[1] - best[0]:
            best = (p, q)
    return best


class Stack(eqx.Module):
    """A sequence of pytrees, one for every layer l = first, first+1, …. Those of the run p..q are
    equal in shape, and are stacked.

    In `stack[l]` and `stack.set(l, new)`, l is an integer, or a traced number within p..q.

    Parameters
    ----------
    head : the layers below p.
    body : the layers p..q on a leading axis; None if there are none.
    tail : the layers above q.
    run : (p, q).
    first : the number of the first layer.
    """

    head: tuple
    body: Any
    tail: tuple
    run: LayerRange = eqx.field(static=True)
    first: int = eqx.field(static=True, default=1)

    @staticmethod
    def build(make: Callable, first: int, last: int, run: LayerRange) -> Stack:
        """The stack of make(l) for l = first..last. `jax.vmap` traces `make` once for the run."""
        p, q = run
        body = jax.vmap(make)(jnp.arange(p, q + 1)) if q >= p else None
        tail = range(max(q + 1, p), last + 1)
        return Stack(
            tuple(make(l) for l in range(first, p)), body, tuple(make(l) for l in tail), run, first
        )

    @staticmethod
    def of(layers: Sequence, run: LayerRange, first: int = 1) -> Stack:
        """A stack of these layers, the first of which has the number `first`."""
        p = run[0] - first
        q = run[1] - first
        body = jax.tree.map(lambda *x: jnp.stack(x), *layers[p : q + 1]) if q >= p else None
        return Stack(tuple(layers[:p]), body, tuple(layers[max(q + 1, p) :]), run, first)

    @property
    def last(self) -> int:
        """The number of the last layer."""
        p, q = self.run
        return max(q, p - 1) + len(self.tail)

    def _place(self, l) -> tuple[str, Any]:
        """The part that holds layer l, and its index there."""
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
        """The same stack with layer l replaced."""
        part, i = self._place(l)
        if part == "body":
            body = jax.tree.map(
                lambda x, y: lax.dynamic_update_index_in_dim(x, y, i, 0), self.body, new
            )
            return replace(self, body=body)
        old = getattr(self, part)
        return replace(self, **{part: (*old[:i], new, *old[i + 1 :])})

    def set_range(self, l: int, new) -> Stack:
        """The same stack with layers l, l+1, … of the run replaced by `new`, a stacked pytree."""
        i = l - self.run[0]
        return replace(
            self,
            body=jax.tree.map(
                lambda x, y: lax.dynamic_update_slice_in_dim(x, y, i, 0), self.body, new
            ),
        )

    def map(self, f: Callable) -> Stack:
        """The stack of f(x_l) for every layer l. f is traced once for all of the run."""
        body = None if self.body is None else jax.vmap(f)(self.body)
        return Stack(tuple(map(f, self.head)), body, tuple(map(f, self.tail)), self.run, self.first)

    def scan(self, f: Callable, carry, *others: Stack, reverse: bool = False) -> tuple[Any, Stack]:
        """The loop carry, y_l = f(carry, x_l, *others_l) over all layers. Returns the last carry
        and the stack of the y_l.

        The run is one `lax.scan`, so f is traced once for all of it.

        Parameters
        ----------
        f : (carry, x_l, *others_l) → (carry, y_l).
        carry : the first carry.
        others : stacks of the same layers.
        reverse : whether the loop goes from the last layer to the first.
        """
        stacks = (self, *others)
        results: dict[str, Any] = {"head": [], "body": None, "tail": []}
        for part in ("tail", "body", "head") if reverse else ("head", "body", "tail"):
            if part == "body":
                if self.body is not None:
                    bodies = tuple(stack.body for stack in stacks)
                    carry, results[part] = lax.scan(
                        lambda carry, layers: f(carry, *layers), carry, bodies, reverse=reverse
                    )
                continue
            layers = list(zip(*(getattr(stack, part) for stack in stacks), strict=True))
            for layer in reversed(layers) if reverse else layers:
                carry, y = f(carry, *layer)
                results[part].append(y)
            if reverse:
                results[part].reverse()
        stack = Stack(
            tuple(results["head"]), results["body"], tuple(results["tail"]), self.run, self.first
        )
        return carry, stack

    def total(self, f: Callable, *others: Stack) -> Array:
        """Σ_l f(x_l, *others_l). The layers of the run are one `lax.scan`."""
        stacks = self.zip(*others)
        ends = reduce(jnp.add, [f(*layer) for layer in (*stacks.head, *stacks.tail)])
        if stacks.body is None:
            return ends
        return lax.scan(lambda sum, layer: (sum + f(*layer), None), ends, stacks.body)[0]

    def zip(self, *others: Stack) -> Stack:
        """The stack of the tuples (x_l, *others_l)."""
        stacks = (self, *others)
        head = tuple(zip(*(stack.head for stack in stacks), strict=True))
        body = None if self.body is None else tuple(stack.body for stack in stacks)
        tail = tuple(zip(*(stack.tail for stack in stacks), strict=True))
        return Stack(head, body, tail, self.run, self.first)

    def shift(self, bottom) -> Stack:
        """The stack in which every layer is moved up by one. `bottom` becomes the first layer, and
        the last layer is dropped.
        """
        layers = [bottom, *self.head]
        head = layers[:-1]
        body = None
        if self.body is not None:
            body = jax.tree.map(
                lambda a, b: jnp.concatenate([a[None], b[:-1]]), layers[-1], self.body
            )
            layers = [jax.tree.map(lambda b: b[-1], self.body)]
        return Stack(tuple(head), body, (layers[-1], *self.tail[:-1]), self.run, self.first)

    def columns(self) -> Array:
        """The arrays of all layers, joined along their last axis."""
        body = []
        if self.body is not None:
            joined = jnp.moveaxis(self.body, 0, -2)
            body = [joined.reshape(*joined.shape[:-2], -1)]
        return jnp.concatenate([*self.head, *body, *self.tail], axis=-1)

    def split(self, flat: Float[Array, " p"], size: Callable[[Any], int]) -> Stack:
        """The inverse of `columns`: every layer x_l takes the next size(x_l) numbers of `flat`."""
        at = 0

        def take(count: int) -> Array:
            nonlocal at
            at += count
            return flat[at - count : at]

        head = tuple(take(size(x)) for x in self.head)
        body = None
        if self.body is not None:
            layer = jax.eval_shape(lambda body: jax.tree.map(lambda a: a[0], body), self.body)
            count = self.run[1] - self.run[0] + 1
            body = take(count * size(layer)).reshape(count, -1)
        tail = tuple(take(size(x)) for x in self.tail)
        return Stack(head, body, tail, self.run, self.first)

    @property
    def top(self):
        """The last layer."""
        return self.tail[-1]

    def below(self) -> Stack:
        """The stack without its last layer."""
        return replace(self, tail=self.tail[:-1])

    def append(self, new) -> Stack:
        """The stack with another layer on top."""
        return replace(self, tail=(*self.tail, new))

    def prepend(self, new) -> Stack:
        """The stack with another layer, first-1, below."""
        return replace(self, head=(new, *self.head), first=self.first - 1)

    def grow(self) -> Stack:
        """The same stack, in which layer p-1 has become part of the run: it is p-1..q."""
        if self.run == NO_RUN:
            return self
        p, q = self.run
        *head, last = self.head
        below = jax.tree.map(lambda x: x[None], last)
        body = (
            below
            if self.body is None
            else jax.tree.map(lambda x, y: jnp.concatenate([x, y]), below, self.body)
        )
        return replace(self, head=tuple(head), body=body, run=(p - 1, q))

    def layers(self) -> list:
        """All layers as a list."""
        return [self[l] for l in range(self.first, self.last + 1)]

    def rows(self):
        """All layers as one pytree with a leading axis of layers. They must be equal in shape."""
        body = [] if self.body is None else [self.body]

        def grow(part):
            return [jax.tree.map(lambda x: x[None], x) for x in part]

        return jax.tree.map(
            lambda *x: jnp.concatenate(x), *grow(self.head), *body, *grow(self.tail)
        )


class Network(eqx.Module):
    """Layers l = 1..L with an activation between them; the last layer is linear.

    Parameters
    ----------
    stack : the layers; `stack[l]` is layer l.
    sigma : the activation.
    constants : the number of outputs that do not depend on the input. They are the last outputs,
        and their rows of W_L are 0.
    """

    stack: Stack
    sigma: Activation = eqx.field(static=True)
    constants: int = eqx.field(static=True, default=0)

    @staticmethod
    def of(weights: Sequence[tuple[Any, Any]], sigma: Activation, constants: int = 0) -> Network:
        """The dense network with given weights.

        Parameters
        ----------
        weights : [(W_1, b_1), …, (W_L, b_L)]; W_l (out, in), b_l (out,).
        sigma : the activation.
        constants : the number of outputs that do not depend on the input.
        """
        layers = [Dense(jnp.asarray(W), jnp.asarray(b)) for W, b in weights]
        widths = [layers[0].W.shape[1]] + [layer.W.shape[0] for layer in layers]
        if len(layers) < 2:
            raise ValueError(
                f"a network of depth {len(layers)} has no hidden layer; the depth must be at "
                "least 2."
            )
        for l, layer in enumerate(layers, 1):
            if layer.W.shape != (widths[l], widths[l - 1]) or layer.b.shape != (widths[l],):
                raise ValueError(
                    f"layer {l} has W {layer.W.shape} and b {layer.b.shape}; the layer below "
                    f"gives {widths[l - 1]} values, "
                    f"so W must be (out, {widths[l - 1]}) and b (out,)."
                )
        return Network(Stack.of(layers, equal_run(widths)), sigma, constants)

    @staticmethod
    def chain(layers: Sequence[Layer], sigma: Activation) -> Network:
        """The network of layers of any kind. Successive equal layers are stacked.

        Parameters
        ----------
        layers : at least two; each takes as many numbers as the one below gives.
        sigma : the activation.
        """
        if len(layers) < 2:
            raise ValueError(f"a network needs at least 2 layers, got {len(layers)}.")
        for l, (below, layer) in enumerate(itertools.pairwise(layers), 2):
            if below.sizes[1] != layer.sizes[0]:
                raise ValueError(
                    f"layer {l} takes {layer.sizes[0]} numbers, and the layer below gives "
                    f"{below.sizes[1]}; they must be equal."
                )
        if all(type(layer) is Dense for layer in layers):
            widths = [layers[0].sizes[0], *(layer.sizes[1] for layer in layers)]
            return Network(Stack.of(layers, equal_run(widths)), sigma)

        def kind(layer: Layer):
            return jax.tree.structure(layer), [leaf.shape for leaf in jax.tree.leaves(layer)]

        # The first layer has no activation before it, so it is not part of a run.
        runs = [
            (p, q)
            for p in range(2, len(layers))
            for q in range(p, len(layers))
            if all(kind(layer) == kind(layers[p - 1]) for layer in layers[p - 1 : q])
        ]
        run = max(runs, key=lambda run: (run[1] - run[0], -run[0]), default=NO_RUN)
        return Network(Stack.of(layers, run if run[1] > run[0] else NO_RUN), sigma)

    @property
    def dense(self) -> bool:
        """Whether every layer is `Dense`."""
        parts = (*self.stack.head, self.stack.body, *self.stack.tail)
        return all(type(layer) is Dense for layer in parts if layer is not None)

    def layer(self, l) -> Any:
        """Layer l. In the top layer, the weights of constants are set to 0."""
        layer = self.stack[l]
        if not self.constants or not isinstance(l, int) or l != self.depth:
            return layer
        return Dense(layer.W.at[-self.constants :].set(0.0), layer.b)

    @property
    def depth(self) -> int:
        """The number of layers L."""
        return self.stack.last

    @property
    def widths(self) -> list[int]:
        """m_0 … m_L: inputs, hidden widths, outputs."""
        layers = self.stack.layers()
        return [layers[0].sizes[0], *(layer.sizes[1] for layer in layers)]

    def unstacked(self) -> Network:
        """The same network without a stacked run."""
        return replace(self, stack=Stack.of(self.stack.layers(), NO_RUN))

    def widen_input(self, width: int) -> Network:
        """The same function of inputs that are padded with zeros to `width`.

        If layer 1 then has the shape of the run above it, it becomes part of the run.
        """
        require_dense(self, "inputs that are padded with zeros")
        stack = self.stack
        first = self.stack[1]
        W = jnp.pad(first.W, ((0, 0), (0, width - first.W.shape[1])))
        stack = stack.set(1, Dense(W, first.b))
        return replace(
            self, stack=stack.grow() if stack.run[0] == 2 and W.shape[0] == W.shape[1] else stack
        )

    def narrow_input(self, width: int) -> Network:
        """The inverse of `widen_input`."""
        require_dense(self, "inputs that are padded with zeros")
        weights = [(layer.W, layer.b) for layer in self.stack.layers()]
        weights[0] = (weights[0][0][:, :width], weights[0][1])
        return Network.of(weights, self.sigma, self.constants)

    @property
    def weights(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """[(W_1, b_1), …, (W_L, b_L)] of a dense network."""
        return [(np.asarray(layer.W), np.asarray(layer.b)) for layer in self.stack.layers()]

    def preactivations(self, x: Jet) -> Stack:
        """The jets u_1 … u_L of the forward pass; u_L is the output."""
        dtype = jax.tree.leaves(self.stack.top)[0].dtype
        x = jax.tree.map(lambda a: a.astype(dtype), x)
        below = self.stack.below()
        top = self.layer(self.depth)
        if self.dense:

            def up(z, layer):
                u = layer(z)
                return lift(self.sigma, u), u

            z, hidden = below.scan(up, x)
            return hidden.append(top(z))

        def step(u, layer):
            u = layer(x) if u is None else layer.apply(self.sigma, u)
            return u, u

        u, hidden = below.scan(step, None)
        return hidden.append(top.apply(self.sigma, u))

    def __call__(self, x: Jet) -> Jet:
        """The output jet: ψ and its derivatives at the points and along the directions of x."""
        return self.preactivations(x).top


def require_dense(network: Network, what: str) -> None:
    """Raise an error if a layer is not `Dense`.

    Parameters
    ----------
    network : the network.
    what : what is only for dense layers.
    """
    if network.dense:
        return
    layers = enumerate(network.stack.layers(), 1)
    l, kind = next((l, type(layer).__name__) for l, layer in layers if type(layer) is not Dense)
    raise ValueError(
        f"{what}: got layer {l}, {kind}, expected dense layers; use model='ls' with Gauss-Newton "
        "or descent."
    )


# ---------------------------------------------------------------- initialisers

# The activations with σ(h) - σ(-h) = h, for the initialiser "looks-linear".
LOOKS_LINEAR = ("relu",)

# An initialiser maps (key, shape (out, in) of W, layer l, depth L, σ) to (W, b).


def _is(l, number: int) -> bool:
    """Whether l is this number, that of the first or the last layer. A traced l is in the run
    between them, so it is neither.
    """
    return isinstance(l, int) and l == number


def _paper(key, shape, l, depth, sigma):
    """W and b uniform in ±M^(-1/2). M is the width of the layer, and for the last layer that of the
    layer below.
    """
    bound = (shape[1] if _is(l, depth) else shape[0]) ** -0.5
    draw = jax.random.uniform(key, (shape[0], shape[1] + 1), jnp.float64, -bound, bound)
    return draw[:, :-1], draw[:, -1]


def _from(make: Callable[[Activation], Callable]) -> Callable:
    """The initialiser with b = 0 and W by make(σ), an initialiser of `jax.nn.initializers`."""

    def init(key, shape, l, depth, sigma):
        return make(sigma)(key, shape[::-1], jnp.float64).T, jnp.zeros(shape[0])

    return init


def _looks_linear(key, shape, l, depth, sigma):
    """Orthogonal weights, mirrored so that the network starts as a linear map.

    Hidden units form pairs with the inputs h and -h, and relu(h) - relu(-h) = h. If the width is
    odd, the last unit is alone. It has He weights, and the weights of its output are 0.
    """
    out, inner = shape
    first = _is(l, 1)
    last = _is(l, depth)
    half_out = out if last else out // 2
    half_in = inner if first else inner // 2
    k_core, k_rest = jax.random.split(key)
    core = initializers.orthogonal()(k_core, (max(half_out, 1), max(half_in, 1)), jnp.float64)[
        :half_out, :half_in
    ]
    if not first:
        core = jnp.concatenate([core, -core], axis=1)
    if not last:
        core = jnp.concatenate([core, -core], axis=0)
    W = jnp.pad(core, ((0, out - core.shape[0]), (0, inner - core.shape[1])))
    if core.shape[0] < out:
        W = W.at[-1].set(jax.random.normal(k_rest, (inner,), jnp.float64) * (2 / inner) ** 0.5)
    return W, jnp.zeros(out)


INITIALISERS: dict[str, Callable] = {
    "paper": _paper,
    "he": _from(lambda sigma: initializers.he_normal()),
    "xavier": _from(lambda sigma: initializers.glorot_uniform()),
    "orthogonal": _from(lambda sigma: initializers.orthogonal(1.0 if sigma.smooth else 2**0.5)),
    "looks-linear": _looks_linear,
}


def initialise(
    key: PRNGKeyArray,
    widths: Sequence[int],
    sigma: Activation,
    init: str = "paper",
    constants: Array | None = None,
) -> Network:
    """A random dense network.

    Parameters
    ----------
    key : the random key.
    widths : the layer widths m_0 … m_L.
    sigma : the activation.
    init : the name of an initialiser (`INITIALISERS`).
    constants : (q,) the values of the last q outputs, which do not depend on the input; None: there
        are no such outputs.
    """
    if len(widths) < 3 or min(widths) < 1:
        raise ValueError(
            f"widths={list(widths)} need an input, at least one hidden width and an output, each "
            "at least 1."
        )
    depth = len(widths) - 1
    p, q = equal_run(widths)
    keys = jax.random.split(key, depth)

    def layer(l) -> Dense:
        shape = (widths[l], widths[l - 1]) if isinstance(l, int) else (widths[p],) * 2
        return Dense(*INITIALISERS[init](keys[l - 1], shape, l, depth, sigma))

    stack = Stack.build(layer, 1, depth, (max(p, 2), q) if p <= q else NO_RUN)
    stack = stack.grow() if p == 1 else stack
    if constants is None:
        return Network(stack, sigma)
    count = len(constants)
    top = stack[depth]
    top = Dense(top.W.at[-count:].set(0.0), top.b.at[-count:].set(constants))
    return Network(stack.set(depth, top), sigma, count)
