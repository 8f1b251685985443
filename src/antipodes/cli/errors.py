"""Errors as one sentence and an exit code; a traceback only for what nobody foresaw."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable


def exit_code(command: Callable[[list[str]], None], arguments: list[str]) -> int:
    """Run a command: 0 when it is done, 1 when the run failed, 2 when the call was wrong."""
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    try:
        command(arguments)
    except (ValueError, FileNotFoundError) as error:
        print(f"antipodes: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, OSError, MemoryError) as error:
        from antipodes.training.loop import TrainingFailed

        if not isinstance(error, (TrainingFailed, OSError, MemoryError)):
            raise
        print(f"antipodes: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("antipodes: stopped; antipodes train --resume continues a run from its last checkpoint", file=sys.stderr)
        return 1
    return 0
