"""Arrays on disk, read by rows and never whole; and batches written to such arrays once."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.lib import format as npy

from sapm.pointwise import sized, table

NUMBERS = 2**21  # read at a time where the whole of an array is looked at


def on_disk(given) -> bool:
    """Whether it is read by slices and not held in memory: a NumPy memory map, or like a dataset of h5py or zarr."""
    if isinstance(given, (np.memmap, OnDisk)):
        return True
    if isinstance(given, (np.ndarray, np.generic, jax.Array)) or hasattr(given, "iloc"):
        return False
    return all(hasattr(given, name) for name in ("shape", "__getitem__")) and isinstance(getattr(given, "dtype", None), np.dtype)


class OnDisk:
    """Numbers on disk as a table (n, columns) of float64; `a[i:j]` reads these rows. `keep` lives as long as it does."""

    dtype = np.dtype(float)

    def __init__(self, source: Any, keep: Any = None):
        self.source, self.keep = source, keep
        self.shape = (source.shape[0], source.shape[1] if len(source.shape) > 1 else 1)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        part = np.array(self.source[rows], dtype=float)
        return part.reshape(len(part), self.shape[1])

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return self[0 : len(self)]


def parts(a) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, rows) of a table, a few megabytes at a time."""
    many = max(1, NUMBERS // max(1, a.shape[1]))
    for i in range(0, len(a), many):
        yield i, a[i : min(i + many, len(a))]


def rows_of(name: str, given, columns: int | None = None) -> np.ndarray | OnDisk:
    """A finite table (n, columns) of float64, in memory or on disk as it was given."""
    if not on_disk(given):
        return table(name, given, columns)
    shape, checked = tuple(given.shape), isinstance(given, OnDisk)
    if np.dtype(given.dtype).kind not in "biuf":
        raise TypeError(f"{name} must hold real numbers; the array on disk holds {given.dtype}.")
    if len(shape) not in (1, 2) or 0 in shape:
        raise ValueError(f"{name} has shape {shape}; give one row per sample, (n, columns), with n ≥ 1.")
    found = given if checked else OnDisk(given)
    if columns is not None and found.shape[1] != columns:
        raise ValueError(f"{name} has {found.shape[1]} columns; {columns} are wanted.")
    largest = np.ones(1)
    for first, part in () if checked else parts(found):
        largest = np.abs(part).max(0) if first == 0 else np.maximum(largest, np.abs(part).max(0))
        if not np.isfinite(part).all():
            i, j = np.argwhere(~np.isfinite(part))[0]
            raise ValueError(
                f"{name} has {part[i, j]} in row {first + i}, column {j}; all entries must be finite: remove or fill such rows."
            )
    sized(name, largest)
    return found


class Scratch:
    """A temporary folder that is removed with this object, or when the process ends."""

    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="sapm-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class _Growing:
    """A .npy file (n, columns) of float64 that rows are added to; its header is written again when n is known."""

    def __init__(self, path: Path, columns: int):
        self.path, self.columns, self.count = path, columns, 0
        self.file = open(path, "xb")  # noqa: SIM115
        self.header()

    def header(self) -> None:
        npy.write_array_header_1_0(self.file, {"descr": "<f8", "fortran_order": False, "shape": (self.count, self.columns)})

    def add(self, rows: np.ndarray) -> None:
        self.file.write(np.ascontiguousarray(rows).data)
        self.count += len(rows)

    def close(self) -> np.memmap:
        self.file.seek(0)
        self.header()  # NumPy leaves room in it for a number of rows of any length
        self.file.close()
        return np.load(self.path, mmap_mode="r")


def spool(batches: Iterable, folder: str | Path | None = None) -> tuple[OnDisk, OnDisk]:
    """Pairs (X, Y), one after the other, as two tables on disk: folder/X.npy and folder/Y.npy.

    Without a folder they are in a temporary one, which goes with the last of the tables.
    """
    keep = Scratch() if folder is None else None
    path = Path(folder) if folder is not None else keep.path  # type: ignore[union-attr]
    path.mkdir(parents=True, exist_ok=True)
    there = [str(path / name) for name in ("X.npy", "Y.npy") if (path / name).exists()]
    if there:
        raise ValueError(f"{there[0]} exists already; choose another folder, or open it: numpy.load(…, mmap_mode='r').")
    files: list[_Growing] = []
    try:
        for k, batch in enumerate(batches):
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise TypeError(f"batch {k} must be a pair (X, Y); got {type(batch).__name__}.")
            columns = [file.columns for file in files] or [None, None]
            pair = [table(f"{name} of batch {k}", a, c) for name, a, c in zip("XY", batch, columns, strict=True)]
            if len(pair[0]) != len(pair[1]):
                raise ValueError(f"batch {k} has {len(pair[0])} rows of X and {len(pair[1])} of Y; they must be equal.")
            files = files or [_Growing(path / f"{name}.npy", a.shape[1]) for name, a in zip("XY", pair, strict=True)]
            for file, a in zip(files, pair, strict=True):
                file.add(a)
        if not files:
            raise ValueError("batches is empty; give at least one pair (X, Y).")
    except BaseException:
        for file in files:
            file.file.close()
            file.path.unlink()
        raise
    X, Y = (OnDisk(file.close(), keep) for file in files)
    return X, Y
