"""Milliseconds per sweep and seed of the engine (10 seeds at once), NumPy and GNU Octave.

    python benchmarks/engine.py [--quick] [--sizes NAME ...]

The three run the same algorithm (1: regression, 2: PINN; SAPM loss) on the same data from the same
start point, the engine's seed 0, on one and the same core with one thread, one after the other.

First they are compared: their losses after each of three sweeps must agree to a relative 1e-6; if
not, the row says so and the exit status is 1. Regression starts from a ~ U(-1, 1). A PINN is timed
from a forward pass but compared from a forward pass plus U(-0.001, 0.001): without defects the
ridge of W is 0, the features are dependent to within rounding, and each of the three solvers picks
another one of the many minimisers.

Then they are timed: the best of three repetitions of about a second each (at least one sweep, the
engine two), all from
the timed start. All times are CPU times of the process: on one thread that is the wall clock less
what other processes took of the core. (Their use of caches and memory still shows; the last line
says how much of the core this run had.)
Also: seconds to trace, lower and compile the engine's program of sweeps, on that one core; the
matrix-product flops of a sweep; the time these take at the rate measured here for products (rows ×
M)(M × M), "floor"; and the fraction floor / engine. The core is the highest of those the process
may use: choose another with `taskset -c CORE`.
"""

from __future__ import annotations

import os
import sys

if hasattr(
    os, "sched_setaffinity"
):  # before NumPy and JAX are imported: they start their threads then
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
os.environ.update(
    OMP_NUM_THREADS="1",
    OPENBLAS_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    JAX_PLATFORMS="cpu",
    JAX_ENABLE_X64="1",
)
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false " + os.environ.get("XLA_FLAGS", "")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import argparse
import copy
import math
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from time import process_time as clock

import jax
import jax.numpy as jnp
import numpy as np
import scipy.io
from jax import lax
from plain_numpy import Sapm
from scipy.stats import qmc

from sapm.methods.alternating import alternating
from sapm.methods.closed_forms import ARMIJO, LONGEST_STEP, STEP_GROWTH, STEP_SHRINKAGE
from sapm.methods.window import point_of, prepare
from sapm.numerics import lstsq
from sapm.numerics.activations import ACTIVATIONS
from sapm.objective.penalty import objective, start_point
from sapm.objective.terms import pde_term, value_term
from sapm.training.seeds import Group, Groups, chunk, room

SEEDS = 10
CHECKED = 3
REPEATS = 3
AGREE = 1e-6
NOISE = 1e-3
RULE = (ARMIJO, STEP_GROWTH, STEP_SHRINKAGE, LONGEST_STEP)  # for a: handed to the competitors


@dataclass(frozen=True)
class Case:
    """One row of the table. dims = 0: regression on n1 points; otherwise transport in `dims` space
    dimensions.
    """

    L: int
    M: int
    n1: int
    n2: int = 0
    dims: int = 0
    octave: float = 20.0  # goal: at least so many times faster than Octave
    ms: float | None = None  # goal: milliseconds per sweep per seed
    compile: float | None = None  # goal: seconds
    quick: bool = False
    only_compile: bool = False

    @property
    def name(self) -> str:
        kind = f"transport{self.dims}d" if self.dims else "regression"
        return f"{kind}-{self.L}-{self.M}-{self.n1}"

    @property
    def inputs(self) -> int:
        return 1 + self.dims

    @property
    def rows(self) -> int:
        """Rows of a layer's least-squares problem: values, and one per tangent of an interior
        sample.
        """
        return (1 + self.inputs) * self.n1 + self.n2 if self.dims else self.n1


CASES = [
    Case(10, 10, 100, octave=50, ms=0.15, compile=6, quick=True),
    Case(6, 50, 100, octave=50, quick=True),
    Case(6, 10, 10_000),
    Case(6, 10, 1000, 400, dims=1, ms=8, quick=True),
    Case(8, 20, 1000, 400, dims=1, ms=20),
    Case(10, 50, 1000, 400, dims=1, ms=70, compile=6),
    Case(6, 40, 4000, 1600, dims=3, ms=250),
    Case(50, 10, 100, compile=12, only_compile=True),
    Case(50, 10, 1000, 400, dims=1, compile=12, only_compile=True),
]


def halton(n: int, d: int) -> np.ndarray:
    return qmc.Halton(d, scramble=False).random(n)


def regression(case: Case):
    """sin(x²) on [-1, 1]."""
    x = 2 * halton(case.n1, 1) - 1
    return (value_term(x, np.sin(x**2)),)


def transport(case: Case):
    """u_t - v·∇u = f on [0,1] × [-1,1]^dims with u = eᵗ sin(Σ x_i); v = t + x + 1.5 in 1-D, x_i +
    1.5 in 3-D.

    All speeds v_i are positive, so that u is given at t = 0 (half of the n2 samples) and on the
    faces x_i = 1 (the others)."""

    def u(x):
        return np.exp(x[:, 0]) * np.sin(x[:, 1:].sum(1))

    x = halton(case.n1, case.inputs) * [1, *[2] * case.dims] - [0, *[1] * case.dims]
    v = x[:, 1:] + 1.5 + (x[:, :1] if case.dims == 1 else 0)
    f = u(x) - v.sum(1) * np.exp(x[:, 0]) * np.cos(x[:, 1:].sum(1))
    edge = halton(case.n2, case.inputs) * [1, *[2] * case.dims] - [0, *[1] * case.dims]
    half = case.n2 // 2
    edge[:half, 0] = 0.0
    face = np.arange(half, case.n2)
    edge[face, 1 + face % case.dims] = 1.0
    return pde_term(x, np.c_[np.ones(case.n1), -v], f), value_term(edge, u(edge))


# ---------------------------------------------------------------- the three implementations


def repeat(run, seconds: float, least: int = 1) -> list[float]:
    """Seconds per sweep of three repetitions of run(count), count chosen for `seconds` each."""
    count = max(least, math.ceil(seconds / run(1)))
    return [run(count) / count for _ in range(REPEATS)]


class Engine:
    """SEEDS seeds in the compiled chunks of `sapm.training.seeds`: `batch` seeds side by side,
    group after group, losses at the end.
    """

    def __init__(self, case: Case):
        self.case = case
        self.terms = (transport if case.dims else regression)(case)
        sigma, start = (
            (ACTIVATIONS["sin"], "forward") if case.dims else (ACTIVATIONS["relu"], "uniform")
        )
        widths = (case.inputs, *[case.M] * (case.L - 1), 1)
        self.method = alternating(objective(self.terms, case.L, "sapm"), widths, sigma, start=start)
        obj = self.method.objective
        keys = jax.random.split(jax.random.key(0), SEEDS)
        self.start = self.compared = jax.jit(jax.vmap(self.method.init))(keys)
        if case.dims:

            def shake(key, work):
                return prepare(obj, start_point(key, obj, work.network, "noise", NOISE))

            self.compared = jax.jit(jax.vmap(shake))(keys, self.start)

        self.room = room(SEEDS, self.method.seed_bytes)
        self.batch = self.room.batch
        jax.block_until_ready(self.start)
        began = clock()
        self.sweeps = chunk.lower(self.method, self.grouped(self.start)[0], None, 1).compile()
        self.compile_seconds = clock() - began

    def grouped(self, states) -> list:
        """As the loop runs them."""
        seeds = np.arange(SEEDS)
        return [
            group.states
            for group in Groups((Group(seeds, states),)).split(seeds, self.room).running
        ]

    def point(self, state):
        """Seed 0 of a start: [(W, b)], and per term [(a_l, d_l)], l = 1..L."""
        state = jax.tree.map(lambda x: x[0], state)
        jets = [
            [(np.asarray(u.value), np.asarray(u.tangents)) for u in aux.layers()]
            for aux in point_of(state).aux
        ]
        return self.method.network(state).weights, jets

    def measure(self, seconds: float):
        state = self.grouped(self.compared)[0]
        losses = []
        start = self.grouped(self.start)
        for _ in range(CHECKED):
            state, measured = self.sweeps(self.method, state, None, 1)
            losses.append(float(measured[0][0]))

        def run(count):
            began = clock()
            jax.block_until_ready(
                [self.sweeps(self.method, states, None, count) for states in start]
            )
            return clock() - began

        return losses, [t / SEEDS for t in repeat(run, seconds, least=2)]

    def chebyshev_steps(self) -> float:
        """Products with the Gram matrix in a d-update (mean over layers and batches): what
        `lstsq.shifted_solve` needs for its tolerance at the timed start, the ridge ξ left out (it
        would save a step or two)."""
        tol = 500 * lstsq.EPS  # the default of `shifted_solve` in double precision
        steps = []
        for seed in range(SEEDS):
            point = point_of(jax.tree.map(lambda x, i=seed: x[i], self.start))
            for l in range(1, self.case.L - 1):
                W = point.network.stack[l + 1].W
                slope = point.network.sigma.pair(point.aux[0][l].value)[1]
                spread = 0.5 * lstsq.spectral_bound(W.T @ W) * jnp.max(slope**2)
                steps.append(
                    math.ceil(math.log(2 / tol) / math.acosh(1 + float(jnp.sum(W**2) / spread)))
                )
        steps = np.reshape(steps, (SEEDS, self.case.L - 2))
        return float(
            np.mean([steps[k : k + self.batch].max(0) for k in range(0, SEEDS, self.batch)])
        )


def numpy_state(engine: Engine, state) -> Sapm:
    weights, jets = engine.point(state)
    terms = []
    for term, jet in zip(engine.terms, jets, strict=True):
        data = {"x": np.asarray(term.x.value), "y": np.asarray(term.y)}
        data |= {
            "kappa": float(term.weight),
            "c": np.asarray(term.linear.c) if term.is_pde else None,
        }
        terms.append(
            data
            | {
                "a": [None, *(a for a, _ in jet)],
                "d": [None, *(d for _, d in jet)] if term.is_pde else None,
            }
        )
    sigma = engine.method.sigma.name
    return Sapm(
        [None, *(W for W, _ in weights)], [None, *(b for _, b in weights)], sigma, terms, RULE
    )


def measure_numpy(engine: Engine, seconds: float):
    def timed(state, count):
        began = clock()
        for _ in range(count):
            state.sweep()
        return clock() - began

    state = numpy_state(engine, engine.compared)
    losses = []
    for _ in range(CHECKED):
        state.sweep()
        losses.append(float(state.loss()))
    start = numpy_state(engine, engine.start)
    return losses, repeat(lambda count: timed(copy.deepcopy(start), count), seconds)


def cells(arrays) -> np.ndarray:
    out = np.empty((1, len(arrays)), dtype=object)
    for i, x in enumerate(arrays):
        out[0, i] = np.ascontiguousarray(x)
    return out


def octave_state(engine: Engine, state) -> dict:
    weights, jets = engine.point(state)
    value = engine.terms[-1]
    data = {"sigma": engine.method.sigma.name, "rule": RULE}
    data |= {"W": cells([W for W, _ in weights]), "b": cells([b[:, None] for _, b in weights])}
    data |= {"X2": value.x.value.T, "Y2": value.y.T, "a2": cells([a.T for a, _ in jets[-1][:-1]])}
    if len(jets) > 1:
        pde = engine.terms[0]
        data |= {
            "X1": pde.x.value.T,
            "Y1": pde.y.T,
            "C": pde.linear.c.T,
            "a1": cells([a.T for a, _ in jets[0][:-1]]),
        }
        data["D"] = cells([d.transpose(2, 1, 0).reshape(d.shape[2], -1) for _, d in jets[0]])
    return {k: v if isinstance(v, str) else np.asarray(v) for k, v in data.items()}


def measure_octave(engine: Engine, seconds: float, program: str):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "starts.mat"
        states = {
            "compared": octave_state(engine, engine.compared),
            "timed": octave_state(engine, engine.start),
        }
        scipy.io.savemat(file, states)
        code = f"addpath('{Path(__file__).resolve().parent / 'octave'}'); run('{file}', {seconds});"
        call = [
            program,
            "-qf",
            "--no-gui",
            "--eval",
            code,
        ]  # it inherits the core and the number of threads
        done = subprocess.run(call, capture_output=True, text=True, check=False)
    found = [line.split() for line in done.stdout.splitlines()]
    losses = [float(x[1]) for x in found if x[0] == "loss"]
    times = [float(x[1]) / 1e3 for x in found if x[0] == "ms"]
    if len(losses) != CHECKED or len(times) != REPEATS:
        raise RuntimeError(f"Octave failed:\n{done.stdout}\n{done.stderr}")
    return losses, times


# ---------------------------------------------------------------- flops and the floor


def flops(case: Case, steps: float) -> float:
    """Matrix-product flops of one sweep of one seed. A layer from p to q units: 2p²R (Gram matrix),
    2pqR (right-hand side), 2pqR (new defects), 4pqR (gradient and trial of the a-step below it),
    p³/3 + 2p²q (Cholesky and solve).
    Algorithm 1, hidden layer: p = q = M, R = N: 10 M²N + 7 M³/3. Algorithm 2: the same with R = (1
    + d) N1 + N2, and d-update: `steps` Chebyshev products 2 p² d N1 (none where q = 1), 4 p q d N1
    (gradient, new defects), 2p²q (WᵀW).
    """
    total = 0.0
    widths = [case.inputs, *[case.M] * (case.L - 1), 1]
    for l, (p, q) in enumerate(pairwise(widths), 1):
        total += 2 * p * p * case.rows + 4 * p * q * case.rows + p**3 / 3 + 2 * p * p * q  # W_l
        if l > 1:
            total += 4 * p * q * case.rows  # a_{l-1}
        if l > 1 and case.dims:
            tangents = case.inputs * case.n1
            total += 4 * p * q * tangents + (
                steps * 2 * p * p * tangents + 2 * p * p * q if q > 1 else 0
            )  # d_{l-1}
    return total


def product_rate(rows: int, m: int) -> float:
    """Flop/s of (rows × m)(m × m) in float64 on this core: the better of NumPy's and of XLA's, best
    of three.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, m))
    W = np.linalg.qr(rng.normal(size=(m, m)))[0]
    out = np.empty_like(x)
    xla = jax.jit(lambda x, W, count: lax.fori_loop(0, count, lambda _, x: x @ W, x))

    def run_numpy(count):
        began = clock()
        for _ in range(count):
            np.matmul(x, W, out=out)
        return clock() - began

    def run_xla(count):
        began = clock()
        jax.block_until_ready(xla(x, W, count))
        return clock() - began

    run_xla(1)
    unit = max(1, int(1e7 / (rows * m * m)))  # products per call, so that calling costs nothing
    best = min(
        min(repeat(lambda count, run=run: run(unit * count), 0.1)) / unit
        for run in (run_numpy, run_xla)
    )
    return 2 * rows * m * m / best


# ---------------------------------------------------------------- the table

HEAD = (
    "case | engine ms | NumPy ms | Octave ms | NumPy/engine | Octave/engine | goal | met | "
    "compile s | Mflop | floor ms"
)
HEAD += " | of floor"


def versions(octave: str | None) -> str:
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else "not pinned"
    cpu = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next(
        (x.split(":")[1].strip() for x in cpu if x.startswith("model name")), platform.processor()
    )
    names = [
        f"{model}, core {core}",
        f"Python {platform.python_version()}",
        f"JAX {jax.__version__}",
        f"NumPy {np.__version__}",
    ]
    if octave:
        names.append(
            subprocess.run(
                [octave, "--version"], capture_output=True, text=True, check=False
            ).stdout.split("\n")[0]
        )
    return ", ".join(names)


def row(case: Case, seconds: float, octave: str | None) -> tuple[str, bool]:
    """One row of the table, and whether the implementations agree."""
    engine = Engine(case)
    goals = (
        [(f"compile ≤ {case.compile:g} s", engine.compile_seconds <= case.compile)]
        if case.compile
        else []
    )
    label = f"{case.name} (batch {engine.batch})"
    if case.only_compile:
        goal, met = goals[0]
        return (
            f"{label} | | | | | | {goal} | {'yes' if met else 'NO'} | {engine.compile_seconds:.1f} "
            "| | | ",
            True,
        )
    found = {"engine": engine.measure(seconds), "NumPy": measure_numpy(engine, seconds)}
    if octave:
        found["Octave"] = measure_octave(engine, seconds, octave)
    reference = np.array(found["engine"][0])
    apart = {
        who: float(np.max(np.abs(np.array(x[0]) / reference - 1)))
        for who, x in found.items()
        if who != "engine"
    }
    agree = all(gap <= AGREE for gap in apart.values())
    noise = {who: max(t) / min(t) - 1 for who, (_, t) in found.items()}
    print(
        f"{case.name}: loss {reference[-1]:.6e} after {CHECKED} sweeps; largest relative "
        "difference",
        end=" ",
    )
    print(
        ", ".join(f"{who} {gap:.1e}" for who, gap in apart.items()),
        "" if agree else "  <-- THEY DISAGREE",
        end="; ",
    )
    print(
        "slowest over fastest repetition",
        ", ".join(f"{who} +{x:.0%}" for who, x in noise.items()),
        flush=True,
    )

    ms = {who: 1e3 * min(t) for who, (_, t) in found.items()}
    mine = ms["engine"]
    if case.ms:
        goals.insert(0, (f"≤ {case.ms:g} ms", mine <= case.ms))
    if octave:
        goals.insert(0, (f"Octave ≥ {case.octave:g}×", ms["Octave"] / mine >= case.octave))
    steps = engine.chebyshev_steps() if case.dims else 0.0
    count = flops(case, steps)
    rate = product_rate(case.rows, case.M)
    floor = 1e3 * count / rate
    note = f"; {steps:.1f} Chebyshev steps per d-update" if case.dims else ""
    print(f"    (rows × M)(M × M) at {rate / 1e9:.1f} Gflop/s{note}", flush=True)
    theirs = (f"{ms['Octave']:.4g}", f"{ms['Octave'] / mine:.0f}") if octave else ("-", "-")
    columns = [
        label if agree else f"{label} DISAGREES",
        f"{mine:.3g}",
        f"{ms['NumPy']:.3g}",
        theirs[0],
    ]
    columns += [f"{ms['NumPy'] / mine:.1f}", theirs[1], ", ".join(goal for goal, _ in goals)]
    columns += [
        ", ".join("yes" if met else "NO" for _, met in goals),
        f"{engine.compile_seconds:.1f}",
    ]
    columns += [f"{count / 1e6:.3g}", f"{floor:.3g}", f"{floor / mine:.0%}"]
    return " | ".join(columns), agree


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="the three small cases, 0.3 s a repetition"
    )
    parser.add_argument(
        "--sizes", nargs="+", metavar="NAME", help="only these: " + ", ".join(c.name for c in CASES)
    )
    given = parser.parse_args()
    unknown = set(given.sizes or ()) - {c.name for c in CASES}
    if unknown:
        parser.error(
            f"no size {', '.join(sorted(unknown))}; choose from {', '.join(c.name for c in CASES)}"
        )
    chosen = [
        c for c in CASES if (c.name in given.sizes if given.sizes else c.quick or not given.quick)
    ]
    began = os.times()
    octave = shutil.which("octave-cli") or shutil.which("octave")
    print(versions(octave))
    print(
        f"a product of 1500 × 1500 matrices runs at {product_rate(1500, 1500) / 1e9:.1f} Gflop/s "
        "here"
    )
    if not octave:
        print(
            "GNU Octave is not installed (Debian package `octave`): its column and its goals are "
            "left out."
        )
    rows = [row(case, 0.3 if given.quick else 1.0, octave) for case in chosen]
    print("\n| " + HEAD + " |\n|" + "---|" * HEAD.count("|") + "---|")
    print("\n".join(f"| {text} |" for text, _ in rows))
    spent = os.times()
    share = (sum(spent[:4]) - sum(began[:4])) / (spent.elapsed - began.elapsed)
    print(
        f"\nThis run had {share:.0%} of its core."
        + (" Too noisy: run it again alone." if share < 0.97 else "")
    )
    if not all(agree for _, agree in rows):
        print(
            f"\nFAILED: implementations differ by more than {AGREE:g}; their times cannot be "
            "compared.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
