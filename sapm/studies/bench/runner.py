"""Run the benchmark: one file per training (a cell), made by one process per method.

All methods of a case take turns, seed by seed. Each job has cores of its own.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from sapm.errors import number, shown_path
from sapm.results import files
from sapm.results.files import environment
from sapm.studies.bench.cases import ENTRIES, WARM_UP_SEED, Case, chosen_rows, select
from sapm.studies.bench.score import rows_of

CORES = 2  # of a job
COMPILING = 300.0  # seconds allowed for a warm-up, beyond those of an order
FAILURES = 2  # in a row; then the method is given up on the case


def patience(seconds: float) -> float:
    """The seconds after which a process that trains for `seconds` counts as hanging."""
    return 5 * seconds + 120


@dataclass(frozen=True)
class Cell:
    """One training: a method on a case, from the weights of a track, with a seed."""

    case: Case
    track: str
    method: str
    seed: int

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.case.name}.{self.track}.{self.method}.{self.seed}.json"

    def __str__(self) -> str:
        return f"{self.case.name} {self.track} {self.method} seed {self.seed}"


def cells(case: Case, methods: Sequence[str] | None = None, track: str | None = None) -> list[Cell]:
    """The cells of a case, seed by seed with all methods in turn.

    A slow hour of the machine thus affects all methods. Those of the group "sanity" have one seed.

    Parameters
    ----------
    case : the case.
    methods, track : only these; None stands for all.
    """
    rows = chosen_rows(case, methods, track)
    return [
        Cell(case, t, m, seed)
        for seed in range(case.seeds)
        for t, m in rows
        if not (seed and ENTRIES[m].group == "sanity")
    ]


# ---------------------------------------------------------------- the machine


def machine() -> dict:
    """What the measurements depend on: versions, processor, devices, cores and date."""
    env = environment()
    for name in ("optimistix", "lineax", "scikit-learn", "deepxde", "torch"):
        try:
            env["packages"][name] = installed(name)
        except PackageNotFoundError:
            env["packages"][name] = None
    missing = sorted(
        e.name
        for e in ENTRIES.values()
        if any(find_spec(package) is None for package in e.needs.split())
    )
    return env | {
        "cores_per_job": min(CORES, len(_cores())),
        "date": date.today().isoformat(),
        "not_installed": missing,
    }


def _cores() -> list[int]:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def core_groups(jobs: int) -> list[tuple[int, ...]]:
    """Cores for every job, no core in two of them."""
    cores = _cores()
    if not 1 <= jobs <= max(1, len(cores) // CORES):
        raise ValueError(
            f"jobs={jobs} must be 1 to {max(1, len(cores) // CORES)}: a job has {CORES} of the "
            f"{len(cores)} cores here."
        )
    return [tuple(cores[CORES * k : CORES * (k + 1)]) for k in range(jobs)]


def pin(process: int, cores: Sequence[int]) -> None:
    """Restrict every thread of a process to these cores."""
    if hasattr(os, "sched_setaffinity"):
        with suppress(FileNotFoundError):  # the process has ended
            for thread in Path(f"/proc/{process}/task").iterdir():
                with suppress(ProcessLookupError):  # the thread has ended
                    os.sched_setaffinity(int(thread.name), cores)


@contextmanager
def as_a_child_sees_it(cores: Sequence[int]) -> Iterator[None]:
    """A process started in this context has these cores, and as many threads in its libraries."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    own_cores = _cores()
    os.environ.update(dict.fromkeys(names, str(len(cores))))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, own_cores)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


# ---------------------------------------------------------------- workers


@dataclass
class Worker:
    """The process of one method on one case, and the cell that it works on.

    Parameters
    ----------
    case, method : what the process trains
    log : the file of its standard error
    process, line : the process and the connection to it, None while there is none
    slot : the cores that it works on
    cell : the cell that it works on, None while it is idle
    warming : whether it compiles first
    deadline : the time (of `time.monotonic`) after which it counts as hanging
    compiled : seconds of the warm-up by track
    failures : in a row
    """

    case: Case
    method: str
    log: Path
    process: BaseProcess | None = None
    line: Connection | None = None
    slot: tuple[int, ...] = ()
    cell: Cell | None = None
    warming: bool = False
    deadline: float = math.inf
    compiled: dict[str, float] = field(default_factory=dict)
    failures: int = 0

    def order(self, cell: Cell, slot: tuple[int, ...]) -> None:
        """Send a cell to the process; if its track is not compiled yet, the warm-up instead."""
        if self.process is not None and not self.process.is_alive():  # ended while it was idle
            self.stop()
        if self.process is None:
            from sapm.studies.bench.worker import serve

            spawn = get_context("spawn")
            self.line, theirs = spawn.Pipe()
            with as_a_child_sees_it(slot):
                self.process = spawn.Process(
                    target=serve, args=(theirs, self.case, self.method, str(self.log)), daemon=True
                )
                self.process.start()
            theirs.close()
        pin(self.process.pid, slot)  # type: ignore[arg-type]
        self.slot = slot
        self.cell = cell
        self.warming = cell.track not in self.compiled
        seed = WARM_UP_SEED if self.warming else cell.seed
        self.deadline = time.monotonic() + patience(self.case.seconds) + COMPILING * self.warming
        with suppress(OSError):  # the process has ended; `answer` reports it
            self.line.send((cell.track, seed, self.case.seconds))  # type: ignore[union-attr]

    def answer(self) -> dict | None:
        """The answer of the process, a failure if it ended or hangs, None while it works."""
        if self.line is not None and self.line.poll():
            with suppress(EOFError, OSError):  # closed at the other end: the process has ended
                return self.line.recv()
        elif self.process is not None and self.process.is_alive():
            if time.monotonic() < self.deadline:
                return None
            limit = patience(self.case.seconds) + COMPILING * self.warming
            self.stop()
            return {
                "status": "failed",
                "reason": f"no answer for {limit:.0f} seconds"
                f"{' of compiling' * self.warming}: stopped.",
            }
        code = None
        if self.process is not None:
            self.process.join(5)
            code = self.process.exitcode
        self.stop()
        return {
            "status": "failed",
            "reason": f"its process ended with code {code}: {self._last_words()}",
        }

    def _last_words(self) -> str:
        """The last line of the log: the error that ended the process."""
        try:
            lines = [
                line for line in self.log.read_text(errors="replace").splitlines() if line.strip()
            ]
        except OSError:
            lines = []
        return lines[-1].strip()[:200] if lines else "its log is empty."

    def stop(self) -> None:
        """End the process; the next order starts another one."""
        if self.line is not None:
            self.line.close()
        if self.process is not None:
            self.process.kill()
            self.process.join()
        self.process = None
        self.line = None
        self.compiled = {}


# ---------------------------------------------------------------- the run


def run(  # noqa: PLR0913
    cases: Sequence[str | Case] = (),
    out: str | Path = "bench",
    *,
    quick: bool = False,
    seconds: float | None = None,
    seeds: int | None = None,
    methods: Sequence[str] | None = None,
    track: str | None = None,
    jobs: int = 1,
    tell: Callable[[str], None] = print,
) -> list[dict]:
    """Make the missing cells of some cases in a folder, and return the rows of their tables.

    A cell is a file that is written at once, so a benchmark that was stopped continues where it
    stopped. A training that fails leaves a cell with the reason. A method whose package is missing
    leaves no cell, and can be run later.

    Parameters
    ----------
    cases, quick, seconds, seeds : see `sapm.studies.bench.cases.select`
    out : the folder
    methods, track : restrict the methods and the track; None means all
    jobs : trainings at the same time
    tell : called with a line of text per cell
    """
    # several processes share the memory of a GPU
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    out = Path(out)
    chosen = select(cases, quick, seconds, seeds)
    slots = core_groups(jobs)
    for case in chosen:
        if (
            not (isinstance(case.seconds, (int, float)) and 0 < case.seconds < math.inf)
            or case.seeds < 1
        ):
            raise ValueError(
                f"seconds={case.seconds} must be positive and seeds={case.seeds} at least 1."
            )
    with files.Claim(out) as claim:
        env = machine()
        try:
            _same_place(out, env)
            todo = [
                [c for c in cells(case, methods, track) if c.method not in env["not_installed"]]
                for case in chosen
            ]
            missing = [[c for c in group if not _is_there(out, c)] for group in todo]
        except ValueError:
            claim.refused = True
            raise
        claim.check()
        body = files.to_json(env, indent=2) + "\n"
        files.write_whole(out / "env.json", body.encode(), own=True)
        total = sum(map(len, todo))
        lacking = sum(map(len, missing))
        hours = (
            sum(len(group) * case.seconds for group, case in zip(missing, chosen, strict=True))
            / jobs
            / 3600
        )
        tell(
            f"{total - lacking} of {total} cells are there; the others train for up to "
            f"{hours:.2g} hours, and compile before"
        )
        done = [0]
        for case, group in zip(chosen, missing, strict=True):
            _make(
                claim, case, group, slots, lambda text: tell(f"[{done[0]}/{lacking}] {text}"), done
            )
        existing = read(out)
        not_installed = env["not_installed"]
        missing_rows = {
            case.name: [r for r in chosen_rows(case, methods, track) if r[1] in not_installed]
            for case in chosen
        }
        return [
            row
            for case in chosen
            for row in rows_of(existing, case.name, methods, track, missing_rows[case.name])
        ]


def _same_place(out: Path, env: dict) -> None:
    """Refuse a folder from another machine: times on two machines cannot be compared."""
    if not (out / "env.json").exists():
        if any(p.name != ".lock" for p in out.iterdir()):
            raise ValueError(
                f"{shown_path(out)} is not empty and holds no bench; choose another folder. "
                "Nothing was changed."
            )
        return
    existing = files.read_json(out / "env.json")
    for name in ("processor", "devices", "cores_per_job"):
        if existing.get(name) != env[name]:
            raise ValueError(
                f"{shown_path(out)} was made elsewhere ({name}: {existing.get(name)}, here "
                f"{env[name]}); choose another folder."
            )


def _is_there(out: Path, cell: Cell) -> bool:
    file = out / "cells" / cell.file
    if not file.exists():
        return False
    budget = number(files.read_json(file).get("budget"))
    if budget != cell.case.seconds:
        raise ValueError(
            f"{shown_path(out)} holds {cell} with {budget:g} seconds, not {cell.case.seconds:g}; "
            "choose another folder."
        )
    return True


def _make(
    claim: files.Claim,
    case: Case,
    missing: list[Cell],
    slots: list[tuple[int, ...]],
    tell: Callable,
    done: list[int],
) -> None:
    """Make the missing cells of a case in order.

    A free slot takes the first cell whose method is idle.
    """
    out = claim.path
    workers = {
        m: Worker(case, m, out / "logs" / f"{case.name}.{m}.txt")
        for m in dict.fromkeys(c.method for c in missing)
    }
    waiting = list(missing)
    free = list(slots)

    def write(cell: Cell, answer: dict, compiled: float | None = None) -> None:
        claim.check()
        write_cell(out, cell, answer, compiled, len(slots))
        done[0] += 1
        error = answer.get("error")
        outcome = (
            f"error {error:.1e}, {answer['seconds']:.2g} s"
            if isinstance(error, float)
            else answer["reason"]
        )
        tell(f"{cell}: {outcome}")

    try:
        while waiting or len(free) < len(slots):
            for cell in list(waiting):
                worker = workers[cell.method]
                if worker.failures >= FAILURES:
                    waiting.remove(cell)
                    write(
                        cell,
                        {
                            "status": "failed",
                            "reason": f"given up after {FAILURES} failures in a row.",
                        },
                    )
                elif free and worker.cell is None:
                    waiting.remove(cell)
                    worker.order(cell, free.pop(0))
                    if worker.warming:
                        tell(f"{case.name} {cell.track} {cell.method}: compiling")
            busy = [w for w in workers.values() if w.cell is not None]
            lines = [w.line for w in busy if w.line is not None] + [
                w.process.sentinel for w in busy if w.process is not None
            ]
            wait(lines, max(0.0, min((w.deadline for w in busy), default=0.0) - time.monotonic()))
            for worker in busy:
                cell = worker.cell
                answer = worker.answer()
                if answer is None or cell is None:
                    continue
                free.append(worker.slot)
                worker.cell = None
                failed = answer.get("status") == "failed"
                worker.failures = worker.failures + 1 if failed else 0
                if worker.warming and not failed:
                    worker.compiled[cell.track] = answer["compile_seconds"]
                    waiting.insert(0, cell)
                else:
                    write(cell, answer, worker.compiled.get(cell.track))
    finally:
        for worker in workers.values():
            worker.stop()


def write_cell(out: Path, cell: Cell, answer: dict, compiled: float | None, jobs: int) -> None:
    """Write the file of a cell.

    Parameters
    ----------
    out : the folder of the benchmark.
    cell : the cell.
    answer : what the trainer measured.
    compiled : seconds of the warm-up; None if there was none.
    jobs : the number of trainings at the same time.
    """
    trace = answer.get("trace", [])
    reached = {
        f"{target:g}": next(
            (t for t, error, _ in trace if error <= target and t <= answer["seconds"]), None
        )
        for target in cell.case.targets
    }
    about = {k: v for k, v in asdict(cell.case).items() if k not in ("only", "seconds", "seeds")}
    content = (
        {
            "case": cell.case.name,
            "title": cell.case.title,
            "track": cell.track,
            "method": cell.method,
            "seed": cell.seed,
        }
        | {"network": about, "budget": cell.case.seconds, "jobs": jobs, "compile_seconds": compiled}
        | {
            "status": None,
            "reason": "",
            "seconds": None,
            "error": None,
            "true_loss": None,
            "loss": None,
            "compilations": None,
        }
        | {"trace": []}
        | answer
        | {"targets": reached}
    )
    body = files.to_json(_numbers(content))
    files.write_whole(out / "cells" / cell.file, body.encode(), own=True)


def _numbers(x):
    """x with numbers for JSON: seven digits, None for those that are not finite."""
    if isinstance(x, dict):
        return {k: _numbers(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_numbers(v) for v in x]
    if isinstance(x, float):
        return float(f"{x:.7g}") if math.isfinite(x) else None
    return x


def read(out: str | Path) -> list[dict]:
    """Every cell of a folder."""
    return [files.read_json(file) for file in sorted((Path(out) / "cells").glob("*.json"))]
