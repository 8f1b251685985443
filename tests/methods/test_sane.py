"""SANE: its whole loss against dense labels in float64, its lesions, its draws, its key set, its statistics."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from antipodes.encoders.heads import Head
from antipodes.functional.tensors import NotFinite
from antipodes.losses import SoftLabel
from antipodes.losses.observation import Observation, RefinedLabels
from antipodes.methods import SANE, Batch, InputViews, Tower, Towers
from antipodes.negatives.flags import same_class_mass
from tests.cases import every
from tests.methods.calls import built
from tests.methods.tiny import BATCH, DIM, LABELS, Training, batch
from tests.ranks import Ranks
from tests.reference import sane as reference


class Pooling(nn.Module):
    """An encoder for images of any size."""

    num_features = 6

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 5, 2), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.last = nn.Linear(20, 6)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.last(self.layers(images))
        return out


def pooling(encoder: nn.Module) -> Towers:
    return Towers({"image": Tower(encoder, Head("mlp3", hidden=7, dim=DIM).build(6))})


def build(**options: Any) -> SANE:
    """A method in float64 with a queue of twenty keys: two of samples in the batch, three slots empty."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        labels = {name: options.pop(name) for name in ("temperature", "tau_prime", "mu", "targets") if name in options}
        options = {"queue_size": 20, "momentum": 0.9, **options}
        method = SANE(pooling(Pooling()), SoftLabel(**labels), DIM, **options).double().train()
        with torch.no_grad():
            for key in method.key_network.parameters():
                key.add_(0.3 * torch.randn_like(key))
        keys = F.normalize(torch.randn(17, 5, dtype=torch.float64), dim=1)
    ids = given(method).ids
    others = torch.tensor([number for number in range(24) if number not in ids.tolist()])[:15]
    method.queue.keys[:17] = keys  # not pushed: that would gather over the ranks
    method.queue.ids[:17] = method.queue.rows[:17] = torch.cat((ids[:1], others, ids[5:6]))
    return method


def given(method: SANE, part: slice = slice(None)) -> Batch:
    """Two views and the smaller ones, in float64."""
    whole = batch(0, method, part, torch.float64)
    small = [F.interpolate(view, (size, size)) for view, size in zip(whole["image"].crops, method.crops, strict=True)]
    return Batch(whole.ids, {"image": InputViews(whole["image"].views, crops=small)})


def views(method: SANE) -> list[Tensor]:
    """The images of `given`: x, x~, and the smaller views."""
    inputs = given(method)["image"]
    return [*inputs.views, *inputs.crops]


def soft_targets(method: SANE) -> SoftLabel:
    found = method.directions["refined"]
    assert isinstance(found, SoftLabel)
    return found


def key_tower(method: SANE) -> Tower:
    assert isinstance(method.key_network, Towers)
    return method.key_network["image"]


def gradients(loss: Tensor, method: SANE) -> list[Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss, list(method.network.parameters()))]


OPTIONS: dict[str, dict[str, Any]] = {
    "single": {},
    "crops": {"crops": (3, 4, 2)},
    "p": {"targets": "p"},
    "q": {"targets": "q"},
    "onehot": {"targets": "onehot"},
    "vanilla": {"mixup": "vanilla"},
    "vanilla crops": {"mixup": "vanilla", "crops": (3, 2)},
    "no mixup": {"mixup": "none"},
    "no mixup, crops": {"mixup": "none", "crops": (3,)},
    "no mixup, refined only": {"mixup": "none", "refined_share": 1.0},
    "plain only": {"refined_share": 0.0},
    "a quarter refined": {"refined_share": 0.25},
    "refined only": {"refined_share": 1.0},
    "other numbers": {"temperature": 0.07, "tau_prime": 0.3, "mu": (0.5, 10.0), "kappa": 0.1},
}


@every("name", OPTIONS)
def test_loss_and_gradients_equal_dense_labels(name: str) -> None:
    method = build(**OPTIONS[name])
    progress = 0.6
    partners, theta = method._draw(BATCH, method.queue.keys)
    start, end = OPTIONS[name].get("mu", (0.0, 1.0))
    expected = reference.sane(
        method.network["image"],
        key_tower(method),
        given(method).ids.tolist(),
        views(method),
        method.queue.keys,
        method.queue.ids.tolist(),
        partners.tolist(),
        theta,
        tau=soft_targets(method).temperature,
        tau_prime=soft_targets(method).tau_prime,
        mu=end - (end - start) * (math.cos(math.pi * progress) + 1) / 2,
        refined_share=method.refined_share,
        labels=soft_targets(method).targets,
        mixup=method.mixup,
    )
    loss = method.loss(method.network, given(method), progress)
    for ours, theirs in zip(gradients(loss, method), gradients(expected, method), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_every_option_changes_the_loss() -> None:
    """But for those that differ in nothing at this point: half, a quarter and so on do."""
    losses = []
    for options in OPTIONS.values():
        method = build(**options)
        losses.append(method.loss(method.network, given(method), 0.6).item())
    assert len({round(loss, 9) for loss in losses}) == len(losses)


def test_plain_loss_alone_is_moco_with_the_keys_of_the_batch() -> None:
    method = build(refined_share=0.0)
    ids, images = given(method).ids, views(method)
    q, k = (
        F.normalize(tower(view), dim=1)
        for tower, view in zip((method.network["image"], key_tower(method)), images, strict=True)
    )
    fine = ~torch.isin(method.queue.ids, ids) & (method.queue.ids >= 0)
    logits = torch.cat((q @ k.T, q @ method.queue.keys[fine].T), dim=1) / 0.2
    loss = method.loss(method.network, given(method), 0.3)
    torch.testing.assert_close(loss, F.cross_entropy(logits, torch.arange(BATCH)))
    assert method.statistics()["kept_per_anchor"] == BATCH - 1 + 15
    assert "refined_p" not in method.statistics()


def test_without_confidence_the_labels_are_one_hot() -> None:
    """mu starts at 0, so the first step of all label kinds is the same."""
    losses = []
    for labels in ("pq", "p", "q", "onehot"):
        method = build(targets=labels)
        losses.append(method.loss(method.network, given(method), 0.0).item())
        assert method.statistics()["refined_mass"] == 0
    assert losses == pytest.approx([losses[0]] * 4, rel=1e-12)


def test_the_draws_follow_from_seed_and_step() -> None:
    method, same, other = build(), build(), build(seed=1)
    like = torch.zeros(1)
    first = method._draw(64, like)
    for ours, theirs, different in zip(first, same._draw(64, like), other._draw(64, like), strict=True):
        assert torch.equal(ours, theirs)
        assert not torch.equal(ours, different)
    method.after_step()
    assert int(method.steps) == 1
    assert not torch.equal(method._draw(64, like)[0], first[0])
    assert sorted(first[0].tolist()) == list(range(64))


@pytest.mark.parametrize("kappa", [0.1, 2.0])
def test_theta_is_beta_distributed_and_not_folded(kappa: float) -> None:
    theta = build(kappa=kappa)._draw(20000, torch.zeros(1, dtype=torch.float64))[1]
    assert bool(((theta >= 0) & (theta <= 1)).all())
    assert theta.mean().item() == pytest.approx(0.5, abs=0.02)
    assert theta.var().item() == pytest.approx(1 / (4 * (2 * kappa + 1)), rel=0.03)
    assert (theta < 0.5).double().mean().item() == pytest.approx(0.5, abs=0.02)


def test_a_sample_that_is_twice_in_a_batch_has_one_key() -> None:
    method = build()
    ids = given(method).ids.clone()
    ids[3] = ids[1]
    fresh = F.normalize(torch.randn(BATCH, 5, dtype=torch.float64), dim=1)
    keys, key_ids, own = method._key_set(fresh, ids)
    assert own.tolist() == [0, 1, 2, 1, 4, 5, 6, 7]
    assert key_ids[3] == -1
    counted = key_ids[key_ids >= 0].tolist()
    assert len(set(counted)) == len(counted)
    assert len(keys) == len(key_ids) == BATCH + 20
    assert method.loss(method.network, Batch(ids, given(method).inputs), 0.5).isfinite()


def test_statistics_are_those_of_the_labels() -> None:
    method = build(crops=(3, 2))
    seen: list[Observation] = []
    soft_targets(method).observer = seen.append
    ids, images = given(method).ids, views(method)
    method.loss(method.network, given(method), 1.0)
    fresh = F.normalize(key_tower(method)(images[1]), dim=1)
    old = [k for k, other in enumerate(method.queue.ids.tolist()) if other != -1 and other not in ids.tolist()]
    keys = torch.cat([fresh, method.queue.keys[old]])
    key_labels = LABELS[torch.cat((ids, method.queue.ids[old]))]
    off, right, weights_p = 0.0, 0.0, 0.0
    for i in range(BATCH):
        y = reference.refined_label(i, fresh, keys, i, 0.16, 1.0, "pq")
        y[i] = 0
        off += y.sum().item()
        right += y[key_labels == LABELS[ids[i]]].sum().item()
        p = (keys @ fresh[i] / 0.16).softmax(0)
        largest_q = (p / (1 - p[i])).index_fill(0, torch.tensor([i]), 0).max()
        weights_p += (p.max() / (1 + p.max() + largest_q)).item()
    numbers = method.statistics()
    assert numbers["refined_mass"] == pytest.approx(off / BATCH, rel=1e-9)
    assert numbers["refined_p"] == pytest.approx(weights_p / BATCH, rel=1e-9)

    (labels,) = seen
    assert isinstance(labels, RefinedLabels)
    assert labels.score(LABELS) == {"refined_mass_same_class": pytest.approx(right / off, rel=1e-9)}
    assert math.isnan(same_class_mass(labels.pairs, 0 * labels.mass, labels.temperature, LABELS))


def test_labels_of_keys_are_looked_up_by_row() -> None:
    """Identities may be any numbers: rows of the batch and of the queue say where the labels are."""
    scores = []
    for shift in (0, 1000):
        method = build()
        method.queue.ids[:17] += shift
        seen: list[Observation] = []
        for part in method.losses().values():
            part.observer = seen.append
        whole = given(method)
        method.loss(method.network, Batch(whole.ids + shift, whole.inputs, whole.rows), 1.0)
        scores.append([observation.score(LABELS) for observation in seen])
    assert 0 < scores[0][0]["refined_mass_same_class"] < 1
    assert scores[0] == scores[1]


def crops_of(rank: int, world_size: int) -> tuple[Tensor, list[Tensor]]:
    """The loss and the averaged gradients of one rank, with crops of two sizes in one call of the wrapped network."""
    method = build(crops=(3, 2), seed=3)
    network = DistributedDataParallel(method.network) if world_size > 1 else method.network
    part = slice(BATCH * rank // world_size, BATCH * (rank + 1) // world_size)
    loss = method.loss(network, given(method, part), 0.7)
    loss.backward()
    return loss.detach(), [p.grad for p in method.network.parameters() if p.grad is not None]


def test_two_ranks_with_crops_equal_one(two_ranks: Ranks) -> None:
    loss, grads = crops_of(0, 1)
    (first, of_first), (second, of_second) = two_ranks(crops_of)
    torch.testing.assert_close((first + second) / 2, loss, rtol=1e-12, atol=0)
    for ours, a, b in zip(grads, of_first, of_second, strict=True):
        torch.testing.assert_close(a, ours, rtol=1e-10, atol=1e-12)
        assert torch.equal(a, b)


def test_the_temperature_is_of_both_losses() -> None:
    method = built("--method", "sane", "--loss.temperature", 0.07, "--method.queue_size", 8)
    assert isinstance(method, SANE)
    assert soft_targets(method).temperature == 0.07
    assert {loss_fn.temperature for loss_fn in method.pair_losses().values()} == {0.07}


@every(
    ("options", "sentence"),
    [
        ({"kappa": 0.0}, "kappa must be above 0"),
        ({"kappa": math.inf}, "kappa must be above 0"),
        ({"refined_share": 1.2}, r"refined_share must be in \[0, 1\]"),
        ({"refined_share": math.nan}, r"refined_share must be in \[0, 1\]"),
        ({"targets": "qp"}, "targets must be one of pq, p, q, onehot"),
        ({"mixup": "cut"}, "mixup must be one of momentum, vanilla, none"),
        ({"tau_prime": 1.5}, r"tau_prime must be"),
        ({"mu": (0.0, -1.0)}, "mu must be at least 0"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"momentum": 2.0}, "momentum must be in"),
    ],
)
def test_refuses_what_makes_no_sense(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        build(**options)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_embeddings_that_are_not_finite_are_refused(share: float) -> None:
    training = Training("sane", "none")
    method = training.method
    assert isinstance(method, SANE)
    method.refined_share = share
    whole = batch(0, method)
    first, second = whole["image"].views
    with pytest.raises(NotFinite):
        method.loss(method.network, Batch(whole.ids, {"image": InputViews([first * math.nan, second])}), 0.5)


def test_texts_and_vectors_cannot_be_mixed() -> None:
    with pytest.raises(ValueError, match="SANE mixes images and the data has text"):
        SANE.plan({"text": "text"})
    assert list(SANE.plan({"image": "image", "text": "text"})) == ["image"]
