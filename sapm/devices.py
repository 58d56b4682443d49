"""Several devices: seeds and samples lie on the two axes of a mesh, and XLA divides the one program among them.

All that is computed sample by sample stays on the device that holds the sample. What crosses between devices are sums over
samples: Gram matrices of a layer's features and scalars (Gauss-Newton: its matrix, or products with it). With several processes
(`jax.distributed`) every one of them runs this code, and what a clock or a user decides is agreed on.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sapm.methods.method import Method
from sapm.names import brief
from sapm.term import Term

SEED_AXIS, SAMPLE_AXIS = "seeds", "samples"


def mesh_of(devices, seeds: int) -> Mesh | None:
    """The mesh for `devices`: None (one device; with several processes, all of them), "auto" (all), how many, or a mesh.

    As many devices as divide the seeds evenly take seeds apart, which need not talk; samples are divided among the rest.
    """
    if isinstance(devices, Mesh):
        unknown = set(devices.axis_names) - {SEED_AXIS, SAMPLE_AXIS}
        if unknown:
            names = ", ".join(map(str, devices.axis_names))
            raise ValueError(f"devices is a mesh with the axes {names}; it may have {SEED_AXIS!r} and {SAMPLE_AXIS!r}.")
        across = devices.shape.get(SEED_AXIS, 1)
        if seeds % across:
            raise ValueError(f"the mesh divides {seeds} seeds among {across} devices; give a multiple of {across} seeds.")
        if {d.process_index for d in devices.devices.flat} != set(range(jax.process_count())):
            raise ValueError("devices is a mesh that leaves out some of the processes; all must take part.")
        return _workable(Mesh(devices.devices, devices.axis_names))  # whatever its axes were meant for: XLA divides the program
    there, several = jax.devices(), jax.process_count() > 1
    if devices is None or (isinstance(devices, str) and devices == "auto"):
        count = len(there) if several or devices == "auto" else 1
    elif isinstance(devices, (int, np.integer)) and not isinstance(devices, bool):
        count = int(devices)
    else:
        raise TypeError(f"devices={brief(devices)} is not known; give 'auto', a number of devices or a jax.sharding.Mesh.")
    if not 1 <= count <= len(there):
        hint = "; on a CPU, XLA_FLAGS=--xla_force_host_platform_device_count=… makes more" if there[0].platform == "cpu" else ""
        raise ValueError(f"devices={count}, and JAX sees {len(there)} ({there[0].device_kind}); give 1 to {len(there)}{hint}.")
    if several and count < len(there):
        raise ValueError(f"devices={count}, and there are {len(there)} in {jax.process_count()} processes: all must take part.")
    if count == 1:
        return None
    across = max(k for k in range(1, count + 1) if count % k == 0 and seeds % k == 0)
    return _workable(Mesh(np.array(there[:count]).reshape(across, -1), (SEED_AXIS, SAMPLE_AXIS)))


def _workable(mesh: Mesh) -> Mesh:
    """Devices that are shares of one CPU wait for each other's sums with threads of one pool: it needs some to spare."""
    mine = [device for device in mesh.local_devices if device.platform == "cpu"]
    given = os.environ.get("NPROC", "")
    if len(mine) > 1 and not (given.isdigit() and int(given) >= 2 * jax.local_device_count()):
        raise ValueError(
            f"{len(mine)} devices are shares of one CPU, and XLA's threads there may wait for each other forever; set the "
            f"environment variable NPROC to {2 * jax.local_device_count()} or more before Python starts, or use processes "
            "(sapm run … --processes)."
        )
    return mesh


@dataclass(frozen=True)
class Layout:
    """Where the states of a method lie. For every leaf: its axis of samples, if it has one, and how many samples that is.

    Uneven shares are filled up with copies of the last sample that have no weight, and with zeros in the states.
    """

    mesh: Mesh
    leaves: tuple[tuple[int, int] | None, ...]

    @staticmethod
    def of(method: Method, seeds: int, mesh: Mesh) -> Layout:
        """The axes that grow with the samples, found by adding one."""
        keys = jax.eval_shape(jax.vmap(jax.random.key), np.arange(seeds))
        shapes = lambda m: [x.shape for x in jax.tree.leaves(jax.eval_shape(jax.vmap(m.init), keys))]  # noqa: E731
        found = []
        for now, grown in zip(shapes(method), shapes(_each_term(method, lambda t: t.pad(len(t.y) + 1))), strict=True):
            axes = [k for k, (a, b) in enumerate(zip(now, grown, strict=True)) if a != b]
            found.append((axes[0], now[axes[0]]) if axes else None)
        return Layout(mesh, tuple(found))

    def padded(self, n: int) -> int:
        """The next number that the devices can share evenly."""
        share = self.mesh.shape.get(SAMPLE_AXIS, 1)
        return -(-n // share) * share

    def _sharding(self, ndim: int = 0, samples: int | None = None, seeds: bool = False) -> NamedSharding:
        axes: list[str | None] = [None] * ndim
        if seeds and SEED_AXIS in self.mesh.shape:
            axes[0] = SEED_AXIS
        if samples is not None and SAMPLE_AXIS in self.mesh.shape:
            axes[samples] = SAMPLE_AXIS
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def _leaf_sharding(self, x, leaf: tuple[int, int] | None) -> NamedSharding:
        return self._sharding(x.ndim, leaf and leaf[0], seeds=True)

    def method(self, method: Method) -> Method:
        """The same with its samples divided."""

        def term(t: Term) -> Term:
            n = self.padded(len(t.y))
            t = t if n == len(t.y) else t.pad(n)
            axis = lambda x, grown: 0 if x.ndim and x.shape != grown.shape else None  # noqa: E731
            grown = jax.eval_shape(lambda: t.pad(n + 1))
            return jax.tree.map(lambda x, g: _put(x, self._sharding(x.ndim, axis(x, g))), t, grown)

        return _each_term(method, term, self.copied)

    def copied(self, tree):
        """On every device."""
        return jax.tree.map(lambda x: _put(x, self._sharding()), tree)

    def _each(self, change: Callable, states):
        leaves, tree = jax.tree.flatten(states)
        return jax.tree.unflatten(tree, [change(x, leaf) for x, leaf in zip(leaves, self.leaves, strict=True)])

    def divided(self, states):
        """States with all seeds, each leaf to where it belongs."""

        def one(x, leaf):
            x = np.asarray(x)
            if leaf is not None:
                axis, n = leaf
                x = np.pad(x, [(0, self.padded(n) - n if k == axis else 0) for k in range(x.ndim)])
            return _put(x, self._leaf_sharding(x, leaf))

        return self._each(one, states)

    def pinned(self, states):
        """In a compiled program: they are, or shall be, where `divided` puts them."""
        return self._each(lambda x, leaf: lax.with_sharding_constraint(x, self._leaf_sharding(x, leaf)), states)

    def everywhere(self, tree):
        """In a compiled program: copied to every device, so that every process can read it."""
        return jax.tree.map(lambda x: lax.with_sharding_constraint(x, self._sharding()), tree)

    def collected(self, states):
        """The inverse of `divided`, in the memory of every process."""

        def one(x, leaf):
            whole = np.asarray(x if x.is_fully_addressable else multihost_utils.process_allgather(x, tiled=True))
            return whole if leaf is None else whole[(slice(None),) * leaf[0] + (slice(leaf[1]),)]

        return self._each(one, states)


def _each_term(tree: Any, change: Callable[[Term], Term], others: Callable = lambda x: x) -> Any:
    is_term = lambda x: isinstance(x, Term)  # noqa: E731
    return jax.tree.map(lambda x: change(x) if is_term(x) else others(x), tree, is_leaf=is_term)


def _put(x, sharding: NamedSharding):
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def traffic(program: str) -> dict[str, int]:
    """Bytes that a compiled program (its text) moves between devices, by kind of operation; what is in a loop counts once."""
    found: dict[str, int] = {}
    for result, kind in re.findall(r"= (.*?) (all-[\w-]+?|reduce-scatter|collective-[\w-]+?)(?:-start)?\(", program):
        shapes = re.findall(r"[a-z](\d+)\[([\d,]*)\]", result)
        count = sum(int(bits) // 8 * prod(map(int, filter(None, shape.split(",")))) for bits, shape in shapes)
        found[kind] = found.get(kind, 0) + count
    return found


# ---------------------------------------------------------------- several processes


def agreed(*numbers: float) -> tuple[float, ...]:
    """The numbers as the first process has them, in every process; each must ask at the same moments."""
    if jax.process_count() == 1:
        return numbers
    return tuple(np.asarray(multihost_utils.process_allgather(np.array(numbers, float)))[0].tolist())


def anywhere(flag: bool) -> bool:
    """Whether it is so in any process."""
    return flag if jax.process_count() == 1 else bool(np.any(multihost_utils.process_allgather(np.array(flag))))


def first_process() -> bool:
    return jax.process_index() == 0


def _heard(usual: Any, number: int, frame: Any) -> None:
    """Whoever would have been told of a signal is told, and what that raises is dropped."""
    if callable(usual):
        with suppress(KeyboardInterrupt):
            usual(number, frame)


@contextmanager
def whole():
    """Ctrl-C and SIGTERM wait until what is compiled here is compiled; a second one does not. (JAX leaves a compilation that is
    cut off to a thread, and a process that ends before that thread does crashes.)"""
    came: list[tuple[int, Any]] = []
    before: dict[int, Any] = {}

    def later(number: int, frame: Any) -> None:
        came.append((number, frame))
        if len(came) > 1:
            before[number](number, frame)

    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")):
            if number is not None and callable(signal.getsignal(number)):
                before[number] = signal.signal(number, later)
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)
    if came:
        number, frame = came[0]
        before[number](number, frame)


@contextmanager
def held_back():
    """With several processes, Ctrl-C and SIGTERM only raise a flag: `stop()` says whether. One that ended at once would leave
    the others waiting for its part of a sum."""
    stop = threading.Event()
    before = {}
    if jax.process_count() > 1 and threading.current_thread() is threading.main_thread():
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            if (number := getattr(signal, name, None)) is not None:
                before[number] = signal.getsignal(number)
                signal.signal(number, lambda n, frame, usual=before[number]: (stop.set(), _heard(usual, n, frame)))
    try:
        yield stop.is_set
    finally:
        for number, action in before.items():
            signal.signal(number, action)
