"""The embeddings and the memory bank of a short run of instance discrimination, for experiments on a real bank."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from torch import Tensor

from antipodes.evaluation.compared import compared_embeddings
from antipodes.runs.folder import Run
from antipodes.runs.opening import open_method
from antipodes.runs.views import build_augmentation

UNTRAINED_EPOCHS = 3  # so that of an entry's random start an eighth is left


class Bank(NamedTuple):
    """Embeddings of a random view of every image (n, D), and the bank's entries (n, D); float64, of length 1."""

    anchors: Tensor
    bank: Tensor


@cache
def trained_bank(data: str, images: int, epochs: int, seed: int, trained: bool = True) -> Bank:
    """Train instance discrimination by `antipodes train`, once in this process for the same arguments.

    The head ends centred: without it the embeddings of a short run stay nearly collapsed.

    Args:
        data: A dataset's name or path.
        images: So many of it.
        epochs: Of training.
        seed: Of the run, and of the views that the anchors are embeddings of.
        trained: Whether weights learn; otherwise the bank holds embeddings of the first ones.

    Raises:
        ValueError: if the run fails, with what it said last.
    """
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        options = {
            "method": "instance",
            "method.samples": 1024,
            "head.centred": "true",
            "encoder": "resnet8-slim",
            "data": data,
            "data.limit": images,
            "epochs": epochs if trained else UNTRAINED_EPOCHS,
            "batch_size": min(256, images),
            "seed": seed,
            "out": out,
        }
        options |= {} if trained else {"learning_rate": 0.0}
        call = [f"--{name}={value}" for name, value in options.items()]
        done = subprocess.run(
            [sys.executable, "-m", "antipodes", "train", *call],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].removeprefix("antipodes: ")
            raise ValueError(f"the run that makes the bank failed: {said}")
        run = Run.open(out)
        method, samples = open_method(run)
        recipe = build_augmentation(run.config["augmentation"], samples.image_size, method.normalised)
        judged = compared_embeddings(method.eval(), samples, recipe, seed)
    return Bank(judged.anchors.double(), judged.candidates.double())
