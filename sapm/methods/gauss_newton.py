"""Gauss-Newton on the losses of LS, PM and SAPM: damped steps on the linearised network (`sapm.linearise`).

With the auxiliary variables on the forward pass it is Levenberg-Marquardt on the true loss.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Bool, Float, Int

from sapm.jet import Activation, activation, float64
from sapm.linearise import (
    TINY,
    Linear,
    Residual,
    Rows,
    carried,
    dense,
    flatten,
    gram,
    linearise,
    normal,
    root_weight,
    rows_of,
    squares,
    times,
    total,
    transposed,
    unflatten,
    unroot,
)
from sapm.network import Dense, Network, Stack, initialise
from sapm.objective import Objective, Point, check_widths, mean_square, penalty, start_point, true_loss

ALGEBRA = ("primal", "dual", "dense", "free")
PASSING, CACHE = 200, 8e6  # measured on two cores: 5 to 10 ns for an entry, where products of matrices do 46 operations in a ns
MEMORY = 4e9  # bytes of the matrix of a seed: beyond, none is made ("free")
PRECISION, PRODUCTS = 1e-4, 200  # of conjugate gradients without a matrix: relative residual, and products at most
DOWN, UP, TRIES = 30.0, 3.0, 4  # the damping after a step that is taken, that fails; trials from one linearisation
DAMPING, DAMPING_RELU = 1e-2, 100.0  # at the start
FLAT, FAILED, STRONG = 1e-14, 5, 1e-3  # converged: a loss flat to first order, or so many linearisations in a row without
# a lower one although the damping was at least that fraction of the trace of the matrix


class GNState(eqx.Module):
    """`loss` is that of the phase: the penalty loss while lifted, then the true one. gain: actual over predicted decrease.

    `failed`: linearisations in a row from which no trial lowered the loss, however strongly damped. `flat`: |gradient| |weights|
    / loss. `first`: the network at the start, where the lifted phase can still be undone; `undone`: whether it was.
    """

    count: Int[Array, ""]
    point: Point
    loss: Float[Array, ""]
    damping: Float[Array, ""]
    gain: Float[Array, ""]
    gradient: Float[Array, ""]
    failed: Float[Array, ""]
    flat: Float[Array, ""]
    undone: Bool[Array, ""]
    first: Stack | None


class Linearised(eqx.Module):
    """A network and auxiliary variables, linearised; `matrix` is J̃ J̃ᵀ or J̃ᵀ J̃, or empty."""

    network: Network
    aux: tuple[Stack, ...]
    lifting: Array
    parts: tuple[Linear, ...]
    rows: Rows
    rho: Residual
    matrix: Float[Array, "a a"]


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
    phases: ClassVar[tuple[str, ...]] = ("lifted", "plain", "plain, lifted undone")

    @property
    def seed_bytes(self) -> int:
        rows, weights = sum(term.y.size for term in self.objective.terms), count_weights(self.widths)
        return matrix_bytes(rows, weights)[self.algebra]

    def diagnostics(self, state: GNState) -> dict[str, Array]:
        phase = jnp.where(state.count <= self.lifted, 0.0, 1.0 + state.undone) if self.free else jnp.ones(())
        names = ("damping", "gain", "gradient", "failed", "flat")
        return {"phase": phase} | {name: getattr(state, name) for name in names}

    def settled(self, diagnostics: dict[str, float]) -> str:
        found = f"gradient {diagnostics['gradient']:.1e}"
        if diagnostics["phase"] == 0 or not isfinite(diagnostics["gradient"]):
            return ""
        if diagnostics["failed"] >= FAILED:
            return f"no step lowers the loss any more ({found}, damping up to {diagnostics['damping']:.0e})"
        return f"the loss is flat ({found})" if 0 < diagnostics["flat"] <= FLAT else ""

    def init(self, key) -> GNState:
        k_weights, k_start = jax.random.split(key)
        network = initialise(k_weights, self.widths, self.sigma, self.weights, self.objective.constants)
        return self._at(jnp.zeros((), jnp.int64), start_point(k_start, self.objective, network, self.start))

    @property
    def free(self) -> bool:
        """Whether there are auxiliary variables at all; without a lifted phase they are those of the forward pass."""
        return self.objective.model != "ls"

    def begin(self, network: Network) -> GNState:
        """At a given network: the lifted phase is behind, or it starts from the forward pass."""
        return self._at(jnp.asarray(self.lifted, jnp.int64), self._forward(network))

    def renewed(self, state: GNState, damping: float | None = None) -> GNState:
        """The same network, where the samples have changed, and the same damping unless there is another; only without a lifted
        phase."""
        new = replace(state, loss=self._loss(state.point, jnp.zeros((), bool)), failed=jnp.zeros(()))
        return new if damping is None else replace(new, damping=jnp.asarray(damping))

    def _forward(self, network: Network) -> Point:
        return start_point(jax.random.key(0), self.objective, network, "forward")

    def _at(self, count, point: Point) -> GNState:
        zero, point = jnp.zeros(()), point if self.free else Point(point.network, ())
        loss, first = self._loss(point, count < self.lifted), point.network.stack if self.free else None
        return GNState(count, point, loss, jnp.asarray(self.damping), zero, zero, zero, zero, jnp.zeros((), bool), first)

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
        rows, rho = rows_of(obj.terms, parts, point.network.constants)
        made = {"primal": normal, "dual": gram, "dense": _dense_dual, "free": lambda rows: jnp.zeros((0, 0))}
        matrix = made[self.algebra](rows)
        return Linearised(point.network, aux, jnp.asarray(lifting), parts, rows, rho, matrix)

    def solver(self, at: Linearised, nu) -> Callable[[Residual], Stack]:
        """ρ → the δθ that minimises |ρ + J̃ δθ|² + (ν + l2) |δθ|²."""
        shift = nu if self.objective.l2 is None else nu + self.objective.l2
        if self.algebra == "free":
            return self._by_products(at, shift)
        factor = lax.linalg.cholesky(at.matrix + shift * jnp.eye(len(at.matrix)))

        def half(b, transpose):
            return lax.linalg.triangular_solve(factor, b[:, None], left_side=True, lower=True, transpose_a=transpose)[:, 0]

        def change(rho) -> Stack:
            if self.algebra == "primal":
                return unflatten(-half(half(flatten(transposed(at.rows, rho)), False), True), at.network.stack)
            found, ends = half(half(jnp.concatenate(rho), False), True), list(itertools.accumulate(map(len, rho)))
            return jax.tree.map(jnp.negative, transposed(at.rows, tuple(jnp.split(found, ends[:-1]))))

        return change

    @staticmethod
    def _by_products(at: Linearised, shift) -> Callable[[Residual], Stack]:
        """The same, nearly: conjugate gradients on the normal equations, scaled by their diagonal."""
        diagonal = jax.tree.map(lambda x: x + shift, squares(at.rows))
        scaled = lambda stack: jax.tree.map(jnp.divide, stack, diagonal)  # noqa: E731

        def product(stack: Stack) -> Stack:
            return jax.tree.map(lambda a, b: a + shift * b, transposed(at.rows, times(at.rows, stack)), stack)

        def change(rho) -> Stack:
            right = jax.tree.map(jnp.negative, transposed(at.rows, rho))
            return cg(product, right, tol=PRECISION, maxiter=PRODUCTS, M=scaled)[0]

        return change

    def _shrinking(self, at: Linearised, solve: Callable, nu) -> Stack:
        """The step; with an ℓ² penalty, the one for |ρ̃ + J̃ δθ|² + l2 ‖W + δW‖² + ν |δθ|² + l2 |δb|²."""
        if self.objective.l2 is None:
            return solve(at.rho)
        part = self.objective.l2 / (nu + self.objective.l2)
        less = at.network.stack.map(lambda layer: Dense(part * layer.W, jnp.zeros_like(layer.b)))
        rho = jax.tree.map(jnp.subtract, at.rho, times(at.rows, less))
        return jax.tree.map(jnp.subtract, solve(rho), less)

    def moved(self, at: Linearised, change: Stack) -> Point:
        """The point after a change of the weights, with the best auxiliary variables that the linearisation knows."""
        network, left = at.network, jax.tree.map(jnp.add, at.rho, times(at.rows, change))
        if not self.free:
            return Point(replace(network, stack=jax.tree.map(jnp.add, network.stack, change)), ())
        jets = []
        for term, part, u, s in zip(self.objective.terms, at.parts, at.aux, left, strict=True):
            scale = root_weight(term)
            s = jnp.where(scale > 0, s.reshape(-1, len(term.y)) / jnp.maximum(scale, TINY), 0.0)
            jets.append(jax.tree.map(jnp.add, u, carried(network, part, u, change, unroot(part.root, s, transpose=True).T)))
        return Point(replace(network, stack=jax.tree.map(jnp.add, network.stack, change)), tuple(jets))

    def _residual(self, network: Network) -> Residual:
        """ρ̃ of the forward pass."""
        terms = self.objective.terms
        return tuple((term.residual(network(term.x)) * root_weight(term)[:, None]).T.reshape(-1) for term in terms)

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
        state = self._fallen_back(state, leaving)
        at = self.linearise(state.point, lifting)
        loss = jnp.where(leaving, true_loss(self.objective, state.point.network), state.loss)
        damping = jnp.where(leaving, self.damping, state.damping)
        old = square(at.rho)

        def attempt(kept):
            tries, nu, _, _, _ = kept
            solve = self.solver(at, nu)
            change = self._shrinking(at, solve, nu)
            predicted = old - square(jax.tree.map(jnp.add, at.rho, times(at.rows, change)))
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
        tried = nu
        nu = jnp.clip(jnp.where(good, nu / DOWN, nu), 1e-18 * self.damping, 1e14 * self.damping)
        slope = transposed(at.rows, at.rho)
        if self.objective.l2 is not None:
            shrinking = at.network.stack.map(lambda layer: Dense(self.objective.l2 * layer.W, jnp.zeros_like(layer.b)))
            slope = jax.tree.map(jnp.add, slope, shrinking)
        gradient = 2 * jnp.sqrt(square(slope))
        trace = total(squares(at.rows), lambda layer: jnp.sum(layer.W) + jnp.sum(layer.b))
        strong = tried >= STRONG * trace
        failed = jnp.where(leaving, 0.0, state.failed) + strong
        flat = gradient * jnp.sqrt(square(at.network.stack)) / jnp.maximum(loss, TINY)
        return replace(
            state,
            count=state.count + 1,
            point=point,
            loss=jnp.where(good, value, loss),
            damping=nu,
            gain=jnp.where(good, gain, 0.0),
            gradient=gradient,
            failed=jnp.where(good, 0.0, failed),
            flat=flat,
        )

    def _fallen_back(self, state: GNState, leaving) -> GNState:
        """At the end of the lifted phase: with the network it began with, if that has the lower true loss."""
        if not self.free:
            return state
        now = state.point.network
        first = replace(now, stack=state.first)
        undo = leaving & ~(true_loss(self.objective, now) <= true_loss(self.objective, first))
        stack = jax.tree.map(lambda a, b: jnp.where(undo, a, b), state.first, now.stack)
        point = Point(replace(now, stack=stack), state.point.aux)
        return replace(state, point=point, undone=state.undone | undo)

    def _valued(self, at: Linearised, change: Stack) -> tuple[Point, Array]:
        point = self.moved(at, change)
        return point, self._loss(point, at.lifting)

    def losses(self, state: GNState) -> tuple[Array, Array]:
        network = self.network(state)
        true, plain = mean_square(network, self.objective.terms), true_loss(self.objective, network)
        return jnp.where(state.count <= self.lifted, state.loss, plain) if self.free else plain, true

    def network(self, state: GNState) -> Network:
        """While lifted, that of the start as long as it has the lower true loss."""
        return self._fallen_back(state, state.count <= self.lifted).point.network

    def point(self, state: GNState) -> Point | None:
        return state.point if self.free else None

    def blocks(self) -> list[tuple[str, Callable]]:
        return [("the Gauss-Newton step", self.step)]


def _dense_dual(rows: Rows) -> Float[Array, "r r"]:
    J = dense(rows)
    return J @ J.T


def matrix_bytes(rows: int, weights: int) -> dict[str, int]:
    """What a step of one seed holds beside the jets, by the algebra."""
    dual = 8 * rows * rows
    return {"primal": 8 * weights * weights, "dense": dual + 8 * rows * weights, "dual": dual, "free": 8 * weights}


def square(tree) -> Float[Array, ""]:
    return sum((jnp.sum(x**2) for x in jax.tree.leaves(tree)), jnp.zeros(()))


def count_weights(widths: Sequence[int]) -> int:
    return sum(o * (i + 1) for i, o in itertools.pairwise(widths))


def flops(rows: int, tangents: int, widths: Sequence[int]) -> dict[str, float]:
    """Floating-point operations of one linearisation and solve, by the algebra. `tangents`: channels of all samples."""
    r, t, p = float(rows), float(tangents), float(count_weights(widths))
    small = 2 * (r * r + t * r + t * t) * sum(i + o for i, o in itertools.pairwise(widths))
    return {"primal": 2 * r * p * p + p**3 / 3, "dual": small + r**3 / 3, "dense": 2 * r * r * p + r**3 / 3}


def start_damping(sigma: Activation) -> float:
    return DAMPING_RELU if sigma.name == "relu" else DAMPING


def choose_algebra(rows: int, tangents: int, widths: Sequence[int]) -> str:
    """The fewest operations of those whose matrix fits into memory; else "free".

    Where the dual's Hadamard products do not fit into the cache, an entry takes as long as PASSING operations more.
    """
    counts, sizes = flops(rows, tangents, widths), matrix_bytes(rows, count_weights(widths))
    sizes["dual"] += 2 * 8 * tangents * tangents  # its factors, before the channels are summed
    entries = rows * rows + tangents * rows + tangents * tangents
    if 8 * (rows + tangents) ** 2 > CACHE:
        counts["dual"] += PASSING * entries * (len(widths) - 1)
    fit = [name for name in counts if sizes[name] <= MEMORY]
    return min(fit, key=lambda name: counts[name]) if fit else "free"


@float64
def gauss_newton(
    obj: Objective,
    widths: Sequence[int],
    sigma: str | Activation,
    lifted: int | None = None,
    damping: float | None = None,
    algebra: str | None = None,
    init: str = "he",
    start: str = "uniform",
    bend: bool = True,
) -> GaussNewton:
    """Gauss-Newton on the objective's own loss; `lifted` steps of a penalty loss (default: all), then the true loss.

    `algebra`: "primal" (P × P), "dense" or "dual" (samples × samples, with or without the Jacobian); by default the one with
    the fewest operations of those that fit into memory, and if none does, "free": conjugate gradients.
    `bend`: see `GaussNewton`; without effect for relu, which has no second derivative.
    """
    sigma = activation(sigma)
    check_widths(obj, widths)
    tangents = sum(len(term.y) * term.channels for term in obj.terms)
    algebra = algebra or choose_algebra(sum(term.y.size for term in obj.terms), tangents, widths)
    if algebra not in ALGEBRA:
        raise ValueError(f"algebra={algebra!r} is not known; use one of {', '.join(ALGEBRA)}.")
    if lifted == 0:
        obj = replace(obj, model="ls")
    steps = 0 if obj.model == "ls" else (2**62 if lifted is None else lifted)
    bend = bend and sigma.name != "relu"
    damping = start_damping(sigma) if damping is None else damping
    return GaussNewton(obj, jnp.asarray(steps), jnp.asarray(float(damping)), tuple(widths), sigma, init, start, algebra, bend)
