"""Running the trials of a study: real `antipodes` processes side by side, each single-threaded.

A trial is finished when its folder holds study.json, which is written last. Everything before that can be killed at
any time: the next call resumes the training from its checkpoint, or from the beginning where there is none yet.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from antipodes.evaluation.protocol import find_protocol
from antipodes.evaluation.scores import read_scores
from antipodes.files import replacing
from antipodes.processes import end_with_parent
from antipodes.runs.folder import Run
from antipodes.runs.records import read_epochs
from antipodes.studies.definition import Options, Study, Trial, flatten_options
from antipodes.studies.reuse import MEASURING, changed, find_twin, link_run, run_digests
from antipodes.studies.statistics import Histories
from antipodes.studies.submitted import SubmittedJob

SECONDS_BETWEEN_LOOKS = 0.2


class Grid:
    """The trials of a study in a folder.

    Args:
        study: What is run.
        out: The folder; each trial has its own inside.
        configurations: Of its trials, complete.
    """

    def __init__(self, study: Study, out: Path, configurations: Mapping[Trial, Options]) -> None:
        self.study, self.out = study, out
        self.trials = study.trials(out)
        self.executor: Any = None  # submitit's, if the trials are submitted
        self._digests = {trial: run_digests(configurations[trial]) for trial in self.trials}

    def refuse_changes(self, configurations: dict[Trial, Options]) -> None:
        """Check the folders that exist: their runs were started with the options that the study now asks for.

        An option that only one of both knows came with another version of antipodes, and is let pass.

        Raises:
            ValueError: for the first option that differs.
        """
        for trial, configuration in configurations.items():
            if Run(trial.folder).config_file.exists():
                refuse_change(trial, Run(trial.folder).config, configuration)
            elif kept := read_content(trial).get("configuration"):
                refuse_change(trial, kept, configuration)

    def scores(self, trial: Trial) -> dict[str, float] | None:
        """The scores of a finished trial, and the records of its last epoch; None when it is not finished."""
        content = read_content(trial)
        if content.get("evaluation") != self._evaluation(trial):
            return None
        last = (read_epochs(trial.folder) or [{}])[-1]
        records = {name: last[name] for name in self.study.records if last.get(name) is not None}
        return {**content["scores"], **records}

    def stale(self) -> dict[str, str]:
        """Finished trial -> which code has changed since it was started."""
        found = {}
        for trial in self.trials:
            if self.scores(trial) is not None:
                before = read_content(trial).get("code")
                if reason := changed(before, self._digests[trial]):
                    found[str(trial)] = reason
        return found

    def reuse(self, configurations: dict[Trial, Options]) -> dict[str, Path]:
        """Take over runs of studies in neighbouring folders: same configuration, seed and code.

        The files of such a run are linked, not copied; its scores are measured again.

        Returns:
            Trial -> the folder of the run that it was taken from.
        """
        reused = {}
        for trial, configuration in configurations.items():
            if trial.folder.exists():
                continue
            trained_by = {name: digest for name, digest in self._digests[trial].items() if name != MEASURING}
            source = find_twin(self.out, configuration, trained_by)
            if source is not None:
                link_run(source, trial.folder)
                write_content(trial.code_file, {"code": self._digests[trial], "shared": str(source)})
                reused[str(trial)] = source
        return reused

    def keep(self, trial: Trial, scores: Mapping[str, float], configuration: Options) -> None:
        """Count a trial as finished with scores that an earlier report has; the code that made them is not known."""
        content = {"evaluation": self._evaluation(trial), "scores": dict(scores), "configuration": configuration}
        write_content(trial.folder / "study.json", content)

    def histories(self) -> Histories | None:
        """What every finished trial with epochs has logged of them; None where only the scores of some are left."""
        found: dict[str, dict[int, list[dict[str, float | None]]]] = {}
        for trial in (trial for trial in self.trials if self.scores(trial) is not None):
            if trial.options.get("epochs") == 0:
                continue
            if not (epochs := read_epochs(trial.folder)):
                return None
            found.setdefault(trial.variant, {})[trial.seed] = epochs
        return found

    def fraction_done(self, trial: Trial, configuration: Options) -> float:
        """How much a trial has behind it, in whole epochs; its evaluation counts as one more."""
        epoch: int = max((line["epoch"] for line in read_epochs(trial.folder)), default=0)
        return epoch / (int(configuration["epochs"]) + 1)

    def execute(
        self,
        parallel: int,
        lock: int,
        finished: Callable[[Trial, str | None], None],
        working: Callable[[Sequence[Trial]], None],
    ) -> None:
        """Run what is not finished.

        Args:
            parallel: Processes side by side.
            lock: From `lock_study`; the processes inherit it.
            finished: Called with every trial that comes to its end, and why it failed if it did.
            working: Called several times a second with the trials at work.
        """
        waiting = [trial for trial in self.trials if self.scores(trial) is None]
        active: list[_Job | SubmittedJob] = []
        try:
            while waiting or active:
                while waiting and len(active) < parallel:
                    trial = waiting.pop(0)
                    commands = self._commands(trial, submitted=self.executor is not None)
                    if self.executor is None:
                        active.append(_Job(trial, commands, lock))
                    else:
                        active.append(SubmittedJob(self.executor, trial, commands))
                time.sleep(SECONDS_BETWEEN_LOOKS)
                for job in [job for job in active if job.is_over()]:
                    active.remove(job)
                    if job.failure is None:
                        self._keep_scores(job.trial)
                    finished(job.trial, job.failure)
                working([job.trial for job in active])
        finally:
            for job in active:
                job.stop()
            for job in active:
                job.wait()

    def _commands(self, trial: Trial, submitted: bool = False) -> list[list[str]]:
        started = Run(trial.folder).config_file.exists()
        if not started:
            _remove_unstarted(trial)
            trial.write()
            write_content(trial.code_file, {"code": self._digests[trial]})
        train = ["train", "--resume", str(trial.folder)] if started else ["train", *trial.arguments()]
        if submitted:  # the same command starts a run and continues it when the job is queued again
            train = ["train", "--resume", "auto", *trial.arguments()]
        evaluation = self._evaluation(trial)
        evaluate = ["evaluate", str(trial.folder), "--json", "--protocol", ",".join(evaluation["protocols"])]
        for option in ("test_limit", "centre_crop", "transfer_limit", "transfer_normalise"):
            if evaluation.get(option) is not None:
                evaluate += [f"--{option}", str(evaluation[option])]
        for name, options in evaluation.get("options", {}).items():
            for option, value in options.items():
                text = value if isinstance(value, str) else json.dumps(value)
                evaluate += [f"--{name.replace('-', '_')}.{option}", text]
        if "transfer" in evaluation:
            evaluate += ["--transfer", *evaluation["transfer"]]
        return [train, evaluate]

    def _evaluation(self, trial: Trial) -> dict[str, Any]:
        """How a trial is scored: protocols that look at a policy are left out where there is none."""
        negatives = trial.options.get("negatives", "none")
        has_policy = (negatives["name"] if isinstance(negatives, dict) else negatives) != "none"
        protocols = [name for name in self.study.protocols if has_policy or "policy" not in find_protocol(name).needs]
        evaluation: dict[str, Any] = {"protocols": protocols, "test_limit": self.study.test_limit}
        if options := {name: each for name, each in self.study.protocol_options.items() if name in protocols}:
            evaluation["options"] = options
        if self.study.centre_crop < 1:
            evaluation["centre_crop"] = self.study.centre_crop
        if self.study.transfer:
            evaluation |= {"transfer": self.study.transfer, "transfer_limit": self.study.transfer_limit}
            if self.study.transfer_normalise != "run":
                evaluation["transfer_normalise"] = self.study.transfer_normalise
        return evaluation

    def _keep_scores(self, trial: Trial) -> None:
        started = json.loads(trial.code_file.read_text()) if trial.code_file.is_file() else {}
        content = {"evaluation": self._evaluation(trial), "scores": read_scores(trial.folder), **started}
        write_content(trial.folder / "study.json", content)


def read_content(trial: Trial) -> dict[str, Any]:
    """What study.json holds of a finished trial; nothing of another."""
    file = trial.folder / "study.json"
    content: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return content


def write_content(file: Path, content: Mapping[str, Any]) -> None:
    """Write JSON into a file whose folder need not be there, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n")


def _remove_unstarted(trial: Trial) -> None:
    """Remove the folder of a run that was killed before it wrote its configuration, which has trained nothing."""
    ours = trial.code_file.is_file() and not (trial.folder / "study.json").exists()
    if ours and trial.folder.is_dir():
        shutil.rmtree(trial.folder)


def refuse_change(trial: Trial, saved: Options, asked: Options) -> None:
    """Compare the options that a trial was started with and those that the study now asks for.

    Raises:
        ValueError: for the first that both have and that differs.
    """
    before = flatten_options(saved)
    for name, value in flatten_options(asked).items():
        if name != "out" and name in before and before[name] != value:
            raise ValueError(
                f"{trial.folder} was started with {name} {before[name]}, the study now says {value}: "
                "choose another --out, or remove that folder"
            )


class _Job:
    """The processes of one trial, one after the other; what they say goes to its log."""

    def __init__(self, trial: Trial, commands: list[list[str]], lock: int) -> None:
        self.trial = trial
        self._commands, self._lock = commands, lock
        trial.log.parent.mkdir(parents=True, exist_ok=True)
        self._start()

    def is_over(self) -> bool:
        """True once the last process has ended or one has failed."""
        if self.process.poll() == 0 and self._commands:
            self._start()
        return self.process.poll() is not None

    def stop(self) -> None:
        """Ask the process to end."""
        self.process.terminate()

    def wait(self) -> None:
        """Wait for its end."""
        self.process.wait()

    @property
    def failure(self) -> str | None:
        """The last thing a failed process said."""
        code = self.process.returncode
        if code == 0:
            return None
        said = self.trial.log.read_text(errors="replace").strip().splitlines()[-1].removeprefix("antipodes: ")
        return f"{f'killed by signal {-code}' if code < 0 else said} (log: {self.trial.log})"

    def _start(self) -> None:
        command = self._commands.pop(0)
        with self.trial.log.open("a") as log:
            log.write(f"$ antipodes {' '.join(command)}\n")
            log.flush()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "antipodes", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                pass_fds=[self._lock],
                preexec_fn=partial(end_with_parent, os.getpid()),
            )


@contextmanager
def lock_study(folder: Path) -> Iterator[int]:
    """Hold the lock on a study's folder; it lives on in the processes of a study that was killed alone.

    Raises:
        ValueError: if another study, or what it has left behind, is at work in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"{folder} is in use: another study, or a run that a killed one has left behind, is at work there"
            ) from error
        yield file.fileno()
