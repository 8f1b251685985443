"""Mutual information from critic values: the contrastive estimate, and the one with negatives from a band only.

For an anchor u with its positive v_1 and negatives v_2..v_k drawn from the marginal, and a critic f (a similarity
divided by a temperature), the mean over anchors of

    Z = f(u, v_1) - log( (1/k) sum_j e^f(u, v_j) )

is at most I(U; V) in expectation, whatever the critic: NCE. With negatives from a part of the candidates only (CNCE,
Theorem 3.1 of Wu et al., "Conditional negative sampling", the paper on Ring) this is no longer so for every part: leave
out what is similar and the estimate can be as large as one likes. Two conditions are enough for CNCE <= NCE <= I:

1. every kept candidate has e^f above the mean of e^f over all candidates of the anchor (Theorem 3.1), or
2. nothing above the band is left out: then the kept candidates are larger than all of them in the sense of stochastic
   dominance, and log(a + sum e^f) grows with each. NCE, which leaves out nothing, and the ball are of this kind.

Ring's starting band, percentiles 0 to 90, meets neither; its final band, 90 to 99, meets the first.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from antipodes.functional.tensors import NotFinite


class Information(NamedTuple):
    """An estimate of mutual information, in nats.

    Attributes:
        value: the mean of `per_anchor`, a scalar; its gradient reaches the critic.
        error: the standard error of `value` over anchors, a scalar; NaN for a single anchor. It is too small where
            anchors share their negatives.
        valid: whether one of the two conditions of this module holds for every anchor, so that `value` is, up to
            `error`, no more than the mutual information. False says that nothing is known.
        per_anchor: (A,) the estimates Z whose mean is `value`; 0 for an anchor without kept candidates.
        kept: (A,) int64, the candidates in the band.
        above_mean: (A,) bool, the first condition.
        complete_above: (A,) bool, the second condition.
    """

    value: Tensor
    error: Tensor
    valid: bool
    per_anchor: Tensor
    kept: Tensor
    above_mean: Tensor
    complete_above: Tensor


def nce(positives: Tensor, negatives: Tensor, *, temperature: float = 1.0) -> Information:
    """Estimate mutual information from similarities of anchors with their positives and with random negatives.

    The estimate cannot exceed log(K + 1). It bounds the information only for a critic that was not fitted to the very
    samples it is given.

    Args:
        positives: (A,) critic values, or similarities.
        negatives: (A, K) those of candidates drawn at random, whoever the anchor is. -inf stands for a candidate that
            does not count (the anchor itself, an empty slot of a queue).
        temperature: what similarities are divided by to give critic values.

    Raises:
        ValueError: if the shapes do not match, or a number is NaN or +inf.

    Example:
        >>> positives, negatives = torch.tensor([1.0, 1.0]), torch.zeros(2, 3)
        >>> nce(positives, negatives).value  # 1 - log((e + 3) / 4)
        tensor(0.6426)
    """
    return cnce(positives, negatives, temperature=temperature)


def cnce(
    positives: Tensor,
    negatives: Tensor,
    low: float | Tensor = -math.inf,
    high: float | Tensor = math.inf,
    *,
    temperature: float = 1.0,
) -> Information:
    """Estimate mutual information with the negatives of a band only, low <= similarity <= high, both ends closed.

    Args:
        positives: (A,) critic values, or similarities.
        negatives: (A, K) those of all candidates, also outside the band: whether the bound is valid depends on them.
        low: lower end of the band in the units of `negatives`, one number or (A,), as
            `antipodes.functional.band_by_rank` gives it.
        high: its upper end.
        temperature: what similarities are divided by to give critic values.

    Raises:
        ValueError: if the shapes do not match, or a number is NaN or +inf.

    Example:
        >>> critic = torch.tensor([[-1.0, 0.0, 2.0]])
        >>> cnce(torch.tensor([1.0]), critic, low=1.5).valid  # only the hardest
        True
        >>> cnce(torch.tensor([1.0]), critic, high=1.5).valid  # all but the hardest
        False
    """
    low, high = _check(positives, negatives, low, high, temperature)
    counted = negatives.detach() > -torch.inf
    inside = counted & (negatives.detach() >= low) & (negatives.detach() <= high)
    dtype = torch.promote_types(torch.promote_types(positives.dtype, negatives.dtype), torch.float32)
    positives, critic = positives.to(dtype) / temperature, negatives.to(dtype) / temperature

    kept = inside.sum(1)
    log_sum = torch.cat([positives[:, None], critic.masked_fill(~inside, -torch.inf)], dim=1).logsumexp(1)
    per_anchor = positives - log_sum + (kept + 1).to(log_sum.dtype).log()

    log_mean = critic.detach().double().logsumexp(1) - counted.sum(1).double().log()
    lowest = critic.detach().double().masked_fill(~inside, torch.inf).amin(1)
    above_mean = (lowest > log_mean) | (kept == 0)
    complete_above = ~(counted & (negatives.detach() > high)).any(1)
    return Information(
        value=per_anchor.mean(),
        error=per_anchor.detach().std() / math.sqrt(len(per_anchor))
        if len(per_anchor) > 1
        else log_sum.new_tensor(math.nan),
        valid=bool((above_mean | complete_above).all()),
        per_anchor=per_anchor,
        kept=kept,
        above_mean=above_mean,
        complete_above=complete_above,
    )


def _check(
    positives: Tensor, negatives: Tensor, low: float | Tensor, high: float | Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Refuse what does not fit; give both bounds as (A, 1) or (1, 1)."""
    if positives.ndim != 1 or negatives.ndim != 2 or len(positives) != len(negatives) or 0 in negatives.shape:
        shapes = f"{(*positives.shape,)} and {(*negatives.shape,)}"
        raise ValueError(
            f"positives (A,) and negatives (A, K) need the same anchors, at least one of each, got {shapes}"
        )
    if not positives.is_floating_point() or not negatives.is_floating_point():
        raise ValueError(f"positives and negatives must be floating, got {positives.dtype} and {negatives.dtype}")
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be positive and finite, got {temperature}: similarities are divided by it")
    if not bool(positives.isfinite().all()) or not bool((negatives < torch.inf).all()):
        raise NotFinite(
            "positives or negatives hold NaN or infinite numbers; only a negative may be -inf, not to count"
        )
    bounds = []
    for name, bound in (("low", low), ("high", high)):
        tensor = torch.as_tensor(bound, dtype=negatives.dtype, device=negatives.device).detach()
        if tensor.shape not in ((), positives.shape) or bool(tensor.isnan().any()):
            raise ValueError(f"{name} must be one number or one per anchor, ({len(positives)},), and not NaN")
        bounds.append(tensor.reshape(-1, 1))
    return bounds[0], bounds[1]
