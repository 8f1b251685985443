import numpy as np
import pytest
import torch

from antipodes.data import Vectors, open_dataset


def save(folder, **arrays):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return str(folder)


def rows_of(count, features, dtype=np.float32):
    return np.arange(count * features, dtype=dtype).reshape(count, features)


def test_one_file_is_one_input(tmp_path):
    save(tmp_path, mine=rows_of(6, 3, np.float16), labels=np.array([0, 1, 2, 0, 1, 2]))
    data = open_dataset(str(tmp_path / "mine.npy"))
    assert isinstance(data, Vectors)
    assert data.modalities == {"vector": "vector"}
    assert data.labels.tolist() == [0, 1, 2, 0, 1, 2]
    taken = data.inputs(torch.tensor([5, 0]))["vector"]
    assert taken.dtype == torch.float32
    assert taken.tolist() == [[15, 16, 17], [0, 1, 2]]
    assert data.describe() == ["6 rows of vectors: vector (3)", "3 classes", "no exact duplicates"]
    assert isinstance(data.columns["vector"].array, np.memmap)


def test_a_folder_has_an_input_per_file(tmp_path):
    path = save(tmp_path / "both", image=rows_of(4, 2), text=-rows_of(4, 5), samples=np.array([3, 3, 1, 0]))
    data = open_dataset(path)
    assert data.modalities == {"image": "vector", "text": "vector"}
    assert data.features == {"image": 2, "text": 5}
    assert data.sample_ids(torch.tensor([0, 1, 3])).tolist() == [3, 3, 0]
    assert data.labels is None
    assert data.inputs(torch.tensor([1]))["text"].tolist() == [[-5, -6, -7, -8, -9]]
    named = open_dataset(f"a={path}/image.npy,b={path}/text.npy")
    assert named.modalities == {"a": "vector", "b": "vector"}


def test_the_test_split(tmp_path):
    arrays = {"image": rows_of(4, 2), "test_image": 7 + rows_of(3, 2)}
    path = save(tmp_path, **arrays, labels=np.arange(4), test_labels=np.arange(3))
    data = open_dataset(path)
    assert len(data) == 4
    test = data.held_out(2)
    assert len(test) == 2
    assert test.held_out() is None
    assert set(test.inputs(torch.arange(2))["image"][:, 0].tolist()) <= {7, 9, 11}


def test_limit_and_classes(tmp_path):
    path = save(tmp_path, vector=rows_of(20, 1), labels=np.arange(20) % 4)
    data = Vectors(path, classes=2)
    assert len(data) == 10
    assert set(data.labels.tolist()) == {0, 1}
    kept = {int(name) for name in data.classes}
    assert {int(value) % 4 for value in data.inputs(torch.arange(10))["vector"][:, 0]} == kept
    assert len(Vectors(path, limit=5, classes=2)) == 5
    assert Vectors(path, limit=7).fingerprint != Vectors(path, limit=6).fingerprint


def test_rows_must_agree(tmp_path):
    with pytest.raises(ValueError, match=r"differ in their rows \(image 4, text 5\)"):
        Vectors(save(tmp_path, image=rows_of(4, 2), text=rows_of(5, 2)))
    with pytest.raises(ValueError, match=r"differ in their rows \(image 4, labels 3\)"):
        Vectors(save(tmp_path / "b", image=rows_of(4, 2), labels=np.arange(3)))


def test_other_arrays_are_refused(tmp_path):
    for array, message in [
        (np.zeros(3), r"shape \(n, F\)"),
        (np.zeros((0, 4)), r"shape \(n, F\)"),
        (np.array([["a", "b"]]), r"shape \(n, F\)"),
        (np.array([[{}]], dtype=object), "without pickle"),
    ]:
        np.save(tmp_path / "x.npy", array, allow_pickle=True)
        with pytest.raises(ValueError, match=message):
            Vectors(str(tmp_path / "x.npy"))


def test_missing_damaged_and_not_finite(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        Vectors(str(tmp_path / "gone.npy"))
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(ValueError, match="cannot be read"):
        Vectors(str(tmp_path / "broken.npy"))
    bad = rows_of(3, 2)
    bad[1, 1] = np.nan
    np.save(tmp_path / "bad.npy", bad)
    data = Vectors(str(tmp_path / "bad.npy"))
    assert data.inputs(torch.tensor([0, 2]))["vector"].shape == (2, 2)
    with pytest.raises(ValueError, match="row 1 of vector"):
        data.inputs(torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="ids must lie"):
        data.inputs(torch.tensor([3]))
    np.save(tmp_path / "labels.npy", np.array([0.5, 1, 2]))
    with pytest.raises(ValueError, match="must be integers"):
        Vectors(str(tmp_path / "bad.npy"))
