"""The `false-negatives` protocol: a run's policy on its frozen encoder."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import torch
from torch import Tensor

from antipodes.data import ImageDataset
from antipodes.data.augment import Augmentation
from antipodes.evaluation.names import LABELS_ARE_NEEDED, ProtocolOptions
from antipodes.evaluation.thresholds import errors, measure
from antipodes.methods import Method
from antipodes.negatives.judging import count_flags, summarise_flags
from antipodes.pairs import Pairs, normalise
from antipodes.runs.embedding import embed
from antipodes.runs.records import Totals
from antipodes.runs.views import plain_view
from antipodes.seeding import generator


def false_negatives(
    method: Method,
    data: ImageDataset,
    options: ProtocolOptions,
    batch_size: int,
    recipe: Augmentation | None = None,
) -> dict[str, float]:
    """Precision, recall, F1, MTPR and MTNR in percent of the policy's flags, with the encoder frozen.

    Every sample is an anchor once, among the samples of its batch. For GloFND and FNC also the errors of the thresholds
    to the quantile of the whole dataset: `threshold` are the learned ones, `batch` the quantiles of single batches.

    Args:
        method: A method with a policy.
        data: Its training data, with labels.
        options: The seed of the batches.
        batch_size: That of training.
        recipe: The augmentation of training, on whose views thresholds were learned; None takes plain images.
    """
    policy = method.objective.negatives
    if policy is None:
        raise ValueError("false-negatives needs a run with a policy: train with --negatives")
    if data.labels is None:
        raise ValueError(LABELS_ARE_NEEDED.format(protocol="false-negatives", part="train"))
    if len(method.channels) > 1:
        raise ValueError("false-negatives looks at methods with one encoder")
    embeddings = judged_embeddings(method, data, recipe, options.seed)
    counts = Totals()
    for ids in torch.randperm(len(data), generator=generator("false negatives", options.seed)).split(batch_size):
        if len(ids) == batch_size:
            pairs = Pairs(embeddings[ids], ids, torch.ones(len(ids)))
            counts.add(count_flags(pairs, policy.judge(pairs, 1.0, learn=False), data.labels))
    scores = {f"flags {name}": 100 * value for name, value in summarise_flags(counts.means()).items()}
    for _, truth, found in measure(policy, embeddings, batch_size, options.seed):
        for name, thresholds in found.items():
            scores[f"{name} MAE"], scores[f"{name} RMSE"] = errors(thresholds, truth)
    return scores


def judged_embeddings(method: Method, data: ImageDataset, recipe: Augmentation | None, seed: int) -> Tensor:
    """What a policy judges, (n, D): an embedding of length 1 of one view of every image.

    Args:
        method: A method with one encoder.
        data: Its training data.
        recipe: The augmentation of training, on whose views thresholds were learned; None takes plain images.
        seed: Of the views.
    """
    view = plain_view(method, data.image_size) if recipe is None else _random_view(recipe, seed)
    return normalise(embed(method.network, data, preprocess=view))


def _random_view(recipe: Augmentation, seed: int) -> Callable[[Tensor], Tensor]:
    """A view of each image as in training; what is random follows from the seed and the number of the batch."""
    numbers = count()
    return lambda images: recipe(images, generator("evaluated views", seed, next(numbers)))
