"""`SetOracle`: a detector of false negatives whose precision and recall are set, to ask what one must reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from antipodes.negatives import Policy
from antipodes.negatives.controls import uniform_by_row
from antipodes.pairs import Listed, Pairs, Rule, normalise

Errors = Literal["chance", "similar"]


class SetOracle(Policy):
    """Flags a set share of the pairs of one label, and so many others that a set share of the flags is right.

    A right flag is drawn by chance for every pair of samples, once for all steps. Errors are drawn likewise among pairs
    of different labels, or are the pairs of different labels that a space of features finds most alike in the batch, as
    those of a detector are.

    Args:
        labels: (n,) of the dataset's rows.
        precision: Share of the flags that are right, in (0, 1].
        recall: Share of the pairs of one label that are flagged, in (0, 1].
        errors: How the wrong ones are chosen.
        features: (n, F) the space in which `similar` errors are alike.
        start: Share of training before the first flag.
        seed: Of the draws.

    Example:
        >>> policy = SetOracle(torch.tensor([0, 0, 1]), precision=1.0)
        >>> (rule,) = policy.judge(Pairs(torch.eye(3), torch.arange(3), torch.ones(3)), progress=1.0)
        >>> rule.lists[0].anchors.tolist(), rule.lists[0].candidates.tolist()
        ([0, 1], [1, 0])
    """

    labels: Tensor

    def __init__(
        self,
        labels: Tensor,
        precision: float,
        recall: float = 1.0,
        errors: Errors = "chance",
        features: Tensor | None = None,
        start: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("precision", precision), ("recall", recall)):
            if not 0 < value <= 1:
                raise ValueError(f"{name} must be in (0, 1], got {value}: it is a share of pairs")
        counts = torch.bincount(labels).double()
        true = float((counts * (counts - 1)).sum() / (len(labels) * (len(labels) - 1)))
        self.wrong = recall * true * (1 - precision) / (precision * (1 - true)) if true < 1 else 0.0
        if self.wrong > 1:
            raise ValueError(
                f"a precision of {precision} at a recall of {recall} needs more wrong flags than there are pairs of "
                "different labels: raise the precision or lower the recall"
            )
        self.num_samples = self._count = len(labels)
        self.recall, self.errors, self.start, self.seed = recall, errors, start, seed
        self.register_buffer("labels", labels)
        self._features = None if features is None else normalise(features)

    @property
    def uses_progress(self) -> bool:
        """Whether there is a time before the first flag."""
        return self.start > 0

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """List the flagged pairs."""
        if progress < self.start:
            return [Rule()]
        anchors, candidates = pairs.rows()
        same = self.labels[anchors][:, None] == self.labels[candidates][None]
        other = anchors[:, None] != candidates[None]
        low, high = torch.minimum(anchors[:, None], candidates), torch.maximum(anchors[:, None], candidates)
        draw = uniform_by_row(low * self._count + high, self.seed)
        flagged = same & other & (draw < self.recall)
        if self.wrong > 0:
            flagged |= ~same & (self._alike(anchors, candidates, same) if self._similar else draw < self.wrong)
        found = flagged.nonzero()
        return [Rule(lists=(Listed(found[:, 0], found[:, 1]),))]

    @property
    def _similar(self) -> bool:
        return self.errors == "similar" and self._features is not None

    def _alike(self, anchors: Tensor, candidates: Tensor, same: Tensor) -> Tensor:
        """The pairs (A, C) of different labels that are most alike, as many as there are to be wrong flags."""
        assert self._features is not None
        similarity = (self._features[anchors] @ self._features[candidates].T).masked_fill_(same, -2)
        different = ~same
        count = round(self.wrong * int(different.sum()))
        if count == 0:
            return torch.zeros_like(same)
        bound = similarity.flatten().kthvalue(similarity.numel() - count + 1).values
        return similarity >= bound
