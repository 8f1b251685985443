"""Instance discrimination: with the whole bank drawn it is a classification of samples."""

import pytest
import torch
from torch.nn import functional as F

from antipodes.methods import InstanceDiscrimination
from tests.methods.tiny import LABELS, N, Tiny, Training, batch, build


def instance(samples: int) -> InstanceDiscrimination:
    return InstanceDiscrimination(Tiny(), N, samples=samples, dim=5)


def test_the_whole_bank_is_a_cross_entropy_with_one_class_per_sample() -> None:
    method = instance(N)
    ids, views = batch(0, 1)
    anchors = F.normalize(method.network(views[0]), dim=1)
    expected = F.cross_entropy(anchors @ method.bank.table.rows.T / 0.07, ids)
    loss = method.loss(method.network, ids, views, 0.5)
    torch.testing.assert_close(loss, expected)
    parameters = list(method.network.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_draw_is_the_positive_against_the_entries_drawn() -> None:
    method, twin = instance(10), instance(10)
    twin.load_state_dict(method.state_dict())
    ids, views = batch(0, 1)
    entries, drawn = twin.bank.draw(10)
    anchors = F.normalize(method.network(views[0]), dim=1)
    positives = (anchors * method.bank.table.rows[ids]).sum(1, keepdim=True)
    logits = (anchors @ entries.T).masked_fill(ids[:, None] == drawn, -torch.inf)
    expected = F.cross_entropy(torch.cat((positives, logits), dim=1) / 0.07, torch.zeros_like(ids))
    torch.testing.assert_close(method.loss(method.network, ids, views, 0.5), expected)


def test_the_bank_is_written_after_the_step_with_momentum() -> None:
    training = Training("instance", "none")
    method = training.method
    assert isinstance(method, InstanceDiscrimination)
    ids, views = batch(0, 1)
    before = method.bank.table.rows.clone()
    with torch.no_grad():
        anchors = F.normalize(method.network(views[0]), dim=1)
    method.loss(method.network, ids, views, 0.0)
    assert torch.equal(method.bank.table.rows, before)
    method.after_step()
    expected = before.clone()
    expected[ids] = F.normalize(0.5 * before[ids] + 0.5 * anchors, dim=1)
    torch.testing.assert_close(method.bank.table.rows, expected)


def test_elimination_leaves_the_samples_of_other_labels() -> None:
    method = build("instance", "eliminate")
    assert isinstance(method, InstanceDiscrimination)
    method.samples = N
    ids, views = batch(0, 1)
    method.loss(method.network, ids, views, 0.5)
    others = (LABELS[ids][:, None] != LABELS).sum(1).float().mean().item()
    assert method.statistics()["kept_per_anchor"] == pytest.approx(others)
