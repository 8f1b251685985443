"""`FNC`: the most similar candidates of the batch are false negatives."""

from __future__ import annotations

from collections.abc import Sequence

from antipodes.functional.select import top_pairs, top_share
from antipodes.negatives.policy import Policy, check_shares
from antipodes.pairs import Listed, Pairs, Rule


class FNC(Policy):
    """False negative cancellation (Huynh et al. 2022): per anchor the top max(1, round(alpha N)) of its N candidates.

    The rival of `GloFND` that needs no state: its threshold is the quantile of the batch (or queue) at hand, so it
    flags the same share of every batch, whether or not that batch holds false negatives.

    Args:
        alpha: Share of the candidates treated as false.
        start: Share of training before the first flag.
        supports: Further views of every anchor's sample; candidates are then ranked by their mean similarity to these
            instead of by that to the anchor. They are embedded without gradient, at the price of a forward pass each.

    Example:
        >>> FNC(alpha=0.1)
        FNC()
    """

    def __init__(self, alpha: float = 0.01, start: float = 0.0, supports: int = 0) -> None:
        super().__init__()
        check_shares(alpha, start)
        if supports < 0:
            raise ValueError(f"supports must be at least 0, got {supports}: it is a number of views")
        self.alpha, self.start, self.supports = alpha, start, supports

    def judge(self, pairs: Pairs, progress: float) -> Sequence[Rule]:
        """Flag the top share of every anchor."""
        if progress < self.start:
            return [Rule()]
        keys, ids = pairs.keys()
        if self.supports:
            if pairs.supports is None:
                raise ValueError("FNC with supports needs the embeddings of support views: give supports to the loss")
            listed = top_pairs(pairs.supports, keys, pairs.anchor_ids, ids, self.alpha)
            return [Rule(lists=(Listed(*listed),))]
        return [Rule(ceiling=top_share(pairs.anchors, keys, pairs.anchor_ids, ids, self.alpha))]
