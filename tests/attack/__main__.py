"""`python -m tests.attack --minutes 10 --seed 0`: all parts one after the other, a table, and a line of JSON."""

from __future__ import annotations

import os

for threads in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # before torch: the cases are small, and they are forked
    os.environ.setdefault(threads, "1")

import argparse  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from importlib import import_module  # noqa: E402

from tests.attack.harness import Counts, run  # noqa: E402

# part: its share of the time, and the most cases of it in ten minutes
PARTS = {
    "random_cases": (0.14, 10_000),
    "kills": (0.28, 60),
    "damaged_images": (0.10, 2_000),
    "damaged_files": (0.16, 2_000),
    "bad_command_lines": (0.16, 2_000),
    "bad_calls": (0.10, 10_000),
    "foreign_code": (0.06, 24),
}
SHOWN = 12  # failures of a part that are printed


def bad_calls(count: int, seed: int) -> Counts:
    """The part that runs in this process: its module has its own loop."""
    found = import_module("tests.attack.bad_calls").run(count, seed)
    failures = [f"--part bad_calls --seed {seed}: {text}" for text in found.failures]
    return Counts(sum(found.counts.values()), found.counts["fine"], found.counts["refused"], failures)


def main(arguments: list[str] | None = None) -> int:
    """Run the parts; 1 if any of them failed, or could not try anything."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all parts in sum")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one; may be given several times")
    parser.add_argument("--case", type=int, help="only the case of this number, of one part")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    call = parser.parse_args(arguments)
    if call.case is not None and len(call.part or ()) != 1:
        parser.error("--case needs one --part")
    parts = call.part or list(PARTS)
    os.environ["ANTIPODES_DATA"] = (cache := tempfile.TemporaryDirectory(prefix="attack-cache-")).name
    shares = sum(PARTS[part][0] for part in parts)
    results: dict[str, Counts] = {}
    for part in parts:
        began, (share, most) = time.monotonic(), PARTS[part]
        if part == "bad_calls":
            results[part] = bad_calls(max(1, round(most * min(1.0, call.minutes / 10))), call.seed)
        else:
            module = import_module(f"tests.attack.{part}")
            results[part] = run(module, most, call.seed, call.minutes * 60 * share / shares, call.jobs, call.case)
        for text in results[part].failures[:SHOWN]:
            print(text, file=sys.stderr)
        if (hidden := len(results[part].failures) - SHOWN) > 0:
            print(f"... and {hidden} more of {part}", file=sys.stderr)
        print(f"{part}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    cache.cleanup()
    print(f"{'part':<20}{'tried':>9}{'ok':>9}{'refused':>9}{'failures':>9}")
    for part, counts in results.items():
        print(f"{part:<20}{counts.tried:>9,}{counts.ok:>9,}{counts.refused:>9,}{len(counts.failures):>9,}")
    print(json.dumps({part: {**vars(counts), "failures": len(counts.failures)} for part, counts in results.items()}))
    return int(any(counts.failures or not counts.tried for counts in results.values()))


if __name__ == "__main__":
    sys.exit(main())
