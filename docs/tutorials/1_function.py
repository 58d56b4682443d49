"""
Fit a function
==============

A deep network learns a function from its values: state it, solve it, look at it.
"""

import os

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sapm

budget = (
    {"depth": 3, "width": 8, "seeds": 1, "max_iter": 3}
    if os.environ.get("SAPM_QUICK")
    else {"depth": 4, "seeds": 2}
)

# %%
# State it
# --------
# A domain has named coordinates. The function is written for one point ``p``; the library applies it to all of them.

problem = sapm.Function(sapm.Box(x=(-1, 1)), lambda p: jnp.sin(12 * p.x**2) / (1 + p.x**2))

# %%
# Solve it
# --------
# 150 values are all that the network sees: the first 150 Halton points of the interval. Every other setting has a
# default. There is no learning rate. Each seed starts from other random weights, and all of them are trained side by
# side.

result = sapm.solve(problem, points=150, **budget)
print(result.summary())

# %%
# The summary says for every seed the loss that was minimised, the *true* loss (the mean square of the network
# itself), and the *test error* at 1000 points that were not trained on. Below the table: what ``method="auto"`` chose
# and why, and the certificate that ties the two losses together (:doc:`/certificate`).
#
# Use it
# ------
# ``result.best`` is a function of the coordinates, with derivatives.

u = result.best
print(u(x=[0.0, 0.5, 1.0]), u.d("x")(x=0.5))

x = np.linspace(-1, 1, 1001)
exact = np.sin(12 * x**2) / (1 + x**2)
trained = problem.domain.points(150)[:, 0]
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
left.plot(x, exact, "k--", lw=1, label="exact")
left.plot(x, u(x=x), "C1", label="network")
left.plot(trained, u(x=trained), "k.", ms=3, label="training points")
left.legend(loc="lower left")
left.set(xlabel="x", title="the function")
right.plot(x, u(x=x) - exact, "C3")
right.set(xlabel="x", title="network - exact")
plt.show()

# %%
# Try next
# --------
# * ``activation="relu"``, or ``points=40``: how does the error between the points change? Does the loss show it?
# * Data in place of a function: ``sapm.Regression(X, Y)``; noisy data: ``sapm.SAPMRegressor().fit(X, y)``, which
#   holds a part out.
# * ``result.report("function.html")`` and ``result.save("function.sapm")`` keep all of it: :doc:`/interface`.
