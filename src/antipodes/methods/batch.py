"""`Batch`: the samples of one step, with their inputs by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class InputViews:
    """One input of a batch's samples (image, text or vector), with all the views that a method needs.

    Attributes:
        views: The random views, each (b, ...): images (b, 3, H, W), tokens (b, L), vectors (b, F).
        supports: Further views, for policies that need support views.
        crops: Smaller views, one tensor for each size.
        plain: The input without augmentation, for methods that need it.
    """

    views: Sequence[Tensor]
    supports: Sequence[Tensor] = ()
    crops: Sequence[Tensor] = ()
    plain: Tensor | None = None


@dataclass(frozen=True)
class Batch:
    """The samples of a step on this rank.

    Attributes:
        ids: (b,) the identity of each row's sample; rows with the same id are never negatives of each other.
        inputs: The inputs by name.
        rows: (b,) the dataset row of each sample, by which tables and labels are indexed; the ids by default.
    """

    ids: Tensor
    inputs: Mapping[str, InputViews]
    rows: Tensor = field(default=None)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.rows is None:
            object.__setattr__(self, "rows", self.ids)

    def __getitem__(self, name: str) -> InputViews:
        """The input of that name."""
        return self.inputs[name]
