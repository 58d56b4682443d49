"""Standard test problems: linear and nonlinear equations of first and second order."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from sapm.catalogue import answers
from sapm.problem.conditions import Dirichlet, Initial, InitialVelocity, Neumann, Observed
from sapm.problem.domain import Box
from sapm.problem.functions import evaluate
from sapm.problem.pde import PDE

BURGERS_VISCOSITY = 0.01 / math.pi


def _laplacian(value: Callable, x: jax.Array) -> jax.Array:
    return jnp.trace(jax.hessian(value)(x))


def poisson_2d() -> PDE:
    """-Δu = f on the unit square, u = sin πx sin πy."""
    return _poisson(("x", "y"), lambda x: jnp.prod(jnp.sin(jnp.pi * x)))


def poisson_5d() -> PDE:
    """-Δu = f on the five-dimensional unit cube, u = Σ sin πx_i."""
    names = tuple(f"x{i}" for i in range(1, 6))
    return _poisson(names, lambda x: jnp.sum(jnp.sin(jnp.pi * x)))


def _poisson(names: tuple[str, ...], value: Callable) -> PDE:
    """-Δu = f on the unit cube with u = value on its faces, with f computed from that solution."""

    def exact(p):
        return value(p.vector)

    def residual(p, u):
        return -sum(u.d(name, name) for name in names) + _laplacian(value, p.vector)

    return PDE(Box(**dict.fromkeys(names, (0, 1))), residual, [Dirichlet(exact)], exact)


def heat_1d() -> PDE:
    """u_t = u_xx / 10 on [0, 1]²: two decaying modes."""

    def mode(p, k):
        return jnp.exp(-0.1 * (k * jnp.pi) ** 2 * p.t) * jnp.sin(k * jnp.pi * p.x)

    def exact(p):
        return mode(p, 1) + 0.5 * mode(p, 3)

    conditions = [Initial(exact), Dirichlet(lambda p: 0.0)]
    return PDE(Box(t=(0, 1), x=(0, 1)), lambda p, u: u.t - 0.1 * u.xx, conditions, exact)


def wave_1d() -> PDE:
    """u_tt = 4 u_xx on [0, 1]²: a string that starts at rest."""

    def mode(p, k):
        return jnp.sin(k * jnp.pi * p.x) * jnp.cos(2 * k * jnp.pi * p.t)

    def exact(p):
        return mode(p, 1) + 0.5 * mode(p, 3)

    conditions = [Initial(exact), InitialVelocity(lambda p: 0.0), Dirichlet(lambda p: 0.0)]
    return PDE(Box(t=(0, 1), x=(0, 1)), lambda p, u: u.tt - 4 * u.xx, conditions, exact)


def helmholtz_2d() -> PDE:
    """Δu + k² u = f on the unit square, k = 2π, u = sin kx sin ky."""
    k = 2 * jnp.pi

    def exact(p):
        return jnp.sin(k * p.x) * jnp.sin(k * p.y)

    def residual(p, u):
        return u.xx + u.yy + k**2 * u.value + k**2 * exact(p)

    return PDE(Box(x=(0, 1), y=(0, 1)), residual, [Dirichlet(lambda p: 0.0)], exact)


def advection_diffusion() -> PDE:
    """-Δu/20 + u_x = f on the unit square: a boundary layer at the outflow x = 1."""
    diffusion = 0.05

    def value(x):
        layer = jnp.expm1((x[0] - 1) / diffusion) - jnp.expm1(-1 / diffusion)
        return (x[0] + layer / jnp.expm1(-1 / diffusion)) * jnp.sin(jnp.pi * x[1])

    def exact(p):
        return value(p.vector)

    def residual(p, u):
        f = -diffusion * _laplacian(value, p.vector) + jax.grad(value)(p.vector)[0]
        return -diffusion * (u.xx + u.yy) + u.x - f

    return PDE(Box(x=(0, 1), y=(0, 1)), residual, [Dirichlet(lambda p: 0.0)], exact)


def nonlinear_poisson() -> PDE:
    """-Δu + u³ = f on [-1, 1]², u = sin πx cos πy/2."""

    def exact(p):
        return jnp.sin(jnp.pi * p.x) * jnp.cos(jnp.pi * p.y / 2)

    def residual(p, u):
        return -u.xx - u.yy + u.value**3 - (1.25 * jnp.pi**2 * exact(p) + exact(p) ** 3)

    return PDE(Box(x=(-1, 1), y=(-1, 1)), residual, [Dirichlet(exact)], exact)


def burgers() -> PDE:
    """u_t + u u_x = 0.01/π u_xx on [0, 1] × [-1, 1] from -sin πx: a shock forms at x = 0."""
    conditions = [Initial(lambda p: -jnp.sin(jnp.pi * p.x)), Dirichlet(lambda p: 0.0)]

    def residual(p, u):
        return u.t + u.value * u.x - BURGERS_VISCOSITY * u.xx

    return PDE(Box(t=(0, 1), x=(-1, 1)), residual, conditions, _burgers_solution)


def burgers_inverse() -> PDE:
    """Burgers' equation with unknown viscosity, initial guess 0.01, and u known at 400 points."""
    domain = Box(t=(0, 1), x=(-1, 1))
    x = domain.points(400, 7)
    conditions = [
        Initial(lambda p: -jnp.sin(jnp.pi * p.x)),
        Dirichlet(lambda p: 0.0),
        Observed(x, evaluate(_burgers_solution, "the answer", domain.names, x)),
    ]

    def residual(p, u):
        return u.t + u.value * u.x - p.nu * u.xx

    return PDE(domain, residual, conditions, _burgers_solution, {"nu": 0.01})


def _burgers_solution(p) -> jax.Array:
    """The Cole-Hopf solution of Burgers' equation from -sin πx.

    u is the mean of -sin π(x - η) with the weight exp(-η²/4νt - cos π(x - η)/2πν). After the
    substitution η = z √(4νt) the weight is concentrated in |z| < 9, also at the shock, and the
    trapezoidal rule converges exponentially.
    """
    nu = BURGERS_VISCOSITY
    z = jnp.linspace(-16, 16, 801)
    y = p.x - z * jnp.sqrt(4 * nu * p.t)
    power = -(z**2) - jnp.cos(jnp.pi * y) / (2 * jnp.pi * nu)
    weight = jnp.exp(power - jnp.max(power))
    return -jnp.sum(weight * jnp.sin(jnp.pi * y)) / jnp.sum(weight)


def lotka_volterra() -> PDE:
    """u' = u (1.5 - v), v' = v (u - 3) from (4, 2) on [0, 3]: one cycle of prey and predators."""

    def residual(p, u, v):
        return u.t - u.value * (1.5 - v.value), v.t - v.value * (u.value - 3)

    conditions = [Initial(lambda p: (4.0, 2.0))]
    return PDE(Box(t=(0, 3)), residual, conditions, lambda p: answers.lotka_volterra(p.t))


def allen_cahn() -> PDE:
    """u_t = 10⁻⁴ u_xx + 5 (u - u³) on [0, 1] × [-1, 1] from x² cos πx.

    The usual periodic conditions are equivalent to u_x = 0 at both ends, since the initial value
    is even. Errors at t = 0 grow by up to e⁵, so the initial condition has the weight 100. `exact`
    is computed numerically, to 3e-9.
    """
    conditions = [
        Initial(lambda p: p.x**2 * jnp.cos(jnp.pi * p.x), weight=100),
        Neumann(lambda p: 0.0),
    ]

    def residual(p, u):
        return u.t - 1e-4 * u.xx - 5 * (u.value - u.value**3)

    domain = Box(t=(0, 1), x=(-1, 1))
    return PDE(domain, residual, conditions, lambda p: answers.allen_cahn(p.t, p.x))
