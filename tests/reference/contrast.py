"""The contrast sums by two loops over pairs, in float64, straight from the definition of a rule."""

from __future__ import annotations

import torch
from torch import Tensor

from antipodes.functional import Rule, Sums


def ranks_of(similarities: Tensor, anchor_ids: Tensor, candidate_ids: Tensor) -> list[dict[int, int]]:
    """Return for every anchor the candidates it may choose from and their ranks, by sorting them."""
    result = []
    for row, own in zip(similarities.detach().tolist(), anchor_ids.tolist(), strict=True):
        choice = [k for k, other in enumerate(candidate_ids.tolist()) if other >= 0 and other != own]
        result.append({k: rank for rank, k in enumerate(sorted(choice, key=lambda k: -row[k]))})
    return result


def judge(rule: Rule, i: int, k: int, similarity: float, rank: int) -> tuple[bool, bool]:
    """Return whether pair (i, k) is kept and whether it is pulled."""
    ignored = dropped = pulled = False
    for ranks in rule.ranks:
        ignored |= not ranks.first[i].item() <= rank < ranks.last[i].item()
    if rule.low is not None and similarity < rule.low[i].item():
        ignored = True
    if rule.high is not None and similarity > rule.high[i].item():
        ignored = True
    if rule.ceiling is not None and similarity > rule.ceiling[i].item():
        dropped |= rule.above == "drop"
        pulled |= rule.above == "pull"
    for group in rule.groups:
        mine, other = group.anchors[i].item(), group.candidates[k].item()
        same = mine == other and mine >= 0
        ignored |= group.same == "only" and not same
        dropped |= group.same == "drop" and same
        pulled |= group.same == "pull" and same
    for listed in rule.lists:
        there = bool(((listed.anchors == i) & (listed.candidates == k)).any())
        dropped |= listed.act == "drop" and there
        pulled |= listed.act == "pull" and there
    kept = not ignored and not dropped
    return kept, kept and pulled


def contrast(
    anchors: Tensor,
    candidates: Tensor | None = None,
    *,
    anchor_ids: Tensor,
    candidate_ids: Tensor | None = None,
    temperature: float | Tensor,
    rules: list[Rule],
) -> Sums:
    """Return the sums of `antipodes.functional.contrast`, differentiable by autograd."""
    if candidates is None or candidate_ids is None:
        candidates, candidate_ids = anchors, anchor_ids
    anchors, candidates = anchors.double(), candidates.double()
    tau = torch.as_tensor(temperature, dtype=torch.float64).expand(len(anchors))
    similarities = anchors @ candidates.T
    allowed = ranks_of(similarities, anchor_ids, candidate_ids)
    results: list[list[Tensor]] = []
    for rule in rules:
        for i in range(len(anchors)):
            logits, pulled = [], []
            for k in sorted(allowed[i]):
                keep, pull = judge(rule, i, k, similarities[i, k].item(), allowed[i][k])
                if keep:
                    logits.append(similarities[i, k] / tau[i])
                if pull:
                    pulled.append(similarities[i, k])
            log_sum = torch.stack(logits).logsumexp(0) if logits else torch.tensor(-torch.inf, dtype=torch.float64)
            pulled_sum = torch.stack(pulled).sum() if pulled else similarities[i, :0].sum()  # zero, with a gradient
            results.append([log_sum, torch.tensor(len(logits)), pulled_sum, torch.tensor(len(pulled))])
    shape = (len(rules), len(anchors))
    return Sums(*(torch.stack(column).reshape(shape) for column in zip(*results, strict=True)))


def refine(
    anchors: Tensor,
    candidates: Tensor | None = None,
    *,
    teachers: Tensor,
    anchor_ids: Tensor,
    candidate_ids: Tensor | None = None,
    temperature: float,
    teacher_temperature: float,
    rules: list[Rule],
) -> tuple[Tensor, Tensor]:
    """Return weight and weighted_sum of `antipodes.functional.refine`, differentiable by autograd."""
    if candidates is None or candidate_ids is None:
        candidates, candidate_ids = anchors, anchor_ids
    similarities = anchors @ candidates.T
    allowed = ranks_of(similarities, anchor_ids, candidate_ids)
    rows = []
    for rule in rules:
        for i in range(len(anchors)):
            weight, weighted = torch.zeros((), dtype=anchors.dtype), similarities[i, :0].sum()
            for k in sorted(allowed[i]):
                if judge(rule, i, k, similarities[i, k].item(), allowed[i][k])[1]:
                    t, own = teachers[i] @ candidates[k].detach(), teachers[i] @ teachers[i]
                    w = ((t - own) / teacher_temperature).exp()
                    weight, weighted = weight + w, weighted + w * similarities[i, k]
            rows.append((weight, weighted))
    shape = (len(rules), len(anchors))
    return tuple(torch.stack(column).reshape(shape) for column in zip(*rows, strict=True))  # type: ignore[return-value]
