"""
Several processes and devices
=============================

The same training on two processes, each with its share of the samples: the same numbers, up to rounding.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import sapm

settings = (
    {"depth": 3, "width": 5, "max_iter": 5}
    if os.environ.get("SAPM_QUICK")
    else {"depth": 6, "width": 10, "max_iter": 200}
)

# %%
# A problem in a file
# -------------------
# Processes are started on the command line, and each of them reads the problem from a file.

folder = Path(tempfile.mkdtemp())
(folder / "my_problem.py").write_text("""
import numpy as np
import sapm

X = np.random.default_rng(0).uniform(-1, 1, (2000, 2))
problem = sapm.Regression(X, np.sin(3 * X[:, 0]) * X[:, 1])
""")

# %%
# Two processes
# -------------
# ``sapm run … --processes 2`` gives each its own share of the cores and of the samples. They exchange only
# sums over samples. On a cluster the same command runs under ``srun`` with ``--distributed``, one process per GPU.

command = [
    "run",
    "my_problem.py:problem",
    "--processes",
    "2",
    "--seeds",
    "1",
    "--set",
    "method=alternating",
    "--out",
    "runs/two",
]
for name, value in settings.items():
    command += ["--" + name.replace("_", "-"), str(value)]
print("sapm", *command)
done = subprocess.run(
    [sys.executable, "-m", "sapm", *command],
    cwd=folder,
    capture_output=True,
    text=True,
    check=False,
)
print(done.stdout if done.returncode == 0 else done.stderr)

# %%
# One process
# -----------
# The same in this process. ``sapm.load`` reads what the two have written.

X = np.random.default_rng(0).uniform(-1, 1, (2000, 2))
one = sapm.solve(
    sapm.Regression(X, np.sin(3 * X[:, 0]) * X[:, 1]), seeds=1, method="alternating", **settings
)
two = sapm.load(folder / "runs" / "two" / "model.sapm")
apart = np.abs(two.history["loss"] / one.history["loss"] - 1).max()
print(f"largest relative difference of the losses: {apart:.0e}")

figure, ax = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name, result, style in (("one process", one, "C0-"), ("two processes", two, "C1--")):
    ax.loglog(result.history["iteration"][0] + 1, result.history["loss"][0], style, label=name)
ax.set(xlabel="sweeps + 1", ylabel="loss")
ax.legend(loc="upper right")
plt.show()

# %%
# Several GPUs in one process
# ---------------------------
# ``sapm.solve(problem, devices="auto")`` uses all devices that JAX sees. To try it without any, a CPU can be divided;
# both variables must be set *before* JAX is imported, so put this in front of a command:
#
# .. code-block:: console
#
#    XLA_FLAGS=--xla_force_host_platform_device_count=2 NPROC=4 python my_script.py
#
# Shares of one CPU are good for tests and no faster. What several processes gain is measured in :doc:`/scale`.
#
# Try next
# --------
# * Kill one of the processes: the others are stopped, an error message names it, and ``sapm resume runs/two`` continues
#   the run.
# * Data larger than memory: memory maps for ``sapm.Regression``, and ``options={"chunk": 16384}`` (:doc:`/many`).
