"""Two policies at once: by hand, with everything flagged, on two ranks, and with state that a checkpoint restores."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from antipodes import InfoNCE, Oracle
from antipodes.functional.contrast import contrast
from antipodes.functional.rule import Ranks as Order
from antipodes.losses import Treatment
from antipodes.negatives import Both, Policy
from antipodes.pairs import Pairs, Rule
from antipodes.state import SampleTable
from tests.reference import losses as reference

SHAPES = torch.tensor([0, 0, 1, 1, 2, 2])
COLOURS = torch.tensor([0, 1, 1, 0, 0, 1])


class Ceiling(Policy):
    """Flags above a ceiling per sample, which falls by a tenth at every visit."""

    def __init__(self, num_samples: int) -> None:
        super().__init__()
        self.ceiling = SampleTable(num_samples, fill=0.6)

    def judge(self, pairs: Pairs, progress: float) -> Sequence[Rule]:
        ceiling = self.ceiling.read(pairs.anchor_ids) - 0.1
        self.ceiling.write(pairs.anchor_ids, ceiling)
        return [Rule(ceiling=ceiling)]


class Several(Policy):
    """Answers with one rule per bound."""

    def __init__(self, *bounds: float) -> None:
        super().__init__()
        self.bounds = bounds

    def judge(self, pairs: Pairs, progress: float) -> Sequence[Rule]:
        return [Rule(low=torch.full((len(pairs.anchors),), bound)) for bound in self.bounds]


def views(seed: int = 0) -> tuple[Tensor, Tensor]:
    z1, z2 = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return z1.requires_grad_(), z2.requires_grad_()


def test_a_candidate_counts_when_both_keep_it() -> None:
    pairs = Pairs(torch.eye(6), torch.arange(6), torch.zeros(6))
    policy = Oracle(SHAPES) & Oracle(COLOURS)
    assert isinstance(policy, Both)
    (rule,) = policy.judge(pairs, 1.0)
    sums = contrast(pairs.anchors, anchor_ids=pairs.anchor_ids, temperature=1.0, rules=rule)
    # of five others one has the anchor's shape and two its colour, none has both
    assert sums.kept[0].tolist() == [2] * 6


@pytest.mark.parametrize("treatment", ["eliminate", "attract"])
def test_by_loops(treatment: Treatment) -> None:
    z1, z2 = views()
    loss = InfoNCE(0.2, Oracle(SHAPES) & Oracle(COLOURS), treatment)(z1, z2, torch.arange(6))
    shapes, colours = reference.same(SHAPES.tolist()), reference.same(COLOURS.tolist())
    expected = reference.info_nce(z1, z2, range(6), 0.2, lambda i, k: shapes(i, k) or colours(i, k), treatment)
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(torch.autograd.grad(loss, (z1, z2)), torch.autograd.grad(expected, (z1, z2)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_three_policies_and_the_order_do_not_matter() -> None:
    z1, z2 = (z.detach() for z in views())
    losses = []
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        a, b, c = ([Oracle(SHAPES), Oracle(COLOURS), Several(-0.2)][i] for i in order)
        losses += [InfoNCE(0.2, policy)(z1, z2, torch.arange(6)) for policy in (a & b & c, a & (b & c))]
    torch.testing.assert_close(torch.stack(losses), losses[0].expand(6))


def test_every_rule_meets_every_rule() -> None:
    pairs = Pairs(torch.eye(6), torch.arange(6), torch.zeros(6))
    rules = (Several(-0.5, 0.1) & Several(-0.3, 0.0, 0.2)).judge(pairs, 1.0)
    lows = [rule.low[0].item() for rule in rules if rule.low is not None]
    assert lows == pytest.approx([-0.3, 0.0, 0.2, 0.1, 0.1, 0.2])


def test_one_rule_and_one_order_of_ranks_need_no_list() -> None:
    class Listed(Policy):
        def judge(self, pairs: Pairs, progress: float) -> Sequence[Rule]:
            return [Rule(ranks=(Order(1, 3),))]

    class Plain(Policy):
        def judge(self, pairs: Pairs, progress: float) -> Rule:  # type: ignore[override]
            return Rule(ranks=Order(1, 3))

    class Nothing(Policy):
        def judge(self, pairs: Pairs, progress: float) -> None:  # type: ignore[override]
            return None

    z1, z2 = torch.randn(2, 16, 8, generator=torch.Generator().manual_seed(0))
    losses = [InfoNCE(0.1, policy())(z1, z2, torch.arange(16)) for policy in (Listed, Plain)]
    torch.testing.assert_close(*losses)
    with pytest.raises(TypeError, match=r"Nothing\.judge"):
        InfoNCE(0.1, Nothing())(z1, z2, torch.arange(16))
