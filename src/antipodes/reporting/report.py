"""`antipodes.report`: one page of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from antipodes.files import is_marked, refuse_foreign
from antipodes.pages.page import Page, require_jinja
from antipodes.progress import progress_bar
from antipodes.reporting.run_page import run_page
from antipodes.tables import require_out


def report(
    runs: str | Path | Sequence[str | Path],
    *,
    out: str | Path | None = None,
    samples: int = 1000,
    shown: int = 100,
    data: str | Path | None = None,
    progress: bool = False,
    force: bool = False,
) -> Page:
    """Make one page of runs: settings, curves, scores, flagged pairs as pictures, and a map of the features.

    Args:
        runs: folders that antipodes train wrote, or one of them.
        out: file for the page (.html); nothing is written if not given.
        samples: training samples of every run for flags and the map; 0 leaves these out.
        shown: flagged pairs of every run.
        data: where the runs' data is now, if it has moved.
        progress: show on standard error how many runs are done.
        force: replace a file at `out` that is not an earlier page.

    Returns:
        The page: `page.html` is its text, `page.save(path)` writes it.

    Raises:
        ValueError: if a folder is not a run, or `out` cannot be used; nothing is written then.
    """
    if samples < 0 or samples == 1:
        raise ValueError(f"samples must be 0, or at least 2, got {samples}")
    if shown < 0:
        raise ValueError(f"shown must be at least 0, got {shown}: it is the number of flagged pairs on the page")
    require_jinja()
    folders = [Path(runs)] if isinstance(runs, str | Path) else [Path(run) for run in runs]
    if not folders:
        raise ValueError("runs is empty: name at least one run")
    if out is not None:
        refuse_foreign(require_out(out, (".html",)), "--out", is_marked, force)
    with progress_bar("runs", shown=progress) as told:
        page = run_page(folders, samples, shown, told, None if data is None else str(data))
    if out is not None:
        page.save(out)
    return page
