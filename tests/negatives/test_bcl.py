"""BCL: its weights by the densities, the loss by loops over ranks, and the promises every policy keeps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from antipodes import BCL, InfoNCE
from antipodes.pairs import normalise

B = 6
CANDIDATES = 2 * (B - 1)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.floats(0, 0.4), st.floats(0.5, 0.98))
def test_the_weight_of_all_candidates_is_one_without_a_preference(tau_plus: float, alpha: float) -> None:
    """With beta = 0.5 the weights turn the mixture into true negatives: their mean over ranks is 1."""
    policy = BCL(tau_plus, alpha, beta=0.5)
    weights = [policy.weight((number + 0.5) / 4000) for number in range(4000)]
    assert sum(weights) / len(weights) == pytest.approx(1, abs=1e-3)


def test_the_weight_falls_where_false_negatives_are_likely() -> None:
    policy = BCL(0.2, alpha=0.9, beta=0.5)
    assert policy.weight(0.99) < policy.weight(0.5) < policy.weight(0.01)
    hard = BCL(0.0, alpha=0.6, beta=1.0)
    assert hard.weight(0.99) > hard.weight(0.5) > hard.weight(0.01)


def test_with_a_band_for_every_rank_it_is_the_weighted_sum() -> None:
    z1, z2 = noise(2, B, 5).requires_grad_()
    policy = BCL(0.15, 0.8, 0.7, bands=CANDIDATES)
    loss = InfoNCE(0.4, policy)(z1, z2, torch.arange(B))
    z = normalise(torch.cat((z1, z2)))
    losses = []
    for i in range(2 * B):
        positive = z[i] @ z[(i + B) % (2 * B)]
        others = sorted((k for k in range(2 * B) if k % B != i % B), key=lambda k: -(z[i] @ z[k]).item())
        shares = [1 - (rank + 0.5) / CANDIDATES for rank in range(CANDIDATES)]
        terms = [policy.weight(share) * (z[i] @ z[k] / 0.4).exp() for share, k in zip(shares, others, strict=True)]
        losses.append(((positive / 0.4).exp() + torch.stack(terms).sum()).log() - positive / 0.4)
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(torch.autograd.grad(loss, (z1, z2)), torch.autograd.grad(expected, (z1, z2)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_knowing_nothing_it_is_the_plain_loss() -> None:
    z1, z2 = noise(2, B, 5)
    loss = InfoNCE(0.4, BCL(0.1, alpha=0.5, beta=0.5))(z1, z2, torch.arange(B))
    torch.testing.assert_close(loss, InfoNCE(0.4)(z1, z2, torch.arange(B)))


def test_wrong_arguments_get_one_sentence() -> None:
    for arguments, sentence in (
        ({"tau_plus": 1.0}, "tau_plus must be in"),
        ({"alpha": 0.4}, "alpha must be in"),
        ({"beta": 1.1}, "beta must be in"),
        ({"bands": 0}, "bands must be"),
    ):
        with pytest.raises(ValueError, match=sentence):
            BCL(**arguments)  # type: ignore[arg-type]
