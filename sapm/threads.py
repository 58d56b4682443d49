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
_lock, _inside, _limits = threading.Lock(), [], []  # who is inside, and what to go back to


@contextmanager
def one_thread():
    """For as long as any is inside, of however many threads; afterwards as it was."""
    import scipy.linalg  # noqa: F401  the library that JAX calls has to be there to be limited

    me = object()
    try:
        with _lock:
            _inside.append(me)
            if len(_inside) == 1 and not any(os.environ.get(name) for name in CHOICES):
                if not _limits:  # else Ctrl-C came while it was restored
                    _limits.append(threadpool_limits(None, user_api="blas"))  # notes what there is, and changes nothing
                threadpool_limits(1, user_api="blas")
        yield
    finally:
        with _lock:
            if me in _inside:
                _inside.remove(me)
            if not _inside and _limits:
                _limits[0].restore_original_limits()
                _limits.clear()
