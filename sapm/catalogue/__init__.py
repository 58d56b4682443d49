"""The built-in problems: names, sizes and settings.

This module imports neither JAX nor NumPy, since the command line lists the catalogue. The functions
that state the problems are in `paper` and `textbook`; each has the name of its problem. `answers`
computes reference solutions numerically.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING

from sapm.errors import brief, nearest

if TYPE_CHECKING:
    from sapm.problem.data import Function
    from sapm.problem.pde import PDE


@dataclass(frozen=True)
class Entry:
    """A built-in problem and its default settings.

    Parameters
    ----------
    name : its name on the command line, and the name of the function that states it.
    about : the description in `sapm list`, one line.
    module : the module of that function, "paper" or "textbook".
    sizes : (depth, width) of the networks; the first is the default.
    settings : arguments of `sapm.solve` that replace its defaults.
    assumed : what the source does not state and we chose.
    kind : "pde" or "regression".
    in_paper : whether it is one of the paper's four problems.
    """

    name: str
    about: str
    module: str
    sizes: tuple[tuple[int, int], ...]
    settings: dict = field(default_factory=dict)
    assumed: str = ""
    kind: str = "pde"
    in_paper: bool = False

    def problem(self) -> PDE | Function:
        """State the problem."""
        return getattr(import_module(f"sapm.catalogue.{self.module}"), self.name)()

    def settings_for(self, method: str) -> dict:
        """The settings for a method. The paper's `max_iter` counts sweeps or gradient steps;
        Gauss-Newton needs far fewer, so it keeps its own default.
        """
        settings = dict(self.settings)
        if self.in_paper and method in ("auto", "gauss-newton"):
            settings.pop("max_iter")
        return settings


HALTON_NOTE = "Halton points without scrambling; test points are the next of the sequence"
TRANSPORT_SETTINGS = {
    "activation": "sin",
    "points": 1000,
    "boundary_points": 400,
    "test_points": 10_000,
    "max_iter": 1000,
}
TRANSPORT_ASSUMED = (
    "T = 1, μ = 1, conditions at t = 0 and on the inflow faces x_i = 1, half of the boundary "
    f"points each; {HALTON_NOTE}. The paper states none of these, nor the number of test points "
    "(ours: 10⁴)."
)


def _textbook(name: str, about: str, size: tuple[int, int] = (4, 32), **settings) -> Entry:
    defaults = TRANSPORT_SETTINGS | {"max_iter": 100}
    return Entry(name, about, "textbook", (size,), defaults | settings, f"{HALTON_NOTE}.")


# with fewer points, boundary layers and shocks fall between the points
SHOCK_SETTINGS = {"size": (4, 24), "activation": "tanh", "points": 2000, "max_iter": 300}

CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "function_1d",
            "learn sin(x²) on [-1, 1] from 100 points",
            "paper",
            ((6, 10), (8, 10), (10, 10), (6, 20), (6, 50)),
            {"activation": "relu", "points": 100, "test_points": 1000, "max_iter": 50_000},
            f"{HALTON_NOTE}, from index 0.",
            "regression",
            in_paper=True,
        ),
        Entry(
            "function_10d",
            "learn 1/(2√10 + Σ x_i) in the ten-dimensional unit ball from 10⁴ points",
            "paper",
            ((6, 10), (8, 10), (10, 10)),
            {"activation": "relu", "points": 10_000, "test_points": 10_000, "max_iter": 50_000},
            "5·10⁴ iterations and 10⁴ test points (the paper states neither here); "
            f"{HALTON_NOTE}, from index 1, mapped to the ball.",
            "regression",
            in_paper=True,
        ),
        Entry(
            "transport_1d",
            "solve u_t - (t + x + 3/2) u_x = f, solution e^t sin x",
            "paper",
            ((6, 10), (8, 20), (10, 50)),
            TRANSPORT_SETTINGS,
            TRANSPORT_ASSUMED,
            in_paper=True,
        ),
        Entry(
            "transport_3d",
            "solve u_t - Σ (x_i + 2) u_{x_i} = f in three dimensions, solution Σ (t + x_i) sin x_i",
            "paper",
            ((6, 40), (8, 30), (8, 40)),
            TRANSPORT_SETTINGS | {"points": 4000, "boundary_points": 1600},
            TRANSPORT_ASSUMED,
            in_paper=True,
        ),
        Entry(
            "convection",
            "solve u_t + 30 u_x = 0 on [0, 1] × [0, 2π], solution sin(x - 30 t): "
            "known to defeat plain physics-informed networks",
            "paper",
            ((6, 30),),
            TRANSPORT_SETTINGS | {"max_iter": 100},
            "Inflow data at x = 0 in place of periodic conditions.",
        ),
        _textbook("poisson_2d", "solve -Δu = f on the unit square, solution sin πx sin πy"),
        _textbook(
            "poisson_5d", "solve -Δu = f on the five-dimensional unit cube, solution Σ sin πx_i"
        ),
        _textbook("heat_1d", "solve u_t = u_xx/10, two decaying modes"),
        _textbook("wave_1d", "solve u_tt = 4 u_xx, a string that starts at rest"),
        _textbook(
            "helmholtz_2d", "solve Δu + 4π² u = f on the unit square, solution sin 2πx sin 2πy"
        ),
        _textbook("advection_diffusion", "solve -Δu/20 + u_x = f, a boundary layer at the outflow"),
        _textbook("nonlinear_poisson", "solve -Δu + u³ = f on [-1, 1]²"),
        _textbook("burgers", "solve u_t + u u_x = 0.01/π u_xx, a shock forms", **SHOCK_SETTINGS),
        _textbook(
            "burgers_inverse",
            "find the viscosity of Burgers' equation from values of u",
            **SHOCK_SETTINGS,
        ),
        _textbook(
            "lotka_volterra",
            "solve u' = u (1.5 - v), v' = v (u - 3): two functions of time",
            (4, 24),
            points=400,
            boundary_points=4,
        ),
        _textbook(
            "allen_cahn", "solve u_t = 10⁻⁴ u_xx + 5 (u - u³) from x² cos πx", **SHOCK_SETTINGS
        ),
    )
}
PAPER = tuple(name for name, entry in CATALOGUE.items() if entry.in_paper)
TEXTBOOK = tuple(name for name, entry in CATALOGUE.items() if entry.module == "textbook")


def find(name: str) -> Entry:
    """The entry with this name; a ValueError that lists all names if there is none."""
    if name not in CATALOGUE:
        raise ValueError(
            f"unknown problem: got {brief(name)}, expected {', '.join(CATALOGUE)}, "
            f"or file.py:problem.{nearest(name, CATALOGUE)}"
        )
    return CATALOGUE[name]


@cache
def paper_tables() -> dict:
    """The numbers in the paper's tables: {"best_seed": …, "all_seeds": …}."""
    return json.loads((files("sapm.catalogue") / "paper.json").read_text(encoding="utf-8"))
