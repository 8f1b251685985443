"""Small batches: the kernel against the plain dense formula, lightly's formula and pytorch-metric-learning.

Times are process CPU time of forward + backward from raw embeddings, one thread, the best of several interleaved
rounds. With --load, the loss of 4,096 pairs is timed twice, alone and beside a busy process per core, each time on all
cores: what it then takes longer is time spent waiting for other threads.

    python benchmarks/small.py [--quick] [--load]

The last line of the output is JSON: name -> ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from contrast import Batch, best_times, dense, four_blocks, kernel, metric_learning, show

CUBIC = 64  # pytorch-metric-learning's memory and time grow with the cube of the batch: no further than this


def small(pairs: int, rounds: int, ratios: dict[str, float]) -> tuple[str, ...]:
    """Time one size, add its ratios, and return a row of the table."""
    batch = Batch(pairs)
    runs: dict[str, Callable[[], None]] = {
        "kernel": lambda: kernel(batch, "none"),
        "ceiling": lambda: kernel(batch, "ceiling"),
        "dense": lambda: dense(batch, "none"),
        "dense ceiling": lambda: dense(batch, "ceiling"),
        "four blocks": lambda: four_blocks(batch, ""),
    }
    for run in runs.values():
        run()
    times = best_times(runs, rounds)
    if pairs <= CUBIC:
        times |= best_times({"metric learning": lambda: metric_learning(batch, "")}, 3)
    ratios[f"{pairs} none / dense"] = times["kernel"] / times["dense"]
    ratios[f"{pairs} ceiling / dense"] = times["ceiling"] / times["dense"]
    ratios[f"{pairs} ceiling / dense ceiling"] = times["ceiling"] / times["dense ceiling"]
    ratios[f"{pairs} none / four blocks"] = times["kernel"] / times["four blocks"]
    if "metric learning" in times:
        ratios[f"{pairs} none / metric learning"] = times["kernel"] / times["metric learning"]
    cells = [f"{1000 * times['dense']:.2f}"]
    for name in ("kernel", "ceiling", "dense ceiling", "four blocks", "metric learning"):
        cells.append(f"{times[name] / times['dense']:.2f}" if name in times else "-")
    return (str(pairs), *cells)


def under_load(pairs: int, rounds: int, ratios: dict[str, float]) -> list[tuple[str, ...]]:
    """Time the loss on all cores, alone and beside a busy process per core."""
    cores = os.cpu_count() or 1
    torch.set_num_threads(cores)
    batch = Batch(pairs)
    runs: dict[str, Callable[[], None]] = {
        "none": lambda: kernel(batch, "none"),
        "ceiling": lambda: kernel(batch, "ceiling"),
        "dense": lambda: dense(batch, "none"),
    }
    quiet = best_times(runs, rounds)
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        time.sleep(1)
        loaded = best_times(runs, rounds)
    finally:
        for neighbour in neighbours:
            neighbour.kill()
    rows = []
    for name in runs:
        ratios[f"{pairs} {name} loaded / quiet"] = loaded[name] / quiet[name]
        rows.append((name, f"{1000 * quiet[name]:.0f}", f"{loaded[name] / quiet[name]:.2f}"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="The contrast kernel on small batches.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--load", action="store_true", help="also beside a busy process per core")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ratios: dict[str, float] = {}
    sizes = (32, 64, 128, 256, 512)
    rounds = 20 if arguments.quick else 100
    rows = [small(pairs, max(5, rounds * 32 // pairs), ratios) for pairs in sizes]
    header = ("pairs", "dense ms", "kernel", "+ ceiling", "dense + ceiling", "lightly's formula", "metric learning")
    show("Ratios to the dense formula without a rule, one thread", header, rows)
    if arguments.load:
        pairs = 1024 if arguments.quick else 4096
        show(
            f"{pairs} pairs beside a busy process per core",
            ("rule", "quiet ms", "loaded / quiet"),
            under_load(pairs, 5, ratios),
        )
    print()
    print(json.dumps({name: round(ratio, 4) for name, ratio in ratios.items()}))


if __name__ == "__main__":
    main()
