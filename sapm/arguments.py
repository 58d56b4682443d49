"""What the command line was given, checked: problems, settings, models, seeds. Light to import."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sapm.experiments import find
from sapm.names import nearest


def sentence(error: Exception) -> str:
    """An error in one line."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def load_problem(spec: str):
    """A built-in problem's name, or file.py:name of the user's own. The only place where a user's code is run."""
    if ":" not in spec and not spec.endswith(".py"):
        experiment = find(spec)
        return experiment.problem(), dict(experiment.settings), spec
    path, _, name = spec.partition(":")
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{path} does not exist; give file.py:name with the name of a problem in it.")
    if not name:
        raise ValueError(f"{spec} names no problem; give {path}:name, with the name of a problem in that file.")
    from importlib.util import module_from_spec, spec_from_file_location

    from sapm.problem import PROBLEMS

    found = spec_from_file_location(file.stem, file)
    if found is None or found.loader is None:
        raise ValueError(f"{path} is not a Python file.")
    module = module_from_spec(found)
    sys.path.insert(0, str(file.parent.resolve()))
    try:
        found.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{path} could not be run: {type(error).__name__}: {sentence(error)}") from error
    if not hasattr(module, name):
        raise ValueError(f"{path} has no {name!r}." + nearest(name, [n for n in vars(module) if not n.startswith("_")]))
    problem = getattr(module, name)
    problem = problem() if callable(problem) and not isinstance(problem, PROBLEMS) else problem
    if not isinstance(problem, PROBLEMS):
        raise TypeError(
            f"{name} in {path} is a {type(problem).__name__}; it must be a sapm.PDE, sapm.Function or sapm.Regression."
        )
    return problem, {}, f"{file.stem}:{name}"


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
            raise ValueError(f"--set {item!r} has no value; write --set key=value.")
        try:
            value = json.loads(text)
        except json.JSONDecodeError:
            value = text
        if key.startswith("options."):
            settings.setdefault("options", {})[key.removeprefix("options.")] = value
        elif key in FIELDS:
            settings[key] = value
        else:
            raise ValueError(
                f"--set {key} is not a setting; there are {', '.join(FIELDS)} and options.NAME." + nearest(key, FIELDS)
            )
    return settings


def parse_models(given: str) -> list[str]:
    from sapm.methods.build import choose
    from sapm.objective import MODELS

    models = [choose("--models", m.strip(), MODELS) for m in given.split(",")]
    if len(set(models)) != len(models):
        raise ValueError(f"--models {given} names a model twice.")
    return models


def parse_seeds(given: str) -> int | list[int]:
    """ "10", or "3,5,8"."""
    try:
        numbers = [int(s) for s in given.split(",")]
    except ValueError:
        raise ValueError(f"--seeds {given} is not a number; give how many (10) or which ones (3,5,8).") from None
    return numbers if "," in given else numbers[0]
