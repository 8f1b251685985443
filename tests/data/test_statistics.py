import numpy as np
import pytest
import torch

from antipodes.data import Shapes, TensorImages, Texts
from antipodes.data.describe import pixel_statistics


def test_equal_to_the_plain_formula():
    images = torch.randint(256, (700, 3, 5, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images[:, 1] //= 3
    images[:, 2] = 9
    found = TensorImages(images).statistics()
    values = images.numpy().astype(np.float64) / 255
    assert np.allclose(found.mean, values.mean((0, 2, 3)), atol=1e-12)
    assert np.allclose(found.std[:2], values.std((0, 2, 3))[:2], atol=1e-12)
    assert found.std[2] == 1  # a channel that never changes


def test_no_images_no_statistics(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo")
    with pytest.raises(ValueError, match="has no images"):
        pixel_statistics(Texts(str(tmp_path / "a.txt")))


def test_some_classes_of_data_in_memory():
    whole, part = Shapes(count=300), Shapes(count=300, classes=5)
    assert len(part.classes) == 5
    assert set(part.classes) < set(whole.classes)
    assert set(part.labels.tolist()) == set(range(5))
    kept = torch.tensor([name in part.classes for name in (whole.classes[label] for label in whole.labels.tolist())])
    assert torch.equal(part.images, whole.images[kept])
    assert torch.equal(part.coarse_labels, whole.coarse_labels[kept])
    assert part.held_out().classes == part.classes
    assert part.fingerprint != whole.fingerprint
    assert len(Shapes(count=300, classes=5, limit=10)) == 10
    assert Shapes(count=300, classes="plain disc, ringed star").classes == ("plain disc", "ringed star")
    assert set(Shapes(count=300, classes=5).classes) < set(Shapes(count=300, classes=8).classes)


def test_views_may_be_larger_than_the_images():
    data = TensorImages(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), size=24)
    assert data.image_size == 24
    assert data.fetch(torch.tensor([0])).shape == (1, 3, 8, 8)
    with pytest.raises(ValueError, match="size must be"):
        TensorImages(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), size=0)
