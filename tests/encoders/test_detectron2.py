import pickle

import numpy as np
import pytest
import torch
import yaml

from antipodes.encoders import create
from antipodes.encoders.detectron2 import configurations, detectron2_name, save_detectron2, to_detectron2
from antipodes.encoders.encoder import Preprocessing


def norm(name, channels):
    return {f"{name}.norm.{part}": (channels,) for part in ("weight", "bias", "running_mean", "running_var")}


def detectron2_layout(bottlenecks):
    """The names and shapes of detectron2's build_resnet_backbone, written down without any of the package's code."""
    layout, before = {"stem.conv1.weight": (64, 3, 7, 7)} | norm("stem.conv1", 64), 64
    blocks = (3, 4, 6, 3) if bottlenecks else (2, 2, 2, 2)
    for stage, (count, planes) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True), start=2):
        out = planes * (4 if bottlenecks else 1)
        for number in range(count):
            block = f"res{stage}.{number}"
            if bottlenecks:
                shapes = [(planes, before, 1, 1), (planes, planes, 3, 3), (out, planes, 1, 1)]
            else:
                shapes = [(planes, before, 3, 3), (planes, planes, 3, 3)]
            for position, shape in enumerate(shapes, start=1):
                layout[f"{block}.conv{position}.weight"] = shape
                layout |= norm(f"{block}.conv{position}", shape[0])
            if number == 0 and before != out:
                layout[f"{block}.shortcut.weight"] = (out, before, 1, 1)
                layout |= norm(f"{block}.shortcut", out)
            before = out
    return layout


@pytest.mark.parametrize(("name", "bottlenecks"), [("resnet18", False), ("resnet50", True)])
def test_names_and_shapes_are_detectron2s(name, bottlenecks):
    model = to_detectron2(create(name), Preprocessing())["model"]
    found = {key: array.shape for key, array in model.items() if not key.endswith("num_batches_tracked")}
    assert found == detectron2_layout(bottlenecks)
    assert all(isinstance(array, np.ndarray) for array in model.values())


def test_every_weight_is_written_bit_equal_under_its_own_name():
    encoder = create("resnet18")
    encoder(torch.rand(2, 3, 64, 64))
    model, state = to_detectron2(encoder, Preprocessing())["model"], encoder.state_dict()
    assert len(model) == len(state)
    assert all(np.array_equal(model[detectron2_name(key)], tensor.numpy()) for key, tensor in state.items())


def test_the_file_says_how_images_are_made_ready(tmp_path):
    files = save_detectron2(create("resnet50"), Preprocessing(), tmp_path / "new" / "out.pkl")
    assert [file.name for file in files] == ["out.pkl", "out-voc.yaml", "out-coco.yaml", "out-keypoints.yaml"]
    saved = pickle.loads(files[0].read_bytes())
    assert (saved["__author__"], saved["matching_heuristics"], saved["input_format"]) == (
        "written by antipodes",
        True,
        "RGB",
    )
    assert saved["pixel_mean"] == [123.675, 116.28, 103.53]
    assert saved["pixel_std"] == [58.395, 57.12, 57.375]
    for file in files[1:]:
        config = yaml.safe_load(file.read_text())
        assert config["MODEL"]["WEIGHTS"] == "out.pkl"
        assert config["INPUT"]["FORMAT"] == "RGB"
        assert config["MODEL"]["PIXEL_MEAN"] == [123.675, 116.28, 103.53]
        assert config["MODEL"]["RESNETS"]["STRIDE_IN_1X1"] is False
        assert config["MODEL"]["RESNETS"]["DEPTH"] == 50


def test_configurations_follow_the_papers():
    small = configurations(create("resnet18"), Preprocessing(), "w.pkl")
    assert small["voc"]["MODEL"]["BACKBONE"]["FREEZE_AT"] == 5  # Ring, appendix D
    assert small["voc"]["MODEL"]["RESNETS"]["RES2_OUT_CHANNELS"] == 64
    assert small["voc"]["MODEL"]["RESNETS"]["DEPTH"] == 18
    assert small["voc"]["DATASETS"]["TEST"] == ["voc_2007_test"]
    keypoints = small["keypoints"]["MODEL"]  # Ring, Table 4, by detectron2's Base-Keypoint-RCNN-FPN
    assert (keypoints["KEYPOINT_ON"], keypoints["MASK_ON"], "ROI_MASK_HEAD" in keypoints) == (True, False, False)
    assert (keypoints["RPN"]["POST_NMS_TOPK_TRAIN"], keypoints["ROI_HEADS"]["NUM_CLASSES"]) == (1500, 1)
    assert keypoints["ROI_BOX_HEAD"]["SMOOTH_L1_BETA"] == 0.5
    assert keypoints["BACKBONE"] == small["coco"]["MODEL"]["BACKBONE"]
    assert small["keypoints"]["DATASETS"]["TEST"] == ["keypoints_coco_2017_val"]
    assert small["coco"]["MODEL"]["RPN"]["POST_NMS_TOPK_TRAIN"] == 1000
    large = configurations(create("resnet50"), Preprocessing(), "w.pkl")
    assert large["coco"]["MODEL"]["BACKBONE"] == {"FREEZE_AT": 0, "NAME": "build_resnet_fpn_backbone"}
    assert large["coco"]["MODEL"]["RESNETS"]["RES2_OUT_CHANNELS"] == 256
    assert large["coco"]["MODEL"]["MASK_ON"]
    with torch.device("meta"):
        assert configurations(create("resnet34"), Preprocessing(), "w")["voc"]["MODEL"]["RESNETS"]["DEPTH"] == 34
        wide = configurations(create("resnet50-2x"), Preprocessing(), "w")["voc"]["MODEL"]["RESNETS"]
    assert (wide["STEM_OUT_CHANNELS"], wide["RES2_OUT_CHANNELS"], wide["WIDTH_PER_GROUP"]) == (128, 512, 128)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("resnet18-cifar", {}, "has one for small images"),
        ("resnet18", {"in_channels": 1}, "or other channels"),
        ("resnet18", {"blocks": (1, 1, 1)}, r"no ResNet with \[1, 1, 1\] blocks"),
        ("resnet18-2x", {}, "of width 128"),
        ("bag-of-words", {}, "takes ResNets, and this encoder is a BagOfWords"),
    ],
)
def test_other_networks_are_refused_before_anything_is_written(tmp_path, name, arguments, message):
    with torch.device("meta" if name != "bag-of-words" else "cpu"):
        encoder = create(name, **arguments)
    with pytest.raises(ValueError, match=message):
        save_detectron2(encoder, Preprocessing(), tmp_path / "a.pkl")
    assert list(tmp_path.iterdir()) == []
