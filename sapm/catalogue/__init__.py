"""The built-in problems: names, sizes and settings.

This module is light, since the command line lists the catalogue. The functions that state the
problems are in `paper` and `textbook`; a function has the name of its problem. Numerical solutions
are in `answers`.
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
    """A built-in problem with the settings it is usually solved with.

    Parameters
    ----------
    name : the name on the command line, and of the function that states the problem.
    about : one line for `sapm list`.
    module : "paper" or "textbook", where that function is.
    sizes : (depth, width) of the networks; the first is the default.
    settings : settings of `sapm.solve` in place of the general defaults.
    assumed : choices that the source leaves open.
    kind : "pde" or "regression".
    in_paper : whether the problem is one of the paper's four.
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
        """The settings for a method. The paper counts sweeps and steps of gradient descent; its
        number of iterations is not for Gauss-Newton, which takes far fewer.
        """
        settings = dict(self.settings)
        if self.in_paper and method in ("auto", "gauss-newton"):
            settings.pop("max_iter")
        return settings


HALTON = "Halton points without scrambling; test points are the next of the sequence"
TRANSPORT = {
    "settings": {
        "activation": "sin",
        "points": 1000,
        "boundary_points": 400,
        "test_points": 10_000,
        "max_iter": 1000,
    },
    "assumed": (
        "T = 1, μ = 1, conditions at t = 0 and on the inflow faces x_i = 1, half of the boundary "
        f"points each; {HALTON}. The paper states none of these, nor the number of test points "
        "(ours: 10⁴)."
    ),
}


def _paper(name: str, about: str, *sizes: tuple[int, int], **more) -> Entry:
    return Entry(name, about, "paper", sizes, in_paper=True, **more)


def _textbook(name: str, about: str, size: tuple[int, int] = (4, 32), **settings) -> Entry:
    usual = {
        "activation": "sin",
        "points": 1000,
        "boundary_points": 400,
        "test_points": 10_000,
        "max_iter": 100,
    }
    return Entry(name, about, "textbook", (size,), usual | settings, f"{HALTON}.")


# layers and shocks between too few points would go unnoticed
SHARP = {"size": (4, 24), "activation": "tanh", "points": 2000, "max_iter": 300}

CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        _paper(
            "function_1d",
            "learn sin(x²) on [-1, 1] from 100 points",
            (6, 10),
            (8, 10),
            (10, 10),
            (6, 20),
            (6, 50),
            settings={
                "activation": "relu",
                "points": 100,
                "test_points": 1000,
                "max_iter": 50_000,
            },
            assumed=f"{HALTON}, from index 0.",
            kind="regression",
        ),
        _paper(
            "function_10d",
            "learn 1/(2√10 + Σ x_i) in the ten-dimensional unit ball from 10⁴ points",
            (6, 10),
            (8, 10),
            (10, 10),
            settings={
                "activation": "relu",
                "points": 10_000,
                "test_points": 10_000,
                "max_iter": 50_000,
            },
            assumed="5·10⁴ iterations and 10⁴ test points (the paper states neither here); "
            f"{HALTON}, from index 1, mapped to the ball.",
            kind="regression",
        ),
        _paper(
            "transport_1d",
            "solve u_t - (t + x + 3/2) u_x = f, solution e^t sin x",
            (6, 10),
            (8, 20),
            (10, 50),
            **TRANSPORT,
        ),
        _paper(
            "transport_3d",
            "solve u_t - Σ (x_i + 2) u_{x_i} = f in three dimensions, solution Σ (t + x_i) sin x_i",
            (6, 40),
            (8, 30),
            (8, 40),
            settings=TRANSPORT["settings"] | {"points": 4000, "boundary_points": 1600},
            assumed=TRANSPORT["assumed"],
        ),
        Entry(
            "convection",
            "solve u_t + 30 u_x = 0 on [0, 1] × [0, 2π], solution sin(x - 30 t): "
            "known to defeat plain physics-informed networks",
            "paper",
            ((6, 30),),
            TRANSPORT["settings"] | {"max_iter": 100},
            "Inflow data at x = 0 in place of periodic conditions.",
        ),
        _textbook("poisson_2d", "solve -Δu = f on the unit square, solution sin πx sin πy"),
        _textbook(
            "poisson_5d", "solve -Δu = f on the five-dimensional unit cube, solution Σ sin πx_i"
        ),
        _textbook("heat_1d", "solve u_t = u_xx/10, two modes that decay"),
        _textbook("wave_1d", "solve u_tt = 4 u_xx, a string that starts at rest"),
        _textbook(
            "helmholtz_2d", "solve Δu + 4π² u = f on the unit square, solution sin 2πx sin 2πy"
        ),
        _textbook("advection_diffusion", "solve -Δu/20 + u_x = f, a boundary layer at the outflow"),
        _textbook("nonlinear_poisson", "solve -Δu + u³ = f on [-1, 1]²"),
        _textbook("burgers", "solve u_t + u u_x = 0.01/π u_xx, a shock forms", **SHARP),
        _textbook(
            "burgers_inverse", "find the viscosity of Burgers' equation from values of u", **SHARP
        ),
        _textbook(
            "lotka_volterra",
            "solve u' = u (1.5 - v), v' = v (u - 3): two functions of time",
            (4, 24),
            points=400,
            boundary_points=4,
        ),
        _textbook("allen_cahn", "solve u_t = 10⁻⁴ u_xx + 5 (u - u³) from x² cos πx", **SHARP),
    )
}
PAPER = tuple(name for name, entry in CATALOGUE.items() if entry.in_paper)
TEXTBOOK = tuple(name for name, entry in CATALOGUE.items() if entry.module == "textbook")


def find(name: str) -> Entry:
    """The entry of that name; ValueError with the known names otherwise."""
    if name not in CATALOGUE:
        raise ValueError(
            f"unknown problem: got {brief(name)}, expected {', '.join(CATALOGUE)}, "
            f"or file.py:problem.{nearest(name, CATALOGUE)}"
        )
    return CATALOGUE[name]


@cache
def paper_tables() -> dict:
    """Every figure of the paper's tables: {"best_seed": …, "all_seeds": …}."""
    return json.loads((files("sapm.catalogue") / "paper.json").read_text(encoding="utf-8"))
