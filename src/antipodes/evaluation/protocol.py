"""`Protocol`: the base class of evaluation protocols, with their needs and options; `evaluate` runs several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from importlib import import_module
from typing import Any, ClassVar

from antipodes.evaluation.names import LABELS_ARE_NEEDED, PROTOCOLS
from antipodes.evaluation.subject import Subject


class Protocol(ABC):
    """An evaluation protocol. It is a frozen dataclass whose fields are its options.

    Attributes:
        name: The protocol's name in the registry.
        summary: What it measures, in a line for `antipodes evaluate --help`.
        needs: What the subject must have, checked before anything is computed: `features` of train and test, their
            `labels`, the `network`, the run's `policy`, `others` (datasets), `pairs` of images and texts, `classes`
            (images of named classes and a text tower).
        takes_others: True if it evaluates on other datasets if some are given.
    """

    name: str
    summary: str
    needs: frozenset[str]
    takes_others: ClassVar[bool] = False

    @abstractmethod
    def run(self, subject: Subject) -> dict[str, float]:
        """Compute the scores.

        Returns:
            Score -> number, in percent unless its name says otherwise.
        """

    def options(self) -> dict[str, Any]:
        """Return the options by name."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    def check(self, subject: Subject) -> None:
        """Refuse a subject that lacks something the protocol needs.

        Raises:
            ValueError: the message says what is missing.
        """
        for need in sorted(self.needs):
            if reason := _LACKS[need](subject):
                raise ValueError(reason.format(protocol=self.name))


def find_protocol(name: str) -> type[Protocol]:
    """Return the class of a protocol.

    Raises:
        ValueError: if there is no protocol of that name.
    """
    if name not in PROTOCOLS:
        raise ValueError(f"there is no evaluation protocol {name!r}: choose from {', '.join(PROTOCOLS)}")
    module, _, attribute = PROTOCOLS[name].rpartition(".")
    found: type[Protocol] = getattr(import_module(module), attribute)
    return found


def make_protocols(names: Iterable[str], options: Mapping[str, Mapping[str, Any]] | None = None) -> list[Protocol]:
    """Build protocols by name, with their options.

    Raises:
        ValueError: if a name is unknown, or an option out of its range.
    """
    classes = {name: find_protocol(name) for name in names}  # refuse an unknown name before building one
    return [found(**(options or {}).get(name, {})) for name, found in classes.items()]


def run_protocols(protocols: Iterable[Protocol], subject: Subject) -> dict[str, float]:
    """Run protocols and join their scores; nothing runs before all needs are checked.

    Raises:
        ValueError: if the subject lacks something, or a protocol refuses its input.
    """
    chosen = list(protocols)
    for protocol in chosen:
        protocol.check(subject)
    row: dict[str, float] = {}
    for protocol in chosen:
        row |= protocol.run(subject)
    return row


def _lacks_features(subject: Subject) -> str | None:
    return None if subject.has_features else "the {protocol} protocol needs a run, or features of train and test"


def _lacks_labels(subject: Subject) -> str | None:
    part = subject.part_without_labels
    return None if part is None else LABELS_ARE_NEEDED.replace("{part}", part)


def _lacks_network(subject: Subject) -> str | None:
    return None if subject.method is not None else "the {protocol} protocol needs a run with its network"


def _lacks_policy(subject: Subject) -> str | None:
    if subject.method is None or not subject.policies():
        return "{protocol} needs a run with a policy: train with --negatives"
    return None


def _lacks_others(subject: Subject) -> str | None:
    if subject.others:
        return None
    return "{protocol} needs other datasets: name them, such as --transfer fashion-mnist path/to/photos"


def _lacks_pairs(subject: Subject) -> str | None:
    if subject.can_pair:
        return None
    return (
        "the {protocol} protocol needs pairs of images and texts, or of two texts: a run with a tower for each, "
        "or --images a.npy --texts b.npy"
    )


def _lacks_classes(subject: Subject) -> str | None:
    if subject.classified is not None or (subject.reads_text and (subject.others or subject.has_classes)):
        return None
    return (
        "the {protocol} protocol needs a run with a text tower and images with names of their classes, such as "
        "--transfer FOLDER_OF_CLASSES, or --images a.npy --texts classes.npy --labels labels.npy"
    )


_LACKS: dict[str, Callable[[Subject], str | None]] = {
    "features": _lacks_features,
    "labels": _lacks_labels,
    "network": _lacks_network,
    "policy": _lacks_policy,
    "others": _lacks_others,
    "pairs": _lacks_pairs,
    "classes": _lacks_classes,
}
