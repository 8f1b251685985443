"""`Regression`: BYOL's and SimSiam's loss, the distance of predictions from targets on the sphere."""

from __future__ import annotations

from torch import Tensor

from antipodes.arguments import check_vectors
from antipodes.functional.tensors import NotFinite, eager_full_precision
from antipodes.losses.base import LossModule
from antipodes.pairs import normalise


class Regression(LossModule):
    """The squared distance of predictions and targets of length 1 (BYOL, Grill et al. 2020, Eq. 2).

        loss_i = | p_i / |p_i| - t_i / |t_i| |^2 = 2 - 2 cos(p_i, t_i)

    It has no negatives. `stats["target_similarity"]` is the mean cosine of targets of different rows: 1 means that all
    embeddings are the same, the collapse that the predictor and the stopped gradient prevent.

    Example:
        >>> import torch
        >>> loss_fn = Regression()
        >>> float(loss_fn(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])))
        2.0
    """

    @eager_full_precision
    def forward(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over rows of 2 - 2 cos.

        1. Both are divided by their lengths; the targets (b, D) are detached.
        2. The cosine of every row is p_i t_i, (b,).

        Args:
            predictions: (b, D) with gradient, of any length.
            targets: (b, D), of any length; no gradient flows into them.

        Raises:
            NotFinite: if an embedding holds NaN or infinite numbers.
        """
        check_vectors("predictions", predictions)
        check_vectors("targets", targets, predictions.shape[1])
        if len(predictions) != len(targets) or not len(targets):
            raise ValueError(f"targets must be {len(predictions)} rows, one per prediction, got {len(targets)}")
        predictions, targets = normalise(predictions), normalise(targets.detach())
        cosines = (predictions * targets).sum(1)
        if not bool(cosines.detach().isfinite().all()):
            raise NotFinite("predictions or targets hold NaN or infinite numbers: check the encoder's output")
        count = len(targets)
        others = (targets.sum(0).square().sum() - targets.square().sum()) / max(1, count * (count - 1))
        self._report({"positive_similarity": cosines.detach().mean(), "target_similarity": others})
        return (2 - 2 * cosines).mean()
