"""What a policy sees of a dataset with the networks frozen, and its decisions, without learning from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from antipodes.data import Raw, Samples
from antipodes.data.augment import Augmentation, Plain
from antipodes.methods import Method
from antipodes.negatives import Policy
from antipodes.pairs import Group, Guide, Pairs, Rule, normalise
from antipodes.runs.embedding import embed_dataset
from antipodes.runs.towers import tower_features
from antipodes.runs.views import plain_view
from antipodes.seeding import generator


@dataclass(frozen=True)
class Judged:
    """The embeddings of a whole dataset as a step of training would compare them.

    Args:
        anchors: (n, D) of length 1.
        candidates: (n, D) of length 1: of the key network, of the bank, or the anchors themselves.
        supports: (n, D) mean of further views, where the policy asks for some.
        ask_guide: Pairs to the same in the space of the run's guide, where it has one.
    """

    anchors: Tensor
    candidates: Tensor
    supports: Tensor | None = None
    ask_guide: Callable[..., Guide] | None = None

    def pairs(self, ids: Tensor) -> Pairs:
        """The samples ids (b,) as one batch: each is an anchor among all of them."""
        positives = (self.anchors[ids] * self.candidates[ids]).sum(1)
        supports = None if self.supports is None else self.supports[ids]
        keys = self.candidates[ids]
        if self.candidates is self.anchors:
            pairs = Pairs(self.anchors[ids], ids, positives, teachers=keys, supports=supports)
        else:
            pairs = Pairs(self.anchors[ids], ids, positives, keys, ids, teachers=keys, supports=supports)
        return pairs if self.ask_guide is None else pairs.with_guide(self.ask_guide(pairs))


class AnchorCounts(NamedTuple):
    """Pair decisions by rule and anchor: candidates there are (A,), of the anchor's label (A,), flagged (R, A), and
    flagged of the anchor's label (R, A)."""

    available: Tensor
    true: Tensor
    flagged: Tensor
    found: Tensor


def judged_embeddings(
    method: Method, data: Samples, recipe: Augmentation | None, seed: int, direction: str | None = None
) -> Judged:
    """What the policy of a direction would judge: a view of every sample through the network that makes anchors, and
    what these are compared with: keys of a momentum network, entries of a bank, the other tower's embeddings.

    Args:
        method: The method.
        data: Its training data.
        recipe: The augmentation of training, on whose views thresholds were learned; None takes plain images.
        seed: Of the views.
        direction: Of the method; the first by default.
    """
    name = direction or next(iter(method.directions))
    query, other = method.compared(name)
    towers = method.anchor_tower(name), method.candidate_tower(name)

    def embedded(network: nn.Module, tower: str, purpose: int) -> Tensor:
        plan = method.network.plans[tower]
        random = plan.modality == "image" and not isinstance(recipe, Plain | None)
        if not random and _same(network, method.evaluated(tower, head=True)):
            return normalise(tower_features(method, data, tower, space="embeddings"))  # a locked one's are kept
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
    return Judged(anchors, candidates, supports, method.pair_losses()[name].ask_guide)


def _same(one: nn.Module, other: nn.Module) -> bool:
    """Whether two modules are made of the same parameters."""
    return {id(each) for each in one.parameters()} == {id(each) for each in other.parameters()}


@torch.no_grad()
def judge(policy: Policy, pairs: Pairs, progress: float = 1.0) -> Sequence[Rule]:
    """What a policy says about pairs as it stands: nothing in it moves."""
    return policy.judge(pairs, progress, learn=False)


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


def _random_view(recipe: Augmentation, seed: int, purpose: int) -> Callable[[Raw], Tensor]:
    """A view of each image as in training; what is random follows from the seed and the number of the batch."""
    numbers = count()
    return lambda images: recipe(cast(Tensor, images), generator("evaluated views", seed, purpose, next(numbers)))
