"""Runs that signals end and that go on, stalls, and what is written; the trials of trials/ in short.
The full counts are slow.
"""

import io
import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import sapm
from sapm.cli.terminal import Signals, _output_that_lasts, signals_as_interrupts
from sapm.driver import progress
from sapm.driver import solve as driver
from sapm.results import files
from sapm.scopes import interrupts, unless_interrupted
from sapm.training import devices
from sapm.training.loop import StallRule

sys.path.append(str(Path(__file__).parents[2] / "trials"))

import disk
import kill
import long
import machines
import stated
import updates
from combinations import COMBINATIONS
from common import Place, Terminal, checkpoints, differences, until
from disk import ENDLESS


def test_terminated_killed_and_continued(tmp_path, monkeypatch):
    """SIGTERM: exit 143, the state saved, the command to continue with. Then its terminal is closed:
    exit 129, the state saved. Then SIGKILL. Then the uninterrupted run, bit for bit.
    """
    monkeypatch.setattr(driver, "CHECKPOINT_INTERVAL_SECONDS", 0.0)
    combination = COMBINATIONS["curve, LS, gd"]
    place = Place(tmp_path)
    out = tmp_path / "run"
    for number, code in ((signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)):
        process = place.start(
            combination.resume(out) if checkpoints(out) else combination.run(out, ENDLESS),
            [],
            terminal=Terminal() if number == signal.SIGHUP else None,
        )

        def count():
            return (out / "history.jsonl").read_bytes().count(b"\n") if checkpoints(out) else 0

        before = count()
        assert until(lambda count=count, before=before: count() > before + 10, process, 120)
        process.send(number)
        assert process.end() == code, process.errors
        if code == 143:
            assert process.last.startswith(
                f"sapm: interrupted; continue with: sapm resume {out} --problem "
            )
            assert process.last.endswith("stated.py:curve") and "Traceback" not in process.errors
        if code > 0:
            assert (
                json.loads((out / "summary.json").read_text())["seeds"][0]["status"]
                == "interrupted"
            )
    (out / "checkpoint" / ".latest.sapm.a1b2c3d4").write_text("cut off")
    saved = sapm.load(out / "checkpoint" / "latest.sapm")
    end = saved.run.iterations + 20
    sapm.resume(out, max_iter=end, progress=False)
    settings = {"depth": 2, "width": 5, "model": "ls", "method": "gd", "seeds": 2}
    sapm.solve(stated.curve(), **settings, max_iter=end, out=tmp_path / "whole", progress=False)
    assert differences(tmp_path / "whole", out) == []
    env = json.loads(
        (out / "env.json").read_text()
    )  # of the process that began, and of this one, whose flags are others
    assert [later["from_iteration"] > 0 for later in env["later"]] == [True] and env[
        "processor"
    ] == env["later"][0]["processor"]
    assert {
        "commit",
        "cores_usable",
        "device_software",
        "x64",
        "flags",
        "vector_units",
    } <= env.keys()


def test_every_signal_has_its_code():
    """128 and the number of the signal; also where several processes must hear of it before one of
    them ends.
    """
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        with pytest.raises(KeyboardInterrupt), signals_as_interrupts() as signals:
            os.kill(os.getpid(), number)
            sum(range(10**6))
        assert signals.exit_code() == 128 + number


def test_an_interrupt_is_a_flag_and_a_second_one_raises():
    """So that what is compiled or computed is not cut off."""
    handler = signal.getsignal(signal.SIGINT)
    done = []
    with interrupts() as interrupted:
        signal.raise_signal(signal.SIGINT)
        done.append("the rest")
        assert interrupted()
    with pytest.raises(KeyboardInterrupt), interrupts():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("more")
    assert done == ["the rest"] and signal.getsignal(signal.SIGINT) is handler
    terminates = signal.getsignal(signal.SIGTERM)
    with interrupts():
        assert signal.getsignal(signal.SIGTERM) is terminates  # it would end the process at once
    assert unless_interrupted(lambda: 1, lambda: 2) == 1


def test_a_signal_is_answered_at_once(monkeypatch):
    """On a terminal; not by the handler, which Python calls only when what is compiled or computed
    has ended.
    """
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(KeyboardInterrupt), signals_as_interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(10**6))
    end = time.monotonic() + 10
    while not terminal.getvalue().endswith("…\n") and time.monotonic() < end:
        time.sleep(0.01)
    assert (
        terminal.getvalue() == "\nsapm: stopping after the current step …\n"
        and signal.set_wakeup_fd(-1) == -1
    )


def test_signals_are_held_back_and_remembered(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    with signals_as_interrupts() as signals, interrupts() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupted() and signals.exit_code() == 143
    assert signal.getsignal(signal.SIGTERM) == before
    # one of several processes that ended at once would leave the others waiting
    monkeypatch.setattr(devices.jax, "process_count", lambda: 2)
    with interrupts() as interrupted:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupted()
    assert signal.getsignal(signal.SIGTERM) == before


def test_closing_a_terminal_asks_once():
    """The shell and the terminal may both send SIGHUP, and it does not hurry a run that Ctrl-C has
    ended; a second Ctrl-C does. Ignored, as under nohup, it stays ignored.
    """
    for first in (signal.SIGHUP, signal.SIGINT):
        with (
            pytest.raises(KeyboardInterrupt),
            signals_as_interrupts() as signals,
            interrupts() as interrupted,
        ):
            signal.raise_signal(first)
            signal.raise_signal(signal.SIGHUP)
            assert interrupted() and signals.arrived[0] == first
            signal.raise_signal(signal.SIGINT)
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_as_interrupts() as signals, interrupts() as interrupted:
            signal.raise_signal(signal.SIGHUP)
            assert not interrupted() and not signals.arrived
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, usual)


def test_output_that_nobody_reads_ends_nothing(monkeypatch):
    """A terminal that was closed, and a pipe whose reader the same signal has ended. Without a
    signal a broken pipe on the standard output is an error, as for `| head`.
    """
    terminal = Terminal()
    stream = os.fdopen(terminal.theirs, "w", buffering=1)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, stream)
    bar = progress.Bar("a run", 10, None)
    state = SimpleNamespace(iteration=5, seconds=1.0, loss=np.ones(1), mean_squared_loss=np.ones(1))
    with signals_as_interrupts() as signals, _output_that_lasts(signals), bar:
        assert bar.live
        terminal.close()
        bar(state)
        bar.bar.refresh()
        print("a result", flush=True)
        print("a message", file=sys.stderr, flush=True)
    for arrived in ([], [signal.SIGHUP]):
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "w") as pipe:
            monkeypatch.setattr(sys, "stdout", pipe)
            with _output_that_lasts(Signals(arrived)):
                if arrived:
                    print("a result", flush=True)
                    continue
                with pytest.raises(BrokenPipeError):
                    print("a result", flush=True)
                os.dup2(stream.fileno(), writer)
    stream.close()


def test_a_stall_is_judged_by_all_records():
    """What is kept from record to record says the same as all records looked through again."""
    rng = np.random.default_rng(0)
    decided = 0
    for trial in range(40):
        stall = float(rng.choice([0.0, 1e-3, 0.1]))
        patience = int(rng.integers(1, 40))
        rule = StallRule(stall, patience, 3)
        walk = np.exp(
            -np.abs(rng.normal(size=(60, 2, 3))).cumsum(0) * rng.choice([0.0, 0.01, 0.3], 3)
            + 0.05 * rng.normal()
        )
        if trial % 5 == 0:
            walk[rng.integers(60), 1, 0] = np.nan
        records = []
        for k, losses in enumerate(walk):
            records.append(losses * rng.uniform(0.99, 1.01))
            rule.add(3 * k, records[-1])
            table = np.array(records)
            early = sum(3 * j <= 3 * k - patience for j in range(len(table)))
            expected = np.zeros(3, bool)
            if early:
                fell = table[early:].min(0) < table[:early].min(0) * (1 - stall)
                expected = ~fell.any(0)
            assert np.array_equal(rule.stalled(3 * k), expected)
            decided += expected.sum()
    assert decided > 100


def test_where_nothing_can_be_written(tmp_path, monkeypatch):
    """The sentence names the file that was wanted, not a temporary one; a line of the log that does
    not fit says which log.
    """
    monkeypatch.setattr(
        files.tempfile,
        "mkstemp",
        lambda **_: (_ for _ in ()).throw(OSError(30, "Read-only file system", "x")),
    )
    with pytest.raises(
        OSError, match=r"Read-only file system; what was written before is kept: '.*model.sapm'"
    ):
        files.write_whole(tmp_path / "model.sapm", b"", own=True)
    folder = files.Folder(tmp_path)
    with folder.claim:
        (tmp_path / "history.jsonl").symlink_to("/dev/full")
        with pytest.raises(OSError, match=r"No space left on device: '.*history.jsonl'"):
            folder.append({"iteration": 1})


def test_a_continued_run_keeps_what_was_asked(tmp_path):
    """config.json has the settings and the last budget, not how far a run is; env.json has every
    place it went on at.
    """
    folder = files.Folder(tmp_path)
    with folder.claim:
        here = {"processor": "a", "cores": 2}
        folder.begin({"points": 60, "max_iter": 5, "max_seconds": None}, here)
        so_far = {"points": None, "fresh": [0.1], "max_iter": 9, "max_seconds": 1.0}
        for env, iteration in (
            (here, 3),
            (here | {"cores": 4}, 4),
            (here | {"cores": 4}, 5),
            (here, 6),
        ):
            folder.reopen(so_far, env, iteration)
        assert json.loads((tmp_path / "config.json").read_text()) == {
            "points": 60,
            "max_iter": 9,
            "max_seconds": 1.0,
        }
        later = [
            {"from_iteration": 4, "processor": "a", "cores": 4},
            {"from_iteration": 6, "processor": "a", "cores": 2},
        ]
        assert json.loads((tmp_path / "env.json").read_text()) == here | {"later": later}
        for broken in ("[]", '{"later": 3}', "{"):
            (tmp_path / "env.json").write_text(broken)
            folder.reopen(so_far, here, 7)
            found = json.loads((tmp_path / "env.json").read_text())
            assert (found if "later" not in found else found["later"][-1])["cores"] == 2


@pytest.mark.slow
def test_blocks_never_raise_the_loss():
    """Every block update recorded: no rise beyond rounding, never above the bound."""
    row = updates.follow("curve, SAPM, relu", 2000)
    assert (
        row["updates"] >= 1900
        and row["up"] == row["broken"] == 0
        and 0 < row["share"] <= 1
        and row["carried"] < 1
    )
    assert np.all(np.array(row["last"]) < 0.3 * np.array(row["first"]))


def test_files_of_numbers_are_compared():
    """A difference is found where it begins, and two environments are told apart."""
    a = {
        "loss": [[1.0, 0.5, 0.1]],
        "mean_squared_loss": [[1.0, 0.5, 0.1]],
        "iteration": [[0, 1, 10]],
    }
    a |= {"values": [[[1.0], [2.0]]], "sha256": "a", "rows": [{"test_error": 0.1}]}
    b = a | {"loss": [[1.0, 0.5, 0.1 * (1 + 1e-5)]]}
    (same,) = machines.compare({"cases": {"c": a}}, {"cases": {"c": a}})
    (other,) = machines.compare({"cases": {"c": a}}, {"cases": {"c": b}})
    assert same["equal"] and not other["equal"]
    assert other["after"][1] == 0 and other["after"][10] == pytest.approx(1e-5, rel=1e-3)
    assert machines.judged([same], exact=False)[0] and not machines.judged([other], exact=False)[0]
    assert machines.differing({"p": {"jax": "1"}, "x": 1}, {"p": {"jax": "2"}, "x": 1}) == [
        "p.jax: 1 | 2"
    ]


@pytest.mark.slow
def test_every_kind_of_run_is_continued_bit_for_bit(tmp_path):
    runs = str(len(COMBINATIONS))
    assert kill.main(["--runs", runs, "--signal", "kill", "--out", str(tmp_path / "a.json")]) == 0
    assert kill.main(["--runs", "6", "--signal", "int,term,hup", "--seed", "1"]) == 0
    assert len(json.loads((tmp_path / "a.json").read_text())["runs"]) == int(runs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "begun"),
    [
        (["demo", "--out", "{}/page.html"], "loss "),
        (["reproduce", "function_1d", "--quick", "--out", "{}"], "loss "),
        (["reproduce", "function_1d", "--quick", "--jobs", "2", "--out", "{}"], "cell"),
        (
            ["bench", "function_1d-relu-6x10", "--quick", "--methods", "auto", "--out", "{}"],
            "compiling",
        ),
        (["run", "function_1d", "--processes", "2", "--out", "{}/run"], "loss "),
    ],
    ids=["demo", "reproduce", "reproduce side by side", "bench", "processes"],
)
def test_the_terminal_of_long_work_is_closed(words, begun, tmp_path):
    """Exit code 129, and nothing half done is kept as if it were done."""
    out = tmp_path / "out"
    out.mkdir()
    terminal = Terminal()
    process = Place(tmp_path).start(
        [word.format(out) for word in words], [], often=False, terminal=terminal
    )

    def under_way():
        if begun == "cell":
            return len(checkpoints(out)) == 2
        return begun.encode() in terminal.shown

    assert until(under_way, process), terminal.shown.decode()
    time.sleep(1)
    process.send(signal.SIGHUP)
    assert process.end() == 129
    assert not [*out.glob("**/cell.json"), *out.glob("cells/*"), *out.glob("page.html")]
    assert all(files.read(file) for file in checkpoints(out))


@pytest.mark.slow
def test_under_nohup_a_run_goes_on(tmp_path):
    """To its end, though its terminal is closed."""
    combination = COMBINATIONS["curve, LS, gd"]
    out = tmp_path / "run"
    terminal = Terminal(ignored=True)
    process = Place(tmp_path).start(combination.run(out), [], terminal=terminal)
    assert until(lambda: bool(checkpoints(out)), process)
    process.send(signal.SIGHUP)
    assert process.end() == 0
    assert json.loads((out / "summary.json").read_text())["seeds"][0]["status"] == "finished"


@pytest.mark.slow
def test_disks():
    assert disk.main([]) == 0


@pytest.mark.slow
def test_long_use():
    assert long.main(["updates", "--count", "20000"]) == 0
    assert long.main(["solves", "--count", "30"]) == 0
    assert long.main(["sweeps", "--count", "2000"]) == 0


@pytest.mark.slow
def test_the_same_numbers_twice():
    assert machines.main(["twice"]) == 0
