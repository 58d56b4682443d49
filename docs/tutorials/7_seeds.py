"""
Many seeds
==========

One network tells little: another start may fail. A hundred of them, side by side in one call, give a rate of
success.
"""

import os

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sapm

seeds, steps = (8, 4) if os.environ.get("SAPM_QUICK") else (100, 200)

# %%
# All of them
# -----------
# The paper's first example with its deepest network: ten layers of ten ReLU units.

problem = sapm.Function(sapm.Box(x=(-1, 1)), lambda p: jnp.sin(p.x**2))
network = {"depth": 10, "width": 10, "activation": "relu", "points": 100, "max_iter": steps}
result = sapm.solve(problem, seeds=seeds, **network)

# %%
# ``success`` counts seeds whose loss falls below a tenth of what it was (the paper's rule), or a rule of yours, with
# Wilson's 95 % interval.

print(result.success())
print(result.success(below=1e-6))

# %%
# The best one
# ------------
# ``result.best`` is the seed with the smallest loss. Smallest loss is not smallest error between the points: look at
# both.

errors = np.array([row["test_error"] for row in result.table])
losses = np.array([row["mean_squared_loss"] for row in result.table])
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
left.hist(np.log10(losses), 30)
left.set(xlabel="log₁₀ of the true loss", ylabel="seeds")
right.loglog(losses, errors, ".", ms=4)
right.loglog(losses[result.run.best], errors[result.run.best], "C3o", label="result.best")
right.set(xlabel="true loss", ylabel="error between the points")
right.legend(loc="lower right")
plt.show()

# %%
# Fewer steps for hopeless ones
# -----------------------------
# With ``survivors`` half of the seeds are dropped again and again (successive halving). It finds a good seed with a
# fraction of the steps, but seldom the best one: for a long time the loss does not predict the final loss.

halved = sapm.solve(problem, seeds=seeds, options={"survivors": max(2, seeds // 20)}, **network)
for name, outcome in {"all": result, "halved": halved}.items():
    best = outcome.table[outcome.run.best]
    steps_taken = sum(row["iterations"] for row in outcome.table)
    print(
        f"{name}: {steps_taken} steps, best true loss {best['mean_squared_loss']:.1e} (seed {best['seed']})"
    )

# %%
# Try next
# --------
# * ``result.plot("loss")`` draws bands in place of 100 curves; ``result.report("seeds.html")`` has it on a page.
# * ``activation="tanh"``: how does the rate change?
# * ``method="alternating"``, the paper's own sweeps, with ``max_iter=2000``.
