"""Fuzz the command line, run configurations, problems and data with wrong and odd input.

    PYTHONPATH=. python trials/fuzz.py --cases 10000 --jobs 8 --out fuzz.json

(`--part cli`, `config`, `problem` or `data`: one of them alone.)

A case passes if it ends within 60 seconds with

* a result whose numbers are finite, or whose table, reasons or certificate name what is not; or
* a ValueError or TypeError (for files an OSError) in one sentence without words of the libraries
  below (`harness.INTERNAL`); or * what the user's own function raised, as it was raised;

on the command line with the exit code 0, 2, 3 or 4, where 2 prints one line `sapm: …` or the usage,
`--json` prints JSON and nothing prints a traceback. Nothing may be written outside the case's
folder, and no program started.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [str(ROOT), *(p for p in sys.path if Path(p or ".").resolve() != ROOT / "trials")]

from trials import harness  # noqa: E402

PARTS = {"cli": 0.3, "config": 0.2, "problem": 0.3, "data": 0.2}  # and their shares of all cases
BATCH = 25  # examples that one call of hypothesis makes


class Trial:
    """In a worker: a case is a batch of examples of one part, drawn from the batch's number."""

    def __init__(self, scratch: Path, plan: list[tuple[str, int]], seed: int):
        import warnings

        warnings.simplefilter("ignore")
        from trials import fuzz_command, fuzz_data, fuzz_problem

        self.scratch = scratch
        self.plan = plan
        self.seed = seed
        self.parts: dict = {}
        self.makers = {
            "cli": fuzz_command.Command,
            "config": fuzz_command.Configuration,
            "problem": fuzz_problem.Problem,
            "data": fuzz_data.Data,
        }
        for part in dict.fromkeys(part for part, _ in plan):
            self.parts[part] = self.makers[part](scratch / part)
        self.watch = harness.Watch(scratch)

    def __call__(self, case: int) -> dict:
        import hypothesis

        part, count = self.plan[case]
        one = self.parts[part]
        examples = []
        settings = hypothesis.settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )

        @hypothesis.seed(hash((self.seed, case)))
        @settings
        @hypothesis.given(one.strategy)
        def check(drawn):
            if len(examples) < count:
                examples.append(self._one(one, drawn))
                harness.alive()

        check()
        bad = [e for e in examples if not e["ok"]]
        return {"ok": not bad, "family": part, "examples": examples}

    def _one(self, one, drawn) -> dict:
        one.prepare()
        self.watch.on = True
        try:
            found = harness.attempt(0, lambda _: one(drawn))
        finally:
            self.watch.on = False
        named = isinstance(drawn, list) and any(word.startswith("mine.py:") for word in drawn)
        broke = self.watch.take(
            "exec of" if named else "\0"
        )  # code is run where the command line names it
        if broke:
            found |= {"ok": False, "why": f"did what it may not: {broke}"}
        if not found["ok"]:
            found["given"] = repr(drawn)[:600]
        return found


def planned(count: int, only: str | None) -> list[tuple[str, int]]:
    """(part, examples) of every batch; parts take turns."""
    left = (
        {part: round(count * share) for part, share in PARTS.items()}
        if only is None
        else {only: count}
    )
    found = []
    while any(left.values()):
        for part, n in left.items():
            if n:
                found.append((part, min(n, BATCH)))
                left[part] -= found[-1][1]
    return found


def main() -> int:
    parser = harness.arguments(__doc__.splitlines()[0], 10_000, counts=("--cases",))  # type: ignore[union-attr]
    parser.add_argument("--part", choices=list(PARTS), help="only this one")
    given = parser.parse_args()
    began = time.monotonic()
    plan = planned(given.count, given.part)
    with harness.shared_programs():
        batches = harness.run(Trial, (plan, given.seed), range(len(plan)), given.jobs)
    found = []
    for batch in batches:
        part = plan[batch["case"]][0]
        for k, example in enumerate(batch.get("examples", [batch])):
            found.append(example | {"case": batch["case"] * BATCH + k, "family": part})
    code = harness.verdict("fuzz", found, began, given.out, seed=given.seed)
    few = sum(n for _, n in plan) - len(found)
    if few > len(found) // 100:
        print(f"FAILED: {few} cases were not run")
    return code or int(few > len(found) // 100)


if __name__ == "__main__":
    sys.exit(main())
