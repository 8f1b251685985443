"""Run the command line as a user does."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import warnings

from antipodes.__main__ import main

COMMAND = [sys.executable, "-m", "antipodes"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def antipodes(*arguments: object, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """The finished process of `antipodes ...`."""
    call = [*COMMAND, *map(str, arguments)]
    return subprocess.run(call, capture_output=True, text=True, env=ENVIRONMENT, timeout=timeout)


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
