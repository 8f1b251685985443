import numpy as np
import pytest
import torch

from antipodes.data import Npz, open_dataset


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)


def test_images_alone(tmp_path, images):
    np.savez(tmp_path / "a.npz", images=images)
    data = open_dataset(str(tmp_path / "a.npz"))
    assert isinstance(data, Npz)
    assert (data.name, data.image_size, len(data)) == ("a", 8, 6)
    assert data.labels is None
    assert data.held_out() is None
    assert torch.equal(data.fetch(torch.tensor([5]))[0], torch.from_numpy(images[5]).permute(2, 0, 1))


def test_labels_names_and_test_split(tmp_path, images):
    np.savez_compressed(
        tmp_path / "a.npz",
        images=images.transpose(0, 3, 1, 2),
        labels=np.arange(6, dtype=np.uint8),
        coarse_labels=np.arange(6) // 3,
        classes=np.array(list("abcdef")),
        test_images=images[:2],
        test_labels=np.array([4, 5]),
    )
    data = Npz(str(tmp_path / "a.npz"), limit=4)
    assert len(data) == 4
    assert torch.equal(data.labels // 3, data.coarse_labels)
    test = data.held_out()
    assert test.labels.tolist() == [4, 5]
    assert test.coarse_labels is None
    assert test.classes == tuple("abcdef")
    assert torch.equal(test.images, torch.from_numpy(images[:2]).permute(0, 3, 1, 2))
    assert test.held_out() is None


def test_grey_becomes_colour(tmp_path, images):
    for shape in [(6, 8, 8), (6, 8, 8, 1), (6, 1, 8, 8)]:
        np.savez(tmp_path / "a.npz", images=images[..., 0].reshape(shape))
        fetched = Npz(str(tmp_path / "a.npz")).fetch(torch.arange(6))
        assert torch.equal(fetched, torch.from_numpy(images[..., :1]).permute(0, 3, 1, 2).expand(-1, 3, -1, -1))


def test_pickled_objects_are_refused(tmp_path, images):
    np.savez(tmp_path / "a.npz", images=images, labels=np.array([{"any": "object"}] * 6, dtype=object))
    with pytest.raises(ValueError, match="without pickle"):
        Npz(str(tmp_path / "a.npz"))


def test_other_arrays_are_refused(tmp_path):
    for arrays, message in [
        ({"pictures": np.zeros(3)}, "no array images"),
        ({"images": np.zeros((2, 8, 8, 3))}, "must be uint8"),
        ({"images": np.zeros((2, 8, 9, 3), dtype=np.uint8)}, r"\(n, 3, H, H\)"),
        ({"images": np.zeros((2, 8, 8, 3), dtype=np.uint8), "labels": np.zeros(2)}, "must be integers"),
        ({"images": np.zeros((2, 8, 8, 3), dtype=np.uint8), "labels": np.arange(3)}, "must be 2 integers"),
    ]:
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(ValueError, match=message):
            Npz(str(tmp_path / "a.npz"))


def test_damaged_file_is_refused(tmp_path):
    for content in [b"", b"no zip at all", b"PK\x03\x04 cut short"]:
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read"):
            Npz(str(tmp_path / "a.npz"))


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        Npz(str(tmp_path / "a.npz"))
