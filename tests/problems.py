"""Problems stated through the public interface, small enough to solve in a second or two."""

import jax
import jax.numpy as jnp
import numpy as np

import sapm
from sapm.problem.domain import Coordinates
from sapm.problem.equation import Unknown


def wave(p):
    return jnp.exp(p.t) * jnp.sin(p.x)


def transport(**changes):
    """u_t - (t+x+1.5) u_x = f with the solution e^t sin x: the paper's 1-D case."""

    def residual(p, u):
        speed = p.t + p.x + 1.5
        return u.t - speed * u.x - (jnp.exp(p.t) * (jnp.sin(p.x) - speed * jnp.cos(p.x)))

    parts = {
        "domain": sapm.Box(t=(0, 1), x=(-1, 1)),
        "residual": residual,
        "conditions": [sapm.Initial(lambda p: jnp.sin(p.x)), sapm.Inflow(wave)],
        "exact": wave,
    }
    return sapm.PDE(**(parts | changes))


def bump(x, y):
    return jnp.exp(-2 * ((x - 0.3) ** 2 + y**2))


def turned(p):
    c = jnp.cos(p.t)
    s = jnp.sin(p.t)
    return bump(c * p.x + s * p.y, -s * p.x + c * p.y)


def rotation(exact=turned, sign=1.0):
    """c = (1, -y, x): a bump carried round."""
    return sapm.PDE(
        domain=sapm.Box(t=(0, 1), x=(-1, 1), y=(-1, 1)),
        residual=lambda p, u: sign * (u.t - p.y * u.x + p.x * u.y),
        conditions=[sapm.Initial(turned), sapm.Inflow(turned)],
        exact=exact,
    )


def curve(n=30):
    x = np.linspace(-1, 1, n)
    return sapm.Regression(x, np.sin(3 * x), test=(x[:-1] + 0.01, np.sin(3 * (x[:-1] + 0.01))))


SMALL = {
    "depth": 2,
    "width": 4,
    "points": 40,
    "boundary_points": 20,
    "test_points": 30,
    "seeds": 2,
    "progress": False,
}


def typed(residual, names, u, x):
    """The residual as it was typed, at each row of x, with derivatives of u by nested jax.grad."""

    def derivative(key):
        def f(row):
            return jnp.reshape(u(row), ())

        for name in key:

            def f(row, f=f, name=name):
                return jax.grad(f)(row)[names.index(name)]

        return f

    return jax.vmap(
        lambda row: residual(
            Coordinates(names, row), Unknown(names, lambda key: derivative(key)(row))
        )
    )(x)
