"""How well and how fast `antipodes audit` finds injected copies, compared with fastdup, cleanvision and others.

Photos of a zip file (or drawn scenes, without one) are laid out in a folder, or texts of a table in a file; some get a
second version. Which ones, and every number of a change, are drawn by the seed. The bounds of the audit were not chosen
on the last three kinds of changes. Every finder gets its defaults, and answers with pairs.

- Recall: the share of the injected pairs that a finder names, by kind of change.
- Precision: the share of the named pairs that were injected. Pairs of `audit_same.csv`, which a person calls the same,
  count neither for nor against a finder; all other pairs that were not injected count as wrong.
- Time: processor seconds of the finder's process and of those that it starts, from its import to its answer, nothing
  cached, by sample; and seconds by the clock, which depend on what else the machine does.

    python benchmarks/audit.py [../shared/data/flickr8k_128.zip] [--originals 1320] [--each 40]
    python benchmarks/audit.py ../shared/data/clinc150.csv.gz
        [--python fastdup=/path/to/python] [--only 'antipodes;fastdup'] [--wrong wrong.csv]

A finder that is not installed is left out, with the reason; one that needs another environment runs in its interpreter.
The last line of the output is JSON: finder -> recall, precision, and processor time relative to fastdup's (photos) or
semhash's (texts).
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFont, ImageOps

Pairs = set[tuple[str, str]]
Rng = np.random.Generator
ROOT = Path(__file__).parents[1]
SAME = Path(__file__).with_name("audit_same.csv")


def crop(image: Image.Image, share: float, rng: Rng) -> Image.Image:
    """A part of a photo with this share of both sides."""
    width, height = int(share * image.width), int(share * image.height)
    x, y = int(rng.integers(image.width - width + 1)), int(rng.integers(image.height - height + 1))
    return image.crop((x, y, x + width, y + height))


def light(image: Image.Image, rng: Rng) -> Image.Image:
    """A brighter or darker photo."""
    return ImageEnhance.Brightness(image).enhance(float(rng.choice([rng.uniform(0.6, 0.8), rng.uniform(1.2, 1.4)])))


def barred(image: Image.Image, rng: Rng) -> Image.Image:
    """A photo with a watermark's bar across, of a tenth to a fifth of its height."""
    image, tall = image.copy(), int(image.height * rng.uniform(0.1, 0.2))
    top = int(rng.integers(image.height - tall))
    ImageDraw.Draw(image).rectangle((0, top, image.width, top + tall), fill=(int(rng.integers(200, 256)),) * 3)
    return image


def tilted(image: Image.Image, rng: Rng) -> Image.Image:
    """A photo seen from the side: every corner moves by up to an eighth of the sides."""
    corners = np.array([(0, 0), (0, 1), (1, 1), (1, 0)]) * image.size
    moved = corners + rng.uniform(-0.125, 0.125, (4, 2)) * image.size
    rows, known = [], []
    for (x, y), (u, v) in zip(corners, moved, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        known += [u, v]
    found = np.linalg.solve(np.array(rows), np.array(known))
    return image.transform(image.size, Image.Transform.PERSPECTIVE, tuple(found), Image.Resampling.BICUBIC)


def stuck(image: Image.Image, rng: Rng) -> Image.Image:
    """A photo with a round sticker of stripes, of a third of the shorter side, anywhere on it."""
    image, side = image.copy(), min(image.size) // 3
    stripes = Image.fromarray((np.indices((side, side)).sum(0) // 4 % 2 * 200).astype(np.uint8)).convert("RGB")
    mask = Image.new("L", (side, side), 0)
    ImageDraw.Draw(mask).ellipse((0, 0, side - 1, side - 1), fill=255)
    image.paste(stripes, (int(rng.integers(image.width - side)), int(rng.integers(image.height - side))), mask)
    return image


def written(image: Image.Image, rng: Rng) -> Image.Image:
    """A photo with a line of large letters across, with a dark edge."""
    image, size = image.copy(), int(min(image.size) * rng.uniform(0.15, 0.25))
    place = (image.width // 2, int(image.height * rng.uniform(0.2, 0.8)))
    style = {"fill": "white", "stroke_width": max(1, size // 12), "stroke_fill": "black", "anchor": "mm"}
    ImageDraw.Draw(image).text(place, "SAMPLE", font=ImageFont.load_default(size), **style)
    return image


def bent(image: Image.Image, rng: Rng) -> Image.Image:
    """A photo through a wide lens: straight lines are bent, and the corners move by 4 to 12 % of the sides."""
    strength = float(rng.choice([-1, 1]) * rng.uniform(0.04, 0.12))

    def seen(x: float, y: float) -> tuple[float, float]:
        u, v = 2 * x / image.width - 1, 2 * y / image.height - 1
        grown = 1 + strength * (u * u + v * v)
        return (u * grown + 1) * image.width / 2, (v * grown + 1) * image.height / 2

    across, down = (np.linspace(0, side, 9).round().astype(int).tolist() for side in image.size)
    mesh = [
        ((left, top, right, low), (*seen(left, top), *seen(left, low), *seen(right, low), *seen(right, top)))
        for left, right in itertools.pairwise(across)
        for top, low in itertools.pairwise(down)
    ]
    return image.transform(image.size, Image.Transform.MESH, mesh, Image.Resampling.BICUBIC)


def bordered(image: Image.Image, rng: Rng) -> Image.Image:
    """A photo in a frame of one colour, of a twentieth to an eighth of its width."""
    return ImageOps.expand(image, int(image.width * rng.uniform(0.05, 0.125)), tuple(rng.integers(0, 256, 3).tolist()))


def resized(image: Image.Image, rng: Rng) -> Image.Image:
    """A photo of half to four times the sides."""
    share = float(rng.choice([0.5, 2, 4]))
    return image.resize((int(share * image.width), int(share * image.height)), Image.Resampling.BICUBIC)


def quarter(image: Image.Image, rng: Rng) -> Image.Image:
    """A photo turned by 90, 180 or 270 degrees."""
    return image.rotate(90 * int(rng.integers(1, 4)), expand=True)


def turned(image: Image.Image, rng: Rng) -> Image.Image:
    """A photo turned by 3 to 10 degrees to either side."""
    angle = float(rng.choice([-1, 1]) * rng.uniform(3, 10))
    return image.rotate(angle, Image.Resampling.BICUBIC, expand=bool(rng.integers(2)))


PHOTO_CHANGES: dict[str, Callable[[Image.Image, Rng], Image.Image]] = {
    "copied": lambda image, rng: image,
    "JPEG 15 to 40": lambda image, rng: image,
    "half to four times as large": resized,
    "mirrored": lambda image, rng: ImageOps.mirror(image),
    "brightness": light,
    "grey": lambda image, rng: image.convert("L").convert("RGB"),
    "cropped to 60-80 %": lambda image, rng: crop(image, rng.uniform(0.6, 0.8), rng),
    "turned by 90-270 degrees": quarter,
    "turned by 3-10 degrees": turned,
    "watermark bar": barred,
    "border": bordered,
    "crop, light, mirror": lambda image, rng: ImageOps.mirror(light(crop(image, 0.8, rng), rng)),
    "sticker": stuck,
    "in perspective": tilted,
    "sixteen colours": lambda image, rng: image.quantize(16).convert("RGB"),
    "letters across": written,
    "through a wide lens": bent,
}


def typo(text: str, rng: Rng) -> str:
    """Two neighbouring letters are exchanged."""
    place = int(rng.integers(max(1, len(text) - 1)))
    return text[:place] + text[place : place + 2][::-1] + text[place + 2 :]


def words(text: str, rng: Rng, change: str) -> str:
    """A word is left out, doubled or moved to the front."""
    parts = text.split()
    place = int(rng.integers(len(parts)))
    kept = [*parts[:place], *parts[place + 1 :]]
    return " ".join(
        {"left out": kept, "doubled": [*parts[: place + 1], *parts[place:]], "moved": [parts[place], *kept]}[change]
    )


def joined(text: str, rng: Rng) -> str:
    """The space between two words is lost."""
    parts = text.split()
    place = int(rng.integers(len(parts) - 1))
    return " ".join([*parts[:place], parts[place] + parts[place + 1], *parts[place + 2 :]])


TEXT_CHANGES: dict[str, Callable[[str, Rng], str]] = {
    "copied": lambda text, rng: text,
    "case and white space": lambda text, rng: f" {text.upper()}".replace(" ", "  "),
    "punctuation": lambda text, rng: text.rstrip(".?!") + str(rng.choice([" ...", "!!", " ?!"])),
    "a typo": typo,
    "a word left out": lambda text, rng: words(text, rng, "left out"),
    "a word moved": lambda text, rng: words(text, rng, "moved"),
    "a greeting in front": lambda text, rng: f"{rng.choice(['Hi,', 'Hello there,', 'Please:'])} {text}",
    "a word doubled": lambda text, rng: words(text, rng, "doubled"),
    "without vowel marks, with digits": lambda text, rng: text.replace("o", "0").replace("i", "1"),
    "two words joined": joined,
}


def photos(archive: Path | None, count: int, rng: Rng) -> Iterator[tuple[str, bytes]]:
    """Photos of a zip file in a random order, or drawn scenes: name and content."""
    if archive is None:
        sys.path.insert(0, str(ROOT))
        from tests.auditing.scenes import scene

        for number in range(count):
            content = io.BytesIO()
            scene(number).save(content, "JPEG", quality=90)
            yield f"scene {number}", content.getvalue()
        return
    with zipfile.ZipFile(archive) as opened:
        names = sorted(name for name in opened.namelist() if name.endswith(".jpg"))
        for place in rng.permutation(len(names))[:count]:
            yield names[place], opened.read(names[place])


def lay_out_photos(archive: Path | None, folder: Path, originals: int, each: int, rng: Rng) -> tuple[dict, dict]:
    """Write photos and changed copies; returns the kind of change by injected pair, and the names by file."""
    kinds = [kind for kind in PHOTO_CHANGES for _ in range(each)]
    truth, names = {}, {}
    for number, (name, content) in enumerate(photos(archive, originals, rng)):
        one, other = f"{number:05d}.jpg", f"{number:05d}x.jpg"
        (folder / one).write_bytes(content)
        names[one] = Path(name).name
        if number >= len(kinds):
            continue
        kind, changed = kinds[number], PHOTO_CHANGES[kinds[number]]
        quality = int(rng.integers(15, 41) if kind.startswith("JPEG") else rng.integers(60, 96))
        if kind == "copied":
            (folder / other).write_bytes(content)
        else:
            changed(Image.open(io.BytesIO(content)).convert("RGB"), rng).save(folder / other, quality=quality)
        truth[one, other], names[other] = kind, Path(name).name
    return truth, names


def lay_out_texts(table: Path, folder: Path, originals: int, each: int, rng: Rng) -> tuple[dict, dict]:
    """Write a file of texts and changed copies, one a line; the names of texts are their lines."""
    with gzip.open(table, "rt", newline="") as file:
        every = list(dict.fromkeys(" ".join(row["text"].split()) for row in csv.DictReader(file)))
    plain = {"".join(filter(str.isalnum, text.lower())): text for text in every if len(text.split()) >= 5}
    chosen = list(plain.values())
    chosen = [chosen[place] for place in rng.permutation(len(chosen))[:originals]]
    kinds = [kind for kind in TEXT_CHANGES for _ in range(each)][: len(chosen)]
    copies = [TEXT_CHANGES[kind](text, rng) for kind, text in zip(kinds, chosen, strict=False)]
    truth = {(f"{row:05d}", f"{len(chosen) + row:05d}"): kind for row, kind in enumerate(kinds)}
    lines = [*chosen, *copies]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in lines))
    return truth, {f"{row:05d}": text for row, text in enumerate(lines)}


def ours(folder: Path, encoder: str | None = None) -> Pairs:
    import antipodes

    texts = folder / "texts.jsonl"
    os.environ["ANTIPODES_DATA"] = str(folder.parent / "cache")  # empty: nothing is known about the photos
    found = antipodes.audit(str(texts if texts.is_file() else folder), encoder=encoder, out=folder.parent / "out")
    rows = zip(found.pairs["path_a"], found.pairs["path_b"], found.pairs["kind"], strict=True)
    pairs = {_pair(a, b) for a, b, kind in rows if "duplicate" in kind}
    return {_pair(f"{int(a):05d}", f"{int(b):05d}") for a, b in pairs} if texts.is_file() else pairs


def fastdup(folder: Path) -> Pairs:
    import fastdup as package

    with tempfile.TemporaryDirectory() as work:
        finder = package.create(work_dir=work, input_dir=str(folder))
        finder.run(overwrite=True, print_summary=False, verbose=False)  # its default similarity threshold, 0.9
        table = finder.similarity()
    return {_pair(a, b) for a, b in zip(table["filename_from"], table["filename_to"], strict=True)}


def cleanvision(folder: Path) -> Pairs:
    from cleanvision import Imagelab

    lab = Imagelab(data_path=str(folder))
    lab.find_issues(verbose=False)  # its quality checks, too, as an audit has them
    sets = [each for kind in ("exact_duplicates", "near_duplicates") for each in lab.info[kind]["sets"]]
    return {_pair(a, b) for each in sets for a in each for b in each if a < b}


def imagededup(folder: Path, method: str) -> Pairs:
    from imagededup import methods

    found = getattr(methods, method)().find_duplicates(image_dir=str(folder))
    return {_pair(one, other) for one, others in found.items() for other in others}


def semhash(folder: Path) -> Pairs:
    """By its default model where that can be downloaded, else by the vectors of MiniLM, which the audit takes, too."""
    from semhash import SemHash

    records = [json.loads(line) for line in (folder / "texts.jsonl").read_text().splitlines()]
    records = [{"row": f"{row:05d}", "text": record["text"]} for row, record in enumerate(records)]
    try:
        finder = SemHash.from_records(records, columns=["text"])
    except OSError:
        print("semhash goes by MiniLM: its own model cannot be downloaded here", file=sys.stderr)
        finder = SemHash.from_records(records, columns=["text"], model=MiniLM())
    found = finder.self_deduplicate()
    return {_pair(each.record["row"], each.duplicate_of["row"]) for each in found.filtered}


class MiniLM:
    """What semhash asks of a model."""

    def encode(self, texts: list[str], **_: Any) -> np.ndarray:
        """Vectors of texts."""
        import antipodes

        return antipodes.load("minilm")(list(texts)).numpy()


FINDERS: dict[str, dict[str, Callable[[Path], Pairs]]] = {
    "photos": {
        "antipodes": ours,
        "antipodes, patches": lambda folder: ours(folder, "patches"),
        "fastdup": fastdup,
        "cleanvision": cleanvision,
        "imagededup, PHash": lambda folder: imagededup(folder, "PHash"),
        "imagededup, CNN": lambda folder: imagededup(folder, "CNN"),
    },
    "texts": {
        "antipodes": ours,
        "antipodes, n-grams": lambda folder: ours(folder, "ngrams"),
        "semhash": semhash,
    },
}


def _pair(a: object, b: object) -> tuple[str, str]:
    first, second = sorted(Path(str(each)).name for each in (a, b))
    return first, second


def answer(folder: Path, finder: str) -> None:
    """Print the pairs that a finder names, and what that took, as one line of JSON."""
    kind = "texts" if (folder / "texts.jsonl").is_file() else "photos"
    started = time.perf_counter()
    with redirect_stdout(sys.stderr):
        pairs = sorted(FINDERS[kind][finder](folder))
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(each.ru_utime + each.ru_stime for each in used)
    print("\n" + json.dumps({"pairs": pairs, "cpu": cpu, "clock": time.perf_counter() - started}))


def ask(finder: str, interpreter: str, folder: Path) -> dict[str, Any]:
    """The answer of a finder in a process of its own; a sentence in its place where it cannot run."""
    command = [interpreter, __file__, str(folder), "--answer", finder]
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        environment = {**os.environ, "TMPDIR": scratch, "SENTRY_OPT_OUT": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        return {"reason": (done.stderr.strip().splitlines() or ["it said nothing"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def same_pairs(archive: str) -> Pairs:
    """Names of the pairs of an archive that a person calls the same."""
    if not SAME.is_file():
        return set()
    with SAME.open(newline="") as file:
        return {_pair(row["one"], row["other"]) for row in csv.DictReader(file) if row["archive"] == archive}


def score(pairs: Pairs, truth: dict, names: dict[str, str], same: Pairs) -> tuple[dict[str, float], Pairs]:
    """Recall by kind and of all, precision; and the wrong pairs."""
    kinds = list(dict.fromkeys(truth.values()))
    hits = {kind: float(np.mean([pair in pairs for pair in truth if truth[pair] == kind])) for kind in kinds}
    right = pairs & truth.keys()
    wrong = {pair for pair in pairs - right if _pair(*(names[each] for each in pair)) not in same}
    precision = len(right) / max(1, len(right) + len(wrong))
    return {**hits, "recall": len(right) / len(truth), "precision": precision, "wrong pairs": len(wrong)}, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="zip file of .jpg photos or table of texts; none draws scenes")
    parser.add_argument("--originals", type=int, default=1320)
    parser.add_argument("--each", type=int, default=40, help="injected copies of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--python", action="append", default=[], metavar="FINDER=PATH", help="interpreter of a finder")
    parser.add_argument("--only", help="these finders, separated by semicolons")
    parser.add_argument("--wrong", help="table to write of the pairs that were not injected")
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    call = parser.parse_args()
    if call.answer:
        answer(Path(call.data), call.answer)
        return
    is_texts = bool(call.data) and call.data.endswith(".gz")
    finders = FINDERS["texts" if is_texts else "photos"]
    chosen = call.only.split(";") if call.only else list(finders)
    interpreters = dict(given.split("=", 1) for given in call.python)
    rng, archive = np.random.default_rng(call.seed), Path(call.data) if call.data else None
    results: dict[str, dict[str, float]] = {}
    wrong: dict[str, Pairs] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "data"
        folder.mkdir()
        if is_texts:
            truth, names = lay_out_texts(Path(call.data), folder, call.originals, call.each, rng)
        else:
            truth, names = lay_out_photos(archive, folder, call.originals, call.each, rng)
        same = same_pairs(archive.name if archive else "")
        for finder in chosen:
            found = ask(finder, interpreters.get(finder, sys.executable), folder)
            if "reason" in found:
                print(f"{finder} is left out: {found['reason']}", file=sys.stderr)
                continue
            results[finder], wrong[finder] = score({(a, b) for a, b in found["pairs"]}, truth, names, same)
            results[finder] |= {"processor ms a sample": 1000 * found["cpu"] / len(names)}
            results[finder] |= {"clock ms a sample": 1000 * found["clock"] / len(names)}
            print(f"{finder}: {found['cpu']:.1f} processor seconds", file=sys.stderr, flush=True)
    print(f"{len(names)} samples, {len(truth)} of them injected copies, seed {call.seed}\n")
    print("| |", " | ".join(results), "|\n|---|" + "---:|" * len(results))
    for row in next(iter(results.values()), {}):
        digits = 0 if row == "wrong pairs" else 1 if row.endswith("sample") else 3
        print(f"| {row} |", " | ".join(f"{each[row]:.{digits}f}" for each in results.values()), "|")
    if call.wrong:
        with Path(call.wrong).open("w", newline="") as file:
            lines = [(finder, *(names[each] for each in pair)) for finder, pairs in wrong.items() for pair in pairs]
            csv.writer(file).writerows([("finder", "one", "other"), *sorted(lines)])
    against = results.get("semhash" if is_texts else "fastdup")
    for each in results.values():
        each["time"] = each["processor ms a sample"] / against["processor ms a sample"] if against else float("nan")
    kept = ("recall", "precision", "time")
    print(json.dumps({name: {key: round(each[key], 4) for key in kept} for name, each in results.items()}))


if __name__ == "__main__":
    main()
