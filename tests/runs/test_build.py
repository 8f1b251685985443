"""From names to objects: losses on every base where they have a meaning, encoders by tower, one sentence else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antipodes import Debiased, GlobalContrastive, InfoNCE, Known, Ring, Temperature
from antipodes.cli.train import parse
from antipodes.data import Samples
from antipodes.losses import HardPairs, LocalAggregation, SoftLabel
from antipodes.methods import Method
from antipodes.negatives import Both, GloFND
from antipodes.registry import NAMES, RegistryEntry
from antipodes.runs.build import build_data, build_method, freeze
from tests.cases import every
from tests.methods.calls import SHAPES, built
from tests.methods.tiny import one
from tests.training.paired import FEATURES, Dense, Paired, Pixels


class New(InfoNCE):
    """An loss that no method names."""


CLUSTERS = ["--loss.clusters", "[3]"]
PAIRED = ["--data", "tests.training.paired.Paired", "--encoder", "tests.training.paired.Pixels"]


def losses(method: Method) -> set[type]:
    return {type(loss_fn) for loss_fn in method.directions.values()}


@every("method", ["simclr", "moco", "instance", "cmc"])
@every(("loss_fn", "expected"), [("info-nce", InfoNCE), ("global-contrastive", GlobalContrastive)])
def test_softmax_and_global_losses_are_of_every_base(method: str, loss_fn: str, expected: type) -> None:
    assert losses(built("--method", method, "--loss", loss_fn)) == {expected}


@pytest.mark.parametrize("method", ["instance", "cmc"])
def test_local_aggregation_is_of_the_banks(method: str) -> None:
    assert losses(built("--method", method, "--loss", "local-aggregation", *CLUSTERS)) == {LocalAggregation}


@pytest.mark.parametrize("method", ["simclr", "moco", "instance"])
def test_a_new_name_in_the_registry_is_all_that_a_new_loss_needs(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES["loss"], "new", RegistryEntry(f"{__name__}.New"))
    assert losses(built("--method", method, "--loss", "new")) == {New}


def temperatures(*options: object) -> list[Temperature]:
    method = built(*options)
    found = [loss_fn.temperature for loss_fn in method.pair_losses().values()]
    return [each for each in found if isinstance(each, Temperature)]


def test_a_temperature_learns_where_the_run_asks_for_it() -> None:
    assert temperatures("--method", "simclr") == []
    (one_for_all,) = temperatures("--temperature.learnable", "true", "--temperature.floor", 0.02)
    assert one_for_all.current() == pytest.approx(0.2)  # SimCLR's
    assert (one_for_all.floor, one_for_all.form) == (0.02, "log")
    assert sum(each.numel() for each in built("--temperature.learnable", "true").directions.parameters()) == 1
    (each,) = temperatures("--temperature.per_sample", "true", "--temperature.form", "linear")
    assert each.parameter is not None
    assert each.parameter.shape == (16,)


@pytest.mark.parametrize("method", ["clip", "siglip", "fastclip"])
def test_the_temperature_of_two_modalities_is_learned_unless_told_otherwise(method: str) -> None:
    first, second = temperatures("--method", method, *PAIRED)
    assert first is second
    assert first.parameter is not None
    fixed = temperatures("--method", method, *PAIRED, "--temperature.learnable", "false")
    assert method == "siglip" or fixed == []


@pytest.mark.parametrize("method", ["sane", "hnssl"])
def test_a_loss_without_a_temperature_that_learns_says_so(method: str) -> None:
    with pytest.raises(ValueError, match="has no temperature that can learn"):
        built("--method", method, "--temperature.learnable", "true")


def test_others_come_with_their_method() -> None:
    assert losses(built("--method", "hnssl")) == {HardPairs}
    assert losses(built("--method", "sane", "--method.queue_size", 8)) == {InfoNCE, SoftLabel}


@every(
    ("method", "loss_fn"),
    [
        ("simclr", "hard-pairs"),
        ("simclr", "soft-label"),
        ("simclr", "local-aggregation"),
        ("moco", "local-aggregation"),
        ("moco", "hard-pairs"),
        ("instance", "sigmoid"),
        ("instance", "soft-label"),
        ("cmc", "hard-pairs"),
        ("hnssl", "info-nce"),
        ("sane", "info-nce"),
        ("sane", "global-contrastive"),
    ],
)
def test_a_loss_without_a_meaning_gets_one_sentence(method: str, loss_fn: str) -> None:
    more = CLUSTERS if loss_fn == "local-aggregation" else []
    with pytest.raises(ValueError, match=f"method {method} cannot train the loss {loss_fn}: it takes "):
        built("--method", method, "--loss", loss_fn, *more)


@pytest.mark.parametrize("method", ["hnssl", "sane"])
def test_losss_that_decide_themselves_take_no_policy(method: str) -> None:
    with pytest.raises(ValueError, match="chooses its negatives itself: leave --negatives out"):
        built("--method", method, "--negatives", "ring")
    with pytest.raises(ValueError, match="chooses itself which pairs it pulls: leave --treatment out"):
        built("--method", method, "--treatment", "attract")


def test_local_aggregation_compares_means() -> None:
    with pytest.raises(ValueError, match="policies that reweigh a sum do not fit"):
        built("--method", "local-aggregation", *CLUSTERS, "--negatives", "debiased", "--negatives.tau_plus", 0.1)
    with pytest.raises(ValueError, match="chooses itself which pairs it pulls"):
        built("--method", "local-aggregation", *CLUSTERS, "--treatment", "attract")


def test_policies_are_joined_and_each_direction_has_its_own() -> None:
    options = ["--negatives", "ring+glofnd", "--negatives.ring.inner", 0.3, "--negatives.glofnd.alpha", 0.2]
    method = built("--method", "cmc", *options)
    first, second = (loss_fn.negatives for loss_fn in method.pair_losses().values())
    for policy in (first, second):
        assert isinstance(policy, Both)
        assert isinstance(policy.first, Ring)
        assert isinstance(policy.second, GloFND)
        assert (policy.first.inner, policy.second.alpha, len(policy.second.threshold)) == (0.3, 0.2, 16)
    assert first is not second
    (plain,) = built("--negatives", "debiased", "--negatives.tau_plus", 0.05).pair_losses().values()
    assert isinstance(plain.negatives, Debiased)


@pytest.mark.parametrize("name", ["known", "glofnd+known", "ring+known+glofnd"])
def test_known_knows_the_duplicates_of_the_data_wherever_it_is_joined(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    vectors = torch.randn(6, 4)
    vectors[4] = vectors[1]
    np.save(tmp_path / "v.npy", vectors.numpy())
    config, _ = parse(["--data", str(tmp_path / "v.npy"), "--encoder", "identity", "--negatives", name])
    (loss_fn,) = build_method(config, build_data(config["data"])).pair_losses().values()
    (known,) = (policy for policy in loss_fn.policies() if isinstance(policy, Known))
    assert known.groups.tolist() == [-1, 0, -1, -1, 0, -1]


@pytest.mark.parametrize("name", ["known", "glofnd+known"])
def test_known_reads_the_groups_and_weights_that_the_user_names(name: str, tmp_path: Path) -> None:
    (tmp_path / "groups.csv").write_text("row,group\n0,3\n5,3\n")
    (tmp_path / "pairs.csv").write_text("row,other,weight\n0,5,0.5\n")
    option = f"--negatives{'.known' if '+' in name else ''}.groups"
    (loss_fn,) = built("--negatives", name, option, tmp_path / "groups.csv").pair_losses().values()
    known = loss_fn.policies()[-1]
    assert isinstance(known, Known)
    assert known.groups.tolist() == [3, -1, -1, -1, -1, 3] + [-1] * 10
    weighted = ["--negatives", name, option, tmp_path / "pairs.csv"]
    (loss_fn,) = built(*weighted, "--treatment", "attract").pair_losses().values()
    assert loss_fn.policies()[-1].weights.tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="weights say how much pairs are pulled"):
        built(*weighted)


def test_every_tower_gets_an_encoder_of_its_modality() -> None:
    config, _ = parse([*PAIRED, "--method", "clip", "--encoders.vector", "tests.training.paired.Dense"])
    method = build_method(config, build_data(config["data"]))
    assert isinstance(method.network["image"].encoder, Pixels)
    dense = method.network["vector"].encoder
    assert isinstance(dense, Dense)
    assert dense.layer.in_features == FEATURES  # the data's
    embedded = method.network({"image": torch.zeros(2, 3, 8, 8), "vector": torch.zeros(2, FEATURES)})
    assert {name: part.shape for name, part in embedded.items()} == {"image": (2, 256), "vector": (2, 256)}


def test_a_tower_without_a_named_encoder_has_the_usual_one() -> None:
    config, _ = parse([*PAIRED, "--method", "clip"])
    method = build_method(config, build_data(config["data"]))
    vectors = torch.randn(2, FEATURES)
    assert torch.equal(method.backbone("vector")(vectors), vectors)


def test_a_configuration_is_the_whole_method() -> None:
    """Built twice with the same seed, every weight and table is the same."""
    config, _ = parse([*SHAPES, "--method", "moco", "--method.queue_size", "8", "--negatives", "glofnd"])
    states: list[dict[str, Any]] = []
    for _ in range(2):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            states.append(build_method(config, build_data(config["data"])).state_dict())
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_an_encoder_that_cannot_have_other_channels_is_refused() -> None:
    with pytest.raises(ValueError, match="takes no in_channels, and the method needs one for 1"):
        built("--method", "cmc", "--encoder", "tests.training.paired.Pixels")


def test_a_method_of_one_input_refuses_what_it_cannot_choose_from() -> None:
    class Texts(Paired):
        modalities = {"query": "text", "document": "text"}

    data: Samples = Texts(4)
    config, _ = parse([*SHAPES, "--method", "simclr"])
    with pytest.raises(ValueError, match="SimCLR takes one input and the data has query, document: use clip"):
        build_method(config, data)


def test_freezing_is_without_gradient_and_batch_statistics() -> None:
    network = one()
    freeze(network, ["image"])
    network.train()
    tower = network["image"]
    assert tower.frozen
    assert not tower.encoder.training
    assert tower.head.training
    assert not any(parameter.requires_grad for parameter in tower.encoder.parameters())
    assert all(parameter.requires_grad for parameter in tower.head.parameters())
    with pytest.raises(ValueError, match="there is no tower 'text' to freeze: the method has image"):
        freeze(network, ["text"])


def test_copies_of_a_frozen_tower_are_frozen() -> None:
    method = built("--method", "moco", "--method.queue_size", 8, "--freeze", '["image"]').train()
    for tower in method.copies("image"):
        assert tower.frozen
        assert not tower.encoder.training
    assert len(method.copies("image")) == 2
