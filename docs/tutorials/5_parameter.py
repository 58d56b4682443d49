r"""
Find a parameter from measurements
==================================

How well does a rod conduct heat? :math:`u_t = k\, u_{xx}` with an unknown :math:`k`, and a few noisy temperatures.
"""

import os

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sapm

budget = (
    {"seeds": 1, "max_iter": 3, "points": 60}
    if os.environ.get("SAPM_QUICK")
    else {"seeds": 4, "max_iter": 40, "points": 300}
)

# %%
# The measurements
# ----------------
# Temperatures at thirty places and times, from the exact solution for :math:`k = 0.3` with noise of standard deviation
# 0.01. The solver is not told this k.

rng = np.random.default_rng(0)
where = rng.uniform([0.05, 0.1], [1.0, 0.9], (30, 2))  # (t, x)
truth = np.exp(-0.3 * np.pi**2 * where[:, 0]) * np.sin(np.pi * where[:, 1])
measured = truth + 0.01 * rng.normal(size=30)

# %%
# State it, solve it
# ------------------
# ``parameters`` names the unknown numbers and gives a first guess of each; the residual has them as ``p.k``.
# ``Observed`` holds the data; they are noisy, so they count for less than the equation: u should not follow the noise.

rod = sapm.PDE(
    sapm.Box(t=(0, 1), x=(0, 1)),
    lambda p, u: u.t - p.k * u.xx,
    [
        sapm.Initial(lambda p: jnp.sin(jnp.pi * p.x)),
        sapm.Dirichlet(lambda p: 0.0),
        sapm.Observed(where, measured, weight=0.1),
    ],
    parameters={"k": 1.0},
)
result = sapm.solve(rod, 3, 12, boundary_points=100, **budget)
print(result.best.parameters, "where the truth is 0.3")

# %%
# How sure is it?
# ---------------
# The spread of the seeds shows how much k depends on the *training*. The seeds agree here, so what remains is the noise of
# the *data*. The standard error says how much it moves k. It is estimated from the differences between measurements and u.

print("standard error:", result.standard_errors)
print("of every seed:", [f"{u.parameters['k']:.4f}" for u in result.seeds])

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
x = np.linspace(0, 1, 101)
for t in (0.0, 0.25, 0.5, 1.0):
    left.plot(x, result.best(t=t, x=x), label=f"t = {t:g}")
left.set(xlabel="x", title="temperature")
left.legend(loc="upper right")
right.axhline(0, color="0.7")
right.plot(where[:, 0], measured - result.best(where), "k.")
right.set(xlabel="t", title="measured - u")
plt.show()

# %%
# Try next
# --------
# * A first guess of 10, or of 0.01: what is found then?
# * Two unknowns: ``parameters={"k": 1.0, "s": 0.0}`` and ``u.t - p.k * u.xx - p.s``.
# * ``sapm.Observed(where, measured, weight=10)``: u follows the noise, and k is less certain. And with 0.01?
