"""What a difference between two runs can come from: versions, the machine, its devices, and what tells JAX how to compute."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import jax

from sapm import __version__
from sapm.threads import CHOICES

VARIABLES = ("NPROC", "CUDA_VISIBLE_DEVICES", *CHOICES)  # that say how JAX computes, beside its own and XLA's
UNITS = ("avx", "avx2", "fma", "avx512f", "asimd", "sve")  # of a processor, which XLA writes its programs for


@cache
def _processor() -> tuple[str, list[str]]:
    """(model, vector units) as Linux tells them; elsewhere the kind of machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = (found.get("flags") or found.get("Features") or "").split()
    return found.get("model name") or platform.machine(), [name for name in UNITS if name in flags]


@cache
def _commit() -> str | None:
    """Of the repository this package lies in, with "-dirty" where files were changed since; None where there is none."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    env = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10, env=env).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def environment() -> dict:
    """All of it, for `env.json` and for files."""
    packages = {"sapm": __version__}
    for name in ("jax", "jaxlib", "equinox", "optax", "numpy", "scipy"):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # on the path without being installed
            packages[name] = "unknown"
    (processor, units), devices = _processor(), jax.devices()
    told = sorted(name for name in os.environ if name.startswith(("JAX_", "XLA_")) or name in VARIABLES)
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": processor,
        "vector_units": units,
        "cores": os.cpu_count(),
        "cores_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "devices": [f"{d.platform}: {d.device_kind}" for d in devices],
        "device_software": ", ".join(devices[0].client.platform_version.splitlines()),
        "processes": jax.process_count(),
        "x64": bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        "matmul_precision": jax.config.jax_default_matmul_precision,  # type: ignore[attr-defined]
        "packages": packages,
        "commit": _commit(),
        "flags": {name: os.environ[name] for name in told},
    }
