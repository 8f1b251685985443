import os
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from antipodes.data import Folder, Loader, open_dataset

CLOTHING = Path(__file__).parents[3] / "shared" / "data" / "clothing_small_96.zip"


def save(path, value, size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(path)


def values(data):
    return data.fetch(torch.arange(len(data)))[:, 0, 0, 0].tolist()


def test_flat_folder_in_natural_order(tmp_path):
    for value, name in enumerate(["img1.png", "img2.png", "img10.png", "IMG11.png", "img100.bmp"]):
        save(tmp_path / name, value)
    (tmp_path / "notes.txt").write_text("not an image")
    (tmp_path / ".hidden.png").write_bytes(b"not shown")
    data = open_dataset(str(tmp_path), size=4, decode=4)
    assert isinstance(data, Folder)
    assert data.files == ("img1.png", "img2.png", "img10.png", "IMG11.png", "img100.bmp")
    assert values(data) == [0, 1, 2, 3, 4]
    assert data.labels is None
    assert data.held_out() is None
    assert data.image_size == 4


def test_class_subfolders_give_labels_at_any_depth(tmp_path):
    save(tmp_path / "class10" / "a.png", 1)
    save(tmp_path / "class2" / "b.png", 2)
    save(tmp_path / "class2" / "deeper" / "a.png", 3)
    data = Folder(str(tmp_path))
    assert data.classes == ("class2", "class10")
    assert data.labels.tolist() == [0, 0, 1]
    assert values(data) == [2, 3, 1]


def test_images_beside_subfolders_or_a_single_subfolder_give_no_labels(tmp_path):
    save(tmp_path / "one" / "a.png", 1)
    save(tmp_path / "one" / "b.png", 2)
    assert Folder(str(tmp_path)).labels is None
    save(tmp_path / "two" / "c.png", 3)
    assert Folder(str(tmp_path)).labels.tolist() == [0, 0, 1]
    save(tmp_path / "d.png", 4)
    assert Folder(str(tmp_path)).labels is None


@pytest.mark.parametrize("name", ["test", "val", "validation"])
def test_splits_share_their_classes(tmp_path, name):
    for value, path in enumerate(["train/a/1", "train/b/1", "train/c/1", f"{name}/c/1", f"{name}/a/1"]):
        save(tmp_path / f"{path}.png", value)
    data = Folder(str(tmp_path), size=5)
    assert values(data) == [0, 1, 2]
    test = data.held_out()
    assert values(test) == [4, 3]
    assert test.labels.tolist() == [0, 2]
    assert test.classes == data.classes == ("a", "b", "c")
    assert test.image_size == 5
    assert test.held_out() is None
    assert values(Folder(str(tmp_path), split="test")) == [4, 3]


def test_train_among_other_classes_is_a_class(tmp_path):
    save(tmp_path / "train" / "a.png", 1)
    save(tmp_path / "plane" / "a.png", 2)
    data = Folder(str(tmp_path))
    assert data.classes == ("plane", "train")
    assert data.held_out() is None
    with pytest.raises(ValueError, match="no test split"):
        Folder(str(tmp_path), split="test")


def damage(folder):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "cut.jpg")
    content = (folder / "cut.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(content[: len(content) // 2])
    (folder / "empty.png").write_bytes(b"")


@pytest.mark.parametrize("memory_limit", [2_000_000_000, 0])
def test_damaged_images_are_left_out_with_one_warning(tmp_path, memory_limit):
    save(tmp_path / "a.png", 1)
    save(tmp_path / "z.png", 2)
    damage(tmp_path)
    with pytest.warns(UserWarning, match=r"left out 2 damaged of 4 images.*cut\.jpg, empty\.png") as caught:
        data = Folder(str(tmp_path), memory_limit=memory_limit)
    assert len(caught) == 1
    assert len(data) == 2
    assert values(data) == [1, 2]


def test_strict_refuses_damaged_images(tmp_path):
    save(tmp_path / "a.png", 1)
    damage(tmp_path)
    with pytest.raises(ValueError, match=r"2 image\(s\) or row\(s\) of .* cannot be used.*cut\.jpg"):
        Folder(str(tmp_path), strict=True)


def test_folders_without_images_are_refused(tmp_path):
    with pytest.raises(ValueError, match="is not a folder"):
        Folder(str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="holds no images"):
        Folder(str(tmp_path))
    damage(tmp_path)
    with pytest.raises(ValueError, match="no image that can be used: of 2"):
        Folder(str(tmp_path))


def test_shorter_side_is_scaled_and_the_centre_kept(tmp_path):
    picture = np.zeros((20, 60, 3), dtype=np.uint8)
    picture[:, 20:40, 0] = 200
    Image.fromarray(picture).save(tmp_path / "wide.png")
    image = Folder(str(tmp_path), size=10, decode=10).fetch(torch.tensor([0]))[0]
    assert image.shape == (3, 10, 10)
    assert image[0, :, 1:-1].min() > 195
    assert image[0].min() > 150  # the edge columns mix with what was cut off
    assert int(image[1:].sum()) == 0


def test_modes_become_colour(tmp_path):
    Image.new("L", (8, 8), 70).save(tmp_path / "1.png")
    Image.new("RGBA", (8, 8), (70, 70, 70, 255)).save(tmp_path / "2.png")
    Image.new("P", (8, 8), 0).save(tmp_path / "3.gif")
    Image.fromarray(np.full((8, 8), 70 << 8, dtype=np.uint16)).save(tmp_path / "4.png")
    assert values(Folder(str(tmp_path))) == [70, 70, 0, 70]


def test_exif_orientation_is_obeyed(tmp_path):
    picture = np.zeros((8, 8, 3), dtype=np.uint8)
    picture[:4] = 255
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(picture).save(tmp_path / "a.png", exif=exif)
    image = Folder(str(tmp_path), size=8).fetch(torch.tensor([0]))[0]
    assert int(image[:, :4].sum()) == 0
    assert image[:, 4:].unique().tolist() == [255]


def test_fingerprint_follows_names_content_and_size(tmp_path):
    save(tmp_path / "a.bmp", 1)
    save(tmp_path / "b.bmp", 2)
    first = Folder(str(tmp_path)).fingerprint
    assert Folder(str(tmp_path), memory_limit=0).fingerprint == first
    seen = {first, Folder(str(tmp_path), size=16).fingerprint}
    save(tmp_path / "b.bmp", 3)  # as many bytes as before
    seen.add(Folder(str(tmp_path)).fingerprint)
    (tmp_path / "b.bmp").rename(tmp_path / "c.bmp")
    seen.add(Folder(str(tmp_path)).fingerprint)
    assert len(seen) == 4


def test_limits_are_nested(tmp_path):
    for value in range(30):
        save(tmp_path / f"{value}.png", value)
    assert values(Folder(str(tmp_path), limit=20))[:7] == values(Folder(str(tmp_path), limit=7))


def test_worker_processes_change_nothing(tmp_path):
    for value in range(150):
        save(tmp_path / f"{value}.png", value)
    (tmp_path / "70.png").write_bytes(b"damaged")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here, there = Folder(str(tmp_path), workers=0), Folder(str(tmp_path), workers=2)
        lazy = Folder(str(tmp_path), workers=2, memory_limit=1000)
    assert values(here) == values(there) == values(lazy) == [i for i in range(150) if i != 70]
    assert here.in_memory
    assert not lazy.in_memory
    assert here.fingerprint == there.fingerprint == lazy.fingerprint
    loaded = list(Loader(lazy, 50, seed=0, workers=2).epoch(0))
    for (rows, inputs), (rows_here, inputs_here) in zip(loaded, Loader(here, 50, seed=0).epoch(0), strict=True):
        assert torch.equal(rows, rows_here)
        assert torch.equal(inputs["image"], inputs_here["image"])


def test_a_file_lost_after_the_scan_is_named(tmp_path):
    save(tmp_path / "a.png", 1)
    save(tmp_path / "b.png", 2)
    data = Folder(str(tmp_path), memory_limit=0)
    (tmp_path / "b.png").unlink()
    with pytest.raises(ValueError, match=r"b\.png was readable"):
        data.fetch(torch.tensor([1]))


@pytest.mark.skipif(not CLOTHING.is_file(), reason="the clothing photos are not there")
def test_clothing_photos(tmp_path):
    with zipfile.ZipFile(CLOTHING) as archive:
        photos = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        archive.extractall(tmp_path, photos[::100])
    data = Folder(str(tmp_path / "clothing-small"), size=48)
    train = [name for name in photos[::100] if "/train/" in name]
    assert len(data) == len(train)
    assert len(data.classes) == 10
    for file, label in zip(data.files, data.labels.tolist(), strict=True):
        assert file.split("/")[0] == data.classes[label]
    assert data.fetch(torch.arange(len(data))).float().std() > 20
    assert len(data.held_out()) == sum("/test/" in name for name in photos[::100])


def photo(path, size=(40, 30), seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)


def test_sizes_of_views_and_of_decoded_images(tmp_path):
    for own, given, expected in [
        ((300, 200), {}, (64, 73)),
        ((300, 200), {"size": 128}, (128, 146)),
        ((300, 240), {"size": 224}, (224, 240)),
        ((600, 500), {"size": 224}, (224, 256)),
        ((50, 48), {}, (48, 48)),
        ((16, 16), {}, (32, 32)),
        ((300, 200), {"decode": 48}, (48, 48)),
        ((300, 200), {"size": 32, "decode": 100}, (32, 100)),
    ]:
        photo(tmp_path / "a.png", own)
        data = Folder(str(tmp_path), **given)
        assert (data.image_size, data.decode) == expected
        assert data.fetch(torch.tensor([0])).shape == (1, 3, data.decode, data.decode)


def test_labels_can_be_turned_off(tmp_path):
    save(tmp_path / "summer" / "a.png", 1)
    save(tmp_path / "winter" / "b.png", 2)
    data = Folder(str(tmp_path))
    assert data.classes == ("summer", "winter")
    assert any(
        "2 classes, one for every subfolder" in line and "--data.labels none" in line for line in data.describe()
    )
    data = Folder(str(tmp_path), labels="none")
    assert data.labels is data.classes is None
    assert "no labels" in data.describe()
    with pytest.raises(ValueError, match="labels must be"):
        Folder(str(tmp_path), labels="albums")
    with pytest.raises(ValueError, match="no labels, so no classes"):
        Folder(str(tmp_path), labels="none", classes=1)


def test_some_classes_in_both_splits(tmp_path):
    for split in ("train", "test"):
        for value, name in enumerate("abcdef"):
            save(tmp_path / split / name / "1.png", value)
    data = Folder(str(tmp_path), classes="b,e")
    assert data.classes == ("b", "e")
    assert values(data) == [1, 4]
    assert values(data.held_out()) == [1, 4]
    assert data.held_out().labels.tolist() == [0, 1]
    three, two = Folder(str(tmp_path), classes=3), Folder(str(tmp_path), classes=2)
    assert set(two.classes) < set(three.classes)
    assert three.labels.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="no class 'z'"):
        Folder(str(tmp_path), classes=["a", "z"])
    with pytest.raises(ValueError, match=r"classes must be in 1\.\.6"):
        Folder(str(tmp_path), classes=7)


def test_what_is_no_image_is_counted_with_a_reason(tmp_path):
    photo(tmp_path / "a.jpg")
    photo(tmp_path / "c.avif")
    (tmp_path / "b.jfif").write_bytes((tmp_path / "a.jpg").read_bytes())
    (tmp_path / "d.heic").write_bytes(b"\0\0\0\x18ftypheic")
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "null.jpg").symlink_to("/dev/zero")
    (tmp_path / "lost.jpg").symlink_to(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("other")
    with pytest.warns(UserWarning, match="left out 4"):
        data = Folder(str(tmp_path))
    assert data.files == ("a.jpg", "b.jfif", "c.avif")
    assert dict(data.skipped) == {
        "d.heic": "HEIC, which needs the package pillow-heif",
        "lost.jpg": "No such file or directory",
        "null.jpg": "not a plain file",
        "pipe.jpg": "not a plain file",
    }
    lines = data.describe()
    assert lines[0].startswith(f"3 images of 40 x 30 pixels in {tmp_path}")
    assert "passed over 1 other files" in lines
    assert "left out 2: not a plain file (null.jpg, ...)" in lines


def test_unreadable_subfolders_are_counted(tmp_path, monkeypatch):
    save(tmp_path / "good" / "a.png", 1)
    save(tmp_path / "shut" / "b.png", 2)
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("shut"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.warns(UserWarning, match="shut"):
        data = Folder(str(tmp_path))
    assert data.skipped == [("shut", "folder that cannot be read: Permission denied")]


def test_names_that_are_no_utf8(tmp_path):
    name = os.fsdecode(b"caf\xe9.png")
    save(tmp_path / "x.png", 3)
    try:
        (tmp_path / "x.png").rename(tmp_path / name)
    except OSError:
        pytest.skip("this file system takes only UTF-8")
    (tmp_path / os.fsdecode(b"broken\xff.png")).write_bytes(b"damaged")
    with pytest.warns(UserWarning, match=r"broken\\xff"):
        data = Folder(str(tmp_path))
    assert data.files == (name,)
    assert values(data) == [3]
    assert len(data.fingerprint) == 16
    "\n".join(data.describe()).encode()
    data.write_skipped(tmp_path / "skipped.csv")
    assert "broken" in (tmp_path / "skipped.csv").read_text()


def test_a_zip_of_class_folders_is_data(tmp_path, cache):
    for split in ("train", "test"):
        for value, name in enumerate("ab"):
            save(tmp_path / "set" / split / name / "1.png", value)
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as file:
        for path in sorted((tmp_path / "set").rglob("*.png")):
            file.write(path, path.relative_to(tmp_path))
    data = open_dataset(str(tmp_path / "set.zip"))
    assert isinstance(data, Folder)
    assert data.name == "set.zip"
    assert values(data) == values(data.held_out()) == [0, 1]
    assert data.classes == ("a", "b")


def test_cifar100_as_a_zip(shared_data, cache, tmp_path):
    with zipfile.ZipFile(shared_data / "cifar100_20k.zip") as archive, zipfile.ZipFile(tmp_path / "c.zip", "w") as part:
        for name in sorted(archive.namelist())[::100]:
            part.writestr(name, archive.read(name))
    data = open_dataset(str(tmp_path / "c.zip"), classes=20)
    assert len(data.classes) == 20
    assert (data.image_size, data.decode) == (32, 32)
    assert data.held_out().classes == data.classes
