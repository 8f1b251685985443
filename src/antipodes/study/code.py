"""Which code a run depends on, as a short digest for every room of the package, so that stale results are noticed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
ROOMS = (
    "functional",
    "negatives",
    "guides",
    "candidates",
    "objectives",
    "encoders",
    "methods",
    "data",
    "runs",
    "training",
    "evaluation",
)
"""Rooms that numbers come from; commands, reports and studies only pass them on."""
TOP = "top"  # the modules beside the rooms, such as pairs and state


@cache
def code_digests() -> dict[str, str]:
    """The digest of every room that is there, and of the modules beside them."""
    found = {room: _digest(sorted((PACKAGE / room).rglob("*.py"))) for room in ROOMS if (PACKAGE / room).is_dir()}
    return found | {TOP: _digest(sorted(path for path in PACKAGE.glob("*.py") if path.name != "__main__.py"))}


def runner_digests(module: str, depends: Sequence[str] = ("functional",)) -> dict[str, str]:
    """The digests that an experiment with a runner of its own depends on: its module, and what that names.

    Args:
        module: Its dotted path.
        depends: Rooms of the package, and modules beside the runner's.
    """
    path = PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")
    rooms = {name: code_digests()[name] for name in depends if name in code_digests()}
    modules = [name for name in depends if name not in rooms]
    return rooms | {name: _digest([path.with_name(f"{name}.py")]) for name in (*modules, path.stem)}


def changed(before: Mapping[str, str] | None, now: Mapping[str, str]) -> str | None:
    """What has changed since a run was started, in a few words; None if nothing has."""
    if not before:
        return "nobody knows which code it was run with"
    rooms = [room for room in {**before, **now} if before.get(room) != now.get(room)]
    return f"{', '.join(rooms)} changed since" if rooms else None


def _digest(files: list[Path]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        digest.update(str(file.relative_to(PACKAGE)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()
