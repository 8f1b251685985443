"""Cold tiles that are read from both sides: one exponential for the rows and for the columns.

Below a temperature of about .01 no single shift keeps exp(s/tau) of all pairs in float32, so anchors have peaks. The
rows and columns of a tile then want exponentials relative to different peaks, r_i and c_k. Half of each serves both:

    E_ik = exp(l_ik - r_i/2 - c_k/2)        sum_k exp(l_ik) = e^{r_i/2} sum_k E_ik e^{c_k/2}

and the same from the other side. The gradient of a pair, p_i exp(l_ik - a_i) + p_k exp(l_ik - b_k) with a and b the log
sums, is E_ik times the sum of two outer products, so that exponentials kept from the forward pass are not taken again.

This holds while peaks lie within SPAN of each other: no pair that counts exceeds e^(SPAN/2), and what vanishes below
e^LEAST is at most e^(LEAST + SPAN/2) of any sum. Other tiles are read twice.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from antipodes.functional._tiles import Buffers, Tile

SPAN = 92.0
LEAST, MOST = -72.0, 80.0  # of exponents; what is above counts for neither side
ZERO = 1e-31  # just above e^LEAST: what is no larger becomes zero, as products with it would underflow, which is slow


class Scaled(NamedTuple):
    """Exponentials of a tile's logits, less an exponent per row and one per column.

    Attributes:
        values: exp(logit - rows - columns).
        rows: one exponent for each.
        columns: likewise.
    """

    values: Tensor
    rows: Tensor
    columns: Tensor


def filled(peaks: Tensor, lowest: float) -> Tensor:
    """Return peaks with the highest of them in the place of those below the lowest, of anchors that kept nothing."""
    return torch.where(peaks < lowest, peaks.max(), peaks)


def is_narrow(*exponents: Tensor) -> bool:
    """Whether all of these lie within SPAN of each other."""
    low, high = torch.cat(exponents).aminmax()
    return bool(high - low <= SPAN)


def scale(logits: Tensor, rows: Tensor, columns: Tensor, out: Tensor) -> Scaled:
    """Take the exponentials of a tile's logits relative to halves of the peaks of rows and columns.

    Args:
        logits: The tile.
        rows: The peak of every row.
        columns: The peak of every column.
        out: Takes the exponentials; may be the logits.
    """
    half_rows, half_columns = rows / 2, columns / 2
    values = torch.sub(logits, half_rows[:, None], out=out).sub_(half_columns)
    return Scaled(torch.threshold_(values.clamp_(LEAST, MOST).exp_(), ZERO, 0.0), half_rows, half_columns)


def add_to(total: Tensor, peak: Tensor, scaled: Scaled, keep: Tensor | None, mirror: bool, spare: Tensor) -> None:
    """Add a tile's sums to those of its rows or, with `mirror`, of its columns.

    Args:
        total: Sums so far, relative to their peaks; changed.
        peak: These peaks; raised to the tile's.
        scaled: The tile.
        keep: Ones where a pair counts.
        mirror: Whether the columns are the anchors.
        spare: A block for the kept exponentials.
    """
    mine, others = (scaled.columns, scaled.rows) if mirror else (scaled.rows, scaled.columns)
    top = others.max()
    kept = scaled.values if keep is None else torch.mul(scaled.values, keep, out=spare)
    sums = torch.mv(kept.T if mirror else kept, torch.exp(others - top))
    raised = torch.where(sums > 0, torch.maximum(peak, 2 * mine), peak)  # the peak of who keeps nothing is anything
    total.mul_(peak.sub_(raised).exp_()).addcmul_(sums, (mine + top - raised).clamp_(max=MOST).exp_())
    peak.copy_(raised)


def weigh(
    scaled: Scaled,
    tile: Tile,
    on_rows: tuple[Tensor, Tensor],
    on_columns: tuple[Tensor, Tensor],
    keeps: tuple[Tensor | None, Tensor | None],
    buffers: Buffers,
) -> Tensor:
    """Return what the logits of a tile receive from both sides.

    Args:
        scaled: The tile's exponentials; not changed.
        tile: Which.
        on_rows: Of the rows as anchors: what each hands to its pairs, and its log sum.
        on_columns: Of the columns as anchors.
        keeps: Which pairs count for the rows, and for the columns; the same block where that is the same.
        buffers: Of the pass.
    """
    _, rows, columns = scaled
    parts = []
    for (push, log_sum), mine, others in ((on_rows, rows, columns), (on_columns, columns, rows)):
        top = others.max()
        # what is above is of anchors that kept nothing, and hand out nothing
        parts.append((push * (mine - log_sum + top).clamp_(max=MOST).exp_(), torch.exp(others - top)))
    (row_share, by_column), (column_share, by_row) = parts
    out = buffers("weight", tile.shape)
    if keeps[0] is keeps[1]:
        torch.mm(torch.stack((row_share, by_row), 1), torch.stack((by_column, column_share)), out=out)
        if keeps[0] is not None:
            out.mul_(keeps[0])
    else:
        torch.mul(row_share[:, None], by_column, out=out)
        if keeps[0] is not None:
            out.mul_(keeps[0])
        share = torch.mul(by_row[:, None], column_share, out=buffers("share", tile.shape))
        out.add_(share) if keeps[1] is None else out.addcmul_(share, keeps[1])
    return out.mul_(scaled.values)
