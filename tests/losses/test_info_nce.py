"""InfoNCE against plain Python on a circle, torch's cross entropy, loops, and its own symmetries."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from antipodes import InfoNCE, Oracle, Refine
from antipodes.losses import Treatment
from tests.cases import every
from tests.ranks import Ranks
from tests.reference import losses as reference


def circle(*degrees: float) -> Tensor:
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def cosine(degrees: float) -> float:
    return math.cos(math.radians(degrees))


def embeddings(batch: int, dim: int = 8, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Two correlated views of no particular length."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randn(batch, dim, generator=generator, dtype=dtype)
    second = first + 0.5 * torch.randn(batch, dim, generator=generator, dtype=dtype)
    scale = 10 ** torch.rand(2, batch, 1, generator=generator, dtype=dtype)
    return (first * scale[0]).requires_grad_(), (second * scale[1]).requires_grad_()


def with_gradients(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return (loss.detach(), *torch.autograd.grad(loss, inputs))


def test_by_hand_on_a_circle() -> None:
    # views of sample 0 at 0 and 20 degrees, of sample 1 at 90 and 60
    tau, exp = 0.5, math.exp
    loss = InfoNCE(tau)(circle(0, 90), circle(20, 60), torch.tensor([0, 1]))
    by_anchor = []
    for positive, negatives in [
        (20, (90, 60)),  # anchor at 0
        (30, (90, 70)),  # anchor at 90
        (20, (70, 40)),  # anchor at 20
        (30, (60, 40)),  # anchor at 60
    ]:
        own = exp(cosine(positive) / tau)
        by_anchor.append(-math.log(own / (own + sum(exp(cosine(angle) / tau) for angle in negatives))))
    assert loss.item() == pytest.approx(sum(by_anchor) / 4, rel=1e-12)


def test_a_queue_by_hand_on_a_circle() -> None:
    # one direction; of the keys at 10, 90, 180, 45 degrees the first is a stale copy and the last an empty slot
    tau = 0.5
    loss_fn = InfoNCE(tau)
    loss = loss_fn(
        circle(0),
        circle(30),
        torch.tensor([4]),
        candidates=circle(10, 90, 180, 45),
        candidate_ids=torch.tensor([4, 1, 2, -1]),
    )
    own, others = math.exp(cosine(30) / tau), math.exp(0) + math.exp(-1 / tau)
    assert loss.item() == pytest.approx(-math.log(own / (own + others)), rel=1e-12)
    assert loss_fn.stats == pytest.approx(
        {
            "positive_similarity": cosine(30),
            "negative_similarity": -0.5,
            "loss_above_chance": loss.item() - math.log(3),
            "kept_per_anchor": 2,
            "pulled_per_anchor": 0,
            "flagged_share": 0,
            "without_negatives": 0,
        }
    )


@pytest.mark.parametrize("batch", [2, 7, 40])
def test_is_the_cross_entropy_of_simclr(batch: int) -> None:
    z1, z2 = embeddings(batch)
    views = F.normalize(torch.cat((z1, z2)), dim=1)
    logits = (views @ views.T / 0.1).masked_fill(torch.eye(2 * batch, dtype=torch.bool), -torch.inf)
    target = torch.arange(2 * batch).roll(batch)
    expected = with_gradients(F.cross_entropy(logits, target), z1, z2)
    ids = torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:batch]
    torch.testing.assert_close(with_gradients(InfoNCE(0.1)(z1, z2, ids), z1, z2), expected)


def test_is_the_cross_entropy_of_moco() -> None:
    queries, keys = embeddings(6)
    queue = F.normalize(torch.randn(30, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), dim=1)
    q, k = F.normalize(queries, dim=1), F.normalize(keys, dim=1).detach()
    logits = torch.cat(((q * k).sum(1, keepdim=True), q @ queue.T), dim=1) / 0.07
    expected = with_gradients(F.cross_entropy(logits, torch.zeros(6, dtype=torch.int64)), queries)
    loss = InfoNCE(0.07)(
        queries, keys.detach(), torch.arange(6), candidates=queue, candidate_ids=torch.arange(30) + 100
    )
    torch.testing.assert_close(with_gradients(loss, queries), expected)


@pytest.mark.parametrize("treatment", ["eliminate", "attract", "refine"])
def test_false_negatives_by_loops(treatment: Treatment) -> None:
    z1, z2 = embeddings(9)
    labels = [0, 1, 2, 0, 1, 0, 3, 3, 4]
    expected = reference.info_nce(z1, z2, range(9), 0.2, reference.same(labels), treatment)
    loss_fn = InfoNCE(0.2, Oracle(torch.tensor(labels)), treatment)
    loss = loss_fn(z1, z2, torch.arange(9))
    torch.testing.assert_close(with_gradients(loss, z1, z2), with_gradients(expected, z1, z2))
    flagged = [2 * (labels.count(label) - 1) for label in labels]  # candidates of an anchor, of 16
    pulled = sum(flagged) / 9 if treatment != "eliminate" else 0
    assert loss_fn.stats["flagged_share"] == pytest.approx(sum(flagged) / 9 / 16)
    assert loss_fn.stats["pulled_per_anchor"] == pytest.approx(pulled)
    assert loss_fn.stats["kept_per_anchor"] == pytest.approx(16 - sum(flagged) / 9 + pulled)


@pytest.mark.parametrize("treatment", ["eliminate", "attract", "refine"])
def test_false_negatives_of_a_queue_by_loops(treatment: Treatment) -> None:
    queries, keys = embeddings(5)
    queue = embeddings(20, seed=3)[0].detach()
    key_ids = [(3 * i) % 11 - 1 for i in range(20)]
    labels = [i % 4 for i in range(10)]
    loss = InfoNCE(0.2, Oracle(torch.tensor(labels)), treatment)(
        queries, keys, torch.arange(5), candidates=queue, candidate_ids=torch.tensor(key_ids)
    )
    unit = [F.normalize(x, dim=1) for x in (queries, keys, queue)]
    positives = (unit[0] * unit[1]).sum(1)
    anchors, teachers, candidates = (list(rows) for rows in unit)
    flagged = reference.same(labels)
    expected = reference.one_way(
        anchors, range(5), list(positives), candidates, key_ids, 0.2, flagged, treatment, teachers
    )
    torch.testing.assert_close(with_gradients(loss, queries, keys), with_gradients(expected, queries, keys))


@pytest.mark.parametrize(("mu", "tau_prime"), [(0.0, 0.8), (0.3, 0.1), (10.0, 1.0)])
def test_refining_with_other_numbers_by_loops(mu: float, tau_prime: float) -> None:
    z1, z2 = embeddings(9)
    labels = [0, 1, 2, 0, 1, 0, 3, 3, 4]
    numbers = {"mu": mu, "tau_prime": tau_prime}
    loss_fn = InfoNCE(0.2, Oracle(torch.tensor(labels)), Refine(**numbers))
    loss = loss_fn(z1, z2, torch.arange(9))
    expected = reference.info_nce(z1, z2, range(9), 0.2, reference.same(labels), "refine", **numbers)
    torch.testing.assert_close(with_gradients(loss, z1, z2), with_gradients(expected, z1, z2))
    if mu == 0:
        torch.testing.assert_close(loss, InfoNCE(0.2)(z1, z2, torch.arange(9)))
        assert loss_fn.stats["refined_mass"] == 0


def test_refining_by_hand_on_a_circle() -> None:
    """The query at 0 degrees, its key at 30; of the queue 60 and 180 degrees share its label, 90 does not."""
    tau, exp = 0.5, math.exp
    loss_fn = InfoNCE(tau, Oracle(torch.tensor([0, 0, 1, 0])), Refine(mu=2.0, tau_prime=0.5))
    queue = {"candidates": circle(60, 90, 180), "candidate_ids": torch.tensor([1, 2, 3])}
    loss = loss_fn(circle(0), circle(30), torch.tensor([0]), **queue)
    weights = [exp(cosine(angle) / 0.25) for angle in (0, 30, 150)]  # the key's angle to itself, 60 and 180
    p = [weight / sum(weights) for weight in weights]
    a = 2 * p[0] / (1 + 2 * p[0])
    label = [1 - a + a * p[0], a * p[1], a * p[2]]
    target = sum(y * cosine(angle) for y, angle in zip(label, (30, 60, 180), strict=True))
    denominator = sum(exp(cosine(angle) / tau) for angle in (30, 60, 90, 180))
    assert loss.item() == pytest.approx(math.log(denominator) - target / tau, rel=1e-12)
    assert loss_fn.stats["refined_mass"] == pytest.approx(label[1] + label[2])


def test_supcon_as_khosla_writes_it() -> None:
    """L_out: the mean over all views of the label of -log softmax over all other views."""
    z1, z2 = embeddings(6)
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    views = F.normalize(torch.cat((z1, z2)), dim=1)
    log_softmax = (views @ views.T / 0.1).masked_fill(torch.eye(12, dtype=torch.bool), -torch.inf).log_softmax(1)
    losses = []
    for i in range(12):
        positives = [k for k in range(12) if k != i and labels[k % 6] == labels[i % 6]]
        losses.append(-sum(log_softmax[i, k] for k in positives) / len(positives))
    expected = with_gradients(torch.stack(losses).mean(), z1, z2)  # type: ignore[arg-type]
    loss = InfoNCE(0.1, Oracle(labels), "attract")(z1, z2, torch.arange(6))
    torch.testing.assert_close(with_gradients(loss, z1, z2), expected)


def test_duplicate_ids_by_loops() -> None:
    z1, z2 = embeddings(6)
    ids = [3, 1, 3, 0, 1, 3]
    expected = with_gradients(reference.info_nce(z1, z2, ids, 0.1), z1, z2)
    torch.testing.assert_close(with_gradients(InfoNCE(0.1)(z1, z2, torch.tensor(ids)), z1, z2), expected)


@pytest.mark.parametrize("temperature", [0.02, 0.01])
def test_easy_positives_at_a_low_temperature_keep_their_digits(temperature: float) -> None:
    """A plain float32 cross entropy is off by tens of percent here."""
    generator = torch.Generator().manual_seed(0)
    first = F.normalize(torch.randn(64, 128, generator=generator), dim=1)
    second = first + 0.01 * torch.randn(64, 128, generator=generator)
    z1, z2 = first.clone().requires_grad_(), second.clone().requires_grad_()
    fast = with_gradients(InfoNCE(temperature)(z1, z2, torch.arange(64)), z1, z2)
    d1, d2 = z1.detach().double().requires_grad_(), z2.detach().double().requires_grad_()
    exact = with_gradients(InfoNCE(temperature)(d1, d2, torch.arange(64)), d1, d2)
    for ours, reference_value in zip(fast, exact, strict=True):
        error = (ours.double() - reference_value).abs().max() / reference_value.abs().max()
        assert error < 1e-3 * 0.02 / temperature  # rounding of s itself, divided by the temperature
    views = F.normalize(torch.cat((d1, d2)), dim=1)
    logits = (views @ views.T / temperature).masked_fill(torch.eye(128, dtype=torch.bool), -torch.inf)
    plain = F.cross_entropy(logits, torch.arange(128).roll(64))
    assert exact[0].item() == pytest.approx(plain.item(), rel=1e-4)


def test_the_length_of_the_embeddings_does_not_matter() -> None:
    z1, z2 = (z.detach() for z in embeddings(5))
    ids = torch.arange(5)
    torch.testing.assert_close(InfoNCE()(z1, z2, ids), InfoNCE()(1000 * z1, F.normalize(z2, dim=1), ids))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_embeddings_give_a_single_precision_loss(dtype: torch.dtype) -> None:
    z1, z2 = (z.detach().to(dtype) for z in embeddings(5))
    z1.requires_grad_()
    loss = InfoNCE(0.2)(z1, z2, torch.arange(5))
    loss.backward()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, InfoNCE(0.2)(z1.float(), z2.float(), torch.arange(5)))
    assert z1.grad is not None
    assert z1.grad.dtype == dtype


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(8)), st.booleans(), st.sampled_from(["eliminate", "attract", "refine"]))
def test_the_order_of_a_batch_does_not_matter(order: list[int], swap: bool, treatment: Treatment) -> None:
    z1, z2 = (z.detach() for z in embeddings(8))
    ids = torch.arange(8) + 4
    loss_fn = InfoNCE(0.2, Oracle(torch.arange(12) // 3), treatment)
    expected = loss_fn(z1, z2, ids)
    if swap:
        z1, z2 = z2, z1
    torch.testing.assert_close(loss_fn(z1[order], z2[order], ids[order]), expected)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([-1, 0, 5, 10]), min_size=1, max_size=6), st.integers(0, 10), st.integers(0, 99))
def test_a_candidate_that_does_not_count_changes_nothing(extra: list[int], place: int, seed: int) -> None:
    """Empty slots, the anchor's own id 0, and ids 5 and 10 of its label."""
    queries, keys = embeddings(1)
    queue, more = embeddings(10, seed=seed + 1)[0].detach(), embeddings(len(extra), seed=seed + 200)[0].detach()
    key_ids = torch.tensor([1, 2, 3, 4, 6, 7, 8, 9, 11, 12])
    loss_fn = InfoNCE(0.2, Oracle(torch.arange(13) % 5))
    ids = torch.tensor([0])
    expected = with_gradients(loss_fn(queries, keys, ids, candidates=queue, candidate_ids=key_ids), queries)
    queue = torch.cat((queue[:place], more, queue[place:]))
    key_ids = torch.cat((key_ids[:place], torch.tensor(extra), key_ids[place:]))
    loss = loss_fn(queries, keys, ids, candidates=queue, candidate_ids=key_ids)
    torch.testing.assert_close(with_gradients(loss, queries), expected)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 10), st.integers(0, 1000), st.floats(0.03, 2.0))
def test_eliminating_never_raises_the_loss_and_matches_loops(batch: int, seed: int, temperature: float) -> None:
    z1, z2 = (z.detach() for z in embeddings(batch, 4, seed))
    labels = torch.randint(3, (batch,), generator=torch.Generator().manual_seed(seed))
    ids = torch.arange(batch)
    loss = InfoNCE(temperature, Oracle(labels))(z1, z2, ids)
    assert 0 <= loss <= InfoNCE(temperature)(z1, z2, ids) + 1e-12
    expected = reference.info_nce(z1, z2, range(batch), temperature, reference.same(labels.tolist()))
    torch.testing.assert_close(loss, expected)


def share_of(rank: int, world_size: int, labels: Tensor | None, treatment: Treatment, queue: bool) -> tuple[Any, ...]:
    """The loss and the gradient of one rank's contiguous part of a batch of eight."""
    part = slice(8 * rank // world_size, 8 * (rank + 1) // world_size)
    z1, z2 = (z.detach()[part].clone().requires_grad_() for z in embeddings(8))
    loss_fn = InfoNCE(0.2, None if labels is None else Oracle(labels), treatment)
    candidates = {"candidates": embeddings(12, seed=5)[0].detach(), "candidate_ids": torch.arange(12)} if queue else {}
    loss = loss_fn(z1, z2, torch.arange(8)[part], **candidates)
    return with_gradients(loss, z1, z2)


@every("queue", [False, True])
@every(("labelled", "treatment"), [(False, "eliminate"), (True, "eliminate"), (True, "attract"), (True, "refine")])
def test_two_ranks_equal_one(two_ranks: Ranks, labelled: bool, treatment: Treatment, queue: bool) -> None:
    arguments = (torch.arange(12) % 3 if labelled else None, treatment, queue)
    loss, *gradients = share_of(0, 1, *arguments)
    parts = two_ranks(share_of, *arguments)
    torch.testing.assert_close((parts[0][0] + parts[1][0]) / 2, loss)
    for number, gradient in enumerate(gradients, start=1):  # data-parallel training divides by the ranks
        torch.testing.assert_close(torch.cat([part[number] for part in parts]) / 2, gradient)
