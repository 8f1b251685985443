"""How many visits of a sample GloFND's thresholds need on frozen vectors, for both starts, compared with FNC.

    python -m research.glofnd_settling --seeds 0 1 2 3 4 --out research/results/glofnd_settling.json

Vectors of 100 classes do not move, so every sample has one true threshold: the quantile 1 - alpha of its similarities
to all others. Batches of about 128 are drawn without replacement, each epoch is one visit of every sample. At the 5th,
20th and 60th visit: the mean absolute error of the thresholds that judge the batches, and of what they flag there the
share, and precision, recall and F1 per anchor, averaged over batches. FNC takes the quantiles of each batch.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from antipodes import FNC, GloFND, Pairs
from research.records import Key, Records

VISITS = (5, 20, 60)
VARIANTS: dict[str, dict[str, Any] | None] = {
    "GloFND, quantile start, lr .01 (default)": {},
    "GloFND, start at 1, lr .05 (glofnd-paper)": {"initial": "one", "lr": 0.05},
    "FNC": None,
}


@dataclass(frozen=True)
class Settings:
    """The vectors and the batches."""

    classes: int = 100
    samples: int = 5000
    dim: int = 128
    noise: float = 1.8
    batch_size: int = 128
    alpha: float = 0.01


def draw_vectors(settings: Settings, seed: int) -> tuple[Tensor, Tensor]:
    """Unit vectors (n, D) around a random centre of each class, and their classes (n,)."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(settings.samples) % settings.classes
    centres = F.normalize(torch.randn(settings.classes, settings.dim, generator=draw), dim=1)
    spread = settings.noise * torch.randn(settings.samples, settings.dim, generator=draw) / settings.dim**0.5
    return F.normalize(centres[labels] + spread, dim=1), labels


def flag_scores(flagged: Tensor, same: Tensor, allowed: Tensor) -> dict[str, float]:
    """Share flagged and F1 per anchor in per cent, of flags (A, C), by which pairs are of one class.

    F1 is the harmonic mean of the mean precision and the mean recall over anchors; an anchor without a flag has
    precision 1, one without a false negative recall 1.
    """
    flagged, same = flagged & allowed, same & allowed
    right, count, wanted = (flagged & same).sum(1).double(), flagged.sum(1), same.sum(1)
    precision = torch.where(count > 0, right / count, 1.0).mean()
    recall = torch.where(wanted > 0, right / wanted, 1.0).mean()
    share = flagged.sum() / allowed.sum()
    return {
        "share flagged": 100 * float(share),
        "precision": 100 * float(precision),
        "recall": 100 * float(recall),
        "f1": 100 * float(2 * precision * recall / (precision + recall)),
    }


def settle(name: str, settings: Settings, seed: int) -> dict[str, dict[str, float]]:
    """Visit all samples 60 times; returns the scores by number of visits."""
    vectors, labels = draw_vectors(settings, seed)
    similarity, same = vectors @ vectors.T, labels[:, None] == labels
    others = ~torch.eye(len(vectors), dtype=torch.bool)
    below = similarity.masked_fill(~others, -torch.inf)
    true = below.topk(int(settings.alpha * (len(vectors) - 1)) + 1, dim=1).values[:, -1]
    options = VARIANTS[name]
    policy = FNC(settings.alpha) if options is None else GloFND(len(vectors), settings.alpha, **options)
    draw = torch.Generator().manual_seed(1000 + seed)
    found: dict[str, dict[str, float]] = {}
    for visit in range(1, max(VISITS) + 1):
        seen, parts = torch.empty_like(true), []
        for rows in torch.randperm(len(vectors), generator=draw).tensor_split(len(vectors) // settings.batch_size):
            (rule,) = policy.judge(Pairs(vectors[rows], rows, torch.ones(len(rows))), 1.0)
            assert rule.ceiling is not None
            seen[rows] = rule.ceiling
            if visit in VISITS:
                flagged = similarity[rows][:, rows] > rule.ceiling[:, None]
                parts.append(flag_scores(flagged, same[rows][:, rows], others[rows][:, rows]))
        if visit in VISITS:
            scores = {each: sum(part[each] for part in parts) / len(parts) for each in parts[0]}
            found[str(visit)] = {"mae": float((seen - true).abs().mean()), **scores}
    return found


def main() -> None:
    """Do the missing runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=Path("research/results/glofnd_settling.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = Settings()
    records = Records(options.out, "glofnd settling", asdict(settings), {"made by": "glofnd_settling.draw_vectors"})

    def run(key: Key) -> dict[str, Any]:
        return settle(key["variant"], settings, key["seed"])

    records.complete([{"variant": name, "seed": seed} for name in VARIANTS for seed in options.seeds], run)


if __name__ == "__main__":
    main()
