"""The contrast kernel against dense losses: time, memory, and what a rule costs.

All times are process CPU time of forward + backward from raw embeddings, the best of several interleaved rounds; ratios
below 1 mean that the kernel is faster. Memory is the growth of the resident set's peak in a process of its own.

    python benchmarks/contrast.py [--quick] [--threads N]

The last line of the output is JSON: name -> ratio.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy, normalize, softplus

from antipodes.functional.contrast import contrast
from antipodes.functional.rule import Group, Rule

TAU = 0.1
DIMENSIONS = 128
BLOCK = 320  # the kernel's own choice on a CPU, for the bare products


class Batch:
    """Two views of B samples from 50 clusters, thresholds that flag about one pair in a hundred, and groups."""

    def __init__(self, pairs: int) -> None:
        generator = torch.Generator().manual_seed(0)
        centres = torch.randn(50, DIMENSIONS, generator=generator)
        cluster = torch.randint(0, 50, (pairs,), generator=generator)
        samples = centres[cluster] + torch.randn(pairs, DIMENSIONS, generator=generator)
        self.pairs = pairs
        self.ids = torch.arange(pairs).repeat(2)
        self.raw = samples.repeat(2, 1) + 0.5 * torch.randn(2 * pairs, DIMENSIONS, generator=generator)
        self.raw.requires_grad_()
        self.groups = [torch.randint(0, clusters, (pairs,), generator=generator).repeat(2) for clusters in (50, 20, 10)]
        views = normalize(self.raw.detach(), dim=1)
        some = views[torch.randperm(2 * pairs, generator=generator)[:1024]]
        self.ceiling = torch.cat([part @ some.T for part in views.split(1024)]).quantile(0.99, dim=1)

    def rules(self, name: str) -> list[Rule]:
        """Return the rules of that name."""
        if name == "none":
            return [Rule()]
        if name == "ceiling":
            return [Rule(ceiling=self.ceiling)]
        by_group = [Rule(groups=(Group(numbers, numbers),)) for numbers in self.groups]
        return {
            "group": by_group[:1],
            "three groups": by_group,
            "ring": [Rule(low=self.ceiling - 0.5, high=self.ceiling)],
            "ceiling attract": [Rule(ceiling=self.ceiling).attract()],
        }[name]


def kernel(batch: Batch, rule: str) -> None:
    views = normalize(batch.raw, dim=1)
    sums = contrast(views, anchor_ids=batch.ids, temperature=TAU, rules=batch.rules(rule))
    first, second = views.chunk(2)
    positive = (first * second).sum(1).repeat(2) / TAU
    (softplus(sums.log_sum - positive).mean() - sums.pulled_sum.mean()).backward()


def dense(batch: Batch, rule: str) -> None:
    """A cross entropy over all logits with a mask of the same pairs, as one would write it."""
    views = normalize(batch.raw, dim=1)
    similarities = views @ views.T
    count = 2 * batch.pairs
    target = torch.arange(count).roll(batch.pairs)
    if rule == "ceiling":
        mask = similarities.detach() > batch.ceiling[:, None]
    elif rule == "group":
        mask = batch.groups[0][:, None] == batch.groups[0][None, :]
    else:
        mask = torch.zeros(count, count, dtype=torch.bool)
    mask[torch.arange(count), target] = False
    mask.fill_diagonal_(True)
    cross_entropy((similarities / TAU).masked_fill(mask, -torch.inf), target).backward()


def four_blocks(batch: Batch, _: str) -> None:
    """NT-Xent by lightly's formula: four blocks of logits, diagonals removed by a boolean mask, one cross entropy."""
    first, second = normalize(batch.raw, dim=1).chunk(2)
    others = ~torch.eye(batch.pairs, dtype=torch.bool)
    within_first = (first @ first.T / TAU)[others].view(batch.pairs, -1)
    within_second = (second @ second.T / TAU)[others].view(batch.pairs, -1)
    upper = torch.cat((first @ second.T / TAU, within_first), dim=1)
    lower = torch.cat((second @ first.T / TAU, within_second), dim=1)
    cross_entropy(torch.cat((upper, lower)), torch.arange(batch.pairs).repeat(2)).backward()


def metric_learning(batch: Batch, _: str) -> None:
    from pytorch_metric_learning.losses import NTXentLoss  # of the extra `bench`; here, others borrow from this file

    NTXentLoss(temperature=TAU)(batch.raw, batch.ids).backward()


def products(batch: Batch, _: str) -> None:
    """The products that cannot be avoided: similarities twice, their gradient with rows and with columns."""
    blocks = batch.raw.detach().split(BLOCK)
    gradient = [torch.zeros_like(block) for block in blocks]
    buffer = torch.empty(BLOCK * BLOCK)
    for i, rows in enumerate(blocks):
        for j in range(i, len(blocks)):
            tile = buffer[: len(rows) * len(blocks[j])].view(len(rows), len(blocks[j]))
            torch.mm(rows, blocks[j].T, out=tile)
            torch.mm(rows, blocks[j].T, out=tile)
            gradient[i].addmm_(tile, blocks[j])
            if i != j:
                gradient[j].addmm_(tile.T, rows)


class Queue:
    """256 anchors against a queue of 65,536 keys without gradient."""

    def __init__(self, anchors: int, keys: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.anchors = normalize(torch.randn(anchors, DIMENSIONS, generator=generator), dim=1).requires_grad_()
        self.keys = normalize(torch.randn(keys, DIMENSIONS, generator=generator), dim=1)
        self.ids, self.key_ids = torch.arange(anchors), torch.arange(keys) + anchors
        self.ceiling = torch.full((anchors,), 0.2)

    def kernel(self, rule: Rule) -> None:
        """Run the kernel."""
        ids = {"anchor_ids": self.ids, "candidate_ids": self.key_ids}
        contrast(self.anchors, self.keys, **ids, temperature=TAU, rules=rule).log_sum.mean().backward()

    def dense(self, masked: bool) -> None:
        """Run the same sum over all logits at once."""
        similarities = self.anchors @ self.keys.T
        logits = similarities / TAU
        if masked:
            logits = logits.masked_fill(similarities.detach() > self.ceiling[:, None], -torch.inf)
        logits.logsumexp(1).mean().backward()


CASES = {"kernel": kernel, "dense": dense, "four blocks": four_blocks, "metric learning": metric_learning}


def best_times(
    runs: dict[str, Callable[[], None]], rounds: int, clock: Callable[[], float] = time.process_time, calls: int = 1
) -> dict[str, float]:
    """Return each run's best time, of the CPU unless said otherwise, as the mean of so many calls in a row.

    All runs take turns, also at being the first with cold caches. Calls of less than a millisecond want several in a
    row: after the garbage collection between rounds the interpreter's own caches are cold.
    """
    best = dict.fromkeys(runs, float("inf"))
    for number in range(rounds):
        gc.collect()
        names = list(runs)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start = clock()
            for _ in range(calls):
                runs[name]()
            best[name] = min(best[name], (clock() - start) / calls)
    return best


def peak_growth(case: str, pairs: int, rule: str) -> float:
    """Return the growth of the resident set's peak in MB, measured in a fresh process."""
    command = [sys.executable, __file__, "--memory", case, str(pairs), rule]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def report_peak_growth(case: str, pairs: int, rule: str) -> None:
    def resident(field: str) -> float:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))

    CASES[case](Batch(16), rule)  # what the libraries allocate once
    batch = Batch(pairs)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # so that memory left over from the batch is not used unseen
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")  # the peak starts again
    before = resident("VmRSS")
    CASES[case](batch, rule)
    print(resident("VmHWM") - before)


def show(title: str, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    print(f"\n{title}")
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of the contrast kernel against dense losses.")
    parser.add_argument("--quick", action="store_true", help="small sizes, under a minute")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory", nargs=3, metavar=("CASE", "PAIRS", "RULE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory:
        report_peak_growth(arguments.memory[0], int(arguments.memory[1]), arguments.memory[2])
        return
    pairs, rounds = (512, 20) if arguments.quick else (4096, 7)
    allocator = {name: value for name, value in os.environ.items() if name.startswith(("MALLOC_", "LD_PRELOAD"))}
    print(f"torch {torch.__version__}, {arguments.threads} thread(s), allocator settings: {allocator or 'default'}")
    ratios: dict[str, float] = {}

    batch = Batch(pairs)
    rules = ("none", "ceiling", "group", "three groups", "ring", "ceiling attract")
    runs: dict[str, Callable[[], None]] = {f"kernel {rule}": lambda rule=rule: kernel(batch, rule) for rule in rules}
    runs |= {f"dense {rule}": lambda rule=rule: dense(batch, rule) for rule in rules[:3]}
    runs |= {"four blocks": lambda: four_blocks(batch, ""), "products": lambda: products(batch, "")}
    times = best_times(runs, rounds)
    rows = []
    for rule in rules:
        ours = times[f"kernel {rule}"]
        ratios[f"{rule} / products"] = ours / times["products"]
        ratios[f"{rule} / none"] = ours / times["kernel none"]
        if f"dense {rule}" in times:
            ratios[f"{rule} / dense"] = ours / times[f"dense {rule}"]
        rows.append(
            (
                rule,
                f"{1000 * ours:.0f}",
                f"{ratios[f'{rule} / none']:.2f}",
                f"{ratios[f'{rule} / products']:.2f}",
                f"{ratios[f'{rule} / dense']:.3f}" if f"dense {rule}" in times else "-",
            )
        )
    ratios["none / four blocks"] = times["kernel none"] / times["four blocks"]
    title = f"{pairs} pairs, {2 * pairs} views, {DIMENSIONS} dimensions"
    show(title, ("rule", "ms", "/ no rule", "/ bare products", "/ dense with the same mask"), rows)
    print(f"  lightly's formula: {1000 * times['four blocks']:.0f} ms, ratio {ratios['none / four blocks']:.3f}")

    rows = []
    for small in (64,) if arguments.quick else (64, 128):
        few = Batch(small)
        few_times = best_times(
            {
                "kernel": lambda few=few: kernel(few, "none"),
                "four blocks": lambda few=few: four_blocks(few, ""),
                "metric learning": lambda few=few: metric_learning(few, ""),
            },
            20 if small == 64 else 5,
        )
        ours, theirs, cubic = few_times.values()
        ratios[f"none / metric learning {small}"] = ours / cubic
        ratios[f"none / four blocks {small}"] = ours / theirs
        rows.append((str(small), f"{1000 * ours:.2f}", f"{ours / theirs:.2f}", f"{ours / cubic:.4f}"))
    header = ("pairs", "ms", "/ lightly's formula", "/ pytorch-metric-learning's NTXentLoss")
    show("Small batches, no rule", header, rows)

    queue = Queue(256, 8192 if arguments.quick else 65536)
    queue_times = best_times(
        {
            "none": lambda: queue.kernel(Rule()),
            "ceiling": lambda: queue.kernel(Rule(ceiling=queue.ceiling)),
            "dense none": lambda: queue.dense(masked=False),
            "dense ceiling": lambda: queue.dense(masked=True),
        },
        rounds,
    )
    rows = []
    for rule in ("none", "ceiling"):
        ratios[f"queue {rule} / dense"] = queue_times[rule] / queue_times[f"dense {rule}"]
        rows.append((rule, f"{1000 * queue_times[rule]:.0f}", f"{ratios[f'queue {rule} / dense']:.3f}"))
    show(f"A queue: {len(queue.anchors)} x {len(queue.keys)}", ("rule", "ms", "/ dense"), rows)

    rows = []
    for rule in ("none", "ceiling", "group"):
        ours, theirs = peak_growth("kernel", pairs, rule), peak_growth("dense", pairs, rule)
        ratios[f"memory {rule} / dense"] = ours / theirs
        rows.append((rule, f"{ours:.0f}", f"{theirs:.0f}", f"{ours / theirs:.3f}"))
    show(f"Peak memory, {pairs} pairs", ("rule", "kernel MB", "dense MB", "ratio"), rows)

    rows, previous = [], 0.0
    for size in (512, 1024, 2048) if arguments.quick else (2048, 4096, 8192, 16384):
        grown = peak_growth("kernel", size, "ceiling")
        rows.append((str(size), f"{grown:.0f}", f"{grown / previous:.2f}" if previous else "-"))
        ratios[f"memory {size} / 2 GB"] = grown / 2048
        if previous:
            ratios[f"memory {size} / {size // 2}"] = grown / previous
        previous = grown
    show("Peak memory of the kernel with a ceiling", ("pairs", "MB", "/ half as many"), rows)
    print()
    print(json.dumps({name: round(ratio, 4) for name, ratio in ratios.items()}))


if __name__ == "__main__":
    main()
