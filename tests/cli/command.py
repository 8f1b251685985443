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

from antipodes.__main__ import COMMANDS, main, run

COMMAND = [sys.executable, "-m", "antipodes"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120"}


_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["antipodes.training.loop", *(f"antipodes.cli.{name}" for name in COMMANDS)])


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
        outputs = [Path(folder) / str(number) for number in range(len(variables))]
        processes = [
            start(*call, output=output, **{name: str(value) for name, value in more.items()})
            for output, more in zip(outputs, variables, strict=True)
        ]
        ends = time.monotonic() + timeout
        for process in processes:
            process.join(max(0.0, ends - time.monotonic()))
        late = [process for process in processes if process.is_alive()]
        for process in late:
            process.kill()
        out, errors = ("".join((each / name).read_text() for each in outputs) for name in ("out", "errors"))
    if late:
        raise subprocess.TimeoutExpired(call, timeout, out, errors)
    codes = [process.exitcode or 0 for process in processes]
    return subprocess.CompletedProcess(call, next(filter(None, codes), 0), out, errors)


def start(*arguments: object, output: Path | None = None, **variables: str) -> BaseProcess:
    """A process of `antipodes ...` that has begun.

    Args:
        arguments: The command line.
        output: The folder to make, for the files `out` and `errors` with what the process writes.
        variables: Changes to the environment.
    """
    call = list(map(str, arguments))
    process = _FORKED.Process(target=_run, args=(call, ENVIRONMENT | variables, os.getcwd(), output))
    process.start()
    atexit.register(process.kill)  # where a test fails before it ends the process
    return process


def _run(arguments: list[str], environment: Mapping[str, str], working: str, output: Path | None) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(working)
    if output is not None:
        output.mkdir()
    for number, name in ((1, "out"), (2, "errors")):
        file = os.open(os.devnull if output is None else output / name, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.fsync = lambda handle: None  # as in the tests' own process
    sys.argv[:] = ["antipodes", *arguments]
    run()


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
