"""The table of docs/rules.md: every paper's line is built, called in its own form, trained on and held to something."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import antipodes
from antipodes import HardPairs, InfoNCE, LocalAggregation, TwoWay
from antipodes.losses import LossModule
from tests.cases import every
from tests.reference import debiased, losses, modalities, sane
from tests.reference.hard_pairs import hard_pairs

PAGE = (Path(__file__).parents[1] / "docs" / "rules.md").read_text().partition("## Papers as rules")[2]
LINES = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([^`]+)` \| ([^|]+) \| (\w+) \|$", PAGE, flags=re.MULTILINE)
CALLS = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", PAGE, flags=re.MULTILINE)[1:]
N, B, VISITS = 24, 12, 30  # rows, a batch, and calls until what learns has learned something


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclass
class Scene:
    """A batch of twelve of 24 samples, a queue that holds some of them, banks of all, and a guide."""

    z1: Tensor = field(default_factory=lambda: draw(B, 6, seed=1).requires_grad_())
    z2: Tensor = field(default_factory=lambda: draw(B, 6, seed=2).requires_grad_())
    ids: Tensor = field(default_factory=lambda: torch.randperm(N, generator=torch.Generator().manual_seed(3))[:B])
    queue: Tensor = field(default_factory=lambda: draw(20, 6, seed=4))
    queue_ids: Tensor = field(default_factory=lambda: torch.arange(20) + 2)
    banks: Tensor = field(default_factory=lambda: draw(2, N, 6, seed=5))
    log_weights: Tensor = field(default_factory=lambda: draw(B, seed=6).abs())
    guides: Tensor = field(default_factory=lambda: draw(2, N + 2, 4, seed=7))
    labels: Tensor = field(default_factory=lambda: torch.arange(N) % 3)
    one_vector: bool = False

    def call(self, loss_fn: Any, how: str) -> Tensor:
        """The loss, called as the page says."""
        if isinstance(loss_fn, HardPairs):
            return loss_fn(self.z1, self.z2, self.ids)
        z1, z2, ids = self.z1, self.z2, self.ids
        first, second = self.guides[0], self.guides[0 if self.one_vector else 1]
        more: dict[str, Any] = {"progress": 0.9, "guide": (first[ids], second[ids])}
        match how:
            case "batch" | "two-way":
                return loss_fn(z1, z2, ids, **more)
            case "queue":
                queue = {"candidates": self.queue, "candidate_ids": self.queue_ids}
                return loss_fn(z1, z2, ids, **queue, candidate_guide=second[self.queue_ids], **more)
            case "bank" | "two banks":
                ways = [
                    loss_fn(
                        z,
                        bank[ids],
                        ids,
                        candidates=bank,
                        candidate_ids=torch.arange(N),
                        candidate_guide=second[:N],
                        **more,
                    )
                    for z, bank in zip((z1, z2), self.banks, strict=True)
                ]
                return ways[0] if how == "bank" else ways[0] + ways[1]
            case "documents" | "documents, log weights":
                if how != "documents":
                    more |= {"candidate_log_weights": self.log_weights, "positive_log_weights": self.log_weights}
                return loss_fn(z1, z2, ids, candidates=z2, candidate_ids=ids, candidate_guide=second[ids], **more)
        raise AssertionError(how)


def build(code: str) -> LossModule:
    names = {name: getattr(antipodes, name) for name in antipodes.__all__}
    names |= {"n": N, "labels": Scene().labels, "groups": torch.arange(N) // 4}
    loss_fn: LossModule = eval(code, names)
    for policy in loss_fn.policies():
        if policy.needs.fits:
            policy.fit(Scene().banks[0], 0.5)
    return loss_fn


def plain(loss_fn: Any) -> LossModule:
    """The softmax without any policy, at the temperature of a line."""
    first = next(iter(loss_fn.directions.values())) if isinstance(loss_fn, TwoWay) else loss_fn
    value = first.temperature
    bare = InfoNCE(value if isinstance(value, float) else 0.1)
    return TwoWay(bare) if isinstance(loss_fn, TwoWay) else bare


# dense formulas in float64: logits of the positive and of all candidates that are not the anchor's own sample


def rows(anchors: Tensor, positives: Tensor, candidates: Tensor, same: Tensor) -> Tensor:
    """(A, 1 + C) cosines: of the positive first, -inf for the anchor's own sample."""
    anchors, positives, candidates = (normalize(part, dim=1) for part in (anchors, positives, candidates))
    s = (anchors @ candidates.T).masked_fill(same, -math.inf)
    return torch.cat(((anchors * positives).sum(1, keepdim=True), s), dim=1)


def views(scene: Scene) -> Tensor:
    z, ids = torch.cat((scene.z1, scene.z2)), scene.ids.repeat(2)
    return rows(z, z.roll(B, 0), z, ids[:, None] == ids)


def queue(scene: Scene) -> Tensor:
    return rows(scene.z1, scene.z2, scene.queue, scene.ids[:, None] == scene.queue_ids)


def documents(scene: Scene) -> Tensor:
    return rows(scene.z1, scene.z2, scene.z2, scene.ids[:, None] == scene.ids)


def bank(scene: Scene, way: int = 0) -> Tensor:
    entries = scene.banks[way]
    return rows((scene.z1, scene.z2)[way], entries[scene.ids], entries, scene.ids[:, None] == torch.arange(N))


def softmax(s: Tensor, tau: float, target: Tensor | None = None) -> Tensor:
    """The cross entropy with the positive, or with targets (A, 1 + C)."""
    log = (s / tau).log_softmax(1)
    return -log[:, 0].mean() if target is None else -torch.where(target > 0, target * log, 0.0).sum(1).mean()


def without(s: Tensor, flagged: Tensor) -> Tensor:
    """The cosines without flagged candidates (A, C)."""
    return torch.cat((s[:, :1], s[:, 1:].masked_fill(flagged, -math.inf)), dim=1)


def even(s: Tensor, flagged: Tensor) -> Tensor:
    """Targets that spread evenly over the positive and flagged candidates."""
    target = torch.cat((torch.ones_like(s[:, :1]), (flagged & (s[:, 1:] > -math.inf)).to(s)), dim=1)
    return target / target.sum(1, keepdim=True)


def supcon(scene: Scene) -> Tensor:
    labels = scene.labels[scene.ids.repeat(2)]
    return softmax(views(scene), 0.1, even(views(scene), labels[:, None] == labels))


def unicl(scene: Scene) -> Tensor:
    labels, there = scene.labels[scene.ids], documents(scene)
    back = documents(Scene(z1=scene.z2, z2=scene.z1))
    return sum(softmax(s, 0.07, even(s, labels[:, None] == labels)) for s in (there, back)) / 2  # type: ignore[return-value]


def fastclip(scene: Scene) -> Tensor:
    ways = ((scene.z1, scene.z2), (scene.z2, scene.z1))
    tau = torch.tensor(0.07, dtype=torch.float64)
    values = [modalities.FastCLIP(0.9, 6.5).step(*way, scene.ids.tolist(), tau)[0] for way in ways]
    return torch.tensor(sum(values) / 2, dtype=torch.float64)


def hardest(scene: Scene) -> Tensor:
    s = views(scene)
    return softmax(without(s, s[:, 1:] < s[:, 1:].topk(5, dim=1).values[:, -1:]), 0.1)


def local_aggregation(scene: Scene) -> Tensor:
    loss_fn = build(next(code for paper, code, *_ in LINES if paper.startswith("Local aggregation")))
    assert isinstance(loss_fn, LocalAggregation)
    entries = normalize(scene.banks[0], dim=1)
    nearest = bank(scene)[:, 1:].topk(10, dim=1).indices.tolist()
    clusters = loss_fn.close.labels.tolist()
    return losses.local_aggregation(normalize(scene.z1, dim=1), scene.ids.tolist(), entries, clusters, nearest, 0.07)


def koleo(scene: Scene) -> Tensor:
    one, other = normalize(scene.z1, dim=1), normalize(scene.z2, dim=1)
    distances = torch.cdist(other, one).square() + torch.diag(torch.full((B,), math.inf, dtype=torch.float64))
    return -(distances.min(1).values + 1e-6).log().mean()


def refined(scene: Scene) -> Tensor:
    """SANE's label of p alone, over the positive's key and the queue without the anchor's own."""
    losses = []
    for i, own in enumerate(scene.ids.tolist()):
        others = scene.queue[scene.queue_ids != own]
        keys = normalize(torch.cat((scene.z2[i : i + 1], others)), dim=1).detach()
        label = sane.refined_label(i, normalize(scene.z2, dim=1).detach(), keys, 0, 0.2 * 0.8, 1.0, "p")
        losses.append(sane.cross_entropy(normalize(scene.z1[i], dim=0), keys, label, 0.2))
    return torch.stack(losses).mean()


def nv_retriever(scene: Scene) -> Tensor:
    s = documents(scene)
    return softmax(without(s, s[:, 1:] > s[:, :1] - 0.05 * s[:, :1].abs()), 0.05)


def gist(scene: Scene) -> Tensor:
    g1, g2 = (normalize(part, dim=1)[scene.ids] for part in scene.guides)
    return softmax(without(documents(scene), g1 @ g2.T > (g1 * g2).sum(1, keepdim=True)), 0.05)


def guided(scene: Scene, s: Tensor, ids: Tensor, tau: float) -> Tensor:
    """The guide's softmax as the target; a sample is as similar to its positive as to itself."""
    g = normalize(scene.guides[0], dim=1)[ids]
    t = torch.cat((torch.ones_like(s[:, :1]), (g @ g.T).masked_fill(s[:, 1:] == -math.inf, -math.inf)), dim=1)
    return softmax(s, tau, (t / tau).softmax(1))


def softclip(scene: Scene) -> Tensor:
    there, back = documents(scene), documents(Scene(z1=scene.z2, z2=scene.z1))
    return (guided(scene, there, scene.ids, 0.07) + guided(scene, back, scene.ids, 0.07)) / 2


def ressl(scene: Scene) -> Tensor:
    s, t = queue(scene)[:, 1:], queue(Scene(z1=scene.z2))[:, 1:]
    return softmax(s, 0.1, (t / 0.04).softmax(1))


def clip(scene: Scene) -> Tensor:
    return modalities.clip(scene.z1, scene.z2, scene.ids.tolist(), torch.tensor(0.07, dtype=torch.float64))


def siglip(scene: Scene) -> Tensor:
    numbers = [torch.tensor(value, dtype=torch.float64) for value in (0.1, -10.0)]
    return modalities.siglip(scene.z1, scene.z2, scene.ids.tolist(), *numbers)


FORMULAS: dict[str, Callable[[Scene], Tensor]] = {
    "Instance discrimination": lambda scene: softmax(bank(scene), 0.07),
    "SimCLR": lambda scene: softmax(views(scene), 0.1),
    "MoCo": lambda scene: softmax(queue(scene), 0.07),
    "MultipleNegativesRanking": lambda scene: softmax(documents(scene), 0.05),
    "logQ correction": lambda scene: softmax(
        documents(scene) / 0.05 + torch.cat((scene.log_weights[:, None], scene.log_weights.expand(B, B)), dim=1), 1.0
    ),
    "SupCon": supcon,
    "CLIP": clip,
    "CMC": lambda scene: softmax(bank(scene), 0.07) + softmax(bank(scene, 1), 0.07),
    "UniCL": unicl,
    "SigLIP": siglip,
    "SogCLR": lambda scene: losses.GlobalContrastive(0.1)(scene.z1, scene.z2, scene.ids.tolist(), 0.9),
    "FastCLIP v3": fastclip,
    "Debiased": lambda scene: debiased.info_nce(scene.z1, scene.z2, scene.ids.tolist(), 0.5, 0.1),
    "HCL": lambda scene: debiased.info_nce(scene.z1, scene.z2, scene.ids.tolist(), 0.5, 0.1, 1.0),
    "Semi-hard and hardest mining": hardest,
    "Local aggregation": local_aggregation,
    "HNSSL": lambda scene: hard_pairs(scene.z1, scene.z2, scene.ids.tolist(), top_k=1),
    "KoLeo": koleo,
    "SANE's p": refined,
    "NV-Retriever": nv_retriever,
    "GISTEmbed": gist,
    "X-CLR": lambda scene: guided(scene, views(scene), scene.ids.repeat(2), 0.1),
    "SoftCLIP": softclip,
    "ReSSL": ressl,
}


def title(paper: str) -> str:
    return paper.partition(",")[0]


def test_there_are_at_least_25_papers() -> None:
    """Each with its year; several lines of one paper, which say where in it they stand, count once."""
    papers = {paper for paper, *_ in LINES if re.search(r"\d{4}$", paper)}
    assert len(papers) >= 25
    assert len(LINES) == len({(code, how) for _, code, how, _ in LINES})  # no line repeats another


def test_every_line_is_called_and_held_in_a_way_that_the_page_explains() -> None:
    assert {how for *_, how, _ in LINES} <= set(CALLS)
    assert {held for *_, held in LINES} == {"formula", "flags", "differs"}
    assert {title(paper) for paper, *_, held in LINES if held == "formula"} == set(FORMULAS)


@pytest.mark.filterwarnings("ignore:some anchors have no negatives")
@every(("paper", "code", "how", "held"), LINES, ids=[title(paper) for paper, *_ in LINES])
def test_the_line_of_a_paper_does_what_it_says(paper: str, code: str, how: str, held: str) -> None:
    scene, loss_fn = Scene(one_vector='space="guide"' in code), build(code)
    assert isinstance(loss_fn, LossModule)
    if held == "formula":
        torch.testing.assert_close(
            scene.call(loss_fn, how).detach(), FORMULAS[title(paper)](scene).detach(), rtol=1e-6, atol=1e-7
        )
    for _ in range(VISITS):
        loss = scene.call(loss_fn, how)
        gradients = torch.autograd.grad(loss, (scene.z1, scene.z2), allow_unused=True)
        given = [gradient for gradient in gradients if gradient is not None]
        assert loss.isfinite()
        assert given
        assert all(gradient.isfinite().all() for gradient in given)
        assert given[0].any()  # of the anchors; a key may be a teacher alone
    if held != "formula":
        assert not torch.isclose(loss, scene.call(plain(loss_fn), how), rtol=1e-4)
    if held == "flags":
        assert any(value > 0 for name, value in loss_fn.stats.items() if name.endswith("flagged_share"))
