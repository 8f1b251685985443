"""Facts about the views of a batch, read once: whether they can be compared, and what saves the kernel a look."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from antipodes.functional.checks import Extent
from antipodes.functional.normalise import Measured
from antipodes.functional.tensors import NotFinite, on_host, span_on_host, spans

NOT_FINITE = "z1 or z2 hold NaN or infinite numbers: check the encoder's output before the loss"


class ViewFacts(NamedTuple):
    """What checking the views of a batch has found out about them.

    Attributes:
        shortest: Their shortest length.
        lowest_id: The lowest id.
        rows: The lowest and the highest row.
        distinct: Whether no two ids are known to be equal.
    """

    shortest: float
    lowest_id: float
    rows: tuple[int, int]
    distinct: bool

    def known(self) -> tuple[Extent, tuple[int, int]]:
        """The extent and the span of rows of pairs that hold nothing else."""
        return Extent(1.0, float(self.shortest > 0), 1.0, float(self.lowest_id)), self.rows


def examine_views(measured: Sequence[Measured], ids: Tensor, rows: Tensor | None = None) -> ViewFacts:
    """Refuse ids and embeddings that make no sense; everything in one read.

    Args:
        measured: The views, together or one after the other.
        ids: (B,) identities of the samples.
        rows: (B,) where they stand in tables; None takes the ids.

    Raises:
        ValueError: for an id below 0, or embeddings that are not finite (`NotFinite`).
    """
    numbers = [ids] if rows is None else [rows, ids]
    lengths = [each.span for each in measured if each.span is not None]
    if lengths and on_host(ids):
        of_ids = [span_on_host(each) for each in numbers]
    else:  # on a device, where it is worth reading everything together
        found = spans(*(each.length for each in measured), *numbers)
        lengths, of_ids = [each[:2] for each in found[: len(measured)]], found[len(measured) :]
    (lowest, highest, _), (lowest_id, _, distinct) = of_ids[0], of_ids[-1]
    if lowest_id < 0:
        raise ValueError(f"ids must be at least 0, got {lowest_id:.0f}: they are dataset indices")
    if not all(math.isfinite(longest) for _, longest in lengths):
        raise NotFinite(NOT_FINITE)
    return ViewFacts(min(lengths)[0], lowest_id, (int(lowest), int(highest)), distinct)
