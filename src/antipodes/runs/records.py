"""The numbers that a run records while it trains: metrics.jsonl, metrics.csv, TensorBoard, Weights & Biases."""

from __future__ import annotations

import csv
import json
import math
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist

from antipodes.distributed import rank, world_size
from antipodes.files import replacing
from antipodes.runs.folder import Run


class Records:
    """Lines of numbers, each with the step it belongs to.

    `metrics.jsonl` gets each line at once; `metrics.csv` holds the epochs as a table. A run that continues from a
    checkpoint drops later lines, so that no step appears twice.

    Args:
        folder: The run's folder.
        step: The step from which the run continues; 0 removes all earlier lines.
        boards: Names of boards (`boards.BOARDS`) that also get the numbers.
    """

    def __init__(self, folder: Path, step: int = 0, boards: Sequence[str] = ()) -> None:
        self.lines = folder / "metrics.jsonl"
        self.table = folder / "metrics.csv"
        kept = [line for line in read_records(folder) if line["step"] <= step] if step else []
        with replacing(self.lines) as file:
            file.write_text("".join(json.dumps(line) + "\n" for line in kept))
        self.epochs = [line for line in kept if line["kind"] == "epoch"]
        self._boards = [BOARDS[name](folder, step) for name in boards]

    def write(self, kind: str, step: int, numbers: Mapping[str, float]) -> None:
        """Add a line of kind `step` or `epoch`."""
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        line = {"kind": kind, "step": step, **finite}
        with self.lines.open("a") as file:
            file.write(json.dumps(line) + "\n")
        if kind == "epoch":
            self.epochs.append(line)
            self._write_table()
        for board in self._boards:
            board.write({f"{kind}/{name}": value for name, value in numbers.items()}, step)

    def close(self) -> None:
        """Finish what the boards show."""
        for board in self._boards:
            board.close()

    def _write_table(self) -> None:
        columns = list(dict.fromkeys(name for line in self.epochs for name in line if name != "kind"))
        with replacing(self.table) as file, file.open("w", newline="") as handle:
            writer = csv.DictWriter(handle, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(self.epochs)


Sums = dict[str, tuple[float, float]]
"""Name of a number -> its sum, and how many steps it is the sum of."""


class RunningMeans:
    """Running sums of an epoch's numbers, saved in checkpoints, so that a resumed epoch reports the same means."""

    def __init__(self, sums: Sums | None = None) -> None:
        self._sums: Sums = dict(sums or {})

    @classmethod
    def of(cls, numbers: Mapping[str, float]) -> RunningMeans:
        """Return the sums of a single step."""
        sums = cls()
        sums.add(numbers)
        return sums

    @classmethod
    def resumed(cls, saved: Sequence[Sums]) -> RunningMeans:
        """Return this rank's sums from those of all ranks in a checkpoint.

        With as many ranks as before each has its own sums again; with another number each has the mean over the former
        ranks, so that a step counts as much as one of the steps that follow.
        """
        if len(saved) == world_size():
            return cls(saved[rank()])
        joined = _join(saved)
        return cls({name: (total / len(saved), count / len(saved)) for name, (total, count) in joined.items()})

    def add(self, numbers: Mapping[str, float]) -> None:
        """Add the numbers of one step; a number may be missing, and NaN is skipped."""
        for name, value in numbers.items():
            if math.isnan(value):
                continue
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = (total + value, count + 1)

    def means(self) -> dict[str, float]:
        """The mean of each number over the steps that had it."""
        return {name: total / count for name, (total, count) in self._sums.items()}

    def of_ranks(self) -> list[Sums]:
        """Return the sums of every rank, for a checkpoint; all ranks call it."""
        parts = [dict(self._sums)] * world_size()
        if len(parts) > 1:
            dist.all_gather_object(parts, self._sums)
        return parts

    def over_ranks(self) -> RunningMeans:
        """Return the sums over all ranks; a number may be missing on a rank. All ranks call it."""
        return RunningMeans(_join(self.of_ranks()))


def _join(parts: Sequence[Sums]) -> Sums:
    """Add up the sums of several ranks."""
    joined: Sums = {}
    for part in parts:
        for name, (total, count) in part.items():
            before = joined.get(name, (0.0, 0))
            joined[name] = (before[0] + total, before[1] + count)
    return joined


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a run's metrics.jsonl, as `record_lines` yields them."""
    return list(record_lines(folder))


def record_lines(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a run's metrics.jsonl one by one.

    A record is an object with a `kind`, a `step` and numbers; an epoch's record has an `epoch`. Other lines are
    skipped: the last one silently, since a crash may cut it short, earlier ones with a warning.
    """
    file = folder / "metrics.jsonl"
    if not file.is_file():
        return
    count = damaged = pending = 0  # pending: 1 if the line before was no record
    with file.open(encoding="utf-8", errors="replace") as texts:
        for text in texts:
            count, damaged = count + 1, damaged + pending
            record = _record(text)
            pending = int(record is None)
            if record is not None:
                yield record
    if damaged:
        warnings.warn(f"{damaged} of {count} lines of {file} are no records: they are left out", stacklevel=2)


def epoch_lines(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a run's metrics that sum up an epoch, one by one."""
    return (line for line in record_lines(folder) if line.get("kind") == "epoch")


def _record(text: str) -> dict[str, Any] | None:
    """Return the record in a line, or None if the line holds none."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str) or not _is_count(line.get("step")):
        return None
    numbers = (value for name, value in line.items() if name != "kind" and value is not None)
    if not all(isinstance(value, (int, float)) for value in numbers):
        return None
    return line if line["kind"] != "epoch" or _is_count(line.get("epoch")) else None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def read_epochs(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics that sum up an epoch."""
    return list(epoch_lines(folder))


class Board(Protocol):
    """A service that plots numbers; `Records` passes every line to it."""

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Show the numbers of a step."""

    def close(self) -> None:
        """Finish: no more numbers follow."""


class TensorBoard:
    """TensorBoard files in a run's folder; a resumed run hides the points after its checkpoint."""

    def __init__(self, folder: Path, step: int) -> None:
        self._writer = _entry("tensorboard")(str(folder / "tensorboard"), purge_step=step)

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Add a point to every curve."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Finish the files."""
        self._writer.close()


class WeightsAndBiases:
    """A run at Weights & Biases (offline: its files in the run's folder), which a resumed run continues."""

    def __init__(self, folder: Path, step: int) -> None:
        identity = folder / "wandb-id"
        if not identity.exists():
            identity.write_text(secrets.token_hex(8))
        self._run = _entry("wandb")(
            project="antipodes",
            name=folder.resolve().name,
            id=identity.read_text(),
            resume="allow",
            dir=str(folder),
            config=Run(folder).config,
        )

    def write(self, numbers: Mapping[str, float], step: int) -> None:
        """Log the numbers; a step that was logged before the run was stopped is ignored by the service."""
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        """Mark the run as finished."""
        self._run.finish()


BOARDS: dict[str, Callable[[Path, int], Board]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
"""Extra of the package -> its board, built from a run's folder and the step from which the run continues."""

_ENTRIES = {"tensorboard": ("torch.utils.tensorboard", "SummaryWriter"), "wandb": ("wandb", "init")}


def require_boards(names: Iterable[str]) -> None:
    """Refuse boards whose package is not installed.

    Raises:
        ValueError: for the first of them.
    """
    for name in names:
        _entry(name)


def _entry(name: str) -> Callable[..., Any]:
    module, attribute = _ENTRIES[name]
    try:
        entry: Callable[..., Any] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:  # a mere folder called wandb can be imported, too
        raise ValueError(f"{name} is not installed: pip install '.[{name}]'") from error
    return entry
