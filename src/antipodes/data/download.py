"""Where datasets are kept, and how they get there."""

import hashlib
import os
import sys
import tempfile
import urllib.request
from http.client import HTTPException
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from antipodes.data.dataset import DataError
from antipodes.files import replacing

_TIMEOUT = 5  # seconds without an answer: a machine without a network should fall back at once
_CHUNK = 1 << 20


def cache_root(root: str | None = None) -> Path:
    """Return the folder in which datasets are kept: ``root``, else $ANTIPODES_DATA, else ~/.cache/antipodes."""
    return Path(root or os.environ.get("ANTIPODES_DATA") or "~/.cache/antipodes").expanduser()


def make_folder(folder: Path) -> None:
    """Make a folder to keep datasets in, unless it is there.

    Raises:
        DataError: if it cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise DataError(f"cannot write to {folder} ({error}): point root or ANTIPODES_DATA elsewhere") from error


def check(path: Path, checksum: str, name: str) -> None:
    """Refuse a file whose digest is another one; ``checksum`` reads "md5:..." or "sha256:...".

    Raises:
        DataError: if they differ.
    """
    algorithm, expected = checksum.split(":")
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != expected:
        raise DataError(f"{name} has {algorithm} {digest.hexdigest()} instead of {expected}")


def download(url: str, target: Path, checksum: str) -> None:
    """Fetch a file, with a progress bar on a terminal; it appears at ``target`` only if its checksum is right.

    Raises:
        DataError: if the host cannot be reached within seconds, or the checksum differs.
    """
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
            make_folder(target.parent)
            with replacing(target) as partial:
                with partial.open("wb") as file, progress() as bar:
                    size = answer.headers.get("Content-Length")
                    task = bar.add_task(target.name, total=int(size) if size else None)
                    while chunk := answer.read(_CHUNK):
                        file.write(chunk)
                        bar.advance(task, len(chunk))
                check(partial, checksum, url)
    except (OSError, HTTPException) as error:
        raise DataError(f"{url} cannot be reached ({error})") from error


def progress() -> Progress:
    """Return a progress bar for bytes on standard error, silent when that is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
