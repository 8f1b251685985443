"""Groups that the user gives to the policy `known` as a file, matched to the current rows of the data.

A file of `antipodes audit` contains the path of every sample. Rows are matched by that path, so groups stay right after
photos were added or removed. A file without paths contains row numbers, as `Known.read` expects.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor

from antipodes.data import Captions, Samples
from antipodes.data.image_files import ImageFiles
from antipodes.negatives import Known
from antipodes.negatives.known_columns import read_columns

Spec = Mapping[str, Any]
KNOWN = "known"
FEW = 0.1
"""The smallest share of matching paths; with fewer, the groups are refused as those of other data."""


def place_groups(spec: Spec, data: Samples) -> Spec:
    """Put groups from a file with paths in the order of the data's rows.

    Args:
        spec: The specification of one policy, or of several joined by +.
        data: The training data.

    Raises:
        ValueError: if the file describes other data.
    """
    given = _known(spec) or {}
    groups = given.get("groups")
    if not isinstance(groups, (str, Path)) or not _has_files(data):
        return spec
    if not Path(groups).is_file():
        return spec  # `Known` raises
    columns = read_columns(Path(groups))
    if "path" not in columns or "group" not in columns:
        return spec
    of_rows = Known.read(groups).groups  # raises if the file is invalid
    paths = [str(path) for path in columns["path"].tolist()]
    rows = torch.tensor([int(float(row)) for row in columns.get("row", range(len(paths)))], dtype=torch.int64)
    found = match_paths(paths, [_as_written(path) for path in data.paths], data.base)
    known = found >= 0
    if known.sum() < FEW * min(len(data), len(paths)) or not known.any():
        raise ValueError(
            f"{groups} describes other samples than {data.base} has: {int(known.sum())} of {len(data)} are in it, by "
            f"their paths, such as {paths[0] if paths else 'none'}; audit this data again"
        )
    if alone := int((~known).sum()):
        warnings.warn(f"{alone} of {len(data)} samples are not in {groups}: they are alone", stacklevel=2)
    placed = torch.full((len(data),), -1)
    placed[known] = of_rows[rows[found[known]]]
    return _with_known(spec, {**given, "groups": placed})


def without_groups(spec: Spec, count: int) -> Spec:
    """Return the specification of policies with `known` empty of `count` rows, for uses without a policy."""
    given = _known(spec)
    return spec if given is None else _with_known(spec, {**given, "groups": torch.full((count,), -1), "pairs": None})


def match_paths(listed: Sequence[str], paths: Sequence[str], base: Path) -> Tensor:
    """Return the position in `listed` of each of `paths`, (n,); -1 if there is none.

    A path is matched as a whole, else by its end, from the data's folder `base` on, because the folder may have moved.

    Example:
        >>> match_paths(["/old/photos/a.png", "/old/photos/b/c.png"], ["/new/photos/b/c.png"], Path("/new/photos"))
        tensor([1])
    """
    whole = {os.path.abspath(path): place for place, path in enumerate(listed)}
    root = os.path.abspath(base)
    ends = {f"{os.sep}{os.path.basename(root)}{os.path.abspath(path)[len(root) :]}": path for path in paths}
    depths = sorted({end.count(os.sep) for end in ends}, reverse=True)
    by_end: dict[str, int] = {}
    for path, place in whole.items():
        parts = path.split(os.sep)
        for depth in depths:
            end = os.sep.join(["", *parts[-depth:]])
            if end in ends:
                by_end.setdefault(ends[end], place)
                break
    return torch.tensor([whole.get(os.path.abspath(path), by_end.get(path, -1)) for path in paths], dtype=torch.int64)


def _known(spec: Spec) -> Spec | None:
    """Return the options of the policy `known`, alone or joined with others; None without it."""
    if spec["name"] == KNOWN:
        return spec
    return dict(spec.get(KNOWN, {})) if KNOWN in spec["name"].split("+") else None


def _with_known(spec: Spec, options: Spec) -> Spec:
    return options if spec["name"] == KNOWN else {**spec, KNOWN: options}


def _as_written(path: str) -> str:
    """Return a path as tables contain it: bytes of a name that are not UTF-8 are escaped."""
    return path.encode("utf-8", "backslashreplace").decode()


def _has_files(data: Samples) -> TypeGuard[ImageFiles | Captions]:
    return isinstance(data, ImageFiles) or (isinstance(data, Captions) and data.rows == "image")
