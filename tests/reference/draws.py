"""Draws from what a rule keeps, by loops in float64: list what is kept, pick, and add up."""

from __future__ import annotations

import torch
from torch import Tensor

from antipodes.functional.rule import Rule
from tests.reference.contrast import Guide, Scene


def drawn_log_sums(
    anchors: Tensor,
    candidates: Tensor,
    anchor_ids: Tensor,
    candidate_ids: Tensor,
    temperature: float,
    rules: list[Rule],
    numbers: Tensor,
    guide: Guide = None,
) -> tuple[Tensor, Tensor]:
    """The log sums (R, A) over draws by numbers (R, A, m) in [0, 1), differentiable, and the number kept (R, A)."""
    scene = Scene(anchors, candidates, anchor_ids, candidate_ids, guide)
    similarities = scene.similarities
    log_sums, kept = [], []
    for rule, rows in zip(rules, numbers, strict=True):
        for i, row in enumerate(rows.tolist()):
            choice = scene.judged(rule, i)[0]
            logits = [similarities[i, choice[int(number * len(choice))]] / temperature for number in row if choice]
            log_sums.append(torch.stack(logits).logsumexp(0) if logits else torch.tensor(-torch.inf).double())
            kept.append(len(choice))
    shape = (len(rules), len(anchors))
    return torch.stack(log_sums).view(shape), torch.tensor(kept).view(shape)
