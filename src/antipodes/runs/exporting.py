"""Export of a run's encoders: to the files that a run writes at its end, and to the formats of other programs.

`antipodes.export` checks every format before the first file is written.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import nn

from antipodes.data import Samples
from antipodes.encoders.detectron2 import detectron2_files, save_detectron2, to_detectron2
from antipodes.encoders.encoder import Encoder, Preprocessing
from antipodes.encoders.export import export_backbone, export_head
from antipodes.encoders.hub_folder import CARD, hub_files, save_hub_folder
from antipodes.encoders.hub_folder import push_to_hub as upload_folder
from antipodes.encoders.loading import LoadedEncoder, load
from antipodes.encoders.onnx import export_onnx, require_onnx
from antipodes.encoders.open_clip import (
    CONFIG_FILE,
    VOCABULARY_FILE,
    WEIGHTS_FILE,
    TwoTowers,
    save_open_clip,
    to_open_clip,
)
from antipodes.encoders.text_transformer import TextTransformer
from antipodes.files import is_marked, refuse_foreign
from antipodes.methods import Method
from antipodes.progress import working
from antipodes.runs.folder import Run
from antipodes.runs.opening import open_method
from antipodes.runs.views import build_augmentation


def export_encoders(method: Method, data: Samples, folder: Path, card: Mapping[str, str] | None = None) -> list[Path]:
    """Write every encoder of a method with its head and preprocessing; return the encoders' files.

    Args:
        method: The method with the encoders.
        data: The training data, which determines the size of images.
        folder: The folder to write to.
        card: Facts for a model card next to each file; None for no card.
    """
    written = []
    for name, encoder in method.exports().items():
        file = folder / f"{name}.safetensors"
        tower = _tower(method, name)
        export_backbone(encoder, file, run_preprocessing(method, tower, data), card)
        with suppress(ValueError):  # a user's own head, which only the checkpoint can hold
            export_head(method.network[tower].head, folder / f"{name.replace('encoder', 'head', 1)}.safetensors")
        written.append(file)
    return written


def run_preprocessing(method: Method, tower: str, data: Samples) -> Preprocessing | None:
    """Return how a tower's images are prepared in this run; None for a tower of texts or vectors."""
    plan = method.network.plans[tower]
    if plan.modality != "image" or not data.image_size:
        return None
    size = data.image_size
    decode: int = getattr(data, "decode", size)
    recipe = build_augmentation({"name": "plain", **method.pixels}, size, method.normalised)
    colours: dict[int, Literal["rgb", "l", "ab"]] = {1: "l", 2: "ab", 3: "rgb"}
    return Preprocessing(size, recipe.mean, recipe.std, colours[plan.channels], None if decode == size else decode)


def two_towers(method: Method) -> TwoTowers:
    """Return the image and text tower of a method with their linear heads and the temperature, for open_clip.

    Raises:
        ValueError: the method does not have exactly one image and one text tower, or a head is not linear.
    """
    towers = {method.network.plans[name].modality: name for name in method.network.names()}
    if sorted(towers) != ["image", "text"] or len(method.network.names()) != 2:
        raise ValueError("open_clip's models have a tower for images and one for texts: train with --method clip")
    image, text = (method.network[towers[modality]] for modality in ("image", "text"))
    loss_fn: Any = next(iter(method.directions.values()))
    temperature: Any = loss_fn.temperature  # a number, or a module that learns the number
    value = float(temperature.current() if hasattr(temperature, "current") else temperature)
    bias = getattr(loss_fn, "bias", None)
    return TwoTowers(
        cast(Encoder, image.encoder),
        cast(TextTransformer, text.encoder),
        _linear(image.head),
        _linear(text.head),
        torch.tensor(-math.log(value)),
        None if bias is None else bias.detach().clone(),
    )


def _linear(head: nn.Module) -> nn.Linear:
    """Return the only layer of a linear head; refuse other heads."""
    layers = list(head.children())
    if len(layers) != 1 or not isinstance(layers[0], nn.Linear):
        raise ValueError("open_clip's projections are one linear layer: train with --head.kind linear")
    return layers[0]


def card_facts(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts about the training that a model card shows."""
    policy = config["negatives"]["name"]
    return {
        "method": config["method"]["name"] + ("" if policy == "none" else f" + {policy} ({config['treatment']})"),
        "data": Path(str(config["data"]["name"])).name,  # of a folder only the name, not the path
        "training": f"{config['epochs']} epochs, batches of {config['batch_size']}, seed {config['seed']}",
    }


def _tower(method: Method, file_name: str) -> str:
    """Return the tower whose encoder is in a file of `Method.exports`."""
    named = file_name.removeprefix("encoder-")
    return named if named in method.network.names() else method.network.names()[0]


Checkpoint = Literal["last", "best"]


@dataclass(frozen=True)
class Upload:
    """A repository of Hugging Face: owner/name, and whether it is private if it is new."""

    repo: str
    private: bool = False


@dataclass(frozen=True)
class Exported:
    """One format of an encoder that was written.

    Args:
        path: the file or folder that was asked for.
        files: all files that were written.
        sentence: what was written, for people.
        difference: the largest difference of ONNX's features to torch's; None for other formats.
    """

    path: Path
    files: tuple[str, ...]
    sentence: str
    difference: float | None = None


def export(
    run: str | Path,
    *,
    onnx: str | Path | None = None,
    safetensors: str | Path | None = None,
    detectron2: str | Path | None = None,
    open_clip: str | Path | None = None,
    hugging_face: str | Path | None = None,
    push_to_hub: str | None = None,
    private: bool = False,
    embeddings: bool = False,
    tower: str | None = None,
    checkpoint: Checkpoint | None = None,
    force: bool = False,
) -> dict[str, Path]:
    """Write the encoder of a run for other programs, with the preprocessing of its images.

    Args:
        run: folder of a run, an exported .safetensors file, or the name of an encoder that comes with weights.
        onnx: file for ONNX, checked by onnxruntime.
        safetensors: file for safetensors with torchvision's names; a model card is written next to it.
        detectron2: file (.pkl) with detectron2's names; configurations for VOC and COCO are written next to it.
        open_clip: folder for both towers of a CLIP run with linear heads, under open_clip's names.
        hugging_face: folder that sentence-transformers (texts) or timm (images) loads.
        push_to_hub: repository of Hugging Face, owner/name, to which that folder is uploaded.
        private: a new repository is private.
        embeddings: what the loss compares, with the head, instead of features; for ONNX and folders of texts.
        tower: which encoder, where a run has several.
        checkpoint: weights of this checkpoint instead of those at the end of training.
        force: replace files that are not an earlier export.

    Returns:
        The file or folder of every format that was asked for.

    Raises:
        ValueError: if no format is asked for, or one cannot be written; nothing is written then.
    """
    formats = {"onnx": onnx, "detectron2": detectron2, "safetensors": safetensors, "open_clip": open_clip}
    formats["hugging_face"] = hugging_face
    asked = {name: Path(path) for name, path in formats.items() if path}
    upload = None if push_to_hub is None else Upload(push_to_hub, private)
    done = write_formats(run, asked, embeddings, tower, checkpoint, force, upload)
    return {name: each.path for name, each in done.items()}


def write_formats(
    run: str | Path,
    asked: dict[str, Path],
    embeddings: bool = False,
    tower: str | None = None,
    checkpoint: Checkpoint | None = None,
    force: bool = False,
    upload: Upload | None = None,
) -> dict[str, Exported]:
    """Do the work of `export`, and describe every format that was written.

    Args:
        run: as in `export`.
        asked: format -> file or folder.
        embeddings: as in `export`.
        tower: as in `export`.
        checkpoint: as in `export`.
        force: as in `export`.
        upload: where to upload the folder `hugging_face`.
    """
    if upload is not None and "hugging_face" not in asked:
        raise ValueError(
            f"--push_to_hub {upload.repo} uploads a folder: add --hugging_face FOLDER, where it is written"
        )
    if not asked:
        raise ValueError(
            "say what to write: --onnx FILE, --detectron2 FILE, --safetensors FILE, --open_clip FOLDER or "
            "--hugging_face FOLDER"
        )
    wanted = {name: asked[name] for name in WRITERS if name in asked}
    for name, file in wanted.items():
        for each in FILES[name](file) if not file.is_dir() else [file]:
            refuse_foreign(each, f"--{name}", is_marked, force)
        if not file.absolute().parent.is_dir():
            raise ValueError(f"--{name} {file}: the folder {file.parent} does not exist, make it first")
    if "onnx" in wanted:
        require_onnx()
    folder, hub = asked.get("open_clip"), asked.get("hugging_face")
    towers = None
    if hub is not None:
        _refuse_other_folder(hub, force)
    if folder is not None:
        _refuse_other_model(folder, force)
        towers = open_towers(str(run), checkpoint)
    done: dict[str, Exported] = {}
    if wanted or hub is not None:
        loaded = open_run_encoder(str(run), tower, checkpoint, embeddings)
        if "detectron2" in wanted:
            to_detectron2(*single(loaded, "--detectron2"))
        if hub is not None:
            hub_files(loaded)  # refuses before anything is written
        done = {name: WRITERS[name](loaded, file) for name, file in wanted.items()}
    if hub is not None:
        written = save_hub_folder(loaded, hub, _facts_of(run))
        library = "sentence-transformers" if loaded.modality == "text" else "timm"
        sentence = f"{hub}: a folder for {library}, {_shape(loaded)}"
        if upload is not None:
            with working(f"uploading to {upload.repo}"):
                sentence += f"; uploaded to {upload_folder(hub, upload.repo, private=upload.private)}"
        done["hugging_face"] = Exported(hub, tuple(map(str, written)), sentence)
    if towers is not None and folder is not None:
        save_open_clip(towers, str(folder))
        sentence = f"{folder}: two towers under open_clip's names, for local-dir:{folder}"
        done["open_clip"] = Exported(folder, (str(folder),), sentence)
    return done


def open_run_encoder(
    run: str, tower: str | None, checkpoint: Checkpoint | None, embeddings: bool = False
) -> LoadedEncoder:
    """Return the encoder that a run exported at its end, or a checkpoint's: if asked for, or if it has not ended."""
    folder = Path(run)
    if not (folder / "config.yaml").is_file() or (checkpoint is None and any(folder.glob("encoder*.safetensors"))):
        return load(run, tower, embeddings=embeddings)
    method, data = open_method(Run.open(run), checkpoint or "last")
    with tempfile.TemporaryDirectory() as temporary:
        export_encoders(method, data, Path(temporary))
        loaded = load(temporary, tower, embeddings=embeddings)
    loaded.name = run
    return loaded


def open_towers(run: str, checkpoint: Checkpoint | None) -> TwoTowers:
    """Return both towers of a CLIP run for open_clip; refuse other runs before anything is written."""
    method, data = open_method(Run.open(run), checkpoint or "last")
    towers = two_towers(method)
    towers.image.preprocessing = run_preprocessing(method, "image", data)
    to_open_clip(towers)
    return towers


def single(loaded: LoadedEncoder, what: str) -> tuple[Encoder, Preprocessing]:
    """Return the one image encoder that a format can hold."""
    preprocessing = loaded.preprocessing[0]
    if len(loaded.encoders) > 1:
        raise ValueError(f"{what} holds one encoder and {loaded.name} has two: choose one with --tower")
    if preprocessing is None:
        raise ValueError(f"{what} is for encoders of images, and this one takes {loaded.modality}s")
    encoder: Encoder = loaded.encoders[0]  # type: ignore[assignment]
    return encoder, preprocessing


def write_onnx(loaded: LoadedEncoder, file: Path) -> Exported:
    """Write ONNX and measure its largest difference to torch."""
    with working(f"writing {file}"):
        difference = export_onnx(loaded, file)
    sentence = f"{file}: ONNX, {_shape(loaded)}; features differ from torch's by at most {difference:.1e}"
    return Exported(file, (str(file),), sentence, difference)


def write_detectron2(loaded: LoadedEncoder, file: Path) -> Exported:
    """Write detectron2's weights and configurations."""
    files = save_detectron2(*single(loaded, "--detectron2"), file)
    others = " and ".join(path.name for path in files[1:])
    sentence = f"{file}: detectron2's names, RGB (not BGR), statistics of the pixels inside; next to it {others}"
    return Exported(file, tuple(str(path) for path in files), sentence)


def write_safetensors(loaded: LoadedEncoder, file: Path) -> Exported:
    """Write safetensors with a model card."""
    if len(loaded.encoders) > 1:
        raise ValueError(f"--safetensors holds one encoder and {loaded.name} has two: choose one with --tower")
    export_backbone(loaded.encoders[0], file, loaded.preprocessing[0], card={})
    card = file.with_suffix(".md")
    sentence = f"{file}: safetensors, {_shape(loaded)}; next to it the model card {card.name}"
    return Exported(file, (str(file), str(card)), sentence)


WRITERS = {"onnx": write_onnx, "detectron2": write_detectron2, "safetensors": write_safetensors}
FILES: dict[str, Callable[[Path], list[Path]]] = {
    "onnx": lambda file: [file],
    "detectron2": detectron2_files,
    "safetensors": lambda file: [file, file.with_suffix(".md")],
}
"""The files that a writer writes, by the file that a call names."""


def _refuse_other_model(folder: Path, force: bool) -> None:
    """Refuse a folder that holds a model of open_clip which this package did not write.

    Its weights carry the mark; the other files belong to them.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--open_clip {folder} is a file: name a folder")
    weights = folder / WEIGHTS_FILE
    refuse_foreign(weights, "--open_clip", is_marked, force)
    for name in (CONFIG_FILE, VOCABULARY_FILE):
        refuse_foreign(folder / name, "--open_clip", lambda _: weights.is_file(), force)


def _refuse_other_folder(folder: Path, force: bool) -> None:
    """Refuse a folder with a model that this package did not write: our card carries the mark."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--hugging_face {folder} is a file: name a folder")
    if not folder.absolute().parent.is_dir():
        raise ValueError(f"--hugging_face {folder}: the folder {folder.parent} does not exist, make it first")
    card = folder / CARD
    if folder.is_dir() and any(folder.iterdir()) and not card.is_file():
        refuse_foreign(folder / "config.json", "--hugging_face", lambda _: False, force)
    refuse_foreign(card, "--hugging_face", is_marked, force)


def _facts_of(run: str | Path) -> dict[str, str]:
    """Return the facts of a run for a model card; none of other encoders."""
    return card_facts(Run.open(run).config) if (Path(run) / "config.yaml").is_file() else {}


def _shape(loaded: LoadedEncoder) -> str:
    images = f" of {loaded.size} x {loaded.size} images" if loaded.modality == "image" else f" of {loaded.modality}s"
    return f"{loaded.num_features} features{images}"
