"""Export of ResNets to detectron2, for detection and segmentation: its key names, and configurations for the weights.

detectron2's own backbones take BGR images with a mean only. Ours take RGB with mean and standard deviation, and have
their stride in the 3x3 convolution. The configurations therefore say ``INPUT.FORMAT: RGB``, give the pixel statistics
times 255 and set ``STRIDE_IN_1X1: false``; the file of weights states the same.
"""

import pickle
import re
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from antipodes.encoders.encoder import Preprocessing
from antipodes.encoders.resnet import Bottleneck, ResNet
from antipodes.files import MARK, replacing

DEPTHS: dict[tuple[int, ...], int] = {(2, 2, 2, 2): 18, (3, 4, 6, 3): 34, (3, 4, 23, 3): 101, (3, 8, 36, 3): 152}
"""Blocks per stage -> depth; 34 is 50 with bottlenecks."""


def to_detectron2(encoder: nn.Module, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the weights of a ResNet under detectron2's names.

    Returns:
        The content of a ``.pkl`` file for detectron2's checkpointer: ``model`` (names to arrays), author and
        ``matching_heuristics``, and in addition ``input_format``, ``pixel_mean`` and ``pixel_std``.

    Raises:
        ValueError: detectron2 has no such network.
    """
    _check(encoder, preprocessing)
    return {
        "model": {detectron2_name(key): tensor.detach().cpu().numpy() for key, tensor in encoder.state_dict().items()},
        "__author__": MARK,
        "matching_heuristics": True,
        **_pixels(preprocessing),
    }


def detectron2_name(key: str) -> str:
    """Turn torchvision's name of a tensor into detectron2's.

    Example:
        >>> detectron2_name("layer1.0.bn2.weight"), detectron2_name("layer2.0.downsample.1.bias")
        ('res2.0.conv2.norm.weight', 'res3.0.shortcut.norm.bias')
    """
    if not key.startswith("layer"):
        key = f"stem.{key}"
    key = re.sub(r"^layer(\d)", lambda found: f"res{int(found[1]) + 1}", key)
    key = re.sub(r"\bbn(\d)\b", r"conv\1.norm", key)
    return key.replace("downsample.0", "shortcut").replace("downsample.1", "shortcut.norm")


def save_detectron2(encoder: nn.Module, preprocessing: Preprocessing, path: str | Path) -> list[Path]:
    """Write the weights, and a configuration for each of `HEADINGS` next to them; return the files.

    Raises:
        ValueError: detectron2 has no such network; nothing is written then.
    """
    path = Path(path)
    content = pickle.dumps(to_detectron2(encoder, preprocessing), protocol=4)
    files = {path: content}
    others = detectron2_files(path)[1:]
    for file, (name, config) in zip(others, configurations(encoder, preprocessing, path.name).items(), strict=True):
        text = f"# {HEADINGS[name]}\n# {MARK}\n" + yaml.safe_dump(config, sort_keys=False, default_flow_style=None)
        files[file] = text.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    for file, data in files.items():
        with replacing(file) as temporary:
            temporary.write_bytes(data)
    return list(files)


def detectron2_files(path: Path) -> list[Path]:
    """Return the files that `save_detectron2` writes: the weights, then a configuration for each of `HEADINGS`."""
    return [path, *(path.with_name(f"{path.stem}-{name}.yaml") for name in HEADINGS)]


HEADINGS = {
    "voc": "Faster R-CNN with a C4 head on Pascal VOC 07+12, tested on VOC 07, 24k iterations.",
    "coco": "Mask R-CNN with FPN on COCO 2017, 1x schedule.",
    "keypoints": "Keypoint R-CNN with FPN on the persons of COCO 2017, 1x schedule.",
}


def configurations(encoder: nn.Module, preprocessing: Preprocessing, weights: str) -> dict[str, dict[str, Any]]:
    """Return detectron2's configurations for Pascal VOC, COCO and COCO's keypoints.

    A ResNet with bottlenecks is fine-tuned with synchronised batch normalisation, as in MoCo and SANE. One with basic
    blocks is frozen, as ResNet-18 in Ring's Table 4. detectron2 always builds the last stage of a C4 head from
    bottlenecks, so this stage of a ResNet-18 starts from scratch.
    """
    _check(encoder, preprocessing)
    assert isinstance(encoder, ResNet)
    network = _network(encoder)
    tuned = _bottlenecks(encoder)
    pixels = _pixels(preprocessing)
    model: dict[str, Any] = {
        "META_ARCHITECTURE": "GeneralizedRCNN",
        "WEIGHTS": weights,
        "PIXEL_MEAN": pixels["pixel_mean"],
        "PIXEL_STD": pixels["pixel_std"],
        "BACKBONE": {"FREEZE_AT": 0 if tuned else 5},
        "RESNETS": {**network, "STRIDE_IN_1X1": False, "NORM": "SyncBN" if tuned else "FrozenBN"},
    }
    solver = {"IMS_PER_BATCH": 16, "BASE_LR": 0.02}
    both: dict[str, Any] = {"VERSION": 2, "TEST": {"PRECISE_BN": {"ENABLED": tuned}}}
    voc = {
        "MODEL": {
            **model,
            "MASK_ON": False,
            "RPN": {"PRE_NMS_TOPK_TEST": 6000, "POST_NMS_TOPK_TEST": 1000},
            "ROI_HEADS": {"NAME": "Res5ROIHeads", "NUM_CLASSES": 20},
        },
        "INPUT": {
            "FORMAT": pixels["input_format"],
            "MIN_SIZE_TRAIN": list(range(480, 801, 32)),
            "MIN_SIZE_TEST": 800,
        },
        "DATASETS": {"TRAIN": ["voc_2007_trainval", "voc_2012_trainval"], "TEST": ["voc_2007_test"]},
        "SOLVER": {**solver, "STEPS": [18000, 22000], "MAX_ITER": 24000, "WARMUP_ITERS": 100},
        **both,
    }
    stages = ["res2", "res3", "res4", "res5"]
    levels = ["p2", "p3", "p4", "p5"]
    coco = {
        "MODEL": {
            **model,
            "MASK_ON": True,
            "BACKBONE": {**model["BACKBONE"], "NAME": "build_resnet_fpn_backbone"},
            "RESNETS": {**model["RESNETS"], "OUT_FEATURES": stages},
            "FPN": {"IN_FEATURES": stages, "NORM": "SyncBN" if tuned else ""},
            "ANCHOR_GENERATOR": {"SIZES": [[32], [64], [128], [256], [512]], "ASPECT_RATIOS": [[0.5, 1.0, 2.0]]},
            "RPN": {
                "IN_FEATURES": [*levels, "p6"],
                "PRE_NMS_TOPK_TRAIN": 2000,
                "PRE_NMS_TOPK_TEST": 1000,
                "POST_NMS_TOPK_TRAIN": 1000,
                "POST_NMS_TOPK_TEST": 1000,
            },
            "ROI_HEADS": {"NAME": "StandardROIHeads", "IN_FEATURES": levels, "NUM_CLASSES": 80},
            "ROI_BOX_HEAD": {"NAME": "FastRCNNConvFCHead", "NUM_FC": 2, "POOLER_RESOLUTION": 7},
            "ROI_MASK_HEAD": {"NAME": "MaskRCNNConvUpsampleHead", "NUM_CONV": 4, "POOLER_RESOLUTION": 14},
        },
        "INPUT": {"FORMAT": pixels["input_format"], "MIN_SIZE_TRAIN": list(range(640, 801, 32))},
        "DATASETS": {"TRAIN": ["coco_2017_train"], "TEST": ["coco_2017_val"]},
        "SOLVER": {**solver, "STEPS": [60000, 80000], "MAX_ITER": 90000},
        **both,
    }
    return {"voc": voc, "coco": coco, "keypoints": _keypoints(coco)}


def _keypoints(coco: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration for keypoints, as detectron2's Base-Keypoint-RCNN-FPN differs from Mask R-CNN's."""
    model = {name: part for name, part in coco["MODEL"].items() if name != "ROI_MASK_HEAD"} | {
        "MASK_ON": False,
        "KEYPOINT_ON": True,
        "RPN": {**coco["MODEL"]["RPN"], "POST_NMS_TOPK_TRAIN": 1500},
        "ROI_HEADS": {**coco["MODEL"]["ROI_HEADS"], "NUM_CLASSES": 1},
        "ROI_BOX_HEAD": {**coco["MODEL"]["ROI_BOX_HEAD"], "SMOOTH_L1_BETA": 0.5},
    }
    sets = {"TRAIN": ["keypoints_coco_2017_train"], "TEST": ["keypoints_coco_2017_val"]}
    return {**coco, "MODEL": model, "DATASETS": sets}


def _pixels(preprocessing: Preprocessing) -> dict[str, Any]:
    return {
        "input_format": "RGB",
        "pixel_mean": [round(255 * value, 4) for value in preprocessing.mean],
        "pixel_std": [round(255 * value, 4) for value in preprocessing.std],
    }


def _network(encoder: ResNet) -> dict[str, int]:
    """Return depth and widths under detectron2's option names."""
    width = encoder.conv1.out_channels
    depth = DEPTHS[_blocks(encoder)]
    bottlenecks = _bottlenecks(encoder)
    return {
        "DEPTH": 50 if bottlenecks and depth == 34 else depth,
        "STEM_OUT_CHANNELS": width,
        "RES2_OUT_CHANNELS": 4 * width if bottlenecks else width,
        "WIDTH_PER_GROUP": width,
    }


def _check(encoder: nn.Module, preprocessing: Preprocessing) -> None:
    if not isinstance(encoder, ResNet):
        raise ValueError(f"detectron2 takes ResNets, and this encoder is a {type(encoder).__name__}")
    if encoder.conv1.kernel_size != (7, 7) or encoder.in_channels != 3 or preprocessing.colour != "rgb":
        raise ValueError(
            "detectron2's ResNets have a stem of 7x7 on RGB, and this encoder has one for small images or other "
            "channels: train resnet18, resnet34 or resnet50"
        )
    if _blocks(encoder) not in DEPTHS or (not _bottlenecks(encoder) and encoder.conv1.out_channels != 64):
        raise ValueError(
            f"detectron2 has no ResNet with {list(_blocks(encoder))} blocks of width {encoder.conv1.out_channels}: "
            "train resnet18, resnet34 or resnet50"
        )


def _blocks(encoder: ResNet) -> tuple[int, ...]:
    return tuple(len(encoder.get_submodule(stage)) for stage in encoder.stages)  # type: ignore[arg-type]


def _bottlenecks(encoder: ResNet) -> bool:
    return any(isinstance(module, Bottleneck) for module in encoder.modules())
