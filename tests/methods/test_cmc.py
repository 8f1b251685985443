"""CMC: published Lab colours, and each channel group against the bank of the other."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from antipodes import GloFND, InfoNCE
from antipodes.candidates import MemoryBank
from antipodes.encoders.encoder import rgb_to_lab
from antipodes.methods import CMC, Batch
from tests.cases import every
from tests.methods.tiny import DIM, N, Training, batch, lab

PUBLISHED = {
    "red": ((255, 0, 0), (53.24, 80.09, 67.20)),
    "green": ((0, 255, 0), (87.73, -86.18, 83.18)),
    "blue": ((0, 0, 255), (32.30, 79.19, -107.86)),
    "white": ((255, 255, 255), (100, 0, 0)),
    "grey": ((128, 128, 128), (53.59, 0, 0)),
    "black": ((0, 0, 0), (0, 0, 0)),
    "almost black": ((2, 2, 2), (0.5483, 0, 0)),  # on the linear part of both curves
}


@every("colour", list(PUBLISHED))
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
    return CMC(lab(), InfoNCE(0.07), N, DIM, samples=N)


def embedded(method: CMC, given: Batch) -> tuple[Tensor, Tensor]:
    """Normalised embeddings of the luminance and of the colours."""
    colours = rgb_to_lab(given["image"].views[0])
    parts = method.network({"l": colours[:, :1], "ab": colours[:, 1:]})
    return F.normalize(parts["l"], dim=1), F.normalize(parts["ab"], dim=1)


def bank(method: CMC, name: str) -> MemoryBank:
    found = method.banks[name]
    assert isinstance(found, MemoryBank)
    return found


def test_each_channel_group_is_classified_by_the_bank_of_the_other() -> None:
    method = cmc()
    given = batch(0, method)
    of_l, of_ab = embedded(method, given)
    bank_l, bank_ab = bank(method, "l").table.rows, bank(method, "ab").table.rows
    expected = F.cross_entropy(of_l @ bank_ab.T / 0.07, given.ids) + F.cross_entropy(of_ab @ bank_l.T / 0.07, given.ids)
    torch.testing.assert_close(method.loss(method.network, given, 0.5), expected)


def test_each_bank_takes_the_embeddings_of_its_own_channels() -> None:
    method = cmc()
    given = batch(0, method)
    parts = [part.detach() for part in embedded(method, given)]
    banks = (bank(method, "l"), bank(method, "ab"))
    before = [each.table.rows.clone() for each in banks]
    assert not torch.equal(*before)
    method.loss(method.network, given, 0.5)
    method.after_step()
    for each, old, part in zip(banks, before, parts, strict=True):
        expected = F.normalize(0.5 * old[given.ids] + 0.5 * part, dim=1)
        torch.testing.assert_close(each.read(given.ids), expected)


def test_the_luminance_encoder_sees_no_colour() -> None:
    method = cmc()
    grey = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0)).expand(2, 3, 4, 4)
    features = method.backbone()(grey)
    assert features.shape == (2, 12)
    colourless = method.network["ab"].encoder(torch.zeros(1, 2, 4, 4))
    torch.testing.assert_close(features[:, 6:], colourless.expand(2, 6), rtol=0, atol=1e-4)
    assert not torch.allclose(features[0, :6], features[1, :6])


def test_statistics_are_of_both_directions() -> None:
    method = cmc()
    given = batch(0, method)
    of_l, of_ab = embedded(method, given)
    of_bank_l, of_bank_ab = bank(method, "l").read(given.ids), bank(method, "ab").read(given.ids)
    l_to_ab, ab_to_l = (of_l * of_bank_ab).sum(1).mean().item(), (of_ab * of_bank_l).sum(1).mean().item()
    method.loss(method.network, given, 0.5)
    numbers = method.statistics()
    assert numbers["positive_similarity"] == pytest.approx((l_to_ab + ab_to_l) / 2, abs=1e-6)
    assert numbers["l_to_ab/positive_similarity"] == pytest.approx(l_to_ab, abs=1e-6)
    assert numbers["ab_to_l/positive_similarity"] == pytest.approx(ab_to_l, abs=1e-6)


def test_each_direction_has_thresholds_of_its_own() -> None:
    training = Training("cmc", "glofnd")
    training.step(5)
    first, second = (policy for _, policy in training.method.policies())
    assert isinstance(first, GloFND)
    assert isinstance(second, GloFND)
    assert not torch.equal(first.threshold, second.threshold)
    assert [direction for direction, _ in training.method.policies()] == ["l_to_ab", "ab_to_l"]


def test_one_file_per_encoder() -> None:
    towers = lab()
    method = CMC(towers, InfoNCE(0.07), N, DIM)
    assert method.exports() == {"encoder-l": towers["l"].encoder, "encoder-ab": towers["ab"].encoder}
    assert (method.anchor_tower("ab_to_l"), method.candidate_tower("ab_to_l")) == ("ab", "l")


def test_data_without_images_is_refused() -> None:
    with pytest.raises(ValueError, match="CMC looks at the colours of images and the data has text"):
        CMC.plan({"text": "text"})
