"""Boards that plot a run's numbers while it trains: TensorBoard, and Weights & Biases."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from antipodes.runs.folder import Run


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
        raise ValueError(f"{name} is not installed: pip install antipodes[{name}]") from error
    return entry
