"""`score`: the scores of a method's encoder, in one call."""

from __future__ import annotations

from collections.abc import Sequence

from antipodes.data import Samples
from antipodes.data.augment import Augmentation
from antipodes.evaluation.protocol import Protocol, make_protocols, run_protocols
from antipodes.evaluation.subject import Subject
from antipodes.methods import Method
from antipodes.runs.towers import Progress


def score(
    method: Method,
    data: Samples,
    protocols: Sequence[str | Protocol],
    test_limit: int | None = None,
    batch_size: int = 256,
    recipe: Augmentation | None = None,
    progress: Progress | None = None,
    others: Sequence[Samples] = (),
    seed: int = 0,
) -> dict[str, float]:
    """Return scores of a method's encoder: fitted on the training images, measured on the test split.

    Args:
        method: The method with the encoder.
        data: The training split.
        protocols: Names, such as linear and knn, or protocols with their options.
        test_limit: Number of test images that are used, at most.
        batch_size: The batch size of training, for protocols on batches.
        recipe: The augmentation of training, for protocols on its views; None takes plain images.
        progress: Called with (images done, all images), separately for each dataset.
        others: Datasets to transfer to, with labels; the protocol `transfer` is then added if it is missing.
        seed: Seed of every random draw.
    """
    chosen = [one if isinstance(one, Protocol) else make_protocols([one])[0] for one in protocols]
    if others and not any(one.takes_others for one in chosen):
        chosen += make_protocols(["transfer"])
    subject = Subject(
        method,
        data,
        others=others,
        test_limit=test_limit,
        batch_size=batch_size,
        recipe=recipe,
        seed=seed,
        progress=progress,
    )
    return run_protocols(chosen, subject)
