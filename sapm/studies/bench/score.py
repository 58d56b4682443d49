"""From cells to the rows of a table: median and worst errors, successes, times to a target.

It also says which methods "auto" is ahead of, and which it is behind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from sapm.studies.bench.cases import CASES, ENTRIES

OURS = "auto"  # the method that is compared with the others
EVEN = 1.0 + 1e-6  # errors within this factor count as equal


def _number(x) -> float:
    """x, or infinity where it is missing: a training that failed is worse than any other."""
    return math.inf if x is None or not math.isfinite(x) else float(x)


def _median(values: Iterable[float]) -> float:
    """The median, infinite if one of the middle values is; NaN of nothing."""
    a = sorted(values)
    if not a:
        return math.nan
    low = a[(len(a) - 1) // 2]
    high = a[len(a) // 2]
    return low if low == high else (low + high) / 2


def rows_of(
    cells: Sequence[dict],
    case: str,
    methods: Sequence[str] | None = None,
    track: str | None = None,
    missing: Sequence[tuple[str, str]] = (),
) -> list[dict]:
    """A row for every method and track of a case that has cells, the smallest median error first.

    Parameters
    ----------
    cells : contents of cells, of any cases
    case : the name of the case
    methods, track : restrict the rows; None means all
    missing : (track, method) of the methods whose package is not installed; their rows come last
    """
    groups: dict[tuple[str, str], list[dict]] = {}
    for cell in sorted(cells, key=lambda c: c["seed"]):
        if (
            cell["case"] == case
            and (methods is None or cell["method"] in methods)
            and track in (None, cell["track"])
        ):
            groups.setdefault((cell["track"], cell["method"]), []).append(cell)
    rows = [_row(track, method, group) for (track, method), group in groups.items()]
    rows.sort(key=lambda row: (row["median_error"], row["worst_error"]))
    title = rows[0]["title"] if rows else case
    return rows + [_absent(case, title, *pair) for pair in missing if pair not in groups]


def _row(track: str, method: str, cells: Sequence[dict]) -> dict:
    errors = [_number(cell["error"]) for cell in cells]
    losses = [_number(cell["true_loss"]) for cell in cells]
    ratios = [
        cell["true_loss"] / cell["loss"]
        for cell in cells
        if cell["loss"] and cell["true_loss"] is not None
    ]
    seconds_spent = [cell["seconds"] for cell in cells if cell["seconds"] is not None]
    targets = {}
    for target in cells[0]["targets"]:
        times = [_number(cell["targets"].get(target)) for cell in cells]
        targets[target] = {"reached": sum(t < math.inf for t in times), "seconds": _median(times)}
    failed = [cell for cell in cells if cell["error"] is None]
    compiled = [cell["compile_seconds"] for cell in cells if cell["compile_seconds"] is not None]
    return {
        "case": cells[0]["case"],
        "title": cells[0]["title"],
        "track": track,
        "method": method,
        "label": ENTRIES[method].label,
        "group": ENTRIES[method].group,
        "seeds": [cell["seed"] for cell in cells],
        "budget": cells[0]["budget"],
        "median_error": _median(errors),
        "worst_error": max(errors),
        "best_error": min(errors),
        "targets": targets,
        "true_loss": _median(losses),
        "ratio": float(np.median(ratios)) if ratios else None,
        "seconds": float(np.median(seconds_spent)) if seconds_spent else math.nan,
        "compile_seconds": max(compiled) if compiled else None,
        "failed": len(failed),
        "reason": failed[0]["reason"] if failed else "",
    }


def _absent(case: str, title: str, track: str, method: str) -> dict:
    about = {"case": case, "title": title, "track": track, "method": method}
    errors = dict.fromkeys(
        ("median_error", "worst_error", "best_error", "true_loss", "seconds"), math.inf
    )
    about |= {
        "label": ENTRIES[method].label,
        "group": ENTRIES[method].group,
        "seeds": [],
        "budget": math.nan,
    } | errors
    return about | {
        "targets": {},
        "ratio": None,
        "compile_seconds": None,
        "failed": 0,
        "reason": "not installed",
    }


def behind(rows: Sequence[dict], track: str) -> list[str]:
    """A sentence for every method with a smaller median or worst error than "auto" on a track."""
    ours = _find(rows, track)
    if ours is None:
        return []
    sentences = []
    for row in rows:
        if row["track"] == track and row["method"] != OURS and row["group"] != "sanity":
            words = [
                f"{_times(ours[key], row[key])} in {key.removesuffix('_error')}"
                for key in ("median_error", "worst_error")
                if row[key] * EVEN < ours[key]
            ]
            if words:
                sentences.append(f"{OURS} is behind {row['label']} by {' and '.join(words)}.")
    return sentences


def ahead(rows: Sequence[dict], track: str = "B") -> dict | None:
    """Whether "auto" has smaller median and worst errors than every peer with the same network.

    Returns {"case", "peers", "listed", "ahead", "text"}, or None where "auto" or every peer was not
    run. "peers" are those that ran, "listed" those that the case names.
    """
    ours = _find(rows, track)
    peers = [
        row for row in rows if row["track"] == track and row["group"] == "peer" and row["seeds"]
    ]
    if ours is None or not peers:
        return None
    lost = {
        key: [
            row["label"] for row in peers if row[key] * EVEN < ours[key] or not ours[key] < math.inf
        ]
        for key in ("median_error", "worst_error")
    }
    nearest = {key: min(peers, key=lambda row: row[key]) for key in lost}
    words = []
    for key, name in (("median_error", "median"), ("worst_error", "worst")):
        row = nearest[key]
        if row[key] * EVEN < ours[key]:
            words.append(
                f"{name}: behind {', '.join(lost[key])}, the best of them by "
                f"{_times(ours[key], row[key])}"
            )
        else:
            words.append(
                f"{name}: ahead, {_times(row[key], ours[key])} below {row['label']}, the best peer"
            )
    return {
        "case": ours["case"],
        "peers": len(peers),
        "listed": max(len(peers), _listed_peers(ours["case"], track)),
        "ahead": not any(lost.values()),
        "text": "; ".join(words),
    }


def _listed_peers(case: str, track: str) -> int:
    """How many peers a case names; 0 for a case that is not one of `CASES`."""
    rows = CASES[case].rows() if case in CASES else []
    return sum(at == track and ENTRIES[method].group == "peer" for at, method in rows)


def _find(rows: Sequence[dict], track: str) -> dict | None:
    return next((row for row in rows if row["track"] == track and row["method"] == OURS), None)


def _times(large: float, small: float) -> str:
    """The factor between two errors."""
    if not math.isfinite(large):
        return "any factor"
    ratio = large / small if small > 0 else math.inf
    return f"{ratio:.2g}×" if ratio < 99.5 else f"{ratio:.0e}×"


def number(x: float | None) -> str:
    """An error or loss as text: a dash where there is none, "failed" where it is infinite."""
    if x is None or math.isnan(x):
        return "–"
    return "failed" if math.isinf(x) else f"{x:.1e}"


def seconds(x: float | None) -> str:
    """A time as text: a dash where there is none."""
    return "–" if x is None or not math.isfinite(x) else (f"{x:.2g}" if x < 9.95 else f"{x:.0f}")


def table(rows: Sequence[dict]) -> tuple[list[str], list[list[str]]]:
    """Head and body of the table of a case, as text."""
    targets = list(rows[0]["targets"]) if rows else []
    head = [
        "method",
        "track",
        "error, median",
        "worst",
        *(f"≤ {t}" for t in targets),
        *(f"s to {t}" for t in targets),
    ]
    head += ["true loss", "true / minimised", "s", "s to compile"]
    body = []
    for row in rows:
        if not row["seeds"]:
            body.append([row["label"], row["track"], row["reason"], *[""] * (len(head) - 3)])
            continue
        reached = [row["targets"][t] for t in targets]
        count = len(row["seeds"])
        line = [row["label"], row["track"], number(row["median_error"]), number(row["worst_error"])]
        line += [f"{r['reached']}/{count}" for r in reached] + [
            seconds(r["seconds"]) for r in reached
        ]
        ratio = "–" if row["ratio"] is None else f"{row['ratio']:.2g}"
        body.append(
            [
                *line,
                number(row["true_loss"]),
                ratio,
                seconds(row["seconds"]),
                seconds(row["compile_seconds"]),
            ]
        )
    return head, body
