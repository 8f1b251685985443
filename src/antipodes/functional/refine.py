"""Refine: how much each flagged pair is pulled, decided by the anchor's positive as a teacher.

With t_ik the similarity of teacher i to candidate k, T the teacher's temperature and F_i the pairs that a rule pulls,
the softmax over the positive itself and F_i is

    p_i = 1 / (1 + sum_{k in F_i} w_ik)  for the positive,   p_ik = p_i w_ik,   w_ik = exp((t_ik - t_ii) / T)

where t_ii, the teacher's similarity to itself, is the largest there is: no weight exceeds 1 and nothing overflows.
Where the positive is left out, the weights are relative to the largest t_ik of F_i instead: however sharp the teacher,
one of them is 1. That largest one is found on the way, and what was added up before fades when it rises.
A teacher that is the zero vector knows nothing and weighs all candidates 0; a candidate whose key is zero weighs 0.
A loss needs sum_k w_ik and sum_k w_ik s_ik = anchor_i . (sum_k w_ik candidate_k). Both are collected in one pass over
the tiles of `contrast`, with its masks; the gradient of the candidates, where they want one, takes a second pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from antipodes.functional._arguments import Guide
from antipodes.functional._compiling import eager_full_precision, first_order
from antipodes.functional._masks import keep_mask, pull_mask
from antipodes.functional._shift import LOWEST
from antipodes.functional._stream import FAR, Walk
from antipodes.functional._task import Task, prepare
from antipodes.functional._tiles import Sliced, Tile
from antipodes.functional._workers import share_out
from antipodes.functional.rule import Rule
from antipodes.functional.same_sample import SameSample


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
        block: the edge of the square blocks in which pairs are visited.

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
    if teacher_keys is not None:
        count = len(anchors if candidates is None else candidates)
        if teachers.shape[:1] != anchors.shape[:1] or teacher_keys.shape != (count, *teachers.shape[1:]):
            shapes = f"{tuple(teachers.shape)} and {tuple(teacher_keys.shape)}"
            raise ValueError(f"teachers and teacher_keys must be ({len(anchors)}, G) and ({count}, G), got {shapes}")
    elif teachers.shape != anchors.shape:
        shapes = f"{tuple(teachers.shape)} for {tuple(anchors.shape)}"
        raise ValueError(f"teachers must hold one embedding per anchor, got {shapes}")
    if not teacher_temperature > 0:
        raise ValueError(f"teacher_temperature must be positive, got {teacher_temperature}")
    dtype = torch.promote_types(anchors.dtype, torch.float32)
    anchors, candidates, tau, task = prepare(
        anchors,
        candidates,
        anchor_ids,
        candidate_ids,
        temperature,
        rules,
        block,
        guide=guide,
        same_sample=same_sample,
        halve=False,
        exponentials=False,
        direct=False,
    )
    teachers = teachers.detach().to(anchors.dtype)
    if teacher_keys is not None:
        teacher_keys = teacher_keys.detach().to(anchors.dtype)
        if len(teacher_keys) != len(candidates):  # empty slots have been left out
            teacher_keys = teacher_keys[(anchor_ids if candidate_ids is None else candidate_ids) >= 0]
    weight, weighted_sum = _Function.apply(  # type: ignore[no-untyped-call]
        anchors, candidates, teachers, teacher_keys, tau.detach(), teacher_temperature, task, among == "others"
    )
    return Refined(weight.to(dtype), weighted_sum.to(dtype))


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchors: Tensor,
        candidates: Tensor,
        teachers: Tensor,
        teacher_keys: Tensor | None,
        temperature: Tensor,
        teacher_temperature: float,
        task: Task,
        rising: bool,
    ) -> tuple[Tensor, Tensor]:
        walk = _Walk(task, anchors, candidates, temperature, teachers, teacher_keys, teacher_temperature)
        ones = anchors.new_ones(len(candidates))

        def part(tiles: Sequence[Tile]) -> tuple[Tensor, Tensor, Tensor]:
            shape = (len(task.directions[0].masks), len(anchors))
            weight = anchors.new_zeros(shape)
            drawn = anchors.new_zeros(*shape, anchors.shape[1])  # (R, A, D) the weighted sum of candidates
            peak = anchors.new_full(shape, LOWEST) if rising else walk.self_similarity.expand(shape)
            own = walk.beside()
            for tile in tiles:
                for number, pull in own.pulls(tile):
                    if rising:
                        before = peak[number, tile.rows]
                        top = torch.maximum(before, own.highest(tile, pull))
                        fade = before.sub_(top).exp_()
                        weight[number, tile.rows].mul_(fade)
                        drawn[number, tile.rows].mul_(fade[:, None])
                        before.copy_(top)
                    own.weigh(tile, pull, peak[number])
                    weight[number, tile.rows].addmv_(pull, ones[tile.columns])
                    drawn[number, tile.rows].addmm_(pull, candidates[tile.columns])
            return weight, drawn, peak

        (weight, drawn, peak), *rest = share_out(walk.tiles(), anchors.device, part)
        for their_weight, their_drawn, their_peak in rest:
            top = torch.maximum(peak, their_peak)  # the same for all workers unless it rises
            fade, their_fade = ((each - top).exp_() for each in (peak, their_peak))
            weight = weight * fade + their_weight * their_fade
            drawn = drawn * fade[..., None] + their_drawn * their_fade[..., None]
            peak = top
        ctx.task, ctx.teacher_temperature = task, teacher_temperature
        ctx.save_for_backward(anchors, candidates, teachers, teacher_keys, temperature, drawn, peak)
        ctx.mark_non_differentiable(weight)
        return weight, torch.einsum("ad,rad->ra", anchors, drawn)

    @staticmethod
    @first_order
    def backward(ctx: Any, _: Tensor, on_sum: Tensor) -> tuple[Tensor | None, ...]:
        anchors, candidates, teachers, teacher_keys, temperature, drawn, peak = ctx.saved_tensors
        on_anchors = torch.einsum("ra,rad->ad", on_sum, drawn) if ctx.needs_input_grad[0] else None
        on_candidates = None
        if ctx.needs_input_grad[1]:
            walk = _Walk(ctx.task, anchors, candidates, temperature, teachers, teacher_keys, ctx.teacher_temperature)

            def part(tiles: Sequence[Tile]) -> Tensor:
                total, own = torch.zeros_like(candidates), walk.beside()
                for tile in tiles:
                    for number, pull in own.pulls(tile):
                        own.weigh(tile, pull, peak[number]).mul_(on_sum[number, tile.rows, None])
                        total[tile.columns].addmm_(pull.T, anchors[tile.rows])
                return total

            on_candidates, *rest = share_out(walk.tiles(), anchors.device, part)
            for total in rest:
                on_candidates += total
        return on_anchors, on_candidates, *(None,) * 6


class _Walk(Walk):
    """One pass over the tiles with the teachers beside the anchors."""

    def __init__(
        self,
        task: Task,
        anchors: Tensor,
        candidates: Tensor,
        temperature: Tensor,
        teachers: Tensor,
        teacher_keys: Tensor | None,
        teacher_temperature: float,
    ) -> None:
        super().__init__(task, anchors, candidates, temperature)
        scaled = teachers / teacher_temperature
        self.teachers = scaled
        self.teacher_keys = self.candidates if teacher_keys is None else Sliced(teacher_keys)
        self.self_similarity = (scaled * teachers).sum(1)  # t_ii / T
        # who is not known pulls nothing, and is not pulled
        self.knowing = teachers.any(1).to(scaled.dtype)  # (A,)
        self.known = None if teacher_keys is None else teacher_keys.any(1).to(scaled.dtype)  # (C,)

    def tiles(self) -> tuple[Tile, ...]:
        """Return the tiles to walk: none when no rule pulls anything."""
        return self.task.tiles if self.task.pulls else ()

    def pulls(self, tile: Tile) -> Iterator[tuple[int, Tensor]]:
        """Yield for every rule that pulls its number and how much of the tile's pairs is pulled."""
        block = self.block(tile, self.logits(tile))
        said = self.buffers("said", tile.shape)
        torch.mm(self.teachers[tile.rows], self.teacher_keys(tile.columns, down=True), out=said)
        for number, mask in enumerate(self.task.directions[0].masks):
            if mask.pulls:
                keep = keep_mask(mask, block, False, "keep", self.buffers)
                pull = pull_mask(mask, block, False, keep, self.buffers).mul_(self.knowing[tile.rows, None])
                yield number, pull if self.known is None else pull.mul_(self.known[tile.columns])

    def highest(self, tile: Tile, pull: Tensor) -> Tensor:
        """Return the largest t / T of every anchor's pulled pairs in the tile that `pulls` is at."""
        out = self.buffers("weights", tile.shape)
        torch.gt(pull, 0.0, out=out).sub_(1.0)
        return torch.add(self.buffers("said", tile.shape), out, alpha=FAR, out=out).amax(1)

    def weigh(self, tile: Tile, pull: Tensor, peak: Tensor) -> Tensor:
        """Multiply what is pulled by the teachers' weights, relative to the anchors' peaks."""
        weights = torch.sub(
            self.buffers("said", tile.shape), peak[tile.rows, None], out=self.buffers("weights", tile.shape)
        )
        return pull.mul_(weights.clamp_(max=0.0).exp_())  # what is above the peak of pulled pairs is not pulled
