"""The registry: the names of components, and the one place where a name becomes a class.

`NAMES` is plain data: for every kind of component its names, each with the dotted path of a class, constructor
arguments that the name sets (`preset`), and default options of a run with it (`run`). `find` imports a component, so
listing names imports nothing heavy.

A name that is not in the table may be the dotted path of a user's class; data may also be a path on disk or
`hf:<dataset>`, and an encoder `hf:<model>`, `timm:<model>` or a folder that holds one.
"""

from __future__ import annotations

import difflib
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["method", "loss", "negatives", "guide", "data", "encoder", "augmentation"]

DOTTED_PATH = re.compile(r"([A-Za-z_]\w*\.)+[A-Z]\w*", re.ASCII)
"""The pattern of a class's dotted path: ``package.module.Class``, where the class begins with a capital letter."""

_BASES: dict[Kind, str] = {
    "method": "antipodes.methods.method.Method",
    "loss": "antipodes.losses.loss.Loss",
    "negatives": "antipodes.negatives.policy.Policy",
    "guide": "antipodes.guides.guide.GuideSource",
    "data": "antipodes.data.dataset.Samples",
    "encoder": "torch.nn.Module",
    "augmentation": "antipodes.data.augment.base.Augmentation",
}


_DATASET_AT = "antipodes.data.on_disk.dataset_at"
"""The function that finds the dataset class for a path. It is imported when it is needed."""

_DATASET_ON_HUB = "antipodes.data.hub.dataset_on_hub"
"""The same for a dataset of Hugging Face."""

_LAYOUTS = {"hf": "antipodes.encoders.hugging_face.HuggingFaceText", "timm": "antipodes.encoders.timm_model"}
"""What builds the models of other libraries: transformers and sentence-transformers (hf), and timm."""


@dataclass(frozen=True)
class RegistryEntry:
    """What a name in the registry stands for.

    Args:
        path: Dotted path of the class.
        preset: Constructor arguments that the name sets; a configuration may override them.
        run: Default options of a run with it, as in a configuration.
    """

    path: str
    preset: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Preset:
    """Options of a run that gave the best result in a published comparison, under a name.

    Args:
        what: What it is for and what it does, in a few words.
        evidence: The page with the comparison.
        run: The options, as in a configuration.
    """

    what: str
    evidence: str
    run: Mapping[str, Any]


@dataclass(frozen=True)
class Component:
    """A component whose class has been imported."""

    target: Callable[..., Any]
    preset: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)


_RESNET = "antipodes.encoders.resnet.ResNet"
_DEPTHS: dict[str, dict[str, Any]] = {
    "resnet18": {"blocks": (2, 2, 2, 2), "block": "basic"},
    "resnet34": {"blocks": (3, 4, 6, 3), "block": "basic"},
    "resnet50": {"blocks": (3, 4, 6, 3), "block": "bottleneck"},
    "resnet101": {"blocks": (3, 4, 23, 3), "block": "bottleneck"},
    "resnet152": {"blocks": (3, 8, 36, 3), "block": "bottleneck"},
    "resnet200": {"blocks": (3, 24, 36, 3), "block": "bottleneck"},
}
_SLIM: dict[str, Any] = {"width": 16, "stem": "stride2", "block": "basic"}

# Names read resnet<depth>[-2x|-4x][-cifar], and -slim for encoders that train on a CPU:
# -2x and -4x multiply *every* width by that factor, stem included, as in SimCLR (torchvision's wide_resnet50_2 is
# another network: it doubles only the inner width of each bottleneck); -cifar replaces the 7x7 stride-2 stem and its
# max pooling by one 3x3 convolution of stride 1, for images of about 32 pixels; -slim is a quarter as wide (16) with a
# 3x3 stem of stride 2: resnet18-slim keeps the layout of ResNet-18, resnet8-slim has three stages of one basic block.
# -gn has group instead of batch normalisation, as --micro_batch needs it.
_ENCODERS: dict[str, RegistryEntry] = {
    **{
        name + wide + small: RegistryEntry(_RESNET, {**layout, "width": width, "stem": stem})
        for name, layout in _DEPTHS.items()
        for wide, width in {"": 64, "-2x": 128, "-4x": 256}.items()
        for small, stem in {"": "imagenet", "-cifar": "cifar"}.items()
    },
    "resnet18-slim": RegistryEntry(_RESNET, {**_SLIM, "blocks": (2, 2, 2, 2)}),
    "resnet8-slim": RegistryEntry(_RESNET, {**_SLIM, "blocks": (1, 1, 1)}),
    "resnet18-slim-gn": RegistryEntry(_RESNET, {**_SLIM, "blocks": (2, 2, 2, 2), "norm": "group"}),
    "resnet8-slim-gn": RegistryEntry(_RESNET, {**_SLIM, "blocks": (1, 1, 1), "norm": "group"}),
    "efficientnet-lite0": RegistryEntry("antipodes.encoders.efficientnet.EfficientNetLite0"),
    # fitted to the training images before the first step and never trained: --epochs 0 is enough
    "patches": RegistryEntry("antipodes.encoders.patches.PatchEncoder"),
    # Texts: pretrained, CLIP's transformer from scratch, and the quickest.
    "minilm": RegistryEntry("antipodes.encoders.minilm.MiniLM"),
    "text-transformer": RegistryEntry("antipodes.encoders.text_transformer.TextTransformer"),
    "bag-of-words": RegistryEntry("antipodes.encoders.text.BagOfWords"),
    # Vectors: as they are, or through a small network.
    "identity": RegistryEntry("antipodes.encoders.heads.IdentityVector"),
    "mlp": RegistryEntry("antipodes.encoders.heads.VectorMLP"),
}

_VIEW = "antipodes.data.augment.views.RandomView"
_JITTER: dict[str, Any] = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "grey": 0.2}
_MOCO_COLOUR: dict[str, Any] = {**_JITTER, "jitter": 0.8, "hue": 0.1}
_BYOL: dict[str, Any] = {**_MOCO_COLOUR, "saturation": 0.2}
_STRONG_COLOUR: dict[str, Any] = {
    "jitter": 0.8,
    "brightness": 0.8,
    "contrast": 0.8,
    "saturation": 0.8,
    "hue": 0.2,
    "grey": 0.2,
}
_AUGMENTATIONS: dict[str, RegistryEntry] = {
    # Evaluation: nothing random. Linear training and fine-tuning: crop and flip.
    "plain": RegistryEntry("antipodes.data.augment.views.Plain"),
    "crop-flip": RegistryEntry(_VIEW),
    # SimCLR's appendix B.9 for CIFAR: colour strength 0.5 and no blur. Its ImageNet recipe has strength 1 and blurs.
    "simclr": RegistryEntry(_VIEW, _MOCO_COLOUR),
    "simclr-imagenet": RegistryEntry(_VIEW, {**_STRONG_COLOUR, "blur": 0.5}),
    "moco-v1": RegistryEntry(_VIEW, {"scale": (0.2, 1.0), **_JITTER, "hue": 0.4}),
    "moco-v2": RegistryEntry(_VIEW, {"scale": (0.2, 1.0), **_MOCO_COLOUR, "blur": 0.5}),
    # The same without blur, which at 32 pixels leaves little of an image.
    "moco-small": RegistryEntry(_VIEW, {"scale": (0.2, 1.0), **_MOCO_COLOUR}),
    # BYOL's two views: the first always blurs; the second hardly ever, and solarises instead. They are used as
    # `--augmentation byol --augmentation.second byol-second`. SogCLR, and with it GloFND, has the first one twice.
    "sogclr": RegistryEntry(_VIEW, {**_BYOL, "blur": 1.0}),
    "byol": RegistryEntry(_VIEW, {**_BYOL, "blur": 1.0}),
    "byol-second": RegistryEntry(_VIEW, {**_BYOL, "blur": 0.1, "solarise": 0.2}),
    # HNSSL section 3.6, with its 3 x 3 Gaussian of standard deviation 1.5 after the crop instead of before it.
    "hnssl": RegistryEntry(
        _VIEW, {"scale": (0.8, 1.0), **_STRONG_COLOUR, "blur": 0.1, "blur_sigma": (1.5, 1.5), "blur_kernel": 3}
    ),
    # CLSA's strong view, which SANE uses too: five operations, each applied with probability 0.5.
    "clsa": RegistryEntry(_VIEW, {"scale": (0.2, 1.0), **_MOCO_COLOUR, "strong": 5}),
}

_BANK_RUN: dict[str, Any] = {"head": {"kind": "linear"}, "loss": {"temperature": 0.07}}
# its background ranks the bank
_AGGREGATION: dict[str, Any] = {"loss": {"name": "local-aggregation"}, "head": {"centred": True}}

_NAMED_ARRAYS = "antipodes.data.named.NamedArrays"
_NAMED_FILES = "antipodes.data.named.NamedFiles"

NAMES: dict[Kind, dict[str, RegistryEntry]] = {
    "method": {
        "simclr": RegistryEntry("antipodes.methods.simclr.SimCLR"),
        "sogclr": RegistryEntry("antipodes.methods.simclr.SimCLR", run={"loss": {"name": "global-contrastive"}}),
        "supcon": RegistryEntry(
            "antipodes.methods.simclr.SimCLR",
            run={"negatives": "oracle", "treatment": "attract", "loss": {"temperature": 0.1}},
        ),
        "moco": RegistryEntry("antipodes.methods.moco.MoCo"),
        "moco-v1": RegistryEntry("antipodes.methods.moco.MoCo", run={"augmentation": "moco-v1", **_BANK_RUN}),
        "moco-v2": RegistryEntry("antipodes.methods.moco.MoCo"),
        "sane": RegistryEntry("antipodes.methods.sane.SANE"),
        # SANE-Single; SANE-Multi has crops [224, 192, 160, 128, 96]
        "sane-imagenet": RegistryEntry(
            "antipodes.methods.sane.SANE",
            {"kappa": 0.1, "crops": (96,), "queue_size": 65536},
            {"loss": {"tau_prime": 1.0, "mu": (0.5, 10.0)}},
        ),
        "instance": RegistryEntry("antipodes.methods.instance.InstanceDiscrimination"),
        "cmc": RegistryEntry("antipodes.methods.cmc.CMC"),
        "local-aggregation": RegistryEntry("antipodes.methods.instance.InstanceDiscrimination", run=_AGGREGATION),
        "cmc-local-aggregation": RegistryEntry("antipodes.methods.cmc.CMC", run=_AGGREGATION),
        "hnssl": RegistryEntry("antipodes.methods.hnssl.HNSSL"),
        "hnssl-paper": RegistryEntry(
            "antipodes.methods.hnssl.HNSSL",
            run={"optimizer": "adamw", "weight_decay": 0.0, "learning_rate": 0.16, "batch_size": 160, "warmup": 0.0},
        ),
        "byol": RegistryEntry("antipodes.methods.byol.BYOL"),
        "simsiam": RegistryEntry("antipodes.methods.simsiam.SimSiam"),
        "pcl": RegistryEntry("antipodes.methods.pcl.PCL"),
        "swav": RegistryEntry("antipodes.methods.swav.SwAV"),
        "i-mix": RegistryEntry("antipodes.methods.imix.IMix"),
        "clip": RegistryEntry("antipodes.methods.clip.CLIP"),
        "siglip": RegistryEntry("antipodes.methods.clip.CLIP", run={"loss": {"name": "sigmoid", "temperature": 0.1}}),
        "fastclip": RegistryEntry(
            "antipodes.methods.clip.CLIP",
            run={
                "loss": {"name": "global-contrastive", "gamma": 0.2, "gamma_until": 0.6, "rho": 6.5},
                "temperature": {"form": "linear", "rate": 2e-4},
            },
        ),
        # pairs of texts: queries find their documents
        "retrieval": RegistryEntry("antipodes.methods.retrieval.Retrieval"),
        # Ring's own settings for CIFAR: rate 0.03 (for CMC at a batch of 128), weight decay 1e-4, no blur. Their heads
        # are centred whatever the policy, so that --negatives none compares the policy and nothing else.
        "iring": RegistryEntry(
            "antipodes.methods.instance.InstanceDiscrimination",
            run={"negatives": "ring", "head": {"centred": True}, "learning_rate": 0.03, "weight_decay": 1e-4},
        ),
        "cmc-ring": RegistryEntry(
            "antipodes.methods.cmc.CMC",
            run={
                "negatives": "ring",
                "head": {"centred": True},
                "batch_size": 128,
                "learning_rate": 0.06,
                "weight_decay": 1e-4,
            },
        ),
        "moco-ring": RegistryEntry(
            "antipodes.methods.moco.MoCo",
            {"queue_size": 4096},
            {
                "negatives": "ring",
                "head": {"centred": True},
                "augmentation": "moco-small",
                "loss": {"temperature": 0.07},
                "learning_rate": 0.03,
                "weight_decay": 1e-4,
            },
        ),
    },
    "loss": {
        "info-nce": RegistryEntry("antipodes.losses.info_nce.InfoNCE"),
        "global-contrastive": RegistryEntry("antipodes.losses.global_contrastive.GlobalContrastive"),
        "sigmoid": RegistryEntry("antipodes.losses.sigmoid.Sigmoid"),
        "local-aggregation": RegistryEntry("antipodes.losses.local_aggregation.local_aggregation"),
        "hard-pairs": RegistryEntry("antipodes.losses.hard_pairs.HardPairs"),
        "soft-label": RegistryEntry("antipodes.losses.soft_label.SoftLabel"),
        "regression": RegistryEntry("antipodes.losses.regression.Regression"),
        "swapped-codes": RegistryEntry("antipodes.methods.swav.SwappedCodes"),
    },
    "negatives": {
        "glofnd": RegistryEntry("antipodes.negatives.glofnd.GloFND"),
        "glofnd-paper": RegistryEntry("antipodes.negatives.glofnd.GloFND", {"initial": "one", "lr": 0.05}),
        "ifnd": RegistryEntry("antipodes.negatives.ifnd.IFND"),
        "fnc": RegistryEntry("antipodes.negatives.fnc.FNC"),
        "ring": RegistryEntry("antipodes.negatives.ranked.Ring"),
        "cave": RegistryEntry("antipodes.negatives.clustered.Cave"),
        "hardest": RegistryEntry("antipodes.negatives.ranked.Hardest"),
        "debiased": RegistryEntry("antipodes.negatives.debiased.Debiased"),
        "hcl": RegistryEntry("antipodes.negatives.debiased.HCL"),
        "bcl": RegistryEntry("antipodes.negatives.debiased.BCL"),
        "known": RegistryEntry("antipodes.negatives.known.Known"),
        "positive-aware": RegistryEntry("antipodes.negatives.positive_bound.PositiveAware"),
        "guided": RegistryEntry("antipodes.negatives.positive_bound.Guided"),
        "dataset-neighbours": RegistryEntry("antipodes.negatives.dataset_neighbours.DatasetNeighbours"),
        "chance": RegistryEntry("antipodes.negatives.controls.Chance"),
        "oracle": RegistryEntry("antipodes.negatives.controls.Oracle"),
    },
    "guide": {
        "table": RegistryEntry("antipodes.runs.guides.table_guide"),
        "network": RegistryEntry("antipodes.runs.guides.network_guide"),
        "patches": RegistryEntry("antipodes.runs.guides.patches_guide"),
        "history": RegistryEntry("antipodes.runs.guides.history_guide"),
        "momentum": RegistryEntry("antipodes.runs.guides.momentum_guide"),
    },
    "data": {
        "cifar10": RegistryEntry(_NAMED_ARRAYS, {"dataset": "cifar10"}),
        "cifar100": RegistryEntry(_NAMED_ARRAYS, {"dataset": "cifar100"}),
        "fashion-mnist": RegistryEntry(_NAMED_ARRAYS, {"dataset": "fashion-mnist"}),
        "flickr8k": RegistryEntry("antipodes.data.captions.Captions"),
        "coco-captions": RegistryEntry("antipodes.data.captions.Captions"),
        "stl10": RegistryEntry(_NAMED_ARRAYS, {"dataset": "stl10"}),
        "dtd": RegistryEntry(_NAMED_FILES, {"dataset": "dtd"}),
        "pets": RegistryEntry(_NAMED_FILES, {"dataset": "pets"}),
        "flowers102": RegistryEntry(_NAMED_FILES, {"dataset": "flowers102"}),
        "food101": RegistryEntry(_NAMED_FILES, {"dataset": "food101"}),
        "caltech101": RegistryEntry(_NAMED_FILES, {"dataset": "caltech101"}),
        "caltech101-80": RegistryEntry(_NAMED_FILES, {"dataset": "caltech101-80"}),
        "cars": RegistryEntry(_NAMED_FILES, {"dataset": "cars"}),
        "aircraft": RegistryEntry(_NAMED_FILES, {"dataset": "aircraft"}),
        "sun397": RegistryEntry(_NAMED_FILES, {"dataset": "sun397"}),
        "places205": RegistryEntry(_NAMED_FILES, {"dataset": "places205"}),
        "voc2007": RegistryEntry(_NAMED_FILES, {"dataset": "voc2007"}),
        # the rest of Meta-Dataset's collection
        "mnist": RegistryEntry(_NAMED_ARRAYS, {"dataset": "mnist"}),
        "cub": RegistryEntry(_NAMED_FILES, {"dataset": "cub"}),
        "traffic-signs": RegistryEntry(_NAMED_FILES, {"dataset": "traffic-signs"}),
        "fungi": RegistryEntry(_NAMED_FILES, {"dataset": "fungi"}),
        "mscoco": RegistryEntry(_NAMED_FILES, {"dataset": "mscoco"}),
        "shapes": RegistryEntry("antipodes.data.shapes.Shapes"),
    },
    "encoder": _ENCODERS,
    "augmentation": _AUGMENTATIONS,
}

PRESETS: dict[str, Preset] = {
    "locked-clip": Preset(
        "image and text: CLIP's heads on locked EfficientNet-Lite0 and MiniLM, for ten epochs, as more overfit",
        "research/pages/image-text.md",
        {
            "method": "clip",
            "encoder": "efficientnet-lite0",
            "encoders": {"text": "minilm"},
            "freeze": ("image", "text"),
            "augmentation": "plain",
            "loss": {"temperature": 0.03},
            "temperature": {"learnable": False},
            "optimizer": "adamw",
            "learning_rate": 5e-4,
            "weight_decay": 0.01,
            "batch_size": 512,
            "epochs": 10,
        },
    ),
    "guided": Preset(
        "images: SimCLR guided by a frozen EfficientNet-Lite0: its vector is one more view of every sample, and four "
        "fifths of the target go to the tenth of a batch that it finds most alike",
        "research/pages/scratch-search.md",
        {
            "method": "simclr",
            "guide": {"name": "network", "encoder": "efficientnet-lite0", "size": 128, "dim": 128},
            "distill": 1.0,
            "negatives": {"name": "guided", "alpha": 0.1},
            "treatment": "refine",
            "refine_space": "guide",
            "refine_among": "others",
            "refine_share": 0.8,
            "refine_tau_prime": 0.15,
            "batch_size": 256,
        },
    ),
    "patches": Preset(
        "images: the same by the small patches that images are made of, with half of the target; no weights from "
        "elsewhere",
        "research/pages/scratch-search.md",
        {
            "method": "simclr",
            "guide": "patches",
            "distill": 1.0,
            "negatives": {"name": "guided", "alpha": 0.1},
            "treatment": "refine",
            "refine_space": "guide",
            "refine_among": "others",
            "refine_share": 0.5,
            "refine_tau_prime": 0.15,
            "batch_size": 256,
        },
    ),
    "ring-bank": Preset(
        "images: instance discrimination on a bank with a centred head, negatives from a ring of useful difficulty",
        "research/pages/ring.md",
        {
            "method": {"name": "instance", "samples": 1024},
            "head": {"centred": True},
            "negatives": "ring",
            "batch_size": 256,
        },
    ),
}
"""Options of a run by name (`antipodes train --preset NAME`); options that the call gives override them."""

RENAMED: dict[str, str] = {
    "dcl": "debiased",
    "neighbours": "dataset-neighbours",
}
"""Former names of components, and the names that replaced them."""

ELSE: dict[Kind, str] = {
    "method": "the dotted path of a Method",
    "loss": "the dotted path of an Loss",
    "negatives": "the dotted path of a Policy",
    "guide": "the dotted path of a GuideSource that goes by rows",
    "encoder": "hf:<text model> (hf:sentence-transformers/all-MiniLM-L6-v2), timm:<image model> "
    "(timm:vit_small_patch14_dinov2.lvd142m), a folder that holds such a model, the dotted path of an nn.Module",
    "data": "the path of a folder or archive of images, with or without captions, of a table or of .npz, .npy or .tar "
    "files, stream:<path> for images that are decoded on demand, hf:<dataset>, or the dotted path of a dataset",
    "augmentation": "the dotted path of an Augmentation",
}
"""What a name of each kind may be besides the names in the table."""


def choices(kind: Kind) -> str:
    """Return what a name of a kind may be, for messages and help; of encoders the names that people know come first."""
    names = ", ".join(NAMES[kind])
    return f"{ELSE[kind]}, or without a hub {names}" if kind == "encoder" else f"one of {names}, or {ELSE[kind]}"


def find(kind: Kind, name: str) -> Component:
    """Look up a component by its name, a path on disk (data), `timm:<model>`, `hf:<model>` or a dotted path.

    An existing path is always data and is never imported. A dotted path ends in the name of a class
    (``package.module.Class``); the current folder is searched after all installed packages.

    Raises:
        ValueError: if there is no such component; the message lists the names that exist.

    Example:
        >>> find("encoder", "resnet18-slim").preset["width"]
        16
    """
    entry = NAMES[kind].get(name)
    if entry is None and kind == "encoder":
        layout, model = name.partition(":")[0], name.partition(":")[2]
        if layout not in _LAYOUTS and (found := hub_layout(Path(name).expanduser())) is not None:
            layout, model = found, name
        entry = RegistryEntry(_LAYOUTS[layout], {"model": model}) if layout in _LAYOUTS else None
    if entry is None and kind == "data" and name.startswith("hf:"):
        path = _attribute(_DATASET_ON_HUB)(name)
        entry = RegistryEntry(path, {"path": name if path.endswith("Texts") else name.removeprefix("hf:")})
    if entry is None and kind == "data" and name.startswith("stream:"):
        entry = RegistryEntry("antipodes.data.stream.ImageStream", {"path": name})
    if entry is None and kind == "data" and (_exists(name) or not DOTTED_PATH.fullmatch(name)):
        entry = _data_on_disk(name)
    target = _load(kind, name if entry is None else entry.path, name)
    if entry is None:
        base = _attribute(_BASES[kind])
        if not (isinstance(target, type) and issubclass(target, base)):
            raise ValueError(f"{name} cannot be the {kind}: it is not a subclass of {base.__module__}.{base.__name__}")
        return Component(target, run=getattr(target, "run", {}))
    return Component(target, entry.preset, merge_options(getattr(target, "run", {}), entry.run))


def hub_layout(folder: Path) -> str | None:
    """Return whose layout a folder has: `timm`, `hf` (transformers, sentence-transformers), or None."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(config, dict):
        return None
    return "timm" if "architecture" in config else ("hf" if "model_type" in config else None)


def load_class(path: str, what: str) -> Any:
    """Import a class of the user's own by its dotted path, such as ``my_package.my_module.MyClass``.

    The current folder is searched for it after all installed packages.

    Args:
        path: The dotted path.
        what: What the class is for, for the error message.

    Raises:
        ValueError: if the path is not one of a class, or it cannot be imported.
    """
    if not DOTTED_PATH.fullmatch(path):
        raise ValueError(f"unknown {what} {path!r}: give the dotted path of a class (package.module.Class)")
    try:
        with _current_folder_importable():
            return _attribute(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"unknown {what} {path!r}: it cannot be imported as a class ({error})") from error


def find_preset(name: str) -> Preset:
    """Look a preset up by its name.

    Raises:
        ValueError: if there is no such preset; the message lists the names that exist.

    Example:
        >>> find_preset("locked-clip").run["method"]
        'clip'
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}: choose one of {', '.join(PRESETS)}")
    return PRESETS[name]


def merge_options(options: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return options overridden by others; nested components are merged in the same way.

    Example:
        >>> merge_options({"head": {"kind": "mlp2", "dim": 128}}, {"head": {"dim": 64}, "epochs": 3})
        {'head': {'kind': 'mlp2', 'dim': 64}, 'epochs': 3}
    """
    result = dict(options)
    for name, value in others.items():
        before = result.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[name] = {**before, **value} if both else value  # type: ignore[dict-item]
    return result


def _data_on_disk(name: str) -> RegistryEntry:
    """Return the entry for data at a path, by what is stored there.

    Raises:
        ValueError: if the path does not exist or holds no data.
    """
    if (path := _attribute(_DATASET_AT)(name)) is not None:
        return RegistryEntry(path, {"path": name})
    problem = "holds no data that can be read" if Path(name).expanduser().exists() else "does not exist as a path"
    raise ValueError(
        f"data {name!r} is not one of {', '.join(NAMES['data'])} and {problem}: "
        f"give one of these names, or {ELSE['data']}"
    )


def _exists(name: str) -> bool:
    """Return True if there is a file or folder of this name."""
    try:
        return Path(name).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long, no home folder, a null byte
        return False


def _load(kind: Kind, path: str, name: str) -> Any:
    """Import the class at a dotted path."""
    if RENAMED.get(name) in NAMES[kind]:
        raise ValueError(f"{kind} {name!r} is now called {RENAMED[name]!r}")
    if not DOTTED_PATH.fullmatch(path) and path == name:
        close = difflib.get_close_matches(name, NAMES[kind], n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"unknown {kind} {name!r}: {hint}Choose {choices(kind)}")
    try:
        if path != name:  # from the table of names, so it is one of our own classes
            return _attribute(path)
        with _current_folder_importable():
            return _attribute(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"unknown {kind} {name!r}: it cannot be imported as the dotted path of a class ({error}), "
            f"and is none of {', '.join(NAMES[kind])}"
        ) from error


def _attribute(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    """Append the current folder to the import path, so that users can name their own classes.

    The folder comes last, so a file in it never replaces an installed module. It is removed afterwards, because the
    current folder may hold data whose files must not run.
    """
    folder = os.getcwd()
    sys.path.append(folder)
    try:
        yield
    finally:
        places = [place for place, entry in enumerate(sys.path) if entry == folder]
        if places:  # else the imported module has removed it
            del sys.path[places[-1]]
