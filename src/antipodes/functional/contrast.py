"""Contrast: the sums over pairs that every loss is made of, with gradients, without the A x C matrix of a mask.

For anchor i with temperature tau_i and similarities s_ik to candidates k, each rule gives

    log_sum_i = log sum_k W_ik exp(s_ik / tau_i)        kept_i   = sum_k W_ik
    pulled_sum_i = sum_k Y_ik s_ik                      pulled_i = sum_k Y_ik

with W (the pair counts as a negative) and Y (the pair is pulled) as in `antipodes.functional.rule`. The positive is not
among the pairs; with `pos` its similarity the loss of an anchor is softplus(log_sum - pos / tau), which loses no digits
to cancellation.

How a call runs:

1. `_plan`: the arguments are checked, rules become masks, and one of two kernels is chosen.
2. `_dense` keeps all pairs as one matrix. It is short, and defines what the sums are.
3. `_stream` visits the pairs tile by tile; memory grows with A + C, not with A x C. Each kernel is a function for the
   sums and one for their gradients.
4. `_kernel` makes either of them an operation of autograd.

The losses of `sigmoid`, the soft targets of `refine` and the counts of `counts` are the same sums with another function
of the pair (`_pair_functions`). `contrast_both` sums for two directions, of images to texts and of texts to images,
from one product of similarities.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from antipodes.functional._arguments import Extent, Guide
from antipodes.functional._compiling import eager_full_precision
from antipodes.functional._kernel import run
from antipodes.functional._plan import Inputs, Kernel
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
        block: the edge of the tiles of the streaming kernel. None: up to 448 on a CPU, where a few tiles then fit into
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
    first_rules: Rule | Sequence[Rule] = _EVERY_PAIR,
    second_rules: Rule | Sequence[Rule] = _EVERY_PAIR,
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
