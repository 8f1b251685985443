"""One shift for all exponentials of a cold task.

Below a temperature of about .02 the logits s/tau of all pairs are too far apart for exp to fit float32. Sums need not
be: an anchor's sum is about as large as its best kept pair, and these are alike for all anchors unless some have a twin
and others nothing similar at all. So with one shift c for all pairs, exp(s/tau - c) serves rows and columns of a tile,
and sums of tiles simply add up. What is far below a sum vanishes, and what lies far above is not kept by anybody.

It holds while all sums lie within e^LEAST of each pair and e^MOST. The first tile gives an estimate of where they are,
and the sums themselves tell in the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from antipodes.functional._masks import Mask
from antipodes.functional._tiles import Tile

FLOOR, CEILING = -80.0, 56.0  # no shifted logit leaves these
LEAST = -64.0  # what vanishes at the floor is 1e-7 of a mean of e^LEAST
MOST = 50.0  # of the log of a sum: below the ceiling, so that no kept pair of it was cut off
LOWEST = -1e29  # the best of an anchor that has nothing: below all logits, and above those of pairs that never count
_MARGIN = 12.0  # so far beyond the first tile's best pairs may be those of the others


def find_shift(
    logits: Tensor, tile: Tile, sides: Sequence[tuple[bool, Mask]], reach: float, count: int
) -> float | None:
    """Return the shift that suits the best kept pairs of a tile's anchors; None if they are too far apart.

    Args:
        logits: The tile's, far below all others where a pair never counts.
        tile: Which.
        sides: Whether the columns are the anchors, and what these keep.
        reach: The largest |logit| that there can be.
        count: How many pairs an anchor has at most.
    """
    best = [torch.minimum(logits.amax(0 if mirror else 1), _limit(mask, tile, mirror)) for mirror, mask in sides]
    peaks = torch.cat(best)
    peaks = peaks[peaks > LOWEST]
    if not len(peaks):
        return None
    low, high = (float(end) for end in peaks.aminmax())
    low, high = low - _MARGIN, min(high + _MARGIN, reach)
    least = LEAST + math.log(count)
    if high - low > MOST - least:
        return None
    return (low + high - MOST - least) / 2 or 1.0  # zero means that nothing is shifted


def fits(totals: Tensor, count: int) -> bool:
    """Whether all sums of at most so many shifted exponentials can be told from what vanishes, and nothing was cut."""
    low, high = count * math.exp(LEAST), math.exp(MOST)
    return not bool((((totals > 0) & (totals < low)) | (totals > high)).any())


def _limit(mask: Mask, tile: Tile, mirror: bool) -> Tensor:
    """The upper bound of what a tile's anchors keep, (A,), as far as similarities decide it; or one number of all."""
    where = tile.columns if mirror else tile.rows
    bounds = [each.anchors[where] for each in mask.keep if each.source == "own" and each.compare is torch.le]
    return torch.stack(bounds).amin(0) if bounds else torch.tensor(torch.inf)
