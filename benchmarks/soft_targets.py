"""What SANE's refined labels add to a MoCo step, and how their memory grows with the queue.

    python benchmarks/soft_targets.py [--encoder resnet18-slim] [--batch 256] [--queue 4096] [--steps 15]

Step: encoder, loss, backward, optimiser and momentum of MoCo on ready views, one thread, process CPU time. Loss parts:
forward and backward of plain InfoNCE and of the refined loss (p, q, mixed labels) on embeddings of the same sizes.
The two take turns with the step; ratios are of medians. Memory is the growth of the resident set's peak in a process of
its own, compared with that of dense labels. Ends with one line of JSON: name -> ratio.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from antipodes import InfoNCE, encoders
from antipodes.encoders.heads import Head
from antipodes.losses import SoftLabel
from antipodes.methods import Batch, InputViews, MoCo, Tower, Towers
from antipodes.pairs import Pairs
from antipodes.training.optimizers import optimizer

TAU, TAU_PRIME, DIMENSIONS = 0.2, 0.8, 128


class Embedded:
    """Queries, keys of the batch and of a full queue, and the labels that mixup pairs."""

    def __init__(self, batch: int, queue: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.queries = normalize(torch.randn(batch, DIMENSIONS, generator=generator), dim=1).requires_grad_()
        self.keys = normalize(torch.randn(batch + queue, DIMENSIONS, generator=generator), dim=1)
        self.ids = torch.arange(batch + queue)
        own = torch.arange(batch)
        self.own = torch.stack((own, own.roll(1)))
        self.theta = torch.rand(batch, generator=generator)

    def plain(self) -> Tensor:
        """MoCo's loss over the same keys."""
        count = len(self.queries)
        positives = (self.queries * self.keys[:count]).sum(1)
        return InfoNCE(TAU).evaluate(Pairs(self.queries, self.ids[:count], positives, self.keys, self.ids))

    def refined(self) -> Tensor:
        """The loss with refined, mixed labels."""
        loss: Tensor = SoftLabel(TAU, TAU_PRIME)(self.queries, self.keys, self.ids, self.own, self.theta)
        return loss

    def dense(self) -> Tensor:
        """The same with every label as a row over the keys."""
        count = len(self.queries)
        similarities = self.keys[:count] @ self.keys.T / (TAU * TAU_PRIME)
        p = similarities.softmax(1)
        q = similarities.clone().fill_diagonal_(-torch.inf).softmax(1)
        a, b = p.amax(1, keepdim=True), q.amax(1, keepdim=True)
        total = 1 + a + b
        labels = (a * p + b * q) / total
        labels.diagonal().add_((1 / total).squeeze(1))
        theta = self.theta[:, None]
        labels = theta * labels + (1 - theta) * labels[self.own[1]]
        return -(labels * (self.queries @ self.keys.T / TAU).log_softmax(1)).sum(1).mean()


def peak_growth(case: str, batch: int, queue: int) -> float:
    """The growth of the resident set's peak in MB, measured in a fresh process."""
    command = [sys.executable, __file__, "--memory", case, str(batch), str(queue)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def report_peak_growth(case: str, batch: int, queue: int) -> None:
    def resident(field: str) -> float:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))

    getattr(Embedded(16, 16), case)().backward()  # what the libraries allocate once
    data = Embedded(batch, queue)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")  # the peak starts again
    before = resident("VmRSS")
    getattr(data, case)().backward()
    print(resident("VmHWM") - before)


def seconds(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="resnet18-slim")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--queue", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--memory", nargs=3, metavar=("CASE", "BATCH", "QUEUE"), help=argparse.SUPPRESS)
    call = parser.parse_args()
    torch.set_num_threads(1)
    if call.memory:
        report_peak_growth(call.memory[0], int(call.memory[1]), int(call.memory[2]))
        return

    encoder = encoders.create(call.encoder)
    head = Head("mlp2", hidden=2048, dim=DIMENSIONS).build(encoder.num_features)
    method = MoCo(Towers({"image": Tower(encoder, head)}), InfoNCE(TAU), DIMENSIONS, queue_size=call.queue).train()
    method.to(memory_format=torch.channels_last)
    sgd = optimizer("sgd", method.network, 0.01)
    views = list(torch.randn(2, call.batch, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    views = [view.contiguous(memory_format=torch.channels_last) for view in views]
    data = Embedded(call.batch, call.queue)
    batch = Batch(torch.arange(call.batch), {"image": InputViews(views)})

    def step() -> None:
        method.loss(method.network, batch, 0.5).backward()
        sgd.step()
        sgd.zero_grad()
        method.after_step()

    runs: dict[str, Callable[[], object]] = {
        "step": step,
        "plain": lambda: data.plain().backward(),
        "refined": lambda: data.refined().backward(),
        "dense": lambda: data.dense().backward(),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(call.steps + 2):
        for name, run in runs.items():
            taken = seconds(run)
            if number >= 2:  # the first ones warm caches and allocator
                times[name].append(taken)
    median = {name: statistics.median(values) for name, values in times.items()}
    print(f"{call.encoder}, batch {call.batch}, queue {call.queue:,}, one thread:")
    for name, value in median.items():
        print(f"  {name:<8} {1000 * value:7.1f} ms")
    ratios = {
        "refined_loss / step": median["refined"] / median["step"],
        "refined_loss_instead_of_plain / step": 1 + (median["refined"] - median["plain"]) / median["step"],
        "refined_loss / plain_loss": median["refined"] / median["plain"],
        "refined_loss / dense": median["refined"] / median["dense"],
    }
    sizes = [(call.batch, 2**power) for power in (14, 15, 16)] + [(2 * call.batch, 2**15), (4 * call.batch, 2**15)]
    grown = {size: peak_growth("refined", *size) for size in sizes}
    print("peak memory in MB (batch, queue): " + ", ".join(f"{size} {mb:.0f}" for size, mb in grown.items()))
    largest = (call.batch, 2**16)
    ratios["memory queue x 4"] = grown[largest] / grown[sizes[0]]
    ratios["memory batch x 4"] = grown[sizes[-1]] / grown[(call.batch, 2**15)]
    ratios["memory refined / dense"] = grown[largest] / peak_growth("dense", *largest)
    print(json.dumps({name: round(value, 4) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()
