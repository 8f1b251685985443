"""The progress of a study: a bar on a terminal, and one line per finished run everywhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from antipodes.studies.definition import Options, Trial
from antipodes.studies.grid import Grid
from antipodes.studies.in_process import InProcess
from antipodes.studies.status import State, write_state


class StudyProgress:
    """Runs done of all, and the time left as the work since the start of this call lets expect it.

    Args:
        grid: What is run.
        configurations: The complete configuration of every trial.

    Attributes:
        failed: Trial -> why it failed.
    """

    def __init__(self, grid: Grid | InProcess, configurations: Mapping[Trial, Options]) -> None:
        self.failed: dict[str, str] = {}
        self._grid, self._configurations = grid, configurations
        self._console = Console(file=sys.stderr)
        unfinished = [trial for trial in grid.trials if grid.scores(trial) is None]
        self._done = len(grid.trials) - len(unfinished)
        self._active: Sequence[Trial] = unfinished
        self._shares: dict[Trial, float] = {}  # of what is not finished, those that wait as well
        self._started, self._before, self._began = time.monotonic(), self._work(), time.time()
        self._changed = True
        self._bar = Progress(
            TextColumn("{task.fields[runs]}"),
            BarColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("study", total=len(grid.trials), runs="", left="")

    def __enter__(self) -> StudyProgress:
        if self._done:
            self._say(f"{self._done} of {len(self._grid.trials)} runs are finished already")
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def finished(self, trial: Trial, failure: str | None) -> None:
        """Say how a trial ended."""
        self._done += 1
        self._changed = True
        self._active = [other for other in self._active if other != trial]
        self._shares.pop(trial, None)
        if failure is None:
            scores = self._grid.scores(trial) or {}
            names = self._grid.study.scores or list(scores)
            outcome = ", ".join(f"{name} {scores[name]:.4g}" for name in names if name in scores)
        else:
            self.failed[str(trial)] = failure
            outcome = f"failed: {failure}"
        self._say(f"{self._done}/{len(self._grid.trials)}  {trial}: {outcome}; {self._left()}")

    def working(self, trials: Sequence[Trial]) -> None:
        """Move the bar, and leave word for `antipodes study NAME --status` when something has changed."""
        if self._changed or list(self._active) != list(trials):
            state = State(list(map(str, trials)), self.failed, self._began, self._before)
            write_state(self._grid.out, state)
            self._changed = False
        self._active = trials
        if not self._bar.disable:
            runs = f"{self._done}/{len(self._grid.trials)} runs"
            self._bar.update(self._task, completed=self._work(), runs=runs, left=self._left())

    def _work(self) -> float:
        """Runs that are done, the others by their share of epochs, which only grows in those at work."""
        for trial in self._active:
            self._shares[trial] = self._grid.share_done(trial, self._configurations[trial])
        return self._done + sum(self._shares.values())

    def _left(self) -> str:
        work = self._work()
        if work <= self._before:
            return "time left not known yet"
        seconds = (time.monotonic() - self._started) * (len(self._grid.trials) - work) / (work - self._before)
        return f"{timedelta(seconds=round(seconds))} left"

    def _say(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)
