import io
import json
import os
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from antipodes.data import Loader, Tars, open_dataset, tars


def picture(value):
    file = io.BytesIO()
    Image.fromarray(np.full((10, 12, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def shard(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as file:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return path


def pair(value, text=None):
    return [(f"{value:04d}.png", picture(value)), (f"{value:04d}.txt", (text or f"number {value}").encode())]


def shown(data, rows=None):
    rows = torch.arange(len(data)) if rows is None else torch.tensor(rows)
    inputs = data.inputs(rows)
    return list(zip(inputs["image"][:, 0, 0, 0].tolist(), inputs["text"], strict=True))


@pytest.fixture
def shards(tmp_path, cache):
    folder = tmp_path / "shards"
    shard(folder / "s-10.tar", [*pair(5), *pair(6)])
    shard(folder / "s-9.tar", [*pair(1), *pair(2), *pair(3)])
    return folder


def test_ids_follow_shards_and_keys(shards):
    data = open_dataset(str(shards))
    assert isinstance(data, Tars)
    assert shown(data) == [(value, f"number {value}") for value in (1, 2, 3, 5, 6)]
    assert shown(data, [4, 0]) == [(6, "number 6"), (1, "number 1")]
    assert data.paths[3] == "s-10.tar:0005"
    for pattern in ("s-{9..10}.tar", "s-*.tar"):
        assert shown(open_dataset(str(shards / pattern))) == shown(data)
    assert shown(open_dataset(str(shards / "s-9.tar"))) == shown(data)[:3]


def test_the_manifest_is_made_once_and_follows_the_shards(shards, monkeypatch):
    expected = shown(Tars(str(shards)))
    with monkeypatch.context() as patch:
        patch.setattr(tars, "read_shard", lambda path: pytest.fail("read again"))
        assert shown(Tars(str(shards))) == expected
    shard(shards / "s-9.tar", [*pair(1), *pair(2, "another")])
    os.utime(shards / "s-9.tar", ns=(1, 1))
    assert shown(Tars(str(shards)))[1] == (2, "another")


def test_objects_classes_and_images_alone(tmp_path, cache):
    objects = [("a/1.png", picture(1)), ("a/1.json", json.dumps({"caption": "one", "url": "x"}).encode())]
    objects += [("a/2.png", picture(2)), ("a/2.json", json.dumps({"captions": ["two", "zwei"]}).encode())]
    data = Tars(str(shard(tmp_path / "o.tar", objects)))
    assert [data.captions(row) for row in range(2)] == [["one"], ["two", "zwei"]]
    classes = [("1.png", picture(1)), ("1.cls", b"3"), ("2.png", picture(2)), ("2.cls", b"0")]
    data = open_dataset(str(shard(tmp_path / "c.tar", classes)))
    assert data.modalities == {"image": "image"}
    assert data.labels.tolist() == [3, 0]
    assert list(data.inputs(torch.tensor([0]))) == ["image"]


def test_splits(tmp_path, cache):
    shard(tmp_path / "train" / "0.tar", pair(1))
    shard(tmp_path / "val" / "0.tar", pair(2))
    data = Tars(str(tmp_path))
    assert shown(data) == [(1, "number 1")]
    assert shown(data.held_out()) == [(2, "number 2")]
    assert data.held_out().held_out() is None


def test_what_cannot_be_used_is_counted(tmp_path, cache):
    members = [*pair(1), ("../../out.png", picture(9)), *pair(1, "again"), ("3.txt", b"no image"), *pair(4, " ")]
    members += [("5.png", b"damaged"), ("5.txt", b"five"), ("6.png", picture(6))]
    shard(tmp_path / "a.tar", members)
    shard(tmp_path / "b.tar", [*pair(1, "other shard"), *pair(7)])
    data = Tars(str(tmp_path))
    assert shown(data) == [(1, "number 1"), (7, "number 7")]
    assert sorted(data.skipped) == [
        ("a.tar:../../out.png", "member that would land outside its folder"),
        ("a.tar:0001.png", "second member of that name"),
        ("a.tar:0001.txt", "second member of that name"),
        ("a.tar:0004", "empty caption"),
        ("a.tar:3", "no image"),
        ("a.tar:5", "not an image that can be read"),
        ("a.tar:6", "empty caption"),
        ("b.tar:0001", "key that an earlier sample has"),
    ]
    assert not (tmp_path.parent / "out.png").exists()


def test_a_tar_that_is_cut_where_tarfile_ends_quietly_says_so(tmp_path, cache):
    for beyond in [0, 100, 512]:
        path = shard(tmp_path / "a.tar", [*pair(1), *pair(2), *pair(3)])
        with tarfile.open(path) as file:
            cut = file.getmember("0003.png").offset + beyond
        path.write_bytes(path.read_bytes()[:cut])
        data = Tars(str(path))
        assert shown(data) == [(1, "number 1"), (2, "number 2")]
        if beyond < 512:
            assert data.skipped == [("a.tar", "the file ends without its end mark: it is cut off")]
        assert data.skipped == Tars(str(path)).skipped != []  # also when the manifest comes from the cache
        with pytest.raises(ValueError, match="cannot be used, the first is"):
            Tars(str(path), strict=True)


def test_a_damaged_header_does_not_hide_what_follows(tmp_path, cache):
    path = shard(tmp_path / "a.tar", [*pair(1), *pair(2)])
    with tarfile.open(path) as file:
        start = file.getmember("0002.png").offset
    content = bytearray(path.read_bytes())
    content[start : start + 512] = b"x" * 512
    path.write_bytes(content)
    assert Tars(str(path)).skipped == [("a.tar", "the rest of the file is unreadable (a header is damaged)")]


def test_a_truncated_tar_gives_what_is_there(tmp_path, cache):
    path = shard(tmp_path / "a.tar", [member for value in range(5) for member in pair(value)])
    whole = path.read_bytes()
    with tarfile.open(path) as file:
        cut = file.getmember("0003.png").offset_data + 20
    path.write_bytes(whole[:cut])
    data = Tars(str(path))
    assert shown(data) == [(value, f"number {value}") for value in range(3)]
    assert ("a.tar:0003.png", "member that is cut off") in data.skipped
    path.write_bytes(b"no tar at all" * 100)
    with pytest.raises(ValueError, match="cannot be read as a tar file"):
        Tars(str(path))
    with pytest.raises(ValueError, match="no tar file of the train split"):
        Tars(str(tmp_path / "gone-*.tar"))


def test_random_access_without_memory_equals_memory(shards):
    lazy = Tars(str(shards), memory_limit=0)
    assert not lazy.in_memory
    assert shown(lazy, [3, 1]) == shown(Tars(str(shards)), [3, 1])
    assert lazy.fingerprint == Tars(str(shards)).fingerprint
    order = Loader(lazy, 2, seed=0).order(1)
    assert order.shape == (2, 2)
