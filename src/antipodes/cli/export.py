"""`antipodes export`: the encoder of a run for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from antipodes.parsing import FORCE, ArgumentParser
from antipodes.runs.exporting import Exported, Upload, write_formats

DESCRIPTION = """Write the encoder of a run for other programs, with the preprocessing of its images. RUN may also be an
exported .safetensors file, or an encoder with weights, such as hf:sentence-transformers/all-MiniLM-L6-v2."""


def main(arguments: list[str]) -> None:
    """Parse the call, write what is asked for, print what was written."""
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
        help="Write a .pkl with detectron2's names, and configurations for VOC and COCO next to it.",
    )
    parser.add_argument(
        "--safetensors",
        type=str | None,
        default=None,
        metavar="FILE",
        help="Write safetensors with torchvision's names, and a model card next to it.",
    )
    parser.add_argument(
        "--open_clip",
        type=str | None,
        default=None,
        metavar="FOLDER",
        help="Write both towers of a CLIP run with linear heads; open_clip loads the folder as local-dir:FOLDER.",
    )
    parser.add_argument(
        "--hugging_face",
        type=str | None,
        default=None,
        metavar="FOLDER",
        help="Write a folder that SentenceTransformer(FOLDER) loads (texts), or timm as local-dir:FOLDER (images).",
    )
    parser.add_argument(
        "--push_to_hub",
        type=str | None,
        default=None,
        metavar="OWNER/NAME",
        help="Upload that folder to Hugging Face, where huggingface_hub is installed and you are logged in.",
    )
    parser.add_argument("--private", action="store_true", help="A new repository there is private.")
    parser.add_argument(
        "--embeddings",
        action="store_true",
        help="What the loss compares, with the head, instead of features: for ONNX and folders of texts.",
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

    formats = ("onnx", "detectron2", "safetensors", "open_clip", "hugging_face")
    asked = {name: Path(call[name]) for name in formats if call[name]}
    upload = Upload(call.push_to_hub, call.private) if call.push_to_hub else None
    done = write_formats(call.run, asked, call.embeddings, call.tower, call.checkpoint, call.force, upload)
    if call.json:
        print(json.dumps({name: _facts(each) for name, each in done.items()}))
        return
    for each in done.values():
        print(each.sentence)


def _facts(exported: Exported) -> dict[str, Any]:
    """What was written, for scripts."""
    difference = {} if exported.difference is None else {"difference": exported.difference}
    return {"files": list(exported.files), **difference, "sentence": exported.sentence}
