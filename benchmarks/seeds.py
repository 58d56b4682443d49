"""Train a thousand seeds with and without dropping the worst ones: time, memory and success.

python benchmarks/seeds.py [alternating|auto] [seeds] [survivors] [max_iter]
"""

import itertools
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np
from scipy.stats import spearmanr

import sapm
from sapm.catalogue import find


def measure(
    file: str, method: str, seeds: int, survivors: int | None, max_iter: int | None
) -> None:
    began = time.perf_counter()
    result = sapm.solve(
        find("function_1d").problem(), 10, 10, "relu", points=100, method=method, seeds=seeds,
        max_iter=max_iter,
        options={"survivors": survivors}, progress=False,
    )  # fmt: skip
    solved = time.perf_counter()
    cpu = time.process_time()
    rows = result.table
    tabled = time.perf_counter()
    best = rows[result.run.best]
    run = result.run
    steps = int(run.history["iteration"].max(1).sum())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{method}, {seeds} seeds, survivors={survivors}: {solved - began:.0f} s, {cpu:.0f} s of "
        "CPU time"
    )
    print(
        f"  {steps} steps in all, peak memory {memory:.2f} GB, the table in {tabled - solved:.1f} s"
    )
    print(
        f"  best: seed {best['seed']}, loss {best['loss']:.3e}, true loss "
        f"{best['mean_squared_loss']:.3e}"
    )
    losses = np.sort(run.final("loss")[[status != "dropped" for status in run.status]])
    print(f"  the ten smallest final losses: {', '.join(f'{x:.2e}' for x in losses[:10])}")
    print(f"  {result.success()}")
    if survivors is None:
        np.save(file, run.final("loss"))
        at = run.history["iteration"].max(0)
        final = run.final("loss")
        steps = [2**j for j in range(2, 11) if 2**j < at[-1]]
        there = [run.history["loss"][:, np.searchsorted(at, k, side="right") - 1] for k in steps]
        said = ", ".join(
            f"{spearmanr(loss, final)[0]:.2f} at {k}" for k, loss in zip(steps, there, strict=True)
        )
        print(f"  rank correlation of the loss with that at the end: {said}", flush=True)
    else:
        print(
            f"  the best is number {np.sum(np.load(file) < best['loss']) + 1} of all seeds run to "
            "the end",
            flush=True,
        )


def main(given: list[str]) -> None:
    methods = given[:1] or ["alternating", "auto"]
    seeds, survivors, *more = [int(x) for x in (given[1:] + ["1000", "10"][len(given[1:]) :])]
    with tempfile.TemporaryDirectory() as folder:
        for method, k in itertools.product(
            methods, (None, survivors)
        ):  # in a process each: the peak memory is one run's
            one = ["--one", f"{folder}/{method}.npy", method, str(seeds), str(k), *map(str, more)]
            subprocess.run([sys.executable, __file__, *one], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        file, method, seeds, k, *more = sys.argv[2:]
        measure(
            file,
            method,
            int(seeds),
            None if k == "None" else int(k),
            int(more[0]) if more else None,
        )
    else:
        main(sys.argv[1:])
