"""The losses: mean square (LS), and the penalty losses of PM and SAPM on separated layers; ridges; the certificate.

With s_l = ‖W_l‖_F² and, for a sample n of a PDE term, t_{l,n} = Σ_i ‖d_{l,i}[n]‖², the penalty loss is

    Σ_n κ_n [ out_n + Σ_l ω_l ( β_l Ω²_{l,n} v_{l,n} + α_l τ_{l,n} ) ]

    v_{l,n}, τ_{l,n}   squared norms of the value and of the tangent defects of layer l
    ω_l = Π_{j>l} s_j,  Ω²_{l,n} = Σ_{l≤j<L} t_{j,n} (PDE terms; otherwise 1)         SAPM
    ω_l = Ω_{l,n} = 1                                                                PM
    out_n = |c·d_L[n] - y_n|² for a PDE term; a value term has its output residual as the value defect of layer L.

PDE terms with ψ itself, second derivatives or a nonlinear function: see `sapm.spread`.
So the loss is a function of a few norms (`Norms`), and each ridge is a derivative of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from sapm.jet import Activation, Jet, float64, lift
from sapm.network import NO_RUN, Network, Stack
from sapm.spread import Curve, bend_squared, constant, length_squared, lengths, tangent_spread, value_spread
from sapm.term import Term

MODELS = ("ls", "pm", "sapm")
STARTS = ("uniform", "forward", "noise")


class Point(eqx.Module):
    """All unknowns of a penalty model: the network, and for every term the free jets u_1 … u_L.

    Value terms have a_1 … a_{L-1}; PDE terms also d_1 … d_L (with them, second-order channels). At layer L the value is free
    where the term contains ψ itself; elsewhere u_L.value has no columns.
    """

    network: Network
    aux: tuple[Stack, ...]


class Norms(eqx.Module):
    """What the loss depends on, by layer. Only the values of PDE terms are kept per sample, since Ω weighs them so.

    s[l] = ‖W_l‖_F². Per term: v (L,) = Σ_n κ_n v_{l,n}, for a PDE term (L, n) = v_{l,n}; tau (L,) = Σ_n κ_n τ_{l,n};
    t (L, n) = t_{l,n} of a PDE term; out = Σ_n κ_n out_n. A term of second order has a `Curve`, and tau
    (L, 2, n), of its tangents and its other channels.
    """

    s: Float[Array, " L"]
    v: tuple[Array, ...]
    tau: tuple[Float[Array, " L"], ...]
    t: tuple[Float[Array, "L n"], ...]
    out: tuple[Float[Array, ""], ...]
    curve: tuple[Curve | None, ...] = ()


class Objective(eqx.Module):
    """A problem's terms with the model and its fixed weights β_l, α_l, l = 1..L, one pair of arrays per term.

    `l2`: if given, l2 · Σ_l ‖W_l‖_F² is part of the loss that is minimised.
    """

    terms: tuple[Term, ...]
    beta: tuple[Float[Array, " L"], ...]
    alpha: tuple[Float[Array, " L"], ...]
    model: str = eqx.field(static=True)
    l2: Float[Array, ""] | None = None
    constants: Float[Array, " q"] | None = None  # where the outputs that do not depend on the input start

    @property
    def adaptive(self) -> bool:
        return self.model == "sapm"

    @property
    def depth(self) -> int:
        return self.beta[0].shape[-1]

    @property
    def channels(self) -> int:
        """Values and other channels of all samples."""
        return sum(term.y.shape[0] * (1 + term.channels) for term in self.terms)


@float64
def objective(terms: Sequence[Term], depth: int, model: str = "sapm", alpha=1.0, beta=1.0, l2: float = 0.0) -> Objective:
    """`beta` (values, l < L) and `alpha` (tangents, l ≤ L): a number, one per layer, or a tuple with one of these per term."""
    if model not in MODELS:
        raise ValueError(f"model={model!r} is not known; use one of {', '.join(MODELS)}.")
    if isinstance(terms, Term) or not terms:
        raise ValueError("terms must be a list with at least one term, such as [value_term(x, y)].")
    if depth < 2:
        raise ValueError(f"depth={depth} leaves no hidden layer; it must be at least 2.")

    def per_term(name, given, length):
        given = given if isinstance(given, tuple) else (given,) * len(terms)
        if len(given) != len(terms):
            raise ValueError(f"{name} has {len(given)} entries for {len(terms)} terms; give one for each, or one for all.")
        out = []
        for g in given:
            g = np.asarray(g, float)
            if (g.ndim and g.shape != (length,)) or not np.all(g > 0) or not np.all(np.isfinite(g)):
                raise ValueError(f"{name}={g.tolist()} must be one positive number, or {length} of them (one per layer).")
            out.append(np.broadcast_to(g, (length,)))
        return out

    # At layer L a value term's defect is its output residual (weight 1); a PDE term has one where it contains ψ (else weight 0).
    betas = [
        jnp.asarray([*g, 0.0 if term.is_pde and not term.uses_value else 1.0])
        for g, term in zip(per_term("beta", beta, depth - 1), terms, strict=True)
    ]
    alphas = [jnp.asarray(g) for g in per_term("alpha", alpha, depth)]
    if not 0 <= l2 < np.inf:
        raise ValueError(f"l2={l2} must be a finite number, 0 or more.")
    return Objective(tuple(terms), tuple(betas), tuple(alphas), model, jnp.asarray(float(l2)) if l2 else None)


def check_widths(obj: Objective, widths: Sequence[int]) -> None:
    """Refuse layer widths m_0 … m_L that do not fit the terms."""
    if len(widths) != obj.depth + 1:
        raise ValueError(f"widths={list(widths)} describe depth {len(widths) - 1}, but the objective has depth {obj.depth}.")
    for term in obj.terms:
        inputs, outputs = term.x.value.shape[1], term.outputs
        if (widths[0], widths[-1]) != (inputs, outputs if outputs is not None else widths[-1]):
            raise ValueError(
                f"widths={list(widths)} are for {widths[0]} inputs and {widths[-1]} outputs, "
                f"but a term has {inputs} and {outputs}."
            )


# ---------------------------------------------------------------- losses


def mean_square(network: Network, terms: Sequence[Term]) -> Float[Array, ""]:
    """The true loss (𝓛 or 𝒥): Σ_terms Σ_n κ_n |operator(ψ) - y|²."""
    return sum((jnp.sum(term.weight[..., None] * term.residual(network(term.x)) ** 2) for term in terms), jnp.zeros(()))


def true_loss(obj: Objective, network: Network) -> Float[Array, ""]:
    """What LS minimises: `mean_square`, with the ℓ² penalty where there is one."""
    loss = mean_square(network, obj.terms)
    if obj.l2 is None:
        return loss
    return loss + obj.l2 * sum(jnp.sum(layer.W**2) for layer in network.stack.layers())


def target(term: Term, u: Jet, top: bool) -> Jet:
    """What layer l should give: the free jet u_l; at the top the labels, or for a PDE term without ψ no value and d_L."""
    top = top and not term.uses_value
    return Jet(jnp.zeros_like(term.y) if term.is_pde else term.y, u.tangents, u.forms) if top else u


def defects(term: Term, network: Network, aux: Stack) -> Stack:
    """r_l = layer_l(lift(u_{l-1})) - u_l for l = 1..L."""
    p, q = network.stack.run

    def at(l) -> Jet:
        first, top = isinstance(l, int) and l == 1, isinstance(l, int) and l == network.depth
        z = term.x if first else lift(network.sigma, aux[l - 1])
        found = network.layer(l)(z)
        return jax.tree.map(jnp.subtract, found, target(term, aux[l], top))

    return Stack.build(at, 1, network.depth, (p + 1, q) if p <= q else NO_RUN).grow()


def sizes(term: Term, r: Jet) -> tuple[Array, Array]:
    """v and τ of a layer's defects, summed as `Norms` keeps them."""
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
    """Σ_n κ_n |c·d_L[n] - y_n|² of a PDE term; 0 for a value term, whose output residual is the defect of layer L."""
    return _total(term, term.residual(u_top) ** 2) if term.is_pde else jnp.zeros(())


def norms(obj: Objective, point: Point, found: Sequence[Stack]) -> Norms:
    """From the point and its defects, one stack per term."""
    pairs = [r.map(lambda jet, term=term: sizes(term, jet)).rows() for term, r in zip(obj.terms, found, strict=True)]
    made = [lengths(term, point.network, aux) for term, aux in zip(obj.terms, point.aux, strict=True)]
    return Norms(
        s=point.network.stack.map(lambda layer: jnp.sum(layer.W**2)).rows(),
        v=tuple(v for v, _ in pairs),
        tau=tuple(tau for _, tau in pairs),
        t=tuple(t for t, _ in made),
        out=tuple(output_misfit(term, aux[obj.depth]) for term, aux in zip(obj.terms, point.aux, strict=True)),
        curve=tuple(curve for _, curve in made),
    )


def omega(obj: Objective, s: Float[Array, " L"]) -> Float[Array, " L"]:
    """ω_l = Π_{j>l} s_j, ω_L = 1 (PM: 1)."""
    if not obj.adaptive:
        return jnp.ones_like(s)
    return jnp.append(jnp.cumprod(s[:0:-1])[::-1], 1.0)


def value_weight(obj: Objective, i: int, t: Float[Array, "L n"], l) -> Array:
    """β_l Ω²_{l,n} of term i at one layer l (which may be traced): one number, or (n,) where samples differ."""
    if not (obj.adaptive and obj.terms[i].is_pde):
        return obj.beta[i][l - 1]
    layer = jnp.arange(1, obj.depth + 1)
    return obj.beta[i][l - 1] * (((layer >= l) & (layer < obj.depth)).astype(t.dtype) @ t)


def held(obj: Objective, i: int, w: Float[Array, " L"], t: Float[Array, "L n"], curve: Curve | None) -> tuple[Array, Array]:
    """The weights of term i's defects, w_l = ω_l included and κ_n not: of values (L, n); of channels (L,), or (L, n, k, 1)."""
    term, adaptive = obj.terms[i], obj.adaptive and obj.terms[i].is_pde
    spread = value_spread(term, t, curve) if adaptive else jnp.ones((obj.depth, len(term.y)))
    value, channel = (obj.beta[i] * w)[:, None] * spread, obj.alpha[i] * w
    if curve is None:
        return value, channel
    k = term.x.first
    channel = jnp.broadcast_to(channel[:, None, None], (*spread.shape, term.channels))
    if adaptive:
        channel = channel.at[..., :k].multiply(tangent_spread(curve)[..., None])
    return value, channel[..., None]


def energy(obj: Objective, norms: Norms) -> Float[Array, " L"]:
    """Per layer, Σ_terms Σ_n κ_n (β_l Ω²_{l,n} v_{l,n} + α_l τ_{l,n}): its share of the loss before ω_l."""
    total = jnp.zeros_like(norms.s)
    for i, term in enumerate(obj.terms):
        v, tau, curve = norms.v[i], norms.tau[i], norms.curve[i]
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
    """The penalty loss from its norms (the formula at the top of this file)."""
    loss = omega(obj, norms.s) @ energy(obj, norms) + sum(norms.out)
    return loss if obj.l2 is None else loss + obj.l2 * jnp.sum(norms.s)


def penalty(obj: Objective, point: Point) -> Float[Array, ""]:
    """The loss of PM (𝓛_P, 𝒥_P) or SAPM (𝓛_S, 𝒥_S) at a point."""
    found = [defects(term, point.network, aux) for term, aux in zip(obj.terms, point.aux, strict=True)]
    return weigh(obj, norms(obj, point, found))


# ---------------------------------------------------------------- ridges


def chain(s: Float[Array, " L"], l) -> Float[Array, " L"]:
    """Π_{m<j<l} s_j for every m < l, 0 for m ≥ l: how a defect of layer m enters the weights above it, below l."""
    layer = jnp.arange(1, len(s) + 1)
    product = jnp.cumprod(jnp.where(layer < l, s, 1.0)[::-1])[::-1]  # Π_{m≤j<l}
    return jnp.where(layer < l, jnp.append(product[1:], 1.0), 0.0)


def ridge_W(obj: Objective, norms: Norms, l) -> Float[Array, ""]:
    """λ_l = (∂loss/∂s_l) / ω_l, without the quotient (it is 0/0 on collapse): Σ_{m<l} (Π_{m<j<l} s_j) · energy_m."""
    ridge = chain(norms.s, l) @ energy(obj, norms) if obj.adaptive else jnp.zeros(())
    if obj.l2 is None:
        return ridge
    return ridge + obj.l2 / jnp.maximum(omega(obj, norms.s)[l - 1], 1e-200)


def ridge_d(obj: Objective, i: int, s: Float[Array, " L"], v: Float[Array, "L n"], l) -> Float[Array, " n"]:
    """ξ_{n,l} = (∂loss/∂t_{l,n}) / (κ_n ω_{l+1}) = s_{l+1} Σ_{m≤l} (Π_{m<j≤l} s_j) β_m v_{m,n}."""
    if not obj.adaptive:
        return jnp.zeros(v.shape[-1])
    return s[l] * ((chain(s, l + 1) * obj.beta[i]) @ v)


# ---------------------------------------------------------------- starts


def start_point(key: PRNGKeyArray, obj: Objective, network: Network, start: str = "uniform", noise: float = 0.1) -> Point:
    """Auxiliary variables: "uniform" U(-1, 1) as in the paper, "forward" pass, or forward + U(-noise, noise)."""
    if start not in STARTS:
        raise ValueError(f"start={start!r} is not known; use one of {', '.join(STARTS)}.")
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


# ---------------------------------------------------------------- certificate


@dataclass(frozen=True)
class Certificate:
    """Theorems 1, 3 and 5 at one point: true loss ≤ bound × actual loss. It bounds the training loss, not the solution error.

    `holds` is None where no theorem applies, and `reason` says why. `printed` is the constant as the paper prints it.
    """

    loss: float
    mean_squared_loss: float
    bound: float | None
    printed: float | None
    holds: bool | None
    reason: str

    def __str__(self) -> str:
        return self.reason

    @property
    def ratio(self) -> float:
        """True loss / actual loss; 0/0 counts as 1."""
        if self.loss == 0:
            return 1.0 if self.mean_squared_loss == 0 else float("inf")
        return self.mean_squared_loss / self.loss


ROUNDING = 1e-9  # a bound may be exceeded by this fraction, and by (1e-12)² of the size of the labels, before it is broken


def _constants(obj: Objective, sigma: Activation, i: int, steep: float | None = None) -> tuple[float, float]:
    """The proven constant of term i (docs/method.md), and the paper's printed factor C before L or d L(L+1)."""
    L, term = obj.depth, obj.terms[i]
    beta, alpha = np.asarray(obj.beta[i])[:-1], np.asarray(obj.alpha[i])
    C, B, K = sigma.lipschitz or 0.0, sigma.slope or 0.0, sigma.slope_lipschitz or 0.0
    if not term.is_pde:
        return 1 + float(np.sum(C ** (2 * (L - np.arange(1, L))) / beta)), max(1, C ** (2 * L - 2)) * max(1, *(1 / beta))
    proven = constant(term, sigma, alpha, beta, steep)
    powers = [K**2 * max(float(B) ** e, float(C) ** e) for e in (2 * L - 4, 2 * L - 6)]
    factor = max(1, *(1 / alpha), *(1 / beta)) * max(
        1, float(np.max(np.abs(term.c), initial=0)) ** 2 * max(1, B ** (2 * L - 2), *powers)
    )
    return proven, factor


@float64
def bound(obj: Objective, sigma: Activation, steep: float | None = None) -> tuple[float | None, float | None, str]:
    """The proven and the printed constant between true and actual loss, None where no theorem applies, and why.

    `steep`: a Lipschitz constant of the nonlinear residuals, where there are some (`sapm.spread.steepness`).
    """
    if obj.model == "ls":
        return 1.0, 1.0, "The optimised loss is the true loss (plus the ℓ² penalty, if any)."
    if obj.model == "pm":
        return None, None, "PM's loss does not bound the true loss: no theorem ties them, and in practice they part."
    pde, plain = any(term.is_pde for term in obj.terms), all(term.separable for term in obj.terms)
    needed = {"lipschitz": "σ"} | ({"slope": "the size of σ'", "slope_lipschitz": "σ'"} if pde else {})
    if any(term.x.forms for term in obj.terms):
        needed["curve_lipschitz"] = "σ''"
    missing = [what for field, what in needed.items() if getattr(sigma, field) is None]
    if missing:
        why = f"the theorem needs a Lipschitz constant or bound of {', '.join(missing)}, and {sigma.name} has none."
        return None, None, f"no certificate: {why}"
    if steep is None and any(term.function is not None for term in obj.terms):
        return None, None, "no certificate: the Lipschitz constant of a nonlinear residual is known at a point alone."
    constants, L = [_constants(obj, sigma, i, steep) for i in range(len(obj.terms))], obj.depth
    printed = max(factor for _, factor in constants) * (max(t.c.shape[1] for t in obj.terms) * L * (L + 1) if pde else L)
    proven = max(proven for proven, _ in constants)
    return (proven, printed, "Theorem 3" if pde else "Theorem 1") if plain else (proven, None, "Theorem 5")


@float64
def certificate(
    obj: Objective, sigma: Activation, loss: float, mean_squared_loss: float, steep: float | None = None
) -> Certificate:
    """Whether the proven bound between the two losses holds; `steep` as in `bound`."""
    loss, true = float(loss), float(mean_squared_loss)
    if not (np.isfinite(loss) and np.isfinite(true)):
        return Certificate(loss, true, None, None, None, "no certificate: a loss is not finite.")
    most, printed, theorem = bound(obj, sigma, steep)
    if most is None:
        return Certificate(loss, true, None, None, None, theorem)
    if obj.model == "ls":
        return Certificate(loss, true, 1.0, 1.0, true <= loss, theorem)
    size = sum(float(jnp.sum(t.weight * jnp.sum(t.y**2, -1))) for t in obj.terms)
    low = any(t.y.dtype == jnp.float32 for t in obj.terms)  # defects are then known to 1e-7 of the values
    holds = true <= most * loss * (1 + ROUNDING) + (1e-12 if low else 1e-24) * (1 + size)
    said = "holds" if holds else "IS BROKEN beyond rounding: this is a bug in the code, please report it"
    return Certificate(loss, true, most, printed, holds, f"{theorem} {said}: true loss ≤ {most:.4g} × actual loss.")
