"""Ring and Hardest: ranks by hand and by sorting, and the promises every policy keeps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from antipodes import Hardest, Policy, Ring
from antipodes.pairs import Pairs, normalise


def tell(policy: Ring, value: float, progress: float) -> None:
    """Give an adaptive ring the number that it receives."""
    (policy.on_loss if policy.needs.receives == "loss" else policy.on_score)(value, progress)


def circle(*degrees: float) -> torch.Tensor:
    angles = torch.tensor(degrees).deg2rad()
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def kept(policy: Policy, pairs: Pairs, progress: float = 1.0) -> list[list[int]]:
    """Columns that count, by anchor."""
    (rule,) = pairs.bounded(policy.judge(pairs, progress))
    keys, ids = pairs.keys()
    similarity = pairs.anchors @ keys.T
    inside = (ids[None] != pairs.anchor_ids[:, None]) & (ids >= 0)[None]
    if rule.low is not None:
        inside &= similarity >= rule.low[:, None]
    if rule.high is not None:
        inside &= similarity <= rule.high[:, None]
    return [row.nonzero()[:, 0].tolist() for row in inside]


def test_rings_by_hand_on_a_circle() -> None:
    keys = circle(*range(10, 110, 10))  # ten candidates at 10 to 100 degrees from the anchor
    pairs = Pairs(circle(0.0), torch.tensor([99]), torch.ones(1), keys, torch.arange(10))
    assert kept(Ring(outer=(1.0, 0.5), inner=0.2), pairs, 0.0) == [list(range(2, 10))]  # ranks [2, 10)
    assert kept(Ring(outer=(1.0, 0.5), inner=0.2), pairs, 1.0) == [[1, 2, 3, 4]]  # ranks [1, 5)
    assert kept(Ring(outer=(1.0, 0.5), inner=0.2, until=1.0), pairs, 0.6) == [[1, 2, 3, 4, 5, 6]]  # outer 0.7: [1.4, 7)
    assert kept(Ring(outer=(1.0, 0.5), inner=0.0), pairs, 1.0) == [[0, 1, 2, 3, 4]]  # the ball
    assert kept(Ring(outer=(1.0, 0.5), inner=0.2, anneal="none"), pairs, 0.0) == [[1, 2, 3, 4]]
    assert kept(Ring(outer=(1.0, 0.5), inner=0.2, anneal="step", until=0.5), pairs, 0.49) == [list(range(2, 10))]
    assert kept(Ring(outer=(1.0, 0.5), inner=0.2, anneal="step", until=0.5), pairs, 0.5) == [[1, 2, 3, 4]]
    assert kept(Ring(outer=(1, 1), inner=0), pairs) == [list(range(10))]  # integers are shares, too
    assert kept(Hardest(3), pairs) == [[0, 1, 2]]


@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 60), outer=st.floats(0.05, 1.0), inner=st.floats(0.0, 0.95), seed=st.integers(0, 100))
def test_rings_equal_a_sort(count: int, outer: float, inner: float, seed: int) -> None:
    z = normalise(torch.randn(count + 1, 5, generator=torch.Generator().manual_seed(seed)))
    pairs = Pairs(z[:1], torch.tensor([0]), torch.ones(1), z, torch.arange(count + 1))
    order = (z[0] @ z[1:].T).argsort(descending=True) + 1
    first = math.floor(inner * outer * count + 1e-6)  # rounding errors do not count
    ranks = slice(first, max(math.floor(outer * count + 1e-6), first + 1))  # at least one
    assert kept(Ring((1.0, outer), inner), pairs) == [sorted(order[ranks].tolist())]
    assert kept(Hardest(4), pairs) == [sorted(order[:4].tolist())]


def test_validation_shrinks_after_a_better_score_and_widens_otherwise() -> None:
    policy = Ring((1.0, 0.1), until=0.5, anneal="validation")
    assert policy.needs.receives == "score"
    notch = 0.9 / 0.5 * 0.1  # of the linear anneal in a tenth of training
    shares = []
    for epoch, score in enumerate([30.0, 31.0, 33.0, 32.0, 32.5, 32.5, 40.0, 41.0, 42.0, 43.0]):
        tell(policy, score, 0.1 * (epoch + 1))
        shares.append(policy.share(0.0))
    notches = [0, 1, 2, 1, 2, 1, 2, 3, 4, 5]  # against the score before, not against the best
    assert shares == pytest.approx([1 - notch * count for count in notches], abs=1e-6)
    assert policy.statistics() == {"ring_outer": shares[-1]}
    for epoch in range(10):
        tell(policy, 50.0 + epoch, 1.0 + epoch)
    assert policy.share(0.0) == pytest.approx(0.1)  # and no further
    tell(policy, 0.0, 100.0)
    assert policy.share(0.0) == 1


def test_validation_waits_for_its_patience() -> None:
    policy = Ring((1.0, 0.1), until=0.9, anneal="validation", patience=2)
    shares = []
    for epoch, score in enumerate([5.0, 6.0, 5.0, 7.0, 6.0, 5.0, 4.0]):
        tell(policy, score, 0.1 * epoch)
        shares.append(round(policy.share(0.0), 4))
    assert shares == [1.0, 0.9, 0.9, 0.8, 0.8, 0.9, 1.0]


def test_the_loss_is_compared_with_its_running_mean() -> None:
    policy = Ring((1.0, 0.1), until=0.9, anneal="loss")
    mean, outer = 4.0, 1.0
    for step, loss in enumerate([4.0, 3.0, 3.9, 3.99, 3.5, 4.5, 2.0]):
        tell(policy, loss, 0.01 * step)
        if step:
            outer = min(1.0, outer - 0.01 if loss < mean else outer + 0.01)
        mean = 0.99 * mean + 0.01 * loss
        assert policy.share(0.5) == pytest.approx(outer, abs=1e-6)
    assert outer < 1


@pytest.mark.parametrize("anneal", ["validation", "loss"])
def test_an_adaptive_ring_is_saved(anneal: Any) -> None:
    policy, resumed = Ring(anneal=anneal), Ring(anneal=anneal)
    for step, better in enumerate([1.0, 2.0, 3.0, 2.0, 4.0, 5.0]):
        value = -better if anneal.startswith("loss") else better
        tell(policy, value, 0.01 * step)
        if step == 2:
            resumed.load_state_dict(policy.state_dict())
        elif step > 2:
            tell(resumed, value, 0.01 * step)
    assert 0.1 < policy.share(0.0) < 1
    assert policy.share(0.0) == resumed.share(0.0)


def test_before_the_start_every_candidate_counts() -> None:
    pairs = Pairs(circle(0.0), torch.tensor([99]), torch.ones(1), circle(*range(10, 110, 10)), torch.arange(10))
    policy = Ring((1.0, 0.5), inner=0.2, until=0.8, start=0.4)
    assert kept(policy, pairs, 0.39) == [list(range(10))]
    assert kept(policy, pairs, 0.4) == [list(range(2, 10))]
    assert policy.share(0.6) == pytest.approx(0.75)
    assert kept(policy, pairs, 0.8) == [[1, 2, 3, 4]]


@pytest.mark.parametrize("anneal", ["validation", "loss"])
def test_before_the_start_adaptive_anneals_only_remember(anneal: Any) -> None:
    policy = Ring((1.0, 0.1), until=0.9, start=0.5, anneal=anneal)
    sign = -1 if anneal.startswith("loss") else 1
    for step in range(50):
        tell(policy, sign * (1.0 + step), 0.01 * step)  # better and better
    assert policy.share(0.5) == 1
    tell(policy, sign * 100.0, 0.6)
    moved = 0.9 / 0.4 * 0.1  # by the time since the start, not since the last number
    assert policy.share(0.6) == pytest.approx(1 - moved)


@pytest.mark.parametrize("count", [10, 100, 1000])
def test_edges_are_whole_where_rounding_errs(count: int) -> None:
    """At progress 0.2 the ball is 1 - 0.9 * 0.6 = 0.46, which the schedule gives as 0.4599999999999999."""
    ids = torch.arange(1, count + 1)
    anchors, candidates = circle(0.0), circle(*(90.0 * place / count for place in ids.tolist()))
    pairs = Pairs(anchors, torch.tensor([0]), torch.ones(1), candidates, ids)
    policy = Ring()
    assert policy.share(0.2) < 0.46
    (rule,) = policy.judge(pairs, 0.2)
    (ranks,) = rule.ranks
    assert (int(ranks.first), int(ranks.last)) == (46 * count // 1000, 46 * count // 100)
    adaptive = Ring(anneal="loss")
    adaptive.ball.fill_(0.7)  # in float32 0.699999988
    (rule,) = adaptive.judge(pairs, 0.2)
    assert int(rule.ranks[0].last) == 7 * count // 10


def test_wrong_arguments_get_one_sentence() -> None:
    for arguments, sentence in (
        ({"outer": (1.0, 0.0)}, "outer must be"),
        ({"inner": 1.0}, "inner must be in"),
        ({"until": 0.0}, "until must be in"),
        (
            {"anneal": "cosine"},
            "anneal must be one of linear, step, none, validation, loss",
        ),
        ({"patience": 0}, "patience must be at least 1"),
        ({"outer": 0.5}, "outer must be"),
        ({"start": 0.5, "until": 0.4}, "start must be in"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Ring(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k must be at least 1"):
        Hardest(0)
