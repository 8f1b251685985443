"""The values of a study's YAML file, each checked for its kind; what is wrong gets one sentence that names the key."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

Options = dict[str, Any]


@dataclass(frozen=True)
class Paper:
    """Published figures: where they stand, what they were measured on, and variant -> score -> number."""

    source: str
    measured: str
    scores: dict[str, dict[str, float]]


def read_mapping(value: Any, what: str) -> dict[str, Any]:
    """Return a copy of a mapping whose keys are names.

    Raises:
        ValueError: if it is something else.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{what} should be a mapping, got {_short(value)}")
    if odd := [key for key in value if not isinstance(key, str)]:
        raise ValueError(f"{what} should have names as keys, got {_short(odd[0])}: put it in quotes")
    return dict(value)


def read_options_of(value: Any, what: str) -> Options:
    """Return options of antipodes train, without those that the study sets itself.

    Raises:
        ValueError: if they are none, or set one of these.
    """
    options = read_mapping(value, what)
    for name, component in options.items():
        if name in ("seed", "out"):
            raise ValueError(f"{what} may not set {name}, which the study sets for every run")
        _check_component(component, f"{name} of {what}")
    return options


def read_name(value: Any, what: str) -> str:
    """Return a name.

    Raises:
        ValueError: if it is something else.
    """
    if not isinstance(value, str):
        raise ValueError(f"{what} should be a name, got {_short(value)}")
    return value


def list_of_names(value: Any, what: str) -> list[str]:
    """Return a list of names.

    Raises:
        ValueError: if it is something else.
    """
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{what} should be a list of names, got {_short(value)}")
    return value


def read_seeds(value: Any, what: str) -> list[int]:
    """Return a list of seeds.

    Raises:
        ValueError: if it is empty or holds something else, or one seed twice.
    """
    whole = isinstance(value, list) and value and all(_is_whole(seed) and 0 <= seed < 2**63 for seed in value)
    if not whole or len(set(value)) < len(value):
        raise ValueError(f"{what} should be a list of different whole numbers below 2**63, got {_short(value)}")
    return list(value)


def read_limit(value: Any, what: str) -> int | None:
    """Return a number of samples; None for all.

    Raises:
        ValueError: if it is not a whole number from 1 on.
    """
    if value is not None and (not _is_whole(value) or value < 1):
        raise ValueError(f"{what} should be a whole number of at least 1, got {_short(value)}")
    return value  # type: ignore[no-any-return]


def read_share(value: Any, what: str) -> float:
    """Return a share.

    Raises:
        ValueError: if it is not a number in (0, 1].
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ValueError(f"{what} should be a number in (0, 1], got {_short(value)}")
    return float(value)


def read_papers(value: Any, variants: Collection[str]) -> list[Paper]:
    """Return the published figures.

    Raises:
        ValueError: if they are something else, or of what is not a variant.
    """
    if not isinstance(value, list):
        raise ValueError(f"paper should be a list of published figures, got {_short(value)}")
    return [_paper(entry, variants) for entry in value]


def check_keys(what: str, mapping: Any, required: tuple[str, ...], optional: tuple[str, ...]) -> None:
    """Refuse a mapping that lacks a key, or has one that means nothing.

    Raises:
        ValueError: for the first such key.
    """
    if not isinstance(mapping, dict):
        raise ValueError(f"{what} should be a mapping of {', '.join(required + optional)}")
    for key in mapping:
        if key not in required + optional:
            raise ValueError(f"{what} has an unknown key {key!r}: it takes {', '.join(required + optional)}")
    for key in required:
        if key not in mapping:
            raise ValueError(f"{what} lacks {key!r}")


def _paper(entry: Any, variants: Collection[str]) -> Paper:
    check_keys("an entry of paper", entry, ("source", "measured", "scores"), ())
    scores = read_mapping(entry["scores"], "scores of paper")
    if unknown := set(scores) - set(variants):
        raise ValueError(f"paper gives a figure of {unknown.pop()!r}, which is not a variant")
    for variant, figures in scores.items():
        for score, figure in read_mapping(figures, f"scores of {variant} in paper").items():
            if isinstance(figure, bool) or not isinstance(figure, (int, float)):
                raise ValueError(f"{score} of {variant} in paper should be a number, got {_short(figure)}")
    return Paper(str(entry["source"]), str(entry["measured"]), scores)


def _check_component(value: Any, what: str) -> None:
    """Refuse keys of components, and of what is in them, that are no names."""
    if isinstance(value, dict):
        for name, part in read_mapping(value, what).items():
            _check_component(part, f"{what}.{name}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
