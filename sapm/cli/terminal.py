"""What all commands share: the app, common options, exit codes, signals and output.

A command returns an `ExitCode` or None, and raises its errors. Only `guarded` turns errors and
interrupts into a line on the terminal and an exit code.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec, TypeVar

import typer
from typer.core import TyperGroup

from sapm.errors import json_safe, printable, raised_here, shown
from sapm.scopes import Lasting

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

P = ParamSpec("P")
T = TypeVar("T")
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # which typer does not export

MAX_ERROR_CHARACTERS = 1000
PIPE_COLUMNS = 160  # the width of a table that is printed to a pipe or a file


class ExitCode(IntEnum):
    """The exit codes of `sapm`. A signal other than Ctrl-C gives 128 + its number."""

    OK = 0
    UNFORESEEN = 1  # a bug in the problem's code or in sapm, or a lost process
    USAGE = 2  # bad usage or input
    DIVERGED = 3  # no seed stayed finite
    NOT_CERTIFIED = 4  # a certificate does not hold
    INTERRUPTED = 130


def _printable_complaints(method: Callable[P, T]) -> Callable[P, T]:
    """A method whose complaints about the command line, which quote it, are safe to print."""

    @wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except USAGE_ERROR as error:
            error.message = shown(error.message, MAX_ERROR_CHARACTERS)  # type: ignore[attr-defined]
            raise

    return wrapped


class Commands(TyperGroup):
    """The commands of `sapm`."""

    make_context = _printable_complaints(TyperGroup.make_context)
    invoke = _printable_complaints(TyperGroup.invoke)


app = typer.Typer(
    name="sapm",
    cls=Commands,
    help="Train deep networks on least-squares problems: regression and partial differential "
    "equations.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Jobs = Annotated[
    int, typer.Option(min=1, help="Runs trained at the same time, each in its own process.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Folder for the run; without it, nothing is kept."),
]
ProblemCode = Annotated[
    str | None,
    typer.Option(
        "--problem",
        help="The problem (a name or file.py:name), where its code is needed; see "
        "docs/security.md.",
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(help="auto (all) or a number. Seeds and samples are divided among the devices."),
]
Distributed = Annotated[
    bool,
    typer.Option(
        "--distributed",
        help="Join processes that srun or mpirun started, or that the next three options describe.",
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
        help="Number of processes. Without --distributed they are started here, each on its own "
        "cores.",
    ),
]


# ---------------------------------------------------------------- output


def console(stderr: bool = False) -> Console:
    """A rich console that prints every text as it is, without markup, and escapes what cannot be
    printed.
    """
    from rich.console import Console
    from rich.text import Text

    class PlainConsole(Console):
        def render_str(self, text: str, **style: Any) -> Text:
            return super().render_str("\n".join(map(printable, text.split("\n"))), **style)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_COLUMNS
    return PlainConsole(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


def show(content: dict | str | Table) -> None:
    """Print a dictionary as JSON, a text in one line, or a table."""
    if isinstance(content, dict):
        text = json.dumps(json_safe(content), ensure_ascii=False, allow_nan=False)
        print(printable(text, in_json=True))
    elif isinstance(content, str):
        print(printable(content))
    else:
        console().print(content)


def tell(text: str, end: str = "\n") -> None:
    """Print a line to stderr."""
    print(printable(text), end=end, file=sys.stderr, flush=True)


def show_transient(text: str) -> None:
    """Print a line that the next one overwrites, if stderr is a terminal."""
    if sys.stderr.isatty():
        tell(text, end="\r")


def progress_printer(silent: bool) -> Callable[[str], None]:
    """A function that prints a line of progress to stderr, or does nothing if `silent`."""

    def print_line(text: str) -> None:
        if not silent:
            console(stderr=True).print(text, style="dim", soft_wrap=True)

    return print_line


# ---------------------------------------------------------------- errors


class Continuable(Exception):
    """An interrupt or a failed write, with advice on how to continue.

    Parameters
    ----------
    error : the failed write; None for an interrupt.
    advice : the command that continues the work; "" if nothing was saved.
    """

    def __init__(self, error: OSError | None, advice: str):
        super().__init__(str(error or "interrupted"))
        self.error = error
        self.advice = advice


@contextmanager
def continued_by(advice: Callable[[], str]) -> Iterator[None]:
    """Raise interrupts and failed writes of the block as `Continuable`, with this advice."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Continuable(None, advice()) from error
    except BrokenPipeError:  # no failed write: the reader of our output has ended
        raise
    except OSError as error:
        raise Continuable(error, advice()) from error


def expected(error: BaseException) -> bool:
    """Whether an error is a mistake of the user or a limit of the machine, not a bug."""
    kinds = (ValueError, TypeError, OSError, ImportError, MemoryError)
    return isinstance(error, kinds) or _out_of_device_memory(error)


def _out_of_device_memory(error: BaseException) -> bool:
    """Whether JAX ran out of memory: a RuntimeError with the status RESOURCE_EXHAUSTED."""
    return isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" in str(error)


def sentence(error: BaseException) -> str:
    """The message of an error as one printable line: all of it if the package raised the error,
    otherwise its first line.
    """
    if isinstance(error, MemoryError) or _out_of_device_memory(error):
        detail = str(error).splitlines()[0] if str(error) else "MemoryError"
        return (
            f"there is not enough memory ({shown(detail)}); use fewer points or seeds, or a "
            "smaller network."
        )
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
        return shown(text, MAX_ERROR_CHARACTERS)
    text = str(error).strip()
    if not raised_here(error):  # messages of the package have line breaks only within names
        text = text.partition("\n")[0].rstrip()
    return shown(text, MAX_ERROR_CHARACTERS) or type(error).__name__


def guarded(command: Callable[P, ExitCode | None]) -> Callable[P, None]:
    """Make a command exit with a code, and print errors as one line on stderr.

    With SAPM_TRACEBACK=1 in the environment, tracebacks are shown instead.
    """

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        with (
            _warnings_in_one_line(),
            signals_as_interrupts() as signals,
            _output_that_lasts(signals),
        ):
            try:
                code = command(*args, **kwargs) or ExitCode.OK
                sys.stdout.flush()
            except typer.Exit as end:  # such as the exit code of launched processes
                interrupted = end.exit_code == ExitCode.INTERRUPTED
                raise typer.Exit(signals.exit_code() if interrupted else end.exit_code) from None
            except typer.Abort:
                raise
            except BrokenPipeError:  # the reader of our output has ended
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                raise typer.Exit(ExitCode.OK) from None
            except KeyboardInterrupt:
                raise _ended_early(_interrupted(signals)) from None
            except Exception as error:
                interrupted = isinstance(error, Continuable) and error.error is None
                if os.environ.get("SAPM_TRACEBACK") and not interrupted:
                    raise
                raise _ended_early(_explain(error, signals)) from None
        raise typer.Exit(signals.exit_code() if code == ExitCode.INTERRUPTED else code)

    return wrapped


def _interrupted(signals: Signals, advice: str = "") -> int:
    """Print that the command was interrupted and how to continue; return the exit code."""
    show_interrupted(advice)
    return signals.exit_code()


def show_interrupted(advice: str) -> None:
    """Print that the command was interrupted, and how to continue."""
    advice = advice or "nothing was saved; the same command starts again."
    tell(f"sapm: interrupted; {advice}")


def _explain(error: Exception, signals: Signals) -> int:
    """Print an error in one line; return the exit code."""
    advice = ""
    if isinstance(error, Continuable):
        if error.error is None:
            return _interrupted(signals, error.advice)
        advice = error.advice
        error = error.error
    if expected(error):
        tell(f"sapm: {sentence(error)}{f'; {advice}' if advice else ''}")
        return ExitCode.USAGE
    tell(
        f"sapm: {type(error).__name__}: {sentence(error)}: a mistake in the problem's code or in "
        "sapm; SAPM_TRACEBACK=1 shows where."
    )
    return ExitCode.UNFORESEEN


def _ended_early(code: int) -> typer.Exit:
    """What ends a failed command. One of several processes is ended at once, since the regular
    shutdown of JAX would wait for the others.
    """
    if "--distributed" in sys.argv:
        sys.stderr.flush()
        os._exit(code)
    return typer.Exit(code)


@contextmanager
def _output_that_lasts(signals: Signals) -> Iterator[None]:
    """In the block, output does not fail because of what reads it. Characters that the encoding of
    the terminal lacks are escaped. What a terminal that was closed would have shown is dropped, and
    so is what a pipe would have carried to a program that the same signal has ended: a run ends as
    it should, and saves its state. Messages on the standard error never end a command.
    """
    stdout = sys.stdout
    stderr = sys.stderr
    for stream in (stdout, stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    terminal = stdout.isatty()
    gone = (errno.EIO, errno.EPIPE)
    sys.stdout = Lasting(stdout, lambda e: e.errno in gone and (terminal or bool(signals.arrived)))
    sys.stderr = Lasting(stderr, lambda e: True)
    try:
        yield
    finally:
        sys.stdout = stdout
        sys.stderr = stderr


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
        tell(f"sapm: warning: {message}")

    previous = warnings.showwarning
    warnings.showwarning = show_warning
    try:
        yield
    finally:
        warnings.showwarning = previous


# ---------------------------------------------------------------- signals


@dataclass
class Signals:
    """The signals that arrived while a command ran."""

    arrived: list[int] = field(default_factory=list)

    def interrupt(self, number: int, frame: Any) -> None:
        """A signal handler that acts like Ctrl-C.

        SIGHUP only asks for an end, and does not hurry one: a terminal that is closed may send it
        twice, through the shell and by itself.
        """
        hurried = not self.arrived or number != getattr(signal, "SIGHUP", None)
        self.arrived.append(number)
        if hurried:
            signal.default_int_handler(number, frame)

    def exit_code(self) -> int:
        """128 + the number of the first signal, which is 130 for Ctrl-C."""
        return 128 + (self.arrived[0] if self.arrived else signal.SIGINT)


@contextmanager
def signals_as_interrupts() -> Iterator[Signals]:
    """In the block, SIGTERM and SIGHUP act like Ctrl-C: a run saves its state and ends."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():  # others may not set handlers
        yield signals
        return
    handlers: list[tuple[str, Any, Any]] = [
        ("SIGTERM", signal.SIG_DFL, signals.interrupt),
        ("SIGHUP", signal.SIG_DFL, signals.interrupt),
        ("SIGINT", signal.default_int_handler, signals.interrupt),
        # Scripts start background commands with SIGINT ignored. Child processes inherit that and
        # could not be stopped; they do not inherit a handler that does nothing.
        ("SIGINT", signal.SIG_IGN, lambda *_: None),
    ]
    numbers = [signal.SIGINT, signal.SIGTERM]
    announced = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    with ExitStack() as stack:
        if sys.stderr.isatty():
            stack.enter_context(_announced(announced))
        for name, default, handler in handlers:
            number = getattr(signal, name, None)  # some systems lack some signals
            if number is not None and signal.getsignal(number) == default:
                stack.callback(signal.signal, number, signal.signal(number, handler))
        yield signals


@contextmanager
def _announced(numbers: Sequence[int]) -> Iterator[None]:
    """Print a line as soon as one of these signals arrives. Python runs signal handlers between
    its own instructions only, so not while JAX compiles or computes.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def listen() -> None:
        with reader:
            while number := reader.recv(1):
                if number[0] in numbers:
                    tell("")
                    tell("sapm: stopping after the current step …")

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        writer.close()
