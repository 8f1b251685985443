"""`antipodes pictures`: what a run learned, as images for a report."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from antipodes.evaluation.pictures import COMPARED, PICTURES, draw_compared_pictures, draw_pictures
from antipodes.files import is_marked, refuse_foreign
from antipodes.parsing import FORCE, ArgumentParser
from antipodes.runs.folder import Run
from antipodes.seeding import check_seed

DESCRIPTION = """Draw a finished run: its thresholds against the true quantiles, the share it flagged and how right that
was over epochs, images with what they flag, a map of the features, and maps of several epochs if the run was trained
with --snapshot_every. Thresholds and flags are those of augmented views, as in training and in the false-negatives
protocol. Several runs of the same data are drawn in one picture: maps of their features, and what they flag for the
same anchors. What does not apply to the run is left out, with the reason. Needs matplotlib: pip install
antipodes[plots]."""


def main(arguments: list[str]) -> None:
    """Parse, draw, say what was written."""
    parser = ArgumentParser(prog="antipodes pictures", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=str, help="Folders that antipodes train wrote.")
    parser.add_argument(
        "--out",
        type=str | None,
        default=None,
        help="Folder of the pictures; RUN/pictures of the first run if not given.",
    )
    parser.add_argument(
        "--data", type=str | None, default=None, metavar="PATH", help="Where the runs' data is now, if it has moved."
    )
    parser.add_argument("--anchors", type=int, default=8, help="Rows in the grid of flagged images.")
    parser.add_argument("--format", type=Literal["png", "svg", "pdf"], default="png", help="Of the files.")
    parser.add_argument("--seed", type=int, default=0, help="Of the choice of anchors and samples, and of their views.")
    parser.add_argument("--force", action="store_true", help=FORCE)
    call = parser.parse_args(arguments)

    check_seed(call.seed)
    runs = [Run.open(folder, call.data) for folder in call.runs]
    folder = runs[0].folder / "pictures" if call.out is None else Path(call.out)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: --out names a folder")
    for name in PICTURES if len(runs) == 1 else COMPARED:
        refuse_foreign(folder / f"{name}.{call.format}", "--out", is_marked, call.force)
    options = (folder, call.anchors, call.format, call.seed)
    for picture in draw_pictures(runs[0], *options) if len(runs) == 1 else draw_compared_pictures(runs, *options):
        print(f"no {picture.name}: {picture.reason}" if picture.file is None else picture.file, flush=True)
