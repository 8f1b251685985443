"""The embeddings that a policy compares over a whole dataset with frozen networks, its decisions and its thresholds.

1. `compared_embeddings` embeds every sample as a training step would compare it.
2. `ComparedEmbeddings.pairs` makes a batch of some samples; `judge_frozen` returns the rules of a policy for it.
3. `policy_thresholds` compares the thresholds of a policy with the quantiles of the whole dataset."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from antipodes.data import Raw, Samples
from antipodes.data.augment import Augmentation, Plain
from antipodes.functional.select import kth_largest, top_share, whole_above
from antipodes.methods import Method
from antipodes.negatives import FNC, GloFND, Policy
from antipodes.pairs import Guide, Pairs, Rule, normalise
from antipodes.runs.embedding import embed_dataset
from antipodes.runs.towers import tower_features
from antipodes.runs.views import plain_view
from antipodes.seeding import generator


@dataclass(frozen=True)
class ComparedEmbeddings:
    """The embeddings of a whole dataset, as a training step would compare them.

    Args:
        anchors: (n, D) of length 1.
        candidates: (n, D) of length 1, from the key network or the bank; or the anchors themselves.
        supports: (n, D) mean embedding of further views, if the policy needs support views.
        ask_guide: Returns pairs in the space of the run's guide; None without a guide.
    """

    anchors: Tensor
    candidates: Tensor
    supports: Tensor | None = None
    ask_guide: Callable[..., Guide] | None = None

    def pairs(self, ids: Tensor) -> Pairs:
        """Return the samples with these ids (b,) as one batch in which each is an anchor."""
        positives = (self.anchors[ids] * self.candidates[ids]).sum(1)
        supports = None if self.supports is None else self.supports[ids]
        keys = self.candidates[ids]
        if self.candidates is self.anchors:
            pairs = Pairs(self.anchors[ids], ids, positives, teachers=keys, supports=supports)
        else:
            pairs = Pairs(self.anchors[ids], ids, positives, keys, ids, teachers=keys, supports=supports)
        return pairs if self.ask_guide is None else pairs.with_guide(self.ask_guide(pairs))


def compared_embeddings(
    method: Method, data: Samples, recipe: Augmentation | None, seed: int, direction: str | None = None
) -> ComparedEmbeddings:
    """Embed a dataset as the policy of a direction compares it.

    1. Anchors: a view of every sample through the network that makes the direction's anchors.
    2. Candidates: the keys of the momentum network, the entries of the bank, or the other tower's embeddings.

    Args:
        method: The method.
        data: Its training data.
        recipe: The augmentation of training, on whose views thresholds were learned; None takes plain images.
        seed: Seed of the views.
        direction: A direction of the method; by default the first.
    """
    name = direction or next(iter(method.directions))
    query, other = method.compared(name)
    towers = method.anchor_tower(name), method.candidate_tower(name)

    def embedded(network: nn.Module, tower: str, purpose: int) -> Tensor:
        plan = method.network.plans[tower]
        random = plan.modality == "image" and not isinstance(recipe, Plain | None)
        if not random and _same(network, method.evaluated(tower, head=True)):
            return normalise(tower_features(method, data, tower, space="embeddings"))  # cached for a frozen tower
        view = plain_view(method, data.image_size, plan.input)
        if random:
            assert recipe is not None
            view = _random_view(recipe, seed, purpose)
        return normalise(embed_dataset(network, data, preprocess=view, input_name=plan.input))

    anchors = embedded(query, towers[0], 0)
    candidates = anchors
    if isinstance(other, Tensor):
        candidates = other.detach().cpu().float()
    elif towers[0] != towers[1] or not _same(query, other):
        candidates = embedded(other, towers[1], 1)
    supports = None
    if method.supports:
        maker = query if isinstance(other, Tensor) else other
        views = [embedded(maker, towers[0], 2 + number) for number in range(method.supports)]
        supports = torch.stack(views).mean(0)
    return ComparedEmbeddings(anchors, candidates, supports, method.pair_losses()[name].ask_guide)


def _same(one: nn.Module, other: nn.Module) -> bool:
    """Return True if two modules have the same parameters."""
    return {id(each) for each in one.parameters()} == {id(each) for each in other.parameters()}


@torch.no_grad()
def judge_frozen(policy: Policy, pairs: Pairs, progress: float = 1.0) -> Sequence[Rule]:
    """Return a policy's rules for pairs in its current state; its tables do not change."""
    return policy.rules(pairs, progress, learn=False)


def _random_view(recipe: Augmentation, seed: int, purpose: int) -> Callable[[Raw], Tensor]:
    """Return a function that makes a random view of images; draws follow from the seed and the batch's number."""
    numbers = count()
    return lambda images: recipe(cast(Tensor, images), generator("evaluated views", seed, purpose, next(numbers)))


class PolicyThresholds(NamedTuple):
    """The thresholds of a part of a policy: the true quantiles (n,), and by name the estimates: `batch` for quantiles
    of random batches (batches, n), and `threshold` (n,) if the part learns thresholds.
    """

    policy: GloFND | FNC
    truth: Tensor
    found: Mapping[str, Tensor]


def policy_thresholds(
    policy: Policy, judged: ComparedEmbeddings, batch_size: int, seed: int = 0, batches: int = 1
) -> list[PolicyThresholds]:
    """Return the thresholds of every part of a policy that has thresholds, on the embeddings it compares.

    Args:
        policy: The policy.
        judged: The embeddings.
        batch_size: Samples of a random batch.
        seed: Seed of the batches.
        batches: Random batches in which every sample is an anchor.
    """
    measured = []
    sides = judged.anchors, judged.candidates
    for part in policy.modules():
        if isinstance(part, (GloFND, FNC)):
            drawn = [batch_quantiles(*sides, part.alpha, batch_size, seed, draw) for draw in range(batches)]
            found = {"batch": torch.stack(drawn)}
            if isinstance(part, GloFND):
                found["threshold"] = part.threshold
            measured.append(PolicyThresholds(part, dataset_quantiles(*sides, part.alpha), found))
    return measured


def mean_share(alpha: float | Tensor) -> float:
    """Return the share of false negatives, or its mean if every sample has its own."""
    return float(alpha.mean()) if isinstance(alpha, Tensor) else alpha


def dataset_quantiles(anchors: Tensor, candidates: Tensor, alpha: float | Tensor) -> Tensor:
    """Return the k-th largest similarity of every sample's anchor to all other samples' candidates, (n,).

    With k = ceil(alpha (n - 1)) it is Lemma 3.1's optimum.
    """
    ids = torch.arange(len(anchors))
    count = torch.tensor(len(anchors) - 1)
    k = whole_above(alpha, count).clamp(min=1).expand(len(anchors))
    return kth_largest(anchors, candidates, ids, ids, k)


def batch_quantiles(
    anchors: Tensor, candidates: Tensor, alpha: float | Tensor, batch_size: int, seed: int = 0, draw: int = 0
) -> Tensor:
    """Return the same from one random batch per sample, as FNC does, (n,); NaN for samples without a full batch.

    Every number of a draw divides the samples into other batches.
    """
    order = torch.randperm(len(anchors), generator=generator("batch quantiles", seed, *([draw] if draw else [])))
    found = torch.full((len(anchors),), math.nan)
    for ids in order.split(batch_size):
        if len(ids) == batch_size:
            share = alpha[ids] if isinstance(alpha, Tensor) else alpha
            found[ids] = top_share(anchors[ids], candidates[ids], ids, ids, share).to(found.dtype)
    return found


def errors(thresholds: Tensor, truth: Tensor) -> tuple[float, float]:
    """Return the mean absolute and root mean squared error of thresholds (..., n) that are not NaN."""
    known = ~thresholds.isnan()
    difference = (thresholds - truth)[known].double()
    return difference.abs().mean().item(), difference.pow(2).mean().sqrt().item()
