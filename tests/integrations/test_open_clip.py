"""open_clip's losses beside ours of the same names: values, gradients, ranks, memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from antipodes import GloFND, Guided, PositiveAware
from antipodes.integrations.open_clip import ClipLoss, SigLipLoss
from tests.integrations.peers import open_clip_losses
from tests.ranks import Ranks

B, D = 12, 6
NAMES = ("image", "text", "logit_scale", "logit_bias")


def inputs() -> list[Tensor]:
    """What two towers return before it is normalised, the logarithm of the scale, and the bias."""
    generator = torch.Generator().manual_seed(0)
    image, text = torch.randn(2, B, D, generator=generator, dtype=torch.float64).unbind()
    scale, bias = torch.tensor(math.log(10.0)).double(), torch.tensor(-3.0).double()
    return [each.clone().requires_grad_() for each in (image, text, scale, bias)]


def step(loss: nn.Module, rank: int = 0, world: int = 1, **more: Any) -> tuple[Tensor, list[Tensor]]:
    """The value of a rank's share of the batch, called as open_clip's training does, and all gradients."""
    image, text, scale, bias = inputs()
    share = slice(rank * B // world, (rank + 1) * B // world)
    model_out = {
        "image_features": F.normalize(image[share], dim=-1),
        "text_features": F.normalize(text[share], dim=-1),
        "logit_scale": scale.exp(),
        "logit_bias": bias,
    }
    losses = loss(**model_out, output_dict=True, **more)
    assert list(losses) == ["contrastive_loss"]
    losses["contrastive_loss"].backward()
    return losses["contrastive_loss"].detach(), [each.grad for each in (image, text, scale, bias)]  # type: ignore[misc]


@pytest.mark.parametrize("name", ["ClipLoss", "SigLipLoss"])
def test_value_and_gradient_are_open_clips(name: str) -> None:
    theirs, expected = step(getattr(open_clip_losses(), name)())
    value, gradients = step({"ClipLoss": ClipLoss, "SigLipLoss": SigLipLoss}[name]())
    torch.testing.assert_close(value, theirs)
    for gradient, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-6, atol=1e-9)


def on_ranks(rank: int, world: int, ours: bool, name: str, options: dict[str, Any]) -> tuple[Tensor, list[Tensor]]:
    """Value and gradients of one rank, those of the scalars averaged over ranks as data-parallel training does."""
    here = {"ClipLoss": ClipLoss, "SigLipLoss": SigLipLoss}[name]
    loss = (here if ours else getattr(open_clip_losses(), name))(rank=rank, world_size=world, **options)
    value, (image, text, *scalars) = step(loss, rank, world)
    for each in scalars:
        torch.distributed.all_reduce(each)
    return value, [image, text, *(each / world for each in scalars)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ClipLoss", {"local_loss": True, "gather_with_grad": True}),
        ("ClipLoss", {"local_loss": False, "gather_with_grad": True}),
        ("ClipLoss", {"local_loss": False, "gather_with_grad": False}),
        ("SigLipLoss", {}),
        ("SigLipLoss", {"dist_impl": "shift"}),
        ("SigLipLoss", {"dist_impl": "reduce"}),
        ("SigLipLoss", {"dist_impl": "gather"}),
    ],
)
def test_two_ranks_are_open_clips(two_ranks: Ranks, name: str, options: dict[str, Any]) -> None:
    open_clip_losses()  # it may skip
    expected = two_ranks(on_ranks, False, name, options)
    found = two_ranks(on_ranks, True, name, options)
    for (value, gradients), (theirs, others) in zip(found, expected, strict=True):
        torch.testing.assert_close(value, theirs)
        for label, gradient, other in zip(NAMES, gradients, others, strict=True):
            torch.testing.assert_close(
                gradient, other, rtol=1e-6, atol=1e-9, msg=lambda text, at=label: f"{at}: {text}"
            )


def by_itself(rank: int, world: int) -> tuple[Tensor, list[Tensor]]:
    return step(ClipLoss())


def test_with_a_world_of_one_a_rank_keeps_to_its_own(two_ranks: Ranks) -> None:
    value, gradients = step(ClipLoss())
    for found, others in two_ranks(by_itself):
        torch.testing.assert_close(found, value)
        torch.testing.assert_close(others, gradients)


@pytest.mark.parametrize("by_call", [True, False])
def test_equal_ids_are_no_negatives(by_call: bool) -> None:
    image, text = (F.normalize(each.detach(), dim=1) for each in inputs()[:2])
    ids = torch.arange(B) // 3
    loss = ClipLoss()
    loss.ids = None if by_call else ids
    value = loss(image, text, torch.tensor(10.0), **({"ids": ids} if by_call else {}))
    logits = 10 * image @ text.T
    own = torch.arange(B)
    logits = logits.masked_fill((ids[:, None] == ids) & (own[:, None] != own), -math.inf)
    torch.testing.assert_close(value, (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2)


def test_ids_of_another_batch_are_refused() -> None:
    loss = ClipLoss()
    loss.ids = torch.arange(B - 1)
    with pytest.raises(ValueError, match="ids"):
        step(loss)


def test_siglip_leaves_out_what_a_policy_flags() -> None:
    image, text = (F.normalize(each.detach(), dim=1) for each in inputs()[:2])
    value = SigLipLoss(negatives=PositiveAware(0.0, relative=False))(
        image, text, torch.tensor(10.0), torch.tensor(-3.0), ids=torch.arange(B)
    )
    similarities = image @ text.T
    own = torch.eye(B, dtype=torch.bool)
    kept = own | (similarities <= similarities.diagonal()[:, None])
    assert not kept.all()
    signs = 2.0 * own - 1
    losses = -F.logsigmoid(signs * (10 * similarities - 3)) * kept
    torch.testing.assert_close(value, losses.sum() / B)


def test_a_policy_with_tables_learns_in_both_directions_and_is_saved() -> None:
    loss = ClipLoss(negatives=GloFND(B, alpha=0.2, start=0.0))
    loss.ids, loss.progress = torch.arange(B), 0.5
    before = {name: each.clone() for name, each in loss.state_dict().items()}
    step(loss)
    moved = {name.split(".")[2] for name, each in loss.state_dict().items() if not torch.equal(each, before[name])}
    assert moved == {"image_to_text", "text_to_image"}
    again = ClipLoss(negatives=GloFND(B, alpha=0.2, start=0.0))
    again.load_state_dict(loss.state_dict())
    torch.testing.assert_close(step(again, ids=torch.arange(B), progress=0.6), step(loss, progress=0.6))


def test_a_guide_reaches_the_policy() -> None:
    vectors = torch.eye(B)[torch.arange(B) // 2]  # the guide sees pairs of equal samples
    loss = ClipLoss(negatives=Guided(0.0))
    step(loss, guide=(vectors, vectors), ids=torch.arange(B))
    assert loss.stats["image_to_text/kept_per_anchor"] <= B - 2 + 1


class Largest(TorchDispatchMode):
    """The largest tensor that any operation inside returns."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        for each in answer if isinstance(answer, (tuple, list)) else [answer]:
            if isinstance(each, Tensor):
                self.numbers = max(self.numbers, each.untyped_storage().nbytes() // each.element_size())
        return answer


@pytest.mark.parametrize("loss", [ClipLoss(), SigLipLoss()], ids=["clip", "siglip"])
def test_no_matrix_of_the_batch_is_stored(loss: nn.Module) -> None:
    """Neither forward nor backward makes a tensor that grows with the square of the batch."""
    largest = []
    for count in (4096, 8192):
        image, text = F.normalize(torch.randn(2, count, 8), dim=2).unbind()
        with Largest() as seen:
            loss(image.requires_grad_(), text, torch.tensor(10.0), torch.tensor(-10.0)).backward()
        largest.append(seen.numbers)
    assert largest[1] <= 2 * largest[0]
    assert largest[1] < 8192**2 / 8


def test_options_without_an_equivalent_are_refused() -> None:
    with pytest.raises(ValueError, match="use_horovod"):
        ClipLoss(use_horovod=True)
    with pytest.raises(ValueError, match="gather_with_grad"):
        ClipLoss(local_loss=True, world_size=2)
    with pytest.raises(ValueError, match="dist_impl"):
        SigLipLoss(dist_impl="ring")
    with pytest.raises(ValueError, match="world_size"):
        step(ClipLoss(gather_with_grad=True, world_size=2))
