"""Long work in parts that survive a crash: each part is a file, and a finished part is not computed again."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antipodes.files import replacing

PART = 512


def compute_in_parts(
    folder: Path,
    identity: Sequence[str],
    count: int,
    compute: Callable[[range], NDArray[np.float32]],
    progress: Callable[[int, int], None] | None = None,
    size: int = PART,
) -> tuple[NDArray[np.float32], int]:
    """Compute `count` rows, a part at a time, and take those parts from `folder` that an earlier call has left there.

    Args:
        folder: where the parts are kept; what another `identity` has left there is removed.
        identity: strings that say what is computed.
        count: number of rows.
        compute: rows -> their vectors (len(rows), F).
        progress: called with (rows done, rows in all).
        size: rows in a part.

    Returns:
        All vectors (count, F), and how many rows were there already. The folder stays: see `remove_parts`.

    Raises:
        ValueError: if the folder holds something else.
    """
    key = hashlib.blake2b("\0".join(identity).encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    mark = folder / "identity.json"
    wanted = {"key": key, "count": count, "size": size}
    if folder.exists() and not mark.is_file() and any(folder.iterdir()):
        raise ValueError(f"{folder} is in the way, and no earlier call has made it: move it elsewhere")
    if folder.exists() and _read(mark) != wanted:
        shutil.rmtree(folder)
    folder.mkdir(exist_ok=True)
    with replacing(mark) as temporary:
        temporary.write_text(json.dumps(wanted))
    parts, found = [], 0
    for start in range(0, count, size):
        rows = range(start, min(start + size, count))
        file = folder / f"{start:09d}.npy"
        if file.is_file():
            parts.append(np.load(file))
            found += len(rows)
        else:
            parts.append(compute(rows))
            with replacing(file) as temporary, temporary.open("wb") as handle:
                np.save(handle, parts[-1])
        if progress is not None:
            progress(rows.stop, count)
    return np.concatenate(parts), found


def _read(mark: Path) -> object:
    try:
        return json.loads(mark.read_text())
    except (OSError, ValueError):
        return None


def remove_parts(folder: Path) -> None:
    """Remove the parts, once the whole is written."""
    shutil.rmtree(folder, ignore_errors=True)
