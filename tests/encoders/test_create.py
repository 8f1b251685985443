import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from antipodes import encoders
from antipodes.encoders import create, without_pretrained
from antipodes.encoders.encoder import feature_size
from antipodes.registry import NAMES


class Small(nn.Module):
    """A user's encoder: no num_features, batch norm and dropout inside, a fixed image size."""

    def __init__(self, in_channels: int = 3, features: int = 7, image_size: int = 32) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(in_channels)
        self.dropout = nn.Dropout(0.5)
        self.linear = nn.Linear(in_channels * image_size**2, features)

    def forward(self, images):
        return self.linear(self.dropout(self.norm(images)).flatten(1))


class Noisy(nn.Module):
    """Draws random numbers and changes a buffer even in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, images):
        self.calls += 1
        return torch.rand(len(images), 11)


class KeepsSpace(nn.Module):
    def forward(self, images):
        return images


def test_listing_the_names_does_not_import_torch():
    # An empty parent package, so that only this one is looked at.
    code = """
import sys, types
parent = sys.modules["antipodes"] = types.ModuleType("antipodes")
parent.__path__ = [sys.argv[1]]
from antipodes.registry import NAMES
print("resnet18-slim" in NAMES["encoder"], "torch" in sys.modules)
"""
    source = Path(encoders.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code, source], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_every_preset_builds():
    needed = {name: {"pretrained": False} for name in ("efficientnet-lite0", "minilm")}
    needed |= {name: {"in_features": 3} for name in ("identity", "mlp")}
    with torch.device("meta"):
        for name in NAMES["encoder"]:
            assert create(name, **needed.get(name, {})).num_features > 0, name


def test_arguments_override_the_preset_and_are_remembered():
    encoder = create("resnet8-slim", width=4, in_channels=2)
    assert encoder.num_features == 16
    assert encoder.conv1.weight.shape == (4, 2, 3, 3)
    assert encoder.origin == ("resnet8-slim", {"width": 4, "in_channels": 2})


def test_a_dotted_path_builds_a_users_class_and_measures_its_features():
    encoder = create(f"{__name__}.Small", features=5)
    assert isinstance(encoder, Small)
    assert encoder.num_features == 5
    assert create(f"{__name__}.Small", image_size=16, in_channels=1, probe_size=16).num_features == 7


def test_a_class_that_says_its_features_is_believed(monkeypatch):
    monkeypatch.setattr(Noisy, "num_features", 3, raising=False)
    encoder = create(f"{__name__}.Noisy")
    assert encoder.num_features == 3


def test_measuring_features_changes_nothing():
    module = Small().train()
    module.dropout.eval()
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    random_state = torch.get_rng_state()
    assert feature_size(module) == 7
    assert torch.equal(torch.get_rng_state(), random_state)
    assert module.training
    assert not module.dropout.training
    assert all(torch.equal(tensor, before[key]) for key, tensor in module.state_dict().items())

    noisy = Noisy()
    assert feature_size(noisy) == 11
    assert torch.equal(torch.get_rng_state(), random_state)
    assert noisy.calls == 0


def test_features_that_cannot_be_measured_are_explained():
    with pytest.raises(ValueError, match=r"Small failed on a batch of images of shape \(2, 3, 8, 8\)"):
        feature_size(Small(), image_size=8)
    with pytest.raises(ValueError, match=r"KeepsSpace must map images .* returned a tensor of shape \(2, 3, 32, 32\)"):
        feature_size(KeepsSpace())


def test_unknown_names_are_refused():
    for name, message in [
        ("resnet18-slimm", r"unknown encoder 'resnet18-slimm': did you mean 'resnet18-slim'\?.*timm:.*resnet50-4x"),
        ("vgg", "unknown encoder 'vgg': Choose hf:"),
        ("antipodes.nowhere.Net", "cannot be imported"),
        ("torch.nn.Nowhere", "cannot be imported"),
        ("fractions.Fraction", "cannot be the encoder: it is not a subclass"),
        ("collections.OrderedDict", "cannot be the encoder: it is not a subclass"),
    ]:
        with pytest.raises(ValueError, match=message):
            create(name)


def test_arguments_that_the_class_does_not_take_are_refused():
    with pytest.raises(
        ValueError, match=r"encoder 'resnet18' cannot be built: .*'widht'; its arguments are: blocks, width"
    ):
        create("resnet18", widht=3)
    with pytest.raises(ValueError, match="cannot be built: missing a required argument: 'in_features'"):
        create("torch.nn.Linear")


def test_timm_models_are_built_without_a_classifier(monkeypatch):
    calls = []

    def create_model(name, **arguments):
        if name != "mobilenet":
            raise RuntimeError(f"Unknown model ({name})")
        calls.append((name, arguments))
        model = nn.Flatten()
        model.num_features, model.head_hidden_size = 960, 1280
        return model

    monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=create_model))
    encoder = create("timm:mobilenet", in_channels=1, pretrained=True)
    assert calls == [("mobilenet", {"num_classes": 0, "in_chans": 1, "pretrained": True})]
    assert encoder.num_features == 1280
    assert encoder.origin == ("timm:mobilenet", {"in_channels": 1, "pretrained": True})
    with pytest.raises(ValueError, match=r"timm could not build encoder 'timm:nothing': Unknown model"):
        create("timm:nothing")


def test_timm_that_cannot_be_imported_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(
        ValueError, match=r"'timm:resnet50' needs timm, which cannot be imported here .* install antipodes\[timm\]"
    ):
        create("timm:resnet50")


def test_pretrained_weights_can_be_left_out_where_others_replace_them(monkeypatch):
    from antipodes.encoders import efficientnet

    monkeypatch.setattr(efficientnet, "WEIGHTS", ("no-such-package",))
    with without_pretrained():
        encoder = create("efficientnet-lite0", pretrained=True, size=64)
        assert create("resnet8-slim").num_features == 64
    assert encoder.origin == ("efficientnet-lite0", {"pretrained": True, "size": 64})
    with pytest.raises(ValueError, match="which is not installed"):
        create("efficientnet-lite0")
