"""The figure of the start page: convection with speed 30, a plain physics-informed network beside sapm.solve. Some minutes.

python benchmarks/start_figure.py            # writes docs/figures/start.svg, and what it shows into docs/index.md

Time is that of the cores (process time), from the call on, compilation included. Best on a machine that has nothing else to do.
Each training is a process of its own; networks are kept at every record, and their errors computed when the training is over.
What was measured is kept in --keep, one file per training, and not measured again.
"""

import argparse
import json
import math
import os
import re
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
    """Errors against seconds of the cores, and the network after half of them on a grid."""
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
        "picture": [u for at, u in seen if at <= seconds / 2][-1](t=t, x=s).round(4).tolist(),
    }


def error_at(run: dict, seconds: float) -> float:
    return [error for at, error in zip(run["seconds"], run["error"], strict=True) if at <= seconds][-1]


def draw(found: dict[str, list[dict]], half: float, path: Path) -> None:
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
        ax.set(xlabel="t", ylabel="x", title=f"{name}\nafter {half:.0f} s: error {error_at(last, half):.0e}")
        ax.title.set_color(colour)
        for run in runs:
            axes[2].loglog(run["seconds"], run["error"], color=colour, lw=1.4, label=name if run is last else None)
    axes[2].set(xlabel="seconds of CPU time, with compilation", ylabel="relative error of u")
    axes[2].set_title(f"$u_t + {SPEED}\\,u_x = 0$, error against time", color=INK)
    axes[2].legend(frameon=False, fontsize=9)
    axes[2].spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def caption(found: dict[str, list[dict]], seconds: float) -> str:
    """What the figure shows, in words."""
    parts = []
    for name, runs in found.items():
        errors = [" and ".join(f"{error_at(run, at):.0e}" for run in runs) for at in (seconds / 2, seconds)]
        parts.append(f"{name}: error {errors[0]} after {seconds / 2:.0f} seconds of the cores, {errors[1]} after {seconds:.0f}")
    count = len(next(iter(found.values())))
    return (
        f"$u_t + {SPEED}\\, u_x = 0$ with the wave given at t = 0 and where it enters, {count} seeds each, {DEPTH} layers of "
        f"{WIDTH} units, 1400 points, with compilation. {'; '.join(parts)}. (`python benchmarks/start_figure.py`; {cores()}.)\n"
    )


def cores() -> str:
    from sapm.store import environment

    return f"{os.cpu_count()} cores, JAX {environment()['packages']['jax']}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=80, help="of the cores, for each training; pictures are of half of it")
    parser.add_argument("--out", default="docs/figures/start.svg")
    parser.add_argument("--keep", default="runs/start")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SEED"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(train(given.one[0], int(given.one[1]), given.seconds)))
        return
    found, keep = {name: [] for name in RUNS}, Path(given.keep)
    keep.mkdir(parents=True, exist_ok=True)
    for k, name in enumerate(RUNS):
        for seed in range(given.seeds):
            file = keep / f"{k}-{seed}-{given.seconds:g}.json"
            if not file.exists():
                command = [sys.executable, __file__, "--one", name, str(seed), "--seconds", str(given.seconds)]
                file.write_text(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            found[name].append(json.loads(file.read_text()))
            last = found[name][-1]
            said = ", ".join(f"{error_at(last, at):.1e} after {at:.0f}" for at in (given.seconds / 2, last["seconds"][-1]))
            print(f"{name}, seed {seed}: errors {said} s of CPU time", flush=True)
    draw(found, given.seconds / 2, Path(given.out))
    page, text = Path("docs/index.md"), caption(found, given.seconds)
    page.write_text(re.sub("(<!-- start -->\n).*(<!-- end -->)", lambda m: m[1] + text + m[2], page.read_text(), flags=re.S))


if __name__ == "__main__":
    main()
