"""The scores of a run's encoder, in one call."""

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
    """Scores of a method's encoder: fitted on the training images, measured on the test split.

    Args:
        method: Whose encoder is evaluated.
        data: The training split.
        protocols: Names, such as linear and knn, or protocols with options of their own.
        test_limit: Use only so many test images.
        batch_size: That of training, for what looks at batches.
        recipe: The augmentation of training, for what looks at its views; None takes plain images.
        progress: Called with (images done, images in all), for each dataset anew.
        others: Datasets to transfer to, with labels; naming the protocol is then optional.
        seed: Of every random draw.
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
