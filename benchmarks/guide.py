"""What a guide costs: the kernel with a bound in a second space against the same kernel without a rule.

Times are process CPU time of forward + backward, one thread, the best of several interleaved rounds; memory is the
growth of the resident set's peak in a process of its own.

    python benchmarks/guide.py [--quick]

The last line of the output is JSON: name -> ratio.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
from functools import partial

import torch
from contrast import DIMENSIONS, best_times, show
from torch.nn.functional import normalize, softplus

from antipodes.functional.contrast import contrast
from antipodes.functional.rule import Bounds, Rule

GUIDE = 128


class Scene:
    """Two views of B samples with a guide's vectors, and a ceiling in its space that one pair in a hundred exceeds."""

    def __init__(self, pairs: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.views = normalize(torch.randn(2 * pairs, DIMENSIONS, generator=generator), dim=1).requires_grad_()
        self.guide = normalize(torch.randn(2 * pairs, GUIDE, generator=generator), dim=1)
        self.ids = torch.arange(pairs).repeat(2)
        self.rules = {
            "none": Rule(),
            "own": Rule(ceiling=torch.full((2 * pairs,), 0.2)),
            "guide": Rule(guide=Bounds(ceiling=torch.full((2 * pairs,), 0.2))),
        }

    def run(self, rule: str) -> None:
        """One step of the kernel."""
        sums = contrast(
            self.views, anchor_ids=self.ids, temperature=0.1, rules=self.rules[rule], guide=(self.guide, None)
        )
        softplus(sums.log_sum - 8).mean().backward()


def peak_growth(pairs: int, rule: str) -> float:
    """Return the growth of the resident set's peak in MB, measured in a fresh process."""
    command = [sys.executable, __file__, "--memory", str(pairs), rule]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def report_peak_growth(pairs: int, rule: str) -> None:
    def resident(field: str) -> float:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))

    Scene(16).run(rule)
    scene = Scene(pairs)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")
    before = resident("VmRSS")
    scene.run(rule)
    print(resident("VmHWM") - before)


def main() -> None:
    parser = argparse.ArgumentParser(description="The price of a guide's space in the contrast kernel.")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--memory", nargs=2, metavar=("PAIRS", "RULE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory:
        report_peak_growth(int(arguments.memory[0]), arguments.memory[1])
        return
    ratios: dict[str, float] = {}
    rows = []
    for pairs in (512, 1024) if arguments.quick else (512, 1024, 4096):
        scene = Scene(pairs)
        times = best_times({rule: partial(scene.run, rule) for rule in scene.rules}, 5 if pairs > 1024 else 15)
        for rule in ("own", "guide"):
            ratios[f"{pairs} {rule} / none"] = times[rule] / times["none"]
        rows.append((str(pairs), *(f"{1000 * times[rule]:.1f}" for rule in scene.rules)))
    show(f"A guide of {GUIDE} dimensions", ("pairs", "no rule ms", "own ceiling ms", "guide's ceiling ms"), rows)
    rows, previous = [], 0.0
    for pairs in (1024, 2048) if arguments.quick else (2048, 4096, 8192):
        grown = peak_growth(pairs, "guide")
        rows.append((str(pairs), f"{grown:.0f}", f"{grown / previous:.2f}" if previous else "-"))
        if previous:
            ratios[f"memory {pairs} / {pairs // 2}"] = grown / previous
        previous = grown
    show("Peak memory with a guide", ("pairs", "MB", "/ half as many"), rows)
    print()
    print(json.dumps({name: round(ratio, 4) for name, ratio in ratios.items()}))


if __name__ == "__main__":
    main()
