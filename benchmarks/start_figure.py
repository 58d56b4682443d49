"""Draw docs/figures/start.svg: errors of sapm.solve and DeepXDE against seconds.

sapm bench wave_1d poisson_2d poisson_5d burgers --methods auto,deepxde --out bench    # half an
hour on two cores
python benchmarks/start_figure.py bench       # takes their traces into
benchmarks/results/start.json, and draws
python benchmarks/start_figure.py             # draws what is there
"""

import json
import sys
from pathlib import Path

import matplotlib
import numpy as np

from sapm.results.page import ACCENT, BOUND_COLOUR, INK

matplotlib.use("agg")
import matplotlib.pyplot as plt

KEPT = Path("benchmarks/results/start.json")
FIGURE = Path("docs/figures/start.svg")
CASES = {
    "wave_1d-sin-4x32": "a wave, $u_{tt} = 4u_{xx}$",
    "poisson_2d-sin-4x32": "Poisson, $-\\Delta u = f$",
    "poisson_5d-sin-4x32": "Poisson in 5 dimensions",
    "burgers-tanh-4x24": "Burgers, with a shock",
}
METHODS = {
    "deepxde": ("DeepXDE: Adam, then L-BFGS", BOUND_COLOUR),
    "auto": ("sapm.solve(problem)", ACCENT),
}


def collect(folder: Path) -> None:
    """(seconds, error) of three seeds, and the seconds of compilation, from a folder that `sapm
    bench` has filled.
    """
    found = {}
    for case in CASES:
        for method in METHODS:
            cells = [
                json.loads((folder / "cells" / f"{case}.B.{method}.{seed}.json").read_text())
                for seed in range(3)
            ]
            traces = [[row[:2] for row in cell["trace"]] for cell in cells]
            found[f"{case} {method}"] = {
                "compile_seconds": max(cell["compile_seconds"] for cell in cells),
                "traces": traces,
            }
    KEPT.write_text(json.dumps(found) + "\n")


def draw() -> None:
    found = json.loads(KEPT.read_text())
    figure, axes = plt.subplots(1, len(CASES), figsize=(11, 2.9), sharey=True, layout="constrained")
    for ax, (case, title) in zip(axes, CASES.items(), strict=True):
        for method, (label, colour) in METHODS.items():
            for trace in found[f"{case} {method}"]["traces"]:
                ax.semilogy(*np.array(trace).T, color=colour, lw=1.3)
            ax.plot([], [], color=colour, label=label)
            ends = [trace[-1][1] for trace in found[f"{case} {method}"]["traces"]]
            print(
                f"{case} {method}: errors of the seeds at the end "
                f"{', '.join(f'{error:.1e}' for error in ends)}"
            )
        ax.set_title(title, fontsize=10, color=INK)
        ax.set_xlabel("seconds of training")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("relative error of u")
    axes[0].legend(frameon=False, fontsize=8, loc="lower left")
    figure.savefig(FIGURE, metadata={"Date": None})


if __name__ == "__main__":
    if sys.argv[1:]:
        collect(Path(sys.argv[1]))
    draw()
