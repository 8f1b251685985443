"""Trials of a study as jobs of a cluster: submitted by submitit to SLURM, or to processes of this machine.

A job trains and evaluates one trial. When SLURM preempts it or its time is over, submitit queues it again, and
`--resume auto` continues the run from its last checkpoint.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from antipodes.processes import end_with_parent
from antipodes.studies.definition import Trial

Executor = Literal["here", "local", "slurm"]
"""Who runs the trials: processes of the study itself, or submitit on this machine or on a SLURM cluster."""

_TERMINATED = (128 + signal.SIGTERM, -signal.SIGTERM)
_GRACE = 600.0
"""Seconds that a job stays after a command got SIGTERM. SLURM sends it to all processes of a job that it requeues or
preempts; it ends the job later, or announces that to submitit. A job that ended by itself would have failed instead."""


def open_executor(kind: Executor, folder: Path, options: Mapping[str, Any]) -> Any:
    """Return submitit's executor.

    Args:
        kind: `local` or `slurm`.
        folder: Of submitit's files: what it submits, and what jobs say.
        options: submitit's parameters by name, such as timeout_min, slurm_partition, cpus_per_task and gpus_per_node.

    Raises:
        ValueError: if submitit is missing, knows no such option, or there is no SLURM here.
    """
    try:
        import submitit
    except ImportError as error:
        raise ValueError(f"--executor {kind} needs submitit: pip install 'antipodes[cluster]'") from error
    try:
        executor = submitit.AutoExecutor(folder=folder / "%j", cluster=kind)
        executor.update_parameters(**{"timeout_min": 24 * 60, **options})
    except (RuntimeError, NameError, ValueError, TypeError) as error:
        raise ValueError(f"--executor {kind} cannot be used: {' '.join(str(error).split())}") from error
    return executor


@dataclass
class Commands:
    """What a job does: commands of antipodes, one after the other, whose output goes to a log."""

    commands: Sequence[Sequence[str]]
    log: Path

    def __call__(self) -> None:
        """Run the commands.

        Raises:
            RuntimeError: with the last line of the log, if one fails.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        for command in self.commands:
            with self.log.open("a") as log:
                log.write(f"$ antipodes {' '.join(command)}\n")
                log.flush()
                code = subprocess.run(
                    [sys.executable, "-m", "antipodes", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={name: value for name, value in os.environ.items() if not name.startswith("SLURM_STEP")},
                    preexec_fn=partial(_prepare, os.getpid()),
                ).returncode
            if code in _TERMINATED:
                time.sleep(_GRACE)
            if code:
                raise RuntimeError(self.log.read_text(errors="replace").strip().splitlines()[-1])

    def checkpoint(self) -> Any:
        """Return what submitit queues when the job is preempted: the same, as its run goes on from its checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def _prepare(parent: int) -> None:
    """End with the job, and leave its signals to submitit, which announces the end of its time by them."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent(parent)


class SubmittedJob:
    """A submitted trial, in the same words as a process of the study."""

    def __init__(self, executor: Any, trial: Trial, commands: Sequence[Sequence[str]]) -> None:
        self.trial = trial
        self._job = executor.submit(Commands(commands, trial.log.absolute()))

    def is_over(self) -> bool:
        """Return True once the job has ended."""
        return bool(self._job.done())

    @property
    def failure(self) -> str | None:
        """Return why the job failed, None if it did not."""
        error = self._job.exception()
        if error is None:
            return None
        log = self.trial.log
        lines = (log.read_text(errors="replace") if log.is_file() else str(error)).strip().splitlines()
        said = lines[-1].removeprefix("antipodes: ")
        return f"{said} (log: {self.trial.log}, job {self._job.job_id})"

    def stop(self) -> None:
        """Cancel the job."""
        self._job.cancel()

    def wait(self) -> None:
        """Return at once: the cluster ends what was cancelled."""
