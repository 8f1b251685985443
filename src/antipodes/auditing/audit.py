"""`antipodes.audit`: which samples of photos, of vectors or of a run are the same thing.

1. The data is embedded, unless it is vectors already: photos by a pretrained encoder, a run's data by its own.
2. `findings.audit_vectors` finds duplicates, likely false negatives, outliers and samples like another class. Where
   there are photos, their pixels decide about near duplicates.
3. The answer is an `Audit`: three tables and a summary, which `save` writes with a page that shows the pairs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from antipodes.auditing.audited import AuditedData
from antipodes.auditing.audited_photos import audited_photos, photos_with_vectors
from antipodes.auditing.embeddings import FORMATS, Vectors, checked, read_embeddings
from antipodes.auditing.files import photos_of_files, photos_of_list
from antipodes.auditing.findings import AuditOptions, Findings, audit_vectors
from antipodes.auditing.photos import open_photos, photos_of
from antipodes.auditing.summary import (
    GROUPS,
    PAIRS,
    SAMPLES,
    SUMMARY,
    Columns,
    is_finding,
    summarise,
    tables_of,
    write_findings,
)
from antipodes.auditing.vectors import Encode, open_encoder
from antipodes.files import is_marked, refuse_foreign
from antipodes.pages.page import Page, require_jinja
from antipodes.progress import progress_bar
from antipodes.tables import require_pyarrow
from antipodes.threads import check_workers

REPORT = "report.html"
FILES = (PAIRS, GROUPS, SAMPLES, SUMMARY, REPORT)
"""What `Audit.save` writes into a folder."""


@dataclass(frozen=True)
class Audit:
    """What an audit found, as tables by column.

    Args:
        pairs: `path_a`, `path_b`, `similarity`, `threshold`, `kind`, `row_a`, `row_b`, and labels where there are any:
            a line for every two samples that are or may be the same thing, by kind, then the most similar first.
        groups: `row`, `path` and `group` of every training sample; a negative group is a sample alone. `Known` and
            `Known.read` take it.
        samples: `row`, `path`, `kind`, `score`, `bound`: outliers, and samples like another class.
        summary: the audit in numbers.
        data: what was audited.
        findings: the same pairs and samples as objects.
        shown: pairs of each kind that the page shows with their photos.
    """

    pairs: dict[str, NDArray[Any]]
    groups: dict[str, NDArray[Any]]
    samples: dict[str, NDArray[Any]]
    summary: dict[str, Any]
    data: AuditedData = field(repr=False)
    findings: Findings = field(repr=False)
    shown: int = field(default=200, repr=False)

    @cached_property
    def page(self) -> Page:
        """The page of the audit, with photos where there are any."""
        return self._page(progress=False)

    def save(self, path: str | Path, *, force: bool = False, progress: bool = False) -> None:
        """Write pairs.parquet, groups.parquet, samples.parquet, summary.json and report.html.

        Args:
            path: the folder; it is made if it does not exist.
            force: replace files that are not an earlier audit.
            progress: show on standard error how far the page is.

        Raises:
            ValueError: if the folder cannot be used, or holds other files of these names.
        """
        folder = check_folder(path, force)
        folder.mkdir(parents=True, exist_ok=True)
        write_findings(folder, self.pairs, self.groups, self.samples, self.summary)
        page = self._page(progress=True) if progress else self.page
        page.save(folder / REPORT)

    def _page(self, progress: bool) -> Page:
        from antipodes.auditing.page import audit_page

        title = str(self.summary["subject"])
        with progress_bar("page", shown=progress) as told:
            return audit_page(title, self.data, self.findings, self.summary, self.shown, told)


def audit(
    data: Any,
    *,
    encoder: Any = None,
    out: str | Path | None = None,
    options: AuditOptions | Mapping[str, Any] | None = None,
    batch_size: int = 256,
    limit: int | None = None,
    workers: int = 2,
    shown: int = 200,
    progress: bool = False,
    force: bool = False,
) -> Audit:
    """Find out which samples are the same thing: duplicates, likely false negatives, outliers.

    Args:
        data: what to audit: the path of a folder of photos, of a file of vectors (.npz, .npy, .parquet) or of a run;
            the name of a dataset; vectors (n, D), an array or a tensor; a list of paths or of Pillow images.
        encoder: what embeds photos: a run folder or the name of an encoder (`patches` needs no weights), or a function
            from a list of Pillow images to vectors (b, F). By default the pretrained EfficientNet-Lite0, or for a run
            its own encoder.
        out: folder for the answer, as `Audit.save` writes it; nothing is written if not given.
        options: what to look for (`AuditOptions`, or a mapping of its fields).
        batch_size: the batch of training for which the summary counts the pairs pushed apart.
        limit: audit only so many photos.
        workers: threads that decode photos.
        shown: pairs of each kind with photos on the page.
        progress: show on standard error how far the work is.
        force: replace files in `out` that are not an earlier audit.

    Raises:
        ValueError: if the data cannot be audited, or `out` cannot be used; nothing is written then.

    Example:
        >>> found = audit(np.eye(4, dtype=np.float32)[[0, 1, 2, 0]])
        >>> found.pairs["kind"].tolist(), found.groups["group"].tolist()
        (['exact duplicate'], [0, -1, -1, 0])
    """
    options = AuditOptions(**options) if isinstance(options, Mapping) else options or AuditOptions()
    if batch_size < 2:
        raise ValueError(f"batch_size must be at least 2, got {batch_size}: one sample has no negatives")
    check_workers(workers)
    if out is not None:
        check_folder(out, force)
    audited = _open(data, encoder, limit, workers, progress)
    findings = _search(audited, options, progress)
    subject = str(data) if isinstance(data, str | Path) else f"{len(audited)} samples"
    summary: dict[str, Any] = {"subject": subject, "encoder": audited.encoder}
    summary |= summarise(audited, findings, batch_size)
    pairs, groups, samples = (_arrays(table) for table in tables_of(audited, findings))
    found = Audit(pairs, groups, samples, summary, audited, findings, shown)
    if out is not None:
        found.save(out, force=force, progress=progress)
    return found


def check_folder(out: str | Path, force: bool = False) -> Path:
    """The folder of an answer, if it can be made and holds no other files of the names that an audit writes.

    Raises:
        ValueError: if it cannot be used; the sentence says why.
    """
    require_pyarrow()
    require_jinja()
    folder = Path(out)
    if not str(out):
        raise ValueError("--out is empty: name a folder")
    if os.path.lexists(folder) and not folder.is_dir():
        raise ValueError(f"--out {folder} is a file, or a link that leads nowhere: name a folder")
    if not folder.absolute().parent.is_dir():
        raise ValueError(f"--out {folder}: the folder {folder.parent} does not exist, make it first")
    if not os.access(folder if folder.exists() else folder.absolute().parent, os.W_OK):
        raise ValueError(f"--out {folder} cannot be written to")
    for name in FILES:
        refuse_foreign(folder / name, "--out", is_marked if name == REPORT else is_finding, force)
    return folder


def _open(data: Any, encoder: Any, limit: int | None, workers: int, progress: bool) -> AuditedData:
    """Read vectors, or embed the photos of a folder, a dataset, a run or a list."""
    if isinstance(data, np.ndarray | Tensor):
        array = data.detach().cpu().numpy() if isinstance(data, Tensor) else data
        vectors = checked(array, "data")
        names = tuple(f"row {row}" for row in range(len(vectors)))
        return AuditedData(vectors=Vectors(vectors, names), encoder="given vectors")
    if isinstance(data, Vectors):
        return _of_vectors(data, data.encoder or "given vectors", workers)
    name = str(data)
    if not isinstance(data, str | Path):
        if not len(data) or isinstance(data[0], str):
            raise ValueError(
                "data is an empty list: give photos or vectors"
                if not len(data)
                else "data is a list of texts: embed them first (antipodes.embed), and audit the vectors"
            )
        photos = photos_of_list(data)
    elif Path(name).suffix in FORMATS and not Path(name).is_dir():
        return _of_vectors(read_embeddings(name), f"embeddings of {Path(name).name}", workers)
    elif (Path(name) / "config.yaml").is_file():
        from antipodes.auditing.runs import data_of_run, with_learned_thresholds

        if encoder is None and (learned := with_learned_thresholds(name, progress)) is not None:
            return learned
        photos, encoder = photos_of(data_of_run(name)), encoder or name
    else:
        photos = open_photos(name, limit)
    if len(photos) < 2:
        raise ValueError(f"{name} has {len(photos)} image(s): an audit compares at least two")
    return audited_photos(photos, encoder_of(encoder), workers, progress)


def _of_vectors(vectors: Vectors, encoder: str, workers: int) -> AuditedData:
    """Vectors, with their photos if their paths are files that still exist."""
    photos = photos_of_files(vectors.paths)
    if photos is None:
        return AuditedData(vectors=vectors, encoder=encoder)
    return photos_with_vectors(photos, vectors, encoder, workers)


def encoder_of(encoder: Any) -> tuple[str, Encode]:
    """An encoder of photos and its name: one that is given as a function, or by a run folder or a name."""
    if callable(encoder):
        return str(getattr(encoder, "name", type(encoder).__name__)), encoder
    return open_encoder(None if encoder is None else str(encoder))


def _search(data: AuditedData, options: AuditOptions, shown: bool) -> Findings:
    """Search for pairs and samples: among the vectors, and as the kind of data does."""
    with progress_bar("proposals", shown=shown) as progress:
        proposed = data.proposals(progress)
    with progress_bar("neighbours", shown=shown) as progress:
        findings = audit_vectors(
            data.vectors,
            options,
            copies=data.copies(),
            verify=(lambda first, second: data.agree(first, second, progress)) if data.is_verified else None,
            proposed=proposed,
            thresholds=data.thresholds,
            progress=progress,
        )
    with progress_bar("samples", shown=shown) as progress:
        return findings.joined(data.pairs(findings), data.notices(progress))


def _arrays(table: Columns) -> dict[str, NDArray[Any]]:
    """Columns as arrays; texts are arrays of Python's strings, of any length."""
    return {
        name: np.array(values, dtype=object if any(isinstance(each, str) for each in values) else None)
        for name, values in table.items()
    }
