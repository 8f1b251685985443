"""Damaged files of every kind that a command reads: one sentence that names the file, or the right result.

Files with a digest or a checksum (checkpoints, weights, archives) may never give other numbers without a word. Text
without one (csv, yaml, jsonl) may, where the damaged file is as good a file as the whole one.
"""

from __future__ import annotations

import random as random_
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tests.attack.damaged_images import mutated
from tests.attack.harness import Ended, Failure, Outcome, changes, command, fresh, in_child, sentence, snapshot, warm_up

SMALL = "--encoder resnet8-slim --head.hidden 8 --head.dim 8 --batch_size 16 --epochs 1"
TRAIN = f"train --data shapes --data.count 32 {SMALL} --out"
GROUPS = "train --data vectors.npy --batch_size 16 --epochs 1 --negatives known --out new --negatives.groups"


@dataclass(frozen=True)
class Subject:
    """A file, the command that reads it, and whether damage can be told from content."""

    file: str
    call: str
    checked: bool
    result: str = ""  # the file that the command writes; its standard output if there is none


SUBJECTS = (
    Subject("run/checkpoints/last.pt", "train --resume run --epochs 2", True, "run/encoder.safetensors"),
    Subject("run/checkpoints/last.pt", "evaluate run --protocol label-free --json", True),
    Subject("run/checkpoints/best.pt", "evaluate run --protocol label-free --checkpoint best --json", True),
    Subject("run/encoder.safetensors", f"{TRAIN} new --init run", True, "new/encoder.safetensors"),
    Subject("run/encoder.safetensors", "export run --safetensors new.safetensors", True, "new.safetensors"),
    Subject("run/config.yaml", "evaluate run --protocol label-free --json", False),
    Subject("run/config.yaml", "train --resume run --epochs 2", False, "run/encoder.safetensors"),
    Subject("run/metrics.jsonl", "report run --samples 0 --out new.html", False),
    Subject("run/metrics.jsonl", "train --resume run --epochs 2", False),
    Subject("run/evaluation.json", "compare run", False),
    Subject("groups.csv", f"{GROUPS} groups.csv", False),
    Subject("groups.npz", f"{GROUPS} groups.npz", True, "new/encoder.safetensors"),
    Subject("groups.pt", f"{GROUPS} groups.pt", True, "new/encoder.safetensors"),
    Subject("groups.parquet", f"{GROUPS} groups.parquet", False),
    Subject("vectors.npz", "neighbours vectors.npz --k 2 --out new.csv", True, "new.csv"),
    Subject("vectors.npz", "audit vectors.npz --out new", True, "new/summary.json"),
    Subject("vectors.parquet", "neighbours vectors.parquet --k 2 --out new.csv", False),
    Subject("grid.yaml", "study grid.yaml --status --out new", False),
    Subject("captions/captions.csv", "captions", False),
    Subject("captions/captions.json", "captions", False),
)
GRID = """title: a
question: b
common: {epochs: 1, data: {name: shapes, count: 16}}
variants: {plain: {}, ring: {negatives: {name: ring}}}
seeds: [0, 1]
baseline: plain
protocols: [knn]
"""
ODD = (  # whole contents of another kind
    b"",
    b"5\n",
    b"null",
    b"[" * 5000,
    b"a: &a [*a]",
    b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x01x\x94\x85\x94R\x94.",
    b"\xff\xfe\x00\x00data",
    b"row,group\n400000000,1\n",
    b"{}",
    b"!!python/object/apply:os.system [x]",
)


def captions(place: Path) -> int:
    """Open the folder of captions as a command does."""
    from antipodes.cli.errors import exit_code
    from antipodes.data.captions import Captions

    return exit_code(lambda _: print(Captions(str(place / "captions"), size=32, cache=False).describe()), [])


def execute(subject: Subject, place: Path) -> Ended:
    if subject.call == "captions":
        return in_child(lambda: captions(place), place)
    return command(subject.call.split(), place)


def prepare(folder: Path) -> None:
    """A folder with every file whole, and the result of every command on them."""
    warm_up()
    place, numbers = folder / "whole", np.random.default_rng(0)
    (place / "captions").mkdir(parents=True)
    vectors = numbers.normal(size=(64, 8)).astype(np.float32)
    np.save(place / "vectors.npy", vectors)
    names = np.array([f"{number}.png" for number in range(64)])
    np.savez(place / "vectors.npz", embeddings=vectors, paths=names)
    groups = np.arange(64) // 4
    np.savez(place / "groups.npz", row=np.arange(64), group=groups)
    torch.save(torch.from_numpy(groups), place / "groups.pt")
    lines = [f"{row},{group}" for row, group in enumerate(groups)]
    (place / "groups.csv").write_text("\n".join(["row,group", *lines]))
    from pyarrow import parquet, table

    parquet.write_table(table({"row": np.arange(64), "group": groups}), place / "groups.parquet")
    parquet.write_table(table({"path": names, "embedding": list(vectors)}), place / "vectors.parquet")
    (place / "grid.yaml").write_text(GRID)
    for number in range(8):
        Image.new("RGB", (40, 40), (30 * number, 0, 0)).save(place / "captions" / f"{number}.png")
    rows = [f'{number}.png,"a square, number {number}"' for number in range(8)]
    (place / "captions" / "captions.csv").write_text("\n".join(["image,caption", *rows]))
    shutil.copytree(place / "captions", place / "c2")
    (place / "c2" / "captions.csv").unlink()
    texts = ", ".join(f'{{"image": "{number}.png", "caption": "square {number}"}}' for number in range(8))
    (place / "c2" / "captions.json").write_text(f"[{texts}]")
    for call in (f"{TRAIN} run", "evaluate run --protocol label-free"):
        ended = command(call.split(), place)
        if ended.code:
            raise RuntimeError(f"{call}: {ended.errors}")


def whole_copy(subject: Subject, folder: Path) -> Path:
    place = folder / "place"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder / "whole", place)
    if subject.file.endswith("captions.json"):
        shutil.rmtree(place / "captions")
        (place / "c2").rename(place / "captions")
    return place


def result_of(subject: Subject, place: Path, ended: Ended) -> bytes:
    """What the command came to: its file, or what it printed."""
    made = place / subject.result
    return made.read_bytes() if subject.result and made.is_file() else ended.out.encode()


def expected(subject: Subject, folder: Path) -> bytes:
    """The result with the whole file, computed once."""
    kept = fresh(folder, "results") if not (folder / "results").exists() else folder / "results"
    file = kept / str(SUBJECTS.index(subject))
    if not file.exists():
        place = whole_copy(subject, folder)
        ended = execute(subject, place)
        if ended.code:
            raise RuntimeError(f"{subject.call}: {ended.errors}")
        file.write_bytes(result_of(subject, place, ended))
    return file.read_bytes()


def damage(path: Path, random: random_.Random) -> str:
    """Put something else into the place of a file; returns what."""
    data, how = path.read_bytes(), random.random()
    if how < 0.06:
        path.unlink()
        path.symlink_to(path.name)
        return "a symlink loop"
    if how < 0.1:
        path.unlink()
        path.mkdir()
        return "a folder"
    if how < 0.25:
        content = random.choice(ODD)
        path.write_bytes(content)
        return f"the content {content[:30]!r}"
    path.write_bytes(mutated(data, random))
    return "a mutation"


def attempt(random: random_.Random, folder: Path) -> Outcome:
    subject = random.choice(SUBJECTS)
    wanted = expected(subject, folder)
    place = whole_copy(subject, folder)
    path = place / subject.file
    data = path.read_bytes()
    what = damage(path, random)
    if what == "a mutation" and path.read_bytes() == data:
        return "ok"
    before = snapshot(place)
    ended = execute(subject, place)
    call = f"antipodes {subject.call} with {what} as {subject.file}"
    if ended.megabytes > 1500 or ended.seconds > 60:
        raise Failure(f"{call} took {ended.megabytes:.0f} MB and {ended.seconds:.0f} s")
    if ended.code == 0 and "Traceback" not in ended.errors:
        if subject.checked and result_of(subject, place, ended) != wanted:
            raise Failure(f"{call} gives another result without a word")
        return "ok"
    told = sentence(ended, call)
    if Path(subject.file).name not in told:
        raise Failure(f"{call}: the sentence does not name the file: {told}")
    if changed := changes(before, snapshot(place)):
        raise Failure(f"{call} is refused and has changed: {changed}")
    return "refused"
