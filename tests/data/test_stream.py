"""Images that are listed once and decoded on demand: folders and webdataset shards, changed, damaged and continued."""

from __future__ import annotations

import os
import tarfile
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from antipodes.data import DataError, ImageStream, Loader, open_dataset
from antipodes.data import stream as module

pytestmark = pytest.mark.usefixtures("cache")


def colour(number: int) -> tuple[int, int, int]:
    return 5 * number % 256, 255 - number % 256, 7 * number % 256


def encoded(number: int) -> bytes:
    file = BytesIO()
    Image.new("RGB", (40, 40), colour(number)).save(file, "PNG")
    return file.getvalue()


def folder_of(root: Path, count: int = 12) -> Path:
    for number in range(count):
        place = root / f"class{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"img{number}.png").write_bytes(encoded(number))
    return root


def shards_of(root: Path, count: int = 12, each: int = 5) -> Path:
    root.mkdir(parents=True)
    for first in range(0, count, each):
        with tarfile.open(root / f"shard-{first:03}.tar", "w") as tar:
            for number in range(first, min(first + each, count)):
                texts = f"caption {number}".encode()
                for suffix, content in (("png", encoded(number)), ("txt", texts), ("cls", str(number % 3).encode())):
                    member = tarfile.TarInfo(f"{number:04}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, BytesIO(content))
    return root


def test_a_folder_has_the_rows_of_its_eager_twin(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "photos")
    found, eager = open_dataset(f"stream:{root}"), open_dataset(str(root))
    rows = torch.tensor([7, 0, 11, 7])
    assert torch.equal(found.fetch(rows), eager.fetch(rows))
    assert found.labels is not None
    assert eager.labels is not None
    assert torch.equal(found.labels, eager.labels)
    assert found.classes == eager.classes
    assert (found.image_size, len(found)) == (eager.image_size, 12)
    assert isinstance(found, ImageStream)
    assert found.paths == eager.paths  # type: ignore[attr-defined]
    few = ImageStream(f"stream:{root}", limit=5, labels="none")
    assert (len(few), few.labels) == (5, None)
    assert len(set(few.paths) & set(found.paths)) == 5


def test_shards_have_stable_ids_captions_and_classes(tmp_path: Path) -> None:
    root = shards_of(tmp_path / "shards")
    found = ImageStream(f"stream:{root}")
    inputs = found.inputs(torch.tensor([11, 3]), draw=(0, 1))
    assert inputs["text"] == ["caption 11", "caption 3"]
    images = inputs["image"]
    assert isinstance(images, torch.Tensor)
    assert [tuple(image[:, 0, 0].tolist()) for image in images] == [colour(11), colour(3)]
    assert found.labels is not None
    assert found.labels.tolist() == [number % 3 for number in range(12)]
    assert found.corpus("text") == [f"caption {number}" for number in range(12)]
    assert len(ImageStream(f"stream:{root}/shard-{{000..005}}.tar")) == 10
    # a run continues in the middle of an epoch, and ranks and workers share every batch
    whole = [rows.tolist() for rows, _ in Loader(found, 4, seed=3, workers=2).epoch(1)]
    assert [rows.tolist() for rows, _ in Loader(found, 4, seed=3).epoch(1, start=1)] == whole[1:]
    parts = [[rows.tolist() for rows, _ in Loader(found, 4, seed=3, rank=r, world_size=2).epoch(1)] for r in (0, 1)]
    assert [first + second for first, second in zip(*parts, strict=True)] == whole


def test_it_is_listed_again_only_when_something_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, shards = folder_of(tmp_path / "photos"), shards_of(tmp_path / "shards")
    first = [ImageStream(f"stream:{each}").fingerprint for each in (folder, shards)]
    with monkeypatch.context() as patch:
        patch.setattr(module, "_of_folder", None)
        patch.setattr(module, "_of_shards", None)
        assert [ImageStream(f"stream:{each}").fingerprint for each in (folder, shards)] == first
    (folder / "class0" / "new.png").write_bytes(encoded(50))
    (shards / "shard-010.tar").unlink()
    changed = [ImageStream(f"stream:{each}") for each in (folder, shards)]
    assert [len(each) for each in changed] == [13, 10]
    assert not set(first) & {each.fingerprint for each in changed}


def test_a_listing_that_was_stopped_does_not_read_its_shards_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards, real, read = shards_of(tmp_path / "shards"), module.read_shard, []

    def stopped_at(last: str, shard: Path) -> object:
        if shard.name == last:
            raise KeyboardInterrupt
        read.append(shard.name)
        return real(shard)

    monkeypatch.setattr(module, "read_shard", partial(stopped_at, "shard-010.tar"))
    with pytest.raises(KeyboardInterrupt):
        ImageStream(f"stream:{shards}")
    assert read == ["shard-000.tar", "shard-005.tar"]
    os.utime(shards / "shard-005.tar", ns=(1, 1))  # changed in between
    monkeypatch.setattr(module, "read_shard", partial(stopped_at, ""))
    found = ImageStream(f"stream:{shards}")
    assert read == ["shard-000.tar", "shard-005.tar", "shard-005.tar", "shard-010.tar"]
    whole = ImageStream(f"stream:{shards_of(tmp_path / 'others')}")
    assert found.fingerprint == whole.fingerprint
    assert found.corpus("text") == whole.corpus("text")
    assert not list((tmp_path / "the-cache").glob("listings/*/read"))


def test_a_damaged_image_is_grey_and_named_once(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "photos", 6)
    (root / "class1" / "img1.png").write_bytes(b"no image")
    found = ImageStream(f"stream:{root}")
    row = [Path(path).name for path in found.paths].index("img1.png")
    with pytest.warns(UserWarning, match=r"img1.png cannot be read and is shown as grey") as warned:
        assert (found.fetch(torch.tensor([row, row])) == 128).all()
    assert len(warned) == 1


def test_the_listing_is_small_and_mapped(tmp_path: Path) -> None:
    found = ImageStream(f"stream:{shards_of(tmp_path / 'shards', 400, 200)}")
    listing = found.listing
    arrays = (listing.labels, listing._places, listing._names, listing._name_ends, listing._texts, listing._text_ends)
    assert sum(array.nbytes for array in arrays) / 400 < 100
    assert all(isinstance(array, np.memmap) for array in arrays)


def test_refusals(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        open_dataset(f"stream:{tmp_path / 'empty'}")
    with pytest.raises(DataError, match="is not a folder"):
        open_dataset(f"stream:{tmp_path / 'nowhere'}")
    with pytest.raises(DataError, match="has no test split"):
        open_dataset(f"stream:{folder_of(tmp_path / 'photos')}", split="test")
