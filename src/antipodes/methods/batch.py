"""`Batch`: what one step gets, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Inputs:
    """What a step has of one input of its samples: an image, a text, a vector.

    Attributes:
        views: The random views, each (b, ...): images (b, 3, H, W), tokens (b, L), vectors (b, F).
        supports: Further views, for policies that ask for some.
        crops: Smaller views, one batch a size.
        plain: The input as evaluation sees it, for methods that ask for it.
    """

    views: Sequence[Tensor]
    supports: Sequence[Tensor] = ()
    crops: Sequence[Tensor] = ()
    plain: Tensor | None = None


@dataclass(frozen=True)
class Batch:
    """The samples of a step on this rank.

    Attributes:
        ids: (b,) the sample that each row shows: what may never be its own negative.
        inputs: Name of an input -> what there is of it.
        rows: (b,) which row of the dataset, and so of every table and label, each one is; the ids unless given.
    """

    ids: Tensor
    inputs: Mapping[str, Inputs]
    rows: Tensor = field(default=None)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.rows is None:
            object.__setattr__(self, "rows", self.ids)

    def __getitem__(self, name: str) -> Inputs:
        """The input of that name."""
        return self.inputs[name]
