"""The contrast sums by two loops over pairs, in float64, straight from the definition of a rule."""

from __future__ import annotations

import torch
from torch import Tensor

from antipodes.functional.contrast import SigmoidSums, Sums
from antipodes.functional.rule import Rule

Guide = tuple[Tensor, Tensor | None] | None


def ranks_of(similarities: Tensor, anchor_ids: Tensor, candidate_ids: Tensor) -> list[dict[int, int]]:
    """Return for every anchor the candidates it may choose from and their ranks, by sorting them."""
    result = []
    for row, own in zip(similarities.detach().tolist(), anchor_ids.tolist(), strict=True):
        choice = [k for k, other in enumerate(candidate_ids.tolist()) if other >= 0 and other != own]
        result.append({k: rank for rank, k in enumerate(sorted(choice, key=lambda k: -row[k]))})
    return result


Seen = tuple[float, int]  # a pair's similarity and rank in one space


def judge(rule: Rule, i: int, k: int, own: Seen, guide: Seen | None = None) -> tuple[bool, bool]:
    """Return whether pair (i, k) is kept and whether it is pulled."""
    ignored = dropped = pulled = False
    for ranks in rule.ranks:
        rank = own[1] if ranks.space == "own" else guide[1]  # type: ignore[index]
        ignored |= not ranks.first[i].item() <= rank < ranks.last[i].item()
    for bounds, seen in ((rule.bounds, own), (rule.guide, guide)):
        if bounds is None or not bounds.named:
            continue
        assert seen is not None
        if bounds.low is not None and seen[0] < bounds.low[i].item():
            ignored = True
        if bounds.high is not None and seen[0] > bounds.high[i].item():
            ignored = True
        if bounds.ceiling is not None and seen[0] > bounds.ceiling[i].item():
            dropped |= bounds.above == "drop"
            pulled |= bounds.above == "pull"
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


class Scene:
    """Similarities of all pairs in both spaces, and who may choose whom."""

    def __init__(
        self, anchors: Tensor, candidates: Tensor, anchor_ids: Tensor, candidate_ids: Tensor, guide: Guide = None
    ) -> None:
        self.similarities = anchors.double() @ candidates.double().T
        self.ranks = ranks_of(self.similarities, anchor_ids, candidate_ids)
        self.guide_similarities = None
        if guide is not None:
            second = guide[0] if guide[1] is None else guide[1]
            self.guide_similarities = guide[0].double() @ second.double().T
            self.guide_ranks = ranks_of(self.guide_similarities, anchor_ids, candidate_ids)

    def judged(self, rule: Rule, i: int) -> tuple[list[int], list[int]]:
        """Return the candidates that anchor i keeps, and those that it pulls."""
        kept, pulled = [], []
        for k in sorted(self.ranks[i]):
            guide = None
            if self.guide_similarities is not None:
                guide = (self.guide_similarities[i, k].item(), self.guide_ranks[i][k])
            keep, pull = judge(rule, i, k, (self.similarities[i, k].item(), self.ranks[i][k]), guide)
            kept += [k] if keep else []
            pulled += [k] if pull else []
        return kept, pulled


def _sum(terms: list[Tensor], like: Tensor) -> Tensor:
    return torch.stack(terms).sum() if terms else like[:0].sum()  # zero, with a gradient


def contrast(
    anchors: Tensor,
    candidates: Tensor | None = None,
    *,
    anchor_ids: Tensor,
    candidate_ids: Tensor | None = None,
    temperature: float | Tensor,
    rules: list[Rule],
    offsets: Tensor | None = None,
    guide: Guide = None,
) -> Sums:
    """Return the sums of `antipodes.functional.contrast`, differentiable by autograd."""
    if candidates is None or candidate_ids is None:
        candidates, candidate_ids = anchors, anchor_ids
    tau = torch.as_tensor(temperature, dtype=torch.float64).expand(len(anchors))
    scene = Scene(anchors, candidates, anchor_ids, candidate_ids, guide)
    added = torch.zeros(len(candidates), dtype=torch.float64) if offsets is None else offsets.double()
    results: list[list[Tensor]] = []
    for rule in rules:
        for i, row in enumerate(scene.similarities):
            kept, pulled = scene.judged(rule, i)
            logits = [row[k] / tau[i] + added[k] for k in kept]
            log_sum = torch.stack(logits).logsumexp(0) if logits else torch.tensor(-torch.inf, dtype=torch.float64)
            pulled_sum = _sum([row[k] for k in pulled], row)
            results.append([log_sum, torch.tensor(len(kept)), pulled_sum, torch.tensor(len(pulled))])
    shape = (len(rules), len(anchors))
    return Sums(*(torch.stack(column).reshape(shape) for column in zip(*results, strict=True)))


def contrast_both(
    first: Tensor,
    second: Tensor,
    *,
    first_ids: Tensor,
    second_ids: Tensor,
    temperature: float | Tensor,
    first_rules: list[Rule],
    second_rules: list[Rule],
    guide: tuple[Tensor, Tensor] | None = None,
) -> tuple[Sums, Sums]:
    """Return the sums of `antipodes.functional.contrast_both`: of each direction by itself."""
    turned = None if guide is None else guide[::-1]
    one = contrast(
        first, second, anchor_ids=first_ids, candidate_ids=second_ids,
        temperature=temperature, rules=first_rules, guide=guide,
    )  # fmt: skip
    other = contrast(
        second, first, anchor_ids=second_ids, candidate_ids=first_ids,
        temperature=temperature, rules=second_rules, guide=turned,
    )  # fmt: skip
    return one, other


def sigmoid_sums(
    anchors: Tensor,
    candidates: Tensor | None = None,
    *,
    anchor_ids: Tensor,
    candidate_ids: Tensor | None = None,
    temperature: float | Tensor,
    bias: float | Tensor,
    rules: list[Rule],
    guide: Guide = None,
    soft: bool = False,
) -> SigmoidSums:
    """Return the sums of `antipodes.functional.sigmoid_sums`, differentiable by autograd."""
    if candidates is None or candidate_ids is None:
        candidates, candidate_ids = anchors, anchor_ids
    scene = Scene(anchors, candidates, anchor_ids, candidate_ids, guide)
    logits = scene.similarities / temperature + bias
    results: list[list[Tensor]] = []
    for rule in rules:
        for i, row in enumerate(logits):
            kept, pulled = scene.judged(rule, i)
            negatives = kept if soft else [k for k in kept if k not in pulled]
            loss_sum = _sum([-torch.nn.functional.logsigmoid(-row[k]) for k in negatives], row)
            pulled_loss = _sum([-torch.nn.functional.logsigmoid(row[k]) for k in pulled if not soft], row)
            results.append([loss_sum, torch.tensor(len(kept)), pulled_loss, torch.tensor(len(pulled))])
    shape = (len(rules), len(anchors))
    return SigmoidSums(*(torch.stack(column).reshape(shape) for column in zip(*results, strict=True)))


def refine(
    anchors: Tensor,
    candidates: Tensor | None = None,
    *,
    teachers: Tensor,
    teacher_keys: Tensor | None = None,
    anchor_ids: Tensor,
    candidate_ids: Tensor | None = None,
    temperature: float,
    teacher_temperature: float,
    rules: list[Rule],
    guide: Guide = None,
) -> tuple[Tensor, Tensor]:
    """Return weight and weighted_sum of `antipodes.functional.refine`, differentiable by autograd."""
    if candidates is None or candidate_ids is None:
        candidates, candidate_ids = anchors, anchor_ids
    scene = Scene(anchors, candidates, anchor_ids, candidate_ids, guide)
    keys = candidates if teacher_keys is None else teacher_keys
    rows = []
    for rule in rules:
        for i, row in enumerate(scene.similarities):
            weight, weighted = torch.zeros((), dtype=torch.float64), row[:0].sum()
            for k in scene.judged(rule, i)[1]:
                t, own = teachers[i].double() @ keys[k].detach().double(), teachers[i].double().square().sum()
                known = bool(own) and (teacher_keys is None or bool(keys[k].any()))
                w = ((t - own) / teacher_temperature).exp() if known else torch.zeros((), dtype=torch.float64)
                weight, weighted = weight + w, weighted + w * row[k]
            rows.append((weight, weighted))
    shape = (len(rules), len(anchors))
    return tuple(torch.stack(column).reshape(shape) for column in zip(*rows, strict=True))  # type: ignore[return-value]
