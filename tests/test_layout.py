"""Folders are floors: a module imports only from its own floor and the floors below."""

import ast
import subprocess
import sys
from pathlib import Path

import sapm

FLOORS = [
    "errors",
    "scopes",
    "numerics",
    "objective",
    "problem",
    "methods",
    "training",
    "results",
    "driver",
    "estimators",
    "catalogue",
    "studies",
    "cli",
    "__main__",
]
MOST_FILES = 12  # in a folder, besides __init__.py


def test_floors():
    root = Path(sapm.__file__).parent
    for path in root.rglob("*.py"):
        own = path.relative_to(root).with_suffix("").parts[0]
        if own == "__init__":
            continue
        assert own in FLOORS, path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not any(a.name.split(".")[0] == "sapm" for a in node.names), path
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path}: a relative import"
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sapm"):
                _, *floor = node.module.split(".")
                for name in floor[:1] or [a.name for a in node.names if a.name != "__version__"]:
                    assert FLOORS.index(name) <= FLOORS.index(own), f"{path} imports {name}"
        assert len([*path.parent.glob("*.py")]) <= MOST_FILES + 1, path.parent


def test_import_leaves_jax_as_it_was():
    """Nothing heavy is loaded by `import sapm`, nor by the names one uses, until a figure or an
    estimator is asked for.
    """
    code = """
import sys, sapm
assert not {"jax", "numpy", "matplotlib", "sklearn"} & set(sys.modules)
sapm.solve, sapm.PDE, sapm.load, sapm.resume
assert not {"matplotlib", "sklearn", "safetensors"} & set(sys.modules)
import jax, jax.numpy as jnp
assert jnp.ones(1).dtype == "float32" and not jax.config.jax_enable_x64
"""
    subprocess.run([sys.executable, "-c", code], check=True)
