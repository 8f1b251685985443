"""Does an encoder's own similarity pay as a finder of false negatives, once most of what it finds is right?

    python -m research.right_flags --cache FOLDER --seeds 0 1 2 3 4 --out research/results/right_flags.json

Earlier studies found no gain where most flags were wrong. Here they are right: two settings whose vectors find photos
of the same class among their nearest ones from the first step on, and 60 visits of every sample, so that GloFND's
thresholds settle with both of its starts.

cifar10: 3,000 photos; vectors of ImageNet's EfficientNet-Lite0, frozen, at 128 pixels.
fashion-mnist: 3,000 photos; their pixels, which no network has seen.

Both are reduced to the 128 directions of largest variance. Of every photo a fixed number of augmented views is embedded
once (`research/frozen_views.py`); a network of two layers and a projection head is trained on pairs of them.

1. Part `precision`: of the pairs that the dataset's own quantile flags in the vectors, before any training, the share
   that is right.
2. Part `choice`: every variant at every temperature with the seeds 100 and 101, scored on validation photos after 30
   and 60 epochs. The temperature and number of epochs of the best mean linear probe are the variant's own.
3. Part `test`: with this temperature and the seeds of the report, scored on test photos after the same numbers of
   epochs; the chosen one is reported, and that of 60 epochs next to it.

All variants that flag a share flag the true one, the share of pairs of one class; those named 2 % flag fewer, more of
which are right. IFND clusters the features, with 1, 2 and 5 times as many clusters as classes, once an epoch.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from antipodes import FNC, IFND, Chance, GloFND, InfoNCE, Oracle, Policy
from antipodes.data import TensorImages, open_dataset
from research.frozen_views import (
    Embed,
    Network,
    Photos,
    Split,
    Training,
    cached,
    draw_two_views,
    efficientnet,
    embed_views,
    linear,
    neighbour_vote,
    quality,
    quantile_precision,
    reduce_width,
    same_class_share,
    train_step,
)
from research.records import Key, Records, best_setting

CHOICE_SEEDS = (100, 101)
TEMPERATURES = (0.1, 0.2, 0.5)
CHOSEN_BY = "linear, features"
SIZES = {"learn": 3000, "choice": 1500, "test": 2500}
WIDTH = 128
FEW = 0.02
"""The smaller share, about a fifth of the true one."""

Finder = Literal["fnc", "glofnd", "glofnd-paper", "ifnd", "chance", "labels"]


@dataclass(frozen=True)
class Variant:
    """What is different from plain training.

    Args:
        finder: What says which candidates are false negatives.
        treatment: What happens to them.
        share: The share that is flagged, where a finder takes one; None is the true share.
    """

    finder: Finder | None = None
    treatment: Literal["eliminate", "attract"] = "eliminate"
    share: float | None = None


VARIANTS: dict[str, Variant] = {
    "plain": Variant(),
    "labels dropped (Oracle)": Variant("labels"),
    "labels pulled (SupCon)": Variant("labels", "attract"),
    "GloFND dropped": Variant("glofnd"),
    "FNC dropped": Variant("fnc"),
    "IFND dropped": Variant("ifnd"),
    "as many by chance, dropped": Variant("chance"),
    "GloFND, paper's start, dropped": Variant("glofnd-paper"),
    "GloFND pulled": Variant("glofnd", "attract"),
    "FNC pulled": Variant("fnc", "attract"),
    "IFND pulled": Variant("ifnd", "attract"),
    "GloFND 2 % dropped": Variant("glofnd", share=FEW),
    "GloFND 2 % pulled": Variant("glofnd", "attract", share=FEW),
    "GloFND, paper's start, pulled": Variant("glofnd-paper", "attract"),
}


@dataclass(frozen=True)
class Dataset:
    """How photos of a dataset become vectors.

    Args:
        size: Side of the views in pixels.
        views: How many augmented views of every training photo are embedded.
    """

    size: int
    views: int


DATASETS = {"cifar10": Dataset(size=128, views=6), "fashion-mnist": Dataset(size=32, views=16)}


def read_photos(name: str, root: Path | None) -> dict[str, Photos]:
    """Photos for training and validation from the training set, and for the test from the test set."""
    given = None if root is None else str(root)
    train, test = (open_dataset(name, split=split, root=given) for split in ("train", "test"))
    learn, choice = SIZES["learn"], SIZES["choice"]
    parts = {"learn": (train, slice(0, learn)), "choice": (train, slice(learn, learn + choice))}
    parts["test"] = (test, slice(0, SIZES["test"]))
    found = {}
    for part, (data, rows) in parts.items():
        assert isinstance(data, TensorImages)
        assert data.labels is not None
        found[part] = Photos(data.images[rows], data.labels[rows])
    return found


def encoder_of(name: str) -> Embed:
    """The frozen encoder of a dataset's photos."""
    return efficientnet() if name == "cifar10" else lambda images: images.mean(1).flatten(1)


def make_data(name: str, root: Path | None) -> list[Split]:
    """Embed a dataset's views and keep their main directions: training, validation, test."""
    photos, embed, how = read_photos(name, root), encoder_of(name), DATASETS[name]
    parts = {part: (how.views if part == "learn" else 0, seed) for seed, part in enumerate(photos)}
    found = [embed_views(photos[part], embed, how.size, views, seed) for part, (views, seed) in parts.items()]
    return reduce_width(found, WIDTH)


def make_policy(variant: Variant, labels: Tensor, seed: int) -> Policy | None:
    """The policy of a variant; shares are the true one if the variant has none of its own."""
    alpha = same_class_share(labels) if variant.share is None else variant.share
    if variant.finder == "fnc":
        return FNC(alpha)
    if variant.finder == "glofnd":
        return GloFND(len(labels), alpha)
    if variant.finder == "glofnd-paper":
        return GloFND(len(labels), alpha, lr=0.05, initial="one")
    if variant.finder == "ifnd":
        classes = int(labels.max()) + 1
        return IFND(len(labels), clusters=(classes, 2 * classes, 5 * classes), seed=seed)
    if variant.finder == "chance":
        return Chance(alpha, seed=seed)
    return None if variant.finder is None else Oracle(labels)


def train(
    name: str, learn: Split, scored: Split, training: Training, temperature: float, seed: int
) -> dict[str, dict[str, float]]:
    """Train a variant; returns its scores and how right it flags, by epoch."""
    network = Network(learn.plain.shape[1], training, seed)
    policy = make_policy(VARIANTS[name], learn.labels, seed)
    loss = InfoNCE(temperature, policy, VARIANTS[name].treatment)
    optimizer = torch.optim.Adam(network.parameters(), training.learning_rate)
    draw = torch.Generator().manual_seed(1000 + seed)
    found: dict[str, dict[str, float]] = {}
    for epoch in range(training.epochs):
        if policy is not None and policy.due(epoch):
            policy.fit(network.both(learn.plain)[0], epoch / training.epochs)
        flags = FlagCount(learn.labels)
        loss.observer = flags if policy is not None and (epoch + 1) % training.every == 0 else None
        for rows in torch.randperm(len(learn.labels), generator=draw).split(training.batch_size):
            views = draw_two_views(learn.views, rows, draw)
            train_step(network, loss, optimizer, views, rows, epoch / training.epochs)
        if (epoch + 1) % training.every == 0:
            embeddings = network.both(learn.plain)[1]
            precision = quantile_precision(embeddings, learn.labels, same_class_share(learn.labels))
            found[str(epoch + 1)] = {
                **quality(network, learn, scored),
                "precision of the quantile": precision,
                **flags.summary(),
            }
    return found


class FlagCount:
    """Counts the flags of some steps, pooled over all pairs."""

    def __init__(self, labels: Tensor) -> None:
        self.labels, self.counts = labels, dict.fromkeys(("true", "flagged", "found"), 0.0)

    def __call__(self, observation: Any) -> None:
        """Add a step."""
        scores = observation.score(self.labels)
        for name in self.counts:
            self.counts[name] += scores[name]

    def summary(self) -> dict[str, float]:
        """Precision and recall of the flags in per cent; nothing where nothing was flagged."""
        if not self.counts["flagged"]:
            return {}
        found = 100 * self.counts["found"]
        return {"flag precision": found / self.counts["flagged"], "flag recall": found / self.counts["true"]}


def complete(records: Records, name: str, data: list[Split], training: Training, options: argparse.Namespace) -> None:
    """Do the missing runs on one dataset."""
    common = {"dataset": name}
    learn, choice, test = data
    share = same_class_share(learn.labels)

    def untrained(key: Key) -> dict[str, Any]:
        if key["part"] == "precision":
            return {"precision": quantile_precision(learn.plain, learn.labels, key["share"])}
        given = learn.plain, learn.labels, test.plain, test.labels
        scores = {"linear, features": linear(*given), "kNN, features": neighbour_vote(*given)}
        return {**scores, "kNN, embeddings": scores["kNN, features"]}

    keys: list[dict[str, Any]] = [
        {**common, "part": "precision", "variant": "the vectors", "seed": 0, "share": round(each, 4)}
        for each in (0.01, FEW, 0.05, share)
    ]
    records.complete([*keys, {**common, "part": "test", "variant": "the vectors themselves", "seed": 0}], untrained)

    def run(key: Key) -> dict[str, Any]:
        scored = choice if key["part"] == "choice" else test
        return train(key["variant"], learn, scored, training, key["temperature"], key["seed"])

    def keys_of(part: str, names: Iterable[str], temperatures: Iterable[float], seeds: Iterable[int]) -> list[Key]:
        return [
            {**common, "part": part, "variant": variant, "temperature": temperature, "seed": seed}
            for variant in names
            for temperature in temperatures
            for seed in seeds
        ]

    for variant in options.variants:
        records.complete(keys_of("choice", [variant], TEMPERATURES, CHOICE_SEEDS), run)
        for epochs in (None, training.epochs):
            best = best_setting(records.runs, CHOSEN_BY, {**common, "variant": variant}, epochs)
            records.complete(keys_of("test", [variant], [best[0]], options.seeds), run)


def main() -> None:
    """Do the missing runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="folder that keeps the vectors of the views")
    parser.add_argument("--data", type=Path, help="where CIFAR-10 and Fashion-MNIST are looked for and kept")
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=list(DATASETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=Path("research/results/right_flags.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    training = Training()
    settings = {**asdict(training), "sizes": SIZES, "width": WIDTH, "temperatures": TEMPERATURES}
    sources = {"cifar10": "official", "fashion-mnist": "official"}
    records = Records(options.out, "right flags", settings, sources)
    for name in options.datasets:
        data = cached(options.cache / f"right_flags_{name}.pt", partial(make_data, name, options.data))
        complete(records, name, data, training, options)


if __name__ == "__main__":
    main()
