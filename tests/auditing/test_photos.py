from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from antipodes.auditing import vectors
from antipodes.auditing.files import FileImages
from antipodes.auditing.photos import equal_files, open_photos
from antipodes.auditing.pixels import agree
from antipodes.auditing.proposals import propose
from antipodes.auditing.vectors import PATCHES, Patches, embed_photos, open_encoder
from tests.auditing.scenes import garment, scene


def square(image: Image.Image, side: int = 64) -> torch.Tensor:
    return torch.from_numpy(np.array(ImageOps.fit(image, (side, side)))).permute(2, 0, 1)


def crop(image: Image.Image, share: float, left: float, top: float) -> Image.Image:
    width, height = image.size
    x, y = left * width * (1 - share), top * height * (1 - share)
    return image.crop((int(x), int(y), int(x + share * width), int(y + share * height)))


CHANGES = {
    "mirrored": ImageOps.mirror,
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.4),
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.6),
    "cropped": lambda image: crop(image, 0.75, 0.7, 0.2),
    "all of it": lambda image: ImageOps.mirror(ImageEnhance.Brightness(crop(image, 0.8, 0.3, 0.6)).enhance(1.3)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_pixels_of_a_changed_picture_agree(change) -> None:
    first = torch.stack([square(scene(number)) for number in range(8)])
    second = torch.stack([square(change(scene(number))) for number in range(8)])
    assert agree(first, second).tolist() == [True] * 8
    assert agree(second, first).tolist() == [True] * 8


def test_pixels_of_other_pictures_do_not() -> None:
    pictures = torch.stack([square(scene(number)) for number in range(12)])
    assert not agree(pictures, pictures.roll(1, 0)).any()
    flat = torch.full((1, 3, 64, 64), 200, dtype=torch.uint8)
    assert not agree(flat, pictures[:1]).any()
    assert agree(torch.zeros(0, 3, 8, 8, dtype=torch.uint8), torch.zeros(0, 3, 8, 8, dtype=torch.uint8)).shape == (0,)


def test_one_outline_is_not_one_picture() -> None:
    pictures = torch.stack([square(garment(number)) for number in range(12)])
    changed = torch.stack([square(CHANGES["all of it"](garment(number))) for number in range(12)])
    assert not agree(pictures, pictures.roll(1, 0)).any()
    assert agree(pictures, changed).all()


def test_patches_propose_changed_copies(tmp_path: Path) -> None:
    for number in range(40):
        scene(number).save(tmp_path / f"{number:02d}.png")
    for number in range(6):
        CHANGES["all of it"](scene(number)).save(tmp_path / f"{number:02d}x.png")
    photos = open_photos(str(tmp_path))
    proposed = {tuple(sorted(Path(photos.paths[row]).stem for row in pair)) for pair in propose(photos).tolist()}
    assert {(f"{number:02d}", f"{number:02d}x") for number in range(6)} <= proposed


def test_equal_files(tmp_path: Path) -> None:
    contents = [b"one", b"two", b"one", b"three", b"one"]
    for number, content in enumerate(contents):
        (tmp_path / str(number)).write_bytes(content)
    assert equal_files([str(tmp_path / str(number)) for number in range(5)]) == [(0, 2), (0, 4)]


def test_photos_of_both_splits_come_in_the_order_of_training(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("test", 2)):
        for number in range(count):
            folder = tmp_path / split / ("cat" if number % 2 else "dog")
            folder.mkdir(parents=True, exist_ok=True)
            scene(number + 10 * (split == "test")).save(folder / f"{number}.png")
    photos = open_photos(str(tmp_path))
    names = [Path(path).relative_to(tmp_path).as_posix() for path in photos.paths]
    assert names == ["train/cat/1.png", "train/dog/0.png", "train/dog/2.png", "test/cat/1.png", "test/dog/0.png"]
    assert photos.splits == ("train",) * 3 + ("test",) * 2
    assert photos.labels is not None
    assert photos.labels.tolist() == [0, 1, 1, 0, 1]
    pixels = photos.pixels([4, 1])
    assert torch.equal(pixels[0], photos.parts[1].fetch(torch.tensor([1]))[0])
    assert torch.equal(pixels[1], photos.parts[0].fetch(torch.tensor([1]))[0])
    assert photos.image(4).size == scene(0).size


def test_vectors_by_any_encoder(tmp_path: Path) -> None:
    for number in range(5):
        scene(number).save(tmp_path / f"{number}.png")
    photos = open_photos(str(tmp_path))

    def encode(images: list[Image.Image]) -> torch.Tensor:
        small = [np.asarray(image.resize((4, 4)), dtype=np.float32).reshape(-1) for image in images]
        return torch.from_numpy(np.stack(small))

    plain = embed_photos(photos, encode, batch=2)
    assert plain.shape == (5, 48)
    np.testing.assert_allclose(plain[3], encode([scene(3)])[0])
    np.testing.assert_allclose(embed_photos(photos, encode, rows=[3, 0], batch=2), plain[[3, 0]])
    both = embed_photos(photos, encode, mirrored=True)
    np.testing.assert_allclose(both[1], (encode([scene(1)])[0] + encode([ImageOps.mirror(scene(1))])[0]) / 2)
    with pytest.raises(ValueError, match="NaN"):
        embed_photos(photos, lambda images: torch.full((len(images), 2), torch.nan))
    with pytest.raises(ValueError, match="must give"):
        embed_photos(photos, lambda images: torch.ones(1, 2))
    with pytest.raises(ValueError, match="nonexistent"):
        open_encoder("nonexistent")


def test_without_the_weights_of_a_network_patches_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, tower: str | None) -> None:
        raise ImportError(name)

    monkeypatch.setattr(vectors, "load", missing)
    with pytest.warns(UserWarning, match="not installed"):
        name, encode = open_encoder(None)
    assert name == PATCHES
    assert isinstance(encode, Patches)


def test_files_that_cannot_be_read_are_grey(tmp_path: Path) -> None:
    scene(1).save(tmp_path / "a.png")
    files = FileImages([str(tmp_path / "a.png"), str(tmp_path / "gone.png")], size=16)
    pixels = files.fetch(torch.tensor([0, 1]))
    assert pixels[0].float().std() > 10
    assert (pixels[1] == 128).all()
