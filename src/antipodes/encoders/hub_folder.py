"""Folders in the conventions of Hugging Face: `config.json`, `model.safetensors` and a model card.

1. Text encoders are written as sentence-transformers has them: `SentenceTransformer(folder)` gives the same vectors.
2. Image encoders are written as timm has them: `timm.create_model("local-dir:FOLDER")` loads them.
3. `push_to_hub` uploads such a folder, where the package `huggingface_hub` is installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from antipodes.encoders import minilm
from antipodes.encoders.efficientnet import EfficientNetLite0, timm_names
from antipodes.encoders.encoder import VOCABULARY, Encoder
from antipodes.encoders.hugging_face import HuggingFaceText
from antipodes.encoders.loading import LoadedEncoder
from antipodes.encoders.minilm import MiniLM
from antipodes.encoders.resnet import ResNet
from antipodes.files import MARK, replacing
from antipodes.plain_text import escape_markdown

CARD = "README.md"
WEIGHTS = "model.safetensors"
_POOLING = {"mean": "mean_tokens", "first": "cls_token", "last": "lasttoken"}
_RESNETS = ("resnet18", "resnet34", "resnet50")  # with the stem for large images


def save_hub_folder(loaded: LoadedEncoder, folder: str | Path, facts: Mapping[str, str] | None = None) -> list[Path]:
    """Write an encoder as a folder that sentence-transformers or timm loads.

    Args:
        loaded: the encoder; with its projection head, if that has linear layers only, for encoders of texts.
        folder: the folder; it is created, and files of an earlier export are replaced.
        facts: title -> sentence, for the model card.

    Returns:
        The files.

    Raises:
        ValueError: neither of the two libraries has such an encoder; nothing is written then.
    """
    files, tensors, tags = hub_files(loaded)
    folder = Path(folder)
    written = []
    for name, content in files.items():
        _write(folder / name, content.encode() if isinstance(content, str) else content)
        written.append(folder / name)
    for name, state in tensors.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with replacing(folder / name) as temporary:
            whole = {key: each.clone(memory_format=torch.contiguous_format) for key, each in state.items()}
            save_file(whole, temporary, {"format": "pt"})
        written.append(folder / name)
    _write(folder / CARD, _card(loaded, tags, facts or {}).encode())
    return [*written, folder / CARD]


def hub_files(loaded: LoadedEncoder) -> tuple[dict[str, str | bytes], dict[str, dict[str, Tensor]], Sequence[str]]:
    """Return the files of a folder by name, the tensors of its safetensors files, and the library and the task.

    Raises:
        ValueError: neither sentence-transformers nor timm has such an encoder.
    """
    if len(loaded.encoders) == 1 and loaded.modality == "text":
        return _of_text(loaded)
    if len(loaded.encoders) == 1 and loaded.modality == "image" and not len(loaded.network.heads):
        return _of_images(loaded)
    raise ValueError(
        f"{loaded.name} is {len(loaded.encoders)} encoder(s) of {loaded.modality}s: Hugging Face's folders hold one "
        "encoder of texts, or one of images without its head (--tower chooses one; --safetensors writes any)"
    )


def push_to_hub(folder: str | Path, repo: str, *, private: bool = False, api: Any = None) -> str:
    """Upload a folder to a repository of Hugging Face, which is created if there is none.

    Args:
        folder: what `save_hub_folder` wrote.
        repo: the repository: owner/name.
        private: whether a new repository is private.
        api: an object with `create_repo` and `upload_folder`; by default `huggingface_hub.HfApi()`, which takes the
            token that the user has logged in with.

    Returns:
        What the upload answers: the address of the commit.

    Raises:
        ValueError: huggingface_hub is not installed, the name is no owner/name, or the upload fails.
    """
    if repo.count("/") != 1 or not all(repo.split("/")):
        raise ValueError(f"--push_to_hub {repo!r} must be owner/name")
    if api is None:
        try:
            from huggingface_hub import HfApi
        except ImportError as error:
            raise ValueError("--push_to_hub needs huggingface_hub: pip install huggingface_hub") from error
        api = HfApi()
    try:
        api.create_repo(repo_id=repo, private=private, exist_ok=True)
        answer = api.upload_folder(repo_id=repo, folder_path=str(folder), commit_message="Upload by antipodes")
    except Exception as error:  # of the network, or of the account
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"--push_to_hub {repo}: the folder {folder} is written, and was not uploaded ({first})"
        ) from error
    return str(answer)


def _of_text(loaded: LoadedEncoder) -> tuple[dict[str, str | bytes], dict[str, dict[str, Tensor]], Sequence[str]]:
    encoder = loaded.encoders[0]
    dense = [each for head in loaded.network.heads for each in _linear_layers(head)]
    if isinstance(encoder, MiniLM):
        files, state, pooling = _files_of_minilm(encoder), encoder.state_dict(), "mean"
        width, normalise = minilm.WIDTH, encoder.normalise
        state = {key: each for key, each in state.items() if key != VOCABULARY}
        # BERT's pooler, which nothing reads; without it transformers would start one at random and say so
        state |= {"pooler.dense.weight": torch.zeros(width, width), "pooler.dense.bias": torch.zeros(width)}
    elif isinstance(encoder, HuggingFaceText):
        files, state, pooling = _files_of_transformers(encoder), encoder.transformer.state_dict(), encoder.pooling
        width, normalise = int(encoder.transformer.config.hidden_size), encoder.normalise
        dense = _linear_layers(encoder.layers) + dense
    else:
        raise ValueError(
            f"sentence-transformers has no {type(encoder).__name__}: its folders hold minilm and hf: models; "
            "--safetensors writes any encoder"
        )
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    files["1_Pooling/config.json"] = _json(
        {"word_embedding_dimension": width, f"pooling_mode_{_POOLING[pooling]}": True}
        | {
            f"pooling_mode_{name}": False
            for name in ("mean_tokens", "cls_token", "max_tokens")
            if name != _POOLING[pooling]
        }
    )
    tensors = {WEIGHTS: {key: each.detach().cpu() for key, each in state.items()}}
    for linear, activation in dense:
        path = f"{len(modules)}_Dense"
        modules.append(("Dense", path))
        files[f"{path}/config.json"] = _json(
            {
                "in_features": linear.in_features,
                "out_features": linear.out_features,
                "bias": linear.bias is not None,
                "activation_function": activation,
            }
        )
        tensors[f"{path}/{WEIGHTS}"] = {
            f"linear.{key}": each.detach().cpu() for key, each in linear.state_dict().items()
        }
    if normalise or len(loaded.network.heads):
        modules.append(("Normalize", f"{len(modules)}_Normalize"))
    files["modules.json"] = _json(
        [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (kind, path) in enumerate(modules)
        ]
    )
    files["sentence_bert_config.json"] = _json({"max_seq_length": encoder.max_length, "do_lower_case": False})
    files["config_sentence_transformers.json"] = _json(
        {"__version__": {}, "prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    )
    return files, tensors, ("sentence-transformers", "sentence-similarity", "feature-extraction")


def _files_of_minilm(encoder: MiniLM) -> dict[str, str | bytes]:
    """Return the configuration and the tokenizer of MiniLM, as its publishers have them."""
    special = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
    special["mask_token"] = "[MASK]"
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": minilm.WIDTH,
        "num_hidden_layers": minilm.LAYERS,
        "num_attention_heads": minilm.HEADS,
        "intermediate_size": minilm.INNER,
        "vocab_size": minilm.WORDS,
        "max_position_embeddings": minilm.POSITIONS,
        "type_vocab_size": minilm.TYPES,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "pad_token_id": 0,
    }
    tokenizer = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": encoder.max_length}
    return {
        "config.json": _json(config),
        "tokenizer.json": bytes(encoder.vocabulary.cpu().numpy()),
        "tokenizer_config.json": _json(tokenizer | special),
        "special_tokens_map.json": _json(special),
    }


def _files_of_transformers(encoder: HuggingFaceText) -> dict[str, str | bytes]:
    """Return the configuration and the tokenizer of a model, as transformers writes them."""
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        encoder.transformer.config.save_pretrained(temporary)
        encoder._shared[0].save_pretrained(temporary)
        return {file.name: file.read_bytes() for file in sorted(Path(temporary).iterdir()) if file.is_file()}


def _of_images(loaded: LoadedEncoder) -> tuple[dict[str, str | bytes], dict[str, dict[str, Tensor]], Sequence[str]]:
    """Return timm's configuration and weights under timm's names."""
    encoder: Encoder = loaded.encoders[0]  # type: ignore[assignment]
    architecture, names, arguments = _timm_name(encoder)
    preprocessing = loaded.preprocessing[0]
    assert preprocessing is not None
    if preprocessing.colour != "rgb":
        raise ValueError(f"timm's encoders take RGB, and {loaded.name} takes {preprocessing.colour} of Lab")
    decode = preprocessing.decode or preprocessing.size
    config = {
        "architecture": architecture,
        "num_classes": 0,
        "num_features": int(encoder.num_features),
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [3, preprocessing.size, preprocessing.size],
            "mean": list(preprocessing.mean),
            "std": list(preprocessing.std),
            "interpolation": "bilinear",
            "crop_pct": preprocessing.size / decode,
            "crop_mode": "center",
            "num_classes": 0,
        },
    }
    state = encoder.state_dict()
    tensors = {_renamed(key, names): each.detach().cpu() for key, each in state.items()}
    return {"config.json": _json(config)}, {WEIGHTS: tensors}, ("timm", "image-feature-extraction", "timm")


def _timm_name(encoder: nn.Module) -> tuple[str, Mapping[str, str], dict[str, Any]]:
    """Return timm's name of an encoder, timm's prefixes of its tensors where they differ, and timm's arguments."""
    origin: tuple[str, dict[str, Any]] = getattr(encoder, "origin", ("", {}))
    name, arguments = origin
    if name.startswith("timm:"):
        architecture = arguments.get("architecture") or name.removeprefix("timm:").partition(".")[0]
        ours = ("pretrained", "in_channels", "probe_size", "revision")
        others = {key: value for key, value in arguments.items() if key not in ours}
        return architecture, {}, others
    if isinstance(encoder, EfficientNetLite0):
        return "tf_efficientnet_lite0", timm_names(), {}
    if isinstance(encoder, ResNet) and name in _RESNETS:
        return name, {}, {}
    raise ValueError(
        f"timm has no {name or type(encoder).__name__}: its folders hold resnet18, resnet34, resnet50, "
        "efficientnet-lite0 and timm: models; --safetensors writes any encoder"
    )


def _renamed(key: str, prefixes: Mapping[str, str]) -> str:
    """Return a tensor's name with timm's prefix."""
    stem, _, last = key.rpartition(".")
    return f"{prefixes.get(stem, stem)}.{last}"


def _linear_layers(head: nn.Module) -> list[tuple[nn.Linear, str]]:
    """Return the linear layers of a head, each with the class of the activation that follows it.

    Raises:
        ValueError: it has other layers, such as batch normalisation.
    """
    found: list[tuple[nn.Linear, str]] = []
    for layer in head.children():
        if isinstance(layer, nn.Linear):
            found.append((layer, "torch.nn.modules.linear.Identity"))
        elif isinstance(layer, (nn.ReLU, nn.GELU, nn.Tanh, nn.Identity)) and found:
            found[-1] = (found[-1][0], f"{type(layer).__module__}.{type(layer).__name__}")
        else:
            raise ValueError(
                f"sentence-transformers' folders hold linear layers, and the head has {type(layer).__name__}"
            )
    return found


def _card(loaded: LoadedEncoder, tags: Sequence[str], facts: Mapping[str, str]) -> str:
    """Return a model card with the front matter that the hub reads."""
    library, task, tag = tags
    calls = {
        "sentence-transformers": [
            "from sentence_transformers import SentenceTransformer",
            "",
            'model = SentenceTransformer("FOLDER")',
            'embeddings = model.encode(["a sentence"])',
        ],
        "timm": ["import timm", "", 'model = timm.create_model("local-dir:FOLDER", pretrained=True)'],
    }
    lines = ["---", f"library_name: {library}", f"pipeline_tag: {task}", "tags:", f"- {tag}", "- antipodes", "---", ""]
    lines += [f"# {escape_markdown(Path(loaded.name).name)}", "", f"[//]: # ({MARK})", ""]
    lines += [f"An encoder of {loaded.modality}s, trained with antipodes {version('antipodes')}: ", ""]
    lines[-2] += f"{loaded.num_features} features."
    lines += ["```python", *calls[library], "```", ""]
    if facts:
        lines += ["| | |", "|---|---|"]
        lines += [f"| {escape_markdown(title)} | {escape_markdown(text)} |" for title, text in facts.items()]
    return "\n".join(lines) + "\n"


def _json(content: Any) -> str:
    return json.dumps(content, indent=2, sort_keys=isinstance(content, dict)) + "\n"


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary:
        temporary.write_bytes(content)
