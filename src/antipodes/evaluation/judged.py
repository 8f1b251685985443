"""What a policy sees of a dataset with the networks frozen, and its decisions, without learning from them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from antipodes.data import ImageDataset
from antipodes.data.augment import Augmentation
from antipodes.evaluation.towers import tower_network
from antipodes.methods import Method
from antipodes.negatives import GloFND, Policy
from antipodes.pairs import Group, Pairs, Rule, normalise
from antipodes.runs.build import plain_view
from antipodes.runs.embedding import embed
from antipodes.seeding import generator


@dataclass(frozen=True)
class Judged:
    """The embeddings of a whole dataset as a step of training would compare them.

    Args:
        anchors: (n, D) of length 1.
        candidates: (n, D) of length 1: of the key network, of the bank, or the anchors themselves.
        supports: (n, D) mean of further views, where the policy asks for some.
    """

    anchors: Tensor
    candidates: Tensor
    supports: Tensor | None = None

    def pairs(self, ids: Tensor) -> Pairs:
        """The samples ids (b,) as one batch: each is an anchor among all of them."""
        positives = (self.anchors[ids] * self.candidates[ids]).sum(1)
        supports = None if self.supports is None else self.supports[ids]
        if self.candidates is self.anchors:
            return Pairs(self.anchors[ids], ids, positives, supports=supports)
        return Pairs(self.anchors[ids], ids, positives, self.candidates[ids], ids, supports=supports)


class AnchorCounts(NamedTuple):
    """Pair decisions by rule and anchor: candidates there are (A,), of the anchor's label (A,), flagged (R, A), and
    flagged of the anchor's label (R, A)."""

    available: Tensor
    true: Tensor
    flagged: Tensor
    found: Tensor


def judged_embeddings(method: Method, data: ImageDataset, recipe: Augmentation | None, seed: int) -> Judged:
    """What the policy of a method would judge: a view of every image through the network that makes anchors, and what
    these are compared with.

    A method with a key network compares queries with its keys, one with a memory bank with the bank's entries.

    Args:
        method: A method with one encoder.
        data: Its training data.
        recipe: The augmentation of training, on whose views thresholds were learned; None takes plain images.
        seed: Of the views.
    """

    def embedded(network: torch.nn.Module, purpose: int) -> Tensor:
        view = plain_view(method, data.image_size) if recipe is None else _random_view(recipe, seed, purpose)
        return normalise(embed(network, data, preprocess=view))

    query = tower_network(method, "image", "embeddings")
    key = getattr(method, "key_network", None)
    bank = getattr(method, "bank", None)
    anchors = embedded(query, 0)
    candidates = anchors
    if key is not None:
        candidates = embedded(key, 1)
    elif bank is not None:
        candidates = bank.entries()[0].detach().cpu().float()
    supports = None
    if method.supports:
        views = [embedded(query if key is None else key, 2 + number) for number in range(method.supports)]
        supports = torch.stack(views).mean(0)
    return Judged(anchors, candidates, supports)


@torch.no_grad()
def judge(policy: Policy, pairs: Pairs, progress: float = 1.0) -> Sequence[Rule]:
    """What a policy says about pairs as it stands: nothing in it moves."""
    if "learn" in inspect.signature(policy.judge).parameters:
        return policy.judge(pairs, progress, learn=False)  # type: ignore[call-arg]
    still = copy.deepcopy(policy)
    for part in still.modules():
        if isinstance(part, GloFND):
            part._move = _stay  # type: ignore[method-assign]
    return still.judge(pairs, progress)


@torch.no_grad()
def count_by_anchor(pairs: Pairs, rules: Sequence[Rule], labels: Tensor) -> AnchorCounts:
    """Count the flags of every anchor, and the right ones by labels (n,); a negative label matches nothing."""
    ids = pairs.keys()[1]
    same = Rule(groups=(Group(labels[pairs.anchor_ids], labels[ids.clamp(min=0)], "only"),))
    flags = [rule.flags() for rule in rules]
    sums = pairs.detached().contrast(1.0, (Rule(), same, *flags, *(rule & same for rule in flags)))
    unflagged = (sums.kept - sums.pulled).double()
    available, true = unflagged[0], unflagged[1]
    flagged, found = available - unflagged[2 : 2 + len(flags)], true - unflagged[2 + len(flags) :]
    return AnchorCounts(available, true, flagged, found)


def _stay(pairs: Pairs, rows: Tensor, progress: float) -> None:
    """Instead of GloFND's step."""


def _random_view(recipe: Augmentation, seed: int, purpose: int) -> Callable[[Tensor], Tensor]:
    """A view of each image as in training; what is random follows from the seed and the number of the batch."""
    numbers = count()
    return lambda images: recipe(images, generator("evaluated views", seed, purpose, next(numbers)))
