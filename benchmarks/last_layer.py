"""Measure what an exact last layer, and balanced relu layers, would add to "auto".

    python benchmarks/last_layer.py

Seeds 100-104. The loss before and after the last layer is replaced by the least-squares solution
for it, and the loss of relu networks trained further (50 steps) from the same weights as they are
and with neighbouring layers scaled to equal norms."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

import sapm
from sapm.catalogue import CATALOGUE
from sapm.methods.linearise import linearise, rows_of
from sapm.numerics.layers import Dense
from sapm.objective.penalty import mean_square, start_point
from sapm.scopes import float64

SEEDS = range(100, 105)


@float64
def last_layer(result, i: int) -> tuple[float, float]:
    """The true loss with the trained last layer, and with the optimal one for the layers below."""
    method = result.plan.engine(result.samples)
    obj = replace(method.objective, model="ls")
    network = result.run.network(i)
    aux = start_point(jax.random.key(0), obj, network, "forward").aux
    parts = tuple(linearise(obj, k, network, u, 0.0) for k, u in enumerate(aux))
    rows, rho = rows_of(obj.terms, parts)
    tops = [stack.tail[-1] for stack in rows]
    inner = [top.g * top.z + jnp.einsum("rko,rki->ri", top.gt, top.zt) for top in tops]
    z = jnp.concatenate(
        [jnp.concatenate([z, top.g], axis=1) for z, top in zip(inner, tops, strict=True)]
    )
    step = jnp.linalg.lstsq(z, -jnp.concatenate(rho))[0]
    layer = network.stack[network.depth]
    new = Dense(layer.W + step[None, :-1], layer.b + step[-1:])
    better = replace(network, stack=network.stack.set(network.depth, new))
    return float(mean_square(network, obj.terms)), float(mean_square(better, obj.terms))


def balanced(weights):
    """The same relu network with rows of W_l and columns of W_{l+1} of equal norm, unit by unit."""
    weights = [(W.copy(), b.copy()) for W, b in weights]
    for l in range(len(weights) - 1):
        (W, b), (V, c) = weights[l], weights[l + 1]
        size = np.sqrt(np.sum(W**2, 1) + b**2)
        out = np.sqrt(np.sum(V**2, 0))
        scale = np.where((size > 0) & (out > 0), np.sqrt(out / np.maximum(size, 1e-300)), 1.0)
        weights[l], weights[l + 1] = (W * scale[:, None], b * scale), (V / scale, c)
    return weights


def main() -> None:
    for name, depth, width, activation, steps in (
        ("function_1d", 10, 10, "tanh", 60),
        ("function_1d", 10, 10, "relu", 60),
        ("transport_1d", 6, 10, "sin", 40),
    ):
        experiment = CATALOGUE[name]
        settings = {
            k: v for k, v in experiment.settings.items() if k not in ("max_iter", "activation")
        }
        problem = experiment.problem()
        result = sapm.solve(
            problem,
            depth,
            width,
            activation,
            **settings,
            seeds=SEEDS,
            max_iter=steps,
            progress=False,
        )
        ratios = [
            after / before for before, after in (last_layer(result, i) for i in range(len(SEEDS)))
        ]
        print(
            f"{name} {activation} ({depth},{width}), {steps} steps: loss after / before an exact "
            "last layer",
            end=" ",
        )
        print(" ".join(f"{r:.3f}" for r in ratios))
        if activation == "relu":
            more = settings | {"activation": "relu", "max_iter": 50, "progress": False}
            for label, change in (("as they are", lambda w: w), ("balanced", balanced)):
                found = [
                    sapm.refine(change(u.weights), problem, **more).result.table[0]
                    for u in result.seeds
                ]
                losses = np.array([row["mean_squared_loss"] for row in found])
                print(
                    f"  50 steps more from the weights {label}: loss median "
                    f"{np.median(losses):.1e}, worst {losses.max():.1e}"
                )


if __name__ == "__main__":
    main()
