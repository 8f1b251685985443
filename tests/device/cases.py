"""Losses, policies, queues, banks, guides and selections on a device that is not there: same numbers, few waits.

`test_device.py` runs these cases in a process of their own: torch knows the device for the rest of a process, and only
where it comes before the first backward.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import antipodes
from antipodes import InfoNCE, OneWay, TwoWay
from antipodes.candidates import MemoryBank, Queue
from antipodes.functional import select
from tests.device.pretend import Pretend, Trace, register

ROWS, WIDTH = 4096, 32
LABELS = torch.arange(ROWS) // 8
POLICIES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "bcl": lambda: antipodes.BCL(0.1),
    "cave": lambda: antipodes.Cave(ROWS, (8,)),
    "chance": lambda: antipodes.Chance(0.1),
    "dataset neighbours": lambda: antipodes.DatasetNeighbours(ROWS, 5),
    "debiased": lambda: antipodes.Debiased(0.1),
    "fnc": lambda: antipodes.FNC(0.1),
    "glofnd": lambda: antipodes.GloFND(ROWS, 0.05),
    "guided": lambda: antipodes.Guided(0.1),
    "hardest": lambda: antipodes.Hardest(8),
    "hcl": lambda: antipodes.HCL(0.1, 1.0),
    "ifnd": lambda: antipodes.IFND(ROWS, (4, 8)),
    "known": lambda: antipodes.Known(LABELS),
    "oracle": lambda: antipodes.Oracle(LABELS),
    "positive-aware": lambda: antipodes.PositiveAware(0.05),
    "ring": lambda: antipodes.Ring((1.0, 0.1), 0.1),
    "ring & glofnd": lambda: antipodes.Ring((1.0, 0.1), 0.1) & antipodes.GloFND(ROWS, 0.05),
}
FLAGGING = ("fnc", "glofnd", "guided", "known", "ifnd")
LOSSES: dict[str, Callable[[Any], Any]] = {
    "two-way": lambda policy: TwoWay(InfoNCE(0.1, policy)),
    "one-way": lambda policy: OneWay(InfoNCE(0.1, policy)),
    "global": lambda policy: antipodes.GlobalContrastive(ROWS, 0.1, 0.9, negatives=policy),
    "sigmoid": lambda policy: antipodes.Sigmoid(0.1, -5.0, negatives=policy),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def device() -> torch.device:
    return register()


def fit(loss: Any) -> None:
    """Give policies that cluster or search the dataset what they need."""
    features = F.normalize(torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(1)), dim=1)
    for policy in policies(loss):
        if hasattr(policy, "fit"):
            policy.fit(features, progress=0.5)


def call(make: Callable[[], Any], batch: int, device: torch.device | None, calls: int = 1) -> list[Tensor]:
    """The loss and the gradients of both views after so many calls, on the CPU."""
    torch.manual_seed(0)
    loss = make()
    fit(loss)
    loss = loss if device is None else loss.to(device)
    made = torch.Generator().manual_seed(2)
    for _ in range(calls):
        first, noise = (torch.randn(batch, WIDTH, generator=made) for _ in range(2))
        drawn = torch.randperm(ROWS, generator=made)[:batch]
        guides = [torch.randn(batch, 6, generator=made) for _ in range(2)]
        given = (first, first + 0.5 * noise, drawn, *guides)
        z1, z2, ids, *guide = [each if device is None else each.to(device) for each in given]
        z1.requires_grad_()
        z2.requires_grad_()
        more = {"guide": tuple(guide)} if any(part.needs.guide for part in policies(loss)) else {}
        value = loss(z1, z2, ids, progress=0.7, **more)
        value.backward()
    return [value.detach().cpu(), z1.grad.cpu(), z2.grad.cpu()]  # type: ignore[union-attr]


def policies(loss: Any) -> list[Any]:
    return [part for part in loss.modules() if isinstance(part, antipodes.Policy)]


def compare(make: Callable[[], Any], batch: int, device: torch.device) -> None:
    expected = call(make, batch, None, calls=2)
    with Trace():
        found = call(make, batch, device, calls=2)
    for ours, theirs in zip(found, expected, strict=True):
        assert not isinstance(ours, Pretend)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("batch", [24, 300])
def test_every_policy_gives_what_it_gives_on_the_cpu(policy: str, batch: int, device: torch.device) -> None:
    compare(lambda: InfoNCE(0.1, POLICIES[policy]()), batch, device)


@pytest.mark.parametrize("treatment", ["attract", "attract_inside", "refine"])
@pytest.mark.parametrize("policy", FLAGGING)
def test_every_treatment_gives_what_it_gives_on_the_cpu(policy: str, treatment: Any, device: torch.device) -> None:
    compare(lambda: InfoNCE(0.1, POLICIES[policy](), treatment), 24, device)


@pytest.mark.parametrize("policy", ["none", "fnc", "known"])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_gives_what_it_gives_on_the_cpu(loss: str, policy: str, device: torch.device) -> None:
    compare(lambda: LOSSES[loss](POLICIES[policy]()), 24, device)


def test_a_learned_temperature_has_its_gradient_on_the_device(device: torch.device) -> None:
    compare(lambda: TwoWay(InfoNCE(antipodes.Temperature(0.07, learnable=True))), 24, device)


@pytest.mark.parametrize(
    ("policy", "launches", "read_backs"),
    [
        ("none", 120, 3),
        ("known", 120, 3),
        ("ifnd", 160, 6),
        ("dataset neighbours", 150, 7),
        ("fnc", 250, 8),
        ("ring", 250, 8),
        ("glofnd", 300, 12),
        ("bcl", 1500, 12),
    ],
)
def test_a_step_of_2048_pairs_waits_for_the_device_a_few_times_only(
    policy: str, launches: int, read_backs: int, device: torch.device
) -> None:
    loss = InfoNCE(0.1, POLICIES[policy]())
    fit(loss)
    loss.to(device)
    with Trace() as trace:
        for pairs in (64, 64, 2048):  # the first and second step look for mistakes of the caller
            z1, z2 = (torch.randn(pairs, WIDTH).to(device).requires_grad_() for _ in range(2))
            ids = torch.randperm(ROWS)[:pairs].to(device)
            trace.clear()
            loss(z1, z2, ids, progress=0.7).backward()
    assert sum(trace.launches.values()) <= launches, trace.launches.most_common(9)
    assert sum(trace.read_backs.values()) <= read_backs, trace.read_backs


def test_queue_and_bank_stay_on_the_device(device: torch.device) -> None:
    keys, ids = F.normalize(torch.randn(8, WIDTH), dim=1), torch.arange(8)
    found = []
    for place in (torch.device("cpu"), device):
        queue, bank = Queue(16, WIDTH).to(place), MemoryBank(ROWS, WIDTH).to(place)
        loss = InfoNCE(0.1)
        with Trace():
            queue.push(keys.to(place), ids.to(place))
            bank.write(ids.to(place), keys.to(place))
            z = keys.clone().to(place).requires_grad_()
            loss(z, z.detach(), ids.to(place) + 100, candidates=queue.keys, candidate_ids=queue.ids).backward()
            assert (z.grad.device.type, queue.keys.device.type) == (place.type, place.type)  # type: ignore[union-attr]
            found.append((queue.keys.cpu(), z.grad.cpu()))  # type: ignore[union-attr]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_selections_agree_and_wait_once_a_block(device: torch.device) -> None:
    anchors, candidates = (F.normalize(torch.randn(n, WIDTH), dim=1) for n in (300, 700))
    ids, others = torch.arange(300), torch.randint(-1, 500, (700,))
    with Trace() as trace:
        there = [each.to(device) for each in (anchors, candidates, ids, others)]
        trace.clear()
        found = select.band_by_rank(*there, 0.1, 0.5)
        assert sum(trace.read_backs.values()) <= 6, trace.read_backs
    for ours, theirs in zip(found, select.band_by_rank(anchors, candidates, ids, others, 0.1, 0.5), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


def test_devices_are_not_mixed_and_memory_is_not_numpys(device: torch.device) -> None:
    there = torch.ones(3).to(device)
    with pytest.raises(RuntimeError, match="pretend device and of the CPU"):
        there + torch.ones(3)
    with pytest.raises(TypeError, match="NumPy"):
        there.numpy()
    assert (there + 1.0).tolist() == [2.0, 2.0, 2.0]
