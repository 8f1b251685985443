"""`Runner`: a study's own experiment in place of training runs, a dataclass whose fields are a variant's options."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from antipodes.registry import load_class
from antipodes.studies.definition import Options, Study
from antipodes.studies.statistics import Line

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Runner(ABC):
    """One variant of an experiment, small enough to run in this process."""

    @property
    def depends(self) -> tuple[str, ...]:
        """Rooms of the package, and modules of the runner's folder, whose change makes results stale."""
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
        """Draw the results of all variants."""


def find_runner(path: str) -> type[Runner]:
    """Import the runner at a dotted path; the current folder is searched after all installed packages.

    Raises:
        ValueError: if there is no such class, or it is not a `Runner`.
    """
    found = load_class(path, "runner")
    if not (isinstance(found, type) and issubclass(found, Runner)):
        raise ValueError(f"{path} cannot be the runner: it is not a subclass of {__name__}.{Runner.__name__}")
    return found


def build(path: str, options: Options) -> Runner:
    """Build the runner at a dotted path with these options.

    Raises:
        ValueError: if there is none, or an option is unknown, of the wrong type or out of range.
    """
    from jsonargparse import ArgumentError, ArgumentParser

    runner = find_runner(path)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(runner)
    try:
        return runner(**parser.parse_object(options).as_dict())
    except ArgumentError as error:
        raise ValueError(" ".join(str(error).split())) from error


def configuration(runner: Runner) -> dict[str, Any]:
    """All options of a runner, with their defaults."""
    return asdict(runner)  # type: ignore[call-overload, no-any-return]
