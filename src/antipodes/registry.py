"""The one place where a name becomes a thing.

`NAMES` is plain data: for every kind of component its names, each with the dotted path of a class, the constructor
arguments that the name fixes (`preset`), and the options of a run that come with it unless told otherwise (`run`).
Nothing heavy is imported before `find` loads a component, so listing names costs nothing.

A name that is not in the table may be the dotted path of a class of one's own; data may also be a path on disk, and an
encoder `timm:<model>`.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["method", "negatives", "data", "encoder", "augmentation"]

_BASES: dict[Kind, str] = {
    "method": "antipodes.methods.method.Method",
    "negatives": "antipodes.negatives.policy.Policy",
    "data": "antipodes.data.dataset.ImageDataset",
    "encoder": "torch.nn.Module",
    "augmentation": "antipodes.data.augment.base.Augmentation",
}


@dataclass(frozen=True)
class Entry:
    """What a name stands for.

    Args:
        path: Dotted path of the class.
        preset: Constructor arguments that the name fixes; a configuration may still override them.
        run: Options of the run that come with the name, as a configuration would have them.
    """

    path: str
    preset: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Component:
    """An entry whose class has been imported."""

    target: Callable[..., Any]
    preset: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)


_RESNET = "antipodes.encoders.resnet.ResNet"
_DEPTHS: dict[str, dict[str, Any]] = {
    "resnet18": {"blocks": (2, 2, 2, 2), "block": "basic"},
    "resnet34": {"blocks": (3, 4, 6, 3), "block": "basic"},
    "resnet50": {"blocks": (3, 4, 6, 3), "block": "bottleneck"},
}
_SLIM: dict[str, Any] = {"width": 16, "stem": "stride2", "block": "basic"}

# Names read resnet<depth>[-2x|-4x][-cifar], and -slim for encoders that train on a CPU:
# -2x and -4x multiply *every* width by that factor, stem included, as in SimCLR (torchvision's wide_resnet50_2 is
# another network: it doubles only the inner width of each bottleneck); -cifar replaces the 7x7 stride-2 stem and its
# max pooling by one 3x3 convolution of stride 1, for images of about 32 pixels; -slim is a quarter as wide (16) with a
# 3x3 stem of stride 2: resnet18-slim keeps the layout of ResNet-18, resnet8-slim has three stages of one basic block.
_ENCODERS: dict[str, Entry] = {
    **{
        name + wide + small: Entry(_RESNET, {**layout, "width": width, "stem": stem})
        for name, layout in _DEPTHS.items()
        for wide, width in {"": 64, "-2x": 128, "-4x": 256}.items()
        for small, stem in {"": "imagenet", "-cifar": "cifar"}.items()
    },
    "resnet18-slim": Entry(_RESNET, {**_SLIM, "blocks": (2, 2, 2, 2)}),
    "resnet8-slim": Entry(_RESNET, {**_SLIM, "blocks": (1, 1, 1)}),
}

_VIEW = "antipodes.data.augment.views.RandomView"
_JITTER: dict[str, Any] = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "grey": 0.2}
_MOCO_COLOUR: dict[str, Any] = {**_JITTER, "jitter": 0.8, "hue": 0.1}
_STRONG_COLOUR: dict[str, Any] = {
    "jitter": 0.8,
    "brightness": 0.8,
    "contrast": 0.8,
    "saturation": 0.8,
    "hue": 0.2,
    "grey": 0.2,
}
_AUGMENTATIONS: dict[str, Entry] = {
    # Evaluation: nothing random. Linear training and fine-tuning: crop and flip.
    "plain": Entry("antipodes.data.augment.views.Plain"),
    "crop-flip": Entry(_VIEW),
    # SimCLR's appendix B.9 for CIFAR: colour strength 0.5 and no blur. Its ImageNet recipe has strength 1 and blurs.
    "simclr": Entry(_VIEW, _MOCO_COLOUR),
    "simclr-imagenet": Entry(_VIEW, {**_STRONG_COLOUR, "blur": 0.5}),
    "moco-v1": Entry(_VIEW, {"scale": (0.2, 1.0), **_JITTER, "hue": 0.4}),
    "moco-v2": Entry(_VIEW, {"scale": (0.2, 1.0), **_MOCO_COLOUR, "blur": 0.5}),
    # The same without blur, which at 32 pixels leaves little of an image.
    "moco-small": Entry(_VIEW, {"scale": (0.2, 1.0), **_MOCO_COLOUR}),
    # HNSSL section 3.6, with its 3 x 3 Gaussian of standard deviation 1.5 after the crop instead of before it.
    "hnssl": Entry(
        _VIEW, {"scale": (0.8, 1.0), **_STRONG_COLOUR, "blur": 0.1, "blur_sigma": (1.5, 1.5), "blur_kernel": 3}
    ),
    # CLSA's strong view, which SANE uses too: five operations, each applied with probability 0.5.
    "clsa": Entry(_VIEW, {"scale": (0.2, 1.0), **_MOCO_COLOUR, "strong": 5}),
}

NAMES: dict[Kind, dict[str, Entry]] = {
    "method": {
        "simclr": Entry("antipodes.methods.simclr.SimCLR"),
        "sogclr": Entry("antipodes.methods.simclr.SogCLR"),
        "supcon": Entry("antipodes.methods.simclr.SupCon"),
        "moco": Entry("antipodes.methods.moco.MoCo"),
        "moco-v1": Entry("antipodes.methods.moco.MoCoV1"),
        "moco-v2": Entry("antipodes.methods.moco.MoCo"),
        "sane": Entry("antipodes.methods.sane.SANE"),
        "sane-imagenet": Entry("antipodes.methods.sane.SANEImageNet"),
        "instance": Entry("antipodes.methods.instance.InstanceDiscrimination"),
        "cmc": Entry("antipodes.methods.cmc.CMC"),
        "local-aggregation": Entry("antipodes.methods.local_aggregation.InstanceAggregation"),
        "cmc-local-aggregation": Entry("antipodes.methods.local_aggregation.CMCAggregation"),
        "hnssl": Entry("antipodes.methods.hnssl.HNSSL"),
    },
    "negatives": {
        "glofnd": Entry("antipodes.negatives.glofnd.GloFND"),
        "ifnd": Entry("antipodes.negatives.ifnd.IFND"),
        "fnc": Entry("antipodes.negatives.fnc.FNC"),
        "ring": Entry("antipodes.negatives.ring.Ring"),
        "cave": Entry("antipodes.negatives.cave.Cave"),
        "hardest": Entry("antipodes.negatives.hardest.Hardest"),
        "dcl": Entry("antipodes.negatives.debiased.DCL"),
        "hcl": Entry("antipodes.negatives.debiased.HCL"),
        "bcl": Entry("antipodes.negatives.bcl.BCL"),
        "known": Entry("antipodes.negatives.known.Known"),
        "positive-aware": Entry("antipodes.negatives.positive_aware.PositiveAware"),
        "guided": Entry("antipodes.negatives.guided.Guided"),
        "neighbours": Entry("antipodes.negatives.neighbours.Neighbours"),
        "oracle": Entry("antipodes.negatives.oracle.Oracle"),
    },
    "data": {
        "cifar10": Entry("antipodes.data.cifar.CIFAR10"),
        "cifar100": Entry("antipodes.data.cifar.CIFAR100"),
        "fashion-mnist": Entry("antipodes.data.fashion_mnist.FashionMNIST"),
        "shapes": Entry("antipodes.data.shapes.Shapes"),
    },
    "encoder": _ENCODERS,
    "augmentation": _AUGMENTATIONS,
}

ELSE: dict[Kind, str] = {
    "method": "the dotted path of a Method",
    "negatives": "the dotted path of a Policy",
    "data": "a folder of images, an .npz file, or the dotted path of an ImageDataset",
    "encoder": "timm:<model>, or the dotted path of an nn.Module",
    "augmentation": "the dotted path of an Augmentation",
}
"""What a name of each kind may be besides those in the table."""


def find(kind: Kind, name: str) -> Component:
    """Look a component up by its name, by a path on disk (data), by `timm:<model>` or by the dotted path of a class.

    Raises:
        ValueError: if there is none; the sentence lists the names that exist.

    Example:
        >>> find("encoder", "resnet18-slim").preset["width"]
        16
    """
    entry = NAMES[kind].get(name)
    if entry is None and kind == "encoder" and name.startswith("timm:"):
        entry = Entry("antipodes.encoders.timm_model", {"model": name.removeprefix("timm:")})
    if entry is None and kind == "data" and "." not in Path(name).name.rstrip("."):
        entry = _data_on_disk(name)
    if entry is None and kind == "data" and not _importable(name):
        entry = _data_on_disk(name)
    target = _load(kind, name if entry is None else entry.path, name)
    if entry is None:
        base = _attribute(_BASES[kind])
        if not (isinstance(target, type) and issubclass(target, base)):
            raise ValueError(f"{name} cannot be the {kind}: it is not a subclass of {base.__module__}.{base.__name__}")
        return Component(target)
    return Component(target, entry.preset, entry.run)


def _data_on_disk(name: str) -> Entry:
    """A folder of images or an `.npz` file as an entry.

    Raises:
        ValueError: if there is no such path, or it is something else.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return Entry("antipodes.data.folder.Folder", {"path": name})
    if path.is_file() and path.suffix == ".npz":
        return Entry("antipodes.data.npz.Npz", {"path": name})
    problem = "is not a folder or an .npz file (unpack archives)" if path.exists() else "does not exist as a path"
    raise ValueError(
        f"data {name!r} is not one of {', '.join(NAMES['data'])} and {problem}: "
        "give one of these names, a folder of images or an .npz file"
    )


def _load(kind: Kind, path: str, name: str) -> Any:
    """The class at a dotted path."""
    if "." not in path:
        close = difflib.get_close_matches(name, NAMES[kind], n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"unknown {kind} {name!r}: {hint}Choose one of {', '.join(NAMES[kind])}, or {ELSE[kind]}")
    try:
        return _attribute(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"unknown {kind} {name!r}: it cannot be imported as the dotted path of a class ({error}), "
            f"and is none of {', '.join(NAMES[kind])}"
        ) from error


def _attribute(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _importable(path: str) -> bool:
    if "/" in path or "." not in path.strip("."):
        return False
    try:
        _attribute(path)
    except (ImportError, AttributeError, ValueError):
        return False
    return True
