"""The paper's experiments, one folder per run, so that a reproduction can be stopped and continued at any point."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np

from sapm import store
from sapm.environment import environment
from sapm.experiments import EXPERIMENTS, PAPER, Experiment, paper
from sapm.methods.build import choose
from sapm.names import brief, nearest
from sapm.objective import ROUNDING
from sapm.result import Result
from sapm.solver import resume, solve

MODELS = ("ls", "pm", "sapm")
RATES = {"regression": (0.3, 0.1, 0.03), "pde": (0.03, 0.01, 0.003)}  # of LS; each halves five times over a run
SEEDS = 10
QUICK = {  # a laptop's share: one size, fewer seeds, iterations and points
    "function_1d": {"sizes": ((6, 10),), "seeds": 4, "max_iter": 3000},
    "function_10d": {"sizes": ((6, 10),), "seeds": 3, "max_iter": 600, "points": 1000, "test_points": 1000},
    "transport_1d": {"sizes": ((6, 10),), "seeds": 4, "max_iter": 300},
    "transport_3d": {"sizes": ((6, 40),), "seeds": 2, "max_iter": 60, "points": 800, "boundary_points": 320},
}
PLAN = "reproduce.json"


@dataclass(frozen=True)
class Cell:
    """One run: a model on an experiment at a size, in a variant (a start, or a learning rate)."""

    experiment: str
    size: tuple[int, int]
    model: str
    variant: str
    settings: dict

    @property
    def folder(self) -> Path:
        depth, width = self.size
        return Path(self.experiment) / f"{depth}x{width}" / f"{self.model}-{self.variant}"

    def __str__(self) -> str:
        depth, width = self.size
        return f"{self.experiment} ({depth},{width}) {self.model.upper()} {self.variant}"


def cells(experiment: Experiment, models: Sequence[str], sizes: Sequence[tuple[int, int]] | None, quick: bool) -> list[Cell]:
    """All runs of an experiment, in the order they are made."""
    settings: dict[str, Any] = experiment.settings | {"seeds": SEEDS}
    offered = experiment.sizes
    if quick:
        less = dict(QUICK[experiment.name])
        offered = less.pop("sizes")
        settings |= less
    if experiment.kind == "pde":
        settings |= {"mu": 1.0, "options": {"record_every": 1}}  # the bound is checked at every iteration
    found = []
    for depth, width in sizes or offered:
        common = settings | {"depth": depth, "width": width}
        for model in models:
            if model == "ls":
                for rate in RATES[experiment.kind]:
                    options = settings.get("options", {}) | {"learning_rate": rate, "halving": settings["max_iter"] / 5}
                    more = {"model": "ls", "method": "gd", "options": options}
                    found.append(Cell(experiment.name, (depth, width), "ls", f"rate{rate:g}", common | more))
                continue
            for start in ("uniform", "forward") if experiment.kind == "pde" else ("uniform",):
                more = {"model": model, "method": "alternating", "start": start}
                found.append(Cell(experiment.name, (depth, width), model, start, common | more))
            if model == "sapm" and experiment.kind == "regression":
                more = {"model": model, "method": "alternating", "start": "uniform", "options": {"shared": True}}
                found.append(Cell(experiment.name, (depth, width), model, "uniform-shared", common | more))
    return found


def plan(names: Sequence[str], models: Sequence[str], sizes, quick: bool) -> dict:
    """What is to be run, checked, without repeats, as JSON."""
    for name in names:
        if name not in (*PAPER, "all"):
            raise ValueError(f"{brief(name)} is not in the paper; there are {', '.join(PAPER)} and all." + nearest(name, PAPER))
    names = list(PAPER) if "all" in names else list(dict.fromkeys(names))
    models, sizes = list(dict.fromkeys(models)), list(dict.fromkeys(tuple(size) for size in sizes or ()))
    for model in models:
        choose("--models", model, MODELS)
    for size in sizes:
        if not any(size in EXPERIMENTS[name].sizes for name in names):
            known = "; ".join(f"{n}: {' '.join(f'{L},{M}' for L, M in EXPERIMENTS[n].sizes)}" for n in names)
            raise ValueError(f"--sizes {size[0]},{size[1]} is not in the paper; there are {known}.")
    return {"experiments": names, "models": models, "sizes": [list(s) for s in sizes] or None, "quick": quick}


def begin(out: Path, wanted: dict) -> None:
    """Claim the folder for this plan; a folder with another one, or with other files, is left alone."""
    file = out / PLAN
    if file.exists():
        held = read_plan(out)
        if held != wanted:
            raise ValueError(f"{out} holds another reproduction ({_words(held)}); choose another --out, or resume it.")
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is not empty and holds no reproduction; choose another --out. Nothing was changed.")
    store.write_whole(file, (store.to_json(wanted, indent=2) + "\n").encode())


def read_plan(out: Path) -> dict:
    """The plan of a folder, checked as if it were given now."""
    held = store.read_json(out / PLAN)
    try:
        names, models, sizes = (held[name] or [] for name in ("experiments", "models", "sizes"))
        return plan(names, models, [(L, M) for L, M in sizes], bool(held["quick"]))
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{out / PLAN} is damaged: it is not a plan of sapm reproduce; begin again in another folder.") from None


def _words(held: dict) -> str:
    sizes = "" if not held["sizes"] else " sizes " + " ".join(f"{L},{M}" for L, M in held["sizes"])
    return f"{' '.join(held['experiments'])}{' --quick' if held['quick'] else ''} --models {','.join(held['models'])}{sizes}"


def all_cells(wanted: dict) -> list[Cell]:
    found = []
    for name in wanted["experiments"]:
        experiment = EXPERIMENTS[name]
        sizes = None
        if wanted["sizes"]:
            sizes = [tuple(s) for s in wanted["sizes"] if tuple(s) in experiment.sizes]
            if not sizes:
                continue
        found += cells(experiment, wanted["models"], sizes, wanted["quick"])
    return found


def run(out: Path, wanted: dict, tell: Callable[[str], None], progress: bool = True, jobs: int = 1) -> list[dict]:
    """Make every run that is not there yet, continue those that were cut off; an interrupted run ends the series.

    A finished run leaves cell.json in its folder: all that tables and figures need. Such a folder is not run again.
    `jobs` runs are made at a time, each in a process of its own.
    """
    with store.Claim(out):
        begin(out, wanted)
        todo = all_cells(wanted)
        for cell in todo:
            store.inside(out, out / cell.folder)
        missing = [cell for cell in todo if not (out / cell.folder / "cell.json").exists()]
        if len(missing) < len(todo):
            tell(f"{len(todo) - len(missing)} of {len(todo)} runs are there already")
        if jobs > 1:
            _make_side_by_side(out, missing, jobs, tell)
        else:
            for k, cell in enumerate(missing, 1):
                tell(f"[{k}/{len(missing)}] {cell}")
                make(out, cell, progress)
        return [store.read_json(out / cell.folder / "cell.json") for cell in todo]


def make(out: Path, cell: Cell, progress: bool) -> None:
    """One run, from its checkpoint if it has one."""
    folder = out / cell.folder
    if (folder / "checkpoint" / "latest.sapm").exists():
        result = resume(folder, progress=progress)
    else:
        result = solve(EXPERIMENTS[cell.experiment].problem(), **cell.settings, out=folder, progress=progress)
    if result.run.cut:
        raise KeyboardInterrupt
    store.write_whole(folder / "cell.json", store.to_json(summarise(cell, result)).encode())


def _in_a_process(out: Path, cell: Cell) -> None:
    """A child leaves the terminal's group: Ctrl-C reaches it once, through its parent. Without a parent it stops by itself."""
    os.setpgrp()

    def stop(end: int) -> None:
        wait([end])
        while True:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)  # enough to save what there is, if it was heard

    if parent := parent_process():
        threading.Thread(target=stop, args=(parent.sentinel,), daemon=True).start()
    try:
        make(out, cell, False)
    except KeyboardInterrupt:
        sys.exit(130)
    except (ValueError, OSError) as error:
        print(f"{cell}: {error}", file=sys.stderr)
        sys.exit(2)


def _make_side_by_side(out: Path, missing: Sequence[Cell], jobs: int, tell: Callable[[str], None]) -> None:
    """A few processes at a time: on a GPU the runs of small networks leave it idle between kernels."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    spawn, waiting, busy, failed = get_context("spawn"), list(missing), {}, []
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                cell = waiting.pop(0)
                process = spawn.Process(target=_in_a_process, args=(out, cell))
                process.start()
                busy[process.sentinel] = process, cell, time.monotonic()
            for sentinel in wait(list(busy)):
                process, cell, began = busy.pop(sentinel)
                process.join()
                failed += [cell] if process.exitcode else []
                done = len(missing) - len(waiting) - len(busy)
                said = "failed" if process.exitcode else "done"
                tell(f"[{done}/{len(missing)}] {cell}: {said}, {time.monotonic() - began:.0f} s")
    except BaseException:
        for process in active_children():
            os.kill(process.pid, signal.SIGINT)  # type: ignore[arg-type]
        for process in active_children():
            process.join()
        raise
    if failed:
        raise ValueError(f"{len(failed)} of {len(missing)} runs failed, the first {failed[0]}; the others are kept in {out}.")


# ---------------------------------------------------------------- what the runs say


def _success(experiment: Experiment, result: Result, error: str) -> tuple[int, str]:
    """Absolute success: how many seeds, and what it means."""
    rows = result.table
    if experiment.kind == "pde":
        return sum(row[error] is not None and row[error] < 0.1 for row in rows), "solution error < 10 %"
    y = np.asarray(result.samples.terms[0].y)
    return result.success(below=0.01 * float(np.var(y))).count, "true loss < 1 % of the variance"


def summarise(cell: Cell, result: Result) -> dict:
    """One row of a table: the best seed, the medians and the worst, failures and successes, the bound."""
    experiment, rows, run = EXPERIMENTS[cell.experiment], result.table, result.run
    error = "solution_error" if experiment.kind == "pde" else "test_error"
    best = rows[run.best]
    spread = {
        name: [float(f(np.array([row[name] for row in rows], float))) for f in (np.median, np.max)]
        for name in ("loss", "mean_squared_loss", error)
    }
    success, meaning = _success(experiment, result, error)
    ratios = run.history["bound_ratio"]
    ratio = None if np.isnan(ratios).all() else float(np.nanmax(ratios))
    holds = result.certificate.holds
    if cell.model == "sapm" and holds is not False:  # at the end; now at every record of every seed
        holds = None if ratio is None else ratio <= 1 + ROUNDING
    return asdict(cell) | {
        "seeds": len(rows),
        "iterations": int(run.history["iteration"].max()),
        "seconds": float(run.history["seconds"].max()),
        "best_seed": best["seed"],
        "best": {name: best[name] for name in ("loss", "mean_squared_loss", "train_error", error)},
        "median": {name: spread[name][0] for name in spread},
        "worst": {name: spread[name][1] for name in spread},
        "initial_final": [[row["initial_loss"], row["loss"]] for row in rows],
        "failed": len(rows) - result.success().count,
        "success": success,
        "success_means": meaning,
        "largest_bound_ratio": ratio,
        "holds": holds,
        "non_affine": non_affine(result),
        "curves": curves(result),
        "off_sample": off_sample(result) if cell.experiment == "function_1d" else None,
        "env": environment(),
    }


def curves(result: Result, most: int = 200) -> dict:
    """What the figures draw: the actual loss of every seed and the true loss of the best, at `most` records or fewer."""
    h, run = result.history, result.run
    count = h["loss"].shape[1]
    pick = np.unique(np.round(np.linspace(0, count - 1, min(count, most))).astype(int))
    digits = lambda a: [None if not np.isfinite(v) else float(f"{v:.4g}") for v in a]  # noqa: E731
    return {
        "iteration": h["iteration"].max(0)[pick].tolist(),
        "loss": [digits(row[pick]) for row in h["loss"]],
        "true": digits(h["mean_squared_loss"][run.best][pick]),
        "best": run.best,
        "bound": run.certificate(run.best).bound,
    }


def non_affine(result: Result) -> list[float]:
    """Per seed, the share of the network's values at the training points that no affine function of the inputs explains.

    1 - R² of the least-squares affine fit; 0 for a constant (to a millionth), NaN where a value is not finite.
    """
    x = np.concatenate([np.asarray(term.x.value) for term in result.samples.terms])
    affine = np.column_stack([x, np.ones(len(x))])
    found = []
    for u in result.seeds:
        value = u(x)
        if not np.isfinite(value).all():
            found.append(float("nan"))
            continue
        value = value / max(1.0, np.abs(value).max())
        left = value - affine @ np.linalg.lstsq(affine, value, rcond=None)[0]
        found.append(0.0 if np.ptp(value) <= 1e-6 else float(np.sum(left**2) / np.sum((value - value.mean()) ** 2)))
    return found


def off_sample(result: Result) -> dict:
    """Where, over all seeds, the network strays most from the target between the training points, and how it looks there."""
    x = np.asarray(result.samples.terms[0].x.value)[:, 0]
    fine = np.linspace(x.min(), x.max(), 20001)
    exact = np.sin(fine**2)
    errors = np.array([np.abs(u(x=fine) - exact) for u in result.seeds])
    i, k = (int(v) for v in np.unravel_index(errors.argmax(), errors.shape))
    near = np.flatnonzero(np.abs(fine - fine[k]) < 0.15)[::10]
    return {
        "seed": result.run.seeds[i],
        "x": float(fine[k]),
        "error": float(errors[i, k]),
        "at": fine[near].tolist(),
        "network": result.seeds[i](x=fine[near]).tolist(),
        "points": x[np.abs(x - fine[k]) < 0.15].tolist(),
    }


PLATEAU = {"function_1d": 7.05e-2, "function_10d": 6.05e-4}  # the variance of the target: where the paper's LS is stuck
LARGEST = float(np.sin(1))  # of |sin(x²)| on [-1, 1], the target of function_1d
VERDICTS = """A verdict compares the best seed with the paper's best seed, quantity by quantity, and gives the factor between
them; "reproduced" means at most 10 (the paper's order of magnitude, or better) where at least one seed succeeds, and
the median of all seeds stands beside it. A spike is an error off the training points above 10 times the largest value
of the target. For PM: its inconsistency is reproduced where the true loss is at least 1000 times the actual
one. For LS: the seeds that are stuck (final loss at least 10 % of the initial one, the paper's rule) or
diverged, and those at the plateau, the variance of the target."""


def verdict(row: dict) -> str:
    """Against the paper's order of magnitude, per model and quantity, with what was measured where it is not reproduced."""
    if row["model"] == "ls":
        return _stuck(row)
    best, printed = row["best"], paper_row(row)
    if row["model"] == "pm":
        ratio = best["mean_squared_loss"] / best["loss"]
        theirs = printed["mean_squared_loss"] / printed["actual_loss"]
        return f"inconsistency {'' if ratio >= 1e3 else 'not '}reproduced: true/actual loss {ratio:.1e} (paper {theirs:.1e})"
    error = "solution_error" if "solution_error" in best else "test_error"
    factors = {
        "actual loss": best["loss"] / printed["actual_loss"],
        "true loss": best["mean_squared_loss"] / printed["mean_squared_loss"],
        error.replace("_", " "): best[error] / printed[error],
    }
    bad = {name: factor for name, factor in factors.items() if not factor <= 10 or row["success"] == 0}
    good = {name: factor for name, factor in factors.items() if name not in bad}
    times = lambda found: ", ".join(f"{name} × {factor:.2g}" for name, factor in found.items())  # noqa: E731
    median = f"; median {error.replace('_', ' ')} × {row['median'][error] / printed[error]:.2g}"
    if not bad:
        return f"reproduced: {times(good)}{median}"
    if "non_affine" in row and all(share < 1e-3 for share in row["non_affine"]):
        measured = "every seed is constant or affine"
    elif row["success"] == 0:
        measured = f"no seed succeeds ({row['success_means']})"
    elif list(bad) == ["test error"]:
        measured = _spike(row)
    else:
        measured = _pace(row)
    return f"not reproduced: {times(bad)}; {measured}{'; reproduced: ' + times(good) if good else ''}{median}"


def _spike(row: dict) -> str:
    """The largest error off the training points, over all seeds, where it is large."""
    off = row.get("off_sample")
    if not off or not off["error"] > 10 * LARGEST:
        return "see the median"
    whose = "the best seed" if off["seed"] == row["best_seed"] else f"seed {off['seed']}, not the best one,"
    return f"{whose} has a spike of {off['error']:.1e} at x = {off['x']:.4f}"


def _pace(row: dict) -> str:
    """How the loss of the best seed still moves at the end."""
    c = row["curves"]
    loss, late = c["loss"][c["best"]], int(np.searchsorted(c["iteration"], 0.1 * c["iteration"][-1]))
    return f"the best seed's loss falls by a factor {loss[late] / loss[-1]:.2g} in the last nine tenths of the iterations"


def paper_row(row: dict) -> dict:
    """What the paper prints for the best seed of this model and size."""
    depth, width = row["size"]
    return paper()["best_seed"][row["experiment"]][f"{depth},{width}"][row["model"].upper()]


def _stuck(row: dict) -> str:
    finals = [(initial, final) for initial, final in row["initial_final"]]
    diverged = sum(not final <= initial for initial, final in finals)
    words = f"{row['failed'] - diverged} of {row['seeds']} seeds stuck"
    words += f", {diverged} diverged" if diverged else ""
    if plateau := PLATEAU.get(row["experiment"]):
        words += f", {sum(abs(final / plateau - 1) < 0.05 for _, final in finals)} at the plateau {plateau:.2e}"
    return words
