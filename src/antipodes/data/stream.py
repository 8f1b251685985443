"""`ImageStream`: very many images, which are listed once and decoded when they are asked for: `--data stream:PATH`.

1. A listing of the folder or of the webdataset shards is made once, in files of the user's cache folder: of every image
   its name, class, captions and place. Its row is the image's id, in every epoch, process and later run.
2. All processes map these files, about 60 bytes an image, so no memory grows with the number of images. The next start
   opens the files at once, if no folder or shard has changed since.
3. Nothing is decoded before the first step, and no pixels are kept: `--workers` processes decode what a batch needs.

An image that cannot be read is grey, with one warning in each process: ids stay, and training goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodes.data.columns import Column, draw_choices
from antipodes.data.dataset import DataError, Samples, Split, check_split, limited
from antipodes.data.decode import decode_source
from antipodes.data.download import cache_root
from antipodes.data.folder import list_images, open_folder, splits_of
from antipodes.data.image_opening import Source
from antipodes.data.pictures import decode_size
from antipodes.data.tars import ShardContent, ShardSample, read_shard, shards_of
from antipodes.files import private_folder, replacing
from antipodes.plain_text import printable
from antipodes.progress import Progress, progress_bar

_VERSION = 1
_READ = "read"  # folder of a listing that is being made
_GREY = 128
_HEADERS_READ = 64  # images that say how large the others are


class StreamListing:
    """Where every image is: arrays in a folder, mapped into memory.

    Args:
        folder: Of the arrays.

    Attributes:
        facts: What is known about all of them: root, classes, files that were left out, digest.
        labels: (n,) int64, -1 without classes.
    """

    def __init__(self, folder: Path) -> None:
        self.facts: dict[str, Any] = json.loads((folder / "listing.json").read_text())
        self.labels, self._places = _mapped(folder, "labels"), _mapped(folder, "places")
        self._names, self._name_ends = _mapped(folder, "names"), _mapped(folder, "name_ends")
        self._texts, self._text_ends = _mapped(folder, "texts"), _mapped(folder, "text_ends")

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, row: int) -> str:
        """Return the path of an image below the root, or the shard and the key of a sample."""
        return _text(self._names, self._name_ends, row)

    def captions(self, row: int) -> list[str]:
        """Return the captions of an image, at least one text."""
        return _text(self._texts, self._text_ends, row).split("\0")

    @property
    def has_texts(self) -> bool:
        """Return True if the images have captions."""
        return len(self._text_ends) > 0

    def source(self, row: int) -> Source:
        """Return where the bytes of an image are."""
        root = self.facts["root"]
        if not len(self._places):
            return Source(os.path.join(root, self.name(row)))
        shard, start, length = self._places[row].tolist()
        return Source(os.path.join(root, self.facts["shards"][shard]), start, length)


def _mapped(folder: Path, name: str) -> NDArray[Any]:
    """Return an array of a listing, mapped into memory unless it is empty."""
    file = folder / f"{name}.npy"
    try:
        array: NDArray[Any] = np.load(file, mmap_mode="c")
    except ValueError:  # nothing can be mapped of an empty file
        array = np.load(file)
    return array


def _text(blob: NDArray[np.uint8], ends: NDArray[np.int64], row: int) -> str:
    start = int(ends[row - 1]) if row else 0
    return blob[start : int(ends[row])].tobytes().decode(errors="surrogateescape")


def open_listing(place: str, split: str, classes: bool) -> StreamListing:
    """Open the listing of a folder or of shards; make it if there is none, or if the images have changed.

    Args:
        place: The folder, a tar file or a pattern of tar files.
        split: Which split of it.
        classes: Whether subfolders are classes.

    Raises:
        DataError: if there are no images.
    """
    shards = shards_of(place).get(split, [])
    root = shards[0].parent if shards else splits_of(open_folder(place)).get(split)
    if root is None:
        raise DataError(f"{place} has no {split} split")
    identity = f"{root.resolve()}\0{place if shards else ''}\0{split}\0{classes}"
    folder = cache_root() / "listings" / hashlib.blake2b(os.fsencode(identity), digest_size=10).hexdigest()
    state = _state(shards)
    try:
        listing = StreamListing(folder)
        known = listing.facts["state"]
        if listing.facts["version"] == _VERSION and (known == state if shards else known == _state(map(Path, known))):
            return listing
    except (OSError, ValueError, KeyError):
        pass
    with progress_bar("listing images") as progress:
        columns, facts = _of_shards(shards, folder / _READ, progress) if shards else _of_folder(root, classes, progress)
    if not len(columns["labels"]):
        raise DataError(f"{place} holds no images (png, jpg, ...): give a folder that does")
    digest = hashlib.blake2b(digest_size=8)
    for array in columns.values():
        digest.update(np.ascontiguousarray(array).data)
    facts = {"version": _VERSION, "root": str(root), "digest": digest.hexdigest(), "state": state, **facts}
    private_folder(folder)
    (folder / "listing.json").unlink(missing_ok=True)  # written last: without it there is no listing
    for name, array in columns.items():
        (folder / f"{name}.npy").unlink(missing_ok=True)  # a process that has mapped it keeps what it has
        np.save(folder / f"{name}.npy", array)
    (folder / "listing.json").write_text(json.dumps(facts))
    shutil.rmtree(folder / _READ, ignore_errors=True)
    return StreamListing(folder)


def _state(paths: Iterable[Path]) -> dict[str, list[int]]:
    """Return size and time of change of files or folders: a folder's changes with every file that comes or goes."""
    found = {}
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            found[str(path)] = [-1, -1]
            continue
        found[str(path)] = [0 if path.is_dir() else stat.st_size, stat.st_mtime_ns]
    return found


def _of_folder(root: Path, classes: bool, progress: Progress) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """List the images below a folder, in natural order; the first subfolders are classes if there are several."""
    folders = [Path(folder) for folder, _, _ in os.walk(root)]
    state = _state(folders)  # before the files are listed: what comes later is found the next time
    listing = list_images(root)
    progress(1, 2)
    firsts = [name.partition("/")[0] if "/" in name else "" for name in listing.files]
    names = list(dict.fromkeys(firsts))
    named = classes and len(names) > 1 and "" not in names
    numbers = {name: number if named else -1 for number, name in enumerate(names)}
    columns = _blobs(listing.files, [])
    columns["labels"] = np.fromiter((numbers[first] for first in firsts), np.int64, len(firsts))
    columns["places"] = np.zeros((0, 3), np.int64)
    return columns, {"state": state, "classes": names if named else None, "skipped": listing.skipped}


def _of_shards(
    shards: Sequence[Path], kept: Path, progress: Progress
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """List the samples of shards, in the order of the shards and of the keys in each.

    Args:
        shards: The tar files.
        kept: The folder that keeps what has been read of each, for a listing that is stopped and started again.
        progress: Called after every shard.
    """
    names: list[str] = []
    texts: list[str] = []
    labels: list[int] = []
    places: list[NDArray[np.int64]] = []
    skipped: list[tuple[str, str]] = []
    for number, shard in enumerate(shards):
        content = _read_once(shard, kept)
        skipped += content.skipped
        names += [f"{shard.name}:{sample.key}" for sample in content.samples]
        texts += ["\0".join(sample.captions or [""]) for sample in content.samples]
        labels += [-1 if sample.label is None else sample.label for sample in content.samples]
        of_shard = [(number, sample.start, sample.length) for sample in content.samples]
        places.append(np.array(of_shard, np.int64).reshape(-1, 3))
        progress(number + 1, len(shards))
    columns = _blobs(names, texts if any(texts) else [])
    columns |= {"labels": np.array(labels, np.int64), "places": np.concatenate(places)}
    return columns, {"shards": [shard.name for shard in shards], "classes": None, "skipped": skipped}


def _read_once(shard: Path, kept: Path) -> ShardContent:
    """Return what a shard holds: read and kept, or as a stopped listing has kept it if it has not changed since."""
    state = _state([shard])
    file = kept / f"{hashlib.blake2b(os.fsencode(shard.name), digest_size=10).hexdigest()}.json"
    try:
        found = json.loads(file.read_text())
        if found["state"] == state:
            samples = [ShardSample(*each) for each in found["samples"]]
            return ShardContent(samples, [(name, reason) for name, reason in found["skipped"]])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    content = read_shard(shard)
    private_folder(kept)
    with replacing(file) as temporary:
        temporary.write_text(json.dumps({"state": state, "samples": content.samples, "skipped": content.skipped}))
    return content


def _blobs(names: Sequence[str], texts: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return names and texts as bytes one after the other, and where each ends."""
    columns: dict[str, NDArray[Any]] = {}
    for kind, strings in (("name", names), ("text", texts)):
        encoded = [each.encode(errors="surrogateescape") for each in strings]
        columns[f"{kind}s"] = np.frombuffer(b"".join(encoded), np.uint8)
        columns[f"{kind}_ends"] = np.cumsum([len(each) for each in encoded], dtype=np.int64)
    return columns


class _Images(Column):
    """Images of a listing, decoded when they are taken."""

    def __init__(self, stream: ImageStream) -> None:
        self._stream = stream
        self._warned = False

    def __len__(self) -> int:
        return len(self._stream)

    def take(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> Tensor:
        """Return images (b, 3, H, H)."""
        listing, size = self._stream.listing, self._stream.decode
        pixels = torch.full((len(rows), 3, size, size), _GREY, dtype=torch.uint8)
        for place, row in enumerate(self._stream.listed(rows).tolist()):
            decoded = decode_source(listing.source(row), size)
            if decoded.pixels is not None:
                pixels[place] = torch.from_numpy(decoded.pixels)
            elif not self._warned:
                self._warned = True
                name = printable(listing.name(row))
                warnings.warn(f"{name} cannot be read and is shown as grey: {decoded.problem}", stacklevel=2)
        return pixels


class _Texts(Column):
    """The captions of a listing's images, one of which is drawn for a row."""

    modality = "text"

    def __init__(self, stream: ImageStream) -> None:
        self._stream = stream

    def __len__(self) -> int:
        return len(self._stream)

    def take(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> list[str]:
        """Return b texts; a drawn one follows from ``draw`` and the row alone."""
        several = [self._stream.listing.captions(row) for row in self._stream.listed(rows).tolist()]
        if draw is None:
            return [texts[0] for texts in several]
        counts = np.array([len(texts) for texts in several])
        drawn = draw_choices(draw, rows.numpy(), counts).tolist()
        return [texts[number] for texts, number in zip(several, drawn, strict=True)]

    def texts(self) -> list[str]:
        """Return every text once."""
        rows = self._stream.listed(torch.arange(len(self)))
        return list(dict.fromkeys(text for row in rows.tolist() for text in self._stream.listing.captions(row)))

    def captions(self, row: int) -> list[str]:
        """Return all captions of the image of a row."""
        return self._stream.listing.captions(int(self._stream.listed(torch.tensor([row]))))


class ImageStream(Samples):
    """The images of a folder, or the images and captions of webdataset shards, decoded on demand.

    Args:
        path: ``stream:`` and a folder, a tar file, a folder of tar files, or a pattern such as
            ``shards-{0000..0099}.tar``.
        split: "train" or "test", as described at ``Folder`` and ``Tars``.
        size: side of the views that are made of the images; None as described at ``Folder``.
        decode: side of the decoded images; None as described at ``Folder``.
        limit: keep only this many images, as described at ``limited``.
        labels: "folders" makes classes of subfolders, "none" makes no labels.

    Raises:
        ValueError: if the folder or split is missing or has no images.
    """

    def __init__(
        self,
        path: str,
        split: Split = "train",
        size: int | None = None,
        decode: int | None = None,
        limit: int | None = None,
        labels: Literal["folders", "none"] = "folders",
    ) -> None:
        check_split(split)
        place = path.removeprefix("stream:")
        self.path, self.split, self.name = path, split, printable(Path(place).name)
        self.listing = open_listing(place, split, labels == "folders")
        self._rows = limited(len(self.listing), limit)
        step = max(1, len(self.listing) // _HEADERS_READ)
        some = [self.listing.source(row) for row in range(0, len(self.listing), step)]
        self.image_size, self.decode = decode_size(some, size, decode)
        self._options: Mapping[str, Any] = {"size": self.image_size, "decode": self.decode, "labels": labels}
        self.skipped = [(name, reason) for name, reason in self.listing.facts["skipped"]]
        columns: dict[str, Column] = {"image": _Images(self)}
        if self.listing.has_texts:
            columns["text"] = _Texts(self)
        self._fill(columns)
        numbers = torch.from_numpy(self.listing.labels)
        if labels == "folders" and bool((numbers[:1] >= 0).all()):
            self.labels = numbers if self._rows is None else numbers[self._rows]
            named = self.listing.facts["classes"]
            self.classes = None if named is None else tuple(named)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.listing) if self._rows is None else len(self._rows)

    def listed(self, rows: Tensor) -> Tensor:
        """Return where these rows stand in the listing."""
        return rows if self._rows is None else self._rows[rows]

    @property
    def paths(self) -> list[str]:
        """The path of every image; of a member of a tar file, the names of both."""
        rows = self.listed(torch.arange(len(self))).tolist()
        return [os.path.join(self.listing.facts["root"], self.listing.name(row)) for row in rows]

    @cached_property
    def fingerprint(self) -> str:
        """Short hex digest of names, places, classes and captions, and of the size; the images are not read."""
        facts = f"{self.listing.facts['digest']} {len(self)} {self.image_size} {self.decode}"
        return hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()

    def held_out(self, limit: int | None = None) -> ImageStream | None:
        """Return the test split, None when there is none or this is it."""
        place = self.path.removeprefix("stream:")
        known = shards_of(place)
        if self.split == "test" or "test" not in (known if any(known.values()) else splits_of(open_folder(place))):
            return None
        return ImageStream(self.path, "test", limit=limit, **self._options)

    def describe(self) -> list[str]:
        """Say how many images were listed, and that they are decoded on demand."""
        what = "images with captions" if self.listing.has_texts else "images"
        return [
            f"{len(self):,} {what} in {self.path}, decoded on demand to {self.decode}, views of {self.image_size}",
            *self._closing_lines(),
        ]
