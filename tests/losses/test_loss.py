"""What every loss promises: it refuses clearly, and is never NaN."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from antipodes import GlobalContrastive, InfoNCE, Oracle, Refine
from antipodes.losses import Loss
from antipodes.negatives import Policy
from antipodes.pairs import Pairs, Rule

Build = Callable[..., Loss]

LOSSES: dict[str, Build] = {
    "info_nce": InfoNCE,
    "global_contrastive": lambda **arguments: GlobalContrastive(20, **arguments),
}


@pytest.fixture(params=list(LOSSES))
def build(request: pytest.FixtureRequest) -> Build:
    return LOSSES[request.param]


def embeddings(batch: int) -> tuple[Tensor, Tensor]:
    first, second = torch.randn(2, batch, 6, generator=torch.Generator().manual_seed(0))
    return first.requires_grad_(), second.requires_grad_()


def finite_with_warnings(loss_fn: Loss, z1: Tensor, z2: Tensor, ids: Tensor, **arguments: Any) -> list[str]:
    """Call twice and go backward; everything has to be finite. Returns what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            loss = loss_fn(z1, z2, ids, **arguments)
            assert loss.isfinite()
            for gradient in torch.autograd.grad(loss, (z1, z2)):
                assert gradient.isfinite().all()
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("treatment", ["eliminate", "attract", "refine"])
@pytest.mark.parametrize("temperature", [0.02, 0.5])
def test_one_sample_in_a_batch(build: Build, treatment: str, temperature: float) -> None:
    oracle = Oracle(torch.zeros(20, dtype=torch.int64))
    loss_fn = build(temperature=temperature, negatives=oracle, treatment=treatment)
    told = finite_with_warnings(loss_fn, *embeddings(1), torch.tensor([3]))
    assert told == ["some anchors have no negatives left: nothing pushes them"]
    assert loss_fn.stats["without_negatives"] == 1


@pytest.mark.parametrize("temperature", [0.02, 0.5])
def test_every_negative_flagged(build: Build, temperature: float) -> None:
    loss_fn = build(temperature=temperature, negatives=Oracle(torch.zeros(20, dtype=torch.int64)))
    told = finite_with_warnings(loss_fn, *embeddings(5), torch.arange(5))
    assert told == ["some anchors have no negatives left: nothing pushes them"]
    assert loss_fn.stats["flagged_share"] == 1
    assert loss_fn.stats["kept_per_anchor"] == 0


@pytest.mark.parametrize("treatment", ["attract", "refine"])
def test_every_negative_pulled(build: Build, treatment: str) -> None:
    loss_fn = build(temperature=0.1, negatives=Oracle(torch.zeros(20, dtype=torch.int64)), treatment=treatment)
    assert finite_with_warnings(loss_fn, *embeddings(5), torch.arange(5)) == []
    assert loss_fn.stats["flagged_share"] == 1
    assert loss_fn.stats["pulled_per_anchor"] == 8


def test_some_anchors_without_negatives(build: Build) -> None:
    """All samples but the last share a label: the last one keeps eight, the others the last one's two views."""
    loss_fn = build(temperature=0.1, negatives=Oracle(torch.tensor([0, 0, 0, 0, 1] + [0] * 15)))
    assert finite_with_warnings(loss_fn, *embeddings(5), torch.arange(5)) == []
    z1, z2 = embeddings(5)
    told = finite_with_warnings(
        loss_fn, z1, z2, torch.arange(5), candidates=torch.eye(6)[:2], candidate_ids=torch.tensor([5, 6])
    )
    assert len(told) == 1
    assert loss_fn.stats["without_negatives"] == pytest.approx(0.8)


def test_one_id_throughout(build: Build) -> None:
    told = finite_with_warnings(build(), *embeddings(4), torch.full((4,), 7))
    assert len(told) == 1


def test_some_duplicate_ids(build: Build) -> None:
    assert finite_with_warnings(build(), *embeddings(4), torch.tensor([1, 1, 2, 3])) == []


def test_zero_vectors(build: Build) -> None:
    z1, z2 = (z.detach() for z in embeddings(4))
    z1[0] = 0
    z2[0] = 0
    z1[2] = 0
    told = finite_with_warnings(build(), z1.requires_grad_(), z2.requires_grad_(), torch.arange(4))
    assert told == ["some embeddings are zero vectors: their similarities are 0 and they get no gradient"]
    with pytest.warns(UserWarning, match="zero vectors"):
        gradient = torch.autograd.grad(build()(z1, z2, torch.arange(4)), z1)[0]
    assert not gradient[0].any()
    assert gradient[1].any()


def test_all_vectors_zero(build: Build) -> None:
    zeros = torch.zeros(3, 4, requires_grad=True)
    assert len(finite_with_warnings(build(), zeros, zeros.clone(), torch.arange(3))) == 1


def test_all_vectors_equal_and_all_opposite(build: Build) -> None:
    ones = torch.ones(3, 4, requires_grad=True)
    assert finite_with_warnings(build(temperature=0.02), ones, ones.clone(), torch.arange(3)) == []
    assert finite_with_warnings(build(temperature=0.02), ones, -ones.clone(), torch.arange(3)) == []


def test_an_empty_queue_is_no_reason_to_warn(build: Build) -> None:
    """Every run with a queue starts with one, and a warning comes once: it would hide the one that matters."""
    queue = {"candidates": torch.zeros(5, 6), "candidate_ids": torch.full((5,), -1)}
    assert finite_with_warnings(build(), *embeddings(3), torch.arange(3), **queue) == []


@pytest.mark.filterwarnings("ignore:some anchors have no negatives")
def test_statistics_without_candidates_are_finite(build: Build) -> None:
    """One NaN would spoil the mean of an epoch, and every epoch with a queue would begin with one."""
    loss_fn = build()
    loss_fn(*embeddings(3), torch.arange(3), candidates=torch.zeros(5, 6), candidate_ids=torch.full((5,), -1))
    assert all(math.isfinite(value) for value in loss_fn.stats.values())
    assert loss_fn.stats["flagged_share"] == 0


@pytest.mark.filterwarnings("ignore:some anchors have no negatives")
def test_no_candidates_at_all(build: Build) -> None:
    queue = {"candidates": torch.zeros(0, 6), "candidate_ids": torch.zeros(0, dtype=torch.int64)}
    finite_with_warnings(build(), *embeddings(3), torch.arange(3), **queue)


class Granularities(Policy):
    """A policy with several answers, as a clustering with several numbers of clusters has."""

    def judge(self, pairs: Pairs, progress: float) -> list[Rule]:
        return [Rule(ceiling=torch.full((len(pairs.anchors),), bound)) for bound in (0.0, 0.5, 2.0)]


def test_several_rules_give_the_mean_of_their_losses() -> None:
    z1, z2 = (z.detach() for z in embeddings(6))
    losses = []
    for bound in (0.0, 0.5, 2.0):
        policy = Granularities()
        policy.judge = lambda pairs, progress, learn=True, bound=bound: [  # type: ignore[method-assign,misc]
            Rule(ceiling=torch.full((len(pairs.anchors),), bound))
        ]
        losses.append(InfoNCE(0.2, policy)(z1, z2, torch.arange(6)))  # type: ignore[arg-type]
    loss = InfoNCE(0.2, Granularities())(z1, z2, torch.arange(6))  # type: ignore[arg-type]
    torch.testing.assert_close(loss, torch.stack(losses).mean())
    assert losses[0] < losses[2]


# what is refused, each in one sentence

BATCH = torch.ones(3, 4)
IDS = torch.arange(3)


def refused(loss_fn: Loss, sentence: str, *arguments: Any, **keywords: Any) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        loss_fn(*arguments, **keywords)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("view", [0, 1])
def test_refuses_embeddings_that_are_not_finite(build: Build, bad: float, view: int) -> None:
    views = [torch.eye(3, 4), torch.eye(3, 4)]
    views[view][1, 2] = bad
    refused(build(), "NaN or infinite", *views, IDS)
    # one direction: the second view is in no product of the kernel
    refused(build(), "NaN or infinite", *views, IDS, candidates=torch.eye(4), candidate_ids=torch.arange(4) + 5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_refuses_candidates_that_are_not_finite(build: Build, bad: float) -> None:
    candidates = torch.eye(4)
    candidates[1, 2] = bad
    refused(build(), "NaN or infinite", BATCH, BATCH, IDS, candidates=candidates, candidate_ids=torch.arange(4) + 5)


@pytest.mark.parametrize(
    ("z1", "z2", "ids"),
    [
        (BATCH, BATCH[:2], IDS),
        (BATCH, BATCH[:, :2], IDS),
        (BATCH, BATCH, IDS[:2]),
        (BATCH, BATCH, IDS[:, None]),
        (BATCH[0], BATCH[0], IDS),
        (BATCH[None], BATCH[None], IDS[:1]),
    ],
)
def test_refuses_shapes_that_do_not_fit(build: Build, z1: Tensor, z2: Tensor, ids: Tensor) -> None:
    refused(build(), r"z1 and z2 must be \(B, D\) and ids \(B,\), got", z1, z2, ids)


def test_refuses_an_empty_batch(build: Build) -> None:
    refused(build(), r"\(B, D\)", torch.zeros(0, 4), torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))


def test_refuses_ids_that_are_not_whole_numbers(build: Build) -> None:
    refused(build(), "ids must be whole numbers", BATCH, BATCH, IDS + 0.5)
    refused(build(), "ids must be whole numbers", BATCH, BATCH, ["a", 1, "c"])


def test_refuses_candidates_without_ids_and_ids_without_candidates(build: Build) -> None:
    refused(build(), "candidates and candidate_ids must both be given", BATCH, BATCH, IDS, candidates=torch.eye(4))
    refused(
        build(), "candidates and candidate_ids must both be given", BATCH, BATCH, IDS, candidate_ids=torch.arange(4)
    )


@pytest.mark.parametrize("negatives", [None, Oracle(torch.arange(20))])
def test_refuses_candidates_that_do_not_fit(build: Build, negatives: Oracle | None) -> None:
    loss_fn = build(negatives=negatives)
    refused(loss_fn, r"\(C, D\)", BATCH, BATCH, IDS, candidates=torch.eye(5), candidate_ids=torch.arange(5))
    refused(loss_fn, "candidate_ids", BATCH, BATCH, IDS, candidates=torch.eye(4), candidate_ids=torch.arange(5))


@pytest.mark.parametrize("progress", [-0.1, 1.1, math.nan])
def test_refuses_progress_outside_the_training(build: Build, progress: float) -> None:
    refused(build(), r"progress must be in \[0, 1\]", BATCH, BATCH, IDS, progress=progress)


@pytest.mark.parametrize("temperature", [0.0, -0.1, math.nan, math.inf])
def test_refuses_a_temperature_that_makes_no_sense(build: Build, temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be"):
        build(temperature=temperature)


def test_refuses_an_unknown_treatment(build: Build) -> None:
    with pytest.raises(ValueError, match=r"treatment 'attract' needs a policy"):
        build(treatment="attract")
    with pytest.raises(ValueError, match="ids must be at least 0, got -3"):
        build()(*embeddings(3), torch.tensor([-3, 1, 2]))
    with pytest.raises(ValueError, match=r"treatment must be one of eliminate, attract, attract_inside, refine"):
        build(treatment="ignore")


@pytest.mark.parametrize("bad", [{"mu": -1.0}, {"mu": math.inf}, {"tau_prime": 0.0}, {"tau_prime": 1.5}])
def test_refuses_to_refine_with_impossible_numbers(build: Build, bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(bad))} must be"):
        build(negatives=Oracle(torch.arange(20)), treatment=Refine(**bad))


def test_refuses_to_refine_without_the_positives_embeddings(build: Build) -> None:
    loss_fn = build(negatives=Oracle(torch.arange(20)), treatment="refine")
    with pytest.raises(ValueError, match="give Pairs its teachers"):
        loss_fn.evaluate(Pairs(torch.eye(4), torch.arange(4), torch.ones(4)))


def test_refuses_ids_beyond_the_labels(build: Build) -> None:
    loss_fn = build(negatives=Oracle(torch.arange(2)))
    refused(loss_fn, r"ids must be in 0\.\.1, got 0\.\.2", BATCH, BATCH, IDS)
    refused(loss_fn, r"ids must be in 0\.\.1", BATCH[:2], BATCH[:2], IDS[:2], candidates=BATCH, candidate_ids=IDS)


def test_a_refused_call_leaves_no_trace() -> None:
    loss_fn = GlobalContrastive(20)
    before = loss_fn.log_u.rows.clone()
    refused(loss_fn, r"ids must be in 0\.\.19", BATCH, BATCH, IDS + 18)
    refused(loss_fn, "progress must be", BATCH, BATCH, IDS, progress=2.0)
    assert torch.equal(loss_fn.log_u.rows, before)
