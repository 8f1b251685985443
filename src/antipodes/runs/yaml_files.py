"""Options in YAML files, read as data only; a file that is not YAML, is cut short or is too large gets one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml

LARGEST = 1_000_000  # bytes of a file
MOST = 100_000  # keys and values, where an alias counts as often as it appears
LONGEST = 1000  # characters of a number or a date
COMPONENTS = ("method", "negatives", "data")
"""The components that every configuration of a run names."""


def read_options(path: str | Path, what: str | None = None) -> dict[str, Any]:
    """Read the mapping in a YAML file.

    Args:
        path: The file.
        what: The file's name in messages; by default its path.

    Raises:
        ValueError: if the file cannot be read, is not a YAML mapping, or is larger than any configuration, also by
            aliases of aliases.
    """
    path, name = Path(path), what or str(path)
    if not path.is_file():
        raise ValueError(f"{name} does not exist" if not path.exists() else f"{name} is not a file")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{name} has {path.stat().st_size:,} bytes: that is no configuration")
    try:
        loaded = _load(path.read_text(encoding="utf-8"), name)
    except _TooMuch as error:
        raise ValueError(f"{name} {error}: that is no configuration") from error
    except _NOT_YAML as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ValueError(f"{name} is not YAML: {reason}") from error
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise ValueError(f"{name} is not a mapping of options")
    return cast(dict[str, Any], loaded)


def read_configuration(path: Path) -> dict[str, Any]:
    """Read the configuration of a run, as `configuration_text` has written it.

    Raises:
        ValueError: if it cannot be read, or is not complete.
    """
    options = read_options(path)
    text = path.read_text(encoding="utf-8")
    if text.startswith("---"):
        if not text.endswith("\n...\n"):
            raise ValueError(f"{path} is cut short: the mark of its end is missing, so restore it from a copy")
        return options
    for name in COMPONENTS:  # a run of an earlier version has no marks
        component = options.get(name)
        if not isinstance(component, dict) or not isinstance(component.get("name"), str):
            raise ValueError(f"{path} does not name the {name} of its run: it is no whole configuration of a run")
    return options


def configuration_text(config: Mapping[str, Any]) -> str:
    """Write a configuration as YAML with marks at its begin and end, by which a file that is cut short is detected."""
    return yaml.safe_dump(dict(config), sort_keys=False, explicit_start=True, explicit_end=True)


# PyYAML raises classes other than its own for scalars that do not fit their tag: 2020-99-99, !!int x, !!bool x
_NOT_YAML = (yaml.YAMLError, OSError, RecursionError, ValueError, KeyError, AttributeError, TypeError, OverflowError)


class _TooMuch(Exception):
    """The file has few enough bytes, but its aliases expand to too many values."""


def _load(text: str, name: str) -> Any:
    """Parse a document; the limits are checked before values are built, because merge keys copy mappings."""
    loader = yaml.SafeLoader(text)
    loader.name = name
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > MOST:
            raise _TooMuch(f"holds more than {MOST:,} values, by aliases of aliases")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Count the values in a node; an alias counts as the values it stands for."""
    if isinstance(node, yaml.ScalarNode):
        if len(node.value) > LONGEST and node.tag != "tag:yaml.org,2002:str":
            raise _TooMuch(f"holds a number or date of {len(node.value):,} characters")
        return 1
    if id(node) not in known:
        known[id(node)] = MOST + 1  # a node inside itself is endless
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]
