"""Training on data on disk: the sweeps of `sapm.methods.streamed`. The auxiliary variables a_l are
on disk too.

A pass writes the new a_l to a spare file, and the state says which file holds which layer. So no
file is copied for a checkpoint. A pass never writes to a file that the current state or the last
checkpoint names. So a run can be interrupted at any time and continued from its last checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.lib import format as npy

from sapm.errors import shown_path
from sapm.methods.streamed import (
    StreamedEngine,
    Swept,
    close_sweep,
    closing_chunk,
    draw_chunk,
    layer_chunk,
    measure_chunk,
    solve_layer,
)
from sapm.objective.terms import Term
from sapm.problem.data import Regression, Scratch
from sapm.problem.samples import Scaling
from sapm.scopes import float64, interrupt
from sapm.training.loop import Step, without_weak_types
from sapm.training.seeds import Group, Groups, measured

# The number of chunks in progress: some are read or written while others are computed.
WORKERS = max(2, min(8, os.cpu_count() or 2))
# By default, one layer of all seeds has about this many numbers in a chunk. They fit into the cache
# of a core.
CHUNK_NUMBERS = 2**18
SMALLEST_CHUNK_SAMPLES = 256


def default_chunk(samples: int, seeds: int, widths: Sequence[int]) -> int:
    """The default number of samples in a chunk: a power of two, or all samples.

    Parameters
    ----------
    samples, seeds : the numbers of samples and of seeds.
    widths : (m_0, …, m_L), the units of every layer.
    """
    fitting = max(SMALLEST_CHUNK_SAMPLES, CHUNK_NUMBERS // (seeds * max(widths)))
    return min(samples, 2 ** (fitting.bit_length() - 1))


@dataclass(frozen=True)
class Source:
    """The samples of a problem in the units of training, in chunks of equal length. The last chunk
    is filled up with samples of weight 0.

    Parameters
    ----------
    problem : the data, n samples.
    scaling : the units of training.
    chunk : the number of samples in a chunk.
    """

    problem: Regression
    scaling: Scaling
    chunk: int

    @property
    def chunks(self) -> int:
        """The number of chunks, ⌈n / chunk⌉."""
        return -(-len(self.problem.X) // self.chunk)

    def _rows(self, c: int) -> slice:
        """The samples of chunk c."""
        return slice(c * self.chunk, min((c + 1) * self.chunk, len(self.problem.X)))

    def _filled(self, a: np.ndarray) -> np.ndarray:
        """The rows of a chunk, with zeros after the last sample."""
        if len(a) == self.chunk:
            return a
        return np.pad(a, [(0, self.chunk - len(a))] + [(0, 0)] * (a.ndim - 1))

    def x(self, c: int) -> np.ndarray:
        """(chunk, m_0) The inputs of chunk c."""
        X = self.problem.X[self._rows(c)]
        return self._filled((X - self.scaling.center) / self.scaling.spread)

    def y(self, c: int) -> np.ndarray:
        """(chunk, m_L) The targets of chunk c."""
        return self._filled(self.problem.Y[self._rows(c)] / self.scaling.size)

    def weight(self, c: int) -> np.ndarray:
        """(chunk,) The weights of the samples of chunk c."""
        return self._filled(self.problem.kappa(self._rows(c)) * self.scaling.size**2)

    def cut(self, c: int, a: np.ndarray) -> np.ndarray:
        """(seeds, chunk, …) Chunk c of an array (seeds, n, …) in memory."""
        part = a[:, self._rows(c)]
        return np.pad(part, [(0, 0), (0, self.chunk - part.shape[1])] + [(0, 0)] * (a.ndim - 2))


class Files:
    """Auxiliary variables on disk, in numbered .npy files. A file belongs to a layer l. It has one
    row for every chunk, with a_l (seeds, chunk, m_l) and then the step lengths (seeds, chunk).

    Parameters
    ----------
    folder : the folder of the files; None: a temporary folder, which is removed at the end.
    seeds : the number of seeds.
    source : the samples.
    hidden : (m_1, …, m_{L-1}), the units of the hidden layers.
    states : the states of a run that is continued, which name its files; None for a new run.
    held : whether the folder is still this run's own. If not, it is left alone, and the run is
        interrupted.
    """

    def __init__(
        self,
        folder: Path | None,
        seeds: int,
        source: Source,
        hidden: Sequence[int],
        states: Swept | None = None,
        held: Callable[[], bool] | None = None,
    ):
        self._held_folder = held
        self._scratch = Scratch() if folder is None else None
        self.path = folder or self._scratch.path  # type: ignore[union-attr]
        self.seeds = seeds
        self.chunk = source.chunk
        self.chunks = source.chunks
        self.hidden = hidden
        # {number of a file: (count of numbers in a row, bytes of the header)}
        self._sizes: dict[int, tuple[int, int]] = {}
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
        """The path of the file with this number."""
        if self._held_folder is not None and not self._held_folder():
            interrupt("the folder of the run was taken away")
        return self.path / f"aux-{number:03d}.npy"

    def _row(self, l: int) -> int:
        """The count of numbers in a row of a file of layer l."""
        return self.seeds * self.chunk * (self.hidden[l - 1] + 1)

    def _check_room(self) -> None:
        """Raise an error if the disk is too small for the files of the state, those of a checkpoint
        (if the run has a folder), and the spare file that a pass writes to.
        """
        sizes = [8 * self.chunks * self._row(l) for l in range(1, len(self.hidden) + 1)]
        needed = (1 if self._scratch else 2) * sum(sizes) + max(sizes)
        free = shutil.disk_usage(self.path).free
        if needed > free:
            raise ValueError(
                f"the auxiliary variables of {self.seeds} seeds take {needed / 1e9:.1f} GB on "
                f"disk, and {shown_path(self.path)} has {free / 1e9:.1f} GB; use fewer seeds, or "
                "give out= on another disk."
            )

    def _check_there(self, states: Swept) -> None:
        """Raise an error if files of these states are missing or have another size."""
        for l, number in enumerate(file_numbers(states), 1):
            path = self.file(number)
            try:
                table = npy.open_memmap(path, "r")
            except (OSError, ValueError, EOFError):
                table = None
            if table is None or table.shape != (self.chunks, self._row(l)):
                raise ValueError(
                    f"{shown_path(path)} is missing or damaged: it held the auxiliary variables of "
                    f"layer {l}; the run cannot be continued."
                )
            self._sizes[number] = (self._row(l), table.offset)

    def spare(self, l: int, used: set[int]) -> int:
        """The number of a file that a_l may be written to. If there is none, a file is created.

        Parameters
        ----------
        l : the layer.
        used : the numbers of the files that hold the current state.
        """
        for number, (row, _) in self._sizes.items():
            if row == self._row(l) and number not in used | self._held:
                return number
        number = next(k for k in range(10**6) if k not in self._sizes and k not in used)
        self.create(number, l)
        return number

    def create(self, number: int, l: int) -> None:
        """Create the file with this number for a_l."""
        shape = (self.chunks, self._row(l))
        table = npy.open_memmap(self.file(number), "w+", dtype=float, shape=shape)
        self._sizes[number] = (self._row(l), table.offset)

    def read(self, number: int, l: int, c: int) -> np.ndarray:
        """(seeds, chunk, m_l) a_l of chunk c, from the file with this number."""
        values = self._read(number, c, self._row(l) - self.seeds * self.chunk)
        return values.reshape(self.seeds, self.chunk, -1)

    def read_both(self, number: int, l: int, c: int) -> tuple[np.ndarray, np.ndarray]:
        """a_l of chunk c, and its step lengths (seeds, chunk)."""
        row = self._read(number, c, self._row(l))
        values, lengths = np.split(row, [len(row) - self.seeds * self.chunk])
        return values.reshape(self.seeds, self.chunk, -1), lengths.reshape(self.seeds, self.chunk)

    def _read(self, number: int, c: int, count: int) -> np.ndarray:
        """The first `count` numbers of row c."""
        row, header = self._sizes[number]
        values = np.fromfile(self.file(number), float, count, offset=header + 8 * row * c)
        if len(values) < count:
            raise OSError(f"{self.file(number)} ends too early.")
        return values

    def write(self, number: int, c: int, values: np.ndarray, lengths: np.ndarray) -> None:
        """Write a_l of chunk c, (seeds, chunk, m_l), and its step lengths (seeds, chunk)."""
        row, header = self._sizes[number]
        try:
            with open(self.file(number), "r+b", buffering=0) as file:
                file.seek(header + 8 * row * c)
                for part in (values, lengths):
                    rest = np.ascontiguousarray(part).data.cast("B")
                    while rest:
                        rest = rest[file.write(rest) :]
        except OSError as error:
            raise OSError(
                error.errno, error.strerror or str(error), str(self.file(number))
            ) from error
        self._unsynced.add(number)

    def sync(self) -> None:
        """Flush all files to the disk. Call this before a checkpoint that names them is written."""
        for number in sorted(self._unsynced):
            with open(self.file(number), "rb") as file:
                os.fsync(file.fileno())
        self._unsynced.clear()

    def hold(self, states: Swept) -> None:
        """Keep the files that these states name from being overwritten, until the next call. Call
        this after a checkpoint of these states was written.
        """
        self._held = set(file_numbers(states))


def file_numbers(states: Swept) -> list[int]:
    """The numbers of the files that hold a_1, …, a_{L-1}."""
    return np.asarray(states.files)[0].tolist()


def _add(x, y):
    return jax.tree.map(np.add, x, y)


def over_chunks(work: Callable[[int], Any], chunks: int) -> Any:
    """Σ_c work(c). Several chunks are computed at the same time. Their results are added in the
    order of the chunks, so that rounding does not depend on timing.

    Parameters
    ----------
    work : maps c to the summand of chunk c, a tree of arrays.
    chunks : the number of chunks.
    """
    total = None
    pool = ThreadPoolExecutor(WORKERS)
    try:
        waiting = deque(pool.submit(float64(work), c) for c in range(min(WORKERS, chunks)))
        for c in range(WORKERS, chunks + WORKERS):
            if not waiting:
                break
            summand = jax.tree.map(np.asarray, waiting.popleft().result())
            total = summand if total is None else _add(total, summand)
            if c < chunks:
                waiting.append(pool.submit(float64(work), c))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return total


@dataclass(frozen=True)
class Passes:
    """The passes of a sweep, each over all chunks.

    Parameters
    ----------
    engine : the engine of the sweeps.
    source : the samples.
    files : the auxiliary variables.
    """

    engine: StreamedEngine
    source: Source
    files: Files

    def __enter__(self) -> Passes:
        return self

    def __exit__(self, *error) -> None:
        self.files.__exit__(*error)

    @float64
    def begin(self, keys, given: Sequence[np.ndarray] | None = None) -> Swept:
        """The states before the first pass.

        Parameters
        ----------
        keys : (seeds,) the random keys that the networks are drawn from.
        given : the first a_1, …, a_{L-1}, each (seeds, n, m_l); None: the engine draws them.
        """
        engine = self.engine
        source = self.source
        files = self.files
        states = without_weak_types(jax.vmap(engine.init)(keys))
        for l, number in enumerate(file_numbers(states), 1):
            files.create(number, l)
        ones = np.ones((files.seeds, files.chunk))

        def work(c: int):
            term = source.x(c), source.y(c), source.weight(c)

            def drawn():
                return draw_chunk(engine, states.network, keys, c, *term)

            values = drawn() if given is None else [source.cut(c, a) for a in given]
            for number, a in zip(file_numbers(states), values, strict=True):
                files.write(number, c, np.asarray(a), ones)
            return measure_chunk(engine, states.network, values, *term)

        v = over_chunks(work, source.chunks)
        return self.take(replace(states, norms=replace(states.norms, v=(jnp.asarray(v),))))

    def take(self, states: Swept) -> Swept:
        """The states after their next pass."""
        l = int(np.asarray(states.due)[0])
        where = dict(enumerate(file_numbers(states), 1))
        return self._close(states, where) if l == 0 else self._layer(states, where, l)

    def _close(self, states: Swept, where: dict[int, int]) -> Swept:
        """The states after the closing pass of a sweep, that of layer 0.

        where: {l: number of the file that holds a_l}.
        """
        engine = self.engine
        source = self.source
        files = self.files
        top = len(where)

        def work(c: int):
            ends = files.read(where[1], 1, c), files.read(where[top], top, c)
            return closing_chunk(
                engine,
                states.ahead,
                states.norms,
                source.x(c),
                source.y(c),
                source.weight(c),
                *ends,
            )

        return close_sweep(engine, states, over_chunks(work, source.chunks))

    def _layer(self, states: Swept, where: dict[int, int], l: int) -> Swept:
        """The states after the pass of layer l > 0, which writes the new a_l to a spare file.

        where: {l: number of the file that holds a_l}.
        """
        engine = self.engine
        source = self.source
        files = self.files
        top = len(where)
        spare = files.spare(l, set(where.values()))
        stack = states.ahead.stack

        def work(c: int):
            below = source.x(c) if l == 1 else files.read(where[l - 1], l - 1, c)
            goal = source.y(c) if l == top else files.read(where[l + 1], l + 1, c)
            own = files.read_both(where[l], l, c)
            *new, sums = layer_chunk(
                engine,
                stack[l],
                stack[l + 1],
                states.norms,
                jnp.asarray(l),
                below,
                *own,
                goal,
                source.weight(c),
                first=l == 1,
            )
            files.write(spare, c, *map(np.asarray, new))
            return sums

        sums = over_chunks(work, source.chunks)
        layer, norms = solve_layer(engine, stack[l], states.norms, jnp.asarray(l), sums)
        ahead = replace(states.ahead, stack=stack.set(l, layer))
        files_now = states.files.at[:, l - 1].set(spare)
        return replace(
            states, ahead=ahead, norms=norms, due=jnp.full_like(states.due, l - 1), files=files_now
        )


class PassStepper:
    """The stepper of `sapm.training.loop` for data on disk. `advance` makes one pass over the
    samples. A step of the method is a sweep, so it takes several passes: one for each layer.

    Parameters
    ----------
    passes : the engine with its samples and files.
    validation : a term of held-out data, or None.
    """

    one_group = True

    def __init__(self, passes: Passes, validation: Term | None = None):
        self.passes = passes
        self.engine = passes.engine
        self.validation = validation

    def group(self, states: Swept, kept: Any) -> Groups:
        return Groups((Group(np.arange(self.passes.files.seeds), states, kept),))

    def measure(self, groups: Groups, on: np.ndarray, current: np.ndarray) -> np.ndarray:
        return np.where(on, self._measured(groups.running[0].states), current)

    def _measured(self, states: Swept) -> np.ndarray:
        return np.array([np.asarray(x) for x in measured(self.engine, states, self.validation)])

    def advance(self, before: Step, on: np.ndarray, most: int, seconds: float) -> Step:
        """Make one pass. A seed that becomes non-finite in it keeps the state of its last complete
        sweep.
        """
        old = before.groups.running[0].states
        layer = int(np.asarray(old.due)[0])
        new = self.passes.take(old)
        current = before.current
        iterations = before.iterations
        faults: dict[int, str] = {}
        if layer == 0:
            measured_now = self._measured(new)
            for i in np.flatnonzero(on & ~np.isfinite(measured_now[0])).tolist():
                faults[i] = f"the loss overflowed in iteration {iterations[i] + 1}."
            on = on & np.isfinite(measured_now[0])
            new = _unchanged(old, new, ~on)
            current = np.where(on, measured_now, current)
            iterations = iterations + on
        finite = [
            np.isfinite(x).reshape(len(x), -1).all(1)
            for x in map(np.asarray, jax.tree.leaves((new.ahead, new.norms)))
        ]
        name = layer or self.engine.objective.depth
        for i in np.flatnonzero(on & ~np.all(finite, axis=0)).tolist():
            faults[i] = (
                f"non-finite numbers came from layer {name} in iteration {iterations[i] + 1}."
            )
        group = replace(before.groups.running[0], states=new)
        return Step(replace(before.groups, running=(group,)), current, iterations, faults)


def _unchanged(old: Swept, new: Swept, still: np.ndarray) -> Swept:
    """The new states, but with the old network and losses for the seeds that have stopped.

    Parameters
    ----------
    old, new : the states before and after a pass.
    still : (seeds,) whether a seed has stopped.
    """

    def pick(x, y):
        return jnp.where(still.reshape(-1, *(1,) * (x.ndim - 1)), x, y)

    def parts(states: Swept):
        return states.network, states.loss, states.mean_squared_loss

    network, loss, true = jax.tree.map(pick, parts(old), parts(new))
    return replace(new, network=network, loss=loss, mean_squared_loss=true)
