"""MoCo: the cross entropy of its paper, the momentum network, the queue, accumulation."""

import math

import pytest
import torch
from torch.nn import functional as F

from antipodes import InfoNCE
from antipodes.encoders.heads import Head
from antipodes.methods import Batch, InputViews, MoCo, Tower, Towers
from tests.methods.tiny import BATCH, DIM, Tiny, Training, batch, build, one

pytestmark = pytest.mark.filterwarnings("ignore:some anchors have no negatives")


def moco() -> MoCo:
    method = build("moco")
    assert isinstance(method, MoCo)
    return method


def key_tower(method: MoCo) -> Tower:
    """The momentum network's only tower."""
    assert isinstance(method.key_network, Towers)
    return method.key_network["image"]


def fill(method: MoCo) -> None:
    """Put 20 keys of other samples into the queue."""
    keys = F.normalize(torch.randn(20, 5, generator=torch.Generator().manual_seed(9)), dim=1)
    method.queue.push(keys, torch.arange(20) + 100)


def test_is_the_cross_entropy_of_its_paper() -> None:
    method = moco()
    fill(method)
    given = batch(0, method)
    q = F.normalize(method.network["image"](given["image"].views[0]), dim=1)
    k = F.normalize(key_tower(method)(given["image"].views[1]), dim=1)
    logits = torch.cat(((q * k).sum(1, keepdim=True), q @ method.queue.keys.T), dim=1) / 0.2
    expected = F.cross_entropy(logits, torch.zeros(BATCH, dtype=torch.int64))
    loss = method.loss(method.network, given, 0.5)
    torch.testing.assert_close(loss, expected)
    parameters = list(method.network.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_the_key_network_starts_as_a_copy_that_takes_no_gradient() -> None:
    method = moco()
    for key, query in zip(method.key_network.parameters(), method.network.parameters(), strict=True):
        assert torch.equal(key, query)
        assert key.data_ptr() != query.data_ptr()
        assert not key.requires_grad


def test_the_key_network_follows_after_the_step() -> None:
    training = Training("moco", "none")
    method = training.method
    assert isinstance(method, MoCo)
    fill(method)
    before = [key.clone() for key in method.key_network.parameters()]
    training.step(0)
    for old, key, query in zip(before, method.key_network.parameters(), method.network.parameters(), strict=True):
        torch.testing.assert_close(key, 0.9 * old + 0.1 * query)
        assert not torch.equal(old, query)


@pytest.mark.parametrize("momentum", [0.0, 1.0])
def test_the_ends_of_the_momentum(momentum: float) -> None:
    method = MoCo(one(), InfoNCE(0.2), DIM, momentum, queue_size=20)
    old = [key.clone() for key in method.key_network.parameters()]
    with torch.no_grad():
        for query in method.network.parameters():
            query.add_(1)
    method.after_step()
    expected = old if momentum == 1 else method.network.parameters()
    for key, other in zip(method.key_network.parameters(), expected, strict=True):
        torch.testing.assert_close(key, other)


def test_the_queue_takes_the_keys_of_the_step_with_their_ids() -> None:
    training = Training("moco", "none")
    method = training.method
    assert isinstance(method, MoCo)
    pushed_ids, pushed = [], []
    for number in range(2):
        given = batch(number, method)
        with torch.no_grad():
            pushed.append(F.normalize(key_tower(method)(given["image"].views[1]), dim=1))  # before it follows
        pushed_ids += given.ids.tolist()
        training.step(number)
    assert method.queue.ids.tolist() == pushed_ids + [-1] * 4
    torch.testing.assert_close(method.queue.keys[:16], torch.cat(pushed))


def test_the_keys_of_this_step_are_not_its_negatives() -> None:
    method = moco()
    given = batch(0, method)
    method.loss(method.network, given, 0.0)
    assert method.statistics()["kept_per_anchor"] == 0
    method.after_step()
    method.loss(method.network, given, 0.0)
    assert method.statistics()["kept_per_anchor"] == BATCH - 1  # its own stale key does not count


def test_two_half_batches_accumulate_to_a_whole_one() -> None:
    whole, halves = Training("moco", "eliminate"), Training("moco", "eliminate")
    for number in range(3):
        whole.step(number)
        halves.optimizer.zero_grad()
        for part in (slice(BATCH // 2), slice(BATCH // 2, BATCH)):
            loss = halves.method.loss(halves.network, batch(number, halves.method, part), number / 10)
            (loss / 2).backward()
        halves.optimizer.step()
        halves.method.after_step()
    assert whole.method.accumulates
    state, other = whole.method.state_dict(), halves.method.state_dict()
    for name, tensor in state.items():
        torch.testing.assert_close(other[name], tensor, msg=name)


@pytest.mark.parametrize("momentum", [-0.1, 1.1, math.nan])
def test_refuses_a_momentum_that_makes_no_sense(momentum: float) -> None:
    with pytest.raises(ValueError, match=r"momentum must be in \[0, 1\]"):
        MoCo(one(), InfoNCE(0.2), DIM, momentum, queue_size=20)


def test_batch_statistics_of_the_key_network_are_its_own() -> None:
    head = Head("mlp2", hidden=7, dim=DIM, batch_norm=True).build(Tiny.num_features)
    method = MoCo(Towers({"image": Tower(Tiny(), head)}), InfoNCE(0.2), DIM, queue_size=20).train()
    given = batch(0, method)
    first, second = given["image"].views
    method.loss(method.network, Batch(given.ids, {"image": InputViews([first, 5 * second])}), 0.0)
    method.after_step()
    ours, keys = (
        dict(network.named_buffers())["towers.image.head.1.running_mean"]
        for network in (method.network, method.key_network)
    )
    assert not torch.allclose(ours, keys)
