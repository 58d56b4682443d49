"""The solution of a first-order linear PDE at a point, by integrating along its characteristic.

Along x'(s) = -sign·c(x), back to where the boundary is met, u changes by ∫ sign·f ds; there a
condition gives u. With a term c0 u in the equation both the datum and the integrand count with
the factor exp(-∫ sign·c0 ds) from the point to where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import brentq

from sapm.problem.conditions import LinearCondition
from sapm.problem.domain import Domain
from sapm.scopes import float64

if TYPE_CHECKING:
    from scipy.integrate._ivp.ivp import OdeResult

    from sapm.problem.pde import PDE

# A path is given up after this many crossings of the domain, unless t changes along it
MAX_CROSSINGS = 200.0
MAX_CROSSINGS_IN_TIME = 20.0  # the same where t changes along it, for quick traces
# Evaluation limit per path in quick traces; near a stationary point integration never ends
MAX_EVALUATIONS = 4000
MAX_TIME_IN_CROSSINGS = 1e6  # end of integration, in times that crossing the domain takes


@dataclass(frozen=True)
class Origins:
    """Where the characteristics through n points began, and what they collected.

    Parameters
    ----------
    x : (n, d) where each began.
    condition : (n,) the index of the condition that gives u there; -1 for none.
    integral : (n,)
        ∫ sign·f ds along it, with the factors of c0.
    factor : (n,) what the datum at its foot is multiplied by.
    face : the face it began on; None if it was given up before.
    onward : (n,) whether it was given up although it might have reached the start of t.
    """

    x: np.ndarray
    condition: np.ndarray
    integral: np.ndarray
    factor: np.ndarray
    face: list[str | None]
    onward: np.ndarray


@dataclass
class _Path:
    """The ordinary differential equation along a characteristic.

    Its state is (x, ∫ f, -∫ c0, crossings of the domain): (d + 3,).
    """

    problem: PDE
    first_order_form: Callable[[np.ndarray], np.ndarray]
    quick: bool
    evaluations: int = 0

    def __post_init__(self):
        domain = self.problem.domain
        self.domain = domain
        self.sides = domain.sides
        self.d = len(domain.names)
        self.clock = domain.names.index("t") if "t" in domain.names else None

    def slope(self, s: float, state: np.ndarray) -> np.ndarray:
        """d state / ds."""
        self.evaluations += 1
        if self.quick and self.evaluations > MAX_EVALUATIONS:
            raise TimeoutError
        d = self.d
        out = self.problem.sign * self.first_order_form(state[:d])
        integrand = out[d + 1] * np.exp(state[d + 1])
        speed = np.linalg.norm(out[:d] / self.sides)
        return np.concatenate([-out[:d], [integrand, -out[d], speed]])

    def gap(self, s: float, state: np.ndarray) -> float:
        """Negative outside the domain."""
        return self.domain.gap(state[None, : self.d])[0]

    def remaining(self, s: float, state: np.ndarray) -> float:
        """Crossings until the path is given up, negative before; always -1 where it must go on."""
        moving = (
            self.clock is not None and abs(self.first_order_form(state[: self.d])[self.clock]) > 0
        )
        if moving and not self.quick:
            return -1.0
        return state[self.d + 2] - (MAX_CROSSINGS_IN_TIME if moving else MAX_CROSSINGS)

    def speed(self, x: np.ndarray) -> float:
        """Crossings of the domain per unit of s."""
        return float(np.linalg.norm(self.first_order_form(x)[: self.d] / self.sides))

    def integrate(self, start: np.ndarray, speed: float, rtol: float, method: str) -> OdeResult:
        """The path from a point, until it leaves the domain or is given up."""

        def left(s, state):
            return self.gap(s, state)

        def endless(s, state):
            return self.remaining(s, state)

        left.terminal = True  # type: ignore[attr-defined]
        left.direction = -1  # type: ignore[attr-defined]
        endless.terminal = True  # type: ignore[attr-defined]
        self.evaluations = 0
        return solve_ivp(
            self.slope,
            (0, MAX_TIME_IN_CROSSINGS / speed),
            np.concatenate([start, np.zeros(3)]),
            method,
            rtol=rtol,
            atol=rtol * np.concatenate([self.sides, np.ones(3)]),
            events=(left, endless),
            dense_output=not self.domain.convex,
        )

    def one_way(self, run: OdeResult) -> bool:
        """Whether t changes all the time, in one direction."""
        if self.clock is None:
            return False
        steps = np.diff(run.y[self.clock])
        return bool(np.all(steps < 0) or np.all(steps > 0))


@float64
def trace_back(
    problem: PDE,
    x: np.ndarray,
    rtol: float,
    method: str = "DOP853",
    quick: bool = False,
) -> Origins:
    """The feet of the characteristics through points.

    Parameters
    ----------
    problem : a PDE whose equation is linear and of first order.
    x : (n, d) the points.
    rtol, method : of `scipy.integrate.solve_ivp`.
    quick : give up paths that are long, even where t changes along them.
    """
    domain = problem.domain
    path = _Path(problem, problem.equation.pointwise(), quick)
    d = x.shape[1]
    pace = float(np.clip((domain.smallest_width / domain.sides).min() / 8, 1 / 512, 1 / 64))
    origins = x.copy()
    integral = np.zeros(len(x))
    factor = np.ones(len(x))
    ended = np.zeros(len(x), bool)
    onward = np.zeros(len(x), bool)
    for k, start in enumerate(x):
        state = np.concatenate([start, np.zeros(3)])
        speed = path.speed(start)
        if speed > 0:
            try:
                run = path.integrate(start, speed, rtol, method)
            except TimeoutError:
                onward[k] = True
                continue
            state = run.y[:, -1]
            ended[k] = run.status == 1 and len(run.t_events[0]) > 0
            onward[k] = path.one_way(run) and len(run.t_events[1]) > 0
            earlier = None if domain.convex else _first_exit(domain, run, pace)
            if earlier is not None:
                state = earlier
                ended[k] = True
        origins[k] = state[:d]
        integral[k] = state[d]
        factor[k] = np.exp(state[d + 1])
    # The root finder stops within rounding of the boundary.
    origins[ended] = domain.snap(origins[ended])
    on = {face: domain.on_face(face, origins) & ended for face in domain.faces}
    faces = [next((face for face in domain.faces if on[face][k]), None) for k in range(len(x))]
    return Origins(origins, _condition_at(problem, on), integral, factor, faces, onward)


def _first_exit(domain: Domain, run: Any, pace: float) -> np.ndarray | None:
    """The state where a path first leaves a domain that is not convex; None if it never does.

    A step may have jumped over a dent or a hole, so the path is sampled at every `pace`, a fraction
    of the domain.
    """
    d = len(domain.names)

    def gap(s):
        return domain.gap(run.sol(s)[:d].T)

    counts = np.ceil(np.diff(run.y[d + 2]) / pace).astype(int) + 1
    pieces = [
        np.linspace(a, b, k, endpoint=False)
        for a, b, k in zip(run.t[:-1], run.t[1:], counts, strict=True)
    ]
    s = np.concatenate([*pieces, run.t[-1:]])
    outside = np.flatnonzero(gap(s) < 0)
    if not len(outside) or not outside[0]:
        return None
    i = outside[0]
    return run.sol(brentq(lambda at: gap(np.array([at]))[0], s[i - 1], s[i]))


def _condition_at(problem: PDE, on: dict[str, np.ndarray]) -> np.ndarray:
    """The index of the first condition that gives u at each boundary point, -1 for none.

    Parameters
    ----------
    on : for every face, which of the points lie on it.
    """
    index = np.full(len(next(iter(on.values()))), -1)
    for i, condition in reversed(list(enumerate(problem.boundary_conditions))):
        if condition.prescribes_value:
            for face in condition.faces_in(problem.domain):
                index[on[face]] = i
    return index


@float64
def solve_by_characteristics(
    problem: PDE, x: np.ndarray, rtol: float = 1e-11, quick: bool = False
) -> np.ndarray:
    """u (n,) at the points x (n, d); NaN where no characteristic brings data.

    Parameters
    ----------
    problem : a PDE whose equation is linear and of first order.
    x : (n, d) the points.
    rtol : relative tolerance of the integration.
    quick : give up long paths, whose points get NaN.
    """
    origins = trace_back(problem, x, rtol, quick=quick)
    u = np.full(len(x), np.nan)
    for i, condition in enumerate(problem.boundary_conditions):
        on = origins.condition == i
        if on.any() and isinstance(condition, LinearCondition):
            datum = condition.datum(problem.domain, origins.x[on])
            u[on] = datum[:, 0] * origins.factor[on] + origins.integral[on]
    return u
