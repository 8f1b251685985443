"""Rows that are exactly the same: by the bytes of their files, or by what a network would see of them."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from antipodes.data.dataset import Samples

_CHUNK = 1024


def duplicates(dataset: Samples) -> Tensor:
    """Return the group of exact duplicates that every row belongs to, (n,) int64; -1 for a row that is alone.

    Two images are the same when their files are, or their decoded pixels; a caption counts for nothing there. Two rows
    of texts or vectors are the same when all their inputs are. Rows of one sample (several captions of an image) are
    no duplicates of each other, and share their sample's group. The groups are what the policy ``Known`` takes.
    """
    found: Tensor | None = dataset.__dict__.get("_duplicates")
    if found is None:
        pictures = dataset.__dict__.get("pictures")
        if pictures is None:
            found = group_equal(_contents(dataset))
        else:
            images = dataset.__dict__.get("row_images")
            if images is not None and dataset.samples is None:  # rows of one image are samples, and so duplicates
                places = images.tolist()
                found = group_equal(*([keys[i] for i in places] for keys in (pictures.digests, pictures.pixel_digests)))
            else:
                found = group_equal(pictures.digests, pictures.pixel_digests)
                found = found if images is None else found[images]
        dataset.__dict__["_duplicates"] = found
    return found


def group_equal(*keys: Sequence[Hashable]) -> Tensor:
    """Return (n,) int64: rows that share any key, directly or through others, have one number, all others -1.

    Groups are numbered in the order of their first rows.

    Example:
        >>> group_equal(["a", "b", "c", "a", "d"], [1, 2, 3, 4, 2]).tolist()
        [0, 1, -1, 0, 1]
    """
    count = len(keys[0])
    parents = list(range(count))

    def root(row: int) -> int:
        while parents[row] != row:
            parents[row] = parents[parents[row]]
            row = parents[row]
        return row

    for column in keys:
        first: dict[Hashable, int] = {}
        for row, key in enumerate(column):
            one, other = root(row), root(first.setdefault(key, row))
            parents[max(one, other)] = min(one, other)
    roots = torch.tensor([root(row) for row in range(count)], dtype=torch.int64)
    several = torch.bincount(roots, minlength=count) > 1 if count else torch.zeros(0, dtype=torch.bool)
    number = torch.where(several, several.cumsum(0) - 1, -1)
    return number[roots]


def _contents(dataset: Samples) -> list[bytes]:
    """Return a digest of every row: of its image where it has one, else of all its inputs."""
    images = "image" in dataset.modalities and dataset.modalities["image"] == "image"
    keys = []
    for rows in torch.arange(len(dataset)).split(_CHUNK):
        inputs = dataset.inputs(rows)
        columns = [inputs["image"]] if images else list(inputs.values())
        for row in range(len(rows)):
            digest = hashlib.blake2b(digest_size=12)
            for column in columns:
                value = column[row]
                content = value.encode(errors="surrogateescape") if isinstance(value, str) else value.numpy().tobytes()
                digest.update(len(content).to_bytes(8, "little") + content)
            keys.append(digest.digest())
    return keys
