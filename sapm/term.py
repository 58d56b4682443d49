"""A term of a least-squares problem: points, an operator on the output jet, targets, weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sapm.jet import Jet, float64


class Term(eqx.Module):
    """Σ_n weight_n · |operator(ψ at sample n) - y_n|².

    Without tangents (k = 0) the operator is the value ψ. With them it is c_n · (the tangents and second-order channels of ψ),
    plus c0_n ψ if c0 is given; or what `function`, if there is one, gives for (points_n, ψ, channels).
    The weight is one number for all samples, or (n,). `x` is the input jet: the sample points (or features of them; `points`
    are then the points themselves) and the directions that the tangents are taken along. `of`: the outputs that are meant, if
    not all. `unit` (outputs,): what the network's outputs count in, for the function; the last `constants` of them are numbers
    that do not depend on x.
    """

    x: Jet
    y: Float[Array, "n m"]
    c: Float[Array, "n k"]
    weight: Float[Array, ...]
    c0: Float[Array, " n"] | None = None
    points: Float[Array, "n d"] | None = None
    unit: Float[Array, " m"] | None = None
    function: Callable | None = eqx.field(static=True, default=None)
    of: tuple[int, ...] | None = eqx.field(static=True, default=None)
    constants: int = eqx.field(static=True, default=0)
    ansatz: tuple[Jet, Jet] | None = None  # φ and g of u = g + φ ψ, where it is u that the operator is about

    @property
    def channels(self) -> int:
        """Tangents and second-order channels of a sample."""
        return self.x.tangents.shape[-2]

    @property
    def is_pde(self) -> bool:
        return self.channels > 0

    @property
    def uses_value(self) -> bool:
        """Whether the operator is more than derivatives of ψ, or than all of ψ itself: then the output has a value of its own."""
        return any(part is not None for part in (self.c0, self.function, self.of, self.ansatz))

    @property
    def separable(self) -> bool:
        """Whether the paper's sweeps know this kind of term: ψ itself, or first derivatives of it with coefficients."""
        return not self.x.forms and not self.uses_value

    @property
    def known(self) -> bool:
        """Whether PM and SAPM know it: of a PDE, the whole of one output."""
        return self.of is None and self.ansatz is None and not (self.is_pde and (self.outputs, self.y.shape[1]) != (1, 1))

    @property
    def outputs(self) -> int | None:
        """How many the network has; None if this term does not tell."""
        if self.unit is not None:
            return len(self.unit)
        return self.y.shape[1] if self.of is None else None

    def widen_input(self, width: int) -> Term:
        """The same term with its inputs padded with zeros to that width."""
        grow = lambda a: jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, width - a.shape[-1])])  # noqa: E731
        return replace(self, x=Jet(grow(self.x.value), grow(self.x.tangents), self.x.forms))

    def pad(self, n: int) -> Term:
        """The same term with copies of its last sample up to n of them, which have no weight. Weights are (n,) then."""
        more = n - len(self.y)
        grow = lambda a: jnp.pad(a, [(0, more)] + [(0, 0)] * (a.ndim - 1), mode="edge")  # noqa: E731
        grown = jax.tree.map(grow, replace(self, weight=None, unit=None))
        return replace(grown, weight=jnp.pad(jnp.broadcast_to(self.weight, len(self.y)), (0, more)), unit=self.unit)

    def in_units(self, center, spread, size: float) -> Term:
        """The same term for a network of (x - center) / spread that gives ψ / size."""
        x = Jet((self.x.value - center) / spread, self.x.tangents / spread, self.x.forms)
        unit = self.unit
        if unit is not None:
            unit = unit * jnp.where(jnp.arange(len(unit)) < len(unit) - self.constants, size, 1.0)
        ansatz = self.ansatz and (self.ansatz[0], jax.tree.map(lambda a: a / size, self.ansatz[1]))
        return replace(self, x=x, y=self.y / size, weight=self.weight * size**2, unit=unit, ansatz=ansatz)

    def composed(self, output: Jet) -> Jet:
        """u = g + φ ψ by the rule for products; ψ itself where there is no ansatz."""
        if self.ansatz is None:
            return output
        phi, g = self.ansatz
        tangents = g.tangents + phi.tangents * output.value[:, None] + phi.value[:, None] * output.tangents
        if output.forms:
            k = len(output.forms[0])
            signs = jnp.asarray(output.forms, tangents.dtype)
            cross = jnp.einsum("qk,nkm->nqm", signs, phi.tangents[:, :k] * output.tangents[:, :k])
            tangents = tangents.at[:, k:].add(2 * cross)
        return Jet(self.composed_value(output.value), tangents, output.forms)

    def composed_value(self, value: Array) -> Array:
        """The value of `composed` alone."""
        return value if self.ansatz is None else self.ansatz[1].value + self.ansatz[0].value * value

    def residual(self, output: Jet) -> Float[Array, "n m"]:
        """operator(output) - y."""
        output = self.composed(output)
        if self.function is not None and self.unit is not None:
            found = jax.vmap(self.function)(self.points, self.unit * output.value, self.unit * output.tangents)
            return found / self.unit[0] - self.y
        value, tangents = output.value, output.tangents
        if self.of is not None:
            value, tangents = value[:, self.of], tangents[:, :, self.of]
        if not self.is_pde:
            return value - self.y
        found = jnp.einsum("nk,nkm->nm", self.c, tangents) - self.y
        return found if self.c0 is None else found + self.c0[:, None] * value


def as_columns(name: str, a) -> Array:
    a = jnp.asarray(a, jnp.float64)
    a = a[:, None] if a.ndim == 1 else a
    if a.ndim != 2 or 0 in a.shape:
        raise ValueError(f"{name} has shape {a.shape}; give one row per sample: (n, columns), n ≥ 1.")
    return a


def _per_sample(weight, n: int) -> Array:
    """weight/n: one number for all samples, or (n,)."""
    weight = jnp.asarray(weight, jnp.float64)
    if weight.shape not in ((), (n,)) or not bool(jnp.all((weight >= 0) & jnp.isfinite(weight)) & jnp.any(weight > 0)):
        raise ValueError(
            f"weight={weight.tolist()} must be a positive, finite number, or {n} of them (one per sample; some may be 0)."
        )
    return weight / n


@float64
def value_term(x, y, weight: Any = 1.0) -> Term:
    """ψ(x_n) = y_n, mean-square with that weight (1/N, or μ/N₂ for a boundary). Regression with any number of outputs."""
    x, y = as_columns("x", x), as_columns("y", y)
    n, d = x.shape
    if len(y) != n:
        raise ValueError(f"x has {n} samples and y has {len(y)}; they must be equal.")
    return Term(Jet(x, jnp.zeros((n, 0, d))), y, jnp.zeros((n, 0)), _per_sample(weight, n))


def _some(c0) -> Array | None:
    """A coefficient of ψ itself; None if it is 0 at every sample."""
    return jnp.asarray(c0, jnp.float64) if c0 is not None and np.any(np.asarray(c0)) else None


@float64
def pde_term(x, c, f, weight: Any = 1.0, c0=None) -> Term:
    """Σ_i c_i(x_n) ∂_i ψ(x_n) + c0(x_n) ψ(x_n) = f(x_n), mean-square with that weight; one tangent per coordinate."""
    x, c, f = as_columns("x", x), as_columns("c", c), as_columns("f", f)
    n, d = x.shape
    if c.shape != (n, d) or len(f) != n:
        raise ValueError(f"x has shape {x.shape}, c {c.shape} and f {f.shape}; c must be {(n, d)} and f {(n, 1)}.")
    return Term(Jet(x, jnp.broadcast_to(jnp.eye(d), (n, d, d))), f, c, _per_sample(weight, n), _some(c0))


@float64
def flux_term(x, along, f, weight: Any = 1.0, c0=None) -> Term:
    """along(x_n) · ∇ψ(x_n) + c0(x_n) ψ(x_n) = f(x_n), with one tangent: what Neumann and Robin conditions ask for."""
    return directional(pde_term(x, along, f, weight, c0))


@float64
def second_order_term(x, A, b, c0, f, weight: Any = 1.0) -> Term:
    """tr(A ∇²ψ) + b · ∇ψ + c0 ψ = f at x_n, A (n, d, d) symmetric: one second-order channel, and a tangent for each square."""
    x, f, b = as_columns("x", x), as_columns("f", f), jnp.asarray(b, jnp.float64)
    directions, signs = squares(np.asarray(A, float))
    channels = jnp.concatenate([jnp.asarray(directions), b[:, None]], axis=1)
    c = jnp.broadcast_to(jnp.eye(len(signs) + 1)[-1], channels.shape[:2])
    return Term(Jet(x, channels, (signs,)), f, c, _per_sample(weight, len(x)), _some(c0))


def squares(A: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """A[n] = Σ_i sign_i v_i[n] v_i[n]ᵀ: directions (n, k, d) and their signs, the same for all n.

    Along the coordinates where A is diagonal at every n, else along its eigenvectors. A direction whose sign varies with n is
    carried once for each sign, and is 0 where it has the other; one that is 0 at every n is left out.
    """
    n, d, _ = A.shape
    diagonal = np.einsum("nii->ni", A)
    if np.array_equal(A, diagonal[:, :, None] * np.eye(d)):
        values, vectors = diagonal, np.broadcast_to(np.eye(d), (n, d, d))
    else:
        values, columns = np.linalg.eigh(A)
        vectors = np.swapaxes(columns, 1, 2)
        values = np.where(np.abs(values) > 1e-14 * np.abs(values).max(1, keepdims=True), values, 0.0)
    found, signs = [], []
    for i in range(d):
        for sign in (1, -1):
            size = np.sqrt(np.maximum(sign * values[:, i], 0.0))
            if size.any():
                found.append(size[:, None] * vectors[:, i])
                signs.append(sign)
    return np.stack(found, axis=1) if found else np.zeros((n, 0, d)), tuple(signs)


@float64
def nonlinear_term(x, directions, forms, function: Callable, weight: Any = 1.0, rows: int = 1, unit=(1.0,), constants=0) -> Term:
    """function(x_n, ψ, channels) = 0 at x_n, so many numbers, the tangents along the same directions (k, d) at every sample."""
    x, directions = as_columns("x", x), jnp.asarray(directions, jnp.float64)
    n, d = x.shape
    seeds = jnp.concatenate([directions, jnp.zeros((len(forms), d))])
    jet = Jet(x, jnp.broadcast_to(seeds, (n, *seeds.shape)), tuple(forms))
    more = {"points": x, "unit": jnp.asarray(unit, jnp.float64), "function": function, "constants": constants}
    return Term(jet, jnp.zeros((n, rows)), jnp.zeros((n, 0)), _per_sample(weight, n), None, **more)


@float64
def directional(term: Term) -> Term:
    """The same term with one tangent, along c(x_n), instead of one for every coordinate: its residual is that tangent - y.

    Terms of second order and nonlinear ones carry as few as they can already.
    """
    if not term.is_pde or term.x.forms or term.function is not None:
        return term
    along = jnp.einsum("nk,nkd->nd", term.c, term.x.tangents)[:, None]
    return replace(term, x=Jet(term.x.value, along), c=jnp.ones((len(term.y), 1)))
