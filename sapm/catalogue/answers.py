"""Reference solutions, computed numerically, of problems without a closed form."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

# ---------------------------------------------------------------- Allen and Cahn

# u_t = ε u_xx + 5 (u - u³), the usual form
DIFFUSION = 1e-4
REACTION = 5.0
DECAY = 2 * REACTION  # a small deviation from u = -1 decays like e^-10t
SMALLEST_TIME = 1e-30  # replaces t = 0, where √t has no derivative
# with these the error is at most 3e-9, and 4e-12 in ℓ²
COSINE_COUNT = 768
CHEBYSHEV_DEGREE = 64


def allen_cahn(t: jax.Array, x: jax.Array) -> jax.Array:
    """u(t, x) at one point, t in [0, 1] and x in [-1, 1]: the solution of u_t = 10⁻⁴ u_xx +
    5 (u - u³) from x² cos πx, with u_x = 0 at both ends.
    """
    series = allen_cahn_series()
    coefficients = jnp.cos(jnp.pi * x * np.arange(len(series))) @ series  # of T_j at this x
    y = 2 * jnp.sqrt(jnp.maximum(t, SMALLEST_TIME)) - 1

    def clenshaw(state, coefficient):
        last, second_last = state
        return (coefficient + 2 * y * last - second_last, last), None

    zero = jnp.zeros_like(y)
    (last, second_last), _ = jax.lax.scan(clenshaw, (zero, zero), coefficients[:0:-1])
    smooth = coefficients[0] + y * last - second_last
    return smooth + corner(t, x, jax.scipy.special.erfc, jnp)


def corner(t, x, erfc: Callable, math: ModuleType = np):
    """The part of the solution that is singular at t = 0, x = ±1: (w - x²) e^-10t.

    The initial value has the slope -2 at x = 1, but the boundary condition is u_x = 0. The term
    -x² carries that slope and w compensates it for t > 0: w_t = ε w_xx for x < 1, w = 0 at t = 0,
    w_x = 2 at x = 1. The end x = -1 is the mirror image.

    Parameters
    ----------
    t, x : arrays that broadcast.
    erfc : the complementary error function.
    math : the module of exp, sqrt, …: `numpy` or `jax.numpy`.
    """
    width = math.sqrt(4 * DIFFUSION * math.maximum(t, SMALLEST_TIME))
    z = (1 - math.abs(x)) / width
    w = 2 * width * (math.exp(-(z**2)) / np.pi**0.5 - z * erfc(z))
    return math.exp(-DECAY * t) * (w - x**2)


@cache
def allen_cahn_series(modes: int = COSINE_COUNT, degree: int = CHEBYSHEV_DEGREE) -> np.ndarray:
    """Factors of cos kπx T_j(2√t - 1) in u - `corner`, the smooth part: (modes + 1, degree + 1).

    Cosine collocation in x leaves ordinary differential equations, which an explicit Runge-Kutta
    method integrates in √t with stable steps. It takes less than a second.
    """
    from numpy.polynomial.chebyshev import chebfit
    from scipy.fft import dct
    from scipy.integrate import solve_ivp
    from scipy.special import erfc

    x = np.linspace(0, 1, modes + 1)
    squares = (np.pi * np.arange(modes + 1)) ** 2
    ends = np.ones(modes + 1)
    ends[[0, -1]] = 0.5

    def series(values):
        return ends * np.asarray(dct(values, type=1)) / modes

    def slope(root, c):
        singular = corner(root**2, x, erfc)
        u = dct(c / (2 * ends), type=1) + singular
        source = REACTION * (u - u**3) + DECAY * singular - 2 * DIFFUSION * np.exp(-DECAY * root**2)
        return 2 * root * (series(source) - DIFFUSION * squares * c)

    nodes = -np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1))
    start = series(x**2 * np.cos(np.pi * x) + x**2)
    step = 2 / (DIFFUSION * squares[-1])
    times = (nodes + 1) / 2
    path = solve_ivp(slope, (0, 1), start, "DOP853", times, rtol=1e-12, atol=1e-14, max_step=step)
    return chebfit(nodes, path.y.T, degree).T


# ---------------------------------------------------------------- Lotka and Volterra


def lotka_volterra(t: jax.Array) -> jax.Array:
    """(u, v) at the time t in [0, 6], (2,): u' = u (1.5 - v), v' = v (u - 3) from (4, 2)."""
    coefficients = _lotka_volterra_series()
    angle = jnp.arccos(jnp.clip(jnp.asarray(t) / 3 - 1, -1, 1))
    return jnp.cos(jnp.arange(len(coefficients)) * angle) @ coefficients


@cache
def _lotka_volterra_series(degree: int = 200) -> np.ndarray:
    """Chebyshev coefficients of the solution on [0, 6], (degree + 1, 2), to 13 digits."""
    from scipy.integrate import solve_ivp

    def flow(t, y):
        return [y[0] * (1.5 - y[1]), y[1] * (y[0] - 3)]

    t = 3 * (1 + np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1)))
    times = np.sort(t)
    path = solve_ivp(flow, (0, 6), [4.0, 2.0], "DOP853", t_eval=times, rtol=1e-13, atol=1e-13)
    return np.polynomial.chebyshev.chebfit(times / 3 - 1, path.y.T, degree)
