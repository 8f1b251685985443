"""The training data of a run as an audit looks at it. This is the one file of the room that opens runs."""

from __future__ import annotations

from pathlib import Path

from antipodes.auditing.audited import AuditedData
from antipodes.auditing.audited_photos import photos_with_vectors
from antipodes.auditing.embeddings import Vectors
from antipodes.auditing.photos import photos_of
from antipodes.data import Samples
from antipodes.negatives import GloFND
from antipodes.progress import progress_bar
from antipodes.runs.build import build_data
from antipodes.runs.embedding import embed_dataset
from antipodes.runs.folder import Run
from antipodes.runs.opening import open_method
from antipodes.runs.views import plain_view


def data_of_run(folder: str | Path) -> Samples:
    """The training data of a run.

    Raises:
        ValueError: if the folder is not a run, or its data cannot be read.
    """
    return build_data(Run.open(folder).config["data"])


def with_learned_thresholds(folder: str | Path, progress: bool = False) -> AuditedData | None:
    """The training photos of a run trained with GloFND, embedded as its policy sees them, with its thresholds.

    Returns:
        None if the run's policy is another one, or its data is not photos.
    """
    method, data = open_method(Run.open(folder))
    found = [(direction, policy) for direction, policy in method.policies() if isinstance(policy, GloFND)]
    if not found or set(data.modalities) != {"image"}:
        return None
    direction, policy = found[0]
    tower = method.evaluated(method.anchor_tower(direction), head=True)
    with progress_bar("embedding", shown=progress) as told:
        matrix = embed_dataset(tower, data, preprocess=plain_view(method, data.image_size), progress=told)
    photos = photos_of(data).training()
    vectors = Vectors(matrix.numpy(), photos.paths, photos.labels, photos.classes)
    learned = policy.threshold.detach().cpu().float()
    return photos_with_vectors(photos, vectors, f"{folder}, thresholds of GloFND", thresholds=learned)
