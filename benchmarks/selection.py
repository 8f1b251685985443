"""Time row selections against a sort of the similarities: one thread, interleaved, medians of process time.

The last line is one line of JSON: name -> how many times faster than the sort. Run with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from antipodes.functional import select
from antipodes.functional.neighbours import nearest_of
from antipodes.functional.select import ROWS

ROUNDS = 5
INNER, OUTER = 0.1, 0.1  # percentiles 90 to 99


def race(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median milliseconds of every run, interleaved."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            start = time.process_time()
            run()
            times[name].append(1e3 * (time.process_time() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def embeddings(count: int, generator: torch.Generator) -> Tensor:
    return normalize(torch.randn(count, 128, generator=generator), dim=1)


def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    ratios: dict[str, float] = {}

    # a queue; the anchors' own ids are in it once
    anchors, queue = embeddings(256, generator), embeddings(65_536, generator)
    anchor_ids, queue_ids = torch.arange(256), torch.randperm(65_536, generator=generator)
    inputs = (anchors, queue, anchor_ids, queue_ids)
    allowed = len(queue) - 1
    first, last = int(INNER * OUTER * allowed), int(OUTER * allowed)
    similarities = anchors @ queue.T
    similarities[anchor_ids[:, None] == queue_ids] = -torch.inf
    ranks = torch.tensor([[last, first]]).expand(len(anchors), 2)
    scratch = torch.empty_like(similarities[:ROWS])

    def edges_given() -> None:
        for start in range(0, len(similarities), ROWS):
            block = similarities[start : start + ROWS]
            select.edges(scratch.copy_(block), ranks[: len(block)])

    times = race(
        {
            "sort, similarities given": lambda: similarities.sort(dim=1),
            "edges, similarities given": edges_given,
            "product and sort": lambda: (anchors @ queue.T).sort(dim=1),
            "ring": lambda: select.band_by_rank(*inputs, INNER * OUTER, OUTER),
            "top_share": lambda: select.top_share(*inputs, 0.01),
            "nearest 100": lambda: nearest_of(anchors, queue, 100, anchor_ids, queue_ids),
        }
    )
    for name, milliseconds in times.items():
        print(f"{name:28} {milliseconds:9.1f} ms")
    ratios["selection_of_given_similarities"] = times["sort, similarities given"] / times["edges, similarities given"]
    for name in ("ring", "top_share", "nearest 100"):
        ratios[f"{name.replace(' ', '_')}_with_product"] = times["product and sort"] / times[name]

    low, high = select.band_by_rank(*inputs, INNER * OUTER, OUTER)
    band = (similarities >= low[:, None]) & (similarities <= high[:, None])
    order = similarities.sort(dim=1, descending=True).indices[:, first:last]
    sorted_band = torch.zeros_like(band).scatter_(1, order, True)
    assert torch.equal(band, sorted_band), "the band does not hold the entries of the sort"

    print(json.dumps({name: round(ratio, 2) for name, ratio in ratios.items()}))


if __name__ == "__main__":
    main()
