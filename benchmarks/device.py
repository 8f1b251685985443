"""What a step asks of a device: launches, read-backs and copies, counted on a pretend one that computes on the CPU.

    python benchmarks/device.py [--pairs 2048] [--dim 128]

The third call of each policy is counted, forward and backward; the first two also look for mistakes of the caller. No
time is measured: no real device was there. Ends with one line of JSON: name -> counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path

import torch

import antipodes

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.device.pretend import Trace, register

ROWS = 50_000
POLICIES = {
    "none": lambda: None,
    "glofnd": lambda: antipodes.GloFND(ROWS, 0.01),
    "fnc": lambda: antipodes.FNC(0.01),
    "ring": lambda: antipodes.Ring((1.0, 0.1), 0.1),
    "bcl": lambda: antipodes.BCL(0.1),
    "ifnd": lambda: antipodes.IFND(ROWS, (4, 8)),
    "dataset-neighbours": lambda: antipodes.DatasetNeighbours(ROWS, 5),
    "known": lambda: antipodes.Known(torch.arange(ROWS) // 8),
    "positive-aware": lambda: antipodes.PositiveAware(0.05),
}


def main() -> None:
    """Count, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2048)
    parser.add_argument("--dim", type=int, default=128)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    device, counts = register(), {}
    print(f"{'policy':<16}{'launches':>10}{'read-backs':>12}{'copies':>8}   {options.pairs} pairs x {options.dim}")
    for name, make in POLICIES.items():
        policy = make()
        if policy is not None and policy.needs.fits:
            policy.fit(torch.randn(ROWS, 16), progress=0.5)
        loss = antipodes.InfoNCE(0.1, policy).to(device)
        with Trace() as trace:
            for _ in range(3):
                views = [torch.randn(options.pairs, options.dim).to(device).requires_grad_() for _ in range(2)]
                ids = torch.randperm(ROWS)[: options.pairs].to(device)
                trace.clear()
                loss(*views, ids, progress=0.7).backward()
        found = [sum(each.values()) for each in (trace.launches, trace.read_backs, trace.copies)]
        counts[name] = dict(zip(("launches", "read-backs", "copies"), found, strict=True))
        print(f"{name:<16}{found[0]:>10,}{found[1]:>12,}{found[2]:>8,}")
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
