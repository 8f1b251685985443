"""Contrast: the sums over pairs that every objective is made of, streamed block by block.

For anchor i with temperature tau_i and similarities s_ik to candidates k, each rule gives

    log_sum_i = log sum_k W_ik exp(s_ik / tau_i)        kept_i   = sum_k W_ik
    pulled_sum_i = sum_k Y_ik s_ik                      pulled_i = sum_k Y_ik

with W (the pair counts as a negative) and Y (the pair is pulled) as in `antipodes.functional.rule`. Neither W, Y nor
the similarities ever exist as a whole: memory grows with A + C, not with A * C. The positive is not among the pairs;
with `pos` its similarity the loss of an anchor is softplus(log_sum - pos / tau), which loses no digits to cancellation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from antipodes.functional._stream import Stream, Task
from antipodes.functional._tiles import compile_rule, cut, same_id_pairs
from antipodes.functional.ranks import bounded, ranked_sums
from antipodes.functional.rule import Group, Rule
from antipodes.functional.sums import Sums, sum_dtype

_EVERY_PAIR = (Rule(),)


def contrast(
    anchors: Tensor,
    candidates: Tensor | None = None,
    *,
    anchor_ids: Tensor,
    candidate_ids: Tensor | None = None,
    temperature: float | Tensor,
    rules: Rule | Sequence[Rule] = _EVERY_PAIR,
    block: int | None = None,
) -> Sums:
    """Sum over the pairs of anchors and candidates that each rule keeps.

    Pairs with the same id never count, nor do candidates with a negative id (empty slots of a queue). First-order
    gradients of `log_sum` and `pulled_sum` reach anchors, candidates and temperature. Half precision is summed in
    float32, and float32 in float64 when the temperature is below about 0.018, where float32 would overflow.

    Args:
        anchors: (A, D), L2-normalised.
        candidates: (C, D), L2-normalised. None: the anchors themselves (the views of a batch), at half the cost.
        anchor_ids: (A,) dataset ids.
        candidate_ids: (C,) dataset ids; only with candidates.
        temperature: a number, a scalar tensor, or one number per anchor (A,).
        rules: one rule or several; several share one product of similarities.
        block: the edge of the square blocks in which pairs are visited. None: 320 on a CPU, where three blocks then
            fit into a core's cache, 4096 elsewhere.

    Returns:
        The sums, (R, A) each, in the dtype of the anchors or, when that is half precision, in float32.

    Raises:
        ValueError: a shape or dtype does not fit, an embedding is not finite, a bound is NaN, or a temperature is not
            positive or too small even for float64.

    Example:
        >>> import torch
        >>> views = torch.nn.functional.normalize(torch.randn(8, 16), dim=1)
        >>> ids = torch.arange(4).repeat(2)
        >>> sums = contrast(views, anchor_ids=ids, temperature=0.1, rules=Rule(ceiling=torch.full((8,), 1.0)))
        >>> sums.kept
        tensor([[6, 6, 6, 6, 6, 6, 6, 6]])
    """
    rules = (rules,) if isinstance(rules, Rule) else tuple(rules)
    ranks_alone = len(rules) == 1 and rules[0].ranks_alone and not isinstance(temperature, Tensor)
    if ranks_alone and candidates is not None and candidate_ids is not None and not candidates.requires_grad:
        _check(anchors, candidates, anchor_ids, candidate_ids, rules, block or 1)
        return ranked_sums(anchors, candidates, anchor_ids, candidate_ids, float(temperature), rules[0].ranks[0])
    result_dtype = torch.promote_types(anchors.dtype, torch.float32)
    anchors, candidates, tau, task = prepare(
        anchors, candidates, anchor_ids, candidate_ids, temperature, rules, block, symmetric=candidates is None
    )
    own = candidates.detach() if task.symmetric else candidates
    log_sum, kept, pulled_sum, pulled = Stream.apply(anchors, own, tau, task)  # type: ignore[no-untyped-call]
    return Sums(log_sum.to(result_dtype), kept.long(), pulled_sum.to(result_dtype), pulled.long())


def prepare(
    anchors: Tensor,
    candidates: Tensor | None,
    anchor_ids: Tensor,
    candidate_ids: Tensor | None,
    temperature: float | Tensor,
    rules: Rule | Sequence[Rule],
    block: int | None,
    symmetric: bool,
) -> tuple[Tensor, Tensor, Tensor, Task]:
    """Check the arguments of `contrast` and cut them into tiles: anchors, candidates, temperature (A,) and the task.

    Args:
        anchors: as in `contrast`, like all that follow.
        candidates: None for the anchors themselves.
        anchor_ids: (A,).
        candidate_ids: (C,).
        temperature: of the similarities.
        rules: what to keep and to pull.
        block: the edge of a tile.
        symmetric: whether tiles may stand for their mirror images, given that the candidates are the anchors.
    """
    rules = (rules,) if isinstance(rules, Rule) else tuple(rules)
    if candidates is None or candidate_ids is None:
        if candidates is not None or candidate_ids is not None:
            raise ValueError("candidates and candidate_ids go together: give both or neither")
        candidates, candidate_ids = anchors, anchor_ids
    if block is None:
        block = min(320 if anchors.device.type == "cpu" else 4096, max(len(anchors), len(candidates), 1))
    _check(anchors, candidates, anchor_ids, candidate_ids, rules, block)
    rules = bounded(rules, anchors, candidates, anchor_ids, candidate_ids)
    tau = temperature if isinstance(temperature, Tensor) else torch.tensor(temperature, dtype=torch.float64)
    tau = tau.to(anchors.device)
    if tau.shape not in ((), anchors.shape[:1]):
        raise ValueError(
            f"temperature must be a number, a scalar or one per anchor, ({len(anchors)},), got shape {tuple(tau.shape)}"
        )
    if tau.ndim or any(rule.lists for rule in rules):
        symmetric = False  # pair (i, k) and pair (k, i) differ

    dtype = sum_dtype(anchors, candidates, tau)
    if int(candidate_ids.min() if len(candidate_ids) else 0) < 0:
        symmetric = False
        filled = (candidate_ids >= 0).nonzero().squeeze(1)
        candidates, candidate_ids = candidates[filled], candidate_ids[filled]
        rules = tuple(rule.of_candidates(filled) for rule in rules)
    anchors, tau = anchors.to(dtype), tau.to(dtype).expand(len(anchors))
    candidates = anchors if symmetric else candidates.to(dtype)

    pairs = same_id_pairs(anchor_ids, candidate_ids, limit=8 * (len(anchors) + len(candidates)))
    if pairs is None:  # a list of them would outgrow the embeddings: compare ids like groups
        rules = tuple(rule & Rule(groups=(Group(anchor_ids, candidate_ids),)) for rule in rules)
    with_grad = torch.is_grad_enabled()
    task = Task(
        tiles=cut(len(anchors), len(candidates), block, symmetric, pairs),
        masks=[compile_rule(rule, tau.detach(), len(candidates), block, symmetric, pairs) for rule in rules],
        symmetric=symmetric,
        block=block,
        rows_need_grad=with_grad and (anchors.requires_grad or tau.requires_grad),
        columns_need_grad=with_grad and candidates.requires_grad,
    )
    return anchors, candidates, tau, task


def _check(
    anchors: Tensor,
    candidates: Tensor,
    anchor_ids: Tensor,
    candidate_ids: Tensor,
    rules: Sequence[Rule],
    block: int,
) -> None:
    """Refuse what does not fit together."""
    if anchors.ndim != 2 or candidates.ndim != 2 or anchors.shape[1] != candidates.shape[1]:
        raise ValueError(
            "anchors and candidates must be (A, D) and (C, D), "
            f"got {tuple(anchors.shape)} and {tuple(candidates.shape)}"
        )
    if not anchors.is_floating_point() or anchors.dtype != candidates.dtype:
        raise ValueError(
            f"anchors and candidates must share a floating dtype, got {anchors.dtype} and {candidates.dtype}"
        )
    if block < 1:
        raise ValueError(f"block must be at least 1, got {block}: it is the edge of the blocks of pairs")
    if not rules:
        raise ValueError("rules is empty: give at least one Rule(), which keeps every pair")
    _check_numbers("anchor_ids", anchor_ids, len(anchors))
    _check_numbers("candidate_ids", candidate_ids, len(candidates))
    for rule in rules:
        for name, bound in (("low", rule.low), ("high", rule.high), ("ceiling", rule.ceiling)):
            if bound is not None and bound.shape != anchors.shape[:1]:
                raise ValueError(
                    f"Rule.{name} must hold one bound per anchor, ({len(anchors)},), got shape {tuple(bound.shape)}"
                )
            if bound is not None and bool(bound.isnan().any()):
                raise ValueError(f"Rule.{name} holds NaN: use -inf or inf, or None, where there is no bound")
        if rule.above not in ("drop", "pull"):
            raise ValueError(f'Rule.above must be "drop" or "pull", got {rule.above!r}')
        for group in rule.groups:
            _check_numbers("Group.anchors", group.anchors, len(anchors))
            _check_numbers("Group.candidates", group.candidates, len(candidates))
            if group.same not in ("drop", "only", "pull"):
                raise ValueError(f'Group.same must be "drop", "only" or "pull", got {group.same!r}')
        for listed in rule.lists:
            for name, positions, count in (
                ("anchors", listed.anchors, len(anchors)),
                ("candidates", listed.candidates, len(candidates)),
            ):
                _check_numbers(f"Listed.{name}", positions, len(listed.anchors))
                if len(positions) and not 0 <= int(positions.min()) <= int(positions.max()) < count:
                    raise ValueError(f"Listed.{name} must be positions in 0..{count - 1}, got {positions.tolist()[:5]}")
            if listed.act not in ("drop", "pull"):
                raise ValueError(f'Listed.act must be "drop" or "pull", got {listed.act!r}')


def _check_numbers(name: str, numbers: Tensor, count: int) -> None:
    if numbers.shape != (count,) or numbers.is_floating_point():
        raise ValueError(f"{name} must be ({count},) integers, got {tuple(numbers.shape)} of {numbers.dtype}")
