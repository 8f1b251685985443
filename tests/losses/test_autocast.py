"""Losses under autocast: forward and backward inside of the block give what they give outside, anchor by anchor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from antipodes import (
    FNC,
    Cave,
    Debiased,
    Distillation,
    GlobalContrastive,
    GloFND,
    Guided,
    Hardest,
    HardPairs,
    InfoNCE,
    LocalAggregation,
    Policy,
    Refine,
    Ring,
    Sigmoid,
    Temperature,
    TwoWay,
)
from antipodes.losses import SoftLabel
from antipodes.pairs import normalise
from tests.cases import every

D, N, TAU = 24, 600, 0.05
Outcome = list[Tensor]
Call = Callable[[int], Outcome]


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def views(pairs: int) -> tuple[Tensor, Tensor]:
    """Two views of as many samples, of which some are alike, so that policies flag something."""
    sample = numbers(pairs // 4 + 1, D).repeat(4, 1)[:pairs]
    first, second = (sample + 0.4 * numbers(pairs, D, seed=seed) for seed in (1, 2))
    return first.requires_grad_(), second.requires_grad_()


def outcome(loss_fn: torch.nn.Module, losses: Tensor, *inputs: Tensor) -> Outcome:
    """Every loss, and its gradients for the rows of the inputs and for what the loss learns."""
    learned = list(loss_fn.parameters())
    weights = torch.linspace(0.5, 1.5, losses.numel()) * losses.numel()  # a gradient of order 1 for every anchor
    found = torch.autograd.grad((losses.flatten() * weights).sum(), [*inputs, *learned], allow_unused=True)
    return [losses.detach(), *(torch.zeros(()) if each is None else each for each in found)]


def batch(build: Callable[[], Any], **options: Any) -> Call:
    def call(pairs: int) -> Outcome:
        z1, z2 = views(pairs)
        loss_fn = build()
        guide = (numbers(pairs // 4 + 1, D, seed=5).repeat(4, 1)[:pairs],) * 2
        return outcome(loss_fn, loss_fn(z1, z2, torch.arange(pairs), guide=guide, progress=0.9, **options), z1, z2)

    return call


def queue(build: Callable[[], Any]) -> Call:
    def call(pairs: int) -> Outcome:
        z1, z2 = views(pairs)
        keys, loss_fn = numbers(700, D, seed=3), build()
        losses = loss_fn(z1, z2, torch.arange(pairs), candidates=keys, candidate_ids=torch.arange(700), progress=0.9)
        return outcome(loss_fn, losses, z1, z2)

    return call


def hard_pairs(build: Callable[[], HardPairs]) -> Call:
    def call(pairs: int) -> Outcome:
        online, target = views(pairs)
        loss_fn = build()
        return outcome(loss_fn, loss_fn(online, target, torch.arange(pairs)) * pairs, online, target)

    return call


def soft_label(pairs: int) -> Outcome:
    students, keys = (normalise(each) for each in views(pairs))
    own, loss_fn = torch.arange(pairs), SoftLabel(0.2)
    return outcome(
        loss_fn,
        loss_fn(students, keys, own, torch.stack((own, own.flip(0))), torch.full((pairs,), 0.7)),
        students,
        keys,
    )


def local_aggregation(pairs: int) -> Outcome:
    close = Cave(700, (9,), space="features")
    close.labels.copy_(torch.arange(700)[None] % 9)
    close.fitted_at.fill_(0.5)
    z1, z2 = views(pairs)
    loss_fn = LocalAggregation(close, TAU, Hardest(50))
    keys = numbers(700, D, seed=3)
    loss = loss_fn(z1, z2, torch.arange(pairs), candidates=keys, candidate_ids=torch.arange(700)) * pairs
    return outcome(loss_fn, loss, z1, z2)


def temperature(learned: bool) -> float | Temperature:
    return Temperature(TAU, learnable=True) if learned else TAU


POLICIES: dict[str, Callable[[], Policy]] = {
    "glofnd": lambda: GloFND(N, 0.05, initial="quantile"),
    "fnc": lambda: FNC(0.05),
    "guided": lambda: Guided(0.1),
}
TREATMENTS = ("eliminate", "attract", "refine")
LOSSES: dict[str, Callable[..., Any]] = {
    "InfoNCE": InfoNCE,
    "Sigmoid": lambda tau, negatives=None, treatment="eliminate", **options: Sigmoid(
        tau, negatives=negatives, treatment=treatment, learnable=isinstance(tau, Temperature), **options
    ),
    "GlobalContrastive": lambda tau, negatives=None, treatment="eliminate", **options: GlobalContrastive(
        N, tau, negatives=negatives, treatment=treatment, **options
    ),
}


def calls() -> Iterator[tuple[str, Call]]:
    for name, kind in LOSSES.items():
        for learned in (False, True):
            word = "learned" if learned else "fixed"

            def plain(kind: Any = kind, learned: bool = learned) -> Any:
                return kind(temperature(learned), reduction="none")

            yield f"{name}-{word}-all", batch(plain)
            yield f"{name}-{word}-two-way", batch(lambda plain=plain: TwoWay(plain()))
            for policy, make in POLICIES.items():
                for treatment in TREATMENTS:

                    def build(kind: Any = kind, learned: bool = learned, make: Any = make, how: str = treatment) -> Any:
                        return kind(temperature(learned), negatives=make(), treatment=how, reduction="none")

                    yield f"{name}-{word}-{policy}-{treatment}", batch(build)
    for learned in (False, True):

        def ring(learned: bool = learned) -> InfoNCE:
            return InfoNCE(temperature(learned), Ring(), reduction="none")

        yield f"ring-{'learned' if learned else 'fixed'}-queue", queue(ring)
    yield "debiased", batch(lambda: InfoNCE(TAU, Debiased(0.01), reduction="none"))
    yield "guide-view", batch(lambda: InfoNCE(TAU, distill=Distillation(), reduction="none"))
    yield (
        "refine-guide",
        batch(lambda: InfoNCE(TAU, FNC(0.05), Refine(space="guide", share=0.5, among="others"), reduction="none")),
    )
    yield "hard-pairs-largest", hard_pairs(lambda: HardPairs(quantile=0.2))
    yield "hard-pairs-length", hard_pairs(lambda: HardPairs(top_k=3, scale="length"))
    yield "soft-label", soft_label
    yield "local-aggregation", local_aggregation


CALLS = dict(calls())


@pytest.mark.filterwarnings("ignore:some anchors have no negatives left")
@pytest.mark.parametrize("pairs", [64, 512])
@every("name", CALLS)
def test_autocast_changes_nothing(name: str, pairs: int) -> None:
    expected = CALLS[name](pairs)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            found = CALLS[name](pairs)
        for ours, outside in zip(found, expected, strict=True):
            assert ours.dtype == outside.dtype
            torch.testing.assert_close(ours, outside, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
def test_embeddings_in_half_precision_are_compared_in_float32(dtype: torch.dtype, autocast: bool) -> None:
    for build in (
        lambda: InfoNCE(TAU, reduction="none"),
        lambda: InfoNCE(Temperature(TAU, learnable=True).to(dtype), reduction="none"),
        lambda: GlobalContrastive(N, TAU, reduction="none"),
        lambda: Sigmoid(TAU, reduction="none"),
        lambda: TwoWay(InfoNCE(TAU, reduction="none")),
        lambda: HardPairs(),
    ):
        z1, z2 = (each.detach().to(dtype) for each in views(64))
        expected = build()(z1.float(), z2.float(), torch.arange(64))
        with torch.autocast("cpu", dtype) if autocast else nullcontext():
            found = build()(z1, z2, torch.arange(64))
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_a_loss_leaves_autocast_as_it_was() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        z1, z2 = views(8)
        InfoNCE()(z1, z2, torch.arange(8)).backward()
        assert torch.is_autocast_enabled("cpu")
        assert (z1 @ z2.T).dtype == torch.bfloat16
