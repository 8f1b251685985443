"""Which dataset reads what lies at a path. Nothing of torch is imported to find out, unless an archive is unpacked."""

import os
import re
import tarfile
from pathlib import Path

from antipodes.data.caption_tables import IMAGE_COLUMNS, TEXT_COLUMNS, find_tables
from antipodes.data.endings import EXTENSIONS
from antipodes.data.saved_datasets import is_saved_dataset, is_saved_dataset_dict
from antipodes.files import DataError
from antipodes.tables import TABLES, read_names

LABEL_COLUMNS = ("label", "labels", "class", "category", "target", "tags")
"""What a column of labels is called."""

LABEL_TABLES = tuple(f"labels{suffix}" for suffix in TABLES)
"""What a table of labels is called when it is found by itself."""

_FOLDER = "antipodes.data.folder.Folder"
_CAPTIONS = "antipodes.data.captions.Captions"
_LABELS = "antipodes.data.label_table.LabelTable"
_TARS = "antipodes.data.tars.Tars"
_TEXTS = "antipodes.data.texts.Texts"
_VECTORS = "antipodes.data.vectors.Vectors"
_NPZ = "antipodes.data.npz.Npz"

_NAMED_ARRAYS = re.compile(r"(\w+=[^,]+\.npy)(,\w+=[^,]+\.npy)*")
_TEXT_FILES = tuple(f"train{suffix}" for suffix in (*TABLES, ".txt"))
_BEIR_FILES = ("corpus.jsonl", "queries.jsonl", "qrels")
_SHARD_SIDE_FILES = (".txt", ".json", ".cls")
_MEMBERS_LOOKED_AT = 50


def dataset_at(name: str) -> str | None:
    """Return the dotted path of the dataset that reads a path, None when there is nothing that any can read.

    Raises:
        DataError: if it is an archive or a table that cannot be read.
    """
    path = Path(name).expanduser()
    if _NAMED_ARRAYS.fullmatch(name):
        return _VECTORS
    if name.endswith(".tar") and re.search(r"[*?{]", path.name):
        return _TARS
    if path.is_dir():
        return _of_folder(path)
    if not path.is_file():
        return None
    suffix = path.suffix.lower()
    if suffix in (".npz", ".npy", ".txt"):
        return {".npz": _NPZ, ".npy": _VECTORS, ".txt": _TEXTS}[suffix]
    if suffix in TABLES:
        return _of_table(path)
    if suffix == ".tar" and _is_shard(path):
        return _TARS
    return _of_archive(path)


def _of_folder(path: Path) -> str:
    if is_saved_dataset(path) or is_saved_dataset_dict(path) or is_beir(path):
        return _TEXTS
    if find_tables(path):
        return _CAPTIONS
    try:
        names = os.listdir(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): allow it, or give another folder") from error
    vectors = sum(name.endswith(".npy") for name in names)
    if vectors and vectors >= sum(os.path.splitext(name)[1].lower() in EXTENSIONS for name in names):
        return _VECTORS
    if any(name.endswith(".tar") for name in names):
        return _TARS
    if any(name in LABEL_TABLES for name in names):
        return _LABELS
    if any(name in _TEXT_FILES for name in names):
        return _TEXTS
    return _FOLDER


def is_beir(folder: Path) -> bool:
    """Return True if a folder has BEIR's layout: corpus.jsonl, queries.jsonl and qrels/."""
    return all((folder / name).exists() for name in _BEIR_FILES)


def _of_archive(path: Path) -> str | None:
    from antipodes.data.archives import is_archive, unpacked

    return _of_folder(unpacked(path)) if is_archive(path) else None


def _of_table(table: Path) -> str:
    """A table of images has captions or labels; an object, as COCO's, has captions; all others have texts."""
    columns = {column.strip().lower() for column in read_names(table)}
    if table.suffix == ".json" and not columns:
        return _CAPTIONS
    if columns & set(IMAGE_COLUMNS) and columns & {*TEXT_COLUMNS, "sentences"}:
        return _CAPTIONS
    return _LABELS if columns & set(IMAGE_COLUMNS) and columns & set(LABEL_COLUMNS) else _TEXTS


def _is_shard(path: Path) -> bool:
    """Whether a tar file has texts, objects or classes next to its images, as webdataset's have."""
    try:
        with tarfile.open(path) as tar:
            for count, member in enumerate(tar):
                if member.name.lower().endswith(_SHARD_SIDE_FILES):
                    return True
                if count == _MEMBERS_LOOKED_AT:
                    break
    except (tarfile.TarError, EOFError, OSError):
        return True  # what is wrong with it is said when it is opened
    return False
