"""Datasets whose official archives are on disk: where these are looked for, and what all of them have in common."""

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from antipodes.data.archives import unpacked
from antipodes.data.classes import Classes
from antipodes.data.dataset import DataError, ImageDataset, Split, check_split
from antipodes.data.download import cache_root, check
from antipodes.data.listed import Listed, ListedImages


class TransferSet(ListedImages):
    """Images in files whose splits and classes an archive lists; made by a class per dataset.

    Args:
        split: "train" or "test".
        root: folder to look in; None is $ANTIPODES_DATA, else ~/.cache/antipodes.
        size: side of the views that are made of the images; None as described at ``Folder``.
        decode: side of the decoded images; None as described at ``Folder``.
        limit: keep only this many images, as described at ``limited``.
        classes: keep only so many classes, or those with these names, as described at ``choose_classes``.
        verify: whether archives must have their official digests.
        cache: whether decoded images are kept in the user's cache folder.
        workers: processes that decode; None is one per available core, and 0 decodes in this one.
        memory_limit: bytes of pixels up to which they are kept in memory where the cache does not hold them.

    Raises:
        ValueError: if the archives are not there, have another digest, or do not hold what they should.
    """

    archives: ClassVar[dict[str, str]]
    """File name of every archive -> its digest."""

    def __init__(
        self,
        split: Split = "train",
        root: str | None = None,
        size: int | None = None,
        decode: int | None = None,
        limit: int | None = None,
        classes: Classes = None,
        verify: bool = True,
        cache: bool = True,
        workers: int | None = None,
        memory_limit: int = 2_000_000_000,
    ) -> None:
        check_split(split)
        self.split, self.root, self.verify = split, root, verify
        self._options: dict[str, Any] = {"root": root, "classes": classes, "verify": verify, "cache": cache}
        self._options |= {"workers": workers, "memory_limit": memory_limit}
        try:
            listed = self._listed(split)
        except (OSError, KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{self.name} is not laid out as its official archive ({error}): get it again") from error
        self._open(
            listed,
            size=size,
            decode=decode,
            limit=limit,
            classes=classes,
            cache=cache,
            workers=workers,
            memory_limit=memory_limit,
        )

    @abstractmethod
    def _listed(self, split: Split) -> Listed:
        """Return the images of a split, in the archive's order."""

    def held_out(self, limit: int | None = None) -> ImageDataset | None:
        """Return the official test split, None when this is it."""
        if self.split == "test":
            return None
        return type(self)("test", size=self.image_size, decode=self.decode, limit=limit, **self._options)

    def find(self, inner: str, archive: str) -> Path:
        """Return a file or folder of an archive: in ``root`` by itself, or in the archive, which is then unpacked."""
        return find_part(self.name, inner, archive, self.archives.get(archive), self.root, self.verify)


def find_part(name: str, inner: str, archive: str, digest: str | None, root: str | None, verify: bool) -> Path:
    """Return a file or folder of a dataset: unpacked in ``root`` already, or in its archive.

    Raises:
        DataError: if it is in neither, or the archive has another digest.
    """
    folder = cache_root(root)
    places = (folder / name, folder)
    for place in places:
        if (found := place / inner).exists() and inner != archive:
            return found
        if (packed := place / archive).is_file():
            if inner == archive:
                if verify and digest:
                    check(packed, digest, str(packed))
                return packed
            return unpacked(packed, digest if verify else None, descend=False) / inner
    raise DataError(
        f"{name} needs {archive} in {folder / name}, and it is not there: get it from its official home, "
        "or name another folder with root or ANTIPODES_DATA"
    )
