"""Wrong command lines of every command: exit code 2, one sentence, and nothing written.

A case is a good call with one thing wrong: a value of the wrong type or range, a name that nobody knows, a file that is
missing or of another kind, options that exclude each other, an option that is not there, an output that exists.
"""

from __future__ import annotations

import os
import random as random_
import shlex
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from tests.attack.harness import Failure, Outcome, changes, command, sentence, snapshot, warm_up

SMALL = "--encoder resnet8-slim --head.hidden 8 --head.dim 8 --batch_size 8 --epochs 1"
TRAIN = f"train --data photos --data.size 32 {SMALL} --out new"
CALLS = {
    "train": TRAIN,
    "evaluate": "evaluate run --protocol knn",
    "embed": "embed run photos --out new.npz",
    "neighbours": "neighbours vectors.npz --out new.csv",
    "audit": "audit vectors.npz --out new",
    "baseline": "baseline photos --epochs 0 --out new.csv",
    "report": "report run --samples 0 --out new.html",
    "compare": "compare scored",
    "study": "study grid.yaml --out new",
    "export": "export run --safetensors new.safetensors",
    "pictures": "pictures run --out new",
    "demo": "demo --data shapes --limit 16 --epochs 1 --out new",
}
HUGE = str(2**70)
WHOLE = ("0", "-1", "1.5", "many", "nan", "''", "1e400", HUGE, "0x", "[]", "{}", "ä", "1,0", "null!")
SHARE = ("-1", "1.5", "nan", "inf", "much", "''", "[0.1]", "1e400", "0,1")
REAL = ("-1", "nan", "inf", "fast", "''", "[]", "0.1.2")
NAME = ("nothing", "os.system", "os.path", "nowhere.Here", "''", "3", "'sim clr'", "💥", "../photos", "\uff41", "-")
CHOICE = ("nothing", "''", "0.5", "Ring", "💥", "a,b")
READ = ("nowhere", "''", "notes.txt/a", "empty", "loop", "pipe", "/dev/null", "a" * 5000, "'a\nb'", "'\x1b[31mred'")
WRITTEN = ("''", "notes.txt/a", "loop/a", "/proc/new", "a" * 5000, "photos/0.png/new.csv")
OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "train": {
        "--epochs": ("-1", *WHOLE[2:]),
        "--batch_size": WHOLE,
        "--seed": WHOLE[1:],
        "--learning_rate": REAL,
        "--weight_decay": REAL,
        "--method": NAME,
        "--loss": NAME,
        "--loss.temperature": (*REAL, "0"),
        "--encoder": NAME,
        "--optimizer": CHOICE,
        "--schedule": CHOICE,
        "--treatment": CHOICE,
        "--negatives": NAME,
        "--negatives fnc --negatives.alpha": SHARE,
        "--negatives ring --negatives.inner": SHARE,
        "--negatives known --negatives.groups": READ,
        "--method moco --method.queue_size": WHOLE,
        "--guide": NAME[:-1],
        "--augmentation": CHOICE,
        "--head.dim": WHOLE,
        "--devices": WHOLE,
        "--threads": WHOLE,
        "--workers": WHOLE[1:],
        "--checkpoint_steps": WHOLE[1:],
        "--knn_every": WHOLE[1:],
        "--log_every": WHOLE,
        "--precision": CHOICE,
        "--accelerator": CHOICE,
        "--init": READ,
        "--config": READ,
        "--resume": READ,
        "--data": READ,
        "--out": WRITTEN,
    },
    "evaluate": {
        "--protocol": CHOICE,
        "--knn.k": WHOLE,
        "--checkpoint": CHOICE,
        "--test_limit": WHOLE,
        "--seed": WHOLE[1:],
        "--device": CHOICE,
        "--workers": WHOLE[1:],
        "--transfer": READ,
        "--data": READ,
    },
    "embed": {"--limit": WHOLE, "--workers": WHOLE, "--batch_size": WHOLE, "--out": (*WRITTEN, "new.txt", "new")},
    "neighbours": {
        "--k": WHOLE,
        "--queries": READ,
        "--out": (*WRITTEN, "new.txt", "new"),
    },
    "audit": {
        "--batch_size": WHOLE,
        "--shown": WHOLE[1:],
        "--options.k": WHOLE,
        "--options.alpha": SHARE,
        "--options": READ,
        "--out": ("notes.txt", *WRITTEN[:-1]),
    },
    "baseline": {
        "--epochs": ("-1", *WHOLE[2:]),
        "--limit": WHOLE,
        "--seed": WHOLE[1:],
        "--workers": WHOLE,
        "--runs": READ,
        "--epochs 1 --encoder": NAME,
        "--out": (*WRITTEN, "new.txt"),
    },
    "report": {
        "--samples": ("-1", "1", *WHOLE[2:]),
        "--shown": WHOLE[1:],
        "--samples 9 --data": READ,
        "--out": WRITTEN,
    },
    "compare": {"--baseline": READ, "--scores": CHOICE, "--picture": WRITTEN},
    "study": {
        "--budget": CHOICE,
        "--seeds": WHOLE[1:],
        "--parallel": WHOLE,
        "--data": READ,
        "--data_size": WHOLE,
        "--out": ("notes.txt", *WRITTEN[:-1]),
    },
    "export": {
        "--tower": CHOICE,
        "--checkpoint": CHOICE,
        "--onnx": WRITTEN,
        "--open_clip": ("new",),
        "--safetensors": (*WRITTEN, "photos", "run/config.yaml", "notes.txt", "run/metrics.jsonl"),
    },
    "pictures": {
        "--format": CHOICE,
        "--anchors": WHOLE,
        "--seed": WHOLE[1:],
        "--data": READ,
        "--out": ("notes.txt", *WRITTEN[:-1]),
    },
    "demo": {"--epochs": WHOLE, "--limit": WHOLE, "--encoder": NAME, "--data": NAME[:4]},
}
SUBJECTS = {  # what stands in the first place, and what may not
    "run": (*READ, "photos", "notes.txt", "cut", "vectors.npz"),
    "vectors.npz": (*READ, "photos", "notes.txt", "cut", "broken.npz"),
    "photos": READ,
    "scored": (*READ, "photos", "run", "notes.txt", "cut"),
    "grid.yaml": (*READ, "photos", "notes.txt", "list.yaml", "run/config.yaml", "broken.npz"),
}
GOOD = {("embed", "cut"), ("export", "cut")}  # weights alone are enough: the damaged configuration is not read
CONFLICTS = (
    f"{TRAIN} --out run",
    f"{TRAIN} --out notes.txt",
    f"{TRAIN} --negatives glofnd+glofnd",
    f"{TRAIN} --negatives hcl+debiased",
    f"{TRAIN} --negatives guided",
    f"{TRAIN} --treatment attract",
    f"{TRAIN} --method clip",
    f"{TRAIN} --distill 1",
    f"{TRAIN} --batch_size 17",
    f"{TRAIN} --schedule step --milestones [9]",
    "train --resume run --seed 4",
    "train --resume run --method moco",
    "train --resume run --data nowhere",
    "train --resume cut",
    "evaluate run --images vectors.npy",
    "evaluate --images vectors.npy --texts other.npy",
    "export run",
    "report run run --out new.html",
    "study grid.yaml --data_size 3 --out new",
    "evalute run",
    "--verbose",
    "-x",
    "''",
)


def bad_call(random: random_.Random) -> str:
    """One wrong call as text."""
    name = random.choice(list(CALLS))
    call, how = CALLS[name], random.random()
    subject = call.split()[1]
    if how < 0.08:
        return random.choice(CONFLICTS)
    if how < 0.16:
        return f"{call} {random.choice(('--nothing 1', '--epoc 3', 'extra words', '--=1', '---', '--ünknown é'))}"
    if how < 0.32 and subject in SUBJECTS:
        wrong = [each for each in SUBJECTS[subject] if (name, each) not in GOOD]
        return call.replace(subject, random.choice(wrong), 1)
    if how < 0.36 and name != "demo":
        return name
    option = random.choice(list(OPTIONS[name]))
    return f"{call} {option} {random.choice(OPTIONS[name][option])}"


def prepare(folder: Path) -> None:
    """A folder with a finished run, photos, vectors, and things that are none of these."""
    warm_up()
    place = folder / "place"
    for name, count in (("photos", 16), ("empty", 0)):
        (place / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.random.default_rng(number).integers(0, 256, (36, 36, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / name / f"{number}.png")
    vectors = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    np.save(place / "vectors.npy", vectors)
    np.save(place / "other.npy", vectors[:7, :3])
    np.savez(place / "vectors.npz", embeddings=vectors, paths=np.array([f"{number}.png" for number in range(40)]))
    for name in ("notes.txt", "broken.npz"):
        (place / name).write_text("not what it seems")
    (place / "list.yaml").write_text("- a")
    (place / "grid.yaml").write_text(GRID)
    (place / "loop").symlink_to("loop")
    os.mkfifo(place / "pipe")  # a program that opens whatever it is given would wait for ever
    trained = command(shlex.split(TRAIN.replace("--out new", "--out run")), place)
    if trained.code:
        raise RuntimeError(trained.errors)
    for name in ("scored", "cut"):
        shutil.copytree(place / "run", place / name)
    (place / "cut" / "config.yaml").write_text((place / "run" / "config.yaml").read_text()[:300] + "\nx: [")
    scored = command(["evaluate", "scored", "--protocol", "label-free"], place)
    if scored.code:
        raise RuntimeError(scored.errors)


GRID = """title: two
question: which
protocols: [knn]
baseline: plain
variants: {plain: {}}
seeds: [0]
common: {epochs: 1, data: {name: shapes, count: 16}}
"""


def attempt(random: random_.Random, folder: Path) -> Outcome:
    call, place = bad_call(random), folder / "place"
    before = snapshot(place)
    ended = command(shlex.split(call), place)
    changed = changes(before, snapshot(place))
    if changed:
        shutil.rmtree(place)
        prepare(folder)
    shown = f"antipodes {call if len(call) < 200 else call[:200] + '...'!r}"
    if changed:
        raise Failure(f"{shown} with exit code {ended.code} has written: {changed}")
    sentence(ended, shown)
    return "refused"
