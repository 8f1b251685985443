"""Files that are no photos, or ask for too much: refused with a reason, and never handed to another program."""

from __future__ import annotations

import ast
import io
import os
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from antipodes.data import Folder, image_opening, pictures
from antipodes.data.decode import decode_source
from antipodes.data.image_opening import Source, opened_image

PACKAGE = Path(__file__).parents[2] / "src" / "antipodes"
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"


def problem(path: Path) -> str:
    found = decode_source(Source(str(path)), 8)
    assert found.pixels is None
    assert found.problem is not None
    return found.problem


def tall_tiff(height: int) -> bytes:
    """A small raw TIFF of 48 x 40 whose header claims another height."""
    buffer = io.BytesIO()
    Image.new("RGB", (48, 40), (9, 9, 9)).save(buffer, "TIFF")
    data = bytearray(buffer.getvalue())
    (start,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, start)
    for place in range(start + 2, start + 2 + 12 * count, 12):
        if struct.unpack_from("<H", data, place)[0] == 257:  # ImageLength
            struct.pack_into("<HHII", data, place, 257, 4, 1, height)
    return bytes(data)


def scanned_jpeg(side: int, scans: int) -> bytes:
    """A progressive JPEG whose last scan is repeated."""
    buffer = io.BytesIO()
    Image.new("L", (side, side), 77).save(buffer, "JPEG", progressive=True)
    data = buffer.getvalue()
    last = data[data.rfind(b"\xff\xda") : -2]
    return data[:-2] + last * scans + data[-2:]


def test_postscript_never_reaches_ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = tmp_path / "called"
    program = tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {called}\nexit 0\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "x.jpg").write_bytes(POSTSCRIPT)
    code = (
        "import sys\nfrom antipodes.data.decode import decode_source\nfrom antipodes.data.image_opening import Source\n"
        "from antipodes.auditing.photos import read_image\n"
        "assert decode_source(Source(sys.argv[1]), 8).pixels is None\n"
        "try:\n    read_image(sys.argv[1])\nexcept ValueError as error:\n    assert sys.argv[1] in str(error)\n"
    )
    paths = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "x.jpg")], env=paths, check=True, timeout=120)
    assert not called.exists()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF"])
def test_photos_are_read_in_every_format_that_they_come_in(kind: str) -> None:
    Image.init()
    if kind not in Image.SAVE:
        pytest.skip(f"this Pillow was built without {kind}")
    buffer = io.BytesIO()
    Image.new("RGB", (20, 10), (200, 100, 50)).save(buffer, kind)
    with opened_image(buffer.getvalue()) as image:
        assert image.size == (20, 10)
        assert abs(int(np.asarray(image.convert("RGB"))[0, 0, 0]) - 200) < 30


def test_images_are_opened_in_one_place_only() -> None:
    callers = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "open" and ast.unparse(node.value).endswith("Image"):
                callers.add(path.name)
            if isinstance(node, ast.ImportFrom) and node.module == "PIL.Image":
                callers |= {path.name for each in node.names if each.name == "open"}
    assert callers == {"image_opening.py"}
    assert "formats=" in (PACKAGE / "data" / "image_opening.py").read_text()


def test_an_image_of_too_many_pixels_is_refused_at_once(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.tif"
    bomb.write_bytes(tall_tiff(3_670_056))
    assert bomb.stat().st_size < 6000
    start = time.perf_counter()
    assert "48 x 3670056 pixels" in problem(bomb)
    assert time.perf_counter() - start < 2
    bomb.write_bytes(tall_tiff(4000))  # what a header may well say
    assert decode_source(Source(str(bomb)), 8).pixels is not None


def test_a_sparse_file_is_not_read(tmp_path: Path) -> None:
    huge = tmp_path / "huge.jpg"
    with huge.open("wb") as file:
        file.truncate(20_000_000_000)
    start = time.perf_counter()
    assert "20,000,000,000 bytes" in problem(huge)
    assert time.perf_counter() - start < 1


def test_a_jpeg_of_endless_scans_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "scans.jpg"
    file.write_bytes(scanned_jpeg(4000, 1000))
    assert "scans" in problem(file)
    file.write_bytes(scanned_jpeg(400, 10))
    assert decode_source(Source(str(file)), 8).pixels is not None


def test_decoding_is_bounded_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_opening, "MOST_SECONDS", 0.01)
    slow = tmp_path / "slow.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (2500, 2500, 3), np.uint8)).save(slow, compress_level=1)
    assert "seconds" in problem(slow)
    small = tmp_path / "small.png"
    Image.new("RGB", (40, 30)).save(small)
    assert decode_source(Source(str(small)), 8).pixels is not None


def test_bombs_in_a_folder_are_skipped_by_name(tmp_path: Path) -> None:
    for value in range(3):
        Image.new("RGB", (40, 30), (value, 0, 0)).save(tmp_path / f"{value}.png")
    (tmp_path / "bomb.tif").write_bytes(tall_tiff(3_670_056))
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    with pytest.warns(UserWarning, match="bomb.tif"):
        data = Folder(str(tmp_path), size=32)
    assert len(data) == 3
    assert {name for name, _ in data.skipped} == {"bomb.tif", "loop.jpg"}


HEIF = """
from PIL import Image, ImageFile

class Toy(ImageFile.ImageFile):
    format = "HEIF"
    def _open(self):
        assert self.fp.read(4) == b"HEIF"
        self._size, self._mode = (4, 4), "RGB"
        self.tile = [("raw", (0, 0, 4, 4), 4, ("RGB", 0, 1))]

def register_heif_opener():
    Image.register_open("HEIF", Toy, lambda start: start.startswith(b"HEIF"))
"""


def test_a_photo_refused_for_a_missing_package_is_read_once_it_is_installed(tmp_path: Path, cache: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for value in range(pictures.WORTH_KEEPING):
        Image.new("RGB", (8, 8), (value % 250, 0, 0)).save(photos / f"{value}.bmp")
    (photos / "x.heic").write_bytes(b"HEIF" + bytes([7]) * 48)
    package = tmp_path / "packages"
    package.mkdir()
    call = [
        sys.executable,
        "-c",
        "import sys; from antipodes.data import Folder; print(len(Folder(sys.argv[1])))",
        photos,
    ]
    paths = os.environ | {"PYTHONPATH": f"{package}:{PACKAGE.parent}"}

    def count() -> tuple[int, str]:
        done = subprocess.run(call, env=paths, capture_output=True, text=True, check=True, timeout=120)
        return int(done.stdout), done.stderr

    (package / "pillow_heif.py").write_text("raise ImportError('not installed')")
    assert count()[0] == pictures.WORTH_KEEPING
    assert "x.heic" in count()[1]
    assert list((cache / "decoded").glob("*/index.json"))
    (package / "pillow_heif.py").write_text(HEIF)
    assert count() == (pictures.WORTH_KEEPING + 1, "")
