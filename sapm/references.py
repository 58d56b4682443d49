"""Numerical answers to problems that have no formula, exact enough to measure errors against."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

DIFFUSION, REACTION = 1e-4, 5.0  # of Allen and Cahn's equation as it is usually stated
DECAY = 2 * REACTION  # e^-10t: what is left of a small distance from -1
TINY = 1e-30  # a time that stands for 0
MODES, DEGREE = 768, 64  # to 3e-9 everywhere, 4e-12 in ℓ²


def corner(t: Any, x: Any, erfc: Any, math: Any = np) -> Any:
    """The part of the answer that is not smooth: (w - x²) e^-10t.

    The start has the slope -2 at x = 1, and the condition there is u_x = 0. So -x² takes the slope from the start, and w mends
    it: w_t = ε w_xx below x = 1, with w = 0 at t = 0 and w_x = 2 at x = 1. At -1 is its mirror image. `math` is NumPy, or JAX's.
    """
    width = math.sqrt(4 * DIFFUSION * math.maximum(t, TINY))
    z = (1 - math.abs(x)) / width
    w = 2 * width * (math.exp(-(z**2)) / np.pi**0.5 - z * erfc(z))
    return math.exp(-DECAY * t) * (w - x**2)


@cache
def allen_cahn_series(modes: int = MODES, degree: int = DEGREE) -> np.ndarray:
    """What `corner` leaves of the answer: coefficients of cos kπx T_j(2√t - 1), (modes + 1, degree + 1), within a second.

    The start is even, and so is the answer; reflected at x = 1 it has the period 2. Cosines in x, with the nonlinear part at as
    many points, leave ordinary equations, which an explicit method follows in √t, its steps short enough to be stable.
    """
    from numpy.polynomial.chebyshev import chebfit
    from scipy.fft import dct
    from scipy.integrate import solve_ivp
    from scipy.special import erfc

    x, squares = np.linspace(0, 1, modes + 1), (np.pi * np.arange(modes + 1)) ** 2
    ends = np.ones(modes + 1)
    ends[[0, -1]] = 0.5
    series = lambda values: ends * np.asarray(dct(values, type=1)) / modes  # noqa: E731

    def slope(root, c):
        bend = corner(root**2, x, erfc)
        u = dct(c / (2 * ends), type=1) + bend
        source = REACTION * (u - u**3) + DECAY * bend - 2 * DIFFUSION * np.exp(-DECAY * root**2)
        return 2 * root * (series(source) - DIFFUSION * squares * c)

    nodes = -np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1))
    start, step = series(x**2 * np.cos(np.pi * x) + x**2), 2 / (DIFFUSION * squares[-1])
    found = solve_ivp(slope, (0, 1), start, "DOP853", (nodes + 1) / 2, rtol=1e-12, atol=1e-14, max_step=step)
    return chebfit(nodes, found.y.T, degree).T


def allen_cahn(t: Any, x: Any) -> Any:
    """u at one point, in JAX: u_t = 10⁻⁴ u_xx + 5 (u - u³) on [0, 1] × [-1, 1] from x² cos πx, u_x = 0 at both ends."""
    import jax.numpy as jnp
    from jax import lax
    from jax.scipy.special import erfc

    c = allen_cahn_series()
    in_time = jnp.cos(jnp.pi * x * np.arange(len(c))) @ c
    y = 2 * jnp.sqrt(jnp.maximum(t, TINY)) - 1

    def clenshaw(state, coefficient):
        one, two = state
        return (coefficient + 2 * y * one - two, one), None

    zero = jnp.zeros_like(y)
    (one, two), _ = lax.scan(clenshaw, (zero, zero), in_time[:0:-1])
    return in_time[0] + y * one - two + corner(t, x, erfc, jnp)


# ---------------------------------------------------------------- Lotka and Volterra


@cache
def _prey_and_predators(degree: int = 200) -> np.ndarray:
    """Chebyshev coefficients (degree + 1, 2) on [0, 6], of a solution to 13 digits."""
    from scipy.integrate import solve_ivp

    flow = lambda t, y: [y[0] * (1.5 - y[1]), y[1] * (y[0] - 3)]  # noqa: E731
    t = 3 * (1 + np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1)))
    found = solve_ivp(flow, (0, 6), [4.0, 2.0], "DOP853", t_eval=np.sort(t), rtol=1e-13, atol=1e-13).y.T
    return np.polynomial.chebyshev.chebfit(np.sort(t) / 3 - 1, found, degree)


def lotka_volterra(t: Any) -> Any:
    """(u, v) at the time t."""
    import jax.numpy as jnp

    coefficients = _prey_and_predators()
    angle = jnp.arccos(jnp.clip(jnp.asarray(t) / 3 - 1, -1, 1))
    return jnp.cos(jnp.arange(len(coefficients)) * angle) @ coefficients
