"""A study that is stopped or killed alone: its trainings end with it, and the same call can go on at once."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command import COMMAND, ENVIRONMENT
from tests.cli.test_study import STUDY, write

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends children with their parent on Linux")


def children(parent: int) -> list[int]:
    """The ids of the processes that a process has started."""
    return [int(each) for each in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def is_running(process: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def heed_interrupts() -> None:
    """Let a child be interrupted, also where the tests run in the background, whose children ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_trainings_end_with_their_study(tmp_path: Path, number: signal.Signals) -> None:
    file = write(tmp_path / "tiny.yaml", common=STUDY["common"] | {"epochs": 100_000})
    call = [*COMMAND, "study", str(file), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        call, env=ENVIRONMENT, start_new_session=True, preexec_fn=heed_interrupts, stderr=subprocess.PIPE, text=True
    )
    at_work: list[int] = []
    try:
        assert wait_for(lambda: len(list(tmp_path.glob("out/*/*/checkpoints/last.pt"))) == 2, 120)
        at_work = children(process.pid)
        assert len(at_work) == 2
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
        assert wait_for(lambda: not any(map(is_running, at_work)), 20), "a training outlives its study"
        assert "Traceback" not in said
    finally:
        for left in (process.pid, *at_work):
            if is_running(left):
                subprocess.run(["kill", "-9", str(left)], check=False)
