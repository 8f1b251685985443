"""Keeping an eye on a policy, or on refined labels, while they train."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from antipodes.data import ImageDataset
from antipodes.evaluation.detection import count_flags, same_class_mass
from antipodes.methods import Method
from antipodes.objectives import Objective, SoftLabel
from antipodes.pairs import Pairs, Rule


class Watch:
    """Judges flags and refined labels by the true labels, where there are any, on the steps for which it is active."""

    def __init__(self, method: Method, data: ImageDataset) -> None:
        self.active = False
        true = {"": data.labels, "coarse_": data.coarse_labels}
        self._labels = {prefix: labels for prefix, labels in true.items() if labels is not None}
        self._seen: list[dict[str, float]] = []
        for module in method.modules():
            if isinstance(module, Objective) and module.negatives is not None:
                module.observer = self._look
            elif isinstance(module, SoftLabel):
                module.observer = self._weigh

    def _look(self, pairs: Pairs, rules: Sequence[Rule]) -> None:
        if self.active:
            numbers: dict[str, float] = {}
            for prefix, labels in self._labels.items():
                numbers |= count_flags(pairs, rules, labels.to(pairs.anchors.device), prefix)
            self._seen.append(numbers)

    def _weigh(self, pairs: Pairs, mass: Tensor, temperature: float) -> None:
        if self.active:
            numbers = {
                f"{prefix}refined_mass_same_class": same_class_mass(
                    pairs, mass, temperature, labels.to(pairs.anchors.device)
                )
                for prefix, labels in self._labels.items()
            }
            self._seen.append(numbers)

    def take(self) -> dict[str, float]:
        """Means over what was seen since the last call: the directions or parts of one step."""
        seen, self._seen = self._seen, []
        return {name: sum(numbers[name] for numbers in seen) / len(seen) for name in (seen[0] if seen else ())}
