"""The augmentations: plain, random, and several of them at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from antipodes.data.augment.base import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Augmentation,
    Parameters,
    check_probability,
    check_range,
    uniform,
)
from antipodes.data.augment.colour import invert_above, jitter
from antipodes.data.augment.operations import OPERATIONS
from antipodes.data.augment.resampling import crop, draw_boxes


class Plain(Augmentation):
    """Resize and normalise, with nothing random: what evaluation sees.

    Args:
        size: height and width of the views.
        centre: share of height and width that is kept around the centre; ImageNet's custom is 0.875.
        mean: see `Augmentation`.
        std: see `Augmentation`.
    """

    def __init__(
        self,
        size: int = 32,
        centre: float = 1.0,
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
    ) -> None:
        super().__init__(size, mean, std)
        if not 0 < centre <= 1:
            raise ValueError(
                f"centre must be in (0, 1], got {centre}: it is the share of height and width that is kept"
            )
        self.centre = centre

    def parameters(self, count: int, generator: torch.Generator) -> Parameters:
        """Return no parameters and leave the generator alone."""
        return {}

    def transform(self, images: Tensor, parameters: Parameters) -> Tensor:
        """Cut out the centre and resize it, antialiased."""
        height, width = images.shape[2:]
        top, left = round(height * (1 - self.centre) / 2), round(width * (1 - self.centre) / 2)
        images = images[:, :, top : height - top, left : width - left]
        if images.shape[2:] == (self.size, self.size):
            return images
        return interpolate(images, (self.size, self.size), mode="bilinear", antialias=True).clamp_(0, 1)


class RandomView(Augmentation):
    """Random resized crop, flip, colour jitter, greyscale, blur, solarise, strong operations: all the papers' recipes.

    Crop, flip and blur are one resampling (see `resampling`), jitter and greyscale one colour matrix (see `colour`);
    because the matrix is affine and the blur's weights sum to one, blurring first gives what blurring last does, but
    for clamping. With its defaults it only crops and flips.

    Args:
        size: height and width of the views.
        scale: range of the crop's share of the image area.
        ratio: range of the crop's width over its height, for square images.
        flip: probability of exchanging left and right.
        jitter: probability that brightness, contrast, saturation and hue are changed at all.
        brightness: x draws factors from [max(0, 1 - x), 1 + x].
        contrast: as `brightness`.
        saturation: as `brightness`.
        hue: x draws shifts from [-x, x] turns, at most 0.5.
        grey: probability of losing all colour.
        blur: probability of a Gaussian blur.
        blur_sigma: range of its standard deviation in pixels of the view.
        blur_kernel: odd number of taps after which it is cut off, 0 for all of it.
        solarise: probability of inverting all values of at least 128 / 255.
        strong: how many of the fourteen strong operations are drawn for an image, with replacement, each with a
            magnitude uniform over its range (see `operations`); they are applied last, one after the other.
        strong_probability: probability with which each operation that was drawn is applied.
        mean: see `Augmentation`.
        std: see `Augmentation`.

    Raises:
        ValueError: if a probability, a strength or a range is impossible.

    Example:
        >>> view = RandomView(size=24, brightness=0.4, grey=0.2)
        >>> images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
        >>> view(images, torch.Generator().manual_seed(0)).shape
        torch.Size([8, 3, 24, 24])
    """

    def __init__(
        self,
        size: int = 32,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        jitter: float = 1.0,
        brightness: float = 0.0,
        contrast: float = 0.0,
        saturation: float = 0.0,
        hue: float = 0.0,
        grey: float = 0.0,
        blur: float = 0.0,
        blur_sigma: tuple[float, float] = (0.1, 2.0),
        blur_kernel: int = 0,
        solarise: float = 0.0,
        strong: int = 0,
        strong_probability: float = 0.5,
        mean: tuple[float, float, float] = IMAGENET_MEAN,
        std: tuple[float, float, float] = IMAGENET_STD,
    ) -> None:
        super().__init__(size, mean, std)
        check_range("scale", scale, 0, 1)
        check_range("ratio", ratio, 0)
        check_range("blur_sigma", blur_sigma, 0)
        probabilities = {"flip": flip, "jitter": jitter, "grey": grey, "blur": blur, "solarise": solarise}
        for name, value in {**probabilities, "strong_probability": strong_probability}.items():
            check_probability(name, value)
        for name, value in {"brightness": brightness, "contrast": contrast, "saturation": saturation}.items():
            if value < 0:
                raise ValueError(f"{name} must be at least 0, got {value}: factors come from [1 - {name}, 1 + {name}]")
        if not 0 <= hue <= 0.5:
            raise ValueError(f"hue must be in [0, 0.5], got {hue}: shifts come from [-hue, hue] turns")
        if blur_kernel != 0 and (blur_kernel < 0 or blur_kernel % 2 == 0):
            raise ValueError(f"blur_kernel must be odd, or 0 for a Gaussian that is not cut off, got {blur_kernel}")
        if strong < 0:
            raise ValueError(
                f"strong must be at least 0, got {strong}: it is the number of operations drawn for an image"
            )
        self.scale = scale
        self.ratio = ratio
        self.flip = flip
        self.jitter = jitter
        self.brightness = brightness
        self.contrast = contrast
        self.saturation = saturation
        self.hue = hue
        self.grey = grey
        self.blur = blur
        self.blur_sigma = blur_sigma
        self.blur_kernel = blur_kernel
        self.solarise = solarise
        self.strong = strong
        self.strong_probability = strong_probability
        if strong:
            # Every operation works on the few rows that drew it, so the gain is in larger chunks here.
            self.chunk_values = 2**22

    def parameters(self, count: int, generator: torch.Generator) -> Parameters:
        """Draw boxes, flips, colour factors, blur widths, solarise flags and strong operations.

        Returns:
            box (count, 4), flip (count,) bool, brightness, contrast, saturation, hue (count,) that are neutral where
            nothing happens, sigma (count,) with 0 for no blur, solarise (count,) bool, operation (count, strong) with
            -1 for none, magnitude (count, strong) in [-1, 1].
        """

        def happens(probability: float) -> Tensor:
            return uniform(count, 0, 1, generator) < probability

        def factor(strength: float) -> Tensor:
            return uniform(count, max(0.0, 1 - strength), 1 + strength, generator)

        jittered = happens(self.jitter)
        saturation = torch.where(jittered, factor(self.saturation), 1.0)
        draws = (count, self.strong)
        operation = torch.randint(len(OPERATIONS), draws, generator=generator, device=generator.device)
        skipped = uniform(draws, 0, 1, generator) >= self.strong_probability
        return {
            "box": draw_boxes(count, self.scale, self.ratio, generator),
            "flip": happens(self.flip),
            "brightness": torch.where(jittered, factor(self.brightness), 1.0),
            "contrast": torch.where(jittered, factor(self.contrast), 1.0),
            "saturation": saturation.masked_fill_(happens(self.grey), 0),
            "hue": torch.where(jittered, uniform(count, -self.hue, self.hue, generator), 0.0),
            "sigma": torch.where(happens(self.blur), uniform(count, *self.blur_sigma, generator), 0.0),
            "solarise": happens(self.solarise),
            "operation": operation.masked_fill_(skipped, -1),
            "magnitude": uniform(draws, -1, 1, generator),
        }

    def transform(self, images: Tensor, parameters: Parameters) -> Tensor:
        """Resample, then change colours, solarise, and apply the strong operations."""
        sigma = parameters["sigma"] if self.blur else None
        views = crop(images, parameters["box"], parameters["flip"], self.size, sigma, self.blur_kernel)
        if self.grey or (self.jitter and max(self.brightness, self.contrast, self.saturation, self.hue)):
            colours = (parameters[name] for name in ("brightness", "contrast", "saturation", "hue"))
            views = jitter(views, *colours)
        if self.solarise:
            # A threshold above 1 inverts nothing.
            views = invert_above(views, torch.where(parameters["solarise"], 128 / 255, 2.0))
        for draw in range(self.strong):
            drawn, magnitude = parameters["operation"][:, draw], parameters["magnitude"][:, draw]
            for number, operation in enumerate(OPERATIONS):
                rows = (drawn == number).nonzero().squeeze(1)
                if len(rows):
                    views[rows] = operation(views[rows], magnitude[rows])
        return views


class MultiCrop:
    """Several views of the same images, each by its own augmentation: other sizes, scales or strengths.

    Args:
        views: the augmentations, at least one.
    """

    def __init__(self, views: Sequence[Augmentation]) -> None:
        if not views:
            raise ValueError("MultiCrop needs at least one augmentation, got none")
        self.views = tuple(views)

    def parameters(self, count: int, generator: torch.Generator) -> list[Parameters]:
        """Draw the parameters of every view in turn for `count` samples."""
        return [view.parameters(count, generator) for view in self.views]

    def apply(self, images: Tensor, parameters: Sequence[Parameters]) -> list[Tensor]:
        """Return one batch (B, 3, size, size) per view, each of its own size."""
        return [view.apply(images, rows) for view, rows in zip(self.views, parameters, strict=True)]

    def __call__(
        self, images: Tensor, generator: torch.Generator, *, rank: int = 0, world_size: int = 1
    ) -> list[Tensor]:
        """Draw for the global batch and apply this rank's rows, one view after the other."""
        return [view(images, generator, rank=rank, world_size=world_size) for view in self.views]
