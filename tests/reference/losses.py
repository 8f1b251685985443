"""The losses by loops over pairs, in the precision of the inputs (give float64)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Flag = Callable[[int, int], bool]
"""Whether the samples with these two ids are false negatives of each other."""


def nothing(anchor: int, candidate: int) -> bool:
    return False


def same(labels: Sequence[int]) -> Flag:
    return lambda anchor, candidate: labels[anchor] == labels[candidate]


MU, TAU_PRIME = 1.0, 0.8  # of refining, unless told otherwise


def pull(
    treatment: str,
    positive: Tensor,
    flagged: Sequence[tuple[Tensor, Tensor]],
    teacher: Tensor,
    temperature: float,
    mu: float = MU,
    tau_prime: float = TAU_PRIME,
) -> Tensor:
    """What an anchor is pulled to: its similarities to the positive and to flagged candidates under a label.

    ``flagged`` are (similarity, candidate); the teacher is the embedding of the positive.
    """
    if treatment == "eliminate":
        return positive
    similarities = torch.stack([positive, *(s for s, _ in flagged)])
    if treatment == "attract":
        return similarities.mean()
    teacher = teacher.detach()
    keys = [teacher, *(candidate.detach() for _, candidate in flagged)]
    p = torch.stack([teacher @ key for key in keys]).div(temperature * tau_prime).softmax(0)
    a = mu * p.max() / (1 + mu * p.max())
    onehot = torch.zeros_like(p)
    onehot[0] = 1
    return (((1 - a) * onehot + a * p) * similarities).sum()


def both_ways(z1: Tensor, z2: Tensor, ids: Sequence[int]) -> tuple[list[Tensor], list[int], list[Tensor]]:
    """The views of a batch as anchors: their vectors, their ids, and each one's similarity to its positive."""
    views = [z / z.norm() for z in [*z1, *z2]]
    positives = [views[i] @ views[i + len(ids)] for i in range(len(ids))]
    return views, [*ids, *ids], positives * 2


def one_way(
    anchors: Sequence[Tensor],
    anchor_ids: Sequence[int],
    positives: Sequence[Tensor],
    candidates: Sequence[Tensor],
    candidate_ids: Sequence[int],
    temperature: float,
    flagged: Flag = nothing,
    treatment: str = "eliminate",
    teachers: Sequence[Tensor] | None = None,
    **soft_targets: float,
) -> Tensor:
    """InfoNCE, the mean over anchors; with every label flagged and attraction this is SupCon's L_out."""
    losses = []
    for anchor, own, positive, teacher in zip(anchors, anchor_ids, positives, teachers or anchors, strict=True):
        pushed, pulled = [positive], []
        for candidate, other in zip(candidates, candidate_ids, strict=True):
            if other in (own, -1):
                continue
            s = anchor @ candidate
            if not flagged(own, other):
                pushed.append(s)
            elif treatment != "eliminate":
                pushed.append(s)
                pulled.append((s, candidate))
        denominator = torch.stack(pushed).div(temperature).logsumexp(0)
        target = pull(treatment, positive, pulled, teacher, temperature, **soft_targets)
        losses.append(denominator - target / temperature)
    return torch.stack(losses).mean()


def info_nce(
    z1: Tensor,
    z2: Tensor,
    ids: Sequence[int],
    temperature: float,
    flagged: Flag = nothing,
    treatment: str = "eliminate",
    **soft_targets: float,
) -> Tensor:
    """InfoNCE of a batch, both views as anchors and all views as candidates."""
    views, view_ids, positives = both_ways(z1, z2, ids)
    teachers = views[len(ids) :] + views[: len(ids)]
    return one_way(
        views, view_ids, positives, views, view_ids, temperature, flagged, treatment, teachers, **soft_targets
    )


class GlobalContrastive:
    """SogCLR's loss of a batch with u in a dictionary; anchors with nothing kept do not touch it."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self.u: dict[int, float] = {}
        self.value = math.nan

    def __call__(
        self,
        z1: Tensor,
        z2: Tensor,
        ids: Sequence[int],
        gamma: float,
        flagged: Flag = nothing,
        treatment: str = "eliminate",
    ) -> Tensor:
        views, view_ids, positives = both_ways(z1, z2, ids)
        teachers = views[len(ids) :] + views[: len(ids)]
        means: list[Tensor | None] = []
        counts, targets = [], []
        for anchor, own, positive, teacher in zip(views, view_ids, positives, teachers, strict=True):
            others = [
                (anchor @ view, view, flagged(own, other))
                for view, other in zip(views, view_ids, strict=True)
                if other != own
            ]
            kept = [s for s, _, flag in others if not flag or treatment != "eliminate"]
            pulled = [(s, view) for s, view, flag in others if flag]
            means.append((torch.stack(kept) / self.temperature).exp().mean() if kept else None)
            counts.append(len(kept))
            targets.append(pull(treatment, positive, pulled, teacher, self.temperature))
        for sample in set(ids):
            new = [g.item() for g, own in zip(means, view_ids, strict=True) if own == sample and g is not None]
            if new:
                estimate = sum(new) / len(new)
                old = self.u.get(sample)
                self.u[sample] = estimate if old is None else (1 - gamma) * old + gamma * estimate
        losses, values = [], []
        for g, own, target, count in zip(means, view_ids, targets, counts, strict=True):
            losses.append(-target if g is None else -target + self.temperature * g / self.u[own])
            negative_term = 0.0 if g is None else self.temperature * math.log(count * self.u[own])
            values.append(-target.item() + negative_term)
        self.value = sum(values) / len(values)
        return torch.stack(losses).mean()


def local_aggregation(
    anchors: Tensor,
    ids: Sequence[int],
    bank: Tensor,
    clusters: Sequence[Sequence[int]],
    backgrounds: Sequence[Sequence[int]],
    temperature: float,
) -> Tensor:
    """Eq. 5 of Ring, the mean over anchors and clusterings; an anchor's own entry is in both of its sets.

    `clusters` holds a label per entry for every clustering, -1 where there is none; `backgrounds` the entries of every
    anchor's.
    """
    losses = []
    for anchor, own, background in zip(anchors, ids, backgrounds, strict=True):
        exponentials = (bank @ anchor / temperature).exp()
        far = exponentials[sorted({own, *background})].mean()
        for labels in clusters:
            mates = {k for k, label in enumerate(labels) if label == labels[own] and label >= 0}
            close = exponentials[sorted({own} | mates)].mean()
            losses.append(far.log() - close.log())
    return torch.stack(losses).mean()


Flagged = Callable[[str, int, tuple[str, int], float], bool]
"""Whether a block's anchor i flags a candidate, ("q", k), ("d", k) or ("h", place), of this similarity."""


def joint(
    queries: Tensor,
    documents: Tensor,
    temperature: float | Tensor,
    *,
    query_ids: Sequence[int] | None = None,
    document_ids: Sequence[int] | None = None,
    given: Tensor | None = None,
    given_ids: Sequence[Sequence[int]] | None = None,
    in_batch: bool = True,
    also: Sequence[str] = (),
    flagged: Flagged = lambda *_: False,
    treatment: str = "eliminate",
    log_q: Tensor | None = None,
    given_log_q: Tensor | None = None,
    hardness: tuple[float, str] | None = None,
    positive_in_sum: bool = True,
    dot: bool = False,
    reduce: bool = True,
) -> Tensor:
    """The losses of queries with their documents, all blocks in one denominator: pair by pair, term by term."""
    count = len(queries)
    qids = list(range(count)) if query_ids is None else list(query_ids)
    dids = list(range(count)) if document_ids is None else list(document_ids)
    unit = (lambda z: z) if dot else (lambda z: z / z.norm())
    q, d = [unit(z) for z in queries], [unit(z) for z in documents]
    h: list[tuple[int, int, Tensor]] = []  # owner, document id, vector
    for j in range(count if given is not None else 0):
        for m in range(given.shape[1]):  # type: ignore[union-attr]
            own = 10**9 + len(h) if given_ids is None else given_ids[j][m]
            h.append((j, own, unit(given[j, m])))  # type: ignore[index]

    def related(i: int, k: int) -> bool:
        return qids[i] == qids[k] or dids[i] == dids[k]

    losses = []
    for i in range(count):
        s_positive = q[i] @ d[i]
        positive = s_positive / temperature - (0.0 if log_q is None else log_q[i])
        found: list[tuple[str, tuple[str, int], Tensor, float | Tensor, bool]] = []
        for block in ("query_to_document", *also):
            anchor = q[i] if block.startswith("query") else d[i]
            to_documents = not block.endswith("query")
            if in_batch:
                for k in range(count):
                    if not related(i, k):
                        kind = "d" if to_documents else "q"
                        minus = log_q[k] if log_q is not None and to_documents else 0.0
                        found.append((block, (kind, k), anchor @ (d if to_documents else q)[k], minus, False))
            if block in ("query_to_document", "document_to_document"):
                for place, (owner, own, vector) in enumerate(h):
                    skipped = own == -1 or own == dids[i] or (not in_batch and owner != i)
                    if not skipped and not (block == "document_to_document" and owner == i):
                        minus = 0.0 if given_log_q is None else given_log_q.flatten()[place]
                        found.append((block, ("h", place), anchor @ vector, minus, owner == i))
        pushed, pulled = [], []
        for block, key, s, minus, is_own in found:
            logit = s / temperature - minus
            if hardness is not None and block == "query_to_document":
                on = {"given": is_own, "in_batch": not is_own, "all": True}[hardness[1]]
                logit = logit + hardness[0] * s.detach() * on
            flag = flagged(block, i, key, s.item())
            if flag and treatment == "eliminate":
                continue
            if flag:
                pulled.append((s, logit))
            if not (flag and treatment == "attract_inside"):
                pushed.append(logit)
        again = [s_positive / temperature] * ("document_to_query" in also and positive_in_sum)
        if treatment == "attract_inside":
            over = torch.stack([positive, *(logit for _, logit in pulled)]).logsumexp(0)
            losses.append(torch.stack([over, *pushed, *again]).logsumexp(0) - over)
            continue
        inside = [positive] * positive_in_sum + pushed + again
        if not pushed and not positive_in_sum:
            losses.append(0.0 * s_positive)
            continue
        target = positive
        if treatment == "attract":
            mean = torch.stack([s_positive, *(s for s, _ in pulled)]).mean()
            target = positive + (mean - s_positive) / temperature
        losses.append(torch.stack(inside).logsumexp(0) - target)
    return torch.stack(losses).mean() if reduce else torch.stack(losses)


def supcon(z: Tensor, labels: Sequence[int], temperature: float, inside: bool = False) -> Tensor:
    """SupCon of one view a sample (Khosla et al. 2020): L_out, or the sum over positives inside the logarithm."""
    views = [row / row.norm() for row in z]
    losses = []
    for i, anchor in enumerate(views):
        others = [k for k in range(len(views)) if k != i]
        positives = [k for k in others if labels[k] == labels[i]]
        logits = {k: anchor @ views[k] / temperature for k in others}
        if not positives:
            losses.append(0.0 * anchor.sum())
            continue
        every = torch.stack(list(logits.values())).logsumexp(0)
        chosen = torch.stack([logits[k] for k in positives])
        losses.append(every - (chosen.logsumexp(0) if inside else chosen.mean()))
    return torch.stack(losses).mean()
