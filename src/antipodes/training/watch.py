"""Keeping an eye on a policy, or on refined labels, while they train."""

from __future__ import annotations

from antipodes.data import Samples
from antipodes.losses import LossModule, Observation
from antipodes.methods import Method
from antipodes.runs.records import Totals


class Watch:
    """Judges what losses decide by the true labels, where there are any, on the steps for which it is active."""

    def __init__(self, method: Method, data: Samples) -> None:
        self.active = False
        self._labels = {"": data.labels, "coarse_": data.coarse_labels}
        self._seen = Totals()
        for module in method.modules():
            if isinstance(module, LossModule):
                module.observer = self._score

    def _score(self, observation: Observation) -> None:
        for prefix, labels in self._labels.items():
            if self.active and labels is not None:
                self._seen.add(observation.score(labels, prefix))

    def pop_means(self) -> dict[str, float]:
        """Means over what was seen since the last call: the directions or parts of one step."""
        seen, self._seen = self._seen, Totals()
        return seen.means()
