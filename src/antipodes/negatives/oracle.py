"""`Oracle`: perfect knowledge of the false negatives, from true labels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from antipodes.negatives.policy import Policy
from antipodes.pairs import Group, Pairs, Rule
from antipodes.seeding import generator
from antipodes.state import check_ids


class Oracle(Policy):
    """A candidate with the anchor's own label is a false negative.

    With elimination this is the ceiling that any detector of false negatives can reach, with attraction it is SupCon's
    loss (Khosla et al. 2020, its L_out). It is the only policy that reads labels.

    Args:
        labels: (n,) int64, one per sample of the dataset; a negative label is unknown and matches nothing.
        known: Share of the samples whose label it may look at, drawn by chance: what a detector would be worth that
            finds known² of the false negatives and never errs.
        seed: Of that draw.

    Example:
        >>> Oracle(torch.tensor([0, 1, 0]))
        Oracle()
    """

    labels: Tensor

    def __init__(self, labels: Tensor, known: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        if labels.dim() != 1 or labels.is_floating_point():
            raise ValueError(f"labels must be whole numbers of shape (n,), got {labels.dtype} {tuple(labels.shape)}")
        if not 0 <= known <= 1:
            raise ValueError(f"known must be in [0, 1], got {known}: it is the share of labels that may be looked at")
        self.register_buffer("labels", labels.to(torch.int64, copy=True))
        order = torch.randperm(len(labels), generator=generator("known labels", seed))
        self.labels[order[round(known * len(labels)) :].to(labels.device)] = -1

    def judge(self, pairs: Pairs, progress: float) -> Sequence[Rule]:
        """Drop what shares the anchor's label."""
        ids = pairs.keys()[1]
        check_ids(pairs.anchor_ids, len(self.labels))
        check_ids(ids[ids >= 0], len(self.labels))  # -1 is an empty slot of a queue
        of_candidates = self.labels[ids.clamp(min=0)]
        return [Rule(groups=(Group(self.labels[pairs.anchor_ids], of_candidates, "drop"),))]
