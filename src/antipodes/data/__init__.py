"""Datasets with stable ids, the loader that batches them, and augmentation.

    >>> from antipodes.data import open_dataset
    >>> data = open_dataset("shapes", count=100)
    >>> data.fetch(data.labels.argsort()[:8]).shape
    torch.Size([8, 3, 32, 32])

The names below are imported when they are first used, so that listing the datasets does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from antipodes.registry import find

if TYPE_CHECKING:
    from antipodes.data.captions import Captions
    from antipodes.data.columns import Modality, Raw
    from antipodes.data.dataset import DataError, Samples, Subset, TensorImages, require_trainable, subset
    from antipodes.data.describe import duplicates
    from antipodes.data.folder import Folder
    from antipodes.data.hub import HuggingFaceCaptions, HuggingFaceImages, TorchImages
    from antipodes.data.label_table import LabelTable
    from antipodes.data.loader import Loader, batches
    from antipodes.data.npz import Npz
    from antipodes.data.shapes import Shapes
    from antipodes.data.stream import ImageStream
    from antipodes.data.tars import Tars
    from antipodes.data.texts import Texts
    from antipodes.data.vectors import Vectors

_HOMES = {
    "captions": ("Captions",),
    "columns": ("Modality", "Raw"),
    "dataset": ("DataError", "Samples", "Subset", "TensorImages", "require_trainable", "subset"),
    "describe": ("duplicates",),
    "folder": ("Folder",),
    "hub": ("HuggingFaceCaptions", "HuggingFaceImages", "TorchImages"),
    "label_table": ("LabelTable",),
    "loader": ("Loader", "batches"),
    "npz": ("Npz",),
    "shapes": ("Shapes",),
    "stream": ("ImageStream",),
    "tars": ("Tars",),
    "texts": ("Texts",),
    "vectors": ("Vectors",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_RENAMED = {
    "CIFAR10": 'open_dataset("cifar10", ...)',
    "CIFAR100": 'open_dataset("cifar100", ...)',
    "FashionMNIST": 'open_dataset("fashion-mnist", ...)',
    "ImageDataset": "Samples",
}

__all__ = [
    "Captions",
    "DataError",
    "Folder",
    "HuggingFaceCaptions",
    "HuggingFaceImages",
    "ImageStream",
    "LabelTable",
    "Loader",
    "Modality",
    "Npz",
    "Raw",
    "Samples",
    "Shapes",
    "Subset",
    "Tars",
    "TensorImages",
    "Texts",
    "TorchImages",
    "Vectors",
    "batches",
    "duplicates",
    "open_dataset",
    "require_trainable",
    "subset",
]


def open_dataset(name_or_path: str, **arguments: Any) -> "Samples":
    """Open a dataset by its name (one of the registry's) or its path: what lies there says which dataset reads it.

    Args:
        name_or_path: the name or path.
        arguments: what the dataset's constructor takes, e.g. ``split``, ``limit``, ``root``, ``size``.

    Raises:
        ValueError: if it is neither a name nor such a path, or the dataset cannot be opened.
    """
    component = find("data", name_or_path)
    opened: Samples = component.target(**{**component.preset, **arguments})
    return opened


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        raise AttributeError(f"antipodes.data.{name} is now {_RENAMED[name]}")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
