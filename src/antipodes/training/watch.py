"""Keeping an eye on a policy, or on refined labels, while they train."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from antipodes.data import Samples
from antipodes.methods import Method
from antipodes.objectives import HardPairs, Objective, SoftLabel
from antipodes.pairs import Pairs, Rule
from antipodes.runs.judging import count_flags, same_class_mass
from antipodes.runs.records import Totals


class Watch:
    """Judges flags and refined labels by the true labels, where there are any, on the steps for which it is active.

    Of HNSSL, which flags nothing, the share of its hard pairs that have the same label.
    """

    def __init__(self, method: Method, data: Samples) -> None:
        self.active = False
        self._labels = {"": data.labels, "coarse_": data.coarse_labels}
        self._seen = Totals()
        for module in method.modules():
            if isinstance(module, Objective) and module.negatives is not None:
                module.observer = self._look
            elif isinstance(module, HardPairs):
                module.observer = self._look_at_hard
            elif isinstance(module, SoftLabel):
                module.observer = self._weigh

    def _look(self, pairs: Pairs, rules: Sequence[Rule]) -> None:
        for prefix, labels in self._labels.items():
            if self.active and labels is not None:
                self._seen.add(count_flags(pairs, rules, labels.to(pairs.anchors.device), prefix))

    def _weigh(self, pairs: Pairs, mass: Tensor, temperature: float) -> None:
        for prefix, labels in self._labels.items():
            if self.active and labels is not None:
                share = same_class_mass(pairs, mass, temperature, labels.to(pairs.anchors.device))
                self._seen.add({f"{prefix}refined_mass_same_class": share})

    def _look_at_hard(self, ids: Tensor, all_ids: Tensor, hard: Tensor) -> None:
        for prefix, labels in self._labels.items():
            if self.active and labels is not None and bool(hard.any()):
                here = labels.to(ids.device)
                mine = here[ids][:, None]
                same = (mine == here[all_ids]) & (mine >= 0)
                self._seen.add({f"{prefix}hard_same_label": same[hard].float().mean().item()})

    def take(self) -> dict[str, float]:
        """Means over what was seen since the last call: the directions or parts of one step."""
        seen, self._seen = self._seen, Totals()
        return seen.means()
