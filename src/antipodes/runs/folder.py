"""The folder of a run: what is in it, and how it is written so that a crash leaves nothing half-done."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import yaml
from torch import Tensor

from antipodes.files import replacing
from antipodes.registry import NAMES
from antipodes.runs.fingerprint import fingerprint
from antipodes.runs.yaml_files import read_options

if sys.platform != "win32":
    import fcntl

CHECKPOINT_FORMAT = 1
LOCK = ".lock"
FROZEN = "frozen.pt"  # beside the checkpoints
WRITTEN = (
    "config.yaml",
    "metrics.jsonl",
    "metrics.csv",
    "skipped.csv",
    "checkpoints",
    "snapshots",
    "tensorboard",
    "wandb",
)
"""What a run may have written before its first checkpoint."""


class Frozen(NamedTuple):
    """Weights of a run that no step changes: their names and their digest."""

    names: frozenset[str]
    digest: str


@dataclass(frozen=True)
class Run:
    """A run folder: config.yaml, metrics.jsonl, metrics.csv, checkpoints/last.pt and best.pt (with frozen.pt, where
    towers are frozen), encoder.safetensors.

    And snapshots/epoch-NNN.pt, where the run was asked for them.

    Args:
        folder: Where it is.
        data: Where its data is now, if it has moved.
    """

    folder: Path
    data: str | None = None

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
        """The checkpoint of the best kNN accuracy, or recall of validation pairs; of the lowest loss without either."""
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
        run.write_config(config)
        return run

    @classmethod
    def open(cls, folder: str | Path, data: str | None = None) -> Run:
        """An existing run, and where its data is now, if it has moved.

        Raises:
            ValueError: if it is none, or its data has no path.
        """
        run = cls(Path(folder), data)
        if not run.config_file.is_file():
            raise ValueError(f"{folder} is not a run: it has no config.yaml, which antipodes train writes")
        return run

    def config(self) -> dict[str, Any]:
        """The configuration the run was started with; its data where it is now."""
        config = read_options(self.config_file)
        if self.data is None:
            return config
        known = config.get("data")
        if not isinstance(known, dict) or known.get("name") in NAMES["data"] or self.data in NAMES["data"]:
            raise ValueError(
                f"--data says where the files of a run's data are now, and {self.folder} was not trained on files: "
                "leave it out"
            )
        return {**config, "data": {**known, "name": absolute(self.data)}}

    def write_config(self, config: dict[str, Any]) -> None:
        """Write the configuration down, whole or not at all."""
        with replacing(self.config_file) as file:
            file.write_text(yaml.safe_dump(_plain(config), sort_keys=False))

    def changed(self, config: dict[str, Any]) -> bool:
        """Whether a configuration is another than the one written down."""
        return bool(read_options(self.config_file) != _plain(config))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from training this run meanwhile; the lock goes with the process, however that ends.

        Raises:
            ValueError: if another process is training it.
        """
        if sys.platform == "win32":
            yield
            return
        with (self.folder / LOCK).open("w") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                sentence = f"{self.folder} is being trained by another process: wait for it, or stop it"
                raise ValueError(sentence) from error
            yield

    def missing(self) -> Path | None:
        """The outermost folder that has to be made for the run; None where all are there."""
        folders = [folder for folder in (self.folder, *self.folder.parents) if not folder.exists()]
        return folders[-1] if folders else None

    def discard(self, missing: Path | None) -> None:
        """Remove a run that came to nothing, and the folders that were made for it, but nothing else in them.

        Args:
            missing: What `missing` said before the run was made.
        """
        made = self.config_file.exists()  # else the other files are somebody's who has a folder of this name
        for name in (*WRITTEN, LOCK) if made else ():
            path = self.folder / name
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        for folder in (self.last.parent, self.folder, *self.folder.parents) if missing is not None else ():
            if folder.is_dir() and any(folder.iterdir()):
                return
            if folder.is_dir():
                folder.rmdir()
            if folder == missing:
                return


def absolute(data: str) -> str:
    """A dataset's path from the root, so that a run finds it from everywhere; a name stays one."""
    if data.startswith("hf:") and not data.startswith("hf:/"):
        return "hf:" + absolute(data.removeprefix("hf:"))
    path = Path(data).expanduser()
    return str(path.absolute()) if data not in NAMES["data"] and path.exists() else data


def save_checkpoint(path: Path, state: dict[str, Any], frozen: Frozen | None = None) -> None:
    """Write a checkpoint: the old one stays whole until the new one is on disk.

    Args:
        path: Where to.
        state: What it holds.
        frozen: Which of the weights under `model` never change: they are not written again and again, but stand once
            in a file beside it, from `save_frozen`.

    Raises:
        OSError: if it cannot be written, such as on a full disk.
    """
    try:
        with replacing(path) as file:
            if frozen is not None:
                model = state["model"]
                moving = {name: weight for name, weight in model.items() if name not in frozen.names}
                state = state | {"model": moving, "weights": list(model), "frozen": frozen.digest}
            torch.save({"format": CHECKPOINT_FORMAT} | state, file)
    except (RuntimeError, OSError) as error:  # torch's writer says RuntimeError where the disk is full
        free = shutil.disk_usage(path.parent).free
        kept = "; the one before it is whole" if path.exists() else ""
        raise OSError(f"the checkpoint {path} cannot be written, the disk has {free:,} bytes free{kept}") from error


def save_frozen(folder: Path, weights: Mapping[str, Tensor]) -> Frozen:
    """Write the weights that no step changes into the folder of checkpoints, before the first of these."""
    save_checkpoint(folder / FROZEN, {"model": dict(weights)})
    return Frozen(frozenset(weights), fingerprint(weights))


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
    if (names := state.pop("weights", None)) is not None:
        state["model"] = _with_frozen(path, state["model"], names, state.pop("frozen"))
    return cast(dict[str, Any], state)


def _with_frozen(path: Path, moving: Mapping[str, Tensor], names: list[str], digest: str) -> dict[str, Tensor]:
    """The weights of a checkpoint with those that stand in the file beside it, in their order."""
    beside = path.with_name(FROZEN)
    fixed = load_checkpoint(beside)["model"] if beside.is_file() else {}
    if fingerprint(fixed) != digest:
        raise ValueError(
            f"{path} goes with the frozen weights of its run, and {beside} does not hold them: bring it along"
        )
    return {name: moving[name] if name in moving else fixed[name] for name in names}


def _plain(value: Any) -> Any:
    """Tuples as lists, paths as strings: what safe YAML can hold."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value
