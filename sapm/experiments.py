"""The built-in problems, each stated once: the paper's four cases with the paper's settings, then ours, then textbooks'."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from sapm import textbook
from sapm.names import brief, nearest


def _sin_square():
    import jax.numpy as jnp

    from sapm.domain import Box
    from sapm.regression import Function

    return Function(Box(x=(-1, 1)), lambda p: jnp.sin(p.x**2))


def _ten_dimensions():
    import jax.numpy as jnp

    from sapm.domain import Ball
    from sapm.regression import Function

    return Function(Ball(10), lambda p: 1 / (2 * 10**0.5 + jnp.sum(p.vector)))


def _transport(dimension: int):
    """u_t - v·∇u = f on (0, 1] × [-1, 1]^d with a known solution; data on t = 0 and where x_i = 1 (inflow)."""
    import jax
    import jax.numpy as jnp

    from sapm.conditions import Inflow, Initial
    from sapm.domain import Box
    from sapm.problem import PDE

    names = ["x"] if dimension == 1 else [f"x{i}" for i in range(1, dimension + 1)]
    if dimension == 1:
        speed = lambda t, x: t + x + 1.5  # noqa: E731
        value = lambda t, x: jnp.exp(t) * jnp.sin(x[0])  # noqa: E731
    else:
        speed = lambda t, x: x + 2.0  # noqa: E731
        value = lambda t, x: jnp.sum((t + x) * jnp.sin(x))  # noqa: E731

    def exact(p):
        return value(p.t, p.vector[1:])

    def residual(p, u):
        t, x = p.t, p.vector[1:]
        v = speed(t, x)
        f = jax.grad(value, 0)(t, x) - jnp.dot(v, jax.grad(value, 1)(t, x))
        return u.t - sum(v[i] * u.d(name) for i, name in enumerate(names)) - f

    domain = Box(t=(0, 1), **dict.fromkeys(names, (-1, 1)))
    return PDE(domain, residual, [Initial(exact), Inflow(exact)], exact)


def convection(beta: float):
    """u_t + β u_x = 0 on [0, 1] × [0, 2π], u = sin(x - βt): a wave that crosses the domain β/2π times."""
    import math

    import jax.numpy as jnp

    from sapm.conditions import Inflow, Initial
    from sapm.domain import Box
    from sapm.problem import PDE

    def exact(p):
        return jnp.sin(p.x - beta * p.t)

    domain = Box(t=(0, 1), x=(0, 2 * math.pi))
    return PDE(domain, lambda p, u: u.t + beta * u.x, [Initial(exact), Inflow(exact)], exact)


@dataclass(frozen=True)
class Experiment:
    """A problem with the settings it is usually solved with; `settings` are those of `sapm.solve`."""

    name: str
    about: str
    make: Callable[[], Any]
    sizes: tuple[tuple[int, int], ...]
    settings: dict = field(default_factory=dict)
    assumed: str = ""
    kind: str = "pde"
    in_paper: bool = True

    def problem(self):
        return self.make()


HALTON = "Halton points without scrambling; test points are the next of the sequence"
_TRANSPORT = (
    f"T = 1, μ = 1, conditions at t = 0 and on the inflow faces x_i = 1, half of the boundary points each; {HALTON}. "
    "The paper states none of these, nor the number of test points (ours: 10⁴)."
)
EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment(
            "function_1d",
            "learn sin(x²) on [-1, 1] from 100 points",
            _sin_square,
            ((6, 10), (8, 10), (10, 10), (6, 20), (6, 50)),
            {"activation": "relu", "points": 100, "test_points": 1000, "max_iter": 50_000},
            f"{HALTON}, from index 0.",
            "regression",
        ),
        Experiment(
            "function_10d",
            "learn 1/(2√10 + Σ x_i) in the ten-dimensional unit ball from 10⁴ points",
            _ten_dimensions,
            ((6, 10), (8, 10), (10, 10)),
            {"activation": "relu", "points": 10_000, "test_points": 10_000, "max_iter": 50_000},
            f"5·10⁴ iterations and 10⁴ test points (the paper states neither here); {HALTON}, from index 1, mapped to the ball.",
            "regression",
        ),
        Experiment(
            "transport_1d",
            "solve u_t - (t + x + 3/2) u_x = f, solution e^t sin x",
            lambda: _transport(1),
            ((6, 10), (8, 20), (10, 50)),
            {"activation": "sin", "points": 1000, "boundary_points": 400, "test_points": 10_000, "max_iter": 1000},
            _TRANSPORT,
        ),
        Experiment(
            "transport_3d",
            "solve u_t - Σ (x_i + 2) u_{x_i} = f in three dimensions, solution Σ (t + x_i) sin x_i",
            lambda: _transport(3),
            ((6, 40), (8, 30), (8, 40)),
            {"activation": "sin", "points": 4000, "boundary_points": 1600, "test_points": 10_000, "max_iter": 1000},
            _TRANSPORT,
        ),
        Experiment(
            "convection",
            "solve u_t + 30 u_x = 0 on [0, 1] × [0, 2π], solution sin(x - 30 t): known to defeat plain physics-informed networks",
            lambda: convection(30.0),
            ((6, 30),),
            {"activation": "sin", "points": 1000, "boundary_points": 400, "test_points": 10_000, "max_iter": 100},
            "Inflow data at x = 0 in place of periodic conditions.",
            in_paper=False,
        ),
    )
}
PAPER = tuple(name for name, e in EXPERIMENTS.items() if e.in_paper)
_USUAL = {"activation": "sin", "points": 1000, "boundary_points": 400, "test_points": 10_000, "max_iter": 100}
for _name, _t in textbook.PROBLEMS.items():
    EXPERIMENTS[_name] = Experiment(_name, _t.about, _t.make, (_t.size,), _USUAL | _t.settings, f"{HALTON}.", in_paper=False)


def find(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise ValueError(
            f"{brief(name)} is not a built-in problem; there are {known}, or give file.py:problem." + nearest(name, EXPERIMENTS)
        )
    return EXPERIMENTS[name]


def paper() -> dict:
    """Every figure of the paper's tables."""
    return json.loads((files("sapm") / "data" / "paper.json").read_text(encoding="utf-8"))
