"""A guide's vector as one more view, against its dense formula in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from antipodes import FNC, Distillation, GlobalContrastive, Guided, InfoNCE, Refine, Sigmoid, TwoWay
from antipodes.losses import Loss

B, D, WEIGHT, TAU = 7, 5, 0.6, 0.15
IDS = torch.tensor([3, 1, 4, 1, 5, 9, 2])  # two rows show one sample


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def term(anchors: Tensor, own: Tensor, ids: Tensor, keys: Tensor, key_ids: Tensor) -> Tensor:
    """The mean over anchors of what the view adds, in one dense softmax."""
    anchors, own, keys = (normalize(each, dim=1) for each in (anchors, own, keys))
    others = (anchors @ keys.T / TAU).masked_fill(ids[:, None] == key_ids, -torch.inf)
    positive = (anchors * own).sum(1, keepdim=True) / TAU
    return -WEIGHT * torch.cat((positive, others), 1).log_softmax(1)[:, 0].mean()


def assert_adds(loss_fn: Loss | TwoWay, call: Callable[..., Tensor], dense: Callable[..., Tensor]) -> None:
    """The loss with the view is the one without it and the term, in value and in gradient."""
    leaves = tuple(leaf.requires_grad_() for leaf in draws(2, B, D))
    plain = copy.deepcopy(loss_fn)
    for part in plain.modules():
        if isinstance(part, Loss):
            part.distill = None
    one, other = call(loss_fn, *leaves), call(plain, *leaves) + dense(*leaves)
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    for mine, theirs in zip(torch.autograd.grad(one, leaves), torch.autograd.grad(other, leaves), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize(
    "build",
    [
        lambda view: InfoNCE(0.2, distill=view),
        lambda view: InfoNCE(0.2, FNC(0.3), "attract", distill=view),
        lambda view: InfoNCE(0.2, Guided(alpha=0.3), Refine(share=0.5, space="guide", among="others"), distill=view),
        lambda view: GlobalContrastive(10, 0.2, distill=view).double(),
        lambda view: Sigmoid(0.2, distill=view).double(),
    ],
    ids=["plain", "attracted", "refined", "global", "sigmoid"],
)
def test_in_a_batch_both_views_find_their_sample_among_the_guides_vectors(
    build: Callable[[Distillation], Loss],
) -> None:
    seen = draws(B, D, seed=1)
    loss_fn = build(Distillation(WEIGHT, TAU))
    ids = IDS.repeat(2)
    assert_adds(
        loss_fn,
        lambda loss, z1, z2: loss(z1, z2, IDS, guide=(seen, seen), progress=1.0),
        lambda z1, z2: term(torch.cat((z1, z2)), seen.repeat(2, 1), ids, seen.repeat(2, 1), ids),
    )
    assert loss_fn.stats["distill"] > 0


def test_with_a_queue_the_others_are_the_guides_vectors_of_its_entries() -> None:
    seen, queue, of_queue = draws(B, D, seed=1), draws(9, D, seed=2), draws(9, D, seed=3)
    queue_ids = torch.tensor([1, 20, 21, 22, 23, 24, 25, 26, -1])  # a sample of the batch, and an empty slot
    filled = slice(8)

    def call(loss: Loss, z1: Tensor, z2: Tensor) -> Tensor:
        with_guide = {"guide": (seen, seen), "candidate_guide": of_queue}
        return loss(z1, z2, IDS, candidates=queue, candidate_ids=queue_ids, **with_guide)

    assert_adds(
        InfoNCE(0.2, distill=Distillation(WEIGHT, TAU)),
        call,
        lambda z1, z2: term(z1, seen, IDS, of_queue[filled], queue_ids[filled]) + 0 * z2.sum(),
    )


def test_of_two_modalities_each_finds_the_guides_vector() -> None:
    first, second = draws(2, B, D, seed=1)
    assert_adds(
        TwoWay(InfoNCE(0.2, distill=Distillation(WEIGHT, TAU))),
        lambda loss, z1, z2: loss(z1, z2, IDS, guide=(first, second)),
        lambda z1, z2: (term(z1, second, IDS, second, IDS) + term(z2, first, IDS, first, IDS)) / 2,
    )


def test_who_is_not_known_to_the_guide_is_left_alone() -> None:
    seen = draws(B, D, seed=1)
    seen[2] = 0
    z1, z2 = (leaf.requires_grad_() for leaf in draws(2, B, D))
    losses = [InfoNCE(0.2, distill=view)(z1, z2, IDS, guide=(seen, seen)) for view in (Distillation(WEIGHT, TAU), None)]
    (of_view,) = torch.autograd.grad(losses[0] - losses[1], z1)
    assert float(of_view[2].abs().max()) < 1e-12 < 1e-4 < float(of_view[3].abs().max())


def test_it_moves_embeddings_to_where_the_guide_has_them() -> None:
    seen = normalize(draws(32, 8, seed=1), dim=1)
    z = draws(32, 8).requires_grad_()
    loss_fn, ids = InfoNCE(0.2, distill=Distillation()), torch.arange(32)
    optimiser = torch.optim.SGD([z], 5.0)
    before = (normalize(z, dim=1) * seen).sum(1).mean().item()
    for _ in range(60):
        optimiser.zero_grad()
        loss_fn(z, z, ids, guide=(seen, seen)).backward()
        optimiser.step()
    assert before < 0.2 < 0.8 < (normalize(z, dim=1) * seen).sum(1).mean().item()


@pytest.mark.parametrize("numbers", [{"weight": 0.0}, {"weight": float("inf")}, {"temperature": 0.0}])
def test_numbers_that_make_no_sense_are_refused(numbers: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(numbers))):
        Distillation(**numbers)


def test_without_a_guide_or_with_one_of_another_length_it_is_refused() -> None:
    loss_fn, (z1, z2) = InfoNCE(0.2, distill=Distillation()), draws(2, B, D)
    with pytest.raises(ValueError, match="a guide's view needs a guide"):
        loss_fn(z1, z2, IDS)
    with pytest.raises(ValueError, match="must be as long as an embedding, 5, got 4"):
        loss_fn(z1, z2, IDS, guide=(draws(B, 4), draws(B, 4)))
