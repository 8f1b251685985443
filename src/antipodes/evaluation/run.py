"""The encoder of a run, its features, its scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from antipodes.data import ImageDataset
from antipodes.evaluation.features import FeatureSet, embed, split_features
from antipodes.evaluation.names import ProtocolOptions
from antipodes.evaluation.protocols import evaluate, protocol
from antipodes.methods import Method
from antipodes.training.components import build_data, build_method
from antipodes.training.loop import evaluation_views
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
    method.load_state_dict(state["model"])
    return method, data


def score(
    method: Method,
    data: ImageDataset,
    protocols: Sequence[str],
    options: ProtocolOptions | None = None,
    test_limit: int | None = None,
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
        progress: Called with (images done, images in all).
    """
    for name in protocols:
        protocol(name)  # an unknown name is refused before the work begins
    test = data.held_out(test_limit)
    total = len(data) + (len(test) if test is not None else 0)
    parts = [_features(method, data, lambda done, _: progress(done, total) if progress else None)]
    if test is None:
        parts = list(split_features(parts[0]))
    else:
        parts.append(_features(method, test, lambda done, _: progress(len(data) + done, total) if progress else None))
    return evaluate(protocols, parts[0], parts[1], options)


def _features(method: Method, data: ImageDataset, progress: Progress) -> FeatureSet:
    plain = evaluation_views(method, data.image_size)
    nothing = torch.Generator()  # the plain view draws nothing
    features = embed(method.backbone(), data, preprocess=lambda images: plain(images, nothing), progress=progress)
    return FeatureSet(features, data.labels, data.coarse_labels)
