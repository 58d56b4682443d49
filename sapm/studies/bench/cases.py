"""The cases of the benchmark with their budgets and targets, and the methods that take part.

The command line lists the cases. So that it starts fast, this module imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from sapm.catalogue import CATALOGUE, TEXTBOOK
from sapm.catalogue.paper import convection
from sapm.errors import nearest

if TYPE_CHECKING:
    from sapm.problem.data import Function
    from sapm.problem.pde import PDE

TRACKS = ("A", "B")
INPUTS = {"function_1d": 1, "function_10d": 10, "transport_3d": 4, "poisson_5d": 5}  # others: 2
# The seed of a first run, which compiles the programs and is never scored. The scored seeds are
# 0, 1, …; settings were chosen on the seeds 100 to 109.
WARM_UP_SEED = 1000


@dataclass(frozen=True)
class Entry:
    """A method that takes part.

    Parameters
    ----------
    name, label : its name on the command line and in the tables
    group : "ours", "peer" (trains the same network), "linear" (random features) or "sanity" (trains
        no network)
    tracks : the tracks that it takes part in, such as "AB"
    needs : the optional packages that it needs, separated by blanks
    """

    name: str
    label: str
    group: str
    tracks: str
    needs: str = ""


ENTRIES = {
    e.name: e
    for e in (
        Entry("auto", "sapm auto", "ours", "AB"),
        Entry("ls-gd", "LS, gradient descent", "ours", "A"),
        Entry("ls-adam", "LS, Adam", "ours", "AB"),
        Entry("ls-lbfgs", "LS, L-BFGS", "ours", "AB"),
        Entry("ls-gauss-newton", "LS, Gauss-Newton", "ours", "AB"),
        Entry("ls-straight", "LS, Gauss-Newton not bent", "ours", "AB"),
        Entry("pm-alternating", "PM, alternating", "ours", "A"),
        Entry("pm-gauss-newton", "PM, Gauss-Newton", "ours", "AB"),
        Entry("sapm-alternating", "SAPM, alternating (the paper)", "ours", "A"),
        Entry("sapm-gauss-newton", "SAPM, Gauss-Newton", "ours", "AB"),
        Entry("optimistix-lm", "optimistix LevenbergMarquardt", "peer", "AB", "optimistix"),
        Entry(
            "optimistix-lm-cholesky", "optimistix LM by normal equations", "peer", "B", "optimistix"
        ),
        Entry("optimistix-bfgs", "optimistix BFGS", "peer", "B", "optimistix"),
        Entry("optimistix-lbfgs", "optimistix LBFGS", "peer", "B", "optimistix"),
        Entry("scipy-least-squares", "scipy least_squares", "peer", "B", "scipy"),
        Entry("scipy-bfgs", "scipy BFGS", "peer", "AB", "scipy"),
        Entry("adam-lbfgs", "optax Adam, then L-BFGS", "peer", "B"),
        Entry("deepxde", "DeepXDE, Adam, then L-BFGS", "peer", "B", "deepxde torch"),
        Entry("sklearn-mlp", "scikit-learn MLPRegressor", "peer", "B", "sklearn"),
        Entry("features-width", "random features, as many as units in a layer", "linear", "B"),
        Entry("features-many", "random features, 100 or 1000", "linear", "B"),
        Entry("constant", "best constant", "sanity", "B"),
        Entry("affine", "best affine function", "sanity", "B"),
        Entry("interpolation", "straight lines between the data", "sanity", "B"),
    )
}
DEPTH_SWEEP_ROWS = (
    ("A", "optimistix-lm"),
    ("B", "auto"),
    ("B", "ls-gauss-newton"),
    ("B", "sapm-gauss-newton"),
    ("B", "ls-lbfgs"),
    ("B", "optimistix-lm"),
    ("B", "scipy-least-squares"),
    ("B", "scipy-bfgs"),
    ("B", "adam-lbfgs"),
)
TEXTBOOK_ROWS = tuple(  # for textbook problems: the methods that solve nonlinear equations too
    ("B", name)
    for name in (
        "auto",
        "ls-lbfgs",
        "optimistix-lm",
        "optimistix-lm-cholesky",
        "scipy-bfgs",
        "adam-lbfgs",
        "deepxde",
    )
)
LINEAR_TEXTBOOK_ROWS = (*TEXTBOOK_ROWS, ("B", "features-many"))
NONLINEAR_EQUATIONS = ("nonlinear_poisson", "burgers", "allen_cahn")


@dataclass(frozen=True)
class Case:
    """A problem, a network and a budget.

    Parameters
    ----------
    family : the name of the group of cases that it belongs to
    experiment : a built-in problem, or convection with its speed: "convection:30"
    depth, width, activation : the network
    seconds : the training time of a seed
    seeds : how many seeds are scored: 0, …, seeds - 1
    targets : errors; the time to reach each of them is measured
    points, boundary_points, test_points : the samples
    only : the pairs (track, method) that take part; None: all that suit the case
    """

    family: str
    experiment: str
    depth: int
    width: int
    activation: str
    seconds: float
    seeds: int
    targets: tuple[float, ...]
    points: int = 1000
    boundary_points: int = 400
    test_points: int = 10_000
    only: tuple[tuple[str, str], ...] | None = None

    @property
    def name(self) -> str:
        """The name on the command line and of its files: "transport_1d-sin-6x10"."""
        return f"{self.experiment.replace(':', '_')}-{self.activation}-{self.depth}x{self.width}"

    @property
    def title(self) -> str:
        """The name in tables: "transport_1d, sin (6,10)"."""
        problem, _, speed = self.experiment.partition(":")
        speed = f" β = {speed}" if speed else ""
        return f"{problem}{speed}, {self.activation} ({self.depth},{self.width})"

    @property
    def is_pde(self) -> bool:
        """Whether the problem is a PDE; otherwise it is a function to learn."""
        return not self.experiment.startswith("function")

    @property
    def inputs(self) -> int:
        """The number of coordinates."""
        return INPUTS.get(self.experiment, 2)

    @property
    def features(self) -> int:
        """The number of random features of the method "features-many"."""
        return 1000 if self.inputs > 2 else 100

    def problem(self) -> PDE | Function:
        """The problem, built from the catalogue."""
        name, _, speed = self.experiment.partition(":")
        return convection(float(speed)) if name == "convection" else CATALOGUE[name].problem()

    def rows(self) -> list[tuple[str, str]]:
        """(track, method) of every row of the case's table."""
        if self.only is not None:
            return list(self.only)
        return [
            (track, e.name)
            for track in TRACKS
            for e in ENTRIES.values()
            if track in e.tracks and self._suits(e.name)
        ]

    def _suits(self, method: str) -> bool:
        """Whether a method can solve the case, and is not the same as another method there."""
        if method == "sklearn-mlp":
            return not self.is_pde and self.activation in ("relu", "tanh", "sigmoid")
        if method == "deepxde":
            return self.experiment in TEXTBOOK
        if method == "interpolation":
            return self.experiment == "function_1d"
        # Gauss-Newton does not use curvature on relu, so "not bent" is the same method there
        return method != "ls-straight" or self.activation != "relu"


def _function(
    activation: str,
    depth: int,
    seconds: float,
    family: str = "function_1d",
    only: tuple[tuple[str, str], ...] | None = None,
) -> Case:
    """The case of function_1d with ten units in each layer."""
    points: dict[str, Any] = {"points": 100, "test_points": 1000}
    return Case(
        family, "function_1d", depth, 10, activation, seconds, 10, (1e-2, 3e-3), **points, only=only
    )


def _equation(name: str, seconds: float) -> Case:
    """A textbook problem with the network and points that the catalogue gives it."""
    settings = CATALOGUE[name].settings
    depth, width = CATALOGUE[name].sizes[0]
    points = {key: settings[key] for key in ("points", "boundary_points", "test_points")}
    rows = TEXTBOOK_ROWS if name in NONLINEAR_EQUATIONS else LINEAR_TEXTBOOK_ROWS
    return Case(
        "equations",
        name,
        depth,
        width,
        settings["activation"],
        seconds,
        3,
        (1e-3, 1e-6),
        **points,
        only=rows,
    )


# Textbook problems without a case: they have two unknown functions, or an unknown number, and the
# peers in `ENTRIES` do not solve such problems.
CASES_WITHOUT_PEERS = ("lotka_volterra", "burgers_inverse")
DEFAULT_SECONDS = 60.0
SECONDS = {"poisson_5d": 120.0, "burgers": 300.0, "allen_cahn": 300.0}
CASES = {
    case.name: case
    for case in (
        *(_function(activation, 10, 2.0) for activation in ("relu", "tanh", "sin")),
        *(
            _function("relu", depth, s, "depth", DEPTH_SWEEP_ROWS)
            for depth, s in ((6, 2.0), (20, 2.0), (40, 4.0), (80, 8.0))
        ),
        Case("function_10d", "function_10d", 10, 10, "relu", 60.0, 3, (3e-3,), points=10_000),
        *(
            Case("transport_1d", "transport_1d", L, M, "sin", 20.0, 10, (1e-3, 1e-5))
            for L, M in ((6, 10), (8, 20), (10, 50))
        ),
        Case("transport_3d", "transport_3d", 6, 40, "sin", 120.0, 3, (1e-2, 1e-3), 4000, 1600),
        *(
            Case("convection", f"convection:{b}", 6, 30, "sin", 30.0, 3, (1e-2, 1e-4))
            for b in (1, 10, 30, 50)
        ),
        *(
            _equation(name, SECONDS.get(name, DEFAULT_SECONDS))
            for name in TEXTBOOK
            if name not in CASES_WITHOUT_PEERS
        ),
    )
}
FAMILIES = tuple(dict.fromkeys(case.family for case in CASES.values()))
# (seconds, number of seeds) of a quick run
QUICK = {"function_1d-relu-10x10": (1.0, 3), "transport_1d-sin-6x10": (5.0, 2)}
QUICK_DEFAULT = (2.0, 2)


def select(
    names: Sequence[str | Case],
    quick: bool = False,
    seconds: float | None = None,
    seeds: int | None = None,
) -> list[Case]:
    """The cases with these names.

    Parameters
    ----------
    names : each name is "all", a family, an equation, a case, a pattern with wildcards, or a
        `Case`. The families depth, convection and equations stand for all their cases, the others
        for their first case.
    quick : whether to shorten the cases to a few seconds and seeds. Without names, the cases are
        those of `QUICK`.
    seconds, seeds : these replace the values of the cases; None: they do not
    """
    chosen: dict[str, Case] = {}
    if quick and not names:
        names = list(QUICK)
    if not names:
        raise ValueError(f"no case was named; give some of {', '.join(FAMILIES)} or all.")
    for name in names:
        for case in [name] if isinstance(name, Case) else _find(name):
            chosen[case.name] = case
    if quick:
        for name, case in chosen.items():
            short_seconds, few_seeds = QUICK.get(name, QUICK_DEFAULT)
            chosen[name] = replace(case, seconds=short_seconds, seeds=few_seeds)
    changes: dict[str, Any] = {
        key: value for key, value in (("seconds", seconds), ("seeds", seeds)) if value is not None
    }
    return [replace(case, **changes) for case in chosen.values()]


def _find(name: str) -> Iterable[Case]:
    if name == "all":
        return CASES.values()
    if name == "depth":  # a case with ten layers is among these, from the family function_1d
        sweep = [
            case
            for case in CASES.values()
            if case.experiment == "function_1d" and case.activation == "relu"
        ]
        return sorted(sweep, key=lambda case: case.depth)
    family = [case for case in CASES.values() if case.family == name]
    family = family if name in ("convection", "equations") else family[:1]
    matches = family or [
        case for case in CASES.values() if name == case.experiment or fnmatchcase(case.name, name)
    ]
    if not matches:
        known = [*FAMILIES, *CASES]
        raise ValueError(
            f"{name!r} is not a case; there are {', '.join(FAMILIES)}, all, and {', '.join(CASES)}."
            + nearest(name, known)
        )
    return matches


def chosen_rows(
    case: Case, methods: Sequence[str] | None, track: str | None
) -> list[tuple[str, str]]:
    """(track, method) of the rows of a case.

    Parameters
    ----------
    case : the case
    methods : the methods to include; None: all
    track : the track to include; None: both
    """
    if track is not None and track not in TRACKS:
        raise ValueError(
            f"track={track!r} is not known; use A (the same weights for all methods) or B (each "
            "method its own start)."
        )
    for name in methods or ():
        if name not in ENTRIES:
            raise ValueError(
                f"{name!r} is not a method; there are {', '.join(ENTRIES)}."
                + nearest(name, ENTRIES)
            )
    return [
        (t, m)
        for t, m in case.rows()
        if (track is None or t == track) and (methods is None or m in methods)
    ]
