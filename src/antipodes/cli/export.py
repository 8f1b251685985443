"""`antipodes export`: the encoder of a run for other programs."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from antipodes.cli.parser import FORCE, ArgumentParser
from antipodes.encoders.detectron2 import detectron2_files, save_detectron2, to_detectron2
from antipodes.encoders.encoder import Encoder, Preprocessing
from antipodes.encoders.export import export_backbone
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
from antipodes.files import is_marked, refuse_foreign
from antipodes.runs.exporting import export_encoders, run_preprocessing, two_towers
from antipodes.runs.folder import Run
from antipodes.runs.opening import open_method

DESCRIPTION = """Write the encoder of a run for other programs, with how its images are made ready. RUN may also be an
exported .safetensors file, or the name of an encoder that comes with weights, such as efficientnet-lite0."""


def main(arguments: list[str]) -> None:
    """Parse, check everything that is asked for, then write it."""
    parser = ArgumentParser(prog="antipodes export", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("run", metavar="RUN", help="Folder that antipodes train wrote.")
    parser.add_argument(
        "--onnx", type=str | None, default=None, metavar="FILE", help="Write ONNX, checked by onnxruntime."
    )
    parser.add_argument(
        "--detectron2",
        type=str | None,
        default=None,
        metavar="FILE",
        help="Write a .pkl with detectron2's names, and configurations for VOC and COCO beside it.",
    )
    parser.add_argument(
        "--safetensors",
        type=str | None,
        default=None,
        metavar="FILE",
        help="Write safetensors with torchvision's names, and a model card beside it.",
    )
    parser.add_argument(
        "--open_clip",
        type=str | None,
        default=None,
        metavar="FOLDER",
        help="Write both towers of a CLIP run with linear heads; open_clip loads the folder as local-dir:FOLDER.",
    )
    parser.add_argument(
        "--embeddings", action="store_true", help="ONNX of what the loss compares, with the head, instead of features."
    )
    parser.add_argument("--tower", type=str | None, default=None, help="Which encoder, where a run has several: text.")
    parser.add_argument(
        "--checkpoint",
        type=Literal["last", "best"] | None,
        default=None,
        help="Weights of this checkpoint instead of those at the end of training.",
    )
    parser.add_argument("--force", action="store_true", help=FORCE)
    parser.add_argument("--json", action="store_true", help="Print JSON instead of sentences.")
    call = parser.parse_args(arguments)

    wanted = {name: call[name] for name in WRITERS if call[name]}
    if not wanted and not call.open_clip:
        raise ValueError("say what to write: --onnx FILE, --detectron2 FILE, --safetensors FILE or --open_clip FOLDER")
    for name, file in wanted.items():
        for each in FILES[name](Path(file)) if not Path(file).is_dir() else [Path(file)]:
            refuse_foreign(each, f"--{name}", is_marked, call.force)
        if not Path(file).absolute().parent.is_dir():
            raise ValueError(f"--{name} {file}: the folder {Path(file).parent} does not exist, make it first")
    if "onnx" in wanted:
        require_onnx()
    if call.open_clip:
        _refuse_other_model(Path(call.open_clip), call.force)
    towers = open_towers(call.run, call.checkpoint) if call.open_clip else None
    done: dict[str, dict[str, Any]] = {}
    if wanted:
        loaded = open_encoder(call.run, call.tower, call.checkpoint, call.embeddings)
        if "detectron2" in wanted:
            to_detectron2(*single(loaded, "--detectron2"))
        done = {name: WRITERS[name](loaded, Path(file)) for name, file in wanted.items()}
    if towers is not None:
        save_open_clip(towers, call.open_clip)
        done["open_clip"] = {
            "files": [call.open_clip],
            "sentence": f"{call.open_clip}: two towers under open_clip's names, for local-dir:{call.open_clip}",
        }
    if call.json:
        print(json.dumps(done))
    for facts in done.values() if not call.json else ():
        print(facts["sentence"])


def open_encoder(
    run: str, tower: str | None, checkpoint: Literal["last", "best"] | None, embeddings: bool = False
) -> LoadedEncoder:
    """The encoder that a run exported when it ended; of a checkpoint, or of a run that has not ended, from there."""
    folder = Path(run)
    if not (folder / "config.yaml").is_file() or (checkpoint is None and any(folder.glob("encoder*.safetensors"))):
        return load(run, tower, embeddings=embeddings)
    method, data = open_method(Run.open(run), checkpoint or "last")
    with tempfile.TemporaryDirectory() as temporary:
        export_encoders(method, data, Path(temporary))
        loaded = load(temporary, tower, embeddings=embeddings)
    loaded.name = run
    return loaded


def open_towers(run: str, checkpoint: Literal["last", "best"] | None) -> TwoTowers:
    """Both towers of a CLIP run as open_clip has them; refuses others before anything is written."""
    method, data = open_method(Run.open(run), checkpoint or "last")
    towers = two_towers(method)
    towers.image.preprocessing = run_preprocessing(method, "image", data)
    to_open_clip(towers)
    return towers


def single(loaded: LoadedEncoder, what: str) -> tuple[Encoder, Preprocessing]:
    """The one image encoder that a format can hold."""
    preprocessing = loaded.preprocessing[0]
    if len(loaded.encoders) > 1:
        raise ValueError(f"{what} holds one encoder and {loaded.name} has two: choose one with --tower")
    if preprocessing is None:
        raise ValueError(f"{what} is for encoders of images, and this one sees {loaded.modality}s")
    encoder: Encoder = loaded.encoders[0]  # type: ignore[assignment]
    return encoder, preprocessing


def write_onnx(loaded: LoadedEncoder, file: Path) -> dict[str, Any]:
    """ONNX, with the largest difference to torch."""
    with working(f"writing {file}"):
        difference = export_onnx(loaded, file)
    sentence = f"{file}: ONNX, {_shape(loaded)}; features differ from torch's by at most {difference:.1e}"
    return {"files": [str(file)], "difference": difference, "sentence": sentence}


def write_detectron2(loaded: LoadedEncoder, file: Path) -> dict[str, Any]:
    """detectron2's weights and configurations."""
    files = save_detectron2(*single(loaded, "--detectron2"), file)
    others = " and ".join(path.name for path in files[1:])
    sentence = f"{file}: detectron2's names, RGB (not BGR), statistics of the pixels inside; beside it {others}"
    return {"files": [str(path) for path in files], "sentence": sentence}


def write_safetensors(loaded: LoadedEncoder, file: Path) -> dict[str, Any]:
    """Safetensors with a model card."""
    if len(loaded.encoders) > 1:
        raise ValueError(f"--safetensors holds one encoder and {loaded.name} has two: choose one with --tower")
    export_backbone(loaded.encoders[0], file, loaded.preprocessing[0], card={})
    card = file.with_suffix(".md")
    sentence = f"{file}: safetensors, {_shape(loaded)}; beside it the model card {card.name}"
    return {"files": [str(file), str(card)], "sentence": sentence}


WRITERS = {"onnx": write_onnx, "detectron2": write_detectron2, "safetensors": write_safetensors}
FILES: dict[str, Callable[[Path], list[Path]]] = {
    "onnx": lambda file: [file],
    "detectron2": detectron2_files,
    "safetensors": lambda file: [file, file.with_suffix(".md")],
}
"""What the writers write, given the file that a call names."""


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


def _shape(loaded: LoadedEncoder) -> str:
    images = f" of {loaded.size} x {loaded.size} images" if loaded.modality == "image" else f" of {loaded.modality}s"
    return f"{loaded.num_features} features{images}"


@contextmanager
def working(title: str) -> Iterator[None]:
    """A turning wheel on a terminal's standard error that goes away when the work is done."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(file=sys.stderr).status(title):
        yield
