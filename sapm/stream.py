"""Training on data that are on disk: the sweeps of `sapm.methods.streamed`, with the auxiliary variables on disk as well.

Nothing is ever copied: a pass writes the new a_l to a spare file, and a state says which file holds which layer. Files that the
state, or the last checkpoint, names are not written to, so a run can be cut off anywhere and continued from there.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.lib import format as npy

from sapm.disk import Scratch
from sapm.groups import Groups, measured
from sapm.jet import float64
from sapm.methods.streamed import Streamed, Swept, a_chunk, close_sweep, defects_chunk, drawn_chunk, solve_layer, top_chunk
from sapm.regression import Regression
from sapm.run import Moment, Run
from sapm.samples import Scaling
from sapm.term import Term
from sapm.train import Loop, follow, keys_of, settled

WORKERS = max(2, min(8, os.cpu_count() or 2))  # chunks under way at once: some are read or written while others are computed
CHUNK_NUMBERS = 2**18  # of a layer of all seeds in a chunk, by default: they stay in a core's cache


def default_chunk(samples: int, seeds: int, widths: Sequence[int]) -> int:
    """A power of two, at least 256, or all samples."""
    many = max(256, CHUNK_NUMBERS // (seeds * max(widths)))
    return min(samples, 2 ** (many.bit_length() - 1))


@dataclass(frozen=True)
class Source:
    """The samples of a problem, in the units a network is trained in, in chunks of equal length: the last one is filled up with
    samples of weight 0."""

    problem: Regression
    scaling: Scaling
    chunk: int

    @property
    def chunks(self) -> int:
        return -(-len(self.problem.X) // self.chunk)

    def _rows(self, c: int) -> slice:
        return slice(c * self.chunk, min((c + 1) * self.chunk, len(self.problem.X)))

    def _filled(self, a: np.ndarray) -> np.ndarray:
        return np.pad(a, [(0, self.chunk - len(a))] + [(0, 0)] * (a.ndim - 1)) if len(a) < self.chunk else a

    def x(self, c: int) -> np.ndarray:
        return self._filled((self.problem.X[self._rows(c)] - self.scaling.center) / self.scaling.spread)

    def y(self, c: int) -> np.ndarray:
        return self._filled(self.problem.Y[self._rows(c)] / self.scaling.size)

    def weight(self, c: int) -> np.ndarray:
        return self._filled(self.problem.kappa(self._rows(c)) * self.scaling.size**2)

    def cut(self, c: int, a: np.ndarray) -> np.ndarray:
        """The chunk of an array (seeds, samples, …) in memory."""
        part = a[:, self._rows(c)]
        return np.pad(part, [(0, 0), (0, self.chunk - part.shape[1])] + [(0, 0)] * (a.ndim - 2))


class Files:
    """Auxiliary variables on disk, in numbered .npy files with a row for every chunk: a_l (seeds, chunk, m_l), then the step
    lengths (seeds, chunk). In the folder of a run, or in a temporary one that is removed at the end."""

    def __init__(self, folder: Path | None, seeds: int, source: Source, hidden: Sequence[int], states: Swept | None = None):
        self._scratch = Scratch() if folder is None else None
        self.path = folder or self._scratch.path  # type: ignore[union-attr]
        self.seeds, self.chunk, self.chunks, self.hidden = seeds, source.chunk, source.chunks, hidden
        self._sizes: dict[int, tuple[int, int]] = {}  # number → numbers in a row, bytes of the header
        self._unsynced: set[int] = set()
        self._held: set[int] = set()
        self.path.mkdir(parents=True, exist_ok=True)
        if states is None:
            self._check_room()
        else:
            self.hold(states)
            self._check_there(states)
        for path in self.path.glob("aux-*.npy"):
            if path not in map(self.file, self._sizes):
                path.unlink()

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *error) -> None:
        if self._scratch is not None:
            self._scratch.remove()

    def file(self, number: int) -> Path:
        return self.path / f"aux-{number:03d}.npy"

    def _row(self, l: int) -> int:
        return self.seeds * self.chunk * (self.hidden[l - 1] + 1)

    def _check_room(self) -> None:
        layers = [8 * self.chunks * self._row(l) for l in range(1, len(self.hidden) + 1)]
        wanted = (1 if self._scratch else 2) * sum(layers) + max(layers)  # those of a checkpoint, and one that is written
        free = shutil.disk_usage(self.path).free
        if wanted > free:
            raise ValueError(
                f"the auxiliary variables of {self.seeds} seeds take {wanted / 1e9:.1f} GB on disk, and {self.path} has "
                f"{free / 1e9:.1f} GB; use fewer seeds, or give out= on another disk."
            )

    def _check_there(self, states: Swept) -> None:
        for l, number in enumerate(numbers(states), 1):
            path = self.file(number)
            try:
                found = np.load(path, mmap_mode="r")
            except (OSError, ValueError, EOFError):
                found = None
            if found is None or found.shape != (self.chunks, self._row(l)):
                raise ValueError(
                    f"{path} is missing or damaged: it held the auxiliary variables of layer {l}; the run cannot be continued."
                )
            self._sizes[number] = (self._row(l), found.offset)  # type: ignore[attr-defined]

    def spare(self, l: int, used: set[int]) -> int:
        """The number of a file for a_l that nobody needs; a new one if there is none."""
        for number, (row, _) in self._sizes.items():
            if row == self._row(l) and number not in used | self._held:
                return number
        number = next(k for k in range(10**6) if k not in self._sizes and k not in used)
        self.create(number, l)
        return number

    def create(self, number: int, l: int) -> None:
        made = npy.open_memmap(self.file(number), "w+", dtype=float, shape=(self.chunks, self._row(l)))
        self._sizes[number] = (self._row(l), made.offset)

    def read(self, number: int, l: int, c: int) -> np.ndarray:
        """a_l of chunk c."""
        return self._read(number, c, self._row(l) - self.seeds * self.chunk).reshape(self.seeds, self.chunk, -1)

    def read_both(self, number: int, l: int, c: int) -> tuple[np.ndarray, np.ndarray]:
        """a_l of chunk c and its step lengths."""
        values, lengths = np.split(self._read(number, c, self._row(l)), [self._row(l) - self.seeds * self.chunk])
        return values.reshape(self.seeds, self.chunk, -1), lengths.reshape(self.seeds, self.chunk)

    def _read(self, number: int, c: int, count: int) -> np.ndarray:
        row, header = self._sizes[number]
        found = np.fromfile(self.file(number), float, count, offset=header + 8 * row * c)
        if len(found) < count:
            raise OSError(f"{self.file(number)} ends too early.")
        return found

    def write(self, number: int, c: int, values: np.ndarray, lengths: np.ndarray) -> None:
        row, header = self._sizes[number]
        try:
            with open(self.file(number), "r+b", buffering=0) as file:
                file.seek(header + 8 * row * c)
                for part in (values, lengths):
                    rest = np.ascontiguousarray(part).data.cast("B")
                    while rest:
                        rest = rest[file.write(rest) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), str(self.file(number))) from error
        self._unsynced.add(number)

    def sync(self) -> None:
        """Have the disk write what the system still holds: before a checkpoint that names these files."""
        for number in sorted(self._unsynced):
            with open(self.file(number), "rb") as file:
                os.fsync(file.fileno())
        self._unsynced.clear()

    def hold(self, states: Swept) -> None:
        """From now on the files that these states name are those of the last checkpoint."""
        self._held = set(numbers(states))


def numbers(states: Swept) -> list[int]:
    """Which file holds a_1, a_2, …"""
    return np.asarray(states.files)[0].tolist()


def _add(x, y):
    return jax.tree.map(np.add, x, y)


def over_chunks(work: Callable[[int], Any], chunks: int) -> Any:
    """Σ_c work(c), some chunks at once, added in their order."""
    total, pool = None, ThreadPoolExecutor(WORKERS)
    try:
        waiting = deque(pool.submit(float64(work), c) for c in range(min(WORKERS, chunks)))
        for c in range(WORKERS, chunks + WORKERS):
            if not waiting:
                break
            found = jax.tree.map(np.asarray, waiting.popleft().result())
            total = found if total is None else _add(total, found)
            if c < chunks:
                waiting.append(pool.submit(float64(work), c))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return total


@dataclass(frozen=True)
class Passes:
    """A method with the samples and the files it works on."""

    method: Streamed
    source: Source
    files: Files

    def begin(self, keys, given: Sequence[np.ndarray] | None = None) -> Swept:
        """Networks of these keys with auxiliary variables by the method's rule, or given ones (seeds, samples, m_l), measured."""
        method, source, files = self.method, self.source, self.files
        states = settled(jax.vmap(method.init)(keys))
        for l, number in enumerate(numbers(states), 1):
            files.create(number, l)
        ones = np.ones((files.seeds, files.chunk))

        def work(c: int):
            term = source.x(c), source.y(c), source.weight(c)
            drawn = lambda: drawn_chunk(method, states.network, keys, c, *term)  # noqa: E731
            values = drawn() if given is None else [source.cut(c, a) for a in given]
            for number, a in zip(numbers(states), values, strict=True):
                files.write(number, c, np.asarray(a), ones)
            return defects_chunk(method, states.network, values, *term)

        v = over_chunks(work, source.chunks)
        return self.take(replace(states, norms=replace(states.norms, v=(jnp.asarray(v),))))

    def take(self, states: Swept) -> Swept:
        """The states after their next pass."""
        l, where = int(np.asarray(states.due)[0]), dict(enumerate(numbers(states), 1))
        return self._close(states, where) if l == 0 else self._layer(states, where, l)

    def _close(self, states: Swept, where: dict[int, int]) -> Swept:
        method, source, files, top = self.method, self.source, self.files, len(where)

        def work(c: int):
            ends = files.read(where[1], 1, c), files.read(where[top], top, c)
            return top_chunk(method, states.ahead, states.norms, source.x(c), source.y(c), source.weight(c), *ends)

        return close_sweep(method, states, over_chunks(work, source.chunks))

    def _layer(self, states: Swept, where: dict[int, int], l: int) -> Swept:
        method, source, files, top = self.method, self.source, self.files, len(where)
        spare, stack = files.spare(l, set(where.values())), states.ahead.stack

        def work(c: int):
            below = source.x(c) if l == 1 else files.read(where[l - 1], l - 1, c)
            goal = source.y(c) if l == top else files.read(where[l + 1], l + 1, c)
            own = files.read_both(where[l], l, c)
            *new, sums = a_chunk(
                method, stack[l], stack[l + 1], states.norms, jnp.asarray(l), below, *own, goal, source.weight(c), first=l == 1
            )
            files.write(spare, c, *map(np.asarray, new))
            return sums

        sums = over_chunks(work, source.chunks)
        layer, norms = solve_layer(method, stack[l], states.norms, jnp.asarray(l), sums)
        ahead = replace(states.ahead, stack=stack.set(l, layer))
        files_now = states.files.at[:, l - 1].set(spare)
        return replace(states, ahead=ahead, norms=norms, due=jnp.full_like(states.due, l - 1), files=files_now)


class StreamLoop(Loop):
    """The loop of `train`, one pass at a time; a step is done when its last pass is."""

    passes: Passes
    together = True

    @property
    def states(self) -> Swept:
        return self.groups.running[0].states

    def stepped(self, steps: int, on: np.ndarray) -> tuple[Groups, np.ndarray]:
        """At the start, where nothing moves."""
        return self.groups, self._measured(self.states)

    def _measured(self, states: Swept) -> np.ndarray:
        return np.array([np.asarray(x) for x in measured(self.method, states, self.validation)])

    def advance(self, most: int, turn: float) -> None:
        old, l = self.states, int(np.asarray(self.states.due)[0])
        new = self.passes.take(old)
        if l == 0:
            current = self._measured(new)
            self._break(~np.isfinite(current[0]), lambda k: f"the loss overflowed in iteration {k}.")
            still = lambda x, y: jnp.where(self.active.reshape(-1, *(1,) * (x.ndim - 1)), x, y)  # noqa: E731
            kept = lambda states: (states.network, states.loss, states.mean_squared_loss)  # noqa: E731
            network, loss, true = jax.tree.map(still, kept(new), kept(old))
            new = replace(new, network=network, loss=loss, mean_squared_loss=true)
            self.current = np.where(self.active, current, self.current)
            self.done = self.done + self.active
        self.groups = replace(self.groups, running=(replace(self.groups.running[0], states=new),))
        finite = [np.isfinite(x).reshape(len(x), -1).all(1) for x in map(np.asarray, jax.tree.leaves((new.ahead, new.norms)))]
        name = l or self.method.objective.depth
        self._break(~np.all(finite, axis=0), lambda k: f"non-finite numbers came from layer {name} in iteration {k}.")

    def _break(self, broken: np.ndarray, why: Callable[[int], str]) -> None:
        """Stop these seeds at their last whole sweep."""
        for i in np.flatnonzero(self.active & broken).tolist():
            self.stop(i, "non-finite", why(int(self.done[i]) + 1))


@float64
def train(
    method: Any,
    iterations: int,
    seeds: Sequence[int],
    key: int,
    record_every: int | None,
    stall: float,
    patience: int,
    *,
    source: Source,
    files: Files,
    seconds: float | None = None,
    validation: Term | None = None,
    watch: Callable[[Moment], Any] | None = None,
    previous: Run | None = None,
    initial: Sequence[np.ndarray] | None = None,
    spent: float = 0.0,
    rungs: Mapping[int, int] | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> Run:
    """`sapm.train.train` for a `Streamed` method and its samples; `initial`: a_1, a_2, … (seeds, samples, m_l) to start from."""
    passes, began = Passes(method, source, files), time.perf_counter()
    states = passes.begin(keys_of(seeds, key), initial) if previous is None else previous.states
    loop = StreamLoop(method, tuple(seeds), states, validation, previous, record_every, rungs or {}, None)
    loop.passes = passes
    loop.began -= spent + time.perf_counter() - began
    return follow(loop, iterations, stall, patience, seconds, watch, previous is None, interrupted)
