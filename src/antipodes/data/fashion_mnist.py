"""Fashion-MNIST and MNIST: 70,000 grey pictures of clothing, or of digits, 60,000 of them for training."""

import gzip
import struct
import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from antipodes.data.classes import Classes
from antipodes.data.dataset import DataError, ImageDataset, Split, TensorImages, check_split
from antipodes.data.download import cache_root, check, download

_DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # where the package dataset-fashion-mnist puts it
_HOME = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"
_CHECKSUMS = {
    "train-images-idx3-ubyte": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "md5:25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "md5:bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "md5:bb300cfdad3c16e7a12a480ee83cd310",
}
_DIGITS = {
    "train-images-idx3-ubyte": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "md5:d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "md5:9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "md5:ec29112dd5afa0611ce80d1b7f02629c",
}
_CLASSES = (
    "t-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


class FashionMNIST(TensorImages):
    """Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): 10 classes, 28 x 28 grey padded with black to 32 x 32 RGB.

    The four idx files, gzipped or plain, are looked for in ``root``, in ``root/fashion-mnist`` and where Debian's
    package dataset-fashion-mnist puts them, and otherwise downloaded into ``root/fashion-mnist``.

    Args:
        split: "train" (60,000) or "test" (10,000).
        root: folder to look in and to keep them in; None is $ANTIPODES_DATA, else ~/.cache/antipodes.
        limit: keep only this many samples, as described at ``limited``.
        classes: keep only so many classes, or those with these names, as described at ``choose_classes``.
        size: side of the views that are made of the images, such as 224; None is 32.

    Raises:
        ValueError: if the files are neither there nor reachable, damaged, or a checksum differs.
    """

    title: ClassVar[str] = "fashion-mnist"
    names: ClassVar[tuple[str, ...]] = _CLASSES

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
        prefix = "train" if split == "train" else "t10k"
        grey = torch.from_numpy(read_idx(self._find(f"{prefix}-images-idx3-ubyte", cache_root(root))))
        labels = torch.from_numpy(read_idx(self._find(f"{prefix}-labels-idx1-ubyte", cache_root(root))))
        padded = torch.nn.functional.pad(grey[:, None], (2, 2, 2, 2))
        # Expanded, not copied: the three channels share their memory until a batch is fetched.
        super().__init__(
            padded.expand(-1, 3, -1, -1),
            labels,
            classes=self.names,
            name=self.title,
            limit=limit,
            only=classes,
            size=size,
        )

    def held_out(self, limit: int | None = None) -> ImageDataset | None:
        """Return the official test split, None when this is it."""
        if self.split == "test":
            return None
        return type(self)("test", self.root, limit, self._only, self.image_size)

    @staticmethod
    def _find(name: str, root: Path) -> Path:
        return _find(name, root)


class MNIST(FashionMNIST):
    """MNIST (LeCun et al. 1998): the digits 0 to 9, 28 x 28 grey padded with black to 32 x 32 RGB.

    Nothing is downloaded: the four idx files, gzipped (then their digests are checked) or plain, are looked for in
    ``root/mnist``, as Meta-Dataset's instructions have it. ``root`` itself is not looked in: Fashion-MNIST's files have
    the same names.

    Args:
        split: "train" (60,000) or "test" (10,000).
        root: folder to look in; None is $ANTIPODES_DATA, else ~/.cache/antipodes.
        limit: keep only this many samples, as described at ``limited``.
        classes: keep only so many classes, or those with these names, as described at ``choose_classes``.
        size: side of the views that are made of the images, such as 224; None is 32.

    Raises:
        ValueError: if the files are not there, damaged, or a checksum differs.
    """

    title = "mnist"
    names = tuple("0123456789")

    @staticmethod
    def _find(name: str, root: Path) -> Path:
        plain, packed = root / "mnist" / name, root / "mnist" / f"{name}.gz"
        if plain.is_file():
            return plain
        if not packed.is_file():
            raise DataError(
                f"mnist needs {name}.gz in {root / 'mnist'}, and it is not there: get it from its official home, "
                "or name another folder with root or ANTIPODES_DATA"
            )
        check(packed, _DIGITS[name], str(packed))
        return packed


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


def _find(name: str, root: Path) -> Path:
    subfolder = root / "fashion-mnist"
    for folder in (root, subfolder, _DEBIAN):
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    target = subfolder / f"{name}.gz"
    try:
        download(_HOME + target.name, target, _CHECKSUMS[name])
    except DataError as error:
        raise DataError(
            f"fashion-mnist is not in {root} and {error}: install Debian's package dataset-fashion-mnist, "
            "or put its four idx files into that folder, or name another with root or ANTIPODES_DATA"
        ) from error
    return target
