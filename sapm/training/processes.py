"""Several processes (`jax.distributed`): start and watch them on this machine, or join those that
were started elsewhere.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import contextmanager, suppress

from sapm.scopes import unless_interrupted

HEARTBEAT_SECONDS = 30  # without a heartbeat, a process on another machine counts as lost
EXIT_PROCESS_LOST = 1  # exit code of a run that lost a process
STOPPING_SECONDS = 60.0  # for all processes to save their state and end after Ctrl-C
POLL_SECONDS = 0.1
FAILURE_SECONDS = 5.0  # for the other processes to end after one has failed


def join(address: str | None, process: int | None, processes: int | None) -> None:
    """Make this process one of several.

    Parameters
    ----------
    address : HOST:PORT of the first process.
    process : the number of this process, counted from 0.
    processes : the number of processes.

    All three are None where Slurm or Open MPI provide them.
    """
    import jax
    from jax.experimental.multihost_utils import sync_global_devices

    explicit = {"--address": address, "--process": process, "--processes": processes}
    missing = [name for name, value in explicit.items() if value is None]
    if 0 < len(missing) < 3:
        raise ValueError(
            f"--distributed: got no {' and no '.join(missing)}, expected all of "
            f"{', '.join(explicit)}, or none; give those that are missing."
        )
    if processes is not None and process is not None and not 0 <= process < processes:
        raise ValueError(
            f"--process {process} is not one of {processes}; they are counted from 0 to "
            f"{processes - 1}."
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    _batch()
    try:
        with _silent():
            jax.distributed.initialize(
                address,
                processes,
                process,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
                shutdown_timeout_seconds=HEARTBEAT_SECONDS,
            )
            sync_global_devices("all are there")
    except (ValueError, RuntimeError) as error:
        why = str(error).splitlines()[0]
        raise ValueError(
            f"--distributed: got no connection to the other processes ({why}), expected a launcher "
            "or an address; start it by srun or mpirun, or give --address HOST:PORT, --process I "
            "and --processes N."
        ) from None
    if jax.process_index() > 0:  # the first one speaks for all
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _batch() -> None:
    """Ask Linux for batch scheduling.

    With the default scheduling, a process that waits for a sum gets it only at the end of the time
    slice of its other threads. Measured on a core for each process: a sum of 100 numbers takes
    3.8 ms, and 0.1 ms with batch scheduling.
    """
    if hasattr(os, "SCHED_BATCH"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


@contextmanager
def _silent():
    """Discard what libraries print to the standard output, which is for the answer alone."""
    sys.stdout.flush()
    stdout = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(nowhere)


def _shares(count: int) -> list[list[int] | None]:
    """For every process the cores that it runs on; None where the system cannot assign them."""
    if not hasattr(os, "sched_getaffinity"):
        return [None] * count
    cores = sorted(os.sched_getaffinity(0))
    each = max(1, len(cores) // count)
    return [[cores[(i * each + k) % len(cores)] for k in range(each)] for i in range(count)]


def launch(arguments: Sequence[str], count: int) -> tuple[int, str]:
    """Run the command `sapm` in several processes on this machine.

    The output is that of the first process. If a process fails, the others are ended, since they
    would wait for it.

    Parameters
    ----------
    arguments : the command line of `sapm`, without the number of processes.
    count : the number of processes.

    Returns
    -------
    The exit code, and a sentence if a process was lost ("" otherwise).
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    logs = [tempfile.TemporaryFile() for _ in range(count)]  # noqa: SIM115
    children: list[subprocess.Popen] = []
    try:
        for i, cores in enumerate(_shares(count)):
            place = [
                "--distributed",
                "--address",
                address,
                "--process",
                str(i),
                "--processes",
                str(count),
            ]
            command = [sys.executable, "-m", "sapm", *arguments, *place]
            quiet = {} if i == 0 else {"stdout": subprocess.DEVNULL, "stderr": logs[i]}
            children.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **quiet)
            )
            if cores is not None:
                os.sched_setaffinity(children[-1].pid, cores)  # long before JAX counts them
        return _watched(children, logs)
    finally:
        for child in children:
            child.kill()
            child.wait()


def _watched(children: list[subprocess.Popen], logs: list) -> tuple[int, str]:
    """Wait for the end of all processes.

    children: the processes. logs: files with the error output of each.
    Returns the exit code, and a sentence if a process was lost.
    """
    watch = _Watch(children)
    while time.monotonic() < watch.until and not watch.over:
        unless_interrupted(watch.look, watch.stop)
    if watch.killed is not None:
        return EXIT_PROCESS_LOST, watch.killed
    codes = [child.poll() for child in children]
    failed = watch.failed
    if failed is None:
        if None in codes:
            return EXIT_PROCESS_LOST, "the processes did not end, and were stopped."
        return 0, ""
    code = codes[failed] or EXIT_PROCESS_LOST
    if failed == 0 or set(codes) == {code}:
        return code, ""  # the first process has said why
    logs[failed].seek(0)
    lines = logs[failed].read().decode(errors="replace").strip().splitlines()
    last_line = lines[-1] if lines else "it printed nothing"
    return code, f"process {failed} of {len(children)} failed: {last_line}"


class _Watch:
    """The state of processes that run side by side.

    Parameters
    ----------
    until : when those that still run are stopped.
    over : whether nothing is left to wait for.
    failed : the number of the first process that failed, or None.
    killed : a sentence if a process was killed from outside, or None.
    """

    def __init__(self, children: list[subprocess.Popen]):
        self.children = children
        self.until = math.inf
        self.over = False
        self.failed: int | None = None
        self.killed: str | None = None

    def look(self) -> None:
        """Ask all processes for their exit codes, then wait for a moment."""
        codes = [child.poll() for child in self.children]
        exits = {i: code for i, code in enumerate(codes) if code}
        spoke = [i for i, code in exits.items() if code > EXIT_PROCESS_LOST]
        killed = [i for i, code in exits.items() if code < 0]
        if self.failed is None and killed and not spoke:
            name = signal.Signals(-exits[killed[0]]).name
            self.killed = (
                f"process {killed[0]} of {len(codes)} was killed ({name}), and the others were "
                "stopped."
            )
            self.over = True
            return
        if self.failed is None and exits:  # the others end alike, or break without it
            self.failed = (spoke or [*exits])[0]
            self.until = time.monotonic() + FAILURE_SECONDS
        self.over = None not in codes
        if not self.over:
            time.sleep(POLL_SECONDS)

    def stop(self) -> None:
        """Pass Ctrl-C on to the processes, and give them time to save their state."""
        for child in self.children:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
        self.until = time.monotonic() + STOPPING_SECONDS
