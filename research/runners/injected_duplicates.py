"""Which detectors find copies that were put into an image-text dataset without a mark?

1. Copies of some photos, changed and with captions in other words, get rows of their own (`injection`).
2. Heads on locked towers are trained with CLIP's loss, in which a detector leaves out what it flags.
3. After training every row is an anchor among batches of the size of training, in both directions. What the detector
   flags is compared with the truth: the same photo under another row.

Copies are few: of 2,400 rows in batches of 512, of which 800 have a copy or are one, one anchor in 14 meets its copy. A
detector that flags a fixed share of every batch cannot be precise then, however well it ranks; `best f1 of one
threshold` says how well the similarities of images to texts tell copies apart, and so what a threshold could reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from PIL import Image
from torch import Tensor, nn

from antipodes.auditing.audited_photos import photos_with_vectors
from antipodes.auditing.embeddings import Vectors
from antipodes.auditing.files import photos_of_list
from antipodes.auditing.findings import audit_vectors
from antipodes.candidates.cross import cross_pairs
from antipodes.encoders.heads import head
from antipodes.evaluation.compared import judge_frozen
from antipodes.evaluation.protocols.false_negatives import flag_scores
from antipodes.losses import InfoNCE, Loss, TwoWay
from antipodes.negatives import FNC, IFND, GloFND, Guided, Known, Policy
from antipodes.negatives.flags import FlagCounts, count_flags
from antipodes.pairs import normalise
from antipodes.progress import progress_bar
from antipodes.seeding import generator
from antipodes.studies.definition import Study
from antipodes.studies.runner import Runner
from antipodes.studies.statistics import Line
from research.runners.figures import duplicates_figure
from research.runners.injection import CHANGES, Injected, inject

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, DIM = 512, 256  # of the heads
DRAWS = 5  # passes over all rows when flags are judged, each with other batches and captions
Towers = tuple[nn.Module, nn.Module]


@dataclass(frozen=True)
class InjectedDuplicates(Runner):
    """Train heads with a detector, and count how many injected copies it flags.

    Args:
        detector: `fnc` and `glofnd` go by similarities of images to texts, `ifnd` by clusters, `audit` by near
            duplicates among the photos' pixels, `guided` by how alike the locked image tower finds two photos, `known`
            by the truth itself, as a check.
        alpha: Of `fnc` and `glofnd`: the share that is flagged.
        clustered: Of `ifnd`: clusters of the anchors' own modality, of images, of texts, or of both.
        cluster_size: Of `ifnd`: how many rows a cluster has on average.
        margin: Of `guided`: photos whose similarity exceeds 1 - margin are flagged.
        data: A folder or zip of photos with captions.
        images: Use only so many photos; None all.
        share: Of the photos that are copied.
        epochs: Of training the heads.
        start: Share of training before the detector flags.
        batch_size: Rows a step.
        temperature: Of the loss.
        learning_rate: Of AdamW, with a cosine.
    """

    detector: Literal["fnc", "glofnd", "ifnd", "audit", "guided", "known"] = "glofnd"
    alpha: float = 0.001
    clustered: Literal["anchor", "image", "text", "image+text"] = "anchor"
    cluster_size: float = 4.0
    margin: float = 0.1
    data: str = "flickr8k"
    images: int | None = 2000
    share: float = 0.2
    epochs: int = 40
    start: float = 0.3
    batch_size: int = 512
    temperature: float = 0.05
    learning_rate: float = 5e-4

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be in (0, 1], got {self.share}: it is the share of photos that are copied")
        if self.epochs < 1 or self.batch_size < 2 or not self.cluster_size > 1:
            raise ValueError("epochs must be at least 1, batch_size at least 2 and cluster_size above 1")

    def run(self, seed: int) -> dict[str, float]:
        """Precision, recall and F1 of the flags in percent, the recall of every kind of change, and what is flagged."""
        injected = inject(self.data, self.images, self.share, seed)
        size = min(self.batch_size, len(injected.source))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            image, text = (
                head("mlp2", features.shape[1], WIDTH, DIM, activation="gelu")
                for features in (injected.images, injected.texts)
            )
        loss_fn = TwoWay(InfoNCE(self.temperature, self._policy(injected)), ("image_to_text", "text_to_image"))
        self._train((image, text), loss_fn, injected, size, seed)
        return self._score((image, text), loss_fn, injected, size, seed)

    def _policy(self, injected: Injected) -> Policy:
        """The detector, as it is before training."""
        rows = len(injected.source)
        if self.detector == "fnc":
            return FNC(self.alpha, self.start)
        if self.detector == "glofnd":
            return GloFND(rows, self.alpha, self.start, lr=0.05, initial="quantile", decay=True)
        if self.detector == "ifnd":
            clusters, every = max(2, round(rows / self.cluster_size)), max(1, round(self.epochs * self.start))
            return IFND(rows, (clusters,), acceptance="step", step_at=self.start, every=every, towers=self.clustered)
        if self.detector == "audit":
            return Known(audited_groups(injected))
        if self.detector == "guided":
            return Guided(self.margin)
        return Known(injected.source)

    def _train(self, towers: Towers, loss_fn: TwoWay, injected: Injected, size: int, seed: int) -> None:
        parameters = [parameter for tower in towers for parameter in tower.parameters()]
        optimiser = torch.optim.AdamW(parameters, self.learning_rate, weight_decay=0.01)
        rows = len(injected.source)
        steps = self.epochs * (rows // size)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        done = 0
        for epoch in range(self.epochs):
            if all(policy.due(epoch) for policy in loss_fn.policies()):
                self._fit(towers, loss_fn, injected, done / steps)
            for ids in batches(rows, size, generator("injected order", seed, epoch)):
                image = towers[0](injected.images[ids])
                text = towers[1](injected.drawn((seed, epoch), ids))
                seen = injected.images[ids]
                loss = loss_fn(image, text, ids, guide=(seen, seen), progress=done / steps)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
                done += 1
        self._fit(towers, loss_fn, injected, 1.0)

    @torch.no_grad()
    def _fit(self, towers: Towers, loss_fn: TwoWay, injected: Injected, progress: float) -> None:
        """Cluster the embeddings again, where the detector goes by clusters."""
        if not any(policy.needs.fits for policy in loss_fn.policies()):
            return
        every = torch.arange(len(injected.source))
        texts = torch.stack([normalise(towers[1](injected.drawn((0, draw), every))) for draw in range(DRAWS)]).mean(0)
        known = {"image": normalise(towers[0](injected.images)), "text": normalise(texts)}
        for name, direction in loss_fn.directions.items():
            assert isinstance(direction, Loss)
            assert direction.negatives is not None
            chosen = name.partition("_to_")[0] if self.clustered == "anchor" else self.clustered
            direction.negatives.fit(torch.cat([known[tower] for tower in chosen.split("+")], 1), progress)

    @torch.no_grad()
    def _score(self, towers: Towers, loss_fn: TwoWay, injected: Injected, size: int, seed: int) -> dict[str, float]:
        images = normalise(towers[0](injected.images))
        counts: list[FlagCounts] = []
        anchors, similarities, same = [], [], []
        for draw in range(DRAWS):
            texts = normalise(towers[1](injected.drawn((seed, self.epochs, draw), torch.arange(len(images)))))
            for ids in batches(len(images), size, generator("injected batches", seed, draw)):
                for name, direction in loss_fn.directions.items():
                    one, other = (images, texts) if name.startswith("image") else (texts, images)
                    seen = normalise(injected.images[ids])
                    pairs = cross_pairs(one[ids], other[ids], ids, guide=(seen, seen))
                    assert isinstance(direction, Loss)
                    assert direction.negatives is not None
                    counts.append(count_flags(pairs, judge_frozen(direction.negatives, pairs), injected.source))
                    anchors.append(ids)
                    others = ~torch.eye(len(ids), dtype=torch.bool)
                    similarities.append((one[ids] @ other[ids].T)[others])
                    same.append((injected.source[ids][:, None] == injected.source[ids])[others])
        every = FlagCounts(*(torch.cat(parts, dim=-1) for parts in zip(*counts, strict=True)))
        found = flag_scores(every)
        scores = {name: found[f"flags pooled {name}"] for name in ("precision", "recall", "f1")}
        changes = self._changes(injected)[torch.cat(anchors)]
        for number, change in enumerate(CHANGES):
            chosen = (changes == number) & (every.true > 0)
            if bool(chosen.any()):
                scores[f"recall, {change}"] = 100 * float(every.found[:, chosen].sum() / every.true[chosen].sum())
        scores["flagged share, %"] = 100 * float(every.flagged.mean() / every.available.mean())
        scores["best f1 of one threshold"] = best_f1(torch.cat(similarities), torch.cat(same))
        return scores

    @staticmethod
    def _changes(injected: Injected) -> Tensor:
        """How the copy of every row was changed, (n,), of a copy and of its original; -1 for rows without one."""
        of_source = torch.full((int(injected.source.max()) + 1,), -1)
        copies = injected.changes >= 0
        of_source[injected.source[copies]] = injected.changes[copies]
        return of_source[injected.source]

    def facts(self) -> dict[str, str]:
        """What was measured on what."""
        many = "all photos" if self.images is None else f"{self.images:,} photos"
        return {
            "data": f"{many} of {self.data}, {100 * self.share:g} % of them copied: cropped, recompressed, or both",
            "towers": "EfficientNet-Lite0 and MiniLM, locked; heads trained",
            "training": f"{self.epochs} epochs, batches of {self.batch_size}, temperature {self.temperature:g}",
        }

    @staticmethod
    def figure(study: Study, lines: Sequence[Line]) -> Figure:
        """Precision, recall and F1 of every detector."""
        return duplicates_figure(study, lines)


def audited_groups(injected: Injected) -> Tensor:
    """The groups (n,) of near duplicates that an audit of the photos finds; it looks at no caption."""
    names = tuple(str(row) for row in range(len(injected.images)))
    vectors = Vectors(injected.images.float().numpy(), names)
    pictures = injected.pixels.permute(0, 2, 3, 1).numpy()
    photos = photos_of_list([Image.fromarray(picture) for picture in pictures])
    data = photos_with_vectors(photos, vectors, "the image tower")
    with progress_bar("copies", shown=False) as progress:
        proposed = data.proposals(progress)
        found = audit_vectors(vectors, verify=lambda a, b: data.agree(a, b, progress), proposed=proposed)
    return torch.from_numpy(found.groups)


def batches(count: int, size: int, draws: torch.Generator) -> Iterator[Tensor]:
    """The rows 0..count-1 in a random order, in whole batches."""
    order = torch.randperm(count, generator=draws)
    for start in range(0, count - size + 1, size):
        yield order[start : start + size]


def best_f1(similarities: Tensor, same: Tensor) -> float:
    """The highest F1 in percent that one threshold on similarities (p,) has, for pairs that are the same (p,) or not.

    Example:
        >>> best_f1(torch.tensor([0.9, 0.8, 0.1]), torch.tensor([True, False, True]))
        80.0
    """
    order = similarities.argsort(descending=True)
    right = same[order].double().cumsum(0)
    flagged = torch.arange(1, len(order) + 1, dtype=torch.float64)
    return 100 * float((2 * right / (flagged + same.sum())).max())
