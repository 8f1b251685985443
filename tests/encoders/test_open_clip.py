import json

import pytest
import torch
from PIL import Image
from torch import nn

from antipodes import load
from antipodes.encoders import create
from antipodes.encoders.encoder import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from antipodes.encoders.open_clip import TwoTowers, from_open_clip, load_open_clip, save_open_clip, to_open_clip

from .torchvision_layout import resnet18_layout

TEXT_BLOCK = {
    "ln_1.weight": (16,),
    "ln_1.bias": (16,),
    "attn.in_proj_weight": (48, 16),
    "attn.in_proj_bias": (48,),
    "attn.out_proj.weight": (16, 16),
    "attn.out_proj.bias": (16,),
    "ln_2.weight": (16,),
    "ln_2.bias": (16,),
    "mlp.c_fc.weight": (64, 16),
    "mlp.c_fc.bias": (64,),
    "mlp.c_proj.weight": (16, 64),
    "mlp.c_proj.bias": (16,),
}


def towers(image="resnet18", bias=False, logit_bias=None, **arguments):
    pytest.importorskip("tokenizers", reason="tokenizers is absent")
    torch.manual_seed(0)
    encoder = create(image, **arguments).eval()
    text = create("text-transformer", width=16, layers=2, heads=2, vocabulary_size=300, max_length=20).eval()
    text.fit_tokenizer(["a dog and a cat", "two dogs"])
    heads = [nn.Linear(tower.num_features, 8, bias=bias) for tower in (encoder, text)]
    return TwoTowers(encoder, text, *heads, torch.tensor(2.659), logit_bias)


@torch.no_grad()
def embed(model, images, texts):
    tokens = model.text.tokenize(texts)
    return model.image_projection(model.image(images)), model.text_projection(model.text(tokens))


def test_names_and_shapes_are_open_clips():
    state, config = to_open_clip(towers())
    expected = {f"visual.trunk.{key}": shape for key, shape in resnet18_layout().items() if not key.startswith("fc.")}
    expected |= {"visual.head.proj.weight": (8, 512), "text_projection": (16, 8), "logit_scale": ()}
    expected |= {"token_embedding.weight": (300, 16), "positional_embedding": (20, 16)}
    expected |= {"ln_final.weight": (16,), "ln_final.bias": (16,)}
    expected |= {f"transformer.resblocks.{n}.{key}": shape for n in (0, 1) for key, shape in TEXT_BLOCK.items()}
    assert {key: tuple(tensor.shape) for key, tensor in state.items()} == expected
    assert config["embed_dim"] == 8
    assert config["vision_cfg"]["timm_model_name"] == "resnet18"
    assert config["text_cfg"] == {
        "context_length": 20,
        "vocab_size": 300,
        "width": 16,
        "heads": 2,
        "layers": 2,
        "proj_bias": False,
    }


@pytest.mark.parametrize(
    ("bias", "logit_bias"), [(False, None), (True, torch.tensor(-10.0))], ids=["clip", "siglip, biased heads"]
)
def test_a_model_comes_back_from_its_folder_bit_equal(tmp_path, bias, logit_bias):
    model = towers(bias=bias, logit_bias=logit_bias)
    save_open_clip(model, tmp_path / "a")
    again = load_open_clip(tmp_path / "a")
    images, texts = torch.rand(2, 3, 64, 64), ["a dog", "two cats"]
    for one, other in zip(embed(model, images, texts), embed(again, images, texts), strict=True):
        assert torch.equal(one, other)
    assert again.logit_scale == model.logit_scale
    assert again.logit_bias == model.logit_bias
    save_open_clip(again, tmp_path / "b")
    for name in ("open_clip_model.safetensors", "open_clip_config.json", "vocabulary"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_efficientnet_has_timms_names():
    model = towers("efficientnet-lite0", pretrained=False)
    state, config = to_open_clip(model)
    assert config["vision_cfg"]["timm_model_name"] == "tf_efficientnet_lite0"
    trunk = {key.removeprefix("visual.trunk."): tensor for key, tensor in state.items() if "trunk" in key}
    # timm's tf_efficientnet_lite0, from its published file
    assert trunk["conv_stem.weight"].shape == (32, 3, 3, 3)
    assert trunk["blocks.0.0.conv_dw.weight"].shape == (32, 1, 3, 3)
    assert trunk["blocks.0.0.conv_pw.weight"].shape == (16, 32, 1, 1)
    assert trunk["blocks.5.3.conv_pwl.weight"].shape == (192, 1152, 1, 1)
    assert trunk["blocks.6.0.bn3.running_var"].shape == (320,)
    assert trunk["bn2.weight"].shape == (1280,)
    vocabulary = bytes(model.text.vocabulary.numpy())
    again = from_open_clip(state, config, vocabulary)
    images = torch.rand(1, 3, 64, 64)
    assert torch.equal(
        embed(model, images, ["a dog"])[0],
        embed(
            again.eval(),
            images,
            ["a dog"],
        )[0],
    )


def test_preprocessing_is_written(tmp_path):
    model = towers()
    model.image.preprocessing = Preprocessing(96, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    save_open_clip(model, tmp_path)
    written = json.loads((tmp_path / "open_clip_config.json").read_text())
    assert written["preprocess_cfg"]["mean"] == [0.5, 0.5, 0.5]
    assert written["model_cfg"]["vision_cfg"]["image_size"] == 96


def test_what_open_clip_cannot_hold_is_refused():
    for change, message in [
        ({"image": create("resnet8-slim")}, "no image tower like this ResNet"),
        ({"image_projection": nn.Sequential()}, "is one linear layer, and this one is a Sequential"),
        ({"image_projection": nn.Linear(9, 8)}, "takes 9 features, and its encoder has 512"),
        ({"text_projection": nn.Linear(16, 9)}, "embeddings of one length"),
    ]:
        model = towers()
        names = ("image", "text", "image_projection", "text_projection", "logit_scale", "logit_bias")
        fields = {name: getattr(model, name) for name in names} | change
        if "image" in change:
            fields["image_projection"] = nn.Linear(64, 8)
        with pytest.raises(ValueError, match=message):
            to_open_clip(TwoTowers(**fields))


def test_strange_files_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"is not a folder with a readable open_clip_model\.safetensors"):
        load_open_clip(tmp_path)
    state, config = to_open_clip(towers())
    with pytest.raises(ValueError, match="'ViT-B-32' is not one of ours: resnet18"):
        from_open_clip(state, config | {"vision_cfg": {"timm_model_name": "ViT-B-32"}}, b"")
    with pytest.raises(ValueError, match="image tower 'without a timm name' is not one of ours"):
        from_open_clip(state, config | {"vision_cfg": {"layers": 12, "width": 768, "patch_size": 32}}, b"")
    with pytest.raises(ValueError, match="text tower 'roberta-base' is not one of ours: CLIP's own transformer"):
        from_open_clip(state, config | {"text_cfg": {"hf_model_name": "roberta-base"}}, b"")
    with pytest.raises(ValueError, match="not a configuration of open_clip that can be read here"):
        from_open_clip(state, {}, b"")
    state["ln_final.weight"] = torch.ones(3)
    with pytest.raises(ValueError, match=r"1 differ, first 'ln_final.weight', of shape \(3,\) in the file and \(16,\)"):
        from_open_clip(state, config, b"")


def test_a_model_answers_as_clip_benchmark_asks(tmp_path):
    """Its metrics call encode_image, encode_text and a tokenizer, and compare normalised embeddings."""
    save_open_clip(towers(), tmp_path / "model")
    model = load_open_clip(tmp_path / "model")
    assert not any(part.training for part in model.modules())  # batch statistics of other images of the batch
    assert model.to("cpu").eval() is model
    images, classes = torch.rand(3, 3, 64, 64), ["dog", "cat"]
    with torch.no_grad():
        features = nn.functional.normalize(model.encode_image(images), dim=-1)
        prompts = [model.text.tokenize([f"a {name}", f"two {name}s"]) for name in classes]
        weights = [nn.functional.normalize(model.encode_text(tokens), dim=-1).mean(0) for tokens in prompts]
    logits = 100 * features @ torch.stack(weights, dim=1)
    assert logits.shape == (3, 2)
    expected = embed(model, images, [f"a {name}" for name in classes])
    torch.testing.assert_close(features, nn.functional.normalize(expected[0], dim=-1))


def test_open_clip_gives_the_same_embeddings(tmp_path):
    try:
        import open_clip
    except Exception as error:  # a torchvision built for another torch fails with RuntimeError, not ImportError
        pytest.skip(f"open_clip cannot be imported here: {error}")
    model = towers()
    state, config = to_open_clip(model)
    theirs = open_clip.CLIP(**config).eval()
    theirs.load_state_dict(state)
    images, texts = torch.rand(2, 3, 64, 64), ["a dog", "two cats"]
    tokens = torch.zeros(2, 20, dtype=torch.int64)
    ours = model.text.tokenize(texts)
    tokens[:, : ours.shape[1]] = ours
    with torch.no_grad():
        image, text = embed(model, images, texts)
        torch.testing.assert_close(theirs.encode_image(images), image, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(theirs.encode_text(tokens), text, rtol=1e-5, atol=1e-5)


def test_one_image_is_embedded_as_beside_others(tmp_path):
    """In training mode batch normalisation would make the embedding of an image depend on its batch."""
    save_open_clip(towers(), tmp_path)
    model = load_open_clip(tmp_path)
    images = torch.rand(3, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model.encode_image(images)[:1], model.encode_image(images[:1]), rtol=1e-4, atol=1e-5)


def test_a_model_moves_as_a_whole(tmp_path):
    model = towers(logit_bias=torch.tensor(-10.0)).to(torch.float64)
    assert {tensor.dtype for tensor in (*model.parameters(), model.logit_scale, model.logit_bias)} == {torch.float64}


@pytest.mark.parametrize("wrapped", [False, True], ids=["state dict", "checkpoint"])
def test_pickled_weights_are_read_as_data(tmp_path, wrapped):
    model = towers()
    save_open_clip(model, tmp_path)
    state, _ = to_open_clip(model)
    if wrapped:  # as open_clip's training writes them
        state = {"epoch": 3, "state_dict": {f"module.{key}": tensor for key, tensor in state.items()}}
    torch.save(state, tmp_path / "open_clip_pytorch_model.bin")
    (tmp_path / "open_clip_model.safetensors").unlink()
    images = torch.rand(2, 3, 64, 64)
    expected = embed(model, images, ["a dog"])
    for path in (tmp_path, tmp_path / "open_clip_pytorch_model.bin", tmp_path / "open_clip_config.json"):
        for one, other in zip(embed(load_open_clip(path), images, ["a dog"]), expected, strict=True):
            assert torch.equal(one, other)
    (tmp_path / "open_clip_pytorch_model.bin").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="is not a folder with a readable"):
        load_open_clip(tmp_path)


def test_preprocessing_is_read_and_has_open_clips_defaults(tmp_path):
    model = towers()
    model.image.preprocessing = Preprocessing(96, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    save_open_clip(model, tmp_path)
    assert load_open_clip(tmp_path).image.preprocessing == model.image.preprocessing
    written = json.loads((tmp_path / "open_clip_config.json").read_text())
    del written["preprocess_cfg"]
    (tmp_path / "open_clip_config.json").write_text(json.dumps(written))
    found = load_open_clip(tmp_path).image.preprocessing
    assert (found.size, found.mean[0]) == (96, 0.48145466)


def test_load_gives_one_tower_with_its_preprocessing(tmp_path):
    model = towers()
    model.image.preprocessing = Preprocessing(64)
    save_open_clip(model, tmp_path)
    photo = Image.new("RGB", (64, 64), (200, 30, 60))
    pixels = (torch.tensor([200, 30, 60]) / 255 - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    images = pixels[None, :, None, None].expand(1, 3, 64, 64)
    expected = [nn.functional.normalize(part) for part in embed(model, images, ["a dog"])]
    found = [
        load(tmp_path, tower, embeddings=True)(given) for tower, given in (("image", [photo]), ("text", ["a dog"]))
    ]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert load(tmp_path)([photo]).shape == (1, 512)
    assert load(tmp_path, "text")(["a dog"]).shape == (1, 16)
    with pytest.raises(ValueError, match="no encoder of tower 'sound', of image, text"):
        load(tmp_path, "sound")
