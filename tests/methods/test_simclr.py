"""SimCLR, and SogCLR and SupCon as presets of it: what they compute is their loss on both views in one pass."""

import torch
from torch import Tensor
from torch.nn import functional as F

from antipodes import GlobalContrastive, InfoNCE, Oracle
from antipodes.methods import SimCLR, Tower, Towers
from tests.methods.calls import built
from tests.methods.tiny import BATCH, LABELS, Tiny, batch, build, one


def test_is_nt_xent_of_the_network() -> None:
    method = build("simclr")
    given = batch(0, method)
    z = F.normalize(method.network({"image": torch.cat(tuple(given["image"].views))})["image"], dim=1)
    logits = (z @ z.T / 0.2).masked_fill(torch.eye(2 * BATCH, dtype=torch.bool), -torch.inf)
    expected = F.cross_entropy(logits, torch.arange(2 * BATCH).roll(BATCH))
    torch.testing.assert_close(method.loss(method.network, given, 0.5), expected)


def test_supcon_is_the_oracle_with_attraction() -> None:
    method = build("supcon")
    given = batch(0, method)
    z1, z2 = (method.network["image"](view) for view in given["image"].views)
    expected = InfoNCE(0.1, Oracle(LABELS), "attract")(z1, z2, given.ids)
    torch.testing.assert_close(method.loss(method.network, given, 0.5), expected)
    (loss_fn,) = built("--method", "supcon").pair_losses().values()
    assert isinstance(loss_fn, InfoNCE)
    assert isinstance(loss_fn.negatives, Oracle)
    assert (loss_fn.treatment, loss_fn.temperature) == ("attract", 0.1)


def test_sogclr_is_the_global_loss() -> None:
    method = build("sogclr")
    given = batch(0, method)
    z1, z2 = (method.network["image"](view) for view in given["image"].views)
    expected = GlobalContrastive(len(LABELS), 0.2, gamma=0.4)(z1, z2, given.ids)
    torch.testing.assert_close(method.loss(method.network, given, 0.5), expected)
    (loss_fn,) = built("--method", "sogclr").pair_losses().values()
    assert isinstance(loss_fn, GlobalContrastive)
    assert loss_fn.temperature == 0.2
    assert len(loss_fn.log_u.rows) == 16


def test_the_views_go_through_the_network_together() -> None:
    """Batch statistics are of both views; apart, each view could be told by its own."""
    method = build("simclr")
    sizes: list[int] = []

    def network(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        sizes.append(len(inputs["image"]))
        out: dict[str, Tensor] = method.network(inputs)
        return out

    method.loss(network, batch(0, method), progress=0.5)  # type: ignore[arg-type]
    assert sizes == [2 * BATCH]


def test_arguments_reach_the_loss() -> None:
    policy = ["--negatives", "oracle", "--treatment", "attract", "--loss.temperature", "0.3"]
    (loss_fn,) = built(*policy).pair_losses().values()
    assert isinstance(loss_fn.negatives, Oracle)
    assert (loss_fn.temperature, loss_fn.treatment) == (0.3, "attract")
    gammas = ["--loss.gamma", "0.7", "--loss.gamma_until", "0.5"]
    (loss_fn,) = built("--method", "sogclr", *policy, *gammas).pair_losses().values()
    assert isinstance(loss_fn, GlobalContrastive)
    assert (loss_fn.temperature, loss_fn.gamma, loss_fn.gamma_until) == (0.3, 0.7, 0.5)
    assert isinstance(loss_fn.negatives, Oracle)
    assert loss_fn.treatment == "attract"
    (loss_fn,) = built("--method", "supcon", "--loss.temperature", "0.3").pair_losses().values()
    assert loss_fn.temperature == 0.3


def test_the_head_is_what_the_run_says() -> None:
    layers = [type(layer).__name__ for layer in built().network["image"].head]  # type: ignore[union-attr]
    assert layers == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    head = built("--head.kind", "linear", "--head.dim", "7").network["image"].head
    assert [type(layer).__name__ for layer in head] == ["Linear"]  # type: ignore[union-attr]
    assert head[0].out_features == 7  # type: ignore[index]


def test_the_backbone_is_the_encoder_without_its_head() -> None:
    encoder = Tiny()
    method = SimCLR(Towers({"image": Tower(encoder, torch.nn.Linear(6, 5))}), InfoNCE(0.2))
    assert method.backbone() is encoder
    assert method.backbone("image") is encoder
    assert method.exports() == {"encoder": encoder}
    embedded = method.evaluated("image", head=True)(torch.zeros(2, 3, 4, 4))
    torch.testing.assert_close(embedded, method.network({"image": torch.zeros(2, 3, 4, 4)})["image"])


def test_one_direction_is_named_after_its_tower() -> None:
    method = SimCLR(one(), InfoNCE(0.2))
    assert list(method.directions) == ["image"]
    assert (method.anchor_tower("image"), method.candidate_tower("image")) == ("image", "image")
