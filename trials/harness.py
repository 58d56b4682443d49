"""Run cases in worker processes with limits of time and memory, and judge the outcomes.

A worker that crashes or hangs is the failure of its case alone: another one takes its place.
"""

from __future__ import annotations

import argparse
import asyncio  # noqa: F401  (jaxtyping brings it in, and it makes code while it is imported)
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path

os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_multi_thread_eigen=false"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NPROC"):
    os.environ.setdefault(_name, "1")

CACHE = "JAX_COMPILATION_CACHE_DIR"
HANG = float(
    os.environ.get("SAPM_TRIAL_SECONDS", "60")
)  # of a case; more where other work has the cores
START = 240.0  # seconds until a worker is ready
AIR = 3 * 2**30  # bytes of address space for a case beyond what its worker has

# Words of the libraries below us: a sentence for a user has none of them.
INTERNAL = re.compile(
    r"\bjax\.(?!numpy)|\bjaxlib|\bXLA|[Tt]racer|\bjnp\.(?!tanh|where|sin)|\bdtype\b(?!=)|ufunc|"
    r"broadcast|PyTree|pytree|\bvmap\b|\bjit\b|einsum|"
    r"unsupported operand|not supported between|object is not|has no attribute|"
    r"unexpected keyword|positional argument|"
    r"invalid literal|could not convert|embedded null|inhomogeneous|codec can|object at 0x|Errno|"
    r"list index|out of bounds|"
    r"Expecting |recursion|NoneType|__[a-z]+__|safe_open|HLO"
)
LONGEST = 1200  # characters of a sentence


def ill_said(text: str, internal: bool = True) -> str:
    """What is wrong with a sentence for a user; "" if nothing."""
    if not text.strip():
        return "says nothing"
    if len(text.strip().splitlines()) != 1:
        return f"says it in {len(text.strip().splitlines())} lines"
    if len(text) > LONGEST:
        return f"says it in {len(text)} characters"
    if not all(c.isprintable() for c in text.strip()):
        return "prints control characters"
    found = INTERNAL.search(text) if internal else None
    return f"speaks of {found[0]!r}" if found else ""


def unnamed(result) -> str:
    """A number of a result that is not finite and that nothing in the result names as such; "" if
    there is none.
    """
    for row in result.table:
        bad = [k for k, v in row.items() if isinstance(v, float) and v - v != 0]
        said = f"{row['status']} {row['reason']} {result.certificate}"
        if bad and not re.search(r"non-finite|not finite|overflow", said):
            return f"{bad[0]} of seed {row['seed']} is {row[bad[0]]}, and the seed {row['status']}"
    return ""


# ---------------------------------------------------------------- what a case may not do

FORBIDDEN = {
    "pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork",
    "os.forkpty", "pty.spawn",
    "socket.connect", "socket.bind", "socket.getaddrinfo", "urllib.Request", "webbrowser.open",
    "ctypes.dlopen", "code.__new__",
}  # fmt: skip
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """An audit hook: code that is run, programs that are started, and files that are written
    outside a folder, while it is on.
    """

    def __init__(self, folder: Path):
        self.folder = os.path.realpath(folder)
        self.on = False
        self.seen = []
        self.cache = os.environ.get(CACHE, "\0")
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple) -> None:
        if not self.on:
            return
        if event in FORBIDDEN:
            self.seen.append(f"{event} {args!r:.200}")
        elif (
            event == "exec"
            and getattr(args[0], "co_filename", "").startswith("/")
            and self._mine(args[0].co_filename)
        ):
            self.seen.append(f"exec of {args[0].co_filename}")
        elif event in (
            "open",
            "os.remove",
            "os.rename",
            "os.mkdir",
            "os.rmdir",
            "os.truncate",
            "os.chmod",
            "os.link",
            "os.symlink",
        ):
            self._file(event, args)

    def _mine(self, path) -> bool:
        return isinstance(path, (str, bytes, os.PathLike)) and os.path.realpath(
            os.fsdecode(path)
        ).startswith(self.folder)

    def _file(self, event: str, args: tuple) -> None:
        path = args[0]
        if not isinstance(path, (str, bytes, os.PathLike)) or os.fsdecode(path) == os.devnull:
            return
        if event == "open":
            mode = args[1]
            flags = args[2]
            if not (set(mode or "") & set("wax+") or (mode is None and flags & WRITES)):
                return
        if not self._mine(path) and not os.fsdecode(path).startswith(self.cache):
            self.seen.append(f"{event} {os.fsdecode(path)[:200]!r}")

    def take(self, but: str = "\0") -> str:
        """The first that was seen, but for those that begin so; and all are forgotten."""
        found = [s for s in self.seen if not s.startswith(but)]
        self.seen = []
        return found[0] if found else ""


def memory() -> tuple[int, int, int]:
    """(address space, resident, largest resident) in bytes."""
    with open("/proc/self/status") as file:
        found = dict(line.split(":", 1) for line in file)
    return tuple(int(found[name].split()[0]) * 1024 for name in ("VmSize", "VmRSS", "VmHWM"))  # type: ignore[return-value]


def reset_peak() -> None:
    """The largest resident memory is counted anew from here."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


# ---------------------------------------------------------------- workers


class Hung(BaseException):
    """The time of a case is over; no `except Exception` holds it up."""


def limited(seconds: float):
    """Raise Hung in this process after so many seconds; 0 turns it off."""

    def ring(*_):
        raise Hung

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def attempt(case: int, one: Callable[[int], dict], seconds: float = HANG) -> dict:
    """One case in this process: what `one` says of it, or that it hung; with its time."""
    began = time.monotonic()
    try:
        limited(seconds)
        try:
            found = one(case)
        finally:
            limited(0)
    except Hung:
        found = {"ok": False, "why": f"took more than {seconds:g} seconds"}
    except Exception as error:
        found = {
            "ok": False,
            "why": f"the trial itself: {type(error).__name__}: {str(error)[:300]}",
        }
    return {"case": case, **found, "seconds": round(time.monotonic() - began, 3)}


_line: list = []  # to the parent of this process, in a worker


def alive() -> None:
    """A case that is many in one has done one of them."""
    for line in _line:
        line.send("alive")


def _serve(prepare: Callable[..., Callable[[int], dict]], arguments: tuple, line) -> None:
    os.setpgrp()
    _line.append(line)
    scratch = tempfile.mkdtemp(prefix="sapm-trial-")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        os.chdir(scratch)
        one = prepare(Path(scratch), *arguments)
        space = memory()[0] + AIR
        resource.setrlimit(resource.RLIMIT_AS, (space, resource.getrlimit(resource.RLIMIT_AS)[1]))
        line.send("ready")
        while memory()[0] < space - AIR // 2:  # every problem is another program, and they stay
            line.send(attempt(line.recv(), one))
        line.send("full")
        signal.pause()  # until it is ended
    except EOFError:
        pass
    finally:
        os.chdir("/")
        shutil.rmtree(scratch, ignore_errors=True)


class Worker:
    def __init__(self, prepare: Callable, arguments: tuple):
        spawn = get_context("spawn")
        self.line, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(prepare, arguments, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.case: int | None = None
        self.since = time.monotonic()
        self.ready = False

    def give(self, case: int) -> None:
        self.case = case
        self.since = time.monotonic()
        self.line.send(case)

    def end(self) -> None:
        self.process.terminate()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def run(prepare: Callable, arguments: tuple, cases: Sequence[int], jobs: int) -> list[dict]:  # noqa: PLR0912
    """Every case, `jobs` at a time; `prepare(scratch folder, *arguments)` gives in each worker the
    function of a case.

    A worker that gives no sign of life (`alive`) for longer than a case may take is ended.
    """
    waiting = list(reversed(cases))
    found = []
    workers = []
    deaths = 0
    try:
        while waiting or any(w.case is not None for w in workers):
            while len(workers) < min(jobs, len(waiting) + sum(w.case is not None for w in workers)):
                workers.append(Worker(prepare, arguments))
            for w in workers:
                if w.ready and w.case is None and waiting:
                    w.give(waiting.pop())
            wait([w.line for w in workers], 1.0)
            for w in list(workers):
                late = time.monotonic() - w.since > (HANG + 15 if w.case is not None else START)
                try:
                    said = w.line.recv() if w.line.poll() else None
                except (EOFError, OSError):
                    said = EOFError
                if said == "ready":
                    w.ready = True
                elif said == "alive":
                    w.since = time.monotonic()
                elif said == "full":
                    workers.remove(w)
                    w.end()
                    if w.case is not None:  # given meanwhile
                        waiting.append(w.case)
                elif isinstance(said, dict):
                    found.append(said)
                    w.case = None
                elif said is EOFError or (late and (w.case is not None or not w.ready)):
                    workers.remove(w)
                    w.end()
                    why = "hung" if late else f"crashed: exit code {w.process.exitcode}"
                    deaths += w.case is None
                    if w.case is not None:
                        found.append(
                            {
                                "case": w.case,
                                "ok": False,
                                "why": why,
                                "seconds": time.monotonic() - w.since,
                            }
                        )
                    elif deaths > 2:
                        raise RuntimeError(f"a worker did not get ready: {why}.")
    finally:
        for w in workers:
            w.end()
    return sorted(found, key=lambda f: f["case"])


# ---------------------------------------------------------------- the verdict


@contextmanager
def shared_programs():
    """What one worker compiles, the others take from a folder. Before JAX is imported."""
    if CACHE in os.environ:
        yield
        return
    folder = tempfile.mkdtemp(prefix="sapm-cache-")
    os.environ |= {
        CACHE: folder,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def arguments(about: str, count: int, **more) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about)
    for name in more.pop("counts", ("--count",)):
        parser.add_argument(name, dest="count", type=int, default=count, help="how many cases")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    parser.add_argument("--seed", type=int, default=0, help="of the cases")
    parser.add_argument("--out", type=Path, help="a JSON file with all outcomes")
    return parser


def verdict(name: str, found: Sequence[dict], began: float, out: Path | None, **more) -> int:
    """Print one line (and what failed), write the JSON file; 1 if a case failed, else 0."""
    failed = [f for f in found if not f["ok"]]
    outcomes = Counter(f.get("outcome", "failed") for f in found if f["ok"])
    families = {k: Counter(f.get("outcome",
    "failed") if f["ok"] else "failed" for f in found if f.get("family") == k)
                for k in sorted({str(f.get("family")) for f in found})}  # fmt: skip
    grown = max((f.get("grown_mb", 0.0) for f in found), default=0.0)
    seconds = time.monotonic() - began
    said = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    memory_said = f"; memory grew by at most {grown:.0f} MB in a case" if grown else ""
    line = (
        f"{name}: {len(found)} cases: {said}; {len(failed)} failed{memory_said}; the longest took "
    )
    line += f"{max((f['seconds'] for f in found), default=0):.1f} s ({seconds:.0f} s in all)"
    for f in failed[:40]:
        print(f"FAILED {json.dumps(f, default=str)[:900]}")
    print(("PASSED " if not failed else "FAILED ") + line)
    if out is not None:
        content = {
            "trial": name,
            "verdict": line,
            "passed": not failed,
            "count": len(found),
            "outcomes": outcomes,
            "families": families,
            "failures": failed,
            "grown_mb": grown,
            "seconds": round(seconds, 1),
        }
        slowest = sorted(found, key=lambda f: -f["seconds"])[:20]
        out.write_text(
            json.dumps(
                content | more | {"slowest": slowest, "cases": list(found)}, indent=1, default=str
            )
            + "\n"
        )
    return int(bool(failed))
