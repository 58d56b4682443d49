"""Measure how the time of a sweep grows with samples, layers, seeds, processes and devices.

The rows go to a JSON file, from which scale_page.py makes the page.

    python benchmarks/scale.py PART ... [--out scale.json]
    python benchmarks/scale.py page FILE ...                     the tables of docs/scale.md and its
    figures, from these files

`samples`, `depth`: seconds of a sweep and to compile, regression, (6, 10), M = 10. `seeds`: up to
1000 of (10, 10), 100 samples. `processes`: one process on one core and two on two, 10⁶ samples.
`crossing`: bytes that a sweep moves between 4 devices. `wide`: (6, 1024), 10⁵ samples, beside the
rate of matrix products. `case2`: the paper's second case, 10 seeds, 5·10⁴ sweeps. `dual`: a
Gauss-Newton step by the structured dual matrix, 2·10⁴ samples. `precision`: float64 beside mixed,
speed and loss. Times are of the clock, the best of three; nothing else should run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

PARTS = ("samples", "depth", "seeds", "processes", "crossing", "wide", "case2", "dual", "precision")
# in a compiled call, at least: the call itself copies the states, which takes about as long as one
SWEEPS = 12
HERE = Path(__file__).resolve()


def machine() -> str:
    import jax

    device = jax.devices()[0]
    if device.platform != "cpu":
        return device.device_kind
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "CPU"
    )
    pages = ", huge pages" if "hugetlb" in os.environ.get("GLIBC_TUNABLES", "") else ""
    return f"{len(os.sched_getaffinity(0))} cores, {model}{pages}"


def regression(n: int, d: int = 1):
    import numpy as np

    from sapm.objective.terms import value_term

    x = np.random.default_rng(0).uniform(-1, 1, (n, d))
    return value_term(x, np.sin(np.sum(x, 1) ** 2))


class Sweeps:
    """Compiled sweeps of a regression problem, ready to be timed."""

    def __init__(
        self,
        n: int,
        depth: int,
        width: int,
        seeds: int = 1,
        d: int = 1,
        precision: str = "double",
        mesh=None,
    ):
        import jax

        from sapm.methods.alternating import alternating
        from sapm.objective.penalty import objective
        from sapm.training.devices import Layout
        from sapm.training.loop import keys_of, without_weak_types
        from sapm.training.seeds import chunk

        method = alternating(
            objective([regression(n, d)], depth),
            (d, *[width] * (depth - 1), 1),
            "tanh",
            precision=precision,
        )
        states = jax.jit(jax.vmap(method.init))(keys_of(range(seeds), 0))
        self.layout = None if mesh is None else Layout.of(method, seeds, mesh)
        self.method = method if self.layout is None else self.layout.engine(method)
        self.states = (
            without_weak_types(states) if self.layout is None else self.layout.divided(states)
        )
        began = time.perf_counter()
        self.program = chunk.lower(self.method, self.states, None, 1, self.layout).compile()
        self.compile_seconds = time.perf_counter() - began
        self.wait = jax.block_until_ready
        self.array_bytes = 8.0 * seeds * n * width

    def passes(self) -> float:
        """How often an array of all samples is read or written in a layer, by XLA's count (the
        losses included).
        """
        cost = self.program.cost_analysis()
        return (cost[0] if isinstance(cost, list) else cost)["bytes accessed"] / (
            self.array_bytes * (self.method.objective.depth - 1)
        )

    def take(self, steps: int) -> float:
        began = time.perf_counter()
        self.wait(self.program(self.method, self.states, None, steps))
        return time.perf_counter() - began

    def seconds(self, least: float = 1.0) -> float:
        """Of a sweep: the best of three, each of at least so many seconds."""
        self.take(1)
        steps = max(SWEEPS, int(least / self.take(1)))
        return min(self.take(steps) for _ in range(3)) / steps


def samples() -> list[dict]:
    import jax

    most = 7 if jax.default_backend() != "cpu" else 6
    rows = []
    for k in range(2, most + 1):
        made = Sweeps(10**k, 6, 10)
        rows.append(
            {
                "n": 10**k,
                "seconds": made.seconds(),
                "compile_seconds": made.compile_seconds,
                "passes": made.passes(),
            }
        )
    return rows


def depth() -> list[dict]:
    rows = []
    for layers in (10, 20, 50, 100):
        made = Sweeps(1000, layers, 10)
        rows.append(
            {"depth": layers, "seconds": made.seconds(), "compile_seconds": made.compile_seconds}
        )
    return rows


def seeds() -> list[dict]:
    return [
        {"seeds": count, "seconds": Sweeps(100, 10, 10, count).seconds()}
        for count in (1, 10, 100, 1000)
    ]


def product_rate(m: int = 8192) -> float:
    """Float64 matrix products of this device, flop/s."""
    import jax
    import jax.numpy as jnp

    x = jnp.full((m, m), 1e-4)
    twice = jax.jit(lambda x: (x @ x) @ x)
    jax.block_until_ready(twice(x))
    times = []
    for _ in range(3):
        began = time.perf_counter()
        jax.block_until_ready(twice(x))
        times.append(time.perf_counter() - began)
    return 4 * m**3 / min(times)


def sweep_flops(n: int, depth: int, width: int) -> float:
    """Products of a sweep: 10 M²N and 7M³/3 for each of the L-2 square layers, and 2 M²N, the Gram
    matrix, for the last.
    """
    return (depth - 2) * (10.0 * width**2 * n + 7 * width**3 / 3) + 2.0 * width**2 * n


def wide() -> list[dict]:
    n = 100_000
    layers = 6
    width = 1024
    made = Sweeps(n, layers, width)
    rate = product_rate()
    seconds = made.seconds(2.0)
    flops = sweep_flops(n, layers, width)
    return [
        {
            "n": n,
            "depth": layers,
            "width": width,
            "seconds": seconds,
            "flops": flops,
            "product_rate": rate,
        }
    ]


def case2() -> list[dict]:
    import sapm
    from sapm.catalogue import CATALOGUE

    problem = CATALOGUE["function_10d"].problem()
    settings = dict(CATALOGUE["function_10d"].settings)
    settings |= {
        "model": "sapm",
        "method": "alternating",
        "seeds": 10,
        "max_iter": 50_000,
        "progress": False,
    }
    settings["options"] = {"stall": 0.0, "record_every": 1000} | settings.get("options", {})
    began = time.perf_counter()
    result = sapm.solve(problem, 6, 10, **settings)
    spent = time.perf_counter() - began
    row = result.table[result.run.best]
    return [
        {
            "seconds": spent,
            "loop_seconds": float(result.history["seconds"].max()),
            "loss": row["loss"],
            "test_error": row["test_error"],
        }
    ]


def dual() -> list[dict]:
    import jax

    from sapm.methods.gauss_newton import gauss_newton
    from sapm.objective.penalty import objective
    from sapm.training.loop import train

    n = 20_000
    method = gauss_newton(
        objective([regression(n, 2)], 6, "ls"), (2, *[40] * 5, 1), "tanh", algebra="dual"
    )
    run = train(method, 3, seeds=1, record_every=1)
    stats = jax.devices()[0].memory_stats() or {}
    history = run.history["seconds"][0]
    return [
        {
            "n": n,
            "seconds": float(history[-1] - history[-2]),
            "peak_bytes": stats.get("peak_bytes_in_use"),
            "losses": run.history["loss"][0].tolist(),
        }
    ]


def precision() -> list[dict]:
    import jax

    from sapm.methods.alternating import alternating
    from sapm.objective.penalty import objective
    from sapm.training.loop import train

    many = jax.default_backend() != "cpu"
    rows = []
    for n, layers, width in ((100_000, 6, 1024 if many else 50), (100_000, 6, 10)):
        for name in ("double", "mixed"):
            made = Sweeps(n, layers, width, precision=name)
            rows.append(
                {
                    "n": n,
                    "depth": layers,
                    "width": width,
                    "precision": name,
                    "seconds": made.seconds(0.5),
                }
            )
    for name in ("double", "mixed"):
        method = alternating(
            objective([regression(1000)], 6), (1, *[20] * 5, 1), "tanh", precision=name
        )
        run = train(method, 2000, seeds=5, record_every=500, stall=0.0)
        rows.append(
            {
                "precision": name,
                "iteration": run.history["iteration"][0].tolist(),
                "loss": run.history["loss"].tolist(),
            }
        )
    return rows


def crossing() -> list[dict]:
    """Bytes of a sweep between four devices, from the compiled program."""
    import jax
    import numpy as np
    from jax.sharding import Mesh

    sys.path.append(str(HERE.parents[1] / "tests"))
    from traffic import traffic  # type: ignore[import-not-found]

    mesh = Mesh(np.array(jax.devices()[:4]).reshape(1, 4), ("seeds", "samples"))
    return [
        {"n": n, "devices": 4} | {"bytes": traffic(Sweeps(n, 6, 10, mesh=mesh).program.as_text())}
        for n in (1000, 10_000, 100_000)
    ]


def processes() -> list[dict]:
    """One process on one core, and two on one core each."""
    import socket

    rows = []
    cores = sorted(os.sched_getaffinity(0))
    for n in (100_000, 1_000_000):
        for count in (1, 2):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                address = f"127.0.0.1:{free.getsockname()[1]}"
            started = []
            for i in range(count):
                command = [
                    sys.executable,
                    str(HERE),
                    "member",
                    "--n",
                    str(n),
                    "--address",
                    address,
                    "--process",
                    str(i),
                    "--of",
                    str(count),
                ]
                started.append(
                    subprocess.Popen(
                        command, stdout=subprocess.PIPE if i == 0 else subprocess.DEVNULL, text=True
                    )
                )
                os.sched_setaffinity(started[-1].pid, {cores[i]})
            out = started[0].communicate()[0]
            for process in started:
                process.wait()
            rows.append({"n": n, "processes": count} | json.loads(out.splitlines()[-1]))
    return rows


def member(given) -> None:
    """One of the processes: the seconds of a sweep that all of them take together."""
    import jax

    from sapm.training.processes import join

    if given.of > 1:
        join(given.address, given.process, given.of)
    from sapm.training.devices import mesh_of

    with jax.enable_x64(True):
        made = Sweeps(given.n, 6, 10, mesh=mesh_of("auto", 1))
        made.take(1)
        print(
            json.dumps({"seconds": min(made.take(SWEEPS) for _ in range(3)) / SWEEPS}), flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", metavar="PART")
    parser.add_argument("--out", type=Path, default=Path("scale.json"))
    for name in ("--n", "--process", "--of"):
        parser.add_argument(name, type=int)
    parser.add_argument("--address")
    given = parser.parse_args()
    if given.parts[0] == "member":
        return member(given)
    if given.parts[0] == "page":
        from scale_page import write

        return write([json.loads(Path(file).read_text()) for file in given.parts[1:]])
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if "crossing" in given.parts:
        os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4 " + os.environ.get(
            "XLA_FLAGS", ""
        )
        os.environ["NPROC"] = "8"
    import jax

    from sapm.scopes import float64

    found = (
        json.loads(given.out.read_text())
        if given.out.exists()
        else {"machine": machine(), "jax": jax.__version__, "parts": {}}
    )
    for part in given.parts:
        began = time.perf_counter()
        found["parts"][part] = float64(globals()[part])()
        given.out.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{part}: {time.perf_counter() - began:.0f} s", flush=True)
        for row in found["parts"][part]:
            print("   ", row, flush=True)
    return None


if __name__ == "__main__":
    main()
