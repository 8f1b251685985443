"""The encoder of a run, its features, its scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from antipodes.data import ImageDataset
from antipodes.data.augment import Augmentation
from antipodes.evaluation.false_negatives import false_negatives
from antipodes.evaluation.features import FeatureSet, embed, split_features
from antipodes.evaluation.names import RUN_PROTOCOL_NAMES, ProtocolOptions
from antipodes.evaluation.protocols import evaluate, protocol
from antipodes.methods import Method
from antipodes.training.components import build_data, build_method, plain_view
from antipodes.training.loop import load_model
from antipodes.training.run import Run, load_checkpoint

Progress = Callable[[int, int], None]


def open_method(run: Run, which: Literal["last", "best"] = "last") -> tuple[Method, ImageDataset]:
    """The method of a run with the weights of a checkpoint, and the data it was trained on."""
    config = run.config()
    state = load_checkpoint(run.last if which == "last" else run.best)
    data = build_data(config["data"])
    if state["identity"]["fingerprint"] != data.fingerprint:
        raise ValueError(f"the dataset has changed since {run.folder} was trained: its tables belong to other samples")
    with torch.random.fork_rng():
        method = build_method(config, data)
    load_model(method, state, run)
    return method, data


def score(
    method: Method,
    data: ImageDataset,
    protocols: Sequence[str],
    options: ProtocolOptions | None = None,
    test_limit: int | None = None,
    batch_size: int = 256,
    recipe: Augmentation | None = None,
    progress: Progress | None = None,
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
        progress: Called with (images done, images in all).
    """
    plain = [name for name in protocols if name not in RUN_PROTOCOL_NAMES]
    for name in plain:
        protocol(name)  # an unknown name is refused before the work begins
    scores: dict[str, float] = {}
    if "false-negatives" in protocols:
        scores = false_negatives(method, data, options or ProtocolOptions(), batch_size, recipe)
    if not plain:
        return scores
    test = data.held_out(test_limit)
    total = len(data) + (len(test) if test is not None else 0)
    parts = [_features(method, data, lambda done, _: progress(done, total) if progress else None)]
    if test is None:
        parts = list(split_features(parts[0]))
    else:
        parts.append(_features(method, test, lambda done, _: progress(len(data) + done, total) if progress else None))
    return scores | evaluate(plain, parts[0], parts[1], options)


def _features(method: Method, data: ImageDataset, progress: Progress) -> FeatureSet:
    view = plain_view(method, data.image_size)
    features = embed(method.backbone(), data, preprocess=view, progress=progress)
    return FeatureSet(features, data.labels, data.coarse_labels)
