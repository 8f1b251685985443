"""How far a study is: a bar on a terminal and a line per finished run, and what `--status` prints later."""

from __future__ import annotations

import fcntl
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from antipodes.files import replacing
from antipodes.studies.definition import Options, Trial
from antipodes.studies.grid import Grid
from antipodes.studies.runner import InProcess

FILE = "status.json"


@dataclass(frozen=True)
class State:
    """What a study at work leaves on disk.

    Args:
        active: The trials at work.
        failed: Trial -> why it failed.
        began: When the call began, in seconds of the clock.
        before: How many runs were done then, those at work by their share of epochs.
    """

    active: list[str]
    failed: dict[str, str]
    began: float
    before: float


def write_state(out: Path, state: State) -> None:
    """Leave word in a study's folder."""
    with replacing(out / FILE) as file:
        file.write_text(json.dumps(asdict(state), indent=2) + "\n")


def read_state(out: Path) -> State | None:
    """What was left there; None if nothing was, or it cannot be read."""
    try:
        return State(**json.loads((out / FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def at_work(out: Path) -> bool:
    """Whether a study, or a run it has left behind, holds the lock of a folder."""
    lock = out / ".lock"
    if not lock.is_file():
        return False
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def describe_progress(
    state: State | None, running: bool, shares: Mapping[str, float], stale: Mapping[str, str], now: float | None = None
) -> list[str]:
    """The status in lines.

    Args:
        state: What the study has left.
        running: Whether it is at work.
        shares: Trial -> how much of it is done, 1 for a finished one.
        stale: Finished trial -> which code has changed since.
        now: The time; that of the clock by default.
    """
    done, work = sum(share >= 1 for share in shares.values()), sum(shares.values())
    lines = [f"{done} of {len(shares)} runs are finished, {'at work' if running else 'not running'}"]
    if state is not None and running:
        lines += [f"  {trial}: {100 * shares.get(trial, 0):.0f} %" for trial in state.active]
        if work > state.before:
            passed = (time.time() if now is None else now) - state.began
            left = passed * (len(shares) - work) / (work - state.before)
            lines.append(f"{timedelta(seconds=round(left))} left")
        else:
            lines.append("time left not known yet")
    if state is not None and state.failed:
        lines += ["failed:", *(f"  {trial}: {why}" for trial, why in state.failed.items())]
    if stale:
        lines += [f"{len(stale)} finished runs are of older code:"]
        lines += [f"  {trial}: {why}" for trial, why in stale.items()]
    return lines


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
            self._shares[trial] = self._grid.fraction_done(trial, self._configurations[trial])
        return self._done + sum(self._shares.values())

    def _left(self) -> str:
        work = self._work()
        if work <= self._before:
            return "time left not known yet"
        seconds = (time.monotonic() - self._started) * (len(self._grid.trials) - work) / (work - self._before)
        return f"{timedelta(seconds=round(seconds))} left"

    def _say(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)
