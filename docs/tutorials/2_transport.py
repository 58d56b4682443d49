"""
Solve a transport equation
==========================

A PDE is stated as its residual. Where the answer is not known, the library still tells how wrong the network is.
"""

import os

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sapm

quick = {"depth": 3, "width": 8, "points": 100, "max_iter": 3}
budget = quick if os.environ.get("SAPM_QUICK") else {"depth": 6, "width": 10, "max_iter": 40}

# %%
# State it
# --------
# :math:`u_t = (t + x + 3/2)\, u_x` on :math:`[0, 1] \times [-1, 1]`. ``u.t`` and ``u.x`` are the derivatives of the
# network. The coefficients are read off the residual. They show where characteristics enter the domain, and ``Inflow``
# holds there. If the conditions do not determine the solution, there is a warning here, not after the training.

problem = sapm.PDE(
    domain=sapm.Box(t=(0, 1), x=(-1, 1)),
    residual=lambda p, u: u.t - (p.t + p.x + 1.5) * u.x,
    conditions=[
        sapm.Initial(lambda p: jnp.sin(p.x)),
        sapm.Inflow(lambda p: jnp.sin(1 + 2.5 * p.t)),
    ],
)

# %%
# Solve it
# --------
result = sapm.solve(problem, seeds=2, **budget)
print(result.summary())

# %%
# How wrong is it?
# ----------------
# The solution was not given. For a first-order linear equation, u at a point follows from the data where the
# characteristic through the point began. The last line of the summary is the error along such characteristics, through
# up to 200 points (:doc:`/certificate`). ``reference_error`` computes the same at as many points as you like, and
# integrates to 1e-11. (For other equations the last line is an estimate.)

print(f"true error at 200 points: {result.reference_error(200):.1e}")

# %%
# Look at it
# ----------
# The domain is seen from above; a line of one colour is a characteristic.

u = result.best
t, x = np.meshgrid(np.linspace(0, 1, 101), np.linspace(-1, 1, 101), indexing="ij")
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
drawn = left.pcolormesh(t, x, u(t=t, x=x), shading="gouraud")
figure.colorbar(drawn, ax=left)
left.set(xlabel="t", ylabel="x", title="u")
for i, seed in enumerate(result.run.seeds):
    right.semilogy(result.history["iteration"][i], result.history["loss"][i], label=f"seed {seed}")
right.set(xlabel="step of Gauss-Newton", title="loss")
right.legend(loc="upper right")
plt.show()

# %%
# Try next
# --------
# * Leave ``Inflow`` out: a warning says where u is not determined.
# * ``residual=lambda p, u: u.t - (p.t + p.x + 1.5) * u.x + u.value``: a reaction; ``reference_error`` knows it too.
# * ``exact=lambda p: …`` in ``sapm.PDE`` adds the error of every seed to the table, where you know the answer.
