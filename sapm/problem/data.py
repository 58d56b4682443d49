"""Problems given by values: functions to learn (`Function`) and data to fit (`Regression`).

Each becomes `Samples`, plain arrays. Data may lie on disk; they are then read by rows and are never
in memory as a whole (`OnDisk`).
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Protocol

import jax
import numpy as np
from numpy.lib import format as npy
from scipy.sparse import issparse

from sapm.errors import brief, by_name
from sapm.objective.losses import Loss, Square
from sapm.objective.terms import Term, value_term
from sapm.problem.domain import Domain
from sapm.problem.functions import (
    check_sizes,
    checked_domain,
    evaluate,
    function_of_point,
    interior_points,
    no_points,
    table,
)
from sapm.problem.samples import Samples, data_scaling
from sapm.problem.stored import column_name
from sapm.scopes import untraced

SKETCH_SAMPLES = 1000  # samples that stand for data too large for memory
READ_NUMBERS = 2**21  # numbers read from disk at a time


# ---------------------------------------------------------------- a function to learn


@by_name
@dataclass(frozen=True)
class Function:
    """Learn a function f on a domain from its values at points.

    Parameters
    ----------
    domain : a Box, a Ball or a combination, on which f is learned.
    f : f of one point p, such as `lambda p: jnp.sin(p.x**2)`; it may return several numbers.

    Example: `sapm.solve(sapm.Function(sapm.Box(x=(-1, 1)), lambda p: jnp.exp(-p.x**2)))`.
    """

    domain: Domain
    f: Callable
    kind: ClassVar[str] = "regression"

    @untraced
    def __post_init__(self):
        checked_domain(self.domain)
        function_of_point("f", self.f)
        self._values(self.domain.points(2, 1))

    def _values(self, x: np.ndarray) -> np.ndarray:
        return evaluate(self.f, "f", self.domain.names, x, several=True)

    @property
    def outputs(self) -> int:
        """The number of values of f."""
        return self._values(self.domain.points(1, 1)).shape[1]

    @property
    def inputs(self) -> int:
        """The number of coordinates."""
        return len(self.domain.names)

    def size(self, points: Any, boundary_points: Any = None) -> tuple[int, int]:
        """The number of residuals, and of tangents at all samples, before these are drawn."""
        return points * self.outputs, 0

    def samples(
        self, points: Any = 1000, boundary_points: Any = None, test_points: Any = 1000, mu=None
    ) -> Samples:
        """Values at the first Halton points, and at the next ones as the test set.

        Parameters
        ----------
        points, test_points : how many points, or arrays (n, d) of points. No test set for
            `test_points=0`.
        boundary_points, mu : not used: they belong to PDEs.
        """
        domain = self.domain
        x = interior_points(domain, points, "points", domain.first)
        test = {}
        if not no_points(test_points):
            test["x"] = interior_points(domain, test_points, "test_points", domain.first + len(x))
            test["y"] = self._values(test["x"])
        term = value_term(x, self._values(x))
        return Samples(self.kind, domain.names, domain.describe(), (term,), test)


# ---------------------------------------------------------------- data to fit


def _column_names(names, count: int) -> tuple[str, ...]:
    """Checked names of the columns of X: printable words, all different."""
    iterable = isinstance(names, Iterable) and not isinstance(names, (str, bytes))
    words: tuple[Any, ...] = tuple(names) if iterable else ()
    strings = all(isinstance(name, str) for name in words)
    if len(words) != count or not strings or len(set(words)) != count:
        raise ValueError(
            f"names={brief(names)} must be {count} different names, one for each column of X."
        )
    return tuple(column_name("names", str(name)) for name in words)


DATA_AS_PROBLEM = " Data are a problem: sapm.Regression(X, y)."  # for `by_name`


@by_name
@dataclass(frozen=True)
class Regression:
    """Fit given data (X, Y).

    Parameters
    ----------
    X : (n, d) or (n,) the inputs. X, Y and weights may be memory maps or arrays on disk, such as
        those of h5py and zarr; they are then read by rows.
    Y : (n, m) or (n,) the values to fit.
    test : (X, Y), data that are scored at the end.
    validation : (X, Y), held-out data: the network that fits them best is kept, and
        training stops when they no longer improve.
    weights : (n,) how much each sample counts.
    names : names of the columns of X. Default: x for one column, else x1, x2, ….
    loss : what a prediction costs, such as softmax cross-entropy. Default: the square of the
        difference. Other losses need `model="ls"` or `method="auto"`.

    Example: `sapm.solve(sapm.Regression(X, Y, test=(X_test, Y_test)))`.
    """

    X: Any
    Y: Any
    test: tuple | None = None
    validation: tuple | None = None
    weights: Any = None
    names: Sequence[str] | None = None
    loss: Loss | None = None
    kind: ClassVar[str] = "regression"

    @partial(untraced, computes=False)
    def __post_init__(self):
        if not isinstance(self.loss, (Loss, NoneType)):
            raise TypeError(
                f"loss: got {brief(self.loss)}, expected an object of a subclass of "
                "sapm.objective.losses.Loss."
            )
        X, Y = self._pair("X", "Y", (self.X, self.Y), read=table_or_disk)
        n, d = X.shape
        default = ("x",) if d == 1 else tuple(f"x{i}" for i in range(1, d + 1))
        weights, total = self._weights(n)
        checked = {
            "X": X,
            "Y": Y,
            "names": default if self.names is None else _column_names(self.names, d),
            "weights": weights,
            "_total": total,
        }
        for part in ("test", "validation"):
            pair = getattr(self, part)
            if pair is not None:
                pair = self._pair(f"{part} X", f"{part} Y", pair, d, Y.shape[1])
            checked[part] = pair
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def _weights(self, n: int) -> tuple[Any, float]:
        """The weights, checked, and their sum; None and n where there are none."""
        if self.weights is None:
            return None, float(n)
        weights = table_or_disk("weights", self.weights, 1)
        least = min(part.min() for _, part in parts(weights))
        total = sum(float(part.sum()) for _, part in parts(weights))
        if len(weights) != n or least < 0 or total == 0:
            raise ValueError(
                f"weights must be {n} numbers, none negative and not all 0; got {len(weights)}, "
                f"the smallest {least:g}."
            )
        return weights if isinstance(weights, OnDisk) else weights[:, 0], total

    @staticmethod
    def _pair(x_name: str, y_name: str, pair, d=None, m=None, read=table) -> tuple[Any, Any]:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"{x_name[:-2]} must be a pair (X, Y); got {type(pair).__name__}.")
        X = read(x_name, pair[0], d)
        Y = read(y_name, pair[1], m)
        if len(X) != len(Y):
            raise ValueError(
                f"{x_name} has {len(X)} samples and {y_name} has {len(Y)}; they must be equal."
            )
        return X, Y

    @property
    def squared(self) -> bool:
        """Whether the loss is the square of the residual."""
        return isinstance(self.loss, (Square, NoneType))

    @property
    def outputs(self) -> int:
        """The number of columns of Y."""
        return self.Y.shape[1]

    @property
    def inputs(self) -> int:
        """The number of columns of X."""
        return self.X.shape[1]

    def size(self, points: Any = None, boundary_points: Any = None) -> tuple[int, int]:
        """The number of residuals, and of tangents (none), whatever the settings."""
        return len(self.X) * self.outputs, 0

    @classmethod
    def from_batches(
        cls, batches: Iterable, folder: str | Path | None = None, **more
    ) -> Regression:
        """A Regression from an iterable of pairs (X, Y), written to disk while it is read once.

        Parameters
        ----------
        batches : pairs (X, Y), one after the other.
        folder : where X.npy and Y.npy are written. Default: a temporary folder, which is removed
            together with the problem.
        more : other parameters of `Regression`.
        """
        return cls(*spool(batches, folder), **more)

    def samples(
        self, points: Any = None, boundary_points: Any = None, test_points: Any = None, mu=None
    ) -> Samples:
        """All data as one term.

        Parameters
        ----------
        points, boundary_points, test_points, mu : not used: they belong to other problems.
        """
        weight: Any = 1.0
        if self.weights is not None:
            weights = np.asarray(self.weights).reshape(-1)
            weight = weights * (len(weights) / weights.sum())
        return self._samples(value_term(np.asarray(self.X), np.asarray(self.Y), weight, self.loss))

    def _samples(self, term: Term) -> Samples:
        return Samples(
            self.kind,
            tuple(self.names or ()),
            None,
            (term,),
            {} if self.test is None else dict(zip("xy", self.test, strict=True)),
            None if self.validation is None else value_term(*self.validation, loss=self.loss),
        )

    def kappa(self, rows: slice) -> np.ndarray:
        """The weights κ_n of these samples; over all samples they sum to 1."""
        count = len(range(*rows.indices(len(self.X))))
        if self.weights is None:
            weight = np.ones(count)
        else:
            weight = np.asarray(self.weights[rows]).reshape(-1)
        return weight / self._total  # type: ignore[attr-defined]

    def sketch(self) -> Samples:
        """A few samples in place of all, with the units and the weighted Σ κ |y|² of all."""
        n = len(self.X)
        step = max(1, READ_NUMBERS // (self.X.shape[1] + self.outputs))
        pieces = (slice(i, min(i + step, n)) for i in range(0, n, step))
        scaling, size = data_scaling(
            (self.X[rows], self.Y[rows], self.kappa(rows)) for rows in pieces
        )
        few = np.linspace(0, n - 1, min(n, SKETCH_SAMPLES)).astype(int).tolist()
        x, y = (np.concatenate([a[i : i + 1] for i in few]) for a in (self.X, self.Y))
        mean_square = float(np.mean(np.sum(y**2, axis=1)))
        weight = size / mean_square if mean_square and size else 1.0
        return replace(self._samples(value_term(x, y, weight)), fixed_scaling=scaling)


# ---------------------------------------------------------------- data on disk


class RowSource(Protocol):
    """An array on disk: a NumPy memory map, or a dataset of h5py or zarr."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Any: ...
    def __getitem__(self, rows: slice) -> Any: ...


class OnDisk:
    """A table (n, columns) of float64 on disk; `a[i:j]` reads rows i to j - 1.

    Parameters
    ----------
    source : the array on disk, (n, columns) or (n,).
    owner : an object that must live as long as the table, such as its temporary folder.
    """

    dtype = np.dtype(float)

    def __init__(self, source: RowSource | np.memmap, owner: Scratch | None = None):
        self.source = source
        self.owner = owner
        self.shape = (source.shape[0], source.shape[1] if len(source.shape) > 1 else 1)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        part = np.array(self.source[rows], dtype=float)
        return part.reshape(len(part), self.shape[1])

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return self[0 : len(self)]


def on_disk(a) -> bool:
    """Whether an array is read by slices: a memory map, or like a dataset of h5py or zarr."""
    if isinstance(a, (np.memmap, OnDisk)):
        return True
    if isinstance(a, (np.ndarray, np.generic, jax.Array)) or hasattr(a, "iloc"):
        return False
    if issparse(a):
        return False
    sliced = all(hasattr(a, name) for name in ("shape", "__getitem__"))
    return sliced and isinstance(getattr(a, "dtype", None), np.dtype)


def parts(a: np.ndarray | OnDisk) -> Iterator[tuple[int, np.ndarray]]:
    """(index of the first row, rows) of a table, a few megabytes at a time."""
    step = max(1, READ_NUMBERS // max(1, a.shape[1]))
    for i in range(0, len(a), step):
        yield i, a[i : min(i + step, len(a))]


def table_or_disk(name: str, a, columns: int | None = None) -> np.ndarray | OnDisk:
    """A finite table (n, columns) of float64, in memory or on disk as `a` is.

    Parameters
    ----------
    name : what the table is, for errors.
    columns : the expected number of columns.
    """
    if not on_disk(a):
        return table(name, a, columns)
    shape = tuple(a.shape)
    checked = isinstance(a, OnDisk)
    if np.dtype(a.dtype).kind not in "biuf":
        raise TypeError(f"{name} must hold real numbers; the array on disk holds {a.dtype}.")
    if len(shape) not in (1, 2) or 0 in shape:
        raise ValueError(
            f"{name} has shape {shape}; give one row per sample, (n, columns), with n ≥ 1."
        )
    rows = a if checked else OnDisk(a)
    if columns is not None and rows.shape[1] != columns:
        raise ValueError(f"{name} has {rows.shape[1]} columns; {columns} are wanted.")
    if checked:
        return rows
    largest = np.zeros(rows.shape[1])
    for first, part in parts(rows):
        largest = np.maximum(largest, np.abs(part).max(0))
        if not np.isfinite(part).all():
            i, j = np.argwhere(~np.isfinite(part))[0]
            raise ValueError(
                f"{name} has {part[i, j]} in row {first + i}, column {j}; all entries must be "
                "finite: remove or fill such rows."
            )
    check_sizes(name, largest)
    return rows


class Scratch:
    """A temporary folder, removed with this object or when the process ends."""

    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="sapm-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class _Growing:
    """A .npy file (n, columns) of float64 to which rows are appended."""

    def __init__(self, path: Path, columns: int):
        self.path = path
        self.columns = columns
        self.count = 0
        self.file = open(path, "xb")  # noqa: SIM115
        self.write_header()

    def write_header(self) -> None:
        shape = (self.count, self.columns)
        header = {"descr": "<f8", "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(self.file, header)

    def add(self, rows: np.ndarray) -> None:
        self.file.write(np.ascontiguousarray(rows).data)
        self.count += len(rows)

    def remove(self) -> None:
        """Close the file and delete it."""
        self.file.close()
        self.path.unlink()

    def close(self) -> np.memmap:
        """Write the header again, now that the count is known, and open the file for reading.

        NumPy pads headers, so that one with any number of rows has the same length.
        """
        self.file.seek(0)
        self.write_header()
        self.file.close()
        return np.load(self.path, mmap_mode="r")


def spool(batches: Iterable, folder: str | Path | None = None) -> tuple[OnDisk, OnDisk]:
    """Write pairs (X, Y) to folder/X.npy and folder/Y.npy, and open them as tables.

    Parameters
    ----------
    batches : pairs (X, Y) of arrays.
    folder : the folder; None is a temporary one, which is removed with the last of the tables.
    """
    scratch = None
    if folder is None:
        scratch = Scratch()
        folder = scratch.path
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    existing = [str(path / name) for name in ("X.npy", "Y.npy") if (path / name).exists()]
    if existing:
        raise ValueError(
            f"{existing[0]} exists already; choose another folder, or open it: "
            "numpy.load(…, mmap_mode='r')."
        )
    files: list[_Growing] = []
    with ExitStack() as unless_whole:
        for k, batch in enumerate(batches):
            columns = [file.columns for file in files] or [None, None]
            pair = _batch(k, batch, columns)
            if not files:
                for name, a in zip("XY", pair, strict=True):
                    files.append(_Growing(path / f"{name}.npy", a.shape[1]))
                    unless_whole.callback(files[-1].remove)
            for file, a in zip(files, pair, strict=True):
                file.add(a)
        if not files:
            raise ValueError("batches is empty; give at least one pair (X, Y).")
        unless_whole.pop_all()  # the files are kept
    X, Y = (OnDisk(file.close(), scratch) for file in files)
    return X, Y


def _batch(k: int, batch, columns: Sequence[int | None]) -> list[np.ndarray]:
    """Batch k as two tables of equal length."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise TypeError(f"batch {k} must be a pair (X, Y); got {type(batch).__name__}.")
    X, Y = (
        table(f"{name} of batch {k}", a, c) for name, a, c in zip("XY", batch, columns, strict=True)
    )
    if len(X) != len(Y):
        raise ValueError(f"batch {k} has {len(X)} rows of X and {len(Y)} of Y; they must be equal.")
    return [X, Y]
