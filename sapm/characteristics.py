"""The solution of a first-order linear PDE at a point, from the data alone: one ODE along its characteristic.

Along x'(s) = -sign·c(x), back to where the boundary is met, u changes by ∫ sign·f ds; there a condition gives u. With a term
c0 u in the equation both count by the factor exp(-∫ sign·c0 ds) from the point to where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import brentq

from sapm.jet import float64
from sapm.pointwise import place

LONGEST = 200.0  # a characteristic that has crossed the domain this many times counts as never ending; not so where time moves on
LATER = 0.1  # of LONGEST: there, a path that is cut is not followed further
PATIENT = 4000  # evaluations of a path that is cut: some come to rest, which takes forever


@dataclass(frozen=True)
class Feet:
    """For each point: where its characteristic began, by which condition (-1: none), the integral of f, and how it ended.

    `factor` is what the datum there counts for here; `onward`: it was cut off while time moved on, one way, or because it took
    too long.
    """

    x: np.ndarray
    condition: np.ndarray
    integral: np.ndarray
    factor: np.ndarray
    face: list[str | None]
    onward: np.ndarray


@float64
def trace_back(problem: Any, x: np.ndarray, rtol: float, method: str = "DOP853", cut: bool = False) -> Feet:
    """`cut`: a path along which time moves on, or that takes long, is not followed to its end, if that is far."""
    domain, form, sides = problem.domain, problem.equation.pointwise(), problem.domain.sides
    d = x.shape[1]
    pace = float(np.clip((domain.fine / sides).min() / 8, 1 / 512, 1 / 64))
    clock = domain.names.index("t") if "t" in domain.names else None

    def slope(s, state):
        """State: the point, ∫ f, -∫ c0, and how often the domain has been crossed."""
        nonlocal taken
        taken += 1
        if cut and taken > PATIENT:
            raise TimeoutError
        out = problem.sign * form(state[:d])
        more = [out[d + 1] * np.exp(state[d + 1]), -out[d], np.linalg.norm(out[:d] / sides)]
        return np.concatenate([-out[:d], more])

    def left(s, state):
        return domain.gap(state[None, :d])[0]

    def endless(s, state):
        moving = clock is not None and abs(form(state[:d])[clock]) > 0
        return -1.0 if moving and not cut else state[d + 2] - LONGEST * (LATER if moving else 1)

    left.terminal, left.direction, endless.terminal = True, -1, True  # type: ignore[attr-defined]
    feet, integral, factor, ends = x.copy(), np.zeros(len(x)), np.ones(len(x)), np.zeros(len(x), bool)
    onward, taken = np.zeros(len(x), bool), 0
    tolerance = rtol * np.concatenate([sides, np.ones(3)])
    for k, start in enumerate(x):
        state = np.concatenate([start, np.zeros(3)])
        speed = np.linalg.norm(form(start)[:d] / sides)
        if speed > 0:  # in units of the time that crossing the domain takes; nothing that moves needs a million of them
            how = {"rtol": rtol, "atol": tolerance, "events": (left, endless), "dense_output": not domain.convex}
            taken = 0
            try:
                run = solve_ivp(slope, (0, 1e6 / speed), state, method, **how)
            except TimeoutError:
                onward[k] = True
                continue
            state, ends[k] = run.y[:, -1], run.status == 1 and len(run.t_events[0]) > 0
            onward[k] = clock is not None and _one_way(np.diff(run.y[clock])) and len(run.t_events[1]) > 0
            earlier = None if domain.convex else _first_exit(domain, run, pace)
            if earlier is not None:
                state, ends[k] = earlier, True
        feet[k], integral[k], factor[k] = state[:d], state[d], np.exp(state[d + 1])
    feet[ends] = domain.snap(feet[ends])  # the root finder stops within rounding of the boundary
    on = {face: domain.on_face(face, feet) & ends for face in domain.faces}
    faces = [next((face for face in domain.faces if on[face][k]), None) for k in range(len(x))]
    return Feet(feet, covering(problem, on), integral, factor, faces, onward)


def _one_way(steps: np.ndarray) -> bool:
    return bool(np.all(steps < 0) or np.all(steps > 0))


def _first_exit(domain, run, pace: float) -> np.ndarray | None:
    """The state where a path first leaves a domain with dents or holes, which a step may have jumped over; None if nowhere.

    It is looked at whenever it has gone on by `pace`, as a fraction of the domain.
    """
    d = len(domain.names)
    gap = lambda s: domain.gap(run.sol(s)[:d].T)  # noqa: E731
    counts = np.ceil(np.diff(run.y[d + 2]) / pace).astype(int) + 1
    pieces = [np.linspace(a, b, k, endpoint=False) for a, b, k in zip(run.t[:-1], run.t[1:], counts, strict=True)]
    s = np.concatenate([*pieces, run.t[-1:]])
    out = np.flatnonzero(gap(s) < 0)
    if not len(out) or not out[0]:
        return None
    return run.sol(brentq(lambda at: gap(np.array([at]))[0], s[out[0] - 1], s[out[0]]))


def covering(problem: Any, on: dict[str, np.ndarray]) -> np.ndarray:
    """The first condition that says what u is at each boundary point, -1 for none; `on[face]`: which points lie on that face."""
    found = np.full(len(next(iter(on.values()))), -1)
    for i, condition in reversed(list(enumerate(problem.stated))):
        for face in condition.faces_in(problem.domain) if condition.about == "value" else ():
            found[on[face]] = i
    return found


@float64
def reference(problem: Any, x: np.ndarray, rtol: float = 1e-11, cut: bool = False) -> np.ndarray:
    """u at the points x (n, d), (n,); NaN where no characteristic brings data, or (`cut`) none that is short."""
    feet = trace_back(problem, x, rtol, cut=cut)
    u = np.full(len(x), np.nan)
    for i, condition in enumerate(problem.stated):
        mine = feet.condition == i
        if mine.any():
            datum = condition.datum(problem.domain, feet.x[mine])
            u[mine] = datum[:, 0] * feet.factor[mine] + feet.integral[mine]
    return u


def never_met(problem: Any, n: int = 64) -> str:
    """A sentence that says where characteristics carry no data, or nothing where all n probed points get some."""
    x = problem.domain.points(n, 1)
    feet = trace_back(problem, x, 1e-4, "RK45", cut=True)
    lost = feet.condition < 0
    lost &= ~(feet.onward & np.array([face is None for face in feet.face]))  # it may have come to where time begins
    if not lost.any():
        return ""
    names, k = problem.domain.names, int(lost.argmax())
    if feet.face[k] is None:
        how = "never reaches the boundary"
    else:
        how = f"comes from the face {feet.face[k]!r} at {place(names, feet.x[k])}, where no condition is given"
    return (
        f"the problem is not well posed: u is not determined at {lost.sum()} of {n} probed points; "
        f"for example the characteristic through {place(names, x[k])} {how}."
    )
