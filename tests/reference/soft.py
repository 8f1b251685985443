"""SANE's cross entropies with the whole matrix of probabilities, in the precision of the inputs (give float64)."""

import torch
from torch import Tensor


def soft_labels(
    teachers: Tensor, keys: Tensor, own: Tensor, teacher_temperature: float, key_ids: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """onehot, p and q, (A, C) each; q is onehot when there is no other key."""
    onehot = torch.nn.functional.one_hot(own, len(keys)).to(teachers)
    logits = (teachers @ keys.T / teacher_temperature).detach().masked_fill(key_ids == -1, -torch.inf)
    without_own = logits.masked_fill(onehot.bool(), -torch.inf)
    nothing = (without_own == -torch.inf).all(1, keepdim=True)
    q = torch.where(nothing, onehot, without_own.masked_fill(nothing, 0.0).softmax(1))
    return onehot, logits.softmax(1), q


def cross_entropy(students: Tensor, keys: Tensor, target: Tensor, temperature: float, key_ids: Tensor) -> Tensor:
    """Cross entropy (A,) of the students' softmax with rows of target probabilities (A, C)."""
    logits = (students @ keys.T / temperature)[:, key_ids != -1]
    return -(target[:, key_ids != -1] * logits.log_softmax(1)).sum(1)
