"""What holds within a call: double precision and usual settings in JAX, one thread of BLAS, and
signals that set a flag. The user's global settings are left as they were. And what is known of the
process: whether JAX can compute in it at all, and output that may lose its reader.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

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


# Settings of JAX that hold within a call, whatever the user's are. The package mixes types and
# numbers of axes, is slow without compilation, and takes steps that overflow and are then undone:
# a NaN of the user's own functions is found by checks of its own.
USUAL_SETTINGS = {
    "numpy_dtype_promotion": "standard",
    "numpy_rank_promotion": "allow",
    "disable_jit": False,
    "debug_nans": False,
    "debug_infs": False,
}


@contextmanager
def usual_settings() -> Iterator[None]:
    """Settings of JAX that this package is written for, in the block.

    The first call in a process raises an error if JAX cannot compute there.
    """
    import jax  # here: the command that starts several processes needs `interrupts` only

    if _process.forked_late:
        raise RuntimeError(
            f"process {os.getpid()}: got a fork of a process that had used JAX, in which JAX would "
            "wait forever, expected a process of its own; start it by "
            'multiprocessing.get_context("spawn").'
        )
    if not _process.checked:
        try:
            jax.devices()
        except (RuntimeError, AssertionError) as error:  # an assertion fails for cuda without GPU
            asked = os.environ.get("JAX_PLATFORMS") or jax.config.jax_platforms  # type: ignore[attr-defined]
            if not asked:
                raise
            reason = str(error).partition("\n")[0].partition(" (set JAX_PLATFORMS")[0]
            raise ValueError(
                f"JAX_PLATFORMS: got {asked!r}, expected platforms of this machine"
                f"{f' ({reason})' if reason else ''}; set JAX_PLATFORMS=cpu, or unset it."
            ) from None
        _process.checked = True
    other = [
        (name, value)
        for name, value in USUAL_SETTINGS.items()
        if getattr(jax.config, f"jax_{name}") != value
    ]
    if not other:  # as nearly always; a stack costs as much as the evaluation of a solution
        yield
        return
    with ExitStack() as stack:
        for name, value in other:
            stack.enter_context(getattr(jax, name)(value))
        yield


def float64(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function in double precision, and with the usual settings of JAX.

    Products of single-precision arrays are computed in full single precision, where GPUs would
    round more by default.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        import jax

        with usual_settings(), jax.enable_x64(True), jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return wrapped


def untraced(function: Callable[P, R], computes: bool = True) -> Callable[P, R]:
    """Run a public function that states or solves a problem with the usual settings of JAX.

    It is refused within jit, vmap and grad, where JAX gives it tracers in place of numbers.

    Parameters
    ----------
    function : the function.
    computes : whether it computes with JAX. What does not may run before `jax.distributed` begins,
        and in a process that is forked later.
    """
    name = function.__qualname__.removesuffix(".__post_init__")

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        from jax.core import eval_context
        from jax.extend.core import get_opaque_trace_state

        now = get_opaque_trace_state(convention="flax")
        with eval_context():
            outside = get_opaque_trace_state(convention="flax")
        if now != outside:
            raise RuntimeError(
                f"sapm.{name}: got a call within jax.jit, vmap or grad, expected one outside of "
                "them, where arrays have values; call it first, and evaluate the solution within."
            )
        with usual_settings() if computes else nullcontext():
            return function(*args, **kwargs)

    return wrapped


# ---------------------------------------------------------------- the process


class _Process:
    """What is known of this process.

    checked : whether JAX is known to work in it.
    forked_late : whether it was forked from a process that had used JAX. The threads of JAX are
        not there then, and JAX waits for them forever.
    """

    checked = False
    forked_late = False

    def note_fork(self) -> None:
        """Note in a new child whether its parent had used JAX, with sapm or without."""
        bridge = sys.modules.get("jax._src.xla_bridge")
        if self.checked or getattr(bridge, "_backends", None):
            self.forked_late = True
        self.checked = False


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.note_fork)


def first_process() -> bool:
    """Whether this is the first process, which prints and writes files."""
    import jax

    return jax.process_index() == 0


def installed_memory() -> float:
    """Bytes of memory of this machine; infinite where the system does not tell."""
    if not hasattr(os, "sysconf"):
        return float("inf")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# ---------------------------------------------------------------- output


@dataclass(eq=False)  # a stream is hashable
class Lasting:
    """A text stream that may lose its reader: what is written after that is dropped.

    Parameters
    ----------
    stream : the stream.
    gone : whether an error in writing means that nobody reads it any more, such as EIO from a
        terminal that was closed; any other error is raised.
    """

    stream: Any
    gone: Callable[[OSError], bool]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write a text, or drop it; returns its length."""
        try:
            self.stream.write(text)
        except OSError as error:
            self._end(error)
        return len(text)

    def flush(self) -> None:
        """Write what is left in the buffer, or drop it."""
        try:
            self.stream.flush()
        except OSError as error:
            self._end(error)

    def _end(self, error: OSError) -> None:
        """Let the stream lead nowhere, so that the rest of its buffer can be written there."""
        if not self.gone(error):
            raise error
        with suppress(OSError, ValueError):  # a stream without a file
            handle = self.stream.fileno()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, handle)
            os.close(nowhere)


# ---------------------------------------------------------------- interrupts

T = TypeVar("T")

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


def never() -> bool:
    """No interrupt has come."""
    return False


def _act(usual: Any, number: int, frame: Any) -> None:
    """What the signal would have done without us."""
    if callable(usual):
        usual(number, frame)
    else:
        signal.signal(number, usual)
        os.kill(os.getpid(), number)


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Within this context the first signal only sets a flag, which the function that is yielded
    reads; a second signal does what it would have done without us: Ctrl-C raises.

    A compilation that is cut off would go on in a thread of JAX and crash the process at its end,
    and one of several processes that ends at once would leave the others waiting for its part of a
    sum. With one process, signals that end it at once (the default of SIGTERM and SIGHUP) are left
    alone. Only the main thread can do this: elsewhere the flag is never set.
    """
    import jax

    flag = threading.Event()
    before: dict[int, Any] = {}

    def handler(number: int, frame: Any) -> None:
        if flag.is_set():
            _act(before[number], number, frame)
            return
        usual = before[number]

        def handled() -> bool:
            if callable(usual):
                usual(number, frame)  # the command line notes the signal
            return True

        # what it would have raised is for later; one that raises nothing does not end a run
        raised = not unless_interrupted(handled, lambda: False)
        if raised or not callable(usual) or jax.process_count() > 1:
            flag.set()

    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
        for number in numbers:
            usual = signal.getsignal(number)
            ends = usual == signal.SIG_DFL and jax.process_count() > 1
            if (callable(usual) and usual is not signal.SIG_DFL) or ends:
                before[number] = usual
                signal.signal(number, handler)
    try:
        yield flag.is_set
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


def unless_interrupted(compute: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """compute(), or otherwise() where Ctrl-C cut it off.

    Parameters
    ----------
    compute : what is computed; the first Ctrl-C within `interrupts` does not cut it off.
    otherwise : gives the value in its place; it may raise.
    """
    try:
        return compute()
    except KeyboardInterrupt:
        pass
    return otherwise()  # outside of the except clause, so that its errors have no context


def interrupt(sentence: str = "") -> NoReturn:
    """Raise what Ctrl-C raises.

    Parameters
    ----------
    sentence : what was interrupted.
    """
    raise KeyboardInterrupt(sentence)
