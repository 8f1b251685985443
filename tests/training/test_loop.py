"""What a run does, looked at from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from antipodes.cli.train import parse
from antipodes.encoders import patches
from antipodes.encoders.export import load_backbone
from antipodes.evaluation.protocols.false_negatives import cluster_rates, pair_rates
from antipodes.negatives import FNC, IFND, Both, GloFND
from antipodes.runs.folder import Run, load_checkpoint
from antipodes.runs.opening import open_method
from antipodes.runs.records import read_records
from antipodes.runs.snapshots import SAMPLES, load_snapshots, sample
from antipodes.runs.towers import tower_features
from antipodes.runs.views import plain_view
from antipodes.training.loop import TrainingFailed, run_training
from tests.cli.command import ENVIRONMENT, antipodes, launched, on_ranks

SMALL = ["--data", "shapes", "--encoder", "resnet8-slim", "--head.hidden", "16", "--data.count", "128"]
SMALL += ["--batch_size", "32", "--log_every", "2"]


def run(out: Path, *options: object) -> Run:
    config, _ = parse([*SMALL, "--out", str(out), *map(str, options)])
    return run_training(config)


def weights(folder: Run) -> dict[str, Tensor]:
    model: dict[str, Tensor] = load_checkpoint(folder.last)["model"]
    return model


class TinyEncoder(nn.Module):
    """A user's own module: no num_features, no in_channels."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, width))

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.layers(images)
        return out


def test_without_epochs_a_run_is_its_encoder_as_it_starts(tmp_path: Path) -> None:
    made = run(tmp_path / "none", "--epochs", 0)
    untrained = weights(made)
    started = load_backbone(made.folder / "encoder.safetensors").state_dict()
    assert all(torch.equal(untrained[f"network.towers.image.encoder.{name}"], value) for name, value in started.items())
    answer = antipodes("evaluate", made.folder, "--protocol", "knn", "--json")
    assert answer.returncode == 0, answer.stderr
    config, resume = parse(["--resume", str(made.folder), "--epochs", "1"])
    later, direct = weights(run_training(config, resume)), weights(run(tmp_path / "one", "--epochs", 1))
    assert all(torch.equal(later[name], direct[name]) for name in direct)


@pytest.mark.parametrize("method", ["simclr", "moco", "cmc"])
def test_eyes_for_patches_are_fitted_to_the_data_and_stay(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patches, "PATCHES", 4000)  # to be quick
    options = ["--method", method, "--encoder", "patches", "--encoder.words", 20, "--encoder.dim", 8]
    fitted = run(tmp_path / "fitted", *options, "--epochs", 0)
    method_then, data = open_method(fitted)
    vectors = tower_features(method_then, data)
    assert vectors.shape == (128, 8 * len(method_then.network.names()))
    assert float(vectors.std(0).min()) > 0.01  # they tell images apart
    torch.testing.assert_close(vectors[:, :8].norm(dim=1), torch.ones(128))
    config, resume = parse(["--resume", str(fitted.folder), "--epochs", "1"])
    method_now, _ = open_method(run_training(config, resume))
    torch.testing.assert_close(tower_features(method_now, data), vectors)
    for name in method_now.network.names():
        for tower in method_now.copies(name):
            assert float(tower.encoder.directions.abs().sum()) > 0


def test_the_seed_decides_everything_and_the_global_generator_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first = weights(run(tmp_path / "a", "--epochs", 1, "--seed", 5))
    assert torch.equal(torch.rand(3), expected)
    again = weights(run(tmp_path / "b", "--epochs", 1, "--seed", 5))
    other = weights(run(tmp_path / "c", "--epochs", 1, "--seed", 6))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_training_learns_and_the_exported_encoder_is_the_trained_one(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", "--epochs", 6, "--data.count", 256, "--knn_every", 2)
    epochs = [line for line in read_records(folder.folder) if line["kind"] == "epoch"]
    assert [line["epoch"] for line in epochs] == [1, 2, 3, 4, 5, 6]
    assert epochs[-1]["loss"] < epochs[0]["loss"] - 0.2
    assert [("knn" in line) for line in epochs] == [False, True] * 3
    assert epochs[0]["kept_per_anchor"] == 62
    method, _ = open_method(folder)
    exported = load_backbone(folder.folder / "encoder.safetensors").state_dict()
    for name, tensor in method.backbone().state_dict().items():
        assert torch.equal(tensor, exported[name])


def test_a_users_own_encoder_trains(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", "--epochs", 1, "--encoder", f"{__name__}.TinyEncoder", "--encoder.width", 7)
    method, data = open_method(folder)
    assert method.backbone()(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    assert len(data) == 128


@pytest.mark.parametrize(
    "method",
    ["sogclr", "supcon", "moco", "sane", "instance", "cmc", "local-aggregation", "cmc-local-aggregation", "hnssl"],
)
def test_every_method_trains(method: str, tmp_path: Path) -> None:
    config: dict[str, Any]
    options = ["--encoder", "resnet8-slim", "--data.count", "128", "--batch_size", "32", "--epochs", "2"]
    queue = ["--method.queue_size", "96"] if method.startswith(("moco", "sane")) else []
    config, _ = parse([*options, *queue, "--method", method, "--out", str(tmp_path / "a")])
    folder = run_training(config)
    losses = [line["loss"] for line in read_records(folder.folder) if line["kind"] == "epoch"]
    assert len(losses) == 2
    opened, data = open_method(folder, "best")
    assert opened.backbone()(plain_view(opened, data.image_size)(data.inputs(torch.arange(2))["image"])).shape[0] == 2


def test_refined_labels_are_judged_by_the_true_ones(tmp_path: Path) -> None:
    """And small strong crops go through an encoder with batch statistics."""
    options = ["--method", "sane", "--method.queue_size", 64, "--method.crops", "[24, 16]"]
    folder = run(tmp_path / "a", "--epochs", 1, *options, "--method.crop_recipe", "clsa", "--loss.mu", "[0.5, 1]")
    row = read_records(folder.folder)[-1]
    assert {"refined_p", "refined_q"} <= row.keys()
    assert 0 < row["refined_mass"] < 1
    assert 0 < row["refined_mass_same_class"] < 1
    with pytest.raises(ValueError, match="chooses its negatives itself"):
        run(tmp_path / "b", "--method", "sane", "--negatives", "fnc", "--negatives.alpha", 0.1)
    with pytest.raises(ValueError, match=r"crops must be between 1 and the images' size of 32, got \[96\]"):
        run(tmp_path / "b", "--method", "sane-imagenet", "--method.queue_size", 64)
    with pytest.raises(ValueError, match="accumulate must be 1 with method sane"):
        run(tmp_path / "b", "--method", "sane", "--accumulate", 2)
    assert not (tmp_path / "b").exists()


def test_joined_policies_have_their_own_arguments(tmp_path: Path) -> None:
    policies = ["--negatives", "glofnd+fnc", "--negatives.glofnd.alpha", 0.2, "--negatives.fnc.alpha", 0.1]
    folder = run(tmp_path / "a", "--epochs", 1, *policies, "--negatives.fnc.start", 0.5)
    method, _ = open_method(folder)
    both = method.pair_losses()["image"].negatives
    assert isinstance(both, Both)
    assert isinstance(both.first, GloFND)
    assert isinstance(both.second, FNC)
    assert (both.first.alpha, both.second.alpha, both.second.start) == (0.2, 0.1, 0.5)
    assert bool((both.first.threshold < 1).all())


def test_clusters_are_fitted_between_epochs(tmp_path: Path) -> None:
    folder = run(tmp_path / "a", "--epochs", 3, "--negatives", "ifnd", "--negatives.clusters", "[4, 8]")
    rows = [line for line in read_records(folder.folder) if line["kind"] == "epoch"]
    shares = [row["flagged_share"] for row in rows]
    assert shares[0] == 0  # nothing is accepted before the first clustering
    assert 0 < shares[1] < shares[2]
    assert rows[2]["mtnr"] < 1
    method, data = open_method(folder)
    policy = method.pair_losses()["image"].negatives
    assert isinstance(policy, IFND)
    assert len(policy.export()["labels_4"]) == len(data)


@pytest.mark.parametrize(("every", "last"), [(2, 1.0), (3, 0.75)])
def test_the_last_clustering_comes_after_the_last_epoch(every: int, last: float, tmp_path: Path) -> None:
    options = ["--negatives", "ifnd", "--negatives.clusters", "[4]"]
    folder = run(tmp_path / "a", "--epochs", 4, *options, "--negatives.every", every, "--snapshot_every", 4)
    method, data = open_method(folder)
    policy = method.pair_losses()["image"].negatives
    assert isinstance(policy, IFND)
    assert policy.fitted_at == last  # every three of four: after the third alone
    assert data.labels is not None
    accepted_labels = policy.accepted(torch.arange(len(data)), last)[0]
    assert (accepted_labels >= 0).double().mean().item() == pytest.approx(last, abs=1 / len(data))
    final = cluster_rates(policy, data.labels, last)["mtpr, 4 clusters"]
    assert final == 100 * pair_rates(data.labels, policy.labels[0] if last == 1 else accepted_labels)[0]
    if last == 1:  # the last snapshot and the last checkpoint hold the same clustering
        assert torch.equal(load_snapshots(folder)[-1].pseudo_labels[4], policy.labels[0, sample(len(data), SAMPLES)])


def test_an_adaptive_ring_hears_of_scores_and_losses(tmp_path: Path) -> None:
    options = ["--epochs", 4, "--negatives", "ring", "--negatives.until", 1, "--knn_every", 2]
    folder = run(tmp_path / "scores", *options, "--negatives.anneal", "validation")
    rows = [line for line in read_records(folder.folder) if line["kind"] == "epoch"]
    assert [row["ring_outer"] for row in rows] == [1.0] * 4  # the second score is the last thing that happens
    ball = weights(folder)["directions.image.negatives.ball"].item()
    better = rows[3]["knn"] > rows[1]["knn"]
    assert ball == pytest.approx(1 - 0.9 / 2 if better else 1.0)
    folder = run(tmp_path / "losses", *options, "--negatives.anneal", "loss")
    state = weights(folder)
    assert state["directions.image.negatives.ball"] < 1
    assert state["directions.image.negatives.heard_at"] == 1


def test_a_ring_by_validation_without_a_validation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs a validation score"):
        run(tmp_path / "a", "--negatives", "ring", "--negatives.anneal", "validation", "--knn_every", 0)
    assert not (tmp_path / "a").exists()


def test_the_numbers_of_refine_reach_the_loss(tmp_path: Path) -> None:
    numbers = ["--refine_mu", 3.0]
    with pytest.raises(ValueError, match="belong to --treatment refine"):
        run(tmp_path / "a", "--negatives", "oracle", *numbers)
    with pytest.raises(ValueError, match=r"tau_prime must be in .*, got 2"):
        run(tmp_path / "a", "--negatives", "oracle", "--treatment", "refine", "--refine_tau_prime", 2.0)
    assert not (tmp_path / "a").exists()
    masses = []
    for name, more in (("default", []), ("confident", numbers), ("sharp", ["--refine_tau_prime", 0.5])):
        run(tmp_path / name, "--epochs", 1, "--negatives", "oracle", "--treatment", "refine", "--log_every", 1, *more)
        masses.append(read_records(tmp_path / name)[0]["refined_mass"])
    assert masses[1] > masses[0] > masses[2] > 0


def test_a_treatment_that_a_method_does_not_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="local-aggregation chooses itself which pairs it pulls"):
        run(tmp_path / "a", "--method", "local-aggregation", "--treatment", "attract")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("options", [["--optimizer", "adamw"], ["--optimizer", "lars"], ["--clip_gradient", 0.1]])
def test_optimisers_and_clipping(options: list[object], tmp_path: Path) -> None:
    plain = weights(run(tmp_path / "a", "--epochs", 1))
    other = weights(run(tmp_path / "b", "--epochs", 1, *options))
    assert any(not torch.equal(plain[name], other[name]) for name in plain)


def test_mixed_precision_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # some virtual machines announce AMX and then refuse it: oneDNN is told not to use it, in a process of its own
    monkeypatch.setitem(ENVIRONMENT, "ONEDNN_MAX_CPU_ISA", "AVX2")
    result = launched("train", *SMALL, "--epochs", 1, "--precision", "bf16-mixed", "--out", tmp_path / "a")
    assert result.returncode == 0, result.stderr
    assert all(tensor.dtype != torch.bfloat16 for tensor in weights(Run(tmp_path / "a")).values())
    exact = weights(run(tmp_path / "b", "--epochs", 1))
    mixed = weights(Run(tmp_path / "a"))
    name = "network.towers.image.encoder.conv1.weight"
    assert not torch.equal(exact[name], mixed[name])
    torch.testing.assert_close(exact[name], mixed[name], rtol=0.1, atol=0.05)


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match="has diverged"):
        run(tmp_path / "a", "--epochs", 3, "--learning_rate", 1e30, "--warmup", 0)


@pytest.mark.parametrize("anneal", ["validation", "loss"])
def test_two_processes_train_one_run(anneal: str, tmp_path: Path) -> None:
    options = ["--data", "shapes", "--data.count", 128, "--batch_size", 32, "--epochs", 2]
    options += ["--encoder", f"{__name__}.TinyEncoder"]
    options += ["--head.batch_norm", "false", "--head.hidden", 16, "--log_every", 1, "--encoder.width", 6]
    options += ["--negatives", "ring", "--negatives.anneal", anneal, "--negatives.until", 1, "--knn_every", 1]
    for devices in (1, 2):
        result = on_ranks(devices, "train", *options, "--out", tmp_path / str(devices))
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip() == str(tmp_path / str(devices))
    one, two = weights(Run(tmp_path / "1")), weights(Run(tmp_path / "2"))
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-4, atol=1e-6)
    rows = [[line for line in read_records(tmp_path / name) if line["kind"] == "epoch"] for name in ("1", "2")]
    for single, double in zip(*rows, strict=True):
        assert single["loss"] == pytest.approx(double["loss"], rel=1e-5)


def test_a_run_too_short_for_glofnds_thresholds_says_so(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="initial='one'"):
        run(tmp_path / "short", "--epochs", 1, "--negatives", "glofnd-paper")
    assert Run(tmp_path / "short").config["negatives"]["lr"] == 0.05
