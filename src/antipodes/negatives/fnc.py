"""`FNC`: the most similar candidates of the batch are false negatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from antipodes.functional.select import top_pairs, top_share
from antipodes.negatives.policy import Alpha, Needs, Policy, check_shares
from antipodes.pairs import Listed, Pairs, Rule
from antipodes.state import ByRow, check_span


class FNC(Policy):
    """False negative cancellation (Huynh et al. 2022): per anchor the top max(1, round(alpha N)) of its N candidates.

    The rival of `GloFND` that needs no state: its threshold is the quantile of the batch (or queue) at hand, so it
    flags the same share of every batch, whether or not that batch holds false negatives.

    Args:
        alpha: Share of the candidates treated as false; in Python also (n,), one by row for every sample, such as
            those of `estimate_alpha(..., per_sample=True)`, of which 0 flags nothing.
        start: Share of training before the first flag.
        supports: Further views of every anchor's sample; candidates are then ranked by their mean similarity to these
            instead of by that to the anchor. They are embedded without gradient, at the price of a forward pass each.
            Where pairs come without them, as in an evaluation, the anchor's own view takes their place.

    Example:
        >>> FNC(alpha=0.1)
        FNC()
    """

    needs = Needs(rows=False)
    row_state: ClassVar[Mapping[str, ByRow]] = {"alpha": ByRow(holds="data")}
    alpha: Alpha

    def __init__(self, alpha: Alpha = 0.01, start: float = 0.0, supports: int = 0) -> None:
        super().__init__()
        check_shares(alpha, start)
        if supports < 0:
            raise ValueError(f"supports must be at least 0, got {supports}: it is a number of views")
        self.start = start
        self.needs = replace(self.needs, supports=supports, rows=isinstance(alpha, Tensor))
        if isinstance(alpha, Tensor):
            self.register_buffer("alpha", alpha)
            self.num_samples = len(alpha)
        else:
            self.alpha = alpha

    @property
    def uses_progress(self) -> bool:
        """Whether there is a time before the first flag."""
        return self.start > 0

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Flag the top share of every anchor."""
        if progress < self.start:
            return [Rule()]
        alpha = self._of_anchors(pairs)
        if self.needs.supports and pairs.supports is not None:
            keys, ids = pairs.keys()
            listed = top_pairs(pairs.supports, keys, pairs.anchor_ids, ids, alpha, pairs.same_sample)
            return [Rule(lists=(Listed(*listed),))]
        return [Rule(ceiling=self._ceiling(pairs, alpha))]

    def _ceiling(self, pairs: Pairs, alpha: Alpha) -> Tensor:
        """The similarity above which a candidate is flagged, (A,)."""
        keys, ids = pairs.keys()
        return top_share(pairs.anchors, keys, pairs.anchor_ids, ids, alpha, pairs.same_sample)

    def _of_anchors(self, pairs: Pairs) -> Alpha:
        """The share of all anchors, or (A,) those of their rows."""
        if not isinstance(self.alpha, Tensor):
            return self.alpha
        check_span(*pairs.row_span, len(self.alpha))
        rows = pairs.rows()[0]
        return self.alpha.to(rows.device)[rows]
