"""Several devices: seeds and samples lie on the two axes of a mesh, and XLA divides the program
among them.

What is computed for a single sample stays on the device that holds the sample. Only sums over
samples cross between devices: scalars and the Gram matrices of a layer's features (sweeps), or the
matrix of a step and products with it (Gauss-Newton). With several processes (`jax.distributed`)
each process runs this code. Decisions that depend on a clock or a user are those of the first
process (`agreed`) or of any of them (`anywhere`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sapm.errors import brief
from sapm.methods.engine import Engine
from sapm.objective.terms import Term

MESH_SEEDS_AXIS = "seeds"
MESH_SAMPLES_AXIS = "samples"

AnyEngine = TypeVar("AnyEngine", bound=Engine)


def mesh_of(devices, seeds: int) -> Mesh | None:
    """The mesh of the devices that share seeds and samples; None for a single device.

    Seeds are divided among as many devices as divide their number evenly, since seeds are
    independent of each other. Samples are divided among the remaining factor.

    Parameters
    ----------
    devices : None (one device; with several processes, all devices), "auto" (all devices), a number
        of devices, or a mesh with the axes "seeds" and "samples".
    seeds : the number of seeds.
    """
    if isinstance(devices, Mesh):
        unknown = set(devices.axis_names) - {MESH_SEEDS_AXIS, MESH_SAMPLES_AXIS}
        if unknown:
            names = ", ".join(map(str, devices.axis_names))
            raise ValueError(
                f"devices: got a mesh with the axes {names}, expected {MESH_SEEDS_AXIS!r} and "
                f"{MESH_SAMPLES_AXIS!r}, or one of them; name the axes so."
            )
        across = devices.shape.get(MESH_SEEDS_AXIS, 1)
        if seeds % across:
            raise ValueError(
                f"seeds: got {seeds}, expected a multiple of {across}, the number of devices that "
                "the mesh has for them; change seeds or the mesh."
            )
        if {d.process_index for d in devices.devices.flat} != set(range(jax.process_count())):
            raise ValueError(
                "devices: got a mesh without the devices of some processes, expected devices of "
                "all; take them from jax.devices()."
            )
        # a new mesh, whose axes have the default type: XLA divides the program
        return _workable(Mesh(devices.devices, devices.axis_names))
    available = jax.devices()
    several = jax.process_count() > 1
    if devices is None or (isinstance(devices, str) and devices == "auto"):
        count = len(available) if several or devices == "auto" else 1
    elif isinstance(devices, (int, np.integer)) and not isinstance(devices, bool):
        count = int(devices)
    else:
        raise TypeError(
            f"devices={brief(devices)} is not known; give 'auto', a number of devices or a "
            "jax.sharding.Mesh."
        )
    if not 1 <= count <= len(available):
        hint = (
            "; on a CPU, XLA_FLAGS=--xla_force_host_platform_device_count=… makes more"
            if available[0].platform == "cpu"
            else ""
        )
        raise ValueError(
            f"devices={count}, and JAX sees {len(available)} ({available[0].device_kind}); give 1 "
            f"to {len(available)}{hint}."
        )
    if several and count < len(available):
        raise ValueError(
            f"devices: got {count}, expected {len(available)}, all devices of the "
            f"{jax.process_count()} processes; leave devices= out."
        )
    if count == 1:
        return None
    across = max(k for k in range(1, count + 1) if count % k == 0 and seeds % k == 0)
    shares = np.array(available[:count]).reshape(across, -1)
    return _workable(Mesh(shares, (MESH_SEEDS_AXIS, MESH_SAMPLES_AXIS)))


def _workable(mesh: Mesh) -> Mesh:
    """The mesh, unless its devices may wait for each other forever. Devices that are shares of one
    CPU wait for each other's sums in threads of one pool, which needs some to spare.
    """
    shares = [device for device in mesh.local_devices if device.platform == "cpu"]
    threads = os.environ.get("NPROC", "")
    least = 2 * jax.local_device_count()
    if len(shares) > 1 and not (threads.isdigit() and int(threads) >= least):
        raise ValueError(
            f"{len(shares)} devices are shares of one CPU, and XLA's threads there may wait for "
            f"each other forever; set the environment variable NPROC to {least} or more before "
            "Python starts, or use processes (sapm run … --processes)."
        )
    return mesh


@dataclass(frozen=True)
class Layout:
    """Where the states of an engine lie on the mesh.

    Parameters
    ----------
    mesh : the devices.
    leaves : for every leaf of a state (axis of the samples, number of samples); None for a leaf
        without such an axis.

    Where the samples do not divide evenly, copies of the last sample with weight 0 are added, and
    zeros in the states.
    """

    mesh: Mesh
    leaves: tuple[tuple[int, int] | None, ...]

    @staticmethod
    def of(engine: Engine, seeds: int, mesh: Mesh) -> Layout:
        """The layout of an engine's states. Its axes of samples are those that grow when every term
        has a sample more.

        Parameters
        ----------
        engine : the engine.
        seeds : the number of seeds.
        mesh : the devices.
        """
        keys = jax.eval_shape(jax.vmap(jax.random.key), np.arange(seeds))

        def shapes(m):
            return [x.shape for x in jax.tree.leaves(jax.eval_shape(jax.vmap(m.init), keys))]

        larger = _each_term(engine, lambda t: t.pad(len(t.y) + 1))
        leaves = []
        for now, grown in zip(shapes(engine), shapes(larger), strict=True):
            axes = [k for k, (a, b) in enumerate(zip(now, grown, strict=True)) if a != b]
            leaves.append((axes[0], now[axes[0]]) if axes else None)
        return Layout(mesh, tuple(leaves))

    def padded(self, n: int) -> int:
        """The smallest number of samples, n or more, that the devices share evenly."""
        share = self.mesh.shape.get(MESH_SAMPLES_AXIS, 1)
        return -(-n // share) * share

    def _sharding(
        self, ndim: int = 0, samples: int | None = None, seeds: bool = False
    ) -> NamedSharding:
        """How an array is divided; `samples`: its axis of samples; `seeds`: whether axis 0 is that
        of the seeds.
        """
        axes: list[str | None] = [None] * ndim
        if seeds and MESH_SEEDS_AXIS in self.mesh.shape:
            axes[0] = MESH_SEEDS_AXIS
        if samples is not None and MESH_SAMPLES_AXIS in self.mesh.shape:
            axes[samples] = MESH_SAMPLES_AXIS
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def _leaf_sharding(self, x, leaf: tuple[int, int] | None) -> NamedSharding:
        return self._sharding(x.ndim, leaf and leaf[0], seeds=True)

    def engine(self, engine: AnyEngine) -> AnyEngine:
        """The engine with its samples divided among the devices."""

        def term(t: Term) -> Term:
            n = self.padded(len(t.y))
            t = t if n == len(t.y) else t.pad(n)

            def axis(x, grown):
                return 0 if x.ndim and x.shape != grown.shape else None

            grown = jax.eval_shape(lambda: t.pad(n + 1))
            return jax.tree.map(lambda x, g: _put(x, self._sharding(x.ndim, axis(x, g))), t, grown)

        return _each_term(engine, term, self.copied)

    def copied(self, tree):
        """A tree of arrays with a copy on every device."""
        return jax.tree.map(lambda x: _put(x, self._sharding()), tree)

    def _each(self, change: Callable, states):
        """The states with change(array, entry of `leaves`) in place of every array."""
        leaves, tree = jax.tree.flatten(states)
        return jax.tree.unflatten(
            tree, [change(x, leaf) for x, leaf in zip(leaves, self.leaves, strict=True)]
        )

    def divided(self, states):
        """The states of all seeds, divided among the devices."""

        def placed(x, leaf):
            x = np.asarray(x)
            if leaf is not None:
                axis, n = leaf
                x = np.pad(x, [(0, self.padded(n) - n if k == axis else 0) for k in range(x.ndim)])
            return _put(x, self._leaf_sharding(x, leaf))

        return self._each(placed, states)

    def pinned(self, states):
        """The states, which the compiled program has to leave where `divided` puts them."""
        return self._each(
            lambda x, leaf: lax.with_sharding_constraint(x, self._leaf_sharding(x, leaf)), states
        )

    def everywhere(self, tree):
        """A tree of arrays, which the compiled program has to copy to every device, so that every
        process can read them.
        """
        return jax.tree.map(lambda x: lax.with_sharding_constraint(x, self._sharding()), tree)

    def collected(self, states):
        """The inverse of `divided`, in the memory of every process."""

        def gathered(x, leaf):
            if not x.is_fully_addressable:
                x = multihost_utils.process_allgather(x, tiled=True)
            whole = np.asarray(x)
            return whole if leaf is None else whole[(slice(None),) * leaf[0] + (slice(leaf[1]),)]

        return self._each(gathered, states)


def _each_term(tree: Any, change: Callable[[Term], Term], others: Callable = lambda x: x) -> Any:
    """A tree with its terms changed, and its other leaves by `others`."""

    def is_term(x):
        return isinstance(x, Term)

    return jax.tree.map(lambda x: change(x) if is_term(x) else others(x), tree, is_leaf=is_term)


def _put(x, sharding: NamedSharding):
    whole = np.asarray(x)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


# ---------------------------------------------------------------- several processes


def agreed(*numbers: float) -> tuple[float, ...]:
    """The numbers that the first process has. All processes have to call this at the same point."""
    if jax.process_count() == 1:
        return numbers
    rows = multihost_utils.process_allgather(np.array(numbers, float))
    return tuple(np.asarray(rows)[0].tolist())


def anywhere(flag: bool) -> bool:
    """Whether the flag is set in any process. All processes have to call this at the same point."""
    if jax.process_count() == 1:
        return flag
    return bool(np.any(multihost_utils.process_allgather(np.array(flag))))
