"""Small problems of every kind, for the trials: `sapm run trials/stated.py:curve …`."""

import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import sapm

DATA = "SAPM_TRIALS_DATA"  # the folder with X.npy and Y.npy of `on_disk`


def curve():
    x = np.linspace(-1, 1, 40)
    return sapm.Regression(x, np.sin(3 * x), test=(x[:-1] + 0.02, np.sin(3 * (x[:-1] + 0.02))))


def _surface(n: int):
    x = np.random.default_rng(0).uniform(-1, 1, (n, 2))
    return x, np.stack([np.sin(3 * x[:, 0]) * x[:, 1], np.cos(2 * x[:, 1])], 1)


def surface():
    return sapm.Regression(*_surface(60))


def validated():
    """Noisy data and clean ones to choose by."""
    x = np.linspace(-1, 1, 30)
    noise = 0.2 * np.random.default_rng(1).normal(size=30)
    return sapm.Regression(x, np.sin(3 * x) + noise, validation=(x + 0.03, np.sin(3 * (x + 0.03))))


def write_data(folder: Path, n: int = 400) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, a in zip("XY", _surface(n), strict=True):
        np.save(folder / f"{name}.npy", a)


def on_disk():
    return sapm.Regression(
        *(np.load(Path(os.environ[DATA]) / f"{name}.npy", mmap_mode="r") for name in "XY")
    )


def transport():
    """First order, linear: u_t - (t + x + 1.5) u_x = 0, beside a known inflow."""
    return sapm.PDE(
        sapm.Box(t=(0, 1), x=(-1, 1)),
        lambda p, u: u.t - (p.t + p.x + 1.5) * u.x,
        [sapm.Initial(lambda p: jnp.sin(p.x)), sapm.Inflow(lambda p: jnp.sin(1 + p.t))],
    )


def growth():
    """It begins near a state that it leaves slowly; a first attempt stays there."""
    return sapm.PDE(
        sapm.Box(t=(0, 10)), lambda p, u: u.t - u.value * (1 - u.value), [sapm.Initial(0.01)]
    )


def reaction():
    """First order with u itself."""
    return sapm.PDE(
        sapm.Box(t=(0, 1), x=(-1, 1)),
        lambda p, u: u.t + u.x + u.value,
        [
            sapm.Initial(lambda p: jnp.cos(p.x)),
            sapm.Inflow(lambda p: jnp.exp(-p.t) * jnp.cos(1 + p.t)),
        ],
    )


def heat():
    """Second order, linear."""
    return sapm.PDE(
        sapm.Box(t=(0, 1), x=(0, 1)),
        lambda p, u: u.t - 0.1 * u.xx,
        [sapm.Initial(lambda p: jnp.sin(jnp.pi * p.x)), sapm.Dirichlet(lambda p: 0.0)],
        exact=lambda p: jnp.exp(-0.1 * jnp.pi**2 * p.t) * jnp.sin(jnp.pi * p.x),
    )


def burgers():
    """Second order, nonlinear, with a steep layer: points are drawn anew."""
    return sapm.PDE(
        sapm.Box(t=(0, 1), x=(-1, 1)),
        lambda p, u: u.t + u.value * u.x - 0.03 * u.xx,
        [sapm.Initial(lambda p: -jnp.sin(jnp.pi * p.x)), sapm.Dirichlet(lambda p: 0.0)],
    )


def inverse():
    """A number to find beside u."""
    return sapm.PDE(
        sapm.Box(t=(0, 1), x=(0, 1)),
        lambda p, u: u.t - p.k * u.xx,
        [
            sapm.Initial(lambda p: jnp.sin(jnp.pi * p.x)),
            sapm.Dirichlet(lambda p: 0.0),
            sapm.Observed([[0.5, 0.5]], [0.2276]),
        ],
        parameters={"k": 1.0},
    )


def oscillator():
    """Two functions."""
    return sapm.PDE(
        sapm.Box(t=(0, 3)),
        lambda p, u, v: (u.t - v.value, v.t + u.value),
        [sapm.Initial(lambda p: 1.0, of="u"), sapm.Initial(lambda p: 0.0, of="v")],
    )
