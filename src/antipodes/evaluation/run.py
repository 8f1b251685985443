"""The features of a run's encoder, and their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from antipodes.data import ImageDataset
from antipodes.data.augment import Augmentation
from antipodes.evaluation.false_negatives import false_negatives
from antipodes.evaluation.features import FeatureSet, split_features
from antipodes.evaluation.names import ProtocolOptions
from antipodes.evaluation.protocols import evaluate, of_features, transfer
from antipodes.methods import Method
from antipodes.runs.embedding import embed
from antipodes.runs.views import plain_view

Progress = Callable[[int, int], None]


def score(
    method: Method,
    data: ImageDataset,
    protocols: Sequence[str],
    options: ProtocolOptions | None = None,
    test_limit: int | None = None,
    batch_size: int = 256,
    recipe: Augmentation | None = None,
    progress: Progress | None = None,
    others: Sequence[ImageDataset] = (),
) -> dict[str, float]:
    """Scores in percent of a method's encoder: fitted on the training images, measured on the test split.

    A dataset without a test split is divided, 80 to 20, class by class.

    Args:
        method: Whose backbone is evaluated.
        data: The training split, with labels.
        protocols: Names, such as linear and knn.
        options: Of the protocols.
        test_limit: Use only so many test images.
        batch_size: That of training, for what looks at batches.
        recipe: The augmentation of training, for what looks at its views; None takes plain images.
        progress: Called with (images done, images in all), for each dataset anew.
        others: Datasets to transfer to, with labels (see `transfer.open_others`); naming the protocol is optional.
    """
    plain = of_features(protocols)
    if "transfer" in protocols and not others:
        raise ValueError("transfer needs other datasets: name them, such as --transfer fashion-mnist path/to/photos")
    options = options or ProtocolOptions()
    scores: dict[str, float] = {}
    if "false-negatives" in protocols:
        scores |= false_negatives(method, data, options, batch_size, recipe)
    if plain:
        scores |= evaluate(plain, *_features(method, data, data.image_size, test_limit, progress), options)
    for other in others:
        scores |= transfer(other.name, *_features(method, other, data.image_size, test_limit, progress), options)
    return scores


def _features(
    method: Method, data: ImageDataset, size: int, test_limit: int | None, progress: Progress | None
) -> tuple[FeatureSet, FeatureSet]:
    """Features of a dataset's training and test images, seen at a size."""
    test = data.held_out(test_limit)
    total = len(data) + (0 if test is None else len(test))
    train = _embed(method, data, size, lambda done, _: progress(done, total) if progress else None)
    if test is None:
        return split_features(train)
    return train, _embed(method, test, size, lambda done, _: progress(len(data) + done, total) if progress else None)


def _embed(method: Method, data: ImageDataset, size: int, progress: Progress) -> FeatureSet:
    features = embed(method.backbone(), data, preprocess=plain_view(method, size), progress=progress)
    return FeatureSet(features, data.labels, data.coarse_labels)
