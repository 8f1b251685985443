import json

import pytest
import torch
from torch import nn

from antipodes.encoders import create
from antipodes.encoders.encoder import Preprocessing
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
    again.image.eval()
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
            TwoTowers(again.image.eval(), again.text, again.image_projection, again.text_projection, again.logit_scale),
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": create("resnet8-slim")}, "no image tower like this ResNet"),
        ({"image_projection": nn.Sequential()}, "is one linear layer, and this one is a Sequential"),
        ({"image_projection": nn.Linear(9, 8)}, "takes 9 features, and its encoder has 512"),
        ({"text_projection": nn.Linear(16, 9)}, "embeddings of one length"),
    ],
)
def test_what_open_clip_cannot_hold_is_refused(change, message):
    model = towers()
    fields = {name: getattr(model, name) for name in model.__dataclass_fields__} | change
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
    with pytest.raises(ValueError, match="not a configuration of open_clip that can be read here"):
        from_open_clip(state, {}, b"")
    state["ln_final.weight"] = torch.ones(3)
    with pytest.raises(ValueError, match=r"1 differ, first 'ln_final.weight', of shape \(3,\) in the file and \(16,\)"):
        from_open_clip(state, config, b"")


def test_a_model_answers_as_clip_benchmark_asks(tmp_path):
    """Its metrics call encode_image, encode_text and a tokenizer, and compare normalised embeddings."""
    save_open_clip(towers(), tmp_path / "model")
    model = load_open_clip(tmp_path / "model")
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
