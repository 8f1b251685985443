"""`Runner`: a study's own experiment in place of training runs, and `InProcess`, which runs its trials.

A runner is a dataclass whose fields are the options of a variant. Trials run one after the other in this process; one
is finished when its folder holds study.json. Killed at any time, the next call runs what has none."""

from __future__ import annotations

import json
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antipodes.functional.tensors import NotFinite
from antipodes.registry import load_class
from antipodes.studies.definition import Options, Study, Trial
from antipodes.studies.grid import refuse_change, write_content
from antipodes.studies.reuse import changed, runner_digests
from antipodes.studies.statistics import Histories, Line
from antipodes.threads import one_thread

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


class InProcess:
    """The trials of a study in a folder, with the methods of `studies.grid.Grid`.

    Args:
        study: What is run; it names a runner.
        out: The folder; each trial has its own inside.
    """

    def __init__(self, study: Study, out: Path) -> None:
        if study.runner is None:
            raise ValueError(f"study {study.name} names no runner: its trials are runs of antipodes train")
        self.study, self.out = study, out
        self.trials = study.trials(out)
        self._runners = {trial: build(study.runner, trial.options) for trial in self.trials}
        depends = next(iter(self._runners.values())).depends
        self._digests = runner_digests(study.runner.rpartition(".")[0], depends)

    def refuse_changes(self, configurations: dict[Trial, Options]) -> None:
        """Check the folders that exist: they hold the scores of the options that the study now asks for.

        Raises:
            ValueError: for the first option that differs.
        """
        for trial, asked in configurations.items():
            if _file(trial).is_file():
                refuse_change(trial, json.loads(_file(trial).read_text())["configuration"], asked)

    def scores(self, trial: Trial) -> dict[str, float] | None:
        """The scores of a finished trial; None when it is not finished."""
        if not _file(trial).is_file():
            return None
        scores: dict[str, float] = json.loads(_file(trial).read_text())["scores"]
        return scores

    def stale(self) -> dict[str, str]:
        """Finished trial -> which code has changed since it was run."""
        done = {str(trial): _file(trial) for trial in self.trials if self.scores(trial) is not None}
        reasons = {
            name: changed(json.loads(file.read_text()).get("code"), self._digests) for name, file in done.items()
        }
        return {name: reason for name, reason in reasons.items() if reason}

    def reuse(self, configurations: dict[Trial, Options]) -> dict[str, Path]:
        """Take over nothing: these trials are short."""
        return {}

    def keep(self, trial: Trial, scores: Mapping[str, float], configuration: Options) -> None:
        """Count a trial as finished with scores that an earlier report has; the code that made them is not known."""
        write_content(_file(trial), {"configuration": configuration, "scores": dict(scores)})

    def histories(self) -> Histories | None:
        """Return nothing: these trials have no epochs."""
        return {}

    def fraction_done(self, trial: Trial, configuration: Options) -> float:
        """How much an unfinished trial has behind it: nothing that would be kept."""
        return 0.0

    def execute(
        self,
        parallel: int,
        lock: int,
        finished: Callable[[Trial, str | None], None],
        working: Callable[[Sequence[Trial]], None],
    ) -> None:
        """Run what is not finished, on one thread, so that the numbers do not depend on the machine's cores.

        Args:
            parallel: Not used: these trials are short.
            lock: Not used: it is held by this process.
            finished: Called with every trial that comes to its end, and why it failed if it did.
            working: Called before each trial.
        """
        with one_thread():
            for trial in [trial for trial in self.trials if self.scores(trial) is None]:
                working([trial])
                finished(trial, self._run(trial))

    def _run(self, trial: Trial) -> str | None:
        runner = self._runners[trial]
        try:
            scores = runner.run(trial.seed)
        except NotFinite as error:
            return str(error)
        except Exception as error:  # whatever it is, the other trials go on; the log has where it came from
            trial.log.parent.mkdir(parents=True, exist_ok=True)
            trial.log.write_text(traceback.format_exc())
            return f"{type(error).__name__}: {' '.join(str(error).split())} (log: {trial.log})"
        write_content(_file(trial), {"configuration": configuration(runner), "scores": scores, "code": self._digests})
        return None


def _file(trial: Trial) -> Path:
    return trial.folder / "study.json"
