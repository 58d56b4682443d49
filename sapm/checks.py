"""Settings of `solve`, checked one by one: a value as JSON has it, or a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, pairwise

import jax.numpy as jnp
import numpy as np

from sapm.jet import Activation
from sapm.methods.build import LONGEST, WHOLE
from sapm.names import brief, number
from sapm.pointwise import NEEDS_NUMBERS
from sapm.problem import PDE
from sapm.regression import Regression, whole
from sapm.store import installed_memory as installed
from sapm.stream import default_chunk
from sapm.unknown import called

ITERATIONS = {"pde": 1000, "regression": 2000}  # by default; of Gauss-Newton:
GAUSS_NEWTON, GAUSS_NEWTON_RELU = 100, 200
DEEPEST, WIDEST, MANY = 10**4, 10**6, 10**6  # layers, units in one, seeds, at most


def positive(name: str, value) -> float:
    if not 0 < number(value) < np.inf:
        raise ValueError(f"{name}={brief(value)} must be a positive, finite number.")
    return float(value)


def budget(iterations) -> int:
    return whole("max_iter", iterations, 0, most=LONGEST)


def width(given, depth: int) -> int | list[int]:
    given = given.tolist() if isinstance(given, np.ndarray) else given
    if isinstance(given, Sequence) and not isinstance(given, str):
        if len(given) != depth - 1:
            raise ValueError(f"width={brief(list(given))} names {len(given)} hidden layers; depth={depth} has {depth - 1}.")
        return [whole("width", w, most=WIDEST) for w in given]
    return whole("width", given, most=WIDEST)


def seeds(given) -> list[int]:
    given = given.tolist() if isinstance(given, np.ndarray) else given
    if isinstance(given, Iterable) and not isinstance(given, str):
        numbers = [whole("a seed number", s, 0) for s in islice(given, MANY + 1)]
        if len(numbers) > MANY:
            raise ValueError(f"seeds has more than {MANY} numbers; give fewer.")
        if max(numbers, default=0) >= 2**32:
            raise ValueError(f"seeds has {max(numbers)}; seed numbers must be below 2**32.")
        if not numbers:
            raise ValueError("seeds is empty; give how many (seeds=10) or which ones (seeds=[3, 4]).")
        if len(set(numbers)) != len(numbers):
            raise ValueError(f"seeds={brief(numbers)} names a seed twice; each one gives one network.")
        return numbers
    return list(range(whole("seeds", given, most=MANY)))


def elementwise(sigma: Activation) -> None:
    """Refuse an activation of the user's that does not take (n, m) numbers to as many."""
    if sigma.source is None:
        return
    x = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)
    try:
        value, slope = (jnp.asarray(a) for a in sigma.pair(x))
        right = value.shape == slope.shape == x.shape and value.dtype == slope.dtype == x.dtype
        right = right and bool(jnp.all(jnp.isfinite(value)) & jnp.all(jnp.isfinite(slope)))
    except NEEDS_NUMBERS:
        raise ValueError(f"activation={brief(sigma.name)} uses NumPy or `if` on its argument; write it with jax.numpy.") from None
    except (TypeError, ValueError, AttributeError):
        right = False
    if not right:
        raise ValueError(
            f"activation={brief(sigma.name)} must be an elementwise JAX function: an array of real numbers to one of the same "
            "shape, all finite, such as jnp.tanh."
        )


def key(given) -> int:
    if whole("key", given, 0) >= 2**63:
        raise ValueError(f"key={brief(given)} is too large; give a number below 2**63.")
    return int(given)


def iterations(method: str, kind: str, sigma: Activation) -> int:
    if method != "gauss-newton":
        return ITERATIONS[kind]
    return GAUSS_NEWTON_RELU if sigma.name == "relu" else GAUSS_NEWTON


def layers(name: str, given, depth: int):
    """A number, or one per layer, as JSON has them."""
    try:
        a = np.asarray(given, dtype=object if isinstance(given, str) else None)
    except (ValueError, OverflowError):  # as many in every row, they are not
        a = np.asarray(None)
    length = depth if name == "alpha" else depth - 1
    if a.dtype.kind not in "iuf" or a.shape not in ((), (length,)) or not (np.all(a > 0) and np.all(np.isfinite(a))):
        raise ValueError(f"{name}={brief(given)} must be a positive, finite number, or {length} of them (one per layer).")
    return a.astype(float).tolist()


def callback(on_record) -> None:
    if on_record is not None and not callable(on_record):
        raise TypeError(
            f"on_record={brief(on_record)} is not a function; give one that takes the state and may return True to stop."
        )


def count(given):
    """Points in the configuration: how many, or None for points that were given (they are stored with the samples)."""
    return int(given) if isinstance(given, (int, np.integer)) else None


JETS = 4  # of every layer in memory at once: what it gives, that lifted, its gain, and the factors of the Jacobian


STATE = 4  # numbers in memory for every unit, sample and seed: a_l, σ(a_l), σ'(a_l) and the defect
SHARE = 4  # the state may take this part of the memory; a larger one is on disk


def chunk(problem, widths: Sequence[int], seeds: int, model: str, method: str, options, in_memory: bool) -> tuple:
    """How many samples are in memory at a time, None for all of them; and why, in a sentence."""
    options = options or {}
    given = options.get("chunk")
    apart = isinstance(problem, Regression) and model != "ls" and method in ("auto", "alternating") and not in_memory
    if given is not None:
        whole("options: chunk", given)
        if not isinstance(problem, Regression):
            raise ValueError(
                f"options has chunk, which is for sapm.Regression, not for sapm.{type(problem).__name__}; leave it out."
            )
        if not apart:
            what = "sapm.refine or SAPMRegressor" if in_memory else f"model={model!r} by {method!r}"
            raise ValueError(f"options has chunk, and {what} needs all samples at once; use model='sapm', method='alternating'.")
        many = min(int(given), len(problem.X))
        return many, f"Sweeps over chunks of {many} samples, as asked for. "
    state, there = 8 * STATE * len(problem.X) * seeds * sum(widths) if apart else 0, installed()
    if state <= there / SHARE or any(options.get(name) for name in WHOLE) or options.get("precision") == "mixed":
        return None, ""
    many = default_chunk(len(problem.X), seeds, widths)
    why = f"the state of {seeds} seeds ({state / 1e9:.3g} GB) is more than a quarter of the memory ({there / 1e9:.3g} GB)"
    return many, f"Sweeps over chunks of {many} samples, since {why}. "


def one_device(divided: bool, options) -> None:
    """Refuse several devices for data on disk."""
    if divided and isinstance(options, dict) and options.get("chunk") is not None:
        raise ValueError(
            "data are streamed from disk through one device and one process; leave devices= (--devices, --processes) out."
        )


def room(points: int, widths: Sequence[int], seeds: int) -> None:
    """Refuse points and weights that this machine cannot hold."""
    weights = sum(a * b for a, b in pairwise(widths))
    there = installed()
    for what, numbers, less in (
        (f"{points} points", points * widths[0], "fewer points"),
        (f"the weights of {seeds} networks", weights * seeds, "fewer seeds or a smaller network"),
    ):
        if 8 * numbers > there:
            raise ValueError(f"{what} take {8 * numbers / 1e9:.3g} GB, and this machine has {there / 1e9:.3g} GB; give {less}.")


def counted(name: str, given, least: int = 1) -> int:
    """How many points: a number, or the length of an array of them."""
    try:
        return whole(name, given, least) if isinstance(given, (str, bytes)) else len(given)
    except TypeError:
        return whole(name, given, least)


def memory(problem: PDE, points: int, widths: Sequence[int]) -> None:
    """Refuse jets that this machine cannot hold."""
    equation = problem.equation
    channels = 1 + equation.channels
    wanted = 8 * JETS * points * channels * sum(widths[1:])
    there = installed()
    if wanted <= there:
        return
    second = [called(key) for key in equation.keys if len(key) == 2] or [called(key) for key in equation.keys if key]
    terms = ", ".join(second[:2]) + (f" and {len(second) - 2} more" if len(second) > 2 else "")
    raise ValueError(
        f"the jets are too large for the memory: for {terms} every point carries {channels} numbers a unit, in all "
        f"{wanted / 1e9:.0f} GB for {points} points, and this machine has {there / 1e9:.0f} GB; give fewer points, a narrower "
        "network, or fewer derivatives."
    )
