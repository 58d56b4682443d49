"""The direction of a sweep: what the first sweeps do to the weights and to the loss.

PYTHONPATH=. python benchmarks/order.py

SAPM on transport_1d (6,10) from the paper's U(-1, 1), seed 0, by three kinds of sweeps: as printed,
from the first layer to the last, and as printed with the guard. Writes
benchmarks/results/order.json and docs/figures/order.svg.
"""

import json
from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

from sapm.catalogue import CATALOGUE
from sapm.methods.alternating import alternating, named_order, update
from sapm.methods.method import GUARD
from sapm.methods.window import prepare
from sapm.objective.penalty import objective, ridge_W, start_point, weigh
from sapm.results.page import ACCENT, BOUND_COLOUR, INK
from sapm.scopes import float64

HERE = Path(__file__).resolve().parent
DATA = HERE / "results" / "order.json"
FIGURE = HERE.parent / "docs" / "figures" / "order.svg"
DEPTH = 6
WIDTH = 10
SWEEPS = 200
KINDS = {  # title: (order, guard)
    "as printed: down": ("down", 0.0),
    "up": ("up", 0.0),
    f"down, guard {GUARD:g}": ("down", GUARD),
}


@float64
def measure(order_name: str, guard: float) -> dict[str, list]:
    """The squared norms s_1 … s_L, the loss and the ridge λ_L before and after every sweep."""
    entry = CATALOGUE["transport_1d"]
    samples = entry.problem().samples(1000, 400, 0, 1.0)
    obj = objective(samples.terms, DEPTH)
    engine = alternating(obj, (2, *[WIDTH] * (DEPTH - 1), 1), "sin", start="uniform", loop=False)
    _, k_start = jax.random.split(jax.random.fold_in(jax.random.key(0), 0))
    network = engine.network(engine.init(jax.random.fold_in(jax.random.key(0), 0))).unstacked()
    obj = engine.objective
    order = named_order(obj, order_name)
    work = prepare(obj, start_point(k_start, obj, network, "uniform"))
    updates = {
        pair: jax.jit(lambda work, b=pair[0], l=pair[1]: update(obj, work, l, b, guard=guard))
        for pair in order
    }
    norms = [np.asarray(work.norms.s).tolist()]
    losses = [float(weigh(obj, work.norms))]
    ridges = [float(ridge_W(obj, work.norms, DEPTH))]
    for _ in range(SWEEPS):
        for pair in order:
            work = updates[pair](work)
        norms.append(np.asarray(work.norms.s).tolist())
        losses.append(float(weigh(obj, work.norms)))
        ridges.append(float(ridge_W(obj, work.norms, DEPTH)))
    return {"norms": norms, "loss": losses, "ridge": ridges}


def draw(found: dict[str, dict[str, list]]) -> Figure:
    """The squared norm of every layer before and after the first sweep; the product of all of them
    and the loss against sweeps.
    """
    figure = Figure(figsize=(9.6, 3.4), layout="constrained", dpi=110)
    left, middle, right = figure.subplots(1, 3)
    colours = dict(zip(found, (ACCENT, BOUND_COLOUR, INK), strict=True))
    for title, run in found.items():
        style = {"color": colours[title], "lw": 1.6, "label": title}
        middle.plot(np.prod(np.maximum(run["norms"], 1e-300), axis=1)[:51], **style)
        right.plot(run["loss"], **style)
        left.plot(range(1, DEPTH + 1), run["norms"][1], marker="o", ms=4, **style)
    start = next(iter(found.values()))["norms"][0]
    left.plot(range(1, DEPTH + 1), start, color="0.6", ls="--", lw=1.2, label="start")
    left.set_title("‖W_l‖² after the first sweep", fontsize=10)
    left.set_xlabel("layer l")
    middle.set_title("Π ‖W_l‖² (weight of the lowest defects)", fontsize=10)
    middle.set_xlabel("sweep")
    right.set_title("minimised loss", fontsize=10)
    right.set_xlabel("sweep")
    for ax in (left, middle, right):
        ax.set_yscale("log")
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
    left.legend(frameon=False, fontsize=8)
    return figure


def main() -> None:
    found = {title: measure(*kind) for title, kind in KINDS.items()}
    DATA.write_text(json.dumps(found) + "\n")
    figure = draw(found)
    figure.savefig(FIGURE, metadata={"Date": None})
    for title, run in found.items():
        print(title, "s after the first sweep:", [f"{s:.1e}" for s in run["norms"][1]], end=" ")
        print(f"ridge of W_L at the start {run['ridge'][0]:.1e}, loss {run['loss'][-1]:.1e}")


if __name__ == "__main__":
    main()
