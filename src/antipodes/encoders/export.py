"""Backbones as safetensors files: torchvision's names inside, and in the metadata how to build the module again."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from antipodes.encoders import create
from antipodes.encoders.encoder import Encoder
from antipodes.files import replacing

CLASSIFIER = ("fc.weight", "fc.bias")
"""What torchvision's and timm's ResNets have and a backbone has not."""


def export_backbone(module: nn.Module, path: str | Path) -> None:
    """Write a module's weights and, when `antipodes.encoders.create` built it, its name and arguments.

    The file of a ``resnet18`` or ``resnet50`` loads into torchvision's and timm's model of that name with
    ``strict=False``; only ``fc.weight`` and ``fc.bias`` are missing. A crash while writing leaves an older file whole.

    Raises:
        ValueError: the arguments of the encoder cannot be written as JSON; nothing is written then.
    """
    path = Path(path)
    metadata = {"format": "pt", "antipodes_version": version("antipodes")}
    origin = getattr(module, "origin", None)
    if origin is not None:
        name, arguments = origin
        try:
            metadata |= {"encoder": name, "arguments": json.dumps(arguments)}
        except TypeError as error:
            raise ValueError(f"the arguments of encoder {name!r} cannot be exported as JSON: {error}") from error
    # Cloned, because safetensors refuses channels_last and shared memory.
    tensors = {
        key: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, tensor in module.state_dict().items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(save(tensors, metadata))


def load_backbone(path: str | Path) -> Encoder:
    """Build the encoder that a file of `export_backbone` names and give it the file's weights.

    An encoder named by a dotted path is imported: load files of strangers with `load_weights` instead.

    Raises:
        ValueError: the file is missing or damaged, does not name its encoder, or does not fit it.
    """
    metadata, _ = _read(path)
    if "encoder" not in metadata:
        raise ValueError(f"{path} does not say which encoder it holds: build the module yourself and use load_weights")
    arguments: dict[str, Any] = json.loads(metadata["arguments"])
    arguments.pop("pretrained", None)  # timm would fetch weights only to have them replaced
    encoder = create(metadata["encoder"], **arguments)
    load_weights(encoder, path)
    return encoder


def load_weights(module: nn.Module, path: str | Path) -> None:
    """Copy the weights of a safetensors file into a module; a classifier (``fc``) on either side is passed over.

    Raises:
        ValueError: the file is missing or damaged, or a key or a shape does not fit; the module is unchanged then.
    """
    _, tensors = _read(path)
    expected = {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
    given = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    wrong = sorted(
        key
        for key in expected.keys() | given.keys()
        if expected.get(key) != given.get(key)
        and not (key in CLASSIFIER and None in (expected.get(key), given.get(key)))
    )
    if wrong:
        key = wrong[0]
        raise ValueError(
            f"{path} does not fit {type(module).__name__}: {len(wrong)} of its weights differ, first {key!r}, "
            f"of shape {given.get(key, 'missing')} in the file and {expected.get(key, 'missing')} in the module"
        )
    module.load_state_dict(tensors, strict=False)


def _read(path: str | Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}: check the path of the exported backbone")
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata() or {}, {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a readable safetensors file ({error}): export the backbone again") from error
