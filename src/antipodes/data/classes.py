"""Fewer classes of a labelled dataset, by number or by name."""

from collections.abc import Sequence

import torch

Classes = int | list[str] | str | None
"""How many classes to keep, or which: a list of names, or one text with commas between them. None keeps all."""

_SEED = 20_001  # fixed for good, as that of `limited`


def choose_classes(
    labels: Sequence[int], names: Sequence[str], classes: Classes, where: str
) -> tuple[list[int], list[int], list[str]]:
    """Keep the samples of some classes, which are renumbered in the dataset's order.

    A number keeps the first of one fixed permutation of the classes. So the choice does not depend on the run's seed,
    neighbours in an ordered list of classes (all the fish) do not stay together, and choices are nested: the 10
    classes are among the 20.

    Args:
        labels: (n,) class of every sample.
        names: the names of the classes.
        classes: how many, or which.
        where: what the dataset is called, for the sentence of a refusal.

    Returns:
        The positions of the samples that are kept, their new labels, and the names that these stand for.

    Raises:
        ValueError: if there are no labels, fewer classes than that, or no class of that name.

    Example:
        >>> choose_classes([0, 1, 2, 1], ["cat", "dog", "owl"], "owl,dog", "photos")
        ([1, 2, 3], [0, 1, 0], ['dog', 'owl'])
    """
    if not names:
        raise ValueError(f"{where} has no labels, so no classes can be chosen: leave classes out")
    if isinstance(classes, str):
        classes = int(classes) if classes.isdecimal() else [name.strip() for name in classes.split(",")]
    if isinstance(classes, int):
        if not 1 <= classes <= len(names):
            raise ValueError(f"classes must be in 1..{len(names)}, the classes of {where}, got {classes}")
        order = torch.randperm(len(names), generator=torch.Generator().manual_seed(_SEED))
        chosen = sorted(order[:classes].tolist())
    else:
        unknown = [name for name in classes or () if name not in names]
        if unknown or not classes:
            some = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            raise ValueError(f"{where} has no class {', '.join(map(repr, unknown)) or '[]'}: it has {some}")
        chosen = sorted({list(names).index(name) for name in classes})
    new = {old: number for number, old in enumerate(chosen)}
    keep = [i for i, label in enumerate(labels) if label in new]
    return keep, [new[labels[i]] for i in keep], [names[i] for i in chosen]
