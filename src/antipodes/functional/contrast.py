"""Contrast: the sums over pairs that every loss is made of, streamed block by block.

For anchor i with temperature tau_i and similarities s_ik to candidates k, each rule gives

    log_sum_i = log sum_k W_ik exp(s_ik / tau_i)        kept_i   = sum_k W_ik
    pulled_sum_i = sum_k Y_ik s_ik                      pulled_i = sum_k Y_ik

with W (the pair counts as a negative) and Y (the pair is pulled) as in `antipodes.functional.rule`. Neither W, Y nor
the similarities ever exist as a whole: memory grows with A + C, not with A * C. The positive is not among the pairs;
with `pos` its similarity the loss of an anchor is softplus(log_sum - pos / tau), which loses no digits to cancellation.

`contrast_both` does this for two directions, of images to texts and of texts to images, from one product.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from antipodes.functional._arguments import Extent, Guide, Questions, check_pairs, check_rules
from antipodes.functional._compiling import eager_full_precision
from antipodes.functional._direct import OneTile
from antipodes.functional._stream import Stream
from antipodes.functional._task import Task, as_dtype, prepare
from antipodes.functional.ranks import ranked_sums
from antipodes.functional.rule import Rule
from antipodes.functional.same_sample import SameSample
from antipodes.functional.sums import Sums

_EVERY_PAIR = (Rule(),)


@eager_full_precision
def contrast(
    anchors: Tensor,
    candidates: Tensor | None = None,
    *,
    anchor_ids: Tensor,
    candidate_ids: Tensor | None = None,
    temperature: float | Tensor,
    rules: Rule | Sequence[Rule] = _EVERY_PAIR,
    offsets: Tensor | None = None,
    guide: Guide | None = None,
    same_sample: SameSample | None = None,
    extent: Extent | None = None,
    product: Tensor | None = None,
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
        guide: vectors (A, G) and (C, G) of the anchors and candidates in a guide's space, L2-normalised, as constants;
            for rules that look at it. The second may be None where the anchors are the candidates.
        same_sample: which candidates are of the anchors' own samples, for callers who ask more than once a step.
        extent: what there is to know about the numbers, likewise.
        product: (A, C) the similarities, likewise; they are made use of where there are few pairs.
        block: the edge of the square blocks in which pairs are visited. None: one block for few pairs, otherwise up to
            448 on a CPU, where a few blocks then fit into a core's cache, and 4096 elsewhere.

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
    rules = (rules,) if isinstance(rules, Rule) else tuple(rules)
    ranks_alone = len(rules) == 1 and rules[0].ranks_alone and not isinstance(temperature, Tensor) and offsets is None
    if ranks_alone and candidates is not None and candidate_ids is not None and not candidates.requires_grad:
        check_pairs(anchors, candidates, anchor_ids, candidate_ids)
        check_rules(rules, len(anchors), len(candidates), Questions())
        ranks = rules[0].ranks[0]
        ids = (anchor_ids, candidate_ids)
        return ranked_sums(anchors, candidates, *ids, float(temperature), ranks, same_sample)
    arguments = prepare(
        anchors,
        candidates,
        anchor_ids,
        candidate_ids,
        temperature,
        rules,
        block,
        offsets=offsets,
        guide=guide,
        same_sample=same_sample,
        extent=extent,
        product=product,
    )
    return _run(*arguments)[0]


@eager_full_precision
def contrast_both(
    first: Tensor,
    second: Tensor,
    *,
    first_ids: Tensor,
    second_ids: Tensor,
    temperature: float | Tensor,
    first_rules: Rule | Sequence[Rule] = _EVERY_PAIR,
    second_rules: Rule | Sequence[Rule] = _EVERY_PAIR,
    guide: tuple[Tensor, Tensor] | None = None,
    extent: Extent | None = None,
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
        block: as in `contrast`.

    Returns:
        The sums of the first direction, (R, A) each, and those of the second, (S, C).

    Raises:
        ValueError: as `contrast`, or if there is more than one temperature.

    Example:
        >>> images, texts = torch.eye(3), torch.eye(3)
        >>> ids = torch.arange(3)
        >>> to_texts, to_images = contrast_both(images, texts, first_ids=ids, second_ids=ids, temperature=1.0)
        >>> to_texts.kept, to_images.kept
        (tensor([[2, 2, 2]]), tensor([[2, 2, 2]]))
    """
    if isinstance(temperature, Tensor) and temperature.ndim:
        raise ValueError(f"both directions share one temperature, got shape {tuple(temperature.shape)}")
    arguments = prepare(
        first,
        second,
        first_ids,
        second_ids,
        temperature,
        first_rules,
        block,
        mirror_rules=second_rules,
        guide=guide,
        extent=extent,
    )
    one, other = _run(*arguments)
    return one, other


def _run(anchors: Tensor, candidates: Tensor, tau: Tensor, task: Task) -> list[Sums]:
    """Apply the kernel; one `Sums` per direction."""
    own = candidates.detach() if task.halved or (task.direct and task.shared) else candidates
    kernel = OneTile if task.direct else Stream
    outputs = kernel.apply(anchors, own, tau, task)  # type: ignore[no-untyped-call]
    every = []
    for place in range(0, len(outputs), 4):
        log_sum, kept, pulled_sum, pulled = outputs[place : place + 4]
        pulled = pulled if task.weighted else as_dtype(pulled, torch.int64)
        every.append(Sums(log_sum, as_dtype(kept, torch.int64), pulled_sum, pulled))
    return every
