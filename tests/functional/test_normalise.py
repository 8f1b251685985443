"""Rows of length 1: values and gradients, and rows that are nearly nothing or nearly too much."""

from __future__ import annotations

import torch

from antipodes.functional.normalise import normalise


def test_gradient_equals_that_of_plain_operations() -> None:
    rows = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(normalise, (rows,))
    weights = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours = torch.autograd.grad((normalise(rows) * weights).sum(), rows)[0]
    plain = torch.autograd.grad((rows / rows.norm(dim=1, keepdim=True) * weights).sum(), rows)[0]
    torch.testing.assert_close(ours, plain)


def test_rows_that_are_zero_tiny_or_huge() -> None:
    rows = torch.tensor([[0.0, 0.0], [3e-18, 4e-18], [3e30, 4e30], [1e-30, 0.0]], requires_grad=True)
    unit = normalise(rows)
    torch.testing.assert_close(unit[1:3], torch.tensor([[0.6, 0.8], [0.6, 0.8]]))
    assert unit[0].tolist() == [0.0, 0.0] == unit[3].tolist()
    unit.sum().backward()
    assert rows.grad is not None
    assert bool(rows.grad.isfinite().all())
    assert rows.grad[0].tolist() == [0.0, 0.0]


def test_what_is_not_finite_stays_so() -> None:
    rows = torch.tensor([[float("nan"), 1.0], [float("inf"), 1.0]])
    assert bool(normalise(rows).isnan().any(1).all())
    assert normalise(torch.ones(1, 4, dtype=torch.bfloat16)).dtype == torch.float32
