"""The cases of the pretend device, in a process of their own; `cases.py` says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_package_works_on_a_device_and_rarely_waits_for_it() -> None:
    top = Path(__file__).parents[2]
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", "--durations=0"]
    command = [sys.executable, "-m", "pytest", *options, "tests/device/cases.py"]
    ran = subprocess.run(command, cwd=top, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
