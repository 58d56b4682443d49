"""Model files with wrong contents under a right checksum: refused in one sentence, or read safely.

    PYTHONPATH=. python trials/records.py --cases 100000 --jobs 8 --out records.json

A small file of every kind of run is made (`trials/honest.py`). A case changes one place of one of
them, sometimes two (`trials/leaves.py`), writes it with `sapm.results.files.write`, and gives it to
`sapm.load`; what loads is evaluated, tabulated and, in some cases, drawn, read by `best_of` and
given to `sapm.resume` for no further iteration. A case passes if

* it is refused by a ValueError or TypeError in one sentence that names the file, has no words of
  the libraries below (`harness.INTERNAL`) and does not call the file undamaged; or
* it loads, every number is finite or reported as not finite, and its numbers are those of the
  honest file, unless the changed part of the file defines them,

and it takes at most 5 seconds of processor time and 500 MB more than four times the file.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:] = [str(ROOT), *(p for p in sys.path if Path(p or ".").resolve() != ROOT / "trials")]

import numpy as np  # noqa: E402

from trials import harness, leaves  # noqa: E402

SECONDS = 5.0  # of processor time, for reading a file
MEGABYTES = 500  # and four times the file

# The parts of a file that define the values of the best network, and those that define the table.
# A change of any other part changes neither.
DEFINE_VALUES = {
    "network", "state", "kept", "history", "chosen", "scores", "status", "names", "fields",
    "parameters", "embedding", "units",
}  # fmt: skip
DEFINE_TABLE = DEFINE_VALUES | {"samples", "reason", "seeds", "sampler"}

# How many of the cases that load go further
BEST_OF = 0.25
RESUME = 0.1
RESUME_UNFINISHED = 0.4
REPORT = 0.003


class Failed(Exception):
    """What is wrong with a case: `kind` in a few words, for a list, and the details."""

    def __init__(self, kind: str, details: str = ""):
        super().__init__(kind, details)
        self.kind = kind
        self.details = details


def check_refusal(error: Exception, path: Path, way: str) -> None:
    """Raise Failed unless an error is a sentence to a user about the file."""
    said = str(error)
    if not isinstance(error, (ValueError, TypeError)):
        raise Failed(f"{way}: {type(error).__name__}", said[:400])
    if "please report" in said or "this version of sapm cannot open it" in said:
        cause = re.search(r"cannot open it \((\w+)", said)
        raise Failed(f"{way}: damage called a bug ({cause[1] if cause else ''})", said[:400])
    if str(path) not in said:
        raise Failed(f"{way}: does not name the file ({type(error).__name__})", said[:400])
    if wrong := harness.ill_said(said.replace(str(path), "FILE")):
        raise Failed(f"{way}: {wrong}", said[:400])


@dataclass
class Numbers:
    """What is compared of a result."""

    values: np.ndarray
    table: str

    @staticmethod
    def of(result: Any, points: np.ndarray) -> Numbers:
        """Use a result as a user does; Failed if a number is not finite and nothing says so."""
        wide = len(result.samples.names)
        x = points if points.shape[1] == wide else np.full((3, wide), 0.25)
        values = np.asarray(result.best(x))
        best = result.rows[result.run.best]
        said = f"{best.status} {best.reason} {result.certificate}"
        reported = re.search(r"non-finite|not finite|overflow", said) is not None
        if not (np.isfinite(values).all() or reported):
            raise Failed("the values are not finite", str(values.ravel()[:4].tolist()))
        if not np.isfinite(list(result.best.parameters.values())).all():
            raise Failed("a parameter is not finite", str(result.best.parameters))
        frame = result.best.frame
        if frame is not None and not np.isfinite(frame).all():
            raise Failed("the frame of the domain is not finite", str(frame))
        if wrong := harness.unnamed(result):
            raise Failed("the table has a number that is not finite", wrong)
        result.best.outside(x)
        repr(result), str(result.summary(estimate=False)), result.success()
        json.dumps(result.config, allow_nan=False)
        return Numbers(values, json.dumps(result.table))


@dataclass
class Honest:
    """An honest file as it loads."""

    kind: Any
    content: leaves.Content
    points: np.ndarray
    numbers: Numbers
    iterations: int


def read_honest(file: Path, kind: Any) -> Honest:
    """Load an honest file."""
    import sapm
    from sapm.results import files

    arrays, about = files.read(file)
    result = sapm.load(file, **kind.known)
    points = result.samples.test.get("x")
    names = result.samples.names
    points = np.full((3, len(names)), 0.25) if points is None else np.asarray(points)[:4]
    return Honest(
        kind,
        leaves.Content(arrays, about),
        points,
        Numbers.of(result, points),
        result.run.iterations,
    )


def check_case(
    honest: Honest,
    chosen: list[tuple[leaves.Place, leaves.Change]],
    path: Path,
    draw: leaves.Draw,
    further: bool = True,
) -> str:
    """Write a changed file and read it. Returns what came of it; Failed if that is not allowed.

    Parameters
    ----------
    honest : the file.
    chosen : the changes.
    path : where the changed file is written.
    draw : the source of random numbers.
    further : whether some of the cases that load go on to the other readers.
    """
    import sapm
    from sapm.results import files

    content = leaves.changed(honest.content, chosen, draw)
    try:
        files.write(path, content.arrays, content.about)
    except (TypeError, ValueError):
        return "not written"
    try:
        with _Bounds(path):
            result = sapm.load(path, **honest.kind.known)
    except Failed:
        raise
    except Exception as error:
        check_refusal(error, path, "load")
        return "refused"
    try:
        with _Bounds(path):
            numbers = Numbers.of(result, honest.points)
    except Failed:
        raise
    except Exception as error:
        raise Failed(f"in use: {type(error).__name__}", str(error)[:400]) from error
    _check_same(honest, chosen, numbers)
    if further:
        _further(honest, chosen, path, draw, result)
    return "loaded"


def _check_same(honest: Honest, chosen: list, numbers: Numbers) -> None:
    """Raise Failed if numbers differ that the changed places do not define."""
    restated = all(change.restated for _, change in chosen)
    sections = {place.section for place, _ in chosen}
    old = honest.numbers
    if restated or not sections & DEFINE_VALUES:
        same = numbers.values.shape == old.values.shape and np.allclose(
            numbers.values, old.values, rtol=1e-9, atol=1e-12, equal_nan=True
        )
        if not same:
            before, after = (a.ravel()[:2].tolist() for a in (old.values, numbers.values))
            raise Failed("other values", f"{before} became {after}")
    if (restated or not sections & DEFINE_TABLE) and numbers.table != old.table:
        raise Failed("another table", f"{old.table[:200]} became {numbers.table[:200]}")


def _further(honest: Honest, chosen: list, path: Path, draw: leaves.Draw, result: Any) -> None:
    """The other readers of a file, for some of the cases; Failed as for `sapm.load`."""
    from sapm.results.result import best_of

    kind = honest.kind
    if not kind.code and draw.random() < BEST_OF:
        u = _guarded("best_of", path, lambda: best_of(path, kind.given.get("activation")))
        values = None if u is None else _guarded("best_of", path, lambda: u(honest.points))
        if (
            values is not None
            and not np.isfinite(values).all()
            and "non-finite" not in repr(result)
        ):
            raise Failed("best_of: the values are not finite", str(values.ravel()[:4].tolist()))
    inert = all(place.section == "env" for place, _ in chosen)
    share = RESUME if kind.at is None else RESUME_UNFINISHED
    if not inert and draw.random() < share:
        check_resume(honest, path)
    if draw.random() < REPORT:
        _guarded("report", path, lambda: result.report(path.with_suffix(".html")), 4 * SECONDS)


def check_resume(honest: Honest, path: Path) -> None:
    """Continue a changed file for no further iteration; Failed if that is not allowed."""
    import sapm

    kind = honest.kind
    if not kind.resumes:
        return
    given = kind.given | {"problem": kind.stated, "progress": False}
    resumed = _guarded(
        "resume", path, lambda: sapm.resume(path, honest.iterations, **given), 4 * SECONDS
    )
    if resumed is not None:
        _guarded("resumed", path, lambda: Numbers.of(resumed, honest.points))


def _guarded(way: str, path: Path, call: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """The answer of a reader, or None if it refused the file in a sentence; else Failed."""
    try:
        with _Bounds(path, seconds, f"{way}: "):
            return call()
    except Failed as failed:
        if not failed.kind.startswith(way):
            raise Failed(f"{way}: {failed.kind}", failed.details) from None
        raise
    except Exception as error:
        check_refusal(error, path, way)
        return None


class _Bounds:
    """A context in which a reader may use so much time and memory."""

    largest_mb = 0.0  # of this process

    def __init__(self, path: Path, seconds: float = SECONDS, way: str = "load: "):
        self.path = path
        self.seconds = seconds
        self.way = way

    def __enter__(self) -> _Bounds:
        _, resident, peak = harness.memory()
        if peak - resident > 2**26:
            harness.reset_peak()
        self.before = resident
        self.began = time.process_time()
        return self

    def __exit__(self, kind, error, trace) -> None:
        seconds = time.process_time() - self.began
        if isinstance(error, harness.Hung):
            return
        grown = (harness.memory()[2] - self.before) / 2**20
        _Bounds.largest_mb = max(_Bounds.largest_mb, grown)
        size = self.path.stat().st_size / 2**20
        used = f"{grown:.0f} MB and {seconds:.1f} s for {size:.1f} MB"
        if grown > MEGABYTES + 4 * size:
            raise Failed(f"{self.way}too much memory", used) from None
        if seconds > self.seconds:
            raise Failed(f"{self.way}too slow", used) from None


# ---------------------------------------------------------------- the trial


class Trial:
    """In a worker: the honest files as they load, and a case at a time."""

    def __init__(self, scratch: Path, folder: str, names: list[str], seed: int):
        import warnings

        warnings.simplefilter("ignore")
        from trials import honest

        kinds = honest.all_kinds()
        self.path = scratch / "a.sapm"
        self.seed = seed
        self.names = names
        self.honest = {}
        for name in names:
            self.honest[name] = read_honest(Path(folder) / f"{name}.sapm", kinds[name])
            harness.alive()
        import matplotlib.pyplot  # noqa: F401  (it makes a folder of its own)

        self.watch = harness.Watch(scratch)

    def __call__(self, case: int) -> dict:
        number, i = divmod(case, len(self.names))
        name = self.names[i]
        honest = self.honest[name]
        chosen = leaves.case(honest.content, number, [self.seed, i])
        draw = np.random.default_rng([self.seed, 3, case])
        found = description(name, chosen)
        _Bounds.largest_mb = 0.0
        self.watch.on = True
        try:
            found |= {"outcome": check_case(honest, chosen, self.path, draw), "ok": True}
        except Failed as failed:
            found |= {"ok": False, "kind": failed.kind, "why": f"{failed.kind}: {failed.details}"}
        finally:
            self.watch.on = False
        found["grown_mb"] = round(_Bounds.largest_mb, 1)
        if broke := self.watch.take(but="open '/proc/self/clear_refs'"):
            found |= {"ok": False, "kind": "forbidden", "why": f"did what it may not: {broke}"}
        return found


def described(case: int, names: list[str], contents: dict[str, leaves.Content], seed: int) -> dict:
    """The file and the changes of a case."""
    number, i = divmod(case, len(names))
    return description(names[i], leaves.case(contents[names[i]], number, [seed, i]))


def description(name: str, chosen: list[tuple[leaves.Place, leaves.Change]]) -> dict[str, Any]:
    """A file and changes of it, as a report has them."""
    return {
        "family": name,
        "changes": [leaves.said([one]) for one in chosen],
        "group": " and ".join(pattern(place) for place, _ in chosen),
    }


def pattern(place: leaves.Place) -> str:
    """A place, with numbers in its name replaced by a star."""
    return re.sub(r"\d+", "*", str(place))


def groups(found: list[dict], seed: int) -> list[dict]:
    """The failures by kind and place, the most frequent first, each with one example."""
    gathered: dict[tuple[str, str], dict] = {}
    for one in found:
        if one["ok"]:
            continue
        kind = one.get("kind", str(one.get("why", ""))[:40])
        single = len(one["changes"]) == 1
        key = (kind, one["group"])
        group = gathered.setdefault(
            key, {"kind": kind, "place": key[1], "count": 0, "changes": [], "files": []}
        )
        group["count"] += 1
        what = " and ".join(one["changes"])
        family = one["family"]
        for where, entry in (("changes", what), ("files", family)):
            if entry not in group[where]:
                group[where].append(entry)
        if "why" not in group or (single and len(one["why"]) < len(group["why"])):
            example = f"case {one['case']} of seed {seed}: {family}: {what}"
            group |= {"why": one["why"], "example": example}
    return sorted(gathered.values(), key=lambda group: (group["kind"], -group["count"]))


def main() -> int:
    parser = harness.arguments(__doc__.splitlines()[0], 100_000, counts=("--cases", "--count"))  # type: ignore[union-attr]
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--only", default="", help="kinds of files with this in their name")
    parser.add_argument("--files", type=Path, help="a folder that keeps the honest files")
    given = parser.parse_args()
    began = time.monotonic()
    folder = given.files or Path(tempfile.mkdtemp(prefix="sapm-honest-"))
    try:
        with harness.shared_programs():
            from sapm.results.files import read
            from trials import honest

            kinds = {k: kind for k, kind in honest.all_kinds().items() if given.only in k}
            names = list(kinds)
            folder.mkdir(exist_ok=True)
            honest.make(folder, kinds)
            contents = {name: leaves.Content(*read(folder / f"{name}.sapm")) for name in names}
            cases = range(given.first, given.first + given.count)
            found = harness.run(Trial, (str(folder), names, given.seed), cases, given.jobs)
    finally:
        if given.files is None:
            shutil.rmtree(folder, ignore_errors=True)
    for one in found:
        if "group" not in one:  # a worker that was ended could not say which case it was
            one |= described(one["case"], names, contents, given.seed)
    failures = groups(found, given.seed)
    for group in failures:
        print(f"{group['count']:5d} {group['kind']} | {group['place']} | {group['why'][:160]}")
    return harness.verdict("records", found, began, given.out, seed=given.seed, groups=failures)


if __name__ == "__main__":
    sys.exit(main())
