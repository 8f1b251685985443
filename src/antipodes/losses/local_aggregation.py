"""`LocalAggregation`: towards the samples of the own cluster, away from the neighbourhood as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from antipodes.functional.contrast import Sums
from antipodes.losses.loss import Loss
from antipodes.losses.step import Step
from antipodes.losses.temperature import Temperature
from antipodes.negatives.clustered import Cave, Clustered
from antipodes.negatives.policy import Policy, Space
from antipodes.negatives.ranked import Hardest, Ring
from antipodes.pairs import Pairs, Rule


class LocalAggregation(Loss):
    """Local aggregation (Zhuang et al. 2019) as Eq. 5 of Ring (Wu et al. 2021) has it, with means over two sets.

        loss_i = - log( mean over C_i of e^{s/tau} ) + log( mean over B_i of e^{s/tau} )

    The close set C_i has the candidates of the anchor's cluster, the background B_i those that the policy keeps:
    `Hardest` is local aggregation, `Ring` the paper's Ring + C_i. The positive (the anchor's own entry of the bank)
    belongs to both, being in its own cluster and its own nearest neighbour. So an anchor that is alone in its cluster,
    or has no cluster yet, is pulled to its positive, and one without a background is pushed by nothing else.
    Several numbers of clusters take the mean of their losses. Before the start, C_i is the positive and B_i every
    candidate, which is instance discrimination.

    Args:
        close: Whose clusters are the close sets.
        temperature: Divides the similarities.
        negatives: The policy of the background; None keeps every candidate.
        start: Share of training before it begins.
    """

    whole = True  # both sets are of all the bank

    def __init__(
        self,
        close: Clustered,
        temperature: float | Temperature = 0.07,
        negatives: Policy | None = None,
        start: float = 0.0,
    ) -> None:
        super().__init__(temperature, negatives)
        if not 0 <= start <= 1:
            raise ValueError(f"start must be in [0, 1], got {start}: it is the share of training without clusters")
        if negatives is not None and negatives.needs.reweighs:
            raise ValueError(
                "local aggregation compares the means over two sets: policies that reweigh a sum do not fit"
            )
        self.close = close
        self.start = start

    def policies(self) -> list[Policy]:
        """The policies of the background, and that of the close sets."""
        return [*super().policies(), self.close]

    @property
    def uses_progress(self) -> bool:
        """Whether there is a time before the start, or a policy that moves with training."""
        return self.start > 0 or super().uses_progress

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """The background."""
        return super().judge(pairs, progress, learn) if progress >= self.start else [Rule()]

    def extra_rules(self, pairs: Pairs, progress: float, learn: bool) -> Sequence[Rule]:
        """The close sets; none before the start."""
        self.close.observe(pairs, learn)
        return self.close.same_cluster(pairs) if progress >= self.start else ()

    def value(self, step: Step, sums: Sums) -> Tensor:
        """The loss per anchor, (1, A)."""
        positive = step.positive_logits[None]
        log_mean = torch.logaddexp(sums.log_sum, positive) - sums.kept.to(positive).log1p()
        sets = len(step.extra_rules)
        background, close = log_mean.tensor_split([len(log_mean) - sets])
        self._record.numbers["close_per_anchor"] = 1 + (sums.kept[-sets:].float().mean() if sets else 0)
        target: Tensor = close.mean(0, keepdim=True) if sets else positive
        return background.mean(0, keepdim=True) - target


def local_aggregation(
    num_samples: int,
    temperature: float = 0.07,
    clusters: Sequence[int] = (100,),
    every: int = 1,
    space: Space = "seen",
    neighbours: float = 4096,
    start: float = 0.0,
    seed: int = 0,
    negatives: Policy | None = None,
) -> LocalAggregation:
    """Local aggregation with its usual sets: k-means clusters, against the nearest neighbours in the bank.

    Until the first clustering, after the first `every` epochs, the close set is the anchor's own entry.

    Args:
        num_samples: Rows of the dataset.
        temperature: Divides the similarities.
        clusters: Numbers of clusters that the close sets come from; several take the mean of their losses. The Ring
            paper gives none; the method's own paper has about 40 samples in a cluster.
        every: Epochs between two clusterings.
        space: What is clustered: `seen`, the embeddings that came by since the last time, which is the bank and costs
            nothing; `features` of the encoder and `embeddings` of its head take a pass over the training images.
        neighbours: The background: how many nearest neighbours in the bank, or below 1 which share of it. The default
            is the number in the method's own paper. A policy in `negatives` replaces it (Ring + C_i).
        start: Share of training with instance discrimination before it begins: the first clusters of an encoder that
            knows nothing mislead it.
        seed: The first clusters follow from it.
        negatives: The policy that decides which entries are the background; None takes the nearest neighbours.
    """
    close = Cave(num_samples, clusters, every, space, seed)
    return LocalAggregation(close, temperature, negatives or _background(neighbours), start)


def _background(neighbours: float) -> Policy:
    """The nearest neighbours as a policy: so many, or below 1 such a share of the candidates."""
    if not (0 < neighbours < 1 or (neighbours >= 1 and float(neighbours).is_integer())):
        raise ValueError(f"neighbours must be a whole number, or a share between 0 and 1, got {neighbours}")
    if neighbours < 1:
        return Ring((neighbours, neighbours), inner=0.0, anneal="none")
    return Hardest(int(neighbours))
