"""Export of encoders with their preprocessing as ONNX files, which are compared with torch before they are kept."""

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from antipodes.encoders.encoder import Preprocessing
from antipodes.encoders.loading import LoadedEncoder, normalise_images
from antipodes.files import MARK, replacing

TOLERANCE = 1e-5
"""Largest difference from torch's features, relative to the largest feature if that is above 1."""

INPUTS = {"image": "images", "text": "tokens", "vector": "vectors"}
"""Modality -> name of the input."""


def export_onnx(loaded: LoadedEncoder, path: str | Path) -> float:
    """Write an encoder as an ONNX file that maps what `LoadedEncoder.prepare` returns to features.

    1. The input is called ``images`` (B, 3, H, H) uint8, ``tokens`` (B, L) int64 or ``vectors`` (B, F) float32. H is
       the side to which photos are decoded. The file scales, normalises and embeds images; the output is ``features``.
    2. The number of inputs (axis ``batch``) and the length of texts (``length``) are dynamic. How images were prepared
       is also in the metadata.
    3. The file is run once with onnxruntime, on another number of inputs than it was traced with, and is kept only if
       it gives torch's features.

    Returns:
        The largest absolute difference from torch's features.

    Raises:
        ValueError: onnx, onnxscript or onnxruntime is missing, or the features differ; nothing is written then.

    Example:
        >>> encoder = load("runs/a")  # doctest: +SKIP
        >>> export_onnx(encoder, "encoder.onnx")  # doctest: +SKIP
        >>> session = onnxruntime.InferenceSession("encoder.onnx")  # doctest: +SKIP
        >>> session.run(None, {"images": encoder.prepare(["one.jpg"]).numpy()})  # doctest: +SKIP
    """
    runtime = require_onnx()
    path = Path(path)
    network = loaded.network if loaded.modality != "image" else PixelNetwork(loaded)
    example = example_input(loaded, 2)
    free = {0: "batch"}
    if loaded.modality == "text":
        free[1] = "length"
    name = INPUTS[loaded.modality]
    with _quiet():
        program = torch.onnx.export(
            network,
            (example,),
            dynamo=True,
            dynamic_shapes=(free,),
            input_names=[name],
            output_names=["features"],
            verbose=False,
        )
    assert program is not None
    program.model.metadata_props.update(_metadata(loaded))
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        program.save(temporary, external_data=False)
        return _difference(runtime, temporary, network, name, example_input(loaded, 3))


class PixelNetwork(nn.Module):
    """The network of an image encoder with its preprocessing: (B, 3, H, H) uint8 in, features out."""

    def __init__(self, loaded: LoadedEncoder) -> None:
        super().__init__()
        self.network = loaded.network
        self.preprocessing = loaded.image_preprocessing

    def forward(self, images: Tensor) -> Tensor:
        """Scale and normalise images, and return their features (B, num_features)."""
        features: Tensor = self.network(normalise_images(images, self.preprocessing))
        return features


def require_onnx() -> Any:
    """Import onnxruntime, and check that onnx and onnxscript are installed.

    Raises:
        ValueError: one of them is missing.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"ONNX files need onnx, onnxscript and onnxruntime ({error}): pip install '.[onnx]'"
        ) from error
    return onnxruntime


def example_input(loaded: LoadedEncoder, count: int) -> Tensor:
    """Return `count` inputs of the encoder's kind: noise as images or vectors, short texts as tokens."""
    noise = torch.Generator().manual_seed(count)
    if loaded.modality == "text":
        return loaded.prepare([" ".join(["word", "another", "third"][: number + 1]) for number in range(count)])
    if loaded.modality == "image":
        side = loaded.image_preprocessing.decode or loaded.size
        return torch.randint(0, 256, (count, 3, side, side), generator=noise, dtype=torch.uint8)
    encoder: Any = loaded.encoders[0]
    return torch.randn(count, getattr(encoder, "in_features", encoder.num_features), generator=noise)


def _difference(runtime: Any, path: Path, network: nn.Module, name: str, inputs: Tensor) -> float:
    try:
        session = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {name: inputs.numpy()})
    except Exception as error:  # onnxruntime raises its own classes
        raise ValueError(f"onnxruntime cannot run what torch exported ({error}): not written") from error
    with torch.no_grad():
        expected = network(inputs)
    difference = float((torch.from_numpy(found) - expected).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
        raise ValueError(f"the ONNX file would give features that differ by {difference:.2g} from torch's: not written")
    return difference


def _metadata(loaded: LoadedEncoder) -> dict[str, str]:
    metadata = {"generator": MARK, "modality": loaded.modality, "num_features": str(loaded.num_features)}
    preprocessing = loaded.preprocessing[0]
    if isinstance(preprocessing, Preprocessing):
        fields = asdict(preprocessing)
        fields.pop("colour")  # the network converts colours itself
        metadata["preprocessing"] = json.dumps(fields, sort_keys=True)
    return metadata


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's log messages, warnings and prints."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
