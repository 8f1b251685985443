"""`Oracle`: perfect knowledge of the false negatives, from true labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from antipodes.negatives.policy import Policy
from antipodes.pairs import Group, Pairs, Rule
from antipodes.state import ByRow, check_rows


class Oracle(Policy):
    """A candidate with the anchor's own label is a false negative.

    With elimination this is the ceiling that any detector of false negatives can reach, with attraction it is SupCon's
    loss (Khosla et al. 2020, its L_out). It is the only policy that reads labels.

    Args:
        labels: (n,) whole numbers, one per row of the dataset; a negative label is unknown and matches nothing.

    Example:
        >>> Oracle(torch.tensor([0, 1, 0]))
        Oracle()
    """

    row_state: ClassVar[Mapping[str, ByRow]] = {"labels": ByRow(holds="data")}
    labels: Tensor

    def __init__(self, labels: Tensor | Any) -> None:
        super().__init__()
        try:
            labels = torch.as_tensor(labels)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"labels must be whole numbers, one per row, got a {type(labels).__name__}") from error
        if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex():
            raise ValueError(f"labels must be whole numbers of shape (n,), got {labels.dtype} {tuple(labels.shape)}")
        self.num_samples = len(labels)
        self.register_buffer("labels", labels.to(torch.int64, copy=True))

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Drop what shares the anchor's label."""
        anchor_rows, candidate_rows = pairs.rows()
        check_rows(anchor_rows, candidate_rows, len(self.labels))
        of_anchors = of_candidates = self.labels[anchor_rows]
        if candidate_rows is not anchor_rows:
            of_candidates = self.labels[candidate_rows.clamp(min=0)].masked_fill_(candidate_rows < 0, -1)
        return [Rule(groups=(Group(of_anchors, of_candidates, "drop"),))]
