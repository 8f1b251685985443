"""How far long work is, on standard error: a bar with the time left on a terminal, a line now and then elsewhere.

Every command and every public function that works for long shows its progress through this module.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import ProgressColumn

Progress = Callable[[int, int], None]
"""Called with (done, in all) after every piece of work."""

SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def progress_bar(title: str, shown: bool = True, stream: TextIO | None = None) -> Iterator[Progress]:
    """Show the progress of the block.

    Args:
        title: what is being done, in a word or two.
        shown: False shows nothing.
        stream: where to write; standard error if not given. On a terminal there is a bar that is removed at the end,
            in a file or a pipe a line every `SECONDS_BETWEEN_LINES`, so that short work prints nothing.

    Yields:
        A function to call with (done, in all).

    Example:
        >>> with progress_bar("embedding", shown=False) as progress:
        ...     progress(1, 2)
    """
    stream = stream or sys.stderr
    if not shown:
        yield lambda done, total: None
    elif not stream.isatty():
        yield _Lines(title, stream)
    else:
        with _bar(stream) as bar:
            task = bar.add_task(title, total=None, numbers="")
            yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def working(title: str, stream: TextIO | None = None) -> Iterator[None]:
    """Show on a terminal that the block is at work, where it cannot be known how far it is."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield
        return
    from rich.console import Console

    with Console(file=stream).status(title):
        yield


class TrainingProgress:
    """The progress of a training: a live bar on a terminal, one line per epoch elsewhere.

    Args:
        total: number of steps of the whole training.
        done: number of steps that a resumed run has done already.
        enabled: False shows nothing, as on all ranks except the first.
        stream: where to write; standard error by default, so that results can be piped.
    """

    def __init__(self, total: int, done: int = 0, enabled: bool = True, stream: TextIO | None = None) -> None:
        stream = stream or sys.stderr
        self._enabled = enabled
        self._bar = _bar(stream, hidden=not (enabled and stream.isatty()))
        self._task = self._bar.add_task("training", total=total, completed=done, numbers="")

    def __enter__(self) -> TrainingProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def step(self, epoch: int, epochs: int, loss: float, rate: float) -> None:
        """Advance the bar by one optimiser step."""
        if not self._bar.disable:
            numbers = f"loss {loss:.3f}  {rate:,.0f} images/s"
            self._bar.update(self._task, advance=1, description=f"epoch {epoch + 1}/{epochs}", numbers=numbers)

    def say(self, sentence: str) -> None:
        """Print a line that stays above the bar."""
        if self._enabled:
            self._bar.console.print(sentence, highlight=False, soft_wrap=True)


class _Lines:
    """Prints how far the work is, at most every `SECONDS_BETWEEN_LINES`."""

    def __init__(self, title: str, stream: TextIO) -> None:
        self.title, self.stream = title, stream
        self.started = self.printed = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.printed < SECONDS_BETWEEN_LINES or not total:
            return
        self.printed = now
        left = timedelta(seconds=round((now - self.started) * (total - done) / done)) if done else "not known"
        print(f"{self.title}: {done:,} of {total:,}, time left {left}", file=self.stream, flush=True)


def _bar(stream: TextIO, hidden: bool = False) -> Bar:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns: tuple[ProgressColumn, ...] = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[numbers]}"),
    )
    return Bar(*columns, console=Console(file=stream), disable=hidden, transient=True)
