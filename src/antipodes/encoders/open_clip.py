"""CLIP models under open_clip's names, so that a model trained here runs in open_clip, and the reverse.

The image tower becomes ``visual.trunk`` (a timm model) with ``visual.head.proj``. The text tower has CLIP's names at
the top level, with ``text_projection``, ``logit_scale`` and ``logit_bias``. `save_open_clip` writes a folder with
``open_clip_model.safetensors`` and ``open_clip_config.json``, which open_clip loads as ``local-dir:FOLDER``.
"""

import json
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from antipodes.encoders import create
from antipodes.encoders.efficientnet import EfficientNetLite0, timm_names
from antipodes.encoders.encoder import VOCABULARY, Encoder, Preprocessing
from antipodes.encoders.loading import OPEN_CLIP_CONFIG
from antipodes.encoders.resnet import ResNet
from antipodes.encoders.text_transformer import TextTransformer
from antipodes.files import MARK, replacing

WEIGHTS_FILE, CONFIG_FILE, VOCABULARY_FILE = "open_clip_model.safetensors", OPEN_CLIP_CONFIG, "vocabulary"
PICKLED_FILE = "open_clip_pytorch_model.bin"
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
TRUNK, PROJECTION, TEXT_PROJECTION = "visual.trunk.", "visual.head.proj", "text_projection"
TIMM_TO_OURS = {
    "resnet18": "resnet18",
    "resnet34": "resnet34",
    "resnet50": "resnet50",
    "tf_efficientnet_lite0": "efficientnet-lite0",
}
"""timm's name of an image tower -> our name, for networks that are identical."""


class TwoTowers(nn.Module):
    """A CLIP model: an image and a text tower with linear projections, with the methods that clip_benchmark calls.

    Args:
        image: an encoder that timm also has: resnet18, resnet34, resnet50 or efficientnet-lite0.
        text: CLIP's text transformer.
        image_projection: linear, from the image features to the embeddings.
        text_projection: linear, from the text features to the embeddings.
        logit_scale: the logarithm of 1 / temperature, a scalar.
        logit_bias: SigLIP's bias, a scalar, or None.
    """

    image: Encoder
    text: TextTransformer
    image_projection: nn.Linear
    text_projection: nn.Linear
    logit_scale: Tensor
    logit_bias: Tensor | None

    def __init__(
        self,
        image: Encoder,
        text: TextTransformer,
        image_projection: nn.Linear,
        text_projection: nn.Linear,
        logit_scale: Tensor,
        logit_bias: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.image, self.text = image, text
        self.image_projection, self.text_projection = image_projection, text_projection
        self.register_buffer("logit_scale", logit_scale)
        self.register_buffer("logit_bias", logit_bias)

    def encode_image(self, images: Tensor) -> Tensor:
        """Return embeddings (B, D) of preprocessed images (B, 3, H, W), not normalised; clip_benchmark calls it."""
        embeddings: Tensor = self.image_projection(self.image(images))
        return embeddings

    def encode_text(self, tokens: Tensor) -> Tensor:
        """Return embeddings (B, D) of tokens (B, L) from `text.tokenize`, not normalised; clip_benchmark calls it."""
        embeddings: Tensor = self.text_projection(self.text(tokens))
        return embeddings


def to_open_clip(towers: TwoTowers) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a model's weights and configuration under open_clip's names.

    Returns:
        The state dict, and the model's configuration (``model_cfg``).

    Raises:
        ValueError: open_clip has no such image tower, a projection is not linear, or the sizes do not fit.
    """
    _check(towers)
    name = _timm_name(towers.image)
    state = {TRUNK + _rename(key, towers.image): tensor for key, tensor in towers.image.state_dict().items()}
    state |= {key: tensor for key, tensor in towers.text.state_dict().items() if key != VOCABULARY}
    state[f"{PROJECTION}.weight"] = towers.image_projection.weight
    if towers.image_projection.bias is not None:
        state[f"{PROJECTION}.bias"] = towers.image_projection.bias
    if towers.text_projection.bias is None:
        state[TEXT_PROJECTION] = towers.text_projection.weight.T  # (width, embed_dim), without a bias a matrix
    else:
        state |= {f"{TEXT_PROJECTION}.{part}": getattr(towers.text_projection, part) for part in ("weight", "bias")}
    state["logit_scale"] = towers.logit_scale
    if towers.logit_bias is not None:
        state["logit_bias"] = towers.logit_bias
    return {key: tensor.detach().cpu().contiguous() for key, tensor in state.items()}, _config(towers, name)


def from_open_clip(state: dict[str, Tensor], config: dict[str, Any], vocabulary: bytes | None = None) -> TwoTowers:
    """Build a model from weights and a configuration under open_clip's names.

    Args:
        state: the state dict.
        config: open_clip's ``model_cfg``.
        vocabulary: byte pairs of the text tower, if it does not use CLIP's.

    Raises:
        ValueError: a tower is not one that this package has, or a name or a shape does not fit.
    """
    try:
        vision, text_config = config["vision_cfg"], config["text_cfg"]
        embed_dim, timm_name = config["embed_dim"], vision.get("timm_model_name")
        if timm_name not in TIMM_TO_OURS:
            raise ValueError(
                f"open_clip's image tower {timm_name or 'without a timm name'!r} is not one of ours: "
                f"{', '.join(TIMM_TO_OURS)} can be read"
            )
        if other := text_config.get("hf_model_name"):
            raise ValueError(f"open_clip's text tower {other!r} is not one of ours: CLIP's own transformer can be read")
        text = TextTransformer(
            "trained" if vocabulary is not None else "clip",
            text_config.get("vocab_size", 49408),
            text_config.get("width", 512),
            text_config.get("layers", 12),
            text_config.get("heads", 8),
            text_config.get("context_length", 77),
            bool(config.get("quick_gelu", False)),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is not a configuration of open_clip that can be read here: {error!r}") from error
    name = TIMM_TO_OURS[timm_name]
    image = create(name, **({"pretrained": False} if name == "efficientnet-lite0" else {}))
    towers = TwoTowers(
        image,
        text,
        nn.Linear(image.num_features, embed_dim, bias=f"{PROJECTION}.bias" in state),
        nn.Linear(text.num_features, embed_dim, bias=f"{TEXT_PROJECTION}.bias" in state),
        torch.zeros(()),
        torch.zeros(()) if "logit_bias" in state else None,
    )
    _copy(state, towers)
    if vocabulary is not None:
        text.set_vocabulary(vocabulary)
    return towers


def save_open_clip(towers: TwoTowers, folder: str | Path) -> None:
    """Write a model as a folder that open_clip loads as ``local-dir:FOLDER``; the same weights give the same bytes.

    Byte pairs that were trained here go into a separate file, which open_clip does not read.
    """
    folder = Path(folder)
    state, config = to_open_clip(towers)
    preprocessing = towers.image.preprocessing or Preprocessing()
    text = json.dumps({"model_cfg": config, "preprocess_cfg": _preprocess_config(preprocessing)}, indent=2)
    files = {WEIGHTS_FILE: save(dict(sorted(state.items())), {"generator": MARK}), CONFIG_FILE: text.encode() + b"\n"}
    if towers.text.byte_pairs == "trained":
        files[VOCABULARY_FILE] = bytes(towers.text.vocabulary.cpu().numpy())
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with replacing(folder / name) as temporary:
            temporary.write_bytes(content)


def load_open_clip(path: str | Path) -> TwoTowers:
    """Read a folder of `save_open_clip`, or of open_clip; the model is in evaluation mode.

    `image.preprocessing` is read from the folder.

    Args:
        path: the folder, or the file of weights in it.

    Raises:
        ValueError: a file is missing or damaged, or the model is not one of ours.
    """
    path = Path(path).expanduser()
    folder = path if path.is_dir() else path.parent
    try:
        state = _read_weights(path)
        content = json.loads((folder / CONFIG_FILE).read_text())
        config = content["model_cfg"]
    except (OSError, SafetensorError, UnpicklingError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not a folder with a readable {WEIGHTS_FILE} and {CONFIG_FILE} ({error})"
        ) from error
    vocabulary = folder / VOCABULARY_FILE
    towers = from_open_clip(state, config, vocabulary.read_bytes() if vocabulary.is_file() else None)
    towers.image.preprocessing = _read_preprocessing(content.get("preprocess_cfg") or {}, config["vision_cfg"])
    return towers.eval()


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Return the state dict of a file, or of the file in a folder that open_clip would load."""
    if path.is_dir() or path.name == CONFIG_FILE:
        folder = path if path.is_dir() else path.parent
        pickled = not (folder / WEIGHTS_FILE).is_file() and (folder / PICKLED_FILE).is_file()
        path = folder / (PICKLED_FILE if pickled else WEIGHTS_FILE)
    if path.suffix == ".safetensors":
        return load(path.read_bytes())
    state = torch.load(path, map_location="cpu", weights_only=True)
    state = state.get("state_dict", state)  # a checkpoint of open_clip's training also holds the optimiser
    return {key.removeprefix("module."): tensor for key, tensor in state.items()}


def _read_preprocessing(written: dict[str, Any], vision: dict[str, Any]) -> Preprocessing:
    """Return the preprocessing that the model's folder gives, else open_clip's defaults."""
    size = written.get("size", vision.get("image_size", 224))
    mean, std = written.get("mean", CLIP_MEAN), written.get("std", CLIP_STD)
    return Preprocessing(size if isinstance(size, int) else min(size), tuple(mean), tuple(std))


def _check(towers: TwoTowers) -> None:
    for which, projection, encoder in (
        ("image", towers.image_projection, towers.image),
        ("text", towers.text_projection, towers.text),
    ):
        if not isinstance(projection, nn.Linear):
            raise ValueError(
                f"open_clip's {which} projection is one linear layer, and this one is a {type(projection).__name__}: "
                "train with linear heads for open_clip"
            )
        if projection.in_features != encoder.num_features:
            raise ValueError(
                f"the {which} projection takes {projection.in_features} features, and its encoder has "
                f"{encoder.num_features}"
            )
    if not isinstance(towers.text, TextTransformer):
        raise ValueError(f"open_clip's text tower is a text-transformer, not a {type(towers.text).__name__}")
    if towers.image_projection.out_features != towers.text_projection.out_features:
        raise ValueError("both projections must end in embeddings of one length")


def _timm_name(image: nn.Module) -> str:
    if isinstance(image, EfficientNetLite0):
        return "tf_efficientnet_lite0"
    given = {key: tuple(tensor.shape) for key, tensor in image.state_dict().items()}
    for name in ("resnet18", "resnet34", "resnet50"):
        with torch.device("meta"):
            same = {key: tuple(tensor.shape) for key, tensor in create(name).state_dict().items()}
        if isinstance(image, ResNet) and given == same:
            return name
    raise ValueError(
        f"open_clip has no image tower like this {type(image).__name__}: use resnet18, resnet34, resnet50 or "
        "efficientnet-lite0"
    )


def _rename(key: str, image: nn.Module) -> str:
    if not isinstance(image, EfficientNetLite0):
        return key
    prefix, _, part = key.rpartition(".")
    return f"{timm_names()[prefix]}.{part}"


def _config(towers: TwoTowers, timm_name: str) -> dict[str, Any]:
    preprocessing = towers.image.preprocessing or Preprocessing()
    vision: dict[str, Any] = {
        "timm_model_name": timm_name,
        "timm_model_pretrained": False,
        "timm_pool": "avg",
        "timm_proj": "linear",
        "timm_proj_bias": towers.image_projection.bias is not None,
        "image_size": preprocessing.size,
    }
    text = {
        "context_length": towers.text.max_length,
        "vocab_size": towers.text.vocabulary_size,
        "width": towers.text.num_features,
        "heads": towers.text.blocks()[0].attn.heads,
        "layers": len(towers.text.blocks()),
        "proj_bias": towers.text_projection.bias is not None,
    }
    config = {"embed_dim": towers.text_projection.out_features, "vision_cfg": vision, "text_cfg": text}
    if towers.text.blocks()[0].quick_gelu:
        config["quick_gelu"] = True
    if towers.logit_bias is not None:
        config["init_logit_bias"] = -10
    return config


def _preprocess_config(preprocessing: Preprocessing) -> dict[str, Any]:
    return {
        "size": preprocessing.size,
        "mean": preprocessing.mean,
        "std": preprocessing.std,
        "interpolation": "bicubic",
        "resize_mode": "shortest",
    }


def _copy(state: dict[str, Tensor], towers: TwoTowers) -> None:
    """Copy open_clip's tensors into towers of the same shapes; refuse before anything is copied if they do not fit."""
    wanted, _ = to_open_clip(towers)
    wrong = sorted(
        key
        for key in wanted.keys() | state.keys()
        if key not in wanted or key not in state or wanted[key].shape != state[key].shape
    )
    if wrong:
        shapes = [tuple(where[wrong[0]].shape) if wrong[0] in where else "missing" for where in (state, wanted)]
        raise ValueError(
            f"the weights do not fit open_clip's configuration: {len(wrong)} differ, first {wrong[0]!r}, of shape "
            f"{shapes[0]} in the file and {shapes[1]} in the model"
        )
    image = {key: state[TRUNK + _rename(key, towers.image)] for key in towers.image.state_dict()}
    text = {key: state[key] for key in towers.text.state_dict() if key != VOCABULARY}
    towers.image.load_state_dict(image)
    towers.text.load_state_dict(text, strict=False)
    with torch.no_grad():
        towers.image_projection.weight.copy_(state[f"{PROJECTION}.weight"])
        if towers.image_projection.bias is not None:
            towers.image_projection.bias.copy_(state[f"{PROJECTION}.bias"])
        if towers.text_projection.bias is None:
            towers.text_projection.weight.copy_(state[TEXT_PROJECTION].T)
        else:
            towers.text_projection.weight.copy_(state[f"{TEXT_PROJECTION}.weight"])
            towers.text_projection.bias.copy_(state[f"{TEXT_PROJECTION}.bias"])
        towers.logit_scale.copy_(state["logit_scale"])
        if towers.logit_bias is not None:
            towers.logit_bias.copy_(state["logit_bias"])
