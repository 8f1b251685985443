"""Small batches: InfoNCE, alone and with GloFND, against the dense formula, lightly's and pytorch-metric-learning.

Times are process CPU time of forward + backward from raw embeddings, one thread, the best of several interleaved
rounds, each of several calls in a row where one is short. What GloFND costs is measured at 4,096 pairs, too. With
--load, the loss of 4,096 pairs is timed twice, alone and with a busy process per core, each time on all cores, in CPU
time (what it then takes longer is time spent spinning for other threads) and by the clock.

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
from contrast import TAU, Batch, best_times, dense, four_blocks, metric_learning, show

from antipodes import GloFND, InfoNCE

CUBIC = 64  # pytorch-metric-learning's memory and time grow with the cube of the batch: no further than this
SAMPLES = 50_000  # of the dataset that GloFND has thresholds for
LARGE = 4096


class Losses:
    """The losses on the two views of a batch: as a user calls them, with the ids of samples somewhere in a dataset."""

    def __init__(self, pairs: int) -> None:
        self.batch = Batch(pairs)
        self.first, self.second = (view.clone().requires_grad_() for view in self.batch.raw.detach().chunk(2))
        self.ids = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(0))[:pairs]
        self.plain, self.glofnd = InfoNCE(TAU), InfoNCE(TAU, GloFND(SAMPLES, alpha=0.01))

    def runs(self) -> dict[str, Callable[[], None]]:
        """Return InfoNCE, the same with GloFND, and the dense formulas."""
        return {
            "InfoNCE": lambda: self.plain(self.first, self.second, self.ids).backward(),
            "GloFND": lambda: self.glofnd(self.first, self.second, self.ids).backward(),
            "dense": lambda: dense(self.joined(), "none"),
            "dense ceiling": lambda: dense(self.joined(), "ceiling"),
            "four blocks": lambda: four_blocks(self.joined(), ""),
        }

    def joined(self) -> Batch:
        """The batch made of both views, as the formulas want it."""
        self.batch.raw = torch.cat((self.first, self.second))
        return self.batch


def small(pairs: int, rounds: int, ratios: dict[str, float]) -> tuple[str, ...]:
    """Time one size, add its ratios, and return a row of the table."""
    losses = Losses(pairs)
    runs = losses.runs()
    for run in runs.values():
        run()
    times = best_times(runs, rounds, calls=max(1, 512 // pairs))
    if pairs <= CUBIC:
        times |= best_times({"metric learning": lambda: metric_learning(losses.joined(), "")}, 3)
    ratios[f"{pairs} InfoNCE / dense"] = times["InfoNCE"] / times["dense"]
    ratios[f"{pairs} GloFND / dense"] = times["GloFND"] / times["dense"]
    ratios[f"{pairs} GloFND / dense ceiling"] = times["GloFND"] / times["dense ceiling"]
    ratios[f"{pairs} InfoNCE / four blocks"] = times["InfoNCE"] / times["four blocks"]
    if "metric learning" in times:
        ratios[f"{pairs} InfoNCE / metric learning"] = times["InfoNCE"] / times["metric learning"]
    cells = [f"{1000 * times['dense']:.2f}"]
    for name in ("InfoNCE", "GloFND", "dense ceiling", "four blocks", "metric learning"):
        cells.append(f"{times[name] / times['dense']:.2f}" if name in times else "-")
    return (str(pairs), *cells)


def cost_of_glofnd(pairs: int, rounds: int, ratios: dict[str, float]) -> None:
    """Time a large batch with GloFND and without."""
    runs = {name: run for name, run in Losses(pairs).runs().items() if name in ("InfoNCE", "GloFND")}
    times = best_times(runs, rounds)
    ratios[f"{pairs} GloFND / InfoNCE"] = times["GloFND"] / times["InfoNCE"]
    print(f"\n{pairs} pairs: GloFND takes {times['GloFND'] / times['InfoNCE']:.2f} of the bare loss")


def under_load(pairs: int, rounds: int, ratios: dict[str, float]) -> list[tuple[str, ...]]:
    """Time the loss on all cores, alone and with a busy process per core."""
    cores = os.cpu_count() or 1
    torch.set_num_threads(cores)
    runs = {name: run for name, run in Losses(pairs).runs().items() if name in ("InfoNCE", "GloFND", "dense")}
    quiet = best_times(runs, rounds), best_times(runs, rounds, time.perf_counter)
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores)]
    try:
        time.sleep(1)
        loaded = best_times(runs, rounds), best_times(runs, rounds, time.perf_counter)
    finally:
        for neighbour in neighbours:
            neighbour.kill()
    rows = []
    for name in runs:
        of_cpu, by_clock = (after[name] / before[name] for before, after in zip(quiet, loaded, strict=True))
        ratios[f"{pairs} {name} loaded / quiet"] = of_cpu
        ratios[f"{pairs} {name} loaded / quiet, by the clock"] = by_clock
        rows.append((name, f"{1000 * quiet[0][name]:.0f}", f"{of_cpu:.2f}", f"{by_clock:.2f}"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="The losses on small batches.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--load", action="store_true", help="also with a busy process per core")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ratios: dict[str, float] = {}
    sizes = (32, 64, 128, 256, 512)
    rounds = 20 if arguments.quick else 100
    rows = [small(pairs, max(5, rounds * 32 // pairs), ratios) for pairs in sizes]
    header = ("pairs", "dense ms", "InfoNCE", "+ GloFND", "dense + ceiling", "lightly's formula", "metric learning")
    show("Ratios to the dense formula without a rule, one thread", header, rows)
    pairs = 1024 if arguments.quick else LARGE
    cost_of_glofnd(pairs, 5, ratios)
    if arguments.load:
        show(
            f"{pairs} pairs with a busy process per core",
            ("loss", "quiet CPU ms", "loaded / quiet", "by the clock"),
            under_load(pairs, 5, ratios),
        )
    print()
    print(json.dumps({name: round(ratio, 4) for name, ratio in ratios.items()}))


if __name__ == "__main__":
    main()
