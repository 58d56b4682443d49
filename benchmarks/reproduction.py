"""Estimate how long `sapm reproduce all` takes here, from a few seconds of every kind of run.

python benchmarks/reproduction.py [experiment …]
"""

import sys

import numpy as np

import sapm
from sapm.catalogue import CATALOGUE, PAPER
from sapm.studies import reproduce

SECONDS_PER_RUN = 6.0


def pace(cell: reproduce.Cell) -> float:
    """Seconds per iteration of all seeds, without compilation."""
    records = []

    def watch(state) -> bool:
        records.append((state.iteration, state.seconds))
        return len(records) > 4 and state.seconds - records[2][1] > SECONDS_PER_RUN

    sapm.solve(
        CATALOGUE[cell.experiment].problem(), **cell.settings, on_record=watch, progress=False
    )
    # early records are close together and cost more
    first, began = records[len(records) // 2]
    last, ended = records[-1]
    return (ended - began) / (last - first)


def main(names: list[str]) -> None:
    whole = 0.0
    for name in names or list(PAPER):
        cells = reproduce.all_cells(reproduce.plan([name], reproduce.MODELS, None, False))
        # variants of a model differ in the start or the rate, not in the pace
        paces: dict[tuple, float] = {}
        for cell in cells:
            key = (cell.size, cell.model)
            if key not in paces:
                paces[key] = pace(cell)
                print(
                    f"{cell}: {1e3 * paces[key]:.2f} ms an iteration of {reproduce.SEEDS} seeds",
                    flush=True,
                )
        hours = np.array(
            [paces[cell.size, cell.model] * cell.settings["max_iter"] / 3600 for cell in cells]
        )
        whole += hours.sum()
        print(f"{name}: {len(cells)} runs, {hours.sum():.1f} hours", flush=True)
    print(f"in all {whole:.1f} hours")


if __name__ == "__main__":
    main(sys.argv[1:])
