"""Parse arguments of the command line: settings, problems, folders of runs, processes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import Parameter, isfunction, signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from sapm.catalogue import find
from sapm.cli.terminal import sentence, tell
from sapm.errors import brief, closest, nearest, shown, shown_path

if TYPE_CHECKING:
    from sapm.problem.data import Function, Regression
    from sapm.problem.pde import PDE

LONGEST_LISTING = 300  # characters of the names in an error message
DEFAULT_SIZE = (6, 20)  # (depth, width) for a problem that is not built in

# ---------------------------------------------------------------- settings

OPTION_SETTINGS = ("depth", "width", "seeds", "models", "devices")  # given by --depth, …
SETTINGS = (  # given by --set
    "activation", "points", "boundary_points", "test_points", "method", "max_iter", "max_seconds",
    "key", "init", "start", "mu", "alpha", "beta",
)  # fmt: skip


class CommandWithSettings(TyperCommand):
    """A command with --set, which says so where a setting is written as an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; refuse `--points 300` with a hint at `--set points=300`."""
        options = {option for parameter in self.params for option in parameter.opts}
        for argument in args:
            option = argument.partition("=")[0]
            setting = option.removeprefix("--").replace("-", "_")
            if option.startswith("--") and option not in options and setting in SETTINGS:
                ctx.fail(f"No such option: {option}. It is a setting: --set {setting}=…")
        return super().parse_args(ctx, args)


def parse_settings(pairs: list[str] | None) -> dict[str, Any]:
    """The settings given by `--set key=value`.

    A value is read as JSON, or as a string if it is not JSON. `options.NAME` is an option of the
    method.
    """
    settings: dict[str, Any] = {}
    for pair in pairs or []:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(
                f"--set: got {brief(pair)}, which has no value; write --set key=value."
            )
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        if key.startswith("options."):
            settings.setdefault("options", {})[key.removeprefix("options.")] = value
        elif key in SETTINGS:
            settings[key] = value
        else:
            close = closest(key, (*SETTINGS, *OPTION_SETTINGS))
            hint = f" It is given by --{close}." if close in OPTION_SETTINGS else ""
            raise ValueError(
                f"--set: got the unknown setting {shown(key)!r}, expected {', '.join(SETTINGS)} or "
                f"options.NAME.{hint or nearest(key, SETTINGS)}"
            )
    return settings


def parse_models(text: str) -> list[str]:
    """The models that a text such as "ls,pm,sapm" names."""
    from sapm.errors import choose
    from sapm.objective.penalty import MODELS

    models = [choose("--models", name.strip(), MODELS) for name in text.split(",")]
    if len(set(models)) != len(models):
        raise ValueError(f"--models: got {shown(text)}, expected every model only once.")
    return models


def parse_seeds(text: str) -> int | list[int]:
    """The number of seeds ("10"), or the list of seeds ("3,5,8")."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--seeds: got {shown(text)!r}, expected a number of seeds (10) or a list (3,5,8)."
        ) from None
    return numbers if "," in text else numbers[0]


def parse_devices(text: str | None) -> int | str | None:
    """A number of devices, "auto", or None."""
    if text is None or text == "auto":
        return text
    if not re.fullmatch("[0-9]{1,9}", text):
        raise ValueError(f"--devices: got {shown(text)!r}, expected auto or a number.")
    return int(text)


def parse_sizes(texts: list[str] | None) -> list[tuple[int, int]]:
    """The pairs (depth, width), one for every text such as "6,10"."""
    sizes = []
    for text in texts or []:
        try:
            depth, width = (int(part) for part in text.split(","))
        except ValueError:
            raise ValueError(
                f"--sizes: got {shown(text)!r}, expected depth,width such as 6,10."
            ) from None
        sizes.append((depth, width))
    return sizes


# ---------------------------------------------------------------- problems


@dataclass(frozen=True)
class NamedProblem:
    """A problem named on the command line.

    Parameters
    ----------
    problem : the problem.
    name : its name in titles.
    settings : the default settings of a built-in problem.
    size : the default (depth, width).
    """

    problem: PDE | Function | Regression
    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    size: tuple[int, int] = DEFAULT_SIZE


def load_problem(text: str, method: str = "auto") -> NamedProblem:
    """Load a built-in problem by its name, or a problem of the user's by file.py:name.

    Nothing else in the package runs a user's file. Its path comes from the command line, never
    from a file.

    Parameters
    ----------
    text : the name, or file.py:name.
    method : the method that will train it, on which the default settings depend.
    """
    if ":" not in text and not text.endswith(".py"):
        entry = find(text)
        return NamedProblem(entry.problem(), text, entry.settings_for(method), entry.sizes[0])
    path, _, name = text.rpartition(":") if ":" in text else (text, "", "")
    module = _run_file(Path(path))
    if not name or not hasattr(module, name):
        names = _problem_names(module)
        listing = f"; it has {shown(', '.join(names), LONGEST_LISTING)}" if names else ""
        if not name:
            example = names[0] if names else "name"
            raise ValueError(
                f"{text}: got a file without the name of a problem{listing}; give {path}:{example}."
            )
        raise ValueError(f"{path} has no {shown(name)!r}{listing}.")
    from sapm.problem.pde import PROBLEMS
    from sapm.results.result import Result

    problem = getattr(module, name)
    if callable(problem) and not isinstance(problem, (*PROBLEMS, Result)):
        problem = _call_user_code(f"{name}() in {path}", problem)
    if not isinstance(problem, PROBLEMS):
        raise TypeError(
            f"{name} in {path}: got a {type(problem).__name__}, expected a sapm.PDE, "
            "sapm.Function or sapm.Regression."
        )
    return NamedProblem(problem, f"{Path(path).stem}:{name}")


def load_code(text: str | None) -> PDE | Function | Regression | None:
    """The problem given by --problem, or None."""
    return None if text is None else load_problem(text).problem


def _call_user_code(place: str, function: Callable[[], Any]) -> Any:
    """Call a user's function; report any failure as a failure of the code at this place."""
    from sapm.problem.functions import USER_ERRORS

    try:
        return function()
    except (ImportError, OSError, SyntaxError, SystemExit, *USER_ERRORS) as error:
        raise ValueError(
            f"{place} could not be run: {type(error).__name__}: {sentence(error)}"
        ) from error


def _run_file(path: Path) -> ModuleType:
    """Run a Python file as a module."""
    from importlib.util import module_from_spec, spec_from_file_location

    if not path.is_file():
        raise FileNotFoundError(
            f"{shown_path(path)} does not exist; give file.py:name, where "
            "name is a problem in the file."
        )
    spec = spec_from_file_location(f"_sapm_problem_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file.")
    loader = spec.loader
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up their module
    sys.path.insert(0, str(path.parent.resolve()))
    _call_user_code(str(path), lambda: loader.exec_module(module))
    return module


def _problem_names(module: ModuleType) -> list[str]:
    """The names of the problems in a module, then of its functions without arguments."""
    from sapm.problem.pde import PROBLEMS

    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    problems = [name for name, value in public.items() if isinstance(value, PROBLEMS)]
    return problems + [
        name
        for name, value in public.items()
        if getattr(value, "__module__", None) == module.__name__ and _needs_no_arguments(value)
    ]


def _needs_no_arguments(value: Any) -> bool:
    if not isfunction(value):
        return False
    named = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    try:
        parameters = signature(value).parameters.values()
    except (TypeError, ValueError):
        return False
    return not any(p.default is p.empty and p.kind in named for p in parameters)


# ---------------------------------------------------------------- folders of runs


def new_folders(out: Path | None, models: list[str]) -> dict[str, Path | None]:
    """The folder for every model: `out` itself for one model, `out/model` for several."""
    if out is None or len(models) == 1:
        return dict.fromkeys(models, out)
    from sapm.results.files import check_inside, unused

    if out.exists() and not out.is_dir():
        raise ValueError(f"--out: {out} is a file; give a folder that does not exist yet.")
    if (out / "checkpoint").exists():
        raise ValueError(f"{out} holds a run; choose another --out. Nothing was changed.")
    folders: dict[str, Path | None] = {}
    for model in models:
        folder = out / model
        check_inside(out, folder)
        if folder.exists() and not (folder.is_dir() and unused(folder)):
            raise ValueError(
                f"{folder} is not empty; continue its run with sapm resume {folder}, or choose "
                "another --out. Nothing was changed."
            )
        folders[model] = folder
    return folders


def run_folder(path: Path) -> Path:
    """The folder of a run: the path itself, or its only subfolder with a run."""
    from sapm.results.files import check_inside, no_checkpoint

    if not path.is_dir():
        fault = "is a file" if path.exists() else "does not exist"
        raise FileNotFoundError(
            f"{path} {fault}; give the folder of a run (sapm run … --out FOLDER)."
        )
    if (path / "checkpoint").is_dir():
        return path
    folders = sorted(checkpoint.parent for checkpoint in path.glob("*/checkpoint"))
    if not folders:
        raise ValueError(no_checkpoint(path))
    if len(folders) > 1:
        raise ValueError(
            f"{path} holds several runs; give one of {', '.join(str(f) for f in folders)}."
        )
    check_inside(path, folders[0])
    return folders[0]


def run_file(path: Path) -> Path:
    """The file of a run: the path itself, or the model or last checkpoint in this folder."""
    if path.is_file():
        return path
    folder = path if (path / "model.sapm").is_file() else run_folder(path)
    files = [folder / "model.sapm", folder / "checkpoint" / "latest.sapm"]
    return files[0] if files[0].is_file() else files[1]


# ---------------------------------------------------------------- processes


def join_or_launch(
    distributed: bool,
    address: str | None,
    process: int | None,
    processes: int | None,
    folder: Path | None,
) -> None:
    """Join or launch the processes of a distributed run, before anything else is done.

    With --distributed, join the other processes. With --processes alone, launch them, wait until
    they have ended and exit with their code.

    Parameters
    ----------
    distributed, address, process, processes : the command-line options.
    folder : the folder of the run, if it is kept.
    """
    from sapm.training.processes import EXIT_PROCESS_LOST, join, launch

    if distributed:
        join(address, process, processes)
        return
    if address is not None or process is not None:
        raise ValueError(
            "--address and --process describe one of several processes; give --distributed too."
        )
    if processes is None or processes == 1:
        return
    code, reason = launch(_without_processes(sys.argv[1:]), processes)
    if reason:
        advice = ""
        if code == EXIT_PROCESS_LOST:
            saved = folder is not None and any(folder.glob("**/checkpoint/latest.sapm"))
            advice = " Nothing was saved" + (" yet." if folder else ": give --out to keep a run.")
            if saved:
                advice = f" Continue from what was saved with: sapm resume {folder}"
        tell(f"sapm: {reason}{advice}")
    raise typer.Exit(code)


def _without_processes(arguments: list[str]) -> list[str]:
    """The arguments without `--processes N` or `--processes=N`."""
    for i, text in enumerate(arguments):
        if text == "--processes":
            return arguments[:i] + arguments[i + 2 :]
        if text.startswith("--processes="):
            return arguments[:i] + arguments[i + 1 :]
    return arguments
