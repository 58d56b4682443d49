"""Long use: many block updates, many calls, many sweeps.

PYTHONPATH=. python trials/long.py updates --count 1000000     the loss after every block update,
and the bound
PYTHONPATH=. python trials/long.py solves --count 1000         memory and compilations of calls in
one process
PYTHONPATH=. python trials/long.py sweeps --count 100000       memory, files and pace of a long run
with its log
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pty
import re
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import stated
from common import Cores, Place, jobs_option, side_by_side, verdict
from updates import PLACES, updates

import sapm
from sapm.objective.weights import ROUNDING

# ---------------------------------------------------------------- solves


def memory(process: str = "self", which: str = "VmRSS") -> float:
    """Megabytes that a process holds."""
    text = Path(f"/proc/{process}/status").read_text()
    return int(re.search(rf"{which}:\s+(\d+)", text)[1]) / 1024


def used(process: str) -> float:
    """Seconds of cores that a process has had."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def calls():
    """Kinds of calls: a number → a call on data of its own, with equal shapes."""
    x = np.linspace(-1, 1, 40)
    small = {"depth": 3, "width": 6, "seeds": 2, "progress": False}
    heat = stated.heat()
    no_more = {"resample": 0}

    def data(k):
        return sapm.Regression(x, np.sin((1 + k % 7) * x + k))

    def transport(k: int):
        return sapm.PDE(
            sapm.Box(t=(0, 1), x=(-1, 1)),
            lambda p, u: u.t - (p.x + 1.5 + 0.1 * (k % 5)) * u.x,
            [sapm.Initial(lambda p: jnp.sin(p.x + k)), sapm.Inflow(lambda p: jnp.sin(1 + k + p.t))],
        )

    return {
        "data, auto": lambda k: sapm.solve(data(k), **small, max_iter=20),
        "data, SAPM by sweeps": lambda k: sapm.solve(
            data(k), **small, method="alternating", max_iter=30
        ),
        "data, LS by Adam": lambda k: sapm.solve(
            data(k), **small, model="ls", method="adam", max_iter=30
        ),
        "a transport equation stated anew": lambda k: sapm.solve(
            transport(k), **small, **PLACES, max_iter=15
        ),
        "a linear equation of second order": lambda k: sapm.solve(
            heat, **small, **PLACES, max_iter=10, key=k
        ),
        "a nonlinear equation stated anew": lambda k: sapm.solve(
            stated.burgers(), **small, **PLACES, max_iter=10, key=k, options=no_more
        ),
    }


OWN = {
    "a transport equation stated anew": 1
}  # compilations of a call: its residual is a function that JAX has not seen


def solves(given) -> tuple[bool, str, dict]:
    compiled: list[str] = []

    def note(event: str, duration_secs: float, **_) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    kinds = {name: call for name, call in calls().items() if given.only in name}
    rows = []
    made = 0
    warm = 10 * len(kinds)
    for k in range(warm):
        list(kinds.values())[k % len(kinds)](k)
    gc.collect()
    start = memory()
    before = len(compiled)
    while made < given.count:
        for name, call in kinds.items():
            had = len(compiled)
            result = call(100 + made)
            assert np.isfinite(result.run.final("loss")).all(), name
            rows.append((name, len(compiled) - had))
            made += 1
        if made % 60 < len(kinds):
            gc.collect()
            print(
                f"  {made:5d} calls: {memory():.0f} MB, {len(compiled) - before} compilations "
                f"since the first {warm}",
                flush=True,
            )
    gc.collect()
    growth = memory() - start
    anew = {name: sum(n for other, n in rows if other == name) for name in kinds}
    more = sum(max(0, n - OWN.get(name, 0)) for name, n in rows)
    sentence = (
        f"{made} calls of sapm.solve in one process, after {warm} to warm up: {growth:+.0f} MB "
        f"(from {start:.0f} MB), "
        f"{more} compilations of programs it had, {sum(anew.values()) - more} of residuals stated "
        "anew"
    )
    figures = {
        "calls": made,
        "growth_mb": growth,
        "start_mb": start,
        "peak_mb": memory(which="VmHWM"),
        "compilations": anew,
    }
    return growth < 100 and not more, sentence, figures


# ---------------------------------------------------------------- sweeps

RUNS = {
    "curve, SAPM, relu": ("curve", ["activation=relu"]),
    "transport, SAPM, sin": ("transport", ["points=40", "boundary_points=20", "test_points=20"]),
}


def long_run(place: Place, name: str, count: int, every: int, cores: list[int]) -> dict:
    """`sapm run` with its folder and its progress on a terminal; memory as it goes, the pace by its
    log.
    """
    problem, settings = RUNS[name]
    out = place.path / problem
    command = [
        "run",
        f"{stated.__file__}:{problem}",
        "--depth",
        "3",
        "--width",
        "5",
        "--seeds",
        "1",
        "--max-iter",
        str(count),
    ]
    more = [
        "method=alternating",
        f"options.record_every={every}",
        "options.stall=0",
        f"options.patience={count // 2}",
        *settings,
    ]
    command += ["--out", str(out), *(word for setting in more for word in ("--set", setting))]
    terminal, shown = pty.openpty()
    process = place.start(command, cores, often=False, stderr=shown)
    os.close(shown)
    said = []

    def watch() -> None:
        while True:
            try:
                part = os.read(terminal, 65536)
            except OSError:  # the other end is closed
                return
            if not part:
                return
            said.append(part[-2000:])

    reader = threading.Thread(target=watch, daemon=True)
    seen = []
    reader.start()
    log = out / "history.jsonl"
    pid = str(process.popen.pid)
    while process.running:
        try:
            seen.append((log.stat().st_size if log.exists() else 0, memory(pid), used(pid)))
        except (OSError, TypeError, IndexError):
            break
        time.sleep(0.02)
    code = process.end()
    reader.join(5)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    iteration, seconds = (
        np.array([row[key] for row in rows], float) for key in ("iteration", "seconds")
    )
    loss = np.array([row["loss"][0] for row in rows])
    whole = log.stat().st_size
    training, share, cores_time = (
        [(s / whole, mb) for s, mb, _ in seen],
        *np.array([(s / whole, cpu) for s, _, cpu in seen]).T,
    )
    clocks = {"clock": (iteration / count, seconds), "cores": (share, cores_time)}

    def pace(x, y, a: float, b: float) -> float:
        """Microseconds a sweep between two shares of the run."""
        return 1e6 * float(np.diff(np.interp([a, b], x, y))[0]) / (b - a) / count

    def at(low, high):
        return [mb for share, mb in training if low <= share <= high] or [0.0]

    files = {
        str(p.relative_to(out)): p.stat().st_size
        for p in sorted(out.rglob("*"))
        if p.is_file() and p.name != ".lock"
    }
    return {
        "run": name,
        "code": code,
        "sweeps": int(iteration[-1]),
        "records": len(rows),
        "shown": b"of the bound" in b"".join(said),  # on the terminal
        "memory_early_mb": float(np.median(at(0.05, 0.2))),
        "memory_late_mb": float(np.median(at(0.85, 0.999))),
        "pace_us": {
            name: [pace(*both, 0.02, 0.1), pace(*both, 0.9, 0.99)] for name, both in clocks.items()
        },
        "loss": [float(loss[0]), float(loss[-1])],
        "rises": int((np.diff(loss) > 1e-12 * loss[:-1]).sum()),
        "largest_bound_ratio": max(row["bound_ratio"][0] for row in rows),
        "files": files,
    }


def sweeps(given) -> tuple[bool, str, dict]:
    folder = Path(tempfile.mkdtemp(prefix="sapm-long-"))
    names = [name for name in RUNS if given.only in name]
    try:
        place = Place(folder)
        cores = Cores(min(given.jobs, len(names)))
        place.variables |= {"TERM": "xterm", "COLUMNS": "120"}

        def work(name: str) -> dict:
            with cores.taken() as mine:
                return long_run(place, name, given.count, given.every, mine)

        rows = side_by_side(work, names, given.jobs)
        for name, row in zip(names, rows, strict=True):
            log, model = (
                row["files"].get(file, 0) / 1e6 for file in ("history.jsonl", "model.sapm")
            )
            print(
                f"  {name}: {row['sweeps']} sweeps, {row['records']} records; "
                f"{row['pace_us']['clock'][0]:.0f} µs a sweep in the "
                f"first tenth, {row['pace_us']['clock'][1]:.0f} in the last; "
                f"{row['memory_early_mb']:.0f} → "
                f"{row['memory_late_mb']:.0f} MB; log {log:.1f} MB, model {model:.1f} MB; "
                f"loss {row['loss'][0]:.1e} → {row['loss'][1]:.1e}, {row['rises']} rises",
                flush=True,
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    growth = max(row["memory_late_mb"] - row["memory_early_mb"] for row in rows)
    # by the clock or by the time that cores gave, whichever says less: on a busy machine either may
    # be anything
    slower = max(
        min(last / max(first, 1e-9) for first, last in row["pace_us"].values()) for row in rows
    )
    whole = all(row["code"] == 0 and row["sweeps"] == given.count and row["shown"] for row in rows)
    fine = all(row["rises"] == 0 and row["largest_bound_ratio"] <= 1 + ROUNDING for row in rows)
    sentence = (
        f"{given.count} sweeps with a record every {given.every}, log, checkpoints and progress "
        f"on: memory {growth:+.0f} MB from "
        f"the first tenth to the last, pace × {slower:.2f}, {sum(row['rises'] for row in rows)} "
        "rises of the loss in the records"
    )
    return whole and fine and growth < 50 and slower < 1.5, sentence, {"runs": rows}


COUNTS = {"updates": 10**6, "solves": 1000, "sweeps": 10**5}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=list(COUNTS))
    parser.add_argument("--count", type=int, help=f"by default {COUNTS}")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--every", type=int, default=10, help="sweeps: between two records")
    jobs_option(parser)
    given = parser.parse_args(arguments)
    given.count = given.count or COUNTS[given.what]
    began = time.monotonic()
    good, sentence, figures = {"updates": updates, "solves": solves, "sweeps": sweeps}[given.what](
        given
    )
    return verdict(f"long {given.what}", good, sentence, figures, given.out, began)


if __name__ == "__main__":
    sys.exit(main())
