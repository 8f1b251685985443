"""`against_bank`: a loss over a memory bank: one draw for all anchors, one for each, or the mean over draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from torch import Tensor

from antipodes.candidates.bank import MemoryBank
from antipodes.distributed import rank, world_size
from antipodes.functional.contrast import Sums
from antipodes.losses import Loss
from antipodes.methods.batch import Batch
from antipodes.methods.draws import drawn_sums, expected_sums
from antipodes.pairs import Pairs, Rule

Draw = Literal["each", "once", "expected"]


def check_draw(draw: Draw, samples: int) -> None:
    """Refuse an unknown way to draw, or a number of draws below 1."""
    if draw not in get_args(Draw):
        raise ValueError(f"draw must be one of {', '.join(get_args(Draw))}, got {draw!r}")
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}: it is the number of bank entries drawn")


def against_bank(
    loss_fn: Loss,
    bank: MemoryBank,
    anchors: Tensor,
    batch: Batch,
    supports: Tensor | None,
    draw: Draw,
    samples: int,
    progress: float,
) -> Tensor:
    """Return the loss of anchors against their own entries in a bank and a draw of the other entries.

    1. The positive of each anchor is its own entry.
    2. The candidates are a draw of entries or the whole bank, as `draw` says.

    Args:
        loss_fn: The loss, with the policy.
        bank: The memory bank.
        anchors: (B, D), with length 1.
        batch: The samples of the anchors.
        supports: (S, B, D) embeddings of support views, if the policy needs them.
        draw: `once`: the policy judges one draw for all anchors. `each`: every anchor draws from the entries that the
            policy keeps of the whole bank. `expected`: the sum over these entries, scaled to the number of draws. A
            policy that reweighs the sum gets one draw for all, whose size it knows; a loss over the whole bank (local
            aggregation) gets all entries.
        samples: Number of entries that are drawn.
        progress: Share of training done.
    """
    policy = loss_fn.negatives
    shared = draw == "once" or (draw == "each" and policy is None) or (policy is not None and policy.needs.reweighs)
    once = shared and not loss_fn.whole
    entries = bank.read(batch.rows)
    keys, key_rows = bank.draw(samples) if once else bank.entries()
    key_ids = bank.identities(key_rows)
    positives = (anchors * entries).sum(1)
    pairs = Pairs(
        anchors, batch.ids, positives, keys, key_ids, entries, anchor_rows=batch.rows, candidate_rows=key_rows
    ).with_supports(supports)
    if once or loss_fn.whole:
        return loss_fn.evaluate(pairs, progress)

    def contrast(pairs: Pairs, temperature: float | Tensor, rules: Sequence[Rule]) -> Sums:
        if draw == "expected":
            return expected_sums(pairs.contrast(temperature, rules), samples)
        if isinstance(temperature, Tensor) and temperature.requires_grad:
            raise ValueError("draws from a bank need a fixed temperature: let it not be learned, or use draw expected")
        return drawn_sums(
            pairs.anchors,
            keys,
            anchor_ids=pairs.anchor_ids,
            candidate_ids=key_ids,
            temperature=float(temperature),
            rules=rules,
            samples=samples,
            generator=bank.generator(),
            rank=rank(),
            world_size=world_size(),
            guide=None if pairs.guide is None else (pairs.guide.anchors, pairs.guide.keys()),
        )

    return loss_fn.evaluate(pairs, progress, contrast)
