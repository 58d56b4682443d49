"""A thousand seeds with and without dropping the hopeless ones: seconds, the best seed, peak memory, success rates.

python benchmarks/seeds.py [alternating|auto] [seeds] [survivors] [max_iter]
"""

import resource
import subprocess
import sys
import time

import numpy as np

import sapm
from sapm.experiments import find


def measure(method: str, seeds: int, survivors: int | None, max_iter: int | None) -> None:
    began = time.perf_counter()
    result = sapm.solve(
        find("function_1d").problem(), 10, 10, "relu", points=100, method=method, seeds=seeds, max_iter=max_iter,
        options={"survivors": survivors}, progress=False,
    )  # fmt: skip
    solved, cpu = time.perf_counter(), time.process_time()
    rows = result.table
    tabled = time.perf_counter()
    best, run = rows[result.run.best], result.run
    steps = int(run.history["iteration"].max(1).sum())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{method}, {seeds} seeds, survivors={survivors}: {solved - began:.0f} s, {cpu:.0f} s of CPU time")
    print(f"  {steps} steps in all, peak memory {memory:.2f} GB, the table in {tabled - solved:.1f} s")
    print(f"  best: seed {best['seed']}, loss {best['loss']:.3e}, true loss {best['mean_squared_loss']:.3e}")
    losses = np.sort(run.final("loss")[[status != "dropped" for status in run.status]])
    print(f"  the ten smallest final losses: {', '.join(f'{x:.2e}' for x in losses[:10])}")
    print(f"  {result.success()}", flush=True)


def main(given: list[str]) -> None:
    methods = given[:1] or ["alternating", "auto"]
    seeds, survivors, *more = [int(x) for x in (given[1:] + ["1000", "10"][len(given[1:]) :])]
    for method in methods:
        for k in (None, survivors):  # in a process each: the peak memory is one run's, and nothing is compiled before
            subprocess.run([sys.executable, __file__, "--one", method, str(seeds), str(k), *map(str, more)], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        method, seeds, k, *more = sys.argv[2:]
        measure(method, int(seeds), None if k == "None" else int(k), int(more[0]) if more else None)
    else:
        main(sys.argv[1:])
