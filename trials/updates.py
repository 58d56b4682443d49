"""The loss after every block update, and the bound: `trials/long.py updates`.

It says how much of what rounding may do was seen. A defect is computed from terms whose absolute
values add up to p, at most c = width + 8 roundings deep, so it is known to c·eps·p; with S the loss
that p would have in place of the defects, and N numbers in the sum, Cauchy and Schwarz give for a
computed loss

    |error| ≤ N·eps·loss + 2·c·eps·√(loss·S) + (c·eps)²·S,

and a rise between two of them counts as rounding up to twice that: the floor.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

sys.path.insert(0, str(Path(__file__).parent))

import stated
from common import Cores

from sapm.driver.settings import plan
from sapm.numerics.jets import lift
from sapm.numerics.lstsq import VMAP_SEEDS_AXIS
from sapm.objective.penalty import defect_weights, omega, penalty, target
from sapm.objective.weights import ROUNDING, bound, squared_norms, steepness_of_term
from sapm.scopes import float64
from sapm.training.loop import keys_of, without_weak_types

PLACES = {"points": 40, "boundary_points": 20, "test_points": 0}
CASES = {  # problem, model, depth, width, activation, more settings
    "curve, PM, relu": ("curve", "pm", 3, 6, "relu", {}),
    "curve, SAPM, relu": ("curve", "sapm", 3, 6, "relu", {}),
    "curve, SAPM, sin, 14 layers": ("curve", "sapm", 14, 4, "sin", {"start": "noise"}),
    "surface, PM, tanh": ("surface", "pm", 4, 5, "tanh", {}),
    "surface, SAPM, tanh": ("surface", "sapm", 4, 5, "tanh", {}),
    "surface, SAPM, tanh, joint": ("surface", "sapm", 3, 6, "tanh", {"options": {"joint": True}}),
    "surface, SAPM, softplus, shared": (
        "surface",
        "sapm",
        3,
        6,
        "softplus",
        {"options": {"shared": True}, "start": "noise"},
    ),
    "surface, SAPM, tanh, mixed precision": (
        "surface",
        "sapm",
        3,
        6,
        "tanh",
        {"options": {"precision": "mixed"}},
    ),
    "transport, PM, sin": ("transport", "pm", 3, 5, "sin", PLACES),
    "transport, SAPM, sin": ("transport", "sapm", 3, 5, "sin", PLACES),
    "transport, SAPM, tanh, 5 layers": ("transport", "sapm", 5, 5, "tanh", PLACES),
    "transport, SAPM, sin, from U(-1, 1)": (
        "transport",
        "sapm",
        3,
        5,
        "sin",
        PLACES | {"start": "uniform"},
    ),
    "reaction, PM, sin": ("reaction", "pm", 3, 4, "sin", PLACES),
    "reaction, SAPM, sin": ("reaction", "sapm", 3, 4, "sin", PLACES),
    "heat (second order), PM, sin": ("heat", "pm", 3, 4, "sin", PLACES),
    "heat (second order), SAPM, sin": ("heat", "sapm", 3, 4, "sin", PLACES),
    "burgers (nonlinear), PM, tanh": ("burgers", "pm", 3, 4, "tanh", PLACES),
    "burgers (nonlinear), SAPM, tanh": ("burgers", "sapm", 3, 4, "tanh", PLACES),
}
SIDE_BY_SIDE = 8  # seeds


def method_of(case: str):
    name, model, depth, width, activation, more = CASES[case]
    problem = getattr(stated, name)()
    settings = {"model": model, "method": "alternating"} | more
    planned = plan(problem, depth, width, activation, **settings)
    counts = {key: settings.get(key, 100) for key in PLACES}
    return planned.engine(problem.samples(**counts, mu=planned.mu))


def parts_of(obj, point):
    """S: the penalty loss with |W||z| + |b| + |u| in place of every defect Wz + b - u; and how many
    numbers it sums.
    """
    network = point.network
    s = network.stack.map(lambda layer: jnp.sum(layer.W**2)).rows()
    total = jnp.zeros(())
    count = 0
    for i, (term, u) in enumerate(zip(obj.terms, point.aux, strict=True)):
        kappa = jnp.broadcast_to(term.weight, len(term.y))
        value, channel = defect_weights(obj, i, omega(obj, s), *squared_norms(term, network, u))
        for l in range(1, obj.depth + 1):
            z = term.x if l == 1 else lift(network.sigma, u[l - 1])
            goal = target(term, u[l], l == obj.depth)
            W, b = (jnp.abs(x) for x in (network.stack[l].W, network.stack[l].b))
            found = (
                jnp.sum((jnp.abs(z.value) @ W.T + b + jnp.abs(goal.value)) ** 2, -1) * value[l - 1]
            )
            if term.is_pde:
                tangents = (jnp.abs(z.tangents) @ W.T + jnp.abs(goal.tangents)) ** 2
                found += jnp.sum(channel[l - 1] * tangents, (1, 2))
            total += kappa @ found
            count += len(kappa) * (1 + term.channels) * len(b)
        if term.is_pde and not term.nonlinear:
            c0 = (
                0.0
                if term.linear.c0 is None
                else jnp.abs(term.linear.c0) * jnp.abs(u[obj.depth].value[:, 0])
            )
            out = (
                jnp.sum(jnp.abs(term.linear.c) * jnp.abs(u[obj.depth].tangents[..., 0]), -1)
                + jnp.abs(term.y[:, 0])
                + c0
            )
            total += kappa @ out**2
        elif term.is_pde:
            top = u[obj.depth]
            total += (
                kappa @ (jnp.abs(top.value[:, 0]) + jnp.sum(jnp.abs(top.tangents[..., 0]), -1)) ** 2
            )
    return total, count


def measured(method, state):
    """(loss from scratch, loss as the blocks carry it, true loss, floor, Λ) of a state."""
    obj = method.objective
    point = method.point(state)
    low = any(term.y.dtype == jnp.float32 for term in obj.terms)
    eps = float(jnp.finfo(jnp.float32 if low else jnp.float64).eps)
    c = max(method.widths) + 8
    loss, (size, count) = penalty(obj, point), parts_of(obj, point)
    floor = 2 * (count * eps * loss + 2 * c * eps * jnp.sqrt(loss * size) + (c * eps) ** 2 * size)
    steep = jnp.ones(())
    for term, u in zip(obj.terms, point.aux, strict=True):
        if term.nonlinear:
            steep = steepness_of_term(term, point.network(term.x), u.tail[-1])
    carried, true = method.losses(state)
    return loss, carried, true, floor, steep


def bounds_of(method, steep):
    """The theorem's constant for every Λ; None where there is none."""
    obj = method.objective
    found = []
    for i, term in enumerate(obj.terms):
        alone = replace(obj, terms=(term,), alpha=(obj.alpha[i],), beta=(obj.beta[i],))
        constant = bound(alone, method.sigma, 1.0)[0]
        if constant is None:
            return None
        found.append(constant if not term.nonlinear else 1 + (constant - 1) * steep**2)
    return np.maximum.reduce([np.broadcast_to(x, np.shape(steep)) for x in found])


@float64
def follow(case: str, count: int) -> dict:
    """So many block updates of a case, each recorded; what was seen."""
    began = time.perf_counter()
    method = method_of(case)
    blocks = [update for _, update in method.blocks()]
    size = sum(float(jnp.sum(t.weight * jnp.sum(t.y**2, -1))) for t in method.objective.terms)

    def step(state, k):
        state = lax.switch(k, [lambda s, f=f: without_weak_types(f(s)) for f in blocks], state)
        return state, measured(method, state)

    sweeps = -(-count // (10 * SIDE_BY_SIDE * len(blocks)))  # in each of ten pieces
    order = jnp.tile(jnp.arange(len(blocks)), sweeps)
    run = jax.jit(jax.vmap(lambda s: lax.scan(step, s, order), axis_name=VMAP_SEEDS_AXIS))
    states = without_weak_types(jax.vmap(method.init)(keys_of(range(SIDE_BY_SIDE), 0)))
    last = jax.jit(jax.vmap(lambda s: measured(method, s), axis_name=VMAP_SEEDS_AXIS))(states)
    seen = {
        "updates": 0,
        "rise": 0.0,
        "of_floor": 0.0,
        "carried": 0.0,
        "share": 0.0,
        "broken": 0,
        "up": 0,
    }
    first = np.asarray(last[0])
    low = any(t.y.dtype == jnp.float32 for t in method.objective.terms)
    for _ in range(10):
        states, found = run(states)
        loss, carried, true, floor, steep = (
            np.concatenate([np.asarray(a)[:, None], np.asarray(b)], 1)
            for a, b in zip(last, found, strict=True)
        )
        last = tuple(x[:, -1] for x in (loss, carried, true, floor, steep))
        if not np.isfinite(loss).all():
            raise RuntimeError(f"{case}: a loss is not finite.")
        rise = np.diff(loss, axis=1)
        floor = np.maximum(floor[:, 1:], floor[:, :-1])
        seen["updates"] += rise.size
        seen["up"] += int((rise > floor).sum())
        seen["rise"] = max(seen["rise"], float((rise / loss[:, :-1]).max()))
        seen["of_floor"] = max(seen["of_floor"], float((rise / floor).max()))
        seen["carried"] = max(seen["carried"], float((np.abs(carried - loss)[:, 1:] / floor).max()))
        most = bounds_of(method, steep)
        if most is not None and method.objective.model == "sapm":
            rounding = (1e-12 if low else 1e-24) * (1 + size)
            seen["share"] = max(seen["share"], float(((true - rounding) / (most * loss)).max()))
            seen["broken"] += int((true > most * loss * (1 + ROUNDING) + rounding).sum())
    seen |= {
        "first": first.tolist(),
        "last": last[0].tolist(),
        "true": last[2].tolist(),
        "floor": last[3].tolist(),
    }
    return (
        {"case": case, "bound": method.objective.model == "sapm" and most is not None}
        | seen
        | {"seconds": time.perf_counter() - began}
    )


def _pin(shares) -> None:
    mine = shares.get()
    if mine:
        os.sched_setaffinity(0, mine)


def updates(given) -> tuple[bool, str, dict]:
    names = [name for name in CASES if given.only in name]
    context = multiprocessing.get_context("spawn")
    each = -(-given.count // len(names))
    shares = context.Queue()
    rows = []
    for _ in range(given.jobs):
        shares.put(Cores(given.jobs).free.get())
    with ProcessPoolExecutor(given.jobs, context, _pin, (shares,)) as pool:
        for name, future in [(name, pool.submit(follow, name, each)) for name in names]:
            row = future.result()
            rows.append(row)
            share = f"{row['share']:.3f} of the bound" if row["bound"] else "no bound"
            print(
                f"  {name:42} {row['updates']:7d} updates, median loss "
                f"{np.median(row['first']):.1e} → "
                f"{np.median(row['last']):.1e}, largest rise {row['rise']:.1e} "
                f"({row['of_floor']:.3f} of the floor), {share}, "
                f"{row['seconds']:.0f} s",
                flush=True,
            )
    plain = [row for row in rows if "mixed" not in row["case"]]
    count, up, broken = (sum(row[name] for row in rows) for name in ("updates", "up", "broken"))

    def most(name, rows):
        return max((row[name] for row in rows), default=0.0)

    sentence = (
        f"{count} block updates of {len(rows)} cases: the loss up {up} times beyond rounding "
        "(largest rise "
        f"{most('rise', plain):.1e} of the loss, {most('of_floor', rows):.2f} of the rounding "
        f"floor), the bound broken {broken} "
        f"times (at most {most('share', rows):.3f} of it reached)"
    )
    return (
        not up and not broken and count >= given.count,
        sentence,
        {"cases": rows, "updates": count},
    )
