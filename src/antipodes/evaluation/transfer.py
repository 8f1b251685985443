"""Other datasets than the one an encoder was trained on, to see what its features are worth there."""

from __future__ import annotations

from collections.abc import Sequence

from antipodes.data import Folder, ImageDataset
from antipodes.evaluation.names import LABELS_ARE_NEEDED
from antipodes.registry import find
from antipodes.runs.build import build_data


def open_others(names: Sequence[str], size: int, limit: int | None = None) -> list[ImageDataset]:
    """Open the training splits of datasets to transfer to.

    Args:
        names: As for the data of a run: names, folders of images, .npz files, dotted paths of classes.
        size: Side of the images the encoder was trained on, to which folders are decoded.
        limit: Use only so many training images of each.

    Raises:
        ValueError: if one cannot be opened or has no labels, or two have the same name.
    """
    others = [_open(name, size, limit) for name in names]
    for other, name in zip(others, names, strict=True):
        if other.labels is None:
            raise ValueError(f"{name}: {LABELS_ARE_NEEDED.format(protocol='transfer', part='train')}")
    titles = [other.name for other in others]
    if twice := {title for title in titles if titles.count(title) > 1}:
        raise ValueError(
            f"two datasets to transfer to are called {twice.pop()}: their scores would have one name, rename a folder"
        )
    return others


def _open(name: str, size: int, limit: int | None) -> ImageDataset:
    arguments = {} if limit is None else {"limit": limit}
    if find("data", name).target is Folder:
        arguments["size"] = size
    return build_data({"name": name, **arguments})
