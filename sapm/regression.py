"""Functions to learn and data to fit. Each becomes `Samples`: plain arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sapm.disk import NUMBERS, OnDisk, parts, rows_of, spool
from sapm.names import brief, stated
from sapm.pointwise import evaluate, function_of_point, place, table
from sapm.samples import Samples, data_scaling
from sapm.shapes import Domain, Shape
from sapm.term import Term, value_term

SKETCH = 1000  # samples that stand for all of them where not all are in memory


def whole(name: str, value, least: int = 1, why: str = "", most: int | None = None) -> int:
    """A count, or a sentence."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}={brief(value)} is not a whole number; give {least} or more{why}.")
    if value < least:
        raise ValueError(f"{name}={brief(value)} is too small; give {least} or more{why}.")
    if most is not None and value > most:
        raise ValueError(f"{name}={brief(value)} is too large; give {most} or less.")
    return int(value)


def domain_checked(given) -> Any:
    if not isinstance(given, Shape):
        raise TypeError(
            f"domain={brief(given)} is not a domain; use sapm.Box(t=(0, 1), x=(-1, 1)), sapm.Ball(10) or a shape made of such."
        )
    return given


def interior_points(domain: Domain, points, what: str, start: int) -> np.ndarray:
    """`points` Halton points from that index on, or the array of points given."""
    if isinstance(points, (int, np.integer, bool, float, str)) or points is None:
        return domain.points(whole(what, points), start)
    x = table(what, points, len(domain.names))
    outside = domain.gap(x) < -1e-9
    if outside.any():
        raise ValueError(f"{what} has a point outside the domain: {place(domain.names, x[outside.argmax()])}.")
    return x


# ---------------------------------------------------------------- regression


def _names(given, count: int) -> tuple[str, ...]:
    """Names of columns: any words that can be printed, all different."""
    names = () if isinstance(given, (str, bytes)) or not isinstance(given, Iterable) else tuple(given)
    if len(names) != count or not all(isinstance(name, str) for name in names) or len(set(names)) != count:
        raise ValueError(f"names={brief(given)} must be {count} different names, one for each column of X.")
    for name in names:
        if not name.strip() or name != name.strip() or not name.isprintable():
            raise ValueError(f"names has {brief(name)}; a name must be printable, without spaces at its ends, and not empty.")
    return tuple(str(name) for name in names)


@stated
@dataclass(frozen=True)
class Function:
    """Learn f on a domain from its values: f is written for one point, `lambda p: jnp.sin(p.x**2)`; it may return a vector."""

    domain: Any
    f: Callable

    def __post_init__(self):
        domain_checked(self.domain)
        function_of_point("f", self.f)
        evaluate(self.f, "f", self.domain.names, self.domain.points(2, 1), several=True)

    @property
    def outputs(self) -> int:
        return evaluate(self.f, "f", self.domain.names, self.domain.points(1, 1), several=True).shape[1]

    def samples(self, points=1000, boundary_points=None, test_points=1000, mu=None) -> Samples:
        """Training points are the first Halton points, test points the next."""
        domain = self.domain
        x = interior_points(domain, points, "points", domain.first)
        at = lambda x: evaluate(self.f, "f", domain.names, x, several=True)  # noqa: E731
        test = {}
        if not (isinstance(test_points, (int, np.integer)) and test_points == 0):
            test["x"] = interior_points(domain, test_points, "test_points", domain.first + len(x))
            test["y"] = at(test["x"])
        return Samples("regression", domain.names, domain.describe(), (value_term(x, at(x)),), test)


@stated
@dataclass(frozen=True)
class Regression:
    """Fit given data: X (n, d) or (n,), Y (n, m) or (n,). `test=(X, Y)`: scored at the end.

    `validation=(X, Y)`: the network that fits these best is kept, and a seed stops when it no longer improves on them.
    `weights`: (n,), how much each sample counts. Coordinates are x (one input) or x1, x2, …, unless `names` says otherwise.
    X, Y and weights may be memory maps, or arrays on disk like those of h5py and zarr: they are then read by rows.
    """

    X: Any
    Y: Any
    test: tuple | None = None
    validation: tuple | None = None
    weights: Any = None
    names: Sequence[str] | None = None

    def __post_init__(self):
        X, Y = self._pair("X", "Y", (self.X, self.Y), read=rows_of)
        n, d = X.shape
        usual = ("x",) if d == 1 else tuple(f"x{i}" for i in range(1, d + 1))
        names = usual if self.names is None else _names(self.names, d)
        weights, total = None, float(n)
        if self.weights is not None:
            weights = rows_of("weights", self.weights, 1)
            least, total = min(part.min() for _, part in parts(weights)), sum(float(part.sum()) for _, part in parts(weights))
            if len(weights) != n or least < 0 or total == 0:
                raise ValueError(f"weights must be {n} numbers, none negative and not all 0; got {len(weights)} from {least:g}.")
            weights = weights if isinstance(weights, OnDisk) else weights[:, 0]
        object.__setattr__(self, "_total", total)
        values = {"X": X, "Y": Y, "names": names, "weights": weights}
        for part in ("test", "validation"):
            given = getattr(self, part)
            values[part] = None if given is None else self._pair(f"{part} X", f"{part} Y", given, d, Y.shape[1])
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @staticmethod
    def _pair(x_name: str, y_name: str, pair, d=None, m=None, read=table) -> tuple[Any, Any]:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"{x_name[:-2]} must be a pair (X, Y); got {type(pair).__name__}.")
        X, Y = read(x_name, pair[0], d), read(y_name, pair[1], m)
        if len(X) != len(Y):
            raise ValueError(f"{x_name} has {len(X)} samples and {y_name} has {len(Y)}; they must be equal.")
        return X, Y

    @property
    def outputs(self) -> int:
        return self.Y.shape[1]

    @classmethod
    def from_batches(cls, batches: Iterable, folder: str | Path | None = None, **more) -> Regression:
        """From any iterable of pairs (X, Y), which is gone through once and written to X.npy and Y.npy.

        They are in the folder given, or in a temporary one that is removed with the problem. `more`: as for Regression.
        """
        return cls(*spool(batches, folder), **more)

    def samples(self, points=None, boundary_points=None, test_points=None, mu=None) -> Samples:
        weight = 1.0
        if self.weights is not None:
            weights = np.asarray(self.weights).reshape(-1)
            weight = weights * (len(weights) / weights.sum())
        return self._samples(value_term(np.asarray(self.X), np.asarray(self.Y), weight))

    def _samples(self, term: Term) -> Samples:
        return Samples(
            "regression",
            tuple(self.names or ()),
            None,
            (term,),
            {} if self.test is None else dict(zip("xy", self.test, strict=True)),
            None if self.validation is None else value_term(*self.validation),
        )

    def kappa(self, rows: slice) -> np.ndarray:
        """What these samples count: κ_n, which sum to 1 over all samples."""
        many = len(range(*rows.indices(len(self.X))))
        weight = np.ones(many) if self.weights is None else np.asarray(self.weights[rows]).reshape(-1)
        return weight / self._total  # type: ignore[attr-defined]

    def sketch(self) -> Samples:
        """A few of the samples in place of all: with the units of all, and weights by which Σ κ |y|² is that of all."""
        n, many = len(self.X), max(1, NUMBERS // (self.X.shape[1] + self.outputs))
        parts = (slice(i, min(i + many, n)) for i in range(0, n, many))
        scaling, size = data_scaling((self.X[rows], self.Y[rows], self.kappa(rows)) for rows in parts)
        few = np.linspace(0, n - 1, min(n, SKETCH)).astype(int).tolist()
        x, y = (np.concatenate([a[i : i + 1] for i in few]) for a in (self.X, self.Y))
        shown = float(np.mean(np.sum(y**2, axis=1)))
        return replace(self._samples(value_term(x, y, size / shown if shown and size else 1.0)), kept=scaling)
