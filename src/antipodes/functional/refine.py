"""Refine: how much each flagged pair is pulled, decided by the anchor's positive as a teacher.

With t_ik the similarity of teacher i to candidate k, T the teacher's temperature and F_i the pairs that a rule pulls,
the softmax over the positive itself and F_i is

    p_i = 1 / (1 + sum_{k in F_i} w_ik)  for the positive,   p_ik = p_i w_ik,   w_ik = exp((t_ik - t_ii) / T)

where t_ii, the teacher's similarity to itself, is the largest there is: no weight exceeds 1 and nothing overflows.
Where the positive is left out, the weights are relative to the largest t_ik of F_i instead: however sharp the teacher,
one of them is 1. A first pass over the tiles finds it.

A teacher that is the zero vector knows nothing and weighs all candidates 0; a candidate whose key is zero weighs 0.
A loss needs sum_k w_ik and sum_k w_ik s_ik: the kernel's sums over pulled pairs, with weights (`Teacher`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from antipodes.functional.checks import Guide
from antipodes.functional.contrast import run
from antipodes.functional.dense import FAR, LOWEST
from antipodes.functional.masks import Tile
from antipodes.functional.plan import Inputs, Kernel, Teacher, as_rules, make_plan
from antipodes.functional.rule import Rule
from antipodes.functional.same_sample import SameSample
from antipodes.functional.stream import Pass, share_out
from antipodes.functional.tensors import eager_full_precision


class Refined(NamedTuple):
    """What `refine` returns: two (R, A) tensors, one row per rule.

    Attributes:
        weight: the sum of the weights w of the pulled pairs; without gradient.
        weighted_sum: the sum of w times the similarity of anchor and candidate.
    """

    weight: Tensor
    weighted_sum: Tensor


@eager_full_precision
def refine(
    anchors: Tensor,
    candidates: Tensor | None = None,
    *,
    teachers: Tensor,
    teacher_keys: Tensor | None = None,
    anchor_ids: Tensor,
    candidate_ids: Tensor | None = None,
    temperature: float | Tensor,
    teacher_temperature: float,
    rules: Rule | Sequence[Rule],
    among: Literal["all", "others"] = "all",
    guide: Guide | None = None,
    same_sample: SameSample | None = None,
    kernel: Kernel = "auto",
    block: int | None = None,
) -> Refined:
    """Weigh the pairs that each rule pulls by what the anchors' teachers make of them.

    The arguments are those of `contrast`; first-order gradients of `weighted_sum` reach anchors and candidates.

    Args:
        anchors: (A, D), L2-normalised.
        candidates: (C, D), L2-normalised. None: the anchors themselves.
        teachers: (A, D) the embedding of every anchor's positive; taken as constants.
        teacher_keys: (C, G) the candidates as the teachers see them, where those are in a space of their own; teachers
            are (A, G) then. Zero vectors, on either side, are not known and pull nothing.
        anchor_ids: (A,) dataset ids.
        candidate_ids: (C,) dataset ids; only with candidates.
        temperature: the one of the loss, at which the rules' bounds are compared.
        teacher_temperature: of the teachers' softmax.
        rules: one rule or several; what they drop or ignore is left alone.
        among: what weights are relative to: `all`, the teacher's similarity to itself, or `others`, the largest of
            those to the pairs that are pulled.
        guide: vectors in a guide's space, as in `contrast`.
        same_sample: as in `contrast`.
        kernel: as in `contrast`.
        block: as in `contrast`.

    Raises:
        ValueError: as `contrast`, or if the teachers do not fit or their temperature is not positive.

    Example:
        >>> views = torch.nn.functional.normalize(torch.randn(8, 16), dim=1)
        >>> flagged = Rule(ceiling=torch.full((8,), 0.2), above="pull")
        >>> ids, positives = torch.arange(4).repeat(2), views.roll(4, 0)
        >>> temperatures = {"temperature": 0.1, "teacher_temperature": 0.08}
        >>> refine(views, teachers=positives, anchor_ids=ids, rules=flagged, **temperatures).weight.shape
        torch.Size([1, 8])
    """
    count = len(anchors if candidates is None else candidates)
    if teacher_keys is not None:
        fits = teachers.ndim == 2 and teacher_keys.ndim == 2 and teachers.shape[1] == teacher_keys.shape[1]
        if not fits or (len(teachers), len(teacher_keys)) != (len(anchors), count):
            shapes = f"{tuple(teachers.shape)} and {tuple(teacher_keys.shape)}"
            raise ValueError(f"teachers and teacher_keys must be ({len(anchors)}, G) and ({count}, G), got {shapes}")
    elif teachers.shape != anchors.shape:
        shapes = f"{tuple(teachers.shape)} for {tuple(anchors.shape)}"
        raise ValueError(f"teachers must hold one embedding per anchor, got {shapes}")
    if not teacher_temperature > 0:
        raise ValueError(f"teacher_temperature must be positive, got {teacher_temperature}")
    dtype = torch.float64 if anchors.dtype is torch.float64 else torch.float32
    keys = anchors if candidates is None else candidates
    keys = (keys if teacher_keys is None else teacher_keys).detach().to(dtype)
    vectors = teachers.detach().to(dtype)
    scaled = vectors / teacher_temperature
    rules = as_rules(rules)
    reference = (scaled * vectors).sum(1).expand(len(rules), -1)  # t_ii / T
    inputs = Inputs(
        anchors, candidates, anchor_ids, candidate_ids, temperature, rules, guide=guide,
        teacher=Teacher(scaled, keys, reference), same_sample=same_sample,
    )  # fmt: skip
    if among == "others":
        reference = _highest(inputs, block)
    reference = reference.masked_fill(~vectors.any(1), torch.inf)
    inputs = inputs._replace(teacher=Teacher(scaled, keys, reference))
    sums = run(inputs, "none", kernel, block)[0]
    return Refined(sums.pulled, sums.pulled_sum)


@torch.no_grad()
def _highest(inputs: Inputs, block: int | None) -> Tensor:
    """Return the largest t_ik / T of every anchor's pulled pairs, (R, A), by a pass over the tiles."""
    anchors, candidates, tau, plan = make_plan(inputs, "none", "stream", block)
    teacher = plan.teacher
    assert teacher is not None  # of `refine`
    whole = Pass(plan._replace(teacher=None), anchors, candidates, tau, {})
    like = teacher.reference

    def part(tiles: Sequence[Tile]) -> Tensor:
        highest, work = torch.full_like(like, LOWEST), whole.own()
        for tile in tiles:
            said = teacher.logits(tile.rows, tile.columns, work.buffers("said", tile.shape))
            known = teacher.candidates[tile.columns].any(1)
            for read in work.readings(tile, work.logits(tile), both=False):
                if read.pull is not None:
                    hidden = torch.gt(read.pull, 0.0, out=read.pull).mul_(known).sub_(1.0)
                    best = torch.add(said, hidden, alpha=FAR, out=hidden).amax(1)
                    highest[read.rule, tile.rows] = torch.maximum(highest[read.rule, tile.rows], best)
        return highest

    highest, *rest = share_out(plan.tiles, anchors.device, part)
    for other in rest:
        highest = torch.maximum(highest, other)
    return highest
