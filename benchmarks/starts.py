"""Which start and polish suits regression: the table of docs/how-it-works.md. Seeds 100 and 101;
about six minutes on one core.

python benchmarks/starts.py
"""

import jax.numpy as jnp
import numpy as np

import sapm

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (1500, 5))
Y = np.c_[np.sin(X @ [1, 2, 0, 1, -1]) + X[:, 2] ** 2, np.exp(-(X[:, 0] ** 2)) * X[:, 3]]
line = sapm.Box(x=(-1, 1))
PROBLEMS = {
    "five inputs, two outputs": (
        sapm.Regression(X[:1000], Y[:1000], test=(X[1000:], Y[1000:])),
        1000,
    ),
    "sin x²": (sapm.Function(line, lambda p: jnp.sin(p.x**2)), 100),
    "tanh 10x + cos 3x": (
        sapm.Function(line, lambda p: jnp.tanh(10 * p.x) + jnp.cos(3 * p.x)),
        200,
    ),
}
SETTINGS = {
    "sweeps, U(-1, 1)": {},
    "sweeps, forward": {"start": "forward"},
    "20 sweeps, forward, L-BFGS": {
        "start": "forward",
        "init": "xavier",
        "options": {"polish_after": 20},
    },
    "20 sweeps, noise, L-BFGS": {
        "start": "noise",
        "init": "xavier",
        "options": {"polish_after": 20},
    },
}

for name, (problem, points) in PROBLEMS.items():
    for label, settings in SETTINGS.items():
        result = sapm.solve(
            problem,
            points=points,
            method="alternating",
            seeds=[100, 101],
            max_iter=5000,
            progress=False,
            **settings,
        )
        errors = ", ".join(f"{row['test_error']:.1e}" for row in result.table)
        print(
            f"{name:26} {label:28} {errors}   {result.history['seconds'].max():.0f} s", flush=True
        )
