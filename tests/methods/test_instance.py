"""Instance discrimination: with the whole bank drawn it is a classification of samples."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from antipodes import InfoNCE, Ring
from antipodes.functional.select import band_by_rank
from antipodes.losses import LocalAggregation
from antipodes.losses.local_aggregation import local_aggregation
from antipodes.methods import Batch, InstanceDiscrimination
from antipodes.negatives import Hardest
from antipodes.seeding import generator
from tests.methods.calls import built
from tests.methods.tiny import DIM, LABELS, N, Training, batch, build, one


def instance(samples: int) -> InstanceDiscrimination:
    return InstanceDiscrimination(one("linear"), InfoNCE(0.07), N, DIM, samples=samples)


def embedded(method: InstanceDiscrimination, given: Batch) -> Tensor:
    """The normalised embeddings of the view."""
    return F.normalize(method.network["image"](given["image"].views[0]), dim=1)


def test_the_whole_bank_is_a_cross_entropy_with_one_class_per_sample() -> None:
    method = instance(N)
    given = batch(0, method)
    anchors = embedded(method, given)
    expected = F.cross_entropy(anchors @ method.bank.table.rows.T / 0.07, given.ids)
    loss = method.loss(method.network, given, 0.5)
    torch.testing.assert_close(loss, expected)
    parameters = list(method.network.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_draw_is_the_positive_against_the_entries_drawn() -> None:
    method, twin = instance(10), instance(10)
    twin.load_state_dict(method.state_dict())
    given = batch(0, method)
    entries, drawn = twin.bank.draw(10)
    anchors = embedded(method, given)
    positives = (anchors * method.bank.table.rows[given.ids]).sum(1, keepdim=True)
    logits = (anchors @ entries.T).masked_fill(given.ids[:, None] == drawn, -torch.inf)
    expected = F.cross_entropy(torch.cat((positives, logits), dim=1) / 0.07, torch.zeros_like(given.ids))
    torch.testing.assert_close(method.loss(method.network, given, 0.5), expected)


def test_the_bank_is_written_after_the_step_with_momentum() -> None:
    training = Training("instance", "none")
    method = training.method
    assert isinstance(method, InstanceDiscrimination)
    given = batch(0, method)
    before = method.bank.table.rows.clone()
    with torch.no_grad():
        anchors = embedded(method, given)
    method.loss(method.network, given, 0.0)
    assert torch.equal(method.bank.table.rows, before)
    method.after_step()
    expected = before.clone()
    expected[given.ids] = F.normalize(0.5 * before[given.ids] + 0.5 * anchors, dim=1)
    torch.testing.assert_close(method.bank.table.rows, expected)


def iring(draw: str, samples: int = 12, inner: float = 0.2) -> InstanceDiscrimination:
    loss_fn = InfoNCE(0.07, Ring((0.6, 0.6), inner))
    return InstanceDiscrimination(one("linear"), loss_fn, N, DIM, samples=samples, draw=draw)  # type: ignore[arg-type]


def test_every_anchor_draws_from_its_own_ring() -> None:
    method = iring("each")
    given = batch(0, method)
    anchors, bank = embedded(method, given), method.bank.table.rows
    low, high = band_by_rank(anchors, bank, given.ids, torch.arange(N), 0.2 * 0.6, 0.6)
    numbers = torch.rand(1, len(given.ids), 12, dtype=torch.float64, generator=generator("draw", 0, 0))[0]
    losses = []
    for anchor, own, lowest, highest, row in zip(anchors, given.ids.tolist(), low, high, numbers, strict=True):
        similarity = bank @ anchor
        inside = [k for k in range(N) if k != own and lowest <= similarity[k] <= highest]
        assert len(inside) == 11  # of 23: ranks [2.76, 13.8)
        drawn = [inside[int(number * len(inside))] for number in row]
        losses.append(F.cross_entropy(torch.stack([similarity[own], *similarity[drawn]]) / 0.07, torch.tensor(0)))
    loss = method.loss(method.network, given, 0.5)
    torch.testing.assert_close(loss, torch.stack(losses).mean())
    assert method.statistics()["kept_per_anchor"] == 11
    assert method.statistics()["without_negatives"] == 0
    assert method.loss(method.network, given, 0.5) != loss  # the next draw is another


def test_the_expected_draw_is_the_whole_ring_scaled_to_the_number_of_draws() -> None:
    method = iring("expected")
    given = batch(0, method)
    anchors, bank = embedded(method, given), method.bank.table.rows
    logits = anchors @ bank.T
    low, high = band_by_rank(anchors, bank, given.ids, torch.arange(N), 0.2 * 0.6, 0.6)
    outside = (logits < low[:, None]) | (logits > high[:, None]) | (given.ids[:, None] == torch.arange(N))
    negative = (logits / 0.07).exp().masked_fill(outside, 0).sum(1) * 12 / 11
    positive = (logits.gather(1, given.ids[:, None])[:, 0] / 0.07).exp()
    expected = -(positive / (positive + negative)).log().mean()
    torch.testing.assert_close(method.loss(method.network, given, 0.5), expected)
    assert method.statistics()["kept_per_anchor"] == 11


def test_once_judges_one_draw_for_all() -> None:
    method = iring("once", samples=10)
    given = batch(0, method)
    method.loss(method.network, given, 0.5)
    assert 4 <= method.statistics()["kept_per_anchor"] <= 5  # of 10, or of 9 without the own entry


def test_wrong_arguments_get_one_sentence() -> None:
    with pytest.raises(ValueError, match="draw must be one of each, once, expected, got 'twice'"):
        iring("twice")
    with pytest.raises(ValueError, match="samples must be at least 1, got 0"):
        instance(0)
    for neighbours in (0, 1.5, -3):
        with pytest.raises(ValueError, match="neighbours must be a whole number, or a share between 0 and 1"):
            local_aggregation(N, clusters=(3,), neighbours=neighbours)


def test_the_background_is_of_neighbours_unless_a_policy_says_otherwise() -> None:
    numbered = local_aggregation(N, clusters=(3,), neighbours=7).negatives
    assert isinstance(numbered, Hardest)
    assert numbered.k == 7
    shared = local_aggregation(N, clusters=(3,), neighbours=0.25).negatives
    assert isinstance(shared, Ring)
    assert (shared.share(0.0), shared.inner) == (0.25, 0)
    policy = Ring()
    assert local_aggregation(N, clusters=(3,), negatives=policy).negatives is policy


def test_local_aggregation_is_a_preset_with_a_centred_head() -> None:
    for name, towers in (("local-aggregation", ["image"]), ("cmc-local-aggregation", ["l", "ab"])):
        method = built("--method", name, "--loss.clusters", "[3]", "--loss.neighbours", 7)
        assert method.network.names() == towers
        for tower in towers:
            linear, norm = method.network[tower].head  # type: ignore[misc]
            assert isinstance(linear, nn.Linear)
            assert isinstance(norm, nn.BatchNorm1d)
            assert not norm.affine
        for loss_fn in method.pair_losses().values():
            assert isinstance(loss_fn, LocalAggregation)
            assert loss_fn.temperature == 0.07
            assert loss_fn.close.clusters == (3,)
            assert isinstance(loss_fn.negatives, Hardest)
    aggregation = ["--method", "local-aggregation", "--loss.clusters", "[3]"]
    (loss_fn,) = built(*aggregation, "--negatives", "ring").pair_losses().values()
    assert isinstance(loss_fn.negatives, Ring)


def test_elimination_leaves_the_samples_of_other_labels() -> None:
    method = build("instance", "eliminate")
    assert isinstance(method, InstanceDiscrimination)
    method.samples = N
    given = batch(0, method)
    method.loss(method.network, given, 0.5)
    others = (LABELS[given.ids][:, None] != LABELS).sum(1).float().mean().item()
    assert method.statistics()["kept_per_anchor"] == pytest.approx(others)
