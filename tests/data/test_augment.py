import numpy as np
import pytest
import torch
from PIL import Image

from antipodes.data.augment import MultiCrop, Plain, RandomView, augmentation, multi_crop
from antipodes.data.augment.base import IMAGENET_MEAN, IMAGENET_STD
from antipodes.data.augment.colour import invert_above, jitter
from antipodes.data.augment.operations import OPERATIONS
from antipodes.data.augment.resampling import crop
from antipodes.registry import NAMES


def pictures(count: int, size: int = 32) -> torch.Tensor:
    shape = (count, 3, size, size)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(6))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normalised(images: torch.Tensor) -> torch.Tensor:
    return (images - torch.tensor(IMAGENET_MEAN).view(3, 1, 1)) / torch.tensor(IMAGENET_STD).view(3, 1, 1)


def test_recipe_gives_finite_views_of_its_size_that_depend_on_the_generator_only():
    for name in NAMES["augmentation"]:
        images, view = pictures(9, 40), augmentation(name, size=24)
        state = torch.get_rng_state()
        views = view(images, seeded())
        assert torch.equal(torch.get_rng_state(), state)
        assert views.shape == (9, 3, 24, 24)
        assert views.dtype == torch.float32
        assert views.isfinite().all()
        low, high = normalised(torch.zeros(3, 1, 1)), normalised(torch.ones(3, 1, 1))
        assert ((views >= low - 1e-5) & (views <= high + 1e-5)).all()
        assert torch.equal(views, view(images, seeded()))
        assert torch.equal(views, view(images, seeded(1))) == (name == "plain")


def test_two_ranks_equal_one():
    every = [(name, 3) for name in NAMES["augmentation"]]
    for name, share in (*every, ("simclr-imagenet", 1), ("clsa", 150)):  # the last one is worked on in pieces
        images, view = pictures(2 * share), augmentation(name)
        one = view(images, seeded())
        two = [view(images[share * rank :][:share], seeded(), rank=rank, world_size=2) for rank in range(2)]
        assert torch.equal(torch.cat(two), one), name


def test_parameters_have_one_row_per_sample():
    for name in NAMES["augmentation"]:
        assert all(len(rows) == 7 for rows in augmentation(name).parameters(7, seeded()).values())


def test_float_images_give_the_views_of_uint8_images_and_stay_as_they_are():
    for name in NAMES["augmentation"]:
        images, view = pictures(5), augmentation(name, size=32)
        floats = images / 255
        before = floats.clone()
        parameters = view.parameters(5, seeded())
        if name != "clsa":  # its 8-bit operations may round a last bit to another level
            torch.testing.assert_close(
                view.apply(floats, parameters), view.apply(images, parameters), rtol=0, atol=1e-4
            )
        view.apply(floats, parameters)
        assert torch.equal(floats, before)


def test_plain_only_normalises_images_of_its_size():
    images = pictures(4)
    torch.testing.assert_close(Plain(32)(images, seeded()), normalised(images / 255))


def test_plain_resizes_the_centre_as_pillow_does():
    images = pictures(2, 40)
    views = Plain(16, centre=0.8, mean=(0, 0, 0), std=(1, 1, 1))(images, seeded())
    for image, view in zip(images, views, strict=True):
        centre = Image.fromarray(image[:, 4:36, 4:36].permute(1, 2, 0).contiguous().numpy())
        expected = np.asarray(centre.resize((16, 16), Image.Resampling.BILINEAR)).copy()
        assert (view * 255 - torch.from_numpy(expected).permute(2, 0, 1)).abs().max() <= 1.01


def test_random_view_without_randomness_is_plain():
    images = pictures(4)
    view = RandomView(32, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, hue=0.5, jitter=0.0)
    torch.testing.assert_close(view(images, seeded()), Plain(32)(images, seeded()), rtol=1e-4, atol=1e-4)


def test_random_view_is_its_parts_one_after_the_other():
    images = pictures(64)
    view = augmentation("simclr", size=24, blur=0.5, solarise=0.5, strong=2)
    drawn = view.parameters(64, seeded())
    parts = crop(images / 255, drawn["box"], drawn["flip"], 24, drawn["sigma"])
    parts = jitter(parts, *(drawn[name] for name in ("brightness", "contrast", "saturation", "hue")))
    parts = torch.where(drawn["solarise"].view(-1, 1, 1, 1), invert_above(parts, torch.full((64,), 128 / 255)), parts)
    for row in range(64):
        for number, magnitude in zip(drawn["operation"][row].tolist(), drawn["magnitude"][row], strict=True):
            if number >= 0:
                parts[row : row + 1] = OPERATIONS[number](parts[row : row + 1], magnitude.view(1))
    # Values at a threshold may fall on either side of it by rounding: nearly all must agree.
    close = (view.apply(images, drawn) - normalised(parts)).abs() < 1e-3
    assert close.float().mean() > 0.995
    assert (drawn["operation"] >= 0).any()


PAPERS = {
    "crop-flip": {"scale": (0.08, 1.0), "flip": 0.5, "jittered": 0.0, "grey": 0.0, "blur": 0.0},
    "simclr": {"scale": (0.08, 1.0), "flip": 0.5, "jittered": 0.8, "factor": 0.4, "hue": 0.1, "grey": 0.2, "blur": 0.0},
    "simclr-imagenet": {"scale": (0.08, 1.0), "jittered": 0.8, "factor": 0.8, "hue": 0.2, "grey": 0.2, "blur": 0.5},
    "moco-v1": {"scale": (0.2, 1.0), "flip": 0.5, "jittered": 1.0, "factor": 0.4, "hue": 0.4, "grey": 0.2, "blur": 0.0},
    "moco-v2": {"scale": (0.2, 1.0), "flip": 0.5, "jittered": 0.8, "factor": 0.4, "hue": 0.1, "grey": 0.2, "blur": 0.5},
    "hnssl": {"scale": (0.8, 1.0), "flip": 0.5, "jittered": 0.8, "factor": 0.8, "hue": 0.2, "grey": 0.2, "blur": 0.1},
    "clsa": {"scale": (0.2, 1.0), "flip": 0.5, "jittered": 0.8, "factor": 0.4, "hue": 0.1, "grey": 0.2, "blur": 0.0},
}


def test_recipe_draws_what_its_paper_says():
    for name in PAPERS:
        paper = PAPERS[name]
        drawn = augmentation(name).parameters(20_000, seeded())
        area = drawn["box"][:, 2] * drawn["box"][:, 3]
        assert area.min() == pytest.approx(paper["scale"][0], abs=0.01)
        assert area.max() == pytest.approx(paper["scale"][1], abs=0.01)
        assert drawn["flip"].float().mean() == pytest.approx(0.5, abs=0.02)
        assert (drawn["brightness"] != 1).float().mean() == pytest.approx(paper["jittered"], abs=0.02)
        assert (drawn["saturation"] == 0).float().mean() == pytest.approx(paper["grey"], abs=0.02)
        assert (drawn["sigma"] > 0).float().mean() == pytest.approx(paper["blur"], abs=0.02)
        if paper["jittered"]:
            assert drawn["hue"].abs().max() == pytest.approx(paper["hue"], abs=0.01)
            for factor in ("brightness", "contrast", "saturation"):
                coloured = drawn[factor][drawn["saturation"] != 0]
                assert coloured.max() == pytest.approx(1 + paper["factor"], abs=0.01)
                assert coloured.min() == pytest.approx(1 - paper["factor"], abs=0.01)
            batch_neighbours = (drawn["brightness"] != 1) == (drawn["contrast"] != 1)
            assert batch_neighbours.float().mean() > 0.999
        operation = drawn["operation"]
        assert operation.shape == (20_000, 5 if name == "clsa" else 0)
        if name == "clsa":
            assert (operation >= 0).float().mean() == pytest.approx(0.5, abs=0.01)
            share = operation[operation >= 0].bincount(minlength=14) / (operation >= 0).sum()
            torch.testing.assert_close(share, torch.full((14,), 1 / 14), rtol=0, atol=0.005)


def test_strong_operations_are_applied_as_often_as_told():
    drawn = RandomView(strong=3, strong_probability=0.2).parameters(5000, seeded())
    assert (drawn["operation"] >= 0).float().mean() == pytest.approx(0.2, abs=0.02)


def test_hnssl_blurs_with_three_taps_of_standard_deviation_one_and_a_half():
    drawn = augmentation("hnssl").parameters(1000, seeded())
    assert set(drawn["sigma"].unique().tolist()) == {0.0, 1.5}
    assert augmentation("hnssl").blur_kernel == 3


def test_overrides_change_a_recipe_and_signatures_show_its_defaults():
    assert augmentation("moco-v2", scale=(0.5, 1.0)).scale == (0.5, 1.0)
    assert NAMES["augmentation"]["moco-v2"].preset["blur"] == 0.5


def test_multi_crop_gives_every_view_its_size_and_scale():
    many = multi_crop("clsa", sizes=(32, 24, 16), blur=0.5)
    assert [view.scale for view in many.views] == [(0.2, 1.0), (0.2 * 0.75, 0.75), (0.1, 0.5)]
    images = pictures(6)
    views = many(images, seeded())
    assert [view.shape for view in views] == [(6, 3, size, size) for size in (32, 24, 16)]
    halves = [many(images[3 * rank :][:3], seeded(), rank=rank, world_size=2) for rank in range(2)]
    for whole, first, second in zip(views, *halves, strict=True):
        assert torch.equal(whole, torch.cat((first, second)))
    again = many.apply(images, many.parameters(6, seeded()))
    assert all(torch.equal(one, other) for one, other in zip(views, again, strict=True))


def test_multi_crop_takes_scales():
    many = multi_crop("simclr", sizes=(32, 16), scales=((0.14, 1.0), (0.05, 0.14)))
    assert [view.scale for view in many.views] == [(0.14, 1.0), (0.05, 0.14)]


def test_an_empty_batch_gives_an_empty_batch():
    assert augmentation("clsa")(pictures(0), seeded()).shape == (0, 3, 32, 32)


def test_refuses_clearly():
    for build, message in [
        (lambda: augmentation("simsiam"), "unknown augmentation 'simsiam': Choose one of plain, crop-flip"),
        (lambda: augmentation("plain", blur=0.5), "'plain' has no argument 'blur': it takes size, centre"),
        (lambda: RandomView(size=0), "size must be at least 1"),
        (lambda: RandomView(std=(1.0, 0.0, 1.0)), "std > 0"),
        (lambda: RandomView(scale=(0.5, 1.5)), "scale must be a pair"),
        (lambda: RandomView(ratio=(2.0, 1.0)), "ratio must be a pair"),
        (lambda: RandomView(blur_sigma=(0.0, 1.0)), "blur_sigma must be a pair"),
        (lambda: RandomView(blur_kernel=4), "blur_kernel must be odd"),
        (lambda: RandomView(grey=1.2), "grey must be in"),
        (lambda: RandomView(contrast=-0.1), "contrast must be at least 0"),
        (lambda: RandomView(hue=0.6), "hue must be in"),
        (lambda: RandomView(strong=-1), "strong must be at least 0"),
        (lambda: Plain(centre=0.0), "centre must be in"),
        (lambda: MultiCrop([]), "at least one augmentation"),
        (lambda: multi_crop("plain", sizes=(32, 16)), "'plain' does not crop"),
        (lambda: multi_crop("simclr", sizes=()), "at least one view"),
        (lambda: multi_crop("simclr", sizes=(32, 16), scales=((0.1, 1.0),)), "one range per size"),
        (lambda: Plain()(pictures(2).long(), seeded()), "uint8 or floating point"),
        (lambda: Plain()(pictures(2)[0], seeded()), r"shape \(B, 3, H, W\)"),
        (lambda: Plain()(pictures(2), seeded(), rank=2, world_size=2), "rank must be in 0..1"),
        (lambda: RandomView().apply(pictures(2), RandomView().parameters(3, seeded())), "3 rows for 2 images"),
    ]:
        with pytest.raises(ValueError, match=message):
            build()
