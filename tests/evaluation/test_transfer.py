"""An encoder on datasets it was not trained on: what they look like to it, what is reported, what is refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from antipodes.data import Samples, TensorImages
from antipodes.data.augment import augmentation
from antipodes.evaluation.features import stratified_split
from antipodes.evaluation.linear import linear_probe
from antipodes.evaluation.protocol import score
from antipodes.evaluation.protocols.transfer import open_others
from tests.methods.tiny import SIZE, build


class WithTest(TensorImages):
    """Images with a test split."""

    def held_out(self, limit: int | None = None) -> Samples | None:
        return images(30, seed=9, size=self.image_size, limit=limit)


def images(count: int, seed: int, size: int = 8, kind: type[TensorImages] = TensorImages, limit: int | None = None):
    """Grey images of two and a half brightnesses, the classes."""
    labels = torch.arange(count) % 5 // 2
    noise = torch.rand(count, 1, size, size, generator=torch.Generator().manual_seed(seed))
    pixels = (12 * labels[:, None, None, None] + 200 * noise).to(torch.uint8)
    return kind(pixels.expand(-1, 3, -1, -1), labels, name=f"grey{count}", limit=limit)


def test_the_scores_are_those_of_a_probe_on_resized_images() -> None:
    method, own, other = build("simclr"), images(20, 0, SIZE), images(60, 1, kind=WithTest)
    row = score(method, own, ["transfer"], test_limit=25, others=[other])
    assert list(row) == ["transfer grey60 top-1", "transfer grey60 mean per class"]
    test = other.held_out(25)
    view = augmentation("plain", SIZE)
    parts = []
    for data in (other, test):
        small = interpolate(data.images.float() / 255, (SIZE, SIZE), mode="bilinear", antialias=True)
        mean, std = (torch.tensor(numbers)[:, None, None] for numbers in (view.mean, view.std))
        with torch.no_grad():
            parts += [method.backbone()((small - mean) / std), data.labels]
    expected = linear_probe(*parts)
    assert row["transfer grey60 top-1"] == pytest.approx(100 * expected.accuracy.top1)
    assert row["transfer grey60 mean per class"] == pytest.approx(100 * expected.accuracy.mean_per_class)
    assert expected.accuracy.top1 != expected.accuracy.mean_per_class
    assert 40 < row["transfer grey60 top-1"] < 100


def test_data_without_a_test_split_is_divided_and_the_runs_own_scores_stay() -> None:
    method, own, other = build("simclr"), images(40, 0, SIZE), images(60, 1)
    both = score(method, own, ["knn"], others=[other])
    assert both["knn top-1"] == score(method, own, ["knn"])["knn top-1"]
    held = stratified_split(other.labels, 0.2, 0)[1]
    share = both["transfer grey60 top-1"] / 100 * len(held)
    assert share == pytest.approx(round(share))  # of 12 images


def test_transfer_to_nowhere_is_refused_before_the_work() -> None:
    with pytest.raises(ValueError, match="transfer needs other datasets: name them, such as --transfer"):
        score(build("simclr"), images(20, 0, 77), ["transfer", "linear"])  # 77 pixels would fail in the encoder


def photos(folder: Path, *classes: str, count: int = 6) -> Path:
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = np.random.default_rng([number, i]).integers(0, 80 + 40 * number, (20, 30), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def test_names_and_folders_are_opened_at_the_size_of_the_run(tmp_path: Path) -> None:
    folder = photos(tmp_path / "ants", "train/a", "train/b", "validation/a", "test/a", "test/b")
    for part in ("test/a", "test/b"):
        (folder / part / "0.png").unlink()
    np.savez(tmp_path / "bees.npz", images=np.zeros((20, 28, 28), dtype=np.uint8), labels=np.arange(20))
    bees, ants = open_others([str(tmp_path / "bees.npz"), str(folder)], size=12, limit=9)
    assert (bees.name, len(bees), bees.image_size) == ("bees", 9, 28)  # 28 x 28 in memory, resized in batches
    assert (ants.name, len(ants), ants.image_size) == ("ants", 9, 12)
    test = ants.held_out()
    assert test is not None
    assert (len(test), test.image_size) == (10, 12)


def test_what_cannot_be_transferred_to_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'nowhere' is not one of .* does not exist"):
        open_others(["nowhere"], 8)
    flat = photos(tmp_path / "flat", ".")
    with pytest.raises(ValueError, match=r"flat: the transfer protocol needs labels .* folder of its own"):
        open_others([str(flat)], 8)
    twins = [str(photos(tmp_path / side / "bees", "a", "b")) for side in ("left", "right")]
    with pytest.raises(ValueError, match="two datasets to transfer to are called bees"):
        open_others(twins, 8)


def test_clothing_photos(shared_data: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(shared_data / "clothing_small_96.zip") as archive:
        archive.extractall(tmp_path, [name for name in archive.namelist() if name.endswith(("1.jpg", "2.jpg"))])
    (clothing,) = open_others([str(tmp_path / "clothing-small")], SIZE)
    tested = len(list((tmp_path / "clothing-small" / "test").rglob("*.jpg")))
    row = score(build("simclr"), images(20, 0, SIZE), ["transfer"], others=[clothing])
    hits = row["transfer clothing-small top-1"] / 100 * tested
    assert hits == pytest.approx(round(hits))
    assert hits > 0
