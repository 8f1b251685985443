"""What towers see: normalised as the run says, tokenised by their encoder, smaller crops, alike on two ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from antipodes import InfoNCE
from antipodes.cli.train import parse
from antipodes.data import Raw, Samples
from antipodes.methods import CLIP, CMC, Method, SimCLR, Tower, Towers
from antipodes.runs.build import build_data, build_method
from antipodes.runs.views import BatchMaker, build_augmentation, plain_view
from tests.methods.calls import SHAPES
from tests.methods.tiny import lab
from tests.training.paired import Paired

MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
PIXELS = ["--augmentation.mean", str(list(MEAN)), "--augmentation.std", str(list(STD))]


def views(*options: object) -> BatchMaker:
    config, _ = parse(list(map(str, [*SHAPES, *options])))
    data = build_data(config["data"])
    return BatchMaker(config, data, build_method(config, data))


def by_hand(images: Tensor, mean: tuple[float, ...] = MEAN, std: tuple[float, ...] = STD) -> Tensor:
    scaled = images.float() / 255
    return (scaled - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)


def test_the_plain_view_has_the_pixels_of_the_run() -> None:
    made = views(*PIXELS)
    images = made.data.inputs(torch.arange(4))["image"]
    assert isinstance(images, Tensor)
    assert {name: tuple(value) for name, value in made.method.pixels.items()} == {"mean": MEAN, "std": STD}
    torch.testing.assert_close(plain_view(made.method, 32)(images), by_hand(images))
    torch.testing.assert_close(made.plain["image"](images), by_hand(images))
    assert not torch.allclose(plain_view(views().method, 32)(images), by_hand(images))  # those of the default


def test_random_views_have_them_too() -> None:
    """The augmentation plain is random in nothing, so a view is the plain image."""
    made = views("--augmentation", "plain", *PIXELS)
    rows = torch.tensor([3, 1])
    raw = made.data.inputs(rows)
    batch = made.batch(rows, raw, (0, 1, 2))
    assert len(batch["image"].views) == 2
    for view in batch["image"].views:
        torch.testing.assert_close(view, by_hand(raw["image"]))  # type: ignore[arg-type]


def test_a_method_that_wants_pixels_gets_them() -> None:
    method = CMC(lab(), InfoNCE(0.07), 4, 5)
    method.pixels = {"mean": MEAN, "std": STD}
    images = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    torch.testing.assert_close(plain_view(method, 4)(images), images.float() / 255)
    recipe = build_augmentation({"name": "moco-v1", "mean": MEAN, "std": STD}, 4, normalised=False)
    seen = recipe(images, torch.Generator().manual_seed(0))
    assert seen.min() >= 0
    assert seen.max() <= 1


SANE_CROPS = ["--method", "sane", "--method.queue_size", 8, "--method.crop_recipe", "clsa"]


def test_views_are_two_and_the_smaller_crops() -> None:
    made = views(*SANE_CROPS, "--method.crops", "[24, 16]", *PIXELS)
    assert made._recipe is not None
    recipes = [made._recipe, *made._crops]
    assert [recipe.size for recipe in recipes] == [32, 24, 16]
    assert [getattr(recipe, "strong", None) for recipe in recipes] == [0, 5, 5]
    assert getattr(recipes[2], "scale", None) == (0.1, 0.5)
    assert all(tuple(recipe.mean) == MEAN and tuple(recipe.std) == STD for recipe in recipes)
    rows = torch.arange(3)
    inputs = made.batch(rows, made.data.inputs(rows), (0, 0, 0))["image"]
    assert [tuple(view.shape) for view in inputs.views] == [(3, 3, 32, 32)] * 2
    assert [tuple(view.shape) for view in inputs.crops] == [(3, 3, 24, 24), (3, 3, 16, 16)]
    assert inputs.plain is None
    assert views("--method", "moco", "--method.queue_size", 8)._crops == []


@pytest.mark.parametrize("crops", ["[48]", "[16, 0]"])
def test_crops_that_do_not_fit_are_refused(crops: str) -> None:
    with pytest.raises(ValueError, match="crops must be between 1 and the images' size of 32, got"):
        views(*SANE_CROPS, "--method.crops", crops)


def test_views_follow_from_the_seeds_alone() -> None:
    made = views()
    rows = torch.arange(4)
    raw = made.data.inputs(rows)
    first, again, other = (made.batch(rows, raw, seeds)["image"].views for seeds in ((0, 1), (0, 1), (0, 2)))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])


def test_two_ranks_see_what_one_sees() -> None:
    config, _ = parse(SHAPES)
    data = build_data(config["data"])
    method = build_method(config, data)
    rows = torch.arange(6)
    whole = BatchMaker(config, data, method).batch(rows, data.inputs(rows), (0, 3))["image"].views[1]
    halves = [
        BatchMaker(config, data, method, rank=rank, world_size=2)
        .batch(part, data.inputs(part), (0, 3))["image"]
        .views[1]
        for rank, part in enumerate(rows.chunk(2))
    ]
    torch.testing.assert_close(torch.cat(halves), whole)


def test_methods_get_the_plain_image_and_supports_they_ask_for() -> None:
    rows = torch.arange(4)
    made = views("--method", "hnssl")
    inputs = made.batch(rows, made.data.inputs(rows), (0,))["image"]
    assert inputs.plain is not None
    assert len(inputs.views) == 1
    torch.testing.assert_close(inputs.plain, made.plain["image"](made.data.inputs(rows)["image"]))
    made = views("--negatives", "fnc", "--negatives.alpha", 0.1, "--negatives.supports", 3)
    inputs = made.batch(rows, made.data.inputs(rows), (0,))["image"]
    assert (len(inputs.views), len(inputs.supports)) == (2, 3)


class Captioned(Samples):
    """Texts with vectors, two rows of every sample."""

    name = "captioned"
    modalities = {"text": "text", "vector": "vector"}
    in_memory = True
    samples = torch.tensor([0, 0, 2, 2])
    fingerprint = "captioned"
    texts = ("one", "two words", "three more words", "")

    def __len__(self) -> int:
        return 4

    def inputs(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> dict[str, Raw]:
        return {"text": [self.texts[row] for row in rows.tolist()], "vector": rows[:, None] * torch.ones(3)}


class Letters(nn.Module):
    """Counts letters; its tokens are lengths of words."""

    num_features = 1
    modality = "text"

    def tokenize(self, texts: list[str]) -> Tensor:
        lengths = [[len(word) for word in text.split()] for text in texts]
        widest = max(map(len, lengths))
        return torch.tensor([each + [0] * (widest - len(each)) for each in lengths])

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.sum(1, keepdim=True).float()


def captioned() -> Method:
    towers = {"text": Tower(Letters(), nn.Linear(1, 2)), "vector": Tower(nn.Identity(), nn.Linear(3, 2))}
    return CLIP(Towers(towers, CLIP.plan(Captioned.modalities)), InfoNCE(0.1))


def test_texts_are_tokenised_by_their_encoder_and_vectors_stay() -> None:
    data, config = Captioned(), {"augmentation": {"name": "simclr"}}
    made = BatchMaker(config, data, captioned())
    rows = torch.tensor([1, 3, 0])
    batch = made.batch(rows, data.inputs(rows), (0,))
    assert batch["text"].views[0].tolist() == [[3, 5], [0, 0], [3, 0]]
    assert torch.equal(batch["vector"].views[0], rows[:, None] * torch.ones(3))
    assert batch.ids.tolist() == [0, 2, 0]
    assert batch.rows.tolist() == [1, 3, 0]
    assert plain_view(captioned(), 0, "text")(["some text"]).tolist() == [[4, 4]]  # type: ignore[arg-type]
    assert plain_view(captioned(), 0)(["a b"]).tolist() == [[1, 1]]  # type: ignore[arg-type]  # the first tower's


def test_an_input_that_no_tower_sees_is_left_alone() -> None:
    class Failing(Paired):
        def inputs(self, rows: Tensor, draw: tuple[int, ...] | None = None) -> dict[str, Raw]:
            return {"image": super().inputs(rows)["image"]}

    config: dict[str, Any] = {"augmentation": {"name": "plain"}}
    tower = Tower(nn.Flatten(), nn.Linear(3 * 8 * 8, 2))
    method = SimCLR(Towers({"image": tower}), InfoNCE(0.1))
    made, rows = BatchMaker(config, Failing(8), method), torch.arange(4)
    assert list(made.batch(rows, made.data.inputs(rows), (0,)).inputs) == ["image"]
