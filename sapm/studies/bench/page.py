"""Write docs/benchmarks.md and its figures from the folders of one or several benchmarks.

Every number of the page is computed from the cells (`sapm.studies.bench.score`). `HOW`, the
explanation at its head, is the only text that is written by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sapm.errors import shown_path
from sapm.results import files
from sapm.results.page import INK
from sapm.studies.bench.cases import CASES, ENTRIES
from sapm.studies.bench.runner import read
from sapm.studies.bench.score import ahead, behind, number, rows_of, table

LINES = {  # colour and width in the figures, by track and method
    ("B", "auto"): ("#c2410c", 2.4),
    ("B", "optimistix-lm"): ("#1d4ed8", 1.4),
    ("B", "optimistix-lm-cholesky"): ("#1e3a8a", 1.4),
    ("B", "optimistix-bfgs"): ("#111827", 1.4),
    ("B", "scipy-least-squares"): ("#0e7490", 1.4),
    ("B", "scipy-bfgs"): ("#7c3aed", 1.4),
    ("B", "optimistix-lbfgs"): ("#be185d", 1.4),
    ("B", "adam-lbfgs"): ("#15803d", 1.4),
    ("B", "deepxde"): ("#65a30d", 1.4),
    ("A", "sapm-alternating"): ("#a16207", 1.4),
    ("A", "ls-gd"): ("#6b7280", 1.4),
}
HOW = """\
Every method trains the same network in float64, for the same number of seconds of its own clock,
and on the same samples, with two exceptions: DeepXDE draws its own points (see below), and on
equations of second order and nonlinear ones "auto" draws half of its points anew every 15 steps,
and may double them where a nonlinear residual stays large. One process per method, compiled
beforehand on a seed that
is not scored; all methods take turns seed by seed, one at a time on the cores of a job. The clock
counts training alone: compilation is in its own column, and errors are evaluated afterwards from
snapshots. What a method reached later than 5 % after its budget does not count. Scores are on seeds
0, 1, …; choices were made on 100 to 109.

**Track A**: all from the paper's weights U(±M^-1/2), the same numbers for every method with the
same seed. **Track B**: each from its own start: ours as `sapm.solve` chooses, peers He for relu and
Xavier otherwise, scikit-learn its own. On both, peers get the scaled inputs and outputs and the
boundary weight that `sapm.solve` chooses; the paper's methods (alternating, gradient descent) and
scikit-learn train on the data as they are.

**Error**: relative ℓ² at the test points. **True loss**: the mean square of the residuals of the
network, for all methods. **true / minimised**: true loss over minimised loss (1 where they are the
same). **≤ t**: how many seeds reached the error t; **s to t**: the median time to it
("–" where half of them did not). Medians and worst are over seeds; a training that failed counts as
infinite.

**Methods**: ours by `sapm.solve` with one seed, all defaults but the budget (gradient descent: rate
0.1 for functions, 0.01 for PDEs; "auto" may end by its own rule before its time is up). optimistix,
scipy: default settings, tolerances at rounding; scipy's are restarted when they end early, as long
as the loss falls; least_squares is MINPACK's Levenberg-Marquardt, or scipy's trust region where
there are fewer residuals than weights. Adam: rate 1e-3 falling along a cosine over two thirds of
the time, then L-BFGS. DeepXDE (PyTorch, float64): its own recipe and its own points, as many as
ours: tanh, Glorot's uniform weights, Adam at 1e-3 for half of the time, then L-BFGS; loss weights
1, inputs not scaled; as its demos have it, weights 5 / (first losses) for waves, sin and an output
that is 0 on the boundary for Helmholtz, an output that meets the start for Allen-Cahn.
scikit-learn: `MLPRegressor(solver="lbfgs", alpha=0)`. Random features: one layer of random
frequencies, coefficients by least squares; they train no network, and on smooth problems they are
hard to beat."""


def _figure(cells: Sequence[dict], case: str):
    """Error against seconds: the median over seeds, and a band from the best to the worst."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, 4.0), layout="constrained", dpi=110)
    ax = figure.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(colors=INK, labelsize=9)
    ax.set_xscale("log")
    ax.set_yscale("log")
    drawn_cells = [
        cell
        for cell in cells
        if cell["case"] == case and (cell["track"], cell["method"]) in LINES and cell["trace"]
    ]
    first = min((t for cell in drawn_cells for t, _, _ in cell["trace"] if t > 0), default=0.0)
    if not drawn_cells or not 0 < first < drawn_cells[0]["budget"]:
        return None
    at = np.geomspace(first, drawn_cells[0]["budget"], 240)
    drawn = []
    for key in LINES:
        curves = [
            _curve(cell, at) for cell in drawn_cells if (cell["track"], cell["method"]) == key
        ]
        if curves:
            drawn.append((np.median(curves, 0), np.min(curves, 0), np.max(curves, 0), *key))
    # the legend in the order in which the curves end
    for middle, low, high, track, method in sorted(drawn, key=lambda line: -line[0][-1]):
        colour, width = LINES[track, method]
        strong = method == "auto"
        label = f"{ENTRIES[method].label}{' (A)' if track == 'A' else ''}"
        ax.fill_between(at, low, high, color=colour, alpha=0.2 if strong else 0.1, lw=0)
        ax.plot(at, middle, color=colour, lw=width, zorder=5 if strong else 3, label=label)
    ax.set_ylim(top=min(ax.get_ylim()[1], 100.0))
    ax.set_xlabel("seconds of training")
    ax.set_ylabel("relative error")
    ax.grid(True, which="major", color="#e5e7eb", lw=0.6)
    ax.set_axisbelow(True)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    return figure


def _curve(cell: dict, at: np.ndarray) -> np.ndarray:
    """The error of a seed at some times: that of the last snapshot before; 1e9 if not finite."""
    seconds = np.array([t for t, _, _ in cell["trace"]])
    errors = np.array([1e9 if e is None else max(e, 1e-300) for _, e, _ in cell["trace"]])
    return errors[np.searchsorted(seconds, at * (1 + 1e-9), side="right") - 1]


class Bench:
    """The folder of a benchmark: its machine and its cells."""

    def __init__(self, out: str | Path):
        self.path = Path(out)
        if not (self.path / "env.json").exists():
            raise ValueError(
                f"{shown_path(out)} holds no bench: it has no env.json; make one with sapm bench … "
                f"--out {shown_path(out)}."
            )
        self.env = files.read_json(self.path / "env.json")
        self.cells = read(self.path)

    @property
    def device(self) -> str:
        """The name of the GPU, or of the processor where there is none."""
        gpu = [d for d in self.env["devices"] if not d.startswith("cpu")]
        return gpu[0].split(": ", 1)[1] if gpu else self.env["processor"]

    @property
    def about(self) -> str:
        """The machine in a sentence."""
        packages = ", ".join(
            f"{name} {number or 'missing'}" for name, number in self.env["packages"].items()
        )
        side = sorted({cell["jobs"] for cell in self.cells})
        jobs = " or ".join(map(str, side)) or "1"
        return (
            f"{self.device}, {self.env['cores_per_job']} cores a job ({self.env['processor']}), "
            f"{jobs} jobs side by side; Python {self.env['python']}, {packages}; "
            f"{self.env['date']}."
        )

    def cases(self) -> list[str]:
        """The names of the cases that have cells, in the order of `CASES`."""
        present = dict.fromkeys(cell["case"] for cell in self.cells)
        others = [name for name in present if name not in CASES]
        return [name for name in CASES if name in present] + others

    def missing(self, case: str) -> list[tuple[str, str]]:
        """(track, method) of the methods of a case whose package was not installed."""
        rows = CASES[case].rows() if case in CASES else []
        return [(t, m) for t, m in rows if m in self.env.get("not_installed", [])]


def write(
    outs: Sequence[str | Path] | str | Path, file: str | Path = "docs/benchmarks.md"
) -> list[Path]:
    """Write the page, and its figures into figures/ beside it; returns the paths of all files.

    Parameters
    ----------
    outs : one or several folders of benchmarks
    file : the page
    """
    file = Path(file)
    files.check_output(file)
    benches = [Bench(out) for out in ([outs] if isinstance(outs, (str, Path)) else outs)]
    if not any(bench.cells for bench in benches):
        raise ValueError("there are no cells yet; run a case first: sapm bench function_1d.")
    parts = [
        "# Benchmarks",
        "",
        "Written by `sapm bench … --write`; nothing on this page is typed by hand.",
        "",
        HOW,
        "",
    ]
    written = []
    parts += ["## Machines", "", *(f"* {bench.about}" for bench in benches), ""]
    parts += _which_are_ahead(benches)
    parts += _sweep(benches, "Depth", "function_1d, relu, width 10", _is_sweep, "depth")
    parts += _sweep(
        benches,
        "Convection",
        "u_t + β u_x = 0, sin (6,30)",
        lambda c: c["network"]["experiment"].startswith("convection"),
        "β",
    )
    for case in dict.fromkeys(name for bench in benches for name in bench.cases()):
        for k, bench in enumerate(benches):
            if case in bench.cases():
                label = f"bench-{case}" + (f"-{k + 1}" if len(benches) > 1 else "")
                text, figure = _section(bench, case, label, len(benches) > 1)
                parts += text
                if figure is not None:
                    written.append(_save(figure, file.parent / "figures" / f"{label}.svg"))
    files.write_whole(file, ("\n".join(parts).rstrip() + "\n").encode())
    return [file, *written]


def _save(figure, path: Path) -> Path:
    from matplotlib import rc_context

    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": path.stem}):  # the same figure, the same file
        figure.savefig(path, metadata={"Date": None})
    return path


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    return ["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *body)]


def _section(bench: Bench, case: str, label: str, several: bool) -> tuple[list[str], object]:
    """The lines and the figure of a case on a machine.

    The figure is None for cases of the depth sweep, and where nothing was trained.

    Parameters
    ----------
    bench : the folder
    case : the name of the case
    label : the name of the figure's file
    several : whether the page has several machines, so that the title must name this one
    """
    rows = rows_of(bench.cells, case, missing=bench.missing(case))
    seeds = len({cell["seed"] for cell in bench.cells if cell["case"] == case})
    where = f" on {bench.device}, {rows[0]['budget']:g} s" if several else ""
    lines = [
        f"## {rows[0]['title']}{where}",
        "",
        f"{rows[0]['budget']:g} seconds a seed, {seeds} seed{'s' * (seeds != 1)}.",
        "",
    ]
    figure = None
    if case not in CASES or CASES[case].family != "depth":
        figure = _figure(bench.cells, case)
    if figure is not None:
        words = "Error against seconds: median of the seeds, and a band from the best to the worst."
        lines += [
            f"![{rows[0]['title']}: error against seconds](figures/{label}.svg)",
            "",
            words,
            "",
        ]
    main = [row for row in rows if row["group"] != "sanity"]
    if main:
        lines += [*markdown(*table(main)), ""]
    failed = [
        f"{row['label']} ({row['track']}): {row['failed']} of {len(row['seeds'])} failed: "
        f"{row['reason']}"
        for row in rows
        if row["failed"]
    ]
    notes = [
        f"Track {track}: {text}" for track in ("A", "B") for text in behind(rows, track)
    ] + failed
    lines += [*(f"* {text}" for text in notes), *([""] if notes else [])]
    sanity = [row for row in rows if row["group"] == "sanity"]
    if sanity:
        head = ["without a network", "error", "true loss"]
        body = [[r["label"], number(r["median_error"]), number(r["true_loss"])] for r in sanity]
        lines += [*markdown(head, body), ""]
    return lines, figure


def _which_are_ahead(benches: Sequence[Bench]) -> list[str]:
    """For every case, whether auto is ahead of the peers that train the same network, and whether
    all peers that the case names were run.
    """
    body = []
    for bench in benches:
        for case in bench.cases():
            rows = rows_of(bench.cells, case)
            lead = ahead(rows)
            if lead is not None:
                place = [bench.device] if len(benches) > 1 else []
                body.append(
                    [
                        rows[0]["title"],
                        *place,
                        _lead(lead),
                        f"{lead['peers']} of {lead['listed']}",
                        lead["text"],
                    ]
                )
    if not body:
        return []
    head = ["case", *(["machine"] if len(benches) > 1 else []), "ahead", "peers run", "how"]
    words = (
        'Track B: whether "auto" ends below every peer that trains a network of that size with '
        "gradients (random features do not), in the median and in the worst of the seeds, with the "
        'same seconds of training (compilation is not in them). "of all": all peers that the '
        'benchmark lists for the case were run; "of those run": not all of them were.'
    )
    return ["## Which rows are ahead", "", words, "", *markdown(head, body), ""]


def _lead(lead: dict) -> str:
    """The cell that says whether auto is ahead."""
    if not lead["ahead"]:
        return "no"
    return "of all" if lead["peers"] == lead["listed"] else "of those run"


def _is_sweep(cell: dict) -> bool:
    network = cell["network"]
    return (
        network["experiment"] == "function_1d"
        and network["activation"] == "relu"
        and network["width"] == 10
    )


def _sweep(benches: Sequence[Bench], title: str, about: str, belongs, name: str) -> list[str]:
    """A table with a line per method and a column per depth or speed: error, median / worst.

    Parameters
    ----------
    benches : the folders; each with two or more cases of the sweep gets a table
    title, about : the heading and the sentence below it
    belongs : cell → whether it belongs to the sweep
    name : what varies, "depth" or "β"
    """
    lines = []
    for bench in benches:
        swept = [cell for cell in bench.cells if belongs(cell)]
        at = {cell["case"]: _place(cell, name) for cell in swept}
        cases = sorted(at, key=lambda case: at[case])
        if len(cases) < 2:
            continue
        tables = {
            case: {(r["track"], r["method"]): r for r in rows_of(swept, case)} for case in cases
        }
        keys = dict.fromkeys(
            key
            for case in reversed(cases)
            for key in tables[case]
            if ENTRIES[key[1]].group != "sanity"
        )
        body = []
        for key in keys:
            shown = [tables[case].get(key) for case in cases]
            if sum(r is not None for r in shown) > 1:
                cells = [
                    "" if r is None else f"{number(r['median_error'])} / {number(r['worst_error'])}"
                    for r in shown
                ]
                body.append([ENTRIES[key[1]].label, key[0], *cells])
        lines += [
            *([f"{bench.device}:", ""] if len(benches) > 1 else []),
            *markdown(["method", "track", *(f"{name} {at[c]:g}" for c in cases)], body),
            "",
        ]
    return (
        [f"## {title}", "", f"{about}: error, median / worst of the seeds.", "", *lines]
        if lines
        else []
    )


def _place(cell: dict, name: str) -> float:
    return float(
        cell["network"]["depth"]
        if name == "depth"
        else cell["network"]["experiment"].partition(":")[2]
    )
