"""The encoder of patches: the formula, what it finds alike, what it does not see, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, unfold

from antipodes.encoders.patches import CONTRAST, PatchEncoder, _principal
from tests.ranks import Ranks

KINDS, SIDE = 4, 24


def textures(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Stripes in one of four directions, with colours, widths, places and noise of their own; and which."""
    source = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, KINDS, (count,), generator=source)
    angle = (kind * math.pi / KINDS)[:, None, None]
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    along = x * angle.cos() + y * angle.sin()
    width, place = (torch.rand(count, 1, 1, generator=source) for _ in range(2))
    waves = torch.sin(along / (0.6 + 0.3 * width) + 6 * place)[:, None]
    colours = torch.rand(count, 3, 1, 1, generator=source)
    noise = torch.rand(count, 3, SIDE, SIDE, generator=source)
    return (0.7 * colours + 0.06 * (1 + waves) + 0.1 * noise).clamp(0, 1), kind


@pytest.fixture(scope="module")
def encoder() -> PatchEncoder:
    return PatchEncoder(words=40, patch=6, grid=2, dim=16, size=SIDE).fit(textures(300)[0])


def test_neighbours_are_of_the_same_texture_whatever_their_colour(encoder: PatchEncoder) -> None:
    images, kind = textures(200, seed=1)
    kind = torch.where(kind == 3, 1, kind)  # the two diagonals are mirror images
    vectors = encoder(images)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(200))
    nearest = (vectors @ vectors.T).fill_diagonal_(-1).topk(3, dim=1).indices
    assert float((kind[nearest] == kind[:, None]).float().mean()) > 0.95
    pixels = images.flatten(1) - images.flatten(1).mean(0)
    by_pixel = torch.nn.functional.normalize(pixels, dim=1)
    nearest = (by_pixel @ by_pixel.T).fill_diagonal_(-1).topk(3, dim=1).indices
    assert float((kind[nearest] == kind[:, None]).float().mean()) < 0.7


def test_mirror_images_are_the_same_and_light_makes_little_difference(encoder: PatchEncoder) -> None:
    images, _ = textures(20, seed=2)
    torch.testing.assert_close(encoder(images.flip(3)), encoder(images), atol=1e-5, rtol=1e-4)
    assert float((encoder(0.2 + 0.6 * images) * encoder(images)).sum(1).min()) > 0.95


def test_counts_equal_the_formula_in_float64(encoder: PatchEncoder) -> None:
    images = textures(5, seed=3)[0]
    words = encoder.kernels.double().flatten(1)
    assert float(encoder.contrast) == pytest.approx(CONTRAST * float(textures(300)[0].var()))
    expected = []
    for each in (images, images.flip(3)):
        patches = unfold(each.double(), encoder.patch, stride=encoder.stride).transpose(1, 2)
        plain = (patches - patches.mean(2, keepdim=True)) / (
            patches.var(2, keepdim=True) + encoder.contrast.double()
        ).sqrt()
        alike = plain @ words.T + encoder.offsets.double()
        above = (alike - alike.mean(2, keepdim=True) - alike.std(2, keepdim=True) / 2).clamp(min=0)
        edge = math.isqrt(above.shape[1])
        expected.append(adaptive_avg_pool2d(above.transpose(1, 2).unflatten(2, (edge, edge)), encoder.grid))
    exact = (expected[0] + expected[1]).flatten(1).sqrt()
    torch.testing.assert_close(encoder._count(images).double(), exact, atol=1e-3, rtol=1e-3)


def test_directions_are_those_of_a_decomposition() -> None:
    source = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 30, generator=source) * torch.linspace(3, 0.1, 30)
    rows -= rows.mean(0)
    u, lengths, _ = torch.linalg.svd(rows, full_matrices=False)
    ours = rows @ _principal(rows, 4)
    exact = u[:, :4] * lengths[:4] / (lengths[:4] / math.sqrt(200)).sqrt()
    torch.testing.assert_close((ours.T @ ours).diagonal().flip(0), exact.square().sum(0), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(ours @ ours.T, exact @ exact.T, rtol=1e-2, atol=2e-2)


def test_the_same_images_give_the_same_encoder(encoder: PatchEncoder) -> None:
    again = PatchEncoder(words=40, patch=6, grid=2, dim=16, size=SIDE).fit(textures(300)[0])
    assert torch.equal(again.kernels, encoder.kernels)
    assert torch.equal(again.directions, encoder.directions)


def test_it_finds_the_same_in_pixels_of_another_scale(encoder: PatchEncoder) -> None:
    images = textures(300)[0]
    shifted = PatchEncoder(words=40, patch=6, grid=2, dim=16, size=SIDE).fit(4 * images - 2)
    alike = [vectors @ vectors.T for vectors in (shifted(4 * images[:20] - 2), encoder(images[:20]))]
    torch.testing.assert_close(*alike, atol=0.02, rtol=0)


def test_images_of_another_size_are_scaled_first(encoder: PatchEncoder) -> None:
    large = torch.nn.functional.interpolate(textures(20, seed=4)[0], (2 * SIDE, 2 * SIDE), mode="nearest")
    torch.testing.assert_close(encoder(large), encoder(encoder.scaled(large)))
    assert encoder.scaled(large).shape[-2:] == (SIDE, SIDE)


def seen_by(rank: int, ranks: int) -> Tensor:
    """What the first rank sees, the others have nothing to do with it."""
    small = PatchEncoder(words=10, patch=6, grid=2, dim=4, size=SIDE)
    return small.fit(textures(60)[0])(textures(8, seed=1)[0]) if rank == 0 else torch.zeros(8, 4)


def test_a_rank_fits_them_by_itself(two_ranks: Ranks) -> None:
    torch.testing.assert_close(two_ranks(seen_by)[0], seen_by(0, 1))


def test_refusals() -> None:
    for options, side, sentence in [
        ({"words": 0}, 32, "words of a patch encoder must be at least 1, got 0"),
        ({"patch": 9, "size": 8}, 8, "size must be at least"),
        ({"words": 5, "patch": 4, "grid": 1, "size": 8}, 8, "dim must be at most 5"),
        ({"patch": 4, "size": 8}, 8, "dim must be at most 39"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            PatchEncoder(**options).fit(torch.rand(40, 3, side, side))
