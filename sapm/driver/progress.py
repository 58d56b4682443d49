"""The progress of a run: a live bar on a terminal, and the lines of history.jsonl."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from sapm.errors import json_safe, printable
from sapm.scopes import Lasting
from sapm.training.run import Progress, Run

# Without a terminal, as in the log of a batch job: seconds to the first line, and between lines
FIRST_LINE_SECONDS = 10.0
LINE_INTERVAL_SECONDS = 60.0

HISTORY = ("loss", "mean_squared_loss", "bound_ratio")  # of every seed in history.jsonl


class TimeLeft(ProgressColumn):
    """The time left, by the budget that ends first."""

    def render(self, task) -> Text:
        seconds_left = task.fields.get("left")
        if seconds_left is None or not np.isfinite(seconds_left):
            return Text("compiling …", style="dim")
        return Text(f"{int(seconds_left) // 60}:{int(seconds_left) % 60:02d} left", style="dim")


class Bar:
    """An observer that shows the progress on the standard error: a live bar on a terminal or in a
    notebook, elsewhere a line every minute. It is a context manager, and shows the bar within it.

    Parameters
    ----------
    label : the title of the bar: what is trained.
    iterations, seconds : the budget; seconds may be None.
    first : the iteration at which the run begins or is continued.
    """

    def __init__(self, label: str, iterations: int, seconds: float | None, first: int = 0):
        lasting: Any = Lasting(sys.stderr, lambda error: True)  # its end ends no run
        console = Console(stderr=True, file=lasting)
        self.live = console.is_terminal or console.is_jupyter
        self.next_line = time.monotonic() + FIRST_LINE_SECONDS
        self.label = printable(label)
        self.iterations = iterations
        self.seconds = seconds
        self.first = first
        self.origin: float | None = None
        self.waiting = threading.Timer(FIRST_LINE_SECONDS, self._print, ["compiling …"])
        self.waiting.daemon = True
        title = TextColumn("{task.description} ", markup=False)
        text = TextColumn("{task.fields[text]}", style="dim", markup=False)
        self.bar = RichProgress(
            BarColumn(20), title, text, TimeLeft(), console=console, disable=not self.live
        )
        self.task = self.bar.add_task(
            self.label, total=iterations, completed=first, text="", left=None
        )

    def __enter__(self) -> Bar:
        if self.live:
            self.bar.start()
        else:
            self.waiting.start()
        return self

    def __exit__(self, *error) -> None:
        self.waiting.cancel()
        if self.live:  # rich before 14 ends a line even where it has shown none
            self.bar.stop()

    def _print(self, text: str) -> None:
        """Print a line."""
        with suppress(OSError, ValueError):  # a log that cannot be written to ends no run
            print(printable(f"{self.label}  {text}"), file=sys.stderr, flush=True)

    def _seconds_left(self, progress: Progress) -> float | None:
        """The time to the end of the budget, at the pace since the first step; None before that.
        The first step is left out, since it includes the compilation.
        """
        if progress.iteration <= self.first + 1:
            return None
        self.origin = self.origin or progress.seconds
        pace = (progress.seconds - self.origin) / max(1, progress.iteration - self.first - 2)
        seconds_left = pace * (self.iterations - progress.iteration)
        if self.seconds is None:
            return seconds_left
        return max(0.0, min(seconds_left, self.seconds - progress.seconds))

    def __call__(self, progress: Progress) -> None:
        """Show iteration and losses of the best seed."""
        self.waiting.cancel()
        late = not self.live and time.monotonic() > self.next_line
        if not self.live and not late:
            return
        loss = progress.loss
        i = int(np.nanargmin(np.where(np.isfinite(loss), loss, np.inf)))
        text = f"{progress.iteration}/{self.iterations}  loss {loss[i]:.2e}"
        if loss[i] != progress.mean_squared_loss[i]:
            text += f"  true loss {progress.mean_squared_loss[i]:.2e}"
            if np.isfinite(progress.bound_ratio[i]):
                text += f"  {progress.bound_ratio[i]:.0%} of the bound"
        seconds_left = self._seconds_left(progress)
        if late:
            self.next_line = time.monotonic() + LINE_INTERVAL_SECONDS
            self._print(f"{text}  {progress.seconds:.0f} s")
            return
        self.bar.update(self.task, completed=progress.iteration, text=text, left=seconds_left)


def line(progress: Progress) -> dict:
    """A moment of the run as a line of history.jsonl: iteration, seconds, and losses (seeds,)."""
    losses = {name: json_safe(getattr(progress, name)) for name in HISTORY}
    return {"iteration": progress.iteration, "seconds": progress.seconds} | losses


def lines(run: Run) -> list[dict]:
    """The history of a run as the lines of history.jsonl, one for every record."""
    history = run.history
    return [
        {
            "iteration": int(history["iteration"][:, j].max()),
            "seconds": float(history["seconds"][:, j].max()),
        }
        | {name: json_safe(history[name][:, j]) for name in HISTORY}
        for j in range(history["loss"].shape[1])
    ]
