"""Local aggregation: instance discrimination or CMC that pulls anchors to their cluster."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import nn

from antipodes.encoders.heads import HeadKind
from antipodes.methods.cmc import CMC
from antipodes.methods.instance import InstanceDiscrimination
from antipodes.methods.method import opens_cone
from antipodes.negatives.cave import Cave
from antipodes.negatives.hardest import Hardest
from antipodes.negatives.policy import Policy, Space
from antipodes.negatives.ring import Ring
from antipodes.objectives import LocalAggregation


class InstanceAggregation(InstanceDiscrimination):
    """Local aggregation (Zhuang et al. 2019) on a memory bank; with `negatives` Ring, the paper's IRing + C_i.

    An anchor is pulled to the bank's entries of its k-means cluster, the close set, against the background of its
    nearest neighbours in the bank. Both sets count whole, as means. Until the first clustering, after the first `every`
    epochs, the close set is the anchor's own entry.

    Args:
        encoder: Images (B, 3, H, W) to features (B, num_features).
        num_samples: Size of the dataset.
        temperature: Divides the similarities.
        clusters: Numbers of clusters that the close sets come from; several take the mean of their losses. The Ring
            paper gives none; the method's own paper has about 40 samples in a cluster.
        every: Epochs between two clusterings.
        space: What is clustered: `seen`, the embeddings that came by since the last time, which is the bank and costs
            nothing; `features` of the encoder and `embeddings` of its head take a pass over the training images.
        neighbours: The background: how many nearest neighbours in the bank, or below 1 which share of it. The default
            is the number in the method's own paper. A policy in `negatives` replaces it.
        start: Share of training with instance discrimination before it begins: the first clusters of an encoder that
            knows nothing mislead it.
        bank_momentum: Share of a bank entry that stays when it is written.
        seed: The bank's first entries and the first clusters follow from it.
        head: Projection head between features and loss.
        hidden: Width of the head's hidden layers.
        dim: Dimension of the embeddings that the loss compares.
        centred: End the head in a batch normalisation without scale and shift; by default where the policy ranks.
        negatives: The policy that decides which entries are the background; None takes the nearest neighbours.
    """

    def __init__(
        self,
        encoder: nn.Module,
        num_samples: int,
        temperature: float = 0.07,
        clusters: Sequence[int] = (100,),
        every: int = 1,
        space: Space = "seen",
        neighbours: float = 4096,
        start: float = 0.0,
        bank_momentum: float = 0.5,
        seed: int = 0,
        head: HeadKind = "linear",
        hidden: int = 512,
        dim: int = 128,
        centred: bool | None = None,
        negatives: Policy | None = None,
    ) -> None:
        negatives = negatives or background(neighbours)
        super().__init__(
            encoder,
            num_samples,
            temperature,
            bank_momentum=bank_momentum,
            seed=seed,
            head=head,
            hidden=hidden,
            dim=dim,
            centred=opens_cone(centred, negatives),
        )
        close = Cave(num_samples, clusters, every, space, seed)
        self.objective = LocalAggregation(close, temperature, negatives, start)
        self.draw = "whole"  # both sets are of all the bank


class CMCAggregation(CMC):
    """Local aggregation with CMC's two encoders and banks; with `negatives` Ring, the paper's CMCRing + C_i.

    Each direction clusters the embeddings of its own anchors.

    Args:
        encoder_l: Encoder of the luminance, (B, 1, H, W) to features.
        encoder_ab: Encoder of the colours, (B, 2, H, W) to features.
        num_samples: Size of the dataset.
        temperature: Divides the similarities.
        clusters: Numbers of clusters that the close sets come from; several take the mean of their losses.
        every: Epochs between two clusterings.
        space: What is clustered: `seen`, the embeddings that came by since the last time, which costs nothing;
            `features` of the encoders and `embeddings` of their heads take a pass over the training images.
        neighbours: The background: how many nearest neighbours in the bank, or below 1 which share of it. A policy in
            `negatives` replaces it.
        start: Share of training with CMC before it begins: the first clusters of encoders that know nothing mislead
            them.
        bank_momentum: Share of a bank entry that stays when it is written.
        seed: The banks' first entries and the first clusters follow from it.
        head: Projection head between features and loss.
        hidden: Width of the heads' hidden layers.
        dim: Dimension of the embeddings that the loss compares.
        centred: End the head in a batch normalisation without scale and shift; by default where the policy ranks.
        negatives: The policy that decides which entries are the background; None takes the nearest neighbours.
    """

    def __init__(
        self,
        encoder_l: nn.Module,
        encoder_ab: nn.Module,
        num_samples: int,
        temperature: float = 0.07,
        clusters: Sequence[int] = (100,),
        every: int = 1,
        space: Space = "seen",
        neighbours: float = 4096,
        start: float = 0.0,
        bank_momentum: float = 0.5,
        seed: int = 0,
        head: HeadKind = "linear",
        hidden: int = 512,
        dim: int = 128,
        centred: bool | None = None,
        negatives: Policy | None = None,
    ) -> None:
        negatives = negatives or background(neighbours)
        super().__init__(
            encoder_l,
            encoder_ab,
            num_samples,
            temperature,
            bank_momentum=bank_momentum,
            seed=seed,
            head=head,
            hidden=hidden,
            dim=dim,
            centred=opens_cone(centred, negatives),
        )
        close = Cave(num_samples, clusters, every, space, seed)
        self.objective = LocalAggregation(close, temperature, negatives, start)
        self.draw = "whole"  # both sets are of all the bank
        self.objective_ab = copy.deepcopy(self.objective)


def background(neighbours: float) -> Policy:
    """The nearest neighbours as a policy: so many, or below 1 such a share of the candidates."""
    if not (0 < neighbours < 1 or (neighbours >= 1 and float(neighbours).is_integer())):
        raise ValueError(f"neighbours must be a whole number, or a share between 0 and 1, got {neighbours}")
    if neighbours < 1:
        return Ring((neighbours, neighbours), inner=0.0, anneal="none")
    return Hardest(int(neighbours))
