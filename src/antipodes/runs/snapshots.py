"""Snapshots: the features of some training images after an epoch, and their pseudo labels.

Maps of several epochs are drawn from them, so no encoder has to be built again; each takes a few hundred kilobytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from antipodes.data import Samples
from antipodes.data.dataset import subset
from antipodes.methods import Method
from antipodes.negatives import IFND
from antipodes.pairs import normalise
from antipodes.runs.embedding import embed_dataset
from antipodes.runs.folder import Run, load_checkpoint, save_checkpoint
from antipodes.runs.views import plain_view
from antipodes.seeding import generator

SAMPLES = 1000


@dataclass(frozen=True)
class Snapshot:
    """The features and pseudo labels of some images after an epoch.

    Args:
        epoch: Number of epochs that are done; 0 is before the first.
        ids: (m,) ids of the images, the same in all snapshots of a dataset.
        features: (m, F) float16 with length 1, of images without augmentation.
        pseudo_labels: Number of clusters -> labels (m,), -1 if none is accepted; empty without clustering.
    """

    epoch: int
    ids: Tensor
    features: Tensor
    pseudo_labels: dict[int, Tensor]


def take_snapshot(
    method: Method, data: Samples, epoch: int, progress: float, device: torch.device | str = "cpu"
) -> Snapshot:
    """Embed some images with a method in its current state; neither the method nor any generator changes."""
    ids = sample(len(data), SAMPLES)
    view = plain_view(method, data.image_size)
    seen = method.network.plans[method.network.names()[0]].input
    features = embed_dataset(method.backbone(), subset(data, ids), preprocess=view, input_name=seen, device=device)
    return Snapshot(epoch, ids, normalise(features).half(), pseudo_labels(method, ids, progress))


def sample(count: int, size: int, seed: int = 0) -> Tensor:
    """Draw at most `size` ids of a dataset at random."""
    return torch.randperm(count, generator=generator("map", seed))[:size].clone()  # a slice is saved with all of it


def pseudo_labels(method: Method, ids: Tensor, progress: float) -> dict[int, Tensor]:
    """Return the pseudo labels of ids by number of clusters, -1 if none is accepted; empty before a clustering."""
    found: dict[int, Tensor] = {}
    for _, part in method.policies():
        if isinstance(part, IFND) and part.fitted_at >= 0:
            labels = part.accepted(ids.to(part.labels.device), progress).cpu()
            found |= dict(zip(part.clusters, labels, strict=True))
    return found


def save_snapshot(run: Run, snapshot: Snapshot) -> None:
    """Write a snapshot into the run's folder; one of the same epoch is replaced."""
    file = _folder(run) / f"epoch-{snapshot.epoch:03}.pt"
    file.parent.mkdir(exist_ok=True)
    save_checkpoint(file, vars(snapshot))


def load_snapshots(run: Run) -> list[Snapshot]:
    """The snapshots of a run in the order of their epochs.

    Raises:
        ValueError: if one is damaged.
    """
    states = [load_checkpoint(file) for file in _folder(run).glob("epoch-*.pt")]
    snapshots = [Snapshot(**{key: value for key, value in state.items() if key != "format"}) for state in states]
    return sorted(snapshots, key=lambda snapshot: snapshot.epoch)


def discard_snapshots(run: Run, after: int) -> None:
    """Remove snapshots of later epochs: a run that continues from an epoch makes them again."""
    for file in _folder(run).glob("epoch-*.pt"):
        if int(file.stem.removeprefix("epoch-")) > after:
            file.unlink()


def _folder(run: Run) -> Path:
    return run.folder / "snapshots"
