"""How far a study is: what `antipodes study NAME --status` says, while it runs or after it was stopped."""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from antipodes.files import replacing

FILE = "status.json"


@dataclass(frozen=True)
class State:
    """What a study at work leaves on disk.

    Args:
        active: The trials at work.
        failed: Trial -> why it failed.
        began: When the call began, in seconds of the clock.
        before: How many runs were done then, those at work by their share of epochs.
    """

    active: list[str]
    failed: dict[str, str]
    began: float
    before: float


def write_state(out: Path, state: State) -> None:
    """Leave word in a study's folder."""
    with replacing(out / FILE) as file:
        file.write_text(json.dumps(asdict(state), indent=2) + "\n")


def read_state(out: Path) -> State | None:
    """What was left there; None if nothing was, or it cannot be read."""
    try:
        return State(**json.loads((out / FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def at_work(out: Path) -> bool:
    """Whether a study, or a run it has left behind, holds the lock of a folder."""
    lock = out / ".lock"
    if not lock.is_file():
        return False
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def describe(
    state: State | None, running: bool, shares: Mapping[str, float], stale: Mapping[str, str], now: float | None = None
) -> list[str]:
    """The status in lines.

    Args:
        state: What the study has left.
        running: Whether it is at work.
        shares: Trial -> how much of it is done, 1 for a finished one.
        stale: Finished trial -> which code has changed since.
        now: The time; that of the clock by default.
    """
    done, work = sum(share >= 1 for share in shares.values()), sum(shares.values())
    lines = [f"{done} of {len(shares)} runs are finished, {'at work' if running else 'not running'}"]
    if state is not None and running:
        lines += [f"  {trial}: {100 * shares.get(trial, 0):.0f} %" for trial in state.active]
        if work > state.before:
            passed = (time.time() if now is None else now) - state.began
            left = passed * (len(shares) - work) / (work - state.before)
            lines.append(f"{timedelta(seconds=round(left))} left")
        else:
            lines.append("time left not known yet")
    if state is not None and state.failed:
        lines += ["failed:", *(f"  {trial}: {why}" for trial, why in state.failed.items())]
    if stale:
        lines += [f"{len(stale)} finished runs are of older code:"]
        lines += [f"  {trial}: {why}" for trial, why in stale.items()]
    return lines
