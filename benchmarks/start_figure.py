"""The figure of the start page: convection with speed 30, a plain physics-informed network beside sapm.solve. Some minutes.

python benchmarks/start_figure.py            # writes docs/figures/start.svg and prints what it shows

Time is that of the cores (process time), from the call on, compilation included: other work on the machine changes it little.
Each training is a process of its own; networks are kept at every record, and their errors computed when the training is over.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

SPEED, DEPTH, WIDTH = 30, 6, 30
PLAIN = {"activation": "tanh", "model": "ls", "method": "adam", "init": "xavier", "mu": 1.0, "options": {"scale": False}}
RUNS = {
    "a plain PINN, Adam": PLAIN | {"max_iter": 10**6},
    "sapm.solve(problem)": {"max_iter": 100},
}


def train(name: str, seed: int, seconds: float) -> dict:
    """Errors against seconds of the cores, and the last network on a grid."""
    began = time.process_time()
    import sapm
    from sapm.experiments import convection
    from sapm.result import relative_error

    problem, seen = convection(SPEED), []

    def watch(state):
        seen.append((time.process_time() - began, state.result().best))
        return seen[-1][0] > seconds

    sapm.solve(problem, DEPTH, WIDTH, seeds=[seed], progress=False, on_record=watch, **RUNS[name])
    x = problem.domain.points(4000, 5000)
    wanted = np.sin(x[:, 1] - SPEED * x[:, 0])
    t, s = np.meshgrid(np.linspace(0, 1, 161), np.linspace(0, 2 * math.pi, 161), indexing="ij")
    return {
        "seconds": [at for at, _ in seen],
        "error": [relative_error(u(x), wanted) for _, u in seen],
        "picture": seen[-1][1](t=t, x=s).tolist(),
    }


def draw(found: dict[str, list[dict]], path: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    from sapm.report import ACCENT, INK, SECOND

    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.3), layout="constrained", width_ratios=(1, 1, 1.35))
    for ax, colour, (name, runs) in zip(axes, (SECOND, ACCENT), found.items(), strict=False):
        last = runs[0]
        ax.imshow(
            np.array(last["picture"]).T,
            origin="lower",
            extent=(0, 1, 0, 2 * math.pi),
            aspect="auto",
            vmin=-1,
            vmax=1,
            cmap="RdBu_r",
        )
        ax.set(xlabel="t", ylabel="x", title=name)
        ax.title.set_color(colour)
        for run in runs:
            axes[2].loglog(run["seconds"], run["error"], color=colour, lw=1.4, label=name if run is last else None)
    axes[2].set(xlabel="seconds of CPU time, with compilation", ylabel="relative error of u")
    axes[2].set_title(f"$u_t + {SPEED}\\,u_x = 0$, error against time", color=INK)
    axes[2].legend(frameon=False, fontsize=9)
    axes[2].spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=120, help="of the cores, for each training")
    parser.add_argument("--out", default="docs/figures/start.svg")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SEED"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(train(given.one[0], int(given.one[1]), given.seconds)))
        return
    found = {name: [] for name in RUNS}
    for name in RUNS:
        for seed in range(given.seeds):
            command = [sys.executable, __file__, "--one", name, str(seed), "--seconds", str(given.seconds)]
            found[name].append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            last = found[name][-1]
            print(f"{name}, seed {seed}: error {last['error'][-1]:.1e} after {last['seconds'][-1]:.0f} s of CPU time", flush=True)
    draw(found, Path(given.out))


if __name__ == "__main__":
    main()
