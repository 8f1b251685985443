"""Re-clustering after an epoch against faiss: three numbers of clusters, time and inertia.

Features: 500 directions in 100 groups of 5 (a random unit vector for the group plus 0.7 of one for the member), plus a
random unit vector per row; `no clusters` instead draws rows from a Gaussian whose j-th axis has the deviation j^-1/2.
One epoch of drift adds a random linear map of the row and a random vector of the same length, so that the mean cosine
of a row to itself is .95.

Every round clusters the old features (not timed), then times on the drifted ones
- antipodes: one call for all numbers of clusters from the old labels, with its defaults;
- faiss: `Kmeans(niter=20, spherical=True)` from scratch for each number. Its defaults look at no more than 256 rows a
  cluster, and the search that would give the labels is not timed: both are to its favour.
One thread, process CPU time. Inertia is the mean of 1 - cosine of all rows to the nearest centroid, over the rounds.

    python benchmarks/clustering.py [--quick]

The last line is JSON: name -> how many times faster than faiss, and the inertia as a multiple of faiss's (the number of
clusters where it is worst). faiss is not needed by the package: pip install faiss-cpu.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

os.environ["OMP_NUM_THREADS"] = "1"  # before faiss brings its own threads

import faiss
import torch
from torch import Tensor

from antipodes.clustering import BLOCK, spherical_kmeans
from antipodes.pairs import normalise

CLUSTERS = (100, 200, 500)
COSINE = 0.95


def unit(rows: int, width: int, generator: torch.Generator) -> Tensor:
    return normalise(torch.randn(rows, width, generator=generator))


def features(rows: int, width: int, clustered: bool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of length 1 before and after one epoch."""
    if clustered:
        groups, members = unit(100, width, generator), unit(500, width, generator)
        member = torch.randint(0, 500, (rows,), generator=generator)
        old = normalise(groups[member // 5] + 0.7 * members[member] + unit(rows, width, generator))
    else:
        old = normalise(torch.randn(rows, width, generator=generator) * torch.arange(1, width + 1) ** -0.5)
    turned = normalise(old @ torch.randn(width, width, generator=generator))
    length = ((COSINE**-2 - 1) / 2) ** 0.5
    return old, normalise(old + length * (turned + unit(rows, width, generator)))


def inertia(rows: Tensor, centroids: Tensor) -> float:
    best = [(part @ normalise(centroids).T).amax(1) for part in rows.split(BLOCK)]
    return 1 - torch.cat(best).mean(dtype=torch.float64).item()


def race(old: Tensor, new: Tensor, rounds: int) -> tuple[float, float, float, list[float]]:
    """Median seconds of antipodes and of faiss, the median of their ratios, and the inertia ratio of each number."""
    ours, theirs = [], []
    sums = torch.zeros(2, len(CLUSTERS), dtype=torch.float64)
    for seed in range(rounds):
        labels = [found.labels for found in spherical_kmeans(old, CLUSTERS, seed=seed)]
        start = time.process_time()
        warm = spherical_kmeans(new, CLUSTERS, labels=labels)
        ours.append(time.process_time() - start)
        sums[0] += torch.tensor([inertia(new, found.centroids) for found in warm])
        array = new.numpy()
        cold = [faiss.Kmeans(new.shape[1], k, niter=20, spherical=True, seed=seed + 1) for k in CLUSTERS]
        start = time.process_time()
        for one in cold:
            one.train(array)
        theirs.append(time.process_time() - start)
        sums[1] += torch.tensor([inertia(new, torch.from_numpy(one.centroids)) for one in cold])
    ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    return statistics.median(ours), statistics.median(theirs), ratio, (sums[0] / sums[1]).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of each instead of three")
    rounds = 1 if parser.parse_args().quick else 3
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    ratios = {}
    print(f"50,000 rows, {CLUSTERS} clusters, one thread, {rounds} rounds")
    print(f"{'':24}{'antipodes':>12}{'faiss':>10}{'faster':>10}   inertia / faiss's")
    for width, clustered in ((128, True), (512, True), (128, False)):
        name = f"{width} wide" + ("" if clustered else ", no clusters")
        old, new = features(50_000, width, clustered, generator)
        ours, theirs, ratio, worse = race(old, new, rounds)
        print(f"{name:24}{ours:10.2f} s{theirs:8.2f} s{ratio:9.1f}x   " + " ".join(f"{one:.4f}" for one in worse))
        key = f"recluster_{width}" + ("" if clustered else "_no_clusters")
        ratios[key], ratios[f"{key}_inertia"] = round(ratio, 2), round(max(worse), 4)
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
