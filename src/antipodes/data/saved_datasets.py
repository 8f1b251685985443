"""Datasets that Hugging Face's `save_to_disk` wrote, read by pyarrow alone. Imports no torch."""

import json
from pathlib import Path
from typing import Any

from antipodes.files import DataError


def is_saved_dataset(path: Path) -> bool:
    """Return True if a folder is one split that `Dataset.save_to_disk` wrote."""
    return (path / "state.json").is_file() and (path / "dataset_info.json").is_file()


def is_saved_dataset_dict(path: Path) -> bool:
    """Return True if a folder holds splits that `DatasetDict.save_to_disk` wrote."""
    return (path / "dataset_dict.json").is_file()


def read_saved_dataset(path: Path) -> dict[str, list[Any]]:
    """Return the columns of a saved dataset; numbers of classes become the names of the classes.

    Raises:
        DataError: if it is damaged or no such folder, or pyarrow is not installed.
    """
    if not is_saved_dataset(path):
        raise DataError(f"{path} is a folder without a table: give a file, or a folder that save_to_disk wrote")
    try:
        import pyarrow
    except ImportError as error:
        raise DataError(f"{path} needs pyarrow: pip install pyarrow") from error
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        features = json.loads((path / "dataset_info.json").read_text(encoding="utf-8")).get("features") or {}
        columns: dict[str, list[Any]] = {}
        for file in state["_data_files"]:
            inside = path / Path(file["filename"]).name  # only files of this folder
            with pyarrow.memory_map(str(inside)) as source:
                for name, values in pyarrow.ipc.open_stream(source).read_all().to_pydict().items():
                    columns.setdefault(name, []).extend(values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, pyarrow.ArrowException) as error:
        raise DataError(f"{path} cannot be read as a saved dataset ({error}): save it again") from error
    for column, feature in features.items():
        names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
        if names and column in columns:
            columns[column] = [
                names[number] if isinstance(number, int) and 0 <= number < len(names) else None
                for number in columns[column]
            ]
    return columns
