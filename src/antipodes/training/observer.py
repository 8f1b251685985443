"""`LabelObserver`: precision and recall of what policies flag during training, by the true labels."""

from __future__ import annotations

from antipodes.data import Samples
from antipodes.losses import LossModule, Observation
from antipodes.methods import Method
from antipodes.runs.records import RunningMeans


class LabelObserver:
    """Scores the decisions of policies and refined labels by the true labels, on the steps for which it is active."""

    def __init__(self, method: Method, data: Samples) -> None:
        self.active = False
        self._labels = {"": data.labels, "coarse_": data.coarse_labels}
        self._seen = RunningMeans()
        for module in method.modules():
            if isinstance(module, LossModule):
                module.observer = self._score

    def _score(self, observation: Observation) -> None:
        for prefix, labels in self._labels.items():
            if self.active and labels is not None:
                self._seen.add(observation.score(labels, prefix))

    def pop_means(self) -> dict[str, float]:
        """Return the means since the last call, over the directions and parts of one step."""
        seen, self._seen = self._seen, RunningMeans()
        return seen.means()
