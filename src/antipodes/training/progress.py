"""The progress bar of a training run: epoch, loss, images per second, time left."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class TrainingProgress:
    """A live bar on a terminal, or one line per epoch elsewhere.

    Args:
        total: Number of steps of the whole training.
        done: Number of steps that a resumed run has done already.
        enabled: False shows nothing, as on all ranks except the first.
        stream: Where to write; standard error by default, so that results can be piped.
    """

    def __init__(self, total: int, done: int = 0, enabled: bool = True, stream: TextIO | None = None) -> None:
        self._console = Console(file=stream or sys.stderr)
        self._enabled = enabled
        self._live = enabled and self._console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=self._console,
            disable=not self._live,
            transient=True,
        )
        self._task = self._bar.add_task("training", total=total, completed=done, numbers="")

    def __enter__(self) -> TrainingProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def step(self, epoch: int, epochs: int, loss: float, rate: float) -> None:
        """Advance the bar by one optimiser step."""
        if self._live:
            numbers = f"loss {loss:.3f}  {rate:,.0f} images/s"
            self._bar.update(self._task, advance=1, description=f"epoch {epoch + 1}/{epochs}", numbers=numbers)

    def say(self, sentence: str) -> None:
        """Print a line that stays above the bar."""
        if self._enabled:
            self._console.print(sentence, highlight=False, soft_wrap=True)
