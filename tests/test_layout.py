"""The house keeps its order: a module imports only modules above it in this list; importing sapm changes nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import sapm

ORDER = [
    "sapm.names",
    "sapm.threads",
    "sapm.jet",
    "sapm.network",
    "sapm.term",
    "sapm.spread",
    "sapm.shapes",
    "sapm.domain",
    "sapm.embedding",
    "sapm.pointwise",
    "sapm.disk",
    "sapm.ansatz",
    "sapm.unknown",
    "sapm.equation",
    "sapm.conditions",
    "sapm.characteristics",
    "sapm.samples",
    "sapm.regression",
    "sapm.posed",
    "sapm.problem",
    "sapm.estimate",
    "sapm.objective",
    "sapm.linearise",
    "sapm.lstsq",
    "sapm.work",
    "sapm.blocks",
    "sapm.sweeps",
    "sapm.methods.method",
    "sapm.methods.alternating",
    "sapm.methods.streamed",
    "sapm.methods.descent",
    "sapm.methods.polish",
    "sapm.methods.gauss_newton",
    "sapm.devices",
    "sapm.fault",
    "sapm.groups",
    "sapm.halving",
    "sapm.run",
    "sapm.train",
    "sapm.stream",
    "sapm.methods.build",
    "sapm.success",
    "sapm.summary",
    "sapm.environment",
    "sapm.store",
    "sapm.stored",
    "sapm.export",
    "sapm.solution",
    "sapm.foreign",
    "sapm.report",
    "sapm.result",
    "sapm.resample",
    "sapm.progress",
    "sapm.checks",
    "sapm.doubts",
    "sapm.plan",
    "sapm.attempt",
    "sapm.solver",
    "sapm.refiner",
    "sapm.estimator",
    "sapm.references",
    "sapm.textbook",
    "sapm.experiments",
    "sapm.reproduce",
    "sapm.gallery",
    "sapm.demo",
    "sapm.bench.cases",
    "sapm.bench.task",
    "sapm.bench.peers",
    "sapm.bench.deepxde",
    "sapm.bench.linear",
    "sapm.bench.worker",
    "sapm.bench.score",
    "sapm.bench.runner",
    "sapm.bench.page",
    "sapm.arguments",
    "sapm.launch",
    "sapm.cli_base",
    "sapm.cli_studies",
    "sapm.cli",
    "sapm.__main__",
]


def test_modules_import_only_upwards():
    root = Path(sapm.__file__).parent
    modules = {
        ".".join(p.relative_to(root.parent).with_suffix("").parts): p for p in root.rglob("*.py") if p.name != "__init__.py"
    }
    assert sorted(modules) == sorted(ORDER)
    for name, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.Import) and any(a.name.startswith("sapm") for a in node.names)), name
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sapm"):
                for imported in [f"{node.module}.{a.name}" for a in node.names] if node.module == "sapm" else [node.module]:
                    if imported == "sapm.__version__":
                        continue
                    assert ORDER.index(imported) < ORDER.index(name), f"{name} imports {imported}"


def test_import_leaves_jax_as_it_was():
    """Nothing heavy is loaded by `import sapm`, nor by the names one uses, until a figure or an estimator is asked for."""
    code = """
import sys, sapm
assert not {"jax", "numpy", "matplotlib", "sklearn"} & set(sys.modules)
sapm.solve, sapm.PDE, sapm.load, sapm.resume
assert not {"matplotlib", "sklearn", "safetensors"} & set(sys.modules)
import jax, jax.numpy as jnp
assert jnp.ones(1).dtype == "float32" and not jax.config.jax_enable_x64
"""
    subprocess.run([sys.executable, "-c", code], check=True)
