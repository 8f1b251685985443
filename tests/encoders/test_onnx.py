import json
import sys

import pytest
import torch
from PIL import Image

from antipodes.encoders import create
from antipodes.encoders import onnx as onnx_files
from antipodes.encoders.encoder import Preprocessing
from antipodes.encoders.loading import LoadedEncoder
from antipodes.encoders.onnx import export_onnx

runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is absent")
pytest.importorskip("onnx", reason="onnx is absent")
pytest.importorskip("onnxscript", reason="onnxscript is absent")


def image_encoder():
    encoder = create("resnet8-slim", width=4)
    encoder(torch.rand(8, 3, 32, 32))
    return LoadedEncoder([encoder], [Preprocessing(32, (0.5,) * 3, (0.25,) * 3)])


def text_encoder():
    pytest.importorskip("tokenizers", reason="tokenizers is absent")
    encoder = create("text-transformer", width=8, layers=1, heads=2, vocabulary_size=300)
    encoder.fit_tokenizer(["a dog runs", "two cats sleep"])
    return LoadedEncoder([encoder], [None])


def run(path, name, inputs):
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["features"], {name: inputs.numpy()})[0])


def test_images_give_the_same_features(tmp_path):
    loaded = image_encoder()
    difference = export_onnx(loaded, tmp_path / "new" / "a.onnx")
    assert 0 <= difference < 1e-5
    images = [Image.new("RGB", (60, 40), (17 * number, 90, 200)) for number in range(5)]
    found = run(tmp_path / "new" / "a.onnx", "images", loaded.prepare(images))
    torch.testing.assert_close(found, loaded(images), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loaded(images[0]), found[0], rtol=1e-5, atol=1e-5)  # a single one
    session = runtime.InferenceSession(str(tmp_path / "new" / "a.onnx"))
    assert session.get_inputs()[0].shape == ["batch", 3, 32, 32]
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["preprocessing"]) == {
        "decode": None,
        "mean": [0.5] * 3,
        "size": 32,
        "std": [0.25] * 3,
    }
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["a.onnx"]


def test_texts_of_any_length_give_the_same_features(tmp_path):
    loaded = text_encoder()
    export_onnx(loaded, tmp_path / "a.onnx")
    assert runtime.InferenceSession(str(tmp_path / "a.onnx")).get_inputs()[0].shape == ["batch", "length"]
    texts = ["a dog", "two cats sleep and a dog runs " * 3]
    tokens = loaded.prepare(texts)
    torch.testing.assert_close(run(tmp_path / "a.onnx", "tokens", tokens), loaded(texts), rtol=1e-5, atol=1e-5)


def test_a_file_that_differs_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_files, "TOLERANCE", -1.0)
    with pytest.raises(ValueError, match=r"differ by .* from torch's: not written"):
        export_onnx(LoadedEncoder([create("identity", in_features=3)], [None]), tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


def test_missing_packages_are_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ValueError, match=r"need onnx, onnxscript and onnxruntime .* pip install '\.\[onnx\]'"):
        export_onnx(image_encoder(), tmp_path / "a.onnx")


def test_the_two_encoders_of_cmc_go_into_one_file(tmp_path):
    plain = [Preprocessing(16, (0.0,) * 3, (1.0,) * 3, colour) for colour in ("l", "ab")]
    loaded = LoadedEncoder([create("resnet8-slim", width=4, in_channels=number) for number in (1, 2)], plain)
    export_onnx(loaded, tmp_path / "a.onnx")
    images = [Image.new("RGB", (16, 16), (200, 90 * number, 7)) for number in range(2)]
    expected = loaded(images)
    assert expected.shape == (2, 32)
    found = run(tmp_path / "a.onnx", "images", loaded.prepare(images))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_photos_that_are_decoded_larger_are_scaled_in_the_file(tmp_path):
    loaded = LoadedEncoder([create("resnet8-slim", width=4)], [Preprocessing(24, decode=40)])
    export_onnx(loaded, tmp_path / "a.onnx")
    noise = torch.randint(0, 256, (2, 50, 60, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images = [Image.fromarray(each.numpy()) for each in noise]
    assert loaded.prepare(images).shape == (2, 3, 40, 40)
    found = run(tmp_path / "a.onnx", "images", loaded.prepare(images))
    torch.testing.assert_close(found, loaded(images), rtol=1e-4, atol=1e-5)
