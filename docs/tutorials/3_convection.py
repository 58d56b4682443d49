r"""
Convection, where plain PINNs struggle
======================================

:math:`u_t + 30\, u_x = 0` from :math:`\sin x`: a wave that crosses the domain five times. With periodic conditions it is
a textbook case of a physics-informed network that trains and stays wrong; here the wave is given where it enters, which
is easier. Here are a plain network and ``sapm.solve``, on the same points with the same number of weights.
"""

import math
import os

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sapm

quick = os.environ.get("SAPM_QUICK")
size, steps = (
    ({"depth": 3, "width": 8, "points": 100}, (20, 3))
    if quick
    else ({"depth": 6, "width": 30}, (3000, 60))
)

# %%
# The problem
# -----------
# With ``exact`` the table has the true error of the solution.


def exact(p):
    return jnp.sin(p.x - 30 * p.t)


problem = sapm.PDE(
    sapm.Box(t=(0, 1), x=(0, 2 * math.pi)),
    lambda p, u: u.t + 30 * u.x,
    [sapm.Initial(exact), sapm.Inflow(exact)],
    exact,
)

# %%
# A plain PINN
# ------------
# The mean square of residual and conditions with weight 1, tanh, Xavier's start, Adam at 1e-3, inputs as they are.
# Nothing here is made worse than usual: it is what most codes do unless told otherwise.

plain = sapm.solve(
    problem,
    activation="tanh",
    model="ls",
    method="adam",
    init="xavier",
    mu=1.0,
    options={"scale": False},
    seeds=1,
    max_iter=steps[0],
    **size,
)

# %%
# The default
# -----------
# Gauss-Newton on the same loss, with inputs scaled to [-1, 1]. The weight :math:`\mu` of the conditions follows from a
# rule: it is the larger, the more the operator magnifies errors of u.

ours = sapm.solve(problem, seeds=1, max_iter=steps[1], **size)
for name, result in {"plain PINN": plain, "sapm.solve": ours}.items():
    row, seconds = result.table[0], result.history["seconds"].max()
    print(
        f"{name}: loss {row['mean_squared_loss']:.1e}, error {row['solution_error']:.1e}, {seconds:.0f} s with compilation"
    )

# %%
# A flat function satisfies the equation too; only the conditions say that there is a wave.

t, x = np.meshgrid(np.linspace(0, 1, 121), np.linspace(0, 2 * math.pi, 121), indexing="ij")
figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True, layout="constrained")
pictures = {
    "exact": np.sin(x - 30 * t),
    "plain PINN": plain.best(t=t, x=x),
    "sapm.solve": ours.best(t=t, x=x),
}
for ax, (name, values) in zip(axes, pictures.items(), strict=True):
    ax.pcolormesh(t, x, values, vmin=-1, vmax=1, cmap="RdBu_r", shading="gouraud")
    ax.set(xlabel="t", title=name)
axes[0].set_ylabel("x")
plt.show()

# %%
# Try next
# --------
# * ``mu=1.0`` in the second call: how much of the difference is due to the weight? (:doc:`/how-it-works` has the figures.)
# * Speed 50 in place of 30: here the worst of three seeds is still bad after 30 seconds (:doc:`/benchmarks`).
# * ``max_iter=20000`` for the plain network: with data where the wave enters, and in double precision, Adam finds the
#   wave in the end. How long does it take? ``sapm bench convection`` compares more methods in this way.
