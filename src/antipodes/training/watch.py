"""Keeping an eye on a policy while it trains."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from antipodes.data import ImageDataset
from antipodes.evaluation.detection import count_flags
from antipodes.methods import Method
from antipodes.objectives import HardPairs, Objective
from antipodes.pairs import Pairs, Rule


class FlagWatch:
    """Judges the policy's flags by the labels, where there are both, on the steps for which it is active.

    Of HNSSL, which flags nothing, the share of its hard pairs that have the same label.
    """

    def __init__(self, method: Method, data: ImageDataset) -> None:
        self.active = False
        self._labels = {"": data.labels, "coarse_": data.coarse_labels}
        self._seen: list[dict[str, float]] = []
        for module in method.modules():
            if isinstance(module, Objective) and module.negatives is not None:
                module.observer = self._look
            elif isinstance(module, HardPairs):
                module.observer = self._look_at_hard

    def _look(self, pairs: Pairs, rules: Sequence[Rule]) -> None:
        if self.active:
            numbers: dict[str, float] = {}
            for prefix, labels in self._labels.items():
                if labels is not None:
                    numbers |= count_flags(pairs, rules, labels.to(pairs.anchors.device), prefix)
            self._seen.append(numbers)

    def _look_at_hard(self, ids: Tensor, all_ids: Tensor, hard: Tensor) -> None:
        if self.active and bool(hard.any()):
            numbers: dict[str, float] = {}
            for prefix, labels in self._labels.items():
                if labels is not None:
                    here = labels.to(ids.device)
                    mine = here[ids][:, None]
                    same = (mine == here[all_ids]) & (mine >= 0)
                    numbers[f"{prefix}hard_same_label"] = same[hard].float().mean().item()
            self._seen.append(numbers)

    def take(self) -> dict[str, float]:
        """Means over what was seen since the last call: the directions or parts of one step."""
        seen, self._seen = self._seen, []
        return {name: sum(numbers[name] for numbers in seen) / len(seen) for name in (seen[0] if seen else ())}
