"""What every method promises, with every treatment: ranks, resuming, finite losses, and settings that come with a name.

Two ranks of half a batch equal one of a batch, and a resumed run equals the run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from antipodes import Oracle
from antipodes.cli.train import parse
from antipodes.methods import Batch, InputViews, Method
from antipodes.studies.definition import flatten_options
from tests.cases import every
from tests.methods.calls import built
from tests.methods.tiny import CASES, METHODS, N, Training, batch, build
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


@every(
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


@every(("method", "policy"), CASES)
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


def first_of_all(view: Tensor) -> Tensor:
    """Every sample shows what the first one shows."""
    return view[:1].expand_as(view).contiguous()


@pytest.mark.filterwarnings("ignore:some embeddings are zero vectors")
@every("name", METHODS)
def test_one_sample_equal_samples_and_zero_vectors_stay_finite(name: str) -> None:
    every = slice(None)
    cases = ((slice(1), None, False), (every, first_of_all, False), (every, torch.zeros_like, True))
    for part, change, vanishing in cases:
        method = build(name)
        if vanishing:
            for parameter in method.parameters():
                torch.nn.init.zeros_(parameter)
        given = changed(batch(0, method, part), change)
        loss = method.loss(method.network, given, 0.5)
        loss.backward()
        assert loss.isfinite()
        assert all(each.grad.isfinite().all() for each in method.network.parameters() if each.grad is not None)


def changed(given: Batch, change: Callable[[Tensor], Tensor] | None) -> Batch:
    """The batch with all of its views changed."""
    if change is None:
        return given
    inputs = {
        name: InputViews(
            *([change(view) for view in views] for views in (each.views, each.supports, each.crops)),
            None if each.plain is None else change(each.plain),
        )
        for name, each in given.inputs.items()
    }
    return Batch(given.ids, inputs)


@every("name", ["simclr", "moco", "instance", "instance-once", "instance-expected", "cmc", "clip", "i-mix"])
def test_a_policy_that_drops_everything_leaves_no_negative_term(name: str) -> None:
    method: Method = METHODS[name](negatives=Oracle(torch.zeros(N, dtype=torch.int64))).double()
    loss = method.loss(method.network, batch(0, method, dtype=torch.float64), 0.5)
    assert loss == 0
    loss.backward()
    assert all(each.grad.isfinite().all() for each in method.network.parameters() if each.grad is not None)


MOCO = {"method.momentum": 0.999, "method.queue_size": 65536, "loss.temperature": 0.2, "augmentation.name": "moco-v2"}
MOCO |= {"head.kind": "mlp2", "head.hidden": 2048, "head.batch_norm": False}
BANK = {"method.samples": 4096, "method.draw": "each", "loss.temperature": 0.07, "head.kind": "linear"}
RING = {"negatives.name": "ring", "head.centred": True, "weight_decay": 1e-4, "loss.temperature": 0.07}
SANE = {"loss.temperature": 0.2, "head.kind": "mlp3", "method.refined_share": 0.5}
SETTINGS: dict[str, dict[str, Any]] = {
    "moco-v1": {"loss.temperature": 0.07, "augmentation.name": "moco-v1", "head.kind": "linear"},
    "moco": MOCO,
    "moco-v2": MOCO,
    "instance": BANK | {"method.bank_momentum": 0.5, "augmentation.name": "moco-v1"},
    "cmc": BANK,
    "iring": RING,
    "moco-ring": RING,
    "cmc-ring": RING,
    "sane": SANE | {"loss.tau_prime": 0.8, "method.kappa": 2, "loss.mu": [0, 1], "method.queue_size": 4096},
    "sane-imagenet": SANE | {"loss.tau_prime": 1, "method.kappa": 0.1, "loss.mu": [0.5, 10], "method.crops": [96]},
    "hnssl": {"learning_rate": 0.12, "clip_gradient": 1, "augmentation.name": "hnssl", "method.momentum": 0.5},
    "hnssl-paper": {"optimizer": "adamw", "batch_size": 160, "weight_decay": 0, "clip_gradient": 1},
    "byol": {"head.batch_norm": True},
    "simclr": {"clip_gradient": None, "learning_rate": 0.12},
}
"""The settings that come with a method's name, those of its paper."""


@every("name", SETTINGS)
def test_settings_come_with_a_name_and_give_way_to_the_callers(name: str) -> None:
    found = flatten_options(parse(["--method", name])[0])
    assert {key: list(v) if isinstance(v := found[key], tuple) else v for key in SETTINGS[name]} == SETTINGS[name]
    if name in ("iring", "moco-ring", "cmc-ring"):
        assert found["learning_rate"] * found["batch_size"] / 256 == pytest.approx(0.03)
        without = flatten_options(parse(["--method", name, "--negatives", "none"])[0])
        assert {key: value for key, value in found.items() if key.startswith("head.")}.items() <= without.items()
        assert parse(["--method", name, "--head.centred", "false"])[0]["head"]["centred"] is False
    told = parse(["--method", name, "--clip_gradient", "3", "--learning_rate", "0.5"])[0]
    assert (told["clip_gradient"], told["learning_rate"]) == (3.0, 0.5)


@every(
    ("name", "layers"),
    [
        ("hnssl", "Identity"),
        ("instance", "Linear"),
        ("iring", "Linear BatchNorm1d"),
        ("moco --method.queue_size 20", "Linear ReLU Linear"),
        ("sane --method.queue_size 20", "Linear ReLU Linear ReLU Linear"),
        ("byol", "Linear BatchNorm1d ReLU Linear"),
    ],
)
def test_the_head_that_comes_with_a_name_is_built(name: str, layers: str) -> None:
    head = built("--method", *name.split()).network["image"].head
    found = [head] if isinstance(head, torch.nn.Identity) else list(head)  # type: ignore[call-overload]
    assert " ".join(type(layer).__name__ for layer in found) == layers


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
