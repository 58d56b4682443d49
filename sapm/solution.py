"""A trained network as a function of named coordinates, with its derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sapm.ansatz import Component
from sapm.disk import OnDisk, on_disk
from sapm.embedding import Embedding
from sapm.jet import Activation, float64
from sapm.names import brief, nearest, one_by_one, split

LARGEST = 2**16  # points evaluated in one go


CALLED = ("predict", "evaluate", "eval", "forward", "apply")  # what networks are called by elsewhere


def bucket(n: int) -> int:
    """The next power of two, at least 16: arrays padded to it share compiled programs."""
    return max(16, 1 << (n - 1).bit_length())


def forward(
    weights: Sequence[tuple[Any, Any]], sigma: Activation, x: Array, embedding: Embedding | None = None, ansatz: Any = None
) -> Array:
    """The network at every row of x, in the precision of x."""
    z = x if embedding is None else embedding(x)
    for l, (W, b) in enumerate(weights):
        z = (sigma(z) if l else z) @ jnp.asarray(W, x.dtype).T + jnp.asarray(b, x.dtype)
    return z if ansatz is None else ansatz(x, z)


def _derivative(weights, sigma: Activation, directions: tuple[int, ...], x: Array, embedding=None, ansatz=None) -> Array:
    """∂ of the outputs along these coordinates, one after the other, at every row of x."""
    f = partial(forward, weights, sigma, embedding=embedding, ansatz=ansatz)
    for i in directions:
        f = partial(lambda f, i, x: jax.jvp(f, (x,), (jnp.zeros_like(x).at[:, i].set(1.0),))[1], f, i)
    return f(x)


_compiled = partial(jax.jit, static_argnames=("sigma", "directions", "ansatz"))(_derivative)


@dataclass(frozen=True, eq=False)
class Solution:
    """u(t=0.5, x=xs), or u(points) with one row per point. `u.d("x")` is the derivative, a function of the same arguments.

    Numbers, lists and NumPy arrays broadcast against each other and give float64 NumPy; JAX arrays and tracers stay in JAX.
    Several outputs are on a last axis; `u.v` is the one called v. `u.parameters` are the numbers found beside it.
    """

    weights: list[tuple[np.ndarray, np.ndarray]]
    names: tuple[str, ...]
    sigma: Activation
    seed: int
    directions: tuple[int, ...] = ()
    embedding: Embedding | None = None
    parameters: dict[str, float] = field(default_factory=dict)
    fields: tuple[str, ...] = ()
    ansatz: Any = None
    frame: tuple[np.ndarray, np.ndarray] | None = None  # center and half the width of the domain, where there is one

    def __getattr__(self, name: str):
        if name.startswith("_") or "fields" not in vars(self):  # a copy in the making has no fields yet
            raise AttributeError(name)
        if name not in self.fields:
            how = " It is a function: u(t=0.5, x=xs), or u(points)." if name in CALLED else nearest(name, self.fields)
            if along := split(name.removeprefix("d") if name not in self.names else name, self.names):
                how = f" Its derivative is u.d({', '.join(map(repr, along))}), a function too."
            raise AttributeError(f"a solution has no {name!r}.{how}")
        W, b = self.weights[-1]
        i = self.fields.index(name)
        ansatz = None if self.ansatz is None else Component(self.ansatz, i)
        return replace(self, weights=[*self.weights[:-1], (W[i : i + 1], b[i : i + 1])], fields=(), ansatz=ansatz)

    @property
    def network_weights(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Those of the network that was trained, in the problem's units: with an output for every parameter."""
        *inner, (W, b) = self.weights
        numbers = list(self.parameters.values())
        return [*inner, (np.concatenate([W, np.zeros((len(numbers), W.shape[1]))]), np.append(b, numbers))]

    def __repr__(self) -> str:
        widths = [self.weights[0][0].shape[1], *(W.shape[0] for W, _ in self.weights)]
        order = "".join("∂/∂" + self.names[i] + " of " for i in self.directions)
        return f"<{order}u({', '.join(self.names)}): {self.sigma.name} network {'-'.join(map(str, widths))}, seed {self.seed}>"

    def d(self, *coordinates: str) -> Solution:
        """The derivative along these coordinates: d("x"), d("x", "x"), …"""
        if not coordinates:
            raise ValueError(f"d() needs a coordinate, such as d({self.names[0]!r}); there are {', '.join(self.names)}.")
        for name in coordinates:
            if name not in self.names:
                raise ValueError(f"{name!r} is not a coordinate; {one_by_one(name, self.names)}")
        more = tuple(self.names.index(name) for name in coordinates)
        return replace(self, directions=self.directions + more)

    def outside(self, x: np.ndarray) -> np.ndarray:
        """Which rows of x are outside of the smallest box around the domain; periodic coordinates have no outside."""
        if self.frame is None:
            return np.zeros(len(x), bool)
        (center, spread), axes = self.frame, range(len(self.names)) if self.embedding is None else self.embedding.kept
        return np.asarray((np.abs(x - center) > spread * (1 + 1e-9))[:, list(axes)].any(1))

    def to_torch(self):
        """A torch.nn.Sequential in double precision (needs PyTorch)."""
        from sapm.export import to_torch

        return to_torch(self)

    def to_onnx(self, path):
        """Write an ONNX model in double precision (needs the package onnx)."""
        from sapm.export import to_onnx

        return to_onnx(self, path)

    def __call__(self, points: Any = None, /, *more: Any, **coordinates):
        d = len(self.names)
        if more:
            named = ", ".join(f"{name}=…" for name in self.names)
            raise TypeError(
                f"u got {1 + len(more)} arguments without names; write u({named}), or u(points) with a row per point."
            )
        if not coordinates and on_disk(points) and (points.shape[1:] == (d,) or (d == 1 == len(points.shape))):
            values = self._numpy(OnDisk(points))  # read by rows
            return values[..., 0] if values.shape[-1] == 1 else values
        x, in_jax = self._points(points, coordinates)
        if in_jax:
            flat = x.reshape(-1, x.shape[-1])
            values = _derivative(self.weights, self.sigma, self.directions, flat, self.embedding, self.ansatz)
        else:
            values = self._numpy(x.reshape(-1, x.shape[-1]))
        values = values.reshape(*x.shape[:-1], len(self.weights[-1][1]))
        return values[..., 0] if values.shape[-1] == 1 else values

    def _points(self, points, coordinates: dict) -> tuple[Any, bool]:
        """(…, d) points, and whether they are JAX's."""
        wanted = ", ".join(f"{n}=…" for n in self.names)
        if points is not None:
            if coordinates:
                raise TypeError(f"give either points (n, {len(self.names)}) or the coordinates by name ({wanted}), not both.")
            in_jax = isinstance(points, jax.Array)
            x = points if in_jax else _numbers("points", points)
            if len(self.names) == 1 and x.ndim <= 1:
                x = x[..., None]
            if x.ndim == 0 or x.shape[-1] != len(self.names):
                raise ValueError(f"points have shape {x.shape}; give one row per point with {len(self.names)} columns: {wanted}.")
            return _floating(x), in_jax
        for name in coordinates:
            if name not in self.names:
                raise TypeError(f"{name!r} is not a coordinate; give {wanted}." + nearest(name, self.names))
        missing = [name for name in self.names if name not in coordinates]
        if missing:
            raise TypeError(f"{', '.join(missing)} is missing; give all coordinates: {wanted}.")
        in_jax = any(isinstance(value, jax.Array) for value in coordinates.values())
        parts = [jnp.asarray(coordinates[name]) if in_jax else _numbers(name, coordinates[name]) for name in self.names]
        try:
            parts = (jnp if in_jax else np).broadcast_arrays(*parts)
        except ValueError:
            shapes = ", ".join(f"{n}: {np.shape(coordinates[n])}" for n in self.names)
            raise ValueError(f"the coordinates do not broadcast against each other: {shapes}.") from None
        return _floating((jnp if in_jax else np).stack(parts, axis=-1)), in_jax

    @float64
    def _numpy(self, x: np.ndarray | OnDisk) -> np.ndarray:
        out = [np.zeros((0, len(self.weights[-1][1])))]
        for i in range(0, len(x), LARGEST):
            part = x[i : i + LARGEST]
            grown = np.pad(part, ((0, bucket(len(part)) - len(part)), (0, 0)))
            out.append(
                np.asarray(_compiled(self.weights, self.sigma, self.directions, grown, self.embedding, self.ansatz))[: len(part)]
            )
        return np.concatenate(out)


def _numbers(name: str, value) -> np.ndarray:
    try:
        return np.asarray(value, float)
    except (TypeError, ValueError):
        raise TypeError(f"{name}={brief(value)} must hold real numbers.") from None


def _floating(x):
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)


def relative_error(value, wanted) -> float:
    """‖value - wanted‖ / ‖wanted‖, or ‖value - wanted‖ / √n for wanted = 0."""
    value, wanted = np.asarray(value, float), np.asarray(wanted, float)
    value = value.reshape(wanted.shape)
    unit = np.abs(wanted).max(initial=0.0) or 1.0  # squares of very small numbers are 0
    value, wanted = value / unit, wanted / unit
    size = np.linalg.norm(wanted)
    with np.errstate(over="ignore"):  # of a network that diverged
        return float(np.linalg.norm(value - wanted) / (size if size > 0 else np.sqrt(len(wanted))))
