"""`antipodes.audit`: which samples of photos, texts, pairs or vectors are the same thing, and what to do about it.

1. The data is opened and embedded (`opening`), unless it is vectors already.
2. The kind of data searches for pairs and for samples that stand out (`AuditedData.search`).
3. What a person has decided about pairs is applied (`decisions`).
4. The answer is an `Audit`: tables and numbers, which `save` writes with a page for looking at pairs and deciding.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antipodes.auditing.audited import AuditedData
from antipodes.auditing.decisions import (
    Calibration,
    Decision,
    Rows,
    apply_decisions,
    calibrate,
    merged,
    read_decisions,
    write_decisions,
)
from antipodes.auditing.findings import AuditOptions, Findings
from antipodes.auditing.keep import CopyAs, copy_kept, keep_table, skipped_columns
from antipodes.auditing.opening import Kind, Request, open_audited
from antipodes.auditing.summary import (
    DECISIONS,
    FILES,
    GROUPS,
    KEEP_TABLE,
    PAIRS,
    REPORT,
    SAMPLES,
    SKIPPED,
    Columns,
    Number,
    is_finding,
    numbers_of,
    tables_of,
    write_tables,
)
from antipodes.files import is_marked, refuse_foreign
from antipodes.pages.page import Page, require_jinja
from antipodes.progress import progress_bar
from antipodes.tables import require_pyarrow
from antipodes.threads import check_workers


@dataclass(frozen=True)
class Audit:
    """What an audit found, as tables by column.

    Args:
        pairs: a line for every two samples that are or may be the same thing, by kind, then the most similar first:
            `path_a`, `path_b`, `similarity`, `threshold`, `kind`, `row` and `other` (-1 where not trained on),
            `decision`, `found_as`; texts, labels (`two_labels`) and splits (`leak`) where there are any.
        groups: `row`, `path` and `group` of every training sample; a negative group is a sample alone. `Known` takes
            it, as it takes `pairs`.
        samples: `row`, `path`, `kind`, `score`, `bound`, `reason`: samples that stand out.
        keep: `path`, `action` (keep or leave out), `why`, `represented_by` and `group` of every sample.
        summary: the audit in numbers, by name.
        numbers: the same with their units, and the list that has what was counted.
        data: what was audited.
        findings: the same pairs and samples as objects.
        decisions: what was decided about pairs.
        calibration: the bound that the decisions led to, if asked for.
        shown: pairs of each kind that the page shows.
    """

    pairs: dict[str, NDArray[Any]]
    groups: dict[str, NDArray[Any]]
    samples: dict[str, NDArray[Any]]
    keep: dict[str, NDArray[Any]]
    summary: dict[str, Any]
    numbers: tuple[Number, ...] = field(repr=False)
    data: AuditedData = field(repr=False)
    findings: Findings = field(repr=False)
    decisions: tuple[Decision, ...] = field(default=(), repr=False)
    calibration: Calibration | None = None
    shown: int = field(default=200, repr=False)

    @cached_property
    def page(self) -> Page:
        """The page of the audit, with photos or texts where there are any."""
        return self._page(progress=False)

    def save(self, path: str | Path, *, force: bool = False, progress: bool = False) -> None:
        """Write the tables (pairs, groups and samples.parquet, keep and skipped.csv), summary.json and report.html.

        Decisions, if there are any, are written to decisions.json, where the next audit into this folder finds them.

        Args:
            path: the folder; it is made if it does not exist.
            force: replace files that are not an earlier audit.
            progress: show on standard error how far the page is.

        Raises:
            ValueError: if the folder cannot be used, or holds other files of these names.
        """
        folder = check_folder(path, force)
        folder.mkdir(parents=True, exist_ok=True)
        tables: dict[str, Columns] = {PAIRS: self.pairs, GROUPS: self.groups, SAMPLES: self.samples}
        tables |= {KEEP_TABLE: self.keep, SKIPPED: skipped_columns(self.data.skipped)}
        names = {number.name for number in self.numbers}
        facts = {name: value for name, value in self.summary.items() if name not in names}
        if self.decisions:
            write_decisions(folder / DECISIONS, self.decisions)
        write_tables(folder, tables, facts, list(self.numbers))
        page = self._page(progress=True) if progress else self.page
        page.save(folder / REPORT)

    def copy(self, folder: str | Path, *, copy_as: CopyAs = "link", progress: bool = False) -> int:
        """Link or copy what is kept into a new folder, or one that an earlier call made; nothing is deleted.

        Photos keep their folders; texts become one file, kept.jsonl.

        Args:
            folder: new, empty, or of an earlier call.
            copy_as: `link` makes hard links where the disk can, `copy` copies.
            progress: show on standard error how far it is.

        Returns:
            How many samples are in the folder.

        Raises:
            ValueError: if the folder holds other files, or samples are not files.
        """
        with progress_bar("copying", shown=progress) as told:
            return copy_kept(self.data, self.keep, folder, copy_as, told)[0]

    def _page(self, progress: bool) -> Page:
        from antipodes.auditing.page import audit_page

        with progress_bar("page", shown=progress) as told:
            return audit_page(self, told)


def audit(
    data: Any,
    *,
    encoder: Any = None,
    against: Any = None,
    out: str | Path | None = None,
    kind: Kind | None = None,
    columns: Sequence[str] | None = None,
    label: str | None = None,
    tower: str | None = None,
    decisions: str | Path | Sequence[Decision] | None = None,
    calibrate: float | None = None,
    options: AuditOptions | Mapping[str, Any] | None = None,
    batch_size: int = 256,
    limit: int | None = None,
    workers: int = 2,
    shown: int = 200,
    progress: bool = False,
    force: bool = False,
) -> Audit:
    """Find out which samples are the same thing: duplicates, likely false negatives, leaks; and samples that stand out.

    Args:
        data: what to audit: the path of a folder of photos or of photos with captions, of texts or pairs of texts
            (.txt, .csv, .tsv, .jsonl, .parquet, a dataset saved by Hugging Face), of a file of vectors (.npz, .npy,
            .parquet) or of a run; the name of a dataset; vectors (n, D); a list of texts, of paths or of Pillow images;
            a mapping with columns `text`, or `query` and `document`.
        encoder: what embeds it: a run folder, the name of an encoder (`patches` for photos and `ngrams` for texts need
            no weights), a sentence-transformers model or folder, or a function of a list of images or texts; of texts
            also their vectors (n, F), of pairs those of both sides. By default EfficientNet-Lite0 or MiniLM, or for a
            run its own encoder.
        against: other data of the same kind, such as a test set: what is in both is a leak.
        out: folder for the answer, as `Audit.save` writes it; nothing is written if not given. Decisions of an earlier
            audit in this folder are applied.
        kind: `photos`, `texts`, `pairs` or `vectors`, for data that could be several.
        columns: the column of texts in a table, or the two of pairs.
        label: the column of labels in a table of texts.
        tower: which encoder of a run that has several.
        decisions: the file that the page of an earlier audit saved, or its content.
        calibrate: the precision of likely false negatives that is asked for, such as 0.9: a bound that reaches it is
            estimated from at least 30 decided pairs and applied.
        options: what to look for (`AuditOptions`, or a mapping of its fields).
        batch_size: the batch of training for which the summary counts the pairs pushed apart.
        limit: audit only so many photos or rows.
        workers: threads that decode photos.
        shown: pairs of each kind on the page.
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
    if shown < 0:
        raise ValueError(f"shown must be at least 0, got {shown}: it is the number of pairs on the page")
    check_workers(workers)
    if out is not None:
        check_folder(out, force)
    decided = _decisions(decisions, out)
    audited = open_audited(data, against, Request(encoder, tower, kind, columns, label, limit, workers, progress))
    findings = audited.search(options, progress)
    if decided:
        findings = apply_decisions(findings, decided, Rows(len(audited), audited.key))
    calibration = None
    if calibrate is not None:
        findings, calibration = _calibrated(findings, calibrate)
    name = str(data) if isinstance(data, str | Path) else f"{len(audited)} {audited.unit}s"
    found = _answer(audited, findings, name, batch_size, tuple(decided), calibration, shown)
    if out is not None:
        found.save(out, force=force, progress=progress)
    return found


def _calibrated(findings: Findings, target: float) -> tuple[Findings, Calibration]:
    return calibrate(findings, target)  # under another name than the argument of `audit`


def _decisions(given: str | Path | Sequence[Decision] | None, out: str | Path | None) -> list[Decision]:
    """Earlier decisions in the folder of the answer, and those that are given, which count more."""
    earlier = None if out is None else Path(out) / DECISIONS
    kept = read_decisions(earlier) if earlier is not None and earlier.is_file() and is_marked(earlier) else []
    if given is None:
        return kept
    later = read_decisions(given) if isinstance(given, str | Path) else list(given)
    return merged(kept, later)


def _answer(
    data: AuditedData,
    findings: Findings,
    name: str,
    batch_size: int,
    decisions: tuple[Decision, ...],
    calibration: Calibration | None,
    shown: int,
) -> Audit:
    """The tables and numbers of what was found."""
    pairs, groups, samples = (_arrays(table) for table in tables_of(data, findings))
    keep = _arrays(keep_table(data, findings))
    numbers = numbers_of(data, findings, keep, batch_size)
    summary: dict[str, Any] = {"subject": name, "encoder": data.encoder}
    summary |= {"dimensions": int(data.vectors.embeddings.shape[1]), "batch size": min(batch_size, len(data))}
    if calibration is not None:
        summary |= {"calibrated bound": round(calibration.bound, 4)}
        summary |= {"estimated precision": round(calibration.precision, 4)}
        summary |= {"90 % interval of it": f"{calibration.low:.3f} to {calibration.high:.3f}"}
    summary |= {number.name: number.value for number in numbers}
    return Audit(pairs, groups, samples, keep, summary, tuple(numbers), data, findings, decisions, calibration, shown)


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
        refuse_foreign(folder / name, "--out", is_finding, force)
    return folder


def _arrays(table: Columns) -> dict[str, NDArray[Any]]:
    """Columns as arrays; texts are arrays of Python's strings, of any length."""

    def array(values: Any) -> NDArray[Any]:
        if isinstance(values, np.ndarray):
            return values
        return np.array(values, dtype=object if any(isinstance(each, str) for each in values) else None)

    return {name: array(values) for name, values in table.items()}
