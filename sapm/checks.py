"""Settings of `solve`, checked one by one: a value as JSON has it, or a sentence."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np

from sapm.equation import called
from sapm.jet import Activation
from sapm.methods.build import WHOLE
from sapm.problem import PDE
from sapm.regression import Regression, whole
from sapm.stream import default_chunk

ITERATIONS = {"pde": 1000, "regression": 2000}  # by default; of Gauss-Newton:
GAUSS_NEWTON, GAUSS_NEWTON_RELU = 100, 200


def positive(name: str, value) -> float:
    if isinstance(value, (bool, str)) or not np.isscalar(value) or not (0 < value < np.inf):  # type: ignore[operator]
        raise ValueError(f"{name}={value!r} must be a positive, finite number.")
    return float(value)  # type: ignore[arg-type]


def width(given, depth: int) -> int | list[int]:
    if isinstance(given, Sequence) and not isinstance(given, str):
        if len(given) != depth - 1:
            raise ValueError(f"width={list(given)} names {len(given)} hidden layers; depth={depth} has {depth - 1}.")
        return [whole("width", w) for w in given]
    return whole("width", given)


def seeds(given) -> list[int]:
    if isinstance(given, Iterable) and not isinstance(given, str):
        numbers = [whole("a seed number", s, 0) for s in given]
        if max(numbers, default=0) >= 2**32:
            raise ValueError(f"seeds has {max(numbers)}; seed numbers must be below 2**32.")
        if not numbers:
            raise ValueError("seeds is empty; give how many (seeds=10) or which ones (seeds=[3, 4]).")
        if len(set(numbers)) != len(numbers):
            raise ValueError(f"seeds={numbers} names a seed twice; each one gives one network.")
        return numbers
    return list(range(whole("seeds", given)))


def key(given) -> int:
    if whole("key", given, 0) >= 2**63:
        raise ValueError(f"key={given} is too large; give a number below 2**63.")
    return int(given)


def iterations(method: str, kind: str, sigma: Activation) -> int:
    if method != "gauss-newton":
        return ITERATIONS[kind]
    return GAUSS_NEWTON_RELU if sigma.name == "relu" else GAUSS_NEWTON


def layers(name: str, given, depth: int):
    """A number, or one per layer, as JSON has them."""
    a = np.asarray(given, dtype=object if isinstance(given, str) else None)
    length = depth if name == "alpha" else depth - 1
    if a.dtype.kind not in "iuf" or a.shape not in ((), (length,)) or not (np.all(a > 0) and np.all(np.isfinite(a))):
        raise ValueError(f"{name}={given!r} must be a positive, finite number, or {length} of them (one per layer).")
    return a.astype(float).tolist()


def callback(on_record) -> None:
    if on_record is not None and not callable(on_record):
        raise TypeError(f"on_record={on_record!r} is not a function; give one that takes the state and may return True to stop.")


def count(given):
    """Points in the configuration: how many, or None for points that were given (they are stored with the samples)."""
    return int(given) if isinstance(given, (int, np.integer)) else None


JETS = 4  # of every layer in memory at once: what it gives, that lifted, its gain, and the factors of the Jacobian


def installed() -> float:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else np.inf


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
