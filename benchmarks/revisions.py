"""Speed of two revisions of the package, measured in turn in one run.

    python benchmarks/revisions.py OLD [--new DIR] [--rounds N] [--only engine|methods] [--out FILE]

OLD is a folder with an earlier revision, for example `git worktree add ../old v0.1.0`. Each row is
measured in processes of their own, in the order old, new, new, old, … on one core, so that a change
of the machine's speed meets both. The table shows the smallest time of each revision and their
ratio; below 1 means that the new revision is faster. All cells are written to --out as JSON.

* Rows `engine`: `benchmarks/engine.py` of each revision, milliseconds of a sweep for each seed, and
  seconds to compile the sweeps.
* Rows `methods`: `sapm.solve` of each revision by its public interface. Milliseconds of an
  iteration, from the history after the first compiled chunk, and the seconds of the rest of the
  call, most of which is compilation.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve()
ENGINE_ROWS = (
    "regression-10-10-100",
    "regression-6-50-100",
    "regression-6-10-10000",
    "transport1d-6-10-1000",
    "transport1d-8-20-1000",
    "transport1d-10-50-1000",
    "transport3d-6-40-4000",
    "regression-50-10-100",
    "transport1d-50-10-1000",
)
# name of a row: (name of a problem in `problems`, arguments of `sapm.solve`)
METHOD_ROWS = {
    "gauss-newton transport": ("transport", {"depth": 6, "width": 10, "max_iter": 60}),
    "gauss-newton burgers": ("burgers", {"depth": 4, "width": 20, "max_iter": 40}),
    "gauss-newton poisson": ("poisson", {"depth": 4, "width": 20, "max_iter": 40}),
    "gauss-newton function": ("function", {"depth": 6, "width": 10, "max_iter": 60}),
    "adam transport": (
        "transport",
        {"model": "ls", "method": "adam", "depth": 6, "width": 10, "max_iter": 400},
    ),
    "lbfgs function": (
        "function",
        {"model": "ls", "method": "lbfgs", "depth": 6, "width": 10, "max_iter": 400},
    ),
    "general sweeps poisson": (
        "poisson",
        {"method": "alternating", "depth": 4, "width": 10, "max_iter": 30, "points": 300},
    ),
}
ONE_CORE = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}


def measure_engine(name: str, root: Path) -> dict[str, float]:
    """{"ms": of a sweep and seed, "compile": seconds}, by the revision's own benchmark."""
    done = subprocess.run(
        [sys.executable, str(root / "benchmarks" / "engine.py"), "--sizes", name],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path[1:]])},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    if len(lines) < 2:
        raise RuntimeError(f"{root}, {name}: {done.stdout[-500:]}{done.stderr[-1500:]}")
    head = [cell.strip() for cell in lines[0].strip("|").split("|")]
    row = [cell.strip() for cell in lines[-1].strip("|").split("|")]
    cells = dict(zip(head, row, strict=False))
    measured = {"compile": float(cells["compile s"])}
    if cells["engine ms"]:
        measured["ms"] = float(cells["engine ms"])
    return measured


def problems() -> dict:
    """The problems of METHOD_ROWS, stated by the public interface."""
    import jax.numpy as jnp

    import sapm

    def wave(p):
        return jnp.exp(p.t) * jnp.sin(p.x)

    def transport(p, u):
        speed = p.t + p.x + 1.5
        return u.t - speed * u.x - wave(p) + speed * jnp.exp(p.t) * jnp.cos(p.x)

    def bump(p):
        return jnp.sin(jnp.pi * p.x) * jnp.sin(jnp.pi * p.y)

    strip = sapm.Box(t=(0, 1), x=(-1, 1))
    square = sapm.Box(x=(0, 1), y=(0, 1))
    return {
        "transport": sapm.PDE(strip, transport, [sapm.Initial(wave), sapm.Inflow(wave)]),
        "burgers": sapm.PDE(
            strip,
            lambda p, u: u.t + u.value * u.x - 0.05 * u.xx,
            [
                sapm.Initial(lambda p: -jnp.sin(jnp.pi * p.x)),
                sapm.Dirichlet(lambda p: 0.0 * p.t, faces=["x-", "x+"]),
            ],
        ),
        "poisson": sapm.PDE(
            square,
            lambda p, u: u.xx + u.yy + 2 * jnp.pi**2 * bump(p),
            [sapm.Dirichlet(lambda p: 0.0 * p.x)],
        ),
        "function": sapm.Function(sapm.Ball(4), lambda p: 1 / (4 + jnp.sum(p.vector))),
    }


def solve_once(name: str) -> dict[str, float]:
    """{"ms": of an iteration, "compile": seconds of the rest of the call}, in this process."""
    import time

    import jax.numpy as jnp

    import sapm

    problem = problems()[METHOD_ROWS[name][0]]
    jnp.ones(1).block_until_ready()  # the start of JAX itself does not count
    arguments = METHOD_ROWS[name][1]
    began = time.perf_counter()
    result = sapm.solve(problem, seeds=2, progress=False, **arguments)
    seconds = time.perf_counter() - began
    iteration = result.history["iteration"][0]
    clock = result.history["seconds"][0]
    half = len(clock) // 2
    pace = (clock[-1] - clock[half]) / max(iteration[-1] - iteration[half], 1)
    return {"ms": 1e3 * pace, "compile": seconds - pace * float(iteration[-1])}


def measure_method(name: str, root: Path) -> dict[str, float]:
    """`solve_once` in a process that imports the package from `root`."""
    done = subprocess.run(
        [sys.executable, str(HERE), "--solve", name, str(root)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **ONE_CORE},
    )
    if done.returncode:
        raise RuntimeError(f"{root}, {name}: {done.stderr[-1500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def write(path: Path, cells: dict) -> None:
    """Replace the file in one step, so that a run that is cut leaves the rows so far."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump(cells, file, indent=1)
    os.replace(file.name, path)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("--new", type=Path, default=HERE.parents[1])
    parser.add_argument("--rounds", type=int, default=2, help="pairs of measurements of each row")
    parser.add_argument("--only", choices=("engine", "methods"))
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="only these rows")
    parser.add_argument("--out", type=Path, help="write all cells to this JSON file")
    arguments = parser.parse_args()
    rows = []
    if arguments.only != "methods":
        rows += [(name, measure_engine) for name in ENGINE_ROWS]
    if arguments.only != "engine":
        rows += [(name, measure_method) for name in METHOD_ROWS]
    roots = {"old": arguments.old.resolve(), "new": arguments.new.resolve()}
    cells: dict[str, dict[str, list]] = {}
    print("| row | old ms | new ms | new/old | old compile s | new compile s | new/old |")
    print("|---|---|---|---|---|---|---|")
    for name, measure in rows:
        if arguments.rows and name not in arguments.rows:
            continue
        cells[name] = {"old": [], "new": []}
        for k in range(arguments.rounds):
            for which in ("old", "new") if k % 2 == 0 else ("new", "old"):
                cells[name][which].append(measure(name, roots[which]))
        text = f"| {name} "
        for quantity in ("ms", "compile"):
            best = {
                which: min((cell[quantity] for cell in measured if quantity in cell), default=None)
                for which, measured in cells[name].items()
            }
            if best["old"] is None or best["new"] is None:
                text += "| | | "
            else:
                ratio = best["new"] / best["old"]
                text += f"| {best['old']:.4g} | {best['new']:.4g} | {ratio:.3f} "
        print(text + "|", flush=True)
        if arguments.out:
            write(arguments.out, cells)
    return 0


if __name__ == "__main__":
    if "--solve" in sys.argv:
        sys.path.insert(0, sys.argv[-1])
        print(json.dumps(solve_once(sys.argv[-2])))
        sys.exit(0)
    sys.exit(main())
