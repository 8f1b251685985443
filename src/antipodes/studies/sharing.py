"""Runs that several studies have in common are trained once: SimCLR of one setting is the baseline of many."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from antipodes.runs.folder import Run

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
