import gzip
import struct
import urllib.error

import numpy as np
import pytest
import torch

from antipodes.data import download, named_arrays, open_dataset


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(folder, suffix, pack):
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 28, 28), dtype=np.uint8)
    labels = np.array([9, 0, 3, 1, 2], dtype=np.uint8)
    for prefix, count in (("train", 5), ("t10k", 2)):
        (folder / f"{prefix}-images-idx3-ubyte{suffix}").write_bytes(pack(idx(pixels[:count])))
        (folder / f"{prefix}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx(labels[:count])))
    return pixels


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    def refuse(*args, **kwargs):
        raise urllib.error.URLError("no network in this test")

    monkeypatch.setattr(download.urllib.request, "urlopen", refuse)
    monkeypatch.setattr(named_arrays, "_DEBIAN", tmp_path / "debian")


@pytest.mark.parametrize(
    ("place", "suffix", "pack"),
    [("root", "", bytes), ("root/fashion-mnist", ".gz", gzip.compress), ("debian", ".gz", gzip.compress)],
)
def test_grey_28_is_padded_to_colour_32(tmp_path, suffix, pack, place):
    pixels = write(tmp_path / place, suffix, pack)
    data = open_dataset("fashion-mnist", root=str(tmp_path / "root"))
    fetched = data.fetch(torch.arange(5))
    assert fetched.shape == (5, 3, 32, 32)
    assert torch.equal(fetched[:, 1, 2:30, 2:30], torch.from_numpy(pixels))
    assert torch.equal(fetched[:, 0], fetched[:, 2])
    assert int(fetched.sum()) == 3 * int(pixels.sum(dtype=np.int64))
    assert data.labels.tolist() == [9, 0, 3, 1, 2]
    assert data.classes[9] == "ankle boot"
    assert data.held_out().labels.tolist() == [9, 0]
    assert len(data.fingerprint) == 16


def test_read_idx_refuses_other_files(tmp_path):
    whole = idx(np.zeros((3, 4), dtype=np.uint8))
    for content in (b"", whole[:-1], b"\0\0\x0d" + whole[3:], gzip.compress(whole)[:-9], b"words and words"):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(ValueError, match="idx file"):
            named_arrays.read_idx(tmp_path / "file")


def test_nothing_reachable_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="install Debian's package dataset-fashion-mnist"):
        open_dataset("fashion-mnist", root=str(tmp_path / "empty"))
    assert not (tmp_path / "empty").exists()
