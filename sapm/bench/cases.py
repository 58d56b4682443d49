"""What is measured: cases with their budgets and targets, and the methods that are entered. Light to import."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from sapm import textbook
from sapm.experiments import EXPERIMENTS, convection
from sapm.names import nearest

TRACKS = ("A", "B")
WARM_UP_SEED = 1000  # compiled on, never scored; choices were made on 100 to 109, scores are on 0, 1, …


@dataclass(frozen=True)
class Entry:
    """A method. `group`: "ours", "peer" (trains the same network), "linear" (random features) or "sanity" (no network)."""

    name: str
    label: str
    group: str
    tracks: str
    needs: str = ""  # packages that are not always there


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
        Entry("optimistix-lm-cholesky", "optimistix LM by normal equations", "peer", "B", "optimistix"),
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
STRONG = (  # of the depth sweep
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
BEYOND = tuple(  # of equations that PM and SAPM do not know
    ("B", name) for name in ("auto", "ls-lbfgs", "optimistix-lm", "optimistix-lm-cholesky", "scipy-bfgs", "adam-lbfgs", "deepxde")
)
LINEAR = (*BEYOND, ("B", "features-many"))
NONLINEAR = ("nonlinear_poisson", "burgers", "allen_cahn")


@dataclass(frozen=True)
class Case:
    """A problem, a network and a budget. `experiment` is a built-in one, or convection with its speed: "convection:30"."""

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
        return f"{self.experiment.replace(':', '_')}-{self.activation}-{self.depth}x{self.width}"

    @property
    def title(self) -> str:
        problem, _, speed = self.experiment.partition(":")
        speed = f" β = {speed}" if speed else ""
        return f"{problem}{speed}, {self.activation} ({self.depth},{self.width})"

    @property
    def is_pde(self) -> bool:
        return not self.experiment.startswith("function")

    @property
    def inputs(self) -> int:
        return {"function_1d": 1, "function_10d": 10, "transport_3d": 4, "poisson_5d": 5}.get(self.experiment, 2)

    @property
    def features(self) -> int:
        """How many random features stand in the second row of those."""
        return 1000 if self.inputs > 2 else 100

    def problem(self):
        name, _, speed = self.experiment.partition(":")
        return convection(float(speed)) if name == "convection" else EXPERIMENTS[name].problem()

    def rows(self) -> list[tuple[str, str]]:
        """(track, method) of every row of its table."""
        if self.only is not None:
            return list(self.only)
        return [(track, e.name) for track in TRACKS for e in ENTRIES.values() if track in e.tracks and self._suits(e.name)]

    def _suits(self, method: str) -> bool:
        if method == "sklearn-mlp":
            return not self.is_pde and self.activation in ("relu", "tanh", "sigmoid")
        if method == "deepxde":
            return self.experiment in textbook.PROBLEMS
        if method == "interpolation":
            return self.experiment == "function_1d"
        return method != "ls-straight" or self.activation != "relu"  # on relu nothing is bent


def _function(activation: str, depth: int, seconds: float, family: str = "function_1d", only=None) -> Case:
    points: dict[str, Any] = {"points": 100, "test_points": 1000}
    return Case(family, "function_1d", depth, 10, activation, seconds, 10, (1e-2, 3e-3), **points, only=only)


def _equation(name: str, seconds: float) -> Case:
    """A textbook problem with the textbook's network and points."""
    settings, (depth, width) = EXPERIMENTS[name].settings, textbook.PROBLEMS[name].size
    points = {key: settings[key] for key in ("points", "boundary_points", "test_points")}
    rows = BEYOND if name in NONLINEAR else LINEAR
    return Case("equations", name, depth, width, settings["activation"], seconds, 3, (1e-3, 1e-6), **points, only=rows)


UNMATCHED = ("lotka_volterra", "burgers_inverse")  # two functions, or a number to find: what the peers do not do
SECONDS = {"poisson_5d": 120.0, "burgers": 300.0, "allen_cahn": 300.0}  # 60 for the other equations
CASES = {
    case.name: case
    for case in (
        *(_function(activation, 10, 2.0) for activation in ("relu", "tanh", "sin")),
        *(_function("relu", depth, s, "depth", STRONG) for depth, s in ((6, 2.0), (20, 2.0), (40, 4.0), (80, 8.0))),
        Case("function_10d", "function_10d", 10, 10, "relu", 60.0, 3, (3e-3,), points=10_000),
        *(Case("transport_1d", "transport_1d", L, M, "sin", 20.0, 10, (1e-3, 1e-5)) for L, M in ((6, 10), (8, 20), (10, 50))),
        Case("transport_3d", "transport_3d", 6, 40, "sin", 120.0, 3, (1e-2, 1e-3), 4000, 1600),
        *(Case("convection", f"convection:{b}", 6, 30, "sin", 30.0, 3, (1e-2, 1e-4)) for b in (1, 10, 30, 50)),
        *(_equation(name, SECONDS.get(name, 60.0)) for name in textbook.PROBLEMS if name not in UNMATCHED),
    )
}
FAMILIES = tuple(dict.fromkeys(case.family for case in CASES.values()))
QUICK = {"function_1d-relu-10x10": (1.0, 3), "transport_1d-sin-6x10": (5.0, 2)}  # seconds, seeds


def select(
    names: Sequence[str | Case], quick: bool = False, seconds: float | None = None, seeds: int | None = None
) -> list[Case]:
    """The cases meant: "all", a family (its first; all of depth, convection, equations), an equation, a case or a pattern."""
    found: dict[str, Case] = {}
    if quick and not names:
        names = list(QUICK)
    if not names:
        raise ValueError(f"no case was named; give some of {', '.join(FAMILIES)} or all.")
    for name in names:
        for case in [name] if isinstance(name, Case) else _find(name):
            found[case.name] = case
    if quick:
        less = {"seconds": 2.0, "seeds": 2}
        for name, case in found.items():
            short = dict(zip(less, QUICK[name], strict=True)) if name in QUICK else less
            found[name] = replace(case, **short)
    changes: dict[str, Any] = {k: v for k, v in (("seconds", seconds), ("seeds", seeds)) if v is not None}
    return [replace(case, **changes) for case in found.values()]


def _find(name: str) -> Iterable[Case]:
    if name == "all":
        return CASES.values()
    if name == "depth":  # the case of ten layers is among those of function_1d
        sweep = [case for case in CASES.values() if case.experiment == "function_1d" and case.activation == "relu"]
        return sorted(sweep, key=lambda case: case.depth)
    family = [case for case in CASES.values() if case.family == name]
    family = family if name in ("convection", "equations") else family[:1]
    found = family or [c for c in CASES.values() if name == c.experiment or fnmatchcase(c.name, name)]
    if not found:
        known = [*FAMILIES, *CASES]
        raise ValueError(
            f"{name!r} is not a case; there are {', '.join(FAMILIES)}, all, and {', '.join(CASES)}." + nearest(name, known)
        )
    return found


def chosen_rows(case: Case, methods: Sequence[str] | None, track: str | None) -> list[tuple[str, str]]:
    """The rows of a case that were asked for."""
    if track is not None and track not in TRACKS:
        raise ValueError(f"track={track!r} is not known; use A (the same weights for all) or B (each its own start).")
    for name in methods or ():
        if name not in ENTRIES:
            raise ValueError(f"{name!r} is not a method; there are {', '.join(ENTRIES)}." + nearest(name, ENTRIES))
    return [(t, m) for t, m in case.rows() if (track is None or t == track) and (methods is None or m in methods)]
