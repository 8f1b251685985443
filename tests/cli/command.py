"""Run the command line as a user does: in a process of its own, or in this one to save its start.

Importing torch and the package takes seconds, many times what a tiny training takes. So `antipodes` and `start` fork
their processes from one that has imported everything and has run nothing. Such a process has memory, files and signals
of its own. `COMMAND` is for tests that need the start of the interpreter, and for `--devices 2`, which starts the
command once more.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO

from antipodes.__main__ import COMMANDS, main, run

COMMAND = [sys.executable, "-m", "antipodes"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120"}


FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["antipodes.training.loop", *(f"antipodes.cli.{name}" for name in COMMANDS)])
"""Starts processes from one that has imported torch and the package, and has run nothing."""


def launched(*arguments: object, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """The finished process of `python -m antipodes ...`, and of the processes that it starts."""
    call = [*COMMAND, *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, env=ENVIRONMENT, timeout=timeout)


def antipodes(*arguments: object, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """The finished process of `antipodes ...`."""
    return together([{}], *arguments, timeout=timeout)


def on_ranks(count: int, *arguments: object, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Processes of one run, started together with the variables that torchrun gives to its workers."""
    job = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    return together([job | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(count)], *arguments, timeout=timeout)


def together(
    variables: Sequence[Mapping[str, object]], *arguments: object, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Processes of one call, each with variables of its own, when all have ended; what they wrote is joined."""
    call = list(map(str, arguments))
    with tempfile.TemporaryDirectory() as folder:
        written = [(Path(folder) / f"out-{rank}", Path(folder) / f"errors-{rank}") for rank in range(len(variables))]
        processes = [
            start(*call, out=out, errors=errors, **{name: str(value) for name, value in more.items()})
            for (out, errors), more in zip(written, variables, strict=True)
        ]
        ends = time.monotonic() + timeout
        for process in processes:
            process.join(max(0.0, ends - time.monotonic()))
        late = [process for process in processes if process.is_alive()]
        for process in late:
            process.kill()
        said, complained = ("".join(file.read_text() for file in files) for files in zip(*written, strict=True))
    if late:
        raise subprocess.TimeoutExpired(call, timeout, said, complained)
    codes = [process.exitcode or 0 for process in processes]
    return subprocess.CompletedProcess(call, next(filter(None, codes), 0), said, complained)


def start(*arguments: object, out: Path | None = None, errors: Path | None = None, **variables: str) -> BaseProcess:
    """A process of `antipodes ...` that has begun.

    Args:
        arguments: The command line.
        out: The file to which its standard output is appended; without one it is lost.
        errors: Likewise its standard error.
        variables: Changes to the environment.
    """
    call = list(map(str, arguments))
    process = FORKED.Process(target=_run, args=(call, ENVIRONMENT | variables, os.getcwd(), (out, errors)))
    process.start()
    atexit.register(process.kill)  # where a test fails before it ends the process
    return process


def _run(
    arguments: list[str], environment: Mapping[str, str], working: str, written: tuple[Path | None, Path | None]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(working)
    for number, path in enumerate(written, start=1):
        file = os.open(path or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.fsync = lambda handle: None  # as in the tests' own process
    sys.argv[:] = ["antipodes", *arguments]
    run()


class Forked:
    """What `subprocess.Popen` would be for a call of `python -m antipodes ...` with a file as its output."""

    def __init__(self, call: Sequence[str], stdout: IO[str], **_: object) -> None:
        assert call[:3] == COMMAND
        self._process = start(*call[3:], out=Path(stdout.name), errors=Path(stdout.name))
        self.terminate, self.wait = self._process.terminate, self._process.join

    def poll(self) -> int | None:
        return self._process.exitcode

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def here(*arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `antipodes ...`, called in this process to save its start."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), warnings.catch_warnings():
        try:
            code = main(list(map(str, arguments)))
        except SystemExit as exit_:
            code = int(exit_.code or 0)
    return code, out.getvalue(), errors.getvalue()


def refused(*arguments: object) -> str:
    """The one sentence with which a wrong call is refused: exit code 2, no traceback, nothing else."""
    code, _, errors = here(*arguments)
    assert code == 2, errors
    sentences = errors.strip().splitlines()
    assert len(sentences) == 1, errors
    assert "Traceback" not in errors
    return sentences[0]
