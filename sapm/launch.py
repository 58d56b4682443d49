"""Several processes: start them on this machine and watch over them, or take this one's place among those started elsewhere."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import contextmanager, suppress

HEARTBEAT = 30  # seconds without a sign of life after which a process on another machine is taken to be lost
LOST, STOPPING = 1, 60.0  # the exit code of a run that lost a process; seconds granted to all of them to save and end


def join(address: str | None, process: int | None, processes: int | None) -> None:
    """Be one of several processes: at that address as that one of so many, or as Slurm, Open MPI and the like say."""
    import jax
    from jax.experimental.multihost_utils import sync_global_devices

    explicit = {"--address": address, "--process": process, "--processes": processes}
    missing = [name for name, value in explicit.items() if value is None]
    if 0 < len(missing) < 3:
        raise ValueError(f"--distributed has no {' and no '.join(missing)}; give all of {', '.join(explicit)}, or none of them.")
    if processes is not None and process is not None and not 0 <= process < processes:
        raise ValueError(f"--process {process} is not one of {processes}; they are counted from 0 to {processes - 1}.")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    _batch()
    try:
        with _silent():
            jax.distributed.initialize(
                address, processes, process, heartbeat_timeout_seconds=HEARTBEAT, shutdown_timeout_seconds=HEARTBEAT
            )
            sync_global_devices("all are there")
    except (ValueError, RuntimeError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(
            f"--distributed found no place for this process ({why}); start it by srun or mpirun, or give --address HOST:PORT, "
            "--process I and --processes N."
        ) from None
    if jax.process_index() > 0:  # the first one speaks for all
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _batch() -> None:
    """Be a batch job to Linux. On a core of its own, a process of the usual kind gets to each sum that it waits for only when
    the turn of its other threads is over: measured, 3.8 ms for one of 100 numbers, in place of 0.1 ms."""
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


@contextmanager
def _silent():
    """Without what libraries print to the standard output, which is for the answer alone."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _shares(count: int) -> list[list[int] | None]:
    """The cores of every process."""
    if not hasattr(os, "sched_getaffinity"):
        return [None] * count
    cores = sorted(os.sched_getaffinity(0))
    each = max(1, len(cores) // count)
    return [[cores[(i * each + k) % len(cores)] for k in range(each)] for i in range(count)]


def launch(arguments: Sequence[str], count: int) -> tuple[int, str]:
    """Run `sapm` with these arguments in so many processes: (exit code, a sentence if a process was lost).

    The output is that of the first. When one fails, the others, which would wait for it, are ended.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    logs = [tempfile.TemporaryFile() for _ in range(count)]  # noqa: SIM115
    children: list[subprocess.Popen] = []
    try:
        for i, cores in enumerate(_shares(count)):
            place = ["--distributed", "--address", address, "--process", str(i), "--processes", str(count)]
            command = [sys.executable, "-m", "sapm", *arguments, *place]
            quiet = {} if i == 0 else {"stdout": subprocess.DEVNULL, "stderr": logs[i]}
            children.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **quiet))
            if cores is not None:
                os.sched_setaffinity(children[-1].pid, cores)  # long before JAX counts them
        return _watched(children, logs)
    finally:
        for child in children:
            child.kill()
            child.wait()


def _watched(children: list[subprocess.Popen], logs: list) -> tuple[int, str]:
    until, first = float("inf"), None  # the first that failed
    while time.monotonic() < until:
        try:
            codes = [child.poll() for child in children]
            spoke = [i for i, code in enumerate(codes) if code is not None and code > LOST]
            killed = [i for i, code in enumerate(codes) if code is not None and code < 0]
            if first is None and killed and not spoke:
                name = signal.Signals(-(codes[killed[0]] or 0)).name
                return LOST, f"process {killed[0]} of {len(children)} was killed ({name}), and the others were stopped."
            if first is None and any(codes):  # all end alike; or one failed, and the others break without it
                first, until = (spoke or [i for i, code in enumerate(codes) if code])[0], time.monotonic() + 5.0
            if None not in codes:
                break
            time.sleep(0.1)
        except KeyboardInterrupt:
            for child in children:
                if child.poll() is None:
                    child.send_signal(signal.SIGINT)
            until = time.monotonic() + STOPPING
    codes = [child.poll() for child in children]
    if first is None:
        return (LOST, "the processes did not end, and were stopped.") if None in codes else (0, "")
    code = codes[first] or LOST
    if first == 0 or set(codes) == {code}:
        return code, ""  # the first process has said why
    logs[first].seek(0)
    said = logs[first].read().decode(errors="replace").strip().splitlines()
    return code, f"process {first} of {len(children)} failed: {said[-1] if said else 'it said nothing'}"
