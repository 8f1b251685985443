"""What Ring adds to a MoCo step with a full queue, against the same step without a policy and against a full sort.

    python benchmarks/ring.py [--encoder resnet18-slim] [--queue 65536] [--steps 24] [--threads 1]

The methods start alike, with a queue full of random keys, and take turns on the same views, batch after batch, in one
process; a ratio is the median over steps of CPU times, or with several threads of elapsed times. The sort is the
paper's: all similarities of an anchor in order, of which the ring's ranks are a slice; it takes part in every fourth
step, being slow. Ends with one line of JSON: name -> ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence

import torch
from torch.nn.functional import normalize

from antipodes import InfoNCE, encoders
from antipodes.encoders.heads import Head
from antipodes.methods import Batch, InputViews, MoCo, Tower, Towers
from antipodes.negatives import Policy, Ring
from antipodes.pairs import Pairs, Rule
from antipodes.training.optimizers import optimizer

INNER, OUTER = 0.1, 0.1  # percentiles 90 to 99, where the ring stays
BATCH = 256


class SortedRing(Policy):
    """The same ring by a sort of all similarities."""

    def judge(self, pairs: Pairs, progress: float) -> Sequence[Rule]:
        """Take the bounds from the places where the ring begins and ends."""
        keys, ids = pairs.keys()
        similarities = pairs.anchors @ keys.T
        similarities[pairs.anchor_ids[:, None] == ids] = -torch.inf
        ranked = similarities.sort(dim=1, descending=True).values
        count = len(keys) - 1  # the queue holds each anchor once
        first, last = int(INNER * OUTER * count), int(OUTER * count)
        high, low = ((ranked[:, place - 1] + ranked[:, place]) / 2 for place in (first, last))
        return [Rule(low=low, high=high)]


POLICIES = {"none": lambda: None, "ring": lambda: Ring((OUTER, OUTER), INNER), "sort": SortedRing}


def build(name: str, call: argparse.Namespace) -> MoCo:
    torch.manual_seed(0)
    encoder = encoders.create(call.encoder)
    policy = POLICIES[name]()
    head = Head("mlp2", hidden=2048, centred=policy is not None and policy.needs.order).build(encoder.num_features)
    method = MoCo(Towers({"image": Tower(encoder, head)}), InfoNCE(0.2, policy), queue_size=call.queue).train()
    generator = torch.Generator().manual_seed(0)
    method.queue.keys.copy_(normalize(torch.randn(call.queue, 128, generator=generator), dim=1))
    method.queue.ids.copy_(torch.randperm(call.queue, generator=generator))
    return method


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="resnet18-slim")
    parser.add_argument("--queue", type=int, default=65_536)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--threads", type=int, default=1)
    call = parser.parse_args()
    if call.steps < 4:
        parser.error("--steps must be at least 4: the sort takes part in every fourth")
    torch.set_num_threads(call.threads)
    clock = time.process_time if call.threads == 1 else time.perf_counter
    methods = {name: build(name, call) for name in POLICIES}
    optimizers = {name: optimizer("sgd", method.network, 0.01) for name, method in methods.items()}
    seconds: dict[str, dict[int, float]] = {name: {} for name in methods}
    generator = torch.Generator().manual_seed(1)
    kept = {}
    for step in range(call.steps + 1):  # the first warms up
        views = list(torch.randn(2, BATCH, 3, 32, 32, generator=generator))
        batch = Batch(torch.arange(BATCH) + BATCH * step, {"image": InputViews(views)})
        names = [name for name in methods if name != "sort" or step % 4 == 0]
        turn = names[step % len(names) :] + names[: step % len(names)]
        for name in turn:
            started = clock()
            methods[name].loss(methods[name].network, batch, 1.0).backward()
            optimizers[name].step()
            optimizers[name].zero_grad()
            if step:
                seconds[name][step] = clock() - started
            methods[name]._fresh.clear()  # the queue stays as it is, full of other samples
            kept[name] = methods[name].statistics()["kept_per_anchor"]
    assert abs(kept["ring"] - kept["sort"]) < 0.1, kept  # bounds of a sort can lose a key to rounding
    plain = statistics.median(seconds["none"].values())
    setting = f"{call.encoder}, batch {BATCH}, {call.queue:,} keys, threads: {call.threads}"
    print(f"{setting}: {1000 * plain:.0f} ms a step")
    ratios = {}
    for name in ("ring", "sort"):
        ratios[name] = statistics.median(mine / seconds["none"][step] for step, mine in seconds[name].items())
        print(f"  {name:<5} {ratios[name]:.3f} of a step without a policy, {kept[name]:.0f} keys kept")
    ratios["ring_of_sort"] = ratios["ring"] / ratios["sort"]
    print(json.dumps({name: round(value, 3) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()
