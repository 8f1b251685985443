"""Which image files lie below a folder, in an order that people expect."""

import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

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


def name_files(files: list[str]) -> dict[str, str]:
    """Return files by their whole path and by their last name; the first of several of one name."""
    return {**{last_name(file): file for file in reversed(files)}, **{file: file for file in files}}


def find_named(name: str, files: dict[str, str]) -> str | None:
    """Return the file that a table names: one of ``name_files``, or any where the table gives its whole path."""
    if os.path.isabs(name) and os.path.isfile(name):
        return name
    wanted = name.removeprefix("./").replace("\\", "/")
    return files.get(wanted) or files.get(last_name(wanted))


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
