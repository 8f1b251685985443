"""Objects cut out of photos by their boxes, once, into the user's cache folder."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from antipodes.data.download import cache_root, make_folder
from antipodes.data.image_opening import Source, opened_source
from antipodes.files import DataError, private_folder

Box = Sequence[float]
"""Left, top, width and height in pixels, as COCO writes them."""


def cut_out(boxes: Mapping[Path, Mapping[str, Box]], listed_in: Path) -> Path:
    """Return a folder with an image for every box, cut out now unless that was done before.

    Args:
        boxes: Photo -> name of the image that is cut out -> its box.
        listed_in: The file that has the boxes; if it changes, they are cut out again.

    Raises:
        DataError: if a photo cannot be read, or the folder cannot be written.
    """
    state = listed_in.stat()
    key = f"{listed_in.resolve()} {state.st_size} {state.st_mtime_ns}".encode(errors="surrogateescape")
    target = cache_root() / "cut-out" / f"{listed_in.stem}-{hashlib.blake2b(key, digest_size=6).hexdigest()}"
    if target.is_dir():
        return target
    with suppress(OSError):  # what is wrong with it is said below
        private_folder(target.parent)
    make_folder(target.parent)
    partial = Path(tempfile.mkdtemp(prefix=f".{listed_in.stem}-", dir=target.parent))
    try:
        for photo, parts in boxes.items():
            _cut(photo, parts, partial)
        with suppress(OSError):  # another process was faster
            partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _cut(photo: Path, parts: Mapping[str, Box], folder: Path) -> None:
    try:
        with opened_source(Source(str(photo))) as image:
            whole = image.convert("RGB")
        for name, (left, top, width, height) in parts.items():
            right, bottom = left + max(width, 1), top + max(height, 1)
            whole.crop((int(left), int(top), round(right), round(bottom))).save(folder / name)
    except (OSError, ValueError) as error:
        raise DataError(f"{photo} cannot be cut up into its objects ({error}): get it again") from error
