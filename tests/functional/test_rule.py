import pytest
import torch

from antipodes.functional.rule import Group, Rule


def bounds(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers)


def test_and_takes_the_narrower_band_and_all_groups() -> None:
    first, second = (Group(torch.tensor([0, 1]), torch.tensor([1])) for _ in range(2))
    a = Rule(low=bounds(0.1, 0.3), high=bounds(0.9, 0.5), ceiling=bounds(0.4, 0.8), groups=(first,))
    b = Rule(low=bounds(0.2, 0.2), high=bounds(0.7, 0.7), ceiling=bounds(0.6, 0.6), groups=(second,))
    both = a & b
    assert both.low is not None
    assert both.high is not None
    assert both.ceiling is not None
    assert both.low.tolist() == bounds(0.2, 0.3).tolist()
    assert both.high.tolist() == bounds(0.7, 0.5).tolist()
    assert both.ceiling.tolist() == bounds(0.4, 0.6).tolist()
    assert both.groups == (first, second)


@pytest.mark.parametrize("name", ["low", "high", "ceiling"])
def test_and_keeps_the_only_bound_on_either_side(name: str) -> None:
    bounded = Rule(**{name: bounds(0.5)}, above="pull")  # type: ignore[arg-type]
    for both in (bounded & Rule(), Rule() & bounded):
        assert getattr(both, name) is getattr(bounded, name)
        if name == "ceiling":
            assert both.above == "pull"


def test_a_dropping_and_a_pulling_ceiling_become_a_high_and_a_pulling_ceiling() -> None:
    drop, pull = Rule(ceiling=bounds(0.8)), Rule(ceiling=bounds(0.5), above="pull")
    for both in (drop & pull, pull & drop):
        assert both.high is drop.ceiling
        assert both.ceiling is pull.ceiling
        assert both.above == "pull"


def test_attract_pulls_what_was_dropped_and_leaves_the_rest() -> None:
    numbers = torch.tensor([0])
    groups = tuple(Group(numbers, numbers, same) for same in ("drop", "only", "pull"))
    rule = Rule(low=bounds(0.1), ceiling=bounds(0.5), groups=groups)
    attracted = rule.attract()
    assert attracted.above == "pull"
    assert [group.same for group in attracted.groups] == ["pull", "only", "pull"]
    assert attracted.low is rule.low
    assert attracted.ceiling is rule.ceiling
    assert rule.above == "drop"
    assert rule.groups[0].same == "drop"
