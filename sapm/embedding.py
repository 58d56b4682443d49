"""Features that stand in for the coordinates at the input of a network: some coordinates as they are, sines of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sapm.jet import Jet, lift, sin
from sapm.names import brief, number
from sapm.network import Dense


class Embedding(eqx.Module):
    """x → (the kept coordinates, sin(W x + b))."""

    W: Float[Array | np.ndarray, "f d"]
    b: Float[Array | np.ndarray, " f"]
    kept: tuple[int, ...] = eqx.field(static=True)

    @property
    def width(self) -> int:
        """How many inputs the network has."""
        return len(self.kept) + len(self.b)

    def __call__(self, x: Array) -> Array:
        kept = x[:, jnp.asarray(self.kept, int)]
        return jnp.concatenate([kept, sin(x @ jnp.asarray(self.W, x.dtype).T + jnp.asarray(self.b, x.dtype))], axis=1)

    def jet(self, x: Jet) -> Jet:
        """The same for points with directions: the input jet of the features."""
        kept, f = jnp.asarray(self.kept, int), lift(sin, Dense(jnp.asarray(self.W), jnp.asarray(self.b))(x))
        value = jnp.concatenate([x.value[:, kept], f.value], axis=-1)
        return Jet(value, jnp.concatenate([x.tangents[..., kept], f.tangents], axis=-1), x.forms)

    def frame(self, center: np.ndarray, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Middle and half width of every input, from those of the coordinates."""
        kept, more = list(self.kept), len(self.b)
        return np.append(center[kept], np.zeros(more)), np.append(spread[kept], np.ones(more))

    def describe(self) -> dict:
        return {"kept": list(self.kept), "W": np.asarray(self.W).tolist(), "b": np.asarray(self.b).tolist()}


def embedding_from(described: dict | None) -> Embedding | None:
    """What `describe` described."""
    if described is None:
        return None
    return Embedding(np.asarray(described["W"], float), np.asarray(described["b"], float), tuple(described["kept"]))


@dataclass(frozen=True)
class Fourier:
    """Sines and cosines of `count` random directions beside the coordinates: for solutions with much detail.

    The directions are normal with standard deviation `scale` for coordinates that fill [-1, 1]; drawn from `seed`.
    """

    count: int
    scale: float = 2.0
    seed: int = 0

    def __post_init__(self):
        if isinstance(self.count, bool) or not isinstance(self.count, (int, np.integer)) or self.count < 1:
            raise ValueError(f"Fourier got count={brief(self.count)}; wanted a whole number, at least 1, such as Fourier(16).")
        if not 0 < number(self.scale) < np.inf:
            raise ValueError(f"Fourier got scale={brief(self.scale)}; wanted a positive, finite number.")


def embedding_for(
    frame: tuple[np.ndarray, np.ndarray], periodic: Sequence[int] = (), fourier: Fourier | None = None
) -> Embedding | None:
    """Once around the circle for every periodic coordinate, and Fourier features of the others; None if neither is wanted."""
    if not periodic and fourier is None:
        return None
    (center, spread), d = frame, len(frame[0])
    kept = tuple(i for i in range(d) if i not in periodic)
    rows = [np.pi / spread[i] * np.eye(d)[i] for i in periodic]
    if fourier is not None:
        if not kept:
            raise ValueError("features=Fourier(…) needs a coordinate that is not periodic; leave it out.")
        draw = np.random.default_rng(fourier.seed).normal(size=(fourier.count, len(kept))) * fourier.scale
        rows += [np.eye(d)[list(kept)].T @ (row / spread[list(kept)]) for row in draw]
    W = np.array(rows)
    b = -W @ center
    return Embedding(np.concatenate([W, W]), np.concatenate([b, b + np.pi / 2]), kept)
