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

from sapm.numerics.jets import Jet
from sapm.objective.losses import Loss, Scaled, Square
from sapm.objective.operators import Composed, Linear, Nonlinear, Operator, Value
from sapm.scopes import float64


class Term(eqx.Module):
    """Σ_n weight_n · loss(operator(x_n, outputs at x_n), y_n).

    Parameters
    ----------
    x : the inputs of the network at n samples, with the directions of the derivatives.
    y : (n, rows), the targets.
    operator : what is compared with them.
    weight : () or (n,), of all samples, or of each.
    points : (n, d), optional, the sample points, where the inputs are in other units or are
        features of the points.
    loss : of predictions and targets. Default: the square of their difference, summed over rows.
    """

    x: Jet
    y: Float[Array, "n rows"]
    operator: Operator
    weight: Float[Array, ...]
    points: Float[Array, "n d"] | None = None
    loss: Loss = Square()

    @property
    def squared(self) -> bool:
        """Whether the loss is the square of the residual."""
        return isinstance(self.loss, Square)

    @property
    def channels(self) -> int:
        """The number of derivatives of a sample."""
        return self.x.tangents.shape[-2]

    @property
    def is_pde(self) -> bool:
        """Whether there are derivatives."""
        return self.channels > 0

    @property
    def uses_value(self) -> bool:
        """See `Operator.uses_value`: then the output has a free value in the penalty models."""
        return self.operator.uses_value

    @property
    def linear(self) -> Linear:
        """The operator of a linear PDE."""
        assert isinstance(self.operator, Linear), type(self.operator)
        return self.operator

    @property
    def nonlinear(self) -> bool:
        """Whether the operator is nonlinear in u, and can be evaluated."""
        operator = self.operator
        operator = operator.operator if isinstance(operator, Composed) else operator
        if isinstance(operator, Nonlinear):
            return operator.function is not None
        return not isinstance(operator, (Value, Linear))

    @property
    def separable(self) -> bool:
        """Whether the paper's sweeps know the term: ψ itself, or first derivatives of it with
        coefficients.
        """
        return self.x.order < 2 and not self.uses_value

    @property
    def known(self) -> bool:
        """Whether PM and SAPM know the term: the value of all outputs, or an equation of order 1
        or 2 for a single output.
        """
        return (
            self.squared
            and not self.x.orders
            and not isinstance(self.operator, Composed)
            and getattr(self.operator, "of", None) is None
            and (self.is_pde or isinstance(self.operator, Value))
            and not (self.is_pde and (self.outputs, self.y.shape[1]) != (1, 1))
        )

    @property
    def outputs(self) -> int | None:
        """The number of network outputs; None if the term does not tell."""
        return self.operator.outputs(self.y.shape[1])

    def widen_input(self, width: int) -> Term:
        """The same term with its inputs padded with zeros.

        Parameters
        ----------
        width : the number of inputs after that.
        """

        def grow(a):
            return jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(0, width - a.shape[-1])])

        return replace(self, x=self.x.like(grow(self.x.value), grow(self.x.tangents)))

    def pad(self, n: int) -> Term:
        """The same term with more samples: copies of the last one are added, with weight 0.

        Weights are (n,) then.

        Parameters
        ----------
        n : the number of samples after that.
        """
        missing = n - len(self.y)

        def grow(a):
            return jnp.pad(a, [(0, missing)] + [(0, 0)] * (a.ndim - 1), mode="edge")

        return Term(
            jax.tree.map(grow, self.x),
            grow(self.y),
            self.operator.padded(grow),
            jnp.pad(jnp.broadcast_to(self.weight, len(self.y)), (0, missing)),
            None if self.points is None else grow(self.points),
            self.loss,
        )

    def in_units(self, center, spread, size: float) -> Term:
        """The same term for a network of (x - center) / spread that gives ψ / size.

        Parameters
        ----------
        center, spread : (d,) or numbers, of the inputs.
        size : of the outputs.
        """
        x = self.x.like((self.x.value - center) / spread, self.x.tangents / spread)
        scaled = replace(self, x=x, operator=self.operator.in_units(size))
        if not self.squared:
            return replace(scaled, loss=Scaled(self.loss, float(size)))
        return replace(scaled, y=self.y / size, weight=self.weight * size**2)

    def composed_value(self, value: Array) -> Array:
        """u from the value of the network: g + φ ψ with hard conditions, else ψ itself."""
        if not isinstance(self.operator, Composed):
            return value
        return self.operator.datum.value + self.operator.factor.value * value

    def prediction(self, output: Jet) -> Float[Array, "n rows"]:
        """operator(output)."""
        points = self.x.value if self.points is None else self.points
        return self.operator(points, output)

    def residual(self, output: Jet) -> Float[Array, "n rows"]:
        """operator(output) - y."""
        return self.prediction(output) - self.y

    def cost(self, output: Jet) -> Float[Array, ""]:
        """Σ_n weight_n · loss(operator(output at sample n), y_n)."""
        if self.squared:
            return jnp.sum(self.weight[..., None] * self.residual(output) ** 2)
        return jnp.sum(self.weight * self.loss.value(self.prediction(output), self.y))

    def linearise(self, output: Jet) -> tuple[Float[Array, "n m"], Callable[[Array], Jet]]:
        """The residual ρ of the loss's quadratic model, and the map from a cotangent of ρ, (n, m),
        to one of the output.
        """
        if self.squared:
            residual, back = jax.vjp(self.residual, output)
            return residual, lambda cotangent: back(cotangent)[0]
        prediction, back = jax.vjp(self.prediction, output)
        residual, root = self.loss.quadratic(prediction, self.y)
        return residual, lambda cotangent: back(jnp.einsum("nri,nr->ni", root, cotangent))[0]


def as_columns(name: str, a) -> Array:
    """A float64 array of shape (n, columns); numbers for n samples become one column.

    Parameters
    ----------
    name : of the array, for the error message.
    a : (n,) or (n, columns).
    """
    a = jnp.asarray(a, jnp.float64)
    a = a[:, None] if a.ndim == 1 else a
    if a.ndim != 2 or 0 in a.shape:
        raise ValueError(
            f"{name} has shape {a.shape}; give one row per sample: (n, columns), n ≥ 1."
        )
    return a


def _per_sample(weight, n: int) -> Array:
    """weight/n: one number for all samples, or (n,)."""
    weight = jnp.asarray(weight, jnp.float64)
    if weight.shape not in ((), (n,)) or not bool(
        jnp.all((weight >= 0) & jnp.isfinite(weight)) & jnp.any(weight > 0)
    ):
        raise ValueError(
            f"weight={weight.tolist()} must be a positive, finite number, or {n} of them (one "
            "per sample; some may be 0)."
        )
    return weight / n


@float64
def value_term(
    x, y, weight: Any = 1.0, loss: Loss | None = None, of: tuple[int, ...] | None = None
) -> Term:
    """ψ(x_n) = y_n in the mean square: data, or a boundary condition.

    Parameters
    ----------
    x : (n, d), the sample points.
    y : (n, outputs), the targets.
    weight : number or (n,), of the mean, or of each of its samples.
    loss : another loss than the square; ψ is its prediction.
    of : the indices of the outputs that are compared. Default: all.
    """
    x = as_columns("x", x)
    y = as_columns("y", y)
    n, d = x.shape
    if len(y) != n:
        raise ValueError(f"x has {n} samples and y has {len(y)}; they must be equal.")
    jet = Jet(x, jnp.zeros((n, 0, d)))
    return Term(jet, y, Value(of), _per_sample(weight, n), loss=Square() if loss is None else loss)


def _nonzero(c0) -> Array | None:
    """A coefficient of ψ itself; None if it is 0 at every sample."""
    return jnp.asarray(c0, jnp.float64) if c0 is not None and np.any(np.asarray(c0)) else None


@float64
def pde_term(x, c, f, weight: Any = 1.0, c0=None, of: tuple[int, ...] | None = None) -> Term:
    """Σ_i c_i(x_n) ∂_i ψ(x_n) + c0(x_n) ψ(x_n) = f(x_n) in the mean square.

    There is one derivative for each coordinate.

    Parameters
    ----------
    x, c : (n, d), the collocation points and the coefficients there.
    f : (n, outputs), the right-hand side.
    weight : number or (n,), of the mean, or of each of its samples.
    c0 : (n,), optional, the coefficient of ψ.
    of : the indices of the outputs. Default: all.
    """
    x = as_columns("x", x)
    c = as_columns("c", c)
    f = as_columns("f", f)
    n, d = x.shape
    if c.shape != (n, d) or len(f) != n:
        raise ValueError(
            f"x has shape {x.shape}, c {c.shape} and f {f.shape}; c must be {(n, d)} and f "
            f"{(n, 1)}."
        )
    jet = Jet(x, jnp.broadcast_to(jnp.eye(d), (n, d, d)))
    return Term(jet, f, Linear(c, _nonzero(c0), of), _per_sample(weight, n))


@float64
def flux_term(x, along, f, weight: Any = 1.0, c0=None, of: tuple[int, ...] | None = None) -> Term:
    """along(x_n) · ∇ψ(x_n) + c0(x_n) ψ(x_n) = f(x_n): a Neumann or Robin condition.

    Parameters
    ----------
    along : (n, d), the direction of the only derivative.
    x, f, weight, c0, of : see `pde_term`.
    """
    return directional(pde_term(x, along, f, weight, c0, of))


@float64
def second_order_term(x, A, b, c0, f, weight: Any = 1.0) -> Term:
    """tr(A ∇²ψ) + b · ∇ψ + c0 ψ = f at x_n, in the mean square.

    The operator is one second-order channel; there is a first derivative for each of its squares.

    Parameters
    ----------
    x, b : (n, d), the collocation points and the coefficients of the gradient.
    A : (n, d, d), symmetric matrices.
    c0 : (n,) or None, the coefficient of ψ.
    f : (n, 1), the right-hand side.
    weight : number or (n,), of the mean, or of each of its samples.
    """
    x = as_columns("x", x)
    f = as_columns("f", f)
    b = jnp.asarray(b, jnp.float64)
    directions, signs = squares(np.asarray(A, float))
    channels = jnp.concatenate([jnp.asarray(directions), b[:, None]], axis=1)
    c = jnp.broadcast_to(jnp.eye(len(signs) + 1)[-1], channels.shape[:2])
    operator = Linear(c, _nonzero(c0))
    return Term(Jet(x, channels, (signs,)), f, operator, _per_sample(weight, len(x)))


def squares(A: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """The directions v (n, k, d) and signs (k,) of A[n] = Σ_i sign_i v_i[n] v_i[n]ᵀ.

    The directions are the coordinates if A is diagonal at every n, and its eigenvectors otherwise.
    A direction whose sign varies with n appears once for each sign, and is 0 at the samples of the
    other sign. Directions that are 0 at every n are left out.

    Parameters
    ----------
    A : (n, d, d), symmetric matrices.
    """
    n, d, _ = A.shape
    diagonal = np.einsum("nii->ni", A)
    if np.array_equal(A, diagonal[:, :, None] * np.eye(d)):
        values = diagonal
        vectors = np.broadcast_to(np.eye(d), (n, d, d))
    else:
        values, columns = np.linalg.eigh(A)
        vectors = np.swapaxes(columns, 1, 2)
        values = np.where(
            np.abs(values) > 1e-14 * np.abs(values).max(1, keepdims=True), values, 0.0
        )
    directions = []
    signs = []
    for i in range(d):
        for sign in (1, -1):
            size = np.sqrt(np.maximum(sign * values[:, i], 0.0))
            if size.any():
                directions.append(size[:, None] * vectors[:, i])
                signs.append(sign)
    if not directions:
        return np.zeros((n, 0, d)), ()
    return np.stack(directions, axis=1), tuple(signs)


@float64
def nonlinear_term(  # noqa: PLR0913
    x,
    directions,
    forms,
    function: Callable,
    weight: Any = 1.0,
    rows: int = 1,
    unit=(1.0,),
    constants=0,
    orders=(),
) -> Term:
    """function(x_n, ψ, channels) = 0 at x_n, in the mean square.

    Parameters
    ----------
    x : (n, d), the collocation points.
    directions : (k, d), of the derivatives, at every sample.
    forms, orders : the other channels: see `Jet`.
    function : (point, outputs, channels) → `rows` numbers, at one sample.
    weight : number or (n,), of the mean, or of each of its samples.
    unit : what the outputs of the network count in.
    constants : how many of the last outputs are unknown numbers.
    """
    x = as_columns("x", x)
    directions = jnp.asarray(directions, jnp.float64)
    n, d = x.shape
    higher = len(forms) + sum(orders) - len(orders)
    seeds = jnp.concatenate([directions, jnp.zeros((higher, d))])
    jet = Jet(x, jnp.broadcast_to(seeds, (n, *seeds.shape)), tuple(forms), tuple(orders))
    operator = Nonlinear(jnp.asarray(unit, jnp.float64), function, constants)
    return Term(jet, jnp.zeros((n, rows)), operator, _per_sample(weight, n), x)


@float64
def operator_term(x, operator: Operator, y, weight: Any = 1.0, loss: Loss | None = None) -> Term:
    """operator(x_n, ψ at x_n) = y_n, for an operator of the user's own.

    The jet has derivatives along the coordinates up to the order of the operator: no channels for
    order 0, the gradient for order 1, and `orders=(K, …, K)` for order K > 1.

    Parameters
    ----------
    x : (n, d), the sample points.
    operator : an `Operator`.
    y : (n, rows), the targets.
    weight : number or (n,), of the mean, or of each of its samples.
    loss : another loss than the square.
    """
    x = as_columns("x", x)
    y = as_columns("y", y)
    n, d = x.shape
    order = operator.order
    seeds = np.eye(d)[: d if order else 0]
    orders = (order,) * d if order > 1 else ()
    seeds = np.concatenate([seeds, np.zeros((sum(orders) - len(orders), d))])
    jet = Jet(x, jnp.broadcast_to(jnp.asarray(seeds), (n, *seeds.shape)), (), orders)
    loss = Square() if loss is None else loss
    return Term(jet, y, operator, _per_sample(weight, n), x, loss)


@float64
def directional(term: Term) -> Term:
    """A linear term of order 1 with the derivative along c(x_n) alone, instead of one for every
    coordinate; other terms as they are.

    Parameters
    ----------
    term : a term of any kind.
    """
    if not isinstance(term.operator, Linear) or term.x.order > 1:
        return term
    along = jnp.einsum("nk,nkd->nd", term.operator.c, term.x.tangents)[:, None]
    operator = replace(term.operator, c=jnp.ones((len(term.y), 1)))
    return replace(term, x=Jet(term.x.value, along), operator=operator)
