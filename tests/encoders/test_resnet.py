import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from antipodes.encoders import create
from antipodes.encoders.resnet import Bottleneck, ResNet
from antipodes.registry import NAMES

from .torchvision_layout import resnet18_layout, resnet50_layout


def shapes(module):
    return {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}


@pytest.mark.parametrize(
    ("name", "layout", "keys", "parameters"),
    [("resnet18", resnet18_layout, 122, 11_689_512), ("resnet50", resnet50_layout, 320, 25_557_032)],
)
def test_keys_and_shapes_are_torchvisions_except_the_classifier(name, layout, keys, parameters):
    official = layout()
    # The published parameter counts vouch for the layout itself.
    running = ("running_mean", "running_var", "num_batches_tracked")
    counted = sum(torch.Size(shape).numel() for key, shape in official.items() if not key.endswith(running))
    assert (len(official), counted) == (keys, parameters)

    ours = shapes(create(name))
    assert set(official) - set(ours) == {"fc.weight", "fc.bias"}
    assert ours == {key: shape for key, shape in official.items() if not key.startswith("fc.")}
    assert list(ours) == [key for key in official if not key.startswith("fc.")]


def test_a_torchvision_state_dict_loads_with_only_the_classifier_left_over():
    state = {key: torch.zeros(shape) for key, shape in resnet18_layout().items()}
    result = create("resnet18").load_state_dict(state, strict=False)
    assert result.missing_keys == []
    assert result.unexpected_keys == ["fc.weight", "fc.bias"]


def test_forward_gives_the_promised_features():
    for name, channels, size, features in [
        ("resnet18", 3, 64, 512),
        ("resnet34", 3, 64, 512),
        ("resnet50", 3, 64, 2048),
        ("resnet18-2x", 3, 32, 1024),
        ("resnet18-cifar", 2, 16, 512),
        ("resnet18-slim", 3, 32, 128),
        ("resnet8-slim", 1, 32, 64),
    ]:
        encoder = create(name, in_channels=channels).eval()
        assert encoder.num_features == features
        with torch.no_grad():
            assert encoder(torch.rand(2, channels, size, size)).shape == (2, features)


def test_wide_multiplies_every_width_of_the_standard_network():
    with torch.device("meta"):
        standard = shapes(ResNet(**NAMES["encoder"]["resnet50"].preset))
        for name, factor in (("resnet50-2x", 2), ("resnet50-4x", 4)):
            wide = shapes(ResNet(**NAMES["encoder"][name].preset))
            assert wide.keys() == standard.keys()
            for key, shape in standard.items():
                if key == "conv1.weight":
                    expected = (shape[0] * factor, 3, 7, 7)
                else:
                    expected = tuple(size * factor for size in shape[:2]) + shape[2:]
                assert wide[key] == expected, key


def test_stems_reduce_resolution_as_they_say():
    for stem, resolution in [("imagenet", 8), ("cifar", 32), ("stride2", 16)]:
        encoder = ResNet((1,), width=4, stem=stem)
        seen = []
        encoder.get_submodule("layer1").register_forward_hook(lambda *given, seen=seen: seen.append(given[2].shape))
        encoder(torch.rand(2, 3, 32, 32))
        assert seen == [(2, 4, resolution, resolution)]


def test_a_basic_network_computes_the_formula_written_by_hand():
    encoder = ResNet((1, 1), width=4, stem="cifar").double().eval()
    generator = torch.Generator().manual_seed(0)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2.0, generator=generator)
    w = encoder.state_dict()
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=generator)

    def norm(x, name):
        mean, var = (w[f"{name}.{part}"][:, None, None] for part in ("running_mean", "running_var"))
        return (x - mean) / (var + 1e-5).sqrt()

    def conv(x, name, stride=1):
        kernel = w[f"{name}.weight"].contiguous()
        return F.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)

    x = norm(conv(images, "conv1"), "bn1").relu()
    out = norm(conv(x, "layer1.0.conv1"), "layer1.0.bn1").relu()
    x = (x + norm(conv(out, "layer1.0.conv2"), "layer1.0.bn2")).relu()
    out = norm(conv(x, "layer2.0.conv1", stride=2), "layer2.0.bn1").relu()
    out = norm(conv(out, "layer2.0.conv2"), "layer2.0.bn2")
    x = (out + norm(conv(x, "layer2.0.downsample.0", stride=2), "layer2.0.downsample.1")).relu()
    torch.testing.assert_close(encoder(images), x.mean(dim=(2, 3)))


def test_the_stride_of_a_bottleneck_is_in_its_middle_convolution():
    block = Bottleneck(16, 8, stride=2)
    assert [conv.stride for conv in (block.conv1, block.conv2, block.conv3)] == [(1, 1), (2, 2), (1, 1)]
    assert block(torch.rand(2, 16, 8, 8)).shape == (2, 32, 4, 4)


def test_initialisation_is_kaiming_fan_out():
    weight = create("resnet18").get_submodule("layer4.0").conv1.weight  # 256 -> 512: the two fans differ
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert weight.mean().abs().item() < 1e-3


def test_zero_init_residual_makes_a_plain_block_the_identity():
    for block in ["basic", "bottleneck"]:
        encoder = ResNet((2,), width=4, block=block, zero_init_residual=True).eval()
        second = encoder.get_submodule("layer1")[1]
        x = torch.rand(2, encoder.num_features, 4, 4)
        assert torch.equal(second(x), x)
        assert not torch.equal(ResNet((2,), width=4, block=block).eval().get_submodule("layer1")[1](x), x)


def test_convolutions_run_channels_last_also_in_copies_and_after_loading():
    encoder = create("resnet8-slim")
    copied = copy.deepcopy(encoder)
    contiguous = {key: tensor.contiguous() for key, tensor in encoder.state_dict().items()}
    copied.load_state_dict(contiguous)
    seen = []

    def look(module, inputs, output):
        seen.append(output.is_contiguous(memory_format=torch.channels_last))

    for network in (encoder, copied):
        for layer in network.modules():
            if isinstance(layer, nn.Conv2d):
                layer.register_forward_hook(look)
        network(torch.rand(2, 3, 32, 32))
    assert seen == [True] * 18


def test_every_parameter_has_a_gradient():
    encoder = create("resnet8-slim")
    encoder(torch.rand(4, 3, 32, 32)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in encoder.parameters())


def test_impossible_arguments_are_refused():
    for arguments, message in [
        ({"blocks": ()}, "at least one block for every stage"),
        ({"blocks": (2, 0)}, "at least one block for every stage"),
        ({"width": 0}, "width and in_channels must be at least 1"),
        ({"stem": "large"}, "stem must be"),
        ({"block": "wide"}, "block must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            ResNet(**arguments)


def test_images_of_another_shape_are_refused():
    for shape in [(2, 1, 32, 32), (3, 32, 32)]:
        with pytest.raises(ValueError, match=r"images must be \(B, 3, H, W\)"):
            create("resnet8-slim")(torch.rand(shape))
