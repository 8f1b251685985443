"""`count_above`: how many candidates exceed a threshold, without their exponentials."""

from __future__ import annotations

import torch
from torch import Tensor

from antipodes.functional._arguments import Extent
from antipodes.functional._compiling import full_precision
from antipodes.functional._kernel import run
from antipodes.functional._plan import Inputs, Kernel
from antipodes.functional.rule import Rule, binding
from antipodes.functional.same_sample import SameSample


@torch.no_grad()
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
    bounds = binding(thresholds).to(torch.promote_types(anchors.dtype, torch.float32))
    if product is not None:  # of few pairs: a comparison costs less than a plan
        same = same_sample or SameSample(anchor_ids, candidate_ids)
        above = torch.gt(product, bounds[:, None], out=torch.empty_like(product))
        return same.blank(above).sum(1)
    # what is above a threshold is what a band keeps whose lower end is the next number
    rule = Rule(low=bounds.nextafter(torch.full_like(bounds, torch.inf)))
    inputs = Inputs(
        anchors.detach(), None if candidates is None else candidates.detach(), anchor_ids, candidate_ids, 1.0, rule,
        same_sample=same_sample, extent=extent, trusted=True,
    )  # fmt: skip
    with full_precision():
        return run(inputs, "none", kernel, block)[0].kept[0].to(bounds.dtype)
