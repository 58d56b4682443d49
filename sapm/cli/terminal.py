"""What every command shares: the app, common options, exit codes, signals and output.

A command returns an `ExitCode` (or nothing) and raises its errors. `guarded` is the only place
where errors and interrupts become a line on the terminal and an exit code.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from enum import IntEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from sapm.errors import json_safe, shown

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

P = ParamSpec("P")

LONGEST_ERROR_CHARACTERS = 1000
PIPE_WIDTH = 160  # columns of a table that is not printed on a terminal


class ExitCode(IntEnum):
    """The exit codes of `sapm`. A signal other than Ctrl-C gives 128 and its number."""

    OK = 0
    UNFORESEEN = 1  # a bug in the problem's code or in sapm, or a process that was lost
    USAGE = 2  # bad usage or input
    DIVERGED = 3  # every seed became non-finite
    NOT_CERTIFIED = 4  # a certificate does not hold
    INTERRUPTED = 130


app = typer.Typer(
    name="sapm",
    help="Train deep networks on least-squares problems: regression and partial differential "
    "equations.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time, each in its own process.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder to keep the run in.")]
ProblemAgain = Annotated[
    str | None,
    typer.Option(
        "--problem",
        help="The problem (name or file.py:name), where its code is needed; see docs/security.md.",
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(help="auto (all) or a number: seeds and samples are divided among them."),
]
Distributed = Annotated[
    bool,
    typer.Option(
        "--distributed",
        help="Join several processes started by srun, mpirun, or with the three options below.",
    ),
]
Address = Annotated[
    str | None, typer.Option(help="With --distributed: HOST:PORT of the first process.")
]
Process = Annotated[
    int | None, typer.Option(help="With --distributed: the number of this process, from 0.")
]
Processes = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of processes; without --distributed they are started here, each on cores of "
        "its own.",
    ),
]


# ---------------------------------------------------------------- output


def console(stderr: bool = False) -> Console:
    """A rich console that prints texts as they are: paths may have brackets."""
    from rich.console import Console

    class PlainConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return PlainConsole(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def show(content: dict | str | Table, as_json: bool) -> None:
    """Print a dictionary as JSON, a text as it is, or a table."""
    if as_json:
        print(json.dumps(json_safe(content), ensure_ascii=False, allow_nan=False))
    elif isinstance(content, str):
        print(content)
    else:
        console().print(content)


def show_passing(text: str) -> None:
    """Print a line on a terminal that the next line overwrites."""
    if sys.stderr.isatty():
        print(text, end="\r", file=sys.stderr, flush=True)


def progress_printer(silent: bool) -> Callable[[str], None]:
    """A function that prints lines of progress on stderr, or nothing."""

    def say(text: str) -> None:
        if not silent:
            console(stderr=True).print(text, style="dim", soft_wrap=True)

    return say


# ---------------------------------------------------------------- errors


class Continuable(Exception):
    """An interrupt or a failed write, after which a command continues the work.

    error: the failed write; None after an interrupt.
    advice: how to continue, or "" if nothing was saved.
    """

    def __init__(self, error: OSError | None, advice: str):
        super().__init__(str(error or "interrupted"))
        self.error = error
        self.advice = advice


@contextmanager
def continued_by(advice: Callable[[], str]) -> Iterator[None]:
    """Attach advice on how to continue to an interrupt or a failed write in the block."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Continuable(None, advice()) from error
    except OSError as error:
        raise Continuable(error, advice()) from error


def expected(error: BaseException) -> bool:
    """Whether an error is the user's mistake or the machine's limit, so that its sentence is
    enough and no traceback is needed.
    """
    kinds = (ValueError, TypeError, OSError, ImportError, MemoryError)
    return isinstance(error, kinds) or _out_of_device_memory(error)


def _out_of_device_memory(error: BaseException) -> bool:
    """JAX raises a RuntimeError with the code of the gRPC status RESOURCE_EXHAUSTED."""
    return isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


def sentence(error: BaseException) -> str:
    """An error in one printable line."""
    if isinstance(error, MemoryError) or _out_of_device_memory(error):
        what = str(error).splitlines()[0] if str(error) else "MemoryError"
        return (
            f"the memory is not enough ({shown(what)}); give fewer points or seeds, or a smaller "
            "network."
        )
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
        return shown(text, LONGEST_ERROR_CHARACTERS)
    first_line = (str(error).splitlines() or [""])[0].rstrip()
    # a first line without an end goes on: a name in it may contain line breaks
    text = first_line if first_line.endswith((".", ":", "?")) else str(error)
    return shown(text.strip(), LONGEST_ERROR_CHARACTERS) or type(error).__name__


def guarded(command: Callable[P, ExitCode | None]) -> Callable[P, None]:
    """Turn what a command returns or raises into an exit code, and errors into one line on stderr.

    SAPM_TRACEBACK=1 shows tracebacks instead.
    """

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        _print_any_character()
        with _warnings_in_one_line(), signals_as_interrupts() as signals:
            try:
                code = command(*args, **kwargs) or ExitCode.OK
                sys.stdout.flush()
            except typer.Exit as end:  # such as the exit code of the processes that were started
                interrupted = end.exit_code == ExitCode.INTERRUPTED
                raise typer.Exit(signals.exit_code() if interrupted else end.exit_code) from None
            except typer.Abort:
                raise
            except BrokenPipeError:  # nobody reads the output any more
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(ExitCode.OK) from None
            except KeyboardInterrupt:
                raise _ended_early(_interrupted(signals)) from None
            except Exception as error:
                if os.environ.get("SAPM_TRACEBACK"):
                    raise
                raise _ended_early(_explain(error, signals)) from None
        raise typer.Exit(signals.exit_code() if code == ExitCode.INTERRUPTED else code)

    return wrapped


def _interrupted(signals: Signals, advice: str = "") -> int:
    """Print that the command was interrupted, and how to continue; gives the exit code."""
    advice = advice or "nothing was saved; the same command starts again."
    print(f"sapm: interrupted; {advice}", file=sys.stderr)
    return signals.exit_code()


def _explain(error: Exception, signals: Signals) -> int:
    """Print an error in one line; gives the exit code."""
    advice = ""
    if isinstance(error, Continuable):
        if error.error is None:
            return _interrupted(signals, error.advice)
        advice = error.advice
        error = error.error
    if expected(error):
        print(f"sapm: {sentence(error)}{f'; {advice}' if advice else ''}", file=sys.stderr)
        return ExitCode.USAGE
    print(
        f"sapm: {type(error).__name__}: {sentence(error)}: a mistake in the problem's code or in "
        "sapm; SAPM_TRACEBACK=1 shows where.",
        file=sys.stderr,
    )
    return ExitCode.UNFORESEEN


def _ended_early(code: int) -> typer.Exit:
    """The end of a process that failed. One of several processes ends at once: a regular end of
    JAX would wait for the others.
    """
    if "--distributed" in sys.argv:
        sys.stderr.flush()
        os._exit(code)
    return typer.Exit(code)


def _print_any_character() -> None:
    """A character that the terminal's encoding lacks is escaped instead of an error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    before = warnings.showwarning
    warnings.showwarning = lambda message, *_, **__: print(
        f"sapm: warning: {message}", file=sys.stderr
    )
    try:
        yield
    finally:
        warnings.showwarning = before


# ---------------------------------------------------------------- signals


class Signals:
    """The signals that arrived while a command ran."""

    def __init__(self) -> None:
        self.arrived: list[int] = []

    def interrupt(self, number: int, frame: Any) -> None:
        """A signal handler that acts like Ctrl-C."""
        self.arrived.append(number)
        signal.default_int_handler(number, frame)

    def exit_code(self) -> int:
        """128 and the number of the first signal; Ctrl-C has none here, and gives 130."""
        return 128 + (self.arrived[0] if self.arrived else signal.SIGINT)


@contextmanager
def signals_as_interrupts() -> Iterator[Signals]:
    """In the block SIGTERM and SIGHUP act like Ctrl-C, so that a run saves its state and ends."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():  # only that one may set handlers
        yield signals
        return
    handlers: list[tuple[str, Any, Any]] = [
        ("SIGTERM", signal.SIG_DFL, signals.interrupt),
        ("SIGHUP", signal.SIG_DFL, signals.interrupt),
        # Ctrl-C is ignored in the background of a script. Child processes inherit that, and could
        # not be stopped; a handler that does nothing is not inherited.
        ("SIGINT", signal.SIG_IGN, lambda *_: None),
    ]
    numbers = [signal.SIGINT, signal.SIGTERM]
    announced = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    with ExitStack() as stack:
        if sys.stderr.isatty():
            stack.enter_context(_announced(announced))
        for name, default, handler in handlers:
            number = getattr(signal, name, None)  # not every system has them all
            if number is not None and signal.getsignal(number) == default:
                stack.callback(signal.signal, number, signal.signal(number, handler))
        yield signals


@contextmanager
def _announced(numbers: Sequence[int]) -> Iterator[None]:
    """Print a line as soon as a signal arrives. Python runs signal handlers only between its own
    instructions, so not while JAX compiles or computes.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)

    def listen() -> None:
        with ours:
            while number := ours.recv(1):
                if number[0] in numbers:
                    print("\nsapm: stopping after the current step …", file=sys.stderr, flush=True)

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        theirs.close()
