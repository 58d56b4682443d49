"""Gauss-Newton on the losses of LS, PM and SAPM: damped steps on the linearised network.

Every step minimises

    |ρ̃ + J̃ δθ|² + ν |δθ|²

with the residual ρ̃ and the Jacobian J̃ of `sapm.methods.linearise` and the damping ν. If the
auxiliary variables are those of the forward pass, this is Levenberg-Marquardt on the true loss.
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

from sapm.methods.linearise import (
    SCALAR_FLOOR,
    Jacobian,
    LinearisedTerm,
    Products,
    Residual,
    Rows,
    carried,
    dense,
    flatten,
    gram,
    jacobian,
    linearise,
    normal,
    products,
    root_weight,
    rows_of,
    squares,
    times,
    transposed,
    unflatten,
    unroot,
)
from sapm.numerics.activations import Activation, activation
from sapm.numerics.network import Network, Stack, initialise, require_dense
from sapm.objective.penalty import (
    Objective,
    Point,
    check_widths,
    mean_square,
    penalty,
    start_point,
    true_loss,
)
from sapm.scopes import float64

ALGEBRA = ("primal", "dual", "dense", "free")
# An entry that is not in the cache takes as long as this many operations. Measured on two cores:
# 5 to 10 ns for an entry, 46 operations of a matrix product in a ns.
CACHE_MISS_OPERATIONS = 200
GRAM_CACHE_BYTES = 8e6
# Without a matrix ("free") if that of one seed is larger.
MATRIX_BYTES = 4e9
# Conjugate gradients end at this relative residual, or after this many iterations.
CG_TOLERANCE = 1e-4
CG_ITERATIONS = 200
# The damping is divided by the first factor after a step that lowers the loss, and multiplied by
# the second after a trial that does not.
DAMPING_DECREASE = 30.0
DAMPING_INCREASE = 3.0
TRIALS_PER_STEP = 4
START_DAMPING = 1e-2
START_DAMPING_NOT_SMOOTH = 100.0
# Training has converged if |gradient| |weights| / loss is at most FLAT_GRADIENT, or if
# FAILED_STEPS in a row do not lower the loss with a damping of at least STRONG_DAMPING times the
# trace of the matrix.
FLAT_GRADIENT = 1e-14
FAILED_STEPS = 5
STRONG_DAMPING = 1e-3


class GNState(eqx.Module):
    """The state of one seed.

    Parameters
    ----------
    count : steps so far.
    point : the network, and in the lifted phase its auxiliary variables.
    loss : the penalty loss in the lifted phase, then the true loss.
    damping : ν of the next step.
    gain : the decrease of the loss divided by the predicted decrease.
    gradient : the norm of the gradient.
    failed : steps in a row that did not lower the loss in spite of strong damping.
    flat : |gradient| |weights| / loss.
    lifted_undone : whether the lifted phase was undone.
    stack_at_start : the layers at the start, if the lifted phase can be undone.
    """

    count: Int[Array, ""]
    point: Point
    loss: Float[Array, ""]
    damping: Float[Array, ""]
    gain: Float[Array, ""]
    gradient: Float[Array, ""]
    failed: Float[Array, ""]
    flat: Float[Array, ""]
    lifted_undone: Bool[Array, ""]
    stack_at_start: Stack | None


class Linearised(eqx.Module):
    """A network linearised at its auxiliary variables.

    Parameters
    ----------
    network, aux : the point.
    lifting : whether this is the lifted phase.
    parts : the linearised terms.
    rows, rho : the factors of J̃, and ρ̃.
    matrix : J̃ J̃ᵀ or J̃ᵀ J̃; empty if the algebra needs none.
    """

    network: Network
    aux: tuple[Stack, ...]
    lifting: Array
    parts: tuple[LinearisedTerm, ...]
    rows: Rows | Jacobian | Products
    rho: Residual
    matrix: Float[Array, "a a"]


class GaussNewtonEngine(eqx.Module):
    """Gauss-Newton with a lifted phase: `lifted` steps on the penalty loss with free auxiliary
    variables, then steps on the true loss.

    A step that does not lower the loss is tried again with more damping. On the true loss, geodesic
    acceleration (the second derivative of the residual along the step) is added where it gives a
    lower loss.

    Parameters
    ----------
    objective : the terms and the model.
    lifted : the number of steps of the lifted phase.
    damping : ν at the start.
    widths, sigma : the layer widths m_0 … m_L and the activation.
    initialiser, start : the initialiser of the weights, and that of the auxiliary variables.
    algebra : "primal", "dual", "dense" or "free": see `gauss_newton`.
    bend : whether to use geodesic acceleration.
    """

    objective: Objective
    lifted: Int[Array, ""]
    damping: Float[Array, ""]
    widths: tuple[int, ...] = eqx.field(static=True)
    sigma: Activation = eqx.field(static=True)
    initialiser: str = eqx.field(static=True)
    start: str = eqx.field(static=True)
    algebra: str = eqx.field(static=True)
    bend: bool = eqx.field(static=True)
    phases: ClassVar[tuple[str, ...]] = ("lifted", "plain", "plain, lifted undone")

    @property
    def seed_bytes(self) -> int:
        """The memory that the matrix of one seed takes."""
        rows = sum(term.y.size for term in self.objective.terms)
        weights = count_weights(self.widths)
        return matrix_bytes(rows, weights)[self.algebra]

    def diagnostics(self, state: GNState) -> dict[str, Array]:
        """The numbers of a state that are recorded."""
        phase = (
            jnp.where(state.count <= self.lifted, 0.0, 1.0 + state.lifted_undone)
            if self.free
            else jnp.ones(())
        )
        names = ("damping", "gain", "gradient", "failed", "flat")
        return {"phase": phase} | {name: getattr(state, name) for name in names}

    def settled(self, diagnostics: dict[str, float]) -> str:
        """Why training has converged; empty if it has not."""
        gradient = f"gradient {diagnostics['gradient']:.1e}"
        if diagnostics["phase"] == 0 or not isfinite(diagnostics["gradient"]):
            return ""
        if diagnostics["failed"] >= FAILED_STEPS:
            damping = f"damping up to {diagnostics['damping']:.0e}"
            return f"no step lowers the loss any more ({gradient}, {damping})"
        return f"the loss is flat ({gradient})" if 0 < diagnostics["flat"] <= FLAT_GRADIENT else ""

    def init(self, key) -> GNState:
        """The state of a random network."""
        k_weights, k_start = jax.random.split(key)
        network = initialise(
            k_weights, self.widths, self.sigma, self.initialiser, self.objective.constants
        )
        return self._at(
            jnp.zeros((), jnp.int64), start_point(k_start, self.objective, network, self.start)
        )

    @property
    def free(self) -> bool:
        """Whether there are free auxiliary variables, for a lifted phase."""
        return self.objective.model != "ls"

    def begin(self, network: Network) -> GNState:
        """The state of a given network, after the lifted phase."""
        if self.free:
            require_dense(network, f"Gauss-Newton with model={self.objective.model!r}")
        return self._at(jnp.asarray(self.lifted, jnp.int64), self._forward(network))

    def renewed(self, state: GNState, damping: float | None = None) -> GNState:
        """The state for changed samples: the same network and damping, with the loss at the new
        samples. Only without a lifted phase.

        Parameters
        ----------
        state : the state before.
        damping : another damping.
        """
        new = replace(
            state, loss=self._loss(state.point, jnp.zeros((), bool)), failed=jnp.zeros(())
        )
        return new if damping is None else replace(new, damping=jnp.asarray(damping))

    def _forward(self, network: Network) -> Point:
        return start_point(jax.random.key(0), self.objective, network, "forward")

    def _at(self, count, point: Point) -> GNState:
        zero = jnp.zeros(())
        point = point if self.free else Point(point.network, ())
        loss = self._loss(point, count < self.lifted)
        first = point.network.stack if self.free else None
        return GNState(
            count,
            point,
            loss,
            jnp.asarray(self.damping),
            zero,
            zero,
            zero,
            zero,
            jnp.zeros((), bool),
            first,
        )

    def _loss(self, point: Point, lifting) -> Float[Array, ""]:
        plain = true_loss(self.objective, point.network)
        if not self.free:
            return plain
        return jnp.where(lifting, penalty(self.objective, point), plain)

    def linearise(self, point: Point, lifting) -> Linearised:
        """Linearise at a point; outside the lifted phase, at the forward pass of its network.

        Parameters
        ----------
        point : the network, with auxiliary variables if there is a lifted phase.
        lifting : whether this is the lifted phase; it may be traced.
        """
        obj = self.objective
        if not point.network.dense:
            make = products if self.algebra == "free" else jacobian
            rows, rho = make(obj.terms, point.network)
            matrix = self._matrix(rows)
            return Linearised(point.network, (), jnp.asarray(lifting), (), rows, rho, matrix)
        on = jnp.where(lifting, 1.0, 0.0)
        aux = self._forward(point.network).aux
        if self.free:
            aux = jax.tree.map(lambda a, b: jnp.where(lifting, a, b), point.aux, aux)
        parts = tuple(linearise(obj, i, point.network, u, on) for i, u in enumerate(aux))
        rows, rho = rows_of(obj.terms, parts, point.network.constants)
        matrix = self._matrix(rows)
        return Linearised(point.network, aux, jnp.asarray(lifting), parts, rows, rho, matrix)

    def _matrix(self, rows: Rows | Jacobian | Products) -> Array:
        """The matrix of the linear system of a step."""
        makers = {"primal": normal, "dual": gram, "dense": _dense_dual}
        if isinstance(rows, Products) or self.algebra not in makers:
            return jnp.zeros((0, 0))
        return makers[self.algebra](rows)

    def solver(self, at: Linearised, nu) -> Callable[[Residual], Stack]:
        """The map from ρ to the minimiser δθ of |ρ + J̃ δθ|² + (ν + l2) |δθ|².

        Parameters
        ----------
        at : the linearised network, for J̃.
        nu : the damping ν.
        """
        shift = nu if self.objective.l2 is None else nu + self.objective.l2
        if self.algebra == "free":
            return self._by_products(at, shift)
        factor = lax.linalg.cholesky(at.matrix + shift * jnp.eye(len(at.matrix)))

        def half(b, transpose):
            return lax.linalg.triangular_solve(
                factor, b[:, None], left_side=True, lower=True, transpose_a=transpose
            )[:, 0]

        def change(rho) -> Stack:
            if self.algebra == "primal":
                return unflatten(
                    -half(half(flatten(transposed(at.rows, rho)), False), True), at.network.stack
                )
            dual = half(half(jnp.concatenate(rho), False), True)
            ends = list(itertools.accumulate(map(len, rho)))
            return jax.tree.map(
                jnp.negative, transposed(at.rows, tuple(jnp.split(dual, ends[:-1])))
            )

        return change

    @staticmethod
    def _by_products(at: Linearised, shift) -> Callable[[Residual], Stack]:
        """`solver`, approximated by conjugate gradients with the diagonal as preconditioner."""
        diagonal = jax.tree.map(lambda x: x + shift, squares(at.rows))

        def scaled(stack):
            return jax.tree.map(jnp.divide, stack, diagonal)

        def product(stack: Stack) -> Stack:
            return jax.tree.map(
                lambda a, b: a + shift * b, transposed(at.rows, times(at.rows, stack)), stack
            )

        def change(rho) -> Stack:
            right = jax.tree.map(jnp.negative, transposed(at.rows, rho))
            return cg(product, right, tol=CG_TOLERANCE, maxiter=CG_ITERATIONS, M=scaled)[0]

        return change

    def _shrinking(self, at: Linearised, solve: Callable, nu) -> Stack:
        """The step δθ. With an ℓ² penalty it minimises

        |ρ̃ + J̃ δθ|² + l2 ‖W + δW‖² + l2 |δb|² + ν |δθ|²
        """
        if self.objective.l2 is None:
            return solve(at.rho)
        part = self.objective.l2 / (nu + self.objective.l2)
        shrinkage = jax.tree.map(
            lambda x: part * x, at.network.stack.map(lambda layer: layer.penalised())
        )
        rho = jax.tree.map(jnp.subtract, at.rho, times(at.rows, shrinkage))
        return jax.tree.map(jnp.subtract, solve(rho), shrinkage)

    def moved(self, at: Linearised, change: Stack) -> Point:
        """The point after a change of the weights, with the auxiliary variables that minimise the
        linearised loss.

        Parameters
        ----------
        at : the linearised network.
        change : δθ, a stack of layers.
        """
        network = at.network
        left = jax.tree.map(jnp.add, at.rho, times(at.rows, change))
        if not self.free:
            return Point(replace(network, stack=jax.tree.map(jnp.add, network.stack, change)), ())
        jets = []
        for term, part, u, s in zip(self.objective.terms, at.parts, at.aux, left, strict=True):
            scale = root_weight(term)
            s = jnp.where(
                scale > 0, s.reshape(-1, len(term.y)) / jnp.maximum(scale, SCALAR_FLOOR), 0.0
            )
            jets.append(
                jax.tree.map(
                    jnp.add,
                    u,
                    carried(network, part, u, change, unroot(part.root, s, transpose=True).T),
                )
            )
        return Point(
            replace(network, stack=jax.tree.map(jnp.add, network.stack, change)), tuple(jets)
        )

    def _residual(self, network: Network) -> Residual:
        """ρ̃ at the forward pass."""
        terms = self.objective.terms
        return tuple(
            (term.residual(network(term.x)) * root_weight(term)[:, None]).T.reshape(-1)
            for term in terms
        )

    def _bent(self, at: Linearised, solve: Callable, change: Stack) -> Stack:
        """δθ + ½ δθ₂, where δθ₂ is the step for the second derivative of the residual along δθ.

        If δθ₂ is longer than δθ, the result is δθ.
        """
        network = at.network

        def first(stack):
            return jax.jvp(
                lambda w: self._residual(replace(network, stack=w)), (stack,), (change,)
            )[1]

        second = solve(jax.jvp(first, (network.stack,), (change,))[1])
        fits = (square(second) < square(change)) & ~at.lifting
        return jax.tree.map(lambda x, y: x + jnp.where(fits, 0.5 * y, 0.0), change, second)

    def step(self, state: GNState) -> GNState:
        """Linearise once, and try steps with more and more damping until one lowers the loss."""
        leaving = (state.count == self.lifted) & (state.count > 0)
        lifting = state.count < self.lifted if self.free else jnp.zeros((), bool)
        state = self._fallen_back(state, leaving)
        at = self.linearise(state.point, lifting)
        loss = jnp.where(leaving, true_loss(self.objective, state.point.network), state.loss)
        damping = jnp.where(leaving, self.damping, state.damping)
        old = square(at.rho)

        def attempt(trial):
            trials, nu, _, _, _ = trial
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
            return (
                trials + 1,
                jnp.where(value < loss, nu, nu * DAMPING_INCREASE),
                point,
                value,
                (loss - value) / jnp.maximum(predicted, SCALAR_FLOOR),
            )

        here = Point(at.network, at.aux if self.free else ())
        first = (
            jnp.zeros((), jnp.int64),
            damping,
            here,
            jnp.full_like(loss, jnp.inf),
            jnp.zeros(()),
        )

        def unsuccessful(trial):
            return (trial[0] < TRIALS_PER_STEP) & ~(trial[3] < loss)

        _, nu, point, value, gain = lax.while_loop(unsuccessful, attempt, first)
        good = value < loss
        point = jax.tree.map(lambda a, b: jnp.where(good, a, b), point, here)
        tried = nu
        nu = jnp.clip(
            jnp.where(good, nu / DAMPING_DECREASE, nu), 1e-18 * self.damping, 1e14 * self.damping
        )
        slope = transposed(at.rows, at.rho)
        if self.objective.l2 is not None:
            penalised = at.network.stack.map(lambda layer: layer.penalised())
            slope = jax.tree.map(lambda a, b: a + self.objective.l2 * b, slope, penalised)
        gradient = 2 * jnp.sqrt(square(slope))
        trace = squares(at.rows).total(lambda layer: sum(map(jnp.sum, jax.tree.leaves(layer))))
        strong = tried >= STRONG_DAMPING * trace
        failed = jnp.where(leaving, 0.0, state.failed) + strong
        flat = gradient * jnp.sqrt(square(at.network.stack)) / jnp.maximum(loss, SCALAR_FLOOR)
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
        """At the end of the lifted phase, return to the network at the start if that has a lower
        true loss.
        """
        if not self.free:
            return state
        network = state.point.network
        first = replace(network, stack=state.stack_at_start)
        undo = leaving & ~(true_loss(self.objective, network) <= true_loss(self.objective, first))
        stack = jax.tree.map(
            lambda a, b: jnp.where(undo, a, b), state.stack_at_start, network.stack
        )
        point = Point(replace(network, stack=stack), state.point.aux)
        return replace(state, point=point, lifted_undone=state.lifted_undone | undo)

    def _valued(self, at: Linearised, change: Stack) -> tuple[Point, Array]:
        point = self.moved(at, change)
        return point, self._loss(point, at.lifting)

    def losses(self, state: GNState) -> tuple[Array, Array]:
        """The loss that is minimised and the mean square."""
        network = self.network(state)
        true = mean_square(network, self.objective.terms)
        plain = true_loss(self.objective, network)
        return jnp.where(
            state.count <= self.lifted, state.loss, plain
        ) if self.free else plain, true

    def network(self, state: GNState) -> Network:
        """The network; in the lifted phase that of the start if it has a lower true loss."""
        return self._fallen_back(state, state.count <= self.lifted).point.network

    def point(self, state: GNState) -> Point | None:
        """The point with its auxiliary variables, if there are any."""
        return state.point if self.free else None

    def blocks(self) -> list[tuple[str, Callable]]:
        """The parts of a step by name, to find the one that fails."""
        return [("the Gauss-Newton step", self.step)]


def _dense_dual(rows: Rows | Jacobian) -> Float[Array, "r r"]:
    J = dense(rows)
    return J @ J.T


def matrix_bytes(rows: int, weights: int) -> dict[str, int]:
    """The bytes of the matrices of a step of one seed, by algebra.

    Parameters
    ----------
    rows : samples times outputs.
    weights : the number of weights.
    """
    dual = 8 * rows * rows
    return {
        "primal": 8 * weights * weights,
        "dense": dual + 8 * rows * weights,
        "dual": dual,
        "free": 8 * weights,
    }


def square(tree) -> Float[Array, ""]:
    """The sum of the squares of all numbers in a tree."""
    return sum((jnp.sum(x**2) for x in jax.tree.leaves(tree)), jnp.zeros(()))


def count_weights(widths: Sequence[int]) -> int:
    """The number of weights of a dense network with layer widths m_0 … m_L."""
    return sum(o * (i + 1) for i, o in itertools.pairwise(widths))


def flops(rows: int, tangents: int, widths: Sequence[int]) -> dict[str, float]:
    """Floating-point operations of one linearisation and solve, by algebra.

    Parameters
    ----------
    rows : samples times outputs.
    tangents : derivatives at all samples.
    widths : the layer widths m_0 … m_L.
    """
    r = float(rows)
    t = float(tangents)
    p = float(count_weights(widths))
    small = 2 * (r * r + t * r + t * t) * sum(i + o for i, o in itertools.pairwise(widths))
    return {
        "primal": 2 * r * p * p + p**3 / 3,
        "dual": small + r**3 / 3,
        "dense": 2 * r * r * p + r**3 / 3,
    }


def start_damping(sigma: Activation) -> float:
    """The default of the damping at the start."""
    return START_DAMPING if sigma.smooth else START_DAMPING_NOT_SMOOTH


def choose_algebra(rows: int, tangents: int, widths: Sequence[int]) -> str:
    """The algebra with the fewest operations whose matrices fit into memory; "free" if none fits.

    Where the Hadamard products of "dual" do not fit into the cache, every entry counts as
    CACHE_MISS_OPERATIONS more. The parameters are those of `flops`.
    """
    counts = flops(rows, tangents, widths)
    sizes = matrix_bytes(rows, count_weights(widths))
    sizes["dual"] += 2 * 8 * tangents * tangents  # its factors, before the channels are summed
    entries = rows * rows + tangents * rows + tangents * tangents
    if 8 * (rows + tangents) ** 2 > GRAM_CACHE_BYTES:
        counts["dual"] += CACHE_MISS_OPERATIONS * entries * (len(widths) - 1)
    fit = [name for name in counts if sizes[name] <= MATRIX_BYTES]
    return min(fit, key=lambda name: counts[name]) if fit else "free"


@float64
def gauss_newton(  # noqa: PLR0913
    obj: Objective,
    widths: Sequence[int],
    sigma: str | Activation,
    lifted: int | None = None,
    damping: float | None = None,
    algebra: str | None = None,
    init: str = "he",
    start: str = "uniform",
    bend: bool = True,
) -> GaussNewtonEngine:
    """The engine of Gauss-Newton for an objective.

    Parameters
    ----------
    obj : the terms and the model; "ls" for steps on the true loss alone.
    widths, sigma : the layer widths m_0 … m_L and the activation.
    lifted : the number of steps on the penalty loss of PM or SAPM, before those on the true loss.
        Default: all.
    damping : ν at the start. Default: `start_damping`.
    algebra : how a step is solved. "primal": from J̃ᵀ J̃, weights × weights. "dual" and "dense":
        from J̃ J̃ᵀ, rows × rows, without and with J̃. "free": by conjugate gradients without a
        matrix. Default: `choose_algebra`.
    init, start : the initialiser of the weights, and that of the auxiliary variables.
    bend : whether to use geodesic acceleration. It has no effect if σ' is not continuous, or for
        losses other than squares.
    """
    sigma = activation(sigma)
    check_widths(obj, widths)
    tangents = sum(len(term.y) * term.channels for term in obj.terms)
    algebra = algebra or choose_algebra(sum(term.y.size for term in obj.terms), tangents, widths)
    steps = 0 if obj.model == "ls" else (2**62 if lifted is None else lifted)
    bend = bend and sigma.smooth and all(term.squared for term in obj.terms)
    damping = start_damping(sigma) if damping is None else damping
    return GaussNewtonEngine(
        obj,
        jnp.asarray(steps),
        jnp.asarray(float(damping)),
        tuple(widths),
        sigma,
        init,
        start,
        algebra,
        bend,
    )
