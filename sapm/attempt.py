"""One training from its start, or from where it was cut, to its end, with points drawn anew on the way."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from jax.sharding import Mesh

from sapm import store, stream
from sapm.devices import agreed, anywhere, first_process, held_back
from sapm.doubts import OUTCOMES
from sapm.environment import environment
from sapm.halving import rungs
from sapm.jet import Activation
from sapm.methods.build import build, start_at
from sapm.problem import PDE
from sapm.progress import Bar, line
from sapm.resample import LOST, Lowest, at_held, at_last, closed, compared, elsewhere, first_stage, look_elsewhere
from sapm.result import Result, to_file
from sapm.run import Moment, Run, noted, sizes_of
from sapm.samples import Samples, scaling_of
from sapm.summary import heading
from sapm.train import train

CHECKPOINT_SECONDS = 5.0  # between two checkpoints, or
CHECKPOINT_SHARE = 20  # times as long as writing one takes, if that is more


@dataclass(frozen=True)
class Progress:
    """What `on_record` gets. Arrays have one entry per seed; `result()` is the Result so far."""

    iteration: int
    seconds: float
    loss: np.ndarray
    mean_squared_loss: np.ndarray
    bound_ratio: np.ndarray
    result: Callable[[], Result]


def done(run: Run) -> int:
    return int(run.history["iteration"].max())


def _interrupted(run: Run, at: int | None = None) -> Run:
    return closed(run, "interrupted", f"interrupted after {done(run) if at is None else at} iterations.")


class Attempt:
    """A run in the making. `run`, `samples`, `method`, `lowest` and `config` are where it has come to.

    `used`: the seconds of a run that ended in no solution, and in whose place this one is.
    """

    run: Run | None

    def __init__(
        self,
        problem,
        samples: Samples,
        config: dict,
        sigma: Activation,
        previous: Run | None = None,
        networks: list | None = None,
        folder: store.Folder | None = None,
        progress: bool = True,
        on_record: Callable[[Progress], Any] | None = None,
        mesh: Mesh | None = None,
        used: float | None = None,
    ):
        options, self.seconds = config["options"], config["max_seconds"]
        previous = None if previous is None else replace(previous, cut="")
        if folder is not None and used is not None:
            folder.write_history([])
        elif folder is not None and previous is None:
            folder.begin(config, environment())
        if previous is None and options.get("stages") and options.get("resample"):
            samples, config = first_stage(problem, samples, config)
        self.ended = sizes_of(config, "ended")  # the residual elsewhere of the networks that it had ended with
        self.config = {name: value for name, value in config.items() if name not in ("ended", "scores", "doubts")}
        if doubts := [said for said in config.get("doubts", ()) if not said.startswith(OUTCOMES)]:
            self.config["doubts"] = doubts
        self.problem, self.samples, self.sigma, self.folder = problem, samples, sigma, folder
        self.progress, self.on_record, self.used = progress, on_record, used
        self.method, self.scaling = build(samples, config, sigma), scaling_of(samples, options.get("scale", False))
        self.first = 0 if previous is None else done(previous)
        if previous is not None and self.seconds is not None:
            self.seconds += float(previous.history["seconds"].max())
        self.initial = None if networks is None else start_at(self.method, [self.scaling.scaled(w) for w in networks], sigma)
        self.learn: Callable[..., Run] = partial(train, mesh=mesh)
        self.files: stream.Files | None = None
        if options.get("chunk") is not None:
            source = stream.Source(problem, self.scaling, options["chunk"])
            where = None if folder is None else folder.checkpoint.parent
            count, widths = len(config["seeds"]), self.method.widths[1:-1]
            self.files = stream.Files(where, count, source, widths, previous and previous.states)
            self.learn = partial(stream.train, source=source, files=self.files)
        self.lowest = Lowest.before(previous, self.config)
        self.run = previous if previous is None or previous.kept is None or samples.validation is not None else at_last(previous)
        self.latest: Callable[[], Run] | None = None  # the run so far, of a call of `learn` that is under way
        self.next_save = -np.inf

    def result(self) -> Result:
        """Train to the end, and let the network with the smallest residual elsewhere stand for every seed."""
        self._train()
        self._look_at_the_end()
        assert self.run is not None
        run, config = self.lowest.kept_by(self.run), self.lowest.noted(self.config)
        try:
            run, config = compared(run, self.samples, config)
        except KeyboardInterrupt:
            run = replace(run, cut=f"interrupted after {done(run)} iterations.")
        return Result(run, self.samples, config, self.problem)

    # ---------------------------------------------------------------- on the way

    def _keep(self, run: Run) -> None:
        """A checkpoint."""
        assert self.folder is not None
        began = time.monotonic()
        if self.files is not None:
            self.files.sync()
        least = self.lowest.unless_lost(run)
        self.folder.save(self.folder.checkpoint, *to_file(least.kept_by(run), self.samples, least.noted(self.config)))
        if self.files is not None:
            self.files.hold(run.states)
        now = time.monotonic()
        self.next_save = now + max(CHECKPOINT_SECONDS, CHECKPOINT_SHARE * (now - began))

    def _so_far(self, moment: Moment) -> Result:
        run = moment.run()
        least = self.lowest.unless_lost(run)
        run, config = compared(least.kept_by(run), self.samples, least.noted(self.config))
        return Result(run, self.samples, config, self.problem)

    def _watch(self, bar: Bar, moment: Moment) -> bool:
        """Show, log and keep where the run is, and let the user see it: True if that is to be its end."""
        bar.show(moment)
        self.latest = moment.run
        if self.folder is not None:
            if moment.recorded:
                self.folder.append(line(moment))
            if agreed(time.monotonic() > self.next_save)[0]:
                self._keep(moment.run())
        if self.on_record is None or not moment.recorded:
            return False
        arrays = (moment.loss.copy(), moment.mean_squared_loss.copy(), moment.bound_ratio)
        stop = self.on_record(Progress(moment.iteration, moment.seconds, *arrays, partial(self._so_far, moment)))
        return np.asarray(stop).dtype == bool and bool(np.size(stop)) and bool(np.all(stop))

    def _train(self) -> None:
        label = heading(self.config) + (", a second attempt" if self.used is not None else "")
        shown = self.progress and first_process()
        with (
            Bar(label, self.config["max_iter"], self.seconds, shown, self.first) as bar,
            store.every_interrupt(),
            self.files or nullcontext(),
            held_back() as asked,
        ):
            every = 0 if self.config.get("over") else self.config["options"].get("resample") or 0
            at, run = max(self.first, self.config.get("drawn_at", 0)), self.run
            looked = self.first if run is not None and (self.lowest.record == run.history["loss"].shape[1] - 1).any() else None
            while True:
                began = time.perf_counter()
                if anywhere(asked()) and self.run is not None:
                    self.run = _interrupted(self.run, at)
                    return
                due = every and at % every == 0 and self.config.get("drawn_at", 0) < at < self.config["max_iter"]
                if due and not isinstance(self.problem, PDE):
                    how = "give problem=… (--problem …)"
                    warnings.warn(f"the points stay as they are: to draw others the problem is needed; {how}.", stacklevel=7)
                    due = every = 0
                if due and self.run is not None and self._draw(at, every):
                    return
                drawn, at = at, min(self.config["max_iter"], (at // every + 1) * every) if every else self.config["max_iter"]
                own = [k for k in (drawn, at) if every and (k % every == 0 or k == looked)]  # with a record of its own
                if self._learn(at, own, every, began, partial(self._watch, bar), asked):
                    return

    def _draw(self, at: int, every: int) -> bool:
        """Look at other points, and go on with those if they are better to train on: all or nothing, whenever Ctrl-C comes."""
        assert self.run is not None
        training = (self.run, self.samples, self.method, self.lowest, self.config)
        try:
            found = look_elsewhere(self.problem, training, self.sigma, at, every, self.seconds)
            self.run, self.samples, self.method, self.lowest, self.config = found
        except KeyboardInterrupt:
            self.run = _interrupted(self.run, at)
            return True
        return bool(self.config.get("over"))

    def _learn(self, at: int, own: list[int], every: int, began: float, watch: Callable, asked: Callable) -> bool:
        """Train up to iteration `at`; True if that was the end."""
        config, options = self.config, self.config["options"]
        count, held = len(config["seeds"]), self.samples.validation
        try:
            self.run = self.learn(
                self.method,
                at,
                config["seeds"],
                config["key"],
                options["record_every"],
                options["stall"],
                10**9 if every else options["patience"],
                seconds=self.seconds,
                validation=None if held is None else self.scaling.term(held),
                watch=watch,
                previous=self.run,
                initial=self.initial,
                spent=time.perf_counter() - began + (self.used or 0.0 if self.run is None else 0.0),
                interrupted=asked,
                rungs=dict.fromkeys(own, count) | rungs(count, options.get("survivors"), config["max_iter"]),
            )
        except KeyboardInterrupt:  # before it began, when it was over, or a second one
            run = self.run if self.latest is None else self.latest()
            if self.files is not None or run is None:
                raise
            self.run = _interrupted(run)
            return True
        self.latest, self.lowest = None, self.lowest.unless_lost(self.run)
        over = {"out of time", "stopped"} & set(self.run.status) or set(self.run.status) <= set(LOST)
        return bool(at >= config["max_iter"] or over or self.run.cut)

    # ---------------------------------------------------------------- at the end

    def _look_at_the_end(self) -> None:
        """See whether the networks it ended with are better than the lowest of before; keep a checkpoint that knows."""
        assert self.run is not None
        self.lowest = self.lowest.unless_lost(self.run)  # before anything asks for the best of those left
        if done(self.run) > self.first:
            self.ended = np.full(len(self.run.seeds), np.inf)
            if self.lowest.states is not None and not isinstance(self.problem, PDE):  # then the test points tell what is worse
                try:
                    kept, last = (at_held(r, self.samples, self.config) for r in (self.lowest.kept_by(self.run), self.run))
                    self.lowest = self.lowest.where(kept < last)
                except KeyboardInterrupt:
                    self.run = _interrupted(self.run)
        self.config = noted(self.config, "ended", self.ended)
        if self.folder is not None:
            self._keep(self.run)
        if self.lowest.states is not None and isinstance(self.problem, PDE) and not self.config.get("over"):
            draw = len(self.config.get("fresh", ())) + 1
            try:
                self.ended = elsewhere(self.problem, self.run, self.samples, self.config, draw)[1]
            except KeyboardInterrupt:  # the last network was not looked at
                self.run = _interrupted(self.run)
            self.config = noted(self.config, "ended", self.ended)
            if self.folder is not None:
                self._keep(self.run)  # for a longer run, which would not have looked here, with the lowest of before
        if self.lowest.states is not None:
            self.lowest = self.lowest.seen(self.run, self.ended)
