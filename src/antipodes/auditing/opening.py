"""What users give to an audit, opened as the kind of data that it is: photos, texts, pairs or vectors.

1. `opened` reads the data, and what it is compared with (`against`), without an encoder.
2. `embedded` gives both to one encoder, and returns what the audit works on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from antipodes.auditing.audited import AuditedData
from antipodes.auditing.audited_photos import audited_photos, photos_with_vectors
from antipodes.auditing.embeddings import FORMATS, Vectors, checked, read_embeddings
from antipodes.auditing.files import photos_of_files, photos_of_list
from antipodes.auditing.photos import SIZE, Photos, photos_of
from antipodes.auditing.vectors import AUDITED, Encode, embed_photos, open_encoder
from antipodes.data import Folder, Samples, open_dataset
from antipodes.encoders.loading import is_open_clip, load
from antipodes.pages.page import path_ends
from antipodes.progress import progress_bar
from antipodes.tables import read_names

if TYPE_CHECKING:
    from antipodes.data.caption_tables import CaptionSplit

_VECTOR_COLUMNS = {"embedding", "embeddings", "features", "vectors", "vector"}
Kind = Literal["photos", "texts", "pairs", "vectors"]


@dataclass(frozen=True)
class Request:
    """How data is to be opened.

    Args:
        encoder: what embeds it, as `audit` takes it.
        tower: the encoder of a run that has several.
        kind: what the data is taken as, where it could be several.
        columns: the columns of texts in a table.
        label: the column of labels in a table.
        limit: read only so many photos or rows.
        workers: threads that decode photos.
        shown: whether progress is shown.
    """

    encoder: Any = None
    tower: str | None = None
    kind: Kind | None = None
    columns: Sequence[str] | None = None
    label: str | None = None
    limit: int | None = None
    workers: int = 2
    shown: bool = False

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")


@dataclass(frozen=True)
class TextRows:
    """Texts, or pairs of them, before they are embedded.

    Args:
        texts: n texts; of pairs the queries, or the captions.
        names: of the rows.
        documents: n texts, the other side of pairs.
        photos: the images of captions.
        image_rows: (n,) which of them each caption has.
        labels: a class of every row, or an empty text, or None.
        splits: of every row; empty where all are of one.
        skipped: rows that were left out, with the reasons.
    """

    texts: tuple[str, ...]
    names: tuple[str, ...]
    documents: tuple[str, ...] | None = None
    photos: Photos | None = None
    image_rows: NDArray[np.int64] | None = None
    labels: tuple[str, ...] | None = None
    splits: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class JoinedPhotos(Photos):
    """Photos of two folders, whose classes are joined by their names."""

    joined_labels: NDArray[np.int64] | None = None
    joined_classes: tuple[str, ...] | None = None

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Labels (n,) among the classes of both."""
        return self.joined_labels

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes of both."""
        return self.joined_classes


Opened = Photos | TextRows | Vectors


def open_audited(data: Any, against: Any, request: Request) -> AuditedData:
    """Open and embed data for an audit.

    Args:
        data: as `audit` takes it.
        against: other data of the same kind, such as a test set; None for none.
        request: how.

    Raises:
        ValueError: if there is no such data, or too little of it.
    """
    if against is None and request.encoder is None and _is_run(data):
        from antipodes.auditing.runs import with_learned_thresholds

        if (learned := with_learned_thresholds(str(data), request.shown)) is not None:
            return learned
    opened = _opened(data, request)
    if against is not None:
        names = _names_of_two(data, against)
        opened = _joined(_first_split(opened), _first_split(_opened(against, request)), names)
    if len(opened) < 2:
        what = "image(s)" if isinstance(opened, Photos) else "sample(s)"
        raise ValueError(f"{_name(data)} has {len(opened)} {what}: an audit compares at least two")
    if request.encoder is None and _is_run(data):
        request = replace(request, encoder=str(data))
    return _embedded(opened, request, data)


def _is_run(data: Any) -> bool:
    return isinstance(data, str | Path) and (Path(data) / "config.yaml").is_file()


def _name(data: Any) -> str:
    return str(data) if isinstance(data, str | Path) else "the data"


def _names_of_two(data: Any, against: Any) -> tuple[str, str]:
    """What the two sides are called: the ends of their paths, which differ."""
    if isinstance(data, str | Path) and isinstance(against, str | Path):
        first, second = path_ends([str(Path(each).expanduser().absolute()) for each in (data, against)])
        if first != second:
            return first, second
    return "data", "against"


def _opened(data: Any, request: Request) -> Opened:
    """Read data of any kind, without an encoder."""
    if isinstance(data, np.ndarray | Tensor):
        vectors = checked(data.detach().cpu().numpy() if isinstance(data, Tensor) else data, "data")
        return Vectors(vectors, tuple(f"row {row}" for row in range(len(vectors))), encoder="given vectors")
    if isinstance(data, Vectors):
        return data if data.encoder else replace(data, encoder="given vectors")
    if isinstance(data, Mapping):
        return _of_mapping(data)
    if not isinstance(data, str | Path):
        return _of_list(data)
    name = str(data)
    path = Path(name).expanduser()
    if _is_run(data):
        from antipodes.auditing.runs import data_of_run

        return _of_samples(data_of_run(name), name, request)
    if path.suffix in FORMATS and not path.is_dir() and not _has_texts(path, request):
        return replace(read_embeddings(path), encoder=f"embeddings of {path.name}")
    options: dict[str, Any] = {} if request.limit is None else {"limit": request.limit}
    if request.columns is not None:
        options["columns"] = list(request.columns)
    if request.label is not None:
        options["label"] = request.label
    if path.is_dir() and not request.columns and _is_plain_folder(path, request.kind):
        return photos_of(Folder(name, size=SIZE, limit=request.limit), name)
    return _of_samples(open_dataset(name, **options), name, request)


def _has_texts(path: Path, request: Request) -> bool:
    """Whether a parquet file is a table of texts and not of vectors."""
    if path.suffix != ".parquet" or not path.is_file() or request.kind == "vectors":
        return False
    names = {name.lower() for name in read_names(path)}
    return bool(request.columns) or request.kind is not None or not names & _VECTOR_COLUMNS


def _is_plain_folder(path: Path, kind: Kind | None) -> bool:
    """Whether a folder is one of photos, and not of texts or captions; photos win over any number of vectors."""
    from antipodes.data.endings import EXTENSIONS
    from antipodes.data.on_disk import dataset_at

    reader = (dataset_at(str(path)) or "").rpartition(".")[2]
    if reader == "Vectors" and kind != "vectors":
        return any(Path(name).suffix.lower() in EXTENSIONS for _, _, names in os.walk(path) for name in names)
    return reader == "Folder"


def _of_mapping(columns: Mapping[str, Any]) -> TextRows:
    """Columns of texts: `text`, or `query` and `document`; `label` is optional."""
    named = {name: list(values) for name, values in columns.items()}
    texts = named.get("text", named.get("query"))
    if texts is None or len({len(values) for values in named.values()}) != 1:
        raise ValueError(f"data must have columns text, or query and document, of one length, got {', '.join(named)}")
    documents = named.get("document") if "query" in named and "text" not in named else None
    labels = tuple(str(each) for each in named["label"]) if "label" in named else None
    rows = tuple(f"row {row}" for row in range(len(texts)))
    both = None if documents is None else tuple(map(str, documents))
    return TextRows(tuple(map(str, texts)), rows, both, labels=labels)


def _of_list(data: Any) -> Opened:
    if not len(data):
        raise ValueError("data is an empty list: give photos, texts or vectors")
    if all(isinstance(each, str) for each in data):
        return TextRows(tuple(data), tuple(f"row {row}" for row in range(len(data))))
    return photos_of_list(data)


def _of_samples(dataset: Samples, name: str, request: Request) -> Opened:
    """A dataset as photos, texts or pairs, with the test split that belongs to it."""
    modalities = dataset.modalities
    kind = request.kind
    captioned = {"image", "text"} <= set(modalities)
    if captioned and kind is None:
        kind = "pairs" if _has_two_towers(request.encoder) else "photos"
    if "image" in modalities and kind in (None, "photos"):
        return photos_of(dataset, name)
    if captioned:
        return _captions(dataset, name, kind == "pairs")
    if "query" in modalities and kind in (None, "pairs"):
        return _text_rows(dataset, name, "query", "document")
    if "query" in modalities or "text" in modalities:
        if kind not in (None, "texts"):
            raise ValueError(f"{name} holds texts, and kind says {kind}")
        return _text_rows(dataset, name, "text" if "text" in modalities else "query")
    raise ValueError(f"{name} holds {' and '.join(modalities)}: an audit takes photos, texts, pairs or vectors")


def _has_two_towers(encoder: Any) -> bool:
    """Whether an encoder is a run or a model with a tower of images and one of texts."""
    if encoder is None or callable(encoder):
        return False
    folder = Path(str(encoder)).expanduser()
    return is_open_clip(folder) or ((folder / "encoder-image.safetensors").is_file() and any(folder.glob("*-text.*")))


def _text_rows(dataset: Samples, name: str, text: str, document: str | None = None) -> TextRows:
    held_out = dataset.held_out() if hasattr(dataset, "held_out") else None
    parts = [dataset] if held_out is None else [dataset, held_out]
    texts: list[str] = []
    documents: list[str] = []
    names, splits, skipped, labels = [], [], [], []
    for part, split in zip(parts, ("train", "test"), strict=False):
        inputs = part.inputs(torch.arange(len(part)))
        texts += [str(each) for each in inputs[text]]
        documents += [str(each) for each in inputs[document]] if document else []
        prefix = name if split == "train" else f"{name}/test"
        names += [f"{prefix}/{row}" for row in range(len(part))]
        splits += [split] * len(part)
        skipped += [(str(file), str(why)) for file, why in part.skipped]
        labels += _class_names(part)
    return TextRows(
        tuple(texts),
        tuple(names),
        tuple(documents) if document else None,
        labels=tuple(labels) if any(labels) else None,
        splits=tuple(splits) if held_out is not None else (),
        skipped=tuple(skipped),
    )


def _class_names(part: Samples) -> list[str]:
    """The class of every row, empty where it has none."""
    if part.labels is None or part.labels.ndim != 1:
        return [""] * len(part)
    classes = part.classes
    return [
        "" if label < 0 else classes[label] if classes is not None and label < len(classes) else f"label {label}"
        for label in part.labels.tolist()
    ]


def _captions(dataset: Samples, name: str, with_images: bool) -> TextRows:
    """The captions of images, each with its image if asked for."""
    from antipodes.data import Captions

    if not isinstance(dataset, Captions):
        raise ValueError(f"{name}: pairs and texts of captions are read from a folder with a table of captions")
    split = cast("CaptionSplit", dataset.split)
    rows = dataset if dataset.rows != "image" else Captions(dataset.path, split, rows="caption", size=SIZE)
    images = Captions(dataset.path, split, rows="image", size=SIZE)
    texts = tuple(str(each) for each in rows.inputs(torch.arange(len(rows)))["text"])
    photos = photos_of(images, name).training()
    of_image = rows.image_ids(torch.arange(len(rows))).numpy()
    counted: dict[int, int] = {}
    names = []
    for image in of_image.tolist():
        counted[image] = counted.get(image, -1) + 1
        names.append(f"{photos.paths[image]}#{counted[image]}")
    skipped = tuple((str(file), str(why)) for file, why in rows.skipped)
    if not with_images:
        return TextRows(texts, tuple(names), skipped=skipped)
    paths = tuple(photos.paths[image] for image in of_image.tolist())
    return TextRows(texts, tuple(names), paths, photos, of_image, skipped=skipped)


def _first_split(opened: Opened) -> Opened:
    """Only what is trained on: a test split plays no part where other data is compared with."""
    if isinstance(opened, Photos):
        return opened.training() if len(opened.parts) > 1 else opened
    if isinstance(opened, TextRows) and opened.splits:
        count = opened.splits.count(opened.splits[0])
        cut: dict[str, Any] = {"splits": (), "texts": opened.texts[:count], "names": opened.names[:count]}
        cut |= {"documents": opened.documents and opened.documents[:count]}
        cut |= {"labels": opened.labels and opened.labels[:count]}
        return replace(opened, **cut)
    return opened


def _joined(one: Opened, other: Opened, names: tuple[str, str]) -> Opened:
    """Two sets of one kind as one, the first of which is trained on.

    Raises:
        ValueError: if they are of different kinds.
    """
    splits = (names[0],) * len(one) + (names[1],) * len(other)
    if isinstance(one, Photos) and isinstance(other, Photos) and one.are_files == other.are_files:
        labels, classes = _joined_labels([_labels_of(one), _labels_of(other)])
        return JoinedPhotos(
            (one.parts[0], other.parts[0]),
            (*one.paths, *other.paths),
            splits,
            one.are_files,
            (*one.skipped, *other.skipped),
            joined_labels=labels,
            joined_classes=classes,
        )
    if isinstance(one, TextRows) and isinstance(other, TextRows) and one.photos is None and other.photos is None:
        if (one.documents is None) != (other.documents is None):
            raise ValueError("against: one of the two holds pairs of texts, the other single texts")
        documents = None if one.documents is None else (*one.documents, *(other.documents or ()))
        given = [each.labels or ("",) * len(each) for each in (one, other)]
        return TextRows(
            (*one.texts, *other.texts),
            (*one.names, *other.names),
            documents,
            labels=(*given[0], *given[1]) if any(map(any, given)) else None,
            splits=splits,
            skipped=(*one.skipped, *other.skipped),
        )
    if isinstance(one, Vectors) and isinstance(other, Vectors):
        if one.embeddings.shape[1] != other.embeddings.shape[1]:
            raise ValueError("against: the vectors of the two differ in length, embed both with one encoder")
        labels, classes = _joined_labels([[each.class_of(row) for row in range(len(each))] for each in (one, other)])
        both = np.concatenate((one.embeddings, other.embeddings))
        return SplitVectors(both, (*one.paths, *other.paths), labels, classes, one.encoder, splits=splits)
    raise ValueError("against must be data of the same kind: photos and photos, texts and texts, vectors and vectors")


@dataclass(frozen=True)
class SplitVectors(Vectors):
    """Vectors of two sets."""

    splits: tuple[str, ...] = ()


def _labels_of(photos: Photos) -> list[str]:
    if photos.labels is None:
        return [""] * len(photos)
    names = Vectors(np.zeros((len(photos), 1), dtype=np.float32), photos.paths, photos.labels, photos.classes)
    return [names.class_of(row) for row in range(len(photos))]


def _joined_labels(sides: Sequence[Sequence[str]]) -> tuple[NDArray[np.int64] | None, tuple[str, ...] | None]:
    """Numbers of the classes of all rows, and the classes, which are joined by their names."""
    every = [name for side in sides for name in side]
    classes = tuple(dict.fromkeys(name for name in every if name))
    if not classes:
        return None, None
    number = {name: place for place, name in enumerate(classes)}
    return np.array([number.get(name, -1) for name in every], dtype=np.int64), classes


def _embedded(opened: Opened, request: Request, data: Any) -> AuditedData:
    """Give what was opened to the encoder, unless it is vectors."""
    if isinstance(opened, Photos):
        return audited_photos(opened, _image_encoder(request.encoder), request.workers, request.shown)
    if isinstance(opened, Vectors):
        photos = photos_of_files(opened.paths)
        splits = opened.splits if isinstance(opened, SplitVectors) else ()
        if photos is None or splits:
            return AuditedData(vectors=opened, encoder=opened.encoder, splits=splits)
        return photos_with_vectors(photos, opened, opened.encoder, request.workers, shown=request.shown)
    from antipodes.auditing.audited_pairs import AuditedPairs  # only for texts: an audit of photos starts without
    from antipodes.auditing.audited_texts import audited_texts

    labels, classes = _joined_labels([opened.labels]) if opened.labels is not None else (None, None)
    if opened.documents is None:
        return audited_texts(
            opened.texts,
            opened.names,
            request.encoder,
            request.shown,
            tower=request.tower,
            labels=labels,
            classes=classes,
            splits=opened.splits,
            skipped=opened.skipped,
        )
    name, queries, documents = _embedded_pairs(opened, request)
    return AuditedPairs(
        vectors=Vectors(queries, opened.names, labels, classes),
        encoder=name,
        splits=opened.splits,
        skipped=opened.skipped,
        queries=opened.texts,
        documents=opened.documents,
        document_vectors=documents,
        photos=opened.photos,
        image_rows=opened.image_rows,
    )


def _image_encoder(encoder: Any) -> tuple[str, Encode]:
    """An encoder of photos and its name: one that is given as a function, or by a run folder or a name."""
    if callable(encoder):
        return str(getattr(encoder, "name", type(encoder).__name__)), encoder
    return open_encoder(None if encoder is None else str(encoder), size=AUDITED)


def _embedded_pairs(opened: TextRows, request: Request) -> tuple[str, NDArray[np.float32], NDArray[np.float32]]:
    """The vectors of both sides: by the two towers of a run, or by one encoder of texts."""
    assert opened.documents is not None
    encoder = request.encoder
    if isinstance(encoder, tuple | list) and len(encoder) == 2:  # vectors of both sides
        queries, documents = (checked(np.asarray(each), "encoder") for each in encoder)
        if len(queries) != len(opened) or queries.shape != documents.shape:
            raise ValueError(f"encoder: vectors of {len(opened)} queries and documents are needed, of one length")
        return "given vectors", queries, documents
    towers = _towers(encoder, opened.photos is not None)
    with progress_bar("embedding", shown=request.shown) as progress:
        if towers is not None:
            first, second = (load(str(encoder), tower, embeddings=True) for tower in towers)
            queries = first.embed(list(opened.texts), 64, progress).numpy()
            if opened.photos is not None:
                assert opened.image_rows is not None
                images = embed_photos(opened.photos, second, workers=request.workers, progress=progress)
                return str(encoder), queries, images[opened.image_rows]
            return str(encoder), queries, second.embed(list(opened.documents), 64, progress).numpy()
        if opened.photos is not None:
            raise ValueError("pairs of images and captions need an encoder of both: --encoder of a run of clip")
        from antipodes.auditing.text_vectors import open_text_encoder

        name, encode = open_text_encoder(encoder, request.tower)
        vectors = encode([*opened.texts, *opened.documents], progress)
    return name, vectors[: len(opened)], vectors[len(opened) :]


def _towers(encoder: Any, images: bool) -> tuple[str, str] | None:
    """The towers of queries and of documents, if the encoder is a run or a model that has both."""
    if encoder is None or callable(encoder):
        return None
    folder = Path(str(encoder)).expanduser()
    if images:
        return ("text", "image") if _has_two_towers(encoder) else None
    return ("query", "document") if (folder / "encoder-query.safetensors").is_file() else None
