r"""
Burgers' equation: nonlinear, with a shock
==========================================

:math:`u_t + u\, u_x = \nu u_{xx}` steepens a sine until viscosity stops it. The residual is typed as it stands,
points go where they are needed, and the error is estimated without knowing the answer.
"""

import os

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sapm

quick = {"depth": 3, "width": 8, "points": 100, "max_iter": 3, "boundary_points": 40}
budget = (
    quick
    if os.environ.get("SAPM_QUICK")
    else {"depth": 4, "width": 20, "points": 1000, "max_iter": 45}
)

# %%
# State it
# --------
# ``u.value`` is u itself. The library notices that the equation is not linear, and takes tanh as the activation.

nu = 0.02
problem = sapm.PDE(
    sapm.Box(t=(0, 1), x=(-1, 1)),
    lambda p, u: u.t + u.value * u.x - nu * u.xx,
    [sapm.Initial(lambda p: -jnp.sin(jnp.pi * p.x)), sapm.Dirichlet(lambda p: 0.0)],
)
result = sapm.solve(problem, seeds=1, **budget)
print(result.summary())

# %%
# Every 15 steps the residual is measured at points that were not trained on. If it is much larger there, the training
# points are replaced, half of them by points where it is large. So the loss may jump up. The residual at held-out
# points, in the table, is the number to trust.
#
# Is it right?
# ------------
# The estimate in the summary (``result.error_estimate()``) solves the linearised equation of the error, at other points.
# Burgers' equation has a known solution (Cole and Hopf), so the estimate can be checked here.


def cole_hopf(t, x):
    """The mean of -sin π(x - η) under the weight exp(-η²/4νt - cos π(x - η)/2πν)."""
    z = np.linspace(-16, 16, 801)
    y = x[..., None] - z * np.sqrt(4 * nu * t)
    power = -(z**2) - np.cos(np.pi * y) / (2 * np.pi * nu)
    weight = np.exp(power - power.max(-1, keepdims=True))
    return -(weight * np.sin(np.pi * y)).sum(-1) / weight.sum(-1)


x, times = np.linspace(-1, 1, 401), (0.25, 0.5, 1.0)
computed, exact = (
    np.array([f(t, x) for t in times]) for f in (lambda t, x: result.best(t=t, x=x), cole_hopf)
)
print(f"true error at three times: {np.linalg.norm(computed - exact) / np.linalg.norm(exact):.1e}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for t, values, solution in zip(times, computed, exact, strict=True):
    left.plot(x, values, label=f"t = {t:g}")
    left.plot(x, solution, "k--", lw=0.8)
left.set(xlabel="x", title="network, and the solution (dashed)")
left.legend(loc="upper right")
right.semilogy(result.history["iteration"][0], result.history["loss"][0])
right.set(xlabel="step of Gauss-Newton", title="loss at the current points")
plt.show()

# %%
# Try next
# --------
# * ``nu = 0.01 / np.pi``, the value of the benchmark, with ``width=24, points=2000, max_iter=300``: this takes
#   minutes. With ``options={"resample": 0}`` the loss then gets smaller, and the solution worse
#   (:doc:`/how-it-works` has figures for both).
# * ``sapm.Initial(…, hard=True)``: the initial condition holds exactly.
