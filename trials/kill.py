"""Runs that are killed or stopped at random moments and continued equal uninterrupted runs.

    PYTHONPATH=. python trials/kill.py --runs 100 --signal kill

Each run is one of the combinations, in turn. It is ended one to three times: at any moment since
its process started, at any moment since training began, or within 10 ms of a checkpoint that was
counted to. Then `sapm resume` finishes it, and every array and every line it has written is
compared with those of a run that was left alone.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from combinations import COMBINATIONS, Combination
from common import (
    Cores,
    Place,
    Process,
    Terminal,
    checkpoints,
    differences,
    jobs_option,
    newest,
    side_by_side,
    until,
    verdict,
)

from sapm.results.files import read

SIGNALS = {
    "kill": signal.SIGKILL,
    "int": signal.SIGINT,
    "term": signal.SIGTERM,
    "hup": signal.SIGHUP,  # by closing its terminal
}
CODES = {"kill": -9, "int": 130, "term": 143, "hup": 129}
TRIES = 8  # for a moment within the run: a machine is not always as fast


def left_alone(place: Place, combination: Combination, cores: Cores) -> dict:
    """The run that others are compared with, and how long it takes, compilations aside: they are in
    the cache from then on.
    """
    out = place.path / "whole" / combination.name.replace(" ", "_")
    with cores.taken() as mine:
        process = place.start(combination.run(out), mine)
        begun = until(lambda: newest(out, "**/history.jsonl") > 0, process)
        start = time.monotonic() - process.began
        code = process.end()
    if not begun or code not in (0, 3):
        raise RuntimeError(f"{combination.name} ended with {code}: {process.errors}")
    logs = [
        [json.loads(line)["seconds"] for line in file.read_text().splitlines()]
        for file in out.glob("**/history.jsonl")
    ]
    training = 0.5 + sum(log[-1] - log[0] for log in logs)
    return {
        "folder": out,
        "code": code,
        "start": start,
        "training": training,
        "records": sum(map(len, logs)),
    }


def interrupted(
    place: Place,
    combination: Combination,
    out: Path,
    whole: dict,
    kind: str,
    rng,
    scale: float,
    mine,
) -> dict:
    """Start or continue a run and end it at a random moment: what came of it."""
    arguments = combination.resume(out) if checkpoints(out) else combination.run(out)
    before = newest(out, "**/history.jsonl")
    saved = newest(out, "**/checkpoint/latest.sapm")
    process = place.start(arguments, mine, terminal=Terminal() if kind == "hup" else None)
    mode = rng.choice(
        ["start", "clock", "checkpoint"], p=[0.15, 0.35, 0.5] if kind == "kill" else [0, 0.5, 0.5]
    )
    event = {"moment": str(mode), "resumed": arguments[0] == "resume"}
    if mode == "start":
        event["after"] = float(rng.uniform(0, whole["start"] * 1.1))
        time.sleep(event["after"])
    else:
        until(lambda: newest(out, "**/history.jsonl") > before, process)
        if mode == "clock":
            event["after"] = scale * float(rng.uniform(0, whole["training"]))
            time.sleep(event["after"])
        else:
            event["after"], seen = (
                max(1, int(scale * rng.integers(1, whole["records"]))),
                [saved, 0],
            )

            def counted() -> bool:
                now = newest(out, "**/checkpoint/latest.sapm")
                seen[:] = [now, seen[1] + (now != seen[0])]
                return seen[1] >= event["after"]

            until(counted, process)
            time.sleep(float(rng.uniform(0, 0.01)))
    process.send(SIGNALS[kind])
    event["code"] = process.end()
    event["hit"] = event["code"] == CODES[kind]
    ended = [
        json.loads(file.read_text()) for file in out.glob("**/summary.json")
    ]  # after its end a signal finds no handler
    late = len(ended) == len(combination.models.split(",")) and "interrupted" not in str(ended)
    event["wrong"] = "" if late else _wrong(event, kind, process, whole)
    for file in checkpoints(out):
        read(file)  # whole, or an error
    return event


def _wrong(event: dict, kind: str, process: Process, whole: dict) -> str:
    """A sentence about an end that is neither the one asked for nor the run's own."""
    if event["code"] not in (CODES[kind], whole["code"]):
        return f"ended with {event['code']}: {process.last}"
    if "Traceback" in process.errors:
        return f"a traceback: {process.last}"
    heard = kind not in ("kill", "hup")  # a closed terminal shows nothing
    if event["hit"] and heard and "sapm: interrupted" not in process.errors:
        return f"said nothing of an interrupt: {process.last}"
    return ""


def one_run(
    place: Place,
    number: int,
    combination: Combination,
    kind: str,
    whole: dict,
    cores: Cores,
    seed: int,
) -> dict:
    rng = np.random.default_rng([seed, number, list(SIGNALS).index(kind)])
    out = place.path / f"{kind}-{number}"
    wanted = int(rng.choice([1, 1, 2, 3]))
    found = {"run": number, "combination": combination.name, "signal": kind, "events": []}
    with cores.taken() as mine:
        for attempt in range(TRIES):
            shutil.rmtree(out, ignore_errors=True)
            found["events"] = [
                interrupted(place, combination, out, whole, kind, rng, 0.7**attempt, mine)
            ]
            while found["events"][-1]["hit"] and len(found["events"]) < wanted:
                found["events"].append(
                    interrupted(place, combination, out, whole, kind, rng, 0.7**attempt, mine)
                )
            if found["events"][0]["hit"]:
                break
        last = place.start(
            combination.resume(out) if checkpoints(out) else combination.run(out), mine
        )
        code = last.end()
    found["hits"] = sum(event["hit"] for event in found["events"])
    found["differences"] = differences(whole["folder"], out, combination.code)[:8]
    found["wrong"] = [event["wrong"] for event in found["events"] if event["wrong"]]
    if code != whole["code"] or "Traceback" in last.errors:
        found["wrong"].append(f"the last resume ended with {code}: {last.last}")
    found["equal"] = not found["differences"] and not found["wrong"] and found["hits"] > 0
    if found["equal"]:
        shutil.rmtree(out, ignore_errors=True)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20, help="for each signal")
    parser.add_argument(
        "--signal", default="kill", help=f"of {', '.join(SIGNALS)}; several with commas, or all"
    )
    parser.add_argument("--only", default="", help="combinations with this in their name")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-cache", action="store_true", help="every process compiles for itself")
    parser.add_argument("--keep", action="store_true", help="leave the folder of the trial")
    jobs_option(parser)
    given = parser.parse_args(arguments)
    began = time.monotonic()
    kinds = list(SIGNALS) if given.signal == "all" else given.signal.split(",")
    names = [name for name in COMBINATIONS if given.only in name]
    order = [names[k] for k in np.random.default_rng(given.seed).permutation(len(names))]
    plan = [(i, order[i % len(order)], kind) for kind in kinds for i in range(given.runs)]
    used = list(dict.fromkeys(name for _, name, _ in plan))
    cores = Cores(given.jobs)
    folder = Path(tempfile.mkdtemp(prefix="sapm-kill-"))
    place = Place(folder, not given.no_cache)
    try:

        def tell(k: int, found) -> None:
            print(
                f"  left alone {k}/{len(used)}: {found['training']:.1f} s, {found['folder'].name}",
                flush=True,
            )

        wholes = side_by_side(
            lambda name: left_alone(place, COMBINATIONS[name], cores), used, given.jobs, tell
        )
        whole = dict(zip(used, wholes, strict=True))

        def show(k: int, run) -> None:
            ends = " ".join(f"{e['moment']}:{e['after']:.3g}→{e['code']}" for e in run["events"])
            bad = "; ".join(run["wrong"] + run["differences"]) or (
                "" if run["hits"] else "never hit"
            )
            equal = "equal" if run["equal"] else "NOT EQUAL"
            print(
                f"{k:4d}/{len(plan)} {run['signal']:4} {run['combination']:42} {equal:9} {ends} "
                f"{bad}",
                flush=True,
            )

        def work(item):
            return one_run(
                place, item[0], COMBINATIONS[item[1]], item[2], whole[item[1]], cores, given.seed
            )

        runs = side_by_side(work, plan, given.jobs, show)
    finally:
        if not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
    equal = sum(run["equal"] for run in runs)
    hits = sum(run["hits"] for run in runs)
    codes = {
        kind: sorted(
            {e["code"] for run in runs for e in run["events"] if e["hit"] and run["signal"] == kind}
        )
        for kind in kinds
    }
    sentence = (
        f"{equal} of {len(runs)} runs of {len(used)} combinations, ended {hits} times by "
        f"{', '.join(kinds)} "
        f"(exit codes {', '.join(str(c) for k in kinds for c in codes[k])}), equal to the "
        "uninterrupted run bit for bit"
    )
    figures = {
        "runs": runs,
        "equal": equal,
        "hits": hits,
        "jobs": given.jobs,
        "cores": os.cpu_count(),
    }
    return verdict("kill", equal == len(runs), sentence, figures, given.out, began)


if __name__ == "__main__":
    sys.exit(main())
