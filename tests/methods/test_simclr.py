"""SimCLR, SogCLR and SupCon: what they compute is their objective on both views in one pass."""

import torch
from torch import Tensor
from torch.nn import functional as F

from antipodes import GlobalContrastive, InfoNCE, Oracle
from antipodes.methods import SimCLR, SogCLR, SupCon
from tests.methods.tiny import BATCH, LABELS, Tiny, batch, build


def test_is_nt_xent_of_the_network() -> None:
    method = build("simclr")
    ids, views = batch(0, 2)
    z = F.normalize(method.network(torch.cat(views)), dim=1)
    logits = (z @ z.T / 0.2).masked_fill(torch.eye(2 * BATCH, dtype=torch.bool), -torch.inf)
    expected = F.cross_entropy(logits, torch.arange(2 * BATCH).roll(BATCH))
    torch.testing.assert_close(method.loss(method.network, ids, views, 0.5), expected)


def test_supcon_is_the_oracle_with_attraction() -> None:
    method = build("supcon")
    ids, views = batch(0, 2)
    z1, z2 = (method.network(view) for view in views)
    expected = InfoNCE(0.1, Oracle(LABELS), "attract")(z1, z2, ids)
    torch.testing.assert_close(method.loss(method.network, ids, views, 0.5), expected)


def test_sogclr_is_the_global_objective() -> None:
    method = build("sogclr")
    ids, views = batch(0, 2)
    z1, z2 = (method.network(view) for view in views)
    expected = GlobalContrastive(len(LABELS), 0.2, gamma=0.4)(z1, z2, ids)
    torch.testing.assert_close(method.loss(method.network, ids, views, 0.5), expected)


def test_the_views_go_through_the_network_together() -> None:
    """Batch statistics are of both views; apart, each view could be told by its own."""
    method = build("simclr")
    sizes: list[int] = []

    def network(images: Tensor) -> Tensor:
        sizes.append(len(images))
        out: Tensor = method.network(images)
        return out

    method.loss(network, *batch(0, 2), progress=0.5)
    assert sizes == [2 * BATCH]


def test_arguments_reach_the_objective() -> None:
    policy = Oracle(LABELS)
    objective = SimCLR(Tiny(), temperature=0.3, negatives=policy, treatment="attract").objective
    assert (objective.temperature, objective.negatives, objective.treatment) == (0.3, policy, "attract")
    objective = SogCLR(Tiny(), 24, 0.3, 0.7, 0.5, negatives=policy, treatment="attract").objective
    assert isinstance(objective, GlobalContrastive)
    assert (objective.temperature, objective.gamma, objective.gamma_until) == (0.3, 0.7, 0.5)
    assert (objective.negatives, objective.treatment) == (policy, "attract")
    assert SupCon(Tiny(), LABELS, temperature=0.3).objective.temperature == 0.3


def test_the_backbone_is_the_encoder_without_its_head() -> None:
    encoder = Tiny()
    method = SimCLR(encoder)
    assert method.backbone() is encoder
    assert method.exports() == {"encoder": encoder}
