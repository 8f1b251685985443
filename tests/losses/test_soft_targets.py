"""Soft targets of a teacher: X-CLR, SoftCLIP, mixed labels and ReSSL, against their dense formulas in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from antipodes import GlobalContrastive, Guided, InfoNCE, PositiveAware, Refine, Sigmoid, TwoWay
from antipodes.runs.build import _build_loss
from tests.cases import every

B, TAU = 7, 0.1
IDS = torch.arange(B)


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return -(targets * logits.log_softmax(1)).sum(1).mean()


def assert_same(ours: Callable[..., Tensor], dense: Callable[..., Tensor], *leaves: Tensor) -> None:
    """The same value, and the same gradient in every leaf."""
    leaves = tuple(leaf.requires_grad_() for leaf in leaves)
    one, other = ours(*leaves), dense(*leaves)
    torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
    for mine, theirs in zip(torch.autograd.grad(one, leaves), torch.autograd.grad(other, leaves), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-7, atol=1e-10)


def without_self(matrix: Tensor) -> Tensor:
    """(2B, 2B - 1): the rows of a square matrix without its diagonal."""
    n = len(matrix)
    return matrix[~torch.eye(n, dtype=torch.bool)].view(n, n - 1)


@pytest.mark.parametrize("share", [1.0, 0.3, 0.0])
def test_the_guides_softmax_is_the_target_of_xclr_and_a_share_mixes_it_with_the_positive(share: float) -> None:
    g = draws(B, 5, seed=1)
    loss_fn = InfoNCE(TAU, Guided(margin=3.0), Refine(share=share, tau_prime=0.5, space="guide"))

    def dense(z1: Tensor, z2: Tensor) -> Tensor:
        z, seen = normalize(torch.cat((z1, z2)), dim=1), normalize(g, dim=1).repeat(2, 1)
        onehot = torch.eye(2 * B, dtype=torch.float64).roll(B, 1)
        targets = (without_self(seen @ seen.T) / (0.5 * TAU)).softmax(1)
        return soft_cross_entropy(without_self(z @ z.T) / TAU, share * targets + (1 - share) * without_self(onehot))

    assert_same(lambda z1, z2: loss_fn(z1, z2, IDS, guide=(g, g)), dense, *draws(2, B, 4))


@pytest.mark.parametrize("share", [0.7, 0.2])
def test_among_others_the_guides_softmax_is_a_share_of_the_label_however_sharp(share: float) -> None:
    g = draws(B, 5, seed=1)
    loss_fn = InfoNCE(TAU, Guided(margin=3.0), Refine(share=share, tau_prime=0.1, space="guide", among="others"))

    def dense(z1: Tensor, z2: Tensor) -> Tensor:
        z, seen = normalize(torch.cat((z1, z2)), dim=1), normalize(g, dim=1).repeat(2, 1)
        onehot = torch.eye(2 * B, dtype=torch.float64).roll(B, 1)
        others = (seen @ seen.T / (0.1 * TAU)).masked_fill(onehot.bool(), -torch.inf)
        targets = without_self(others).softmax(1)
        return soft_cross_entropy(without_self(z @ z.T) / TAU, share * targets + (1 - share) * without_self(onehot))

    assert_same(lambda z1, z2: loss_fn(z1, z2, IDS, guide=(g, g)), dense, *draws(2, B, 4))
    assert loss_fn.stats["refined_mass"] == pytest.approx(share)


@every(("temperature", "tau_prime"), [(0.1, 0.1), (0.05, 0.1), (0.01, 1.0), (0.2, 0.15)])
@every("treatment", [{"share": 0.5, "among": "others"}, {"share": 1.0, "positive": False}])
def test_a_sharp_guide_speaks_about_the_others_in_float32_as_in_float64(
    treatment: dict[str, Any], temperature: float, tau_prime: float
) -> None:
    """In 64 dimensions nobody is near: relative to the teacher itself all weights would vanish."""
    z1, z2, g = *draws(2, 16, 8), draws(16, 64, seed=1)
    ids = torch.arange(16)
    refine = Refine(tau_prime=tau_prime, space="guide", **treatment)
    found = []
    for dtype in (torch.float32, torch.float64):
        first, second = z1.to(dtype).requires_grad_(), z2.to(dtype).requires_grad_()
        loss = InfoNCE(temperature, Guided(margin=3.0), refine)(first, second, ids, guide=(g.to(dtype), g.to(dtype)))
        found.append([loss.double(), *(each.double() for each in torch.autograd.grad(loss, (first, second)))])
    for ours, exact in zip(*found, strict=True):
        assert float((ours - exact).norm() / exact.norm()) < 1e-4


def test_among_others_who_is_not_known_or_has_none_is_pulled_by_its_positive_alone() -> None:
    z1, z2, g = *draws(2, B, 4).requires_grad_(), draws(B, 5, seed=1)
    g[2] = 0.0
    treatment = Refine(share=0.5, space="guide", among="others")
    losses = InfoNCE(TAU, Guided(margin=3.0), treatment, reduction="none")(z1, z2, IDS, guide=(g, g))
    plain = InfoNCE(TAU, reduction="none")(z1, z2, IDS)
    torch.testing.assert_close(losses[[2, B + 2]], plain[[2, B + 2]])
    nobody = InfoNCE(TAU, Guided(margin=-3.0), treatment, reduction="none")(z1, z2, IDS, guide=(g, g))
    torch.testing.assert_close(nobody, plain)
    assert all(part.isfinite().all() for part in torch.autograd.grad(losses.sum(), (z1, z2)))


def test_a_great_confidence_comes_to_the_same_target() -> None:
    z1, z2, g = *draws(2, B, 4), draws(B, 5, seed=1)
    by_share, by_mu = (
        InfoNCE(TAU, Guided(margin=3.0), Refine(tau_prime=1.0, space="guide", **numbers))(z1, z2, IDS, guide=(g, g))
        for numbers in ({"share": 1.0}, {"mu": 1e12})
    )
    torch.testing.assert_close(by_share, by_mu, rtol=1e-6, atol=0)


def softclip(image: Tensor, text: Tensor, of_images: Tensor, of_texts: Tensor, tau_prime: float) -> Tensor:
    """Soft cross-modal targets by the similarities within each modality, as a guide sees them; mean of both ways."""
    logits = normalize(image, dim=1) @ normalize(text, dim=1).T / TAU
    seen = [normalize(vectors, dim=1) for vectors in (of_images, of_texts)]
    targets = [(vectors @ vectors.T / (tau_prime * TAU)).softmax(1) for vectors in seen]
    return (soft_cross_entropy(logits, targets[0]) + soft_cross_entropy(logits.T, targets[1])) / 2


def test_two_ways_with_a_guide_of_both_modalities_are_softclip() -> None:
    of_images, of_texts = draws(B, 3, seed=2), draws(B, 5, seed=3)
    g = torch.cat((normalize(of_images, dim=1), normalize(of_texts, dim=1)), dim=1)
    loss_fn = TwoWay(InfoNCE(TAU, Guided(margin=3.0), Refine(share=1.0, tau_prime=1.0, space="guide")))
    assert_same(
        lambda image, text: loss_fn(image, text, IDS, guide=(g, g)),
        lambda image, text: softclip(image, text, g, g, 1.0),
        *draws(2, B, 4),
    )


def test_each_direction_may_have_a_guide_of_its_own_modality() -> None:
    of_images, of_texts = draws(B, 3, seed=2), draws(B, 5, seed=3)
    loss_fn = InfoNCE(TAU, Guided(margin=3.0), Refine(share=1.0, tau_prime=0.6, space="guide"))

    def ours(image: Tensor, text: Tensor) -> Tensor:
        ways = ((image, text, of_images), (text, image, of_texts))
        losses = [
            loss_fn(one, other, IDS, candidates=other, candidate_ids=IDS, guide=(g, g), candidate_guide=g)
            for one, other, g in ways
        ]
        return (losses[0] + losses[1]) / 2

    assert_same(ours, lambda image, text: softclip(image, text, of_images, of_texts, 0.6), *draws(2, B, 4))


def test_a_queue_without_the_positive_is_ressl() -> None:
    keys, queue = draws(B, 4, seed=4), draws(11, 4, seed=5)
    ids = torch.arange(11) + 100
    everything = PositiveAware(margin=3.0, relative=False)
    loss_fn = InfoNCE(TAU, everything, Refine(share=1.0, tau_prime=0.4, positive=False))

    def dense(queries: Tensor) -> Tensor:
        of_queue = normalize(queue, dim=1)
        targets = (normalize(keys, dim=1) @ of_queue.T / (0.4 * TAU)).softmax(1)
        return soft_cross_entropy(normalize(queries, dim=1) @ of_queue.T / TAU, targets)

    assert_same(lambda queries: loss_fn(queries, keys, IDS, candidates=queue, candidate_ids=ids), dense, draws(B, 4))
    assert loss_fn.stats["refined_mass"] == 1


@pytest.mark.parametrize("positive", [True, False])
def test_whom_the_guide_does_not_know_it_does_not_pull(positive: bool) -> None:
    """Its label is its positive alone; without the positive it has none, and no loss."""
    z1, z2, g = *draws(2, B, 4).requires_grad_(), draws(B, 5, seed=1)
    g[2] = 0.0
    policy, space = Guided(margin=3.0), "guide"
    refined = InfoNCE(TAU, policy, Refine(share=1.0, space=space, positive=positive), reduction="none")
    losses = refined(z1, z2, IDS, guide=(g, g))
    plain = InfoNCE(TAU, reduction="none")(z1, z2, IDS)
    expected = plain[[2, B + 2]] if positive else torch.zeros(2, dtype=torch.float64)
    torch.testing.assert_close(losses[[2, B + 2]], expected)
    assert bool((losses != plain)[:2].all())
    assert all(part.isfinite().all() for part in torch.autograd.grad(losses.sum(), (z1, z2)))


def test_an_empty_queue_without_the_positive_stays_finite() -> None:
    queries = draws(B, 4).requires_grad_()
    everything = PositiveAware(margin=3.0, relative=False)
    loss_fn = InfoNCE(TAU, everything, Refine(share=1.0, positive=False))
    empty = torch.full((5,), -1)
    loss = loss_fn(queries, draws(B, 4, seed=4), IDS, candidates=draws(5, 4), candidate_ids=empty)
    assert loss == 0
    assert not torch.autograd.grad(loss, queries)[0].any()


def test_a_global_loss_takes_the_same_labels() -> None:
    z1, z2, g = *draws(2, B, 4), draws(B, 5, seed=1)
    refine = Refine(share=1.0, tau_prime=1.0, space="guide")
    loss_fn = GlobalContrastive(B, TAU, gamma=1.0, negatives=Guided(margin=3.0), treatment=refine)
    plain = GlobalContrastive(B, TAU, gamma=1.0)
    pulled = plain(z1, z2, IDS) - loss_fn(z1, z2, IDS, guide=(g, g))
    z, seen = normalize(torch.cat((z1, z2)), dim=1), normalize(g, dim=1).repeat(2, 1)
    targets = (without_self(seen @ seen.T) / TAU).softmax(1)
    expected = (targets * without_self(z @ z.T)).sum(1).mean() - (z * z.roll(B, 0)).sum(1).mean()
    torch.testing.assert_close(pulled, expected)


def test_the_options_of_a_run_become_the_treatment() -> None:
    config = {
        "method": {"name": "simclr"}, "loss": {"name": "info-nce"}, "treatment": "refine",
        "refine_mu": 1.0, "refine_tau_prime": 0.4, "refine_share": 1.0, "refine_positive": False,
        "refine_among": "all",
    }  # fmt: skip
    given = {"num_samples": 9}
    loss_fn = _build_loss(config, given, PositiveAware(), ["info-nce"])
    assert loss_fn.soft_targets == Refine(tau_prime=0.4, share=1.0, positive=False)


@every(
    ("numbers", "sentence"),
    [
        ({"share": 1.5}, r"share must be in \[0, 1\], got 1.5"),
        ({"share": math.nan}, r"share must be"),
        ({"share": 0.5, "mu": 2.0}, "share takes the place of mu: leave mu out"),
        ({"positive": False}, "give share=1.0 with positive=False"),
        ({"among": "some"}, "among must be all or others, got 'some'"),
        ({"among": "others"}, "give a share below 1 with among='others'"),
        ({"among": "others", "share": 1.0}, "give a share below 1 with among='others'"),
    ],
)
def test_refuses_labels_that_make_no_sense(numbers: dict[str, float], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Refine(**numbers)  # type: ignore[arg-type]


def test_a_sigmoid_has_no_share_of_others() -> None:
    with pytest.raises(ValueError, match="asks about each pair by itself"):
        Sigmoid(negatives=Guided(margin=0.1), treatment=Refine(share=0.5, among="others"))
