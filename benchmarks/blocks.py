"""Time a sweep by closed forms and by blocks that come from automatic differentiation.

    python benchmarks/blocks.py [--sizes NAME ...]

Both sweep over the same blocks of the same problems (`benchmarks/engine.py`), 10 seeds side by side
on one core, every layer compiled apart. The steps of a_l differ: a gradient step with one trial
beside a Gauss-Newton step with a line search. All times are CPU times: milliseconds per sweep and
seed, the best of three repetitions of about half a second; seconds to compile.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import groupby
from time import process_time as clock

import engine  # first: it binds the process to one core before JAX starts
import jax
import jax.numpy as jnp
from jax import lax

from sapm.methods import blocks, closed_forms, window
from sapm.methods.alternating import alternating, named_order
from sapm.numerics.lstsq import VMAP_SEEDS_AXIS

SEED_COUNT = 10
REPETITIONS = 3
SECONDS = 0.5
CASES = [
    engine.Case(10, 10, 100),
    engine.Case(6, 10, 100),
    engine.Case(6, 10, 1000, 400, dims=1),
    engine.Case(8, 20, 1000, 400, dims=1),
]


def sweep(obj, order, updates, work):
    """One sweep by the updates of one module."""
    for l, pairs in groupby(order, key=lambda pair: pair[1]):
        work = window.update(obj, work, l, updates([block for block, _ in pairs]))
    return work


def measure(case: engine.Case, updates) -> tuple[float, float]:
    """Milliseconds per sweep and seed, and seconds to compile."""
    terms = engine.transport(case) if case.dims else engine.regression(case)
    obj = engine.objective(terms, case.L)
    widths = (case.inputs, *[case.M] * (case.L - 1), 1)
    sigma, start = ("sin", "forward") if case.dims else ("relu", "uniform")
    method = alternating(obj, widths, sigma, start=start, loop=False)
    states = jax.jit(jax.vmap(method.init))(jax.vmap(jax.random.key)(jnp.arange(SEED_COUNT)))
    step = partial(sweep, obj, named_order(obj, "down"), updates)

    def run(states, sweeps):
        def of_seed(work):
            return lax.fori_loop(0, sweeps, lambda _, work: step(work), work)

        return jax.vmap(of_seed, axis_name=VMAP_SEEDS_AXIS)(states)

    began = clock()
    program = jax.jit(run).lower(states, 1).compile()
    compilation = clock() - began
    states = jax.block_until_ready(program(states, 1))
    count = 1
    times = []
    for _ in range(REPETITIONS + 1):  # the first one finds the count
        began = clock()
        jax.block_until_ready(program(states, count))
        times.append((clock() - began) / count)
        count = max(1, int(SECONDS / times[-1]))
    return 1e3 * min(times[1:]) / SEED_COUNT, compilation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="*", default=[case.name for case in CASES])
    sizes = parser.parse_args().sizes
    for case in CASES:
        if case.name in sizes:
            fast, fast_compile = measure(case, closed_forms.updates)
            plain, plain_compile = measure(case, blocks.updates)
            print(
                f"{case.name:22s} closed forms {fast:8.3f} ms, {fast_compile:5.1f} s   "
                f"any term {plain:8.3f} ms, {plain_compile:5.1f} s   "
                f"ratio {plain / fast:5.1f}, {plain_compile / fast_compile:4.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
