"""Where datasets are kept, and how they get there."""

import hashlib
import os
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Collection
from http.client import HTTPException
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from antipodes.files import DataError, replacing

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


def download(
    url: str,
    target: Path,
    checksum: str,
    largest: int = 20 * 1 << 30,
    seconds: float = 24 * 3600,
    schemes: Collection[str] = ("https",),
) -> None:
    """Fetch a file, with a progress bar on a terminal; it appears at ``target`` only if its checksum is right.

    Args:
        url: where it is.
        target: where it goes.
        checksum: as ``check`` takes it.
        largest: bytes that the file may have.
        seconds: how long the download may take.
        schemes: of the address, and of every address that it is redirected to.

    Raises:
        DataError: if the host cannot be reached within seconds, the address or a redirection has another scheme, the
            file is too large or too slow, or the checksum differs.
    """
    _check_scheme(url, schemes)
    opener = urllib.request.build_opener(_Redirections(schemes))
    try:
        with opener.open(url, timeout=_TIMEOUT) as answer:
            make_folder(target.parent)
            with replacing(target) as partial:
                _save(answer, partial, target.name, url, largest, time.monotonic() + seconds)
                check(partial, checksum, url)
    except (OSError, HTTPException) as error:
        raise DataError(f"{url} cannot be reached ({error})") from error


class _Redirections(urllib.request.HTTPRedirectHandler):
    """Redirections to addresses of the given schemes only."""

    def __init__(self, schemes: Collection[str]) -> None:
        self._schemes = schemes

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
        """Return the request of a redirection."""
        _check_scheme(newurl, self._schemes)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_scheme(url: str, schemes: Collection[str]) -> None:
    if urllib.parse.urlsplit(url).scheme not in schemes:
        raise DataError(f"{url} is not downloaded: only {', '.join(schemes)} addresses are")


def _save(answer: Any, partial: Path, name: str, url: str, largest: int, deadline: float) -> None:
    """Write an answer to a file, as long as it stays within the bounds of size and time."""
    claimed = answer.headers.get("Content-Length")
    size = int(claimed) if claimed and claimed.isdecimal() else None
    written = 0
    with partial.open("wb") as file, progress() as bar:
        task = bar.add_task(name, total=size)
        while size is None or size <= largest:
            if time.monotonic() > deadline:
                raise DataError(f"{url} is too slow: the download was given up")
            if not (chunk := answer.read1(_CHUNK)):
                return
            written += len(chunk)
            if written > largest:
                break
            file.write(chunk)
            bar.advance(task, len(chunk))
    raise DataError(f"{url} has more than the {largest:,} bytes that a download may have")


def progress() -> Progress:
    """Return a progress bar for bytes on standard error, silent when that is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True)
