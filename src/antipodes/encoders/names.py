"""The encoders that have a name, as plain data: nothing here imports torch, so listing names costs nothing.

Names read ``resnet<depth>[-2x|-4x][-cifar]``, and ``-slim`` for encoders that train on a CPU:

- ``-2x`` and ``-4x`` multiply *every* width by that factor, stem included, as in SimCLR. torchvision's
  ``wide_resnet50_2`` is another network: it doubles only the inner width of each bottleneck.
- ``-cifar`` replaces the 7x7 stride-2 stem and its max pooling by one 3x3 convolution of stride 1, for images of about
  32 pixels.
- ``-slim`` is a quarter as wide (16) with a 3x3 stem of stride 2: ``resnet18-slim`` keeps the layout of ResNet-18,
  ``resnet8-slim`` has three stages of one basic block.
"""

from typing import Any

RESNET = "antipodes.encoders.resnet.ResNet"

_DEPTHS: dict[str, dict[str, Any]] = {
    "resnet18": {"blocks": (2, 2, 2, 2), "block": "basic"},
    "resnet34": {"blocks": (3, 4, 6, 3), "block": "basic"},
    "resnet50": {"blocks": (3, 4, 6, 3), "block": "bottleneck"},
}
_SLIM: dict[str, Any] = {"width": 16, "stem": "stride2", "block": "basic"}

PRESETS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name + wide + small: (RESNET, {**layout, "width": width, "stem": stem})
        for name, layout in _DEPTHS.items()
        for wide, width in {"": 64, "-2x": 128, "-4x": 256}.items()
        for small, stem in {"": "imagenet", "-cifar": "cifar"}.items()
    },
    "resnet18-slim": (RESNET, {**_SLIM, "blocks": (2, 2, 2, 2)}),
    "resnet8-slim": (RESNET, {**_SLIM, "blocks": (1, 1, 1)}),
}
"""Name -> (dotted path of the class, its arguments)."""
