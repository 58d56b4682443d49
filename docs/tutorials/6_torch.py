"""
Rescue a torch network
======================

The error of a network trained in PyTorch stays at a few per cent. ``sapm.refine`` takes the network as it is, trains it
further, and returns a torch network.
"""

import os

import matplotlib.pyplot as plt
import numpy as np

import sapm

try:
    import torch
except ImportError:
    torch = None
    print("PyTorch is not installed, so nothing below is run. Install it with: pip install torch")

epochs, steps = (20, 3) if os.environ.get("SAPM_QUICK") else (2000, 40)

# %%
# Trained by Adam
# ---------------
# The usual loop, in single precision.

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (400, 2))
y = np.sin(4 * X[:, 0]) * np.cos(3 * X[:, 1])
if torch is not None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # a network this small gains nothing from more
    layers = [
        torch.nn.Linear(2, 20),
        torch.nn.Tanh(),
        torch.nn.Linear(20, 20),
        torch.nn.Tanh(),
        torch.nn.Linear(20, 1),
    ]
    network = torch.nn.Sequential(*layers)
    adam, inputs, targets = (
        torch.optim.Adam(network.parameters(), 1e-3),
        torch.tensor(X).float(),
        torch.tensor(y).float(),
    )
    for _ in range(epochs):
        adam.zero_grad()
        loss = (network(inputs)[:, 0] - targets).square().mean()
        loss.backward()
        adam.step()
    print(f"Adam ends at a loss of {loss.item():.1e}")

# %%
# Refined
# -------
# The activation is recognised by comparing values. The network given is not changed; if the loss did not fall, it is
# the one returned.

if torch is not None:
    refined = sapm.refine(network, sapm.Regression(X, y), max_iter=steps)
    print(refined)
    print(type(refined.network), next(refined.network.parameters()).dtype)

# %%
# Between the points
# ------------------
# 2000 points that neither has seen.

if torch is not None:
    fresh = rng.uniform(-1, 1, (2000, 2))
    wanted = np.sin(4 * fresh[:, 0]) * np.cos(3 * fresh[:, 1])
    figure, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
    for name, net in {"by Adam": network, "refined": refined.network}.items():
        with torch.no_grad():
            error = net(torch.tensor(fresh).float())[:, 0].numpy() - wanted
        size = np.linalg.norm(error) / np.linalg.norm(wanted)
        ax.hist(
            np.log10(np.abs(error) + 1e-16),
            60,
            alpha=0.7,
            label=f"{name}: relative error {size:.1e}",
        )
    ax.margins(y=0.4)
    ax.set(xlabel="log₁₀ |error| at a point", ylabel="points")
    ax.legend(loc="upper left")
    plt.show()

# %%
# ``refined.result.best`` is the same network in double precision.
#
# Try next
# --------
# * A physics-informed network: ``sapm.refine(network, sapm.PDE(…))``; measured in :doc:`/other-tools`.
# * ``equinox.nn.MLP``, ``sklearn.neural_network.MLPRegressor``, or a list of (W, b) in place of torch.
# * ``sapm.Regression(X, y, validation=(X2, y2))`` for noisy data: the result is then no worse on these either.
