"""Train a physics-informed network by Adam in torch, then refine it: see docs/other-tools.md.

It takes a minute and needs torch.

python benchmarks/rescue.py
"""

import numpy as np
import torch

import sapm
from sapm.catalogue import CATALOGUE

torch.manual_seed(0)
problem = CATALOGUE["transport_1d"].problem()
interior, boundary = problem.samples().terms
x, c, f = (
    torch.tensor(np.asarray(a), dtype=torch.float32)
    for a in (interior.x.value, interior.linear.c, interior.y[:, 0])
)
edge, g = (
    torch.tensor(np.asarray(a), dtype=torch.float32) for a in (boundary.x.value, boundary.y[:, 0])
)
x.requires_grad_()

widths = (2, 20, 20, 20, 20, 1)
layers = [torch.nn.Linear(widths[0], widths[1])]
for i in range(1, len(widths) - 1):
    layers += [torch.nn.Tanh(), torch.nn.Linear(widths[i], widths[i + 1])]
network = torch.nn.Sequential(*layers)
adam = torch.optim.Adam(network.parameters(), 1e-3)
for _ in range(5000):
    adam.zero_grad()
    slopes = torch.autograd.grad(network(x).sum(), x, create_graph=True)[0]
    loss = ((c * slopes).sum(1) - f).square().mean() + (network(edge)[:, 0] - g).square().mean()
    loss.backward()
    adam.step()

refined = sapm.refine(network, problem, max_iter=30, progress=False)
print(refined, f"{refined.result.history['seconds'].max():.0f} s")
