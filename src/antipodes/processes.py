"""Child processes that end when their parent process ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # of prctl(2)
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def end_with_parent(parent: int) -> None:
    """Ask the kernel to terminate this process when its parent ends, in whatever way; Linux only.

    The child calls it, as `preexec_fn` of `subprocess.Popen` or in its own code.

    Args:
        parent: The parent's process id. If the parent has ended already, the child ends at once.
    """
    if _libc is None:
        return
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)
