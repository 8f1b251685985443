"""Paths as a page shows them: without the folders that all of them share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePath


def short_paths(paths: Sequence[str]) -> list[str]:
    """Paths from the folder on that holds all of them; what is not an absolute path stays as it is.

    Example:
        >>> short_paths(["/home/me/photos/a/1.jpg", "/home/me/photos/b/1.jpg", "cifar10/3"])
        ['photos/a/1.jpg', 'photos/b/1.jpg', 'cifar10/3']
    """
    folders = {os.path.dirname(path) for path in paths if os.path.isabs(path)}
    if not folders:
        return list(paths)
    above = os.path.dirname(os.path.commonpath(folders))
    return [os.path.relpath(path, above) if os.path.isabs(path) else path for path in paths]


def path_ends(paths: Sequence[str]) -> list[str]:
    """The shortest ends of paths that tell different ones apart; what is not an absolute path stays as it is.

    Example:
        >>> path_ends(["/home/me/photos", "/home/me/photos", "/disk/photos", "cifar10"])
        ['me/photos', 'me/photos', 'disk/photos', 'cifar10']
    """
    parts = {path: PurePath(path).parts for path in paths if os.path.isabs(path)}
    depth = 1
    while len({ends[-depth:] for ends in parts.values()}) < len(parts):
        depth += 1
    return ["/".join(parts[path][-depth:]).replace("//", "/") if path in parts else path for path in paths]
