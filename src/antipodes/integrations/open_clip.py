"""`ClipLoss` and `SigLipLoss` of open_clip, with a policy for false negatives and identities.

Each takes the place of open_clip's class of the same name: the same constructor and call, and without a policy the same
value and gradient. A batch x batch matrix is never stored, in forward or in backward.

In open_clip's training the loss receives what the model returns, `loss(**model_out, output_dict=True)`. The ids of the
samples reach the loss in one of two ways:

- `loss.ids = ids` before the call; these ids apply until others are set, so set them for every batch;
- `ids=` in the call. A model that returns them as one more entry `"ids"` of `model_out` needs no change of the training
  loop, and open_clip's gradient accumulation (`--accum-freq`) then joins them as it joins the features.

`loss.progress = step / steps` sets the share of training done in the same way, for policies that change over training.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from antipodes import InfoNCE, OneWay, Policy, Sigmoid, TwoWay
from antipodes.distributed import alone, gather, world_size

Losses = Tensor | dict[str, Tensor]


class _OpenClipLoss(nn.Module):
    """What both losses share: ids and progress from outside, the ranks, the form of the answer."""

    loss_fn: OneWay | TwoWay

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__()
        self.rank, self.world_size = rank, world_size
        self.ids: Any = None
        self.progress: float | None = None

    @property
    def stats(self) -> dict[str, float]:
        """Numbers of the last call by name, as those of the losses of this library."""
        return self.loss_fn.stats

    def policies(self) -> list[Policy]:
        """The policies of all directions, each part of a joined one by itself."""
        return self.loss_fn.policies()

    def _arguments(self, ids: Any, rows: Any, guide: Any, progress: float | None) -> dict[str, Any]:
        return {
            "ids": self.ids if ids is None else ids,
            "rows": rows,
            "guide": guide,
            "progress": self.progress if progress is None else progress,
        }

    def _ranks(self) -> AbstractContextManager[None]:
        """The ranks that the constructor names: this process by itself, or all of torch.distributed."""
        if self.world_size == 1:
            return alone()
        if self.world_size != world_size():
            raise ValueError(
                f"world_size is {self.world_size}, and torch.distributed has {world_size()} processes: "
                "give the number of processes, or 1 to leave the other ranks out"
            )
        return nullcontext()


class ClipLoss(_OpenClipLoss):
    """open_clip's `ClipLoss` with a policy: images find their texts and texts their images.

    Features are compared by their cosine; open_clip's models return features of length 1 already. A `logit_bias`, which
    raises all logits alike, changes nothing and gets a gradient of 0.

    On several ranks candidates come from all of them. With `gather_with_grad=True` the gradients of the features are
    exact: `local_loss=True` returns the mean over this rank's samples, `local_loss=False` the mean over all samples.
    `gather_with_grad=False` gives the features open_clip's gradient, which data-parallel training makes 1 / world_size
    of the exact one.

    Args:
        local_loss: Whether the value is the mean over this rank's samples; needs `gather_with_grad=True`.
        gather_with_grad: Whether features get gradients from the losses of other ranks.
        cache_labels: Accepted for open_clip; there are no labels to cache.
        rank: Of this process.
        world_size: Number of processes; with 1 a process keeps to its own samples.
        use_horovod: Refused if True.
        negatives: The policy; each direction has its own copy of it.
        treatment: What happens to false negatives, as in `InfoNCE`.
        total_steps: How many calls the training has, so that `progress` may be left out.

    Example:
        >>> loss = ClipLoss()
        >>> loss.ids = torch.tensor([7, 3, 7])  # the first and the last caption belong to one image
        >>> model_out = {"image_features": torch.eye(3), "text_features": torch.eye(3)}
        >>> value = loss(**model_out, logit_scale=torch.tensor(10.0), output_dict=True)["contrastive_loss"]
        >>> round(loss.stats["image_to_text/kept_per_anchor"], 2)
        1.33
    """

    def __init__(
        self,
        local_loss: bool = False,
        gather_with_grad: bool = False,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        use_horovod: bool = False,
        *,
        negatives: Policy | None = None,
        treatment: Any = "eliminate",
        total_steps: int | None = None,
    ) -> None:
        super().__init__(rank, world_size)
        if use_horovod:
            raise ValueError("use_horovod=True has no equivalent here: ranks are those of torch.distributed")
        if world_size > 1 and local_loss and not gather_with_grad:
            raise ValueError(
                "local_loss=True with gather_with_grad=False has no equivalent here, because it leaves out "
                "the gradient of all candidates: give gather_with_grad=True"
            )
        self.local_loss, self.gather_with_grad = local_loss, gather_with_grad
        loss_fn = InfoNCE(negatives=negatives, treatment=treatment, total_steps=total_steps)
        self.loss_fn = TwoWay(loss_fn, names=("image_to_text", "text_to_image"))

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor,
        logit_bias: Tensor | None = None,
        output_dict: bool = False,
        *,
        ids: Any = None,
        rows: Any = None,
        guide: Sequence[Tensor] | None = None,
        progress: float | None = None,
    ) -> Losses:
        """The mean of both directions.

        Args:
            image_features: (B, D).
            text_features: (B, D) of the same samples.
            logit_scale: 1 / temperature, with gradient.
            logit_bias: Accepted for open_clip.
            output_dict: Whether to return {"contrastive_loss": loss}.
            ids: (B,) identities of the samples, whole numbers or texts, or (image_ids, text_ids); None takes
                `self.ids`. Samples of one identity are no negatives of each other.
            rows: (B,) where the samples stand in a policy's tables; None takes the ids.
            guide: A guide's vectors (B, G) of images and texts, for policies that compare there.
            progress: Share of training done; None takes `self.progress`.
        """
        several = self.world_size > 1
        if several and not self.gather_with_grad:
            image_features, text_features = (_damped(each, self.world_size) for each in (image_features, text_features))
        with self._ranks():
            arguments = self._arguments(ids, rows, guide, progress)
            loss: Tensor = self.loss_fn(image_features, text_features, temperature=1 / logit_scale, **arguments)
            if several and not self.local_loss:  # the value of all ranks; the mean of the ranks' gradients is its own
                loss = loss + (gather(loss.detach()[None]).mean() - loss.detach())
        if logit_bias is not None:  # data-parallel training waits for a gradient of every parameter
            loss = loss + 0.0 * logit_bias.sum()
        return {"contrastive_loss": loss} if output_dict else loss


class SigLipLoss(_OpenClipLoss):
    """open_clip's `SigLipLoss` with a policy: a yes-or-no question for every image and text.

    Features are compared by their cosine; open_clip's models return features of length 1 already. On several ranks
    every image is compared with the texts of all of them, and the gradients are exact.

    Args:
        cache_labels: Accepted for open_clip; there are no labels to cache.
        rank: Of this process.
        world_size: Number of processes; with 1 a process keeps to its own samples.
        dist_impl: One of open_clip's four ways to exchange texts, which give one result: here each is one gather.
        negatives: The policy.
        treatment: What happens to false negatives, as in `Sigmoid`.
        total_steps: How many calls the training has, so that `progress` may be left out.

    Example:
        >>> loss = SigLipLoss()
        >>> features, ids = torch.eye(3), torch.tensor([7, 3, 7])
        >>> value = loss(features, features, torch.tensor(10.0), torch.tensor(-10.0), ids=ids)
        >>> round(loss.stats["kept_per_anchor"], 2)
        1.33
    """

    loss_fn: OneWay

    def __init__(
        self,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        dist_impl: str | None = None,
        *,
        negatives: Policy | None = None,
        treatment: Any = "eliminate",
        total_steps: int | None = None,
    ) -> None:
        super().__init__(rank, world_size)
        if dist_impl not in (None, "bidir", "shift", "reduce", "gather"):
            raise ValueError(f"dist_impl must be bidir, shift, reduce, gather or None, got {dist_impl!r}")
        sigmoid = Sigmoid(0.1, 0.0, negatives, treatment, total_steps=total_steps, learnable=False)
        self.loss_fn = OneWay(sigmoid)

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor,
        logit_bias: Tensor | None = None,
        output_dict: bool = False,
        *,
        ids: Any = None,
        rows: Any = None,
        guide: Sequence[Tensor] | None = None,
        progress: float | None = None,
    ) -> Losses:
        """The mean over images of the sum over texts.

        Args:
            image_features: (B, D).
            text_features: (B, D) of the same samples.
            logit_scale: 1 / temperature, with gradient.
            logit_bias: Added to every logit, with gradient; None is 0.
            output_dict: Whether to return {"contrastive_loss": loss}.
            ids: As in `ClipLoss`.
            rows: As in `ClipLoss`.
            guide: As in `ClipLoss`.
            progress: As in `ClipLoss`.
        """
        sigmoid = self.loss_fn.loss
        assert isinstance(sigmoid, Sigmoid)
        without = sigmoid.bias
        if logit_bias is not None:
            # the loss reads its bias from a buffer: for this call that of the model, with its gradient
            sigmoid.bias = logit_bias.to(torch.promote_types(logit_bias.dtype, torch.float32)).reshape(()) + 0.0
        try:
            with self._ranks():
                arguments = self._arguments(ids, rows, guide, progress)
                loss: Tensor = self.loss_fn(image_features, text_features, temperature=1 / logit_scale, **arguments)
        finally:
            sigmoid.bias = without
        return {"contrastive_loss": loss} if output_dict else loss


def _damped(features: Tensor, factor: int) -> Tensor:
    """The same numbers with 1 / factor of their gradient."""
    return features.detach() + (features - features.detach()) / factor
