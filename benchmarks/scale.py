"""What does not fit: batches beyond memory, very many images, and audits of very many vectors.

`chunked` is compared with the whole batch, in time and memory, and with sentence-transformers'
CachedMultipleNegativesRankingLoss where that is installed (the environment of `make test-oracles`). A pair is two views
of an image of 32 x 32 pixels. Times are process CPU time of forward + backward of encoder and loss, one thread, the
best of several interleaved rounds. Memory is the growth of the resident set's peak during one step, in a process of its
own; of the large batch it is the peak of the whole process.

    python benchmarks/scale.py [--quick] [--only chunked cached streams listing audit]

The last line of the output is JSON: name -> ratio, and peaks in GB.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from contrast import best_times, show
from PIL import Image
from torch import Tensor, nn

from antipodes import InfoNCE, OneWay, audit, chunked
from antipodes.data import Loader, open_dataset
from antipodes.data.decode import decode_source
from antipodes.data.image_opening import Source
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


def draw_vectors(path: Path, count: int, width: int = 128) -> None:
    """Write so many vectors: clusters of about 500 with 16 dimensions inside, 1 % equal and 2 % nearly equal ones."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(max(4, count // 500), width, generator=draw)
    basis = torch.randn(16, width, generator=draw) / 4
    vectors = np.lib.format.open_memmap(path, "w+", np.float32, (count, width))
    for start in range(0, count, 50_000):
        size = min(50_000, count - start)
        copies = size // 100
        block = centres[torch.randint(len(centres), (size,), generator=draw)]
        block += torch.randn(size, 16, generator=draw) @ basis + 0.3 * torch.randn(size, width, generator=draw)
        block[-copies:] = block[:copies]
        near = 0.05 * torch.randn(2 * copies, width, generator=draw)
        block[-3 * copies : -copies] = block[copies : 3 * copies] + near
        vectors[start : start + size] = block[torch.randperm(size, generator=draw)].numpy()
    vectors.flush()


def report_audit(path: str) -> None:
    """Print the seconds, the seconds of the processor and the peak of an audit of a file of vectors, and its search."""
    started, used = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        found = audit(path, out=folder)
    seconds, used = time.perf_counter() - started, time.process_time() - used
    print(seconds, used, resident("VmHWM"), found.findings.recall)


def measure_audit(count: int) -> dict[str, float]:
    """Audit so many vectors in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "vectors.npy"
        draw_vectors(file, count)
        command = [sys.executable, __file__, "--audit", str(file)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, used, peak, recall = map(float, done.stdout.split())
    row = (f"{count:,}", f"{seconds:.0f} s", f"{used:.0f} s", f"{peak / 1024:.2f} GB", f"{recall:.3f}")
    show("audit of vectors of 128 numbers", ("vectors", "time", "of processor", "peak of the process", "recall"), [row])
    return {f"audit of {count:,} vectors, processor minutes": used / 60, f"audit of {count:,} vectors, GB": peak / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description="Batches beyond memory compared with whole batches.")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=list(PARTS), help="some of the parts")
    parser.add_argument("--memory", nargs=3, metavar=("CASE", "PAIRS", "ENCODER"), help=argparse.SUPPRESS)
    parser.add_argument("--listing", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--audit", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(2 if arguments.audit else 1)
    if arguments.memory:
        report_memory(arguments.memory[0], int(arguments.memory[1]), arguments.memory[2])
        return
    if arguments.listing:
        report_listing(arguments.listing[0], int(arguments.listing[1]))
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


def compare_cached(quick: bool) -> dict[str, float]:
    """`chunked` and sentence-transformers' CachedMultipleNegativesRankingLoss on one encoder and one batch."""
    try:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer import losses
    except ImportError:
        print("sentence-transformers is not installed: left out")
        return {}
    torch.manual_seed(0)
    layers = [part for _ in range(8) for part in (nn.Linear(384, 384), nn.LayerNorm(384), nn.GELU())]
    encoder = nn.Sequential(*layers)

    class Embedded(nn.Module):
        """The encoder as a module of sentence-transformers."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, features: dict[str, Tensor], **_: object) -> dict[str, Tensor]:
            return {**features, "sentence_embedding": self.encoder(features["numbers"])}

    pairs, rounds = (256, 2) if quick else (2048, 3)
    queries, documents = torch.randn(2, pairs, 384).unbind()
    model = SentenceTransformer(modules=[Embedded()], device="cpu")
    cached = losses.CachedMultipleNegativesRankingLoss(model, scale=20.0, mini_batch_size=MICRO_BATCH)
    ours = OneWay(InfoNCE(0.05))
    values: dict[str, Tensor] = {}

    def theirs_step() -> None:
        encoder.zero_grad()
        values["theirs"] = cached([{"numbers": each} for each in (queries, documents)], None)
        values["theirs"].backward()

    def our_step() -> None:
        encoder.zero_grad()
        values["ours"] = ours(*(chunked(encoder, each, MICRO_BATCH) for each in (queries, documents)))
        values["ours"].backward()

    best = best_times({"theirs": theirs_step, "ours": our_step}, rounds)
    apart = float((values["theirs"] - values["ours"]).detach().abs())
    rows = [("CachedMultipleNegativesRankingLoss", f"{best['theirs']:.2f} s"), ("chunked", f"{best['ours']:.2f} s")]
    show(f"{pairs} pairs, eight layers of 384 numbers; the losses differ by {apart:.1e}", ("", "a step"), rows)
    return {f"chunked over cached, {pairs} pairs, time": best["ours"] / best["theirs"]}


def compare_streams(quick: bool) -> dict[str, float]:
    """Images read by the listing of `stream:`, from files and from shards, compared with plain files read in order."""
    count = 500 if quick else 4000
    with tempfile.TemporaryDirectory() as temporary:
        root, shards = Path(temporary) / "photos", Path(temporary) / "shards"
        os.environ["ANTIPODES_DATA"] = f"{temporary}/cache"
        random = torch.Generator().manual_seed(0)
        shards.mkdir()
        for number in range(count):
            pixels = torch.randint(0, 256, (8, 8, 3), generator=random, dtype=torch.uint8)
            file = root / f"class{number % 10}" / f"image{number:06}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.numpy()).resize((96, 96)).save(file)
        for first in range(0, count, 1000):
            with tarfile.open(shards / f"shard-{first // 1000:04}.tar", "w") as tar:
                for file in sorted(root.rglob("*.jpg"))[first : first + 1000]:
                    tar.add(file, file.name)
        sources = [Source(str(file)) for file in sorted(root.rglob("*.jpg"))]
        streams = {"files": open_dataset(f"stream:{root}"), "shards": open_dataset(f"stream:{shards}")}
        orders = {name: Loader(data, 250, seed=0) for name, data in streams.items()}

        def plain() -> None:
            for start in range(0, count, 250):
                torch.stack([torch.from_numpy(decode_source(each, 73).pixels) for each in sources[start : start + 250]])

        def read(name: str) -> None:
            for _ in orders[name].epoch(0):
                pass

        best = best_times({"plain": plain, **{name: partial(read, name) for name in streams}}, 2)
    rows = [(name, f"{count / seconds:,.0f}") for name, seconds in best.items()]
    show(f"{count:,} JPEG files of 96 x 96, shuffled", ("read from", "images a second"), rows)
    return {f"{name} over plain files, time": best[name] / best["plain"] for name in streams}


def report_listing(folder: str, count: int) -> None:
    """Make so many files if there are none, list them, and print seconds of both openings, bytes and memory."""
    root = Path(folder) / "million"
    os.environ["ANTIPODES_DATA"] = f"{folder}/cache"
    for number in range(0 if root.exists() else count):
        place = root / f"class{number // 1000:04}"
        if number % 1000 == 0:
            place.mkdir(parents=True)
            Image.new("RGB", (40, 40), (90, 9, 9)).save(place / "image0000.png")
        else:
            os.link(place / "image0000.png", place / f"image{number % 1000:04}.png")
    seconds = []
    for _ in range(2):
        started = time.process_time()
        data = open_dataset(f"stream:{root}")
        seconds.append(time.process_time() - started)
    size = sum(array.stat().st_size for array in Path(folder).glob("cache/listings/*/*.npy"))
    print(*seconds, size / len(data), resident("VmHWM"), len(data))


def measure_listing(quick: bool) -> dict[str, float]:
    """Open very many files twice, in a process of its own."""
    count = 20_000 if quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--listing", folder, str(count)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    first, again, size, peak, found = map(float, done.stdout.split())
    row = (f"{found:,.0f}", f"{first:.1f} s", f"{again:.2f} s", f"{size:.0f}", f"{peak:.0f} MB")
    head = ("files", "listed in", "opened again in", "bytes a file", "peak of the process")
    show("listing of a folder (seconds of the processor)", head, [row])
    return {"files opened again, seconds": again, "bytes of listing a file": size}


PARTS: dict[str, Callable[[bool], dict[str, float]]] = {
    "chunked": compare_chunked,
    "cached": compare_cached,
    "streams": compare_streams,
    "listing": measure_listing,
    "audit": lambda quick: measure_audit(20_000 if quick else 1_000_000),
}

if __name__ == "__main__":
    main()
