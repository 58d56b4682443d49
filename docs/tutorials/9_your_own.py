r"""
Your own operator, activation and points
========================================

A residual is any Python function of u and its derivatives of any order, so an operator is one too. An activation is any
elementwise JAX function. Points may be an array. These three are shown here, and all of them work with ``sapm.solve``.

Three more parts are protocols, that is, classes to inherit from:

* ``sapm.Loss``: a convex loss other than the square, for ``sapm.Regression(X, Y, loss=…)``. The
  example in tests/dropins/test_loss.py is softmax cross-entropy.
* ``sapm.Operator``: what a term computes from the network and its derivatives, for data that are
  not stated as a PDE. See tests/dropins/test_operator.py.
* ``sapm.Layer``: a layer that is not dense. tests/dropins/test_layers.py has a convolution and a
  residual layer. ``sapm.solve`` makes dense layers only; a network of other layers is built by ``Network.chain`` and
  trained by an engine, as the test does.

Derivatives are carried through the network as jets of order K, as high as the equation asks for;
tests/dropins/test_third_order.py has an equation of third order.
"""

import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import sapm

quick = {"depth": 3, "width": 8, "max_iter": 3}
budget = quick if os.environ.get("SAPM_QUICK") else {"depth": 4, "width": 20, "max_iter": 40}

# %%
# An operator of your own
# -----------------------
# :math:`\mathrm{div}(k \nabla u) = k \Delta u + \nabla k \cdot \nabla u` in any number of coordinates: ``u.d("x",
# "x")`` is a second derivative by name, and the gradient of the coefficient is left to JAX.


def div_grad(k, names):
    """An operator: takes a point and u there, gives a number."""

    def operator(p, u):
        x = jnp.stack([getattr(p, name) for name in names])
        slopes = jax.grad(k)(x)
        return sum(k(x) * u.d(name, name) + slopes[i] * u.d(name) for i, name in enumerate(names))

    return operator


def conductivity(x):
    return 1 + 0.8 * jnp.sin(2 * jnp.pi * x[0]) * jnp.cos(jnp.pi * x[1])


diffusion = div_grad(conductivity, ("x", "y"))

# %%
# Used in two residuals
# ---------------------
# A steady equation with a nonlinear source, and a linear equation in time. The operator is an ordinary Python function and
# needs no registration. The second equation is only stated here; it is solved like the first.

square, walls = sapm.Box(x=(0, 1), y=(0, 1)), sapm.Dirichlet(lambda p: 0.0)
steady = sapm.PDE(square, lambda p, u: diffusion(p, u) + 10.0 / (1 + u.value**2), [walls])

heat = sapm.PDE(
    sapm.Box(t=(0, 1)) * square,
    lambda p, u: u.t - diffusion(p, u),
    [sapm.Initial(lambda p: jnp.sin(jnp.pi * p.x) * jnp.sin(jnp.pi * p.y)), walls],
)

# %%
# An activation of your own
# -------------------------
# A plain function is enough to train: ``activation=jnp.arctan``. The theorems behind the certificate need constants of it
# as well, so a ``sapm.Activation`` has them: for arctan :math:`|\sigma'| \le 1`, and :math:`\sigma`, :math:`\sigma'` and
# :math:`\sigma''` have the Lipschitz constants 1, :math:`3\sqrt3/8` and 2.

arctan = sapm.Activation(
    "arctan",
    pair=lambda x: (jnp.arctan(x), 1 / (1 + x**2)),  # σ and σ'
    curve=lambda x, s, ds: -2 * x * ds**2,  # σ''
    lipschitz=1.0,
    slope=1.0,
    slope_lipschitz=3 * 3**0.5 / 8,
    curve_lipschitz=2.0,
)
k = sapm.Function(square, lambda p: conductivity(p.vector))
print(
    sapm.solve(k, 3, 8, arctan, method="alternating", points=100, seeds=1, max_iter=20).certificate
)

# %%
# Points of your own
# ------------------
# An array in place of a number: here a grid that is finer towards the walls. Points that you give stay where they are.

side = 0.5 - 0.5 * np.cos(np.linspace(0, np.pi, 22)[1:-1])
grid = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)

result = sapm.solve(steady, activation=arctan, points=grid, seeds=1, **budget)
print(
    f"residual at 1000 other points: {result.table[0]['test_residual']:.1e}, where the source is up to 10"
)

# %%
fine = np.linspace(0, 1, 81)
x, y = np.meshgrid(fine, fine, indexing="ij")
figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
pictures = {"conductivity k": conductivity((x, y)), "u": result.best(x=x, y=y)}
for ax, (name, values) in zip(axes, pictures.items(), strict=True):
    figure.colorbar(ax.pcolormesh(x, y, values, shading="gouraud"), ax=ax)
    ax.set(xlabel="x", title=name)
axes[0].plot(*grid.T, "k.", ms=2)
axes[0].set_ylabel("y")
plt.show()

# %%
# Try next
# --------
# * ``sapm.solve(heat)``: the same operator, in time.
# * ``sapm.Dirichlet(lambda p: 0.0, hard=True)``: the walls hold exactly. ``features=sapm.Fourier(16)`` in ``sapm.PDE``:
#   sines of random directions in addition to the coordinates, for solutions with much detail.
# * A derivative of third order: ``lambda p, u: u.t + 6 * u.value * u.x + u.xxx``.
# * A loss, an operator, a layer, a condition, a method or an error estimator of your own: tests/dropins has one of each.
