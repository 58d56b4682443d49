"""Files of a run: atomic writes, the .sapm file, the folder with its lock, and the environment.

A .sapm file is one safetensors file: arrays, and a description in JSON. Every file is replaced in
one step, so that a reader, or a process that is killed, finds either the old file or the new one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
from filelock import FileLock, Timeout

from sapm import __version__
from sapm.errors import brief, json_safe, printable, shown_path
from sapm.scopes import THREAD_VARIABLES, first_process, installed_memory, usual_settings

FORMAT = 2  # version of the .sapm file; a reader refuses a higher one
LARGEST_JSON_BYTES = 2**28  # a larger file was not written by sapm
# Read, a description may take 24 times its size. It grows with the number of seeds and of columns
# of data, as the arrays do, and has at most a quarter of their size, and so many bytes.
LONGEST_DESCRIPTION = 2**24
# safetensors allows a header of 100 MB; a longer description is stored as an array
LARGEST_HEADER_BYTES = 2**25
MOST_LISTED_RUNS = 20  # in an error message

# what a run writes into its folder
FIRST_FILES = {"config.json", "env.json", "history.jsonl"}  # written before the first checkpoint
ALL_FILES = (
    *FIRST_FILES,
    "summary.json",
    "model.sapm",
    "first.sapm",
    "report.html",
    "checkpoint/latest.sapm",
)
# what nothing else may replace; a page is written anew whenever it is wanted
OWN_FILES = {Path(name).name for name in ALL_FILES if name != "report.html"}
OWN_FILES |= {".lock", "reproduce.json", "cell.json"}
OWN_FOLDERS = {"checkpoint", "cells"}  # cells of a benchmark
RUN_MARKS = ("checkpoint", "history.jsonl", "reproduce.json", "cells")  # one of them is in a run

# ---------------------------------------------------------------- atomic writes


def _from_numpy(x: Any):
    """NumPy numbers and arrays as Python's, for JSON."""
    if isinstance(x, (np.ndarray, np.generic)):
        return x.tolist()
    raise TypeError(f"{type(x).__name__} cannot be written to a file: {brief(x)}")


def to_json(x: Any, **kwargs) -> str:
    """x as JSON that is safe to print, with NumPy numbers and arrays."""
    return printable(json.dumps(x, default=_from_numpy, ensure_ascii=False, **kwargs), in_json=True)


def check_output(path: Path, *read: Path, saved: bool = False) -> None:
    """Refuse to write where something would be lost that the user did not mean: a file of a run, a
    saved result, or a file that is read.

    Parameters
    ----------
    path : the file that the user wants written. Its real path counts, so links do not matter, and
        neither does case, since some file systems ignore it.
    read : the files that are read for it.
    saved : whether a saved result is what is written.
    """
    if "\0" in str(path):
        return  # `write_whole` refuses it
    why = ""
    beside = Path(os.path.realpath(path.parent)) / path.name  # a link may be a file of a run itself
    for target in (beside, Path(os.path.realpath(path))):
        name = target.name.casefold()
        inside = target.parent.name.casefold() in OWN_FOLDERS
        run = target.parent.parent if inside else target.parent
        if (inside or name in OWN_FILES) and any((run / mark).exists() for mark in RUN_MARKS):
            why = f"it belongs to the run in {shown_path(run)}"
        elif name.endswith(".sapm") and not saved:
            why = "that ending is for saved results"
    same = (path.exists() and given.exists() and path.samefile(given) for given in read)
    if not why and any(same):
        why = "it is the file that is read"
    if why:
        raise ValueError(
            f"{shown_path(path)} is not replaced, since {why}; give another name; nothing was "
            "written."
        )


def write_whole(path: Path, body: bytes, own: bool = False) -> None:
    """Replace a file in one step.

    A link stays a link, and the permissions of the old file are kept. A pipe or a device is written
    to directly.

    Parameters
    ----------
    path : the file.
    body : its new content.
    own : whether it is a file of the run that is written; every other path is the user's, see
        `check_output`.
    """
    if not own:
        check_output(path)
    if path.is_dir() or "\0" in str(path):
        what = "is a folder" if path.is_dir() else "contains a NUL character"
        raise ValueError(
            f"{shown_path(path)} {what}; give the name of a file, such as "
            "u.npz; nothing was written."
        )
    if path.exists() and not path.is_file():
        with open(path, "wb") as file:
            file.write(body)
        return
    path = Path(os.path.realpath(path))
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
        with os.fdopen(handle, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
        os.chmod(temporary, mode)
        os.replace(temporary, path)
        temporary = None
        _sync_folder(path.parent)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror or error}; what was written before is kept",
            str(path),
        ) from error
    finally:
        if temporary is not None:
            with suppress(OSError):  # a disk that cannot be written to
                os.unlink(temporary)


def _sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk: later writes may overwrite what only the old file
    needed.
    """
    with suppress(OSError):  # not every system can
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# ---------------------------------------------------------------- the .sapm file


def _digest(arrays: dict[str, np.ndarray], about: str) -> str:
    """SHA-256 of the description and of every array's name, type, shape and bytes."""
    digest = hashlib.sha256(about.encode())
    for name in sorted(arrays):
        a = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}|{a.dtype.str}|{a.shape}|".encode())
        digest.update(a.tobytes())
    return digest.hexdigest()


def write(path: str | Path, arrays: dict[str, np.ndarray], about: dict, own: bool = False) -> None:
    """Write a .sapm file: arrays by name, and a description.

    Parameters
    ----------
    path : the file, which is replaced in one step.
    arrays : its arrays by name.
    about : its description, which must fit into JSON.
    own : whether it is a file of the run that is written.
    """
    from safetensors.numpy import save

    if not own:
        check_output(Path(path), saved=True)
    arrays = {
        name: np.ascontiguousarray(a) if np.ndim(a) else np.asarray(a) for name, a in arrays.items()
    }
    text = to_json(about)
    if len(body := text.encode()) > LARGEST_HEADER_BYTES:
        text = ""
        arrays["about"] = np.frombuffer(body, np.uint8)
    metadata = {
        "format": "sapm",
        "version": str(FORMAT),
        "about": text,
        "sha256": _digest(arrays, text),
    }
    write_whole(Path(path), save(arrays, metadata), own=True)


def read(path: str | Path) -> tuple[dict[str, np.ndarray], dict]:
    """(arrays, description) of a .sapm file; an error in one sentence for any other file."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    _check_readable(path)
    size = path.stat().st_size
    try:
        with safe_open(path, "np") as file:
            header = file.metadata() or {}
            _check_version(path, header)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except MemoryError:
        raise ValueError(
            f"{shown_path(path)} needs more memory than is free; end other programs, or use a "
            "larger machine."
        ) from None
    except (
        SafetensorError,
        OSError,
        UnicodeDecodeError,
        TypeError,
        AttributeError,
        KeyError,
    ) as error:
        reason = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
        raise ValueError(
            f"{shown_path(path)} ({size} bytes) is damaged or not a file written by sapm{reason}."
        ) from None
    text = header.get("about", "")
    if _digest(arrays, text) != header.get("sha256"):
        raise ValueError(
            f"{shown_path(path)} is damaged: its contents do not match its checksum; use an "
            "earlier copy."
        )
    body = text or arrays.pop("about", np.zeros(0)).tobytes()
    most = LONGEST_DESCRIPTION + sum(a.nbytes for a in arrays.values()) // 4
    if len(body) > most:
        raise ValueError(
            f"{shown_path(path)} is damaged: its description has {len(body)} bytes, and beside its "
            f"arrays it can have at most {most}; use an earlier copy."
        )
    return arrays, read_json(path, body)


def _check_readable(path: Path) -> None:
    if path.is_dir():
        raise ValueError(no_checkpoint(path))
    if not path.exists():
        raise FileNotFoundError(
            f"{shown_path(path)} does not exist; give the path of a file written by result.save(…)."
        )
    if not path.is_file():  # reading a pipe would wait for ever
        raise ValueError(
            f"{shown_path(path)} is not a file on disk; give the path of a file written by "
            "result.save(…)."
        )
    size = path.stat().st_size
    if size > installed_memory():
        raise ValueError(
            f"{shown_path(path)} ({size / 1e9:.3g} GB) is larger than the memory of this machine; "
            "is it a file written by sapm?"
        )


def _check_version(path: Path, header: dict[str, str]) -> None:
    if header.get("format") != "sapm":
        raise ValueError(f"{shown_path(path)} is a safetensors file, but not one written by sapm.")
    version = header.get("version", "")
    if not re.fullmatch("[0-9]{1,9}", version):
        raise ValueError(f"{shown_path(path)} is damaged: it does not say which version wrote it.")
    if int(version) > FORMAT:
        raise ValueError(
            f"{shown_path(path)} was written by a newer sapm (file format {version}; this one "
            f"reads up to {FORMAT}): upgrade."
        )


def read_json(path: Path, text: str | bytes | None = None) -> dict:
    """The dictionary in a JSON file, or in this text of it; a ValueError for anything else.

    Parameters
    ----------
    path : the file, also for errors.
    text : its content, if it was read already.
    """
    content = None
    try:
        size = path.stat().st_size if text is None else len(text)
        readable = text is not None or path.is_file()  # reading a pipe would wait for ever
        if size <= LARGEST_JSON_BYTES and readable:
            content = json.loads(path.read_text(encoding="utf-8") if text is None else text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{shown_path(path)} is damaged: it is not JSON at line {error.lineno}; use an earlier "
            "copy."
        ) from None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise ValueError(
            f"{shown_path(path)} is damaged: it is not a dictionary that sapm has written; use an "
            "earlier copy."
        )
    return content


# ---------------------------------------------------------------- the folder of a run


def check_inside(folder: Path, path: Path) -> None:
    """Refuse a path that a link leads out of its folder: writing to it would change other files.

    Parameters
    ----------
    folder : the folder.
    path : a path in it, which may be a link.
    """
    target = Path(os.path.realpath(path))
    if not target.is_relative_to(Path(os.path.realpath(folder))):
        raise ValueError(
            f"{shown_path(path)} leads out of {shown_path(folder)}, to {shown_path(target)}; put "
            "it there itself, in place of the link; nothing was changed."
        )


IN_USE = (
    "{} is in use by another process; wait for it to end, or choose another folder; nothing was "
    "changed."
)
LOST = (
    "{} was moved, removed or replaced while this run was using it, so the run has ended and "
    "writes nothing more; its last checkpoint is wherever the folder is now."
)
HELD_ELSEWHERE = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES}  # by another process
_handles: set[int] = set()  # of the folders that this process has locked


def _close_in_child() -> None:
    """A forked process has no part in the locks of its parent, and does not prolong them."""
    for handle in _handles:
        os.close(handle)
    _handles.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


class Claim:
    """A lock that reserves a folder for one process. The system releases it when the process ends,
    in whatever way.

    The folder itself is locked, so that removing a file in it frees nothing. The file `.lock` is
    locked as well: it is all that file systems (NFS) and systems (Windows) have that cannot lock
    folders.
    """

    def __init__(self, path: Path):
        if "\0" in str(path):
            raise ValueError(
                f"{shown_path(path)!r} is not the name of a folder; give one without a NUL in it."
            )
        self.path = path
        self._lock = FileLock(path / ".lock", timeout=0)
        self._handle: int | None = None  # of the folder, where it is locked
        self._locked = path  # what is locked: the folder, else the file in it
        self._identity: os.stat_result | None = None  # of that, while it is locked
        self._process = 0  # the process that has locked it
        self.new = False  # whether the folder had no lock file before
        self.refused = False  # whether the folder turned out to be somebody else's

    def __enter__(self) -> Claim:
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(
                f"out={shown_path(self.path)!r} is a file; give a folder that does not exist yet."
            )
        self.path.mkdir(parents=True, exist_ok=True)
        for folder in (self.path, self.path / "checkpoint"):
            for entry in folder.iterdir() if folder.is_dir() else ():
                if entry.is_symlink():
                    check_inside(self.path, entry)
        self.new = not (self.path / ".lock").exists()
        self._process = os.getpid()
        try:
            self._lock_folder()
            self._lock.acquire()
            self._locked = self.path / ".lock" if self._handle is None else self.path
            self._identity = (
                os.stat(self._locked) if self._handle is None else os.fstat(self._handle)
            )
            if not self.holds():  # replaced before it was locked
                raise BlockingIOError
        except BaseException as error:
            self._release()
            if isinstance(error, (Timeout, BlockingIOError)):
                raise ValueError(IN_USE.format(shown_path(self.path))) from None
            if isinstance(error, OSError) and error.filename is None:
                why = f"{error.strerror}; nothing can be locked there; choose another folder"
                raise OSError(error.errno, why, str(self.path)) from None
            raise
        return self

    def _lock_folder(self) -> None:
        """Lock the folder itself, where the system can; a BlockingIOError if it is locked."""
        if sys.platform == "win32":  # where files that are open cannot be removed
            return
        import fcntl

        self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        _handles.add(self._handle)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in HELD_ELSEWHERE:
                raise BlockingIOError(error.errno, error.strerror) from None
            self._release()  # such as NFS: the file is the lock

    def holds(self) -> bool:
        """Whether the path still leads to what this process has locked: a run writes only then."""
        if self._identity is None or os.getpid() != self._process:
            return False
        try:
            return os.path.samestat(self._identity, os.stat(self._locked))
        except (FileNotFoundError, NotADirectoryError):
            return False

    @property
    def why_lost(self) -> str:
        """What has become of the lock, if it does not hold any more."""
        return LOST.format(shown_path(self._locked))

    def check(self) -> None:
        """Raise an error if the path no longer leads to what was locked. Ask before every write."""
        if not self.holds():
            raise ValueError(self.why_lost)

    def _release(self) -> None:
        """Give back what is locked."""
        self._lock.release()
        if self._handle is not None:
            _handles.discard(self._handle)
            os.close(self._handle)
        self._handle = None
        self._identity = None

    def __exit__(self, *error) -> None:
        if os.getpid() != self._process:  # a forked process: the locks are its parent's
            return
        if self.new and self.refused and self.holds():  # somebody else's folder stays as it was
            (self.path / ".lock").unlink(missing_ok=True)
        self._release()


def _is_temporary(path: Path, names: Iterable[str]) -> bool:
    """Whether a write of one of these files was cut off and left this one."""
    return path.name.startswith(tuple(f".{name}." for name in names))


def unused(path: Path) -> bool:
    """Whether a folder may be used for a new run.

    It is empty but for the lock, or it holds the beginning of a run that was cut off before its
    first checkpoint.
    """
    names = {
        entry.name
        for entry in path.iterdir()
        if entry.name != ".lock" and not _is_temporary(entry, FIRST_FILES)
    }
    checkpoint = path / "checkpoint"
    if checkpoint.is_dir() and all(
        _is_temporary(entry, ["latest.sapm"]) or entry.match("aux-*.npy")
        for entry in checkpoint.iterdir()
    ):
        names.discard("checkpoint")
    history = path / "history.jsonl"
    empty_history = history.is_file() and not history.stat().st_size
    return not names or names == FIRST_FILES or (names < FIRST_FILES and empty_history)


def no_checkpoint(path: Path) -> str:
    """Why a folder cannot be read or continued as a run."""
    if (path / "checkpoint" / "latest.sapm").exists():
        return f"{shown_path(path)} is a run that has not ended; sapm.resume continues it."
    runs = [
        str(checkpoint.parent.parent)
        for depth in ("*", "*/*")
        for checkpoint in sorted(path.glob(f"{depth}/checkpoint/latest.sapm"))
    ]
    if runs:
        listed = ", ".join(map(shown_path, runs[:MOST_LISTED_RUNS]))
        return f"{shown_path(path)} is not the folder of a run; give one that is in it: {listed}."
    if (path / "history.jsonl").exists() and unused(path):
        return (
            f"{shown_path(path)} holds a run that was cut off before its first checkpoint; start "
            "it again in the same folder."
        )
    return (
        f"{shown_path(path)} is not the folder of a run: it has no checkpoint; start one with "
        f"sapm.solve(…, out={shown_path(path)!r})."
    )


class Folder:
    """The folder of a run.

    config.json, env.json, history.jsonl and checkpoint/latest.sapm are written while it runs;
    summary.json and model.sapm at its end. Of several processes (`jax.distributed`) the first one
    writes, and the others only read.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path).absolute()  # code of the user may change the working directory
        self.writes = first_process()
        self.lost = ""  # why nothing is written any more, once the lock guards this path no longer
        self._claim = Claim(self.path)
        # the lock of the folder, for a `with` statement
        self.claim = self._claim if self.writes else nullcontext()
        self.checkpoint = self.path / "checkpoint" / "latest.sapm"
        self.model = self.path / "model.sapm"
        self.first = self.path / "first.sapm"  # of two attempts, until the second is the result
        self._history = self.path / "history.jsonl"

    def holds(self) -> bool:
        """Whether this process may write here. It may not any more once the folder was moved,
        removed or replaced, even if it comes back.
        """
        if self.writes and not self.lost and not self._claim.holds():
            self.lost = self._claim.why_lost
        return self.writes and not self.lost

    def begin(self, config: dict, env: dict) -> None:
        """Write the first files of a new run; refuse a folder that is in use.

        Parameters
        ----------
        config : the settings, for config.json.
        env : the environment, for env.json.
        """
        if not self.writes:
            return
        if self.checkpoint.exists():
            raise ValueError(
                f"out={shown_path(self.path)!r} holds a run; continue it with sapm.resume(…) or "
                "`sapm resume …`, or choose another folder; nothing was changed."
            )
        if not unused(self.path):
            self._claim.refused = True
            raise ValueError(
                f"out={shown_path(self.path)!r} is not empty; choose another folder; nothing was "
                "changed."
            )
        self._remove_temporary()
        self.write_history([])  # first: `unused` knows a run that was cut off here by it
        self.write_json("config.json", config)
        self.write_json("env.json", env)

    def save(self, file: Path, arrays: dict[str, np.ndarray], about: dict) -> None:
        """Write a .sapm file of the folder: the checkpoint, the model or the first attempt.

        Parameters
        ----------
        file : `checkpoint`, `model` or `first` of this folder.
        arrays, about : as for `write`.
        """
        if self.holds():
            write(file, arrays, about, own=True)

    def forget_first(self) -> None:
        """Remove the first of two attempts."""
        if self.holds():
            self.first.unlink(missing_ok=True)

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file of the folder.

        Parameters
        ----------
        name : the name of the file.
        content : what it holds.
        """
        if self.holds():
            body = to_json(json_safe(content), indent=2) + "\n"
            write_whole(self.path / name, body.encode(), own=True)

    def write_history(self, lines: list[dict]) -> None:
        """Replace history.jsonl."""
        if self.holds():
            body = "".join(to_json(line) + "\n" for line in lines)
            write_whole(self._history, body.encode(), own=True)

    def reopen(self, config: dict, env: dict, iteration: int, longer: bool = True) -> None:
        """Prepare the folder of a run that is continued.

        The files of its end are removed (the checkpoint has as much), and env.json notes from which
        iteration on it runs here. config.json stays what was asked for at first, except the budget.

        Parameters
        ----------
        config, env : the settings and the environment of the continued run.
        iteration : the iteration from which it continues.
        longer : whether a new number of iterations was asked for, which is noted then.
        """
        if not self.holds():
            return
        self._remove_temporary()
        for stale in (self.model, self.path / "summary.json"):
            stale.unlink(missing_ok=True)
        names = ("max_iter", "max_seconds") if longer else ("max_seconds",)
        budget = {name: config[name] for name in names}
        self.write_json("config.json", (self._read_or_empty("config.json") or config) | budget)
        self._note_environment({"from_iteration": iteration} | env)

    def _note_environment(self, entry: dict) -> None:
        """Add an entry to env.json, if it differs from the last one in more than its iteration."""
        first = self._read_or_empty("env.json")
        later = first.get("later")
        later = later if isinstance(later, list) else []
        last = later[-1] if later else first
        new = json.loads(to_json(entry | {"from_iteration": 0}))
        if isinstance(last, dict) and last | {"from_iteration": 0} == new:
            return
        env = {name: value for name, value in entry.items() if name != "from_iteration"}
        self.write_json("env.json", first | {"later": [*later, entry]} if first else env)

    def _read_or_empty(self, name: str) -> dict:
        try:
            return read_json(self.path / name)
        except (OSError, ValueError):
            return {}

    def _remove_temporary(self) -> None:
        """Remove what writes that were cut off have left."""
        for file in map(self.path.joinpath, ALL_FILES):
            for temporary in file.parent.glob(f".{file.name}.????????"):
                temporary.unlink(missing_ok=True)

    def append(self, line: dict) -> None:
        """Add a line to history.jsonl."""
        if not self.holds():
            return
        try:
            with open(self._history, "a", encoding="utf-8") as file:
                file.write(to_json(line) + "\n")
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), str(self._history)) from error


# ---------------------------------------------------------------- the environment of a run

# environment variables that change how JAX computes, in addition to JAX_… and XLA_…
COMPUTE_VARIABLES = ("NPROC", "CUDA_VISIBLE_DEVICES", *THREAD_VARIABLES)
# vector units of a processor, which XLA compiles for
VECTOR_UNITS = ("avx", "avx2", "fma", "avx512f", "asimd", "sve")
RECORDED_PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "scipy")


@cache
def _processor() -> tuple[str, list[str]]:
    """(model, vector units), as Linux tells them; elsewhere the kind of machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    facts = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)
    }
    flags = (facts.get("flags") or facts.get("Features") or "").split()
    units = [name for name in VECTOR_UNITS if name in flags]
    return facts.get("model name") or platform.machine(), units


@cache
def _commit() -> str | None:
    """The commit of the repository that holds this package, with "-dirty" after a change; None
    outside of a repository.
    """
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    env = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        answer = subprocess.run(
            ["git", "-C", str(root), *describe],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
            env=env,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


@usual_settings()
def environment() -> dict:
    """What a difference between two runs can come from: versions, the machine, its devices, and
    the variables that tell JAX how to compute. It is kept in env.json and in .sapm files.
    """
    packages = {"sapm": __version__}
    for name in RECORDED_PACKAGES:
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # importable without being installed
            packages[name] = "unknown"
    processor, units = _processor()
    devices = jax.devices()
    cores = os.cpu_count()
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    variables = sorted(
        name
        for name in os.environ
        if name.startswith(("JAX_", "XLA_")) or name in COMPUTE_VARIABLES
    )
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": processor,
        "vector_units": units,
        "cores": cores,
        "cores_usable": usable,
        "devices": [f"{d.platform}: {d.device_kind}" for d in devices],
        "device_software": ", ".join(devices[0].client.platform_version.splitlines()),
        "processes": jax.process_count(),
        "x64": bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        "matmul_precision": jax.config.jax_default_matmul_precision,  # type: ignore[attr-defined]
        "packages": packages,
        "commit": _commit(),
        "flags": {name: os.environ[name] for name in variables},
    }
