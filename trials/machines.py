"""Solve a fixed set of small problems, and compare the results of two machines.

    PYTHONPATH=. python trials/machines.py run --out a.json
    PYTHONPATH=. python trials/machines.py compare a.json b.json             within what
    docs/trust.md promises? PYTHONPATH=. python trials/machines.py compare a.json b.json --exact
    bit for bit?
    PYTHONPATH=. python trials/machines.py twice                             two processes here: bit
    for bit?

Differences of losses are relative to the larger one, or to 1e-20 of the loss at the start where
that is more: below, a loss is rounding. Differences of the networks are relative to their values.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import stated
from common import ROOT, Cores, Place, Process, jobs_option, side_by_side, verdict

import sapm
from sapm.results.files import environment

PLACES = {"points": 60, "boundary_points": 30, "test_points": 40}
SMALL = {"depth": 3, "width": 6, "seeds": 2, "max_iter": 100, "progress": False}
CASES = {
    "data, auto (lifted Gauss-Newton)": ("curve", {}),
    "data, PM, sweeps, relu": (
        "curve",
        {"model": "pm", "method": "alternating", "activation": "relu"},
    ),
    "data, SAPM, sweeps, tanh": ("surface", {"method": "alternating"}),
    "data, SAPM, sweeps, mixed precision": (
        "surface",
        {"method": "alternating", "options": {"precision": "mixed"}},
    ),
    "data, LS, gradient descent": ("surface", {"model": "ls", "method": "gd"}),
    "data, LS, Adam": ("surface", {"model": "ls", "method": "adam"}),
    "data, LS, L-BFGS": ("surface", {"model": "ls", "method": "lbfgs"}),
    "transport, auto (Gauss-Newton)": ("transport", PLACES),
    "transport, SAPM, sweeps": ("transport", PLACES | {"method": "alternating"}),
    "heat, SAPM, sweeps": ("heat", PLACES | {"method": "alternating", "depth": 2, "max_iter": 50}),
    "heat, auto (Gauss-Newton)": ("heat", PLACES | {"options": {"resample": 0}}),
    "burgers, auto (Gauss-Newton)": ("burgers", PLACES | {"options": {"resample": 0}}),
}
AFTER = (0, 1, 2, 5, 10, 20, 50, 100)  # iterations
FLOOR = 1e-20  # of the first loss
PROMISED = {
    0: 1e-12,
    1: 1e-9,
    10: 1e-6,
}  # iteration → largest relative difference of the losses up to it, in double precision
MIXED = 1e-3  # the same for mixed precision, up to iteration 10


def solved(name: str) -> dict:
    """Both losses of every seed at every iteration, and the networks at the end."""
    problem, settings = CASES[name]
    asked = getattr(stated, problem)()
    began = time.perf_counter()
    result = sapm.solve(asked, **(SMALL | settings))
    held = result.samples.terms[0]
    x = np.asarray(held.x.value if held.points is None else held.points)[
        :20, : len(result.samples.names)
    ]
    weights = b"".join(
        np.ascontiguousarray(a).tobytes() for u in result.seeds for pair in u.weights for a in pair
    )
    return {
        "seconds": time.perf_counter() - began,
        "loss": result.history["loss"].tolist(),
        "mean_squared_loss": result.history["mean_squared_loss"].tolist(),
        "iteration": result.history["iteration"].tolist(),
        "values": [np.asarray(u(x)).reshape(len(x), -1).tolist() for u in result.seeds],
        "sha256": hashlib.sha256(weights).hexdigest(),
        "rows": [{k: v for k, v in row.items() if k != "reason"} for row in result.table],
    }


def run(out: str, only: str = "") -> dict:
    found: dict = {"env": environment(), "cases": {}}
    for name in [name for name in CASES if only in name]:
        found["cases"][name] = solved(name)
        Path(out).write_text(json.dumps(found, indent=1) + "\n")
        print(f"  {name}: {found['cases'][name]['seconds']:.1f} s", flush=True)
    return found


def twice(only: str, jobs: int) -> list[dict]:
    """What two processes find, each with as many cores, each compiling for itself."""
    cores = Cores(min(2, jobs))
    with tempfile.TemporaryDirectory(prefix="sapm-machines-") as folder:
        place = Place(Path(folder), cached=False, device=None)
        place.variables.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # they may share a GPU

        def made(k: int) -> dict:
            file = Path(folder) / f"{k}.json"
            with cores.taken() as mine:
                command = [
                    sys.executable,
                    str(ROOT / "trials" / "machines.py"),
                    "run",
                    "--only",
                    only,
                    "--out",
                    str(file),
                ]
                process = Process(command, place.variables, mine)
                if process.end() != 0:
                    raise RuntimeError(process.errors)
            return json.loads(file.read_text())

        return side_by_side(made, range(2), jobs)


def compare(a: dict, b: dict) -> list[dict]:
    """Case by case: whether all bits are equal, the largest relative difference of both losses up
    to k iterations, and of the networks at the end."""
    rows = []
    for name in [name for name in a["cases"] if name in b["cases"]]:
        one = a["cases"][name]
        other = b["cases"][name]
        pairs = [
            np.array([x[key] for key in ("loss", "mean_squared_loss")], float) for x in (one, other)
        ]
        count = min(p.shape[2] for p in pairs)
        p, q = (x[:, :, :count] for x in pairs)
        scale = np.maximum(np.maximum(np.abs(p), np.abs(q)), FLOOR * np.abs(p[:, :, :1]))
        with np.errstate(invalid="ignore"):
            apart = np.where(p == q, 0.0, np.abs(p - q) / scale).max((0, 1))
        at = np.array(one["iteration"], int).max(0)[:count]
        u, v = (np.array(x["values"], float) for x in (one, other))
        size = np.sqrt(np.mean(u**2, axis=(1, 2)))
        same = all(
            one[key] == other[key]
            for key in ("loss", "mean_squared_loss", "iteration", "values", "sha256", "rows")
        )
        rows.append(
            {
                "case": name,
                "equal": same,
                "after": {k: float(apart[at <= k].max()) for k in AFTER if k <= at[-1]},
                "networks": float((np.sqrt(np.mean((u - v) ** 2, axis=(1, 2))) / size).max()),
                "errors": [_error(x["rows"]) for x in (one, other)],
            }
        )
    return rows


def _error(rows: list[dict]) -> float | None:
    """The error of the best seed, where it is known."""
    found = [row.get("solution_error", row.get("test_error")) for row in rows]
    return None if None in found else min(found)


def promise(row: dict, k: int) -> float:
    return MIXED if "mixed" in row["case"] else PROMISED[k]


def judged(rows: list[dict], exact: bool) -> tuple[bool, str]:
    """Print the table, and say whether it is as it should be."""
    print(
        f"  {'largest relative difference of the losses after':52}"
        + "".join(f"{k:>9}" for k in AFTER)
        + "   networks  bits"
    )
    for row in rows:
        cells = "".join(f"{row['after'][k]:9.0e}" if k in row["after"] else " " * 9 for k in AFTER)
        print(
            f"  {row['case']:52}{cells} {row['networks']:10.0e}  "
            f"{'equal' if row['equal'] else 'differ'}"
        )
    equal = sum(row["equal"] for row in rows)
    if exact:
        return equal == len(rows), f"{equal} of {len(rows)} cases equal bit for bit"
    plain = [row for row in rows if "mixed" not in row["case"]]
    seen = {k: max((row["after"][k] for row in plain), default=0.0) for k in PROMISED}
    good = all(row["after"][k] <= promise(row, k) for row in rows for k in PROMISED)
    words = ", ".join(f"{seen[k]:.0e} after {k} (promised {PROMISED[k]:.0e})" for k in PROMISED)
    return (
        good,
        f"{equal} of {len(rows)} cases equal bit for bit; in double precision the losses differ by "
        f"at most {words}",
    )


def differing(a: dict, b: dict, prefix: str = "") -> list[str]:
    """What is not the same in two environments."""
    found = []
    for key in dict.fromkeys([*a, *b]):
        x = a.get(key)
        y = b.get(key)
        if isinstance(x, dict) and isinstance(y, dict):
            found += differing(x, y, f"{prefix}{key}.")
        elif x != y:
            found.append(f"{prefix}{key}: {x} | {y}")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("run", "compare", "twice"))
    parser.add_argument("files", nargs="*")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--exact", action="store_true", help="compare: bit for bit")
    jobs_option(parser)
    given = parser.parse_args(arguments)
    began = time.monotonic()
    if given.what == "run":
        if not given.out:
            parser.error("run needs --out FILE")
        found = run(given.out, given.only)
        finite = all(
            np.isfinite(np.array(case["loss"], float)).all() for case in found["cases"].values()
        )
        return verdict(
            "machines",
            finite,
            f"{len(found['cases'])} cases solved, in {given.out}",
            {},
            None,
            began,
        )
    if given.what == "compare":
        if len(given.files) != 2:
            parser.error("compare needs two files")
        a, b = (json.loads(Path(file).read_text()) for file in given.files)
    else:
        a, b = twice(given.only, given.jobs)
    unlike = differing(a["env"], b["env"])
    for line in unlike:
        print(f"  {line}")
    rows = compare(a, b)
    good, sentence = judged(rows, given.exact or given.what == "twice")
    return verdict(
        "machines",
        good and bool(rows),
        sentence,
        {"rows": rows, "environments": unlike},
        given.out,
        began,
    )


if __name__ == "__main__":
    sys.exit(main())
