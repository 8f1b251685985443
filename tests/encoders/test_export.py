import hashlib
import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from antipodes.encoders import create, efficientnet
from antipodes.encoders.encoder import Preprocessing
from antipodes.encoders.export import export_backbone, load_backbone, load_weights, read_description

from .torchvision_layout import resnet18_layout, resnet50_layout


class Patches(nn.Module):
    """A user's encoder with tied weights that accepts one image size only."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.first = nn.Linear(3 * size**2, 3 * size**2)
        self.second = nn.Linear(3 * size**2, 3 * size**2)
        self.second.weight = self.first.weight

    def forward(self, images):
        return self.second(self.first(images.flatten(1)))


def trained(encoder):
    """Move weights and batch statistics away from their first values."""
    encoder.train()(torch.rand(4, encoder.conv1.in_channels, 32, 32))
    return encoder.eval()


@pytest.mark.parametrize(("name", "layout"), [("resnet18", resnet18_layout), ("resnet50", resnet50_layout)])
def test_a_file_holds_torchvisions_keys_and_shapes_but_for_fc(tmp_path, name, layout):
    export_backbone(create(name), tmp_path / "backbone.safetensors")
    found = {key: tuple(tensor.shape) for key, tensor in load_file(tmp_path / "backbone.safetensors").items()}
    official = layout()
    assert set(official) - set(found) == {"fc.weight", "fc.bias"}
    assert found == {key: official[key] for key in found}


def test_metadata_says_what_the_file_is(tmp_path):
    export_backbone(create("resnet8-slim", in_channels=1), tmp_path / "a.safetensors")
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        metadata = file.metadata()
    assert metadata["encoder"] == "resnet8-slim"
    assert json.loads(metadata["arguments"]) == {"in_channels": 1}
    assert metadata["antipodes_version"] == version("antipodes")


def test_an_encoder_comes_back_bit_equal(tmp_path):
    encoder = trained(create("resnet8-slim", in_channels=1, width=8))
    export_backbone(encoder, tmp_path / "new" / "a.safetensors")
    again = load_backbone(tmp_path / "new" / "a.safetensors").eval()
    images = torch.rand(3, 1, 32, 32)
    with torch.no_grad():
        assert torch.equal(again(images), encoder(images))
    assert again.origin == encoder.origin
    assert (again.state_dict()["bn1.running_mean"] != 0).any()


def test_a_users_module_comes_back_with_its_probe_size(tmp_path):
    encoder = create(f"{__name__}.Patches", probe_size=4, size=4)
    export_backbone(encoder, tmp_path / "a.safetensors")
    again = load_backbone(tmp_path / "a.safetensors")
    images = torch.rand(2, 3, 4, 4)
    assert torch.equal(again(images), encoder(images))
    assert again.num_features == 48


def test_weights_load_into_and_from_a_model_with_a_classifier(tmp_path):
    encoder = trained(create("resnet8-slim"))
    export_backbone(encoder, tmp_path / "a.safetensors")
    with_classifier = create("resnet8-slim")
    with_classifier.fc = nn.Linear(64, 10)
    classifier = with_classifier.fc.weight.clone()
    load_weights(with_classifier, tmp_path / "a.safetensors")
    assert torch.equal(with_classifier.conv1.weight, encoder.conv1.weight)
    assert torch.equal(with_classifier.fc.weight, classifier)

    export_backbone(with_classifier, tmp_path / "b.safetensors")
    fresh = create("resnet8-slim")
    load_weights(fresh, tmp_path / "b.safetensors")
    assert all(torch.equal(tensor, encoder.state_dict()[key]) for key, tensor in fresh.state_dict().items())


def test_weights_that_do_not_fit_are_refused_and_change_nothing(tmp_path):
    export_backbone(create("resnet8-slim", width=8), tmp_path / "a.safetensors")
    export_backbone(create("resnet18-slim"), tmp_path / "b.safetensors")
    encoder = create("resnet8-slim")
    before = {key: tensor.clone() for key, tensor in encoder.state_dict().items()}
    with pytest.raises(
        ValueError, match=r"does not fit ResNet: .* first 'bn1.bias', of shape \(8,\) in the file and \(16,\)"
    ):
        load_weights(encoder, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"does not fit ResNet: .* in the file and missing in the module"):
        load_weights(encoder, tmp_path / "b.safetensors")
    assert all(torch.equal(tensor, before[key]) for key, tensor in encoder.state_dict().items())


def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    export_backbone(create("resnet8-slim"), path)
    old = path.read_bytes()

    def crash(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError, match="disk full"):
        export_backbone(create("resnet8-slim"), path)
    assert path.read_bytes() == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.safetensors"]


def test_files_that_cannot_be_used_are_explained(tmp_path):
    with pytest.raises(ValueError, match="there is no file"):
        load_backbone(tmp_path / "nothing.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"not a file of weights")
    with pytest.raises(ValueError, match="is not a readable safetensors file"):
        load_backbone(tmp_path / "bad.safetensors")
    save_file({"weight": torch.zeros(2)}, tmp_path / "foreign.safetensors")
    with pytest.raises(ValueError, match="does not say which encoder it holds"):
        load_backbone(tmp_path / "foreign.safetensors")
    encoder = create("resnet8-slim")
    encoder.origin = ("resnet8-slim", {"width": object()})
    with pytest.raises(ValueError, match="cannot be exported as JSON"):
        export_backbone(encoder, tmp_path / "c.safetensors")
    assert not (tmp_path / "c.safetensors").exists()


def test_the_same_weights_give_the_same_bytes(tmp_path):
    encoder = create("resnet8-slim", width=8, in_channels=3)
    code = (
        "import sys; from antipodes.encoders.export import export_backbone, load_backbone;"
        "export_backbone(load_backbone(sys.argv[1]), sys.argv[2], card={})"
    )
    export_backbone(encoder, tmp_path / "0.safetensors", Preprocessing(48), card={})
    for number in (1, 2):  # other processes hash strings otherwise
        call = [sys.executable, "-c", code, tmp_path / f"{number - 1}.safetensors", tmp_path / f"{number}.safetensors"]
        subprocess.run(call, check=True)
    contents = {(tmp_path / f"{number}.safetensors").read_bytes() for number in range(3)}
    assert len(contents) == 1
    again = create("resnet8-slim", in_channels=3, width=8)
    again.load_state_dict(encoder.state_dict())
    export_backbone(again, tmp_path / "3.safetensors", Preprocessing(48))
    assert (tmp_path / "3.safetensors").read_bytes() in contents


def test_metadata_says_how_to_feed_the_encoder(tmp_path):
    given = Preprocessing(48, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    export_backbone(create("resnet8-slim"), tmp_path / "a.safetensors", given)
    description = read_description(tmp_path / "a.safetensors")
    assert (description.name, description.modality, description.num_features) == ("resnet8-slim", "image", 64)
    assert description.preprocessing == given
    assert load_backbone(tmp_path / "a.safetensors").preprocessing == given
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["preprocessing"])["size"] == 48


def test_metadata_that_cannot_be_understood_is_named(tmp_path):
    save_file(
        {"a": torch.zeros(1)}, tmp_path / "a.safetensors", {"encoder": "resnet18", "arguments": "{", "format": "pt"}
    )
    with pytest.raises(ValueError, match=r"the metadata of .*a\.safetensors cannot be understood"):
        load_backbone(tmp_path / "a.safetensors")


def test_a_model_card_is_written_beside_the_file(tmp_path):
    export_backbone(
        create("resnet8-slim"), tmp_path / "encoder.safetensors", Preprocessing(48), {"method": "simclr | glofnd\nfour"}
    )
    card = (tmp_path / "encoder.md").read_text()
    digest = hashlib.sha256((tmp_path / "encoder.safetensors").read_bytes()).hexdigest()
    assert digest in card
    assert "shorter side scaled to 48" in card
    assert "| method | simclr \\| glofnd four |" in card
    assert 'antipodes.load("encoder.safetensors")' in card


def test_a_text_encoder_comes_back_with_its_vocabulary(tmp_path):
    encoder = create("bag-of-words", words="learned", vocabulary_size=20, width=4)
    encoder.fit_tokenizer(["a dog", "the cat"])
    export_backbone(encoder, tmp_path / "a.safetensors")
    again = load_backbone(tmp_path / "a.safetensors")
    assert torch.equal(again.tokenize(["the dog"]), encoder.tokenize(["the dog"]))


def test_a_pretrained_encoder_is_not_fetched_again(tmp_path, monkeypatch):
    encoder = create("efficientnet-lite0", pretrained=False)
    encoder.origin = ("efficientnet-lite0", {"size": 64})  # as if its package had been there
    export_backbone(encoder, tmp_path / "a.safetensors")
    monkeypatch.setattr(efficientnet, "WEIGHTS", ("no-such-package",))
    again = load_backbone(tmp_path / "a.safetensors")
    assert again.origin == encoder.origin
    assert again.preprocessing.size == 224
