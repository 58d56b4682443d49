"""Run the paper's experiments.

Every run has a folder of its own with a checkpoint while it trains and `cell.json` when it is
finished, so a reproduction can be stopped and continued at any point. Tables and figures are made
from the `cell.json` files alone (`sapm.studies.gallery`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import numpy as np

from sapm.catalogue import CATALOGUE, PAPER, Entry, paper_tables
from sapm.driver.solve import resume, solve
from sapm.errors import brief, choose, nearest, printable, shown_path
from sapm.objective.weights import ROUNDING
from sapm.results import files
from sapm.results.files import environment
from sapm.results.result import Result
from sapm.scopes import interrupt, unless_interrupted

MODELS = ("ls", "pm", "sapm")
LEARNING_RATES = (0.3, 0.1, 0.03, 0.01, 0.003)  # of LS; each halves five times over a run
LS_ITERATIONS = 50_000  # the paper's for functions; the print does not say how many for equations
# the sweeps of SAPM and PM from U(-1, 1), and on equations also from a forward pass, by variant
UNIFORM = {
    "uniform": {"order": "down"},
    "uniform-up": {"order": "up"},
}
GUARDED = {"uniform-guarded": {}}  # the default of method="alternating", for SAPM
SHARED = {"uniform-shared": {"order": "down", "options": {"shared": True}}}  # SAPM on functions
FORWARD = {
    "forward": {"order": "down"},
    "forward-up": {"order": "up"},
}
PAPER_SEEDS = 10
QUICK = {  # small enough for a laptop: one size, fewer seeds, iterations and points
    "function_1d": {"sizes": ((6, 10),), "seeds": 4, "max_iter": 3000},
    "function_10d": {
        "sizes": ((6, 10),),
        "seeds": 3,
        "max_iter": 600,
        "points": 1000,
        "test_points": 1000,
    },
    "transport_1d": {"sizes": ((6, 10),), "seeds": 4, "max_iter": 500},
    "transport_3d": {
        "sizes": ((6, 40),),
        "seeds": 2,
        "max_iter": 60,
        "points": 800,
        "boundary_points": 320,
    },
}
QUICK_RATES = (0.1, 0.01)
QUICK_VARIANTS = ("uniform", "uniform-up", "uniform-guarded", "forward")
PLAN_FILE_NAME = "reproduce.json"
CURVE_RECORDS = 200
FINE_POINTS = 20_001  # points on [-1, 1] at which the error between the training points is computed
OFF_SAMPLE_HALF_WIDTH = 0.15  # half the width of the figure around the largest error
AFFINE_TOLERANCE = 1e-6  # a network whose values differ less than this counts as constant
AFFINE_SHARE = 1e-3  # a seed with a smaller non-affine share counts as affine
REPRODUCED_FACTOR = 10
INCONSISTENT_RATIO = 1e3  # of the true loss of PM to its minimised loss
PLATEAU_TOLERANCE = 0.05
SIGNAL_INTERVAL_SECONDS = 60


class Plan(TypedDict):
    """The experiments, models, sizes and variants of a reproduction, as `reproduce.json` holds
    them.

    `sizes` None means all sizes of the paper, `variants` None all variants.
    """

    experiments: list[str]
    models: list[str]
    sizes: list[list[int]] | None
    variants: list[str] | None
    quick: bool


class Curves(TypedDict):
    """Loss curves at some records: `loss` of every seed, `true` loss of the seed `best`."""

    iteration: list[int]
    loss: list[list[float | None]]
    true: list[float | None]
    best: int
    bound: float | None


class OffSample(TypedDict):
    """The largest error between the training points, and the network near it."""

    seed: int
    x: float
    error: float
    at: list[float]
    network: list[float]
    points: list[float]


class Row(TypedDict):
    """What `cell.json` holds: a cell and its results; errors and losses are keyed by name.

    `largest_bound_ratio` is the largest ratio, in any record of any seed, of the true loss to the
    proven bound; `largest_stated_ratio` that to the relation as the paper states it for these
    experiments: true loss ≤ L · loss for functions, d L(L+1) · loss for equations.
    """

    experiment: str
    size: Sequence[int]
    model: str
    variant: str
    settings: dict
    seeds: int
    iterations: int
    seconds: float
    best_seed: int
    best: dict[str, float]
    median: dict[str, float]
    worst: dict[str, float]
    initial_final: list[list[float]]
    failed: int
    success: int
    success_means: str
    largest_bound_ratio: float | None
    largest_stated_ratio: NotRequired[float]
    holds: bool | None
    non_affine: NotRequired[list[float]]
    curves: Curves
    off_sample: NotRequired[OffSample | None]
    env: dict


@dataclass(frozen=True)
class Cell:
    """One run: a model on an experiment at a size (depth, width), in a variant.

    The variant is the start of the auxiliary variables with the kind of sweep, or the learning rate
    of LS. `settings` are the arguments of `solve`.
    """

    experiment: str
    size: tuple[int, int]
    model: str
    variant: str
    settings: dict

    @property
    def folder(self) -> Path:
        """The folder of the run, relative to that of the reproduction."""
        depth, width = self.size
        return Path(self.experiment) / f"{depth}x{width}" / f"{self.model}-{self.variant}"

    def __str__(self) -> str:
        depth, width = self.size
        return f"{self.experiment} ({depth},{width}) {self.model.upper()} {self.variant}"


def cells(
    experiment: Entry,
    models: Sequence[str],
    sizes: Sequence[tuple[int, int]] | None,
    quick: bool,
) -> list[Cell]:
    """All runs of an experiment, in the order in which they are made.

    Parameters
    ----------
    experiment : an entry of the catalogue
    models : some of "ls", "pm" and "sapm"
    sizes : pairs (depth, width), or None for all sizes of the paper
    quick : whether to use the small settings `QUICK`
    """
    settings: dict[str, Any] = experiment.settings | {"seeds": PAPER_SEEDS}
    offered = experiment.sizes
    if quick:
        smaller = dict(QUICK[experiment.name])
        offered = smaller.pop("sizes")
        settings |= smaller
    if experiment.kind == "pde":
        # a record at every iteration, so that the bound is checked at every iteration
        settings |= {"mu": 1.0, "options": {"record_every": 1}}
    runs = []

    def add(size: tuple[int, int], model: str, variant: str, **changes: Any) -> None:
        depth, width = size
        arguments = settings | {"depth": depth, "width": width, "model": model} | changes
        runs.append(Cell(experiment.name, size, model, variant, arguments))

    pde = experiment.kind == "pde"
    for size in sizes or offered:
        for model in models:
            if model == "ls":
                iterations = settings["max_iter"] if quick else LS_ITERATIONS
                for rate in QUICK_RATES if quick else LEARNING_RATES:
                    options = settings.get("options", {}) | {
                        "learning_rate": rate,
                        "halving": iterations / 5,
                    }
                    # a record at every iteration is for the bound, which LS has no need of
                    options.pop("record_every", None)
                    changes = {"max_iter": iterations, "options": options}
                    add(size, "ls", f"rate{rate:g}", method="gd", **changes)
                continue
            variants: dict[str, dict[str, Any]] = UNIFORM | (FORWARD if pde else {})
            if model == "sapm":
                variants = variants | GUARDED | ({} if pde else SHARED)
            for name, changes in variants.items():
                if quick and name not in QUICK_VARIANTS:
                    continue
                options = settings.get("options", {}) | changes.get("options", {})
                changes = changes | {"start": name.partition("-")[0], "options": options}
                add(size, model, name, method="alternating", **changes)
    return runs


def plan(
    names: Sequence[str],
    models: Sequence[str],
    sizes: Sequence[tuple[int, int]] | None,
    quick: bool,
    variants: Sequence[str] | None = None,
) -> Plan:
    """Check what a user asked for and remove repetitions.

    Parameters
    ----------
    names : experiments of the paper, or "all"
    models : some of "ls", "pm" and "sapm"
    sizes : pairs (depth, width) of the paper, or None for all
    quick : whether to use the small settings `QUICK`
    variants : names of variants, or None for all
    """
    for name in names:
        if name not in (*PAPER, "all"):
            raise ValueError(
                f"{brief(name)} is not in the paper; there are {', '.join(PAPER)} and all."
                + nearest(name, PAPER)
            )
    names = list(PAPER) if "all" in names else list(dict.fromkeys(names))
    models = list(dict.fromkeys(models))
    sizes = list(dict.fromkeys((depth, width) for depth, width in sizes or ()))
    for model in models:
        choose("--models", model, MODELS)
    for size in sizes:
        if not any(size in CATALOGUE[name].sizes for name in names):
            known = "; ".join(
                f"{n}: {' '.join(f'{L},{M}' for L, M in CATALOGUE[n].sizes)}" for n in names
            )
            raise ValueError(f"--sizes {size[0]},{size[1]} is not in the paper; there are {known}.")
    requested: Plan = {
        "experiments": names,
        "models": models,
        "sizes": [list(s) for s in sizes] or None,
        "variants": None,
        "quick": quick,
    }
    if variants:
        known = list(dict.fromkeys(cell.variant for cell in all_cells(requested)))
        requested["variants"] = [choose("--variants", name, known) for name in variants]
    return requested


def _begin(claim: files.Claim, requested: Plan) -> None:
    """Write the plan into a new or empty folder; accept a folder that has the same plan.

    A folder with another plan, or with other files, is refused and left unchanged.
    """
    out = claim.path
    file = out / PLAN_FILE_NAME
    if file.exists():
        existing = read_plan(out)
        if existing != requested:
            claim.refused = True
            raise ValueError(
                f"{shown_path(out)} holds another reproduction ({_command(existing)}); choose "
                "another --out, or resume it."
            )
        return
    if any(entry.name != ".lock" for entry in out.iterdir()):
        claim.refused = True
        raise ValueError(
            f"{shown_path(out)} is not empty and holds no reproduction; choose another --out. "
            "Nothing was changed."
        )
    files.write_whole(file, (files.to_json(requested, indent=2) + "\n").encode(), own=True)


def read_plan(out: Path) -> Plan:
    """The plan of a folder, checked like one from the command line."""
    content = files.read_json(out / PLAN_FILE_NAME)
    try:
        names, models, sizes = (content[key] or [] for key in ("experiments", "models", "sizes"))
        pairs = [(L, M) for L, M in sizes]
        return plan(names, models, pairs, bool(content["quick"]), content.get("variants"))
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"{shown_path(out / PLAN_FILE_NAME)} is damaged: it is not a plan of sapm reproduce; "
            "start again in another folder."
        ) from None


def _command(existing: Plan) -> str:
    """The arguments of `sapm reproduce` that make this plan."""
    words = [*existing["experiments"], *(["--quick"] if existing["quick"] else [])]
    words += ["--models", ",".join(existing["models"])]
    if existing["sizes"]:
        words += ["--sizes", *(f"{L},{M}" for L, M in existing["sizes"])]
    if existing["variants"]:
        words += ["--variants", ",".join(existing["variants"])]
    return " ".join(words)


def all_cells(requested: Plan) -> list[Cell]:
    """All runs of a plan, in the order in which they are made."""
    runs = []
    for name in requested["experiments"]:
        experiment = CATALOGUE[name]
        sizes = None
        if requested["sizes"]:
            sizes = [(L, M) for L, M in requested["sizes"] if (L, M) in experiment.sizes]
            if not sizes:
                continue
        runs += cells(experiment, requested["models"], sizes, requested["quick"])
    variants = requested["variants"]
    return runs if variants is None else [cell for cell in runs if cell.variant in variants]


def run(
    out: Path, requested: Plan, tell: Callable[[str], None], progress: bool = True, jobs: int = 1
) -> list[Row]:
    """Make every run of a plan that is not finished yet, and return the rows of all of them.

    A finished run has a `cell.json` in its folder and is not made again; one that was interrupted
    continues from its checkpoint. Another interrupt ends the series.

    Parameters
    ----------
    out : the folder of the reproduction
    requested : the plan, from `plan` or `read_plan`
    tell : called with a line of text per run
    progress : whether to show the progress of the training
    jobs : how many runs are made at a time, each in its own process
    """
    with files.Claim(out) as claim:
        _begin(claim, requested)
        todo = all_cells(requested)
        for cell in todo:
            files.check_inside(out, out / cell.folder)
        missing = [cell for cell in todo if not (out / cell.folder / "cell.json").exists()]
        if len(missing) < len(todo):
            tell(f"{len(todo) - len(missing)} of {len(todo)} runs are finished already")
        if jobs > 1:
            _make_side_by_side(claim, missing, jobs, tell)
        else:
            for k, cell in enumerate(missing, 1):
                tell(f"[{k}/{len(missing)}] {cell}")
                claim.check()
                make(out, cell, progress)
        return [cast(Row, files.read_json(out / cell.folder / "cell.json")) for cell in todo]


def make(out: Path, cell: Cell, progress: bool) -> None:
    """Make one run, from its checkpoint if it has one, and write its `cell.json`.

    Parameters
    ----------
    out : the folder of the reproduction.
    cell : the run.
    progress : whether progress is shown.
    """
    folder = out / cell.folder
    if (folder / "checkpoint" / "latest.sapm").exists():
        result = resume(folder, progress=progress)
    else:
        result = solve(
            CATALOGUE[cell.experiment].problem(), **cell.settings, out=folder, progress=progress
        )
    if result.run.cut:
        if lost := result.run.why_folder_lost:
            raise ValueError(lost)
        interrupt(f"{cell} was interrupted")
    row = files.to_json(summarise(cell, result)).encode()
    with files.Claim(folder):
        files.write_whole(folder / "cell.json", row, own=True)


def _in_a_process(out: Path, cell: Cell) -> None:
    """Make one run in a child process.

    The child leaves the terminal's process group, so that Ctrl-C reaches it once, through its
    parent. If the parent dies, the child interrupts itself.
    """
    os.setpgrp()

    def stop(sentinel: int) -> None:
        wait([sentinel])
        while True:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(SIGNAL_INTERVAL_SECONDS)  # long enough to save a checkpoint

    if parent := parent_process():
        threading.Thread(target=stop, args=(parent.sentinel,), daemon=True).start()
    try:
        unless_interrupted(lambda: make(out, cell, False), lambda: sys.exit(130))
    except (ValueError, OSError) as error:
        print(printable(f"{cell}: {error}"), file=sys.stderr)
        sys.exit(2)


def _make_side_by_side(
    claim: files.Claim, missing: Sequence[Cell], jobs: int, tell: Callable[[str], None]
) -> None:
    """Make the runs in `jobs` processes at a time.

    The run of a small network leaves a GPU idle between kernels; several at a time fill it.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    spawn = get_context("spawn")
    waiting = list(missing)
    busy = {}
    failed = []
    started: list[BaseProcess] = []
    try:
        while waiting or busy:
            while waiting and len(busy) < jobs:
                claim.check()
                cell = waiting.pop(0)
                process = spawn.Process(target=_in_a_process, args=(claim.path, cell))
                started.append(process)
                process.start()
                busy[process.sentinel] = process, cell, time.monotonic()
            for sentinel in wait(list(busy)):
                process, cell, began = busy.pop(sentinel)
                process.join()
                failed += [cell] if process.exitcode else []
                done = len(missing) - len(waiting) - len(busy)
                ending = "failed" if process.exitcode else "done"
                tell(f"[{done}/{len(missing)}] {cell}: {ending}, {time.monotonic() - began:.0f} s")
    finally:
        cut_off = [process for process in started if process.is_alive()]
        for process in cut_off:
            if process.pid is not None:
                os.kill(process.pid, signal.SIGINT)
        for process in cut_off:
            process.join()
    if failed:
        raise ValueError(
            f"{len(failed)} of {len(missing)} runs failed, the first {failed[0]}; the others are "
            f"kept in {shown_path(claim.path)}."
        )


# ---------------------------------------------------------------- rows and verdicts


def _success(experiment: Entry, result: Result, error: str) -> tuple[int, str]:
    """The number of successful seeds, and the rule in words; `error` names a column."""
    rows = result.table
    if experiment.kind == "pde":
        count = sum(row[error] is not None and row[error] < 0.1 for row in rows)
        return count, "solution error < 10 %"
    y = np.asarray(result.samples.terms[0].y)
    return result.success(below=0.01 * float(np.var(y))).count, "true loss < 1 % of the variance"


def summarise(cell: Cell, result: Result) -> Row:
    """The row of a finished run: best seed, medians, worst, failures, successes and the bound."""
    experiment = CATALOGUE[cell.experiment]
    rows = result.table
    run = result.run
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
    if cell.model == "sapm" and holds is not False:
        # the certificate holds at the end; check the bound at every record of every seed
        holds = None if ratio is None else ratio <= 1 + ROUNDING
    row = asdict(cell) | {
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
        "largest_stated_ratio": stated_ratio(cell, result),
        "holds": holds,
        "non_affine": non_affine(result),
        "curves": curves(result),
        "off_sample": off_sample(result) if cell.experiment == "function_1d" else None,
        "env": environment(),
    }
    return cast(Row, row)


def stated_ratio(cell: Cell, result: Result) -> float:
    """The largest ratio of the true loss to the paper's L · loss or d L(L+1) · loss, over all
    records of all seeds. d is the number of coordinates, time included.

    Parameters
    ----------
    cell : the run.
    result : what it gave.
    """
    depth = cell.size[0]
    factor = depth
    if CATALOGUE[cell.experiment].kind == "pde":
        factor = len(result.samples.names) * depth * (depth + 1)
    history = result.history
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = history["mean_squared_loss"] / (factor * history["loss"])
    return float(np.max(ratios[np.isfinite(ratios)], initial=0.0))


def curves(result: Result, count: int = CURVE_RECORDS) -> Curves:
    """The minimised loss of all seeds and the true loss of the best, at up to `count` records."""
    history = result.history
    run = result.run
    records = history["loss"].shape[1]
    shown = np.unique(np.round(np.linspace(0, records - 1, min(records, count))).astype(int))

    def four_digits(losses: np.ndarray) -> list[float | None]:
        return [None if not np.isfinite(loss) else float(f"{loss:.4g}") for loss in losses]

    return {
        "iteration": history["iteration"].max(0)[shown].tolist(),
        "loss": [four_digits(loss[shown]) for loss in history["loss"]],
        "true": four_digits(history["mean_squared_loss"][run.best][shown]),
        "best": run.best,
        "bound": run.certificate(run.best).bound,
    }


def non_affine(result: Result) -> list[float]:
    """How far every seed is from an affine function of its inputs: 1 - R² of the affine fit.

    The least-squares fit is to the network's values at the training points. The share is 0 for a
    constant (to a millionth) and NaN where a value is not finite.
    """
    x = np.concatenate([np.asarray(term.x.value) for term in result.samples.terms])
    affine = np.column_stack([x, np.ones(len(x))])
    shares = []
    for u in result.seeds:
        value = u(x)
        if not np.isfinite(value).all():
            shares.append(float("nan"))
            continue
        value = value / max(1.0, np.abs(value).max())
        misfit = value - affine @ np.linalg.lstsq(affine, value, rcond=None)[0]
        if np.ptp(value) <= AFFINE_TOLERANCE:
            shares.append(0.0)
            continue
        shares.append(float(np.sum(misfit**2) / np.sum((value - value.mean()) ** 2)))
    return shares


def off_sample(result: Result) -> OffSample:
    """The largest error of function_1d between the training points, over all seeds."""
    x = np.asarray(result.samples.terms[0].x.value)[:, 0]
    fine = np.linspace(x.min(), x.max(), FINE_POINTS)
    exact = np.sin(fine**2)
    errors = np.array([np.abs(u(x=fine) - exact) for u in result.seeds])
    seed, k = (int(index) for index in np.unravel_index(errors.argmax(), errors.shape))
    near = np.flatnonzero(np.abs(fine - fine[k]) < OFF_SAMPLE_HALF_WIDTH)[::10]
    return {
        "seed": result.run.seeds[seed],
        "x": float(fine[k]),
        "error": float(errors[seed, k]),
        "at": fine[near].tolist(),
        "network": result.seeds[seed](x=fine[near]).tolist(),
        "points": x[np.abs(x - fine[k]) < OFF_SAMPLE_HALF_WIDTH].tolist(),
    }


# the variance of the target, the loss at which the paper's LS is stuck
PLATEAU = {"function_1d": 7.05e-2, "function_10d": 6.05e-4}
LARGEST_TARGET = float(np.sin(1))  # the maximum of |sin(x²)| on [-1, 1], function_1d
VERDICTS = """\
A verdict compares the best seed with the paper's best seed, quantity by quantity, and gives the
ratio of the two. "reproduced" means a ratio of at most 10 (the paper's order of magnitude, or
better) where at least one seed succeeds; the median of all seeds stands beside it. A spike is an
error between the training points above 10 times the largest value of the target. PM is
inconsistent, as in the paper, where the true loss is at least 1000 times the minimised loss; this
says nothing of the size of the losses, so their ratios to the paper's are given as well. For LS,
the verdict counts the seeds that are stuck (final loss at least 10 % of the initial loss, the
paper's rule) or diverged, and those at the plateau, which is the variance of the target."""


def verdict(row: Row) -> str:
    """Whether a row reproduces the paper's best seed to its order of magnitude, in a sentence.

    `VERDICTS` states the rule. Where a quantity is not reproduced, the sentence says what was
    measured.
    """
    if row["model"] == "ls":
        return _stuck(row)
    best = row["best"]
    printed = paper_row(row)
    error = "solution_error" if "solution_error" in best else "test_error"
    factors = {
        "minimised loss": best["loss"] / printed["actual_loss"],
        "true loss": best["mean_squared_loss"] / printed["mean_squared_loss"],
        error.replace("_", " "): best[error] / printed[error],
    }
    bad = {
        name: factor
        for name, factor in factors.items()
        if not factor <= REPRODUCED_FACTOR or row["success"] == 0
    }
    good = {name: factor for name, factor in factors.items() if name not in bad}

    def times(quantities: dict[str, float]) -> str:
        return ", ".join(f"{name} × {factor:.2g}" for name, factor in quantities.items())

    median = f"; median {error.replace('_', ' ')} × {row['median'][error] / printed[error]:.2g}"
    if row["model"] == "pm":
        ratio = best["mean_squared_loss"] / best["loss"]
        theirs = printed["mean_squared_loss"] / printed["actual_loss"]
        outcome = "inconsistent" if ratio >= INCONSISTENT_RATIO else "not inconsistent"
        both = f"true / minimised loss {ratio:.1e} (paper {theirs:.1e})"
        return f"{outcome}: {both}; {times(factors)}{median}"
    if not bad:
        return f"reproduced: {times(good)}{median}"
    if "non_affine" in row and all(share < AFFINE_SHARE for share in row["non_affine"]):
        measured = "every seed is constant or affine"
    elif row["success"] == 0:
        measured = f"no seed succeeds ({row['success_means']})"
    elif list(bad) == ["test error"]:
        measured = _spike(row)
    else:
        measured = _pace(row)
    rest = f"; reproduced: {times(good)}" if good else ""
    return f"not reproduced: {times(bad)}; {measured}{rest}{median}"


def _spike(row: Row) -> str:
    """The largest error between the training points, over all seeds, if it counts as a spike."""
    off = row.get("off_sample")
    if not off or not off["error"] > 10 * LARGEST_TARGET:
        return "see the median"
    whose = (
        "the best seed"
        if off["seed"] == row["best_seed"]
        else f"seed {off['seed']}, not the best one,"
    )
    return f"{whose} has a spike of {off['error']:.1e} at x = {off['x']:.4f}"


def _pace(row: Row) -> str:
    """By which factor the loss of the best seed falls in the last nine tenths of the iterations."""
    drawn = row["curves"]
    loss = np.array(drawn["loss"][drawn["best"]], float)
    late = int(np.searchsorted(drawn["iteration"], 0.1 * drawn["iteration"][-1]))
    return (
        f"the best seed's loss falls by a factor {loss[late] / loss[-1]:.2g} in the last nine "
        "tenths of the iterations"
    )


def paper_row(row: Row) -> dict:
    """What the paper prints for the best seed of this model and size."""
    depth, width = row["size"]
    return paper_tables()["best_seed"][row["experiment"]][f"{depth},{width}"][row["model"].upper()]


def _stuck(row: Row) -> str:
    """How many seeds of LS are stuck, how many diverged and how many end at the plateau."""
    finals = [(initial, final) for initial, final in row["initial_final"]]
    diverged = sum(not final <= initial for initial, final in finals)
    words = f"{row['failed'] - diverged} of {row['seeds']} seeds stuck"
    words += f", {diverged} diverged" if diverged else ""
    if plateau := PLATEAU.get(row["experiment"]):
        count = sum(abs(final / plateau - 1) < PLATEAU_TOLERANCE for _, final in finals)
        words += f", {count} at the plateau {plateau:.2e}"
    return words
