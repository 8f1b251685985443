"""CLIP: the symmetric cross entropy, two directions with state of their own, two towers by name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from antipodes import GloFND, InfoNCE, Oracle
from antipodes.methods import CLIP, Batch
from antipodes.negatives import Policy
from tests.methods.tiny import BATCH, LABELS, VECTOR, N, Training, batch, image_and_vector

DIRECTIONS = ["image_to_vector", "vector_to_image"]


def clip(policy: Policy | None = None, treatment: str = "eliminate") -> CLIP:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return CLIP(image_and_vector(), InfoNCE(0.2, policy, treatment)).double().train()  # type: ignore[arg-type]


def similarities(method: CLIP, given: Batch) -> Tensor:
    """Cosines of every image with every vector, (B, B)."""
    views = {name: given[name].views[0] for name in ("image", "vector")}
    images, vectors = (F.normalize(part, dim=1) for part in method.network(views).values())
    return images @ vectors.T


def test_is_the_symmetric_cross_entropy_in_value_and_gradient() -> None:
    method = clip()
    given = batch(0, method, dtype=torch.float64)
    logits, own = similarities(method, given) / 0.2, torch.arange(BATCH)
    expected = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
    loss = method.loss(method.network, given, 0.5)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    parameters = list(method.network.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-14)


def test_each_direction_drops_its_own_false_negatives() -> None:
    """A group is symmetric, so both directions drop the same pairs, each in its own softmax."""
    method = clip(Oracle(LABELS))
    given = batch(0, method, dtype=torch.float64)
    labels = LABELS[given.ids]
    false = (labels[:, None] == labels) & ~torch.eye(BATCH, dtype=torch.bool)
    assert bool(false.any())
    logits, own = (similarities(method, given) / 0.2).masked_fill(false, -torch.inf), torch.arange(BATCH)
    expected = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
    torch.testing.assert_close(method.loss(method.network, given, 0.5), expected, rtol=1e-12, atol=0)


def test_samples_of_the_same_id_are_no_negatives_of_each_other() -> None:
    """Two captions of an image: rows 1 and 3 show the same sample."""
    method = clip()
    whole = batch(0, method, dtype=torch.float64)
    ids = whole.ids.clone()
    ids[3] = ids[1]
    given = Batch(ids, whole.inputs, whole.rows)
    logits = similarities(method, given) / 0.2
    logits = logits.index_put((torch.tensor([1, 3]), torch.tensor([3, 1])), logits.new_tensor(-torch.inf))
    own = torch.arange(BATCH)
    expected = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
    torch.testing.assert_close(method.loss(method.network, given, 0.5), expected, rtol=1e-12, atol=0)
    assert method.statistics()["kept_per_anchor"] == BATCH - 1 - 2 / BATCH


@pytest.mark.filterwarnings("ignore:some anchors have no negatives")
def test_each_direction_has_thresholds_of_its_own() -> None:
    method = clip(GloFND(N, alpha=0.3, initial="quantile"))
    policies = dict(method.policies())
    assert list(policies) == DIRECTIONS
    first, second = policies.values()
    assert isinstance(first, GloFND)
    assert isinstance(second, GloFND)
    assert torch.equal(first.threshold, second.threshold)
    given = batch(0, method, dtype=torch.float64)
    method.loss(method.network, given, 0.5)
    seen = torch.zeros(N, dtype=torch.bool)
    seen[given.ids] = True
    for threshold in (first.threshold, second.threshold):
        assert bool((threshold[seen] < 1).all())
        assert bool((threshold[~seen] == 1).all())
    assert not torch.equal(first.threshold, second.threshold)


def test_statistics_are_per_direction_and_their_mean() -> None:
    training = Training("clip", "glofnd")
    for number in (0, 5):
        training.step(number)
    numbers = training.method.statistics()
    for name in ("kept_per_anchor", "flagged_share", "positive_similarity"):
        parts = [numbers[f"{direction}/{name}"] for direction in DIRECTIONS]
        assert numbers[name] == pytest.approx(sum(parts) / 2)
    kept = [numbers[f"{direction}/kept_per_anchor"] for direction in DIRECTIONS]
    assert all(0 < each < BATCH - 1 for each in kept)
    assert numbers["image_to_vector/positive_similarity"] == pytest.approx(
        numbers["vector_to_image/positive_similarity"], abs=1e-6
    )


def test_towers_are_asked_for_by_name() -> None:
    method = clip()
    towers = method.network
    assert method.backbone("image") is towers["image"].encoder
    assert method.backbone("vector") is towers["vector"].encoder
    assert method.backbone() is towers["image"].encoder
    assert method.exports() == {
        "encoder-image": towers["image"].encoder,
        "encoder-vector": towers["vector"].encoder,
    }
    assert isinstance(method.evaluated("vector", head=True), nn.Sequential)
    vectors = torch.zeros(2, VECTOR, dtype=torch.float64)
    embedded = method.evaluated("vector", head=True)(vectors)
    torch.testing.assert_close(embedded, towers({"vector": vectors})["vector"])


def test_directions_name_their_towers() -> None:
    method = clip()
    assert list(method.directions) == DIRECTIONS
    assert [method.anchor_tower(name) for name in DIRECTIONS] == ["image", "vector"]
    assert [method.candidate_tower(name) for name in DIRECTIONS] == ["vector", "image"]


@pytest.mark.parametrize("names", [["image"], ["image", "text", "audio"]])
def test_it_wants_two_inputs(names: list[str]) -> None:
    with pytest.raises(
        ValueError, match=f"CLIP compares two inputs of every sample and the data has {', '.join(names)}"
    ):
        CLIP.plan(dict.fromkeys(names, "vector"))


def test_a_plan_has_the_modality_of_every_input() -> None:
    plans = CLIP.plan({"image": "image", "text": "text"})
    assert {name: (plan.input, plan.modality) for name, plan in plans.items()} == {
        "image": ("image", "image"),
        "text": ("text", "text"),
    }
