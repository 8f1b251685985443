import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from PIL import Image

from antipodes.data import Folder, pictures, pixel_cache
from antipodes.data.decode import Source
from antipodes.data.pictures import decode_all


@pytest.fixture
def photos(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(pictures, "WORTH_KEEPING", 1)
    folder = tmp_path / "photos"
    folder.mkdir()
    for value in range(6):
        Image.new("RGB", (40, 30), (value, value, value)).save(folder / f"{value}.png")
    (folder / "bad.png").write_bytes(b"damaged")
    return folder


@pytest.fixture
def decoded(monkeypatch):
    """The names of the files that are decoded."""
    names = []
    original = pictures.decode_sources

    def note(sources, size, keep):
        names.extend(os.path.basename(source.path) for source in sources)
        return original(sources, size, keep)

    monkeypatch.setattr(pictures, "decode_sources", note)
    return names


def opened(folder, **options):
    sources = [Source(str(path)) for path in sorted(folder.glob("*.png"))]
    return decode_all(folder, [os.path.basename(s.path) for s in sources], sources, 8, workers=0, **options)


def values(found):
    return found.fetch(torch.arange(len(found)))[:, 0, 0, 0].tolist()


def test_decoded_once(photos, decoded, cache):
    first = opened(photos)
    assert len(decoded) == 7
    assert values(first) == [0, 1, 2, 3, 4, 5]
    assert first.problems == {6: "not an image that can be read"}
    decoded.clear()
    second = opened(photos)
    assert decoded == []
    assert second.in_memory
    assert values(second) == values(first)
    assert (second.digests, second.pixel_digests, second.problems) == (
        first.digests,
        first.pixel_digests,
        first.problems,
    )
    assert torch.equal(second.sizes, first.sizes)
    assert second.sizes.tolist()[0] == [40, 30]
    assert len(list((cache / "decoded").iterdir())) == 1


def test_only_what_changed_is_decoded_again(photos, decoded, cache):
    opened(photos)
    decoded.clear()
    Image.new("RGB", (40, 30), (77, 77, 77)).save(photos / "2.png")
    os.utime(photos / "2.png", ns=(5, 5))
    Image.new("RGB", (40, 30), (50, 50, 50)).save(photos / "00.png")
    (photos / "5.png").unlink()
    found = opened(photos)
    assert sorted(decoded) == ["00.png", "2.png"]
    assert values(found) == [0, 50, 1, 77, 3, 4] or values(found) == [50, 0, 1, 77, 3, 4]
    (folder,) = (cache / "decoded").iterdir()
    assert len(list(folder.glob("pixels-*"))) == 1


@pytest.mark.parametrize("harm", ["cut", "no pixels", "no json", "other version", "nonsense"])
def test_a_damaged_cache_is_as_good_as_none(photos, decoded, cache, harm):
    expected = values(opened(photos))
    decoded.clear()
    (folder,) = (cache / "decoded").iterdir()
    (pixels,) = folder.glob("pixels-*")
    index = folder / "index.json"
    if harm == "cut":
        pixels.write_bytes(pixels.read_bytes()[:100])
    elif harm == "no pixels":
        pixels.unlink()
    elif harm == "no json":
        index.write_text("{")
    elif harm == "other version":
        index.write_text(json.dumps({**json.loads(index.read_text()), "version": 0}))
    else:
        index.write_text(json.dumps({"version": 1, "pixels": pixels.name, "files": {"0.png": [1]}}))
    assert values(opened(photos)) == expected
    assert len(decoded) == 7


def test_the_cache_is_bounded(photos, tmp_path, cache, monkeypatch):
    opened(photos)
    (first,) = (cache / "decoded").iterdir()
    other = tmp_path / "other"
    shutil.copytree(photos, other)
    monkeypatch.setattr(pixel_cache, "CACHE_BYTES", 7 * 3 * 8 * 8 + 2000)
    opened(other)
    (second,) = (cache / "decoded").iterdir()
    assert second != first
    monkeypatch.setattr(pixel_cache, "CACHE_BYTES", 100)
    third = opened(photos)
    assert third.in_memory  # in memory instead
    assert values(third) == [0, 1, 2, 3, 4, 5]


def test_too_much_for_cache_and_memory_is_scanned_once_and_decoded_at_need(photos, decoded, monkeypatch):
    monkeypatch.setattr(pixel_cache, "CACHE_BYTES", 100)
    found = opened(photos, memory_limit=0)
    assert not found.in_memory
    assert len(decoded) == 7
    decoded.clear()
    again = opened(photos, memory_limit=0)
    assert decoded == []
    assert values(again) == values(found) == [0, 1, 2, 3, 4, 5]
    assert again.digests == found.digests


def test_a_cache_that_cannot_be_written_is_done_without(photos, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("ANTIPODES_DATA", str(tmp_path / "file"))
    assert values(opened(photos)) == [0, 1, 2, 3, 4, 5]


def test_no_cache_when_told_so_and_nothing_left_of_an_interrupted_scan(photos, cache, monkeypatch):
    assert values(opened(photos, cache=False)) == [0, 1, 2, 3, 4, 5]
    assert not (cache / "decoded").exists()

    def interrupt(sources, size, keep):
        raise KeyboardInterrupt

    monkeypatch.setattr(pictures, "decode_sources", interrupt)
    with pytest.raises(KeyboardInterrupt):
        opened(photos)
    (folder,) = (cache / "decoded").iterdir()
    assert [path.name for path in folder.iterdir()] == ["lock"]


def test_a_stopped_scan_goes_on_where_it_was(photos, decoded, cache, monkeypatch):
    first = ["0.png", "1.png", "2.png"]

    def stop(sources, size, keep):
        raise KeyboardInterrupt

    note = pictures.decode_sources

    def until_three(sources, size, keep):
        return (note if len(decoded) < 3 else stop)(sources, size, keep)

    with monkeypatch.context() as patched:
        patched.setattr(pictures, "decode_in_workers", lambda decode, sources, workers: one_by_one(decode, sources))
        patched.setattr(pictures, "decode_sources", until_three)
        with pytest.raises(KeyboardInterrupt):
            opened(photos)
    assert decoded == first
    (folder,) = (cache / "decoded").iterdir()
    (pixels,) = folder.glob("pixels-*")
    decoded.clear()
    assert values(opened(photos)) == [0, 1, 2, 3, 4, 5]
    assert decoded == ["3.png", "4.png", "5.png", "bad.png"]
    assert list(folder.glob("pixels-*")) == [pixels]  # written on, not copied
    decoded.clear()
    assert values(opened(photos)) == [0, 1, 2, 3, 4, 5]
    assert decoded == []


def one_by_one(decode, sources):
    for source in sources:
        yield from decode([source])


KILLED = """
import os, signal, sys
from pathlib import Path
from antipodes.data import Folder, pictures
pictures.WORTH_KEEPING, pictures.KEEP_EVERY = 1, 0.0
write = pictures.PixelCache.write
def kill(self, entries, pixels, partially=False):
    write(self, entries, pixels, partially)
    os.kill(os.getpid(), signal.SIGKILL)
pictures.PixelCache.write = kill
Folder(sys.argv[1], size=8, decode=8, workers=0)
"""


def test_a_killed_scan_keeps_what_it_has_written_and_no_orphans(photos, decoded, cache):
    (photos / "bad.png").unlink()
    call = [sys.executable, "-c", KILLED, str(photos)]
    assert subprocess.run(call, timeout=120).returncode == -9
    (folder,) = (cache / "decoded").iterdir()
    (folder / "pixels-00000000").write_bytes(b"of a scan that was killed earlier")
    data = Folder(str(photos), size=8, decode=8, workers=0)
    assert decoded == ["1.png", "2.png", "3.png", "4.png", "5.png"]
    assert data.fetch(torch.arange(6))[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert len(list(folder.glob("pixels-*"))) == 1


def test_a_tensor_that_is_changed_leaves_the_cache_alone(photos):
    opened(photos)
    images = opened(photos).fetch(torch.arange(6))
    images += 9
    assert values(opened(photos)) == [0, 1, 2, 3, 4, 5]


def test_a_smaller_limit_uses_the_larger_cache(photos, decoded):
    (photos / "bad.png").unlink()
    whole = Folder(str(photos), workers=0, size=8, decode=8)
    decoded.clear()
    part = Folder(str(photos), workers=0, size=8, decode=8, limit=3)
    assert decoded == []
    rows = [whole.files.index(file) for file in part.files]
    assert torch.equal(part.fetch(torch.arange(3)), whole.fetch(torch.tensor(rows)))


def test_two_processes_decode_once(photos, cache):
    code = """
import os, sys
from pathlib import Path
from antipodes.data import pictures
from antipodes.data.decode import Source
pictures.WORTH_KEEPING = 1
count, original = [], pictures.decode_sources
def note(sources, size, keep):
    count.extend(sources)
    return original(sources, size, keep)
pictures.decode_sources = note
folder = Path(sys.argv[1])
files = sorted(folder.glob("*.png"))
found = pictures.decode_all(folder, [f.name for f in files], [Source(str(f)) for f in files], 8, workers=0)
assert len(found) == 6
print(len(count))
"""
    call = [sys.executable, "-c", code, str(photos)]
    both = [subprocess.Popen(call, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=120)[0] for process in both]
    assert sorted(answers) == ["0\n", "7\n"]
