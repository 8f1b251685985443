"""Cross entropies with soft targets over many keys, as SANE's refined labels needs them, without the A x C matrix.

1. A softmax over the keys enters a cross entropy only by its log-sum and by its mean key: with logits x.key/tau,
   sum_k p_k x.key_k / tau = x.(sum_k p_k key_k) / tau. Both are collected in one pass over blocks of keys, with a
   running maximum. The student's mean key is also the gradient of its log-sum.
2. The own key stays outside those sums and joins at the end, in float64 on one number per row: the cross entropy
   with the own key stays exact when it is tiny, and q (the teacher's softmax without the own key) costs nothing extra.
3. The gradient of the students is then a combination of mean keys; only that of the keys computes the blocks again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from antipodes.functional.tensors import NotFinite, eager_full_precision, first_order

BLOCK = 1024


class SoftCrossEntropy(NamedTuple):
    """Cross entropies of the students with three targets, in the shape of the teacher rows, (A,) or (2, A).

    Cross entropy is linear in its target, so a refined label y = (1 - a - b) onehot + a p + b q costs
    (1 - a - b) * onehot + a * p + b * q. The maxima are what a and b are made of; these and `own_p` have no gradient.

    Attributes:
        onehot: with the teacher row's own key as the target.
        p: with the teacher row's softmax over all keys.
        q: with the teacher row's softmax over all keys but its own; equals ``onehot`` when there is no other key.
        max_p: the largest probability in p.
        max_q: the largest probability in q; 0 when there is no other key.
        own_p: the probability of the own key in p.
    """

    onehot: Tensor
    p: Tensor
    q: Tensor
    max_p: Tensor
    max_q: Tensor
    own_p: Tensor


@eager_full_precision
def soft_cross_entropy(
    students: Tensor,
    teachers: Tensor,
    keys: Tensor,
    own_columns: Tensor,
    *,
    temperature: float,
    teacher_temperature: float,
    key_ids: Tensor | None = None,
    rows: Tensor | None = None,
) -> SoftCrossEntropy:
    """Cross entropies of softmax(students . keys / temperature) with targets made from the teachers' similarities.

    The teacher row p_t is softmax(teachers_t . keys / teacher_temperature); SANE's teacher_temperature is tau * tau'.

    Args:
        students: (A, D), L2-normalised; receives a gradient.
        teachers: (T, D), L2-normalised; taken as constants.
        keys: (C, D), L2-normalised, shared by all rows; receives a gradient if it asks for one.
        own_columns: (T,) the column of the own key of every teacher row.
        temperature: of the students.
        teacher_temperature: of the teachers.
        key_ids: (C,) optional; keys of id -1 (empty queue slots) never count.
        rows: (A,) the teacher row of every student, or (2, A) two of them, as mixup needs; the second costs nothing.
            None: one student per teacher, in the same order.

    Raises:
        ValueError: if shapes do not fit, a temperature is not positive, an own key is missing or a value not finite.

    Example:
        >>> keys = torch.nn.functional.normalize(torch.randn(6, 4), dim=1)
        >>> students = keys[:3].clone().requires_grad_()
        >>> own_columns = torch.arange(3)
        >>> sums = soft_cross_entropy(students, keys[:3], keys, own_columns, temperature=0.2, teacher_temperature=0.16)
        >>> a = 0.5 * sums.max_p / (1 + 0.5 * sums.max_p + 0.5 * sums.max_q)
        >>> b = 0.5 * sums.max_q / (1 + 0.5 * sums.max_p + 0.5 * sums.max_q)
        >>> ((1 - a - b) * sums.onehot + a * sums.p + b * sums.q).mean().backward()
    """
    if rows is None:
        rows = torch.arange(len(own_columns), device=own_columns.device)
    _check(students, teachers, keys, own_columns, key_ids, rows)
    for name, value in (("temperature", temperature), ("teacher_temperature", teacher_temperature)):
        if not value > 0:
            raise ValueError(f"{name} must be positive, got {value}: similarities are divided by it")
    if key_ids is not None and bool((key_ids < 0).any()):
        written = key_ids >= 0
        if not bool(written[own_columns].all()):
            raise ValueError("own_columns points at a key of a negative id, an empty slot: every row needs its own key")
        keys, own_columns = keys[written], (written.cumsum(0) - 1)[own_columns]
    for name, embeddings in (("students", students), ("teachers", teachers), ("keys", keys)):
        if not bool(embeddings.detach().sum().isfinite()):
            raise NotFinite(f"{name} contain a value that is not finite: check the encoder's output")
    dtype = torch.promote_types(torch.promote_types(students.dtype, keys.dtype), torch.float32)
    outputs = _Function.apply(  # type: ignore[no-untyped-call]
        students.to(dtype),
        keys.to(dtype),
        teachers.detach().to(dtype),
        own_columns,
        rows if rows.ndim == 2 else rows[None],
        temperature,
        teacher_temperature,
    )
    return SoftCrossEntropy(*(output.view(rows.shape) for output in outputs))


class _Function(torch.autograd.Function):
    """``rows`` (R, A) are the teacher rows that every student is compared with, R = 1 or 2."""

    @staticmethod
    def forward(
        ctx: Any,
        students: Tensor,
        keys: Tensor,
        teachers: Tensor,
        own_columns: Tensor,
        rows: Tensor,
        temperature: float,
        teacher_temperature: float,
    ) -> tuple[Tensor, ...]:
        students, teachers = students / temperature, teachers / teacher_temperature
        peak_q, log_sum_q, mean_q = _attend(teachers, keys, own_columns[None])
        if len(keys) == 1:  # nothing but the own key: q falls back to it
            mean_q = keys.expand_as(mean_q)
        p_own = torch.sigmoid(_dot(teachers, keys[own_columns]) - log_sum_q)
        max_q = (peak_q - log_sum_q).exp().nan_to_num(0.0)
        max_p = p_own.maximum((1 - p_own) * max_q)

        columns = own_columns[rows]  # (R, A); these keys are outside the students' sums
        own_keys = keys[columns]  # (R, A, D)
        _, log_rest, mean_rest = _attend(students, keys, columns)
        logit = _dot(students, own_keys)
        other = logit.flip(0).masked_fill(columns == columns.flip(0), -torch.inf)  # the own key of the other row
        onehot = softplus(torch.logaddexp(log_rest, other) - logit, threshold=40)
        log_sum = (logit + onehot)[0]
        share, share_other = (log_rest - log_sum).exp(), (other - log_sum).exp()[0]
        mean = (
            share[:, None] * mean_rest + (-onehot[0]).exp()[:, None] * own_keys[0] + share_other[:, None] * own_keys[-1]
        ).to(students.dtype)
        gap = _dot(students, own_keys - mean_q[rows])  # by which the cross entropy with q exceeds that with onehot

        ctx.temperature = temperature
        ctx.save_for_backward(
            students, keys, teachers, own_columns, rows, p_own[rows], own_keys, mean_q, mean, log_sum, log_sum_q
        )
        outputs = (onehot, onehot + (1 - p_own[rows]) * gap, onehot + gap, max_p[rows], max_q[rows], p_own[rows])
        onehot, p, q, *constants = (output.to(students.dtype) for output in outputs)
        ctx.mark_non_differentiable(*constants)
        return onehot, p, q, *constants

    @staticmethod
    @first_order
    def backward(ctx: Any, on_onehot: Tensor, on_p: Tensor, on_q: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        students, keys, teachers, own_columns, rows, p_own, own_keys, *rest = ctx.saved_tensors
        mean_q, mean, log_sum, log_sum_q = rest
        on_softmax = (on_onehot + on_p + on_q).sum(0)[:, None]
        weight_q = (on_p * (1 - p_own) + on_q).to(students.dtype)[:, :, None]
        weight_own = (on_onehot + on_p * p_own).to(students.dtype)[:, :, None]
        on_students = on_keys = None
        if ctx.needs_input_grad[0]:
            pulls = (weight_q * mean_q[rows] + weight_own * own_keys).sum(0)
            on_students = (on_softmax * mean - pulls) / ctx.temperature
        if ctx.needs_input_grad[1]:
            if len(keys) == 1:  # q was the own key
                weight_q, weight_own = torch.zeros_like(weight_q), weight_own + weight_q
            pushed = on_softmax * students
            pulled = torch.zeros_like(teachers).index_add_(0, rows.flatten(), (weight_q * students).flatten(0, 1))
            log_sum, log_sum_q = log_sum.to(keys.dtype), log_sum_q.to(keys.dtype).nan_to_num(neginf=0.0)
            on_keys = torch.empty_like(keys)
            for start in range(0, len(keys), BLOCK):
                part = keys[start : start + BLOCK]
                softmax = (students @ part.T).sub_(log_sum[:, None]).exp_()
                q = _hide(teachers @ part.T, own_columns[None] - start).sub_(log_sum_q[:, None]).exp_()
                on_keys[start : start + BLOCK] = softmax.T @ pushed - q.T @ pulled
            on_keys.index_add_(0, own_columns[rows].flatten(), (weight_own * students).flatten(0, 1), alpha=-1)
        return on_students, on_keys, None, None, None, None, None


def _attend(queries: Tensor, keys: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax of queries . keys without the ``hidden`` (T, A) columns: its peak (A,), log-sum (A,), mean key (A, D)."""
    lowest = torch.finfo(queries.dtype).min
    peak = queries.new_full((len(queries),), -torch.inf)
    total, mean = torch.zeros_like(peak), torch.zeros_like(queries)
    for start in range(0, len(keys), BLOCK):
        part = keys[start : start + BLOCK]
        weights = _hide(queries @ part.T, hidden - start)
        higher = peak.maximum(weights.amax(1))
        shift = higher.clamp(min=lowest)  # a row of hidden keys only has no peak yet
        weights.sub_(shift[:, None]).exp_()
        fade = (peak - shift).exp()
        total = total * fade + weights.sum(1)
        mean = torch.addmm(mean * fade[:, None], weights, part)
        peak = higher
    log_sum = total.double().log() + peak.double()
    return peak.double(), log_sum, mean / total.clamp(min=torch.finfo(total.dtype).tiny)[:, None]


def _hide(logits: Tensor, hidden: Tensor) -> Tensor:
    for columns in hidden:
        here = ((columns >= 0) & (columns < logits.shape[1])).nonzero().squeeze(1)
        logits[here, columns[here]] = -torch.inf
    return logits


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a.double() * b.double()).sum(-1)


def _check(
    students: Tensor, teachers: Tensor, keys: Tensor, own_columns: Tensor, key_ids: Tensor | None, rows: Tensor
) -> None:
    if any(tensor.ndim != 2 or tensor.shape[1] != students.shape[1] for tensor in (students, teachers, keys)):
        shapes = ", ".join(str((*tensor.shape,)) for tensor in (students, teachers, keys))
        raise ValueError(f"students (A, D), teachers (T, D) and keys (C, D) do not match, got {shapes}")
    indices = (
        ("own_columns", own_columns, ((len(teachers),),), len(keys), "key per teacher"),
        ("rows", rows, ((len(students),), (2, len(students))), len(teachers), "teacher (or two) per student"),
    )
    for name, index, shapes_allowed, size, what in indices:
        if index.shape not in shapes_allowed or index.dtype != torch.int64:
            needed = " or ".join(str(shape) for shape in shapes_allowed)
            got = f"{(*index.shape,)} of {index.dtype}"
            raise ValueError(f"{name} must be int64 of shape {needed}, one {what}, got {got}")
        if index.numel() and (int(index.min()) < 0 or int(index.max()) >= size):
            raise ValueError(f"{name} must be in 0..{size - 1}, got {int(index.min())}..{int(index.max())}")
    if key_ids is not None and key_ids.shape != keys.shape[:1]:
        raise ValueError(f"key_ids needs one id per key ({len(keys)}), got {(*key_ids.shape,)}")
