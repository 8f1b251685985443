"""Encoders as safetensors files: weights under torchvision's names, and metadata to build the encoder and feed it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from antipodes.encoders import create, without_pretrained
from antipodes.encoders.encoder import VOCABULARY, Encoder, Preprocessing
from antipodes.encoders.heads import build_head, describe_head
from antipodes.files import MARK, replacing
from antipodes.plain_text import escape_markdown, printable

DIGEST = "sha256"  # key in the metadata
CLASSIFIER = ("fc.weight", "fc.bias")
"""Tensors that torchvision's and timm's ResNets have and an exported encoder does not have."""


@dataclass(frozen=True)
class EncoderDescription:
    """What the metadata of an exported file says about its encoder.

    Args:
        name: the encoder's name for `antipodes.encoders.create`; None if the module was built without it.
        arguments: the arguments for `create`.
        modality: image, text or vector.
        num_features: length of a feature vector, or None if the module has no such attribute.
        preprocessing: how images are prepared, or None if unknown.
    """

    name: str | None
    arguments: dict[str, Any]
    modality: str
    num_features: int | None
    preprocessing: Preprocessing | None


def export_backbone(
    module: nn.Module,
    path: str | Path,
    preprocessing: Preprocessing | None = None,
    card: Mapping[str, str] | None = None,
) -> None:
    """Write a module's weights with the name, arguments, modality and preprocessing that are needed to use them.

    The file of a ``resnet18`` or ``resnet50`` loads into torchvision's and timm's model of that name with
    ``strict=False``; only ``fc.weight`` and ``fc.bias`` are missing. The same weights give the same bytes. If the
    process ends while writing, an older file stays as it was.

    Args:
        module: the encoder.
        path: the file to write, usually ``encoder.safetensors``.
        preprocessing: how images were prepared in training; by default the encoder's own.
        card: facts (title -> sentence) for a model card, written next to the file as ``encoder.md``; an empty mapping
            gives a card without facts, None gives no card.

    Raises:
        ValueError: the arguments of the encoder cannot be written as JSON; nothing is written then.
    """
    path = Path(path)
    description = describe_encoder(module, preprocessing)
    content = _serialised(_tensors(module), _metadata(description))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    if card is not None:
        weights = sum(parameter.numel() for parameter in module.parameters())
        digest = hashlib.sha256(content).hexdigest()
        with replacing(path.with_suffix(".md")) as temporary:
            temporary.write_text(_card(path.name, description, weights, digest, card), encoding="utf-8")


def export_head(module: nn.Module, path: str | Path) -> None:
    """Write a projection head, which `load_head` reads; the same weights give the same bytes.

    Raises:
        ValueError: `antipodes.encoders.heads` cannot build such a head; nothing is written then.
    """
    metadata = {"format": "pt", "generator": MARK, "antipodes_version": version("antipodes")}
    metadata["head"] = json.dumps(describe_head(module))
    content = _serialised(_tensors(module), metadata)
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(content)


def load_head(path: str | Path) -> nn.Sequential:
    """Build the head that a file of `export_head` holds.

    Raises:
        ValueError: the file is missing or damaged, or holds no head.
    """
    metadata, tensors = read_safetensors(path)
    try:
        module = build_head(json.loads(metadata["head"]))
        module.load_state_dict(tensors)
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} does not hold a projection head: export the run again") from error
    return module


def describe_encoder(module: nn.Module, preprocessing: Preprocessing | None = None) -> EncoderDescription:
    """Collect what the metadata says about a module."""
    name, arguments = getattr(module, "origin", (None, {}))
    features = getattr(module, "num_features", None)
    return EncoderDescription(
        name,
        arguments,
        getattr(module, "modality", "image"),
        features if isinstance(features, int) else None,
        preprocessing or getattr(module, "preprocessing", None),
    )


def load_backbone(path: str | Path) -> Encoder:
    """Build the encoder that a file of `export_backbone` names and give it the file's weights.

    A dotted path as the encoder's name is imported: for files from untrusted sources use `load_weights` instead.

    Raises:
        ValueError: the file is missing or damaged, does not name its encoder, or does not fit it.
    """
    description = read_description(path)
    if description.name is None:
        raise ValueError(f"{path} does not say which encoder it holds: build the module yourself and use load_weights")
    with without_pretrained():
        encoder = create(description.name, **description.arguments)
    if description.preprocessing is not None:
        encoder.preprocessing = description.preprocessing
    load_weights(encoder, path)
    return encoder


def load_weights(module: nn.Module, path: str | Path) -> None:
    """Copy the weights of a safetensors file into a module; a classifier (``fc``) on either side is ignored.

    Raises:
        ValueError: the file is missing or damaged, or a key or a shape does not fit; the module is unchanged then.
    """
    _, tensors = read_safetensors(path)
    expected = {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
    given = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    wrong = sorted(
        key
        for key in expected.keys() | given.keys()
        if expected.get(key) != given.get(key)
        and not (key in CLASSIFIER and None in (expected.get(key), given.get(key)))
        and not (key == VOCABULARY and key in expected and key in given)
    )
    if wrong:
        key = wrong[0]
        raise ValueError(
            f"{path} does not fit {type(module).__name__}: {len(wrong)} of its weights differ, first {key!r}, "
            f"of shape {given.get(key, 'missing')} in the file and {expected.get(key, 'missing')} in the module"
        )
    module.load_state_dict(tensors, strict=False)


def read_description(path: str | Path) -> EncoderDescription:
    """Read what the metadata of a file of `export_backbone` says about its encoder.

    Raises:
        ValueError: the file is missing or damaged, or its metadata cannot be understood.
    """
    metadata, _ = read_safetensors(path, weights=False)
    try:
        preprocessing = metadata.get("preprocessing")
        features = metadata.get("num_features")
        return EncoderDescription(
            metadata.get("encoder"),
            json.loads(metadata.get("arguments", "{}")),
            metadata.get("modality", "image"),
            None if features is None else int(features),
            None if preprocessing is None else Preprocessing(**json.loads(preprocessing)),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"the metadata of {path} cannot be understood ({error}): export the encoder again") from error


def read_safetensors(path: str | Path, weights: bool = True) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Read the metadata and the tensors of a safetensors file.

    Raises:
        ValueError: the file is missing or damaged. Changed values are detected in files with a digest, which this
            package writes.
    """
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}: check the path of the exported backbone")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            keys = file.keys() if weights or DIGEST in metadata else []
            tensors = {key: file.get_tensor(key) for key in keys}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a readable safetensors file ({error}): export the backbone again") from error
    if metadata.pop(DIGEST, None) not in (None, _digest(tensors, metadata)):
        raise ValueError(f"{path} is damaged: its content does not match its digest, export the encoder again")
    return metadata, tensors


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    # Cloned, because safetensors refuses channels_last and shared memory.
    return {
        key: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, tensor in module.state_dict().items()
    }


def _metadata(description: EncoderDescription) -> dict[str, str]:
    metadata = {"format": "pt", "generator": MARK, "antipodes_version": version("antipodes")}
    metadata["modality"] = description.modality
    if description.num_features is not None:
        metadata["num_features"] = str(description.num_features)
    if description.preprocessing is not None:
        metadata["preprocessing"] = json.dumps(asdict(description.preprocessing), sort_keys=True)
    if description.name is not None:
        try:
            metadata |= {
                "encoder": description.name,
                "arguments": json.dumps(description.arguments, sort_keys=True),
            }
        except TypeError as error:
            raise ValueError(
                f"the arguments of encoder {description.name!r} cannot be exported as JSON: {error}"
            ) from error
    return metadata


def _serialised(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a safetensors file with the digest of its content; equal content gives equal bytes."""
    return _with_sorted_header(save(dict(tensors), {**metadata, DIGEST: _digest(tensors, metadata)}))


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of tensors and metadata."""
    digest = hashlib.sha256(json.dumps(dict(sorted(metadata.items()))).encode())
    for key in sorted(tensors):
        tensor = tensors[key]
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _with_sorted_header(content: bytes) -> bytes:
    """Sort the header of a safetensors file, because the library writes the metadata in arbitrary order.

    A file consists of the header's length in eight bytes, the header as JSON padded with spaces to a multiple of eight,
    and the tensors, whose offsets in the header are counted from the header's end.
    """
    length = int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8 : 8 + length]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def _card(file: str, description: EncoderDescription, weights: int, digest: str, facts: Mapping[str, str]) -> str:
    """Return a model card in Markdown."""
    what = {"image": "images", "text": "texts", "vector": "vectors"}[description.modality]
    call = {"image": '["photo.jpg"]', "text": '["a caption"]', "vector": "vectors"}[description.modality]
    size = f" of length {description.num_features}" if description.num_features is not None else ""
    lines = [
        f"# {escape_markdown(description.name or 'An encoder')}",
        "",
        f"[//]: # ({MARK})",
        "",
        f"An encoder of {what}, trained with antipodes {version('antipodes')}. It gives features{size}.",
        "",
        "```python",
        "import antipodes",
        "",
        f"encoder = antipodes.load({json.dumps(file)})",
        f"features = encoder({call})",
        "```",
        "",
        "| | |",
        "|---|---|",
        f"| weights | {weights:,} |",
        f"| file | {_code(file)}, sha256 `{digest}` |",
    ]
    if description.name is not None:
        arguments = json.dumps(description.arguments, sort_keys=True)
        lines.append(f"| built by | {_code(description.name)}, {_code(arguments)} |")
    if (preprocessing := description.preprocessing) is not None:
        side = preprocessing.decode or preprocessing.size
        then = "" if side == preprocessing.size else f", scaled to {preprocessing.size}"
        lines.append(f"| images | shorter side scaled to {side}, centre cropped{then}, {preprocessing.colour} |")
        lines.append(f"| mean, std | {list(preprocessing.mean)}, {list(preprocessing.std)} of RGB in [0, 1] |")
    lines += [f"| {escape_markdown(title)} | {escape_markdown(text)} |" for title, text in facts.items()]
    return "\n".join(lines) + "\n"


def _code(text: str) -> str:
    """A text as code in a cell of a table. HTML is inert there; a backtick would end the code, and becomes a quote."""
    return f"`{printable(text.replace('`', chr(39)))}`".replace("|", "\\|")
