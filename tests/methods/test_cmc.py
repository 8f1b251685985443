"""CMC: published Lab colours, and each channel group against the bank of the other."""

import pytest
import torch
from torch.nn import functional as F

from antipodes.functional.colour import rgb_to_lab
from antipodes.methods import CMC
from tests.methods.tiny import N, Tiny, batch

PUBLISHED = {
    "red": ((255, 0, 0), (53.24, 80.09, 67.20)),
    "green": ((0, 255, 0), (87.73, -86.18, 83.18)),
    "blue": ((0, 0, 255), (32.30, 79.19, -107.86)),
    "white": ((255, 255, 255), (100, 0, 0)),
    "grey": ((128, 128, 128), (53.59, 0, 0)),
    "black": ((0, 0, 0), (0, 0, 0)),
    "almost black": ((2, 2, 2), (0.5483, 0, 0)),  # on the linear part of both curves
}


@pytest.mark.parametrize("colour", list(PUBLISHED))
def test_published_colours(colour: str) -> None:
    rgb, lab = PUBLISHED[colour]
    image = torch.tensor(rgb).view(1, 3, 1, 1).expand(1, 3, 2, 2) / 255
    result = rgb_to_lab(image)
    assert result.shape == (1, 3, 2, 2)
    scaled = (result[0, :, 1, 1].double() + torch.tensor([1.0, 0, 0])) * torch.tensor([50.0, 110.0, 110.0])
    assert scaled.tolist() == pytest.approx(lab, abs=0.03)


def test_colours_outside_the_range_are_clamped_and_gradients_finite() -> None:
    image = torch.tensor([-0.5, 0.0, 1.5]).view(1, 3, 1, 1).requires_grad_()
    result = rgb_to_lab(image)
    torch.testing.assert_close(result, rgb_to_lab(image.clamp(0, 1)))
    result.sum().backward()
    assert image.grad is not None
    assert image.grad.isfinite().all()


def cmc() -> CMC:
    return CMC(Tiny(1), Tiny(2), N, samples=N, dim=5)


def test_each_channel_group_is_classified_by_the_bank_of_the_other() -> None:
    method = cmc()
    ids, views = batch(0, 1)
    of_l, of_ab = (F.normalize(part, dim=1) for part in method.network(views[0]).split(5, dim=1))
    bank_l, bank_ab = method.bank_l.table.rows, method.bank_ab.table.rows
    expected = F.cross_entropy(of_l @ bank_ab.T / 0.07, ids) + F.cross_entropy(of_ab @ bank_l.T / 0.07, ids)
    torch.testing.assert_close(method.loss(method.network, ids, views, 0.5), expected)


def test_each_bank_takes_the_embeddings_of_its_own_channels() -> None:
    method = cmc()
    ids, views = batch(0, 1)
    parts = [F.normalize(part, dim=1).detach() for part in method.network(views[0]).split(5, dim=1)]
    banks = (method.bank_l, method.bank_ab)
    before = [bank.table.rows.clone() for bank in banks]
    assert not torch.equal(*before)
    method.loss(method.network, ids, views, 0.5)
    method.after_step()
    for bank, old, part in zip(banks, before, parts, strict=True):
        torch.testing.assert_close(bank.read(ids), F.normalize(0.5 * old[ids] + 0.5 * part, dim=1))


def test_the_luminance_encoder_sees_no_colour() -> None:
    method = cmc()
    grey = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0)).expand(2, 3, 4, 4)
    features = method.backbone()(grey)
    assert features.shape == (2, 12)
    colourless = method.network.of_ab.encoder(torch.zeros(1, 2, 4, 4))  # type: ignore[union-attr,operator]
    torch.testing.assert_close(features[:, 6:], colourless.expand(2, 6), rtol=0, atol=1e-4)
    assert not torch.allclose(features[0, :6], features[1, :6])


def test_statistics_are_of_both_directions() -> None:
    method = cmc()
    ids, views = batch(0, 1)
    of_l, of_ab = (F.normalize(part, dim=1) for part in method.network(views[0]).split(5, dim=1))
    bank_l, bank_ab = method.bank_l.read(ids), method.bank_ab.read(ids)
    positives = ((of_l * bank_ab).sum(1).mean() + (of_ab * bank_l).sum(1).mean()) / 2
    method.loss(method.network, ids, views, 0.5)
    assert method.statistics()["positive_similarity"] == pytest.approx(positives.item(), abs=1e-6)


def test_one_file_per_encoder() -> None:
    of_l, of_ab = Tiny(1), Tiny(2)
    assert CMC(of_l, of_ab, N, dim=5).exports() == {"encoder-l": of_l, "encoder-ab": of_ab}
