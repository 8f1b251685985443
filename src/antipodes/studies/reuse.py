"""When a finished run can stand for another: digests of the code it was made by, and runs that studies share.

1. A run records the digests of the rooms of the package that numbers come from, and of the modules of the user that its
   configuration names by a dotted path. Where one differs today, its results are of older code.
2. SimCLR of one setting is the baseline of many studies: a run with the same settings, seed and code is trained once
   and linked into the others."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from antipodes.registry import Kind, find
from antipodes.runs.folder import Run

PACKAGE = Path(__file__).parents[1]
ROOMS = (
    "functional",
    "negatives",
    "guides",
    "candidates",
    "losses",
    "encoders",
    "methods",
    "data",
    "runs",
    "training",
    "evaluation",
)
"""Rooms that numbers come from; commands, reports and studies only pass them on."""
TOP = "top"  # modules of the package outside of its rooms, such as pairs and state
MEASURING = "evaluation"
"""The room that a run's scores depend on, but not its training."""
CHOSEN: tuple[Kind, ...] = ("method", "loss", "negatives", "guide", "encoder", "data")
"""Kinds of components that a configuration names."""


@cache
def code_digests() -> dict[str, str]:
    """Return the digest of every room that is there, and of the modules next to them."""
    found = {room: _digest(sorted((PACKAGE / room).rglob("*.py"))) for room in ROOMS if (PACKAGE / room).is_dir()}
    return found | {TOP: _digest(sorted(path for path in PACKAGE.glob("*.py") if path.name != "__main__.py"))}


def run_digests(configuration: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of the code that a run depends on: rooms of the package, and the user's own modules.

    Args:
        configuration: Of the run, complete. A component that it names by a dotted path outside of the package counts
            with its module.
    """
    own = {module for kind, name in _components(configuration) if (module := _own_module(kind, name)) is not None}
    return code_digests() | {module: _content(Path(str(sys.modules[module].__file__))) for module in sorted(own)}


def runner_digests(module: str, depends: Sequence[str] = ("functional",)) -> dict[str, str]:
    """Return the digests that an experiment with a runner of its own depends on: its module, and what that names.

    Args:
        module: Its dotted path; it has been imported.
        depends: Rooms of the package, and modules of the runner's folder.
    """
    file = Path(str(sys.modules[module].__file__))
    rooms = {name: code_digests()[name] for name in depends if name in code_digests()}
    modules = [name for name in depends if name not in rooms]
    return rooms | {name: _content(file.with_name(f"{name}.py")) for name in (*modules, file.stem)}


def changed(before: Mapping[str, str] | None, now: Mapping[str, str]) -> str | None:
    """Return in a few words what has changed since a run was started; None if nothing has.

    Args:
        before: The digests that were recorded then.
        now: Those of today.
    """
    if not before:
        return "the code that it was run with is not known"
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} changed since" if names else None


def _components(configuration: Mapping[str, Any]) -> Iterator[tuple[Kind, str]]:
    """Yield every component that a configuration names."""
    for kind in CHOSEN:
        for name in configuration.get(kind, {"name": "none"})["name"].split("+" if kind == "negatives" else None):
            if name != "none":
                yield kind, name
    for spec in (configuration.get("encoders") or {}).values():
        yield "encoder", spec["name"]


@cache
def _own_module(kind: Kind, name: str) -> str | None:
    """Return the module of a component outside of the package; None for one of the package, or that is gone."""
    try:
        module = find(kind, name).target.__module__
    except ValueError:  # such as data that was moved
        return None
    return None if module.split(".")[0] == "antipodes" else module


def _content(file: Path) -> str:
    return hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest()


def _digest(files: list[Path]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        digest.update(str(file.relative_to(PACKAGE)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


WITHOUT_EFFECT = ("out", "threads", "workers", "log_every", "snapshot_every", "tensorboard", "wandb")
"""Options that do not change what is learned, nor what is measured of it."""
NOT_SHARED = ("evaluation.json", "study.json", "pictures")
"""What belongs to the study that measured."""


def find_twin(out: Path, configuration: Mapping[str, Any], code: Mapping[str, str]) -> Path | None:
    """Find a finished run with the same training in a neighbouring folder of studies; None if there is none.

    Args:
        out: The folder of this study; the others are in the same parent folder.
        configuration: What the run is to be trained with, complete.
        code: The digests of today's code that trains it; a run of older code is not taken over. What the other study
            measured with does not count.
    """
    wanted = _essence(configuration)
    for found in sorted(out.parent.glob("*/*/seed-*/study.json")):
        if found.is_relative_to(out):
            continue
        try:
            before = json.loads(found.read_text()).get("code") or {}
            same_code = all(before.get(name) == digest for name, digest in code.items())
            if same_code and _essence(Run(found.parent).config) == wanted:
                return found.parent
        except (ValueError, OSError):  # a damaged folder is skipped
            continue
    return None


def link_run(source: Path, target: Path) -> None:
    """Make a run folder whose files are hard links to those of another; copies where links are impossible.

    A run replaces its files when it writes them, so neither folder can change the other.
    """
    temporary = target.with_name(f"{target.name}.linking")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(source, temporary, copy_function=_link, ignore=shutil.ignore_patterns(*NOT_SHARED))
    temporary.rename(target)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _essence(configuration: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in configuration.items() if name not in WITHOUT_EFFECT}
    plain: dict[str, Any] = json.loads(json.dumps(kept, default=str))
    return plain
