"""Which files, functions and classes of the package take part in one solve and in one `sapm run`?

    python tools/trace.py [--json] [--files]

`solve`: statement of a small PDE, `sapm.solve(problem)`, `result.summary()`. `run`: `sapm run
transport_1d --out …`. No iteration is made; the step is traced all the same, since the loop is
compiled. Each has a process of its own, so that nothing is cached.

A function takes part when Python enters it (`cProfile`); bodies of modules and classes, lambdas
and comprehensions do not count, nested functions do. A file takes part when one of its functions
does, a class when a method that is written in it does. A file decides when it takes part with a
function in DECISIONS. `unlisted` names functions that took part and branch on a setting or an
option, but are neither in DECISIONS nor in FOLLOWING: a check on the lists by hand.
"""

import ast
import cProfile
import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sapm"
SETTINGS = {"config", "settings", "plan", "options"}
DECISIONS = {  # file:function → what it decides; every name must exist
    "driver/settings.py:Settings.plan": "method, sizes, samples and budget",
    "methods/method.py:automatic": "what method='auto' stands for",
    "driver/settings.py:doubts": "what the user is warned of before training",
    "driver/solve.py:attempt": "streamed or whole, anew or continued",
    "driver/solve.py:second_attempt_is_due": "whether a second attempt is made",
    "driver/solve.py:execute": "what becomes of an interrupt, a second attempt and the files",
    "training/seeds.py:room": "how many seeds are trained together",
    "training/seeds.py:rungs": "which seeds are dropped when",
    "training/loop.py:_follow": "when a run ends",
    "training/run.py:ranking": "which seed is the best",
}
FOLLOWING = {  # file:function → why its branch on a setting is no decision
    "cli/arguments.py:CommandWithSettings.parse_args": "reads the command line",
    "driver/settings.py:Settings._check_words": "refuses",
    "driver/settings.py:check_redrawing": "refuses",
    "driver/settings.py:samples_in_memory": "answers Settings.plan",
    "driver/solve.py:_disk": "opens the data that the plan leaves on disk",
    "driver/solve.py:sampler_of": "makes the sampler of the plan",
    "driver/solve.py:solve": "follows the plan, which may leave data on disk",
    "driver/solve.py:solve.<locals>.trained": "follows the plan, which may leave data on disk",
    "errors.py:_checked.<locals>.wrapped": "refuses",
    "results/page.py:_settings": "shows",
    "results/page.py:figures": "shows",
    "results/result.py:to_file": "writes",
    "results/table.py:_notes": "shows",
    "results/table.py:heading": "shows",
    "results/table.py:summary": "shows",
}
SIZES = {"depth": 2, "width": 4, "seeds": 2}
POINTS = {"points": 30, "boundary_points": 10, "test_points": 30}


def solve() -> None:
    import jax.numpy as jnp

    import sapm

    problem = sapm.PDE(
        sapm.Box(t=(0, 1), x=(-1, 1)),
        lambda p, u: u.t - (p.t + p.x + 1.5) * u.x,
        [sapm.Initial(lambda p: jnp.sin(p.x)), sapm.Inflow(lambda p: jnp.sin(1 + 2.5 * p.t))],
    )
    str(sapm.solve(problem, **SIZES, **POINTS, max_iter=0, progress=False).summary())


def run() -> None:
    from sapm.cli.main import app
    from sapm.driver import progress

    progress.FIRST_LINE_SECONDS = 1e6  # its line appears only where compilation takes long
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", "transport_1d", "--out", f"{folder}/run", "--max-iter", "0"]
        for name, value in SIZES.items():
            words += [f"--{name}", str(value)]
        for name, value in {**POINTS, "method": "alternating"}.items():
            words += ["--set", f"{name}={value}"]
        sys.argv = ["sapm", *words]
        app(words, standalone_mode=False)


def traced(call) -> dict:
    """What takes part in `call()`. Modules are loaded before, so that what they do then, such as
    declaring fields, does not count.
    """
    for module in pkgutil.walk_packages([str(PACKAGE)], "sapm."):
        if not module.name.endswith("__main__") and ".studies" not in module.name:
            importlib.import_module(module.name)
    profile = cProfile.Profile(builtins=False)
    profile.runcall(call)
    names, classes = set(), set()
    for entry in profile.getstats():
        code = entry.code
        # CO_OPTIMIZED: a function, no body of a module or class
        if isinstance(code, str) or not code.co_flags & inspect.CO_OPTIMIZED:
            continue
        path = Path(code.co_filename)
        if PACKAGE not in path.parents or code.co_name.startswith("<"):
            continue
        file = str(path.relative_to(PACKAGE))
        names.add(f"{file}:{code.co_qualname}")
        owner = code.co_qualname.rpartition(".")[0]
        if owner and not owner.endswith("<locals>"):
            classes.add(f"{file}:{owner}")
    if unknown := (DECISIONS.keys() - defined().keys()) | (FOLLOWING.keys() - branching()):
        raise KeyError(f"listed, but not there or without a branch: {sorted(unknown)}")
    return {
        "files": sorted({name.split(":")[0] for name in names}),
        "functions": sorted(names),
        "classes": sorted(classes),
        "deciding": sorted({name.split(":")[0] for name in names & DECISIONS.keys()}),
        "unlisted": sorted((names & branching()) - DECISIONS.keys() - FOLLOWING.keys()),
    }


def defined() -> dict[str, ast.AST]:
    """Every function of the package by file:qualified name."""
    found = {}

    def visit(node, file, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = "" if isinstance(child, ast.ClassDef) else "<locals>."
                if inner:
                    found[f"{file}:{prefix}{child.name}"] = child
                visit(child, file, f"{prefix}{child.name}.{inner}")
            else:
                visit(child, file, prefix)

    for path in PACKAGE.rglob("*.py"):
        visit(ast.parse(path.read_text()), path.relative_to(PACKAGE), "")
    return found


def branching() -> set[str]:
    """Functions with a test on something of `config`, `settings`, `plan` or `options`."""

    def named(test) -> bool:
        parts = (getattr(n, "id", getattr(n, "attr", None)) for n in ast.walk(test))
        return any(part in SETTINGS for part in parts)

    return {
        name
        for name, node in defined().items()
        if any(
            named(n.test) for n in ast.walk(node) if isinstance(n, ast.If | ast.IfExp | ast.While)
        )
    }


def measured(name: str) -> dict:
    """The trace of "solve" or "run", in a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, "--of", name],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if "--of" in sys.argv:
        call = {"solve": solve, "run": run}[sys.argv[-1]]
        print(json.dumps(traced(call)))
    else:
        for name in ("solve", "run"):
            found = measured(name)
            if "--json" in sys.argv:
                print(json.dumps({name: found}))
                continue
            print(f"{name:6}" + "  ".join(f"{len(found[what]):4} {what}" for what in found))
            print("       decide: " + ", ".join(found["deciding"]))
            if "--files" in sys.argv:
                print("       " + "\n       ".join(found["files"] + found["unlisted"]))
