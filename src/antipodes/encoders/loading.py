"""`antipodes.load`: an encoder with its preprocessing, ready for photos or sentences."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from antipodes.encoders import create
from antipodes.encoders.encoder import Encoder, Preprocessing
from antipodes.encoders.export import load_backbone, load_head
from antipodes.encoders.heads import embedding_length
from antipodes.registry import NAMES, hub_layout

ENDING = ".safetensors"
HEAD = "head"
OPEN_CLIP_CONFIG = "open_clip_config.json"
"""The file by which a folder with a model of open_clip is known."""
PRETRAINED = ("efficientnet-lite0", "minilm")
"""Names of encoders whose weights are in an installed package."""

LOADABLE = (
    f"a run folder, a {ENDING} file, hf:<text model>, timm:<image model>, a folder that holds such a model, or one of "
    f"{', '.join(PRETRAINED)}, whose weights are in packages"
)
"""What can be loaded, for messages."""

Progress = Callable[[int, int], None]
"""A function that is called with the number of inputs that are done, and of all inputs."""


class SideBySide(nn.Module):
    """One or several encoders on the same input, with concatenated features; the module that is exported to ONNX.

    Args:
        encoders: the networks.
        colours: the channels that each network gets: rgb, l or ab.
        heads: the projection head of each network, for embeddings of unit length; none for features.
    """

    def __init__(self, encoders: Sequence[Encoder], colours: Sequence[str], heads: Sequence[nn.Module] = ()) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        self.heads = nn.ModuleList(heads)
        self.colours = list(colours)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the features (B, num_features) of normalised images, tokens or vectors."""
        seen = split_colours(inputs, self.colours)
        parts = [encoder(part) for encoder, part in zip(self.encoders, seen, strict=True)]
        if len(self.heads):
            parts = [F.normalize(head(part), dim=1) for head, part in zip(self.heads, parts, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class LoadedEncoder(nn.Module):
    """An encoder with its preprocessing, in evaluation mode: photos or texts in, features out.

    Args:
        encoders: the network, or several on the same images, whose features are concatenated (CMC's two).
        preprocessing: how images are prepared, one for each network; None for texts and vectors.
        name: the encoder's name in messages.
        heads: the projection heads of the networks; with heads the result is embeddings of unit length.

    Attributes:
        modality: image, text or vector.
        num_features: length of a feature vector, or of an embedding.

    Example:
        >>> from PIL import Image
        >>> encoder = LoadedEncoder([create("resnet8-slim")], [Preprocessing(32)])
        >>> encoder([Image.new("RGB", (60, 40))]).shape
        torch.Size([1, 64])
    """

    def __init__(
        self,
        encoders: Sequence[Encoder],
        preprocessing: Sequence[Preprocessing | None],
        name: str = "encoder",
        heads: Sequence[nn.Module] = (),
    ) -> None:
        super().__init__()
        self.preprocessing = list(preprocessing)
        self.network = SideBySide(encoders, ["rgb" if each is None else each.colour for each in preprocessing], heads)
        self.name = name
        self.modality: str = getattr(encoders[0], "modality", "image")
        lengths = [int(encoder.num_features) for encoder in encoders]
        if heads:
            lengths = [embedding_length(head, length) for head, length in zip(heads, lengths, strict=True)]
        self.num_features = sum(lengths)
        if self.modality == "image" and None in self.preprocessing:
            raise ValueError(
                f"{name} does not say how its images are prepared: load it with preprocessing=Preprocessing(size)"
            )
        self.eval().requires_grad_(False)

    @property
    def encoders(self) -> nn.ModuleList:
        """The networks: one, or CMC's two."""
        return self.network.encoders

    @property
    def size(self) -> int:
        """Height and width of the images that the network gets."""
        return self.image_preprocessing.size

    @property
    def mean(self) -> tuple[float, ...]:
        """The mean that is subtracted from the RGB channels in [0, 1]."""
        return self.image_preprocessing.mean

    @property
    def std(self) -> tuple[float, ...]:
        """The standard deviation by which the channels are divided."""
        return self.image_preprocessing.std

    def forward(self, inputs: Any, batch_size: int = 64) -> Tensor:
        """Return the features (N, num_features) of N inputs, or (num_features,) of a single one; see `embed`."""
        return self.embed(inputs, batch_size)

    @torch.no_grad()
    def embed(self, inputs: Any, batch_size: int = 64, progress: Progress | None = None) -> Tensor:
        """Return the features of a list of inputs, computed batch by batch.

        Args:
            inputs: for images a list of Pillow images or paths, for texts a list of strings, for vectors a tensor
                (N, F); or a single image, path or text.
            batch_size: number of inputs in a batch.
            progress: called after every batch.

        Returns:
            (N, num_features) float32, on the CPU; (num_features,) for a single input that is not in a list.

        Raises:
            ValueError: an image cannot be read (its path is named), or the inputs are of another kind.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if isinstance(inputs, (str, Path)) or hasattr(inputs, "convert"):  # one path, one text or one Pillow image
            return self.embed([inputs], batch_size, progress)[0]
        if not hasattr(inputs, "__len__"):
            raise ValueError(f"inputs must be a list, a path, a text or an image, got {type(inputs).__name__}")
        order, texts = list(range(len(inputs))), self.modality == "text"
        if texts:  # those of similar length share a batch, which is padded to its longest
            order.sort(key=lambda place: len(str(inputs[place])))
        features = torch.empty(len(inputs), self.num_features)
        for start in range(0, len(inputs), batch_size):
            places = order[start : start + batch_size]
            batch = [inputs[place] for place in places] if texts else inputs[start : start + batch_size]
            features[places] = self.features(self.prepare(batch)).float().cpu()
            if progress is not None:
                progress(min(start + batch_size, len(inputs)), len(inputs))
        return features

    def prepare(self, inputs: Sequence[Any] | Tensor) -> Tensor:
        """Turn a list of B inputs into one tensor.

        Returns:
            Images: (B, 3, H, H) uint8, where H is the side they are decoded to. Texts: tokens (B, L) int64. Vectors:
            (B, F) float32. `features` takes it, and onnxruntime its `.numpy()`, with a file of ``antipodes export``.
        """
        if self.modality == "text":
            tokens: Tensor = self.encoders[0].tokenize(list(inputs))  # type: ignore[operator]
            return tokens
        if self.modality == "vector":
            return torch.as_tensor(inputs, dtype=torch.float32)
        return torch.stack([read_square_image(image, self.image_preprocessing.decode or self.size) for image in inputs])

    @torch.no_grad()
    def features(self, batch: Tensor) -> Tensor:
        """Return the features (B, num_features) of the tensor that `prepare` returned, on the encoder's device."""
        parameter = next(self.parameters(), None)
        batch = batch if parameter is None else batch.to(parameter.device)
        if self.modality == "image":
            batch = normalise_images(batch, self.image_preprocessing)
        features: Tensor = self.network(batch)
        return features

    @property
    def image_preprocessing(self) -> Preprocessing:
        """How images are prepared; of several networks, all but the colour is the same.

        Raises:
            ValueError: the encoder is one of texts or vectors.
        """
        preprocessing = self.preprocessing[0]
        if preprocessing is None:
            raise ValueError(f"{self.name} is an encoder of {self.modality}s, which have no size, mean or std")
        return preprocessing


def load(
    path: str | Path,
    tower: str | None = None,
    preprocessing: Preprocessing | None = None,
    embeddings: bool = False,
) -> LoadedEncoder:
    """Load an encoder with its preprocessing.

    Args:
        path: a run folder, an exported ``.safetensors`` file, ``hf:<text model>``, ``timm:<image model>``, a folder in
            Hugging Face's, timm's or open_clip's layout, or the name of an encoder whose weights are in a package
            (``efficientnet-lite0``, ``minilm``).
        tower: the tower whose encoder is loaded, such as ``"text"``; by default the only one, or that of the images.
        preprocessing: how images are prepared; by default as the file says.
        embeddings: return the projection head's embeddings with unit length instead of the encoder's features. The
            embeddings of the images and texts of a CLIP run are in one space.

    A file that names its encoder by a dotted path imports that class: do not load such files from untrusted sources.

    Raises:
        ValueError: the path holds no encoder; the message names it.

    Example:
        >>> encoder = load("runs/a")  # doctest: +SKIP
        >>> encoder(["one.jpg", "two.jpg"]).shape  # doctest: +SKIP
        torch.Size([2, 512])
    """
    if not isinstance(path, (str, Path)) or not str(path):
        said = "is empty" if path == "" else f"must be a path or a name, got {path!r}"
        raise ValueError(f"what to load {said}: give {LOADABLE}")
    place = Path(path).expanduser()
    if is_open_clip(place):
        return _of_open_clip(place, tower, preprocessing, embeddings)
    if place.is_dir() and hub_layout(place) is None:
        files = files_of_run(place, tower)
    elif place.suffix == ENDING or place.is_file():
        files = [place]
    else:
        if embeddings:
            raise ValueError(f"{path} has no projection head: embeddings are those of a run folder or its files")
        return _pretrained(str(path), preprocessing)
    encoders = [load_backbone(file) for file in files]
    found = [preprocessing or encoder.preprocessing for encoder in encoders]
    heads = [load_head(_head_of(file)) for file in files] if embeddings else []
    return LoadedEncoder(encoders, found, str(path), heads)


def is_open_clip(path: str | Path) -> bool:
    """Return True if a path is a folder with an open_clip model, or a file in one."""
    path = Path(path).expanduser()
    return ((path if path.is_dir() else path.parent) / OPEN_CLIP_CONFIG).is_file() and path.exists()


def read_square_image(image: Any, size: int) -> Tensor:
    """Read one image as (3, size, size) uint8: the shorter side scaled to size, the centre cropped.

    Args:
        image: a path, or an image of any kind that `antipodes.data` accepts.
        size: height and width of the result.

    Raises:
        ValueError: the image cannot be read; the message names the path.
    """
    from antipodes.data.decode import decode_sources, square, to_pillow
    from antipodes.data.image_opening import Source

    if isinstance(image, (str, Path)):
        (decoded,) = decode_sources([Source(str(Path(image).expanduser()))], size, keep=True)
        if decoded.pixels is None:
            raise ValueError(f"{image} cannot be read as an image ({decoded.problem})")
        return torch.from_numpy(decoded.pixels.copy())
    return torch.from_numpy(square(to_pillow(image), size).copy())


def normalise_images(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    """Turn images (B, 3, H, W) uint8 into normalised RGB (B, 3, size, size) floats."""
    mean, std = (
        torch.tensor(part, device=images.device).view(3, 1, 1) for part in (preprocessing.mean, preprocessing.std)
    )
    pixels = images.float() / 255
    if pixels.shape[2:] != (preprocessing.size, preprocessing.size):
        pixels = F.interpolate(pixels, (preprocessing.size,) * 2, mode="bilinear", antialias=True).clamp_(0, 1)
    return (pixels - mean) / std


def split_colours(images: Tensor, colours: Sequence[str]) -> list[Tensor]:
    """Return the channels of images (B, 3, H, W) for each encoder.

    "rgb" is the images themselves; "l" (B, 1, H, W) and "ab" (B, 2, H, W) are channels of Lab, for RGB in [0, 1].
    """
    if all(colour == "rgb" for colour in colours):
        return [images] * len(colours)
    from antipodes.encoders.encoder import rgb_to_lab

    lab = rgb_to_lab(images)  # one conversion for all encoders
    return [{"rgb": images, "l": lab[:, :1], "ab": lab[:, 1:]}[colour] for colour in colours]


def files_of_run(folder: Path, tower: str | None) -> list[Path]:
    """Find the files of a run with the encoder of a tower: one, or CMC's two.

    Raises:
        ValueError: there is no such file, or there are several and no tower is named.
    """
    if tower is not None:
        for name in (f"encoder-{tower}", tower):
            if (folder / f"{name}{ENDING}").is_file():
                return [folder / f"{name}{ENDING}"]
    elif os.path.lexists(only := folder / f"encoder{ENDING}"):  # what is no file is refused when it is read
        return [only]
    files = [file for file in sorted(folder.glob(f"*{ENDING}")) if not file.stem.startswith(HEAD)]
    found = {file.stem.removeprefix("encoder-"): file for file in files}
    if tower is None and set(found) == {"ab", "l"}:
        return [found["l"], found["ab"]]
    if tower is None and "image" in found:
        return [found["image"]]
    if not found:
        raise ValueError(
            f"{folder} has no encoder{ENDING}: give the folder of a finished run; antipodes train writes it at the end"
        )
    wanted = "more than one encoder: choose by tower" if tower is None else f"no encoder of tower {tower!r}"
    raise ValueError(f"{folder} has {wanted}, of {', '.join(found)}")


def _head_of(encoder: Path) -> Path:
    """Return the file of an encoder's head in the same folder: head-text for encoder-text."""
    file = encoder.with_name(encoder.name.replace("encoder", HEAD, 1))
    if file == encoder or not file.is_file():
        raise ValueError(f"there is no projection head next to {encoder}: a run writes {HEAD}{ENDING} when it ends")
    return file


def _of_open_clip(
    place: Path, tower: str | None, preprocessing: Preprocessing | None, embeddings: bool
) -> LoadedEncoder:
    """Load one tower of a model with open_clip's names; its projection is the head."""
    if tower not in (None, "image", "text"):
        raise ValueError(f"{place} has no encoder of tower {tower!r}, of image, text")
    from antipodes.encoders.open_clip import load_open_clip

    towers = load_open_clip(place)
    if tower == "text":
        return LoadedEncoder([towers.text], [None], str(place), [towers.text_projection] if embeddings else [])
    found = preprocessing or towers.image.preprocessing
    return LoadedEncoder([towers.image], [found], str(place), [towers.image_projection] if embeddings else [])


def _pretrained(name: str, preprocessing: Preprocessing | None) -> LoadedEncoder:
    """Load an encoder by its name, with pretrained weights."""
    if name not in PRETRAINED and not name.startswith(("timm:", "hf:")) and hub_layout(Path(name).expanduser()) is None:
        what = "has no weights of its own" if name in NAMES["encoder"] else "does not exist"
        raise ValueError(f"{name} {what}: give {LOADABLE}")
    encoder = create(name, pretrained=True)
    return LoadedEncoder([encoder], [preprocessing or getattr(encoder, "preprocessing", None)], name)
