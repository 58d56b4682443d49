"""The losses: the mean square (LS), and the penalty losses of PM and SAPM on separated layers.

Let s_l = ‖W_l‖_F², and for a sample n of a PDE term t_{l,n} = Σ_i ‖d_{l,i}[n]‖². The penalty loss
is

    Σ_n κ_n [ out_n + Σ_l ω_l ( β_l Ω²_{l,n} v_{l,n} + α_l τ_{l,n} ) ]

where

    v_{l,n}, τ_{l,n} = squared norms of the value defects and the tangent defects of layer l

    SAPM:   ω_l = Π_{j>l} s_j
            Ω²_{l,n} = Σ_{l≤j<L} t_{j,n}     (PDE terms; otherwise 1)

    PM:     ω_l = Ω_{l,n} = 1

    out_n = |c·d_L[n] - y_n|²                (PDE terms; otherwise 0)

The output residual of a value term is the value defect of layer L. `sapm.objective.weights` has the
weights of PDE terms that contain ψ itself, second derivatives or a nonlinear function.

The loss is a function of a few norms (`Norms`); each ridge of a block is a derivative of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from sapm.numerics.jets import Jet
from sapm.numerics.network import NO_RUN, Network, Stack, require_dense
from sapm.objective.terms import Term
from sapm.objective.weights import (
    Curve,
    bend_squared,
    length_squared,
    squared_norms,
    tangent_spread,
    value_spread,
)
from sapm.scopes import float64

MODELS = ("ls", "pm", "sapm")
STARTS = ("uniform", "forward", "noise")


class Point(eqx.Module):
    """The unknowns of a penalty model: the network, and the free jets u_1 … u_L of every term.

    Parameters
    ----------
    network : the layers.
    aux : for each term a stack of jets by layer.

    The free jets of a value term are a_1 … a_{L-1}. Those of a PDE term have derivatives
    d_1 … d_L too, with any second-order channels. The value at layer L is free if the term contains
    ψ itself; otherwise u_L.value has no columns.
    """

    network: Network
    aux: tuple[Stack, ...]


class Norms(eqx.Module):
    """The norms that the loss depends on, by layer.

    Parameters
    ----------
    s : (L,), s_l = ‖W_l‖_F².
    v : for each term (L,) or (L, n), Σ_n κ_n v_{l,n}; for a PDE term v_{l,n}, since Ω weighs its
        samples differently.
    tau : for each term (L,) or (L, 2, n), Σ_n κ_n τ_{l,n}; for a term of second order the squared
        norms of the first derivatives and of the other channels.
    t : for each term (L, n), t_{l,n}.
    out : for each term (), Σ_n κ_n out_n.
    curve : for each term, the norms that a term of second order has in addition; else None.
    """

    s: Float[Array, " L"]
    v: tuple[Array, ...]
    tau: tuple[Float[Array, " L"], ...]
    t: tuple[Float[Array, "L n"], ...]
    out: tuple[Float[Array, ""], ...]
    curve: tuple[Curve | None, ...] = ()


class Objective(eqx.Module):
    """The terms of a problem, with a model and its fixed weights.

    Parameters
    ----------
    beta, alpha : for each term (L,), the weights β_l of value defects and α_l of tangent defects.
    model : "ls", "pm" or "sapm".
    l2 : the weight of Σ_l ‖W_l‖_F² in the loss that is minimised.
    constants : (q,), first guesses of the last q outputs, unknown numbers that do not depend on the
        input.
    """

    terms: tuple[Term, ...]
    beta: tuple[Float[Array, " L"], ...]
    alpha: tuple[Float[Array, " L"], ...]
    model: str = eqx.field(static=True)
    l2: Float[Array, ""] | None = None
    constants: Float[Array, " q"] | None = None

    @property
    def adaptive(self) -> bool:
        """Whether the weights depend on the network (SAPM)."""
        return self.model == "sapm"

    @property
    def depth(self) -> int:
        """The number of layers L."""
        return self.beta[0].shape[-1]

    @property
    def channels(self) -> int:
        """The number of values and derivatives at all samples."""
        return sum(term.y.shape[0] * (1 + term.channels) for term in self.terms)


@float64
def objective(
    terms: Sequence[Term], depth: int, model: str = "sapm", alpha=1.0, beta=1.0, l2: float = 0.0
) -> Objective:
    """The objective of some terms, checked.

    Parameters
    ----------
    terms : at least one.
    depth : the number of layers L of the network.
    model : "ls", "pm" or "sapm".
    beta : the weights of value defects, l < L: a number, an array (L-1,), or a tuple with one of
        these for each term.
    alpha : the weights of tangent defects, l ≤ L, likewise.
    l2 : the weight of Σ_l ‖W_l‖_F² in the loss.
    """
    if isinstance(terms, Term) or not terms:
        raise ValueError("terms must be a list with at least one term, such as [value_term(x, y)].")
    if model != "ls" and any(term.x.orders for term in terms):
        raise ValueError(
            f"model={model!r} got a derivative of order {max(term.x.order for term in terms)}, "
            "expected at most 2; use model='ls'."
        )
    if model != "ls" and not all(term.squared for term in terms):
        raise ValueError(
            f"model={model!r} got a loss that is not the square, expected squares; use model='ls'."
        )
    for term in terms:
        if model != "ls" and not term.known:
            raise ValueError(
                f"model={model!r} got the operator {type(term.operator).__name__}, expected the "
                "value of all outputs, or an equation of order 1 or 2 for one output; use "
                "model='ls'."
            )
    if depth < 2:
        raise ValueError(f"depth={depth} leaves no hidden layer; it must be at least 2.")

    def per_term(name, values, length):
        values = values if isinstance(values, tuple) else (values,) * len(terms)
        if len(values) != len(terms):
            raise ValueError(
                f"{name} has {len(values)} entries for {len(terms)} terms; give one for each, or "
                "one for all."
            )
        return [np.broadcast_to(np.asarray(value, float), (length,)) for value in values]

    # The value defect of layer L has weight 1 for a value term, where it is the output residual,
    # and for a PDE term that contains ψ. Other PDE terms have none.
    betas = [
        jnp.asarray([*weights, 0.0 if term.is_pde and not term.uses_value else 1.0])
        for weights, term in zip(per_term("beta", beta, depth - 1), terms, strict=True)
    ]
    alphas = [jnp.asarray(weights) for weights in per_term("alpha", alpha, depth)]
    return Objective(
        tuple(terms), tuple(betas), tuple(alphas), model, jnp.asarray(float(l2)) if l2 else None
    )


def check_widths(obj: Objective, widths: Sequence[int]) -> None:
    """Raise an error if layer widths do not fit the terms.

    Parameters
    ----------
    obj : the objective.
    widths : m_0 … m_L.
    """
    if len(widths) != obj.depth + 1:
        raise ValueError(
            f"widths={list(widths)} describe depth {len(widths) - 1}, but the objective has "
            f"depth {obj.depth}."
        )
    for term in obj.terms:
        inputs = term.x.value.shape[1]
        outputs = term.outputs
        if (widths[0], widths[-1]) != (inputs, outputs if outputs is not None else widths[-1]):
            raise ValueError(
                f"widths={list(widths)} are for {widths[0]} inputs and {widths[-1]} outputs, "
                f"but a term has {inputs} and {outputs}."
            )


# ---------------------------------------------------------------- losses


def mean_square(network: Network, terms: Sequence[Term]) -> Float[Array, ""]:
    """The true loss (𝓛 or 𝒥), without the ℓ² penalty:

        Σ_terms Σ_n κ_n loss(operator(ψ at x_n), y_n)

    The loss is |prediction - y_n|² unless a term has another one.

    Parameters
    ----------
    network : gives ψ.
    terms : the terms of the objective.
    """
    return sum((term.cost(network(term.x)) for term in terms), jnp.zeros(()))


def true_loss(obj: Objective, network: Network) -> Float[Array, ""]:
    """The loss that LS minimises: `mean_square` plus the ℓ² penalty, if any.

    Parameters
    ----------
    obj : the terms and the weight of the penalty.
    network : the network.
    """
    loss = mean_square(network, obj.terms)
    if obj.l2 is None:
        return loss
    layers = network.stack.layers()
    return loss + obj.l2 * sum(
        jnp.sum(leaf**2) for layer in layers for leaf in jax.tree.leaves(layer.penalised())
    )


def target(term: Term, u: Jet, top: bool) -> Jet:
    """The jet that the output of layer l is compared with: the free jet u_l.

    At the top, a value term is compared with its labels. A PDE term without ψ has derivatives d_L
    there, and no value defect: its target is 0 in place of a value.

    Parameters
    ----------
    term : the term.
    u : its free jet at layer l.
    top : whether l = L.
    """
    top = top and not term.uses_value
    if not top:
        return u
    return u.like(jnp.zeros_like(term.y) if term.is_pde else term.y, u.tangents)


def defects(term: Term, network: Network, aux: Stack) -> Stack:
    """The defects of all layers, the differences between what a layer gives and the free jets:

        r_1 = layer_1(x) - u_1,    r_l = layer_l(lift(u_{l-1})) - u_l for l = 2..L

    At the top, `target` takes the place of u_L.

    Parameters
    ----------
    term : gives x and the labels.
    network : the layers.
    aux : the free jets u_1 … u_L of the term.
    """
    p, q = network.stack.run

    def at(l) -> Jet:
        first = isinstance(l, int) and l == 1
        top = isinstance(l, int) and l == network.depth
        layer = network.layer(l)
        output = layer(term.x) if first else layer.apply(network.sigma, aux[l - 1])
        return jax.tree.map(jnp.subtract, output, target(term, aux[l], top))

    return Stack.build(at, 1, network.depth, (p + 1, q) if p <= q else NO_RUN).grow()


def sizes(term: Term, r: Jet) -> tuple[Array, Array]:
    """The squared norms v and τ of a layer's defects, summed as in `Norms`.

    Parameters
    ----------
    term : the term.
    r : its defects of one layer.
    """
    if not term.is_pde:
        return _total(term, r.value**2), jnp.zeros(())
    if term.x.forms:
        return jnp.sum(r.value**2, axis=-1), jnp.stack([length_squared(r), bend_squared(r)])
    return jnp.sum(r.value**2, axis=-1), _total(term, r.tangents**2)


def _total(term: Term, x: Array) -> Float[Array, ""]:
    """Σ_n κ_n Σ x[n]."""
    w = term.weight
    if w.ndim == 0:
        return w * jnp.sum(x, dtype=w.dtype)
    return w.astype(float) @ jnp.sum(x, axis=tuple(range(1, x.ndim)), dtype=float)


def output_misfit(term: Term, u_top: Jet) -> Float[Array, ""]:
    """Σ_n κ_n out_n: the squared residuals of a PDE term; 0 for a value term, whose output residual
    is the defect of layer L.

    Parameters
    ----------
    term : the term.
    u_top : its free jet u_L.
    """
    return _total(term, term.residual(u_top) ** 2) if term.is_pde else jnp.zeros(())


def norms(obj: Objective, point: Point, all_defects: Sequence[Stack]) -> Norms:
    """The norms that the penalty loss of a point is a function of.

    Parameters
    ----------
    obj, point : the objective, and the network with the free jets.
    all_defects : for each term the stack of `defects` at that point.
    """
    pairs = [
        r.map(lambda jet, term=term: sizes(term, jet)).rows()
        for term, r in zip(obj.terms, all_defects, strict=True)
    ]
    weight_norms = [
        squared_norms(term, point.network, aux)
        for term, aux in zip(obj.terms, point.aux, strict=True)
    ]
    return Norms(
        s=gains(obj, point.network),
        v=tuple(v for v, _ in pairs),
        tau=tuple(tau for _, tau in pairs),
        t=tuple(t for t, _ in weight_norms),
        out=tuple(
            output_misfit(term, aux[obj.depth])
            for term, aux in zip(obj.terms, point.aux, strict=True)
        ),
        curve=tuple(curve for _, curve in weight_norms),
    )


def gains(obj: Objective, network: Network) -> Float[Array, " L"]:
    """The gain s_l of every layer; that of a dense layer is ‖W_l‖_F².

    Parameters
    ----------
    obj : PM's loss does not use gains; those of layers that are not dense are then 1.
    network : the layers.
    """
    if network.dense:
        return network.stack.map(lambda layer: layer.gain()).rows()
    layers = network.stack.layers()
    known = [layer.gain() for layer in layers]
    if not obj.adaptive:
        return jnp.ones(len(layers))
    for l, (layer, gain) in enumerate(zip(layers, known, strict=True), 1):
        if gain is None:
            raise ValueError(
                f"model='sapm': got layer {l}, {type(layer).__name__}, without a gain, expected "
                "layers with a proven gain; use model='ls'."
            )
    return jnp.stack(known)


def omega(obj: Objective, s: Float[Array, " L"]) -> Float[Array, " L"]:
    """ω_l = Π_{j>l} s_j for SAPM, so ω_L = 1; ω_l = 1 for PM.

    Parameters
    ----------
    obj : the objective, for its model.
    s : (L,), the gains.
    """
    if not obj.adaptive:
        return jnp.ones_like(s)
    return jnp.append(jnp.cumprod(s[:0:-1])[::-1], 1.0)


def value_weight(obj: Objective, i: int, t: Float[Array, "L n"], l) -> Array:
    """β_l Ω²_{l,n} of a separable term at one layer.

    The result is (n,) for a PDE term of SAPM, and () otherwise. For terms that are not separable,
    Ω² has further summands (`value_spread`).

    Parameters
    ----------
    obj : the objective.
    i : the number of the term, from 0.
    t : (L, n), the squared lengths of its free tangents.
    l : the layer, which may be traced.
    """
    assert obj.terms[i].separable, type(obj.terms[i].operator)
    if not (obj.adaptive and obj.terms[i].is_pde):
        return obj.beta[i][l - 1]
    layer = jnp.arange(1, obj.depth + 1)
    return obj.beta[i][l - 1] * (((layer >= l) & (layer < obj.depth)).astype(t.dtype) @ t)


def defect_weights(
    obj: Objective, i: int, w: Float[Array, " L"], t: Float[Array, "L n"], curve: Curve | None
) -> tuple[Array, Array]:
    """The weights of the defects of a term, without κ_n.

    Parameters
    ----------
    obj : the objective.
    i : the number of the term, from 0.
    w : (L,), ω_l.
    t, curve : the norms that the adaptive weights are functions of (`squared_norms`).

    Returns the weights of values, (L, n), and of channels: (L,), or for a term of second order
    (L, n, k, 1).
    """
    term = obj.terms[i]
    adaptive = obj.adaptive and obj.terms[i].is_pde
    spread = value_spread(term, t, curve) if adaptive else jnp.ones((obj.depth, len(term.y)))
    value = (obj.beta[i] * w)[:, None] * spread
    channel = obj.alpha[i] * w
    if curve is None:
        return value, channel
    k = term.x.first
    channel = jnp.broadcast_to(channel[:, None, None], (*spread.shape, term.channels))
    if adaptive:
        channel = channel.at[..., :k].multiply(tangent_spread(curve)[..., None])
    return value, channel[..., None]


def energy(obj: Objective, norms: Norms) -> Float[Array, " L"]:
    """The share of every layer in the loss, before it is multiplied by ω_l:

        Σ_terms Σ_n κ_n (β_l Ω²_{l,n} v_{l,n} + α_l τ_{l,n})

    Parameters
    ----------
    obj : the objective.
    norms : of the point.
    """
    total = jnp.zeros_like(norms.s)
    for i, term in enumerate(obj.terms):
        v = norms.v[i]
        tau = norms.tau[i]
        curve = norms.curve[i]
        if term.is_pde:
            if obj.adaptive:
                v = v * value_spread(term, norms.t[i], curve)
            v = v.astype(float) @ jnp.broadcast_to(term.weight, v.shape[-1]).astype(float)
        if curve is not None:
            tau = tau[:, 0] * (tangent_spread(curve) if obj.adaptive else 1.0) + tau[:, 1]
            tau = tau @ jnp.broadcast_to(term.weight, tau.shape[-1])
        total += obj.beta[i] * v + obj.alpha[i] * tau
    return total


def weigh(obj: Objective, norms: Norms) -> Float[Array, ""]:
    """The penalty loss from the norms of a point (the formula at the top of this file).

    Parameters
    ----------
    obj : the objective.
    norms : of the point.
    """
    loss = omega(obj, norms.s) @ energy(obj, norms) + sum(norms.out)
    return loss if obj.l2 is None else loss + obj.l2 * jnp.sum(norms.s)


def penalty(obj: Objective, point: Point) -> Float[Array, ""]:
    """The loss of PM (𝓛_P, 𝒥_P) or SAPM (𝓛_S, 𝒥_S) at a point.

    Parameters
    ----------
    obj : the objective, with model "pm" or "sapm".
    point : the network with the free jets.
    """
    if obj.l2 is not None:
        require_dense(point.network, f"l2 with model={obj.model!r}")
    all_defects = [
        defects(term, point.network, aux) for term, aux in zip(obj.terms, point.aux, strict=True)
    ]
    return weigh(obj, norms(obj, point, all_defects))


# ---------------------------------------------------------------- ridges


def chain(s: Float[Array, " L"], l) -> Float[Array, " L"]:
    """Π_{m<j<l} s_j for every m < l, and 0 for m ≥ l: the factor of the defects of layer m that the
    layers between m and l contribute.

    Parameters
    ----------
    s : (L,), the gains.
    l : the layer, which may be traced.
    """
    layer = jnp.arange(1, len(s) + 1)
    product = jnp.cumprod(jnp.where(layer < l, s, 1.0)[::-1])[::-1]  # Π_{m≤j<l}
    return jnp.where(layer < l, jnp.append(product[1:], 1.0), 0.0)


def ridge_W(obj: Objective, norms: Norms, l) -> Float[Array, ""]:
    """The ridge of W_l,

        λ_l = (∂loss/∂s_l) / ω_l = Σ_{m<l} (Π_{m<j<l} s_j) · energy_m

    The sum is used, since the quotient is 0/0 where a layer has collapsed.

    Parameters
    ----------
    obj : the objective; an ℓ² penalty adds l2 / ω_l.
    norms : of the point.
    l : the layer, which may be traced.
    """
    ridge = chain(norms.s, l) @ energy(obj, norms) if obj.adaptive else jnp.zeros(())
    if obj.l2 is None:
        return ridge
    return ridge + obj.l2 / jnp.maximum(omega(obj, norms.s)[l - 1], 1e-200)


def ridge_d(
    obj: Objective, i: int, s: Float[Array, " L"], v: Float[Array, "L n"], l
) -> Float[Array, " n"]:
    """The ridge of d_l[n],

        ξ_{n,l} = (∂loss/∂t_{l,n}) / (κ_n ω_{l+1}) = s_{l+1} Σ_{m≤l} (Π_{m<j≤l} s_j) β_m v_{m,n}

    Parameters
    ----------
    obj : the objective.
    i : the number of the term, from 0.
    s : (L,), the gains.
    v : (L, n), the squared value defects of the term.
    l : the layer, which may be traced.
    """
    if not obj.adaptive:
        return jnp.zeros(v.shape[-1])
    return s[l] * ((chain(s, l + 1) * obj.beta[i]) @ v)


# ---------------------------------------------------------------- starts


def start_point(
    key: PRNGKeyArray, obj: Objective, network: Network, start: str = "uniform", noise: float = 0.1
) -> Point:
    """The network with auxiliary variables to start from.

    Parameters
    ----------
    key : the random key.
    obj, network : the objective and the network.
    start : "uniform": U(-1, 1), as in the paper; "forward": the forward pass; "noise": the forward
        pass plus U(-noise, noise).
    noise : the largest number that is added.
    """
    aux = []
    for i, term in enumerate(obj.terms):
        jets = network.preactivations(term.x)
        if not term.uses_value:
            jets = jets.set(obj.depth, replace(jets[obj.depth], value=jnp.zeros((len(term.y), 0))))
        if start != "forward":
            flat, rebuild = ravel_pytree(jets)
            draw = jax.random.uniform(jax.random.fold_in(key, i), flat.shape, flat.dtype, -1, 1)
            jets = rebuild(draw if start == "uniform" else flat + noise * draw)
        aux.append(jets)
    return Point(network, tuple(aux))
