"""The folder of a run: what is in it, and how it is written so that a crash leaves nothing half-done."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import yaml

from antipodes.files import replacing

CHECKPOINT_FORMAT = 1


@dataclass(frozen=True)
class Run:
    """A run folder: config.yaml, metrics.jsonl, metrics.csv, checkpoints/last.pt and best.pt, encoder.safetensors.

    And snapshots/epoch-NNN.pt, where the run was asked for them.
    """

    folder: Path

    @property
    def config_file(self) -> Path:
        """The complete configuration."""
        return self.folder / "config.yaml"

    @property
    def last(self) -> Path:
        """The newest checkpoint, from which the run continues."""
        return self.folder / "checkpoints" / "last.pt"

    @property
    def best(self) -> Path:
        """The checkpoint with the best kNN accuracy, or the lowest loss where there are no labels."""
        return self.folder / "checkpoints" / "best.pt"

    @classmethod
    def free(cls, folder: str) -> Run:
        """A folder for a new run, not made yet; refuses one that holds a run."""
        run = cls(Path(folder))
        if run.config_file.exists():
            raise ValueError(
                f"{folder} holds a run already: continue it with --resume {folder}, or choose another --out"
            )
        existing = next(parent for parent in (run.folder, *run.folder.resolve().parents) if parent.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            raise ValueError(f"{folder} cannot be made: {existing} is not a folder that can be written to")
        return run

    @classmethod
    def create(cls, folder: str, config: dict[str, Any]) -> Run:
        """Make the folder and write the configuration; refuses a folder that holds a run."""
        run = cls.free(folder)
        run.last.parent.mkdir(parents=True, exist_ok=True)
        with replacing(run.config_file) as file:
            file.write_text(yaml.safe_dump(_plain(config), sort_keys=False))
        return run

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """An existing run."""
        run = cls(Path(folder))
        if not run.config_file.is_file():
            raise ValueError(f"{folder} is not a run: it has no config.yaml, which antipodes train writes")
        return run

    def config(self) -> dict[str, Any]:
        """The configuration the run was started with."""
        try:
            loaded = yaml.safe_load(self.config_file.read_text())
        except yaml.YAMLError as error:
            raise ValueError(f"{self.config_file} is not YAML: {' '.join(str(error).split())}") from error
        if not isinstance(loaded, dict):
            raise ValueError(f"{self.config_file} is not a configuration: it should be a mapping of options")
        return cast(dict[str, Any], loaded)


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint: the old one stays whole until the new one is on disk."""
    with replacing(path) as file:
        torch.save({"format": CHECKPOINT_FORMAT} | state, file)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint, as data only: nothing in it can run code.

    Raises:
        ValueError: if it is missing, damaged, or of another format.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist: the run ended before its first checkpoint, start it again")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises half a dozen kinds for a damaged file
        raise ValueError(f"{path} cannot be read as a checkpoint ({type(error).__name__}): it is damaged") from error
    if not isinstance(state, dict) or state.get("format") != CHECKPOINT_FORMAT:
        raise ValueError(f"{path} is not a checkpoint of this version of antipodes")
    return cast(dict[str, Any], state)


def _plain(value: Any) -> Any:
    """Tuples as lists, paths as strings: what safe YAML can hold."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
