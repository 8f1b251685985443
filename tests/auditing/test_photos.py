from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from antipodes import audit
from antipodes.auditing import vectors
from antipodes.auditing.files import FileImages, photos_of_list
from antipodes.auditing.photos import open_photos
from antipodes.auditing.vectors import PATCHES, ImageVectors, Patches, embed_photos, open_encoder
from antipodes.data import duplicates
from tests.auditing.scenes import scene


def test_audit_and_training_count_exact_duplicates_alike(tmp_path: Path) -> None:
    for number in range(4):
        scene(number).save(tmp_path / f"{number}.png")
    (tmp_path / "4.png").write_bytes((tmp_path / "1.png").read_bytes())
    scene(1).save(tmp_path / "5.bmp")  # the same pixels in another file
    photos = open_photos(str(tmp_path))
    assert photos.copies() == [(1, 4), (1, 5)]
    assert duplicates(photos.parts[0]).tolist() == [-1, 0, -1, -1, 0, 0]
    listed = photos_of_list([tmp_path / name for name in ("5.bmp", "1.png", "4.png")])
    assert listed.copies() == [(1, 2)]  # a list goes by its files


@pytest.mark.parametrize("folder", [".", "photos"])
def test_photos_win_over_any_number_of_vectors(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    for number in range(3):
        scene(number).save(tmp_path / folder / f"{number}.png")
    for number in range(5):
        np.save(tmp_path / f"{number}.npy", np.eye(4, dtype=np.float32))
    found = audit(tmp_path, encoder="patches")
    assert [Path(path).name for path in found.keep["path"]] == ["0.png", "1.png", "2.png"]


def test_photos_of_both_splits_come_in_the_order_of_training(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("test", 2)):
        for number in range(count):
            folder = tmp_path / split / ("cat" if number % 2 else "dog")
            folder.mkdir(parents=True, exist_ok=True)
            scene(number + 10 * (split == "test")).save(folder / f"{number}.png")
    (tmp_path / "test" / "dog" / "0.png").write_bytes((tmp_path / "train" / "cat" / "1.png").read_bytes())
    photos = open_photos(str(tmp_path))
    names = [Path(path).relative_to(tmp_path).as_posix() for path in photos.paths]
    assert names == ["train/cat/1.png", "train/dog/0.png", "train/dog/2.png", "test/cat/1.png", "test/dog/0.png"]
    assert photos.splits == ("train",) * 3 + ("test",) * 2
    assert photos.copies() == [(0, 4)]  # across the splits
    assert photos.labels is not None
    assert photos.labels.tolist() == [0, 1, 1, 0, 1]
    pixels = photos.pixels([4, 1])
    assert torch.equal(pixels[0], photos.parts[1].fetch(torch.tensor([1]))[0])
    assert torch.equal(pixels[1], photos.parts[0].fetch(torch.tensor([1]))[0])
    assert photos.image(3).size == scene(0).size


def test_small_photos_are_upright_and_know_their_size(tmp_path: Path) -> None:
    large = scene(3).resize((1600, 1280))
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned by 90 degrees
    large.save(tmp_path / "a.jpg")
    large.save(tmp_path / "b.jpg", exif=turned)
    photos = photos_of_list([tmp_path / "a.jpg", tmp_path / "b.jpg"])
    (plain, size), (upright, turned_size) = photos.small(0, 100), photos.small(1, 100)
    assert (size, turned_size) == ((1600, 1280), (1280, 1600))
    assert 100 <= min(plain.size) < 1280
    assert upright.size == plain.size[::-1]
    assert photos.small(0, None)[0].size == (1600, 1280)


def mean_colours(images: list[Image.Image]) -> torch.Tensor:
    small = [np.asarray(image.resize((4, 4)), dtype=np.float32).reshape(-1) for image in images]
    return torch.from_numpy(np.stack(small))


def test_vectors_by_any_encoder(tmp_path: Path) -> None:
    for number in range(5):
        scene(number).save(tmp_path / f"{number}.png")
    photos = open_photos(str(tmp_path))
    plain = embed_photos(photos, mean_colours, batch=2)
    assert plain.shape == (5, 48)
    np.testing.assert_allclose(plain[3], mean_colours([scene(3)])[0])
    np.testing.assert_allclose(embed_photos(photos, mean_colours, rows=[3, 0], batch=2), plain[[3, 0]])
    np.testing.assert_allclose(ImageVectors(mean_colours, photos)([scene(3)]), plain[3:4])
    both = embed_photos(photos, mean_colours, mirrored=True)
    np.testing.assert_allclose(both[1], (plain[1] + mean_colours([ImageOps.mirror(scene(1))])[0].numpy()) / 2)
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
