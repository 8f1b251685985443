"""What happens between steps and epochs: policies are fitted and receive losses or scores, the encoder is evaluated."""

from __future__ import annotations

from functools import partial
from statistics import fmean

import torch
from lightning_fabric import Fabric
from torch import Tensor

from antipodes.data import Samples, subset
from antipodes.functional.feature_quality import knn, ranked_measures, recall_both_ways
from antipodes.guides import RunGuide
from antipodes.methods import Method
from antipodes.negatives import Policy
from antipodes.negatives.policy import Receives, Space
from antipodes.pairs import normalise
from antipodes.runs.embedding import embed_dataset
from antipodes.runs.towers import paired_features, paired_towers, text_pairs, tower_features
from antipodes.runs.views import plain_view

KNN_IMAGES = 4096  # the number of training samples that the kNN accuracy during training uses, at most
RECALLS = (1, 5, 10)  # the ranks of the recall of documents by queries


def online_knn(method: Method, data: Samples, device: torch.device | str = "cpu") -> float:
    """Return the leave-one-out kNN accuracy in percent on (some) training data: validation without test data."""
    sample = data if len(data) <= KNN_IMAGES else subset(data, torch.arange(KNN_IMAGES) * len(data) // KNN_IMAGES)
    name = method.network.plans[method.network.names()[0]].input
    view = plain_view(method, data.image_size)
    features = embed_dataset(method.backbone(), sample, preprocess=view, input_name=name, device=device)
    assert sample.labels is not None
    return 100 * knn(features, sample.labels, features, sample.labels, leave_one_out=True)


def online_recall(method: Method, data: Samples, device: torch.device | str = "cpu") -> float:
    """Return the recall by which epochs are chosen, in percent, on validation pairs.

    It is the mean at 1, 5 and 10 of texts and images for each other, or for pairs of texts of documents by queries.
    """
    towers = paired_towers(method)
    if towers is not None and method.network.plans[towers[0]].modality == "text":
        judged = text_pairs(method, data, device)
        measures = ranked_measures(judged.queries, judged.documents, judged.relevant, judged.gains, RECALLS)
        return 100 * fmean(measures[f"recall@{cutoff}"] for cutoff in RECALLS)
    embedded = partial(tower_features, method, data, device=device)
    pairs = paired_features(method, data, lambda tower, space: embedded(tower, space=space), device)
    return recall_both_ways(pairs.images, pairs.texts, pairs.owners)[2]


def policies_receiving(method: Method, receives: Receives) -> list[Policy]:
    """Return the policies that receive the loss of each step, or the validation score of each epoch."""
    return [policy for _, policy in method.policies() if policy.needs.receives == receives]


def send(policies: list[Policy], value: float, progress: float) -> None:
    """Pass a loss or a validation score to policies that receive it."""
    for policy in policies:
        receive = policy.on_loss if policy.needs.receives == "loss" else policy.on_score
        receive(value, progress)


def fit_policies(method: Method, data: Samples, epoch: int, progress: float, fabric: Fabric) -> None:
    """Fit the policies that are due after an epoch to features of all training samples, without augmentation.

    1. The features are those of the tower that makes the anchors of the policy's direction, or the concatenated
       features of the towers that the policy names. With several ranks, each embeds its share of the rows.
    2. A policy that is fitted in the guide's space gets the guide's vectors: once, unless the guide changes.
    3. A policy that keeps what it has seen (space `seen`) is fitted without features.

    Raises:
        ValueError: if a policy names a tower that the method does not have.
    """
    ranks, here = fabric.world_size, fabric.global_rank
    share = data
    if ranks > 1:
        share = subset(data, torch.arange(len(data) * here // ranks, len(data) * (here + 1) // ranks))
    known: dict[tuple[str, Space], Tensor] = {}
    for direction, policy in method.policies():
        if not policy.due(epoch):
            continue
        if policy.needs.space == "seen":
            policy.fit(None, progress)
            continue
        if policy.needs.space == "guide":
            assert isinstance(method.guide, RunGuide)
            fitted = getattr(policy, "fitted_at", None)
            if method.guide.changes or fitted is None or fitted < 0:
                policy.fit(method.guide.vectors(method.anchor_tower(direction)), progress)
            continue
        towers = [method.anchor_tower(direction)] if policy.needs.towers == "anchor" else policy.needs.towers.split("+")
        for tower in towers:
            if tower not in method.network.names():
                there = ", ".join(method.network.names())
                raise ValueError(f"there is no tower {tower!r} to cluster the features of: the method has {there}")
            if (tower, policy.needs.space) not in known:
                known[tower, policy.needs.space] = _features(method, share, tower, policy.needs.space, fabric)
        parts = [known[tower, policy.needs.space] for tower in towers]
        policy.fit(parts[0] if len(parts) == 1 else torch.cat([normalise(part) for part in parts], 1), progress)


def _features(method: Method, data: Samples, tower: str, space: Space, fabric: Fabric) -> Tensor:
    plan = method.network.plans[tower]
    view = plain_view(method, data.image_size, plan.input)
    return embed_dataset(
        method.clustered(tower, space), data, preprocess=view, input_name=plan.input, device=fabric.device
    )
