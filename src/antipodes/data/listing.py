"""Which image files lie below a folder, in an order that people expect."""

import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from antipodes.data.caption_tables import plain_name
from antipodes.data.decode import EXTENSIONS


class Listing(NamedTuple):
    """What lies below a folder.

    ``files`` are the image files relative to it, in natural order, ``skipped`` the (path, reason) of what looks like
    one and is none, and of subfolders that cannot be read, and ``others`` counts files of other kinds.
    """

    files: list[str]
    skipped: list[tuple[str, str]]
    others: int


def list_images(root: Path) -> Listing:
    """Return the image files below a folder; hidden ones are passed over."""
    files, skipped, others = [], [], 0

    def unreadable(error: OSError) -> None:
        folder = os.path.relpath(os.fsdecode(error.filename or "?"), root)
        skipped.append((folder, f"folder that cannot be read: {error.strerror}"))

    for folder, subfolders, names in os.walk(root, onerror=unreadable):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        inside = Path(os.path.relpath(folder, root)).as_posix()
        prefix = "" if inside == "." else f"{inside}/"
        for name in names:
            if name.startswith("."):
                continue
            if os.path.splitext(name)[1].lower() not in EXTENSIONS:
                others += 1
                continue
            if problem := _not_a_file(os.path.join(folder, name)):
                skipped.append((prefix + name, problem))
            else:
                files.append(prefix + name)
    return Listing(sorted(files, key=natural), sorted(skipped), others)


class NamedFiles:
    """Files below a folder, found by the names that tables give them.

    Args:
        files: relative to the folder.
        root: the folder.
    """

    def __init__(self, files: list[str], root: Path) -> None:
        self.files, self.root = frozenset(files), root
        self._by_last: dict[str, list[str]] = {}
        for file in files:
            self._by_last.setdefault(last_name(file), []).append(file)

    def find(self, name: str, below: str = "") -> str | None:
        """Return the file that a table names, relative to the folder where it lies below it; None if there is none.

        A name without a folder is that of the first such file anywhere; one with a folder is a whole path, from the
        folder or from above it, or the end of exactly one path. A table that gives a whole path may name any file.

        Args:
            name: as the table writes it.
            below: the subfolder from which the table counts.
        """
        wanted = plain_name(name)
        if os.path.isabs(wanted) and os.path.isfile(wanted):
            inside = os.path.relpath(wanted, self.root)
            return inside if inside in self.files else wanted
        prefix = f"{below}/" if below else ""
        if prefix + wanted in self.files:
            return prefix + wanted
        alike = [file for file in self._by_last.get(last_name(wanted), []) if file.startswith(prefix)]
        if "/" not in wanted:
            return alike[0] if alike else None
        _, own, rest = f"/{wanted}".rpartition(f"/{self.root.name}/")
        if own and rest in self.files:  # a path from above the folder, moved or not
            return rest
        ends = [file for file in alike if file.endswith(f"/{wanted}")]
        return ends[0] if len(ends) == 1 else None


def last_name(path: str) -> str:
    """Return the last part of a path as tables write it."""
    return path.rpartition("/")[2]


def natural(text: str) -> tuple[list[tuple[int, str]], str]:
    """Sort key that reads runs of digits as numbers; the text itself decides between 01 and 1."""
    parts = re.split(r"([0-9]+)", text)
    return [(int(part), "") if part.isdecimal() else (-1, part.casefold()) for part in parts], text


def _not_a_file(path: str) -> str | None:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return error.strerror or "cannot be read"
    return None if stat.S_ISREG(mode) else "not a plain file"
