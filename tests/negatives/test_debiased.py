"""Debiased and HCL: the authors' estimators by loops, their limits, and the promises every policy keeps."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from antipodes import HCL, Debiased, GlobalContrastive, InfoNCE, Oracle, Ring
from antipodes.negatives import Both
from tests.reference import debiased as reference
from tests.reference.losses import same

LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
IDS = torch.arange(6)


def views(seed: int = 0, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    """Two views whose positives are the closer the smaller the noise."""
    z1, other = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return z1.clone().requires_grad_(), (z1 + noise * other).requires_grad_()


def assert_same(loss: Tensor, expected: Tensor, inputs: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(torch.autograd.grad(loss, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(ours, theirs)


SETTINGS = [(0.0, 0.1, 1.0), (0.01, 0.5, 5.0), (0.1, 0.1, 0.1), (0.1, 0.5, 1.0), (0.5, 0.1, 5.0), (0.5, 0.5, 0.1)]
"""tau_plus, temperature, noise; close positives lead to the floor."""


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 2.0])
def test_by_loops(beta: float) -> None:
    for tau_plus, temperature, noise in SETTINGS:
        z = views(noise=noise)
        expected = reference.info_nce(*z, range(6), temperature, tau_plus, beta)
        if beta == 0:
            torch.testing.assert_close(InfoNCE(temperature, Debiased(tau_plus))(*z, IDS), expected)
        assert_same(InfoNCE(temperature, HCL(tau_plus, beta))(*z, IDS), expected, z)


def test_the_floor_and_what_is_above_it_are_both_tested() -> None:
    shares = []
    for noise in (0.1, 5.0):
        loss_fn = InfoNCE(0.5, Debiased(0.5))
        loss_fn(*views(noise=noise), IDS)
        shares.append(loss_fn.stats["at_floor"])
    assert shares[0] > 0.5
    assert shares[1] < 0.5


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_joined_with_a_detector_the_rest_is_corrected(beta: float) -> None:
    z = views()
    loss = InfoNCE(0.5, Oracle(LABELS) & HCL(0.1, beta))(*z, IDS)
    expected = reference.info_nce(*z, range(6), 0.5, 0.1, beta, same(LABELS.tolist()))
    assert_same(loss, expected, z)
    torch.testing.assert_close(InfoNCE(0.5, HCL(0.1, beta) & Oracle(LABELS))(*z, IDS), expected)


def test_a_queue_by_loops() -> None:
    generator = torch.Generator().manual_seed(1)
    bank = torch.nn.functional.normalize(torch.randn(20, 4, generator=generator, dtype=torch.float64), dim=1)
    bank_ids = torch.arange(20) - 1  # one slot is empty, and some are stale copies of the anchors
    queries, keys = views()
    loss = InfoNCE(0.3, HCL(0.1, 0.7))(queries, keys, IDS, candidates=bank, candidate_ids=bank_ids)
    losses = []
    for query, key, own in zip(queries, keys, range(6), strict=True):
        query = query / query.norm()
        positive = query @ (key / key.norm())
        kept = [query @ entry for entry, other in zip(bank, bank_ids.tolist(), strict=True) if other not in (own, -1)]
        pull = (positive / 0.3).exp()
        losses.append(-(pull / (pull + reference.negative_sum(kept, positive, 0.3, 0.1, 0.7))).log())
    assert_same(loss, torch.stack(losses).mean(), (queries, keys))


def test_the_global_loss_takes_the_corrected_mean() -> None:
    z1, z2 = views()
    loss = GlobalContrastive(6, 0.5, negatives=HCL(0.1, 2.0))
    loss(z1, z2, IDS)
    unit = torch.nn.functional.normalize(torch.cat((z1, z2)), dim=1)
    for sample in range(6):
        means = []
        for row in (sample, sample + 6):
            kept = [unit[row] @ unit[k] for k in range(12) if k % 6 != sample]
            positive = unit[sample] @ unit[sample + 6]
            means.append(reference.negative_sum(kept, positive, 0.5, 0.1, 2.0).item() / 10)
        assert loss.log_u.rows[sample].exp().item() == pytest.approx(sum(means) / 2, rel=1e-5)


def test_without_bias_and_hardness_it_is_the_plain_loss() -> None:
    z = views()
    plain = InfoNCE(0.5)(*z, IDS)
    for policy in (Debiased(0.0), HCL(0.0, 0.0)):
        assert torch.equal(InfoNCE(0.5, policy)(*z, IDS), plain)
    for policy in (Debiased(1e-9), HCL(1e-9, 1e-9)):
        torch.testing.assert_close(InfoNCE(0.5, policy)(*z, IDS), plain, rtol=1e-6, atol=0)


def test_a_large_beta_leaves_the_hardest() -> None:
    z1, z2 = (z.detach() for z in views())
    unit = torch.nn.functional.normalize(torch.cat((z1, z2)), dim=1)
    similarities = (unit @ unit.T).masked_fill(IDS.repeat(2)[:, None] == IDS.repeat(2), -torch.inf)
    positives = (unit[:6] * unit[6:]).sum(1).repeat(2)
    largest = 10 * (similarities.amax(1) / 0.5).exp()
    expected = (1 + largest / (positives / 0.5).exp()).log().mean()
    torch.testing.assert_close(InfoNCE(0.5, HCL(0.0, 250.0))(z1, z2, IDS), expected, rtol=1e-2, atol=0)
    far = (InfoNCE(0.5, HCL(0.0, 3.0))(z1, z2, IDS) - expected).abs()
    assert far > (InfoNCE(0.5, HCL(0.0, 30.0))(z1, z2, IDS) - expected).abs()


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    shares=st.tuples(st.floats(0, 0.9), st.floats(0, 0.9)).map(sorted),
    betas=st.tuples(st.floats(0, 5), st.floats(0, 5)).map(sorted),
)
def test_the_loss_falls_with_what_is_taken_away_and_rises_with_hardness(
    seed: int, shares: list[float], betas: list[float]
) -> None:
    """Harder weights never lower a weighted mean. Debiasing lowers the loss of an anchor whose positive is closer than
    its negatives are on average, as everyone's is here: the second view is the first."""
    z, _ = views(seed)
    losses = [InfoNCE(0.5, HCL(share, betas[0]))(z, z, IDS).item() for share in shares]
    assert losses[1] <= losses[0] + 1e-12
    losses = [InfoNCE(0.5, HCL(shares[0], beta))(z, z, IDS).item() for beta in betas]
    assert losses[0] <= losses[1] + 1e-12


def test_single_precision_is_close_to_the_reference_near_the_edge() -> None:
    """Where almost all of the sum is taken away, digits cancel: the loss must not notice."""
    z1, z2 = views(noise=0.3)
    for tau_plus in torch.linspace(0.01, 0.9, 30).tolist():
        expected = reference.info_nce(z1, z2, range(6), 0.3, tau_plus, 1.0)
        loss = InfoNCE(0.3, HCL(tau_plus, 1.0))(z1.float(), z2.float(), IDS)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)


def test_two_that_reweigh_cannot_be_joined() -> None:
    for first, second in ((Debiased(), HCL()), (Ring() & Debiased(), HCL()), (HCL(), Oracle(LABELS) & HCL())):
        with pytest.raises(ValueError, match="cannot be joined"):
            first & second
    joined = Ring() & (Oracle(LABELS) & HCL())
    assert isinstance(joined, Both)
    assert joined.needs.reweighs


def test_wrong_arguments_get_one_sentence() -> None:
    for tau_plus in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"tau_plus must be"):
            Debiased(tau_plus)
    for beta in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="beta must be"):
            HCL(0.1, beta)
