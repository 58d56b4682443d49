"""How long `sapm reproduce all` would take on this machine: every kind of run for a few seconds, then its pace.

python benchmarks/reproduction.py [experiment …]
"""

import sys

import numpy as np

import sapm
from sapm import reproduce
from sapm.experiments import EXPERIMENTS, PAPER

SECONDS = 6.0


def pace(cell: reproduce.Cell) -> float:
    """Seconds per iteration of all seeds, compilation apart."""
    seen = []

    def watch(state) -> bool:
        seen.append((state.iteration, state.seconds))
        return len(seen) > 4 and state.seconds - seen[2][1] > SECONDS

    sapm.solve(EXPERIMENTS[cell.experiment].problem(), **cell.settings, on_record=watch, progress=False)
    (first, began), (last, ended) = seen[len(seen) // 2], seen[-1]  # early records are close together and cost more
    return (ended - began) / (last - first)


def main(names: list[str]) -> None:
    whole = 0.0
    for name in names or list(PAPER):
        cells = reproduce.all_cells(reproduce.plan([name], reproduce.MODELS, None, False))
        known: dict[tuple, float] = {}  # variants of a model differ in the start or the rate, not in the pace
        for cell in cells:
            key = (cell.size, cell.model)
            if key not in known:
                known[key] = pace(cell)
                print(f"{cell}: {1e3 * known[key]:.2f} ms an iteration of {reproduce.SEEDS} seeds", flush=True)
        hours = np.array([known[cell.size, cell.model] * cell.settings["max_iter"] / 3600 for cell in cells])
        whole += hours.sum()
        print(f"{name}: {len(cells)} runs, {hours.sum():.1f} hours", flush=True)
    print(f"in all {whole:.1f} hours")


if __name__ == "__main__":
    main(sys.argv[1:])
