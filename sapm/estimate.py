"""How wrong a solution probably is, without knowing the right one.

The error e of u satisfies, to first order, F'(u) e = -F(u) in the domain and the like on its boundary. This equation is solved
for e in the least-squares sense at points that the training has not seen, and more of them, among random features: sines of
many scales, which a linear solve fits at once. The size of e is then the estimate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sapm.characteristics import reference
from sapm.conditions import Observed
from sapm.jet import Activation, Jet, float64, lift, sin
from sapm.network import Dense, Network
from sapm.samples import Samples, Weights
from sapm.term import Term
from sapm.threads import one_thread

FEATURES, SCALES = 2000, tuple(2.0**k for k in range(9))  # how many at most, and the sizes of their directions, in equal shares
SHARES = 6  # at least that many: fewer scales have fewer features
ALWAYS, RESOLVED = 8.0, 0.55  # the scale up to which all are taken; others up to that many times the points along a coordinate
CHUNK = 1000  # samples at a time
SMALL = 1e-13  # singular values of the features' matrix below that fraction of the largest are taken for 0

WRONG = 0.3  # an estimate from there on is of no solution at all
LESS, LITTLE = 0.7, 0.2  # of the residual: a correction that accounts for less says little of the error
ALIKE, FAR = 1e4, 30.0  # times as large the loss of another seed may be, for its distance, in estimates, to say something
MUCH = 3.0  # times the estimate: a residual, relative to the data, of that size which hardly any correction accounts for
SOME, ENOUGH, SECONDS = 25, 200, 3.0  # points whose characteristics are followed at a time and in all, and for how long
FREE = 1e-2  # of a parameter along directions without effect: then nothing determines it
NEAR, NOTHING = 1e-3, 1e-6  # a distance that is never far; a size of u, in units of the data, that nothing is relative to


@dataclass(frozen=True)
class Estimate:
    """`error`: the relative ℓ² size of the correction. `explained`: how much of the residual, in square, it accounts for.

    `residual`: that of the training, relative to the data. Where u is 0, as far as one can tell, `relative` is False and the
    size that of the correction itself, in units of the data.
    `apart`: the relative ℓ² distance to the best other seed, None if there is one seed only; `worse`: how many times as large its
    loss is. `finer`: the points are not those trained on; `more`: and more of them. `measured`: values were observed, which no u
    need fit. `each`: the error of every function of a system, relative to its own size. `followed`: it is no estimate but the
    error itself at `points` points, by the characteristics through them.
    """

    error: float
    explained: float
    apart: float | None
    points: int
    finer: bool = True
    worse: float = 1.0
    relative: bool = True
    residual: float = 0.0
    more: bool = True
    measured: bool = False
    each: dict[str, float] = field(default_factory=dict)
    followed: bool = False

    @property
    def no_solution(self) -> bool:
        """Whether it says, in capitals, that this is or may be no solution."""
        return bool(np.isfinite(self.error)) and (self._large or self._unaccounted)

    @property
    def _large(self) -> bool:
        return self.relative and self.error >= WRONG

    @property
    def _unaccounted(self) -> bool:
        return self.explained < LITTLE and self.residual > max(MUCH * self.error, NEAR) and not self.measured

    def __str__(self) -> str:
        if not np.isfinite(self.error):
            return "No error estimate: the network or its residual is not finite."
        apiece = "".join(f"; {name} {error:.1e}" for name, error in self.each.items())
        cures = (
            "Take more steps (or time), points or seeds, a larger network, or conditions that are hard=True; where the time is "
            "long, see docs/choosing.md."
        )
        if self.followed:
            verdict = f" THIS IS NO SOLUTION. {cures}" if self._large else ""
            return f"Error {self.error:.1e} (relative): u by the characteristics through {self.points} other points.{verdict}"
        if self._large:
            return f"Error estimate {self.error:.1e} (relative{apiece}): THIS IS NO SOLUTION. {cures}"
        if self._unaccounted:
            return (
                f"No error estimate: the residual is still {self.residual:.1e} of the data, and corrections account for "
                f"{int(100 * self.explained)} % of it. THIS MAY BE NO SOLUTION, also where seeds agree. {cures}"
            )
        more = ", and more of them" if self.more else ""
        other = f" (not those trained on{more})" if self.finer else " (with the problem given there are more)"
        share = f"{int(100 * self.explained)} % of the residual there" if self.explained < 0.995 else "all of the residual there"
        kind = f"relative{apiece}" if self.relative else "absolute, since u is 0"
        where = f"at {self.points} points{other} a correction of that size accounts for {share}"
        said = f"Error estimate {self.error:.1e} ({kind}): {where}"
        if self.explained < LESS and self.measured:
            rest = f"the rest, {self.residual:.1e} of the data, is by how much equation and measurements disagree"
            noise = "If that is noise, a tenth of the weight of Observed follows it less; what noise does to u is not estimated."
            return f"{said}; {rest}. {noise}{self._of_others()}"
        if self.explained < LESS:
            return f"{said}; the true error may be ten times as large.{self._of_others()}"
        low = not self.finer or (self._alike and self.apart > self.error * (1 + np.sqrt(max(1.0, self.worse))))
        return f"{said}{'; the true error may be several times as large' * bool(low)}.{self._of_others()}"

    @property
    def _alike(self) -> bool:
        """Whether there is another seed whose distance says something."""
        return self.apart is not None and self.relative and self.worse <= ALIKE

    def _of_others(self) -> str:
        if self.apart is None or not self.relative:
            return ""
        if not self._alike:
            return f" The next best seed has {self.worse:.0e} times the loss, and is no witness."
        said = f" The {'next best' if self.worse >= 1 else 'best'} seed is {self.apart:.1e} away"
        if self.apart <= max(NEAR, FAR * self.error * np.sqrt(max(1.0, self.worse))):  # errors are like square roots of losses
            return f"{said}."
        return (
            f"{said}, far more than that: either the equation and its conditions leave u open, or it has several solutions, or "
            "there are too few points; do not trust any."
        )


def followed(problem: Any, u: Callable, x: np.ndarray | None) -> Estimate | None:
    """The error itself at the first of the points x, where characteristics tell it within seconds; None where they do not."""
    if not getattr(problem, "followed", False) or problem.ill_posed or x is None or len(x) < SOME:
        return None
    x, wanted, until = x[:ENOUGH], np.zeros(0), time.monotonic() + SECONDS
    while len(wanted) < len(x) and (not len(wanted) or time.monotonic() < until):
        wanted = np.append(wanted, reference(problem, x[len(wanted) : len(wanted) + SOME], 1e-9, cut=True))
    known = np.flatnonzero(np.isfinite(wanted))
    if len(known) < len(wanted) / 2 or not np.any(wanted[known]):
        return None
    wanted = wanted[known]
    error = np.linalg.norm(u(x[known]) - wanted) / np.linalg.norm(wanted)
    return Estimate(float(error), 1.0, None, len(known), followed=True)


def features(samples: Samples, points: int) -> Dense:
    """Random directions and phases, for inputs that fill [-1, 1], of the scales that so many points can tell apart: sines of
    others would fit whatever there is at the points."""
    rng, inputs = np.random.default_rng(0), samples.inputs
    scales = [s for s in SCALES if s <= max(ALWAYS, RESOLVED * points ** (1 / len(samples.names)))]
    scale = np.repeat(scales, -(-FEATURES // (len(samples.fields) * max(SHARES, len(scales)))))[:, None]
    return Dense(
        jnp.asarray(rng.normal(size=(len(scale), inputs)) * scale / np.sqrt(max(1, inputs / 2))),
        jnp.asarray(rng.uniform(0, 2 * np.pi, len(scale))),
    )


@one_thread()
@float64
def correction(terms: Sequence[Term], network: Network, layer: Dense, fields: int) -> tuple[Array, float]:
    """The coefficients (fields, features + 1) of the correction, and the share of the residual, squared, that it explains."""
    count = len(layer.b) + 1
    square, right, total = 0.0, 0.0, 0.0
    for term in terms:
        for part in _pieces(term):
            R, A, weight = _equations(part, network, layer, fields)
            root = jnp.sqrt(weight)
            A, R = (A * root[:, None, None]).reshape(-1, A.shape[-1]), (R * root[:, None]).reshape(-1)
            square, right, total = square + A.T @ A, right + A.T @ R, total + float(R @ R)
    if not np.isfinite(total):
        return jnp.full((fields, count), jnp.nan), 0.0
    scale = np.sqrt(np.maximum(np.diag(square), 1e-300))
    square, right = np.asarray(square) / np.outer(scale, scale), np.asarray(right) / scale
    values, vectors = np.linalg.eigh(square)
    kept = values > SMALL * values[-1]  # the others are lost in rounding
    along = vectors[:, kept].T @ right
    found = -(vectors[:, kept] @ (along / values[kept])) / scale
    explained = float(np.sum(along**2 / values[kept]) / total) if total > 0 else 1.0
    return jnp.asarray(found[: fields * count].reshape(fields, count)), min(explained, 1.0)


def _pieces(term: Term) -> list[Term]:
    """The samples, so many at a time that their derivatives along all features need about as much memory in every equation."""
    n, size = len(term.y), max(50, 4 * CHUNK // (3 + term.channels))
    cut = lambda begin: jax.tree.map(lambda a: a[begin : begin + size] if a.ndim and len(a) == n else a, term)  # noqa: E731
    return [cut(begin) for begin in range(0, n, size)]


@jax.jit
def _output(network: Network, x: Jet) -> Jet:
    return network(x)


def _equations(term: Term, network: Network, layer: Dense, fields: int) -> tuple[Array, Array, Array]:
    """The residual (n, rows), its derivative (n, rows, fields · (features + 1) + parameters) along every feature, the weights."""
    residual, back = jax.vjp(term.residual, _output(network, term.x))
    n, rows = residual.shape
    z = lift(sin, layer(term.x))
    value = jnp.concatenate([z.value, jnp.ones((n, 1))], axis=1)
    channels = jnp.concatenate([z.tangents, jnp.zeros((*z.tangents.shape[:2], 1))], axis=2)
    out = []
    for row in jnp.eye(rows):
        c = back(jnp.broadcast_to(row, (n, rows)))[0]
        parts = [c.value[:, i, None] * value + jnp.einsum("nk,nkf->nf", c.tangents[:, :, i], channels) for i in range(fields)]
        out.append(jnp.concatenate([*parts, c.value[:, fields:]], axis=1))
    return residual, jnp.stack(out, axis=1), jnp.broadcast_to(term.weight, (n,))


@float64
def estimated(samples: Samples, terms: Sequence[Term], weights: Weights, sigma: Activation) -> tuple[float, float, bool, dict]:
    """The ℓ² size, at the points of the first term, of the correction to a network with these weights; its share of the residual;
    whether the size is relative to that of u; and that of every function of a system, relative to its own."""
    scaling, fields = samples.scaling, len(samples.fields)
    pairs = [(jnp.asarray(W), jnp.asarray(b)) for W, b in scaling.scaled(weights)]
    network, layer = Network.of(pairs, sigma, len(samples.parameters)), features(samples, len(terms[0].y))
    terms = [scaling.term(term) for term in terms]
    coefficients, share = correction(terms, network, layer, fields)
    x = Jet(terms[0].x.value, terms[0].x.tangents[:, :0])
    z = sin(layer(x).value)
    e = jnp.concatenate([z, jnp.ones((len(z), 1))], axis=1) @ coefficients.T
    u = terms[0].composed_value(_output(network, x).value)[:, :fields]
    e = e if terms[0].ansatz is None else e * terms[0].ansatz[0].value[:, :fields]
    u = u + e
    size, root = float(jnp.linalg.norm(u)), float(np.sqrt(u.size))
    relative = not size <= NOTHING * root
    ratios = np.asarray(jnp.linalg.norm(e, axis=0) / jnp.maximum(jnp.linalg.norm(u, axis=0), 1e-300))
    each = dict(zip(samples.fields, ratios.tolist(), strict=True)) if fields > 1 else {}
    return float(jnp.linalg.norm(e)) / (size if relative else root), share, relative, each


def observed(problem: Any) -> list[Observed]:
    """The measurements of a problem."""
    return [c for c in getattr(problem, "stated", ()) if isinstance(c, Observed)]


def _measured(terms: Sequence[Term], problem: Any) -> list[np.ndarray]:
    """For each term, which of its samples are measurements."""
    points = {row.tobytes() for c in observed(problem) for row in np.ascontiguousarray(c.place_in(problem.domain))}
    places = [np.ascontiguousarray(term.x.value if term.points is None else term.points, float) for term in terms]
    return [np.array([k > 0 and row.tobytes() in points for row in each]) for k, each in enumerate(places)]


@float64
def mostly_measured(samples: Samples, problem: Any, network: Network) -> bool:
    """Whether most of the loss is what measurements differ by from u."""
    if not observed(problem):
        return False
    mine = total = 0.0
    for term, on in zip(samples.terms, _measured(samples.terms, problem), strict=True):
        loss = np.asarray(term.weight * jnp.sum(term.residual(_output(network, term.x)) ** 2, axis=1))
        mine, total = mine + float(loss[on].sum()), total + float(loss.sum())
    return mine > 0.5 * total


@one_thread()
@float64
def standard_errors(samples: Samples, terms: Sequence[Term], problem: Any, weights: Weights, sigma: Activation) -> np.ndarray:
    """What the noise of measured values makes of the parameters: the root mean square of its part in each.

    The parameters found are, to first order, a linear function of the measurements; their covariance follows from the squares of
    what is left of each, without a model of the noise. What is left is less than the noise by the part that a measurement has in
    its own prediction; that is divided out. Infinite for a parameter that could be changed without any effect; NaN where there
    are no more values than parameters.
    """
    measured, count = _measured(terms, problem), len(samples.parameters)
    scaling, fields = samples.scaling, len(samples.fields)
    pairs = [(jnp.asarray(W), jnp.asarray(b)) for W, b in scaling.scaled(weights)]
    network, layer = Network.of(pairs, sigma, count), features(samples, len(terms[0].y))
    square, left = 0.0, []
    for term, mine in zip(terms, measured, strict=True):
        begin = 0
        for part in _pieces(scaling.term(term)):
            R, A, weight = (np.asarray(a) for a in _equations(part, network, layer, fields))
            on = mine[begin : begin + len(R)]
            square = square + np.einsum("nrf,n,nrg->fg", A, weight, A, optimize=True)
            left.append((A[on].reshape(-1, A.shape[2]), np.repeat(weight[on], R.shape[1]), R[on].ravel()))
            begin += len(R)
    A, weight, R = (np.concatenate(parts) for parts in zip(*left, strict=True))
    if len(R) <= count:
        return np.full(count, np.nan)
    scale = np.sqrt(np.maximum(np.diag(square), 1e-300))
    values, vectors = np.linalg.eigh(square / np.outer(scale, scale))
    kept = values > SMALL * values[-1]
    scores = (A / scale) @ vectors[:, kept] / np.sqrt(values[kept])  # of every measurement, along what is determined
    noise = R / np.maximum(1 - weight * np.sum(scores**2, axis=1), 1e-3)
    rows = vectors[-count:, kept] / np.sqrt(values[kept]) / scale[-count:, None]
    found = np.linalg.norm((rows @ scores.T) * weight * noise, axis=1)
    return np.where(np.linalg.norm(vectors[-count:, ~kept], axis=1) > FREE, np.inf, found) * np.abs(scaling.units)
