"""`Encoder`: the attributes that the package expects of every encoder; how images are prepared; Lab colours."""

import copy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

Modality = Literal["image", "text", "vector"]

VOCABULARY = "vocabulary"
"""Name of a text encoder's buffer with the vocabulary, as bytes in a format that the encoder's tokenizer defines."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# sRGB to XYZ under D65, each row divided by the white point
_XYZ = ((0.412453, 0.357580, 0.180423), (0.212671, 0.715160, 0.072169), (0.019334, 0.119193, 0.950227))
_WHITE = (0.950456, 1.0, 1.088754)


@dataclass(frozen=True)
class Preprocessing:
    """How images are prepared for an encoder: shorter side scaled to `size`, centre crop, RGB normalised.

    Args:
        size: height and width of the square crop.
        mean: mean of each RGB channel in [0, 1], which is subtracted.
        std: standard deviation of each channel, by which it is divided.
        decode: side of the square to which photos are first decoded, if it differs from `size`.
        colour: the channels that the encoder gets: "rgb", or of the Lab colour space only "l" or "ab" (CMC's encoders).

    Raises:
        ValueError: the size is below 1, mean and std are not three numbers each, std above 0, or colour is another.
    """

    size: int = 224
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    colour: Literal["rgb", "l", "ab"] = "rgb"
    decode: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(float(value) for value in self.mean))
        object.__setattr__(self, "std", tuple(float(value) for value in self.std))
        if self.size < 1 or (self.decode is not None and self.decode < 1):
            raise ValueError(f"size and decode must be at least 1, got {self.size} and {self.decode}")
        if len(self.mean) != 3 or len(self.std) != 3 or not min(self.std) > 0:
            raise ValueError(f"mean and std must be three numbers each, std above 0, got {self.mean} and {self.std}")
        if self.colour not in ("rgb", "l", "ab"):
            raise ValueError(f"colour must be rgb, l or ab, got {self.colour!r}")


class Encoder(nn.Module):
    """A module that maps a batch of one modality to features (B, num_features).

    Images are (B, C, H, W), texts are tokens (B, L) int64, vectors are (B, F). This class only types the attributes
    below: `antipodes.encoders.create` sets them on any module, which need not inherit from it.

    Attributes:
        num_features: the length of a feature vector.
        modality: the kind of input: image, text or vector; image if an encoder has no such attribute.
        preprocessing: how images are prepared, for encoders with pretrained weights; None if the run decides.
        origin: the name and the arguments given to `create`.
    """

    num_features: int
    modality: Modality = "image"
    preprocessing: Preprocessing | None = None
    origin: tuple[str, dict[str, Any]]


def feature_size(module: nn.Module, image_size: int = 32, in_channels: int = 3) -> int:
    """Measure the length of a module's feature vectors with a batch of two black images.

    A copy of the module runs in evaluation mode and the random state is restored, so neither the module nor the run
    changes.

    Raises:
        ValueError: the module fails on such images, or does not return a (B, features) tensor.

    Example:
        >>> feature_size(nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5)), image_size=8)
        5
    """
    shape = (2, in_channels, image_size, image_size)
    parameter = next(module.parameters(), torch.empty(0))
    on_gpu = [parameter.device] if parameter.is_cuda else []
    with torch.random.fork_rng(devices=on_gpu), torch.no_grad():
        try:
            features = copy.deepcopy(module).eval()(parameter.new_zeros(shape))
        except Exception as error:  # a user's forward may raise anything
            raise ValueError(
                f"{type(module).__name__} failed on a batch of images of shape {shape} ({error}): "
                "give the class a num_features attribute, or a size and channel count that it accepts"
            ) from error
    if not isinstance(features, torch.Tensor) or features.ndim != 2 or len(features) != 2:
        got = (
            f"a tensor of shape {tuple(features.shape)}"
            if isinstance(features, torch.Tensor)
            else type(features).__name__
        )
        raise ValueError(
            f"{type(module).__name__} must map images {shape} to features (2, size), but it returned {got}"
        )
    return features.shape[1]


def rgb_to_lab(images: Tensor) -> Tensor:
    """Turn sRGB images in [0, 1] into CIE Lab, luminance and colour, scaled to about [-1, 1]: L/50 - 1, a/110, b/110.

    Args:
        images: (B, 3, H, W) in [0, 1].

    Returns:
        (B, 3, H, W), the channels L, a, b.

    Example:
        >>> rgb_to_lab(torch.ones(1, 3, 1, 1)).flatten().abs().round(decimals=3)
        tensor([1., 0., 0.])
    """
    images = images.clamp(0, 1)
    linear = torch.where(images > 0.04045, ((images + 0.055) / 1.055) ** 2.4, images / 12.92)
    matrix = images.new_tensor(_XYZ) / images.new_tensor(_WHITE)[:, None]
    xyz = torch.einsum("kc,bchw->bkhw", matrix, linear)
    f = torch.where(xyz > 0.008856, xyz.clamp(min=1e-6) ** (1 / 3), 7.787 * xyz + 16 / 116)
    x, y, z = f.unbind(1)
    return torch.stack(((116 * y - 16) / 50 - 1, 500 * (x - y) / 110, 200 * (y - z) / 110), dim=1)
