from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from antipodes.auditing.embeddings import Vectors, read_embeddings, write_embeddings
from tests.cases import every

ODD = ("a.jpg", "b/<script>.jpg", "c/ü.png")


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_what_is_written_is_read(tmp_path: Path, ending: str) -> None:
    given = Vectors(np.arange(6, dtype=np.float32).reshape(3, 2), ODD, np.array([1, 0, -1]), ("cat", "dog"))
    write_embeddings(tmp_path / f"x.{ending}", given)
    read = read_embeddings(tmp_path / f"x.{ending}")
    assert np.array_equal(read.embeddings, given.embeddings)
    assert read.paths == ODD
    assert read.labels is not None
    assert [read.class_of(row) for row in range(3)] == ["dog", "cat", ""]
    assert list(tmp_path.iterdir()) == [tmp_path / f"x.{ending}"]


def test_paths_of_an_array_are_beside_it(tmp_path: Path) -> None:
    write_embeddings(tmp_path / "x.npy", Vectors(np.ones((3, 2), dtype=np.float32), ODD))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x.npy", "x.paths.csv"]
    assert read_embeddings(tmp_path / "x.npy").paths == ODD
    np.save(tmp_path / "x.npy", np.ones((2, 3)))  # another array: the table is not of it
    assert read_embeddings(tmp_path / "x.npy").paths == ("row 0", "row 1")


@pytest.mark.parametrize("ending", ["npz", "npy", "parquet"])
def test_names_that_are_no_utf8_are_escaped_or_kept(tmp_path: Path, ending: str) -> None:
    odd = os.fsdecode(b"caf\xe9.jpg")
    write_embeddings(tmp_path / f"x.{ending}", Vectors(np.ones((1, 2), dtype=np.float32), (odd,)))
    (found,) = read_embeddings(tmp_path / f"x.{ending}").paths
    assert found == (odd if ending == "npz" else r"caf\udce9.jpg")


def test_vectors_of_parquet_can_be_written_to(tmp_path: Path) -> None:
    write_embeddings(tmp_path / "x.parquet", Vectors(np.ones((3, 2), dtype=np.float32), ODD))
    assert read_embeddings(tmp_path / "x.parquet").embeddings.flags.writeable  # torch warns of others


def test_an_array_alone_names_its_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3)))
    assert read_embeddings(tmp_path / "x.npy").paths == ("row 0", "row 1")


@every(
    ("arrays", "sentence"),
    [
        (
            {"embeddings": np.array([[1.0, np.nan], [0, 1]])},
            "1 of 2 embeddings are NaN or infinite, the first in row 0",
        ),
        ({"embeddings": np.ones(4)}, r"must be \(n, F\) numbers"),
        ({"embeddings": np.ones((0, 4))}, r"must be \(n, F\) numbers"),
        ({"embeddings": np.array([["a"]])}, r"must be \(n, F\) numbers"),
        ({"embeddings": np.ones((2, 4)), "paths": np.array(["a"])}, "every vector needs one path"),
        ({"embeddings": np.ones((2, 4)), "labels": np.array([1])}, "labels must be"),
        ({"pictures": np.ones((2, 4))}, "holds pictures"),
    ],
)
def test_broken_archives_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], sentence: str) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(ValueError, match=sentence):
        read_embeddings(tmp_path / "x.npz")


@pytest.mark.parametrize("name", ["x.npz", "x.npy", "x.parquet"])
def test_files_that_are_something_else(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"x\."):
        read_embeddings(tmp_path / name)
    with pytest.raises(ValueError, match="does not exist"):
        read_embeddings(tmp_path / "missing.npz")
    with pytest.raises(ValueError, match="should end in"):
        read_embeddings(Path(__file__))
