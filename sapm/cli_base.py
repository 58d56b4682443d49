"""What every command shares: the app, the exit codes, how mistakes end and how answers are printed."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from sapm.arguments import FIELDS, expected, sentence, stoppable
from sapm.names import plain, shown

app = typer.Typer(
    name="sapm",
    help="Train deep networks on least-squares problems by self-adaptive weighted auxiliary variables.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
UNFORESEEN, BAD, DIVERGED, BROKEN, INTERRUPTED = 1, 2, 3, 4, 130
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs made at a time, each in its own process.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder to keep the run in.")]
Again = Annotated[
    str | None,
    typer.Option("--problem", help="The problem again (name or file.py:name), where its code is needed: docs/security.md."),
]
Devices = Annotated[str | None, typer.Option(help="auto (all) or how many: seeds and samples are divided among them.")]
Distributed = Annotated[
    bool,
    typer.Option("--distributed", help="One of several processes, started by srun, mpirun, or with the three options below."),
]
Address = Annotated[str | None, typer.Option(help="With --distributed: HOST:PORT of the first process.")]
Process = Annotated[int | None, typer.Option(help="With --distributed: which one this is, from 0.")]
Processes = Annotated[
    int | None,
    typer.Option(min=1, help="How many processes; without --distributed they are started here, on cores of their own."),
]


class WithSettings(TyperCommand):
    """A command with --set, whose mistaken options may be settings."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            name = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
            if name in FIELDS:
                error.message = f"No such option: --{name.replace('_', '-')}. It is a setting: --set {name}=…"  # type: ignore[attr-defined]
                error.possibilities = []  # type: ignore[attr-defined]
            raise


def take_place(distributed: bool, address: str | None, process: int | None, processes: int | None, folder: Path | None) -> None:
    """Before anything else: join the other processes; or start them, wait for their end, and end likewise."""
    from sapm.launch import LOST, join, launch

    if distributed:
        join(address, process, processes)
        return
    if address is not None or process is not None:
        raise ValueError("--address and --process say which of several processes this is; give --distributed with them.")
    if processes is None or processes == 1:
        return
    arguments = list(sys.argv[1:])
    for i, text in enumerate(arguments):
        if text.split("=")[0] == "--processes":
            del arguments[i : i + (1 if "=" in text else 2)]
            break
    code, lost = launch(arguments, processes)
    if lost:
        kept = folder is not None and any(folder.glob("**/checkpoint/latest.sapm"))
        hint = " Nothing was saved yet." if folder is not None else " Nothing was saved: give --out to keep a run."
        more = f" Continue from what was saved with: sapm resume {folder}" if kept else hint
        print(f"sapm: {lost}{more if code == LOST else ''}", file=sys.stderr)
    raise typer.Exit(code)


def parse_devices(given: str | None) -> int | str | None:
    if given is None or given == "auto":
        return given
    if not re.fullmatch("[0-9]{1,9}", given):
        raise ValueError(f"--devices {shown(given)} is not known; give auto or a number.")
    return int(given)


def console(stderr: bool = False):
    """Nothing in a text is read as markup: paths may have brackets."""
    from rich.console import Console

    class Ours(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 160
    return Ours(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)


CONTINUE = "continue with: "  # a note that begins so is shown


def guarded(command):
    """A user's mistake, a full disk, a missing file: one line and exit code 2; Ctrl-C 130, SIGTERM 143; anything unforeseen 1."""

    @wraps(command)
    def wrapped(*args, **kwargs):
        for stream in (sys.stdout, sys.stderr):  # a name that the terminal has no letters for is no reason to fail
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        before, warnings.showwarning = warnings.showwarning, lambda said, *where: print(f"sapm: warning: {said}", file=sys.stderr)
        code = lambda: INTERRUPTED  # noqa: E731
        try:
            with stoppable() as code:
                command(*args, **kwargs)
            sys.stdout.flush()
        except typer.Exit as end:
            raise typer.Exit(code() if end.exit_code == INTERRUPTED else end.exit_code) from None
        except KeyboardInterrupt as error:
            how = f"; {hint(error)}" if hint(error) else " before it had begun; the same command starts it again."
            print(f"sapm: interrupted{how}", file=sys.stderr)
            raise _left(code()) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except typer.Abort:  # an end that a command has chosen
            raise
        except Exception as error:
            if os.environ.get("SAPM_TRACEBACK"):
                raise
            if expected(error):
                more = f"; {hint(error)}" if hint(error) else ""
                print(f"sapm: {sentence(error)}{more}", file=sys.stderr)
                raise _left(BAD) from None
            where = "a mistake in the problem's code or in sapm; SAPM_TRACEBACK=1 shows where."
            print(f"sapm: {type(error).__name__}: {sentence(error)}: {where}", file=sys.stderr)
            raise _left(UNFORESEEN) from None
        finally:
            warnings.showwarning = before

    return wrapped


def hint(error: BaseException) -> str:
    """What was added to an error on its way: how to go on. (JAX adds notes of its own.)"""
    return "; ".join(note for note in getattr(error, "__notes__", ()) if note.startswith(CONTINUE))


def _left(code: int) -> typer.Exit:
    """The end of a process that failed. One of several ends at once: at the usual end it would wait for the others."""
    if "--distributed" in sys.argv:
        sys.stderr.flush()
        os._exit(code)
    return typer.Exit(code)


def passing(text: str) -> None:
    """A line on a terminal that the next one takes the place of."""
    if sys.stderr.isatty():
        print(text, end="\r", file=sys.stderr, flush=True)


def show(content: Any, as_json: bool) -> None:
    """A dictionary as JSON, a text as it is, or a table."""
    if as_json:
        print(json.dumps(plain(content), ensure_ascii=False, allow_nan=False))
    elif isinstance(content, str):
        print(content)
    else:
        console().print(content)
