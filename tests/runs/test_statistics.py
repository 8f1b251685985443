"""Views normalised by the training data, and another recipe for the second view."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from antipodes.cli.train import parse
from antipodes.data import TensorImages
from antipodes.data.augment import Plain, RandomView, augmentation
from antipodes.runs.build import build_data, build_method
from antipodes.runs.folder import Run
from antipodes.runs.opening import open_method
from antipodes.runs.views import BatchMaker, plain_view, with_statistics
from antipodes.training.loop import run_training
from tests.methods.calls import SHAPES

DATASET = ["--augmentation.statistics", "dataset"]


def views(*options: object) -> BatchMaker:
    config, _ = parse(list(map(str, [*SHAPES, *options])))
    data = build_data(config["data"])
    config = with_statistics(config, data)
    return BatchMaker(config, data, build_method(config, data))


def test_two_images_by_hand() -> None:
    images = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 4, 4)
    config, _ = parse([*SHAPES, *DATASET])
    measured = with_statistics(config, TensorImages(images))["augmentation"]
    assert measured["mean"] == [0.5] * 3
    assert measured["std"] == [0.5] * 3
    assert tuple(config["augmentation"]["mean"]) == (0.485, 0.456, 0.406)  # the one that was given is left alone
    given, _ = parse(SHAPES)
    assert with_statistics(given, TensorImages(images)) is given


def test_what_the_encoder_sees_has_mean_0_and_deviation_1() -> None:
    made = views(*DATASET)
    images = made.data.inputs(torch.arange(len(made.data)))["image"]
    assert isinstance(images, Tensor)
    for seen in (made.plain["image"](images), plain_view(made.method, 32)(images)):
        torch.testing.assert_close(seen.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
        torch.testing.assert_close(seen.std((0, 2, 3)), torch.ones(3), atol=1e-3, rtol=0)


def test_smaller_crops_and_the_second_view_have_the_same_pixels() -> None:
    sane = ["--method", "sane", "--method.queue_size", 8, "--method.crops", "[16]"]
    made = views(*sane, *DATASET, "--augmentation.second", "byol-second")
    mean, std = made.data.statistics()
    recipes = [made._recipe, made._second, *made._crops]
    assert len(recipes) == 3
    for recipe in recipes:
        assert recipe is not None
        assert (tuple(recipe.mean), tuple(recipe.std)) == (mean, std)
    assert getattr(made._second, "solarise", None) == 0.2


def test_a_run_writes_them_down_and_evaluation_uses_them(tmp_path: Path) -> None:
    quick = ["--epochs", "1", "--batch_size", "8", "--knn_every", "0", "--out", str(tmp_path / "run")]
    config, _ = parse([*SHAPES, *DATASET, *quick])
    run = run_training(config)
    mean, std = build_data(config["data"]).statistics()
    saved = Run.open(str(run.folder)).config["augmentation"]
    assert (tuple(saved["mean"]), tuple(saved["std"])) == (mean, std)
    method, data = open_method(run)
    assert tuple(method.pixels["mean"]) == mean
    images = data.inputs(torch.arange(2))["image"]
    expected = Plain(32, mean=mean, std=std)(images, torch.Generator())  # type: ignore[arg-type]
    torch.testing.assert_close(plain_view(method, 32)(images), expected)
    again, resumed = parse(["--resume", str(run.folder)])
    assert resumed is not None
    assert tuple(again["augmentation"]["mean"]) == mean


def test_the_second_view_has_its_own_recipe() -> None:
    made = views("--augmentation", "byol", "--augmentation.second", "plain")
    rows = torch.arange(4)
    raw = made.data.inputs(rows)
    first, second = made.batch(rows, raw, (0, 1))["image"].views
    torch.testing.assert_close(second, made.plain["image"](raw["image"]))
    assert not torch.allclose(first, second)
    with pytest.raises(ValueError, match=r"augmentation\.second simclr needs a second view"):
        views("--method", "hnssl", "--augmentation.second", "simclr")
    with pytest.raises(ValueError, match="unknown augmentation 'blurry'"):
        views("--augmentation.second", "blurry")


def test_supports_are_seen_by_the_first_recipe() -> None:
    fnc = ["--negatives", "fnc", "--negatives.alpha", 0.1, "--negatives.supports", 1]
    made = views("--augmentation", "plain", "--augmentation.second", "simclr", *fnc)
    rows = torch.arange(3)
    raw = made.data.inputs(rows)
    inputs = made.batch(rows, raw, (0,))["image"]
    plain = made.plain["image"](raw["image"])
    torch.testing.assert_close(inputs.views[0], plain)
    torch.testing.assert_close(inputs.supports[0], plain)
    assert not torch.allclose(inputs.views[1], plain)


def test_byols_two_views_and_sogclrs() -> None:
    first, second, sogclr = (augmentation(name) for name in ("byol", "byol-second", "sogclr"))
    numbers = []
    for recipe in (first, second, sogclr):
        assert isinstance(recipe, RandomView)
        numbers.append((recipe.blur, recipe.solarise, recipe.saturation, recipe.jitter, recipe.scale))
    assert numbers == [
        (1.0, 0.0, 0.2, 0.8, (0.08, 1.0)),
        (0.1, 0.2, 0.2, 0.8, (0.08, 1.0)),
        (1.0, 0.0, 0.2, 0.8, (0.08, 1.0)),
    ]
