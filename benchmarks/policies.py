"""What a policy adds to a training step, against the same step without one.

    python benchmarks/policies.py [--encoder resnet18-slim] [--data cifar10] [--steps 30]

All methods start alike and take turns on the same views, batch after batch, in one process and one thread; a ratio is
the median over steps of a policy's time over that of no policy. IFND also embeds and clusters the dataset every few
epochs: that is timed by itself and spread over the steps in between. Ends with one line of JSON: name -> ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

from antipodes.cli.train import parse
from antipodes.data import Loader
from antipodes.methods import Method
from antipodes.negatives import IFND
from antipodes.runs.build import build_data, build_method
from antipodes.runs.embedding import embed_dataset
from antipodes.runs.views import BatchMaker
from antipodes.training.optimizers import optimizer

POLICIES = {
    "none": ["--negatives", "none"],
    "glofnd": ["--negatives", "glofnd", "--negatives.alpha", "0.1"],
    "fnc": ["--negatives", "fnc", "--negatives.alpha", "0.1"],
    "oracle": ["--negatives", "oracle"],
    "ifnd": ["--negatives", "ifnd", "--negatives.acceptance", "constant"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--encoder", default="resnet18-slim")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--every", type=int, default=5, help="epochs between two clusterings of IFND")
    call = parser.parse_args()
    torch.set_num_threads(1)
    options = ["--data", call.data, "--data.limit", str(call.images), "--encoder", call.encoder]
    configs: dict[str, dict[str, Any]] = {name: parse([*options, *extra])[0] for name, extra in POLICIES.items()}
    data = build_data(configs["none"]["data"])
    methods: dict[str, Method] = {}
    for name, config in configs.items():
        torch.manual_seed(0)
        methods[name] = build_method(config, data).train()
    optimizers = {name: optimizer("sgd", method.network, 0.01) for name, method in methods.items()}
    views = BatchMaker(configs["none"], data, methods["none"])
    loader = Loader(data, configs["none"]["batch_size"], seed=0)

    ((_, ifnd),) = methods["ifnd"].policies()
    assert isinstance(ifnd, IFND)
    fits = []
    for _ in range(3):  # the first is cold, the others start from the last labels
        started = time.process_time()
        features = embed_dataset(methods["ifnd"].backbone(), data, preprocess=views.plain["image"])
        embedded = time.process_time()
        ifnd.fit(features, 0.5)
        fits.append((embedded - started, time.process_time() - embedded))

    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for step, loaded in zip(range(call.steps), loader.epoch(0), strict=False):
        batch = views.batch(*loaded, (step,))
        turn = list(methods)[step % len(methods) :] + list(methods)[: step % len(methods)]
        for name in turn:
            started = time.process_time()
            methods[name].loss(methods[name].network, batch, 0.9).backward()
            optimizers[name].step()
            optimizers[name].zero_grad()
            seconds[name].append(time.process_time() - started)
    plain = statistics.median(seconds["none"])
    epoch = plain * len(loader)
    print(f"{call.encoder} on {len(data):,} images of {call.data}, batch 256, one thread: {1000 * plain:.0f} ms a step")
    embedding, warm = fits[-1]
    print(f"IFND: embedding {embedding:.2f} s, clustering {warm:.2f} s ({fits[0][1]:.2f} s cold), epoch {epoch:.1f} s")
    ratios = {}
    for name in list(methods)[1:]:
        ratio = statistics.median(mine / base for mine, base in zip(seconds[name], seconds["none"], strict=True))
        ratios[f"{name}_step"] = ratio
        print(f"  {name:<8} {ratio:.3f} of a step without a policy")
    ratios["ifnd_clustering_per_epoch"] = 1 + fits[-1][1] / epoch
    ratios[f"ifnd_embedding_and_clustering_every_{call.every}_epochs"] = 1 + sum(fits[-1]) / epoch / call.every
    print(json.dumps({name: round(value, 4) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()
