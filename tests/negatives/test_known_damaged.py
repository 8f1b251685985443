"""Files of groups that are damaged, hostile or too large: one sentence that names the file, or the same groups."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from antipodes import Known
from antipodes.tables import write_table

ROWS, GROUPS = list(range(60)), [row % 7 - 1 for row in range(60)]


def write_npz(path: Path) -> None:
    np.savez(path, row=ROWS, group=GROUPS)


def write_pt(path: Path) -> None:
    torch.save(torch.tensor(GROUPS), path)


def write_parquet(path: Path) -> None:
    pytest.importorskip("pyarrow")
    write_table(path, {"row": ROWS, "path": [f"{row}.png" for row in ROWS], "group": GROUPS})


def mutated(content: bytes, seed: int) -> bytes:
    """Bytes flipped, overwritten, cut off, taken out or put in."""
    draw = random.Random(seed)
    changed = bytearray(content)
    place = draw.randrange(len(changed))
    kind = seed % 6
    if kind in (0, 1):
        changed[place] ^= 1 << draw.randrange(8)
    elif kind == 2:
        for _ in range(8):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
    elif kind == 3:
        del changed[place:]
    elif kind == 4:
        del changed[place : place + draw.randrange(1, 9)]
    else:
        changed[place:place] = draw.randbytes(draw.randrange(1, 9))
    return bytes(changed)


@pytest.mark.parametrize("write", [write_npz, write_pt, write_parquet])
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_file_gives_one_sentence_or_the_same_groups(tmp_path: Path, write: Callable[[Path], None]) -> None:
    whole = tmp_path / f"whole.{write.__name__.removeprefix('write_')}"
    write(whole)
    assert Known.read(whole).groups.tolist() == GROUPS
    path, content, refused = tmp_path / f"damaged{whole.suffix}", whole.read_bytes(), 0
    for seed in range(300):
        path.write_bytes(mutated(content, seed))
        try:
            assert Known.read(path).groups.tolist() == GROUPS, f"mutation {seed} is read as other groups"
        except ValueError as error:
            refused += 1
            assert str(path) in str(error), f"mutation {seed}: {error}"  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
    assert refused > 100  # of all mutations; the others hit padding and names that nobody reads


class Touch:
    """An object whose unpickling makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = str(file)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (self.file,)


def test_objects_are_refused_and_never_executed(tmp_path: Path) -> None:
    made, hostile = tmp_path / "made", Touch(tmp_path / "made")
    for name in ("bare.pt", "bare.npz", "bare.csv", "bare.parquet", "bare.pkl"):
        (tmp_path / name).write_bytes(pickle.dumps(hostile))
    torch.save(hostile, tmp_path / "torch.pt")
    torch.save(hostile, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save({"group": torch.zeros(3)}, tmp_path / "mapping.pt")
    np.savez(tmp_path / "objects.npz", row=[0], group=np.array([hostile], dtype=object))
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(ValueError, match=path.name):
            Known.read(path)
    assert not made.exists()


def test_odd_arrays_are_refused_by_name(tmp_path: Path) -> None:
    arrays = {
        "scalar": {"group": np.array(3)},
        "square": {"group": np.zeros((2, 2), dtype=np.int64)},
        "rows": {"row": np.zeros((2, 2), dtype=np.int64), "group": [1, 2]},
        "complex": {"group": np.array([1j])},
        "dates": {"group": np.array(["2020-01-01"], dtype="datetime64[D]")},
        "infinite": {"row": [np.inf], "group": [1]},
    }
    for name, columns in arrays.items():
        np.savez(tmp_path / f"{name}.npz", **columns)
    for name, tensor in {
        "sparse": torch.tensor([0, 1]).to_sparse(),
        "bfloat16": torch.zeros(3, dtype=torch.bfloat16),
        "expanded": torch.zeros(1, dtype=torch.int64).expand(10**12),
    }.items():
        torch.save(tensor, tmp_path / f"{name}.pt")
    (tmp_path / "digits.csv").write_text(f"row,group\n{'9' * 5000},1\n")
    (tmp_path / "latin.csv").write_bytes("row,group\n0,caf\xe9\n".encode("latin-1"))
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(ValueError, match=path.name):
            Known.read(path)


def test_many_digits_are_a_name(tmp_path: Path) -> None:
    (tmp_path / "digits.csv").write_text(f"row,group\n0,{'9' * 5000}\n1,{'9' * 5000}\n2,4\n")
    assert Known.read(tmp_path / "digits.csv").groups.tolist() == [0, 0, 1]


READ = """
import resource, sys
from antipodes import Known
for path in sys.argv[1:]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        Known.read(path)
    except ValueError as error:
        print(error)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_row_far_beyond_the_lines_takes_no_memory(tmp_path: Path) -> None:
    paths = []
    for columns in ("row,group", "row,other"):
        paths.append(tmp_path / f"far-{columns}.csv")
        paths[-1].write_text(f"{columns}\n0,1\n40000000,1\n")  # 320 MB for one table of so many rows
        with pytest.raises(ValueError, match=r"names row 40000000: the dataset has at most 9 rows"):
            Known.read(paths[-1], num_samples=9)
    command = [sys.executable, "-c", READ, *map(str, paths)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    for path, sentence, grown in zip(paths, said[::2], said[1::2], strict=True):
        assert f"{path.name} names row 40000000" in sentence
        assert int(grown) < 50_000


def test_the_size_of_the_dataset_allows_any_of_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "far.csv"
    path.write_text("row,group\n0,1\n2000000,1\n")
    assert Known.read(path, num_samples=2_000_001).groups[[0, -1]].tolist() == [1, 1]
