"""`Known`: false negatives that the user knows, by groups of rows or by listed pairs of them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from antipodes.negatives.matching import match_partners
from antipodes.negatives.policy import Policy
from antipodes.pairs import Group, Pairs, Rule
from antipodes.state import ByRow, check_rows


class Known(Policy):
    """Rows of one group are not negatives of each other: duplicates by content, records of a patient, one product.

    Groups may come from anywhere: content hashes, product or patient ids, an audit. Listed pairs say the same of two
    rows at a time, in both directions, without making a group of them.

    Args:
        groups: (n,) whole numbers, the group of every row; a negative one is alone. Or a file for `Known.read`.
        pairs: (L, 2) pairs of rows.
        num_samples: Size of the dataset, where neither says it; rows beyond `groups` are alone.

    Example:
        >>> policy = Known(torch.tensor([0, 0, -1, 1, 1]))
        >>> policy.groups.tolist()
        [0, 0, -1, 1, 1]
    """

    row_state: ClassVar[Mapping[str, ByRow]] = {name: ByRow(holds="data") for name in ("groups", "partners", "firsts")}
    groups: Tensor
    partners: Tensor
    firsts: Tensor
    num_samples: int

    def __init__(
        self,
        groups: Tensor | str | Path | None = None,
        pairs: Tensor | None = None,
        num_samples: int | None = None,
    ) -> None:
        super().__init__()
        if isinstance(groups, (str, Path)):
            groups, found = _read(Path(groups))
            pairs = found if pairs is None else pairs
        if groups is None and pairs is None:
            raise ValueError("known needs to know something: give groups (n,) by row, or pairs (L, 2) of rows")
        for name, given, width in (("groups", groups, 1), ("pairs", pairs, 2)):
            if given is not None and (given.dim() != width or given.is_floating_point() or given.dtype == torch.bool):
                raise ValueError(f"{name} must be whole numbers, got {given.dtype} of shape {tuple(given.shape)}")
        if pairs is not None and (pairs.shape[1] != 2 or (len(pairs) and int(pairs.min()) < 0)):
            raise ValueError(f"pairs must be (L, 2) rows of the dataset, got shape {tuple(pairs.shape)}")
        least = max(1, 0 if groups is None else len(groups))
        if pairs is not None and len(pairs):
            least = max(least, 1 + int(pairs.max()))
        if num_samples is not None and num_samples < least:
            raise ValueError(f"known speaks of row {least - 1}, and the dataset has only {num_samples} rows")
        self.num_samples = least if num_samples is None else num_samples
        table = torch.full((self.num_samples,), -1)
        if groups is not None:
            table[: len(groups)] = groups.long()
        self.register_buffer("groups", table)
        both = torch.zeros(0, 2, dtype=torch.int64) if pairs is None else pairs.long()
        both = torch.cat((both, both.flip(1)))
        both = both[both[:, 0].argsort(stable=True)]
        counts = torch.bincount(both[:, 0], minlength=self.num_samples)
        self.register_buffer("partners", both[:, 1].contiguous())
        self.register_buffer("firsts", torch.cat((counts.new_zeros(1), counts.cumsum(0))))

    @classmethod
    def read(cls, path: str | Path, num_samples: int | None = None) -> Known:
        """Read groups or pairs by row from a file.

        Args:
            path: A table (`.parquet`, `.csv`) with columns `row` and `group`, or `row` and `other` for pairs; arrays of
                these names in an `.npz` (`group` alone is in the order of rows); or a tensor of groups saved by torch.
            num_samples: Size of the dataset; by default up to the last row that the file names.

        Raises:
            ValueError: if the file cannot be read, or has other columns.
        """
        return cls(path, num_samples=num_samples)

    def judge(self, pairs: Pairs, progress: float, learn: bool = True) -> Sequence[Rule]:
        """Drop what shares the anchor's group, or is listed with it."""
        anchor_rows, candidate_rows = pairs.rows()
        check_rows(anchor_rows, candidate_rows, self.num_samples)
        of_anchors = self.groups[anchor_rows]
        of_candidates = of_anchors
        if candidate_rows is not anchor_rows:
            of_candidates = self.groups[candidate_rows.clamp(min=0)].masked_fill_(candidate_rows < 0, -1)
        rule = Rule(groups=(Group(of_anchors, of_candidates, "drop"),))
        if not len(self.partners):
            return [rule]
        first = self.firsts[anchor_rows]
        count = self.firsts[anchor_rows + 1] - first
        position = torch.repeat_interleave(count)
        number = torch.arange(len(position), device=position.device) - (count.cumsum(0) - count)[position]
        listed = match_partners(position, self.partners[first[position] + number], candidate_rows)
        return [rule & Rule(lists=(listed,))]


def _read(path: Path) -> tuple[Tensor | None, Tensor | None]:
    """Groups by row and pairs of rows, whichever the file has."""
    if not path.is_file():
        raise ValueError(f"the groups {path} do not exist: give a .parquet, .csv, .npz or .pt file")
    if path.suffix in (".pt", ".pth"):
        groups = torch.load(path, weights_only=True)
        if not isinstance(groups, Tensor):
            raise ValueError(f"{path} must hold one tensor of groups by row, got {type(groups).__name__}")
        return groups, None
    columns = _columns(path)
    if "group" in columns and "row" not in columns:
        columns["row"] = torch.arange(len(columns["group"]))
    if "row" in columns and "group" in columns:
        rows = columns["row"]
        groups = torch.full((int(rows.max()) + 1 if len(rows) else 1,), -1)
        groups[rows] = columns["group"]
        return groups, None
    if "row" in columns and "other" in columns:
        return None, torch.stack((columns["row"], columns["other"]), dim=1)
    raise ValueError(f"{path} must have columns row and group, or row and other, got {', '.join(columns) or 'none'}")


def _columns(path: Path) -> dict[str, Tensor]:
    """The columns row, group and other that a file has, as whole numbers."""
    names = ("row", "group", "other")
    found: dict[str, np.ndarray] = {}
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            found = {name: arrays[name] for name in names if name in arrays}
    elif path.suffix == ".parquet":
        try:
            from pyarrow import parquet
        except ImportError as error:
            raise ValueError(f"{path} is parquet, which needs pyarrow: pip install pyarrow, or write a .csv") from error
        table = parquet.read_table(path)
        found = {name: table.column(name).to_numpy() for name in names if name in table.column_names}
    elif path.suffix == ".csv":
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        present = [name for name in names if rows and name in rows[0]]
        found = {name: np.array([row[name] for row in rows]) for name in present}
    else:
        raise ValueError(f"groups are read from .parquet, .csv, .npz or .pt files, got {path}")
    columns = {}
    for name, values in found.items():
        if name == "group" and values.dtype.kind in "OSU" and not _whole(values):  # names of groups: number them
            _, values = np.unique(values.astype(str), return_inverse=True)
        if not _whole(values):
            raise ValueError(f"the column {name} of {path} must be whole numbers")
        columns[name] = torch.from_numpy(np.asarray(values).astype(np.float64).astype(np.int64))
    return columns


def _whole(values: np.ndarray) -> bool:
    """Whether these are whole numbers, or text of them."""
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError):
        return False
    return bool(np.isfinite(numbers).all() and (numbers == np.floor(numbers)).all())
