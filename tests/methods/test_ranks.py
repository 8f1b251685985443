"""Every method with every treatment: two ranks of half a batch equal one of a batch, a resumed run equals the run."""

import pytest
import torch
from torch import Tensor

from tests.methods.tiny import CASES, PLAIN, Training
from tests.ranks import Ranks

STEPS = 4  # the queue of 20 keys is empty in the first and wraps around in the third

pytestmark = pytest.mark.filterwarnings("ignore:some anchors have no negatives")


def train(
    rank: int, world_size: int, method: str, policy: str, dtype: torch.dtype, rate: float
) -> tuple[list[float], dict[str, Tensor]]:
    training = Training(method, policy, rank, world_size, dtype=dtype, rate=rate)
    losses = [training.step(number).item() for number in range(STEPS)]
    return losses, {name: tensor.detach().clone() for name, tensor in training.method.state_dict().items()}


SINGLE = (torch.float32, 0.05, 1e-5)  # smaller steps: training magnifies rounding errors with its learning rate
DOUBLE = (torch.float64, 0.2, 1e-12)


@pytest.mark.parametrize(
    ("method", "policy", "dtype", "rate", "tolerance"),
    [*((*case, *DOUBLE) for case in CASES), *((*case, *SINGLE) for case in PLAIN)],
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
def test_a_resumed_run_is_bit_equal(method: str, policy: str) -> None:
    through, killed, resumed = Training(method, policy), Training(method, policy), Training(method, policy, seed=1)
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


@pytest.mark.parametrize(("method", "policy"), PLAIN)
def test_everything_that_training_moves_is_in_the_checkpoint(method: str, policy: str) -> None:
    training = Training(method, policy)
    before = {name: tensor.clone() for name, tensor in training.method.state_dict().items()}
    for number in range(2):
        training.step(number)
    moved = {name for name, tensor in training.method.state_dict().items() if not torch.equal(tensor, before[name])}
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


@pytest.mark.parametrize(("method", "policy"), PLAIN)
def test_data_parallel_training_wraps_no_state_but_the_network(method: str, policy: str) -> None:
    """Broadcasting buffers would overwrite the tables of other ranks."""
    training = Training(method, policy)
    assert list(training.method.network.buffers()) == []
    trained = {name for name, parameter in training.method.named_parameters() if parameter.requires_grad}
    assert trained == {f"network.{name}" for name, _ in training.method.network.named_parameters()}


@pytest.mark.parametrize(("method", "policy"), CASES)
def test_statistics_are_numbers_of_the_last_step(method: str, policy: str) -> None:
    training = Training(method, policy)
    for number in range(2):
        training.step(number)
    numbers = training.method.statistics()
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
    ignores = policy in ("ring", "hardest", "hcl", "cave")  # these do not flag
    ignores |= method in ("la", "cmc-la") and policy == "none"
    assert ("flagged_share" in numbers) == (not ignores)
    if (method, policy) == ("cmc", "history"):
        return  # the histories of its two channels are not alike yet, so there is nothing to flag
    if "flagged_share" in numbers:
        assert (numbers["flagged_share"] > 0) == (policy not in ("none", "debiased", "view") or method == "supcon")
    assert (numbers["pulled_per_anchor"] > 0) == (
        policy in ("attract", "refine", "fnc", "history") or method == "supcon"
    )
