"""Data folders that hold Python files: none of them may run, whatever they are called.

Every file writes a marker when it is executed. Commands are started as a user does, in that folder.
"""

from __future__ import annotations

import random as random_
from pathlib import Path

import numpy as np
from PIL import Image

from tests.attack.harness import Failure, Outcome, fresh
from tests.attack.kills import finish, start

NAMES = (
    *("hashlib", "html", "torch", "numpy", "json", "vectors", "conftest", "sitecustomize", "usercustomize", "photos"),
    *("yaml", "PIL", "rich", "csv", "random", "antipodes", "sklearn", "pyarrow", "shapes", "simclr", "run", "typing"),
)
SMALL = "--batch_size 8 --epochs 1 --out run"
CALLS = (
    f"train --data vectors.npy {SMALL}",
    f"train --data photos --data.size 32 --encoder resnet8-slim --head.hidden 8 {SMALL}",
    f"train --data ./vectors.npy --negatives fnc {SMALL}",
    "audit . --encoder patches --out audit",
    "audit vectors.npy --out audit",
    "embed patches photos --out embedded.npz",
    "neighbours vectors.npy --out near.csv",
    "evaluate run --protocol label-free",
    "report run --out page.html",
    "study --help",
)


def prepare(folder: Path) -> None:
    """The calls make what they need."""


def attempt(random: random_.Random, folder: Path) -> Outcome:
    place = fresh(folder, "data")
    np.save(place / "vectors.npy", np.random.default_rng(0).normal(size=(32, 8)).astype(np.float32))
    (place / "photos").mkdir()
    for number in range(16):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / "photos" / f"{number}.png")
    call = random.choice(CALLS)
    if "run" in call.split()[1:2]:
        ended = finish(start(CALLS[1].split(), place), "training")  # of photos
        if ended[0]:
            raise Failure(f"training failed without any foreign code: {ended[1][-400:]}")
    markers = fresh(folder, "markers")
    for name in NAMES:
        code = f"open({str(markers / name)!r}, 'w').close()\nraise SystemExit('foreign code: {name}')\n"
        (place / f"{name}.py").write_text(code)
    code, errors = finish(start(call.split(), place), call)
    if found := sorted(marker.name for marker in markers.iterdir()):
        raise Failure(f"antipodes {call} has run {', '.join(f'{name}.py' for name in found)}")
    if code:
        raise Failure(f"antipodes {call} ended with {code}: {errors[-400:]}")
    return "ok"
