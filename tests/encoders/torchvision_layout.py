"""The keys and shapes of torchvision's resnet18 and resnet50, written down without any of the package's code."""

RESNET18_STAGES = [("layer1", 64, 2), ("layer2", 128, 2), ("layer3", 256, 2), ("layer4", 512, 2)]
RESNET50_STAGES = [("layer1", 64, 3), ("layer2", 128, 4), ("layer3", 256, 6), ("layer4", 512, 3)]


def norm(name, channels):
    vectors = {f"{name}.{part}": (channels,) for part in ("weight", "bias", "running_mean", "running_var")}
    return vectors | {f"{name}.num_batches_tracked": ()}


def resnet18_layout():
    layout = {"conv1.weight": (64, 3, 7, 7)} | norm("bn1", 64)
    before = 64
    for stage, planes, count in RESNET18_STAGES:
        for number in range(count):
            block = f"{stage}.{number}"
            layout[f"{block}.conv1.weight"] = (planes, before, 3, 3)
            layout |= norm(f"{block}.bn1", planes)
            layout[f"{block}.conv2.weight"] = (planes, planes, 3, 3)
            layout |= norm(f"{block}.bn2", planes)
            if stage != "layer1" and number == 0:
                layout[f"{block}.downsample.0.weight"] = (planes, before, 1, 1)
                layout |= norm(f"{block}.downsample.1", planes)
            before = planes
    return layout | {"fc.weight": (1000, 512), "fc.bias": (1000,)}


def resnet50_layout():
    layout = {"conv1.weight": (64, 3, 7, 7)} | norm("bn1", 64)
    before = 64
    for stage, planes, count in RESNET50_STAGES:
        for number in range(count):
            block = f"{stage}.{number}"
            layout[f"{block}.conv1.weight"] = (planes, before, 1, 1)
            layout |= norm(f"{block}.bn1", planes)
            layout[f"{block}.conv2.weight"] = (planes, planes, 3, 3)
            layout |= norm(f"{block}.bn2", planes)
            layout[f"{block}.conv3.weight"] = (4 * planes, planes, 1, 1)
            layout |= norm(f"{block}.bn3", 4 * planes)
            if number == 0:
                layout[f"{block}.downsample.0.weight"] = (4 * planes, before, 1, 1)
                layout |= norm(f"{block}.downsample.1", 4 * planes)
            before = 4 * planes
    return layout | {"fc.weight": (1000, 2048), "fc.bias": (1000,)}
