"""Small model files and checkpoints of every kind of run, for the trials that change them.

`KINDS` has the problem and the settings of each. `make` trains them for a few steps and writes
their files; `stored_kinds` adds the files of version 0.1 that `tests/golden` keeps.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sapm
from sapm.driver import solve as driver
from sapm.methods.gauss_newton import gauss_newton

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden" / "files"
SMALL = {
    "depth": 3,
    "width": 4,
    "points": 20,
    "boundary_points": 8,
    "test_points": 10,
    "seeds": 2,
    "max_iter": 3,
    "progress": False,
}


class Huber(sapm.Loss):
    """Σ_i √(1 + (p_i - y_i)²) - 1."""

    def value(self, prediction, target):
        return jnp.sum(jnp.sqrt(1 + (prediction - target) ** 2) - 1, axis=-1)

    def quadratic(self, prediction, target):
        d = prediction - target
        root = (1 + d**2) ** -0.25 / jnp.sqrt(2.0)
        return d * root, jax.vmap(jnp.diag)(root)


@dataclass(frozen=True, kw_only=True)
class Own(sapm.Method):
    """A method of the user's own: Gauss-Newton by another name."""

    name = "own"

    def engine(self, objective, widths, sigma, init, start):
        return gauss_newton(objective, widths, sigma, init=init)


@dataclass(frozen=True)
class Kind:
    """A kind of run, and how its file is written and read again.

    Parameters
    ----------
    problem : makes the problem; None for a file without one.
    settings : those of `sapm.solve`, in addition to `SMALL`.
    at : take the checkpoint of this iteration, when the run has not ended; None: the result.
    second : take it within a second attempt.
    code : whether the file cannot be read without the problem.
    given : what else `sapm.load` and `sapm.resume` need, such as activation=.
    file : a file that exists already.
    """

    problem: Callable[[], Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    at: int | None = None
    second: bool = False
    code: bool = False
    given: dict[str, Any] = field(default_factory=dict)
    file: Path | None = None

    @property
    def resumes(self) -> bool:
        """Whether `sapm.resume` continues the file without its folder."""
        return self.problem is not None and "chunk" not in self.settings.get("options", {})

    @property
    def known(self) -> dict[str, Any]:
        """What `sapm.load` is given."""
        return self.given | ({"problem": self.stated} if self.code else {})

    @property
    def stated(self) -> Any:
        """The problem."""
        return None if self.problem is None else _stated(self.problem)


@cache
def _stated(problem: Callable[[], Any]) -> Any:
    return problem()


# ---------------------------------------------------------------- the problems

X = np.linspace(-1, 1, 24)
XY = np.random.default_rng(0).uniform(-1, 1, (30, 2))


def curve():
    return sapm.Regression(X, np.sin(3 * X), test=(X[:5] + 0.01, np.sin(3 * X[:5])))


def weighted():
    """Samples with weights, validation data and two outputs."""
    y = np.stack([np.sin(3 * XY[:, 0]), XY[:, 1] ** 2], 1)
    return sapm.Regression(
        XY, y, weights=np.linspace(0.5, 2, 30), validation=(XY[:6] + 0.02, y[:6])
    )


def robust():
    return sapm.Regression(X, np.sin(3 * X), loss=Huber())


def function():
    ball = sapm.Ball(2, 1.5, (0.5, 0.0), names=("x", "y"))
    return sapm.Function(ball, lambda p: jnp.array([jnp.sin(p.x), p.x * p.y]))


def wave(p):
    return jnp.exp(p.t) * jnp.sin(p.x)


def transport():
    return sapm.PDE(
        sapm.Box(t=(0, 1), x=(-1, 1)),
        lambda p, u: u.t - u.x - wave(p) + jnp.exp(p.t) * jnp.cos(p.x),
        [sapm.Initial(wave), sapm.Inflow(wave)],
        wave,
    )


def heat():
    start = sapm.Initial(lambda p: jnp.sin(jnp.pi * p.x))
    return sapm.PDE(
        sapm.Box(t=(0, 1), x=(-1, 1)), lambda p, u: u.t - u.xx, [start, sapm.Periodic("x")]
    )


def detail():
    """Features of the inputs, on a domain with a hole and a piece more."""
    plate = sapm.Box(x=(-1, 1), y=(-1, 1)) - sapm.Ball(2, 0.3, names=("x", "y"))
    domain = (plate | sapm.Box(x=(0.5, 1.5), y=(-0.5, 0.5))) & sapm.Box(x=(-1, 1.2), y=(-1, 1))
    return sapm.PDE(
        domain,
        lambda p, u: u.xx + u.yy + 1.0,
        [sapm.Dirichlet(0.0)],
        features=sapm.Fourier(3),
    )


def advection():
    """What is quick to prepare: first order, features of the inputs, a domain with a hole."""
    return sapm.PDE(
        sapm.Box(x=(-1, 1), y=(-1, 1)) - sapm.Ball(2, 0.3, names=("x", "y")),
        lambda p, u: u.x - 1.0,
        [sapm.Dirichlet(0.0, faces=["x-"])],
        features=sapm.Fourier(2),
    )


def cylinder():
    """A product, with conditions of the third kind."""
    return sapm.PDE(
        sapm.Ball(2, names=("x", "y")) * sapm.Box(t=(0, 1)),
        lambda p, u: u.t - 0.1 * (u.xx + u.yy),
        [sapm.Initial(lambda p: p.x), sapm.Robin(1.0, 0.5, lambda p: p.y)],
    )


def system():
    return sapm.PDE(
        sapm.Box(x=(-1, 1)) - sapm.Ball(1, 0.3, names=("x",)),
        lambda p, u, v: (u.x - p.k * v.value, v.x + u.value),
        [
            sapm.Dirichlet(lambda p: 0.0, of="u"),
            sapm.Dirichlet(lambda p: 1.0, of="v"),
            sapm.Observed([[0.5], [0.7]], [0.1, 0.2], of="u", weight=0.5),
        ],
        parameters={"k": 1.0},
    )


def burgers():
    return sapm.PDE(
        sapm.Box(t=(0, 1), x=(-1, 1)),
        lambda p, u: u.t + u.value * u.x - 0.05 * u.xx,
        [sapm.Initial(lambda p: -jnp.sin(np.pi * p.x)), sapm.Dirichlet(0.0)],
    )


def hard():
    return sapm.PDE(
        sapm.Box(x=(0, 1), y=(0, 1)),
        lambda p, u: u.xx + u.yy + p.x,
        [sapm.Dirichlet(lambda p: p.y, hard=True)],
    )


def radiation():
    """An equation of third order, with a condition that is nonlinear in u."""
    return sapm.PDE(
        sapm.Box(x=(0, 1)),
        lambda p, u: u.xxx - u.value,
        [
            sapm.Dirichlet(1.0, faces=["x-"]),
            sapm.Condition(lambda p, u: u.x + u.value**4, faces=["x+"]),
        ],
    )


def growth():
    return sapm.PDE(
        sapm.Box(t=(0, 5)), lambda p, u: u.t - u.value * (1 - u.value), [sapm.Initial(0.1)]
    )


# ---------------------------------------------------------------- the kinds

SWEEPS = {"method": "alternating"}
GAUSS_NEWTON = {"method": "gauss-newton"}
TRUE_LOSS = GAUSS_NEWTON | {"model": "ls", "max_iter": 20}
REDRAWN = TRUE_LOSS | {"options": {"resample": 2}}
STAGED = TRUE_LOSS | {"options": {"resample": 2, "stages": 2}}

KINDS: dict[str, Kind] = {
    "curve": Kind(curve),
    "weighted": Kind(weighted, {"method": "lbfgs", "model": "ls"}),
    "weighted, unfinished": Kind(weighted, SWEEPS | {"model": "pm"}, at=2),
    "own loss": Kind(robust, {"method": "adam", "model": "ls"}, code=True),
    "own activation": Kind(
        curve, GAUSS_NEWTON | {"activation": jnp.arctan}, given={"activation": jnp.arctan}
    ),
    "own method": Kind(curve, {"method": Own()}),
    "own method, given": Kind(curve, {"method": Own()}, given={"method": Own()}),
    "one width each": Kind(
        curve, {"method": "adam", "model": "sapm", "width": [4, 3], "alpha": [1, 2, 3]}
    ),
    "gradient descent": Kind(curve, {"method": "gd", "model": "ls"}),
    "diverged": Kind(
        curve, {"method": "gd", "model": "ls", "max_iter": 60, "options": {"learning_rate": 1e3}}
    ),
    "survivors": Kind(curve, SWEEPS | {"seeds": 8, "max_iter": 40, "options": {"survivors": 2}}),
    "polished": Kind(curve, SWEEPS | {"options": {"polish_after": 2}}),
    "mixed precision": Kind(curve, SWEEPS | {"options": {"precision": "mixed"}}),
    "by chunks": Kind(curve, SWEEPS | {"options": {"chunk": 10}}),
    "function": Kind(function, {"method": "lbfgs", "model": "pm"}),
    "transport": Kind(transport, SWEEPS),
    "transport, unfinished": Kind(transport, GAUSS_NEWTON | {"options": {"lifted": 3}}, at=2),
    "heat": Kind(heat, GAUSS_NEWTON | {"options": {"directional": True}}),
    "detail": Kind(detail, GAUSS_NEWTON | {"options": {"resample": 0}}),
    "advection": Kind(advection, {"method": "adam", "model": "ls"}),
    "cylinder": Kind(cylinder, {"method": "lbfgs"}),
    "cylinder, redrawn": Kind(cylinder, REDRAWN, at=5),
    "system": Kind(system, code=True),
    "system, redrawn": Kind(system, REDRAWN, at=5, code=True),
    "burgers": Kind(burgers, REDRAWN, code=True),
    "burgers, redrawn": Kind(burgers, REDRAWN, at=5, code=True),
    "hard": Kind(hard, {"method": "adam", "model": "ls"}, code=True),
    "radiation": Kind(radiation, code=True),
    "growth, stages": Kind(growth, STAGED, at=5, code=True),
    "growth, second": Kind(growth, REDRAWN, at=3, second=True, code=True),
    "estimator": Kind(),
}


def stored_kinds() -> dict[str, Kind]:
    """The files of version 0.1: results, and checkpoints of runs that had ended."""
    tests = str(GOLDEN.parents[1])
    if tests not in sys.path:
        sys.path.append(tests)
    from golden.make_files import CASES

    found = {}
    for name, (problem, settings) in CASES.items():
        code = name in ("burgers", "growth")
        for file in ("model.sapm", "checkpoint/latest.sapm"):
            what = Path(file).stem
            stored = GOLDEN / name / file
            found[f"{name} 0.1, {what}"] = Kind(problem, settings, code=code, file=stored)
    return found


class _Enough(Exception):
    """The checkpoint that is wanted has been written."""


def _checkpoint(kind: Kind, out: Path) -> Path:
    """The checkpoint of a run that is ended by an error in the middle."""
    latest = out / "checkpoint" / "latest.sapm"

    def stop(progress) -> None:
        second = (out / "first.sapm").exists()
        if progress.iteration >= (kind.at or 0) and second == kind.second and latest.exists():
            raise _Enough

    old = driver.CHECKPOINT_INTERVAL_SECONDS, driver.CHECKPOINT_INTERVAL_WRITES
    due = driver.second_attempt_is_due
    driver.CHECKPOINT_INTERVAL_SECONDS, driver.CHECKPOINT_INTERVAL_WRITES = 0.0, 0
    if kind.second:
        driver.second_attempt_is_due = lambda result, seconds: True
    try:
        sapm.solve(kind.stated, **SMALL | kind.settings, out=out, on_record=stop)
    except _Enough:
        return latest
    finally:
        driver.CHECKPOINT_INTERVAL_SECONDS, driver.CHECKPOINT_INTERVAL_WRITES = old
        driver.second_attempt_is_due = due
    raise RuntimeError(f"{out} has ended before iteration {kind.at}")


def _write(kind: Kind, path: Path) -> None:
    """Make the file of one kind."""
    if kind.file is not None:
        shutil.copy(kind.file, path)
    elif kind.problem is None:
        fitted = sapm.SAPMRegressor(2, 4, max_iter=3).fit(XY, XY[:, 0] * XY[:, 1])
        fitted.result_.save(path)
    elif kind.at is None:
        with tempfile.TemporaryDirectory() as folder:
            sapm.solve(kind.stated, **SMALL | kind.settings, out=Path(folder) / "run").save(path)
    else:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(_checkpoint(kind, Path(folder) / "run"), path)


def all_kinds() -> dict[str, Kind]:
    return KINDS | stored_kinds()


def make(folder: Path, kinds: Mapping[str, Kind]) -> None:
    """Write a file of each kind, by its name, unless it is there.

    Parameters
    ----------
    folder : where they are written.
    kinds : the kinds by name.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, kind in kinds.items():
            path = folder / f"{name}.sapm"
            if not path.exists():
                _write(kind, path)
