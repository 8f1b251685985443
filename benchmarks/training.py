"""What the training loop costs over the bare step, and what share of a step is augmentation.

    python benchmarks/training.py [--data cifar10] [--encoder resnet18-slim] [--rounds 5]

Bare: encoder, loss, backward and optimiser step on views that are ready. Loop: `antipodes.training.loop.train` itself,
with its loading, augmentation, logging and progress. Both run in turns in one process on the same data; ratios are
medians over the rounds. Ends with one line of JSON: name -> ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from typing import Any

import torch

from antipodes.cli.train import parse
from antipodes.data import Loader
from antipodes.runs.build import build_data, build_method
from antipodes.runs.records import read_records
from antipodes.runs.views import BatchMaker
from antipodes.training.loop import run_training
from antipodes.training.optimizers import optimizer


def bare(config: dict[str, Any]) -> tuple[float, float]:
    """Seconds of one epoch of bare steps, and of fetching and augmenting its views."""
    data = build_data(config["data"])
    method = build_method(config, data)
    method.train()
    views = BatchMaker(config, data, method)
    sgd = optimizer("sgd", method.network, 0.01, weight_decay=5e-4)
    batches = Loader(data, config["batch_size"], seed=0).epoch(0)
    step_seconds = view_seconds = 0.0
    while True:
        started = time.perf_counter()
        loaded = next(batches, None)
        if loaded is None:
            return step_seconds, view_seconds
        batch = views.batch(*loaded, (0,))
        ready = time.perf_counter()
        method.loss(method.network, batch, 0.5).backward()
        sgd.step()
        sgd.zero_grad()
        method.after_step()
        view_seconds += ready - started
        step_seconds += time.perf_counter() - ready


def loop(config: dict[str, Any]) -> float:
    """Seconds of one epoch of the training loop, without what a run does once."""
    with tempfile.TemporaryDirectory() as folder:
        run = run_training(config | {"out": f"{folder}/run", "epochs": 1, "knn_every": 0, "warmup": 0.0})
        rate = next(line["images_per_second"] for line in read_records(run.folder) if line["kind"] == "epoch")
    steps = config["data"]["limit"] // config["batch_size"]
    return steps * config["batch_size"] / rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--encoder", default="resnet18-slim")
    parser.add_argument("--images", type=int, default=2560)
    parser.add_argument("--rounds", type=int, default=5)
    call = parser.parse_args()
    config, _ = parse(["--data", call.data, "--data.limit", str(call.images), "--encoder", call.encoder])
    bare(config)  # warms caches and allocator
    rows = []
    for number in range(call.rounds):
        step, views = bare(config)
        whole = loop(config)
        rows.append((step, views, whole))
        print(f"round {number + 1}: bare step {step:.2f} s, views {views:.2f} s, loop {whole:.2f} s")
    images = call.images // config["batch_size"] * config["batch_size"]
    print(f"{call.encoder} on {call.data}, {torch.get_num_threads()} thread(s), batch {config['batch_size']}:")
    print(f"  loop: {images / statistics.median(row[2] for row in rows):,.0f} images/s, two views each")
    ratios = {
        "loop_over_bare_step_and_views": statistics.median(whole / (step + views) for step, views, whole in rows),
        "loop_over_bare_step": statistics.median(whole / step for step, _, whole in rows),
        "augmentation_share_of_step": statistics.median(views / (step + views) for step, views, _ in rows),
    }
    print(json.dumps({name: round(value, 3) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()
