"""The commands that a folder of photos or a file of embeddings meets: embed, neighbours, audit, baseline, report."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command import here, refused


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Eight vectors: four directions, each twice, the second a little turned."""
    vectors = np.repeat(np.eye(4, dtype=np.float32), 2, axis=0)
    vectors[1::2] += 0.05
    np.savez(tmp_path / "photos.npz", embeddings=vectors, paths=np.array([f"album/{i}.jpg" for i in range(8)]))
    return tmp_path / "photos.npz"


@pytest.mark.parametrize("command", ["neighbours"])
def test_help_teaches(command: str) -> None:
    code, text, _ = here(command, "--help")
    assert code == 0
    assert f"antipodes {command} " in text.split("options:")[0].partition("\n\n")[2]  # an example


def test_neighbours_of_all(archive: Path) -> None:
    out = archive.with_name("neighbours.csv")
    code, text, errors = here("neighbours", archive, "--k", 2, "--out", out)
    assert code == 0, errors
    assert "album/1.jpg" in text
    with out.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 16
    assert lines[0] == {
        "path": "album/0.jpg",
        "rank": "1",
        "neighbour": "album/1.jpg",
        "similarity": lines[0]["similarity"],
    }
    assert float(lines[0]["similarity"]) == pytest.approx(1.05 / np.sqrt(1.05**2 + 3 * 0.05**2), abs=1e-5)


@pytest.mark.parametrize("ending", ["parquet", "json", "npz"])
def test_neighbours_in_other_formats(archive: Path, ending: str) -> None:
    out = archive.with_name(f"near.{ending}")
    assert here("neighbours", archive, "--k", 1, "--out", out, "--json")[0] == 0
    if ending == "json":
        found = [record["neighbour"] for record in json.loads(out.read_text())]
    elif ending == "npz":
        with np.load(out) as arrays:
            found = [str(arrays["paths"][row]) for row in arrays["neighbours"][:, 0]]
    else:
        found = pytest.importorskip("pyarrow.parquet").read_table(out)["neighbour"].to_pylist()
    assert found == [f"album/{i ^ 1}.jpg" for i in range(8)]


def test_neighbours_of_some(archive: Path) -> None:
    _, text, _ = here("neighbours", archive, "--queries", "3.jpg", "--k", 1, "--json")
    assert list(json.loads(text)["neighbours"]) == ["album/3.jpg"]
    assert json.loads(text)["neighbours"]["album/3.jpg"][0]["path"] == "album/2.jpg"
    np.save(archive.with_name("new.npy"), np.eye(4)[[2]])
    _, text, _ = here("neighbours", archive, "--queries", archive.with_name("new.npy"), "--k", 1, "--json")
    assert json.loads(text)["neighbours"]["row 0"][0]["path"] == "album/4.jpg"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--k", 0], "k must be at least 1"),
        (["--queries", "9.jpg"], "no path ends so"),
        (["--out", "missing/x.csv"], "the folder missing does not exist"),
        (["--out", "x.txt"], "should end in .csv"),
    ],
)
def test_wrong_calls_of_neighbours(archive: Path, arguments: list[object], sentence: str) -> None:
    before = sorted(archive.parent.iterdir())
    assert sentence in refused("neighbours", archive, *arguments)
    assert sorted(archive.parent.iterdir()) == before


def test_embeddings_that_are_not(tmp_path: Path) -> None:
    assert "does not exist" in refused("neighbours", tmp_path / "none.npz")
    np.savez(tmp_path / "nan.npz", embeddings=np.full((3, 2), np.nan))
    assert "NaN" in refused("neighbours", tmp_path / "nan.npz")
