"""The four problems of the paper, and convection, another transport equation."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from sapm.problem.conditions import Inflow, Initial
from sapm.problem.data import Function
from sapm.problem.domain import Ball, Box
from sapm.problem.pde import PDE


def function_1d() -> Function:
    """sin x² on [-1, 1]."""
    return Function(Box(x=(-1, 1)), lambda p: jnp.sin(p.x**2))


def function_10d() -> Function:
    """1 / (2√10 + Σ x_i) in the ten-dimensional unit ball."""
    return Function(Ball(10), lambda p: 1 / (2 * 10**0.5 + jnp.sum(p.vector)))


def transport_1d() -> PDE:
    """u_t - (t + x + 3/2) u_x = f on [0, 1] × [-1, 1], u = e^t sin x."""

    def speed(t, x):
        return t + x + 1.5

    def solution(t, x):
        return jnp.exp(t) * jnp.sin(x[0])

    return _transport(["x"], speed, solution)


def transport_3d() -> PDE:
    """u_t - Σ (x_i + 2) u_{x_i} = f on [0, 1] × [-1, 1]³, u = Σ (t + x_i) sin x_i."""

    def speed(t, x):
        return x + 2.0

    def solution(t, x):
        return jnp.sum((t + x) * jnp.sin(x))

    return _transport(["x1", "x2", "x3"], speed, solution)


def convection(beta: float = 30.0) -> PDE:
    """u_t + β u_x = 0 on [0, 1] × [0, 2π], u = sin(x - βt): β/2π periods cross the domain."""

    def exact(p):
        return jnp.sin(p.x - beta * p.t)

    domain = Box(t=(0, 1), x=(0, 2 * math.pi))
    return PDE(domain, lambda p, u: u.t + beta * u.x, [Initial(exact), Inflow(exact)], exact)


def _transport(names: list[str], speed, solution) -> PDE:
    """u_t - v·∇u = f on [0, 1] × [-1, 1]^d, with f computed from the solution.

    The conditions prescribe u at t = 0 and on the inflow faces x_i = 1.

    Parameters
    ----------
    names : the d coordinates of space.
    speed : v(t, x), with x of shape (d,).
    solution : u(t, x).
    """

    def exact(p):
        return solution(p.t, p.vector[1:])

    def residual(p, u):
        t = p.t
        x = p.vector[1:]
        v = speed(t, x)
        f = jax.grad(solution, 0)(t, x) - jnp.dot(v, jax.grad(solution, 1)(t, x))
        return u.t - sum(v[i] * u.d(name) for i, name in enumerate(names)) - f

    domain = Box(t=(0, 1), **dict.fromkeys(names, (-1, 1)))
    return PDE(domain, residual, [Initial(exact), Inflow(exact)], exact)
