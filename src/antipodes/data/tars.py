"""Webdataset's tar files: images with captions or classes, read at random by their place in the file.

A sample is all members of one key: ``000123.jpg``, ``000123.txt`` (or a ``caption`` in ``000123.json``) and
``000123.cls``. A manifest, made once, says where each member begins, so that

- every sample has a stable number, in the order of the shards and of the keys in each;
- any sample is read by itself, hence in any order, and a run continues in the middle of an epoch as with any dataset;
- no package is needed, and no file is opened for longer than a read.

The manifest is kept in the user's cache folder and made again for shards whose size or time of change is another one.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from antipodes.data.archives import safe_name, unmarked_end
from antipodes.data.download import cache_root
from antipodes.data.endings import EXTENSIONS
from antipodes.data.folder import natural
from antipodes.data.image_files import Decoding, ImageFiles, Rows
from antipodes.data.image_opening import MOST_BYTES, Source
from antipodes.files import DataError, private_file, private_folder, replacing
from antipodes.plain_text import printable

_TEXTS = (".txt", ".caption", ".text")
_IN_OBJECTS = ("caption", "captions", "text", "title")
_VERSION = 2


class ShardSample(NamedTuple):
    """All members of one key: where its image is, its captions (None without any text), its class."""

    key: str
    start: int
    length: int
    captions: list[str] | None
    label: int | None


class ShardContent(NamedTuple):
    """What one tar file holds, and (name, reason) of what is left out."""

    samples: list[ShardSample]
    skipped: list[tuple[str, str]]


class Tars(ImageFiles):
    """The samples of one or several tar files, as image and text, or as images alone where they have no text.

    Args:
        path: a tar file, a folder of them, or a pattern such as ``shards-{0000..0099}.tar`` or ``shards-*.tar``.
        split: "train" or "test". In a folder whose subfolders are ``train`` and ``test`` (or ``val``) these are it.
        rows: "image", "caption" or "separate", as described at ``Captions``.
        size: side of the views that are made of the images; None as described at ``Folder``.
        decode: side of the decoded images; None as described at ``Folder``.
        limit: keep only this many samples, as described at ``limited``.
        longest: characters that a caption may have.
        strict: refuse the data if anything has to be left out.
        cache: whether decoded images are kept in the user's cache folder.
        workers: processes that decode; None is one per available core, and 0 decodes in this one.
        memory_limit: bytes of pixels up to which they are kept in memory where the cache does not hold them.

    Raises:
        ValueError: if there is no tar file, one is no tar file at all, or nothing can be used.
    """

    _in_archive = True

    def __init__(
        self,
        path: str,
        split: str = "train",
        rows: Rows = "image",
        size: int | None = None,
        decode: int | None = None,
        limit: int | None = None,
        longest: int = 2_000,
        strict: bool = False,
        cache: bool = True,
        workers: int | None = None,
        memory_limit: int = 2_000_000_000,
    ) -> None:
        self.path, self.split = path, split
        self.name = printable(Path(path).name)
        shards = shards_of(path).get(split, [])
        if not shards:
            raise DataError(f"{path} has no tar file of the {split} split: give a .tar file, a folder or a pattern")
        base = shards[0] if Path(path).expanduser().is_file() else shards[0].parent
        names, sources, samples, skipped = _samples(shards)
        has_text = any(sample.captions is not None for sample in samples)
        texts = [(sample.captions or [""]) if has_text else ["-"] for sample in samples]
        # an evaluation knows which captions belong to one image
        self._options: dict[str, Any] = {"path": path, "longest": longest, "strict": strict}
        self._options["rows"] = "caption" if rows == "separate" else rows
        self.skipped = skipped
        kept = self._open_captioned(
            base,
            names,
            sources,
            texts,
            rows=rows,
            limit=limit,
            longest=longest,
            decoding=Decoding(size, decode, cache, workers, memory_limit),
            has_texts=has_text,
        )
        self._check_skipped(path, strict)
        labels = [samples[i].label for i in kept]
        if all(label is not None for label in labels):
            numbers = torch.tensor(labels)
            self.labels = numbers if self._row_images is None else numbers[self._row_images]

    def held_out(self, limit: int | None = None) -> Tars | None:
        """Return the test split, None when there is none or this is it."""
        if self.split == "test" or "test" not in shards_of(self.path):
            return None
        reopened: Tars = self._reopened("test", limit, **self._options)
        return reopened


def shards_of(path: str) -> dict[str, list[Path]]:
    """Return the tar files of each split, in natural order."""
    place = Path(path).expanduser()
    if place.is_file():
        return {"train": [place]}
    if place.is_dir():
        held_out = next((name for name in ("test", "val", "validation") if (place / name).is_dir()), None)
        if (place / "train").is_dir():
            folders = {"train": place / "train"} | ({} if held_out is None else {"test": place / held_out})
        else:
            folders = {"train": place}
        return {split: sorted(folder.glob("*.tar"), key=lambda p: natural(p.name)) for split, folder in folders.items()}
    names = [found for each in _expanded(str(place)) for found in glob.glob(each)]
    return {"train": [Path(name) for name in sorted(set(names), key=natural)]}


def _expanded(pattern: str) -> list[str]:
    """Write out ``{0000..0099}``, the one form of braces that names of shards have."""
    found = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if found is None:
        return [pattern]
    first, last = int(found[1]), int(found[2])
    if last - first > 1_000_000:
        raise DataError(f"{pattern} names {last - first + 1:,} shards: give a folder of them")
    numbers = (f"{number:0{len(found[1])}d}" for number in range(first, last + 1))
    return [each for n in numbers for each in _expanded(pattern[: found.start()] + n + pattern[found.end() :])]


def _samples(shards: list[Path]) -> tuple[list[str], list[Source], list[ShardSample], list[tuple[str, str]]]:
    """Return the names "shard:key" of all samples, their images, the samples themselves, and what is left out."""
    names: list[str] = []
    sources: list[Source] = []
    samples: list[ShardSample] = []
    skipped: list[tuple[str, str]] = []
    keys: set[str] = set()
    for shard in shards:
        content = _manifest(shard)
        skipped += content.skipped
        for sample in content.samples:
            if sample.key in keys:
                skipped.append((f"{shard.name}:{sample.key}", "key that an earlier sample has"))
            else:
                names.append(f"{shard.name}:{sample.key}")
                sources.append(Source(str(shard), sample.start, sample.length))
                samples.append(sample)
        keys |= {sample.key for sample in content.samples}
    return names, sources, samples, skipped


def _manifest(shard: Path) -> ShardContent:
    """Return what a shard holds, from the cache when the shard is still the same."""
    stat = shard.stat()
    state = [_VERSION, stat.st_size, stat.st_mtime_ns]
    name = hashlib.blake2b(os.fsencode(shard.resolve()), digest_size=10).hexdigest()
    kept = cache_root() / "shards" / f"{name}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(kept.read_text())
        if content["state"] == state:
            return ShardContent(
                [ShardSample(*fields) for fields in content["samples"]],
                [(path, reason) for path, reason in content["skipped"]],
            )
    found = read_shard(shard)
    with suppress(OSError):  # a manifest that cannot be kept is made again
        private_folder(kept.parent)
        with replacing(kept) as partial, open(partial, "w", opener=private_file) as file:
            json.dump({"state": state, **found._asdict()}, file)
    return found


def read_shard(shard: Path) -> ShardContent:
    """Read a tar file once: note where images are, and read the small members next to them."""
    places: dict[str, tuple[int, int]] = {}
    captions: dict[str, list[str]] = {}
    labels: dict[str, int] = {}
    keys: dict[str, None] = {}
    skipped: list[tuple[str, str]] = []
    seen: set[str] = set()
    size = shard.stat().st_size
    try:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                name = f"{shard.name}:{member.name}"
                if not member.isreg():
                    continue
                if problem := _problem(member, size, seen):
                    skipped.append((name, problem))
                    continue
                seen.add(member.name)
                key, suffix = _key(member.name)
                keys[key] = None
                if suffix in EXTENSIONS:
                    places.setdefault(key, (member.offset_data, member.size))
                elif suffix in (*_TEXTS, ".json", ".cls") and (file := tar.extractfile(member)) is not None:
                    _note(key, suffix, file.read(), captions, labels)
            if problem := unmarked_end(tar):
                skipped.append((shard.name, problem))
    except (tarfile.TarError, EOFError, OSError) as error:
        if not keys and not skipped:
            raise DataError(f"{shard} cannot be read as a tar file ({error}): get it again") from error
        skipped.append((shard.name, f"the rest of the file is unreadable ({error})"))
    skipped += [(f"{shard.name}:{key}", "no image") for key in keys if key not in places]
    samples = [ShardSample(key, *places[key], captions.get(key), labels.get(key)) for key in keys if key in places]
    return ShardContent(samples, skipped)


def _problem(member: tarfile.TarInfo, size: int, seen: set[str]) -> str | None:
    if safe_name(member.name) is None:
        return "member that would land outside its folder"
    if member.offset_data + member.size > size:
        return "member that is cut off"
    if member.name in seen:
        return "second member of that name"
    if member.size > MOST_BYTES:
        return f"member of more than {MOST_BYTES:,} bytes"
    return None


def _key(name: str) -> tuple[str, str]:
    """Split a member's name at the first dot of its last part, as webdataset does: a/1.seg.png is a/1 and .seg.png."""
    folder, slash, last = name.rpartition("/")
    stem, dot, suffix = last.partition(".")
    return f"{folder}{slash}{stem}", f"{dot}{suffix}".lower()


def _note(key: str, suffix: str, content: bytes, captions: dict[str, list[str]], labels: dict[str, int]) -> None:
    """Take the captions or the class out of a small member; a text counts before an object."""
    if suffix in _TEXTS:
        captions[key] = [content.decode("utf-8", errors="replace")]
        return
    with suppress(ValueError, RecursionError):
        if suffix == ".cls":
            labels[key] = int(content.decode())
            return
        parsed = json.loads(content)
        found = [parsed[name] for name in _IN_OBJECTS if name in parsed] if isinstance(parsed, dict) else []
        value = found[0] if found else None
        if value is not None and key not in captions:
            captions[key] = [str(each) for each in value] if isinstance(value, list) else [str(value)]
