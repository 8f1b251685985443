import shutil

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from antipodes.data import Captions, Folder, TensorImages, Texts, Vectors, duplicates
from antipodes.data.describe import group_equal
from antipodes.negatives import Known


def photo(path, seed, size=(20, 20)):
    noise = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)


def test_photos_by_bytes_and_by_pixels(tmp_path):
    for seed, name in enumerate(["0.png", "1.png", "2.png", "3.jpg"]):
        photo(tmp_path / name, seed)
    shutil.copy(tmp_path / "1.png", tmp_path / "4.png")
    shutil.copy(tmp_path / "3.jpg", tmp_path / "5.jpg")
    with Image.open(tmp_path / "1.png") as image:
        image.save(tmp_path / "6.bmp")  # other bytes, the same pixels
    data = Folder(str(tmp_path), size=20)
    assert duplicates(data).tolist() == [-1, 0, -1, 1, 0, 1, 0]
    assert duplicates(data).dtype == torch.int64
    assert data.groups() is duplicates(data)
    assert Known(data.groups()).groups.tolist() == duplicates(data).tolist()
    assert "5 rows are exact duplicates of each other, in 2 groups" in data.describe()


def test_memory_texts_and_vectors(tmp_path):
    images = torch.randint(256, (6, 3, 8, 8), dtype=torch.uint8)
    images[4] = images[1]
    assert duplicates(TensorImages(images)).tolist() == [-1, 0, -1, -1, 0, -1]
    assert "no exact duplicates" in TensorImages(images[:4]).describe()
    (tmp_path / "a.csv").write_text("query,document\nx,y\nxy,\nx,z\nx,y\n")
    data = Texts(str(tmp_path / "a.csv"))
    assert duplicates(data).tolist() == [0, -1, 0]
    np.save(tmp_path / "v.npy", np.array([[1.0, 2], [3, 4], [1, 2]]))
    assert duplicates(Vectors(str(tmp_path / "v.npy"))).tolist() == [0, -1, 0]


def test_captions_of_an_image_are_no_duplicates(tmp_path):
    photo(tmp_path / "a.png", 0)
    photo(tmp_path / "b.png", 1)
    shutil.copy(tmp_path / "b.png", tmp_path / "c.png")
    rows = "".join(f"{name}.png,caption {k}\n" for name in "abc" for k in range(2))
    (tmp_path / "captions.csv").write_text("image,caption\n" + rows)
    assert duplicates(Captions(str(tmp_path))).tolist() == [-1, 0, 0]
    assert duplicates(Captions(str(tmp_path), rows="caption")).tolist() == [-1, -1, 0, 0, 0, 0]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_groups_are_connected_components(rows):
    groups = group_equal([one for one, _ in rows], [other for _, other in rows]).tolist()
    reached = np.eye(len(rows), dtype=bool)
    for i, one in enumerate(rows):
        for j, other in enumerate(rows):
            reached[i, j] = one[0] == other[0] or one[1] == other[1]
    for _ in rows:
        reached = reached @ reached
    for i in range(len(rows)):
        assert (groups[i] < 0) == (reached[i].sum() == 1)
        for j in range(len(rows)):
            if i != j:
                assert (groups[i] == groups[j] >= 0) == reached[i, j]
    found = [group for group in groups if group >= 0]
    assert list(dict.fromkeys(found)) == list(range(len(set(found))))
