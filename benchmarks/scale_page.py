"""The tables and the figure of docs/scale.md, from files that benchmarks/scale.py wrote."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def rows_of(files: list[dict], part: str) -> list[tuple[str, dict]]:
    return [(file["machine"], row) for file in files for row in file["parts"].get(part, [])]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def duration(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def exponent(rows: list[dict], by: str, least: float) -> float | None:
    """The slope of log(seconds) over log(by), by least squares."""
    points = [(math.log(r[by]), math.log(r["seconds"])) for r in rows if r[by] >= least]
    if len(points) < 2:
        return None
    mx, my = (sum(p[k] for p in points) / len(points) for k in (0, 1))
    return sum((x - mx) * (y - my) for x, y in points) / sum((x - mx) ** 2 for x, _ in points)


def growth(files: list[dict], part: str, by: str, least: float, label: str) -> str:
    out = []
    for file in files:
        rows = file["parts"].get(part, [])
        if rows:
            body = [
                [f"{r[by]:,}", duration(r["seconds"]), f"{r['compile_seconds']:.1f} s"]
                for r in rows
            ]
            found = exponent(rows, by, least)
            count = rows[-1].get("passes")
            last = (
                ""
                if found is None
                else f"\n\nTime grows like {label}^{found:.2f} from {label} = {least:,.0f} on."
            )
            last += (
                f" XLA counts {count:.0f} arrays of N × M read or written a layer." if count else ""
            )
            out.append(
                f"**{file['machine']}**, JAX {file['jax']}\n\n"
                + table([label, "a sweep", "compilation"], body)
                + last
            )
    return "\n\n".join(out)


def seeds(files: list[dict]) -> str:
    rows = rows_of(files, "seeds")
    first = {m: r["seconds"] for m, r in rows if r["seeds"] == 10}
    return table(
        ["machine", "seeds", "a sweep of all", "relative to 10 seeds"],
        [
            [m, str(r["seeds"]), duration(r["seconds"]), f"{r['seconds'] / first[m]:.2f} ×"]
            for m, r in rows
        ],
    )


def processes(files: list[dict]) -> str:
    rows = rows_of(files, "processes")
    alone = {(m, r["n"]): r["seconds"] for m, r in rows if r["processes"] == 1}
    return table(
        ["machine", "samples", "processes, a core each", "a sweep", "speed-up"],
        [
            [
                m,
                f"{r['n']:,}",
                str(r["processes"]),
                duration(r["seconds"]),
                f"{alone[m, r['n']] / r['seconds']:.2f}",
            ]
            for m, r in rows
        ],
    )


def crossing(files: list[dict]) -> str:
    rows = rows_of(files, "crossing")

    def words(r):
        return ", ".join(f"{kind} {count:,} bytes" for kind, count in r["bytes"].items())

    return table(
        ["samples", "devices", "a sweep moves"],
        [[f"{r['n']:,}", str(r["devices"]), words(r)] for _, r in rows],
    )


def wide(files: list[dict]) -> str:
    rows = rows_of(files, "wide")
    head = [
        "machine",
        "network, samples",
        "a sweep",
        "matrix products of it",
        "its rate",
        "rate of large products",
        "share",
    ]
    body = []
    for m, r in rows:
        rate = r["flops"] / r["seconds"]
        size = f"({r['depth']}, {r['width']}), {r['n']:,}"
        cells = [
            f"{r['flops'] / 1e12:.2f} Tflop",
            f"{rate / 1e12:.1f} Tflop/s",
            f"{r['product_rate'] / 1e12:.1f} Tflop/s",
        ]
        body.append([m, size, duration(r["seconds"]), *cells, f"{rate / r['product_rate']:.0%}"])
    return table(head, body)


def case2(files: list[dict]) -> str:
    body = [
        [
            m,
            duration(r["seconds"]),
            duration(r["loop_seconds"]),
            f"{r['loss']:.2e}",
            f"{r['test_error']:.2e}",
        ]
        for m, r in rows_of(files, "case2")
    ]
    return table(
        [
            "machine",
            "10 seeds, 50,000 sweeps",
            "of these, in the loop",
            "best loss",
            "its test error",
        ],
        body,
    )


def dual(files: list[dict]) -> str:
    def peak(r):
        return "–" if not r["peak_bytes"] else f"{r['peak_bytes'] / 1e9:.1f} GB"

    body = [
        [
            m,
            f"{r['n']:,}",
            duration(r["seconds"]),
            peak(r),
            f"{r['losses'][0]:.1e} → {r['losses'][-1]:.1e}",
        ]
        for m, r in rows_of(files, "dual")
    ]
    return table(["machine", "samples", "a step", "peak memory", "loss in 3 steps"], body)


def precision(files: list[dict]) -> str:
    rows = rows_of(files, "precision")
    timed = [(m, r) for m, r in rows if "seconds" in r]
    double = {(m, r["n"], r["width"]): r["seconds"] for m, r in timed if r["precision"] == "double"}
    body = []
    for m, r in timed:
        gain = double[m, r["n"], r["width"]] / r["seconds"]
        body.append(
            [
                m,
                f"({r['depth']}, {r['width']}), {r['n']:,}",
                r["precision"],
                duration(r["seconds"]),
                f"{gain:.2f} ×",
            ]
        )
    out = table(["machine", "network, samples", "precision", "a sweep", "faster"], body)
    trained = [(m, r) for m, r in rows if "loss" in r]
    if trained:

        def middle(r, k):
            return sorted(seed[k] for seed in r["loss"])[len(r["loss"]) // 2]

        head = ["machine", "precision", *(f"{i:,} sweeps" for i in trained[0][1]["iteration"][1:])]
        body = [
            [m, r["precision"], *(f"{middle(r, k):.2e}" for k in range(1, len(r["iteration"])))]
            for m, r in trained
        ]
        out += "\n\nMedian loss of 5 seeds, (6, 20), 1,000 samples:\n\n" + table(head, body)
    return out


WRITERS: dict[str, Callable[[list[dict]], str]] = {
    "samples": lambda files: growth(files, "samples", "n", 1e4, "N"),
    "depth": lambda files: growth(files, "depth", "depth", 20, "L"),
    "seeds": seeds,
    "processes": processes,
    "crossing": crossing,
    "wide": wide,
    "case2": case2,
    "dual": dual,
    "precision": precision,
}


def figure(files: list[dict]) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": "sapm",
            "svg.fonttype": "none",
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    from matplotlib.figure import Figure

    made = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = made.subplots(1, 2)
    for axes, part, by, label in (
        (left, "samples", "n", "samples N"),
        (right, "depth", "depth", "layers L"),
    ):
        for file in files:
            rows = file["parts"].get(part, [])
            if rows:
                axes.loglog(
                    [r[by] for r in rows],
                    [r["seconds"] for r in rows],
                    "o-",
                    label=f"{file['machine'].replace(', AMD EPYC', '')}: a sweep",
                )
                axes.loglog(
                    [r[by] for r in rows],
                    [r["compile_seconds"] for r in rows],
                    "s:",
                    label="compilation",
                    alpha=0.6,
                )
        axes.set(xlabel=label, ylabel="seconds")
        axes.grid(alpha=0.25, which="both", linewidth=0.5)
        axes.legend(frameon=False, fontsize=8)
    path = DOCS / "figures" / "scale.svg"
    made.savefig(path, metadata={"Date": None})
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def write(files: list[dict]) -> None:
    """Put the tables between the marks that docs/scale.md has for them."""
    page = DOCS / "scale.md"
    text = page.read_text()
    for name, make in WRITERS.items():
        if rows_of(files, name):
            text, count = re.subn(
                rf"(<!-- {name} -->\n).*?(<!-- end -->)",
                lambda m, make=make: m.group(1) + make(files) + "\n" + m.group(2),
                text,
                flags=re.S,
            )
            if count != 1:
                raise SystemExit(
                    f"docs/scale.md has no place for {name}: <!-- {name} --> … <!-- end -->"
                )
    page.write_text(text)
    figure(files)
    print(f"written: {page}")
