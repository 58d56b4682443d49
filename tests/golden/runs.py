"""Short runs of every method and engine, through the public interface alone.

`RUNS` maps a name to a function that trains and returns a `sapm.Result`. Their histories and the values of their best
networks were recorded before the code was rearranged (`recorded.json`); `test_golden.py` compares.

    python tests/golden/runs.py            # record again: only when a change of the numbers is intended and explained
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import numpy as np

import sapm

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
SMALL = {"points": 60, "boundary_points": 20, "test_points": 40, "seeds": 2, "progress": False}


def _wave():
    import jax.numpy as jnp

    return sapm.Function(sapm.Box(x=(-1, 1)), lambda p: jnp.sin(3 * p.x) + p.x**2)


def _transport():
    import jax.numpy as jnp

    return sapm.PDE(
        sapm.Box(t=(0, 1), x=(-1, 1)),
        lambda p, u: u.t - (p.t + p.x + 1.5) * u.x,
        [sapm.Initial(lambda p: jnp.sin(p.x)), sapm.Inflow(lambda p: jnp.sin(1 + 2.5 * p.t))],
    )


def _poisson():
    import jax.numpy as jnp

    pi = np.pi
    return sapm.PDE(
        sapm.Box(x=(0, 1), y=(0, 1)),
        lambda p, u: u.xx + u.yy + 2 * pi**2 * jnp.sin(pi * p.x) * jnp.sin(pi * p.y),
        [sapm.Dirichlet(0.0)],
    )


def _burgers():
    import jax.numpy as jnp

    return sapm.PDE(
        sapm.Box(t=(0, 1), x=(-1, 1)),
        lambda p, u: u.t + u.value * u.x - 0.05 * u.xx,
        [sapm.Initial(lambda p: -jnp.sin(np.pi * p.x)), sapm.Dirichlet(0.0)],
    )


def _growth():
    return sapm.PDE(
        sapm.Box(t=(0, 5)), lambda p, u: u.t - u.value * (1 - u.value), [sapm.Initial(0.1)]
    )


def _sweeps(problem, model, activation, **more):
    settings = {"depth": 5, "width": 6, "max_iter": 12} | SMALL | more
    settings |= {"model": model, "activation": activation}
    settings |= {"method": "alternating", "order": "down"}
    return sapm.solve(problem, **settings)


def _gauss_newton(problem, steps=8, model="sapm", **options):
    return sapm.solve(
        problem,
        4,
        8,
        "sin",
        model=model,
        method="gauss-newton",
        max_iter=steps,
        options=options,
        **SMALL,
    )


def _streamed():
    x = np.linspace(-1, 1, 70)[:, None]
    problem = sapm.Regression(x, np.sin(3 * x))
    with tempfile.TemporaryDirectory() as folder:
        return sapm.solve(
            problem,
            4,
            6,
            "tanh",
            method="alternating",
            max_iter=6,
            seeds=2,
            progress=False,
            order="down",
            options={"chunk": 30},
            out=Path(folder) / "run",
        )


def _resumed():
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        settings = SMALL | {"out": out}
        sapm.solve(
            _transport(),
            4,
            8,
            "sin",
            method="gauss-newton",
            max_iter=5,
            options={"lifted": 3},
            **settings,
        )
        return sapm.resume(out, max_iter=9, problem=_transport(), progress=False)


RUNS = {
    "alternating-sapm-value": lambda: _sweeps(_wave(), "sapm", "relu"),
    "alternating-pm-value": lambda: _sweeps(_wave(), "pm", "tanh"),
    "alternating-sapm-pde": lambda: _sweeps(_transport(), "sapm", "sin"),
    "alternating-pm-pde": lambda: _sweeps(_transport(), "pm", "sin"),
    "alternating-sapm-second-order": lambda: _sweeps(_poisson(), "sapm", "sin", seeds=1, depth=3),
    "alternating-chunks": _streamed,
    "gauss-newton-dual": lambda: _gauss_newton(_transport(), algebra="dual", lifted=0),
    "gauss-newton-primal": lambda: _gauss_newton(_poisson(), algebra="primal", lifted=0),
    "gauss-newton-free": lambda: _gauss_newton(_transport(), algebra="free", lifted=0, steps=5),
    "gauss-newton-lifted": lambda: _gauss_newton(_transport(), lifted=5),
    "gauss-newton-automatic": lambda: sapm.solve(_wave(), 4, 8, max_iter=20, **SMALL),
    "lbfgs-sapm": lambda: sapm.solve(_wave(), 4, 6, method="lbfgs", max_iter=12, **SMALL),
    "adam-ls": lambda: sapm.solve(
        _transport(), 4, 6, model="ls", method="adam", max_iter=12, **SMALL
    ),
    "gd-ls": lambda: sapm.solve(_wave(), 4, 6, model="ls", method="gd", max_iter=12, **SMALL),
    "redrawn-points": lambda: _gauss_newton(_burgers(), steps=10, lifted=0, resample=4),
    "stages": lambda: _gauss_newton(_growth(), steps=20, lifted=0, resample=3, stages=2),
    "resumed": _resumed,
}


def record(result: sapm.Result) -> dict:
    """What is compared of a run: its losses at every record, what became of each seed, and u at a few points."""
    domain = getattr(result.problem, "domain", None)
    x = np.linspace(-1, 1, 70)[::14, None] if domain is None else np.asarray(domain.points(5))
    history = result.history
    return {
        "iteration": np.asarray(history["iteration"]).tolist(),
        "loss": np.asarray(history["loss"]).tolist(),
        "mean_squared_loss": np.asarray(history["mean_squared_loss"]).tolist(),
        "status": [str(row["status"]) for row in result.table],
        "u": np.asarray(result.best(x)).ravel().tolist(),
    }


if __name__ == "__main__":
    recorded = {}
    for name, run in RUNS.items():
        began = time.perf_counter()
        recorded[name] = record(run())
        print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(run)}" for name, run in recorded.items())
    RECORDED.write_text(f"{{\n{lines}\n}}\n")
