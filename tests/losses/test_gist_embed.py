"""GISTEmbed: its published sums by loops, and the values and gradients of sentence-transformers' own code.

Its loss of anchor i with positive s+ has up to three kinds of candidates, each left out where the guide finds the pair
closer than the anchor's positive allows: other positives and other anchors, which are candidates of anchor i here, and
pairs of positive i with other positives, which are a second sum of the kernel.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antipodes import Guided, InfoNCE
from antipodes.functional.contrast import contrast
from antipodes.functional.rule import Bounds, Rule
from antipodes.pairs import normalise

B, TAU = 12, 0.05
IDS = torch.arange(B)
MARGINS = [("absolute", 0.0), ("absolute", 0.15), ("relative", 0.2)]


def tensors(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Anchors, positives, and what the guide makes of both: pairs that are alike, and some strangers that are, too."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(2, B, 6, generator=generator, dtype=torch.float64)
    centres = torch.randn(3, 5, generator=generator, dtype=torch.float64)[torch.arange(B) % 3]
    seen = centres + 0.7 * torch.randn(2, B, 5, generator=generator, dtype=torch.float64)
    return z[0].to(dtype), z[1].to(dtype), seen[0].to(dtype), seen[1].to(dtype)


def ours(
    anchors: Tensor, positives: Tensor, g1: Tensor, g2: Tensor, strategy: str, margin: float, kinds: tuple[bool, bool]
) -> Tensor:
    """The loss with the candidates of these kinds beside other positives: other anchors, pairs of positives."""
    relative = strategy == "relative"
    others, guides = ([anchors], [g1]) if kinds[0] else ([], [])
    ids = IDS.repeat(1 + len(others))
    if not kinds[1]:
        loss: Tensor = InfoNCE(TAU, Guided(margin, relative))(
            anchors,
            positives,
            IDS,
            candidates=torch.cat([positives, *others]),
            candidate_ids=ids,
            guide=(g1, g2),
            candidate_guide=torch.cat([g2, *guides]),
        )
        return loss
    a, p, ga, gp = (normalise(each) for each in (anchors, positives, g1, g2))
    allowed = (ga * gp).sum(1)
    rule = Rule(guide=Bounds(ceiling=allowed - margin * (allowed.abs() if relative else 1.0)))
    sums = [
        contrast(left, right, anchor_ids=IDS, candidate_ids=of, temperature=TAU, rules=rule, guide=guide).log_sum[0]
        for left, right, of, guide in (
            (a, torch.cat((p, a))[: len(ids)], ids, (ga, torch.cat((gp, ga))[: len(ids)])),
            (p, p, IDS, (gp, gp)),
        )
    ]
    return F.softplus(torch.logaddexp(*sums) - (a * p).sum(1) / TAU).mean()


def by_loops(
    anchors: Tensor, positives: Tensor, g1: Tensor, g2: Tensor, strategy: str, margin: float, kinds: tuple[bool, bool]
) -> Tensor:
    """The same, pair by pair."""
    a, p, ga, gp = (F.normalize(each, dim=1) for each in (anchors, positives, g1, g2))
    losses = []
    for i in range(B):
        allowed = float(ga[i] @ gp[i])
        bound = allowed - margin * (abs(allowed) if strategy == "relative" else 1.0)
        terms = [a[i] @ p[i]]
        for k in range(B):
            terms += [a[i] @ p[k]] if k != i and ga[i] @ gp[k] <= bound else []
            terms += [a[i] @ a[k]] if kinds[0] and k != i and ga[i] @ ga[k] <= bound else []
            terms += [p[i] @ p[k]] if kinds[1] and k != i and gp[i] @ gp[k] <= bound else []
        losses.append((torch.stack(terms) / TAU).logsumexp(0) - terms[0] / TAU)
    return torch.stack(losses).mean()


def with_gradients(function: Any, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    anchors, positives, *guides = tensors()
    leaves = anchors.requires_grad_(), positives.requires_grad_()
    loss = function(*leaves, *guides, *arguments)
    loss.backward()
    assert leaves[0].grad is not None
    assert leaves[1].grad is not None
    return loss.detach(), leaves[0].grad, leaves[1].grad


KINDS = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.parametrize("kinds", KINDS, ids=["positives", "and anchors", "and pairs of positives", "all"])
@pytest.mark.parametrize(("strategy", "margin"), MARGINS)
def test_the_published_sums(strategy: str, margin: float, kinds: tuple[bool, bool]) -> None:
    for mine, expected in zip(
        with_gradients(ours, strategy, margin, kinds), with_gradients(by_loops, strategy, margin, kinds), strict=True
    ):
        torch.testing.assert_close(mine, expected)


def test_the_guide_matters_here() -> None:
    """Or the comparisons would show nothing."""
    _, _, g1, g2 = map(F.normalize, tensors())
    flagged = (g1 @ g2.T > (g1 * g2).sum(1, keepdim=True)) & ~torch.eye(B, dtype=torch.bool)
    assert 0.05 < flagged.double().mean() < 0.5


class Reads(nn.Module):
    """A model of sentence-transformers whose embeddings are in its features already."""

    max_seq_length = 8

    def __init__(self, key: str, tokenizer: Any) -> None:
        super().__init__()
        self.key, self.tokenizer = key, tokenizer

    def __getitem__(self, place: int) -> nn.Module:
        """Its modules, of which the library looks at the first."""
        return self

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**features, "sentence_embedding": features[self.key]}


def tokenizer() -> Any:
    """A tokenizer without words, which the library asks its models for."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")


def theirs(cached: bool) -> Any:
    """sentence-transformers' loss of the same tensors; skips where the library cannot be imported."""
    try:
        from sentence_transformers.sentence_transformer.losses import CachedGISTEmbedLoss, GISTEmbedLoss
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"sentence-transformers cannot be imported (make test-oracles): {error}")

    def loss(
        anchors: Tensor, positives: Tensor, g1: Tensor, g2: Tensor, strategy: str, margin: float, kinds: Any
    ) -> Tensor:
        models_ = Reads("embedding", tokenizer()), Reads("seen", tokenizer())
        options = {"margin_strategy": strategy, "margin": margin, "temperature": TAU}
        options |= {"contrast_anchors": kinds[0], "contrast_positives": kinds[1]}
        options |= {"mini_batch_size": 5} if cached else {}
        function = (CachedGISTEmbedLoss if cached else GISTEmbedLoss)(*models_, **options)
        columns = [
            {"embedding": z, "seen": seen, "input_ids": torch.zeros(B, 1, dtype=torch.int64)}
            for z, seen in ((anchors, g1), (positives, g2))
        ]
        value: Tensor = function(columns, None)
        return value

    return loss


@pytest.mark.parametrize("cached", [False, True], ids=["plain", "cached"])
@pytest.mark.parametrize("kinds", KINDS, ids=["positives", "and anchors", "and pairs of positives", "all"])
@pytest.mark.parametrize(("strategy", "margin"), MARGINS)
def test_sentence_transformers_own_code(strategy: str, margin: float, kinds: tuple[bool, bool], cached: bool) -> None:
    function = theirs(cached)
    for mine, expected in zip(
        with_gradients(ours, strategy, margin, kinds), with_gradients(function, strategy, margin, kinds), strict=True
    ):
        torch.testing.assert_close(mine, expected)
