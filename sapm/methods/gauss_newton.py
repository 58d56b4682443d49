"""Gauss-Newton on the losses of LS, PM and SAPM: damped steps on the linearised network (`sapm.linearise`).

With the auxiliary variables on the forward pass it is Levenberg-Marquardt on the true loss.
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

from sapm.jet import Activation, activation, float64
from sapm.linearise import (
    TINY,
    Linear,
    carried,
    dense,
    gram,
    linearise,
    root_weight,
    rows_of,
    times,
    transposed,
    unflatten,
    unroot,
)
from sapm.network import Dense, Network, Stack, initialise
from sapm.objective import Objective, Point, check_widths, mean_square, penalty, start_point, true_loss

ALGEBRA = ("primal", "dual", "dense")
PASSING = 200  # measured on two cores: 5 to 10 ns for an entry, where a product of matrices does 46 operations in a ns
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
    """A network and auxiliary variables, linearised; `matrix` is J̃ J̃ᵀ or J̃ᵀ J̃, `dense` is J̃ where it is made."""

    network: Network
    aux: tuple[Stack, ...]
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
    phases: ClassVar[tuple[str, ...]] = ("lifted", "plain")

    @property
    def seed_bytes(self) -> int:
        rows, weights = sum(term.y.size for term in self.objective.terms), count_weights(self.widths)
        return 8 * {"primal": weights * (rows + weights), "dense": rows * (rows + weights), "dual": rows * rows}[self.algebra]

    def diagnostics(self, state: GNState) -> dict[str, Array]:
        phase = jnp.where(state.count <= self.lifted, 0.0, 1.0) if self.free else jnp.ones(())
        return {"phase": phase, "damping": state.damping, "gain": state.gain, "gradient": state.gradient}

    def init(self, key) -> GNState:
        k_weights, k_start = jax.random.split(key)
        network = initialise(k_weights, self.widths, self.sigma, self.weights)
        return self._at(jnp.zeros((), jnp.int64), start_point(k_start, self.objective, network, self.start))

    @property
    def free(self) -> bool:
        """Whether there are auxiliary variables at all; without a lifted phase they are those of the forward pass."""
        return self.objective.model != "ls"

    def begin(self, network: Network) -> GNState:
        """At a given network: the lifted phase is behind, or it starts from the forward pass."""
        return self._at(jnp.asarray(self.lifted, jnp.int64), self._forward(network))

    def _forward(self, network: Network) -> Point:
        return start_point(jax.random.key(0), self.objective, network, "forward")

    def _at(self, count, point: Point) -> GNState:
        zero, point = jnp.zeros(()), point if self.free else Point(point.network, ())
        return GNState(count, point, self._loss(point, count < self.lifted), jnp.asarray(self.damping), zero, zero)

    def _loss(self, point: Point, lifting) -> Float[Array, ""]:
        plain = true_loss(self.objective, point.network)
        if not self.free:
            return plain
        return jnp.where(lifting, penalty(self.objective, point), plain)

    def linearise(self, point: Point, lifting) -> Linearised:
        """At a point; unless lifting, its auxiliary variables are those of the forward pass."""
        obj, on, aux = self.objective, jnp.where(lifting, 1.0, 0.0), self._forward(point.network).aux
        if self.free:
            aux = jax.tree.map(lambda a, b: jnp.where(lifting, a, b), point.aux, aux)
        parts = tuple(linearise(obj, i, point.network, u, on) for i, u in enumerate(aux))
        rows, rho = rows_of(obj.terms, parts)
        J = None if self.algebra == "dual" else dense(rows)
        matrix = gram(rows) if J is None else (J @ J.T if self.algebra == "dense" else J.T @ J)
        return Linearised(point.network, aux, jnp.asarray(lifting), parts, rows, rho, matrix, J)

    def solver(self, at: Linearised, nu) -> Callable[[Array], Stack]:
        """ρ → the δθ that minimises |ρ + J̃ δθ|² + (ν + l2) |δθ|²."""
        shift = nu if self.objective.l2 is None else nu + self.objective.l2
        factor = lax.linalg.cholesky(at.matrix + shift * jnp.eye(len(at.matrix)))

        def half(b, transpose):
            return lax.linalg.triangular_solve(factor, b[:, None], left_side=True, lower=True, transpose_a=transpose)[:, 0]

        def change(rho) -> Stack:
            if self.algebra == "primal":
                return unflatten(-half(half(rho @ at.dense, False), True), at.network.stack)
            return jax.tree.map(jnp.negative, transposed(at.rows, half(half(rho, False), True)))

        return change

    def _shrinking(self, at: Linearised, solve: Callable, nu) -> Stack:
        """The step; with an ℓ² penalty, the one for |ρ̃ + J̃ δθ|² + l2 ‖W + δW‖² + ν |δθ|² + l2 |δb|²."""
        if self.objective.l2 is None:
            return solve(at.rho)
        part = self.objective.l2 / (nu + self.objective.l2)
        less = at.network.stack.map(lambda layer: Dense(part * layer.W, jnp.zeros_like(layer.b)))
        return jax.tree.map(jnp.subtract, solve(at.rho - times(at.rows, less)), less)

    def moved(self, at: Linearised, change: Stack) -> Point:
        """The point after a change of the weights, with the best auxiliary variables that the linearisation knows."""
        network, left = at.network, at.rho + times(at.rows, change)
        if not self.free:
            return Point(replace(network, stack=jax.tree.map(jnp.add, network.stack, change)), ())
        begin, jets = 0, []
        for term, part, u in zip(self.objective.terms, at.parts, at.aux, strict=True):
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
        network = at.network
        first = lambda stack: jax.jvp(lambda w: self._residual(replace(network, stack=w)), (stack,), (change,))[1]  # noqa: E731
        more = solve(jax.jvp(first, (network.stack,), (change,))[1])
        fits = (square(more) < square(change)) & ~at.lifting
        return jax.tree.map(lambda x, y: x + jnp.where(fits, 0.5 * y, 0.0), change, more)

    def step(self, state: GNState) -> GNState:
        leaving = (state.count == self.lifted) & (state.count > 0)
        lifting = state.count < self.lifted if self.free else jnp.zeros((), bool)
        at = self.linearise(state.point, lifting)
        loss = jnp.where(leaving, true_loss(self.objective, state.point.network), state.loss)
        damping = jnp.where(leaving, self.damping, state.damping)
        old = jnp.sum(at.rho**2)

        def attempt(kept):
            tries, nu, _, _, _ = kept
            solve = self.solver(at, nu)
            change = self._shrinking(at, solve, nu)
            predicted = old - jnp.sum((at.rho + times(at.rows, change)) ** 2)
            if self.bend:
                both = jax.tree.map(lambda *x: jnp.stack(x), change, self._bent(at, solve, change))
                points = lax.map(lambda c: self._valued(at, c), both)
                points = jax.tree.map(lambda x: x[jnp.nanargmin(points[1])], points)
            else:
                points = self._valued(at, change)
            point, value = points
            return tries + 1, jnp.where(value < loss, nu, nu * UP), point, value, (loss - value) / jnp.maximum(predicted, TINY)

        here = Point(at.network, at.aux if self.free else ())
        first = (jnp.zeros((), jnp.int64), damping, here, jnp.full_like(loss, jnp.inf), jnp.zeros(()))
        going = lambda kept: (kept[0] < TRIES) & ~(kept[3] < loss)  # noqa: E731
        _, nu, point, value, gain = lax.while_loop(going, attempt, first)
        good = value < loss
        point = jax.tree.map(lambda a, b: jnp.where(good, a, b), point, here)
        nu = jnp.clip(jnp.where(good, nu / DOWN, nu), 1e-20, 1e12)
        gradient = jnp.sqrt(square(transposed(at.rows, at.rho)))
        return GNState(state.count + 1, point, jnp.where(good, value, loss), nu, jnp.where(good, gain, 0.0), 2 * gradient)

    def _valued(self, at: Linearised, change: Stack) -> tuple[Point, Array]:
        point = self.moved(at, change)
        return point, self._loss(point, at.lifting)

    def losses(self, state: GNState) -> tuple[Array, Array]:
        true, plain = mean_square(state.point.network, self.objective.terms), true_loss(self.objective, state.point.network)
        return jnp.where(state.count <= self.lifted, state.loss, plain) if self.free else plain, true

    def network(self, state: GNState) -> Network:
        return state.point.network

    def blocks(self) -> list[tuple[str, Callable]]:
        return [("the Gauss-Newton step", self.step)]


def square(tree) -> Float[Array, ""]:
    return sum((jnp.sum(x**2) for x in jax.tree.leaves(tree)), jnp.zeros(()))


def count_weights(widths: Sequence[int]) -> int:
    return sum(o * (i + 1) for i, o in itertools.pairwise(widths))


def flops(rows: int, tangents: int, widths: Sequence[int]) -> dict[str, float]:
    """Floating-point operations of one linearisation and solve, by the algebra. `tangents`: channels of all samples.

    The entries of the dual's Hadamard products pass through memory, which takes as long as PASSING operations each.
    """
    r, t, p = float(rows), float(tangents), float(count_weights(widths))
    small = (r * r + t * r + t * t) * sum(2 * (i + o) + PASSING for i, o in itertools.pairwise(widths))
    return {"primal": 2 * r * p * p + p**3 / 3, "dual": small + r**3 / 3, "dense": 2 * r * r * p + r**3 / 3}


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
    bend: bool = True,
) -> GaussNewton:
    """Gauss-Newton on the objective's own loss; `lifted` steps of a penalty loss (default: all), then the true loss.

    `algebra`: "primal" (P × P), "dense" or "dual" (samples × samples, with or without the Jacobian); by default the one with
    the fewest operations. `bend`: see `GaussNewton`; without effect for relu, which has no second derivative.
    """
    sigma = activation(sigma)
    check_widths(obj, widths)
    order = sorted(range(len(obj.terms)), key=lambda i: not obj.terms[i].is_pde)  # those with tangents first
    pick = lambda x: tuple(x[i] for i in order)  # noqa: E731
    obj = replace(obj, terms=pick(obj.terms), beta=pick(obj.beta), alpha=pick(obj.alpha))
    tangents = sum(len(term.y) * term.channels for term in obj.terms)
    counts = flops(sum(term.y.size for term in obj.terms), tangents, widths)
    algebra = algebra or min(counts, key=lambda name: counts[name])
    if algebra not in ALGEBRA:
        raise ValueError(f"algebra={algebra!r} is not known; use one of {', '.join(ALGEBRA)}.")
    if lifted == 0:
        obj = replace(obj, model="ls")
    steps = 0 if obj.model == "ls" else (2**62 if lifted is None else lifted)
    bend = bend and sigma.name != "relu"
    return GaussNewton(obj, jnp.asarray(steps), jnp.asarray(float(damping)), tuple(widths), sigma, init, start, algebra, bend)
