"""`PolicyMiner`: a policy in the place of a miner of pytorch-metric-learning.

The miner returns that library's four lists of indices: anchors and positives (a1, p), anchors and negatives (a2, n). It
compares all pairs of the batch and lists them one by one, so time and memory grow with the square of the batch, as do
those of that library's losses. The losses of this package need neither.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from antipodes import Pairs, Policy
from antipodes.functional.masks import judge_block
from antipodes.pairs import normalise

Tuple4 = tuple[Tensor, Tensor, Tensor, Tensor]


class PolicyMiner(nn.Module):
    """List the negatives that a policy keeps.

    Pairs of one label are positives and pairs of two labels negatives, as without a miner; then the policy judges the
    negatives by their cosines. Of several rules (granularities of a clustering) all must keep a negative. Where the
    policy compares with the anchor's positive, that is the mean similarity of all positives of the anchor; an anchor
    without a positive is compared with itself, a similarity of 1.

    Args:
        negatives: The policy; one that compares in a guide's space or weighs pairs is refused.
        treatment: `eliminate` leaves false negatives out of both lists, `attract` makes positives of them.

    Attributes:
        rows: (B,) where the samples of the next call stand in the policy's tables, for a policy that has some. Set it
            before every call.
        reference_rows: (R,) those of `ref_emb`, if the call has any.
        progress: Share of training done.

    Example:
        >>> from antipodes import Hardest
        >>> miner = PolicyMiner(Hardest(1))
        >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0]])
        >>> a1, p, a2, n = miner(embeddings, torch.tensor([0, 0, 1, 2]))
        >>> list(zip(a1.tolist(), p.tolist())), list(zip(a2.tolist(), n.tolist()))
        ([(0, 1), (1, 0)], [(0, 2), (1, 2), (2, 1), (3, 2)])
    """

    def __init__(self, negatives: Policy, treatment: str = "eliminate") -> None:
        super().__init__()
        if not isinstance(negatives, Policy):
            raise ValueError(f"negatives must be a policy such as GloFND(num_samples=50_000), got {negatives!r}")
        needs = negatives.needs
        unfit = [name for name in ("guide", "reweighs", "weighs", "identities", "supports") if getattr(needs, name)]
        if unfit:
            raise ValueError(
                f"{type(negatives).__name__} needs more than embeddings and labels ({', '.join(unfit)}): "
                "a miner has nothing else"
            )
        if treatment not in ("eliminate", "attract"):
            raise ValueError(f"treatment must be eliminate or attract, got {treatment!r}: a miner only lists pairs")
        self.negatives, self.treatment = negatives, treatment
        self.rows: Tensor | None = None
        self.reference_rows: Tensor | None = None
        self.progress = 1.0

    @torch.no_grad()
    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tuple4:
        """The indices of positive pairs and of negative pairs that the policy keeps.

        Args:
            embeddings: (B, D) anchors; any length.
            labels: (B,).
            ref_emb: (R, D) what they are compared with; None for the batch itself.
            ref_labels: (R,).

        Returns:
            a1, p, a2, n as pytorch-metric-learning's losses take them.
        """
        if (ref_emb is None) != (ref_labels is None):
            raise ValueError("ref_emb and ref_labels must both be given, or neither")
        if embeddings.dim() != 2 or labels.shape != (len(embeddings),):
            shapes = f"{tuple(embeddings.shape)} and {tuple(labels.shape)}"
            raise ValueError(f"embeddings must be (B, D) and labels (B,), got {shapes}")
        labels = labels.to(embeddings.device)
        own = ref_emb is None or ref_labels is None
        anchors = normalise(embeddings.detach())
        keys = anchors if ref_emb is None else normalise(ref_emb.detach())
        key_labels = labels if ref_labels is None else ref_labels.to(embeddings.device)
        similarities = anchors @ keys.T
        same = labels[:, None] == key_labels
        positive, negative = same.clone(), ~same
        if own:
            positive.fill_diagonal_(False)
        count = positive.sum(1)
        mean = (similarities * positive).sum(1) / count.clamp(min=1)
        rows, key_rows = self._rows(len(embeddings), None if own else len(keys), embeddings.device)
        pairs = Pairs(
            anchors,
            labels,  # a candidate of the anchor's label is never a negative
            torch.where(count > 0, mean, 1.0),
            keys,
            key_labels,
            anchor_rows=rows,
            candidate_rows=rows if own else key_rows,
        )
        for rule in pairs.bounded(self.negatives.rules(pairs, self.progress, self.training)):
            judged = judge_block(rule.attract() if self.treatment == "attract" else rule, similarities)
            positive |= judged.pulled & ~same
            negative &= judged.kept & ~judged.pulled
        a1, p = positive.nonzero(as_tuple=True)
        a2, n = negative.nonzero(as_tuple=True)
        return a1, p, a2, n

    def _rows(self, count: int, references: int | None, device: Any) -> tuple[Tensor | None, Tensor | None]:
        """Rows of the anchors and of the references; refuse what does not fit the batch."""
        if self.rows is None:
            if self.negatives.needs.rows and self.negatives.num_samples is not None:
                raise ValueError("rows are missing: set miner.rows to the dataset indices of the batch (B,)")
            return None, None
        if self.rows.shape != (count,):
            raise ValueError(f"miner.rows must be one per embedding, ({count},), got {tuple(self.rows.shape)}")
        if references is None:
            return self.rows.to(device), None
        if self.reference_rows is None or self.reference_rows.shape != (references,):
            raise ValueError(f"miner.reference_rows must be the dataset indices of ref_emb, ({references},)")
        return self.rows.to(device), self.reference_rows.to(device)
