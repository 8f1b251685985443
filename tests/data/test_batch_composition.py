"""Batch composition: which samples share a batch, that none is left out, and what a training run does with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from antipodes.data import Loader, Shapes
from antipodes.data.loader import BatchComposition
from antipodes.runs.folder import Run, load_checkpoint
from antipodes.seeding import generator
from tests.cli.command import here, refused

COUNT, TWINS = 120, 4


def families() -> Tensor:
    """Rows 4 m to 4 m + 3 are each other's nearest."""
    rows = torch.arange(COUNT)
    others = rows[:, None] // TWINS * TWINS + torch.arange(TWINS)
    return others[others != rows[:, None]].view(COUNT, TWINS - 1)


def share_of_family(order: Tensor, size: int = 12) -> float:
    """How many of the others of its family a sample meets in its batch, on average."""
    batches = order.view(-1, size) // TWINS
    return float((batches[:, :, None] == batches[:, None, :]).sum(2).sub(1).float().mean() / (TWINS - 1))


def test_every_sample_comes_once_and_brings_its_nearest() -> None:
    for size in [1, 2, 3, 4]:
        composition = BatchComposition(families(), size)
        orders = [composition(torch.randperm(COUNT, generator=generator("t", k)), generator("c", k)) for k in range(20)]
        assert all(torch.equal(order.sort().values, torch.arange(COUNT)) for order in orders)
        met = sum(map(share_of_family, orders)) / len(orders)
        chance = 11 / (COUNT - 1)
        if size == 1:
            assert met == pytest.approx(chance, abs=0.03)
        else:  # a group of 2 has 1 of 3, of which some are cut apart by the end of a batch
            assert (size - 1) / 3 * 0.7 < met < (size - 1) / 3 + 0.15
        assert len({tuple(order.tolist()) for order in orders}) == 20
        again = composition(torch.randperm(COUNT, generator=generator("t", 0)), generator("c", 0))
        assert torch.equal(again, orders[0])


def test_a_sample_without_neighbours_comes_alone() -> None:
    composition = BatchComposition(torch.full((6, 2), -1), 3)
    assert composition(torch.arange(6), generator("c")).sort().values.tolist() == [0, 1, 2, 3, 4, 5]


def test_groups_that_were_small_come_at_any_time() -> None:
    """The last to take their turn find most of their neighbours taken; they are not left for the end."""
    nearest = torch.stack([(torch.arange(COUNT) + k) % COUNT for k in (1, 2, 3)], dim=1)
    composition, late = BatchComposition(nearest, 4), torch.zeros(COUNT)
    for k in range(50):
        rows = torch.randperm(COUNT, generator=generator("t", k))
        late[composition(rows, generator("c", k))[-12:]] += 1
    assert late.max() < 25


def test_two_ranks_share_the_groups_of_one() -> None:
    data = Shapes(count=COUNT)
    loaders = [Loader(data, 24, seed=1, rank=rank, world_size=ranks) for rank, ranks in ((0, 1), (0, 2), (1, 2))]
    for loader in loaders:
        loader.composition = BatchComposition(families(), 4)
    whole, *halves = [[rows for rows, _ in loader.epoch(3, start=1)] for loader in loaders]
    for batch, parts in zip(whole, zip(*halves, strict=True), strict=True):
        assert torch.equal(batch, torch.cat(parts))


TINY = (
    "train --data shapes --data.count 96 --encoder resnet8-slim --head.hidden 8 --head.dim 4 --epochs 2 "
    "--batch_size 24 --threads 1 --guide patches --guide.words 8 --guide.dim 4"
)


def weights_of(folder: Path) -> dict[str, Tensor]:
    model: dict[str, Tensor] = load_checkpoint(Run(folder).last)["model"]
    return model


def test_a_resumed_run_has_the_same_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped after its first epoch it ends with the weights of one that was not; no policy is needed for it."""
    monkeypatch.setenv("ANTIPODES_DATA", str(tmp_path / "cache"))
    call = f"{TINY} --schedule constant --warmup 0"
    assert here(*call.split(), "--batch_neighbours", 3, "--out", tmp_path / "whole")[0] == 0
    shorter = call.replace("--epochs 2", "--epochs 1").split()
    assert here(*shorter, "--batch_neighbours", 3, "--out", tmp_path / "part")[0] == 0
    assert here("train", "--resume", tmp_path / "part", "--epochs", 2)[0] == 0
    whole, resumed = weights_of(tmp_path / "whole"), weights_of(tmp_path / "part")
    assert all(torch.equal(resumed[name], tensor) for name, tensor in whole.items())
    assert here(*call.split(), "--batch_neighbours", 2, "--out", tmp_path / "other")[0] == 0
    other = weights_of(tmp_path / "other")
    assert any(not torch.equal(other[name], tensor) for name, tensor in whole.items())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--batch_neighbours 0", "batch_neighbours must be at least 1, got 0"),
        ("--batch_neighbours 25", "batch_neighbours must be at most the batch_size, 24, got 25"),
        ("--batch_neighbours 4 --guide none", "batch_neighbours 4 needs a guide's vectors of the whole dataset"),
        (
            "--batch_neighbours 4 --guide history --negatives guided --negatives.alpha 0.1",
            "batch_neighbours 4 needs a guide's vectors of the whole dataset",
        ),
    ],
)
def test_refusals(options: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPODES_DATA", str(tmp_path / "cache"))
    guide = "" if "--guide" in options else "--guide patches"
    call = TINY.replace("--guide patches --guide.words 8 --guide.dim 4", guide)
    assert sentence in refused(*call.split(), *options.split(), "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()
