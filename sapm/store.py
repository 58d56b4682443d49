"""Files: arrays and a description in one safetensors file, written whole or not at all; and the folder of a run."""

from __future__ import annotations

import _thread
import hashlib
import json
import os
import re
import sys
import tempfile
import threading
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from sapm.devices import first_process
from sapm.names import brief, plain, shown

LARGEST_JSON = 2**28  # bytes of a description; a larger one is not ours
HEADER = 2**25  # bytes of a description in the header of a file, which safetensors allows 100 MB; a longer one is an array
FORMAT = 1  # of the .sapm file; a reader refuses files with a higher number


def _plain(x: Any):
    """NumPy's numbers and arrays as JSON's."""
    if isinstance(x, (np.ndarray, np.generic)):
        return x.tolist()
    raise TypeError(f"{type(x).__name__} cannot be written to a file: {brief(x)}")


def to_json(x: Any, **kwargs) -> str:
    return json.dumps(x, default=_plain, ensure_ascii=False, **kwargs)


def write_whole(path: Path, body: bytes) -> None:
    """Replace the file in one step: whoever reads it, or is killed meanwhile, finds the old one or the new one.

    A link stays a link, to the new file, who may read it stays as it was; a pipe or a device is written to.
    """
    if path.is_dir() or "\0" in str(path):
        what = "is a folder" if path.is_dir() else "is no name"
        raise ValueError(f"{shown(str(path), 300)} {what}; give the name of a file, such as u.npz; nothing was written.")
    if path.exists() and not path.is_file():
        with open(path, "wb") as file:
            file.write(body)
        return
    path, name = Path(os.path.realpath(path)), None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
        with os.fdopen(handle, "wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        os.replace(name, path)
        name = None
        _sync_names(path.parent)
    except BaseException as error:
        if name is not None:
            with suppress(OSError):  # where nothing can be written, nothing can be removed
                os.unlink(name)
        if isinstance(error, OSError):
            raise OSError(error.errno, f"{error.strerror or error}; what was written before is kept", str(path)) from error
        raise


def _sync_names(folder: Path) -> None:
    """Have the disk know the new name: what comes after may overwrite files that only the old content needed."""
    with suppress(OSError):  # not every system can
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def installed_memory() -> float:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else float("inf")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _digest(arrays: dict[str, np.ndarray], about: str) -> str:
    """Over the description and every array's name, type, shape and bytes: a flipped bit shows."""
    digest = hashlib.sha256(about.encode())
    for name in sorted(arrays):
        a = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}|{a.dtype.str}|{a.shape}|".encode())
        digest.update(a.tobytes())
    return digest.hexdigest()


def write(path: str | Path, arrays: dict[str, np.ndarray], about: dict) -> None:
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(a) if np.ndim(a) else np.asarray(a) for name, a in arrays.items()}
    text = to_json(about)
    if len(body := text.encode()) > HEADER:
        text, arrays["about"] = "", np.frombuffer(body, np.uint8)
    metadata = {"format": "sapm", "version": str(FORMAT), "about": text, "sha256": _digest(arrays, text)}
    write_whole(Path(path), save(arrays, metadata))


def read(path: str | Path) -> tuple[dict[str, np.ndarray], dict]:
    """(arrays, description); a ValueError in one sentence for what is not a whole file of ours."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if path.is_dir():
        raise ValueError(no_checkpoint(path))
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the path of a file written by result.save(…).")
    if not path.is_file():  # a pipe would be waited for, for ever
        raise ValueError(f"{path} is not a file on disk; give the path of a file written by result.save(…).")
    size = path.stat().st_size
    if size > installed_memory():
        raise ValueError(f"{path} ({size / 1e9:.3g} GB) is larger than the memory of this machine; is it a file written by sapm?")
    try:
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != "sapm":
                raise ValueError(f"{path} is a safetensors file, but not one written by sapm.")
            number = metadata.get("version", "")
            if not re.fullmatch("[0-9]{1,9}", number):
                raise ValueError(f"{path} is damaged: it does not say which version wrote it.")
            if int(number) > FORMAT:
                raise ValueError(
                    f"{path} was written by a newer sapm (file format {number}; this one reads up to {FORMAT}): upgrade."
                )
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except MemoryError:
        raise ValueError(f"{path} needs more memory than is free; end other programs, or read it on a larger machine.") from None
    except (SafetensorError, OSError, UnicodeDecodeError, TypeError, AttributeError, KeyError) as error:
        said = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
        raise ValueError(f"{path} ({size} bytes) is damaged or is not a file written by sapm{said}.") from None
    text = metadata.get("about", "")
    if _digest(arrays, text) != metadata.get("sha256"):
        raise ValueError(f"{path} is damaged: its contents do not match its checksum; use an earlier copy.")
    return arrays, read_json(path, text or arrays.pop("about", np.zeros(0)).tobytes())


def read_json(path: Path, text: str | bytes | None = None) -> dict:
    """The dictionary that a JSON file holds, or that text of it; a ValueError in one sentence for anything else."""
    try:
        found, size = None, path.stat().st_size if text is None else len(text)
        if size <= LARGEST_JSON and (text is not None or path.is_file()):  # a pipe would be waited for
            found = json.loads(path.read_text(encoding="utf-8") if text is None else text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged: it is not JSON at line {error.lineno}; use an earlier copy.") from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: it is not a dictionary that sapm has written; use an earlier copy.")
    return found


@contextmanager
def every_interrupt():
    """Python drops what is raised while it collects garbage, in which JAX has a part; a Ctrl-C lost so is sent again."""
    before = sys.unraisablehook

    def hook(lost) -> None:
        if lost.exc_type is KeyboardInterrupt:
            threading.Timer(0.05, _thread.interrupt_main).start()
        else:
            before(lost)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def inside(folder: Path, path: Path) -> None:
    """Refuse a path in a folder that a link leads out of it: what is kept in a folder is written nowhere else."""
    there, real = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    if not real.is_relative_to(there):
        how = "put it there itself, in place of the link; nothing was changed"
        raise ValueError(f"{path} leads out of {folder}, to {real}; {how}.")


class Claim:
    """A folder for one process at a time. The system drops the claim when its owner ends, however it ends."""

    def __init__(self, path: Path):
        if "\0" in str(path):
            raise ValueError(f"{str(path)!r} is not the name of a folder; give one without a NUL in it.")
        self.path, self._lock = path, FileLock(path / ".lock", timeout=0)
        self.new = self.refused = False

    def __enter__(self) -> Claim:
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"out={str(self.path)!r} is a file; give a folder that does not exist yet.")
        self.path.mkdir(parents=True, exist_ok=True)
        for folder in (self.path, self.path / "checkpoint"):
            for held in folder.iterdir() if folder.is_dir() else ():
                if held.is_symlink():
                    inside(self.path, held)
        self.new = not (self.path / ".lock").exists()
        try:
            self._lock.acquire()
        except Timeout:
            raise ValueError(
                f"{self.path} is in use by another process; wait for it to end, or choose another folder; nothing was changed."
            ) from None
        return self

    def __exit__(self, *error) -> None:
        self._lock.release()
        if self.new and self.refused:  # somebody else's folder stays as it was
            (self.path / ".lock").unlink(missing_ok=True)


BEGUN = {"config.json", "env.json", "history.jsonl"}
WRITTEN = (*BEGUN, "summary.json", "model.sapm", "first.sapm", "report.html", "checkpoint/latest.sapm")


def unused(path: Path) -> bool:
    """Whether a folder is empty, but for our lock, or holds only the beginning of a run cut off before its first checkpoint."""
    left = lambda p, names: p.name.startswith(tuple(f".{name}." for name in names))  # noqa: E731 (by a write that was cut off)
    found = {p.name for p in path.iterdir() if p.name != ".lock" and not left(p, BEGUN)}
    checkpoint, history = path / "checkpoint", path / "history.jsonl"
    if checkpoint.is_dir() and all(left(p, ["latest.sapm"]) or p.match("aux-*.npy") for p in checkpoint.iterdir()):
        found.discard("checkpoint")
    return not found or found == BEGUN or (found < BEGUN and history.is_file() and not history.stat().st_size)


def no_checkpoint(path: Path) -> str:
    """Why a folder cannot be read or continued as a run."""
    if (path / "checkpoint" / "latest.sapm").exists():
        return f"{path} is a run that has not ended; sapm.resume goes on with it."
    if runs := [str(p.parent.parent) for depth in ("*", "*/*") for p in sorted(path.glob(f"{depth}/checkpoint/latest.sapm"))]:
        return f"{path} is not the folder of a run; give one that is in it: {', '.join(runs[:20])}."
    if (path / "history.jsonl").exists() and unused(path):
        return f"{path} holds a run that was cut off before its first checkpoint; start it again, in the same folder."
    return f"{path} is not the folder of a run: it has no checkpoint; start one with sapm.solve(…, out={str(path)!r})."


class Folder:
    """The folder of a run: config.json, env.json, history.jsonl, checkpoint/latest.sapm; at the end summary.json, model.sapm.

    Of several processes (`jax.distributed`) the first one writes; the others only read.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.writes = first_process()
        self._claim = Claim(self.path)
        self.checkpoint = self.path / "checkpoint" / "latest.sapm"
        self.model = self.path / "model.sapm"
        self.first = self.path / "first.sapm"  # of two attempts, until the second is the result
        self._history = self.path / "history.jsonl"

    @property
    def claim(self):
        return self._claim if self.writes else nullcontext()

    def begin(self, config: dict, env: dict) -> None:
        if not self.writes:
            return
        if self.checkpoint.exists():
            raise ValueError(
                f"out={str(self.path)!r} holds a run; continue it with sapm.resume(…) or `sapm resume …`, or choose another "
                "folder; nothing was changed."
            )
        if not unused(self.path):
            self._claim.refused = True
            raise ValueError(f"out={str(self.path)!r} is not empty; choose another folder; nothing was changed.")
        self._tidy()
        self.write_history([])  # the first, so that a run cut off here is known by it
        self.write_json("config.json", config)
        self.write_json("env.json", env)

    def save(self, file: Path, arrays: dict[str, np.ndarray], about: dict) -> None:
        """`file`: the checkpoint or the model."""
        if self.writes:
            write(file, arrays, about)

    def forget_first(self) -> None:
        if self.writes:
            self.first.unlink(missing_ok=True)

    def write_json(self, name: str, content: Any) -> None:
        if self.writes:
            write_whole(self.path / name, (to_json(plain(content), indent=2) + "\n").encode())

    def write_history(self, lines: list[dict]) -> None:
        if self.writes:
            write_whole(self._history, "".join(to_json(line) + "\n" for line in lines).encode())

    def reopen(self, config: dict, env: dict, iteration: int, longer: bool = True) -> None:
        """Take away what an earlier end has left (the checkpoint has as much); note the new budget, and where the run goes on.

        config.json stays what was asked for (`longer`: now as well), while the checkpoint has what it came to.
        """
        if not self.writes:
            return
        self._tidy()
        for stale in (self.model, self.path / "summary.json"):
            stale.unlink(missing_ok=True)
        budget = {name: config[name] for name in ("max_iter", "max_seconds") if longer or name != "max_iter"}
        self.write_json("config.json", (self._held("config.json") or config) | budget)
        held = self._held("env.json")
        later = later if isinstance(later := held.get("later"), list) else []
        last = later[-1] if later else held
        if not isinstance(last, dict) or last | {"from_iteration": 0} != json.loads(to_json(env | {"from_iteration": 0})):
            self.write_json("env.json", held | {"later": [*later, {"from_iteration": iteration} | env]} if held else env)

    def _held(self, name: str) -> dict:
        try:
            return read_json(self.path / name)
        except (OSError, ValueError):
            return {}

    def _tidy(self) -> None:
        """Remove what writes that were cut off have left."""
        for file in map(self.path.joinpath, WRITTEN):
            for left in file.parent.glob(f".{file.name}.????????"):
                left.unlink(missing_ok=True)

    def append(self, line: dict) -> None:
        if not self.writes:
            return
        try:
            with open(self._history, "a", encoding="utf-8") as file:
                file.write(to_json(line) + "\n")
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), str(self._history)) from error
