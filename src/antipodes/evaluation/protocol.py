"""`Protocol`: the base class of evaluation protocols; their registry, needs and options; `score` runs several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any, ClassVar

from antipodes.data import Samples
from antipodes.data.augment import Augmentation
from antipodes.evaluation.subject import Subject
from antipodes.methods import Method
from antipodes.runs.towers import Progress

_HOME = "antipodes.evaluation.protocols"

PROTOCOLS: dict[str, str] = {
    "linear": f"{_HOME}.frozen.Linear",
    "semi": f"{_HOME}.frozen.Semi",
    "knn": f"{_HOME}.frozen.KNN",
    "false-negatives": f"{_HOME}.false_negatives.FalseNegatives",
    "transfer": f"{_HOME}.transfer.Transfer",
    "fine-tune": f"{_HOME}.fine_tune.FineTune",
    "transfer-fine-tune": f"{_HOME}.fine_tune.TransferFineTune",
    "linear-sgd": f"{_HOME}.linear_sgd.LinearSGD",
    "transfer-linear-sgd": f"{_HOME}.linear_sgd.TransferLinearSGD",
    "label-free": f"{_HOME}.label_free.LabelFree",
    "retrieval": f"{_HOME}.retrieval.RetrievalProtocol",
    "zero-shot": f"{_HOME}.zero_shot.ZeroShot",
}

DEFAULT = ("linear", "knn")
"""The default protocols, and those for data without labels:"""
DEFAULT_WITHOUT_LABELS = ("label-free",)

LABELS_ARE_NEEDED = (
    "the {protocol} protocol needs labels and the {part} data has none: "
    "put the images of each class into a folder of its own, the folder names become the labels"
)

SETTINGS = ("linear strength", "linear-sgd rate", "fine-tune rate")
"""Prefixes of settings that a protocol reports besides scores: they are in the JSON, not in the table."""


def is_setting(score: str) -> bool:
    """Return True if a reported number is a setting that a protocol chose, not a score.

    Example:
        >>> is_setting("linear strength"), is_setting("linear top-1")
        (True, False)
    """
    return score.startswith(SETTINGS)


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


def score(
    method: Method,
    data: Samples,
    protocols: Sequence[str | Protocol],
    test_limit: int | None = None,
    batch_size: int = 256,
    recipe: Augmentation | None = None,
    progress: Progress | None = None,
    others: Sequence[Samples] = (),
    seed: int = 0,
) -> dict[str, float]:
    """Return scores of a method's encoder: fitted on the training images, measured on the test split.

    Args:
        method: The method with the encoder.
        data: The training split.
        protocols: Names, such as linear and knn, or protocols with their options.
        test_limit: Number of test images that are used, at most.
        batch_size: The batch size of training, for protocols on batches.
        recipe: The augmentation of training, for protocols on its views; None takes plain images.
        progress: Called with (images done, all images), separately for each dataset.
        others: Datasets to transfer to, with labels; the protocol `transfer` is then added if it is missing.
        seed: Seed of every random draw.
    """
    chosen = [one if isinstance(one, Protocol) else make_protocols([one])[0] for one in protocols]
    if others and not any(one.takes_others for one in chosen):
        chosen += make_protocols(["transfer"])
    subject = Subject(
        method,
        data,
        others=others,
        test_limit=test_limit,
        batch_size=batch_size,
        recipe=recipe,
        seed=seed,
        progress=progress,
    )
    return run_protocols(chosen, subject)
