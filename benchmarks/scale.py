"""What does not fit: batches beyond memory, and audits of very many vectors.

`chunked` is compared with the whole batch, in time and memory, and with sentence-transformers'
CachedMultipleNegativesRankingLoss where that is installed (the environment of `make test-oracles`). A pair is two views
of an image of 32 x 32 pixels. Times are process CPU time of forward + backward of encoder and loss, one thread, the
best of several interleaved rounds. Memory is the growth of the resident set's peak during one step, in a process of its
own; of the large batch it is the peak of the whole process. The audit's vectors lie near a surface of 16 dimensions of
128.

    python benchmarks/scale.py [--quick] [--only chunked audit cached]

The last line of the output is JSON: name -> ratio, and peaks in GB.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import torch
from contrast import best_times, show
from torch import Tensor

from antipodes import InfoNCE, OneWay, audit, chunked
from antipodes.encoders import create
from antipodes.encoders.encoder import Encoder

MICRO_BATCH = 64
LARGE = 32_768


class Step:
    """One step of training: an encoder with group normalisation, and two views of so many images."""

    def __init__(self, pairs: int, encoder: str = "resnet18-slim-gn") -> None:
        torch.manual_seed(0)
        self.encoder: Encoder = create(encoder)
        self.views = torch.randn(2, pairs, 3, 32, 32)
        self.loss_fn: torch.nn.Module = OneWay(InfoNCE(0.1)) if pairs >= LARGE else InfoNCE(0.1)

    def whole(self) -> None:
        """The batch at once."""
        self.finish(self.encoder(self.views.flatten(0, 1)))

    def in_pieces(self) -> None:
        """The batch in pieces."""
        self.finish(chunked(self.encoder, self.views.flatten(0, 1), MICRO_BATCH))

    def finish(self, embeddings: Tensor) -> None:
        """The loss, and all gradients."""
        self.encoder.zero_grad()
        self.loss_fn(*embeddings.chunk(2)).backward()


def resident(field: str) -> float:
    """A number of this process in MB: VmRSS now, VmHWM at its peak."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(field))


def report_memory(case: str, pairs: int, encoder: str) -> None:
    """Print the growth of the peak during one step, the peak itself and the seconds."""
    Step(16, encoder).whole()  # what the library allocates once
    step = Step(pairs, encoder)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # so that memory left over is not used unseen
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")  # the peak starts again
    before, started = resident("VmRSS"), time.process_time()
    getattr(step, case)()
    print(resident("VmHWM") - before, resident("VmHWM"), time.process_time() - started)


def memory(case: str, pairs: int, encoder: str = "resnet18-slim-gn") -> tuple[float, float, float]:
    """What `report_memory` prints, of a fresh process."""
    command = [sys.executable, __file__, "--memory", case, str(pairs), encoder]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    growth, peak, seconds = map(float, done.stdout.split())
    return growth, peak, seconds


def report_audit(count: int) -> None:
    """Print the seconds, the seconds of the processor and the peak of an audit of so many vectors, and its search."""
    draw = torch.Generator().manual_seed(0)
    vectors = torch.randn(count, 16, generator=draw) @ torch.randn(16, 128, generator=draw)
    vectors += 0.3 * torch.randn(count, 128, generator=draw)
    started, used = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        found = audit(vectors.numpy(), out=folder)
    seconds, used = time.perf_counter() - started, time.process_time() - used
    print(seconds, used, resident("VmHWM"), found.findings.recall)


def measure_audit(count: int) -> dict[str, float]:
    """Audit so many vectors in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "--audit", str(count)], check=True, capture_output=True, text=True)
    seconds, used, peak, recall = map(float, done.stdout.split())
    row = (f"{count:,}", f"{seconds:.0f} s", f"{used:.0f} s", f"{peak / 1024:.2f} GB", f"{recall:.3f}")
    show("audit of vectors of 128 numbers", ("vectors", "time", "of processor", "peak of the process", "recall"), [row])
    return {f"audit of {count:,} vectors, processor minutes": used / 60, f"audit of {count:,} vectors, GB": peak / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description="Batches beyond memory compared with whole batches.")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=list(PARTS), help="some of the parts")
    parser.add_argument("--memory", nargs=3, metavar=("CASE", "PAIRS", "ENCODER"), help=argparse.SUPPRESS)
    parser.add_argument("--audit", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(2 if arguments.audit else 1)
    if arguments.memory:
        report_memory(arguments.memory[0], int(arguments.memory[1]), arguments.memory[2])
        return
    if arguments.audit:
        report_audit(arguments.audit)
        return
    ratios: dict[str, float] = {}
    for part in arguments.only:
        ratios |= PARTS[part](arguments.quick)
    print(json.dumps({name: round(ratio, 3) for name, ratio in ratios.items()}))


def compare_chunked(quick: bool) -> dict[str, float]:
    """A whole batch and one in pieces; one that is too large to be whole."""
    pairs, rounds = (256, 2) if quick else (2048, 3)
    step = Step(pairs)
    best = best_times({"whole": step.whole, "in pieces": step.in_pieces}, rounds)
    growth = {case: memory(case, pairs)[0] for case in ("whole", "in_pieces")}
    ratios = {
        f"chunked {pairs} pairs, time": best["in pieces"] / best["whole"],
        f"chunked {pairs} pairs, memory": growth["in_pieces"] / growth["whole"],
    }
    rows = [
        ("whole", f"{best['whole']:.2f} s", f"{growth['whole']:.0f} MB"),
        (f"in pieces of {MICRO_BATCH}", f"{best['in pieces']:.2f} s", f"{growth['in_pieces']:.0f} MB"),
    ]
    show(f"{pairs} pairs, resnet18-slim-gn", ("batch", "a step", "memory of a step"), rows)
    if not quick:
        grown, peak, seconds = memory("in_pieces", LARGE, "resnet8-slim-gn")
        ratios[f"chunked {LARGE} pairs, peak of the process in GB"] = peak / 1024
        row = (f"in pieces of {MICRO_BATCH}", f"{seconds:.0f} s", f"{grown:.0f} MB", f"{peak:.0f} MB")
        show(f"{LARGE} pairs, resnet8-slim-gn", ("batch", "a step", "memory of a step", "peak of the process"), [row])
    return ratios


PARTS: dict[str, Callable[[bool], dict[str, float]]] = {
    "chunked": compare_chunked,
    "audit": lambda quick: measure_audit(20_000 if quick else 1_000_000),
}

if __name__ == "__main__":
    main()
