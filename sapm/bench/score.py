"""From cells to rows: medians and worst, successes, times to a target, and who is ahead of whom. Computed, never typed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from sapm.bench.cases import ENTRIES

OURS = "auto"  # what is held against the others
EVEN = 1.0 + 1e-6  # errors within this factor are the same


def _number(x) -> float:
    """Infinite where there is none: a training that failed is worse than any other."""
    return math.inf if x is None or not math.isfinite(x) else float(x)


def _median(values: Iterable[float]) -> float:
    """The middle one, or the mean of the middle two; infinite if one of these is."""
    a = sorted(values)
    if not a:
        return math.nan
    low, high = a[(len(a) - 1) // 2], a[len(a) // 2]
    return low if low == high else (low + high) / 2


def rows_of(
    cells: Sequence[dict],
    case: str,
    methods: Sequence[str] | None = None,
    track: str | None = None,
    missing: Sequence[tuple[str, str]] = (),
) -> list[dict]:
    """A row for every method and track of a case that has cells, the smallest median error first.

    `missing`: (track, method) of those whose package is not installed; they come last, without seeds.
    """
    groups: dict[tuple[str, str], list[dict]] = {}
    for cell in sorted(cells, key=lambda c: c["seed"]):
        if cell["case"] == case and (methods is None or cell["method"] in methods) and track in (None, cell["track"]):
            groups.setdefault((cell["track"], cell["method"]), []).append(cell)
    rows = [_row(track, method, mine) for (track, method), mine in groups.items()]
    rows.sort(key=lambda row: (row["median_error"], row["worst_error"]))
    title = rows[0]["title"] if rows else case
    return rows + [_absent(case, title, *pair) for pair in missing if pair not in groups]


def _row(track: str, method: str, cells: Sequence[dict]) -> dict:
    errors = [_number(cell["error"]) for cell in cells]
    losses = [_number(cell["true_loss"]) for cell in cells]
    ratios = [cell["true_loss"] / cell["loss"] for cell in cells if cell["loss"] and cell["true_loss"] is not None]
    given = [cell["seconds"] for cell in cells if cell["seconds"] is not None]
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
        "seconds": float(np.median(given)) if given else math.nan,
        "compile_seconds": max(compiled) if compiled else None,
        "failed": len(failed),
        "reason": failed[0]["reason"] if failed else "",
    }


def _absent(case: str, title: str, track: str, method: str) -> dict:
    about = {"case": case, "title": title, "track": track, "method": method}
    errors = dict.fromkeys(("median_error", "worst_error", "best_error", "true_loss", "seconds"), math.inf)
    about |= {"label": ENTRIES[method].label, "group": ENTRIES[method].group, "seeds": [], "budget": math.nan} | errors
    return about | {"targets": {}, "ratio": None, "compile_seconds": None, "failed": 0, "reason": "not installed"}


def behind(rows: Sequence[dict], track: str) -> list[str]:
    """A sentence for every row of the track that `auto` is behind, in median or worst."""
    ours = _find(rows, track)
    if ours is None:
        return []
    found = []
    for row in rows:
        if row["track"] == track and row["method"] != OURS and row["group"] != "sanity":
            words = [
                f"{_times(ours[key], row[key])} in {key.removesuffix('_error')}"
                for key in ("median_error", "worst_error")
                if row[key] * EVEN < ours[key]
            ]
            if words:
                found.append(f"{OURS} is behind {row['label']} by {' and '.join(words)}.")
    return found


def ahead(rows: Sequence[dict], track: str = "B") -> dict | None:
    """Whether `auto` is ahead of every peer that trains the same network, in median and in worst; None where it was not run."""
    ours = _find(rows, track)
    peers = [row for row in rows if row["track"] == track and row["group"] == "peer" and row["seeds"]]
    if ours is None or not peers:
        return None
    lost = {
        key: [row["label"] for row in peers if row[key] * EVEN < ours[key] or not ours[key] < math.inf]
        for key in ("median_error", "worst_error")
    }
    nearest = {key: min(peers, key=lambda row: row[key]) for key in lost}
    words = []
    for key, name in (("median_error", "median"), ("worst_error", "worst")):
        row = nearest[key]
        if row[key] * EVEN < ours[key]:
            words.append(f"{name}: behind {', '.join(lost[key])}, the best of them by {_times(ours[key], row[key])}")
        else:
            words.append(f"{name}: ahead, {_times(row[key], ours[key])} below {row['label']}, the best peer")
    return {"case": ours["case"], "peers": len(peers), "ahead": not any(lost.values()), "text": "; ".join(words)}


def _find(rows: Sequence[dict], track: str) -> dict | None:
    return next((row for row in rows if row["track"] == track and row["method"] == OURS), None)


def _times(large: float, small: float) -> str:
    if not math.isfinite(large):
        return "any factor"
    ratio = large / small if small > 0 else math.inf
    return f"{ratio:.2g}×" if ratio < 99.5 else f"{ratio:.0e}×"


def number(x) -> str:
    if x is None or math.isnan(x):
        return "–"
    return "failed" if math.isinf(x) else f"{x:.1e}"


def seconds(x) -> str:
    return "–" if x is None or not math.isfinite(x) else (f"{x:.2g}" if x < 9.95 else f"{x:.0f}")


def table(rows: Sequence[dict]) -> tuple[list[str], list[list[str]]]:
    """Head and body."""
    targets = list(rows[0]["targets"]) if rows else []
    head = ["method", "track", "error, median", "worst", *(f"≤ {t}" for t in targets), *(f"s to {t}" for t in targets)]
    head += ["true loss", "true / actual", "s", "s to compile"]
    body = []
    for row in rows:
        if not row["seeds"]:
            body.append([row["label"], row["track"], row["reason"], *[""] * (len(head) - 3)])
            continue
        reached = [row["targets"][t] for t in targets]
        count = len(row["seeds"])
        line = [row["label"], row["track"], number(row["median_error"]), number(row["worst_error"])]
        line += [f"{r['reached']}/{count}" for r in reached] + [seconds(r["seconds"]) for r in reached]
        ratio = "–" if row["ratio"] is None else f"{row['ratio']:.2g}"
        body.append([*line, number(row["true_loss"]), ratio, seconds(row["seconds"]), seconds(row["compile_seconds"])])
    return head, body
