"""What a snapshot holds, how large it is, and which are written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from antipodes.data.shapes import Shapes
from antipodes.negatives import IFND
from antipodes.pairs import normalise
from antipodes.runs import snapshots
from antipodes.runs.embedding import embed_dataset
from antipodes.runs.folder import Run
from antipodes.runs.opening import open_method
from antipodes.runs.snapshots import discard_snapshots, load_snapshots, take_snapshot
from antipodes.runs.views import plain_view
from tests.cli.command import here, refused

SMALL = [
    "--data",
    "shapes",
    "--encoder",
    "resnet8-slim",
    "--head.hidden",
    16,
    "--data.count",
    128,
    "--batch_size",
    32,
    "--epochs",
    3,
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("snapshots") / "run"
    policy = ["--negatives", "ifnd", "--negatives.clusters", "[3,6]", "--negatives.final_rate", 0.5]
    code, _, errors = here("train", *SMALL, *policy, "--snapshot_every", 2, "--out", folder)
    assert code == 0, errors
    return Run(folder)


def test_the_first_every_other_and_the_last_epoch_are_kept(run: Run) -> None:
    assert sorted(path.name for path in (run.folder / "snapshots").iterdir()) == [
        "epoch-000.pt",
        "epoch-002.pt",
        "epoch-003.pt",
    ]
    taken = load_snapshots(run)
    assert [snapshot.epoch for snapshot in taken] == [0, 2, 3]
    assert all(torch.equal(snapshot.ids, taken[0].ids) for snapshot in taken)
    assert not torch.equal(taken[1].features, taken[2].features)
    assert taken[0].pseudo_labels == {}


def test_the_last_snapshot_is_what_the_last_checkpoint_says(run: Run) -> None:
    method, data = open_method(run)
    last = load_snapshots(run)[-1]
    assert sorted(last.ids.tolist()) == list(range(128))
    features = normalise(embed_dataset(method.backbone(), data, preprocess=plain_view(method, data.image_size)))
    torch.testing.assert_close(last.features.float(), features[last.ids], atol=1e-3, rtol=0)
    policy = method.pair_losses()["image"].negatives
    assert isinstance(policy, IFND)
    for level, clusters in enumerate((3, 6)):
        for sample, label in zip(last.ids.tolist(), last.pseudo_labels[clusters].tolist(), strict=True):
            accepted = policy.standing[level, sample] <= 0.5
            assert label == (policy.labels[level, sample] if accepted else -1)
        assert int((last.pseudo_labels[clusters] >= 0).sum()) == 64


def test_a_snapshot_grows_with_its_samples_and_not_with_the_data(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "SAMPLES", 10)
    method, _ = open_method(run)
    state = torch.random.get_rng_state()
    taken = take_snapshot(method, Shapes(128), 7, 1.0)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert taken.features.shape == (10, 64)
    tensors = [taken.ids, taken.features]
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors)  # all of it is saved


def test_later_ones_are_discarded(tmp_path: Path) -> None:
    (tmp_path / "snapshots").mkdir()
    for epoch in (0, 9, 10, 1200):
        (tmp_path / "snapshots" / f"epoch-{epoch:03}.pt").touch()
    discard_snapshots(Run(tmp_path), after=9)
    assert sorted(path.name for path in (tmp_path / "snapshots").iterdir()) == ["epoch-000.pt", "epoch-009.pt"]


def test_a_run_keeps_none_unless_asked(tmp_path: Path) -> None:
    assert here("train", *SMALL, "--epochs", 1, "--out", tmp_path / "run")[0] == 0
    assert not (tmp_path / "run" / "snapshots").exists()
    assert "snapshot_every must be at least 0" in refused("train", *SMALL, "--snapshot_every", -1, "--out", tmp_path)
