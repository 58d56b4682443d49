"""Second-order and nonlinear problems as textbooks have them, each stated once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


def _laplacian(value: Callable, x: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return jnp.trace(jax.hessian(value)(x))


def poisson(dimension: int):
    """-Δu = f on the unit cube with u given on its faces: sin πx sin πy in the plane, Σ sin πx_i beyond."""
    import jax.numpy as jnp

    from sapm.conditions import Dirichlet
    from sapm.domain import Box
    from sapm.problem import PDE

    names = ("x", "y") if dimension == 2 else tuple(f"x{i}" for i in range(1, dimension + 1))
    value = lambda x: (jnp.prod if dimension == 2 else jnp.sum)(jnp.sin(jnp.pi * x))  # noqa: E731

    def exact(p):
        return value(p.vector)

    def residual(p, u):
        return -sum(u.d(name, name) for name in names) + _laplacian(value, p.vector)

    return PDE(Box(**dict.fromkeys(names, (0, 1))), residual, [Dirichlet(exact)], exact)


def heat():
    """u_t = u_xx / 10 on the unit square: two modes that decay."""
    import jax.numpy as jnp

    from sapm.conditions import Dirichlet, Initial
    from sapm.domain import Box
    from sapm.problem import PDE

    def mode(p, k):
        return jnp.exp(-0.1 * (k * jnp.pi) ** 2 * p.t) * jnp.sin(k * jnp.pi * p.x)

    def exact(p):
        return mode(p, 1) + 0.5 * mode(p, 3)

    conditions = [Initial(exact), Dirichlet(lambda p: 0.0)]
    return PDE(Box(t=(0, 1), x=(0, 1)), lambda p, u: u.t - 0.1 * u.xx, conditions, exact)


def wave():
    """u_tt = 4 u_xx on the unit square: a string that starts at rest."""
    import jax.numpy as jnp

    from sapm.conditions import Dirichlet, Initial, InitialVelocity
    from sapm.domain import Box
    from sapm.problem import PDE

    def exact(p):
        return jnp.sin(jnp.pi * p.x) * jnp.cos(2 * jnp.pi * p.t) + 0.5 * jnp.sin(3 * jnp.pi * p.x) * jnp.cos(6 * jnp.pi * p.t)

    conditions = [Initial(exact), InitialVelocity(lambda p: 0.0), Dirichlet(lambda p: 0.0)]
    return PDE(Box(t=(0, 1), x=(0, 1)), lambda p, u: u.tt - 4 * u.xx, conditions, exact)


def helmholtz():
    """Δu + k² u = f on the unit square, k = 2π, u = sin kx sin ky."""
    import jax.numpy as jnp

    from sapm.conditions import Dirichlet
    from sapm.domain import Box
    from sapm.problem import PDE

    k = 2 * jnp.pi

    def exact(p):
        return jnp.sin(k * p.x) * jnp.sin(k * p.y)

    def residual(p, u):
        return u.xx + u.yy + k**2 * u.value + k**2 * exact(p)

    return PDE(Box(x=(0, 1), y=(0, 1)), residual, [Dirichlet(lambda p: 0.0)], exact)


def advection_diffusion():
    """-Δu/20 + u_x = f on the unit square: a layer where the flow leaves."""
    import jax
    import jax.numpy as jnp

    from sapm.conditions import Dirichlet
    from sapm.domain import Box
    from sapm.problem import PDE

    small = 0.05

    def value(x):
        layer = jnp.expm1((x[0] - 1) / small) - jnp.expm1(-1 / small)
        return (x[0] + layer / jnp.expm1(-1 / small)) * jnp.sin(jnp.pi * x[1])

    def residual(p, u):
        f = -small * _laplacian(value, p.vector) + jax.grad(value)(p.vector)[0]
        return -small * (u.xx + u.yy) + u.x - f

    return PDE(Box(x=(0, 1), y=(0, 1)), residual, [Dirichlet(lambda p: 0.0)], lambda p: value(p.vector))


def nonlinear_poisson():
    """-Δu + u³ = f on [-1, 1]², u = sin πx cos πy/2."""
    import jax.numpy as jnp

    from sapm.conditions import Dirichlet
    from sapm.domain import Box
    from sapm.problem import PDE

    def exact(p):
        return jnp.sin(jnp.pi * p.x) * jnp.cos(jnp.pi * p.y / 2)

    def residual(p, u):
        return -u.xx - u.yy + u.value**3 - (1.25 * jnp.pi**2 * exact(p) + exact(p) ** 3)

    return PDE(Box(x=(-1, 1), y=(-1, 1)), residual, [Dirichlet(exact)], exact)


NU = 0.01 / math.pi  # the viscosity of Burgers' equation


def _shock(p):
    """Cole's and Hopf's answer to Burgers' equation from -sin πx.

    u is the mean of -sin π(x - η) under the weight exp(-η²/4νt - cos π(x - η)/2πν). With η = z √(4νt) that weight has its bulk in
    |z| < 9, wherever the shock is, and the trapezoidal rule converges exponentially.
    """
    import jax.numpy as jnp

    z = jnp.linspace(-16, 16, 801)
    y = p.x - z * jnp.sqrt(4 * NU * p.t)
    power = -(z**2) - jnp.cos(jnp.pi * y) / (2 * jnp.pi * NU)
    weight = jnp.exp(power - jnp.max(power))
    return -jnp.sum(weight * jnp.sin(jnp.pi * y)) / jnp.sum(weight)


def burgers():
    """u_t + u u_x = 0.01/π u_xx on [0, 1] × [-1, 1] from -sin πx: a shock forms at x = 0."""
    import jax.numpy as jnp

    from sapm.conditions import Dirichlet, Initial
    from sapm.domain import Box
    from sapm.problem import PDE

    conditions = [Initial(lambda p: -jnp.sin(jnp.pi * p.x)), Dirichlet(lambda p: 0.0)]
    return PDE(Box(t=(0, 1), x=(-1, 1)), lambda p, u: u.t + u.value * u.x - NU * u.xx, conditions, _shock)


def burgers_inverse():
    """The same with an unknown viscosity, first guess 0.01, from the values of u at 400 points."""
    import jax.numpy as jnp

    from sapm.conditions import Dirichlet, Initial, Observed
    from sapm.domain import Box
    from sapm.pointwise import evaluate
    from sapm.problem import PDE

    domain = Box(t=(0, 1), x=(-1, 1))
    x = domain.points(400, 7)
    seen = Observed(x, evaluate(_shock, "the answer", domain.names, x))
    conditions = [Initial(lambda p: -jnp.sin(jnp.pi * p.x)), Dirichlet(lambda p: 0.0), seen]
    return PDE(domain, lambda p, u: u.t + u.value * u.x - p.nu * u.xx, conditions, _shock, {"nu": 0.01})


def lotka_volterra():
    """u' = u (1.5 - v), v' = v (u - 3) from (4, 2), for three units of time: prey and predators, once around."""
    from sapm.conditions import Initial
    from sapm.domain import Box
    from sapm.problem import PDE
    from sapm.references import lotka_volterra as answer

    def residual(p, u, v):
        return u.t - u.value * (1.5 - v.value), v.t - v.value * (u.value - 3)

    return PDE(Box(t=(0, 3)), residual, [Initial(lambda p: (4.0, 2.0))], lambda p: answer(p.t))


def allen_cahn():
    """u_t = 10⁻⁴ u_xx + 5 (u - u³) on [0, 1] × [-1, 1] from x² cos πx.

    The start is even, so that periodic conditions, with which it is usually stated, mean u_x = 0 at both ends. Errors of the
    start grow, up to e⁵ times, so it counts for more than the rest. The answer is a numerical one, to 3e-9.
    """
    import jax.numpy as jnp

    from sapm.conditions import Initial, Neumann
    from sapm.domain import Box
    from sapm.problem import PDE
    from sapm.references import allen_cahn as answer

    conditions = [Initial(lambda p: p.x**2 * jnp.cos(jnp.pi * p.x), weight=100), Neumann(lambda p: 0.0)]
    residual = lambda p, u: u.t - 1e-4 * u.xx - 5 * (u.value - u.value**3)  # noqa: E731
    return PDE(Box(t=(0, 1), x=(-1, 1)), residual, conditions, lambda p: answer(p.t, p.x))


@dataclass(frozen=True)
class Textbook:
    """A problem with the size and the settings that it is usually solved with."""

    about: str
    make: Callable
    size: tuple[int, int] = (4, 32)
    settings: dict = field(default_factory=dict)


SHARP = {"activation": "tanh", "points": 2000, "max_iter": 300}  # layers and shocks between the points would go unnoticed
FEW = {"points": 400, "boundary_points": 4}
PROBLEMS = {
    "poisson_2d": Textbook("solve -Δu = f on the unit square, solution sin πx sin πy", lambda: poisson(2)),
    "poisson_5d": Textbook("solve -Δu = f on the five-dimensional unit cube, solution Σ sin πx_i", lambda: poisson(5)),
    "heat_1d": Textbook("solve u_t = u_xx/10, two modes that decay", heat),
    "wave_1d": Textbook("solve u_tt = 4 u_xx, a string that starts at rest", wave),
    "helmholtz_2d": Textbook("solve Δu + 4π² u = f on the unit square, solution sin 2πx sin 2πy", helmholtz),
    "advection_diffusion": Textbook("solve -Δu/20 + u_x = f, a layer where the flow leaves", advection_diffusion),
    "nonlinear_poisson": Textbook("solve -Δu + u³ = f on [-1, 1]²", nonlinear_poisson),
    "burgers": Textbook("solve u_t + u u_x = 0.01/π u_xx, a shock forms", burgers, (4, 24), SHARP),
    "burgers_inverse": Textbook("find the viscosity of Burgers' equation from values of u", burgers_inverse, (4, 24), SHARP),
    "lotka_volterra": Textbook("solve u' = u (1.5 - v), v' = v (u - 3): two functions of time", lotka_volterra, (4, 24), FEW),
    "allen_cahn": Textbook("solve u_t = 10⁻⁴ u_xx + 5 (u - u³) from x² cos πx", allen_cahn, (4, 24), SHARP),
}
