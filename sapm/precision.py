"""Numerical scopes: double precision in JAX, and one thread of BLAS.

Both hold for the length of a call and leave the user's global settings as they were.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import jax
from threadpoolctl import threadpool_limits

P = ParamSpec("P")
R = TypeVar("R")

# a user who sets one of these has chosen the number of threads
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")

_lock = threading.Lock()
_callers: list[object] = []  # inside of `one_thread` now, from whatever threads
_limits: list[threadpool_limits] = []  # what to restore when the last caller leaves


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS to one thread in the block. Re-entrant, and safe in several threads.

    Threads of BLAS wait for each other in a busy loop. At the sizes of these matrices they gain
    nothing, even on idle cores; on shared cores every call waits for a thread that has no turn.
    With one thread, results do not depend on the number of cores either.
    """
    import scipy.linalg  # noqa: F401  JAX calls this BLAS; it can be limited once it is loaded

    caller = object()
    try:
        with _lock:
            _callers.append(caller)
            chosen = any(os.environ.get(name) for name in THREAD_VARIABLES)
            if len(_callers) == 1 and not chosen:
                if not _limits:  # else Ctrl-C came between restoring and forgetting them
                    # this changes nothing: it notes the present limits
                    _limits.append(threadpool_limits(None, user_api="blas"))
                threadpool_limits(1, user_api="blas")
        yield
    finally:
        with _lock:
            if caller in _callers:
                _callers.remove(caller)
            if not _callers and _limits:
                _limits[0].restore_original_limits()
                _limits.clear()


def float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function in double precision.

    Products of single-precision arrays are computed in full single precision, where GPUs would
    round more by default.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True), jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return wrapped
