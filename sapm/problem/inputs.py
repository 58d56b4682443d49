"""How a network sees the coordinates, and how its output becomes u.

* `Embedding`: the network's inputs are some coordinates and sines of others (periodic coordinates,
  Fourier features) instead of the coordinates themselves.
* `Ansatz`: u = g + φ N, with the network N and a factor φ that vanishes on some faces, so that
  u = g holds there exactly (conditions with `hard=True`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sapm.errors import brief, count, listed, number
from sapm.numerics.activations import sin
from sapm.numerics.jets import Jet, jet_of, lift
from sapm.numerics.layers import Dense
from sapm.problem.domain import Ball, Box, Coordinates, Domain
from sapm.problem.functions import UserCode, numbers_of
from sapm.scopes import float64

MOST_FEATURES = 5000  # random directions of Fourier features

# ---------------------------------------------------------------- inputs of the network


class Embedding(eqx.Module):
    """x → (x_i for i in `unchanged`, sin(W x + b)).

    Parameters
    ----------
    W : (f, d) one row per sine.
    b : (f,) phases.
    unchanged : indices of the coordinates that are passed on as they are.
    """

    W: Float[Array | np.ndarray, "f d"]
    b: Float[Array | np.ndarray, " f"]
    unchanged: tuple[int, ...] = eqx.field(static=True)

    @property
    def width(self) -> int:
        """The number of network inputs."""
        return len(self.unchanged) + len(self.b)

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n w"]:
        unchanged = x[:, jnp.asarray(self.unchanged, int)]
        sines = sin(x @ jnp.asarray(self.W, x.dtype).T + jnp.asarray(self.b, x.dtype))
        return jnp.concatenate([unchanged, sines], axis=1)

    def jet(self, x: Jet) -> Jet:
        """The jet of the inputs, for a jet of points."""
        columns = jnp.asarray(self.unchanged, int)
        sines = lift(sin, Dense(jnp.asarray(self.W), jnp.asarray(self.b))(x))
        value = jnp.concatenate([x.value[:, columns], sines.value], axis=-1)
        tangents = jnp.concatenate([x.tangents[..., columns], sines.tangents], axis=-1)
        return x.like(value, tangents)

    def frame(self, center: np.ndarray, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Centre and half width of every input, given those of the coordinates."""
        columns = list(self.unchanged)
        count = len(self.b)
        return (
            np.append(center[columns], np.zeros(count)),
            np.append(spread[columns], np.ones(count)),
        )

    def describe(self) -> dict:
        """This embedding as JSON; `embedding_from` is the inverse."""
        return {
            "kept": list(self.unchanged),
            "W": np.asarray(self.W).tolist(),
            "b": np.asarray(self.b).tolist(),
        }


def embedding_from(description: Any, d: int) -> Embedding | None:
    """The embedding of d coordinates that `Embedding.describe` wrote; a ValueError for anything
    else.
    """
    if description is None:
        return None
    if not isinstance(description, dict):
        raise ValueError(f"embedding={brief(description)} must be a dictionary.")
    kept = listed(count(0, d - 1), d)("embedding: kept", description.get("kept"))
    if len(set(kept)) != len(kept):
        raise ValueError(f"embedding: kept={brief(list(kept))} names a coordinate twice.")
    most = 2 * (MOST_FEATURES + d)  # a sine and a cosine; periodic coordinates have them too
    W = listed(listed(_finite, d), most)("embedding: W", description.get("W"))
    b = listed(_finite, most)("embedding: b", description.get("b"))
    if {len(row) for row in W} != {d} or len(b) != len(W):
        raise ValueError(
            f"embedding: W has rows of {sorted({len(row) for row in W})} numbers and b "
            f"{len(b)}, expected rows of {d}, and as many numbers in b as W has rows."
        )
    return Embedding(np.array(W), np.array(b), kept)


def _finite(name: str, value: Any) -> float:
    if not abs(number(value)) < np.inf:
        raise ValueError(f"{name} has {brief(value)}; it must be a finite number.")
    return float(value)


@dataclass(frozen=True)
class Fourier:
    """Random Fourier features: sin(w·x) and cos(w·x) as inputs of the network, in addition to x.

    They help where the solution has fine detail. `PDE(…, features=sapm.Fourier(16))`.

    Parameters
    ----------
    count : how many random directions w; each gives a sine and a cosine.
    scale : standard deviation of w, for coordinates scaled to [-1, 1]. Larger means finer detail.
    seed : seed of the random directions.
    """

    count: int
    scale: float = 2.0
    seed: int = 0

    def __post_init__(self):
        whole = isinstance(self.count, (int, np.integer)) and not isinstance(self.count, bool)
        if not whole or not 1 <= self.count <= MOST_FEATURES:
            raise ValueError(
                f"Fourier: got count={brief(self.count)}, expected a whole number of at least 1 "
                f"and at most {MOST_FEATURES}; write for example Fourier(16)."
            )
        if not 0 < number(self.scale) < np.inf:
            raise ValueError(
                f"Fourier: got scale={brief(self.scale)}, expected a positive, finite number."
            )


def embedding_for(
    frame: tuple[np.ndarray, np.ndarray],
    periodic: Sequence[int] = (),
    fourier: Fourier | None = None,
) -> Embedding:
    """Sine and cosine of every periodic coordinate, and Fourier features of the others.

    Parameters
    ----------
    frame : centre and half width of the domain along every coordinate.
    periodic : indices of the periodic coordinates.
    fourier : Fourier features of the other coordinates.
    """
    center, spread = frame
    d = len(center)
    unchanged = [i for i in range(d) if i not in periodic]
    rows = [np.pi / spread[i] * np.eye(d)[i] for i in periodic]
    if fourier is not None:
        if not unchanged:
            raise ValueError(
                "features=Fourier(…) needs a coordinate that is not periodic; leave it out."
            )
        generator = np.random.default_rng(fourier.seed)
        draw = generator.normal(size=(fourier.count, len(unchanged))) * fourier.scale
        rows += [np.eye(d)[unchanged].T @ (row / spread[unchanged]) for row in draw]
    W = np.array(rows)
    b = -W @ center
    return Embedding(np.concatenate([W, W]), np.concatenate([b, b + np.pi / 2]), tuple(unchanged))


# ---------------------------------------------------------------- hard conditions


def distance(domain: Domain, face: str, row: Array) -> Array:
    """A smooth function of a point: 0 on the face, positive inside, 1 in the middle.

    Parameters
    ----------
    domain : a Box or a Ball.
    face : the name of the face.
    row : (d,) the point.
    """
    if isinstance(domain, Box):
        lower, upper = domain.bounds[face[:-1]]
        x = row[domain.names.index(face[:-1])]
        return 2 * (x - lower if face[-1] == "-" else upper - x) / (upper - lower)
    if isinstance(domain, Ball):
        return 1 - jnp.sum((row - jnp.asarray(domain.center)) ** 2) / domain.radius**2
    raise ValueError(f"hard=True needs a Box or a Ball, not {type(domain).__name__}; leave it out.")


@dataclass(frozen=True, eq=False)
class Ansatz:
    """u = g + φ N, φ the product of the distances to `faces`; parameters to find are left alone.

    Parameters
    ----------
    domain : a Box or a Ball.
    faces : the faces on which u = g.
    g : the datum, a function of one point that is defined in the whole domain.
    fields : the number of unknown functions.
    constants : the number of outputs after them, which are unknown parameters.
    """

    domain: Domain
    faces: tuple[str, ...]
    g: Callable
    fields: int
    constants: int = 0

    def factor(self, row: Float[Array, " d"]) -> Float[Array, " m"]:
        """φ at one point, for every output."""
        product = jnp.ones(())
        for face in self.faces:
            product = product * distance(self.domain, face, row)
        return jnp.append(jnp.full(self.fields, product), jnp.ones(self.constants))

    def datum(self, row: Float[Array, " d"]) -> Float[Array, " m"]:
        """g at one point, for every output."""
        point = Coordinates(self.domain.names, row)
        with UserCode():
            values = numbers_of(self.g(point), "the datum of a hard condition", several=True)
        return jnp.append(jnp.broadcast_to(values, (self.fields,)), jnp.zeros(self.constants))

    @float64
    def jets(self, x: Jet) -> tuple[Jet, Jet]:
        """The jets of φ and g for a jet of points."""
        return jet_of(self.factor, x), jet_of(self.datum, x)

    def __call__(self, x: Float[Array, "n d"], outputs: Float[Array, "n m"]) -> Array:
        """u at the points x, from the outputs of the network there."""
        m = outputs.shape[1]
        return outputs * jax.vmap(self.factor)(x)[:, :m] + jax.vmap(self.datum)(x)[:, :m]


@dataclass(frozen=True)
class Component:
    """Function i of an `Ansatz` by itself, from output i alone."""

    ansatz: Ansatz
    i: int

    def __call__(self, x: Float[Array, "n d"], output: Float[Array, "n 1"]) -> Array:
        return self.ansatz(x, jnp.repeat(output, self.ansatz.fields, 1))[:, self.i : self.i + 1]
