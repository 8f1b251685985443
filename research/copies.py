"""Photos with five changed copies each: what helps against duplicates, bursts and frames.

    python -m research.copies --cache FOLDER --seeds 0 1 2 3 4 --out research/results/copies.json

480 photos of clothes in 10 classes; every one is there six times: as it is, cropped, mirrored, recompressed, darker or
brighter, and blurred. `antipodes audit` looks for the copies in the folder, and its groups.parquet is what the policy
`Known` reads. A small network is trained on augmented views, embedded once by ImageNet's EfficientNet-Lite0, frozen, at
64 pixels (`research/frozen_views.py`); other photos of the 10 classes are for validation and test.

Two orders of the 2,880 rows: `shuffled`, where a batch of 240 holds 0.4 copies of an anchor's photo, and `bursts`,
where the six of a photo are always in one batch, as frames of a film read in order are: 5 copies.

1. Part `audit`: how many of the pairs of copies the audit finds, and how many of its pairs are right.
2. Parts `choice` and `test`: every variant at every temperature with the seeds 100 and 101, scored on validation photos
   after 15 and 30 epochs; then at its own best with the seeds of the report, scored on test photos.

Variants that flag a share flag the true one: 5 of 2,879 where the rows are shuffled, 5 of 239 in bursts. `deduplicated`
trains on the 480 photos alone, with as many steps and as many different views in all.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from antipodes import Chance, GloFND, InfoNCE, Known, Policy
from research.frozen_views import (
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
    reduce_width,
    train_step,
)
from research.records import DATA, Key, Records, best_setting, sha256

CHOICE_SEEDS = (100, 101)
TEMPERATURES = (0.1, 0.2, 0.5)
CHOSEN_BY = "linear, features"
PHOTOS, COPIES, CHOICE = 480, 6, 1000
SIDE, SIZE, VIEWS, WIDTH = 96, 64, 4, 128
ORDERS = ("shuffled", "bursts")
Finder = Literal["audit", "glofnd", "chance"]


@dataclass(frozen=True)
class Variant:
    """What is different from plain training.

    Args:
        finder: What says which candidates are copies.
        treatment: What happens to them.
        deduplicated: Train on the photos without their copies.
    """

    finder: Finder | None = None
    treatment: Literal["eliminate", "attract"] = "eliminate"
    deduplicated: bool = False


VARIANTS: dict[str, Variant] = {
    "plain": Variant(),
    "audit's copies dropped": Variant("audit"),
    "audit's copies pulled": Variant("audit", "attract"),
    "GloFND dropped": Variant("glofnd"),
    "GloFND pulled": Variant("glofnd", "attract"),
    "as many by chance, dropped": Variant("chance"),
    "deduplicated": Variant(deduplicated=True),
}


def read_clothes(path: Path) -> tuple[list[Image.Image], Tensor]:
    """All photos of all splits as squares, in a fixed random order, and their classes (n,)."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        kinds = [name.split("/")[-2] for name in names]
        numbers = {kind: number for number, kind in enumerate(sorted(set(kinds)))}
        order = torch.randperm(len(names), generator=torch.Generator().manual_seed(11)).tolist()
        opened = [Image.open(io.BytesIO(archive.read(names[place]))).convert("RGB") for place in order]
    return [ImageOps.fit(each, (SIDE, SIDE)) for each in opened], torch.tensor([numbers[kinds[each]] for each in order])


def change(photo: Image.Image, draw: torch.Generator) -> list[Image.Image]:
    """The photo and its changed copies: cropped, mirrored, recompressed, darker or brighter, blurred."""
    part = round(SIDE * (0.75 + 0.15 * float(torch.rand((), generator=draw))))
    left, top = torch.randint(SIDE - part + 1, (2,), generator=draw).tolist()
    compressed = io.BytesIO()
    photo.save(compressed, "JPEG", quality=int(torch.randint(15, 40, (), generator=draw)))
    light = 0.65 if torch.rand((), generator=draw) < 0.5 else 1.4
    return [
        photo,
        photo.crop((left, top, left + part, top + part)).resize((SIDE, SIDE), Image.Resampling.BICUBIC),
        ImageOps.mirror(photo),
        Image.open(compressed).convert("RGB"),
        ImageEnhance.Brightness(photo).enhance(light),
        photo.filter(ImageFilter.GaussianBlur(1.2)),
    ]


def as_tensor(photos: list[Image.Image]) -> Tensor:
    """Images (n, 3, SIDE, SIDE) uint8."""
    return torch.stack([torch.from_numpy(np.array(each)).permute(2, 0, 1) for each in photos])


def make_copies(photos: list[Image.Image]) -> list[Image.Image]:
    """Every photo and its copies, one after the other."""
    draw = torch.Generator().manual_seed(12)
    return [each for photo in photos for each in change(photo, draw)]


def make_data(path: Path) -> list[Split]:
    """Embed views: of the copies; of the photos alone, as many in all; of photos for validation; for the test."""
    photos, labels = read_clothes(path)
    embed, copies, rest = efficientnet(), as_tensor(make_copies(photos[:PHOTOS])), as_tensor(photos[PHOTOS:])
    own, other = labels[:PHOTOS], labels[PHOTOS:]
    parts = [
        (Photos(copies, own.repeat_interleave(COPIES)), VIEWS),
        (Photos(copies[::COPIES], own), VIEWS * COPIES),
        (Photos(rest[:CHOICE], other[:CHOICE]), 0),
        (Photos(rest[CHOICE:], other[CHOICE:]), 0),
    ]
    found = [embed_views(part, embed, SIZE, views, seed) for seed, (part, views) in enumerate(parts)]
    return reduce_width(found, WIDTH)


def audit(path: Path, folder: Path) -> Path:
    """Write the copies into a folder, and let `antipodes audit` look for them; returns its groups."""
    groups = folder / "audit" / "groups.parquet"
    if not groups.is_file():
        (folder / "photos").mkdir(parents=True, exist_ok=True)
        for row, photo in enumerate(make_copies(read_clothes(path)[0][:PHOTOS])):
            photo.save(folder / "photos" / f"{row:05d}.png")
        command = (sys.executable, "-m", "antipodes", "audit", str(folder / "photos"), "--out", str(folder / "audit"))
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return groups


def audit_scores(groups: Tensor) -> dict[str, float]:
    """Precision and recall of the pairs that groups (n,) join, negative ones alone, in per cent."""
    photo = torch.arange(len(groups)) // COPIES
    joined = (groups[:, None] == groups) & (groups[:, None] >= 0)
    joined.fill_diagonal_(False)
    true = photo[:, None] == photo
    found = int((joined & true).sum())
    return {
        "precision": 100 * found / int(joined.sum()),
        "recall": 100 * found / (int(true.sum()) - len(groups)),
        "photos found whole": 100
        * float((joined & true).sum(1).eq(COPIES - 1).view(-1, COPIES).all(1).double().mean()),
    }


def flagged_share(order: str, training: Training) -> float:
    """The share of a sample's candidates that are its copies."""
    return (COPIES - 1) / ((PHOTOS * COPIES if order == "shuffled" else training.batch_size) - 1)


def make_policy(variant: Variant, groups: Path, share: float, seed: int) -> Policy | None:
    """The policy of a variant."""
    if variant.finder == "audit":
        return Known.read(groups, num_samples=PHOTOS * COPIES)
    if variant.finder == "glofnd":
        return GloFND(PHOTOS * COPIES, share)
    return None if variant.finder is None else Chance(share, seed=seed)


def batches(together: bool, rows: int, batch_size: int, draw: torch.Generator) -> Iterator[Tensor]:
    """The rows of an epoch's batches; together: all copies of a photo come in one batch."""
    if not together:
        yield from torch.randperm(rows, generator=draw).split(batch_size)
    else:
        for photos in torch.randperm(rows // COPIES, generator=draw).split(batch_size // COPIES):
            yield (photos[:, None] * COPIES + torch.arange(COPIES)).flatten()


def train(
    key: Key, learn: Split, alone: Split, scored: Split, groups: Path, training: Training
) -> dict[str, dict[str, float]]:
    """Train a variant; returns its scores by epoch of the rows with copies.

    Args:
        key: Variant, order, temperature and seed.
        learn: The photos with their copies.
        alone: The photos alone, which also train the probes, so that each photo counts once.
        scored: The photos that are scored.
        groups: The file of the audit.
        training: What all runs have in common.
    """
    variant, order, seed = VARIANTS[key["variant"]], key["order"], key["seed"]
    policy = make_policy(variant, groups, flagged_share(order, training), seed)
    loss = InfoNCE(key["temperature"], policy, variant.treatment)
    network = Network(learn.plain.shape[1], training, seed)
    optimizer = torch.optim.Adam(network.parameters(), training.learning_rate)
    draw, found = torch.Generator().manual_seed(1000 + seed), {}
    given, passes = (alone, COPIES) if variant.deduplicated else (learn, 1)  # as many steps in an epoch, of fewer rows
    for epoch in range(1, training.epochs + 1):
        for _ in range(passes):
            together = order == "bursts" and not variant.deduplicated
            for rows in batches(together, len(given.labels), training.batch_size, draw):
                views = draw_two_views(given.views, rows, draw)
                train_step(network, loss, optimizer, views, rows, (epoch - 1) / training.epochs)
        if epoch % training.every == 0:
            found[str(epoch)] = quality(network, alone, scored)
    return found


def complete(records: Records, data: list[Split], groups: Path, training: Training, options: Any) -> None:
    """Do the missing runs."""
    learn, alone, choice, test = data

    def untrained(key: Key) -> dict[str, Any]:
        if key["part"] == "audit":
            return audit_scores(Known.read(groups, num_samples=PHOTOS * COPIES).groups)
        given = alone.plain, alone.labels, test.plain, test.labels
        scores = {"linear, features": linear(*given), "kNN, features": neighbour_vote(*given)}
        return {**scores, "kNN, embeddings": scores["kNN, features"]}

    records.complete([{"part": "audit", "variant": "antipodes audit", "seed": 0}], untrained)
    keys = [{"part": "test", "variant": "the vectors themselves", "order": order, "seed": 0} for order in ORDERS]
    records.complete(keys, untrained)

    def run(key: Key) -> dict[str, Any]:
        return train(key, learn, alone, choice if key["part"] == "choice" else test, groups, training)

    def keys_of(common: Key, part: str, temperatures: Iterable[float], seeds: Iterable[int]) -> list[Key]:
        key = {**common, "part": part}
        return [{**key, "temperature": each, "seed": seed} for each in temperatures for seed in seeds]

    for order in options.orders:
        for name in options.variants:
            common = {"order": order, "variant": name}
            records.complete(keys_of(common, "choice", TEMPERATURES, CHOICE_SEEDS), run)
            best, _ = best_setting(records.runs, CHOSEN_BY, common)
            records.complete(keys_of(common, "test", [best], options.seeds), run)


def main() -> None:
    """Do the missing runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="folder that keeps copies, audit and vectors")
    parser.add_argument("--data", type=Path, default=DATA / "clothing_small_96.zip", help="photos in class folders")
    parser.add_argument("--orders", nargs="+", default=list(ORDERS), choices=ORDERS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--out", type=Path, default=Path("research/results/copies.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    training = Training(batch_size=240, epochs=30, every=15)
    shape = {"photos": PHOTOS, "copies": COPIES, "views": VIEWS, "width of vectors": WIDTH}
    settings = {**asdict(training), **shape, "temperatures": TEMPERATURES}
    records = Records(options.out, "copies", settings, {options.data.name: sha256(options.data)})
    data = cached(options.cache / "copies.pt", partial(make_data, options.data))
    complete(records, data, audit(options.data, options.cache / "copies"), training, options)


if __name__ == "__main__":
    main()
