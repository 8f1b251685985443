"""Every method with every treatment: two ranks of half a batch equal one of a batch, a resumed run equals the run."""

import pytest
import torch
from torch import Tensor

from tests.methods.tiny import CASES, Training
from tests.ranks import Ranks

STEPS = 4  # the queue of 20 keys is empty in the first and wraps around in the third

pytestmark = pytest.mark.filterwarnings("ignore:some anchors have no negatives")


def train(
    rank: int, world_size: int, method: str, policy: str, dtype: torch.dtype, rate: float
) -> tuple[list[float], dict[str, Tensor]]:
    training = Training(method, policy, rank, world_size, dtype=dtype, rate=rate)
    losses = [training.step(number).item() for number in range(STEPS)]
    return losses, {name: tensor.detach().clone() for name, tensor in training.method.state_dict().items()}


DOUBLE = (torch.float64, 0.2, 1e-12)
SINGLE = (torch.float32, 0.05, 1e-5)  # smaller steps: training magnifies rounding errors with its learning rate
IN_SINGLE = [(method, "none") for method in ("simclr", "moco", "cmc", "byol", "swav")]


@pytest.mark.parametrize(
    ("method", "policy", "dtype", "rate", "tolerance"),
    [*((*case, *DOUBLE) for case in CASES), *((*case, *SINGLE) for case in IN_SINGLE)],
)
def test_two_ranks_equal_one(
    two_ranks: Ranks, method: str, policy: str, dtype: torch.dtype, rate: float, tolerance: float
) -> None:
    losses, state = train(0, 1, method, policy, dtype, rate)
    (first_losses, first), (second_losses, second) = two_ranks(train, method, policy, dtype, rate)
    means = [(a + b) / 2 for a, b in zip(first_losses, second_losses, strict=True)]
    assert means == pytest.approx(losses, rel=tolerance, abs=tolerance / 10)  # some losses are near zero
    assert losses[-1] != 0
    assert first.keys() == state.keys()
    for name, expected in state.items():
        assert torch.equal(first[name], second[name]), f"{name} differs between the ranks"
        if expected.is_floating_point() and expected.numel():
            scale = expected[expected.isfinite()].abs().max().item()
            error = (first[name] - expected)[expected.isfinite()].abs().max().item()
            assert error <= tolerance * scale, name
            assert torch.equal(first[name].isfinite(), expected.isfinite()), name
        else:
            assert torch.equal(first[name], expected), name


@pytest.mark.parametrize(("method", "policy"), CASES)
def test_a_resumed_run_is_bit_equal_and_its_statistics_are_numbers(method: str, policy: str) -> None:
    through, killed, resumed = Training(method, policy), Training(method, policy), Training(method, policy, seed=1)
    before = {name: tensor.clone() for name, tensor in through.method.state_dict().items()}
    expected = [through.step(number).item() for number in range(STEPS)]
    losses = [killed.step(number).item() for number in range(2)]
    checkpoint = killed.state()
    killed.step(2)  # lost
    resumed.load(checkpoint)
    losses += [resumed.step(number).item() for number in range(2, STEPS)]
    assert losses == expected
    state, again = through.method.state_dict(), resumed.method.state_dict()
    assert state.keys() == again.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor, again[name]), name
    check_statistics(method, policy, through.method.statistics())
    if policy == "none":
        check_state(method, through, {name for name, tensor in state.items() if not torch.equal(tensor, before[name])})


def check_state(method: str, training: Training, moved: set[str]) -> None:
    """All that training moves is in the checkpoint, and data-parallel training wraps no state but the network.

    Broadcasting buffers would overwrite the tables of other ranks.
    """
    momentum = {"queue.keys", "queue.ids", "queue.cursor", "key_network.towers.image.encoder.layer.weight"}
    expected = {
        "sogclr": {"directions.image.log_u.rows"},
        "clip-global": {f"directions.{name}.log_u.rows" for name in ("image_to_vector", "vector_to_image")},
        "moco": momentum,
        "moco-v1": momentum,
        "sane": momentum | {"steps"},
        "sane-vanilla": momentum | {"steps"},
        "instance": {"bank.table.rows", "bank.draws"},
        "hnssl": {"_target.encoder.layer.weight"},
        "byol": {"target.encoder.layer.weight"},
        "pcl": momentum | {"directions.prototypes.steps"},
        "swav": {f"queues.{view}.{name}" for view in (0, 1) for name in ("keys", "ids")},
        "i-mix": momentum | {"steps"},
        "instance-expected": {"bank.table.rows"},
        "la": {"bank.table.rows", "directions.image.close.seen"},
        "cmc": {f"banks.{bank}.{name}" for bank in ("l", "ab") for name in ("table.rows", "draws")},
    }
    assert expected.get(method, set()) <= moved
    networks = {f"network.{name}" for name, _ in training.method.network.named_parameters()}
    assert networks <= moved
    assert list(training.method.network.buffers()) == []
    trained = {name for name, parameter in training.method.named_parameters() if parameter.requires_grad}
    assert trained == networks


def check_statistics(method: str, policy: str, numbers: dict[str, float]) -> None:
    """The statistics are those that the method and the policy have."""
    assert all(isinstance(value, float) for value in numbers.values())
    own = {
        "hnssl": {"kept_per_anchor", "positive_term", "negative_term"},
        "byol": {"positive_similarity", "target_similarity"},
        "simsiam": {"positive_similarity", "target_similarity"},
        "swav": {"code_confidence", "prototypes_used"},
    }
    if method in own:
        assert own[method] <= numbers.keys()
        return
    assert {"kept_per_anchor", "positive_similarity"} <= numbers.keys()
    ignores = policy in ("ring", "hardest", "hcl", "cave", "collapse")  # these do not flag
    ignores |= method in ("la", "cmc-la") and policy == "none"
    assert ("flagged_share" in numbers) == (not ignores)
    if (method, policy) == ("cmc", "history"):
        return  # the histories of its two channels are not alike yet, so there is nothing to flag
    if "flagged_share" in numbers:
        nothing = policy in ("none", "debiased", "bcl", "view")
        assert (numbers["flagged_share"] > 0) == (not nothing or method == "supcon")
    assert (numbers["pulled_per_anchor"] > 0) == (
        policy in ("attract", "refine", "fnc", "history", "known") or method == "supcon"
    )
