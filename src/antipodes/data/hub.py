"""Datasets that the library `datasets` loads, by name or folder: images with captions, or texts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from antipodes.data.adapters import HuggingFaceCaptions
from antipodes.data.caption_tables import IMAGE_COLUMNS
from antipodes.data.dataset import DataError, limited
from antipodes.data.describe import printable

_HELD_OUT = ("test", "validation", "val")


class HubCaptions(HuggingFaceCaptions):
    """Images with captions of Hugging Face, where `datasets` is installed; on the command line ``hf:<name or folder>``.

    `datasets` loads by its own rules, which for a name may mean a download. The test split is its ``test`` or
    ``validation``.

    Args:
        path: a name on the hub, or a folder that `load_dataset` or `load_from_disk` reads.
        split: the name of the split; with one split only, that is the one.
        image: the column of images.
        caption: the column of captions: texts, or lists of them.
        config: the name of a configuration, where the dataset has several.
        size: side of the images: the shorter side is scaled to it and the centre cropped.
        limit: keep only this many rows, as described at ``limited``.
        memory_limit: bytes of pixels up to which they are kept in memory.

    Raises:
        ValueError: if `datasets` cannot be imported or cannot load it, or a split or column is missing.
    """

    def __init__(
        self,
        path: str,
        split: str = "train",
        image: str = "image",
        caption: str = "caption",
        config: str | None = None,
        size: int = 64,
        limit: int | None = None,
        memory_limit: int = 2_000_000_000,
    ) -> None:
        self.path, self.split = path, split
        self._options: dict[str, Any] = {"image": image, "caption": caption, "config": config}
        self._options |= {"memory_limit": memory_limit}
        splits = load_splits(path, config)
        self._splits = set(splits)
        if split not in splits and len(splits) > 1:
            raise DataError(f"hf:{path} has no {split} split, only {', '.join(splits)}")
        chosen = splits[split] if split in splits else next(iter(splits.values()))
        keep = limited(len(chosen), limit)
        if keep is not None:
            chosen = chosen.select(keep.tolist())
        super().__init__(chosen, image, caption, size, printable(Path(path).name), memory_limit)

    def held_out(self, limit: int | None = None) -> HubCaptions | None:
        """Return the test or validation split, None when there is neither or this is it."""
        for split in _HELD_OUT if self.split not in _HELD_OUT and len(self._splits) > 1 else ():
            if split in self._splits:
                return HubCaptions(self.path, split, size=self.image_size, limit=limit, **self._options)
        return None


def dataset_on_hub(name: str) -> str:
    """Return the dotted path of the dataset class for `hf:<name>`: images with captions, or a table of texts.

    Opening a dataset that cannot be loaded says why.
    """
    try:
        first = next(iter(load_splits(name.removeprefix("hf:"), None).values()))
    except DataError:
        return "antipodes.data.hub.HubCaptions"
    columns = set(first.column_names or ())
    return "antipodes.data.hub.HubCaptions" if columns & set(IMAGE_COLUMNS) else "antipodes.data.texts.Texts"


def load_splits(path: str, config: str | None) -> dict[str, Any]:
    """Return the splits of a dataset of Hugging Face by name.

    Args:
        path: its name on the hub, also as owner/name/configuration, or a folder that `load_dataset` or
            `load_from_disk` reads.
        config: the name of a configuration, where there are several.

    Raises:
        DataError: if `datasets` cannot be imported, or cannot load it.
    """
    try:
        import datasets
    except Exception as error:  # an installed library that is built for another one fails with anything
        raise DataError(
            f"data 'hf:{path}' needs the library datasets, which cannot be imported here ({error}): "
            "pip install datasets, or give a table or a folder"
        ) from error
    folder = Path(path).expanduser()
    if config is None and path.count("/") == 2 and not folder.exists():
        path, _, config = path.rpartition("/")
    saved = any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))  # by `save_to_disk`
    try:
        found = datasets.load_from_disk(str(folder)) if saved else datasets.load_dataset(path, config)
    except Exception as error:  # the library raises whatever its readers and the network do
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(f"datasets could not load 'hf:{path}': {first}") from error
    return dict(found) if isinstance(found, Mapping) else {"train": found}
