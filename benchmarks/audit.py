"""How well `antipodes audit` finds injected duplicates, compared with fastdup, cleanvision, perceptual hashes.

Photos of a zip file are laid out in a folder; some get a second version: copied, recompressed, mirrored, brighter,
cropped, or all of that. Every finder answers with pairs of files. Recall counts the injected pairs it found, by kind of
change; precision counts, of all pairs it named, those that were injected (a photo that was a duplicate in the zip file
already counts against everybody).

    python benchmarks/audit.py flickr8k_128.zip [--python fastdup=/path/to/python] [--originals 400] [--each 40]

A finder that is not installed is left out; one that needs another environment runs in its interpreter. The output ends
with one line of JSON: finder -> recall and precision.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

Pairs = set[tuple[str, str]]


def make(archive: str, folder: Path, originals: int, each: int, seed: int) -> dict[tuple[str, str], str]:
    """Lay out the photos; returns the injected pairs with their kind of change."""
    from PIL import Image, ImageEnhance, ImageOps

    rng = np.random.default_rng(seed)

    def crop(image: Image.Image) -> Image.Image:
        width, height = int(0.8 * image.width), int(0.8 * image.height)
        x, y = int(rng.integers(image.width - width + 1)), int(rng.integers(image.height - height + 1))
        return image.crop((x, y, x + width, y + height))

    def bright(image: Image.Image) -> Image.Image:
        return ImageEnhance.Brightness(image).enhance(1.4 if rng.random() < 0.5 else 0.6)

    changes: dict[str, tuple[Callable[[Image.Image], Image.Image], int]] = {
        "copied": (lambda image: image, 0),
        "recompressed": (lambda image: image, 25),
        "mirrored": (ImageOps.mirror, 90),
        "brightness": (bright, 90),
        "cropped": (crop, 90),
        "all": (lambda image: ImageOps.mirror(bright(crop(image))), 50),
    }
    truth = {}
    with zipfile.ZipFile(archive) as photos:
        names = sorted(name for name in photos.namelist() if name.endswith(".jpg"))
        names = [names[number] for number in rng.permutation(len(names))[:originals]]
        kinds = [kind for kind in changes for _ in range(each)]
        for number, name in enumerate(names):
            data = photos.read(name)
            (folder / f"{number:04d}.jpg").write_bytes(data)
            if number < len(kinds):
                change, quality = changes[kinds[number]]
                other = folder / f"{number:04d}x.jpg"
                if quality:
                    change(Image.open(io.BytesIO(data)).convert("RGB")).save(other, quality=quality)
                else:
                    other.write_bytes(data)
                truth[f"{number:04d}.jpg", other.name] = kinds[number]
    return truth


def ours(folder: Path, encoder: str) -> Pairs:
    import pyarrow.parquet

    from antipodes.cli.audit import main

    with tempfile.TemporaryDirectory() as out:
        main([str(folder), "--out", out, "--encoder", encoder, "--shown", "1", "--json"])
        table = pyarrow.parquet.read_table(Path(out) / "pairs.parquet").to_pylist()
    return {_pair(row["path_a"], row["path_b"]) for row in table if "duplicate" in row["kind"]}


def hashes(folder: Path) -> Pairs:
    import imagehash
    from PIL import Image

    files = sorted(folder.glob("*.jpg"))
    bits = np.stack([imagehash.phash(Image.open(file)).hash.ravel() for file in files])
    near = (bits[:, None] != bits[None]).sum(2) <= 8
    return {_pair(files[a], files[b]) for a, b in np.argwhere(np.triu(near, 1))}


def cleanvision(folder: Path) -> Pairs:
    from cleanvision import Imagelab

    lab = Imagelab(data_path=str(folder))
    lab.find_issues({"exact_duplicates": {}, "near_duplicates": {}}, n_jobs=1, verbose=False)
    sets = [each for kind in ("exact_duplicates", "near_duplicates") for each in lab.info[kind]["sets"]]
    return {_pair(a, b) for each in sets for a in each for b in each if a < b}


def cleanlab(folder: Path) -> Pairs:
    """Datalab's near duplicates, by the vectors of the encoder that the audit uses."""
    import torch
    from cleanlab import Datalab

    import antipodes

    files = sorted(folder.glob("*.jpg"))
    encoder = antipodes.load("efficientnet-lite0")
    with torch.inference_mode():
        parts = [encoder([str(file) for file in files[start : start + 32]]) for start in range(0, len(files), 32)]
    lab = Datalab(data={"row": list(range(len(files)))}, verbosity=0)
    lab.find_issues(features=torch.cat(parts).numpy(), issue_types={"near_duplicate": {}})
    sets = lab.get_issues("near_duplicate")["near_duplicate_sets"]
    return {_pair(files[row], files[other]) for row, others in enumerate(sets) for other in others}


def fastdup(folder: Path) -> Pairs:
    import fastdup as package

    with tempfile.TemporaryDirectory() as work:
        finder = package.create(work_dir=work, input_dir=str(folder))
        finder.run(overwrite=True, print_summary=False, verbose=False)  # its default similarity threshold, 0.9
        table = finder.similarity()
    pairs = zip(table["filename_from"], table["filename_to"], strict=True)
    return {_pair(a, b) for a, b in pairs}


FINDERS: dict[str, Callable[[Path], Pairs]] = {
    "antipodes": lambda folder: ours(folder, "efficientnet-lite0"),
    "antipodes, patches": lambda folder: ours(folder, "patches"),
    "fastdup": fastdup,
    "cleanlab": cleanlab,
    "cleanvision": cleanvision,
    "phash": hashes,
}


def _pair(a: object, b: object) -> tuple[str, str]:
    first, second = sorted((Path(str(a)).name, Path(str(b)).name))
    return first, second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", help="zip file of .jpg photos, or with --answer the folder")
    parser.add_argument("--originals", type=int, default=400)
    parser.add_argument("--each", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--python", action="append", default=[], metavar="FINDER=PATH", help="interpreter of a finder")
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    call = parser.parse_args()
    if call.answer:
        found = FINDERS[call.answer](Path(call.archive))
        print("\n" + json.dumps(sorted(found)))
        return
    interpreters = dict(given.split("=", 1) for given in call.python)
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        truth = make(call.archive, Path(name), call.originals, call.each, call.seed)
        kinds = list(dict.fromkeys(truth.values()))
        print("| finder |", " | ".join(kinds), "| recall | precision |")
        print("|---|" + "---|" * (len(kinds) + 2))
        for finder in FINDERS:
            command = [interpreters.get(finder, sys.executable), __file__, name, "--answer", finder]
            answer = subprocess.run(command, capture_output=True, text=True)
            if answer.returncode:
                print(f"{finder} is left out: {answer.stderr.strip().splitlines()[-1]}", file=sys.stderr)
                continue
            found = {(a, b) for a, b in json.loads(answer.stdout.strip().splitlines()[-1])}
            hit = {kind: np.mean([pair in found for pair in truth if truth[pair] == kind]) for kind in kinds}
            right = sum(pair in truth for pair in found)
            results[finder] = {"recall": right / len(truth), "precision": right / len(found) if found else 1.0}
            cells = [f"{value:.2f}" for value in (*hit.values(), *results[finder].values())]
            print(f"| {finder} |", " | ".join(cells), "|", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
