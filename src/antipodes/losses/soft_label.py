"""`SoftLabel`: cross entropy with labels that a teacher refines, as in SANE."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from antipodes.arguments import check_numbers, check_vectors, describe
from antipodes.functional.tensors import eager_full_precision
from antipodes.losses.base import LossModule
from antipodes.losses.inputs import check_weights, share_of_training
from antipodes.losses.observation import RefinedLabels
from antipodes.losses.soft_cross_entropy import SoftCrossEntropy, soft_cross_entropy
from antipodes.losses.soft_targets import check_soft_targets
from antipodes.losses.temperature import check_temperature
from antipodes.pairs import Pairs
from antipodes.schedules import cosine

Targets = Literal["pq", "p", "q", "onehot"]


class SoftLabel(LossModule):
    """Students against keys, with labels that the momentum network's own keys refine (SANE, Eqs. 4, 5 and 8).

    1. p_i: the softmax of key i's similarities to all keys, at temperature tau * tau'; q_i: the same without itself
    2. y_i = (1 - a_i - b_i) onehot_i + a_i p_i + b_i q_i with a_i = mu max p_i / z, b_i = mu max q_i / z,
       z = 1 + mu max p_i + mu max q_i
    3. the cross entropy of a student with theta y_i + (1 - theta) y_k

    No label exists as a row over the keys: everything is streamed over blocks of them.

    Args:
        temperature: Of the students' softmax.
        tau_prime: Sharpens the labels.
        mu: Confidence in p and q, at the start and at the end of training; it moves by a cosine.
        targets: What refines the one-hot label: p, q, both, or nothing.
    """

    def __init__(
        self,
        temperature: float = 0.2,
        tau_prime: float = 0.8,
        mu: tuple[float, float] = (0.0, 1.0),
        targets: Targets = "pq",
    ) -> None:
        super().__init__()
        check_temperature(temperature)
        check_soft_targets(tau_prime, *mu)
        if targets not in get_args(Targets):
            raise ValueError(f"targets must be one of {', '.join(get_args(Targets))}, got {targets!r}")
        self.temperature = temperature
        self.tau_prime = tau_prime
        self.mu = cosine(*mu)
        self.targets = targets

    @eager_full_precision
    def forward(
        self,
        students: Tensor,
        keys: Tensor,
        key_ids: Tensor,
        label_keys: Tensor,
        theta: Tensor,
        progress: float = 1.0,
        key_rows: Tensor | None = None,
    ) -> Tensor:
        """The mean cross entropy of this rank's students.

        Args:
            students: (A, D), L2-normalised.
            keys: (C, D), L2-normalised, shared by all students, without gradient.
            key_ids: (C,) dataset indices; keys of id -1 do not count. A sample with a label has one key, the first that
                `label_keys` names: its other keys, such as stale copies in a queue, never count.
            label_keys: (2, A) the keys i and k of every student, whose labels are mixed.
            theta: (A,) the share of label i.
            progress: Share of training done.
            key_rows: (C,) where the keys' labels stand, for observers; None takes the ids.
        """
        check_students(students, keys, key_ids, label_keys, theta, key_rows)
        progress = share_of_training(progress)
        key_ids, label_keys = _one_key_per_label(key_ids, label_keys)
        columns, rows = label_keys.unique(return_inverse=True)
        teacher_temperature = self.temperature * self.tau_prime
        entropies = soft_cross_entropy(
            students,
            keys[columns],
            keys,
            columns,
            temperature=self.temperature,
            teacher_temperature=teacher_temperature,
            key_ids=key_ids,
            rows=rows,
        )
        a, b = self.weights(entropies, progress)
        by_label = (1 - a - b) * entropies.onehot + a * entropies.p + b * entropies.q
        off = (a * (1 - entropies.own_p) + b * (entropies.max_q > 0))[0]  # without other keys q is the one-hot label
        self._report({"refined_p": a[0].mean(), "refined_q": b[0].mean(), "refined_mass": off.mean()})
        places = key_ids if key_rows is None else key_rows
        self._observe(
            lambda: RefinedLabels(
                Pairs(
                    keys[label_keys[0]],
                    key_ids[label_keys[0]],
                    torch.ones_like(off),
                    keys,
                    key_ids,
                    anchor_rows=places[label_keys[0]],
                    candidate_rows=places,
                ),
                off,
                teacher_temperature,
            )
        )
        return (theta * by_label[0] + (1 - theta) * by_label[1]).mean()

    def weights(self, entropies: SoftCrossEntropy, progress: float) -> tuple[Tensor, Tensor]:
        """How much of a label comes from p and from q: each by its own confidence, after Eq. 5."""
        mu = self.mu(progress)
        of_p = mu * entropies.max_p * ("p" in self.targets)
        of_q = mu * entropies.max_q * ("q" in self.targets)
        total = 1 + of_p + of_q
        return of_p / total, of_q / total


def check_students(
    students: Tensor, keys: Tensor, key_ids: Tensor, label_keys: Tensor, theta: Tensor, key_rows: Tensor | None
) -> None:
    """Refuse what does not match."""
    check_vectors("students", students)
    check_vectors("keys", keys, students.shape[1])
    check_numbers("key_ids", key_ids, len(keys))
    if key_rows is not None:
        check_numbers("key_rows", key_rows, len(keys))
    check_weights("theta", theta, len(students))
    fits = isinstance(label_keys, Tensor) and label_keys.shape == (2, len(students))
    if not fits or label_keys.dtype != torch.int64 or not label_keys.numel():
        raise ValueError(f"label_keys must be int64 of shape (2, {len(students)}), got {describe(label_keys)}")
    if int(label_keys.min()) < 0 or int(label_keys.max()) >= len(keys):
        raise ValueError(f"label_keys must be places of keys, in 0..{len(keys) - 1}")


def _one_key_per_label(key_ids: Tensor, label_keys: Tensor) -> tuple[Tensor, Tensor]:
    """Leave every sample that has a label with one key, so that no copy of a sample is a negative of its own.

    A mixed student has two labels, and the keys of a label must be keys of the student's softmax: so a copy is left out
    for all students, not for those of its sample alone.

    Returns:
        The ids of the keys with -1 for copies, and the places of the labels' keys with the first one for all copies.
    """
    ids = key_ids[label_keys]
    samples, sample = ids.unique(return_inverse=True)
    first = label_keys.new_full(samples.shape, len(key_ids)).scatter_reduce_(
        0, sample.flatten(), label_keys.flatten(), "amin"
    )
    copies = torch.isin(key_ids, samples)
    copies[first] = False
    return key_ids.masked_fill(copies, -1), first[sample]
