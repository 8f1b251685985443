"""`antipodes` on the command line. Nothing heavy is imported before a command is chosen, so that help is instant."""

from __future__ import annotations

import os
import sys

# `python -m antipodes` puts the current folder first on the import path. It may be a folder of data: a signal.py in it
# must not run, so it is removed before anything else is imported.
if __name__ == "__main__" and sys.path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]

import atexit
import signal
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

COMMANDS = {
    "train": "pretrain an encoder by contrastive learning, or resume a run",
    "evaluate": "score the encoder of a run: linear probe, nearest neighbours",
    "embed": "write the vectors of a data set under the encoder of a run or a pretrained one",
    "neighbours": "find the nearest samples of every sample in a file of vectors",
    "audit": "find duplicates, likely false negatives and outliers in photos, embeddings or a run",
    "mine": "find hard negatives for queries, without what may be relevant, as a file for any trainer",
    "baseline": "compare random, pretrained and trained encoders on your own images",
    "report": "make one HTML page of runs: curves, scores, flagged pairs, a map",
    "compare": "compare finished runs over seeds with a baseline",
    "study": "train and evaluate a grid of variants and seeds, and compare them with a baseline",
    "export": "write the encoder of a run for other programs: ONNX, detectron2, safetensors",
    "pictures": "draw a run: thresholds, flags over epochs and in images, a map of the features",
    "demo": "train SimCLR on real images as it is, with a policy and with a guide, in minutes",
}

HELP = f"""usage: antipodes [-h] [--version] COMMAND ...

Contrastive representation learning that gets the negatives right.

commands:
{chr(10).join(f"  {name:<10} {text}" for name, text in COMMANDS.items())}

examples:
  antipodes demo
  antipodes train --data cifar10 --encoder resnet18-slim --epochs 30 --out runs/a
  antipodes train --data path/to/photos --data.size 64 --method moco --method.queue_size 4096 --out runs/b
  antipodes train --resume runs/a
  antipodes evaluate runs/a --protocol linear,knn --json
  antipodes audit path/to/photos --out audit
  antipodes embed runs/a path/to/photos --out photos.npz
  antipodes neighbours photos.npz --k 5 --out neighbours.csv
  antipodes mine queries.jsonl corpus.jsonl --positives qrels.tsv --out negatives.parquet
  antipodes report runs/a runs/b --out report.html
  antipodes compare runs/a runs/b --baseline runs/a
  antipodes study mine.yaml

`antipodes COMMAND --help` explains a command. `antipodes train --method moco --help` shows the options of that method.
Exit codes: 0 done, 1 the run failed, 2 the call was wrong, 130 stopped by Control-C, 143 by SIGTERM.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP, end="")
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"antipodes {version('antipodes')}")
        return 0
    if arguments[0] not in COMMANDS:
        print(f"antipodes: unknown command {arguments[0]!r}: choose one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    # Threads that wait should soon sleep: long spinning makes a run much slower when another program wants a core.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    before = _on_interrupt(_stop_at_once)  # imports take seconds, and an exception inside them ends in tracebacks
    from antipodes.cli.errors import exit_code

    command = import_module(f"antipodes.cli.{arguments[0]}").main
    _on_interrupt(before)
    return exit_code(command, arguments[1:])


def _stop_at_once(*_: object) -> NoReturn:
    """End the process: nothing has been begun that could be left half-done."""
    os.write(2, b"antipodes: stopped\n")
    os._exit(130)


def _on_interrupt(handler: Any) -> Any:
    """Set the handler of Control-C and return the one before; only the main thread can."""
    try:
        return signal.signal(signal.SIGINT, handler)
    except (ValueError, TypeError):
        return None


def run() -> NoReturn:
    """Run the command of this process, and end it.

    A command that was stopped, or lost another process of its run, may leave threads in C++ that wait for ever. At its
    end Python would destroy them while they wait, which aborts the process: everything else is done, and this is not.
    """
    code = main()
    if code in (0, 2):
        sys.exit(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # what reads them may be gone
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
