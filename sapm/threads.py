"""Threads of the linear algebra: one, while sapm works.

Several wait for each other in a busy loop. On cores of their own they gain nothing at the sizes of these matrices; on cores that
others use, too, every call waits for a thread that has no turn. With one, results do not depend on the number of cores either.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

CHOICES = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")  # with one of them set, the user has chosen
_lock, _inside, _limits = threading.Lock(), 0, None


@contextmanager
def one_thread():
    """For as long as any is inside, of however many threads; afterwards as it was."""
    global _inside, _limits  # noqa: PLW0603
    import scipy.linalg  # noqa: F401  the library that JAX calls has to be there to be limited

    chosen = any(os.environ.get(name) for name in CHOICES)
    with _lock:
        if _inside == 0 and not chosen:
            _limits = threadpool_limits(1, user_api="blas")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and _limits is not None:
                _limits.restore_original_limits()
                _limits = None
