"""Jets: a value per sample together with its derivatives, and the activations that act on them.

A layer carries, for every sample n, the value a[n] and the tangents d_i[n] (the derivative of a along the i-th
coordinate or direction). Plain regression carries no tangents: the arrays are there with k = 0 and cost nothing.
Second derivatives travel as further channels beside the tangents, each a signed sum of them (docs/method.md, section 8).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from sapm.names import brief, nearest

P = ParamSpec("P")
R = TypeVar("R")


def float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run in double precision, and products of single-precision arrays in single precision (GPUs would take less), whatever the
    caller's global configuration is, and leave that as it was."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True), jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return wrapped


class Jet(eqx.Module):
    """Values and derivatives of m quantities at n samples: k tangents along directions v_1 … v_k, then second-order channels.

    `forms` has a tuple of k signs (1, -1 or 0) for each second-order channel: it is Σ_i sign_i ∂²/∂v_i² plus ∂/∂b, with b what
    the input jet has in its place.
    """

    value: Float[Array, "n m"]
    tangents: Float[Array, "n k m"]
    forms: tuple[tuple[int, ...], ...] = eqx.field(static=True, default=())

    @property
    def first(self) -> int:
        """How many of the channels are tangents; the others are of second order."""
        return len(self.forms[0]) if self.forms else self.tangents.shape[-2]


@dataclass(frozen=True)
class Activation:
    """An activation σ with what the blocks and the theorems need of it.

    `pair(x)` gives (σ(x), σ'(x)) in one evaluation and `curve(x, σ, σ')` gives σ''(x) from them.
    The constants are |σ(x)-σ(y)| ≤ lipschitz |x-y|, |σ'| ≤ slope, |σ'(x)-σ'(y)| ≤ slope_lipschitz |x-y| and
    |σ''(x)-σ''(y)| ≤ curve_lipschitz |x-y|;
    None where there is none or it is unknown: such an activation trains, but gets no certificate that needs it.
    """

    name: str
    pair: Callable[[Array], tuple[Array, Array]]
    curve: Callable[[Array, Array, Array], Array]
    lipschitz: float | None = None
    slope: float | None = None
    slope_lipschitz: float | None = None
    curve_lipschitz: float | None = None
    source: Callable | None = None  # the function it was made from, if a user gave one

    def __reduce__(self):
        """Pickled by name, or as the function it was made from."""
        if self.source is None and ACTIVATIONS.get(self.name) is self:
            return activation, (self.name,)
        return (activation, (self.source,)) if self.source is not None else super().__reduce__()

    def __call__(self, x: Array) -> Array:
        return self.pair(x)[0]


def lift(sigma: Activation, jet: Jet) -> Jet:
    """(a, d_i) → (σ(a), σ'(a)∘d_i): forward mode through σ. A second-order channel S → σ'(a)∘S + σ''(a)∘Σ_i sign_i d_i²."""
    value, slope = sigma.pair(jet.value)
    tangents = slope[:, None, :] * jet.tangents
    if jet.forms:
        k = jet.first
        squares = jnp.einsum("qk,nkm->nqm", jnp.asarray(jet.forms, tangents.dtype), jet.tangents[:, :k] ** 2)
        tangents = tangents.at[:, k:].add(sigma.curve(jet.value, value, slope)[:, None, :] * squares)
    return Jet(value, tangents, jet.forms)


# π/2 in three parts. The first two have 33 significant bits, so that k times them is exact for |k| < 2²⁰.
_HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)


@jax.custom_jvp
def sincos(x: Array) -> tuple[Array, Array]:
    """(sin x, cos x) together, within 2 ulp of 1 for |x| ≤ 1e6 and within the rounding of x itself beyond.

    Subtract the nearest multiple of π/2, sum the Taylor series on the rest, put the quadrant back. Only arithmetic
    and selects, so the compiler vectorises it: measured 8× faster than sin and cos by the CPU's scalar library.
    """
    k = jnp.round(x * (2 / jnp.pi))
    r = ((x - k * _HALF_PI[0]) - k * _HALF_PI[1]) - k * _HALF_PI[2]
    r = jnp.clip(r, -0.8, 0.8)  # moves nothing until k itself has lost its last digit: |x| beyond 1e15
    z = r * r
    sin, cos = 0.0, 0.0
    for j in range(15, 1, -2):
        sin = z * (sin + (-1.0) ** (j // 2) / _factorial(j))
    for j in range(16, 2, -2):
        cos = z * (cos + (-1.0) ** (j // 2) / _factorial(j))
    sin, cos = r + r * sin, 1.0 - z * (0.5 - cos)
    quadrant = k - 4 * jnp.floor(k * 0.25)
    odd = (quadrant == 1) | (quadrant == 3)
    sin, cos = jnp.where(odd, cos, sin), jnp.where(odd, sin, cos)
    return jnp.where(quadrant >= 2, -sin, sin), jnp.where((quadrant == 1) | (quadrant == 2), -cos, cos)


@sincos.defjvp
def _sincos_jvp(primals, tangents):
    sin, cos = sincos(primals[0])
    return (sin, cos), (cos * tangents[0], -sin * tangents[0])


def _factorial(j: int) -> float:
    return float(j * _factorial(j - 1)) if j > 1 else 1.0


def _relu(x):
    return jnp.where(x > 0, x, 0.0), (x > 0).astype(x.dtype)


def _tanh(x):
    t = jnp.tanh(x)
    return t, 1 - t * t


def _sigmoid(x):
    s = jax.nn.sigmoid(x)
    return s, s * (1 - s)


def _softplus(x):
    return jax.nn.softplus(x), jax.nn.sigmoid(x)


relu = Activation("relu", _relu, lambda x, s, ds: jnp.zeros_like(x), 1.0, 1.0, None, None)
sin = Activation("sin", sincos, lambda x, s, ds: -s, 1.0, 1.0, 1.0, 1.0)
tanh = Activation("tanh", _tanh, lambda x, s, ds: -2 * s * ds, 1.0, 1.0, 4 / (3 * 3**0.5), 2.0)
sigmoid = Activation("sigmoid", _sigmoid, lambda x, s, ds: ds * (1 - 2 * s), 0.25, 0.25, 1 / (6 * 3**0.5), 0.125)
softplus = Activation("softplus", _softplus, lambda x, s, ds: ds * (1 - ds), 1.0, 1.0, 0.25, 1 / (6 * 3**0.5))

ACTIVATIONS = {sigma.name: sigma for sigma in (relu, sin, tanh, sigmoid, softplus)}
CALLED = {"logistic": " It is called 'sigmoid' here."}  # by scikit-learn
JAX_OWN = ((jax.nn.relu, relu), (jnp.sin, sin), (jnp.tanh, tanh), (jax.nn.sigmoid, sigmoid), (jax.nn.softplus, softplus))


def activation(given: str | Activation | Callable[[Array], Array]) -> Activation:
    """The activation of that name, or one made from any elementwise JAX function (without constants); JAX's own are ours."""
    if isinstance(given, Activation):
        return given
    for function, ours in JAX_OWN:
        if given is function:
            return ours
    if isinstance(given, str):
        if given not in ACTIVATIONS:
            raise ValueError(
                f"activation={brief(given)} is not known; use one of {', '.join(ACTIVATIONS)}, or give a JAX function"
                + (f": jax.nn.{given}." if hasattr(jax.nn, given) else f".{CALLED.get(given) or nearest(given, ACTIVATIONS)}")
            )
        return ACTIVATIONS[given]
    if not callable(given):
        raise ValueError(f"activation={brief(given)} is neither a name nor a function; use one of {', '.join(ACTIVATIONS)}.")

    def derivative(f):
        return lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))

    pair = derivative(given)
    curve = lambda x, s, ds: derivative(lambda y: pair(y)[1])(x)[1]  # noqa: E731
    return Activation(getattr(given, "__name__", "custom"), pair, curve, source=given)
