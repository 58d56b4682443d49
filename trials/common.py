"""Parts that all trials use: pinned processes, bitwise comparison of files, and a verdict."""

from __future__ import annotations

import json
import os
import pty
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import stated

from sapm.results.files import environment, read

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 400.0  # seconds after which a process is taken to hang


class Cores:
    """Shares of the machine: as many cores for each of J jobs, so that programs are divided alike
    wherever they run.
    """

    def __init__(self, jobs: int):
        there = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        each = max(1, len(there) // jobs)
        self.free: queue.Queue = queue.Queue()
        for j in range(jobs):
            self.free.put(
                [there[(j * each + k) % len(there)] for k in range(each)] if there else []
            )

    @contextmanager
    def taken(self):
        mine = self.free.get()
        try:
            yield mine
        finally:
            self.free.put(mine)


class Place:
    """A folder of a trial, with data on disk and a cache of compiled programs that its processes
    share.
    """

    def __init__(self, path: Path, cached: bool = True, device: str | None = "cpu"):
        self.path = path
        stated.write_data(path / "data")
        self.variables = os.environ | {
            "PYTHONPATH": os.pathsep.join(
                filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])
            ),
            stated.DATA: str(path / "data"),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        if device is not None:
            self.variables.setdefault("JAX_PLATFORMS", device)
        if cached:
            self.variables.setdefault("JAX_COMPILATION_CACHE_DIR", str(path / "programs"))
            self.variables |= {
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            }

    def start(
        self, arguments: Sequence[str], cores: Sequence[int], often: bool = True, **more
    ) -> Process:
        """`sapm` with these arguments; `often`: with all the checkpoints there can be."""
        program = [str(ROOT / "trials" / "often.py")] if often else ["-m", "sapm"]
        return Process([sys.executable, *program, *arguments], self.variables, cores, **more)


# Not by `preexec_fn`, which forks: JAX warns of forks in a process that has used it.
CONTROL = "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
IGNORE = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"


class Terminal:
    """A terminal of its own for one process, which hears of it when the terminal is closed.

    ignored: whether the process ignores SIGHUP, as under nohup.
    """

    def __init__(self, ignored: bool = False):
        self.ignored = ignored
        self.shown = b""
        self._ours, self.theirs = pty.openpty()
        self._closed, self._close = os.pipe()  # of which a byte says that it is to be closed
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        """Nobody else may hold the terminal while it is closed, so that it closes at once."""
        while self._closed not in select.select([self._ours, self._closed], [], [])[0]:
            try:
                self.shown += os.read(self._ours, 65536)
            except OSError:  # the process has ended
                break
        os.close(self._ours)

    def arguments(self, command: Sequence[str]) -> dict:
        """Arguments for `subprocess.Popen`: the command runs in a session of its own, which this
        terminal controls.
        """
        ignored = [IGNORE] if self.ignored else []
        program = "; ".join([CONTROL, *ignored, "os.execvp(sys.argv[1], sys.argv[1:])"])
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), self.theirs)
        words = [sys.executable, "-S", "-c", program, *command]
        return streams | {"args": words, "start_new_session": True}

    def started(self) -> None:
        """The process has the terminal now."""
        os.close(self.theirs)

    def close(self) -> None:
        os.write(self._close, b"1")
        self._reader.join()
        os.close(self._close)
        os.close(self._closed)


class Process:
    def __init__(
        self,
        command: Sequence[str],
        variables: dict,
        cores: Sequence[int],
        terminal: Terminal | None = None,
        **more,
    ):
        self.said = tempfile.TemporaryFile()  # noqa: SIM115
        self.text = None
        self.terminal = terminal
        arguments = {
            "args": command,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "stderr": self.said,
        } | (more if terminal is None else terminal.arguments(command) | more)
        self.began = time.monotonic()
        self.popen = subprocess.Popen(env=variables, cwd=ROOT, **arguments)
        if terminal is not None:
            terminal.started()
        if cores:
            os.sched_setaffinity(self.popen.pid, cores)  # long before JAX counts them

    @property
    def running(self) -> bool:
        return self.popen.poll() is None

    def send(self, number: int) -> None:
        """Send a signal; SIGHUP by closing the terminal, if it has one."""
        if self.running and self.terminal is not None and number == signal.SIGHUP:
            self.terminal.close()
        elif self.running:
            self.popen.send_signal(number)

    def end(self) -> int:
        """The exit code."""
        try:
            code = self.popen.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
            raise RuntimeError(f"a process did not end in {LIMIT:g} s: {self.popen.args}") from None
        self.text = self.errors
        self.said.close()
        return code

    @property
    def errors(self) -> str:
        """What it said on its standard error."""
        if self.text is None:
            return os.pread(self.said.fileno(), 10**7, 0).decode(errors="replace").strip()
        return self.text

    @property
    def last(self) -> str:
        """What it said last."""
        return (self.errors.splitlines() or [""])[-1]


def until(true: Callable[[], bool], process: Process, seconds: float = LIMIT) -> bool:
    """Wait for it; False if the process ends before."""
    end = time.monotonic() + seconds
    while process.running:
        if true():
            return True
        if time.monotonic() > end:
            process.popen.kill()
            raise RuntimeError(f"nothing happened in {seconds:g} s: {process.popen.args}")
        time.sleep(0.002)
    return False


def newest(folder: Path, pattern: str) -> int:
    """When the newest of these files was written; 0 if there is none."""
    times = []
    for file in folder.glob(pattern):
        try:
            times.append(file.stat().st_mtime_ns)
        except FileNotFoundError:
            continue
    return max(times, default=0)


def checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("**/checkpoint/latest.sapm"))


# ---------------------------------------------------------------- equal, bit for bit


def _content(path: Path) -> dict:
    """All that a .sapm file says, but for the clock and the machine."""
    arrays, about = read(path)
    found = {
        name: (a.dtype.str, a.shape, a.tobytes())
        for name, a in arrays.items()
        if name != "history/seconds"
    }
    return found | {f"about/{name}": value for name, value in about.items() if name != "env"}


def _lines(path: Path) -> dict:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        str(i): {name: value for name, value in row.items() if name != "seconds"}
        for i, row in enumerate(rows)
    }


READERS = {
    "model.sapm": _content,
    "checkpoint/latest.sapm": _content,
    "history.jsonl": _lines,
    "summary.json": lambda path: json.loads(path.read_text()),
    "config.json": lambda path: json.loads(path.read_text()),
}


def differences(a: Path, b: Path, estimates: bool = True) -> list[str]:
    """What is not equal in two folders of runs, times aside; and what writes that were cut off have
    left in the second.

    Without `estimates` those of the error may differ: a run that is continued without its problem
    has fewer points for them."""
    runs = [
        sorted(str(p.parent.relative_to(folder)) for p in folder.glob("**/config.json"))
        for folder in (a, b)
    ]
    if runs[0] != runs[1]:
        return [f"runs {runs[0]} and {runs[1]}"]
    found = [f"{p.relative_to(b)} left behind" for p in b.glob("**/.*.????????")]
    for run in runs[0]:
        for name, reader in READERS.items():
            files = [x / run / name for x in (a, b)]
            if not all(f.exists() for f in files):
                found.append(f"{run}/{name} is missing")
                continue
            one, other = (
                {k: v for k, v in reader(f).items() if estimates or k != "error_estimate"}
                for f in files
            )
            found += [
                f"{run}/{name}: {key}"
                for key in sorted({*one, *other})
                if one.get(key) != other.get(key)
            ]
    return found


# ---------------------------------------------------------------- side by side, and the end


def side_by_side(
    work: Callable,
    items: Iterable,
    jobs: int,
    tell: Callable[[int, object], None] = lambda i, found: None,
) -> list:
    """[work(item), …], computed by threads. `tell` is called as they end; an error ends all."""
    items = list(items)
    lock = threading.Lock()
    count = [0]

    def one(item):
        found = work(item)
        with lock:
            count[0] += 1
            tell(count[0], found)
        return found

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, items))


def verdict(
    name: str, good: bool, sentence: str, figures: dict, out: str | None, began: float
) -> int:
    """Print the last line, write the JSON, and return the exit code."""
    seconds = time.monotonic() - began
    if out is not None:
        told = {
            "trial": name,
            "good": good,
            "verdict": sentence,
            "seconds": seconds,
            "env": environment(),
        } | figures
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(json.dumps(told, indent=1, default=str) + "\n")
    print(f"{name}: {'GOOD' if good else 'FAILED'}: {sentence} ({seconds:.0f} s)", flush=True)
    return 0 if good else 1


def jobs_option(parser) -> None:
    parser.add_argument(
        "--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="processes at a time"
    )
    parser.add_argument("--out", help="a JSON file to write")
