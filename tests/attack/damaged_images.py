"""Damaged images, bombs and files of other kinds under the names of images, as a folder of photos.

A case is a folder of files. Every one of them is either an image of the dataset or one of its `skipped`, by name and
with a reason; no process dies, no Ghostscript starts, and memory and time stay below bounds.
"""

from __future__ import annotations

import io
import json
import os
import random as random_
import struct
import sys
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from tests.attack.harness import Ended, Failure, Outcome, fresh, in_child

FILES = 24  # of a case
SECONDS, MEGABYTES = 60.0, 1_200.0  # of all files of a case; 120 million pixels of RGB are 480 MB in Pillow
KINDS = {"JPEG": "jpg", "PNG": "png", "GIF": "gif", "BMP": "bmp", "TIFF": "tif", "WEBP": "webp"}


def picture(random: random_.Random) -> tuple[bytes, str]:
    """A small image in one of the formats and modes that there are, and the ending of its name."""
    kind = random.choice(list(KINDS))
    mode = random.choice(("RGB", "L", "CMYK") if kind == "JPEG" else ("RGB", "L", "P", "1", "RGBA"))
    mode = "RGB" if kind in ("BMP", "WEBP") and mode in ("P", "1", "RGBA") else mode
    width, height = random.randint(1, 60), random.randint(1, 60)
    image = Image.frombytes("RGB", (width, height), random.randbytes(3 * width * height)).convert(mode)
    options = {"progressive": random.random() < 0.5} if kind == "JPEG" else {}
    if kind == "TIFF":
        options = {"compression": random.choice(("raw", "tiff_lzw", "tiff_deflate", "packbits"))}
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue(), KINDS[kind]


def mutated(data: bytes, random: random_.Random) -> bytes:
    """Bytes that are cut, flipped, overwritten, repeated or joined with others."""
    changed, how = bytearray(data), random.randrange(6)
    place = random.randrange(len(changed)) if changed else 0
    if how == 0:
        return bytes(changed[:place])
    if how == 1:
        for _ in range(random.choice((1, 1, 3, 20))):
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    elif how == 2:
        length = random.randint(1, 40)
        changed[place : place + length] = random.choice((b"\0", b"\xff", random.randbytes(1))) * length
    elif how == 3:
        changed[place:place] = changed[max(0, place - 50) : place + random.randint(1, 200)]
    elif how == 4:
        changed[:64] = bytearray(
            byte if random.random() < 0.9 else random.randrange(256) for byte in changed[:64]
        )  # the header
    else:
        changed += random.randbytes(random.randint(1, 300))
    return bytes(changed)


def png_bomb(random: random_.Random) -> tuple[bytes, str]:
    """A small PNG of very many pixels."""
    side = random.choice((8_000, 12_000, 40_000, 2**31 - 1))

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    rows = zlib.compress(b"\0" * min(side * (side // 8 + 1), 20_000_000), 9)
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""), "png"


def tiff_bomb(random: random_.Random) -> tuple[bytes, str]:
    """A TIFF of few bytes whose header speaks of a long thin image."""
    width, height = random.choice(((48, 3_670_056), (3_000_000, 50), (60_000, 60_000)))
    tags = [(256, 4, width), (257, 4, height), (258, 3, 8), (259, 3, 8), (262, 3, 1), (273, 4, 8)]
    strip = zlib.compress(b"\0" * min(width * height, 5_000_000), 9)
    tags += [(277, 3, 1), (278, 4, height), (279, 4, len(strip))]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    header = b"II*\0" + struct.pack("<I", 8 + len(strip))
    return header + strip + struct.pack("<H", len(tags)) + entries + b"\0" * 4, "tif"


def postscript(random: random_.Random) -> tuple[bytes, str]:
    """PostScript that Pillow's EPS reader would hand to Ghostscript."""
    text = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 40\n%%EndComments\n0 0 40 40 rectfill\nshowpage\n%%EOF\n"
    return text, random.choice(("jpg", "png", "tif", "bmp"))


def other(random: random_.Random) -> tuple[bytes, str]:
    """Something that is no image at all."""
    contents = (b"", b"\0", b"PK\x03\x04" + b"\0" * 50, b"\x80\x04N.", b"<svg onload='x'/>", random.randbytes(400))
    return random.choice(contents), random.choice(list(KINDS.values()))


def content(random: random_.Random) -> tuple[bytes, str]:
    makers: tuple[Callable[[random_.Random], tuple[bytes, str]], ...] = (png_bomb, tiff_bomb, postscript, other)
    if random.random() < 0.04:
        return random.choice(makers)(random)
    data, ending = picture(random)
    return mutated(data, random), ending if random.random() < 0.9 else random.choice(list(KINDS.values()))


def write_case(random: random_.Random, folder: Path) -> list[str]:
    """Fill a folder; returns the names of its files."""
    names = []
    for number in range(FILES):
        data, ending = content(random)
        odd = random.choice(("", "", "", " with spaces", "\n", "\x1b[31m", "é💥", "=1+1"))
        names.append(f"{number}{odd}.{ending}")
        (folder / names[-1]).write_bytes(data)
    if random.random() < 0.3:
        (folder / "loop.jpg").symlink_to("loop.jpg")
        names.append("loop.jpg")
    if random.random() < 0.3:
        os.mkfifo(folder / "pipe.png")
        names.append("pipe.png")
    if random.random() < 0.1:
        with (folder / "sparse.jpg").open("wb") as file:
            file.truncate(20_000_000_000)
        names.append("sparse.jpg")
    file = io.BytesIO()
    Image.new("RGB", (40, 40), "red").save(file, "PNG")
    (folder / "whole.png").write_bytes(file.getvalue())
    return [*names, "whole.png"]


def read(photos: Path) -> int:
    """Open the folder as a dataset, and say in JSON what it holds and what it left out."""
    from antipodes.data.folder import Folder

    warnings.simplefilter("ignore")
    data = Folder(str(photos), size=32, labels="none", cache=False, workers=0)
    json.dump({"files": list(data.files), "skipped": data.skipped}, sys.stdout)
    return 0


def prepare(folder: Path) -> None:
    tools = fresh(folder, "tools")
    program = tools / "gs"
    program.write_text(f"#!/bin/sh\ntouch '{folder}/ghostscript-ran'\nexit 1\n")
    program.chmod(0o755)
    os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ['PATH']}"


def attempt(random: random_.Random, folder: Path) -> Outcome:
    photos = fresh(folder, "photos")
    names = write_case(random, photos)
    judge(in_child(lambda: read(photos), folder, 3 * SECONDS), names)
    marker = folder / "ghostscript-ran"
    if marker.exists():
        marker.unlink()
        raise Failure("Ghostscript was started")
    return "ok"


def judge(ended: Ended, names: list[str]) -> None:
    """Raise a Failure unless the child has told of every file."""
    if ended.timed_out or ended.code:
        raise Failure(f"the reader ended with {ended.code} after {ended.seconds:.0f} s: {ended.errors[-500:]}")
    told = json.loads(ended.out)
    missing = set(names) - set(told["files"]) - {name for name, _ in told["skipped"]}
    if missing:
        raise Failure(f"nothing was said of {sorted(missing)}")
    for name, reason in told["skipped"]:
        if not reason.strip() or len(reason) > 500 or len(reason.splitlines()) > 1 or not reason.isprintable():
            raise Failure(f"{name} is refused by {reason!r}")
    if ended.seconds > SECONDS:
        raise Failure(f"{ended.seconds:.0f} s for {len(names)} files")
    if ended.megabytes > MEGABYTES:
        raise Failure(f"{ended.megabytes:.0f} MB for {len(names)} small files")
