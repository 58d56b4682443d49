"""The solution of a first-order linear PDE at a point, from the data alone: one ODE along its characteristic.

Along x'(s) = -sign·c(x), back to where the boundary is met, u changes by ∫ sign·f ds; there a condition gives u.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from sapm.equation import evaluate, place
from sapm.jet import float64

LONGEST = 20.0  # a characteristic this many times longer than the domain counts as never ending


@dataclass(frozen=True)
class Feet:
    """For each point: where its characteristic began, by which condition (-1: none), the integral of f, and how it ended."""

    x: np.ndarray
    condition: np.ndarray
    integral: np.ndarray
    face: list[str | None]


@float64
def trace_back(problem: Any, x: np.ndarray, rtol: float, method: str = "DOP853") -> Feet:
    domain, form = problem.domain, problem.equation.pointwise()
    d, size = x.shape[1], problem.domain.size

    def slope(s, state):
        """State: the point, ∫ f, and the length of the path."""
        out = problem.sign * form(state[:d])
        return np.concatenate([-out[:d], out[d:], [np.linalg.norm(out[:d])]])

    def left(s, state):
        return domain.gap(state[None, :d])[0]

    def endless(s, state):
        return state[d + 1] - LONGEST * size

    left.terminal, left.direction, endless.terminal = True, -1, True  # type: ignore[attr-defined]
    feet, integral, faces = x.copy(), np.zeros(len(x)), []
    for k, start in enumerate(x):
        speed = np.linalg.norm(form(start)[:d])
        state = np.concatenate([start, [0.0, 0.0]])
        if speed > 0:
            # In units of the time that crossing the domain takes; nothing that moves needs a million of them.
            run = solve_ivp(
                slope,
                (0, 1e6 * size / speed),
                state,
                method,
                rtol=rtol,
                atol=rtol * size,
                events=(left, endless),
                max_step=np.inf,
            )
            state = run.y[:, -1]
            ended = bool(len(run.t_events[0])) if run.status == 1 else False
        else:
            ended = False
        feet[k], integral[k] = state[:d], state[d]
        near = domain.face_of(_onto(domain, state[None, :d], 1e3 * rtol * size))[0] if ended else None
        faces.append(near)
    return Feet(feet, covering(problem, feet, faces), integral, faces)


def _onto(domain, x: np.ndarray, slack: float) -> np.ndarray:
    """The root finder stops within rounding of the boundary; a point within `slack` of it counts as on it."""
    gap = domain.gap(x)
    if hasattr(domain, "bounds"):
        lower, upper = domain._ends
        clipped = np.clip(x, lower, upper)
        side = np.stack([clipped - lower, upper - clipped])
        flat = side.reshape(2, -1)
        end, i = np.unravel_index(flat.argmin(), flat.shape)
        if flat[end, i] <= slack:
            clipped[0, i] = (lower, upper)[end][i]
        return clipped
    center = np.asarray(domain.center)
    return center + (x - center) * (domain.radius / (domain.radius - gap))[:, None]


def covering(problem: Any, x: np.ndarray, faces: Sequence[str | None]) -> np.ndarray:
    """The first condition that covers each boundary point, -1 for none."""
    found = np.full(len(x), -1)
    for i, condition in reversed(list(enumerate(problem.conditions))):
        allowed = condition.faces_in(problem.domain)
        found[[face in allowed for face in faces]] = i
    return found


@float64
def reference(problem: Any, x: np.ndarray, rtol: float = 1e-11) -> np.ndarray:
    """u at the points x (n, d), (n,); NaN where no characteristic brings data."""
    feet = trace_back(problem, x, rtol)
    u = np.full(len(x), np.nan)
    for i, condition in enumerate(problem.conditions):
        mine = feet.condition == i
        if mine.any():
            at = _snap(problem, feet, mine)
            datum = evaluate(condition.g, f"the datum of {type(condition).__name__}", problem.domain.names, at)
            u[mine] = datum[:, 0] + feet.integral[mine]
    return u


def _snap(problem: Any, feet: Feet, mine: np.ndarray) -> np.ndarray:
    return np.concatenate([_onto(problem.domain, row[None], 1e-6 * problem.domain.size) for row in feet.x[mine]])


def never_met(problem: Any, n: int = 64) -> str:
    """A sentence that says where characteristics carry no data, or nothing where all n probed points get some."""
    x = problem.domain.points(n, 1)
    feet = trace_back(problem, x, 1e-4, "RK45")
    lost = feet.condition < 0
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
