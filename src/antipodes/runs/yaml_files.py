"""Options in YAML files, read as data only: a file that is none, or that grows beyond reason, gets one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import yaml

LARGEST = 1_000_000  # bytes of a file
MOST = 100_000  # values, those behind aliases counted as often as they appear


def read_options(path: str | Path, what: str | None = None) -> dict[str, Any]:
    """The mapping that a YAML file holds.

    Args:
        path: Of the file.
        what: What a sentence calls it; the path if not given.

    Raises:
        ValueError: if it cannot be read, is not YAML or no mapping, or is larger than any configuration, also by
            aliases of aliases.
    """
    path, name = Path(path), what or str(path)
    if not path.is_file():
        raise ValueError(f"{name} does not exist" if not path.exists() else f"{name} is not a file")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{name} has {path.stat().st_size:,} bytes: that is no configuration")
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
        size = _size(loaded, {})
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{name} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise ValueError(f"{name} is not a mapping of options")
    if size > MOST:
        raise ValueError(f"{name} holds more than {MOST:,} values, by aliases of aliases: that is no configuration")
    return cast(dict[str, Any], loaded)


def _size(value: Any, known: dict[int, int]) -> int:
    """How many values there are in a value, each alias counted as what it stands for."""
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in known:
        known[id(value)] = MOST + 1  # met again inside itself: endless
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(value)]
