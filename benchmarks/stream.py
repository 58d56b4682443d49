"""Sweeps over more data than memory: seconds per sweep, anonymous memory at its highest, bytes read
and written.

    python benchmarks/stream.py [--n 1000000] [--chunk SAMPLES] [--sweeps 3] [--seeds 1] [--folder
    FOLDER] [--growth]

Ten inputs, one output, network (6, 10), tanh, SAPM; X and Y are memory maps in a temporary folder
(or under FOLDER), and so are the auxiliary variables; all of it is removed at the end. Anonymous
memory is what /proc/self/smaps_rollup calls so (mapped pages of files are not in it), looked at
every 20 ms. Bytes are those of read and write calls (/proc/self/io: rchar, wchar), to which a sweep
adds X twice and Y twice, which are mapped. `--growth`: 10⁵, 10⁶ and so on up to n, and the exponent
of the time that the cores take.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import argparse
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import sapm

INPUTS = 10
DEPTH = 6
WIDTH = 10


def anonymous() -> int:
    """Bytes."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/smaps_rollup has no line Anonymous")


def transferred() -> tuple[int, int]:
    found = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(found["rchar"]), int(found["wchar"])


class Highest:
    """The largest amount of anonymous memory while it is open, and since a moment."""

    def __init__(self):
        self.most = self.lately = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._end.wait(0.02):
            now = anonymous()
            self.most, self.lately = max(self.most, now), max(self.lately, now)

    def __enter__(self) -> Highest:
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._end.set()
        self._thread.join()


def batches(n: int, rows: int = 2**16):
    """y = sin(2 x1) x2 + x3² - x4 x5 … at uniform points."""
    rng = np.random.default_rng(0)
    for i in range(0, n, rows):
        x = rng.uniform(-1, 1, (min(rows, n - i), INPUTS))
        yield x, np.sin(2 * x[:, 0]) * x[:, 1] + x[:, 2] ** 2 - x[:, 3] * x[:, 4]


def measure(
    n: int, chunk: int | None, sweeps: int, seeds: int, folder: str | None
) -> tuple[float, str]:
    """Seconds of cores per sweep after the first, and a line about it."""
    rows: list[tuple[float, int, int, int, float]] = []
    with (
        tempfile.TemporaryDirectory(prefix="sapm-benchmark-", dir=folder) as path,
        Highest() as highest,
    ):
        made = sapm.Regression.from_batches(batches(n), path)
        del made
        X, Y = (np.load(Path(path) / f"{name}.npy", mmap_mode="r") for name in "XY")

        def record(state) -> None:
            rows.append((state.seconds, *transferred(), highest.lately, time.process_time()))
            highest.lately = 0

        options = {"chunk": chunk or 2**14, "record_every": 1}
        began = time.perf_counter()
        problem = sapm.Regression(X, Y)
        checked = time.perf_counter() - began
        result = sapm.solve(
            problem,
            DEPTH,
            WIDTH,
            "tanh",
            method="alternating",
            seeds=seeds,
            max_iter=sweeps,
            options=options,
            progress=False,
            on_record=record,
        )
        most = highest.most
    pace = (rows[-1][0] - rows[1][0]) / (len(rows) - 2)
    read, written, used = ((rows[-1][k] - rows[1][k]) / (len(rows) - 2) for k in (1, 2, 4))
    mapped = 2 * (X.nbytes + Y.nbytes)
    shown = [k for k in range(1, len(rows)) if k & (k - 1) == 0]
    peaks = ", ".join(f"{rows[k][3] / 1e6:.0f} MB in sweep {k}" for k in shown)
    losses = result.history["mean_squared_loss"][result.run.best]
    text = (
        f"n = {n:.0e}, chunks of {options['chunk']}, {seeds} seed(s): {pace:.2f} s per sweep, "
        f"{used:.2f} s of cores "
        f"(data checked in {checked:.1f} s); "
        f"anonymous memory at most {most / 1e6:.0f} MB, {peaks}; a sweep reads "
        f"{(read + mapped) / 1e9:.2f} GB "
        f"({mapped / 1e9:.2f} GB of it mapped) and writes {written / 1e9:.2f} GB; true loss "
        f"{losses[0]:.3f} → {losses[-1]:.3f}"
    )
    return used, text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=10**6)
    parser.add_argument("--chunk", type=int)
    parser.add_argument("--sweeps", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--folder")
    parser.add_argument("--growth", action="store_true")
    given = parser.parse_args()
    sizes = [10**k for k in range(5, 12) if 10**k < given.n and given.growth] + [given.n]
    paces = []
    for n in sizes:
        pace, text = measure(n, given.chunk, max(2, given.sweeps), given.seeds, given.folder)
        paces.append(pace)
        print(text, flush=True)
    if len(sizes) > 1:
        exponent = np.log(paces[-1] / paces[0]) / np.log(sizes[-1] / sizes[0])
        print(
            f"the cores' time per sweep grows like n^{exponent:.2f} from {sizes[0]:.0e} to "
            f"{sizes[-1]:.0e}"
        )


if __name__ == "__main__":
    main()
