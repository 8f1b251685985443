"""Copying weights into an encoder: from another run, an exported file, torchvision, timm or any state dict."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from antipodes.encoders import create
from antipodes.encoders.efficientnet import EfficientNetLite0, timm_names
from antipodes.encoders.encoder import VOCABULARY
from antipodes.encoders.export import read_safetensors
from antipodes.encoders.loading import PRETRAINED, files_of_run
from antipodes.files import check_digest

PREFIXES = (
    "module.",
    "model.",
    "state_dict.",
    "encoder.",
    "encoder_q.",
    "backbone.",
    "trunk.",
    "visual.",
    "_orig_mod.",
)
"""Prefixes that wrappers put in front of an encoder's tensor names."""

CONTAINERS = ("state_dict", "model", "model_state_dict", "state_dict_ema", "module", "net", "backbone", "encoder")
"""Keys under which checkpoints store the weights."""

CLASSIFIERS = ("fc.", "_fc.", "classifier.", "head.", "heads.", "pooler.", "text_projection", "logit_scale")
"""Prefixes of tensor names that belong to classifiers and projections, not to an encoder."""

LEAST = 0.5
"""The share of an encoder's tensors that a file must have; with fewer it is refused as another network."""


@dataclass(frozen=True)
class LoadReport:
    """Which tensors were copied into an encoder and which were not.

    Args:
        source: the name or path of the weights.
        loaded: names of the encoder's tensors that were copied.
        missing: names of the encoder's tensors that the source lacks; they keep their values.
        mismatched: names of tensors with another shape in the source; they keep their values.
        unused: names in the source that the encoder lacks, apart from the classifier.
    """

    source: str
    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    mismatched: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        total = len(self.loaded) + len(self.missing) + len(self.mismatched)
        parts = [f"{len(self.loaded)} of {total} tensors were loaded from {self.source}"]
        for names, what in (
            (self.missing, "are not in it and keep their initial values"),
            (self.mismatched, "have another shape there and keep their initial values"),
            (self.unused, "of its own were not used"),
        ):
            if names:
                parts.append(f"{len(names)} {what} (first {names[0]})")
        return "; ".join(parts)


def initialise(module: nn.Module, source: str | Path, tower: str | None = None) -> LoadReport:
    """Copy weights into an encoder.

    Args:
        module: the encoder; it is changed in place.
        source: an exported ``.safetensors`` file, the folder of a run, a state dict of torchvision, timm or another
            library (``.pth``, ``.pt``, ``.safetensors``), or the name of an encoder that comes with weights
            (``efficientnet-lite0``, ``minilm``).
        tower: the tower whose encoder is taken, if a run has several.

    Prefixes that wrappers add (``module.``, ``encoder.``, ``backbone.`` ...) are removed and classifiers are left out.
    Files are read as data only: nothing in them can run code.

    Returns:
        Which tensors were loaded; `str` gives one sentence.

    Raises:
        ValueError: there is no such source, it cannot be read, or it has less than half of the encoder's tensors; the
            encoder is unchanged then.
    """
    weights = {key: tensor for key, tensor in _read(source, tower).items() if not key.startswith(CLASSIFIERS)}
    state = module.state_dict()
    given = _best_match(weights, state, isinstance(module, EfficientNetLite0))
    fits = {key: tensor for key, tensor in given.items() if key in state and _fits(key, tensor, state[key])}
    counted = [key for key in state if not key.endswith("num_batches_tracked")]
    report = LoadReport(
        str(source),
        tuple(key for key in state if key in fits),
        tuple(key for key in state if key not in given),
        tuple(key for key in state if key in given and key not in fits),
        tuple(key for key in given if key not in state),
    )
    found = sum(key in fits for key in counted)
    if found < LEAST * len(counted):
        theirs = next(iter(weights), "nothing")
        raise ValueError(
            f"{source} has only {found} of the {len(counted)} tensors of this {type(module).__name__} (it has names "
            f"like {theirs!r}, the encoder like {counted[0]!r}): it is of another network"
        )
    module.load_state_dict(fits, strict=False)
    return report


def initialise_head(module: nn.Module, file: Path) -> bool:
    """Copy the weights of an exported head into a head; return False, and copy nothing, if their tensors differ."""
    given, state = read_safetensors(file)[1], module.state_dict()
    fits = {key: value.shape for key, value in given.items()} == {key: value.shape for key, value in state.items()}
    if fits:
        module.load_state_dict(given)
    return fits


def _read(source: str | Path, tower: str | None) -> dict[str, Tensor]:
    """Read the tensors of a source under their own names."""
    place = Path(source).expanduser()
    if (str(source) in PRETRAINED or str(source).startswith(("hf:", "timm:"))) and not place.exists():
        return dict(create(str(source), pretrained=True).state_dict())
    if place.is_dir():
        return read_safetensors(_file_of_run(place, tower))[1]
    if not place.is_file():
        raise ValueError(
            f"there are no weights at {source}: give a run folder, a .safetensors, .pth or .pt file, hf:<text model>, "
            f"timm:<image model>, or {' or '.join(PRETRAINED)}"
        )
    if place.suffix == ".safetensors":
        return read_safetensors(place)[1]
    check_digest(place, required=False)
    try:
        loaded = torch.load(place, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises half a dozen kinds for a damaged or unsafe file
        raise ValueError(
            f"{source} cannot be read as weights ({type(error).__name__}): it is damaged, or holds more than tensors"
        ) from error
    return _tensors(loaded, source)


def _file_of_run(folder: Path, tower: str | None) -> Path:
    files = files_of_run(folder, tower)
    if len(files) > 1:
        raise ValueError(f"{folder} has the encoders of two towers: choose by tower, l or ab")
    return files[0]


def _tensors(loaded: Any, source: str | Path) -> dict[str, Tensor]:
    """Find the state dict in the content of a file."""
    while isinstance(loaded, Mapping) and not any(isinstance(value, Tensor) for value in loaded.values()):
        inner = next((loaded[name] for name in CONTAINERS if isinstance(loaded.get(name), Mapping)), None)
        if inner is None:
            break
        loaded = inner
    items = loaded.items() if isinstance(loaded, Mapping) else ()
    found = {str(key): value for key, value in items if isinstance(value, Tensor)}
    if not found:
        raise ValueError(f"{source} holds no state dict: it should map names to tensors")
    return found


def _best_match(weights: dict[str, Tensor], state: Mapping[str, Tensor], timm: bool) -> dict[str, Tensor]:
    """Remove the prefixes with which most tensors match the encoder's names."""
    candidates = [weights]
    stripped = weights
    for _ in range(4):  # module.backbone.trunk. ...
        longest = _strip(stripped)
        if longest is None:
            break
        stripped = longest
        candidates.append(stripped)
    if timm:
        candidates += [_from_timm(each) for each in list(candidates)]
    return max(candidates, key=lambda each: sum(key in state for key in each))


def _strip(weights: dict[str, Tensor]) -> dict[str, Tensor] | None:
    """Return the tensors with the most frequent prefix, without it; None if no tensor has one."""
    counts = {prefix: sum(key.startswith(prefix) for key in weights) for prefix in PREFIXES}
    prefix = max(counts, key=lambda each: counts[each])
    if not counts[prefix]:
        return None
    behind = {key.removeprefix(prefix): tensor for key, tensor in weights.items() if key.startswith(prefix)}
    return {key: tensor for key, tensor in behind.items() if not key.startswith(CLASSIFIERS)}


def _from_timm(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    ours = {theirs: name for name, theirs in timm_names().items()}
    renamed = {}
    for key, tensor in weights.items():
        prefix, _, part = key.rpartition(".")
        renamed[f"{ours[prefix]}.{part}" if prefix in ours else key] = tensor
    return renamed


def _fits(key: str, given: Tensor, expected: Tensor) -> bool:
    return given.shape == expected.shape or (key == VOCABULARY and given.dtype == torch.uint8)
