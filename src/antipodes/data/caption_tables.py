"""Captions of images in the layouts that people have them in: found by themselves, read into one form.

| layout | files |
|---|---|
| a table | captions.csv, .tsv, .jsonl, .json, .parquet; captions.txt (Kaggle's Flickr8k); metadata.csv, .jsonl |
| Flickr8k's own | Flickr8k.token.txt, with Flickr_8k.trainImages.txt, .devImages.txt, .testImages.txt |
| COCO's own | annotations/captions_train2017.json, captions_val2017.json, with train2017/, val2017/ |
| Karpathy's splits | dataset_flickr8k.json, dataset_coco.json, ... |

Splits come from the layout itself, from a column ``split``, or from train.txt, val.txt and test.txt with one image
name a line. Nothing of torch is imported, so that looking at a folder costs nothing.
"""

import os
import posixpath
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from antipodes.files import DataError
from antipodes.tables import (
    MORE,
    Columns,
    column_values,
    count_rows,
    find_column,
    has_column,
    read_json,
    read_table,
    unused_columns,
)

CaptionSplit = Literal["train", "val", "test"]

IMAGE_COLUMNS = ("image", "file", "filename", "file_name", "path", "filepath", "image_path", "image_name", "img")
TEXT_COLUMNS = ("caption", "captions", "text", "title", "sentence", "description")

_TABLES = [
    f"{name}{suffix}"
    for name in ("captions", "metadata")
    for suffix in (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt")
]
_TOKENS = ("Flickr8k.token.txt", "results_20130124.token", "results.token")
SPLIT_NAMES: dict[str, CaptionSplit] = {
    "train": "train",
    "restval": "train",  # Karpathy's: the part of COCO's validation images that everybody trains on
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
}
"""What a split may be called in a table, or as a file."""

_SPLIT_FILES: dict[CaptionSplit, tuple[str, ...]] = {
    "train": ("train.txt", "Flickr_8k.trainImages.txt"),
    "val": ("val.txt", "validation.txt", "dev.txt", "Flickr_8k.devImages.txt"),
    "test": ("test.txt", "Flickr_8k.testImages.txt"),
}


class Caption(NamedTuple):
    """One caption of one image, which is named as the table names it, below ``folder``; None where no split is said."""

    image: str
    text: str
    split: CaptionSplit | None = None
    folder: str = ""


class CaptionTables(NamedTuple):
    """What tables hold: the captions, those whose images are in no list of a split, and (image, reason) of the rest."""

    captions: list[Caption]
    unlisted: list[Caption]
    skipped: list[tuple[str, str]]
    unused: tuple[str, ...] = ()


def find_tables(folder: Path) -> list[Path]:
    """Return the tables of captions that a folder has: one, or one for every split in the layouts that have several."""
    for name in _TABLES:
        if os.path.lexists(folder / name):  # a broken link or a folder of that name is refused when it is read
            return [folder / name]
    for place in (folder, folder / "annotations"):
        if found := sorted(place.glob("dataset_*.json")):
            return found[:1]
        if found := sorted(place.glob("captions_*.json")):
            return found
    for place in (folder, folder / "Flickr8k_text"):
        for name in _TOKENS:
            if (place / name).is_file():
                return [place / name]
    inside = [folder / split / name for split in SPLIT_NAMES for name in _TABLES]
    found = [path for path in inside if path.is_file()]
    return list({path.parent: path for path in reversed(found)}.values())[::-1]


def read_captions(tables: Iterable[Path], root: Path) -> CaptionTables:
    """Return all captions of some tables, with the split of each as far as files and folders say it.

    Args:
        tables: as ``find_tables`` gives them.
        root: the folder below which the images are; those of a table in a subfolder are named from there.

    Raises:
        DataError: if a table cannot be read, lacks a column, has no row, or names a split that there is not.
    """
    captions: list[Caption] = []
    unlisted: list[Caption] = []
    skipped: list[tuple[str, str]] = []
    unused: dict[str, None] = {}
    for table in tables:
        found = _read(table, root, skipped, unused)
        if not found:
            raise DataError(f"{table} holds no captions: it needs an image and a caption in every row")
        inside = table.parent.relative_to(root).as_posix() if table.parent != root else ""
        split = SPLIT_NAMES.get(inside) or _split_in_name(table.stem)
        if inside in SPLIT_NAMES:  # a table next to its images, in the folder of a split
            found = [caption._replace(folder=inside) for caption in found]
        captions += [caption._replace(split=caption.split or split) for caption in found] if split else found
    if not any(caption.split for caption in captions):
        captions, unlisted = _by_files(captions, [root, root / "Flickr8k_text"])
    if not any(caption.split for caption in captions):
        captions = _by_folders(captions)
    return CaptionTables(captions, unlisted, skipped, tuple(unused))


def _read(table: Path, root: Path, skipped: list[tuple[str, str]], unused: dict[str, None]) -> list[Caption]:
    if table.name in _TOKENS:
        return _tokens(table)
    if table.suffix == ".json":
        content = read_json(table)
        if isinstance(content, dict):
            return _from_object(content, table, root)
    columns = read_table(table, delimiter="," if table.suffix == ".txt" else None)
    return _from_columns(columns, table, root, skipped, unused)


def _from_columns(
    columns: Columns, table: Path, root: Path, skipped: list[tuple[str, str]], unused: dict[str, None]
) -> list[Caption]:
    if not count_rows(columns):
        return []
    if columns.keys() >= {"filename", "sentences"}:  # Karpathy's
        rows = zip(*(column_values(columns, name) for name in columns), strict=True)
        return _karpathy([dict(zip(columns, row, strict=True)) for row in rows], table, root)
    image = find_column(columns, IMAGE_COLUMNS, table, "images")
    text = find_column(columns, TEXT_COLUMNS, table, "captions")
    split = find_column(columns, ("split",), table, "splits") if has_column(columns, ("split",)) else None
    unused |= dict.fromkeys(unused_columns(columns, (image, text, split)))
    images = ["" if name is None else str(name) for name in column_values(columns, image)]
    texts = _whole_texts(columns, text, images, skipped)
    chosen = list(texts)
    written = column_values(columns, split) if split else [None] * len(images)
    splits = known_splits([written[row] for row in chosen], table)
    return [
        Caption(images[row], each, own) for row, own in zip(chosen, splits, strict=True) for each in _texts(texts[row])
    ]


def _whole_texts(columns: Columns, text: str, images: list[str], skipped: list[tuple[str, str]]) -> dict[int, Any]:
    """Return the captions by row, with what a comma without quotes has cut off put back.

    Where other columns follow the caption that is impossible: the row is left out and noted.
    """
    texts = dict(enumerate(column_values(columns, text)))
    last = [column for column in columns if column != MORE][-1] == text
    for row, beyond in enumerate(columns.get(MORE, ())):
        if beyond and last:
            texts[row] = ",".join([texts[row], *beyond])
        elif beyond:
            skipped.append((images[row] or "(no name)", "more columns than the header has: put the caption in quotes"))
            del texts[row]
    return texts


def known_splits(values: list[Any], table: Path) -> list[CaptionSplit | None]:
    """Return the splits that a table says, None for all where it says none.

    Raises:
        DataError: if one is unknown, or said for some images only.
    """
    written = ["" if value is None else str(value).strip() for value in values]
    if not any(written):
        return [None] * len(written)
    if unknown := sorted({value for value in written if value.lower() not in SPLIT_NAMES}):
        some = ", ".join(map(repr, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
        raise DataError(f"{table} has splits that are not known ({some}): write train, val or test")
    return [SPLIT_NAMES[value.lower()] for value in written]


def _from_object(content: dict[str, Any], table: Path, root: Path) -> list[Caption]:
    """Read COCO's layout, Karpathy's, or one object of image -> caption(s)."""
    images, annotations = content.get("images"), content.get("annotations")
    try:
        if isinstance(images, list) and isinstance(annotations, list):
            names = {image["id"]: image["file_name"] for image in images}
            return [Caption(names[each["image_id"]], _texts(each["caption"])[0]) for each in annotations]
        if isinstance(images, list):
            return _karpathy(images, table, root)
        return [Caption(image, each) for image, texts in content.items() for each in _texts(texts)]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise _unreadable(table, error) from error


def _karpathy(images: list[dict[str, Any]], table: Path, root: Path) -> list[Caption]:
    """Read Karpathy's objects; folders that are not there are left away, since file names are unique without them."""
    splits = known_splits([image.get("split") for image in images], table)
    try:
        return [
            Caption("/".join([*([folder] if folder and (root / folder).is_dir() else []), name]), text, split)
            for image, split in zip(images, splits, strict=True)
            for folder, name in [(image.get("filepath"), image["filename"])]
            for text in [sentence["raw"] for sentence in image["sentences"]]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(table, error) from error


def _unreadable(table: Path, error: Exception) -> DataError:
    return DataError(
        f"{table} is neither COCO's captions nor Karpathy's splits ({type(error).__name__}: {error}): "
        "give a list of objects with an image and a caption"
    )


def _tokens(table: Path) -> list[Caption]:
    """Read Flickr's own lines: name.jpg#0, a tab, the caption."""
    try:
        lines = table.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{table} cannot be read ({error}): get it again") from error
    parts = (line.partition("\t") for line in lines if line.strip())
    return [Caption(re.sub(r"#\d+$", "", name), text) for name, _, text in parts]


def _texts(value: Any) -> list[str]:
    """One caption or several, as texts; no caption is an empty one, which is counted later."""
    if isinstance(value, (list, tuple)):
        return [_texts(each)[0] for each in value] or [""]
    if isinstance(value, dict):
        value = value.get("raw", value.get("caption"))
    return ["" if value is None else str(value)]


def _split_in_name(stem: str) -> CaptionSplit | None:
    """The split of COCO's captions_train2017.json."""
    found = re.fullmatch(r"captions_([a-z]+)\d*", stem)
    return SPLIT_NAMES.get(found[1]) if found else None


def _by_files(captions: list[Caption], places: list[Path]) -> tuple[list[Caption], list[Caption]]:
    """Give splits by lists of image names, one a line; an image in no list then belongs to no split, and comes last."""
    split_of: dict[str, CaptionSplit] = {}
    for split, names in _SPLIT_FILES.items():
        for path in (place / name for place in places for name in names):
            if path.is_file():
                try:
                    lines = path.read_text(encoding="utf-8-sig").splitlines()
                except (OSError, UnicodeDecodeError) as error:
                    raise DataError(f"{path} cannot be read ({error}): it needs one image name a line") from error
                split_of |= {plain_name(line): split for line in lines if line.strip()}
    if not split_of:
        return captions, []
    chosen = [caption._replace(split=_named(plain_name(caption.image), split_of)) for caption in captions]
    if not any(caption.split for caption in chosen):
        raise DataError(
            f"none of the images of the captions in {places[0]} is in train.txt, val.txt or test.txt: "
            "write them alike, or remove those lists"
        )
    return [one for one in chosen if one.split is not None], [one for one in chosen if one.split is None]


def _named(image: str, split_of: dict[str, CaptionSplit]) -> CaptionSplit | None:
    return split_of.get(image) or split_of.get(image.rpartition("/")[2]) or split_of.get(image.rpartition(".")[0])


def _by_folders(captions: list[Caption]) -> list[Caption]:
    """Give splits by the first folder of every image, when all images are in one that is named like a split."""
    images = [plain_name(caption.image) for caption in captions]
    splits = [SPLIT_NAMES.get(re.sub(r"\d+$", "", image.partition("/")[0])) for image in images]
    if not all(splits) or not all("/" in image for image in images):
        return captions
    return [caption._replace(split=split) for caption, split in zip(captions, splits, strict=True)]


def plain_name(name: str) -> str:
    """Return a path as tables write it with slashes, and without what leads nowhere: ./a//b is a/b."""
    return posixpath.normpath(name.strip().replace("\\", "/")) if name.strip() else ""
