"""The texts or vectors of a dataset that an encoder of texts or vectors embeds: one input of every row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from antipodes.data import Samples
from antipodes.data.describe import printable
from antipodes.encoders.loading import LoadedEncoder
from antipodes.progress import Progress


@dataclass(frozen=True)
class Rows:
    """One input of the rows of a dataset.

    Args:
        data: The dataset.
        input_name: Which of its inputs.
        name: By which its rows are called.
    """

    data: Samples
    input_name: str
    name: str

    def __len__(self) -> int:
        return len(self.data)

    @property
    def paths(self) -> tuple[str, ...]:
        """A name for every row: that of the dataset and its number, as `texts.txt/0`."""
        return tuple(f"{self.name}/{row}" for row in range(len(self)))

    @property
    def skipped(self) -> tuple[tuple[str, str], ...]:
        """What the dataset left out, with the reasons."""
        return tuple((str(file), str(why)) for file, why in self.data.skipped)

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Labels (n,), or None where there are none."""
        return None if self.data.labels is None else self.data.labels.numpy()

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the labels."""
        return self.data.classes

    def contents(self) -> list[str]:
        """The digest of what is embedded."""
        return [f"{self.data.fingerprint} {self.input_name}"]


def rows_for(encoder: LoadedEncoder, data: Samples, name: str, tower: str | None = None) -> Rows:
    """The input of a dataset that an encoder of texts or vectors takes.

    Args:
        encoder: The encoder.
        data: The dataset.
        name: By which its rows are called.
        tower: The tower of the encoder; an input of that name is taken where there are several.

    Raises:
        ValueError: if the dataset has no such input, or several.
    """
    inputs = [each for each, modality in data.modalities.items() if modality == encoder.modality]
    if tower in inputs:
        return Rows(data, str(tower), name)
    if not inputs:
        held = " and ".join(dict.fromkeys(data.modalities.values()))
        raise ValueError(f"{printable(name)} holds {held}, and this encoder takes {encoder.modality}s")
    if len(inputs) > 1:
        raise ValueError(
            f"{printable(name)} has several inputs ({', '.join(inputs)}), and the encoder does not say which of them "
            "it is for: give a table of one text, or the encoder of a run with --tower"
        )
    return Rows(data, inputs[0], name)


def embed_rows(
    rows: Rows, encoder: LoadedEncoder, which: Sequence[int], batch: int, progress: Progress | None = None
) -> NDArray[np.float32]:
    """Embed some rows, `batch` of them at a time, and return their vectors (m, F).

    Raises:
        ValueError: if the encoder gives numbers that are not finite.
    """
    raw = rows.data.inputs(torch.as_tensor(list(which)))[rows.input_name]
    vectors = encoder.embed(raw, batch, progress)
    if not bool(vectors.isfinite().all()):
        raise ValueError("the encoder gave vectors that are NaN or infinite: its weights are broken")
    return vectors.numpy()
