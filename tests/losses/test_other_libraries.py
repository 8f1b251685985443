"""The same numbers as the libraries whose losses these are, where they can be imported beside this torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from antipodes import InfoNCE, Sigmoid, TwoWay
from tests.integrations.peers import open_clip_losses

B = 9
IDS = torch.arange(B)


def embeddings() -> tuple[torch.Tensor, torch.Tensor]:
    first, second = F.normalize(torch.randn(2, B, 6, generator=torch.Generator().manual_seed(0)), dim=2)
    return first, second


def test_clip_by_its_published_formula() -> None:
    first, second = embeddings()
    logits = first @ second.T / 0.07
    expected = (F.cross_entropy(logits, IDS) + F.cross_entropy(logits.T, IDS)) / 2
    torch.testing.assert_close(TwoWay(InfoNCE(0.07))(first, second, IDS), expected)


def test_siglip_by_its_published_formula() -> None:
    first, second = embeddings()
    signs = 2 * torch.eye(B) - 1
    expected = -F.logsigmoid(signs * (first @ second.T * 10 - 10)).sum() / B
    loss = Sigmoid(0.1, -10.0, learnable=False)(first, second, IDS, candidates=second, candidate_ids=IDS)
    torch.testing.assert_close(loss, expected)


def test_open_clip() -> None:
    losses = open_clip_losses()
    first, second = embeddings()
    clip = losses.ClipLoss()(first, second, torch.tensor(1 / 0.07))
    torch.testing.assert_close(TwoWay(InfoNCE(0.07))(first, second, IDS), clip)
    siglip = losses.SigLipLoss()(first, second, torch.tensor(10.0), torch.tensor(-10.0))
    loss = Sigmoid(0.1, -10.0, learnable=False)(first, second, IDS, candidates=second, candidate_ids=IDS)
    torch.testing.assert_close(loss, siglip)


def test_sentence_transformers() -> None:
    try:
        from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"sentence-transformers cannot be imported (make test-oracles): {error}")
    first, second = embeddings()
    theirs = MultipleNegativesRankingLoss(torch.nn.Identity(), scale=20.0)
    expected = theirs.compute_loss_from_embeddings([first, second], None)
    loss = InfoNCE(0.05)(first, second, IDS, candidates=second, candidate_ids=IDS)
    torch.testing.assert_close(loss, expected)
