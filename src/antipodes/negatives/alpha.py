"""How many negatives are false, estimated without labels: what GloFND's and FNC's `alpha` should be."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor

from antipodes.pairs import normalise

_LEVELS = torch.arange(1, 10) / 10  # quantiles of the twins' similarity at which the mixture is looked at
_BLOCK = 1024  # anchors compared with all others at a time


class AlphaEstimates(NamedTuple):
    """Estimates of the share of an anchor's negatives that are false; NaN where what they need was not given.

    Attributes:
        guide: By the guide's twins.
        twins: By the embeddings' own twins.
        mixture: By Debiased's mixture, of the embeddings where they have twins, else of the guide.
    """

    guide: float
    twins: float
    mixture: float


class SampleAlphas(NamedTuple):
    """`AlphaEstimates` of every sample, each (n,); NaN where what they need was not given."""

    guide: Tensor
    twins: Tensor
    mixture: Tensor


@overload
def estimate_alpha(
    embeddings: Tensor,
    guide: tuple[Tensor, Tensor] | None = None,
    twins: Tensor | None = None,
    quantile: float = 0.1,
    most: int = 4096,
    per_sample: Literal[False] = False,
) -> AlphaEstimates: ...


@overload
def estimate_alpha(
    embeddings: Tensor,
    guide: tuple[Tensor, Tensor] | None = None,
    twins: Tensor | None = None,
    quantile: float = 0.1,
    most: int = 4096,
    *,
    per_sample: Literal[True],
) -> SampleAlphas: ...


@torch.no_grad()
def estimate_alpha(
    embeddings: Tensor,
    guide: tuple[Tensor, Tensor] | None = None,
    twins: Tensor | None = None,
    quantile: float = 0.1,
    most: int = 4096,
    per_sample: bool = False,
) -> AlphaEstimates | SampleAlphas:
    """Estimate the share of false negatives from similarities alone.

    All three take two views of one sample (twins) as a model of two samples of one class. With P(t) the share of pairs
    of different samples that are at least as similar as t, and P+(t) that of twins:

    1. guide: P(t) / P+(t) in the guide's space, t the lower `quantile` of its twins' similarities. A guide that places
       a class mate where it places another view of the same sample makes this right.
    2. twins: the same in the embeddings' own space, at the median of the twins. Class mates are mostly further apart
       than twins there, so it is a cautious number.
    3. mixture: pairs are a mixture alpha p+ + (1 - alpha) p- (Chuang et al. 2020), hence P(t) / P+(t) is at least alpha
       everywhere, and close to it where true negatives are rare. It is the least such ratio over nine quantiles.

    With `per_sample` P(t) is the share of one sample's pairs, so that samples in dense places have a larger alpha:
    `GloFND(n, alpha=...)` and `FNC(alpha=...)` take such a tensor. Thresholds and P+(t) are those of all.

    Args:
        embeddings: (n, D) one view of every sample, of any length.
        guide: Two (n, G), a guide's vectors of two views of every sample.
        twins: (n, D) embeddings of another view of every sample.
        quantile: Of the guide's twins.
        most: Samples to look at, evenly spread over the given ones; with `per_sample` those that each is compared with.
        per_sample: Whether to estimate the share of every sample.

    Raises:
        ValueError: for shapes that do not fit, fewer than three samples, or neither a guide nor twins.

    Example:
        >>> z = torch.eye(4).repeat_interleave(5, 0)  # four classes of five, twins alike
        >>> round(estimate_alpha(z, twins=z).twins, 3) == round(4 / 19, 3)
        True
        >>> estimate_alpha(z, twins=z, per_sample=True).twins.shape
        torch.Size([20])
    """
    if guide is None and twins is None:
        raise ValueError("estimating alpha needs to know how similar one sample's views are: give twins or a guide")
    if not 0 < quantile < 1:
        raise ValueError(f"quantile must be in (0, 1), got {quantile}: it is the share of twins left below")
    if embeddings.dim() != 2 or len(embeddings) < 3:
        raise ValueError(f"embeddings must be (n, D) of at least three samples, got {tuple(embeddings.shape)}")
    if twins is not None and twins.shape != embeddings.shape:
        raise ValueError(f"twins must be like the embeddings, got {tuple(twins.shape)} for {tuple(embeddings.shape)}")
    if guide is not None and not all(part.dim() == 2 and len(part) == len(embeddings) for part in guide):
        shapes = " and ".join(str(tuple(part.shape)) for part in guide)
        raise ValueError(f"guide must be two ({len(embeddings)}, G), its vectors of two views, got {shapes}")
    count = min(len(embeddings), most)
    some = torch.arange(count, device=embeddings.device) * len(embeddings) // count
    rows = torch.arange(len(embeddings), device=embeddings.device) if per_sample else some
    by_guide = by_twins = mixture = torch.full((len(rows) if per_sample else 1,), math.nan, device=embeddings.device)
    if guide is not None:
        by_guide = _ratios(*guide, rows, some, torch.tensor([quantile]), per_sample)[:, 0]
        mixture = _ratios(*guide, rows, some, _LEVELS, per_sample).amin(1)
    if twins is not None:
        ratios = _ratios(embeddings, twins, rows, some, _LEVELS, per_sample)
        by_twins, mixture = ratios[:, len(_LEVELS) // 2], ratios.amin(1)
    if per_sample:
        return SampleAlphas(by_guide, by_twins, mixture)
    return AlphaEstimates(float(by_guide), float(by_twins), float(mixture))


def _ratios(first: Tensor, second: Tensor, rows: Tensor, others: Tensor, levels: Tensor, per_sample: bool) -> Tensor:
    """P(t) / P+(t), at most 1, at the quantiles `levels` of the others' twins, (rows or 1, levels).

    P(t) is over the pairs of a row with the others, or of all rows.
    """
    keys = normalise(first[others])
    of_twins = (keys * normalise(second[others])).sum(1)
    thresholds = of_twins.quantile(levels.to(of_twins))
    thresholds = thresholds - 8 * torch.finfo(of_twins.dtype).eps  # what is equal but for rounding is as similar
    found = [of_twins.new_zeros(0, len(levels))]
    for part in rows.split(_BLOCK):
        own = part[:, None] == others
        similarities = (normalise(first[part]) @ keys.T).masked_fill_(own, -math.inf)
        ordered = similarities.sort(dim=1).values.contiguous()
        above = len(others) - torch.searchsorted(ordered, thresholds.expand(len(part), -1).contiguous())
        found.append(above / (len(others) - own.sum(1, keepdim=True)))
    share = torch.cat(found)
    if not per_sample:
        share = share.mean(0, keepdim=True)
    return (share / (of_twins[:, None] >= thresholds).to(share).mean(0)).clamp(max=1)
