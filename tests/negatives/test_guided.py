"""PositiveAware and Guided: bounds by hand, values and gradients by loops, and the promises every policy keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from antipodes import Guided, InfoNCE, PositiveAware, Ring
from antipodes.losses import Treatment
from antipodes.negatives import Policy
from antipodes.pairs import Guide, Pairs, normalise

B = 7


def circle(*degrees: float) -> Tensor:
    angles = torch.tensor(degrees).deg2rad()
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def flagged(policy: Policy, pairs: Pairs) -> list[int]:
    return policy.flags(pairs).candidates.tolist()


@pytest.mark.parametrize(
    ("positive", "policy", "count"),
    [
        (0.8, PositiveAware(0.0), 3),  # cosines of 10, 20, 30 degrees exceed 0.8
        (0.8, PositiveAware(0.1, relative=True), 4),  # 0.72, and cos 40 = 0.766
        (0.8, PositiveAware(0.31, relative=False), 6),  # 0.49, and cos 60 = 0.5
        (-0.55, PositiveAware(0.0, relative=True), 12),  # all but cos 130 = -0.643
        (-0.55, PositiveAware(0.2, relative=True), 13),  # -0.66: a share of |s+|, or the bound would rise to -0.44
    ],
    ids=str,
)
def test_positive_aware_by_hand(positive: float, policy: Policy, count: int) -> None:
    keys = circle(*(10.0 * number for number in range(1, 14)))  # 10 to 130 degrees
    pairs = Pairs(circle(0.0), torch.tensor([99]), torch.tensor([positive]), keys, torch.arange(13))
    assert flagged(policy, pairs) == list(range(count))


def test_guided_by_hand() -> None:
    """The guide sees other angles than the embeddings."""
    pairs = Pairs(
        circle(0.0, 90.0),
        torch.tensor([50, 51]),
        torch.tensor([0.1, 0.1]),
        circle(0.0, 45.0, 90.0, 180.0),
        torch.arange(4),
        guide=Guide(circle(0.0, 180.0), circle(60.0, 40.0)[:, 0], circle(10.0, 70.0, 150.0, 59.0)),
    )
    # anchor 0: bound cos 60 = 0.5, above it are 10 and 59 degrees; anchor 1: bound cos 40, above it is 150 (30 away)
    flags = Guided().flags(pairs)
    assert list(zip(flags.anchors.tolist(), flags.candidates.tolist(), strict=True)) == [(0, 0), (0, 3), (1, 2)]
    flags = Guided(margin=0.2).flags(pairs)  # 0.3 admits 70 degrees (0.342)
    assert flags.candidates[flags.anchors == 0].tolist() == [0, 1, 3]
    flags = PositiveAware(0.4, relative=True, guide=True).flags(pairs)
    assert flags.candidates[flags.anchors == 0].tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("name", "queue", "treatment"),
    [("positive", False, "attract"), ("guided", True, "eliminate"), ("guided positive", False, "eliminate")],
)
def test_values_and_gradients_by_loops(name: str, queue: bool, treatment: Treatment) -> None:
    z1, z2 = noise(2, B, 5).requires_grad_()
    g1, g2 = noise(2, B, 3, seed=1)
    keys, guide_keys, key_ids = noise(11, 5, seed=2), noise(11, 3, seed=3), torch.arange(11) - 1
    ids = torch.arange(B)
    policies: dict[str, Policy] = {
        "positive": PositiveAware(0.1, relative=False),
        "guided": Guided(0.05),
        "guided positive": PositiveAware(0.2, guide=True),
    }
    more: dict[str, Any] = (
        {"candidates": keys, "candidate_ids": key_ids, "candidate_guide": guide_keys} if queue else {}
    )
    loss = InfoNCE(0.3, policies[name], treatment)(z1, z2, ids, guide=(g1, g2), **(more if queue else {}))

    anchors, seen = normalise(z1 if queue else torch.cat((z1, z2))), normalise(g1 if queue else torch.cat((g1, g2)))
    others, others_seen = (normalise(keys), normalise(guide_keys)) if queue else (anchors, seen)
    other_ids = key_ids if queue else ids.repeat(2)
    copies = 1 if queue else 2
    positives = (normalise(z1) * normalise(z2)).sum(1).repeat(copies)
    guide_positives = (normalise(g1) * normalise(g2)).sum(1).repeat(copies)
    losses = []
    for i in range(len(anchors)):
        allowed = [k for k in range(len(others)) if other_ids[k] not in (-1, ids.repeat(2)[i])]
        own, guided = positives[i].item(), guide_positives[i].item()
        bound = {"positive": own - 0.1, "guided": guided - 0.05, "guided positive": guided - 0.2 * abs(guided)}[name]
        score = (anchors @ others.T if name == "positive" else seen @ others_seen.T).detach()
        false = [k for k in allowed if score[i, k] > bound]
        kept = [k for k in allowed if k not in false or treatment == "attract"]
        logits = torch.stack([positives[i], *(anchors[i] @ others[k] for k in kept)]) / 0.3
        pulled = torch.stack([positives[i], *(anchors[i] @ others[k] for k in false)])
        losses.append(logits.logsumexp(0) - (pulled.mean() if treatment == "attract" else positives[i]) / 0.3)
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(torch.autograd.grad(loss, (z1, z2)), torch.autograd.grad(expected, (z1, z2)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_hard_but_not_false() -> None:
    z1, z2 = noise(2, B, 5)
    loss_fn = InfoNCE(0.3, Ring((0.5, 0.5), 0.0) & Guided(), "eliminate")
    loss_fn(z1, z2, torch.arange(B), guide=(z1, z1))  # the guide's positive is itself: nothing exceeds it
    assert loss_fn.stats["kept_per_anchor"] == 6  # half of the 12 candidates
    loss_fn(z1, z2, torch.arange(B), guide=(z1, -z1))  # the guide's positive is the opposite: everything exceeds it
    assert loss_fn.stats["kept_per_anchor"] == 0


def one_step(rank: int, world_size: int, name: str) -> tuple[Tensor, Tensor]:
    part = slice(8 * rank // world_size, 8 * (rank + 1) // world_size)
    z1, z2 = (z[part].clone().requires_grad_() for z in noise(2, 8, 5))
    g1, g2 = (g[part] for g in noise(2, 8, 3, seed=1))
    policies: dict[str, Policy] = {"guided": Guided(0.1), "share": Guided(alpha=0.2), "positive": PositiveAware(0.1)}
    policy = policies[name]
    loss = InfoNCE(0.1, policy, "attract")(z1, z2, torch.arange(8)[part], guide=(g1, g2))
    return loss.detach() / world_size, torch.stack(torch.autograd.grad(loss, (z1, z2))) / world_size


def test_a_share_is_what_the_guide_finds_nearest() -> None:
    """Of ten candidates three, by the guide's angles; what it does not know, or finds opposite, is never near."""
    seen = circle(*(14.0 * number for number in range(10)))  # 0 to 126 degrees
    pairs = Pairs(
        circle(0.0), torch.tensor([99]), torch.tensor([0.5]), circle(*range(10)), torch.arange(10),
        guide=Guide(circle(0.0), torch.ones(1), seen.flip(0)),
    )  # fmt: skip
    assert flagged(Guided(alpha=0.3), pairs) == [7, 8, 9]
    unknown = replace(pairs, guide=Guide(circle(0.0), torch.ones(1), torch.cat((-seen[:8], torch.zeros(2, 2)))))
    assert unknown.guide is not None
    assert flagged(Guided(alpha=0.3), unknown) == [7]  # -cos 98 > 0; the zero vectors come next and are nobody's
    stranger = replace(pairs, guide=Guide(torch.zeros(1, 2), torch.ones(1), seen))
    assert flagged(Guided(alpha=0.3), stranger) == []
    with pytest.raises(ValueError, match="alpha takes the place of the margin"):
        Guided(margin=0.1, alpha=0.1)
    with pytest.raises(ValueError, match=r"alpha must be in \(0, 1\)"):
        Guided(alpha=1.5)


@pytest.mark.parametrize("treatment", ["eliminate", "attract"])
def test_a_share_by_loops(treatment: Treatment) -> None:
    z, keys = noise(B, 5), noise(11, 5, seed=2)
    g, guide_keys = noise(B, 3, seed=1), noise(11, 3, seed=3)
    leaf, other = z.clone().requires_grad_(), z.clone().requires_grad_()
    positive, ids = noise(B, 5, seed=4), torch.arange(B)
    more: dict[str, Any] = {"candidates": keys, "candidate_ids": torch.arange(20, 31), "candidate_guide": guide_keys}
    loss = InfoNCE(0.3, Guided(alpha=0.25), treatment)(leaf, positive, ids, guide=(g, g), **more)
    seen = normalise(g) @ normalise(guide_keys).T
    losses = []
    for i in range(B):
        false = [k for k in seen[i].argsort(descending=True).tolist()[:3] if seen[i, k] > 0]  # round(0.25 * 11)
        own = normalise(other)[i] @ normalise(positive)[i]
        similarities = normalise(keys) @ normalise(other)[i]
        kept = [k for k in range(11) if k not in false or treatment == "attract"]
        pulled = torch.stack([own, *(similarities[k] for k in false)]).mean() if treatment == "attract" else own
        losses.append((torch.stack([own, *(similarities[k] for k in kept)]) / 0.3).logsumexp(0) - pulled / 0.3)
    expected = torch.stack(losses).mean()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, leaf), torch.autograd.grad(expected, other))


def test_start_and_refusals() -> None:
    z1, z2 = noise(2, B, 5)
    loss_fn = InfoNCE(0.1, Guided(start=0.5))
    loss_fn(z1, z2, progress=0.4)  # no guide needed yet
    assert loss_fn.stats["flagged_share"] == 0
    with pytest.raises(ValueError, match="Guided compares in the space of a guide"):
        loss_fn(z1, z2, progress=0.6)
    with pytest.raises(ValueError, match=r"guide must be two \(7, G\)"):
        loss_fn(z1, z2, progress=0.6, guide=(z1[:3], z2))
    with pytest.raises(ValueError, match="give candidate_guide"):
        loss_fn(z1, z2, torch.arange(B), candidates=z1, candidate_ids=torch.arange(B), guide=(z1, z2), progress=0.6)
    with pytest.raises(ValueError, match="margin must be"):
        PositiveAware(float("nan"))
    with pytest.raises(ValueError, match="start must be in"):
        Guided(start=2)
