"""Runs that embed their batches in pieces learn what runs with whole batches learn."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from antipodes.methods.towers import InPieces, Tower, Towers
from antipodes.runs.folder import Run, load_checkpoint
from tests.cli.command import on_ranks
from tests.training.test_loop import run, weights

NO_STATISTICS = ["--encoder", "resnet8-slim-gn", "--head.batch_norm", "false", "--epochs", "1", "--knn_every", "0"]


def test_the_network_calls_every_tower_in_pieces() -> None:
    calls: list[tuple[str, int]] = []

    class Encoder(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name, self.layer = name, nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            calls.append((self.name, len(x)))
            return self.layer(x)  # type: ignore[no-any-return]

    towers = Towers({name: Tower(Encoder(name), nn.Identity()) for name in ("image", "text")})
    x = torch.randn(10, 3, generator=torch.Generator().manual_seed(0))
    network = InPieces(towers, 4)
    for inputs in (
        {"image": x, "text": x + 1},
        {"image": x},
        {"image": [x[:5], x[5:]]},
        {"image": x, "text": x[:5]},
        {"image": [x[:6], x[:7]], "text": x},
    ):
        expected, found = towers(inputs), network(inputs)
        assert list(found) == list(expected)
        torch.testing.assert_close(found, expected)
    calls.clear()
    network({"image": x, "text": x})
    assert calls == [("image", 4), ("text", 4)] * 2 + [("image", 2), ("text", 2)]


@pytest.mark.parametrize(
    "options",
    [
        ["--method", "simclr", "--negatives", "glofnd", "--negatives.start", "0"],
        ["--method", "sogclr"],
        ["--method", "supcon"],
        ["--method", "hnssl"],
        ["--method", "sane", "--method.queue_size", "64"],
        ["--method", "simclr", "--negatives", "fnc", "--negatives.supports", "1"],
    ],
    ids=lambda options: "-".join(options[1::2]),
)
def test_weights_and_tables_are_those_of_whole_batches(tmp_path: Path, options: list[str]) -> None:
    whole = weights(run(tmp_path / "whole", *NO_STATISTICS, *options))
    pieces = weights(run(tmp_path / "pieces", *NO_STATISTICS, *options, "--micro_batch", 12))
    torch.testing.assert_close(pieces, whole, atol=1e-4, rtol=1e-4)


def test_two_processes_learn_the_same(tmp_path: Path) -> None:
    found = []
    for name, more in (("whole", []), ("pieces", ["--micro_batch", "5"])):
        done = on_ranks(
            2, "train", "--data", "shapes", "--data.count", "64", "--batch_size", "32", *NO_STATISTICS, *more,
            "--threads", "1", "--out", tmp_path / name,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append(load_checkpoint(Run(tmp_path / name).last)["model"])
    torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--encoder", "resnet8-slim"], "micro_batch cannot be used here: .* group or layer normalisation"),
        (["--head.batch_norm", "true"], r"BatchNorm1d in training mode.*--head\.batch_norm false"),
        (["--method", "moco"], "micro_batch is for methods .* those of method moco do not: .* --accumulate"),
        (["--method", "instance"], "micro_batch is for methods"),
        (["--micro_batch", "0"], "micro_batch must be at least 1"),
    ],
)
def test_refusals(tmp_path: Path, options: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        run(tmp_path / "run", *NO_STATISTICS, "--micro_batch", "8", *options)
    assert not (tmp_path / "run").exists()
