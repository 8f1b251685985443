"""The folder of a run: its files, its lock, and checkpoints that are written whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from antipodes.files import append_digest, check_digest, remove_temporaries, replacing
from antipodes.registry import NAMES
from antipodes.runs.yaml_files import configuration_text, read_configuration, read_options

if sys.platform != "win32":
    import fcntl

CHECKPOINT_FORMAT = 1
LOCK = ".lock"
FROZEN = "frozen.pt"  # in the folder of checkpoints
SHARDS = "shards"  # the same; folders of what processes share
WRITTEN = (
    "config.yaml",
    "metrics.jsonl",
    "metrics.csv",
    "skipped.csv",
    "checkpoints",
    "snapshots",
    "tensorboard",
    "wandb",
    "wandb-id",
)
"""What a run may write before its first checkpoint; it is removed if the run ends before that."""
LATER = ("encoder*.safetensors", "encoder*.md", "head*.safetensors", "evaluation.json")
"""Patterns of the files that are written into the folder of a run after its last step."""
CHECKPOINT_KEYS = (
    "identity",
    "data",
    "calendar",
    "model",
    "optimizer",
    "precision",
    "rng",
    "step",
    "best",
    "totals",
)
"""The keys of a checkpoint, apart from its format."""


class FrozenWeights(NamedTuple):
    """The names and the digest of a run's weights that no step changes."""

    names: frozenset[str]
    digest: str


@dataclass(frozen=True)
class Run:
    """A run folder: config.yaml, metrics.jsonl, metrics.csv, checkpoints/last.pt and best.pt (with frozen.pt, where
    towers are frozen), encoder.safetensors.

    With --snapshot_every also snapshots/epoch-NNN.pt.

    Args:
        folder: The path of the folder.
        data: The current path of the data, if it has moved.
    """

    folder: Path
    data: str | None = None

    @property
    def path(self) -> Path:
        """Return the folder."""
        return self.folder

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
        """The checkpoint with the best kNN accuracy or validation recall; without either, with the lowest loss."""
        return self.folder / "checkpoints" / "best.pt"

    @property
    def exists(self) -> bool:
        """Return True if the folder holds a run, also one that was stopped before its first checkpoint."""
        return self.config_file.is_file()

    def refuse_taken(self) -> None:
        """Refuse a folder for a new run if it holds a run, or user's files with names that a run writes.

        Raises:
            ValueError: the folder cannot be used; the message says why.
        """
        if self.config_file.exists():
            raise ValueError(
                f"{self.folder} holds a run already: continue it with --resume {self.folder} (or --resume auto, "
                "which starts or continues), or choose another --out"
            )
        names = [name for name in WRITTEN if os.path.lexists(self.folder / name)]
        names += sorted(path.name for pattern in LATER for path in self.folder.glob(pattern))
        lock = self.folder / LOCK
        if os.path.lexists(lock) and (not lock.is_file() or lock.stat().st_size):  # ours is an empty file
            names.append(LOCK)
        if names:
            raise ValueError(
                f"--out {self.folder} holds {', '.join(names)} and no run: a run would write over it, "
                "choose another --out"
            )
        existing = next(parent for parent in (self.folder, *self.folder.resolve().parents) if parent.exists())
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            raise ValueError(f"{self.folder} cannot be made: {existing} is not a folder that can be written to")

    def create(self, config: Mapping[str, Any]) -> None:
        """Write the configuration, by which the folder is known as a run, and make the folder of checkpoints."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self.config_file) as file:
            file.write_text(configuration_text(_plain(config)))
        self.last.parent.mkdir(exist_ok=True)

    @classmethod
    def open(cls, folder: str | Path, data: str | None = None) -> Run:
        """Open an existing run.

        Raises:
            ValueError: if the folder holds no run.
        """
        run = cls(Path(folder), data)
        if not run.config_file.is_file():
            raise ValueError(f"{folder} is not a run: it has no config.yaml, which antipodes train writes")
        return run

    @property
    def metrics(self) -> dict[str, NDArray[np.float64]]:
        """Return the numbers of every epoch by column (`loss`, `knn`, `flagged_share`, ...), NaN for none."""
        from antipodes.runs.records import read_epochs

        rows = read_epochs(self.folder)
        names = dict.fromkeys(name for row in rows for name, value in row.items() if isinstance(value, int | float))
        return {name: np.array([row.get(name, np.nan) for row in rows], dtype=np.float64) for name in names}

    def title(self) -> str:
        """What the run trained, in a few words: its method, and its policy if it has one."""
        config = self.config
        policy = config["negatives"]["name"]
        return str(config["method"]["name"]) + ("" if policy == "none" else f" + {policy} ({config['treatment']})")

    @property
    def config(self) -> dict[str, Any]:
        """Return the configuration that the run was started with, with the current path of its data."""
        config = read_configuration(self.config_file)
        if self.data is None:
            return config
        known = config.get("data")
        if not isinstance(known, dict) or known.get("name") in NAMES["data"] or self.data in NAMES["data"]:
            raise ValueError(
                f"--data says where the files of a run's data are now, and {self.folder} was not trained on files: "
                "leave it out"
            )
        return {**config, "data": {**known, "name": absolute(self.data)}}

    def changed(self, config: dict[str, Any]) -> bool:
        """Return True if a configuration differs from the written one."""
        return bool(read_options(self.config_file) != _plain(config))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Prevent other processes from training this run inside the block; the lock ends with the process.

        The folder is created. The process with the lock removes temporary files of processes that were killed.

        Raises:
            ValueError: if another process is training the run.
        """
        if sys.platform == "win32":
            self.folder.mkdir(parents=True, exist_ok=True)
            yield
            return
        with self._lock_file() as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                raise ValueError(self._taken()) from error
            if not _is_file(self.folder / LOCK, file.fileno()):  # its last owner has removed it just now
                raise ValueError(self._taken())
            for folder in (self.folder, self.last.parent, self.folder / "snapshots"):
                remove_temporaries(folder)
            yield

    def _taken(self) -> str:
        return f"{self.folder} is being trained by another process: wait for it, or stop it"

    def _lock_file(self) -> TextIO:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            return (self.folder / LOCK).open("a")
        except FileNotFoundError as error:  # another start has just removed the folder that it had made
            raise ValueError(self._taken()) from error
        except OSError as error:
            raise ValueError(f"{self.folder} cannot be written to ({error.strerror}): choose another --out") from error

    def missing(self) -> Path | None:
        """Return the outermost folder that must be created for the run; None if all exist."""
        folders = [folder for folder in (self.folder, *self.folder.parents) if not folder.exists()]
        return folders[-1] if folders else None

    def discard(self, missing: Path | None) -> None:
        """Remove the files of a run that wrote no checkpoint, and the folders that were created for it.

        Only the process with the lock calls this. `refuse_taken` has checked that none of the names existed before, so
        all files with these names belong to the run.

        Args:
            missing: The result of `missing()` before the run was created.
        """
        for name in (*WRITTEN, LOCK):  # the lock last: until then no other process can start here
            path = self.folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        for folder in (self.folder, *self.folder.parents) if missing is not None else ():
            if folder.is_dir() and any(folder.iterdir()):
                return
            if folder.is_dir():
                folder.rmdir()
            if folder == missing:
                return


def _is_file(path: Path, handle: int) -> bool:
    """Return True if an open file is the file at this path."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def absolute(data: str) -> str:
    """Return a dataset's absolute path, so that a run finds it from every folder; a dataset's name is unchanged."""
    if data.startswith("hf:") and not data.startswith("hf:/"):
        return "hf:" + absolute(data.removeprefix("hf:"))
    if data.startswith("stream:"):
        return "stream:" + str(Path(data.removeprefix("stream:")).expanduser().absolute())
    path = Path(data).expanduser()
    return str(path.absolute()) if data not in NAMES["data"] and path.exists() else data


def save_checkpoint(path: Path, state: dict[str, Any], frozen: FrozenWeights | None = None) -> None:
    """Write a checkpoint with its digest; an older checkpoint stays whole until the new one is on disk.

    Args:
        path: The file to write.
        state: The content.
        frozen: The weights under `model` that never change. They are left out, because `save_frozen` has written them
            once to a file in the same folder.

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
            append_digest(file)
    except (RuntimeError, OSError) as error:  # torch raises RuntimeError if the disk is full
        free = shutil.disk_usage(path.parent).free
        kept = "; the one before it is whole" if path.exists() else ""
        raise OSError(f"the checkpoint {path} cannot be written, the disk has {free:,} bytes free{kept}") from error


def save_frozen(folder: Path, weights: Mapping[str, Tensor]) -> FrozenWeights:
    """Write the weights that no step changes into the folder of checkpoints, before the first checkpoint."""
    save_checkpoint(folder / FROZEN, {"model": dict(weights)})
    return FrozenWeights(frozenset(weights), fingerprint(weights))


def load_checkpoint(path: Path, keys: Iterable[str] = ()) -> dict[str, Any]:
    """Read a checkpoint, as data only: nothing in it can run code.

    Args:
        path: The file.
        keys: Keys that it must hold, such as `CHECKPOINT_KEYS`.

    Raises:
        ValueError: if it is missing, damaged, of another format, or lacks a key.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist: the run ended before its first checkpoint, start it again")
    check_digest(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises many different classes for a damaged file
        raise ValueError(f"{path} cannot be read as a checkpoint ({type(error).__name__}): it is damaged") from error
    if not isinstance(state, dict) or state.get("format") != CHECKPOINT_FORMAT:
        raise ValueError(f"{path} is not a checkpoint of this version of antipodes")
    if lacking := [key for key in keys if key not in state]:
        raise ValueError(f"{path} is not a whole checkpoint: it has no {', '.join(lacking)}")
    if (shards := state.pop(SHARDS, None)) is not None:
        state = _with_shards(path, state, shards)
    if (names := state.pop("weights", None)) is not None:
        state["model"] = _with_frozen(path, state["model"], names, state.pop("frozen"))
    return cast(dict[str, Any], state)


def load_pointer(path: Path) -> str | None:
    """Return the name of the folder of shared weights that a checkpoint needs, None if there is none."""
    if not path.is_file():
        return None
    name = torch.load(path, map_location="cpu", weights_only=True, mmap=True).get(SHARDS)
    return None if name is None else str(name)


def _with_shards(path: Path, state: dict[str, Any], name: str) -> dict[str, Any]:
    """Join a checkpoint with the weights and the optimiser's state that its processes shared."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    folder = path.with_name(name)
    if not (folder / ".metadata").is_file():
        raise ValueError(f"{path} needs the weights of its run in {folder}, which is missing: copy that folder too")
    with tempfile.TemporaryDirectory() as temporary:
        whole = Path(temporary) / "whole.pt"
        dcp_to_torch_save(folder, whole)
        shared = torch.load(whole, map_location="cpu", weights_only=True)
    optimizer = shared["optimizer"]
    optimizer["state"] = {int(number): each for number, each in optimizer["state"].items()}  # written as texts
    return {**state, "model": {**state["model"], **shared["model"]}, "optimizer": optimizer}


def _with_frozen(path: Path, moving: Mapping[str, Tensor], names: list[str], digest: str) -> dict[str, Tensor]:
    """Join a checkpoint's weights with the frozen ones from the file in its folder, in their original order."""
    frozen = path.with_name(FROZEN)
    fixed = load_checkpoint(frozen)["model"] if frozen.is_file() else {}
    if fingerprint(fixed) != digest:
        raise ValueError(
            f"{path} needs the frozen weights of its run, and {frozen} does not hold them: copy that file too"
        )
    return {name: moving[name] if name in moving else fixed[name] for name in names}


def _plain(value: Any) -> Any:
    """Turn tuples into lists and paths into strings, for safe YAML."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def fingerprint(weights: nn.Module | Mapping[str, Tensor]) -> str:
    """Return a short hex digest of the weights and tables of a module, or of a state dict.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> before = fingerprint(layer)
        >>> layer.bias.data[1] += 1
        >>> before == fingerprint(layer)
        False
    """
    digest = hashlib.blake2b(digest_size=8)
    state = weights.state_dict() if isinstance(weights, nn.Module) else weights
    for name, tensor in state.items():
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
