"""How far a run is: a live line on a terminal, and the lines of history.jsonl."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.text import Text

from sapm.run import Moment, Run

FIRST, QUIET = 10.0, 60.0  # seconds to the first line, and from one to the next, without a terminal, as in a batch job's log


class Left(ProgressColumn):
    """Time left, by the budget that ends first."""

    def render(self, task) -> Text:
        left = task.fields.get("left")
        if left is None or not np.isfinite(left):
            return Text("compiling …", style="dim")
        return Text(f"{int(left) // 60}:{int(left) % 60:02d} left", style="dim")


class Bar:
    """A context that shows moments of a run: live on a terminal or in a notebook, elsewhere a line now and then."""

    def __init__(self, label: str, iterations: int, seconds: float | None, on: bool, first: int = 0):
        console = Console(stderr=True)
        self.shown = on and (console.is_terminal or console.is_jupyter)
        self.lines, self.due, self.label = on and not self.shown, time.monotonic() + FIRST, label
        self.iterations, self.seconds, self.first = iterations, seconds, first
        self.origin: float | None = None
        self.waiting = threading.Timer(FIRST, self._say, ["compiling …"])
        self.waiting.daemon = True
        text = TextColumn("{task.description}  [dim]{task.fields[text]}[/dim]")
        self.progress = Progress(BarColumn(20), text, Left(), console=console, disable=not self.shown)
        self.task = self.progress.add_task(label, total=iterations, completed=first, text="", left=None)

    def __enter__(self) -> Bar:
        if self.shown:
            self.progress.start()
        if self.lines:
            self.waiting.start()
        return self

    def __exit__(self, *error) -> None:
        self.waiting.cancel()
        if self.shown:  # rich before 14 ends a line even where it has shown none
            self.progress.stop()

    def _say(self, text: str) -> None:
        with suppress(OSError, ValueError):  # a log that cannot be written to ends no run
            print(f"{self.label}  {text}", file=sys.stderr, flush=True)

    def show(self, moment: Moment) -> None:
        self.waiting.cancel()
        late = self.lines and time.monotonic() > self.due
        if not self.shown and not late:
            return
        i = int(np.nanargmin(np.where(np.isfinite(moment.loss), moment.loss, np.inf)))
        text = f"{moment.iteration}/{self.iterations}  loss {moment.loss[i]:.2e}"
        if moment.loss[i] != moment.mean_squared_loss[i]:
            text += f"  true {moment.mean_squared_loss[i]:.2e}"
            if np.isfinite(moment.bound_ratio[i]):
                text += f"  {moment.bound_ratio[i]:.0%} of the bound"
        left = None
        if moment.iteration > self.first + 1:
            self.origin = self.origin or moment.seconds
            pace = (moment.seconds - self.origin) / max(1, moment.iteration - self.first - 2)
            left = pace * (self.iterations - moment.iteration)
            if self.seconds is not None:
                left = max(0.0, min(left, self.seconds - moment.seconds))
        if late:
            self.due = time.monotonic() + QUIET
            self._say(f"{text}  {moment.seconds:.0f} s")
            return
        self.progress.update(self.task, completed=moment.iteration, text=text, left=left)


def line(moment: Moment) -> dict:
    names = ("loss", "mean_squared_loss", "bound_ratio")
    row = {name: _finite(getattr(moment, name)) for name in names}
    return {"iteration": moment.iteration, "seconds": moment.seconds} | row


def _finite(values) -> list:
    return [float(v) if np.isfinite(v) else None for v in values]


def lines(run: Run) -> list[dict]:
    """The history as history.jsonl has it."""
    h = run.history
    names = ("loss", "mean_squared_loss", "bound_ratio")
    return [
        {"iteration": int(h["iteration"][:, j].max()), "seconds": float(h["seconds"][:, j].max())}
        | {name: _finite(h[name][:, j]) for name in names}
        for j in range(h["loss"].shape[1])
    ]
