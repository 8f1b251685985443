"""Both directions of two modalities: CLIP, SigLIP and FastCLIP against loops, on one rank and on two."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from antipodes import (
    FNC,
    GlobalContrastive,
    GloFND,
    Guided,
    InfoNCE,
    Oracle,
    Ring,
    Sigmoid,
    Temperature,
    TwoWay,
)
from antipodes.losses import Loss, Refine, Treatment
from tests.cases import every
from tests.ranks import Ranks
from tests.reference import modalities as reference

B = 7
IDS = torch.tensor([0, 1, 2, 2, 3, 4, 5])  # two captions of one image
LABELS = torch.arange(8) % 3
NAMES = ("image_to_text", "text_to_image")


def same(i: int, k: int) -> bool:
    return bool(LABELS[IDS[i]] == LABELS[IDS[k]])


def embeddings(count: int = B, seed: int = 0) -> tuple[Tensor, Tensor]:
    first, second = torch.randn(2, count, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return first.requires_grad_(), second.requires_grad_()


def compare(ours: Tensor, theirs: Tensor, wanted: list[Tensor]) -> None:
    torch.testing.assert_close(ours, theirs)
    pairs = zip(torch.autograd.grad(ours, wanted), torch.autograd.grad(theirs, wanted), strict=True)
    for mine, other in pairs:
        torch.testing.assert_close(mine, other)


def parameter(clip: TwoWay) -> torch.nn.Parameter:
    temperature = clip.temperature
    assert isinstance(temperature, Temperature)
    assert temperature.parameter is not None
    temperature.double()
    return temperature.parameter


@pytest.mark.parametrize("policy", [False, True])
def test_clip_equals_loops(policy: bool) -> None:
    clip = TwoWay(InfoNCE(Temperature(0.2, learnable=True), Oracle(LABELS) if policy else None), NAMES)
    first, second = embeddings()
    log_tau = parameter(clip)
    loss = clip(first, second, IDS)
    expected = reference.clip(first, second, IDS.tolist(), log_tau.exp(), same if policy else None)
    compare(loss, expected, [first, second, log_tau])
    assert set(clip.stats) >= {f"{name}/kept_per_anchor" for name in NAMES}


def test_one_product_equals_two_calls() -> None:
    """The shortcut of one rank: the same as each direction by itself, policies and all."""
    first, second = embeddings()
    clip = TwoWay(InfoNCE(0.1, GloFND(8, alpha=0.3, optimizer="sgd", lr=2.0) & FNC(0.2)), NAMES)
    one, other = (InfoNCE(0.1, GloFND(8, alpha=0.3, optimizer="sgd", lr=2.0) & FNC(0.2)) for _ in range(2))
    for _ in range(3):
        loss = clip(first, second, IDS)
        there = one(first, second, IDS, candidates=second, candidate_ids=IDS)
        back = other(second, first, IDS, candidates=first, candidate_ids=IDS)
        compare(loss, (there + back) / 2, [first, second])
    tables = [policy for policy in clip.policies() if isinstance(policy, GloFND)]
    assert len(tables) == 2
    assert not torch.equal(tables[0].threshold, tables[1].threshold)
    torch.testing.assert_close(tables[1].threshold, other.policies()[0].threshold)  # type: ignore[arg-type]


def test_a_direction_has_its_own_policy_and_shares_the_temperature() -> None:
    clip = TwoWay(InfoNCE(Temperature(0.07, learnable=True), GloFND(8)), NAMES)
    one, other = clip.directions.values()
    assert isinstance(one, Loss)
    assert isinstance(other, Loss)
    assert one.temperature is other.temperature
    assert one.negatives is not other.negatives
    assert len(list(clip.parameters())) == 1
    apart = TwoWay(GlobalContrastive(8, Temperature(0.07, per_sample=8)))
    assert len(list(apart.parameters())) == 2
    assert list(apart.directions) == ["first_to_second", "second_to_first"]


@pytest.mark.parametrize("treatment", ["eliminate", "attract"])
def test_siglip_equals_loops(treatment: Treatment) -> None:
    """One direction is SigLIP's loss; with attraction the flagged pairs are positives; both directions agree."""
    first, second = embeddings()
    loss_fn = Sigmoid(0.3, -2.0, Oracle(LABELS) if treatment == "attract" else None, treatment).double()
    loss = loss_fn(first, second, IDS, candidates=second, candidate_ids=IDS)
    assert isinstance(loss_fn.temperature, Temperature)
    log_tau = loss_fn.temperature.parameter
    assert log_tau is not None
    pulled = same if treatment == "attract" else None
    expected = reference.siglip(first, second, IDS.tolist(), log_tau.exp(), loss_fn.bias, pulled)
    compare(loss, expected, [first, second, log_tau, loss_fn.bias])
    both = TwoWay(Sigmoid(0.3, -2.0, Oracle(LABELS) if treatment == "attract" else None, treatment).double())
    torch.testing.assert_close(both(first, second, IDS), loss)
    assert len(list(both.parameters())) == 2


@pytest.mark.parametrize(("mu", "tau_prime"), [(1.0, 0.8), (0.3, 0.1), (10.0, 1.0)])
def test_refined_siglip_equals_loops(mu: float, tau_prime: float) -> None:
    """In value, and in the gradients of embeddings, temperature and bias; both directions and each by itself."""
    first, second = embeddings()
    soft_targets = Refine(mu, tau_prime)
    loss_fn = Sigmoid(0.3, -2.0, Oracle(LABELS), soft_targets).double()
    loss = loss_fn(first, second, IDS, candidates=second, candidate_ids=IDS)
    assert isinstance(loss_fn.temperature, Temperature)
    log_tau, ids = loss_fn.temperature.parameter, IDS.tolist()
    assert log_tau is not None
    wanted = [first, second, log_tau, loss_fn.bias]
    refined = functools.partial(reference.siglip_refined, flagged=same, mu=mu, tau_prime=tau_prime)
    compare(loss, refined(first, second, ids, log_tau.exp(), loss_fn.bias), wanted)
    assert loss_fn.stats["refined_mass"] > 0
    both = TwoWay(loss_fn)
    there, back = (refined(*views, ids, log_tau.exp(), loss_fn.bias) for views in ((first, second), (second, first)))
    compare(both(first, second, IDS), (there + back) / 2, wanted)
    flagged = sum(same(i, k) and ids[i] != ids[k] for i in range(B) for k in range(B)) / B
    kept = both.stats["first_to_second/kept_per_anchor"]
    assert kept == pytest.approx(sum(ids[i] != ids[k] for i in range(B) for k in range(B)) / B)
    assert both.stats["first_to_second/flagged_share"] == pytest.approx(flagged / kept)


def test_refined_siglip_without_confidence_flags_nothing_and_with_it_pulls_copies() -> None:
    first, second = embeddings()
    plain = Sigmoid(0.3, -2.0, learnable=False)(first, second, IDS)
    torch.testing.assert_close(
        Sigmoid(0.3, -2.0, Oracle(LABELS), Refine(mu=0.0), learnable=False)(first, second, IDS), plain
    )
    copies = second[:1].detach().expand(3, -1)  # three texts that are the same, and flagged
    labels, ids = torch.zeros(3, dtype=torch.int64), torch.arange(3)
    attracted = Sigmoid(0.3, -2.0, Oracle(labels), "attract", learnable=False)(
        first[:3], copies, ids, candidates=copies, candidate_ids=ids
    )
    refined = Sigmoid(0.3, -2.0, Oracle(labels), Refine(mu=1e12), learnable=False)(
        first[:3], copies, ids, candidates=copies, candidate_ids=ids
    )
    torch.testing.assert_close(refined, attracted)


def test_siglip_starts_where_its_paper_does() -> None:
    loss_fn = Sigmoid()
    assert isinstance(loss_fn.temperature, Temperature)
    assert loss_fn.temperature.parameter is not None
    assert loss_fn.temperature.parameter.item() == pytest.approx(-torch.tensor(10.0).log().item())
    assert loss_fn.bias.item() == -10
    fixed = Sigmoid(0.1, -10.0, learnable=False)
    assert not list(fixed.parameters())
    first, second = embeddings()
    torch.testing.assert_close(fixed(first, second), loss_fn(first, second))


def test_sigmoid_refuses_what_does_not_fit() -> None:
    from antipodes import Debiased

    with pytest.raises(ValueError, match="policies that reweigh it do not fit"):
        Sigmoid(negatives=Debiased())
    with pytest.raises(ValueError, match="bias must be"):
        Sigmoid(bias=float("nan"))
    with pytest.raises(ValueError, match="loss_fn must be"):
        TwoWay(torch.nn.Identity())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two different"):
        TwoWay(InfoNCE(), ("a", "a"))


@pytest.mark.parametrize("per_sample", [False, True])
def test_fastclip_equals_loops(per_sample: bool) -> None:
    """Version 3 with one temperature, version 2 with one per sample: values, and gradients of tau, over visits."""
    tau = Temperature(0.3, learnable=not per_sample, per_sample=8 if per_sample else None, form="linear").double()
    clip = TwoWay(GlobalContrastive(8, tau, gamma=0.6, rho=6.5), NAMES)
    loops = [reference.FastCLIP(0.6, 6.5) for _ in range(2)]
    parameters = list(clip.parameters())
    ids = torch.tensor([0, 1, 2, 7, 3, 4, 5])
    for seed in range(3):
        first, second = embeddings(seed=seed)
        loss = clip(first, second, ids)
        values, estimators = [], []
        for loop, views, number in zip(loops, ((first, second), (second, first)), (0, -1), strict=True):
            own = parameters[number][ids] if per_sample else parameters[0]
            value, estimator = loop.step(*views, ids.tolist(), own)
            values.append(value)
            estimators.append(estimator)
        assert loss.item() == pytest.approx(sum(values) / 2)
        wanted = [first, second, *parameters]
        ours = torch.autograd.grad(loss, wanted)
        theirs = torch.autograd.grad((estimators[0] + estimators[1]) / 2, wanted)
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7)  # u is stored in float32


@pytest.mark.filterwarnings("ignore:some anchors have no negatives")
@pytest.mark.parametrize("build", [InfoNCE, Sigmoid, lambda **arguments: GlobalContrastive(8, **arguments)])
def test_everything_flagged_stays_finite(build: Any) -> None:
    clip = TwoWay(build(negatives=Oracle(torch.zeros(8, dtype=torch.int64))))
    first, second = embeddings()
    loss = clip(first, second, IDS)
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, (first, second)))


def test_rows_weights_and_the_loss_of_every_sample() -> None:
    first, second = embeddings()
    rows = torch.arange(B) + 1
    each = TwoWay(InfoNCE(0.2, Oracle(LABELS), reduction="none"))(first, second, IDS, rows=rows)
    assert each.shape == (B,)
    weights = torch.linspace(0.1, 1, B).double()
    loss = TwoWay(InfoNCE(0.2, Oracle(LABELS)))(first, second, IDS, rows=rows, weights=weights)
    torch.testing.assert_close(loss, (weights * each).sum() / weights.sum())


def test_validation_moves_nothing() -> None:
    clip = TwoWay(GlobalContrastive(8, negatives=GloFND(8, alpha=0.3)))
    clip(*embeddings(), IDS)
    before = {name: value.clone() for name, value in clip.state_dict().items()}
    clip.eval()
    clip(*embeddings(seed=1), IDS)
    assert all(torch.equal(before[name], value) for name, value in clip.state_dict().items())


def test_an_observer_sees_both_directions() -> None:
    clip = TwoWay(InfoNCE(0.1, FNC(0.2)))
    seen: list[Any] = []
    clip.observer = seen.append
    clip(*embeddings(), IDS)
    assert [sorted(each.score(LABELS))[0] for each in seen] == ["anchor_precision"] * 2


def share(rank: int, world_size: int, kind: str) -> tuple[Any, ...]:
    """Two steps of one rank's part: losses, gradients of embeddings and parameters, state."""
    part = slice(8 * rank // world_size, 8 * (rank + 1) // world_size)
    ids = torch.tensor([0, 1, 2, 2, 3, 4, 5, 6])[part]
    build: dict[str, Any] = {
        "clip": lambda: InfoNCE(Temperature(0.2, learnable=True), GloFND(8, alpha=0.3, lr=0.3)),
        "ring": lambda: InfoNCE(0.2, Ring((0.8, 0.8)) & Guided(0.1)),
        "siglip": lambda: Sigmoid(0.3, -2.0, FNC(0.2), "attract"),
        "siglip, refined": lambda: Sigmoid(0.3, -2.0, FNC(0.2), "refine"),
        "fastclip": lambda: GlobalContrastive(8, Temperature(0.3, learnable=True), rho=6.5, gamma=0.5),
        "isogclr": lambda: GlobalContrastive(8, Temperature(0.3, per_sample=8), rho=6.5, gamma=0.5),
    }
    clip = TwoWay(build[kind]()).double()
    results: list[Any] = []
    for seed in range(2):
        first, second = (z.detach()[part].clone().requires_grad_() for z in embeddings(8, seed))
        guide = tuple(z.detach()[part] for z in embeddings(8, seed + 9))
        loss = clip(first, second, ids, guide=guide)
        gradients = torch.autograd.grad(loss, [first, second, *clip.parameters()])
        results.append((loss.detach(), torch.stack(gradients[:2]), [each.clone() for each in gradients[2:]]))
    return results, clip.state_dict()


@every("kind", ["clip", "ring", "siglip", "siglip, refined", "fastclip", "isogclr"])
def test_two_ranks_equal_one(two_ranks: Ranks, kind: str) -> None:
    whole, state = share(0, 1, kind)
    (ours, our_state), (theirs, their_state) = two_ranks(share, kind)
    for (loss, gradient, parameters), (a, grad_a, par_a), (b, grad_b, par_b) in zip(whole, ours, theirs, strict=True):
        torch.testing.assert_close((a + b) / 2, loss)
        torch.testing.assert_close(torch.cat((grad_a, grad_b), dim=1) / 2, gradient)
        for one, first_rank, second_rank in zip(parameters, par_a, par_b, strict=True):
            torch.testing.assert_close(first_rank, one)  # averaged over ranks already
            torch.testing.assert_close(second_rank, one)
    for name, value in state.items():
        assert torch.equal(our_state[name], their_state[name])
        torch.testing.assert_close(our_state[name], value)


def test_save_load_continue_is_bit_equal() -> None:
    def build() -> TwoWay:
        return TwoWay(
            GlobalContrastive(8, Temperature(0.2, learnable=True), negatives=GloFND(8, alpha=0.3), total_steps=9)
        )

    whole, resumed = build(), build()
    for seed in range(3):
        whole(*embeddings(seed=seed), IDS)
    resumed.load_state_dict({name: value.clone() for name, value in whole.state_dict().items()})
    for seed in range(3, 6):
        assert torch.equal(whole(*embeddings(seed=seed), IDS), resumed(*embeddings(seed=seed), IDS))
    assert all(torch.equal(value, resumed.state_dict()[name]) for name, value in whole.state_dict().items())
