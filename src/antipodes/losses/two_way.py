"""`TwoWay`: both directions of a loss between two modalities, as CLIP has it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from antipodes.arguments import describe
from antipodes.candidates.cross import make_block
from antipodes.distributed import world_size
from antipodes.functional.same_sample import SameSample
from antipodes.functional.tensors import eager_full_precision
from antipodes.losses.base import LossModule
from antipodes.losses.inputs import Ids, call_temperature, check_embeddings, check_weights
from antipodes.losses.loss import Loss
from antipodes.losses.paired import PairIds, check_pairs
from antipodes.losses.step import Step
from antipodes.negatives.policy import Policy


class TwoWay(LossModule):
    """Images find their texts and texts find their images: the mean of a loss in both directions.

    In plain terms:

    1. The first direction has the first modality as anchors and the second one, of all ranks, as candidates; the other
       direction the other way round. Candidates of the anchor's identity never count.
    2. Each direction has a loss and a policy of its own, with its own tables: the second is a copy of the first.
       A learned temperature is one for both, unless every sample has its own.
    3. On one rank both come from one product of similarities.

    `TwoWay(InfoNCE(...))` is CLIP's loss, `TwoWay(GlobalContrastive(...))` SogCLR's, and with a `Temperature` that
    learns FastCLIP's.

    Args:
        loss_fn: The loss of the first direction.
        names: Of the two directions, for statistics and the checkpoint.

    Example:
        >>> import torch
        >>> from antipodes import InfoNCE, Temperature
        >>> temperature = Temperature(0.07, learnable=True, floor=0.01)
        >>> clip = TwoWay(InfoNCE(temperature), names=("image_to_text", "text_to_image"))
        >>> loss = clip(torch.eye(4), torch.eye(4), torch.arange(4))
        >>> clip.stats["image_to_text/kept_per_anchor"]
        3.0
    """

    def __init__(self, loss_fn: Loss, names: tuple[str, str] = ("first_to_second", "second_to_first")) -> None:
        super().__init__()
        if not isinstance(loss_fn, Loss):
            raise ValueError(f"TwoWay needs a loss on pairs such as InfoNCE(), got {type(loss_fn).__name__}")
        if len(names) != 2 or names[0] == names[1] or not all(name and "." not in name for name in names):
            raise ValueError(f"names must be two different ones, got {tuple(names)}")
        self.directions = nn.ModuleDict({names[0]: loss_fn, names[1]: other_direction(loss_fn)})

    @eager_full_precision
    def forward(
        self,
        first: Tensor,
        second: Tensor,
        ids: PairIds | None = None,
        *,
        rows: Ids | None = None,
        guide: Sequence[Tensor] | None = None,
        weights: Tensor | None = None,
        log_weights: tuple[Tensor, Tensor] | None = None,
        hard_negatives: Tensor | None = None,
        hard_negative_ids: Ids | None = None,
        temperature: float | Tensor | None = None,
        log_q: Tensor | None = None,
        hard_negative_log_q: Tensor | None = None,
        gather: bool = True,
        progress: float | None = None,
    ) -> Tensor:
        """The mean of both directions over this rank's samples.

        Args:
            first: (B, D) embeddings in the first modality (the queries); any length.
            second: (B, D) embeddings of the same samples in the second (the documents).
            ids: (B,) identities of the samples: captions of one image share one. Or (query_ids, document_ids), as in
                `OneWay`; whole numbers or texts.
            rows: (B,) where the samples stand in tables and labels; None takes the ids.
            guide: A guide's vectors (B, G) of both modalities in one space, for policies that compare there; with
                hard_negatives a third, (B, K, G).
            weights: (B,) at least 0: the loss is then a weighted mean.
            log_weights: (B,) of the first and of the second modality, which raise their logits, as candidates and as
                positives: -log of the sampling probability is the logQ correction.
            hard_negatives: (B, K, D) given negatives of the first direction, in the second modality.
            hard_negative_ids: (B, K) their ids, -1 for padding, as in `OneWay`.
            temperature: In the place of the loss's own, for this call: a number, or a tensor of one with gradient.
            log_q: (B,) log sampling probability of the second modality, as in `OneWay`; not with log_weights.
            hard_negative_log_q: (B, K) that of the given negatives.
            gather: Whether candidates come from all ranks; False keeps to this rank.
            progress: Share of training done; see `Loss.forward`.

        Returns:
            The mean, or with `reduction="none"` the loss of every sample, (B,).
        """
        one, other = self._losses()
        tau = call_temperature(temperature)
        if log_weights is not None and log_q is not None:
            raise ValueError("log_q is the second of log_weights with the other sign: give one of them")
        if log_weights is not None and (not isinstance(log_weights, (tuple, list)) or len(log_weights) != 2):
            raise ValueError(f"log_weights must be two tensors, of both modalities, got {describe(log_weights)}")
        of_first, of_second = (None, None) if log_weights is None else log_weights
        check_embeddings(first=first)
        for each in (of_first, of_second):
            check_weights("log_weights", each, len(first))
        batch = check_pairs(
            one, first, second, ids, rows, hard_negatives, hard_negative_ids,
            log_q if of_second is None else -of_second, hard_negative_log_q, gather, guide, weights,
            names=("first", "second"),
            direct=of_first is None and one.goes_direct(tau) and other.goes_direct(tau),
        )  # fmt: skip
        back = batch.turned()
        back = back if of_first is None else replace(back, log_weights=of_first.detach())
        there_pairs, back_pairs = make_block(batch), replace(make_block(back), block="document_to_query")
        if self.observer is not None:
            one.observer = other.observer = self.observer
        step, step_back = one.begin(there_pairs, progress, tau), other.begin(back_pairs, progress, tau)
        shared = one.shares_product and self._one_product(step) and self._one_product(step_back)
        if batch.views is not None:
            found = one.direct([step, step_back], batch.views) if shared else None
            if found is not None:
                there, there_back = found
                first_loss = one.finish_direct(step, there, weights)
                return (first_loss + other.finish_direct(step_back, there_back, weights)) / 2
            linked = batch.views.linked()
            step, step_back = step.linked(*linked), step_back.linked(*linked[::-1])
        if shared:
            sums, sums_back = one.sums_both(step, step_back)
        else:
            sums, sums_back = one.sums(step), other.sums(step_back)
        return (one.finish(step, sums, weights) + other.finish(step_back, sums_back, weights)) / 2

    @property
    def stats(self) -> dict[str, float]:
        """The numbers of both directions, each with its name in front: `image_to_text/kept_per_anchor`."""
        named = zip(self.directions, self._losses(), strict=True)
        return {f"{name}/{key}": value for name, part in named for key, value in part.stats.items()}

    def policies(self) -> list[Policy]:
        """The policies of both directions, each part of a joined one by itself."""
        return [policy for loss_fn in self._losses() for policy in loss_fn.policies()]

    @property
    def temperature(self) -> object:
        """The temperature of the first direction, which is that of both unless every sample has its own."""
        return self._losses()[0].temperature

    def _losses(self) -> tuple[Loss, Loss]:
        one, other = self.directions.values()
        assert isinstance(one, Loss)
        assert isinstance(other, Loss)
        return one, other

    @staticmethod
    def _one_product(step: Step) -> bool:
        """Whether both directions can share their similarities: all are here, weigh 1 and have one temperature."""
        pairs, tau = step.pairs, step.temperature
        plain = pairs.owners is None and type(pairs.same_sample) is SameSample and pairs.log_weights is None
        return plain and world_size() == 1 and not (isinstance(tau, Tensor) and tau.dim())


def other_direction(loss_fn: Loss) -> Loss:
    """A copy of a loss for the other direction of two modalities.

    Its policy and tables are its own; what `Loss.shared_parts` names, such as a learned temperature, is the same.
    """
    return copy.deepcopy(loss_fn, {id(part): part for part in loss_fn.shared_parts()})
