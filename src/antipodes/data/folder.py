"""A folder of images, with or without class subfolders.

One scan at construction decodes every file once, in worker processes. It finds the damaged files before ids are
given out, so ids stay what they are, and keeps the pixels if they fit into memory; otherwise ``fetch`` decodes.
"""

import hashlib
import os
import re
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import cached_property, partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from antipodes.data.dataset import DataError, ImageDataset, Split, check_split, limited
from antipodes.data.decode import Decoded, decode_file, decode_files

_EXTENSIONS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
_HELD_OUT = ("test", "val", "validation")
_PER_TASK = 64  # files a worker process decodes at a time; fewer than that are decoded right here


class Folder(ImageDataset):
    """All images below a folder, in natural order (img2 before img10) of their paths.

    - ``train`` beside ``test``, ``val`` or ``validation`` (the first that exists) are the splits. Without them the
      whole folder is the train split and there is no test split.
    - Two or more subfolders with images and no image beside them are classes, in natural order, at any depth.
      Otherwise there are no labels.
    - Hidden files and other files than images are passed over. Damaged images are left out with one warning.

    Args:
        path: the folder.
        split: "train" or "test".
        size: side of the images: the shorter side is scaled to it and the centre cropped. 32 suits the slim
            encoders that train on a CPU; give more for photos.
        limit: look at only this many files, as described at ``limited``; damaged ones among them are left out.
        strict: refuse the folder if an image is damaged.
        workers: processes for the scan; None is one per available core, at most 8, and 0 decodes in this one.
        memory_limit: bytes of pixels up to which they are kept in memory.

    Raises:
        ValueError: if the folder or split is missing, has no readable image, or ``strict`` and one is damaged.
    """

    def __init__(
        self,
        path: str,
        split: Split = "train",
        size: int = 32,
        limit: int | None = None,
        strict: bool = False,
        workers: int | None = None,
        memory_limit: int = 2_000_000_000,
    ) -> None:
        check_split(split)
        if size < 1:
            raise ValueError(f"size must be at least 1 pixel, got {size}")
        self.path, self.split, self.image_size = path, split, size
        self._scan_settings = (strict, workers, memory_limit)
        root = Path(path).expanduser()
        if not root.is_dir():
            raise DataError(f"{path} is not a folder: give the path of a folder of images")
        self.name = root.resolve().name
        splits = _splits(root)
        if split not in splits:
            raise DataError(f"{path} has no {split} split: it needs subfolders train and {' or '.join(_HELD_OUT)}")
        base = splits[split]
        files = _image_files(base)
        if not files:
            raise DataError(f"{base} holds no images ({', '.join(sorted(_EXTENSIONS))}): give a folder that does")
        # The classes of both splits together, so that a label means the same in each.
        classes = sorted(
            {name for folder in splits.values() for name in _class_names(_image_files(folder))}, key=_natural
        )
        labelled = bool(_class_names(files)) and len(classes) > 1

        keep = limited(len(files), limit)
        files = files if keep is None else [files[i] for i in keep.tolist()]
        self.in_memory = len(files) * 3 * size * size <= memory_limit
        decoded = _scan([base / file for file in files], size, self.in_memory, workers)
        good = self._good(files, decoded, strict)

        self.base = base
        self.files = tuple(files[i] for i in good)
        self.checksums = tuple(decoded[i].checksum for i in good)
        pixels = [image for i in good if (image := decoded[i].pixels) is not None]
        self.images = torch.from_numpy(np.stack(pixels)) if self.in_memory else None
        if labelled:
            self.classes = tuple(classes)
            self.labels = torch.tensor([classes.index(Path(file).parts[0]) for file in self.files])

    def _good(self, files: list[str], decoded: list[Decoded], strict: bool) -> list[int]:
        """Return the positions of the readable files; tell of the others."""
        bad = [i for i, result in enumerate(decoded) if result.problem is not None]
        if bad:
            first = f"{files[bad[0]]} ({decoded[bad[0]].problem})"
            if strict:
                raise DataError(
                    f"{len(bad)} damaged image(s) in {self.path}, the first is {first}: repair or remove them"
                )
            if len(bad) == len(files):
                raise DataError(f"none of the {len(files)} images in {self.path} can be read, the first is {first}")
            some = ", ".join(files[i] for i in bad[:5]) + (", ..." if len(bad) > 5 else "")
            warnings.warn(f"left out {len(bad)} damaged of {len(files)} images in {self.path}: {some}", stacklevel=3)
        return [i for i, result in enumerate(decoded) if result.problem is None]

    def __len__(self) -> int:
        return len(self.files)

    def _images(self, ids: Tensor) -> Tensor:
        if self.images is not None:
            return self.images[ids]
        return torch.stack([self._decode(self.base / self.files[i]) for i in ids.tolist()])

    def _decode(self, path: Path) -> Tensor:
        pixels, problem = decode_file(path, self.image_size)[1:]
        if pixels is None:
            raise DataError(f"{path} was readable when the folder was scanned and is not now ({problem}): restore it")
        return torch.from_numpy(pixels)

    @cached_property
    def fingerprint(self) -> str:
        """Short hex digest of the files' names and content and the size they are scaled to."""
        listing = "\n".join(f"{file} {checksum}" for file, checksum in zip(self.files, self.checksums, strict=True))
        return hashlib.blake2b(f"{self.image_size}\n{listing}".encode(), digest_size=8).hexdigest()

    def held_out(self, limit: int | None = None) -> ImageDataset | None:
        """Return the test split, None when the folder has none or this is it."""
        if self.split == "test" or "test" not in _splits(Path(self.path).expanduser()):
            return None
        strict, workers, memory_limit = self._scan_settings
        return Folder(self.path, "test", self.image_size, limit, strict, workers, memory_limit)


def _splits(root: Path) -> dict[str, Path]:
    """Return the folder of each split there is."""
    held_out = next((root / name for name in _HELD_OUT if (root / name).is_dir()), None)
    if not (root / "train").is_dir() or (held_out is None and sum(entry.is_dir() for entry in root.iterdir()) > 1):
        return {"train": root}  # "train" among other classes is a class
    return {"train": root / "train"} | ({} if held_out is None else {"test": held_out})


def _image_files(root: Path) -> list[str]:
    """Return the paths of all image files below a folder, relative to it, in natural order."""
    found = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        relative = Path(folder).relative_to(root)
        found += [
            (relative / name).as_posix()
            for name in files
            if not name.startswith(".") and Path(name).suffix.lower() in _EXTENSIONS
        ]
    return sorted(found, key=_natural)


def _class_names(files: list[str]) -> set[str]:
    """Return the names of the first subfolders; none when a file lies beside them."""
    names = {file.partition("/")[0] for file in files if "/" in file}
    return set() if any("/" not in file for file in files) else names


def _natural(text: str) -> tuple[list[tuple[int, str]], str]:
    """Sort key that reads runs of digits as numbers; the text itself decides between 01 and 1."""
    parts = re.split(r"([0-9]+)", text)
    return [(int(part), "") if part.isdecimal() else (-1, part.casefold()) for part in parts], text


def _scan(paths: list[Path], size: int, keep: bool, workers: int | None) -> list[Decoded]:
    """Decode all files, in worker processes when there are enough of them, with a progress bar on a terminal."""
    tasks = [paths[i : i + _PER_TASK] for i in range(0, len(paths), _PER_TASK)]
    count = min(8, os.cpu_count() or 1, len(tasks)) if workers is None else min(workers, len(tasks))
    decode = partial(decode_files, size=size, keep=keep)
    shown = Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
    if count < 2:
        with shown:
            return list(chain.from_iterable(shown.track(map(decode, tasks), len(tasks), description="decoding images")))
    with ProcessPoolExecutor(count) as pool, shown:
        done = pool.map(decode, tasks)
        return list(chain.from_iterable(shown.track(done, len(tasks), description="decoding images")))
