"""Sigmoid sums: SigLIP's loss of pairs, each a yes-or-no question of its own, by the kernel of `contrast`.

With z_ik = s_ik / tau + bias, W the pairs that a rule keeps and Y those that it pulls,

    loss_sum_i = sum_k (W_ik - Y_ik) softplus(z_ik)        pulled_loss_i = sum_k Y_ik softplus(-z_ik)

A pair is either a negative or a positive here: other than in `contrast`, where pulled pairs stay in the denominator,
a pulled pair counts as a positive alone. The similarities receive (W - Y) sigmoid(z) / tau and -Y sigmoid(-z) / tau.

With labels q between 0 and 1 a pair has the loss q softplus(-z) + (1 - q) softplus(z) = softplus(z) - q z. For those,
`soft` leaves the pulled pairs among the negatives; what `refine` sums up, of q and of q s, makes the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from antipodes.functional._arguments import Extent, Guide
from antipodes.functional._compiling import eager_full_precision
from antipodes.functional._kernel import run
from antipodes.functional._plan import Inputs, Kernel
from antipodes.functional.rule import Rule
from antipodes.functional.same_sample import SameSample

_EVERY_PAIR = (Rule(),)


class SigmoidSums(NamedTuple):
    """The sums over the pairs that each rule keeps or pulls: four (R, A) tensors, one row per rule.

    Attributes:
        loss_sum: the sum of softplus(s / temperature + bias) over negatives: kept pairs that are not pulled, or with
            `soft` all kept ones.
        kept: the number of kept pairs, pulled ones among them, int64.
        pulled_loss: the sum of softplus(-(s / temperature + bias)) over pulled pairs; 0 with `soft`.
        pulled: the number of pulled pairs, int64; the sum of their weights where listed pairs have some.
    """

    loss_sum: Tensor
    kept: Tensor
    pulled_loss: Tensor
    pulled: Tensor


@eager_full_precision
def sigmoid_sums(
    anchors: Tensor,
    candidates: Tensor | None = None,
    *,
    anchor_ids: Tensor,
    candidate_ids: Tensor | None = None,
    temperature: float | Tensor,
    bias: float | Tensor = 0.0,
    rules: Rule | Sequence[Rule] = _EVERY_PAIR,
    guide: Guide | None = None,
    same_sample: SameSample | None = None,
    extent: Extent | None = None,
    soft: bool = False,
    kernel: Kernel = "auto",
    block: int | None = None,
) -> SigmoidSums:
    """Sum SigLIP's loss over the pairs of anchors and candidates that each rule keeps.

    The anchor's own positive is not among the pairs: its loss is softplus(-(s+ / temperature + bias)). A pulled pair
    counts as a positive only, where `contrast` has it in the denominator as well. Gradients of `loss_sum` and
    `pulled_loss` reach anchors, candidates, temperature and bias.

    Args:
        anchors: (A, D), L2-normalised.
        candidates: (C, D), L2-normalised. None: the anchors themselves, at half the cost.
        anchor_ids: (A,) dataset ids; pairs of the same id never count, nor do candidates of a negative id.
        candidate_ids: (C,) dataset ids; only with candidates.
        temperature: a number or a scalar tensor.
        bias: a number or a scalar tensor, added to every logit.
        rules: one rule or several, as in `contrast`; bounds compare the similarity itself.
        guide: vectors in a guide's space, as in `contrast`.
        same_sample: as in `contrast`.
        extent: as in `contrast`.
        soft: count pulled pairs among the negatives, and not as positives: their labels are somewhere between.
        kernel: as in `contrast`.
        block: as in `contrast`.

    Raises:
        ValueError: as `contrast`, or if there is more than one temperature or bias.

    Example:
        >>> sums = sigmoid_sums(torch.eye(3), anchor_ids=torch.arange(3), temperature=1.0, bias=0.0)
        >>> sums.loss_sum  # two negatives of similarity 0: 2 log 2
        tensor([[1.3863, 1.3863, 1.3863]])
    """
    inputs = Inputs(
        anchors, candidates, anchor_ids, candidate_ids, temperature, rules, guide=guide, same_sample=same_sample,
        extent=extent,
    )  # fmt: skip
    return _sums(inputs, bias, soft, kernel, block)[0]


@eager_full_precision
def sigmoid_both(
    first: Tensor,
    second: Tensor,
    *,
    first_ids: Tensor,
    second_ids: Tensor,
    temperature: float | Tensor,
    bias: float | Tensor = 0.0,
    first_rules: Rule | Sequence[Rule] = _EVERY_PAIR,
    second_rules: Rule | Sequence[Rule] = _EVERY_PAIR,
    guide: tuple[Tensor, Tensor] | None = None,
    soft: bool = False,
    kernel: Kernel = "auto",
    block: int | None = None,
) -> tuple[SigmoidSums, SigmoidSums]:
    """Sum SigLIP's loss over pairs of two modalities in both directions, from one product of similarities.

    The arguments are those of `contrast_both` and `sigmoid_sums`. Without rules both directions have the same pairs:
    SigLIP's own loss needs one of them.

    Example:
        >>> ids = torch.arange(3)
        >>> one, other = sigmoid_both(torch.eye(3), torch.eye(3), first_ids=ids, second_ids=ids, temperature=1.0)
        >>> torch.equal(one.loss_sum, other.loss_sum)
        True
    """
    inputs = Inputs(
        first, second, first_ids, second_ids, temperature, first_rules, mirror_rules=second_rules, guide=guide
    )
    one, other = _sums(inputs, bias, soft, kernel, block)
    return one, other


def _sums(inputs: Inputs, bias: float | Tensor, soft: bool, kernel: Kernel, block: int | None) -> list[SigmoidSums]:
    """Return the sums of each direction."""
    for name, number in (("temperature", inputs.temperature), ("bias", bias)):
        if isinstance(number, Tensor) and number.ndim:
            raise ValueError(f"the sigmoid has one {name} for all pairs, got shape {tuple(number.shape)}")
    shift = bias if isinstance(bias, Tensor) else torch.tensor(bias, dtype=torch.float64)
    return [SigmoidSums(*sums) for sums in run(inputs, "soft sigmoid" if soft else "sigmoid", kernel, block, shift)]
