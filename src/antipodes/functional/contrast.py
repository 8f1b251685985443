"""Contrast: the sums over pairs that every loss is made of, with gradients, without the A x C matrix of a mask.

For anchor i with temperature tau_i and similarities s_ik to candidates k, each rule gives

    log_sum_i = log sum_k W_ik exp(s_ik / tau_i)        kept_i   = sum_k W_ik
    pulled_sum_i = sum_k Y_ik s_ik                      pulled_i = sum_k Y_ik

with W (the pair counts as a negative) and Y (the pair is pulled) as in `antipodes.functional.rule`. The positive is not
among the pairs; with `pos` its similarity the loss of an anchor is softplus(log_sum - pos / tau), which loses no digits
to cancellation.

How a call runs:

1. `plan`: the arguments are checked, rules become masks, and one of two kernels is chosen.
2. `dense` keeps all pairs as one matrix. It is short, and defines what the sums are.
3. `stream` visits the pairs tile by tile; memory grows with A + C, not with A x C. Each kernel is a function for the
   sums and one for their gradients.
4. `run` makes either of them an operation of autograd.

`sigmoid_sums`, `count_above` and the soft targets of `refine` are the same sums with another function of the pair
(`PairFunction`). `contrast_both` and `sigmoid_both` sum for two directions, of images to texts and of texts to images,
from one product of similarities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from antipodes.functional import dense, stream
from antipodes.functional.checks import Extent, Guide
from antipodes.functional.plan import Inputs, Kernel, PairFunction, Plan, as_dtype, make_plan
from antipodes.functional.rule import EVERY_PAIR, Rule, binding
from antipodes.functional.same_sample import SameSample
from antipodes.functional.tensors import eager_full_precision, first_order, full_precision


class Sums(NamedTuple):
    """The sums over the pairs that each rule keeps or pulls: four (R, A) tensors, one row per rule.

    Attributes:
        log_sum: the log of the sum of exp(s / temperature) over kept pairs; -inf with zero gradient if there are none.
        kept: the number of kept pairs, int64.
        pulled_sum: the sum of the similarities (not divided by the temperature) of pulled pairs.
        pulled: the number of pulled pairs, int64; the sum of their weights where listed pairs have some.
    """

    log_sum: Tensor
    kept: Tensor
    pulled_sum: Tensor
    pulled: Tensor


def run(
    inputs: Inputs,
    function: PairFunction = "softmax",
    kernel: Kernel = "auto",
    block: int | None = None,
    bias: Tensor | None = None,
) -> list[Sums]:
    """Return the sums of each direction.

    Args:
        inputs: what is compared.
        function: what is summed over pairs.
        kernel: the path.
        block: the edge of the streaming kernel's tiles.
        bias: () added to all logits, with gradient.
    """
    anchors, candidates, tau, plan = make_plan(inputs, function, kernel, block)
    added = plan.offsets if bias is None else bias.to(anchors)
    if plan.halved or (plan.dense and plan.shared):  # the kernel adds the candidates' gradient to the anchors'
        candidates = candidates.detach()
    outputs = _Kernel.apply(anchors, candidates, tau, added, plan)  # type: ignore[no-untyped-call]
    every = []
    for place in range(0, len(outputs), 4):
        value, kept, pulled_value, pulled = outputs[place : place + 4]
        pulled = pulled if plan.weighted else as_dtype(pulled, torch.int64)
        every.append(Sums(value, as_dtype(kept, torch.int64), pulled_value, pulled))
    return every


class _Kernel(torch.autograd.Function):
    """The sums of `dense` or `stream`; the second derivative is refused."""

    @staticmethod
    def forward(
        ctx: Any, anchors: Tensor, candidates: Tensor, temperature: Tensor, added: Tensor | None, plan: Plan
    ) -> tuple[Tensor, ...]:
        path = dense if plan.dense else stream
        found, saved = path.forward(plan, anchors, candidates, temperature, added)
        outputs = _complete(plan, found, anchors)
        ctx.plan, ctx.saved = plan, saved._replace(tiles=[])
        ctx.mark_non_differentiable(*outputs[1::4], *outputs[3::4])
        ctx.save_for_backward(anchors, candidates, temperature, added, *saved.tiles)  # freed when backward is done
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    @first_order
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        path = dense if ctx.plan.dense else stream
        anchors, candidates, temperature, added, *tiles = ctx.saved_tensors
        saved = ctx.saved._replace(tiles=tiles)
        found = path.backward(ctx.plan, saved, anchors, candidates, temperature, added, grads, ctx.needs_input_grad)
        return *found, None


def _complete(plan: Plan, outputs: Sequence[Tensor | None], like: Tensor) -> list[Tensor]:
    """Return the sums of a kernel with what it leaves out as None: counts of all other samples, and zeros."""
    complete = []
    for place, each in enumerate(outputs):
        direction = plan.directions[place // 4]
        if each is None:
            every = direction.same_sample.available if place % 4 == 1 else like.new_zeros(direction.anchors)
            each = every.expand(len(direction.masks), -1).clone()
        complete.append(each)
    return complete


@eager_full_precision
def contrast(
    anchors: Tensor,
    candidates: Tensor | None = None,
    *,
    anchor_ids: Tensor,
    candidate_ids: Tensor | None = None,
    temperature: float | Tensor,
    rules: Rule | Sequence[Rule] = EVERY_PAIR,
    offsets: Tensor | None = None,
    guide: Guide | None = None,
    same_sample: SameSample | None = None,
    extent: Extent | None = None,
    product: Tensor | None = None,
    kernel: Kernel = "auto",
    block: int | None = None,
) -> Sums:
    """Sum over the pairs of anchors and candidates that each rule keeps.

    Pairs with the same id never count, nor do candidates with a negative id (empty slots of a queue). First-order
    gradients of `log_sum` and `pulled_sum` reach anchors, candidates and temperature. Half precision is summed in
    float32, at any temperature.

    Args:
        anchors: (A, D), L2-normalised.
        candidates: (C, D), L2-normalised. None: the anchors themselves (the views of a batch), at half the cost.
        anchor_ids: (A,) dataset ids.
        candidate_ids: (C,) dataset ids; only with candidates.
        temperature: a number, a scalar tensor, or one number per anchor (A,).
        rules: one rule or several; several share one product of similarities.
        offsets: (C,) added to the logits s / temperature of every candidate, as constants: the log of a weight, or a
            logQ correction. Bounds, ceilings and ranks still compare the similarity itself.
        guide: vectors (A, G) and (C, G) of the anchors and candidates in a guide's space, L2-normalised, as constants,
            for rules with bounds or ranks in that space. The second is None where the anchors are the candidates.
        same_sample: which candidates are of the anchors' own samples, if the caller knows it already.
        extent: facts about the numbers in embeddings and ids, if the caller knows them already.
        product: (A, C) the similarities, if the caller knows them already; the dense kernel takes them.
        kernel: `dense` keeps all pairs as one matrix, `stream` visits them tile by tile in O(A + C) memory, and `auto`
            takes the dense one up to 2^18 pairs. Both give the same sums and gradients, up to rounding.
        block: the edge of the tiles of the streaming kernel. None: up to 512 on a CPU, where a few tiles then fit into
            a core's cache, and up to 4096 elsewhere.

    Returns:
        The sums, (R, A) each, in the dtype of the anchors or, when that is half precision, in float32.

    Raises:
        ValueError: a shape or dtype does not fit, an embedding is not finite, a bound is NaN, or a temperature is not
            positive or so small that logits are rounding errors.

    Example:
        >>> import torch
        >>> views = torch.nn.functional.normalize(torch.randn(8, 16), dim=1)
        >>> ids = torch.arange(4).repeat(2)
        >>> sums = contrast(views, anchor_ids=ids, temperature=0.1, rules=Rule(ceiling=torch.full((8,), 1.0)))
        >>> sums.kept
        tensor([[6, 6, 6, 6, 6, 6, 6, 6]])
    """
    inputs = Inputs(
        anchors, candidates, anchor_ids, candidate_ids, temperature, rules, offsets=offsets, guide=guide,
        same_sample=same_sample, extent=extent, product=product,
    )  # fmt: skip
    return run(inputs, "softmax", kernel, block)[0]


@eager_full_precision
def contrast_both(
    first: Tensor,
    second: Tensor,
    *,
    first_ids: Tensor,
    second_ids: Tensor,
    temperature: float | Tensor,
    first_rules: Rule | Sequence[Rule] = EVERY_PAIR,
    second_rules: Rule | Sequence[Rule] = EVERY_PAIR,
    guide: tuple[Tensor, Tensor] | None = None,
    extent: Extent | None = None,
    kernel: Kernel = "auto",
    block: int | None = None,
) -> tuple[Sums, Sums]:
    """Sum over pairs of two modalities in both directions, from one product of similarities.

    The first direction has the rows of `first` as anchors and those of `second` as candidates, the second one the other
    way round. Each equals a call of `contrast`, at about half the cost of two. Pairs with the same id never count, in
    either direction, nor do candidates with a negative id.

    Args:
        first: (A, D), L2-normalised.
        second: (C, D), L2-normalised.
        first_ids: (A,) dataset ids.
        second_ids: (C,) dataset ids.
        temperature: a number or a scalar tensor.
        first_rules: one rule or several, with `first` as anchors.
        second_rules: one rule or several, with `second` as anchors.
        guide: vectors (A, G) and (C, G) in a guide's space, as in `contrast`.
        extent: as in `contrast`.
        kernel: as in `contrast`.
        block: as in `contrast`.

    Returns:
        The sums of the first direction, (R, A) each, and those of the second, (S, C).

    Raises:
        ValueError: as `contrast`, or if there is more than one temperature.

    Example:
        >>> import torch
        >>> images, texts = torch.eye(3), torch.eye(3)
        >>> ids = torch.arange(3)
        >>> to_texts, to_images = contrast_both(images, texts, first_ids=ids, second_ids=ids, temperature=1.0)
        >>> to_texts.kept, to_images.kept
        (tensor([[2, 2, 2]]), tensor([[2, 2, 2]]))
    """
    if isinstance(temperature, Tensor) and temperature.ndim:
        raise ValueError(f"both directions share one temperature, got shape {tuple(temperature.shape)}")
    inputs = Inputs(
        first, second, first_ids, second_ids, temperature, first_rules, mirror_rules=second_rules, guide=guide,
        extent=extent,
    )  # fmt: skip
    one, other = run(inputs, "softmax", kernel, block)
    return one, other


def count_above(
    anchors: Tensor,
    candidates: Tensor | None,
    thresholds: Tensor,
    *,
    anchor_ids: Tensor,
    candidate_ids: Tensor | None = None,
    same_sample: SameSample | None = None,
    extent: Extent | None = None,
    product: Tensor | None = None,
    kernel: Kernel = "auto",
    block: int | None = None,
) -> Tensor:
    """Count the candidates of other samples whose similarity to an anchor exceeds its threshold.

    Args:
        anchors: (A, D), L2-normalised.
        candidates: (C, D), L2-normalised. None: the anchors themselves, at half the cost.
        thresholds: (A,) similarities; from 1 on nothing exceeds one, whatever the rounding.
        anchor_ids: (A,) dataset ids; candidates of the anchor's own id do not count, nor do those of a negative one.
        candidate_ids: (C,) dataset ids; only with candidates.
        same_sample: as in `contrast`.
        extent: as in `contrast`.
        product: (A, C) the similarities, if they are known.
        kernel: as in `contrast`.
        block: as in `contrast`.

    Returns:
        (A,) whole numbers.

    Raises:
        ValueError: as `contrast`.

    Example:
        >>> count_above(torch.eye(3), None, torch.tensor([-0.5, 0.0, 0.5]), anchor_ids=torch.arange(3))
        tensor([2., 0., 0.])
    """
    if thresholds.shape != anchors.shape[:1]:
        raise ValueError(f"thresholds must be one per anchor, ({len(anchors)},), got {tuple(thresholds.shape)}")
    bounds = as_dtype(binding(thresholds.detach()), torch.float64 if anchors.dtype is torch.float64 else torch.float32)
    if product is not None:  # of few pairs: a comparison costs less than a plan
        same = same_sample or SameSample(anchor_ids, candidate_ids)
        above = torch.gt(product.detach(), bounds[:, None], out=torch.empty_like(product, requires_grad=False))
        return same.blank(above).sum(1)
    # what is above a threshold is what a band keeps whose lower end is the next number
    rule = Rule(low=bounds.nextafter(torch.full_like(bounds, torch.inf)))
    inputs = Inputs(
        anchors.detach(), None if candidates is None else candidates.detach(), anchor_ids, candidate_ids, 1.0, rule,
        same_sample=same_sample, extent=extent, trusted=True,
    )  # fmt: skip
    with full_precision(), torch.no_grad():
        return run(inputs, "none", kernel, block)[0].kept[0].to(bounds.dtype)


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
    rules: Rule | Sequence[Rule] = EVERY_PAIR,
    guide: Guide | None = None,
    same_sample: SameSample | None = None,
    extent: Extent | None = None,
    soft: bool = False,
    kernel: Kernel = "auto",
    block: int | None = None,
) -> SigmoidSums:
    """Sum SigLIP's loss over the pairs of anchors and candidates that each rule keeps: each is a question of its own.

    With z_ik = s_ik / tau + bias, W the pairs that a rule keeps and Y those that it pulls,

        loss_sum_i = sum_k (W_ik - Y_ik) softplus(z_ik)        pulled_loss_i = sum_k Y_ik softplus(-z_ik)

    With labels q between 0 and 1 a pair has the loss q softplus(-z) + (1 - q) softplus(z) = softplus(z) - q z. For
    those, `soft` leaves the pulled pairs among the negatives; what `refine` sums up, of q and of q s, makes the rest.

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
    first_rules: Rule | Sequence[Rule] = EVERY_PAIR,
    second_rules: Rule | Sequence[Rule] = EVERY_PAIR,
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
