"""What a runner is: a dataclass whose fields are the options of a variant, and which scores a seed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Any

from antipodes.study.definition import Options, Study
from antipodes.study.statistics import Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNNERS = {
    "mutual-information": "antipodes.study.runners.mutual_information.MutualInformation",
    "label-recovery": "antipodes.study.runners.label_recovery.LabelRecovery",
    "gradient-variance": "antipodes.study.runners.gradient_variance.GradientVariance",
    "injected-duplicates": "antipodes.study.runners.injected_duplicates.InjectedDuplicates",
    "detectors": "antipodes.study.runners.detectors.Detectors",
    "locked-images": "antipodes.study.runners.locked.LockedImages",
    "locked-captions": "antipodes.study.runners.locked.LockedCaptions",
}


class Runner(ABC):
    """One variant of an experiment, small enough to run in this process."""

    @property
    def depends(self) -> tuple[str, ...]:
        """Rooms of the package, and modules beside the runner's, whose change makes results stale."""
        return ("functional",)

    @abstractmethod
    def run(self, seed: int) -> dict[str, float]:
        """The scores of a seed; they follow from the options and the seed alone."""

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """What the numbers were measured on, by name, for the report."""

    @staticmethod
    @abstractmethod
    def figure(study: Study, lines: Sequence[Line]) -> Figure:
        """The results of all variants as a picture."""


def build(name: str, options: Options) -> Runner:
    """The runner of that name with these options.

    Raises:
        ValueError: if there is none, or an option is unknown, of the wrong type or out of range.
    """
    from jsonargparse import ArgumentError, ArgumentParser

    if name not in RUNNERS:
        raise ValueError(f"there is no runner {name!r}: choose one of {', '.join(RUNNERS)}")
    module, _, kind = RUNNERS[name].rpartition(".")
    runner: type[Runner] = getattr(import_module(module), kind)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(runner)
    try:
        return runner(**parser.parse_object(options).as_dict())
    except ArgumentError as error:
        raise ValueError(" ".join(str(error).split())) from error


def configuration(runner: Runner) -> dict[str, Any]:
    """All options of a runner, with their defaults."""
    return asdict(runner)  # type: ignore[call-overload, no-any-return]
