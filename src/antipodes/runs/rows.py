"""Rows of the data that are found again: by a resumed run whose data has grown, and by groups that the user gives.

Resuming with data that has grown (`growth_since`, `grown_model`):

1. A checkpoint holds two digests of every row, of its name and of its content, and the sample that the row shows.
2. Rows are matched by both digests, else by content only, because a file may have been renamed.
3. Every module declares which tensors of its state are indexed by rows (`row_state`). In these, the entries of old rows
   move to the rows' new positions, and the other entries get the values of a new module.

Groups for the policy `known` (`place_groups`): a file of `antipodes audit` contains the path of every sample. Rows are
matched by that path, so groups stay right after photos were added or removed. A file without paths contains row
numbers, as `Known.read` expects.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from antipodes.data import Samples
from antipodes.data.image_files import ImageFiles
from antipodes.methods import Method
from antipodes.negatives import Known
from antipodes.negatives.known_file import counted_pairs, read_columns
from antipodes.state import ByRow


@dataclass(frozen=True)
class Growth:
    """Which rows of a dataset existed before.

    Args:
        sources: (n,) int64, the former row of every row; -1 for a new one.
        before: The former number of rows.
        places: (before,) int64, the current row of every former row; -1 for a removed one.
        samples: The same for samples, by their former numbers.
    """

    sources: Tensor
    before: int
    places: Tensor
    samples: Tensor

    @property
    def new(self) -> int:
        """The number of new rows."""
        return int((self.sources < 0).sum())

    @property
    def gone(self) -> int:
        """The number of removed rows."""
        return int((self.places < 0).sum())

    def __str__(self) -> str:
        kept = len(self.sources) - self.new
        gone = f"; {self.gone:,} are gone, with what was learned about them" if self.gone else ""
        return f"the data has changed: {kept:,} rows keep their tables, {self.new:,} new ones start fresh{gone}"

    def moved(self, saved: Tensor, fresh: Tensor, how: ByRow) -> Tensor:
        """Return a tensor of a checkpoint for the current rows.

        Args:
            saved: The tensor in the checkpoint.
            fresh: The tensor in a new module.
            how: How the tensor depends on rows.
        """
        if how.holds == "data":
            return fresh
        if how.holds in ("rows", "samples"):
            table = self.places if how.holds == "rows" else self.samples
            saved = torch.where(saved < 0, -1, table.to(saved)[saved.clamp(min=0).long()])
        if how.axis is None or saved.dim() <= how.axis or saved.shape[how.axis] % self.before:
            return saved  # such as one threshold for all
        each = saved.shape[how.axis] // self.before
        old = saved.movedim(how.axis, 0).unflatten(0, (self.before, each))
        start = fresh.movedim(how.axis, 0)
        if start.shape[1:] != saved.movedim(how.axis, 0).shape[1:]:  # some widths are set by the first step
            start = old.new_zeros(len(self.sources) * each, *old.shape[2:])
        new = start.to(old).unflatten(0, (len(self.sources), each)).clone()
        kept = self.sources >= 0
        new[kept] = old[self.sources[kept]]
        moved: Tensor = new.flatten(0, 1).movedim(0, how.axis)
        return moved


def describe_rows(data: Samples) -> dict[str, Any]:
    """Return the description of the data that a checkpoint holds, by which rows are matched."""
    return {
        "keys": data.keys(),
        "samples": data.samples,
        "sizes": {"size": data.image_size, "decode": getattr(data, "decode", None)},
    }


def growth_since(saved: Mapping[str, Any], data: Samples) -> Growth | None:
    """Return how the data differs from that of a checkpoint; None if it is the same.

    Raises:
        ValueError: if the rows of this kind of data cannot be matched, or none of them is.
    """
    if saved["identity"]["fingerprint"] == data.fingerprint:
        return None
    before = saved.get("data", {})
    old, now = before.get("keys"), data.keys()
    growth = None if old is None or now is None else _match(old, now, before["samples"], data.samples)
    if growth is None or growth.new == len(data):
        raise ValueError(
            f"the dataset has changed (fingerprint {saved['identity']['fingerprint']}, now {data.fingerprint}): "
            "ids would mean other samples; restore the data or start a new run"
        )
    return growth


def grown_model(method: Method, saved: Mapping[str, Tensor], growth: Growth) -> dict[str, Tensor]:
    """Return the state of a method from a checkpoint, for the current rows.

    Raises:
        ValueError: if groups that the user gave still refer to the former rows.
    """
    state = dict(saved)
    for prefix, module in method.named_modules():
        if isinstance(module, Known):
            _refuse_old_groups(module, saved[f"{prefix}.groups"], growth)
        for name, how in _declared(module).items():
            key, fresh = f"{prefix}.{name}", getattr(module, name)
            if key in state and isinstance(fresh, Tensor):
                state[key] = growth.moved(state[key], fresh.detach(), how)
    return state


def grown_optimizer(optimizer: Optimizer, method: Method, saved: Mapping[str, Any], growth: Growth) -> dict[str, Any]:
    """Return the state of an optimiser from a checkpoint, for parameters with an entry for every row."""
    by_row = {id(getattr(module, name)): how for module in method.modules() for name, how in _declared(module).items()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = dict(saved["state"])
    for number, parameter in enumerate(parameters):
        if id(parameter) in by_row and number in state:
            state[number] = {
                name: growth.moved(value, torch.zeros_like(parameter), by_row[id(parameter)])
                if isinstance(value, Tensor) and value.dim()
                else value
                for name, value in state[number].items()
            }
    return {**saved, "state": state}


def _declared(module: nn.Module) -> Mapping[str, ByRow]:
    """The tensors of a module's own state that go by rows."""
    declared: Mapping[str, ByRow] = getattr(type(module), "row_state", {})
    return declared


def _match(before: Tensor, now: Tensor, old_samples: Tensor | None, new_samples: Tensor | None) -> Growth:
    sources = torch.full((len(now),), -1)
    taken = torch.zeros(len(before), dtype=torch.bool)
    for columns in (slice(0, 2), slice(1, 2)):  # by name and content, then by content alone
        waiting: dict[tuple[int, ...], list[int]] = {}
        for row in (~taken).nonzero()[:, 0].flip(0).tolist():
            waiting.setdefault(tuple(before[row, columns].tolist()), []).append(row)
        for row in (sources < 0).nonzero()[:, 0].tolist():
            if rows := waiting.get(tuple(now[row, columns].tolist())):
                sources[row] = rows.pop()
                taken[sources[row]] = True
    kept = sources >= 0
    places = torch.full((len(before),), -1)
    places[sources[kept]] = kept.nonzero()[:, 0]
    if old_samples is None or new_samples is None:
        return Growth(sources, len(before), places, places)
    samples = torch.full((int(old_samples.max()) + 1,), -1)
    samples[old_samples[sources[kept]]] = new_samples[kept]
    return Growth(sources, len(before), places, samples)


def _refuse_old_groups(policy: Known, saved: Tensor, growth: Growth) -> None:
    grouped = (saved >= 0).nonzero()[:, 0]
    stale = len(policy.groups) >= len(saved) and torch.equal(policy.groups[: len(saved)].cpu(), saved)
    if stale and not torch.equal(growth.places[grouped], grouped):
        raise ValueError(
            "the groups that the policy known was given speak of rows by the numbers that they had before the data "
            "changed: audit the data again, then resume"
        )


Spec = Mapping[str, Any]
KNOWN = "known"
FEW = 0.1
"""The smallest share of matching paths; with fewer, the groups are refused as those of other data."""


def place_groups(spec: Spec, data: Samples) -> Spec:
    """Put groups from a file with paths in the order of the data's rows.

    Args:
        spec: The specification of one policy, or of several joined by +.
        data: The training data.

    Raises:
        ValueError: if the file describes other data.
    """
    given = _known(spec) or {}
    groups = given.get("groups")
    if not isinstance(groups, (str, Path)) or not _has_files(data):
        return spec
    if not Path(groups).is_file():
        return spec  # `Known` raises
    columns = read_columns(Path(groups))
    if {"row", "other", "path_a", "path_b"} <= set(columns):
        return _with_known(spec, _placed_pairs(given, columns, data))
    if "path" not in columns or "group" not in columns:
        return spec
    of_rows = Known.read(groups).groups  # raises if the file is invalid
    paths = [str(path) for path in columns["path"].tolist()]
    rows = torch.tensor([int(float(row)) for row in columns.get("row", range(len(paths)))], dtype=torch.int64)
    found = match_paths(paths, [_as_written(path) for path in data.paths], data.base)
    known = found >= 0
    if known.sum() < FEW * min(len(data), len(paths)) or not known.any():
        raise ValueError(
            f"{groups} describes other samples than {data.base} has: {int(known.sum())} of {len(data)} are in it, by "
            f"their paths, such as {paths[0] if paths else 'none'}; audit this data again"
        )
    if alone := int((~known).sum()):
        warnings.warn(f"{alone} of {len(data)} samples are not in {groups}: they are alone", stacklevel=2)
    placed = torch.full((len(data),), -1)
    placed[known] = of_rows[rows[found[known]]]
    return _with_known(spec, {**given, "groups": placed})


def _placed_pairs(given: Spec, columns: Mapping[str, Any], data: ImageFiles) -> Spec:
    """The options of `known` with the pairs of an audit's pairs.parquet as rows of the data, found by their paths."""
    counted = counted_pairs(columns, given.get("kinds"))
    names = [[str(path) for path in columns[side][counted].tolist()] for side in ("path_a", "path_b")]
    listed = list(dict.fromkeys([*names[0], *names[1]]))
    found = match_paths(listed, [_as_written(path) for path in data.paths], data.base).tolist()
    row_of = {listed[place]: row for row, place in enumerate(found) if place >= 0}
    pairs = [(row_of[a], row_of[b]) for a, b in zip(*names, strict=True) if a in row_of and b in row_of]
    if listed and not pairs:
        raise ValueError(
            f"{given['groups']} describes other samples than {data.base} has: none of its {len(names[0])} pairs is in "
            f"it, by their paths, such as {listed[0]}; audit this data again"
        )
    rest = {name: value for name, value in given.items() if name not in ("groups", "kinds")}
    return {**rest, "pairs": torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2), "num_samples": len(data)}


def without_groups(spec: Spec, count: int) -> Spec:
    """Return the specification of policies with `known` empty of `count` rows, for uses without a policy."""
    given = _known(spec)
    return spec if given is None else _with_known(spec, {**given, "groups": torch.full((count,), -1), "pairs": None})


def match_paths(listed: Sequence[str], paths: Sequence[str], base: Path) -> Tensor:
    """Return the position in `listed` of each of `paths`, (n,); -1 if there is none.

    A path is matched as a whole, else by its end, from the data's folder `base` on, because the folder may have moved.

    Example:
        >>> match_paths(["/old/photos/a.png", "/old/photos/b/c.png"], ["/new/photos/b/c.png"], Path("/new/photos"))
        tensor([1])
    """
    whole = {os.path.abspath(path): place for place, path in enumerate(listed)}
    root = os.path.abspath(base)
    ends = {f"{os.sep}{os.path.basename(root)}{os.path.abspath(path)[len(root) :]}": path for path in paths}
    depths = sorted({end.count(os.sep) for end in ends}, reverse=True)
    by_end: dict[str, int] = {}
    for path, place in whole.items():
        parts = path.split(os.sep)
        for depth in depths:
            end = os.sep.join(["", *parts[-depth:]])
            if end in ends:
                by_end.setdefault(ends[end], place)
                break
    return torch.tensor([whole.get(os.path.abspath(path), by_end.get(path, -1)) for path in paths], dtype=torch.int64)


def _known(spec: Spec) -> Spec | None:
    """Return the options of the policy `known`, alone or joined with others; None without it."""
    if spec["name"] == KNOWN:
        return spec
    return dict(spec.get(KNOWN, {})) if KNOWN in spec["name"].split("+") else None


def _with_known(spec: Spec, options: Spec) -> Spec:
    return options if spec["name"] == KNOWN else {**spec, KNOWN: options}


def _as_written(path: str) -> str:
    """Return a path as tables contain it: bytes of a name that are not UTF-8 are escaped."""
    return path.encode("utf-8", "backslashreplace").decode()


def _has_files(data: Samples) -> TypeGuard[ImageFiles]:
    return isinstance(data, ImageFiles) and data.has_files
