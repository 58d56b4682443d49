"""Jets: the values of a function at n samples, and its derivatives along directions.

A jet has m quantities a at n samples, and channels with their derivatives in `tangents`. The first
k channels are the derivatives along directions v_1 … v_k. The others are either

* combined second derivatives (`forms`): the channel q is Σ_i sign_{q,i} ∂²a/∂v_i² plus ∂a/∂b_q,
  where b_q is what the input jet has in its place. A second-order operator is one such channel;
* single derivatives of orders 2 … K_i along each direction (`orders`), for equations of any order.

Plain regression has k = 0. A layer is linear on jets and an activation composes them
(docs/method.md, section 8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from math import comb, factorial, gcd
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sapm.numerics.activations import Activation

Forms = tuple[tuple[int, ...], ...]
Orders = tuple[int, ...]


class Jet(eqx.Module):
    """Values with channels of derivatives.

    Parameters
    ----------
    value : (n, m), m quantities at n samples.
    tangents : (n, channels, m), their derivatives.
    forms : k signs (1, -1 or 0) for each second-order channel.
    orders : the highest order K_i along each of the k directions. The first derivatives are
        followed by the second ones of the directions with K_i ≥ 2, then by the third ones of those
        with K_i ≥ 3, ….

    A jet has forms or orders, or neither.
    """

    value: Float[Array, "n m"]
    tangents: Float[Array, "n channels m"]
    forms: Forms = eqx.field(static=True, default=())
    orders: Orders = eqx.field(static=True, default=())

    @property
    def first(self) -> int:
        """The number of first derivatives; the other channels are of higher order."""
        if self.orders:
            return len(self.orders)
        return len(self.forms[0]) if self.forms else self.tangents.shape[-2]

    @property
    def order(self) -> int:
        """The highest order of the derivatives; 0 without channels."""
        if self.forms:
            return 2
        return max(self.orders, default=min(1, self.tangents.shape[-2]))

    def like(self, value: Array, tangents: Array) -> Jet:
        """Other numbers in the same channels."""
        return Jet(value, tangents, self.forms, self.orders)


def directions_of(orders: Orders, order: int) -> list[int]:
    """The directions i with a derivative of some order, in the order of its channels.

    Parameters
    ----------
    orders : the highest order along each direction.
    order : the order, at least 1.
    """
    return [i for i, highest in enumerate(orders) if highest >= max(order, 1)]


def channel(orders: Orders, direction: int, order: int) -> int:
    """Where a derivative is among the channels.

    Parameters
    ----------
    orders : the highest order along each direction.
    direction : the number of the direction, from 0.
    order : the order of the derivative.
    """
    below = sum(len(directions_of(orders, lower)) for lower in range(1, order))
    return below + directions_of(orders, order).index(direction)


def blocks(orders: Orders, tangents: Array) -> list[Array]:
    """The channels by order 1 … K: (n, number of directions that reach it, m).

    Parameters
    ----------
    orders : the highest order along each direction.
    tangents : (n, channels, m).
    """
    counts = [len(directions_of(orders, order)) for order in range(1, max(orders) + 1)]
    return jnp.split(tangents, np.cumsum(counts)[:-1].tolist(), axis=-2)


def lift(sigma: Activation, jet: Jet) -> Jet:
    """The jet of σ(a), by the chain rule.

    First derivatives: d_i → σ'(a)∘d_i. A combined second derivative: S → σ'(a)∘S +
    σ''(a)∘Σ_i sign_i d_i². Single derivatives of any order: Faà di Bruno's formula.

    Parameters
    ----------
    sigma : the activation.
    jet : that of a.
    """
    if jet.orders:
        return _composed(sigma, jet)
    value, slope = sigma.pair(jet.value)
    tangents = slope[:, None, :] * jet.tangents
    if jet.forms:
        k = jet.first
        squares = jnp.einsum(
            "qk,nkm->nqm", jnp.asarray(jet.forms, tangents.dtype), jet.tangents[:, :k] ** 2
        )
        tangents = tangents.at[:, k:].add(
            sigma.curve(jet.value, value, slope)[:, None, :] * squares
        )
    return Jet(value, tangents, jet.forms)


def _composed(sigma: Activation, jet: Jet) -> Jet:
    """The jet of σ(a) by Faà di Bruno's formula, along every direction:

    ∂ʲσ(a) = Σ_{r_1 + … + r_p = j} count · σ⁽ᵖ⁾(a) ∏_i ∂^{r_i} a
    """
    value, *slopes = sigma.derivatives(jet.value, max(jet.orders))
    parts = blocks(jet.orders, jet.tangents)
    lifted = []
    for order in range(1, len(parts) + 1):
        reached = directions_of(jet.orders, order)
        total = jnp.zeros(())
        for count, partition in _partitions(order):
            term = count * slopes[len(partition) - 1][:, None, :]
            for r in partition:
                places = [directions_of(jet.orders, r).index(i) for i in reached]
                whole = len(places) == parts[r - 1].shape[1]
                term = term * (parts[r - 1] if whole else parts[r - 1][:, jnp.asarray(places)])
            total = total + term
        lifted.append(total)
    return jet.like(value, jnp.concatenate(lifted, axis=1))


@cache
def _partitions(order: int) -> list[tuple[int, tuple[int, ...]]]:
    """(count, sizes): the number of partitions of a set of `order` elements into parts of these
    sizes.
    """

    def sizes(total: int, largest: int) -> Iterator[tuple[int, ...]]:
        if total == 0:
            yield ()
        for part in range(min(total, largest), 0, -1):
            for rest in sizes(total - part, part):
                yield (part, *rest)

    counted = []
    for partition in sizes(order, order):
        count = factorial(order)
        for part in set(partition):
            repeated = partition.count(part)
            count //= factorial(part) ** repeated * factorial(repeated)
        counted.append((count, partition))
    return counted


def multiplied(factor: Jet, jet: Jet) -> Jet:
    """The jet of a product, by Leibniz' rule.

    Parameters
    ----------
    factor, jet : those of the factors, with the same channels.
    """
    value = factor.value * jet.value
    if jet.orders:
        a = [factor.value[:, None], *blocks(jet.orders, factor.tangents)]
        b = [jet.value[:, None], *blocks(jet.orders, jet.tangents)]
        products = []
        for order in range(1, len(a)):
            reached = directions_of(jet.orders, order)

            def at(parts: list[Array], r: int, reached=reached) -> Array:
                if r == 0:
                    return parts[0]
                places = [directions_of(jet.orders, r).index(i) for i in reached]
                return parts[r][:, jnp.asarray(places)]

            products.append(
                sum(
                    (comb(order, r) * at(a, r) * at(b, order - r) for r in range(order + 1)),
                    jnp.zeros(()),
                )
            )
        return jet.like(value, jnp.concatenate(products, axis=1))
    tangents = factor.tangents * jet.value[:, None] + factor.value[:, None] * jet.tangents
    if jet.forms:
        k = jet.first
        signs = jnp.asarray(jet.forms, tangents.dtype)
        cross = jnp.einsum("qk,nkm->nqm", signs, factor.tangents[:, :k] * jet.tangents[:, :k])
        tangents = tangents.at[:, k:].add(2 * cross)
    return jet.like(value, tangents)


def jet_of(f: Callable[[Array], Array], x: Jet) -> Jet:
    """The jet of a function, by automatic differentiation.

    Parameters
    ----------
    f : a function of one point, (d,) → (m,).
    x : the input jet: the points and the directions.
    """
    k = x.first

    def along(v: Array) -> Callable[[Array], Array]:
        return lambda z: jax.jvp(f, (z,), (v,))[1]

    def low(value: Array, tangents: Array) -> tuple[Array, Array]:
        channels = [along(v)(value) for v in tangents]
        for q, form in enumerate(x.forms):
            for sign, v in zip(form, tangents[:k], strict=True):
                if sign:
                    channels[k + q] += sign * jax.jvp(along(v), (value,), (v,))[1]
        out = f(value)
        return out, jnp.stack(channels) if channels else jnp.zeros((0, *out.shape))

    def high(value: Array, tangents: Array) -> tuple[Array, Array]:
        channels: list[Any] = [None] * len(tangents)
        for i, highest in enumerate(x.orders):
            places = [channel(x.orders, i, order) for order in range(1, highest + 1)]

            def on_curve(t: Array, places=places) -> Array:
                steps = (
                    tangents[place] * t**order / factorial(order)
                    for order, place in enumerate(places, 1)
                )
                return f(value + sum(steps, jnp.zeros(())))

            curve: Callable = on_curve
            for place in places:
                curve = _derivative(curve)
                channels[place] = curve(jnp.zeros((), value.dtype))
        return f(value), jnp.stack(channels)

    return x.like(*jax.vmap(high if x.orders else low)(x.value, x.tangents))


def _derivative(f: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The derivative of a function of one number."""
    return lambda t: jax.jvp(f, (t,), (jnp.ones_like(t),))[1]


@cache
def polarised(exponents: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """The weights of a mixed derivative in terms of derivatives along directions:

        ∂^a = Σ_v weight_v (v·∇)^|a|

    They follow from the polarisation identity, with a sum over signs ε_2 … ε_K:

        2^{K-1} K! x_1⋯x_K = Σ_ε ∏ε (x_1 + Σ_{i>1} ε_i x_i)^K

    Parameters
    ----------
    exponents : the multi-index a, by coordinate.

    Returns a dictionary from directions v to weights. The components of v are integers without a
    common divisor, and the first that is not 0 is positive.
    """
    indices = [i for i, count in enumerate(exponents) for _ in range(count)]
    order = len(indices)
    numerators: dict[tuple[int, ...], int] = {}
    for signs in product((1, -1), repeat=order - 1):
        vector = [0] * len(exponents)
        for i, sign in zip(indices, (1, *signs), strict=True):
            vector[i] += sign
        size = gcd(*vector)
        if size == 0:
            continue
        if next(component for component in vector if component) < 0:
            size = -size
        direction = tuple(component // size for component in vector)
        weight = int(np.prod(signs)) * size**order
        numerators[direction] = numerators.get(direction, 0) + weight
    scale = 2 ** (order - 1) * factorial(order)
    return {v: numerator / scale for v, numerator in numerators.items() if numerator}
