"""Training in two processes: when one of them ends, all end, and no traceback of the other one is printed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import COMMAND, ENVIRONMENT
from tests.cli.test_study_kill import children, is_running, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

CALL = "train --data shapes --data.count 64 --batch_size 32 --encoder resnet8-slim --head.hidden 16 --epochs 100000"


@pytest.mark.parametrize(
    ("victim", "number", "code", "sentence"),
    [
        ("first", signal.SIGTERM, 143, "stopped"),
        ("second", signal.SIGKILL, 1, "another process"),
    ],
    ids=["first terminated", "second killed"],
)
def test_the_ranks_of_a_run_end_together(tmp_path: Path, victim: str, number: int, code: int, sentence: str) -> None:
    call = [*COMMAND, *CALL.split(), "--devices", "2", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        call, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    ranks: list[int] = []
    try:
        assert wait_for(lambda: (tmp_path / "run" / "checkpoints" / "last.pt").is_file(), 120)
        ranks = children(process.pid)
        assert len(ranks) == 1
        os.kill(process.pid if victim == "first" else ranks[0], number)
        _, said = process.communicate(timeout=60)
        assert process.returncode == code, said
        assert wait_for(lambda: not is_running(ranks[0]), 20), "a process outlives its run"
        lines = [line for line in said.splitlines() if line.startswith("antipodes:")]
        assert len(lines) == 1, said
        assert sentence in lines[0]
        assert "Traceback" not in said
        assert "gloo" not in said.replace("distributed_backend=gloo", "")
    finally:
        for left in (process.pid, *ranks):
            if is_running(left):
                os.kill(left, signal.SIGKILL)
