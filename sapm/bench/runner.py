"""The bench: cells, one file each, made by a process per method, seed by seed, each at work on cores of its own."""

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

from sapm import store
from sapm.bench.cases import ENTRIES, WARM_UP_SEED, Case, chosen_rows, select
from sapm.bench.score import rows_of
from sapm.environment import environment
from sapm.names import number

CORES = 2  # of a job
COMPILING = 300.0  # seconds granted to a warm-up, beyond what an order gets
FAILURES = 2  # in a row, after which a method is given up on a case


def patience(seconds: float) -> float:
    """How long an order may take before the process is taken to hang."""
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
        return f"{self.case.name}.{self.track}.{self.method}.{self.seed}.json"

    def __str__(self) -> str:
        return f"{self.case.name} {self.track} {self.method} seed {self.seed}"


def cells(case: Case, methods: Sequence[str] | None = None, track: str | None = None) -> list[Cell]:
    """Seed by seed, all methods in turn, so that a slow hour of the machine meets all of them. Sanity rows have one seed."""
    rows = chosen_rows(case, methods, track)
    return [Cell(case, t, m, seed) for seed in range(case.seeds) for t, m in rows if not (seed and ENTRIES[m].group == "sanity")]


# ---------------------------------------------------------------- the machine


def machine() -> dict:
    """What the figures depend on: versions, the processor, the date."""
    env = environment()
    for name in ("optimistix", "lineax", "scikit-learn", "deepxde", "torch"):
        try:
            env["packages"][name] = installed(name)
        except PackageNotFoundError:
            env["packages"][name] = None
    missing = sorted(e.name for e in ENTRIES.values() if any(find_spec(package) is None for package in e.needs.split()))
    return env | {"cores_per_job": min(CORES, len(_cores())), "date": date.today().isoformat(), "not_installed": missing}


def _cores() -> list[int]:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _slots(jobs: int) -> list[tuple[int, ...]]:
    """Cores for every job, no core in two of them."""
    cores = _cores()
    if not 1 <= jobs <= max(1, len(cores) // CORES):
        raise ValueError(
            f"jobs={jobs} must be 1 to {max(1, len(cores) // CORES)}: a job has {CORES} of the {len(cores)} cores here."
        )
    return [tuple(cores[CORES * k : CORES * (k + 1)]) for k in range(jobs)]


def _pin(process: int, cores: Sequence[int]) -> None:
    """Every thread of a process on these cores."""
    if hasattr(os, "sched_setaffinity"):
        with suppress(FileNotFoundError):  # the process has ended
            for thread in Path(f"/proc/{process}/task").iterdir():
                with suppress(ProcessLookupError):  # the thread has
                    os.sched_setaffinity(int(thread.name), cores)


@contextmanager
def _as_a_child_sees_it(cores: Sequence[int]) -> Iterator[None]:
    """A process started in here has these cores from its first moment, and libraries make as many threads."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    given: dict[str, str] = {name: str(len(cores)) for name in names}
    before = {name: os.environ.get(name) for name in given}
    mine = _cores()
    os.environ.update(given)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, mine)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


# ---------------------------------------------------------------- workers


@dataclass
class Worker:
    """A process for one method on one case, and what it is doing."""

    case: Case
    method: str
    log: Path
    process: BaseProcess | None = None
    line: Connection | None = None
    slot: tuple[int, ...] = ()
    cell: Cell | None = None
    warming: bool = False
    deadline: float = math.inf
    compiled: dict[str, float] = field(default_factory=dict)  # seconds of the warm-up, by track
    failures: int = 0

    def order(self, cell: Cell, slot: tuple[int, ...]) -> None:
        """Start on a cell; where its track is not compiled yet, on the warm-up."""
        if self.process is not None and not self.process.is_alive():  # ended while it was idle
            self.stop()
        if self.process is None:
            from sapm.bench.worker import serve

            spawn = get_context("spawn")
            self.line, theirs = spawn.Pipe()
            with _as_a_child_sees_it(slot):
                self.process = spawn.Process(target=serve, args=(theirs, self.case, self.method, str(self.log)), daemon=True)
                self.process.start()
            theirs.close()
        _pin(self.process.pid, slot)  # type: ignore[arg-type]
        self.slot, self.cell, self.warming = slot, cell, cell.track not in self.compiled
        seed = WARM_UP_SEED if self.warming else cell.seed
        self.deadline = time.monotonic() + patience(self.case.seconds) + COMPILING * self.warming
        with suppress(OSError):  # it has died; that is seen when its answer is waited for
            self.line.send((cell.track, seed, self.case.seconds))  # type: ignore[union-attr]

    def answer(self) -> dict | None:
        """What it has to say, if anything: an answer, or the reason why there is none."""
        if self.line is not None and self.line.poll():
            with suppress(EOFError, OSError):  # closed at the other end: it has died
                return self.line.recv()
        elif self.process is not None and self.process.is_alive():
            if time.monotonic() < self.deadline:
                return None
            limit = patience(self.case.seconds) + COMPILING * self.warming
            self.stop()
            return {"status": "failed", "reason": f"no answer for {limit:.0f} seconds{' of compiling' * self.warming}: stopped."}
        code = None
        if self.process is not None:
            self.process.join(5)
            code = self.process.exitcode
        self.stop()
        return {"status": "failed", "reason": f"its process ended with code {code}: {self._last_words()}"}

    def _last_words(self) -> str:
        try:
            lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        except OSError:
            lines = []
        return lines[-1].strip()[:200] if lines else "it said nothing."

    def stop(self) -> None:
        """End the process; the next order starts another one."""
        if self.line is not None:
            self.line.close()
        if self.process is not None:
            self.process.kill()
            self.process.join()
        self.process, self.line, self.compiled = None, None, {}


# ---------------------------------------------------------------- the run


def run(
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
    """Make every cell of the cases that is not in the folder yet; the rows of their tables.

    A cell is a file, written whole; so a bench that was stopped goes on where it stood, and can be filled in pieces. A training
    that fails leaves a cell that says why. A method whose package is missing leaves none, and can be run later.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # many processes share the memory of a GPU
    out, chosen = Path(out), select(cases, quick, seconds, seeds)
    slots = _slots(jobs)
    for case in chosen:
        if not (isinstance(case.seconds, (int, float)) and 0 < case.seconds < math.inf) or case.seeds < 1:
            raise ValueError(f"seconds={case.seconds} must be positive and seeds={case.seeds} at least 1.")
    with store.Claim(out) as claim:
        env = machine()
        try:
            _same_place(out, env)
            todo = [[c for c in cells(case, methods, track) if c.method not in env["not_installed"]] for case in chosen]
            missing = [[c for c in group if not _is_there(out, c)] for group in todo]
        except ValueError:
            claim.refused = True
            raise
        store.write_whole(out / "env.json", (store.to_json(env, indent=2) + "\n").encode())
        wanted, lacking = sum(map(len, todo)), sum(map(len, missing))
        hours = sum(len(group) * case.seconds for group, case in zip(missing, chosen, strict=True)) / jobs / 3600
        tell(f"{wanted - lacking} of {wanted} cells are there; the others train for up to {hours:.2g} hours, and compile before")
        done = [0]
        for case, group in zip(chosen, missing, strict=True):
            _make(out, case, group, slots, lambda text: tell(f"[{done[0]}/{lacking}] {text}"), done)
        found, lost = read(out), env["not_installed"]
        missing_rows = {case.name: [r for r in chosen_rows(case, methods, track) if r[1] in lost] for case in chosen}
        return [row for case in chosen for row in rows_of(found, case.name, methods, track, missing_rows[case.name])]


def _same_place(out: Path, env: dict) -> None:
    """One machine per folder: times on two are not to be compared."""
    if not (out / "env.json").exists():
        if any(p.name != ".lock" for p in out.iterdir()):
            raise ValueError(f"{out} is not empty and holds no bench; choose another folder. Nothing was changed.")
        return
    held = store.read_json(out / "env.json")
    for name in ("processor", "devices", "cores_per_job"):
        if held.get(name) != env[name]:
            raise ValueError(f"{out} was made elsewhere ({name}: {held.get(name)}, here {env[name]}); choose another folder.")


def _is_there(out: Path, cell: Cell) -> bool:
    file = out / "cells" / cell.file
    if not file.exists():
        return False
    budget = number(store.read_json(file).get("budget"))
    if budget != cell.case.seconds:
        raise ValueError(f"{out} holds {cell} with {budget:g} seconds, not {cell.case.seconds:g}; choose another folder.")
    return True


def _make(out: Path, case: Case, missing: list[Cell], slots: list[tuple[int, ...]], tell: Callable, done: list[int]) -> None:
    """The missing cells of a case, in order; a free slot takes the first one whose method is idle."""
    workers = {m: Worker(case, m, out / "logs" / f"{case.name}.{m}.txt") for m in dict.fromkeys(c.method for c in missing)}
    waiting, free = list(missing), list(slots)

    def write(cell: Cell, answer: dict, compiled: float | None = None) -> None:
        _write(out, cell, answer, compiled, len(slots))
        done[0] += 1
        error = answer.get("error")
        said = f"error {error:.1e}, {answer['seconds']:.2g} s" if isinstance(error, float) else answer["reason"]
        tell(f"{cell}: {said}")

    try:
        while waiting or len(free) < len(slots):
            for cell in list(waiting):
                worker = workers[cell.method]
                if worker.failures >= FAILURES:
                    waiting.remove(cell)
                    write(cell, {"status": "failed", "reason": f"given up after {FAILURES} failures in a row."})
                elif free and worker.cell is None:
                    waiting.remove(cell)
                    worker.order(cell, free.pop(0))
                    if worker.warming:
                        tell(f"{case.name} {cell.track} {cell.method}: compiling")
            busy = [w for w in workers.values() if w.cell is not None]
            lines = [w.line for w in busy if w.line is not None] + [w.process.sentinel for w in busy if w.process is not None]
            wait(lines, max(0.0, min((w.deadline for w in busy), default=0.0) - time.monotonic()))
            for worker in busy:
                cell, answer = worker.cell, worker.answer()
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


def _write(out: Path, cell: Cell, answer: dict, compiled: float | None, jobs: int) -> None:
    trace = answer.get("trace", [])
    reached = {
        f"{target:g}": next((t for t, error, _ in trace if error <= target and t <= answer["seconds"]), None)
        for target in cell.case.targets
    }
    about = {k: v for k, v in asdict(cell.case).items() if k not in ("only", "seconds", "seeds")}
    content = (
        {"case": cell.case.name, "title": cell.case.title, "track": cell.track, "method": cell.method, "seed": cell.seed}
        | {"network": about, "budget": cell.case.seconds, "jobs": jobs, "compile_seconds": compiled}
        | {"status": None, "reason": "", "seconds": None, "error": None, "true_loss": None, "loss": None, "compilations": None}
        | {"trace": []}
        | answer
        | {"targets": reached}
    )
    store.write_whole(out / "cells" / cell.file, store.to_json(_numbers(content)).encode())


def _numbers(x):
    """Numbers as JSON has them: none that is not finite, seven digits of the others."""
    if isinstance(x, dict):
        return {k: _numbers(v) for k, v in x.items()}
    if isinstance(x, (list, tuple)):
        return [_numbers(v) for v in x]
    if isinstance(x, float):
        return float(f"{x:.7g}") if math.isfinite(x) else None
    return x


def read(out: str | Path) -> list[dict]:
    """Every cell of a folder."""
    return [store.read_json(file) for file in sorted((Path(out) / "cells").glob("*.json"))]
