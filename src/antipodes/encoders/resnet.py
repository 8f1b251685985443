"""ResNet with torchvision's parameter names, any width, and stems for large and for small images.

The state dict of `ResNet((3, 4, 6, 3), block="bottleneck")` has the keys and shapes of torchvision's (and timm's)
``resnet50`` except ``fc.weight`` and ``fc.bias``, because the classifier is an identity. So weights can be exchanged in
both directions with ``strict=False``. As in torchvision, the stride of a bottleneck is in its 3x3 convolution.
"""

from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from antipodes.encoders.encoder import Encoder

Norm = Literal["batch", "group"]
GROUP = 8
"""Channels in a group of group normalisation."""


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut: (B, in_channels, H, W) -> (B, planes, H/stride, W/stride)."""

    expansion = 1

    def __init__(self, in_channels: int, planes: int, stride: int, norm: Norm = "batch") -> None:
        super().__init__()
        self.conv1 = _convolution(in_channels, planes, 3, stride)
        self.bn1 = _normalisation(norm, planes)
        self.conv2 = _convolution(planes, planes, 3)
        self.bn2 = _normalisation(norm, planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(in_channels, planes, stride, norm)

    @property
    def last_norm(self) -> nn.BatchNorm2d | nn.GroupNorm:
        """The last normalisation of the residual branch."""
        return self.bn2

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual branch to the shortcut."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x if self.downsample is None else self.downsample(x)
        return cast(Tensor, self.relu(out))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions around a shortcut: (B, in_channels, H, W) -> (B, 4 planes, H/stride, W/stride)."""

    expansion = 4

    def __init__(self, in_channels: int, planes: int, stride: int, norm: Norm = "batch") -> None:
        super().__init__()
        self.conv1 = _convolution(in_channels, planes, 1)
        self.bn1 = _normalisation(norm, planes)
        self.conv2 = _convolution(planes, planes, 3, stride)
        self.bn2 = _normalisation(norm, planes)
        self.conv3 = _convolution(planes, 4 * planes, 1)
        self.bn3 = _normalisation(norm, 4 * planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(in_channels, 4 * planes, stride, norm)

    @property
    def last_norm(self) -> nn.BatchNorm2d | nn.GroupNorm:
        """The last normalisation of the residual branch."""
        return self.bn3

    def forward(self, x: Tensor) -> Tensor:
        """Add the residual branch to the shortcut."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += x if self.downsample is None else self.downsample(x)
        return cast(Tensor, self.relu(out))


class ResNet(Encoder):
    """A residual network that returns pooled features: (B, in_channels, H, W) -> (B, num_features).

    Args:
        blocks: residual blocks per stage; each stage after the first halves the resolution and doubles the width.
        width: channels of the stem and of the first stage (64 in the standard networks; 128 is SimCLR's "2x").
        stem: "imagenet" (7x7 of stride 2, then max pooling), "cifar" (3x3 of stride 1) or "stride2" (3x3 of stride 2).
        block: "basic" (ResNet-18 and 34) or "bottleneck" (ResNet-50).
        in_channels: channels of the images; CMC's two encoders take 1 (L) and 2 (ab).
        zero_init_residual: start every residual branch at zero, as SimCLR does; torchvision does not by default.
        norm: "batch" normalises by the statistics of the batch; "group" by those of 8 channels of each image. A network
            with group normalisation embeds every image on its own, so `antipodes.chunked` can embed a batch in pieces.
            Names stay torchvision's.

    Weights are stored channels_last, so convolutions run in that layout whatever the layout of the images; on CPUs that
    is 1.1-1.4x faster.

    Raises:
        ValueError: an argument has another value; `forward` raises it for images of another shape.

    Example:
        >>> ResNet((1, 1, 1), width=16, stem="stride2")(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 64])
    """

    def __init__(
        self,
        blocks: Sequence[int] = (2, 2, 2, 2),
        width: int = 64,
        stem: Literal["imagenet", "cifar", "stride2"] = "imagenet",
        block: Literal["basic", "bottleneck"] = "basic",
        in_channels: int = 3,
        zero_init_residual: bool = False,
        norm: Norm = "batch",
    ) -> None:
        super().__init__()
        if not blocks or min(blocks) < 1:
            raise ValueError(f"blocks must give at least one block for every stage, got {blocks!r}")
        if width < 1 or in_channels < 1:
            raise ValueError(f"width and in_channels must be at least 1, got {width} and {in_channels}")
        if stem not in ("imagenet", "cifar", "stride2"):
            raise ValueError(f"stem must be 'imagenet', 'cifar' or 'stride2', got {stem!r}")
        if block not in ("basic", "bottleneck"):
            raise ValueError(f"block must be 'basic' or 'bottleneck', got {block!r}")
        if norm not in ("batch", "group"):
            raise ValueError(f"norm must be 'batch' or 'group', got {norm!r}")
        if norm == "group" and width % GROUP:
            raise ValueError(f"width must be a multiple of {GROUP} with norm 'group', got {width}")
        block_class = BasicBlock if block == "basic" else Bottleneck
        self.in_channels = in_channels
        self.conv1 = _convolution(in_channels, width, 7 if stem == "imagenet" else 3, 1 if stem == "cifar" else 2)
        self.bn1 = _normalisation(norm, width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()
        self.stages = [f"layer{number}" for number in range(1, len(blocks) + 1)]
        channels = width
        for number, (name, count) in enumerate(zip(self.stages, blocks, strict=True)):
            stage = nn.Sequential()
            for position in range(count):
                planes = width * 2**number
                stage.append(block_class(channels, planes, stride=2 if number > 0 and position == 0 else 1, norm=norm))
                channels = planes * block_class.expansion
            self.add_module(name, stage)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Identity()
        self.num_features = channels
        self._initialise(zero_init_residual)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def _initialise(self, zero_init_residual: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, BasicBlock | Bottleneck) and zero_init_residual:
                nn.init.zeros_(module.last_norm.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Return the pooled features (B, num_features) of images (B, in_channels, H, W)."""
        if images.ndim != 4 or images.shape[1] != self.in_channels:
            raise ValueError(
                f"images must be (B, {self.in_channels}, H, W) for this encoder, got {tuple(images.shape)}"
            )
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for name in self.stages:
            x = self.get_submodule(name)(x)
        return cast(Tensor, self.fc(self.avgpool(x).flatten(1)))


def _convolution(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)


def _normalisation(norm: Norm, channels: int) -> nn.BatchNorm2d | nn.GroupNorm:
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(channels // GROUP, channels)


def _shortcut(in_channels: int, out_channels: int, stride: int, norm: Norm) -> nn.Sequential | None:
    """Return the shortcut of a block: None if the shape is the same, else a 1x1 convolution with normalisation."""
    if stride == 1 and in_channels == out_channels:
        return None
    return nn.Sequential(_convolution(in_channels, out_channels, 1, stride), _normalisation(norm, out_channels))
