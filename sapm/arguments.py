"""What the command line was given, checked: problems, settings, models, seeds. Light to import."""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import contextmanager, nullcontext
from inspect import Parameter, isfunction, signature
from pathlib import Path
from typing import Any

from sapm.experiments import find
from sapm.names import brief, nearest, shown

LINE = 1000  # characters of an answer to a mistake


def expected(error: BaseException) -> bool:
    """A mistake of the user's, or the machine's limit: a sentence says enough."""
    return isinstance(error, (ValueError, TypeError, OSError, ImportError, MemoryError)) or "RESOURCE_EXHAUSTED" in str(error)


def sentence(error: BaseException) -> str:
    """An error in one line that a terminal prints as it is."""
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        what = str(error).splitlines()[0] if str(error) else "MemoryError"
        return f"the memory is not enough ({shown(what)}); give fewer points or seeds, or a smaller network."
    if isinstance(error, OSError) and error.strerror:
        return shown(f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror), LINE)
    first = (str(error).splitlines() or [""])[0].rstrip()
    whole = first if first.endswith((".", ":", "?")) else str(error)  # else the line ends in a name that has lines of its own
    return shown(whole.strip(), LINE) or type(error).__name__


@contextmanager
def _heard(numbers: Sequence[int]):
    """Say at once that a signal has come: Python acts on it only when what is being compiled or computed has ended."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)

    def listen() -> None:
        with ours:
            while number := ours.recv(1):
                if number[0] in numbers:
                    print("\nsapm: stopping, when what is being computed has ended …", file=sys.stderr, flush=True)

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        theirs.close()


@contextmanager
def stoppable():
    """SIGTERM and SIGHUP act like Ctrl-C: what runs saves its state and ends. `code()` of what this yields is the exit code then:
    128 and the number of the first signal.

    Where Ctrl-C is ignored (in the background of a script), processes started from here would take that over and could not be
    stopped; a function that does nothing is not taken over.
    """
    came: list[int] = []

    def stop(number, _):
        came.append(number)
        raise KeyboardInterrupt

    actions: list[tuple[str, Any, Any]] = [("SIGTERM", signal.SIG_DFL, stop), ("SIGHUP", signal.SIG_DFL, stop)]
    actions.append(("SIGINT", signal.SIG_IGN, lambda *_: None))
    before, told = {}, nullcontext()
    if threading.current_thread() is threading.main_thread():  # the only one that may set them
        heard = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) != signal.SIG_IGN]
        told = _heard(heard) if sys.stderr.isatty() else told
        for name, usual, ours in actions:
            number = getattr(signal, name, None)  # not every system has them all
            if number is not None and signal.getsignal(number) == usual:
                before[number] = signal.signal(number, ours)
    try:
        with told:
            yield lambda: 128 + (came[0] if came else signal.SIGINT)
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _makes(value: Any) -> bool:
    """Whether a name in a file is a function that may make a problem: one that can be called without anything."""
    needed = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    try:
        asked = signature(value).parameters.values() if isfunction(value) else None
    except (TypeError, ValueError):
        return False
    return asked is not None and not any(a.default is a.empty and a.kind in needed for a in asked)


def load_problem(spec: str):
    """A built-in problem's name, or file.py:name of the user's own. The only place where a user's code is run.

    The name is one that stands on the command line, never one that a file has.
    """
    if ":" not in spec and not spec.endswith(".py"):
        experiment = find(spec)
        return experiment.problem(), dict(experiment.settings), spec
    path, _, name = spec.rpartition(":") if ":" in spec else (spec, "", "")
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{shown(path, 300)} does not exist; give file.py:name with the name of a problem in it.")
    from importlib.util import module_from_spec, spec_from_file_location

    from sapm.problem import PROBLEMS
    from sapm.result import Result

    found = spec_from_file_location(f"_sapm_problem_{file.stem}", file)
    if found is None or found.loader is None:
        raise ValueError(f"{path} is not a Python file.")
    module = module_from_spec(found)
    sys.modules[found.name] = module  # where dataclasses, among others, look for it
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path} could not be run: {type(error).__name__}: {sentence(error)}") from error
    if not name or not hasattr(module, name):
        public = {n: value for n, value in vars(module).items() if not n.startswith("_")}
        there = [n for n, value in public.items() if isinstance(value, PROBLEMS)]
        there += [n for n, value in public.items() if getattr(value, "__module__", None) == found.name and _makes(value)]
        has = f"; it has {shown(', '.join(there), 300)}" if there else ""
        if not name:
            raise ValueError(f"{spec} is a file, and names no problem in it{has}: give {path}:{there[0] if there else 'name'}.")
        raise ValueError(f"{path} has no {shown(name)!r}{has}.")
    problem = getattr(module, name)
    if callable(problem) and not isinstance(problem, (*PROBLEMS, Result)):
        try:
            problem = problem()
        except (Exception, SystemExit) as error:
            raise ValueError(f"{name}() in {path} could not be run: {type(error).__name__}: {sentence(error)}") from error
    if not isinstance(problem, PROBLEMS):
        raise TypeError(
            f"{name} in {path} is a {type(problem).__name__}; it must be a sapm.PDE, sapm.Function or sapm.Regression."
        )
    return problem, {}, f"{file.stem}:{name}"


OWN = ("depth", "width", "seeds", "models", "devices")  # settings with an option of their own
FIELDS = (
    "activation", "points", "boundary_points", "test_points", "method", "max_iter", "max_seconds", "key", "init", "start", "mu",
    "alpha", "beta",
)  # fmt: skip


def parse_settings(given: list[str] | None) -> dict:
    """--set key=value, checked by name; values are JSON or words; options.joint=true is an option."""
    settings: dict[str, Any] = {}
    for item in given or []:
        key, equals, text = item.partition("=")
        if not equals:
            raise ValueError(f"--set {brief(item)} has no value; write --set key=value.")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        if key.startswith("options."):
            settings.setdefault("options", {})[key.removeprefix("options.")] = value
        elif key in FIELDS:
            settings[key] = value
        else:
            close = nearest(key, (*FIELDS, *OWN)).split("'")
            hint = f" It is given by --{close[1]}." if len(close) > 1 and close[1] in OWN else "'".join(close)
            raise ValueError(f"--set {shown(key)} is not a setting; there are {', '.join(FIELDS)} and options.NAME.{hint}")
    return settings


SERIES = "models.json"  # in a folder with a run for each of several models: what was asked for


def begin_series(out: Path, problem: str, models: list[str], settings: dict) -> None:
    """Write down what is to be run, so that `sapm resume` can start what was not begun."""
    from sapm.store import inside, to_json, unused, write_whole

    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file; give a folder that does not exist yet.")
    held = [p for p in out.iterdir() if p.name != SERIES] if out.exists() else []
    if not all(p.name in models and p.is_dir() and unused(p) for p in held):
        how = f"continue its runs with sapm resume {out} or " if (out / SERIES).exists() else ""
        raise ValueError(f"{out} is not empty; {how}choose another --out; nothing was changed.")
    for model in models:
        inside(out, out / model)
    path, colon, name = problem.rpartition(":")
    problem = f"{Path(path).resolve()}:{name}" if colon else problem
    write_whole(out / SERIES, (to_json({"problem": problem, "models": models, "settings": settings}, indent=2) + "\n").encode())


def read_series(path: Path) -> tuple[str, list[str], dict]:
    """(problem, models, settings) of a folder with a run for each of several models."""
    from sapm.store import inside, read_json

    held = read_json(path / SERIES)
    problem, models, settings = held.get("problem"), held.get("models"), held.get("settings")
    try:
        if not isinstance(problem, str) or not isinstance(settings, dict) or not isinstance(models, list):
            raise ValueError("it must name the problem, the models and their settings")
        if not all(isinstance(model, str) for model in models):
            raise ValueError("its models are not names")
        if unknown := set(settings) - {*FIELDS, "options", "depth", "width", "seeds"}:
            raise ValueError(f"{brief(sorted(unknown))} is no setting")
        models = parse_models(",".join(models))
    except ValueError as error:
        raise ValueError(f"{path / SERIES} is damaged ({sentence(error)}); resume the folders in {path} one by one.") from None
    for model in models:
        inside(path, path / model)
    return problem, models, settings


def run_folders(path: Path) -> list[Path]:
    """The folder itself if it is a run, else the runs in it, one per model."""
    from sapm.store import inside, no_checkpoint

    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise FileNotFoundError(f"{path} {what}; give the folder of a run (sapm run … --out FOLDER).")
    if (path / "checkpoint").is_dir():
        return [path]
    found = sorted(p.parent for p in path.glob("*/checkpoint"))
    if not found:
        raise ValueError(no_checkpoint(path))
    for folder in found:
        inside(path, folder)
    return found


def parse_models(given: str) -> list[str]:
    from sapm.methods.build import choose
    from sapm.objective import MODELS

    models = [choose("--models", m.strip(), MODELS) for m in given.split(",")]
    if len(set(models)) != len(models):
        raise ValueError(f"--models {shown(given)} names a model twice.")
    return models


def parse_seeds(given: str) -> int | list[int]:
    """ "10", or "3,5,8"."""
    try:
        numbers = [int(s) for s in given.split(",")]
    except ValueError:
        raise ValueError(f"--seeds {shown(given)} is not a number; give how many (10) or which ones (3,5,8).") from None
    return numbers if "," in given else numbers[0]
