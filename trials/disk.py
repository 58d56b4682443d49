"""Failures of the file system: full disk, read-only folder, two processes, a stale lock, a lock or
a folder that is taken away.

    PYTHONPATH=. python trials/disk.py

Each must end in one sentence and exit code 2, without a traceback; what was saved before must be
whole, and `sapm resume` must then give the uninterrupted run bit for bit. Disks are small tmpfs,
mounted by root, or by anybody in a namespace of his own (`unshare`), where the trial starts itself
again. Where neither can be done, a limit on the size of files stands for a full disk and
permissions for a read-only one, and the table says so.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from combinations import COMBINATIONS
from common import (
    Cores,
    Place,
    Process,
    checkpoints,
    differences,
    jobs_option,
    newest,
    side_by_side,
    until,
    verdict,
)

from sapm.results.files import read

SLOW = "options.record_every=1"  # and so a checkpoint after every sweep
SWEEPS, STREAMED = (
    replace(COMBINATIONS[name], settings=(*COMBINATIONS[name].settings, SLOW))
    for name in ("curve, PM, sweeps, relu", "on disk, SAPM, sweeps by chunks")
)
ENDLESS = 10**7  # iterations, of runs that end otherwise
NAMESPACE = "SAPM_TRIALS_NAMESPACE"
LOG = re.compile(r"[EWI]\d{4} ")  # a line of XLA's own


def mounted(folder: Path, *options: str) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, check=False)
    return done.returncode == 0


def can_mount() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        if not mounted(Path(folder) / "a", "-t", "tmpfs", "-o", "size=1m", "tmpfs"):
            return False
        subprocess.run(["umount", str(Path(folder) / "a")], check=True)
        return True


class Disk:
    """A small file system of its own, or a folder that behaves like one as far as it can."""

    def __init__(self, folder: Path, real: bool, size: str = "16m"):
        self.folder = folder
        self.real = real
        folder.mkdir(parents=True)
        if real and not mounted(folder, "-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
            raise RuntimeError(f"no tmpfs at {folder}")

    def fill(self) -> None:
        with open(self.folder / "filler", "ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def empty(self) -> None:
        (self.folder / "filler").unlink()

    def lock(self) -> None:
        """Read-only from now on: a mount of itself on top, since one with open files cannot be
        changed.
        """
        if self.real:
            for options in (("--bind", str(self.folder)), ("-o", "remount,ro,bind")):
                if not mounted(self.folder, *options):
                    raise RuntimeError(f"{self.folder} could not be mounted read-only")
            return
        for path in [self.folder, *(p for p in self.folder.rglob("*") if p.is_dir())]:
            path.chmod(0o555)

    def unlock(self) -> None:
        if self.real:
            subprocess.run(["umount", str(self.folder)], check=True)
            return
        for path in [self.folder, *(p for p in self.folder.rglob("*") if p.is_dir())]:
            path.chmod(0o755)

    def close(self) -> None:
        if self.real:
            subprocess.run(["umount", "-l", str(self.folder)], check=False)


class Trial:
    """One process after the other in a folder, and what was wrong with them."""

    def __init__(self, name: str, place: Place, real: bool, cores: list[int]):
        self.name = name
        self.place = place
        self.cores = cores
        self.wrong = []
        self.said = []
        self.disk = Disk(place.path / name.replace(" ", "_").replace(",", ""), real)
        self.out = self.disk.folder / "run"

    def start(self, arguments: list[str], **more) -> Process:
        # quiet, since a slow machine has lines of progress to tell
        return self.place.start([*arguments, "--quiet"], self.cores, **more)

    def check(self, what: str, good: bool) -> None:
        if not good:
            self.wrong.append(what)

    def refused(self, process: Process, *words: str) -> None:
        """It has ended with exit code 2 and one sentence that has these words."""
        code = process.end()
        lines = [line for line in process.errors.splitlines() if not LOG.match(line)]
        self.said.append(process.last)
        self.check(f"exit code {code}", code == 2)
        self.check(
            f"{len(lines)} lines: {lines[:1]}", len(lines) == 1 and lines[0].startswith("sapm: ")
        )
        self.check(f"no {words} in {process.last!r}", all(word in process.last for word in words))

    def training(self, process: Process, records: int = 30) -> None:
        """Wait until it has come so far."""
        log = self.out / "history.jsonl"

        def count():
            return log.read_bytes().count(b"\n") if log.exists() else 0

        before = count()
        self.check(
            f"ended too early: {process.last}",
            until(lambda: bool(checkpoints(self.out)) and count() >= before + records, process),
        )

    def goes_on(self, combination) -> None:
        """The run, continued for some sweeps more, is one that was never interrupted."""
        done = int(read(checkpoints(self.out)[0])[0]["history/iteration"].max())
        whole = self.place.path / "whole" / self.out.parent.name / self.out.name
        for arguments in (
            combination.resume(self.out, done + 20),
            combination.run(whole, done + 20),
        ):
            process = self.start(arguments)
            code = process.end()
            self.check(f"{arguments[0]} ended with {code}: {process.last}", code == 0)
        for difference in differences(whole, self.out)[:4]:
            self.check(f"not equal: {difference}", False)

    def found(self) -> dict:
        self.disk.close()
        return {"trial": self.name, "good": not self.wrong, "wrong": self.wrong, "said": self.said}


def full(trial: Trial, combination) -> None:
    """The disk fills up in the middle of a run."""
    limit = (
        None
        if trial.disk.real
        else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    )
    process = trial.start(combination.run(trial.out, ENDLESS), preexec_fn=limit)
    trial.training(process)
    if trial.disk.real:
        trial.disk.fill()
    why = "No space left on device" if trial.disk.real else "File too large"
    trial.refused(process, why, str(trial.out), f"continue with: sapm resume {trial.out}")
    if trial.disk.real:
        again = trial.start(combination.resume(trial.out, ENDLESS))
        trial.refused(again, why, str(trial.out))
        trial.disk.empty()
    trial.goes_on(combination)


def full_at_once(trial: Trial, combination) -> None:
    """There is no room from the start; later there is."""
    if not trial.disk.real:
        trial.said.append("left out: it needs a disk of its own")
        return
    trial.disk.fill()
    trial.refused(trial.start(combination.run(trial.out, 20)), "No space left on device")
    trial.disk.empty()
    process = trial.start(combination.run(trial.out, 20))
    trial.check(f"the same command ended with {process.end()}: {process.last}", process.end() == 0)
    trial.goes_on(combination)


def read_only(trial: Trial, combination) -> None:
    """The folder turns read-only in the middle of a run."""
    process = trial.start(combination.run(trial.out, ENDLESS))
    trial.training(process)
    trial.disk.lock()
    why = "Read-only file system" if trial.disk.real else "Permission denied"
    trial.refused(process, why, str(trial.out), f"continue with: sapm resume {trial.out}")
    trial.refused(trial.start(combination.resume(trial.out)), why)
    trial.disk.unlock()
    trial.goes_on(combination)


def second(trial: Trial, combination) -> None:
    """A second process in the same folder is refused and disturbs nothing; the first is stopped by
    Ctrl-C.
    """
    process = trial.start(combination.run(trial.out, ENDLESS))
    trial.training(process)
    for arguments in (combination.run(trial.out), combination.resume(trial.out)):
        trial.refused(trial.start(arguments), "is in use by another process", str(trial.out))
    trial.training(process, 5)
    process.send(signal.SIGINT)
    code = process.end()
    trial.check(
        f"Ctrl-C ended with {code}: {process.last}", code == 130 and "sapm resume" in process.last
    )
    trial.goes_on(combination)


def freed(trial: Trial, combination) -> None:
    """The owner is stopped and its lock is removed: a second process is refused all the same, and
    the owner goes on when it may.
    """
    process = trial.start(combination.run(trial.out, ENDLESS))
    trial.training(process)
    process.send(signal.SIGSTOP)
    (trial.out / ".lock").unlink()
    trial.refused(trial.start(combination.resume(trial.out)), "is in use by another process")
    process.send(signal.SIGCONT)
    trial.training(process, 5)
    process.send(signal.SIGINT)
    trial.check(f"Ctrl-C ended with {process.end()}: {process.last}", process.end() == 130)
    trial.goes_on(combination)


def taken(trial: Trial, combination) -> None:
    """The owner is stopped, its folder is moved, and a second run begins in its place: the first
    one ends and leaves the second alone. Both are continued.
    """
    process = trial.start(combination.run(trial.out, ENDLESS))
    trial.training(process)
    process.send(signal.SIGSTOP)
    moved = trial.out.with_name("moved")
    trial.out.rename(moved)
    second = trial.start(combination.run(trial.out, ENDLESS))
    trial.training(second)
    process.send(signal.SIGCONT)
    trial.refused(process, "was moved, removed or replaced", str(trial.out))
    trial.training(second, 5)
    second.send(signal.SIGINT)
    trial.check(f"Ctrl-C ended with {second.end()}: {second.last}", second.end() == 130)
    trial.goes_on(combination)
    trial.out = moved
    trial.goes_on(combination)


def left_lock(trial: Trial, combination) -> None:
    """The owner is killed and leaves its lock: of two that want to take over, one does, and the
    other is refused.
    """
    process = trial.start(combination.run(trial.out, ENDLESS))
    trial.training(process)
    process.send(signal.SIGKILL)
    process.end()
    trial.check("no lock was left", (trial.out / ".lock").exists())
    before = newest(trial.out, "history.jsonl")
    two = [trial.start(combination.resume(trial.out, ENDLESS)) for _ in range(2)]
    end = time.monotonic() + 300
    while all(p.running for p in two) and time.monotonic() < end:
        time.sleep(0.01)
    loser, winner = sorted(two, key=lambda p: p.running)
    trial.refused(loser, "is in use by another process")
    until(lambda: newest(trial.out, "history.jsonl") > before, winner)
    winner.send(signal.SIGTERM)
    code = winner.end()
    trial.check(
        f"SIGTERM ended with {code}: {winner.last}", code == 143 and "sapm resume" in winner.last
    )
    trial.goes_on(combination)


TRIALS = {
    "full disk, sweeps": (full, SWEEPS),
    "full disk, data on disk": (full, STREAMED),
    "full disk from the start": (full_at_once, SWEEPS),
    "read-only folder, sweeps": (read_only, SWEEPS),
    "read-only folder, data on disk": (read_only, STREAMED),
    "second process": (second, SWEEPS),
    "lock of a killed process": (left_lock, SWEEPS),
    "lock of a stopped process": (freed, SWEEPS),
    "folder taken, sweeps": (taken, SWEEPS),
    "folder taken, data on disk": (taken, STREAMED),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="trials with this in their name")
    jobs_option(parser)
    given = parser.parse_args(arguments)
    began = time.monotonic()
    real = can_mount()
    if not real and NAMESPACE not in os.environ and shutil.which("unshare"):
        inside = ["unshare", "--user", "--map-root-user", "--mount"]
        if (
            subprocess.run(
                [*inside, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
            ).returncode
            == 0
        ):
            again = [sys.executable, __file__, *(sys.argv[1:] if arguments is None else arguments)]
            return subprocess.run(
                [*inside, *again], env=os.environ | {NAMESPACE: "1"}, check=False
            ).returncode
    chosen = {name: trial for name, trial in TRIALS.items() if given.only in name}
    folder = Path(tempfile.mkdtemp(prefix="sapm-disk-"))
    cores = Cores(given.jobs)
    place = Place(folder)
    try:

        def work(name: str) -> dict:
            how, combination = chosen[name]
            with cores.taken() as mine:
                trial = Trial(name, place, real, mine)
                try:
                    how(trial, combination)
                except Exception as error:
                    trial.wrong.append(f"{type(error).__name__}: {error}")
                return trial.found()

        def show(_, row) -> None:
            print(
                f"  {row['trial']:32} "
                f"{'good' if row['good'] else 'WRONG: ' + '; '.join(row['wrong'])}",
                flush=True,
            )
            for said in row["said"]:
                print(f"      {said.replace(str(folder), '…')}", flush=True)

        rows = side_by_side(work, chosen, given.jobs, show)
    finally:
        for mount in folder.iterdir():
            while (
                os.path.ismount(mount)
                and subprocess.run(["umount", "-l", str(mount)], check=False).returncode == 0
            ):
                pass
        shutil.rmtree(folder, ignore_errors=True)
    good = sum(row["good"] for row in rows)
    how = "on tmpfs" if real else "without mounts: limits on files and permissions stand for them"
    sentence = (
        f"{good} of {len(rows)} ended in one sentence, without loss, and were continued bit "
        f"for bit ({how})"
    )
    return verdict(
        "disk", good == len(rows), sentence, {"rows": rows, "mounts": real}, given.out, began
    )


if __name__ == "__main__":
    sys.exit(main())
