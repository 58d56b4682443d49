"""A trained network as a function of named coordinates, with its derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike

from sapm.errors import brief, nearest, one_by_one, printable, split
from sapm.numerics.activations import Activation
from sapm.problem.data import OnDisk, on_disk
from sapm.problem.functions import check_readable, real_numbers
from sapm.problem.inputs import Ansatz, Component, Embedding
from sapm.scopes import float64, usual_settings

if TYPE_CHECKING:
    from torch.nn import Sequential  # type: ignore[import-not-found]

POINTS_PER_CALL = 2**16  # evaluated in one call of a compiled program
FEWEST_POINTS_PER_CALL = 16
# methods that networks have in other libraries
FOREIGN_METHODS = ("predict", "evaluate", "eval", "forward", "apply")


def forward(
    weights: Sequence[tuple[ArrayLike, ArrayLike]],
    sigma: Activation,
    x: Array,
    embedding: Embedding | None = None,
    ansatz: Ansatz | Component | None = None,
) -> Array:
    """u(x) = W_L σ(… σ(W_1 x + b_1) …) + b_L at every row of x, in the precision of x.

    Parameters
    ----------
    weights : (W, b) of every layer, W is (out, in).
    x : (n, d). With an embedding its features take the place of x in the first layer, and an ansatz
        combines the output with the data of hard conditions.
    """
    z = x if embedding is None else embedding(x)
    for l, (W, b) in enumerate(weights):
        z = (sigma(z) if l else z) @ jnp.asarray(W, x.dtype).T + jnp.asarray(b, x.dtype)
    return z if ansatz is None else ansatz(x, z)


def _derivative(
    weights: Sequence[tuple[ArrayLike, ArrayLike]],
    sigma: Activation,
    directions: tuple[int, ...],
    x: Array,
    embedding: Embedding | None = None,
    ansatz: Ansatz | Component | None = None,
) -> Array:
    """∂_i ∂_j … u at every row of x, for the coordinates i, j, … in `directions`."""
    f = partial(forward, weights, sigma, embedding=embedding, ansatz=ansatz)

    def along(g, i, x):
        return jax.jvp(g, (x,), (jnp.zeros_like(x).at[:, i].set(1.0),))[1]

    for i in directions:
        f = partial(along, f, i)
    return f(x)


_compiled = partial(jax.jit, static_argnames=("sigma", "directions", "ansatz"))(_derivative)


@dataclass(frozen=True, eq=False)
class Solution:
    """A trained network: u(t=0.5, x=xs), or u(points) with one row per point.

    Numbers, lists and NumPy arrays broadcast against each other and give float64 NumPy. JAX arrays
    and tracers stay in JAX. Several outputs are on a last axis; `u.v` is the function called v.
    `u.d("x")` is a derivative, a function of the same arguments.

    Parameters
    ----------
    weights : (W, b) of every layer in the problem's units, W is (out, in).
    names : the coordinates.
    sigma : the activation.
    seed : the seed it was drawn from.
    directions : the coordinates that it is differentiated along.
    embedding : the features of the inputs (periodic coordinates, Fourier), if any.
    parameters : the unknown numbers of the problem, with their values.
    fields : the names of the functions of a system.
    ansatz : hard conditions, if any.
    frame : (center, half the width) of the domain's bounding box, if there is a domain.
    """

    weights: list[tuple[np.ndarray, np.ndarray]]
    names: tuple[str, ...]
    sigma: Activation
    seed: int
    directions: tuple[int, ...] = ()
    embedding: Embedding | None = None
    parameters: dict[str, float] = field(default_factory=dict)
    fields: tuple[str, ...] = ()
    ansatz: Ansatz | Component | None = None
    frame: tuple[np.ndarray, np.ndarray] | None = None

    def __getattr__(self, name: str) -> Solution:
        # copy and pickle ask for attributes before there are any
        if name.startswith("_") or "fields" not in vars(self):
            raise AttributeError(name)
        if name not in self.fields:
            raise AttributeError(f"a solution has no {name!r}.{self._hint(name)}")
        W, b = self.weights[-1]
        i = self.fields.index(name)
        ansatz = self.ansatz
        if ansatz is not None:
            ansatz = Component(ansatz, i)  # type: ignore[arg-type]
        return replace(
            self,
            weights=[*self.weights[:-1], (W[i : i + 1], b[i : i + 1])],
            fields=(),
            ansatz=ansatz,
        )

    def _hint(self, name: str) -> str:
        """What to write in place of an attribute that does not exist."""
        derivative = name if name in self.names else name.removeprefix("d")
        if coordinates := split(derivative, self.names):
            return f" Its derivative is u.d({', '.join(map(repr, coordinates))}), a function too."
        if name in FOREIGN_METHODS:
            return " It is a function: u(t=0.5, x=xs), or u(points)."
        return nearest(name, self.fields)

    @property
    def network_weights(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The weights of the trained network, which has an output for every parameter as well."""
        *inner, (W, b) = self.weights
        values = list(self.parameters.values())
        rows = np.zeros((len(values), W.shape[1]))
        return [*inner, (np.concatenate([W, rows]), np.append(b, values))]

    def __repr__(self) -> str:
        widths = [self.weights[0][0].shape[1], *(W.shape[0] for W, _ in self.weights)]
        derivatives = "".join(f"∂/∂{self.names[i]} of " for i in self.directions)
        return printable(
            f"<{derivatives}u({', '.join(self.names)}): {self.sigma.name} network "
            f"{'-'.join(map(str, widths))}, seed {self.seed}>"
        )

    def d(self, *coordinates: str) -> Solution:
        """The derivative along these coordinates: d("x"), d("x", "x"), …"""
        if not coordinates:
            raise ValueError(
                f"d() needs a coordinate, such as d({self.names[0]!r}); there are "
                f"{', '.join(self.names)}."
            )
        for name in coordinates:
            if name not in self.names:
                raise ValueError(
                    f"{brief(name)} is not a coordinate; {one_by_one(name, self.names)}"
                )
        directions = tuple(self.names.index(name) for name in coordinates)
        return replace(self, directions=self.directions + directions)

    def outside(self, x: np.ndarray) -> np.ndarray:
        """(n,) Which rows of x are outside of the bounding box of the domain. Periodic coordinates
        have no outside.
        """
        if self.frame is None:
            return np.zeros(len(x), bool)
        center, half_width = self.frame
        axes = range(len(self.names)) if self.embedding is None else self.embedding.unchanged
        return np.asarray((np.abs(x - center) > half_width * (1 + 1e-9))[:, list(axes)].any(1))

    def to_torch(self) -> Sequential:
        """A torch.nn.Sequential in double precision (needs PyTorch)."""
        from sapm.results.export import to_torch

        return to_torch(self)

    def to_onnx(self, path: str | Path) -> Path:
        """Write an ONNX model in double precision (needs the package onnx)."""
        from sapm.results.export import to_onnx

        return to_onnx(self, path)

    @usual_settings()
    def __call__(self, points: Any = None, /, *others: Any, **coordinates: Any) -> Any:
        if others:
            named = ", ".join(f"{name}=…" for name in self.names)
            raise TypeError(
                f"u got {1 + len(others)} arguments without names; write u({named}), or u(points) "
                "with a row per point."
            )
        d = len(self.names)
        rows_on_disk = (
            not coordinates
            and type(points) is not np.ndarray  # in memory
            and on_disk(points)
            and (points.shape[1:] == (d,) or (d == 1 and len(points.shape) == 1))
        )
        if rows_on_disk:  # read in pieces
            values = self._evaluate(OnDisk(points))  # type: ignore[arg-type]
            return values[..., 0] if values.shape[-1] == 1 else values
        x, in_jax = self._points(points, coordinates)
        rows = x.reshape(-1, x.shape[-1])
        if in_jax:
            values = _derivative(
                self.weights, self.sigma, self.directions, rows, self.embedding, self.ansatz
            )
        else:
            values = self._evaluate(rows)
        values = values.reshape(*x.shape[:-1], len(self.weights[-1][1]))
        return values[..., 0] if values.shape[-1] == 1 else values

    def _points(self, points: Any, coordinates: dict[str, Any]) -> tuple[Any, bool]:
        """(…, d) points, and whether they are JAX's."""
        expected = ", ".join(f"{name}=…" for name in self.names)
        d = len(self.names)
        if points is not None:
            if coordinates:
                raise TypeError(
                    f"give either points (n, {d}) or the coordinates by name ({expected}), not "
                    "both."
                )
            in_jax = isinstance(points, jax.Array)
            x = _numbers("points", points, in_jax)
            if d == 1 and x.ndim <= 1:
                x = x[..., None]
            if x.ndim == 0 or x.shape[-1] != d:
                raise ValueError(
                    f"points have shape {x.shape}; give one row per point with {d} columns: "
                    f"{expected}."
                )
            return x, in_jax
        for name in coordinates:
            if name not in self.names:
                raise TypeError(
                    f"{brief(name)} is not a coordinate; give {expected}."
                    + nearest(name, self.names)
                )
        if missing := [name for name in self.names if name not in coordinates]:
            raise TypeError(f"{', '.join(missing)} is missing; give all coordinates: {expected}.")
        in_jax = any(isinstance(value, jax.Array) for value in coordinates.values())
        numpy = jnp if in_jax else np
        parts = [_numbers(name, coordinates[name], in_jax) for name in self.names]
        try:
            parts = numpy.broadcast_arrays(*parts)
        except ValueError:
            shapes = ", ".join(f"{name}: {np.shape(coordinates[name])}" for name in self.names)
            raise ValueError(
                f"the coordinates do not broadcast against each other: {shapes}."
            ) from None
        return numpy.stack(parts, axis=-1), in_jax

    @float64
    def _evaluate(self, x: np.ndarray | OnDisk) -> np.ndarray:
        """(n, outputs) in NumPy; arrays are padded so that few programs are compiled."""
        values = [np.zeros((0, len(self.weights[-1][1])))]
        for begin in range(0, len(x), POINTS_PER_CALL):
            part = x[begin : begin + POINTS_PER_CALL]
            # arrays padded to the next power of two share compiled programs
            rows = max(FEWEST_POINTS_PER_CALL, 1 << (len(part) - 1).bit_length())
            padded = np.pad(part, ((0, rows - len(part)), (0, 0)))
            with jax.ensure_compile_time_eval():  # within jit, numbers are still numbers
                output = _compiled(
                    self.weights, self.sigma, self.directions, padded, self.embedding, self.ansatz
                )
            values.append(np.asarray(output)[: len(part)])
        return np.concatenate(values)


def _numbers(name: str, value: Any, in_jax: bool) -> Any:
    """The value as an array of floating-point numbers, of JAX or of NumPy.

    Parameters
    ----------
    name : what the message calls it.
    value : what the user gave.
    in_jax : whether JAX evaluates, in the user's own precision.
    """
    if type(value) is np.ndarray and value.dtype == float:
        return jnp.asarray(value) if in_jax else value
    check_readable(name, value)
    x = _jax_numbers(value) if in_jax else real_numbers(value)
    if x is None:
        traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value))
        hint = " Within jit, vmap and grad give jax.numpy.array(…)." * traced
        raise TypeError(f"{name}={brief(value)} must hold real numbers.{hint}")
    return x


def _jax_numbers(value: Any) -> Array | None:
    """The value as an array of JAX; None for anything but real numbers."""
    try:
        x = jnp.asarray(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if jnp.issubdtype(x.dtype, jnp.floating):
        return x
    whole = jnp.issubdtype(x.dtype, jnp.integer) or x.dtype == bool
    return x.astype(float) if whole else None


def relative_error(value: ArrayLike, reference: ArrayLike) -> float:
    """‖value - reference‖ / ‖reference‖, or ‖value - reference‖ / √n for reference = 0."""
    b = np.asarray(reference, float)
    a = np.asarray(value, float).reshape(b.shape)
    unit = np.abs(b).max(initial=0.0) or 1.0  # squares of very small numbers are 0
    a = a / unit
    b = b / unit
    size = np.linalg.norm(b)
    with np.errstate(over="ignore"):  # of a network that diverged
        return float(np.linalg.norm(a - b) / (size if size > 0 else np.sqrt(len(b))))
